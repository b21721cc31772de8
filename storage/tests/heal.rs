//! Damaged records get their bytes back from the same records of another store: afterwards nothing is damaged, and
//! generations, cursors and what readers hold are as before, for every organization and wherever the damage is.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{
    Mint, OwnedPage, Random, copy, created, drain, open_sim, organizations, read_state, small_options,
    strong, url,
};
use webbase_storage::disk::{Crash, Disk, OsDisk, SimDisk};
use webbase_storage::{
    Cursor, Options, Organization, PageKey, PageStore, Record, StorageError, StreamSpec, Trust, create_on,
    open_on,
};

type Pages = BTreeMap<PageKey, Vec<u8>>;

fn pages_of(records: Vec<Record>) -> Pages {
    records.iter().map(|r| (r.get().key(), r.bytes().to_vec())).collect()
}

fn generation(store: &dyn PageStore, number: u64, from: Cursor) -> Pages {
    let snapshot = store.generation(number).unwrap().expect("the generation is kept");
    let spec = StreamSpec { from, ..StreamSpec::default() };
    pages_of(drain(&mut *snapshot.stream(&spec).unwrap()).unwrap())
}

/// A store with two generations and more, and what it has to show.
struct Case {
    disk: SimDisk,
    options: Options,
    /// What each state has.
    states: [(Option<u64>, Vec<Record>); 3],
    /// Generation 1, from a cursor in it, generation 2, now.
    shown: [Pages; 4],
    cursor: Cursor,
}

fn read(store: &dyn PageStore, cursor: Cursor) -> [Pages; 4] {
    let now = read_state(store).unwrap().into_iter().map(|(k, e)| (k, e.record.bytes().to_vec())).collect();
    [
        generation(store, 1, Cursor::Start),
        generation(store, 1, cursor),
        generation(store, 2, Cursor::Start),
        now,
    ]
}

fn case(organization: Organization) -> Case {
    let options = Options { cache_bytes: 1 << 20, ..small_options() };
    let disk = created(organization, strong(), &options);
    let store = open_sim(&disk, &options).unwrap();
    let mint = Mint::new(strong(), &options);
    let mut random = Random(5);
    let mut records = Vec::new();
    let mut add = |store: &dyn PageStore, pages: std::ops::Range<u64>, at_ms: u64| {
        for n in pages {
            let len = 40 + random.below(300) as usize;
            let made = mint.make(OwnedPage::new(n, at_ms, random.body(len, false)));
            store.add_records(std::slice::from_ref(&made.record)).unwrap();
            records.push(made.record);
        }
        store.commit().unwrap();
    };
    add(&*store, 0..60, 1);
    store.keep_generation(1).unwrap();
    add(&*store, 20..40, 2);
    if organization == Organization::Log {
        // Marks stand in the catalog; in leaves nothing else has them.
        let keys: Vec<PageKey> = (0..3).map(|n| mint.key(n)).collect();
        store.delete(&keys).unwrap();
        let seen = |n| webbase_storage::Seen { key: mint.key(n), at_ms: 9, lifetime_s: 7 };
        store.seen(&[seen(5), seen(25)]).unwrap();
    }
    store.commit().unwrap();
    store.keep_generation(2).unwrap();
    add(&*store, 50..70, 3);
    let cursor = {
        let snapshot = store.generation(1).unwrap().unwrap();
        let mut stream = snapshot.stream(&StreamSpec::default()).unwrap();
        (0..25).for_each(|_| drop(stream.next().unwrap().unwrap()));
        stream.cursor()
    };
    let shown = read(&*store, cursor);
    let of = |pages: &Pages| {
        records
            .iter()
            .filter(|r| pages.get(&r.get().key()).is_some_and(|b| b[..] == r.bytes()[..]))
            .cloned()
            .collect::<Vec<_>>()
    };
    let states = [(Some(1), of(&shown[0])), (Some(2), of(&shown[2])), (None, of(&shown[3]))];
    assert_eq!([shown[0].len(), shown[1].len()], [60, 35]);
    drop(store);
    Case { disk: disk.settled(), options, states, shown, cursor }
}

