//! New deadlines of pages that were seen again without change, by ordinal. The deadline of a page that never was
//! stands in its catalog row.
//!
//! On disk, sorted by ordinal:
//!
//! ```text
//!   0  4  magic "WBDL"   4  4  version   8  8  entries
//!  16     entries × (ordinal 8, deadline_ms 8; 2^64-1 is never)
//!         CRC-64 of all the above
//! ```
//!
//! What came since the checkpoint is kept in memory; a checkpoint merges it into a new file.

use std::collections::{BTreeMap, BinaryHeap};
use std::path::Path;
use std::sync::Arc;

use super::view::View;
use crate::disk::{self, Disk, DiskFile};
use crate::error::{Result, StorageError};
use crate::expiry::{Due, Renewed};
use crate::record::{Kind, crc64};

const MAGIC: [u8; 4] = *b"WBDL";
const HEADER_BYTES: u64 = 16;
const ENTRY_BYTES: usize = 16;
const CHUNK_ENTRIES: u64 = 64 << 10;

/// Deadlines that differ from the pages' own.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    base: Option<Base>,
    recent: BTreeMap<u64, u64>,
}

#[derive(Debug, Clone)]
struct Base {
    number: u64,
    file: Arc<dyn DiskFile>,
    entries: u64,
}

fn name(number: u64) -> String {
    format!("deadlines-{number}")
}

impl Deadlines {
    /// Opens the file with this number; 0 is none.
    pub(crate) fn open(disk: &dyn Disk, dir: &Path, number: u64) -> Result<Deadlines> {
        if number == 0 {
            return Ok(Deadlines::default());
        }
        let path = dir.join(name(number));
        let bytes = disk::read_file(disk, &path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => StorageError::corrupt(&path, 0, "the file is missing"),
            _ => StorageError::io("read", &path, e),
        })?;
        let good =
            bytes.split_last_chunk::<8>().filter(|(body, crc)| crc64(body) == u64::from_le_bytes(**crc));
        let Some((body, _)) = good.filter(|(body, _)| body.get(..4) == Some(&MAGIC)) else {
            return Err(StorageError::corrupt(&path, 0, "deadlines damaged"));
        };
        let entries = (body.len() as u64).saturating_sub(HEADER_BYTES) / ENTRY_BYTES as u64;
        let file = disk.open(&path, false).map_err(|e| StorageError::io("open", &path, e))?;
        Ok(Deadlines { base: Some(Base { number, file, entries }), recent: BTreeMap::new() })
    }

    pub(crate) fn set(&mut self, deadlines: &[(u64, u64)]) {
        self.recent.extend(deadlines.iter().copied());
    }

    /// A picture of all deadlines, for one pass.
    pub(crate) fn reader(&self) -> Result<DeadlineReader> {
        Ok(DeadlineReader { base: self.base.clone(), recent: self.recent.clone() })
    }

    /// Writes everything that concerns living pages to a file and returns its number, 0 for none.
    pub(crate) fn save(
        &mut self,
        disk: &Arc<dyn Disk>,
        dir: &Path,
        new_file: impl FnOnce() -> u64,
        is_dead: impl Fn(u64) -> bool,
    ) -> Result<u64> {
        if self.recent.is_empty() {
            return Ok(self.base.as_ref().map_or(0, |b| b.number));
        }
        let number = new_file();
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&crate::identity::VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 8]);
        let mut entries = 0_u64;
        for entry in self.reader()?.iter() {
            let (ordinal, deadline) = entry?;
            if !is_dead(ordinal) {
                out.extend_from_slice(&ordinal.to_le_bytes());
                out.extend_from_slice(&deadline.to_le_bytes());
                entries += 1;
            }
        }
        if let Some(count) = out.get_mut(8..16) {
            count.copy_from_slice(&entries.to_le_bytes());
        }
        out.extend_from_slice(&crc64(&out).to_le_bytes());
        let path = dir.join(name(number));
        disk::replace_file(&**disk, &path, &out)?;
        let file = disk.open(&path, false).map_err(|e| StorageError::io("open", &path, e))?;
        self.base = Some(Base { number, file, entries });
        self.recent.clear();
        Ok(number)
    }
}

/// A picture of all deadlines.
pub(crate) struct DeadlineReader {
    base: Option<Base>,
    recent: BTreeMap<u64, u64>,
}

