//! `webbase remove-lost`: give up a node that will not return.

use anyhow::Result;
use webbase::standing::node_name;
use webbase_node::cycle::message::NodeId;

use super::{Repository, node_id};

/// Give up a node that is down: its ranges are given to others, which copy them from replicas.
///
/// What was only there is lost. The node is never let in again, even if it returns.
#[derive(clap::Args)]
#[command(after_help = "Example:
  webbase remove-lost 00abcdef01234567")]
pub(crate) struct RemoveLost {
    /// The node, as `webbase status` prints it.
    #[arg(value_name = "NODE", value_parser = node_id)]
    node: NodeId,
    #[command(flatten)]
    repository: Repository,
}

impl RemoveLost {
    pub(crate) async fn run(self) -> Result<()> {
        self.repository.connect().await?.remove_lost(self.node).await?;
        eprintln!("node {} is removed", node_name(self.node));
        Ok(())
    }
}
