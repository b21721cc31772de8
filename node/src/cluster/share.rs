//! One node's share of a stream: some ranges, and how far they are delivered (progress.rs).
//!
//! A node's cursor means nothing to another one; what means the same to all is told in places: a key where pages come in key
//! order, an arrival and a key where they come in the order in which they arrived. Only between nodes whose orders differ
//! are the delivered keys needed, and remembered, up to a bound. Another node then begins at its own beginning and leaves out
//! what was delivered. All nodes have the same pages of a generation, so each page comes exactly once.
//!
//! A page that is damaged at its node is looked up at the others and delivered in its place. Where the node cannot tell which
//! page it is, another node goes on with the whole share: damage is told before the pages around it, so nothing that may be
//! hidden is passed. Only what no node has whole is an error to the reader.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep, timeout};
use webbase_storage::{Cursor, PageKey, Record};

use super::connections::{Connections, name};
use super::lookup::nodes_of;
use super::progress::{At, Progress};
use crate::client::{PageReader, Select, StreamRequest};
use crate::cycle::RangeSet;
use crate::cycle::message::NodeId;
use crate::error::{NodeError, Result};
use crate::plan::{LIVE, ReadPlan, Repository};
use crate::wire::message::{After, By, Code, Fault, Place};
use crate::wire::ranges::RangeSet as WireRanges;
use crate::wire::spec::StreamSpec;

/// Between two rounds of asking for a damaged page.
const PAUSE: Duration = Duration::from_millis(200);

/// What comes through the queue.
pub(super) enum Item {
    /// A page.
    Page {
        record: Record,
        /// Where it lies in the stream.
        at: At,
        /// A range that has ended, up to here.
        ended: Option<At>,
        /// In a shared scan, or an order of the node's own: its place behind it.
        own: Option<Own>,
        /// Its place in the queue.
        _room: OwnedSemaphorePermit,
    },
    /// A page of a stream in an order, and its place.
    Ordered {
        record: Record,
        place: Place,
        /// Its place in the queue.
        _room: OwnedSemaphorePermit,
    },
    /// All pages of these ranges were delivered.
    Done(RangeSet),
    /// A page that no node has whole; the stream goes on.
    Damaged(NodeError),
    /// The stream cannot go on.
    Failed(NodeError),
    /// All pages were delivered.
    End,
}

/// Where some ranges are at one node, in its own terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Own {
    pub(super) node: NodeId,
    pub(super) ranges: Arc<RangeSet>,
    pub(super) cursor: String,
}

/// What a stream selects.
pub(super) struct Selected {
    pub(super) spec: Arc<StreamSpec>,
    /// Which version of the importance of pages counts.
    pub(super) importance: u64,
    /// Whether scans are shared.
    pub(super) shared: bool,
}

/// What all shares of a stream have in common.
pub(super) struct Common {
    pub(super) connections: Arc<Connections>,
    pub(super) repository: Repository,
    pub(super) generation: u64,
    /// Which nodes have which ranges, as of late.
    pub(super) plan: Mutex<Arc<ReadPlan>>,
    /// One try of a lookup, and how long a page is asked for that no node gives.
    pub(super) attempt: Duration,
    pub(super) limit: Duration,
    pub(super) queue: mpsc::Sender<Item>,
    /// Permits are bytes of the queue.
    pub(super) room: Arc<Semaphore>,
    pub(super) room_bytes: usize,
    /// Keys remembered by all shares.
    pub(super) remembered: AtomicUsize,
    pub(super) remembered_max: usize,
    /// What it selects, if that is not everything.
    pub(super) selected: Option<Selected>,
    /// Whether nodes read past their page caches.
    pub(super) direct: bool,
}

/// Some ranges to be streamed.
pub(super) struct Share {
    pub(super) ranges: RangeSet,
    pub(super) progress: Progress,
}

impl Share {
    /// Streams it from a node, all the way or until something fails; gives itself back either way, with the number of pages
    /// delivered now.
    pub(super) async fn run(mut self, common: Arc<Common>, node: NodeId) -> (Share, NodeId, u64, Result<()>) {
        let mut delivered = 0;
        let outcome = self.try_run(&common, node, &mut delivered).await;
        match &outcome {
            Ok(()) => {
                common.connections.answered(node);
                common.forget(&mut self.progress, false);
            }
            Err(e) => common.connections.failed(node, e),
        }
        (self, node, delivered, outcome)
    }

