//! What came of the cycles that ran while this gateway looked, with their classes of pages.
//!
//! *C* came with the cycle, *B* stayed as they were, *A* are gone: old versions of C pages, and pages that were removed. Nobody
//! counts A and B; they follow from how many pages were served before and after, and from how many came:
//! B = after − C, A = before − B. A page that lies on two read nodes counts once.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use webbase_node::plan::{CycleEnd, NodeState, Status};
use webbase_storage::Stats;

use crate::coverage::Coverage;

/// Cycles that are kept.
const KEPT: usize = 12;
/// Figures of nodes are those after a cycle when it has ended for so long.
const SETTLED: Duration = Duration::from_secs(2);

/// The last cycles, newest last.
#[derive(Default)]
pub(super) struct Cycles(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// The generation that was served at the last look without a cycle, and its pages, each once, if all read nodes told.
    before: Option<(u64, Option<u64>)>,
    /// The cycle that has ended and is not listed yet, and when that was noticed.
    noticed: Option<(u64, Instant)>,
    /// The number of the last cycle that is listed.
    last: u64,
    list: VecDeque<Value>,
}

impl Cycles {
    /// Looks at a status, and on how many nodes pages lie.
    pub(super) fn look(&self, status: &Status, coverage: Option<&Coverage>) {
        let served = || served(status).and_then(|pages| Some(coverage?.once(pages)));
        let mut seen = self.0.lock();
        let rests = status.cycle.is_none() && status.serving == status.committed;
        let Some(outcome) = status.outcome.as_ref().filter(|outcome| outcome.cycle > seen.last) else {
            if rests {
                seen.before = Some((status.serving, served()));
            }
            return;
        };
        let noticed = seen.noticed.filter(|(cycle, _)| *cycle == outcome.cycle);
        let (_, at) = *seen.noticed.insert(noticed.unwrap_or((outcome.cycle, Instant::now())));
        // Nodes tell their figures now and then; but another cycle does not wait for them.
        if rests && at.elapsed() < SETTLED {
            return;
        }
        let after = served().filter(|_| rests);
        let is_next = matches!(outcome.end, CycleEnd::Committed { generation }
            if seen.before.is_some_and(|(before, _)| generation == before + 1));
        let before = seen.before.and_then(|(_, pages)| pages).filter(|_| is_next);
        let classes = before.zip(after).map(|(before, after)| {
            let came = coverage.map_or(outcome.pages, |coverage| coverage.once(outcome.pages));
            let unchanged = after.saturating_sub(came);
            json!({"a": before.saturating_sub(unchanged), "b": unchanged, "c": came})
        });
        let (generation, aborted) = match &outcome.end {
            CycleEnd::Committed { generation } => (Some(generation), None),
            CycleEnd::Aborted { why } => (None, Some(why)),
        };
        let told = json!({
            "cycle": outcome.cycle, "generation": generation, "aborted": aborted, "pages": outcome.pages,
            "bytes": outcome.bytes, "took_ms": outcome.took_ms, "classes": classes,
        });
        seen.last = outcome.cycle;
        seen.before = Some((status.serving, after));
        if seen.list.len() >= KEPT {
            seen.list.pop_front();
        }
        seen.list.push_back(told);
    }

    pub(super) fn as_json(&self) -> Value {
        self.0.lock().list.iter().cloned().collect()
    }
}

/// How many pages read nodes have, if all of them tell.
fn served(status: &Status) -> Option<u64> {
    let mut all = 0;
    for node in status.nodes.iter().filter(|node| node.read) {
        if node.state == NodeState::Down {
            return None;
        }
        all += Stats::from(node.figures?.store).pages;
    }
    Some(all)
}
