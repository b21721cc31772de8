//! What a node's server serves: generations of the read side, sealed epochs of the update side, and with incremental
//! update the node's live pages.
//!
//! A request names a generation, [`LIVE`], or, with the bit [`EPOCH`], an epoch. Generation 0 is the empty one that a repository
//! begins with; there is no "current" generation here: who reads many pages of many nodes must say which.

use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use webbase_storage::urls::{UrlQuery, UrlRow, Urls};
use webbase_storage::{
    Added, Compacted, Dictionary, Due, Listed, Organization, Page, PageId, PageKey, PageStore, PageStream,
    Record, Renewed, RepositoryKey, Snapshot, Stats, StreamSpec, Trust, Verified, Version,
};

use super::epochs::{EPOCH, Epochs};
use super::generations::{Generations, Served, not_here};
use super::listing::Listing;
use super::live::{LiveUrls, Overlay};
use super::repair::{Met, Repairs};
use super::room::Room;
use super::runs::Placed;
use super::tombstones::Tombstones;
use super::urls::UrlLayer;
use crate::cycle::{self, AddRefusal, Node, RangeMap, lowest_stamp};
use crate::importance::Importances;
use crate::plan::{LIVE, Update};
use crate::server::{Answer, NotAdded, Pages, Places};
use crate::wire::message::{Code, Entry, Fault, Renewal, URL_ROWS_BYTES};
use crate::wire::ranges::RangeSet;

/// Rows of the URL index that are counted one by one.
const COUNTED_ROWS: u64 = 50_000;

/// The pages of a node.
pub(super) struct NodePages {
    pub(super) key: RepositoryKey,
    pub(super) map: RangeMap,
    pub(super) update: Option<Arc<Epochs>>,
    pub(super) read: Option<Arc<Generations>>,
    pub(super) machine: Arc<Mutex<Node>>,
    pub(super) repairs: Arc<Repairs>,
    pub(super) room: Arc<Room>,
    pub(super) mode: Update,
    pub(super) organization: Organization,
    /// The URL index of the epochs, with incremental update.
    pub(super) live_urls: Option<LiveUrls>,
    /// The ranges whose live pages are served, as the machine has them.
    pub(super) live: RwLock<cycle::RangeSet>,
    pub(super) importances: Option<Arc<Importances>>,
    /// The node's own folder.
    pub(super) scratch: PathBuf,
}

impl NodePages {
    /// What a store answered; damage is also told to who repairs it.
    fn told<T>(
        &self,
        generation: u64,
        page: Option<PageKey>,
        answer: webbase_storage::Result<T>,
    ) -> Answer<T> {
        answer.map_err(|e| {
            self.repairs.met(Met::of(generation, page, &e));
            e.into()
        })
    }

    fn generations(&self) -> Answer<&Generations> {
        self.read.as_deref().ok_or_else(|| Fault::new(Code::BadRequest, "this is no read node"))
    }

    fn epochs(&self) -> Answer<&Epochs> {
        self.update.as_deref().ok_or_else(|| Fault::new(Code::BadRequest, "this is no update node"))
    }

    /// Takes note of the ranges whose live pages are served: none, if the node serves nothing any more.
    pub(super) fn set_live(&self, ranges: Option<&cycle::RangeSet>) {
        let none = cycle::RangeSet::new();
        let ranges = ranges.unwrap_or(&none);
        if *self.live.read() != *ranges {
            *self.live.write() = ranges.clone();
        }
    }

    /// The live pages, if everything that is `wanted` of them is here: it names a range that a set lacks.
    fn overlay(&self, wanted: impl Fn(&cycle::RangeSet) -> Option<u32>) -> Answer<Overlay> {
        let refuse = |range| {
            let text = format!("this node does not show range {range} as it is now; get a new plan");
            Err(Fault::new(Code::Plan, text))
        };
        if self.mode != Update::Incremental {
            return Err(Fault::new(
                Code::BadRequest,
                "pages become visible by cycles here: name a generation",
            ));
        }
        if let Some(range) = wanted(&self.live.read()) {
            return refuse(range);
        }
        // Epochs first: what a fold takes out of them meanwhile is in the generation then.
        let epochs = self.epochs()?.snapshots();
        match self.generations()?.base(wanted) {
            Ok(base) => Ok(Overlay { key: self.key, organization: self.organization, base, epochs }),
            Err(range) => refuse(range),
        }
    }

