//! Opening a log: from its manifest and checkpoint in the ordinary case, plus the records written since; from the
//! segments alone when the manifest, the index or a catalog is damaged.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::{Condvar, Mutex};

use super::deadlines::Deadlines;
use super::generations;
use super::manifest::{self, Counts, Manifest, SegmentEntry};
use super::scan::scan;
use super::segment::{self, OpenPlaces, RECORDS_OFFSET, Segment, SegmentHeader};
use super::view::{IndexRun, Part, View};
use super::writer::{Batch, Writer};
use super::{LogStore, apply};
use crate::bits::Bitmap;
use crate::cache::RecordCache;
use crate::catalog::Row;
use crate::disk::{self, Disk, DiskLock};
use crate::error::{Result, StorageError};
use crate::index::Run;
use crate::packer::Packer;
use crate::page::PageKey;
use crate::record::Kind;
use crate::store::{Damage, Options};

/// The open segment of a store being opened.
struct Last {
    end: u64,
    mark_sequence: u64,
    has_catalog: bool,
}

impl LogStore {
    /// Opens the log in `dir`, whose lock is held.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        (packer, mut found): (Packer, Vec<Damage>),
        options: &Options,
        lock: Box<dyn DiskLock>,
    ) -> Result<LogStore> {
        let (manifest, mut rebuild) = match Manifest::read(&*disk, dir) {
            Ok(Some(manifest)) => (manifest, false),
            Ok(None) => (reconstruct(&*disk, dir)?, true),
            Err(StorageError::Corrupt { path, offset, what }) => {
                found.push(Damage { path, offset, what, key: None });
                (reconstruct(&*disk, dir)?, true)
            }
            Err(e) => return Err(e),
        };
        let mut store = LogStore {
            disk: disk.clone(),
            dir: dir.to_path_buf(),
            options: options.clone(),
            packer,
            view: ArcSwap::default(),
            cache: RecordCache::new(options.cache_bytes).map(Arc::new),
            // Replaced below, when the open segment is known.
            writer: Mutex::new(Writer::new(Arc::new(Segment::nowhere(&disk, dir)?), 0, 0, 0, false)),
            synced: Condvar::new(),
            deadlines: Mutex::default(),
            compaction: Mutex::new(None),
            next_file: Mutex::new(manifest.next_file),
            found: Mutex::default(),
            _lock: lock,
        };
        let (mut view, last) = store.open_segments(&manifest, &mut found, &mut rebuild)?;
        view.generations = generations::load(&*disk, dir, &manifest, &view, &mut found)?;
        if !rebuild {
            match load_checkpoint(&*disk, dir, &manifest, &mut view) {
                Err(StorageError::Corrupt { path, offset, what }) => {
                    found.push(Damage { path, offset, what, key: None });
                    rebuild = true;
                }
                loaded => loaded?,
            }
        }
        match Deadlines::open(&*disk, dir, manifest.deadline_file) {
            Ok(deadlines) => *store.deadlines.lock() = deadlines,
            Err(StorageError::Corrupt { path, offset, what }) => {
                found.push(Damage { path, offset, what, key: None });
                rebuild = true;
            }
            Err(e) => return Err(e),
        }
        let deadlines =
            if rebuild { rebuild_all(&mut view)? } else { replay(&mut view, manifest.checkpoint)? };
        store.deadlines.lock().set(&deadlines);
        // What the index does not know.
        view.find_lost(if rebuild { 0 } else { manifest.checkpoint })?;
        let open = match view.parts.last() {
            Some(part) => part.segment.clone(),
            None => {
                return Err(StorageError::NotAStore {
                    path: dir.to_path_buf(),
                    what: "it has no segment".into(),
                });
            }
        };
        store.writer =
            Mutex::new(Writer::new(open, last.end, view.end, last.mark_sequence, last.has_catalog));
        remove_strangers(&*disk, dir, &manifest, true)?;
        if rebuild {
            view = store.checkpoint(view)?;
        }
        store.view.store(Arc::new(view));
        *store.found.lock() = found;
        Ok(store)
    }

    fn open_segments(
        &self,
        manifest: &Manifest,
        found: &mut Vec<Damage>,
        rebuild: &mut bool,
    ) -> Result<(View, Last)> {
        let mut view = View::default();
        let mut last = Last { end: RECORDS_OFFSET, mark_sequence: 0, has_catalog: false };
        for (i, entry) in manifest.segments.iter().enumerate() {
            let is_last = i + 1 == manifest.segments.len();
            let path = self.dir.join(segment::file_name(entry.number));
            let file = match self.disk.open(&path, false) {
                Ok(file) => file,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound && !is_last => {
                    found.push(Damage {
                        path,
                        offset: 0,
                        what: "the segment file is missing".into(),
                        key: None,
                    });
                    *rebuild = true;
                    continue;
                }
                Err(e) => return Err(StorageError::io("open", &path, e)),
            };
            let segment = if is_last {
                let (places, end, has_catalog) = match segment::read_open_places(&*file) {
                    Ok((places, end)) => (places, end, true),
                    Err(StorageError::Corrupt { .. }) => {
                        let (places, end) = self.rescan(&*file, &path, found)?;
                        (places, end, false)
                    }
                    Err(e) => return Err(e),
                };
                let header = SegmentHeader::read(&*file).ok();
                let sequence = header.and_then(|h| h.durable).map_or(0, |(sequence, _)| sequence);
                last = Last { end, mark_sequence: sequence, has_catalog };
                if !has_catalog {
                    // What lies beyond the end must never be taken for records later.
                    file.set_len(end).map_err(|e| StorageError::io("cut", &path, e))?;
                    file.sync().map_err(|e| StorageError::io("sync", &path, e))?;
                }
                Segment::open(&self.disk, file, entry.number, entry.first_ordinal, places, self.map_bytes())
            } else {
                match Segment::sealed(&self.disk, file.clone(), entry.number, false) {
                    Ok(segment) => segment,
                    Err(StorageError::Corrupt { path, offset, what }) => {
                        found.push(Damage { path: path.clone(), offset, what, key: None });
                        let (places, _) = self.rescan(&*file, &path, found)?;
                        // As many records as ordinals: the index and the bitmaps of the checkpoint hold.
                        *rebuild |= entry.first_ordinal + places.rows.len() as u64 != entry.end_ordinal;
                        let bytes = file.len().map_err(|e| StorageError::io("read", &path, e))?;
                        Segment::open(&self.disk, file, entry.number, entry.first_ordinal, places, bytes)
                    }
                    Err(e) => return Err(e),
                }
            };
            let end_ordinal =
                if is_last { segment.first_ordinal + segment.count() as u64 } else { entry.end_ordinal };
            view.parts.push(Part {
                segment: Arc::new(segment),
                dead: Arc::new(Bitmap::default()),
                end_ordinal,
                clean_to: entry.clean_to,
                counts: entry.counts,
            });
            view.end = end_ordinal;
        }
        Ok((view, last))
    }

    /// Finds the records of a segment without its catalog.
    fn rescan(
        &self,
        file: &dyn disk::DiskFile,
        path: &Path,
        found: &mut Vec<Damage>,
    ) -> Result<(OpenPlaces, u64)> {
        let len = file.len().map_err(|e| StorageError::io("read", path, e))?;
        // Without a readable mark, everything there was durable as far as anyone knows.
        let durable = match SegmentHeader::read(file) {
            Ok(SegmentHeader { durable: Some((_, offset)), .. }) => offset,
            Ok(_) => len,
            Err(StorageError::Corrupt { path, offset, what }) => {
                found.push(Damage { path, offset, what, key: None });
                len
            }
            Err(e) => return Err(e),
        };
        let scan = scan(file, durable, len)?;
        found.extend(scan.damage);
        Ok((scan.places, scan.end))
    }
}

