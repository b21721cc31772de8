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

    /// Gives ranges to new nodes, to one after the other: what each of them needs to know of all others is made once, because
    /// thousands may come at the same time.
    fn add_all(&mut self, nodes: impl Iterator<Item = NodeId>, replicas: usize) {
        let mut copies: usize = self.target.iter().map(Vec::len).sum();
        let mut donors = Donors::new(self);
        for node in nodes {
            if !self.members.insert(node) {
                continue;
            }
            let mut taken = Vec::new();
            if copies < replicas * self.target.len() {
                for (range, nodes) in self.target.iter_mut().enumerate().filter(|(_, n)| n.len() < replicas) {
                    nodes.push(node);
                    taken.push(range);
                }
                copies += taken.len();
            }
            let share = copies / self.members.len().max(1);
            donors.give(&mut self.target, node, share, &mut taken);
            donors.join(node, taken);
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

/// Who new nodes get their ranges from: whoever has most at that moment.
struct Donors {
    /// How many ranges each node has, and which node.
    loads: BTreeSet<(usize, NodeId)>,
    /// Which ranges it has.
    ranges: BTreeMap<NodeId, Vec<usize>>,
}

impl Donors {
    fn new(side: &Side) -> Donors {
        let mut ranges: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for (range, nodes) in side.target.iter().enumerate() {
            for node in nodes {
                ranges.entry(*node).or_default().push(range);
            }
        }
        let loads = ranges.iter().map(|(node, ranges)| (ranges.len(), *node)).collect();
        Donors { loads, ranges }
    }

    /// Hands ranges over to `to` until it has its share, or nobody has one that it has not.
    fn give(&mut self, target: &mut [Vec<NodeId>], to: NodeId, share: usize, taken: &mut Vec<usize>) {
        // What it has already stays with its donors, and so do those who have nothing else.
        let mut kept: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        let mut out = Vec::new();
        while taken.len() < share
            && let Some((load, donor)) = self.loads.pop_last()
        {
            let Some(range) = self.ranges.get_mut(&donor).and_then(Vec::pop) else {
                out.push((load, donor));
                continue;
            };
            match target.get_mut(range).filter(|nodes| !nodes.contains(&to)) {
                Some(nodes) => {
                    nodes.iter_mut().filter(|n| **n == donor).for_each(|n| *n = to);
                    taken.push(range);
                    self.loads.insert((load - 1, donor));
                }
                None => {
                    kept.entry(donor).or_default().push(range);
                    self.loads.insert((load, donor));
                }
            }
        }
        self.loads.extend(out);
        for (donor, ranges) in kept {
            self.ranges.entry(donor).or_default().extend(ranges.into_iter().rev());
        }
    }

    /// A node that has got its ranges gives, too.
    fn join(&mut self, node: NodeId, mut ranges: Vec<usize>) {
        ranges.sort_unstable();
        self.loads.insert((ranges.len(), node));
        self.ranges.insert(node, ranges);
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
        self.add_all(&[(node, read, update)]);
    }

    /// Nodes join, which read or update or both.
    pub fn add_all(&mut self, nodes: &[(NodeId, bool, bool)]) {
        let replicas = self.replicas as usize;
        self.read.add_all(nodes.iter().filter(|n| n.1).map(|n| n.0), replicas);
        self.update.add_all(nodes.iter().filter(|n| n.2).map(|n| n.0), replicas);
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
        fn nodes_that_come_together_get_what_they_would_get_one_by_one(
            replicas in 1_u32..4, bits in 4_u8..9, before in 0_u64..9, many in 1_u64..60
        ) {
            let mut one_by_one = Placement::new(RangeMap::new(bits), replicas);
            (0..before).for_each(|node| one_by_one.add(NodeId(node), true, node.is_multiple_of(2)));
            let mut together = one_by_one.clone();
            let nodes: Vec<_> = (before..before + many).map(|n| (NodeId(n), n % 3 != 0, n % 3 != 1)).collect();
            nodes.iter().for_each(|(node, read, update)| one_by_one.add(*node, *read, *update));
            together.add_all(&nodes);
            prop_assert_eq!(&together.read, &one_by_one.read);
            prop_assert_eq!(&together.update, &one_by_one.update);
        }

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
