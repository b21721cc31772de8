//! Incremental update: which nodes may show a range's pages as they are now.
//!
//! A node is *whole* in a range when it has every acknowledged page of it, in its epochs or in its newest generation. The
//! nodes of a range, its owners and those it is on its way to, all take its adds; those of them that are whole serve it.
//!
//! 1. A range takes adds only while a whole node of it is up. So somebody is whole at any time, up or down.
//! 2. Whoever is declared down while another whole node is up is whole no more: adds go on without it.
//! 3. A node becomes whole again, or for the first time, when it stands at the committed generation with the range, and a
//!    whole node's epochs of a cycle begun after it joined the adds are in that generation. `CYCLE.md` has the argument.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use webbase_node::cycle::RangeSet;
use webbase_node::cycle::message::NodeId;

use crate::coordinator::{Coordinator, Decision};
use crate::state::State;

/// Who is whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    /// For each range the nodes that have all its acknowledged pages.
    whole: Vec<Vec<NodeId>>,
    /// The newest cycle when a node last joined the adds of a range.
    joined: BTreeMap<NodeId, u64>,
}

impl Live {
    pub(crate) fn new(ranges: u32) -> Live {
        Live { whole: vec![Vec::new(); ranges as usize], joined: BTreeMap::new() }
    }

    /// The whole nodes of a range.
    pub fn whole(&self, range: u32) -> &[NodeId] {
        self.whole.get(range as usize).map_or(&[], Vec::as_slice)
    }

    /// The ranges that each node is whole in.
    pub(crate) fn by_node(&self) -> BTreeMap<NodeId, RangeSet> {
        let mut by_node: BTreeMap<NodeId, RangeSet> = BTreeMap::new();
        for (range, nodes) in self.whole.iter().enumerate() {
            nodes.iter().for_each(|node| by_node.entry(*node).or_default().insert(range as u32));
        }
        by_node
    }

    fn joined(&self, node: NodeId) -> u64 {
        self.joined.get(&node).copied().unwrap_or(0)
    }
}

impl State {
    /// The nodes of a range: its owners, and those it is on its way to.
    pub fn members(&self, range: u32) -> Vec<NodeId> {
        let side = &self.placement.read;
        let mut members: Vec<NodeId> = side.owners(range).to_vec();
        members.extend(side.target(range).iter().filter(|n| !side.owners(range).contains(n)));
        members.retain(|n| self.nodes.contains_key(n));
        members
    }

    fn is_up(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|n| !n.down)
    }

    /// Who takes the adds of a range, with incremental update: nobody, while no whole node is up.
    pub(crate) fn takers(&self, range: u32) -> Vec<NodeId> {
        let whole = self.live.as_ref().map_or(&[][..], |live| live.whole(range));
        if !whole.iter().any(|n| self.is_up(*n)) {
            return Vec::new();
        }
        let mut takers = self.members(range);
        takers.retain(|n| self.is_up(*n));
        takers
    }

    /// Brings `live` in line with a decision about nodes or their places, which turned `before` into this state.
    pub(crate) fn follow(&mut self, before: &State) {
        let Some(mut live) = self.live.take() else { return };
        for range in 0..self.placement.map.count() {
            let (old, new) = (before.members(range), self.members(range));
            let was_in = |n: &NodeId| old.contains(n) && before.is_up(*n);
            for node in new.iter().filter(|n| self.is_up(**n) && !was_in(n)) {
                live.joined.insert(*node, self.last_cycle);
            }
            let Some(whole) = live.whole.get_mut(range as usize) else { continue };
            whole.retain(|n| new.contains(n));
            if old.is_empty() {
                // Nobody has taken anything yet.
                *whole = new;
            }
            self.leave_the_down(whole);
        }
        live.joined.retain(|node, _| self.nodes.contains_key(node));
        self.live = Some(live);
    }

    /// Adds go on without those that are down, if anybody whole is up.
    fn leave_the_down(&self, whole: &mut Vec<NodeId>) {
        if whole.iter().any(|n| self.is_up(*n)) {
            whole.retain(|n| self.is_up(*n));
        }
    }
}

impl Coordinator {
    /// Nodes that have become whole in ranges.
    pub(crate) fn decide_whole(&self) -> Option<Decision> {
        let found = self.candidates(true);
        if found.is_empty() {
            return None;
        }
        let mut state = self.state.clone();
        let mut live = state.live.take()?;
        for (node, range) in found {
            if let Some(whole) = live.whole.get_mut(range as usize) {
                whole.push(node);
                state.leave_the_down(whole);
            }
        }
        state.live = Some(live);
        state.plan_version += 1;
        Some(state.into())
    }