impl Case {
    /// Heals everything with what another store would have.
    fn heal(&self, store: &dyn PageStore) -> u64 {
        self.states.iter().map(|(generation, records)| store.heal(*generation, records).unwrap()).sum()
    }

    /// A page of all states.
    fn page(&self) -> &Record {
        let key = strong().page_key(&url(7)).unwrap();
        self.states[0].1.iter().find(|record| record.get().key() == key).unwrap()
    }

    /// Damages a fresh copy of the store while it is open, heals it, and looks at everything, also after a restart.
    fn damage(&self, path: &Path, offsets: std::ops::Range<u64>, mask: u8) -> bool {
        let what = format!("{} {offsets:?}", path.display());
        let disk = self.disk.crashed(0, 0, Crash::InOrder);
        let store = open_sim(&disk, &self.options).unwrap();
        let held = store.generation(1).unwrap().unwrap();
        offsets.clone().for_each(|at| disk.flip(path, at, mask));
        if store.verify().unwrap().damage.is_empty() {
            return false; // nobody's bytes
        }
        self.heal(&*store);
        assert_eq!(store.mend().unwrap().damage, [], "{what}");
        assert!(read(&*store, self.cursor) == self.shown, "{what}");
        assert!(
            pages_of(drain(&mut *held.stream(&StreamSpec::default()).unwrap()).unwrap()) == self.shown[0]
        );
        for (key, bytes) in &self.shown[0] {
            assert!(held.lookup(*key, Trust::Verify).unwrap().unwrap().bytes()[..] == bytes[..], "{what}");
        }
        assert_eq!(self.heal(&*store), 0, "{what}: healed once is enough");
        drop((held, store));
        let store = open_sim(&disk, &self.options).unwrap();
        assert_eq!(store.verify().unwrap().damage, [], "{what}");
        assert!(read(&*store, self.cursor) == self.shown, "{what}");
        true
    }

    fn files(&self) -> Vec<(PathBuf, u64)> {
        let is = |path: &Path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("segment-") || name == "slots"
        };
        self.disk.files().into_iter().filter(|(path, _)| is(path)).collect()
    }
}

#[test]
fn a_flipped_byte_anywhere_is_healed() {
    for organization in organizations() {
        let case = case(organization);
        let mut hits = 0;
        for (path, len) in case.files() {
            for at in (0..len).step_by(61) {
                hits += u32::from(case.damage(&path, at..at + 1, 0x10));
            }
        }
        assert!(hits > 100, "{organization}: {hits} bytes counted");
    }
}

#[test]
fn holes_over_several_records_are_healed() {
    for organization in organizations() {
        let case = case(organization);
        let mut hits = 0;
        for (path, len) in case.files() {
            // Behind the head of a segment, and behind that of a leaf: what stands there stands nowhere else.
            let unit = if organization == Organization::Hash { 4096 } else { 16 << 10 };
            for at in (0..len).step_by(509) {
                let (inside, end) = match organization {
                    Organization::Log => (at >= 4096, records_end(&case.disk, &path)),
                    _ => (at % unit >= 400, (at / unit + 1) * unit),
                };
                if inside && at + 900 < end {
                    hits += u32::from(case.damage(&path, at..at + 900, 0xa5));
                }
            }
        }
        assert!(hits > 10, "{organization}: {hits} holes counted");
    }
}

/// Where the records of a segment end and its catalog begins.
fn records_end(disk: &SimDisk, path: &Path) -> u64 {
    let file = disk.open(path, false).unwrap();
    let len = file.len().unwrap();
    let mut trailer = [0; 64];
    file.read_exact_at(&mut trailer, len - 64).unwrap();
    if trailer[..4] != *b"WBCT" { len } else { u64::from_le_bytes(trailer[32..40].try_into().unwrap()) }
}

