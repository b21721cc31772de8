//! The runs of one state, and questions to them.

use std::sync::Arc;

use super::merge::{Merge, Source};
use super::run::UrlRun;
use super::{Change, Entry, UrlRow};
use crate::error::Result;
use crate::page::{PageKey, RepositoryKey};

/// A place in the index: behind the row of a page.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct UrlPlace {
    /// The row's SURT key.
    pub surt: String,
    /// The page's key.
    pub key: PageKey,
}

/// Which rows are asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UrlQuery {
    /// SURT keys from this one on.
    pub start: String,
    /// SURT keys below this one; `None` is no bound.
    pub end: Option<String>,
    /// From the last to the first.
    pub descending: bool,
    /// Only rows behind this place, in the direction asked for.
    pub after: Option<UrlPlace>,
}

/// The index of one state: its runs, oldest first. Cheap to clone; never changes.
#[derive(Clone, Debug)]
pub struct Urls {
    pub(super) runs: Vec<Arc<UrlRun>>,
    pub(super) repository: RepositoryKey,
}

impl Urls {
    /// An index of nothing.
    pub fn empty(repository: RepositoryKey) -> Urls {
        Urls { runs: Vec::new(), repository }
    }

    /// Its runs, oldest first.
    pub fn runs(&self) -> &[Arc<UrlRun>] {
        &self.runs
    }

    /// How many pages it has.
    pub fn pages(&self) -> u64 {
        self.runs.iter().map(|run| run.net()).sum::<i64>().max(0) as u64
    }

    /// What it occupies.
    pub fn disk_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.disk_bytes()).sum()
    }

    /// The rows asked for, in order.
    ///
    /// # Errors
    /// When a block is damaged or cannot be read; likewise below.
    pub fn query(&self, query: &UrlQuery) -> Result<UrlRows> {
        let mut sources: Vec<Box<dyn Source + Send>> = Vec::with_capacity(self.runs.len());
        let after = query.after.as_ref();
        for run in self.runs.iter().rev() {
            sources.push(match query.descending {
                false => {
                    let from =
                        after.map_or(query.start.as_str(), |after| after.surt.as_str().max(&query.start));
                    Box::new(run.ascend(from)?)
                }
                true => {
                    // Rows with the place's own SURT key may still come.
                    let behind = after.map(|after| format!("{}\0", after.surt));
                    let to = match (behind.as_deref(), query.end.as_deref()) {
                        (Some(behind), Some(end)) => Some(behind.min(end)),
                        (behind, end) => behind.or(end),
                    };
                    Box::new(run.descend(to)?)
                }
            });
        }
        let merge = Merge::new(sources, self.repository, query.descending);
        Ok(UrlRows { merge, query: query.clone(), repository: self.repository })
    }

    /// How many pages have a SURT key below this one.
    fn below(&self, surt: &str) -> Result<i64> {
        self.runs.iter().map(|run| run.net_below(surt)).sum()
    }

    /// How many pages there are from a SURT key on, below another. No more than two blocks of each run are read for it.
    ///
    /// # Errors
    /// As [`Urls::query`].
    pub fn count(&self, start: &str, end: Option<&str>) -> Result<u64> {
        let from = if start.is_empty() { 0 } else { self.below(start)? };
        let to = match end {
            Some(end) => self.below(end)?,
            None => self.runs.iter().map(|run| run.net()).sum(),
        };
        Ok((to - from).max(0) as u64)
    }

    /// The rows of a range behind its first `skip` ones, ascending. The place is found by halving, with a few blocks read
    /// at each step; what is skipped is not.
    ///
    /// # Errors
    /// As [`Urls::query`].
    pub fn skip(&self, start: &str, end: Option<&str>, skip: u64) -> Result<UrlRows> {
        let all = UrlQuery { start: start.to_owned(), end: end.map(str::to_owned), ..UrlQuery::default() };
        let Some(run) = self.runs.iter().max_by_key(|run| run.rows()) else { return self.query(&all) };
        let base = if start.is_empty() { 0 } else { self.below(start)? };
        let (mut low, mut high) =
            (run.blocks_below(start), end.map_or(run.blocks(), |end| run.blocks_below(end)));
        // The last block that begins not behind the wanted row; all before `low` begin so.
        let (mut from, mut left) = (start.to_owned(), skip);
        while low < high {
            let middle = low + (high - low) / 2;
            let separator = String::from_utf8_lossy(run.separator(middle)).into_owned();
            let before = (self.below(&separator)? - base).max(0) as u64;
            if before <= skip {
                (low, from, left) = (middle + 1, separator, skip - before);
            } else {
                high = middle;
            }
        }
        let mut rows = self.query(&UrlQuery { start: from, ..all })?;
        for _ in 0..left {
            if rows.next().transpose()?.is_none() {
                break;
            }
        }
        Ok(rows)
    }

    /// Reads everything, for damage.
    ///
    /// # Errors
    /// The first damage found.
    pub fn verify(&self) -> Result<()> {
        self.runs.iter().try_for_each(|run| run.verify())
    }

    /// What can be asked for single pages, in order of their places.
    pub(super) fn probe(&self) -> Probe<'_> {
        let runs = self.runs.iter().rev().map(|run| (run, None)).collect();
        Probe { runs, repository: &self.repository }
    }
}

