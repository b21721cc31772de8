//! Damage in a node's own stores, repaired by itself from what other nodes have.
//!
//! ```text
//!   lookups, streams, lists, verify, scrub ──met──▶ queue ──▶ the same page of another node ──▶ heal, in place
//! ```
//!
//! 1. Whoever meets damage only says so, and answers with an error: a damaged page is never served, and nobody waits here.
//! 2. A page is asked of all nodes in turn, in the same generation: one that does not have it there says so. Pages of an
//!    epoch are asked of other update nodes in all their epochs. The store takes only the very same record.
//! 3. Where the damage hides which page it hit, the pages that another node has nearby tell.
//! 4. What cannot be repaired now is tried again later.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use webbase_storage::{Cursor, Damage, PageId, PageKey, PageStore, Record, Snapshot, StorageError, Trust};

use super::epochs::{EPOCH, Epochs};
use super::generations::Generations;
use super::peers::Peers;
use super::scrub::{self, Scrub};
use crate::client::{Client, StreamRequest};
use crate::cycle::RangeMap;
use crate::cycle::message::NodeId;
use crate::plan::LIVE;
use crate::wire::message::KEYS_MAX;
use crate::wire::ranges::RangeSet as WireRanges;

/// Damage that may wait; more is met again.
const QUEUE: usize = 1024;
/// What could not be repaired is tried again after so long.
const RETRY: Duration = Duration::from_secs(5);
/// One answer of another node.
const ANSWER: Duration = Duration::from_secs(5);

/// Damage, as whoever met it knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Met {
    /// A page of a generation, or of an epoch.
    Page { generation: u64, key: PageKey },
    /// A place in a file of the store that has the generation: which page it was is hidden.
    Place { generation: u64, path: PathBuf, offset: u64 },
    /// Something of a store, in no certain generation.
    Damage(Damage),
    /// No damage.
    Nothing,
}

impl Met {
    /// What an error says.
    pub(super) fn of(generation: u64, page: Option<PageKey>, e: &StorageError) -> Met {
        match (page, e) {
            // Live pages are of an epoch or of a generation: which one is found out.
            (key, StorageError::Corrupt { path, offset, what }) if generation == LIVE => {
                Met::Damage(Damage { path: path.clone(), offset: *offset, what: what.clone(), key })
            }
            (Some(key), StorageError::Corrupt { .. }) => Met::Page { generation, key },
            (None, StorageError::Corrupt { path, offset, .. }) => {
                Met::Place { generation, path: path.clone(), offset: *offset }
            }
            _ => Met::Nothing,
        }
    }
}

/// A store and one state of it, with the number under which the store keeps that; without one it is the current state.
type State = (Arc<dyn PageStore>, Arc<dyn Snapshot>, Option<u64>);

/// Who repairs.
pub(super) struct Repairs {
    me: NodeId,
    map: RangeMap,
    update: Option<Arc<Epochs>>,
    read: Option<Arc<Generations>>,
    queue: mpsc::Sender<Met>,
    found: AtomicU64,
    repaired: AtomicU64,
    /// Pages known to be damaged: generation and key.
    open: Mutex<BTreeSet<(u64, PageKey)>>,
}

impl Repairs {
    pub(super) fn new(
        me: NodeId,
        map: RangeMap,
        update: Option<Arc<Epochs>>,
        read: Option<Arc<Generations>>,
    ) -> (Arc<Repairs>, mpsc::Receiver<Met>) {
        let (queue, met) = mpsc::channel(QUEUE);
        let (found, repaired) = (AtomicU64::new(0), AtomicU64::new(0));
        (Arc::new(Repairs { me, map, update, read, queue, found, repaired, open: Mutex::default() }), met)
    }

    /// Takes note of damage. Does not wait.
    pub(super) fn met(&self, met: Met) {
        if let Met::Page { generation, key } = met {
            self.note(generation, key);
        }
        if met != Met::Nothing {
            let _ = self.queue.try_send(met); // with a full queue it is met again
        }
    }

