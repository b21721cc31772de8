//! A vector on disk.

use std::path::Path;
use std::sync::Arc;

use webbase_storage::disk::{Disk, DiskFile};

use super::super::kernel::BLOCK;
use super::Result;
use crate::link_matrix::{Buffer, MatrixError, Request, direct};

/// A vector as a file: blocks of values of some size, the last one filled up with zeros.
pub(super) struct Vector {
    file: Arc<dyn DiskFile>,
    value_bytes: usize,
}

impl Vector {
    pub(super) fn create(disk: &dyn Disk, path: &Path, value_bytes: usize) -> Result<Self> {
        let file = disk.open(path, true).map_err(|e| MatrixError::io("create", path, e))?;
        Ok(Self { file: direct(&file), value_bytes })
    }

    pub(super) fn block_bytes(&self) -> u64 {
        (self.value_bytes * BLOCK) as u64
    }

    /// Asks for `count` blocks, to be read ahead.
    pub(super) fn request(&self, first: usize, count: usize) -> Request {
        let bytes = count * self.block_bytes() as usize;
        Request::Vector { file: self.file.clone(), at: first as u64 * self.block_bytes(), bytes }
    }

    /// Reads as many blocks as `into` has.
    pub(super) fn read(&self, block: usize, into: &mut Buffer) -> Result<()> {
        self.read_bytes(block, into.bytes_mut())
    }

    /// Reads whole blocks.
    pub(super) fn read_bytes(&self, block: usize, into: &mut [u8]) -> Result<()> {
        let read = self.file.read_exact_at(into, block as u64 * self.block_bytes());
        read.map_err(|e| MatrixError::io("read", self.file.path(), e))
    }

    pub(super) fn write(&self, block: usize, from: &Buffer) -> Result<()> {
        let written = self.file.write_all_at(from.bytes(), block as u64 * self.block_bytes());
        written.map_err(|e| MatrixError::io("write", self.file.path(), e))
    }
}
