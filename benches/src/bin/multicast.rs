//! Many clients of one stream over a store that is not cached: what the disk reads, and what is delivered, when they share a
//! scan and when each has its own; beside it, as many bytes through plain loopback connections, touched by who reads them, or
//! checked as a client checks records. Those come out of one small buffer that never leaves the processor's cache; pages don't, so
//! the limit for pages is loopback whose bytes are as many as theirs, sent to everybody and checked; and the same through Unix sockets, which is what
//! clients on the node's machine have.
//!
//! `multicast [--megabytes N] [--clients N] [--rounds N] [--dir DIR] [--holds CREDIT:QUEUE,…] [--only shared]`: one read node (log, bodies as they are, read with O_DIRECT),
//! node and clients in this process. Bytes read are those of `/proc/self/io`. Pages are random bytes, so they take the room they
//! say. In each round every way has its turn; with `--only shared` there is nothing but the shared scan, for a profiler. With `--holds` there is one shared scan more for each pair, whose clients hold so many KiB on
//! a connection and behind it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;

use webbase_benches::arguments::Arguments;
use webbase_benches::cluster::{ClusterOptions, TestCluster, runtime};
use webbase_benches::measure::{cpu_s, median, touch};
use webbase_node::wire::spec::StreamSpec;
use webbase_node::{ClusterSettings, How};
use webbase_storage::{Compression, Organization, Page, crc64};

#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PAGE_BYTES: usize = 32 << 10;
/// Bytes of a write and of a read through plain loopback.
const WRITE_BYTES: usize = 256 << 10;

/// What one way of delivering costs and brings.
#[derive(Clone, Copy)]
struct Measured {
    read_bytes: u64,
    delivered_bytes: u64,
    seconds: f64,
    cpu_s: f64,
}

impl Measured {
    fn rate(&self) -> f64 {
        self.delivered_bytes as f64 / 1e6 / self.seconds
    }

