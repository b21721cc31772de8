//! Making the index anew from the nodes' lists, which are the truth: every page has its range in its version.
//!
//! The index is complete when, without a cycle in between,
//! 1. every range of the generation that is served was listed by one of its read nodes,
//! 2. every epoch was listed by every update node of the table, the one that takes adds too, and
//! 3. that was when nobody could be adding any more with a range told before: `add_limit` after the index was lost.
//!
//! So it waits for update nodes that are away: they may hold pages that nobody else has. Giving a node up (`remove-lost`)
//! ends the waiting for it. Pages whose ranges are known are served and taken meanwhile.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use webbase_node::cycle::RangeMap;
use webbase_node::cycle::message::NodeId;
use webbase_node::plan::{Ask, Status, Told};
use webbase_node::wire::ranges::RangeSet;
use webbase_node::{Client, ClientSettings, EPOCH, NodeError};
use webbase_storage::PageKey;

use crate::assigner::Assigner;
use crate::hub::Question;

/// Between two looks, and between two tries.
const PAUSE: Duration = Duration::from_millis(250);
/// Pages handed to the index at once.
const BATCH: usize = 32 << 10;

/// Makes the index whenever it is not complete.
pub(crate) struct Rebuild {
    pub(crate) assigner: Assigner,
    pub(crate) questions: mpsc::WeakSender<Question>,
    pub(crate) client: ClientSettings,
    pub(crate) map: RangeMap,
    /// Clients are done with what they add in this time.
    pub(crate) add_limit: Duration,
}

impl Rebuild {
    pub(crate) async fn run(self) {
        let mut lost: Option<(u64, Instant)> = None;
        loop {
            if self.assigner.is_complete() {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let life = self.assigner.life();
            let since = match lost {
                Some((of, since)) if of == life => since,
                _ => Instant::now(),
            };
            lost = Some((life, since));
            let begun = Instant::now();
            let taken = self.try_once().await;
            if taken && begun.duration_since(since) >= self.add_limit {
                // If there is nobody to tell, the server is going down.
                let _gone = self.assigner.complete(life).await;
                lost = None;
            } else if taken {
                tokio::time::sleep_until(since + self.add_limit).await;
            } else {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Takes all lists that can be had; says whether these were all, and belong together.
    async fn try_once(&self) -> bool {
        let Some(before) = self.status().await else { return false };
        let Some(Told::ReadPlan(plan, addresses)) = self.ask(Ask::ReadPlan).await else { return false };
        let addresses: BTreeMap<NodeId, SocketAddr> = addresses.into_iter().collect();
        let mut all = before.cycle.is_none() && before.serving == before.committed;
        let mut shares: BTreeMap<Option<NodeId>, Vec<u32>> = BTreeMap::new();
        for (range, nodes) in plan.ranges.iter().enumerate().filter(|_| plan.generation > 0) {
            shares.entry(nodes.first().copied()).or_default().push(range as u32);
        }
        for (node, ranges) in shares {
            let address = node.and_then(|node| addresses.get(&node).copied());
            all &= self.take_ranges(address, plan.generation, ranges).await.is_some();
        }
        for node in before.nodes.iter().filter(|node| node.update) {
            all &= self.take_epochs(node.address).await.is_some();
        }
        let Some(after) = self.status().await else { return false };
        let state = |s: &Status| (s.serving, s.committed, s.last_cycle, s.cycle.is_some());
        all && state(&before) == state(&after)
    }

    /// Takes a read node's list of some ranges, if it can be had.
    async fn take_ranges(
        &self,
        address: Option<SocketAddr>,
        generation: u64,
        ranges: Vec<u32>,
    ) -> Option<()> {
        let client = self.connect(address?).await.ok()?;
        self.take(&client, generation, RangeSet::of(self.map.bits(), ranges)?).await.ok()
    }

    /// Takes the lists of an update node's epochs, if all can be had.
    async fn take_epochs(&self, address: Option<SocketAddr>) -> Option<()> {
        let client = self.connect(address?).await.ok()?;
        for epoch in epochs(&client).await? {
            self.take(&client, epoch, RangeSet::all()).await.ok()?;
        }
        Some(())
    }

    async fn ask(&self, ask: Ask) -> Option<Told> {
        let (answer, answered) = oneshot::channel();
        self.questions.upgrade()?.send(Question { ask, answer }).await.ok()?;
        answered.await.ok()
    }

    async fn status(&self) -> Option<Status> {
        match self.ask(Ask::Status).await? {
            Told::Status(status) => Some(*status),
            _ => None,
        }
    }

    async fn connect(&self, address: SocketAddr) -> Result<Client, NodeError> {
        Client::connect(address, self.client.clone()).await
    }

    /// Hands a list to the index.
    async fn take(&self, client: &Client, generation: u64, ranges: RangeSet) -> Result<(), NodeError> {
        let mut listing = client.list(generation, PageKey::MIN, ranges)?;
        let mut batch = Vec::new();
        loop {
            let next = listing.next().await?;
            let ended = next.is_none();
            if let Some(entry) = next {
                batch.push((entry.key, self.map.range_of(entry.key, entry.version) as u16));
            }
            if ended || batch.len() >= BATCH {
                let closed = || NodeError::Closed {
                    peer: client.peer().to_owned(),
                    why: "the management server is going down".into(),
                };
                self.assigner.take(std::mem::take(&mut batch)).await.ok_or_else(closed)?;
            }
            if ended {
                return Ok(());
            }
        }
    }
}

/// The epochs of an update node, as requests name them. Asking for one that never was makes it say which there are.
async fn epochs(client: &Client) -> Option<Vec<u64>> {
    match client.list(EPOCH, PageKey::MIN, RangeSet::all()).ok()?.next().await {
        Err(NodeError::Refused { fault, .. }) if !fault.generations.is_empty() => Some(fault.generations),
        _ => None,
    }
}
