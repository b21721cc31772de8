//! Proves that a flipped byte costs at most the page it hits.
//!
//! Bytes of every file are flipped, one at a time, in stores that are closed, dropped or open: that may cost the one page
//! whose record was hit, which must be reported, and nothing else; and a repair leaves no damage. Dictionaries that are
//! lost altogether are in `lost_dictionary.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod common;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{
    Check, History, Mint, Model, OwnedPage, State, Step, accepts, copy, created, dir, ensure, open_sim,
    organizations, read_state, run_step, say, small_options, strong, workload,
};
use webbase_storage::disk::{Disk, OsDisk, SimDisk};
use webbase_storage::{
    Compression, Damage, Dictionary, Options, Organization, PageKey, PageStore, Record, StorageError,
    StreamSpec, Trust, create_on, open_on, pack_page,
};

/// A dictionary, and what needs it.
fn dictionary() -> Dictionary {
    Dictionary::new(b"<p>page store of records</p>\n<b>".repeat(11), 1)
}

/// The workload, and then some pages that are packed with the dictionary.
fn steps() -> Vec<Step> {
    let mut steps = workload(&Mint::new(strong(), &small_options()), 6, 300);
    let mut records: Vec<Record> = (100..103)
        .map(|n| {
            let page = OwnedPage::new(n, n, format!("{n} {}", "<p>page store of records</p>".repeat(4)));
            pack_page(&strong(), &page.page(), Compression::Zstd(1), Some(&dictionary())).unwrap()
        })
        .collect();
    assert!(records.iter().all(|record| record.get().dictionary() == dictionary().digest()));
    records.sort_by_key(|record| record.get().key());
    steps.extend([Step::Merge(records), Step::Commit]);
    steps
}

/// A store after these steps, closed or just dropped, and what it shows.
fn filled(organization: Organization, steps: &[Step], closed: bool) -> (SimDisk, Model) {
    let options = small_options();
    let disk = created(organization, strong(), &options);
    let store = open_sim(&disk, &options).unwrap();
    store.add_dictionary(dictionary().content()).unwrap();
    let mut model = Model::default();
    for step in steps {
        run_step(&*store, &mut model, step).unwrap_or_else(|e| panic!("{organization}: {e}"));
    }
    if closed {
        store.close().unwrap();
    }
    drop(store);
    (disk.settled(), model)
}

/// Every version of every page that was ever acknowledged or staged.
fn ever(steps: &[Step]) -> BTreeMap<PageKey, Vec<Vec<u8>>> {
    let mut all: BTreeMap<PageKey, Vec<Vec<u8>>> = BTreeMap::new();
    for step in steps {
        let records: Vec<_> = match step {
            Step::Add(pages) => pages.iter().map(|made| made.record.clone()).collect(),
            Step::Merge(records) => records.clone(),
            _ => Vec::new(),
        };
        records.iter().for_each(|r| all.entry(r.get().key()).or_default().push(r.bytes().to_vec()));
    }
    all
}

fn content(disk: &SimDisk, path: &Path) -> Vec<u8> {
    let file = disk.open(path, false).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// A store with damage somewhere, and what it should show.
struct Damaged<'a> {
    store: &'a dyn PageStore,
    model: &'a Model,
    ever: &'a BTreeMap<PageKey, Vec<Vec<u8>>>,
}

