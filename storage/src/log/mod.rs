//! The log organization: segments appended in order, an index in memory, nothing ever edited.
//!
//! ```text
//!   STORE            what it is (identity.rs)
//!   MANIFEST         which files belong to it (manifest.rs)
//!   segment-N        records and, once sealed, their catalog (segment.rs, catalog.rs)
//!   index-N          a run of the index (index.rs)
//!   dead-N           who is superseded or deleted, as of the checkpoint (manifest.rs)
//!   deadlines-N      pages seen again without change (deadlines.rs)
//!   generation-N     a kept generation (generations.rs)
//!   dictionary-D     a zstd dictionary, named by its digest, and its copy (dictionary_files.rs)
//! ```
//!
//! Adds, deletes and "seen again" are all records appended to the open segment, so one sync commits any mixture of
//! them, and after a crash the log itself says what happened: of two records of a page the later one holds. Each record
//! has an *ordinal*, given when it is appended and never changed; index, bitmaps and cursors speak of ordinals, and
//! only a segment's catalog knows where in the file an ordinal lies. So compaction rewrites one segment and touches
//! nothing else.
//!
//! A lookup is: a slot of each run (mostly one large run), the segment of the ordinal, the offset, one read. In memory
//! that is 9.5 bytes a page for the index, 4 for the offset and a bit for being dead; compacted segments add about a
//! bit for each ordinal they once had.

mod compaction;
mod deadlines;
pub(crate) mod generations;
mod heal;
mod lost;
pub(crate) mod manifest;
mod open;
mod ordinals;
pub(crate) mod scan;
pub(crate) mod segment;
mod snapshot;
mod stream;
mod verify;
mod view;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::{Condvar, Mutex, MutexGuard};

use self::compaction::Compaction;
use self::deadlines::Deadlines;
use self::manifest::{Counts, Manifest, SegmentEntry};
use self::segment::{RECORDS_OFFSET, SEGMENT_BYTES_MAX, Segment};
use self::snapshot::LogSnapshot;
use self::view::{How, IndexRun, Part, View, merge_runs};
use self::writer::{Batch, Call, Writer};
use crate::bits::Bitmap;
use crate::cache::RecordCache;
use crate::catalog::{self, Row};
use crate::codec::Dictionaries;
use crate::disk::{self, Disk, DiskLock};
use crate::error::{Result, StorageError};
use crate::expiry::{Due, Renewed, Seen};
use crate::index::{ORDINALS_MAX, Run};
use crate::packer::{self, Encoded, Packer};
use crate::page::{Page, PageId, PageKey, RepositoryKey};
use crate::record::{Kind, Record};
use crate::snapshot::Snapshot;
use crate::store::{
    Added, Compacted, Damage, Options, Organization, PageStore, PageStream, Stats, StreamSpec, Trust,
    Verified,
};

/// A batch may fill a segment up to here, however small segments are meant to be.
const BATCH_END_MIN: u64 = 1 << 30;

/// A store organized as a log.
pub(crate) struct LogStore {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    options: Options,
    packer: Packer,
    view: ArcSwap<View>,
    cache: Option<Arc<RecordCache>>,
    writer: Mutex<Writer>,
    synced: Condvar,
    deadlines: Mutex<Deadlines>,
    compaction: Mutex<Option<Compaction>>,
    next_file: Mutex<u64>,
    /// Damage found when opening.
    found: Mutex<Vec<Damage>>,
    _lock: Box<dyn DiskLock>,
}

impl LogStore {
    /// Creates the files of an empty store; its identity is there already.
    pub(crate) fn create(disk: &Arc<dyn Disk>, dir: &Path) -> Result<()> {
        let segment = Segment::create(disk, dir, 1, 0, 0)?;
        let dead = manifest::encode_dead(std::iter::empty());
        disk::replace_file(&**disk, &dir.join("dead-2"), &dead)?;
        let entry = SegmentEntry {
            number: segment.number,
            first_ordinal: 0,
            end_ordinal: 0,
            clean_to: 0,
            counts: Counts::default(),
        };
        let manifest = Manifest { next_file: 3, dead_file: 2, segments: vec![entry], ..Manifest::default() };
        disk::replace_file(&**disk, &manifest::path(dir), &manifest.encode())
    }

    fn segment_bytes(&self) -> u64 {
        self.options.segment_bytes.clamp(RECORDS_OFFSET, SEGMENT_BYTES_MAX)
    }

