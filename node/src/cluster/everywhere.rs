//! Lookups where nobody says which node has a page: all nodes are asked. Under the distribution `uniform` that is needed
//! while the management server is away, or makes its index anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use webbase_storage::{PageId, PageKey, Record};

use super::Cluster;
use super::lookup::{Found, Rounds};
use crate::client::Client;
use crate::cycle::message::NodeId;
use crate::error::{NodeError, Result};
use crate::plan::ReadPlan;
use crate::wire::message::KEYS_MAX;
use crate::wire::ranges::RangeSet;

impl Cluster {
    /// The ranges of pages; none of those that are not in the repository. `None` when the index does not say them now.
    pub(super) async fn ranges_of(&self, keys: &[PageKey]) -> Option<Vec<Option<u32>>> {
        if !self.is_uniform() {
            return Some(keys.iter().map(|key| self.inner.repository.range_of_key(*key)).collect());
        }
        timeout(self.inner.settings.attempt, self.inner.management.find(keys)).await.ok()?.ok()
    }

    /// The keys of the pages with an id. `None` when the index does not say them now.
    pub(super) async fn keys_of(&self, id: PageId) -> Option<Vec<PageKey>> {
        timeout(self.inner.settings.attempt, self.inner.management.find_id(id)).await.ok()?.ok()
    }

    /// Many pages, as [`Cluster::lookup_many`].
    pub(super) async fn look_everywhere(
        &self,
        keys: &[PageKey],
    ) -> Result<Found<Vec<Result<Option<Record>>>>> {
        let keys: Arc<[PageKey]> = keys.into();
        let ask = {
            let keys = keys.clone();
            move |client: Client, generation, ranges: RangeSet| {
                let keys = keys.clone();
                async move { client.lookup_in(generation, &ranges, &keys).await }
            }
        };
        let best = |answers: &[Vec<Result<Option<Record>>>]| -> Vec<Result<Option<Record>>> {
            let mut pages: Vec<_> = keys.iter().map(|_| Ok(None)).collect();
            for answer in answers {
                for (page, found) in pages.iter_mut().zip(answer) {
                    // A whole copy is better than a damaged one, and that better than none.
                    if matches!((&*page, found), (Ok(None), _) | (Err(_), Ok(Some(_)))) {
                        page.clone_from(found);
                    }
                }
            }
            pages
        };
        let requests = keys.len().div_ceil(KEYS_MAX) as u32;
        let enough = |answers: &[_]| best(answers).iter().all(|page| matches!(page, Ok(Some(_))));
        let Found { generation, pages } = self.everywhere(requests, ask, enough).await?;
        Ok(Found { generation, pages: best(&pages) })
    }

    /// The pages with an id.
    pub(super) async fn look_everywhere_for_id(&self, id: PageId) -> Result<Found<Vec<Record>>> {
        let ask = move |client: Client, generation, _| async move { client.lookup_id(generation, id).await };
        let Found { generation, pages } = self.everywhere(1, ask, |_| false).await?;
        let mut pages: Vec<Record> = pages.into_iter().flatten().collect();
        pages.sort_by_key(|record| record.get().key());
        pages.dedup_by_key(|record| record.get().key());
        Ok(Found { generation, pages })
    }

    /// Asks all nodes. Returns when every range has a node among those that answered, or their answers are enough.
    async fn everywhere<T, F>(
        &self,
        requests: u32,
        ask: impl Fn(Client, u64, RangeSet) -> F + Clone + Send + Sync + 'static,
        enough: impl Fn(&[T]) -> bool,
    ) -> Result<Found<Vec<T>>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let settings = &self.inner.settings;
        let limit = settings.attempt + settings.client.answer * requests;
        let mut rounds = Rounds::new(self);
        let mut plan: Arc<ReadPlan> = self.inner.plans.read().await?;
        loop {
            let generation = plan.generation;
            if generation == 0 {
                return Ok(Found { generation, pages: Vec::new() });
            }
            let asked_at = Instant::now();
            let mut asking = JoinSet::new();
            // What the plan says a node has, it has to have: else its "not there" would say nothing.
            let mut shares: BTreeMap<NodeId, Vec<u32>> = BTreeMap::new();
            for (range, nodes) in plan.ranges.iter().enumerate() {
                nodes.iter().for_each(|node| shares.entry(*node).or_default().push(range as u32));
            }
            for (node, ranges) in shares {
                let ranges = self.named(ranges).unwrap_or_default();
                let (cluster, ask) = (self.clone(), ask.clone());
                asking.spawn(async move {
                    (node, cluster.at_node(node, limit, |client| ask(client, generation, ranges)).await)
                });
            }
            let (mut answered, mut answers, mut failed) = (BTreeSet::new(), Vec::new(), None);
            while let Some(asked) = asking.join_next().await {
                match asked {
                    Ok((node, Ok(answer))) => {
                        answered.insert(node);
                        answers.push(answer);
                    }
                    Ok((_, Err(e))) => failed = Some(e),
                    // A task ends otherwise only with the runtime.
                    Err(_) => {}
                }
            }
            let unheard = |nodes: &Vec<NodeId>| !nodes.iter().any(|node| answered.contains(node));
            let missing = plan.ranges.iter().position(unheard);
            match missing.filter(|_| !enough(&answers)) {
                None => return Ok(Found { generation, pages: answers }),
                Some(range) => {
                    let none = NodeError::NoNode { role: "read", range: range as u32, generation };
                    plan = rounds.next(asked_at, failed.unwrap_or(none)).await?;
                }
            }
        }
    }
}