impl Damaged<'_> {
    /// Looks everything up and streams it: the pages that are not as they should be. What is returned at all must be a
    /// version that once was added.
    fn lost(&self) -> Check<Vec<PageKey>> {
        let mut streamed = BTreeMap::new();
        let stream = self.store.stream(&StreamSpec::default()).map_err(say("stream"))?;
        let mut errors = 0;
        for record in stream {
            match record {
                Ok(record) => {
                    let twice = streamed.insert(record.get().key(), record);
                    ensure(twice.is_none(), || format!("streamed twice: {twice:?}"))?;
                }
                Err(StorageError::Corrupt { path, .. }) if path.starts_with(dir()) => errors += 1,
                Err(e) => return Err(format!("stream: {e}")),
            }
        }
        ensure(errors <= 1, || format!("one byte makes {errors} errors in a stream"))?;
        let mut lost = Vec::new();
        for (key, versions) in self.ever {
            let expected = self.model.visible.get(key).map(|e| e.record.bytes());
            let looked_up = match self.store.lookup(*key, Trust::Verify) {
                Ok(found) => Some(found),
                Err(StorageError::Corrupt { path, .. }) if path.starts_with(dir()) => None,
                Err(e) => return Err(format!("lookup of {key}: {e}")),
            };
            for found in [streamed.remove(key), looked_up.clone().flatten()].into_iter().flatten() {
                let known = versions.iter().any(|v| v == found.bytes());
                ensure(known, || format!("{found:?} was never added"))?;
                if Some(found.bytes()) != expected {
                    lost.push(*key); // an older version came back: only where the newer one's record was hit
                }
            }
            // Of a page that is not there a damaged store may say that it cannot tell.
            if expected.is_some() && looked_up.flatten().is_none() {
                lost.push(*key);
            }
        }
        ensure(streamed.is_empty(), || format!("streamed and never added: {streamed:?}"))?;
        lost.dedup();
        Ok(lost)
    }
}

/// Flips a byte of a store that is closed, dropped or open, and checks everything that must hold then.
fn flipped(
    original: &SimDisk,
    model: &Model,
    ever: &BTreeMap<PageKey, Vec<Vec<u8>>>,
    flip: Flip<'_>,
) -> Check {
    let options = small_options();
    let disk = copy(original);
    let opened = flip.while_open.then(|| open_sim(&disk, &options).unwrap());
    disk.flip(flip.path, flip.offset, flip.mask);
    let store = match opened {
        Some(store) => store,
        None => open_sim(&disk, &options).map_err(say("open"))?,
    };
    let lost = Damaged { store: &*store, model, ever }.lost()?;
    let verified = store.verify().map_err(say("verify"))?;
    let named = |d: &Damage| d.path == flip.path && d.offset <= flip.offset.max(1) && !d.what.is_empty();
    ensure(lost.len() <= 1, || format!("one byte costs {lost:?}"))?;
    let must_be_said = !lost.is_empty() || flip.in_record;
    ensure(!must_be_said || verified.damage.iter().any(named), || {
        format!("not reported: {:?}", verified.damage)
    })?;
    if lost.is_empty() && verified.damage.is_empty() {
        let due = store.due(u64::MAX, usize::MAX).map_err(say("due"))?;
        ensure(due == model.due(u64::MAX, usize::MAX), || {
            format!("deadlines are lost, not reported: {due:?}")
        })?;
    }
    let dropped = store.repair().map_err(say("repair"))?;
    ensure(dropped.damage == verified.damage, || {
        format!("repair drops {:?}, not {:?}", dropped.damage, verified.damage)
    })?;
    still_good(&*store, model, &lost).map_err(|e| format!("repaired: {e}"))?;
    let name = flip.path.file_name().unwrap_or_default().to_string_lossy();
    let copied = name.starts_with("STORE") || name.starts_with("dictionary-");
    let mended = !copied || content(&disk, flip.path) == content(original, flip.path);
    ensure(mended, || "still damaged after repair, so that the next flip may cost the whole store".into())?;
    drop(store);
    let store = open_sim(&disk, &options).map_err(say("open after repair"))?;
    still_good(&*store, model, &lost).map_err(|e| format!("repaired and opened again: {e}"))
}

/// Whether a repaired store has no damage, and all pages but the lost ones.
fn still_good(store: &dyn PageStore, model: &Model, lost: &[PageKey]) -> Check {
    let verified = store.verify().map_err(say("verify"))?;
    ensure(verified.damage.is_empty(), || format!("verify still finds {:?}", verified.damage))?;
    let without = |state: &State| -> State {
        let kept = state.iter().filter(|(key, _)| !lost.contains(key));
        kept.map(|(key, entry)| (*key, common::Entry { deadline_ms: None, ..entry.clone() })).collect()
    };
    accepts(&without(&model.visible), &History::new(), &without(&read_state(store)?))
}

