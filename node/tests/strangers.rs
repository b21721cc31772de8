//! Raw bytes against a real server: whatever a peer sends or leaves out, it gets at most one error and is closed, and
//! nobody else notices.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic"
)]

mod common;

use std::time::Duration;

use common::{Node, Raw, frame, hello, hello_frame, open_frame, url};
use tokio::io::AsyncWriteExt;
use webbase_node::wire::frame::{DATA_BYTES, END, HEADER_BYTES, Header, Kind, check};
use webbase_node::wire::message::{self, Code, Form, Hello, Key, Request, StreamOrder, VERSION};
use webbase_node::wire::ranges::RangeSet;
use webbase_node::{Client, ClientSettings, Limits, NodeError, Settings, Token};
use webbase_storage::{Compression, Organization, PageKey};

/// A header whose check holds, with any length.
fn header_with(kind: u8, flags: u8, call: u32, length: u32) -> Vec<u8> {
    let mut out = vec![kind, flags, 0, 0];
    out.extend_from_slice(&call.to_le_bytes());
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&check(&out).to_le_bytes());
    assert_eq!(out.len(), HEADER_BYTES);
    out
}

#[tokio::test]
async fn rubbish_gets_one_error_and_nobody_else_notices() {
    let node = Node::start().await;
    node.fill(0..50, 500);
    let witness = node.client().await;
    let versions = [VERSION, VERSION].map(u16::to_le_bytes).concat();
    let cut_short = [b"WBNP", &versions[..]].concat();
    let strangers: Vec<(&str, Vec<u8>)> = vec![
        ("another protocol", b"GET / HTTP/1.1\r\nHost: here\r\n\r\n".to_vec()),
        ("zeros", vec![0; 100]),
        ("random bytes", (0..200_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()),
        ("a call before the handshake", open_frame(1, true, &Request::Ping)),
        ("data before the handshake", header_with(4, 0, 1, 1 << 20)),
        ("a huge hello", header_with(1, 0, 0, u32::MAX)),
        ("a hello without magic", frame(Header::new(Kind::Hello, 0, 4), b"WHAT")),
        ("a hello cut short", frame(Header::new(Kind::Hello, 0, 8), &cut_short)),
    ];
    for (what, bytes) in strangers {
        let mut raw = Raw::connect(node.address()).await;
        raw.send(&bytes).await;
        let fault = raw.refused().await;
        assert_eq!(fault.code, Code::Protocol, "{what}: {fault}");
        witness.lookup_url(0, &url(1)).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn rubbish_after_the_handshake_is_cut_off_too() {
    let node = Node::start().await;
    node.fill(0..50, 500);
    let witness = node.client().await;
    let add = open_frame(1, false, &Request::Add { form: Form::Pages });
    let mut damaged = open_frame(1, true, &Request::Ping);
    *damaged.last_mut().unwrap() ^= 1;
    let strangers: Vec<(&str, Vec<u8>)> = vec![
        ("a header that is none", vec![9; 16]),
        ("an unknown kind", header_with(99, 0, 1, 0)),
        ("unknown flags", header_with(4, 128, 1, 0)),
        ("a request that is too long", header_with(3, 1, 1, 1 << 30)),
        ("data that is too long", header_with(4, 0, 1, (1 << 20) + 1)),
        ("a payload with a wrong check", damaged),
        ("a call without a number", open_frame(0, true, &Request::Ping)),
        ("a second hello", hello_frame(VERSION, VERSION, &hello())),
        ("a goodbye from a client", header_with(10, 0, 0, 0)),
        ("a call opened twice", [add.clone(), add.clone()].concat()),
        (
            "credit without end",
            [add.clone(), frame(Header::new(Kind::Credit, 1, 4), &[255; 4]).repeat(3)].concat(),
        ),
        (
            "data after the end",
            [add.clone(), header_with(4, END, 1, 0), frame(Header::new(Kind::Data, 1, 1), b"x")].concat(),
        ),
    ];
    for (what, bytes) in strangers {
        let mut raw = Raw::greeted(node.address()).await;
        raw.send(&bytes).await;
        let fault = raw.refused().await;
        assert_eq!(fault.code, Code::Protocol, "{what}: {fault}");
        witness.lookup_url(0, &url(1)).await.unwrap().unwrap();
    }
    common::until("everybody else is gone", || node.server.load().connections == 1).await;
}

#[tokio::test]
async fn data_beyond_the_credit_is_a_violation() {
    let mut settings = Settings::default();
    settings.limits.credit_bytes = 1 << 20;
    let node = Node::with(Organization::Log, Compression::None, settings).await;
    node.fill(0..100, 20_000);
    let mut raw = Raw::connect(node.address()).await;
    raw.send(&hello_frame(VERSION, VERSION, &Hello { credit_bytes: 512 << 10, ..hello() })).await;
    assert_eq!(raw.next().await.unwrap().0.kind, Kind::Welcome);
    // A stream takes no data, and this one waits for credit: what is sent to it stays.
    let stream = Request::Stream {
        generation: 0,
        order: StreamOrder::Store,
        from: "start".into(),
        direct: false,
        ranges: RangeSet::all(),
    };
    raw.send(&open_frame(1, false, &stream)).await;
    let piece = frame(Header::new(Kind::Data, 1, DATA_BYTES), &vec![1; DATA_BYTES]);
    for _ in 0..5 {
        let _ = raw.socket.write_all(&piece).await; // the fifth is one too many
    }
    let fault = raw.refused().await;
    assert!(fault.text.contains("credit"), "{fault}");
}

#[tokio::test]
async fn a_conversation_cut_at_every_byte_harms_nobody() {
    let node = Node::start().await;
    node.fill(0..20, 300);
    let key = Key::from(node.store.keys().unwrap()[3]);
    let mut page = Vec::new();
    let one = common::page("http://cut.example/", b"half");
    webbase_node::wire::pages::write_page(&one, &mut page).unwrap();
    let conversation = [
        hello_frame(VERSION, VERSION, &hello()),
        open_frame(1, true, &Request::Lookup { generation: 0, key }),
        open_frame(2, false, &Request::Add { form: Form::Pages }),
        frame(Header::new(Kind::Data, 2, page.len()), &page),
        open_frame(3, true, &Request::Keys { generation: 0, from: Key([0; 16]), ranges: RangeSet::all() }),
    ]
    .concat();
    for cut in 0..=conversation.len() {
        let mut raw = Raw::connect(node.address()).await;
        raw.send(&conversation[..cut]).await;
        drop(raw);
    }
    common::until("all are gone", || node.server.load().connections == 0).await;
    common::until("no add is left", || node.server.load().adds == 0).await;
    let client = node.client().await;
    assert!(client.lookup_url(0, "http://cut.example/").await.unwrap().is_none(), "no batch ever ended");
    assert_eq!(client.keys(0, PageKey::MIN, RangeSet::all()).unwrap().all().await.unwrap().len(), 20);
}

#[tokio::test]
async fn frames_may_come_byte_by_byte() {
    let node = Node::start().await;
    node.fill(0..20, 300);
    let key = Key::from(node.store.keys().unwrap()[3]);
    let mut raw = Raw::connect(node.address()).await;
    raw.socket.set_nodelay(true).unwrap();
    let mut bytes = hello_frame(VERSION, VERSION, &hello());
    bytes.extend(open_frame(5, true, &Request::Lookup { generation: 0, key }));
    for byte in bytes {
        raw.send(&[byte]).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(raw.next().await.unwrap().0.kind, Kind::Welcome);
    let (header, payload) = raw.next().await.unwrap();
    assert_eq!((header.kind, header.call), (Kind::Data, 5));
    assert_eq!(webbase_storage::RecordRef::parse(&payload).unwrap().key(), PageKey::from(key));
}

#[tokio::test]
async fn versions_repositories_and_tokens_are_checked() {
    let token = Token::new([5; 32]);
    let settings = Settings { token: Some(token.clone()), ..Settings::default() };
    let node = Node::with(Organization::Log, Compression::None, settings).await;
    let good = Hello { token: Some([5; 32]), ..hello() };
    for (bytes, code) in [
        (hello_frame(VERSION + 1, 9, &good), Code::Version),
        (hello_frame(VERSION - 1, VERSION - 1, &good), Code::Version),
        (hello_frame(VERSION, VERSION, &hello()), Code::Token),
        (hello_frame(VERSION, VERSION, &Hello { token: Some([6; 32]), ..hello() }), Code::Token),
        (
            hello_frame(VERSION, VERSION, &Hello { repository: Some("another".into()), ..good.clone() }),
            Code::Repository,
        ),
        (hello_frame(VERSION, VERSION, &Hello { known: vec![1; 65], ..good.clone() }), Code::Protocol),
        (hello_frame(VERSION, VERSION, &Hello { credit_bytes: 10, ..good.clone() }), Code::Protocol),
    ] {
        let mut raw = Raw::connect(node.address()).await;
        raw.send(&bytes).await;
        assert_eq!(raw.refused().await.code, code);
    }
    // A client that can speak more than we do is welcome.
    let mut raw = Raw::connect(node.address()).await;
    raw.send(&hello_frame(VERSION, 9, &good)).await;
    assert_eq!(raw.next().await.unwrap().0.kind, Kind::Welcome);

    let right = ClientSettings {
        token: Some(token),
        repository: Some(common::key().fingerprint()),
        ..ClientSettings::default()
    };
    Client::connect(node.address(), right).await.unwrap().ping().await.unwrap();
    let Err(e) = Client::connect(node.address(), ClientSettings::default()).await else { panic!("no token") };
    assert!(matches!(&e, NodeError::Refused { fault, .. } if fault.code == Code::Token), "{e}");
}

#[tokio::test]
async fn listening_beyond_loopback_needs_protection() {
    let (_folder, store) = common::new_store(Organization::Log, Compression::None);
    let service = webbase_node::Service::of_store(store);
    let settings = Settings { token: Some(Token::new([1; 32])), ..Settings::default() };
    let started = webbase_node::Server::start("0.0.0.0:0".parse().unwrap(), service, settings).await;
    let Err(e) = started else { panic!("an open door") };
    assert!(e.to_string().contains("token and TLS"), "{e}");
}

#[tokio::test(start_paused = true)]
async fn half_open_and_silent_connections_end() {
    let limits = Limits {
        handshake: Duration::from_secs(3),
        ping_after: Duration::from_secs(10),
        dead_after: Duration::from_secs(30),
        idle_after: Duration::from_secs(3600),
        ..Limits::default()
    };
    let settings = Settings { limits, ..Settings::default() };
    let node = Node::with(Organization::Log, Compression::None, settings).await;
    let mut half = Raw::connect(node.address()).await;
    half.send(&hello_frame(VERSION, VERSION, &hello())[..9]).await;
    assert!(half.next().await.is_none(), "a handshake that is never done");

    let mut silent = Raw::greeted(node.address()).await;
    let (ping, _) = silent.next().await.unwrap();
    assert_eq!(ping.kind, Kind::Ping);
    assert!(silent.next().await.is_none(), "no sign of life");
}

#[tokio::test(start_paused = true)]
async fn idle_connections_end_with_a_goodbye() {
    let limits = Limits { idle_after: Duration::from_secs(20), ..Limits::default() };
    let settings = Settings { limits, ..Settings::default() };
    let node = Node::with(Organization::Log, Compression::None, settings).await;
    let mut raw = Raw::greeted(node.address()).await;
    loop {
        match raw.next().await {
            Some((header, _)) if header.kind == Kind::Ping => {
                raw.send(&frame(Header::new(Kind::Pong, 0, 0), &[])).await;
            }
            Some((header, _)) => assert_eq!(header.kind, Kind::Goodbye),
            None => break,
        }
    }
}

#[tokio::test]
async fn too_many_connections_and_calls_are_told_to_come_later() {
    let mut settings = Settings { connections_per_peer_max: 2, uploads_max: 1, ..Settings::default() };
    settings.limits.calls_max = 3;
    let node = Node::with(Organization::Log, Compression::None, settings).await;
    let (first, second) = (node.client().await, node.client().await);
    let Err(e) = Client::connect(node.address(), ClientSettings::default()).await else { panic!("a third") };
    assert!(matches!(&e, NodeError::Refused { fault, .. } if fault.code == Code::Busy), "{e}");
    assert_eq!(e.retry(), webbase_node::Retry::Safe);

    let mut adds = vec![first.add_pages().unwrap()];
    adds[0].page(&common::page(&url(1), b"x")).await.unwrap();
    adds[0].flush().await.unwrap();
    let mut other = first.add_pages().unwrap();
    other.page(&common::page(&url(2), b"x")).await.unwrap();
    let e = other.flush().await.unwrap_err();
    assert!(matches!(&e, NodeError::Refused { fault, .. } if fault.code == Code::Busy), "{e}");
    drop(other);
    adds.push(first.add_pages().unwrap());
    adds.push(first.add_pages().unwrap());
    assert!(matches!(first.add_pages(), Err(NodeError::TooMuch { .. })), "the client counts too");
    drop(adds);
    first.ping().await.unwrap();

    // A peer that does not count is refused call by call.
    drop(second);
    common::until("a place is free", || node.server.load().connections == 1).await;
    common::until("no add is left", || node.server.load().adds == 0).await;
    let mut raw = Raw::greeted(node.address()).await;
    for call in 1..=4 {
        raw.send(&open_frame(call, false, &Request::Add { form: Form::Pages })).await;
    }
    let mut busy = 0;
    while busy < 3 {
        let (header, payload) = raw.next().await.unwrap();
        assert_eq!(header.kind, Kind::Error);
        assert_eq!(message::decode::<webbase_node::wire::message::Fault>(&payload).unwrap().code, Code::Busy);
        busy += 1;
    }
}
