//! `webbase cycle`: the batch update, now.

use anyhow::{Context, Result};
use webbase_node::plan::Status;

use super::{Repository, node_name};

/// Run a cycle: everything added so far becomes visible, all at once.
///
/// Progress goes to stderr, and at the end what came of it; the new generation's number to stdout, when readers see it.
#[derive(clap::Args)]
#[command(after_help = "Example:
  webbase cycle --mgmt 127.0.0.1:7701")]
pub(crate) struct Cycle {
    #[command(flatten)]
    repository: Repository,
}

impl Cycle {
    pub(crate) async fn run(self) -> Result<()> {
        let cluster = self.repository.connect().await?;
        let mut shown = String::new();
        let show = |status: &Status| {
            let line = progress(status);
            if line != shown {
                eprintln!("{line}");
                shown = line;
            }
        };
        let generation = cluster.cycle(show).await.context("no new generation")?;
        println!("{generation}");
        Ok(())
    }
}

fn progress(status: &Status) -> String {
    let Some((number, phase)) = &status.cycle else {
        let outcome = status.outcome.as_ref().filter(|outcome| outcome.cycle == status.last_cycle);
        let outcome = outcome.map_or_else(String::new, |outcome| format!("{outcome}; "));
        return format!("{outcome}generation {} is served", status.serving);
    };
    let mut line = format!("cycle {number}: {phase}");
    for node in &status.nodes {
        if let Some((phase, pages, bytes)) = node.progress {
            let phase = format!("{phase:?}").to_lowercase();
            line += &format!("; node {}: {phase}, {pages} pages, {bytes} bytes", node_name(node.id));
        }
    }
    line
}
