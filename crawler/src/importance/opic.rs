//! Importance while pages arrive, without the links of all others: online page importance (OPIC).
//!
//! Every page has *cash*. When a page is read, its cash is written to its *history* and dealt out to the pages it links to; nothing
//! is lost and nothing comes in, so the cash of all pages is 1 for ever. A page's part of all history written is its importance,
//! nearer the more was written. A virtual page stands for 1 − c and for E: every page links to it with the part 1 − c of its cash (a
//! page without links with all of it), and it links to all pages as E says; so what comes out is the fixed point
//! [`FixedPoint::Spread`](super::FixedPoint::Spread).
//!
//! The web changes, so history is kept over a *window*: what each page was dealt in the last T time units. At each reading the window
//! is brought up to date by one step, as its authors do it: a page read after less than T keeps the part 1 − g/T of its
//! history and adds what it got; after more, it has what it got scaled to T. Twelve to twenty bytes a page, O(links) a reading.
//!
//! The virtual page's cash is dealt out lazily: a page takes its share of what the virtual page has dealt since it was last
//! looked at.

use super::{ImportanceError, Personalisation, Settings};

/// Cash and history of every page.
#[derive(Debug, Clone)]
pub struct Opic {
    damping: f64,
    e: Personalisation,
    cash: Vec<f64>,
    /// What was got in the window, as of the last reading.
    history: Vec<f64>,
    read_at: Vec<f64>,
    /// What the virtual page had dealt when each page last took its share.
    taken: Vec<f64>,
    /// What the virtual page has dealt, ever.
    dealt: f64,
    window: f64,
}

impl Opic {
    /// As many pages as `e` speaks of, each with its share of E. `window` is how long history counts, in the units of `now`.
    ///
    /// # Errors
    /// When the damping is out of its range, or the window is not above 0.
    pub fn new(e: Personalisation, window: f64, settings: &Settings) -> Result<Self, ImportanceError> {
        settings.check()?;
        if !(window > 0.0 && window.is_finite()) {
            return Err(ImportanceError::Setting {
                name: "window",
                expected: "a finite time above 0",
                found: window,
            });
        }
        let pages = e.pages();
        Ok(Self {
            damping: settings.damping,
            cash: e.to_vec(),
            history: vec![0.0; pages],
            read_at: vec![0.0; pages],
            taken: vec![0.0; pages],
            dealt: 0.0,
            window,
            e,
        })
    }

    /// A page was read at `now`, and has these links. Pages there are none of are left out.
    pub fn read(&mut self, page: u32, links: &[u32], now: f64) {
        let at = page as usize;
        self.take_share(at);
        let Some(cash) = self.cash.get_mut(at) else { return };
        let got = std::mem::take(cash);
        if let (Some(history), Some(read_at)) = (self.history.get_mut(at), self.read_at.get_mut(at)) {
            let gap = (now - *read_at).max(0.0);
            *history = if gap < self.window {
                *history * (1.0 - gap / self.window) + got
            } else {
                got * self.window / gap
            };
            *read_at = now;
        }
        let pages = self.cash.len();
        let known = links.iter().filter(|link| (**link as usize) < pages).count();
        let along = if known == 0 { 0.0 } else { self.damping * got };
        for link in links {
            if let Some(cash) = self.cash.get_mut(*link as usize) {
                *cash += along / known as f64;
            }
        }
        // The virtual page is read at once: its cash is what everybody has a share of.
        self.dealt += got - along;
    }

    /// What the virtual page dealt since goes to a page's cash.
    fn take_share(&mut self, page: usize) {
        if let (Some(cash), Some(taken)) = (self.cash.get_mut(page), self.taken.get_mut(page)) {
            *cash += (self.dealt - *taken) * self.e.share(page);
            *taken = self.dealt;
        }
    }

    /// The page whose cash is most: reading it next brings the estimate on fastest.
    #[must_use]
    pub fn richest(&self) -> Option<u32> {
        let cash = |page: usize| self.cash_of(page);
        (0..self.cash.len()).max_by(|a, b| cash(*a).total_cmp(&cash(*b))).map(|page| page as u32)
    }

    fn cash_of(&self, page: usize) -> f64 {
        let own = self.cash.get(page).copied().unwrap_or(0.0);
        own + (self.dealt - self.taken.get(page).copied().unwrap_or(0.0)) * self.e.share(page)
    }

    /// The cash of all pages: 1, whatever was read.
    #[must_use]
    pub fn cash(&self) -> f64 {
        (0..self.cash.len()).map(|page| self.cash_of(page)).sum()
    }

    /// What is known of every page's importance, adding up to 1.
    #[must_use]
    pub fn importance(&self) -> Vec<f64> {
        let worth: Vec<f64> = (0..self.cash.len())
            .map(|page| self.history.get(page).copied().unwrap_or(0.0) + self.cash_of(page))
            .collect();
        let sum: f64 = worth.iter().sum();
        worth.iter().map(|worth| worth / sum).collect()
    }
}
