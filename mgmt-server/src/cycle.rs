//! Decisions about cycles and generations.
//!
//! ```text
//!   begin → Sealing → Preparing(1) → Preparing(2) … → Switching → over
//!              └─────────┴── abort: as if it had not been ──┘ (not from Switching)
//! ```

use webbase_node::cycle::RangeSet;
use webbase_node::cycle::message::{Changes, EpochSource, NodeId, Ticket};

use crate::coordinator::{Action, Answer, Command, Coordinator, Decision, Refusal, View, Waiting};
use crate::state::{CommitRecord, Cycle, CyclePhase, State};

/// So many generations are kept beside the current one.
const OLD_KEPT_MAX: usize = 2;

impl Coordinator {
    /// Takes the running cycle a step further.
    pub(crate) fn decide_cycle(&mut self, now_ms: u64, actions: &mut Vec<Action>) -> Option<Decision> {
        if let Some(decision) = self.decide_abort(actions) {
            return Some(decision);
        }
        let cycle = self.state.cycle.as_ref()?;
        let waited = now_ms.saturating_sub(self.phase_ms);
        match &cycle.phase {
            CyclePhase::Sealing => self.decide_sealed(cycle, waited),
            CyclePhase::Preparing { attempt, sources } => {
                self.decide_prepared(cycle, *attempt, sources, waited)
            }
            CyclePhase::Switching => self.decide_switched(waited),
        }
    }

    fn decide_abort(&mut self, actions: &mut Vec<Action>) -> Option<Decision> {
        let place = self.waiting.iter().position(|w| w.command == Command::AbortCycle)?;
        let waiting = self.waiting.remove(place);
        match &self.state.cycle {
            Some(cycle) if cycle.phase != CyclePhase::Switching => {
                Some(Decision { state: self.aborted(), answers: vec![(waiting.id, Ok(Answer::Done))] })
            }
            _ => {
                // A cycle that has not begun yet is not begun.
                let refused =
                    if self.withdraw_start(actions) { Ok(Answer::Done) } else { Err(Refusal::NoCycle) };
                actions.push(Action::Answer(waiting.id, refused));
                None
            }
        }
    }

    fn withdraw_start(&mut self, actions: &mut Vec<Action>) -> bool {
        let before = self.waiting.len();
        let refuse = |id| Action::Answer(id, Err(Refusal::CannotBegin { why: "aborted".into() }));
        actions
            .extend(self.waiting.iter().filter(|w| w.command == Command::StartCycle).map(|w| refuse(w.id)));
        self.waiting.retain(|w| w.command != Command::StartCycle);
        self.waiting.len() != before
    }

    fn aborted(&self) -> State {
        State { cycle: None, ..self.state.clone() }
    }

    fn in_phase(&self, phase: CyclePhase) -> State {
        let mut state = self.state.clone();
        if let Some(cycle) = &mut state.cycle {
            cycle.phase = phase;
        }
        state
    }

    /// Sealing is over when all live update nodes have sealed, or the time is. Who has not sealed waits for a later cycle.
    fn decide_sealed(&self, cycle: &Cycle, waited_ms: u64) -> Option<Decision> {
        let update_nodes =
            || self.state.nodes.iter().filter_map(|(id, n)| Some((*id, n.update.as_ref()?, n.down)));
        let sealed = |node| {
            let update = self.live(node)?.update.as_ref()?;
            (update.sealed_cycle == cycle.cycle).then_some(update)
        };
        let missing = update_nodes().any(|(node, _, down)| !down && sealed(node).is_none());
        if missing && waited_ms < self.settings.seal_limit_ms {
            return None;
        }
        let sources = update_nodes().filter_map(|(node, entry, _)| {
            let through = sealed(node)?.open_epoch.saturating_sub(1);
            Some(EpochSource { node, from: entry.included_through + 1, through })
        });
        let sources = sources.collect();
        Some(self.in_phase(CyclePhase::Preparing { attempt: 1, sources }).into())
    }

