//! The journal of a store with a buffer: changes are durable here while their pages wait in memory. It has the form of a
//! segment of a log (log/segment.rs): records, in the order they came.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{Disk, DiskFile};
use crate::error::{Result, StorageError};
use crate::log::scan::scan;
use crate::log::segment::{self, RECORDS_OFFSET, SegmentHeader};
use crate::mark;
use crate::store::Damage;

/// A journal being written.
#[derive(Debug)]
pub(crate) struct Journal {
    file: Arc<dyn DiskFile>,
    number: u64,
    end: u64,
    mark_sequence: u64,
}

fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("journal-{number}"))
}

/// The numbers of the journals in a folder, ascending.
pub(crate) fn numbers(disk: &dyn Disk, dir: &Path) -> Result<Vec<u64>> {
    let names = disk.list(dir).map_err(|e| StorageError::io("list", dir, e))?;
    let mut numbers: Vec<u64> =
        names.iter().filter_map(|n| n.strip_prefix("journal-")?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Removes the journals before `number`.
pub(crate) fn remove_before(disk: &dyn Disk, dir: &Path, number: u64) -> Result<()> {
    for old in numbers(disk, dir)?.into_iter().filter(|&n| n < number) {
        disk.remove(&path(dir, old)).map_err(|e| StorageError::io("remove", &path(dir, old), e))?;
    }
    Ok(())
}

/// All whole records of a journal, and what is damaged in it.
pub(crate) fn read(disk: &dyn Disk, dir: &Path, number: u64) -> Result<(Vec<Vec<u8>>, Vec<Damage>)> {
    let path = path(dir, number);
    let io = |e| StorageError::io("read", &path, e);
    let file = disk.open(&path, false).map_err(io)?;
    let len = file.len().map_err(io)?;
    if len < RECORDS_OFFSET {
        return Ok((Vec::new(), Vec::new())); // cut off while it was created: nothing was acknowledged
    }
    let durable = match SegmentHeader::read(&*file) {
        Ok(header) => header.durable.map_or(len, |(_, offset)| offset),
        Err(StorageError::Corrupt { .. }) => len,
        Err(e) => return Err(e),
    };
    let found = scan(&*file, durable, len)?;
    let mut records = Vec::new();
    for (row, place) in found.places.rows.iter().zip(found.places.offsets.windows(2)) {
        if let (false, [start, end]) = (row.is_damaged(), place) {
            let mut bytes = vec![0; (end - start) as usize];
            file.read_exact_at(&mut bytes, u64::from(*start)).map_err(io)?;
            records.push(bytes);
        }
    }
    Ok((records, found.damage))
}

impl Journal {
    /// Creates an empty journal, durable with its name.
    pub(crate) fn create(disk: &dyn Disk, dir: &Path, number: u64) -> Result<Journal> {
        let path = path(dir, number);
        let fail = |op| move |e| StorageError::io(op, &self::path(dir, number), e);
        let file = disk.open(&path, true).map_err(fail("create"))?;
        file.write_all_at(&segment::header(number, 0), 0).map_err(fail("write"))?;
        file.sync().map_err(fail("sync"))?;
        disk.sync_dir(dir).map_err(fail("sync the folder of"))?;
        Ok(Journal { file, number, end: RECORDS_OFFSET, mark_sequence: 0 })
    }

    /// Writes records, not yet durable.
    pub(crate) fn write(&self, records: &[u8]) -> Result<()> {
        self.file.write_all_at(records, self.end).map_err(|e| StorageError::io("write", self.file.path(), e))
    }

    /// Makes `bytes` written bytes durable.
    pub(crate) fn sync(&mut self, bytes: u64) -> Result<()> {
        self.file.sync().map_err(|e| StorageError::io("sync", self.file.path(), e))?;
        self.end += bytes;
        self.mark_sequence += 1;
        // A hint for recovery, made durable by the next sync.
        let _ = mark::write(&*self.file, self.number, self.mark_sequence, self.end);
        Ok(())
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.end
    }
}
