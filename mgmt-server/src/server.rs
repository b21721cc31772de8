//! The management server as a server: the [`crate::Coordinator`] behind a TCP port, on a folder.
//!
//! ```text
//!   node ──control call──▶ calls::node   ─┐                     ┌─▶ Database::commit (blocking thread, one at a time)
//!   client ─control call─▶ calls::client ─┴─ bounded queue ─▶ Hub ◀┘ Persisted
//!                                             outboxes  ◀─────┘  the only owner of the Coordinator
//! ```
//!
//! Everything is in the order of the queue. A message for a node that is not connected, or takes nothing, is dropped: the
//! machine says it again.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use webbase_node::plan::{Repository, Update};
use webbase_node::{Control, MESSAGE_BYTES_MAX, Server, Service, link, plan};

use crate::Settings;
use crate::calls;
use crate::database::Database;
use crate::error::ServerError;
use crate::hub::Hub;

/// Messages of all nodes and clients that wait for the hub; more wait in their connections.
const QUEUE_MAX: usize = 1024;
/// A cycle's removals and new deadlines go to a node in one message: of each so many fit.
const CHANGES_MAX: usize = 150_000;
const _: () = assert!(CHANGES_MAX * (45 + 35) < MESSAGE_BYTES_MAX - (1 << 20));
/// How long connections may take to end.
const SHUTDOWN: Duration = Duration::from_secs(2);

/// How a management server is started.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Its folder; made, with a new repository, if there is nothing.
    pub dir: PathBuf,
    /// Where to listen.
    pub listen: SocketAddr,
    /// Times and limits of the coordinator. At most 150 000 removals and as many new deadlines go into one cycle.
    pub settings: Settings,
    /// Nodes for each range, of each role. Counts when the repository is made.
    pub replicas: u32,
    /// The id space is cut into two to the power of this ranges, at most 2^16. Counts when the repository is made.
    pub range_bits: u8,
    /// How pages get to readers. Counts when the repository is made.
    pub update: Update,
    /// Token, certificates and limits of connections.
    pub wire: webbase_node::Settings,
}

impl ServerOptions {
    /// The defaults: 1024 ranges, two replicas, connections as the node crate has them.
    pub fn new(dir: impl Into<PathBuf>, listen: SocketAddr) -> ServerOptions {
        let mut wire = webbase_node::Settings { short_threads: 1, long_threads: 1, ..Default::default() };
        wire.limits.item_bytes_max = MESSAGE_BYTES_MAX as u64;
        ServerOptions {
            dir: dir.into(),
            listen,
            settings: Settings::default(),
            replicas: 2,
            range_bits: 10,
            update: Update::Batch,
            wire,
        }
    }
}

/// A running management server. Dropping it is like a kill: nothing is lost but what was on its way.
pub struct ManagementServer {
    server: Option<Server>,
    address: SocketAddr,
    repository: Repository,
    stop: Option<oneshot::Sender<()>>,
    hub: JoinHandle<Result<(), ServerError>>,
}

impl ManagementServer {
    /// Opens the folder, goes on from what is there, and listens, on the caller's runtime.
    ///
    /// # Errors
    /// When the folder is in use, damaged or of another version, or the address is not free or not protected.
    pub async fn start(options: ServerOptions) -> Result<ManagementServer, ServerError> {
        let ServerOptions { dir, listen, mut settings, replicas, range_bits, update, wire } = options;
        settings.changes_max = settings.changes_max.min(CHANGES_MAX);
        let opening = move || Database::open(&dir, range_bits, replicas, update);
        let opened = tokio::task::spawn_blocking(opening).await;
        let (database, saved) = opened.map_err(|e| ServerError::Internal { what: e.to_string() })??;
        let repository = saved.repository;
        let (inputs, queue) = mpsc::channel(QUEUE_MAX);
        let accept = move |topic: &str, control: Control| match topic {
            link::TOPIC => drop(tokio::spawn(calls::node(control, inputs.clone()))),
            plan::TOPIC => drop(tokio::spawn(calls::client(control, inputs.clone()))),
            _ => drop(control),
        };
        let server = Server::start(listen, Service::default().with_control(Arc::new(accept)), wire).await?;
        let (stop, stopped) = oneshot::channel();
        let hub = tokio::spawn(Hub::new(database, saved, settings).run(queue, stopped));
        let address = server.address();
        Ok(ManagementServer { server: Some(server), address, repository, stop: Some(stop), hub })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What the repository is.
    pub fn repository(&self) -> Repository {
        self.repository
    }

    /// Waits until the server ends by itself, which it does only when it cannot write.
    ///
    /// # Errors
    /// Why it ended.
    pub async fn ended(&mut self) -> Result<(), ServerError> {
        match (&mut self.hub).await {
            Ok(result) => result,
            Err(e) => Err(ServerError::Internal { what: e.to_string() }),
        }
    }

    /// Ends in good order: finishes what is being written, ends all calls, and lets the folder go.
    ///
    /// # Errors
    /// When the server had ended before, or what was being written failed.
    pub async fn shutdown(mut self) -> Result<(), ServerError> {
        if let Some(stop) = self.stop.take() {
            // If nobody hears it, the hub has ended already and says why.
            let _ = stop.send(());
        }
        let ended = self.ended().await;
        if let Some(server) = self.server.take() {
            server.shutdown(SHUTDOWN).await;
        }
        ended
    }
}

impl Drop for ManagementServer {
    fn drop(&mut self) {
        self.hub.abort();
    }
}

impl std::fmt::Debug for ManagementServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ManagementServer({})", self.address)
    }
}

/// Milliseconds that never go back within a run: what the coordinator takes for the time.
pub(crate) struct Clock {
    base_ms: u64,
    started: tokio::time::Instant,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let base_ms = since_1970.map_or(0, |d| d.as_millis() as u64);
        Clock { base_ms, started: tokio::time::Instant::now() }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.base_ms + self.started.elapsed().as_millis() as u64
    }
}