    fn decide_prepared(
        &self,
        cycle: &Cycle,
        attempt: u32,
        sources: &[EpochSource],
        waited_ms: u64,
    ) -> Option<Decision> {
        if self.no_space.is_some() {
            return Some(self.aborted().into());
        }
        let failed = |source: &EpochSource| {
            let Some((first_ms, last_ms)) = self.source_failures.get(&source.node) else { return false };
            let down = self.state.nodes.get(&source.node).is_none_or(|n| n.down);
            // One that only restarts fails too, for a shorter time.
            down || last_ms.saturating_sub(*first_ms) > self.settings.down_after_ms
        };
        if sources.iter().any(failed) {
            if attempt >= self.settings.attempts_max {
                return Some(self.aborted().into());
            }
            let sources = sources.iter().filter(|s| !failed(s)).copied().collect();
            return Some(self.in_phase(CyclePhase::Preparing { attempt: attempt + 1, sources }).into());
        }
        let ticket = Ticket { cycle: cycle.cycle, attempt };
        let prepared = |node: NodeId| {
            self.live(node).and_then(|v| v.read.as_ref()).is_some_and(|r| r.prepared == Some(ticket))
        };
        let over = waited_ms >= self.settings.prepare_limit_ms;
        if !over && self.holdings.keys().any(|n| !prepared(*n) && self.takes_part(*n)) {
            return None;
        }
        let owned = self.holdings.iter().filter(|(n, _)| prepared(**n)).map(|(_, h)| &h.owned);
        let every_range = self.is_everything(owned);
        if every_range && self.state.kept.len() <= OLD_KEPT_MAX {
            let by = self.holdings.keys().copied().filter(|n| prepared(*n)).collect();
            return Some(self.committed(cycle, ticket, sources, by).into());
        }
        (over && !every_range).then(|| self.aborted().into())
    }

    /// Whether these have every range.
    fn is_everything<S: std::borrow::Borrow<RangeSet>>(&self, sets: impl Iterator<Item = S>) -> bool {
        let mut all = RangeSet::new();
        sets.for_each(|set| all.insert_all(set.borrow()));
        all.len() == self.state.placement.map.count()
    }

    fn committed(&self, cycle: &Cycle, ticket: Ticket, sources: &[EpochSource], by: Vec<NodeId>) -> State {
        let mut state = self.in_phase(CyclePhase::Switching);
        for source in sources {
            if let Some(update) = state.nodes.get_mut(&source.node).and_then(|n| n.update.as_mut()) {
                update.included_through = source.through.max(update.included_through);
                update.passed_cycle = ticket.cycle;
            }
        }
        state.note_done(&cycle.changes.removals, &cycle.changes.seen);
        state.committed = cycle.target;
        state.kept.push(cycle.target);
        state.commits.retain(|c| !c.confirmed);
        state.commits.push(CommitRecord {
            generation: cycle.target,
            base: cycle.base,
            ticket,
            placement_version: cycle.placement_version,
            sources: sources.to_vec(),
            changes: cycle.changes.clone(),
            prepared: by,
            confirmed: false,
        });
        state
    }

    /// A cycle is over when those that prepared have switched, or are down.
    fn decide_switched(&self, waited_ms: u64) -> Option<Decision> {
        let record = self.state.commits.last()?;
        let switched = |node: &NodeId| {
            self.state.nodes.get(node).is_none_or(|n| n.down)
                || self
                    .views
                    .get(node)
                    .and_then(|v| v.read.as_ref())
                    .is_some_and(|r| r.current >= record.generation)
        };
        let over = waited_ms >= self.settings.switch_limit_ms;
        (over || record.prepared.iter().all(switched)).then(|| self.aborted().into())
    }

    /// Plans name the committed generation once every range has a replica that stands there.
    pub(crate) fn decide_serving(&self) -> Option<Decision> {
        let State { serving, committed, .. } = self.state;
        (serving < committed && self.every_range_has(committed))
            .then(|| State { serving: committed, ..self.state.clone() }.into())
    }

