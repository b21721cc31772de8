//! Adding: each page, packed once, to all update nodes of its range.
//!
//! A page that a node acknowledged is durable there for good, and need not go there again, whatever plan follows. What is
//! not acknowledged by all nodes of the plan is tried again under a new plan; there a node may have been declared down, and
//! does not count any more. Sent twice is harmless: the second time it is stale.
//!
//! Under the distribution `uniform` the management server is asked for the ranges first, and says the same however often
//! it is asked. Where only update nodes have it, a page goes by any entry of the plan: in turn, by those with most nodes up, and
//! none of them busy or failing. So does a page whose range has a full update node, wherever update nodes are `uniform`: a cycle
//! asks all of them for all ranges. (With incremental update readers look for a page at the nodes of its range, so it has to
//! go there.) A page is refused for want of room when no entry is left whose nodes all have some.
//!
//! A page that comes without a payload digest gets one here, the SHA-1 of its body, so that lists of captures need not read
//! pages to tell it. Here, because it is the way of all pages into a repository and every client shares the work; a store
//! takes what it is given.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sha1::{Digest, Sha1};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use webbase_storage::{Dictionaries, Page, PageKey, Record, StorageError, pack_page_into, record_bytes_max};

use super::Cluster;
use super::near::NearNode;
use crate::client::Client;
use crate::cycle::Distribution;
use crate::cycle::message::NodeId;
use crate::error::{NodeError, Result, Retry};
use crate::plan::AddPlan;
use crate::wire::message::{Code, Fault};
use crate::wire::pool;

/// Pauses between two tries: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// After packing so many bytes others get their turn.
const PACK_BYTES: usize = 256 << 10;

/// What became of pages: each is acknowledged, or named.
#[derive(Clone, Debug, Default)]
pub struct Adds {
    /// Pages durable on all their update nodes.
    pub acknowledged: u64,
    /// The places of the others, ascending, and why. They may be durable on some nodes, so that they appear all the same.
    pub refused: Vec<(usize, NodeError)>,
}

impl Adds {
    /// How many were acknowledged, if all were.
    ///
    /// # Errors
    /// The first refusal.
    pub fn all(self) -> Result<u64> {
        match self.refused.into_iter().next() {
            None => Ok(self.acknowledged),
            Some((_, e)) => Err(e),
        }
    }
}

/// Nodes that had no room for pages of this call.
type Full = BTreeSet<NodeId>;

/// A page on its way.
struct Adding {
    /// Its place among those handed over.
    at: usize,
    key: PageKey,
    /// Its range; under `uniform` not before the management server has said it.
    range: Option<u32>,
    /// The plan's entry whose nodes it goes to.
    entry: Option<u32>,
    /// The record and the stamp in it.
    packed: Option<(u64, Record)>,
    /// Who has it for good.
    durable: Vec<NodeId>,
    /// It was in a batch that a node refused because of a page in it: it goes in a batch of its own.
    alone: bool,
    /// Why it is not acknowledged yet.
    failed: Option<NodeError>,
}

