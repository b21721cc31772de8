//! Memory and files for reading past the page cache: whole 4096-byte blocks, at whole blocks of memory.

use std::sync::Arc;

use memmap2::{Advice, MmapMut};
use webbase_storage::disk::DiskFile;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{MatrixError, Result};
use crate::importance::kernel::BLOCK;

/// What direct reading counts in.
pub(crate) const ALIGN: u64 = 4096;

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct AlignedBytes([u8; ALIGN as usize]);

/// From so many bytes on, memory is the system's own, which has it back at once: an allocator keeps some of each size for later.
const MAPPED_BYTES: usize = 1 << 17;
/// From so many bytes on, memory is asked for in large pages: sums are jumped about in, and small pages take time to be found
/// (benches/RESULTS.md has how much).
const LARGE_BYTES: usize = 2 << 20;

/// Bytes at whole blocks of memory.
pub(crate) struct Buffer(Memory);

enum Memory {
    Allocated(Vec<AlignedBytes>),
    Mapped(MmapMut),
}

impl Buffer {
    pub(crate) fn new(bytes: usize) -> Self {
        let blocks = bytes.div_ceil(ALIGN as usize).max(1);
        let mapped = (bytes >= MAPPED_BYTES).then(|| MmapMut::map_anon(blocks * ALIGN as usize));
        Self(match mapped {
            Some(Ok(map)) => {
                if bytes >= LARGE_BYTES {
                    // Where there are no large pages small ones do.
                    let _ = map.advise(Advice::HugePage);
                }
                Memory::Mapped(map)
            }
            _ => Memory::Allocated(vec![AlignedBytes([0; ALIGN as usize]); blocks]),
        })
    }

    /// For so many blocks of a vector of such values.
    pub(crate) fn for_blocks<V>(count: usize) -> Self {
        Self::new(count * size_of::<[V; BLOCK]>())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.0 {
            Memory::Allocated(blocks) => blocks.as_slice().as_bytes(),
            Memory::Mapped(map) => map,
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Allocated(blocks) => blocks.as_mut_slice().as_mut_bytes(),
            Memory::Mapped(map) => map,
        }
    }

    /// As blocks of a vector.
    pub(crate) fn blocks<V: FromBytes + Immutable>(&self) -> &[[V; BLOCK]] {
        <[V]>::ref_from_bytes(self.bytes()).unwrap_or_default().as_chunks().0
    }

    /// As blocks of a vector.
    pub(crate) fn blocks_mut<V: FromBytes + IntoBytes>(&mut self) -> &mut [[V; BLOCK]] {
        <[V]>::mut_from_bytes(self.bytes_mut()).unwrap_or_default().as_chunks_mut().0
    }
}

/// Bytes of a block of values of 64 bits.
pub(crate) const BLOCK_BYTES: u64 = 8 * BLOCK as u64;

/// The handle past the page cache, or the ordinary one where there is none.
pub(crate) fn direct(file: &Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
    file.open_direct().unwrap_or_else(|| file.clone())
}

/// Reads the bytes from `offset`, or as many as there are, into `buffer`, whole blocks of memory, which begins at the block `offset` is in.
/// Says where in the buffer they are. One read fills what is left of the buffer.
pub(crate) fn read_around(
    file: &dyn DiskFile,
    len: u64,
    offset: u64,
    wanted: u64,
    buffer: &mut [u8],
) -> Result<std::ops::Range<usize>> {
    let begin = offset / ALIGN * ALIGN;
    let end = (offset + wanted).min(len);
    let reach = end.next_multiple_of(ALIGN).min(len) - begin;
    let space = buffer.len() as u64;
    let (read, end) = if reach > space { (space, begin + space) } else { (reach, end) };
    let mut filled = 0;
    while filled < read {
        // A direct read ends with the file, wherever that is in its last block; it must ask for whole blocks.
        let ask = read.next_multiple_of(ALIGN).min(space);
        let Some(rest) = buffer.get_mut(filled as usize..ask as usize) else { break };
        match file.read_some_at(rest, begin + filled) {
            Ok(0) => return Err(MatrixError::corrupt(file.path(), begin + filled, "the file ends here")),
            Ok(n) => filled += n as u64,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(MatrixError::io("read", file.path(), e)),
        }
    }
    Ok((offset - begin) as usize..(end - begin) as usize)
}