    fn every_range_has(&self, generation: u64) -> bool {
        let parts = self
            .holdings
            .iter()
            .filter_map(|(node, holding)| Some(self.live(*node)?.part(generation, &holding.owned)));
        self.is_everything(parts)
    }

    /// Epochs are free when every owner of every range stands at their generation or a later one, with the range; and so
    /// does, with incremental update, whoever shows the range over its own epochs.
    pub(crate) fn decide_confirmed(&self) -> Option<Decision> {
        let first = self.state.commits.iter().filter(|c| !c.confirmed).map(|c| c.generation).min()?;
        let owners = || self.holdings.iter().filter(|(_, holding)| !holding.owned.is_empty());
        let mut lowest = u64::MAX;
        let nothing = RangeSet::new();
        for (owner, holding) in &self.holdings {
            let needed = holding.owned.union(self.whole.get(owner).unwrap_or(&nothing));
            if needed.is_empty() {
                continue;
            }
            let view = self.live(*owner)?;
            let current = view.read.as_ref()?.current;
            lowest = lowest.min(if view.has_all(current, &needed) { current } else { 0 });
            if lowest < first {
                return None;
            }
        }
        if !self.is_everything(owners().map(|(_, holding)| &holding.owned)) {
            return None;
        }
        let confirmed = |c: &CommitRecord| !c.confirmed && c.generation <= lowest;
        let mut state = self.state.clone();
        for commit in state.commits.iter_mut().filter(|c| confirmed(c)) {
            commit.confirmed = true;
            for source in &commit.sources {
                if let Some(update) = state.nodes.get_mut(&source.node).and_then(|n| n.update.as_mut()) {
                    update.free_through = source.through.max(update.free_through);
                }
            }
        }
        let committed = state.committed;
        state.commits.retain(|c| !c.confirmed || c.generation == committed);
        Some(state.into())
    }

    /// Old generations go when nobody holds them.
    pub(crate) fn decide_releases(&self, now_ms: u64) -> Option<Decision> {
        let State { serving, committed, .. } = self.state;
        let goes = |g: &u64| {
            *g < serving && *g < committed && !self.leases.holds(now_ms, *g) && !self.is_indexed(*g)
        };
        if !self.state.kept.iter().any(goes) {
            return None;
        }
        let mut state = self.state.clone();
        state.kept.retain(|g| !goes(g));
        Some(state.into())
    }

    /// Whether a commit, or a node that is to leave, waits for this generation to be given up: leases on it are not
    /// renewed then.
    pub(crate) fn is_wanted_back(&self, generation: u64) -> bool {
        let commit_waits = self.state.ticket().is_some()
            && self.state.kept.len() > OLD_KEPT_MAX
            && self.state.kept.first() == Some(&generation);
        let leaving = self.state.nodes.values().any(|n| n.leaving);
        commit_waits || (leaving && generation < self.state.serving)
    }

    /// Begins a cycle that was asked for, or that begins by itself, when it can be.
    pub(crate) fn decide_begin(&mut self, now_ms: u64, actions: &mut Vec<Action>) -> Option<Decision> {
        let asked = |w: &Waiting| w.command == Command::StartCycle;
        let Some(place) = self.waiting.iter().position(asked) else { return self.decide_fold(now_ms) };
        let (id, since_ms) = self.waiting.get(place).map(|w| (w.id, w.since_ms))?;
        let in_time = now_ms.saturating_sub(since_ms) < self.settings.begin_limit_ms;
        let refusal = match (&self.state.cycle, self.cannot_begin()) {
            // One that began by itself is waited for.
            (Some(_), _) if self.state.live.is_some() && in_time => return None,
            (Some(cycle), _) => Some(Refusal::CycleRunning { cycle: cycle.cycle }),
            (None, Some(_)) if in_time => return None,
            (None, Some(why)) => Some(Refusal::CannotBegin { why }),
            (None, None) if self.moving() && in_time => return None,
            (None, None) => None,
        };
        self.waiting.remove(place);
        if let Some(refusal) = refusal {
            actions.push(Action::Answer(id, Err(refusal)));
            return None;
        }
        let (state, cycle) = self.begun();
        Some(Decision { state, answers: vec![(id, Ok(Answer::CycleBegun(cycle)))] })
    }

