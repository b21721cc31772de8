//! Sorting what waits into the leaves, in one sweep over the id ranges it touches.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::content::Content;
use super::directory::{Change, Commit, Entry, Extent};
use super::leaf;
use super::log_index::LogIndex;
use super::pending::{Item, Pending};
use super::slots::SlotWriter;
use super::{RangeStore, View, Writer, journal, merge_pending};
use crate::error::{Result, StorageError};
use crate::page::PageKey;
use crate::record::{self, Kind, RecordRef};
use crate::store::Damage;

/// A new bucket is filled to this share, so that it can take some more before it is split.
const BUCKET_FILL: f64 = 0.8;
/// A new log likewise; it is appended to, so it needs more room.
const LOG_FILL: f64 = 0.5;

/// Leaves that take the place of others.
pub(super) struct Sweep<'a> {
    store: &'a RangeStore,
    out: SlotWriter<'a>,
    next_leaf: u64,
    changes: Vec<Change>,
    /// Slots written and slots given up.
    fresh: Vec<Extent>,
    retired: Vec<Extent>,
}

/// Sorts everything buffered, and `staged` on top, into leaves and commits.
pub(super) fn flush(
    store: &RangeStore,
    writer: &mut Writer,
    staged: BTreeMap<PageKey, Pending>,
) -> Result<()> {
    let view = store.view.load_full();
    let pending = merge_pending(&view.buffered, staged);
    let adds = pending.iter().any(|(_, p)| p.page.is_some());
    let mut sweep = Sweep::new(store, writer.commit.next_leaf);
    let result =
        sweep.take(&view, &pending).and_then(|()| if adds { sweep.room(writer, &view) } else { Ok(()) });
    if let Err(e) = result {
        sweep.undo();
        return Err(e);
    }
    let changes = !pending.is_empty();
    sweep.commit_with(writer, &view, true, |commit| {
        if changes {
            commit.content = commit.sequence;
        }
    })?;
    writer.buffered_bytes = 0;
    Ok(())
}

impl<'a> Sweep<'a> {
    pub(super) fn new(store: &'a RangeStore, next_leaf: u64) -> Self {
        let out = SlotWriter::new(&store.slots);
        Sweep { store, out, next_leaf, changes: Vec::new(), fresh: Vec::new(), retired: Vec::new() }
    }

    pub(super) fn is_hash(&self) -> bool {
        self.store.is_hash()
    }

    /// Brings sorted changes into the leaves that cover them.
    fn take(&mut self, view: &View, mut pending: &[(PageKey, Pending)]) -> Result<()> {
        while let Some((key, _)) = pending.first() {
            let Some((entry, last_id)) = view.directory.find(key.id.0) else { break };
            let (here, later) = pending.split_at(pending.partition_point(|(k, _)| k.id.0 <= last_id));
            let entries = if self.fits_behind(entry, here) {
                vec![self.append(entry, here)?]
            } else {
                let items = self.load(entry)?;
                self.write(entry.first_id, last_id, merge(items, here))?
            };
            if entry.extent.slots > 0 && !entries.iter().any(|e| e.extent == entry.extent) {
                self.retired.push(entry.extent);
            }
            self.changes.push(Change { first_id: entry.first_id, last_id, entries });
            pending = later;
        }
        self.out.flush()
    }

    /// Whether changes can be appended to a log.
    fn fits_behind(&self, entry: &Entry, changes: &[(PageKey, Pending)]) -> bool {
        let bytes: usize = changes.iter().map(|(_, p)| p.bytes() + record::RECORD_BYTES_MIN).sum();
        let room = u64::from(entry.extent.slots) * self.store.slots.slot_bytes();
        !self.store.is_hash() && entry.extent.slots > 0 && u64::from(entry.used) + bytes as u64 <= room
    }

