//! Finding and running the tools, and a repository for them to ask.

use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::Command;
use webbase::embedded::{Embedded, Options};
use webbase_storage::Page;

/// No tool takes longer.
const LIMIT: Duration = Duration::from_secs(90);

/// A program of the virtual environment (`WEBBASE_CLIENTS`, or `target/clients`), or of the system. `None`, loudly, where it is
/// missing.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
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

/// Runs a program to its end.
pub(crate) async fn run(command: &mut Command) -> Output {
    command.kill_on_drop(true);
    tokio::time::timeout(LIMIT, command.output()).await.expect("it ends in time").unwrap()
}

/// What curl writes to stdout; it has to succeed.
pub(crate) async fn curl(arguments: &[&str]) -> Vec<u8> {
    let output = run(Command::new("curl").arg("-sS").args(arguments)).await;
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// A repository with pages.
pub(crate) struct Repository {
    embedded: Embedded,
    _folder: TempDir,
}

/// When the pages were fetched: 20231114221320.
pub(crate) const AT: u64 = 1_700_000_000_000;
pub(crate) const TIME: &str = "20231114221320";
pub(crate) const HOME: &str =
    "<html><head><title>Home</title></head><body><p>the home page</p></body></html>";

impl Repository {
    /// Two read nodes; a home page, an image, 40 documents, a page that is not found, one without a head.
    pub(crate) async fn start() -> Repository {
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options::new(folder.path());
        (options.range_bits, options.read_nodes) = (3, 2);
        // A client that another test is just starting has, until it is itself, a copy of every open file and its lock.
        let mut embedded = Embedded::start(options.clone()).await;
        for _ in 0..20 {
            if embedded.is_ok() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            embedded = Embedded::start(options.clone()).await;
        }
        let embedded = embedded.unwrap();
        let html = |url, body| Page {
            url,
            head: b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n",
            body,
            status: 200,
            mime: "text/html",
            fetched_at_ms: AT,
            payload_digest: Some(<[u8; 20]>::from(<sha1::Sha1 as sha1::Digest>::digest(body))),
            ..Page::default()
        };
        let image: Vec<u8> = (0..200_000_u32).map(|n| ((n * 31) >> 3) as u8).collect();
        let texts: Vec<(String, String)> = (0..40)
            .map(|n| (format!("http://example.org/docs/{n}"), format!("<html><p>document {n}</p>")))
            .collect();
        let mut pages = vec![
            html("http://example.org/", HOME.as_bytes()),
            Page {
                head: b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n",
                mime: "image/png",
                ..html("https://www.example.org/Image.png", &image)
            },
            Page {
                head: b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\n\r\n",
                status: 404,
                ..html("http://example.org/gone", b"<p>gone")
            },
        ];
        pages.push(Page { head: b"", mime: "text/plain", ..html("http://example.org/bare.txt", b"no head") });
        pages.extend(texts.iter().map(|(url, text)| html(url, text.as_bytes())));
        let added = embedded.cluster().add(&pages).await.unwrap();
        assert_eq!(added.all().unwrap(), pages.len() as u64);
        embedded.cluster().cycle(|_| {}).await.unwrap();
        Repository { embedded, _folder: folder }
    }

    /// Where it is reached.
    pub(crate) fn base(&self) -> String {
        format!("http://{}", self.embedded.http())
    }
}
