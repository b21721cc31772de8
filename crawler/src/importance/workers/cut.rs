//! How pages are shared out: of each worker its slice, the pages of others that its rows need, and those of its own that others need.
//!
//! ```text
//! pages    0 ───────────────── 5 ────────────── 9            slices are ranges
//! told         1     3           5   6     8                 whose values somebody else needs, ascending
//! worker 0     0     1                         (told)        tells a range of `told`
//! worker 1                       2   3     4
//! needs of worker 0: 2 4     of worker 1: 0 1 3              places in `told`
//! ```

use std::ops::Range;

use super::message::{Page, Task, Totals};
use crate::importance::graph::Rows;

/// A page that no slice needs.
const NOWHERE: u32 = u32::MAX;

/// The slices of all workers. Needs no graph.
#[derive(Debug, PartialEq)]
pub(super) struct Cut {
    /// The pages of each slice.
    pub(super) slices: Vec<Range<usize>>,
    /// What each worker is to do.
    pub(super) tasks: Vec<Task>,
    /// The pages whose values somebody else needs, ascending.
    pub(super) told: Vec<u32>,
    /// Of each worker, where its pages lie in `told`.
    pub(super) tells: Vec<Range<usize>>,
    /// Of each worker, which of `told` it needs, ascending.
    needs: Vec<Vec<u32>>,
}

impl Cut {
    /// Cuts into about `workers` slices with as many links each; there may be fewer, never more, and none is empty.
    #[expect(clippy::indexing_slicing, reason = "rows name pages there are, and the tables have all pages")]
    pub(super) fn of(rows: &Rows, workers: usize) -> Cut {
        let slices = rows.parts(workers);
        let mut is_told = vec![false; rows.len()];
        let mut foreign: Vec<Vec<u32>> = Vec::with_capacity(slices.len());
        let (mut seen, mut links) = (vec![false; rows.len()], Vec::with_capacity(slices.len()));
        for slice in &slices {
            let (mut needed, mut count) = (Vec::new(), 0);
            rows.for_rows(slice.clone(), |_, sources| {
                count += sources.len() as u64;
                for source in sources.iter().filter(|source| !slice.contains(&(**source as usize))) {
                    if !std::mem::replace(&mut seen[*source as usize], true) {
                        needed.push(*source);
                    }
                }
            });
            needed.sort_unstable();
            for page in &needed {
                seen[*page as usize] = false;
                is_told[*page as usize] = true;
            }
            foreign.push(needed);
            links.push(count);
        }
        let told: Vec<u32> =
            (0u32..).zip(&is_told).filter(|(_, told)| **told).map(|(page, _)| page).collect();
        let place = |page: usize| told.partition_point(|told| (*told as usize) < page);
        let tells: Vec<Range<usize>> =
            slices.iter().map(|slice| place(slice.start)..place(slice.end)).collect();
        for page in foreign.iter_mut().flatten() {
            *page = place(*page as usize) as u32;
        }
        let tasks = (0..slices.len())
            .map(|worker| Task {
                pages: slices[worker].len() as u32,
                foreign: foreign[worker].len() as u32,
                tells: tells[worker].len() as u32,
                links: links[worker],
            })
            .collect();
        Cut { slices, tasks, told, tells, needs: foreign }
    }

    /// How many workers have something to do.
    pub(super) fn workers(&self) -> usize {
        self.slices.len()
    }

    /// Of all pages, the place that each has in the rows of a worker: its own first, then what it needs.
    #[expect(clippy::indexing_slicing, reason = "callers name workers there are; told pages are pages")]
    pub(super) fn places(&self, worker: usize, pages: usize) -> Vec<u32> {
        let mut places = vec![NOWHERE; pages];
        let slice = self.slices[worker].clone();
        let needed = self.needs[worker].iter().map(|at| self.told[*at as usize] as usize);
        for (place, page) in (0..).zip(slice.chain(needed)) {
            places[page] = place;
        }
        places
    }

    /// What the foreign pages of a worker pass on, of what all told pages do.
    pub(super) fn foreign(&self, worker: usize, passing: &[f64]) -> Vec<f64> {
        let value = |at: &u32| passing.get(*at as usize).copied().unwrap_or(0.0);
        self.needs.get(worker).map(|needs| needs.iter().map(value).collect()).unwrap_or_default()
    }

    /// What all told pages pass on at first, and what each slice adds up to.
    #[expect(clippy::indexing_slicing, reason = "there are as many pages as the rows had")]
    pub(super) fn first(&self, pages: &[Page]) -> (Vec<f64>, Vec<Totals>) {
        let passing = |page: &u32| pages[*page as usize].before * pages[*page as usize].value;
        let totals = |slice: &Range<usize>| {
            let mut totals = Totals::default();
            pages[slice.clone()].iter().for_each(|page| totals.add(page.linked, page.value, page.value));
            totals
        };
        (self.told.iter().map(passing).collect(), self.slices.iter().map(totals).collect())
    }
}
