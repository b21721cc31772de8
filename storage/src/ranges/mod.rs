//! The hash and hashed-log organizations: pages in *leaves* on successive id ranges. A leaf is a bucket (hash), kept
//! sorted and always written anew, or a log (hashed-log), appended to until it is full.
//!
//! ```text
//!   STORE          what it is (identity.rs)
//!   slots          leaves, each in one or more successive slots of one size (slots.rs, leaf.rs)
//!   directory      which leaf covers which ids (directory.rs)
//!   journal-N      changes whose pages wait in the buffer (journal.rs)
//!   generation-G   the directory of a kept generation (generations.rs)
//!   rolled-back    leaves that do not count any more (generations.rs)
//!   dictionary-D   a zstd dictionary, named by its digest, and its copy (dictionary_files.rs)
//! ```
//!
//! 1. A leaf is never changed in place, only written to free slots or, a log, behind its filled part; but damaged records
//!    get their bytes back in place (heal.rs). A frame in the
//!    directory, synced after the slots, makes the new leaves count: a crash leaves the old or the new.
//! 2. A leaf that grows over its slot is split; growing past any planned size is nothing special. Only a leaf whose pages
//!    share one id, or one large page, takes several slots.
//! 3. A view is immutable: streams hold a lease on theirs, and slots are used again when no view needs them.
//! 4. Changes wait in a buffer, durable in the journal, until there are enough to sort into leaves in one sweep. Which of
//!    two versions of a page wins is decided then, and by every reader until then.

pub(crate) mod content;
pub(crate) mod directory;
mod flush;
mod front;
mod generations;
mod heal;
mod journal;
pub(crate) mod leaf;
mod log_index;
mod missing;
mod open;
mod pending;
mod slots;
mod snapshot;
mod stream;
mod upkeep;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};

use self::directory::{Commit, Directory, DirectoryFile, Entry};
use self::generations::Kept;
use self::journal::Journal;
use self::pending::{Item, Pending};
use self::slots::Slots;
use crate::catalog::Row;
use crate::codec::Dictionaries;
use crate::disk::{Disk, DiskLock};
use crate::error::{Result, StorageError};
use crate::expiry::{Due, Renewed, Seen};
use crate::packer::{self, Encoded, Packer};
use crate::page::{Page, PageId, PageKey, RepositoryKey, Version};
use crate::record::{Kind, Record};
use crate::snapshot::Snapshot;
use crate::store::{
    Added, Compacted, Damage, Options, Organization, PageStore, PageStream, Stats, StreamSpec, Trust,
    Verified,
};

/// What may be staged before a store commits by itself, when its buffer is smaller.
const STAGED_BYTES_MAX: u64 = 64 << 20;

/// What a reader sees.
#[derive(Debug)]
struct View {
    directory: Directory,
    /// Sorted by key.
    buffered: Arc<Vec<(PageKey, Pending)>>,
    sequence: u64,
    /// By how many pages the buffer changes what is on disk, once somebody asked.
    buffered_pages: OnceLock<i64>,
}

impl View {
    fn new(directory: Directory, buffered: Arc<Vec<(PageKey, Pending)>>, sequence: u64) -> View {
        View { directory, buffered, sequence, buffered_pages: OnceLock::new() }
    }

    /// By how many pages the buffer changes what is on disk.
    fn buffered_pages(&self, slots: &Slots, is_hash: bool) -> i64 {
        *self.buffered_pages.get_or_init(|| snapshot::count_buffered(slots, is_hash, self))
    }

    fn pending(&self, key: PageKey) -> Option<&Pending> {
        let at = self.buffered.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        self.buffered.get(at).map(|(_, pending)| pending)
    }
}

/// The state behind the writer's lock.
#[derive(Debug)]
struct Writer {
    staged: BTreeMap<PageKey, Pending>,
    staged_bytes: u64,
    /// What was staged, in order, for the journal.
    staged_records: Vec<u8>,
    buffered_bytes: u64,
    journal: Option<Journal>,
    /// The number of the next journal: behind those that are still needed.
    next_journal: u64,
    directory: DirectoryFile,
    commit: Commit,
    dropped: Option<String>,
    poisoned: Option<String>,
}