impl Segment {
    /// A segment of no store, to hold a place for a moment.
    fn nowhere(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Segment> {
        let path = dir.join("LOCK.segment");
        let file = disk.open(&path, true).map_err(|e| StorageError::io("create", &path, e))?;
        let segment = Segment::open(disk, file, 0, 0, OpenPlaces::default(), 0);
        segment.retire();
        Ok(segment)
    }
}

/// Index runs and dead bitmaps of the checkpoint.
fn load_checkpoint(disk: &dyn Disk, dir: &Path, manifest: &Manifest, view: &mut View) -> Result<()> {
    let read = |name: String| {
        let path = dir.join(name);
        let bytes = disk::read_file(disk, &path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => StorageError::corrupt(&path, 0, "the file is missing"),
            _ => StorageError::io("read", &path, e),
        });
        bytes.map(|bytes| (path, bytes))
    };
    for &number in &manifest.runs {
        let (path, bytes) = read(format!("index-{number}"))?;
        let run = Run::decode(&bytes).map_err(|what| StorageError::corrupt(&path, 0, what))?;
        view.runs.push(IndexRun { run: Arc::new(run), file: Some(number) });
    }
    let (path, bytes) = read(format!("dead-{}", manifest.dead_file))?;
    let mut dead = manifest::decode_dead(&bytes).map_err(|what| StorageError::corrupt(&path, 0, what))?;
    for part in &mut view.parts {
        part.dead = Arc::new(dead.remove(&part.segment.number).unwrap_or_default());
    }
    Ok(())
}

