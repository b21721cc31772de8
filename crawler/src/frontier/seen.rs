//! Which URL has which number: the URL table, and in front of it the links that were seen lately.
//!
//! Most links of a page are links of the page before it, too. Those are found in `recent`, without a disk; the others wait, and are
//! settled all at once by a pass over all known URLs ([`UrlTable::settle`]). A pass costs as much as there are known URLs, so it is
//! made when something has to come of it, or when it would take no more than a tenth of the time.

use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;
use webbase_storage::url::canonical;

use super::FrontierError;
use super::row::Found;
use crate::metadata::UrlTable;

/// Links remembered, 16 bytes each; a power of two.
const RECENT: usize = 1 << 20;
/// Links that wait, at most.
const PENDING_MAX: usize = 1 << 18;
/// No URL is longer.
const URL_BYTES_MAX: usize = 1 << 16;
/// A pass is not repeated before this many times what it took.
const PATIENCE: u32 = 10;

/// A link that waits to be settled.
pub(super) struct Pending {
    /// Its place in the table of those that wait.
    pub(super) place: u64,
    pub(super) found: Found,
    canonical: String,
    key: u128,
}

pub(super) struct Seen {
    urls: UrlTable,
    /// By some bits of the hash: hash, and number.
    recent: Vec<u128>,
    pending: Vec<Pending>,
    took: Duration,
    at: Option<Instant>,
}

/// What is known of a link at once.
pub(super) enum Link {
    /// It is no URL of a page.
    None,
    /// Its number.
    Known(u32),
    /// It has to wait.
    New(String, u128),
}

impl Seen {
    pub(super) fn open(dir: &Path, key: [u8; 32]) -> Result<Seen, FrontierError> {
        let mut urls = UrlTable::open(&dir.join("urls"), key)?;
        // What a pass that was cut off had been offered comes again from the frontier.
        if urls.waiting() > 0 {
            urls.settle()?;
        }
        Ok(Seen { urls, recent: vec![0; RECENT], pending: Vec::new(), took: Duration::ZERO, at: None })
    }

    /// How many URLs have a number.
    pub(super) fn len(&self) -> u32 {
        self.urls.len() as u32
    }

    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Looks a link up among those seen lately.
    pub(super) fn look(&self, url: &str) -> Link {
        self.look_at(canonical(url).ok())
    }

    /// The same for a canonical URL, if there is one.
    pub(super) fn look_at(&self, canonical: Option<String>) -> Link {
        let Some(canonical) = canonical.filter(|url| !url.is_empty() && url.len() <= URL_BYTES_MAX) else {
            return Link::None;
        };
        let key = self.urls.key_of(&canonical);
        self.look_again(canonical, key)
    }

    /// The same for a canonical URL and its key.
    pub(super) fn look_again(&self, canonical: String, key: u128) -> Link {
        match self.recent.get(slot(key)) {
            Some(entry) if entry >> 32 == key >> 32 && *entry != 0 => Link::Known(*entry as u32),
            _ => Link::New(canonical, key),
        }
    }

    /// Has a link wait.
    pub(super) fn wait(&mut self, place: u64, found: Found, canonical: String, key: u128) {
        self.pending.push(Pending { place, found, canonical, key });
    }

    /// Whether a pass is worth its while; `idle` when nothing else is to be done.
    pub(super) fn is_time(&self, idle: bool) -> bool {
        let rested = self.at.is_none_or(|at| at.elapsed() >= self.took * PATIENCE);
        !self.pending.is_empty() && (idle || rested || self.pending.len() >= PENDING_MAX)
    }

    /// Settles all that waits: the links in the order in which they came, each with its number.
    pub(super) fn settle(&mut self) -> Result<Vec<(Pending, u32)>, FrontierError> {
        let began = Instant::now();
        let pending = std::mem::take(&mut self.pending);
        for link in &pending {
            self.urls.offer(&link.canonical)?;
        }
        let settled = self.urls.settle()?;
        for (link, found) in pending.iter().zip(&settled) {
            if let Some(entry) = self.recent.get_mut(slot(link.key)) {
                *entry = link.key | u128::from(found.id);
            }
        }
        (self.took, self.at) = (began.elapsed(), Some(Instant::now()));
        Ok(pending.into_iter().zip(settled).map(|(link, found)| (link, found.id)).collect())
    }

    /// The number of a URL that is settled.
    pub(super) fn find(&self, url: &str) -> Result<Option<u32>, FrontierError> {
        let Ok(canonical) = canonical(url) else { return Ok(None) };
        Ok(self.urls.find(&canonical)?)
    }
}

fn slot(key: u128) -> usize {
    (key >> 64) as usize & (RECENT - 1)
}
