//! How important pages are, as somebody computed it: a table beside the pages of a read node, replaced as a whole.
//!
//! ```text
//!   importance-V, V being the table's version in hexadecimal:
//!   blocks of 4096 bytes: entries, zeros, number of entries 4, zeros 4, CRC-64 of all before 8
//!   the last block: its first bytes are a description as postcard writes it; its number of entries is all bits set
//!   entry: page key 16, big-endian; importance 4, an IEEE 754 number, little-endian
//! ```
//!
//! 1. Keys ascend. A table says nothing of pages that it does not have; it describes which ranges it is about.
//! 2. A table is complete and durable before it has its name. The two newest are kept, so that streams and cursors that
//!    began with the older one go on.
//! 3. Every block is verified when the table is opened, and again when it is read. A damaged table is none.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use webbase_storage::{PageKey, crc64};

use crate::wire::message::{Code, Fault, Key};
use crate::wire::ranges::RangeSet;

const BLOCK_BYTES: usize = 4096;
const FOOT_BYTES: usize = 16;
/// Bytes of an entry, in the file and on the wire.
pub(crate) const ENTRY_BYTES: usize = 20;
const ENTRIES_MAX: usize = (BLOCK_BYTES - FOOT_BYTES) / ENTRY_BYTES;
const DESCRIPTION: u32 = u32::MAX;
const KEPT: usize = 2;

const _: () = assert!(ENTRIES_MAX == 204);

/// An entry as bytes.
pub(crate) fn entry(key: PageKey, importance: f32) -> [u8; ENTRY_BYTES] {
    let mut out = [0; ENTRY_BYTES];
    let (k, v) = out.split_at_mut(16);
    k.copy_from_slice(&Key::from(key).0);
    v.copy_from_slice(&importance.to_le_bytes());
    out
}

fn parse(entry: &[u8]) -> Option<(PageKey, f32)> {
    let (key, value) = entry.split_first_chunk::<16>()?;
    Some((Key(*key).into(), f32::from_le_bytes(*value.first_chunk()?)))
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Description {
    version: u64,
    entries: u64,
    ranges: RangeSet,
}

/// One table.
#[derive(Debug)]
pub struct Importance {
    file: File,
    path: PathBuf,
    /// The first key of each block.
    firsts: Vec<PageKey>,
    description: Description,
}

fn damaged(path: &Path, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()))
}

/// A block's entries or description, and its number.
fn verified(block: &[u8]) -> Option<(&[u8], u32)> {
    let (body, crc) = block.split_last_chunk::<8>()?;
    if crc64(body) != u64::from_le_bytes(*crc) {
        return None;
    }
    let (body, foot) = body.split_last_chunk::<8>()?;
    let count = u32::from_le_bytes(*foot.first_chunk()?);
    match count {
        DESCRIPTION => Some((body, count)),
        count => Some((body.get(..count as usize * ENTRY_BYTES)?, count)),
    }
}

fn finish_block(block: &mut Vec<u8>, count: u32) {
    block.resize(BLOCK_BYTES - FOOT_BYTES, 0);
    block.extend_from_slice(&count.to_le_bytes());
    block.extend_from_slice(&[0; 4]);
    block.extend_from_slice(&crc64(block).to_le_bytes());
}

/// Reads a table through: the first key of each block, and its description.
fn check(mut table: impl Read, path: &Path) -> io::Result<(Vec<PageKey>, Description)> {
    let (mut firsts, mut entries, mut block) = (Vec::new(), 0_u64, vec![0; BLOCK_BYTES]);
    let mut last = None;
    loop {
        table.read_exact(&mut block).map_err(|_| damaged(path, "it is cut short"))?;
        let (body, count) = verified(&block).ok_or_else(|| damaged(path, "a block is damaged"))?;
        if count == DESCRIPTION {
            let (description, _) = postcard::take_from_bytes::<Description>(body)
                .map_err(|_| damaged(path, "its description is none"))?;
            if description.entries != entries || !description.ranges.is_valid() {
                return Err(damaged(path, "its description is of something else"));
            }
            return Ok((firsts, description));
        }
        for (key, _) in body.chunks_exact(ENTRY_BYTES).filter_map(parse) {
            if last.is_some_and(|last| last >= key) {
                return Err(damaged(path, "its keys are not in order"));
            }
            last = Some(key);
        }
        let first = parse(body).ok_or_else(|| damaged(path, "an empty block"))?;
        firsts.push(first.0);
        entries += u64::from(count);
    }
}

