//! Bringing the read side's store to a new state from what other nodes have; see `cycle::Pull`.
//!
//! Pages are pulled in order of their keys, a group of ranges at a time, or, where ids do not say the ranges, a slice of the
//! keys at a time:
//!
//! ```text
//!   lists of all sources ──▶ highest version of each page ──▶ what is wanted ──▶ fetched, many at once ──▶ merged, in order
//! ```
//!
//! 1. Memory holds one group's lists and a few windows of pages, however much is pulled. Groups are cut where their lists get
//!    long (groups.rs), but for a single range of an exact copy, which comes together. Tombstones are all in memory.
//! 2. Fetching the next window goes on while the store takes the last one.
//! 3. Nothing is visible before the state is kept; whatever ends a pull early is rolled back.
//! 4. What arrives with a generation is one run of the store, in key order (runs.rs). An exact copy is taken in order of
//!    arrival and key (arrivals.rs), a run for each arrival, so that pages lie as they do at the source.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use tokio::sync::mpsc;
use webbase_storage::urls::Urls;
use webbase_storage::{Organization, PageKey, PageStore, Record, Seen, Version};

use super::arrivals::{Arrivals, ByArrival};
use super::epochs::EPOCH;
use super::generations::Generations;
use super::groups::{Cuts, Group, Groups};
use super::listing::{ALL_KEYS, Listing};
use super::peers::Peers;
use super::runs::{Run, Runs, end_of};
use super::tombstones::Tombstones;
use super::urls::UrlChanges;
use crate::cycle::message::{Changes, EpochSource, NodeId, RangeSource};
use crate::cycle::{Done, Pull, PullMode, RangeSet};
use crate::error::NodeError;
use crate::wire::message::{Code, Entry, UNKNOWN};
use crate::wire::ranges::RangeSet as WireRanges;

/// Pages that are fetched at once.
const WINDOW_PAGES: usize = 1024;
/// Bytes that are fetched at once, about.
const WINDOW_BYTES: u64 = 8 << 20;
/// Windows that may wait to be applied.
const WINDOWS: usize = 2;
/// Pages of given-away ranges that are deleted at once.
const DELETE_PAGES: usize = 64 << 10;
/// Pages that get their deadlines at once.
const RENEWED_PAGES: usize = 64 << 10;

/// Why a pull ended early.
#[derive(Debug)]
pub(super) enum Failed {
    Cancelled,
    Source(NodeId),
    Disk(String),
    NoSpace,
}

impl From<webbase_storage::StorageError> for Failed {
    fn from(e: webbase_storage::StorageError) -> Failed {
        match e {
            webbase_storage::StorageError::NoSpace { .. } => Failed::NoSpace,
            e => Failed::Disk(e.to_string()),
        }
    }
}

impl From<NodeError> for Failed {
    fn from(e: NodeError) -> Failed {
        Failed::Disk(e.to_string())
    }
}

impl From<Failed> for Done {
    fn from(failed: Failed) -> Done {
        match failed {
            Failed::Cancelled => Done::Cancelled,
            Failed::Source(node) => Done::SourceFailed(node),
            Failed::Disk(what) => Done::Disk(what),
            Failed::NoSpace => Done::NoSpace,
        }
    }
}

/// One place to pull from: a node, and what its requests name.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Source {
    node: NodeId,
    generation: u64,
}

/// A page that is wanted, and from where.
pub(super) struct Wanted {
    pub(super) entry: Entry,
    pub(super) source: usize,
}

/// What a group of ranges needs.
struct Listed {
    wanted: Vec<Wanted>,
    gone: Vec<PageKey>,
    /// Those that `wanted` counts.
    sources: Vec<Source>,
}

/// What the pages that follow each other in a run have in common: their arrival, and, where a run has but one group, that.
type InRun = (Option<Group>, u64);

/// What belongs to a state that was pulled.
#[derive(Default)]
pub(super) struct Pulled {
    pub(super) tombstones: Tombstones,
    pub(super) runs: Runs,
    pub(super) urls: Option<Urls>,
}