/// Checks the files of the checkpoint on disk.
pub(super) fn verify_checkpoint(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let missing = || StorageError::corrupt(&manifest::path(dir), 0, "the manifest is missing");
    let manifest = Manifest::read(disk, dir)?.ok_or_else(missing)?;
    load_checkpoint(disk, dir, &manifest, &mut View::default())?;
    Deadlines::open(disk, dir, manifest.deadline_file).map(|_| ())
}

/// Applies the records from ordinal `from` on, which the checkpoint does not know. Returns new deadlines.
fn replay(view: &mut View, from: u64) -> Result<Vec<(u64, u64)>> {
    let Some(part) = view.parts.last().cloned() else { return Ok(Vec::new()) };
    let first_ordinal = from.max(part.segment.first_ordinal);
    let skip = (first_ordinal - part.segment.first_ordinal) as usize;
    let mut batch = Batch { first_ordinal, ..Batch::default() };
    let mut latest: HashMap<PageKey, Option<u64>> = HashMap::new();
    let rows = part.segment.rows(usize::MAX)?;
    for (position, row) in rows.into_iter().enumerate().skip(skip) {
        let ordinal = part.segment.ordinal(position);
        let len = part.segment.place(position).map_or(0, |p| (p.end - p.start) as u32);
        batch.rows.push((row, len));
        if row.is_damaged() {
            continue;
        }
        let before = match latest.get(&row.key()) {
            Some(&before) => before,
            None => view.find(row.key())?.map(|(ordinal, _)| ordinal),
        };
        match row.kind() {
            Kind::Seen => {
                batch.deadlines.extend(before.map(|page| (page, row.deadline_ms().unwrap_or(u64::MAX))));
            }
            kind => {
                batch.victims.extend(before);
                latest.insert(row.key(), (kind == Kind::Page).then_some(ordinal));
            }
        }
    }
    if !batch.rows.is_empty() {
        apply(view, &batch);
    }
    Ok(batch.deadlines)
}

/// The deadlines of a view as far as the log still says them.
pub(super) fn deadlines_in_log(view: &View) -> Result<Deadlines> {
    let mut deadlines = Deadlines::default();
    deadlines.set(&rebuild_all(&mut view.clone())?);
    Ok(deadlines)
}

/// Makes index, bitmaps and counts anew from all rows: of the records of a page the last one holds. The index has also
/// what only kept generations need.
pub(super) fn rebuild_all(view: &mut View) -> Result<Vec<(u64, u64)>> {
    let mut rows: Vec<(PageKey, u64, Row)> = Vec::new();
    for part in &view.parts {
        let all = part.segment.rows(part.segment.position_from(part.end_ordinal))?;
        let numbered = all.into_iter().enumerate();
        rows.extend(
            numbered
                .map(|(i, row)| (row.key(), part.segment.ordinal(i), row))
                .filter(|(.., r)| !r.is_damaged()),
        );
    }
    rows.sort_unstable_by_key(|(key, ordinal, _)| (*key, *ordinal));
    let (mut dead, mut deadlines) = (Vec::new(), Vec::new());
    for same_page in rows.chunk_by(|a, b| a.0 == b.0) {
        let mut living = None;
        for (_, ordinal, row) in same_page {
            match row.kind() {
                Kind::Seen => {
                    deadlines.extend(living.map(|page| (page, row.deadline_ms().unwrap_or(u64::MAX))));
                }
                kind => {
                    dead.extend(living);
                    living = (kind == Kind::Page).then_some(*ordinal);
                }
            }
        }
    }
    for part in &mut view.parts {
        (part.counts, part.dead) = (Counts::default(), Arc::default());
        let all = part.segment.rows(part.segment.position_from(part.end_ordinal))?;
        for (position, row) in all.iter().enumerate() {
            let len = part.segment.place(position).map_or(0, |p| p.end - p.start);
            part.count(position, row, len);
        }
    }
    view.bury(dead);
    let pages =
        rows.iter().filter(|(_, ordinal, row)| row.kind() == Kind::Page && !view.is_garbage(*ordinal));
    let entries = pages.map(|(key, ordinal, _)| (key.id, *ordinal)).collect();
    view.runs = vec![IndexRun { run: Arc::new(Run::build(entries, 0..view.end)), file: None }];
    Ok(deadlines)
}

