//! A node as a whole: its stores, its server, and its line to the management server, which it follows.
//!
//! ```text
//!   NODE           who it is and where it stands (file.rs)
//!   epoch-N/       update side: a store per epoch (epochs.rs)
//!   pages/         read side: one store with its generations (generations.rs, tombstones.rs, runs.rs)
//!   importance-V   read side: how important its pages are (../importance.rs)
//!   urls/          the URL indexes of the generations (urls.rs)
//! ```
//!
//! With incremental update readers see the one laid over the other (live/).
//!
//! One task runs the cycle's machine: it hands the machine what is heard and what has ended, and carries out what the
//! machine wants (intents.rs, pull.rs). The server answers from generations and epochs (pages.rs) whatever goes on.

mod arrivals;
mod epochs;
mod file;
mod generations;
mod groups;
mod intents;
mod link;
mod listing;
mod live;
mod pages;
mod peers;
mod pull;
mod repair;
mod room;
mod runs;
mod scrub;
mod tombstones;
mod urls;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};
use tokio::sync::mpsc;
use webbase_storage::{Options, Organization};

use self::epochs::Epochs;
use self::file::NodeFile;
use self::generations::Generations;
use self::intents::Disk;
use self::link::Heard;
use self::pages::NodePages;
use self::peers::Peers;
use self::repair::Repairs;
use self::room::Room;
use crate::background::Background;
use crate::client::ClientSettings;
use crate::cluster::NearNode;
use crate::cycle::message::{NodeId, ToNode};
use crate::cycle::{
    self, Action, Done, Event, Intent, IntentId, Node, NodeDurable, ReadDurable, ReadNode, UpdateDurable,
};
use crate::error::{NodeError, Result};
use crate::importance::Importances;
use crate::link::{Hello, ManagementSays, NodeSays};
use crate::plan::{NodeFigures, Update};
use crate::server::{Pages, Server, Service, Settings};

pub use self::epochs::EPOCH;
pub use self::scrub::Scrub;

/// Messages that may wait in either direction.
const QUEUE: usize = 1024;

/// Which pages a node has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Takes new pages from the crawler.
    Update,
    /// Serves readers.
    Read,
    /// Both, in stores of their own.
    Both,
}

/// What a node is started with.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Its folder; made if it is not there.
    pub dir: PathBuf,
    /// Where it listens; with port 0 the system chooses.
    pub listen: SocketAddr,
    /// Where others reach it, if not there.
    pub advertise: Option<SocketAddr>,
    /// Where the management server listens.
    pub management: SocketAddr,
    /// Which pages it has. Fixed with the first start.
    pub role: Role,
    /// How its stores are laid out. Fixed with the first start.
    pub organization: Organization,
    /// Settings of its stores.
    pub storage: Options,
    /// Settings of its server.
    pub server: Settings,
    /// How it connects to the management server and to other nodes.
    pub client: ClientSettings,
    /// A sign of life goes out so often.
    pub heartbeat: Duration,
    /// How it looks for damage by itself.
    pub scrub: Scrub,
}

impl HostOptions {
    /// The usual settings.
    pub fn new(dir: PathBuf, listen: SocketAddr, management: SocketAddr, role: Role) -> HostOptions {
        HostOptions {
            dir,
            listen,
            advertise: None,
            management,
            role,
            organization: Organization::Log,
            storage: Options::default(),
            server: Settings::default(),
            client: ClientSettings::default(),
            heartbeat: Duration::from_secs(1),
            scrub: Scrub::default(),
        }
    }
}