/// The bytes of the record at `at`, if it is one that a reader can get and there is no other copy of it.
fn shown_at(bytes: &[u8], at: usize, model: &Model, disk: &SimDisk) -> Option<Range<usize>> {
    let place = at..at + webbase_storage::record_len(&bytes[at..]).ok()? as usize;
    let found = bytes.get(place.clone())?;
    model.visible.values().find(|entry| entry.record.bytes() == found)?;
    let copies = |(path, _): &(PathBuf, u64)| count(&content(disk, path), found);
    (disk.files().iter().map(copies).sum::<usize>() == 1).then_some(place)
}

/// How often `needle` is in `bytes`.
fn count(bytes: &[u8], needle: &[u8]) -> usize {
    bytes.windows(needle.len()).filter(|window| *window == needle).count()
}

struct Flip<'a> {
    path: &'a Path,
    offset: u64,
    mask: u8,
    while_open: bool,
    /// Whether the byte is part of the only copy of a record that can be looked up.
    in_record: bool,
}

#[test]
fn a_flipped_byte_costs_at_most_the_page_it_hits() {
    for organization in organizations() {
        let steps = steps();
        let ever = ever(&steps);
        let mut failures: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (closed, while_open) in [(true, false), (false, false), (true, true)] {
            let (disk, model) = filled(organization, &steps, closed);
            for (path, len) in disk.files() {
                let bytes = content(&disk, &path);
                let records: Vec<usize> =
                    (0..bytes.len()).filter(|&at| bytes[at..].starts_with(b"WBR1")).collect();
                let living: Vec<Range<usize>> =
                    records.iter().filter_map(|&at| shown_at(&bytes, at, &model, &disk)).collect();
                for offset in 0..len as usize {
                    let header = records.iter().any(|&at| (at..at + 80).contains(&offset));
                    let around = &bytes[offset.saturating_sub(8)..(offset + 8).min(bytes.len())];
                    let every = match (around.iter().all(|&b| b == 0), header) {
                        _ if len < 300 => 1,
                        (true, _) => 197, // padding
                        (_, true) => 5,
                        (_, false) => 13,
                    };
                    if offset % every != 0 {
                        continue;
                    }
                    let in_record = living.iter().any(|r| r.contains(&offset));
                    let mask = 1 << (offset % 8);
                    let flip = Flip { path: &path, offset: offset as u64, mask, while_open, in_record };
                    if let Err(e) = flipped(&disk, &model, &ever, flip) {
                        let place = format!("{}, closed {closed}, open {while_open}", path.display());
                        failures.entry(place).or_default().push(format!("byte {offset} of {len}: {e}"));
                    }
                }
            }
        }
        let firsts =
            failures.iter().map(|(place, all)| format!("{} flips in {place}, first {}\n", all.len(), all[0]));
        assert!(failures.is_empty(), "{organization}:\n{}", firsts.collect::<String>());
    }
}

