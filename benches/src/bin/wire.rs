//! What the wire costs: adding, streaming and looking up through a node on loopback, against the same store used
//! directly, raw loopback TCP, and Redis GET of the same values.
//!
//! `wire --corpus FILE [--pages N] [--rounds N] [--dir DIR] [--only add,stream,lookup]
//! [--threads N] [--depth 1|16]`, where N threads serve the node's connections, as many as in `webbase node` unless told otherwise. Redis is started here, on a free
//! port and without persistence; `redis.sh` installs it. Both sides of the lookups are loaded by the same generator: one
//! thread, as many connections, as deep.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use webbase_benches::arguments::Arguments;
use webbase_benches::cluster::{ClusterOptions, TestCluster, add_all};
use webbase_benches::corpus::{Corpus, Random, repository_key};
use webbase_benches::measure::{
    self, Cost, Work, alternate, median, print_setting, print_table, timed, touch,
};
use webbase_benches::ours::page;
use webbase_node::wire::frame::{END, HEADER_BYTES, Header, Kind};
use webbase_node::wire::message::{self, Hello, Key, Request};
use webbase_node::{Client, ClientSettings, ConnectionThreads, Server, Service, Settings, StreamRequest};
use webbase_storage::{
    Compression, Options, Organization, Page, PageKey, PageStore, Record, StreamSpec, create, open, pack_page,
};

const BATCH_PAGES: usize = 1024;
const CONNECTIONS: usize = 50;
/// Batches that a repository's client has under way.
const BATCHES: usize = 4;

fn main() {
    let arguments = Arguments::from_env();
    let corpus = Path::new(arguments.value("--corpus").unwrap_or("benches/work/pages.corpus"));
    let corpus = Corpus::read(corpus, arguments.number("--pages", 20_000)).expect("a corpus");
    let rounds = arguments.number("--rounds", 5);
    let dir = PathBuf::from(arguments.value("--dir").unwrap_or("benches/work/wire"));
    let pages: Vec<Page<'static>> = corpus.pages.iter().map(page).collect();
    print_setting(Work { pages: pages.len() as u64, bytes: corpus.len_bytes() }, rounds);
    let bench = Bench {
        pages,
        dir,
        rounds,
        lookups: arguments.number("--lookups", 100_000),
        raw_bytes: corpus.len_bytes(),
        threads: arguments.number("--threads", ConnectionThreads::advised()),
        depth: arguments.value("--depth").map(|depth| depth.parse().expect("--depth 1 or 16")),
    };
    if arguments.lists("--only", "add") {
        bench.add(Compression::None);
        bench.add(Compression::Zstd(1));
    }
    if arguments.lists("--only", "stream") {
        bench.stream(Compression::None);
        bench.stream(Compression::Zstd(1));
    }
    if arguments.lists("--only", "lookup") {
        bench.lookup();
    }
}

struct Bench {
    pages: Vec<Page<'static>>,
    dir: PathBuf,
    rounds: usize,
    lookups: usize,
    raw_bytes: u64,
    threads: usize,
    /// Lookups that a connection has under way, if only one number is asked for.
    depth: Option<usize>,
}

/// A node in this process, on threads of its own.
struct Node {
    runtime: tokio::runtime::Runtime,
    server: Option<Server>,
}

impl Node {
    fn start(store: Arc<dyn PageStore>, threads: usize) -> Node {
        let runtime = runtime(1);
        let address = "127.0.0.1:0".parse().expect("an address");
        let settings = Settings { connection_threads: threads, ..Settings::default() };
        let server =
            runtime.block_on(Server::start(address, Service::of_store(store), settings)).expect("a server");
        Node { runtime, server: Some(server) }
    }

    fn address(&self) -> SocketAddr {
        self.server.as_ref().expect("a running server").address()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.shutdown(std::time::Duration::from_secs(5)));
        }
    }
}

fn runtime(threads: usize) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .expect("a runtime")
}

fn alone() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

impl Bench {
    fn fresh(&self, compression: Compression) -> Arc<dyn PageStore> {
        let dir = self.dir.join("store");
        let _ = std::fs::remove_dir_all(&dir); // not there in the first round
        std::fs::create_dir_all(&self.dir).expect("a folder");
        let options = Options { compression, ..Options::default() };
        create(&dir, Organization::Log, repository_key(), &options).expect("a new store");
        open(&dir, &options).expect("a store")
    }

    fn filled(&self, compression: Compression) -> Arc<dyn PageStore> {
        let store = self.fresh(compression);
        for batch in self.pages.chunks(BATCH_PAGES) {
            store.add(batch).expect("room");
        }
        store.commit().expect("a commit");
        store
    }

