//! Slow and vanishing peers: memory stays bounded, cancelled work is freed, credits are kept to the byte, and what is
//! acknowledged is durable whatever happens next.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic"
)]

mod common;

use std::time::Duration;

use common::{Node, Raw, body, frame, hello, hello_frame, open_frame, page, url};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use webbase_node::wire::frame::{BATCH, END, Header, Kind, RECORDS};
use webbase_node::wire::message::{self, BatchAnswer, Code, Form, Hello, Request, StreamOrder, VERSION};
use webbase_node::wire::pages::write_page;
use webbase_node::wire::ranges::RangeSet;
use webbase_node::{Client, ClientSettings, NodeError, Retry, Settings, StreamRequest};
use webbase_storage::{Compression, Organization, Record, open};

fn stream_request() -> Request {
    Request::Stream {
        generation: 0,
        order: StreamOrder::Store,
        from: "start".into(),
        direct: false,
        ranges: RangeSet::all(),
    }
}

fn cost(header: &Header) -> u64 {
    if header.length == 0 && header.flags == END { 0 } else { u64::from(header.length).max(64) }
}

/// Plays a client that gives credit as a list says, and checks that the server never sends more than it has.
async fn read_under_credit(node: &Node, first: u32, grants: &[u32]) -> usize {
    let mut raw = Raw::connect(node.address()).await;
    raw.send(&hello_frame(VERSION, VERSION, &Hello { credit_bytes: first, ..hello() })).await;
    raw.next().await.expect("a welcome");
    raw.send(&open_frame(1, true, &stream_request())).await;
    let mut credit = u64::from(first);
    let (mut records, mut part) = (0, Vec::new());
    let mut grants = grants.iter().cycle();
    loop {
        // Everything the credit allows comes without a further word; then the server waits.
        let next = if credit < 300 << 10 {
            tokio::time::timeout(Duration::from_millis(40), raw.next()).await
        } else {
            Ok(raw.next().await)
        };
        let Ok(next) = next else {
            let grant = *grants.next().unwrap();
            credit += u64::from(grant);
            raw.send(&frame(Header::new(Kind::Credit, 1, 4), &grant.to_le_bytes())).await;
            continue;
        };
        let (header, payload) = next.expect("a stream that goes on");
        if header.kind != Kind::Data {
            continue;
        }
        assert!(cost(&header) <= credit, "{} bytes with credit for {credit}", header.length);
        credit -= cost(&header);
        if header.flags & RECORDS != 0 {
            part.extend_from_slice(&payload);
            if header.flags & webbase_node::wire::frame::PART == 0 {
                let mut rest = bytes::Bytes::from(std::mem::take(&mut part));
                while !rest.is_empty() {
                    let len = webbase_storage::record_len(&rest).unwrap() as usize;
                    Record::new(rest.split_to(len)).unwrap();
                    records += 1;
                }
            }
        }
        if header.flags & END != 0 {
            return records;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_sender_never_exceeds_its_credit(first in 0..3_u32, grants in proptest::collection::vec(1_u32..2_000_000, 1..6)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let node = Node::start().await;
            node.fill(0..60, 30_000);
            node.fill(60..62, 700_000);
            let records = read_under_credit(&node, (512 << 10) + first * 300_000, &grants).await;
            assert_eq!(records, 62);
        });
    }
}

#[tokio::test]
async fn a_reader_that_stops_holds_little_and_can_go_on() {
    let node = Node::start().await;
    node.fill(0..2000, 20_000); // 40 MB, ten times the credit
    let client = node.client().await;
    let mut slow = client.stream(&StreamRequest::default()).unwrap();
    slow.next().await.unwrap().unwrap();
    // Others on the same connection are not held up by it.
    for n in 0..50 {
        client.lookup_url(0, &url(n)).await.unwrap().unwrap();
    }
    let mut other = client.stream(&StreamRequest::default()).unwrap();
    let mut count = 0;
    while let Some(record) = other.next().await {
        record.unwrap();
        count += 1;
    }
    assert_eq!((count, node.server.load().streams), (2000, 1));
    let mut rest = 1;
    while let Some(record) = slow.next().await {
        record.unwrap();
        rest += 1;
    }
    assert_eq!(rest, 2000);
}