impl DeadlineReader {
    /// All deadlines, by ascending ordinal.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Result<(u64, u64)>> + '_ {
        let mut base = self.base_entries().peekable();
        let mut recent = self.recent.iter().map(|(&ordinal, &deadline)| (ordinal, deadline)).peekable();
        std::iter::from_fn(move || match (base.peek(), recent.peek()) {
            (Some(Err(_)), _) => base.next(),
            (Some(Ok((b, _))), Some((r, _))) if b < r => base.next(),
            (Some(Ok((b, _))), Some((r, _))) => {
                if b == r {
                    base.next(); // seen again since
                }
                recent.next().map(Ok)
            }
            (None, Some(_)) => recent.next().map(Ok),
            (_, None) => base.next(),
        })
    }

    fn base_entries(&self) -> impl Iterator<Item = Result<(u64, u64)>> + '_ {
        let (mut at, entries) = (0, self.base.as_ref().map_or(0, |b| b.entries));
        let mut chunk: std::vec::IntoIter<(u64, u64)> = Vec::new().into_iter();
        std::iter::from_fn(move || {
            if let Some(entry) = chunk.next() {
                return Some(Ok(entry));
            }
            let base = self.base.as_ref()?;
            let count = CHUNK_ENTRIES.min(entries - at);
            if count == 0 {
                return None;
            }
            let mut bytes = vec![0; count as usize * ENTRY_BYTES];
            let offset = HEADER_BYTES + at * ENTRY_BYTES as u64;
            if let Err(e) = base.file.read_exact_at(&mut bytes, offset) {
                at = entries; // the error is the last item
                return Some(Err(StorageError::io("read", base.file.path(), e)));
            }
            at += count;
            let (words, _) = bytes.as_chunks::<8>();
            let (pairs, _) = words.as_chunks::<2>();
            let decode = |[o, d]: &[[u8; 8]; 2]| (u64::from_le_bytes(*o), u64::from_le_bytes(*d));
            chunk = pairs.iter().map(decode).collect::<Vec<_>>().into_iter();
            chunk.next().map(Ok)
        })
    }
}

/// Living pages of a view with deadlines of their own, from an ordinal on, and where the rest begins.
pub(crate) fn renewed(
    view: &View,
    deadlines: &DeadlineReader,
    from: u64,
    limit: usize,
) -> Result<(Vec<Renewed>, Option<u64>)> {
    let mut renewed = Vec::new();
    for entry in deadlines.iter() {
        let (ordinal, deadline_ms) = entry?;
        if ordinal < from || view.is_dead(ordinal) {
            continue;
        }
        if renewed.len() >= limit {
            return Ok((renewed, Some(ordinal)));
        }
        let place = view.locate(ordinal);
        let Some((part, place)) = place.and_then(|p| Some((view.part(p)?, p))) else { continue };
        let row = part.segment.row(place.position)?;
        if row.kind() == Kind::Page && !row.is_damaged() {
            renewed.push(Renewed { key: row.key(), version: row.version(), deadline_ms });
        }
    }
    Ok((renewed, None))
}

/// The pages due at `now_ms`, the longest overdue first.
pub(crate) fn due(view: &View, deadlines: &DeadlineReader, now_ms: u64, limit: usize) -> Result<Vec<Due>> {
    let mut overrides = deadlines.iter().peekable();
    let mut latest_first = BinaryHeap::new();
    for part in &view.parts {
        let count = part.segment.position_from(part.end_ordinal);
        for (position, row) in part.segment.rows(count)?.iter().enumerate() {
            if row.kind() != Kind::Page || part.dead.get(position) {
                continue;
            }
            let ordinal = part.segment.ordinal(position);
            let mut deadline = row.deadline_ms();
            while let Some(entry) = overrides.next_if(|e| e.as_ref().map_or(true, |(o, _)| *o <= ordinal)) {
                let (seen, new) = entry?;
                if seen == ordinal {
                    deadline = Some(new).filter(|&ms| ms != u64::MAX);
                }
            }
            if let Some(deadline_ms) = deadline.filter(|&ms| ms <= now_ms) {
                latest_first.push(Due { deadline_ms, key: row.key() });
                if latest_first.len() > limit {
                    latest_first.pop();
                }
            }
        }
    }
    Ok(latest_first.into_sorted_vec())
}
