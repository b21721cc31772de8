//! A run: rows in order, in blocks, with an index of the blocks behind them. Little-endian.
//!
//! ```text
//!   0  8  magic "WBUR" 4, version 4
//!   …     blocks (block.rs), end to end
//!   …     index of the blocks, zstd
//!   …  56 trailer: 0 8 CRC-64 of the index as it lies    8 8 offset of the index   16 4 its bytes   20 4 unpacked
//!                 24 8 rows    32 8 pages more than in the older runs, signed      40 4 blocks      44 4 SURT profile
//!                 48 8 CRC-64 of the trailer up to here
//!
//!   index, for each block, in varints: bytes that its separator shares with the one before; length of the rest; the rest;
//!   bytes of the block; rows; pages more, zigzag
//! ```
//!
//! 1. Rows ascend by (SURT key, page key), and no page stands in a run twice.
//! 2. A block's *separator* is above the SURT keys of the block before and not above its own: the shortest such text. In memory
//!    it and the sums take some 50 bytes a block, which is some 400 rows.
//! 3. Every block is verified when it is read, the index when the run is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::Entry;
use super::block::{Block, BlockWriter, pack, put, shared, take, take_bytes, unpack};
use super::merge::Source;
use crate::disk::{Disk, DiskFile};
use crate::error::{Result, StorageError};
use crate::record::crc64;

const HEAD: [u8; 8] = *b"WBUR\x01\0\0\0";
const TRAILER_BYTES: usize = 56;
/// The SURT profile that rows are sorted by: `surt-ia-1`.
const PROFILE: u32 = 1;
/// Bytes that are written at once.
const BATCH_BYTES: usize = 1 << 20;
/// Bytes of an index, unpacked, at most.
const INDEX_BYTES_MAX: usize = 1 << 30;

/// Numbers of runs that are written or held, and therefore not to be removed.
pub(super) type Held = Arc<Mutex<std::collections::BTreeMap<u64, usize>>>;

/// Holds a number.
#[derive(Debug)]
pub(super) struct Hold(Held, u64);

impl Hold {
    pub(super) fn new(held: &Held, number: u64) -> Hold {
        *held.lock().entry(number).or_insert(0) += 1;
        Hold(held.clone(), number)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = self.0.lock();
        if let Some(count) = held.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.1);
            }
        }
    }
}

/// A run that can be read.
#[derive(Debug)]
pub struct UrlRun {
    pub(super) number: u64,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    rows: u64,
    bytes: u64,
    index: Index,
    _hold: Hold,
}

/// Where the blocks are, and what is in them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Index {
    /// Separators, end to end, and where each ends.
    separators: Vec<u8>,
    ends: Vec<u32>,
    /// Where each block begins, and where the last one ends.
    offsets: Vec<u64>,
    /// Pages more than in the older runs, before each block and behind the last.
    sums: Vec<i64>,
}

impl Index {
    fn new() -> Index {
        Index { offsets: vec![HEAD.len() as u64], sums: vec![0], ..Index::default() }
    }

    fn blocks(&self) -> usize {
        self.ends.len()
    }

    fn separator(&self, block: usize) -> &[u8] {
        let end = self.ends.get(block).map_or(0, |end| *end as usize);
        let start = block.checked_sub(1).and_then(|b| self.ends.get(b)).map_or(0, |end| *end as usize);
        self.separators.get(start..end).unwrap_or_default()
    }

    /// How many blocks have a separator below this key.
    fn below(&self, surt: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.blocks());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.separator(middle) < surt {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn push(&mut self, separator: &[u8], bytes: u64, net: i64) {
        self.separators.extend_from_slice(separator);
        self.ends.push(self.separators.len() as u32);
        self.offsets.push(self.offsets.last().copied().unwrap_or(0) + bytes);
        self.sums.push(self.sums.last().copied().unwrap_or(0) + net);
    }

    fn decode(mut from: &[u8], blocks: usize) -> Option<Index> {
        let mut index = Index::new();
        let mut separator: Vec<u8> = Vec::new();
        for _ in 0..blocks {
            let same = take(&mut from)? as usize;
            let len = take(&mut from)? as usize;
            let rest = take_bytes(len, &mut from)?;
            let before = separator.clone();
            if same > separator.len() {
                return None;
            }
            separator.truncate(same);
            separator.extend_from_slice(rest);
            let bytes = take(&mut from)?;
            let net = take(&mut from)?;
            let net = (net >> 1) as i64 ^ -((net & 1) as i64);
            if separator < before || bytes > 1 << 32 || net.unsigned_abs() > 1 << 32 {
                return None;
            }
            index.push(&separator, bytes, net);
        }
        from.is_empty().then_some(index)
    }
}

pub(super) fn run_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("run-{number}"))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b))
}

