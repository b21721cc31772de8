//! Incremental update with a management server and nodes in one process, over real sockets and real stores: pages are
//! visible when they are acknowledged, and stay so through folds, compaction, nodes that go, return, join and leave.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tempfile::TempDir;
use webbase_mgmt_server::{Distribution, ManagementServer, ServerOptions, Settings, Update};
use webbase_node::cycle::message::Removal;
use webbase_node::plan::{LIVE, Status};
use webbase_node::{
    Client, ClientSettings, Cluster, ClusterSettings, Host, HostOptions, Role, StreamRequest,
};
use webbase_storage::{Organization, Page};

/// What readers should find: URL to body.
type Pages = BTreeMap<String, Vec<u8>>;

struct Repository {
    dir: TempDir,
    server: Option<ManagementServer>,
    nodes: BTreeMap<String, Host>,
    organization: Organization,
}

/// Folds run when asked for, and when a node waits for one.
fn settings() -> Settings {
    let fold_ms = 3_600_000;
    Settings { down_after_ms: 1500, resend_ms: 200, lease_ms: 3000, fold_ms, ..Settings::default() }
}

impl Repository {
    async fn start(
        distribution: Distribution,
        replicas: u32,
        organization: Organization,
        nodes: &[&str],
        settings: Settings,
    ) -> (Repository, Cluster) {
        let dir = tempfile::tempdir().unwrap();
        let mut options = ServerOptions::new(dir.path().join("mgmt"), "127.0.0.1:0".parse().unwrap());
        (options.replicas, options.range_bits, options.settings) = (replicas, 4, settings);
        (options.update, options.distribution) = (Update::Incremental, distribution);
        let server = Some(ManagementServer::start(options).await.unwrap());
        let mut repository = Repository { dir, server, nodes: BTreeMap::new(), organization };
        for name in nodes {
            repository.start_node(name).await;
        }
        let cluster = repository.client().await;
        repository.until_whole(&cluster, nodes.len(), replicas).await;
        (repository, cluster)
    }

    fn options(&self, name: &str, role: Role) -> HostOptions {
        let management = self.server.as_ref().unwrap().address();
        let listen = "127.0.0.1:0".parse().unwrap();
        let mut options = HostOptions::new(self.dir.path().join(name), listen, management, role);
        options.organization = self.organization;
        options.heartbeat = Duration::from_millis(100);
        options.storage.segment_bytes = 256 << 10;
        options.storage.buffer_bytes = 1 << 20;
        options
    }

    async fn start_node(&mut self, name: &str) {
        let host = Host::start(self.options(name, Role::Both)).await.unwrap();
        self.nodes.insert(name.to_owned(), host);
    }

