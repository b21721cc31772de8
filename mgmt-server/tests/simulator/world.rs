//! The world: a queue of events in simulated time, a network that misbehaves, disks, processes that are killed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::rc::Rc;

use webbase_mgmt_server::{
    Action as MgmtAction, Command, Coordinator, Event as MgmtEvent, Settings, State, Update,
};
use webbase_node::cycle::message::{NodeId, ToManagement, ToNode};
use webbase_node::cycle::{
    Action, Distribution, Done, Event, Intent, IntentId, Node, NodeDurable, Pull, PullMode, RangeMap,
    RangeSet, ReadDurable, Settings as NodeSettings,
};
use webbase_storage::{PageKey, Version};

use crate::clients::{Add, Reader};
use crate::invariants::{self as rules, Checked, Oracle, Violation};
use crate::live::LiveReader;
use crate::mutants::Mutant;
use crate::rng::Rng;
use crate::store::{Content, PAGE_BYTES, ReadDisk, UpdateDisk};

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

/// What happened, summed over seeds: a fault that never happens proves nothing.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    pub events: u64,
    pub commits: u64,
    pub aborts: u64,
    pub attempts: u64,
    pub copies: u64,
    pub made_again: u64,
    pub kills: u64,
    pub mgmt_kills: u64,
    pub lost: u64,
    pub no_space: u64,
    pub acknowledged: u64,
    pub refused: u64,
    pub streams: u64,
    pub reads: u64,
    pub removed_nodes: u64,
    pub removals: u64,
    pub forgotten: u64,
    pub live_reads: u64,
    pub live_refused: u64,
    pub became_whole: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.events += other.events;
        self.commits += other.commits;
        self.aborts += other.aborts;
        self.attempts += other.attempts;
        self.copies += other.copies;
        self.made_again += other.made_again;
        self.kills += other.kills;
        self.mgmt_kills += other.mgmt_kills;
        self.lost += other.lost;
        self.no_space += other.no_space;
        self.acknowledged += other.acknowledged;
        self.refused += other.refused;
        self.streams += other.streams;
        self.reads += other.reads;
        self.removed_nodes += other.removed_nodes;
        self.removals += other.removals;
        self.forgotten += other.forgotten;
        self.live_reads += other.live_reads;
        self.live_refused += other.live_refused;
        self.became_whole += other.became_whole;
    }

    pub fn all(&self) -> [(&'static str, u64); 20] {
        [
            ("events", self.events),
            ("commits", self.commits),
            ("aborts", self.aborts),
            ("attempts", self.attempts),
            ("copies", self.copies),
            ("made_again", self.made_again),
            ("kills", self.kills),
            ("mgmt_kills", self.mgmt_kills),
            ("lost", self.lost),
            ("no_space", self.no_space),
            ("acknowledged", self.acknowledged),
            ("refused", self.refused),
            ("streams", self.streams),
            ("reads", self.reads),
            ("removed_nodes", self.removed_nodes),
            ("removals", self.removals),
            ("forgotten", self.forgotten),
            ("live_reads", self.live_reads),
            ("live_refused", self.live_refused),
            ("became_whole", self.became_whole),
        ]
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
        let map = RangeMap::distributed(bits, distribution);
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

    // The management server.

    pub fn start_mgmt(&mut self) {
        if self.mgmt.is_none() {
            self.mgmt_boot += 1;
            self.mgmt = Some(Coordinator::start(self.now, self.disk.clone(), self.settings));
            self.after(50, Ev::MgmtTick(self.mgmt_boot));
        }
    }

    pub fn kill_mgmt(&mut self) {
        if self.mgmt.take().is_some() {
            self.counts.mgmt_kills += 1;
            if self.rng.percent(50) {
                self.make_durable();
            }
            self.persisting = None;
        }
    }

    fn make_durable(&mut self) {
        let Some((_, state)) = self.persisting.take() else { return };
        let before = std::mem::replace(&mut self.disk, *state);
        let (old, new) = (&before, &self.disk);
        self.counts.commits += u64::from(new.committed > old.committed);
        self.counts.aborts += u64::from(old.cycle.is_some() && new.cycle.is_none() && old.ticket().is_some());
        self.counts.attempts +=
            u64::from(new.ticket().is_some_and(|t| t.attempt > 1) && new.ticket() != old.ticket());
        if let (Some(old), Some(new)) = (&old.live, &new.live) {
            let grew = |range: &u32| new.whole(*range).iter().any(|n| !old.whole(*range).contains(n));
            let known = |range: &u32| !old.whole(*range).is_empty();
            self.counts.became_whole += (0..self.map.count()).filter(|r| known(r) && grew(r)).count() as u64;
        }
        self.counts.removed_nodes += (new.removed.len() - old.removed.len()) as u64;
        self.counts.forgotten += u64::from(new.committed > old.committed && new.forget_through() > 0);
        let nodes = &self.nodes;
        let disk = |node| nodes.get(&node).and_then(|n: &SimNode| n.update.as_ref());
        let checked = self.oracle.persisted(&before, &self.disk, disk);
        self.check(checked);
        self.note_state(&before);
    }

    fn note_state(&self, before: &State) {
        let after = &self.disk;
        if before.cycle != after.cycle {
            self.note(|| format!("durable: cycle {:?}", after.cycle.as_ref().map(|c| (c.cycle, &c.phase))));
        }
        if before.committed != after.committed {
            self.note(|| format!("durable: committed {} by {:?}", after.committed, after.commits.last()));
        }
        if before.placement.version != after.placement.version {
            self.note(|| format!("durable: placement {:?}", after.placement.read));
        }
    }

    pub fn request(&mut self, command: Command) {
        let id = self.next_request;
        self.next_request += 1;
        self.note(|| format!("request {id}: {command:?}"));
        self.mgmt_event(MgmtEvent::Request(id, command));
    }

    fn mgmt_event(&mut self, event: MgmtEvent) {
        let Some(mgmt) = &mut self.mgmt else { return };
        let actions = mgmt.on(self.now, event);
        for action in actions {
            match action {
                MgmtAction::Send(node, message) => self.send_to_node(node, message),
                MgmtAction::Persist(sequence, state) => {
                    self.persisting = Some((sequence, state));
                    if self.mutant == Some(Mutant::CommitBeforePersist) {
                        self.mgmt_event(MgmtEvent::Persisted(sequence));
                    }
                    let ms = self.rng.range(1, 60);
                    self.after(ms, Ev::Persisted(self.mgmt_boot, sequence));
                }
                MgmtAction::Answer(id, answer) => self.note(|| format!("answer {id}: {answer:?}")),
            }
        }
    }

    fn send_to_node(&mut self, node: NodeId, mut message: ToNode) {
        match (self.mutant, &mut message) {
            (Some(Mutant::LoseCommits), ToNode::Commit { .. }) => return,
            (Some(Mutant::AnyTicketWillDo), ToNode::Abort { ticket }) => {
                let file = self.nodes.get(&node).and_then(|n| n.read.as_ref()).map(|r| &r.file);
                if let Some(p) =
                    file.and_then(|f| f.prepared.as_ref()).filter(|p| p.generation <= self.disk.committed)
                {
                    let (ticket, generation) = (p.ticket.max(*ticket), p.generation);
                    message = ToNode::Commit { ticket, generation, kept: self.disk.kept.clone() };
                }
            }
            (Some(Mutant::ForgetTombstones), ToNode::Prepare(p)) => {
                p.changes.forget_through = p.changes.cycle
            }
            (Some(Mutant::ReleaseEarly), ToNode::Commit { kept, .. }) => kept.clear(),
            (Some(Mutant::DropEpochsEarly), ToNode::Commit { .. }) => {
                for (id, entry) in &self.disk.nodes.clone() {
                    if let Some(update) = &entry.update {
                        let through = update.included_through;
                        self.after(5, Ev::ToNode(*id, ToNode::DropEpochs { through }));
                    }
                }
            }
            _ => {}
        }
        self.note(|| format!("mgmt → {}: {message:?}", node.0));
        self.transmit(0, node.0, || Ev::ToNode(node, message.clone()));
    }

    // Nodes.

    pub fn new_node(&mut self, update: bool, read: bool) -> NodeId {
        let id = NodeId(self.next_node);
        self.next_node += 1;
        let node = SimNode {
            boot: 0,
            update: update.then(UpdateDisk::default),
            read: read.then(ReadDisk::default),
            machine: None,
            intents: BTreeMap::new(),
            lost: false,
            slow: self.rng.percent(10),
            capacity: u64::MAX,
        };
        self.nodes.insert(id, node);
        let ms = self.rng.range(1, 300);
        self.after(ms, Ev::StartNode(id));
        id
    }

    pub fn start_node(&mut self, id: NodeId) {
        let now = self.now;
        let removed = self.disk.removed.contains(&id);
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if node.lost || node.machine.is_some() || removed {
            return;
        }
        node.boot += 1;
        if let Some(read) = &mut node.read {
            read.open();
        }
        let durable = NodeDurable {
            boot: node.boot,
            update: node.update.as_ref().map(|u| u.file.clone()),
            read: node.read.as_ref().map(|r| r.file.clone()),
        };
        let (machine, actions) =
            Node::start(now, durable, NodeSettings { heartbeat_ms: 500, update: self.update });
        node.machine = Some(machine);
        let boot = node.boot;
        self.node_actions(id, actions);
        self.after(500, Ev::NodeTick(id, boot));
    }

    /// Ends a node's process: what it was doing on disk has happened, or not, or half.
    pub fn kill_node(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if node.machine.take().is_none() {
            return;
        }
        self.counts.kills += 1;
        let intents = std::mem::take(&mut node.intents);
        for intent in intents.into_values() {
            match self.rng.range(0, 3) {
                0 => {}
                1 => {
                    self.apply(id, &intent, false);
                }
                _ => {
                    self.apply(id, &intent, true);
                }
            }
        }
    }

    fn node_event(&mut self, id: NodeId, event: Event) {
        let now = self.now;
        let Some(machine) = self.nodes.get_mut(&id).and_then(|n| n.machine.as_mut()) else { return };
        let actions = machine.on(now, event);
        self.node_actions(id, actions);
    }

    fn node_actions(&mut self, id: NodeId, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(message) => {
                    self.note(|| format!("{} → mgmt: {message:?}", id.0));
                    self.transmit(0, id.0, || Ev::ToMgmt(id, message.clone()));
                }
                Action::Do(intent_id, intent) => {
                    let ms = self.duration(id, &intent);
                    let Some(node) = self.nodes.get_mut(&id) else { return };
                    node.intents.insert(intent_id, intent);
                    let boot = node.boot;
                    self.after(ms, Ev::IntentDone(id, boot, intent_id));
                }
                Action::Cancel(intent_id) => {
                    let Some(node) = self.nodes.get_mut(&id) else { return };
                    let cut = matches!(node.intents.get(&intent_id), Some(Intent::List(_) | Intent::Pull(_)));
                    if cut && let Some(intent) = node.intents.remove(&intent_id) {
                        self.apply(id, &intent, true);
                        self.node_event(id, Event::Done(intent_id, Done::Cancelled));
                    }
                }
                Action::Stop => {
                    if let Some(node) = self.nodes.get_mut(&id) {
                        node.machine = None;
                    }
                }
            }
        }
    }

    fn duration(&mut self, id: NodeId, intent: &Intent) -> u64 {
        let slow = self.nodes.get(&id).is_some_and(|n| n.slow) && self.faulty();
        let ms = match intent {
            Intent::Pull(_) => self.rng.range(20, 900),
            Intent::List(_) => self.rng.range(5, 200),
            _ => self.rng.range(1, 60),
        };
        if slow { ms * 8 } else { ms }
    }

    fn intent_done(&mut self, id: NodeId, boot: u64, intent_id: IntentId) {
        let Some(node) = self.nodes.get_mut(&id).filter(|n| n.boot == boot) else { return };
        let Some(intent) = node.intents.remove(&intent_id) else { return };
        let done = self.apply(id, &intent, false);
        self.note(|| format!("{} did {intent:?}: {done:?}", id.0));
        self.node_event(id, Event::Done(intent_id, done));
        let Some(SimNode { machine: Some(machine), update, read, .. }) = self.nodes.get(&id) else { return };
        // The machine's picture of its disk is the disk.
        assert_eq!(machine.update().map(|u| u.durable()), update.as_ref().map(|u| &u.file));
        assert_eq!(machine.read().map(|r| r.durable()), read.as_ref().map(|r| &r.file));
        let wants_more = matches!(intent, Intent::Keep { ticket: Some(_), .. });
        if self.mutant == Some(Mutant::SwitchWhenPrepared)
            && wants_more
            && let Some(p) = read.as_ref().and_then(|r| r.file.prepared.clone())
        {
            let (ticket, generation) = (p.ticket, p.generation);
            self.node_event(
                id,
                Event::Message(ToNode::Commit { ticket, generation, kept: self.disk.kept.clone() }),
            );
        }
    }

    /// What an intent does to the disk.
    fn apply(&mut self, id: NodeId, intent: &Intent, half: bool) -> Done {
        match intent {
            Intent::Seal { .. } | Intent::Close | Intent::DropEpochs { .. } => {
                if let Intent::DropEpochs { through } = intent {
                    self.check_drop(id, *through);
                }
                if let Some(update) = self.nodes.get_mut(&id).and_then(|n| n.update.as_mut()) {
                    update.apply(intent, half);
                }
                Done::Ok
            }
            Intent::List(pull) => match self.pulled(id, pull, true) {
                Ok((_, pages)) => Done::Listed { pages, bytes: pages * PAGE_BYTES },
                Err(source) => Done::SourceFailed(source),
            },
            Intent::Reserve { bytes } => self.reserve(id, *bytes),
            Intent::Pull(pull) => self.pull(id, pull, half),
            _ => {
                self.change_generations(id, intent, half);
                Done::Ok
            }
        }
    }

    fn reserve(&mut self, id: NodeId, bytes: u64) -> Done {
        let Some(node) = self.nodes.get_mut(&id) else { return Done::Ok };
        let Some(read) = &mut node.read else { return Done::Ok };
        if self.mutant == Some(Mutant::NoReserve) {
            return Done::Ok;
        }
        if read.used() + bytes > node.capacity {
            self.counts.no_space += 1;
            return Done::NoSpace;
        }
        read.reserved = bytes;
        Done::Ok
    }

    fn change_generations(&mut self, id: NodeId, intent: &Intent, half: bool) {
        let leased: Vec<u64> =
            self.readers.iter().filter(|r| r.leased_until > self.now).map(|r| r.generation).collect();
        let Some(read) = self.nodes.get_mut(&id).and_then(|n| n.read.as_mut()) else { return };
        let before = read.file.clone();
        let head = read.head.clone();
        read.apply(intent, half);
        if self.mutant == Some(Mutant::NoRollBack) && matches!(intent, Intent::RollBack { .. }) {
            read.head = head;
        }
        let after = read.file.clone();
        self.check(rules::leases_hold_generations(id, &before, &after, &leased));
        if after.current != before.current {
            let ticket = match intent {
                Intent::SwitchTo { .. } => before.prepared.as_ref().map(|p| p.ticket),
                _ => None,
            };
            self.check(rules::commit_record_alone_decides(id, &after, ticket, &self.oracle.committed));
        }
        if let Intent::Keep { generation, ranges, ticket, .. } = intent {
            self.check_kept(id, *generation, ranges, *ticket);
        }
    }

    fn check_kept(
        &mut self,
        id: NodeId,
        generation: u64,
        ranges: &RangeSet,
        ticket: Option<webbase_node::cycle::message::Ticket>,
    ) {
        let Some(read) = self.nodes.get(&id).and_then(|n| n.read.as_ref()) else { return };
        let content = read.content(generation).restricted(self.map, ranges);
        let oracle = &self.oracle;
        let ticket_of = ticket.or_else(|| oracle.committed.get(&generation).copied());
        let Some(ticket_of) = ticket_of else { return };
        let expected = oracle.expected.get(&ticket_of).unwrap_or(&oracle.empty).restricted(self.map, ranges);
        let removed: Vec<_> = oracle.removed.iter().filter(|(_, c)| *c <= ticket_of.cycle).copied().collect();
        let mut checks = vec![rules::deleted_pages_stay_deleted(self.map, &content, &removed)];
        if ticket.is_some() {
            let base = oracle.generation(generation - 1).restricted(self.map, ranges);
            let inside = |k: &PageKey, v: Version| ranges.contains(self.map.range_of(*k, v));
            let incoming = oracle.incoming.get(&ticket_of).into_iter().flatten();
            let incoming: BTreeMap<PageKey, Version> =
                incoming.filter(|(k, v)| inside(k, **v)).map(|(k, v)| (*k, *v)).collect();
            checks.push(rules::highest_version_wins(id, &content, &base, &incoming));
        }
        checks.push(rules::replicas_agree(id, generation, &content, &expected));
        checks.push(rules::stream_places_are_shared(id, generation, &content, &expected));
        for checked in checks {
            self.check(checked);
        }
    }

    fn check_drop(&mut self, id: NodeId, through: u64) {
        let Some(update) = self.nodes.get(&id).and_then(|n| n.update.as_ref()) else { return };
        let pages = update.epochs.range(..=through).flat_map(|(_, p)| p).map(|(k, v)| (*k, *v));
        let owners = |key: PageKey, version: Version| {
            let owners = self.disk.placement.read.owners(self.map.range_of(key, version)).iter();
            let read = |n: &NodeId| Some((*n, self.nodes.get(n)?.read.as_ref()?));
            owners
                .filter_map(read)
                .map(|(n, r)| (n, r.generations.get(&r.file.current).map_or(&self.oracle.empty, |c| &**c)))
                .collect()
        };
        let checked = rules::epochs_deleted_only_when_confirmed(id, pages, owners, &self.oracle.removed);
        self.check(checked);
    }

    fn pull(&mut self, id: NodeId, pull: &Pull, half: bool) -> Done {
        let (content, pages) = match self.pulled(id, pull, false) {
            Ok(pulled) => pulled,
            Err(source) => return Done::SourceFailed(source),
        };
        let counts = &mut self.counts;
        match pull.mode {
            PullMode::Exact { .. } => counts.copies += 1,
            PullMode::Delta { .. } if self.oracle.committed.contains_key(&pull.target) => {
                counts.made_again += 1
            }
            PullMode::Delta { .. } => {}
        }
        let part = self.rng.range(0, 10);
        let Some(read) = self.nodes.get_mut(&id).and_then(|n| n.read.as_mut()) else { return Done::Ok };
        if half {
            let mut torn = (*read.head).clone();
            let some = content.pages.iter().filter(|(k, _)| k.id.0 % 10 < part);
            torn.pages.extend(some.map(|(k, e)| (*k, *e)));
            torn.tombstones.extend(content.tombstones.iter().filter(|(k, _)| k.id.0 % 10 < part));
            read.head = Rc::new(torn);
            return Done::Cancelled;
        }
        let reserved = read.reserved;
        read.head = Rc::new(content);
        self.check(rules::space_is_reserved_first(id, pages * PAGE_BYTES, reserved));
        Done::Ok
    }

    fn can_give(&self, from: NodeId, to: NodeId) -> bool {
        self.nodes.get(&from).is_some_and(|n| n.machine.is_some()) && self.reachable(from.0, to.0)
    }

    /// What a pull makes, and how many pages it writes; or the source that failed.
    fn pulled(&self, id: NodeId, pull: &Pull, listing: bool) -> Result<(Content, u64), NodeId> {
        let Some(read) = self.nodes.get(&id).and_then(|n| n.read.as_ref()) else { return Err(id) };
        let base = &read.head;
        let content = match &pull.mode {
            PullMode::Delta { sources, changes } => {
                let mut all: BTreeMap<PageKey, (Version, bool)> = BTreeMap::new();
                let mut away = None;
                for source in sources.iter().filter(|s| s.from <= s.through) {
                    let there = self.can_give(source.node, id);
                    if !there && listing {
                        return Err(source.node);
                    }
                    away = away.or((!there).then_some(source.node));
                    let disk =
                        self.nodes.get(&source.node).and_then(|n| n.update.as_ref()).ok_or(source.node)?;
                    if disk.file.first_epoch > source.from || disk.file.open_epoch <= source.through {
                        return Err(source.node);
                    }
                    for (key, version) in disk.epochs.range(source.from..=source.through).flat_map(|(_, p)| p)
                    {
                        let best = all.entry(*key).or_insert((*version, there));
                        let wins = match self.mutant {
                            Some(Mutant::LowestVersionWins) => *version < best.0,
                            _ => *version > best.0,
                        };
                        if wins {
                            *best = (*version, there);
                        } else if *version == best.0 {
                            best.1 |= there;
                        }
                    }
                }
                // Winners come from whichever source has them and is there.
                if let (Some(away), true) = (away, all.values().any(|(_, there)| !there)) {
                    return Err(away);
                }
                let inside = |k: &PageKey, v: Version| pull.ranges.contains(self.map.range_of(*k, v));
                let pages = all.into_iter().filter(|(k, v)| inside(k, v.0)).map(|(k, v)| (k, v.0)).collect();
                let mut changes = changes.clone();
                changes.removals.retain(|r| inside(&r.key, r.bound));
                let mut content = base.restricted(self.map, &pull.ranges);
                content.merge(&pages, &changes, pull.target, self.mutant == Some(Mutant::LowestVersionWins));
                content
            }
            PullMode::Exact { sources } => {
                let mut content = base.restricted(self.map, &pull.ranges.minus(&pull.fetch));
                for range in pull.fetch.iter() {
                    let one: RangeSet = [range].into_iter().collect();
                    let has = |n: NodeId| {
                        let read = self.nodes.get(&n)?.read.as_ref()?;
                        read.file.serves(pull.target, &one).then_some(read)
                    };
                    let from =
                        sources.iter().filter(|s| s.ranges.contains(range) && self.can_give(s.node, id));
                    let source = from.filter_map(|s| has(s.node)).next();
                    let source = source.ok_or(sources.first().map_or(id, |s| s.node))?;
                    let part = source.content(pull.target).restricted(self.map, &one);
                    content.pages.extend(part.pages.iter().map(|(k, e)| {
                        let copied = self.mutant == Some(Mutant::ArrivalOfTheCopy);
                        (
                            *k,
                            crate::store::Entry {
                                arrival: if copied { pull.target } else { e.arrival },
                                ..*e
                            },
                        )
                    }));
                    if self.mutant != Some(Mutant::NoTombstonesInCopies) {
                        content.tombstones.extend(part.tombstones);
                    }
                }
                content
            }
        };
        let new = content.pages.iter().filter(|(k, e)| base.pages.get(k) != Some(e)).count();
        Ok((content, new as u64))
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
