//! What came of the last cycle, for operators. Kept in memory only: nothing is decided by it, and a restart forgets it.

use std::collections::BTreeMap;

use webbase_node::cycle::message::{NodeId, Work};
use webbase_node::plan::{CycleEnd, CycleOutcome};

use crate::coordinator::Coordinator;
use crate::state::{Cycle, CyclePhase, State};

/// What is noted while a cycle runs, and what came of the one before.
#[derive(Default)]
pub(crate) struct Tally {
    begun_ms: u64,
    /// What each node has to fetch under the running ticket: pages, bytes.
    moved: BTreeMap<NodeId, (u64, u64)>,
    last: Option<CycleOutcome>,
}

impl Tally {
    /// A server that starts in the middle of a cycle knows it from then on.
    pub(crate) fn start(now_ms: u64) -> Tally {
        Tally { begun_ms: now_ms, ..Tally::default() }
    }
}

impl Coordinator {
    /// What came of the last cycle that ended since this server started.
    pub fn outcome(&self) -> Option<&CycleOutcome> {
        self.tally.last.as_ref()
    }

    /// Takes note of what a node has to fetch.
    pub(crate) fn note_moved(&mut self, node: NodeId) {
        let read = self.views.get(&node).and_then(|view| view.read.as_ref());
        let Some(progress) = read.and_then(|read| read.progress) else { return };
        if self.state.ticket().is_some_and(|ticket| progress.work == Work::Preparing(ticket)) {
            let (pages, bytes) = self.tally.moved.entry(node).or_default();
            (*pages, *bytes) = (progress.pages.max(*pages), progress.bytes.max(*bytes));
        }
    }

    /// Takes note of a decision that is on disk: the state is new, everything else as it was when it was made.
    pub(crate) fn note_decision(&mut self, now_ms: u64, before: &State, asked: bool) {
        let number = |cycle: &Option<Cycle>| cycle.as_ref().map(|c| c.cycle);
        if let Some(cycle) = before.cycle.as_ref().filter(|_| self.state.cycle.is_none()) {
            let (pages, bytes) = self.tally.moved.values().fold((0, 0), |(p, b), m| (p + m.0, b + m.1));
            let end = match cycle.phase {
                CyclePhase::Switching => CycleEnd::Committed { generation: cycle.target },
                _ => CycleEnd::Aborted { why: self.why_aborted(cycle, asked) },
            };
            let took_ms = now_ms.saturating_sub(self.tally.begun_ms);
            self.tally.last = Some(CycleOutcome { cycle: cycle.cycle, end, pages, bytes, took_ms });
        }
        if number(&before.cycle) != number(&self.state.cycle) {
            self.tally.begun_ms = now_ms;
            self.tally.moved.clear();
        }
        if self.state.ticket().is_some() && before.ticket() != self.state.ticket() {
            self.tally.moved.clear();
        }
    }

    /// The reasons to abort, in the order they are looked at when it is decided.
    fn why_aborted(&self, cycle: &Cycle, asked: bool) -> String {
        let attempts = match cycle.phase {
            CyclePhase::Preparing { attempt, .. } => attempt,
            _ => 0,
        };
        match (self.no_space, self.source_failures.keys().next()) {
            _ if asked => "it was asked for".into(),
            (Some(node), _) => format!("node {:016x} has no room for it", node.0),
            (_, Some(source)) if attempts >= self.settings.attempts_max => {
                format!("update node {:016x} failed in the last of {attempts} attempts", source.0)
            }
            _ => "in all its time some ranges had no node that prepared them".into(),
        }
    }
}
