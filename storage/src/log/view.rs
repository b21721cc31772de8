//! What a reader of a log sees: an immutable picture of all segments, who is dead, and the index. A commit or a
//! compaction makes the next one; a reader keeps the one it has as long as it likes.

use std::sync::Arc;

use super::generations::Generation;
use super::lost::Lost;
use super::manifest::Counts;
use super::segment::Segment;
use crate::bits::Bitmap;
use crate::cache::RecordCache;
use crate::catalog::Row;
use crate::codec::Dictionaries;
use crate::dictionary_files::readable;
use crate::error::Result;
use crate::index::Run;
use crate::page::{PageId, PageKey};
use crate::record::{Kind, Record};
use crate::store::Trust;

/// A segment as of one view.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) segment: Arc<Segment>,
    /// By position: superseded or deleted pages, and all marks.
    pub(crate) dead: Arc<Bitmap>,
    pub(crate) end_ordinal: u64,
    /// No page in it was dead when the log ended at this ordinal.
    pub(crate) clean_to: u64,
    pub(crate) counts: Counts,
}

impl Part {
    /// Takes a record into account, alive or dead.
    pub(crate) fn count(&mut self, position: usize, row: &Row, len: u64) {
        match row.kind() {
            Kind::Page if self.dead.get(position) => self.counts.dead_pages += 1,
            Kind::Page => {
                self.counts.live_pages += 1;
                self.counts.live_bytes += len;
            }
            kind => {
                Arc::make_mut(&mut self.dead).set(position);
                match kind {
                    _ if row.is_damaged() => self.counts.dead_pages += 1,
                    Kind::Seen => self.counts.seen += 1,
                    _ => self.counts.tombstones += 1,
                }
            }
        }
    }

    fn bury(&mut self, ordinals: &[u64]) {
        let dead = Arc::make_mut(&mut self.dead);
        for position in ordinals.iter().filter_map(|&ordinal| self.segment.position(ordinal)) {
            if dead.set(position) {
                let bytes = self.segment.place(position).map_or(0, |p| p.end - p.start);
                self.counts.live_pages = self.counts.live_pages.saturating_sub(1);
                self.counts.live_bytes = self.counts.live_bytes.saturating_sub(bytes);
                self.counts.dead_pages += 1;
            }
        }
    }
}

/// An index run and the number of the file that holds it, if it is on disk.
#[derive(Clone, Debug)]
pub(crate) struct IndexRun {
    pub(crate) run: Arc<Run>,
    pub(crate) file: Option<u64>,
}

/// Where a record is: which part, which position in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) part: usize,
    pub(crate) position: usize,
}

/// How a lookup gets at records.
#[derive(Clone, Copy)]
pub(crate) struct How<'a> {
    pub(crate) trust: Trust,
    pub(crate) cache: Option<&'a RecordCache>,
    /// What records may be packed with.
    pub(crate) dictionaries: &'a Dictionaries,
    /// Whether to unpack them.
    pub(crate) unpack: bool,
}

impl How<'_> {
    /// The record at a position: from the cache, from the map, or from the disk.
    pub(crate) fn read(&self, part: &Part, position: usize, ordinal: u64) -> Result<Record> {
        // With nothing to verify and nothing to unpack, mapped bytes cost less than the cache.
        let worth = self.trust == Trust::Verify || self.unpack;
        let Some(cache) = self.cache.filter(|_| worth) else {
            return self.finish(part.segment.read(position, self.trust)?, part);
        };
        if let Some(record) = cache.get(ordinal) {
            if !self.unpack || record.is_unpacked() {
                return Ok(record);
            }
            let record = self.finish(record, part)?;
            cache.insert(ordinal, record.clone());
            return Ok(record);
        }
        let bytes = part.segment.place(position).map_or(0, |p| p.end - p.start);
        if !cache.wants(ordinal, bytes) {
            return self.finish(part.segment.read(position, self.trust)?, part);
        }
        let record = self.finish(part.segment.read_owned(position)?, part)?;
        cache.insert(ordinal, record.clone());
        Ok(record)
    }

    /// The record at a position as it is stored, if it is in memory: in the cache, or in the map, from where it enters the
    /// cache.
    fn read_warm(&self, part: &Part, position: usize, ordinal: u64) -> Option<Result<Record>> {
        let Some(cache) = self.cache else { return part.segment.read_resident(position, |_| false) };
        if let Some(record) = cache.get(ordinal) {
            return Some(Ok(record));
        }
        let mut enters = false;
        let read = part.segment.read_resident(position, |bytes| {
            enters = cache.wants(ordinal, bytes);
            enters
        });
        if let Some(Ok(record)) = &read
            && enters
            && self.dictionaries.has(record.get().dictionary())
        {
            cache.insert(ordinal, record.clone());
        }
        read
    }

    fn finish(&self, record: Record, part: &Part) -> Result<Record> {
        let record = readable(record, self.dictionaries, part.segment.path())?;
        if self.unpack { record.unpacked(self.dictionaries) } else { Ok(record) }
    }
}

/// A consistent picture of the store.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// In order of their ordinals; the last one is open.
    pub(crate) parts: Vec<Part>,
    pub(crate) runs: Vec<IndexRun>,
    /// The next ordinal.
    pub(crate) end: u64,
    /// The generations kept, ascending.
    pub(crate) generations: Vec<Arc<Generation>>,
    /// Records that nobody can tell the page of, ascending.
    pub(crate) lost: Vec<Lost>,
}

