//! A stream in an order: each node sends its pages in that order, and they are merged here.
//!
//! A *place* (what the order compares) and a page's key say the same everywhere, so all that is remembered of each node's
//! part is the last of them that it sent. When a node fails its ranges go on behind that, at other nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use webbase_storage::{PageKey, Record};

use super::lookup::nodes_of;
use super::share::{Common, Item};
use crate::client::OrderedItem;
use crate::cycle::RangeSet;
use crate::cycle::message::NodeId;
use crate::error::{NodeError, Result};
use crate::management::Management;
use crate::plan::Lease;
use crate::wire::message::{Code, Lost, Place, Request, SelectFrom};
use crate::wire::ranges::RangeSet as WireRanges;
use crate::wire::spec::{Seen, StreamSpec};

/// Pages of one node that wait to be merged.
const AHEAD_PAGES: usize = 64;
/// Between two tries of a part that nobody serves.
const PAUSE: Duration = Duration::from_millis(100);
/// A management server that does not renew a lease in this time is asked again later.
const RENEW_LIMIT: Duration = Duration::from_secs(1);

/// Place and key.
type At = (Vec<u8>, PageKey);

fn told(at: &At) -> Place {
    (at.0.clone(), at.1.into())
}

/// Where a stream in an order goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Onward {
    /// Behind the last page that was taken.
    pub(super) after: Option<Place>,
    /// It was begun in another generation, and left there.
    pub(super) went_on: Option<(u64, Place)>,
}

enum Told {
    Page(Record, Vec<u8>),
    Lost(Option<Vec<u8>>, Lost),
    Ended,
    Failed(NodeError),
}

/// Some ranges, at one node.
struct Part {
    ranges: RangeSet,
    node: NodeId,
    coming: mpsc::Receiver<Told>,
    head: Option<(At, Record)>,
    /// What it sent last.
    last: Option<At>,
    since: Instant,
    /// Nodes that have damage here and cannot tell which page it hit, or do not have the generation.
    hiding: BTreeSet<NodeId>,
    ended: bool,
}

/// The one task that merges a stream.
pub(super) struct Merging {
    pub(super) common: Arc<Common>,
    pub(super) onward: Onward,
    parts: Vec<Part>,
    /// Pages that came from elsewhere because they are damaged where they should have come from.
    extra: BTreeMap<At, Record>,
}

impl Merging {
    pub(super) fn new(common: Arc<Common>, onward: Onward) -> Merging {
        Merging { common, onward, parts: Vec::new(), extra: BTreeMap::new() }
    }

    /// Sends all pages of some ranges to the queue, in order.
    pub(super) async fn run(mut self, ranges: RangeSet, management: Management, lease: Lease) {
        let common = self.common.clone();
        let keeping = tokio::spawn(keep(common.clone(), management.clone(), lease));
        let outcome = tokio::select! {
            outcome = self.go(ranges) => outcome,
            () = common.queue.closed() => Ok(()),
        };
        keeping.abort();
        let last = outcome.map_or_else(Item::Failed, |()| Item::End);
        // Whoever drops the stream does not want to know how it ended; a lease that cannot be given back runs out.
        let _dropped = common.queue.send(last).await;
        let _runs_out = management.end_lease(&lease).await;
    }

    async fn go(&mut self, ranges: RangeSet) -> Result<()> {
        if self.common.generation == 0 {
            return Ok(());
        }
        let start = self.onward.after.as_ref().map(|(place, key)| (place.clone(), PageKey::from(*key)));
        self.give_out(ranges, start, &BTreeSet::new(), Instant::now()).await?;
        loop {
            self.fill().await?;
            let first = self.parts.iter().filter_map(|part| part.head.as_ref().map(|(at, _)| at)).min();
            let from_extra = match (first, self.extra.first_key_value()) {
                (Some(first), Some((extra, _))) => extra < first,
                (None, Some(_)) => true,
                (_, None) => false,
            };
            let next = match from_extra {
                true => self.extra.pop_first(),
                false => {
                    let least = self.parts.iter_mut().filter(|part| part.head.is_some()).min_by(|a, b| {
                        let at = |part: &Part| part.head.as_ref().map(|(at, _)| at.clone());
                        at(a).cmp(&at(b))
                    });
                    least.and_then(|part| part.head.take())
                }
            };
            let Some((at, record)) = next else { return Ok(()) };
            self.common.deliver_ordered(record, told(&at)).await?;
        }
    }