    fn overlay_of(&self, ranges: Option<&RangeSet>) -> Answer<Overlay> {
        let Some(ranges) = ranges else { return self.overlay(|_| None) };
        let wanted = self.wanted(ranges)?;
        let asked = |range: &u32| wanted(*range);
        self.overlay(|here| (0..self.map.count()).filter(asked).find(|range| !here.contains(*range)))
    }

    /// What there is to read under this name; `ranges`, if any, must be there.
    fn snapshot(&self, generation: u64, ranges: Option<&RangeSet>) -> Answer<Option<Arc<dyn Snapshot>>> {
        if generation == LIVE {
            return Ok(Some(Arc::new(self.overlay_of(ranges)?)));
        }
        if generation & EPOCH != 0 {
            let epochs = self.epochs()?;
            let found = epochs.sealed(generation & !EPOCH).map(|(_, snapshot)| snapshot);
            let missing =
                || Fault::generation(generation, epochs.numbers().iter().map(|e| e | EPOCH).collect());
            return found.map(Some).ok_or_else(missing);
        }
        if generation == 0 {
            return Ok(None);
        }
        let served = self.generations()?.get(generation)?;
        if let Some(ranges) = ranges {
            let wanted = self.wanted(ranges)?;
            let missing = |range: &u32| wanted(*range) && !served.ranges.contains(*range);
            if let Some(range) = (0..self.map.count()).find(missing) {
                return Err(not_here(range, generation));
            }
        }
        Ok(Some(served.snapshot))
    }

