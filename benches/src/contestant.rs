//! The contract of everything that competes in `peers`: other engines, and webbase's own stores.
//!
//! Engines that know only keys and values keep [`CorpusPage::value`], the whole page in one piece, under a 16-byte
//! key. The body passes [`crate::measure::touch`] wherever a page is delivered.

use std::path::Path;

use crate::corpus::CorpusPage;

/// A page on its way into a store.
#[derive(Clone, Copy)]
pub struct Add {
    /// Looks random, and belongs to the URL.
    pub key: [u8; 16],
    /// The page itself.
    pub page: CorpusPage,
}

/// What a run expects of [`Peer::add_all`].
#[derive(Clone, Copy, Default)]
pub struct AddOptions {
    /// Pages after which everything so far must survive a power cut; always true on return.
    pub durable_every: Option<usize>,
    /// The keys ascend and the store is empty, so an engine may use its way of bulk loading.
    pub sorted_load: bool,
}

impl AddOptions {
    /// The pages in the groups that have to be made durable together.
    pub fn groups<'a>(&self, pages: &'a [Add]) -> std::slice::Chunks<'a, Add> {
        pages.chunks(self.durable_every.unwrap_or(pages.len()).max(1))
    }
}

/// Receives each page that a store delivers.
pub type Found<'a> = &'a mut dyn FnMut(&[u8]);

/// A store under test. Panics on any error: a benchmark with errors has no result.
///
/// Whole lists are added at once, so that an engine can hold a transaction open, or share the work over threads.
pub trait Peer: Sync {
    /// Adds pages or new versions of pages, in the order given.
    fn add_all(&mut self, pages: &[Add], options: AddOptions);

    /// Waits for what is still going on in the background after adding: flushes, compactions, checkpoints.
    fn settle(&mut self) {}

    /// What one thread needs to look pages up: a snapshot, a connection, buffers.
    fn reader(&self) -> Box<dyn Reader + '_>;

    /// Delivers all pages in the store's own best order; returns how many.
    fn scan(&self, found: Found<'_>) -> u64;
}

/// One thread's access to a store.
pub trait Reader {
    /// Delivers the page, or returns false when there is none.
    fn lookup(&mut self, key: &[u8; 16], found: Found<'_>) -> bool;
}

/// Settings all contestants share.
#[derive(Clone, Copy)]
pub struct PeerConfig {
    /// Memory an engine may use to cache pages.
    pub cache_bytes: u64,
}

/// A store that can be opened.
pub struct Contestant {
    /// Name in tables, and of the folder.
    pub name: &'static str,
    /// Creates or opens the store in a folder, which exists.
    pub open: fn(&Path, &PeerConfig) -> Box<dyn Peer>,
}

/// Everybody who competes: webbase's own stores first.
pub fn all() -> Vec<Contestant> {
    #[cfg_attr(not(feature = "most-peers"), expect(unused_mut, reason = "without peers webbase is alone"))]
    let mut contestants = crate::ours::all();
    #[cfg(feature = "most-peers")]
    contestants.extend(crate::peers::all());
    contestants
}
