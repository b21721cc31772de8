//! How far long work is, on stderr: a bar on a terminal, a line now and then elsewhere.

use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanCount, HumanDuration, ProgressBar, ProgressStyle};

/// Between two lines, where there is no terminal.
const LINE: Duration = Duration::from_secs(5);

/// The progress of one piece of work: pages, and bytes.
pub(crate) struct Progress {
    what: &'static str,
    bar: Option<ProgressBar>,
    total: Option<u64>,
    began: Instant,
    told: Instant,
}

impl Progress {
    /// Of so many pages, if that is known.
    pub(crate) fn new(what: &'static str, total: Option<u64>) -> Progress {
        let now = Instant::now();
        let bar = console::user_attended_stderr().then(|| {
            let (bar, template) = match total {
                Some(total) => (
                    ProgressBar::new(total),
                    "{prefix} {bar:30.cyan} {human_pos}/{human_len} pages {msg}, {per_sec}, {eta} left",
                ),
                None => (ProgressBar::new_spinner(), "{prefix} {spinner} {human_pos} pages {msg}, {per_sec}"),
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_prefix(what);
            bar
        });
        Progress { what, bar, total, began: now, told: now }
    }

    /// So much is done.
    pub(crate) fn at(&mut self, pages: u64, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(pages);
            bar.set_message(HumanBytes(bytes).to_string());
        } else if self.told.elapsed() >= LINE {
            self.told = Instant::now();
            eprintln!("{}: {}", self.what, self.line(pages, bytes));
        }
    }

    /// It is all done.
    pub(crate) fn done(self, pages: u64, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        eprintln!("{}: {} in {}", self.what, self.line(pages, bytes), HumanDuration(self.began.elapsed()));
    }

    fn line(&self, pages: u64, bytes: u64) -> String {
        let rate = pages as f64 / self.began.elapsed().as_secs_f64().max(0.001);
        let of = self.total.map(|total| format!(" of {}", HumanCount(total))).unwrap_or_default();
        let (count, rate) = (HumanCount(pages), HumanCount(rate as u64));
        format!("{count}{of} pages, {}, {rate} pages a second", HumanBytes(bytes))
    }
}
