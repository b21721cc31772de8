//! The repository changes its shape while it is read: full disks, nodes that come, go in good order, or are lost.

use std::collections::BTreeMap;
use std::time::Instant;

use webbase_node::Cluster;
use webbase_node::cycle::message::NodeId;
use webbase_node::plan::{NodeState, ReadPlan, Status};
use webbase_storage::Stats;

use crate::fleet::{Fleet, LIMIT, until};
use crate::truth::Truth;
use crate::watch::Watch;

/// Fetches read plans until one is as wanted.
async fn plan_until(cluster: &Cluster, what: &str, wanted: impl Fn(&ReadPlan) -> bool) -> ReadPlan {
    let end = Instant::now() + LIMIT;
    loop {
        let (plan, _) = cluster.management().read_plan().await.unwrap();
        if wanted(&plan) {
            return plan;
        }
        assert!(Instant::now() < end, "{what}: not within {LIMIT:?}: {plan:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

fn ranges_of(plan: &ReadPlan, node: NodeId) -> usize {
    plan.ranges.iter().filter(|nodes| nodes.contains(&node)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_aborts_the_cycle_and_nothing_else() {
    let mut fleet = Fleet::new(1, &["--prepare-limit-ms", "20000"]);
    fleet.node("u0", &["--role", "update"]);
    fleet.node("r0", &["--role", "read"]);
    fleet.node("r1", &["--role", "read", "--capacity", "8000000"]);
    let cluster = fleet.client().await;
    fleet.settled(&cluster).await;
    let truth = Truth::new(4000);
    truth.add(&cluster, 0..200, 1).await;
    truth.cycle(&cluster).await;
    let watch = Watch::start(&cluster, &truth, 200);
    // About 20 MB for each read node.
    truth.add(&cluster, 0..10_000, 2).await;
    let before = cluster.status().await.unwrap();
    truth.expect(before.committed + 1);
    let failed = cluster.cycle(|_| {}).await.unwrap_err();
    let r1 = fleet.id(&cluster, "r1").await;
    let why = format!("node {:016x} has no room", r1.0);
    assert!(failed.to_string().contains("aborted") && failed.to_string().contains(&why), "{failed}");
    let after = fleet.settled(&cluster).await;
    assert_eq!((after.committed, after.cycle), (before.committed, None));
    // The old generation is read as before, and the pages are not lost: with more room the next cycle brings them.
    let so_far = watch.lookups();
    until(&cluster, "readers go on", |_| watch.lookups() > so_far + 20).await;
    watch.end().await;
    fleet.stop("r1");
    fleet.start_with("r1", "--capacity", "100000000");
    fleet.settled(&cluster).await;
    truth.cycle(&cluster).await;
    truth.check_all(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_update_node_refuses_pages_and_loses_none_that_it_took() {
    let mut fleet = Fleet::new(1, &[]);
    fleet.node("u0", &["--role", "update", "--capacity", "8000000"]);
    fleet.node("r0", &["--role", "read"]);
    let cluster = fleet.client().await;
    fleet.settled(&cluster).await;
    let truth = Truth::new(4000);
    // About 16 MB.
    let numbers: Vec<usize> = (0..4000).collect();
    let refused = truth.add_some(&cluster, &numbers, 1).await;
    assert!((1000..4000).contains(&refused.len()), "{} of 4000 were refused", refused.len());
    for (n, why) in &refused {
        assert!(why.contains("no space") || why.contains("full"), "page {n}: {why}");
    }
    // What it took is there, and with the epoch its space is free again: then it takes the others.
    truth.cycle(&cluster).await;
    truth.check_all(&cluster).await;
    let u0 = fleet.id(&cluster, "u0").await;
    let emptied = |status: &Status| {
        let node = status.nodes.iter().find(|node| node.id == u0);
        let figures = node.and_then(|node| node.figures);
        figures.is_some_and(|figures| Stats::from(figures.store).used_bytes < 2_000_000)
    };
    until(&cluster, "its epoch is dropped", emptied).await;
    let rest: Vec<usize> = refused.iter().map(|(n, _)| *n).take(1000).collect();
    assert_eq!(truth.add_some(&cluster, &rest, 1).await, []);
    truth.cycle(&cluster).await;
    truth.check_all(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_third_read_node_takes_a_third() {
    let mut fleet = Fleet::with(1, &["log"], &["log", "log"]).await;
    let cluster = fleet.client().await;
    let truth = Truth::new(1000);
    truth.add(&cluster, 0..2000, 1).await;
    truth.cycle(&cluster).await;
    let old = [fleet.id(&cluster, "r0").await, fleet.id(&cluster, "r1").await];
    let (before, _) = cluster.management().read_plan().await.unwrap();
    let owner = |plan: &ReadPlan| -> BTreeMap<usize, NodeId> {
        plan.ranges.iter().enumerate().filter_map(|(r, nodes)| Some((r, *nodes.first()?))).collect()
    };
    assert_eq!(owner(&before).len(), 64);
    let watch = Watch::start(&cluster, &truth, 2000);
    fleet.node("r2", &["--role", "read", "--organization", "hash"]);
    let new = fleet.id(&cluster, "r2").await;
    let moved = |plan: &ReadPlan| (16..=27).contains(&ranges_of(plan, new));
    let plan = plan_until(&cluster, "a third of the ranges has moved", moved).await;
    // What did not move to the new node stayed where it was.
    for (range, nodes) in plan.ranges.iter().enumerate() {
        let stayed = nodes.contains(&owner(&before)[&range]);
        assert!(stayed || nodes.contains(&new), "range {range} moved between old nodes: {nodes:?}");
    }
    truth.add(&cluster, 1000..3000, 2).await;
    truth.cycle(&cluster).await;
    watch.end().await;
    truth.check_all(&cluster).await;
    let (plan, _) = cluster.management().read_plan().await.unwrap();
    let shares: Vec<usize> = [old[0], old[1], new].iter().map(|node| ranges_of(&plan, *node)).collect();
    assert!(shares.iter().all(|share| (16..=27).contains(share)), "{shares:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_drained_while_they_are_read() {
    let mut fleet = Fleet::with(1, &["log", "log"], &["log", "hash"]).await;
    let cluster = fleet.client().await;
    let truth = Truth::new(1000);
    truth.add(&cluster, 0..1500, 1).await;
    truth.cycle(&cluster).await;
    // Half of what is not in a generation yet lies on the update node that leaves.
    truth.add(&cluster, 500..1500, 2).await;
    let watch = Watch::start(&cluster, &truth, 1500);
    let read = fleet.id(&cluster, "r0").await;
    cluster.drain(read).await.unwrap();
    until(&cluster, "the read node has left", |s| s.nodes.iter().all(|n| n.id != read)).await;
    fleet.stop("r0");
    let update = fleet.id(&cluster, "u0").await;
    cluster.drain(update).await.unwrap();
    truth.cycle(&cluster).await;
    until(&cluster, "the update node has left", |s| s.nodes.iter().all(|n| n.id != update)).await;
    fleet.stop("u0");
    watch.end().await;
    truth.check_all(&cluster).await;
    truth.add(&cluster, 0..500, 3).await;
    truth.cycle(&cluster).await;
    truth.check_all(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_node_is_replaced_by_an_empty_one() {
    let mut fleet = Fleet::with(2, &["log", "log"], &["log", "hash"]).await;
    let cluster = fleet.client().await;
    let truth = Truth::new(1000);
    truth.add(&cluster, 0..1500, 1).await;
    truth.cycle(&cluster).await;
    let watch = Watch::start(&cluster, &truth, 1500);
    let lost = fleet.id(&cluster, "r0").await;
    fleet.kill("r0");
    let down = |s: &Status| s.nodes.iter().any(|n| n.id == lost && n.state == NodeState::Down);
    until(&cluster, "the lost node is down", down).await;
    let removed = fleet.command(&["remove-lost", &format!("{:016x}", lost.0)]);
    assert!(removed.status.success(), "{}", String::from_utf8_lossy(&removed.stderr));
    fleet.node("r2", &["--role", "read"]);
    let new = fleet.id(&cluster, "r2").await;
    plan_until(&cluster, "the new node has everything", |plan| ranges_of(plan, new) == 64).await;
    fleet.settled(&cluster).await;
    // It stands alone.
    fleet.kill("r1");
    truth.check_all(&cluster).await;
    fleet.start("r1");
    fleet.settled(&cluster).await;
    watch.end().await;
    truth.add(&cluster, 1000..2000, 2).await;
    truth.cycle(&cluster).await;
    truth.check_all(&cluster).await;
}
