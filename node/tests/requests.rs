//! Every request, over a real connection, on every organization: what comes back is what the store has.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic"
)]

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use common::{Node, body, key, new_store, page, url};
use webbase_node::wire::message::{Code, StreamOrder};
use webbase_node::wire::ranges::RangeSet;
use webbase_node::{
    Client, ClientSettings, Control, NodeError, Retry, Server, Service, Settings, StreamRequest,
};
use webbase_storage::{Compression, Organization, PageKey, Record, StreamSpec, Trust, pack_page};

const PAGES: usize = 700;

async fn added(organization: Organization, compression: Compression) -> (Node, Client) {
    let node = Node::with(organization, compression, Settings::default()).await;
    let client = node.client().await;
    let mut add = client.add_pages().unwrap();
    for n in 0..PAGES {
        add.page(&page(&url(n), &body(n, 3000))).await.unwrap();
        if n % 100 == 99 {
            add.end_batch().await.unwrap();
        }
    }
    let done = add.finish().await.unwrap();
    assert_eq!((done.batches, done.refused.len()), (7, 0));
    assert_eq!((done.added.new, done.added.stale), (PAGES as u64, 0));
    (node, client)
}

async fn read_all(client: &Client, request: &StreamRequest) -> Vec<Record> {
    let mut reader = client.stream(request).unwrap();
    let mut all = Vec::new();
    while let Some(record) = reader.next().await {
        all.push(record.unwrap());
    }
    all
}

#[tokio::test]
async fn what_is_added_is_found_and_streamed() {
    for organization in Organization::ALL {
        for compression in [Compression::None, Compression::Zstd(1)] {
            let (node, client) = added(organization, compression).await;
            let known = client.dictionaries();
            for n in [0, 1, 350, PAGES - 1] {
                let record = client.lookup_url(0, &url(n)).await.unwrap().unwrap();
                assert_eq!(record.body(known).unwrap(), body(n, 3000));
                let same = client.lookup(0, record.get().key()).await.unwrap().unwrap();
                assert_eq!(same.bytes(), record.bytes());
                let by_id = client.lookup_id(0, record.get().key().id).await.unwrap();
                assert_eq!(by_id.len(), 1);
            }
            assert!(client.lookup_url(0, "http://nowhere.example/").await.unwrap().is_none());
            assert!(client.lookup(0, PageKey::MIN).await.unwrap().is_none());
            assert!(client.lookup_id(0, PageKey::MIN.id).await.unwrap().is_empty());
            let streamed = read_all(&client, &StreamRequest::default()).await;
            let direct: Vec<Record> =
                node.store.stream(&StreamSpec::default()).unwrap().map(|r| r.unwrap()).collect();
            assert_eq!(streamed.len(), PAGES);
            assert!(streamed.iter().zip(&direct).all(|(a, b)| a.bytes() == b.bytes()));
            for record in &streamed {
                record.body(known).unwrap();
            }
        }
    }
}

#[tokio::test]
async fn lists_keys_and_multi_lookups_agree_with_the_store() {
    let (node, client) = added(Organization::Log, Compression::Zstd(1)).await;
    let keys = node.store.keys().unwrap();
    assert_eq!(client.keys(0, PageKey::MIN, RangeSet::all()).unwrap().all().await.unwrap(), keys);
    let list = client.list(0, keys[10], RangeSet::all()).unwrap().all().await.unwrap();
    assert_eq!(list.iter().map(|entry| entry.key).collect::<Vec<_>>(), keys[10..]);
    let record = node.store.lookup(keys[10], Trust::Verify).unwrap().unwrap();
    assert_eq!((list[0].version, list[0].bytes), (record.get().version(), record.bytes().len() as u64));

    let mut asked: Vec<PageKey> = keys.iter().rev().take(50).copied().collect();
    asked.insert(7, PageKey::MIN);
    asked.push(asked[0]);
    let found = client.lookup_many(0, &asked).await.unwrap();
    assert_eq!(found.len(), asked.len());
    for (key, found) in asked.iter().zip(&found) {
        let found = found.as_ref().unwrap().as_ref().map(|record| record.get().key());
        assert_eq!(found, Some(*key).filter(|key| *key != PageKey::MIN));
    }
    assert_eq!(client.lookup_many(0, &[]).await.unwrap().len(), 0);
}

