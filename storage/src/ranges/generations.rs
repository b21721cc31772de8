//! Kept generations of a store of leaves: the file `generation-G` is the directory as it was when generation G was kept,
//! one frame as in directory.rs. The last frame of the directory says which generations are kept; files of others are
//! left over from something a crash interrupted.
//!
//! 1. Slots that a kept directory names are *held* (slots.rs): they are not used again, whatever the current directory
//!    gives up.
//! 2. Rolling back is one frame. Buckets are never changed once written, so the old ones are named again. Logs may have
//!    been appended to since, so those of ranges that changed are written anew: this takes as much room as they do.
//! 3. Leaves written after a generation that was rolled back to are void. Their sequences stand in the file
//!    `rolled-back`, so that a directory made from the leaves alone does not bring them back:
//!
//! ```text
//!   0  4  magic "WBRB"   4  4  version   8  pairs of leaf sequences: first 8, end 8
//!         CRC-64 of all the above
//! ```

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::directory::{self, Change, Commit, Directory, Entry, Extent};
use super::flush::{self, Sweep};
use super::snapshot::RangeSnapshot;
use super::{RangeStore, View, Writer, upkeep};
use crate::disk::{self, Disk};
use crate::error::{Result, StorageError};
use crate::expiry::Renewed;
use crate::record::crc64;
use crate::store::Damage;

const MAGIC: [u8; 4] = *b"WBRB";

/// A kept generation.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) number: u64,
    /// As of when it was kept.
    pub(crate) commit: Commit,
    pub(crate) directory: Directory,
}

impl Kept {
    fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        self.directory.iter().map(|e| e.extent)
    }
}

fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("generation-{number}"))
}

