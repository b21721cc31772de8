//! What is left over of an equation, and how it is passed on.
//!
//! Taking a page's residual into its value and passing c/λ of it on to its links leaves the equation as it is and makes the residual
//! smaller; a link to itself is solved for, as in Gauss–Seidel. Sweeps go over the pages, and look only at those whose residual, by the links
//! it costs to pass it on, is not far below the average.
//!
//! Among pages that link to nobody else nearly all of it comes back, and sweeps make it less and less by the same part. A [`Line`] makes up
//! for that.

use super::super::graph::{Graph, share};
use super::Repaired;
use super::line::Line;

/// What it costs to look at a page, in links.
const PAGE_COST: f64 = 4.0;
/// A sweep looks at pages whose residual a link is at least this part of the average.
const LOOKED_AT: f64 = 0.5;
/// Sweeps after which something is wrong.
const SWEEPS_MAX: u32 = 2000;
/// A diagonal smaller than this part of λ is not divided by.
const DIAGONAL_MIN: f64 = 1.0 / 16.0;

/// The equation: (λ − c·M)·y = …
pub(super) struct Pass<'a> {
    pub(super) graph: &'a Graph,
    /// Which pages link to themselves.
    pub(super) to_self: &'a [bool],
    pub(super) damping: f64,
    pub(super) lambda: f64,
}

/// The residual of every page.
#[derive(Debug, Clone)]
pub(super) struct Residual {
    of_page: Vec<f64>,
    /// The sum of its absolute values.
    sum: f64,
    /// What it would cost to pass all of it on, in links.
    cost: f64,
}

impl Residual {
    pub(super) fn new(of_page: Vec<f64>, graph: &Graph) -> Residual {
        let mut residual = Residual { of_page, sum: 0.0, cost: PAGE_COST };
        residual.count(graph);
        residual
    }

    /// The sum of absolute values, as it was last counted.
    pub(super) fn sum(&self) -> f64 {
        self.sum
    }

    /// The sum.
    pub(super) fn total(&self) -> f64 {
        self.of_page.iter().sum()
    }

    /// Scales what there is, and takes new pages.
    pub(super) fn grow(&mut self, by: f64, new: impl Iterator<Item = f64>) {
        self.of_page.iter_mut().for_each(|left| *left *= by);
        self.of_page.extend(new);
    }

    /// So much more for each of these pages.
    #[expect(clippy::indexing_slicing, reason = "rows name pages there are")]
    pub(super) fn give(&mut self, pages: &[u32], each: f64) {
        pages.iter().for_each(|page| self.of_page[*page as usize] += each);
    }

    /// More for every page.
    pub(super) fn correct(&mut self, more: impl Iterator<Item = f64>) {
        self.of_page.iter_mut().zip(more).for_each(|(left, more)| *left += more);
    }

    /// What each page has of it.
    pub(super) fn of_page(&self) -> &[f64] {
        &self.of_page
    }

    /// Adds up what there is, in four sums: one alone waits for itself.
    pub(super) fn count(&mut self, graph: &Graph) {
        let (mut sums, mut pages) = ([0.0; 4], [0u32; 4]);
        let (fours, rest) = self.of_page.as_chunks::<4>();
        for four in fours.iter().copied().chain(rest.iter().map(|left| [*left, 0.0, 0.0, 0.0])) {
            for ((sum, pages), left) in sums.iter_mut().zip(&mut pages).zip(four) {
                *sum += left.abs();
                *pages += u32::from(left != 0.0);
            }
        }
        self.sum = sums.iter().sum();
        let links = graph.links() as f64 / graph.pages().max(1) as f64;
        self.cost = f64::from(pages.iter().sum::<u32>()).max(1.0) * (links + PAGE_COST);
    }

    /// Passes residuals on into `values` until they add up to `target`; false where they don't get less.
    pub(super) fn pass_on(
        &mut self,
        pass: &Pass<'_>,
        values: &mut [f64],
        target: f64,
        line: &mut Line,
        done: &mut Repaired,
    ) -> bool {
        let most = 4.0 * self.sum;
        while self.sum > target {
            if done.sweeps >= SWEEPS_MAX || self.sum > most || !self.sum.is_finite() {
                return false;
            }
            if !self.sweep(pass, LOOKED_AT, values, done) {
                // All there is lies at pages with many links.
                self.sweep(pass, 0.0, values, done);
            }
            done.sweeps += 1;
            if pass.lambda > pass.damping {
                line.swept(values, &mut self.of_page);
            } else {
                // Sweeps may not lead to the solution, and a line would find one with values below 0.
                line.forget();
            }
            self.count(pass.graph);
        }
        true
    }

    /// Goes over all pages once; says whether any had enough to pass on.
    #[expect(clippy::indexing_slicing, reason = "rows name pages there are; all have a value a page")]
    fn sweep(&mut self, pass: &Pass<'_>, looked_at: f64, values: &mut [f64], done: &mut Repaired) -> bool {
        let (c, lambda, before) = (pass.damping, pass.lambda, done.pages);
        let least = looked_at * self.sum / self.cost;
        let least_of_any = least * PAGE_COST;
        let of_page = &mut self.of_page;
        for page in 0..of_page.len() {
            let left = of_page[page];
            // Most pages end here, so their links are not asked for.
            if left == 0.0 || left.abs() < least_of_any {
                continue;
            }
            let links = pass.graph.out().row(page);
            if left.abs() < least * (links.len() as f64 + PAGE_COST) {
                continue;
            }
            let each_of_one = c * share(links.len());
            of_page[page] = 0.0;
            let solved = lambda - each_of_one;
            let is_solved = pass.to_self[page] && solved > lambda * DIAGONAL_MIN;
            let more = left / if is_solved { solved } else { lambda };
            values[page] += more;
            let each = more * each_of_one;
            for link in links {
                of_page[*link as usize] += each;
            }
            if is_solved {
                of_page[page] = 0.0;
            }
            done.pages += 1;
            done.links += links.len() as u64;
        }
        done.pages > before
    }
}