#[test]
fn a_failed_or_torn_healing_leaves_damage_and_nothing_else() {
    for organization in organizations() {
        let case = case(organization);
        let disk = case.disk.crashed(0, 0, Crash::InOrder);
        let (path, at) = somewhere(&case);
        disk.flip(&path, at, 4);
        let disk = disk.settled();
        let store = open_sim(&disk, &case.options).unwrap();
        let before = store.verify().unwrap().damage;
        assert!(!before.is_empty(), "{organization}");
        case.heal(&*store);
        let changes = disk.changes();
        drop(store);
        for done in 0..=changes {
            for crash in [Crash::InOrder, Crash::Unsynced, Crash::Torn(done as u64)] {
                let bytes = disk.change_bytes(done);
                for part in [0, bytes / 2] {
                    let store = open_sim(&disk.crashed(done, part, crash), &case.options).unwrap();
                    case.heal(&*store);
                    assert_eq!(store.verify().unwrap().damage, [], "{organization} {done} {crash:?}");
                    assert!(read(&*store, case.cursor) == case.shown, "{organization} {done} {crash:?}");
                }
            }
        }
    }
}

/// The middle of a record that generation 1 has: of its copies, the one that counts.
fn somewhere(case: &Case) -> (PathBuf, u64) {
    let needle = &case.page().bytes()[..];
    for (path, len) in case.files() {
        let content = case.disk.open(&path, false).unwrap().read_vec(len as usize, 0).unwrap();
        for at in (0..content.len()).filter(|at| content[*at..].starts_with(needle)) {
            let middle = (at + needle.len() / 2) as u64;
            let disk = case.disk.crashed(0, 0, Crash::InOrder);
            disk.flip(&path, middle, 4);
            let store = open_sim(&disk, &case.options).unwrap();
            if store.lookup(case.page().get().key(), Trust::Verify).is_err() {
                return (path, middle);
            }
        }
    }
    panic!("the record is nowhere");
}

/// What the disk cannot give back any more is damage: named, kept from nobody else, and gone when it is written anew. Where a
/// lost sector belongs to two records neither can be written alone; the others are healed all the same.
#[test]
fn sectors_that_cannot_be_read_are_healed() {
    let options = Options { segment_bytes: 1 << 20, ..small_options() };
    let disk = created(Organization::Log, strong(), &options);
    let store = open_sim(&disk, &options).unwrap();
    let mint = Mint::new(strong(), &options);
    let mut random = Random(9);
    let records: Vec<Record> =
        (0..30).map(|n| mint.make(OwnedPage::new(n, 1, random.body(3000, false))).record).collect();
    store.add_records(&records).unwrap();
    store.commit().unwrap();
    let place = |record: &Record| {
        for (path, len) in disk.files() {
            let content = disk.open(&path, false).unwrap().read_vec(len as usize, 0).unwrap();
            let found = content.windows(record.bytes().len()).position(|w| *w == record.bytes()[..]);
            if let Some(at) = found {
                return (path, at as u64);
            }
        }
        panic!("the record is nowhere");
    };
    let places: Vec<(PathBuf, u64)> = records.iter().map(place).collect();
    for n in [4, 11] {
        disk.lose_sectors(&places[n].0, places[n].1 + 1500..places[n].1 + 1501);
    }
    disk.lose_sectors(&places[20].0, places[20].1..places[20].1 + 1);
    let key = |n: usize| records[n].get().key();
    let damaged = |store: &dyn PageStore| -> Vec<usize> {
        let is_damage = |n: &usize| match store.lookup(key(*n), Trust::Verify) {
            Ok(Some(found)) => {
                assert!(found.bytes()[..] == records[*n].bytes()[..]);
                false
            }
            Err(StorageError::Corrupt { .. }) => true,
            other => panic!("page {n}: {other:?}"),
        };
        (0..30).filter(is_damage).collect()
    };
    assert_eq!(damaged(&*store), [4, 11, 19, 20]);
    let mut stream = store.stream(&StreamSpec::default()).unwrap();
    let (mut good, mut lost) = (0, Vec::new());
    while let Some(next) = stream.next() {
        match next {
            Ok(_) => good += 1,
            Err(StorageError::Corrupt { .. }) => lost.push(stream.lost().unwrap()),
            Err(e) => panic!("{e}"),
        }
    }
    assert_eq!((good, lost), (26, vec![key(4), key(11), key(19), key(20)]));
    assert_eq!(store.verify().unwrap().damage.iter().filter_map(|d| d.key).count(), 4);
    let failed = store.heal(None, &records).unwrap_err();
    assert!(matches!(failed, StorageError::Io { .. }), "{failed}");
    assert_eq!(damaged(&*store), [19, 20]);
}

