//! A worker's slice: its rows, its values, and what pages of others pass on that its rows need. No I/O.
//!
//! ```text
//! passing   v·x of its own pages, in order │ of the foreign ones, as they last came
//! rows      places in `passing`
//! ```

use super::message::{Page, Sweep, Task, Totals, is_sound, take_piece};

/// Links of one slice, at most: 32 GiB of them.
const LINKS_MAX: u64 = 1 << 33;
/// A diagonal smaller than this is not divided by.
const DIAGONAL_MIN: f64 = 1.0 / 16.0;

/// Takes a slice in pieces: never more of anything than was announced.
pub(super) struct Loading {
    task: Task,
    /// Where each row ends.
    ends: Vec<usize>,
    sources: Vec<u32>,
    pages: Vec<Page>,
    tells: Vec<u32>,
}

/// The pages of a slice, checked.
pub(super) struct Slice {
    /// Where each row begins, and the last ends.
    begins: Vec<usize>,
    sources: Vec<u32>,
    /// Whether a page links to itself.
    to_self: Vec<bool>,
    pages: Vec<Page>,
    first: Vec<f64>,
    passing: Vec<f64>,
    tells: Vec<u32>,
}

impl Loading {
    pub(super) fn new(task: Task) -> Result<Loading, String> {
        if u64::from(task.pages) + u64::from(task.foreign) > u64::from(u32::MAX)
            || task.tells > task.pages
            || task.links > LINKS_MAX
        {
            return Err(format!("a slice that cannot be: {task:?}"));
        }
        Ok(Loading { task, ends: Vec::new(), sources: Vec::new(), pages: Vec::new(), tells: Vec::new() })
    }

    /// The next rows: how many links each has, and from where.
    pub(super) fn rows(&mut self, counts: &[u32], sources: Vec<u32>) -> Result<(), String> {
        let links: u64 = counts.iter().map(|count| u64::from(*count)).sum();
        if links != sources.len() as u64 || self.ends.len() + counts.len() > self.task.pages as usize {
            return Err(format!("{} rows of {links} links with {} links", counts.len(), sources.len()));
        }
        let mut end = self.sources.len();
        for count in counts {
            end += *count as usize;
            self.ends.push(end);
        }
        self.links(sources)
    }

    /// More links of the page that came last.
    pub(super) fn more(&mut self, sources: Vec<u32>) -> Result<(), String> {
        let Some(end) = self.ends.last_mut() else { return Err("links before any row".into()) };
        *end += sources.len();
        self.links(sources)
    }

    fn links(&mut self, sources: Vec<u32>) -> Result<(), String> {
        if sources.is_empty() {
            return Ok(());
        }
        take_piece(&mut self.sources, sources, self.task.links as usize)
    }

    pub(super) fn pages(&mut self, pages: Vec<Page>) -> Result<(), String> {
        take_piece(&mut self.pages, pages, self.task.pages as usize)
    }

    pub(super) fn tells(&mut self, tells: Vec<u32>) -> Result<(), String> {
        take_piece(&mut self.tells, tells, self.task.tells as usize)
    }

    /// The slice, if it is whole and names nothing that is not there.
    pub(super) fn finish(self) -> Result<Slice, String> {
        let Loading { task, ends, sources, pages, tells } = self;
        let own = task.pages as usize;
        let places = own + task.foreign as usize;
        if (ends.len(), pages.len()) != (own, own)
            || (sources.len() as u64, tells.len()) != (task.links, task.tells as usize)
        {
            return Err("less has come than was announced".into());
        }
        if sources.iter().any(|source| *source as usize >= places)
            || tells.iter().any(|place| *place as usize >= own)
        {
            return Err("a place beyond the last page".into());
        }
        let sound = |page: &Page| [page.before, page.after, page.own, page.value].into_iter().all(is_sound);
        if !pages.iter().all(sound) {
            return Err("a page with a value that is no finite number ≥ 0".into());
        }
        let begins: Vec<usize> = std::iter::once(0).chain(ends).collect();
        let to_self = (0..own)
            .map(|page| {
                let (from, to) = (begins.get(page).copied(), begins.get(page + 1).copied());
                let row = sources.get(from.unwrap_or(0)..to.unwrap_or(0)).unwrap_or_default();
                row.contains(&(page as u32))
            })
            .collect();
        let first: Vec<f64> = pages.iter().map(|page| page.value).collect();
        let mut slice = Slice { begins, sources, to_self, pages, first, passing: vec![0.0; places], tells };
        slice.restart();
        Ok(slice)
    }
}

