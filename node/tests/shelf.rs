//! The shelf: clients that came by the door copy the pages of a shared scan out of the server's memory. They get what others get; who does not say what it
//! has taken holds little; who was not handed the shelf is never sent there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]
#![cfg(target_os = "linux")]

mod common;
#[path = "common/numbered.rs"]
mod numbered;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use common::{Raw, body, frame, hello, hello_frame, new_store, open_frame, page, url};
use numbered::Numbered;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use webbase_node::wire::frame::{END, Header, Kind, PLACED, RECORDS};
use webbase_node::wire::message::{self, Code, Hello, Request, SelectFrom, VERSION, Welcome};
use webbase_node::wire::ranges::RangeSet;
use webbase_node::wire::spec::StreamSpec;
use webbase_node::{Client, ClientSettings, Select, Server, Service, Settings, StorePages, StreamRequest};
use webbase_storage::{Compression, Organization, Page, Record};

/// What a connection may be told of and has not taken.
const TOLD_BYTES_MAX: u64 = 4 << 20;
/// Pages of each size: in one frame, in several, and too large for the shelf.
const SIZES: [(usize, usize); 3] = [(600, 20_000), (8, 700_000), (1, 3_000_000)];

fn sizes() -> impl Iterator<Item = usize> {
    SIZES.into_iter().flat_map(|(pages, bytes)| std::iter::repeat_n(bytes, pages))
}

struct Node {
    _folder: TempDir,
    server: Server,
}

impl Node {
    async fn start() -> Node {
        let (folder, store) = new_store(Organization::Log, Compression::None);
        let texts: Vec<_> = sizes().enumerate().map(|(n, bytes)| (url(n), body(n, bytes))).collect();
        let pages: Vec<Page<'_>> = texts.iter().map(|(url, body)| page(url, body)).collect();
        store.add(&pages).unwrap();
        store.commit().unwrap();
        let pages = Numbered { pages: StorePages::new(store), generation: Arc::new(AtomicU64::new(1)) };
        let service = Service::default().with_pages(Arc::new(pages));
        let listen = "127.0.0.1:0".parse().unwrap();
        Node { _folder: folder, server: Server::start(listen, service, Settings::default()).await.unwrap() }
    }

    fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// A client at the door, spoken by hand, that has the shelf or does not want it.
    async fn knock(&self, shelf: bool) -> Raw<UnixStream> {
        let mut raw = Raw::connect(self.address()).await;
        raw.send(&hello_frame(VERSION, VERSION, &hello())).await;
        let (_, payload) = raw.next().await.unwrap();
        let (_, _, rest) = message::decode_hello(&payload).unwrap();
        let door = message::decode::<Welcome>(rest).unwrap().door.unwrap();
        let mut raw = Raw::over(UnixStream::connect(format!("\0{door}")).await.unwrap());
        raw.send(&hello_frame(VERSION, VERSION, &Hello { shelf, ..hello() })).await;
        if shelf {
            assert_eq!(raw.socket.read_u8().await.unwrap(), 0, "what the file comes with");
        }
        assert_eq!(raw.next().await.unwrap().0.kind, Kind::Welcome);
        raw
    }
}

fn request() -> Request {
    Request::Select {
        generation: 1,
        direct: false,
        ranges: RangeSet::all(),
        spec: StreamSpec::all(),
        importance: 0,
        from: SelectFrom::Cursor("start".into()),
        shared: true,
    }
}

/// What came, by frames of each kind: bytes of records.
#[derive(Default, Debug)]
struct Came {
    placed: u64,
    sent: u64,
}

/// Takes a whole stream, giving credit for all of it; says that frames were taken if `says`.
async fn take_all(raw: &mut Raw<UnixStream>, says: bool) -> Came {
    raw.send(&open_frame(1, true, &request())).await;
    let mut came = Came::default();
    loop {
        let (header, payload) = raw.next().await.expect("a stream that goes on");
        if header.kind != Kind::Data {
            continue;
        }
        let mut cost = u64::from(header.length);
        if header.flags & PLACED != 0 {
            assert_eq!(header.flags & RECORDS, 0);
            let lengths = payload.chunks(8).map(|p| u32::from_le_bytes(p[4..8].try_into().unwrap()));
            cost = lengths.map(u64::from).sum();
            came.placed += cost;
            if says {
                raw.send(&frame(Header::new(Kind::Taken, 0, 4), &1_u32.to_le_bytes())).await;
            }
        } else if header.flags & RECORDS != 0 {
            came.sent += cost;
        }
        if header.flags & END != 0 {
            return came;
        }
        let back = u32::try_from(cost.max(64)).unwrap();
        raw.send(&frame(Header::new(Kind::Credit, 1, 4), &back.to_le_bytes())).await;
    }
}

