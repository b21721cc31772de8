//! The world: a queue of events in simulated time, a network that misbehaves, disks, processes that are killed.

mod counts;
mod intents;
mod management;
mod nodes;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use webbase_mgmt_server::{Coordinator, Event as MgmtEvent, Settings, State, Update};
use webbase_node::cycle::message::{NodeId, ToManagement, ToNode};
use webbase_node::cycle::{Distribution, Event, Intent, IntentId, Node, RangeMap, ReadDurable};

pub use self::counts::Counts;

use crate::clients::{Add, Reader};
use crate::invariants::{self as rules, Checked, Oracle, Violation};
use crate::live::LiveReader;
use crate::mutants::Mutant;
use crate::rng::Rng;
use crate::store::{PAGE_BYTES, ReadDisk, UpdateDisk};

/// Faults happen until then.
pub const FAULTS_MS: u64 = 30_000;
/// Adds go on a little longer, then the last cycles run.
pub const LAST_CYCLES_MS: u64 = FAULTS_MS + 6_000;
/// By then everything must be at rest.
pub const END_MS: u64 = FAULTS_MS + 120_000;

#[derive(Debug)]
pub enum Ev {
    ToNode(NodeId, ToNode),
    ToMgmt(NodeId, ToManagement),
    NodeTick(NodeId, u64),
    MgmtTick(u64),
    IntentDone(NodeId, u64, IntentId),
    Persisted(u64, u64),
    StartNode(NodeId),
    StartMgmt,
    Fault,
    Operator,
    NewAdd,
    AddArrives(usize, u32, NodeId),
    AddAcknowledged(usize, u32, NodeId),
    AddRefused(usize, u32, NodeId),
    AddTimeout(usize, u32),
    NewReader,
    ReaderStep(usize),
    LiveRead(usize),
}

struct Queued(u64, u64, Ev);

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Queued {}
impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

pub struct SimNode {
    pub boot: u64,
    pub update: Option<UpdateDisk>,
    pub read: Option<ReadDisk>,
    pub machine: Option<Node>,
    pub intents: BTreeMap<IntentId, Intent>,
    pub lost: bool,
    pub slow: bool,
    pub capacity: u64,
}

impl SimNode {
    /// Whether an update node takes no pages for want of room.
    pub fn is_full(&self) -> bool {
        self.read.is_none() && self.capacity == 0
    }
}

pub struct World {
    pub rng: Rng,
    pub now: u64,
    queue: BinaryHeap<Reverse<Queued>>,
    order: u64,
    pub map: RangeMap,
    pub mutant: Option<Mutant>,
    only: Option<&'static str>,
    trace: bool,
    pub settings: Settings,
    pub mgmt: Option<Coordinator>,
    pub mgmt_boot: u64,
    pub disk: State,
    persisting: Option<(u64, Box<State>)>,
    pub nodes: BTreeMap<NodeId, SimNode>,
    /// Who cannot reach whom, and until when; 0 is the management server.
    pub blocked: BTreeMap<(u64, u64), u64>,
    pub oracle: Oracle,
    pub adds: Vec<Add>,
    pub readers: Vec<Reader>,
    pub update: Update,
    pub live_readers: Vec<LiveReader>,
    pub next_node: u64,
    pub next_request: u64,
    pub counts: Counts,
    pub violation: Option<Violation>,
    pub loss: u64,
    /// Few faults, long absences: what it takes to go wrong over several cycles.
    pub calm: bool,
}

