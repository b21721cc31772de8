//! Proves what a bad dictionary costs: nothing while one of its two files is good; and when both are gone, the pages that
//! are packed with it and no others, until somebody brings it back. The store opens in any case.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{created, dir, open_sim, organizations, small_options, strong};
use webbase_storage::disk::{Crash, Disk};
use webbase_storage::{
    Compression, Dictionary, Options, Organization, Page, PageKey, PageStore, Record, Result, Snapshot,
    StorageError, StreamSpec, Trust, create, open,
};

/// Pages that are packed with the dictionary; as many again are plain.
const PACKED: usize = 20;

fn options() -> Options {
    Options { compression: Compression::Zstd(1), train_dictionary: false, ..Options::default() }
}

fn content() -> Vec<u8> {
    b"<html><head><title>page of a store</title></head><body>".repeat(6)
}

fn digest() -> u64 {
    Dictionary::digest_of(&content())
}

fn url(n: usize) -> String {
    format!("http://example.org/{n}")
}

fn key(n: usize) -> PageKey {
    strong().page_key(&url(n)).unwrap()
}

/// Odd pages are too short to be packed.
fn body(n: usize) -> String {
    if n % 2 == 1 {
        return format!("short {n}");
    }
    // From 100 on long enough to learn from.
    let text: String = (0..5 + n / 100 * 20).map(|i| format!("<p>{} of a store</p>", n * i)).collect();
    format!("<html><head><title>page of a store</title></head><body>{text}")
}

fn needs(n: usize) -> bool {
    n.is_multiple_of(2)
}

fn add(store: &dyn PageStore, numbers: impl Iterator<Item = usize>) {
    for n in numbers {
        let (url, body) = (url(n), body(n));
        store.add(&[Page { url: &url, body: body.as_bytes(), ..Page::default() }]).unwrap();
    }
    store.commit().unwrap();
}

fn files(folder: &Path) -> [PathBuf; 2] {
    ["", ".copy"].map(|end| folder.join(format!("dictionary-{:016x}{end}", digest())))
}

/// A closed store with plain and packed pages and a kept generation.
fn filled(folder: &Path, organization: Organization) {
    create(folder, organization, strong(), &options()).unwrap();
    let store = open(folder, &options()).unwrap();
    assert_eq!(store.add_dictionary(&content()).unwrap(), digest());
    add(&*store, 0..2 * PACKED);
    store.keep_generation(1).unwrap();
    for n in 0..2 * PACKED {
        let packed_with = store.lookup(key(n), Trust::Verify).unwrap().unwrap().get().dictionary();
        assert_eq!(packed_with, if needs(n) { digest() } else { 0 });
    }
    store.close().unwrap();
}

/// Ways for a file to go bad.
const WAYS: [fn(&Path); 4] = [
    |path| {
        let mut bytes = std::fs::read(path).unwrap();
        bytes[77] ^= 4;
        std::fs::write(path, bytes).unwrap();
    },
    |path| std::fs::remove_file(path).unwrap(),
    |path| std::fs::write(path, b"").unwrap(),
    |path| {
        // No file can be read at its place.
        std::fs::remove_file(path).unwrap();
        std::fs::create_dir(path).unwrap();
    },
];

/// Whether every reader gets page `n`, or damage that names the dictionary.
fn is_readable(store: &dyn PageStore, n: usize) -> bool {
    let snapshots: [Arc<dyn Snapshot>; 2] = [store.snapshot(), store.generation(1).unwrap().unwrap()];
    let mut doors: Vec<Result<Option<Record>>> = vec![
        store.lookup(key(n), Trust::Verify),
        store.lookup(key(n), Trust::Disk),
        store.lookup_unpacked(key(n), Trust::Verify),
        store.lookup_unpacked(key(n), Trust::Disk),
        store.lookup_url(&url(n)),
        store.lookup_id(key(n).id, Trust::Verify).map(|mut found| found.pop()),
        store.lookup_many(&[key(n)]).remove(0),
        store.lookup_many(&[key(n)]).remove(0), // from a cache, perhaps
    ];
    doors.extend(store.lookup_warm(key(n)));
    for snapshot in snapshots {
        doors.push(snapshot.lookup(key(n), Trust::Verify));
        doors.push(snapshot.lookup_url(&url(n)));
        doors.push(snapshot.lookup_id(key(n).id, Trust::Disk).map(|mut found| found.pop()));
        doors.push(snapshot.lookup_many(&[key(n)]).remove(0));
        doors.extend(snapshot.lookup_warm(key(n)));
    }
    let readable = doors.iter().map(|found| match found {
        Ok(found) => {
            let found = found.as_ref().unwrap().body(store.dictionaries()).unwrap();
            assert_eq!(found, body(n).as_bytes());
            true
        }
        Err(e) => {
            names_the_dictionary(e);
            assert!(e.to_string().contains(&url(n)), "{e}");
            false
        }
    });
    let readable: Vec<bool> = readable.collect();
    assert!(readable.iter().all(|r| *r == readable[0]), "page {n}: {readable:?}");
    readable[0]
}

