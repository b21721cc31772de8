//! What is left over of an equation, and how it is passed on.
//!
//! Taking a page's residual into its value and passing c/λ of it on to its links leaves the equation as it is and makes the residual
//! smaller; a link to itself is solved for, as in Gauss–Seidel. Sweeps go over the pages in order, each with what those before it have just brought, and pass on where
//! there is enough for the links it costs.
//!
//! As long as few pages have anything each is looked at by itself. Later on all have something, and whether it is enough is a guess that the processor gets wrong: a
//! link cost three times what it costs where all pages are passed on. So then a *lot* of neighbours is passed on or is not: that is half as many links again, and more than
//! made up for.
//!
//! Among pages that link to nobody else nearly all of it comes back, and sweeps make it less and less by the same part. A [`Line`] makes up
//! for that. Where sweeps settle all but what pages have alike, z is there for that ([`Residual::lift`]).

use std::ops::Range;

use super::super::graph::{Graph, share};
use super::Repaired;
use super::line::Line;

/// What it costs to look at a page, in links.
const PAGE_COST: f64 = 4.0;
/// A sweep passes on at pages, or lots, whose residual a link is at least this part of the average; less where sweeps leave less over: what is not passed on should be
/// this part of that at most.
const ENOUGH_MAX: f64 = 0.4;
const ENOUGH_OF_LEFT: f64 = 0.6;
/// What adds up to more than this part of its absolute values is lifted.
const ONE_SIGN: f64 = 0.5;
/// Where sweeps leave less than this part over, they need no line.
const SLOWLY: f64 = 0.5;
/// Neighbours that are passed on together.
const LOT: usize = 32;
/// As long as fewer pages than one in so many have something, each is looked at by itself.
const FEW: usize = 3;
/// That is more than this part of what pages have on average: a repair before leaves a little everywhere.
const SOMETHING: f64 = 1e-2;
/// Sweeps after which something is wrong.
const SWEEPS_MAX: u32 = 2000;
/// A diagonal smaller than this part of λ is not divided by.
const DIAGONAL_MIN: f64 = 1.0 / 16.0;

/// The equation: (λ − c·M)·y = …
pub(super) struct Pass<'a> {
    pub(super) graph: &'a Graph,
    /// Which pages link to themselves.
    pub(super) to_self: &'a [bool],
    /// z, and its image w; nothing where there is no z.
    pub(super) lift: (&'a [f64], &'a [f64]),
    pub(super) damping: f64,
    pub(super) lambda: f64,
}

/// The residual of every page.
#[derive(Debug, Clone)]
pub(super) struct Residual {
    of_page: Vec<f64>,
    /// The sum of its absolute values.
    sum: f64,
    /// Pages that have something.
    pages: usize,
    /// What part of it the last sweep left over.
    left_over: f64,
}

impl Residual {
    pub(super) fn new(of_page: Vec<f64>) -> Residual {
        let mut residual = Residual { of_page, sum: 0.0, pages: 0, left_over: 1.0 };
        residual.count();
        residual
    }

    /// The sum of absolute values, as it was last counted.
    pub(super) fn sum(&self) -> f64 {
        self.sum
    }

    /// The sum.
    pub(super) fn total(&self) -> f64 {
        sum_of(&self.of_page)
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

    /// Adds up what there is.
    pub(super) fn count(&mut self) {
        self.sum = sum_by(&self.of_page, f64::abs);
        let something = SOMETHING * self.sum / self.of_page.len().max(1) as f64;
        self.pages = sum_by(&self.of_page, |left| f64::from(u8::from(left.abs() > something))) as usize;
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
            let (few, before) = (self.pages < self.of_page.len() / FEW, self.sum);
            let enough = ENOUGH_MAX.min(ENOUGH_OF_LEFT * self.left_over);
            let any = match few {
                true => self.sweep_pages(pass, enough, values, done),
                false => self.sweep_lots(pass, enough, values, done),
            };
            if !any {
                // All there is lies at pages with many links.
                self.sweep_pages(pass, 0.0, values, done);
            }
            done.sweeps += 1;
            // Where λ is not above c sweeps may not lead to the solution, and a line, or z, would lead to one with values below 0.
            let has_solution = pass.lambda > pass.damping;
            let has_line = has_solution && self.left_over > SLOWLY;
            let went_on = has_line && line.swept(values, &mut self.of_page);
            if !has_line {
                line.forget();
            }
            self.count();
            if !went_on {
                self.left_over = self.sum / before;
            }
            if has_solution {
                self.lift(pass, values);
            }
        }
        true
    }