#[tokio::test]
async fn a_multi_lookup_is_made_as_it_is_read() {
    let node = Node::start().await;
    node.fill(0..300, 100_000);
    let keys = (0..300).map(|n| common::key().page_key(&url(n)).unwrap().into()).collect();
    let mut raw = Raw::connect(node.address()).await;
    raw.send(&hello_frame(VERSION, VERSION, &Hello { credit_bytes: 512 << 10, ..hello() })).await;
    raw.next().await.expect("a welcome");
    raw.send(&open_frame(1, true, &Request::LookupMany { generation: 0, keys })).await;
    let (mut bytes, mut ended) = (0, false);
    while bytes < 300_000 {
        bytes += raw.next().await.unwrap().0.length;
    }
    let looked_up = node.server.load().lookups_answered;
    assert!(looked_up < 100, "{looked_up} pages wait for a client that has credit for five");
    raw.send(&frame(Header::new(Kind::Credit, 1, 4), &bytes.to_le_bytes())).await;
    while !ended {
        let (header, _) = raw.next().await.unwrap();
        ended = header.flags & END != 0;
        bytes += header.length;
        raw.send(&frame(Header::new(Kind::Credit, 1, 4), &header.length.max(64).to_le_bytes())).await;
    }
    assert!(bytes > 300 * 100_000);
    assert_eq!(node.server.load().lookups_answered, 300);
}