    fn add(&self, compression: Compression) {
        let names = ["direct", "wire, pages", "direct, records", "wire, records", "a repository's client"];
        let records: Vec<Record> = self
            .pages
            .iter()
            .map(|page| pack_page(&repository_key(), page, compression, None).expect("a record"))
            .collect();
        let samples = alternate(&names, self.rounds, |n| {
            if n == 4 {
                return self.add_by_client(compression);
            }
            let store = self.fresh(compression);
            let (_, cost) = match n {
                0 => timed(|| {
                    for batch in self.pages.chunks(BATCH_PAGES) {
                        store.add(batch).expect("room");
                    }
                    store.commit().expect("a commit");
                }),
                2 => timed(|| {
                    for batch in records.chunks(BATCH_PAGES) {
                        store.add_records(batch).expect("room");
                    }
                    store.commit().expect("a commit");
                }),
                n => {
                    let node = Node::start(store.clone(), self.threads);
                    let client = alone();
                    let connected = client
                        .block_on(Client::connect(node.address(), ClientSettings::default()))
                        .expect("a connection");
                    let timed = timed(|| {
                        client.block_on(async {
                            let done = if n == 1 {
                                let mut add = connected.add_pages().expect("a call");
                                for page in &self.pages {
                                    add.page(page).await.expect("a page sent");
                                }
                                add.finish().await
                            } else {
                                let mut add = connected.add_records().expect("a call");
                                for record in &records {
                                    add.record(record).await.expect("a record sent");
                                }
                                add.finish().await
                            };
                            let done = done.expect("an acknowledgement");
                            assert_eq!(done.added.new as usize, self.pages.len(), "{:?}", done.refused);
                        });
                    });
                    drop((connected, client));
                    timed
                }
            };
            store.close().expect("an end");
            cost
        });
        let work = Work { pages: self.pages.len() as u64, bytes: self.raw_bytes };
        print_table(&format!("Adding, {compression:?}"), &samples, "direct", work);
        print_ratio("wire, records", "direct, records", &samples);
    }

    /// As programs add: the client packs pages, some batches are under way, each page is durable on its update node.
    fn add_by_client(&self, compression: Compression) -> Cost {
        let cluster = TestCluster::start(
            &self.dir.join("repository"),
            ClusterOptions {
                update_nodes: 1,
                read_nodes: 1,
                replicas: 1,
                update_organization: Organization::Log,
                read_organization: Organization::Log,
                compression,
            },
        );
        let client = runtime(2);
        let connected = client.block_on(cluster.client());
        let ((), cost) = timed(|| {
            client.block_on(async {
                let mut under_way = tokio::task::JoinSet::new();
                for batch in self.pages.chunks(BATCH_PAGES / 4) {
                    if under_way.len() >= BATCHES {
                        under_way.join_next().await.expect("a batch").expect("no panic");
                    }
                    let (connected, batch) = (connected.clone(), batch.to_vec());
                    under_way.spawn(async move { add_all(&connected, &batch).await });
                }
                under_way.join_all().await;
            });
        });
        cost
    }

    fn stream(&self, compression: Compression) {
        let store = self.filled(compression);
        let total: u64 = store.stats().live_bytes;
        let node = Node::start(store.clone(), self.threads);
        let client = alone();
        let connected = client
            .block_on(Client::connect(node.address(), ClientSettings::default()))
            .expect("a connection");
        let samples = alternate(&["direct", "raw TCP", "wire"], self.rounds, |n| {
            timed(|| match n {
                0 => {
                    let mut count = 0;
                    for record in store.stream(&StreamSpec::default()).expect("a stream") {
                        std::hint::black_box(touch(record.expect("a record").bytes()));
                        count += 1;
                    }
                    assert_eq!(count, self.pages.len());
                }
                1 => raw_tcp(total),
                _ => client.block_on(async {
                    let mut reader = connected.stream(&StreamRequest::default()).expect("a call");
                    let mut count = 0;
                    while let Some(record) = reader.next().await {
                        std::hint::black_box(touch(record.expect("a record").bytes()));
                        count += 1;
                    }
                    assert_eq!(count, self.pages.len());
                }),
            })
            .1
        });
        let work = Work { pages: self.pages.len() as u64, bytes: total };
        print_table(&format!("Streaming, {compression:?}, bytes as stored"), &samples, "wire", work);
        let slower = if wall(&samples, "direct") > wall(&samples, "raw TCP") { "direct" } else { "raw TCP" };
        print_ratio("wire", slower, &samples);
    }

