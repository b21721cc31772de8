//! Clients: they add pages, look pages up, and stream generations under leases.

use std::collections::BTreeMap;

use webbase_mgmt_server::{AddPlan, ReadPlan, Update};
use webbase_node::cycle::message::NodeId;
use webbase_node::cycle::{Distribution, RangeSet};
use webbase_storage::{PageId, PageKey, Version};

use crate::invariants as rules;
use crate::mutants::Mutant;
use crate::world::{Ev, FAULTS_MS, World};

const KEYS: u64 = 48;
const ADD_TRIES: u32 = 4;

/// A page on its way to the update nodes.
pub struct Add {
    key: PageKey,
    version: Version,
    attempt: u32,
    /// The epoch in the version of each try.
    stamps: Vec<u32>,
    planned: Vec<NodeId>,
    has: Vec<NodeId>,
    /// Who said that it has no room.
    full: Vec<NodeId>,
    over: bool,
    /// The newest cycle when it ended, one way or the other.
    pub ended_cycle: u64,
}

/// Somebody who reads ranges of one generation: with a lease all of them, without one some.
pub struct Reader {
    lease: Option<u64>,
    pub generation: u64,
    pub leased_until: u64,
    renew_at: u64,
    plan: ReadPlan,
    ranges: Vec<u32>,
    done: RangeSet,
    /// The place of the last page: (arrival generation, key).
    cursor: Option<(u64, PageKey)>,
    found: BTreeMap<PageKey, Version>,
}

pub fn key_of(n: u64) -> PageKey {
    // One page in sixteen shares its page id with another.
    let mut rng = crate::rng::Rng::new(if n % 16 == 1 { n - 1 } else { n } + 77);
    PageKey { id: PageId(rng.next()), tie: n }
}

impl World {
    fn add_plan(&mut self) -> Option<AddPlan> {
        let plan = self.mgmt.as_ref()?.add_plan();
        for (range, nodes) in plan.ranges.iter().enumerate() {
            // Only those declared down or leaving are left out.
            let live = self.update == Update::Incremental;
            let owners = match live {
                false => self.disk.placement.update.owners(range as u32).to_vec(),
                // Nobody takes anything while no whole node is up.
                true if nodes.is_empty() => Vec::new(),
                true => self.disk.members(range as u32),
            };
            let out = |n: &&NodeId| {
                !nodes.contains(n) && self.disk.nodes.get(n).is_some_and(|e| !e.down && (live || !e.leaving))
            };
            let wrong = plan.version == self.disk.plan_version && owners.iter().any(|n| out(&n));
            if wrong {
                self.check(rules::adds_refused_not_dropped(key_of(0), &[], &[]));
                break;
            }
        }
        Some(plan)
    }

    pub fn new_add(&mut self) {
        if self.now < FAULTS_MS + 500 {
            let ms = self.rng.range(20, 250);
            self.after(ms, Ev::NewAdd);
        }
        let key = key_of(self.rng.range(0, KEYS));
        let late = self.rng.range(0, 300);
        let version = Version {
            fetched_at_ms: self.now.saturating_sub(late),
            epoch: 0,
            digest: self.adds.len() as u64,
        };
        let (stamps, planned, has, full) = (vec![], vec![], vec![], vec![]);
        let add = Add { key, version, attempt: 0, stamps, planned, has, full, over: false, ended_cycle: 0 };
        self.adds.push(add);
        self.try_add(self.adds.len() - 1);
    }

    fn end_add(&mut self, index: usize) {
        let cycle = self.disk.last_cycle;
        if let Some(add) = self.adds.get_mut(index) {
            add.over = true;
            add.ended_cycle = cycle;
        }
    }