    /// Stops a node at once, as a kill would.
    async fn kill(&mut self, name: &str) {
        drop(self.nodes.remove(name).unwrap());
        // The folder is free when its threads have let go of it.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }

    async fn client(&self) -> Cluster {
        Cluster::connect(self.server.as_ref().unwrap().address(), ClusterSettings::default()).await.unwrap()
    }

    async fn node_client(&self, name: &str) -> Client {
        let address = self.nodes[name].address().unwrap();
        Client::connect(address, ClientSettings::default()).await.unwrap()
    }

    async fn until(&self, cluster: &Cluster, what: &str, holds: impl Fn(&Status) -> bool) {
        let waiting = async {
            loop {
                let status = cluster.status().await.unwrap();
                if holds(&status) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(40), waiting).await.is_err() {
            panic!("still waiting until {what}: {:#?}", cluster.status().await.unwrap());
        }
    }

    /// Waits until all nodes serve all they own, and every range has its replicas.
    async fn until_whole(&self, cluster: &Cluster, nodes: usize, replicas: u32) {
        let copies = 16 * replicas;
        self.until(cluster, "all ranges are whole everywhere", |s| {
            s.nodes.len() == nodes && s.nodes.iter().filter_map(|n| n.whole).sum::<u32>() == copies
        })
        .await;
    }
}

fn body(n: usize, version: usize) -> Vec<u8> {
    format!("<p>page {n} version {version}</p>").repeat(1 + n % 50).into_bytes()
}

/// Adds pages `numbers` in a version, and takes note of them. Each is found right away.
async fn add(cluster: &Cluster, pages: &mut Pages, numbers: std::ops::Range<usize>, version: usize) {
    let made: Vec<(String, Vec<u8>)> =
        numbers.map(|n| (format!("http://site{}.example/page/{n}", n % 7), body(n, version))).collect();
    let page = |(url, body)| Page { url, body, fetched_at_ms: 1000 + version as u64, ..Page::default() };
    let batch: Vec<Page<'_>> = made.iter().map(|(url, body)| page((url, body))).collect();
    let added = cluster.add(&batch).await.unwrap();
    assert_eq!(added.all().unwrap(), made.len() as u64);
    let keys: Vec<_> = made.iter().map(|(url, _)| cluster.page_key(url).unwrap()).collect();
    let found = cluster.lookup_many(&keys).await.unwrap();
    for (found, (url, body)) in found.pages.into_iter().zip(&made) {
        let record = found.unwrap().unwrap_or_else(|| panic!("{url} was acknowledged and is not there"));
        assert_eq!(&record.body(cluster.dictionaries()).unwrap()[..], &body[..], "{url}");
    }
    pages.extend(made);
}

/// Lookups and a stream show exactly these pages.
async fn check(cluster: &Cluster, pages: &Pages) {
    for (url, body) in pages.iter().step_by(17) {
        let found = cluster.lookup_url(url).await.unwrap();
        assert_eq!(found.generation, LIVE);
        let record = found.pages.unwrap_or_else(|| panic!("{url} is not there"));
        assert_eq!(&record.body(cluster.dictionaries()).unwrap()[..], &body[..], "{url}");
    }
    let mut found = Pages::new();
    let mut stream = cluster.stream().await.unwrap();
    while let Some(record) = stream.next().await {
        let record = record.unwrap();
        let body = record.body(cluster.dictionaries()).unwrap().to_vec();
        let url = record.get().url().to_owned();
        assert!(found.insert(url.clone(), body).is_none(), "{url} came twice");
    }
    assert_eq!(found.len(), pages.len());
    assert!(found == *pages, "a stream differs");
}

/// Tests that run with pages distributed by their ids, and again with their ranges assigned.
macro_rules! with_both_distributions {
    ($($test:ident),* $(,)?) => {
        mod hash {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(super::Distribution::Hash).await;
            })*
        }
        mod uniform {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(super::Distribution::Uniform).await;
            })*
        }
    };
}

with_both_distributions!(
    pages_are_visible_when_acknowledged_in_every_organization,
    folds_run_by_themselves_and_nobody_notices,
    a_node_that_was_away_serves_only_what_it_has_all_of,
    nodes_join_and_leave_while_pages_come,
    removed_pages_go_with_the_next_fold_and_stay_away,
);

async fn pages_are_visible_when_acknowledged_in_every_organization(distribution: Distribution) {
    for organization in Organization::ALL {
        let (repository, cluster) =
            Repository::start(distribution, 2, organization, &["b1", "b2"], settings()).await;
        assert_eq!(cluster.status().await.unwrap().update, Update::Incremental);
        let mut pages = Pages::new();
        check(&cluster, &pages).await;
        add(&cluster, &mut pages, 0..300, 1).await;
        check(&cluster, &pages).await;
        add(&cluster, &mut pages, 200..400, 2).await;
        cluster.cycle(|_| {}).await.unwrap();
        check(&cluster, &pages).await;
        // Some are now in the generation, some in an epoch, some in both.
        add(&cluster, &mut pages, 350..500, 3).await;
        check(&cluster, &pages).await;
        for name in ["b1", "b2"] {
            repository.node_client(name).await.compact(u64::MAX).await.unwrap();
        }
        check(&cluster, &pages).await;
        cluster.cycle(|_| {}).await.unwrap();
        for name in ["b1", "b2"] {
            repository.node_client(name).await.compact(u64::MAX).await.unwrap();
        }
        check(&cluster, &pages).await;
    }
}

async fn folds_run_by_themselves_and_nobody_notices(distribution: Distribution) {
    let often = Settings { fold_ms: 200, ..settings() };
    let (repository, cluster) =
        Repository::start(distribution, 2, Organization::Log, &["b1", "b2", "b3"], often).await;
    let mut pages = Pages::new();
    let before = cluster.status().await.unwrap().committed;
    let mut rounds = 0;
    while cluster.status().await.unwrap().committed < before + 4 || rounds < 10 {
        rounds += 1;
        add(&cluster, &mut pages, rounds * 20..rounds * 20 + 50, rounds).await;
        check(&cluster, &pages).await;
        assert!(rounds < 10_000, "no folds");
    }
    let quiet = |s: &Status| s.cycle.is_none() && s.serving == s.committed;
    repository.until(&cluster, "the last fold is over", quiet).await;
    check(&cluster, &pages).await;
}