    /// Which of the repository's ranges a request is about.
    fn wanted<'a>(&self, ranges: &'a RangeSet) -> Answer<impl Fn(u32) -> bool + 'a> {
        let map = self.map;
        if map.is_uniform() && !ranges.is_all() && ranges.bits() != map.bits() {
            let text = format!("there are 2^{} ranges, not 2^{}", map.bits(), ranges.bits());
            return Err(Fault::new(Code::BadRequest, text));
        }
        Ok(move |range| match map.is_uniform() {
            true => ranges.has(range),
            false => ranges.contains(*map.ids(range).start()),
        })
    }

    /// What was found, if it is served: where a key does not say its range, the record does.
    fn served(&self, generation: u64, found: Record) -> Answer<Record> {
        if !self.map.is_uniform() {
            return Ok(found);
        }
        let range = self.map.range_of(found.get().key(), found.get().version());
        let here = match generation {
            LIVE => self.live.read().contains(range),
            0 => true,
            _ if generation & EPOCH != 0 => true,
            _ => self.generations()?.get(generation)?.ranges.contains(range),
        };
        if here { Ok(found) } else { Err(not_here(range, generation)) }
    }

    /// As `served`, of an answer. A page that is not served fails all: who asked has an old plan.
    fn all_served(&self, generation: u64, found: Answer<Option<Record>>) -> Answer<Answer<Option<Record>>> {
        match found {
            Ok(Some(found)) => Ok(Ok(Some(self.served(generation, found)?))),
            found => Ok(found),
        }
    }

    fn of_page(&self, generation: u64, key: PageKey) -> Answer<Option<Arc<dyn Snapshot>>> {
        if generation == LIVE {
            let range = self.map.range_of_key(key);
            let overlay = self.overlay(|here| range.filter(|range| !here.contains(*range)))?;
            return Ok(Some(Arc::new(overlay)));
        }
        if generation == 0 || generation & EPOCH != 0 {
            return self.snapshot(generation, None);
        }
        self.generations()?.of_page(generation, key).map(Some)
    }

    /// Whether pages with this stamp are taken now, when the newest cycle that was sealed for is this.
    fn admit(&self, stamp: u32, sealed_cycle: u64) -> std::result::Result<(), NotAdded> {
        let stamp = self.map.cycle_of(stamp);
        let machine = self.machine.lock();
        let refusal = match machine.update().map(|update| update.admit(stamp)) {
            None => "this node was removed from the repository".into(),
            Some(Err(AddRefusal::NotWelcomed)) => {
                "this node has not heard from the management server yet".to_owned()
            }
            Some(Err(AddRefusal::Closed)) => "this node is being removed".into(),
            Some(admitted) => {
                // The machine learns of a sealing only when it is over; until then the epochs know better.
                let sealed = lowest_stamp(sealed_cycle, self.mode);
                let lowest = match admitted {
                    Err(AddRefusal::OldPlan { lowest }) => lowest.max(sealed),
                    _ => sealed,
                };
                if stamp >= lowest {
                    return Ok(());
                }
                format!("the plan is of cycle {stamp}, the oldest that counts is {lowest}")
            }
        };
        Err(NotAdded::Refused(Fault::new(Code::Plan, format!("{refusal}; get a new plan"))))
    }

    /// Stages in the open epoch, if the lowest of these stamps is taken there.
    fn stage(
        &self,
        stamps: impl Iterator<Item = u32>,
        bytes: usize,
        stage: impl FnOnce(&dyn PageStore) -> webbase_storage::Result<Added>,
    ) -> std::result::Result<Added, NotAdded> {
        let epochs = self.epochs().map_err(NotAdded::Refused)?;
        epochs.with_open(|store, sealed_cycle| {
            stamps.min().map_or(Ok(()), |lowest| self.admit(lowest, sealed_cycle))?;
            self.room.check(bytes as u64).map_err(|full| NotAdded::Refused(full.into()))?;
            Ok(stage(store)?)
        })
    }

    /// The index of live pages, if these are asked for: that of the epochs, and that of the generation below.
    fn live_layer(&self, generation: u64, ranges: Option<&RangeSet>) -> Answer<Option<LiveLayer<'_>>> {
        let Some(live) = self.live_urls.as_ref().filter(|_| generation == LIVE) else { return Ok(None) };
        let overlay = self.overlay_of(ranges)?;
        let base = match &overlay.base {
            Some(base) => Some(self.generations()?.urls.get(base.number, &base.snapshot)?),
            None => None,
        };
        Ok(Some((live, overlay, base)))
    }

    /// As `url_told`, of live pages.
    fn live_told<T>(&self, overlay: &Overlay, answer: webbase_storage::Result<T>) -> Answer<T> {
        match &overlay.base {
            Some(base) => self.generations()?.urls.told(base.number, &base.snapshot, answer),
            None => Ok(answer?),
        }
    }

    /// The URL index of what there is to read under this name; `ranges`, if any, must be there.
    fn url_layer(&self, generation: u64, ranges: Option<&RangeSet>) -> Answer<Option<UrlLayer>> {
        self.snapshot(generation, ranges)?;
        if generation == 0 {
            return Ok(None);
        }
        if generation & EPOCH != 0 {
            return Err(Fault::new(Code::BadRequest, "an epoch has no URL index"));
        }
        let read = self.generations()?;
        let Served { number, snapshot, .. } = read.get(generation)?;
        let urls = read.urls.get(number, &snapshot)?;
        Ok(Some(UrlLayer { generation, number, snapshot, urls }))
    }

    /// What the URL index answered; damage has it made anew.
    fn url_told<T>(&self, layer: &UrlLayer, answer: webbase_storage::Result<T>) -> Answer<T> {
        self.generations()?.urls.told(layer.number, &layer.snapshot, answer)
    }

    /// Which rows are of these ranges.
    fn wanted_rows<'a>(&self, ranges: &'a RangeSet) -> Answer<impl Fn(&UrlRow) -> bool + 'a> {
        let (wanted, map) = (self.wanted(ranges)?, self.map);
        Ok(move |row: &UrlRow| {
            let key = PageKey { id: PageId(u64::from(row.id_high) << 48), tie: 0 };
            wanted(
                map.range_of(key, Version { fetched_at_ms: row.fetched_at_ms, epoch: row.epoch, digest: 0 }),
            )
        })
    }

    /// Keeps the rows of pages that were staged, until they are committed. A disk that fails drops what was staged.
    fn stage_rows(
        &self,
        added: std::result::Result<Added, NotAdded>,
        rows: impl FnOnce() -> Vec<(PageKey, UrlRow)>,
    ) -> std::result::Result<Added, NotAdded> {
        match (&self.live_urls, &added) {
            (Some(live), Ok(_)) => live.stage(rows().into_iter()),
            (Some(live), Err(NotAdded::Disk(_))) => drop(live.take_staged()),
            _ => {}
        }
        added
    }

    /// Shows the rows of pages that were committed.
    fn show_rows(&self, epochs: &Epochs, rows: Vec<(PageKey, UrlRow)>) {
        let Some(live) = self.live_urls.as_ref().filter(|_| !rows.is_empty()) else { return };
        let (epoch, snapshot) = epochs.open_now();
        if let Err(e) = live.publish(epoch, rows, &*snapshot) {
            tracing::error!("rows of new pages are missing in the URL index until the next cycle: {e}");
        }
        live.retain(&epochs.numbers());
    }

    fn stores(&self) -> Vec<Arc<dyn PageStore>> {
        let update = self.update.as_ref().map(|epochs| epochs.newest());
        update.into_iter().chain(self.read.as_ref().map(|read| read.store.clone())).collect()
    }
}

