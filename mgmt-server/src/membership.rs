//! Decisions about nodes: who is down, who joins, who leaves, which ranges have arrived where.

use webbase_node::cycle::message::NodeId;

use crate::coordinator::{Action, Answer, Command, Coordinator, Decision, Refusal};
use crate::state::{DuePage, NodeEntry, State, UpdateEntry};

impl Coordinator {
    /// Declares nodes down and up. Plans change with it, the placement does not.
    pub(crate) fn decide_liveness(&self, now_ms: u64) -> Option<Decision> {
        let silent = |node: &NodeId| {
            let heard = self.views.get(node).map_or(0, |v| v.heard_ms);
            now_ms > heard.saturating_add(self.settings.down_after_ms)
        };
        let reported = |node: &NodeId| self.views.get(node).is_some_and(|v| v.boot != 0);
        let wrong =
            |node: &NodeId, down: bool| if down { !silent(node) && reported(node) } else { silent(node) };
        let changed: Vec<NodeId> =
            self.state.nodes.iter().filter(|(id, n)| wrong(id, n.down)).map(|(id, _)| *id).collect();
        if changed.is_empty() {
            return None;
        }
        let mut state = self.state.clone();
        for node in changed {
            if let Some(entry) = state.nodes.get_mut(&node) {
                entry.down = !entry.down;
            }
        }
        state.plan_version += 1;
        Some(state.into())
    }

    /// Takes lists of pages into the next cycle.
    pub(crate) fn decide_lists(&mut self, actions: &mut Vec<Action>) -> Option<Decision> {
        let is_list = |c: &Command| matches!(c, Command::Remove(_) | Command::Due(_) | Command::Seen(_));
        let place = self.waiting.iter().position(|w| is_list(&w.command))?;
        let waiting = self.waiting.remove(place);
        let mut state = self.state.clone();
        let max = self.settings.changes_max;
        match waiting.command {
            Command::Remove(pages) => state.removals.extend(pages),
            Command::Due(pages) => {
                let given_cycle = state.last_cycle;
                state.due.extend(pages.into_iter().map(|page| DuePage { page, given_cycle }));
            }
            Command::Seen(seen) => {
                let removals = state.cycle.as_ref().map_or(&[][..], |c| &c.changes.removals);
                let late = seen.iter().filter(|s| removals.iter().any(|r| r.key == s.key)).count();
                if late > 0 {
                    actions.push(Action::Answer(waiting.id, Err(Refusal::BeingRemoved { pages: late })));
                    return None;
                }
                state.due.retain(|due| !seen.iter().any(|s| s.key == due.page.key));
                state.seen.extend(seen);
            }
            _ => {}
        }
        if state.removals.len() > max || state.due.len() > max || state.seen.len() > max {
            actions.push(Action::Answer(waiting.id, Err(Refusal::TooMany { max })));
            return None;
        }
        Some(Decision { state, answers: vec![(waiting.id, Ok(Answer::Done))] })
    }

    /// Changes the table and the placement: never while a cycle runs.
    pub(crate) fn decide_membership(&mut self, actions: &mut Vec<Action>) -> Option<Decision> {
        if self.state.cycle.is_some() {
            return None;
        }
        self.decide_settled()
            .or_else(|| self.decide_left())
            .or_else(|| self.decide_joins())
            .or_else(|| self.decide_operator(actions))
    }

    fn decide_settled(&self) -> Option<Decision> {
        let committed = self.state.committed;
        let has = |node, range| self.live(node).is_some_and(|view| view.has(committed, range));
        if !self.state.placement.read.has_arrived(has) {
            return None;
        }
        let mut placement = self.state.placement.clone();
        placement.settle(has).then(|| {
            let plan_version = self.state.plan_version + 1;
            State { placement, plan_version, ..self.state.clone() }.into()
        })
    }

    /// A leaving node goes when nothing depends on it: no epochs of it are needed, it owns nothing, and whatever kept
    /// generation it has, others have too.
    fn decide_left(&self) -> Option<Decision> {
        let node = self
            .state
            .nodes
            .iter()
            .find(|(id, n)| n.leaving && self.may_leave(**id, n))
            .map(|(id, _)| *id)?;
        let mut state = self.state.clone();
        state.nodes.remove(&node);
        state.removed.insert(node);
        Some(state.into())
    }

    fn may_leave(&self, node: NodeId, entry: &NodeEntry) -> bool {
        let Some(view) = self.live(node) else { return false };
        if let Some(update) = &entry.update {
            let emptied = |last: u64| update.included_through >= last && update.free_through >= last;
            if !view.update.as_ref().is_some_and(|u| u.closed && emptied(u.open_epoch.saturating_sub(1))) {
                return false;
            }
        }
        let placement = &self.state.placement;
        (0..placement.map.count()).all(|range| {
            let replaced = |g: &u64| !view.has(*g, range) || self.others(node).any(|v| v.has(*g, range));
            !placement.read.owners(range).contains(&node) && self.state.kept.iter().all(replaced)
        })
    }

