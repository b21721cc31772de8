//! Tables of reading: scans and lookups, warm and cold. All stores were loaded in sorted order.

use std::{hint::black_box, thread};

use webbase_benches::{
    contestant::{Add, Peer},
    measure::{Cost, DiskReads, alternate, drop_caches, fastest, median, print_table, timed, touch},
    raw::{self, Extent, ReadMode, WriteMode},
};

use crate::{Bench, work};

/// Few enough that one lookup seldom brings in what another needs.
const COLD_LOOKUPS_MAX: usize = 2000;

pub(crate) fn scan_warm(bench: &Bench) {
    write_raw_file(bench);
    let map = raw::map_file(&bench.raw_path()).expect("the raw file");
    let extents = Bench::extents(&bench.sorted);
    let raw_names = ["map, touched", "map, CRC-64", "map, CRC-64, then touched", "raw read, buffered"];
    eprintln!("scan, warm");
    let samples = alternate(&bench.names(&raw_names), bench.rounds, |n| match n {
        0 => twice(|| raw::scan_map_touched(&map, &extents)),
        1 => twice(|| raw::scan_map_checked(&map, &extents, false)),
        2 => twice(|| raw::scan_map_checked(&map, &extents, true)),
        3 => twice(|| {
            raw::sequential_read(&bench.raw_path(), ReadMode::Buffered).expect("raw read");
        }),
        n => {
            let store = bench.open(&bench.contestants[n - 4]);
            twice(|| scan(bench, store.as_ref()))
        }
    });
    print_table("Full scan, warm", &samples, "map, touched", work(&bench.sorted));
}

pub(crate) fn scan_cold(bench: &Bench) {
    write_raw_file(bench);
    let direct = |chunk_bytes, in_flight| ReadMode::Direct { chunk_bytes, in_flight };
    let ways = [
        ("raw read, buffered", ReadMode::Buffered),
        ("raw read, O_DIRECT 1 MiB × 2", direct(1 << 20, 2)),
        ("raw read, O_DIRECT 4 MiB × 2", direct(4 << 20, 2)),
        ("raw read, O_DIRECT 4 MiB × 4", direct(4 << 20, 4)),
    ];
    eprintln!("scan, cold");
    let samples = alternate(&bench.names(&ways.map(|(name, _)| name)), bench.rounds, |n| {
        drop_caches(&bench.dir);
        let Some(n) = n.checked_sub(ways.len()) else {
            return timed(|| raw::sequential_read(&bench.raw_path(), ways[n].1).expect("raw read")).1;
        };
        let store = bench.open(&bench.contestants[n]);
        timed(|| scan(bench, store.as_ref())).1
    });
    print_table("Full scan, cold", &samples, fastest(&samples[..ways.len()]), work(&bench.sorted));
}

pub(crate) fn lookup_warm(bench: &Bench, threads: usize) {
    write_raw_file(bench);
    let extents = Bench::extents(&bench.sorted);
    let order = bench.corpus.shuffled(2);
    let wanted_extents: Vec<Extent> = order.iter().map(|&n| extents[n as usize]).collect();
    let wanted: Vec<Add> = order.iter().map(|&n| bench.sorted[n as usize]).collect();
    let map = raw::map_file(&bench.raw_path()).expect("the raw file");
    eprintln!("lookup, warm, {threads} threads");
    let raw_names = ["raw pread", "map, touched", "map, CRC-64, then touched"];
    let samples = alternate(&bench.names(&raw_names), bench.rounds, |n| match n {
        0 => {
            twice(|| raw::random_reads(&bench.raw_path(), &wanted_extents, threads, false).expect("raw read"))
        }
        1 => twice(|| shared_out(&wanted_extents, threads, |part| raw::scan_map_touched(&map, part))),
        2 => twice(|| shared_out(&wanted_extents, threads, |part| raw::scan_map_checked(&map, part, true))),
        n => {
            let store = bench.open(&bench.contestants[n - 3]);
            twice(|| shared_out(&wanted, threads, |part| lookup(store.as_ref(), part)))
        }
    });
    print_table(&format!("Random lookup, warm, {threads} threads"), &samples, "raw pread", work(&wanted));
}

