//! Sorted runs of known URLs: a file each, written once.
//!
//! ```text
//!   entry, 16 bytes: 12 of the URL's hash, big-endian, then 4 of its URL-id, big-endian: entries sort as numbers do
//!   block: 4096 entries (the last one fewer), then CRC-64 of them, 8 bytes, little-endian
//!   a run: blocks, one after the other; how many entries, the manifest knows
//! ```
//!
//! A batch of sorted keys is compared with a run by reading both once. Runs are written and read past the page cache, ahead of
//! whoever needs them, so that a sweep over all known URLs takes memory for a few megabytes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use webbase_storage::crc64;
use webbase_storage::disk::{Appender, Disk, DiskFile, OsDisk, ReadAhead, Through};

use super::Result;
use super::files::{at, corrupt, sync_folder_of};

const ENTRIES: usize = 4096;
const BLOCK_BYTES: usize = ENTRIES * 16 + 8;

/// An entry: 96 bits of hash, 32 of URL-id.
pub(super) type Entry = u128;

/// A run on disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub(super) number: u64,
    pub(super) entries: u64,
}

impl Run {
    pub(super) fn path(&self, folder: &Path) -> PathBuf {
        folder.join(format!("known-{:08}", self.number))
    }
}

/// Writes a run; entries come in order.
pub(super) struct RunWriter {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    appender: Appender,
    block: Vec<u8>,
    entries: u64,
    number: u64,
}

impl RunWriter {
    pub(super) fn create(folder: &Path, number: u64) -> Result<RunWriter> {
        let path = Run { number, entries: 0 }.path(folder);
        let file = at(&path, OsDisk::new().open(&path, true))?;
        let appender = at(&path, Appender::new(file.clone(), 0))?;
        let block = Vec::with_capacity(BLOCK_BYTES);
        Ok(RunWriter { path, file, appender, block, entries: 0, number })
    }

    pub(super) fn push(&mut self, entry: Entry) -> Result<()> {
        self.block.extend_from_slice(&entry.to_be_bytes());
        self.entries += 1;
        if self.block.len() == ENTRIES * 16 { self.write_block() } else { Ok(()) }
    }

    /// Makes the run durable.
    pub(super) fn finish(mut self) -> Result<Run> {
        if !self.block.is_empty() {
            self.write_block()?;
        }
        at(&self.path, self.appender.flush())?;
        // Past the page cache whole blocks are written: what fills the last one up is not of the run.
        at(&self.path, self.file.set_len(self.appender.end()))?;
        at(&self.path, self.file.sync())?;
        sync_folder_of(&self.path)?;
        Ok(Run { number: self.number, entries: self.entries })
    }

    fn write_block(&mut self) -> Result<()> {
        let sum = crc64(&self.block).to_le_bytes();
        self.block.extend_from_slice(&sum);
        at(&self.path, self.appender.write(&self.block))?;
        self.block.clear();
        Ok(())
    }
}

/// Reads a run from its start, block by block.
pub(super) struct RunReader {
    path: PathBuf,
    ahead: ReadAhead,
    left: u64,
    offset: u64,
    block: Bytes,
}

impl RunReader {
    pub(super) fn open(folder: &Path, run: &Run) -> Result<RunReader> {
        let path = run.path(folder);
        let file = at(&path, OsDisk::new().open(&path, false))?;
        let found = at(&path, file.len())?;
        let expected = run.entries * 16 + run.entries.div_ceil(ENTRIES as u64) * 8;
        if found != expected {
            return corrupt(&path, found.min(expected), "the run has another length than the manifest says");
        }
        let ahead = ReadAhead::new(file, 0..expected, Through::Direct);
        Ok(RunReader { path, ahead, left: run.entries, offset: 0, block: Bytes::new() })
    }

    /// The entries of the next block, as they are on disk; none at the end of the run.
    pub(super) fn next_block(&mut self) -> Result<&[[u8; 16]]> {
        let entries = self.left.min(ENTRIES as u64);
        if entries == 0 {
            return Ok(&[]);
        }
        let bytes = entries * 16 + 8;
        self.block = at(&self.path, self.ahead.get(self.offset..self.offset + bytes))?;
        let block = entries_of(&self.path, self.offset, &self.block)?;
        self.offset += bytes;
        self.left -= entries;
        Ok(block)
    }
}

/// The URL-id of one hash in a run, by halving it: a block is read for each half.
pub(super) fn lookup(folder: &Path, run: &Run, hash: Entry) -> Result<Option<u32>> {
    let path = run.path(folder);
    let file = at(&path, OsDisk::new().open(&path, false))?;
    let key = |bytes: &[u8; 16]| Entry::from_be_bytes(*bytes) >> 32;
    let (mut from, mut to) = (0, run.entries.div_ceil(ENTRIES as u64));
    while from < to {
        let middle = (from + to) / 2;
        let offset = middle * BLOCK_BYTES as u64;
        let entries = (run.entries - middle * ENTRIES as u64).min(ENTRIES as u64);
        let bytes = at(&path, file.read_vec(entries as usize * 16 + 8, offset))?;
        let block = entries_of(&path, offset, &bytes)?;
        match (block.first(), block.last()) {
            (Some(first), _) if hash >> 32 < key(first) => to = middle,
            (_, Some(last)) if hash >> 32 > key(last) => from = middle + 1,
            _ => {
                let found = block.binary_search_by_key(&(hash >> 32), key);
                return Ok(found
                    .ok()
                    .and_then(|at| block.get(at))
                    .map(|entry| Entry::from_be_bytes(*entry) as u32));
            }
        }
    }
    Ok(None)
}

/// The entries of a block, if it is whole.
fn entries_of<'a>(path: &Path, offset: u64, block: &'a [u8]) -> Result<&'a [[u8; 16]]> {
    match block.split_last_chunk::<8>() {
        Some((body, sum)) if crc64(body).to_le_bytes() == *sum => Ok(body.as_chunks().0),
        _ => corrupt(path, offset, "a block of known URLs is damaged"),
    }
}

/// The entries of a run, one after the other.
struct Entries {
    reader: RunReader,
    block: Vec<Entry>,
    at: usize,
}

impl Entries {
    fn next(&mut self) -> Result<Option<Entry>> {
        if self.at == self.block.len() {
            self.block.clear();
            let block = self.reader.next_block()?;
            self.block.extend(block.iter().map(|bytes| Entry::from_be_bytes(*bytes)));
            self.at = 0;
        }
        let entry = self.block.get(self.at).copied();
        self.at += usize::from(entry.is_some());
        Ok(entry)
    }
}

/// Merges runs into one.
pub(super) fn merge(folder: &Path, runs: &[Run], number: u64) -> Result<Run> {
    let mut readers = Vec::with_capacity(runs.len());
    for run in runs {
        readers.push(Entries { reader: RunReader::open(folder, run)?, block: Vec::new(), at: 0 });
    }
    let mut writer = RunWriter::create(folder, number)?;
    let mut heads: Vec<Option<Entry>> = Vec::with_capacity(readers.len());
    for reader in &mut readers {
        heads.push(reader.next()?);
    }
    loop {
        let least = heads.iter().enumerate().filter_map(|(at, head)| Some(((*head)?, at))).min();
        let Some((entry, from)) = least else {
            return writer.finish();
        };
        writer.push(entry)?;
        if let (Some(head), Some(reader)) = (heads.get_mut(from), readers.get_mut(from)) {
            *head = reader.next()?;
        }
    }
}
