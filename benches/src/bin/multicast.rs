//! Many clients of one stream over a store that is not cached: what the disk reads, and what is delivered, when they share a
//! scan and when each has its own; beside it, as many bytes through plain loopback connections, touched by who reads them, or
//! checked as a client checks records.
//!
//! `multicast [--megabytes N] [--clients N] [--rounds N] [--dir DIR] [--holds CREDIT:QUEUE,…]`: one read node (log, bodies as they are, read with O_DIRECT),
//! node and clients in this process. Bytes read are those of `/proc/self/io`. Pages are random bytes, so they take the room they
//! say. In each round every way has its turn. With `--holds` there is one shared scan more for each pair, whose clients hold so many KiB on
//! a connection and behind it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Instant;

use webbase_benches::arguments::Arguments;
use webbase_benches::cluster::{ClusterOptions, TestCluster, runtime};
use webbase_benches::measure::{median, touch};
use webbase_node::wire::spec::StreamSpec;
use webbase_node::{ClusterSettings, How};
use webbase_storage::{Compression, Organization, Page, crc64};

const PAGE_BYTES: usize = 32 << 10;

/// What one way of delivering costs and brings.
#[derive(Clone, Copy)]
struct Measured {
    read_bytes: u64,
    delivered_bytes: u64,
    seconds: f64,
}

impl Measured {
    fn rate(&self) -> f64 {
        self.delivered_bytes as f64 / 1e6 / self.seconds
    }
}

fn main() {
    let arguments = Arguments::from_env();
    let megabytes: usize = arguments.number("--megabytes", 400);
    let clients: usize = arguments.number("--clients", 10);
    let rounds: usize = arguments.number("--rounds", 3);
    let dir = PathBuf::from(arguments.value("--dir").unwrap_or("benches/work/multicast"));
    let options = ClusterOptions {
        update_nodes: 1,
        read_nodes: 1,
        replicas: 1,
        update_organization: Organization::Log,
        read_organization: Organization::Log,
        compression: Compression::None,
    };
    let cluster = TestCluster::start(&dir, options);
    let ours = runtime(2, "clients");
    ours.block_on(fill(&cluster, megabytes));
    let holds = arguments.value("--holds").unwrap_or_default();
    let holds: Vec<ClusterSettings> = holds.split_terminator(',').map(hold).collect();
    println!("| round | way | disk MB read | MB delivered | MB/s delivered |\n|---|---|---:|---:|---:|");
    let (mut disk, mut delivered, mut of_loopback) = (Vec::new(), Vec::new(), Vec::new());
    let mut of_checked = Vec::new();
    for round in 1..=rounds {
        let usual = ClusterSettings::default();
        let one = ours.block_on(stream(&cluster, 1, false, &usual));
        let separate = ours.block_on(stream(&cluster, clients, false, &usual));
        let shared = ours.block_on(stream(&cluster, clients, true, &usual));
        let raw = loopback(clients, shared.delivered_bytes / clients as u64, touch);
        let checked = loopback(clients, shared.delivered_bytes / clients as u64, crc64);
        for (way, m) in [
            ("one client", one),
            ("separate scans", separate),
            ("one shared scan", shared),
            ("plain loopback", raw),
            ("loopback, checked", checked),
        ] {
            let (read, sent) = (m.read_bytes as f64 / 1e6, m.delivered_bytes as f64 / 1e6);
            println!("| {round} | {way} | {read:.0} | {sent:.0} | {:.0} |", m.rate());
        }
        for settings in &holds {
            let m = ours.block_on(stream(&cluster, clients, true, settings));
            let (credit, queue) = (settings.client.limits.credit_bytes >> 10, settings.queue_bytes >> 10);
            println!("| {round} | shared, {credit} + {queue} KiB | | | {:.0} |", m.rate());
        }
        assert_eq!(shared.delivered_bytes, separate.delivered_bytes, "everybody gets everything");
        disk.push(shared.read_bytes as f64 / one.read_bytes as f64);
        delivered.push(shared.rate() / separate.rate());
        of_loopback.push(shared.rate() / raw.rate());
        of_checked.push(shared.rate() / checked.rate());
    }
    println!(
        "\n{clients} clients, {megabytes} MB of pages, {rounds} rounds, medians of ratios inside a round:"
    );
    println!("disk bytes of the shared scan, times one client's: {:.2}", median(disk.into_iter()));
    println!("delivered, times separate scans: {:.2}", median(delivered.into_iter()));
    println!("delivered, of plain loopback: {:.2}", median(of_loopback.into_iter()));
    println!("delivered, of loopback with the check: {:.2}", median(of_checked.into_iter()));
}

