//! Other engines, and what the machine can do at best, on the same pages. Tables go to stdout, progress to stderr.
//!
//! ```text
//! cargo run --release --features peers --bin peers -- [--pages 20000] [--rounds 3] [--corpus FILE] [--dir FOLDER]
//!     [--cache-mb N] [--engines lmdb,rocksdb,…] [--only add,add-1000,sorted,scan,lookup,cold,restart,merge,codec]
//! ```
//!
//! By default each engine's own cache holds all pages, unpacked: a warm lookup in a packing engine then unpacks nothing.
//! A small `--cache-mb` leaves the caching to the kernel, and every lookup unpacks.
//!
//! Who competes is decided in one place: `webbase_benches::contestant::all`.

mod adds;
mod reads;
mod restart;

use std::{
    fs,
    path::{Path, PathBuf},
};

use webbase_benches::{
    arguments::Arguments,
    contestant::{self, Add, Contestant, Peer, PeerConfig},
    corpus::Corpus,
    measure::{Work, print_setting},
    raw::Extent,
};

/// What all tables need.
struct Bench {
    corpus: Corpus,
    /// All pages in random order, and in the order of their keys.
    random: Vec<Add>,
    sorted: Vec<Add>,
    contestants: Vec<Contestant>,
    rounds: usize,
    /// Folder for stores and the raw file; emptied at the end.
    dir: PathBuf,
    config: PeerConfig,
}

impl Bench {
    fn store_dir(&self, contestant: &Contestant) -> PathBuf {
        self.dir.join(contestant.name)
    }

    fn raw_path(&self) -> PathBuf {
        self.dir.join("raw.bin")
    }

    fn open(&self, contestant: &Contestant) -> Box<dyn Peer> {
        let dir = self.store_dir(contestant);
        fs::create_dir_all(&dir).expect("a folder for the store");
        (contestant.open)(&dir, &self.config)
    }

    /// Names of the raw ways, then of the contestants.
    fn names<'a>(&'a self, raw: &[&'a str]) -> Vec<&'a str> {
        raw.iter().copied().chain(self.contestants.iter().map(|contestant| contestant.name)).collect()
    }

    /// Where each page is in a raw file written in this order.
    fn extents(pages: &[Add]) -> Vec<Extent> {
        let mut offset = 0;
        let extent = |add: &Add| {
            let len = add.page.value().len();
            offset += len as u64;
            Extent { offset: offset - len as u64, len }
        };
        pages.iter().map(extent).collect()
    }
}

fn work(pages: &[Add]) -> Work {
    Work { pages: pages.len() as u64, bytes: pages.iter().map(|add| add.page.value().len() as u64).sum() }
}

fn main() {
    let args = Arguments::from_env();
    if let Some(name) = args.value("--child") {
        return restart::child(name, &args);
    }
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let corpus_path = args.value("--corpus").map_or(manifest.join("work/pages.corpus"), PathBuf::from);
    let dir = args.value("--dir").map_or(manifest.join("work/stores"), PathBuf::from);
    let corpus =
        Corpus::read(&corpus_path, args.number("--pages", 20_000)).expect("a corpus: run corpus.sh first");
    let add = |&n: &u32| {
        let page = corpus.pages[n as usize];
        Add { key: page.key(), page }
    };
    let random: Vec<Add> = corpus.shuffled(1).iter().map(add).collect();
    let sorted: Vec<Add> = corpus.by_key().iter().map(add).collect();
    let total = work(&random);
    // Everything fits, unpacked, unless a smaller cache is asked for.
    let cache_mb = ((total.bytes + total.bytes / 4) >> 20).max(256) as usize;
    let bench = Bench {
        config: PeerConfig { cache_bytes: (args.number("--cache-mb", cache_mb) as u64) << 20 },
        contestants: contestant::all().into_iter().filter(|c| args.lists("--engines", c.name)).collect(),
        rounds: args.number("--rounds", 3).max(1),
        corpus,
        random,
        sorted,
        dir,
    };
    let _ = fs::remove_dir_all(&bench.dir);
    fs::create_dir_all(&bench.dir).expect("the folder for stores");
    print_setting(total, bench.rounds);
    println!("- cache of each engine: {:.0} MB", bench.config.cache_bytes as f64 / 1e6);

    let wanted = |name| args.lists("--only", name);
    if wanted("codec") {
        adds::codecs(&bench);
    }
    if wanted("add") {
        adds::add(&bench, "Add, random order, durable at the end", &bench.random, adds::AT_END);
        adds::disk_space(&bench, "Disk space after adding in random order");
    }
    if wanted("add-1000") {
        adds::add(&bench, "Add, random order, durable every 1000 pages", &bench.random, adds::EVERY_1000);
    }
    if wanted("sorted") {
        adds::add(&bench, "Add, sorted by key, durable at the end", &bench.sorted, adds::SORTED);
        adds::disk_space(&bench, "Disk space after adding in sorted order");
    } else {
        adds::load_untimed(&bench);
    }
    if wanted("scan") {
        reads::scan_warm(&bench);
        reads::scan_cold(&bench);
    }
    if wanted("lookup") {
        reads::lookup_warm(&bench, 1);
        reads::lookup_warm(&bench, 2);
    }
    if wanted("cold") {
        reads::lookup_cold(&bench);
    }
    if wanted("restart") {
        restart::restart(&bench);
    }
    if wanted("merge") {
        adds::merge(&bench);
        adds::disk_space(&bench, "Disk space after the merges");
    }
    let _ = fs::remove_dir_all(&bench.dir);
}
