//! One node's share of a stream: some ranges, and how far they are delivered.
//!
//! A node's cursor means nothing to another one, so a share also knows what was delivered in terms that every replica
//! understands: all keys up to `through`, and single keys beyond it. A node that streams in key order needs only the first;
//! only of one that does not (a log) are the single keys remembered. Another node then begins at its own beginning, or at the
//! key, and leaves out what was delivered. All nodes have the same pages of a generation, so each page comes exactly once.
//!
//! A page that is damaged at its node is looked up at the others and delivered in its place. Where the node cannot tell which
//! page it is, another node goes on with the whole share: damage is told before the pages around it, so nothing that may be
//! hidden is passed. Only what no node has whole is an error to the reader.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep, timeout};
use webbase_storage::{Cursor, PageKey, Record};

use super::connections::{Connections, name};
use super::lookup::nodes_of;
use crate::client::StreamRequest;
use crate::cycle::message::NodeId;
use crate::cycle::{RangeMap, RangeSet};
use crate::error::{NodeError, Result};
use crate::plan::{ReadPlan, Repository};
use crate::wire::message::{Code, Fault};
use crate::wire::ranges::RangeSet as WireRanges;

/// Between two rounds of asking for a damaged page.
const PAUSE: Duration = Duration::from_millis(200);

/// What comes through the queue.
pub(super) enum Item {
    /// A page, and its place in the queue.
    Page(Record, OwnedSemaphorePermit),
    /// A page that no node has whole; the stream goes on.
    Damaged(NodeError),
    /// The stream cannot go on.
    Failed(NodeError),
    /// All pages were delivered.
    End,
}

/// How far the pages of some ranges are delivered.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    /// All up to this key.
    through: Option<PageKey>,
    /// And these.
    single: HashSet<PageKey>,
    /// And these beyond `through`, which came from elsewhere because they are damaged at the node.
    replaced: BTreeSet<PageKey>,
    /// Nodes that have damage about here and cannot tell which page it hit: others are better.
    hiding: BTreeSet<NodeId>,
    /// There were too many to remember: only the node itself can go on, with its cursor.
    forgotten: bool,
    /// Where the last node stopped.
    stopped: Option<(NodeId, String)>,
}

impl Progress {
    fn is_delivered(&self, key: PageKey) -> bool {
        let through = self.through.is_some_and(|through| key <= through);
        through || self.single.contains(&key) || self.replaced.contains(&key)
    }

    /// Nothing was delivered.
    pub(super) fn is_fresh(&self) -> bool {
        self.through.is_none() && self.single.is_empty() && self.replaced.is_empty() && !self.forgotten
    }

    /// Whether pages are damaged at this node that it cannot tell.
    pub(super) fn is_hidden_at(&self, node: NodeId) -> bool {
        self.hiding.contains(&node)
    }

    /// Whether this node can go on here.
    pub(super) fn can_go_on_at(&self, node: NodeId) -> bool {
        !self.forgotten || self.stopped.as_ref().is_some_and(|(at, _)| *at == node)
    }

