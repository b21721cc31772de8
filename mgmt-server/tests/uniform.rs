//! A repository with the distribution `uniform` in one process, over real sockets and real stores: pages lie where the
//! management server said, are found by its index, and stay in their range for ever, whatever happens to nodes and to
//! the index itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::{Pages, Repository, add, until, url};
use webbase_mgmt_server::{Distribution, ManagementServer, ServerOptions};
use webbase_node::cycle::message::{Removal, SeenAgain};
use webbase_node::plan::{Ask, INDEX_KEYS_MAX, Told};
use webbase_node::wire::message::Code;
use webbase_node::{ClientSettings, Cluster, ClusterSettings, HostOptions, Management, NodeError};
use webbase_storage::{Organization, Page, PageId, PageKey, Version};

async fn start(replicas: u32, organization: Organization, nodes: &[&str]) -> Repository {
    let server = move |options: &mut ServerOptions| {
        (options.replicas, options.distribution) = (replicas, Distribution::Uniform);
        options.add_limit = Duration::from_millis(500);
    };
    let node = move |name: &str, options: &mut HostOptions| {
        options.organization = organization;
        if name.ends_with("full") {
            options.storage.capacity_bytes = Some(3 << 20);
        }
    };
    let repository = Repository::start(nodes, server, node).await;
    repository.until_known(&repository.client().await, nodes.len()).await;
    repository
}

async fn until_complete(cluster: &Cluster, pages: usize) {
    until(cluster, "the index is complete", |s| s.page_index.is_some_and(|index| index.complete)).await;
    assert_eq!(cluster.status().await.unwrap().page_index.unwrap().pages, pages as u64);
}

/// Lookups in all ways and a stream show exactly these pages, each once.
async fn check(cluster: &Cluster, pages: &Pages) {
    common::check(cluster, pages).await;
    for url in pages.keys().step_by(17) {
        let record = cluster.lookup_url(url).await.unwrap().pages.unwrap();
        let by_id = cluster.lookup_id(record.get().key().id).await.unwrap().pages;
        assert_eq!(by_id.len(), 1);
        assert_eq!(by_id[0].get().url(), record.get().url());
    }
    let mut keys: Vec<PageKey> = pages.keys().map(|url| cluster.page_key(url).unwrap()).collect();
    keys.insert(keys.len() / 2, PageKey { id: PageId(7), tie: 7 });
    let found = cluster.lookup_many(&keys).await.unwrap().pages;
    let absent = found.iter().filter(|page| page.as_ref().unwrap().is_none()).count();
    assert_eq!((found.len(), absent), (pages.len() + 1, 1));
}

async fn ranges(cluster: &Cluster, pages: &Pages) -> Vec<Option<u32>> {
    let keys: Vec<PageKey> = pages.keys().map(|url| cluster.page_key(url).unwrap()).collect();
    cluster.management().find(&keys).await.unwrap()
}