    /// Where a segment is ended even if that cuts a batch in two.
    fn batch_end_max(&self) -> u64 {
        (2 * self.segment_bytes()).max(BATCH_END_MIN)
    }

    /// Bytes to map of a segment that is growing.
    fn map_bytes(&self) -> u64 {
        self.batch_end_max() + self.packer.page_bytes_max()
    }

    fn new_file(&self) -> u64 {
        let mut next = self.next_file.lock();
        *next += 1;
        *next - 1
    }

    fn check_writable(&self, writer: &Writer) -> Result<()> {
        match &writer.poisoned {
            Some(why) => Err(StorageError::Poisoned { path: self.dir.clone(), why: why.clone() }),
            None => Ok(()),
        }
    }

    /// Refuses to go on when everything staged was dropped since, by another thread's failure.
    fn check_kept(&self, writer: &Writer, drops: u64) -> Result<()> {
        if writer.drops == drops {
            return Ok(());
        }
        let why = "the disk failed under another thread's call".into();
        Err(StorageError::Dropped { path: self.dir.clone(), why })
    }

    /// Stages encoded records. When the disk fails, everything that is not committed is dropped; `call` says where the
    /// caller's own records began.
    fn stage(&self, encoded: &Encoded, call: Call, added: &mut Added) -> Result<()> {
        let mut writer = self.writer.lock();
        self.check_writable(&writer)?;
        self.check_kept(&writer, call.drops)?; // else the first part of a call could be gone, and the rest be stored
        let mut at = 0;
        let mut run = (0, 0); // records accepted but not yet handed over: from byte, from row
        for (i, (row, len)) in encoded.rows.iter().enumerate() {
            let len = *len as usize;
            let pending = (at - run.0) as u64;
            // Commits end segments, so that a batch becomes visible as a whole; this one is larger than a segment may be.
            if writer.end() + pending + len as u64 > self.batch_end_max() {
                self.push(&mut writer, encoded, call, run, (at, i))?;
                run = (at, i);
                self.roll(&mut writer, call)?;
            }
            let view = self.view.load();
            let ahead = (i - run.1) as u64;
            if writer.next_ordinal() + ahead >= ORDINALS_MAX {
                return Err(StorageError::NoSpace { path: self.dir.clone() });
            }
            let accepted = match writer.stage(row, ahead, &view, added) {
                Ok(accepted) => accepted,
                Err(e) => return Err(self.fail_staged(&mut writer, call, e)),
            };
            if !accepted {
                self.push(&mut writer, encoded, call, run, (at, i))?;
                run = (at + len, i + 1);
            }
            at += len;
        }
        self.push(&mut writer, encoded, call, run, (at, encoded.rows.len()))
    }

    fn push(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        encoded: &Encoded,
        call: Call,
        (from_byte, from_row): (usize, usize),
        (to_byte, to_row): (usize, usize),
    ) -> Result<()> {
        let bytes = encoded.bytes.get(from_byte..to_byte).unwrap_or_default();
        let rows = encoded.rows.get(from_row..to_row).unwrap_or_default();
        let has_pages = rows.iter().any(|(row, _)| row.kind() == Kind::Page);
        if let Some(capacity) = self.options.capacity_bytes.filter(|_| has_pages)
            && self.used_bytes() + self.overhead(writer, rows) + bytes.len() as u64 > capacity
        {
            let full = StorageError::NoSpace { path: self.dir.clone() };
            return Err(self.fail_staged(writer, call, full));
        }
        let pushed = writer.push(bytes, rows);
        pushed.map_err(|e| self.fail_staged(writer, call, e))
    }

    /// Bytes that what is staged, and the end of the open segment, will take beside these records.
    fn overhead(&self, writer: &Writer, rows: &[(Row, u32)]) -> u64 {
        let records = writer.open.count() + writer.batch.rows.len() + rows.len();
        let catalog = (records * (catalog::ROW_BYTES + 4) + catalog::TRAILER_BYTES) as u64;
        writer.end() - writer.committed + catalog + 2 * RECORDS_OFFSET
    }

    fn fail_staged(&self, writer: &mut Writer, call: Call, e: StorageError) -> StorageError {
        writer.drop_staged(call, &e);
        e
    }