/// A manifest made from the segments there are.
fn reconstruct(disk: &dyn Disk, dir: &Path) -> Result<Manifest> {
    let names = disk.list(dir).map_err(|e| StorageError::io("list", dir, e))?;
    let mut by_first: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut next_file = 1;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| segment::number_of(name)).collect();
    numbers.sort_unstable();
    for name in &names {
        let number = name.rsplit('-').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        next_file = next_file.max(number + 1);
    }
    for number in numbers {
        let path = dir.join(segment::file_name(number));
        let file = disk.open(&path, false).map_err(|e| StorageError::io("open", &path, e))?;
        let Ok(header) = SegmentHeader::read(&*file) else { continue };
        let len = file.len().map_err(|e| StorageError::io("read", &path, e))?;
        let first = header.first_ordinal;
        // Compaction gives its result a higher number than its sources: if it was finished, it replaces all it covers.
        let sealed_end = segment::sealed_ordinals(&*file).map(|range| range.end);
        let covered: Vec<u64> = by_first
            .range(first..)
            .filter(|(_, (_, end))| Some(*end) <= sealed_end)
            .map(|(&f, _)| f)
            .collect();
        match sealed_end {
            Some(end) => {
                by_first.retain(|first, _| !covered.contains(first));
                by_first.insert(first, (number, end));
            }
            None if by_first.range(..=first).next_back().is_none_or(|(_, (_, end))| *end <= first) => {
                let records =
                    if len > RECORDS_OFFSET { scan(&*file, len, len)?.places.rows.len() } else { 0 };
                by_first.insert(first, (number, first + records as u64));
            }
            None => {}
        }
    }
    let segments = by_first.iter().map(|(&first_ordinal, &(number, end_ordinal))| SegmentEntry {
        number,
        first_ordinal,
        end_ordinal,
        clean_to: 0,
        counts: Counts::default(),
    });
    let segments: Vec<SegmentEntry> = segments.collect();
    if segments.is_empty() {
        let what = "neither a manifest nor a segment can be read".into();
        return Err(StorageError::NotAStore { path: dir.to_path_buf(), what });
    }
    let mut manifest = Manifest { next_file, segments, ..Manifest::default() };
    manifest.generations = generations::reconstruct(disk, dir, &names, &manifest);
    Ok(manifest)
}

/// Removes files that the manifest does not name. Segments only when the store is being opened: later, readers and
/// compaction have some that are in no manifest.
pub(super) fn remove_strangers(
    disk: &dyn Disk,
    dir: &Path,
    manifest: &Manifest,
    opening: bool,
) -> Result<()> {
    let names = disk.list(dir).map_err(|e| StorageError::io("list", dir, e))?;
    for name in names {
        let number = name.rsplit('-').next().and_then(|n| n.parse::<u64>().ok());
        let named = |number: Option<u64>, known: &[u64]| number.is_some_and(|n| known.contains(&n));
        let keep = match name.split('-').next() {
            _ if name.ends_with(".next") => !opening,
            Some("segment") => !opening || manifest.segments.iter().any(|s| Some(s.number) == number),
            Some("index") => named(number, &manifest.runs),
            Some("dead") => named(number, &[manifest.dead_file]),
            Some("deadlines") => {
                named(number, &[manifest.deadline_file])
                    || manifest.generations.iter().any(|g| Some(g.deadline_file) == number)
            }
            Some("generation") => manifest.generations.iter().any(|g| Some(g.file) == number),
            _ => true,
        };
        if !keep {
            let path = dir.join(&name);
            disk.remove(&path).map_err(|e| StorageError::io("remove", &path, e))?;
        }
    }
    Ok(())
}
