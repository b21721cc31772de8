//! The URL index of a whole repository, over real sockets and real stores: what it tells is what was added, in SURT order, after
//! cycles, removals, with nodes that die and return, with index files lost and damaged, and of live pages.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use webbase_mgmt_server::{Distribution, ManagementServer, ServerOptions, Settings, Update};
use webbase_node::cycle::message::Removal;
use webbase_node::{Cluster, ClusterSettings, Host, HostOptions, Role};
use webbase_storage::surt::Profile;
use webbase_storage::urls::{UrlQuery, UrlRow};
use webbase_storage::{Organization, Page, PageKey};

/// URL to the time of the version that counts.
type Pages = BTreeMap<String, u64>;

struct Repository {
    dir: TempDir,
    server: ManagementServer,
    nodes: BTreeMap<String, Host>,
}

impl Repository {
    async fn start(
        update: Update,
        distribution: Distribution,
        replicas: u32,
        nodes: &[&str],
    ) -> (Repository, Cluster) {
        let dir = tempfile::tempdir().unwrap();
        let mut options = ServerOptions::new(dir.path().join("mgmt"), "127.0.0.1:0".parse().unwrap());
        let settings = Settings {
            down_after_ms: 1500,
            resend_ms: 200,
            lease_ms: 3000,
            fold_ms: 3_600_000,
            ..Settings::default()
        };
        (options.replicas, options.range_bits, options.settings) = (replicas, 4, settings);
        (options.update, options.distribution) = (update, distribution);
        let server = ManagementServer::start(options).await.unwrap();
        let mut repository = Repository { dir, server, nodes: BTreeMap::new() };
        for name in nodes {
            repository.start_node(name).await;
        }
        let cluster =
            Cluster::connect(repository.server.address(), ClusterSettings::default()).await.unwrap();
        let count = nodes.len();
        until("all nodes are there", async || cluster.status().await.unwrap().nodes.len() == count).await;
        (repository, cluster)
    }