/// What the index of live pages is made of: that of the epochs, and that of the generation below.
type LiveLayer<'a> = (&'a LiveUrls, Overlay, Option<Urls>);

impl Pages for NodePages {
    fn repository_key(&self) -> RepositoryKey {
        self.key
    }

    fn dictionary(&self, digest: u64) -> Option<Arc<Dictionary>> {
        let here = self.stores().into_iter().find_map(|store| store.dictionaries().get(digest));
        here.or_else(|| {
            let epochs = self.update.as_ref()?;
            epochs.numbers().into_iter().find_map(|e| epochs.sealed(e)?.0.dictionaries().get(digest))
        })
    }

    fn dictionaries(&self) -> Vec<Arc<Dictionary>> {
        self.stores().iter().flat_map(|store| store.dictionaries().all()).collect()
    }

    fn lookup_warm(&self, generation: u64, key: PageKey) -> Option<Answer<Option<Record>>> {
        match self.of_page(generation, key) {
            Ok(Some(snapshot)) => match snapshot.lookup_warm(key)? {
                Ok(Some(found)) => Some(self.served(generation, found).map(Some)),
                Ok(None) => Some(Ok(None)),
                Err(e) => Some(Err(e.into())),
            },
            Ok(None) => Some(Ok(None)),
            Err(fault) => Some(Err(fault)),
        }
    }

    fn lookup(&self, generation: u64, key: PageKey) -> Answer<Option<Record>> {
        let Some(snapshot) = self.of_page(generation, key)? else { return Ok(None) };
        let found = self.told(generation, Some(key), snapshot.lookup(key, Trust::Verify))?;
        found.map(|found| self.served(generation, found)).transpose()
    }

    fn lookup_id(&self, generation: u64, id: PageId) -> Answer<Vec<Record>> {
        let Some(snapshot) = self.of_page(generation, PageKey { id, tie: 0 })? else { return Ok(Vec::new()) };
        let found = self.told(generation, None, snapshot.lookup_id(id, Trust::Verify))?;
        found.into_iter().map(|found| self.served(generation, found)).collect()
    }

    fn lookup_url(&self, generation: u64, url: &str) -> Answer<Option<Record>> {
        let key = self.key.page_key(url).map_err(webbase_storage::StorageError::from)?;
        let Some(snapshot) = self.of_page(generation, key)? else { return Ok(None) };
        let found = self.told(generation, Some(key), snapshot.lookup_url(url))?;
        found.map(|found| self.served(generation, found)).transpose()
    }

