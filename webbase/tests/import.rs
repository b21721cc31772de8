//! The commands `import` and `stream` as people run them, and what other people's tools say to what comes out: `warcio check`,
//! `warcio index`, `gzip -t`.
//!
//! `.ci/clients` installs warcio. Where it is missing, its test says so and passes; with `CI=true` it fails. The archives are in
//! `../shared/data` beside the workspace, or where `WEBBASE_TEST_DATA` says.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;
use webbase::embedded::{Embedded, Options};

fn data() -> Option<PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data");
    let root = std::env::var_os("WEBBASE_TEST_DATA").unwrap_or_else(|| beside.into());
    let path = Path::new(&root).join("warc");
    if path.is_dir() {
        return Some(path);
    }
    eprintln!("SKIPPED: no {}; set WEBBASE_TEST_DATA", path.display());
    None
}

/// A program of the virtual environment (`WEBBASE_CLIENTS`, or `target/clients`), or of the system. `None`, loudly, where it is
/// missing.
fn tool(name: &str) -> Option<PathBuf> {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/clients");
    let folder = std::env::var_os("WEBBASE_CLIENTS").map_or_else(|| PathBuf::from(own), PathBuf::from);
    let system = std::env::var_os("PATH").unwrap_or_default();
    let folders = [folder.join("bin")].into_iter().chain(std::env::split_paths(&system));
    let found = folders.map(|folder| folder.join(name)).find(|path| path.is_file());
    if found.is_none() {
        let text = format!("{name} is not installed; .ci/clients installs it");
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{text}");
        eprintln!("SKIPPED: {text}");
    }
    found
}

struct Rig {
    embedded: Embedded,
    folder: TempDir,
}

impl Rig {
    async fn start() -> Rig {
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options::new(folder.path().join("repository"));
        options.range_bits = 3;
        Rig { embedded: Embedded::start(options).await.unwrap(), folder }
    }

    /// Runs the program against the repository.
    async fn webbase(&self, arguments: &[&str]) -> Output {
        let server = format!("http://{}", self.embedded.http());
        let mut command = Command::new(env!("CARGO_BIN_EXE_webbase"));
        command.args(arguments).args(["--server", &server]).kill_on_drop(true);
        command.output().await.unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_goes_in_and_comes_out_as_warcio_wants_it() {
    goes_in_and_comes_out(&["import", "--json"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_that_is_packed_anew_comes_out_as_warcio_wants_it() {
    goes_in_and_comes_out(&["import", "--json", "--repack"]).await;
}

async fn goes_in_and_comes_out(import: &[&str]) {
    let Some(data) = data() else { return };
    let rig = Rig::start().await;
    let files: Vec<String> = [
        "pywb/iana.warc.gz",
        "warcio/example.warc",
        "derived/blackbook-dict.warc.zst",
        "warcio/example.arc.gz",
    ]
    .iter()
    .map(|file| data.join(file).display().to_string())
    .collect();
    let mut arguments = import.to_vec();
    arguments.extend(files.iter().map(String::as_str));
    let output = rig.webbase(&arguments).await;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let total = &report["total"];
    assert_eq!(report["generation"], 1);
    assert_eq!(total["records"]["revisit"], 124);
    assert_eq!(total["captures"], total["acknowledged"]);
    assert_eq!(
        (&total["revisits_unresolved"], &total["damaged"], &total["digests_wrong"]),
        (&0.into(), &0.into(), &0.into())
    );

    let out = rig.folder.path().join("out.warc.gz");
    let output = rig.webbase(&["stream"]).await;
    assert!(output.status.success(), "{}", text(&output.stderr));
    std::fs::write(&out, &output.stdout).unwrap();
    let gzip = Command::new("gzip").arg("-t").arg(&out).output().await.unwrap();
    assert!(gzip.status.success(), "{}", text(&gzip.stderr));
    let Some(warcio) = tool("warcio") else { return };
    let check = Command::new(&warcio).args(["check", "-v"]).arg(&out).output().await.unwrap();
    assert!(check.status.success(), "{}{}", text(&check.stdout), text(&check.stderr));
    let passed = text(&check.stdout).matches("digest pass").count();
    let index = Command::new(&warcio).arg("index").arg(&out).output().await.unwrap();
    let lines: Vec<Value> =
        text(&index.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // Every record's digest holds: warcinfo, the pages, the end.
    assert_eq!((passed, lines[0]["warc-type"].as_str()), (lines.len(), Some("warcinfo")));
    let pages = rig.webbase(&["stream", "--format", "count"]).await;
    assert!(text(&pages.stdout).contains(&format!(" {} pages", lines.len() - 2)), "{}", text(&pages.stdout));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_is_told_with_its_place_and_an_exit_code() {
    let Some(data) = data() else { return };
    let rig = Rig::start().await;
    let file = data.join("derived/blackbook-badcrc.warc.gz").display().to_string();
    let output = rig.webbase(&["import", "--no-cycle", &file]).await;
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains(&format!("{file}: damaged at 48777: ")),
        "{}",
        text(&output.stderr)
    );
    assert!(output.stdout.is_empty(), "no cycle, no generation");
    assert_eq!(rig.embedded.cluster().status().await.unwrap().committed, 0);
    // What is no archive at all, and what is not there, is not imported.
    let file = data.join("MANIFEST.tsv").display().to_string();
    for path in [&file[..], "/nowhere/at/all.warc"] {
        let output = rig.webbase(&["import", path]).await;
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_of_files_becomes_pages() {
    let rig = Rig::start().await;
    let site = rig.folder.path().join("site");
    std::fs::create_dir_all(site.join("a")).unwrap();
    std::fs::write(site.join("index.html"), "<p>home").unwrap();
    std::fs::write(site.join("a/b c.txt"), "words").unwrap();
    let path = site.display().to_string();
    let output = rig.webbase(&["import", &path]).await;
    assert!(!output.status.success() && text(&output.stderr).contains("--base"), "{}", text(&output.stderr));
    let output = rig.webbase(&["import", "--base", "https://docs.example/v1/", &path]).await;
    assert_eq!(
        (output.status.code(), &text(&output.stdout)[..]),
        (Some(0), "1\n"),
        "{}",
        text(&output.stderr)
    );
    let page = rig.webbase(&["get", "https://docs.example/v1/a/b%20c.txt"]).await;
    assert_eq!(text(&page.stdout), "words", "{}", text(&page.stderr));
}
