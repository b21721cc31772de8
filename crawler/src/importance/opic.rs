//! Importance while pages arrive, without the links of all others: online page importance (OPIC).
//!
//! Every page has *cash*. When a page is read, its cash is written to its *history* and dealt out to the pages it links to; nothing
//! is lost and nothing comes in, so the cash of all pages is 1 for ever. A page's part of all history written is its importance,
//! nearer the more was written. A virtual page stands for 1 − c and for E: every page links to it with the part 1 − c of its cash (a
//! page without links with all of it), and it links to all pages as E says; so what comes out is the fixed point
//! [`FixedPoint::Spread`](super::FixedPoint::Spread).
//!
//! The web changes, so history is kept over a [`Window`]. At each reading the window is brought up to date by one step, so that a page
//! takes a few numbers, and a reading O(links).
//!
//! The virtual page's cash is dealt out lazily: a page takes its share of what the virtual page has dealt since it was last
//! looked at.

use super::{ImportanceError, Personalisation, Settings};

/// The least and the most that an adaptive window follows a reading.
const FOLLOWS_MIN: f64 = 1.0 / 256.0;
const FOLLOWS_MAX: f64 = 0.5;
/// How fast the two averages of its errors follow.
const ERRORS_FOLLOW: f64 = 0.15;

/// How long history counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Window {
    /// What each page was dealt in the last so many time units, as OPIC's authors do it: a page read after less than T keeps the part
    /// 1 − g/T of its history and adds what it got; after more, it has what it got scaled to T. A short window follows a web that changes,
    /// a long one is more exact on one that does not.
    Time(f64),
    /// A window of its own for each page, by what its readings say. What a page gets is compared with what it got before: errors on both
    /// sides are noise, and the window grows with each reading; errors on one side are a change, and the window becomes short.
    Adaptive,
}

/// Cash and history of every page.
#[derive(Debug, Clone)]
pub struct Opic {
    damping: f64,
    e: Personalisation,
    window: Window,
    pages: Vec<Page>,
    /// What the virtual page has dealt, ever.
    dealt: f64,
    /// The latest time that was said.
    now: f64,
}

/// What is kept of a page.
#[derive(Debug, Clone, Copy)]
struct Page {
    cash: f64,
    /// What the virtual page had dealt when the page last took its share.
    taken: f64,
    read_at: f64,
    /// What was got in the window, as of the last reading; adaptive: in a reading, on average.
    got: f64,
    /// Adaptive: the time of a reading, on average; its errors, with and without their signs; readings so far.
    gap: f32,
    error: f32,
    error_size: f32,
    readings: u32,
}

impl Opic {
    /// As many pages as `e` speaks of, each with its share of E; times count from 0.
    ///
    /// # Errors
    /// When the damping is out of its range, or a window is not above 0.
    pub fn new(e: Personalisation, window: Window, settings: &Settings) -> Result<Self, ImportanceError> {
        settings.check()?;
        if let Window::Time(time) = window
            && !(time > 0.0 && time.is_finite())
        {
            return Err(ImportanceError::Setting {
                name: "window",
                expected: "a finite time above 0",
                found: time,
            });
        }
        let page = |cash: &f64| Page {
            cash: *cash,
            taken: 0.0,
            read_at: 0.0,
            got: 0.0,
            gap: 0.0,
            error: 0.0,
            error_size: 0.0,
            readings: 0,
        };
        let pages = e.to_vec().iter().map(page).collect();
        Ok(Self { damping: settings.damping, e, window, pages, dealt: 0.0, now: 0.0 })
    }