    fn lookup_many(&self, generation: u64, keys: &[PageKey]) -> Answer<Vec<Answer<Option<Record>>>> {
        if generation == 0 || generation & EPOCH != 0 {
            let snapshot: Option<Arc<dyn Snapshot>> = match generation {
                LIVE => {
                    let lacks = |here: &cycle::RangeSet| {
                        keys.iter()
                            .filter_map(|key| self.map.range_of_key(*key))
                            .find(|range| !here.contains(*range))
                    };
                    Some(Arc::new(self.overlay(lacks)?))
                }
                _ => self.snapshot(generation, None)?,
            };
            let Some(snapshot) = snapshot else {
                return Ok(keys.iter().map(|_| Ok(None)).collect());
            };
            let found = snapshot.lookup_many(keys).into_iter().zip(keys);
            let told = found.map(|(found, key)| self.told(generation, Some(*key), found));
            return told.map(|found| self.all_served(generation, found)).collect();
        }
        let served = self.generations()?.get(generation)?;
        let elsewhere = |range: &u32| !served.ranges.contains(*range);
        if let Some(range) = keys.iter().filter_map(|key| self.map.range_of_key(*key)).find(elsewhere) {
            return Err(not_here(range, generation));
        }
        let mut answers = Vec::with_capacity(keys.len());
        for (found, key) in served.snapshot.lookup_many(keys).into_iter().zip(keys) {
            answers.push(self.all_served(generation, self.told(generation, Some(*key), found))?);
        }
        Ok(answers)
    }

    fn lookup_in(
        &self,
        generation: u64,
        ranges: &RangeSet,
        keys: &[PageKey],
    ) -> Answer<Vec<Answer<Option<Record>>>> {
        let Some(snapshot) = self.snapshot(generation, Some(ranges))? else {
            return Ok(keys.iter().map(|_| Ok(None)).collect());
        };
        let wanted = self.wanted(ranges)?;
        let mut answers = Vec::with_capacity(keys.len());
        for (found, key) in snapshot.lookup_many(keys).into_iter().zip(keys) {
            let found = self.told(generation, Some(*key), found);
            // Copies of other ranges may be old.
            let asked = |found: &Record| wanted(self.map.range_of(*key, found.get().version()));
            answers.push(found.map(|found| found.filter(asked)));
        }
        Ok(answers)
    }

    fn stream(&self, generation: u64, spec: &StreamSpec) -> Answer<Box<dyn PageStream>> {
        match self.snapshot(generation, None)? {
            Some(snapshot) => {
                let (stream, repairs) = (snapshot.stream(spec)?, self.repairs.clone());
                Ok(Box::new(Watched { stream, generation, repairs }))
            }
            None => Ok(Box::new(NoPages)),
        }
    }

    fn held(&self, generation: u64, ranges: &RangeSet) -> Answer<Option<Arc<dyn Snapshot>>> {
        match generation {
            LIVE => self.snapshot(generation, Some(ranges)),
            _ => Ok(None),
        }
    }

    fn kept(&self, generation: u64) -> Answer<Option<Arc<dyn Snapshot>>> {
        // The other organizations read all pages to list them.
        if generation == 0 || self.organization != Organization::Log {
            return Ok(None);
        }
        self.snapshot(generation, None)
    }

    fn importances(&self) -> Option<Arc<Importances>> {
        self.importances.clone()
    }

    fn scratch(&self) -> PathBuf {
        self.scratch.clone()
    }

    fn list(&self, generation: u64, from: PageKey, ranges: &RangeSet) -> Answer<Vec<Entry>> {
        self.list_between(generation, from..=PageKey::MAX, ranges)
    }

    fn list_between(
        &self,
        generation: u64,
        keys: RangeInclusive<PageKey>,
        ranges: &RangeSet,
    ) -> Answer<Vec<Entry>> {
        Ok(self.list_some(generation, keys, ranges, usize::MAX)?.0)
    }

