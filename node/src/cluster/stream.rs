//! A stream of the whole repository: one generation, held by a lease; each range from one of its nodes, all nodes at once.
//!
//! With incremental update no lease is needed: each node shows its pages as they were when its part of the stream was opened.
//! Logs have an order of their own then, so a cursor holds while the nodes that were read from are there.
//!
//! When a node fails, its ranges go on at another replica, or at the same one when it is back; [`super::share`] says how
//! each page still comes exactly once. The order of pages of different nodes is left open.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use webbase_storage::{Record, StorageError};

use super::Cluster;
use super::cursor::{How, StreamCursor, What};
use super::lookup::nodes_of;
use super::ordered::Merging;
use super::progress::Progress;
use super::share::{Common, Item, Selected, Share};
use crate::cycle::message::NodeId;
use crate::cycle::{RangeMap, RangeSet};
use crate::error::{NodeError, Result};
use crate::management::Management;
use crate::plan::{Addresses, Lease, ReadPlan};
use crate::wire::message::{By, Code, Fault, StreamOrder};
use crate::wire::spec::StreamSpec;

/// Pages in the queue, at most; their bytes are bounded, too.
const QUEUE_PAGES: usize = 1024;
/// Between two looks at what has to be done.
const TICK: Duration = Duration::from_millis(100);
/// A management server that does not renew a lease in this time is asked again later: other nodes must not wait for it.
const RENEW_LIMIT: Duration = Duration::from_secs(1);

/// Pages of a whole generation. Dropping it ends the stream and gives the lease back.
pub struct ClusterStream {
    queue: mpsc::Receiver<Item>,
    generation: u64,
    over: bool,
    /// How far it was taken.
    taken: StreamCursor,
    /// Ranges of which pages came in two orders, or in none: until they are done they have no place.
    placeless: RangeSet,
}

impl ClusterStream {
    /// The generation that all pages are of.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The next page, or `None` after the last. A page that is damaged at all nodes that have it is an error that says so
    /// ([`NodeError::Refused`] with the code `Damaged`), and the stream goes on; any other error ends it.
    pub async fn next(&mut self) -> Option<Result<Record>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`ClusterStream::next`], for who polls.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Record>>> {
        if self.over {
            return Poll::Ready(None);
        }
        loop {
            let Poll::Ready(item) = self.queue.poll_recv(cx) else { return Poll::Pending };
            if let Some(Item::Done(ranges)) = item {
                self.taken.done = self.taken.done.union(&ranges);
                let done = &self.taken.done;
                self.taken.own.retain(|own| !own.ranges.is_subset(done));
                continue;
            }
            return Poll::Ready(self.take(item));
        }
    }

    fn take(&mut self, item: Option<Item>) -> Option<Result<Record>> {
        match item {
            Some(Item::Page { record, at, ended, own, _room }) => {
                if let Some(own) = own {
                    self.taken.note_own(own);
                    return Some(Ok(record));
                }
                let ended = ended.map(|at| (at.range, self.taken.note(&at)));
                for (range, told) in ended.into_iter().chain([(at.range, self.taken.note(&at))]) {
                    if !told {
                        self.placeless.insert(range);
                    }
                }
                Some(Ok(record))
            }
            Some(Item::Ordered { record, place, _room }) => {
                self.taken.onward.after = Some(place);
                Some(Ok(record))
            }
            Some(Item::Damaged(e)) => Some(Err(e)),
            Some(Item::Done(_) | Item::End) => {
                self.over = true;
                None
            }
            Some(Item::Failed(e)) => {
                self.over = true;
                Some(Err(e))
            }
            None => {
                self.over = true;
                let (generation, why) = (self.generation, "it was cut off".to_owned());
                Some(Err(NodeError::StreamLost { generation, why }))
            }
        }
    }

    /// Where another stream, of this client or of another one, goes on behind the last page that was taken
    /// ([`Cluster::resume`]), while the generation is held. A page that came as an error is behind it, too.
    ///
    /// # Errors
    /// When pages of some range came in an order of one node's own, or in two orders because a node failed and one of another
    /// organization went on: there is no place until that range is done.
    pub fn cursor(&self) -> Result<StreamCursor> {
        if self.placeless.is_subset(&self.taken.done) {
            return Ok(self.taken.clone());
        }
        let why = "some of its pages came in an order that other nodes do not share".into();
        Err(NodeError::StreamLost { generation: self.generation, why })
    }
}

