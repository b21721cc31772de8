//! A run: a part of the index, sorted, written once and never changed. Little-endian, but for keys.
//!
//! ```text
//!   block 0    0  4  magic "WBGR"    4  4  version    8  8  entries    then zeros, and at 4088 the CRC-64 of all before it
//!   block n    0  2  entries in it, at least 1; 227 in all but the last
//!              2     the entries, 18 bytes each: key 16, big-endian; range 2; then zeros
//!           4088  8  CRC-64 of all before it
//! ```
//!
//! 1. Keys ascend through the whole run, and none stands in it twice.
//! 2. Page ids are uniform, so a block is found by interpolation: about two reads of 4 KiB, however long the run is. Nothing
//!    of it is kept in memory; what is read often is in the system's cache.
//! 3. Every block is verified when it is read.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use webbase_storage::crc64;
use webbase_storage::disk::{Disk, DiskFile};

use crate::ServerError;

pub(super) const BLOCK_BYTES: usize = 4096;
const ENTRY_BYTES: usize = 18;
const CRC_AT: usize = BLOCK_BYTES - 8;
/// Entries in a full block.
const BLOCK_ENTRIES: usize = (CRC_AT - 2) / ENTRY_BYTES;
const _: () = assert!(2 + BLOCK_ENTRIES * ENTRY_BYTES == CRC_AT);
const HEAD: [u8; 8] = *b"WBGR\x01\0\0\0";
/// Blocks that are written, or read in a scan, at once.
const BATCH_BLOCKS: usize = 64;
/// So often the next block is guessed by interpolation; then the rest is halved.
const GUESSES: u32 = 6;

/// A key as one number, and the range of its page.
pub(super) type Entry = (u128, u16);

/// A run that can be read.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) number: u64,
    pub(super) entries: u64,
    blocks: u64,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
}

pub(super) fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("run-{number}"))
}

/// Puts the check at the end of a block.
fn seal(block: &mut [u8]) {
    let (content, check) = block.split_at_mut(CRC_AT);
    check.copy_from_slice(&crc64(content).to_le_bytes());
}

fn number_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|b| b.first_chunk::<8>()).map_or(0, |b| u64::from_le_bytes(*b))
}

