//! `webbase status`: how the repository stands.

use std::io::Write as _;

use anyhow::{Context, Result};
use webbase::standing;

use crate::client::Server;

/// Show generations, the running cycle and the nodes.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  webbase status
  webbase status --json --server http://127.0.0.1:7700")]
pub(crate) struct Status {
    /// As JSON, for programs.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

impl Status {
    pub(crate) async fn run(self) -> Result<()> {
        let status = self.server.connect().await?.status().await?;
        let text = if self.json { format!("{status:#}\n") } else { standing::as_text(&status) };
        std::io::stdout().lock().write_all(text.as_bytes()).context("cannot write to stdout")
    }
}