#[tokio::test]
async fn ranges_partition_everything() {
    for organization in [Organization::Log, Organization::Hash] {
        let (node, client) = added(organization, Compression::None).await;
        let all: BTreeSet<PageKey> = node.store.keys().unwrap().into_iter().collect();
        let mut seen = BTreeSet::new();
        for part in [vec![0, 5], vec![1, 2, 3, 4], vec![6, 7]] {
            let ranges = RangeSet::of(3, part.clone()).unwrap();
            let request = StreamRequest { ranges: ranges.clone(), ..StreamRequest::default() };
            let records = read_all(&client, &request).await;
            let keys = client.keys(0, PageKey::MIN, ranges.clone()).unwrap().all().await.unwrap();
            assert_eq!(keys.len(), records.len());
            for record in records {
                let key = record.get().key();
                assert!(part.contains(&ranges.range_of(key.id)), "{key} in {part:?}");
                assert!(seen.insert(key), "{key} twice");
            }
        }
        assert_eq!(seen, all);
    }
}

#[tokio::test]
async fn a_stream_resumes_after_any_page() {
    for organization in Organization::ALL {
        let (node, client) = added(organization, Compression::None).await;
        let all: Vec<PageKey> =
            read_all(&client, &StreamRequest::default()).await.iter().map(|r| r.get().key()).collect();
        for stop in [0, 1, 17, 350, 699, 700] {
            let mut reader = client.stream(&StreamRequest::default()).unwrap();
            let mut keys = Vec::new();
            for _ in 0..stop {
                keys.push(reader.next().await.unwrap().unwrap().get().key());
            }
            let cursor = reader.cursor();
            drop(reader);
            let request = StreamRequest { from: cursor.clone(), ..StreamRequest::default() };
            keys.extend(read_all(&client, &request).await.iter().map(|r| r.get().key()));
            assert_eq!(keys, all, "{organization} stopped after {stop} at {cursor}");
        }
        // What is added after the end comes after it.
        let mut reader = client.stream(&StreamRequest::default()).unwrap();
        while reader.next().await.is_some() {}
        let cursor = reader.cursor();
        if organization == Organization::Log {
            node.fill(9000..9003, 100);
            let request = StreamRequest { from: cursor, ..StreamRequest::default() };
            assert_eq!(read_all(&client, &request).await.len(), 3);
        }
    }
}

#[tokio::test]
async fn pages_larger_than_a_frame_and_than_the_credit_pass() {
    let node = Node::start().await;
    let client = node.client().await;
    let large = body(1, 9 << 20);
    let mut add = client.add_pages().unwrap();
    add.page(&page(&url(0), b"small")).await.unwrap();
    add.page(&page(&url(1), &large)).await.unwrap();
    add.page(&page(&url(2), b"small too")).await.unwrap();
    assert_eq!(add.finish().await.unwrap().added.new, 3);
    let found = client.lookup_url(0, &url(1)).await.unwrap().unwrap();
    assert_eq!(found.body(client.dictionaries()).unwrap(), large);
    assert_eq!(read_all(&client, &StreamRequest::default()).await.len(), 3);
    let keys = node.store.keys().unwrap();
    assert!(client.lookup_many(0, &keys).await.unwrap().iter().all(|found| matches!(found, Ok(Some(_)))));

    let records: Vec<Record> = read_all(&client, &StreamRequest::default()).await;
    let other = Node::start().await;
    let to = other.client().await;
    let mut add = to.add_records().unwrap();
    for record in &records {
        add.record(record).await.unwrap();
    }
    assert_eq!(add.finish().await.unwrap().added.new, 3);
    let copied = to.lookup_url(0, &url(1)).await.unwrap().unwrap();
    assert_eq!(copied.bytes(), found.bytes());
}