impl UrlRun {
    /// Opens a run, which reads its index.
    pub(super) fn open(disk: &dyn Disk, dir: &Path, number: u64, held: &Held) -> Result<UrlRun> {
        let hold = Hold::new(held, number);
        let path = run_path(dir, number);
        let fail = |op| {
            let path = path.clone();
            move |e| StorageError::io(op, &path, e)
        };
        let damage =
            |offset, what: &str| StorageError::Corrupt { path: path.clone(), offset, what: what.into() };
        let file = disk.open(&path, false).map_err(fail("open"))?;
        let len = file.len().map_err(fail("measure"))?;
        let least = (HEAD.len() + TRAILER_BYTES) as u64;
        let Some(trailer_at) = len.checked_sub(TRAILER_BYTES as u64).filter(|_| len >= least) else {
            return Err(damage(0, "the run is cut short"));
        };
        if file.read_vec(HEAD.len(), 0).map_err(fail("read"))? != HEAD {
            return Err(damage(0, "not a run of this version"));
        }
        let trailer = file.read_vec(TRAILER_BYTES, trailer_at).map_err(fail("read"))?;
        if crc64(trailer.get(..48).unwrap_or_default()) != word(&trailer, 48) {
            return Err(damage(trailer_at, "the trailer's CRC-64 does not hold"));
        }
        if half(&trailer, 44) != PROFILE {
            return Err(damage(trailer_at, "its rows are sorted by rules that this program does not know"));
        }
        let (at, packed, unpacked) =
            (word(&trailer, 8), half(&trailer, 16) as usize, half(&trailer, 20) as usize);
        if at.checked_add(packed as u64) != Some(trailer_at) || unpacked > INDEX_BYTES_MAX {
            return Err(damage(trailer_at, "the trailer does not fit the file"));
        }
        let index = file.read_vec(packed, at).map_err(fail("read"))?;
        if crc64(&index) != word(&trailer, 0) {
            return Err(damage(at, "the index's CRC-64 does not hold"));
        }
        let index = unpack(&index, unpacked).map_err(|what| damage(at, &what))?;
        let index = Index::decode(&index, half(&trailer, 40) as usize);
        let index = index
            .filter(|i| i.offsets.last() == Some(&at) && i.sums.last() == Some(&(word(&trailer, 32) as i64)));
        let index = index.ok_or_else(|| damage(at, "the index is none"))?;
        Ok(UrlRun {
            number,
            path: path.clone(),
            file,
            rows: word(&trailer, 24),
            bytes: len,
            index,
            _hold: hold,
        })
    }

    /// Rows in it.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// What it occupies.
    pub fn disk_bytes(&self) -> u64 {
        self.bytes
    }

    /// What it keeps in memory.
    pub fn memory_bytes(&self) -> u64 {
        (self.index.separators.len() + 20 * self.index.blocks()) as u64
    }

    pub(super) fn blocks(&self) -> usize {
        self.index.blocks()
    }

    /// Where a block begins: its own keys are not below this.
    pub(super) fn separator(&self, block: usize) -> &[u8] {
        self.index.separator(block)
    }

    /// How many blocks begin below a key.
    pub(super) fn blocks_below(&self, surt: &str) -> usize {
        self.index.below(surt.as_bytes())
    }

    fn damage(&self, block: usize, what: String) -> StorageError {
        let offset = self.index.offsets.get(block).copied().unwrap_or(0);
        StorageError::Corrupt { path: self.path.clone(), offset, what: format!("block {block}: {what}") }
    }

    fn block(&self, block: usize) -> Result<Block> {
        let at = |n: usize| self.index.offsets.get(n).copied().unwrap_or(0);
        let (start, end) = (at(block), at(block + 1));
        let bytes = self.file.read_vec(end.saturating_sub(start) as usize, start);
        let bytes = bytes.map_err(|e| StorageError::io("read", &self.path, e))?;
        let mut rest = bytes.as_slice();
        let found = Block::take(&mut rest).map_err(|what| self.damage(block, what))?;
        match rest.is_empty() {
            true => Ok(found),
            false => Err(self.damage(block, "it is shorter than the index says".into())),
        }
    }

