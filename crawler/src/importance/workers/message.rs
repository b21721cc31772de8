//! What coordinator and workers say to one another, as postcard writes it.
//!
//! ```text
//! coordinator                                      worker
//! Task, Rows/More…, Pages…, Tells…, Loaded   ──▶
//!                                            ◀──   Ready
//! Sweep, Passing… (as many as are foreign)   ──▶
//!                                            ◀──   Swept, Passing… (as many as it tells)
//! Restart                                    ──▶   (no answer)
//! Values                                     ──▶
//!                                            ◀──   Values… (as many as it has pages)
//! ```
//!
//! A message is bounded by the wire: what may be long comes in pieces (…), none of them empty, until there are as many as were
//! announced. In place of any answer a worker may say that it has failed, and ends.

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The topic of the coordinator's call.
pub(super) const TOPIC: &str = "rank";
/// Numbers in one message.
pub(super) const PIECE: usize = 1 << 16;

/// How large a slice is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Task {
    /// Pages of its own.
    pub(super) pages: u32,
    /// Pages of others that its rows need.
    pub(super) foreign: u32,
    /// Pages of its own that others need.
    pub(super) tells: u32,
    /// Links in all rows.
    pub(super) links: u64,
}

/// From the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum ToWorker {
    /// The first message.
    Task(Task),
    /// Rows of the next pages: how many links each has, and from where. Places are those of the slice's own pages, then of the foreign ones.
    Rows { counts: Vec<u32>, sources: Vec<u32> },
    /// More links of the page that came last.
    More(Vec<u32>),
    /// Weights and first values of the next pages.
    Pages(Vec<Page>),
    /// The next of its own places that others need, ascending.
    Tells(Vec<u32>),
    /// That was all.
    Loaded,
    /// Compute all pages once; what the foreign ones pass on follows.
    Sweep(Sweep),
    /// What the next pages pass on.
    Passing(Vec<f64>),
    /// Go back to the first values.
    Restart,
    /// Say what all pages have.
    Values,
}

/// How to compute all pages once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Sweep {
    /// Each page from the newest values, not from those before the sweep.
    pub(super) newest: bool,
    /// a: what the sum over a row is multiplied by.
    pub(super) by_links: f64,
    /// b: what o is multiplied by.
    pub(super) by_own: f64,
}

/// Of one page: v, w, o and x, and whether it has links.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Page {
    pub(super) before: f64,
    pub(super) after: f64,
    pub(super) own: f64,
    pub(super) value: f64,
    pub(super) linked: bool,
}

/// From a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum FromWorker {
    /// All was taken, and makes sense.
    Ready,
    /// All pages were computed once; what those that others need pass on follows.
    Swept(Totals),
    /// What the next pages pass on.
    Passing(Vec<f64>),
    /// What the next pages have.
    Values(Vec<f64>),
    /// It cannot go on.
    Failed(String),
}

/// What a slice adds up to after a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Totals {
    /// What pages with links have.
    pub(super) linked: f64,
    /// What all pages have.
    pub(super) all: f64,
    /// What the sweep changed.
    pub(super) changed: f64,
    /// The largest value.
    pub(super) largest: f64,
    /// The largest change.
    pub(super) changed_most: f64,
}

impl Totals {
    /// Adds a page that had `before` and has `value`.
    pub(super) fn add(&mut self, linked: bool, before: f64, value: f64) {
        let changed = (value - before).abs();
        self.linked += if linked { value } else { 0.0 };
        self.all += value;
        self.changed += changed;
        self.largest = self.largest.max(value);
        self.changed_most = self.changed_most.max(changed);
    }

    /// What slices add up to together, in their order.
    pub(super) fn of(slices: &[Totals]) -> Totals {
        let mut all = Totals::default();
        for slice in slices {
            all.linked += slice.linked;
            all.all += slice.all;
            all.changed += slice.changed;
            all.largest = all.largest.max(slice.largest);
            all.changed_most = all.changed_most.max(slice.changed_most);
        }
        all
    }

    /// Whether these are numbers that values ≥ 0 can add up to.
    pub(super) fn is_sound(&self) -> bool {
        [self.linked, self.all, self.changed, self.largest, self.changed_most].into_iter().all(is_sound)
    }
}

/// A value that a page can have.
pub(super) fn is_sound(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

pub(super) fn encode(message: &impl Serialize) -> Bytes {
    // Postcard fails only where a length is not known, and nothing here is so.
    postcard::to_stdvec(message).unwrap_or_default().into()
}

pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    postcard::from_bytes(bytes).map_err(|e| format!("a message that is none: {e}"))
}

/// Takes a piece of what comes in pieces: none is empty, and they are as many numbers as were announced.
pub(super) fn take_piece<T>(to: &mut Vec<T>, piece: Vec<T>, announced: usize) -> Result<(), String> {
    if piece.is_empty() || to.len() + piece.len() > announced {
        return Err(format!("{} numbers after {} of {announced} that were announced", piece.len(), to.len()));
    }
    to.extend(piece);
    Ok(())
}
