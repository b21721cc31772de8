//! Proves that readers, one writer, compaction and group commit work at the same time: on real files, with real threads,
//! for a bounded number of rounds.
//!
//! The writer keeps all pages of a group at one generation in every commit, and of a moving window of other pages
//! exactly so many. Whoever opens a stream must see one generation throughout, and each page once; whoever looks pages
//! up must never see time go backwards.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::{OwnedPage, Random, organizations, small_options, strong, url};
use webbase_storage::{
    Access, Options, Organization, PageKey, PageStore, Record, StorageError, StreamSpec, Trust, create, open,
};

/// Pages that always have one generation.
const GROUP: u64 = 40;
/// Other pages, added and deleted again, so many of them at any time.
const WINDOW: u64 = 15;
const GENERATIONS: u64 = 120;

fn options() -> Options {
    Options { segment_bytes: 64 << 10, buffer_bytes: 32 << 10, ..small_options() }
}

/// Segments and buffers that no batch fills, so that a store never commits by itself.
fn roomy() -> Options {
    Options { segment_bytes: 1 << 30, buffer_bytes: 1 << 30, ..small_options() }
}

fn fresh(organization: Organization, options: &Options) -> (tempfile::TempDir, Arc<dyn PageStore>) {
    let folder = tempfile::tempdir().unwrap();
    create(folder.path(), organization, strong(), options).unwrap();
    let store = open(folder.path(), options).unwrap();
    (folder, store)
}

fn key(n: u64) -> PageKey {
    strong().page_key(&url(n)).unwrap()
}

/// Page `n` of a generation; its body says both, and its length varies.
fn page(n: u64, generation: u64) -> OwnedPage {
    let padding = Random(n ^ generation << 32).body((n * 37 + generation * 11) as usize % 900, false);
    let mut body = format!("{n} {generation} ").into_bytes();
    body.extend_from_slice(&padding);
    OwnedPage::new(n, generation, body)
}

/// The number and generation in a record, whose bytes must be exactly those of that page.
fn read(store: &dyn PageStore, record: &Record) -> (u64, u64) {
    let body = record.body(store.dictionaries()).unwrap();
    let text = String::from_utf8_lossy(&body);
    let mut words = text.split(' ').map(|word| word.parse().unwrap());
    let (n, generation) = (words.next().unwrap(), words.next().unwrap());
    assert_eq!(record.get().fetched_at_ms(), generation);
    assert!(body == page(n, generation).body, "page {n} of generation {generation} has other bytes");
    (n, generation)
}

/// The one writer: each generation supersedes the group, adds a page at one end of the window and deletes one at the
/// other.
fn write_generation(store: &dyn PageStore, generation: u64) {
    let first = 1000 + generation;
    let mut pages: Vec<OwnedPage> = (0..GROUP).map(|n| page(n, generation)).collect();
    let new = if generation == 0 { first..first + WINDOW } else { first + WINDOW - 1..first + WINDOW };
    pages.extend(new.map(|n| page(n, generation)));
    for part in pages.chunks(13) {
        let list: Vec<_> = part.iter().map(OwnedPage::page).collect();
        store.add(&list).unwrap();
    }
    if generation > 0 {
        assert_eq!(store.delete(&[key(first - 1)]).unwrap(), 1);
    }
    store.commit().unwrap();
}

/// Streams everything and returns the one generation it shows.
fn check_stream(store: &dyn PageStore, spec: &StreamSpec) -> u64 {
    let mut found = BTreeMap::new();
    for record in store.stream(spec).unwrap() {
        let (n, generation) = read(store, &record.unwrap());
        assert_eq!(found.insert(n, generation), None, "page {n} is streamed twice");
        if n.is_multiple_of(7) {
            thread::yield_now();
        }
    }
    let generations: BTreeSet<u64> = (0..GROUP).map(|n| found[&n]).collect();
    assert_eq!(generations.len(), 1, "the group is torn: {found:?}");
    let generation = *generations.first().unwrap();
    let window: Vec<u64> = found.range(1000..).map(|(&n, _)| n).collect();
    let expected: Vec<u64> = (1000 + generation..1000 + generation + WINDOW).collect();
    assert_eq!(window, expected, "at generation {generation}");
    assert_eq!(found.len() as u64, GROUP + WINDOW);
    generation
}

fn look_up(store: &dyn PageStore, random: &mut Random, latest: &mut BTreeMap<u64, u64>) {
    let mut check = |record: Option<Record>, n: u64| {
        let (found, generation) = read(store, &record.expect("a page of the group is always there"));
        let before = latest.insert(n, generation).unwrap_or(0);
        assert!(found == n && generation >= before, "page {n} goes from {before} back to {generation}");
    };
    let n = random.below(GROUP);
    let trust = if n.is_multiple_of(2) { Trust::Verify } else { Trust::Disk };
    check(store.lookup(key(n), trust).unwrap(), n);
    check(store.lookup_url(&url(n)).unwrap(), n);
    let many: Vec<u64> = (0..5).map(|_| random.below(GROUP)).collect();
    let keys: Vec<PageKey> = many.iter().map(|&n| key(n)).collect();
    for (record, &n) in store.lookup_many(&keys).into_iter().zip(&many) {
        check(record.unwrap(), n);
    }
    assert!(store.lookup(key(999_999), trust).unwrap().is_none());
}

