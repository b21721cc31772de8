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
