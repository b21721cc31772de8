//! Proves that the cache of a log changes nothing but the time a lookup takes: it serves what is stored and alive, stays
//! within its budget, and leaves scans and `verify` alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod common;

use common::{Mint, OwnedPage, Random, created, dir, drain, open_sim, small_options, strong};
use webbase_storage::{Compression, Options, Organization, PageKey, PageStore, StreamSpec, Trust};

const PAGES: u64 = 40;

fn options(compression: Compression) -> Options {
    Options { compression, cache_bytes: 4 << 20, ..small_options() }
}

fn page(n: u64, at_ms: u64) -> OwnedPage {
    OwnedPage::new(n, at_ms, Random(n + 1000 * at_ms).body(1500 + 20 * n as usize, true))
}

fn fill(store: &dyn PageStore, at_ms: u64) {
    let pages: Vec<OwnedPage> = (0..PAGES).map(|n| page(n, at_ms)).collect();
    store.add(&pages.iter().map(OwnedPage::page).collect::<Vec<_>>()).unwrap();
    store.commit().unwrap();
}

fn body(store: &dyn PageStore, key: PageKey) -> Option<Vec<u8>> {
    let plain = store.lookup(key, Trust::Verify).unwrap();
    let unpacked = store.lookup_unpacked(key, Trust::Verify).unwrap();
    assert_eq!(plain.as_ref().map(|r| r.bytes()), unpacked.as_ref().map(|r| r.bytes()), "stored bytes stay");
    unpacked.map(|r| r.body(store.dictionaries()).unwrap().to_vec())
}

#[test]
fn a_second_lookup_reads_nothing_and_finds_the_same() {
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd(1)] {
        let options = options(compression);
        let mint = Mint::new(strong(), &options);
        let disk = created(Organization::Log, strong(), &options);
        let store = open_sim(&disk, &options).unwrap();
        fill(&*store, 5);
        let keys: Vec<PageKey> = (0..PAGES).map(|n| mint.key(n)).collect();
        let first: Vec<_> = keys.iter().map(|&key| body(&*store, key).unwrap()).collect();
        let calls = disk.calls();
        for (n, key) in keys.iter().enumerate() {
            assert_eq!(body(&*store, *key).as_ref(), Some(&first[n]));
            assert_eq!(first[n], page(n as u64, 5).body);
        }
        assert!(store.lookup_many(&keys).iter().all(|r| r.as_ref().unwrap().is_some()));
        assert_eq!(disk.calls(), calls, "{compression:?}: the second time the disk is not asked");
    }
}

#[test]
fn what_many_lookups_read_is_kept_too() {
    let options = options(Compression::None);
    let mint = Mint::new(strong(), &options);
    let disk = created(Organization::Log, strong(), &options);
    let store = open_sim(&disk, &options).unwrap();
    fill(&*store, 5);
    let keys: Vec<PageKey> = (0..PAGES).map(|n| mint.key(n)).collect();
    assert!(store.lookup_many(&keys).iter().all(|r| r.as_ref().unwrap().is_some()));
    let calls = disk.calls();
    keys.iter()
        .enumerate()
        .for_each(|(n, &key)| assert_eq!(body(&*store, key).unwrap(), page(n as u64, 5).body));
    assert_eq!(disk.calls(), calls);
}

#[test]
fn what_is_superseded_or_deleted_is_not_served() {
    for compression in [Compression::None, Compression::Zstd(1)] {
        let options = options(compression);
        let mint = Mint::new(strong(), &options);
        let disk = created(Organization::Log, strong(), &options);
        let store = open_sim(&disk, &options).unwrap();
        fill(&*store, 5);
        let all_are = |at_ms: u64| {
            for n in 0..PAGES {
                assert_eq!(body(&*store, mint.key(n)).unwrap(), page(n, at_ms).body, "page {n} of {at_ms}");
            }
        };
        all_are(5);
        fill(&*store, 6);
        all_are(6);
        while !store.compact(1 << 30).unwrap().done {}
        all_are(6);
        let half: Vec<PageKey> = (0..PAGES / 2).map(|n| mint.key(n)).collect();
        store.delete(&half).unwrap();
        store.commit().unwrap();
        for compacted in [false, true] {
            assert!(half.iter().all(|&key| body(&*store, key).is_none()), "compacted: {compacted}");
            assert!(store.lookup_many(&half).iter().all(|r| r.as_ref().unwrap().is_none()));
            while !store.compact(1 << 30).unwrap().done {}
        }
        (PAGES / 2..PAGES).for_each(|n| assert_eq!(body(&*store, mint.key(n)).unwrap(), page(n, 6).body));
    }
}