    async fn try_run(&mut self, common: &Common, node: NodeId, delivered: &mut u64) -> Result<()> {
        let client = common.connections.to(node).await?;
        let (mut way, mut others) = self.ways(node);
        let mut reader = client.stream(&self.request(common, &way)?)?;
        // What is forgotten on the way concerns the nodes after this one.
        let forgotten = self.progress.is_forgotten();
        // A node's own place says everything only if nobody else has delivered something of these ranges.
        let shared = common.selected.as_ref().is_some_and(|selected| selected.shared);
        let own_suffices = matches!(way, Way::Own(_)) || self.progress.is_fresh();
        let ranges = Arc::new(self.ranges.clone());
        let mut accepted = false;
        let mut before: Option<At> = None;
        while let Some(next) = reader.next().await {
            let (record, at) = match next {
                Ok(record) => {
                    let range = common.repository.range_of(record.get().key(), record.get().version());
                    let at = at(&reader, range, record.get().key(), reader.arrival(), false);
                    (record, at)
                }
                Err(e) if reader.is_over() && is_bad_request(&e) && !others.is_empty() => {
                    // Its pages are in another order than those of the node before: from its beginning, then.
                    way = others.remove(0);
                    reader = client.stream(&self.request(common, &way)?)?;
                    continue;
                }
                Err(e) if !reader.is_over() && is_damage(&e) => match reader.lost() {
                    Some((key, arrival)) => {
                        // Where only its record says its range it has to be fetched to know whether it is wanted.
                        let range = common.repository.range_of_key(key);
                        let known = range.map(|range| at(&reader, range, key, arrival, true));
                        if known.is_some_and(|at| self.progress.is_delivered(&at)) {
                            continue;
                        }
                        let Some(record) = common.elsewhere(key, node).await else {
                            common.send(Item::Damaged(e)).await?;
                            continue;
                        };
                        let range = common.repository.range_of(key, record.get().version());
                        let Some(record) = common.select(record)?.filter(|_| self.ranges.contains(range))
                        else {
                            continue;
                        };
                        let at = at(&reader, range, key, arrival, true);
                        (record, at)
                    }
                    None if self.progress.is_hidden_at(node) => {
                        // There is no better node, as far as the next page.
                        accepted = true;
                        common.send(Item::Damaged(e)).await?;
                        continue;
                    }
                    None => {
                        if *delivered > 0 {
                            self.progress.hiding.clear(); // what others hide lies before this place
                        }
                        self.progress.hiding.insert(node);
                        self.progress.stopped = Some((node, reader.before_lost().to_owned()));
                        return Err(e);
                    }
                },
                Err(e) => {
                    self.progress.stopped = Some((node, reader.cursor()));
                    return Err(e);
                }
            };
            if forgotten && !matches!(way, Way::Own(_)) && !self.progress.can_tell(&at) {
                self.progress.give_up(node);
                return Err(common.other_order(node));
            }
            // Where ranges are assigned they do not come one after the other.
            let ended = match common.repository.map.is_uniform() {
                true => None,
                false => self.end_before(&mut before, &at),
            };
            if !self.progress.is_delivered(&at) {
                // Live pages of a log come in its own order: no other node knows a place in it.
                let tells = shared || (common.generation == LIVE && at.order.is_none());
                let own = (tells && own_suffices).then(|| Own {
                    node,
                    ranges: ranges.clone(),
                    cursor: reader.cursor(),
                });
                if let Err(e) = common.deliver(record, at, ended, own).await {
                    self.progress.stopped = Some((node, reader.cursor()));
                    return Err(e);
                }
                *delivered += 1;
                if std::mem::take(&mut accepted) {
                    self.progress.hiding.clear();
                }
            }
            common.note(&mut self.progress, &at);
        }
        common.send(Item::Done(self.ranges.clone())).await
    }

    /// A node's ranges come one after the other, within an arrival: the one before has ended there.
    fn end_before(&mut self, before: &mut Option<At>, at: &At) -> Option<At> {
        if at.ahead {
            return None;
        }
        let last = before.replace(*at).filter(|last| last.range != at.range)?;
        if let Some((By::Arrival, arrival)) = last.order {
            self.progress.pass(last.range, arrival, PageKey::MAX);
        }
        Some(At { key: PageKey::MAX, ..last })
    }

    /// Where a node begins, and what to try when that means nothing to it.
    fn ways(&self, node: NodeId) -> (Way, Vec<Way>) {
        let own = self.progress.stopped.as_ref().filter(|(at, _)| *at == node);
        let own = own.map(|(_, cursor)| Way::Own(cursor.clone()));
        let through = self.progress.through.map(|through| through.next().map_or(Cursor::End, Cursor::Key));
        let ways = own.into_iter().chain(through.map(Way::From));
        let mut ways = ways.chain(self.progress.after().map(Way::After)).chain([Way::From(Cursor::Start)]);
        (ways.next().unwrap_or(Way::From(Cursor::Start)), ways.collect())
    }

    fn request(&self, common: &Common, way: &Way) -> Result<StreamRequest> {
        let bits = common.repository.map.bits();
        let ranges = WireRanges::of(bits, self.ranges.iter()).ok_or_else(|| NodeError::StreamLost {
            generation: common.generation,
            why: "its plan names a range that the repository does not have".into(),
        })?;
        let select = common.selected.as_ref().map(|selected| Select {
            spec: selected.spec.clone(),
            importance: selected.importance,
            // Who goes on somewhere goes on by itself.
            shared: selected.shared && matches!(way, Way::From(Cursor::Start)) && self.progress.is_fresh(),
        });
        let (generation, direct) = (common.generation, common.direct);
        let all = StreamRequest { generation, ranges, direct, select, ..StreamRequest::default() };
        Ok(match way {
            Way::Own(cursor) => StreamRequest { from: cursor.clone(), ..all },
            Way::From(cursor) => StreamRequest { from: cursor.to_string(), ..all },
            Way::After(after) => StreamRequest { after: Some(after.clone()), ..all },
        })
    }
}