/// A store organized by id ranges.
pub(crate) struct RangeStore {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    organization: Organization,
    options: Options,
    packer: Packer,
    slots: Arc<Slots>,
    view: ArcSwap<View>,
    writer: Mutex<Writer>,
    /// The generations kept, ascending. Changed only by who has the writer too.
    kept: Mutex<Vec<Arc<Kept>>>,
    /// Damage found when opening or on the way.
    found: Mutex<Vec<Damage>>,
    _lock: Box<dyn DiskLock>,
}

impl RangeStore {
    fn is_hash(&self) -> bool {
        self.organization == Organization::Hash
    }

    fn check_writable(&self, writer: &Writer) -> Result<()> {
        match &writer.poisoned {
            Some(why) => Err(StorageError::Poisoned { path: self.dir.clone(), why: why.clone() }),
            None => Ok(()),
        }
    }

    /// The version of a page as of now, staged changes included.
    fn current(&self, writer: &Writer, key: PageKey) -> Result<Option<Version>> {
        let visible = self.item(key)?.map(|(item, _)| item);
        let item = match writer.staged.get(&key) {
            Some(pending) => pending.resolve(visible),
            None => visible,
        };
        Ok(item.and_then(|item| item.version()))
    }

    /// Stages encoded records.
    fn stage(&self, encoded: &Encoded, added: &mut Added) -> Result<()> {
        let mut writer = self.writer.lock();
        self.check_writable(&writer)?;
        for (row, bytes) in encoded.records() {
            let key = row.key();
            let current = match row.kind() {
                Kind::Page => None,
                _ => match self.current(&writer, key)? {
                    Some(version) => Some(version),
                    None => {
                        added.stale += 1;
                        continue;
                    }
                },
            };
            self.stage_one(&mut writer, row, bytes, current, added);
        }
        let limit = self.options.buffer_bytes.max(STAGED_BYTES_MAX);
        if writer.staged_bytes > limit
            && let Err(e) = self.commit_locked(&mut writer)
        {
            writer.dropped = Some(e.to_string()); // with what earlier calls staged
            return Err(e);
        }
        Ok(())
    }

    fn stage_one(
        &self,
        writer: &mut Writer,
        row: &Row,
        bytes: &[u8],
        current: Option<Version>,
        added: &mut Added,
    ) {
        let before = writer.staged.get(&row.key()).map_or(0, Pending::bytes);
        let pending = writer.staged.entry(row.key()).or_default();
        let had = pending.page.as_ref().map(|(version, _)| *version);
        match (row.kind(), had) {
            (Kind::Page, Some(version)) if version >= row.version() => added.stale += 1,
            (Kind::Page, None) => added.new += 1,
            _ => added.superseding += 1,
        }
        pending.stage(row, Bytes::copy_from_slice(bytes), current);
        let after = pending.bytes();
        writer.staged_bytes = (writer.staged_bytes + after as u64).saturating_sub(before as u64);
        if self.options.buffer_bytes > 0 {
            writer.staged_records.extend_from_slice(bytes);
        }
    }

    fn stage_marks(&self, kind: Kind, marks: impl Iterator<Item = Seen>) -> Result<u64> {
        let mut added = Added::default();
        for seen in marks {
            self.stage(&packer::mark(kind, seen.key, seen.at_ms, seen.lifetime_s), &mut added)?;
        }
        Ok(added.staged())
    }

