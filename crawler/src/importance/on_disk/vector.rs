//! A vector on disk.

use std::path::Path;
use std::sync::Arc;

use webbase_storage::disk::{Disk, DiskFile};

use super::Result;
use crate::link_matrix::{BLOCK_BYTES, Buffer, MatrixError, direct};

/// A vector as a file: blocks of values, the last one filled up with zeros.
pub(super) struct Vector {
    pub(super) file: Arc<dyn DiskFile>,
}

impl Vector {
    pub(super) fn create(disk: &dyn Disk, path: &Path) -> Result<Self> {
        let file = disk.open(path, true).map_err(|e| MatrixError::io("create", path, e))?;
        Ok(Self { file: direct(&file) })
    }

    pub(super) fn read(&self, block: usize, into: &mut Buffer) -> Result<()> {
        let read = self.file.read_exact_at(into.bytes_mut(), block as u64 * BLOCK_BYTES);
        read.map_err(|e| MatrixError::io("read", self.file.path(), e))
    }

    pub(super) fn write(&self, block: usize, from: &Buffer) -> Result<()> {
        let written = self.file.write_all_at(from.bytes(), block as u64 * BLOCK_BYTES);
        written.map_err(|e| MatrixError::io("write", self.file.path(), e))
    }
}
