//! Sorting more than memory should hold: entries are gathered up to a budget, sorted, and written as a *run*; the runs are
//! merged when they are read.
//!
//! ```text
//!   run: entries; CRC-64 of all of them 8
//!   entry: length of the place 4, bytes of the page's record 4, place, page key 16
//! ```
//!
//! Runs are files without a name: whatever happens, nothing of them stays. One that is damaged is an error at its end, before
//! the last of its entries is believed to be all.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use webbase_storage::PageKey;

use crate::wire::message::Key;

/// A page and where it stands in an order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Sorted {
    pub(crate) place: Vec<u8>,
    pub(crate) key: PageKey,
    /// Bytes of its record.
    pub(crate) bytes: u32,
}

/// Bytes that an entry takes in memory, besides its place.
const OVERHEAD_BYTES: usize = size_of::<Sorted>() + 16;
/// No place is longer.
const PLACE_BYTES_MAX: usize = 1 << 20;

/// Takes entries in any order.
pub(crate) struct Sorter {
    dir: PathBuf,
    budget_bytes: usize,
    gathered: Vec<Sorted>,
    gathered_bytes: usize,
    runs: Vec<File>,
}

impl Sorter {
    /// One that holds about so many bytes in memory, and writes the rest to this folder.
    pub(crate) fn new(dir: &Path, budget_bytes: usize) -> Sorter {
        Sorter {
            dir: dir.to_owned(),
            budget_bytes,
            gathered: Vec::new(),
            gathered_bytes: 0,
            runs: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, entry: Sorted) -> io::Result<()> {
        self.gathered_bytes += entry.place.len() + OVERHEAD_BYTES;
        self.gathered.push(entry);
        if self.gathered_bytes > self.budget_bytes {
            self.spill()?;
        }
        Ok(())
    }

    fn spill(&mut self) -> io::Result<()> {
        self.gathered.sort_unstable();
        let mut out = BufWriter::with_capacity(1 << 20, nameless(&self.dir)?);
        let mut crc = Crc::default();
        for entry in self.gathered.drain(..) {
            let place_bytes = entry.place.len().min(PLACE_BYTES_MAX);
            let mut bytes = Vec::with_capacity(24 + place_bytes);
            bytes.extend_from_slice(&(place_bytes as u32).to_le_bytes());
            bytes.extend_from_slice(&entry.bytes.to_le_bytes());
            bytes.extend_from_slice(entry.place.get(..place_bytes).unwrap_or_default());
            bytes.extend_from_slice(&Key::from(entry.key).0);
            crc.add(&bytes);
            out.write_all(&bytes)?;
        }
        // No entry begins so: it ends the run.
        out.write_all(&u32::MAX.to_le_bytes())?;
        out.write_all(&crc.0.to_le_bytes())?;
        let mut file = out.into_inner()?;
        file.rewind()?;
        self.runs.push(file);
        self.gathered_bytes = 0;
        Ok(())
    }

    /// All that was pushed, in order.
    pub(crate) fn finish(mut self) -> io::Result<Merge> {
        self.gathered.sort_unstable();
        let buffer_bytes = (self.budget_bytes / (self.runs.len() + 1)).clamp(4 << 10, 1 << 20);
        let mut merge = Merge { runs: Vec::new(), heads: BinaryHeap::new() };
        let memory = Run::Memory(std::mem::take(&mut self.gathered).into_iter());
        let files = std::mem::take(&mut self.runs).into_iter().map(|file| Run::File {
            file: BufReader::with_capacity(buffer_bytes, file),
            crc: Crc::default(),
        });
        for run in std::iter::once(memory).chain(files) {
            merge.runs.push(run);
            merge.refill(merge.runs.len() - 1)?;
        }
        Ok(merge)
    }
}

/// A checksum that goes on. It is not for the ages: the file dies with the stream.
#[derive(Default)]
struct Crc(u64);

impl Crc {
    fn add(&mut self, bytes: &[u8]) {
        self.0 = self.0.rotate_left(1) ^ webbase_storage::crc64(bytes);
    }
}

fn nameless(dir: &Path) -> io::Result<File> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = dir.join(format!(".webbase-sort-{}-{number}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

enum Run {
    Memory(std::vec::IntoIter<Sorted>),
    File { file: BufReader<File>, crc: Crc },
}

impl Run {
    fn next(&mut self) -> io::Result<Option<Sorted>> {
        let (file, crc) = match self {
            Run::Memory(entries) => return Ok(entries.next()),
            Run::File { file, crc } => (file, crc),
        };
        let mut length = [0; 4];
        file.read_exact(&mut length)?;
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "a sorted run is damaged");
        let place_bytes = u32::from_le_bytes(length);
        if place_bytes == u32::MAX {
            let mut sum = [0; 8];
            file.read_exact(&mut sum)?;
            let whole = u64::from_le_bytes(sum) == crc.0;
            *self = Run::Memory(Vec::new().into_iter());
            return if whole { Ok(None) } else { Err(damaged()) };
        }
        if place_bytes as usize > PLACE_BYTES_MAX {
            return Err(damaged());
        }
        let mut bytes = vec![0; 24 + place_bytes as usize];
        let (head, rest) = bytes.split_at_mut(4);
        head.copy_from_slice(&length);
        file.read_exact(rest)?;
        crc.add(&bytes);
        let key = bytes.last_chunk::<16>().ok_or_else(damaged)?;
        let record = bytes.get(4..8).and_then(|b| b.try_into().ok()).ok_or_else(damaged)?;
        let place = bytes.get(8..bytes.len() - 16).ok_or_else(damaged)?.to_vec();
        Ok(Some(Sorted { place, key: Key(*key).into(), bytes: u32::from_le_bytes(record) }))
    }
}

/// Runs, read as one.
pub(crate) struct Merge {
    runs: Vec<Run>,
    heads: BinaryHeap<Reverse<(Sorted, usize)>>,
}

impl Merge {
    fn refill(&mut self, run: usize) -> io::Result<()> {
        if let Some(entry) = self.runs.get_mut(run).map_or(Ok(None), Run::next)? {
            self.heads.push(Reverse((entry, run)));
        }
        Ok(())
    }

    /// The next entry.
    ///
    /// # Errors
    /// When a run cannot be read.
    pub(crate) fn next(&mut self) -> io::Result<Option<Sorted>> {
        let Some(Reverse((entry, run))) = self.heads.pop() else { return Ok(None) };
        self.refill(run)?;
        Ok(Some(entry))
    }

    /// Bytes of the next entry's record.
    pub(crate) fn next_bytes(&self) -> Option<u32> {
        self.heads.peek().map(|Reverse((entry, _))| entry.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use webbase_storage::PageId;

    #[test]
    fn everything_comes_back_in_order_within_any_budget() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = 88172645463325252_u64; // xorshift, so that runs overlap
        let entries: Vec<Sorted> = (0..5000)
            .map(|n| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let place = vec![(state >> 8) as u8; (state % 5) as usize];
                Sorted { place, key: PageKey { id: PageId(state), tie: n }, bytes: n as u32 }
            })
            .collect();
        let mut expected = entries.clone();
        expected.sort();
        for budget in [3000, 100_000, 100_000_000] {
            let mut sorter = Sorter::new(dir.path(), budget);
            entries.iter().for_each(|entry| sorter.push(entry.clone()).unwrap());
            let mut merge = sorter.finish().unwrap();
            let mut found = Vec::new();
            while let Some(entry) = merge.next().unwrap() {
                found.push(entry);
            }
            assert!(found == expected, "budget {budget}");
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing stays");
        }
    }

    #[test]
    fn a_damaged_run_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let mut sorter = Sorter::new(dir.path(), 1 << 20);
        for n in 0..100 {
            sorter.push(Sorted { place: vec![1], key: PageKey { id: PageId(n), tie: 0 }, bytes: 1 }).unwrap();
        }
        sorter.spill().unwrap();
        let mut byte = [0];
        use std::os::unix::fs::FileExt;
        sorter.runs[0].read_exact_at(&mut byte, 1015).unwrap();
        sorter.runs[0].write_all_at(&[byte[0] ^ 1], 1015).unwrap();
        let mut merge = sorter.finish().unwrap();
        let outcome = (0..200).find_map(|_| merge.next().map_or_else(Some, |_| None));
        assert!(outcome.is_some());
    }
}