    fn append(&mut self, entry: &Entry, changes: &[(PageKey, Pending)]) -> Result<Entry> {
        let mut bytes = Vec::new();
        // The index tells which pages are superseded; after a restart that takes one read of each log.
        entry.index.make(entry.live_bytes, || self.store.slots.read(entry.extent, entry.used))?;
        let mut places = Vec::new();
        let mut after = entry.clone();
        for (key, pending) in changes {
            let before = entry.index.probable(*key);
            let mut push = |record: &[u8], bytes: &mut Vec<u8>| {
                places.push((*key, entry.used + bytes.len() as u32, record.len() as u32));
                bytes.extend_from_slice(record);
            };
            if pending.wipes {
                let mut tombstone = Vec::new();
                record::encode_mark(Kind::Tombstone, *key, 0, 0, &mut tombstone);
                push(&tombstone, &mut bytes);
            }
            // A visit to the version on disk comes before the new version, one to the new version behind it.
            let (mut page, mut seen) = (pending.page.as_ref(), pending.seen.as_ref());
            if page.is_some() || pending.wipes {
                let disk = match before {
                    // A damaged version gives way to any new one.
                    Some(len) => self.store.item_in_leaf(entry, *key).or_else(|e| match e {
                        StorageError::Corrupt { .. } => {
                            after.pages = after.pages.saturating_sub(1);
                            after.live_bytes = after.live_bytes.saturating_sub(len);
                            Ok(None)
                        }
                        e => Err(e),
                    })?,
                    None => None,
                };
                if let Some(disk) = &disk {
                    after.pages = after.pages.saturating_sub(1);
                    after.live_bytes = after.live_bytes.saturating_sub(disk.bytes() as u32);
                    // A version that comes late is not written: of a page's records the last one is the newest.
                    let disk = disk.version().filter(|_| !pending.wipes);
                    let late = page.map(|(version, _)| *version).filter(|version| disk >= Some(*version));
                    page = page.filter(|_| late.is_none());
                    seen = seen.filter(|(version, _)| late != Some(*version) || disk == late);
                }
                if let Some(item) = pending.resolve(disk) {
                    after.pages += 1;
                    after.live_bytes += item.bytes() as u32;
                }
            }
            let of_new = seen.filter(|(seen, _)| page.is_some_and(|(version, _)| version == seen));
            if let Some((_, seen)) = seen.filter(|_| of_new.is_none()) {
                bytes.extend_from_slice(seen);
            }
            if let Some((_, page)) = page {
                push(page, &mut bytes);
            }
            if let Some((_, seen)) = of_new {
                bytes.extend_from_slice(seen);
            }
            let deadlines = [&pending.page, &pending.seen]
                .into_iter()
                .flatten()
                .filter_map(|(_, bytes)| Item { page: bytes.clone(), seen: None }.deadline_ms());
            after.deadline_ms = deadlines.fold(after.deadline_ms, u64::min);
        }
        after.index = Arc::new(entry.index.appended(places.into_iter()));
        after.used += bytes.len() as u32;
        self.end_with_zeros(&mut bytes, after.used, entry.extent);
        self.out.write(self.store.slots.offset(entry.extent) + u64::from(entry.used), &bytes)?;
        Ok(after)
    }

    /// What was in a log's slot before may go on right where the new bytes end, record for record, when a log is written
    /// as it once was: zeros behind it tell a directory that is made from the leaves where it ends.
    fn end_with_zeros(&self, bytes: &mut Vec<u8>, used: u32, extent: Extent) {
        let room = u64::from(extent.slots) * self.store.slots.slot_bytes();
        let zeros = room.saturating_sub(used.into()).min(record::HEADER_BYTES as u64);
        if !self.store.is_hash() {
            bytes.resize(bytes.len() + zeros as usize, 0);
        }
    }

    /// The pages of a leaf, damaged ones as they are. A leaf with blocks that the disk does not give back stays where it is:
    /// they may be healed, or be read another time.
    pub(super) fn load(&self, entry: &Entry) -> Result<Vec<(PageKey, Item)>> {
        let content = self.read(entry)?;
        match content.unreadable.first() {
            Some(block) => {
                let at = self.store.slots.offset(entry.extent) + block.start as u64;
                Err(StorageError::corrupt(self.store.slots.path(), at, "it cannot be read"))
            }
            None => self.decode(entry, &content),
        }
    }

    /// The pages of a leaf, as far as they can be read.
    pub(super) fn load_readable(&self, entry: &Entry) -> Result<Vec<(PageKey, Item)>> {
        self.decode(entry, &self.read(entry)?)
    }

    fn read(&self, entry: &Entry) -> Result<Content> {
        match entry.extent.slots {
            0 => Ok(Content::default()),
            _ => self.store.slots.read(entry.extent, entry.used),
        }
    }

