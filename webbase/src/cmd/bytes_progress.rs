//! How far work is of which the bytes are known: a bar with rate and time left on a terminal, else a line now and then.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use indicatif::{ProgressBar, ProgressStyle};

/// Between two lines.
const LINE_TIME: Duration = Duration::from_secs(5);

pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    total: u64,
    began: Instant,
    lines: Mutex<Lines>,
}

struct Lines {
    name: String,
    bytes: u64,
    last: Instant,
}

impl Progress {
    pub(crate) fn new(total: u64) -> Progress {
        let style = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left";
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total);
            ProgressStyle::with_template(style).map(|style| bar.set_style(style)).ok();
            bar
        });
        let lines = Lines { name: String::new(), bytes: 0, last: Instant::now() };
        Progress { bar, total, began: Instant::now(), lines: Mutex::new(lines) }
    }

    /// The next file.
    pub(crate) fn begin(&self, name: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(name.to_owned());
        }
        if let Ok(mut lines) = self.lines.lock() {
            lines.name = name.to_owned();
        }
    }

    /// So many bytes more are done.
    pub(crate) fn done(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
            return;
        }
        let Ok(mut lines) = self.lines.lock() else { return };
        lines.bytes += bytes;
        if lines.last.elapsed() >= LINE_TIME {
            lines.last = Instant::now();
            eprintln!("{}", self.line(&lines.name, lines.bytes));
        }
    }

    fn line(&self, name: &str, bytes: u64) -> String {
        let rate = bytes as f64 / self.began.elapsed().as_secs_f64().max(0.001);
        let left = Duration::from_secs((self.total.saturating_sub(bytes) as f64 / rate.max(1.0)) as u64);
        let (bytes, total, rate) = (ByteSize(bytes), ByteSize(self.total), ByteSize(rate as u64));
        format!("{name}: {bytes} of {total}, {rate}/s, {} left", humantime::format_duration(left))
    }

    /// A message between.
    pub(crate) fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{line}")),
            None => eprintln!("{line}"),
        }
    }

    pub(crate) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
