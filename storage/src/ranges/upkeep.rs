//! Compaction, verification, repair and expiry of a store of leaves.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::atomic::Ordering;

use super::directory::{Change, DirectoryFile, Entry};
use super::flush::{self, Sweep, with_pending};
use super::generations;
use super::leaf;
use super::open;
use super::pending::Item;
use super::{RangeStore, View, Writer};
use crate::dictionary_files::{Needed, count_needed};
use crate::error::{Result, StorageError};
use crate::expiry::Due;
use crate::page::PageKey;
use crate::record::RecordRef;
use crate::store::{Compacted, Damage, Verified};

/// A log is written anew when this share of it is garbage.
const GARBAGE_SHARE: f64 = 0.2;
/// Neighbours are joined when together they fill less than this share of a slot.
const JOIN_SHARE: f64 = 0.6;
/// Leaves moved in one commit.
const LEAVES_AT_ONCE: usize = 64;

/// Joins small neighbours, writes logs with garbage anew, moves leaves from the end of the file into free slots, and cuts
/// the file. Each round is a commit of its own.
pub(super) fn compact(store: &RangeStore, budget_bytes: u64) -> Result<Compacted> {
    let mut done = Compacted::default();
    loop {
        let mut writer = store.writer.lock();
        store.check_writable(&writer)?;
        if writer.buffered_bytes > 0 {
            flush::flush(store, &mut writer, BTreeMap::new())?;
        }
        done.freed_bytes += store.slots.shrink()?;
        let view = store.view.load_full();
        let groups = choose(store, &view);
        if groups.is_empty() {
            done.done = true;
            return Ok(done);
        }
        if done.read_bytes + done.written_bytes >= budget_bytes {
            return Ok(done);
        }
        rewrite(store, &mut writer, &view, &groups, budget_bytes, &mut done)?;
    }
}

/// Runs of neighbouring leaves (first id, last id) worth writing anew.
fn choose(store: &RangeStore, view: &View) -> Vec<(u64, u64)> {
    let room = store.slots.slot_bytes() as f64;
    let entries: Vec<&Entry> = view.directory.iter().collect();
    let last_id = |i: usize| entries.get(i + 1).map_or(u64::MAX, |e| e.first_id - 1);
    let mut groups = Vec::new();
    let mut i = 0;
    while let Some(entry) = entries.get(i) {
        let mut bytes = f64::from(entry.live_bytes);
        let mut end = i;
        while let Some(next) = entries.get(end + 1) {
            bytes += f64::from(next.live_bytes);
            if bytes > room * JOIN_SHARE {
                break;
            }
            end += 1;
        }
        let garbage =
            entry.used.saturating_sub(entry.live_bytes + leaf::HEADER_BYTES as u32 + 8 * entry.pages);
        let dirty = !store.is_hash() && f64::from(garbage) > GARBAGE_SHARE * f64::from(entry.used).max(1.0);
        if end > i || dirty {
            groups.push((entry.first_id, last_id(end)));
        }
        i = end + 1;
    }
    let (slots, free) = store.slots.usage();
    if groups.is_empty() && free > 0 {
        // The leaves that lie furthest out, as many as there is room for further in.
        let mut far: Vec<(u32, usize)> =
            entries.iter().enumerate().map(|(i, e)| (e.extent.slot, i)).collect();
        far.sort_unstable_by(|a, b| b.cmp(a));
        let beyond = slots.saturating_sub(free as u32);
        let movable = far.iter().take_while(|(slot, _)| *slot >= beyond).take(free.min(LEAVES_AT_ONCE));
        let movable = movable.filter(|(_, i)| entries.get(*i).is_some_and(|e| e.extent.slots == 1));
        groups.extend(movable.filter_map(|&(_, i)| Some((entries.get(i)?.first_id, last_id(i)))));
        groups.sort_unstable();
    }
    groups
}

fn rewrite(
    store: &RangeStore,
    writer: &mut Writer,
    view: &View,
    groups: &[(u64, u64)],
    budget_bytes: u64,
    done: &mut Compacted,
) -> Result<()> {
    let mut sweep = Sweep::new(store, writer.commit.next_leaf);
    let mut result = Ok(());
    for (i, &(first_id, last_id)) in groups.iter().enumerate() {
        let over = done.read_bytes + done.written_bytes + sweep.written_bytes() >= budget_bytes;
        if i >= LEAVES_AT_ONCE || (i > 0 && over) {
            break;
        }
        result = rewrite_group(&mut sweep, view, first_id, last_id, done);
        if result.is_err() {
            break;
        }
    }
    if let Err(e) = result.and_then(|()| sweep.flush()) {
        sweep.undo();
        return Err(e);
    }
    done.written_bytes += sweep.written_bytes();
    sweep.commit(writer, view)
}