async fn fill(cluster: &TestCluster, megabytes: usize) {
    let client = cluster.client().await;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let count = megabytes * 1_000_000 / PAGE_BYTES;
    for first in (0..count).step_by(256) {
        let pages: Vec<(String, Vec<u8>)> = (first..count.min(first + 256))
            .map(|n| {
                let mut body = Vec::with_capacity(PAGE_BYTES);
                while body.len() < PAGE_BYTES {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    body.extend_from_slice(&state.to_le_bytes());
                }
                (format!("http://site{}.example/{n}", n % 97), body)
            })
            .collect();
        let pages: Vec<Page<'_>> =
            pages.iter().map(|(url, body)| Page { url, body, fetched_at_ms: 1, ..Page::default() }).collect();
        client.add(&pages).await.expect("an add").all().expect("all of it");
    }
    client.cycle(|_| {}).await.expect("a cycle");
}

fn read_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").expect("/proc/self/io");
    let line = text.lines().find_map(|line| line.strip_prefix("read_bytes: ")).expect("read_bytes");
    line.parse().expect("a number")
}

/// What a client may hold, of "CREDIT:QUEUE" in KiB.
fn hold(pair: &str) -> ClusterSettings {
    let (credit, queue) = pair.split_once(':').expect("CREDIT:QUEUE");
    let mut settings = ClusterSettings::default();
    settings.client.limits.credit_bytes = credit.parse::<u32>().expect("KiB") << 10;
    settings.queue_bytes = queue.parse::<usize>().expect("KiB") << 10;
    settings
}

async fn stream(cluster: &TestCluster, clients: usize, shared: bool, settings: &ClusterSettings) -> Measured {
    let mut all = Vec::new();
    for _ in 0..clients {
        all.push(cluster.client_with(settings.clone()).await);
    }
    let (before, began) = (read_bytes(), Instant::now());
    let tasks: Vec<_> = all
        .into_iter()
        .map(|client| {
            tokio::spawn(async move {
                let how = How { shared, direct: true };
                let mut stream = client.select(StreamSpec::all(), how).await.expect("a stream");
                let mut bytes = 0;
                while let Some(record) = stream.next().await {
                    bytes += record.expect("a page").bytes().len() as u64;
                }
                bytes
            })
        })
        .collect();
    let mut delivered_bytes = 0;
    for task in tasks {
        delivered_bytes += task.await.expect("a client");
    }
    Measured { read_bytes: read_bytes() - before, delivered_bytes, seconds: began.elapsed().as_secs_f64() }
}

/// As many connections, as many bytes through each, written from memory, read and looked at.
fn loopback(connections: usize, bytes: u64, look: fn(&[u8]) -> u64) -> Measured {
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..connections {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("an address");
            scope.spawn(move || {
                let (mut socket, _) = listener.accept().expect("a connection");
                let (buffer, mut left) = (vec![7_u8; 256 << 10], bytes);
                while left > 0 {
                    let n = left.min(buffer.len() as u64);
                    socket.write_all(&buffer[..n as usize]).expect("a write");
                    left -= n;
                }
            });
            scope.spawn(move || {
                let mut socket = TcpStream::connect(address).expect("a connection");
                let (mut buffer, mut left) = (vec![0_u8; 256 << 10], bytes);
                while left > 0 {
                    let n = socket.read(&mut buffer).expect("a read");
                    std::hint::black_box(look(&buffer[..n]));
                    left -= n as u64;
                }
            });
        }
    });
    let delivered_bytes = bytes * connections as u64;
    Measured { read_bytes: 0, delivered_bytes, seconds: began.elapsed().as_secs_f64() }
}
