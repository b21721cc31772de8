//! How busy nodes are, as their figures said last. Kept in memory only; it steers, it decides nothing.

use std::collections::BTreeMap;

use webbase_node::cycle::message::NodeId;
use webbase_node::plan::NodeFigures;

/// A node is busy with this many outstanding requests at least,
const BUSY_MIN: u64 = 8;
/// and with so many times the mean of all nodes.
const BUSY_TIMES: u64 = 2;
/// An add or a stream counts as so many lookups.
const LONG_REQUEST: u64 = 4;

/// What a node has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests under way, long ones weighted.
    pub outstanding: u64,
    /// Bytes of pages in the epoch that takes adds.
    pub epoch_bytes: u64,
}

impl From<&NodeFigures> for Load {
    fn from(figures: &NodeFigures) -> Load {
        let long = figures.adds.saturating_add(figures.streams).saturating_mul(LONG_REQUEST);
        Load { outstanding: figures.lookups.saturating_add(long), epoch_bytes: figures.epoch_bytes }
    }
}

/// What all nodes have to do.
#[derive(Clone, Debug, Default)]
pub struct Loads {
    all: BTreeMap<NodeId, Load>,
}

impl Loads {
    /// A node says.
    pub fn note(&mut self, node: NodeId, load: Load) {
        self.all.insert(node, load);
    }

    /// Nothing is known of a node any more.
    pub fn forget(&mut self, node: NodeId) {
        self.all.remove(&node);
    }

    /// What a node said last; nothing, if it never did.
    pub fn of(&self, node: NodeId) -> Load {
        self.all.get(&node).copied().unwrap_or_default()
    }

    /// Those of these nodes that have much more to do than the others.
    pub fn busy(&self, nodes: &[NodeId]) -> Vec<NodeId> {
        let outstanding = |n: &NodeId| self.of(*n).outstanding;
        let mean = nodes.iter().map(outstanding).sum::<u64>() / (nodes.len() as u64).max(1);
        let busy = |n: &&NodeId| outstanding(n) >= BUSY_MIN.max(BUSY_TIMES * mean);
        let mut found: Vec<NodeId> = nodes.iter().filter(busy).copied().collect();
        // With nobody else to ask, being busy means nothing.
        if found.len() == nodes.len() {
            found.clear();
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_busy_compared_to_the_others() {
        let nodes = [NodeId(1), NodeId(2), NodeId(3)];
        let mut loads = Loads::default();
        assert_eq!(loads.busy(&nodes), []);
        loads.note(NodeId(1), Load { outstanding: 7, epoch_bytes: 0 });
        assert_eq!(loads.busy(&nodes), [], "a few requests are nothing");
        loads.note(NodeId(1), Load { outstanding: 90, epoch_bytes: 0 });
        loads.note(NodeId(2), Load { outstanding: 10, epoch_bytes: 0 });
        assert_eq!(loads.busy(&nodes), [NodeId(1)]);
        nodes.iter().for_each(|n| loads.note(*n, Load { outstanding: 90, epoch_bytes: 0 }));
        assert_eq!(loads.busy(&nodes), [], "all are");
        loads.forget(NodeId(1));
        assert_eq!(loads.of(NodeId(1)), Load::default());
    }
}