#[tokio::test]
async fn records_travel_with_their_dictionary() {
    let (_from, client) = added(Organization::Log, Compression::Zstd(1)).await;
    let records = read_all(&client, &StreamRequest::default()).await;
    assert!(records.iter().any(|record| record.get().dictionary() != 0), "a dictionary is in use");
    let to = Node::with(Organization::Hash, Compression::Zstd(1), Settings::default()).await;
    let settings =
        ClientSettings { dictionaries: client.dictionaries().clone(), ..ClientSettings::default() };
    let second = Client::connect(to.address(), settings).await.unwrap();
    let mut add = second.add_records().unwrap();
    for record in &records {
        add.record(record).await.unwrap();
    }
    let done = add.finish().await.unwrap();
    assert_eq!((done.added.new as usize, done.refused.len()), (PAGES, 0));
    let third = to.client().await;
    let record = third.lookup_url(0, &url(600)).await.unwrap().unwrap();
    assert_eq!(record.body(third.dictionaries()).unwrap(), body(600, 3000));

    // Without the dictionary at hand the client says so, before anything is sent.
    let poor = to.client().await;
    let packed = records.iter().find(|record| record.get().dictionary() != 0).unwrap();
    assert!(poor.add_records().unwrap().record(packed).await.is_err());
    let known = poor.fetch_dictionaries().await.unwrap();
    assert_eq!(known.len(), 1);
    let mine = pack_page(&key(), &page(&url(5000), &body(5000, 3000)), Compression::Zstd(1), Some(&known[0]));
    let mut add = poor.add_records().unwrap();
    add.record(&mine.unwrap()).await.unwrap();
    assert_eq!(add.finish().await.unwrap().added.new, 1);
}

#[tokio::test]
async fn figures_compaction_and_verification_cross_the_wire() {
    let (node, client) = added(Organization::Log, Compression::None).await;
    client.ping().await.unwrap();
    let (here, there) = (node.store.stats(), client.stats().await.unwrap());
    assert_eq!((there.pages, there.live_bytes), (here.pages, here.live_bytes));
    assert!(client.compact(1 << 30).await.unwrap().done);
    let verified = client.verify().await.unwrap();
    assert_eq!((verified.good_records, verified.damage.len()), (PAGES as u64, 0));
    assert_eq!(client.repository(), key().fingerprint());
}

