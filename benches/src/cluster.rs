//! A whole cluster in this process: a management server and nodes, each on a runtime of its own, over loopback.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use webbase_mgmt_server::{ManagementServer, ServerOptions};
use webbase_node::{Cluster, ClusterSettings, Host, HostOptions, Role};
use webbase_storage::{Compression, Organization, Page};

/// Threads of each node's runtime.
const NODE_THREADS: usize = 2;
/// How long leases last. For so long after its start a management server takes every generation for leased, and as only
/// two old ones are kept, a third update would wait for that and not for its work.
const LEASE: Duration = Duration::from_secs(2);
/// Pages that are added at once.
const BATCH_PAGES: usize = 1024;

/// What a cluster is made of.
#[derive(Clone, Copy)]
pub struct ClusterOptions {
    /// Nodes that take new pages.
    pub update_nodes: usize,
    /// Nodes that serve readers.
    pub read_nodes: usize,
    /// Copies of each page, on either side.
    pub replicas: u32,
    /// How update nodes lay out their pages.
    pub update_organization: Organization,
    /// How read nodes do.
    pub read_organization: Organization,
    /// How pages are packed.
    pub compression: Compression,
}

/// A running cluster. Its folder is removed with it.
pub struct TestCluster {
    options: ClusterOptions,
    dir: PathBuf,
    hosts: Vec<(Option<Host>, Option<Runtime>)>,
    server: Option<ManagementServer>,
    management: Option<Runtime>,
}

/// A runtime with so many threads.
pub fn runtime(threads: usize, name: &str) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(threads).thread_name(name).enable_all().build().expect("a runtime")
}

impl TestCluster {
    /// Starts one in a folder, which is emptied before, and waits until all nodes are known.
    pub fn start(dir: &Path, options: ClusterOptions) -> TestCluster {
        let _ = std::fs::remove_dir_all(dir); // not there the first time
        std::fs::create_dir_all(dir).expect("a folder");
        let management = runtime(1, "management");
        let local = "127.0.0.1:0".parse().expect("an address");
        let mut server_options = ServerOptions::new(dir.join("management"), local);
        server_options.replicas = options.replicas;
        server_options.settings.lease_ms = LEASE.as_millis() as u64;
        let server = management.block_on(ManagementServer::start(server_options)).expect("a server");
        let mut hosts = Vec::new();
        for n in 0..options.update_nodes + options.read_nodes {
            let update = n < options.update_nodes;
            let (role, name) = if update { (Role::Update, "update") } else { (Role::Read, "read") };
            let runtime = runtime(NODE_THREADS, name);
            let mut host = HostOptions::new(dir.join(format!("{name}-{n}")), local, server.address(), role);
            host.organization = if update { options.update_organization } else { options.read_organization };
            host.storage.compression = options.compression;
            let host = runtime.block_on(Host::start(host)).expect("a node");
            hosts.push((Some(host), Some(runtime)));
        }
        let cluster = TestCluster {
            options,
            dir: dir.to_owned(),
            hosts,
            server: Some(server),
            management: Some(management),
        };
        let waiting = runtime(1, "waiting");
        waiting.block_on(async {
            let client = cluster.client().await;
            let until = Instant::now() + Duration::from_secs(30);
            loop {
                let status = client.status().await.expect("a status");
                if status.nodes.iter().filter(|n| n.figures.is_some()).count() == cluster.hosts.len() {
                    break;
                }
                assert!(Instant::now() < until, "nodes do not come up: {status:#?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            tokio::time::sleep(LEASE).await;
        });
        cluster
    }

    /// A client with connections of its own, on the caller's runtime.
    pub async fn client(&self) -> Cluster {
        self.client_with(ClusterSettings::default()).await
    }

    /// The same with settings of its own, but for how pages are packed.
    pub async fn client_with(&self, settings: ClusterSettings) -> Cluster {
        let address = self.server.as_ref().expect("a running server").address();
        let settings = ClusterSettings { compression: self.options.compression, ..settings };
        Cluster::connect(address, settings).await.expect("a connection")
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        for (host, runtime) in &mut self.hosts {
            drop(host.take());
            if let Some(runtime) = runtime.take() {
                runtime.shutdown_timeout(Duration::from_secs(5));
            }
        }
        drop(self.server.take());
        if let Some(runtime) = self.management.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
        let _ = std::fs::remove_dir_all(&self.dir); // left-overs hurt nobody: the next start removes them
    }
}

/// Adds pages, all of them acknowledged.
pub async fn add_all(cluster: &Cluster, pages: &[Page<'_>]) {
    for batch in pages.chunks(BATCH_PAGES) {
        let added = cluster.add(batch).await.expect("a plan");
        assert_eq!(added.all().expect("all pages taken"), batch.len() as u64);
    }
}

/// When a cycle came how far, in seconds since it was asked for. What ended between two looks is seen at the second.
pub struct CycleTimes {
    /// Phases of the cycle and, after a colon, what the slowest node was at; when each was first seen, in order.
    pub phases: Vec<(String, f64)>,
    /// Readers are sent to the new generation.
    pub serving_s: f64,
    /// The cycle is over: old epochs are dropped.
    pub over_s: f64,
    /// When it was asked for.
    pub began: Instant,
}

impl CycleTimes {
    /// Seconds from the first sight of each phase to that of the next.
    pub fn split(&self) -> Vec<(&str, f64)> {
        let ends = self.phases.iter().skip(1).map(|(_, at)| *at).chain([self.over_s]);
        self.phases.iter().zip(ends).map(|((name, at), end)| (&**name, end - at)).collect()
    }
}

/// Runs a cycle to its end, looking at it every few milliseconds.
pub async fn run_cycle(cluster: &Cluster) -> CycleTimes {
    let before = cluster.status().await.expect("a status");
    let began = Instant::now();
    let cycle = cluster.management().start_cycle().await.expect("a cycle");
    let mut times = CycleTimes { phases: Vec::new(), serving_s: 0.0, over_s: 0.0, began };
    loop {
        let status = cluster.status().await.expect("a status");
        let now_s = began.elapsed().as_secs_f64();
        if times.serving_s == 0.0 && status.serving > before.serving {
            times.serving_s = now_s;
        }
        match &status.cycle {
            Some((number, phase)) if *number == cycle => {
                let slowest = status.nodes.iter().filter_map(|n| n.progress).map(|p| p.0);
                let slowest = slowest.min_by_key(|phase| *phase as u8);
                let name = match slowest {
                    Some(at) => format!("{phase}: {at:?}"),
                    None => phase.clone(),
                };
                if times.phases.iter().all(|(known, _)| *known != name) {
                    times.phases.push((name, now_s));
                }
            }
            _ if status.last_cycle >= cycle && status.cycle.is_none() => {
                assert!(status.committed > before.committed, "cycle {cycle} was aborted");
                if status.serving > before.serving {
                    times.over_s = now_s;
                    return times;
                }
            }
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
