//! How long pages may stay, and which have outstayed.
//!
//! A page has an allowed lifetime; the papers count it down, we keep the deadline: `fetched_at_ms + lifetime_s`.
//! A page past its deadline is *due*: it goes on the list handed to the crawler ([`crate::PageStore::due`]). The
//! crawler answers for each page on it:
//!
//! | the crawler says | the caller does | effect |
//! |---|---|---|
//! | here is a new version | `add` | a new record with a new deadline |
//! | seen, unchanged (a 304) | `seen` with the page's lifetime | a small durable entry, a new deadline |
//! | could not verify | `seen` with a short lifetime ([`SHORT_LIFE_S`]) | a short new life |
//! | nothing, until the cycle ends | `remove_unseen` with the list | deleted |

use crate::page::{PageKey, Version};

/// The new life of a page that could not be verified: one day.
pub const SHORT_LIFE_S: u32 = 24 * 3600;

/// The moment a page seen at `seen_at_ms` with this lifetime is due; `None` is never.
pub fn deadline_ms(seen_at_ms: u64, lifetime_s: u32) -> Option<u64> {
    (lifetime_s != 0).then(|| seen_at_ms.saturating_add(u64::from(lifetime_s) * 1000))
}

/// A page was visited and found unchanged, or could not be verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Which page.
    pub key: PageKey,
    /// When it was visited.
    pub at_ms: u64,
    /// How long it may stay from then; 0 means for ever.
    pub lifetime_s: u32,
}

impl Seen {
    /// What has to be said of a page for it to be due at a moment; 2^64-1 is never.
    pub fn until(key: PageKey, deadline_ms: u64) -> Seen {
        let lifetime_s = u32::from(deadline_ms != u64::MAX);
        Seen { key, at_ms: deadline_ms.saturating_sub(1000), lifetime_s }
    }
}

/// A page past its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Due {
    /// When it became due.
    pub deadline_ms: u64,
    /// Which page.
    pub key: PageKey,
}

/// A page whose deadline is not its record's any more, because it was seen again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// Which page.
    pub key: PageKey,
    /// In which version.
    pub version: Version,
    /// When it is due now; 2^64-1 is never.
    pub deadline_ms: u64,
}
