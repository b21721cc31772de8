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
        let text = match self.json {
            true => format!("{status:#}\n"),
            false => coloured(&standing::as_text(&status)),
        };
        std::io::stdout().lock().write_all(text.as_bytes()).context("cannot write to stdout")
    }
}

/// The states of nodes in colour, on a terminal.
fn coloured(text: &str) -> String {
    if !console::colors_enabled() {
        return text.to_owned();
    }
    let mut out = String::new();
    for (at, line) in text.lines().enumerate() {
        let styled = match line {
            _ if at == 0 => console::style(line).bold(),
            _ if line.contains("  down ") => console::style(line).red(),
            _ if line.contains("  leaving ") || line.contains("found damaged") => {
                console::style(line).yellow()
            }
            _ if line.starts_with("node ") => console::style(line).dim(),
            _ => console::style(line),
        };
        out.push_str(&format!("{styled}\n"));
    }
    out
}