/// A running node. Dropping it stops it at once, as a kill would; [`Host::shutdown`] ends it in good order.
pub struct Host {
    id: NodeId,
    pages: Arc<NodePages>,
    server: Option<Server>,
    disk: Arc<Disk>,
    running: tokio::task::JoinHandle<()>,
    _background: Arc<Background>,
    repairing: tokio::task::JoinHandle<()>,
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

impl Host {
    /// Starts the node in a folder, on the caller's runtime. The first start waits until the management server has told
    /// it which repository it belongs to.
    ///
    /// # Errors
    /// When the folder is of something else or in use, a store is damaged, the address is not free, or the management
    /// server refuses the node.
    pub async fn start(options: HostOptions) -> Result<Host> {
        check_addresses(&options)?;
        let dir = options.dir.clone();
        std::fs::create_dir_all(&dir).map_err(|e| NodeError::io("create", dir.display(), e))?;
        let mut file = match NodeFile::read(&dir)? {
            Some(file) => file,
            None => new_file(&options)?,
        };
        file.boot += 1;
        let mut hello = Hello { id: file.id, address: options.listen, repository: file.repository };
        let repository = match file.repository {
            Some(repository) => repository,
            None => link::first_contact(options.management, &options.client, &hello).await?,
        };
        if repository.update == Update::Incremental && (file.update.is_none() || file.read.is_none()) {
            let what = "pages are visible at once in this repository, so every node takes and serves them: \
                        start this one with the role both";
            return Err(NodeError::Foreign { what: what.into() });
        }
        file.repository = Some(repository);
        hello.repository = Some(repository);
        let key = repository.repository_key();
        let opening = options.clone();
        let opened = tokio::task::spawn_blocking(move || {
            let (file, update, read) = open_sides(&opening, file, repository)?;
            let importances = match read {
                Some(_) => Some(Importances::open(&opening.dir)),
                None => None,
            };
            let failed = |e| NodeError::io("read", opening.dir.display(), e);
            Ok::<_, NodeError>((file, update, read, importances.transpose().map_err(failed)?.map(Arc::new)))
        });
        let (file, update, read, importances) =
            opened.await.map_err(|e| NodeError::Foreign { what: e.to_string() })??;
        let durable = NodeDurable { boot: file.boot, update: file.update.clone(), read: file.read.clone() };
        let heartbeat_ms = options.heartbeat.as_millis() as u64;
        let (machine, actions) =
            Node::start(now_ms(), durable, cycle::Settings { heartbeat_ms, update: repository.update });
        let machine = Arc::new(Mutex::new(machine));
        let (repairs, met) = Repairs::new(file.id, repository.map, update.clone(), read.clone());
        let live_urls = match update.clone().filter(|_| repository.update == Update::Incremental) {
            Some(epochs) => {
                let dir = dir.clone();
                let opening =
                    tokio::task::spawn_blocking(move || live::LiveUrls::open(&dir, key, &epochs.snapshots()));
                Some(opening.await.map_err(|e| NodeError::Foreign { what: e.to_string() })??)
            }
            None => None,
        };
        let capacity = options.storage.capacity_bytes;
        let room = Arc::new(Room::new(dir.clone(), capacity, update.clone(), read.clone()));
        let pages = Arc::new(NodePages {
            live_urls,
            repairs: repairs.clone(),
            room: room.clone(),
            key,
            map: repository.map,
            update: update.clone(),
            read: read.clone(),
            machine: machine.clone(),
            mode: repository.update,
            organization: read.as_ref().map_or(options.organization, |read| read.store.organization()),
            live: RwLock::default(),
            importances,
            scratch: dir.clone(),
        });
        let service = Service::default().with_pages(pages.clone());
        let server = Server::start(options.listen, service, options.server.clone()).await?;
        // With a port of 0 the system has chosen one, which is not known before.
        let mut reached = options.advertise.unwrap_or(server.address());
        if reached.port() == 0 {
            reached.set_port(server.address().port());
        }
        hello.address = reached;
        let id = file.id;
        let client = ClientSettings { repository: Some(key.fingerprint()), ..options.client.clone() };
        let peers = Arc::new(Peers::new(client));
        let repairing = tokio::spawn(repairs.clone().run(met, peers.clone(), options.scrub));
        let disk = Arc::new(Disk::new(dir, file, update, read, peers.clone(), room));
        let (outgoing, to_send) = mpsc::channel(QUEUE);
        let (heard_in, heard) = mpsc::channel(QUEUE);
        tokio::spawn(link::keep(options.management, options.client, hello, to_send, heard_in));
        let (done_in, done) = mpsc::channel(QUEUE);
        let background =
            Background::start().map_err(|e| NodeError::io("start threads for", server.address(), e))?;
        let background = Arc::new(background);
        let runner = Runner {
            machine,
            disk: disk.clone(),
            peers,
            pages: pages.clone(),
            repairs,
            load: server.watch_load(),
            outgoing,
            done: done_in,
            cancels: HashMap::new(),
            background: background.clone(),
        };
        let running = tokio::spawn(runner.run(heard, done, actions, options.heartbeat));
        Ok(Host { id, pages, server: Some(server), disk, running, repairing, _background: background })
    }

    /// Its name.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// The node as who is in this process asks it ([`Cluster::reach`](crate::Cluster::reach)); nothing once it ends.
    pub fn near(&self) -> Option<NearNode> {
        let server = self.server.as_ref()?;
        Some(NearNode::new(self.pages.clone(), server.near_adder()))
    }

