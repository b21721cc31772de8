//! Decisions about nodes: who is down, who joins, who leaves, which ranges have arrived where.

use webbase_node::cycle::message::NodeId;

use crate::coordinator::{Action, Answer, Command, Coordinator, Decision, Refusal};
use crate::state::{NodeEntry, State, UpdateEntry};

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
        state.follow(&self.state);
        Some(state.into())
    }

    /// Takes lists of pages into the next cycle.
    pub(crate) fn decide_lists(&mut self, actions: &mut Vec<Action>) -> Option<Decision> {
        let is_list = |c: &Command| matches!(c, Command::Remove(_) | Command::Due(_) | Command::Seen(_));
        let place = self.waiting.iter().position(|w| is_list(&w.command))?;
        let waiting = self.waiting.remove(place);
        let mut state = self.state.clone();
        let mut answer = Answer::Done;
        let max = self.settings.changes_max;
        match waiting.command {
            Command::Remove(pages) => state.removals.extend(pages),
            Command::Due(pages) => state.note_due(pages),
            Command::Seen(seen) => {
                let late = state.note_seen(seen);
                answer = if late.is_empty() { Answer::Done } else { Answer::Late(late) };
            }
            _ => {}
        }
        if state.removals.len() > max || state.due.len() > max || state.seen.len() > max {
            actions.push(Action::Answer(waiting.id, Err(Refusal::TooMany { max })));
            return None;
        }
        Some(Decision { state, answers: vec![(waiting.id, Ok(answer))] })
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
        // Where nobody is whole, everybody who was has been given up: what there is has to get on.
        let whole = |node, range| {
            let live = self.state.live.as_ref();
            live.is_none_or(|l| l.whole(range).is_empty() || l.whole(range).contains(&node))
        };
        let has = |node, range| {
            whole(node, range) && self.live(node).is_some_and(|view| view.has(committed, range))
        };
        if !self.state.placement.read.has_arrived(has) {
            return None;
        }
        let mut placement = self.state.placement.clone();
        placement.settle(has).then(|| {
            let plan_version = self.state.plan_version + 1;
            let mut state = State { placement, plan_version, ..self.state.clone() };
            state.follow(&self.state);
            state.into()
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

    /// Lets new nodes in: they report, and are neither in the table nor removed. They have to be empty, and with
    /// incremental update to have both roles.
    fn decide_joins(&mut self) -> Option<Decision> {
        let both = self.state.live.is_some();
        let empty = |view: &crate::View| {
            view.boot != 0
                && view.read.as_ref().is_none_or(|r| r.current == 0)
                && view.update.as_ref().is_none_or(|u| u.open_epoch == 1)
                && (view.read.is_some() || view.update.is_some())
                && (!both || (view.read.is_some() && view.update.is_some()))
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
        let (mut answers, mut added) = (Vec::new(), Vec::new());
        for (node, read, update) in new {
            let passed_cycle = state.last_cycle;
            let entry = UpdateEntry { included_through: 0, passed_cycle, free_through: 0 };
            let entry = NodeEntry { read, update: update.then_some(entry), down: false, leaving: false };
            match self.replacement(&state, (node, &entry), &mut answers) {
                Some(old) => {
                    state.placement.replace(old, node);
                    state.nodes.remove(&old);
                    state.removed.insert(old);
                }
                None => added.push((node, read, update)),
            }
            state.nodes.insert(node, entry);
        }
        state.placement.add_all(&added);
        state.plan_version += 1;
        state.follow(&self.state);
        Some(Decision { state, answers })
    }

    /// Whose places a new node takes, if an operator said so and it can be.
    fn replacement(
        &mut self,
        state: &State,
        (new, entry): (NodeId, &NodeEntry),
        answers: &mut Vec<(u64, Result<Answer, Refusal>)>,
    ) -> Option<NodeId> {
        let ours = |c: &Command| matches!(c, Command::Replace { new: n, .. } if *n == new);
        let place = self.waiting.iter().position(|w| ours(&w.command))?;
        let waiting = self.waiting.remove(place);
        let Command::Replace { old, .. } = waiting.command else { return None };
        let roles = |entry: &NodeEntry| (entry.read, entry.update.is_some());
        let refusal = match state.nodes.get(&old) {
            None => Some(Refusal::UnknownNode { node: old }),
            Some(lost) if roles(lost) != roles(entry) => Some(Refusal::OtherRoles { old, new }),
            Some(_) => self.check(old, true, true).err(),
        };
        let answer = refusal.map_or(Ok(Answer::Done), Err);
        let replaces = answer.is_ok();
        answers.push((waiting.id, answer));
        replaces.then_some(old)
    }

    fn decide_operator(&mut self, actions: &mut Vec<Action>) -> Option<Decision> {
        let wanted = |c: &Command| matches!(c, Command::Drain(_) | Command::RemoveLost(_));
        // A replacement that cannot be is refused now; one that can waits for its new node.
        let cannot = |c: &Command| match c {
            Command::Replace { old, new } => self.check_replace(*old, *new).err(),
            _ => None,
        };
        let refused = self.waiting.iter().enumerate().find_map(|(at, w)| Some((at, cannot(&w.command)?)));
        if let Some((place, refusal)) = refused {
            let waiting = self.waiting.remove(place);
            actions.push(Action::Answer(waiting.id, Err(refusal)));
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
        state.follow(&self.state);
        Some(Decision { state, answers: vec![(waiting.id, Ok(Answer::Done))] })
    }

    /// Refuses replacements whose new node does not come.
    pub(crate) fn expire_replacements(&mut self, now_ms: u64, actions: &mut Vec<Action>) {
        let limit_ms = self.settings.replace_limit_ms;
        self.waiting.retain(|waiting| match waiting.command {
            Command::Replace { new: node, .. } if now_ms.saturating_sub(waiting.since_ms) >= limit_ms => {
                actions.push(Action::Answer(waiting.id, Err(Refusal::NeverCame { node, limit_ms })));
                false
            }
            _ => true,
        });
    }

    fn check_replace(&self, old: NodeId, new: NodeId) -> Result<(), Refusal> {
        self.check(old, true, true)?;
        let is_new = !self.state.nodes.contains_key(&new) && !self.state.removed.contains(&new);
        if is_new { Ok(()) } else { Err(Refusal::NotNew { node: new }) }
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

#[cfg(test)]
mod tests {
    use webbase_node::cycle::message::{ReadReport, ToManagement, UpdateReport};
    use webbase_node::cycle::{RangeMap, RangeSet};
    use webbase_node::plan::Update;

    use super::*;
    use crate::coordinator::{Event, Settings};

    const LOST: NodeId = NodeId(1);
    const NEW: NodeId = NodeId(9);

    /// A server whose only update node is down, asked to replace it.
    fn asked(new: NodeId) -> (Coordinator, Vec<Action>) {
        let mut state = State::new(RangeMap::new(1), 1, Update::Batch);
        let update = UpdateEntry { included_through: 0, passed_cycle: 0, free_through: 0 };
        let entry = NodeEntry { read: false, update: Some(update), down: true, leaving: false };
        state.nodes.insert(LOST, entry);
        state.placement.add(LOST, false, true);
        let mut server = Coordinator::start(0, state, Settings::default());
        let actions = server.on(10, Event::Request(7, Command::Replace { old: LOST, new }));
        (server, actions)
    }

    /// A new node reports, and what the server decides is made durable.
    fn comes(
        server: &mut Coordinator,
        update: Option<UpdateReport>,
        read: Option<ReadReport>,
    ) -> Vec<Action> {
        let report = ToManagement::Report { boot: 1, sequence: 1, welcomed: false, update, read };
        let decided = server.on(20, Event::Message(NEW, report));
        let sequence = decided.iter().find_map(|action| match action {
            Action::Persist(sequence, _) => Some(*sequence),
            _ => None,
        });
        server.on(30, Event::Persisted(sequence.unwrap()))
    }

    fn answer(actions: &[Action]) -> Option<Result<Answer, Refusal>> {
        actions.iter().find_map(|action| match action {
            Action::Answer(7, answer) => Some(answer.clone()),
            _ => None,
        })
    }

    fn updates() -> Option<UpdateReport> {
        Some(UpdateReport { first_epoch: 1, open_epoch: 1, sealed_cycle: 0, closed: false })
    }

    fn reads() -> Option<ReadReport> {
        Some(ReadReport {
            current: 0,
            kept: Vec::new(),
            prepared: None,
            progress: None,
            live: RangeSet::new(),
        })
    }

    #[test]
    fn a_new_node_with_the_same_roles_takes_the_places() {
        let (mut server, actions) = asked(NEW);
        assert_eq!(answer(&actions), None, "it waits for the new node");
        assert_eq!(answer(&comes(&mut server, updates(), None)), Some(Ok(Answer::Done)));
        assert!(server.state().removed.contains(&LOST));
        assert_eq!(server.state().placement.update.owners(0), [NEW]);
    }

    #[test]
    fn a_new_node_with_other_roles_does_not() {
        for (update, read) in [(None, reads()), (updates(), reads())] {
            let (mut server, _) = asked(NEW);
            let refused = answer(&comes(&mut server, update, read));
            assert_eq!(refused, Some(Err(Refusal::OtherRoles { old: LOST, new: NEW })));
            assert!(server.state().nodes.contains_key(&LOST) && server.state().nodes.contains_key(&NEW));
        }
    }

    #[test]
    fn a_node_that_is_there_already_replaces_nobody() {
        let (_, actions) = asked(LOST);
        assert_eq!(answer(&actions), Some(Err(Refusal::NotNew { node: LOST })));
    }

    #[test]
    fn a_replacement_that_never_comes_is_not_waited_for_for_ever() {
        let (mut server, _) = asked(NEW);
        assert_eq!(answer(&server.on(600_009, Event::Tick)), None);
        let refused = answer(&server.on(600_010, Event::Tick));
        assert_eq!(refused, Some(Err(Refusal::NeverCame { node: NEW, limit_ms: 600_000 })));
        assert!(refused.unwrap().unwrap_err().to_string().contains("within 600 s"));
    }
}
