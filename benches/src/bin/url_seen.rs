//! "Have I seen this URL?": links a second against hundreds of millions of known URLs, canonicalisation included.
//!
//! ```text
//!   url_seen --build [--known 500000000] [--dir benches/work/url-seen]     makes the table
//!   url_seen [--rounds 10] [--links 16000000] [--known …] [--dir …]        links in batches: canonical form, offer, settle
//! ```
//!
//! The known URLs' texts would be 30 GB, and settling them batch by batch takes hours of writing: `--build` writes the sorted run and
//! the manifest themselves, in the format that `metadata/urls.rs` and `runs.rs` draw (an independent writer of it: opening and answers
//! check it), and leaves the list of their texts a hole, since nobody asks for them. New URLs take the whole way.
//!
//! Of the links 75 % name known URLs, evenly spread (no cache helps), 20 % URLs never seen before, 5 % such that an earlier link
//! brought. They come in any spelling: schemes, ports, capitals in the host, fragments. Every answer is checked: the number
//! of every URL is known beforehand, known, new or new a moment ago. Making links and checking answers is not timed.
//!
//! `url_seen.sh` runs it in a control group of 1 GB that counts the page cache.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rayon::prelude::*;
use webbase_benches::arguments::Arguments;
use webbase_benches::measure::{Cost, timed};
use webbase_crawler::metadata::{Settled, UrlTable};
use webbase_storage::crc64;
use webbase_storage::url::canonical_into;

const KEY: [u8; 32] = [7; 32];
/// Links that are made, and then offered, at a time.
const CHUNK: u64 = 1 << 16;
/// Entries of a block of a run.
const BLOCK: usize = 4096;
const BUCKETS: usize = 256;

const WORDS: [&str; 16] = [
    "about", "archive", "article", "blog", "category", "contact", "data", "docs", "download", "events",
    "forum", "gallery", "library", "news", "products", "research",
];
const TOP: [&str; 4] = ["com", "org", "net", "info"];

/// A number that looks random and is always the same.
fn mixed(n: u64) -> u64 {
    let mut x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x2545_f491_4f6c_dd1d);
    x ^= x >> 30;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 27;
    x.wrapping_mul(0x94d0_49bb_1331_11eb) ^ (x >> 31)
}

fn word(seed: u64, shift: u32) -> &'static str {
    WORDS[(seed >> shift) as usize % WORDS.len()]
}

/// The host of URL `n`: a few have most.
fn host(seed: u64, out: &mut String) {
    let share = (seed >> 40) as f64 / (1_u64 << 24) as f64;
    let number = (share * share * share * 4e6) as u64;
    let seed = mixed(number);
    out.push_str(if seed.is_multiple_of(2) { "www." } else { "" });
    let _ = write!(
        out,
        "{}-{}{number}.{}",
        word(seed, 8),
        word(seed, 16),
        TOP[(seed >> 24) as usize % TOP.len()]
    );
}

fn path(n: u64, seed: u64, out: &mut String) {
    let _ = match seed % 4 {
        0 => write!(out, "/{}/{}/{n}", word(seed, 3), word(seed, 9)),
        1 => write!(
            out,
            "/{}/20{:02}/{:02}/{}-{n}.html",
            word(seed, 3),
            seed % 25,
            seed % 12 + 1,
            word(seed, 9)
        ),
        2 => write!(out, "/{}/{}?id={n}&view={}", word(seed, 3), word(seed, 15), word(seed, 21)),
        _ => write!(out, "/{}{n}.html", word(seed, 3)),
    };
}

/// The canonical form of URL `n`.
fn known_url(n: u64, out: &mut String) {
    let seed = mixed(n);
    host(seed, out);
    path(n, seed, out);
}

/// A link to URL `n`, in one of many spellings.
fn link(n: u64, spelling: u64, out: &mut String) {
    let seed = mixed(n);
    out.push_str(if spelling.is_multiple_of(4) { "http://" } else { "https://" });
    let begin = out.len();
    host(seed, out);
    if spelling % 16 == 1 {
        out[begin..].make_ascii_uppercase();
    }
    if spelling % 32 == 5 {
        out.push_str(":443");
    }
    path(n, seed, out);
    if spelling % 8 == 3 {
        let _ = write!(out, "#{}", word(spelling, 9));
    }
}