async fn a_node_that_was_away_serves_only_what_it_has_all_of(distribution: Distribution) {
    let (mut repository, cluster) =
        Repository::start(distribution, 2, Organization::Log, &["b1", "b2"], settings()).await;
    let mut pages = Pages::new();
    add(&cluster, &mut pages, 0..200, 1).await;
    cluster.cycle(|_| {}).await.unwrap();
    add(&cluster, &mut pages, 150..300, 2).await;
    repository.kill("b2").await;
    // Adds wait until it is declared down; then the other one goes on alone.
    add(&cluster, &mut pages, 250..400, 3).await;
    check(&cluster, &pages).await;
    let first = repository.nodes["b1"].id();
    repository
        .until(&cluster, "one is alone", |s| s.nodes.iter().all(|n| n.id == first || n.whole == Some(0)))
        .await;
    repository.start_node("b2").await;
    // It takes adds at once, and serves when what it missed has come to it.
    add(&cluster, &mut pages, 350..450, 4).await;
    check(&cluster, &pages).await;
    repository.until_whole(&cluster, 2, 2).await;
    check(&cluster, &pages).await;
    repository.kill("b1").await;
    check(&cluster, &pages).await;
    add(&cluster, &mut pages, 400..500, 5).await;
    check(&cluster, &pages).await;
    // Both away, and the one that lacks something returns first: better no answer than a wrong one.
    repository.until(&cluster, "the second is alone", |s| s.nodes.iter().any(|n| n.whole == Some(0))).await;
    repository.kill("b2").await;
    let down = |s: &Status| s.nodes.iter().all(|n| n.state == webbase_node::plan::NodeState::Down);
    repository.until(&cluster, "both are down", down).await;
    repository.start_node("b1").await;
    repository.until(&cluster, "it is back", |s| !down(s)).await;
    let plan = cluster.management().read_plan().await.unwrap().0;
    assert!(plan.ranges.iter().all(Vec::is_empty), "{plan:?}");
    let add_plan = cluster.management().add_plan().await.unwrap().0;
    assert!(add_plan.ranges.iter().all(Vec::is_empty), "{add_plan:?}");
    repository.start_node("b2").await;
    repository.until_whole(&cluster, 2, 2).await;
    check(&cluster, &pages).await;
}

