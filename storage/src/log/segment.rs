//! One file of a log: records in the order of their ordinals, and behind them, once sealed, their catalog.
//!
//! ```text
//!      0     4  magic "WBSG"
//!      4     4  version
//!      8     8  segment number
//!     16     8  first ordinal
//!     24     8  CRC-64 of 0..24
//!     32    24  durable mark, even (mark.rs)
//!    544    24  durable mark, odd
//!   4096     …  records
//!      …     …  catalog and trailer (catalog.rs), when sealed or closed
//! ```
//!
//! 1. After a sync the durable mark, the one of the two with the higher sequence, moves to the end of what was
//!    synced. Below it a bad record is damage; beyond it, it is the end of the log.
//! 2. Bytes below the mark never change, but for the marks themselves, and for damaged records that get their bytes back
//!    (heal.rs).
//! 3. Record number i of a segment (its *position*) has ordinal `first + i`, or, where compaction left gaps, the
//!    i-th ordinal of the catalog's list.

use std::cell::Cell;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bytes::Bytes;
use parking_lot::RwLock;
use zerocopy::FromBytes;

use super::ordinals::Ordinals;
use crate::catalog::{self, ROW_BYTES, Row, Sealed};
use crate::disk::{Disk, DiskFile};
use crate::error::{Result, StorageError};
use crate::mark;
use crate::record::{Record, crc64};
use crate::store::Trust;

const MAGIC: [u8; 4] = *b"WBSG";
/// Where records begin.
pub(crate) const RECORDS_OFFSET: u64 = mark::HEAD_BYTES as u64;
/// Offsets within a segment are 32 bits; one may grow to twice this and a page of at most 1 GiB.
pub(crate) const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// The name of segment `number`.
pub(crate) fn file_name(number: u64) -> String {
    format!("segment-{number:010}")
}

/// The number in a segment's file name.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix("segment-")?.parse().ok()
}

/// A segment's file and what is known of its records.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) number: u64,
    pub(crate) first_ordinal: u64,
    file: Arc<dyn DiskFile>,
    map: Option<Bytes>,
    places: Places,
    disk: Arc<dyn Disk>,
    obsolete: AtomicBool,
    /// Lookups in a row that found their record in memory.
    streak: AtomicU32,
}

thread_local! {
    /// Counts this thread's lookups.
    static TURN: Cell<u32> = const { Cell::new(0) };
}

#[derive(Debug)]
enum Places {
    /// Still growing: everything in memory.
    Open(RwLock<OpenPlaces>),
    /// Complete: rows on disk.
    Sealed { offsets: Vec<u32>, ordinals: Ordinals, rows_offset: u64 },
}

/// What is known of a growing segment.
#[derive(Debug, Default, Clone)]
pub(crate) struct OpenPlaces {
    pub(crate) rows: Vec<Row>,
    /// Start of each record, and the end of the last.
    pub(crate) offsets: Vec<u32>,
}

/// A segment's fixed header as bytes.
pub(crate) fn header(number: u64, first_ordinal: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(RECORDS_OFFSET as usize);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&crate::identity::VERSION.to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&first_ordinal.to_le_bytes());
    out.extend_from_slice(&crc64(&out).to_le_bytes());
    out.extend_from_slice(&mark::encode(number, 0, RECORDS_OFFSET));
    out.resize(RECORDS_OFFSET as usize, 0);
    out
}

/// What a segment's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) number: u64,
    pub(crate) first_ordinal: u64,
    /// Sequence and offset of the durable mark; `None` when both are unreadable.
    pub(crate) durable: Option<(u64, u64)>,
}

impl SegmentHeader {
    /// Reads the header of a segment file.
    pub(crate) fn read(file: &dyn DiskFile) -> Result<SegmentHeader> {
        let mut bytes = vec![0; 1024];
        let there = file.len().map_err(|e| StorageError::io("read", file.path(), e))?.min(1024) as usize;
        bytes.truncate(there);
        file.read_exact_at(&mut bytes, 0).map_err(|e| StorageError::io("read", file.path(), e))?;
        let word =
            |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
        if bytes.get(..4) != Some(&MAGIC) || crc64(bytes.get(..24).unwrap_or_default()) != word(24) {
            return Err(StorageError::corrupt(file.path(), 0, "segment header damaged"));
        }
        let number = word(8);
        let durable = mark::newest(&bytes, number);
        Ok(SegmentHeader { number, first_ordinal: word(16), durable })
    }
}

