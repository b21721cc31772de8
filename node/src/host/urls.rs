//! The URL index of a node's generations, in `urls/` beside the store (`webbase_storage::urls` has its format).
//!
//! ```text
//!   a pull ──▶ rows of what came and went ──▶ settled against the base's runs ──▶ list-N ──▶ kept, served with generation N
//!   no list, or damage ──▶ made anew from the records' heads, in the background, while other nodes answer
//! ```
//!
//! 1. Lists have the numbers under which the store keeps the generations. A list is durable before the store keeps the
//!    generation, so a generation that is served has its index; what a kill leaves between the two is let go.
//! 2. The index says nothing that the records do not say. Whatever is wrong with it costs answers about URLs for a while,
//!    never a page and never a cycle.
//! 3. Memory is bounded: what changed waits in [`BUDGET_BYTES`], the rest in sorted runs on disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Mutex, RwLock};
use webbase_storage::disk::OsDisk;
use webbase_storage::urls::{UrlBuilder, UrlFiles, UrlQuery, UrlRow, UrlRows, Urls};
use webbase_storage::{PageKey, PageStore, Record, RepositoryKey, Snapshot, StorageError, StreamSpec, Trust};

use crate::background::lower_priority;
use crate::error::{NodeError, Result};
use crate::wire::message::{Code, Fault};

/// Memory for rows that wait to be sorted.
const BUDGET_BYTES: usize = 32 << 20;
/// Pages that are looked up at once to learn their URLs.
const LOOKUPS: usize = 1024;

/// The index of one generation.
enum State {
    Ready(Urls),
    /// It is being made anew.
    Making,
}

/// The indexes of a node's generations.
pub(super) struct UrlIndexes {
    files: Arc<UrlFiles>,
    dir: PathBuf,
    key: RepositoryKey,
    /// By the store's numbers.
    states: RwLock<BTreeMap<u64, State>>,
    stop: AtomicBool,
    making: Mutex<Vec<JoinHandle<()>>>,
}

/// The index of what is read under one name.
pub(super) struct UrlLayer {
    pub(super) generation: u64,
    pub(super) number: u64,
    pub(super) snapshot: Arc<dyn Snapshot>,
    pub(super) urls: Urls,
}

impl UrlLayer {
    /// Its rows.
    pub(super) fn rows(&self, query: &UrlQuery) -> webbase_storage::Result<UrlRows> {
        self.urls.query(query)
    }

    /// How many pages are between two keys.
    pub(super) fn count(&self, start: &str, end: Option<&str>) -> webbase_storage::Result<u64> {
        self.urls.count(start, end)
    }
}

/// What a pull does to the index.
pub(super) struct UrlChanges {
    builder: UrlBuilder,
    /// A URL could not be learned, so the index has to be made of all pages.
    incomplete: bool,
}

impl UrlChanges {
    /// Pages that are there from now on.
    pub(super) fn add(&mut self, records: &[Record]) -> webbase_storage::Result<()> {
        for record in records {
            let page = record.get();
            match UrlRow::of(&page) {
                Ok(row) => self.builder.add(page.key(), row)?,
                // No store takes such a URL; should one ever, its page is found by its key.
                Err(e) => tracing::warn!(url = page.url(), "a page without a place in the URL index: {e}"),
            }
        }
        Ok(())
    }

    /// Pages that are about to go from a state.
    pub(super) fn remove(
        &mut self,
        snapshot: &dyn Snapshot,
        keys: &[PageKey],
    ) -> webbase_storage::Result<()> {
        for keys in keys.chunks(LOOKUPS) {
            for (found, key) in snapshot.lookup_many(keys).into_iter().zip(keys) {
                match found {
                    Ok(Some(record)) => self.builder.remove(*key, record.get().url())?,
                    Ok(None) => {}
                    Err(_) => self.incomplete = true,
                }
            }
        }
        Ok(())
    }
}

impl UrlIndexes {
    /// Opens the folder, made if it is not there.
    pub(super) fn open(dir: &Path, key: RepositoryKey) -> Result<Arc<UrlIndexes>> {
        let dir = dir.join("urls");
        let files = UrlFiles::open(Arc::new(OsDisk::new()), &dir, key)?;
        let (states, stop, making) = (RwLock::default(), AtomicBool::new(false), Mutex::default());
        Ok(Arc::new(UrlIndexes { files, dir, key, states, stop, making }))
    }

    /// Begins to collect what changes.
    pub(super) fn changes(&self) -> UrlChanges {
        UrlChanges { builder: self.files.builder(BUDGET_BYTES), incomplete: false }
    }

    /// The index of the store's own state: that of the generation kept as `base` (`None`: the empty one) with these changes.
    /// Where versions can go back (`exact`) what was added counts, else the newest does. `None` when it could not be made:
    /// it is made later then, from the kept generation.
    pub(super) fn next(
        &self,
        base: Option<u64>,
        changes: UrlChanges,
        exact: bool,
        store: &dyn PageStore,
    ) -> Option<Urls> {
        let snapshot = store.snapshot();
        let base = match base {
            None => Some(Urls::empty(self.key)),
            Some(number) => match self.states.read().get(&number) {
                Some(State::Ready(urls)) => Some(urls.clone()),
                _ => None,
            },
        };
        let UrlChanges { builder, incomplete } = changes;
        if let Some(base) = base.filter(|_| !incomplete) {
            let mut tied = |key: PageKey| match snapshot.lookup(key, Trust::Disk)? {
                Some(record) => UrlRow::of(&record.get()).map(Some),
                None => Ok(None),
            };
            match builder.finish(&base, if exact { None } else { Some(&mut tied) }) {
                Ok(urls) => return Some(urls),
                Err(e) => tracing::error!("the URL index is made anew, from all pages: {e}"),
            }
        }
        let made = self.make(&*snapshot);
        made.inspect_err(|e| tracing::error!("the URL index cannot be made now: {e}")).ok()
    }