/// The importance of a page in a block that has so many entries. The outer `None` is a damaged block.
fn find(entries: &[u8], count: u32, key: PageKey) -> Option<Option<f32>> {
    let (mut low, mut high) = (0, count as usize);
    while low < high {
        let middle = (low + high) / 2;
        let found = entries.get(middle * ENTRY_BYTES..).and_then(parse)?;
        match found.0.cmp(&key) {
            std::cmp::Ordering::Equal => return Some(Some(found.1)),
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Greater => high = middle,
        }
    }
    Some(None)
}

/// Bytes as a table: what is accepted has as many entries as it says, each to be found.
#[cfg(any(fuzzing, test))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let Ok((firsts, description)) = check(bytes, Path::new("importance")) else { return };
    let mut found = 0;
    for (block, first) in bytes.chunks(BLOCK_BYTES).zip(&firsts) {
        let Some((entries, count)) = verified(block) else { continue };
        let keys = || entries.chunks_exact(ENTRY_BYTES).filter_map(parse).map(|(key, _)| key);
        assert_eq!(keys().next(), Some(*first));
        found += keys().filter(|key| find(entries, count, *key).flatten().is_some()).count() as u64;
    }
    assert_eq!(found, description.entries);
}

/// A table of so many pages.
#[cfg(test)]
pub(crate) fn fuzz_sample(pages: u64) -> Vec<u8> {
    let (mut out, mut block) = (Vec::new(), Vec::new());
    let keys: Vec<PageKey> = (0..pages).map(|n| PageKey { id: webbase_storage::PageId(n), tie: n }).collect();
    for some in keys.chunks(ENTRIES_MAX) {
        some.iter().for_each(|key| block.extend_from_slice(&entry(*key, 1.5)));
        finish_block(&mut block, some.len() as u32);
        out.append(&mut block);
    }
    let description = Description { version: 3, entries: pages, ranges: RangeSet::all() };
    block = postcard::to_extend(&description, Vec::new()).unwrap_or_default();
    finish_block(&mut block, DESCRIPTION);
    out.append(&mut block);
    out
}

impl Importance {
    fn open(path: &Path) -> io::Result<Importance> {
        let file = File::open(path)?;
        let (firsts, description) = check(BufReader::with_capacity(1 << 20, &file), path)?;
        Ok(Importance { file, path: path.to_owned(), firsts, description })
    }

    /// Which table it is.
    pub fn version(&self) -> u64 {
        self.description.version
    }

    /// How many pages it has.
    pub fn entries(&self) -> u64 {
        self.description.entries
    }

    /// Whether it is about all of these ranges.
    pub(crate) fn covers(&self, ranges: &RangeSet) -> bool {
        let mine = &self.description.ranges;
        mine.is_all() || (mine.bits() == ranges.bits() && ranges.numbers().all(|range| mine.has(range)))
    }
}

/// Reads a table, page after page.
pub(crate) struct ImportanceReader {
    table: Arc<Importance>,
    /// The block that was read last.
    at: Option<usize>,
    block: Vec<u8>,
}

impl ImportanceReader {
    pub(crate) fn new(table: Arc<Importance>) -> ImportanceReader {
        ImportanceReader { table, at: None, block: vec![0; BLOCK_BYTES] }
    }

    /// The importance of a page, if the table has it.
    ///
    /// # Errors
    /// When the table cannot be read, or is damaged there.
    pub(crate) fn of(&mut self, key: PageKey) -> Result<Option<f32>, Fault> {
        let table = &self.table;
        let Some(at) = table.firsts.partition_point(|first| *first <= key).checked_sub(1) else {
            return Ok(None);
        };
        if self.at != Some(at) {
            self.at = None;
            let read = table.file.read_exact_at(&mut self.block, (at * BLOCK_BYTES) as u64);
            read.map_err(|e| Fault::new(Code::Store, format!("read {}: {e}", table.path.display())))?;
            self.at = Some(at);
        }
        let broken = || Fault::new(Code::Store, format!("{}: block {at} is damaged", table.path.display()));
        let (entries, count) = verified(&self.block).ok_or_else(broken)?;
        find(entries, count, key).ok_or_else(broken)
    }
}