    /// Has every part show its next page, or end.
    async fn fill(&mut self) -> Result<()> {
        let mut n = 0;
        while let Some(part) = self.parts.get_mut(n) {
            if part.head.is_some() || part.ended {
                n += 1;
                continue;
            }
            match part.coming.recv().await {
                Some(Told::Page(record, place)) => {
                    let at = (place, record.get().key());
                    part.since = Instant::now();
                    part.last = Some(at.clone());
                    part.head = Some((at, record));
                }
                Some(Told::Ended) => part.ended = true,
                Some(Told::Lost(place, lost)) => self.lost(n, place, lost).await?,
                Some(Told::Failed(e)) => self.again(n, Some(e)).await?,
                None => self.again(n, None).await?,
            }
        }
        self.parts.retain(|part| !part.ended || part.head.is_some());
        Ok(())
    }

    /// A page is damaged where it should have come from.
    async fn lost(&mut self, part: usize, place: Option<Vec<u8>>, lost: Lost) -> Result<()> {
        let Some(part_of) = self.parts.get_mut(part) else { return Ok(()) };
        let (node, fault) = (part_of.node, lost.fault.clone());
        let error = NodeError::Refused { peer: super::connections::name(node), fault };
        let Some(key) = lost.key.map(PageKey::from) else {
            let plan = self.common.plan.lock().clone();
            let known = part_of.hiding.len();
            part_of.hiding.insert(node);
            let hiding = &part_of.hiding;
            let better = |range| nodes_of(&plan, range).iter().any(|node| !hiding.contains(node));
            if part_of.hiding.len() > known && part_of.ranges.iter().all(better) {
                return self.again(part, Some(error)).await;
            }
            return self.common.send(Item::Damaged(error)).await;
        };
        let (ranges, last) = (part_of.ranges.clone(), part_of.last.clone());
        let Some(record) = self.common.elsewhere(key, node).await else {
            return self.common.send(Item::Damaged(error)).await;
        };
        let range = self.common.repository.range_of(key, record.get().version());
        let Some(selected) = &self.common.selected else { return Ok(()) };
        let page = Seen::from(record.get());
        // The node has looked at the importance already: it needs the key only.
        let wants = selected.spec.wants(&page, |_| Ok::<_, NodeError>(Some(f32::INFINITY)))?;
        let at = (place.unwrap_or_else(|| selected.spec.place(&page, None)), key);
        if wants && ranges.contains(range) && last.is_none_or(|last| last < at) {
            let bytes = selected.spec.projection.of(&record);
            let record = Record::new(bytes).map_err(webbase_storage::StorageError::from)?;
            self.extra.insert(at, record);
        }
        Ok(())
    }

    /// A part goes on elsewhere, or here when the node is back.
    async fn again(&mut self, part: usize, failed: Option<NodeError>) -> Result<()> {
        if part >= self.parts.len() {
            return Ok(());
        }
        let mut part = self.parts.swap_remove(part);
        let generation = self.common.generation;
        let failed =
            failed.unwrap_or(NodeError::StreamLost { generation, why: "a part of it was cut off".into() });
        self.common.connections.failed(part.node, &failed);
        if part.since.elapsed() > self.common.limit || is_refusal(&failed, Code::BadRequest) {
            return Err(failed);
        }
        if is_refusal(&failed, Code::Generation) {
            // It has moved on, or is not there yet: others may have it.
            part.hiding.insert(part.node);
            let plan = self.common.plan.lock().clone();
            let nobody = |range| nodes_of(&plan, range).iter().all(|node| part.hiding.contains(node));
            if part.ranges.iter().any(nobody) {
                return Err(failed);
            }
        }
        sleep(PAUSE).await;
        self.give_out(part.ranges, part.last, &part.hiding, part.since).await
    }

