//! Pieces of a vector that a scan has in memory at a time.
//!
//! With 40 million pages a cell has a thousand links, and its sums 8192 lines of the cache. The more cells follow each other with the same
//! sums, the less often these come from memory; so the changes of several tiles are in memory, which are small, and of each tile of the group
//! all cells go that lead from them.

use std::ops::Range;
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable};

use super::super::kernel::BLOCK;
use super::{Result, TILE};
use crate::link_matrix::{Buffer, Reader};

/// The pieces of some tiles, one after the other.
pub(super) struct Strip {
    first: usize,
    pieces: Vec<Arc<Buffer>>,
}

/// All tiles, so many at a time.
pub(super) fn strips(tiles: usize, at_a_time: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    (0..tiles).step_by(at_a_time).map(move |first| first..tiles.min(first + at_a_time))
}

impl Strip {
    /// The pieces that are next in order, of these tiles.
    pub(super) fn next(reader: &mut Reader, tiles: &Range<usize>) -> Result<Self> {
        let pieces = tiles.clone().map(|_| reader.vector()).collect::<Result<_>>()?;
        Ok(Self { first: tiles.start, pieces })
    }

    /// The values of a block.
    pub(super) fn block<V: FromBytes + Immutable>(&self, block: u16) -> Option<&[V; BLOCK]> {
        let block = usize::from(block).checked_sub(self.first * TILE)?;
        self.pieces.get(block / TILE)?.blocks().get(block % TILE)
    }

    pub(super) fn give_back(self, reader: &Reader) {
        self.pieces.into_iter().for_each(|piece| reader.give_back(piece));
    }
}
