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
        // Nodes tell their figures now and then, and plans may be a moment late; but another cycle does not wait for them.
        if rests && (at.elapsed() < SETTLED || (coverage.is_none() && at.elapsed() < 5 * SETTLED)) {
            return;
        }
        let after = served().filter(|_| rests);
        let is_next = matches!(outcome.end, CycleEnd::Committed { generation }
            if seen.before.is_some_and(|(before, _)| generation == before + 1));
        let before = seen.before.and_then(|(_, pages)| pages).filter(|_| is_next);
        let came = coverage.map(|coverage| coverage.once(outcome.pages));
        // Before the first generation there was nothing, whoever looked.
        let is_first = matches!(outcome.end, CycleEnd::Committed { generation: 1 });
        let (before, after) = if is_first { (Some(0), came) } else { (before, after) };
        let classes = before.zip(after).zip(came).map(|((before, after), came)| {
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

#[cfg(test)]
mod tests {
    use super::*;
    use webbase_node::cycle::message::NodeId;
    use webbase_node::plan::CycleOutcome;

    fn committed(generation: u64) -> Status {
        let end = CycleEnd::Committed { generation };
        let outcome = CycleOutcome { cycle: generation, end, pages: 60, bytes: 1, took_ms: 1 };
        Status { serving: generation, committed: generation, outcome: Some(outcome), ..Status::default() }
    }

    fn looked_at(status: &Status, coverage: Option<&Coverage>) -> Value {
        let cycles = Cycles::default();
        cycles.look(status, coverage);
        assert_eq!(cycles.as_json(), json!([]), "figures have not settled");
        let long_ago = Instant::now().checked_sub(10 * SETTLED).expect("a machine that runs for a while");
        cycles.0.lock().noticed = Some((status.serving, long_ago));
        cycles.look(status, coverage);
        cycles.as_json()[0]["classes"].clone()
    }

    #[test]
    fn the_first_cycle_has_classes_though_nobody_looked_before_it() {
        let two = vec![NodeId(1), NodeId(2)];
        let coverage = Coverage::new(std::slice::from_ref(&two), std::slice::from_ref(&two));
        assert_eq!(looked_at(&committed(1), Some(&coverage)), json!({"a": 0, "b": 0, "c": 30}));
        // Of a later one nobody knows how many pages there were, and without plans not how many came.
        assert_eq!(looked_at(&committed(2), Some(&coverage)), Value::Null);
        assert_eq!(looked_at(&committed(1), None), Value::Null);
    }
}