/// The tables of a node.
#[derive(Debug)]
pub struct Importances {
    dir: PathBuf,
    tables: Mutex<BTreeMap<u64, Arc<Importance>>>,
}

impl Importances {
    /// Opens the tables in a folder. What is damaged or was not completed is removed: whoever computed it can publish it again.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub(crate) fn open(dir: &Path) -> io::Result<Importances> {
        let mut tables = BTreeMap::new();
        for found in std::fs::read_dir(dir)? {
            let path = found?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let Some(version) = name.strip_prefix("importance-") else { continue };
            let version = u64::from_str_radix(version, 16).ok();
            match version.and_then(|version| Some((version, Importance::open(&path).ok()?))) {
                Some((version, table)) if table.version() == version => {
                    tables.insert(version, Arc::new(table));
                }
                _ => std::fs::remove_file(&path)?,
            }
        }
        let all = Importances { dir: dir.to_owned(), tables: Mutex::new(tables) };
        all.let_old_ones_go();
        Ok(all)
    }

    fn path(&self, version: u64) -> PathBuf {
        self.dir.join(format!("importance-{version:x}"))
    }

    fn let_old_ones_go(&self) {
        let mut tables = self.tables.lock();
        while tables.len() > KEPT
            && let Some((version, _)) = tables.pop_first()
        {
            // One that cannot be removed is found again with the next start.
            let _found_again = std::fs::remove_file(self.path(version));
        }
    }

    /// The versions there are.
    pub(crate) fn versions(&self) -> Vec<u64> {
        self.tables.lock().keys().copied().collect()
    }

    /// A table.
    pub(crate) fn get(&self, version: u64) -> Result<Arc<Importance>, Fault> {
        let there = self.tables.lock();
        there.get(&version).cloned().ok_or_else(|| {
            let there: Vec<u64> = there.keys().copied().collect();
            let text =
                format!("the importance of pages, version {version}, is not here; there are {there:?}");
            Fault::new(Code::BadRequest, text)
        })
    }

    /// Begins a table.
    ///
    /// # Errors
    /// When its file cannot be made.
    pub(crate) fn write(self: &Arc<Self>, version: u64, ranges: RangeSet) -> io::Result<ImportanceWriter> {
        let part = self.dir.join(format!("importance-{version:x}.part-{:x}", unique()));
        let file = BufWriter::with_capacity(1 << 20, File::create(&part)?);
        let description = Description { version, entries: 0, ranges };
        let (all, block) = (self.clone(), Vec::with_capacity(BLOCK_BYTES));
        Ok(ImportanceWriter { all, part, file, block, last: None, description })
    }
}

fn unique() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// A table being written. Dropped before it is finished, it leaves nothing.
pub(crate) struct ImportanceWriter {
    all: Arc<Importances>,
    part: PathBuf,
    file: BufWriter<File>,
    block: Vec<u8>,
    last: Option<PageKey>,
    description: Description,
}

impl ImportanceWriter {
    /// Takes entries as they came over the wire.
    ///
    /// # Errors
    /// When they are none, or not in order, or cannot be written.
    pub(crate) fn take(&mut self, entries: &[u8]) -> Result<(), Fault> {
        if !entries.len().is_multiple_of(ENTRY_BYTES) {
            return Err(Fault::new(Code::BadRequest, "half an entry of importance"));
        }
        for bytes in entries.chunks_exact(ENTRY_BYTES) {
            let Some((key, value)) = parse(bytes) else { continue };
            if value.is_nan() || self.last.is_some_and(|last| last >= key) {
                let text =
                    format!("the importance of {key} is no number, or its key does not come after the last");
                return Err(Fault::new(Code::BadRequest, text));
            }
            self.last = Some(key);
            self.description.entries += 1;
            self.block.extend_from_slice(bytes);
            if self.block.len() == ENTRIES_MAX * ENTRY_BYTES {
                self.end_block().map_err(|e| failed(&self.part, &e))?;
            }
        }
        Ok(())
    }

