//! A server on a port of the system's choosing, over a store in a folder of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]
#![allow(dead_code, reason = "each test file uses its own part")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use webbase_node::wire::frame::{HEADER_BYTES, Header, Kind};
use webbase_node::wire::message::{self, Fault, Hello, VERSION};
use webbase_node::{Client, ClientSettings, Server, Service, Settings};
use webbase_storage::{Compression, Options, Organization, Page, PageStore, RepositoryKey, create, open};

pub(crate) fn key() -> RepositoryKey {
    RepositoryKey::new([9; 32])
}

pub(crate) struct Node {
    pub(crate) folder: TempDir,
    pub(crate) store: Arc<dyn PageStore>,
    pub(crate) server: Server,
}

/// Without a cache of records: damage on disk shows in every lookup.
pub(crate) fn options(compression: Compression) -> Options {
    Options { compression, cache_bytes: 0, ..Options::default() }
}

pub(crate) fn new_store(
    organization: Organization,
    compression: Compression,
) -> (TempDir, Arc<dyn PageStore>) {
    let folder = tempfile::tempdir().unwrap();
    create(folder.path(), organization, key(), &options(compression)).unwrap();
    let store = open(folder.path(), &options(compression)).unwrap();
    (folder, store)
}

impl Node {
    pub(crate) async fn start() -> Node {
        Node::with(Organization::Log, Compression::None, Settings::default()).await
    }

    pub(crate) async fn with(
        organization: Organization,
        compression: Compression,
        settings: Settings,
    ) -> Node {
        let (folder, store) = new_store(organization, compression);
        Node::over(folder, store, settings).await
    }

    pub(crate) async fn over(folder: TempDir, store: Arc<dyn PageStore>, settings: Settings) -> Node {
        let service = Service::of_store(store.clone());
        let server = Server::start("127.0.0.1:0".parse().unwrap(), service, settings).await.unwrap();
        Node { folder, store, server }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.address(), ClientSettings::default()).await.unwrap()
    }

    /// Adds pages straight to the store.
    pub(crate) fn fill(&self, pages: std::ops::Range<usize>, body_bytes: usize) {
        let texts: Vec<(String, Vec<u8>)> = pages.map(|n| (url(n), body(n, body_bytes))).collect();
        let pages: Vec<Page<'_>> = texts.iter().map(|(url, body)| page(url, body)).collect();
        self.store.add(&pages).unwrap();
        self.store.commit().unwrap();
    }
}

pub(crate) fn url(n: usize) -> String {
    format!("http://site-{}.example/page/{n}", n % 7)
}

/// Text that packs, but differs from page to page.
pub(crate) fn body(n: usize, bytes: usize) -> Vec<u8> {
    let mut text = format!("<html><title>page {n}</title>").into_bytes();
    let mut word = n as u64;
    while text.len() < bytes {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.extend_from_slice(format!("<p>word {:x}", word >> 40).as_bytes());
    }
    text.truncate(bytes.max(1));
    text
}

pub(crate) fn page<'a>(url: &'a str, body: &'a [u8]) -> Page<'a> {
    Page {
        url,
        body,
        head: b"HTTP/1.1 200 OK\r\nServer: test\r\n\r\n",
        fetched_at_ms: 1_000,
        ..Page::default()
    }
}

/// A connection spoken by hand.
pub(crate) struct Raw<S = TcpStream> {
    pub(crate) socket: S,
    buffer: Vec<u8>,
}

pub(crate) fn hello() -> Hello {
    Hello { repository: None, token: None, credit_bytes: 4 << 20, known: Vec::new(), shelf: false }
}

pub(crate) fn frame(header: Header, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    header.write(payload, &mut out);
    out
}

pub(crate) fn hello_frame(lowest: u16, highest: u16, hello: &Hello) -> Vec<u8> {
    let payload = message::encode_hello(lowest, highest, hello);
    frame(Header::new(Kind::Hello, 0, payload.len()), &payload)
}

pub(crate) fn open_frame(call: u32, end: bool, request: &message::Request) -> Vec<u8> {
    let payload = message::encode(request);
    frame(Header { flags: u8::from(end), ..Header::new(Kind::Open, call, payload.len()) }, &payload)
}

impl Raw {
    pub(crate) async fn connect(address: SocketAddr) -> Raw {
        Raw { socket: TcpStream::connect(address).await.unwrap(), buffer: Vec::new() }
    }

    /// With the handshake done.
    pub(crate) async fn greeted(address: SocketAddr) -> Raw {
        let mut raw = Raw::connect(address).await;
        raw.send(&hello_frame(VERSION, VERSION, &hello())).await;
        let (header, _) = raw.next().await.expect("a welcome");
        assert_eq!(header.kind, Kind::Welcome);
        raw
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Raw<S> {
    pub(crate) fn over(socket: S) -> Raw<S> {
        Raw { socket, buffer: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).await.unwrap();
    }

    /// The next frame; `None` at the end of the connection.
    pub(crate) async fn next(&mut self) -> Option<(Header, Vec<u8>)> {
        loop {
            if let Some(start) = self.buffer.first_chunk::<HEADER_BYTES>() {
                let header = Header::decode(start).expect("the server sends frames");
                let end = HEADER_BYTES + header.rest_bytes();
                if self.buffer.len() >= end {
                    let frame: Vec<u8> = self.buffer.drain(..end).collect();
                    let payload = header.payload(&frame[HEADER_BYTES..]).expect("checked").to_vec();
                    return Some((header, payload));
                }
            }
            let mut some = [0; 65536];
            match self.socket.read(&mut some).await {
                Ok(0) | Err(_) => return None,
                Ok(n) => self.buffer.extend_from_slice(&some[..n]),
            }
        }
    }

    /// Expects one error frame for the whole connection, and then its end.
    pub(crate) async fn refused(&mut self) -> Fault {
        let end = async {
            let mut fault = None;
            while let Some((header, payload)) = self.next().await {
                if header.kind == Kind::Error && header.call == 0 {
                    assert!(fault.is_none(), "one error, not two");
                    fault = Some(message::decode::<Fault>(&payload).unwrap());
                    let _ = self.socket.shutdown().await;
                }
            }
            fault.expect("an error before the end")
        };
        tokio::time::timeout(Duration::from_secs(10), end).await.expect("an end")
    }
}

/// Waits until something becomes true, without a fixed sleep.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what} did not come true");
}
