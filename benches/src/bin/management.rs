//! What a management server costs with a thousand nodes: its CPU time while they only beat, how long joining and an empty
//! cycle take, and how long a client waits for a stream plan over all of them.
//!
//! `management [--nodes N] [--seconds N] [--bits 10] [--dir DIR]`. The server is a process of its own (this program
//! again), so the simulated nodes' time is not counted with its. Each node is the real machine with a disk in memory, in both
//! roles, on a connection of its own to loopback; it reports and sends its figures once a second.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use webbase_benches::arguments::Arguments;
use webbase_benches::measure::median;
use webbase_mgmt_server::{Management, ManagementServer, ServerOptions};
use webbase_node::cycle::message::NodeId;
use webbase_node::cycle::{
    Action, Done, Event, Intent, Node, NodeDurable, Prepared, ReadDurable, Settings, UpdateDurable,
};
use webbase_node::link::{Hello, ManagementSays, NodeSays, TOPIC};
use webbase_node::plan::{NodeFigures, NodeState};
use webbase_node::wire::message;
use webbase_node::{Client, ClientSettings};
use webbase_storage::{Organization, Stats};

const REPLICAS: u32 = 2;
/// Plans that are asked for.
const PLANS: usize = 500;

/// Reports sent by all nodes.
static REPORTS: AtomicU64 = AtomicU64::new(0);

fn main() {
    let arguments = Arguments::from_env();
    let bits: Vec<u8> = arguments
        .value("--bits")
        .unwrap_or("10")
        .split(',')
        .map(|bits| bits.parse().expect("--bits takes numbers"))
        .collect();
    let dir = PathBuf::from(arguments.value("--dir").unwrap_or("benches/work/management"));
    let runtime = runtime();
    if arguments.value("--serve").is_some() {
        runtime.block_on(serve(&dir, bits[0]));
        return;
    }
    let (nodes, seconds) = (arguments.number("--nodes", 1000), arguments.number("--seconds", 15));
    println!("{nodes} nodes, {REPLICAS} replicas, a beat a second for {seconds} s\n");
    println!(
        "| ranges | joining | its CPU | written | beating: share of a core | µs a beat | empty cycle | its CPU | plan: median, 99 %, worst |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for bits in bits {
        runtime.block_on(measure(&dir, bits, nodes as u64, seconds as u64));
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// The server's own process: prints its address, and ends when its input does.
async fn serve(dir: &Path, bits: u8) {
    let mut options = ServerOptions::new(dir, "127.0.0.1:0".parse().expect("an address"));
    (options.range_bits, options.replicas) = (bits, REPLICAS);
    (options.wire.connections_max, options.wire.connections_per_peer_max) = (20_000, 20_000);
    let server = ManagementServer::start(options).await.expect("the server starts");
    println!("{}", server.address());
    let end = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0]));
    end.await.expect("a thread").expect("an end of the input");
    server.shutdown().await.expect("it ends well");
}

struct ServerProcess {
    child: Child,
    address: SocketAddr,
}

impl ServerProcess {
    fn start(dir: &Path, bits: u8) -> ServerProcess {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--serve", "yes", "--bits", &bits.to_string(), "--dir"])
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server's process");
        let mut line = String::new();
        let output = child.stdout.take().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("its address");
        ServerProcess { child, address: line.trim().parse().expect("an address") }
    }

