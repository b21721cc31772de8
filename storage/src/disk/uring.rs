//! Many random reads at once through io_uring. Where the kernel or a container forbids it, callers fall back
//! to ordinary reads: [`available`] is probed once.

#![expect(unsafe_code, reason = "io_uring takes raw pointers to the buffers it fills")]

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use io_uring::{IoUring, opcode, types};

use super::Read;

/// Reads in flight at once.
const DEPTH: usize = 128;

thread_local! {
    static RING: RefCell<Option<IoUring>> = const { RefCell::new(None) };
}

/// Whether this process may use io_uring.
pub fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| IoUring::new(8).is_ok())
}

/// Does all the reads, or returns false without having touched any when io_uring is not to be had.
pub(super) fn read_many(file: &File, reads: &mut [Read<'_>]) -> bool {
    if reads.len() < 2 || !available() {
        return false;
    }
    RING.with_borrow_mut(|slot| {
        if slot.is_none() {
            *slot = IoUring::new(DEPTH as u32).ok();
        }
        let Some(ring) = slot.as_mut() else { return false };
        submit_all(ring, file, reads);
        true
    })
}

fn submit_all(ring: &mut IoUring, file: &File, reads: &mut [Read<'_>]) {
    let fd = types::Fd(file.as_raw_fd());
    let (mut next, mut in_flight) = (0, 0);
    while next < reads.len() || in_flight > 0 {
        while in_flight < DEPTH {
            let Some(read) = reads.get_mut(next) else { break };
            let entry = opcode::Read::new(fd, read.buffer.as_mut_ptr(), read.buffer.len() as u32)
                .offset(read.offset)
                .build()
                .user_data(next as u64);
            // SAFETY: the buffer is borrowed mutably by `reads` for the whole call, and this function returns
            // only when every submitted read has completed; where it cannot wait for them it aborts.
            if unsafe { ring.submission().push(&entry) }.is_err() {
                break;
            }
            next += 1;
            in_flight += 1;
        }
        match ring.submit_and_wait(1) {
            Ok(_) => {}
            // Interrupted, or short of kernel memory: what has completed is reaped and the rest tried again.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
            Err(_) => std::process::abort(), // the kernel may still write to buffers we would give back
        }
        for completion in ring.completion() {
            in_flight -= 1;
            if let Some(read) = reads.get_mut(completion.user_data() as usize) {
                read.result = finish(file, read, completion.result());
            }
        }
    }
}

/// A completed read may be short or interrupted: the rest is read the ordinary way.
fn finish(file: &File, read: &mut Read<'_>, result: i32) -> io::Result<()> {
    if result < 0 && result != -libc::EINTR && result != -libc::EAGAIN {
        return Err(io::Error::from_raw_os_error(-result));
    }
    let done = result.max(0) as usize;
    match read.buffer.get_mut(done..) {
        Some(rest) if !rest.is_empty() => file.read_exact_at(rest, read.offset + done as u64),
        _ => Ok(()),
    }
}
