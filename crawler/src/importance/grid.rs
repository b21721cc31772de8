//! Links in memory as a two-dimensional grid of blocks, which serves both directions.
//!
//! Cell (a, b) has the links from pages of block a to pages of block b. Importance slices its targets, usefulness its
//! sources; going through the cells, either or both touch only two blocks of each vector at a time, whatever the number of
//! pages. 4 bytes a link, as with rows.

use std::ops::Range;

use super::graph::{Graph, share};
use super::kernel::{BLOCK, both_ways, forward, padded};
use super::power::Sums;
use super::usefulness::Change;
use super::{ImportanceError, Interest, Personalisation, Settings, Solution, Usefulness, personalisation};

/// The links of a graph in cells.
#[derive(Debug, Clone, Default)]
pub struct Grid {
    pages: usize,
    blocks: usize,
    /// Where each cell begins in `positions`, row after row.
    begins: Vec<u64>,
    positions: Vec<u32>,
    /// Of each page the inverse of its number of links, padded to blocks.
    shares: Vec<f64>,
    /// Of each page the inverse of the number of pages that link to it, padded.
    shares_into: Vec<f64>,
}

impl Grid {
    /// The same links in cells.
    #[must_use]
    #[expect(clippy::indexing_slicing, reason = "blocks are counted from the pages that the rows name")]
    pub fn of(graph: &Graph) -> Self {
        let pages = graph.pages();
        let blocks = pages.div_ceil(BLOCK);
        let mut begins = vec![0u64; blocks * blocks + 1];
        let mut positions = vec![0u32; graph.links()];
        let mut filled = 0;
        for a in 0..blocks {
            let rows = a * BLOCK..pages.min((a + 1) * BLOCK);
            let mut next = vec![0usize; blocks];
            graph.out().for_rows(rows.clone(), |_, targets| {
                targets.iter().for_each(|target| next[*target as usize / BLOCK] += 1);
            });
            for (b, count) in next.iter_mut().enumerate() {
                let begin = filled;
                filled += *count;
                *count = begin;
                begins[a * blocks + b + 1] = filled as u64;
            }
            graph.out().for_rows(rows, |source, targets| {
                for target in targets {
                    let place = &mut next[*target as usize / BLOCK];
                    positions[*place] = ((source % BLOCK) as u32) << 16 | (target % BLOCK as u32);
                    *place += 1;
                }
            });
        }
        let into = (0..pages).map(|page| share(graph.into().degree(page))).collect();
        Self { pages, blocks, begins, positions, shares: padded(graph.shares()), shares_into: padded(into) }
    }

    /// How many pages there are.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// How many links there are.
    #[must_use]
    pub fn links(&self) -> usize {
        self.positions.len()
    }

    #[expect(clippy::indexing_slicing, reason = "callers pass blocks there are")]
    fn cell(&self, a: usize, b: usize) -> &[u32] {
        let cell = a * self.blocks + b;
        &self.positions[self.begins[cell] as usize..self.begins[cell + 1] as usize]
    }

    /// What the pages of the blocks `columns` get when every page passes on what `passing` says.
    #[expect(clippy::indexing_slicing, reason = "all vectors are padded to the grid's blocks")]
    fn forward(&self, columns: Range<usize>, passing: &[f64], got: &mut [f64]) {
        let (passing, got) = (passing.as_chunks::<BLOCK>().0, got.as_chunks_mut::<BLOCK>().0);
        for (a, passing) in passing.iter().enumerate() {
            for b in columns.clone() {
                forward(self.cell(a, b), passing, &mut got[b]);
            }
        }
    }

    /// As [`Grid::forward`] over all columns, and in the same scan what pages get back when every page has what `has` says.
    #[expect(clippy::indexing_slicing, reason = "all vectors are padded to the grid's blocks")]
    fn both_ways(&self, passing: &[f64], got: &mut [f64], has: &[f64], got_back: &mut [f64]) {
        let (passing, got) = (passing.as_chunks::<BLOCK>().0, got.as_chunks_mut::<BLOCK>().0);
        let (has, got_back) = (has.as_chunks::<BLOCK>().0, got_back.as_chunks_mut::<BLOCK>().0);
        for a in 0..self.blocks {
            for b in 0..self.blocks {
                both_ways(self.cell(a, b), (&passing[a], &mut got_back[a]), (&has[b], &mut got[b]));
            }
        }
    }
}

/// Importance while it is computed on a grid: vectors padded to blocks.
struct Forward<'a> {
    grid: &'a Grid,
    e: &'a Personalisation,
    settings: &'a Settings,
    values: Vec<f64>,
    passing: Vec<f64>,
    got: Vec<f64>,
    sums: Sums,
}

impl<'a> Forward<'a> {
    fn new(grid: &'a Grid, e: &'a Personalisation, start: Vec<f64>, settings: &'a Settings) -> Self {
        let values = padded(start);
        let passing: Vec<f64> = values.iter().zip(&grid.shares).map(|(value, share)| value * share).collect();
        let sums = Sums::of(&values, &grid.shares);
        let got = vec![0.0; values.len()];
        Self { grid, e, settings, values, passing, got, sums }
    }

