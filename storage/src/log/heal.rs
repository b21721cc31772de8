//! Damaged records get their bytes back, in place. A record's catalog row knows its length, key, version and checksum, so
//! the same record from another store can take the place of what is damaged.
//!
//! 1. Written over are only bytes that are no whole record, and only with the record that the row, or what is left of it,
//!    names. So ordinals, catalog, index, bitmaps, generations and cursors stay as they are, and what a reader holds of
//!    whole records does not change under it.
//! 2. A write that is torn leaves what was there before: damage.
//! 3. The segment that still grows is ended first: its appender writes past the page cache.
//! 4. A compaction under way is given up: it may have copied what was damaged.
//! 5. A record that cannot be read, or not be written, keeps none of the others from being healed.
//! 6. Mending leaves out no page that somebody needs, also if it is damaged while that goes on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::LogStore;
use super::segment::Segment;
use super::verify;
use super::view::{Part, View};
use super::writer::Call;
use crate::catalog::Row;
use crate::error::{Result, StorageError};
use crate::page::PageId;
use crate::record::{self, Kind, Record, RecordRef};
use crate::store::Verified;

/// Segments written to, and where.
#[derive(Default)]
struct Healed {
    places: BTreeMap<PathBuf, (Arc<Segment>, Vec<u64>)>,
}

impl Healed {
    fn write(&mut self, segment: &Arc<Segment>, offset: u64, bytes: &[u8]) -> Result<()> {
        let written = segment.file().write_all_at(bytes, offset);
        written.map_err(|e| StorageError::io("write", segment.path(), e))?;
        let path = segment.path().to_path_buf();
        self.places.entry(path).or_insert_with(|| (segment.clone(), Vec::new())).1.push(offset);
        Ok(())
    }

    /// Makes everything durable and returns how many records it was.
    fn finish(self, store: &LogStore) -> Result<u64> {
        let mut count = 0;
        for (path, (segment, offsets)) in &self.places {
            segment.file().sync().map_err(|e| StorageError::io("sync", path, e))?;
            store.found.lock().retain(|d| d.path != *path || !offsets.contains(&d.offset));
            count += offsets.len() as u64;
        }
        Ok(count)
    }
}

/// Whether what lies there is no whole record, or cannot be read.
fn is_damaged(segment: &Segment, position: usize) -> Result<bool> {
    let Some(place) = segment.place(position) else { return Ok(false) };
    match segment.file().read_vec((place.end - place.start) as usize, place.start) {
        Ok(bytes) => Ok(RecordRef::parse(&bytes).is_err()),
        Err(e) => match segment.read_error(e, place.start) {
            StorageError::Corrupt { .. } => Ok(true),
            e => Err(e),
        },
    }
}

/// Gives damaged records their bytes back; returns how many there were.
pub(super) fn heal(store: &LogStore, records: &[Record]) -> Result<u64> {
    let mut compaction = store.compaction.lock();
    let mut healed = Healed::default();
    let mut failed = None;
    for record in records {
        // A record handed over without its checksum verified heals nothing.
        let Ok(whole) = RecordRef::parse(record.bytes()) else { continue };
        let row = Row::of(&whole);
        let mut one = || -> Result<()> {
            for (part, position) in places(&store.view.load_full(), &row, record.bytes().len() as u64)? {
                if !is_damaged(&part.segment, position)? {
                    continue;
                }
                end_if_growing(store, &part)?;
                if let Some(place) = part.segment.place(position) {
                    *compaction = None;
                    healed.write(&part.segment, place.start, record.bytes())?;
                }
            }
            Ok(())
        };
        if let Err(e) = one() {
            failed.get_or_insert(e);
        }
    }
    let count = healed.finish(store)?;
    failed.map_or(Ok(count), Err)
}

/// Where the index has records of this row and length, living or not.
fn places(view: &View, row: &Row, len: u64) -> Result<Vec<(Part, usize)>> {
    let mut found = Vec::new();
    let mut failed = None;
    for index in &view.runs {
        index.run.find(row.key().id, |ordinal| {
            let place = view.locate(ordinal);
            let Some((part, place)) = place.and_then(|p| Some((view.part(p)?, p))) else { return false };
            let fits = part.segment.place(place.position).is_some_and(|p| p.end - p.start == len);
            match part.segment.stored_row(place.position) {
                Ok(stored) if fits && stored.resembles(row) => found.push((part.clone(), place.position)),
                Ok(_) => {}
                Err(e) => failed = Some(e),
            }
            false
        });
    }
    failed.map_or(Ok(found), Err)
}

/// Ends the segment that grows, if this is it.
fn end_if_growing(store: &LogStore, part: &Part) -> Result<()> {
    let mut writer = store.writer.lock();
    // Nothing is appended any more to a store that was closed.
    if writer.open.number != part.segment.number || writer.poisoned.is_some() {
        return Ok(());
    }
    store.check_writable(&writer)?;
    store.roll(&mut writer, Call::STAGES_NOTHING)
}

/// The record that lies at an offset of a segment's file.
fn at_offset<'a>(view: &'a View, path: &Path, offset: u64) -> Option<(&'a Part, usize)> {
    let part = view.parts.iter().find(|p| p.segment.path() == path)?;
    let (mut low, mut high) = (0, part.segment.position_from(part.end_ordinal));
    while low < high {
        let middle = low + (high - low) / 2;
        if part.segment.place(middle)?.start < offset {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    part.segment.place(low).filter(|place| place.start == offset).map(|_| (part, low))
}

/// The ids that the page of a record may have, judged by the index.
pub(super) fn ids_at(view: &View, path: &Path, offset: u64) -> Option<(PageId, PageId)> {
    let (part, position) = at_offset(view, path, offset)?;
    let ordinal = part.segment.ordinal(position);
    let mut entries = view.runs.iter().flat_map(|index| index.run.iter_from(PageId(0)));
    let (prefix, _) = entries.find(|(_, of)| *of == ordinal)?;
    Some((PageId(prefix << 24), PageId(prefix << 24 | 0xff_ffff)))
}

/// Makes anew what the rest of the log tells: marks from their rows, catalogs and small files. Damaged records that no state
/// needs go. While a page is damaged nothing else is touched. Returns what is damaged afterwards.
pub(super) fn mend(store: &LogStore) -> Result<Verified> {
    let report = verify::verify(store)?;
    let view = store.view.load_full();
    let mut healed = Healed::default();
    let mut pages = false;
    for damage in &report.damage {
        let Some((part, position)) = at_offset(&view, &damage.path, damage.offset) else { continue };
        if !is_damaged(&part.segment, position)? {
            continue; // it is the index that was damaged
        }
        match mark_of(&part.segment.stored_row(position)?) {
            Some(mark) => {
                end_if_growing(store, part)?;
                *store.compaction.lock() = None;
                healed.write(&part.segment, damage.offset, &mark)?;
            }
            None => pages |= !view.garbage(part).0.get(position),
        }
    }
    healed.finish(store)?;
    if !pages && !report.damage.is_empty() {
        verify::repair(store, false)?;
    }
    verify::verify(store)
}

/// The mark that a row is of: nothing of it stands elsewhere.
fn mark_of(row: &Row) -> Option<Vec<u8>> {
    if !row.is_whole() || row.is_damaged() || row.kind() == Kind::Page {
        return None;
    }
    let (version, mut bytes) = (row.version(), Vec::new());
    record::encode_mark(row.kind(), row.key(), version.fetched_at_ms, row.lifetime_s(), &mut bytes);
    RecordRef::parse(&bytes).ok().filter(|mark| mark.version() == version)?;
    Some(bytes)
}
