//! Connections to nodes: one each, made when needed, made again when broken; which nodes failed a moment ago, which had no
//! room, and which have much to do.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::add::is_full;
use crate::client::{Client, ClientSettings};
use crate::cycle::message::NodeId;
use crate::error::{NodeError, Result};
use crate::plan::Addresses;

/// The connection to one node; whoever connects holds the lock, and the others wait for the outcome.
type Slot = Arc<tokio::sync::Mutex<Option<(SocketAddr, Client)>>>;

/// So many requests more make a difference: a few are chance.
const OUTSTANDING_STEP: usize = 8;

#[derive(Default)]
struct Node {
    address: Option<SocketAddr>,
    slot: Slot,
    /// It failed: asked last until then.
    avoided_until: Option<Instant>,
    /// It had no room for pages: they go elsewhere until then, where they can.
    full_until: Option<Instant>,
    /// The last plan says that it has much more to do than others.
    busy: bool,
    /// Requests of this client that it has not answered.
    outstanding: Arc<AtomicUsize>,
}

/// A request under way; it is over when this is dropped.
pub(super) struct Outstanding(Arc<AtomicUsize>);

impl Drop for Outstanding {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) struct Connections {
    settings: ClientSettings,
    avoid: Duration,
    nodes: Mutex<HashMap<NodeId, Node>>,
}

impl Connections {
    pub(super) fn new(settings: ClientSettings, avoid: Duration) -> Connections {
        Connections { settings, avoid, nodes: Mutex::default() }
    }

    /// Takes note of where nodes are. A plan need not name all of them, so the others are kept.
    pub(super) fn learn(&self, addresses: &Addresses) {
        let mut nodes = self.nodes.lock();
        for (id, address) in addresses {
            let node = nodes.entry(*id).or_default();
            if node.address.replace(*address) != Some(*address) {
                // It moved, so it started again.
                node.avoided_until = None;
            }
        }
    }

    /// A connection to a node.
    pub(super) async fn to(&self, id: NodeId) -> Result<Client> {
        let known = self.nodes.lock().get(&id).and_then(|node| Some((node.address?, node.slot.clone())));
        let Some((address, slot)) = known else {
            let (peer, why) = (name(id), "nobody says where it is".to_owned());
            return Err(NodeError::Closed { peer, why });
        };
        let mut slot = slot.lock().await;
        if let Some((at, client)) = &*slot
            && *at == address
            && client.closed().is_none()
        {
            return Ok(client.clone());
        }
        *slot = None;
        let client = Client::connect(address, self.settings.clone()).await?;
        *slot = Some((address, client.clone()));
        Ok(client)
    }

    /// A node failed: the others come first for a while, and its connection is made anew if it answers nothing.
    pub(super) fn failed(&self, id: NodeId, why: &NodeError) {
        let mut nodes = self.nodes.lock();
        let Some(node) = nodes.get_mut(&id) else { return };
        let until = Some(Instant::now() + self.avoid);
        if is_full(why) {
            // It reads as well as ever.
            node.full_until = until;
            return;
        }
        node.avoided_until = until;
        if !matches!(why, NodeError::Refused { .. }) {
            node.slot = Slot::default();
        }
    }

    /// A node answered.
    pub(super) fn answered(&self, id: NodeId) {
        if let Some(node) = self.nodes.lock().get_mut(&id) {
            node.avoided_until = None;
        }
    }

    /// Whether a node failed a moment ago.
    pub(super) fn is_avoided(&self, id: NodeId) -> bool {
        let until = self.nodes.lock().get(&id).and_then(|node| node.avoided_until);
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Whether a node had no room for pages a moment ago.
    pub(super) fn is_full(&self, id: NodeId) -> bool {
        let until = self.nodes.lock().get(&id).and_then(|node| node.full_until);
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Whether a node has much to do.
    pub(super) fn is_busy(&self, id: NodeId) -> bool {
        self.nodes.lock().get(&id).is_some_and(|node| node.busy)
    }

    /// Takes note of which nodes have much to do.
    pub(super) fn set_busy(&self, busy: &[NodeId]) {
        for (id, node) in self.nodes.lock().iter_mut() {
            node.busy = busy.contains(id);
        }
    }

    /// Counts a request to a node as long as it lasts.
    pub(super) fn begin(&self, id: NodeId) -> Outstanding {
        let outstanding = self.nodes.lock().entry(id).or_default().outstanding.clone();
        outstanding.fetch_add(1, Ordering::Relaxed);
        Outstanding(outstanding)
    }

    /// The nodes in the order to ask them: those that have less to do first, those that failed last; `turn` spreads requests
    /// over equals.
    pub(super) fn in_turn(&self, nodes: &[NodeId], turn: usize) -> Vec<NodeId> {
        let mut ordered = nodes.to_vec();
        if !ordered.is_empty() {
            let by = turn % ordered.len();
            ordered.rotate_left(by);
        }
        let now = Instant::now();
        let known = self.nodes.lock();
        ordered.sort_by_cached_key(|id| {
            known.get(id).map_or((false, false, 0), |node| {
                let avoided = node.avoided_until.is_some_and(|until| now < until);
                (avoided, node.busy, node.outstanding.load(Ordering::Relaxed) / OUTSTANDING_STEP)
            })
        });
        ordered
    }
}

/// A node's name for people.
pub(super) fn name(id: NodeId) -> String {
    format!("node {:016x}", id.0)
}
