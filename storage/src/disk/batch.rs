//! Many reads of many files at once, into memory that nobody has cleared for them.
//!
//! A read is handed to the caller when it has completed, while the others are still under way, so that what the caller
//! does with it (a checksum, mostly) costs no time of its own.

#![expect(unsafe_code, reason = "io_uring takes raw pointers to the buffers it fills")]

use std::cell::RefCell;
use std::io;
use std::os::fd::RawFd;

use io_uring::{IoUring, opcode, types};

use super::{DiskFile, uring};

/// Reads in flight at once.
const DEPTH: usize = 128;

thread_local! {
    static RING: RefCell<Option<IoUring>> = const { RefCell::new(None) };
}

/// One of many reads.
#[derive(Debug, Clone, Copy)]
pub struct BatchRead<'a> {
    /// Of which file.
    pub file: &'a dyn DiskFile,
    /// Where in it.
    pub offset: u64,
    /// How much.
    pub len: usize,
}

impl BatchRead<'_> {
    fn alone(&self) -> io::Result<Vec<u8>> {
        self.file.read_vec(self.len, self.offset)
    }
}

/// Does all the reads, in any order, and hands each one's number and bytes to `done`.
pub fn read_batch(reads: &[BatchRead<'_>], mut done: impl FnMut(usize, io::Result<Vec<u8>>)) {
    let fds: Option<Vec<RawFd>> = reads.iter().map(|read| read.file.raw_fd()).collect();
    let fds = fds.filter(|_| reads.len() > 1 && uring::available());
    // The ring is taken out while it is used, so that a `done` which reads a batch itself gets another one.
    let ring = fds.and_then(|fds| {
        let ring = RING.take().or_else(|| IoUring::new(DEPTH as u32).ok())?;
        Some((ring, fds))
    });
    match ring {
        Some((mut ring, fds)) => {
            read_all(&mut ring, &fds, reads, &mut done);
            RING.set(Some(ring));
        }
        None => reads.iter().enumerate().for_each(|(n, read)| done(n, read.alone())),
    }
}

fn read_all(
    ring: &mut IoUring,
    fds: &[RawFd],
    reads: &[BatchRead<'_>],
    done: &mut impl FnMut(usize, io::Result<Vec<u8>>),
) {
    let mut flight = Flight { ring, buffers: reads.iter().map(|_| None).collect(), in_flight: 0 };
    let mut waiting = reads.iter().zip(fds).enumerate().peekable();
    let mut completed = Vec::with_capacity(DEPTH);
    while waiting.peek().is_some() || flight.in_flight > 0 {
        while flight.in_flight < DEPTH
            && let Some((n, (read, &fd))) = waiting.next()
        {
            if !flight.start(n, fd, read) {
                done(n, read.alone());
            }
        }
        if flight.in_flight > 0 {
            flight.wait(&mut completed);
        }
        for (n, buffer, result) in completed.drain(..) {
            if let Some(read) = reads.get(n) {
                done(n, finish(read, buffer, result));
            }
        }
    }
}

/// Buffers the kernel may be writing to. Dropped early, by a panic of the caller's, it waits for them.
struct Flight<'a> {
    ring: &'a mut IoUring,
    buffers: Vec<Option<Vec<u8>>>,
    in_flight: usize,
}

impl Flight<'_> {
    /// Queues a read; false when there is no room for it.
    fn start(&mut self, n: usize, fd: RawFd, read: &BatchRead<'_>) -> bool {
        let mut buffer: Vec<u8> = Vec::with_capacity(read.len);
        let len = u32::try_from(read.len).unwrap_or(0); // longer than any record: read alone, below
        let entry = opcode::Read::new(types::Fd(fd), buffer.as_mut_ptr(), len)
            .offset(read.offset)
            .build()
            .user_data(n as u64);
        let Some(slot) = self.buffers.get_mut(n) else { return false };
        *slot = Some(buffer); // moved, but not the bytes it points to
        // SAFETY: the buffer has room for `len` bytes and is kept, untouched, in `self.buffers` until its completion
        // has arrived: `wait` takes it out then, and `drop` waits for all. The descriptor is open while `read.file`
        // is borrowed.
        let queued = unsafe { self.ring.submission().push(&entry) }.is_ok();
        self.in_flight += usize::from(queued);
        queued
    }

    /// Waits for at least one read and takes all that have completed, with their buffers.
    fn wait(&mut self, completed: &mut Vec<(usize, Vec<u8>, i32)>) {
        match self.ring.submit_and_wait(1) {
            Ok(_) => {}
            // Interrupted, or short of kernel memory: what has completed is reaped and the rest tried again.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
            Err(_) => std::process::abort(), // the kernel may still write to buffers we would give back
        }
        for completion in self.ring.completion() {
            self.in_flight -= 1;
            let n = completion.user_data() as usize;
            let Some(mut buffer) = self.buffers.get_mut(n).and_then(Option::take) else { continue };
            let filled = (completion.result().max(0) as usize).min(buffer.capacity());
            // SAFETY: the kernel has filled that many bytes, within the capacity.
            unsafe { buffer.set_len(filled) };
            completed.push((n, buffer, completion.result()));
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut rest = Vec::new();
        while self.in_flight > 0 {
            self.wait(&mut rest);
        }
    }
}

/// A completed read may be short or interrupted: then it is done again, the ordinary way.
fn finish(read: &BatchRead<'_>, mut buffer: Vec<u8>, result: i32) -> io::Result<Vec<u8>> {
    if result < 0 && result != -libc::EINTR && result != -libc::EAGAIN {
        return Err(io::Error::from_raw_os_error(-result));
    }
    if buffer.len() < read.len {
        return read.alone();
    }
    buffer.truncate(read.len);
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::disk::{Disk, OsDisk, SimDisk};

    #[test]
    fn a_batch_reads_what_each_file_holds_with_and_without_io_uring() {
        let dir = tempfile::tempdir().unwrap();
        let content = |file: usize| -> Vec<u8> {
            (0..500_000_usize).map(|i| (i * 31 % 251 + file * 17) as u8).collect()
        };
        let disks: [Arc<dyn Disk>; 3] =
            [Arc::new(OsDisk::new()), Arc::new(OsDisk::plain()), Arc::new(SimDisk::new())];
        for disk in disks {
            disk.create_dir(dir.path()).unwrap();
            let files: Vec<_> = (0..3)
                .map(|n| {
                    let file = disk.open(&dir.path().join(format!("f{n}")), true).unwrap();
                    file.write_all_at(&content(n), 0).unwrap();
                    file
                })
                .collect();
            let read = |i: usize| BatchRead {
                file: &*files[i % 3],
                offset: (i * 1303 % 490_000) as u64,
                len: i * 7 % 3000,
            };
            // More than fit in flight; the last one ends beyond its file.
            let mut reads: Vec<_> = (0..400).map(read).collect();
            reads.push(BatchRead { file: &*files[0], offset: 499_950, len: 100 });
            let mut seen = vec![0; reads.len()];
            read_batch(&reads, |n, bytes| {
                seen[n] += 1;
                let read = &reads[n];
                match bytes {
                    Err(e) if n == 400 => assert_eq!(e.kind(), io::ErrorKind::UnexpectedEof),
                    bytes => {
                        let expected = &content(n % 3)[read.offset as usize..][..read.len];
                        assert_eq!(bytes.unwrap(), expected, "read {n}");
                    }
                }
            });
            assert!(seen.iter().all(|&count| count == 1), "each read is answered once");
        }
    }
}
