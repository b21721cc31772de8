//! `webbase crawl` as a process, killed in the middle and started again: what it had is not fetched again, and ends in the repository.

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use webbase_crawler::frontier::{Frontier, State};
use webbase_web_in_a_box::{Clock, DAY_MS, Serving, WebBox, World};

use super::rig::{Rig, page_of};

const BEGAN: u64 = 1_700_000_000_000;

struct Crawl {
    dir: tempfile::TempDir,
    server: String,
    web: String,
    seed: String,
}

impl Crawl {
    fn start(&self) -> Child {
        Command::new(env!("CARGO_BIN_EXE_webbase"))
            .args([
                "crawl",
                "--scope",
                "any",
                "--delay",
                "5ms",
                "--address-delay",
                "0s",
                "--crawl-delay-max",
                "5ms",
            ])
            .args([
                "--allow-loopback",
                "--json",
                "--server",
                &self.server,
                "--connect-to",
                &self.web,
                "--dir",
            ])
            .arg(self.dir.path())
            .arg(&self.seed)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crawl_is_killed_and_goes_on() {
    let rig = Rig::start().await;
    let at = BEGAN + 30 * DAY_MS;
    let (clock, _hand) = Clock::discrete(at);
    let serving = Serving { latency: Duration::from_millis(20), ..Serving::default() };
    let web = WebBox::start(World::new(31, 300, BEGAN), clock, serving).await.unwrap();
    let world = web.world().clone();
    let crawl = Crawl {
        dir: tempfile::tempdir().unwrap(),
        server: format!("http://{}", rig.address()),
        web: web.address().to_string(),
        seed: world.url(0),
    };
    let mut first = crawl.start();
    let until = Instant::now() + Duration::from_secs(60);
    while web.visits().iter().filter(|visit| visit.status == 200).count() < 150 {
        assert!(Instant::now() < until, "the crawl does not get on: {} visits", web.visits().len());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    first.kill().unwrap();
    first.wait().unwrap();
    // What the crawl knows to have read, on disk, at the moment of the kill.
    let had: BTreeSet<String> = {
        let frontier = Frontier::open(crawl.dir.path()).unwrap();
        let read =
            |url: &String| frontier.find(url).unwrap().is_some_and(|(_, row)| row.state == State::Read);
        (0..world.pages()).map(|page| world.url(page)).filter(read).collect()
    };
    assert!(!had.is_empty());
    let before = web.visits().len();
    let second = tokio::task::spawn_blocking({
        let second = crawl.start();
        move || second.wait_with_output().unwrap()
    });
    let output = second.await.unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let done: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(done["frontier"], 0, "{done}");
    assert!(done["generation"].is_u64(), "{done}");
    let visits = web.visits();
    let again: BTreeSet<String> =
        visits[before..].iter().map(|visit| format!("http://{}{}", visit.host, visit.path)).collect();
    let twice: Vec<&String> = had.intersection(&again).collect();
    assert!(twice.is_empty(), "fetched again: {twice:?}");
    for url in &had {
        let answer = rig.get(&page_of(url)).await;
        assert_eq!(answer.status, 200, "{url} was read and is not in the repository");
    }
    let wanted = (0..world.pages()).filter(|page| world.is_allowed(*page) && world.lives(*page, at));
    let mut missing = Vec::new();
    for page in wanted {
        let answer = rig.get(&page_of(&world.url(page))).await;
        if answer.status != 200 || answer.body != world.fetch(page, at).unwrap().body {
            missing.push(world.url(page));
        }
    }
    assert!(missing.len() * 50 < world.pages(), "{missing:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_crawled_is_said() {
    let rig = Rig::start().await;
    let server = format!("http://{}", rig.address());
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let dir = dir.path().join("none");
        let output = Command::new(env!("CARGO_BIN_EXE_webbase"))
            .args(["crawl", "--server", &server, "--dir"])
            .arg(dir)
            .args(args)
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (well, told) = tokio::task::block_in_place(|| run(&[]));
    assert!(!well && told.contains("--seeds"), "{told}");
    let (well, told) = tokio::task::block_in_place(|| run(&["file:///etc/passwd"]));
    assert!(!well && told.contains("http://"), "{told}");
}