impl Run {
    /// Opens a run of the manifest.
    pub(super) fn open(disk: &dyn Disk, dir: &Path, number: u64, entries: u64) -> Result<Run, ServerError> {
        let path = path(dir, number);
        let damaged = |what: String| ServerError::Damaged { path: path.clone(), what };
        let file = disk.open(&path, false).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => damaged("it is not there".into()),
            _ => ServerError::io("open", &path, e),
        })?;
        let blocks = entries.div_ceil(BLOCK_ENTRIES as u64);
        let expected = (blocks + 1).saturating_mul(BLOCK_BYTES as u64);
        let found = file.len().map_err(|e| ServerError::io("measure", &path, e))?;
        if found != expected {
            return Err(damaged(format!("it has {found} bytes, expected {expected}")));
        }
        let run = Run { number, entries, blocks, path: path.clone(), file };
        let head = run.read(0, 1)?;
        match head.starts_with(&HEAD) && number_at(&head, 8) == entries {
            true => Ok(run),
            false => Err(damaged("its head is of another run, or of another version".into())),
        }
    }

    /// What it occupies.
    pub(super) fn disk_bytes(&self) -> u64 {
        (self.blocks + 1) * BLOCK_BYTES as u64
    }

    /// Reads and verifies blocks of the file.
    fn read(&self, first: u64, count: usize) -> Result<Vec<u8>, ServerError> {
        let at = first * BLOCK_BYTES as u64;
        let bytes = self.file.read_vec(count * BLOCK_BYTES, at);
        let bytes = bytes.map_err(|e| ServerError::io("read", &self.path, e))?;
        for (n, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
            let (expected, found) =
                (crc64(block.get(..CRC_AT).unwrap_or_default()), number_at(block, CRC_AT));
            if expected != found {
                let what = format!(
                    "block {}: expected CRC-64 {expected:016x}, found {found:016x}",
                    first + n as u64
                );
                return Err(ServerError::Damaged { path: self.path.clone(), what });
            }
        }
        Ok(bytes)
    }

    /// A block of entries, counted from 0.
    fn block(&self, at: u64) -> Result<Block, ServerError> {
        Ok(Block { bytes: self.read(at + 1, 1)? })
    }

    /// The range of a page.
    pub(super) fn find(&self, key: u128) -> Result<Option<u16>, ServerError> {
        let Some((_, block)) = self.first_reaching(key)? else { return Ok(None) };
        Ok(block.entries().find(|(k, _)| *k == key).map(|(_, range)| range))
    }

    /// All entries from one key to another.
    pub(super) fn between(&self, first: u128, last: u128) -> Result<Vec<Entry>, ServerError> {
        let mut found = Vec::new();
        let Some((mut at, mut block)) = self.first_reaching(first)? else { return Ok(found) };
        loop {
            found.extend(block.entries().filter(|(key, _)| (first..=last).contains(key)));
            at += 1;
            if block.last() >= last || at >= self.blocks {
                return Ok(found);
            }
            block = self.block(at)?;
        }
    }

    /// The first block whose last key is not below `key`: the key is in it, or nowhere.
    fn first_reaching(&self, key: u128) -> Result<Option<(u64, Block)>, ServerError> {
        // The block lies in low..=high; all keys before it are below `low_key`, those behind it above `high_key`.
        let (mut low, mut high) = (0, self.blocks);
        let (mut low_key, mut high_key) = (0, u128::MAX);
        let mut candidate = None;
        let mut probes = 0;
        while low < high {
            let at = match probes < GUESSES {
                true => low + guess(key, low_key, high_key, high - low),
                false => low + (high - low) / 2,
            };
            probes += 1;
            let block = self.block(at)?;
            if block.last() < key {
                (low, low_key) = (at + 1, block.last());
            } else if block.first() <= key {
                return Ok(Some((at, block)));
            } else {
                (high, high_key) = (at, block.first());
                candidate = Some((at, block));
            }
        }
        Ok(candidate.filter(|(at, _)| *at == low))
    }

    /// All entries in order, a piece at a time.
    pub(super) fn scan(self: &Arc<Run>) -> Scan {
        Scan { run: self.clone(), next_block: 0, waiting: Vec::new().into_iter() }
    }
}

/// Where among `count` blocks a key should be.
fn guess(key: u128, low_key: u128, high_key: u128, count: u64) -> u64 {
    let part = key.saturating_sub(low_key) as f64 / (high_key.saturating_sub(low_key) as f64).max(1.0);
    ((part * count as f64) as u64).min(count - 1)
}

/// A block of entries, verified.
struct Block {
    bytes: Vec<u8>,
}

impl Block {
    fn entries(&self) -> impl DoubleEndedIterator<Item = Entry> + '_ {
        entries(&self.bytes)
    }

    fn first(&self) -> u128 {
        self.entries().next().map_or(0, |(key, _)| key)
    }

    fn last(&self) -> u128 {
        self.entries().next_back().map_or(0, |(key, _)| key)
    }
}

fn entries(block: &[u8]) -> impl DoubleEndedIterator<Item = Entry> + '_ {
    let count = block.first_chunk::<2>().map_or(0, |c| usize::from(u16::from_le_bytes(*c)));
    let all = block.get(2..CRC_AT).unwrap_or_default().chunks_exact(ENTRY_BYTES);
    all.take(count).filter_map(|entry| {
        let (key, range) = entry.split_first_chunk::<16>()?;
        Some((u128::from_be_bytes(*key), u16::from_le_bytes(*range.first_chunk::<2>()?)))
    })
}

/// Goes through a run in order.
pub(super) struct Scan {
    run: Arc<Run>,
    next_block: u64,
    waiting: std::vec::IntoIter<Entry>,
}

impl Scan {
    /// The next entry.
    pub(super) fn next(&mut self) -> Result<Option<Entry>, ServerError> {
        loop {
            if let Some(entry) = self.waiting.next() {
                return Ok(Some(entry));
            }
            let count = (self.run.blocks - self.next_block).min(BATCH_BLOCKS as u64);
            if count == 0 {
                return Ok(None);
            }
            let bytes = self.run.read(self.next_block + 1, count as usize)?;
            self.next_block += count;
            let all: Vec<Entry> = bytes.chunks(BLOCK_BYTES).flat_map(entries).collect();
            self.waiting = all.into_iter();
        }
    }
}

