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
    /// Numbers of the inputs that have rows, as a heap: none comes before the one at half its place.
    heap: Vec<usize>,
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
        let inputs: Vec<Input> = sources.into_iter().map(|source| Input { source, key: None }).collect();
        let (heap, tied) = (Vec::with_capacity(inputs.len()), Vec::new());
        let mut merge = Merge { inputs, repository, descending, heap, tied };
        (0..merge.inputs.len()).for_each(|input| merge.wait(input));
        merge
    }

    /// The newest row of the next page, and the sum of what its rows do to the number of pages.
    pub(super) fn next(&mut self) -> Result<Option<(Entry, i64)>> {
        let Some(first) = self.heap.first().copied() else { return Ok(None) };
        let is_alike = |at: usize| {
            let other = self.heap.get(at);
            other.is_some_and(|other| self.surt(*other) == self.surt(first))
        };
        if !is_alike(1) && !is_alike(2) {
            let entry = self.advance(first)?;
            if self.surt(first).is_none() {
                self.heap.swap_remove(0);
            }
            self.sink();
            return Ok(entry.map(|entry| {
                let delta = entry.change.delta();
                (entry, delta)
            }));
        }
        // Several have this SURT key: the page keys decide.
        let mut tied = std::mem::take(&mut self.tied);
        while let Some(next) = self.heap.first().copied()
            && tied.first().is_none_or(|first| self.surt(*first) == self.surt(next))
        {
            self.heap.swap_remove(0);
            self.sink();
            tied.push(next);
        }
        // They came off the heap in some order; the newest counts.
        tied.sort_unstable();
        let found = self.settle(&tied);
        tied.drain(..).for_each(|input| self.wait(input));
        self.tied = tied;
        found
    }

    /// The newest row of the first page of these inputs, which have one SURT key.
    fn settle(&mut self, tied: &[usize]) -> Result<Option<(Entry, i64)>> {
        let mut next: Option<PageKey> = None;
        for at in tied {
            let Some(input) = self.inputs.get_mut(*at) else { continue };
            let Some(head) = input.source.peek() else { continue };
            let key = *input.key.get_or_insert_with(|| head.row.key(&self.repository));
            let is_before = |next: PageKey| if self.descending { key > next } else { key < next };
            if next.is_none_or(is_before) {
                next = Some(key);
            }
        }
        let (mut newest, mut sum) = (None, 0);
        for at in tied {
            if self.inputs.get(*at).is_some_and(|input| input.key != next) {
                continue;
            }
            if let Some(entry) = self.advance(*at)? {
                sum += entry.change.delta();
                newest = newest.or(Some(entry));
            }
        }
        Ok(newest.map(|entry| (entry, sum)))
    }

    fn advance(&mut self, input: usize) -> Result<Option<Entry>> {
        let Some(input) = self.inputs.get_mut(input) else { return Ok(None) };
        input.key = None;
        input.source.advance()
    }

    fn surt(&self, input: usize) -> Option<&str> {
        Some(self.inputs.get(input)?.source.peek()?.row.surt.as_str())
    }

    /// Whether the input at one place of the heap comes before that at another. There is none behind the end.
    fn is_before(&self, a: usize, b: usize) -> bool {
        let surt = |at: usize| self.heap.get(at).and_then(|input| self.surt(*input));
        match (surt(a), surt(b)) {
            (Some(a), Some(b)) => (if self.descending { b.cmp(a) } else { a.cmp(b) }) == Ordering::Less,
            (a, b) => a.is_some() && b.is_none(),
        }
    }

    /// Puts an input on the heap, if it has rows.
    fn wait(&mut self, input: usize) {
        if self.surt(input).is_none() {
            return;
        }
        self.heap.push(input);
        let mut at = self.heap.len() - 1;
        while at > 0 && self.is_before(at, (at - 1) / 2) {
            self.heap.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    /// Brings the first input of the heap to its place.
    fn sink(&mut self) {
        let mut at = 0;
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let child = if self.is_before(right, left) { right } else { left };
            if !self.is_before(child, at) {
                return;
            }
            self.heap.swap(at, child);
            at = child;
        }
    }
}
