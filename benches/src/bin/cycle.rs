//! The batch update of a whole cluster in this process, over loopback: what readers notice of it, and what it costs.
//!
//! `cycle --corpus FILE [--pages N] [--rounds N] [--dir DIR] [--only update,stream,growth] [--compression none|lz4|zstd]
//! [--update-organization log|hash|hashed-log] [--read-organization log|hash] [--update-nodes N] [--read-nodes N]
//! [--replicas N] [--clients N] [--seconds N]`
//!
//! An update gives a quarter of the pages new versions, another quarter each time. Adding them is not part of its time.
//! After each one a sample of all pages is compared with what should be there.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use webbase_benches::arguments::Arguments;
use webbase_benches::cluster::{ClusterOptions, CycleTimes, TestCluster, add_all, run_cycle, runtime};
use webbase_benches::corpus::{Corpus, CorpusPage};
use webbase_benches::load::{Answered, Latencies, OpenLoop, closed_loop, latencies};
use webbase_benches::measure::{Work, median, print_setting, touch};
use webbase_benches::ours::page;
use webbase_node::Cluster;
use webbase_storage::{Compression, Page, PageKey};

/// Share of the idle maximum at which lookups arrive.
const ARRIVING: f64 = 0.3;
/// One page of so many is changed in an update.
const CHANGED: usize = 4;
/// One page of so many is compared after each update.
const COMPARED: usize = 23;
const DAY_MS: u64 = 86_400_000;
/// Clients learn of a new generation within this time, and some more.
const CHANGING_OVER: Duration = Duration::from_millis(1300);

fn main() {
    let arguments = Arguments::from_env();
    let corpus = Path::new(arguments.value("--corpus").unwrap_or("benches/work/pages.corpus"));
    let corpus = Corpus::read(corpus, arguments.number("--pages", 20_000)).expect("a corpus");
    let rounds = arguments.number("--rounds", 3);
    let organization =
        |name| arguments.value(name).unwrap_or("log").parse().expect("log, hash or hashed-log");
    let options = ClusterOptions {
        update_nodes: arguments.number("--update-nodes", 1),
        read_nodes: arguments.number("--read-nodes", 2),
        replicas: arguments.number("--replicas", 1) as u32,
        update_organization: organization("--update-organization"),
        read_organization: organization("--read-organization"),
        compression: match arguments.value("--compression").unwrap_or("zstd") {
            "none" => Compression::None,
            "lz4" => Compression::Lz4,
            "zstd" => Compression::default(),
            other => panic!("compression is none, lz4 or zstd, found {other}"),
        },
    };
    let dir = PathBuf::from(arguments.value("--dir").unwrap_or("benches/work/cycle"));
    print_setting(Work { pages: corpus.pages.len() as u64, bytes: corpus.len_bytes() }, rounds);
    println!(
        "- cluster: {} update nodes ({}), {} read nodes ({}), {} copies, {:?}",
        options.update_nodes,
        options.update_organization,
        options.read_nodes,
        options.read_organization,
        options.replicas,
        options.compression
    );
    println!(
        "- clients, nodes and the management server share this machine's cores and disk, in one process"
    );
    let bench = Bench {
        options,
        dir,
        rounds,
        clients: arguments.number("--clients", 16),
        seconds: arguments.number("--seconds", 3) as u64,
        runtime: runtime(2, "client"),
        targets: Targets::default(),
    };
    let (update, stream) = (arguments.lists("--only", "update"), arguments.lists("--only", "stream"));
    if update || stream {
        let mut repository = bench.filled("whole", &corpus.pages);
        if update {
            bench.updates(&mut repository);
        }
        if stream {
            bench.streams(&mut repository);
        }
    }
    if arguments.lists("--only", "growth") {
        bench.growth(&corpus.pages);
    }
    bench.targets.print();
}

struct Bench {
    options: ClusterOptions,
    dir: PathBuf,
    rounds: usize,
    clients: usize,
    seconds: u64,
    /// Where clients run.
    runtime: Runtime,
    targets: Targets,
}

