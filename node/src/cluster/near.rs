//! Nodes in this very process: their pages are looked up by a call, without a socket between.
//!
//! Only lookups of one page take this way, because only there the socket costs more than the page. Whatever a near node
//! cannot answer goes the ordinary way, so nothing but the time depends on this.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use webbase_storage::{PageKey, Record};

use super::Cluster;
use super::lookup::{Found, nodes_of};
use crate::cycle::message::NodeId;
use crate::error::Result;
use crate::server::Pages;

/// The pages of the nodes in this process.
#[derive(Default)]
pub(super) struct Near(RwLock<HashMap<NodeId, Arc<dyn Pages>>>);

impl Cluster {
    /// Looks pages of a node in this process up without a socket, as long as plans name the node.
    pub fn reach(&self, node: NodeId, pages: Arc<dyn Pages>) {
        self.inner.near.0.write().insert(node, pages);
    }

    /// A page from a node in this process; `None` where another way has to be gone.
    pub(super) async fn lookup_near(
        &self,
        range: u32,
        key: PageKey,
    ) -> Result<Option<Found<Option<Record>>>> {
        if self.inner.near.0.read().is_empty() {
            return Ok(None);
        }
        let plan = self.inner.plans.read().await?;
        let generation = plan.generation;
        if generation == 0 {
            return Ok(None);
        }
        let found = {
            let near = self.inner.near.0.read();
            let Some(pages) = nodes_of(&plan, range).iter().find_map(|node| near.get(node)).cloned() else {
                return Ok(None);
            };
            pages
        };
        let answer = match found.lookup_warm(generation, key) {
            Some(answer) => answer,
            None => {
                let pages = found.clone();
                let looking = tokio::task::spawn_blocking(move || pages.lookup(generation, key));
                let Ok(answer) = looking.await else { return Ok(None) };
                answer
            }
        };
        // A fault is a matter of the ordinary way, which has other nodes and newer plans.
        let Ok(page) = answer else { return Ok(None) };
        if let Some(record) = &page {
            let digest = record.get().dictionary();
            if digest != 0
                && self.dictionaries().get(digest).is_none()
                && let Some(dictionary) = found.dictionary(digest)
            {
                self.dictionaries().insert(dictionary);
            }
        }
        Ok(Some(Found { generation, pages: page }))
    }
}