    fn others(&self, node: NodeId) -> impl Iterator<Item = &crate::View> {
        self.views.iter().filter(move |(id, _)| **id != node && self.is_live(**id)).map(|(_, v)| v)
    }

    /// Lets new nodes in: they report, and are neither in the table nor removed. They have to be empty.
    fn decide_joins(&mut self) -> Option<Decision> {
        let empty = |view: &crate::View| {
            view.boot != 0
                && view.read.as_ref().is_none_or(|r| r.current == 0)
                && view.update.as_ref().is_none_or(|u| u.open_epoch == 1)
                && (view.read.is_some() || view.update.is_some())
        };
        let known = &self.state.nodes;
        let new: Vec<(NodeId, bool, bool)> = self
            .views
            .iter()
            .filter(|(id, view)| !known.contains_key(id) && empty(view))
            .map(|(id, view)| (*id, view.read.is_some(), view.update.is_some()))
            .collect();
        if new.is_empty() {
            return None;
        }
        let mut state = self.state.clone();
        let mut answers = Vec::new();
        for (node, read, update) in new {
            let passed_cycle = state.last_cycle;
            let entry = UpdateEntry { included_through: 0, passed_cycle, free_through: 0 };
            let entry = NodeEntry { read, update: update.then_some(entry), down: false, leaving: false };
            match self.replacement(&state, node, &mut answers) {
                Some(old) => {
                    state.placement.replace(old, node);
                    state.nodes.remove(&old);
                    state.removed.insert(old);
                }
                None => state.placement.add(node, read, update),
            }
            state.nodes.insert(node, entry);
        }
        state.plan_version += 1;
        Some(Decision { state, answers })
    }

    /// Whose places a new node takes, if an operator said so and it can be.
    fn replacement(
        &mut self,
        state: &State,
        new: NodeId,
        answers: &mut Vec<(u64, Result<Answer, Refusal>)>,
    ) -> Option<NodeId> {
        let ours = |c: &Command| matches!(c, Command::Replace { new: n, .. } if *n == new);
        let place = self.waiting.iter().position(|w| ours(&w.command))?;
        let waiting = self.waiting.remove(place);
        let Command::Replace { old, .. } = waiting.command else { return None };
        let gone = !state.nodes.contains_key(&old);
        let refusal =
            if gone { Some(Refusal::UnknownNode { node: old }) } else { self.check(old, true, true).err() };
        let answer = refusal.map_or(Ok(Answer::Done), Err);
        let replaces = answer.is_ok();
        answers.push((waiting.id, answer));
        replaces.then_some(old)
    }

    fn decide_operator(&mut self, actions: &mut Vec<Action>) -> Option<Decision> {
        let wanted = |c: &Command| matches!(c, Command::Drain(_) | Command::RemoveLost(_));
        // A replacement that cannot be is refused now; one that can waits for its new node.
        if let Some(place) = self.waiting.iter().position(
            |w| matches!(w.command, Command::Replace { old, .. } if self.check(old, true, true).is_err()),
        ) {
            let waiting = self.waiting.remove(place);
            if let Command::Replace { old, .. } = waiting.command {
                let refusal = self.check(old, true, true).err();
                actions.extend(refusal.map(|r| Action::Answer(waiting.id, Err(r))));
            }
            return None;
        }
        let place = self.waiting.iter().position(|w| wanted(&w.command))?;
        let waiting = self.waiting.remove(place);
        let (node, lost) = match waiting.command {
            Command::Drain(node) => (node, false),
            Command::RemoveLost(node) => (node, true),
            _ => return None,
        };
        if let Err(refusal) = self.check(node, lost, false) {
            actions.push(Action::Answer(waiting.id, Err(refusal)));
            return None;
        }
        let mut state = self.state.clone();
        state.placement.remove(node);
        state.plan_version += 1;
        if lost {
            state.nodes.remove(&node);
            state.removed.insert(node);
        } else if let Some(entry) = state.nodes.get_mut(&node) {
            entry.leaving = true;
        }
        Some(Decision { state, answers: vec![(waiting.id, Ok(Answer::Done))] })
    }

    fn check(&self, node: NodeId, lost: bool, replaced: bool) -> Result<(), Refusal> {
        let entry = self.state.nodes.get(&node).ok_or(Refusal::UnknownNode { node })?;
        if lost && !entry.down {
            return Err(Refusal::NotDown { node });
        }
        let last = |side: &crate::Side| side.members().len() == 1 && side.members().contains(&node);
        let placement = &self.state.placement;
        if !replaced && (last(&placement.read) || last(&placement.update)) {
            return Err(Refusal::LastNode { node });
        }
        Ok(())
    }
}