    /// The part of it about these ranges.
    pub(super) fn within(&self, ranges: &RangeSet, map: RangeMap) -> Progress {
        // Where the key does not say the range all are kept: to know more than needed is no harm.
        let within = |key: &&PageKey| map.range_of_key(**key).is_none_or(|range| ranges.contains(range));
        Progress {
            single: self.single.iter().filter(within).copied().collect(),
            replaced: self.replaced.iter().filter(within).copied().collect(),
            hiding: self.hiding.clone(),
            stopped: self.stopped.clone(),
            ..*self
        }
    }
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
                common.forget(&mut self.progress);
            }
            Err(e) => common.connections.failed(node, e),
        }
        (self, node, delivered, outcome)
    }

    async fn try_run(&mut self, common: &Common, node: NodeId, delivered: &mut u64) -> Result<()> {
        let client = common.connections.to(node).await?;
        let from = self.from(node);
        let mut own_start = from == Cursor::Start.to_string() || self.progress.forgotten;
        let mut reader = client.stream(&self.request(common, from)?)?;
        let mut accepted = false;
        while let Some(next) = reader.next().await {
            let ordered = reader.is_ordered();
            let (record, in_place) = match next {
                Ok(record) => (record, true),
                Err(e) if !own_start && is_bad_request(&e) => {
                    // It streams in another order than the one before it: from its beginning, then.
                    own_start = true;
                    reader = client.stream(&self.request(common, Cursor::Start.to_string())?)?;
                    continue;
                }
                Err(e) if !reader.is_over() && is_damage(&e) => match reader.lost() {
                    Some(key) if self.progress.is_delivered(key) => continue,
                    Some(key) => match common.elsewhere(key, node).await {
                        Some(record) => (record, false),
                        None => {
                            common.send(Item::Damaged(e)).await?;
                            continue;
                        }
                    },
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
            let key = record.get().key();
            let new = !self.progress.is_delivered(key);
            if new {
                if let Err(e) = common.deliver(record).await {
                    self.progress.stopped = Some((node, reader.cursor()));
                    return Err(e);
                }
                *delivered += 1;
                if std::mem::take(&mut accepted) {
                    self.progress.hiding.clear();
                }
            }
            if ordered && !in_place {
                self.progress.replaced.insert(key);
            } else {
                common.note(&mut self.progress, key, ordered, new);
            }
        }
        Ok(())
    }

    /// Where a node begins.
    fn from(&self, node: NodeId) -> String {
        match (&self.progress.stopped, self.progress.through) {
            (Some((at, cursor)), _) if *at == node => cursor.clone(),
            (_, Some(through)) => through.next().map_or(Cursor::End, Cursor::Key).to_string(),
            _ => Cursor::Start.to_string(),
        }
    }

    fn request(&self, common: &Common, from: String) -> Result<StreamRequest> {
        let bits = common.repository.map.count().ilog2() as u8;
        let ranges = WireRanges::of(bits, self.ranges.iter()).ok_or_else(|| NodeError::StreamLost {
            generation: common.generation,
            why: "its plan names a range that the repository does not have".into(),
        })?;
        Ok(StreamRequest { generation: common.generation, from, ranges, ..StreamRequest::default() })
    }
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
    async fn elsewhere(&self, key: PageKey, damaged_at: NodeId) -> Option<Record> {
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

    /// Queues a page, waiting for room.
    async fn deliver(&self, record: Record) -> Result<()> {
        let bytes = record.bytes().len().clamp(1, self.room_bytes) as u32;
        let permit = self.room.clone().acquire_many_owned(bytes).await.map_err(|_| self.dropped())?;
        self.send(Item::Page(record, permit)).await
    }

    async fn send(&self, item: Item) -> Result<()> {
        self.queue.send(item).await.map_err(|_| self.dropped())
    }

    fn dropped(&self) -> NodeError {
        NodeError::StreamLost { generation: self.generation, why: "nobody takes its pages any more".into() }
    }

    /// Takes note of a page that is delivered.
    fn note(&self, progress: &mut Progress, key: PageKey, ordered: bool, new: bool) {
        if ordered {
            progress.through = progress.through.max(Some(key));
            if progress.replaced.first().is_some_and(|first| *first <= key) {
                progress.replaced.retain(|replaced| *replaced > key);
            }
        } else if new && !progress.forgotten {
            progress.single.insert(key);
            let remembered = self.remembered.fetch_add(1, Ordering::Relaxed);
            if remembered >= self.remembered_max {
                self.forget(progress);
                progress.forgotten = true;
            }
        }
    }

    /// Lets the memory of single keys go.
    fn forget(&self, progress: &mut Progress) {
        let keys = std::mem::take(&mut progress.single).len();
        let _ = self
            .remembered
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(n.saturating_sub(keys)));
    }
}
