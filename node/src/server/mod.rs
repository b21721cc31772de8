//! A node as a server: one service behind one TCP port, and a door beside it for clients on the same machine.

mod add;
mod adder;
mod by_url;
mod importance;
mod near;
mod ordered;
mod pages;
mod requests;
mod select;
mod shared;
mod slices;
mod stream;
mod workers;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use webbase_storage::PageStore;

pub(crate) use self::near::NearAdder;
pub use self::pages::{Answer, NotAdded, Pages, Places, StorePages};

use self::adder::Adder;
use self::requests::Requests;
use self::shared::Scans;
use self::workers::Workers;
use crate::connection_threads::ConnectionThreads;
use crate::control::Control;
use crate::error::{NodeError, Result};
use crate::security::{Token, check_listen};
use crate::wire::door::Door;
use crate::wire::driver::Driver;
use crate::wire::handshake::{self, Gate};
use crate::wire::link::Socket;
use crate::wire::message::{Code, Fault};
use crate::wire::mux::{CREDIT_BYTES_MIN, Limits, Mux};
use crate::wire::shelf::Shelf;

/// Connections that may wait to be refused.
const REFUSED_MAX: usize = 64;
/// Until a connection is accepted again after one could not be. Out of descriptors, or the peer is gone already: others still work, and waiting
/// lets some end.
const NOT_ACCEPTED: Duration = Duration::from_millis(50);

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Limits of each connection.
    pub limits: Limits,
    /// The secret that clients must show.
    pub token: Option<Token>,
    /// Certificate and key.
    #[cfg(feature = "tls")]
    pub tls: Option<crate::security::ServerTls>,
    /// Connections at once.
    pub connections_max: usize,
    /// Connections at once from one address.
    pub connections_per_peer_max: usize,
    /// Adds at once, of all connections.
    pub uploads_max: usize,
    /// Batches that one add may have under way, most of them waiting for a commit, which takes no memory.
    pub batches_max: usize,
    /// Bytes of all batches that wait to be staged, of all connections; more wait, with what they have sent, for room.
    pub batches_bytes_max: usize,
    /// Bytes of a batch, as sent; a single larger page is taken as a batch of its own.
    pub batch_bytes_max: usize,
    /// Threads for lookups that wait for the disk and for chunks of streams.
    pub short_threads: usize,
    /// Threads for verifications, compactions and lists.
    pub long_threads: usize,
    /// Threads of its own for its connections; with none they are served on the caller's runtime.
    pub connection_threads: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            limits: Limits::default(),
            token: None,
            #[cfg(feature = "tls")]
            tls: None,
            connections_max: 1024,
            connections_per_peer_max: 512,
            uploads_max: 64,
            batches_max: 32,
            batches_bytes_max: 256 << 20,
            batch_bytes_max: 16 << 20,
            short_threads: 8,
            long_threads: 2,
            connection_threads: 0,
        }
    }
}

impl Settings {
    pub(crate) fn check_listen(&self, address: SocketAddr) -> Result<()> {
        check_listen(address, self.token.is_some(), self.has_tls())
    }

    fn has_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        false
    }
}

/// Takes control calls.
pub trait AcceptControl: Send + Sync + 'static {
    /// A peer has opened a control call about `topic`. Called on the connection's own task: hand the call to a task of
    /// your own, or drop it to refuse.
    fn accept(&self, topic: &str, control: Control);
}

impl<F: Fn(&str, Control) + Send + Sync + 'static> AcceptControl for F {
    fn accept(&self, topic: &str, control: Control) {
        self(topic, control);
    }
}

/// What a server serves: pages, control calls, or both.
#[derive(Clone, Default)]
pub struct Service {
    pages: Option<Arc<dyn Pages>>,
    control: Option<Arc<dyn AcceptControl>>,
}

impl Service {
    /// The pages of one store.
    pub fn of_store(store: Arc<dyn PageStore>) -> Service {
        Service::default().with_pages(Arc::new(StorePages::new(store)))
    }