impl Cluster {
    /// Streams all pages of the current generation.
    ///
    /// # Errors
    /// When the management server gives no lease.
    pub async fn stream(&self) -> Result<ClusterStream> {
        self.select(StreamSpec::all(), How::default()).await
    }

    /// Streams the pages of the current generation that a specification names, what of them it names, in its order.
    ///
    /// # Errors
    /// When the specification makes no sense, or needs the importance of pages and nothing is known of that; when the
    /// management server gives no lease.
    pub async fn select(&self, spec: StreamSpec, how: How) -> Result<ClusterStream> {
        let spec = spec.checked().map_err(|what| NodeError::Refused {
            peer: "this client".into(),
            fault: Fault::new(Code::BadRequest, what),
        })?;
        let asked_at = Instant::now();
        let leased = self.newest().await?;
        self.inner.connections.learn(&leased.2);
        let importance = match spec.needs_importance() && leased.0.generation != 0 {
            true => self.importance_version(&leased.1).await?,
            false => 0,
        };
        let map = self.inner.repository.map;
        let mut taken = StreamCursor::new(What { spec, importance, how }, leased.0.generation, map.bits());
        if !map.is_uniform() {
            // A part of the id space is in some of the ranges only.
            let (first, last) = taken.what.spec.ids();
            let outside = |range: &u32| *map.ids(*range).end() < first || *map.ids(*range).start() > last;
            taken.done = (0..map.count()).filter(outside).collect();
        }
        self.open_stream(asked_at, leased, taken)
    }

    /// A lease on the newest generation. Lookups that follow are of that one, or of a later one.
    async fn newest(&self) -> Result<(Lease, ReadPlan, Addresses)> {
        let leased = self.inner.management.open_lease().await?;
        self.inner.plans.not_before(leased.0.generation);
        Ok(leased)
    }

    /// As [`Cluster::resume`]; when the cursor's generation, or the node whose own order it followed, is gone the stream goes on in the
    /// current generation. Pages may be newer then, and some may come again; none of those that were left is skipped.
    ///
    /// # Errors
    /// As [`Cluster::resume`], but for what is gone.
    pub async fn go_on(&self, cursor: &StreamCursor) -> Result<ClusterStream> {
        match self.resume(cursor).await {
            Err(NodeError::StreamLost { .. }) => {}
            resumed => return resumed,
        }
        let asked_at = Instant::now();
        let leased = self.newest().await?;
        let mut taken = cursor.clone();
        if let Some(after) = taken.onward.after.take() {
            // What lies behind the earlier of two places is left, and what is newer than the older of two generations.
            taken.onward.went_on = Some(match taken.onward.went_on.take() {
                None => (taken.generation, after),
                Some((since, before)) => (since.min(taken.generation), before.min(after)),
            });
        }
        taken.generation = leased.0.generation;
        let orphans = taken.orphans(&leased.1);
        taken.restart(&orphans);
        if taken.what.spec.needs_importance() {
            self.inner.connections.learn(&leased.2);
            taken.what.importance = self.importance_version(&leased.1).await?;
        }
        self.open_stream(asked_at, leased, taken)
    }

    /// Goes on with a stream where it was left: exactly the pages that were not taken then follow.
    ///
    /// # Errors
    /// When the generation, or the node whose own order it followed, is gone ([`NodeError::StreamLost`]), the cursor is of another
    /// repository, or the management server does not answer.
    pub async fn resume(&self, cursor: &StreamCursor) -> Result<ClusterStream> {
        let map = self.inner.repository.map;
        let known = RangeSet::all(map);
        let foreign = cursor.places.keys().any(|range| !known.contains(*range));
        if cursor.bits != map.bits() || foreign || !cursor.done.is_subset(&known) {
            let what = "it is of a repository with other ranges".into();
            return Err(StorageError::BadCursor { what }.into());
        }
        let (asked_at, generation) = (Instant::now(), cursor.generation);
        let leased = match self.inner.management.lease_on(generation).await {
            Err(NodeError::Denied { why, .. }) => return Err(NodeError::StreamLost { generation, why }),
            leased => leased?,
        };
        if let Some(range) = cursor.orphans(&leased.1).iter().next() {
            let _runs_out = self.inner.management.end_lease(&leased.0).await;
            let why = format!(
                "the node that range {range} was read from is gone or down, and only it knows how far that was"
            );
            return Err(NodeError::StreamLost { generation, why });
        }
        self.open_stream(asked_at, leased, cursor.clone())
    }