#[test]
fn damage_in_a_real_file_is_reported_and_repaired() {
    for organization in organizations() {
        for disk in [OsDisk::new(), OsDisk::plain()] {
            let folder = tempfile::tempdir().unwrap();
            let disk: Arc<dyn Disk> = Arc::new(disk);
            let options = Options { segment_bytes: 1 << 20, ..small_options() };
            create_on(&disk, folder.path(), organization, strong(), &options).unwrap();
            let store = open_on(&disk, folder.path(), &options).unwrap();
            let pages: Vec<OwnedPage> =
                (0..20).map(|n| OwnedPage::new(n, 1, format!("needle {n:04} {n:04}"))).collect();
            let list: Vec<_> = pages.iter().map(OwnedPage::page).collect();
            store.add(&list).unwrap();
            store.close().unwrap();
            drop(store);

            let (path, offset) = find(folder.path(), b"needle 0007");
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[offset] ^= 0x10;
            std::fs::write(&path, bytes).unwrap();

            let store = open_on(&disk, folder.path(), &options).unwrap();
            let e = store.lookup_url(&common::url(7)).unwrap_err();
            assert!(matches!(&e, StorageError::Corrupt { path: named, .. } if *named == path), "{e}");
            assert!(e.to_string().contains("repair"), "{e}");
            for n in (0..20).filter(|&n| n != 7) {
                assert!(store.lookup_url(&common::url(n)).unwrap().is_some(), "{organization}, page {n}");
            }
            let damage = store.verify().unwrap().damage;
            assert!(damage.iter().any(|d| d.path == path && d.offset <= offset as u64), "{damage:?}");
            store.repair().unwrap();
            assert_eq!(store.verify().unwrap().damage, []);
            assert_eq!(store.keys().unwrap().len(), 19);
            assert!(store.lookup_url(&common::url(7)).unwrap().is_none());
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

/// A whole block at the beginning of a leaf, header and first records: what was there is not "not found".
#[test]
fn the_lost_beginning_of_a_leaf_hides_no_page() {
    for organization in [Organization::Hash, Organization::HashedLog] {
        let folder = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(OsDisk::new());
        let options = Options { compression: Compression::None, cache_bytes: 0, ..Options::default() };
        let dir = folder.path().join("store");
        create_on(&disk, &dir, organization, strong(), &options).unwrap();
        let store = open_on(&disk, &dir, &options).unwrap();
        let pages: Vec<OwnedPage> = (0..40).map(|n| OwnedPage::new(n, n, "x".repeat(900))).collect();
        store.add(&pages.iter().map(OwnedPage::page).collect::<Vec<_>>()).unwrap();
        store.commit().unwrap();
        store.keep_generation(1).unwrap(); // everything is in leaves
        let keys = store.keys().unwrap();
        assert_eq!(keys.len(), 40);
        store.close().unwrap();
        drop(store);
        let slots = dir.join("slots");
        let content = std::fs::read(&slots).unwrap();
        let leaf = (0..content.len()).step_by(4096).find(|at| content[*at..].starts_with(b"WBLF")).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&slots).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[0; 4096], leaf as u64).unwrap();
        let store = open_on(&disk, &dir, &options).unwrap();
        let mut lost = 0;
        for key in keys {
            match store.lookup(key, Trust::Verify) {
                Ok(found) => assert!(found.is_some(), "{organization}: {key:?} is said not to be there"),
                Err(StorageError::Corrupt { .. }) => lost += 1,
                Err(e) => panic!("{organization}: {e}"),
            }
        }
        assert!((1..40).contains(&lost), "{organization}: {lost} lost");
        assert!(!store.verify().unwrap().damage.is_empty());
    }
}

/// A log of a hashed-log store in which newer versions and a new page lie behind the older versions, closed; and its file.
fn changed_log(folder: &Path) -> (Options, PathBuf) {
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new());
    let options = Options { compression: Compression::None, cache_bytes: 0, ..Options::default() };
    create_on(&disk, folder, Organization::HashedLog, strong(), &options).unwrap();
    let store = open_on(&disk, folder, &options).unwrap();
    let add = |n: u64, at: u64| {
        let page = OwnedPage::new(n, at, format!("needle {n:04} of {at:04}"));
        store.add(&[page.page()]).unwrap();
        store.commit().unwrap();
    };
    (0..40).for_each(|n| add(n, 1));
    store.keep_generation(1).unwrap();
    [5, 7, 9].iter().for_each(|n| add(*n, 2));
    store.keep_generation(2).unwrap();
    add(100, 2);
    store.keep_generation(3).unwrap();
    store.close().unwrap();
    (options, folder.join("slots"))
}

fn write_at(path: &Path, bytes: &[u8], at: usize) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, at as u64).unwrap();
}

/// Where the record of a page's version begins.
fn record_of(path: &Path, needle: &str) -> usize {
    let content = std::fs::read(path).unwrap();
    let at = content.windows(needle.len()).position(|w| w == needle.as_bytes()).unwrap();
    content[..at].windows(4).rposition(|w| w == b"WBR1").unwrap()
}