impl View {
    /// Where the record with this ordinal is, if it is still there.
    pub(crate) fn locate(&self, ordinal: u64) -> Option<Place> {
        let part = self.parts.partition_point(|p| p.segment.first_ordinal <= ordinal).checked_sub(1)?;
        let position = self.parts.get(part).filter(|p| ordinal < p.end_ordinal)?.segment.position(ordinal)?;
        Some(Place { part, position })
    }

    /// The part of a place.
    pub(crate) fn part(&self, place: Place) -> Option<&Part> {
        self.parts.get(place.part)
    }

    /// Whether the record with this ordinal is dead or gone.
    pub(crate) fn is_dead(&self, ordinal: u64) -> bool {
        self.locate(ordinal)
            .and_then(|place| self.part(place).map(|part| part.dead.get(place.position)))
            .unwrap_or(true)
    }

    /// Calls `found` with each living record the index suggests for `id`, until it says stop (true).
    pub(crate) fn candidates(&self, id: PageId, mut found: impl FnMut(&Part, usize, u64) -> bool) {
        for index in self.runs.iter().rev() {
            let stopped = index.run.find(id, |ordinal| {
                self.locate(ordinal).is_some_and(|place| {
                    self.part(place)
                        .is_some_and(|p| !p.dead.get(place.position) && found(p, place.position, ordinal))
                })
            });
            if stopped {
                return;
            }
        }
    }

    /// The living page with this key: its ordinal and row.
    pub(crate) fn find(&self, key: PageKey) -> Result<Option<(u64, Row)>> {
        let mut result = Ok(None);
        self.candidates(key.id, |part, position, ordinal| {
            match part.segment.row(position) {
                Ok(row) if row.key() != key || row.kind() != Kind::Page => return false,
                Ok(row) => result = Ok(Some((ordinal, row))),
                Err(e) => result = Err(e),
            }
            true
        });
        result
    }

    /// The record of the living page with this key.
    pub(crate) fn read(&self, key: PageKey, how: How<'_>) -> Result<Option<Record>> {
        let mut result = Ok(None);
        let mut found = None;
        self.candidates(key.id, |part, position, ordinal| {
            match how.read(part, position, ordinal) {
                Ok(record) if record.get().key() != key => return false,
                Ok(record) => result = Ok(Some(record)),
                // A damaged record of another page is not this lookup's business.
                Err(_) if part.segment.row(position).is_ok_and(|row| row.is_not(key)) => return false,
                Err(e) => result = Err(e),
            }
            found = Some(ordinal);
            true
        });
        result.and_then(|result| self.is_sure(found).map(|()| result))
    }

    /// As `read`, verified, from what is in memory; `None` when a disk would have to be waited for.
    pub(crate) fn read_warm(&self, key: PageKey, how: How<'_>) -> Option<Result<Option<Record>>> {
        if !self.lost.is_empty() {
            return None; // `read` finds out
        }
        let mut result = Some(Ok(None));
        self.candidates(key.id, |part, position, ordinal| {
            match how.read_warm(part, position, ordinal) {
                Some(Ok(record)) if record.key() != key => return false,
                Some(Ok(record)) if how.dictionaries.has(record.dictionary()) => {
                    result = Some(Ok(Some(record)));
                }
                // Cold, or damaged: `read` finds out whose damage it is.
                _ => result = None,
            }
            true
        });
        result
    }

    /// Marks these ordinals dead, in bitmaps of this view's own.
    pub(crate) fn bury(&mut self, mut ordinals: Vec<u64>) {
        ordinals.sort_unstable();
        let mut rest = ordinals.as_slice();
        while let Some(&first) = rest.first() {
            let part = self.parts.partition_point(|p| p.segment.first_ordinal <= first).saturating_sub(1);
            let next = self.parts.get(part + 1).map_or(u64::MAX, |p| p.segment.first_ordinal);
            let (here, later) = rest.split_at(rest.partition_point(|&o| o < next));
            rest = later;
            if let Some(part) = self.parts.get_mut(part) {
                part.bury(here);
            }
        }
    }

    /// Memory of index, places and bitmaps.
    pub(crate) fn memory_bytes(&self) -> usize {
        let parts = self.parts.iter().map(|p| p.segment.memory_bytes() + p.dead.memory_bytes());
        let runs = self.runs.iter().map(|r| r.run.memory_bytes());
        let generations = self.generations.iter().map(|g| g.memory_bytes());
        parts.sum::<usize>() + runs.sum::<usize>() + generations.sum::<usize>()
    }
}

/// Keeps the number of runs small: neighbours of like size become one, so that a lookup asks few and each entry is
/// moved only a logarithmic number of times.
pub(crate) fn merge_runs(view: &mut View) {
    while let [.., before, last] = view.runs.as_slice() {
        if before.run.len() > 4 * last.run.len() {
            break;
        }
        let merged = Run::merge(&[&before.run, &last.run], |ordinal| view.is_garbage(ordinal));
        view.runs.truncate(view.runs.len() - 2);
        view.runs.push(IndexRun { run: Arc::new(merged), file: None });
    }
}
