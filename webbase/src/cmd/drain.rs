//! `webbase drain`: take a node out in good order.

use std::time::Duration;

use anyhow::Result;
use webbase::standing::node_name;
use webbase_node::cycle::message::NodeId;

use super::{Repository, node_id};

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
        while cluster.status().await?.nodes.iter().any(|node| node.id == self.node) {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        eprintln!("node {name} is out of the repository; it can be stopped");
        Ok(())
    }
}
