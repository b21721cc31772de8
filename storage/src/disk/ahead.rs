//! Reading files from one end to the other faster than they are consumed.
//!
//! Several threads each have a read of a chunk under way, across the borders of files, so that the device never waits for
//! the consumer to ask; chunks are handed over in order. Read directly, the page cache is left alone: a scan of everything
//! does not evict everything else. Through a map nothing is copied, and the threads take the page faults.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use memmap2::{Advice, MmapMut};
use parking_lot::Mutex;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::DiskFile;
use crate::in_order::InOrder;

/// Bytes of a chunk, the unit of reading and of hand-over: a huge page.
const CHUNK_BYTES: u64 = 2 << 20;
/// Reads under way at once.
const READS: usize = 4;
/// Chunks read or being read before the consumer.
const CHUNKS_AHEAD: usize = 8;
/// What direct reads and writes are aligned to.
pub(super) const BLOCK_BYTES: u64 = 4096;

/// Memory aligned for direct writes.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone)]
#[repr(C, align(4096))]
pub(super) struct Block([u8; BLOCK_BYTES as usize]);

impl Default for Block {
    fn default() -> Self {
        Block([0; BLOCK_BYTES as usize])
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Block")
    }
}

/// How files are read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// Ordinary reads.
    Cache,
    /// Past the page cache, where the disk has that.
    Direct,
    /// The page cache, shared rather than copied, where the disk has maps.
    Map,
}

/// Ranges of several files, cut into chunks that are numbered throughout.
#[derive(Debug)]
struct Chunks {
    /// Each part's range, its start aligned, and the number of its first chunk.
    parts: Vec<(Range<u64>, usize)>,
    count: usize,
}

impl Chunks {
    fn new(ranges: impl Iterator<Item = Range<u64>>) -> Chunks {
        let mut count = 0;
        let parts = ranges
            .map(|range| {
                let (start, first) = (range.start / BLOCK_BYTES * BLOCK_BYTES, count);
                if start < range.end {
                    count += (range.end.div_ceil(CHUNK_BYTES) - start / CHUNK_BYTES) as usize;
                }
                (start..range.end, first)
            })
            .collect();
        Chunks { parts, count }
    }

    /// The part a chunk is of, and its bytes: chunks end where a multiple of their size does.
    fn get(&self, number: usize) -> Option<(usize, Range<u64>)> {
        let part = self.parts.partition_point(|(_, first)| *first <= number).checked_sub(1)?;
        let (range, first) = self.parts.get(part)?;
        let start = (range.start / CHUNK_BYTES + (number - first) as u64) * CHUNK_BYTES;
        Some((part, range.start.max(start)..range.end.min(start + CHUNK_BYTES)))
    }

    /// The number of a part's first chunk.
    fn first(&self, part: usize) -> usize {
        self.parts.get(part).map_or(self.count, |(_, first)| *first)
    }

    fn range(&self, part: usize) -> Range<u64> {
        self.parts.get(part).map_or(0..0, |(range, _)| range.clone())
    }
}

/// The bytes of ranges of files, in order, read ahead by threads of its own.
#[derive(Debug)]
pub struct ReadAhead {
    chunks: Arc<Chunks>,
    read: InOrder<io::Result<Bytes>>,
    part: usize,
    /// Chunks taken so far.
    taken: usize,
    current: io::Result<Bytes>,
    /// File offsets of the current chunk.
    at: Range<u64>,
}

impl ReadAhead {
    /// Starts reading `range` of `file`.
    pub fn new(file: Arc<dyn DiskFile>, range: Range<u64>, how: Through) -> ReadAhead {
        Self::of_parts(vec![(file, range)], how)
    }

    /// Starts reading ranges of files, one after the other.
    pub fn of_parts(parts: Vec<(Arc<dyn DiskFile>, Range<u64>)>, how: Through) -> ReadAhead {
        let chunks = Arc::new(Chunks::new(parts.iter().map(|(_, range)| range.clone())));
        let at = chunks.range(0).start;
        let (plan, sources) = (chunks.clone(), Sources { how, parts, opened: Mutex::default() });
        let buffers = Buffers::new(CHUNKS_AHEAD + 2);
        let read = InOrder::new(chunks.count, READS, CHUNKS_AHEAD, move |number| {
            let (part, range) = plan.get(number).ok_or(io::ErrorKind::InvalidInput)?;
            match sources.get(part)? {
                Source::File(file) => buffers.read(&*file, range),
                Source::Map(file, map) => {
                    let bytes = map.slice(range.start as usize..range.end as usize);
                    file.populate(&bytes)?;
                    Ok(bytes)
                }
            }
        });
        ReadAhead { chunks, read, part: 0, taken: 0, current: Ok(Bytes::new()), at: at..at }
    }

