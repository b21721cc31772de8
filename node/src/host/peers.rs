//! Other nodes, as a node that pulls from them sees them: where they are, and a connection to each that is kept while it
//! works.

use std::collections::HashMap;
use std::net::SocketAddr;

use parking_lot::Mutex;

use crate::client::{Client, ClientSettings};
use crate::cycle::message::NodeId;
use crate::error::{NodeError, Result};
use crate::plan::Addresses;

/// The other nodes.
pub(super) struct Peers {
    settings: ClientSettings,
    known: Mutex<HashMap<NodeId, (SocketAddr, Option<Client>)>>,
}

impl Peers {
    pub(super) fn new(settings: ClientSettings) -> Peers {
        Peers { settings, known: Mutex::default() }
    }

    /// The dictionaries that any of them sent.
    pub(super) fn dictionaries(&self) -> &webbase_storage::Dictionaries {
        &self.settings.dictionaries
    }

    /// Takes note of where nodes are.
    pub(super) fn set(&self, addresses: Addresses) {
        let mut known = self.known.lock();
        let mut before = std::mem::take(&mut *known);
        for (node, address) in addresses {
            let client = before.remove(&node).filter(|(at, _)| *at == address).and_then(|(_, client)| client);
            known.insert(node, (address, client));
        }
    }

    /// All nodes.
    pub(super) fn all(&self) -> Vec<NodeId> {
        let mut all: Vec<NodeId> = self.known.lock().keys().copied().collect();
        all.sort_unstable();
        all
    }

    /// A working connection to a node.
    pub(super) async fn client(&self, node: NodeId) -> Result<Client> {
        let known = self.known.lock().get(&node).cloned();
        let Some((address, client)) = known else {
            let why = "it is not known where it is".into();
            return Err(NodeError::Closed { peer: format!("node {:016x}", node.0), why });
        };
        if let Some(client) = client.filter(|client| client.closed().is_none()) {
            return Ok(client);
        }
        let client = Client::connect(address, self.settings.clone()).await?;
        if let Some(entry) = self.known.lock().get_mut(&node).filter(|entry| entry.0 == address) {
            entry.1 = Some(client.clone());
        }
        Ok(client)
    }
}
