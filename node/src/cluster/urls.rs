//! The URL index of the whole repository: the rows of all nodes as one list in SURT order, of one generation.
//!
//! Each range is asked for at one node; the nodes' rows are merged. When a node fails others are asked from the last row on that
//! was given out. A list that has begun stays with its generation: should that go, it ends with an error, and whoever wants
//! more asks again behind the last row.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::Instant;
use webbase_storage::PageKey;
use webbase_storage::urls::{UrlPlace, UrlQuery, UrlRow};

use super::Cluster;
use super::lookup::{Found, Rounds};
use crate::client::Client;
use crate::cycle::message::NodeId;
use crate::error::{NodeError, Result};
use crate::plan::ReadPlan;
use crate::wire::message::{Code, URL_ROWS_MAX};
use crate::wire::ranges::RangeSet;

/// Rows that a node is asked for first; each further request asks for four times as many.
const FIRST_ROWS: u32 = 64;
/// Bytes of a SURT key in a request, at most: a request has 128 KiB.
const SURT_BYTES_MAX: usize = 48 << 10;

/// How many rows there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UrlCount {
    /// Rows.
    pub rows: u64,
    /// Whether there are exactly so many; else it is an estimate.
    pub is_exact: bool,
}

/// The part of a list that one node tells.
struct Share {
    node: NodeId,
    ranges: RangeSet,
    rows: VecDeque<(PageKey, UrlRow)>,
    /// The node has more.
    more: bool,
}

/// Rows of the URL index, coming in.
pub struct UrlReader {
    cluster: Cluster,
    query: UrlQuery,
    generation: u64,
    shares: Vec<Share>,
    /// Rows that are asked for at once.
    rows: u32,
    began: bool,
}

impl Cluster {
    /// The rows of the URL index that are asked for, in order.
    ///
    /// # Errors
    /// When the management server tells no plan.
    pub async fn urls(&self, query: UrlQuery) -> Result<UrlReader> {
        let plan = self.inner.plans.read().await?;
        let mut reader = UrlReader {
            cluster: self.clone(),
            query,
            generation: plan.generation,
            shares: Vec::new(),
            rows: FIRST_ROWS,
            began: false,
        };
        reader.fill(plan).await?;
        Ok(reader)
    }

    /// How many pages have a SURT key from `start` on, below `end`.
    ///
    /// # Errors
    /// When no node of a range answers within the limit.
    pub async fn url_count(&self, start: &str, end: Option<&str>) -> Result<Found<UrlCount>> {
        let mut rounds = Rounds::new(self);
        let mut plan = self.inner.plans.read().await?;
        loop {
            let generation = plan.generation;
            let mut sum = UrlCount { rows: 0, is_exact: true };
            if generation == 0 {
                return Ok(Found { generation, pages: sum });
            }
            let asked_at = Instant::now();
            let (shares, times) = self.count_shares(&plan)?;
            let mut asking = JoinSet::new();
            for (node, ranges) in shares {
                let (cluster, start, end) = (self.clone(), start.to_owned(), end.map(str::to_owned));
                asking.spawn(async move {
                    let ask = |client: Client| async move {
                        client.url_count(generation, &ranges, &start, end.as_deref()).await
                    };
                    cluster.at_node(node, cluster.inner.settings.attempt, ask).await
                });
            }
            let mut failed = None;
            while let Some(asked) = asking.join_next().await {
                match asked {
                    Ok(Ok((rows, is_exact))) => {
                        sum = UrlCount { rows: sum.rows + rows, is_exact: sum.is_exact && is_exact };
                    }
                    Ok(Err(e)) => failed = Some(e),
                    // A task ends otherwise only with the runtime.
                    Err(_) => {}
                }
            }
            let is_exact = sum.is_exact && sum.rows.is_multiple_of(times);
            match failed {
                None => {
                    return Ok(Found { generation, pages: UrlCount { rows: sum.rows / times, is_exact } });
                }
                Some(e) => plan = rounds.next(asked_at, e).await?,
            }
        }
    }

