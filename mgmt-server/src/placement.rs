//! Which nodes have which ranges.
//!
//! Each *side* (read nodes, update nodes) gives every range up to R different nodes. *Owners* count: they take part in
//! cycles and confirm commits. The *target* says who shall own; a range moves by being copied to those of the target that
//! don't have it, and only when all have it do they become the owners. So a move that fails (a full disk, a dead node) leaves the
//! old owners in place. Update nodes have nothing to move: there the target counts at once.
//!
//! 1. A range's nodes are different ones; there are R of them if the side has R members.
//! 2. Adding a node to n moves about 1/(n+1) of the copies, all to the new node. Removing one moves only its own copies.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use webbase_node::cycle::message::NodeId;
use webbase_node::cycle::{RangeMap, RangeSet};

/// Ranges and their nodes, for one kind of node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    members: BTreeSet<NodeId>,
    owners: Vec<Vec<NodeId>>,
    target: Vec<Vec<NodeId>>,
}

impl Side {
    fn new(ranges: u32) -> Self {
        let empty = vec![Vec::new(); ranges as usize];
        Side { members: BTreeSet::new(), owners: empty.clone(), target: empty }
    }

    /// Nodes that ranges are given to.
    pub fn members(&self) -> &BTreeSet<NodeId> {
        &self.members
    }

    /// The owners of a range.
    pub fn owners(&self, range: u32) -> &[NodeId] {
        self.owners.get(range as usize).map_or(&[], Vec::as_slice)
    }

    /// Those who shall own it.
    pub fn target(&self, range: u32) -> &[NodeId] {
        self.target.get(range as usize).map_or(&[], Vec::as_slice)
    }

    /// Whether no range is on its way.
    pub fn is_settled(&self) -> bool {
        self.owners == self.target
    }

    /// What each node owns, and what it shall own.
    pub fn by_node(&self) -> BTreeMap<NodeId, Holding> {
        let mut by_node: BTreeMap<NodeId, Holding> = BTreeMap::new();
        for (range, nodes) in self.owners.iter().enumerate() {
            for node in nodes {
                by_node.entry(*node).or_default().owned.insert(range as u32);
            }
        }
        for (range, nodes) in self.target.iter().enumerate() {
            for node in nodes {
                by_node.entry(*node).or_default().target.insert(range as u32);
            }
        }
        by_node
    }

    fn loads(&self) -> BTreeMap<NodeId, usize> {
        let mut loads: BTreeMap<NodeId, usize> = self.members.iter().map(|n| (*n, 0)).collect();
        for node in self.target.iter().flatten() {
            *loads.entry(*node).or_default() += 1;
        }
        loads
    }

    fn add(&mut self, node: NodeId, replicas: usize) {
        if !self.members.insert(node) {
            return;
        }
        let mut load = 0;
        for nodes in self.target.iter_mut().filter(|nodes| nodes.len() < replicas) {
            nodes.push(node);
            load += 1;
        }
        let copies: usize = self.target.iter().map(Vec::len).sum();
        let share = copies / self.members.len().max(1);
        let mut loads = self.loads();
        // Ranges are taken from whoever has most at that moment, each of its ranges considered once.
        let mut places: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for (range, nodes) in self.target.iter().enumerate() {
            if !nodes.contains(&node) {
                for owner in nodes {
                    places.entry(*owner).or_default().push(range);
                }
            }
        }
        while load < share {
            let Some((&donor, _)) =
                places.iter().filter(|(_, p)| !p.is_empty()).max_by_key(|(n, _)| loads.get(n))
            else {
                return;
            };
            let Some(range) = places.get_mut(&donor).and_then(Vec::pop) else { return };
            let Some(nodes) = self.target.get_mut(range) else { return };
            if nodes.contains(&node) {
                continue;
            }
            if let Some(place) = nodes.iter_mut().find(|n| **n == donor) {
                *place = node;
                load += 1;
                loads.entry(donor).and_modify(|l| *l -= 1);
            }
        }
    }

    fn remove(&mut self, node: NodeId) {
        if !self.members.remove(&node) {
            return;
        }
        let mut loads = self.loads();
        loads.remove(&node);
        let mut given = Vec::new();
        for (range, nodes) in self.target.iter_mut().enumerate() {
            let Some(place) = nodes.iter().position(|n| *n == node) else { continue };
            nodes.remove(place);
            let heir = loads.iter_mut().filter(|(n, _)| !nodes.contains(n)).min_by_key(|(n, l)| (**l, **n));
            if let Some((heir, load)) = heir {
                nodes.push(*heir);
                *load += 1;
                given.push(range);
            }
        }
        while self.even_out(&given, &mut loads) {}
    }

    /// Gives one of the ranges that were given last (they stand last in their lists) to a node with two less, if there is one.
    fn even_out(&mut self, given: &[usize], loads: &mut BTreeMap<NodeId, usize>) -> bool {
        for range in given {
            let Some((heir, others)) = self.target.get_mut(*range).and_then(|n| n.split_last_mut()) else {
                continue;
            };
            let Some(load) = loads.get(heir).copied() else { continue };
            let better = loads.iter().filter(|(n, _)| !others.contains(n)).min_by_key(|(n, l)| (**l, **n));
            if let Some((better, _)) = better.map(|(n, l)| (*n, *l)).filter(|(_, l)| l + 2 <= load) {
                loads.entry(*heir).and_modify(|l| *l -= 1);
                loads.entry(better).and_modify(|l| *l += 1);
                *heir = better;
                return true;
            }
        }
        false
    }

    fn replace(&mut self, old: NodeId, new: NodeId) {
        if !self.members.remove(&old) || !self.members.insert(new) {
            return;
        }
        for place in self.target.iter_mut().flatten().filter(|n| **n == old) {
            *place = new;
        }
    }

