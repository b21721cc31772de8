//! Pages that somebody names, lifted into the top of all, on disk: [`publish`](crate::importance::publish) in little memory.
//!
//! E stays uniform but for the pages named: (1 − s)/n each, and s/k more for each of k. s is solved for by the same search; each try
//! goes on from the vector of the last.

use super::super::kernel::BLOCK;
use super::super::publication::{least_strength, places};
use super::{OnDisk, Result, Rounds, Scan};
use crate::link_matrix::MatrixError;

/// The pages that E gives more, and how much of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Lift {
    /// Sorted, each once.
    named: Vec<u32>,
    strength: f64,
}

impl Lift {
    /// What E gives every page, of one that gives all pages 1.
    pub(super) fn of_all(&self) -> f64 {
        1.0 - self.strength
    }

    /// What it gives a page named beside that, and the places of those in a block.
    pub(super) fn of_named(&self, block: usize) -> (f64, impl Iterator<Item = usize>) {
        let end = (block + 1) * BLOCK;
        let first = self.named.partition_point(|page| (*page as usize) < block * BLOCK);
        let here = self.named.iter().skip(first).take_while(move |page| (**page as usize) < end);
        (self.strength / self.named.len().max(1) as f64, here.map(|page| *page as usize % BLOCK))
    }
}

/// What a publication on disk came to; importance is with it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lifting {
    /// s: the share of E that the pages have.
    pub strength: f64,
    /// Whether all of them are where they should be.
    pub reached: bool,
    /// Rounds of all tries, and what the last one came to.
    pub rounds: Rounds,
}

impl OnDisk {
    /// The importance with the least strength that lifts all of `named` into the `top` part of all pages.
    ///
    /// # Errors
    /// As [`OnDisk::importance`], or when a page named is none.
    pub fn publish(&mut self, named: &[u32], top: f64, scan: Scan, rounds_max: u32) -> Result<Lifting> {
        let pages = self.matrix.pages();
        if let Some(page) = named.iter().copied().find(|page| *page >= pages) {
            return Err(MatrixError::Page { page, pages });
        }
        self.lift.named = named.to_vec();
        self.lift.named.sort_unstable();
        self.lift.named.dedup();
        let mut all = Rounds { rounds: 0, change: f64::INFINITY, converged: true, bytes: 0 };
        let mut solve = |this: &mut Self, strength: f64| -> Result<bool> {
            this.lift.strength = strength;
            let done = this.importance(scan, rounds_max)?;
            all.rounds += done.rounds;
            all.bytes += done.bytes;
            all.change = done.change;
            all.converged &= done.converged;
            this.are_top(top)
        };
        let (strength, reached) = least_strength(|strength| solve(self, strength))?;
        if self.lift.strength != strength {
            // The last try was too little.
            solve(self, strength)?;
        }
        Ok(Lifting { strength, reached, rounds: all })
    }

    /// Whether all pages named are among the `top` part of all; pages alike share the better place.
    fn are_top(&self, top: f64) -> Result<bool> {
        let (mut least, mut next) = (f64::INFINITY, self.lift.named.iter().peekable());
        self.for_importance(|page, value| {
            if next.next_if(|named| **named as usize == page).is_some() {
                least = least.min(value);
            }
        })?;
        let mut above = 0;
        self.for_importance(|_, value| above += usize::from(value > least))?;
        Ok(above < places(self.matrix.pages() as usize, top))
    }
}
