//! The innermost loops over a cell of the block grid: the links from one block of pages to another.
//!
//! A link is a position, the source's place in its block times 65 536 plus the target's in its own. Blocks of vectors are
//! arrays of exactly so many values (512 KiB, a second-level cache), so that no place in them needs a check.

use super::rough::{Rough, Scale};

/// Pages of a block.
pub(crate) const BLOCK: usize = 1 << 16;

/// A vector's values of one block.
pub(crate) type Block = [f64; BLOCK];

/// `values` followed by zeros, up to whole blocks.
pub(crate) fn padded(mut values: Vec<f64>) -> Vec<f64> {
    values.resize(values.len().next_multiple_of(BLOCK), 0.0);
    values
}

/// Values of a block's pages as they are read; sums are always of 64 bits.
pub(crate) trait Values {
    fn of(&self, place: u16) -> f64;
}

impl Values for Block {
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "a place has 16 bits, and a block so many places")]
    fn of(&self, place: u16) -> f64 {
        self[usize::from(place)]
    }
}

/// Rough values of a block, all of one scale.
pub(crate) struct RoughBlock<'a> {
    pub(crate) values: &'a [Rough; BLOCK],
    pub(crate) scale: Scale,
}

impl Values for RoughBlock<'_> {
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "a place has 16 bits, and a block so many places")]
    fn of(&self, place: u16) -> f64 {
        self.scale.value(self.values[usize::from(place)])
    }
}

/// From so many links on it pays to bring the sums they go to into the cache first.
const MANY_LINKS: usize = BLOCK / 16;

/// Makes ready for so many links into a block, anywhere in it: a block that is read in order is in the cache much sooner than line by line
/// as links ask for it.
pub(crate) fn make_ready(got: &Block, links: usize) {
    if links >= MANY_LINKS {
        // One value of each line.
        std::hint::black_box(got.iter().step_by(8).fold(0, |all, value| all ^ value.to_bits()));
    }
}

/// Importance goes forward: every target gets what its source passes on.
#[expect(clippy::indexing_slicing, reason = "a place has 16 bits, and a block so many places")]
pub(crate) fn forward(cell: &[u32], passing: &impl Values, got: &mut Block) {
    for position in cell {
        got[(position & 0xffff) as usize] += passing.of((position >> 16) as u16);
    }
}

/// Usefulness goes backward: every source gets what its target has.
#[expect(clippy::indexing_slicing, reason = "a place has 16 bits, and a block so many places")]
pub(crate) fn backward(cell: &[u32], has: &impl Values, got: &mut Block) {
    for position in cell {
        got[(position >> 16) as usize] += has.of(*position as u16);
    }
}

/// Both at once.
#[expect(clippy::indexing_slicing, reason = "a place has 16 bits, and a block so many places")]
pub(crate) fn both_ways(
    cell: &[u32],
    (passing, got_back): (&Block, &mut Block),
    (has, got): (&Block, &mut Block),
) {
    for position in cell {
        let (source, target) = ((position >> 16) as usize, (position & 0xffff) as usize);
        got[target] += passing[source];
        got_back[source] += has[target];
    }
}
