//! Two threads that add up, each what blocks of its own get.
//!
//! Both see all links, in the same order, and decode those of their own blocks; so every sum is added up in one order, whoever is
//! faster, and no sum is written by two. Blocks go in turns, because links come block by block.

use super::Result;
use crate::importance::kernel::Block;
use crate::link_matrix::{MatrixError, Reader};

/// Every other one of some blocks.
pub(super) struct Half<'a> {
    parity: usize,
    blocks: Vec<&'a mut Block>,
}

impl Half<'_> {
    /// Which of the halves it is: blocks are its own whose numbers have this parity. Groups begin at whole tiles, so the blocks of all pages
    /// have the same.
    pub(super) fn parity(&self) -> usize {
        self.parity
    }

    /// The block, which is one of this half.
    pub(super) fn block(&mut self, block: usize) -> Option<&mut Block> {
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
    at_once(|| work(one, even), || work(other, odd))
}

/// Runs both at once. Where one fails the other finds only that nothing more comes, so what the first says is the error.
pub(super) fn at_once(
    one: impl FnOnce() -> Result<()>,
    other: impl FnOnce() -> Result<()> + Send,
) -> Result<()> {
    std::thread::scope(|scope| {
        let beside = scope.spawn(other);
        let own = one();
        let beside = beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match (own, beside) {
            (Err(MatrixError::Ended(_)), Err(why)) => Err(why),
            (own, beside) => own.and(beside),
        }
    })
}
