//! Raw appends: the same bytes, the same syncs, no store.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::Path,
};

const BLOCK_BYTES: usize = 4096;

/// How a file is written.
#[derive(Clone, Copy, Debug)]
pub enum WriteMode {
    /// Through the page cache; the sync at the end does the work.
    Buffered {
        /// Bytes per write.
        chunk_bytes: usize,
    },
    /// Through the page cache, asking the kernel to start writing each chunk at once.
    Early {
        /// Bytes per write.
        chunk_bytes: usize,
    },
    /// O_DIRECT, one write at a time.
    Direct {
        /// Bytes per write; a multiple of 4096.
        chunk_bytes: usize,
    },
}

impl WriteMode {
    /// The ways worth trying; the best of them is the limit.
    pub const ALL: [(&str, WriteMode); 4] = [
        ("raw append 1 MiB", WriteMode::Buffered { chunk_bytes: 1 << 20 }),
        ("raw append 4 MiB", WriteMode::Buffered { chunk_bytes: 4 << 20 }),
        ("raw append early writeback", WriteMode::Early { chunk_bytes: 4 << 20 }),
        ("raw append O_DIRECT", WriteMode::Direct { chunk_bytes: 4 << 20 }),
    ];

    fn chunk_bytes(self) -> usize {
        match self {
            WriteMode::Buffered { chunk_bytes }
            | WriteMode::Early { chunk_bytes }
            | WriteMode::Direct { chunk_bytes } => chunk_bytes,
        }
    }
}

/// Writes the values end to end into a new file and syncs it: after every `sync_every` values, if given, and at the
/// end.
pub fn append<'a>(
    path: &Path,
    values: impl Iterator<Item = &'a [u8]>,
    mode: WriteMode,
    sync_every: Option<usize>,
) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    if let WriteMode::Direct { .. } = mode {
        options.custom_flags(libc::O_DIRECT);
    }
    let file = options.open(path)?;
    let mut appender =
        Appender { file, mode, buffer: super::aligned(mode.chunk_bytes()), filled: 0, offset: 0 };
    let mut since_sync = 0;
    for value in values {
        appender.write(value)?;
        since_sync += 1;
        if Some(since_sync) == sync_every {
            appender.sync()?;
            since_sync = 0;
        }
    }
    appender.sync()?;
    // O_DIRECT wrote whole blocks; the padding goes.
    appender.file.set_len(appender.offset + appender.filled as u64)?;
    appender.file.sync_data()
}

struct Appender {
    file: File,
    mode: WriteMode,
    buffer: memmap2::MmapMut,
    filled: usize,
    /// Where the buffer's first byte belongs in the file.
    offset: u64,
}

impl Appender {
    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(self.buffer.len() - self.filled));
            self.buffer[self.filled..self.filled + now.len()].copy_from_slice(now);
            self.filled += now.len();
            bytes = later;
            if self.filled == self.buffer.len() {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes what the buffer holds. With O_DIRECT an incomplete block is padded and stays in the buffer, to be
    /// written again when it is complete.
    fn flush(&mut self) -> io::Result<()> {
        if let WriteMode::Direct { .. } = self.mode {
            let kept = self.filled % BLOCK_BYTES;
            self.file.write_all_at(&self.buffer[..self.filled.next_multiple_of(BLOCK_BYTES)], self.offset)?;
            self.buffer.copy_within(self.filled - kept..self.filled, 0);
            self.offset += (self.filled - kept) as u64;
            self.filled = kept;
            return Ok(());
        }
        self.file.write_all_at(&self.buffer[..self.filled], self.offset)?;
        if let WriteMode::Early { .. } = self.mode {
            start_writeback(&self.file, self.offset, self.filled);
        }
        self.offset += self.filled as u64;
        self.filled = 0;
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.flush()?;
        self.file.sync_data()
    }
}

/// Asks the kernel to write these bytes soon. It may refuse; the sync will write them.
fn start_writeback(file: &File, offset: u64, len: usize) {
    // SAFETY: no memory is passed, and the descriptor is open.
    #[expect(unsafe_code, reason = "rustix has no sync_file_range")]
    let _ = unsafe {
        libc::sync_file_range(file.as_raw_fd(), offset as i64, len as i64, libc::SYNC_FILE_RANGE_WRITE)
    };
}