    fn lookup(&self) {
        let store = self.filled(Compression::Zstd(1));
        let node = Node::start(store.clone(), self.threads);
        let redis = Redis::start();
        let mut values = Vec::new();
        for record in store.stream(&StreamSpec::default()).expect("a stream") {
            let record = record.expect("a record");
            values.push((record.get().key(), record));
        }
        redis.fill(&values);
        let keys: Vec<PageKey> = values.iter().map(|(key, _)| *key).collect();
        let mean =
            values.iter().map(|(_, record)| record.bytes().len() as u64).sum::<u64>() / values.len() as u64;
        println!("\n- values: {} records, {mean} bytes on average; {CONNECTIONS} connections", values.len());
        for depth in [1, 16].into_iter().filter(|depth| self.depth.is_none_or(|only| only == *depth)) {
            let names = ["redis", "node", "node, client library"];
            let samples = alternate(&names, self.rounds, |n| match n {
                0 => load(redis.address(), Resp, &keys, depth, self.lookups),
                1 => load(node.address(), Ours::default(), &keys, depth, self.lookups),
                _ => library(node.address(), &keys, depth, self.lookups),
            });
            let work = Work { pages: self.lookups as u64, bytes: self.lookups as u64 * mean };
            print_table(&format!("Lookups, {depth} deep"), &samples, "redis", work);
        }
    }
}

fn wall(samples: &[measure::Samples], name: &str) -> f64 {
    let row = samples.iter().find(|row| row.name == name).expect("a contestant");
    median(row.costs.iter().map(|cost| cost.wall_s))
}

fn print_ratio(ours: &str, other: &str, samples: &[measure::Samples]) {
    let of = |name: &str| &samples.iter().find(|row| row.name == name).expect("a contestant").costs;
    let ratio = median(of(other).iter().zip(of(ours)).map(|(other, ours)| other.wall_s / ours.wall_s));
    println!("\n{ours}: {ratio:.2} times {other}");
}

/// As many bytes through a loopback connection, written from memory, read and touched.
fn raw_tcp(bytes: u64) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let writer = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a connection");
        let buffer = vec![7_u8; 256 << 10];
        let mut left = bytes;
        while left > 0 {
            let n = left.min(buffer.len() as u64);
            socket.write_all(&buffer[..n as usize]).expect("a write");
            left -= n;
        }
    });
    let mut socket = TcpStream::connect(address).expect("a connection");
    let mut buffer = vec![0_u8; 256 << 10];
    let mut left = bytes;
    while left > 0 {
        let n = socket.read(&mut buffer).expect("a read");
        std::hint::black_box(touch(&buffer[..n]));
        left -= n as u64;
    }
    writer.join().expect("a writer");
}

/// How requests and answers look.
trait Protocol: Clone + Send + 'static {
    /// What is said first, and whether an answer to it is to be skipped.
    fn greeting(&self) -> Vec<u8>;
    fn request(&mut self, key: PageKey, out: &mut Vec<u8>);
    /// Bytes of the first whole answer, and whether it is one to a request; the value lies in the range.
    fn answer(&self, bytes: &[u8]) -> Option<(usize, bool, std::ops::Range<usize>)>;
}

#[derive(Clone)]
struct Resp;

impl Protocol for Resp {
    fn greeting(&self) -> Vec<u8> {
        Vec::new()
    }

    fn request(&mut self, key: PageKey, out: &mut Vec<u8>) {
        out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n$16\r\n");
        out.extend_from_slice(&Key::from(key).0);
        out.extend_from_slice(b"\r\n");
    }

    fn answer(&self, bytes: &[u8]) -> Option<(usize, bool, std::ops::Range<usize>)> {
        let line = bytes.iter().take(24).position(|&b| b == b'\n')?;
        assert_eq!(bytes[0], b'$', "an error from redis");
        let mut length = 0;
        for &digit in &bytes[1..line - 1] {
            length = 10 * length + usize::from(digit - b'0');
        }
        let end = line + 1 + length;
        (bytes.len() >= end + 2).then_some((end + 2, true, line + 1..end))
    }
}

#[derive(Clone, Default)]
struct Ours {
    call: u32,
}

impl Protocol for Ours {
    fn greeting(&self) -> Vec<u8> {
        let hello =
            Hello { repository: None, token: None, credit_bytes: 4 << 20, known: Vec::new(), shelf: false };
        let payload = message::encode_hello(message::VERSION, message::VERSION, &hello);
        let mut out = Vec::new();
        Header::new(Kind::Hello, 0, payload.len()).write(&payload, &mut out);
        out
    }

    fn request(&mut self, key: PageKey, out: &mut Vec<u8>) {
        self.call = self.call.wrapping_add(1).max(1);
        let payload = message::encode(&Request::Lookup { generation: 0, key: key.into() });
        Header { flags: 1, ..Header::new(Kind::Open, self.call, payload.len()) }.write(&payload, out);
    }