    /// Which node is asked to count which ranges, and how often each page is counted then.
    ///
    /// A node knows at once how many rows it has, but not how many of them are of some of its ranges. Where each range has as
    /// many nodes as every other, all nodes are asked for all they have, and every page is counted once for each of its nodes.
    fn count_shares(&self, plan: &ReadPlan) -> Result<(Vec<(NodeId, RangeSet)>, u64)> {
        let shares = self.url_shares(plan)?;
        let mut has: BTreeMap<NodeId, Vec<u32>> = BTreeMap::new();
        for (range, nodes) in (0..).zip(&plan.ranges) {
            nodes.iter().for_each(|node| has.entry(*node).or_default().push(range));
        }
        let bits = self.inner.repository.map.bits();
        let all: Vec<(NodeId, RangeSet)> =
            has.into_iter().filter_map(|(node, ranges)| Some((node, RangeSet::of(bits, ranges)?))).collect();
        let times = plan.ranges.first().map_or(1, Vec::len);
        let is_even = plan.ranges.iter().all(|nodes| nodes.len() == times);
        let is_well = !all.iter().any(|(node, _)| self.inner.connections.is_avoided(*node));
        let is_partial = shares.iter().any(|share| !all.contains(share));
        Ok(if is_partial && is_even && is_well { (all, times as u64) } else { (shares, 1) })
    }

    /// SURT keys at which the parts `wanted` begin, when the rows between two keys are cut into so many about equal parts. A
    /// part that has no row of its own begins where the next one does, and is not told at the end.
    ///
    /// Pages are spread by their hashes, so one node's rows tell where everybody's are. It is the same node every time, as
    /// long as it answers.
    ///
    /// # Errors
    /// When no node answers within the limit.
    pub async fn url_cuts(
        &self,
        start: &str,
        end: Option<&str>,
        parts: u32,
        wanted: Range<u32>,
    ) -> Result<Vec<String>> {
        let mut rounds = Rounds::new(self);
        let mut plan = self.inner.plans.read().await?;
        loop {
            let generation = plan.generation;
            if generation == 0 {
                return Ok(Vec::new());
            }
            let asked_at = Instant::now();
            let mut ranges: BTreeMap<NodeId, usize> = BTreeMap::new();
            plan.ranges.iter().flatten().for_each(|node| *ranges.entry(*node).or_default() += 1);
            let mut nodes: Vec<(NodeId, usize)> = ranges.into_iter().collect();
            nodes.sort_by_key(|(node, count)| (self.inner.connections.is_avoided(*node), usize::MAX - count));
            let mut failed = NodeError::NoNode { role: "read", range: 0, generation };
            for (node, _) in nodes {
                let (start, end, wanted) = (start.to_owned(), end.map(str::to_owned), wanted.clone());
                let ask = |client: Client| async move {
                    client.url_cuts(generation, &start, end.as_deref(), parts, wanted).await
                };
                let limit = self.inner.settings.attempt + self.inner.settings.client.answer;
                match self.at_node(node, limit, ask).await {
                    Ok(cuts) => return Ok(cuts),
                    Err(e) => failed = e,
                }
            }
            plan = rounds.next(asked_at, failed).await?;
        }
    }

    /// Which node is asked for which ranges: few nodes, each for as many ranges as it has. One that failed a moment ago, or
    /// has much to do, is asked last.
    fn url_shares(&self, plan: &ReadPlan) -> Result<Vec<(NodeId, RangeSet)>> {
        let mut has: BTreeMap<NodeId, Vec<u32>> = BTreeMap::new();
        for (range, nodes) in plan.ranges.iter().enumerate() {
            if nodes.is_empty() {
                let (range, generation) = (range as u32, plan.generation);
                return Err(NodeError::NoNode { role: "read", range, generation });
            }
            nodes.iter().for_each(|node| has.entry(*node).or_default().push(range as u32));
        }
        let connections = &self.inner.connections;
        let mut shares = Vec::new();
        let mut open = vec![true; plan.ranges.len()];
        let is_open = |open: &[bool], range: &u32| open.get(*range as usize).copied().unwrap_or(false);
        while let Some((node, ranges)) = has
            .iter()
            .map(|(node, ranges)| {
                (*node, ranges.iter().filter(|r| is_open(&open, r)).copied().collect::<Vec<_>>())
            })
            .filter(|(_, ranges)| !ranges.is_empty())
            .max_by_key(|(node, ranges)| {
                (!connections.is_avoided(*node), !connections.is_busy(*node), ranges.len())
            })
        {
            for range in &ranges {
                if let Some(slot) = open.get_mut(*range as usize) {
                    *slot = false;
                }
            }
            shares.extend(RangeSet::of(self.inner.repository.map.bits(), ranges).map(|set| (node, set)));
        }
        Ok(shares)
    }
}

/// What a node is asked: a place whose SURT key is too long for a request begins a little before, and what comes twice is left out.
fn asked_for(query: &UrlQuery) -> UrlQuery {
    let mut query = query.clone();
    if let Some(after) = query.after.as_mut().filter(|after| after.surt.len() > SURT_BYTES_MAX) {
        let cut = (0..=SURT_BYTES_MAX).rev().find(|at| after.surt.is_char_boundary(*at)).unwrap_or(0);
        after.surt.truncate(cut);
        after.key = PageKey::MIN;
        if query.descending {
            after.surt.push('\x7f'); // keys end below
        }
    }
    query
}

