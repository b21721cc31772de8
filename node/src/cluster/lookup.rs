//! Lookups: each from one read node of the page's range, all of one generation, or of the nodes' live pages.
//!
//! Under the distribution `uniform` the management server's index says the range; a page it does not know is not there.
//! A node cannot tell by the key which range a page is in that it does not have, so requests name the ranges, and a node that
//! does not have all their pages refuses. When the index does not answer, all nodes are asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use webbase_storage::{PageId, PageKey, Record};

use super::Cluster;
use super::connections::name;
use crate::client::Client;
use crate::cycle::message::NodeId;
use crate::error::{NodeError, Result};
use crate::plan::ReadPlan;
use crate::wire::message::{Code, KEYS_MAX};
use crate::wire::ranges::RangeSet;

/// Pauses between two rounds: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Spreads requests over replicas.
static TURN: AtomicUsize = AtomicUsize::new(0);

/// What a request found, all of it in one generation.
#[derive(Clone, Debug)]
pub struct Found<T> {
    /// The generation; 0 is the empty one before the first cycle. With incremental update it is
    /// [`LIVE`](crate::plan::LIVE): the pages as they were when the node was asked.
    pub generation: u64,
    /// The answer.
    pub pages: T,
}

impl Cluster {
    /// The page of a URL.
    ///
    /// # Errors
    /// When it is no URL, or no node of its range answers within the limit.
    pub async fn lookup_url(&self, url: &str) -> Result<Found<Option<Record>>> {
        self.lookup(self.page_key(url)?).await
    }

    /// A page by its key.
    ///
    /// # Errors
    /// When no node of its range answers within the limit.
    pub async fn lookup(&self, key: PageKey) -> Result<Found<Option<Record>>> {
        if self.is_uniform() {
            let mut found = self.lookup_many(&[key]).await?;
            let page = found.pages.pop().unwrap_or(Ok(None))?;
            return Ok(Found { generation: found.generation, pages: page });
        }
        let range = self.inner.repository.range_of_key(key).unwrap_or(0);
        if let Some(found) = self.lookup_near(range, key).await? {
            return Ok(found);
        }
        self.ask_range(range, move |client, generation| async move { client.lookup(generation, key).await })
            .await
    }

    /// The pages with an id: nearly always one, or none.
    ///
    /// # Errors
    /// When no node of its range answers within the limit.
    pub async fn lookup_id(&self, id: PageId) -> Result<Found<Vec<Record>>> {
        if self.is_uniform() {
            let Some(keys) = self.keys_of(id).await else { return self.look_everywhere_for_id(id).await };
            let Found { generation, pages } = self.lookup_many(&keys).await?;
            let pages = pages.into_iter().filter_map(Result::transpose).collect::<Result<_>>()?;
            return Ok(Found { generation, pages });
        }
        let range = self.inner.repository.range_of_key(PageKey { id, tie: 0 }).unwrap_or(0);
        self.ask_range(range, move |client, generation| async move { client.lookup_id(generation, id).await })
            .await
    }

    pub(super) fn is_uniform(&self) -> bool {
        self.inner.repository.map.is_uniform()
    }

    async fn ask_range<T, F>(
        &self,
        range: u32,
        ask: impl Fn(Client, u64) -> F + Send + Sync,
    ) -> Result<Found<T>>
    where
        T: Default + Send,
        F: Future<Output = Result<T>> + Send,
    {
        let limit = self.inner.settings.attempt;
        let mut rounds = Rounds::new(self);
        let mut plan = self.inner.plans.read().await?;
        loop {
            let generation = plan.generation;
            if generation == 0 {
                // Empty by definition, and on the wire 0 means something else.
                return Ok(Found { generation, pages: T::default() });
            }
            let asked_at = Instant::now();
            let mut failed = NodeError::NoNode { role: "read", range, generation };
            for node in self.inner.connections.in_turn(nodes_of(&plan, range), next_turn()) {
                match self.at_node(node, limit, |client| ask(client, generation)).await {
                    Ok(pages) => return Ok(Found { generation, pages }),
                    Err(e) => failed = e,
                }
            }
            plan = rounds.next(asked_at, failed).await?;
        }
    }