#[tokio::test]
async fn a_peer_that_never_reads_costs_a_bounded_amount_and_ends() {
    let mut settings = Settings::default();
    settings.limits.dead_after = Duration::from_millis(400);
    settings.limits.ping_after = Duration::from_millis(200);
    let node = Node::with(Organization::Log, Compression::None, settings).await;
    node.fill(0..500, 20_000);
    let witness = node.client().await;
    let keys = node.store.keys().unwrap();
    let mut raw = Raw::greeted(node.address()).await;
    let before = node.server.load().lookups_answered;
    let asking = async {
        // 10 MB of answers for each round of requests: the server must stop reading them.
        for _ in 0..200 {
            for (n, key) in keys.iter().enumerate() {
                let request = Request::Lookup { generation: 0, key: (*key).into() };
                if raw.socket.write_all(&open_frame(n as u32 + 1, true, &request)).await.is_err() {
                    return;
                }
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(20), asking).await;
    common::until("it is cut off", || node.server.load().connections == 1).await;
    let answered = node.server.load().lookups_answered - before;
    assert!(answered < 1500, "{answered} answers of 20 kB were made for somebody who takes none");
    witness.ping().await.unwrap();
}

#[tokio::test]
async fn a_cancelled_stream_frees_what_it_held() {
    let node = Node::start().await;
    node.fill(0..2000, 20_000);
    let client = node.client().await;
    for _ in 0..50 {
        let mut reader = client.stream(&StreamRequest::default()).unwrap();
        reader.next().await.unwrap().unwrap();
    }
    common::until("no stream is left", || node.server.load().streams == 0).await;
    assert!(client.stream(&StreamRequest::default()).unwrap().next().await.unwrap().is_ok());
}

#[tokio::test]
async fn a_slow_writer_is_waited_for() {
    let node = Node::start().await;
    let mut raw = Raw::greeted(node.address()).await;
    raw.socket.set_nodelay(true).unwrap();
    raw.send(&open_frame(1, false, &Request::Add { form: Form::Pages })).await;
    let mut payload = Vec::new();
    write_page(&page(&url(1), &body(1, 300)), &mut payload).unwrap();
    let bytes = frame(Header { flags: BATCH, ..Header::new(Kind::Data, 1, payload.len()) }, &payload);
    for piece in bytes.chunks(7) {
        raw.send(piece).await;
        tokio::task::yield_now().await;
    }
    let (header, payload) = raw.next().await.unwrap();
    assert_eq!(header.kind, Kind::Data);
    let answer: BatchAnswer = message::decode(&payload).unwrap();
    assert_eq!((answer.batch, answer.outcome), (0, Ok((1, 0, 0))));
}

#[tokio::test]
async fn an_add_cut_off_half_way_is_not_acknowledged_and_the_store_stays_usable() {
    let node = Node::start().await;
    let client = node.client().await;
    let mut add = client.add_pages().unwrap();
    for n in 0..100 {
        add.page(&page(&url(n), &body(n, 2000))).await.unwrap();
    }
    assert_eq!(add.flush().await.unwrap().added.new, 100);
    for n in 100..200 {
        add.page(&page(&url(n), &body(n, 9000))).await.unwrap(); // frames are sent, the batch is not ended
    }
    drop((add, client));
    common::until("the add is gone", || node.server.load().adds == 0).await;
    let again = node.client().await;
    assert!(again.lookup_url(0, &url(99)).await.unwrap().is_some());
    assert!(again.lookup_url(0, &url(100)).await.unwrap().is_none());
    let mut add = again.add_pages().unwrap();
    for n in 0..200 {
        add.page(&page(&url(n), &body(n, 2000))).await.unwrap();
    }
    let done = add.finish().await.unwrap();
    assert_eq!(
        (done.added.new, done.added.stale),
        (100, 100),
        "what was acknowledged is there, and only that"
    );
}

#[tokio::test]
async fn shutdown_finishes_what_came_whole_and_refuses_the_rest() {
    let node = Node::start().await;
    let (client, mut acknowledged) = (node.client().await, 0);
    let mut add = client.add_pages().unwrap();
    for n in 0..40 {
        add.page(&page(&url(n), &body(n, 2000))).await.unwrap();
        if n % 10 == 9 {
            add.end_batch().await.unwrap();
        }
    }
    acknowledged += add.flush().await.unwrap().added.new;
    let Node { server, store, folder } = node;
    let ending = tokio::spawn(server.shutdown(Duration::from_secs(5)));
    let refused = loop {
        let n = acknowledged as usize;
        let sent = async {
            add.page(&page(&url(n), b"late")).await?;
            add.flush().await
        };
        match sent.await {
            Ok(done) => acknowledged += done.added.new,
            Err(e) => break e,
        }
    };
    assert!(
        matches!(&refused, NodeError::Refused { fault, .. } if fault.code == Code::ShuttingDown)
            || matches!(&refused, NodeError::Closed { .. }),
        "{refused}"
    );
    assert_ne!(refused.retry(), Retry::Useless);
    drop(add);
    assert!(ending.await.unwrap(), "everything ended by itself");
    assert!(Client::connect(client.peer().parse().unwrap(), ClientSettings::default()).await.is_err());
    // As after a kill: nothing but what was committed.
    drop((client, store));
    let mut opened = open(folder.path(), &common::options(Compression::None));
    for _ in 0..400 {
        if opened.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        opened = open(folder.path(), &common::options(Compression::None));
    }
    assert!(opened.unwrap().stats().pages >= acknowledged);
}

#[tokio::test]
async fn shutdown_does_not_wait_for_ever() {
    let node = Node::start().await;
    node.fill(0..2000, 20_000);
    let client = node.client().await;
    let mut reader = client.stream(&StreamRequest::default()).unwrap();
    reader.next().await.unwrap().unwrap();
    assert!(!node.server.shutdown(Duration::from_millis(100)).await);
    let end = async {
        while let Some(record) = reader.next().await {
            if record.is_err() {
                return true;
            }
        }
        false
    };
    assert!(end.await, "the stream is cut off, and says so");
    assert!(reader.cursor().starts_with('o'), "and can be resumed elsewhere: {}", reader.cursor());
}

#[tokio::test]
async fn records_damaged_on_disk_are_errors_and_the_others_come() {
    let node = Node::start().await;
    node.fill(0..300, 2000);
    let bad = node.store.lookup_url(&url(123)).unwrap().unwrap();
    let path = node.folder.path().join("segment-0000000001");
    let bytes = std::fs::read(&path).unwrap();
    let needle = &bad.bytes()[..];
    let at = bytes.windows(needle.len()).position(|window| window == needle).unwrap();
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let middle = at + needle.len() / 2;
    file.write_all_at(&[bytes[middle] ^ 4], middle as u64).unwrap();
    let key = webbase_storage::RecordRef::parse(&bytes[at..]).unwrap().key();

    let client = node.client().await;
    let e = client.lookup(0, key).await.unwrap_err();
    assert!(matches!(&e, NodeError::Refused { fault, .. } if fault.code == Code::Damaged), "{e}");
    assert!(client.lookup_url(0, &url(123)).await.is_err());
    let (mut good, mut damaged) = (0, 0);
    let mut reader = client.stream(&StreamRequest::default()).unwrap();
    while let Some(record) = reader.next().await {
        match record {
            Ok(record) => {
                assert_ne!(record.get().key(), key);
                good += 1;
            }
            Err(_) => damaged += 1,
        }
    }
    assert_eq!((good, damaged), (299, 1));
    let keys = node.store.keys().unwrap();
    let many = client.lookup_many(0, &keys).await.unwrap();
    assert_eq!(many.iter().filter(|found| found.is_err()).count(), 1);
    assert_eq!(client.verify().await.unwrap().damage.len(), 1);
}

/// Passes bytes on, flipping one bit of what the server sends at a place.
async fn meddler(to: std::net::SocketAddr, flip_at: usize) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (near, _) = listener.accept().await.unwrap();
        let far = TcpStream::connect(to).await.unwrap();
        let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.into_split(), far.into_split());
        tokio::spawn(async move { tokio::io::copy(&mut near_in, &mut far_out).await });
        let (mut seen, mut some) = (0, vec![0; 4096]);
        while let Ok(n @ 1..) = far_in.read(&mut some).await {
            if let Some(byte) = flip_at.checked_sub(seen).filter(|at| *at < n).and_then(|at| some.get_mut(at))
            {
                *byte ^= 16;
            }
            seen += n;
            if near_out.write_all(&some[..n]).await.is_err() {
                return;
            }
        }
    });
    address
}