    /// Where it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.server.as_ref().map(Server::address)
    }

    /// Takes no more calls, lets those under way go on for at most `limit`, and leaves its stores tidy.
    pub async fn shutdown(mut self, limit: Duration) -> bool {
        let ended = match self.server.take() {
            Some(server) => server.shutdown(limit).await,
            None => true,
        };
        self.running.abort();
        self.repairing.abort();
        let disk = self.disk.clone();
        let closed = tokio::task::spawn_blocking(move || {
            if let Some(read) = &disk.read {
                read.urls.join();
            }
            // The read side needs no closing: what it serves is kept generations, whose segments are sealed.
            disk.update.as_ref().map_or(Ok(()), |epochs| epochs.close()).is_ok()
        });
        ended && closed.await.unwrap_or(false)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(read) = &self.disk.read {
            read.urls.stop();
        }
        self.running.abort();
        self.repairing.abort();
    }
}

/// What would fail only later, or not at all: nobody could reach the node, or everybody.
fn check_addresses(options: &HostOptions) -> Result<()> {
    options.server.check_listen(options.listen)?;
    if options.advertise.unwrap_or(options.listen).ip().is_unspecified() {
        let what =
            format!("{} is no address that others could reach: one has to be advertised", options.listen);
        return Err(NodeError::Foreign { what });
    }
    Ok(())
}

fn new_file(options: &HostOptions) -> Result<NodeFile> {
    let dir = options.dir.display();
    let mut entries = std::fs::read_dir(&options.dir).map_err(|e| NodeError::io("read", &dir, e))?;
    if entries.next().is_some() {
        let what = format!("{dir} is not empty and has no file NODE: it is not the folder of a node");
        return Err(NodeError::Foreign { what });
    }
    let random = webbase_storage::RepositoryKey::random()
        .map_err(|e| NodeError::io("read random bytes for", &dir, e))?;
    let [a, b, c, d, e, f, g, h, ..] = random.parts().0;
    Ok(NodeFile {
        id: NodeId(u64::from_le_bytes([a, b, c, d, e, f, g, h])),
        boot: 0,
        repository: None,
        update: (options.role != Role::Read).then(UpdateDurable::default),
        read: (options.role != Role::Update).then(ReadDurable::default),
        numbers: std::collections::BTreeMap::new(),
        next_number: 1,
    })
}

type Sides = (NodeFile, Option<Arc<Epochs>>, Option<Arc<Generations>>);

/// Opens the stores, and notes that the node was started.
fn open_sides(
    options: &HostOptions,
    mut file: NodeFile,
    repository: crate::plan::Repository,
) -> Result<Sides> {
    let key = repository.repository_key();
    let (dir, organization) = (&options.dir, options.organization);
    // Before anything else is made: a folder with stores and without this file would be nobody's.
    file.write(dir)?;
    let read = match &file.read {
        Some(_) => {
            Some(Generations::open(dir, key, repository.map, organization, &options.storage, &mut file)?)
        }
        None => None,
    };
    let update = match &file.update {
        Some(durable) => {
            // What lies over a store is laid out as that.
            let over = read.as_ref().filter(|_| repository.update == Update::Incremental);
            let organization = over.map_or(organization, |read| read.store.organization());
            Some(Epochs::open(dir, key, organization, options.storage.clone(), durable)?)
        }
        None => None,
    };
    file.write(dir)?;
    Ok((file, update.map(Arc::new), read.map(Arc::new)))
}

/// Bytes as the small files of a node; what is read can be written and read again.
#[cfg(any(fuzzing, test))]
pub(crate) fn fuzz_files(bytes: &[u8]) {
    file::fuzz(bytes);
    runs::Runs::fuzz(bytes);
    if let Ok(tombstones) = tombstones::Tombstones::decode(bytes) {
        assert_eq!(tombstones::Tombstones::decode(&tombstones.encode()), Ok(tombstones));
    }
}

/// Such files, without their checksums.
#[cfg(test)]
pub(crate) fn fuzz_samples() -> Vec<Vec<u8>> {
    let mut tombstones = tombstones::Tombstones::default();
    let bound = webbase_storage::Version { fetched_at_ms: 7, epoch: 2, digest: 9 };
    tombstones.add(&cycle::message::Removal { key: webbase_storage::PageKey::MIN, bound }, 3);
    let samples = [file::sample(), tombstones.encode(), runs::Runs::sample()];
    samples.into_iter().map(|bytes| bytes[..bytes.len() - 8].to_vec()).collect()
}