    /// Goes on to the next part.
    pub fn next_part(&mut self) {
        self.part += 1;
        while self.taken < self.chunks.first(self.part) {
            let _ = self.advance(); // what the consumer did not want
        }
        let start = self.chunks.range(self.part).start;
        self.at = start..start;
        self.current = Ok(Bytes::new());
    }

    /// The bytes of `range` of the current part, which must not start before the last one asked for: shared with the
    /// chunk where they lie in one, joined where they don't.
    ///
    /// # Errors
    /// When the disk failed for a chunk it touches (others are not affected), or the range goes beyond what was asked
    /// for at the start.
    pub fn get(&mut self, range: Range<u64>) -> io::Result<Bytes> {
        let outside = || io::Error::from(io::ErrorKind::InvalidInput);
        if range.end > self.chunks.range(self.part).end || range.start < self.at.start {
            return Err(outside());
        }
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        while range.start >= self.at.end {
            self.advance()?;
        }
        let start = (range.start - self.at.start) as usize;
        let len = (range.end - range.start) as usize;
        let current = self.chunk()?;
        if start + len <= current.len() {
            return Ok(current.slice(start..start + len));
        }
        let mut joined = Vec::with_capacity(len);
        joined.extend_from_slice(current.get(start..).unwrap_or_default());
        while joined.len() < len {
            self.advance()?;
            let current = self.chunk()?;
            let take = current.len().min(len - joined.len());
            joined.extend_from_slice(current.get(..take).unwrap_or_default());
        }
        Ok(joined.into())
    }

    /// The current chunk, or again why it could not be read.
    fn chunk(&self) -> io::Result<&Bytes> {
        self.current
            .as_ref()
            .map_err(|e| e.raw_os_error().map_or(e.kind().into(), io::Error::from_raw_os_error))
    }

    fn advance(&mut self) -> io::Result<()> {
        let end = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let (_, range) =
            self.chunks.get(self.taken).filter(|_| self.taken < self.chunks.count).ok_or_else(end)?;
        self.current = self.read.next().unwrap_or_else(|| Err(end()));
        self.at = range;
        self.taken += 1;
        Ok(())
    }
}

/// What chunks are read from.
#[derive(Debug)]
struct Sources {
    how: Through,
    parts: Vec<(Arc<dyn DiskFile>, Range<u64>)>,
    /// The handle or map of the part being read. It is made when the part's first chunk is read, so that a long list of
    /// parts does not hold as many open.
    opened: Mutex<Option<(usize, Source)>>,
}

#[derive(Debug, Clone)]
enum Source {
    File(Arc<dyn DiskFile>),
    Map(Arc<dyn DiskFile>, Bytes),
}

impl Sources {
    fn get(&self, part: usize) -> io::Result<Source> {
        let (file, range) = self.parts.get(part).ok_or(io::ErrorKind::InvalidInput)?;
        let mut opened = self.opened.lock();
        if let Some((_, source)) = opened.as_ref().filter(|(of, _)| *of == part) {
            return Ok(source.clone());
        }
        let plain = || Source::File(file.clone());
        let source = match self.how {
            Through::Cache => plain(),
            Through::Direct => file.open_direct().map_or_else(plain, Source::File),
            // Touching a map beyond the file's end would end the process.
            Through::Map if file.len()? < range.end => plain(),
            Through::Map => {
                file.map_to_scan(range.end).map_or_else(plain, |map| Source::Map(file.clone(), map))
            }
        };
        *opened = Some((part, source.clone()));
        Ok(source)
    }
}

/// Memory to read into, used again: memory fresh from the system costs more than the read.
#[derive(Debug, Clone)]
pub(crate) struct Buffers {
    free: Arc<Mutex<Vec<MmapMut>>>,
    max: usize,
}

impl Buffers {
    /// Keeps at most `max` buffers that nobody uses.
    pub(crate) fn new(max: usize) -> Buffers {
        Buffers { free: Arc::default(), max }
    }