impl World {
    pub fn new(seed: u64, mutant: Option<Mutant>, only: Option<&'static str>, trace: bool) -> Self {
        let mut rng = Rng::new(seed);
        let update = if seed % 3 == 2 { Update::Incremental } else { Update::Batch };
        let bits = rng.range(1, 4) as u8;
        // Half of them have their ranges assigned, of the incremental ones too.
        let uniform = seed % 3 == 1 || seed % 6 == 5;
        let distribution = if uniform { Distribution::Uniform } else { Distribution::Hash };
        // Some have update nodes with the other distribution.
        let other = if uniform { Distribution::Hash } else { Distribution::Uniform };
        let differ = update == Update::Batch && seed.is_multiple_of(4);
        let map =
            RangeMap::distributed(bits, distribution).with_update(if differ { other } else { distribution });
        let replicas = if rng.percent(75) { 2 } else { 1 };
        let settings = Settings {
            down_after_ms: 2500,
            resend_ms: 600,
            lease_ms: 4000,
            seal_limit_ms: 4000,
            prepare_limit_ms: 12_000,
            switch_limit_ms: 6000,
            begin_limit_ms: 5000,
            fold_ms: 3000,
            fold_bytes: 20 * PAGE_BYTES,
            ..Settings::default()
        };
        let (loss, calm) = (rng.range(0, 12), rng.percent(25));
        let mut world = World {
            rng,
            now: 0,
            queue: BinaryHeap::new(),
            order: 0,
            map,
            mutant,
            only,
            trace,
            settings,
            mgmt: None,
            mgmt_boot: 0,
            disk: State::new(map, replicas, update),
            persisting: None,
            nodes: BTreeMap::new(),
            blocked: BTreeMap::new(),
            oracle: Oracle::default(),
            adds: Vec::new(),
            readers: Vec::new(),
            update,
            live_readers: Vec::new(),
            next_node: 1,
            next_request: 1,
            counts: Counts::default(),
            violation: None,
            loss,
            calm,
        };
        world.start_mgmt();
        let (update, read, both) = (world.rng.range(1, 4), world.rng.range(1, 4), world.rng.range(0, 2));
        let roles = match world.update {
            Update::Batch => vec![(update, (true, false)), (read, (false, true)), (both, (true, true))],
            Update::Incremental => vec![((update + both).max(u64::from(replicas)), (true, true))],
        };
        for (count, role) in roles {
            for _ in 0..count.max(u64::from(replicas) * u64::from(both == 0)) {
                world.new_node(role.0, role.1);
            }
        }
        for (at, ev) in [(300, Ev::NewAdd), (500, Ev::NewReader), (1500, Ev::Operator), (2000, Ev::Fault)] {
            world.at(at, ev);
        }
        world
    }

    pub fn run(&mut self) {
        while let Some(Reverse(Queued(at, _, ev))) = self.queue.pop() {
            self.now = at;
            self.counts.events += 1;
            if self.trace && !matches!(ev, Ev::MgmtTick(_) | Ev::NodeTick(..)) {
                println!("{at:>7} {ev:?}");
            }
            self.handle(ev);
            if self.violation.is_some() {
                return;
            }
            if self.now > LAST_CYCLES_MS && self.finished() {
                let last = rules::acknowledged_pages_survive(&self.oracle, self.disk.committed);
                self.check(last);
                self.check_live_at_rest();
                return;
            }
            if self.now > END_MS {
                let rest = Some(self.unrest().unwrap_or_else(|| "the last cycles did not run".into()));
                self.check(rules::cycles_end(rest));
                return;
            }
        }
    }

    pub fn faulty(&self) -> bool {
        self.now < FAULTS_MS
    }

    pub fn check(&mut self, checked: Checked) {
        if let Err(violation) = checked
            && self.violation.is_none()
            && self.only.is_none_or(|only| only == violation.invariant)
        {
            self.violation = Some(violation);
        }
    }

    pub fn at(&mut self, at: u64, ev: Ev) {
        self.order += 1;
        self.queue.push(Reverse(Queued(at, self.order, ev)));
    }

    pub fn after(&mut self, ms: u64, ev: Ev) {
        self.at(self.now + ms, ev);
    }