/// Runs the machine.
struct Runner {
    machine: Arc<Mutex<Node>>,
    disk: Arc<Disk>,
    peers: Arc<Peers>,
    pages: Arc<NodePages>,
    repairs: Arc<Repairs>,
    load: crate::server::LoadWatch,
    outgoing: mpsc::Sender<NodeSays>,
    done: mpsc::Sender<(IntentId, Done)>,
    cancels: HashMap<IntentId, Arc<AtomicBool>>,
    /// Where long intents are carried out: readers go first.
    background: Arc<Background>,
}

impl Runner {
    async fn run(
        mut self,
        mut heard: mpsc::Receiver<Heard>,
        mut done: mpsc::Receiver<(IntentId, Done)>,
        actions: Vec<Action>,
        heartbeat: Duration,
    ) {
        self.act(actions);
        let mut ticks = tokio::time::interval((heartbeat / 4).max(Duration::from_millis(10)));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut figures = tokio::time::interval(heartbeat);
        figures.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let event = tokio::select! {
                said = heard.recv() => match said {
                    Some(Heard::Connected) => Event::Connected,
                    Some(Heard::Says(ManagementSays::Cycle(message))) => Event::Message(message),
                    Some(Heard::Says(ManagementSays::Addresses(addresses))) => {
                        self.peers.set(addresses);
                        continue;
                    }
                    Some(Heard::Says(_)) => continue,
                    None => return,
                },
                ended = done.recv() => match ended {
                    Some((id, how)) => {
                        self.cancels.remove(&id);
                        Event::Done(id, how)
                    }
                    None => return,
                },
                _ = ticks.tick() => Event::Tick,
                _ = figures.tick() => {
                    self.report_figures();
                    let (pages, bytes) = self.disk.progress.get();
                    Event::Progress { pages, bytes }
                }
            };
            let cycle = match &event {
                Event::Message(ToNode::Prepare(prepare)) => Some(prepare.ticket.cycle),
                Event::Message(ToNode::CatchUp { ticket, .. }) => Some(ticket.cycle),
                _ => None,
            };
            let actions = {
                let mut machine = self.machine.lock();
                let actions = machine.on(now_ms(), event);
                self.pages.set_live(machine.read().map(ReadNode::live));
                actions
            };
            if let Some(cycle) = cycle.filter(|_| actions.iter().any(|a| matches!(a, Action::Do(..)))) {
                self.disk.set_cycle(cycle);
            }
            self.act(actions);
        }
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                // A full queue means a broken line: what is lost is said again.
                Action::Send(message) => drop(self.outgoing.try_send(NodeSays::Cycle(message))),
                Action::Do(id, intent) => self.begin(id, intent),
                Action::Cancel(id) => {
                    if let Some(cancel) = self.cancels.get(&id) {
                        cancel.store(true, Ordering::Relaxed);
                    }
                }
                // The machine serves and takes nothing any more; what is on disk stays for its owner to remove.
                Action::Stop => {}
            }
        }
    }

    fn begin(&mut self, id: IntentId, intent: Intent) {
        let cancel = Arc::new(AtomicBool::new(false));
        self.cancels.insert(id, cancel.clone());
        let (disk, done) = (self.disk.clone(), self.done.clone());
        // What is long gives way to readers; what is short holds locks that they wait for, so it does not.
        let is_long = matches!(intent, Intent::List(_) | Intent::Pull(_));
        let work = async move {
            let how = disk.carry_out(intent, cancel).await;
            let _ = done.send((id, how)).await; // a node that has stopped asks no more
        };
        if is_long {
            self.background.spawn(work);
        } else {
            tokio::spawn(work);
        }
    }

    fn report_figures(&self) {
        let load = self.load.get();
        let figures = NodeFigures {
            store: self.pages.stats().into(),
            adds: load.adds,
            streams: load.streams,
            lookups: load.lookups,
            lookups_answered: load.lookups_answered,
            scanned_bytes: load.scanned_bytes,
            streamed_pages: load.streamed_pages,
            damaged: self.repairs.found(),
            repaired: self.repairs.repaired(),
            epoch_bytes: self.disk.update.as_ref().map_or(0, |epochs| epochs.newest().stats().live_bytes),
        };
        drop(self.outgoing.try_send(NodeSays::Figures(figures)));
    }
}
