//! A whole repository in one process: management server, update and read nodes, and the gateway.
//!
//! ```text
//!   DIR/mgmt/        the management server
//!   DIR/update-N/    update nodes
//!   DIR/read-N/      read nodes
//! ```
//!
//! The parts talk over loopback sockets, as those of a real repository do, but for lookups: the gateway looks pages up in the
//! read nodes directly. A folder of a node that is there is started, whatever number was asked for: its pages are needed.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use webbase_mgmt_server::{ManagementServer, ServerOptions};
use webbase_node::plan::NodeState;
use webbase_node::{Cluster, ClusterSettings, Host, HostOptions, Role};
use webbase_storage::Compression;

use crate::gateway::{self, Running};

/// How long the parts may take to know each other.
const START_LIMIT: Duration = Duration::from_secs(60);
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
    cluster: Cluster,
    nodes: Vec<Host>,
    server: ManagementServer,
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
        let mut nodes = Vec::new();
        for (name, role, wanted) in
            [("update", Role::Update, options.update_nodes), ("read", Role::Read, options.read_nodes)]
        {
            for folder in folders(dir, name, wanted)? {
                nodes.push(start_node(folder, role, &server).await?);
            }
        }
        let settings = ClusterSettings { compression: options.compression, ..ClusterSettings::default() };
        let cluster = Cluster::connect(server.address(), settings).await?;
        for node in &nodes {
            cluster.reach(node.id(), node.pages());
        }
        settle(&cluster, nodes.len()).await?;
        let gateway = gateway::start(cluster.clone(), options.gateway).await?;
        Ok(Embedded { gateway, cluster, nodes, server })
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
        &self.cluster
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
        drop(self.cluster);
        let mut tidy = true;
        for node in self.nodes {
            tidy &= node.shutdown(END_LIMIT).await;
        }
        self.server.shutdown().await.context("the management server did not end in good order")?;
        if !tidy {
            bail!("requests to nodes were cut off, or their stores are not tidy");
        }
        Ok(())
    }
}

async fn start_node(folder: PathBuf, role: Role, server: &ManagementServer) -> Result<Host> {
    let shown = folder.display().to_string();
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut options = HostOptions::new(folder, any, server.address(), role);
    options.heartbeat = HEARTBEAT;
    Host::start(options).await.with_context(|| format!("cannot run in {shown}"))
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

/// Waits until all nodes are there and stand where they should.
async fn settle(cluster: &Cluster, count: usize) -> Result<()> {
    let waiting = async {
        loop {
            let status = cluster.status().await?;
            let up = status.nodes.iter().filter(|node| {
                let there = node.state != NodeState::Down && node.address.is_some();
                there && (!node.read || node.generation == Some(status.committed))
            });
            if up.count() >= count && status.serving == status.committed {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    match tokio::time::timeout(START_LIMIT, waiting).await {
        Ok(settled) => settled,
        Err(_) => {
            let status = cluster.status().await?;
            bail!("the nodes did not come up within {START_LIMIT:?}: {:?}", status.nodes)
        }
    }
}
