//! Reading a file from one end to the other faster than it is consumed.
//!
//! A thread reads windows of 8 MiB, each as several reads in flight, and hands them over through a short queue.
//! With `direct` the page cache is left alone: a scan of everything does not evict everything else.

use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{DiskFile, Read};

/// Bytes of a window, the unit of hand-over.
const WINDOW_BYTES: usize = 8 << 20;
/// Bytes of one read.
const READ_BYTES: usize = 1 << 20;
/// Windows read ahead.
const WINDOWS_AHEAD: usize = 2;
/// What direct reads are aligned to.
pub(super) const BLOCK_BYTES: u64 = 4096;

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

/// The bytes of a range of a file, in order, read ahead by a thread of its own.
#[derive(Debug)]
pub struct ReadAhead {
    windows: Receiver<io::Result<Bytes>>,
    current: Bytes,
    /// File offset of the first byte of `current`.
    at: u64,
    end: u64,
}

impl ReadAhead {
    /// Starts reading `range` of `file`.
    pub fn new(file: Arc<dyn DiskFile>, range: Range<u64>, direct: bool) -> ReadAhead {
        let file = if direct { file.open_direct().unwrap_or(file) } else { file };
        let at = range.start / BLOCK_BYTES * BLOCK_BYTES;
        let (sender, windows) = sync_channel(WINDOWS_AHEAD);
        let end = range.end;
        std::thread::spawn(move || read_windows(&*file, at..end, &sender));
        ReadAhead { windows, current: Bytes::new(), at, end }
    }

    /// The bytes of `range`, which must not start before the last one asked for: shared with the window where
    /// they lie in one, joined where they don't.
    ///
    /// # Errors
    /// When the disk fails, or the range goes beyond what was asked for at the start.
    pub fn get(&mut self, range: Range<u64>) -> io::Result<Bytes> {
        if range.end > self.end || range.start < self.at {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        while range.start >= self.at + self.current.len() as u64 && range.start < range.end {
            self.advance()?;
        }
        let start = (range.start - self.at) as usize;
        let len = (range.end - range.start) as usize;
        if start + len <= self.current.len() {
            return Ok(self.current.slice(start..start + len));
        }
        let mut joined = Vec::with_capacity(len);
        joined.extend_from_slice(self.current.get(start..).unwrap_or_default());
        while joined.len() < len {
            self.advance()?;
            let take = self.current.len().min(len - joined.len());
            joined.extend_from_slice(self.current.get(..take).unwrap_or_default());
        }
        Ok(joined.into())
    }

    fn advance(&mut self) -> io::Result<()> {
        let next = self.windows.recv().map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof))??;
        self.at += self.current.len() as u64;
        self.current = next;
        Ok(())
    }
}

fn read_windows(file: &dyn DiskFile, range: Range<u64>, sender: &SyncSender<io::Result<Bytes>>) {
    let pool = Arc::new(Mutex::new(Vec::new()));
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(WINDOW_BYTES as u64) as usize;
        let window = read_window(file, at, len, &pool);
        let stop = window.is_err();
        if sender.send(window).is_err() || stop {
            return; // nobody reads on, or there is nothing to read on from
        }
        at += len as u64;
    }
}

type Pool = Arc<Mutex<Vec<Vec<Block>>>>;

fn read_window(file: &dyn DiskFile, at: u64, len: usize, pool: &Pool) -> io::Result<Bytes> {
    let pooled = pool.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let mut blocks = match pooled {
        Some(blocks) => blocks,
        None if len < READ_BYTES => vec![Block::default(); len.div_ceil(BLOCK_BYTES as usize)],
        None => vec![Block::default(); WINDOW_BYTES / BLOCK_BYTES as usize],
    };
    // Whole blocks are asked for, as direct reads must; a read cut short by the end of the file is finished
    // one by one below.
    let asked = len.next_multiple_of(BLOCK_BYTES as usize).min(WINDOW_BYTES);
    let buffer = blocks.as_mut_slice().as_mut_bytes().get_mut(..asked).unwrap_or_default();
    let file_end = file.len()?;
    if asked as u64 + at <= file_end {
        let mut reads: Vec<Read<'_>> = buffer
            .chunks_mut(READ_BYTES)
            .enumerate()
            .map(|(i, buffer)| Read { offset: at + (i * READ_BYTES) as u64, buffer, result: Ok(()) })
            .collect();
        file.read_many(&mut reads);
        for read in reads {
            read.result?;
        }
    } else {
        read_tail(file, buffer, at, len)?;
    }
    let window = Window { blocks, len, pool: pool.clone() };
    Ok(Bytes::from_owner(window))
}

fn read_tail(file: &dyn DiskFile, buffer: &mut [u8], at: u64, len: usize) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        match file.read_some_at(buffer.get_mut(done..).unwrap_or_default(), at + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// A window that gives its buffer back when its last reader is done.
struct Window {
    blocks: Vec<Block>,
    len: usize,
    pool: Pool,
}

impl AsRef<[u8]> for Window {
    fn as_ref(&self) -> &[u8] {
        self.blocks.as_slice().as_bytes().get(..self.len).unwrap_or_default()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.len() <= WINDOWS_AHEAD && self.blocks.len() == WINDOW_BYTES / BLOCK_BYTES as usize {
            pool.push(std::mem::take(&mut self.blocks));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, OsDisk, SimDisk};
    use std::path::Path;

    #[test]
    fn a_file_comes_whole_and_in_order() {
        let content: Vec<u8> = (0..20_000_000_u32).map(|i| (i % 253) as u8).collect();
        let dir = tempfile::tempdir().unwrap();
        let disks: [(Box<dyn Disk>, &Path); 3] = [
            (Box::new(OsDisk::new()), dir.path()),
            (Box::new(OsDisk::plain()), dir.path()),
            (Box::new(SimDisk::new()), Path::new("/")),
        ];
        for (disk, dir) in disks {
            let file = disk.open(&dir.join("f"), true).unwrap();
            file.write_all_at(&content, 0).unwrap();
            for direct in [false, true] {
                let mut ahead = ReadAhead::new(file.clone(), 1000..19_999_999, direct);
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
}