    fn open_stream(
        &self,
        asked_at: Instant,
        (lease, plan, addresses): (Lease, ReadPlan, Addresses),
        taken: StreamCursor,
    ) -> Result<ClusterStream> {
        self.inner.connections.learn(&addresses);
        self.inner.connections.set_busy(&plan.busy);
        let (queue, taker) = mpsc::channel(QUEUE_PAGES);
        let room_bytes = self.inner.settings.queue_bytes.clamp(1, u32::MAX as usize >> 4);
        let common = Common {
            connections: self.inner.connections.clone(),
            repository: self.inner.repository,
            generation: lease.generation,
            plan: Mutex::new(Arc::new(plan)),
            attempt: self.inner.settings.attempt,
            limit: self.inner.settings.read_limit,
            queue,
            room: Arc::new(Semaphore::new(room_bytes)),
            room_bytes,
            remembered: AtomicUsize::new(0),
            remembered_max: self.inner.settings.remembered_max,
            selected: (taken.what.spec != StreamSpec::all() || taken.what.how.shared).then(|| Selected {
                spec: Arc::new(taken.what.spec.clone()),
                importance: taken.what.importance,
                shared: taken.what.how.shared,
            }),
            direct: taken.what.how.direct,
        };
        let (generation, placeless) = (lease.generation, RangeSet::new());
        let map = self.inner.repository.map;
        if taken.what.spec.order != StreamOrder::Store {
            let merging = Merging::new(Arc::new(common), taken.onward.clone());
            let ranges = RangeSet::all(map).minus(&taken.done);
            tokio::spawn(merging.run(ranges, self.inner.management.clone(), lease));
            return Ok(ClusterStream { queue: taker, generation, over: false, taken, placeless });
        }
        let streaming = Streaming {
            common: Arc::new(common),
            management: self.inner.management.clone(),
            limit: self.inner.settings.read_limit,
            lease,
            renewed_at: asked_at,
            lost: None,
            shares: JoinSet::new(),
            waiting: Vec::new(),
        };
        tokio::spawn(streaming.run(left(&taken, map)));
        Ok(ClusterStream { queue: taker, generation, over: false, taken, placeless })
    }
}

/// What is left behind a cursor: ranges whose places are of one kind together.
fn left(taken: &StreamCursor, map: RangeMap) -> Vec<Share> {
    let mut kinds: BTreeMap<Option<By>, RangeSet> = BTreeMap::new();
    let mut left = RangeSet::all(map).minus(&taken.done);
    let mut shares = Vec::new();
    for own in &taken.own {
        let ranges = own.ranges.minus(&taken.done);
        left = left.minus(&ranges);
        shares.push(Share { progress: Progress::stopped_at(own.node, own.cursor.clone()), ranges });
    }
    for range in left.iter() {
        kinds.entry(taken.places.get(&range).map(|(by, ..)| *by)).or_default().insert(range);
    }
    let progress = Progress::resumed(&taken.places, &taken.ahead);
    let share = |ranges: RangeSet| {
        let mut progress = progress.within(&ranges, map);
        progress.settle();
        Share { progress, ranges }
    };
    shares.into_iter().chain(kinds.into_values().map(share)).collect()
}

/// A share nobody streams at the moment.
struct Waiting {
    share: Share,
    /// Since when nothing of it was delivered.
    since: Instant,
    failed: NodeError,
}

/// The one task that keeps a stream going.
struct Streaming {
    common: Arc<Common>,
    management: Management,
    limit: Duration,
    lease: Lease,
    renewed_at: Instant,
    /// The lease was refused: the generation goes on only where it is being read.
    lost: Option<NodeError>,
    shares: JoinSet<(Share, NodeId, u64, Result<()>, Instant)>,
    waiting: Vec<Waiting>,
}

impl Streaming {
    async fn run(mut self, shares: Vec<Share>) {
        let last = match self.go(shares).await {
            Ok(()) => Item::End,
            Err(e) => Item::Failed(e),
        };
        self.shares.abort_all();
        // Whoever drops the stream does not want to know how it ended; a lease that cannot be given back runs out.
        let _dropped = self.common.queue.send(last).await;
        let _runs_out = self.management.end_lease(&self.lease).await;
    }

    async fn go(&mut self, shares: Vec<Share>) -> Result<()> {
        if self.common.generation == 0 {
            return Ok(());
        }
        let since = Instant::now();
        let failed = NodeError::NoNode { role: "read", range: 0, generation: self.common.generation };
        self.waiting.extend(shares.into_iter().map(|share| Waiting { share, since, failed: failed.clone() }));
        self.give_out()?;
        let mut tick = tokio::time::interval(TICK);
        while !self.shares.is_empty() || !self.waiting.is_empty() {
            tokio::select! {
                () = self.common.queue.closed() => {
                    return Err(NodeError::StreamLost {
                        generation: self.common.generation,
                        why: "nobody takes its pages any more".into(),
                    });
                }
                Some(ended) = self.shares.join_next() => self.ended(ended)?,
                _ = tick.tick() => self.look_after().await?,
            }
        }
        Ok(())
    }