/// A store of leaves of several blocks, with visits and with changes behind the sorted records, and what it shows.
fn leaves(organization: Organization) -> (SimDisk, Options, Vec<Record>, Pages) {
    let options = Options { bucket_bytes: 16 << 10, log_bytes: 48 << 10, ..small_options() };
    let disk = created(organization, strong(), &options);
    let store = open_sim(&disk, &options).unwrap();
    let mint = Mint::new(strong(), &options);
    let mut random = Random(21);
    let mut records = Vec::new();
    for pages in [0..50, 50..57, 57..60] {
        let some: Vec<Record> = pages
            .map(|n| mint.make(OwnedPage::new(n, 1, random.body(200 + (n % 9 * 331) as usize, false))).record)
            .collect();
        store.add_records(&some).unwrap();
        if organization == Organization::Hash {
            // In a log a lost mark may have been a deletion: nobody makes that anew.
            let seen = |n| webbase_storage::Seen { key: mint.key(n), at_ms: 9, lifetime_s: 7 };
            store.seen(&[seen(3), seen(30), seen(52)]).unwrap();
        }
        store.commit().unwrap();
        records.extend(some);
    }
    store.keep_generation(1).unwrap();
    let shown = generation(&*store, 1, Cursor::Start);
    assert_eq!(shown.len(), 60);
    drop(store);
    (disk.settled(), options, records, shown)
}

/// What a store of leaves cannot read is damage, too: a page is given out as it was or reported, by whichever door, and
/// never called absent; verify names the place; and the same records of another store heal it, also when the head of a leaf is
/// lost with them.
#[test]
fn leaves_whose_sectors_cannot_be_read_are_healed() {
    for organization in organizations().into_iter().filter(|o| *o != Organization::Log) {
        let (disk, options, records, shown) = leaves(organization);
        let slots = Path::new("/store/slots");
        let (_, len) = disk.files().into_iter().find(|(path, _)| path == slots).unwrap();
        let mut hits = 0;
        for at in (0..len).step_by(1024) {
            let what = format!("{organization}, sector at {at}");
            let disk = copy(&disk);
            let store = open_sim(&disk, &options).unwrap();
            disk.lose_sectors(slots, at..at + 1);
            let damage = store.verify().unwrap().damage;
            if damage.is_empty() {
                continue; // nobody's bytes
            }
            hits += 1;
            let block = at / 4096 * 4096..at / 4096 * 4096 + 4096;
            assert!(damage.iter().all(|d| d.path == slots && d.offset < block.end), "{what}: {damage:?}");
            let held = store.generation(1).unwrap().unwrap();
            let mut lost = 0;
            for (key, bytes) in &shown {
                for found in [
                    store.lookup(*key, Trust::Verify),
                    store.lookup(*key, Trust::Disk),
                    held.lookup(*key, Trust::Disk),
                ] {
                    match found {
                        Ok(Some(found)) => assert!(found.bytes()[..] == bytes[..], "{what}: {key}"),
                        Err(StorageError::Corrupt { .. }) => lost += 1,
                        other => panic!("{what}: {key}: {other:?}"),
                    }
                }
            }
            let mut stream =
                store.stream(&StreamSpec { trust: Trust::Disk, ..StreamSpec::default() }).unwrap();
            let (mut good, mut reported) = (Pages::new(), 0);
            for next in stream.by_ref() {
                match next {
                    Ok(found) => drop(good.insert(found.get().key(), found.bytes().to_vec())),
                    Err(StorageError::Corrupt { .. }) => reported += 1,
                    Err(e) => panic!("{what}: {e}"),
                }
            }
            assert!(good.iter().all(|(key, bytes)| shown[key] == *bytes), "{what}");
            assert!(reported > 0 || (lost == 0 && good.len() == shown.len()), "{what}: {lost} lost");
            if lost > 0 {
                // Nothing is written elsewhere without what cannot be read now, and nothing is lost by trying.
                let moved = store.compact(u64::MAX);
                assert!(matches!(moved, Ok(_) | Err(StorageError::Corrupt { .. })), "{what}: {moved:?}");
            }
            // Half of what is needed is not enough, and harms nothing.
            let (some, _) = records.split_at(records.len() / 2);
            for generation in [Some(1), None] {
                store.heal(generation, some).unwrap();
                store.heal(generation, &records).unwrap();
            }
            assert_eq!(store.mend().unwrap().damage, [], "{what}");
            assert!(generation(&*store, 1, Cursor::Start) == shown, "{what}");
            drop((held, stream, store));
            let store = open_sim(&disk, &options).unwrap();
            assert_eq!(store.verify().unwrap().damage, [], "{what}, after a restart");
            assert!(
                read_state(&*store)
                    .unwrap()
                    .values()
                    .all(|e| shown[&e.record.get().key()] == e.record.bytes()[..])
            );
            assert!(generation(&*store, 1, Cursor::Start) == shown, "{what}, after a restart");
        }
        assert!(hits > 30, "{organization}: {hits} sectors counted");
    }
}

