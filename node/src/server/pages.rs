//! What a server serves: the pages behind the requests, whoever keeps them.

use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::sync::Arc;

use webbase_storage::urls::{UrlQuery, UrlRow};
use webbase_storage::{
    Added, Compacted, Dictionary, Due, Listed, Page, PageId, PageKey, PageStore, PageStream, Record,
    RepositoryKey, Snapshot, Stats, StorageError, StreamSpec, Trust, Verified, Version,
};

use crate::importance::Importances;
use crate::wire::message::{After, Code, Entry, Fault, Renewal, UNKNOWN};
use crate::wire::ranges::RangeSet;

/// Where pages lie in the streams of a generation, in terms that all its nodes share.
pub trait Places: Send + Sync {
    /// The generation in which the page with this ordinal arrived; `None` where its range is in another order here. Where only
    /// its version would say its range, and that is not known, it is told all the same: it tells what was delivered, though it
    /// may be no place here.
    fn arrival(&self, ordinal: u64, key: PageKey, version: Option<Version>) -> Option<u64>;

    /// The first ordinal that may have a page behind these places; `None` when one of the ranges is in another order here.
    fn start(&self, ranges: &RangeSet, after: &After) -> Option<u64>;
}

/// What a request to pages gives.
pub type Answer<T> = std::result::Result<T, Fault>;

/// Why pages were not staged.
#[derive(Debug)]
pub enum NotAdded {
    /// They are refused; other batches are not concerned.
    Refused(Fault),
    /// The disk failed, and may have taken other staged pages with it.
    Disk(StorageError),
}

impl From<StorageError> for NotAdded {
    fn from(e: StorageError) -> NotAdded {
        match e {
            StorageError::PageTooLarge { .. }
            | StorageError::Url(_)
            | StorageError::BadPage { .. }
            | StorageError::BadRecord(_)
            | StorageError::UnknownDictionary { .. } => NotAdded::Refused(e.into()),
            e => NotAdded::Disk(e),
        }
    }
}