    /// Ends a round: from what was got to the new values. Says what changed.
    fn take(&mut self) -> f64 {
        let (by_links, by_e) = self.sums.factors(self.settings);
        let mut sums = Sums::default();
        let vectors = self.values.iter_mut().zip(&mut self.passing).zip(&mut self.got).zip(&self.grid.shares);
        for (page, (((value, passing), got), share)) in vectors.take(self.grid.pages).enumerate() {
            let new = by_links * *got + by_e * self.e.share(page);
            sums.change += (new - *value).abs();
            sums.add(new, *share);
            (*value, *passing, *got) = (new, new * share, 0.0);
        }
        self.sums = sums;
        sums.change
    }
}

/// The papers' slices: targets slice by slice, sources in order.
pub(super) fn solve_slices(
    grid: &Grid,
    e: &Personalisation,
    start: Vec<f64>,
    slices: usize,
    settings: &Settings,
    progress: &mut dyn FnMut(u32, f64),
) -> Solution {
    let slice = grid.blocks.div_ceil(slices.max(1)).max(1);
    let mut forward = Forward::new(grid, e, start, settings);
    let mut solution = Solution { change: f64::INFINITY, converged: false, ..Solution::empty() };
    while solution.rounds < settings.rounds_max && !solution.converged {
        for first in (0..grid.blocks).step_by(slice) {
            grid.forward(first..grid.blocks.min(first + slice), &forward.passing, &mut forward.got);
        }
        solution.change = forward.take();
        solution.rounds += 1;
        solution.converged = solution.change < settings.change_max();
        progress(solution.rounds, solution.change);
    }
    forward.values.truncate(grid.pages);
    solution.values = forward.values;
    solution
}

/// Importance and usefulness.
#[derive(Debug, Clone, PartialEq)]
pub struct Both {
    /// Importance.
    pub importance: Solution,
    /// Usefulness.
    pub usefulness: Solution,
}

/// Importance and usefulness, a round of each in one scan of the links: usefulness uses the importance there is so far. `start`
/// is the last result of each.
///
/// # Errors
/// When a setting is out of its range, or a vector has a wrong length or a value that is no finite number ≥ 0.
#[expect(clippy::indexing_slicing, reason = "all vectors are padded to the grid's blocks")]
pub fn both(
    grid: &Grid,
    e: &Personalisation,
    interest: &Interest,
    kind: Usefulness,
    start: Option<(&[f64], &[f64])>,
    settings: &Settings,
) -> Result<Both, ImportanceError> {
    settings.check()?;
    let (pages, c) = (grid.pages, settings.damping);
    e.check_len(pages)?;
    let (importance, useful) = match start {
        Some((importance, useful)) => {
            personalisation::check_len("start", useful.len(), pages)?;
            personalisation::check_values("start", useful)?;
            (personalisation::normalised("start", importance, pages)?, useful.to_vec())
        }
        None => {
            let importance = e.to_vec();
            let interesting = |(page, value): (usize, &f64)| if interest.has(page) { *value } else { 0.0 };
            let useful = importance.iter().enumerate().map(interesting).collect();
            (importance, useful)
        }
    };
    if pages == 0 {
        return Ok(Both { importance: Solution::empty(), usefulness: Solution::empty() });
    }
    let mut useful = padded(useful);
    if (0..pages).all(|page| !interest.has(page)) {
        useful.fill(0.0);
    }
    let ones = vec![1.0; grid.shares.len()];
    let (before, after) = match kind {
        Usefulness::Average => (&ones, &grid.shares),
        Usefulness::PseudoCode => (&grid.shares, &ones),
        Usefulness::ReversePageRank => (&grid.shares_into, &ones),
    };
    let mut forward = Forward::new(grid, e, importance, settings);
    let mut has: Vec<f64> = useful.iter().zip(before).map(|(value, by)| value * by).collect();
    let mut got_back = vec![0.0; useful.len()];
    let (mut rounds, mut change, mut change_useful) = (0, f64::INFINITY, f64::INFINITY);
    let mut settled = (0, 0);
    while rounds < settings.rounds_max && change.max(change_useful) >= settings.change_max() {
        grid.both_ways(&forward.passing, &mut forward.got, &has, &mut got_back);
        change = forward.take();
        let mut changed = Change::default();
        for page in 0..pages {
            let wanted = if interest.has(page) { (1.0 - c) * forward.values[page] } else { 0.0 };
            let value = c * after[page] * got_back[page] + wanted;
            changed.add(useful[page], value);
            (useful[page], has[page], got_back[page]) = (value, value * before[page], 0.0);
        }
        change_useful = changed.relative();
        rounds += 1;
        if change >= settings.change_max() {
            settled.0 = rounds;
        }
        if change_useful >= settings.change_max() {
            settled.1 = rounds;
        }
    }
    forward.values.truncate(pages);
    useful.truncate(pages);
    let solution = |values, change, settled: u32| Solution {
        values,
        rounds: rounds.min(settled + 1),
        change,
        converged: change < settings.change_max(),
    };
    Ok(Both {
        importance: solution(forward.values, change, settled.0),
        usefulness: solution(useful, change_useful, settled.1),
    })
}