/// Rows of the index, in order; those of pages that are gone are left out. An error ends them.
pub struct UrlRows {
    merge: Merge,
    query: UrlQuery,
    repository: RepositoryKey,
}

impl UrlRows {
    fn wanted(&self, row: &UrlRow) -> Option<bool> {
        let (surt, query) = (row.surt.as_str(), &self.query);
        let is_behind_end = match query.descending {
            false => query.end.as_deref().is_some_and(|end| surt >= end),
            true => surt < query.start.as_str(),
        };
        if is_behind_end {
            return None;
        }
        let is_before_start = match query.descending {
            false => surt < query.start.as_str(),
            true => query.end.as_deref().is_some_and(|end| surt >= end),
        };
        let Some(after) = &query.after else { return Some(!is_before_start) };
        let order = surt.cmp(&after.surt).then_with(|| row.key(&self.repository).cmp(&after.key));
        Some(!is_before_start && if query.descending { order.is_lt() } else { order.is_gt() })
    }

    fn find(&mut self) -> Result<Option<UrlRow>> {
        while let Some((Entry { row, change }, _)) = self.merge.next()? {
            match self.wanted(&row) {
                None => return Ok(None),
                Some(true) if change != Change::Gone => return Ok(Some(row)),
                Some(_) => {}
            }
        }
        Ok(None)
    }
}

impl Iterator for UrlRows {
    type Item = Result<UrlRow>;

    fn next(&mut self) -> Option<Result<UrlRow>> {
        self.find().transpose()
    }
}

/// A block of a run that was read: its number and entries.
type Block = (usize, Vec<Entry>);

/// Asks for single pages, in order of their places, so that each block is read once.
pub(super) struct Probe<'a> {
    /// Newest first; with the block that was read last.
    runs: Vec<(&'a Arc<UrlRun>, Option<Block>)>,
    repository: &'a RepositoryKey,
}

impl Probe<'_> {
    /// The row of a page.
    pub(super) fn find(&mut self, surt: &str, key: PageKey) -> Result<Option<UrlRow>> {
        for (run, read) in &mut self.runs {
            // Rows with one SURT key may reach over several blocks.
            let first = run.blocks_below(surt).saturating_sub(1);
            let last = run.blocks_below(&format!("{surt}\0"));
            for block in first..last {
                if read.as_ref().is_none_or(|(read, _)| *read != block) {
                    *read = Some((block, run.entries(block)?));
                }
                let Some((_, entries)) = read else { continue };
                let start = entries.partition_point(|entry| entry.row.surt.as_str() < surt);
                let same = entries.iter().skip(start).take_while(|entry| entry.row.surt == surt);
                for entry in same {
                    if entry.row.key(self.repository) == key {
                        return Ok((entry.change != Change::Gone).then(|| entry.row.clone()));
                    }
                }
            }
        }
        Ok(None)
    }
}