    /// Commits everything and goes on in a new segment.
    fn roll(&self, writer: &mut MutexGuard<'_, Writer>, call: Call) -> Result<()> {
        if let Some(why) = writer.dropped.clone() {
            // Said here, and again by the commit of whoever staged what is gone.
            return Err(StorageError::Dropped { path: self.dir.clone(), why });
        }
        let end = loop {
            let end = writer.next_ordinal();
            self.commit_locked(writer, end, call)?;
            if writer.batch.rows.is_empty() && !writer.syncing {
                break end; // nobody staged more while the lock was given away
            }
        };
        let old = writer.open.clone();
        writer.has_catalog = true;
        old.write_catalog()?;
        let number = self.new_file();
        let fresh = Segment::create(&self.disk, &self.dir, number, end, self.map_bytes())?;
        let fresh = Arc::new(fresh);
        let sealed = Segment::sealed(&self.disk, old.file().clone(), old.number, false)?;
        let mut view = View::clone(&self.view.load());
        if let Some(part) = view.parts.last_mut() {
            part.segment = Arc::new(sealed);
            part.end_ordinal = end;
        }
        view.parts.push(Part {
            segment: fresh.clone(),
            dead: Arc::new(Bitmap::default()),
            end_ordinal: end,
            clean_to: end,
            counts: Counts::default(),
        });
        let view = self.checkpoint(view)?;
        self.view.store(Arc::new(view));
        writer.roll(fresh, RECORDS_OFFSET);
        Ok(())
    }

    /// Makes everything below ordinal `upto` durable and visible. Gives the lock away while the disk works; threads that
    /// come meanwhile share the next sync. `call` is who hears of a failure; what others have staged before it is the next
    /// commit's to report.
    fn commit_locked(&self, writer: &mut MutexGuard<'_, Writer>, upto: u64, call: Call) -> Result<()> {
        let drops = writer.drops;
        loop {
            self.check_writable(writer)?;
            self.check_kept(writer, drops)?;
            if let Some(why) = writer.dropped.take() {
                return Err(StorageError::Dropped { path: self.dir.clone(), why });
            }
            if writer.syncing {
                self.synced.wait(writer);
                continue;
            }
            if writer.batch.first_ordinal >= upto || writer.batch.rows.is_empty() {
                return Ok(());
            }
            if let Err(e) = writer.flush() {
                return Err(self.fail_staged(writer, call, e));
            }
            let batch = writer.take_batch();
            let open = writer.open.clone();
            writer.syncing = true;
            let synced = MutexGuard::unlocked(writer, || open.file().sync());
            writer.syncing = false;
            self.synced.notify_all();
            match synced {
                Ok(()) => self.publish(writer, batch),
                Err(e) => {
                    writer.poisoned = Some(e.to_string());
                    return Err(StorageError::io("sync", open.path(), e));
                }
            }
        }
    }

    /// Makes a synced batch visible.
    fn publish(&self, writer: &mut Writer, batch: Batch) {
        writer.mark_sequence += 1;
        // Only a hint for recovery, made durable by the next sync: an error here is that sync's to report.
        let _ = writer.open.write_mark(writer.mark_sequence, batch.end_offset);
        writer.committed = batch.end_offset;
        writer.open.extend(batch.rows.iter().copied());
        let mut view = View::clone(&self.view.load());
        apply(&mut view, &batch);
        self.deadlines.lock().set(&batch.deadlines);
        self.view.store(Arc::new(view));
        writer.forget_below(batch.end_ordinal());
    }

    /// Writes index runs, dead bitmaps, deadlines, generations and manifest of `view`, and removes the files they replace. The
    /// caller holds the writer's lock, and `view` holds everything committed.
    fn checkpoint(&self, mut view: View) -> Result<View> {
        for index in &mut view.runs {
            if index.file.is_none() {
                let number = self.new_file();
                disk::replace_file(
                    &*self.disk,
                    &self.dir.join(format!("index-{number}")),
                    &index.run.encode(),
                )?;
                index.file = Some(number);
            }
        }
        let dead_file = self.new_file();
        let dead = manifest::encode_dead(view.parts.iter().map(|p| (p.segment.number, &*p.dead)));
        disk::replace_file(&*self.disk, &self.dir.join(format!("dead-{dead_file}")), &dead)?;
        let deadline_file =
            self.deadlines.lock().save(&self.disk, &self.dir, || self.new_file(), |o| view.is_dead(o))?;
        let generations = view.generations.iter_mut().map(|g| Arc::make_mut(g).save(self));
        let generations = generations.collect::<Result<Vec<_>>>()?;
        let segments = view.parts.iter().map(|p| SegmentEntry {
            number: p.segment.number,
            first_ordinal: p.segment.first_ordinal,
            end_ordinal: p.end_ordinal,
            clean_to: p.clean_to,
            counts: p.counts,
        });
        let manifest = Manifest {
            checkpoint: view.end,
            next_file: *self.next_file.lock(),
            dead_file,
            deadline_file,
            segments: segments.collect(),
            runs: view.runs.iter().filter_map(|r| r.file).collect(),
            generations,
        };
        disk::replace_file(&*self.disk, &manifest::path(&self.dir), &manifest.encode())?;
        // What cannot be removed now is removed when the store is opened.
        let _ = open::remove_strangers(&*self.disk, &self.dir, &manifest, false);
        Ok(view)
    }

