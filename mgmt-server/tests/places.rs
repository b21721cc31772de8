//! Places in streams that nodes share: a stream that is interrupted at one node goes on at another, exactly behind the last
//! page, without remembering pages; also at a node that was compacted, copied, rolled back or away for two generations. A
//! cursor is a line of text, and another client goes on from it while the generation is held. All of it with pages
//! distributed by their ids, and again with their ranges assigned.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use tempfile::TempDir;
use webbase_mgmt_server::{Distribution, ManagementServer, ServerOptions, Settings};
use webbase_node::cycle::message::Removal;
use webbase_node::plan::{ReadPlan, Status};
use webbase_node::{
    Client, ClientSettings, Cluster, ClusterSettings, ClusterStream, Host, HostOptions, NodeError, Role,
    StreamCursor,
};
use webbase_storage::{Compression, Organization, Page, Version};

const BYTES: usize = 2500;

struct Repository {
    dir: TempDir,
    server: ManagementServer,
    nodes: BTreeMap<String, Host>,
    /// What the newest generation has.
    pages: BTreeSet<String>,
}

impl Repository {
    /// Two update nodes, and read nodes of these organizations: r1, r2…
    async fn start(distribution: Distribution, read: &[Organization]) -> Repository {
        let dir = tempfile::tempdir().unwrap();
        let mut options = ServerOptions::new(dir.path().join("mgmt"), "127.0.0.1:0".parse().unwrap());
        let settings =
            Settings { down_after_ms: 1000, resend_ms: 200, lease_ms: 2000, ..Settings::default() };
        (options.replicas, options.range_bits, options.settings) = (2, 4, settings);
        options.distribution = distribution;
        let server = ManagementServer::start(options).await.unwrap();
        let mut repository = Repository { dir, server, nodes: BTreeMap::new(), pages: BTreeSet::new() };
        repository.start_node("u1", Organization::Log).await;
        for (n, organization) in read.iter().enumerate() {
            repository.start_node(&format!("r{}", n + 1), *organization).await;
        }
        let count = read.len() + 1;
        repository.until("all nodes are there", |s| s.nodes.len() == count).await;
        repository
    }

    async fn start_node(&mut self, name: &str, organization: Organization) {
        let role = if name.starts_with('u') { Role::Update } else { Role::Read };
        let listen = "127.0.0.1:0".parse().unwrap();
        let mut options = HostOptions::new(self.dir.path().join(name), listen, self.server.address(), role);
        options.organization = organization;
        options.heartbeat = Duration::from_millis(100);
        options.storage.segment_bytes = 256 << 10;
        options.storage.buffer_bytes = 1 << 20;
        self.nodes.insert(name.to_owned(), Host::start(options).await.unwrap());
    }

    /// Stops a node at once, as a kill would, and waits until it is known to be down.
    async fn kill(&mut self, name: &str) {
        let host = self.nodes.remove(name).unwrap();
        let id = host.id();
        drop(host);
        let down = |plan: &ReadPlan| plan.ranges.iter().all(|nodes| !nodes.contains(&id));
        self.plan_until("a dead node is out of the plan", down).await;
    }

    /// A new client that remembers no pages.
    async fn client(&self) -> Cluster {
        let mut settings = ClusterSettings {
            remembered_max: 0,
            queue_bytes: 32 << 10,
            read_limit: Duration::from_secs(10),
            compression: Compression::None,
            ..ClusterSettings::default()
        };
        settings.client.limits.credit_bytes = 512 << 10;
        Cluster::connect(self.server.address(), settings).await.unwrap()
    }