    /// Serves these pages.
    pub fn with_pages(self, pages: Arc<dyn Pages>) -> Service {
        Service { pages: Some(pages), ..self }
    }

    /// Serves control calls.
    pub fn with_control(self, control: Arc<dyn AcceptControl>) -> Service {
        Service { control: Some(control), ..self }
    }
}

/// What a server is doing, by access mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Connections open.
    pub connections: u64,
    /// Adds under way.
    pub adds: u64,
    /// Streams under way.
    pub streams: u64,
    /// Lookups that wait for the disk.
    pub lookups: u64,
    /// Lookups answered since the start.
    pub lookups_answered: u64,
    /// Bytes of records that streams have gone through since the start; a scan that is shared counts once.
    pub scanned_bytes: u64,
    /// Pages that streams have sent since the start.
    pub streamed_pages: u64,
    /// Bytes of records that clients on the same machine have taken out of memory shared with them since the start.
    pub shelf_taken_bytes: u64,
    /// Batches of records in that memory.
    pub shelf_batches: u64,
}

#[derive(Default)]
struct Counters {
    adds: AtomicUsize,
    streams: AtomicUsize,
    lookups: AtomicUsize,
    lookups_answered: AtomicU64,
    /// Bytes of records that streams have gone through.
    scanned_bytes: AtomicU64,
    /// Pages that streams have sent.
    streamed_pages: AtomicU64,
}

/// What all connections share.
struct Inner {
    settings: Settings,
    service: Service,
    repository: String,
    workers: Workers,
    adder: Option<Adder>,
    counters: Counters,
    /// Scans that several streams share.
    scans: Scans,
    /// In KiB.
    batch_memory: Arc<Semaphore>,
    connections: Mutex<Connections>,
    /// Adds of this process that have no connection.
    near_adds: AtomicUsize,
    /// A connection has ended, or an add that has none.
    ended: Notify,
    /// Turns true when the server is to end.
    leaving: watch::Sender<bool>,
    /// The name of its door.
    door: Option<String>,
    /// Memory that it shares with those who come by it.
    shelf: Option<Arc<Shelf>>,
}

/// Tells what a server is doing, while there is one.
pub(crate) struct LoadWatch(Weak<Inner>);

impl LoadWatch {
    pub(crate) fn get(&self) -> Load {
        self.0.upgrade().map_or_else(Load::default, |inner| inner.load())
    }
}

#[derive(Default)]
struct Connections {
    next: u64,
    /// Every accepted socket, whether or not its handshake is done.
    all: HashMap<u64, (IpAddr, Option<Arc<Mux>>)>,
}

/// A running server. Dropping it closes everything at once; [`Server::shutdown`] ends it in good order.
pub struct Server {
    inner: Arc<Inner>,
    address: SocketAddr,
    listening: JoinSet<()>,
    _threads: Arc<ConnectionThreads>,
}

