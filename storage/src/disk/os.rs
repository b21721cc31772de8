//! The real disk: Linux files. All `unsafe` of this crate is here, in `batch.rs` and in `uring.rs`.

#![expect(unsafe_code, reason = "mapping files and asking what is resident have no safe interface")]

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::{Disk, DiskFile, DiskLock, Read, uring};

/// The operating system's files.
#[derive(Debug, Default, Clone)]
pub struct OsDisk {
    plain: bool,
}

impl OsDisk {
    /// Files with everything the system offers: maps, io_uring, direct reads.
    pub fn new() -> Self {
        OsDisk { plain: false }
    }

    /// Files with ordinary reads and writes only, as where io_uring is forbidden and maps are unwanted.
    pub fn plain() -> Self {
        OsDisk { plain: true }
    }
}

impl Disk for OsDisk {
    fn open(&self, path: &Path, create: bool) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).create(create).truncate(create).open(path)?;
        // A lookup reads exactly its record; streams read ahead by themselves. Only a hint, so it may fail.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
        Ok(Arc::new(OsFile { file, path: path.to_path_buf(), plain: self.plain, direct: false }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        std::fs::create_dir_all(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        std::fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn DiskLock>>> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Box::new(OsLock { file }))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(dir)?;
        Ok(stat.f_bavail * stat.f_frsize)
    }
}

#[derive(Debug)]
struct OsLock {
    file: File,
}

impl DiskLock for OsLock {}

impl Drop for OsLock {
    /// Closing the file would not do: a process that another thread is starting has a copy of it until it runs its program.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.file, rustix::fs::FlockOperation::Unlock);
    }
}

#[derive(Debug)]
struct OsFile {
    file: File,
    path: PathBuf,
    plain: bool,
    direct: bool,
}

