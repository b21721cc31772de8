//! A repository in one process, over real sockets and real stores, as several tests need it: nodes by name, pages that say what
//! they are, and waiting with a limit.

#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use webbase_mgmt_server::{ManagementServer, ServerOptions, Settings};
use webbase_node::plan::{AddPlan, Status};
use webbase_node::{Client, ClientSettings, Cluster, ClusterSettings, Host, HostOptions, Role};
use webbase_storage::Page;

/// What readers should find: URL to body.
pub type Pages = BTreeMap<String, Vec<u8>>;

/// 2^4 ranges.
pub const RANGES: u32 = 16;

/// Times of tests.
pub fn settings() -> Settings {
    Settings { down_after_ms: 1500, resend_ms: 200, lease_ms: 3000, ..Settings::default() }
}

/// Any free port.
pub fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

type ConfigureServer = Box<dyn Fn(&mut ServerOptions) + Send + Sync>;
type ConfigureNode = Box<dyn Fn(&str, &mut HostOptions) + Send + Sync>;

/// A running repository, in a folder of its own.
pub struct Repository {
    pub dir: TempDir,
    pub server: Option<ManagementServer>,
    pub nodes: BTreeMap<String, Host>,
    configure_server: ConfigureServer,
    configure_node: ConfigureNode,
}

impl Repository {
    /// Starts a server, and nodes one after the other: `u…` are update nodes, `r…` read nodes, `b…` both.
    pub async fn start(
        nodes: &[&str],
        server: impl Fn(&mut ServerOptions) + Send + Sync + 'static,
        node: impl Fn(&str, &mut HostOptions) + Send + Sync + 'static,
    ) -> Repository {
        let mut repository = Repository {
            dir: tempfile::tempdir().unwrap(),
            server: None,
            nodes: BTreeMap::new(),
            configure_server: Box::new(server),
            configure_node: Box::new(node),
        };
        repository.start_server(anywhere()).await;
        for name in nodes {
            repository.start_node(name).await;
        }
        repository
    }

    pub fn folder(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn address(&self) -> SocketAddr {
        self.server.as_ref().unwrap().address()
    }

    pub async fn start_server(&mut self, listen: SocketAddr) {
        let mut options = ServerOptions::new(self.folder("mgmt"), listen);
        (options.range_bits, options.settings) = (RANGES.ilog2() as u8, settings());
        (self.configure_server)(&mut options);
        self.server = Some(ManagementServer::start(options).await.unwrap());
    }

    /// Ends the management server, does something with its folder, and starts it again.
    pub async fn restart_server(&mut self, between: impl FnOnce(PathBuf)) {
        let address = self.address();
        self.server.take().unwrap().shutdown().await.unwrap();
        between(self.folder("mgmt"));
        self.start_server(address).await;
    }

    /// How a node is started.
    pub fn options(&self, name: &str) -> HostOptions {
        let role = match name.chars().next() {
            Some('u') => Role::Update,
            Some('r') => Role::Read,
            _ => Role::Both,
        };
        let mut options = HostOptions::new(self.folder(name), anywhere(), self.address(), role);
        options.heartbeat = Duration::from_millis(100);
        options.storage.segment_bytes = 1 << 20;
        options.storage.buffer_bytes = 1 << 20;
        (self.configure_node)(name, &mut options);
        options
    }

    pub async fn start_node(&mut self, name: &str) {
        let host = Host::start(self.options(name)).await.unwrap();
        self.nodes.insert(name.to_owned(), host);
    }

    /// Stops a node at once, as a kill would.
    pub async fn kill(&mut self, name: &str) {
        drop(self.nodes.remove(name).unwrap());
        // The folder is free when its threads have let go of it.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }

    pub async fn client(&self) -> Cluster {
        Cluster::connect(self.address(), ClusterSettings::default()).await.unwrap()
    }

    /// A connection to one node.
    pub async fn node_client(&self, name: &str) -> Client {
        let address = self.nodes[name].address().unwrap();
        Client::connect(address, ClientSettings::default()).await.unwrap()
    }

    /// Waits until so many nodes are in the table and say how they are.
    pub async fn until_known(&self, cluster: &Cluster, nodes: usize) {
        let known = |s: &Status| s.nodes.iter().filter(|n| n.figures.is_some()).count() == nodes;
        until(cluster, "all nodes are there", known).await;
    }
}

/// Waits until the status is so.
pub async fn until(cluster: &Cluster, what: &str, holds: impl Fn(&Status) -> bool) {
    until_planned(cluster, what, |status, _| holds(status)).await;
}

/// Waits until the status and the plan for adds are so.
pub async fn until_planned(cluster: &Cluster, what: &str, holds: impl Fn(&Status, &AddPlan) -> bool) {
    let waiting = async {
        loop {
            let status = cluster.status().await.unwrap();
            let plan = cluster.management().add_plan().await.unwrap().0;
            if holds(&status, &plan) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(60), waiting).await.is_err() {
        panic!("still waiting until {what}: {:#?}", cluster.status().await.unwrap());
    }
}

pub fn url(n: usize) -> String {
    format!("http://site{}.example/page/{n}", n % 7)
}

/// Pages of these numbers: URL and body.
pub fn made(numbers: Range<usize>, version: usize) -> Vec<(String, Vec<u8>)> {
    let body = |n| format!("<p>page {n} version {version}</p>").repeat(1 + n % 50).into_bytes();
    numbers.map(|n| (url(n), body(n))).collect()
}

/// Adds pages, all of which are acknowledged.
pub async fn add_made(cluster: &Cluster, made: &[(String, Vec<u8>)], version: usize) {
    let fetched_at_ms = 1000 + version as u64;
    let page = |(url, body)| Page { url, body, status: 200, fetched_at_ms, ..Page::default() };
    let batch: Vec<Page<'_>> = made.iter().map(|(url, body)| page((url.as_str(), body.as_slice()))).collect();
    let added = cluster.add(&batch).await.unwrap();
    assert_eq!(added.all().unwrap(), made.len() as u64);
}

/// Adds pages in a version, and takes note of them.
pub async fn add(cluster: &Cluster, pages: &mut Pages, numbers: Range<usize>, version: usize) {
    let made = made(numbers, version);
    add_made(cluster, &made, version).await;
    pages.extend(made);
}

/// Lookups and a stream show exactly these pages, each once.
pub async fn check(cluster: &Cluster, pages: &Pages) {
    for (url, body) in pages.iter().step_by(17) {
        let found = cluster.lookup_url(url).await.unwrap();
        let record =
            found.pages.unwrap_or_else(|| panic!("{url} is not there in generation {}", found.generation));
        assert_eq!(&record.body(cluster.dictionaries()).unwrap()[..], &body[..], "{url}");
    }
    let mut streamed = Pages::new();
    let mut stream = cluster.stream().await.unwrap();
    while let Some(record) = stream.next().await {
        let record = record.unwrap();
        let body = record.body(cluster.dictionaries()).unwrap().to_vec();
        let url = record.get().url().to_owned();
        assert!(streamed.insert(url, body).is_none(), "{} came twice", record.get().url());
    }
    assert_eq!(streamed.len(), pages.len());
    assert!(streamed == *pages, "a stream of generation {} differs", stream.generation());
}