/// A leaf of which a block cannot be read is not written anew without it: what is added to it is refused, what was there is there
/// when the disk has thought better of it, and a repair keeps all that can be read.
#[test]
fn what_cannot_be_read_for_a_while_is_not_lost() {
    let (disk, options, _, shown) = leaves(Organization::Hash);
    let slots = Path::new("/store/slots");
    let (key, bytes) = shown.iter().next().unwrap();
    // Of its copies, the one that counts.
    let file = disk.open(slots, false).unwrap();
    let content = file.read_vec(file.len().unwrap() as usize, 0).unwrap();
    let places = (0..content.len()).filter(|at| content[*at..].starts_with(bytes));
    let (bad, store) = places
        .map(|at| {
            let bad = copy(&disk);
            let store = open_sim(&bad, &options).unwrap();
            bad.lose_sectors(slots, at as u64 + 100..at as u64 + 101);
            (bad, store)
        })
        .find(|(_, store)| store.lookup(*key, Trust::Disk).is_err())
        .unwrap();
    let mint = Mint::new(strong(), &options);
    let again: Vec<Record> = (0..60).map(|n| mint.make(OwnedPage::new(n, 2, "newer")).record).collect();
    store.add_records(&again).unwrap();
    assert!(matches!(store.commit(), Err(StorageError::Corrupt { .. })));
    assert!(matches!(store.lookup(*key, Trust::Disk), Err(StorageError::Corrupt { .. })));
    drop(store);
    // Read another time.
    let better = copy(&bad);
    let store = open_sim(&better, &options).unwrap();
    assert!(generation(&*store, 1, Cursor::Start) == shown);
    assert!(store.lookup(*key, Trust::Verify).unwrap().unwrap().bytes()[..] == bytes[..]);
    drop(store);
    let store = open_sim(&bad, &options).unwrap();
    store.repair().unwrap();
    assert_eq!(store.verify().unwrap().damage, []);
    let kept = read_state(&*store).unwrap();
    assert!(kept.len() >= 50 && !kept.contains_key(key), "{} pages are kept", kept.len());
    assert!(kept.iter().all(|(key, entry)| shown[key] == entry.record.bytes()[..]));
    store.add_records(&again).unwrap();
    store.commit().unwrap();
}

