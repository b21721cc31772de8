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
use std::time::Duration;

use common::{Raw, body, frame, hello, hello_frame, new_store, open_frame, page, until, url};
use numbered::Numbered;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use webbase_node::wire::frame::{END, Header, Kind, PLACED, RECORDS};
use webbase_node::wire::message::{self, Code, Hello, Request, SelectFrom, VERSION, Welcome};
use webbase_node::wire::ranges::RangeSet;
use webbase_node::wire::spec::{Condition, StreamSpec};
use webbase_node::{Client, ClientSettings, Select, Server, Service, Settings, StorePages, StreamRequest};
use webbase_storage::{Compression, Organization, Page, Record};

/// What a connection may be told of and has not taken.
const TOLD_BYTES_MAX: u64 = 4 << 20;
const TOLD_SLOTS_MAX: u64 = 6;
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
    request_of(StreamSpec::all())
}

fn request_of(spec: StreamSpec) -> Request {
    Request::Select {
        generation: 1,
        direct: false,
        ranges: RangeSet::all(),
        spec,
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
    /// Frames whose places were told.
    places: u32,
}

/// Takes a whole stream, giving credit for all of it; says that frames were taken if `says`.
async fn take_all(raw: &mut Raw<UnixStream>, says: bool) -> Came {
    take_all_of(raw, &request(), says).await
}

async fn take_all_of(raw: &mut Raw<UnixStream>, request: &Request, says: bool) -> Came {
    raw.send(&open_frame(1, true, request)).await;
    let mut came = Came::default();
    loop {
        let (header, payload) = raw.next().await.expect("a stream that goes on");
        if header.kind != Kind::Data {
            continue;
        }
        let mut cost = u64::from(header.length);
        if header.flags & PLACED != 0 {
            assert_eq!(header.flags & RECORDS, 0);
            let lengths = payload.chunks(16).map(|p| u32::from_le_bytes(p[12..].try_into().unwrap()));
            cost = lengths.map(u64::from).sum();
            (came.placed, came.places) = (came.placed + cost, came.places + 1);
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

fn stream_of(client: &Client, spec: StreamSpec) -> webbase_node::PageReader {
    let select = Select { spec: Arc::new(spec), importance: 0, shared: true };
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
            let (mut stream, mut seen) = (stream_of(&client, StreamSpec::all()), BTreeMap::new());
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
            (seen, client)
        }));
    }
    let mut clients = Vec::new();
    for task in tasks {
        let (seen, client) = task.await.unwrap();
        assert_eq!(seen.len(), sizes().count());
        assert!(seen.values().all(|times| *times == 1));
        clients.push(client);
    }
    // Three of them came by the shelf, and have said all that they took, though they are connected still and may come back.
    let taken = || node.server.load().shelf_taken_bytes;
    until("all is taken", || taken() > 3 * 15_000_000).await;
    until("the shelf is free", || node.server.load().shelf_batches == 0).await;
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
    let held = node.server.load().shelf_batches;
    assert!((1..=TOLD_SLOTS_MAX).contains(&held), "{held} batches are held");
    // Others have the rest of it.
    let mut other = node.knock(true).await;
    assert!(take_all(&mut other, true).await.placed > 15_000_000);
}

/// A page of each batch, or a few, is not worth a batch that stays where it is.
#[tokio::test]
async fn who_wants_little_holds_nothing() {
    let node = Node::start().await;
    let mut raw = node.knock(true).await;
    for one_in in [2, 20, 100] {
        let spec = StreamSpec::all().with(Condition::Sample(one_in));
        let came = take_all_of(&mut raw, &request_of(spec), false).await;
        assert!(came.sent > 0, "{came:?}");
        let held = node.server.load().shelf_batches;
        assert!(held <= TOLD_SLOTS_MAX, "one in {one_in}: {held} batches are held");
    }
    // What it was told of at first it holds still; when that is gone, all is.
    drop(raw);
    until("the shelf is free", || node.server.load().shelf_batches == 0).await;
}

/// On a connection that goes on, what was taken last is said though nothing else is, and a call that is given up gives back what was on its way to it.
#[tokio::test]
async fn streams_that_end_or_are_dropped_hold_nothing() {
    let node = Node::start().await;
    let client = Client::connect(node.address(), ClientSettings::default()).await.unwrap();
    // A frame of a batch, which is less than credit is given for.
    let some = Condition::Prefix((200..210).map(url).collect());
    let mut stream = stream_of(&client, StreamSpec::all().with(some));
    let mut pages = 0;
    while let Some(record) = stream.next().await {
        is_whole(&record.unwrap());
        pages += 1;
    }
    assert_eq!(pages, 10);
    until("the shelf is free", || node.server.load().shelf_batches == 0).await;
    assert!(node.server.load().shelf_taken_bytes > 100_000);
    for _ in 0..5 {
        let mut stream = stream_of(&client, StreamSpec::all());
        stream.next().await.unwrap().unwrap();
    }
    until("the shelf is free", || node.server.load().shelf_batches == 0).await;
}

/// A server that goes down does not leave before the last records were taken: there would be others in their place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_goes_down_waits_until_all_is_taken() {
    let node = Node::start().await;
    let mut raw = node.knock(true).await;
    let came = take_all(&mut raw, false).await;
    let Node { _folder, server } = node;
    let down = tokio::spawn(server.shutdown(Duration::from_secs(60)));
    assert_eq!(raw.next().await.unwrap().0.kind, Kind::Goodbye);
    // It answers, so it is there, and has gone round once since the goodbye.
    raw.send(&frame(Header::new(Kind::Ping, 0, 0), &[])).await;
    assert_eq!(raw.next().await.unwrap().0.kind, Kind::Pong);
    assert!(!down.is_finished());
    raw.send(&frame(Header::new(Kind::Taken, 0, 4), &came.places.to_le_bytes())).await;
    assert!(raw.next().await.is_none());
    assert!(down.await.unwrap(), "in good order");
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
        let mut stream = stream_of(&client, StreamSpec::all());
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
