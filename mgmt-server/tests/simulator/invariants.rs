//! What must always hold, each under its name. The oracle knows what every generation should be: it computes it from the
//! disks when the management server's record of an attempt gets durable, without the nodes' doing.

use std::collections::{BTreeMap, BTreeSet};

use webbase_mgmt_server::{CyclePhase, State};
use webbase_node::cycle::message::{EpochSource, NodeId, Removal, Ticket};
use webbase_node::cycle::{RangeMap, RangeSet, ReadDurable};
use webbase_storage::{PageKey, Version};

use crate::store::{Content, UpdateDisk};

pub struct Violation {
    pub invariant: &'static str,
    pub what: String,
}

pub type Checked = Result<(), Violation>;

macro_rules! holds {
    ($invariant:expr, $condition:expr, $($what:tt)+) => {
        if !$condition {
            return Err(Violation { invariant: $invariant, what: format!($($what)+) });
        }
    };
}

#[derive(Default)]
pub struct Oracle {
    /// What each attempt makes.
    pub expected: BTreeMap<Ticket, Content>,
    /// What each attempt takes in.
    pub incoming: BTreeMap<Ticket, BTreeMap<PageKey, Version>>,
    /// The attempt that made each generation.
    pub committed: BTreeMap<u64, Ticket>,
    /// All removals of committed cycles.
    pub removed: Vec<(Removal, u64)>,
    /// Acknowledged pages.
    pub acknowledged: BTreeMap<PageKey, Version>,
    /// Acknowledged pages whose every copy was lost with its disk: none, as the faults are chosen.
    pub empty: Content,
}

impl Oracle {
    pub fn generation(&self, generation: u64) -> &Content {
        self.committed.get(&generation).and_then(|t| self.expected.get(t)).unwrap_or(&self.empty)
    }

    /// The management server's state on disk has changed.
    pub fn persisted<'a>(
        &mut self,
        before: &State,
        after: &State,
        disk: impl Fn(NodeId) -> Option<&'a UpdateDisk>,
    ) -> Checked {
        placement_is_pinned_during_a_cycle(before, after)?;
        seen_pages_are_not_due(after)?;
        holds!(
            "leases_hold_generations",
            after.kept.len() <= 3 && after.kept.contains(&after.committed),
            "kept are {:?}, committed is {}",
            after.kept,
            after.committed
        );
        if let Some(cycle) = &after.cycle
            && let CyclePhase::Preparing { attempt, sources } = &cycle.phase
        {
            let ticket = Ticket { cycle: cycle.cycle, attempt: *attempt };
            if !self.expected.contains_key(&ticket) {
                let incoming = union(sources, disk);
                let mut content = self.generation(cycle.base).clone();
                content.merge(&incoming, &cycle.changes, cycle.target, false);
                self.expected.insert(ticket, content);
                self.incoming.insert(ticket, incoming);
            }
        }
        if after.committed > before.committed
            && let Some(record) = after.commits.last()
        {
            self.committed.insert(record.generation, record.ticket);
            self.removed.extend(record.changes.removals.iter().map(|r| (*r, record.ticket.cycle)));
            let content = self.generation(record.generation);
            deleted_pages_stay_deleted(after.placement.map, content, &self.removed)?;
        }
        Ok(())
    }
}

/// All pages of sealed epochs, each in its highest version.
fn union<'a>(
    sources: &[EpochSource],
    disk: impl Fn(NodeId) -> Option<&'a UpdateDisk>,
) -> BTreeMap<PageKey, Version> {
    let mut all: BTreeMap<PageKey, Version> = BTreeMap::new();
    for source in sources.iter().filter(|s| s.from <= s.through) {
        let Some(disk) = disk(source.node) else { continue };
        for (key, version) in disk.epochs.range(source.from..=source.through).flat_map(|(_, pages)| pages) {
            let best = all.entry(*key).or_insert(*version);
            *best = (*best).max(*version);
        }
    }
    all
}

/// A page that was seen again is not on its way out, and no page is on a list twice: lists are asked for again and again.
pub fn seen_pages_are_not_due(state: &State) -> Checked {
    let seen: BTreeSet<PageKey> = state.seen.iter().map(|s| s.key).collect();
    let due: BTreeSet<PageKey> = state.due.iter().map(|d| d.page.key).collect();
    holds!(
        "seen_pages_are_not_due",
        seen.is_disjoint(&due) && seen.len() == state.seen.len() && due.len() == state.due.len(),
        "due are {:?}, seen {:?}",
        state.due,
        state.seen
    );
    Ok(())
}