impl DiskFile for OsFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_some_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    /// Into memory that nobody has cleared for it.
    fn read_vec(&self, len: usize, offset: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let at = offset + bytes.len() as u64;
            match rustix::io::pread(&self.file, rustix::buffer::spare_capacity(&mut bytes), at) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        bytes.truncate(len); // the allocator may have given more than asked for
        Ok(bytes)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn start_writeback(&self, range: Range<u64>) {
        let (start, len) = (range.start as i64, range.end.saturating_sub(range.start) as i64);
        // SAFETY: the descriptor is open while `self.file` lives; the call touches no memory of ours.
        unsafe { libc::sync_file_range(self.file.as_raw_fd(), start, len, libc::SYNC_FILE_RANGE_WRITE) };
    }

    fn map(&self, len: u64) -> Option<Bytes> {
        if self.plain || self.direct || len == 0 {
            return None;
        }
        // SAFETY: a map is sound while nobody changes the mapped bytes or cuts the file. Stores map segments,
        // whose bytes below the durable mark are written once and never again, and cut a segment only above
        // that mark; only a record whose checksum fails is written over, and what is read of it meanwhile has to pass
        // that checksum before anybody sees it; the store's lock keeps other webbase processes out. A foreign program that truncates a
        // store's file causes SIGBUS, not wrong data.
        let map = unsafe { memmap2::MmapOptions::new().len(len as usize).map(&self.file) }.ok()?;
        Some(Bytes::from_owner(map))
    }

    fn map_to_scan(&self, len: u64) -> Option<Bytes> {
        if self.plain || self.direct || len == 0 {
            return None;
        }
        // SAFETY: as for `map`.
        let map = unsafe { memmap2::MmapOptions::new().len(len as usize).map(&self.file) }.ok()?;
        let _ = map.advise(memmap2::Advice::HugePage); // only a hint
        Some(Bytes::from_owner(map))
    }

    fn populate(&self, mapped: &[u8]) -> io::Result<()> {
        const BLOCK: usize = 4096;
        let start = mapped.as_ptr() as usize / BLOCK * BLOCK;
        let len = mapped.as_ptr() as usize + mapped.len() - start;
        // SAFETY: the range covers the blocks of a live slice of a map; populating reads the file and fills page tables,
        // and changes no byte.
        let answer = unsafe { libc::madvise(start as *mut libc::c_void, len, libc::MADV_POPULATE_READ) };
        match io::Error::last_os_error() {
            // Older systems don't know it.
            e if answer != 0 && e.kind() != io::ErrorKind::InvalidInput => Err(e),
            _ => Ok(()),
        }
    }

    fn is_resident(&self, mapped: &[u8]) -> bool {
        const BLOCK: usize = 4096;
        let mut blocks = [0_u8; 256];
        let start = mapped.as_ptr() as usize / BLOCK * BLOCK;
        let len = mapped.as_ptr() as usize + mapped.len() - start;
        let count = len.div_ceil(BLOCK);
        if count > blocks.len() {
            return false; // a large record: one ordinary read is cheap beside its size
        }
        // SAFETY: `start..start + len` covers the blocks of a live slice of a map, and `blocks` has room for
        // one byte per block. mincore only reads the address space's tables.
        let answer = unsafe { libc::mincore(start as *mut libc::c_void, len, blocks.as_mut_ptr()) };
        answer == 0 && blocks.iter().take(count).all(|b| b & 1 == 1)
    }

    fn open_direct(&self) -> Option<Arc<dyn DiskFile>> {
        if self.plain {
            return None;
        }
        let file =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&self.path).ok()?;
        Some(Arc::new(OsFile { file, path: self.path.clone(), plain: false, direct: true }))
    }

    fn raw_fd(&self) -> Option<RawFd> {
        (!self.plain && !self.direct).then(|| self.file.as_raw_fd())
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        if self.plain || !uring::read_many(&self.file, reads) {
            for read in reads {
                read.result = self.read_exact_at(read.buffer, read.offset);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_with(content: &[u8], disk: &OsDisk) -> (tempfile::TempDir, Arc<dyn DiskFile>) {
        let dir = tempfile::tempdir().unwrap();
        let file = disk.open(&dir.path().join("f"), true).unwrap();
        file.write_all_at(content, 0).unwrap();
        file.sync().unwrap();
        (dir, file)
    }

    #[test]
    fn a_lock_ends_when_dropped_whoever_has_a_copy_of_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let file = File::create(&path).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        // As a process has it that was forked and does not run its program yet.
        let _copy = file.try_clone().unwrap();
        let lock = OsLock { file };
        assert!(OsDisk::new().lock(&path).unwrap().is_none(), "somebody has it");
        drop(lock);
        assert!(OsDisk::new().lock(&path).unwrap().is_some());
    }

    #[test]
    fn many_reads_agree_with_and_without_io_uring() {
        eprintln!("io_uring available: {}", uring::available());
        let content: Vec<u8> = (0..1_000_000_u32).map(|i| (i * 31 % 251) as u8).collect();
        for disk in [OsDisk::new(), OsDisk::plain()] {
            let (_dir, file) = file_with(&content, &disk);
            let mut buffers: Vec<Vec<u8>> = (0..300).map(|i| vec![0; 1 + i * 7]).collect();
            let mut reads: Vec<Read<'_>> = buffers
                .iter_mut()
                .enumerate()
                .map(|(i, buffer)| Read { offset: (i * 3301) as u64, buffer, result: Ok(()) })
                .collect();
            file.read_many(&mut reads);
            for read in &reads {
                read.result.as_ref().unwrap();
                assert_eq!(read.buffer, &content[read.offset as usize..][..read.buffer.len()]);
            }
            let mut buffer = [0; 100];
            let mut beyond = [Read { offset: 999_950, buffer: &mut buffer, result: Ok(()) }];
            file.read_many(&mut beyond);
            assert_eq!(beyond[0].result.as_ref().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn what_was_just_written_is_mapped_and_resident() {
        let (_dir, file) = file_with(&[7; 100_000], &OsDisk::new());
        let map = file.map(100_000).unwrap();
        assert!(map.iter().all(|&b| b == 7));
        assert!(file.is_resident(&map[5000..60_000]));
    }

    #[test]
    fn a_lock_keeps_the_second_out() {
        let dir = tempfile::tempdir().unwrap();
        let disk = OsDisk::new();
        let path = dir.path().join("LOCK");
        let first = disk.lock(&path).unwrap();
        assert!(first.is_some());
        assert!(disk.lock(&path).unwrap().is_none());
        drop(first);
        assert!(disk.lock(&path).unwrap().is_some());
    }
}
