//! The Unix socket beside a server's port: clients on the same machine come by it, and only as they might by the port.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]
#![cfg(target_os = "linux")]

mod common;

use std::time::Duration;

use common::{Node, Raw, hello, hello_frame};
use tokio::net::{TcpListener, UnixStream};
use webbase_node::wire::frame::{Header, Kind};
use webbase_node::wire::message::{self, Code, Hello, VERSION, Welcome};
use webbase_node::{Client, ClientSettings, Settings, StreamRequest, Token};
use webbase_storage::{Compression, Organization};

fn welcome(payload: &[u8]) -> Welcome {
    let (_, _, rest) = message::decode_hello(payload).unwrap();
    message::decode(rest).unwrap()
}

/// What a node tells those who come by its port.
async fn door_of(node: &Node, hello: &Hello) -> String {
    let mut raw = Raw::connect(node.address()).await;
    raw.send(&hello_frame(VERSION, VERSION, hello)).await;
    let (header, payload) = raw.next().await.unwrap();
    assert_eq!(header.kind, Kind::Welcome);
    welcome(&payload).door.expect("a door")
}

/// Sockets of that name: the one that listens, and one for each client.
fn sockets(door: &str) -> usize {
    let all = std::fs::read_to_string("/proc/net/unix").unwrap();
    all.lines().filter(|line| line.ends_with(&format!("@{door}"))).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_on_the_same_machine_comes_by_the_door() {
    let node = Node::start().await;
    node.fill(0..500, 20_000);
    let door = door_of(&node, &hello()).await;
    assert_eq!(sockets(&door), 1, "nobody yet");
    let client = node.client().await;
    assert_eq!(sockets(&door), 2);
    let mut pages = client.stream(&StreamRequest::default()).unwrap();
    let mut count = 0;
    while let Some(page) = pages.next().await {
        page.unwrap();
        count += 1;
    }
    assert_eq!(count, 500);
    // It counts once: the way it was found by is gone.
    while node.server.load().connections != 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop((pages, client));
    assert!(node.server.shutdown(Duration::from_secs(60)).await);
    assert_eq!(sockets(&door), 0, "it ends with its server");
}

#[tokio::test]
async fn the_door_asks_what_the_port_asks() {
    let token = Token::new([5; 32]);
    let settings = Settings { token: Some(token.clone()), ..Settings::default() };
    let node = Node::with(Organization::Log, Compression::None, settings).await;
    let good = Hello { token: Some([5; 32]), ..hello() };
    let name = door_of(&node, &good).await;
    let knock = async || Raw::over(UnixStream::connect(format!("\0{name}")).await.unwrap());
    for (bytes, code) in [
        (hello_frame(VERSION, VERSION, &hello()), Code::Token),
        (hello_frame(VERSION, VERSION, &Hello { token: Some([6; 32]), ..hello() }), Code::Token),
        (hello_frame(VERSION + 1, 9, &good), Code::Version),
    ] {
        let mut raw = knock().await;
        raw.send(&bytes).await;
        assert_eq!(raw.refused().await.code, code);
    }
    let mut raw = knock().await;
    raw.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!(raw.refused().await.code, Code::Protocol);
    let mut raw = knock().await;
    raw.send(&hello_frame(VERSION, VERSION, &good)).await;
    let (header, payload) = raw.next().await.unwrap();
    assert_eq!((header.kind, welcome(&payload).door), (Kind::Welcome, None));
    let right = ClientSettings { token: Some(token), ..ClientSettings::default() };
    Client::connect(node.address(), right).await.unwrap().ping().await.unwrap();
}

#[tokio::test]
async fn whose_door_is_not_here_is_reached_by_its_port() {
    // As behind a tunnel: a loopback address, and a server on another machine.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let mut raw = Raw::over(listener.accept().await.unwrap().0);
        assert_eq!(raw.next().await.unwrap().0.kind, Kind::Hello);
        let welcome = Welcome {
            repository: String::new(),
            credit_bytes: 4 << 20,
            calls_max: 8,
            item_bytes_max: 1 << 20,
            door: Some(format!("webbase-{:032x}", 7)),
        };
        let payload = message::encode_hello(VERSION, VERSION, &welcome);
        let mut frame = Vec::new();
        Header::new(Kind::Welcome, 0, payload.len()).write(&payload, &mut frame);
        raw.send(&frame).await;
        raw.next().await.unwrap().0.kind
    });
    let client = Client::connect(address, ClientSettings::default()).await.unwrap();
    let _asked = client.stream(&StreamRequest::default()).unwrap();
    assert_eq!(server.await.unwrap(), Kind::Open);
}