/// Pages as a server needs them. One store is [`StorePages`]; an update node puts several epochs behind it, a read node
/// several generations. Methods block, but for the first four; a server calls the others on threads of its own.
///
/// Every reading method is given the generation to read; a plain store has only 0. One that is not there is answered with
/// [`Fault::generation`].
pub trait Pages: Send + Sync + 'static {
    /// The key that names the pages.
    fn repository_key(&self) -> RepositoryKey;

    /// The dictionary that records name by this digest.
    fn dictionary(&self, digest: u64) -> Option<Arc<Dictionary>>;

    /// All dictionaries that records may need.
    fn dictionaries(&self) -> Vec<Arc<Dictionary>>;

    /// The record of a page, if that needs no waiting; `None` says that it would.
    fn lookup_warm(&self, generation: u64, key: PageKey) -> Option<Answer<Option<Record>>>;

    /// The record of a page.
    ///
    /// # Errors
    /// When it cannot be read.
    fn lookup(&self, generation: u64, key: PageKey) -> Answer<Option<Record>>;

    /// The records of all pages with this id.
    ///
    /// # Errors
    /// When one cannot be read.
    fn lookup_id(&self, generation: u64, id: PageId) -> Answer<Vec<Record>>;

    /// The record of the page at a URL, confirmed by the URL in it.
    ///
    /// # Errors
    /// When the URL is none, or it cannot be read.
    fn lookup_url(&self, generation: u64, url: &str) -> Answer<Option<Record>>;

    /// The records of many pages.
    ///
    /// # Errors
    /// When none can be read.
    fn lookup_many(&self, generation: u64, keys: &[PageKey]) -> Answer<Vec<Answer<Option<Record>>>>;

    /// The records of many pages, of those that are in these ranges.
    ///
    /// # Errors
    /// When none can be read, or not all pages of the ranges are here.
    fn lookup_in(
        &self,
        generation: u64,
        ranges: &RangeSet,
        keys: &[PageKey],
    ) -> Answer<Vec<Answer<Option<Record>>>> {
        self.check_ranges(generation, ranges)?;
        self.lookup_many(generation, keys)
    }

    /// All pages, one after the other.
    ///
    /// # Errors
    /// When there is no such order or place.
    fn stream(&self, generation: u64, spec: &StreamSpec) -> Answer<Box<dyn PageStream>>;

    /// What is read under this name now, where that changes; `None` where a generation stays as it is.
    ///
    /// # Errors
    /// When it cannot be read, or not all pages of the ranges are here.
    fn held(&self, generation: u64, ranges: &RangeSet) -> Answer<Option<Arc<dyn Snapshot>>> {
        let _ = (generation, ranges);
        Ok(None)
    }

    /// The pages of a generation that stays as it is, where they can be listed without reading them.
    ///
    /// # Errors
    /// When the generation is not there.
    fn kept(&self, generation: u64) -> Answer<Option<Arc<dyn Snapshot>>> {
        let _ = generation;
        Ok(None)
    }

    /// What is known of the importance of pages.
    fn importances(&self) -> Option<Arc<Importances>> {
        None
    }

    /// Where large things are put for a while.
    fn scratch(&self) -> PathBuf {
        std::env::temp_dir()
    }

    /// What tells the places of pages in streams of this generation, where it is known.
    fn places(&self, generation: u64) -> Option<Arc<dyn Places>> {
        let _ = generation;
        None
    }

    /// Whether all pages of these ranges are here.
    ///
    /// # Errors
    /// When they are not: a reader would take their absence for an answer.
    fn check_ranges(&self, generation: u64, ranges: &RangeSet) -> Answer<()> {
        let _ = (generation, ranges);
        Ok(())
    }

    /// Whether this is what nodes pull from, and no reader reads: then readers' requests go first.
    fn is_pulled(&self, generation: u64) -> bool {
        let _ = generation;
        false
    }

    /// The range of a page, of as many as a request is about; `None` where only the version says it, and that is unknown.
    fn range_of(&self, ranges: &RangeSet, key: PageKey, version: Option<Version>) -> Option<u32> {
        let _ = version;
        Some(ranges.range_of(key.id))
    }

    /// The first key that can be in a range.
    fn first_key(&self, ranges: &RangeSet, range: u32) -> PageKey {
        PageKey { id: ranges.first_id(range), tie: 0 }
    }

    /// Key, version and size of the pages of some ranges from a key on, in order.
    ///
    /// # Errors
    /// When they cannot be read.
    fn list(&self, generation: u64, from: PageKey, ranges: &RangeSet) -> Answer<Vec<Entry>>;

    /// Key, version and size of the pages of some ranges between two keys, in order.
    ///
    /// # Errors
    /// When they cannot be read.
    fn list_between(
        &self,
        generation: u64,
        keys: RangeInclusive<PageKey>,
        ranges: &RangeSet,
    ) -> Answer<Vec<Entry>> {
        let mut entries = self.list(generation, *keys.start(), ranges)?;
        entries.retain(|entry| keys.contains(&entry.key));
        Ok(entries)
    }

    /// As [`Pages::list_between`], but about `limit` of them, and the key at which the rest begins, if there is one.
    ///
    /// # Errors
    /// When they cannot be read.
    fn list_some(
        &self,
        generation: u64,
        keys: RangeInclusive<PageKey>,
        ranges: &RangeSet,
        limit: usize,
    ) -> Answer<(Vec<Entry>, Option<PageKey>)> {
        let _ = limit;
        Ok((self.list_between(generation, keys, ranges)?, None))
    }

    /// The keys of the pages of some ranges from a key on, in order.
    ///
    /// # Errors
    /// When they cannot be read.
    fn keys(&self, generation: u64, from: PageKey, ranges: &RangeSet) -> Answer<Vec<PageKey>>;

    /// Makes a dictionary known and durable.
    ///
    /// # Errors
    /// When it cannot be written.
    fn add_dictionary(&self, content: &[u8]) -> webbase_storage::Result<u64>;

    /// Stages pages, if pages with such stamps (their `epoch`) are taken now.
    ///
    /// # Errors
    /// When they are not, and as [`PageStore::add`].
    fn add(&self, pages: &[Page<'_>]) -> std::result::Result<Added, NotAdded>;

    /// Stages records, as [`Pages::add`] does pages.
    ///
    /// # Errors
    /// As [`Pages::add`].
    fn add_records(&self, records: &[Record]) -> std::result::Result<Added, NotAdded>;

    /// Makes everything staged durable.
    ///
    /// # Errors
    /// As [`PageStore::commit`].
    fn commit(&self) -> webbase_storage::Result<()>;

    /// What is remembered of removed pages; see `Request::Tombstones`.
    ///
    /// # Errors
    /// When the generation is not there.
    fn tombstones(&self, generation: u64) -> Answer<Vec<u8>> {
        let _ = generation;
        Ok(Vec::new())
    }

    /// Pages of some ranges that were seen again, about `limit`, with their deadlines, and where the rest begins; see
    /// [`PageStore::renewed`].
    ///
    /// # Errors
    /// When they cannot be read, or not all pages of the ranges are here.
    fn renewed(
        &self,
        generation: u64,
        ranges: &RangeSet,
        from: u64,
        limit: usize,
    ) -> Answer<(Vec<Renewal>, Option<u64>)> {
        let _ = (generation, ranges, from, limit);
        Err(Fault::new(Code::BadRequest, "pages have no lifetimes here"))
    }

    /// The pages whose time is over, with the versions that are due.
    ///
    /// # Errors
    /// When they cannot be read.
    fn due(&self, generation: u64, now_ms: u64, limit: usize) -> Answer<Vec<(Due, Version)>> {
        let _ = (generation, now_ms, limit);
        Err(Fault::new(Code::BadRequest, "pages have no lifetimes here"))
    }

    /// Rows of the URL index of some ranges, at most `limit`, and whether more are there.
    ///
    /// # Errors
    /// When there is no index, it is damaged, or not all pages of the ranges are here.
    fn urls(
        &self,
        generation: u64,
        ranges: &RangeSet,
        query: &UrlQuery,
        limit: usize,
    ) -> Answer<(Vec<UrlRow>, bool)> {
        let _ = (generation, ranges, query, limit);
        Err(Fault::new(Code::BadRequest, "there is no URL index here"))
    }

    /// How many pages of some ranges have a SURT key from `start` on below `end`, and whether that is exact.
    ///
    /// # Errors
    /// As [`Pages::urls`].
    fn url_count(
        &self,
        generation: u64,
        ranges: &RangeSet,
        start: &str,
        end: Option<&str>,
    ) -> Answer<(u64, bool)> {
        let _ = (generation, ranges, start, end);
        Err(Fault::new(Code::BadRequest, "there is no URL index here"))
    }

    /// SURT keys at which the parts `wanted` begin, of so many equal ones.
    ///
    /// # Errors
    /// As [`Pages::urls`].
    fn url_cuts(
        &self,
        generation: u64,
        start: &str,
        end: Option<&str>,
        parts: u32,
        wanted: Range<u32>,
    ) -> Answer<Vec<String>> {
        let _ = (generation, start, end, parts, wanted);
        Err(Fault::new(Code::BadRequest, "there is no URL index here"))
    }

    /// The store in figures.
    fn stats(&self) -> Stats;

    /// Takes back space.
    ///
    /// # Errors
    /// When the disk fails.
    fn compact(&self, budget_bytes: u64) -> Answer<Compacted>;

    /// Checks everything.
    ///
    /// # Errors
    /// When something cannot be read at all.
    fn verify(&self) -> Answer<Verified>;
}

/// One store, in its current state: generation 0 and no other.
pub struct StorePages {
    store: Arc<dyn PageStore>,
}

impl StorePages {
    /// The pages of `store`.
    pub fn new(store: Arc<dyn PageStore>) -> StorePages {
        StorePages { store }
    }
}

fn current(generation: u64) -> Answer<()> {
    if generation == 0 { Ok(()) } else { Err(Fault::generation(generation, vec![0])) }
}

impl Pages for StorePages {
    fn repository_key(&self) -> RepositoryKey {
        *self.store.repository_key()
    }

    fn dictionary(&self, digest: u64) -> Option<Arc<Dictionary>> {
        self.store.dictionaries().get(digest)
    }

    fn dictionaries(&self) -> Vec<Arc<Dictionary>> {
        self.store.dictionaries().all()
    }

    fn lookup_warm(&self, generation: u64, key: PageKey) -> Option<Answer<Option<Record>>> {
        if let Err(fault) = current(generation) {
            return Some(Err(fault));
        }
        Some(self.store.lookup_warm(key)?.map_err(Fault::from))
    }

    fn stats(&self) -> Stats {
        self.store.stats()
    }

    fn lookup(&self, generation: u64, key: PageKey) -> Answer<Option<Record>> {
        current(generation)?;
        Ok(self.store.lookup(key, Trust::Verify)?)
    }

    fn lookup_id(&self, generation: u64, id: PageId) -> Answer<Vec<Record>> {
        current(generation)?;
        Ok(self.store.lookup_id(id, Trust::Verify)?)
    }

    fn lookup_url(&self, generation: u64, url: &str) -> Answer<Option<Record>> {
        current(generation)?;
        Ok(self.store.lookup_url(url)?)
    }

    fn lookup_many(&self, generation: u64, keys: &[PageKey]) -> Answer<Vec<Answer<Option<Record>>>> {
        current(generation)?;
        Ok(self.store.lookup_many(keys).into_iter().map(|found| found.map_err(Fault::from)).collect())
    }

    fn stream(&self, generation: u64, spec: &StreamSpec) -> Answer<Box<dyn PageStream>> {
        current(generation)?;
        Ok(self.store.stream(spec)?)
    }

    fn held(&self, generation: u64, _: &RangeSet) -> Answer<Option<Arc<dyn Snapshot>>> {
        current(generation)?;
        Ok(Some(self.store.snapshot()))
    }

    /// Goes through the records, because a store does not list versions by itself.
    fn list(&self, generation: u64, from: PageKey, ranges: &RangeSet) -> Answer<Vec<Entry>> {
        current(generation)?;
        Ok(self.list_some(generation, from..=PageKey::MAX, ranges, usize::MAX)?.0)
    }

    fn list_some(
        &self,
        generation: u64,
        keys: RangeInclusive<PageKey>,
        ranges: &RangeSet,
        limit: usize,
    ) -> Answer<(Vec<Entry>, Option<PageKey>)> {
        current(generation)?;
        let some = self.store.snapshot().list(keys.start().id..=keys.end().id, *keys.start(), limit)?;
        let next = some.last().filter(|_| some.len() >= limit).and_then(|last| last.key.next());
        let wanted = some.iter().filter(|l| keys.contains(&l.key) && ranges.contains(l.key.id));
        let entry = |l: &Listed| Entry { key: l.key, version: l.version, bytes: l.bytes, arrival: UNKNOWN };
        Ok((wanted.map(entry).collect(), next))
    }

    fn keys(&self, generation: u64, from: PageKey, ranges: &RangeSet) -> Answer<Vec<PageKey>> {
        current(generation)?;
        let mut keys = self.store.keys()?;
        keys.retain(|key| *key >= from && ranges.contains(key.id));
        Ok(keys)
    }

    fn add_dictionary(&self, content: &[u8]) -> webbase_storage::Result<u64> {
        self.store.add_dictionary(content)
    }

    fn add(&self, pages: &[Page<'_>]) -> std::result::Result<Added, NotAdded> {
        Ok(self.store.add(pages)?)
    }

    fn add_records(&self, records: &[Record]) -> std::result::Result<Added, NotAdded> {
        Ok(self.store.add_records(records)?)
    }

    fn commit(&self) -> webbase_storage::Result<()> {
        self.store.commit()
    }

    fn compact(&self, budget_bytes: u64) -> Answer<Compacted> {
        Ok(self.store.compact(budget_bytes)?)
    }

    fn verify(&self) -> Answer<Verified> {
        Ok(self.store.verify()?)
    }
}
