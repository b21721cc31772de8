//! Which ranges have nodes, as the plans of the management server tell: what can be read, what can be added, and on how many
//! nodes a page lies. So pages can be counted once, though each of their nodes counts them.

use serde_json::{Value, json};
use webbase_node::cycle::message::NodeId;
use webbase_node::plan::{NodeStatus, Status};
use webbase_node::{Cluster, NodeError};
use webbase_storage::Stats;

/// Which ranges have nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Coverage {
    /// How many there are.
    pub ranges: usize,
    /// Those that no node serves now.
    pub unread: usize,
    /// Those that no node takes pages of now.
    pub unwritten: usize,
    /// Nodes that serve a range, on average.
    pub copies: f64,
    /// Nodes that serve any.
    readers: Vec<NodeId>,
}

impl Coverage {
    /// As it is now.
    ///
    /// # Errors
    /// When the management server does not answer.
    pub async fn of(cluster: &Cluster) -> Result<Coverage, NodeError> {
        let (read, _) = cluster.management().read_plan().await?;
        let (add, _) = cluster.management().add_plan().await?;
        Ok(Coverage::new(&read.ranges, &add.ranges))
    }

    pub(crate) fn new(read: &[Vec<NodeId>], add: &[Vec<NodeId>]) -> Coverage {
        let without = |ranges: &[Vec<NodeId>]| ranges.iter().filter(|nodes| nodes.is_empty()).count();
        let unread = without(read);
        let mut readers: Vec<NodeId> = read.iter().flatten().copied().collect();
        let copies = readers.len() as f64 / (read.len() - unread).max(1) as f64;
        readers.sort_unstable();
        readers.dedup();
        Coverage { ranges: read.len(), unread, unwritten: without(add), copies, readers }
    }

    /// How many pages readers see, if all nodes that serve them tell. Exact when every range has as many nodes as every other, and
    /// no cycle runs.
    pub fn pages(&self, status: &Status) -> Option<u64> {
        let serves = |node: &&NodeStatus| self.readers.contains(&node.id);
        let mut nodes = status.nodes.iter().filter(serves);
        let all: u64 = nodes.try_fold(0, |all, node| Some(all + Stats::from(node.figures?.store).pages))?;
        Some(self.once(all))
    }

    /// A number of pages, each counted once, of one in which each of its nodes counts it.
    pub fn once(&self, pages: u64) -> u64 {
        if self.copies > 1.0 { (pages as f64 / self.copies).round() as u64 } else { pages }
    }

    /// The same for programs.
    pub fn as_json(&self) -> Value {
        json!({"all": self.ranges, "unread": self.unread, "unwritten": self.unwritten})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_without_nodes_are_told_and_pages_are_counted_once() {
        let nodes = |ids: &[u64]| ids.iter().map(|id| NodeId(*id)).collect::<Vec<_>>();
        let whole = Coverage::new(&[nodes(&[1, 2]), nodes(&[2, 3])], &[nodes(&[4]), nodes(&[])]);
        assert_eq!((whole.ranges, whole.unread, whole.unwritten), (2, 0, 1));
        assert_eq!((whole.readers.len(), whole.once(30)), (3, 15));
        let half = Coverage::new(&[nodes(&[1]), nodes(&[])], &[nodes(&[4]), nodes(&[4])]);
        assert_eq!((half.unread, half.unwritten, half.once(30)), (1, 0, 30));
        assert_eq!(Coverage::new(&[], &[]).once(7), 7);
    }
}