    /// All rows of a block.
    pub(super) fn entries(&self, block: usize) -> Result<Vec<Entry>> {
        let mut from = self.block(block)?;
        let mut all = Vec::new();
        while let Some(entry) = from.next().map_err(|what| self.damage(block, what))? {
            all.push(entry);
        }
        Ok(all)
    }

    /// How many pages more than the older runs it has below a key.
    pub(super) fn net_below(&self, surt: &str) -> Result<i64> {
        // The last block that begins below the key may reach over it; those before it do not.
        let Some(block) = self.index.below(surt.as_bytes()).checked_sub(1) else { return Ok(0) };
        let mut net = self.index.sums.get(block).copied().unwrap_or(0);
        let mut from = self.block(block)?;
        while let Some(entry) = from.next().map_err(|what| self.damage(block, what))? {
            if entry.row.surt.as_str() >= surt {
                break;
            }
            net += entry.change.delta();
        }
        Ok(net)
    }

    /// How many pages more than the older runs it has.
    pub(super) fn net(&self) -> i64 {
        self.index.sums.last().copied().unwrap_or(0)
    }

    /// Rows from the first whose SURT key is not below `from`, upwards.
    pub(super) fn ascend(self: &Arc<UrlRun>, from: &str) -> Result<Ascending> {
        let block = self.index.below(from.as_bytes()).saturating_sub(1);
        let mut rows = Ascending { run: self.clone(), block, current: None, head: None };
        rows.advance()?;
        while rows.head.as_ref().is_some_and(|head| head.row.surt.as_str() < from) {
            rows.advance()?;
        }
        Ok(rows)
    }

    /// Rows from the last whose SURT key is below `to`, downwards.
    pub(super) fn descend(self: &Arc<UrlRun>, to: Option<&str>) -> Result<Descending> {
        let block = to.map_or(self.blocks(), |to| self.index.below(to.as_bytes()));
        let mut rows = Descending { run: self.clone(), block, waiting: Vec::new() };
        rows.fill()?;
        while rows.waiting.last().is_some_and(|last| to.is_some_and(|to| last.row.surt.as_str() >= to)) {
            rows.advance()?;
        }
        Ok(rows)
    }

    /// Reads everything, for damage.
    pub(super) fn verify(&self) -> Result<()> {
        (0..self.blocks()).try_for_each(|block| self.entries(block).map(drop))
    }
}

/// Rows of a run, upwards.
pub(super) struct Ascending {
    run: Arc<UrlRun>,
    /// The next block to read.
    block: usize,
    current: Option<Block>,
    head: Option<Entry>,
}

impl Source for Ascending {
    fn peek(&self) -> Option<&Entry> {
        self.head.as_ref()
    }

    fn advance(&mut self) -> Result<Option<Entry>> {
        let before = self.head.take();
        loop {
            if let Some(block) = &mut self.current {
                self.head = block.next().map_err(|what| self.run.damage(self.block - 1, what))?;
                if self.head.is_some() {
                    return Ok(before);
                }
            }
            if self.block >= self.run.blocks() {
                self.current = None;
                return Ok(before);
            }
            self.current = Some(self.run.block(self.block)?);
            self.block += 1;
        }
    }
}

/// Rows of a run, downwards.
pub(super) struct Descending {
    run: Arc<UrlRun>,
    /// The blocks before this one are still to be read.
    block: usize,
    waiting: Vec<Entry>,
}

impl Descending {
    fn fill(&mut self) -> Result<()> {
        while self.waiting.is_empty() && self.block > 0 {
            self.block -= 1;
            self.waiting = self.run.entries(self.block)?;
        }
        Ok(())
    }
}

impl Source for Descending {
    fn peek(&self) -> Option<&Entry> {
        self.waiting.last()
    }

    fn advance(&mut self) -> Result<Option<Entry>> {
        let before = self.waiting.pop();
        self.fill()?;
        Ok(before)
    }
}

/// Writes a run, from rows in order.
pub(super) struct RunWriter {
    number: u64,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    block: BlockWriter,
    /// The SURT key of the last row of the block before, and where the current block begins.
    last_of_block: Vec<u8>,
    separator: Vec<u8>,
    block_net: i64,
    last: Vec<u8>,
    index: Index,
    packed_index: Vec<u8>,
    rows: u64,
    buffer: Vec<u8>,
    written: u64,
    hold: Hold,
}

/// The shortest text above `before` and not above `first`.
fn separator(before: &[u8], first: &[u8]) -> Vec<u8> {
    let len = (shared(before, first) + 1).min(first.len());
    first.get(..len).unwrap_or_default().to_vec()
}