    /// Asks one node, within a limit.
    pub(super) async fn at_node<T, F>(
        &self,
        node: NodeId,
        limit: Duration,
        ask: impl FnOnce(Client) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let connections = &self.inner.connections;
        let _outstanding = connections.begin(node);
        let tried = timeout(limit, async { ask(connections.to(node).await?).await }).await;
        let late = |_| Err(NodeError::Timeout { peer: name(node), after_ms: limit.as_millis() as u64 });
        let answer = tried.unwrap_or_else(late);
        match &answer {
            Ok(_) => connections.answered(node),
            Err(e) => connections.failed(node, e),
        }
        answer
    }

    /// Many pages, in the order of the keys: each found, absent, or its own error, when it is damaged on all its nodes.
    ///
    /// # Errors
    /// When pages got no answer within the limit.
    pub async fn lookup_many(&self, keys: &[PageKey]) -> Result<Found<Vec<Result<Option<Record>>>>> {
        let mut rounds = Rounds::new(self);
        let mut plan = self.inner.plans.read().await?;
        let Some(ranges) = self.ranges_of(keys).await else { return self.look_everywhere(keys).await };
        let mut answers = Answers::new(keys, ranges);
        loop {
            let generation = plan.generation;
            if generation == 0 {
                return Ok(Found { generation, pages: keys.iter().map(|_| Ok(None)).collect() });
            }
            answers.begin(generation);
            let asked_at = Instant::now();
            // Settled before the first step: who fails moves to the end of the next round's order.
            let order = self.order(&plan, &answers);
            // In each step the next replica of every range still open is asked.
            for step in 0.. {
                if !self.ask_step(&order, step, &mut answers).await {
                    break;
                }
            }
            match answers.finish() {
                Ok(pages) => return Ok(Found { generation, pages }),
                Err(at) => {
                    let range = answers.ranges.get(at).copied().flatten().unwrap_or(0);
                    let none = NodeError::NoNode { role: "read", range, generation };
                    let failed = answers.last_error.take().unwrap_or(none);
                    plan = rounds.next(asked_at, failed).await?;
                }
            }
        }
    }

    /// For each range that is open, its nodes in the order to ask them.
    fn order(&self, plan: &ReadPlan, answers: &Answers<'_>) -> BTreeMap<u32, Vec<NodeId>> {
        let mut order = BTreeMap::new();
        for (_, range) in answers.open() {
            order.entry(range).or_insert_with(|| {
                let turn = answers.turn.wrapping_add(range as usize);
                self.inner.connections.in_turn(nodes_of(plan, range), turn)
            });
        }
        order
    }

    /// The ranges that a request has to name, where keys don't say them.
    pub(super) fn named(&self, ranges: impl IntoIterator<Item = u32>) -> Option<RangeSet> {
        let map = self.inner.repository.map;
        RangeSet::of(map.bits(), ranges).filter(|_| map.is_uniform())
    }

    /// Asks for what is open at the nodes whose turn it is; says whether there was anybody to ask.
    async fn ask_step(
        &self,
        order: &BTreeMap<u32, Vec<NodeId>>,
        step: usize,
        answers: &mut Answers<'_>,
    ) -> bool {
        let generation = answers.generation;
        let mut shares: BTreeMap<NodeId, (Vec<usize>, BTreeSet<u32>)> = BTreeMap::new();
        for (at, range) in answers.open() {
            let nodes = order.get(&range);
            if let Some(node) = nodes.and_then(|nodes| nodes.get(step)) {
                let (places, ranges) = shares.entry(*node).or_default();
                places.push(at);
                ranges.insert(range);
            }
        }
        if shares.is_empty() {
            return false;
        }
        let mut asking = JoinSet::new();
        for (node, (places, ranges)) in shares {
            let ranges = self.named(ranges);
            let keys: Vec<PageKey> = places.iter().filter_map(|at| answers.keys.get(*at).copied()).collect();
            let cluster = self.clone();
            let settings = &self.inner.settings;
            let requests = keys.len().div_ceil(KEYS_MAX) as u32;
            let limit = settings.attempt + settings.client.answer * requests;
            asking.spawn(async move {
                let ask = |client: Client| async move {
                    match &ranges {
                        Some(ranges) => client.lookup_in(generation, ranges, &keys).await,
                        None => client.lookup_many(generation, &keys).await,
                    }
                };
                (places, cluster.at_node(node, limit, ask).await)
            });
        }
        while let Some(answered) = asking.join_next().await {
            match answered {
                Ok((places, Ok(found))) => answers.take(&places, found),
                Ok((_, Err(e))) => answers.last_error = Some(e),
                // A task ends otherwise only with the runtime.
                Err(_) => {}
            }
        }
        true
    }
}

