//! When nothing goes wrong: cycles with all organizations, the commands, ending and starting in good order.

use serde_json::Value;

use crate::fleet::Fleet;
use crate::truth::{Truth, body, url};

/// Two cycles: new pages, changed pages, pages that stay; then everything ends and starts again.
async fn two_cycles(update: &str, read: &str) {
    let mut fleet = Fleet::with(1, &[update], &[read]).await;
    let cluster = fleet.client().await;
    let truth = Truth::new(700);
    truth.add(&cluster, 0..400, 1).await;
    truth.check_all(&cluster).await;
    assert_eq!(truth.cycle(&cluster).await, 1);
    truth.check_all(&cluster).await;
    truth.add(&cluster, 300..600, 2).await;
    truth.check_all(&cluster).await;
    assert_eq!(truth.cycle(&cluster).await, 2);
    truth.check_all(&cluster).await;
    assert_eq!(truth.check_stream(&cluster, false).await, 2);
    fleet.settled(&cluster).await;
    for name in ["r0", "u0", "mgmt"] {
        fleet.stop(name);
    }
    for name in ["mgmt", "u0", "r0"] {
        fleet.start(name);
    }
    fleet.settled(&cluster).await;
    let cluster = fleet.client().await;
    truth.check_all(&cluster).await;
    truth.add(&cluster, 500..700, 3).await;
    assert_eq!(truth.cycle(&cluster).await, 3);
    truth.check_all(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cycle_from_log_to_log() {
    two_cycles("log", "log").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cycle_from_log_to_hash() {
    two_cycles("log", "hash").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cycle_from_hash() {
    two_cycles("hash", "log").await;
    two_cycles("hash", "hash").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cycle_from_hashed_log() {
    two_cycles("hashed-log", "log").await;
    two_cycles("hashed-log", "hash").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_nodes_are_one_repository() {
    let fleet = Fleet::with(2, &["log", "hash", "log"], &["log", "hash", "log"]).await;
    let cluster = fleet.client().await;
    let truth = Truth::new(900);
    for round in 1..=3 {
        truth.add(&cluster, 0..1000 * round as usize, round).await;
        truth.cycle(&cluster).await;
        truth.check_all(&cluster).await;
        truth.check_stream(&cluster, false).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_both_roles_does_for_small_repositories() {
    let mut fleet = Fleet::new(1, &[]);
    fleet.node("b0", &["--role", "both"]);
    let cluster = fleet.client().await;
    fleet.settled(&cluster).await;
    let truth = Truth::new(300);
    truth.add(&cluster, 0..200, 1).await;
    truth.cycle(&cluster).await;
    truth.check_all(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_do_what_they_say() {
    let fleet = Fleet::with(1, &["log"], &["log"]).await;
    let cluster = fleet.client().await;
    let truth = Truth::new(500);
    truth.add(&cluster, 0..50, 1).await;
    truth.expect(1);

    let cycle = fleet.command(&["cycle"]);
    assert!(cycle.status.success(), "{}", String::from_utf8_lossy(&cycle.stderr));
    assert_eq!(String::from_utf8_lossy(&cycle.stdout), "1\n");
    let told = String::from_utf8_lossy(&cycle.stderr);
    let last = told.lines().last().unwrap();
    assert!(last.starts_with("cycle 1 made generation 1 in ") && last.contains(" 50 pages, "), "{told}");

    let get = fleet.command(&["get", &url(7)]);
    assert!(get.status.success());
    assert!(get.stdout == body(7, 1, 500));
    let id = cluster.page_key(&url(8)).unwrap().id.to_string();
    assert!(fleet.command(&["get", &id]).stdout == body(8, 1, 500));
    let missing = fleet.command(&["get", "http://nowhere.example/"]);
    assert_eq!((missing.status.code(), missing.stdout.len()), (Some(4), 0));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("is not in the repository"));

    let count = fleet.command(&["stream", "--format", "count"]);
    assert!(String::from_utf8_lossy(&count.stdout).starts_with("generation 1: 50 pages, "));

    let status = fleet.command(&["status", "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!((&status["serving"], &status["committed"]), (&Value::from(1), &Value::from(1)));
    assert_eq!(status["nodes"].as_array().unwrap().len(), 2);
    let outcome = &status["outcome"];
    assert_eq!((&outcome["generation"], &outcome["aborted"]), (&Value::from(1), &Value::Null));
    assert_eq!((&outcome["cycle"], &outcome["pages"]), (&Value::from(1), &Value::from(50)));
    let text = fleet.command(&["status"]);
    assert_eq!(String::from_utf8_lossy(&text.stdout).lines().count(), 5);

    let unknown = fleet.command(&["drain", "00000000000000ff"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("00000000000000ff"));
}