    /// A page was read at `now`, and has these links. Pages there are none of are left out.
    pub fn read(&mut self, page: u32, links: &[u32], now: f64) {
        let share = self.e.share(page as usize);
        self.now = self.now.max(now);
        let Some(read) = self.pages.get_mut(page as usize) else { return };
        let got = read.cash + (self.dealt - read.taken) * share;
        (read.cash, read.taken) = (0.0, self.dealt);
        read.write(got, now, self.window);
        let known = links.iter().filter(|link| (**link as usize) < self.pages.len()).count();
        let along = if known == 0 { 0.0 } else { self.damping * got };
        for link in links {
            if let Some(page) = self.pages.get_mut(*link as usize) {
                page.cash += along / known as f64;
            }
        }
        // The virtual page is read at once: its cash is what everybody has a share of.
        self.dealt += got - along;
    }

    /// The page whose cash is most: reading it next brings the estimate on fastest.
    #[must_use]
    pub fn richest(&self) -> Option<u32> {
        let cash = |page: usize| self.cash_of(page);
        (0..self.pages.len()).max_by(|a, b| cash(*a).total_cmp(&cash(*b))).map(|page| page as u32)
    }

    /// The cash of a page.
    #[must_use]
    pub fn cash_of(&self, page: usize) -> f64 {
        self.pages.get(page).map_or(0.0, |own| own.cash + (self.dealt - own.taken) * self.e.share(page))
    }

    /// The cash of all pages: 1, whatever was read.
    #[must_use]
    pub fn cash(&self) -> f64 {
        (0..self.pages.len()).map(|page| self.cash_of(page)).sum()
    }

    /// What is known of every page's importance, adding up to 1.
    #[must_use]
    pub fn importance(&self) -> Vec<f64> {
        let of = |(at, page): (usize, &Page)| page.worth(self.cash_of(at), self.now, self.window);
        let worth: Vec<f64> = self.pages.iter().enumerate().map(of).collect();
        let sum: f64 = worth.iter().sum();
        worth.iter().map(|worth| worth / sum).collect()
    }
}

impl Page {
    /// A reading at `now` found `cash`.
    fn write(&mut self, cash: f64, now: f64, window: Window) {
        let gap = (now - self.read_at).max(0.0);
        match window {
            Window::Time(time) if gap < time => self.got = self.got * (1.0 - gap / time) + cash,
            Window::Time(time) => self.got = cash * time / gap,
            Window::Adaptive => self.adapt(cash, gap),
        }
        self.read_at = now;
    }

    fn adapt(&mut self, cash: f64, gap: f64) {
        let follows = match self.readings {
            0 => 1.0,
            readings => {
                let expected = self.got * gap / f64::from(self.gap).max(f64::MIN_POSITIVE);
                let error = cash - expected;
                self.error += (ERRORS_FOLLOW * (error - f64::from(self.error))) as f32;
                self.error_size += (ERRORS_FOLLOW * (error.abs() - f64::from(self.error_size))) as f32;
                let one_sided =
                    f64::from(self.error.abs()) / f64::from(self.error_size).max(f64::MIN_POSITIVE);
                // Chance alone is one-sided to about a third; what is beyond that is a change.
                let changed = ((one_sided - 0.4) / 0.6).clamp(0.0, 1.0);
                let averaged = 1.0 / (f64::from(readings) + 1.0);
                averaged.max(FOLLOWS_MIN).max(changed * changed * FOLLOWS_MAX)
            }
        };
        self.got += follows * (cash - self.got);
        self.gap += (follows * (gap - f64::from(self.gap))) as f32;
        // A window that became short grows from there.
        self.readings = ((1.0 / follows) as u32).min(1 << 20);
    }

    /// What the page got in a unit of time (or the window), with the `cash` that has come since.
    fn worth(&self, cash: f64, now: f64, window: Window) -> f64 {
        match window {
            Window::Time(_) => self.got + cash,
            Window::Adaptive => {
                let since = now - self.read_at;
                let follows = 1.0 / (f64::from(self.readings) + 1.0);
                let got = self.got + follows * (cash - self.got);
                let gap = f64::from(self.gap) + follows * (since - f64::from(self.gap));
                // Read just now for the first time, and nothing since: what it has is all there is to say.
                if gap > 0.0 { got / gap } else { got + cash }
            }
        }
    }
}
