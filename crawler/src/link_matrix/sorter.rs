//! Sorting more numbers than fit in memory: sorted runs on disk, merged.
//!
//! ```text
//!   a run:  chunks of 262 144 bytes: 32 767 numbers of 8 bytes (the last chunk filled up), CRC-64 of them 8
//! ```
//!
//! Runs live as long as the sorter; what a crash leaves of them is removed when the folder is opened next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use webbase_storage::crc64;
use webbase_storage::disk::{Disk, DiskFile};

use super::direct::{Buffer, direct};
use super::{MatrixError, Result};

const CHUNK_BYTES: usize = 1 << 18;
const CHUNK_KEYS: usize = CHUNK_BYTES / 8 - 1;
/// Keys that room is made for first: most sorters get no more.
const SMALL_KEYS: usize = 1 << 14;
/// Files that begin so are of a sorter.
pub(crate) const PREFIX: &str = "sort-";

pub(crate) struct Sorter {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    name: &'static str,
    keys: Vec<u64>,
    keys_max: usize,
    runs: Vec<Run>,
    made: u32,
}

struct Run {
    disk: Arc<dyn Disk>,
    file: Arc<dyn DiskFile>,
    keys: u64,
}

impl Drop for Run {
    fn drop(&mut self) {
        // What stays is removed when the folder is opened.
        let _ = self.disk.remove(self.file.path());
    }
}

impl Sorter {
    /// Takes numbers, in about so much memory.
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: &Path, name: &'static str, budget_bytes: usize) -> Self {
        let keys_max = (budget_bytes / 8).max(4 * CHUNK_KEYS);
        let dir = dir.to_path_buf();
        Self { disk, dir, name, keys: Vec::new(), keys_max, runs: Vec::new(), made: 0 }
    }

    pub(crate) fn push(&mut self, key: u64) -> Result<()> {
        if self.keys.len() == self.keys_max {
            self.spill()?;
        }
        if self.keys.capacity() == self.keys.len() {
            // What is not written to takes no memory yet; growing by doubling would have both halves for a while.
            let room = if self.keys.len() < SMALL_KEYS { SMALL_KEYS } else { self.keys_max };
            self.keys.reserve_exact(room.saturating_sub(self.keys.len()).max(1));
        }
        self.keys.push(key);
        Ok(())
    }

    fn spill(&mut self) -> Result<()> {
        self.keys.sort_unstable();
        let mut writer = self.writer()?;
        for chunk in self.keys.chunks(CHUNK_KEYS) {
            writer.write(chunk)?;
        }
        self.runs.push(writer.run);
        self.keys.clear();
        Ok(())
    }

    fn writer(&mut self) -> Result<RunWriter> {
        self.made += 1;
        let path = self.dir.join(format!("{PREFIX}{}-{}", self.name, self.made));
        let file = self.disk.open(&path, true).map_err(|e| MatrixError::io("create", &path, e))?;
        let run = Run { disk: self.disk.clone(), file: direct(&file), keys: 0 };
        Ok(RunWriter { run, buffer: Buffer::new(CHUNK_BYTES), offset: 0 })
    }

    /// The numbers in order, equal ones as often as they were given.
    pub(crate) fn finish(mut self) -> Result<Merged> {
        if self.runs.is_empty() {
            self.keys.sort_unstable();
            let keys = std::mem::take(&mut self.keys);
            return Ok(Merged { in_memory: keys.into_iter(), heap: BinaryHeap::new(), readers: Vec::new() });
        }
        self.spill()?;
        self.keys = Vec::new();
        let fan_in = (self.keys_max * 8 / CHUNK_BYTES).saturating_sub(2).max(2);
        while self.runs.len() > fan_in {
            let some = self.runs.drain(..fan_in).collect();
            let mut writer = self.writer()?;
            let (mut merged, mut chunk) = (Merged::of(some)?, Vec::with_capacity(CHUNK_KEYS));
            while let Some(key) = merged.next()? {
                chunk.push(key);
                if chunk.len() == CHUNK_KEYS {
                    writer.write(&chunk)?;
                    chunk.clear();
                }
            }
            writer.write(&chunk)?;
            self.runs.push(writer.run);
        }
        Merged::of(std::mem::take(&mut self.runs))
    }
}

struct RunWriter {
    run: Run,
    buffer: Buffer,
    offset: u64,
}

impl RunWriter {
    fn write(&mut self, keys: &[u64]) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let bytes = self.buffer.bytes_mut();
        let (words, _) = bytes.as_chunks_mut::<8>();
        let padded = keys.iter().copied().chain(std::iter::repeat(u64::MAX)).take(CHUNK_KEYS);
        words.iter_mut().zip(padded).for_each(|(word, key)| *word = key.to_le_bytes());
        let crc = crc64(bytes.get(..CHUNK_KEYS * 8).unwrap_or_default());
        if let Some(last) = bytes.last_chunk_mut::<8>() {
            *last = crc.to_le_bytes();
        }
        let written = self.run.file.write_all_at(self.buffer.bytes(), self.offset);
        written.map_err(|e| MatrixError::io("write", self.run.file.path(), e))?;
        self.offset += CHUNK_BYTES as u64;
        self.run.keys += keys.len() as u64;
        Ok(())
    }
}

struct RunReader {
    run: Run,
    buffer: Buffer,
    /// How many keys were given out.
    given: u64,
}

impl RunReader {
    fn next(&mut self) -> Result<Option<u64>> {
        if self.given == self.run.keys {
            return Ok(None);
        }
        let place = (self.given % CHUNK_KEYS as u64) as usize;
        if place == 0 {
            let (file, offset) = (&self.run.file, self.given / CHUNK_KEYS as u64 * CHUNK_BYTES as u64);
            file.read_exact_at(self.buffer.bytes_mut(), offset)
                .map_err(|e| MatrixError::io("read", file.path(), e))?;
            let damaged = || MatrixError::corrupt(file.path(), offset, "its checksum is wrong");
            let (keys, crc) = self.buffer.bytes().split_last_chunk::<8>().ok_or_else(damaged)?;
            if crc64(keys) != u64::from_le_bytes(*crc) {
                return Err(damaged());
            }
        }
        self.given += 1;
        let (words, _) = self.buffer.bytes().as_chunks::<8>();
        Ok(words.get(place).map(|word| u64::from_le_bytes(*word)))
    }
}

/// Sorted numbers, one after the other.
pub(crate) struct Merged {
    in_memory: std::vec::IntoIter<u64>,
    heap: BinaryHeap<Reverse<(u64, usize)>>,
    readers: Vec<RunReader>,
}

impl Merged {
    fn of(runs: Vec<Run>) -> Result<Self> {
        let reader = |run| RunReader { run, buffer: Buffer::new(CHUNK_BYTES), given: 0 };
        let mut readers: Vec<RunReader> = runs.into_iter().map(reader).collect();
        let mut heap = BinaryHeap::with_capacity(readers.len());
        for (number, reader) in readers.iter_mut().enumerate() {
            if let Some(key) = reader.next()? {
                heap.push(Reverse((key, number)));
            }
        }
        Ok(Self { in_memory: Vec::new().into_iter(), heap, readers })
    }

    pub(crate) fn next(&mut self) -> Result<Option<u64>> {
        let Some(mut least) = self.heap.peek_mut() else { return Ok(self.in_memory.next()) };
        let Reverse((key, number)) = *least;
        match self.readers.get_mut(number).map_or(Ok(None), RunReader::next)? {
            Some(next) => *least = Reverse((next, number)),
            None => {
                PeekMut::pop(least);
            }
        }
        Ok(Some(key))
    }
}