impl Slice {
    /// What each page has.
    pub(super) fn values(&self) -> impl Iterator<Item = f64> + '_ {
        self.pages.iter().map(|page| page.value)
    }

    /// What those pages pass on that others need.
    pub(super) fn told(&self) -> impl Iterator<Item = f64> + '_ {
        self.tells.iter().map(|place| self.passing.get(*place as usize).copied().unwrap_or(0.0))
    }

    /// How many values of others there must be.
    pub(super) fn foreign(&self) -> usize {
        self.passing.len() - self.pages.len()
    }

    /// Back to the first values.
    pub(super) fn restart(&mut self) {
        for ((page, passing), first) in self.pages.iter_mut().zip(&mut self.passing).zip(&self.first) {
            page.value = *first;
            *passing = page.before * page.value;
        }
    }

    /// Computes all pages once, from what foreign ones pass on now.
    pub(super) fn sweep(&mut self, sweep: Sweep, foreign: &[f64]) -> Result<Totals, String> {
        if !is_sound(sweep.by_links) || !is_sound(sweep.by_own) {
            return Err(format!("factors that cannot be: {sweep:?}"));
        }
        match self.passing.get_mut(self.pages.len()..) {
            Some(own) if own.len() == foreign.len() => own.copy_from_slice(foreign),
            _ => return Err(format!("{} values of others, expected {}", foreign.len(), self.foreign())),
        }
        Ok(if sweep.newest { self.by_newest(sweep) } else { self.by_last(sweep) })
    }

    /// All pages from the values before the sweep.
    #[expect(
        clippy::indexing_slicing,
        reason = "rows were checked when they came: they name places there are"
    )]
    fn by_last(&mut self, Sweep { by_links, by_own, .. }: Sweep) -> Totals {
        let mut totals = Totals::default();
        let mut next = Vec::with_capacity(self.pages.len());
        for (at, page) in self.pages.iter_mut().enumerate() {
            let mut got = 0.0;
            for source in &self.sources[self.begins[at]..self.begins[at + 1]] {
                got += self.passing[*source as usize];
            }
            let value = by_links * page.after * got + by_own * page.own;
            totals.add(page.linked, page.value, value);
            page.value = value;
            next.push(page.before * value);
        }
        self.passing[..next.len()].copy_from_slice(&next);
        totals
    }

    /// Each page from the newest values; a link to oneself is solved for, where that can be divided by.
    #[expect(
        clippy::indexing_slicing,
        reason = "rows were checked when they came: they name places there are"
    )]
    fn by_newest(&mut self, Sweep { by_links, by_own, .. }: Sweep) -> Totals {
        let mut totals = Totals::default();
        for (at, page) in self.pages.iter_mut().enumerate() {
            let mut got = 0.0;
            for source in &self.sources[self.begins[at]..self.begins[at + 1]] {
                got += self.passing[*source as usize];
            }
            let (by, mut diagonal) = (by_links * page.after, 1.0);
            if self.to_self[at] && 1.0 - by * page.before > DIAGONAL_MIN {
                got -= self.passing[at];
                diagonal -= by * page.before;
            }
            // What was taken off may have been the whole, up to its last bit.
            let value = (by * got.max(0.0) + by_own * page.own) / diagonal;
            totals.add(page.linked, page.value, value);
            page.value = value;
            self.passing[at] = page.before * value;
        }
        totals
    }
}
