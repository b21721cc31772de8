//! The index beside a plain map: random assignments, finds and reopenings; crashes at every change and every byte of the
//! journal; every byte flipped.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use webbase_storage::disk::{Crash, SimDisk};
use webbase_storage::{PageId, PageKey};

use super::PageIndex;
use crate::ServerError;

const DIR: &str = "/index";
const REPOSITORY: u64 = 77;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A key; of a few thousand, some share their ids.
    fn key(&mut self, of: u64) -> PageKey {
        let n = self.next() % of;
        PageKey { id: PageId(Random(n / 3).next()), tie: Random(n).next() }
    }
}

fn open(disk: &SimDisk, recent_max: usize) -> Result<PageIndex, ServerError> {
    PageIndex::open_with(Arc::new(disk.clone()), Path::new(DIR), REPOSITORY, true, recent_max)
}

fn merge(index: &PageIndex) -> bool {
    index.merge(&AtomicBool::new(false)).unwrap()
}

type Map = BTreeMap<PageKey, u16>;

/// Assigns some keys, as the map says or anew, and commits.
fn assign(index: &PageIndex, map: &mut Map, random: &mut Random, of: u64) {
    let keys: Vec<PageKey> = (0..random.next() % 20).map(|_| random.key(of)).collect();
    let mut next = random.next() as u16;
    let ranges = index
        .assign(&keys, || {
            next = next.wrapping_add(1);
            (!next.is_multiple_of(10)).then_some(next)
        })
        .unwrap();
    index.commit().unwrap();
    for (key, range) in keys.iter().zip(ranges) {
        match (map.get(key), range) {
            (Some(known), range) => assert_eq!(range, Some(*known), "{key} has another range now"),
            (None, Some(range)) => _ = map.insert(*key, range),
            (None, None) => {}
        }
    }
}

fn check(index: &PageIndex, map: &Map, random: &mut Random, of: u64) {
    let keys: Vec<PageKey> = (0..50).map(|_| random.key(of)).collect();
    let expected: Vec<Option<u16>> = keys.iter().map(|key| map.get(key).copied()).collect();
    assert_eq!(index.find(&keys).unwrap(), expected);
    for key in keys.iter().take(5) {
        let same: Vec<(PageKey, u16)> =
            map.iter().filter(|(k, _)| k.id == key.id).map(|(k, r)| (*k, *r)).collect();
        assert_eq!(index.find_id(key.id).unwrap(), same);
    }
}

#[test]
fn it_agrees_with_a_map() {
    for seed in 0..40 {
        let (disk, mut random, mut map) = (SimDisk::new(), Random(seed), Map::new());
        disk.set_short_reads(seed % 2 == 1);
        let recent_max = 20 + seed as usize * 20;
        let mut index = open(&disk, recent_max).unwrap();
        for _ in 0..400 {
            match random.next() % 20 {
                0 => index = open(&disk, recent_max).unwrap(),
                1 => _ = merge(&index),
                2..4 => check(&index, &map, &mut random, 4000),
                _ => assign(&index, &mut map, &mut random, 4000),
            }
        }
        while merge(&index) {}
        let all: Vec<PageKey> = map.keys().copied().collect();
        let found: Vec<u16> = index.find(&all).unwrap().into_iter().map(Option::unwrap).collect();
        assert!(found.iter().eq(map.values()), "seed {seed}");
        assert_eq!(index.status().pages, map.len() as u64);
        assert!(index.is_complete());
    }
}

/// What a workload has told anybody, and after how many changes of the disk.
fn workload(disk: &SimDisk, seed: u64) -> Vec<(usize, Map)> {
    let (mut random, mut map) = (Random(seed), Map::new());
    let index = open(disk, 60).unwrap();
    let mut told = vec![(disk.changes(), map.clone())];
    for step in 0..60 {
        assign(&index, &mut map, &mut random, 2000);
        told.push((disk.changes(), map.clone()));
        if step % 5 == 4 {
            while merge(&index) {}
        }
    }
    told
}

