//! The first table of the WebBase paper on this machine: streaming, random access and adding, for the three
//! organizations, beside what the device does in the same run. Tables go to stdout, progress to stderr.
//!
//! ```text
//! cargo run --release -p webbase-benches --bin organizations -- [--pages 50000] [--rounds 3] [--no-buffer-pages 2000]
//!     [--corpus FILE] [--dir FOLDER] [--only add,stream,lookup,space,open,large] [--large-gb 30] [--open-pages 10000000]
//! ```
//!
//! Pages are stored as they are, so that bytes compare with the device's; the tables of packed stores are in `peers`.

use std::{
    fs,
    hint::black_box,
    path::{Path, PathBuf},
};

use webbase_benches::{
    arguments::Arguments,
    contestant::{Add, AddOptions, Peer},
    corpus::Corpus,
    measure::{
        self, Cost, DiskReads, Work, alternate, drop_caches, fastest, median, print_table, timed, touch,
    },
    ours::{PLAIN, Store, VERIFIED, page_key},
    raw::{self, Extent, ReadMode, WriteMode},
};
use webbase_storage::{Access, Options, Organization};

/// Lookups of a cold run: few enough that one seldom brings in what another needs.
const COLD_LOOKUPS_MAX: usize = 2000;
/// Lookups handed over at once when they are batched.
const BATCH: usize = 64;

struct Bench {
    random: Vec<Add>,
    sorted: Vec<Add>,
    rounds: usize,
    dir: PathBuf,
}

fn work(pages: &[Add]) -> Work {
    Work { pages: pages.len() as u64, bytes: pages.iter().map(|add| add.page.len_bytes()).sum() }
}

fn options(buffer_bytes: u64) -> Options {
    Options { buffer_bytes, ..Options::default() }
}

impl Bench {
    fn store_dir(&self, organization: Organization) -> PathBuf {
        self.dir.join(organization.name())
    }

    fn open(&self, organization: Organization, buffer_bytes: u64) -> Store {
        let dir = self.store_dir(organization);
        fs::create_dir_all(&dir).expect("a folder for the store");
        Store::open(&dir, organization, VERIFIED, options(buffer_bytes))
    }

    fn raw_path(&self) -> PathBuf {
        self.dir.join("raw.bin")
    }
}

fn main() {
    let args = Arguments::from_env();
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let corpus_path = args.value("--corpus").map_or(manifest.join("work/pages.corpus"), PathBuf::from);
    let dir = args.value("--dir").map_or(manifest.join("work/organizations"), PathBuf::from);
    let corpus =
        Corpus::read(&corpus_path, args.number("--pages", 50_000)).expect("a corpus: run corpus.sh first");
    let add = |&n: &u32| {
        let page = corpus.pages[n as usize];
        Add { key: page.key(), page }
    };
    let bench = Bench {
        random: corpus.shuffled(1).iter().map(add).collect(),
        sorted: corpus.by_key().iter().map(add).collect(),
        rounds: args.number("--rounds", 3).max(1),
        dir,
    };
    let _ = fs::remove_dir_all(&bench.dir);
    fs::create_dir_all(&bench.dir).expect("the folder for stores");
    measure::print_setting(work(&bench.random), bench.rounds);

    let wanted = |name| args.lists("--only", name);
    if wanted("add") {
        let few = args.number("--no-buffer-pages", 2000).min(bench.random.len());
        adding(
            &bench,
            "Adding, random order, no buffer, a commit for every page",
            &bench.random[..few],
            0,
            Some(1),
        );
        adding(&bench, "Adding, random order, 10 MB buffer", &bench.random, 10 << 20, None);
        adding(&bench, "Adding, sorted, 10 MB buffer", &bench.sorted, 10 << 20, None);
    }
    load(&bench);
    if wanted("stream") {
        streaming(&bench);
    }
    if wanted("lookup") {
        lookups(&bench);
    }
    if wanted("space") {
        space(&bench);
    }
    let _ = fs::remove_dir_all(&bench.dir);
    if wanted("open") && args.value("--only").is_some() {
        opening(&bench, args.number("--open-pages", 10_000_000));
    }
    if wanted("large") && args.value("--only").is_some() {
        large(&bench, args.number("--large-gb", 30) as u64);
    }
    let _ = fs::remove_dir_all(&bench.dir);
}