/// A cluster and what it should have.
struct Repository {
    cluster: TestCluster,
    client: Cluster,
    pages: Vec<CorpusPage>,
    keys: Arc<[PageKey]>,
    /// For each page whose content it has now, and in which version.
    holds: Vec<(usize, u64)>,
    updates: u64,
}

impl Repository {
    fn page(&self, n: usize) -> Page<'static> {
        let (content, version) = self.holds[n];
        let (own, content) = (page(&self.pages[n]), page(&self.pages[content]));
        Page { url: own.url, fetched_at_ms: own.fetched_at_ms + version * DAY_MS, ..content }
    }

    /// Adds new versions of every `CHANGED`th of the first `among` pages.
    async fn change(&mut self, among: usize) {
        self.updates += 1;
        let first = self.updates as usize % CHANGED;
        let changed: Vec<usize> = (first..among).step_by(CHANGED).collect();
        for &n in &changed {
            self.holds[n] = ((n + 7919 * self.updates as usize) % among, self.updates);
        }
        let pages: Vec<Page<'_>> = changed.iter().map(|&n| self.page(n)).collect();
        add_all(&self.client, &pages).await;
        rustix::fs::sync();
    }

    async fn compare(&self) {
        // The client that looks may learn of the new generation a moment later.
        let serving = self.client.status().await.expect("a status").serving;
        let until = Instant::now() + 2 * CHANGING_OVER;
        while self.client.lookup(self.keys[0]).await.expect("an answer").generation != serving {
            assert!(Instant::now() < until, "readers are not sent to generation {serving}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let first = self.updates as usize % COMPARED;
        for n in (first..self.pages.len()).step_by(COMPARED) {
            let expected = self.page(n);
            let found = self.client.lookup(self.keys[n]).await.expect("an answer");
            let Some(record) = found.pages else {
                panic!("page {n}, {}, is not there in generation {}", expected.url, found.generation);
            };
            assert_eq!(record.get().version().fetched_at_ms, expected.fetched_at_ms, "{}", expected.url);
            let body = record.body(self.client.dictionaries()).expect("a body");
            assert!(body[..] == *expected.body, "{} has another body", expected.url);
        }
    }
}

impl Bench {
    fn filled(&self, name: &str, pages: &[CorpusPage]) -> Repository {
        let started = Instant::now();
        let cluster = TestCluster::start(&self.dir.join(name), self.options);
        let repository = self.runtime.block_on(async {
            let client = cluster.client().await;
            let key = |page: &CorpusPage| client.page_key(page.url).expect("a URL");
            let keys: Arc<[PageKey]> = pages.iter().map(key).collect();
            let holds = (0..pages.len()).map(|n| (n, 0)).collect();
            let repository = Repository { cluster, client, pages: pages.to_vec(), keys, holds, updates: 0 };
            let all: Vec<Page<'_>> = pages.iter().map(page).collect();
            add_all(&repository.client, &all).await;
            run_cycle(&repository.client).await;
            repository.compare().await;
            rustix::fs::sync();
            repository
        });
        eprintln!("  {name}: {} pages in {:.1} s", pages.len(), started.elapsed().as_secs_f64());
        repository
    }

    fn updates(&self, repository: &mut Repository) {
        let mut clients = Vec::new();
        self.runtime.block_on(async {
            for _ in 0..self.clients {
                clients.push(repository.cluster.client().await);
            }
        });
        let time = Duration::from_secs(self.seconds);
        let most = self.runtime.block_on(async {
            closed_loop(&clients, &repository.keys, time / 2).await; // warms up
            closed_loop(&clients, &repository.keys, time).await
        });
        let rate = ARRIVING * most;
        println!("\n### Lookups, idle\n");
        println!(
            "{most:.0} a second at most, from {} clients, one at a time each. From here on they arrive \
             at {rate:.0} a second.\n",
            self.clients
        );
        let mut rows = Vec::new();
        let load = || OpenLoop::start(self.runtime.handle(), &clients, &repository.keys.clone(), rate);
        let idle = self.runtime.block_on(async {
            let load = load();
            tokio::time::sleep(time).await;
            load.stop().await
        });
        let idle = latencies(idle.iter());
        rows.push(("idle".to_owned(), idle));
        let (mut alone_s, mut together_s) = (Vec::new(), Vec::new());
        let (mut during, mut switches) = (Vec::new(), Vec::new());
        let mut splits = Vec::new();
        for round in 1..=self.rounds {
            let alone = self.runtime.block_on(async {
                repository.change(repository.pages.len()).await;
                let times = run_cycle(&repository.client).await;
                repository.compare().await;
                times
            });
            let keys = repository.keys.clone();
            let (together, answers) = self.runtime.block_on(async {
                repository.change(repository.pages.len()).await;
                let load = OpenLoop::start(self.runtime.handle(), &clients, &keys, rate);
                tokio::time::sleep(Duration::from_millis(500)).await;
                let times = run_cycle(&repository.client).await;
                tokio::time::sleep(CHANGING_OVER).await;
                let answers = load.stop().await;
                repository.compare().await;
                (times, answers)
            });
            let end = together.began + Duration::from_secs_f64(together.over_s);
            let found = latencies(answers.iter().filter(|a| a.done >= together.began && a.due < end));
            let switched = Switch::of(&answers, &together);
            eprintln!(
                "  round {round}: alone {:.3} s, with lookups {:.3} s, p99 {:.2} ms, {} failed",
                alone.over_s, together.over_s, found.p99_ms, found.failed
            );
            rows.push((format!("update {round}"), found));
            let failed = answers.iter().filter(|a| a.generation.is_none()).count();
            during.push((found, failed));
            switches.push(switched);
            alone_s.push(alone.over_s);
            together_s.push(together.over_s);
            splits.push((format!("{round}, alone"), alone));
            splits.push((format!("{round}, with lookups"), together));
        }
        print_latencies(&rows);
        print_splits(&splits);
        print_switches(&switches);
        let slower = median(together_s.iter().zip(&alone_s).map(|(a, b)| a / b));
        let worst = |of: fn(&Latencies) -> f64| during.iter().map(|(l, _)| of(l)).fold(0.0, f64::max);
        let failed: usize = during.iter().map(|(_, failed)| failed).sum();
        let bound = (3.0 * idle.p99_ms).max(10.0);
        let met = &self.targets;
        met.add("lookups that failed", failed as f64, 0.0, failed == 0);
        met.at_most("p99 during an update, worst round, ms", worst(|l| l.p99_ms), bound);
        met.at_most("update with lookups, times alone", slower, 3.0);
        let pause = switches.iter().map(|s| s.gap_ms).fold(0.0, f64::max);
        met.at_most("longest time without an answer around the switch, ms", pause, 10.0);
    }

    fn streams(&self, repository: &mut Repository) {
        let mut rows = Vec::new();
        let mut ratios = Vec::new();
        for round in 1..=self.rounds {
            let (idle, during, alone_s) = self.runtime.block_on(async {
                let streaming = Streaming::start(&repository.client);
                tokio::time::sleep(Duration::from_millis(300)).await;
                let idle = streaming.rate(tokio::time::sleep(Duration::from_secs(self.seconds))).await.0;
                streaming.stop().await;
                repository.change(repository.pages.len()).await;
                let streaming = Streaming::start(&repository.client);
                tokio::time::sleep(Duration::from_millis(300)).await;
                let (during, times) = streaming.rate(run_cycle(&repository.client)).await;
                streaming.stop().await;
                repository.compare().await;
                (idle, during, times.over_s)
            });
            eprintln!("  streams {round}: idle {:.0}, during {:.0} MB/s", idle / 1e6, during / 1e6);
            ratios.push(during / idle);
            rows.push((idle, during, alone_s));
        }
        println!("\n### One stream after another, idle and during an update\n");
        println!("| round | idle MB/s | during an update MB/s | of idle | the update took s |");
        println!("|---:|---:|---:|---:|---:|");
        for (n, (idle, during, took_s)) in rows.iter().enumerate() {
            let (idle, during) = (idle / 1e6, during / 1e6);
            println!("| {} | {idle:.0} | {during:.0} | {:.2} | {took_s:.2} |", n + 1, during / idle);
        }
        let ratio = median(ratios.into_iter());
        self.targets.add("stream during an update, of its idle rate", ratio, 0.5, ratio >= 0.5);
    }

    fn growth(&self, pages: &[CorpusPage]) {
        let half: Vec<CorpusPage> = pages.iter().step_by(2).copied().collect();
        let changed = half.len();
        // The pages that change are the same in both: the first of the twice as large one.
        let rest: Vec<CorpusPage> = pages.iter().skip(1).step_by(2).copied().collect();
        let whole: Vec<CorpusPage> = half.iter().chain(&rest).copied().collect();
        let mut small = self.filled("small", &half);
        let mut large = self.filled("large", &whole);
        let mut rows = Vec::new();
        for round in 0..=self.rounds {
            let mut took_s = [0.0; 2];
            for turn in 0..2 {
                let which = (turn + round) % 2;
                let repository = if which == 0 { &mut small } else { &mut large };
                took_s[which] = self.runtime.block_on(async {
                    repository.change(changed).await;
                    let times = run_cycle(&repository.client).await;
                    repository.compare().await;
                    times.over_s
                });
            }
            eprintln!("  growth {round}: {:.3} s, {:.3} s", took_s[0], took_s[1]);
            if round > 0 {
                rows.push(took_s);
            }
        }
        println!("\n### Growth: {} changed pages in each update, without readers\n", changed / CHANGED);
        println!("| round | {} pages s | {} pages s | ratio |", half.len(), whole.len());
        println!("|---:|---:|---:|---:|");
        for (n, [small, large]) in rows.iter().enumerate() {
            println!("| {} | {small:.3} | {large:.3} | {:.2} |", n + 1, large / small);
        }
        let ratio = median(rows.iter().map(|[small, large]| large / small));
        self.targets.at_most("update of a collection twice as large, times", ratio, 1.2);
    }
}

/// A stream after another, until stopped.
struct Streaming {
    stop: Arc<AtomicBool>,
    bytes: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Streaming {
    fn start(client: &Cluster) -> Streaming {
        let (stop, bytes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (client, stopped, counted) = (client.clone(), stop.clone(), bytes.clone());
        let task = tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                let mut stream = client.stream().await.expect("a lease");
                while let Some(record) = stream.next().await {
                    let record = record.expect("a record");
                    std::hint::black_box(touch(record.bytes()));
                    counted.fetch_add(record.bytes().len() as u64, Ordering::Relaxed);
                    if stopped.load(Ordering::Relaxed) {
                        return;
                    }
                }
            }
        });
        Streaming { stop, bytes, task }
    }

    /// Bytes a second while something else happens, and what came of that.
    async fn rate<T>(&self, meanwhile: impl Future<Output = T>) -> (f64, T) {
        let (before, started) = (self.bytes.load(Ordering::Relaxed), Instant::now());
        let result = meanwhile.await;
        let bytes = self.bytes.load(Ordering::Relaxed) - before;
        (bytes as f64 / started.elapsed().as_secs_f64(), result)
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("the end of a stream");
    }
}