/// What link `number` of all names, and whether it is the first to.
fn named(number: u64, known: u64) -> (u64, bool) {
    let seed = mixed(number ^ 0x5eed);
    // Links in twenties: of each fifteen are known, four new, one names an earlier new one.
    let (twenty, place) = (number / 20, number % 20);
    match place {
        0 | 5 | 10 | 15 => (known + twenty * 4 + place / 5, true),
        7 if twenty > 0 => (known + seed % (twenty * 4), false),
        _ => (seed % known, false),
    }
}

fn hash(url: &str) -> u128 {
    let digest = blake3::keyed_hash(&KEY, url.as_bytes());
    let mut bytes = [0; 16];
    bytes[..12].copy_from_slice(&digest.as_bytes()[..12]);
    u128::from_be_bytes(bytes)
}

/// Makes a table that knows URLs 0 to `known`.
fn build(folder: &Path, known: u64) {
    let began = Instant::now();
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).expect("a folder");
    let bucket = |n: usize| folder.join(format!("bucket-{n:03}"));
    let mut files: Vec<BufWriter<File>> = (0..BUCKETS)
        .map(|n| BufWriter::with_capacity(1 << 18, File::create(bucket(n)).expect("a bucket")))
        .collect();
    let step = 1 << 20;
    for start in (0..known).step_by(step) {
        let entry = |url: &mut String, n: usize| {
            url.clear();
            known_url(n as u64, url);
            hash(url) | n as u128
        };
        let numbers = start as usize..(start + step as u64).min(known) as usize;
        let entries: Vec<u128> =
            numbers.into_par_iter().with_min_len(1 << 14).map_init(String::new, entry).collect();
        for entry in entries {
            files[(entry >> 120) as usize].write_all(&entry.to_be_bytes()).expect("written");
        }
    }
    drop(files);
    eprintln!("hashed after {:.0} s", began.elapsed().as_secs_f64());
    let mut run =
        BufWriter::with_capacity(1 << 22, File::create(folder.join("known-00000000")).expect("a run"));
    let mut block: Vec<u8> = Vec::new();
    let mut put = |block: &mut Vec<u8>| {
        let sum = crc64(block);
        run.write_all(block).and_then(|()| run.write_all(&sum.to_le_bytes())).expect("written");
        block.clear();
    };
    for n in 0..BUCKETS {
        let mut bytes = Vec::new();
        BufReader::new(File::open(bucket(n)).expect("a bucket")).read_to_end(&mut bytes).expect("read");
        let mut entries: Vec<u128> =
            bytes.as_chunks::<16>().0.iter().map(|bytes| u128::from_be_bytes(*bytes)).collect();
        drop(bytes);
        entries.par_sort_unstable();
        fs::remove_file(bucket(n)).expect("removed");
        for entry in entries {
            block.extend_from_slice(&entry.to_be_bytes());
            if block.len() == BLOCK * 16 {
                put(&mut block);
            }
        }
    }
    if !block.is_empty() {
        put(&mut block);
    }
    run.into_inner().expect("written").sync_all().expect("synced");
    // The texts and their places: a hole.
    File::create(folder.join("places")).and_then(|file| file.set_len(known * 8)).expect("a hole");
    let mut manifest = b"WBUT".to_vec();
    manifest.extend_from_slice(&1_u32.to_le_bytes());
    for number in [known, 0, 0, 0, known] {
        manifest.extend_from_slice(&number.to_le_bytes());
    }
    manifest.extend_from_slice(&crc64(&manifest).to_le_bytes());
    fs::write(folder.join("manifest"), manifest).expect("written");
    println!("{known} URLs known, built in {:.0} s", began.elapsed().as_secs_f64());
}

/// The most memory that this program's control group ever used, with the page cache, and its limit.
fn memory() -> Option<(u64, u64)> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, kind, path) = (parts.next()?, parts.next()?, parts.next()?.trim_start_matches('/'));
        let (folder, peak, limit) = match kind {
            "memory" => ("/sys/fs/cgroup/memory", "memory.max_usage_in_bytes", "memory.limit_in_bytes"),
            "" => ("/sys/fs/cgroup", "memory.peak", "memory.max"),
            _ => continue,
        };
        let folder = Path::new(folder).join(path);
        if let (Some(peak), Some(limit)) = (number(folder.join(peak)), number(folder.join(limit))) {
            return Some((peak, limit));
        }
    }
    None
}