impl Server {
    /// Listens on `address` and serves from now on.
    ///
    /// # Errors
    /// When the address is not free, or can be reached by strangers and is not protected.
    pub async fn start(address: SocketAddr, service: Service, settings: Settings) -> Result<Server> {
        settings.check_listen(address)?;
        let credit = settings.limits.credit_bytes;
        if credit < CREDIT_BYTES_MIN {
            let (found, max) = (credit.into(), CREDIT_BYTES_MIN.into());
            return Err(NodeError::TooMuch { what: "the credit is smaller than the least", found, max });
        }
        let listener =
            TcpListener::bind(address).await.map_err(|e| NodeError::io("listen on", address, e))?;
        let address = listener.local_addr().map_err(|e| NodeError::io("listen on", address, e))?;
        let threads = |e| NodeError::io("start threads for", address, e);
        let workers = Workers::start(settings.short_threads, settings.long_threads).map_err(threads)?;
        let serving = Arc::new(ConnectionThreads::start(settings.connection_threads).map_err(threads)?);
        let adder = service.pages.clone().map(Adder::start).transpose().map_err(threads)?;
        let repository = service.pages.as_ref().map(|p| p.repository_key().fingerprint());
        let batch_memory = Arc::new(Semaphore::new((settings.batches_bytes_max >> 10).max(1)));
        let door = if settings.has_tls() { None } else { Door::open() };
        let shelf = door.as_ref().filter(|_| service.pages.is_some()).and_then(|_| Shelf::open());
        let inner = Arc::new(Inner {
            settings,
            service,
            repository: repository.unwrap_or_default(),
            workers,
            adder,
            counters: Counters::default(),
            scans: Scans::default(),
            batch_memory,
            connections: Mutex::default(),
            near_adds: AtomicUsize::new(0),
            ended: Notify::new(),
            leaving: watch::Sender::new(false),
            door: door.as_ref().map(|door| door.name.clone()),
            shelf,
        });
        let mut listening = JoinSet::new();
        listening.spawn(listen(inner.clone(), listener, serving.clone()));
        if let Some(door) = door {
            listening.spawn(open_door(inner.clone(), door, serving.clone()));
        }
        Ok(Server { inner, address, listening, _threads: serving })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it is doing.
    pub fn load(&self) -> Load {
        self.inner.load()
    }

    /// A way to add without a connection, for who is in this process.
    pub(crate) fn near_adder(&self) -> NearAdder {
        NearAdder::new(&self.inner)
    }

    /// What it is doing, for who does not own it.
    pub(crate) fn watch_load(&self) -> LoadWatch {
        LoadWatch(Arc::downgrade(&self.inner))
    }

    /// Takes no more connections and calls, lets those under way go on for at most `limit`, and closes. Batches of adds
    /// that have come whole are stored and acknowledged; streams go on to their end or the limit. Returns whether
    /// everything ended by itself.
    pub async fn shutdown(mut self, limit: Duration) -> bool {
        self.listening.abort_all();
        self.inner.leaving.send_replace(true);
        for (_, mux) in self.inner.connections.lock().all.values() {
            mux.iter().for_each(|mux| mux.say_goodbye());
        }
        let all_ended = async {
            loop {
                let ended = self.inner.ended.notified();
                let near = self.inner.near_adds.load(Ordering::SeqCst);
                if self.inner.connections.lock().all.is_empty() && near == 0 {
                    return;
                }
                ended.await;
            }
        };
        let in_time = tokio::time::timeout(limit, all_ended).await.is_ok();
        self.close_all("the server shut down");
        in_time
    }

    fn close_all(&mut self, why: &str) {
        self.listening.abort_all();
        for (_, mux) in self.inner.connections.lock().all.values() {
            if let Some(mux) = mux {
                mux.close(NodeError::Closed { peer: mux.peer.clone(), why: why.into() });
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.inner.leaving.send_replace(true);
        self.close_all("the server was stopped");
    }
}

async fn listen(inner: Arc<Inner>, listener: TcpListener, threads: Arc<ConnectionThreads>) {
    loop {
        match listener.accept().await {
            Ok((socket, peer)) => {
                let admitted = inner.admit(peer.ip());
                if let Some((ticket, refuse)) = admitted {
                    // A socket that cannot change hands is closed, as one that cannot be accepted.
                    let Ok(socket) = socket.into_std() else { continue };
                    threads.next().spawn(async move {
                        if let Ok(socket) = TcpStream::from_std(socket) {
                            welcome(socket, peer, ticket, refuse).await;
                        }
                    });
                }
            }
            Err(_) => tokio::time::sleep(NOT_ACCEPTED).await,
        }
    }
}

/// The same, for those who come by the door.
async fn open_door(inner: Arc<Inner>, door: Door, threads: Arc<ConnectionThreads>) {
    let here = IpAddr::from(Ipv4Addr::LOCALHOST);
    loop {
        match door.accept().await {
            Ok(socket) => {
                let Some((ticket, refuse)) = inner.admit(here) else { continue };
                threads.next().spawn(async move {
                    if let Ok(socket) = UnixStream::from_std(socket) {
                        talk(socket, "this machine".into(), ticket, refuse, None).await;
                    }
                });
            }
            Err(_) => tokio::time::sleep(NOT_ACCEPTED).await,
        }
    }
}

impl Inner {
    fn load(&self) -> Load {
        let counters = &self.counters;
        Load {
            connections: self.connections.lock().all.len() as u64,
            adds: counters.adds.load(Ordering::Relaxed) as u64,
            streams: counters.streams.load(Ordering::Relaxed) as u64,
            lookups: counters.lookups.load(Ordering::Relaxed) as u64,
            lookups_answered: counters.lookups_answered.load(Ordering::Relaxed),
            scanned_bytes: counters.scanned_bytes.load(Ordering::Relaxed),
            streamed_pages: counters.streamed_pages.load(Ordering::Relaxed),
            shelf_taken_bytes: self.shelf.as_ref().map_or(0, |shelf| shelf.taken_bytes()),
            shelf_batches: self.shelf.as_ref().map_or(0, |shelf| shelf.used()),
        }
    }

    /// Counts a connection in. With a fault it is only there to be told so; beyond that it is dropped.
    fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<(Ticket, Option<Fault>)> {
        let mut connections = self.connections.lock();
        let (all, max) = (connections.all.len(), self.settings.connections_max);
        if all >= max + REFUSED_MAX {
            return None;
        }
        let of_peer = connections.all.values().filter(|(ip, _)| *ip == peer).count();
        let of_peer_max = self.settings.connections_per_peer_max;
        let refuse = if all >= max {
            Some(Fault::new(Code::Busy, format!("there are {all} connections, that is the limit")))
        } else if of_peer >= of_peer_max {
            let text =
                format!("there are {of_peer} connections from {peer}, that is the limit for one address");
            Some(Fault::new(Code::Busy, text))
        } else {
            None
        };
        let number = connections.next;
        connections.next += 1;
        connections.all.insert(number, (peer, None));
        Some((Ticket { inner: self.clone(), number }, refuse))
    }
}

/// A connection's place among those counted.
struct Ticket {
    inner: Arc<Inner>,
    number: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.inner.connections.lock().all.remove(&self.number);
        self.inner.ended.notify_waiters();
    }
}

async fn welcome(socket: TcpStream, peer: SocketAddr, ticket: Ticket, refuse: Option<Fault>) {
    // A socket that refuses this is slow, not wrong.
    let _ = socket.set_nodelay(true);
    #[cfg(feature = "tls")]
    if let Some(tls) = &ticket.inner.settings.tls {
        let handshake = ticket.inner.settings.limits.handshake;
        if let Ok(Ok(socket)) = tokio::time::timeout(handshake, tls.0.accept(socket)).await {
            talk(socket, peer.to_string(), ticket, refuse, None).await;
        }
        return;
    }
    let door = ticket.inner.door.clone().filter(|_| peer.ip().to_canonical().is_loopback());
    talk(socket, peer.to_string(), ticket, refuse, door).await;
}

async fn talk<S: Socket>(
    mut socket: S,
    peer: String,
    ticket: Ticket,
    refuse: Option<Fault>,
    door: Option<String>,
) {
    let inner = &ticket.inner;
    let settings = &inner.settings;
    let gate = Gate {
        repository: &inner.repository,
        token: settings.token.as_ref(),
        limits: &settings.limits,
        door: door.as_deref(),
        shelf: inner.shelf.as_deref(),
        refuse,
    };
    // A peer that is refused or too slow was told, where that was possible; there is nobody else to tell.
    let Ok(Ok((input, hello))) =
        tokio::time::timeout(settings.limits.handshake, handshake::accept(&mut socket, &peer, gate)).await
    else {
        return;
    };
    let limits = settings.limits.clone();
    let shelf = inner.shelf.clone().filter(|_| hello.shelf);
    let mux = Mux::new(peer, limits, (hello.credit_bytes, 0), Default::default(), hello.known, shelf);
    if let Some((_, slot)) = inner.connections.lock().all.get_mut(&ticket.number) {
        *slot = Some(mux.clone());
    }
    if *inner.leaving.borrow() {
        mux.say_goodbye();
    }
    Driver::new(socket, input, mux, Requests::new(inner.clone()), false).run().await;
}