    fn cpu_s_per_gb(&self) -> f64 {
        self.cpu_s / (self.delivered_bytes as f64 / 1e9)
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
    println!(
        "| round | way | disk MB read | MB delivered | MB/s delivered | CPU s/GB |\n|---|---|---:|---:|---:|---:|"
    );
    if arguments.value("--only").is_some_and(|only| only == "shared") {
        for round in 1..=rounds {
            let m = ours.block_on(stream(&cluster, clients, true, &ClusterSettings::default()));
            println!("| {round} | one shared scan | | | {:.0} | {:.2} |", m.rate(), m.cpu_s_per_gb());
        }
        return;
    }
    let (mut disk, mut delivered, mut of_loopback) = (Vec::new(), Vec::new(), Vec::new());
    let (mut of_checked, mut of_limit, mut of_unix) = (Vec::new(), Vec::new(), Vec::new());
    let (small, pages) = (vec![7_u8; WRITE_BYTES], vec![7_u8; megabytes * 1_000_000]);
    for round in 1..=rounds {
        let usual = ClusterSettings::default();
        let one = ours.block_on(stream(&cluster, 1, false, &usual));
        let separate = ours.block_on(stream(&cluster, clients, false, &usual));
        let shared = ours.block_on(stream(&cluster, clients, true, &usual));
        let each = shared.delivered_bytes / clients as u64;
        let raw = loopback(tcp, clients, each, &small, touch);
        let checked = loopback(tcp, clients, each, &small, crc64);
        let limit = loopback(tcp, clients, each, &pages, crc64);
        let limit_unix = loopback(unix, clients, each, &pages, crc64);
        for (way, m) in [
            ("one client", one),
            ("separate scans", separate),
            ("one shared scan", shared),
            ("plain loopback", raw),
            ("loopback, checked", checked),
            ("loopback, as many bytes, checked", limit),
            ("Unix sockets, as many bytes, checked", limit_unix),
        ] {
            let (read, sent) = (m.read_bytes as f64 / 1e6, m.delivered_bytes as f64 / 1e6);
            println!(
                "| {round} | {way} | {read:.0} | {sent:.0} | {:.0} | {:.2} |",
                m.rate(),
                m.cpu_s_per_gb()
            );
        }
        for settings in &holds {
            let m = ours.block_on(stream(&cluster, clients, true, settings));
            let (credit, queue) =
                (settings.client.limits.credit_bytes_near >> 10, settings.queue_bytes >> 10);
            println!(
                "| {round} | shared, {credit} + {queue} KiB | | | {:.0} | {:.2} |",
                m.rate(),
                m.cpu_s_per_gb()
            );
        }
        assert_eq!(shared.delivered_bytes, separate.delivered_bytes, "everybody gets everything");
        disk.push(shared.read_bytes as f64 / one.read_bytes as f64);
        delivered.push(shared.rate() / separate.rate());
        of_loopback.push(shared.rate() / raw.rate());
        of_checked.push(shared.rate() / checked.rate());
        of_limit.push(shared.rate() / limit.rate());
        of_unix.push(shared.rate() / limit_unix.rate());
    }
    println!(
        "\n{clients} clients, {megabytes} MB of pages, {rounds} rounds, medians of ratios inside a round:"
    );
    println!("disk bytes of the shared scan, times one client's: {:.2}", median(disk.into_iter()));
    println!("delivered, times separate scans: {:.2}", median(delivered.into_iter()));
    println!("delivered, of plain loopback: {:.2}", median(of_loopback.into_iter()));
    println!("delivered, of loopback with the check: {:.2}", median(of_checked.into_iter()));
    println!("delivered, of loopback with as many bytes and the check: {:.2}", median(of_limit.into_iter()));
    println!(
        "delivered, of Unix sockets with as many bytes and the check: {:.2}",
        median(of_unix.into_iter())
    );
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
    settings.client.limits.credit_bytes_near = credit.parse::<u32>().expect("KiB") << 10;
    settings.queue_bytes = queue.parse::<usize>().expect("KiB") << 10;
    settings
}

async fn stream(cluster: &TestCluster, clients: usize, shared: bool, settings: &ClusterSettings) -> Measured {
    let mut all = Vec::new();
    for _ in 0..clients {
        all.push(cluster.client_with(settings.clone()).await);
    }
    let (before, began, cpu) = (read_bytes(), Instant::now(), cpu_s());
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
    let (seconds, cpu_s) = (began.elapsed().as_secs_f64(), cpu_s() - cpu);
    Measured { read_bytes: read_bytes() - before, delivered_bytes, seconds, cpu_s }
}

/// Two ends of a connection.
type Ends = (Box<dyn Write + Send>, Box<dyn Read + Send>);

fn tcp() -> Ends {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let far = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    (Box::new(listener.accept().expect("a connection").0), Box::new(far))
}

fn unix() -> Ends {
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    rustix::net::sockopt::set_socket_send_buffer_size(&near, 2 << 20).expect("a size");
    (Box::new(near), Box::new(far))
}

/// As many connections, as many bytes through each, written from memory from its first byte to its last and again, read and looked at.
fn loopback(
    connect: fn() -> Ends,
    connections: usize,
    bytes: u64,
    memory: &[u8],
    look: fn(&[u8]) -> u64,
) -> Measured {
    let (began, cpu) = (Instant::now(), cpu_s());
    std::thread::scope(|scope| {
        for _ in 0..connections {
            let (mut near, mut far) = connect();
            scope.spawn(move || {
                let mut left = bytes as usize;
                for piece in memory.chunks(WRITE_BYTES).cycle() {
                    let piece = &piece[..piece.len().min(left)];
                    near.write_all(piece).expect("a write");
                    left -= piece.len();
                    if left == 0 {
                        break;
                    }
                }
            });
            scope.spawn(move || {
                let (mut buffer, mut left) = (vec![0_u8; WRITE_BYTES], bytes);
                while left > 0 {
                    let n = far.read(&mut buffer).expect("a read");
                    std::hint::black_box(look(&buffer[..n]));
                    left -= n as u64;
                }
            });
        }
    });
    let delivered_bytes = bytes * connections as u64;
    Measured { read_bytes: 0, delivered_bytes, seconds: began.elapsed().as_secs_f64(), cpu_s: cpu_s() - cpu }
}