#[test]
fn a_damaged_newer_version_in_a_log_never_shows_the_older_one() {
    let key = |n: u64| strong().page_key(&common::url(n)).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new());
    // A whole header, and each byte of it.
    let places = std::iter::once((0, 80)).chain((0..80).map(|at| (at, 1)));
    for (at, bytes) in places {
        let folder = tempfile::tempdir().unwrap();
        let (options, slots) = changed_log(&folder.path().join("store"));
        let record = record_of(&slots, "needle 0007 of 0002");
        let header = std::fs::read(&slots).unwrap()[record + at..record + at + bytes].to_vec();
        write_at(&slots, &header.iter().map(|byte| byte ^ 0x55).collect::<Vec<_>>(), record + at);
        let store = open_on(&disk, &folder.path().join("store"), &options).unwrap();
        let newest = |n: u64| if [5, 7, 9].contains(&n) { 2 } else { 1 };
        let mut damaged = Vec::new();
        for n in 0..40 {
            match store.lookup(key(n), Trust::Verify) {
                Ok(found) => assert_eq!(found.unwrap().get().fetched_at_ms(), newest(n), "page {n}"),
                Err(StorageError::Corrupt { path, offset, .. }) => {
                    assert_eq!((path, offset), (slots.clone(), record as u64));
                    damaged.push(n);
                }
                Err(e) => panic!("{e}"),
            }
        }
        assert!(damaged.contains(&7), "byte {at}");
        // Where a byte is left out of a header, the rest tells whose it is.
        assert!(bytes > 1 || damaged == [7], "byte {at}: {damaged:?}");
        assert!(bytes == 1 || !damaged.contains(&9) || !damaged.contains(&5), "what came later is sure");
        assert_eq!(store.lookup(key(100), Trust::Verify).unwrap().unwrap().get().fetched_at_ms(), 2);
        let stream = store.stream(&StreamSpec::default()).unwrap();
        let mut streamed = 0;
        for record in stream.flatten() {
            let n = (0..40).chain([100]).find(|n| key(*n) == record.get().key()).unwrap();
            assert!(n == 100 || record.get().fetched_at_ms() == newest(n), "page {n} in a stream");
            streamed += 1;
        }
        assert_eq!(streamed, 41 - damaged.len());
        assert!(store.verify().unwrap().damage.iter().any(|d| d.offset == record as u64));
        let before = store.generation(1).unwrap().unwrap();
        assert_eq!(before.lookup(key(7), Trust::Verify).unwrap().unwrap().get().fetched_at_ms(), 1);
        // A version that is added afterwards is newer for sure.
        store.add(&[OwnedPage::new(7, 3, "once more").page()]).unwrap();
        store.commit().unwrap();
        store.keep_generation(4).unwrap();
        assert_eq!(store.lookup(key(7), Trust::Verify).unwrap().unwrap().get().fetched_at_ms(), 3);
    }
}

#[test]
fn a_damaged_new_page_in_a_log_puts_no_other_in_doubt() {
    let folder = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new());
    let (options, slots) = changed_log(&folder.path().join("store"));
    let record = record_of(&slots, "needle 0100 of 0002");
    write_at(&slots, &[0; 80], record);
    let store = open_on(&disk, &folder.path().join("store"), &options).unwrap();
    for n in 0..40 {
        assert!(store.lookup_url(&common::url(n)).unwrap().is_some(), "page {n}");
    }
    for n in [100, 101] {
        let e = store.lookup_url(&common::url(n)).unwrap_err();
        assert!(matches!(&e, StorageError::Corrupt { offset, .. } if *offset == record as u64), "{e}");
    }
}

/// A log of several segments with pages in two versions, closed, and its files in order.
fn versioned_log(folder: &Path) -> (Options, Vec<PathBuf>) {
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new());
    let options = Options {
        compression: Compression::None,
        cache_bytes: 0,
        segment_bytes: 64 << 10,
        ..Options::default()
    };
    create_on(&disk, folder, Organization::Log, strong(), &options).unwrap();
    let store = open_on(&disk, folder, &options).unwrap();
    for (at, numbers) in [(1, 0..120), (2, 0..60), (1, 200..320)] {
        for n in numbers {
            let page = OwnedPage::new(n, at, format!("needle {n:04} of {at:04} {}", "filling ".repeat(60)));
            store.add(&[page.page()]).unwrap();
        }
        store.commit().unwrap();
    }
    store.close().unwrap();
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.file_name().unwrap().to_string_lossy().starts_with("segment-"));
    files.sort();
    assert!(files.len() >= 3, "{files:?}");
    (options, files)
}

