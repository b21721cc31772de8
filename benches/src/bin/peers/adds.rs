//! Tables of adding: in random order, sorted, and new versions; compressors alone; disk space.

use std::fs;

use webbase_benches::{
    contestant::{Add, AddOptions},
    measure::{self, Cost, alternate, disk_bytes, fastest, print_table, timed},
    raw::{self, Codec, Packed, WriteMode},
};

use crate::{Bench, work};

pub(crate) const AT_END: AddOptions = AddOptions { durable_every: None, sorted_load: false };
pub(crate) const EVERY_1000: AddOptions = AddOptions { durable_every: Some(1000), sorted_load: false };
pub(crate) const SORTED: AddOptions = AddOptions { durable_every: None, sorted_load: true };

/// Adds all pages to new stores. The stores of the last round stay.
pub(crate) fn add(bench: &Bench, title: &str, pages: &[Add], options: AddOptions) {
    run(bench, title, &[pages], options, true);
}

/// Replaces a fifth of the pages in the stores that are there, sorted by key, durable at the end.
pub(crate) fn merge(bench: &Bench) {
    let count = bench.sorted.len();
    // Newer ones each round: a store that has them already would have nothing to do.
    let mut versions: Vec<Add> = bench.sorted.iter().step_by(5).copied().collect();
    let rounds: Vec<Vec<Add>> = (0..=bench.rounds)
        .map(|round| {
            for (n, add) in versions.iter_mut().enumerate() {
                add.page = add.page.new_version(&bench.sorted[(5 * n + 1 + round) % count].page);
            }
            versions.clone()
        })
        .collect();
    let rounds: Vec<&[Add]> = rounds.iter().map(Vec::as_slice).collect();
    run(bench, "Merge of 20 % new versions, sorted, durable at the end", &rounds, AT_END, false);
}

/// Contestants add `rounds[i]` in their i-th turn, or the last one there is.
fn run(bench: &Bench, title: &str, rounds: &[&[Add]], options: AddOptions, fresh: bool) {
    let mut turns = vec![0; WriteMode::ALL.len() + bench.contestants.len()];
    let ways = WriteMode::ALL;
    let names = bench.names(&ways.map(|(name, _)| name));
    let mut settling: Vec<Vec<f64>> = vec![Vec::new(); bench.contestants.len()];
    eprintln!("{title}");
    let samples = alternate(&names, bench.rounds, |n| {
        let pages = rounds[turns[n].min(rounds.len() - 1)];
        turns[n] += 1;
        let Some(n) = n.checked_sub(ways.len()) else { return append_raw(bench, pages, ways[n].1, options) };
        let contestant = &bench.contestants[n];
        if fresh {
            let _ = fs::remove_dir_all(bench.store_dir(contestant));
        }
        let mut store = bench.open(contestant);
        let ((), cost) = timed(|| store.add_all(pages, options));
        let ((), settled) = timed(|| store.settle());
        settling[n].push(settled.wall_s);
        cost
    });
    print_table(title, &samples, fastest(&samples[..ways.len()]), work(rounds[rounds.len() - 1]));

    println!("\nStill going on in the background afterwards, seconds (median):");
    for (contestant, seconds) in bench.contestants.iter().zip(settling) {
        let median = measure::median(seconds.into_iter());
        if median > 0.001 {
            println!("- {}: {median:.2}", contestant.name);
        }
    }
}

fn append_raw(bench: &Bench, pages: &[Add], mode: WriteMode, options: AddOptions) -> Cost {
    let values = pages.iter().map(|add| add.page.value());
    let path = bench.dir.join("append.bin");
    let (result, cost) = timed(|| raw::append(&path, values, mode, options.durable_every));
    result.expect("raw append");
    fs::remove_file(path).expect("the file just written");
    cost
}

/// Loads the stores in sorted order for the tables that read, when no table of adding did.
pub(crate) fn load_untimed(bench: &Bench) {
    for contestant in &bench.contestants {
        let _ = fs::remove_dir_all(bench.store_dir(contestant));
        let mut store = bench.open(contestant);
        store.add_all(&bench.sorted, SORTED);
        store.settle();
    }
}

pub(crate) fn disk_space(bench: &Bench, title: &str) {
    let logical_bytes = work(&bench.sorted).bytes as f64;
    println!("\n### {title}\n\n| contestant | MB | bytes per logical byte |\n|---|---:|---:|");
    for contestant in &bench.contestants {
        let bytes = disk_bytes(&bench.store_dir(contestant)) as f64;
        println!("| {} | {:.1} | {:.3} |", contestant.name, bytes / 1e6, bytes / logical_bytes);
    }
}

/// Compressors and decompressors alone, one page at a time, on one thread and on two.
pub(crate) fn codecs(bench: &Bench) {
    let values: Vec<&[u8]> = bench.random.iter().map(|add| add.page.value()).collect();
    let samples: Vec<&[u8]> =
        bench.corpus.pages.iter().step_by(bench.corpus.pages.len() / 2000 + 1).map(|p| p.value()).collect();
    let dictionary = raw::train_dictionary(&samples, 110 << 10);
    let zstd = |level, dictionary: &[u8]| Codec::Zstd { level, dictionary: dictionary.to_vec() };
    let codecs = [
        ("zstd 1", zstd(1, &[])),
        ("zstd 3", zstd(3, &[])),
        ("zstd 1 + dictionary", zstd(1, &dictionary)),
        ("zstd 3 + dictionary", zstd(3, &dictionary)),
        ("lz4", Codec::Lz4),
    ];
    let names = codecs.each_ref().map(|(name, _)| *name);
    let total = work(&bench.random);

    println!("\n### Compressors alone: bytes per logical byte\n\n| codec | ratio |\n|---|---:|");
    for (name, codec) in &codecs {
        println!("| {name} | {:.4} |", raw::compress_all(codec, &values, 2) as f64 / total.bytes as f64);
    }
    for threads in [1, 2] {
        eprintln!("codecs, {threads} threads");
        let packed = alternate(&names, bench.rounds, |n| {
            timed(|| raw::compress_all(&codecs[n].1, &values, threads)).1
        });
        print_table(&format!("Compressors alone, {threads} threads"), &packed, "zstd 3 + dictionary", total);
        let packed: Vec<Packed> = codecs.iter().map(|(_, codec)| Packed::new(codec, &values)).collect();
        let unpacked = alternate(&names, bench.rounds, |n| {
            timed(|| raw::unpack_all(&codecs[n].1, &packed[n], threads)).1
        });
        print_table(
            &format!("Decompressors alone, {threads} threads"),
            &unpacked,
            "zstd 3 + dictionary",
            total,
        );
    }
}
