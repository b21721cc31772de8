//! `webbase stream`: all pages of the current generation, or all there are now.

use std::io::Write;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::client::Server;

/// Go through all pages: those of the current generation, or, with incremental update, those there are now.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  webbase stream > pages.warc.gz
  webbase stream --format count
  webbase stream --format jsonl > pages.jsonl")]
pub(crate) struct Stream {
    /// warc: WARC/1.1, a gzip member for each page; jsonl: a line of JSON for each page; count: only how many pages and bytes
    /// there are.
    #[arg(long, value_name = "FORMAT", value_parser = ["warc", "jsonl", "count"], default_value = "warc")]
    format: String,
    #[command(flatten)]
    server: Server,
}

impl Stream {
    pub(crate) async fn run(self) -> Result<()> {
        let repository = self.server.connect().await?;
        let request = repository.get("/stream", &[("format", &self.format)]);
        if self.format == "count" {
            return count(&repository.json(request).await?);
        }
        let mut answer = repository.ask(request).await?;
        let mut out = std::io::stdout().lock();
        while let Some(piece) = answer.chunk().await.context("the stream was cut off")? {
            out.write_all(&piece).context("cannot write to stdout")?;
        }
        out.flush().context("cannot write to stdout")
    }
}

fn count(counted: &Value) -> Result<()> {
    let number = |name: &str| counted.get(name).and_then(Value::as_u64);
    let which = match number("generation") {
        None => "live".to_owned(),
        Some(generation) => format!("generation {generation}"),
    };
    let (pages, bytes) = (number("pages").unwrap_or(0), number("bytes").unwrap_or(0));
    println!("{which}: {pages} pages, {bytes} bytes");
    let damaged = number("damaged").unwrap_or(0);
    ensure!(damaged == 0, "{damaged} pages are damaged");
    Ok(())
}
