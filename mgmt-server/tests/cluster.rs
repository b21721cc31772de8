//! A management server and nodes in one process, over real sockets and real stores: pages that were acknowledged are
//! there after each cycle, in every pair of organizations; readers of the old generation go on; nodes that return, join or
//! leave are brought in line by themselves. Kills of real processes are tested with the program.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod common;

use std::time::Duration;

use common::{Pages, Repository, add, check, until};
use webbase_mgmt_server::{Distribution, ManagementServer, ServerOptions, Update};
use webbase_node::cycle::message::{Removal, SeenAgain};
use webbase_node::plan::CycleEnd;
use webbase_node::{Cluster, ClusterSettings, Role};
use webbase_storage::{Organization, Page, PageKey};

const LOGS: (Organization, Organization) = (Organization::Log, Organization::Log);

/// A repository with update and read nodes of these organizations.
async fn start(replicas: u32, organizations: (Organization, Organization), nodes: &[&str]) -> Repository {
    start_distributed((Distribution::Hash, None), replicas, organizations, nodes).await
}

/// As `start`, with the distribution of read nodes, and that of update nodes if it is another one.
async fn start_distributed(
    distributions: (Distribution, Option<Distribution>),
    replicas: u32,
    organizations: (Organization, Organization),
    nodes: &[&str],
) -> Repository {
    let server = move |options: &mut ServerOptions| {
        options.replicas = replicas;
        (options.distribution, options.update_distribution) = distributions;
    };
    Repository::start(nodes, server, move |_, node| {
        node.organization = if node.role == Role::Update { organizations.0 } else { organizations.1 };
    })
    .await
}

