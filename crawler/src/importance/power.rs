//! Power iteration over links by target.
//!
//! A round gathers, for each page, what its in-links pass on. r needs no pass of its own: |c·M·I + (1−c)·E|₁ is known
//! beforehand from what pages with links have, c·Σ + (1−c). The pages are cut into parts that don't depend on the number
//! of threads, and their sums are added in order: any number of threads gives the same bits.
//!
//! The one vector there is has what each link of a page passes on (of a page without links, what it has): nobody asks for it but the rows
//! and the page itself, which finds there, times its links, what it had. So a page costs a round 10 bytes more than its bare row: what it
//! had, and how many links it has in two.

use std::ops::Range;

use rayon::prelude::*;

use super::graph::{Graph, Rows};
use super::{FixedPoint, Personalisation, Settings, Solution};

/// Parts of a round, for as many threads at most.
const PARTS: usize = 64;

/// Pages whose sums are in the cache at a time.
const RUN: usize = 512;

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

    /// What a page has; `share` is 0 if it has no links.
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

/// A part's pages, with its piece of the vector.
struct Part<'a> {
    pages: Range<usize>,
    passed_on: &'a mut [f64],
}

pub(super) fn solve(
    graph: &Graph,
    e: &Personalisation,
    mut values: Vec<f64>,
    settings: &Settings,
    progress: &mut dyn FnMut(u32, f64),
) -> Solution {
    let degrees: Vec<u16> = (0..graph.pages()).map(|page| degree(graph.out().degree(page))).collect();
    let mut sums = Sums::default();
    for (value, degree) in values.iter_mut().zip(&degrees) {
        sums.add(*value, f64::from(*degree));
        *value = passed_on(*value, *degree);
    }
    let (mut passing, mut next_passing) = (values, vec![0.0; graph.pages()]);
    let parts = graph.into().parts(PARTS);
    let pool = (settings.threads > 1)
        .then(|| rayon::ThreadPoolBuilder::new().num_threads(settings.threads).build().ok())
        .flatten();
    let mut solution = Solution { values: Vec::new(), rounds: 0, change: f64::INFINITY, converged: false };
    while solution.rounds < settings.rounds_max && !solution.converged {
        let (by_links, by_e) = sums.factors(settings);
        let mut round = cut(&parts, &mut next_passing);
        let step = |part: &mut Part<'_>| match e.alike() {
            Some(share) => step(graph.into(), &passing, &degrees, by_links, |_| by_e * share, part),
            None => step(graph.into(), &passing, &degrees, by_links, |page| by_e * e.share(page), part),
        };
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
    passing.iter_mut().zip(&degrees).for_each(|(value, degree)| *value = had(*value, *degree));
    solution.values = passing;
    solution
}

/// A page's number of links in two bytes: [`LINKS_MAX`](super::LINKS_MAX) fits.
fn degree(links: usize) -> u16 {
    debug_assert!(links <= super::LINKS_MAX, "the builder keeps no more");
    links as u16
}

/// What each of a page's links gets; all of it where there are none.
fn passed_on(value: f64, degree: u16) -> f64 {
    value / f64::from(degree.max(1))
}

/// What a page has whose links get so much each.
fn had(passing: f64, degree: u16) -> f64 {
    passing * f64::from(degree.max(1))
}

fn cut<'a>(parts: &[Range<usize>], mut passed_on: &'a mut [f64]) -> Vec<Part<'a>> {
    let mut pieces = Vec::with_capacity(parts.len());
    for pages in parts {
        let (piece, rest) = passed_on.split_at_mut(pages.len());
        pieces.push(Part { pages: pages.clone(), passed_on: piece });
        passed_on = rest;
    }
    pieces
}

/// What the pages of a part pass on next; `own` is what a page has of E. A run of pages gathers first, and then makes values of it: a loop
/// that does nothing else has the rows of more pages under way at a time.
#[expect(
    clippy::indexing_slicing,
    reason = "rows name pages there are; a part's piece is as long as its pages"
)]
fn step(
    into: &Rows,
    passing: &[f64],
    degrees: &[u16],
    by_links: f64,
    own: impl Fn(usize) -> f64,
    part: &mut Part<'_>,
) -> Sums {
    let mut sums = Sums::default();
    for (first, places) in part.pages.clone().step_by(RUN).zip(part.passed_on.chunks_mut(RUN)) {
        let run = first..first + places.len();
        let mut next = places.iter_mut();
        into.for_rows(run.clone(), |_, sources| {
            if let Some(place) = next.next() {
                *place = gather(passing, sources);
            }
        });
        let known = degrees[run.clone()].iter().zip(&passing[run.clone()]);
        for (page, (place, (degree, before))) in run.zip(places.iter_mut().zip(known)) {
            let value = by_links * *place + own(page);
            sums.change += (value - had(*before, *degree)).abs();
            sums.add(value, f64::from(*degree));
            *place = passed_on(value, *degree);
        }
    }
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