    fn snapshot_of(&self, view: Arc<View>) -> LogSnapshot {
        LogSnapshot {
            view,
            key: *self.packer.repository_key(),
            dictionaries: self.packer.dictionaries().clone(),
            cache: self.cache.clone(),
        }
    }

    fn how(&self, trust: Trust) -> How<'_> {
        How { trust, cache: self.cache.as_deref(), dictionaries: self.packer.dictionaries(), unpack: false }
    }

    fn used_bytes(&self) -> u64 {
        self.view.load().parts.iter().map(|p| p.segment.file().len().unwrap_or(0)).sum()
    }

    /// Stages marks of one kind for those keys that are there.
    fn stage_marks(&self, kind: Kind, marks: impl Iterator<Item = Seen>) -> Result<u64> {
        let mut added = Added::default();
        let call = self.writer.lock().call();
        for seen in marks {
            self.stage(&packer::mark(kind, seen.key, seen.at_ms, seen.lifetime_s), call, &mut added)?;
        }
        Ok(added.staged())
    }
}

/// Reads the deadlines in file 1; what is read is all there.
#[cfg(any(fuzzing, test))]
pub(crate) fn fuzz_deadlines(disk: &dyn Disk, dir: &Path) {
    if let Ok(reader) = Deadlines::open(disk, dir, 1).and_then(|deadlines| deadlines.reader()) {
        assert!(reader.iter().all(|entry| entry.is_ok()));
    }
}

/// What a batch does to a view.
fn apply(view: &mut View, batch: &Batch) {
    let mut entries = Vec::with_capacity(batch.rows.len());
    if let Some(part) = view.parts.last_mut() {
        for ((row, len), ordinal) in batch.rows.iter().zip(batch.first_ordinal..) {
            part.count((ordinal - part.segment.first_ordinal) as usize, row, u64::from(*len));
            if row.kind() == Kind::Page {
                entries.push((row.key().id, ordinal));
            }
        }
        part.end_ordinal = batch.end_ordinal();
    }
    view.end = batch.end_ordinal();
    view.bury(batch.victims.clone());
    if !entries.is_empty() {
        let run = Run::build(entries, batch.first_ordinal..view.end);
        view.runs.push(IndexRun { run: Arc::new(run), file: None });
        merge_runs(view);
    }
}

impl PageStore for LogStore {
    fn organization(&self) -> Organization {
        Organization::Log
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
        let call = self.writer.lock().call();
        self.packer.pack(pages, |encoded| self.stage(encoded, call, &mut added))?;
        Ok(added)
    }

    fn add_records(&self, records: &[Record]) -> Result<Added> {
        let mut added = Added::default();
        let call = self.writer.lock().call();
        self.packer.take_records(records, |part| self.stage(part, call, &mut added))?;
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
        let mut writer = self.writer.lock();
        let upto = writer.next_ordinal();
        self.commit_locked(&mut writer, upto, Call::default())?; // a failure is said here, and not again
        if writer.end() >= self.segment_bytes() && writer.batch.rows.is_empty() && !writer.syncing {
            // What was asked for is done; a segment that cannot be ended now is ended by a later commit.
            let _ = self.roll(&mut writer, Call::default());
        }
        Ok(())
    }

    fn lookup(&self, key: PageKey, trust: Trust) -> Result<Option<Record>> {
        self.view.load().read(key, self.how(trust))
    }

    fn lookup_unpacked(&self, key: PageKey, trust: Trust) -> Result<Option<Record>> {
        let how = How { unpack: true, ..self.how(trust) };
        self.view.load().read(key, how)
    }

    fn lookup_warm(&self, key: PageKey) -> Option<Result<Option<Record>>> {
        self.view.load().read_warm(key, self.how(Trust::Verify))
    }