/// Adds one piece of work to another.
fn add(to: &mut Cost, cost: Cost) {
    to.wall_s += cost.wall_s;
    to.cpu_s += cost.cpu_s;
}

fn main() {
    let arguments = Arguments::from_env();
    let known = arguments.number("--known", 500_000_000) as u64;
    let folder = PathBuf::from(arguments.value("--dir").unwrap_or("benches/work/url-seen"));
    if std::env::args().any(|argument| argument == "--build") {
        build(&folder, known);
        return;
    }
    let rounds = arguments.number("--rounds", 10) as u64;
    let links = arguments.number("--links", 16_000_000) as u64;
    let mut table = UrlTable::open(&folder, KEY).expect("a table: run with --build first");
    println!("{} URLs known; {rounds} rounds of {links} links", table.len());
    // Where an earlier run left off: its new URLs are known now.
    let fresh = table.len() as u64 - known;
    let first = fresh / 4 * 20;
    assert_eq!((table.waiting(), first % 20, fresh % 4), (0, 0, 0), "a table of whole rounds");
    assert_eq!(links % 20, 0, "links come in twenties");
    let began = Instant::now();
    let nothing = Cost { wall_s: 0.0, cpu_s: 0.0 };
    let (mut all, mut slowest) = (nothing, f64::INFINITY);
    for round in 0..rounds {
        let (mut canonicalising, mut offering) = (nothing, nothing);
        let numbers = first + round * links..first + (round + 1) * links;
        let mut at = numbers.start;
        while at < numbers.end {
            let end = (at + CHUNK).min(numbers.end);
            let make = |number: usize| {
                let number = number as u64;
                let mut url = String::with_capacity(96);
                link(named(number, known).0, mixed(number), &mut url);
                url
            };
            let raw: Vec<String> = (at as usize..end as usize).into_par_iter().map(make).collect();
            let canonical_of = |url: &String| {
                let mut out = String::with_capacity(url.len());
                canonical_into(url, &mut out).expect("a URL");
                out
            };
            let (canonical, cost): (Vec<String>, Cost) =
                timed(|| raw.par_iter().with_min_len(1024).map(canonical_of).collect());
            add(&mut canonicalising, cost);
            let (offered, cost) = timed(|| table.offer_all(&canonical).expect("offered"));
            assert_eq!(offered, canonical.len());
            add(&mut offering, cost);
            at = end;
        }
        let (settled, settling) = timed(|| table.settle().expect("settled"));
        // Every answer is the right one.
        let wrong = settled
            .par_iter()
            .enumerate()
            .filter(|(place, found)| {
                let (n, is_new) = named(numbers.start + *place as u64, known);
                **found != Settled { id: n as u32, is_new }
            })
            .count();
        assert_eq!((settled.len() as u64, wrong), (links, 0), "answers that are wrong");
        let mut took = nothing;
        [canonicalising, offering, settling].into_iter().for_each(|cost| add(&mut took, cost));
        add(&mut all, took);
        let speed = links as f64 / took.wall_s;
        slowest = slowest.min(speed);
        let shown = |cost: Cost| format!("{:.1} s ({:.1} s CPU)", cost.wall_s, cost.cpu_s);
        println!(
            "round {round}: {speed:.0} links/s, {:.0} a CPU second: canonical {}, offered {}, settled {}; {} known",
            links as f64 / took.cpu_s,
            shown(canonicalising),
            shown(offering),
            shown(settling),
            table.len()
        );
    }
    // New URLs are kept as they came, canonical.
    let mut text = String::new();
    for n in (known..table.len() as u64).step_by((table.len() - known as usize) / 1000 + 1) {
        text.clear();
        known_url(n, &mut text);
        assert_eq!(table.url(n as u32).expect("read").as_deref(), Some(text.as_str()));
    }
    println!(
        "sustained: {:.0} links/s (slowest round {slowest:.0}), {:.0} a CPU second; all {} answers right; {:.0} s in all",
        (rounds * links) as f64 / all.wall_s,
        (rounds * links) as f64 / all.cpu_s,
        rounds * links,
        began.elapsed().as_secs_f64()
    );
    match memory() {
        Some((peak, limit)) => println!(
            "memory with page cache: at most {:.0} MB of a limit of {:.0} MB",
            peak as f64 / 1e6,
            limit as f64 / 1e6
        ),
        None => println!("memory: no control group to ask"),
    }
}
