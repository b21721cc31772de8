//! The importance of pages, as somebody computed it: published at all read nodes, then used by streams.
//!
//! Each node gets the entries of its ranges (all of them where keys do not say the range). A version counts once all nodes
//! that a stream reads have it; until then the one before goes on.

use std::collections::{BTreeMap, BTreeSet};

use webbase_storage::PageKey;

use super::Cluster;
use crate::client::Publishing;
use crate::cycle::message::NodeId;
use crate::error::{NodeError, Result};
use crate::plan::ReadPlan;
use crate::wire::message::{Code, Fault};
use crate::wire::ranges::RangeSet as WireRanges;

/// The importance of pages on its way to the nodes. Dropped before it is finished, it changes nothing.
pub struct PublishImportance {
    cluster: Cluster,
    version: u64,
    nodes: BTreeMap<NodeId, Publishing>,
    /// For each range, who wants it.
    ranges: Vec<Vec<NodeId>>,
    last: Option<PageKey>,
    entries: u64,
}

impl Cluster {
    /// Begins to publish the importance of pages. `version` must be higher than any before: a time, say.
    ///
    /// # Errors
    /// When there is no plan, or a node cannot be reached: all that serve readers must have it.
    pub async fn publish_importance(&self, version: u64) -> Result<PublishImportance> {
        let plan = self.inner.plans.read().await?;
        let map = self.inner.repository.map;
        let mut of_node: BTreeMap<NodeId, BTreeSet<u32>> = BTreeMap::new();
        for (range, nodes) in plan.ranges.iter().enumerate() {
            nodes.iter().for_each(|node| _ = of_node.entry(*node).or_default().insert(range as u32));
        }
        let mut nodes = BTreeMap::new();
        for (node, ranges) in of_node {
            let named = match map.is_uniform() {
                true => Some(WireRanges::all()),
                false => WireRanges::of(map.bits(), ranges),
            };
            let client = self.inner.connections.to(node).await?;
            nodes.insert(node, client.publish_importance(version, named.unwrap_or_default())?);
        }
        let ranges = plan.ranges.clone();
        Ok(PublishImportance { cluster: self.clone(), version, nodes, ranges, last: None, entries: 0 })
    }

    /// The newest version of the importance of pages that all nodes of a plan have.
    pub(super) async fn importance_version(&self, plan: &ReadPlan) -> Result<u64> {
        let nodes: BTreeSet<NodeId> = plan.ranges.iter().flatten().copied().collect();
        let mut common: Option<BTreeSet<u64>> = None;
        let mut failed = None;
        for node in nodes {
            let asked = async { self.inner.connections.to(node).await?.importance_versions().await };
            match asked.await {
                Ok(versions) => {
                    let versions: BTreeSet<u64> = versions.into_iter().collect();
                    common = Some(match common {
                        Some(common) => common.intersection(&versions).copied().collect(),
                        None => versions,
                    });
                }
                // A replica answers for it.
                Err(e) => failed = Some(e),
            }
        }
        let newest = common.and_then(|common| common.last().copied());
        newest.ok_or_else(|| failed.unwrap_or_else(nothing_known))
    }
}

fn nothing_known() -> NodeError {
    let text = "nothing is known of the importance of pages; `webbase rank` computes and publishes it";
    NodeError::Refused { peer: "the repository".into(), fault: Fault::new(Code::BadRequest, text) }
}

impl PublishImportance {
    /// Adds the importance of a page. Pages come in order of their keys, each once; waits while nodes are behind.
    ///
    /// # Errors
    /// When they do not, the value is no number, or a node fails.
    pub async fn page(&mut self, key: PageKey, importance: f32) -> Result<()> {
        if importance.is_nan() || self.last.is_some_and(|last| last >= key) {
            let text = format!("the importance of {key} is no number, or comes out of order");
            let fault = Fault::new(Code::BadRequest, text);
            return Err(NodeError::Refused { peer: "this client".into(), fault });
        }
        self.last = Some(key);
        self.entries += 1;
        match self.cluster.inner.repository.range_of_key(key) {
            Some(range) => {
                for node in self.ranges.get(range as usize).into_iter().flatten() {
                    if let Some(publishing) = self.nodes.get_mut(node) {
                        publishing.entry(key, importance).await?;
                    }
                }
            }
            None => {
                for publishing in self.nodes.values_mut() {
                    publishing.entry(key, importance).await?;
                }
            }
        }
        Ok(())
    }

    /// Makes it count. Returns how many pages it has, once it is durable at all nodes.
    ///
    /// # Errors
    /// When a node fails: streams use the version before until one is published at all.
    pub async fn finish(self) -> Result<u64> {
        for (_, publishing) in self.nodes {
            publishing.finish().await?;
        }
        Ok(self.entries)
    }

    /// Its version.
    pub fn version(&self) -> u64 {
        self.version
    }
}