    fn ended(
        &mut self,
        ended: std::result::Result<(Share, NodeId, u64, Result<()>, Instant), tokio::task::JoinError>,
    ) -> Result<()> {
        let generation = self.common.generation;
        let Ok((share, _, delivered, outcome, since)) = ended else {
            return Err(NodeError::StreamLost { generation, why: "a part of it was cut off".into() });
        };
        if let Err(failed) = outcome {
            let since = if delivered > 0 { Instant::now() } else { since };
            self.waiting.push(Waiting { share, since, failed });
        }
        Ok(())
    }

    /// Renews the lease in time, and finds nodes for what has none.
    async fn look_after(&mut self) -> Result<()> {
        let due = self.renewed_at.elapsed() >= Duration::from_millis(self.lease.period_ms) / 3;
        if self.lost.is_none() && (due || !self.waiting.is_empty()) {
            let asked_at = Instant::now();
            let renewing = timeout(RENEW_LIMIT, self.management.renew_lease(&self.lease));
            match renewing.await.unwrap_or_else(|_| Err(self.late())) {
                Ok((lease, plan, addresses)) => {
                    self.common.connections.learn(&addresses);
                    self.common.connections.set_busy(&plan.busy);
                    *self.common.plan.lock() = Arc::new(plan);
                    (self.lease, self.renewed_at) = (lease, asked_at);
                }
                Err(e @ NodeError::Denied { .. }) => self.lost = Some(e),
                // It may be back soon, and until then the old plan is as good as the nodes say.
                Err(_) => {}
            }
        }
        self.give_out()
    }

    fn late(&self) -> NodeError {
        let after_ms = RENEW_LIMIT.as_millis() as u64;
        NodeError::Timeout { peer: self.management.address().to_string(), after_ms }
    }

    /// Gives every waiting range to one of its nodes, evenly. What nobody can take goes on waiting, up to the limit.
    fn give_out(&mut self) -> Result<()> {
        let map = self.common.repository.map;
        for Waiting { share, since, failed } in std::mem::take(&mut self.waiting) {
            if let Some(lost) = self.lost.as_ref().filter(|_| since.elapsed() > TICK * 10) {
                return Err(lost.clone());
            }
            if since.elapsed() > self.limit {
                return Err(failed);
            }
            let mut homeless = RangeSet::new();
            for (node, ranges) in self.spread(&share) {
                let Some(node) = node else {
                    homeless = ranges;
                    continue;
                };
                let part = Share { progress: share.progress.within(&ranges, map), ranges };
                let common = self.common.clone();
                self.shares.spawn(async move {
                    let (share, node, delivered, outcome) = part.run(common, node).await;
                    (share, node, delivered, outcome, since)
                });
            }
            if !homeless.is_empty() {
                let progress = share.progress.within(&homeless, map);
                let failed = match homeless.iter().next() {
                    Some(range) if share.progress.is_fresh() => {
                        NodeError::NoNode { role: "read", range, generation: self.common.generation }
                    }
                    _ => failed,
                };
                self.waiting.push(Waiting { share: Share { ranges: homeless, progress }, since, failed });
            }
        }
        Ok(())
    }

    /// Which node streams which ranges: the one with the fewest so far; one that failed a moment ago, or hides something that
    /// is damaged, only if it is the only one.
    fn spread(&self, share: &Share) -> Vec<(Option<NodeId>, RangeSet)> {
        let (connections, plan) = (&self.common.connections, self.common.plan.lock().clone());
        let mut spread: BTreeMap<Option<NodeId>, RangeSet> = BTreeMap::new();
        for range in share.ranges.iter() {
            let able = nodes_of(&plan, range).iter().filter(|n| share.progress.can_go_on_at(**n));
            let best = able.copied().min_by_key(|node| {
                let so_far = spread.get(&Some(*node)).map_or(0, RangeSet::len);
                let (hidden, avoided) = (share.progress.is_hidden_at(*node), connections.is_avoided(*node));
                (hidden, avoided, connections.is_busy(*node), so_far, *node)
            });
            spread.entry(best).or_default().insert(range);
        }
        spread.into_iter().collect()
    }
}
