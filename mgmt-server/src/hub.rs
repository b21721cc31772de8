//! The one task that owns the coordinator. It never waits for a node, a client or the disk: nodes have bounded outboxes,
//! clients are answered through channels of their own, and one commit at a time runs on a blocking thread.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};
use webbase_node::cycle::message::{NodeId, ToNode};
use webbase_node::link::{Hello, ManagementSays, NodeSays};
use webbase_node::plan::{Addresses, Ask, NodeFigures, Repository, Told};
use webbase_node::wire::message::{self, Key};
use webbase_storage::Stats;

use crate::assigner::Assigner;
use crate::coordinator::{Action, Answer, Command, Coordinator, Event, Refusal, Settings};
use crate::database::{Change, Database, Saved};
use crate::error::ServerError;
use crate::server::Clock;
use crate::state::State;
use crate::status::status;
use crate::steering::{Load, Steering};

const TICK: Duration = Duration::from_millis(200);
/// A changed address book goes out at most so often, but always before a message that sends a node to others.
const BOOK_EVERY: Duration = Duration::from_millis(500);
/// Nodes that may be connected or in the table.
const NODES_MAX: usize = 10_000;
/// Messages, and bytes of them, that wait for a node; more are dropped.
const OUTBOX_MAX: usize = 32;
const OUTBOX_BYTES_MAX: usize = 32 << 20;

/// What comes to the hub.
pub(crate) enum Input {
    /// A node introduces itself. It gets the number of its connection, or the reason why it is not let in.
    Hello { hello: Hello, outbox: Outbox, answer: oneshot::Sender<Result<u64, String>> },
    /// A node says something.
    NodeSays { id: NodeId, connection: u64, says: NodeSays },
    /// A node's call has ended.
    NodeGone { id: NodeId, connection: u64 },
}

/// A client asks. Questions do not wait behind what a thousand nodes have to say at once.
pub(crate) struct Question {
    pub(crate) ask: Ask,
    pub(crate) answer: oneshot::Sender<Told>,
}

/// Messages on their way to a node.
pub(crate) struct Outbox {
    messages: mpsc::Sender<Bytes>,
    waiting_bytes: Arc<AtomicUsize>,
}

/// The other end of an [`Outbox`].
pub(crate) struct Messages {
    messages: mpsc::Receiver<Bytes>,
    waiting_bytes: Arc<AtomicUsize>,
}

impl Outbox {
    pub(crate) fn new() -> (Outbox, Messages) {
        let (sender, receiver) = mpsc::channel(OUTBOX_MAX);
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        (
            Outbox { messages: sender, waiting_bytes: waiting_bytes.clone() },
            Messages { messages: receiver, waiting_bytes },
        )
    }

    /// Says whether it was taken.
    fn push(&self, message: Bytes) -> bool {
        let bytes = message.len();
        if self.waiting_bytes.load(Ordering::Relaxed) + bytes > OUTBOX_BYTES_MAX {
            return false;
        }
        self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        let taken = self.messages.try_send(message).is_ok();
        if !taken {
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        taken
    }
}

impl Messages {
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        let message = self.messages.recv().await?;
        self.waiting_bytes.fetch_sub(message.len(), Ordering::Relaxed);
        Some(message)
    }
}

struct Connection {
    number: u64,
    outbox: Outbox,
    /// The version of the address book it was sent.
    book: u64,
    figures: Option<NodeFigures>,
}

/// Where nodes are.
struct Book {
    addresses: BTreeMap<NodeId, SocketAddr>,
    version: u64,
    /// The book as a message, made when it is first needed.
    encoded: Option<Bytes>,
    sent: Instant,
}

impl Book {
    fn set(&mut self, node: NodeId, address: Option<SocketAddr>) {
        let before = match address {
            Some(address) => self.addresses.insert(node, address),
            None => self.addresses.remove(&node),
        };
        if before != address {
            self.version += 1;
            self.encoded = None;
        }
    }

    fn message(&mut self) -> Bytes {
        let addresses = &self.addresses;
        let make = || {
            let all: Addresses = addresses.iter().map(|(n, a)| (*n, *a)).collect();
            message::encode(&ManagementSays::Addresses(all)).into()
        };
        self.encoded.get_or_insert_with(make).clone()
    }
}

type Commit = JoinHandle<Result<(), ServerError>>;

/// The coordinator and all that surrounds it.
pub(crate) struct Hub {
    coordinator: Coordinator,
    clock: Clock,
    repository: Repository,
    database: Arc<Database>,
    /// Addresses as they are on disk.
    saved: BTreeMap<NodeId, SocketAddr>,
    /// The commit under way, with the decision it makes durable.
    commit: Option<(Commit, Option<u64>)>,
    /// The decision that waits for the commit under way; the machine has one at a time.
    decided: Option<(u64, Box<State>)>,
    connections: BTreeMap<NodeId, Connection>,
    connection_count: u64,
    book: Book,
    answers: BTreeMap<u64, oneshot::Sender<Told>>,
    request_count: u64,
    uniform: Option<Uniform>,
}

