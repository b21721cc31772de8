//! Finding the records of a segment without its catalog: after a crash, or when the catalog is damaged.

use std::io;
use std::path::Path;

use super::segment::{OpenPlaces, RECORDS_OFFSET};
use crate::catalog::Row;
use crate::disk::DiskFile;
use crate::error::{Result, StorageError};
use crate::record::{HEADER_BYTES, RecordRef, looks_like_record, mended, record_len};
use crate::store::Damage;

const WINDOW_BYTES: u64 = 4 << 20;

/// What a scan found.
pub(crate) struct Scan {
    pub(crate) places: OpenPlaces,
    /// Where the log ends.
    pub(crate) end: u64,
    pub(crate) damage: Vec<Damage>,
}

/// Reads all records up to `limit`. Below `durable` a bad record is damage, to be stepped over; beyond it, it is the
/// end of the log.
///
/// A damaged record keeps its ordinal, so that the ordinals behind it stay: with the row that its header still tells, or with
/// one that names no page.
pub(crate) fn scan(file: &dyn DiskFile, durable: u64, limit: u64) -> Result<Scan> {
    let mut window = Window { file, limit, start: 0, bytes: Vec::new() };
    let mut places = OpenPlaces { rows: Vec::new(), offsets: vec![RECORDS_OFFSET as u32] };
    let mut damage = Vec::new();
    let mut at = RECORDS_OFFSET;
    while at < limit {
        let (what, next) = match window.record(at) {
            Ok(record) => {
                places.rows.push(Row::of(&record));
                at += record.as_bytes().len() as u64;
                places.offsets.push(at as u32);
                continue;
            }
            Err(_) if at >= durable => break,
            Err(Bad::Io(e)) => return Err(StorageError::io("read", file.path(), e)),
            Err(Bad::Body(what, len)) => (what, at + len),
            Err(Bad::Header(what)) => (what, window.next_record(at + 1, durable)?),
        };
        let row = window.row_of_damaged(at, next);
        let key = row.map(|row| row.key());
        damage.push(Damage { key, ..damaged(file.path(), at, what) });
        places.rows.push(row.unwrap_or_else(Row::damaged));
        at = next;
        places.offsets.push(at as u32);
    }
    if at < durable {
        damage.push(damaged(file.path(), at, format!("the file ends here, {durable} bytes were durable")));
    }
    Ok(Scan { places, end: at, damage })
}

fn damaged(path: &Path, offset: u64, what: String) -> Damage {
    Damage { path: path.to_path_buf(), offset, what, key: None }
}

enum Bad {
    /// The length cannot be trusted.
    Header(String),
    /// The length can.
    Body(String, u64),
    Io(io::Error),
}

/// A piece of the file in memory, moving forward.
struct Window<'a> {
    file: &'a dyn DiskFile,
    limit: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl Window<'_> {
    fn get(&mut self, at: u64, len: u64) -> io::Result<&[u8]> {
        let have = self.start..self.start + self.bytes.len() as u64;
        if !(have.contains(&at) && at + len <= have.end) {
            let want = len.max(WINDOW_BYTES).min(self.limit.saturating_sub(at));
            self.bytes.resize(want as usize, 0);
            self.start = at;
            self.file.read_exact_at(&mut self.bytes, at)?;
        }
        let from = (at - self.start) as usize;
        Ok(self.bytes.get(from..from + len as usize).unwrap_or_default())
    }

    fn record(&mut self, at: u64) -> std::result::Result<RecordRef<'_>, Bad> {
        let left = self.limit - at;
        let head = self.get(at, left.min(HEADER_BYTES as u64)).map_err(Bad::Io)?;
        let len = record_len(head).map_err(|e| Bad::Header(e.to_string()))?;
        if len > left {
            return Err(Bad::Header(format!("record of {len} bytes where {left} are left")));
        }
        let bytes = self.get(at, len).map_err(Bad::Io)?;
        RecordRef::parse(bytes).map_err(|e| Bad::Body(e.to_string(), len))
    }

    /// The row of a damaged record, if its header is good but for a byte.
    fn row_of_damaged(&mut self, at: u64, end: u64) -> Option<Row> {
        let len = end.checked_sub(at).filter(|len| *len <= u64::from(u32::MAX))?;
        let bytes = self.get(at, len).ok()?;
        match RecordRef::parse_unverified(bytes).ok().filter(|_| looks_like_record(bytes)) {
            Some(record) => Some(Row::of(&record)),
            None => RecordRef::parse_unverified(&mended(bytes)?).ok().map(|record| Row::of(&record)),
        }
    }

    /// The next place, up to `end`, where a record seems to start.
    fn next_record(&mut self, mut at: u64, end: u64) -> Result<u64> {
        let end = end.min(self.limit);
        while at < end {
            let len = (end - at).min(WINDOW_BYTES);
            let path = self.file.path().to_path_buf();
            let bytes = self.get(at, len).map_err(|e| StorageError::io("read", &path, e))?;
            let found = bytes
                .windows(4)
                .enumerate()
                .filter(|(_, w)| w.starts_with(b"WBR"))
                .map(|(i, _)| i)
                .find(|&i| looks_like_record(bytes.get(i..).unwrap_or_default()));
            match found {
                Some(i) => return Ok(at + i as u64),
                // Overlap, so that a header across two windows is seen whole.
                None if len < WINDOW_BYTES => return Ok(end),
                None => at += len - HEADER_BYTES as u64,
            }
        }
        Ok(end)
    }
}
