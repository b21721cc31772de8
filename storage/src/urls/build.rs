//! Making a run: rows in any order become sorted rows, past a budget by way of runs of their own, and are settled against
//! what the older runs have.

use std::sync::Arc;

use rayon::prelude::*;

use super::files::UrlFiles;
use super::merge::{Merge, Source, Waiting};
use super::run::UrlRun;
use super::set::Urls;
use super::{Change, Entry, UrlRow};
use crate::error::Result;
use crate::page::PageKey;

/// A run is merged with the one before it when that has not more than so many times its rows. So there are few runs, and a
/// row is written again about once for each time that the index grows so much.
const RATIO: u64 = 4;
/// Rows that are written at once.
const WRITTEN_ROWS: usize = 4096;

/// Collects what changed from one state to the next, in any order. Of several things said of a page the last one counts.
pub struct UrlBuilder {
    files: Arc<UrlFiles>,
    budget_bytes: usize,
    rows: Vec<(PageKey, Entry)>,
    bytes: usize,
    /// Sorted runs of what did not fit the budget, oldest first.
    spilled: Vec<Arc<UrlRun>>,
}

impl UrlBuilder {
    pub(super) fn new(files: Arc<UrlFiles>, budget_bytes: usize) -> UrlBuilder {
        UrlBuilder { files, budget_bytes, rows: Vec::new(), bytes: 0, spilled: Vec::new() }
    }

    /// A page that is there from now on.
    ///
    /// # Errors
    /// When a part has to be written, and that fails.
    pub fn add(&mut self, key: PageKey, row: UrlRow) -> Result<()> {
        self.push(key, Entry { row, change: Change::New })
    }

    /// A page that is not there any more, by any of its URLs.
    ///
    /// # Errors
    /// As [`UrlBuilder::add`], and when it is no URL.
    pub fn remove(&mut self, key: PageKey, url: &str) -> Result<()> {
        self.push(key, Entry { row: UrlRow::names(url, key)?, change: Change::Gone })
    }

    fn push(&mut self, key: PageKey, entry: Entry) -> Result<()> {
        self.bytes += entry.row.memory_bytes();
        self.rows.push((key, entry));
        if self.bytes >= self.budget_bytes { self.spill() } else { Ok(()) }
    }

    /// What waits in memory, sorted, the last thing said of each page.
    fn sorted(&mut self) -> Vec<Entry> {
        let mut rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        // Rows are large: their numbers are sorted, with the first bytes of their SURT keys, which decide most of the time.
        let start = |(_, entry): &(PageKey, Entry)| {
            let (mut bytes, surt) = ([0; 24], entry.row.surt.as_bytes());
            bytes.iter_mut().zip(surt).for_each(|(to, from)| *to = *from);
            bytes
        };
        let mut order: Vec<([u8; 24], usize)> = rows.iter().map(start).zip(0..).collect();
        let place = |at: usize| rows.get(at).map(|(key, entry)| (entry.row.surt.as_str(), *key));
        order.par_sort_unstable_by(|(a_start, a), (b_start, b)| {
            a_start.cmp(b_start).then_with(|| place(*a).cmp(&place(*b))).then(b.cmp(a))
        });
        order.dedup_by(|(_, later), (_, first)| place(*later) == place(*first));
        let mut sorted = Vec::with_capacity(order.len());
        for (_, at) in order {
            if let Some((_, entry)) = rows.get_mut(at) {
                let blank = Entry { row: UrlRow::default(), change: Change::Gone };
                sorted.push(std::mem::replace(entry, blank));
            }
        }
        sorted
    }

    /// Writes what waits, as two runs at once: one of the first half, one of the other.
    fn spill(&mut self) -> Result<()> {
        let mut first = self.sorted();
        let second = first.split_off(first.len() / 2);
        let write = |entries: Vec<Entry>| {
            let mut writer = self.files.writer()?;
            entries.iter().try_for_each(|entry| writer.push(entry))?;
            writer.end().map(Arc::new)
        };
        let (first, second) = rayon::join(|| write(first), || write(second));
        self.spilled.extend([first?, second?]);
        Ok(())
    }