/// Stores of all pages, added in random order (hash: as a sorted batch, which is how it takes many).
fn load(bench: &Bench) {
    for organization in Organization::ALL {
        let _ = fs::remove_dir_all(bench.store_dir(organization));
        let mut store = bench.open(organization, 64 << 20);
        let pages = if organization == Organization::Log { &bench.random } else { &bench.sorted };
        store.add_all(pages, AddOptions::default());
        store.store.close().expect("a clean end");
    }
    let values = bench.random.iter().map(|add| add.page.value());
    raw::append(&bench.raw_path(), values, WriteMode::Early { chunk_bytes: 4 << 20 }, None)
        .expect("the raw file");
}

fn adding(bench: &Bench, title: &str, pages: &[Add], buffer_bytes: u64, durable_every: Option<usize>) {
    let ways = WriteMode::ALL;
    let mut names: Vec<&str> = ways.iter().map(|(name, _)| *name).collect();
    names.extend(Organization::ALL.map(Organization::name));
    eprintln!("{title}");
    let samples = alternate(&names, bench.rounds, |n| {
        let Some(n) = n.checked_sub(ways.len()) else {
            let path = bench.dir.join("append.bin");
            let values = pages.iter().map(|add| add.page.value());
            let (result, cost) = timed(|| raw::append(&path, values, ways[n].1, durable_every));
            result.expect("raw append");
            fs::remove_file(path).expect("the file just written");
            return cost;
        };
        let organization = Organization::ALL[n];
        let _ = fs::remove_dir_all(bench.store_dir(organization));
        let mut store = bench.open(organization, buffer_bytes);
        timed(|| store.add_all(pages, AddOptions { durable_every, sorted_load: false })).1
    });
    print_table(title, &samples, fastest(&samples[..ways.len()]), work(pages));
}

fn streaming(bench: &Bench) {
    let total = work(&bench.random);
    let extents = extents(&bench.random);
    let names = [
        "map, CRC-64, then touched",
        "raw read, buffered",
        "log",
        "log, not verified",
        "hash (sorted)",
        "hashed-log (sorted)",
    ];
    let map = raw::map_file(&bench.raw_path()).expect("the raw file");
    eprintln!("streaming, warm");
    let warm = alternate(&names, bench.rounds, |n| match n {
        0 => twice(|| raw::scan_map_checked(&map, &extents, true)),
        1 => twice(|| {
            raw::sequential_read(&bench.raw_path(), ReadMode::Buffered).expect("raw read");
        }),
        n => {
            let organization =
                [Organization::Log, Organization::Log, Organization::Hash, Organization::HashedLog][n - 2];
            let how = if n == 3 { PLAIN } else { VERIFIED };
            let store = Store::open(&bench.store_dir(organization), organization, how, options(0));
            twice(|| scan(&store, Access::Cached, total.pages))
        }
    });
    print_table("Streaming, warm, verified", &warm, "map, CRC-64, then touched", total);
    drop(map);

    let direct = |chunk_bytes, in_flight| ReadMode::Direct { chunk_bytes, in_flight };
    let ways = [
        ("raw read, buffered", ReadMode::Buffered),
        ("raw read, O_DIRECT 1 MiB × 4", direct(1 << 20, 4)),
        ("raw read, O_DIRECT 2 MiB × 4", direct(2 << 20, 4)),
        ("raw read, O_DIRECT 4 MiB × 2", direct(4 << 20, 2)),
        ("raw read, O_DIRECT 4 MiB × 4", direct(4 << 20, 4)),
    ];
    let ours = [
        ("log", Organization::Log, Access::Cached),
        ("log, O_DIRECT", Organization::Log, Access::Direct),
        ("hash (sorted), O_DIRECT", Organization::Hash, Access::Direct),
        ("hashed-log (sorted), O_DIRECT", Organization::HashedLog, Access::Direct),
    ];
    let names: Vec<&str> = ways.iter().map(|w| w.0).chain(ours.iter().map(|o| o.0)).collect();
    eprintln!("streaming, cold");
    let cold = alternate(&names, bench.rounds, |n| {
        drop_caches(&bench.dir);
        let Some(n) = n.checked_sub(ways.len()) else {
            return timed(|| raw::sequential_read(&bench.raw_path(), ways[n].1).expect("raw read")).1;
        };
        let (_, organization, access) = ours[n];
        let store = Store::open(&bench.store_dir(organization), organization, VERIFIED, options(0));
        timed(|| scan(&store, access, total.pages)).1
    });
    print_table("Streaming, cold, verified", &cold, fastest(&cold[..ways.len()]), total);
}