/// While a cycle runs the placement is the one it began with.
pub fn placement_is_pinned_during_a_cycle(before: &State, after: &State) -> Checked {
    for state in [before, after] {
        if let Some(cycle) = &state.cycle {
            holds!(
                "placement_is_pinned_during_a_cycle",
                cycle.placement_version == state.placement.version,
                "cycle {} is bound to placement {}, the placement is {}",
                cycle.cycle,
                cycle.placement_version,
                state.placement.version
            );
        }
    }
    let running = matches!((&before.cycle, &after.cycle), (Some(a), Some(b)) if a.cycle == b.cycle);
    holds!(
        "placement_is_pinned_during_a_cycle",
        !running || before.placement == after.placement,
        "the placement changed during a cycle"
    );
    Ok(())
}

/// A removed version does not come back, from whatever update node was away: only what was stamped after the removal's
/// cycle is new.
pub fn deleted_pages_stay_deleted(map: RangeMap, content: &Content, removed: &[(Removal, u64)]) -> Checked {
    for (removal, cycle) in removed {
        let back = content.pages.get(&removal.key).map(|e| e.version).filter(|v| *v <= removal.bound);
        holds!(
            "deleted_pages_stay_deleted",
            back.is_none_or(|v| map.cycle_of(v.epoch) > *cycle),
            "{} was removed up to {:?} in cycle {cycle}, and {back:?} is back",
            removal.key,
            removal.bound
        );
    }
    Ok(())
}

/// Whoever has a generation has the same pages, deadlines and tombstones of a range as everybody else.
pub fn replicas_agree(node: NodeId, generation: u64, found: &Content, expected: &Content) -> Checked {
    let differs = found.pages.keys().chain(expected.pages.keys()).find(|k| {
        let part = |c: &Content| c.pages.get(k).map(|e| (e.version, e.deadline_ms));
        part(found) != part(expected)
    });
    let dead = found.tombstones.keys().chain(expected.tombstones.keys());
    let differs =
        differs.or(dead.into_iter().find(|k| found.tombstones.get(k) != expected.tombstones.get(k)));
    holds!(
        "replicas_agree",
        differs.is_none(),
        "node {} has in generation {generation} of {differs:?}: {:?}, expected {:?}",
        node.0,
        differs.map(|k| (found.pages.get(k), found.tombstones.get(k))),
        differs.map(|k| (expected.pages.get(k), expected.tombstones.get(k)))
    );
    Ok(())
}

/// A page's place in a stream, (arrival generation, key), is the same on every replica.
pub fn stream_places_are_shared(
    node: NodeId,
    generation: u64,
    found: &Content,
    expected: &Content,
) -> Checked {
    for (key, entry) in &found.pages {
        let place = expected.pages.get(key).map(|e| e.arrival);
        holds!(
            "stream_places_are_shared",
            place.is_none_or(|p| p == entry.arrival),
            "node {} has {key} of generation {generation} at {}, others at {place:?}",
            node.0,
            entry.arrival
        );
    }
    Ok(())
}

/// Of base and sources the highest version is taken, unless it was removed.
pub fn highest_version_wins(
    node: NodeId,
    content: &Content,
    base: &Content,
    incoming: &BTreeMap<PageKey, Version>,
) -> Checked {
    let base = base.pages.iter().map(|(k, e)| (*k, e.version));
    for (key, version) in base.chain(incoming.iter().map(|(k, v)| (*k, *v))) {
        holds!(
            "highest_version_wins",
            content.covers(key, version),
            "node {} has {:?} of {key}, there was {version:?}",
            node.0,
            content.pages.get(&key)
        );
    }
    Ok(())
}

/// A node stands only where a durable commit record says, and only with what was prepared under the record's ticket.
pub fn commit_record_alone_decides(
    node: NodeId,
    file: &ReadDurable,
    ticket: Option<Ticket>,
    committed: &BTreeMap<u64, Ticket>,
) -> Checked {
    let record = committed.get(&file.current);
    holds!(
        "commit_record_alone_decides",
        file.current == 0 || record.is_some(),
        "node {} stands at generation {}, which is not committed",
        node.0,
        file.current
    );
    holds!(
        "commit_record_alone_decides",
        ticket.is_none() || ticket.as_ref() == record,
        "node {} took what it prepared under {ticket:?} for generation {}, made under {record:?}",
        node.0,
        file.current
    );
    Ok(())
}

/// At most two old generations on a node, and none goes while a client holds it.
pub fn leases_hold_generations(
    node: NodeId,
    before: &ReadDurable,
    after: &ReadDurable,
    leased: &[u64],
) -> Checked {
    let old = after.kept.keys().filter(|g| **g < after.current).count();
    holds!("leases_hold_generations", old <= 2, "node {} has {old} old generations", node.0);
    for generation in before.kept.keys().filter(|g| !after.kept.contains_key(g)) {
        holds!(
            "leases_hold_generations",
            !leased.contains(generation),
            "node {} let generation {generation} go, which is leased",
            node.0
        );
    }
    Ok(())
}