    /// The pages of a leaf. What is damaged is remembered.
    fn decode(&self, entry: &Entry, content: &Content) -> Result<Vec<(PageKey, Item)>> {
        if content.bytes.is_empty() {
            return Ok(Vec::new());
        }
        let leaf = leaf::decode(content, false);
        let offset = self.store.slots.offset(entry.extent);
        if leaf.nameless_damage().next().is_some() {
            // The new leaf will not have it: the old one is set aside, and reported until it is repaired.
            let name = format!("damaged-{}-{}", self.next_leaf, entry.extent.slot);
            crate::disk::replace_file(&*self.store.disk, &self.store.dir.join(name), &content.bytes)?;
        }
        self.store.found.lock().extend(leaf.damage.iter().map(|d| Damage {
            path: self.store.slots.path().to_path_buf(),
            offset: offset + d.offset as u64,
            what: d.what.clone(),
            key: d.key,
        }));
        Ok(leaf.items)
    }

    /// Writes pages of an id range to new leaves.
    pub(super) fn write(
        &mut self,
        first_id: u64,
        last_id: u64,
        items: Vec<(PageKey, Item)>,
    ) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let pieces = self.split(items);
        let starts: Vec<u64> =
            pieces.iter().map(|p| p.first().map_or(first_id, |(key, _)| key.id.0)).collect();
        for (i, piece) in pieces.into_iter().enumerate() {
            let start = if i == 0 { first_id } else { starts.get(i).copied().unwrap_or(first_id) };
            let end = starts.get(i + 1).map_or(last_id, |next| next - 1);
            entries.push(self.write_leaf(start, end, piece)?);
        }
        if entries.is_empty() {
            entries.push(Entry::empty(first_id));
        }
        Ok(entries)
    }

    fn write_leaf(&mut self, first_id: u64, last_id: u64, piece: Vec<(PageKey, Item)>) -> Result<Entry> {
        let items: Vec<Item> = piece.into_iter().map(|(_, item)| item).collect();
        let mut bytes = leaf::encode(&items, self.next_leaf, first_id, last_id);
        let used = bytes.len();
        self.next_leaf += 1;
        let extent = self.store.slots.allocate(self.store.slots.slots_for(bytes.len()));
        self.fresh.push(extent);
        self.end_with_zeros(&mut bytes, used as u32, extent);
        self.out.write(self.store.slots.offset(extent), &bytes)?;
        bytes.truncate(used);
        let live_bytes = items.iter().map(|i| i.bytes() as u32).sum();
        Ok(Entry {
            first_id,
            extent,
            used: used as u32,
            live_bytes,
            pages: items.len() as u32,
            deadline_ms: items.iter().filter_map(Item::deadline_ms).min().unwrap_or(u64::MAX),
            index: match self.store.is_hash() {
                true => Arc::default(),
                false => Arc::new(LogIndex::of(bytes.into(), live_bytes)),
            },
        })
    }

    /// Cuts pages into leaves, never between two pages of one id.
    fn split(&self, items: Vec<(PageKey, Item)>) -> Vec<Vec<(PageKey, Item)>> {
        let room = self.store.slots.slot_bytes() as usize;
        let total = leaf::HEADER_BYTES + items.iter().map(|(_, i)| leaf::item_bytes(i)).sum::<usize>();
        let whole = if self.store.is_hash() { room } else { (room as f64 * 0.75) as usize };
        if items.is_empty() {
            return Vec::new();
        }
        if total <= whole {
            return vec![items];
        }
        let fill = if self.store.is_hash() { BUCKET_FILL } else { LOG_FILL };
        // Even pieces: the last one should not be a splinter.
        let target = total / (total as f64 / (room as f64 * fill)).ceil().max(2.0) as usize;
        let mut pieces: Vec<Vec<(PageKey, Item)>> = Vec::new();
        let mut filled = usize::MAX;
        let mut last_id = None;
        for (key, item) in items {
            let bytes = leaf::item_bytes(&item);
            let over =
                filled.saturating_add(bytes) > room.saturating_sub(leaf::HEADER_BYTES) || filled >= target;
            if pieces.is_empty() || (over && last_id != Some(key.id)) {
                pieces.push(Vec::new());
                filled = 0;
            }
            filled += bytes;
            last_id = Some(key.id);
            if let Some(piece) = pieces.last_mut() {
                piece.push((key, item));
            }
        }
        pieces
    }

    /// A change made elsewhere: these leaves take the place of those.
    pub(super) fn replace(&mut self, change: Change, old: impl Iterator<Item = Extent>) {
        self.retired.extend(old.filter(|e| e.slots > 0));
        self.changes.push(change);
    }

    pub(super) fn flush(&mut self) -> Result<()> {
        self.out.flush()
    }

    pub(super) fn written_bytes(&self) -> u64 {
        self.out.written_bytes
    }

    /// Whether what was written keeps within the store's capacity.
    fn room(&self, writer: &Writer, view: &View) -> Result<()> {
        if self.store.options.capacity_bytes.is_none() {
            return Ok(());
        }
        let mut used = self.store.used_bytes_by(writer) + 64;
        for change in &self.changes {
            let old = view.directory.iter_from(change.first_id).take_while(|e| e.first_id <= change.last_id);
            used -= old.map(|e| self.store.leaf_bytes(e)).sum::<u64>();
            used += change.entries.iter().map(|e| self.store.leaf_bytes(e) + 48).sum::<u64>() + 24;
        }
        self.store.check_room(used)
    }

    /// Forgets what was written.
    pub(super) fn undo(&mut self) {
        self.store.slots.give_back(self.fresh.drain(..));
    }

    /// Makes the new leaves count; they hold the same pages as those they replace.
    pub(super) fn commit(self, writer: &mut Writer, view: &View) -> Result<()> {
        self.commit_with(writer, view, false, |_| ())
    }

    /// Makes the new leaves count. With `all`, nothing of the journal is needed any more. `note` adds what the commit
    /// says beside its changes.
    pub(super) fn commit_with(
        mut self,
        writer: &mut Writer,
        view: &View,
        all: bool,
        note: impl FnOnce(&mut Commit),
    ) -> Result<()> {
        let poison = |writer: &mut Writer, e: StorageError| {
            writer.poisoned = Some(e.to_string());
            Err(e)
        };
        if let Err(e) = self.store.slots.file().sync() {
            return poison(writer, StorageError::io("sync", self.store.slots.path(), e));
        }
        let mut directory = view.directory.clone();
        self.changes.iter().for_each(|change| directory.apply(change));
        let mut commit = writer.commit.clone();
        commit.sequence += 1;
        commit.next_leaf = self.next_leaf;
        if all {
            commit.journal = writer.next_journal.max(commit.journal + 1);
        }
        note(&mut commit);
        let journal = commit.journal;
        if let Err(e) = writer.directory.append(&commit, &self.changes, &directory) {
            match e {
                // Nothing of the frame counts: a later one is written over it.
                StorageError::NoSpace { .. } => self.undo(),
                e => return poison(writer, e),
            }
            return Err(StorageError::NoSpace { path: self.store.dir.clone() });
        }
        writer.commit = commit;
        let buffered = if all { Arc::default() } else { view.buffered.clone() };
        let sequence = view.sequence + 1;
        self.store.view.store(Arc::new(View::new(directory, buffered, sequence)));
        self.store.slots.retire(view.sequence, self.retired.drain(..));
        if all {
            (writer.journal, writer.next_journal) = (None, journal);
            // It is committed: what cannot be removed now is removed when the store is opened.
            let _ = journal::remove_before(&*self.store.disk, &self.store.dir, journal);
        }
        Ok(())
    }
}