/// What lookups say: the pages that are found, each in its newest version, and those of which the damage is told.
fn looked_up(store: &dyn PageStore, damage: (&Path, usize)) -> (Vec<u64>, Vec<u64>) {
    let (mut found, mut damaged) = (Vec::new(), Vec::new());
    for n in (0..120).chain(200..320) {
        let key = strong().page_key(&common::url(n)).unwrap();
        let many = store.lookup_many(&[key]).remove(0);
        let warm = store.lookup_warm(key).and_then(Result::ok);
        match store.lookup(key, Trust::Verify) {
            Ok(Some(record)) => {
                let newest = if n < 60 { 2 } else { 1 };
                assert_eq!(record.get().fetched_at_ms(), newest, "page {n}");
                assert_eq!(many.unwrap().unwrap().get().fetched_at_ms(), newest);
                found.push(n);
            }
            Err(StorageError::Corrupt { path, offset, .. }) => {
                assert_eq!((&*path, offset as usize), damage, "page {n}");
                assert!(many.is_err() && warm.is_none());
                assert!(store.lookup_id(key.id, Trust::Verify).is_err());
                damaged.push(n);
            }
            other => panic!("page {n}: {other:?}"),
        }
    }
    (found, damaged)
}

/// A catalog and a record of its segment: what of the page is left, index or header, tells of it, and where nothing is left every
/// page that may be concerned is said to be damaged.
#[test]
fn a_record_and_its_catalog_lost_together_are_no_missing_page() {
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new());
    let key = |n: u64| strong().page_key(&common::url(n)).unwrap();
    for n in [3, 215, 319] {
        for (bytes, with_index) in [(1, false), (80, true), (80, false)] {
            let folder = tempfile::tempdir().unwrap();
            let dir = folder.path().join("store");
            let (options, files) = versioned_log(&dir);
            let needle = format!("needle {n:04} of {:04}", if n < 60 { 2 } else { 1 });
            let is_in = |file: &&PathBuf| count(&std::fs::read(file).unwrap(), needle.as_bytes()) > 0;
            let file = files.iter().find(is_in).unwrap();
            let record = record_of(file, &needle);
            write_at(file, &[0x55; 80][..bytes], record + 8 - bytes / 10);
            let len = std::fs::metadata(file).unwrap().len() as usize;
            write_at(file, &[0x55; 8], len - 8);
            if !with_index {
                write_at(&dir.join("MANIFEST"), &[0x55; 8], 8);
            }
            let store = open_on(&disk, &dir, &options).unwrap();
            let what = format!("page {n}, {bytes} bytes, index {with_index}");
            let (found, damaged) = looked_up(&*store, (file, record));
            assert!(damaged.contains(&n), "{what}");
            let is_named = bytes == 1 || with_index;
            assert_eq!(damaged == [n], is_named, "{what}: {damaged:?}");
            // What came later is sure, whatever the damaged record was.
            let mut later = (n + 1..60).chain((n + 1).max(200)..320);
            assert!(later.all(|later| found.contains(&later)), "{what}");
            assert_eq!(store.lookup(key(999), Trust::Verify).is_err(), !is_named, "{what}");
            assert!(store.keys().is_err() || bytes == 1, "{what}");
            let stream = store.stream(&StreamSpec::default()).unwrap();
            let (mut streamed, mut errors) = (0, 0);
            for next in stream {
                match next {
                    Ok(record) => {
                        let n = (0..320).find(|n| key(*n) == record.get().key()).unwrap();
                        assert_eq!(record.get().fetched_at_ms(), if n < 60 { 2 } else { 1 }, "{what}");
                        streamed += 1;
                    }
                    Err(_) => errors += 1,
                }
            }
            assert_eq!(streamed, found.len(), "{what}");
            assert!(errors > 0, "{what}");
            let report = store.verify().unwrap();
            assert!(report.damage.iter().any(|d| d.path == *file && d.offset == record as u64), "{what}");
            store.repair().unwrap();
            assert!(store.lookup(key(999), Trust::Verify).unwrap().is_none(), "{what}");
            assert_eq!(store.verify().unwrap().damage, [], "{what}");
        }
    }
}