/// What waits in a journal for a leaf that cannot be read goes on waiting, however often the store is opened, and is sorted in when
/// the leaf is healed.
#[test]
fn a_store_opens_whose_journal_waits_for_a_leaf_that_cannot_be_read() {
    for organization in organizations().into_iter().filter(|o| *o != Organization::Log) {
        let (disk, options, records, shown) = leaves(organization);
        let options = Options { buffer_bytes: 1 << 20, ..options };
        let mint = Mint::new(strong(), &options);
        let add = |store: &dyn PageStore, n, at_ms| {
            store.add_records(&[mint.make(OwnedPage::new(n, at_ms, "it waits")).record]).unwrap();
            store.commit().unwrap();
        };
        let store = open_sim(&disk, &options).unwrap();
        add(&*store, 100, 5);
        store.delete(&[mint.key(100)]).unwrap();
        store.commit().unwrap();
        drop(store);
        let slots = Path::new("/store/slots");
        let unit = if organization == Organization::Hash { 16 << 10 } else { 48 << 10 };
        let (_, len) = disk.files().into_iter().find(|(path, _)| path == slots).unwrap();
        (0..len).step_by(unit).for_each(|at| disk.lose_sectors(slots, at..at + 1));
        let journals = || {
            disk.files()
                .iter()
                .filter(|(path, _)| path.to_string_lossy().starts_with("/store/journal-"))
                .count()
        };
        for round in 0..3 {
            let store = open_sim(&disk, &options).unwrap();
            add(&*store, 101 + round, 5);
            if round == 1 {
                add(&*store, 100, 9); // after its deletion
            }
        }
        // To a log it can be appended.
        assert!(organization != Organization::Hash || journals() > 1, "{} journals", journals());
        let store = open_sim(&disk, &options).unwrap();
        store.heal(Some(1), &records).unwrap();
        store.close().unwrap();
        drop(store);
        let store = open_sim(&disk, &options).unwrap();
        assert_eq!((store.verify().unwrap().damage, journals()), (vec![], 0), "{organization}");
        let found = read_state(&*store).unwrap();
        let whole = shown.iter().all(|(key, bytes)| found[key].record.bytes()[..] == bytes[..]);
        assert!(whole && found.len() == shown.len() + 4, "{organization}: {} pages", found.len());
    }
}

/// Two records of one length are gone from a log, behind its sorted records, and nothing is left of them: one of them must not take
/// the place of the other, which would then be missing, and nobody would say so.
#[test]
fn a_record_does_not_take_the_place_of_another_as_long() {
    let options = Options { log_bytes: 48 << 10, ..small_options() };
    let disk = created(Organization::HashedLog, strong(), &options);
    let store = open_sim(&disk, &options).unwrap();
    let mint = Mint::new(strong(), &options);
    let mut random = Random(3);
    let mut records = Vec::new();
    for (n, len) in [(0, 900), (10, 400), (11, 500), (12, 400), (13, 700)] {
        let made = mint.make(OwnedPage::new(n, 1, random.body(len, false)));
        store.add_records(std::slice::from_ref(&made.record)).unwrap();
        store.commit().unwrap();
        records.push(made.record);
    }
    let slots = Path::new("/store/slots");
    let file = disk.open(slots, false).unwrap();
    let content = file.read_vec(file.len().unwrap() as usize, 0).unwrap();
    for lost in [&records[1], &records[3]] {
        let bytes = lost.bytes();
        let at = content.windows(bytes.len()).position(|w| w == &bytes[..]).unwrap() as u64;
        (at..at + bytes.len() as u64).for_each(|at| disk.flip(slots, at, 0xa5));
    }
    drop(store);
    let store = open_sim(&disk, &options).unwrap();
    let key = |n: usize| records[n].get().key();
    for given in [&records[3..4], &records[1..2], &records[2..4]] {
        store.heal(None, given).unwrap();
        for n in [1, 3] {
            match store.lookup(key(n), Trust::Verify) {
                Ok(Some(found)) => assert!(found.bytes()[..] == records[n].bytes()[..]),
                found => assert!(matches!(found, Err(StorageError::Corrupt { .. })), "page {n}: {found:?}"),
            }
        }
    }
}