    fn lookup_id(&self, id: PageId, trust: Trust) -> Result<Vec<Record>> {
        self.view.load().read_id(id, self.how(trust))
    }

    fn lookup_many(&self, keys: &[PageKey]) -> Vec<Result<Option<Record>>> {
        self.view.load_full().read_many(keys, self.how(Trust::Verify))
    }

    fn stream(&self, spec: &StreamSpec) -> Result<Box<dyn PageStream>> {
        snapshot::stream_of(self.view.load_full(), self.packer.dictionaries(), spec)
    }

    fn merge(&self, sorted: &mut dyn Iterator<Item = Result<Record>>) -> Result<Added> {
        crate::merge_in_batches(sorted, |records| self.add_records(records))
    }

    fn keys(&self) -> Result<Vec<PageKey>> {
        self.view.load_full().keys()
    }

    fn stats(&self) -> Stats {
        let view = self.view.load();
        let used_bytes = self.used_bytes();
        let (pages, live_bytes) = view.living();
        let needed_bytes = view.parts.iter().map(|p| view.garbage(p).1.live_bytes).sum();
        let records: u64 = view.parts.iter().map(|p| p.segment.records_end() - RECORDS_OFFSET).sum();
        let free = self.disk.free_bytes(&self.dir).unwrap_or(0);
        Stats {
            organization: Organization::Log,
            capacity_bytes: self.options.capacity_bytes.unwrap_or(used_bytes.saturating_add(free)),
            used_bytes,
            live_bytes,
            dead_bytes: records.saturating_sub(needed_bytes),
            pages,
            segments: view.parts.len() as u64,
            memory_bytes: view.memory_bytes() as u64,
            cache_bytes: self.cache.as_ref().map_or(0, |cache| cache.memory_bytes()),
        }
    }

    fn compact(&self, budget_bytes: u64) -> Result<Compacted> {
        compaction::compact(self, budget_bytes)
    }

    fn verify(&self) -> Result<Verified> {
        verify::verify(self)
    }

    fn repair(&self) -> Result<Verified> {
        verify::repair(self, true)
    }

    fn heal(&self, _generation: Option<u64>, records: &[Record]) -> Result<u64> {
        heal::heal(self, records)
    }

    fn mend(&self) -> Result<Verified> {
        heal::mend(self)
    }

    fn ids_at(&self, path: &Path, offset: u64) -> Option<(PageId, PageId)> {
        heal::ids_at(&self.view.load(), path, offset)
    }

    fn renewed(&self, generation: u64, from: u64, limit: usize) -> Result<(Vec<Renewed>, Option<u64>)> {
        generations::renewed(self, generation, from, limit)
    }

    fn due(&self, now_ms: u64, limit: usize) -> Result<Vec<Due>> {
        let view = self.view.load_full();
        let deadlines = self.deadlines.lock().reader()?;
        deadlines::due(&view, &deadlines, now_ms, limit)
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        Arc::new(self.snapshot_of(self.view.load_full()))
    }

    fn keep_generation(&self, number: u64) -> Result<()> {
        generations::keep(self, number)
    }

    fn generations(&self) -> Vec<u64> {
        self.view.load().generations.iter().map(|g| g.number).collect()
    }

    fn generation(&self, number: u64) -> Result<Option<Arc<dyn Snapshot>>> {
        let view = self.view.load();
        let found = view.generations.iter().find(|g| g.number == number);
        Ok(found.map(|generation| {
            let view = Arc::new(view.of_generation(generation));
            Arc::new(self.snapshot_of(view)) as Arc<dyn Snapshot>
        }))
    }

    fn drop_generation(&self, number: u64) -> Result<bool> {
        generations::forget(self, number)
    }

    fn roll_back(&self, number: u64) -> Result<()> {
        generations::roll_back(self, number)
    }

    fn close(&self) -> Result<()> {
        let mut writer = self.writer.lock();
        let upto = writer.next_ordinal();
        self.commit_locked(&mut writer, upto, Call::default())?; // a failure is said here, and not again
        while writer.syncing {
            self.synced.wait(&mut writer);
        }
        writer.has_catalog = true;
        writer.open.write_catalog()?;
        let view = self.checkpoint(View::clone(&self.view.load()))?;
        self.view.store(Arc::new(view));
        writer.poisoned.get_or_insert_with(|| "the store was closed".into());
        Ok(())
    }
}