#[tokio::test]
async fn records_damaged_on_their_way_are_never_delivered() {
    let node = Node::start().await;
    node.fill(0..40, 900);
    let clean: Vec<Record> = {
        let client = node.client().await;
        let mut reader = client.stream(&StreamRequest::default()).unwrap();
        let mut all = Vec::new();
        while let Some(record) = reader.next().await {
            all.push(record.unwrap());
        }
        all
    };
    let (mut cut, mut whole) = (0, 0);
    for flip_at in (0..45_000).step_by(997) {
        let address = meddler(node.address(), flip_at).await;
        let settings =
            ClientSettings { answer: Duration::from_secs(2), door: false, ..ClientSettings::default() };
        let Ok(client) = Client::connect(address, settings).await else {
            cut += 1;
            continue;
        };
        let mut reader = client.stream(&StreamRequest::default()).unwrap();
        let (mut got, mut failed) = (0, false);
        while let Some(record) = reader.next().await {
            match record {
                Ok(record) => {
                    assert_eq!(record.bytes(), clean[got].bytes(), "flipped at {flip_at}");
                    got += 1;
                }
                Err(_) => failed = true,
            }
        }
        assert!(failed || got == clean.len(), "a page less, and nobody said so: flipped at {flip_at}");
        cut += usize::from(failed);
        whole += usize::from(!failed);
    }
    assert!(cut > 30 && whole > 0, "{cut} cut, {whole} whole");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_never_comes_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // Nobody at all: connecting is given up.
    let Err(e) = Client::connect(address, ClientSettings::default()).await else { panic!("nobody is there") };
    assert!(matches!(e, NodeError::Timeout { .. }), "{e}");
    drop(listener);

    // Somebody who says welcome and then nothing: the request is.
    let node = Node::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (to, mute) = (node.address(), Duration::from_secs(3600));
    tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.unwrap();
        let mut far = TcpStream::connect(to).await.unwrap();
        let mut some = vec![0; 4096];
        let n = near.read(&mut some).await.unwrap();
        far.write_all(&some[..n]).await.unwrap();
        let n = far.read(&mut some).await.unwrap();
        near.write_all(&some[..n]).await.unwrap();
        tokio::time::sleep(mute).await;
    });
    let mut settings =
        ClientSettings { connect: Duration::from_secs(900), door: false, ..ClientSettings::default() };
    settings.limits.dead_after = Duration::from_secs(1800);
    settings.answer = Duration::from_secs(7);
    let client = Client::connect(address, settings).await.unwrap();
    let e = client.ping().await.unwrap_err();
    assert!(matches!(e, NodeError::Timeout { after_ms: 7000, .. }), "{e}");
    assert_eq!(e.retry(), Retry::Repeats);
}