async fn two_cycles(organization: Organization) {
    let repository = start(1, organization, &["u1", "u2", "r1", "r2"]).await;
    let cluster = repository.client().await;
    let mut pages = Pages::new();
    check(&cluster, &pages).await;
    add(&cluster, &mut pages, 0..600, 1).await;
    assert!(cluster.lookup_url(&url(1)).await.unwrap().pages.is_none()); // not yet
    cluster.cycle(|_| {}).await.unwrap();
    check(&cluster, &pages).await;
    let before = ranges(&cluster, &pages).await;
    let old = pages.clone();
    let mut stream = cluster.stream().await.unwrap();
    // The same pages again: they meet their old versions, whoever they are sent by.
    let other = repository.client().await;
    add(&other, &mut pages, 300..900, 2).await;
    cluster.cycle(|_| {}).await.unwrap();
    check(&cluster, &pages).await;
    assert_eq!(ranges(&cluster, &old).await, before);
    let mut count = 0;
    while let Some(record) = stream.next().await {
        let record = record.unwrap();
        assert_eq!(old[record.get().url()], record.body(cluster.dictionaries()).unwrap());
        count += 1;
    }
    assert_eq!(count, old.len());
    // Pages are spread over ranges, and so over nodes.
    let mut spread = BTreeMap::new();
    for range in ranges(&cluster, &pages).await {
        *spread.entry(range.unwrap()).or_insert(0) += 1;
    }
    assert_eq!(spread.len(), 16, "{spread:?}");
    assert!(spread.values().all(|n| (30..90).contains(n)), "{spread:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_are_added_updated_found_and_streamed() {
    for organization in [Organization::Log, Organization::Hash] {
        two_cycles(organization).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_pages_stay_away_from_full_nodes() {
    let repository = start(1, Organization::Log, &["u1", "u2", "u3-full", "r1"]).await;
    let cluster = repository.client().await;
    let mut pages = Pages::new();
    add(&cluster, &mut pages, 0..300, 1).await;
    let (plan, _) = cluster.management().add_plan().await.unwrap();
    let mut spread = BTreeMap::new();
    for range in ranges(&cluster, &pages).await {
        *spread.entry(plan.ranges[range.unwrap() as usize][0]).or_insert(0) += 1;
    }
    assert_eq!(spread.get(&repository.nodes["u3-full"].id()), None);
    assert!(spread.len() == 2 && spread.values().all(|n| (100..200).contains(n)), "{spread:?}");
    cluster.cycle(|_| {}).await.unwrap();
    check(&cluster, &pages).await;
}

/// Pages whose bodies do not pack: so many bytes each.
fn solid(numbers: std::ops::Range<usize>, version: u64, bytes: usize) -> Vec<(String, Vec<u8>)> {
    let body = |n: usize| {
        let mut word = (n as u64) << 32 | version | 1 << 63;
        let next = std::iter::repeat_with(move || {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (word >> 56) as u8
        });
        next.take(bytes).collect()
    };
    numbers.map(|n| (url(n), body(n))).collect()
}

/// Adds some megabytes several times to update nodes of which one has room for less than its share of them. The page's range
/// says another node each time; what that one has no room for goes elsewhere, and nothing is refused.
async fn a_node_fills(read: Distribution, replicas: u32, nodes: &[&'static str]) {
    const PAGES: usize = 100;
    let server = move |options: &mut ServerOptions| {
        (options.replicas, options.distribution) = (replicas, read);
        options.update_distribution = Some(Distribution::Uniform);
    };
    let node = |name: &str, options: &mut HostOptions| {
        if name.ends_with("small") {
            options.storage.capacity_bytes = Some(6 << 20);
        }
    };
    let repository = Repository::start(nodes, server, node).await;
    let cluster = repository.client().await;
    repository.until_known(&cluster, nodes.len()).await;
    let mut pages = Pages::new();
    for version in 1..=3 {
        let made = solid(0..PAGES, version, 160 << 10);
        common::add_made(&cluster, &made, version as usize).await;
        pages.extend(made);
    }
    // The small one took some, and was full.
    let small = repository.node_client("u1-small").await.stats().await.unwrap();
    assert!(small.pages > 0 && small.free_bytes() < 3 << 20, "{small:?}");
    cluster.cycle(|_| {}).await.unwrap();
    common::check(&cluster, &pages).await;
    let pages_there = cluster.status().await.unwrap().page_index.map(|index| index.pages);
    assert!(pages_there.is_none_or(|there| there == PAGES as u64), "{pages_there:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_full_node_refuses_goes_where_there_is_room() {
    a_node_fills(Distribution::Uniform, 1, &["u1-small", "u2", "r1"]).await;
    a_node_fills(Distribution::Uniform, 2, &["u1-small", "u2", "u3", "r1", "r2"]).await;
    a_node_fills(Distribution::Hash, 1, &["u1-small", "u2", "r1"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_are_refused_when_no_node_has_room() {
    let server = |options: &mut ServerOptions| options.distribution = Distribution::Uniform;
    let node = |_: &str, options: &mut HostOptions| options.storage.capacity_bytes = Some(6 << 20);
    let repository = Repository::start(&["u1", "u2", "r1"], server, node).await;
    let cluster = repository.client().await;
    repository.until_known(&cluster, 3).await;
    let made = solid(0..100, 1, 160 << 10);
    let batch: Vec<Page<'_>> = made.iter().map(|(url, body)| Page { url, body, ..Page::default() }).collect();
    let added = cluster.add(&batch).await.unwrap();
    assert!(!added.refused.is_empty(), "twelve megabytes of room took sixteen");
    let said = added
        .refused
        .iter()
        .all(|(_, e)| matches!(e, NodeError::Refused { fault, .. } if fault.code == Code::NoSpace));
    assert!(said, "{:?}", added.refused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_replica_costs_nothing() {
    let mut repository = start(2, Organization::Log, &["u1", "u2", "r1", "r2"]).await;
    let cluster = repository.client().await;
    let mut pages = Pages::new();
    add(&cluster, &mut pages, 0..300, 1).await;
    cluster.cycle(|_| {}).await.unwrap();
    repository.kill("r1").await;
    repository.kill("u1").await;
    check(&cluster, &pages).await;
    add(&cluster, &mut pages, 200..400, 2).await;
    cluster.cycle(|_| {}).await.unwrap();
    check(&cluster, &pages).await;
    repository.start_node("r1").await;
    repository.start_node("u1").await;
    let serving = cluster.status().await.unwrap().serving;
    until(&cluster, "the returned replica has caught up", |s| {
        s.nodes.iter().filter(|n| n.read).all(|n| n.generation == Some(serving))
    })
    .await;
    repository.kill("r2").await;
    check(&cluster, &pages).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_join_and_leave_with_their_ranges() {
    let mut repository = start(1, Organization::Log, &["u1", "r1", "r2"]).await;
    let cluster = repository.client().await;
    let mut pages = Pages::new();
    add(&cluster, &mut pages, 0..400, 1).await;
    cluster.cycle(|_| {}).await.unwrap();
    repository.start_node("r3").await;
    repository.start_node("u2").await;
    let third = repository.nodes["r3"].id();
    until(&cluster, "the new node has its share", |s| {
        s.nodes.iter().any(|n| n.id == third && n.generation == Some(s.serving))
    })
    .await;
    check(&cluster, &pages).await;
    let first = repository.nodes["r1"].id();
    cluster.drain(first).await.unwrap();
    until(&cluster, "the drained node is gone", |s| s.nodes.iter().all(|n| n.id != first)).await;
    repository.kill("r1").await;
    check(&cluster, &pages).await;
    add(&cluster, &mut pages, 300..600, 2).await;
    cluster.cycle(|_| {}).await.unwrap();
    check(&cluster, &pages).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_index_survives_a_restart_and_is_made_anew_when_it_is_lost_or_damaged() {
    let mut repository = start(1, Organization::Log, &["u1", "u2", "r1", "r2"]).await;
    let cluster = repository.client().await;
    let mut pages = Pages::new();
    add(&cluster, &mut pages, 0..500, 1).await;
    cluster.cycle(|_| {}).await.unwrap();
    // These are on update nodes only, in epochs that take adds.
    let cycled = pages.clone();
    add(&cluster, &mut pages, 400..700, 2).await;
    let before = ranges(&cluster, &pages).await;
    assert!(before.iter().all(Option::is_some));

    repository.restart_server(|_| {}).await;
    assert!(cluster.status().await.unwrap().page_index.unwrap().complete);
    assert_eq!(ranges(&cluster, &pages).await, before);

    repository.restart_server(|dir| std::fs::remove_dir_all(dir.join("page-index")).unwrap()).await;
    // Readers go on, with the index or without.
    for _ in 0..3 {
        check(&cluster, &cycled).await;
    }
    until_complete(&cluster, pages.len()).await;
    assert_eq!(ranges(&cluster, &pages).await, before);
    check(&cluster, &cycled).await;

    repository
        .restart_server(|dir| {
            for file in std::fs::read_dir(dir.join("page-index")).unwrap().map(|entry| entry.unwrap().path())
            {
                let mut bytes = std::fs::read(&file).unwrap();
                if let Some(byte) = bytes.get_mut(20) {
                    *byte ^= 4;
                    std::fs::write(&file, bytes).unwrap();
                }
            }
        })
        .await;
    until_complete(&cluster, pages.len()).await;
    assert_eq!(ranges(&cluster, &pages).await, before);

    // Damaged while it is open: noticed when it is read, and made anew.
    for file in std::fs::read_dir(repository.folder("mgmt/page-index")).unwrap().map(|e| e.unwrap().path()) {
        if file.file_name().unwrap().to_str().unwrap().starts_with("run-") {
            let mut bytes = std::fs::read(&file).unwrap();
            bytes.iter_mut().skip(20).step_by(4096).for_each(|byte| *byte ^= 4);
            std::fs::write(&file, bytes).unwrap();
        }
    }
    let noticed = cluster.management().find(&[cluster.page_key(&url(1)).unwrap()]).await;
    assert!(matches!(noticed, Err(NodeError::Denied { .. })), "{noticed:?}");
    check(&cluster, &cycled).await;
    until_complete(&cluster, pages.len()).await;
    assert_eq!(ranges(&cluster, &pages).await, before);

    add(&cluster, &mut pages, 600..800, 3).await;
    cluster.cycle(|_| {}).await.unwrap();
    check(&cluster, &pages).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_page_gets_a_second_range_while_a_node_that_may_know_it_is_away() {
    let mut repository = start(1, Organization::Log, &["u1", "u2", "r1", "r2"]).await;
    let cluster = repository.client().await;
    let mut pages = Pages::new();
    add(&cluster, &mut pages, 0..200, 1).await;
    cluster.cycle(|_| {}).await.unwrap();
    let cycled = pages.clone();
    let mut newer = Pages::new();
    add(&cluster, &mut newer, 150..300, 2).await;
    pages.extend(newer.clone());
    let before = ranges(&cluster, &pages).await;
    repository.kill("u2").await;
    repository.restart_server(|dir| std::fs::remove_dir_all(dir.join("page-index")).unwrap()).await;
    until(&cluster, "the nodes that are there were listed", |s| s.page_index.is_some_and(|i| i.pages > 200))
        .await;
    // Those that these nodes know are told; of the others nothing is, and nothing is assigned.
    let address = repository.server.as_ref().unwrap().address();
    let impatient =
        ClientSettings { answer: Duration::from_millis(300), ..ClusterSettings::default().client };
    let management = Management::connect(address, impatient).await.unwrap();
    let (mut known, mut waiting) = (0, 0);
    for (url, range) in pages.keys().zip(&before).filter(|(url, _)| !cycled.contains_key(*url)).take(20) {
        match management.assign(&[cluster.page_key(url).unwrap()]).await {
            Ok(told) => {
                assert_eq!(told, [*range]);
                known += 1;
            }
            Err(NodeError::Denied { why, .. }) => {
                assert!(why.contains("made anew"), "{why}");
                waiting += 1;
            }
            Err(e) => panic!("{e}"),
        }
    }
    assert!(known > 0 && waiting > 0, "{known} known, {waiting} waiting");
    // Readers go on: where the index does not say it, all nodes are asked.
    let (in_cycle, not_yet) = (cluster.page_key(&url(20)).unwrap(), cluster.page_key(&url(299)).unwrap());
    let nowhere = PageKey { id: PageId(7), tie: 7 };
    let found = cluster.lookup_many(&[nowhere, in_cycle, not_yet]).await.unwrap();
    let found: Vec<bool> = found.pages.into_iter().map(|page| page.unwrap().is_some()).collect();
    assert_eq!(found, [false, true, false]);
    repository.start_node("u2").await;
    until_complete(&cluster, pages.len()).await;
    assert_eq!(ranges(&cluster, &pages).await, before);
    add(&cluster, &mut pages, 100..400, 3).await;
    cluster.cycle(|_| {}).await.unwrap();
    check(&cluster, &pages).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_are_due_seen_again_and_removed_on_all_replicas() {
    let repository = start(2, Organization::Log, &["u1", "u2", "r1", "r2", "r3"]).await;
    let cluster = repository.client().await;
    let urls: Vec<String> = (0..40).map(|n| format!("http://short.example/{n}")).collect();
    let page =
        |url, at_ms| Page { url, body: b"short", fetched_at_ms: at_ms, lifetime_s: 10, ..Page::default() };
    let batch: Vec<Page<'_>> = urls.iter().map(|url| page(url, 1000)).collect();
    cluster.add(&batch).await.unwrap().all().unwrap();
    let mut pages = Pages::new();
    add(&cluster, &mut pages, 0..50, 1).await;
    cluster.cycle(|_| {}).await.unwrap();
    let due = cluster.due_list(11_000, 1000).await.unwrap();
    assert_eq!(due.len(), urls.len());
    let seen: Vec<SeenAgain> =
        due[..20].iter().map(|p| SeenAgain { key: p.key, at_ms: 20_000, lifetime_s: 10 }).collect();
    cluster.seen(&seen).await.unwrap();
    // Removed by name, with a bound that knows nothing of ranges; one of these does not exist.
    let bound = Version { fetched_at_ms: u64::MAX, epoch: u32::MAX, digest: u64::MAX };
    let removals = [
        Removal { key: cluster.page_key(&url(3)).unwrap(), bound },
        Removal { key: PageKey { id: PageId(1), tie: 1 }, bound },
    ];
    cluster.remove(&removals).await.unwrap();
    pages.remove(&url(3));
    cluster.cycle(|_| {}).await.unwrap();
    cluster.cycle(|_| {}).await.unwrap();
    let mut expected = pages.clone();
    for (n, page) in due.iter().enumerate() {
        let found = cluster.lookup(page.key).await.unwrap().pages;
        assert_eq!(found.is_some(), n < 20, "page {n} of the list");
        if let Some(found) = found {
            expected.insert(found.get().url().to_owned(), b"short".to_vec());
        }
    }
    check(&cluster, &expected).await;
    let again = cluster.due_list(30_000, 1000).await.unwrap();
    let keys = |pages: &[Removal]| pages.iter().map(|p| p.key).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(keys(&again), keys(&due[..20]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_are_bounded_and_a_repository_keeps_its_distribution() {
    let mut repository = start(1, Organization::Log, &["u1", "r1"]).await;
    let cluster = repository.client().await;
    let key = cluster.page_key("http://one.example/").unwrap();
    let many = vec![webbase_node::wire::message::Key::from(key); INDEX_KEYS_MAX + 1];
    let refused = cluster.management().ask(Ask::Find(many)).await;
    assert!(matches!(refused, Err(NodeError::Denied { .. })), "{refused:?}");
    // Asked twice, in one question and in two: always the same.
    let first = cluster.management().assign(&[key, key]).await.unwrap();
    assert!(first[0].is_some() && first[0] == first[1]);
    assert_eq!(cluster.management().assign(&[key]).await.unwrap()[0], first[0]);
    let Told::Repository(told) = cluster.management().ask(Ask::Repository).await.unwrap() else { panic!() };
    assert!(told.map.is_uniform());
    // Started with other wishes it is what it was made as.
    let address = repository.server.as_ref().unwrap().address();
    repository.server.take().unwrap().shutdown().await.unwrap();
    let options = ServerOptions::new(repository.folder("mgmt"), address);
    repository.server = Some(ManagementServer::start(options).await.unwrap());
    assert_eq!(repository.server.as_ref().unwrap().repository(), told);
    assert_eq!(repository.client().await.management().find(&[key]).await.unwrap(), [first[0]]);
    // One made as hash has no index.
    let dir = tempfile::tempdir().unwrap();
    let options = ServerOptions::new(dir.path(), "127.0.0.1:0".parse().unwrap());
    let hash = ManagementServer::start(options).await.unwrap();
    let cluster = Cluster::connect(hash.address(), ClusterSettings::default()).await.unwrap();
    assert!(cluster.management().find(&[key]).await.is_err());
    assert!(cluster.status().await.unwrap().page_index.is_none());
    assert!(!dir.path().join("page-index").exists());
}
