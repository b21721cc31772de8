//! A whole repository in one process: management server, update and read nodes, and the gateway.
//!
//! ```text
//!   DIR/mgmt/        the management server
//!   DIR/update-N/    update nodes
//!   DIR/read-N/      read nodes
//!   DIR/drained-…    what is left of nodes that were drained: nothing needs it any more
//! ```
//!
//! The parts talk over loopback sockets, as those of a real repository do, but for lookups and adds: the gateway looks pages up in the
//! read nodes directly, and hands new ones to the update nodes. A folder of a node that is there is started, whatever number was asked for: its pages are needed.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use webbase_mgmt_server::{ManagementServer, ServerOptions};
use webbase_node::cycle::message::NodeId;
use webbase_node::plan::NodeState;
use webbase_node::{Cluster, ClusterSettings, Host, HostOptions, Role};
use webbase_storage::Compression;

use crate::gateway::{self, Running, Starter};

/// How long the parts may take to know each other.
const START_LIMIT: Duration = Duration::from_secs(60);
/// A node that the management server has not taken in by then was drained.
const JOIN_LIMIT: Duration = Duration::from_secs(10);
/// Between two looks whether a node has left.
const TIDY: Duration = Duration::from_millis(500);
/// Between two looks whether they do.
const LOOK: Duration = Duration::from_millis(20);
/// How long requests to nodes may take when everything ends.
const END_LIMIT: Duration = Duration::from_secs(20);
/// A sign of life goes out so often: this is also how often `status` has new figures.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// What is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder; made if it is not there.
    pub dir: PathBuf,
    /// How many update nodes there are.
    pub update_nodes: u32,
    /// How many read nodes there are.
    pub read_nodes: u32,
    /// On how many nodes of each role a page lies. Counts when the repository is made.
    pub replicas: u32,
    /// The pages are cut into two to the power of this ranges. Counts when the repository is made.
    pub range_bits: u8,
    /// How pages are packed when they are added.
    pub compression: Compression,
    /// Where the management server listens.
    pub listen: SocketAddr,
    /// The gateway.
    pub gateway: gateway::Settings,
}

impl Options {
    /// One update node and one read node, and a gateway on a port that the system chooses.
    pub fn new(dir: impl Into<PathBuf>) -> Options {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Options {
            dir: dir.into(),
            update_nodes: 1,
            read_nodes: 1,
            replicas: 1,
            range_bits: 8,
            compression: Compression::default(),
            listen: any,
            gateway: gateway::Settings::on(any),
        }
    }
}

/// A running repository. Dropping it is like a kill: what was acknowledged is durable.
pub struct Embedded {
    gateway: Running,
    nodes: Arc<Nodes>,
    tidying: JoinHandle<()>,
    server: ManagementServer,
}

/// The nodes of this process, which come and go.
struct Nodes {
    dir: PathBuf,
    management: SocketAddr,
    cluster: Cluster,
    running: Mutex<Vec<RunningNode>>,
}

/// A node and its folder.
struct RunningNode {
    folder: PathBuf,
    host: Host,
    /// Whether the management server has it in its table. Once it has had it and has it no more, the node has left.
    known: bool,
}

impl Embedded {
    /// Starts everything, and waits until pages can be added and read.
    ///
    /// # Errors
    /// When the folder is in use or damaged, an address is not free, or the parts do not find each other.
    pub async fn start(options: Options) -> Result<Embedded> {
        options.gateway.check()?; // before anything runs that would have to be ended again
        let dir = &options.dir;
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let mut to_start = ServerOptions::new(dir.join("mgmt"), options.listen);
        to_start.replicas = options.replicas;
        to_start.range_bits = options.range_bits;
        // Everybody here sees at once who is gone; nobody else has to be waited for.
        let server = ManagementServer::start(to_start).await;
        let server = server.with_context(|| format!("cannot run in {}", dir.join("mgmt").display()))?;
        let settings = ClusterSettings { compression: options.compression, ..ClusterSettings::default() };
        let cluster = Cluster::connect(server.address(), settings).await?;
        let nodes = Arc::new(Nodes {
            dir: dir.clone(),
            management: server.address(),
            cluster,
            running: Mutex::new(Vec::new()),
        });
        match Embedded::serve(&nodes, &options).await {
            Ok(gateway) => {
                let tidying = tokio::spawn(nodes.clone().tidy());
                Ok(Embedded { gateway, nodes, tidying, server })
            }
            // Whoever tries again finds the folder free.
            Err(e) => {
                nodes.end().await;
                if let Err(e) = server.shutdown().await {
                    tracing::warn!("the management server did not end in good order: {e}");
                }
                Err(e)
            }
        }
    }

    /// Starts the nodes and the gateway.
    async fn serve(nodes: &Arc<Nodes>, options: &Options) -> Result<Running> {
        for (role, wanted) in [(Role::Update, options.update_nodes), (Role::Read, options.read_nodes)] {
            for folder in folders(&nodes.dir, role_name(role), wanted)? {
                nodes.start(folder, role).await?;
            }
        }
        nodes.settle().await?;
        let mut settings = options.gateway.clone();
        let starting = nodes.clone();
        settings.starter = Some(Starter::new(move |role| {
            let nodes = starting.clone();
            async move { nodes.add(role).await }
        }));
        gateway::start(nodes.cluster.clone(), settings).await
    }