/// Pages of a leaf with changes applied.
fn merge(items: Vec<(PageKey, Item)>, changes: &[(PageKey, Pending)]) -> Vec<(PageKey, Item)> {
    let mut out = Vec::with_capacity(items.len() + changes.len());
    let mut items = items.into_iter().peekable();
    for (key, pending) in changes {
        while let Some(item) = items.next_if(|(k, _)| k < key) {
            out.push(item);
        }
        let disk = items.next_if(|(k, _)| k == key).map(|(_, item)| item);
        // A damaged version gives way to any new one, and only to one.
        let damaged =
            disk.as_ref().is_some_and(|d| pending.page.is_some() && RecordRef::parse(&d.page).is_err());
        let disk = disk.filter(|_| !damaged);
        out.extend(pending.resolve(disk).map(|item| (*key, item)));
    }
    out.extend(items);
    out
}

/// The leaf a stream or upkeep sees, with what waits on top.
pub(super) fn with_pending(
    items: Vec<(PageKey, Item)>,
    view: &View,
    first_id: u64,
    last_id: u64,
) -> Vec<(PageKey, Item)> {
    let from = view.buffered.partition_point(|(key, _)| key.id.0 < first_id);
    let to = view.buffered.partition_point(|(key, _)| key.id.0 <= last_id);
    match view.buffered.get(from..to) {
        Some([]) | None => items,
        Some(changes) => merge(items, changes),
    }
}