/// All that was told is there; what is there beyond that was on its way. With `on` it can also go on from there.
fn check_after(found: &SimDisk, told: &Map, later: &Map, on: bool, what: &str) -> bool {
    let index = open(found, 60).unwrap_or_else(|e| panic!("{what}: {e}"));
    if !index.is_complete() {
        return false;
    }
    let keys: Vec<PageKey> = later.keys().copied().collect();
    for (key, range) in keys.iter().zip(index.find(&keys).unwrap()) {
        match told.get(key) {
            Some(_) => assert_eq!(range, told.get(key).copied(), "{what}"),
            None => assert!(range.is_none() || range == later.get(key).copied(), "{what}"),
        }
    }
    if !on {
        return true;
    }
    let mut map: Map =
        keys.iter().zip(index.find(&keys).unwrap()).filter_map(|(k, r)| Some((*k, r?))).collect();
    let mut random = Random(99);
    for _ in 0..10 {
        assign(&index, &mut map, &mut random, 2000);
    }
    while merge(&index) {}
    true
}

#[test]
fn a_crash_at_any_change_loses_nothing_that_was_told() {
    let disk = SimDisk::new();
    let told = workload(&disk, 5);
    let (mut torn, mut anew) = (0, 0);
    for at in 0..=disk.changes() {
        let before = told.iter().rev().find(|(changes, _)| *changes <= at).map(|(_, map)| map.clone());
        let after = told.iter().find(|(changes, _)| *changes > at).map(|(_, map)| map.clone());
        let before = before.unwrap_or_default();
        let after = after.unwrap_or_else(|| before.clone());
        for crash in [Crash::InOrder, Crash::Unsynced] {
            let found = disk.crashed(at, 0, crash);
            assert!(
                check_after(&found, &before, &after, true, &format!("{crash:?} at {at}")),
                "{crash:?} at {at}"
            );
        }
        for seed in 0..3 {
            // A sector missing in the middle of the last frame looks like damage: then it is made anew, which is safe.
            let found = disk.crashed(at, 0, Crash::Torn(seed));
            anew += u32::from(!check_after(&found, &before, &after, true, &format!("torn {seed} at {at}")));
            torn += 1;
        }
    }
    assert!(anew < torn / 4, "{anew} of {torn}");
}

#[test]
fn a_write_cut_at_any_byte_loses_nothing_that_was_told() {
    let disk = SimDisk::new();
    let told = workload(&disk, 6);
    for at in 0..disk.changes() {
        let before = told.iter().rev().find(|(changes, _)| *changes <= at).map(|(_, map)| map.clone());
        let before = before.unwrap_or_default();
        let last = &told.last().unwrap().1;
        let step = if disk.change_bytes(at) > 1000 { 397 } else { 1 };
        for bytes in (1..disk.change_bytes(at)).step_by(step) {
            let found = disk.crashed(at, bytes, Crash::InOrder);
            let what = format!("change {at} cut at {bytes}");
            let after = told.iter().find(|(changes, _)| *changes > at).map_or(last, |(_, map)| map);
            assert!(check_after(&found, &before, after, bytes % 16 == 1, &what), "{what}");
        }
    }
}

#[test]
fn a_flipped_byte_is_noticed_or_does_not_matter() {
    let disk = SimDisk::new();
    let told = workload(&disk, 7);
    let map = &told.last().unwrap().1;
    let keys: Vec<PageKey> = map.keys().copied().collect();
    let history = disk.changes();
    let (mut noticed, mut harmless) = (0, 0);
    for (path, len) in disk.files() {
        for offset in (0..len).step_by(if len > 4096 { 61 } else { 7 }) {
            let found = disk.crashed(history, 0, Crash::InOrder);
            found.flip(&path, offset, 0x10);
            let index = open(&found, 60).unwrap();
            if !index.is_complete() {
                noticed += 1;
                continue;
            }
            match index.find(&keys) {
                Err(ServerError::Damaged { .. }) => noticed += 1,
                Err(e) => panic!("{e}"),
                Ok(ranges) => {
                    assert!(ranges.into_iter().map(Option::unwrap).eq(map.values().copied()));
                    harmless += 1;
                }
            }
        }
    }
    assert!(noticed > 10 * harmless, "{noticed} noticed, {harmless} harmless");
}

