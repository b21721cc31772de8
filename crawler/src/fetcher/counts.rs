//! What was done so far.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::error::FetchError;
use super::exchange::Answer;

/// What a fetcher has done so far.
#[derive(Debug, Default)]
pub struct Counts {
    answers: AtomicU64,
    bytes: AtomicU64,
    unchanged: AtomicU64,
    cut: AtomicU64,
    robots: AtomicU64,
    errors: Mutex<BTreeMap<&'static str, u64>>,
}

impl Counts {
    pub(super) fn count(&self, result: &Result<Answer, FetchError>) {
        match result {
            Err(e) => *self.errors.lock().entry(e.kind()).or_default() += 1,
            Ok(answer) => {
                self.answers.fetch_add(1, Ordering::Relaxed);
                self.bytes.fetch_add((answer.head.len() + answer.body.len()) as u64, Ordering::Relaxed);
                self.unchanged.fetch_add(u64::from(answer.status == 304), Ordering::Relaxed);
                self.cut.fetch_add(u64::from(answer.cut.is_some()), Ordering::Relaxed);
            }
        }
    }

    /// Something is wrong that did not keep anybody from a page.
    pub(super) fn count_trouble(&self, kind: &'static str) {
        *self.errors.lock().entry(kind).or_default() += 1;
    }

    pub(super) fn count_robots(&self) {
        self.robots.fetch_add(1, Ordering::Relaxed);
    }

    /// Answers of any status.
    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// Bytes of heads and bodies.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Answers that said "not modified".
    pub fn unchanged(&self) -> u64 {
        self.unchanged.load(Ordering::Relaxed)
    }

    /// Answers whose body was cut.
    pub fn cut(&self) -> u64 {
        self.cut.load(Ordering::Relaxed)
    }

    /// Robots files asked for.
    pub fn robots(&self) -> u64 {
        self.robots.load(Ordering::Relaxed)
    }

    /// Pages that were not had and robots files that are none, by the kind of their error.
    pub fn errors(&self) -> BTreeMap<&'static str, u64> {
        self.errors.lock().clone()
    }
}