/// An epoch is deleted only when every owner of a range has its pages, or newer ones, in the generation it stands at.
pub fn epochs_deleted_only_when_confirmed<'a>(
    node: NodeId,
    pages: impl Iterator<Item = (PageKey, Version)>,
    owners: impl Fn(PageKey, Version) -> Vec<(NodeId, &'a Content)>,
    removed: &[(Removal, u64)],
) -> Checked {
    for (key, version) in pages {
        let gone = removed.iter().any(|(r, _)| r.key == key && r.bound >= version);
        for (owner, content) in owners(key, version) {
            holds!(
                "epochs_deleted_only_when_confirmed",
                gone || content.covers(key, version),
                "node {} deletes {key} {version:?}, node {} does not have it",
                node.0,
                owner.0
            );
        }
    }
    Ok(())
}

/// Nothing is written that was not reserved.
pub fn space_is_reserved_first(node: NodeId, written: u64, reserved: u64) -> Checked {
    holds!(
        "space_is_reserved_first",
        written <= reserved,
        "node {} wrote {written} of {reserved} bytes",
        node.0
    );
    Ok(())
}

/// A node behind the generation asked for does not answer.
pub fn fenced_nodes_serve_nothing_current(node: NodeId, file: &ReadDurable, generation: u64) -> Checked {
    holds!(
        "fenced_nodes_serve_nothing_current",
        generation <= file.current,
        "node {} stands at {}, and answered for {generation}",
        node.0,
        file.current
    );
    Ok(())
}

/// All answers to a request are of the one generation it named.
pub fn one_generation_per_request(
    generation: u64,
    found: &BTreeMap<PageKey, Version>,
    ranges: &RangeSet,
    map: webbase_node::cycle::RangeMap,
    expected: &Content,
) -> Checked {
    let expected = expected.restricted(map, ranges);
    let same = found.len() == expected.pages.len()
        && found.iter().all(|(k, v)| expected.pages.get(k).is_some_and(|e| e.version == *v));
    holds!(
        "one_generation_per_request",
        same,
        "a reader of generation {generation} got {found:?}, expected {:?}",
        expected.pages
    );
    Ok(())
}

/// A page is acknowledged only when all update nodes of a plan have it, and a plan leaves only declared ones out; with none
/// left, the page is refused.
pub fn adds_refused_not_dropped(key: PageKey, planned: &[NodeId], durable_on: &[NodeId]) -> Checked {
    holds!(
        "adds_refused_not_dropped",
        !planned.is_empty() && planned.iter().all(|n| durable_on.contains(n)),
        "{key} was acknowledged, planned for {planned:?}, durable on {durable_on:?}"
    );
    Ok(())
}

/// Every acknowledged page is in the last generation, in this or a newer version, unless it was removed.
pub fn acknowledged_pages_survive(oracle: &Oracle, generation: u64) -> Checked {
    let content = oracle.generation(generation);
    for (key, version) in &oracle.acknowledged {
        let removed = oracle.removed.iter().any(|(r, _)| r.key == *key && r.bound >= *version);
        let there = content.pages.get(key).is_some_and(|e| e.version >= *version);
        holds!(
            "acknowledged_pages_survive",
            removed || there,
            "{key} was acknowledged in {version:?}, generation {generation} has {:?}",
            content.pages.get(key)
        );
    }
    Ok(())
}

/// Incremental update: whoever is named by a plan made after a page was acknowledged shows it, in this or a newer version,
/// unless it was removed.
pub fn acknowledged_is_visible<'a>(
    node: NodeId,
    acknowledged: impl Iterator<Item = (&'a PageKey, &'a Version)>,
    found: &BTreeMap<PageKey, Version>,
    removed: &[(Removal, u64)],
) -> Checked {
    for (key, version) in acknowledged {
        let gone = removed.iter().any(|(r, _)| r.key == *key && r.bound >= *version);
        holds!(
            "acknowledged_is_visible",
            gone || found.get(key).is_some_and(|v| v >= version),
            "{key} was acknowledged in {version:?}, node {} shows {:?}",
            node.0,
            found.get(key)
        );
    }
    Ok(())
}

/// When faults have stopped, cycles end, and everything comes to rest: no cycle, no move, no epoch that is not needed.
pub fn cycles_end(rest: Option<String>) -> Checked {
    holds!("cycles_end", rest.is_none(), "no rest: {}", rest.unwrap_or_default());
    Ok(())
}
