//! `webbase stream`: all pages of the current generation.

use anyhow::{Result, ensure};
use webbase_node::NodeError;
use webbase_node::wire::message::Code;

use super::Repository;

/// Go through all pages of the current generation.
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
            "count" => println!("generation {}: {pages} pages, {bytes} bytes", stream.generation()),
            other => anyhow::bail!("there is no format {other}"),
        }
        ensure!(damaged == 0, "{damaged} pages are damaged");
        Ok(())
    }
}