fn names_the_dictionary(e: &StorageError) {
    let StorageError::Corrupt { path, offset: 0, .. } = e else { panic!("not damage: {e}") };
    assert!(path.ends_with(format!("dictionary-{:016x}", digest())), "{e}");
}

/// How many pages streams deliver, and how many they say are damaged.
fn streamed(store: &dyn PageStore) -> (usize, usize) {
    let snapshot = store.generation(1).unwrap().unwrap();
    let streams = [store.stream(&StreamSpec::default()), snapshot.stream(&StreamSpec::default())];
    let counts = streams.map(|stream| {
        let (good, bad): (Vec<_>, Vec<_>) = stream.unwrap().partition(Result::is_ok);
        for e in &bad {
            names_the_dictionary(e.as_ref().unwrap_err());
        }
        for record in &good {
            record.as_ref().unwrap().body(store.dictionaries()).unwrap();
        }
        (good.len(), bad.len())
    });
    assert_eq!(counts[0], counts[1]);
    assert_eq!(store.keys().unwrap().len(), counts[0].0 + counts[0].1);
    counts[0]
}

fn all_is_well(store: &dyn PageStore) {
    assert_eq!(store.verify().unwrap().damage, []);
    assert!((0..2 * PACKED).all(|n| is_readable(store, n)));
    assert_eq!(streamed(store), (2 * PACKED, 0));
}

#[test]
fn one_bad_file_costs_nothing_and_is_mended_by_opening() {
    for organization in organizations() {
        for which in [0, 1] {
            for bad in &WAYS[..3] {
                let folder = tempfile::tempdir().unwrap();
                filled(folder.path(), organization);
                let path = &files(folder.path())[which];
                bad(path);
                let was_missing = !path.exists();
                let store = open(folder.path(), &options()).unwrap();
                assert_eq!(std::fs::read(path).unwrap(), content(), "mended");
                // That the disk damaged something is told, once; a missing file may be all a crash left.
                let damage = store.verify().unwrap().damage;
                let told = damage.iter().any(|d| d.path == *path && d.what.contains("copy is good"));
                assert_eq!((told, damage.len()), (!was_missing, usize::from(!was_missing)), "{damage:?}");
                assert_eq!(store.repair().unwrap().damage, damage);
                all_is_well(&*store);
                drop(store);
                all_is_well(&*open(folder.path(), &options()).unwrap());
            }
        }
    }
}

#[test]
fn a_file_that_cannot_be_mended_keeps_nobody_from_reading() {
    for organization in organizations() {
        let folder = tempfile::tempdir().unwrap();
        filled(folder.path(), organization);
        let path = &files(folder.path())[0];
        WAYS[3](path);
        let store = open(folder.path(), &options()).unwrap();
        assert_eq!(streamed(&*store), (2 * PACKED, 0));
        assert!(store.verify().unwrap().damage.iter().any(|d| d.path == *path));
        assert!(store.repair().is_err(), "a folder is in the way");
        std::fs::remove_dir(path).unwrap();
        store.repair().unwrap();
        all_is_well(&*store);
    }
}

#[test]
fn a_lost_dictionary_costs_the_pages_that_need_it_until_it_comes_back() {
    for organization in organizations() {
        for (first, second) in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 1), (3, 3)] {
            let folder = tempfile::tempdir().unwrap();
            filled(folder.path(), organization);
            let [path, copy] = files(folder.path());
            WAYS[first](&path);
            WAYS[second](&copy);
            let lost = |store: &dyn PageStore| {
                assert!((0..2 * PACKED).all(|n| is_readable(store, n) != needs(n)), "{organization}");
                assert_eq!(streamed(store), (PACKED, PACKED));
                let report = store.verify().unwrap();
                assert_eq!(report.good_records, 2 * PACKED as u64);
                let told = report.damage.iter().find(|d| d.path == path && d.offset == 0).unwrap();
                assert!(told.what.contains(&format!("{PACKED} records need it")), "{told}");
                assert!(report.damage.iter().all(|d| d.path == path || d.path == copy), "{report:?}");
            };
            let store = open(folder.path(), &options()).unwrap();
            lost(&*store);
            // Neither repair nor compaction loses what may be readable again.
            store.repair().unwrap();
            while !store.compact(1 << 30).unwrap().done {}
            lost(&*store);
            store.close().unwrap();
            drop(store);
            let store = open(folder.path(), &options()).unwrap();
            lost(&*store);
            if first == 3 {
                std::fs::remove_dir(&path).unwrap();
                std::fs::remove_dir(&copy).unwrap();
            }
            assert_eq!(store.add_dictionary(&content()).unwrap(), digest());
            all_is_well(&*store);
            drop(store);
            all_is_well(&*open(folder.path(), &options()).unwrap());
        }
    }
}