/// What lookups noticed of the switch: from when nodes are told to until the cycle is over, and then until the last client
/// asks for the new generation.
struct Switch {
    /// How long nodes took.
    took_ms: f64,
    /// Lookups under way when nodes were told.
    under_way: Latencies,
    /// Lookups due in that time, until all clients have changed over.
    around: Latencies,
    /// The longest time without a completion.
    gap_ms: f64,
    /// From the first answer of the new generation to the last of the old one.
    both_ms: f64,
}

impl Switch {
    fn of(answers: &[Answered], times: &CycleTimes) -> Switch {
        let at = |s: f64| times.began + Duration::from_secs_f64(s);
        let told = times.phases.iter().find(|(name, _)| name.starts_with("switching"));
        // Not seen between two looks: the whole look before the end counts.
        let told = at(told.map_or(times.over_s - 0.02, |(_, s)| *s)) - Duration::from_millis(10);
        let over = at(times.over_s);
        let end = over + CHANGING_OVER;
        let around: Vec<&Answered> = answers.iter().filter(|a| a.done >= told && a.due < end).collect();
        let summary = latencies(around.iter().copied());
        let newest = answers.iter().filter_map(|a| a.generation).max();
        let first = answers.iter().find(|a| a.generation == newest).map(|a| a.done);
        let last = answers.iter().rfind(|a| a.generation.is_some() && a.generation != newest).map(|a| a.done);
        let both = first.zip(last).map_or(0.0, |(first, last)| {
            last.checked_duration_since(first).unwrap_or_default().as_secs_f64() * 1e3
        });
        Switch {
            took_ms: (over - told).as_secs_f64() * 1e3,
            under_way: latencies(answers.iter().filter(|a| a.due < told && a.done >= told)),
            around: summary,
            gap_ms: summary.gap_ms,
            both_ms: both,
        }
    }
}