    async fn until(&self, what: &str, holds: impl Fn(&Status) -> bool) {
        let cluster = self.client().await;
        let end = std::time::Instant::now() + Duration::from_secs(60);
        loop {
            let status = cluster.status().await.unwrap();
            if holds(&status) {
                return;
            }
            assert!(std::time::Instant::now() < end, "still waiting until {what}: {status:#?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn plan_until(&self, what: &str, holds: impl Fn(&ReadPlan) -> bool) {
        let cluster = self.client().await;
        let end = std::time::Instant::now() + Duration::from_secs(60);
        loop {
            let (plan, _) = cluster.management().read_plan().await.unwrap();
            if holds(&plan) {
                return;
            }
            assert!(std::time::Instant::now() < end, "still waiting until {what}: {plan:#?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until these nodes, and no others, have all ranges of the newest generation.
    async fn all_at(&self, names: &[&str]) {
        let ids: Vec<_> = names.iter().map(|name| self.nodes[*name].id()).collect();
        let all = |plan: &ReadPlan| {
            plan.ranges
                .iter()
                .all(|nodes| nodes.len() == ids.len() && ids.iter().all(|id| nodes.contains(id)))
        };
        self.plan_until(&format!("{names:?} have everything"), all).await;
        self.until("nothing goes on", |s| s.serving == s.committed && s.cycle.is_none()).await;
    }

    async fn add(&mut self, pages: Range<usize>, version: u64) {
        let texts: Vec<(String, Vec<u8>)> = pages.map(|n| (url(n), body(n, version))).collect();
        let batch: Vec<Page<'_>> = texts
            .iter()
            .map(|(url, body)| Page { url, body, fetched_at_ms: 1000 + version, ..Page::default() })
            .collect();
        let added = self.client().await.add(&batch).await.unwrap();
        assert_eq!(added.all().unwrap(), texts.len() as u64);
        self.pages.extend(texts.into_iter().map(|(url, _)| url));
    }

    /// Three generations: pages of different arrivals, superseded ones, removed ones.
    async fn three_generations(&mut self) {
        self.add(0..500, 1).await;
        self.cycle().await;
        self.add(300..800, 2).await;
        self.cycle().await;
        self.add(0..100, 3).await;
        let cluster = self.client().await;
        let bound = Version { fetched_at_ms: 2000, epoch: u32::MAX, digest: u64::MAX };
        let gone: Vec<String> = (200..230).chain(700..720).map(url).collect();
        let removals = gone.iter().map(|url| Removal { key: cluster.page_key(url).unwrap(), bound });
        cluster.remove(&removals.collect::<Vec<_>>()).await.unwrap();
        self.pages.retain(|url| !gone.contains(url));
        self.cycle().await;
    }

    async fn cycle(&self) {
        self.client().await.cycle(|_| {}).await.unwrap();
    }

    /// Streams everything, with a cursor behind every so many pages.
    async fn stream_with_cursors(&self) -> Vec<(BTreeSet<String>, String)> {
        let cluster = self.client().await;
        let mut stream = cluster.stream().await.unwrap();
        let (mut taken, mut cursors) = (BTreeSet::new(), Vec::new());
        loop {
            if taken.len().is_multiple_of(83) {
                let cursor = stream.cursor().unwrap().to_string();
                assert!(cursor.len() < 2000, "{} bytes: {cursor}", cursor.len());
                cursors.push((taken.clone(), cursor));
            }
            if !take(&mut stream, &mut taken).await {
                break;
            }
        }
        assert!(taken == self.pages, "{} of {}", taken.len(), self.pages.len());
        cursors.push((taken, stream.cursor().unwrap().to_string()));
        cursors
    }

    /// From each cursor exactly what was not taken follows.
    async fn resume_all(&self, cursors: &[(BTreeSet<String>, String)]) {
        for (taken, cursor) in cursors {
            let cluster = self.client().await;
            let cursor: StreamCursor = cursor.parse().unwrap();
            let mut stream = cluster.resume(&cursor).await.unwrap();
            let mut rest = BTreeSet::new();
            while take(&mut stream, &mut rest).await {}
            assert!(rest.is_disjoint(taken), "{} pages came again", rest.intersection(taken).count());
            assert_eq!(rest.len() + taken.len(), self.pages.len());
        }
    }
}

fn url(n: usize) -> String {
    format!("http://site{}.example/page/{n}", n % 7)
}

/// Bytes that do not pack.
fn body(n: usize, version: u64) -> Vec<u8> {
    let mut word = (n as u64) << 32 | version | 1 << 63;
    let mut out = Vec::with_capacity(BYTES + 8);
    while out.len() < BYTES {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        out.extend_from_slice(&(word ^ word >> 29).to_le_bytes());
    }
    out
}

/// Takes a page; false at the end.
async fn take(stream: &mut ClusterStream, taken: &mut BTreeSet<String>) -> bool {
    match stream.next().await {
        Some(record) => {
            let url = record.unwrap().get().url().to_owned();
            assert!(taken.insert(url.clone()), "{url} came twice");
            true
        }
        None => false,
    }
}

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
    a_log_goes_on_where_another_one_stopped,
    a_copy_keeps_places,
    a_node_that_missed_two_generations_or_rolled_one_back_has_the_same_places,
    places_by_key_are_good_everywhere_and_others_where_the_order_is_the_same,
    a_generation_that_is_gone_is_said_to_be,
    a_cursor_is_good_while_its_generation_is_held_and_goes_on_in_the_next,
);

async fn a_log_goes_on_where_another_one_stopped(distribution: Distribution) {
    let mut repository = Repository::start(distribution, &[Organization::Log, Organization::Log]).await;
    repository.three_generations().await;
    repository.all_at(&["r1", "r2"]).await;
    // In the middle of a stream.
    let cluster = repository.client().await;
    let mut stream = cluster.stream().await.unwrap();
    let mut taken = BTreeSet::new();
    while take(&mut stream, &mut taken).await {
        if taken.len() == 60 {
            drop(repository.nodes.remove("r1").unwrap());
        }
    }
    assert!(taken == repository.pages, "{} of {}", taken.len(), repository.pages.len());
    drop(stream);
    // With another client: what r2 told is good at r1, and the other way round.
    let cursors = repository.stream_with_cursors().await;
    repository.start_node("r1", Organization::Log).await;
    repository.all_at(&["r1", "r2"]).await;
    repository.kill("r2").await;
    repository.resume_all(&cursors).await;
    let cursors = repository.stream_with_cursors().await;
    repository.start_node("r2", Organization::Log).await;
    repository.all_at(&["r1", "r2"]).await;
    repository.resume_all(&cursors).await;
    // Compaction keeps places.
    let client =
        Client::connect(repository.nodes["r2"].address().unwrap(), ClientSettings::default()).await.unwrap();
    let before = client.stats().await.unwrap();
    while !client.compact(1 << 30).await.unwrap().done {}
    assert!(client.stats().await.unwrap().used_bytes < before.used_bytes, "there was something to compact");
    repository.kill("r1").await;
    repository.resume_all(&cursors).await;
}

async fn a_copy_keeps_places(distribution: Distribution) {
    let mut repository = Repository::start(distribution, &[Organization::Log, Organization::Log]).await;
    repository.three_generations().await;
    repository.all_at(&["r1", "r2"]).await;
    let cursors = repository.stream_with_cursors().await;
    // A node that got everything from another one.
    repository.start_node("r3", Organization::Log).await;
    let first = repository.nodes["r1"].id();
    repository.client().await.drain(first).await.unwrap();
    repository.all_at(&["r2", "r3"]).await;
    repository.kill("r1").await;
    repository.kill("r2").await;
    repository.resume_all(&cursors).await;
    // And what it tells is good at the one it did not copy all from.
    let cursors = repository.stream_with_cursors().await;
    repository.start_node("r2", Organization::Log).await;
    repository.all_at(&["r2", "r3"]).await;
    repository.kill("r3").await;
    repository.resume_all(&cursors).await;
}

async fn a_node_that_missed_two_generations_or_rolled_one_back_has_the_same_places(
    distribution: Distribution,
) {
    let mut repository = Repository::start(distribution, &[Organization::Log, Organization::Log]).await;
    repository.add(0..400, 1).await;
    repository.cycle().await;
    repository.all_at(&["r1", "r2"]).await;
    repository.kill("r1").await;
    repository.add(200..600, 2).await;
    repository.cycle().await;
    repository.add(100..300, 3).await;
    repository.cycle().await;
    let cursors = repository.stream_with_cursors().await;
    repository.start_node("r1", Organization::Log).await;
    repository.all_at(&["r1", "r2"]).await;
    repository.kill("r2").await;
    repository.resume_all(&cursors).await;
    repository.start_node("r2", Organization::Log).await;
    repository.all_at(&["r1", "r2"]).await;
    // A cycle that is aborted while pages are pulled is rolled back.
    let cluster = repository.client().await;
    repository.add(500..900, 4).await;
    let before = cluster.status().await.unwrap();
    cluster.management().start_cycle().await.unwrap();
    repository
        .until("it is being prepared", |s| {
            s.committed > before.committed || s.nodes.iter().any(|n| n.progress.is_some())
        })
        .await;
    // It may have been too fast.
    if cluster.management().abort_cycle().await.is_ok() {
        println!("rolled a cycle back");
    }
    repository.until("it is over", |s| s.cycle.is_none()).await;
    repository.cycle().await;
    repository.all_at(&["r1", "r2"]).await;
    repository.kill("r2").await;
    let cursors = repository.stream_with_cursors().await;
    repository.start_node("r2", Organization::Log).await;
    repository.all_at(&["r1", "r2"]).await;
    repository.kill("r1").await;
    repository.resume_all(&cursors).await;
}

async fn places_by_key_are_good_everywhere_and_others_where_the_order_is_the_same(
    distribution: Distribution,
) {
    let mut repository = Repository::start(distribution, &[Organization::Hash, Organization::Log]).await;
    repository.three_generations().await;
    repository.all_at(&["r1", "r2"]).await;
    repository.kill("r2").await;
    let by_key = repository.stream_with_cursors().await;
    repository.start_node("r2", Organization::Log).await;
    repository.all_at(&["r1", "r2"]).await;
    repository.kill("r1").await;
    repository.resume_all(&by_key).await;
    let by_arrival = repository.stream_with_cursors().await;
    repository.start_node("r1", Organization::Hash).await;
    repository.all_at(&["r1", "r2"]).await;
    // Both are there: each goes on where it can.
    repository.resume_all(&by_key).await;
    repository.resume_all(&by_arrival).await;
    repository.kill("r2").await;
    let middle: StreamCursor = by_arrival[by_arrival.len() / 2].1.parse().unwrap();
    let cluster = repository.client().await;
    let mut stream = cluster.resume(&middle).await.unwrap();
    let failed = loop {
        match stream.next().await.expect("an error before the end") {
            Ok(_) => {}
            Err(e) => break e,
        }
    };
    assert!(matches!(failed, NodeError::StreamLost { .. }), "{failed}");
}

async fn a_generation_that_is_gone_is_said_to_be(distribution: Distribution) {
    let mut repository = Repository::start(distribution, &[Organization::Log, Organization::Log]).await;
    repository.add(0..300, 1).await;
    repository.cycle().await;
    let cursors = repository.stream_with_cursors().await;
    let middle: StreamCursor = cursors[2].1.parse().unwrap();
    repository.add(0..100, 2).await;
    repository.cycle().await;
    let generation = middle.generation();
    repository.until("the old generation is let go", |s| !s.kept.contains(&generation)).await;
    let cluster = repository.client().await;
    let failed = cluster.resume(&middle).await.map(|_| ()).unwrap_err();
    assert!(matches!(failed, NodeError::StreamLost { generation: g, .. } if g == generation), "{failed}");
    assert!("nonsense".parse::<StreamCursor>().is_err());
}

async fn a_cursor_is_good_while_its_generation_is_held_and_goes_on_in_the_next(distribution: Distribution) {
    let mut repository = Repository::start(distribution, &[Organization::Log, Organization::Log]).await;
    repository.three_generations().await;
    repository.all_at(&["r1", "r2"]).await;
    let old = repository.pages.clone();
    let cluster = repository.client().await;
    let mut held = cluster.stream().await.unwrap();
    let mut taken = BTreeSet::new();
    while taken.len() < old.len() / 2 {
        assert!(take(&mut held, &mut taken).await);
    }
    let (first_half, middle) = (taken.clone(), held.cursor().unwrap());
    // The next generation supersedes some of those that are left, and brings new ones.
    repository.add(300..400, 4).await;
    repository.add(800..900, 4).await;
    repository.cycle().await;
    repository.all_at(&["r1", "r2"]).await;
    let client =
        Client::connect(repository.nodes["r1"].address().unwrap(), ClientSettings::default()).await.unwrap();
    while !client.compact(1 << 30).await.unwrap().done {}
    let mut rest = BTreeSet::new();
    let mut resumed = cluster.resume(&middle.to_string().parse().unwrap()).await.unwrap();
    assert_eq!(resumed.generation(), middle.generation());
    while take(&mut resumed, &mut rest).await {}
    assert!(rest.is_disjoint(&first_half) && rest.union(&first_half).eq(&old), "{} pages", rest.len());
    while take(&mut held, &mut taken).await {}
    assert!(taken == old);
    drop((held, resumed));
    // Gone, it goes on in the next: nothing of what was left is skipped, and what comes again is what arrived since.
    let generation = middle.generation();
    repository.until("the old generation is let go", |s| !s.kept.contains(&generation)).await;
    let mut onward = cluster.go_on(&middle).await.unwrap();
    assert!(onward.generation() > generation);
    let mut rest = BTreeSet::new();
    while take(&mut onward, &mut rest).await {}
    let skipped = old.iter().filter(|url| !rest.contains(*url) && !first_half.contains(*url)).count();
    assert_eq!(skipped, 0);
    let newer: BTreeSet<String> = (300..400).map(url).collect();
    let again: Vec<&String> = rest.intersection(&first_half).filter(|url| !newer.contains(*url)).collect();
    assert!(again.is_empty(), "{} pages came again: {:?}", again.len(), again.first());
}