/// How a stream at a node begins.
enum Way {
    /// At the node's own cursor: exactly what is left follows.
    Own(String),
    /// Behind places that nodes share.
    After(After),
    /// Somewhere before what is left.
    From(Cursor),
}

/// Where a page lies in a stream.
fn at(reader: &PageReader, range: u32, key: PageKey, arrival: Option<u64>, ahead: bool) -> At {
    let order = match arrival {
        _ if reader.is_ordered() => Some((By::Key, 0)),
        arrival => arrival.map(|arrival| (By::Arrival, arrival)),
    };
    At { range, key, order, ahead }
}

fn is_bad_request(e: &NodeError) -> bool {
    matches!(e, NodeError::Refused { fault: Fault { code: Code::BadRequest, .. }, .. })
}

fn is_damage(e: &NodeError) -> bool {
    matches!(e, NodeError::Refused { fault: Fault { code: Code::Damaged, .. }, .. })
}

impl Common {
    /// A page that is damaged at a node, from another one; from the same one if it is whole there by now. `None` when all that
    /// have it say that it is damaged, or none answers for long.
    pub(super) async fn elsewhere(&self, key: PageKey, damaged_at: NodeId) -> Option<Record> {
        let range = self.repository.range_of_key(key);
        let began = Instant::now();
        loop {
            let plan = self.plan.lock().clone();
            // Where the key does not say the range any node may have it.
            let mut able =
                range.map_or_else(|| plan.ranges.concat(), |range| nodes_of(&plan, range).to_vec());
            able.sort_unstable();
            able.dedup();
            let mut nodes = self.connections.in_turn(&able, 0);
            nodes.sort_by_key(|node| *node == damaged_at);
            let mut all_said = true;
            for node in nodes {
                let asked = async { self.connections.to(node).await?.lookup(self.generation, key).await };
                let late = |_| {
                    let after_ms = self.attempt.as_millis() as u64;
                    Err(NodeError::Timeout { peer: name(node), after_ms })
                };
                match timeout(self.attempt, asked).await.unwrap_or_else(late) {
                    Ok(Some(record)) => return Some(record),
                    Ok(None) => {}
                    Err(e) if is_damage(&e) => {}
                    Err(e) => {
                        self.connections.failed(node, &e);
                        all_said = false;
                    }
                }
            }
            if all_said || began.elapsed() > self.limit || self.queue.is_closed() {
                return None;
            }
            sleep(PAUSE).await;
        }
    }

    /// A node whose pages are in another order than what was delivered is told in.
    fn other_order(&self, node: NodeId) -> NodeError {
        let why = format!("the pages of {} are in another order than those that came before", name(node));
        NodeError::StreamLost { generation: self.generation, why }
    }

    /// Queues a page, waiting for room.
    async fn deliver(&self, record: Record, at: At, ended: Option<At>, own: Option<Own>) -> Result<()> {
        let _room = self.room_for(&record).await?;
        self.send(Item::Page { record, at, ended, own, _room }).await
    }

    /// As `deliver`, in an order.
    pub(super) async fn deliver_ordered(&self, record: Record, place: Place) -> Result<()> {
        let _room = self.room_for(&record).await?;
        self.send(Item::Ordered { record, place, _room }).await
    }

    async fn room_for(&self, record: &Record) -> Result<OwnedSemaphorePermit> {
        let bytes = record.bytes().len().clamp(1, self.room_bytes) as u32;
        self.room.clone().acquire_many_owned(bytes).await.map_err(|_| self.dropped())
    }

    /// What the stream selects of a page that came from elsewhere. Its node has looked at its importance already, which needs
    /// only the key.
    fn select(&self, record: Record) -> Result<Option<Record>> {
        let Some(Selected { spec, .. }) = &self.selected else { return Ok(Some(record)) };
        if !spec.wants(&record.get().into(), |_| Ok::<_, NodeError>(Some(f32::INFINITY)))? {
            return Ok(None);
        }
        let bytes = spec.projection.of(&record);
        Ok(Some(Record::new(bytes).map_err(webbase_storage::StorageError::from)?))
    }

    pub(super) async fn send(&self, item: Item) -> Result<()> {
        self.queue.send(item).await.map_err(|_| self.dropped())
    }

    fn dropped(&self) -> NodeError {
        NodeError::StreamLost { generation: self.generation, why: "nobody takes its pages any more".into() }
    }

    /// Takes note of a page that is delivered.
    fn note(&self, progress: &mut Progress, at: &At) {
        if progress.note(at) && progress.remember(at.key) {
            let remembered = self.remembered.fetch_add(1, Ordering::Relaxed);
            if remembered >= self.remembered_max {
                self.forget(progress, true);
            }
        }
    }

    /// Lets the memory of single keys go.
    fn forget(&self, progress: &mut Progress, too_long: bool) {
        let keys = progress.forget(too_long);
        let _ = self
            .remembered
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(n.saturating_sub(keys)));
    }
}