/// A pull under way.
pub(super) struct Puller {
    pub(super) generations: Arc<Generations>,
    pub(super) peers: Arc<Peers>,
    pub(super) pull: Pull,
    /// The ranges that the base has here.
    pub(super) base_ranges: RangeSet,
    pub(super) tombstones: Tombstones,
    /// Those of the base.
    pub(super) runs: Runs,
    /// The number under which the store keeps the base; none for the empty generation.
    pub(super) base_number: Option<u64>,
    pub(super) cancelled: Arc<AtomicBool>,
    pub(super) progress: Arc<PullProgress>,
}

/// How much of a pull is done.
#[derive(Default)]
pub(super) struct PullProgress {
    pages: AtomicU64,
    bytes: AtomicU64,
}

impl PullProgress {
    fn add(&self, (pages, bytes): (u64, u64)) {
        self.pages.fetch_add(pages, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn restart(&self) {
        self.pages.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// Pages and bytes that were fetched.
    pub(super) fn get(&self) -> (u64, u64) {
        (self.pages.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

impl Puller {
    /// How much will be needed: pages and bytes.
    pub(super) async fn list(&self) -> Result<(u64, u64), Failed> {
        self.progress.restart();
        let (mut pages, mut bytes) = (0, 0);
        let mut groups = self.groups(None);
        let mut arrivals = Arrivals::default();
        while let Some((group, rows_max)) = groups.next() {
            let Some(listed) = self.wanted(&group, rows_max, &mut arrivals).await? else {
                groups.cut(&group);
                continue;
            };
            pages += listed.wanted.len() as u64;
            bytes += listed.wanted.iter().map(|wanted| wanted.entry.bytes).sum::<u64>();
        }
        Ok((pages, bytes))
    }

    /// Fetches and applies everything, and commits the store. Returns what belongs to the new state.
    pub(super) async fn run(mut self, pages: u64, cycle: u64) -> Result<Pulled, Failed> {
        self.progress.restart();
        let (sender, receiver) = mpsc::channel::<Step>(WINDOWS);
        let (store, urls) = (self.generations.store.clone(), self.generations.urls.changes());
        let applying = tokio::task::spawn_blocking(move || apply(&*store, receiver, urls));
        let fetched = self.fetch_all(&sender, pages).await;
        let complete = fetched.is_ok();
        if complete {
            let _ = sender.send(Step::Finish).await; // a store that failed has ended listening, and says why below
        }
        drop(sender);
        let applied = applying.await.map_err(|e| Failed::Disk(e.to_string()))?;
        let (alone, shared) = fetched?;
        let mut runs = std::mem::take(&mut self.runs);
        let (appended, urls) = applied?;
        runs.extend(appended, &alone, &shared);
        let (tombstones, urls) = self.finish(cycle, urls).await?;
        Ok(Pulled { tombstones, runs, urls: self.index(urls).await })
    }

    /// Returns the ranges whose pages lie here in an order of their own from now on, and those where they do not any more.
    async fn fetch_all(
        &self,
        sender: &mpsc::Sender<Step>,
        pages: u64,
    ) -> Result<(RangeSet, RangeSet), Failed> {
        let is_exact = matches!(self.pull.mode, PullMode::Exact { .. });
        // A store in key order has no use for another one.
        let is_log = self.generations.store.organization() == Organization::Log;
        let sorts = is_exact && is_log && self.generations.map.is_uniform();
        let mut sorting = sorts.then(|| ByArrival::new(&self.generations.scratch));
        let (mut arrivals, mut run, mut of) = (Arrivals::default(), None, Vec::new());
        let mut groups = self.groups(Some(pages.max(self.generations.store.stats().pages)));
        while let Some((group, rows_max)) = groups.next() {
            if sender.is_closed() {
                return Ok(Default::default()); // the store failed, and says so
            }
            let Some(listed) = self.wanted(&group, rows_max, &mut arrivals).await? else {
                groups.cut(&group);
                continue;
            };
            let Listed { mut wanted, gone, sources } = listed;
            if !gone.is_empty() && sender.send(Step::Delete(gone)).await.is_err() {
                return Ok(Default::default());
            }
            if let Some(rows) = sorting.take() {
                (sorting, of) = (Some(rows.with(wanted).await?), sources);
                continue;
            }
            wanted.sort_by_key(|w| (w.entry.arrival, w.entry.key));
            // Under a delta, where there is but one arrival, all groups are one run.
            let group = is_exact.then_some(group);
            self.fetch_some(sender, &wanted, &sources, group.as_ref(), &mut run).await?;
        }
        if let Some(rows) = sorting {
            let mut rest = rows.finish().await?;
            loop {
                let (wanted, left) = rest.next().await?;
                if wanted.is_empty() || sender.is_closed() {
                    break;
                }
                self.fetch_some(sender, &wanted, &of, None, &mut run).await?;
                rest = left;
            }
        }
        Ok(if is_exact { arrivals.orders(&self.pull.fetch) } else { Default::default() })
    }

    /// Fetches pages, in order of arrival and key, and hands them on. Where the store has failed, and says so, nobody takes them.
    async fn fetch_some(
        &self,
        sender: &mpsc::Sender<Step>,
        wanted: &[Wanted],
        sources: &[Source],
        group: Option<&Group>,
        run: &mut Option<InRun>,
    ) -> Result<(), Failed> {
        let mut rest = wanted;
        while let Some(first) = rest.first() {
            let (mut bytes, arrival) = (0, first.entry.arrival);
            let before = run.replace((group.cloned(), arrival));
            if before != *run && sender.send(Step::Begin(arrival)).await.is_err() {
                return Ok(());
            }
            let fits = |w: &&Wanted| {
                bytes += w.entry.bytes;
                bytes <= WINDOW_BYTES && w.entry.arrival == arrival
            };
            let count = rest.iter().take(WINDOW_PAGES).take_while(fits).count().max(1);
            let (window, later) = rest.split_at(count);
            rest = later;
            let records = self.fetch(window, sources).await?;
            let done = (records.len() as u64, window.iter().map(|w| w.entry.bytes).sum());
            if sender.send(Step::Merge(records)).await.is_err() {
                return Ok(());
            }
            self.progress.add(done);
        }
        Ok(())
    }

    /// What to go through, and in which parts.
    fn groups(&self, pages: Option<u64>) -> Groups {
        let (ranges, cuts) = match &self.pull.mode {
            PullMode::Delta { .. } => (&self.pull.ranges, Cuts::RangesAndKeys),
            PullMode::Exact { .. } => (&self.pull.fetch, Cuts::Ranges),
        };
        let cuts = if self.generations.map.is_uniform() { Cuts::Keys } else { cuts };
        Groups::new(ranges.iter().collect(), pages, cuts)
    }

    fn check(&self) -> Result<(), Failed> {
        if self.cancelled.load(Ordering::Relaxed) { Err(Failed::Cancelled) } else { Ok(()) }
    }

    /// What has to be fetched for a group, in order of keys, and what has to go; `None`, if its lists have more than
    /// `rows_max` rows. Of an exact copy it takes note when pages arrived.
    async fn wanted(
        &self,
        group: &Group,
        rows_max: usize,
        arrivals: &mut Arrivals,
    ) -> Result<Option<Listed>, Failed> {
        self.check()?;
        match &self.pull.mode {
            PullMode::Delta { sources, changes } => {
                let sources = epochs(sources);
                let asked =
                    sources.iter().enumerate().map(|(at, s)| (at, *s, group.ranges.clone())).collect();
                let Some(lists) = self.lists(asked, &group.keys, rows_max).await? else { return Ok(None) };
                let mut wanted = newest(lists);
                let removed: BTreeMap<PageKey, Version> =
                    changes.removals.iter().map(|r| (r.key, r.bound)).collect();
                wanted.retain(|w| {
                    let Entry { key, version, .. } = w.entry;
                    !self.tombstones.bar(key, version)
                        && removed.get(&key).is_none_or(|bound| version > *bound)
                });
                wanted.iter_mut().for_each(|w| w.entry.arrival = self.pull.target);
                Ok(Some(Listed { wanted, gone: Vec::new(), sources }))
            }
            PullMode::Exact { sources } => {
                // Each range from one source; neighbours from the same one where that can be.
                let mut of: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
                for range in &group.ranges {
                    let has = |s: &crate::cycle::message::RangeSource| s.ranges.contains(*range);
                    let Some(at) = sources.iter().position(has) else {
                        let node = sources.first().map_or(NodeId(0), |s| s.node);
                        return Err(Failed::Source(node));
                    };
                    of.entry(at).or_default().push(*range);
                }
                let all: Vec<Source> =
                    sources.iter().map(|s| Source { node: s.node, generation: self.pull.target }).collect();
                let asked =
                    of.into_iter().filter_map(|(at, ranges)| Some((at, *all.get(at)?, ranges))).collect();
                let Some(lists) = self.lists(asked, &group.keys, rows_max).await? else { return Ok(None) };
                let mut wanted = newest(lists);
                let Some(here) = self.own(group, rows_max).await? else { return Ok(None) };
                let map = self.generations.map;
                for Wanted { entry, .. } in &wanted {
                    let range = map.range_of(entry.key, entry.version);
                    match here.get(&entry.key).filter(|own| own.version == entry.version) {
                        Some(own) => arrivals.stays(range, own.arrival),
                        None => arrivals.comes(range, entry.arrival),
                    }
                }
                let theirs: BTreeMap<PageKey, Version> =
                    wanted.iter().map(|w| (w.entry.key, w.entry.version)).collect();
                // An own page that is not theirs goes, also if it is newer: the generation is what it is.
                let gone = here
                    .iter()
                    .filter(|(key, own)| theirs.get(*key).is_none_or(|theirs| *theirs < own.version))
                    .map(|(key, _)| *key)
                    .collect();
                wanted.retain(|w| here.get(&w.entry.key).is_none_or(|own| own.version != w.entry.version));
                Ok(Some(Listed { wanted, gone, sources: all }))
            }
        }
    }

    /// The store's own pages of a group, with their arrivals; `None`, if there are more than `rows_max`.
    async fn own(&self, group: &Group, rows_max: usize) -> Result<Option<BTreeMap<PageKey, Entry>>, Failed> {
        let (generations, runs) = (self.generations.clone(), self.runs.clone());
        let (ranges, keys) = (group.ranges.iter().copied().collect::<RangeSet>(), group.keys.clone());
        let listed = tokio::task::spawn_blocking(move || {
            let snapshot = generations.store.snapshot();
            let map = generations.map;
            let arrival =
                |l: &webbase_storage::Listed| runs.shared_arrival(map.range_of(l.key, l.version), l.ordinal);
            let wanted = |range| ranges.contains(range);
            Listing { snapshot: &*snapshot, map, wanted, arrival }.some(&keys, rows_max)
        });
        let (listed, more) = listed.await.map_err(|e| Failed::Disk(e.to_string()))??;
        let is_all = more.is_none();
        Ok(is_all.then(|| listed.into_iter().map(|entry| (entry.key, entry)).collect()))
    }

    /// Lists of sources, all at the same time; `None`, if they have more than `rows_max` rows together.
    async fn lists(
        &self,
        asked: Vec<(usize, Source, Vec<u32>)>,
        keys: &RangeInclusive<PageKey>,
        rows_max: usize,
    ) -> Result<Option<Vec<(usize, Vec<Entry>)>>, Failed> {
        let mut listing = Vec::new();
        let rows = Arc::new(AtomicUsize::new(0));
        for (at, source, ranges) in asked {
            let (peers, bits, keys) = (self.peers.clone(), self.generations.map.bits(), keys.clone());
            let rows = rows.clone();
            listing.push((
                at,
                source,
                tokio::spawn(async move {
                    let Some(ranges) = WireRanges::of(bits, ranges) else { return Ok(Vec::new()) };
                    let client = peers.client(source.node).await?;
                    let mut coming = match keys == ALL_KEYS {
                        true => client.list(source.generation, PageKey::MIN, ranges)?,
                        false => client.list_between(source.generation, &keys, ranges)?,
                    };
                    let mut list = Vec::new();
                    while let Some(entry) = coming.next().await? {
                        if rows.fetch_add(1, Ordering::Relaxed) >= rows_max {
                            break; // it is asked for again, in parts
                        }
                        list.push(entry);
                    }
                    Ok::<_, NodeError>(list)
                }),
            ));
        }
        let mut lists = Vec::new();
        for (at, source, listing) in listing {
            match listing.await {
                Ok(Ok(list)) => lists.push((at, list)),
                _ => return Err(Failed::Source(source.node)),
            }
        }
        Ok((rows.load(Ordering::Relaxed) <= rows_max).then_some(lists))
    }

    /// The records of a window, in order; each source is asked at the same time as the others.
    async fn fetch(&self, window: &[Wanted], sources: &[Source]) -> Result<Vec<Record>, Failed> {
        self.check()?;
        let mut fetching = Vec::new();
        for (at, source) in sources.iter().enumerate() {
            let places: Vec<usize> =
                (0..window.len()).filter(|i| window.get(*i).is_some_and(|w| w.source == at)).collect();
            if places.is_empty() {
                continue;
            }
            let keys: Vec<PageKey> =
                places.iter().filter_map(|i| window.get(*i)).map(|w| w.entry.key).collect();
            let (peers, source) = (self.peers.clone(), *source);
            fetching.push((
                places,
                source,
                tokio::spawn(async move {
                    peers.client(source.node).await?.lookup_many(source.generation, &keys).await
                }),
            ));
        }
        let mut records: Vec<Option<Record>> = vec![None; window.len()];
        for (places, source, fetched) in fetching {
            let Ok(Ok(found)) = fetched.await else { return Err(Failed::Source(source.node)) };
            for (place, found) in places.into_iter().zip(found) {
                let Some(wanted) = window.get(place) else { continue };
                let whole = |r: &Record| r.get().version() == wanted.entry.version;
                let record = match found.ok().flatten().filter(whole) {
                    Some(record) => record,
                    // Absent, damaged there, or another version: the source does not have what it listed.
                    None => self.elsewhere(&wanted.entry, source, sources).await?,
                };
                if let Some(slot) = records.get_mut(place) {
                    *slot = Some(record);
                }
            }
        }
        self.learn_dictionaries(&records)?;
        Ok(records.into_iter().flatten().collect())
    }

    /// A page that its source does not have whole, from another source that has the same version.
    async fn elsewhere(&self, wanted: &Entry, failed: Source, sources: &[Source]) -> Result<Record, Failed> {
        for source in sources.iter().filter(|source| source.node != failed.node) {
            let asked =
                async { self.peers.client(source.node).await?.lookup(source.generation, wanted.key).await };
            match asked.await {
                Ok(Some(record)) if record.get().version() == wanted.version => return Ok(record),
                // It is no worse than the first one: without any that has the page, that one is named.
                _ => self.check()?,
            }
        }
        Err(Failed::Source(failed.node))
    }

    /// The store gets each dictionary before the first record that needs it.
    fn learn_dictionaries(&self, records: &[Option<Record>]) -> Result<(), Failed> {
        let store = &self.generations.store;
        for digest in records.iter().flatten().map(|r| r.get().dictionary()).filter(|d| *d != 0) {
            if store.dictionaries().get(digest).is_none()
                && let Some(dictionary) = self.peers.dictionaries().get(digest)
            {
                store.add_dictionary(dictionary.content())?;
            }
        }
        Ok(())
    }

    /// What is left after all pages are there: removals, new deadlines, ranges that are not this node's any more.
    async fn finish(&mut self, cycle: u64, mut urls: UrlChanges) -> Result<(Tombstones, UrlChanges), Failed> {
        let map = self.generations.map;
        let ranges = self.pull.ranges.clone();
        let mut tombstones = std::mem::take(&mut self.tombstones);
        let mut changes = Changes::default();
        match &self.pull.mode {
            PullMode::Delta { changes: all, .. } => {
                let here = |key, version| ranges.contains(map.range_of(key, version));
                tombstones.retain(all.forget_through, here);
                changes.removals.extend(all.removals.iter().filter(|r| here(r.key, r.bound)));
                // Where the key does not say the range, the page itself does, below.
                let may_be = |key| map.range_of_key(key).is_none_or(|range| ranges.contains(range));
                changes.seen.extend(all.seen.iter().filter(|s| may_be(s.key)));
                changes.removals.iter().for_each(|removal| tombstones.add(removal, cycle));
            }
            PullMode::Exact { sources } => {
                let mut fetched = Tombstones::default();
                for source in sources {
                    let theirs =
                        async { self.peers.client(source.node).await?.tombstones(self.pull.target).await };
                    let theirs = theirs.await.map_err(|_| Failed::Source(source.node))?;
                    let theirs = Tombstones::decode(&theirs).map_err(|_| Failed::Source(source.node))?;
                    fetched.take(&theirs, |key, v| source.ranges.contains(map.range_of(key, v)));
                }
                self.renew(sources).await?;
                let kept = ranges.minus(&self.pull.fetch);
                tombstones.retain(0, |key, v| kept.contains(map.range_of(key, v)));
                tombstones.take(&fetched, |key, v| self.pull.fetch.contains(map.range_of(key, v)));
            }
        }
        let generations = self.generations.clone();
        let outside = self.base_ranges.minus(&ranges);
        let work = move || -> webbase_storage::Result<UrlChanges> {
            let store = &generations.store;
            let snapshot = store.snapshot();
            let mut gone = Vec::new();
            for removal in &changes.removals {
                let listed = snapshot.list(removal.key.id..=removal.key.id, removal.key, 1)?;
                gone.extend(
                    listed
                        .iter()
                        .filter(|l| l.key == removal.key && l.version <= removal.bound)
                        .map(|l| l.key),
                );
            }
            let wanted = |range| outside.contains(range);
            let given_away = Listing { snapshot: &*snapshot, map, wanted, arrival: |_: &_| UNKNOWN };
            let mut from = Some(PageKey::MIN).filter(|_| !outside.is_empty());
            while let Some(first) = from {
                let (some, next) = given_away.some(&(first..=PageKey::MAX), DELETE_PAGES)?;
                let keys: Vec<PageKey> = some.iter().map(|entry| entry.key).collect();
                urls.remove(&*snapshot, &keys)?;
                store.delete(&keys)?;
                store.commit()?;
                from = next;
            }
            if map.is_uniform() {
                let mut here = Vec::with_capacity(changes.seen.len());
                for seen in changes.seen {
                    let listed = snapshot.list(seen.key.id..=seen.key.id, seen.key, 1)?;
                    let page = listed.first().filter(|l| l.key == seen.key);
                    if page.is_some_and(|l| ranges.contains(map.range_of(l.key, l.version))) {
                        here.push(seen);
                    }
                }
                changes.seen = here;
            }
            urls.remove(&*snapshot, &gone)?;
            store.delete(&gone)?;
            let seen = |s: &crate::cycle::message::SeenAgain| Seen {
                key: s.key,
                at_ms: s.at_ms,
                lifetime_s: s.lifetime_s,
            };
            store.seen(&changes.seen.iter().map(seen).collect::<Vec<_>>())?;
            store.commit()?;
            Ok(urls)
        };
        let urls = tokio::task::spawn_blocking(work).await.map_err(|e| Failed::Disk(e.to_string()))??;
        Ok((tombstones, urls))
    }

    /// Pages that were seen again have at the source another deadline than their records say: so they get it here.
    async fn renew(&self, sources: &[RangeSource]) -> Result<(), Failed> {
        for source in sources {
            let fetched = source.ranges.iter().filter(|range| self.pull.fetch.contains(*range));
            let Some(ranges) = WireRanges::of(self.generations.map.bits(), fetched) else { continue };
            let failed = |_: NodeError| Failed::Source(source.node);
            let client = self.peers.client(source.node).await.map_err(failed)?;
            let mut coming = client.renewed(self.pull.target, ranges).map_err(failed)?;
            let mut ended = false;
            while !ended {
                self.check()?;
                let mut seen = Vec::new();
                while seen.len() < RENEWED_PAGES && !ended {
                    match coming.next().await {
                        Ok(Some(page)) => seen.push(Seen::until(page.key, page.deadline_ms)),
                        Ok(None) => ended = true,
                        // It does not know the question: of an older version, it has no other answer than its records.
                        Err(NodeError::Refused { fault, .. }) if fault.code == Code::BadRequest => {
                            ended = true
                        }
                        Err(e) => return Err(failed(e)),
                    }
                }
                let store = self.generations.store.clone();
                let noted = tokio::task::spawn_blocking(move || {
                    store.seen(&seen)?;
                    store.commit()
                });
                noted.await.map_err(|e| Failed::Disk(e.to_string()))??;
            }
        }
        Ok(())
    }

    /// The URL index of the new state, if it can be made now.
    async fn index(&self, changes: UrlChanges) -> Option<Urls> {
        let generations = self.generations.clone();
        let (base, is_exact) = (self.base_number, matches!(self.pull.mode, PullMode::Exact { .. }));
        let work = move || generations.urls.next(base, changes, is_exact, &*generations.store);
        tokio::task::spawn_blocking(work).await.ok().flatten()
    }
}

/// Each sealed epoch is a source of its own.
fn epochs(sources: &[EpochSource]) -> Vec<Source> {
    let of = |s: &EpochSource| {
        let node = s.node;
        (s.from..=s.through).map(move |epoch| Source { node, generation: epoch | EPOCH })
    };
    sources.iter().flat_map(of).collect()
}

/// Of each page the highest version, in order of keys.
fn newest(lists: Vec<(usize, Vec<Entry>)>) -> Vec<Wanted> {
    let mut all: Vec<Wanted> = lists
        .into_iter()
        .flat_map(|(source, list)| list.into_iter().map(move |entry| Wanted { entry, source }))
        .collect();
    all.sort_unstable_by(|a, b| {
        (a.entry.key, b.entry.version, a.source).cmp(&(b.entry.key, a.entry.version, b.source))
    });
    all.dedup_by_key(|wanted| wanted.entry.key);
    all
}

/// What the store is given.
enum Step {
    /// What follows arrived in this generation, and is in key order.
    Begin(u64),
    Merge(Vec<Record>),
    Delete(Vec<PageKey>),
    /// Everything came.
    Finish,
}

/// Takes pages into the store as they come, in order; commits when all are there. Returns the runs that they are, of a log.
fn apply(
    store: &dyn PageStore,
    mut steps: mpsc::Receiver<Step>,
    mut urls: UrlChanges,
) -> Result<(Vec<Run>, UrlChanges), Failed> {
    let mut runs: Vec<Run> = Vec::new();
    // A log knows its end when everything is committed.
    let end_last = |runs: &mut Vec<Run>| -> Result<Option<u64>, Failed> {
        store.commit()?;
        let end = end_of(store);
        if let (Some(run), Some(end)) = (runs.last_mut(), end) {
            run.end = end;
        }
        Ok(end)
    };
    while let Some(step) = steps.blocking_recv() {
        match step {
            Step::Begin(arrival) => {
                if let Some(first) = end_last(&mut runs)? {
                    runs.push(Run { first, end: first, arrival });
                }
            }
            Step::Merge(records) => {
                urls.add(&records)?;
                store.merge(&mut records.into_iter().map(Ok))?;
            }
            Step::Delete(keys) => {
                urls.remove(&*store.snapshot(), &keys)?;
                store.delete(&keys)?;
                // A page that goes and comes again in another version: going first.
                store.commit()?;
            }
            Step::Finish => {
                end_last(&mut runs)?;
                return Ok((runs, urls));
            }
        }
    }
    Ok((runs, urls))
}
