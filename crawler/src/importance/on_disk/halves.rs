//! Two threads that add up, each what blocks of its own get.
//!
//! Both see all links, in the same order, and leave those of the other's blocks out; so every sum is added up in one order, whoever is
//! faster, and no sum is written by two. Blocks go in turns, because links come block by block.

use super::Result;
use crate::importance::kernel::Block;
use crate::link_matrix::Reader;

/// Every other one of some blocks.
pub(super) struct Half<'a> {
    parity: usize,
    blocks: Vec<&'a mut Block>,
}

impl Half<'_> {
    /// The block, if it is one of this half.
    pub(super) fn block(&mut self, block: usize) -> Option<&mut Block> {
        if block % 2 != self.parity {
            return None;
        }
        self.blocks.get_mut(block / 2).map(|block| &mut **block)
    }
}

/// Runs `work` with each half of `blocks`, at once.
pub(super) fn in_halves(
    blocks: &mut [Block],
    [one, other]: [Reader; 2],
    work: impl Fn(Reader, Half<'_>) -> Result<()> + Sync,
) -> Result<()> {
    let (mut even, mut odd) = (Vec::new(), Vec::new());
    for pair in blocks.chunks_mut(2) {
        let mut pair = pair.iter_mut();
        even.extend(pair.next());
        odd.extend(pair.next());
    }
    let (even, odd) = (Half { parity: 0, blocks: even }, Half { parity: 1, blocks: odd });
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| work(other, odd));
        // Errors reach the first reader; the other one only finds that nothing more comes.
        let own = work(one, even);
        let beside = beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        own.and(beside)
    })
}
