//! How a crawl goes, as those see it who look.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

/// How a crawl goes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Progress {
    /// For how long it has been going, in seconds.
    pub seconds: f64,
    /// Pages that the repository has acknowledged, in this run.
    pub pages: u64,
    /// Pages that had not changed.
    pub unchanged: u64,
    /// Bytes of all answers.
    pub bytes: u64,
    /// Pages a second, over the last seconds.
    pub pages_per_second: f64,
    /// URLs that are known, and of those the ones that wait.
    pub known: u64,
    /// URLs that wait.
    pub frontier: u64,
    /// Hosts with URLs that wait.
    pub hosts: usize,
    /// URLs in the fetcher's buffer.
    pub buffer: usize,
    /// Requests that are out.
    pub requests: usize,
    /// Pages that were not had, by kind of error.
    pub errors: BTreeMap<String, u64>,
    /// Links that do not belong to the crawl.
    pub outside: u64,
    /// Bodies that were cut.
    pub cut: u64,
    /// The last generation that a cycle of this crawl made visible.
    pub generation: Option<u64>,
    /// Whether it is paused.
    pub paused: bool,
    /// The share of the pages read that are expected to be as they were read.
    pub freshness: Option<f64>,
    /// Pages that the scheduler had read, in this run.
    pub planned: u64,
    /// Links handed over to other crawlers.
    pub handed_over: u64,
}

/// Pages a second, over the last ten seconds or so.
#[derive(Debug)]
pub(super) struct Rate {
    since: tokio::time::Instant,
    before: u64,
    rate: f64,
}

impl Rate {
    pub(super) fn new() -> Rate {
        Rate { since: tokio::time::Instant::now(), before: 0, rate: 0.0 }
    }

    pub(super) fn at(&mut self, pages: u64) -> f64 {
        let elapsed = self.since.elapsed();
        if elapsed >= Duration::from_secs(1) {
            let now = (pages - self.before) as f64 / elapsed.as_secs_f64();
            let weight = (elapsed.as_secs_f64() / 10.0).min(1.0);
            self.rate = if self.rate == 0.0 { now } else { self.rate * (1.0 - weight) + now * weight };
            (self.since, self.before) = (tokio::time::Instant::now(), pages);
        }
        self.rate
    }
}
