//! What a node's server serves: generations of the read side, and sealed epochs of the update side.
//!
//! A request names a generation, or, with the bit [`EPOCH`], an epoch. Generation 0 is the empty one that a repository
//! begins with; there is no "current" generation here: who reads many pages of many nodes must say which.

use std::ops::RangeInclusive;
use std::sync::Arc;

use parking_lot::Mutex;
use webbase_storage::{
    Added, Compacted, Dictionary, Due, Page, PageId, PageKey, PageStore, PageStream, Record, RepositoryKey,
    Snapshot, Stats, StreamSpec, Trust, Verified, Version,
};

use super::epochs::{EPOCH, Epochs};
use super::generations::{Generations, not_here};
use super::repair::{Met, Repairs};
use super::tombstones::Tombstones;
use crate::cycle::{AddRefusal, Node, RangeMap};
use crate::server::{Answer, Pages};
use crate::wire::message::{Code, Entry, Fault};
use crate::wire::ranges::RangeSet;

/// Rows of a list that are made at once.
const LIST_ROWS: usize = 64 << 10;

/// The pages of a node.
pub(super) struct NodePages {
    pub(super) key: RepositoryKey,
    pub(super) map: RangeMap,
    pub(super) update: Option<Arc<Epochs>>,
    pub(super) read: Option<Arc<Generations>>,
    pub(super) machine: Arc<Mutex<Node>>,
    pub(super) repairs: Arc<Repairs>,
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

    /// What there is to read under this name; `ranges`, if any, must be there.
    fn snapshot(&self, generation: u64, ranges: Option<&RangeSet>) -> Answer<Option<Arc<dyn Snapshot>>> {
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
        if self.map.is_uniform() && generation != 0 && generation & EPOCH == 0 {
            let range = self.map.range_of(found.get().key(), found.get().version());
            if !self.generations()?.get(generation)?.ranges.contains(range) {
                return Err(not_here(range, generation));
            }
        }
        Ok(found)
    }

    fn of_page(&self, generation: u64, key: PageKey) -> Answer<Option<Arc<dyn Snapshot>>> {
        if generation == 0 || generation & EPOCH != 0 {
            return self.snapshot(generation, None);
        }
        self.generations()?.of_page(generation, key).map(Some)
    }

    fn stores(&self) -> Vec<Arc<dyn PageStore>> {
        let update = self.update.as_ref().map(|epochs| epochs.newest());
        update.into_iter().chain(self.read.as_ref().map(|read| read.store.clone())).collect()
    }
}

/// All keys.
pub(super) const ALL_KEYS: RangeInclusive<PageKey> =
    PageKey::MIN..=PageKey { id: PageId(u64::MAX), tie: u64::MAX };