    fn end_block(&mut self) -> io::Result<()> {
        let count = (self.block.len() / ENTRY_BYTES) as u32;
        if count > 0 {
            finish_block(&mut self.block, count);
            self.file.write_all(&self.block)?;
            self.block.clear();
        }
        Ok(())
    }

    /// Makes the table durable, and the newest. Returns how many pages it has.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn finish(mut self) -> Result<u64, Fault> {
        let part = self.part.clone();
        self.complete().map_err(|e| failed(&part, &e))
    }

    fn complete(&mut self) -> io::Result<u64> {
        self.end_block()?;
        let mut block = postcard::to_extend(&self.description, Vec::new()).map_err(io::Error::other)?;
        if block.len() > BLOCK_BYTES - FOOT_BYTES {
            return Err(io::Error::other("its ranges do not fit"));
        }
        finish_block(&mut block, DESCRIPTION);
        self.file.write_all(&block)?;
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        let path = self.all.path(self.description.version);
        std::fs::rename(&self.part, &path)?;
        File::open(&self.all.dir)?.sync_all()?;
        let table = Importance::open(&path)?;
        self.all.tables.lock().insert(self.description.version, Arc::new(table));
        self.all.let_old_ones_go();
        Ok(self.description.entries)
    }
}

impl Drop for ImportanceWriter {
    fn drop(&mut self) {
        // It has another name when it is finished.
        let _renamed = std::fs::remove_file(&self.part);
    }
}

fn failed(path: &Path, e: &io::Error) -> Fault {
    let code = if e.kind() == io::ErrorKind::StorageFull { Code::NoSpace } else { Code::Store };
    Fault::new(code, format!("write {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use webbase_storage::PageId;

    fn key(n: u64) -> PageKey {
        PageKey { id: PageId(n * 3), tie: n % 2 }
    }

    fn write(all: &Arc<Importances>, version: u64, pages: u64) -> u64 {
        let mut writer = all.write(version, RangeSet::all()).unwrap();
        for n in 0..pages {
            writer.take(&entry(key(n), n as f32 / 2.0)).unwrap();
        }
        writer.finish().unwrap()
    }

    #[test]
    fn what_is_published_is_found_again_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let all = Arc::new(Importances::open(dir.path()).unwrap());
        for pages in [0, 1, 203, 204, 205, 5000] {
            assert_eq!(write(&all, pages + 1, pages), pages);
        }
        assert_eq!(all.versions(), [206, 5001], "the two newest are kept");
        drop(all);
        let all = Importances::open(dir.path()).unwrap();
        let mut table = ImportanceReader::new(all.get(5001).unwrap());
        for n in (0..5000).chain([17, 4999, 0]) {
            assert_eq!(table.of(key(n)), Ok(Some(n as f32 / 2.0)));
            assert_eq!(table.of(PageKey { id: PageId(n * 3 + 1), tie: 0 }), Ok(None));
        }
        assert_eq!(table.of(PageKey::MAX), Ok(None));
        assert!(all.get(1).unwrap_err().text.contains("206"));
    }

    #[test]
    fn damage_and_half_tables_are_no_tables() {
        let dir = tempfile::tempdir().unwrap();
        let all = Arc::new(Importances::open(dir.path()).unwrap());
        write(&all, 7, 1000);
        let path = all.path(7);
        let whole = std::fs::read(&path).unwrap();
        for at in (0..whole.len()).step_by(997) {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            std::fs::write(&path, bytes).unwrap();
            assert!(Importance::open(&path).is_err(), "byte {at}");
        }
        let table = all.get(7).unwrap();
        assert!(ImportanceReader::new(table).of(key(0)).is_ok() || whole.is_empty());
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        let mut half = all.write(9, RangeSet::all()).unwrap();
        half.take(&entry(key(1), 1.0)).unwrap();
        assert!(half.take(&entry(key(1), 1.0)).is_err() && half.take(&entry(key(2), f32::NAN)).is_err());
        assert!(half.take(&[0; 19]).is_err());
        drop(half);
        assert_eq!(Importances::open(dir.path()).unwrap().versions(), Vec::<u64>::new());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
