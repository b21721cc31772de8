//! Incremental update with a management server and nodes in one process, over real sockets and real stores: pages are
//! visible when they are acknowledged, and stay so through folds, compaction, nodes that go, return, join and leave.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod common;

use std::collections::BTreeSet;

use common::{Pages, RANGES, Repository, add_made, check, made, until, until_planned};
use webbase_mgmt_server::{Distribution, ServerOptions, Settings, Update};
use webbase_node::cycle::message::Removal;
use webbase_node::plan::{LIVE, Status};
use webbase_node::{Cluster, ClusterStream, Host, HostOptions, NodeError, Role, StreamCursor, StreamRequest};
use webbase_storage::{Organization, Page};

/// Folds run when asked for, and when a node waits for one.
fn settings() -> Settings {
    Settings { fold_ms: 3_600_000, ..common::settings() }
}

async fn start(
    distribution: Distribution,
    replicas: u32,
    organization: Organization,
    nodes: &[&str],
    settings: Settings,
) -> (Repository, Cluster) {
    let server = move |options: &mut ServerOptions| {
        (options.replicas, options.settings) = (replicas, settings);
        (options.update, options.distribution) = (Update::Incremental, distribution);
    };
    let node = move |_: &str, options: &mut HostOptions| {
        options.organization = organization;
        options.storage.segment_bytes = 256 << 10;
    };
    let repository = Repository::start(nodes, server, node).await;
    let cluster = repository.client().await;
    until_whole(&cluster, nodes.len(), replicas).await;
    (repository, cluster)
}

/// Waits until all nodes serve all they own, every range has its replicas, and none is on its way to another node: while it is, the
/// old owner and the new one take its pages, and for a moment both show them.
async fn until_whole(cluster: &Cluster, nodes: usize, replicas: u32) {
    until_planned(cluster, "all ranges are whole everywhere, and at rest", |status, plan| {
        let whole = status.nodes.iter().filter_map(|n| n.whole).sum::<u32>();
        // One node that has all of them is as many as two that have half each; but then who gets a half takes adds, too.
        let at_rest = plan.ranges.iter().all(|takers| takers.len() == replicas as usize);
        status.nodes.len() == nodes && whole == RANGES * replicas && at_rest
    })
    .await;
}

/// Adds pages `numbers` in a version, and takes note of them. Each is found right away.
async fn add(cluster: &Cluster, pages: &mut Pages, numbers: std::ops::Range<usize>, version: usize) {
    let made = made(numbers, version);
    add_made(cluster, &made, version).await;
    let keys: Vec<_> = made.iter().map(|(url, _)| cluster.page_key(url).unwrap()).collect();
    let found = cluster.lookup_many(&keys).await.unwrap();
    assert_eq!(found.generation, LIVE);
    for (found, (url, body)) in found.pages.into_iter().zip(&made) {
        let record = found.unwrap().unwrap_or_else(|| panic!("{url} was acknowledged and is not there"));
        assert_eq!(&record.body(cluster.dictionaries()).unwrap()[..], &body[..], "{url}");
    }
    pages.extend(made);
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
    streams_of_logs_have_cursors,
    streams_of_hash_stores_have_cursors,
);