    /// Reads a range that starts on a block; whole blocks are asked for, as direct reads must.
    pub(crate) fn read(&self, file: &dyn DiskFile, range: Range<u64>) -> io::Result<Bytes> {
        debug_assert!(range.start.is_multiple_of(BLOCK_BYTES), "reads begin on blocks");
        let len = range.end.saturating_sub(range.start) as usize;
        let asked = len.next_multiple_of(BLOCK_BYTES as usize);
        let mut memory = self.take(asked)?;
        let buffer = memory.get_mut(..asked).unwrap_or_default();
        let mut done = 0;
        while done < len {
            match file.read_some_at(buffer.get_mut(done..).unwrap_or_default(), range.start + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Bytes::from_owner(Window { memory: Some(memory), len, buffers: self.clone() }))
    }

    fn take(&self, len: usize) -> io::Result<MmapMut> {
        let mut free = self.free.lock();
        if let Some(at) = free.iter().position(|memory| memory.len() >= len) {
            return Ok(free.swap_remove(at));
        }
        drop(free);
        let huge = len as u64 > CHUNK_BYTES / 2;
        let len = if huge { len.next_multiple_of(CHUNK_BYTES as usize) } else { len };
        let memory = MmapMut::map_anon(len.max(1))?;
        if huge {
            let _ = memory.advise(Advice::HugePage); // only a hint
        }
        Ok(memory)
    }
}

/// A chunk that gives its memory back when its last reader is done.
struct Window {
    memory: Option<MmapMut>,
    len: usize,
    buffers: Buffers,
}

impl AsRef<[u8]> for Window {
    fn as_ref(&self) -> &[u8] {
        self.memory.as_deref().and_then(|memory| memory.get(..self.len)).unwrap_or_default()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let mut free = self.buffers.free.lock();
        if free.len() < self.buffers.max {
            free.extend(self.memory.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, OsDisk, SimDisk};
    use std::path::Path;

    fn content() -> Vec<u8> {
        (0..20_000_000_u32).map(|i| (i % 253) as u8).collect()
    }

    #[test]
    fn a_file_comes_whole_and_in_order() {
        let content = content();
        let dir = tempfile::tempdir().unwrap();
        let disks: [(Box<dyn Disk>, &Path); 3] = [
            (Box::new(OsDisk::new()), dir.path()),
            (Box::new(OsDisk::plain()), dir.path()),
            (Box::new(SimDisk::new()), Path::new("/")),
        ];
        for (disk, dir) in disks {
            let file = disk.open(&dir.join("f"), true).unwrap();
            file.write_all_at(&content, 0).unwrap();
            for how in [Through::Cache, Through::Direct, Through::Map] {
                let mut ahead = ReadAhead::new(file.clone(), 1000..19_999_999, how);
                let mut at = 1000;
                for step in (1_u64..).map(|i| i * 7919 % 700_000) {
                    let end = (at + step).min(19_999_999);
                    assert_eq!(ahead.get(at..end).unwrap(), content[at as usize..end as usize]);
                    at = end;
                    if at == 19_999_999 {
                        break;
                    }
                }
                assert!(ahead.get(at..at + 1).is_err());
            }
        }
    }

    #[test]
    fn parts_follow_each_other_whether_read_to_their_ends_or_not() {
        let content = content();
        let disk = SimDisk::new();
        let file = disk.open(Path::new("/f"), true).unwrap();
        file.write_all_at(&content, 0).unwrap();
        let ranges = [5..9_000_000, 100..100, 4096..4097, 0..20_000_000, 7_000_001..7_000_009];
        let cases = [(false, Through::Direct), (true, Through::Direct), (true, Through::Map)];
        for (read_whole, how) in cases {
            let parts = ranges.iter().map(|r| (file.clone(), r.clone())).collect();
            let mut ahead = ReadAhead::of_parts(parts, how);
            for range in &ranges {
                let end = if read_whole { range.end } else { range.end.min(range.start + 10) };
                assert_eq!(ahead.get(range.start..end).unwrap(), content[range.start as usize..end as usize]);
                ahead.next_part();
            }
            assert!(ahead.get(0..1).is_err());
        }
    }

    #[test]
    fn a_file_that_ends_early_spoils_only_its_last_chunk() {
        let disk = SimDisk::new();
        let file = disk.open(Path::new("/f"), true).unwrap();
        let content = content();
        file.write_all_at(&content[..5_000_000], 0).unwrap();
        let mut ahead = ReadAhead::of_parts(vec![(file.clone(), 0..6_000_000), (file, 0..100)], Through::Map);
        assert_eq!(ahead.get(0..4_000_000).unwrap(), content[..4_000_000]);
        for at in [4_100_000, 4_194_304, 5_000_000, 5_999_999] {
            let got = ahead.get(at..at + 1);
            assert_eq!(got.is_ok(), at < 4_194_304, "{at}");
        }
        ahead.next_part();
        assert_eq!(ahead.get(0..100).unwrap(), content[..100]);
    }

    #[test]
    fn memory_is_used_again_once_nobody_reads_it() {
        let disk = SimDisk::new();
        let file = disk.open(Path::new("/f"), true).unwrap();
        file.write_all_at(&content(), 0).unwrap();
        let buffers = Buffers::new(2);
        let held: Vec<Bytes> =
            (0..4).map(|i| buffers.read(&*file, i * 4096..i * 4096 + 5000).unwrap()).collect();
        assert!(buffers.free.lock().is_empty());
        let part = held[0].slice(10..20);
        drop(held);
        assert_eq!(buffers.free.lock().len(), 2, "no more than asked for");
        drop(part);
        assert_eq!(buffers.free.lock().len(), 2);
        drop(buffers.read(&*file, 0..8192).unwrap());
        assert_eq!(buffers.free.lock().len(), 2);
    }
}
