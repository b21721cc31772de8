//! Somebody dies in a cycle. At each phase each kind of process is killed, and started again, while readers read and pages
//! are added: the cycle comes to its end, or the next one does; readers notice nothing; nothing acknowledged is lost.
//!
//! A phase is held open by stopping (SIGSTOP) a node that it waits for; the phase of switching is too short for that, and is
//! caught by looking often. What was hit is printed.

use std::time::{Duration, Instant};

use webbase_node::Cluster;
use webbase_node::plan::{NodeState, Status};

use crate::fleet::{Fleet, LIMIT, until};
use crate::truth::Truth;
use crate::watch::Watch;

const PAGES: usize = 1500;

/// Looks often until the running cycle is in this phase, or has passed it; says which phase was found.
async fn phase(cluster: &Cluster, cycle: u64, wanted: &str) -> String {
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        if let Ok(status) = cluster.status().await {
            match &status.cycle {
                Some((number, phase)) if *number == cycle && phase.starts_with(wanted) => {
                    return phase.clone();
                }
                Some((number, phase)) if *number == cycle && phase.starts_with("switching") => {
                    return phase.clone();
                }
                None if status.last_cycle >= cycle => return "over".to_owned(),
                _ => {}
            }
        }
    }
    panic!("no {wanted} within {LIMIT:?}");
}

/// One cycle with one death.
async fn die(fleet: &mut Fleet, cluster: &Cluster, truth: &Truth, victim: &str, at: &str, round: u32) {
    truth.add(cluster, 0..PAGES / 2, round).await;
    let before = fleet.settled(cluster).await;
    truth.expect(before.committed + 1);
    let hold = match at {
        "sealing" => Some("u1"),
        "preparing" => Some("r1"),
        _ => None,
    };
    if let Some(hold) = hold {
        fleet.pause(hold);
    }
    let runner = cluster.clone();
    let running = tokio::spawn(async move { runner.cycle(|_| {}).await });
    let hit = phase(cluster, before.last_cycle + 1, at).await;
    fleet.kill(victim);
    println!("killed {victim} in phase {hit}, wanted {at}");
    if hold.is_some() {
        assert!(hit.starts_with(at), "the phase {at} was held, and found was {hit}");
    }
    // Dead for a while: long enough to be missed by the others.
    tokio::time::sleep(Duration::from_millis(700)).await;
    if let Some(hold) = hold {
        fleet.go_on(hold);
    }
    fleet.start(victim);
    let made = match running.await.unwrap() {
        Ok(generation) => generation,
        Err(e) => {
            println!("the cycle did not come to its end: {e}");
            fleet.settled(cluster).await;
            truth.cycle(cluster).await
        }
    };
    assert!(made > before.committed);
    fleet.settled(cluster).await;
    truth.check_all(cluster).await;
}

async fn deaths(victim: &str) {
    let mut fleet = Fleet::with(2, &["log", "log"], &["log", "hash"]).await;
    let cluster = fleet.client().await;
    let truth = Truth::new(1500);
    truth.add(&cluster, 0..PAGES, 1).await;
    truth.cycle(&cluster).await;
    let watch = Watch::start(&cluster, &truth, PAGES);
    for (round, at) in ["sealing", "preparing", "switching"].into_iter().enumerate() {
        die(&mut fleet, &cluster, &truth, victim, at, round as u32 + 2).await;
    }
    assert!(watch.lookups() > 0);
    watch.end().await;
    // After all that, a cycle like any other.
    truth.add(&cluster, PAGES / 3..PAGES, 9).await;
    truth.cycle(&cluster).await;
    truth.check_all(&cluster).await;
    truth.check_stream(&cluster, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_management_server_dies_in_each_phase() {
    deaths("mgmt").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_node_dies_in_each_phase() {
    deaths("u0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_node_dies_in_each_phase() {
    deaths("r0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_acknowledged_while_an_update_node_is_dead_are_kept() {
    let mut fleet = Fleet::with(2, &["log", "hashed-log"], &["log"]).await;
    let cluster = fleet.client().await;
    let truth = Truth::new(800);
    truth.add(&cluster, 0..300, 1).await;
    fleet.kill("u0");
    // Waits until the dead node is declared down, and is acknowledged then.
    truth.add(&cluster, 300..600, 1).await;
    fleet.start("u0");
    fleet.settled(&cluster).await;
    fleet.kill("u1");
    truth.add(&cluster, 600..900, 1).await;
    fleet.start("u1");
    fleet.settled(&cluster).await;
    truth.cycle(&cluster).await;
    truth.check_all(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_does_not_answer_is_declared_down_and_returns() {
    let fleet = Fleet::with(2, &["log"], &["log", "log"]).await;
    let cluster = fleet.client().await;
    let truth = Truth::new(1500);
    truth.add(&cluster, 0..PAGES, 1).await;
    truth.cycle(&cluster).await;
    let paused = fleet.id(&cluster, "r0").await;
    let watch = Watch::start(&cluster, &truth, PAGES);
    fleet.pause("r0");
    let down = |s: &Status| s.nodes.iter().any(|n| n.id == paused && n.state == NodeState::Down);
    until(&cluster, "the stopped node is declared down", down).await;
    let so_far = watch.lookups();
    // A cycle goes on without it.
    truth.add(&cluster, 0..PAGES / 2, 2).await;
    truth.cycle(&cluster).await;
    truth.check_all(&cluster).await;
    // Readers may wait for the stopped node a while, each once.
    until(&cluster, "lookups go on", |_| watch.lookups() > so_far).await;
    fleet.go_on("r0");
    fleet.settled(&cluster).await;
    watch.end().await;
    truth.check_all(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_dies_at_once() {
    let mut fleet = Fleet::with(2, &["log", "hash"], &["log", "hash"]).await;
    let cluster = fleet.client().await;
    let truth = Truth::new(1500);
    truth.add(&cluster, 0..PAGES, 1).await;
    truth.cycle(&cluster).await;
    truth.add(&cluster, 0..PAGES / 2, 2).await;
    let before = fleet.settled(&cluster).await;
    truth.expect(before.committed + 1);
    let cycle = cluster.management().start_cycle().await.unwrap();
    let hit = phase(&cluster, cycle, "preparing").await;
    let all = ["u0", "u1", "r0", "r1", "mgmt"];
    for name in all {
        fleet.kill(name);
    }
    println!("killed everybody in phase {hit}");
    for name in all.iter().rev() {
        fleet.start(name);
    }
    let cluster = fleet.client().await;
    fleet.settled(&cluster).await;
    // The interrupted cycle may have gone on without an update node that took long to return: the next one has its pages.
    truth.cycle(&cluster).await;
    truth.check_all(&cluster).await;
    truth.check_stream(&cluster, false).await;
}