#[test]
fn only_the_same_record_heals() {
    for organization in organizations() {
        let case = case(organization);
        let disk = case.disk.crashed(0, 0, Crash::InOrder);
        let store = open_sim(&disk, &case.options).unwrap();
        let (path, at) = somewhere(&case);
        disk.flip(&path, at, 4);
        let key = case.page().get().key();
        assert!(store.lookup(key, Trust::Verify).is_err());
        // Another version of the page, of the same length.
        let mint = Mint::new(strong(), &case.options);
        let len = case.shown[0][&key].len();
        let body = |bytes: usize| Random(8).body(bytes, false);
        let short = mint.make(OwnedPage::new(7, 77, body(10))).record.bytes().len();
        let other = mint.make(OwnedPage::new(7, 77, body(10 + len - short))).record;
        assert_eq!(other.bytes().len(), len);
        assert_eq!(store.heal(None, &[other]).unwrap(), 0, "{organization}");
        assert!(store.lookup(key, Trust::Verify).is_err(), "{organization}");
        assert_eq!(store.heal(None, std::slice::from_ref(case.page())).unwrap(), 1, "{organization}");
        assert!(store.lookup(key, Trust::Verify).unwrap().is_some(), "{organization}");
    }
}

#[test]
fn a_real_file_is_healed_under_maps_and_caches() {
    for organization in organizations() {
        for disk in [OsDisk::new(), OsDisk::plain()] {
            let folder = tempfile::tempdir().unwrap();
            let disk: Arc<dyn Disk> = Arc::new(disk);
            let options = Options { segment_bytes: 1 << 20, cache_bytes: 1 << 20, ..small_options() };
            create_on(&disk, folder.path(), organization, strong(), &options).unwrap();
            let store = open_on(&disk, folder.path(), &options).unwrap();
            let pages: Vec<OwnedPage> =
                (0..50).map(|n| OwnedPage::new(n, 1, format!("needle {n:04} {n:04}"))).collect();
            let list: Vec<_> = pages.iter().map(OwnedPage::page).collect();
            store.add(&list).unwrap();
            store.commit().unwrap();
            store.keep_generation(1).unwrap();
            let good = drain(&mut *store.stream(&StreamSpec::default()).unwrap()).unwrap();
            let good: Vec<Record> =
                good.iter().map(|r| Record::new(r.bytes().to_vec().into()).unwrap()).collect();
            let truth = generation(&*store, 1, Cursor::Start);
            let snapshot = store.generation(1).unwrap().unwrap();
            for n in [3, 7, 8, 49] {
                let (path, offset) = find(folder.path(), format!("needle {n:04}").as_bytes());
                let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
                std::os::unix::fs::FileExt::write_all_at(&file, b"hay", offset as u64).unwrap();
            }
            let mut stream = snapshot.stream(&StreamSpec::default()).unwrap();
            let mut lost = Vec::new();
            while let Some(record) = stream.next() {
                if record.is_err() {
                    lost.push(stream.lost().expect("its header still names the page"));
                }
            }
            let mut expected: Vec<PageKey> =
                [3, 7, 8, 49].iter().map(|n| strong().page_key(&url(*n)).unwrap()).collect();
            expected.sort_unstable();
            lost.sort_unstable();
            assert_eq!(lost, expected, "{organization}");
            assert_eq!(store.heal(Some(1), &good).unwrap(), 4, "{organization}");
            assert_eq!(store.verify().unwrap().damage, []);
            assert!(
                pages_of(drain(&mut *snapshot.stream(&StreamSpec::default()).unwrap()).unwrap()) == truth
            );
            for (key, bytes) in &truth {
                assert!(snapshot.lookup(*key, Trust::Verify).unwrap().unwrap().bytes()[..] == bytes[..]);
                assert!(store.lookup(*key, Trust::Disk).unwrap().unwrap().bytes()[..] == bytes[..]);
            }
        }
    }
}

/// The file of a folder that contains `needle`, and where.
fn find(folder: &Path, needle: &[u8]) -> (PathBuf, usize) {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let place = |path: PathBuf| {
        let bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(needle.len()).position(|w| w == needle)?;
        Some((path, at))
    };
    files.filter_map(place).next().expect("the needle is in some file")
}
