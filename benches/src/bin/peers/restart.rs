//! After a restart: a new process opens a store, cold, and looks up its first page; then how much memory it takes.

use std::{fs, hint::black_box, io::Write, path::Path, process::Command};

use webbase_benches::{
    contestant::{self, PeerConfig},
    measure::{drop_caches, median, memory, timed, touch},
};

use crate::{Arguments, Bench};

const LOOKUPS: usize = 10_000;

/// What the new process reports, in this order.
const COLUMNS: [&str; 6] = [
    "open, cold, ms",
    "first lookup, ms",
    "heap after open, MB",
    "heap after 10 000 lookups, MB",
    "mapped then, MB",
    "the same lookups, ms",
];

pub(crate) fn restart(bench: &Bench) {
    let keys_path = bench.dir.join("keys.bin");
    let mut keys = Vec::new();
    for &n in bench.corpus.shuffled(4).iter().take(LOOKUPS) {
        keys.write_all(&bench.sorted[n as usize].key).expect("writing to memory");
    }
    fs::write(&keys_path, keys).expect("the list of keys");

    println!(
        "\n### After a restart\n\n| contestant | {} |\n|---|{}",
        COLUMNS.join(" | "),
        "---:|".repeat(COLUMNS.len())
    );
    for contestant in &bench.contestants {
        let mut rounds = Vec::new();
        for _ in 0..bench.rounds {
            drop_caches(&bench.dir);
            let own_program = std::env::current_exe().expect("this program");
            let output = Command::new(own_program)
                .args(["--child", contestant.name, "--cache", &bench.config.cache_bytes.to_string()])
                .arg("--store")
                .arg(bench.store_dir(contestant))
                .arg("--keys")
                .arg(&keys_path)
                .output()
                .expect("a new process");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let numbers = String::from_utf8_lossy(&output.stdout);
            rounds
                .push(numbers.split_whitespace().map(|n| n.parse().expect("a number")).collect::<Vec<f64>>());
        }
        let cells: Vec<String> = (0..COLUMNS.len())
            .map(|column| format!("{:.2}", median(rounds.iter().map(|round| round[column]))))
            .collect();
        println!("| {} | {} |", contestant.name, cells.join(" | "));
    }
}

/// The new process.
pub(crate) fn child(name: &str, args: &Arguments) {
    let argument = |name| args.value(name).expect("the parent gives all arguments");
    let contestant = contestant::all().into_iter().find(|c| c.name == name).expect("a contestant");
    let config = PeerConfig { cache_bytes: argument("--cache").parse().expect("a number") };
    let keys = fs::read(argument("--keys")).expect("the list of keys");
    let (keys, _) = keys.as_chunks::<16>();
    let before = memory();

    let (store, opened) = timed(|| (contestant.open)(Path::new(argument("--store")), &config));
    let mut reader = store.reader();
    let mut lookup = |key| {
        assert!(reader.lookup(key, &mut |page| {
            black_box(touch(page));
        }));
    };
    let ((), first) = timed(|| lookup(&keys[0]));
    let after_open = memory();
    let ((), all) = timed(|| keys.iter().for_each(&mut lookup));
    let after_all = memory();

    let megabytes = |bytes: u64, before: u64| bytes.saturating_sub(before) as f64 / 1e6;
    println!(
        "{} {} {} {} {} {}",
        opened.wall_s * 1e3,
        first.wall_s * 1e3,
        megabytes(after_open.anonymous_bytes, before.anonymous_bytes),
        megabytes(after_all.anonymous_bytes, before.anonymous_bytes),
        megabytes(after_all.file_bytes, before.file_bytes),
        all.wall_s * 1e3,
    );
}