    /// CPU time of all its threads.
    fn cpu_s(&self) -> f64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("its threads");
        let nanoseconds = |task: fs::DirEntry| -> u64 {
            let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            text.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0)
        };
        tasks.flatten().map(nanoseconds).sum::<u64>() as f64 / 1e9
    }

    fn written_bytes(&self) -> u64 {
        let io = fs::read_to_string(format!("/proc/{}/io", self.child.id())).expect("its I/O");
        let line = io.lines().find_map(|l| l.strip_prefix("write_bytes: "));
        line.and_then(|n| n.parse().ok()).expect("its written bytes")
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

async fn measure(dir: &Path, bits: u8, nodes: u64, seconds: u64) {
    let _ = fs::remove_dir_all(dir);
    let server = ServerProcess::start(dir, bits);
    let management =
        Management::connect(server.address, ClientSettings::default()).await.expect("it answers");
    let (started, cpu, written) = (Instant::now(), server.cpu_s(), server.written_bytes());
    let tasks: Vec<_> = (1..=nodes).map(|id| tokio::spawn(node(id, server.address))).collect();
    until(&management, |status| {
        status.nodes.len() as u64 == nodes && status.nodes.iter().all(|n| n.state == NodeState::Idle)
    })
    .await;
    // Ranges settle without a page to move.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let joining_s = started.elapsed().as_secs_f64() - 2.0;
    let (joining_cpu_s, joining_bytes) = (server.cpu_s() - cpu, server.written_bytes() - written);

    let (cpu, written, began) = (server.cpu_s(), server.written_bytes(), Instant::now());
    let reports = REPORTS.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let beating_s = server.cpu_s() - cpu;
    let reports = REPORTS.load(Ordering::Relaxed) - reports;
    assert!(reports >= nodes * (seconds - 1), "{reports} reports: the nodes cannot keep up");
    let share = beating_s / began.elapsed().as_secs_f64();
    assert_eq!(server.written_bytes(), written, "heartbeats write nothing");

    let (started, cpu) = (Instant::now(), server.cpu_s());
    management.start_cycle().await.expect("a cycle");
    until(&management, |status| status.cycle.is_none() && status.serving == 1).await;
    let (cycle_s, cycle_cpu_s) = (started.elapsed().as_secs_f64(), server.cpu_s() - cpu);
    until(&management, |status| status.nodes.iter().all(|n| n.state == NodeState::Idle)).await;

    // On a thread of its own: what the simulated nodes do meanwhile on theirs is not the server's time.
    let address = server.address;
    let planning = tokio::task::spawn_blocking(move || {
        runtime().block_on(async {
            let management =
                Management::connect(address, ClientSettings::default()).await.expect("it answers");
            let mut plans = Vec::new();
            for _ in 0..PLANS {
                let started = Instant::now();
                let (lease, plan, addresses) = management.open_lease().await.expect("a plan");
                plans.push(started.elapsed().as_secs_f64() * 1e3);
                assert_eq!(addresses.len() as u64, nodes);
                assert!(
                    plan.ranges.iter().all(|n| n.len() == REPLICAS as usize),
                    "all replicas are in the plan"
                );
                management.end_lease(&lease).await.expect("its end");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            plans
        })
    });
    let mut plans = planning.await.expect("plans");
    plans.sort_by(f64::total_cmp);
    let (p99, worst) = (plans[plans.len() * 99 / 100], plans[plans.len() - 1]);
    println!(
        "| {} | {joining_s:.1} s | {joining_cpu_s:.2} s | {:.0} MB | {:.2} % | {:.1} | {cycle_s:.1} s | {cycle_cpu_s:.2} s | {:.2} ms, {p99:.2} ms, {worst:.2} ms |",
        1_u32 << bits,
        joining_bytes as f64 / 1e6,
        share * 100.0,
        beating_s * 1e6 / reports as f64,
        median(plans.iter().copied()),
    );
    tasks.iter().for_each(|task| task.abort());
}

async fn until(management: &Management, so: impl Fn(&webbase_node::plan::Status) -> bool) {
    loop {
        let status = management.status().await.expect("its status");
        if so(&status) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// A node without pages.
async fn node(id: u64, management: SocketAddr) {
    let started = Instant::now();
    let now = || started.elapsed().as_millis() as u64;
    // Not all in the same moment.
    tokio::time::sleep(Duration::from_millis(id % 1000)).await;
    let client = Client::connect(management, ClientSettings::default()).await.expect("a connection");
    let mut control = client.control(TOPIC).expect("a call");
    let address = SocketAddr::from(([10, 0, (id >> 8) as u8, id as u8], 7000));
    // As random ones are, in length.
    let id = NodeId(id.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let hello = NodeSays::Hello(Hello { id, address, repository: None });
    control.send(message::encode(&hello).into()).await.expect("a hello");
    let mut disk =
        NodeDurable { boot: 1, update: Some(UpdateDurable::default()), read: Some(ReadDurable::default()) };
    let (mut machine, actions) =
        Node::start(now(), disk.clone(), Settings { heartbeat_ms: 900, ..Settings::default() });
    let mut left: VecDeque<Action> = actions.into();
    let mut beats = tokio::time::interval(Duration::from_millis(1000));
    loop {
        while let Some(action) = left.pop_front() {
            match action {
                Action::Send(says) => {
                    REPORTS.fetch_add(1, Ordering::Relaxed);
                    control.send(message::encode(&NodeSays::Cycle(says)).into()).await.expect("a report");
                }
                Action::Do(number, intent) => {
                    let done = apply(&mut disk, &intent);
                    left.extend(machine.on(now(), Event::Done(number, done)));
                }
                Action::Cancel(_) | Action::Stop => {}
            }
        }
        tokio::select! {
            says = control.receive(None) => {
                let says = says.expect("a message").expect("a server that stays");
                if let ManagementSays::Cycle(says) = message::decode(&says).expect("a message") {
                    left.extend(machine.on(now(), Event::Message(says)));
                }
            }
            _ = beats.tick() => {
                left.extend(machine.on(now() + 1, Event::Tick));
                control.send(message::encode(&NodeSays::Figures(figures())).into()).await.expect("figures");
            }
        }
    }
}

fn figures() -> NodeFigures {
    let store = Stats {
        organization: Organization::Log,
        capacity_bytes: 1 << 40,
        used_bytes: 1 << 39,
        live_bytes: 1 << 38,
        dead_bytes: 1 << 37,
        pages: 1 << 30,
        segments: 1000,
        memory_bytes: 1 << 33,
        cache_bytes: 1 << 30,
    };
    NodeFigures {
        store: store.into(),
        adds: 0,
        streams: 0,
        lookups: 3,
        lookups_answered: 1 << 30,
        damaged: 0,
        repaired: 0,
        epoch_bytes: 0,
    }
}

/// What an intent does to a disk without pages.
fn apply(disk: &mut NodeDurable, intent: &Intent) -> Done {
    let (Some(update), Some(read)) = (&mut disk.update, &mut disk.read) else { panic!("both roles") };
    match intent {
        Intent::Seal { cycle } => {
            update.open_epoch += 1;
            update.sealed_cycle = *cycle;
        }
        Intent::DropEpochs { through } => update.first_epoch = through + 1,
        Intent::Close => update.closed = true,
        Intent::List(_) => return Done::Listed { pages: 0, bytes: 0 },
        Intent::RollBack { .. } => read.prepared = None,
        Intent::Keep { generation, ranges, ticket: Some(ticket), .. } => {
            let (ticket, generation, ranges) = (*ticket, *generation, ranges.clone());
            read.prepared = Some(Prepared { ticket, generation, ranges });
        }
        Intent::Keep { generation, ranges, ticket: None, .. } => {
            read.kept.insert(*generation, ranges.clone());
            (read.current, read.prepared) = (*generation, None);
        }
        Intent::SwitchTo { generation, kept } => {
            let prepared = read.prepared.take().expect("something prepared");
            read.kept.retain(|g, _| kept.contains(g));
            read.kept.insert(*generation, prepared.ranges);
            read.current = *generation;
        }
        Intent::Release { generations } => read.kept.retain(|g, _| !generations.contains(g)),
        Intent::Reserve { .. } | Intent::Pull(_) => {}
    }
    Done::Ok
}
