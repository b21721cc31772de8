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
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use webbase_node::plan::{Repository, Update};
use webbase_node::{ClientSettings, Control, MESSAGE_BYTES_MAX, Server, Service, link, plan};

use crate::assigner::Assigner;
use crate::calls;
use crate::database::{Database, Saved};
use crate::error::ServerError;
use crate::hub::{Hub, Uniform};
use crate::rebuild::Rebuild;
use crate::{Distribution, RangeMap, Settings};

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
    /// How pages come by their ranges. Counts when the repository is made.
    pub distribution: Distribution,
    /// How they come to update nodes, if not by their ranges; only with [`Update::Batch`]. Counts when the repository is made.
    pub update_distribution: Option<Distribution>,
    /// Clients are done with what they add in this time. Ranges told before the index was lost may be used for so long; until
    /// then no page that the nodes do not know gets one.
    pub add_limit: Duration,
    /// How nodes are connected to, when the index has to be made anew from their lists.
    pub client: ClientSettings,
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
            distribution: Distribution::Hash,
            update_distribution: None,
            add_limit: Duration::from_secs(60),
            client: ClientSettings::default(),
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
    index: Option<(Assigner, JoinHandle<()>)>,
    hub: JoinHandle<Result<(), ServerError>>,
}

impl ManagementServer {
    /// Opens the folder, goes on from what is there, and listens, on the caller's runtime.
    ///
    /// # Errors
    /// When the folder is in use, damaged or of another version, or the address is not free or not protected.
    pub async fn start(options: ServerOptions) -> Result<ManagementServer, ServerError> {
        let ServerOptions {
            dir,
            listen,
            mut settings,
            replicas,
            range_bits,
            distribution,
            update_distribution,
            update,
            add_limit,
            client,
            wire,
        } = options;
        settings.changes_max = settings.changes_max.min(CHANGES_MAX);
        let map = RangeMap::distributed(range_bits, distribution)
            .with_update(update_distribution.unwrap_or(distribution));
        if update == Update::Incremental && map.update_distribution() != distribution {
            let what =
                "with incremental update the same nodes take and serve pages: they have one distribution";
            return Err(ServerError::Options { what });
        }
        let opened = tokio::task::spawn_blocking(move || {
            let (database, saved) = Database::open(&dir, map, replicas, update)?;
            let uniform = match saved.repository.map.is_uniform() {
                true => Some(open_page_index(&dir, &saved)?),
                false => None,
            };
            Ok::<_, ServerError>((database, saved, uniform))
        });
        let opened = opened.await.map_err(|e| ServerError::Internal { what: e.to_string() })?;
        let (database, saved, uniform) = opened?;
        let repository = saved.repository;
        let (inputs, queue) = mpsc::channel(QUEUE_MAX);
        let (questions, asked) = mpsc::channel(QUEUE_MAX);
        let assigner = uniform.as_ref().map(|uniform| uniform.assigner.clone());
        let index = assigner.clone().map(|assigner| {
            let fingerprint = repository.repository_key().fingerprint();
            let client = ClientSettings { repository: Some(fingerprint), ..client };
            let questions = questions.downgrade();
            let map = repository.map;
            let rebuild = Rebuild { assigner: assigner.clone(), questions, client, map, add_limit };
            (assigner, tokio::spawn(rebuild.run()))
        });
        let accept = move |topic: &str, control: Control| match topic {
            link::TOPIC => drop(tokio::spawn(calls::node(control, inputs.clone()))),
            plan::TOPIC => drop(tokio::spawn(calls::client(control, questions.clone(), assigner.clone()))),
            _ => drop(control),
        };
        let server = Server::start(listen, Service::default().with_control(Arc::new(accept)), wire).await?;
        let (stop, stopped) = oneshot::channel();
        let hub = tokio::spawn(Hub::new(database, saved, settings, uniform).run(queue, asked, stopped));
        let address = server.address();
        Ok(ManagementServer { server: Some(server), address, repository, stop: Some(stop), index, hub })
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
        if let Some((assigner, rebuild)) = &self.index {
            rebuild.abort();
            assigner.stop().await;
        }
        ended
    }
}

impl Drop for ManagementServer {
    fn drop(&mut self) {
        self.hub.abort();
        if let Some((assigner, rebuild)) = &self.index {
            rebuild.abort();
            assigner.let_go();
        }
    }
}

/// The index of a repository with the distribution `uniform`.
fn open_page_index(dir: &Path, saved: &Saved) -> Result<Uniform, ServerError> {
    let (steering, steered) = watch::channel(Arc::default());
    let (fails, failed) = mpsc::channel(1);
    // Without nodes there was nobody to add a page to.
    let no_pages_yet = saved.state.nodes.is_empty() && saved.state.removed.is_empty();
    let assigner = Assigner::start(dir, &saved.repository, no_pages_yet, steered, fails)?;
    Ok(Uniform { assigner, steering, failed, plan_version: None })
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