/// Lists the pages of some ranges between two keys, in order.
pub(super) fn list(
    snapshot: &dyn Snapshot,
    map: RangeMap,
    keys: &RangeInclusive<PageKey>,
    wanted: impl Fn(u32) -> bool,
) -> webbase_storage::Result<Vec<Entry>> {
    let (mut entries, from) = (Vec::new(), *keys.start());
    let Some(mut range) = map.range_of_key(from) else {
        let mut at = Some(from);
        while let Some(start) = at {
            let some = snapshot.list(PageId(0)..=keys.end().id, start, LIST_ROWS)?;
            at = some.last().filter(|_| some.len() == LIST_ROWS).and_then(|last| last.key.next());
            let inside =
                some.iter().filter(|l| wanted(map.range_of(l.key, l.version)) && keys.contains(&l.key));
            entries.extend(inside.map(|l| Entry { key: l.key, version: l.version, bytes: l.bytes }));
        }
        return Ok(entries);
    };
    while range < map.count() {
        // Neighbouring ranges are listed together.
        let end = (range..map.count()).find(|r| !wanted(*r)).unwrap_or(map.count());
        if range < end {
            let ids = *map.ids(range).start()..=*map.ids(end - 1).end();
            let mut at = Some(from.max(PageKey { id: *ids.start(), tie: 0 }));
            while let Some(start) = at {
                let some = snapshot.list(ids.clone(), start, LIST_ROWS)?;
                at = some.last().filter(|_| some.len() == LIST_ROWS).and_then(|last| last.key.next());
                entries.extend(some.iter().map(|l| Entry { key: l.key, version: l.version, bytes: l.bytes }));
            }
        }
        range = end + 1;
    }
    entries.retain(|entry| keys.contains(&entry.key));
    Ok(entries)
}

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
            let Some(snapshot) = self.snapshot(generation, None)? else {
                return Ok(keys.iter().map(|_| Ok(None)).collect());
            };
            let found = snapshot.lookup_many(keys).into_iter().zip(keys);
            return Ok(found.map(|(found, key)| self.told(generation, Some(*key), found)).collect());
        }
        let served = self.generations()?.get(generation)?;
        let elsewhere = |range: &u32| !served.ranges.contains(*range);
        if let Some(range) = keys.iter().filter_map(|key| self.map.range_of_key(*key)).find(elsewhere) {
            return Err(not_here(range, generation));
        }
        let mut answers = Vec::with_capacity(keys.len());
        for (found, key) in served.snapshot.lookup_many(keys).into_iter().zip(keys) {
            answers.push(match self.told(generation, Some(*key), found) {
                Ok(Some(found)) => Ok(Some(self.served(generation, found)?)),
                found => found,
            });
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

    fn list(&self, generation: u64, from: PageKey, ranges: &RangeSet) -> Answer<Vec<Entry>> {
        self.list_between(generation, from..=*ALL_KEYS.end(), ranges)
    }

    fn list_between(
        &self,
        generation: u64,
        keys: RangeInclusive<PageKey>,
        ranges: &RangeSet,
    ) -> Answer<Vec<Entry>> {
        // The open epoch, too, can be listed: the management server's index is made anew so.
        let open = self.epochs().ok().filter(|_| generation & EPOCH != 0);
        let found = match open.and_then(|epochs| epochs.committed(generation & !EPOCH)) {
            Some(snapshot) => Some(snapshot),
            None => self.snapshot(generation, Some(ranges))?,
        };
        let Some(snapshot) = found else { return Ok(Vec::new()) };
        self.told(generation, None, list(&*snapshot, self.map, &keys, self.wanted(ranges)?))
    }

    fn keys(&self, generation: u64, from: PageKey, ranges: &RangeSet) -> Answer<Vec<PageKey>> {
        Ok(self.list(generation, from, ranges)?.into_iter().map(|entry| entry.key).collect())
    }

    fn is_pulled(&self, generation: u64) -> bool {
        generation & EPOCH != 0
    }

    fn check_ranges(&self, generation: u64, ranges: &RangeSet) -> Answer<()> {
        self.snapshot(generation, Some(ranges)).map(|_| ())
    }

    fn is_within(&self, ranges: &RangeSet, key: PageKey, version: Version) -> bool {
        match self.map.is_uniform() {
            true => ranges.has(self.map.range_of(key, version)),
            false => ranges.contains(key.id),
        }
    }

    fn admit(&self, lowest_epoch: u32) -> Answer<()> {
        self.epochs()?;
        let stamp = self.map.cycle_of(lowest_epoch);
        let machine = self.machine.lock();
        let Some(update) = machine.update() else {
            return Err(Fault::new(Code::Plan, "this node was removed from the repository"));
        };
        let why = match update.admit(stamp) {
            Ok(_) => return Ok(()),
            Err(AddRefusal::NotWelcomed) => "this node has not heard from the management server yet".into(),
            Err(AddRefusal::Closed) => "this node is being removed".into(),
            Err(AddRefusal::OldPlan { lowest }) => {
                format!("the plan is of cycle {stamp}, the oldest that counts is {lowest}")
            }
        };
        Err(Fault::new(Code::Plan, format!("{why}; get a new plan")))
    }

    fn add_dictionary(&self, content: &[u8]) -> webbase_storage::Result<u64> {
        match &self.update {
            Some(epochs) => epochs.with_open(|store| store.add_dictionary(content)),
            None => Ok(Dictionary::digest_of(content)),
        }
    }

    fn add(&self, pages: &[Page<'_>]) -> webbase_storage::Result<Added> {
        match &self.update {
            Some(epochs) => epochs.with_open(|store| store.add(pages)),
            None => Ok(Added::default()),
        }
    }

    fn add_records(&self, records: &[Record]) -> webbase_storage::Result<Added> {
        match &self.update {
            Some(epochs) => epochs.with_open(|store| store.add_records(records)),
            None => Ok(Added::default()),
        }
    }

    fn commit(&self) -> webbase_storage::Result<()> {
        match &self.update {
            Some(epochs) => epochs.with_open(|store| store.commit()),
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

    fn due(&self, generation: u64, now_ms: u64, limit: usize) -> Answer<Vec<(Due, Version)>> {
        let Some(snapshot) = self.snapshot(generation, None)? else { return Ok(Vec::new()) };
        let generations = self.generations()?;
        let mut due = Vec::new();
        for page in generations.store.due(now_ms, limit)? {
            let listed = snapshot.list(page.key.id..=page.key.id, page.key, 1)?;
            due.extend(listed.first().filter(|l| l.key == page.key).map(|l| (page, l.version)));
        }
        Ok(due)
    }

    fn stats(&self) -> Stats {
        let mut all = self.stores().into_iter().map(|store| store.stats());
        let Some(first) = all.next() else {
            return Stats {
                organization: webbase_storage::Organization::Log,
                capacity_bytes: 0,
                used_bytes: 0,
                live_bytes: 0,
                dead_bytes: 0,
                pages: 0,
                segments: 0,
                memory_bytes: 0,
                cache_bytes: 0,
            };
        };
        all.fold(first, |a, b| Stats {
            used_bytes: a.used_bytes + b.used_bytes,
            live_bytes: a.live_bytes + b.live_bytes,
            dead_bytes: a.dead_bytes + b.dead_bytes,
            pages: a.pages + b.pages,
            segments: a.segments + b.segments,
            memory_bytes: a.memory_bytes + b.memory_bytes,
            cache_bytes: a.cache_bytes + b.cache_bytes,
            ..a
        })
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