    /// Begins a cycle that nobody asked for.
    fn decide_fold(&mut self, now_ms: u64) -> Option<Decision> {
        if !self.wants_fold(now_ms) {
            self.fold_since_ms = None;
            return None;
        }
        let since_ms = *self.fold_since_ms.get_or_insert(now_ms);
        let in_time = now_ms.saturating_sub(since_ms) < self.settings.begin_limit_ms;
        if self.cannot_begin().is_some() || (self.moving() && in_time) {
            return None;
        }
        self.fold_since_ms = None;
        Some(self.begun().0.into())
    }

    fn begun(&self) -> (State, u64) {
        let mut state = self.state.clone();
        state.last_cycle += 1;
        let cycle = state.last_cycle;
        state.cycle = Some(Cycle {
            cycle,
            base: state.committed,
            target: state.committed + 1,
            placement_version: state.placement.version,
            changes: self.changes(cycle),
            phase: CyclePhase::Sealing,
        });
        (state, cycle)
    }

    /// What the cycle removes and renews: what was asked for, and what has been due since the cycle before.
    pub(crate) fn changes(&self, cycle: u64) -> Changes {
        let due = self.state.due.iter().filter(|d| d.given_cycle + 1 < cycle).map(|d| d.page);
        let max = self.settings.changes_max;
        Changes {
            cycle,
            removals: self.state.removals.iter().copied().chain(due).take(max).collect(),
            seen: self.state.seen.iter().copied().take(max).collect(),
            forget_through: self.state.forget_through(),
        }
    }

    fn cannot_begin(&self) -> Option<String> {
        let unconfirmed = self.state.commits.iter().filter(|c| !c.confirmed).count();
        if unconfirmed >= self.settings.unconfirmed_max {
            return Some(format!("{unconfirmed} commits wait for replicas that are down"));
        }
        let mut found = RangeSet::new();
        for (_, holding) in self.holdings.iter().filter(|(node, _)| self.takes_part(**node)) {
            found.insert_all(&holding.owned);
        }
        let without = (0..self.state.placement.map.count()).find(|range| !found.contains(*range));
        without.map(|range| format!("range {range} has no replica at generation {}", self.state.committed))
    }

    /// Whether a live node is catching up, or about to.
    fn moving(&self) -> bool {
        let committed = self.state.committed;
        self.holdings.iter().any(|(node, holding)| {
            let has = |view: &View| {
                view.has_all(committed, &holding.owned) && view.has_all(committed, &holding.target)
            };
            self.live(*node).is_some_and(|view| !has(view))
        })
    }

    /// Whether a node takes part in a cycle from the committed generation: it is live, stands there, and has all it owns.
    pub(crate) fn takes_part(&self, node: NodeId) -> bool {
        let base = self.state.cycle.as_ref().map_or(self.state.committed, |c| c.base);
        let Some(holding) = self.holdings.get(&node).filter(|h| !h.owned.is_empty()) else { return false };
        self.live(node).is_some_and(|view| {
            view.read.as_ref().is_some_and(|r| r.current == base) && view.has_all(base, &holding.owned)
        })
    }
}

#[cfg(test)]
mod tests {
    use webbase_node::cycle::RangeMap;
    use webbase_node::cycle::message::{Failure, ToManagement};
    use webbase_node::plan::{CycleEnd, Update};

    use super::*;
    use crate::coordinator::{Event, Settings};
    use crate::state::{NodeEntry, UpdateEntry};

    const SOURCE: NodeId = NodeId(1);
    const READER: NodeId = NodeId(2);

