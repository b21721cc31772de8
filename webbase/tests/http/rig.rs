//! A repository with a gateway, and a client that sends just what it is told to.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use webbase::embedded::{Embedded, Options};
use webbase_storage::Page;

/// Nothing here takes longer.
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct Rig {
    pub(crate) embedded: Embedded,
    _folder: TempDir,
}

impl Rig {
    pub(crate) async fn start() -> Rig {
        Rig::with(|_| {}).await
    }

    pub(crate) async fn with(set: impl FnOnce(&mut Options)) -> Rig {
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options::new(folder.path());
        options.range_bits = 3;
        set(&mut options);
        Rig { embedded: Embedded::start(options).await.unwrap(), _folder: folder }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.embedded.http()
    }

    /// Adds pages and makes them visible.
    pub(crate) async fn add(&self, pages: &[Page<'_>]) {
        let added = self.embedded.cluster().add(pages).await.unwrap();
        assert_eq!(added.all().unwrap(), pages.len() as u64);
        self.embedded.cluster().cycle(|_| {}).await.unwrap();
    }

    /// One request on a connection of its own.
    pub(crate) async fn ask(&self, method: &str, target: &str, headers: &[(&str, &str)]) -> Answer {
        let mut text = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        self.raw(format!("{text}\r\n").as_bytes()).await
    }

    pub(crate) async fn get(&self, target: &str) -> Answer {
        self.ask("GET", target, &[]).await
    }

    /// These very bytes, and whatever comes back.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> Answer {
        let mut socket = TcpStream::connect(self.address()).await.unwrap();
        // A server that has heard enough may close before everything is sent.
        let _ = socket.write_all(bytes).await;
        Answer::read(&mut socket).await
    }

    /// The gateway still works.
    pub(crate) async fn is_well(&self) {
        assert_eq!(self.get("/healthz").await.status, 200);
    }
}

/// A URL as a parameter.
pub(crate) fn encoded(url: &str) -> String {
    url.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

pub(crate) fn page_of(url: &str) -> String {
    format!("/page?url={}", encoded(url))
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: BTreeMap<String, String>,
}

/// Whether an answer has come so far that it is known to be events.
fn is_events(bytes: &[u8]) -> bool {
    let head = bytes.windows(4).position(|w| w == b"\r\n\r\n").map(|end| &bytes[..end]);
    let head = head.map(|head| String::from_utf8_lossy(head).to_lowercase());
    head.is_some_and(|head| head.contains("content-type: text/event-stream"))
}

impl Answer {
    /// Reads to the end of the connection; of events, which have none, only what stands before them. No answer at all has the
    /// status 0.
    pub(crate) async fn read(socket: &mut TcpStream) -> Answer {
        let mut bytes = Vec::new();
        let reading = async {
            // A reset is an end, too.
            while socket.read_buf(&mut bytes).await.is_ok_and(|n| n > 0) {
                if is_events(&bytes) {
                    break;
                }
            }
        };
        tokio::time::timeout(LIMIT, reading).await.expect("the server says something or closes");
        Answer::parse(&bytes)
    }

    fn parse(bytes: &[u8]) -> Answer {
        let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") else {
            let (headers, trailers) = (BTreeMap::new(), BTreeMap::new());
            return Answer { status: 0, headers, body: bytes.to_vec(), trailers };
        };
        let head = std::str::from_utf8(&bytes[..end]).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let headers = fields(head.split("\r\n").skip(1));
        let mut answer =
            Answer { status, headers, body: bytes[end + 4..].to_vec(), trailers: BTreeMap::new() };
        let is_chunked = answer.headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked");
        if is_chunked && !is_events(bytes) {
            answer.take_chunks_off();
        }
        answer
    }

    fn take_chunks_off(&mut self) {
        let (mut rest, mut body) = (&self.body[..], Vec::new());
        loop {
            let line = rest.windows(2).position(|w| w == b"\r\n").expect("a chunk's size");
            let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
            rest = &rest[line + 2..];
            if size == 0 {
                let text = std::str::from_utf8(rest).unwrap();
                self.trailers = fields(text.split("\r\n").filter(|line| !line.is_empty()));
                break;
            }
            body.extend_from_slice(&rest[..size]);
            rest = &rest[size + 2..];
        }
        self.body = body;
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// It is problem+json with this status and code.
    #[track_caller]
    pub(crate) fn is_problem(&self, status: u16, code: &str) {
        assert_eq!(
            (self.status, self.header("content-type")),
            (status, "application/problem+json"),
            "{self:?}"
        );
        let problem = self.json();
        assert_eq!((&problem["status"], &problem["code"]), (&status.into(), &code.into()), "{problem}");
        assert!(!problem["detail"].as_str().unwrap().is_empty());
    }
}

fn fields<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeMap<String, String> {
    let field = |line: &str| line.split_once(": ").map(|(n, v)| (n.to_lowercase(), v.to_owned()));
    lines.filter_map(field).collect()
}
