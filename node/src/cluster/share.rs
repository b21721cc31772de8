//! One node's share of a stream: some ranges, and how far they are delivered.
//!
//! A node's cursor means nothing to another one, so a share also knows what was delivered in terms that every replica
//! understands: all keys up to `through`, and single keys beyond it. A node that streams in key order needs only the first;
//! only of one that does not (a log) are the single keys remembered. Another node then begins at its own beginning, or at the
//! key, and leaves out what was delivered. All nodes have the same pages of a generation, so each page comes exactly once.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use webbase_storage::{Cursor, PageKey, Record};

use super::connections::Connections;
use crate::client::{PageReader, StreamRequest};
use crate::cycle::message::NodeId;
use crate::cycle::{RangeMap, RangeSet};
use crate::error::{NodeError, Result};
use crate::plan::Repository;
use crate::wire::message::{Code, Fault};
use crate::wire::ranges::RangeSet as WireRanges;

/// What comes through the queue.
pub(super) enum Item {
    /// A page, and its place in the queue.
    Page(Record, OwnedSemaphorePermit),
    /// A page that is damaged where it was to be read; the stream goes on.
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
    /// There were too many to remember: only the node itself can go on, with its cursor.
    forgotten: bool,
    /// Where the last node stopped.
    stopped: Option<(NodeId, String)>,
}

impl Progress {
    fn is_delivered(&self, key: PageKey) -> bool {
        self.through.is_some_and(|through| key <= through) || self.single.contains(&key)
    }

    /// Nothing was delivered.
    pub(super) fn is_fresh(&self) -> bool {
        self.through.is_none() && self.single.is_empty() && !self.forgotten
    }

    /// Whether this node can go on here.
    pub(super) fn can_go_on_at(&self, node: NodeId) -> bool {
        !self.forgotten || self.stopped.as_ref().is_some_and(|(at, _)| *at == node)
    }

    /// The part of it about these ranges.
    pub(super) fn within(&self, ranges: &RangeSet, map: RangeMap) -> Progress {
        let single = self.single.iter().filter(|key| ranges.contains(map.range_of(**key))).copied();
        Progress { single: single.collect(), stopped: self.stopped.clone(), ..*self }
    }
}

/// What all shares of a stream have in common.
pub(super) struct Common {
    pub(super) connections: Arc<Connections>,
    pub(super) repository: Repository,
    pub(super) generation: u64,
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
        let mut ordered = None;
        while let Some(next) = reader.next().await {
            let record = match next {
                Ok(record) => record,
                Err(e) if !own_start && is_bad_request(&e) => {
                    // It streams in another order than the one before it: from its beginning, then.
                    own_start = true;
                    reader = client.stream(&self.request(common, Cursor::Start.to_string())?)?;
                    continue;
                }
                Err(e) if !reader.is_over() && is_damage(&e) => {
                    common.send(Item::Damaged(e)).await?;
                    continue;
                }
                Err(e) => {
                    self.progress.stopped = Some((node, reader.cursor()));
                    return Err(e);
                }
            };
            let key = record.get().key();
            let ordered = *ordered.get_or_insert_with(|| is_ordered(&reader));
            let new = !self.progress.is_delivered(key);
            if new {
                if let Err(e) = common.deliver(record).await {
                    self.progress.stopped = Some((node, reader.cursor()));
                    return Err(e);
                }
                *delivered += 1;
            }
            common.note(&mut self.progress, key, ordered, new);
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

/// Whether the pages come in key order: then the place behind a page is its key.
fn is_ordered(reader: &PageReader) -> bool {
    matches!(reader.cursor().parse(), Ok(Cursor::Key(_)))
}

fn is_bad_request(e: &NodeError) -> bool {
    matches!(e, NodeError::Refused { fault: Fault { code: Code::BadRequest, .. }, .. })
}

fn is_damage(e: &NodeError) -> bool {
    matches!(e, NodeError::Refused { fault: Fault { code: Code::Damaged, .. }, .. })
}

impl Common {
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
