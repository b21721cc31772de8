//! What an operator does, with the real program: backups that survive kills, checks, settings, and metrics that dashboards name.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use webbase_node::{Cluster, ClusterSettings};
use webbase_storage::Page;
use webbase_stream::warc::{Form, Writer};

#[path = "support/up.rs"]
mod up;

use up::{LIMIT, Up, done, program, run};

#[test]
fn a_backup_is_whole_or_refused_and_restores_every_page() {
    let folder = tempfile::tempdir().unwrap();
    let (world, _) = webbase::demo::world();
    // The demo's pages do not vanish, but new ones come in.
    let at_first = 1000;
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
    assert_eq!(fresh.pages(), pages);
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

#[test]
fn the_demo_crawls_its_world_and_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let (world, _) = webbase::demo::world();
    let number = |status: &serde_json::Value, name: &str| status["crawl"][name].as_u64().unwrap();
    let up = Up::start(folder.path(), &["--demo"]);
    up.has(500);
    let status = up.status();
    assert!(number(&status, "pages") >= 500 && number(&status, "known") >= 500, "{}", status["crawl"]);
    // What robots files forbid is not there, what was crawled has its head as it came over HTTP.
    let streamed = done(&["stream", "--format", "jsonl", "--server", &up.server]);
    let urls = streamed.lines().filter_map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line["url"].as_str().map(str::to_owned)
    });
    let forbidden: Vec<String> = urls.filter(|url| url.contains("/private/")).collect();
    assert!(forbidden.is_empty(), "{forbidden:?}");
    let raw = done(&["get", &world.url(0), "--headers", "--server", &up.server]);
    assert!(raw.starts_with("HTTP/1.1 200 OK\r\n"), "{raw}");
    let before = up.pages();
    up.interrupt();
    let up = Up::start(folder.path(), &["--demo"]);
    assert!(up.pages() >= before, "{} of {before}", up.pages());
    let until = Instant::now() + LIMIT;
    loop {
        let status = up.status();
        // It knows from the beginning what it had found before, and asks on.
        if number(&status, "known") >= before && number(&status, "pages") + number(&status, "unchanged") > 0 {
            break;
        }
        assert!(Instant::now() < until, "{}", status["crawl"]);
        std::thread::sleep(Duration::from_millis(100));
    }
    // A kill is as good as an end.
    up.kill();
    let up = Up::start(folder.path(), &["--demo"]);
    up.has(before);
    up.interrupt();
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

fn ask(address: &str, path: &str) -> String {
    let mut socket = std::net::TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    std::io::Write::write_all(&mut socket, request.as_bytes()).unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn the_console_answers_as_soon_as_it_is_said_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(folder.path(), &[]);
    let address = up.server.trim_start_matches("http://").trim_end_matches('/').to_owned();
    for (path, has) in
        [("/", "<!doctype html>"), ("/console/console.js", "import "), ("/readyz", "\"ready\": true")]
    {
        let answer = ask(&address, path);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains(has), "{path}: {answer}");
    }
}

#[test]
fn requests_are_traced_with_their_ids() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = program(&["up", "--http", "127.0.0.1:0", "--log", "json", "--dir"]);
    command.arg(folder.path()).env("WEBBASE_LOG", "info").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.split_whitespace().find_map(|word| word.strip_prefix("http://")).unwrap();
    let mut socket = std::net::TcpStream::connect(address.trim_end_matches('/')).unwrap();
    let request =
        b"GET /status HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine-7\r\nConnection: close\r\n\r\n";
    std::io::Write::write_all(&mut socket, request).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("x-request-id: mine-7\r\n"), "{answer}");
    child.kill().unwrap();
    let said = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
    let line =
        said.lines().find(|line| line.contains("mine-7")).unwrap_or_else(|| panic!("no line of it: {said}"));
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!((&line["level"], &line["target"]), (&"INFO".into(), &"webbase::access".into()), "{line}");
    assert_eq!(
        (&line["fields"]["uri"], &line["fields"]["status"]),
        (&"/status".into(), &200.into()),
        "{line}"
    );
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
        let text = ask(&address, "/metrics");
        if text.contains("webbase_store_pages") || Instant::now() > until {
            break text;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    let there: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    // What only goes up is a counter, and says so.
    for name in ["lookups_answered", "scanned_bytes", "streamed_pages"] {
        let line = format!("# TYPE webbase_node_{name}_total counter");
        assert!(text.contains(&line), "there is no line {line}: {there:?}");
    }
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

#[test]
fn what_is_packaged_makes_sense() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("packaging");
    done(&["config", "check", packaging.join("webbase.toml").to_str().unwrap()]);
    let folder = tempfile::tempdir().unwrap();
    let mut units = Vec::new();
    for entry in std::fs::read_dir(packaging.join("systemd")).unwrap() {
        let path = entry.unwrap().path();
        let unit = std::fs::read_to_string(&path).unwrap();
        assert!(unit.contains("ExecStart=/usr/bin/webbase "), "{}", path.display());
        let name = path.file_name().unwrap().to_str().unwrap().replace('@', "@r1");
        units.push(folder.path().join(name));
        let here = unit.replace("/usr/bin/webbase", env!("CARGO_BIN_EXE_webbase"));
        std::fs::write(units.last().unwrap(), here).unwrap();
    }
    assert_eq!(units.len(), 3);
    match Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&units).output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        Err(_) => eprintln!("SKIPPED: there is no systemd-analyze"),
    }
}

/// Flips a bit in each record of a node's stored pages that has this text.
fn spoil(dir: &Path, text: &[u8]) -> usize {
    let mut hits = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            hits += spoil(&path, text);
        } else if path.file_name().unwrap().to_string_lossy().starts_with("segment-") {
            let mut bytes = std::fs::read(&path).unwrap();
            let at: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(text)).collect();
            at.iter().for_each(|at| bytes[*at] ^= 1);
            hits += at.len();
            std::fs::write(&path, bytes).unwrap();
        }
    }
    hits
}

#[test]
fn a_stream_that_leaves_damaged_pages_out_ends_with_3() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let url = |n: u64| format!("http://spoilt.example/{n}");
    let (mut writer, mut file) = (Writer::new(Form::Plain), Vec::new());
    for n in 0..20 {
        writer.resource(&url(n), 1_700_000_000_000, "text/plain", b"hello", &mut file);
    }
    let path = folder.path().join("pages.warc");
    std::fs::write(&path, file).unwrap();
    let up = Up::start(&data, &[]);
    done(&["import", path.to_str().unwrap(), "--server", &up.server]);
    up.interrupt();
    for n in [3, 7] {
        assert!(spoil(&data, format!("{}text/plain", url(n)).as_bytes()) > 0, "page {n} is nowhere");
    }
    let up = Up::start(&data, &[]);
    let place = folder.path().join("place.txt");
    for format in ["warc", "jsonl", "count"] {
        let mut args = vec!["stream", "--format", format, "--server", &up.server];
        if format == "jsonl" {
            args.extend(["--cursor", place.to_str().unwrap()]);
        }
        let streamed = run(&args);
        let said = String::from_utf8_lossy(&streamed.stderr).into_owned();
        assert_eq!(streamed.status.code(), Some(3), "{format}: {said}");
        assert!(said.contains("2 pages are damaged"), "{format}: {said}");
        if format == "jsonl" {
            assert_eq!(String::from_utf8_lossy(&streamed.stdout).matches("\"url\"").count(), 18);
            // Nobody looks at a terminal here; what was done is told all the same.
            assert!(said.contains("stream: 18 "), "{said}");
        }
    }
    assert!(place.exists(), "the place is kept all the same");
}