    /// Opens some ranges at nodes that have them, evenly; waits while a range has none, up to the limit.
    async fn give_out(
        &mut self,
        ranges: RangeSet,
        last: Option<At>,
        hiding: &BTreeSet<NodeId>,
        since: Instant,
    ) -> Result<()> {
        let spread = loop {
            match self.spread(&ranges, hiding) {
                Ok(spread) => break spread,
                Err(range) => {
                    let generation = self.common.generation;
                    if since.elapsed() > self.common.limit {
                        return Err(NodeError::NoNode { role: "read", range, generation });
                    }
                    sleep(PAUSE).await;
                }
            }
        };
        for (node, ranges) in spread {
            let (sender, coming) = mpsc::channel(AHEAD_PAGES);
            let onward = Onward {
                after: last.as_ref().map(told).or_else(|| self.onward.after.clone()),
                went_on: self.onward.went_on.clone(),
            };
            tokio::spawn(read(self.common.clone(), node, ranges.clone(), onward, sender));
            let (last, hiding) = (last.clone(), hiding.clone());
            self.parts.push(Part { ranges, node, coming, head: None, last, since, hiding, ended: false });
        }
        Ok(())
    }

    fn spread(
        &self,
        ranges: &RangeSet,
        hiding: &BTreeSet<NodeId>,
    ) -> std::result::Result<BTreeMap<NodeId, RangeSet>, u32> {
        let (connections, plan) = (&self.common.connections, self.common.plan.lock().clone());
        let mut spread: BTreeMap<NodeId, RangeSet> = BTreeMap::new();
        for range in ranges.iter() {
            let best = nodes_of(&plan, range).iter().copied().min_by_key(|node| {
                let so_far = spread.get(node).map_or(0, RangeSet::len);
                let (hidden, avoided) = (hiding.contains(node), connections.is_avoided(*node));
                (hidden, avoided, connections.is_busy(*node), so_far, *node)
            });
            spread.entry(best.ok_or(range)?).or_default().insert(range);
        }
        Ok(spread)
    }
}

fn is_refusal(e: &NodeError, code: Code) -> bool {
    matches!(e, NodeError::Refused { fault, .. } if fault.code == code)
}

/// Reads one part.
async fn read(common: Arc<Common>, node: NodeId, ranges: RangeSet, onward: Onward, to: mpsc::Sender<Told>) {
    let last = match read_all(&common, node, &ranges, onward, &to).await {
        Ok(()) => {
            common.connections.answered(node);
            Told::Ended
        }
        Err(e) => Told::Failed(e),
    };
    let _nobody_merges = to.send(last).await;
}

async fn read_all(
    common: &Common,
    node: NodeId,
    ranges: &RangeSet,
    onward: Onward,
    to: &mpsc::Sender<Told>,
) -> Result<()> {
    let generation = common.generation;
    let lost = |why: &str| NodeError::StreamLost { generation, why: why.into() };
    let selected = common.selected.as_ref().ok_or_else(|| lost("it has no order"))?;
    let named = WireRanges::of(common.repository.map.bits(), ranges.iter());
    let request = Request::Select {
        generation,
        direct: common.direct,
        ranges: named.ok_or_else(|| lost("its plan names a range that the repository does not have"))?,
        spec: StreamSpec::clone(&selected.spec),
        importance: selected.importance,
        from: SelectFrom::Place { after: onward.after, went_on: onward.went_on },
        shared: false,
    };
    let client = timeout(common.limit, common.connections.to(node)).await;
    let client = client.unwrap_or_else(|_| Err(lost("a node does not answer")))?;
    let mut reader = client.ordered(&request)?;
    while let Some(item) = reader.next().await? {
        let told = match item {
            OrderedItem::Page(record, place) => Told::Page(record, place),
            OrderedItem::Lost(place, lost) => Told::Lost(place, lost),
        };
        if to.send(told).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Renews the lease, and learns where pages are.
async fn keep(common: Arc<Common>, management: Management, mut lease: Lease) {
    loop {
        sleep((Duration::from_millis(lease.period_ms) / 4).min(Duration::from_secs(1))).await;
        let renewed = timeout(RENEW_LIMIT, management.renew_lease(&lease)).await;
        if let Ok(Ok((next, plan, addresses))) = renewed {
            common.connections.learn(&addresses);
            common.connections.set_busy(&plan.busy);
            *common.plan.lock() = Arc::new(plan);
            lease = next;
        }
    }
}