fn rewrite_group(
    sweep: &mut Sweep<'_>,
    view: &View,
    first_id: u64,
    last_id: u64,
    done: &mut Compacted,
) -> Result<()> {
    let old: Vec<Entry> =
        view.directory.iter_from(first_id).take_while(|e| e.first_id <= last_id).cloned().collect();
    let mut items = Vec::new();
    for entry in &old {
        done.read_bytes += u64::from(entry.used);
        items.extend(sweep.load(entry)?);
    }
    let entries = sweep.write(first_id, last_id, items)?;
    sweep.replace(Change { first_id, last_id, entries }, old.iter().map(|e| e.extent));
    Ok(())
}

/// Reads every leaf and checks every record.
pub(super) fn verify(store: &RangeStore) -> Result<Verified> {
    check(store).map(|(report, _)| report)
}

/// As `verify`; also which lost dictionaries are needed.
fn check(store: &RangeStore) -> Result<(Verified, Needed)> {
    let mut needed = Needed::new();
    let mut living = |record: &RecordRef<'_>| {
        count_needed(record, store.packer.dictionaries(), &mut needed);
    };
    // A lease keeps the slots while they are read.
    let _writer = store.writer.lock();
    let view = store.view.load_full();
    let mut report = Verified { damage: store.found.lock().clone(), ..Verified::default() };
    for entry in view.directory.iter().filter(|e| e.extent.slots > 0) {
        report.checked_bytes += u64::from(entry.used);
        store.options.checked_bytes.fetch_add(entry.used.into(), Ordering::Relaxed);
        let (records, damage) = verify_leaf(store, &view, entry, &mut living)?;
        report.good_records += records;
        report.damage.extend(damage);
    }
    // Leaves that only kept generations have.
    let mut seen: BTreeSet<_> = view.directory.iter().map(|e| (e.extent, e.used)).collect();
    let kept = store.kept.lock().clone();
    for generation in &kept {
        let old = View::new(generation.directory.clone(), Default::default(), 0);
        for entry in old.directory.iter().filter(|e| e.extent.slots > 0) {
            if seen.insert((entry.extent, entry.used)) {
                report.checked_bytes += u64::from(entry.used);
                store.options.checked_bytes.fetch_add(entry.used.into(), Ordering::Relaxed);
                let (records, damage) = verify_leaf(store, &old, entry, &mut living)?;
                report.good_records += records;
                report.damage.extend(damage);
            }
        }
    }
    let small = [
        crate::identity::verify(&*store.disk, &store.dir),
        DirectoryFile::open(&store.disk, &store.dir).map(|_| ()),
        generations::void_leaves(&*store.disk, &store.dir).map(|_| ()),
    ];
    let files = kept.iter().map(|k| generations::read(&*store.disk, &store.dir, k.number).map(|_| ()));
    for result in small.into_iter().chain(files) {
        match result {
            Err(StorageError::Corrupt { path, offset, what }) => {
                report.damage.push(Damage { path, offset, what, key: None });
            }
            other => other?,
        }
    }
    for (key, pending) in view.buffered.iter() {
        let Some((_, bytes)) = &pending.page else { continue };
        if let Ok(record) = RecordRef::parse(bytes) {
            living(&record);
            report.good_records += 1;
        } else {
            let what = "a page in the buffer is damaged: faulty memory?".into();
            report.damage.push(Damage { path: store.dir.clone(), offset: 0, what, key: Some(*key) });
        }
    }
    report.damage.extend(store.packer.verify_dictionaries(&needed)?);
    report.damage.sort_by(|a, b| (&a.path, a.offset).cmp(&(&b.path, b.offset)));
    report.damage.dedup_by(|a, b| a.path == b.path && a.offset == b.offset);
    Ok((report, needed))
}

