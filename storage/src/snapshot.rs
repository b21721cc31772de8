//! Committed states of a store that stay as they are: what a reader holds while the store goes on.
//!
//! A [`Snapshot`] is volatile: it lasts as long as somebody holds it. A *generation* is a committed state with a number,
//! kept on disk until it is dropped; [`crate::PageStore::generation`] gives a snapshot of it, also after a restart.

use std::ops::{Range, RangeInclusive};

use crate::error::Result;
use crate::page::{PageId, PageKey, RepositoryKey, Version};
use crate::record::Record;
use crate::store::{PageStream, StreamSpec, Trust};
use crate::url;

/// One page in a list: enough to decide who has the newer version, and what moving it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Which page.
    pub key: PageKey,
    /// Which version of it.
    pub version: Version,
    /// Bytes of its record.
    pub bytes: u64,
    /// In a log: its ordinal.
    pub ordinal: Option<u64>,
}

/// A committed state of a store, immutable whatever happens to the store later. Dropping it lets go of what only it
/// needs.
pub trait Snapshot: Send + Sync {
    /// The key that names its pages.
    fn repository_key(&self) -> &RepositoryKey;

    /// The record of the page with this key.
    ///
    /// # Errors
    /// When it is damaged or cannot be read.
    fn lookup(&self, key: PageKey, trust: Trust) -> Result<Option<Record>>;

    /// As [`Snapshot::lookup`], verified, but only where that needs no waiting for the disk; `None` says that it would.
    fn lookup_warm(&self, key: PageKey) -> Option<Result<Option<Record>>> {
        let _ = key;
        None
    }

    /// The records of all pages with this page id: nearly always one.
    ///
    /// # Errors
    /// When one is damaged or cannot be read.
    fn lookup_id(&self, id: PageId, trust: Trust) -> Result<Vec<Record>>;

    /// The records of many pages, read from disk many at a time where the organization can.
    fn lookup_many(&self, keys: &[PageKey]) -> Vec<Result<Option<Record>>> {
        keys.iter().map(|&key| self.lookup(key, Trust::Verify)).collect()
    }

    /// The record of the page at `url`, confirmed by the URL in it.
    ///
    /// # Errors
    /// When `url` is none, or the record is damaged or cannot be read.
    fn lookup_url(&self, url: &str) -> Result<Option<Record>> {
        lookup_url(self.repository_key(), url, |key| self.lookup(key, Trust::Verify))
    }

    /// Streams all its pages.
    ///
    /// # Errors
    /// When the organization has no such order, or the cursor is not of this store.
    fn stream(&self, spec: &StreamSpec) -> Result<Box<dyn PageStream>>;

    /// The keys of all its pages, ascending.
    ///
    /// # Errors
    /// When they cannot be read.
    fn keys(&self) -> Result<Vec<PageKey>>;

    /// Lists the pages with these ids, by key, from the first one that is not below `from`; at most `limit` of them.
    /// Fewer than `limit` are the end of the list; else the next call goes on from the last key's successor. A log reads
    /// only catalog rows for it, the other organizations read leaves.
    ///
    /// # Errors
    /// When a page is damaged beyond telling its version, or cannot be read: a list never leaves a page out.
    fn list(&self, ids: RangeInclusive<PageId>, from: PageKey, limit: usize) -> Result<Vec<Listed>>;

    /// Of some ordinals of a log, whose pages were appended in key order: the first from which on no page is below a key.
    /// `None` where there are no ordinals, or rows cannot be read.
    fn ordinal_from(&self, ordinals: Range<u64>, key: PageKey) -> Option<u64> {
        let _ = (ordinals, key);
        None
    }

    /// How many pages it has.
    fn pages(&self) -> u64;

    /// Bytes of their records.
    fn live_bytes(&self) -> u64;
}

/// A lookup by URL: the record's own URL must confirm it.
pub(crate) fn lookup_url(
    key: &RepositoryKey,
    url: &str,
    lookup: impl FnOnce(PageKey) -> Result<Option<Record>>,
) -> Result<Option<Record>> {
    let canonical = url::canonical(url)?;
    let found = lookup(key.key_of_canonical(&canonical))?;
    Ok(found.filter(|r| url::canonical(r.get().url()).is_ok_and(|c| c == canonical)))
}
