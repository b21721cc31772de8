//! A node as the management server sees it: the real machine, a disk in memory, a real connection.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use webbase_mgmt_server::RangeMap;
use webbase_node::cycle::message::{NodeId, ToManagement};
use webbase_node::cycle::{
    Action, Done, Event, Intent, Node, NodeDurable, Prepared, ReadDurable, Settings, UpdateDurable,
};
use webbase_node::link::{Hello, ManagementSays, NodeSays, TOPIC};
use webbase_node::plan::{Addresses, Repository, Update};
use webbase_node::wire::message;
use webbase_node::{Client, ClientSettings, Control};

/// What a fake node has seen and has on its disk.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) disk: NodeDurable,
    pub(crate) repository: Option<Repository>,
    pub(crate) addresses: Addresses,
    /// Calls that began with a welcome.
    pub(crate) welcomes: u32,
    pub(crate) refused: Option<String>,
    pub(crate) dismissed: bool,
    /// Names of others that a command sent this node to and that it had no address of.
    pub(crate) unknown_sources: Vec<NodeId>,
}

pub(crate) struct Fake {
    pub(crate) id: NodeId,
    pub(crate) seen: Arc<Mutex<Seen>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) fn address_of(id: NodeId) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1000 + id.0 as u16))
}

impl Fake {
    pub(crate) fn update(id: u64, management: SocketAddr) -> Fake {
        let disk = NodeDurable { update: Some(UpdateDurable::default()), ..NodeDurable::default() };
        Fake::start(id, management, Seen { disk, ..Seen::default() })
    }

    pub(crate) fn read(id: u64, management: SocketAddr) -> Fake {
        let disk = NodeDurable { read: Some(ReadDurable::default()), ..NodeDurable::default() };
        Fake::start(id, management, Seen { disk, ..Seen::default() })
    }

    pub(crate) fn start(id: u64, management: SocketAddr, seen: Seen) -> Fake {
        let seen = Arc::new(Mutex::new(seen));
        let task = tokio::spawn(run(NodeId(id), management, seen.clone()));
        Fake { id: NodeId(id), seen, task }
    }

    /// The same node again, elsewhere or after a stop: what was in memory is lost.
    pub(crate) fn restarted(self, management: SocketAddr) -> Fake {
        self.task.abort();
        let disk = self.with(|seen| seen.disk.clone());
        let repository = self.with(|seen| seen.repository);
        Fake::start(self.id.0, management, Seen { disk, repository, ..Seen::default() })
    }

    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut Seen) -> T) -> T {
        look(&mut self.seen.lock().unwrap())
    }

    pub(crate) fn generation(&self) -> u64 {
        self.with(|seen| seen.disk.read.as_ref().map_or(0, |r| r.current))
    }
}

async fn run(id: NodeId, management: SocketAddr, seen: Arc<Mutex<Seen>>) {
    let started = tokio::time::Instant::now();
    let now = || started.elapsed().as_millis() as u64;
    let durable = {
        let mut seen = seen.lock().unwrap();
        seen.disk.boot += 1;
        seen.disk.clone()
    };
    let settings = Settings { heartbeat_ms: 100, update: Update::Batch };
    let (mut node, mut actions) = Node::start(now(), durable, settings);
    loop {
        if let Some((_client, mut control)) = open(id, management, &seen).await {
            while let Some(event) = next(&mut control, &seen, actions, &mut node, now()).await {
                actions = node.on(now(), event);
            }
        }
        if seen.lock().unwrap().refused.is_some() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        actions = node.on(now(), Event::Connected);
    }
}

async fn open(id: NodeId, management: SocketAddr, seen: &Mutex<Seen>) -> Option<(Client, Control)> {
    let client = Client::connect(management, ClientSettings::default()).await.ok()?;
    let mut control = client.control(TOPIC).ok()?;
    let repository = seen.lock().unwrap().repository;
    let hello = Hello { id, address: address_of(id), repository };
    control.send(message::encode(&NodeSays::Hello(hello)).into()).await.ok()?;
    let first = control.receive(Some(Duration::from_secs(5))).await.ok()??;
    let mut seen = seen.lock().unwrap();
    match message::decode(&first).unwrap() {
        ManagementSays::Welcome(repository) => {
            seen.repository = Some(repository);
            seen.welcomes += 1;
        }
        ManagementSays::Refused(why) => {
            seen.refused = Some(why);
            return None;
        }
        other => panic!("{other:?} before the welcome"),
    }
    Some((client, control))
}

