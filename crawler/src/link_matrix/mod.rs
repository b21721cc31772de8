//! The link matrix: the children of every page, on disk.
//!
//! A matrix is one file (`file.rs` draws it). It is a two-dimensional grid of blocks of 65 536 pages, so that importance,
//! which slices its targets, and usefulness, which slices its sources, both scan it with two small pieces of their vectors in
//! memory. Blocks lie in tiles of 8 × 8: what is read at once. Links in a cell are one sorted sequence of positions, of which
//! the gaps are stored (`code.rs`): 20.0 bits a link for 3 million pages whose ten links each lead anywhere, and a bit more with each
//! doubling of the pages; less where links lead to neighbours.
//!
//! - [`MatrixBuilder`] makes a matrix from a stream of (page, links) in any order, sorting outside of memory.
//! - [`Matrix`] reads it, past the page cache where the disk can do that.
//! - [`LinkMatrix`] is a folder with a base and runs of changed pages beside it, merged when there are several. It is the one
//!   owner of the links of a repository.
//!
//! A page that was read has 0 to 65 534 links; one that is only linked to is told apart from one without links.

mod ahead;
mod builder;
mod code;
mod degrees;
mod direct;
mod file;
mod folder;
mod frame;
mod reader;
mod sorter;
#[cfg(test)]
mod tests;

pub use builder::{Built, MatrixBuilder};
pub use file::Matrix;
pub use folder::LinkMatrix;

/// Bytes as a frame and as numbers of links: positions ascend, and there is a number for each page of a block.
#[cfg(any(fuzzing, test))]
pub(crate) fn fuzz_parts(bytes: &[u8]) {
    let mut frame = frame::Frame::default();
    if frame.read(bytes).is_ok() {
        assert!(
            frame.positions.is_sorted_by(|a, b| a < b) && frame.positions.len() <= frame::FRAME_LINKS_MAX
        );
    }
    if let Ok(degrees) = degrees::read(bytes) {
        assert_eq!(degrees.len(), crate::importance::kernel::BLOCK);
    }
}

/// Such parts, without their checksums.
#[cfg(test)]
pub(crate) fn fuzz_samples() -> Vec<Vec<u8>> {
    let (mut frame, mut numbers) = (Vec::new(), Vec::new());
    frame::write(3, 4, &[1, 5, 6, 1000, 70_000], &mut code::BitWriter::default(), &mut frame);
    degrees::write(&vec![7; crate::importance::kernel::BLOCK], &mut numbers).unwrap();
    [frame, numbers].into_iter().map(|bytes| bytes[..bytes.len() - 8].to_vec()).collect()
}

pub(crate) use ahead::Request;
pub(crate) use direct::{BLOCK_BYTES, Buffer, direct};
pub(crate) use reader::Reader;

use std::path::{Path, PathBuf};

/// What can go wrong with a link matrix.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MatrixError {
    /// The system says no.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file is not what was written.
    #[error("{path} is damaged at {offset}: {what}")]
    Corrupt {
        /// Which file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// A page beyond the last.
    #[error("page {page} is beyond the last of {pages} pages")]
    Page {
        /// The page.
        page: u32,
        /// How many there are.
        pages: u32,
    },
    /// What reads ahead has ended: why, another part of the scan knows.
    #[error("{0} is not read any further")]
    Ended(PathBuf),
    /// A page was given twice in one stream.
    #[error("page {0} was given twice; a changed page goes into a run of changes")]
    Twice(u32),
}

impl MatrixError {
    pub(crate) fn io(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { action, path: path.to_path_buf(), source }
    }

    pub(crate) fn corrupt(path: &Path, offset: u64, what: impl Into<String>) -> Self {
        Self::Corrupt { path: path.to_path_buf(), offset, what: what.into() }
    }
}

pub(crate) type Result<T> = std::result::Result<T, MatrixError>;

/// Blocks on the side of a tile.
pub(crate) const TILE_BITS: u32 = 3;

/// Where a link stands in the order of a matrix: tile, column of the tile, cell, source, target. Targets lie anywhere in their block,
/// and sources one after the other; so a tile goes by columns, and the block that is jumped about in stays in the cache for eight cells.
pub(crate) fn key(source: u32, target: u32) -> u64 {
    let (s, t) = (u64::from(source), u64::from(target));
    (s >> 19) << 51
        | (t >> 19) << 38
        | (t >> 16 & 7) << 35
        | (s >> 16 & 7) << 32
        | (s & 0xffff) << 16
        | (t & 0xffff)
}

/// Source and target of a key.
pub(crate) fn link(key: u64) -> (u32, u32) {
    let source = (key >> 51 & 0x1fff) << 19 | (key >> 32 & 7) << 16 | (key >> 16 & 0xffff);
    let target = (key >> 38 & 0x1fff) << 19 | (key >> 35 & 7) << 16 | (key & 0xffff);
    (source as u32, target as u32)
}