    /// Nodes that have a range in the committed generation and are not whole in it: those that can be now, or those for
    /// which a cycle is missing.
    fn candidates(&self, ready: bool) -> BTreeSet<(NodeId, u32)> {
        let mut found = BTreeSet::new();
        let Some(live) = &self.state.live else { return found };
        let passed = |n: &NodeId| {
            self.state.nodes.get(n).and_then(|n| n.update.as_ref()).map_or(0, |update| update.passed_cycle)
        };
        // If everybody whole was given up, what is left of the pages counts: that of all nodes there are.
        let by_all = self.state.nodes.keys().map(passed).min().unwrap_or(0);
        for range in 0..self.state.placement.map.count() {
            let whole = live.whole(range);
            for node in self.state.members(range) {
                let has = || self.live(node).is_some_and(|view| view.has(self.state.committed, range));
                if whole.contains(&node) || !has() {
                    continue;
                }
                let taken_in = whole.iter().map(passed).max().unwrap_or(by_all);
                if (taken_in > live.joined(node)) == ready {
                    found.insert((node, range));
                }
            }
        }
        found
    }

    /// Whether a cycle should begin by itself: somebody waits for one to become whole or to leave, or the epochs hold enough.
    pub(crate) fn wants_fold(&self, now_ms: u64) -> bool {
        if self.state.live.is_none() || self.state.cycle.is_some() {
            return false;
        }
        let waited_ms = now_ms.saturating_sub(self.ended_ms);
        let settings = &self.settings;
        // After a cycle that failed the next one would, too.
        if self.aborted_last && waited_ms < settings.fold_ms {
            return false;
        }
        if self.somebody_leaves() || !self.candidates(false).is_empty() {
            return true;
        }
        let mut update_nodes = self.state.nodes.iter().filter_map(|(id, n)| Some((*id, n.update.as_ref()?)));
        let epoch_bytes = update_nodes.clone().map(|(n, _)| self.loads.of(n).epoch_bytes).max().unwrap_or(0);
        // Figures may be of before the last cycle for a moment.
        if epoch_bytes >= settings.fold_bytes && waited_ms >= settings.resend_ms {
            return true;
        }
        let sealed = update_nodes.any(|(node, entry)| {
            let report = self.live(node).and_then(|v| v.update.as_ref());
            report.is_some_and(|u| u.open_epoch > entry.included_through + 1)
        });
        let lists =
            !self.state.removals.is_empty() || !self.state.seen.is_empty() || !self.state.due.is_empty();
        // Epochs stay until everybody has confirmed: while somebody is away, fewer are made.
        let unconfirmed = self.state.commits.iter().filter(|c| !c.confirmed).count() as u64;
        (epoch_bytes > 0 || sealed || lists) && waited_ms >= settings.fold_ms.saturating_mul(1 + unconfirmed)
    }

    /// A node that is to leave has epochs that no generation has.
    fn somebody_leaves(&self) -> bool {
        self.state.nodes.iter().filter(|(_, n)| n.leaving).any(|(id, n)| {
            let report = self.live(*id).and_then(|v| v.update.as_ref());
            let included = n.update.as_ref().map_or(0, |u| u.included_through);
            report.is_some_and(|u| u.closed && u.open_epoch > included + 1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{NodeEntry, UpdateEntry};
    use webbase_node::cycle::RangeMap;
    use webbase_node::plan::Update;

    fn with(nodes: &[u64]) -> State {
        let mut state = State::new(RangeMap::new(1), 2, Update::Incremental);
        let before = state.clone();
        for node in nodes {
            let update = UpdateEntry { included_through: 0, passed_cycle: 0, free_through: 0 };
            let entry = NodeEntry { read: true, update: Some(update), down: false, leaving: false };
            state.nodes.insert(NodeId(*node), entry);
            state.placement.add(NodeId(*node), true, true);
        }
        state.placement.settle(|_, _| true);
        state.follow(&before);
        state
    }

    fn turn(state: &State, node: u64, down: bool) -> State {
        let mut next = state.clone();
        next.nodes.get_mut(&NodeId(node)).unwrap().down = down;
        next.follow(state);
        next
    }

    #[test]
    fn the_last_whole_node_stays_whole_and_no_adds_are_taken_without_it() {
        let both = with(&[1, 2]);
        let live = |state: &State| state.live.as_ref().unwrap().whole(0).to_vec();
        assert_eq!(live(&both), [NodeId(1), NodeId(2)], "nothing was added before them");
        let one = turn(&both, 2, true);
        assert_eq!((live(&one), one.takers(0)), (vec![NodeId(1)], vec![NodeId(1)]));
        let none = turn(&one, 1, true);
        assert_eq!((live(&none), none.takers(0)), (vec![NodeId(1)], vec![]));
        // The one that was away first is back first: it lacks what the other took alone.
        let late = turn(&none, 2, false);
        assert_eq!((live(&late), late.takers(0)), (vec![NodeId(1)], vec![]));
        let back = turn(&late, 1, false);
        assert_eq!((live(&back), back.takers(0).len()), (vec![NodeId(1)], 2));
    }

    #[test]
    fn who_joins_later_is_not_whole_yet() {
        let one = with(&[1]);
        let mut two = one.clone();
        two.last_cycle = 7;
        two.nodes.insert(NodeId(2), one.nodes[&NodeId(1)].clone());
        two.placement.add(NodeId(2), true, true);
        two.follow(&one);
        let live = two.live.as_ref().unwrap();
        assert_eq!((live.whole(0), live.joined(NodeId(2))), (&[NodeId(1)][..], 7));
        assert_eq!(two.takers(0), [NodeId(1), NodeId(2)], "but it takes adds");
    }
}