    fn note(&self, generation: u64, key: PageKey) {
        if self.open.lock().insert((generation, key)) {
            self.found.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Pages found damaged.
    pub(super) fn found(&self) -> u64 {
        self.found.load(Ordering::Relaxed)
    }

    /// Pages repaired.
    pub(super) fn repaired(&self) -> u64 {
        self.repaired.load(Ordering::Relaxed)
    }

    /// Repairs what is met, for ever.
    pub(super) async fn run(self: Arc<Self>, mut met: mpsc::Receiver<Met>, peers: Arc<Peers>, scrub: Scrub) {
        let looking = tokio::spawn(self.clone().look(scrub));
        let _ends_with_this = AbortOnDrop(looking);
        let mut retry = tokio::time::interval(RETRY);
        retry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                damage = met.recv() => {
                    let Some(first) = damage else { return };
                    let mut all = vec![first];
                    while let Ok(more) = met.try_recv() {
                        if !all.contains(&more) {
                            all.push(more);
                        }
                    }
                    self.repair_all(all, &peers).await;
                }
                _ = retry.tick() => {
                    if !self.open.lock().is_empty() {
                        self.repair_open(&peers).await;
                    }
                }
            }
        }
    }

    /// Reads everything through, again and again.
    async fn look(self: Arc<Self>, scrub: Scrub) {
        if scrub.bytes_per_s == 0 {
            return;
        }
        loop {
            if let Some((generation, snapshot)) = self.read.as_ref().and_then(|read| read.newest()) {
                scrub::pass(&self, generation, &*snapshot, scrub).await;
            }
            tokio::time::sleep(scrub.pause).await;
        }
    }

    /// The store and the state that a request's generation names.
    fn state(&self, generation: u64) -> Option<State> {
        if generation & EPOCH != 0 {
            let (store, snapshot) = self.update.as_ref()?.sealed(generation & !EPOCH)?;
            return Some((store, snapshot, None));
        }
        let read = self.read.as_ref()?;
        let served = read.get(generation).ok()?;
        Some((read.store.clone(), served.snapshot, Some(served.number)))
    }

    async fn repair_all(self: &Arc<Self>, all: Vec<Met>, peers: &Peers) {
        // Pages are one thing; what else is damaged, a look at the whole store tells.
        let more = all.iter().any(|met| matches!(met, Met::Place { .. } | Met::Damage(_)));
        for met in all {
            match met {
                Met::Page { .. } | Met::Nothing => {} // noted
                Met::Place { generation, path, offset } => self.unhide(generation, path, offset, peers).await,
                Met::Damage(damage) => {
                    for generation in self.generations() {
                        match damage.key {
                            Some(key) if self.is_damaged(generation, key).await => self.note(generation, key),
                            Some(_) => {}
                            None => self.unhide(generation, damage.path.clone(), damage.offset, peers).await,
                        }
                    }
                }
            }
        }
        self.repair_open(peers).await;
        let store =
            self.read.as_ref().filter(|_| more && self.open.lock().is_empty()).map(|read| read.store.clone());
        if let Some(store) = store {
            // All pages are whole: catalogs and the like can be made anew. What is left is met again.
            drop(tokio::task::spawn_blocking(move || store.mend()).await);
        }
    }

    /// Everything that requests can name.
    fn generations(&self) -> Vec<u64> {
        let epochs = self.update.iter().flat_map(|epochs| epochs.numbers()).map(|epoch| epoch | EPOCH);
        let kept = self.read.iter().flat_map(|read| read.numbers());
        epochs.chain(kept).filter(|generation| self.state(*generation).is_some()).collect()
    }

