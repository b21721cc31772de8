//! What a node and the management server say to one another: the cycle's messages, and what the machines need not know:
//! who a node is, where it listens, how full it is.
//!
//! The node opens a control call with the topic [`TOPIC`], says [`NodeSays::Hello`] and waits for
//! [`ManagementSays::Welcome`]; from then on both send what they have. It opens the call again whenever it breaks.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::cycle::message::{NodeId, ToManagement, ToNode};
use crate::plan::{Addresses, NodeFigures, Repository};

/// The topic of nodes' control calls.
pub const TOPIC: &str = "node";

/// A node introduces itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Which node.
    pub id: NodeId,
    /// Where others reach it.
    pub address: SocketAddr,
    /// Its repository, if it has ever been welcomed: a node of another one is refused.
    pub repository: Option<Repository>,
}

/// From a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum NodeSays {
    /// Who it is. The first message of a call.
    Hello(Hello),
    /// About cycles.
    Cycle(ToManagement),
    /// How full and how busy it is.
    Figures(NodeFigures),
}

/// From the management server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ManagementSays {
    /// The repository it belongs to from now on. The first answer.
    Welcome(Repository),
    /// It does not belong here, and why.
    Refused(String),
    /// Where all nodes are; sent when it changes, before anything that needs it.
    Addresses(Addresses),
    /// About cycles.
    Cycle(ToNode),
}