impl RunWriter {
    pub(super) fn create(disk: &dyn Disk, dir: &Path, number: u64, held: &Held) -> Result<RunWriter> {
        let hold = Hold::new(held, number);
        let path = run_path(dir, number);
        let file = disk.open(&path, true).map_err(|e| StorageError::io("create", &path, e))?;
        Ok(RunWriter {
            number,
            path,
            file,
            block: BlockWriter::default(),
            last_of_block: Vec::new(),
            separator: Vec::new(),
            block_net: 0,
            last: Vec::new(),
            index: Index::new(),
            packed_index: Vec::new(),
            rows: 0,
            buffer: HEAD.to_vec(),
            written: 0,
            hold,
        })
    }

    pub(super) fn push(&mut self, entry: &Entry) -> Result<()> {
        let surt = entry.row.surt.as_bytes();
        if self.block.is_empty() {
            self.separator = match self.rows {
                0 => Vec::new(),
                _ => separator(&self.last_of_block, surt),
            };
        }
        self.block.push(&entry.row, entry.change);
        self.block_net += entry.change.delta();
        self.rows += 1;
        self.last.clear();
        self.last.extend_from_slice(surt);
        if self.block.is_full() {
            self.end_block()?;
        }
        Ok(())
    }

    fn end_block(&mut self) -> Result<()> {
        let before = self.buffer.len();
        self.block
            .finish(&mut self.buffer)
            .map_err(|e| StorageError::io("pack a block of", &self.path, e))?;
        let bytes = (self.buffer.len() - before) as u64;
        let last = self.index.blocks().checked_sub(1);
        let same = last.map_or(0, |last| shared(self.index.separator(last), &self.separator));
        let rest = self.separator.get(same..).unwrap_or_default();
        let out = &mut self.packed_index;
        put(same as u64, out);
        put(rest.len() as u64, out);
        out.extend_from_slice(rest);
        put(bytes, out);
        put(((self.block_net << 1) ^ (self.block_net >> 63)) as u64, out);
        self.index.push(&self.separator, bytes, self.block_net);
        self.block_net = 0;
        std::mem::swap(&mut self.last_of_block, &mut self.last);
        if self.buffer.len() >= BATCH_BYTES {
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        let written = self.file.write_all_at(&self.buffer, self.written);
        written.map_err(|e| StorageError::io("write", &self.path, e))?;
        self.file.start_writeback(self.written..self.written + self.buffer.len() as u64);
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Makes it durable; its name is when the folder is synced.
    pub(super) fn finish(self) -> Result<UrlRun> {
        let run = self.end()?;
        run.file.sync().map_err(|e| StorageError::io("sync", &run.path, e))?;
        Ok(run)
    }

    /// As [`RunWriter::finish`], for a run that nobody needs after a crash.
    pub(super) fn end(mut self) -> Result<UrlRun> {
        if !self.block.is_empty() {
            self.end_block()?;
        }
        let at = self.written + self.buffer.len() as u64;
        let packed =
            pack(&self.packed_index).map_err(|e| StorageError::io("pack the index of", &self.path, e))?;
        let mut trailer = crc64(&packed).to_le_bytes().to_vec();
        trailer.extend_from_slice(&at.to_le_bytes());
        trailer.extend_from_slice(&(packed.len() as u32).to_le_bytes());
        trailer.extend_from_slice(&(self.packed_index.len() as u32).to_le_bytes());
        trailer.extend_from_slice(&self.rows.to_le_bytes());
        trailer.extend_from_slice(&self.index.sums.last().copied().unwrap_or(0).to_le_bytes());
        trailer.extend_from_slice(&(self.index.blocks() as u32).to_le_bytes());
        trailer.extend_from_slice(&PROFILE.to_le_bytes());
        trailer.extend_from_slice(&crc64(&trailer).to_le_bytes());
        self.buffer.extend_from_slice(&packed);
        self.buffer.extend_from_slice(&trailer);
        self.write()?;
        let RunWriter { number, path, file, rows, written, index, hold, .. } = self;
        Ok(UrlRun { number, path, file, rows, bytes: written, index, _hold: hold })
    }
}

/// Bytes as the index of a run.
#[cfg(any(fuzzing, test))]
pub(crate) fn fuzz_index(data: &[u8]) {
    for blocks in [1, 3] {
        if let Some(index) = Index::decode(data, blocks) {
            assert_eq!(
                (index.blocks(), index.offsets.len(), index.sums.len()),
                (blocks, blocks + 1, blocks + 1)
            );
            assert!(index.below(b"com,") <= blocks);
        }
    }
}