    /// Makes everything staged durable and visible: in the journal while the buffer has room, else in the leaves.
    fn commit_locked(&self, writer: &mut MutexGuard<'_, Writer>) -> Result<()> {
        self.check_writable(writer)?;
        if let Some(why) = writer.dropped.take() {
            return Err(StorageError::Dropped { path: self.dir.clone(), why });
        }
        if writer.staged.is_empty() {
            return Ok(());
        }
        // Whatever happens, this batch is done with: a failed commit stores nothing.
        let staged = std::mem::take(&mut writer.staged);
        let records = std::mem::take(&mut writer.staged_records);
        let bytes = std::mem::take(&mut writer.staged_bytes);
        if writer.buffered_bytes + bytes > self.options.buffer_bytes {
            flush::flush(self, writer, staged)
        } else {
            self.commit_to_journal(writer, staged, &records)
        }
    }

    fn commit_to_journal(
        &self,
        writer: &mut Writer,
        staged: BTreeMap<PageKey, Pending>,
        records: &[u8],
    ) -> Result<()> {
        if writer.journal.is_none() {
            writer.journal = Some(Journal::create(&*self.disk, &self.dir, writer.next_journal)?);
            writer.next_journal += 1;
        }
        if staged.values().any(|p| p.page.is_some()) {
            self.check_room(self.used_bytes_by(writer) + records.len() as u64)?;
        }
        if let Some(journal) = &mut writer.journal {
            journal.write(records)?;
            if let Err(e) = journal.sync(records.len() as u64) {
                writer.poisoned = Some(e.to_string());
                return Err(e);
            }
        }
        self.buffer(writer, staged);
        Ok(())
    }

    /// Lets changes that are durable wait, visible, to be sorted into leaves.
    fn buffer(&self, writer: &mut Writer, staged: BTreeMap<PageKey, Pending>) {
        let view = self.view.load();
        let buffered = merge_pending(&view.buffered, staged);
        writer.buffered_bytes = buffered.iter().map(|(_, p)| p.bytes() as u64).sum();
        let (directory, sequence) = (view.directory.clone(), view.sequence);
        self.view.store(Arc::new(View::new(directory, Arc::new(buffered), sequence)));
    }

    /// The page with this key as a reader sees it now, not verified, and where it lies in the file if it does.
    fn item(&self, key: PageKey) -> Result<Option<(Item, Option<u64>)>> {
        loop {
            let view = self.view.load_full();
            let pending = view.pending(key);
            let (entry, _) = match view.directory.find(key.id.0) {
                Some(found) if !pending.is_some_and(|p| p.wipes) => found,
                _ => return Ok(pending.and_then(|p| p.resolve(None)).map(|item| (item, None))),
            };
            let found = snapshot::item_at(&self.slots, self.is_hash(), entry, key);
            // The slots may have been used again while they were read: then the leaf is elsewhere now, or was, for it
            // takes two sweeps to give a leaf's slots up and to use them again.
            let now = self.view.load();
            let moved = now.directory.find(key.id.0).is_none_or(|(e, _)| e.extent != entry.extent)
                || now.sequence > view.sequence + 1;
            if moved {
                continue;
            }
            let disk = found?;
            return Ok(match pending {
                Some(pending) => pending.resolve(disk.map(|(item, _)| item)).map(|item| (item, None)),
                None => disk.map(|(item, at)| (item, Some(at))),
            });
        }
    }

    /// The page with this key in one leaf.
    fn item_in_leaf(&self, entry: &Entry, key: PageKey) -> Result<Option<Item>> {
        snapshot::item_in_leaf(&self.slots, self.is_hash(), entry, key)
    }

    /// Refuses to occupy more than the capacity.
    fn check_room(&self, used: u64) -> Result<()> {
        match self.options.capacity_bytes {
            Some(capacity) if used > capacity => Err(StorageError::NoSpace { path: self.dir.clone() }),
            _ => Ok(()),
        }
    }

    fn used_bytes(&self) -> u64 {
        self.used_bytes_by(&self.writer.lock())
    }

    fn used_bytes_by(&self, writer: &Writer) -> u64 {
        let files = writer.directory.bytes() + writer.journal.as_ref().map_or(0, Journal::bytes);
        let held = self.slots.parked() as u64 * self.slots.slot_bytes();
        files + held + self.view.load().directory.iter().map(|e| self.leaf_bytes(e)).sum::<u64>()
    }