    /// Makes the index of the new state: that of `base` with these changes. Where `base` has a newer version of a page, that
    /// stays; `tied` is asked for the row of a page whose versions cannot be told apart by their rows. With `None` whatever was
    /// added counts.
    ///
    /// Nothing is durable under a number before [`UrlFiles::save`].
    ///
    /// # Errors
    /// When something cannot be read or written, or `base` is damaged.
    pub fn finish(mut self, base: &Urls, mut tied: Option<Tied<'_>>) -> Result<Urls> {
        let mut sources: Vec<Box<dyn Source + Send>> = vec![Box::new(Waiting::new(self.sorted()))];
        for run in self.spilled.iter().rev() {
            sources.push(Box::new(run.ascend("")?));
        }
        let mut changes = Merge::new(sources, base.repository, false);
        let mut probe = base.probe();
        let written = self.write(|| {
            while let Some((entry, _)) = changes.next()? {
                let settled = if !base.runs.is_empty() {
                    let key = entry.row.key(&base.repository);
                    let old = probe.find(&entry.row.surt, key)?;
                    settle(key, entry, old, &mut tied)?
                } else {
                    Some(entry).filter(|entry| entry.change != Change::Gone)
                };
                if settled.is_some() {
                    return Ok(settled);
                }
            }
            Ok(None)
        });
        let mut runs = base.runs.clone();
        runs.extend(written?);
        let runs = self.tidy(runs, base)?;
        self.files.sync()?;
        Ok(Urls { runs, repository: base.repository })
    }

    /// Makes one run of the newest ones, as long as they are of like size.
    fn tidy(&self, mut runs: Vec<Arc<UrlRun>>, base: &Urls) -> Result<Vec<Arc<UrlRun>>> {
        let mut first = runs.len().saturating_sub(1);
        let mut rows = runs.last().map_or(0, |run| run.rows());
        while let Some(before) = first.checked_sub(1).and_then(|at| runs.get(at)) {
            if before.rows() > RATIO * rows {
                break;
            }
            rows += before.rows();
            first -= 1;
        }
        if runs.len() - first < 2 {
            return Ok(runs);
        }
        let alike = runs.split_off(first);
        let mut sources: Vec<Box<dyn Source + Send>> = Vec::with_capacity(alike.len());
        for run in alike.iter().rev() {
            sources.push(Box::new(run.ascend("")?));
        }
        let mut merge = Merge::new(sources, base.repository, false);
        let written = self.write(|| {
            while let Some((mut entry, sum)) = merge.next()? {
                entry.change = match (entry.change, sum) {
                    // It came and went within these runs.
                    (Change::Gone, 0..) => continue,
                    (Change::Gone, _) => Change::Gone,
                    (_, 1..) => Change::New,
                    (_, _) => Change::Replaces,
                };
                return Ok(Some(entry));
            }
            Ok(None)
        });
        runs.extend(written?);
        Ok(runs)
    }

    /// Writes a run of the rows that `next` tells, if there are any. While some are written the next ones are found.
    fn write(&self, mut next: impl FnMut() -> Result<Option<Entry>> + Send) -> Result<Option<Arc<UrlRun>>> {
        let mut some = || -> Result<Vec<Entry>> {
            let mut rows = Vec::with_capacity(WRITTEN_ROWS);
            while rows.len() < WRITTEN_ROWS
                && let Some(entry) = next()?
            {
                rows.push(entry);
            }
            Ok(rows)
        };
        let mut rows = some()?;
        if rows.is_empty() {
            return Ok(None);
        }
        let mut writer = self.files.writer()?;
        while !rows.is_empty() {
            let writing = || rows.iter().try_for_each(|entry| writer.push(entry));
            let (written, found) = rayon::join(writing, &mut some);
            written?;
            rows = found?;
        }
        writer.finish().map(|run| Some(Arc::new(run)))
    }
}

/// Tells the row of a page as the store has it.
pub type Tied<'a> = &'a mut (dyn FnMut(PageKey) -> Result<Option<UrlRow>> + Send);

/// What a change comes to over the row that was there before.
fn settle(
    key: PageKey,
    entry: Entry,
    old: Option<UrlRow>,
    tied: &mut Option<Tied<'_>>,
) -> Result<Option<Entry>> {
    let Entry { row, change } = entry;
    let Some(old) = old else { return Ok((change != Change::Gone).then_some(Entry { row, change })) };
    if change == Change::Gone {
        return Ok(Some(Entry { row, change }));
    }
    let row = match tied {
        Some(_) if row.version() < old.version() => return Ok(None),
        Some(tied) if row.version() == old.version() => match tied(key)? {
            Some(row) => row,
            None => return Ok(None),
        },
        _ => row,
    };
    Ok((row != old).then_some(Entry { row, change: Change::Replaces }))
}

impl Drop for UrlBuilder {
    fn drop(&mut self) {
        let numbers: Vec<u64> = self.spilled.iter().map(|run| run.number).collect();
        // What cannot be removed now is removed by the next `retain`.
        numbers.iter().for_each(|number| self.files.discard(*number));
    }
}
