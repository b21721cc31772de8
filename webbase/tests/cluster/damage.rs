//! Bytes rot on one node's disk: readers notice nothing, the node repairs itself from its replica, and a cycle takes from the
//! other update node what one has lost.

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use webbase_node::plan::Status;
use webbase_node::{Client, ClientSettings, Cluster};
use webbase_storage::Compression;

use crate::fleet::{Fleet, until};
use crate::truth::{Truth, body};

const PAGES: usize = 1500;
const BYTES: usize = 1200;
/// A piece of the body: its record's head still names the page.
const BODY: Range<i64> = 300..340;
/// What stands before the body, with the record's head in it.
const NAME: Range<i64> = -130..-20;

/// Files with pages below a folder.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            all.extend(files(&path));
        } else if name.starts_with("segment-") || name == "slots" {
            all.push(path);
        }
    }
    all
}

/// Writes over a piece of the pages, in the round they are of, wherever they lie below a folder; `piece` counts from where
/// the body begins.
fn damage(dir: &Path, pages: &[(usize, u32)], piece: &Range<i64>) {
    let contents: Vec<(PathBuf, Vec<u8>)> =
        files(dir).into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
    for (n, round) in pages {
        let wanted = body(*n, *round, BYTES);
        let mut hits = 0;
        for (path, content) in &contents {
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            for at in (0..content.len()).filter(|at| content[*at..].starts_with(&wanted[..16])) {
                let from = (at as i64 + piece.start) as u64;
                file.write_all_at(&vec![0x55; (piece.end - piece.start) as usize], from).unwrap();
                hits += 1;
            }
        }
        assert!(hits > 0, "page {n} of round {round} is nowhere in {}", dir.display());
    }
}

async fn repaired(fleet: &Fleet, cluster: &Cluster, name: &str, at_least: u64) {
    let address = fleet.address(name);
    let done = |status: &Status| {
        let node = status.nodes.iter().find(|node| node.address == Some(address));
        let figures = node.and_then(|node| node.figures);
        figures.is_some_and(|f| f.repaired >= at_least && f.damaged == f.repaired)
    };
    until(cluster, &format!("{name} has repaired {at_least} pages"), done).await;
    let client = Client::connect(address, ClientSettings::default()).await.unwrap();
    // What has no page in it is mended after the pages. In a log of leaves a version that was superseded may have been hit,
    // too: nobody can get that, here or elsewhere, and it goes when the leaf is written anew.
    let end = std::time::Instant::now() + crate::fleet::LIMIT;
    loop {
        let found = client.verify().await.unwrap();
        let serving = cluster.status().await.unwrap().serving;
        let mut left = Vec::new();
        for damage in found.damage {
            let whole = match damage.key {
                Some(key) => matches!(client.lookup(serving, key).await, Ok(Some(_))),
                None => false,
            };
            if !whole {
                left.push(damage);
            }
        }
        if left.is_empty() {
            return;
        }
        assert!(std::time::Instant::now() < end, "{name} is still damaged: {left:#?}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

async fn fleet(read: [&str; 2]) -> (Fleet, Cluster) {
    let mut fleet = Fleet::new(2, &[]);
    for name in ["u0", "u1"] {
        fleet.node(name, &["--role", "update"]);
    }
    for (name, organization) in ["r0", "r1"].iter().zip(read) {
        let scrub = ["--scrub", "100000000", "--scrub-pause-ms", "300"];
        fleet.node(name, &[&["--role", "read", "--organization", organization][..], &scrub].concat());
    }
    // The bodies are looked for on disk.
    let cluster = fleet.client_that_packs(Compression::None).await;
    fleet.settled(&cluster).await;
    (fleet, cluster)
}

async fn rot(read: [&str; 2]) {
    let (mut fleet, cluster) = fleet(read).await;
    let truth = Truth::new(BYTES);
    truth.add(&cluster, 0..PAGES, 1).await;
    truth.cycle(&cluster).await;
    truth.add(&cluster, 0..PAGES / 2, 2).await;
    truth.cycle(&cluster).await;
    fleet.settled(&cluster).await;
    // While they run, each in other places.
    damage(fleet.dir("r0"), &[(1, 2), (2, 2), (700, 2), (800, 1), (1499, 1)], &BODY);
    damage(fleet.dir("r1"), &[(3, 2), (900, 1)], &BODY);
    truth.check_stream(&cluster, false).await;
    truth.check_all(&cluster).await;
    repaired(&fleet, &cluster, "r0", 5).await;
    repaired(&fleet, &cluster, "r1", 2).await;
    // Where nothing names the page.
    damage(fleet.dir("r1"), &[(41, 2), (1301, 1)], &NAME);
    truth.check_stream(&cluster, false).await;
    truth.check_all(&cluster).await;
    repaired(&fleet, &cluster, "r1", 4).await;
    // Found when it starts again: by readers, or by itself.
    fleet.stop("r0");
    damage(fleet.dir("r0"), &[(10, 2), (11, 2), (1400, 1)], &BODY);
    damage(fleet.dir("r0"), &[(12, 2)], &NAME);
    fleet.start("r0");
    fleet.settled(&cluster).await;
    truth.check_all(&cluster).await;
    truth.check_stream(&cluster, false).await;
    repaired(&fleet, &cluster, "r0", 4).await;
    // Each of them alone has everything.
    for (alone, other) in [("r0", "r1"), ("r1", "r0")] {
        fleet.kill(other);
        truth.check_all(&cluster).await;
        truth.check_stream(&cluster, false).await;
        fleet.start(other);
        fleet.settled(&cluster).await;
        println!("{alone} has everything");
    }
    truth.add(&cluster, 500..PAGES, 3).await;
    truth.cycle(&cluster).await;
    truth.check_all(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_rots_is_served_by_its_replica_and_repaired_from_it() {
    rot(["log", "log"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaves_that_rot_are_served_by_their_replica_and_repaired_from_it() {
    rot(["hash", "hashed-log"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cycle_takes_from_one_update_node_what_rots_on_the_other() {
    let (fleet, cluster) = fleet(["log", "hash"]).await;
    let truth = Truth::new(BYTES);
    truth.add(&cluster, 0..PAGES, 1).await;
    damage(fleet.dir("u0"), &[(1, 1), (2, 1), (500, 1), (1499, 1)], &BODY);
    damage(fleet.dir("u0"), &[(600, 1)], &NAME);
    damage(fleet.dir("u1"), &[(3, 1), (700, 1)], &BODY);
    truth.cycle(&cluster).await;
    truth.check_all(&cluster).await;
    truth.check_stream(&cluster, false).await;
}