    pub fn note(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>7}   {}", self.now, what());
        }
    }

    fn handle(&mut self, ev: Ev) {
        match ev {
            Ev::ToNode(node, message) => self.node_event(node, Event::Message(message)),
            Ev::ToMgmt(node, message) => self.mgmt_event(MgmtEvent::Message(node, message)),
            Ev::NodeTick(node, boot) => {
                if self.nodes.get(&node).is_some_and(|n| n.boot == boot && n.machine.is_some()) {
                    self.node_event(node, Event::Tick);
                    self.after(500, Ev::NodeTick(node, boot));
                }
            }
            Ev::MgmtTick(boot) => {
                if boot == self.mgmt_boot && self.mgmt.is_some() {
                    self.note_loads();
                    self.mgmt_event(MgmtEvent::Tick);
                    self.after(250, Ev::MgmtTick(boot));
                }
            }
            Ev::IntentDone(node, boot, id) => self.intent_done(node, boot, id),
            Ev::Persisted(boot, sequence) => {
                if boot == self.mgmt_boot && self.persisting.as_ref().is_some_and(|p| p.0 == sequence) {
                    self.make_durable();
                    self.mgmt_event(MgmtEvent::Persisted(sequence));
                }
            }
            Ev::StartNode(node) => self.start_node(node),
            Ev::StartMgmt => self.start_mgmt(),
            Ev::Fault => self.fault(),
            Ev::Operator => self.operator(),
            Ev::NewAdd => self.new_add(),
            Ev::AddArrives(add, attempt, node) => self.add_arrives(add, attempt, node),
            Ev::AddAcknowledged(add, attempt, node) => self.add_acknowledged(add, attempt, node),
            Ev::AddRefused(add, attempt, node) => self.add_refused(add, attempt, node),
            Ev::AddTimeout(add, attempt) => self.add_timeout(add, attempt),
            Ev::NewReader if self.update == Update::Incremental => self.new_live_reader(),
            Ev::NewReader => self.new_reader(),
            Ev::LiveRead(reader) => self.live_read(reader),
            Ev::ReaderStep(reader) => self.reader_step(reader),
        }
    }

    // The network.

    pub fn reachable(&self, a: u64, b: u64) -> bool {
        self.blocked.get(&(a.min(b), a.max(b))).is_none_or(|until| *until <= self.now)
    }

    fn latency(&mut self) -> u64 {
        if self.faulty() && self.rng.percent(4) { self.rng.range(200, 4000) } else { self.rng.range(1, 40) }
    }

    /// Messages are lost, doubled, late and out of order.
    fn transmit(&mut self, a: u64, b: u64, make: impl Fn() -> Ev) {
        if !self.reachable(a, b) || (self.faulty() && self.rng.percent(self.loss)) {
            return;
        }
        let copies = if self.faulty() && self.rng.percent(4) { 2 } else { 1 };
        for _ in 0..copies {
            let latency = self.latency();
            self.after(latency, make());
        }
    }

    // The end.

    fn finished(&self) -> bool {
        let last = self.oracle.committed.values().filter(|t| t.cycle > self.last_cycles_from()).count();
        last >= 2 && self.unrest().is_none()
    }

    /// The last cycle before the last ones.
    pub fn last_cycles_from(&self) -> u64 {
        self.adds.iter().map(|a| a.ended_cycle).max().unwrap_or(0)
    }

    /// What keeps the world from being at rest.
    pub fn unrest(&self) -> Option<String> {
        let disk = &self.disk;
        if self.persisting.is_some() || disk.cycle.is_some() {
            return Some(format!("cycle {:?}", disk.cycle));
        }
        if disk.serving != disk.committed || !disk.placement.read.is_settled() {
            return Some(format!(
                "serving {}, committed {}, settled {}",
                disk.serving,
                disk.committed,
                disk.placement.read.is_settled()
            ));
        }
        if disk.commits.iter().any(|c| !c.confirmed) || disk.nodes.values().any(|n| n.down || n.leaving) {
            return Some(format!("unconfirmed {:?} or nodes {:?}", disk.commits, disk.nodes));
        }
        for (id, node) in self.nodes.iter().filter(|(id, _)| disk.nodes.contains_key(id)) {
            let owned = disk.placement.read.by_node().remove(id).unwrap_or_default().owned;
            if let Some(ReadDisk { file: ReadDurable { current, kept, prepared }, .. }) = &node.read {
                let has = *current == 0 || kept.get(current).is_some_and(|k| owned.is_subset(k));
                if (*current != disk.committed && !owned.is_empty()) || !has || prepared.is_some() {
                    return Some(format!("node {} at {current}, kept {kept:?}, prepared {prepared:?}", id.0));
                }
            }
            let entry = disk.nodes.get(id).and_then(|n| n.update.as_ref());
            if let (Some(update), Some(entry)) = (&node.update, entry)
                && update.file.first_epoch <= entry.included_through
            {
                return Some(format!("node {} still has epoch {}", id.0, update.file.first_epoch));
            }
        }
        let strangers = self
            .nodes
            .iter()
            .any(|(id, n)| n.machine.is_some() && !disk.nodes.contains_key(id) && !disk.removed.contains(id));
        strangers.then(|| "a node is not in the table".to_string()).or_else(|| self.live_unrest())
    }
}