async fn nodes_join_and_leave_while_pages_come(distribution: Distribution) {
    let (mut repository, cluster) =
        Repository::start(distribution, 2, Organization::Hash, &["b1", "b2"], settings()).await;
    let mut pages = Pages::new();
    add(&cluster, &mut pages, 0..300, 1).await;
    cluster.cycle(|_| {}).await.unwrap();
    add(&cluster, &mut pages, 200..400, 2).await;
    repository.start_node("b3").await;
    let third = repository.nodes["b3"].id();
    for round in 3..40 {
        add(&cluster, &mut pages, round * 10..round * 10 + 30, round).await;
        check(&cluster, &pages).await;
        if cluster.status().await.unwrap().nodes.iter().any(|n| n.id == third && n.whole >= Some(8)) {
            break;
        }
    }
    repository.until_whole(&cluster, 3, 2).await;
    check(&cluster, &pages).await;
    let first = repository.nodes["b1"].id();
    cluster.drain(first).await.unwrap();
    add(&cluster, &mut pages, 500..600, 50).await;
    check(&cluster, &pages).await;
    repository.until(&cluster, "the drained node is gone", |s| s.nodes.iter().all(|n| n.id != first)).await;
    repository.kill("b1").await;
    repository.until_whole(&cluster, 2, 2).await;
    check(&cluster, &pages).await;
    add(&cluster, &mut pages, 550..650, 51).await;
    check(&cluster, &pages).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cursor_goes_on_after_folds_restarts_and_compaction() {
    let (mut repository, cluster) =
        Repository::start(Distribution::Hash, 1, Organization::Log, &["b1"], settings()).await;
    let mut pages = Pages::new();
    add(&cluster, &mut pages, 0..200, 1).await;
    cluster.cycle(|_| {}).await.unwrap();
    add(&cluster, &mut pages, 150..300, 2).await;
    let live = |from: &str| StreamRequest { generation: LIVE, from: from.into(), ..StreamRequest::default() };
    let mut cursors = Vec::new();
    let client = repository.node_client("b1").await;
    let mut reader = client.stream(&live("start")).unwrap();
    let mut order = Vec::new();
    while let Some(record) = reader.next().await {
        order.push(record.unwrap().get().url().to_owned());
        cursors.push(reader.cursor());
    }
    assert_eq!(order.iter().cloned().collect::<BTreeSet<_>>().len(), pages.len());
    assert!(cursors.iter().any(|c| c.starts_with('o')) && cursors.iter().any(|c| c.starts_with('l')));
    // Right away exactly the rest comes.
    for n in [0, 99, 150, 151, 200, 298, 299] {
        let mut rest = Vec::new();
        let mut reader = client.stream(&live(&cursors[n])).unwrap();
        while let Some(record) = reader.next().await {
            rest.push(record.unwrap().get().url().to_owned());
        }
        assert_eq!(rest, order[n + 1..], "from {}", cursors[n]);
    }
    // After folds, a restart and compaction nothing of it is skipped.
    cluster.cycle(|_| {}).await.unwrap();
    add(&cluster, &mut pages, 280..320, 3).await;
    repository.kill("b1").await;
    repository.start_node("b1").await;
    repository.until_whole(&cluster, 1, 1).await;
    cluster.cycle(|_| {}).await.unwrap();
    let client = repository.node_client("b1").await;
    client.compact(u64::MAX).await.unwrap();
    for n in (0..order.len()).step_by(13) {
        let mut rest = BTreeSet::new();
        let mut reader = client.stream(&live(&cursors[n])).unwrap();
        while let Some(record) = reader.next().await {
            let url = record.unwrap().get().url().to_owned();
            assert!(rest.insert(url.clone()), "{url} came twice");
        }
        assert!(order[n + 1..].iter().all(|url| rest.contains(url)), "from {}", cursors[n]);
    }
    check(&cluster, &pages).await;
}

async fn removed_pages_go_with_the_next_fold_and_stay_away(distribution: Distribution) {
    let (_repository, cluster) =
        Repository::start(distribution, 2, Organization::Log, &["b1", "b2"], settings()).await;
    let mut pages = Pages::new();
    add(&cluster, &mut pages, 0..100, 5).await;
    let gone: Vec<String> = pages.keys().take(10).cloned().collect();
    let mut removals = Vec::new();
    for url in &gone {
        let record = cluster.lookup_url(url).await.unwrap().pages.unwrap();
        removals.push(Removal { key: record.get().key(), bound: record.get().version() });
        pages.remove(url);
    }
    cluster.remove(&removals).await.unwrap();
    cluster.cycle(|_| {}).await.unwrap();
    check(&cluster, &pages).await;
    // An old version that comes late is taken, and does not show.
    let old = |url| Page { url, body: b"old", fetched_at_ms: 7, ..Page::default() };
    let batch: Vec<Page<'_>> = gone.iter().map(|url| old(url)).collect();
    cluster.add(&batch).await.unwrap().all().unwrap();
    check(&cluster, &pages).await;
    cluster.cycle(|_| {}).await.unwrap();
    check(&cluster, &pages).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_have_both_roles_and_requests_for_live_pages_need_a_plan() {
    let (repository, cluster) =
        Repository::start(Distribution::Hash, 1, Organization::Log, &["b1", "b2"], settings()).await;
    for role in [Role::Update, Role::Read] {
        let refused = Host::start(repository.options("other", role)).await.err().unwrap();
        assert!(refused.to_string().contains("the role both"), "{refused}");
        std::fs::remove_dir_all(repository.dir.path().join("other")).unwrap();
    }
    let mut pages = Pages::new();
    add(&cluster, &mut pages, 0..20, 1).await;
    // Each page is at one of the nodes; the other one does not say "not found".
    for url in pages.keys() {
        let mut found = 0;
        for name in ["b1", "b2"] {
            match repository.node_client(name).await.lookup_url(LIVE, url).await {
                Ok(page) => found += usize::from(page.is_some()),
                Err(e) => assert!(e.to_string().contains("get a new plan"), "{e}"),
            }
        }
        assert_eq!(found, 1, "{url}");
    }
}