fn lookups(bench: &Bench) {
    let order = webbase_benches::corpus::shuffled(bench.random.len(), 3);
    let all_extents = extents(&bench.random);
    let pick = |count: usize| -> (Vec<Add>, Vec<Extent>) {
        order.iter().take(count).map(|&n| (bench.random[n], all_extents[n])).unzip()
    };
    let (wanted, places) = pick(bench.random.len());
    let names = ["raw pread", "log", "log, not verified", "hash", "hashed-log"];
    let which = [Organization::Log, Organization::Log, Organization::Hash, Organization::HashedLog];
    eprintln!("random access, warm");
    let warm = alternate(&names, bench.rounds, |n| match n {
        0 => twice(|| raw::random_reads(&bench.raw_path(), &places, 1, false).expect("raw read")),
        n => {
            let how = if n == 2 { PLAIN } else { VERIFIED };
            let store = Store::open(&bench.store_dir(which[n - 1]), which[n - 1], how, options(0));
            twice(|| look_up(&store, &wanted))
        }
    });
    print_table("Random access, warm, 1 thread", &warm, "raw pread", work(&wanted));

    let (wanted, places) = pick((order.len() / 10).clamp(1, COLD_LOOKUPS_MAX));
    let names = [
        "raw pread",
        "raw pread O_DIRECT",
        "raw io_uring × 64",
        "log",
        "log, 64 at a time",
        "hash",
        "hashed-log, index loaded",
    ];
    let which = [Organization::Log, Organization::Log, Organization::Hash, Organization::HashedLog];
    let mut reads: Vec<Vec<DiskReads>> = vec![Vec::new(); names.len()];
    eprintln!("random access, cold");
    let cold = alternate(&names, bench.rounds, |n| {
        let store =
            n.checked_sub(3).map(|n| Store::open(&bench.store_dir(which[n]), which[n], VERIFIED, options(0)));
        if let (6, Some(store)) = (n, &store) {
            look_up(store, &wanted); // makes the index of each log
        }
        drop_caches(&bench.dir);
        let before = DiskReads::now(&bench.dir);
        let ((), cost) = timed(|| match (n, &store) {
            (4, Some(store)) => look_up_batched(store, &wanted),
            (_, Some(store)) => look_up(store, &wanted),
            (2, None) => {
                raw::random_reads_io_uring(&bench.raw_path(), &places, 64, false).expect("raw io_uring")
            }
            (n, None) => raw::random_reads(&bench.raw_path(), &places, 1, n == 1).expect("raw read"),
        });
        reads[n].push(DiskReads::now(&bench.dir).since(before));
        cost
    });
    print_table("Random access, cold, 1 thread", &cold, "raw pread", work(&wanted));
    println!("\n| contestant | device reads per lookup | KB read per lookup |\n|---|---:|---:|");
    for (name, reads) in names.iter().zip(reads) {
        let per =
            |of: fn(&DiskReads) -> u64| median(reads.iter().map(|r| of(r) as f64)) / wanted.len() as f64;
        println!("| {name} | {:.2} | {:.1} |", per(|r| r.device_reads), per(|r| r.bytes) / 1e3);
    }
}

fn space(bench: &Bench) {
    let total = work(&bench.random);
    println!("\n### Space and memory, {} pages stored as they are\n", total.pages);
    println!(
        "| organization | bytes on disk per logical byte | utilisation | memory, bytes a page | open, ms |\n|---|---:|---:|---:|---:|"
    );
    for organization in Organization::ALL {
        let bytes = measure::disk_bytes(&bench.store_dir(organization));
        let (store, cost) = timed(|| bench.open(organization, 0));
        look_up(&store, &bench.random); // what is made on demand is made
        let stats = store.store.stats();
        println!(
            "| {organization} | {:.3} | {:.2} | {:.1} | {:.1} |",
            bytes as f64 / total.bytes as f64,
            stats.utilisation(),
            stats.memory_bytes as f64 / stats.pages as f64,
            cost.wall_s * 1e3,
        );
    }
}

/// A log of many small pages: what it takes to open it, and what it keeps in memory.
fn opening(bench: &Bench, count: usize) {
    let _ = fs::remove_dir_all(&bench.dir);
    let store = bench.open(Organization::Log, 0);
    let ((), cost) = timed(|| {
        for start in (0..count).step_by(100_000) {
            let urls: Vec<String> = (start..count.min(start + 100_000))
                .map(|n| format!("http://h{}.example/{n}", n % 997))
                .collect();
            let pages: Vec<webbase_storage::Page<'_>> = urls
                .iter()
                .map(|url| webbase_storage::Page { url, body: b"<p>a small page", ..Default::default() })
                .collect();
            store.store.add(&pages).expect("room");
            store.store.commit().expect("a commit");
        }
    });
    store.store.close().expect("a clean end");
    drop(store);
    println!("\n### Opening a log of {count} small pages\n");
    println!("- adding them, a commit every 100000: {:.0} pages/s", count as f64 / cost.wall_s);
    for (name, cold) in [("warm", false), ("cold", true)] {
        if cold {
            drop_caches(&bench.dir);
        }
        let (store, cost) = timed(|| bench.open(Organization::Log, 0));
        let stats = store.store.stats();
        assert_eq!(stats.pages, count as u64, "pages after opening");
        println!(
            "- opening, {name}: {:.3} s; memory {:.2} bytes a page by its own count",
            cost.wall_s,
            stats.memory_bytes as f64 / stats.pages as f64
        );
    }
}