/// Checks a leaf: its good records, its damage. `living` gets each page somebody can get.
pub(super) fn verify_leaf(
    store: &RangeStore,
    view: &View,
    entry: &Entry,
    living: &mut dyn FnMut(&RecordRef<'_>),
) -> Result<(u64, Vec<Damage>)> {
    let offset = store.slots.offset(entry.extent);
    let path = store.slots.path().to_path_buf();
    let damage = |at: u64, what: String, key| Damage { path: path.clone(), offset: at, what, key };
    let content = match store.slots.read(entry.extent, entry.used) {
        Ok(content) => content,
        Err(StorageError::Corrupt { offset, what, .. }) => return Ok((0, vec![damage(offset, what, None)])),
        Err(e) => return Err(e),
    };
    let leaf = leaf::decode(&content, true);
    let mut all: Vec<Damage> =
        leaf.damage.iter().map(|d| damage(offset + d.offset as u64, d.what.clone(), d.key)).collect();
    for (_, item) in &leaf.items {
        if let Ok(record) = RecordRef::parse_unverified(&item.page) {
            living(&record);
        }
    }
    let covers = |key: &PageKey| view.directory.find(key.id.0).is_some_and(|(e, _)| e.extent == entry.extent);
    for (key, _) in leaf.items.iter().filter(|(key, _)| !covers(key)) {
        all.push(damage(offset, "a page outside its leaf's range".into(), Some(*key)));
    }
    if all.is_empty() {
        entry.index.note_whole();
    }
    Ok((leaf.records, all))
}

/// Writes each damaged leaf anew with its good records; what needs a lost dictionary stays. A kept generation with a damaged leaf is not kept any more: it is
/// not what it was. Without `leave_out` leaves are not touched, and only small files are written anew.
pub(super) fn repair(store: &RangeStore, leave_out: bool) -> Result<Verified> {
    let (report, needed) = check(store)?;
    let mut writer = store.writer.lock();
    store.check_writable(&writer)?;
    let view = store.view.load_full();
    let mut sweep = Sweep::new(store, writer.commit.next_leaf);
    for entry in view.directory.iter().filter(|e| e.extent.slots > 0) {
        if !leave_out || verify_leaf(store, &view, entry, &mut |_| {})?.1.is_empty() {
            continue;
        }
        let last_id = view.directory.find(entry.first_id).map_or(u64::MAX, |(_, last)| last);
        let mut items = match sweep.load_readable(entry) {
            Err(StorageError::Corrupt { .. }) => Vec::new(),
            items => items?,
        };
        items.retain(|(_, item)| RecordRef::parse(&item.page).is_ok());
        for (_, item) in &mut items {
            item.seen = item.seen.take().filter(|seen| RecordRef::parse(seen).is_ok());
        }
        let entries = sweep.write(entry.first_id, last_id, items)?;
        sweep.replace(Change { first_id: entry.first_id, last_id, entries }, std::iter::once(entry.extent));
    }
    sweep.flush()?;
    sweep.commit(&mut writer, &view)?;
    generations::mend(store, &mut writer, leave_out)?;
    for name in open::set_aside(&*store.disk, &store.dir)?.into_iter().filter(|_| leave_out) {
        let path = store.dir.join(name);
        store.disk.remove(&path).map_err(|e| StorageError::io("remove", &path, e))?;
    }
    store.packer.mend_dictionaries(&needed)?;
    // The small files are written anew, whether they were damaged or not; the journal goes with the buffer.
    let unit_bytes = store.slots.slot_bytes() as u32;
    crate::identity::rewrite(
        &*store.disk,
        &store.dir,
        store.packer.repository_key(),
        store.organization,
        unit_bytes,
    )?;
    let directory = &store.view.load().directory;
    writer.directory = DirectoryFile::replace(&store.disk, &store.dir, directory, &writer.commit)?;
    flush::flush(store, &mut writer, BTreeMap::new())?;
    store.found.lock().clear();
    Ok(report)
}

/// The pages due at `now_ms`, the longest overdue first. Leaves whose earliest deadline is later are not read.
pub(super) fn due(store: &RangeStore, now_ms: u64, limit: usize) -> Result<Vec<Due>> {
    let _writer = store.writer.lock(); // slots are not used again meanwhile
    let view = store.view.load_full();
    let mut latest_first = BinaryHeap::new();
    let entries: Vec<&Entry> = view.directory.iter().collect();
    for (i, entry) in entries.iter().enumerate() {
        let last_id = entries.get(i + 1).map_or(u64::MAX, |e| e.first_id - 1);
        let waiting = view.buffered.partition_point(|(key, _)| key.id.0 < entry.first_id)
            != view.buffered.partition_point(|(key, _)| key.id.0 <= last_id);
        if entry.deadline_ms > now_ms && !waiting {
            continue;
        }
        let items = match entry.extent.slots {
            0 => Vec::new(),
            _ => leaf::decode(&store.slots.read(entry.extent, entry.used)?, false).items,
        };
        for (key, item) in with_pending(items, &view, entry.first_id, last_id) {
            if let Some(deadline_ms) = Item::deadline_ms(&item).filter(|&ms| ms <= now_ms) {
                latest_first.push(Due { deadline_ms, key });
                if latest_first.len() > limit {
                    latest_first.pop();
                }
            }
        }
    }
    Ok(latest_first.into_sorted_vec())
}