#[test]
fn readers_see_whole_commits_while_others_write_and_compact() {
    for organization in organizations() {
        let (_folder, store) = fresh(organization, &roomy());
        write_generation(&*store, 0);
        let done = AtomicBool::new(false);
        let (store, done) = (&*store, &done);
        thread::scope(|scope| {
            for reader in 0..2_u64 {
                scope.spawn(move || {
                    let (mut random, mut latest) = (Random(reader), BTreeMap::new());
                    while !done.load(Ordering::Relaxed) {
                        look_up(store, &mut random, &mut latest);
                    }
                });
            }
            scope.spawn(move || {
                let mut before = 0;
                for round in 0_u64.. {
                    let last = done.load(Ordering::Relaxed);
                    let access = if round.is_multiple_of(2) { Access::Cached } else { Access::Direct };
                    let generation = check_stream(store, &StreamSpec { access, ..StreamSpec::default() });
                    assert!(
                        generation >= before,
                        "a later stream shows {generation}, an earlier one {before}"
                    );
                    before = generation;
                    if last {
                        assert_eq!(generation, GENERATIONS);
                        return;
                    }
                }
            });
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    store.compact(50_000).unwrap();
                    thread::yield_now();
                }
            });
            for generation in 1..=GENERATIONS {
                write_generation(store, generation);
            }
            done.store(true, Ordering::Relaxed);
        });
        while !store.compact(1 << 30).unwrap().done {}
        assert_eq!(check_stream(store, &StreamSpec::default()), GENERATIONS);
        assert_eq!(store.verify().unwrap().damage, []);
        assert_eq!(store.keys().unwrap().len() as u64, GROUP + WINDOW);
    }
}

#[test]
fn a_stream_opened_before_everything_changes_shows_what_was() {
    for organization in organizations() {
        let (_folder, store) = fresh(organization, &options());
        write_generation(&*store, 0);
        let mut stream = store.stream(&StreamSpec::default()).unwrap();
        let first = stream.next().unwrap().unwrap();
        for generation in 1..20 {
            write_generation(&*store, generation);
        }
        while !store.compact(1 << 30).unwrap().done {}
        let mut found = vec![read(&*store, &first)];
        for record in stream {
            found.push(read(&*store, &record.unwrap()));
        }
        found.sort_unstable();
        let pages = (0..GROUP).chain(1000..1000 + WINDOW);
        assert_eq!(found, pages.map(|n| (n, 0)).collect::<Vec<_>>(), "{organization}");
    }
}

#[test]
fn threads_that_add_and_commit_at_once_lose_nothing() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 25;
    for organization in organizations() {
        let (folder, store) = fresh(organization, &options());
        thread::scope(|scope| {
            for t in 0..THREADS {
                let store = &*store;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let mine = page(t * 10_000 + round, round);
                        let shared = page(99_999, t * ROUNDS + round); // the highest generation wins
                        store.add(&[mine.page(), shared.page()]).unwrap();
                        store.commit().unwrap();
                        let found = store.lookup_url(&mine.url).unwrap().expect("committed, so visible");
                        assert_eq!(read(store, &found), (t * 10_000 + round, round));
                    }
                });
            }
        });
        drop(store);
        let store = open(folder.path(), &options()).unwrap();
        for n in (0..THREADS).flat_map(|t| (0..ROUNDS).map(move |round| t * 10_000 + round)) {
            assert!(store.lookup(key(n), Trust::Verify).unwrap().is_some(), "{organization}, page {n}");
        }
        let shared = store.lookup(key(99_999), Trust::Verify).unwrap().unwrap();
        assert_eq!(read(&*store, &shared).1, THREADS * ROUNDS - 1);
        assert_eq!(store.keys().unwrap().len() as u64, THREADS * ROUNDS + 1, "{organization}");
        assert_eq!(store.verify().unwrap().damage, []);
    }
}

fn expect_locked(folder: &Path) {
    match open(folder, &options()) {
        Err(e @ StorageError::Locked { .. }) => {
            let text = e.to_string();
            assert!(text.contains(&folder.display().to_string()) && text.contains("in use"), "{text}");
        }
        Err(e) => panic!("expected Locked, found {e}"),
        Ok(_) => panic!("a store was opened twice"),
    }
}

#[test]
fn a_store_is_open_once() {
    for organization in organizations() {
        let (folder, store) = fresh(organization, &options());
        expect_locked(folder.path());
        store.close().unwrap();
        expect_locked(folder.path()); // closed, and still there to be read
        drop(store);
        drop(open(folder.path(), &options()).expect("nobody has it any more"));
    }
}

#[test]
fn another_process_is_kept_out() {
    const FOLDER: &str = "WEBBASE_TEST_LOCKED_FOLDER";
    if let Some(folder) = std::env::var_os(FOLDER) {
        return expect_locked(Path::new(&folder)); // the other process
    }
    for organization in organizations() {
        let (folder, _store) = fresh(organization, &options());
        let mut other = std::process::Command::new(std::env::current_exe().unwrap());
        other.args(["--exact", "another_process_is_kept_out"]).env(FOLDER, folder.path());
        let output = other.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}