    fn list_some(
        &self,
        generation: u64,
        keys: RangeInclusive<PageKey>,
        ranges: &RangeSet,
        limit: usize,
    ) -> Answer<(Vec<Entry>, Option<PageKey>)> {
        // The open epoch, too, can be listed: the management server's index is made anew so.
        let open = self.epochs().ok().filter(|_| generation & EPOCH != 0);
        let found = match open.and_then(|epochs| epochs.committed(generation & !EPOCH)) {
            Some(snapshot) => Some(snapshot),
            None => self.snapshot(generation, Some(ranges))?,
        };
        let Some(snapshot) = found else { return Ok((Vec::new(), None)) };
        let runs = match &self.read {
            Some(read) if generation & EPOCH == 0 => read.get(generation)?.runs,
            _ => Arc::default(),
        };
        let arrival = |l: &Listed| runs.shared_arrival(self.map.range_of(l.key, l.version), l.ordinal);
        let listing = Listing { snapshot: &*snapshot, map: self.map, wanted: self.wanted(ranges)?, arrival };
        self.told(generation, None, listing.some(&keys, limit))
    }

    fn keys(&self, generation: u64, from: PageKey, ranges: &RangeSet) -> Answer<Vec<PageKey>> {
        Ok(self.list(generation, from, ranges)?.into_iter().map(|entry| entry.key).collect())
    }

    fn is_pulled(&self, generation: u64) -> bool {
        generation & EPOCH != 0 && generation != LIVE
    }

    fn places(&self, generation: u64) -> Option<Arc<dyn Places>> {
        let read = self.read.as_ref().filter(|_| generation & EPOCH == 0)?;
        let Served { snapshot, runs, .. } = read.get(generation).ok()?;
        Some(Arc::new(Placed { runs, snapshot, map: self.map }))
    }

    fn check_ranges(&self, generation: u64, ranges: &RangeSet) -> Answer<()> {
        self.snapshot(generation, Some(ranges)).map(|_| ())
    }

    fn range_of(&self, ranges: &RangeSet, key: PageKey, version: Option<Version>) -> Option<u32> {
        match self.map.is_uniform() {
            true => version.map(|version| self.map.range_of(key, version)),
            false => Some(ranges.range_of(key.id)),
        }
    }

    fn first_key(&self, ranges: &RangeSet, range: u32) -> PageKey {
        match self.map.is_uniform() {
            true => PageKey::MIN,
            false => PageKey { id: ranges.first_id(range), tie: 0 },
        }
    }

    fn add_dictionary(&self, content: &[u8]) -> webbase_storage::Result<u64> {
        match &self.update {
            Some(epochs) => epochs.with_open(|store, _| store.add_dictionary(content)),
            None => Ok(Dictionary::digest_of(content)),
        }
    }

    fn add(&self, pages: &[Page<'_>]) -> std::result::Result<Added, NotAdded> {
        let bytes = pages.iter().map(|page| page.body_len() + page.head.len() + page.url.len()).sum();
        let added = self.stage(pages.iter().map(|page| page.epoch), bytes, |store| store.add(pages));
        self.stage_rows(added, || {
            let row = |page: &Page<'_>| {
                let key = self.key.page_key(page.url).ok()?;
                Some((key, UrlRow::of_page(page, key).ok()?))
            };
            pages.iter().filter_map(row).collect()
        })
    }

    fn add_records(&self, records: &[Record]) -> std::result::Result<Added, NotAdded> {
        let stamps = records.iter().map(|record| record.get().epoch());
        let bytes = records.iter().map(|record| record.bytes().len()).sum();
        let added = self.stage(stamps, bytes, |store| store.add_records(records));
        self.stage_rows(added, || {
            let row = |record: &Record| Some((record.get().key(), UrlRow::of(&record.get()).ok()?));
            records.iter().filter_map(row).collect()
        })
    }

