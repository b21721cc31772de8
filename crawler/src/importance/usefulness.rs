//! Usefulness: how much of interest a page leads to.
//!
//! J = c·W·J + (1−c)·E'. The formula of the papers averages over a page's links; their pseudo-code divides by the links of
//! the page linked to, and reverse PageRank by how many link to it. No r: what leads nowhere has nothing to pass back.
//!
//! W's rows (or, in the variants, columns) add up to 1 at most, so that a round brings the largest error (or their sum)
//! down by c. Both norms decide when to stop.

use super::graph::{Graph, share};
use super::power::gather;
use super::{ImportanceError, Method, Settings, Solution, personalisation};

/// Which W.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Usefulness {
    /// The papers' formula, the transposed matrix: W_ij = 1/outdeg(i).
    #[default]
    Average,
    /// The papers' pseudo-code: W_ij = 1/outdeg(j), and 0 where j has no links.
    PseudoCode,
    /// PageRank over the links turned round: W_ij = 1/indeg(j).
    ReversePageRank,
}

/// Which pages are of interest: the papers' XML pages, or any other domain.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Interest {
    words: Vec<u64>,
}

impl Interest {
    /// The pages of `0..pages` that `of` likes.
    pub fn of(pages: usize, mut of: impl FnMut(u32) -> bool) -> Self {
        let mut words = vec![0u64; pages.div_ceil(64)];
        for (word, first) in words.iter_mut().zip((0u64..).step_by(64)) {
            for bit in 0..64.min(pages as u64 - first) {
                if of((first + bit) as u32) {
                    *word |= 1 << bit;
                }
            }
        }
        Self { words }
    }

    /// Whether `page` is of interest.
    #[must_use]
    pub fn has(&self, page: usize) -> bool {
        self.words.get(page / 64).is_some_and(|word| word >> (page % 64) & 1 == 1)
    }
}

/// What a page's value is multiplied by before, and the sum over a page's links after.
pub(super) struct Weights {
    pub(super) before: Vec<f64>,
    pub(super) after: Vec<f64>,
}

impl Weights {
    pub(super) fn of(graph: &Graph, kind: Usefulness) -> Self {
        let ones = || vec![1.0; graph.pages()];
        match kind {
            Usefulness::Average => Self { before: ones(), after: graph.shares() },
            Usefulness::PseudoCode => Self { before: graph.shares(), after: ones() },
            Usefulness::ReversePageRank => {
                let before = (0..graph.pages()).map(|page| share(graph.into().degree(page))).collect();
                Self { before, after: ones() }
            }
        }
    }
}

/// What a round changed, of what there is, in the sum and in the largest.
#[derive(Clone, Copy, Default)]
pub(super) struct Change {
    sum: f64,
    changed: f64,
    largest: f64,
    changed_most: f64,
}

impl Change {
    pub(super) fn add(&mut self, old: f64, new: f64) {
        let changed = (new - old).abs();
        self.sum += new;
        self.changed += changed;
        self.largest = self.largest.max(new);
        self.changed_most = self.changed_most.max(changed);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.sum += other.sum;
        self.changed += other.changed;
        self.largest = self.largest.max(other.largest);
        self.changed_most = self.changed_most.max(other.changed_most);
    }

    /// The larger of both parts; 0 where there is nothing and nothing changed.
    pub(super) fn relative(&self) -> f64 {
        let part = |changed: f64, of: f64| if changed == 0.0 { 0.0 } else { changed / of };
        part(self.changed, self.sum).max(part(self.changed_most, self.largest))
    }
}

/// The usefulness of every page. `start` is the last result, where there is one.
///
/// [`Method::Power`] and [`Method::Slices`] take all values from the round before, the others the newest there are.
///
/// # Errors
/// When a setting is out of its range, or a vector has a wrong length or a value that is no finite number ≥ 0.
#[expect(
    clippy::indexing_slicing,
    reason = "rows name pages there are; all vectors are as long as there are pages"
)]
pub fn usefulness(
    graph: &Graph,
    importance: &[f64],
    interest: &Interest,
    kind: Usefulness,
    start: Option<&[f64]>,
    method: Method,
    settings: &Settings,
) -> Result<Solution, ImportanceError> {
    settings.check()?;
    let pages = graph.pages();
    personalisation::check_len("importance", importance.len(), pages)?;
    personalisation::check_values("importance", importance)?;
    let c = settings.damping;
    let wanted = |page: usize| if interest.has(page) { (1.0 - c) * importance[page] } else { 0.0 };
    let mut values = match start {
        Some(start) => {
            personalisation::check_len("start", start.len(), pages)?;
            personalisation::check_values("start", start)?;
            start.to_vec()
        }
        None => (0..pages).map(wanted).collect(),
    };
    if (0..pages).all(|page| wanted(page) == 0.0) {
        return Ok(Solution { values: vec![0.0; pages], ..Solution::empty() });
    }
    let weights = Weights::of(graph, kind);
    let mut passing: Vec<f64> = values.iter().zip(&weights.before).map(|(value, by)| value * by).collect();
    let mut solution = Solution { change: f64::INFINITY, converged: false, ..Solution::empty() };
    let mut next = vec![0.0; if matches!(method, Method::GaussSeidel) { 0 } else { pages }];
    let slices = match method {
        Method::GaussSeidelSlices(slices) => slices.max(1),
        _ => 1,
    };
    while solution.rounds < settings.rounds_max && !solution.converged {
        let mut change = Change::default();
        if matches!(method, Method::GaussSeidel) {
            graph.out().for_rows(0..pages, |page, targets| {
                let mut got = gather(&passing, targets);
                let mut diagonal = 1.0;
                if targets.binary_search(&(page as u32)).is_ok() {
                    got -= passing[page];
                    diagonal -= c * weights.after[page] * weights.before[page];
                }
                let value = (c * weights.after[page] * got + wanted(page)) / diagonal;
                change.add(values[page], value);
                values[page] = value;
                passing[page] = value * weights.before[page];
            });
        } else {
            for part in graph.out().parts(slices) {
                graph.out().for_rows(part.clone(), |page, targets| {
                    next[page] = c * weights.after[page] * gather(&passing, targets) + wanted(page);
                });
                for page in part {
                    change.add(values[page], next[page]);
                    values[page] = next[page];
                    passing[page] = next[page] * weights.before[page];
                }
            }
        }
        solution.rounds += 1;
        solution.change = change.relative();
        solution.converged = solution.change < settings.change_max();
    }
    solution.values = values;
    Ok(solution)
}