    fn try_add(&mut self, index: usize) {
        let plan = self.add_plan();
        let map = self.map;
        let cycle = self.disk.last_cycle;
        let Some(add) = self.adds.get_mut(index).filter(|a| !a.over) else { return };
        add.ended_cycle = cycle;
        add.attempt += 1;
        add.has.clear();
        // With the ranges assigned: any, but always the same for a page.
        let range = map.range_of_key(add.key);
        let range = range.unwrap_or_else(|| (crate::rng::Rng::new(add.key.tie).next() as u32) % map.count());
        let epoch = |p: &AddPlan| map.epoch(p.stamp, range).unwrap();
        add.stamps.push(plan.as_ref().map_or(0, epoch));
        let attempt = add.attempt;
        if attempt > ADD_TRIES {
            self.counts.refused += 1;
            return self.end_add(index);
        }
        // Some clients are patient: what arrives late, under a plan that is long over, counts for them.
        let patient = self.update == Update::Incremental && self.rng.percent(10);
        if let Some(plan) = plan {
            add.version.epoch = epoch(&plan);
            let entry = map.add_entry(add.key, range);
            let entry = entry.unwrap_or_else(|| self.rng.range(0, u64::from(map.count())) as u32);
            add.planned = plan.ranges.get(entry as usize).cloned().unwrap_or_default();
            let anywhere = map.update_distribution() == Distribution::Uniform && self.update == Update::Batch;
            if anywhere && add.planned.iter().any(|node| add.full.contains(node)) {
                let most = plan.ranges.iter().map(Vec::len).max().unwrap_or(0);
                let roomy = |nodes: &&Vec<NodeId>| {
                    nodes.len() == most && nodes.iter().all(|node| !add.full.contains(node))
                };
                if let Some(nodes) = plan.ranges.iter().find(roomy) {
                    add.planned.clone_from(nodes);
                    self.counts.elsewhere += 1;
                }
            }
            let planned = add.planned.clone();
            if planned.is_empty() && self.mutant == Some(Mutant::DropWhenDown) {
                return self.acknowledge(index);
            }
            for node in planned {
                let copies = if self.faulty() && self.rng.percent(3) { 2 } else { 1 };
                for _ in 0..copies {
                    let slow = self.faulty() && (patient || self.rng.percent(5));
                    let ms = if slow { self.rng.range(500, 6000) } else { self.rng.range(1, 80) };
                    self.after(ms, Ev::AddArrives(index, attempt, node));
                }
            }
        }
        self.after(if patient { 9000 } else { 1200 }, Ev::AddTimeout(index, attempt));
    }

    pub fn add_arrives(&mut self, index: usize, attempt: u32, id: NodeId) {
        let Some(add) = self.adds.get(index) else { return };
        // What arrives late bears the stamp of its own try.
        let stamp = add.stamps.get(attempt as usize - 1).copied().unwrap_or(0);
        let (key, version) = (add.key, Version { epoch: stamp, ..add.version });
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let Some(machine) = node.machine.as_ref().and_then(|m| m.update()) else { return };
        let any_stamp = self.mutant == Some(Mutant::AdmitOldStamps);
        let Ok(epoch) = machine.admit(if any_stamp { u64::MAX } else { self.map.cycle_of(version.epoch) })
        else {
            return;
        };
        let full = node.is_full();
        let Some(disk) = &mut node.update else { return };
        if full {
            let ms = self.rng.range(1, 60);
            return self.after(ms, Ev::AddRefused(index, attempt, id));
        }
        let unwritten = self.mutant == Some(Mutant::AcknowledgeUnwritten) && version.digest.is_multiple_of(7);
        if !unwritten {
            let best = disk.epochs.entry(epoch).or_default().entry(key).or_insert(version);
            *best = (*best).max(version);
        }
        let ms = self.rng.range(1, 60);
        if !self.faulty() || !self.rng.percent(self.loss / 2) {
            self.after(ms, Ev::AddAcknowledged(index, attempt, id));
        }
    }

    pub fn add_acknowledged(&mut self, index: usize, attempt: u32, id: NodeId) {
        let first = self.mutant == Some(Mutant::AcknowledgeFirst);
        let Some(add) = self.adds.get_mut(index) else { return };
        if add.over || add.attempt != attempt {
            return;
        }
        if !add.has.contains(&id) {
            add.has.push(id);
        }
        if first || add.planned.iter().all(|n| add.has.contains(n)) {
            self.acknowledge(index);
        }
    }

    fn acknowledge(&mut self, index: usize) {
        let Some(add) = self.adds.get(index) else { return };
        let checked = rules::adds_refused_not_dropped(add.key, &add.planned, &add.has);
        let best = self.oracle.acknowledged.entry(add.key).or_insert(add.version);
        *best = (*best).max(add.version);
        self.check(checked);
        self.counts.acknowledged += 1;
        self.end_add(index);
    }

    /// A node has no room: by another entry of the plan, then, if there is one.
    pub fn add_refused(&mut self, index: usize, attempt: u32, id: NodeId) {
        let Some(add) = self.adds.get_mut(index).filter(|a| !a.over && a.attempt == attempt) else { return };
        add.full.push(id);
        self.try_add(index);
    }

    pub fn add_timeout(&mut self, index: usize, attempt: u32) {
        if self.adds.get(index).is_some_and(|a| !a.over && a.attempt == attempt) {
            self.try_add(index);
        }
    }

    pub fn new_reader(&mut self) {
        if self.now < FAULTS_MS + 3000 {
            let ms = self.rng.range(100, 900);
            self.after(ms, Ev::NewReader);
        }
        let all: Vec<u32> = (0..self.map.count()).collect();
        let streams = self.rng.percent(35);
        let (now, period) = (self.now, self.settings.lease_ms);
        let Some(mgmt) = &mut self.mgmt else { return };
        let (lease, plan) = match streams {
            true => match mgmt.open_lease(now) {
                Ok((lease, plan)) => (Some(lease.id), plan),
                Err(_) => return,
            },
            false => (None, mgmt.read_plan()),
        };
        let some =
            |rng: &mut crate::rng::Rng| (0..3).filter_map(|_| rng.pick(&all).copied()).collect::<RangeSet>();
        let ranges = if streams { all.clone() } else { some(&mut self.rng).iter().collect() };
        let reader = Reader {
            lease,
            generation: plan.generation,
            leased_until: if streams { now + period } else { 0 },
            renew_at: now + period / 3,
            plan,
            ranges,
            done: RangeSet::new(),
            cursor: None,
            found: BTreeMap::new(),
        };
        self.readers.push(reader);
        self.after(1, Ev::ReaderStep(self.readers.len() - 1));
    }