    /// What has mostly one sign is all pages' alike, nearly in the proportion of y, and sweeps would be long in settling it. The image of z is y, nearly: so z, as much
    /// of it as makes the residual add up to nothing.
    fn lift(&mut self, pass: &Pass<'_>, values: &mut [f64]) {
        let (z, w) = pass.lift;
        let total = self.total();
        if z.is_empty() || total.abs() <= ONE_SIGN * self.sum {
            return;
        }
        let more = total / sum_of(w);
        if !more.is_finite() {
            return;
        }
        values.iter_mut().zip(z).for_each(|(value, z)| *value += more * z);
        self.of_page.iter_mut().zip(w).for_each(|(left, w)| *left -= more * w);
        self.count();
    }

    /// What a link's worth of residual is, on average.
    fn of_link(&self, graph: &Graph) -> f64 {
        let links = graph.links() as f64 / graph.pages().max(1) as f64;
        self.sum / (self.pages.max(1) as f64 * (links + PAGE_COST))
    }

    /// Goes over all pages once; says whether any had enough to pass on.
    #[expect(clippy::indexing_slicing, reason = "rows name pages there are")]
    fn sweep_pages(&mut self, pass: &Pass<'_>, enough: f64, values: &mut [f64], done: &mut Repaired) -> bool {
        let (least, before) = (enough * self.of_link(pass.graph), done.pages);
        let least_of_any = least * PAGE_COST;
        let out = pass.graph.out();
        for page in 0..self.of_page.len() {
            let left = self.of_page[page].abs();
            // Most pages end here, so their links are not asked for.
            if left == 0.0 || left < least_of_any || left < least * (out.degree(page) as f64 + PAGE_COST) {
                continue;
            }
            pass.on(page..page + 1, &mut self.of_page, values, done);
        }
        done.pages > before
    }

    /// Goes over all lots once; says whether any had enough to pass on.
    #[expect(clippy::indexing_slicing, reason = "lots are ranges of pages")]
    fn sweep_lots(&mut self, pass: &Pass<'_>, enough: f64, values: &mut [f64], done: &mut Repaired) -> bool {
        let (least, before) = (enough * self.of_link(pass.graph), done.pages);
        let (out, pages) = (pass.graph.out(), self.of_page.len());
        for begin in (0..pages).step_by(LOT) {
            let lot = begin..pages.min(begin + LOT);
            let cost = out.links(lot.clone()) as f64 + PAGE_COST * lot.len() as f64;
            if sum_by(&self.of_page[lot.clone()], f64::abs) > least * cost {
                pass.on(lot, &mut self.of_page, values, done);
            }
        }
        done.pages > before
    }
}

impl Pass<'_> {
    /// Passes on what these pages have. Nothing here depends on what that is, but how much.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "rows name pages there are; all have a value a page")]
    fn on(&self, pages: Range<usize>, of_page: &mut [f64], values: &mut [f64], done: &mut Repaired) {
        let (c, lambda, out) = (self.damping, self.lambda, self.graph.out());
        done.pages += pages.len() as u64;
        done.links += out.links(pages.clone()) as u64;
        out.for_rows(pages, |page, links| {
            let each_of_one = c * share(links.len());
            let is_solved = self.to_self[page] & (lambda - each_of_one > lambda * DIAGONAL_MIN);
            let to_self = f64::from(u8::from(is_solved)) * each_of_one;
            let inverse = 1.0 / (lambda - to_self);
            let more = of_page[page] * inverse;
            values[page] += more;
            // What comes back by a link to itself is solved for: this makes it nothing.
            of_page[page] = -more * to_self;
            let each = more * each_of_one;
            for link in links {
                of_page[*link as usize] += each;
            }
        });
    }
}

/// Adds up what `of` says of values, in eight sums: one alone waits for itself.
fn sum_by(values: &[f64], of: impl Fn(f64) -> f64) -> f64 {
    let (eights, rest) = values.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for eight in eights {
        sums.iter_mut().zip(eight).for_each(|(sum, value)| *sum += of(*value));
    }
    sums.into_iter().chain(rest.iter().map(|value| of(*value))).sum()
}

/// Adds up values.
pub(super) fn sum_of(values: &[f64]) -> f64 {
    sum_by(values, |value| value)
}
