//! The bytes of a leaf, as far as the disk gives them back. Blocks that it does not (EIO) are zeros, and known: a record with
//! bytes in one is damaged, whatever its reader trusts, and the rest of the leaf is as good as before.

use std::ops::Range;

use bytes::Bytes;

use crate::disk::DiskFile;
use crate::error::{Result, StorageError, is_unreadable};

/// What is lost with a sector: the system's cache has no smaller pieces.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// The bytes of a leaf.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    pub(crate) bytes: Bytes,
    /// Whole blocks, but for the leaf's last one, ascending.
    pub(crate) unreadable: Vec<Range<usize>>,
}

impl From<Bytes> for Content {
    fn from(bytes: Bytes) -> Content {
        Content { bytes, unreadable: Vec::new() }
    }
}

impl Content {
    /// Reads a leaf that begins with a block of the file.
    pub(super) fn read(file: &dyn DiskFile, offset: u64, len: usize) -> Result<Content> {
        let mut bytes = vec![0; len];
        match file.read_exact_at(&mut bytes, offset) {
            Ok(()) => return Ok(Bytes::from(bytes).into()),
            Err(e) if is_unreadable(&e) => {}
            Err(e) => return Err(StorageError::read(file.path(), offset, e)),
        }
        let (mut unreadable, mut at) = (Vec::new(), 0);
        for block in bytes.chunks_mut(BLOCK_BYTES) {
            match file.read_exact_at(block, offset + at as u64) {
                Ok(()) => {}
                Err(e) if is_unreadable(&e) => {
                    block.fill(0);
                    unreadable.push(at..at + block.len());
                }
                Err(e) => return Err(StorageError::read(file.path(), offset + at as u64, e)),
            }
            at += block.len();
        }
        Ok(Content { bytes: bytes.into(), unreadable })
    }

    /// Whether all of these bytes could be read.
    pub(crate) fn is_readable(&self, part: &Range<usize>) -> bool {
        !self.unreadable.iter().any(|block| overlap(block, part))
    }
}

/// Whether two ranges have a byte in common.
pub(super) fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}