    /// The index of a state, from the heads of all its records.
    fn make(&self, snapshot: &dyn Snapshot) -> webbase_storage::Result<Urls> {
        let mut changes = self.changes();
        let spec = StreamSpec { trust: Trust::Disk, ..StreamSpec::default() };
        let mut left_out = 0_u64;
        for record in snapshot.stream(&spec)? {
            if self.stop.load(Ordering::Relaxed) {
                let (op, path) = ("make the index of URLs in", self.dir.clone());
                return Err(StorageError::Io { op, path, source: std::io::ErrorKind::Interrupted.into() });
            }
            match record {
                Ok(record) => changes.add(std::slice::from_ref(&record))?,
                // A page that cannot be read is not served either.
                Err(e) => {
                    left_out += 1;
                    tracing::warn!("a page is left out of the URL index: {e}");
                }
            }
        }
        if left_out > 0 {
            tracing::warn!("{left_out} pages are left out of the URL index, because they cannot be read");
        }
        changes.builder.finish(&Urls::empty(self.key), None)
    }

    /// Makes this the index of the generation that the store is about to keep as `number`.
    pub(super) fn save(&self, number: u64, urls: Urls) -> Result<()> {
        self.files.save(number, &urls)?;
        self.states.write().insert(number, State::Ready(urls));
        Ok(())
    }

    /// Lets go of all other indexes.
    pub(super) fn retain(&self, numbers: &[u64]) -> Result<()> {
        self.states.write().retain(|number, _| numbers.contains(number));
        Ok(self.files.retain(numbers)?)
    }

    /// Loads the index of a generation that is going to be served; where there is none, it is made.
    pub(super) fn load(self: &Arc<Self>, number: u64, snapshot: &Arc<dyn Snapshot>) {
        if self.states.read().contains_key(&number) {
            return;
        }
        match self.files.load(number) {
            Ok(Some(urls)) => _ = self.states.write().insert(number, State::Ready(urls)),
            Ok(None) => self.make_later(number, snapshot.clone()),
            Err(e) => {
                tracing::error!("the URL index is damaged and made anew: {e}");
                self.make_later(number, snapshot.clone());
            }
        }
    }

    /// The index of a generation.
    pub(super) fn get(
        self: &Arc<Self>,
        number: u64,
        snapshot: &Arc<dyn Snapshot>,
    ) -> std::result::Result<Urls, Fault> {
        if let Some(State::Ready(urls)) = self.states.read().get(&number) {
            return Ok(urls.clone());
        }
        self.load(number, snapshot);
        match self.states.read().get(&number) {
            Some(State::Ready(urls)) => Ok(urls.clone()),
            _ => {
                Err(Fault::new(Code::Busy, "this node's URL index is being made anew; ask again in a while"))
            }
        }
    }

    /// An answer from the index of a generation; damage has it made anew.
    pub(super) fn told<T>(
        self: &Arc<Self>,
        number: u64,
        snapshot: &Arc<dyn Snapshot>,
        answer: webbase_storage::Result<T>,
    ) -> std::result::Result<T, Fault> {
        answer.map_err(|e| {
            if matches!(e, StorageError::Corrupt { .. }) {
                tracing::error!("the URL index is damaged and made anew: {e}");
                self.states.write().remove(&number);
                self.make_later(number, snapshot.clone());
            }
            e.into()
        })
    }

    fn make_later(self: &Arc<Self>, number: u64, snapshot: Arc<dyn Snapshot>) {
        let before = {
            let mut states = self.states.write();
            if states.contains_key(&number) || self.stop.load(Ordering::Relaxed) {
                return;
            }
            states.insert(number, State::Making)
        };
        drop(before);
        let this = self.clone();
        let work = move || {
            lower_priority();
            let made = this.make(&*snapshot);
            drop(snapshot);
            // Whoever let go of the generation meanwhile wants no index of it.
            if !this.states.read().contains_key(&number) {
                return;
            }
            let saved = made.and_then(|urls| this.files.save(number, &urls).map(|()| urls));
            let mut states = this.states.write();
            match saved {
                Ok(urls) => _ = states.insert(number, State::Ready(urls)),
                Err(e) => {
                    tracing::error!("the URL index cannot be made now: {e}");
                    states.remove(&number);
                }
            }
        };
        let mut making = self.making.lock();
        making.retain(|thread| !thread.is_finished());
        match std::thread::Builder::new().name("webbase-urls".into()).spawn(work) {
            Ok(thread) => making.push(thread),
            Err(e) => {
                tracing::error!("{}", NodeError::io("start a thread for", "the URL index", e));
                self.states.write().remove(&number);
            }
        }
    }

    /// Ends what is being made. It is made again when it is needed.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits until nothing is being made any more.
    pub(super) fn join(&self) {
        self.stop();
        let making = std::mem::take(&mut *self.making.lock());
        // One that panicked has said so.
        making.into_iter().for_each(|thread| drop(thread.join()));
    }

    /// Damage of the indexes, with file and offset.
    pub(super) fn verify(&self) -> Vec<webbase_storage::Damage> {
        let ready: Vec<Urls> = {
            let states = self.states.read();
            let ready = states.values().filter_map(|state| match state {
                State::Ready(urls) => Some(urls.clone()),
                State::Making => None,
            });
            ready.collect()
        };
        let damage = ready.iter().filter_map(|urls| match urls.verify() {
            Err(StorageError::Corrupt { path, offset, what }) => {
                Some(webbase_storage::Damage { path, offset, what, key: None })
            }
            _ => None,
        });
        damage.collect()
    }
}
