//! Appending to a file faster than the page cache takes it: bytes are gathered in large aligned buffers, which a thread
//! writes past the cache while the next one is filled. Small amounts, and disks without direct access, are written the
//! ordinary way, by the caller.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use parking_lot::Mutex;
use zerocopy::IntoBytes;

use super::DiskFile;
use super::ahead::{BLOCK_BYTES, Block};

/// Bytes gathered before they are written.
const BUFFER_BYTES: usize = 4 << 20;
/// Buffers filled, being written, or on their way back.
const BUFFERS: usize = 4;
/// Fewer bytes than this are not worth handing to another thread.
const SMALL_BYTES: usize = 256 << 10;

/// Appends to one file.
#[derive(Debug)]
pub struct Appender {
    file: Arc<dyn DiskFile>,
    /// The same file past the page cache, and the thread that writes to it.
    direct: Option<Direct>,
    buffer: Vec<Block>,
    /// Where the buffer's first byte belongs; a multiple of the block size.
    base: u64,
    filled: usize,
    /// Bytes of the buffer that are in the file already: the front of a block that was written before it was full.
    written: usize,
}

#[derive(Debug)]
struct Direct {
    jobs: SyncSender<Job>,
    /// Nobody locks it: it is there so that whoever has an appender can be shared between threads.
    done: Mutex<Receiver<(Vec<Block>, io::Result<()>)>>,
    under_way: usize,
    spare: Vec<Vec<Block>>,
}

#[derive(Debug)]
struct Job {
    buffer: Vec<Block>,
    bytes: usize,
    offset: u64,
}

/// A buffer that has room for so many bytes, and grows when more come.
fn new_buffer(bytes: usize) -> Vec<Block> {
    vec![Block::default(); bytes.div_ceil(BLOCK_BYTES as usize)]
}

impl Appender {
    /// Goes on at `end` of a file that is written up to there.
    ///
    /// # Errors
    /// When the front of an unfinished block cannot be read.
    pub fn new(file: Arc<dyn DiskFile>, end: u64) -> io::Result<Appender> {
        let base = end / BLOCK_BYTES * BLOCK_BYTES;
        let filled = (end - base) as usize;
        let mut buffer = new_buffer(BLOCK_BYTES as usize);
        file.read_exact_at(buffer.as_mut_slice().as_mut_bytes().get_mut(..filled).unwrap_or_default(), base)?;
        Ok(Appender { file, direct: None, buffer, base, filled, written: filled })
    }

    /// Where the file ends with everything appended.
    pub fn end(&self) -> u64 {
        self.base + self.filled as u64
    }

    /// Appends bytes; they are in the file when [`Appender::flush`] returns.
    ///
    /// # Errors
    /// When a write failed; where the file ends is not known then.
    pub fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BUFFER_BYTES - self.filled));
            let blocks = (self.filled + now.len()).div_ceil(BLOCK_BYTES as usize);
            if self.buffer.len() < blocks {
                self.buffer.resize(
                    blocks.next_power_of_two().min(BUFFER_BYTES / BLOCK_BYTES as usize),
                    Block::default(),
                );
            }
            let room =
                self.buffer.as_mut_slice().as_mut_bytes().get_mut(self.filled..self.filled + now.len());
            if let Some(room) = room {
                room.copy_from_slice(now);
            }
            self.filled += now.len();
            bytes = later;
            if self.filled == BUFFER_BYTES {
                self.hand_over()?;
            }
        }
        Ok(())
    }

    /// Returns when everything appended is in the file.
    ///
    /// # Errors
    /// When a write failed.
    pub fn flush(&mut self) -> io::Result<()> {
        let idle = self.direct.as_ref().is_none_or(|d| d.under_way == 0);
        if idle && self.filled - self.written < SMALL_BYTES {
            return self.write_plainly();
        }
        self.hand_over()?;
        if let Some(direct) = &mut self.direct {
            while direct.under_way > 0 {
                let buffer = direct.collect()?;
                direct.spare.push(buffer);
            }
        }
        Ok(())
    }

    /// Writes what the file does not have yet, through the page cache.
    fn write_plainly(&mut self) -> io::Result<()> {
        let bytes = self.buffer.as_slice().as_bytes().get(self.written..self.filled).unwrap_or_default();
        if !bytes.is_empty() {
            self.file.write_all_at(bytes, self.base + self.written as u64)?;
        }
        self.written = self.filled;
        self.keep_last_block();
        Ok(())
    }

    /// Drops all blocks of the buffer but the unfinished last one.
    fn keep_last_block(&mut self) {
        let whole = self.filled / BLOCK_BYTES as usize * BLOCK_BYTES as usize;
        self.buffer.as_mut_slice().as_mut_bytes().copy_within(whole..self.filled, 0);
        self.base += whole as u64;
        self.filled -= whole;
        self.written = self.filled.min(self.written.saturating_sub(whole));
    }

    /// Has the buffer written by the thread, the last block filled up with zeros.
    fn hand_over(&mut self) -> io::Result<()> {
        if self.direct.is_none() {
            self.direct = self.file.open_direct().map(Direct::start);
        }
        let Some(direct) = &mut self.direct else { return self.write_plainly() };
        let mut next = match direct.spare.pop() {
            Some(buffer) => buffer,
            None if direct.under_way + 1 < BUFFERS => new_buffer(BUFFER_BYTES),
            None => direct.collect()?,
        };
        let bytes = self.filled.next_multiple_of(BLOCK_BYTES as usize);
        let whole = self.filled / BLOCK_BYTES as usize;
        // The unfinished block is written now, and again when it is full.
        if let (Some(block), Some(first)) = (self.buffer.get_mut(whole), next.first_mut()) {
            let kept = self.filled % BLOCK_BYTES as usize;
            block.as_mut_bytes().get_mut(kept..).unwrap_or_default().fill(0);
            first.as_mut_bytes().copy_from_slice(block.as_bytes());
        }
        let buffer = std::mem::replace(&mut self.buffer, next);
        direct.submit(Job { buffer, bytes, offset: self.base })?;
        self.base += (whole * BLOCK_BYTES as usize) as u64;
        self.filled -= whole * BLOCK_BYTES as usize;
        self.written = self.filled;
        Ok(())
    }
}

