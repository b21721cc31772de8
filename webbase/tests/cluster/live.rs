//! Incremental update: what is acknowledged is seen at once by everybody, whoever is killed, joins or folds meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use webbase_node::Cluster;
use webbase_node::plan::{LIVE, Status};
use webbase_storage::{Page, PageKey};

use crate::fleet::{Fleet, until};
use crate::truth::{Truth, body, url};

const RANGES: u32 = 64;

async fn whole(cluster: &Cluster, nodes: usize, replicas: u32) -> Status {
    let copies = |s: &Status| s.nodes.iter().filter_map(|n| n.whole).sum::<u32>();
    let all = |s: &Status| s.nodes.len() == nodes && copies(s) == replicas * RANGES;
    until(cluster, "every node has all it should have", all).await
}

fn incremental(replicas: u32, settings: &[&str]) -> Fleet {
    Fleet::new(replicas, &[&["--update", "incremental"], settings].concat())
}

/// Adds rounds of pages for as long as it may, and has another client look for each of them when it is acknowledged.
struct Writer {
    going: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<BTreeMap<usize, u32>>>,
    task: tokio::task::JoinHandle<()>,
}

const PAGES: usize = 600;
const BATCH: usize = 60;
const BYTES: usize = 700;

impl Writer {
    fn start(writing: Cluster, reading: Cluster) -> Writer {
        let going = Arc::new(AtomicBool::new(true));
        let acknowledged: Arc<Mutex<BTreeMap<usize, u32>>> = Arc::default();
        let (go_on, truth) = (going.clone(), acknowledged.clone());
        let task = tokio::spawn(async move {
            let mut round = 0;
            while go_on.load(Ordering::Relaxed) {
                round += 1;
                let first = (round as usize * 37) % (PAGES - BATCH);
                let texts: Vec<_> =
                    (first..first + BATCH).map(|n| (n, url(n), body(n, round, BYTES))).collect();
                let fetched_at_ms = u64::from(round);
                let pages: Vec<Page<'_>> = texts
                    .iter()
                    .map(|(_, url, body)| Page { url, body, fetched_at_ms, ..Page::default() })
                    .collect();
                let done = writing.add(&pages).await.unwrap();
                assert_eq!(done.all().unwrap(), BATCH as u64);
                truth.lock().unwrap().extend(texts.iter().map(|(n, ..)| (*n, round)));
                let keys: Vec<PageKey> =
                    texts.iter().map(|(_, url, _)| reading.page_key(url).unwrap()).collect();
                // Another client, with a plan that it gets now.
                reading.refresh().await.unwrap();
                let found = reading.lookup_many(&keys).await.unwrap();
                for (found, (n, ..)) in found.pages.into_iter().zip(&texts) {
                    let record =
                        found.unwrap().unwrap_or_else(|| panic!("page {n} of round {round} is not there"));
                    assert_eq!(record.get().version().fetched_at_ms, fetched_at_ms, "page {n}");
                }
            }
        });
        Writer { going, acknowledged, task }
    }

    fn rounds(&self) -> u32 {
        self.acknowledged.lock().unwrap().values().copied().max().unwrap_or(0)
    }

    /// Waits until more was acknowledged, and seen.
    async fn goes_on(&self, cluster: &Cluster) {
        let so_far = self.rounds();
        until(cluster, "adds go on", |_| self.rounds() > so_far + 3 || self.task.is_finished()).await;
        assert!(!self.task.is_finished(), "the writer failed");
    }

    async fn end(self) -> BTreeMap<usize, u32> {
        self.going.store(false, Ordering::Relaxed);
        self.task.await.unwrap();
        std::mem::take(&mut self.acknowledged.lock().unwrap())
    }
}

