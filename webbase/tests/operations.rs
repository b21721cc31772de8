//! What an operator does, with the real program: backups that survive kills, checks, settings, and metrics that dashboards name.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use webbase_node::{Cluster, ClusterSettings};
use webbase_storage::Page;

const LIMIT: Duration = Duration::from_secs(60);

fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_webbase"));
    command.args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    program(args).output().unwrap()
}

#[track_caller]
fn done(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// `webbase up`, killed when it is dropped.
struct Up {
    child: Child,
    server: String,
    /// Where the management server listens.
    said: String,
}

impl Up {
    fn start(dir: &Path, more: &[&str]) -> Up {
        let mut command = program(&["up", "--http", "127.0.0.1:0", "--dir"]);
        let mut child = command.arg(dir).args(more).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        out.read_line(&mut said).unwrap();
        let server = said.split_whitespace().find(|word| word.starts_with("http://")).unwrap_or_default();
        let server = server.to_owned();
        // Whatever else it says must not block it.
        std::thread::spawn(move || out.read_to_end(&mut Vec::new()));
        assert!(!server.is_empty(), "{said}");
        Up { child, server, said }
    }

    fn pages(&self) -> u64 {
        let counted = done(&["stream", "--format", "count", "--server", &self.server]);
        counted.split_whitespace().nth(2).and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    /// Waits until so many pages are served.
    fn has(&self, pages: u64) {
        let until = Instant::now() + LIMIT;
        while self.pages() != pages {
            assert!(Instant::now() < until, "there are {} pages, not {pages}", self.pages());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_backup_is_whole_or_refused_and_restores_every_page() {
    let folder = tempfile::tempdir().unwrap();
    let (world, at_ms) = webbase::demo::world();
    // The demo's pages do not vanish, but new ones appear.
    let at_first = (0..world.pages()).filter(|page| world.fetch(*page, at_ms).is_some()).count() as u64;
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let up = Up::start(Path::new(&path("one")), &["--demo"]);
    assert!(up.said.contains("management server at"), "{}", up.said);
    up.has(at_first);
    // A backup that was killed half way is none; where it was killed is up to the machine.
    for (number, after_ms) in [0, 20, 60, 150].into_iter().enumerate() {
        let dir = path(&format!("half-{number}"));
        let mut half = program(&["backup", &dir, "--server", &up.server]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(after_ms));
        let _ = half.kill();
        half.wait().unwrap();
        let whole = Path::new(&dir).join("BACKUP.json").exists();
        let restored = run(&["restore", &dir, "--check"]);
        assert_eq!(restored.status.success(), whole, "{}", String::from_utf8_lossy(&restored.stderr));
    }
    let backup = path("backup");
    let told = done(&["backup", &backup, "--json", "--server", &up.server]);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let pages = told["pages"].as_u64().unwrap();
    assert!(pages >= at_first, "{pages} of {at_first}");
    assert!(!run(&["backup", &backup, "--server", &up.server]).status.success(), "it is not written over");
    let url = &world.url(0);
    let original = done(&["get", url, "--server", &up.server]);
    let at_last = up.pages();
    // Killed, everything of it is there again.
    up.kill();
    let again = Up::start(Path::new(&path("one")), &[]);
    assert!(again.pages() >= at_last, "{} of {at_last}", again.pages());
    drop(again);

    // Into another repository, killed while it restores, and once more.
    let other = path("other");
    let fresh = Up::start(Path::new(&other), &[]);
    let mut half = program(&["restore", &backup, "--server", &fresh.server]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    fresh.kill();
    let _ = half.kill();
    half.wait().unwrap();
    let fresh = Up::start(Path::new(&other), &[]);
    done(&["restore", &backup, "--server", &fresh.server]);
    fresh.has(pages);
    let title =
        |page: &str| page.split("<h1>").nth(1).and_then(|rest| rest.split('<').next()).map(str::to_owned);
    assert_eq!(title(&done(&["get", url, "--server", &fresh.server])), title(&original));
    drop(fresh);

    // Damage is found, has an exit code of its own, and is never restored.
    assert!(run(&["verify", &backup]).status.success());
    let pages = Path::new(&backup).join("pages");
    let segment = std::fs::read_dir(&pages).unwrap().flatten().map(|entry| entry.path());
    let segment = segment
        .filter(|path| path.to_string_lossy().contains("segment-"))
        .max_by_key(|path| std::fs::metadata(path).map_or(0, |about| about.len()));
    let segment = segment.unwrap();
    let mut bytes = std::fs::read(&segment).unwrap();
    let middle = bytes.len() / 3;
    bytes[middle] ^= 0x40;
    std::fs::write(&segment, bytes).unwrap();
    assert_eq!(run(&["verify", &backup]).status.code(), Some(3));
    let refused = run(&["restore", &backup, "--check"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("damaged"), "{refused:?}");
    done(&["repair", &backup]);
    assert!(run(&["verify", &backup]).status.success());
    assert!(!run(&["restore", &backup, "--check"]).status.success(), "a page is missing now");
}

/// Adds batches of pages until the process is killed under it; returns how many were acknowledged.
async fn add_until_killed(up: Up, from: usize) -> usize {
    let management = up.said.split("management server at ").nth(1).unwrap().trim().trim_end_matches(')');
    let mut settings = ClusterSettings { add_limit: Duration::from_secs(2), ..ClusterSettings::default() };
    settings.client.answer = Duration::from_secs(1);
    let cluster = Cluster::connect(management.parse().unwrap(), settings).await.unwrap();
    let victim = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(700));
        up.kill();
    });
    let mut acknowledged = from;
    loop {
        let names: Vec<(String, String)> = (acknowledged..acknowledged + 50)
            .map(|n| (format!("http://kill.example/{n}"), format!("<p>page {n}</p>").repeat(40)))
            .collect();
        let pages: Vec<Page<'_>> = names
            .iter()
            .map(|(url, body)| Page {
                url,
                body: body.as_bytes(),
                fetched_at_ms: 1,
                status: 200,
                ..Page::default()
            })
            .collect();
        match cluster.add(&pages).await {
            Ok(adds) if adds.refused.is_empty() => acknowledged += pages.len(),
            _ => break,
        }
    }
    victim.join().unwrap();
    acknowledged
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_of_the_process_loses_nothing_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged = 0;
    for _ in 0..3 {
        let before = acknowledged;
        acknowledged = add_until_killed(Up::start(folder.path(), &[]), before).await;
        assert!(acknowledged > before, "nothing was added before the kill");
    }
    let up = Up::start(folder.path(), &[]);
    done(&["cycle", "--server", &up.server]);
    // What was under way may be there, too.
    assert!(
        (acknowledged..=acknowledged + 150).contains(&(up.pages() as usize)),
        "{acknowledged}, {}",
        up.pages()
    );
    for n in [0, acknowledged / 3, acknowledged / 2, acknowledged - 1] {
        let page = done(&["get", &format!("http://kill.example/{n}"), "--server", &up.server]);
        assert!(page.starts_with(&format!("<p>page {n}</p>")), "{page}");
    }
}

#[test]
fn exit_codes_and_settings_are_as_documented() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("webbase.toml");
    let name = file.to_str().unwrap();
    assert_eq!(run(&["get", "http://h/", "--server", "http://127.0.0.1:1"]).status.code(), Some(5));
    assert_eq!(run(&["frobnicate"]).status.code(), Some(2));
    std::fs::write(&file, "[up]\nreplica = 2\n").unwrap();
    let checked = run(&["config", "check", name]);
    assert_eq!(checked.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&checked.stderr).contains("no setting \"replica\""), "{checked:?}");
    assert_eq!(run(&["up", "--config", name]).status.code(), Some(2));
    std::fs::write(&file, format!("[up]\ndir = {:?}\nread-nodes = 2\n", folder.path().join("data"))).unwrap();
    done(&["config", "check", name]);
    // The file, then the environment, then flags.
    let mut command = program(&["up", "--config", name, "--http", "127.0.0.1:0"]);
    let mut child = command.env("WEBBASE_UPDATE_NODES", "2").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let server = line.split_whitespace().find(|word| word.starts_with("http://")).unwrap_or_default();
    let status: serde_json::Value =
        serde_json::from_str(&done(&["status", "--json", "--server", server])).unwrap();
    let missing = run(&["get", "http://not-there.example/", "--server", server]).status.code();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(missing, Some(4));
    let roles: Vec<&str> =
        status["nodes"].as_array().unwrap().iter().filter_map(|n| n["role"].as_str()).collect();
    assert_eq!(roles.iter().filter(|role| **role == "read").count(), 2, "{roles:?}");
    assert_eq!(roles.iter().filter(|role| **role == "update").count(), 2, "{roles:?}");
    // Completions and manual pages are made.
    assert!(done(&["completions", "bash"]).contains("_webbase"));
    let pages = folder.path().join("man");
    done(&["man", pages.to_str().unwrap()]);
    let page = std::fs::read_to_string(pages.join("webbase-up.1")).unwrap();
    assert!(page.contains("Examples"), "{page}");
}

fn metrics(address: &str) -> String {
    let mut socket = std::net::TcpStream::connect(address).unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    std::io::Write::write_all(&mut socket, request).unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn the_dashboard_names_metrics_that_there_are() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(folder.path(), &[]);
    // Some are there only when something has happened.
    run(&["get", "http://not-there.example/", "--server", &up.server]);
    let address = up.server.trim_start_matches("http://").trim_end_matches('/').to_owned();
    // Nodes tell their figures a moment after they are there.
    let until = Instant::now() + LIMIT;
    let text = loop {
        let text = metrics(&address);
        if text.contains("webbase_store_pages") || Instant::now() > until {
            break text;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    let there: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let dashboard = include_str!("../../packaging/grafana.json");
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut named = 0;
    for part in dashboard.split("webbase_").skip(1) {
        let name: String = part.chars().take_while(|c| is_name(*c)).collect();
        let name = format!("webbase_{}", name.trim_end_matches("_bucket"));
        assert!(there.contains(name.as_str()), "there is no metric {name}: {there:?}");
        named += 1;
    }
    assert!(named > 10);
    // Debian's prometheus has a checker.
    if let Ok(mut checker) = Command::new("promtool").args(["check", "metrics"]).stdin(Stdio::piped()).spawn()
    {
        let body = text.split("\r\n\r\n").nth(1).unwrap();
        std::io::Write::write_all(&mut checker.stdin.take().unwrap(), body.as_bytes()).unwrap();
        assert!(checker.wait().unwrap().success(), "promtool complains");
    } else {
        eprintln!("SKIPPED: there is no promtool (Debian: apt-get install prometheus)");
    }
}