/// Carries out what the machine wants, then waits for what happens next; `None` when the call is over.
async fn next(
    control: &mut Control,
    seen: &Mutex<Seen>,
    actions: Vec<Action>,
    node: &mut Node,
    now: u64,
) -> Option<Event> {
    let mut left: std::collections::VecDeque<Action> = actions.into();
    while let Some(action) = left.pop_front() {
        match action {
            Action::Send(message) => say(control, message).await?,
            Action::Do(number, intent) => {
                let done = apply(&mut seen.lock().unwrap(), &intent);
                left.extend(node.on(now, Event::Done(number, done)));
            }
            Action::Cancel(_) => {}
            Action::Stop => seen.lock().unwrap().dismissed = true,
        }
    }
    loop {
        tokio::select! {
            message = control.receive(None) => match message::decode(&message.ok()??).unwrap() {
                ManagementSays::Cycle(message) => return Some(Event::Message(message)),
                ManagementSays::Addresses(all) => seen.lock().unwrap().addresses = all,
                other => panic!("{other:?} after the welcome"),
            },
            () = tokio::time::sleep(Duration::from_millis(100)) => return Some(Event::Tick),
        }
    }
}

async fn say(control: &mut Control, message: ToManagement) -> Option<()> {
    control.send(message::encode(&NodeSays::Cycle(message)).into()).await.ok()
}

fn apply(seen: &mut Seen, intent: &Intent) -> Done {
    if let Intent::Seal { .. } | Intent::DropEpochs { .. } | Intent::Close = intent {
        let update = seen.disk.update.as_mut().unwrap();
        match intent {
            Intent::Seal { cycle } => {
                update.open_epoch += 1;
                update.sealed_cycle = *cycle;
            }
            Intent::DropEpochs { through } => update.first_epoch = through + 1,
            _ => {
                update.open_epoch += 1;
                update.closed = true;
            }
        }
        return Done::Ok;
    }
    if let Intent::List(pull) = intent {
        use webbase_node::cycle::PullMode;
        let sources: Vec<NodeId> = match &pull.mode {
            PullMode::Delta { sources, .. } => sources.iter().map(|s| s.node).collect(),
            PullMode::Exact { sources } => sources.iter().map(|s| s.node).collect(),
        };
        let known: BTreeMap<NodeId, SocketAddr> = seen.addresses.iter().copied().collect();
        seen.unknown_sources.extend(sources.into_iter().filter(|n| known.get(n) != Some(&address_of(*n))));
        return Done::Listed { pages: 0, bytes: 0 };
    }
    let read = seen.disk.read.as_mut().unwrap();
    match intent {
        Intent::RollBack { .. } => read.prepared = None,
        Intent::Keep { generation, ranges, ticket: Some(ticket), .. } => {
            let (ticket, generation, ranges) = (*ticket, *generation, ranges.clone());
            read.prepared = Some(Prepared { ticket, generation, ranges });
        }
        Intent::Keep { generation, ranges, ticket: None, kept } => {
            read.kept.retain(|g, _| kept.contains(g));
            read.kept.insert(*generation, ranges.clone());
            (read.current, read.prepared) = (*generation, None);
        }
        Intent::SwitchTo { generation, kept } => {
            let prepared = read.prepared.take().unwrap();
            read.kept.retain(|g, _| kept.contains(g));
            read.kept.insert(*generation, prepared.ranges);
            read.current = *generation;
        }
        Intent::Release { generations } => read.kept.retain(|g, _| !generations.contains(g)),
        _ => {}
    }
    Done::Ok
}

/// A repository that is nobody's.
pub(crate) fn another_repository() -> Repository {
    Repository { key: [7; 32], map: RangeMap::new(4), update: Update::Batch }
}