/// What the hub has to do with the distribution `uniform`.
pub(crate) struct Uniform {
    pub(crate) assigner: Assigner,
    /// Where new pages go.
    pub(crate) steering: watch::Sender<Arc<Steering>>,
    /// The index cannot go on.
    pub(crate) failed: mpsc::Receiver<ServerError>,
    /// The version of plans that the steering follows.
    pub(crate) plan_version: Option<u64>,
}

impl Hub {
    pub(crate) fn new(database: Database, saved: Saved, settings: Settings, uniform: Option<Uniform>) -> Hub {
        let clock = Clock::start();
        let Saved { repository, state, addresses } = saved;
        let book = Book { addresses: addresses.clone(), version: 1, encoded: None, sent: Instant::now() };
        Hub {
            coordinator: Coordinator::start(clock.now_ms(), state, settings),
            clock,
            repository,
            database: Arc::new(database),
            saved: addresses,
            commit: None,
            decided: None,
            connections: BTreeMap::new(),
            connection_count: 0,
            book,
            answers: BTreeMap::new(),
            request_count: 0,
            uniform,
        }
    }

    pub(crate) async fn run(
        mut self,
        mut queue: mpsc::Receiver<Input>,
        mut questions: mpsc::Receiver<Question>,
        mut stopped: oneshot::Receiver<()>,
    ) -> Result<(), ServerError> {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                committed = finish(&mut self.commit) => self.on_committed(committed)?,
                failed = index_failed(&mut self.uniform) => return Err(failed),
                _ = ticks.tick() => {
                    // What waits has come in time: nobody is declared down because this task was late.
                    for _ in 0..queue.len() {
                        if let Ok(input) = queue.try_recv() {
                            self.on(input);
                        }
                        if let Ok(question) = questions.try_recv() {
                            self.ask(question);
                        }
                    }
                    self.event(Event::Tick);
                    self.send_book();
                    self.steer();
                }
                Some(question) = questions.recv() => self.ask(question),
                input = queue.recv() => match input {
                    Some(input) => self.on(input),
                    None => break,
                },
                _ = &mut stopped => break,
            }
            let steered = self.uniform.as_ref().map(|u| u.plan_version);
            if steered.is_some_and(|version| version != Some(self.coordinator.state().plan_version)) {
                self.steer();
            }
        }
        drop(queue);
        match self.commit.is_some() {
            true => finish(&mut self.commit).await.1,
            false => Ok(()),
        }
    }

    fn on(&mut self, input: Input) {
        match input {
            Input::Hello { hello, outbox, answer } => {
                let admitted = self.admit(&hello, outbox);
                let in_vain = admitted.is_ok();
                if answer.send(admitted).is_err() && in_vain {
                    self.gone(hello.id);
                }
            }
            Input::NodeSays { id, connection, says } => {
                let Some(known) = self.connections.get_mut(&id).filter(|c| c.number == connection) else {
                    return;
                };
                match says {
                    NodeSays::Cycle(message) => self.event(Event::Message(id, message)),
                    NodeSays::Figures(figures) => {
                        let is_first = known.figures.replace(figures).is_none();
                        self.coordinator.note_load(id, (&figures).into());
                        if is_first {
                            self.steer();
                        }
                    }
                    NodeSays::Hello(_) => {}
                }
            }
            Input::NodeGone { id, connection } => {
                if self.connections.get(&id).is_some_and(|c| c.number == connection) {
                    self.gone(id);
                }
            }
        }
    }

    fn admit(&mut self, hello: &Hello, outbox: Outbox) -> Result<u64, String> {
        if hello.repository.is_some_and(|theirs| theirs != self.repository) {
            let fingerprint = self.repository.repository_key().fingerprint();
            return Err(format!("this is repository {fingerprint}, the node belongs to another one"));
        }
        if !self.book.addresses.contains_key(&hello.id) && self.book.addresses.len() >= NODES_MAX {
            return Err(format!("there are {NODES_MAX} nodes, that is the limit"));
        }
        self.connection_count += 1;
        let number = self.connection_count;
        self.book.set(hello.id, Some(hello.address));
        outbox.push(message::encode(&ManagementSays::Welcome(self.repository)).into());
        outbox.push(self.book.message());
        // An older connection of the same node ends with its outbox.
        self.connections
            .insert(hello.id, Connection { number, outbox, book: self.book.version, figures: None });
        self.begin_commit();
        Ok(number)
    }

    fn gone(&mut self, id: NodeId) {
        self.connections.remove(&id);
        if !self.coordinator.state().nodes.contains_key(&id) {
            self.book.set(id, None);
        }
    }

    fn event(&mut self, event: Event) {
        for action in self.coordinator.on(self.clock.now_ms(), event) {
            match action {
                Action::Send(node, message) => self.send(node, message),
                Action::Persist(sequence, state) => {
                    self.decided = Some((sequence, state));
                    self.begin_commit();
                }
                Action::Answer(id, answer) => {
                    if let Some(asker) = self.answers.remove(&id) {
                        // Who does not wait any more does not hear it.
                        let _ = asker.send(told(answer));
                    }
                }
            }
        }
    }

    fn send(&mut self, node: NodeId, message: ToNode) {
        let Some(connection) = self.connections.get_mut(&node) else { return };
        let needs_book = matches!(message, ToNode::Prepare(_) | ToNode::CatchUp { .. });
        if needs_book && connection.book != self.book.version {
            if !connection.outbox.push(self.book.message()) {
                return;
            }
            connection.book = self.book.version;
        }
        connection.outbox.push(message::encode(&ManagementSays::Cycle(message)).into());
    }

    /// Sends the address book to those who do not have it as it is now.
    fn send_book(&mut self) {
        if self.book.sent.elapsed() < BOOK_EVERY {
            return;
        }
        let version = self.book.version;
        for connection in self.connections.values_mut().filter(|c| c.book != version) {
            self.book.sent = Instant::now();
            if connection.outbox.push(self.book.message()) {
                connection.book = version;
            }
        }
    }

    /// Begins a commit of what is not on disk, unless one is under way. Heartbeats never get here.
    fn begin_commit(&mut self) {
        if self.commit.is_some() {
            return;
        }
        let (sequence, state) = self.decided.take().unzip();
        let table = &state.as_deref().unwrap_or(self.coordinator.state()).nodes;
        let changed = |(node, address): (&NodeId, &SocketAddr)| {
            let differs = table.contains_key(node) && self.saved.get(node) != Some(address);
            differs.then_some((*node, Some(*address)))
        };
        let mut addresses: Vec<_> = self.book.addresses.iter().filter_map(changed).collect();
        addresses.extend(self.saved.keys().filter(|n| !table.contains_key(n)).map(|n| (*n, None)));
        if state.is_none() && addresses.is_empty() {
            return;
        }
        for (node, address) in &addresses {
            match address {
                Some(address) => self.saved.insert(*node, *address),
                None => self.saved.remove(node),
            };
        }
        let database = self.database.clone();
        let change = Change { state, addresses };
        let commit = tokio::task::spawn_blocking(move || database.commit(&change));
        self.commit = Some((commit, sequence));
    }

    fn on_committed(
        &mut self,
        (sequence, result): (Option<u64>, Result<(), ServerError>),
    ) -> Result<(), ServerError> {
        result?;
        if let Some(sequence) = sequence {
            self.event(Event::Persisted(sequence));
            self.forget_removed();
        }
        self.begin_commit();
        Ok(())
    }

    /// Nodes that were removed are not to be found any more; those still connected are told that they are dismissed.
    fn forget_removed(&mut self) {
        let table = &self.coordinator.state().nodes;
        let gone = |n: &&NodeId| !table.contains_key(n) && !self.connections.contains_key(n);
        let gone: Vec<NodeId> = self.book.addresses.keys().filter(gone).copied().collect();
        for node in gone {
            self.book.set(node, None);
        }
    }

    /// Says where new pages go from now on.
    fn steer(&mut self) {
        let Some(uniform) = &mut self.uniform else { return };
        let (plan, placement) = (self.coordinator.add_plan(), &self.coordinator.state().placement);
        let read: Vec<Vec<NodeId>> =
            (0..placement.map.count()).map(|range| placement.read.owners(range).to_vec()).collect();
        let mut loads = BTreeMap::new();
        for (node, connection) in &self.connections {
            let Some(figures) = connection.figures else { continue };
            let store = Stats::from(figures.store);
            let view = self.coordinator.views().get(node);
            let load = Load {
                adds: figures.adds,
                streams: figures.streams,
                lookups: figures.lookups,
                updating: view.and_then(|v| v.read.as_ref()).is_some_and(|read| read.progress.is_some()),
                space: Some((store.capacity_bytes, store.free_bytes())),
            };
            loads.insert(*node, load);
        }
        uniform.plan_version = Some(plan.version);
        uniform.steering.send_replace(Arc::new(Steering::new(&plan.ranges, &read, &loads)));
    }

    fn ask(&mut self, Question { ask, answer }: Question) {
        let now_ms = self.clock.now_ms();
        let newest = self.repository.map.cycle_max();
        if ask == Ask::StartCycle && self.coordinator.state().last_cycle >= newest {
            let why = format!(
                "cycle {newest} was the last: with 2^{} ranges versions of pages have no room for more",
                self.repository.map.bits()
            );
            // Who does not wait any more does not hear it.
            let _ = answer.send(Told::Refused(why));
            return;
        }
        let command = match ask {
            Ask::StartCycle => Command::StartCycle,
            Ask::AbortCycle => Command::AbortCycle,
            Ask::Drain(node) => Command::Drain(node),
            Ask::RemoveLost(node) => Command::RemoveLost(node),
            Ask::Replace { old, new } => Command::Replace { old, new },
            Ask::Remove(pages) => Command::Remove(pages),
            Ask::Due(pages) => Command::Due(pages),
            Ask::Seen(pages) => Command::Seen(pages),
            Ask::Publish(index) => Command::Publish(index),
            Ask::Unpublish(name) => Command::Unpublish(name),
            ask => {
                let told = match ask {
                    Ask::Repository => Told::Repository(self.repository),
                    Ask::AddPlan => {
                        Told::AddPlan(self.coordinator.add_plan(), self.addresses(|n| n.update.is_some()))
                    }
                    Ask::ReadPlan => Told::ReadPlan(self.coordinator.read_plan(), self.addresses(|n| n.read)),
                    Ask::OpenLease => self.lease(|c| c.open_lease(now_ms)),
                    Ask::RenewLease { id, generation } => {
                        self.lease(|c| c.renew_lease(now_ms, id, generation))
                    }
                    Ask::LeaseOn { generation } => self.lease(|c| c.lease_on(now_ms, generation)),
                    Ask::OpenIndex { name } => match self.coordinator.open_index(now_ms, &name) {
                        Ok((index, lease, plan)) => {
                            Told::Index(index, lease, plan, self.addresses(|n| n.read))
                        }
                        Err(refusal) => Told::Refused(refusal.to_string()),
                    },
                    Ask::EndLease { id } => {
                        self.coordinator.end_lease(id);
                        Told::Done
                    }
                    _ => {
                        let figures = |node| self.connections.get(&node).and_then(|c| c.figures);
                        let page_index = self.uniform.as_ref().map(|u| u.assigner.status());
                        Told::Status(Box::new(status(
                            &self.coordinator,
                            &self.book.addresses,
                            figures,
                            page_index,
                        )))
                    }
                };
                // Who does not wait any more does not hear it.
                let _ = answer.send(told);
                return;
            }
        };
        self.request_count += 1;
        self.answers.insert(self.request_count, answer);
        self.event(Event::Request(self.request_count, command));
    }

    fn lease(
        &mut self,
        lease: impl FnOnce(
            &mut Coordinator,
        ) -> Result<(webbase_node::plan::Lease, webbase_node::plan::ReadPlan), Refusal>,
    ) -> Told {
        match lease(&mut self.coordinator) {
            Ok((lease, plan)) => Told::Lease(lease, plan, self.addresses(|n| n.read)),
            Err(refusal) => Told::Refused(refusal.to_string()),
        }
    }

    /// Where the nodes of a role are.
    fn addresses(&self, role: impl Fn(&crate::NodeEntry) -> bool) -> Addresses {
        let table = &self.coordinator.state().nodes;
        let place = |(node, _): (&NodeId, _)| Some((*node, *self.book.addresses.get(node)?));
        table.iter().filter(|(_, entry)| role(entry)).filter_map(place).collect()
    }
}

/// Why the index cannot go on; for ever, if it can.
async fn index_failed(uniform: &mut Option<Uniform>) -> ServerError {
    let failed = match uniform {
        Some(uniform) => uniform.failed.recv().await,
        None => None,
    };
    match failed {
        Some(failed) => failed,
        None => std::future::pending().await,
    }
}

/// The end of the commit under way; for ever, if there is none.
async fn finish(commit: &mut Option<(Commit, Option<u64>)>) -> (Option<u64>, Result<(), ServerError>) {
    let Some((task, sequence)) = commit else { return std::future::pending().await };
    let sequence = *sequence;
    let ended = task.await;
    *commit = None;
    (sequence, ended.unwrap_or_else(|e| Err(ServerError::Internal { what: e.to_string() })))
}

fn told(answer: Result<Answer, Refusal>) -> Told {
    match answer {
        Ok(Answer::Done) => Told::Done,
        Ok(Answer::CycleBegun(cycle)) => Told::CycleBegun(cycle),
        Ok(Answer::Late(pages)) => Told::Late(pages.into_iter().map(Key::from).collect()),
        Err(refusal) => Told::Refused(refusal.to_string()),
    }
}