    /// What a leaf occupies: a bucket its slots, a log what is written of them.
    fn leaf_bytes(&self, entry: &Entry) -> u64 {
        match self.organization {
            Organization::Hash => u64::from(entry.extent.slots) * self.slots.slot_bytes(),
            _ => u64::from(entry.used).next_multiple_of(4096),
        }
    }
}

/// Reads journal 1; what is read are records.
#[cfg(any(fuzzing, test))]
pub(crate) fn fuzz_journal(disk: &dyn Disk, dir: &Path) {
    if let Ok((records, _)) = journal::read(disk, dir, 1) {
        assert!(records.iter().all(|record| crate::record_len(record) == Ok(record.len() as u64)));
    }
}

/// What waits, with later changes on top.
fn merge_pending(
    before: &[(PageKey, Pending)],
    staged: BTreeMap<PageKey, Pending>,
) -> Vec<(PageKey, Pending)> {
    let mut out = Vec::with_capacity(before.len() + staged.len());
    let mut older = before.iter().peekable();
    for (key, pending) in staged {
        while let Some((k, p)) = older.next_if(|(k, _)| *k < key) {
            out.push((*k, p.clone()));
        }
        let merged = match older.next_if(|(k, _)| *k == key) {
            Some((_, under)) => over(under, pending),
            None => pending,
        };
        out.push((key, merged));
    }
    out.extend(older.cloned());
    out
}

/// Changes of one page on top of earlier ones.
fn over(under: &Pending, top: Pending) -> Pending {
    if top.wipes {
        return top;
    }
    let newer = top.page.filter(|(version, _)| under.page.as_ref().is_none_or(|(old, _)| old < version));
    Pending {
        wipes: under.wipes,
        page: newer.or_else(|| under.page.clone()),
        seen: top.seen.or_else(|| under.seen.clone()),
    }
}

impl PageStore for RangeStore {
    fn organization(&self) -> Organization {
        self.organization
    }

    fn repository_key(&self) -> &RepositoryKey {
        self.packer.repository_key()
    }

    fn dictionaries(&self) -> &Dictionaries {
        self.packer.dictionaries()
    }

    fn add_dictionary(&self, content: &[u8]) -> Result<u64> {
        self.packer.add_dictionary(content)
    }