impl Direct {
    fn start(file: Arc<dyn DiskFile>) -> Direct {
        let (jobs, queue) = sync_channel::<Job>(BUFFERS);
        let (finished, done) = sync_channel(BUFFERS);
        std::thread::spawn(move || {
            for job in queue {
                let bytes = job.buffer.as_slice().as_bytes().get(..job.bytes).unwrap_or_default();
                let result = file.write_all_at(bytes, job.offset);
                if finished.send((job.buffer, result)).is_err() {
                    return;
                }
            }
        });
        Direct { jobs, done: Mutex::new(done), under_way: 0, spare: Vec::new() }
    }

    fn submit(&mut self, job: Job) -> io::Result<()> {
        self.jobs.send(job).map_err(|_| io::Error::other("the writing thread is gone"))?;
        self.under_way += 1;
        while let Ok((buffer, result)) = self.done.get_mut().try_recv() {
            self.under_way -= 1;
            self.spare.push(buffer);
            result?;
        }
        Ok(())
    }

    /// Waits for a write and takes its buffer.
    fn collect(&mut self) -> io::Result<Vec<Block>> {
        let (buffer, result) =
            self.done.get_mut().recv().map_err(|_| io::Error::other("the writing thread is gone"))?;
        self.under_way -= 1;
        result?;
        Ok(buffer)
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        // Writes under way end before anybody writes to the same place again.
        while self.under_way > 0 && self.done.get_mut().recv().is_ok() {
            self.under_way -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, OsDisk, SimDisk, read_file};
    use std::path::Path;

    #[test]
    fn what_is_appended_is_there_however_it_was_cut() {
        let dir = tempfile::tempdir().unwrap();
        let disks: [(Box<dyn Disk>, &Path); 3] = [
            (Box::new(OsDisk::new()), dir.path()),
            (Box::new(OsDisk::plain()), dir.path()),
            (Box::new(SimDisk::new()), Path::new("/")),
        ];
        for (disk, dir) in disks {
            let path = dir.join("f");
            let file = disk.open(&path, true).unwrap();
            let mut expected: Vec<u8> = (0..5000).map(|i| (i % 251) as u8).collect();
            file.write_all_at(&expected, 0).unwrap();
            for round in 0..3 {
                let mut appender = Appender::new(file.clone(), expected.len() as u64).unwrap();
                for i in 0..40_u32 {
                    let piece = vec![(i + round) as u8; (i as usize * 7919 * 13) % 900_000];
                    appender.write(&piece).unwrap();
                    expected.extend_from_slice(&piece);
                    if i % 3 == 0 {
                        appender.flush().unwrap();
                        let content = read_file(&*disk, &path).unwrap();
                        assert!(content.starts_with(&expected), "round {round} piece {i}");
                        assert!(content.len() < expected.len() + BLOCK_BYTES as usize);
                    }
                }
                assert_eq!(appender.end(), expected.len() as u64);
                appender.flush().unwrap();
            }
            assert!(read_file(&*disk, &path).unwrap().starts_with(&expected));
        }
    }
}