async fn two_cycles(organizations: (Organization, Organization)) {
    let repository = start(1, organizations, &["u1", "u2", "r1", "r2"]).await;
    let cluster = repository.client().await;
    repository.until_known(&cluster, 4).await;
    let mut pages = Pages::new();
    check(&cluster, &pages).await;
    add(&cluster, &mut pages, 0..600, 1).await;
    check(&cluster, &Pages::new()).await; // not yet
    cluster.cycle(|_| {}).await.unwrap();
    check(&cluster, &pages).await;
    let before = pages.clone();
    let mut old = cluster.stream().await.unwrap();
    let first = old.next().await.unwrap().unwrap();
    add(&cluster, &mut pages, 400..900, 2).await;
    cluster.cycle(|_| {}).await.unwrap();
    check(&cluster, &pages).await;
    // The stream that began before the cycle shows the generation it began with.
    let mut count = 1;
    let dictionaries = cluster.dictionaries();
    assert_eq!(before[first.get().url()], first.body(dictionaries).unwrap());
    while let Some(record) = old.next().await {
        let record = record.unwrap();
        assert_eq!(before[record.get().url()], record.body(dictionaries).unwrap());
        count += 1;
    }
    assert_eq!(count, before.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cycles_with_every_pair_of_organizations() {
    for update in Organization::ALL {
        for read in [Organization::Log, Organization::Hash] {
            eprintln!("update nodes {update}, read nodes {read}");
            two_cycles((update, read)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_seen_a_generation_looks_up_in_no_older_one() {
    let repository = start(1, LOGS, &["u1", "r1"]).await;
    let writer = repository.client().await;
    repository.until_known(&writer, 2).await;
    // As long as a plan is used that nobody says is old.
    let settings = ClusterSettings { refresh: Duration::from_secs(3600), ..ClusterSettings::default() };
    let reader = Cluster::connect(repository.address(), settings).await.unwrap();
    let mut pages = Pages::new();
    for stamp in 1..4 {
        check(&reader, &pages).await;
        add(&writer, &mut pages, 0..50 * stamp, stamp).await;
        writer.cycle(|_| {}).await.unwrap();
        let mut stream = reader.stream().await.unwrap();
        while let Some(record) = stream.next().await {
            let url = record.unwrap().get().url().to_owned();
            assert!(
                reader.lookup_url(&url).await.unwrap().pages.is_some(),
                "{url} was streamed and is not found"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_survives_restarts() {
    let mut repository = start(1, LOGS, &["u1", "r1", "r2"]).await;
    let cluster = repository.client().await;
    repository.until_known(&cluster, 3).await;
    let mut pages = Pages::new();
    add(&cluster, &mut pages, 0..300, 1).await;
    cluster.cycle(|_| {}).await.unwrap();
    let outcome = cluster.status().await.unwrap().outcome.unwrap();
    assert_eq!((outcome.cycle, outcome.end, outcome.pages), (1, CycleEnd::Committed { generation: 1 }, 300));
    assert!(outcome.bytes > 300 * 80, "{} bytes", outcome.bytes);
    add(&cluster, &mut pages, 200..500, 2).await;
    for name in ["u1", "r1", "r2"] {
        repository.kill(name).await;
        repository.start_node(name).await;
    }
    repository.restart_server(|_| {}).await;
    let cluster = repository.client().await;
    until(&cluster, "all are back", |s| s.nodes.iter().all(|n| n.figures.is_some())).await;
    cluster.cycle(|_| {}).await.unwrap();
    check(&cluster, &pages).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_replica_costs_nothing_and_catches_up_when_it_returns() {
    let names = ["u1", "u2", "r1", "r2"];
    let mut repository = start(2, LOGS, &names).await;
    let cluster = repository.client().await;
    repository.until_known(&cluster, 4).await;
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
async fn a_node_that_joins_takes_its_share_and_one_that_is_drained_leaves_nothing_behind() {
    let mut repository = start(1, LOGS, &["u1", "r1", "r2"]).await;
    let cluster = repository.client().await;
    repository.until_known(&cluster, 3).await;
    let mut pages = Pages::new();
    add(&cluster, &mut pages, 0..400, 1).await;
    cluster.cycle(|_| {}).await.unwrap();
    repository.start_node("r3").await;
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
    add(&cluster, &mut pages, 300..500, 2).await;
    cluster.cycle(|_| {}).await.unwrap();
    check(&cluster, &pages).await;
    assert!(repository.folder("r3").join("pages").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_that_are_due_and_not_seen_again_go_and_stay_away() {
    let names = ["u1", "u2", "r1", "r2"];
    let repository = start(2, (Organization::Log, Organization::Hash), &names).await;
    let cluster = repository.client().await;
    repository.until_known(&cluster, 4).await;
    let urls: Vec<String> = (0..40).map(|n| format!("http://short.example/{n}")).collect();
    let page = |url, at_ms| Page {
        url,
        body: b"short-lived",
        fetched_at_ms: at_ms,
        lifetime_s: 10,
        ..Page::default()
    };
    let batch: Vec<Page<'_>> = urls.iter().map(|url| page(url, 1000)).collect();
    cluster.add(&batch).await.unwrap().all().unwrap();
    let mut pages = Pages::new();
    add(&cluster, &mut pages, 0..50, 1).await;
    cluster.cycle(|_| {}).await.unwrap();
    assert_eq!(cluster.due_list(10_999, 1000).await.unwrap(), []);
    let due = cluster.due_list(11_000, 1000).await.unwrap();
    assert_eq!(due.len(), urls.len());
    // The crawler finds: ten unchanged, five it cannot reach, five with a new version; the others are gone.
    let seen = |pages: &[Removal], lifetime_s| -> Vec<SeenAgain> {
        pages.iter().map(|p| SeenAgain { key: p.key, at_ms: 20_000, lifetime_s }).collect()
    };
    cluster.seen(&seen(&due[..10], 10)).await.unwrap();
    cluster.seen(&seen(&due[10..15], 86_400)).await.unwrap();
    let fresh: Vec<&String> = urls
        .iter()
        .filter(|url| due[15..20].iter().any(|p| p.key == cluster.page_key(url).unwrap()))
        .collect();
    let batch: Vec<Page<'_>> = fresh.iter().map(|url| page(url, 21_000)).collect();
    cluster.add(&batch).await.unwrap().all().unwrap();
    cluster.cycle(|_| {}).await.unwrap();
    cluster.cycle(|_| {}).await.unwrap();
    for (n, page) in due.iter().enumerate() {
        let found = cluster.lookup(page.key).await.unwrap().pages;
        assert_eq!(found.is_some(), n < 20, "page {n} of the list");
    }
    check_stream_count(&cluster, pages.len() + 20).await;
    // An old version that comes late does not bring a page back.
    let gone: Vec<&String> =
        urls.iter().filter(|url| due[20..].iter().any(|p| p.key == cluster.page_key(url).unwrap())).collect();
    let batch: Vec<Page<'_>> = gone.iter().map(|url| page(url, 999)).collect();
    cluster.add(&batch).await.unwrap().all().unwrap();
    cluster.cycle(|_| {}).await.unwrap();
    check_stream_count(&cluster, pages.len() + 20).await;
    // What was seen again is due again when its new time is over.
    let again = cluster.due_list(30_000, 1000).await.unwrap();
    let keys = |pages: &[Removal]| pages.iter().map(|p| p.key).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(keys(&again), keys(&due[..10]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copied_replica_knows_what_was_seen_again() {
    for organization in [Organization::Log, Organization::Hash] {
        let mut repository = start(2, (Organization::Log, organization), &["u1", "r1", "r2"]).await;
        let cluster = repository.client().await;
        repository.until_known(&cluster, 3).await;
        let urls: Vec<String> = (0..40).map(|n| format!("http://short.example/{n}")).collect();
        let page = |url| Page { url, fetched_at_ms: 1000, lifetime_s: 10, ..Page::default() };
        let batch: Vec<Page<'_>> = urls.iter().map(|url| page(url)).collect();
        cluster.add(&batch).await.unwrap().all().unwrap();
        cluster.cycle(|_| {}).await.unwrap();
        let keys: Vec<_> = urls.iter().map(|url| cluster.page_key(url).unwrap()).collect();
        let seen = |(n, key): (usize, &_)| SeenAgain {
            key: *key,
            at_ms: 20_000,
            lifetime_s: if n % 2 == 0 { 10 } else { 0 },
        };
        let seen: Vec<SeenAgain> = keys.iter().enumerate().map(seen).collect();
        cluster.seen(&seen).await.unwrap();
        let generation = cluster.cycle(|_| {}).await.unwrap();
        // A new node takes the place of one that leaves: its pages are copies.
        repository.start_node("r3").await;
        repository.until_known(&cluster, 4).await;
        let first = repository.nodes["r1"].id();
        cluster.drain(first).await.unwrap();
        until(&cluster, "the drained node is gone", |s| s.nodes.iter().all(|n| n.id != first)).await;
        let copy = repository.node_client("r3").await;
        assert_eq!(copy.due(generation, 29_999, 1000).await.unwrap().len(), 0, "{organization}");
        let due = copy.due(generation, 30_000, 1000).await.unwrap();
        let mut due: Vec<PageKey> = due.iter().map(|entry| entry.key.into()).collect();
        let mut expected: Vec<PageKey> = keys.iter().step_by(2).copied().collect();
        due.sort_unstable();
        expected.sort_unstable();
        assert_eq!(due, expected, "{organization}");
    }
}

async fn check_stream_count(cluster: &Cluster, expected: usize) {
    let mut stream = cluster.stream().await.unwrap();
    let mut count = 0;
    while let Some(record) = stream.next().await {
        record.unwrap();
        count += 1;
    }
    assert_eq!(count, expected);
}

/// Pages as sites have them: the frame is the same on all, the text is each one's own.
async fn add_alike(cluster: &Cluster, pages: &mut Pages, numbers: std::ops::Range<usize>) {
    let frame = "<nav><a href='/'>home</a><a href='/about'>about us</a><form action='/search'></form></nav>";
    let text =
        |n: usize| (0..40).map(|w| format!("{:x} ", (n * 7919 + w * 104_729) % 65_537)).collect::<String>();
    let made: Vec<(String, Vec<u8>)> = numbers
        .map(|n| {
            (
                format!("http://alike.example/{n}"),
                format!("<html>{frame}<p>{}</p>{frame}", text(n)).into_bytes(),
            )
        })
        .collect();
    let page = |(url, body)| Page {
        url,
        body,
        head: b"HTTP/1.1 200 OK\r\nServer: alike\r\n\r\n",
        ..Page::default()
    };
    let batch: Vec<Page<'_>> = made.iter().map(|(url, body)| page((url.as_str(), body.as_slice()))).collect();
    assert_eq!(cluster.add(&batch).await.unwrap().all().unwrap(), made.len() as u64);
    pages.extend(made);
}

/// The dictionaries of a node.
async fn dictionaries(repository: &Repository, name: &str) -> Vec<u64> {
    let client = repository.node_client(name).await;
    client.fetch_dictionaries().await.unwrap().iter().map(|d| d.digest()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_pack_with_the_dictionary_of_the_update_nodes() {
    let names = ["u1", "u2", "r1", "r2"];
    let mut repository = start(2, LOGS, &names).await;
    let cluster = repository.client().await;
    repository.until_known(&cluster, 4).await;
    let mut pages = Pages::new();
    add_alike(&cluster, &mut pages, 0..100).await;
    assert_eq!(dictionaries(&repository, "u1").await, [], "too few to learn from");
    add_alike(&cluster, &mut pages, 100..300).await;
    let trained = dictionaries(&repository, "u1").await;
    assert_eq!(trained.len(), 1);
    assert_eq!(dictionaries(&repository, "u2").await, trained, "replicas have the same records");
    // It is the next epoch's too, and another client takes it instead of training one.
    cluster.cycle(|_| {}).await.unwrap();
    check(&cluster, &pages).await;
    let other = repository.client().await;
    add_alike(&other, &mut pages, 300..1000).await;
    // A node that was away gets it with the records; one that was started again still has it.
    repository.kill("u2").await;
    repository.start_node("u2").await;
    let third = repository.nodes["u2"].id();
    until(&other, "the node is back", |s| s.nodes.iter().any(|n| n.id == third && n.figures.is_some())).await;
    add_alike(&other, &mut pages, 1000..1100).await;
    cluster.cycle(|_| {}).await.unwrap();
    check(&repository.client().await, &pages).await;
    for name in ["u1", "u2", "r1", "r2"] {
        assert_eq!(dictionaries(&repository, name).await, trained, "{name}");
    }
    let plain = other.lookup_url("http://alike.example/50").await.unwrap().pages.unwrap();
    let packed = other.lookup_url("http://alike.example/500").await.unwrap().pages.unwrap();
    assert_eq!((plain.get().dictionary(), packed.get().dictionary()), (0, trained[0]));
    assert!(packed.bytes().len() < plain.bytes().len() * 9 / 10, "the frame is in the dictionary");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn update_nodes_may_have_another_distribution_than_read_nodes() {
    for (read, update) in
        [(Distribution::Hash, Distribution::Uniform), (Distribution::Uniform, Distribution::Hash)]
    {
        let names = ["u1", "u2", "r1", "r2"];
        let mut repository = start_distributed((read, Some(update)), 1, LOGS, &names).await;
        let cluster = repository.client().await;
        repository.until_known(&cluster, 4).await;
        assert_eq!(cluster.repository().map.update_distribution(), update);
        let mut pages = Pages::new();
        add(&cluster, &mut pages, 0..300, 1).await;
        // Versions of one page may lie on different update nodes; the newest counts.
        add(&cluster, &mut pages, 100..400, 2).await;
        cluster.cycle(|_| {}).await.unwrap();
        check(&cluster, &pages).await;
        add(&cluster, &mut pages, 300..350, 3).await;
        repository.kill("u1").await;
        if update == Distribution::Uniform {
            // Any update node takes any page: with one of them up nothing is refused, once the other is known to be down.
            add(&cluster, &mut pages, 350..450, 4).await;
        }
        repository.start_node("u1").await;
        repository.until_known(&cluster, 4).await;
        add(&cluster, &mut pages, 200..250, 5).await;
        cluster.cycle(|_| {}).await.unwrap();
        check(&cluster, &pages).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut options = ServerOptions::new(dir.path(), "127.0.0.1:0".parse().unwrap());
    (options.update, options.update_distribution) = (Update::Incremental, Some(Distribution::Uniform));
    let refused = ManagementServer::start(options).await.unwrap_err();
    assert!(refused.to_string().contains("one distribution"), "{refused}");
}
