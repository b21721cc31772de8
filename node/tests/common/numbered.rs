//! A store as a generation with a number, as a node of a repository has it: it stays as it is, so that scans of it are shared.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use webbase_node::wire::message::{Entry, Fault};
use webbase_node::wire::ranges::RangeSet;
use webbase_node::{Answer, NotAdded, Pages, StorePages};
use webbase_storage::{
    Added, Compacted, Dictionary, Page, PageId, PageKey, PageStream, Record, RepositoryKey, Stats,
    StreamSpec, Verified,
};

/// A store that is one generation, and not another.
pub(crate) struct Numbered {
    pub(crate) pages: StorePages,
    pub(crate) generation: Arc<AtomicU64>,
}

impl Numbered {
    fn check(&self, asked: u64) -> Answer<()> {
        match self.generation.load(Ordering::SeqCst) {
            there if there == asked => Ok(()),
            there => Err(Fault::generation(asked, vec![there])),
        }
    }
}

impl Pages for Numbered {
    fn repository_key(&self) -> RepositoryKey {
        self.pages.repository_key()
    }
    fn dictionary(&self, digest: u64) -> Option<Arc<Dictionary>> {
        self.pages.dictionary(digest)
    }
    fn dictionaries(&self) -> Vec<Arc<Dictionary>> {
        self.pages.dictionaries()
    }
    fn lookup_warm(&self, generation: u64, key: PageKey) -> Option<Answer<Option<Record>>> {
        match self.check(generation) {
            Ok(()) => self.pages.lookup_warm(0, key),
            Err(fault) => Some(Err(fault)),
        }
    }
    fn lookup(&self, generation: u64, key: PageKey) -> Answer<Option<Record>> {
        self.check(generation)?;
        self.pages.lookup(0, key)
    }
    fn lookup_id(&self, generation: u64, id: PageId) -> Answer<Vec<Record>> {
        self.check(generation)?;
        self.pages.lookup_id(0, id)
    }
    fn lookup_url(&self, generation: u64, url: &str) -> Answer<Option<Record>> {
        self.check(generation)?;
        self.pages.lookup_url(0, url)
    }
    fn lookup_many(&self, generation: u64, keys: &[PageKey]) -> Answer<Vec<Answer<Option<Record>>>> {
        self.check(generation)?;
        self.pages.lookup_many(0, keys)
    }
    fn stream(&self, generation: u64, spec: &StreamSpec) -> Answer<Box<dyn PageStream>> {
        self.check(generation)?;
        self.pages.stream(0, spec)
    }
    fn list(&self, generation: u64, from: PageKey, ranges: &RangeSet) -> Answer<Vec<Entry>> {
        self.check(generation)?;
        self.pages.list(0, from, ranges)
    }
    fn keys(&self, generation: u64, from: PageKey, ranges: &RangeSet) -> Answer<Vec<PageKey>> {
        self.check(generation)?;
        self.pages.keys(0, from, ranges)
    }
    fn add_dictionary(&self, content: &[u8]) -> webbase_storage::Result<u64> {
        self.pages.add_dictionary(content)
    }
    fn add(&self, pages: &[Page<'_>]) -> Result<Added, NotAdded> {
        self.pages.add(pages)
    }
    fn add_records(&self, records: &[Record]) -> Result<Added, NotAdded> {
        self.pages.add_records(records)
    }
    fn commit(&self) -> webbase_storage::Result<()> {
        self.pages.commit()
    }
    fn stats(&self) -> Stats {
        self.pages.stats()
    }
    fn compact(&self, budget_bytes: u64) -> Answer<Compacted> {
        self.pages.compact(budget_bytes)
    }
    fn verify(&self) -> Answer<Verified> {
        self.pages.verify()
    }
}