/// Whether a row lies behind the place of a query.
fn is_behind(query: &UrlQuery, row: &UrlRow, key: PageKey) -> bool {
    let Some(after) = &query.after else { return true };
    let order = row.surt.cmp(&after.surt).then(key.cmp(&after.key));
    if query.descending { order.is_lt() } else { order.is_gt() }
}

impl UrlReader {
    /// The generation that the rows are of; 0 is the empty one.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The next row, and its page's key.
    ///
    /// # Errors
    /// When no node of a range answers within the limit, or the generation is gone.
    pub async fn next(&mut self) -> Result<Option<(PageKey, UrlRow)>> {
        if self.shares.iter().any(|share| share.more && share.rows.is_empty()) {
            let plan = self.cluster.inner.plans.read().await?;
            self.fill(plan).await?;
        }
        let place = |share: &Share| share.rows.front().map(|(key, row)| (row.surt.clone(), *key));
        let places = self.shares.iter().enumerate().filter_map(|(at, share)| Some((place(share)?, at)));
        let next = if self.query.descending { places.max() } else { places.min() };
        let Some(((surt, key), at)) = next else { return Ok(None) };
        self.began = true;
        self.query.after = Some(UrlPlace { surt, key });
        Ok(self.shares.get_mut(at).and_then(|share| share.rows.pop_front()))
    }

    /// Asks the nodes whose rows are used up for more, all at once; begins anew behind the last row when one fails.
    async fn fill(&mut self, mut plan: Arc<ReadPlan>) -> Result<()> {
        let cluster = self.cluster.clone();
        let mut rounds = Rounds::new(&cluster);
        loop {
            if !self.began {
                self.generation = plan.generation;
            }
            if self.generation == 0 {
                return Ok(());
            }
            let asked_at = Instant::now();
            let failed = match self.ask_nodes(&plan).await {
                Ok(()) => return Ok(()),
                Err(e) => e,
            };
            // Whoever goes on takes over from the last row that was given out.
            self.shares.clear();
            let is_gone =
                matches!(&failed, NodeError::Refused { fault, .. } if fault.code == Code::Generation);
            if is_gone && self.began {
                let (generation, why) = (self.generation, "a newer one took its place".into());
                return Err(NodeError::StreamLost { generation, why });
            }
            plan = rounds.next(asked_at, failed).await?;
        }
    }

    async fn ask_nodes(&mut self, plan: &ReadPlan) -> Result<()> {
        if self.shares.is_empty() {
            let share = |(node, ranges)| Share { node, ranges, rows: VecDeque::new(), more: true };
            self.shares = self.cluster.url_shares(plan)?.into_iter().map(share).collect();
        }
        let mut asking = JoinSet::new();
        for (at, share) in self.shares.iter().enumerate() {
            if !share.more || !share.rows.is_empty() {
                continue;
            }
            // What a node has not told yet lies behind the last row that was given out: of its own rows none waits.
            let (cluster, query) = (self.cluster.clone(), asked_for(&self.query));
            let (node, ranges, rows, generation) =
                (share.node, share.ranges.clone(), self.rows, self.generation);
            asking.spawn(async move {
                let limit = cluster.inner.settings.attempt;
                let ask =
                    |client: Client| async move { client.urls(generation, &ranges, &query, rows).await };
                (at, cluster.at_node(node, limit, ask).await)
            });
        }
        self.rows = (self.rows * 4).min(URL_ROWS_MAX as u32);
        let key = self.cluster.inner.key;
        while let Some(asked) = asking.join_next().await {
            // A task ends otherwise only with the runtime.
            let Ok((at, answer)) = asked else { continue };
            let (rows, more) = answer?;
            if let Some(share) = self.shares.get_mut(at) {
                let rows = rows.into_iter().map(|row| (row.key(&key), row));
                share.rows = rows.filter(|(key, row)| is_behind(&self.query, row, *key)).collect();
                if more && share.rows.is_empty() {
                    // Thousands of URLs that are alike for tens of thousands of bytes.
                    let found = self.query.after.as_ref().map_or(0, |after| after.surt.len() as u64);
                    let max = SURT_BYTES_MAX as u64;
                    return Err(NodeError::TooMuch {
                        what: "bytes that SURT keys have in common",
                        found,
                        max,
                    });
                }
                share.more = more;
            }
        }
        Ok(())
    }
}
