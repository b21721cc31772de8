//! Which lines of a range are the answer: times, filters, collapsing, order and number, one line after the other.

use std::collections::VecDeque;
use std::sync::Arc;

use super::ask::{ARCHIVE_LIMIT, Ask, Collapse, Dialect, LIMIT, Limit, Sort};
use super::capture::{Capture, Field, seconds};

/// Takes lines in the order that the query reads them, and gives out those that are wanted.
pub(super) struct Select {
    ask: Arc<Ask>,
    /// Lines that may still be given out.
    left: usize,
    /// What made the last line that was kept what it is.
    alike: Option<Vec<String>>,
    /// With collapsing to the last one: the line that waits for its neighbours.
    waiting: Option<Capture>,
    /// With an order of its own, or from the end: what is kept so far, and how far from the time each is.
    kept: Vec<(u64, Capture)>,
    /// There would have been more.
    pub(super) more: bool,
    pub(super) out: VecDeque<Capture>,
}

impl Select {
    pub(super) fn new(ask: Arc<Ask>) -> Select {
        let most = if ask.dialect == Dialect::Archive { ARCHIVE_LIMIT } else { LIMIT };
        let left = match ask.limit {
            Some(Limit::First(count) | Limit::Last(count)) => count,
            // A page is as long as it is.
            None if ask.paging.page.is_some() => usize::MAX,
            None => most,
        };
        Select { ask, left, alike: None, waiting: None, kept: Vec::new(), more: false, out: VecDeque::new() }
    }

    /// Whether lines have to be seen to the end before the first is known.
    fn keeps(&self) -> bool {
        matches!((&self.ask.sort, self.ask.limit), (Sort::Closest(_), _) | (Sort::Up, Some(Limit::Last(_))))
    }

    /// Whether no further line can change the answer.
    pub(super) fn is_over(&self) -> bool {
        match &self.ask.sort {
            Sort::Closest(_) => self.left == 0,
            _ => self.more || self.left == 0 && !self.ask.show_resume,
        }
    }

    /// Takes a line.
    pub(super) fn push(&mut self, capture: Capture) {
        let ask = self.ask.clone();
        let early = ask.from.as_ref().is_some_and(|from| capture.timestamp < *from);
        let late = ask.to.as_ref().is_some_and(|to| capture.timestamp > *to);
        if early || late || !ask.filters.iter().all(|filter| filter.passes(&capture)) {
            return;
        }
        let Some(collapse) = &ask.collapse else { return self.keep(capture) };
        let alike = alike(collapse, &capture);
        if self.alike.as_ref() == Some(&alike) {
            if collapse.last {
                self.waiting = Some(capture);
            }
            return;
        }
        self.alike = Some(alike);
        match collapse.last {
            true => {
                if let Some(before) = self.waiting.replace(capture) {
                    self.keep(before);
                }
            }
            false => self.keep(capture),
        }
    }

    fn keep(&mut self, capture: Capture) {
        if let Sort::Closest(to) = self.ask.sort {
            let distance = seconds(&capture.timestamp).map_or(u64::MAX, |at| at.abs_diff(to));
            self.kept.push((distance, capture));
            // Twice as many as are wanted are sorted at a time.
            if self.kept.len() >= self.left.saturating_mul(2).max(64) {
                self.nearest();
            }
            return;
        }
        if self.left == 0 {
            self.more = true;
            return;
        }
        self.left -= 1;
        match self.keeps() {
            true => self.kept.push((0, capture)),
            false => self.out.push_back(capture),
        }
    }

    /// Only the nearest stay; of equals the first.
    fn nearest(&mut self) {
        self.kept.sort_by_key(|(distance, _)| *distance);
        self.kept.truncate(self.left);
    }

    /// There are no more lines.
    pub(super) fn finish(&mut self) {
        if let Some(last) = self.waiting.take() {
            self.keep(last);
        }
        let kept = match self.ask.sort {
            Sort::Closest(_) => {
                self.nearest();
                std::mem::take(&mut self.kept)
            }
            // They came from the end.
            _ => std::mem::take(&mut self.kept).into_iter().rev().collect(),
        };
        self.out.extend(kept.into_iter().map(|(_, capture)| capture));
    }
}

fn alike(collapse: &Collapse, capture: &Capture) -> Vec<String> {
    let part = |(field, len): &(Field, usize)| -> String {
        capture.get(*field).unwrap_or_default().chars().take(*len).collect()
    };
    // Lines of different URLs are never alike, unless that is what is asked.
    let by_key = collapse.by.iter().any(|(field, _)| *field == Field::Urlkey);
    let key = if by_key { String::new() } else { capture.urlkey.clone() };
    std::iter::once(key).chain(collapse.by.iter().map(part)).collect()
}