    /// Whether any range has arrived where it shall be.
    pub(crate) fn has_arrived(&self, has: impl Fn(NodeId, u32) -> bool) -> bool {
        let mut pairs = self.owners.iter().zip(&self.target).enumerate();
        pairs.any(|(range, (owners, target))| {
            owners != target && !target.is_empty() && target.iter().all(|n| has(*n, range as u32))
        })
    }

    fn settle(&mut self, mut has: impl FnMut(NodeId, u32) -> bool) -> bool {
        let mut changed = false;
        for (range, (owners, target)) in self.owners.iter_mut().zip(&self.target).enumerate() {
            if owners != target && !target.is_empty() && target.iter().all(|n| has(*n, range as u32)) {
                owners.clone_from(target);
                changed = true;
            }
        }
        changed
    }
}

/// A node's ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Those it owns.
    pub owned: RangeSet,
    /// Those it shall own.
    pub target: RangeSet,
}

/// Ranges and their nodes, on both sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Grows by one with each change.
    pub version: u64,
    /// How the id space is cut.
    pub map: RangeMap,
    /// How many nodes a range shall have on each side.
    pub replicas: u32,
    /// The read nodes.
    pub read: Side,
    /// The update nodes.
    pub update: Side,
}

impl Placement {
    /// Nobody has anything.
    pub fn new(map: RangeMap, replicas: u32) -> Self {
        let side = Side::new(map.count());
        Placement { version: 0, map, replicas: replicas.max(1), read: side.clone(), update: side }
    }

    /// A node joins.
    pub fn add(&mut self, node: NodeId, read: bool, update: bool) {
        let replicas = self.replicas as usize;
        if read {
            self.read.add(node, replicas);
        }
        if update {
            self.update.add(node, replicas);
        }
        self.changed();
    }

    /// A node leaves: its ranges shall be others'.
    pub fn remove(&mut self, node: NodeId) {
        self.read.remove(node);
        self.update.remove(node);
        self.changed();
    }

    /// A new node takes exactly the places of an old one.
    pub fn replace(&mut self, old: NodeId, new: NodeId) {
        self.read.replace(old, new);
        self.update.replace(old, new);
        self.changed();
    }

    /// Hands over the ranges that have arrived: `has` tells which read node has which range. Says whether any was.
    pub fn settle(&mut self, has: impl FnMut(NodeId, u32) -> bool) -> bool {
        let settled = self.read.settle(has);
        if settled {
            self.version += 1;
        }
        settled
    }

    fn changed(&mut self) {
        self.update.owners.clone_from(&self.update.target);
        self.version += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(side: &Side, replicas: usize) {
        let expected = replicas.min(side.members.len());
        for nodes in &side.target {
            let different: BTreeSet<_> = nodes.iter().collect();
            assert_eq!((nodes.len(), different.len()), (expected, expected), "{nodes:?}");
            assert!(nodes.iter().all(|n| side.members.contains(n)));
        }
        let loads = side.loads();
        let (low, high) = (loads.values().min().unwrap(), loads.values().max().unwrap());
        let mean = side.target.len() * expected / side.members.len();
        assert!(high - low <= 2 + mean / 4, "loads from {low} to {high}, mean {mean}");
    }

    fn copies_moved(from: &Side, to: &Side) -> Vec<(NodeId, NodeId)> {
        let mut moved = Vec::new();
        for (a, b) in from.target.iter().zip(&to.target) {
            let gone = a.iter().filter(|n| !b.contains(n));
            let come = b.iter().filter(|n| !a.contains(n));
            moved.extend(gone.zip(come).map(|(x, y)| (*x, *y)));
        }
        moved
    }

    proptest! {
        #[test]
        fn any_history_of_nodes_keeps_the_rules(
            replicas in 1_u32..4, bits in 4_u8..9, steps in prop::collection::vec((0_u8..4, any::<u64>()), 1..40)
        ) {
            let mut placement = Placement::new(RangeMap::new(bits), replicas);
            let mut next = 1;
            for (what, which) in steps {
                let before = placement.read.clone();
                let n = before.members.len();
                let some = before.members.iter().nth(which as usize % n.max(1)).copied();
                match (what, some) {
                    (0, Some(node)) if n > 1 => {
                        placement.remove(node);
                        prop_assert!(copies_moved(&before, &placement.read).iter().all(|m| m.0 == node));
                    }
                    (1, Some(node)) => {
                        placement.replace(node, NodeId(next));
                        prop_assert!(copies_moved(&before, &placement.read).iter().all(|m| *m == (node, NodeId(next))));
                        next += 1;
                    }
                    _ => {
                        placement.add(NodeId(next), true, true);
                        let moved = copies_moved(&before, &placement.read);
                        prop_assert!(moved.iter().all(|m| m.1 == NodeId(next)));
                        let copies: usize = placement.read.target.iter().map(Vec::len).sum();
                        prop_assert!(moved.len() <= copies / (n + 1));
                        if n >= replicas as usize {
                            prop_assert_eq!(moved.len(), copies / (n + 1));
                        }
                        next += 1;
                    }
                }
                if !placement.read.members.is_empty() {
                    check(&placement.read, replicas as usize);
                }
                prop_assert_eq!(&placement.update.owners, &placement.read.target);
                // Owners change only where everything has arrived.
                let mut held = placement.read.clone();
                held.settle(|node, _| node.0 % 2 == 0);
                for (range, owners) in held.owners.iter().enumerate() {
                    let arrived = held.target[range].iter().all(|n| n.0 % 2 == 0);
                    prop_assert_eq!(owners, if arrived { &held.target[range] } else { &placement.read.owners[range] });
                }
                if which % 3 == 0 {
                    placement.settle(|_, _| true);
                }
            }
        }
    }
}