#[tokio::test]
async fn an_unknown_generation_is_answered_with_those_there_are() {
    let (_node, client) = added(Organization::Log, Compression::None).await;
    let mut stream = client.stream(&StreamRequest { generation: 7, ..StreamRequest::default() }).unwrap();
    let errors = [
        client.lookup(7, PageKey::MIN).await.unwrap_err(),
        client.lookup_id(7, PageKey::MIN.id).await.unwrap_err(),
        client.lookup_url(7, &url(1)).await.unwrap_err(),
        client.lookup_many(7, &[PageKey::MIN]).await.unwrap_err(),
        client.keys(7, PageKey::MIN, RangeSet::all()).unwrap().all().await.unwrap_err(),
        client.list(7, PageKey::MIN, RangeSet::all()).unwrap().all().await.unwrap_err(),
        stream.next().await.unwrap().unwrap_err(),
    ];
    for e in errors {
        assert_eq!(e.generations(), Some(&[0][..]), "{e}");
        assert_eq!(e.retry(), Retry::Useless);
    }
    client.ping().await.unwrap();
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_the_connection_goes_on() {
    let (_node, client) = added(Organization::Log, Compression::None).await;
    let bad_cursor = StreamRequest { from: "nonsense".into(), ..StreamRequest::default() };
    let bad_order = StreamRequest { order: StreamOrder::Id, ..StreamRequest::default() };
    for request in [bad_cursor, bad_order] {
        let e = client.stream(&request).unwrap().next().await.unwrap().unwrap_err();
        assert!(matches!(&e, NodeError::Refused { fault, .. } if fault.code == Code::BadRequest), "{e}");
    }
    assert!(client.lookup_url(0, "not a url").await.is_err());
    let mut control = client.control("nothing").unwrap();
    assert!(control.receive(Some(Duration::from_secs(5))).await.is_err());
    client.ping().await.unwrap();

    // A refused batch concerns only itself.
    let mut add = client.add_pages().unwrap();
    add.page(&page("no url at all", b"x")).await.unwrap();
    add.end_batch().await.unwrap();
    add.page(&page(&url(8000), b"good")).await.unwrap();
    let done = add.finish().await.unwrap();
    assert_eq!((done.added.new, done.batches), (1, 2));
    assert_eq!((done.refused[0].0, done.refused[0].1.code), (0, Code::BadPage));
}

#[tokio::test]
async fn messages_of_a_control_call_go_both_ways_in_order() {
    let (folder, store) = new_store(Organization::Log, Compression::None);
    let echo = |topic: &str, control: Control| {
        let topic = topic.to_owned();
        tokio::spawn(async move {
            let (mut sender, mut receiver) = control.split();
            sender.send(Bytes::from(topic)).await.unwrap();
            while let Ok(Some(message)) = receiver.receive(None).await {
                sender.send(message).await.unwrap();
            }
            sender.end();
        });
    };
    let service = Service::of_store(store).with_control(std::sync::Arc::new(echo));
    let server = Server::start("127.0.0.1:0".parse().unwrap(), service, Settings::default()).await.unwrap();
    let client = Client::connect(server.address(), ClientSettings::default()).await.unwrap();
    let limit = Some(Duration::from_secs(10));
    let mut control = client.control("echo").unwrap();
    assert_eq!(control.receive(limit).await.unwrap().unwrap(), "echo");
    let (mut sender, mut receiver) = control.split();
    let sending = tokio::spawn(async move {
        for n in 0..300_usize {
            sender.send(Bytes::from(vec![n as u8; n * n * 7])).await.unwrap();
        }
        sender.end();
    });
    for n in 0..300_usize {
        let message = receiver.receive(limit).await.unwrap().unwrap();
        assert_eq!(message, vec![n as u8; n * n * 7], "message {n}");
    }
    assert!(receiver.receive(limit).await.unwrap().is_none());
    sending.await.unwrap();
    let mut control = client.control("echo").unwrap();
    assert!(control.send(Bytes::from(vec![0; (16 << 20) + 1])).await.is_err());
    // An open call keeps the connection when the client is gone, as whatever a client opened does.
    drop(client);
    assert_eq!(control.receive(limit).await.unwrap().unwrap(), "echo");
    let (mut sender, mut receiver) = control.split();
    sender.send(Bytes::from("still there")).await.unwrap();
    assert_eq!(receiver.receive(limit).await.unwrap().unwrap(), "still there");
    sender.end();
    assert!(receiver.receive(limit).await.unwrap().is_none());
    drop(folder);
}

#[tokio::test]
async fn many_calls_at_once_get_their_own_answers() {
    let (node, client) = added(Organization::HashedLog, Compression::None).await;
    let keys = node.store.keys().unwrap();
    let mut tasks = Vec::new();
    for (n, key) in keys.into_iter().enumerate() {
        let client = client.clone();
        tasks.push(tokio::spawn(async move {
            if n % 50 == 0 {
                assert_eq!(read_all(&client, &StreamRequest::default()).await.len(), PAGES);
            }
            assert_eq!(client.lookup(0, key).await.unwrap().unwrap().get().key(), key);
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}