impl Segment {
    /// Creates an empty segment, durable with its name.
    pub(crate) fn create(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        number: u64,
        first_ordinal: u64,
        map_bytes: u64,
    ) -> Result<Segment> {
        let path = dir.join(file_name(number));
        let fail = |op| move |e| StorageError::io(op, &dir.join(file_name(number)), e);
        let file = disk.open(&path, true).map_err(fail("create"))?;
        file.write_all_at(&header(number, first_ordinal), 0).map_err(fail("write"))?;
        file.sync().map_err(fail("sync"))?;
        disk.sync_dir(dir).map_err(fail("sync the folder of"))?;
        let places = OpenPlaces { rows: Vec::new(), offsets: vec![RECORDS_OFFSET as u32] };
        Ok(Self::open(disk, file, number, first_ordinal, places, map_bytes))
    }

    /// A growing segment whose records so far are known.
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        file: Arc<dyn DiskFile>,
        number: u64,
        first_ordinal: u64,
        places: OpenPlaces,
        map_bytes: u64,
    ) -> Segment {
        Segment {
            number,
            first_ordinal,
            map: file.map(map_bytes),
            file,
            places: Places::Open(RwLock::new(places)),
            disk: disk.clone(),
            obsolete: AtomicBool::new(false),
            streak: AtomicU32::new(0),
        }
    }

    /// A complete segment, described by the trailer of its file. `check` reads and checks the whole catalog.
    pub(crate) fn sealed(
        disk: &Arc<dyn Disk>,
        file: Arc<dyn DiskFile>,
        number: u64,
        check: bool,
    ) -> Result<Segment> {
        let (sealed, places) = read_catalog(&*file, check)?;
        let damaged = |what| StorageError::corrupt(file.path(), sealed.catalog_offset, what);
        let (offsets, list) = sealed.decode_places(&places).map_err(damaged)?;
        let count = sealed.count as u64;
        let ordinals = match list {
            None if sealed.end_ordinal < sealed.first_ordinal + count => {
                return Err(damaged("more records than ordinals".into()));
            }
            None => Ordinals::dense(sealed.count),
            Some(list) => Ordinals::sparse(list),
        };
        let len = sealed.catalog_offset + (sealed.catalog_bytes() + catalog::TRAILER_BYTES) as u64;
        Ok(Segment {
            number,
            first_ordinal: sealed.first_ordinal,
            map: file.map(len),
            file,
            places: Places::Sealed { offsets, ordinals, rows_offset: sealed.catalog_offset },
            disk: disk.clone(),
            obsolete: AtomicBool::new(false),
            streak: AtomicU32::new(0),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    pub(crate) fn file(&self) -> &Arc<dyn DiskFile> {
        &self.file
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.places, Places::Open(_))
    }

    /// Records it has.
    pub(crate) fn count(&self) -> usize {
        match &self.places {
            Places::Open(places) => places.read().rows.len(),
            Places::Sealed { offsets, .. } => offsets.len().saturating_sub(1),
        }
    }

    /// Where its records end.
    pub(crate) fn records_end(&self) -> u64 {
        match &self.places {
            Places::Open(places) => places.read().offsets.last().copied().unwrap_or(0).into(),
            Places::Sealed { rows_offset, .. } => *rows_offset,
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        match &self.places {
            Places::Open(places) => {
                let places = places.read();
                places.rows.capacity() * ROW_BYTES + places.offsets.capacity() * 4
            }
            Places::Sealed { offsets, ordinals, .. } => offsets.capacity() * 4 + ordinals.memory_bytes(),
        }
    }

    /// The position of the record with this ordinal.
    pub(crate) fn position(&self, ordinal: u64) -> Option<usize> {
        let relative = ordinal.checked_sub(self.first_ordinal)?;
        match &self.places {
            Places::Open(_) => Some(relative as usize),
            Places::Sealed { ordinals, .. } => ordinals.position(relative),
        }
    }

    /// The position of the first record whose ordinal is not below this one.
    pub(crate) fn position_from(&self, ordinal: u64) -> usize {
        let relative = ordinal.saturating_sub(self.first_ordinal);
        match &self.places {
            Places::Open(_) => relative as usize,
            Places::Sealed { ordinals, .. } => ordinals.position_from(relative),
        }
    }

    /// The ordinal of the record at a position.
    pub(crate) fn ordinal(&self, position: usize) -> u64 {
        self.first_ordinal
            + match &self.places {
                Places::Open(_) => position as u64,
                Places::Sealed { ordinals, .. } => ordinals.at(position),
            }
    }

    /// Where the record at a position lies.
    pub(crate) fn place(&self, position: usize) -> Option<Range<u64>> {
        let of = |offsets: &[u32]| {
            Some(u64::from(*offsets.get(position)?)..u64::from(*offsets.get(position + 1)?))
        };
        match &self.places {
            Places::Open(places) => of(&places.read().offsets),
            Places::Sealed { offsets, .. } => of(offsets),
        }
    }

    /// The offsets where records begin from a position on, at most so many, and where the last of them ends: nothing if there
    /// is none.
    pub(crate) fn offsets_from(&self, position: usize, count: usize, out: &mut Vec<u32>) {
        out.clear();
        let mut of = |offsets: &[u32]| {
            let from = offsets.get(position..).unwrap_or_default();
            out.extend_from_slice(from.get(..=count).unwrap_or(from));
        };
        match &self.places {
            Places::Open(places) => of(&places.read().offsets),
            Places::Sealed { offsets, .. } => of(offsets),
        }
    }

    /// The catalog row of the record at a position.
    pub(crate) fn row(&self, position: usize) -> Result<Row> {
        let row = self.stored_row(position)?;
        if self.is_open() { Ok(row) } else { self.whole(row, position) }
    }

    /// The catalog row of the record at a position as it stands there, damaged or not.
    pub(crate) fn stored_row(&self, position: usize) -> Result<Row> {
        let missing = || StorageError::corrupt(self.path(), 0, format!("no record number {position}"));
        match &self.places {
            Places::Open(places) => places.read().rows.get(position).copied().ok_or_else(missing),
            Places::Sealed { rows_offset, .. } => {
                let at = rows_offset + (position * ROW_BYTES) as u64;
                let mut bytes = [0; ROW_BYTES];
                match self.map.as_ref().and_then(|m| m.get(at as usize..at as usize + ROW_BYTES)) {
                    Some(mapped) => bytes.copy_from_slice(mapped),
                    None => {
                        let read = self.file.read_exact_at(&mut bytes, at);
                        read.map_err(|e| StorageError::io("read", self.path(), e))?;
                    }
                }
                Row::read_from_bytes(&bytes).map_err(|_| missing())
            }
        }
    }

    /// All rows up to `count`, read at once.
    pub(crate) fn rows(&self, count: usize) -> Result<Vec<Row>> {
        match &self.places {
            Places::Open(places) => Ok(places.read().rows.iter().take(count).copied().collect()),
            Places::Sealed { rows_offset, .. } => {
                let mut bytes = vec![0; count.min(self.count()) * ROW_BYTES];
                let read = self.file.read_exact_at(&mut bytes, *rows_offset);
                read.map_err(|e| StorageError::io("read", self.path(), e))?;
                let rows =
                    bytes.as_chunks::<ROW_BYTES>().0.iter().filter_map(|b| Row::read_from_bytes(b).ok());
                rows.enumerate().map(|(position, row)| self.whole(row, position)).collect()
            }
        }
    }

    /// A damaged row is made again from its record.
    fn whole(&self, row: Row, position: usize) -> Result<Row> {
        if row.is_whole() { Ok(row) } else { Ok(Row::of(&self.read(position, Trust::Verify)?.get())) }
    }

    /// The record at a position: from the map where it is in memory, else by one read of exactly its bytes.
    pub(crate) fn read(&self, position: usize, trust: Trust) -> Result<Record> {
        let place = self
            .place(position)
            .ok_or_else(|| StorageError::corrupt(self.path(), 0, format!("no record number {position}")))?;
        if let Some(map) = &self.map
            && place.end <= map.len() as u64
        {
            let bytes = map.slice(place.start as usize..place.end as usize);
            if trust == Trust::Disk || self.is_resident(&bytes) {
                return self.record(bytes, place.start, trust);
            }
        }
        self.read_place(&place, trust)
    }

    /// The record at a position, verified, in memory of its own.
    pub(crate) fn read_owned(&self, position: usize) -> Result<Record> {
        let place = self
            .place(position)
            .ok_or_else(|| StorageError::corrupt(self.path(), 0, format!("no record number {position}")))?;
        self.read_place(&place, Trust::Verify)
    }

    fn read_place(&self, place: &Range<u64>, trust: Trust) -> Result<Record> {
        let len = (place.end - place.start) as usize;
        let bytes = self.file.read_vec(len, place.start).map_err(|e| self.read_error(e, place.start))?;
        self.record(bytes.into(), place.start, trust)
    }

    /// The record at a position, verified, if its bytes are mapped and in memory; in memory of its own if that is wanted
    /// of a record of so many bytes.
    pub(crate) fn read_resident(
        &self,
        position: usize,
        own: impl FnOnce(u64) -> bool,
    ) -> Option<Result<Record>> {
        let place = self.place(position)?;
        let mut bytes = self.mapped(&place).filter(|bytes| self.is_resident(bytes))?;
        if own(bytes.len() as u64) {
            bytes = Bytes::copy_from_slice(&bytes);
        }
        Some(self.record(bytes, place.start, Trust::Verify))
    }

    /// Whether mapped bytes are in memory. Asking the system costs as much as half a small record's checksum, so after a
    /// long run of yeses only every eighth lookup asks, until one is a no. A wrong guess costs time, not correctness.
    pub(crate) fn is_resident(&self, mapped: &[u8]) -> bool {
        const LONG: u32 = 4096;
        let streak = self.streak.load(Ordering::Relaxed);
        if streak >= LONG && !TURN.replace(TURN.get().wrapping_add(1)).is_multiple_of(8) {
            return true;
        }
        let resident = self.file.is_resident(mapped);
        if !resident || streak < LONG {
            self.streak.store(if resident { streak + 1 } else { 0 }, Ordering::Relaxed);
        }
        resident
    }

    /// The mapped bytes of a place, where there is a map.
    pub(crate) fn mapped(&self, place: &Range<u64>) -> Option<Bytes> {
        let map = self.map.as_ref()?;
        (place.end <= map.len() as u64).then(|| map.slice(place.start as usize..place.end as usize))
    }

    /// Bytes read from `offset` as a record, or the damage they show.
    pub(crate) fn record(&self, bytes: Bytes, offset: u64, trust: Trust) -> Result<Record> {
        let parsed = match trust {
            Trust::Verify => Record::new(bytes),
            Trust::Disk => Record::new_unverified(bytes),
        };
        match parsed {
            Ok(record) => Ok(record),
            Err(e) => Err(StorageError::corrupt(self.path(), offset, e)),
        }
    }

    /// What a read of a record met.
    pub(crate) fn read_error(&self, e: std::io::Error, offset: u64) -> StorageError {
        StorageError::read(self.path(), offset, e)
    }

    /// Makes rows of committed records known to readers.
    pub(crate) fn extend(&self, rows: impl Iterator<Item = (Row, u32)>) {
        if let Places::Open(places) = &self.places {
            let mut places = places.write();
            let mut end = places.offsets.last().copied().unwrap_or(RECORDS_OFFSET as u32);
            for (row, len) in rows {
                end += len;
                places.rows.push(row);
                places.offsets.push(end);
            }
        }
    }

    /// Moves the durable mark, without syncing it.
    pub(crate) fn write_mark(&self, sequence: u64, offset: u64) -> std::io::Result<()> {
        mark::write(&*self.file, self.number, sequence, offset)
    }

    /// Writes the catalog of an open segment behind its records and syncs.
    pub(crate) fn write_catalog(&self) -> Result<()> {
        let Places::Open(places) = &self.places else { return Ok(()) };
        let places = places.read();
        let end = places.offsets.last().copied().unwrap_or(RECORDS_OFFSET as u32).into();
        let ordinals = (self.first_ordinal, self.first_ordinal + places.rows.len() as u64);
        let bytes = catalog::encode(&places.rows, &places.offsets, None, ordinals, end);
        let fail = |op| move |e| StorageError::io(op, self.path(), e);
        self.file.write_all_at(&bytes, end).map_err(fail("write"))?;
        self.file.set_len(end + bytes.len() as u64).map_err(fail("cut"))?;
        self.file.sync().map_err(fail("sync"))
    }

    /// Marks the file for removal when its last reader is gone.
    pub(crate) fn retire(&self) {
        self.obsolete.store(true, Ordering::Release);
    }
}

impl Segment {
    /// Takes `retire` back.
    pub(crate) fn keep(&self) {
        self.obsolete.store(false, Ordering::Release);
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if self.obsolete.load(Ordering::Acquire) {
            // Left behind, it is removed at the next open: it is in no manifest.
            let _ = self.disk.remove(self.file.path());
        }
    }
}

/// Reads trailer and places (and with `check` all) of a sealed file.
fn read_catalog(file: &dyn DiskFile, check: bool) -> Result<(Sealed, Vec<u8>)> {
    let path: PathBuf = file.path().to_path_buf();
    let io = |e| StorageError::io("read", &path, e);
    let len = file.len().map_err(io)?;
    let trailer_at = len.saturating_sub(catalog::TRAILER_BYTES as u64);
    let damaged = |what: String| StorageError::corrupt(&path, trailer_at, what);
    if trailer_at < RECORDS_OFFSET {
        return Err(damaged("the file is too short for a catalog".into()));
    }
    let mut trailer = [0; catalog::TRAILER_BYTES];
    file.read_exact_at(&mut trailer, trailer_at).map_err(io)?;
    let sealed = Sealed::decode(&trailer, len).map_err(damaged)?;
    if !check {
        let mut places = vec![0; sealed.places_bytes()];
        file.read_exact_at(&mut places, sealed.offsets_offset()).map_err(io)?;
        return Ok((sealed, places));
    }
    let mut all = vec![0; sealed.catalog_bytes()];
    file.read_exact_at(&mut all, sealed.catalog_offset).map_err(io)?;
    sealed.check(&all).map_err(damaged)?;
    let places = all.split_off(sealed.count * ROW_BYTES);
    Ok((sealed, places))
}

/// Everything in the catalog of a closed segment, to go on appending to it.
pub(crate) fn read_open_places(file: &dyn DiskFile) -> Result<(OpenPlaces, u64)> {
    let (sealed, places) = read_catalog(file, true)?;
    let damaged = |what: String| StorageError::corrupt(file.path(), sealed.catalog_offset, what);
    if sealed.sparse {
        return Err(damaged("a compacted segment cannot grow".into()));
    }
    let (offsets, _) = sealed.decode_places(&places).map_err(damaged)?;
    let mut bytes = vec![0; sealed.count * ROW_BYTES];
    file.read_exact_at(&mut bytes, sealed.catalog_offset)
        .map_err(|e| StorageError::io("read", file.path(), e))?;
    let rows = bytes.as_chunks::<ROW_BYTES>().0.iter().filter_map(|b| Row::read_from_bytes(b).ok()).collect();
    Ok((OpenPlaces { rows, offsets }, sealed.catalog_offset))
}

/// Checks the catalog of a sealed segment's file.
pub(crate) fn verify_catalog(file: &dyn DiskFile) -> Result<()> {
    read_catalog(file, true).map(|_| ())
}

/// The ordinals of a sealed segment's file; `None` when it is not sealed.
pub(crate) fn sealed_ordinals(file: &dyn DiskFile) -> Option<Range<u64>> {
    read_catalog(file, false).ok().map(|(sealed, _)| sealed.first_ordinal..sealed.end_ordinal)
}
