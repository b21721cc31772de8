//! Damaged records get their bytes back from the same records of another store: afterwards nothing is damaged, and
//! generations, cursors and what readers hold are as before, for every organization and wherever the damage is.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{
    Mint, OwnedPage, Random, created, drain, open_sim, organizations, read_state, small_options, strong, url,
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