/// Writes a run, from entries in order.
pub(super) struct RunWriter {
    number: u64,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    entries: u64,
    /// Blocks that are full, and the one that is being filled.
    buffer: Vec<u8>,
    in_block: usize,
    written_bytes: u64,
}

impl RunWriter {
    pub(super) fn create(disk: &dyn Disk, dir: &Path, number: u64) -> Result<RunWriter, ServerError> {
        let path = path(dir, number);
        let file = disk.open(&path, true).map_err(|e| ServerError::io("create", &path, e))?;
        let written_bytes = BLOCK_BYTES as u64;
        Ok(RunWriter { number, path, file, entries: 0, buffer: Vec::new(), in_block: 0, written_bytes })
    }

    pub(super) fn push(&mut self, (key, range): Entry) -> Result<(), ServerError> {
        if self.in_block == 0 {
            self.buffer.extend_from_slice(&[0, 0]);
        }
        self.buffer.extend_from_slice(&key.to_be_bytes());
        self.buffer.extend_from_slice(&range.to_le_bytes());
        (self.in_block, self.entries) = (self.in_block + 1, self.entries + 1);
        if self.in_block == BLOCK_ENTRIES {
            self.end_block();
            if self.buffer.len() >= BATCH_BLOCKS * BLOCK_BYTES {
                self.write()?;
            }
        }
        Ok(())
    }

    fn end_block(&mut self) {
        let begin = self.buffer.len() / BLOCK_BYTES * BLOCK_BYTES;
        let count = (self.in_block as u16).to_le_bytes();
        self.buffer.resize(begin + BLOCK_BYTES, 0);
        if let Some(block) = self.buffer.get_mut(begin..) {
            block.iter_mut().zip(count).for_each(|(to, from)| *to = from);
            seal(block);
        }
        self.in_block = 0;
    }

    fn write(&mut self) -> Result<(), ServerError> {
        let written = self.file.write_all_at(&self.buffer, self.written_bytes);
        written.map_err(|e| ServerError::io("write", &self.path, e))?;
        self.written_bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Makes it durable; its name is when the folder is synced.
    pub(super) fn finish(mut self) -> Result<Run, ServerError> {
        if self.in_block > 0 {
            self.end_block();
        }
        self.write()?;
        let mut head = vec![0; BLOCK_BYTES];
        let fields = HEAD.into_iter().chain(self.entries.to_le_bytes());
        head.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
        seal(&mut head);
        let durable = self.file.write_all_at(&head, 0).and_then(|()| self.file.sync());
        durable.map_err(|e| ServerError::io("write", &self.path, e))?;
        let blocks = self.entries.div_ceil(BLOCK_ENTRIES as u64);
        let RunWriter { number, path, file, entries, .. } = self;
        Ok(Run { number, entries, blocks, path, file })
    }
}

/// Makes one run of several, oldest first; of entries with the same key the newest run's counts. `None` when it was to stop.
pub(super) fn merge(
    disk: &dyn Disk,
    dir: &Path,
    number: u64,
    runs: &[Arc<Run>],
    stop: &AtomicBool,
) -> Result<Option<Run>, ServerError> {
    let mut writer = RunWriter::create(disk, dir, number)?;
    let mut scans = Vec::with_capacity(runs.len());
    for run in runs.iter().rev() {
        let mut scan = run.scan();
        let head = scan.next()?;
        scans.push((head, scan));
    }
    while let Some(key) = scans.iter().filter_map(|(head, _)| head.map(|(key, _)| key)).min() {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut newest = None;
        for (head, scan) in scans.iter_mut().filter(|(head, _)| head.is_some_and(|(k, _)| k == key)) {
            newest = newest.or(*head);
            *head = scan.next()?;
        }
        if let Some(entry) = newest {
            writer.push(entry)?;
        }
    }
    writer.finish().map(Some)
}