async fn pages_are_visible_when_acknowledged_in_every_organization(distribution: Distribution) {
    for organization in Organization::ALL {
        let (repository, cluster) = start(distribution, 2, organization, &["b1", "b2"], settings()).await;
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
    let (_repository, cluster) = start(distribution, 2, Organization::Log, &["b1", "b2", "b3"], often).await;
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
    until(&cluster, "the last fold is over", quiet).await;
    check(&cluster, &pages).await;
}

async fn a_node_that_was_away_serves_only_what_it_has_all_of(distribution: Distribution) {
    let (mut repository, cluster) =
        start(distribution, 2, Organization::Log, &["b1", "b2"], settings()).await;
    let mut pages = Pages::new();
    add(&cluster, &mut pages, 0..200, 1).await;
    cluster.cycle(|_| {}).await.unwrap();
    add(&cluster, &mut pages, 150..300, 2).await;
    repository.kill("b2").await;
    // Adds wait until it is declared down; then the other one goes on alone.
    add(&cluster, &mut pages, 250..400, 3).await;
    check(&cluster, &pages).await;
    let first = repository.nodes["b1"].id();
    until(&cluster, "one is alone", |s| s.nodes.iter().all(|n| n.id == first || n.whole == Some(0))).await;
    repository.start_node("b2").await;
    // It takes adds at once, and serves when what it missed has come to it.
    add(&cluster, &mut pages, 350..450, 4).await;
    check(&cluster, &pages).await;
    until_whole(&cluster, 2, 2).await;
    check(&cluster, &pages).await;
    repository.kill("b1").await;
    check(&cluster, &pages).await;
    add(&cluster, &mut pages, 400..500, 5).await;
    check(&cluster, &pages).await;
    // Both away, and the one that lacks something returns first: better no answer than a wrong one.
    until(&cluster, "the second is alone", |s| s.nodes.iter().any(|n| n.whole == Some(0))).await;
    repository.kill("b2").await;
    let down = |s: &Status| s.nodes.iter().all(|n| n.state == webbase_node::plan::NodeState::Down);
    until(&cluster, "both are down", down).await;
    repository.start_node("b1").await;
    until(&cluster, "it is back", |s| !down(s)).await;
    let plan = cluster.management().read_plan().await.unwrap().0;
    assert!(plan.ranges.iter().all(Vec::is_empty), "{plan:?}");
    let add_plan = cluster.management().add_plan().await.unwrap().0;
    assert!(add_plan.ranges.iter().all(Vec::is_empty), "{add_plan:?}");
    repository.start_node("b2").await;
    until_whole(&cluster, 2, 2).await;
    check(&cluster, &pages).await;
}

async fn nodes_join_and_leave_while_pages_come(distribution: Distribution) {
    let (mut repository, cluster) =
        start(distribution, 2, Organization::Hash, &["b1", "b2"], settings()).await;
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
    until_whole(&cluster, 3, 2).await;
    check(&cluster, &pages).await;
    let first = repository.nodes["b1"].id();
    cluster.drain(first).await.unwrap();
    add(&cluster, &mut pages, 500..600, 50).await;
    check(&cluster, &pages).await;
    until(&cluster, "the drained node is gone", |s| s.nodes.iter().all(|n| n.id != first)).await;
    repository.kill("b1").await;
    until_whole(&cluster, 2, 2).await;
    check(&cluster, &pages).await;
    add(&cluster, &mut pages, 550..650, 51).await;
    check(&cluster, &pages).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cursor_goes_on_after_folds_restarts_and_compaction() {
    let (mut repository, cluster) =
        start(Distribution::Hash, 1, Organization::Log, &["b1"], settings()).await;
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
    until_whole(&cluster, 1, 1).await;
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

/// What is left of a stream, each page once.
async fn rest_of(stream: webbase_node::Result<ClusterStream>) -> BTreeSet<String> {
    let (mut stream, mut rest) = (stream.unwrap(), BTreeSet::new());
    while let Some(record) = stream.next().await {
        let url = record.unwrap().get().url().to_owned();
        assert!(rest.insert(url.clone()), "{url} came twice");
    }
    rest
}

async fn streams_of_all_nodes_have_cursors(distribution: Distribution, organization: Organization) {
    let (mut repository, cluster) =
        start(distribution, 2, organization, &["b1", "b2", "b3"], settings()).await;
    until_whole(&cluster, 3, 2).await;
    let mut pages = Pages::new();
    add(&cluster, &mut pages, 0..200, 1).await;
    cluster.cycle(|_| {}).await.unwrap();
    add(&cluster, &mut pages, 150..300, 2).await;
    let all: BTreeSet<String> = pages.keys().cloned().collect();
    let mut stream = cluster.stream().await.unwrap();
    let (mut taken, mut cursors) = (BTreeSet::new(), Vec::new());
    while let Some(record) = stream.next().await {
        taken.insert(record.unwrap().get().url().to_owned());
        if taken.len() % 37 == 0 {
            let cursor: StreamCursor = stream.cursor().unwrap().to_string().parse().unwrap();
            cursors.push((taken.clone(), cursor));
        }
    }
    assert_eq!((&taken, cursors.len()), (&all, all.len() / 37));
    // Right away exactly the rest comes.
    for (taken, cursor) in &cursors {
        let left: BTreeSet<String> = all.difference(taken).cloned().collect();
        assert_eq!(rest_of(cluster.resume(cursor).await).await, left);
    }
    // After a fold nothing of it is skipped,
    cluster.cycle(|_| {}).await.unwrap();
    for (taken, cursor) in &cursors {
        let rest = rest_of(cluster.resume(cursor).await).await;
        assert!(all.difference(taken).all(|url| rest.contains(url)));
    }
    // nor after the loss of a node: where only it knew the place, that is said, and the range comes anew if that is wanted.
    repository.kill("b2").await;
    let is_down = |s: &Status| s.nodes.iter().any(|n| n.state == webbase_node::plan::NodeState::Down);
    until(&cluster, "one is down", is_down).await;
    let mut lost = 0;
    for (taken, cursor) in &cursors {
        match cluster.resume(cursor).await {
            Err(NodeError::StreamLost { .. }) => lost += 1,
            resumed => drop(resumed.unwrap()),
        }
        let rest = rest_of(cluster.go_on(cursor).await).await;
        assert!(all.difference(taken).all(|url| rest.contains(url)));
    }
    assert_eq!(lost > 0, organization == Organization::Log, "{lost} of {}", cursors.len());
}

async fn streams_of_logs_have_cursors(distribution: Distribution) {
    streams_of_all_nodes_have_cursors(distribution, Organization::Log).await;
}

async fn streams_of_hash_stores_have_cursors(distribution: Distribution) {
    streams_of_all_nodes_have_cursors(distribution, Organization::Hash).await;
}

async fn removed_pages_go_with_the_next_fold_and_stay_away(distribution: Distribution) {
    let (_repository, cluster) = start(distribution, 2, Organization::Log, &["b1", "b2"], settings()).await;
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
        start(Distribution::Hash, 1, Organization::Log, &["b1", "b2"], settings()).await;
    for role in [Role::Update, Role::Read] {
        let refused = Host::start(HostOptions { role, ..repository.options("other") }).await.err().unwrap();
        assert!(refused.to_string().contains("the role both"), "{refused}");
        std::fs::remove_dir_all(repository.folder("other")).unwrap();
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