/// A log larger than memory: pages repeated under other URLs.
fn large(bench: &Bench, gigabytes: u64) {
    let one = work(&bench.random);
    let copies = (gigabytes << 30).div_ceil(one.bytes);
    fs::create_dir_all(&bench.dir).expect("the folder for stores");
    let store = bench.open(Organization::Log, 0);
    eprintln!("large: {copies} copies of {} pages", one.pages);
    let ((), cost) = timed(|| {
        for copy in 0..copies {
            for batch in bench.random.chunks(256) {
                let urls: Vec<String> =
                    batch.iter().map(|add| format!("{}?copy={copy}", add.page.url)).collect();
                let pages: Vec<webbase_storage::Page<'_>> = batch
                    .iter()
                    .zip(&urls)
                    .map(|(add, url)| webbase_storage::Page { url, ..webbase_benches::ours::page(&add.page) })
                    .collect();
                store.store.add(&pages).expect("room");
            }
            store.store.commit().expect("a commit");
        }
    });
    let total = Work { pages: one.pages * copies, bytes: one.bytes * copies };
    store.store.close().expect("a clean end");
    drop(store);
    println!("\n### A log of {:.1} GB, more than memory: {} pages\n", total.bytes as f64 / 1e9, total.pages);
    let row = |what: &str, cost: Cost, pages: u64, bytes: u64| {
        println!(
            "- {what}: {:.0} pages/s, {:.0} MB/s",
            pages as f64 / cost.wall_s,
            bytes as f64 / 1e6 / cost.wall_s
        );
    };
    row("adding, random order, durable at the end", cost, total.pages, total.bytes);
    drop_caches(&bench.dir);
    let (store, cost) = timed(|| bench.open(Organization::Log, 0));
    println!("- opening: {:.3} s, {:.1} bytes of memory a page", cost.wall_s, {
        let stats = store.store.stats();
        stats.memory_bytes as f64 / stats.pages as f64
    });
    let (segment, cost) = timed(|| {
        let biggest = measure::files(&bench.dir)
            .into_iter()
            .filter(|f| f.to_string_lossy().contains("segment-"))
            .take(8);
        biggest
            .map(|f| {
                raw::sequential_read(&f, ReadMode::Direct { chunk_bytes: 4 << 20, in_flight: 4 })
                    .expect("raw")
            })
            .sum::<u64>()
    });
    row("raw read of 8 segments, O_DIRECT 4 MiB × 4", cost, 0, segment);
    for (name, access) in
        [("streaming, O_DIRECT", Access::Direct), ("streaming, through the cache", Access::Cached)]
    {
        drop_caches(&bench.dir);
        let ((), cost) = timed(|| scan(&store, access, total.pages));
        row(name, cost, total.pages, total.bytes);
    }
}

fn extents(pages: &[Add]) -> Vec<Extent> {
    let mut offset = 0;
    let extent = |add: &Add| {
        let len = add.page.value().len();
        offset += len as u64;
        Extent { offset: offset - len as u64, len }
    };
    pages.iter().map(extent).collect()
}

/// The second of two runs: everything that fits is in memory then.
fn twice(mut work: impl FnMut()) -> Cost {
    work();
    timed(work).1
}

fn scan(store: &Store, access: Access, expected: u64) {
    let count = store.scan_with(access, &mut |page| {
        black_box(touch(page));
    });
    assert_eq!(count, expected, "pages scanned");
}

fn look_up(store: &Store, wanted: &[Add]) {
    let mut reader = store.reader();
    for add in wanted {
        let there = reader.lookup(&add.key, &mut |page| {
            black_box(touch(page));
        });
        assert!(there, "{} is missing", add.page.url);
    }
}

fn look_up_batched(store: &Store, wanted: &[Add]) {
    for batch in wanted.chunks(BATCH) {
        let keys: Vec<_> = batch.iter().map(|add| page_key(&add.key)).collect();
        for found in store.store.lookup_many(&keys) {
            black_box(touch(found.expect("readable").expect("there").bytes()));
        }
    }
}
