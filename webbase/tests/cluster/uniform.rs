//! The distribution `uniform`, with processes: the management server is killed while pages are added, nodes are killed, the
//! index is lost; every page is there once, in its newest version.

use serde_json::Value;

use crate::fleet::{Fleet, until};
use crate::truth::{Truth, body, url};

async fn fleet(replicas: u32) -> Fleet {
    let mut fleet = Fleet::new(replicas, &["--distribution", "uniform", "--add-limit-ms", "500"]);
    for name in ["u0", "u1"] {
        fleet.node(name, &["--role", "update"]);
    }
    for name in ["r0", "r1"] {
        fleet.node(name, &["--role", "read"]);
    }
    fleet.settled(&fleet.client().await).await;
    fleet
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_go_anywhere_and_are_found_by_the_index() {
    let mut fleet = fleet(2).await;
    let cluster = fleet.client().await;
    let truth = Truth::new(600);
    truth.add(&cluster, 0..800, 1).await;
    assert_eq!(truth.cycle(&cluster).await, 1);
    truth.check_all(&cluster).await;
    // Killed while pages are added: what was told is told again, and pages meet their old versions.
    let (adder, adding) = (cluster.clone(), truth.clone());
    let added = tokio::spawn(async move {
        for from in (0..1200).step_by(100) {
            adding.add(&adder, from..from + 100, 2).await;
        }
    });
    for _ in 0..3 {
        tokio::time::sleep(std::time::Duration::from_millis(150)).await;
        fleet.kill("mgmt");
        fleet.start("mgmt");
    }
    added.await.unwrap();
    fleet.settled(&cluster).await;
    assert_eq!(truth.cycle(&cluster).await, 2);
    truth.check_all(&cluster).await;
    assert_eq!(truth.check_stream(&cluster, false).await, 2);
    fleet.kill("r0");
    fleet.kill("u1");
    truth.check_all(&cluster).await;
    truth.check_stream(&cluster, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_index_is_made_anew_and_status_says_so() {
    let mut fleet = fleet(1).await;
    let cluster = fleet.client().await;
    let truth = Truth::new(400);
    truth.add(&cluster, 0..500, 1).await;
    truth.cycle(&cluster).await;
    truth.add(&cluster, 400..700, 2).await;
    fleet.kill("mgmt");
    std::fs::remove_dir_all(fleet.dir("mgmt").join("page-index")).unwrap();
    fleet.start("mgmt");
    until(&cluster, "the index is complete", |s| s.page_index.is_some_and(|index| index.complete)).await;
    let status = fleet.command(&["status", "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!((&status["distribution"], &status["page_index"]["pages"]), (&"uniform".into(), &700.into()));
    let text = String::from_utf8(fleet.command(&["status"]).stdout).unwrap();
    assert!(text.contains("the index is complete: 700 pages"), "{text}");
    fleet.settled(&cluster).await;
    truth.cycle(&cluster).await;
    truth.check_all(&cluster).await;
    truth.check_stream(&cluster, false).await;
    let id = cluster.page_key(&url(8)).unwrap().id.to_string();
    assert!(fleet.command(&["get", &id]).stdout == body(8, 1, 400));
    let missing = fleet.command(&["get", "http://nowhere.example/"]);
    assert_eq!((missing.status.code(), missing.stdout.len()), (Some(4), 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cursors_of_many_ranges_go_on_over_http() {
    for organization in ["hash", "log"] {
        cursors_go_on(organization).await;
    }
}

async fn cursors_go_on(organization: &str) {
    const PAGES: usize = 4000;
    let mut fleet = Fleet::new(1, &["--distribution", "uniform", "--range-bits", "10"]);
    fleet.node("u0", &["--role", "update"]);
    // Where the pages of all ranges come in one order, each range has a place of its own.
    fleet.node("r0", &["--role", "read", "--organization", organization]);
    let cluster = fleet.client().await;
    fleet.settled(&cluster).await;
    let truth = Truth::new(40);
    truth.add(&cluster, 0..PAGES, 1).await;
    truth.cycle(&cluster).await;
    let place = tempfile::tempdir().unwrap();
    for format in ["jsonl", "warc"] {
        let file = place.path().join(format);
        let cursor = file.to_str().unwrap();
        let mut streamed = Vec::new();
        for limit in ["1500", "1500", "1500"] {
            let some = fleet.command(&["stream", "--format", format, "--limit", limit, "--cursor", cursor]);
            assert!(some.status.success(), "{}", String::from_utf8_lossy(&some.stderr));
            if streamed.is_empty() {
                let len = std::fs::metadata(&file).unwrap().len();
                assert!(len > 16 << 10, "a cursor of {len} bytes would fit into a query");
            }
            streamed.extend(some.stdout);
        }
        let urls: Vec<String> = match format {
            "jsonl" => String::from_utf8(streamed)
                .unwrap()
                .lines()
                .filter_map(|line| {
                    Some(serde_json::from_str::<Value>(line).unwrap()["url"].as_str()?.to_owned())
                })
                .collect(),
            _ => urls_of_warc(&streamed),
        };
        let different: std::collections::BTreeSet<&String> = urls.iter().collect();
        assert_eq!((urls.len(), different.len()), (PAGES, PAGES), "{format} of {organization}");
    }
}

fn urls_of_warc(bytes: &[u8]) -> Vec<String> {
    let mut reader = webbase_stream::warc::Reader::new(bytes).unwrap();
    let mut urls = Vec::new();
    while let Some(item) = reader.next().unwrap() {
        let webbase_stream::warc::Item::Record(record) = item else { panic!("{item:?}") };
        if matches!(
            record.kind(),
            webbase_stream::warc::Kind::Resource | webbase_stream::warc::Kind::Response
        ) {
            urls.push(record.head.uri().unwrap());
        }
    }
    urls
}