pub(crate) fn lookup_cold(bench: &Bench) {
    write_raw_file(bench);
    let extents = Bench::extents(&bench.sorted);
    let order = bench.corpus.shuffled(3);
    let order = &order[..(order.len() / 10).clamp(1, COLD_LOOKUPS_MAX)];
    let wanted_extents: Vec<Extent> = order.iter().map(|&n| extents[n as usize]).collect();
    let wanted: Vec<Add> = order.iter().map(|&n| bench.sorted[n as usize]).collect();
    let raw_names = ["raw pread", "raw pread O_DIRECT", "raw io_uring × 32", "raw io_uring × 64"];
    let names = bench.names(&raw_names);
    let mut reads: Vec<Vec<DiskReads>> = vec![Vec::new(); names.len()];
    eprintln!("lookup, cold");
    let samples = alternate(&names, bench.rounds, |n| {
        drop_caches(&bench.dir);
        let store = n.checked_sub(raw_names.len()).map(|n| bench.open(&bench.contestants[n]));
        let before = DiskReads::now(&bench.dir);
        let path = bench.raw_path();
        let ((), cost) = timed(|| match (n, &store) {
            (_, Some(store)) => lookup(store.as_ref(), &wanted),
            (0 | 1, None) => raw::random_reads(&path, &wanted_extents, 1, n == 1).expect("raw read"),
            (n, None) => {
                let depth = if n == 2 { 32 } else { 64 };
                raw::random_reads_io_uring(&path, &wanted_extents, depth, true).expect("raw io_uring");
            }
        });
        reads[n].push(DiskReads::now(&bench.dir).since(before));
        cost
    });
    print_table("Random lookup, cold, 1 thread", &samples, "raw pread", work(&wanted));
    println!("\n| contestant | device reads per lookup | KB read per lookup |\n|---|---:|---:|");
    for (name, reads) in names.iter().zip(reads) {
        let per_lookup =
            |of: fn(&DiskReads) -> u64| median(reads.iter().map(|r| of(r) as f64)) / wanted.len() as f64;
        println!("| {name} | {:.2} | {:.1} |", per_lookup(|r| r.device_reads), per_lookup(|r| r.bytes) / 1e3);
    }
}

/// The second of two runs: everything that fits is in memory then.
fn twice(mut work: impl FnMut()) -> Cost {
    work();
    timed(work).1
}

fn scan(bench: &Bench, store: &dyn Peer) {
    let count = store.scan(&mut |page| {
        black_box(touch(page));
    });
    assert_eq!(count, bench.sorted.len() as u64, "pages scanned");
}

fn lookup(store: &dyn Peer, wanted: &[Add]) {
    let mut reader = store.reader();
    for add in wanted {
        let found = reader.lookup(&add.key, &mut |page| {
            assert!(page.len() >= add.page.body.len(), "a whole page");
            black_box(touch(page));
        });
        assert!(found, "{} is missing", add.page.url);
    }
}

fn shared_out<T: Sync>(items: &[T], threads: usize, work: impl Fn(&[T]) + Sync) {
    thread::scope(|scope| {
        for part in items.chunks(items.len().div_ceil(threads).max(1)) {
            scope.spawn(|| work(part));
        }
    });
}

/// The pages in sorted order, end to end, once.
fn write_raw_file(bench: &Bench) {
    if !bench.raw_path().exists() {
        let values = bench.sorted.iter().map(|add| add.page.value());
        raw::append(&bench.raw_path(), values, WriteMode::Buffered { chunk_bytes: 4 << 20 }, None)
            .expect("raw file");
    }
}