    fn answer(&self, bytes: &[u8]) -> Option<(usize, bool, std::ops::Range<usize>)> {
        let header = Header::decode(bytes.first_chunk()?).expect("a frame");
        let end = HEADER_BYTES + header.rest_bytes();
        let is_data = header.kind == Kind::Data;
        assert!(is_data || header.call == 0, "an error from the node");
        // A large record comes in several frames: the last one counts.
        let is_last = is_data && header.flags & END != 0;
        (bytes.len() >= end).then_some((end, is_last, HEADER_BYTES..HEADER_BYTES + header.length as usize))
    }
}

/// One thread, many connections, each with `depth` requests under way.
fn load<P: Protocol>(
    address: SocketAddr,
    protocol: P,
    keys: &[PageKey],
    depth: usize,
    lookups: usize,
) -> Cost {
    let runtime = alone();
    let keys: Arc<[PageKey]> = keys.into();
    runtime.block_on(async {
        let mut sockets = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut socket = tokio::net::TcpStream::connect(address).await.expect("a connection");
            socket.set_nodelay(true).expect("no delay");
            socket.write_all(&protocol.greeting()).await.expect("a greeting");
            sockets.push(socket);
        }
        let started = std::time::Instant::now();
        let tasks: Vec<_> = sockets
            .into_iter()
            .enumerate()
            .map(|(n, socket)| {
                tokio::spawn(connection(
                    socket,
                    protocol.clone(),
                    keys.clone(),
                    n,
                    depth,
                    lookups / CONNECTIONS,
                ))
            })
            .collect();
        for task in tasks {
            task.await.expect("a connection's end");
        }
        Cost { wall_s: started.elapsed().as_secs_f64(), cpu_s: f64::NAN }
    })
}

async fn connection<P: Protocol>(
    mut socket: tokio::net::TcpStream,
    mut protocol: P,
    keys: Arc<[PageKey]>,
    seed: usize,
    depth: usize,
    lookups: usize,
) {
    let mut random = Random(seed as u64);
    let (mut out, mut buffer) = (Vec::new(), vec![0_u8; 256 << 10]);
    let (mut done, mut filled) = (0, 0);
    while done < lookups {
        out.clear();
        for _ in 0..depth {
            protocol.request(keys[random.below(keys.len() as u64) as usize], &mut out);
        }
        socket.write_all(&out).await.expect("a request sent");
        let mut left = depth;
        while left > 0 {
            if filled == buffer.len() {
                buffer.resize(2 * filled, 0);
            }
            filled += socket.read(&mut buffer[filled..]).await.expect("an answer");
            let mut at = 0;
            while let Some((bytes, counts, value)) = protocol.answer(&buffer[at..filled]) {
                std::hint::black_box(touch(&buffer[at..][value]));
                at += bytes;
                left -= usize::from(counts);
            }
            buffer.copy_within(at..filled, 0);
            filled -= at;
        }
        done += depth;
    }
}

/// The same through the client library, which verifies every record.
fn library(address: SocketAddr, keys: &[PageKey], depth: usize, lookups: usize) -> Cost {
    let runtime = alone();
    let keys: Arc<[PageKey]> = keys.into();
    runtime.block_on(async {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            clients.push(Client::connect(address, ClientSettings::default()).await.expect("a connection"));
        }
        let started = std::time::Instant::now();
        let mut tasks = Vec::new();
        for (n, client) in clients.iter().enumerate() {
            for lane in 0..depth {
                let (client, keys) = (client.clone(), keys.clone());
                let each = lookups / CONNECTIONS / depth;
                tasks.push(tokio::spawn(async move {
                    let mut random = Random((n * depth + lane) as u64);
                    for _ in 0..each {
                        let key = keys[random.below(keys.len() as u64) as usize];
                        let record = client.lookup(0, key).await.expect("an answer").expect("a page");
                        std::hint::black_box(touch(record.bytes()));
                    }
                }));
            }
        }
        for task in tasks {
            task.await.expect("a lane's end");
        }
        Cost { wall_s: started.elapsed().as_secs_f64(), cpu_s: f64::NAN }
    })
}

struct Redis {
    child: Child,
    port: u16,
}

impl Redis {
    fn start() -> Redis {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server: redis.sh installs it");
        let redis = Redis { child, port };
        for _ in 0..200 {
            if TcpStream::connect(redis.address()).is_ok() {
                return redis;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("redis does not come up");
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    fn fill(&self, values: &[(PageKey, Record)]) {
        let mut socket = TcpStream::connect(self.address()).expect("a connection");
        let mut answer = [0; 5];
        for (key, record) in values {
            let value = record.bytes();
            let mut out = b"*3\r\n$3\r\nSET\r\n$16\r\n".to_vec();
            out.extend_from_slice(&Key::from(*key).0);
            out.extend_from_slice(format!("\r\n${}\r\n", value.len()).as_bytes());
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
            socket.write_all(&out).expect("a value sent");
            socket.read_exact(&mut answer).expect("an answer");
            assert_eq!(&answer, b"+OK\r\n");
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}
