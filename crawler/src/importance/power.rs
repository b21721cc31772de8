//! Power iteration over links by target.
//!
//! A round gathers, for each page, what its in-links pass on. r needs no pass of its own: |c·M·I + (1−c)·E|₁ is known
//! beforehand from what pages with links have, c·Σ + (1−c). The pages are cut into parts that don't depend on the number
//! of threads, and their sums are added in order: any number of threads gives the same bits.

use std::ops::Range;

use rayon::prelude::*;

use super::graph::{Graph, Rows};
use super::{FixedPoint, Personalisation, Settings, Solution};

/// Parts of a round, for as many threads at most.
const PARTS: usize = 64;

/// What a round starts from: the sums that decide r.
#[derive(Clone, Copy, Default)]
pub(super) struct Sums {
    /// What pages with links have.
    pub(super) linked: f64,
    /// What the others have.
    pub(super) dangling: f64,
    /// What the round changed.
    pub(super) change: f64,
}

impl Sums {
    pub(super) fn of(values: &[f64], shares: &[f64]) -> Self {
        let mut sums = Self::default();
        for (value, share) in values.iter().zip(shares) {
            sums.add(*value, *share);
        }
        sums
    }

    pub(super) fn add(&mut self, value: f64, share: f64) {
        if share > 0.0 { self.linked += value } else { self.dangling += value }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.linked += other.linked;
        self.dangling += other.dangling;
        self.change += other.change;
    }

    /// The factors of links and of E in the next round.
    pub(super) fn factors(&self, settings: &Settings) -> (f64, f64) {
        let c = settings.damping;
        match settings.fixed_point {
            FixedPoint::Renormalised => {
                let r = 1.0 / (c * self.linked + (1.0 - c));
                (r * c, r * (1.0 - c))
            }
            // What is missing to 1 goes where E says.
            FixedPoint::Spread => (c, 1.0 - c * self.linked),
        }
    }
}

/// A part's pages, with its pieces of the vectors.
struct Part<'a> {
    pages: Range<usize>,
    values: &'a mut [f64],
    passed_on: &'a mut [f64],
}

pub(super) fn solve(
    graph: &Graph,
    e: &Personalisation,
    mut values: Vec<f64>,
    settings: &Settings,
    progress: &mut dyn FnMut(u32, f64),
) -> Solution {
    let shares = graph.shares();
    let mut passing: Vec<f64> = values.iter().zip(&shares).map(|(value, share)| value * share).collect();
    let mut next_passing = vec![0.0; values.len()];
    let mut sums = Sums::of(&values, &shares);
    let parts = graph.into().parts(PARTS);
    let pool = (settings.threads > 1)
        .then(|| rayon::ThreadPoolBuilder::new().num_threads(settings.threads).build().ok())
        .flatten();
    let mut solution = Solution { values: Vec::new(), rounds: 0, change: f64::INFINITY, converged: false };
    while solution.rounds < settings.rounds_max && !solution.converged {
        let (by_links, by_e) = sums.factors(settings);
        let mut round = cut(&parts, &mut values, &mut next_passing);
        let step = |part: &mut Part<'_>| step(graph.into(), &passing, &shares, e, (by_links, by_e), part);
        let each: Vec<Sums> = match &pool {
            Some(pool) => pool.install(|| round.par_iter_mut().with_max_len(1).map(step).collect()),
            None => round.iter_mut().map(step).collect(),
        };
        sums = Sums::default();
        each.iter().for_each(|part| sums.merge(part));
        std::mem::swap(&mut passing, &mut next_passing);
        solution.rounds += 1;
        solution.change = sums.change;
        solution.converged = sums.change < settings.change_max();
        progress(solution.rounds, solution.change);
    }
    solution.values = values;
    solution
}

fn cut<'a>(parts: &[Range<usize>], mut values: &'a mut [f64], mut passed_on: &'a mut [f64]) -> Vec<Part<'a>> {
    let mut pieces = Vec::with_capacity(parts.len());
    for pages in parts {
        let (piece, rest) = values.split_at_mut(pages.len());
        let (piece_passed, rest_passed) = passed_on.split_at_mut(pages.len());
        pieces.push(Part { pages: pages.clone(), values: piece, passed_on: piece_passed });
        (values, passed_on) = (rest, rest_passed);
    }
    pieces
}

/// New values of a part's pages.
#[expect(
    clippy::indexing_slicing,
    reason = "rows name pages there are; a part's pieces are as long as its pages"
)]
fn step(
    into: &Rows,
    passing: &[f64],
    shares: &[f64],
    e: &Personalisation,
    (by_links, by_e): (f64, f64),
    part: &mut Part<'_>,
) -> Sums {
    let mut sums = Sums::default();
    let first = part.pages.start;
    into.for_rows(part.pages.clone(), |page, sources| {
        let got = gather(passing, sources);
        let value = by_links * got + by_e * e.share(page);
        sums.change += (value - part.values[page - first]).abs();
        sums.add(value, shares[page]);
        part.values[page - first] = value;
        part.passed_on[page - first] = value * shares[page];
    });
    sums
}

/// What `sources` pass on together.
#[expect(clippy::indexing_slicing, reason = "rows name pages there are")]
pub(super) fn gather(passing: &[f64], sources: &[u32]) -> f64 {
    let mut sum = 0.0;
    for source in sources {
        sum += passing[*source as usize];
    }
    sum
}