    fn commit(&self) -> webbase_storage::Result<()> {
        match &self.update {
            Some(epochs) => {
                // What is staged from here on may be committed too; its rows show with the next commit, which is its own.
                let rows = self.live_urls.as_ref().map_or_else(Vec::new, LiveUrls::take_staged);
                self.room.commit(|| epochs.commit())?;
                self.show_rows(epochs, rows);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn tombstones(&self, generation: u64) -> Answer<Vec<u8>> {
        if generation == 0 {
            return Ok(Vec::new());
        }
        let generations = self.generations()?;
        let number = generations.get(generation)?.number;
        let all = Tombstones::read(&generations.dir, number);
        Ok(all.map_err(|e| Fault::new(Code::Store, e))?.encode())
    }

    fn renewed(
        &self,
        generation: u64,
        ranges: &RangeSet,
        from: u64,
        limit: usize,
    ) -> Answer<(Vec<Renewal>, Option<u64>)> {
        if self.snapshot(generation, Some(ranges))?.is_none() {
            return Ok((Vec::new(), None));
        }
        let (generations, wanted) = (self.generations()?, self.wanted(ranges)?);
        let number = generations.get(generation)?.number;
        let (found, next) = self.told(generation, None, generations.store.renewed(number, from, limit))?;
        let asked = found.iter().filter(|page| wanted(self.map.range_of(page.key, page.version)));
        let row = |page: &Renewed| Renewal { key: page.key, deadline_ms: page.deadline_ms };
        Ok((asked.map(row).collect(), next))
    }

    fn due(&self, generation: u64, now_ms: u64, limit: usize) -> Answer<Vec<(Due, Version)>> {
        let Some(snapshot) = self.snapshot(generation, None)? else { return Ok(Vec::new()) };
        let generations = self.generations()?;
        // A page with a newer version in an epoch is not due.
        let base = match generation {
            LIVE => generations.base(|_| None).ok().flatten().map(|base| base.snapshot),
            _ => None,
        };
        let mut due = Vec::new();
        for page in generations.store.due(now_ms, limit)? {
            let of = |snapshot: &dyn Snapshot| snapshot.list(page.key.id..=page.key.id, page.key, 1);
            let listed = of(&*snapshot)?.into_iter().find(|l| l.key == page.key);
            let newer = match (&base, &listed) {
                (Some(base), Some(shown)) => !of(&**base)?.contains(shown),
                _ => false,
            };
            due.extend(listed.filter(|_| !newer).map(|l| (page, l.version)));
        }
        Ok(due)
    }

    fn urls(
        &self,
        generation: u64,
        ranges: &RangeSet,
        query: &UrlQuery,
        limit: usize,
    ) -> Answer<(Vec<UrlRow>, bool)> {
        if let Some((live, overlay, base)) = self.live_layer(generation, Some(ranges))? {
            let found = live.rows(&overlay, base.as_ref(), query, limit, self.wanted_rows(ranges)?);
            return self.live_told(&overlay, found);
        }
        let Some(layer) = self.url_layer(generation, Some(ranges))? else { return Ok((Vec::new(), false)) };
        let wanted = self.wanted_rows(ranges)?;
        let (mut found, mut bytes) = (Vec::new(), 0);
        let read = || -> webbase_storage::Result<(Vec<UrlRow>, bool)> {
            for row in layer.rows(query)? {
                let row = row?;
                if wanted(&row) {
                    if found.len() == limit || bytes > URL_ROWS_BYTES {
                        return Ok((found, true));
                    }
                    bytes += row.url.len() + row.surt.len() + 64;
                    found.push(row);
                }
            }
            Ok((found, false))
        };
        let answer = read();
        self.url_told(&layer, answer)
    }

    fn url_count(
        &self,
        generation: u64,
        ranges: &RangeSet,
        start: &str,
        end: Option<&str>,
    ) -> Answer<(u64, bool)> {
        if let Some((live, overlay, base)) = self.live_layer(generation, Some(ranges))? {
            let more = live.more_than(&overlay, base.as_ref(), start, end, self.wanted_rows(ranges)?);
            let more = self.live_told(&overlay, more)?;
            let Some(newest) = self.generations()?.numbers().last().copied() else { return Ok((more, true)) };
            let (count, is_exact) = self.url_count(newest, ranges, start, end)?;
            return Ok((count + more, is_exact));
        }
        let Some(layer) = self.url_layer(generation, Some(ranges))? else { return Ok((0, true)) };
        let is_asked = self.wanted(ranges)?;
        let here = self.generations()?.get(layer.generation).map(|served| served.ranges).unwrap_or_default();
        let asked = here.iter().filter(|range| is_asked(*range)).count() as u64;
        let all = self.url_told(&layer, layer.count(start, end))?;
        if asked == here.iter().count() as u64 {
            return Ok((all, true));
        }
        // The node has more than it is asked for. Few rows are counted one by one; of many an equal share is.
        if all > COUNTED_ROWS {
            return Ok((all * asked / (here.iter().count() as u64).max(1), false));
        }
        let wanted = self.wanted_rows(ranges)?;
        let query = UrlQuery { start: start.into(), end: end.map(str::to_owned), ..UrlQuery::default() };
        let count = || {
            let mut count = 0;
            for row in layer.rows(&query)? {
                count += u64::from(wanted(&row?));
            }
            Ok(count)
        };
        Ok((self.url_told(&layer, count())?, true))
    }

    fn url_cuts(
        &self,
        generation: u64,
        start: &str,
        end: Option<&str>,
        parts: u32,
        wanted: Range<u32>,
    ) -> Answer<Vec<String>> {
        // What is not folded yet is little: the generation says where the cuts are.
        let generation = match generation {
            LIVE => self.generations()?.numbers().last().copied().unwrap_or(0),
            generation => generation,
        };
        let Some(layer) = self.url_layer(generation, None)? else { return Ok(Vec::new()) };
        let cuts = || {
            let count = layer.urls.count(start, end)?;
            let mut cuts = Vec::new();
            for part in wanted {
                let skip = u128::from(count) * u128::from(part) / u128::from(parts.max(1));
                match layer.urls.skip(start, end, skip as u64)?.next().transpose()? {
                    Some(row) if part > 0 => cuts.push(row.surt),
                    _ if part == 0 => cuts.push(start.to_owned()),
                    _ => break,
                }
            }
            Ok(cuts)
        };
        let answer = cuts();
        self.url_told(&layer, answer)
    }

    fn stats(&self) -> Stats {
        self.room.stats()
    }

    fn compact(&self, budget_bytes: u64) -> Answer<Compacted> {
        Ok(self.generations()?.store.compact(budget_bytes)?)
    }

    fn verify(&self) -> Answer<Verified> {
        let mut all = Verified::default();
        let sealed = self.update.as_ref().map_or_else(Vec::new, |epochs| {
            epochs.numbers().into_iter().filter_map(|e| epochs.sealed(e)).map(|(store, _)| store).collect()
        });
        for store in self.stores().into_iter().chain(sealed) {
            let found = store.verify()?;
            found.damage.iter().for_each(|damage| self.repairs.met(Met::Damage(damage.clone())));
            all.good_records += found.good_records;
            all.checked_bytes += found.checked_bytes;
            all.damage.extend(found.damage);
        }
        all.damage.extend(self.read.as_ref().map_or_else(Vec::new, |read| read.urls.verify()));
        Ok(all)
    }
}

/// A stream whose damage is told to who repairs it.
struct Watched {
    stream: Box<dyn PageStream>,
    generation: u64,
    repairs: Arc<Repairs>,
}

impl PageStream for Watched {
    fn next(&mut self) -> Option<webbase_storage::Result<Record>> {
        let next = self.stream.next();
        if let Some(Err(e)) = &next {
            self.repairs.met(Met::of(self.generation, self.stream.lost(), e));
        }
        next
    }

    fn cursor(&self) -> webbase_storage::Cursor {
        self.stream.cursor()
    }

    fn ordinal(&self) -> Option<u64> {
        self.stream.ordinal()
    }

    fn lost(&self) -> Option<PageKey> {
        self.stream.lost()
    }
}

/// The stream of an empty generation.
struct NoPages;

impl PageStream for NoPages {
    fn next(&mut self) -> Option<webbase_storage::Result<Record>> {
        None
    }

    fn cursor(&self) -> webbase_storage::Cursor {
        webbase_storage::Cursor::End
    }
}