#[test]
fn a_failed_write_is_told_and_nothing_goes_on_from_it() {
    for n in 0..200 {
        let disk = SimDisk::new();
        let index = open(&disk, 10).unwrap();
        let (mut random, mut told) = (Random(n), Map::new());
        disk.fail_call(n, true);
        let mut failed = false;
        for _ in 0..10 {
            let keys: Vec<PageKey> = (0..5).map(|_| random.key(1000)).collect();
            match index.assign(&keys, || Some(3)).and_then(|ranges| index.commit().map(|()| ranges)) {
                Ok(ranges) => {
                    assert!(!failed, "it went on");
                    told.extend(keys.iter().copied().zip(ranges.into_iter().flatten()));
                }
                Err(_) => failed = true,
            }
        }
        disk.heal();
        let index = open(&disk, 10).unwrap();
        let keys: Vec<PageKey> = told.keys().copied().collect();
        assert!(index.is_complete());
        assert!(index.find(&keys).unwrap().into_iter().map(Option::unwrap).eq(told.values().copied()));
    }
}

#[test]
fn made_anew_it_is_complete_only_when_that_is_said() {
    let disk = SimDisk::new();
    let told = workload(&disk, 8);
    let map = &told.last().unwrap().1;
    let pages: Vec<(PageKey, u16)> = map.iter().map(|(k, r)| (*k, *r)).collect();
    let index = open(&disk, 60).unwrap();
    index.begin_anew(0).unwrap();
    assert!(!index.is_complete());
    assert_eq!(index.status().pages, 0);
    assert_eq!(index.take(&pages[..100]).unwrap(), 0);
    drop(index);
    let index = open(&disk, 60).unwrap();
    assert!(!index.is_complete());
    for some in pages.chunks(33) {
        assert_eq!(index.take(some).unwrap(), 0);
    }
    assert_eq!(index.take(&[(pages[0].0, pages[0].1 ^ 1)]).unwrap(), 1);
    index.complete(1).unwrap();
    assert!(!index.is_complete(), "another life's lists");
    index.complete(0).unwrap();
    drop(index);
    let index = open(&disk, 60).unwrap();
    assert!(index.is_complete());
    let keys: Vec<PageKey> = map.keys().copied().collect();
    assert!(index.find(&keys).unwrap().into_iter().map(Option::unwrap).eq(map.values().copied()));
    assert_eq!(index.status().pages, map.len() as u64);
}

#[test]
fn another_repositorys_index_does_not_count() {
    let disk = SimDisk::new();
    workload(&disk, 9);
    let other = PageIndex::open_with(Arc::new(disk), Path::new(DIR), REPOSITORY + 1, false, 60).unwrap();
    assert!(!other.is_complete());
    assert_eq!(other.status().pages, 0);
}

/// The numbers of `ARCHITECTURE.md`: bytes on disk for a page, memory, and blocks read for a find.
#[test]
fn a_page_takes_18_bytes_on_disk_and_memory_is_bounded() {
    let disk = SimDisk::new();
    let index = open(&disk, 20_000).unwrap();
    let mut random = Random(1);
    let pages = 400_000_u64;
    for _ in 0..pages / 10_000 {
        let some: Vec<PageKey> =
            (0..10_000).map(|_| PageKey { id: PageId(random.next()), tie: random.next() }).collect();
        index.assign(&some, || Some(1)).unwrap();
        index.commit().unwrap();
        while merge(&index) {}
    }
    let status = index.status();
    let calls = disk.calls();
    let absent: Vec<PageKey> =
        (0..1000).map(|_| PageKey { id: PageId(random.next()), tie: random.next() }).collect();
    assert!(index.find(&absent).unwrap().iter().all(Option::is_none));
    let runs = index.view.read().runs.len() as u64;
    let reads = (disk.calls() - calls) as f64 / 1000.0;
    println!("{status:?}: {runs} runs, {reads} reads for a find of nothing");
    assert_eq!(status.pages, pages);
    assert!((18 * pages..18 * pages + pages / 4).contains(&status.disk_bytes), "{status:?}");
    assert!(status.memory_bytes <= 20_000 * super::RECENT_BYTES);
    assert!(reads <= 2.5 * runs as f64, "{reads} reads in {runs} runs");
}
