//! Nodes in this very process: their pages are looked up, and pages are added to them, by a call, without a socket between.
//!
//! Lookups of one page take this way, because there the socket costs more than the page, and adds, which would be copied four times on
//! their way through one. Whatever a near node cannot do goes the ordinary way, so nothing but the time depends on this.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use webbase_storage::{Dictionaries, PageKey, Record};

use super::Cluster;
use super::lookup::{Found, nodes_of};
use crate::cycle::message::NodeId;
use crate::error::Result;
use crate::server::{NearAdder, Pages};
use crate::wire::message::{Code, Fault};

/// Bytes of records that are handed over as one batch.
const BATCH_BYTES: usize = 4 << 20;

/// A node of this process, as [`Host::near`](crate::Host::near) gives it.
#[derive(Clone)]
pub struct NearNode {
    pages: Arc<dyn Pages>,
    adder: NearAdder,
    /// Dictionaries that it has.
    handed_over: Arc<Mutex<BTreeSet<u64>>>,
}

impl NearNode {
    pub(crate) fn new(pages: Arc<dyn Pages>, adder: NearAdder) -> NearNode {
        NearNode { pages, adder, handed_over: Arc::default() }
    }

    /// Adds records, and waits until they are durable; nothing where another way has to be gone.
    pub(super) async fn add<'a>(
        &self,
        records: impl Iterator<Item = &'a Record>,
        known: &Dictionaries,
    ) -> Option<std::result::Result<(), Fault>> {
        let (mut batches, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut needed = BTreeSet::new();
        for record in records {
            needed.insert(record.get().dictionary());
            batch.push(record.bytes().clone());
            bytes += record.bytes().len();
            if bytes >= BATCH_BYTES {
                batches.push((std::mem::take(&mut batch), std::mem::take(&mut bytes)));
            }
        }
        if !batch.is_empty() {
            batches.push((batch, bytes));
        }
        needed.remove(&0);
        let mut dictionaries = Vec::new();
        for digest in needed.difference(&self.handed_over.lock()) {
            let Some(dictionary) = known.get(*digest) else {
                let text = format!("nobody knows the dictionary {digest:016x}");
                return Some(Err(Fault::new(Code::BadPage, text)));
            };
            dictionaries.push(Bytes::copy_from_slice(dictionary.content()));
        }
        let added = self.adder.add(dictionaries, batches).await?;
        let mut handed_over = self.handed_over.lock();
        match added {
            Ok(()) => handed_over.extend(needed),
            // Whatever the reason, dictionaries go with their records again.
            Err(_) => handed_over.clear(),
        }
        drop(handed_over);
        Some(added)
    }
}

/// The nodes in this process.
#[derive(Default)]
pub(super) struct Near(RwLock<HashMap<NodeId, NearNode>>);

impl Cluster {
    /// Asks a node in this process without a socket, as long as plans name it.
    pub fn reach(&self, node: NodeId, near: NearNode) {
        self.inner.near.0.write().insert(node, near);
    }

    /// A node, if it is in this process.
    pub(super) fn near(&self, node: NodeId) -> Option<NearNode> {
        self.inner.near.0.read().get(&node).cloned()
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
            let Some(node) = nodes_of(&plan, range).iter().find_map(|node| near.get(node)) else {
                return Ok(None);
            };
            node.pages.clone()
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
