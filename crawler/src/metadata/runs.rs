//! Sorted runs of known URLs: a file each, written once.
//!
//! ```text
//!   entry, 16 bytes: 12 of the URL's hash, big-endian, then 4 of its URL-id, big-endian: entries sort as numbers do
//!   block: 4096 entries (the last one fewer), then CRC-64 of them, 8 bytes, little-endian
//!   a run: blocks, one after the other; how many entries, the manifest knows
//! ```
//!
//! A batch of sorted keys is compared with a run by reading both once. The page cache is told to forget what was read, so that a
//! sweep over all known URLs takes memory for a few blocks.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use super::Result;
use super::files::{at, corrupt, crc, sync_folder_of};

const ENTRIES: usize = 4096;
const BLOCK_BYTES: usize = ENTRIES * 16 + 8;
/// Bytes between two hints to the page cache.
const FORGET_BYTES: u64 = 16 << 20;

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
    file: BufWriter<File>,
    block: Vec<u8>,
    entries: u64,
    number: u64,
}

impl RunWriter {
    pub(super) fn create(folder: &Path, number: u64) -> Result<RunWriter> {
        let path = Run { number, entries: 0 }.path(folder);
        let file = at(&path, File::create(&path))?;
        let file = BufWriter::with_capacity(1 << 20, file);
        Ok(RunWriter { path, file, block: Vec::with_capacity(BLOCK_BYTES), entries: 0, number })
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
        let RunWriter { path, file, entries, number, .. } = self;
        let file = at(&path, file.into_inner().map_err(std::io::IntoInnerError::into_error))?;
        at(&path, file.sync_all())?;
        forget(&file, 0, 0);
        sync_folder_of(&path)?;
        Ok(Run { number, entries })
    }

    fn write_block(&mut self) -> Result<()> {
        let sum = crc(&self.block).to_le_bytes();
        self.block.extend_from_slice(&sum);
        at(&self.path, self.file.write_all(&self.block))?;
        self.block.clear();
        Ok(())
    }
}

/// Reads a run from its start, block by block.
pub(super) struct RunReader {
    path: PathBuf,
    file: File,
    left: u64,
    offset: u64,
    forgotten: u64,
    bytes: Vec<u8>,
    block: Vec<Entry>,
    at: usize,
}

impl RunReader {
    pub(super) fn open(folder: &Path, run: &Run) -> Result<RunReader> {
        let path = run.path(folder);
        let file = at(&path, File::open(&path))?;
        let found = at(&path, file.metadata())?.len();
        let expected = run.entries * 16 + run.entries.div_ceil(ENTRIES as u64) * 8;
        if found != expected {
            return corrupt(&path, found.min(expected), "the run has another length than the manifest says");
        }
        Ok(RunReader {
            path,
            file,
            left: run.entries,
            offset: 0,
            forgotten: 0,
            bytes: Vec::new(),
            block: Vec::new(),
            at: 0,
        })
    }

    /// The entries of the block that are not passed yet; empty at the end of the run.
    pub(super) fn block(&mut self) -> Result<&[Entry]> {
        if self.at >= self.block.len() && self.left > 0 {
            self.read_block()?;
        }
        Ok(self.block.get(self.at..).unwrap_or(&[]))
    }

    /// Passes some entries of the block.
    pub(super) fn pass(&mut self, count: usize) {
        self.at += count;
    }

    pub(super) fn next(&mut self) -> Result<Option<Entry>> {
        let entry = self.block()?.first().copied();
        self.at += 1;
        Ok(entry)
    }

    fn read_block(&mut self) -> Result<()> {
        let entries = (self.left as usize).min(ENTRIES);
        self.bytes.resize(entries * 16 + 8, 0);
        at(&self.path, self.file.read_exact(&mut self.bytes))?;
        let (body, sum) = self.bytes.split_at(entries * 16);
        if crc(body).to_le_bytes() != *sum {
            return corrupt(&self.path, self.offset, "a block of known URLs is damaged");
        }
        self.block.clear();
        let entry = |bytes: &[u8]| <[u8; 16]>::try_from(bytes).map_or(0, u128::from_be_bytes);
        self.block.extend(body.chunks_exact(16).map(entry));
        self.offset += self.bytes.len() as u64;
        self.left -= entries as u64;
        self.at = 0;
        if self.offset - self.forgotten >= FORGET_BYTES || self.left == 0 {
            forget(&self.file, self.forgotten, self.offset - self.forgotten);
            self.forgotten = self.offset;
        }
        Ok(())
    }
}

/// Tells the page cache that a range will not be read again soon; 0 bytes: to the end of the file.
pub(super) fn forget(file: &File, offset: u64, bytes: u64) {
    // A hint: where it is not taken, only memory suffers.
    let _ = rustix::fs::fadvise(file, offset, std::num::NonZeroU64::new(bytes), rustix::fs::Advice::DontNeed);
}

/// Merges runs into one.
pub(super) fn merge(folder: &Path, runs: &[Run], number: u64) -> Result<Run> {
    let mut readers = Vec::with_capacity(runs.len());
    for run in runs {
        readers.push(RunReader::open(folder, run)?);
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