    /// Starts a node; its name's first letter is its role.
    async fn start_node(&mut self, name: &str) {
        let role = match name.chars().next() {
            Some('u') => Role::Update,
            Some('r') => Role::Read,
            _ => Role::Both,
        };
        let listen = "127.0.0.1:0".parse().unwrap();
        let mut options = HostOptions::new(self.folder(name), listen, self.server.address(), role);
        options.organization = Organization::Log;
        options.heartbeat = Duration::from_millis(100);
        options.storage.segment_bytes = 1 << 20;
        self.nodes.insert(name.to_owned(), Host::start(options).await.unwrap());
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Stops a node at once, as a kill would.
    async fn kill(&mut self, name: &str) {
        drop(self.nodes.remove(name).unwrap());
        // The folder is free when its threads have let go of it.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    for _ in 0..600 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("still waiting until {what}");
}

fn url(n: usize) -> String {
    let scheme = if n.is_multiple_of(2) { "http" } else { "https" };
    let host = ["example.org", "sub.example.org", "other.net"][n % 3];
    format!("{scheme}://{host}/Docs/{n}")
}

async fn add(cluster: &Cluster, pages: &mut Pages, numbers: impl Iterator<Item = usize>, at: u64) {
    let urls: Vec<String> = numbers.map(url).collect();
    let page = |url: &'_ String| (url.clone(), format!("body of {url} at {at}"));
    let made: Vec<(String, String)> = urls.iter().map(page).collect();
    let batch: Vec<Page<'_>> = made
        .iter()
        .map(|(url, body)| Page {
            url,
            body: body.as_bytes(),
            status: 200,
            fetched_at_ms: at,
            ..Page::default()
        })
        .collect();
    let added = cluster.add(&batch).await.unwrap();
    assert_eq!(added.all().unwrap(), batch.len() as u64);
    for url in urls {
        let time = pages.entry(url).or_default();
        *time = at.max(*time);
    }
}

async fn rows(cluster: &Cluster, query: UrlQuery) -> webbase_node::Result<Vec<(PageKey, UrlRow)>> {
    let mut reader = cluster.urls(query).await?;
    let mut all = Vec::new();
    while let Some(row) = reader.next().await? {
        all.push(row);
    }
    Ok(all)
}

/// Everything that can be asked is as the map says.
async fn check(cluster: &Cluster, pages: &Pages) {
    let mut expected: Vec<(String, PageKey, String, u64)> = pages
        .iter()
        .map(|(url, at)| (Profile::Ia1.key(url).unwrap(), cluster.page_key(url).unwrap(), url.clone(), *at))
        .collect();
    expected.sort();
    let told = |rows: Vec<(PageKey, UrlRow)>| -> Vec<(String, PageKey, String, u64)> {
        rows.into_iter().map(|(key, row)| (row.surt, key, row.url, row.fetched_at_ms)).collect()
    };
    let all = rows(cluster, UrlQuery::default()).await.unwrap();
    assert_eq!(told(all), expected);
    let down = rows(cluster, UrlQuery { descending: true, ..UrlQuery::default() }).await.unwrap();
    assert_eq!(told(down), expected.iter().rev().cloned().collect::<Vec<_>>());
    for (start, end) in [
        ("org,example)/", "org,example*"),
        ("org,example)/", "org,example-"),
        ("net,other)/docs/1", "net,other)/docs/2"),
        ("zz", "zzz"),
    ] {
        let inside: Vec<_> = expected
            .iter()
            .filter(|(surt, ..)| surt.as_str() >= start && surt.as_str() < end)
            .cloned()
            .collect();
        let query = UrlQuery { start: start.into(), end: Some(end.into()), ..UrlQuery::default() };
        assert_eq!(told(rows(cluster, query.clone()).await.unwrap()), inside, "{start}");
        let count = cluster.url_count(start, Some(end)).await.unwrap().pages;
        assert_eq!((count.rows, count.is_exact), (inside.len() as u64, true), "{start}");
        if let Some((surt, key, ..)) = inside.get(inside.len() / 2) {
            let after = Some(webbase_storage::urls::UrlPlace { surt: surt.clone(), key: *key });
            let rest = told(rows(cluster, UrlQuery { after, ..query }).await.unwrap());
            assert_eq!(rest, inside[inside.len() / 2 + 1..]);
            let cuts = cluster.url_cuts(start, Some(end), 4, 0..4).await.unwrap();
            assert!(cuts.is_sorted() && cuts[0] == start, "{cuts:?}");
        }
    }
}

/// Waits until the index says what it should: after a start it may have to be made.
async fn until_right(cluster: &Cluster, count: usize) {
    until("the index is made", async || {
        rows(cluster, UrlQuery::default()).await.is_ok_and(|rows| rows.len() == count)
    })
    .await;
}

fn index_files(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(folder.join("urls")).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(prefix)).collect()
}

async fn cycles(distribution: Distribution) {
    let nodes = ["u1", "u2", "r1", "r2", "r3"];
    let (mut repository, cluster) = Repository::start(Update::Batch, distribution, 2, &nodes).await;
    let mut pages = Pages::new();
    check(&cluster, &pages).await;
    add(&cluster, &mut pages, 0..900, 1000).await;
    check(&cluster, &Pages::new()).await; // not yet
    cluster.cycle(|_| {}).await.unwrap();
    check(&cluster, &pages).await;
    // New versions, older ones that do not count, new pages, and removed ones.
    add(&cluster, &mut pages, (0..900).step_by(5), 2000).await;
    add(&cluster, &mut pages, (1..900).step_by(5), 500).await;
    add(&cluster, &mut pages, 900..950, 2000).await;
    let gone: Vec<String> = (0..900).step_by(7).map(url).filter(|url| pages[url] < 2000).collect();
    let mut removals = Vec::new();
    for url in &gone {
        let key = cluster.page_key(url).unwrap();
        let bound = cluster.lookup(key).await.unwrap().pages.unwrap().get().version();
        removals.push(Removal { key, bound });
        pages.remove(url);
    }
    cluster.remove(&removals).await.unwrap();
    cluster.cycle(|_| {}).await.unwrap();
    check(&cluster, &pages).await;
    // A node less: the others have its ranges. It comes back with its index lost, then with it damaged.
    repository.kill("r1").await;
    check(&cluster, &pages).await;
    index_files(&repository.folder("r1"), "list-")
        .iter()
        .for_each(|path| std::fs::remove_file(path).unwrap());
    repository.start_node("r1").await;
    until_right(&cluster, pages.len()).await;
    repository.kill("r1").await;
    for path in index_files(&repository.folder("r1"), "run-") {
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0xff;
        std::fs::write(&path, bytes).unwrap();
    }
    repository.start_node("r1").await;
    add(&cluster, &mut pages, 950..960, 3000).await;
    cluster.cycle(|_| {}).await.unwrap();
    until_right(&cluster, pages.len()).await;
    check(&cluster, &pages).await;
    // A new node takes over for one that leaves, by copying.
    repository.start_node("r4").await;
    until("it is there", async || cluster.status().await.unwrap().nodes.len() == 6).await;
    cluster.drain(repository.nodes["r2"].id()).await.unwrap();
    let gone = repository.nodes["r2"].id();
    until("the other left", async || {
        let status = cluster.status().await.unwrap();
        status.nodes.iter().all(|node| node.id != gone) && status.cycle.is_none()
    })
    .await;
    repository.kill("r2").await;
    until_right(&cluster, pages.len()).await;
    check(&cluster, &pages).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_index_follows_cycles_deaths_and_moves() {
    cycles(Distribution::Hash).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn and_where_ranges_are_assigned() {
    cycles(Distribution::Uniform).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_pages_are_in_the_index_when_they_are_acknowledged() {
    let (mut repository, cluster) =
        Repository::start(Update::Incremental, Distribution::Hash, 2, &["n1", "n2"]).await;
    until("pages can be added", async || {
        cluster.status().await.unwrap().nodes.iter().filter_map(|node| node.whole).sum::<u32>() == 32
    })
    .await;
    cluster.refresh().await.unwrap();
    let mut pages = Pages::new();
    add(&cluster, &mut pages, 0..400, 1000).await;
    check(&cluster, &pages).await;
    cluster.cycle(|_| {}).await.unwrap();
    check(&cluster, &pages).await;
    // Over a generation: newer versions, older ones that do not show, new pages.
    add(&cluster, &mut pages, (0..400).step_by(3), 2000).await;
    add(&cluster, &mut pages, (1..400).step_by(3), 500).await;
    add(&cluster, &mut pages, 400..450, 2000).await;
    check(&cluster, &pages).await;
    repository.kill("n1").await;
    until_right(&cluster, pages.len()).await;
    check(&cluster, &pages).await;
    repository.start_node("n1").await;
    until("it is whole again", async || {
        cluster.status().await.unwrap().nodes.iter().filter_map(|node| node.whole).sum::<u32>() == 32
    })
    .await;
    until_right(&cluster, pages.len()).await;
    check(&cluster, &pages).await;
    cluster.cycle(|_| {}).await.unwrap();
    until_right(&cluster, pages.len()).await;
    check(&cluster, &pages).await;
}