/// Every page, byte by byte, by lookups and by a stream.
async fn check(cluster: &Cluster, acknowledged: &BTreeMap<usize, u32>) {
    for (n, round) in acknowledged {
        let record = cluster.lookup_url(&url(*n)).await.unwrap().pages.unwrap();
        assert!(record.body(cluster.dictionaries()).unwrap()[..] == body(*n, *round, BYTES)[..], "page {n}");
    }
    let mut expected: BTreeMap<String, Vec<u8>> =
        acknowledged.iter().map(|(n, round)| (url(*n), body(*n, *round, BYTES))).collect();
    let mut stream = cluster.stream().await.unwrap();
    while let Some(record) = stream.next().await {
        let record = record.unwrap();
        let body = expected.remove(record.get().url()).expect("a page that was added, once");
        assert!(record.body(cluster.dictionaries()).unwrap()[..] == body[..], "{}", record.get().url());
    }
    assert!(expected.is_empty(), "{} pages did not come", expected.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_acknowledged_is_seen_whoever_is_killed() {
    let mut fleet = incremental(2, &["--fold-ms", "700"]);
    for (name, organization) in [("b0", "log"), ("b1", "hash"), ("b2", "log")] {
        fleet.node(name, &["--role", "both", "--organization", organization]);
    }
    let cluster = fleet.client().await;
    whole(&cluster, 3, 2).await;
    let writer = Writer::start(fleet.client().await, fleet.client().await);
    writer.goes_on(&cluster).await;
    for name in ["b0", "b1", "b2"] {
        fleet.kill(name);
        // The other replica goes on, alone once the dead one is declared down.
        writer.goes_on(&cluster).await;
        fleet.start(name);
        writer.goes_on(&cluster).await;
        whole(&cluster, 3, 2).await;
        println!("{name} was killed and is back; {} rounds", writer.rounds());
    }
    fleet.kill("mgmt");
    fleet.start("mgmt");
    writer.goes_on(&cluster).await;
    fleet.node("b3", &["--role", "both"]);
    whole(&cluster, 4, 2).await;
    writer.goes_on(&cluster).await;
    let drained = fleet.id(&cluster, "b0").await;
    cluster.drain(drained).await.unwrap();
    until(&cluster, "the drained node is gone", |s| s.nodes.iter().all(|n| n.id != drained)).await;
    fleet.kill("b0");
    writer.goes_on(&cluster).await;
    whole(&cluster, 3, 2).await;
    assert!(cluster.status().await.unwrap().committed > 3, "folds ran");
    let acknowledged = writer.end().await;
    check(&cluster, &acknowledged).await;
    // Any one of them can be missing.
    fleet.kill("b1");
    check(&cluster, &acknowledged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_know_incremental_update() {
    let mut fleet = incremental(1, &["--fold-ms", "3600000"]);
    fleet.node("b0", &["--role", "both"]);
    let cluster = fleet.client().await;
    whole(&cluster, 1, 1).await;
    let truth = Truth::new(500);
    truth.add(&cluster, 0..50, 1).await;
    truth.expect(LIVE);
    truth.check_all(&cluster).await;
    let get = fleet.command(&["get", &url(7)]);
    assert!(get.status.success() && get.stdout == body(7, 1, 500));
    let count = || fleet.command(&["stream", "--format", "count"]).stdout;
    assert!(String::from_utf8_lossy(&count()).starts_with("live: 50 pages, "));
    let status: Value = serde_json::from_slice(&fleet.command(&["status", "--json"]).stdout).unwrap();
    assert_eq!((&status["update"], &status["committed"]), (&Value::from("incremental"), &Value::from(0)));
    let cycle = fleet.command(&["cycle"]);
    assert_eq!(String::from_utf8_lossy(&cycle.stdout), "1\n", "{}", String::from_utf8_lossy(&cycle.stderr));
    assert!(String::from_utf8_lossy(&count()).starts_with("live: 50 pages, "));
    truth.check_all(&cluster).await;
    // A stream is taken in two parts: the place of the first is kept in a file.
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("place");
    let some = |limit: &'static str| {
        let place = place.to_str().unwrap();
        let taken = fleet.command(&["stream", "--format", "jsonl", "--cursor", place, "--limit", limit]);
        assert!(taken.status.success(), "{}", String::from_utf8_lossy(&taken.stderr));
        let lines = String::from_utf8(taken.stdout).unwrap();
        let urls = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["url"].clone());
        urls.filter_map(|url| url.as_str().map(str::to_owned)).collect::<Vec<String>>()
    };
    let (mut first, rest) = (some("20"), some("1000"));
    assert_eq!((first.len(), rest.len()), (20, 30));
    first.extend(rest);
    first.sort_unstable();
    first.dedup();
    assert_eq!(first.len(), 50);
    // Everything is there after a restart, too, whatever is folded and whatever is not.
    truth.add(&cluster, 40..90, 2).await;
    truth.expect(LIVE);
    for name in ["b0", "mgmt"] {
        fleet.stop(name);
    }
    for name in ["mgmt", "b0"] {
        fleet.start(name);
    }
    whole(&cluster, 1, 1).await;
    let cluster = fleet.client().await;
    truth.check_all(&cluster).await;
    assert_eq!(truth.check_stream(&cluster, false).await, LIVE);
}