    async fn is_damaged(&self, generation: u64, key: PageKey) -> bool {
        let Some((_, snapshot, _)) = self.state(generation) else { return false };
        let work = move || matches!(snapshot.lookup(key, Trust::Verify), Err(StorageError::Corrupt { .. }));
        tokio::task::spawn_blocking(work).await.unwrap_or(false)
    }

    /// Heals the pages that are known to be damaged.
    async fn repair_open(self: &Arc<Self>, peers: &Peers) {
        let mut by_generation: BTreeMap<u64, Vec<PageKey>> = BTreeMap::new();
        for (generation, key) in self.open.lock().iter() {
            by_generation.entry(*generation).or_default().push(*key);
        }
        for (generation, keys) in by_generation {
            let Some(state) = self.state(generation) else {
                // It is gone, and the damage with it.
                self.open.lock().retain(|(of, _)| *of != generation);
                self.found.fetch_sub(keys.len() as u64, Ordering::Relaxed);
                continue;
            };
            for some in keys.chunks(KEYS_MAX) {
                let records = self.fetch(generation, some, peers).await;
                self.heal(generation, some, records, &state).await;
            }
        }
    }

    /// Gives the store records, and counts those pages that are whole then.
    async fn heal(&self, generation: u64, keys: &[PageKey], records: Vec<Record>, state: &State) {
        let ((store, snapshot, number), keys) = (state.clone(), keys.to_vec());
        let work = tokio::task::spawn_blocking(move || {
            // A disk that fails leaves the damage; it is tried again.
            let _ = store.heal(number, &records);
            let found = snapshot.lookup_many(&keys);
            let whole = keys.into_iter().zip(found).filter(|(_, found)| found.is_ok());
            whole.map(|(key, _)| key).collect::<Vec<_>>()
        });
        for key in work.await.unwrap_or_default() {
            if self.open.lock().remove(&(generation, key)) {
                self.repaired.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The records of these pages, as far as other nodes have them.
    async fn fetch(&self, generation: u64, keys: &[PageKey], peers: &Peers) -> Vec<Record> {
        let mut records = Vec::new();
        let mut left: BTreeSet<PageKey> = keys.iter().copied().collect();
        for node in peers.all().into_iter().filter(|node| *node != self.me) {
            if left.is_empty() {
                break;
            }
            let Ok(client) = peers.client(node).await else { continue };
            for theirs in names(&client, generation).await {
                let wanted: Vec<PageKey> = left.iter().copied().collect();
                for record in ask(&client, theirs, &wanted).await {
                    // Of an epoch another one may have another version: the store tells.
                    if generation & EPOCH == 0 {
                        left.remove(&record.get().key());
                    }
                    records.push(record);
                }
            }
        }
        records
    }

    /// The ranges that pages with these ids are in, as they are asked for. Where ids do not say that they are all that are
    /// here, one by one: another node has some of them.
    fn nearby(&self, generation: u64, first: PageId, last: PageId) -> Vec<WireRanges> {
        let of = |ranges: Vec<u32>| WireRanges::of(self.map.bits(), ranges);
        let range_of = |id| self.map.range_of_key(PageKey { id, tie: 0 });
        match (range_of(first), range_of(last)) {
            (Some(first), Some(last)) => of((first..=last).collect()).into_iter().collect(),
            _ if generation & EPOCH != 0 => vec![WireRanges::all()],
            _ => {
                let served = self.read.as_ref().and_then(|read| read.get(generation).ok());
                let ranges = served.map(|served| served.ranges).unwrap_or_default();
                ranges.iter().filter_map(|range| of(vec![range])).collect()
            }
        }
    }

    /// Finds out which pages damage hides: those nearby that another node has and this one cannot read. They are healed
    /// together, so that they can be told apart.
    async fn unhide(&self, generation: u64, path: PathBuf, offset: u64, peers: &Peers) {
        let Some(state) = self.state(generation) else { return };
        let (store, snapshot, _) = &state;
        let Some((first, last)) = store.ids_at(&path, offset) else { return };
        let nearby = self.nearby(generation, first, last);
        for node in peers.all().into_iter().filter(|node| *node != self.me) {
            let Ok(client) = peers.client(node).await else { continue };
            for theirs in names(&client, generation).await {
                let mut keys = Vec::new();
                for ranges in &nearby {
                    let mut some = keys_between(&client, theirs, (first, last), ranges).await;
                    if some.is_none() {
                        // Something is damaged there, too; what is whole comes in a stream.
                        some = streamed_between(&client, theirs, (first, last), ranges).await;
                    }
                    keys.extend(some.unwrap_or_default());
                }
                let here = snapshot.clone();
                let work = tokio::task::spawn_blocking(move || {
                    let damaged = |key: &PageKey| {
                        matches!(here.lookup(*key, Trust::Verify), Err(StorageError::Corrupt { .. }))
                    };
                    keys.into_iter().filter(damaged).collect::<Vec<_>>()
                });
                let keys = work.await.unwrap_or_default();
                if !keys.is_empty() {
                    keys.iter().for_each(|key| self.note(generation, *key));
                    let records = self.fetch(generation, &keys, peers).await;
                    self.heal(generation, &keys, records, &state).await;
                }
            }
        }
    }
}

/// Under which names a node may have what this one has under `generation`.
async fn names(client: &Client, generation: u64) -> Vec<u64> {
    if generation & EPOCH == 0 {
        return vec![generation];
    }
    // There is no epoch 0; the refusal says which there are.
    let asked = client.lookup(EPOCH, PageKey::MIN);
    match tokio::time::timeout(ANSWER, asked).await {
        Ok(Err(e)) => e.generations().map_or_else(Vec::new, <[u64]>::to_vec),
        _ => Vec::new(),
    }
}

/// Those of some pages that a node has.
async fn ask(client: &Client, generation: u64, keys: &[PageKey]) -> Vec<Record> {
    let mut records = Vec::new();
    // One page at a time where the node does not have all their ranges: it refuses as a whole.
    let all = tokio::time::timeout(ANSWER, client.lookup_many(generation, keys)).await;
    match all {
        Ok(Ok(found)) => records.extend(found.into_iter().filter_map(|found| found.ok().flatten())),
        Ok(Err(_)) => {
            for key in keys {
                if let Ok(Ok(Some(record))) =
                    tokio::time::timeout(ANSWER, client.lookup(generation, *key)).await
                {
                    records.push(record);
                }
            }
        }
        Err(_) => {}
    }
    records
}

/// The pages of a node with these ids; `None` if it cannot tell all.
async fn keys_between(
    client: &Client,
    generation: u64,
    (first, last): (PageId, PageId),
    ranges: &WireRanges,
) -> Option<Vec<PageKey>> {
    let mut keys = Vec::new();
    let between = PageKey { id: first, tie: 0 }..=PageKey { id: last, tie: u64::MAX };
    let mut list = client.list_between(generation, &between, ranges.clone()).ok()?;
    while let Some(entry) = list.next().await.ok()? {
        keys.push(entry.key);
    }
    Some(keys)
}

/// The pages of a node with these ids that are whole, of a store in key order.
async fn streamed_between(
    client: &Client,
    generation: u64,
    (first, last): (PageId, PageId),
    ranges: &WireRanges,
) -> Option<Vec<PageKey>> {
    let from = Cursor::Key(PageKey { id: first, tie: 0 }).to_string();
    let request = StreamRequest { generation, from, ranges: ranges.clone(), ..StreamRequest::default() };
    let mut reader = client.stream(&request).ok()?;
    let mut keys = Vec::new();
    while let Some(next) = reader.next().await {
        match next {
            Ok(record) if record.get().key().id > last => break,
            Ok(record) => keys.push(record.get().key()),
            Err(_) if !reader.is_over() => {}
            Err(_) => return None,
        }
    }
    Some(keys)
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