/// The numbers of the generations whose files are in a folder, ascending.
pub(super) fn numbers(disk: &dyn Disk, dir: &Path) -> Result<Vec<u64>> {
    let names = disk.list(dir).map_err(|e| StorageError::io("list", dir, e))?;
    let mut numbers: Vec<u64> =
        names.iter().filter_map(|n| n.strip_prefix("generation-")?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Removes the files of generations that are not kept.
pub(super) fn remove_strangers(disk: &dyn Disk, dir: &Path, kept: &[u64]) -> Result<()> {
    let strangers = numbers(disk, dir)?.into_iter().filter(|n| !kept.contains(n)).map(|n| path(dir, n));
    let next = disk.list(dir).map_err(|e| StorageError::io("list", dir, e))?;
    let next = next.into_iter().filter(|n| n.starts_with("generation-") && n.ends_with(".next"));
    for path in strangers.chain(next.map(|n| dir.join(n))) {
        disk.remove(&path).map_err(|e| StorageError::io("remove", &path, e))?;
    }
    Ok(())
}

/// Reads the file of a generation.
pub(super) fn read(disk: &dyn Disk, dir: &Path, number: u64) -> Result<Kept> {
    let path = path(dir, number);
    let damaged =
        |what: String| StorageError::corrupt(&path, 0, format!("generation {number} is lost: {what}"));
    let bytes = disk::read_file(disk, &path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => damaged("the file is missing".into()),
        _ => StorageError::io("read", &path, e),
    })?;
    let (commit, changes, len) = directory::decode_frame(&bytes).map_err(damaged)?;
    match changes.as_slice() {
        [all] if len == bytes.len() && (all.first_id, all.last_id) == (0, u64::MAX) => {
            let mut directory = Directory::new();
            directory.apply(all);
            Ok(Kept { number, commit, directory })
        }
        _ => Err(damaged("it is no whole directory".into())),
    }
}

/// The generations that are kept, and damage to them.
pub(super) fn load(
    disk: &dyn Disk,
    dir: &Path,
    numbers: &[u64],
    found: &mut Vec<Damage>,
) -> Result<Vec<Arc<Kept>>> {
    let mut all = Vec::new();
    for &number in numbers {
        match read(disk, dir, number) {
            Ok(kept) => all.push(Arc::new(kept)),
            Err(StorageError::Corrupt { path, offset, what }) => {
                found.push(Damage { path, offset, what, key: None });
            }
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}

impl RangeStore {
    fn numbers(&self) -> Vec<u64> {
        self.kept.lock().iter().map(|k| k.number).collect()
    }

    /// Commits a frame that changes nothing but the list of generations.
    fn commit_list(&self, writer: &mut Writer, generations: Vec<u64>) -> Result<()> {
        let view = self.view.load_full();
        let sweep = Sweep::new(self, writer.commit.next_leaf);
        sweep.commit_with(writer, &view, false, |commit| commit.generations = generations)
    }

    /// Lets go of the slots of generations that are not kept any more.
    fn let_go(&self, gone: &[Arc<Kept>]) {
        let sequence = self.view.load().sequence;
        gone.iter().for_each(|kept| self.slots.let_go(sequence, kept.extents()));
    }
}

/// Keeps the committed state as generation `number`.
pub(super) fn keep(store: &RangeStore, number: u64) -> Result<()> {
    let mut writer = store.writer.lock();
    store.check_writable(&writer)?;
    if let Some(why) = writer.dropped.take() {
        return Err(StorageError::Dropped { path: store.dir.clone(), why });
    }
    if !writer.staged.is_empty() {
        return Err(StorageError::Staged { path: store.dir.clone() });
    }
    let last = store.kept.lock().last().cloned();
    if let Some(last) = last.filter(|last| last.number >= number) {
        let same = last.commit.content == writer.commit.content && writer.buffered_bytes == 0;
        if last.number == number && same {
            return Ok(());
        }
        let (path, last) = (store.dir.clone(), last.number);
        return Err(StorageError::GenerationOrder { path, number, last });
    }
    if writer.buffered_bytes > 0 {
        flush::flush(store, &mut writer, Default::default())?;
    }
    let mut numbers = store.numbers();
    remove_strangers(&*store.disk, &store.dir, &numbers)?;
    numbers.push(number);
    let (directory, commit) = (store.view.load().directory.clone(), writer.commit.clone());
    let frame = directory::encode_whole(&commit, &directory);
    disk::replace_file(&*store.disk, &path(&store.dir, number), &frame)?;
    store.commit_list(&mut writer, numbers)?;
    let kept = Arc::new(Kept { number, commit, directory });
    store.slots.hold(kept.extents());
    store.kept.lock().push(kept);
    Ok(())
}

/// Lets generation `number` go.
pub(super) fn forget(store: &RangeStore, number: u64) -> Result<bool> {
    let mut writer = store.writer.lock();
    store.check_writable(&writer)?;
    let mut numbers = store.numbers();
    if !numbers.contains(&number) {
        return Ok(false);
    }
    numbers.retain(|&n| n != number);
    store.commit_list(&mut writer, numbers.clone())?;
    let gone: Vec<_> = store.kept.lock().extract_if(.., |k| k.number == number).collect();
    store.let_go(&gone);
    // It is committed: what cannot be removed now is removed when the store is opened.
    let _ = remove_strangers(&*store.disk, &store.dir, &numbers);
    Ok(true)
}

/// The pages of generation `number`.
pub(super) fn snapshot(store: &RangeStore, number: u64) -> Option<RangeSnapshot> {
    let kept = store.kept.lock();
    let found = kept.iter().find(|k| k.number == number)?;
    // While it is kept its slots stay; what is given up later is given up by a later view than this one.
    let sequence = store.view.load().sequence;
    let lease = Arc::new(store.slots.lease(sequence));
    let view = View::new(found.directory.clone(), Arc::default(), sequence);
    Some(store.snapshot_of(Arc::new(view), lease))
}

/// Pages of generation `number` that were seen again.
pub(super) fn renewed(
    store: &RangeStore,
    number: u64,
    from: u64,
    limit: usize,
) -> Result<(Vec<Renewed>, Option<u64>)> {
    match snapshot(store, number) {
        Some(snapshot) => snapshot.renewed(from, limit),
        None => {
            let kept = store.kept.lock().iter().map(|k| k.number).collect();
            Err(StorageError::UnknownGeneration { path: store.dir.clone(), number, kept })
        }
    }
}

/// Makes generation `number` the store's state again.
pub(super) fn roll_back(store: &RangeStore, number: u64) -> Result<()> {
    let mut writer = store.writer.lock();
    store.check_writable(&writer)?;
    let mut numbers = store.numbers();
    let target = store.kept.lock().iter().find(|k| k.number == number).cloned();
    let Some(target) = target else {
        return Err(StorageError::UnknownGeneration { path: store.dir.clone(), number, kept: numbers });
    };
    numbers.retain(|&n| n <= number);
    let view = store.view.load_full();
    let mut sweep = Sweep::new(store, writer.commit.next_leaf);
    let named_again = match restore(&mut sweep, &view, &target) {
        Ok(named_again) => named_again,
        Err(e) => {
            sweep.undo();
            return Err(e);
        }
    };
    let void = target.commit.next_leaf..writer.commit.next_leaf;
    sweep.commit_with(&mut writer, &view, true, |commit| {
        (commit.content, commit.generations) = (target.commit.content, numbers.clone());
    })?;
    store.slots.take_again(&named_again);
    writer.staged.clear();
    writer.staged_records.clear();
    (writer.staged_bytes, writer.buffered_bytes, writer.dropped) = (0, 0, None);
    let gone: Vec<_> = store.kept.lock().extract_if(.., |k| k.number > number).collect();
    store.let_go(&gone);
    // It is committed: what cannot be removed now is removed when the store is opened or a generation kept, and the
    // list of void leaves is asked only when the directory is damaged.
    let _ = remove_strangers(&*store.disk, &store.dir, &numbers);
    if !void.is_empty() {
        let _ = add_void(&*store.disk, &store.dir, void);
    }
    Ok(())
}

/// Changes that lead from a view back to a kept directory. Returns the extents they name again.
fn restore(sweep: &mut Sweep<'_>, view: &View, target: &Kept) -> Result<BTreeSet<Extent>> {
    let mut named_again = BTreeSet::new();
    for (first_id, last_id, now, then) in differences(&view.directory, &target.directory) {
        let entries = if sweep.is_hash() {
            named_again.extend(then.iter().map(|e| e.extent));
            then.into_iter().cloned().collect()
        } else {
            let mut items = Vec::new();
            for entry in then {
                items.extend(sweep.load(entry)?);
            }
            sweep.write(first_id, last_id, items)?
        };
        let old: Vec<Extent> = now.iter().map(|e| e.extent).filter(|e| !named_again.contains(e)).collect();
        sweep.replace(Change { first_id, last_id, entries }, old.into_iter());
    }
    sweep.flush()?;
    Ok(named_again)
}

/// Makes the generations' files anew, and gives up the generations whose leaves are damaged, if they are to be given up.
pub(super) fn mend(store: &RangeStore, writer: &mut Writer, give_up: bool) -> Result<()> {
    let kept = store.kept.lock().clone();
    let mut good = Vec::new();
    for generation in &kept {
        let view = View::new(generation.directory.clone(), Arc::default(), 0);
        let mut leaves = view.directory.iter().filter(|e| e.extent.slots > 0);
        let whole = !give_up
            || leaves.try_fold(true, |whole, entry| {
                Ok::<_, StorageError>(
                    whole && upkeep::verify_leaf(store, &view, entry, &mut |_| {})?.1.is_empty(),
                )
            })?;
        if whole {
            let frame = directory::encode_whole(&generation.commit, &generation.directory);
            disk::replace_file(&*store.disk, &path(&store.dir, generation.number), &frame)?;
            good.push(generation.number);
        }
    }
    if writer.commit.generations != good {
        store.commit_list(writer, good.clone())?;
        let gone: Vec<_> = store.kept.lock().extract_if(.., |k| !good.contains(&k.number)).collect();
        store.let_go(&gone);
    }
    remove_strangers(&*store.disk, &store.dir, &good)?;
    match void_leaves(&*store.disk, &store.dir) {
        // What it said is lost; it matters only while the directory is damaged too.
        Err(StorageError::Corrupt { .. }) => write_void(&*store.disk, &store.dir, &[]),
        other => other.map(|_| ()),
    }
}

/// A range of ids, the leaves that cover it now and those that did then.
type Difference<'a> = (u64, u64, Vec<&'a Entry>, Vec<&'a Entry>);

/// Where two directories differ: ranges that begin and end with leaves of both.
fn differences<'a>(now: &'a Directory, then: &'a Directory) -> Vec<Difference<'a>> {
    let mut all = Vec::new();
    let (mut a, mut b) = (now.iter().peekable(), then.iter().peekable());
    while let (Some(x), Some(y)) = (a.next(), b.next()) {
        let (mut here, mut there) = (vec![x], vec![y]);
        let end = loop {
            let (next_a, next_b) = (a.peek().map(|e| e.first_id), b.peek().map(|e| e.first_id));
            // No entry is like one beyond all ids.
            match (next_a.unwrap_or(u64::MAX), next_b.unwrap_or(u64::MAX)) {
                _ if next_a == next_b => break next_a,
                (i, j) if next_b.is_none() || (next_a.is_some() && i < j) => here.extend(a.next()),
                _ => there.extend(b.next()),
            }
        };
        let same = |(x, y): (&&Entry, &&Entry)| x.extent == y.extent && x.used == y.used;
        if here.len() != 1 || there.len() != 1 || !here.iter().zip(&there).all(same) {
            all.push((x.first_id, end.map_or(u64::MAX, |next| next - 1), here, there));
        }
    }
    all
}

fn void_path(dir: &Path) -> PathBuf {
    dir.join("rolled-back")
}

/// The sequences of leaves that were rolled back.
pub(super) fn void_leaves(disk: &dyn Disk, dir: &Path) -> Result<Vec<Range<u64>>> {
    let path = void_path(dir);
    let bytes = match disk::read_file(disk, &path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(StorageError::io("read", &path, e)),
    };
    let head = [MAGIC, crate::identity::VERSION.to_le_bytes()].concat();
    let body = bytes.split_last_chunk::<8>().filter(|(body, crc)| crc64(body) == u64::from_le_bytes(**crc));
    let pairs = body.and_then(|(body, _)| body.strip_prefix(&head[..])).map(|pairs| pairs.as_chunks::<16>());
    match pairs {
        Some((pairs, [])) => Ok(pairs
            .iter()
            .map(|pair| {
                let (words, _) = pair.as_chunks::<8>();
                let mut words = words.iter().map(|&w| u64::from_le_bytes(w));
                words.next().unwrap_or(0)..words.next().unwrap_or(0)
            })
            .collect()),
        _ => Err(StorageError::corrupt(&path, 0, "the list of leaves rolled back is damaged")),
    }
}

fn add_void(disk: &dyn Disk, dir: &Path, more: Range<u64>) -> Result<()> {
    let mut all = void_leaves(disk, dir).unwrap_or_default();
    all.retain(|range| range.start < more.start); // later ones are in it
    all.push(more);
    write_void(disk, dir, &all)
}

fn write_void(disk: &dyn Disk, dir: &Path, all: &[Range<u64>]) -> Result<()> {
    let mut out = [MAGIC, crate::identity::VERSION.to_le_bytes()].concat();
    for range in all {
        out.extend_from_slice(&range.start.to_le_bytes());
        out.extend_from_slice(&range.end.to_le_bytes());
    }
    out.extend_from_slice(&crc64(&out).to_le_bytes());
    disk::replace_file(disk, &void_path(dir), &out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimDisk;

    fn directory(starts: &[(u64, u32)]) -> Directory {
        let entry = |&(first_id, slot)| Entry { extent: Extent { slot, slots: 1 }, ..Entry::empty(first_id) };
        let mut directory = Directory::new();
        directory.apply(&Change {
            first_id: 0,
            last_id: u64::MAX,
            entries: starts.iter().map(entry).collect(),
        });
        directory
    }

    #[test]
    fn directories_differ_in_ranges_that_end_with_leaves_of_both() {
        let then = directory(&[(0, 1), (10, 2), (20, 3), (30, 4), (40, 5)]);
        let now = directory(&[(0, 1), (10, 12), (15, 13), (20, 3), (30, 14), (50, 15)]);
        let found: Vec<_> = differences(&now, &then)
            .into_iter()
            .map(|(first, last, now, then)| (first, last, now.len(), then.len()))
            .collect();
        assert_eq!(found, [(10, 19, 2, 1), (30, u64::MAX, 2, 2)]);
        assert!(differences(&now, &now).is_empty());
    }

    #[test]
    fn void_leaves_are_remembered_and_damage_is_noticed() {
        let (disk, dir) = (SimDisk::new(), Path::new("/s"));
        assert!(void_leaves(&disk, dir).unwrap().is_empty());
        for range in [3..5, 9..12, 8..14] {
            add_void(&disk, dir, range).unwrap();
        }
        assert_eq!(void_leaves(&disk, dir).unwrap(), [3..5, 8..14]);
        disk.flip(&void_path(dir), 9, 1);
        assert!(void_leaves(&disk, dir).is_err());
    }
}