    pub fn reader_step(&mut self, index: usize) {
        self.renew(index);
        let Some(reader) = self.readers.get(index) else { return };
        let generation = reader.generation;
        if reader.lease.is_some() && reader.leased_until <= self.now {
            return;
        }
        let Some(range) = reader.ranges.last().copied() else { return self.reader_done(index) };
        let mut nodes = reader.plan.ranges.get(range as usize).cloned().unwrap_or_default();
        if self.rng.percent(10) {
            // A client with a wrong plan: whoever does not have the generation has to refuse.
            nodes = self.nodes.keys().copied().collect();
        }
        let node = self.rng.pick(&nodes).copied();
        let answered = node.is_some_and(|node| self.read_some(index, node, range));
        let leased = self.readers.get(index).is_some_and(|r| r.lease.is_some());
        if !answered && !leased {
            // The client would ask for a new plan and begin again.
            return;
        }
        self.note(|| format!("reader {index} of generation {generation} read range {range}: {answered}"));
        let ms = if leased { self.rng.range(20, 500) } else { self.rng.range(1, 60) };
        self.after(ms, Ev::ReaderStep(index));
    }

    fn renew(&mut self, index: usize) {
        let now = self.now;
        let (Some(reader), Some(mgmt)) = (self.readers.get_mut(index), &mut self.mgmt) else { return };
        let Some(lease) = reader.lease else { return };
        if now < reader.renew_at || now >= reader.leased_until {
            return;
        }
        reader.renew_at = now + 300;
        if let Ok((lease, plan)) = mgmt.renew_lease(now, lease, reader.generation) {
            reader.leased_until = now + lease.period_ms;
            reader.plan = plan;
        }
    }

    /// Reads the next few pages of a range from a node: the place is carried over from whichever node was asked before.
    fn read_some(&mut self, index: usize, id: NodeId, range: u32) -> bool {
        const AT_ONCE: usize = 3;
        let Some(reader) = self.readers.get(index) else { return false };
        let generation = reader.generation;
        let Some(node) = self.nodes.get(&id) else { return false };
        let (Some(machine), Some(disk)) = (node.machine.as_ref().and_then(|m| m.read()), &node.read) else {
            return false;
        };
        let one: RangeSet = [range].into_iter().collect();
        let unfenced = self.mutant == Some(Mutant::NoFencing);
        if !machine.durable().serves(generation, &one) && !unfenced {
            return false;
        }
        let fenced = rules::fenced_nodes_serve_nothing_current(id, &disk.file, generation);
        let newest = disk.generations.keys().next_back().copied().unwrap_or(0);
        let content = disk.content(if unfenced { newest } else { generation });
        let mut pages: Vec<(u64, PageKey, Version)> = content
            .pages
            .iter()
            .filter(|(k, e)| self.map.range_of(**k, e.version) == range)
            .map(|(k, e)| (e.arrival, *k, e.version))
            .filter(|(arrival, key, _)| reader.cursor.is_none_or(|c| (*arrival, *key) > c))
            .collect();
        pages.sort_unstable();
        let more = pages.len() > AT_ONCE;
        pages.truncate(AT_ONCE);
        self.counts.reads += 1;
        self.check(fenced);
        let Some(reader) = self.readers.get_mut(index) else { return false };
        let mut twice = None;
        for (arrival, key, version) in pages {
            reader.cursor = Some((arrival, key));
            if reader.found.insert(key, version).is_some() {
                twice = Some(key);
            }
        }
        if !more {
            reader.cursor = None;
            reader.ranges.pop();
            reader.done.insert(range);
        }
        if let Some(key) = twice {
            self.check(Err(rules::Violation {
                invariant: "stream_places_are_shared",
                what: format!("{key} was delivered twice to reader {index}"),
            }));
        }
        true
    }

    fn reader_done(&mut self, index: usize) {
        let now = self.now;
        let Some(reader) = self.readers.get_mut(index) else { return };
        reader.leased_until = now;
        if let (Some(lease), Some(mgmt)) = (reader.lease, &mut self.mgmt) {
            mgmt.end_lease(lease);
            self.counts.streams += 1;
        }
        let expected = self.oracle.generation(reader.generation);
        let checked = rules::one_generation_per_request(
            reader.generation,
            &reader.found,
            &reader.done,
            self.map,
            expected,
        );
        self.check(checked);
    }
}