impl Cluster {
    /// Adds pages and waits until they are durable, packing them here. They become visible with the next cycle, or, with
    /// incremental update, are visible when this returns. The records of all these pages are in memory meanwhile, so some
    /// tens of megabytes at a time are a good measure.
    ///
    /// # Errors
    /// When no page could be sent at all because the management server does not answer. What becomes of single pages is in
    /// the answer.
    pub async fn add(&self, pages: &[Page<'_>]) -> Result<Adds> {
        let until = Instant::now() + self.inner.settings.add_limit;
        let mut done = Adds::default();
        let mut open = Vec::with_capacity(pages.len());
        for (at, page) in pages.iter().enumerate() {
            match self.page_key(page.url) {
                Ok(key) => {
                    let range = self.inner.repository.range_of_key(key);
                    let (packed, durable) = (None, Vec::new());
                    open.push(Adding {
                        at,
                        key,
                        range,
                        entry: None,
                        packed,
                        durable,
                        alone: false,
                        failed: None,
                    });
                }
                Err(e) => done.refused.push((at, e)),
            }
        }
        let mut pause = PAUSE_MIN;
        let mut full = Full::new();
        while !open.is_empty() {
            let planned = async {
                self.assign(&mut open).await?;
                self.add_plan().await
            };
            let plan = match timeout_at(until, planned).await {
                Ok(Ok(plan)) => plan,
                Ok(Err(e)) if open.iter().all(|a| a.failed.is_none()) => return Err(e),
                Ok(Err(_)) if Instant::now() + pause < until => {
                    tokio::time::sleep(pause).await;
                    continue;
                }
                _ => break,
            };
            self.choose(&mut open, &plan, &full);
            open = self.refuse_homeless(open, &plan, &mut done);
            open = self.pack(open, pages, &plan, &mut done).await;
            let full_before = full.len();
            if timeout_at(until, self.send(&mut open, &plan, &mut full)).await.is_err() {
                break;
            }
            let room_elsewhere = self.takers(&plan, &full).is_some();
            open = settle(open, &plan, room_elsewhere, &mut done);
            // What was acknowledged is found by whoever reads with a plan that is not older.
            if self.is_incremental() {
                self.inner.plans.not_older_than(plan.version);
            }
            if open.is_empty() || Instant::now() + pause >= until {
                break;
            }
            if full.len() > full_before {
                continue; // there is another node to try now
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        let after_ms = self.inner.settings.add_limit.as_millis() as u64;
        for adding in open {
            let peer = "the update nodes".to_owned();
            let late = || NodeError::Timeout { peer, after_ms };
            done.refused.push((adding.at, adding.failed.unwrap_or_else(late)));
        }
        done.refused.sort_by_key(|(at, _)| *at);
        Ok(done)
    }

    async fn add_plan(&self) -> Result<AddPlan> {
        let (plan, addresses) = self.inner.management.add_plan().await?;
        self.inner.connections.learn(&addresses);
        Ok(plan)
    }

    /// Has ranges assigned to the pages whose keys do not say them.
    async fn assign(&self, open: &mut [Adding]) -> Result<()> {
        let keys: Vec<PageKey> = open.iter().filter(|a| a.range.is_none()).map(|a| a.key).collect();
        if keys.is_empty() {
            return Ok(());
        }
        let ranges = self.inner.management.assign(&keys).await?;
        for (adding, range) in open.iter_mut().filter(|a| a.range.is_none()).zip(ranges) {
            adding.range = range;
        }
        Ok(())
    }

    /// Chooses the plan's entry for each page: that of its range, if it has one and that has room.
    fn choose(&self, open: &mut [Adding], plan: &AddPlan, full: &Full) {
        let map = self.inner.repository.map;
        let takers = self.takers(plan, full).unwrap_or_default();
        let connections = &self.inner.connections;
        let is_full = |node: &NodeId| full.contains(node) || connections.is_full(*node);
        for adding in open {
            let own = adding.range.and_then(|range| map.add_entry(adding.key, range));
            adding.entry = match own {
                Some(_) if takers.is_empty() => own,
                Some(_) if !nodes_of(plan, own).iter().any(is_full) => own,
                _ => {
                    let turn = self.inner.turn.fetch_add(1, Ordering::Relaxed);
                    let any = || u32::try_from(turn % plan.ranges.len().max(1)).ok();
                    takers.get(turn % takers.len().max(1)).copied().or_else(any)
                }
            };
        }
    }

    /// The entries of a plan that pages go by in turn, where any will do; `None`, where the range or the id says it, and where
    /// all are full.
    fn takers(&self, plan: &AddPlan, full: &Full) -> Option<Vec<u32>> {
        if self.inner.repository.map.update_distribution() == Distribution::Hash || self.is_incremental() {
            return None;
        }
        let most = plan.ranges.iter().map(Vec::len).max().filter(|most| *most > 0)?;
        let connections = &self.inner.connections;
        let shunned = |node: &NodeId| {
            connections.is_avoided(*node) || connections.is_busy(*node) || connections.is_full(*node)
        };
        let able: Vec<(u32, &Vec<NodeId>)> = (0..)
            .zip(&plan.ranges)
            .filter(|(_, nodes)| nodes.len() == most && nodes.iter().all(|node| !full.contains(node)))
            .collect();
        let best = able.iter().filter(|(_, nodes)| !nodes.iter().any(shunned)).map(|(entry, _)| *entry);
        let best: Vec<u32> = best.collect();
        let takers = if best.is_empty() { able.into_iter().map(|(entry, _)| entry).collect() } else { best };
        Some(takers).filter(|takers: &Vec<u32>| !takers.is_empty())
    }

    /// Pages of ranges without update node are not taken, and that is said at once; so are new pages that no range takes.
    fn refuse_homeless(&self, open: Vec<Adding>, plan: &AddPlan, done: &mut Adds) -> Vec<Adding> {
        let mut homed = Vec::with_capacity(open.len());
        for adding in open {
            match adding.range {
                None => {
                    let why = "no update node is up and has room".to_owned();
                    done.refused.push((adding.at, self.denied("assign a range to the page", why)));
                }
                Some(range) if nodes_of(plan, adding.entry).is_empty() => {
                    let homeless = NodeError::NoNode { role: "update", range, generation: 0 };
                    done.refused.push((adding.at, homeless));
                }
                Some(_) => homed.push(adding),
            }
        }
        homed
    }

    fn denied(&self, what: &'static str, why: String) -> NodeError {
        NodeError::Denied { peer: self.inner.management.address().to_string(), what, why }
    }

    /// Packs what has no record with the plan's stamp, once for all nodes: replicas hold the same version.
    async fn pack(
        &self,
        open: Vec<Adding>,
        pages: &[Page<'_>],
        plan: &AddPlan,
        done: &mut Adds,
    ) -> Vec<Adding> {
        let map = self.inner.repository.map;
        let is_packed = |adding: &Adding| adding.packed.as_ref().is_some_and(|(s, _)| *s == plan.stamp);
        if open.iter().all(is_packed) {
            return open;
        }
        let dictionary = self.dictionary(plan, pages).await;
        let (mut packed, mut bytes, mut records) = (Vec::with_capacity(open.len()), 0, Records::default());
        for mut adding in open {
            let Some(page) = pages.get(adding.at) else { continue };
            if !is_packed(&adding) {
                let Some(epoch) = map.epoch(plan.stamp, adding.range.unwrap_or(0)) else {
                    let why = format!("cycle {} does not fit into the versions of pages", plan.stamp);
                    done.refused.push((adding.at, self.denied("stamp the page", why)));
                    continue;
                };
                let payload_digest = match page.payload_digest {
                    Some(digest) => Ok(digest),
                    None => page.plain_body().map(|body| Sha1::digest(&body).into()),
                };
                let payload_digest = match payload_digest {
                    Ok(digest) => Some(digest),
                    Err(e) => {
                        done.refused.push((adding.at, e.into()));
                        continue;
                    }
                };
                let page = Page { epoch, payload_digest, ..*page };
                records.make_room(&page, &mut packed, plan.stamp);
                let start = records.buffer.len();
                let (compression, buffer) = (self.inner.settings.compression, &mut records.buffer);
                match pack_page_into(adding.key, &page, compression, dictionary.as_deref(), buffer) {
                    Ok(()) => {
                        records.places.push((packed.len(), start..buffer.len()));
                        // Where pages are visible at once, all nodes shall show the same version.
                        if self.is_incremental() {
                            adding.durable.clear();
                        }
                    }
                    Err(e) => {
                        buffer.truncate(start);
                        done.refused.push((adding.at, e.into()));
                        continue;
                    }
                }
                bytes += page.body_len();
            }
            packed.push(adding);
            if bytes >= PACK_BYTES {
                bytes = 0;
                tokio::task::yield_now().await;
            }
        }
        records.share(&mut packed, plan.stamp);
        packed
    }

    /// Sends to every node what it does not have, to all at once, and notes who has what and who has no room.
    async fn send(&self, open: &mut [Adding], plan: &AddPlan, full: &mut Full) {
        let mut shares: BTreeMap<NodeId, Share> = BTreeMap::new();
        for (at, adding) in open.iter_mut().enumerate() {
            adding.failed = None;
            let Some((_, record)) = &adding.packed else { continue };
            for node in nodes_of(plan, adding.entry) {
                if !adding.durable.contains(node) {
                    let share = shares.entry(*node).or_default();
                    let list = if adding.alone { &mut share.alone } else { &mut share.together };
                    list.push((at, record.clone()));
                }
            }
        }
        let mut sending = JoinSet::new();
        for (node, share) in shares {
            let connections = self.inner.connections.clone();
            let (near, dictionaries) = (self.near(node), self.dictionaries().clone());
            sending.spawn(async move {
                let here = match near {
                    Some(near) => share.send_near(node, &near, &dictionaries).await,
                    None => None,
                };
                let outcome = match here {
                    Some(outcome) => outcome,
                    None => match connections.to(node).await {
                        Ok(client) => share.send(&client).await,
                        Err(e) => share.all_failed(&e),
                    },
                };
                for (_, result) in &outcome {
                    match result {
                        Ok(()) => connections.answered(node),
                        Err(e) => connections.failed(node, e),
                    }
                }
                (node, outcome)
            });
        }
        while let Some(sent) = sending.join_next().await {
            // A task ends otherwise only with the runtime.
            let Ok((node, outcome)) = sent else { continue };
            for (at, result) in outcome {
                let Some(adding) = open.get_mut(at) else { continue };
                match result {
                    Ok(()) => adding.durable.push(node),
                    Err(e) => {
                        if is_full(&e) {
                            full.insert(node);
                        }
                        adding.failed = Some(e);
                    }
                }
            }
        }
    }
}

fn nodes_of(plan: &AddPlan, entry: Option<u32>) -> &[NodeId] {
    entry.and_then(|entry| plan.ranges.get(entry as usize)).map_or(&[], Vec::as_slice)
}

/// Sorts pages after a try: acknowledged, refused for good, or to be tried again.
fn settle(open: Vec<Adding>, plan: &AddPlan, room_elsewhere: bool, done: &mut Adds) -> Vec<Adding> {
    let mut again = Vec::new();
    for mut adding in open {
        let nodes = nodes_of(plan, adding.entry);
        if nodes.iter().all(|node| adding.durable.contains(node)) {
            done.acknowledged += 1;
            continue;
        }
        match &adding.failed {
            Some(e) if is_about_page(e) && !adding.alone => {
                adding.alone = true;
                again.push(adding);
            }
            Some(e) if is_full(e) && room_elsewhere => again.push(adding),
            Some(e) if is_final(e) => done.refused.push((adding.at, e.clone())),
            _ => again.push(adding),
        }
    }
    again
}

fn is_about_page(e: &NodeError) -> bool {
    matches!(e, NodeError::Refused { fault: Fault { code: Code::BadPage, .. }, .. })
}

/// Whether a node said that it has no room.
pub(super) fn is_full(e: &NodeError) -> bool {
    matches!(e, NodeError::Refused { fault: Fault { code: Code::NoSpace, .. }, .. })
}

/// Whether another try, here or elsewhere, would be refused for the same reason.
fn is_final(e: &NodeError) -> bool {
    match e {
        NodeError::Refused { fault, .. } => {
            matches!(
                fault.code,
                Code::BadPage | Code::NoSpace | Code::Token | Code::Version | Code::Repository
            )
        }
        NodeError::TooMuch { .. } => true,
        NodeError::Storage(e) => !matches!(**e, StorageError::Io { .. }),
        e => e.retry() == Retry::Useless,
    }
}

/// Records that are being packed, end to end in buffers that are used again: memory of its own for each of them would cost more than
/// copying it.
#[derive(Default)]
struct Records {
    buffer: Vec<u8>,
    /// Which of the packed pages is where in it.
    places: Vec<(usize, Range<usize>)>,
}

impl Records {
    /// Sees to it that a page's record fits into the buffer. One that fits into none gets memory of its own.
    fn make_room(&mut self, page: &Page<'_>, packed: &mut [Adding], stamp: u64) {
        let bytes = record_bytes_max(page);
        if self.buffer.len() + bytes > self.buffer.capacity() {
            self.share(packed, stamp);
            self.buffer = if bytes <= pool::BUFFER_BYTES { pool::take(bytes) } else { Vec::new() };
        }
    }

    /// Hands the records of the buffer to their pages.
    fn share(&mut self, packed: &mut [Adding], stamp: u64) {
        let shared = pool::share(std::mem::take(&mut self.buffer));
        for (at, place) in self.places.drain(..) {
            // It was made here a moment ago.
            if let (Some(adding), Ok(record)) =
                (packed.get_mut(at), Record::new_unverified(shared.slice(place)))
            {
                adding.packed = Some((stamp, record));
            }
        }
    }
}

/// What one node is sent: places and records.
#[derive(Default)]
struct Share {
    together: Vec<(usize, Record)>,
    /// Each in a batch of its own.
    alone: Vec<(usize, Record)>,
}

type Outcome = Vec<(usize, Result<()>)>;

impl Share {
    fn all_failed(&self, e: &NodeError) -> Outcome {
        self.together.iter().chain(&self.alone).map(|(at, _)| (*at, Err(e.clone()))).collect()
    }

    async fn send(&self, client: &Client) -> Outcome {
        match self.try_send(client).await {
            Ok(outcome) => outcome,
            // What of it is durable is not known: all of it is tried again.
            Err(e) => self.all_failed(&e),
        }
    }

    /// Hands it to a node of this process; nothing where the ordinary way has to be gone.
    async fn send_near(&self, node: NodeId, near: &NearNode, dictionaries: &Dictionaries) -> Option<Outcome> {
        let outcome = |result: std::result::Result<(), Fault>| {
            result.map_err(|fault| NodeError::Refused { peer: super::connections::name(node), fault })
        };
        let records = self.together.iter().map(|(_, record)| record);
        let together = outcome(near.add(records, dictionaries).await?);
        let mut all: Outcome = self.together.iter().map(|(at, _)| (*at, together.clone())).collect();
        for (at, record) in &self.alone {
            all.push((*at, outcome(near.add([record].into_iter(), dictionaries).await?)));
        }
        Some(all)
    }

    async fn try_send(&self, client: &Client) -> Result<Outcome> {
        let mut outcome = Outcome::with_capacity(self.together.len() + self.alone.len());
        let mut add = client.add_records()?;
        for (_, record) in &self.together {
            add.record(record).await?;
        }
        let together = add.flush().await?;
        let refused = together.refused.into_iter().next().map(|(_, fault)| fault);
        for (at, _) in &self.together {
            outcome.push((*at, refusal(client, refused.clone())));
        }
        for (at, record) in &self.alone {
            add.record(record).await?;
            let one = add.flush().await?;
            let refused = one.refused.into_iter().next().map(|(_, fault)| fault);
            outcome.push((*at, refusal(client, refused)));
        }
        add.finish().await?;
        Ok(outcome)
    }
}

fn refusal(client: &Client, fault: Option<Fault>) -> Result<()> {
    match fault {
        None => Ok(()),
        Some(fault) => Err(NodeError::Refused { peer: client.peer().to_owned(), fault }),
    }
}