    /// Where the gateway listens.
    pub fn http(&self) -> SocketAddr {
        self.gateway.address()
    }

    /// Where the management server listens.
    pub fn management(&self) -> SocketAddr {
        self.server.address()
    }

    /// The repository.
    pub fn cluster(&self) -> &Cluster {
        &self.nodes.cluster
    }

    /// Waits until the management server ends by itself, which it does only when it cannot write.
    ///
    /// # Errors
    /// Why it ended.
    pub async fn ended(&mut self) -> Result<()> {
        self.server.ended().await.context("the management server cannot go on")
    }

    /// Ends in good order: the gateway first, the management server last.
    ///
    /// # Errors
    /// When something was cut off, or is not tidy.
    pub async fn shutdown(self) -> Result<()> {
        self.gateway.shutdown().await;
        self.tidying.abort();
        let tidy = self.nodes.end().await;
        self.server.shutdown().await.context("the management server did not end in good order")?;
        if !tidy {
            bail!("requests to nodes were cut off, or their stores are not tidy");
        }
        Ok(())
    }
}

impl Nodes {
    async fn start(&self, folder: PathBuf, role: Role) -> Result<NodeId> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut options = HostOptions::new(folder.clone(), any, self.management, role);
        options.heartbeat = HEARTBEAT;
        let host =
            Host::start(options).await.with_context(|| format!("cannot run in {}", folder.display()))?;
        let id = host.id();
        if let Some(near) = host.near() {
            self.cluster.reach(id, near);
        }
        self.running.lock().await.push(RunningNode { folder, host, known: false });
        Ok(id)
    }

    /// Ends all of them, and says whether in good order.
    async fn end(&self) -> bool {
        let mut tidy = true;
        for node in self.running.lock().await.drain(..) {
            tidy &= node.host.shutdown(END_LIMIT).await;
        }
        tidy
    }

    /// Starts one more, in a folder of its own.
    async fn add(&self, role: Role) -> Result<NodeId> {
        let name = role_name(role);
        let there = folders(&self.dir, name, 0)?;
        let mut free = (1..).map(|number| self.dir.join(format!("{name}-{number}")));
        let folder = free.find(|folder| !there.contains(folder)).context("there is no number left")?;
        self.start(folder, role).await
    }

    /// Waits until all nodes are there and stand where they should. One that was drained before the last end is not waited for.
    async fn settle(&self) -> Result<()> {
        let began = Instant::now();
        loop {
            let status = self.cluster.status().await?;
            let mut waiting = Vec::new();
            for node in self.running.lock().await.iter_mut() {
                match status.nodes.iter().find(|there| there.id == node.host.id()) {
                    None if began.elapsed() > JOIN_LIMIT => node.known = true,
                    None => waiting.push(node.folder.clone()),
                    Some(there) => {
                        node.known = true;
                        let up = there.state != NodeState::Down && there.address.is_some();
                        if !up || there.read && there.generation != Some(status.committed) {
                            waiting.push(node.folder.clone());
                        }
                    }
                }
            }
            if waiting.is_empty() && status.serving == status.committed {
                return Ok(());
            }
            if began.elapsed() > START_LIMIT {
                bail!("nodes did not come up within {START_LIMIT:?}: {waiting:?}");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Ends nodes that were drained, and puts their folders aside.
    async fn tidy(self: Arc<Nodes>) {
        loop {
            tokio::time::sleep(TIDY).await;
            // Who does not answer now will next time.
            let Ok(status) = self.cluster.status().await else { continue };
            let mut running = self.running.lock().await;
            for node in running.iter_mut() {
                node.known |= status.nodes.iter().any(|there| there.id == node.host.id());
            }
            let has_left = |node: &mut RunningNode| {
                node.known && !status.nodes.iter().any(|there| there.id == node.host.id())
            };
            let left: Vec<RunningNode> = running.extract_if(.., has_left).collect();
            drop(running);
            for node in left {
                let folder = node.folder;
                if !node.host.shutdown(END_LIMIT).await {
                    tracing::warn!("the drained node in {} was cut off", folder.display());
                }
                if let Err(e) = put_aside(&folder) {
                    tracing::error!("{} was drained, but cannot be put aside: {e}", folder.display());
                }
            }
        }
    }
}

/// Gives the folder of a node that has left a name under which it is not started again.
fn put_aside(folder: &Path) -> std::io::Result<()> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut free = (1..).map(|number| folder.with_file_name(format!("drained-{name}.{number}")));
    let aside = free.find(|aside| !aside.exists()).unwrap_or_default();
    std::fs::rename(folder, aside)
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Update => "update",
        Role::Read => "read",
        Role::Both => "both",
    }
}

/// The folders of the nodes of a role: as many as wanted, and all that are there.
fn folders(dir: &Path, role: &str, wanted: u32) -> Result<Vec<PathBuf>> {
    let mut all: Vec<u32> = (1..=wanted).collect();
    let entries = std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    for entry in entries {
        let name = entry.with_context(|| format!("cannot read {}", dir.display()))?.file_name();
        let number: Option<u32> =
            name.to_str().and_then(|name| name.strip_prefix(role)?.strip_prefix('-')?.parse().ok());
        all.extend(number.filter(|number| *number > wanted));
    }
    all.sort_unstable();
    Ok(all.into_iter().map(|number| dir.join(format!("{role}-{number}"))).collect())
}