/// What is known of a page before a node is asked.
fn unasked(range: &Option<u32>) -> Option<Result<Option<Record>>> {
    match range {
        Some(_) => None,
        None => Some(Ok(None)),
    }
}

fn next_turn() -> usize {
    TURN.fetch_add(1, Ordering::Relaxed)
}

pub(super) fn nodes_of(plan: &ReadPlan, range: u32) -> &[NodeId] {
    plan.ranges.get(range as usize).map_or(&[], Vec::as_slice)
}

/// The pauses and plans between rounds, until the limit.
pub(super) struct Rounds<'a> {
    cluster: &'a Cluster,
    until: Instant,
    pause: Duration,
    /// No round has failed because of an old plan yet: a new one is fetched at once.
    first: bool,
}

/// Whether a node says that the plan does not hold: a new one helps, waiting does not.
fn is_old_plan(e: &NodeError) -> bool {
    matches!(e, NodeError::Refused { fault, .. } if matches!(fault.code, Code::Generation | Code::Plan))
}

impl<'a> Rounds<'a> {
    pub(super) fn new(cluster: &'a Cluster) -> Rounds<'a> {
        let until = Instant::now() + cluster.inner.settings.read_limit;
        Rounds { cluster, until, pause: PAUSE_MIN, first: true }
    }

    /// A new plan for another round; the error when time is up.
    pub(super) async fn next(&mut self, asked_at: Instant, failed: NodeError) -> Result<Arc<ReadPlan>> {
        if Instant::now() + self.pause >= self.until {
            return Err(failed);
        }
        if self.first && is_old_plan(&failed) {
            self.first = false;
        } else {
            tokio::time::sleep(self.pause).await;
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
        let left = self.until - Instant::now().min(self.until);
        match timeout(left, self.cluster.inner.plans.newer_than(asked_at)).await {
            Ok(Ok(plan)) => Ok(plan),
            // Without the management server the old plan is all there is.
            Ok(Err(_)) => self.cluster.inner.plans.read().await,
            Err(_) => Err(failed),
        }
    }
}

/// The answers to a multi-lookup so far.
struct Answers<'a> {
    keys: &'a [PageKey],
    /// None for those that are not in the repository.
    ranges: Vec<Option<u32>>,
    pages: Vec<Option<Result<Option<Record>>>>,
    generation: u64,
    turn: usize,
    last_error: Option<NodeError>,
}

impl<'a> Answers<'a> {
    fn new(keys: &'a [PageKey], ranges: Vec<Option<u32>>) -> Answers<'a> {
        let pages = ranges.iter().map(unasked).collect();
        Answers { keys, ranges, pages, generation: 0, turn: next_turn(), last_error: None }
    }

    /// Answers of another generation do not count.
    fn begin(&mut self, generation: u64) {
        if self.generation != generation {
            self.pages = self.ranges.iter().map(unasked).collect();
            self.generation = generation;
        }
    }

    /// Pages not answered, or only with an error: another node may have them whole.
    fn open(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let open = self.pages.iter().zip(&self.ranges).enumerate();
        let open = open.filter(|(_, (page, _))| !matches!(page, Some(Ok(_))));
        open.filter_map(|(at, (_, range))| Some((at, (*range)?)))
    }

    fn take(&mut self, places: &[usize], found: Vec<Result<Option<Record>>>) {
        for (at, found) in places.iter().zip(found) {
            if let Some(page) = self.pages.get_mut(*at) {
                *page = Some(found);
            }
        }
    }

    /// All answers, or the place of one that is missing.
    fn finish(&mut self) -> std::result::Result<Vec<Result<Option<Record>>>, usize> {
        match self.pages.iter().position(Option::is_none) {
            Some(at) => Err(at),
            None => Ok(std::mem::take(&mut self.pages).into_iter().flatten().collect()),
        }
    }
}