    fn add(&self, pages: &[Page<'_>]) -> Result<Added> {
        let mut added = Added::default();
        self.packer.pack(pages, |encoded| self.stage(encoded, &mut added))?;
        Ok(added)
    }

    fn add_records(&self, records: &[Record]) -> Result<Added> {
        let mut added = Added::default();
        self.packer.take_records(records, |part| self.stage(part, &mut added))?;
        Ok(added)
    }

    fn delete(&self, keys: &[PageKey]) -> Result<u64> {
        let at_ms = crate::now_ms();
        self.stage_marks(Kind::Tombstone, keys.iter().map(|&key| Seen { key, at_ms, lifetime_s: 0 }))
    }

    fn seen(&self, seen: &[Seen]) -> Result<u64> {
        self.stage_marks(Kind::Seen, seen.iter().copied())
    }

    fn commit(&self) -> Result<()> {
        self.commit_locked(&mut self.writer.lock())
    }

    fn lookup(&self, key: PageKey, trust: Trust) -> Result<Option<Record>> {
        let found = self.item(key)?;
        let record =
            |item| snapshot::record(&self.slots, &self.view.load(), self.packer.dictionaries(), item, trust);
        found.map(record).transpose()
    }

    fn lookup_id(&self, id: PageId, trust: Trust) -> Result<Vec<Record>> {
        self.current_snapshot().lookup_id(id, trust)
    }

    fn stream(&self, spec: &StreamSpec) -> Result<Box<dyn PageStream>> {
        self.current_snapshot().stream(spec)
    }

    fn merge(&self, sorted: &mut dyn Iterator<Item = Result<Record>>) -> Result<Added> {
        crate::merge_in_batches(sorted, |records| self.add_records(records))
    }

    fn keys(&self) -> Result<Vec<PageKey>> {
        self.current_snapshot().keys()
    }

    fn stats(&self) -> Stats {
        let used_bytes = self.used_bytes();
        let view = self.view.load();
        let on_disk: u64 = view.directory.iter().map(|e| u64::from(e.live_bytes)).sum();
        let pages: u64 = view.directory.iter().map(|e| u64::from(e.pages)).sum();
        let buffered = view.buffered_pages(&self.slots, self.is_hash());
        let free = self.disk.free_bytes(&self.dir).unwrap_or(0);
        let filled: u64 = view.directory.iter().map(|e| u64::from(e.used)).sum();
        Stats {
            organization: self.organization,
            capacity_bytes: self.options.capacity_bytes.unwrap_or(used_bytes.saturating_add(free)),
            used_bytes,
            live_bytes: on_disk,
            dead_bytes: filled.saturating_sub(on_disk),
            pages: pages.saturating_add_signed(buffered),
            segments: view.directory.iter().count() as u64,
            memory_bytes: view.directory.memory_bytes() as u64 + self.writer.lock().buffered_bytes,
            cache_bytes: 0,
        }
    }

    fn compact(&self, budget_bytes: u64) -> Result<Compacted> {
        upkeep::compact(self, budget_bytes)
    }

    fn verify(&self) -> Result<Verified> {
        upkeep::verify(self)
    }

    fn repair(&self) -> Result<Verified> {
        upkeep::repair(self, true)
    }

    fn heal(&self, generation: Option<u64>, records: &[Record]) -> Result<u64> {
        heal::heal(self, generation, records)
    }

    fn mend(&self) -> Result<Verified> {
        heal::mend(self)
    }

    fn ids_at(&self, path: &Path, offset: u64) -> Option<(PageId, PageId)> {
        heal::ids_at(self, path, offset)
    }

    fn renewed(&self, generation: u64, from: u64, limit: usize) -> Result<(Vec<Renewed>, Option<u64>)> {
        generations::renewed(self, generation, from, limit)
    }

    fn due(&self, now_ms: u64, limit: usize) -> Result<Vec<Due>> {
        upkeep::due(self, now_ms, limit)
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        Arc::new(self.current_snapshot())
    }

    fn keep_generation(&self, number: u64) -> Result<()> {
        generations::keep(self, number)
    }

    fn generations(&self) -> Vec<u64> {
        self.kept.lock().iter().map(|k| k.number).collect()
    }

    fn generation(&self, number: u64) -> Result<Option<Arc<dyn Snapshot>>> {
        Ok(generations::snapshot(self, number).map(|snapshot| Arc::new(snapshot) as Arc<dyn Snapshot>))
    }

    fn drop_generation(&self, number: u64) -> Result<bool> {
        generations::forget(self, number)
    }

    fn roll_back(&self, number: u64) -> Result<()> {
        generations::roll_back(self, number)
    }

    fn close(&self) -> Result<()> {
        let mut writer = self.writer.lock();
        self.commit_locked(&mut writer)?;
        if writer.buffered_bytes > 0 {
            flush::flush(self, &mut writer, BTreeMap::new())?;
        }
        writer.poisoned.get_or_insert_with(|| "the store was closed".into());
        Ok(())
    }
}

/// Creates the files of an empty store.
pub(crate) fn create(disk: &Arc<dyn Disk>, dir: &Path) -> Result<()> {
    let path = dir.join("slots");
    disk.open(&path, true).map_err(|e| StorageError::io("create", &path, e))?;
    let commit = Commit { journal: 1, next_leaf: 1, ..Commit::default() };
    DirectoryFile::replace(disk, dir, &Directory::new(), &commit).map(|_| ())
}