#[test]
fn without_its_dictionary_a_store_goes_on_with_another() {
    for organization in organizations() {
        let folder = tempfile::tempdir().unwrap();
        filled(folder.path(), organization);
        files(folder.path()).iter().for_each(|path| WAYS[1](path));
        let store = open(folder.path(), &Options { train_dictionary: true, ..options() }).unwrap();
        add(&*store, 100..800);
        let others = store.dictionaries().all();
        assert!(others.len() == 1 && others[0].digest() != digest(), "{others:?}");
        for n in 100..800 {
            let found = store.lookup_url(&url(n)).unwrap().unwrap();
            assert_eq!(found.body(store.dictionaries()).unwrap(), body(n).as_bytes());
        }
        let learned = store.lookup_url(&url(798)).unwrap().unwrap();
        assert_eq!(learned.get().dictionary(), others[0].digest());
        // The pages that are lost to readers can be fetched and added anew.
        let (url, body) = (url(0), body(0));
        let newer = Page { url: &url, body: body.as_bytes(), fetched_at_ms: 5, ..Page::default() };
        assert_eq!(store.add(&[newer]).unwrap().staged(), 1);
        store.commit().unwrap();
        let found = store.lookup_url(&url).unwrap().unwrap();
        assert_eq!(found.body(store.dictionaries()).unwrap(), body.as_bytes());
        // A record that needs the lost one is refused, as one that needs any unknown one is.
        let elsewhere = tempfile::tempdir().unwrap();
        filled(elsewhere.path(), organization);
        let packed = open(elsewhere.path(), &options()).unwrap().lookup(key(2), Trust::Verify).unwrap();
        let refused = store.add_records(&[packed.unwrap()]).unwrap_err();
        assert!(matches!(refused, StorageError::UnknownDictionary { digest: d } if d == digest()));
    }
}

#[test]
fn repair_removes_a_damaged_dictionary_that_no_record_needs() {
    for organization in organizations() {
        let folder = tempfile::tempdir().unwrap();
        filled(folder.path(), organization);
        let store = open(folder.path(), &options()).unwrap();
        let packed: Vec<PageKey> = (0..2 * PACKED).filter(|&n| needs(n)).map(key).collect();
        assert_eq!(store.delete(&packed).unwrap(), PACKED as u64);
        store.commit().unwrap();
        store.drop_generation(1).unwrap();
        store.close().unwrap();
        drop(store);
        files(folder.path()).iter().for_each(|path| WAYS[0](path));
        let store = open(folder.path(), &options()).unwrap();
        let damage = store.repair().unwrap().damage;
        assert!(damage.iter().all(|d| d.what.contains("no record needs it")), "{damage:?}");
        assert_eq!(damage.len(), 2);
        assert!(files(folder.path()).iter().all(|path| !path.exists()));
        assert_eq!(store.verify().unwrap().damage, []);
        assert_eq!(store.keys().unwrap().len(), PACKED);
    }
}

#[test]
fn files_that_go_bad_or_come_back_while_a_store_is_open() {
    for organization in organizations() {
        let folder = tempfile::tempdir().unwrap();
        filled(folder.path(), organization);
        let store = open(folder.path(), &options()).unwrap();
        files(folder.path()).iter().for_each(|path| WAYS[0](path));
        let damage = store.verify().unwrap().damage;
        assert_eq!(damage.iter().map(|d| d.path.clone()).collect::<Vec<_>>(), files(folder.path()));
        assert_eq!(streamed(&*store), (2 * PACKED, 0), "it is in memory");
        store.repair().unwrap();
        all_is_well(&*store);
        drop(store);

        files(folder.path()).iter().for_each(|path| WAYS[1](path));
        let store = open(folder.path(), &options()).unwrap();
        assert_eq!(streamed(&*store), (PACKED, PACKED));
        std::fs::write(&files(folder.path())[1], content()).unwrap();
        assert!(store.verify().unwrap().damage.iter().any(|d| d.what.contains("`repair` takes it")));
        store.repair().unwrap();
        all_is_well(&*store);
    }
}

#[test]
fn adding_a_dictionary_may_be_cut_off_anywhere() {
    for organization in organizations() {
        let disk = created(organization, strong(), &small_options());
        let before = disk.changes();
        open_sim(&disk, &small_options()).unwrap().add_dictionary(&content()).unwrap();
        let named = |name: &String| name.starts_with("dictionary-");
        let mut seen = std::collections::BTreeSet::new();
        for at in before..=disk.changes() {
            for crash in [Crash::InOrder, Crash::Unsynced, Crash::Torn(7)] {
                let cut = disk.crashed(at, disk.change_bytes(at) / 2, crash);
                let store = open_sim(&cut, &small_options()).unwrap();
                assert_eq!(store.verify().unwrap().damage, [], "{organization}, cut at {at}");
                let known = store.dictionaries().get(digest()).is_some();
                seen.insert(known);
                assert_eq!(store.add_dictionary(&content()).unwrap(), digest());
                drop(store);
                assert_eq!(cut.list(dir()).unwrap().iter().filter(|name| named(name)).count(), 2);
                assert!(open_sim(&cut, &small_options()).unwrap().dictionaries().get(digest()).is_some());
            }
        }
        assert_eq!(seen.len(), 2, "there were cuts before and after it was durable");
    }
}
