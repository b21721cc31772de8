//! `webbase drain`: take a node out in good order.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{HumanBytes, HumanCount};
use webbase::standing::node_name;
use webbase_node::cycle::message::NodeId;
use webbase_node::plan::Status;

use super::{Repository, node_id};

/// Between two looks at the table.
const LOOK: Duration = Duration::from_millis(200);
/// Between two lines of progress.
const LINE: Duration = Duration::from_secs(5);

/// Move everything off a node, and wait until it is out of the table. Its pages stay readable all the time.
#[derive(clap::Args)]
#[command(after_help = "Example:
  webbase drain 00abcdef01234567")]
pub(crate) struct Drain {
    /// The node, as `webbase status` prints it.
    #[arg(value_name = "NODE", value_parser = node_id)]
    node: NodeId,
    /// Return when it has begun.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    repository: Repository,
}

impl Drain {
    pub(crate) async fn run(self) -> Result<()> {
        let cluster = self.repository.connect().await?;
        cluster.drain(self.node).await?;
        let name = node_name(self.node);
        if self.no_wait {
            eprintln!("node {name} is being drained");
            return Ok(());
        }
        let mut told = None;
        loop {
            let status = cluster.status().await?;
            if !status.nodes.iter().any(|node| node.id == self.node) {
                break;
            }
            if told.is_none_or(|at: Instant| at.elapsed() >= LINE) {
                told = Some(Instant::now());
                eprintln!("{}", progress(&name, &status));
            }
            tokio::time::sleep(LOOK).await;
        }
        eprintln!("node {name} is out of the repository; it can be stopped");
        Ok(())
    }
}

/// How far the others are, which take over what the node has.
fn progress(name: &str, status: &Status) -> String {
    let mut line = format!("node {name} is being drained");
    if let Some((cycle, phase)) = &status.cycle {
        // Writing to a string does not fail.
        let _ = write!(line, "; cycle {cycle} is {phase}");
    }
    for node in &status.nodes {
        if let Some((_, pages, bytes)) = node.progress {
            let _ = write!(
                line,
                "; node {} has taken {} pages, {}",
                node_name(node.id),
                HumanCount(pages),
                HumanBytes(bytes)
            );
        }
    }
    line
}