async fn stream_of(client: &Client) -> webbase_node::PageReader {
    let select = Select { spec: Arc::new(StreamSpec::all()), importance: 0, shared: true };
    let request = StreamRequest { generation: 1, select: Some(select), ..StreamRequest::default() };
    client.stream(&request).unwrap()
}

fn is_whole(record: &Record) -> usize {
    let n: usize = record.get().url().rsplit('/').next().unwrap().parse().unwrap();
    assert_eq!(&record.body(&Default::default()).unwrap()[..], &body(n, sizes().nth(n).unwrap())[..]);
    n
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_gets_every_page_once_by_whichever_way() {
    let node = Node::start().await;
    let mut tasks = Vec::new();
    for (number, door) in [true, true, false, true].into_iter().enumerate() {
        let settings = ClientSettings { door, ..ClientSettings::default() };
        let client = Client::connect(node.address(), settings).await.unwrap();
        tasks.push(tokio::spawn(async move {
            let (mut stream, mut seen) = (stream_of(&client).await, BTreeMap::new());
            let mut kept = Vec::new();
            while let Some(record) = stream.next().await {
                let record = record.unwrap();
                *seen.entry(is_whole(&record)).or_insert(0) += 1;
                // What a client keeps is its own: the shelf is written over many times meanwhile.
                kept.push(record);
                if number == 3 {
                    tokio::task::yield_now().await;
                }
            }
            kept.iter().for_each(|record| _ = is_whole(record));
            seen
        }));
    }
    for task in tasks {
        let seen = task.await.unwrap();
        assert_eq!(seen.len(), sizes().count());
        assert!(seen.values().all(|times| *times == 1));
    }
}

#[tokio::test]
async fn pages_lie_on_the_shelf_for_who_has_it_and_come_by_the_socket_for_who_has_not() {
    let node = Node::start().await;
    let mut with = node.knock(true).await;
    let came = take_all(&mut with, true).await;
    assert!(came.placed > 15_000_000, "{came:?}");
    assert!(came.sent > 3_000_000, "what is too large for it comes as before: {came:?}");
    let mut without = node.knock(false).await;
    let came = take_all(&mut without, false).await;
    assert_eq!(came.placed, 0);
    // And again on the same connection.
    assert!(take_all(&mut with, true).await.placed > 15_000_000);
}

#[tokio::test]
async fn who_does_not_say_what_it_has_taken_holds_little_and_gets_everything() {
    let node = Node::start().await;
    let mut raw = node.knock(true).await;
    let came = take_all(&mut raw, false).await;
    assert!(came.placed <= TOLD_BYTES_MAX && came.placed > TOLD_BYTES_MAX / 2, "{came:?}");
    assert!(came.sent > 10_000_000, "{came:?}");
    // Others have the rest of it.
    let mut other = node.knock(true).await;
    assert!(take_all(&mut other, true).await.placed > 15_000_000);
}

#[tokio::test]
async fn who_takes_what_it_was_not_told_of_is_cut_off() {
    let node = Node::start().await;
    for frames in [0_u32, 1, u32::MAX] {
        let mut raw = node.knock(true).await;
        raw.send(&frame(Header::new(Kind::Taken, 0, 4), &frames.to_le_bytes())).await;
        assert_eq!(raw.refused().await.code, Code::Protocol);
    }
    let mut raw = node.knock(false).await;
    raw.send(&frame(Header::new(Kind::Taken, 0, 4), &1_u32.to_le_bytes())).await;
    assert_eq!(raw.refused().await.code, Code::Protocol);
    let mut raw = node.knock(true).await;
    raw.send(&frame(Header::new(Kind::Taken, 0, 2), &[1, 0])).await;
    assert_eq!(raw.refused().await.code, Code::Protocol);
    // A server takes no places.
    let mut raw = node.knock(true).await;
    raw.send(&open_frame(1, false, &Request::Add { form: message::Form::Pages })).await;
    let placed = Header { flags: PLACED, ..Header::new(Kind::Data, 1, 8) };
    raw.send(&frame(placed, &[0; 8])).await;
    assert_eq!(raw.refused().await.code, Code::Protocol);
}

#[tokio::test]
async fn readers_that_stop_do_not_take_the_shelf_from_the_others() {
    let node = Node::start().await;
    let mut stopped = Vec::new();
    for _ in 0..3 {
        let client = Client::connect(node.address(), ClientSettings::default()).await.unwrap();
        let mut stream = stream_of(&client).await;
        stream.next().await.unwrap().unwrap();
        stopped.push((client, stream));
    }
    let mut raw = node.knock(true).await;
    let came = take_all(&mut raw, true).await;
    assert!(came.placed > 15_000_000, "{came:?}");
    for (_client, mut stream) in stopped {
        let mut rest = 1;
        while let Some(record) = stream.next().await {
            is_whole(&record.unwrap());
            rest += 1;
        }
        assert_eq!(rest, sizes().count());
    }
}