    /// A server in the middle of preparing from one source.
    fn preparing() -> Coordinator {
        let mut state = State::new(RangeMap::new(1), 1, Update::Batch);
        let update = UpdateEntry { included_through: 0, passed_cycle: 0, free_through: 0 };
        let node = |read, update| NodeEntry { read, update, down: false, leaving: false };
        state.nodes.insert(SOURCE, node(false, Some(update)));
        state.nodes.insert(READER, node(true, None));
        let sources = vec![EpochSource { node: SOURCE, from: 1, through: 1 }];
        let phase = CyclePhase::Preparing { attempt: 1, sources };
        let (changes, placement_version) = (Changes::default(), state.placement.version);
        state.cycle = Some(Cycle { cycle: 1, base: 0, target: 1, placement_version, changes, phase });
        Coordinator::start(0, state, Settings::default())
    }

    /// The decision among these.
    fn decided(actions: Vec<Action>) -> Option<(u64, State)> {
        actions.into_iter().find_map(|action| match action {
            Action::Persist(sequence, state) => Some((sequence, *state)),
            _ => None,
        })
    }

    /// What the server decides when these nodes report at `ms`, and the reader says that the source failed.
    fn fails_at(server: &mut Coordinator, ms: u64, heard: &[NodeId]) -> Option<(u64, State)> {
        let mut actions = Vec::new();
        for node in heard {
            let (update, read) = (None, None);
            let report = ToManagement::Report { boot: 1, sequence: ms + 1, welcomed: true, update, read };
            actions.extend(server.on(ms, Event::Message(*node, report)));
        }
        let (ticket, why) = (Ticket { cycle: 1, attempt: 1 }, Failure::SourceFailed(SOURCE));
        actions.extend(server.on(ms, Event::Message(READER, ToManagement::PrepareFailed { ticket, why })));
        decided(actions)
    }

    fn is_left_out(state: &State) -> bool {
        let left_out = CyclePhase::Preparing { attempt: 2, sources: Vec::new() };
        state.cycle.as_ref().is_some_and(|cycle| cycle.phase == left_out)
    }

    #[test]
    fn a_source_is_left_out_for_failing_long_not_often() {
        let mut server = preparing();
        for ms in (0..=5000).step_by(100) {
            assert_eq!(fails_at(&mut server, ms, &[SOURCE, READER]), None, "at {ms} ms it may be restarting");
        }
        let (_, state) = fails_at(&mut server, 5001, &[SOURCE, READER]).unwrap();
        assert!(is_left_out(&state), "{state:?}");
    }

    #[test]
    fn a_source_that_failed_is_left_out_as_soon_as_it_is_down() {
        let mut server = preparing();
        assert_eq!(fails_at(&mut server, 4900, &[READER]), None);
        let (sequence, state) = decided(server.on(5001, Event::Tick)).unwrap();
        assert!(state.nodes.get(&SOURCE).unwrap().down && !is_left_out(&state));
        let (_, state) = decided(server.on(5002, Event::Persisted(sequence))).unwrap();
        assert!(is_left_out(&state), "{state:?}");
    }

    #[test]
    fn an_aborted_cycle_says_why() {
        let no_space = ToManagement::PrepareFailed {
            ticket: Ticket { cycle: 1, attempt: 1 },
            why: Failure::NoSpace { needed_bytes: 9 },
        };
        for (event, expected) in [
            (Event::Request(7, Command::AbortCycle), "it was asked for"),
            (Event::Message(READER, no_space), "node 0000000000000002 has no room for it"),
        ] {
            let mut server = preparing();
            let (sequence, _) = decided(server.on(1500, event)).unwrap();
            server.on(2000, Event::Persisted(sequence));
            let outcome = server.outcome().unwrap();
            assert_eq!((outcome.cycle, outcome.took_ms), (1, 2000));
            assert_eq!(outcome.end, CycleEnd::Aborted { why: expected.into() });
        }
    }
}
