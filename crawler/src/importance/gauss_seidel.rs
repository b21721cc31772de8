//! Gauss–Seidel for importance: each page, or each slice of pages, from the newest values of the others.
//!
//! A naive r inside the sweep need not converge. The linear form does: with λ = 1/r the fixed point is (λ − c·M)·I =
//! (1−c)·E·|I|₁, of which each sweep solves row by row for I_i, a link to oneself on the diagonal:
//!
//! ```text
//! I_i = (c·Σ_{j≠i} M_ij·I_j + (1−c)·E_i·|I|₁) / (λ − c·M_ii)        λ = c·Σ_{j has links} I_j/|I|₁ + (1−c)
//! ```
//!
//! λ is an estimate until the end, and may be below c·M_ii at first; such a page takes its own last value instead, as any
//! other's. λ and |I|₁ stay as they are during a sweep; where changes don't get smaller from sweep to sweep, λ follows its estimate more
//! slowly. Should even that not settle in twice the rounds that power iteration needs, power iteration goes on from there. It begins
//! anew where values grow without bound: along a chain of pages in the order of the sweep, among many without links, λ is far below c at
//! first, and each page of the chain gets c/λ times what the one before has. Where what pages without links have is spread
//! ([`FixedPoint::Spread`]), the vector is that of λ = 1, scaled to 1 at the end.

use super::graph::Graph;
use super::power::{self, Sums, gather};
use super::{FixedPoint, Personalisation, Settings, Solution};

/// A diagonal smaller than this part of λ is not divided by.
const DIAGONAL_MIN: f64 = 1.0 / 16.0;
/// λ follows its estimate at least so far.
const FOLLOWS_MIN: f64 = 1.0 / 64.0;

pub(super) fn solve(
    graph: &Graph,
    e: &Personalisation,
    values: Vec<f64>,
    slices: Option<usize>,
    settings: &Settings,
    progress: &mut dyn FnMut(u32, f64),
) -> Solution {
    let start = values.clone();
    let mut sweep = Sweep::new(graph, e, values, settings);
    let mut solution = Solution { values: Vec::new(), rounds: 0, change: f64::INFINITY, converged: false };
    let patience = 2.0 * settings.change_max().ln() / settings.damping.ln();
    while solution.rounds < settings.rounds_max && !solution.converged {
        let grown = !(sweep.sums.linked + sweep.sums.dangling).is_finite();
        if f64::from(solution.rounds) > patience || grown {
            let sum: f64 = sweep.values.iter().sum();
            let values = if grown { start } else { sweep.values.iter().map(|value| value / sum).collect() };
            let before = solution.rounds;
            let settings = Settings { rounds_max: settings.rounds_max - before, ..*settings };
            let rest = power::solve(graph, e, values, &settings, &mut |round, change| {
                progress(before + round, change)
            });
            return Solution { rounds: before + rest.rounds, ..rest };
        }
        solution.change = match slices {
            None => sweep.by_page(),
            Some(slices) => sweep.by_slice(slices),
        };
        solution.rounds += 1;
        solution.converged = solution.change < settings.change_max();
        progress(solution.rounds, solution.change);
    }
    let sum: f64 = sweep.values.iter().sum();
    solution.values = sweep.values.iter().map(|value| value / sum).collect();
    solution
}

struct Sweep<'a> {
    graph: &'a Graph,
    e: &'a Personalisation,
    settings: &'a Settings,
    shares: Vec<f64>,
    /// M_ii.
    to_self: Vec<bool>,
    values: Vec<f64>,
    passing: Vec<f64>,
    sums: Sums,
    lambda: Option<f64>,
    /// How far λ goes to its estimate.
    follows: f64,
    last_change: f64,
}

impl<'a> Sweep<'a> {
    fn new(graph: &'a Graph, e: &'a Personalisation, mut values: Vec<f64>, settings: &'a Settings) -> Self {
        let shares = graph.shares();
        if settings.fixed_point == FixedPoint::Spread {
            // A vector that adds up to 1 is this multiple of the one with λ = 1.
            let c = settings.damping;
            let by = (1.0 - c) / (1.0 - c * Sums::of(&values, &shares).linked);
            values.iter_mut().for_each(|value| *value *= by);
        }
        let passing = values.iter().zip(&shares).map(|(value, share)| value * share).collect();
        let to_self = (0..graph.pages())
            .map(|page| graph.out().row(page).binary_search(&(page as u32)).is_ok())
            .collect();
        let sums = Sums::of(&values, &shares);
        let (lambda, follows, last_change) = (None, 1.0, f64::INFINITY);
        Self { graph, e, settings, shares, to_self, values, passing, sums, lambda, follows, last_change }
    }

    /// λ, and the factor of E.
    fn factors(&mut self) -> (f64, f64) {
        let c = self.settings.damping;
        let norm = self.sums.linked + self.sums.dangling;
        match self.settings.fixed_point {
            FixedPoint::Renormalised => {
                let estimate = c * self.sums.linked / norm + (1.0 - c);
                let before = self.lambda.unwrap_or(estimate);
                let lambda = before + self.follows * (estimate - before);
                self.lambda = Some(lambda);
                (lambda, (1.0 - c) * norm)
            }
            FixedPoint::Spread => (1.0, 1.0 - c),
        }
    }

    /// Every page in order; says what that changed, of a vector that adds up to 1.
    #[expect(clippy::indexing_slicing, reason = "rows name pages there are")]
    fn by_page(&mut self) -> f64 {
        let c = self.settings.damping;
        let (lambda, by_e) = self.factors();
        let mut sums = Sums::default();
        self.graph.into().for_rows(0..self.graph.pages(), |page, sources| {
            let mut got = gather(&self.passing, sources);
            let mut diagonal = lambda;
            let solved = lambda - c * self.shares[page];
            if self.to_self[page] && solved > lambda * DIAGONAL_MIN {
                got -= self.passing[page];
                diagonal = solved;
            }
            let value = (c * got + by_e * self.e.share(page)) / diagonal;
            sums.change += (value - self.values[page]).abs();
            sums.add(value, self.shares[page]);
            self.values[page] = value;
            self.passing[page] = value * self.shares[page];
        });
        self.take(sums)
    }

    /// Slice by slice; within a slice from the values before it.
    #[expect(clippy::indexing_slicing, reason = "rows name pages there are; parts are ranges of pages")]
    fn by_slice(&mut self, slices: usize) -> f64 {
        let c = self.settings.damping;
        let (lambda, by_e) = self.factors();
        let mut sums = Sums::default();
        let mut new = Vec::new();
        for pages in self.graph.into().parts(slices) {
            new.clear();
            self.graph.into().for_rows(pages.clone(), |page, sources| {
                new.push((c * gather(&self.passing, sources) + by_e * self.e.share(page)) / lambda);
            });
            for (page, value) in pages.zip(new.iter().copied()) {
                sums.change += (value - self.values[page]).abs();
                sums.add(value, self.shares[page]);
                self.values[page] = value;
                self.passing[page] = value * self.shares[page];
            }
        }
        self.take(sums)
    }

    fn take(&mut self, sums: Sums) -> f64 {
        self.sums = sums;
        let change = sums.change / (sums.linked + sums.dangling);
        if change >= self.last_change {
            self.follows = (self.follows / 2.0).max(FOLLOWS_MIN);
        }
        self.last_change = change;
        change
    }
}
