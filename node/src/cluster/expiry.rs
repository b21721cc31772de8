//! Pages whose time is over: the list for the crawler.

use std::collections::BTreeSet;

use crate::cluster::Cluster;
use crate::cycle::message::{NodeId, Removal};
use crate::error::{NodeError, Result};

impl Cluster {
    /// The pages whose time is over at `now_ms`, at most about `limit`, each in the version that is due; they are on the
    /// management server's list from now on. Whoever takes the list visits them, and says what came of it: new versions are
    /// added, what was seen unchanged or could not be verified goes to [`Cluster::seen`]. What is neither is removed by the
    /// cycle after the next.
    ///
    /// # Errors
    /// When a range has no node that answers, or the management server refuses.
    pub async fn due_list(&self, now_ms: u64, limit: u32) -> Result<Vec<Removal>> {
        let plan = self.inner.plans.read().await?;
        let generation = plan.generation;
        if generation == 0 {
            return Ok(Vec::new());
        }
        // Each range is asked for at one node.
        let mut asked: Vec<Option<NodeId>> = Vec::new();
        for (range, nodes) in plan.ranges.iter().enumerate() {
            let node = self.inner.connections.in_turn(nodes, 0).first().copied();
            let range = range as u32;
            asked.push(Some(node.ok_or(NodeError::NoNode { role: "read", range, generation })?));
        }
        let nodes: BTreeSet<NodeId> = asked.iter().flatten().copied().collect();
        let mut all = Vec::new();
        for node in nodes {
            let client = self.inner.connections.to(node).await?;
            for entry in client.due(generation, now_ms, limit).await? {
                let key = entry.key.into();
                let range = self.inner.repository.map.range_of(key, entry.version()) as usize;
                if asked.get(range).copied().flatten() == Some(node) {
                    all.push((entry.deadline_ms, Removal { key, bound: entry.version() }));
                }
            }
        }
        all.sort_unstable_by_key(|(deadline_ms, page)| (*deadline_ms, page.key));
        let list: Vec<Removal> = all.into_iter().map(|(_, page)| page).take(limit as usize).collect();
        if !list.is_empty() {
            self.due(&list).await?;
        }
        Ok(list)
    }
}
