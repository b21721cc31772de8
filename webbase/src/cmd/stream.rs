//! `webbase stream`: all pages of the current generation, or all there are now.

use anyhow::{Result, ensure};
use webbase_node::NodeError;
use webbase_node::plan::LIVE;
use webbase_node::wire::message::Code;

use super::Repository;

/// Go through all pages: those of the current generation, or, with incremental update, those there are now.
#[derive(clap::Args)]
#[command(after_help = "Example:
  webbase stream --format count")]
pub(crate) struct Stream {
    /// count: only how many pages and bytes there are.
    #[arg(long, value_name = "FORMAT", value_parser = ["count"])]
    format: String,
    #[command(flatten)]
    repository: Repository,
}

impl Stream {
    pub(crate) async fn run(self) -> Result<()> {
        let cluster = self.repository.connect().await?;
        let mut stream = cluster.stream().await?;
        let (mut pages, mut bytes, mut damaged) = (0_u64, 0_u64, 0_u64);
        while let Some(record) = stream.next().await {
            match record {
                Ok(record) => (pages, bytes) = (pages + 1, bytes + record.bytes().len() as u64),
                Err(NodeError::Refused { peer, fault }) if fault.code == Code::Damaged => {
                    eprintln!("webbase: {peer}: {fault}");
                    damaged += 1;
                }
                Err(e) => return Err(e.into()),
            }
        }
        match self.format.as_str() {
            "count" => {
                let which = match stream.generation() {
                    LIVE => "live".to_owned(),
                    generation => format!("generation {generation}"),
                };
                println!("{which}: {pages} pages, {bytes} bytes");
            }
            other => anyhow::bail!("there is no format {other}"),
        }
        ensure!(damaged == 0, "{damaged} pages are damaged");
        Ok(())
    }
}
