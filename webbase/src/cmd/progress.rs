//! How far long work is, on stderr: a bar on a terminal, a line now and then elsewhere.

use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanCount, HumanDuration, ProgressBar, ProgressStyle};

/// Between two lines, where there is no terminal.
const LINE: Duration = Duration::from_secs(5);

/// How long the rest takes at this rate, if there is a rest and a rate.
fn time_left(pages: u64, total: u64, rate: f64) -> Option<Duration> {
    let rest = total.checked_sub(pages).filter(|rest| *rest > 0)?;
    Duration::try_from_secs_f64(rest as f64 / rate).ok()
}

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
        // Figures of nodes may be a moment old.
        let total = self.total.filter(|total| *total >= pages);
        let of = total.map(|total| format!(" of {}", HumanCount(total))).unwrap_or_default();
        let left = self.total.and_then(|total| time_left(pages, total, rate));
        let left = left.map(|left| format!(", {} left", HumanDuration(left))).unwrap_or_default();
        let (count, rate) = (HumanCount(pages), HumanCount(rate as u64));
        format!("{count}{of} pages, {}, {rate} pages a second{left}", HumanBytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_tell_the_time_that_is_left_where_the_end_is_known() {
        assert_eq!(time_left(10, 40, 2.0), Some(Duration::from_secs(15)));
        assert_eq!(time_left(0, 40, 0.0), None);
        assert_eq!(time_left(40, 40, 2.0), None);
        assert_eq!(time_left(50, 40, 2.0), None);
        let mut progress = Progress::new("test", Some(1_000_000));
        progress.began -= Duration::from_secs(10);
        let line = progress.line(500_000, 1 << 20);
        assert!(line.starts_with("500,000 of 1,000,000 pages, 1.00 MiB, "), "{line}");
        assert!(line.ends_with("10 seconds left"), "{line}");
        let line = progress.line(1_000_001, 1 << 20);
        assert!(line.starts_with("1,000,001 pages, ") && !line.contains("left"), "{line}");
    }
}