fn print_latencies(rows: &[(String, Latencies)]) {
    println!("| lookups | count | failed | p50 ms | p99 ms | max ms | longest time without an answer ms |");
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for (name, l) in rows {
        println!(
            "| {name} | {} | {} | {:.2} | {:.2} | {:.2} | {:.2} |",
            l.count, l.failed, l.p50_ms, l.p99_ms, l.max_ms, l.gap_ms
        );
    }
}

fn print_splits(rows: &[(String, CycleTimes)]) {
    println!("\n### Updates: a quarter of the pages\n");
    println!("Phases of the cycle, and after the colon what the node furthest behind was at.\n");
    println!("| update | s | readers sent there after s | phases, ms |");
    println!("|---|---:|---:|---|");
    for (name, times) in rows {
        let split = times.split().into_iter().map(|(name, s)| format!("{name} {:.0}", s * 1e3));
        let split = split.collect::<Vec<_>>().join(", ");
        println!("| {name} | {:.3} | {:.3} | {split} |", times.over_s, times.serving_s);
    }
}

fn print_switches(rows: &[Switch]) {
    println!("\n### The switch, with lookups\n");
    println!(
        "| round | nodes took ms | under way then | their max ms | p99 ms around it | max ms | longest time \
         without an answer ms | both generations answered for ms |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|");
    for (n, s) in rows.iter().enumerate() {
        println!(
            "| {} | {:.0} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.0} |",
            n + 1,
            s.took_ms,
            s.under_way.count,
            s.under_way.max_ms,
            s.around.p99_ms,
            s.around.max_ms,
            s.gap_ms,
            s.both_ms
        );
    }
}

/// What should be reached, and was or was not.
#[derive(Default)]
struct Targets(std::sync::Mutex<Vec<(String, f64, f64, bool)>>);

impl Targets {
    fn add(&self, what: &str, found: f64, target: f64, met: bool) {
        self.0.lock().expect("no panic").push((what.to_owned(), found, target, met));
    }

    fn at_most(&self, what: &str, found: f64, target: f64) {
        self.add(what, found, target, found <= target);
    }

    fn print(&self) {
        println!("\n### Targets\n");
        println!("| what | found | target | met |");
        println!("|---|---:|---:|---|");
        for (what, found, target, met) in &*self.0.lock().expect("no panic") {
            println!("| {what} | {found:.2} | {target:.2} | {} |", if *met { "yes" } else { "NO" });
        }
    }
}
