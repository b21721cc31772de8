//! Several sorted sources as one: of each page the newest row, and what all its rows do to the number of pages.

use std::cmp::Ordering;

use super::Entry;
use crate::error::Result;
use crate::page::{PageKey, RepositoryKey};

/// Rows in order, up or down.
pub(super) trait Source {
    /// The next row.
    fn peek(&self) -> Option<&Entry>;

    /// Takes the next row, and reads the one behind it.
    fn advance(&mut self) -> Result<Option<Entry>>;
}

/// Rows in memory, in order.
pub(super) struct Waiting {
    rows: std::vec::IntoIter<Entry>,
    head: Option<Entry>,
}

impl Waiting {
    pub(super) fn new(rows: Vec<Entry>) -> Waiting {
        let mut rows = rows.into_iter();
        let head = rows.next();
        Waiting { rows, head }
    }
}

impl Source for Waiting {
    fn peek(&self) -> Option<&Entry> {
        self.head.as_ref()
    }

    fn advance(&mut self) -> Result<Option<Entry>> {
        Ok(std::mem::replace(&mut self.head, self.rows.next()))
    }
}

/// One of several sources, and the page key of its next row once that was needed.
struct Input {
    source: Box<dyn Source + Send>,
    key: Option<PageKey>,
}

/// The sources as one.
pub(super) struct Merge {
    /// Newest first.
    inputs: Vec<Input>,
    repository: RepositoryKey,
    descending: bool,
    /// Those that have the next SURT key.
    tied: Vec<usize>,
}

impl Merge {
    /// Sources, the newest first, all in the same direction.
    pub(super) fn new(
        sources: Vec<Box<dyn Source + Send>>,
        repository: RepositoryKey,
        descending: bool,
    ) -> Merge {
        let inputs = sources.into_iter().map(|source| Input { source, key: None }).collect();
        Merge { inputs, repository, descending, tied: Vec::new() }
    }

    /// The newest row of the next page, and the sum of what its rows do to the number of pages.
    pub(super) fn next(&mut self) -> Result<Option<(Entry, i64)>> {
        self.tied.clear();
        let mut best: Option<&str> = None;
        for (at, input) in self.inputs.iter().enumerate() {
            let Some(head) = input.source.peek() else { continue };
            let surt = head.row.surt.as_str();
            let order = best.map_or(Ordering::Less, |best| surt.cmp(best));
            let order = if self.descending && best.is_some() { order.reverse() } else { order };
            match order {
                Ordering::Less => {
                    self.tied.clear();
                    self.tied.push(at);
                    best = Some(surt);
                }
                Ordering::Equal => self.tied.push(at),
                Ordering::Greater => {}
            }
        }
        if let [one] = self.tied.as_slice() {
            let Some(input) = self.inputs.get_mut(*one) else { return Ok(None) };
            input.key = None;
            let entry = input.source.advance()?;
            return Ok(entry.map(|entry| {
                let delta = entry.change.delta();
                (entry, delta)
            }));
        }
        // Several have this SURT key: the page keys decide.
        let mut next: Option<PageKey> = None;
        for at in &self.tied {
            let Some(input) = self.inputs.get_mut(*at) else { continue };
            let Some(head) = input.source.peek() else { continue };
            let key = *input.key.get_or_insert_with(|| head.row.key(&self.repository));
            let is_before = |next: PageKey| if self.descending { key > next } else { key < next };
            if next.is_none_or(is_before) {
                next = Some(key);
            }
        }
        let (mut newest, mut sum) = (None, 0);
        for at in &self.tied {
            let Some(input) = self.inputs.get_mut(*at) else { continue };
            if input.key != next {
                continue;
            }
            input.key = None;
            if let Some(entry) = input.source.advance()? {
                sum += entry.change.delta();
                newest = newest.or(Some(entry));
            }
        }
        Ok(newest.map(|entry| (entry, sum)))
    }
}
