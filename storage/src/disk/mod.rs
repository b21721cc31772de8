//! The one door to the operating system.
//!
//! A store sees its disk through [`Disk`] and [`DiskFile`], and nothing else. [`OsDisk`] is the real one:
//! positioned reads and writes, maps of sealed bytes, batched reads through io_uring with a fallback.
//! [`SimDisk`] lives in memory and can be cut at any byte, forget what was not synced, fail any call, run full,
//! flip bits and read short; the crash tests stand on it.

mod ahead;
mod append;
mod batch;
mod os;
mod sim;
mod uring;

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

pub(crate) use ahead::Buffers;
pub use ahead::{ReadAhead, Through};
pub use append::Appender;
pub use batch::{BatchRead, read_batch};
pub use os::OsDisk;
pub use sim::{Crash, SimDisk};
pub use uring::available as uring_available;

/// One file of a store.
#[expect(clippy::len_without_is_empty, reason = "a file is not a collection")]
pub trait DiskFile: Send + Sync + Debug {
    /// Where it is.
    fn path(&self) -> &Path;

    /// Its length in bytes.
    ///
    /// # Errors
    /// When the system says so; likewise below.
    fn len(&self) -> io::Result<u64>;

    /// Reads some bytes at `offset`; 0 at the end. May read fewer than asked.
    ///
    /// # Errors
    /// When the system says so.
    fn read_some_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// When the system says so; some of the bytes may have been written.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Cuts or extends the file.
    ///
    /// # Errors
    /// When the system says so.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Returns when everything written before is durable.
    ///
    /// # Errors
    /// When it may not be: the caller must then stop trusting what it wrote.
    fn sync(&self) -> io::Result<()>;

    /// Starts writing this range to the device, without waiting. A hint.
    fn start_writeback(&self, _range: Range<u64>) {}

    /// The first `len` bytes as shared memory, where the disk has that. The caller touches only bytes that
    /// are written, never change, and lie below the file's end.
    fn map(&self, _len: u64) -> Option<Bytes> {
        None
    }

    /// As `map`, for who reads it from one end to the other: what is not in memory comes in large pieces.
    fn map_to_scan(&self, len: u64) -> Option<Bytes> {
        self.map(len)
    }

    /// Brings a piece of a map into memory, so that touching it later costs nothing. A hint.
    ///
    /// # Errors
    /// When the device fails: touching the piece would end the process.
    fn populate(&self, _mapped: &[u8]) -> io::Result<()> {
        Ok(())
    }

    /// Whether a piece of a map is in memory, so that touching it will not wait for the device.
    fn is_resident(&self, _mapped: &[u8]) -> bool {
        false
    }

    /// Another handle that reads and writes past the page cache, in whole blocks, where the disk has that.
    fn open_direct(&self) -> Option<Arc<dyn DiskFile>> {
        None
    }

    /// The descriptor for io_uring, where there is one and reads may go through it.
    fn raw_fd(&self) -> Option<RawFd> {
        None
    }

    /// Does many reads at once, each filling its buffer; the result of each stands in its place.
    fn read_many(&self, reads: &mut [Read<'_>]) {
        for read in reads {
            read.result = self.read_exact_at(read.buffer, read.offset);
        }
    }

    /// The `len` bytes at `offset`, in memory of their own.
    ///
    /// # Errors
    /// When the system says so, or the file ends before.
    fn read_vec(&self, len: usize, offset: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// Fills `buffer` from `offset`.
    ///
    /// # Errors
    /// When the system says so, or the file ends before.
    fn read_exact_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.read_some_at(buffer, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    buffer = buffer.get_mut(n..).unwrap_or_default();
                    offset += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// One of many reads.
#[derive(Debug)]
pub struct Read<'a> {
    /// Where.
    pub offset: u64,
    /// What to fill.
    pub buffer: &'a mut [u8],
    /// How it went.
    pub result: io::Result<()>,
}

/// Keeps others out of a store until dropped.
pub trait DiskLock: Send + Sync + Debug {}

/// A disk: files in folders.
pub trait Disk: Send + Sync + Debug {
    /// Opens a file for reading and writing; with `create`, makes it, empty, whether it was there or not.
    ///
    /// # Errors
    /// When the system says so; likewise below.
    fn open(&self, path: &Path, create: bool) -> io::Result<Arc<dyn DiskFile>>;

    /// Makes a folder and its parents.
    ///
    /// # Errors
    /// When the system says so.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// The names in a folder.
    ///
    /// # Errors
    /// When it is not there, or not a folder.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Renames a file, replacing what had the new name.
    ///
    /// # Errors
    /// When the system says so.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// When the system says so.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Returns when created, renamed and removed names in `dir` are durable.
    ///
    /// # Errors
    /// When they may not be.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Takes the lock at `path`, or `None` when somebody has it.
    ///
    /// # Errors
    /// When the system says so.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn DiskLock>>>;

    /// Bytes free for new data.
    ///
    /// # Errors
    /// When the system says so.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;
}

/// Writes a small file so that, whatever happens, either the old content or the new is there: under another
/// name first, synced, renamed, folder synced.
pub(crate) fn replace_file(disk: &dyn Disk, path: &Path, content: &[u8]) -> crate::Result<()> {
    let fail = |op| move |e| crate::StorageError::io(op, path, e);
    let next = next_name(path);
    let file = disk.open(&next, true).map_err(fail("create"))?;
    file.write_all_at(content, 0).map_err(fail("write"))?;
    file.sync().map_err(fail("sync"))?;
    disk.rename(&next, path).map_err(fail("replace"))?;
    disk.sync_dir(path.parent().unwrap_or(path)).map_err(fail("sync the folder of"))
}

/// Reads a whole file.
pub(crate) fn read_file(disk: &dyn Disk, path: &Path) -> io::Result<Vec<u8>> {
    let file = disk.open(path, false)?;
    let mut content = vec![0; file.len()? as usize];
    file.read_exact_at(&mut content, 0)?;
    Ok(content)
}

fn next_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".next");
    PathBuf::from(name)
}