#[test]
fn verify_reads_the_disk_and_repair_ends_what_the_cache_knew() {
    let options = options(Compression::None);
    let mint = Mint::new(strong(), &options);
    let disk = created(Organization::Log, strong(), &options);
    let store = open_sim(&disk, &options).unwrap();
    fill(&*store, 5);
    let key = mint.key(7);
    assert_eq!(body(&*store, key).unwrap(), page(7, 5).body);
    // Its body, wherever it lies.
    let wanted = page(7, 5).body;
    let (path, offset) = disk
        .files()
        .into_iter()
        .filter(|(path, _)| path.to_string_lossy().contains("segment-"))
        .find_map(|(path, len)| {
            let file = common::shared(&disk).open(&path, false).unwrap();
            let mut bytes = vec![0; len as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            let at = bytes.windows(wanted.len()).position(|w| w == wanted)?;
            Some((path, at as u64))
        })
        .expect("the page is in a segment");
    assert!(path.starts_with(dir()));
    disk.flip(&path, offset + 5, 0x10);
    assert_eq!(body(&*store, key).unwrap(), page(7, 5).body, "what was verified is still good");
    let damage = store.verify().unwrap().damage;
    assert!(damage.iter().any(|d| d.key == Some(key)), "verify finds it: {damage:?}");
    store.repair().unwrap();
    assert_eq!(body(&*store, key), None, "what repair dropped is not served");
    assert!(store.lookup_many(&[key])[0].as_ref().unwrap().is_none());
    assert!(store.verify().unwrap().damage.is_empty());
    (0..PAGES)
        .filter(|&n| n != 7)
        .for_each(|n| assert_eq!(body(&*store, mint.key(n)).unwrap(), page(n, 5).body));
}

#[test]
fn a_damaged_record_does_not_enter() {
    let options = options(Compression::None);
    let disk = created(Organization::Log, strong(), &options);
    let store = open_sim(&disk, &options).unwrap();
    let one = page(1, 5);
    store.add(&[one.page()]).unwrap();
    store.commit().unwrap();
    let key = store.keys().unwrap()[0];
    let segment = disk.files().into_iter().find(|(p, _)| p.to_string_lossy().contains("segment-")).unwrap().0;
    disk.flip(&segment, 4096 + 500, 1);
    for _ in 0..3 {
        assert!(store.lookup(key, Trust::Verify).is_err());
        assert!(store.lookup_many(&[key])[0].is_err());
    }
    assert_eq!(store.stats().cache_bytes, 0);
}

#[test]
fn the_budget_holds_and_streams_do_not_enter() {
    for compression in [Compression::None, Compression::Zstd(1)] {
        let options = Options { cache_bytes: 30_000, ..options(compression) };
        let mint = Mint::new(strong(), &options);
        let disk = created(Organization::Log, strong(), &options);
        let store = open_sim(&disk, &options).unwrap();
        fill(&*store, 5);
        drain(&mut *store.stream(&StreamSpec::default()).unwrap()).unwrap();
        store.verify().unwrap();
        assert_eq!(store.stats().cache_bytes, 0, "nothing was looked up");
        for n in (0..4 * PAGES).map(|n| n * 7 % PAGES) {
            assert_eq!(body(&*store, mint.key(n)).unwrap(), page(n, 5).body);
            let cached = store.stats().cache_bytes;
            assert!((1..=30_000).contains(&cached), "{cached} bytes cached");
        }
    }
    let none = Options { cache_bytes: 0, ..options(Compression::None) };
    let store = open_sim(&created(Organization::Log, strong(), &none), &none).unwrap();
    fill(&*store, 5);
    assert_eq!(body(&*store, store.keys().unwrap()[0]).map(|b| b.is_empty()), Some(false));
    assert_eq!(store.stats().cache_bytes, 0);
}
