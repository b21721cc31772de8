//! Worlds with incremental update: all nodes have both roles, cycles begin by themselves, and readers look at nodes' live
//! pages: the epochs over the newest generation.

use std::collections::BTreeMap;

use webbase_mgmt_server::{Load, ReadPlan};
use webbase_node::cycle::message::NodeId;
use webbase_storage::{PageKey, Version};

use crate::invariants as rules;
use crate::mutants::Mutant;
use crate::store::{Content, PAGE_BYTES};
use crate::world::{Ev, FAULTS_MS, SimNode, World};

/// Somebody who has a plan, and reads a range with it a moment later.
pub struct LiveReader {
    plan: ReadPlan,
    /// What was acknowledged when the plan was made.
    acknowledged: BTreeMap<PageKey, Version>,
    range: u32,
}

/// What a node shows: of each page the newest version among its epochs and its newest generation, unless that was removed.
fn live_pages(node: &SimNode) -> BTreeMap<PageKey, Version> {
    let base: std::rc::Rc<Content> =
        node.read.as_ref().map(|r| r.content(r.file.current)).unwrap_or_default();
    let mut pages: BTreeMap<PageKey, Version> = base.pages.iter().map(|(k, e)| (*k, e.version)).collect();
    let added = node.update.iter().flat_map(|u| u.epochs.values()).flatten();
    for (key, version) in added {
        if base.tombstones.get(key).is_none_or(|(bound, _)| bound < version) {
            let best = pages.entry(*key).or_insert(*version);
            *best = (*best).max(*version);
        }
    }
    pages
}

impl World {
    pub fn new_live_reader(&mut self) {
        if self.now < FAULTS_MS + 3000 {
            let ms = self.rng.range(30, 300);
            self.after(ms, Ev::NewReader);
        }
        let range = self.rng.range(0, u64::from(self.map.count())) as u32;
        let Some(mgmt) = &self.mgmt else { return };
        let mut plan = mgmt.read_plan();
        if self.mutant == Some(Mutant::ServeBeforeWhole) {
            plan.ranges = mgmt.add_plan().ranges;
        }
        let acknowledged = self.oracle.acknowledged.clone();
        self.live_readers.push(LiveReader { plan, acknowledged, range });
        let late = self.rng.percent(10);
        let ms = if late { self.rng.range(100, 4000) } else { self.rng.range(1, 60) };
        self.after(ms, Ev::LiveRead(self.live_readers.len() - 1));
    }

    pub fn live_read(&mut self, index: usize) {
        let Some(reader) = self.live_readers.get(index) else { return };
        let nodes = reader.plan.ranges.get(reader.range as usize).cloned().unwrap_or_default();
        if let Some(node) = self.rng.pick(&nodes).copied() {
            self.read_range(index, node);
        }
    }

    fn read_range(&mut self, index: usize, id: NodeId) {
        let (Some(reader), Some(node)) = (self.live_readers.get(index), self.nodes.get(&id)) else { return };
        let Some(machine) = node.machine.as_ref().and_then(|m| m.read()) else { return };
        if !machine.serves_live(reader.range) && self.mutant != Some(Mutant::ServeBeforeWhole) {
            self.counts.live_refused += 1;
            return;
        }
        let found = live_pages(node);
        let wanted = reader.acknowledged.iter().filter(|(k, v)| self.map.range_of(**k, **v) == reader.range);
        let checked = rules::acknowledged_is_visible(id, wanted, &found, &self.oracle.removed);
        self.counts.live_reads += 1;
        self.check(checked);
    }

    /// At rest every node of a range serves it, and shows everything.
    pub fn check_live_at_rest(&mut self) {
        let Some(mgmt) = &self.mgmt else { return };
        let plan = mgmt.read_plan();
        let acknowledged = self.oracle.acknowledged.clone();
        for range in 0..self.map.count() {
            let nodes = plan.ranges.get(range as usize).cloned().unwrap_or_default();
            self.live_readers.push(LiveReader {
                plan: plan.clone(),
                acknowledged: acknowledged.clone(),
                range,
            });
            for node in nodes {
                self.read_range(self.live_readers.len() - 1, node);
            }
        }
    }

    /// What keeps a world with incremental update from being at rest.
    pub fn live_unrest(&self) -> Option<String> {
        let live = self.disk.live.as_ref()?;
        let plan = self.mgmt.as_ref()?.read_plan();
        (0..self.map.count()).find_map(|range| {
            let members = self.disk.members(range);
            let served = plan.ranges.get(range as usize).is_some_and(|nodes| nodes.len() == members.len());
            let whole = members.iter().all(|n| live.whole(range).contains(n));
            (!served || !whole).then(|| {
                format!("range {range} of {members:?}: whole {:?}, plan {:?}", live.whole(range), plan.ranges)
            })
        })
    }

    /// Nodes say how much their open epochs hold.
    pub fn note_loads(&mut self) {
        let reachable: Vec<NodeId> =
            self.nodes.keys().copied().filter(|id| self.reachable(0, id.0)).collect();
        let Some(mgmt) = &mut self.mgmt else { return };
        for id in reachable {
            let Some(SimNode { machine: Some(_), update: Some(update), .. }) = self.nodes.get(&id) else {
                continue;
            };
            let pages = update.epochs.get(&update.file.open_epoch).map_or(0, |pages| pages.len() as u64);
            mgmt.note_load(id, Load { outstanding: 0, epoch_bytes: pages * PAGE_BYTES });
        }
    }
}
