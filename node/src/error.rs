//! What can go wrong between two ends of a connection, each variant something a caller can act on.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use webbase_storage::StorageError;

use crate::wire::message::{Code, Fault};

/// The result of a node operation.
pub type Result<T> = std::result::Result<T, NodeError>;

/// What asking again may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retry {
    /// Nothing was done; the same request may succeed, here or at another node.
    Safe,
    /// It may have been done. Every request of this protocol can be repeated with the same effect: pages added twice are
    /// counted as stale. Only messages of a control call can arrive twice.
    Repeats,
    /// The answer would be the same.
    Useless,
}

/// Why a node or its client refused or failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The operating system refused.
    #[error("cannot {op} {peer}: {source}")]
    Io {
        /// What was attempted.
        op: &'static str,
        /// With whom.
        peer: String,
        /// The system's answer.
        source: Arc<io::Error>,
    },

    /// The peer answered with an error.
    #[error("{peer} answered: {fault}")]
    Refused {
        /// Who.
        peer: String,
        /// What.
        fault: Fault,
    },

    /// The management server does not do what it was asked for.
    #[error("{peer} does not {what}: {why}")]
    Denied {
        /// Who.
        peer: String,
        /// What was asked for.
        what: &'static str,
        /// Why not.
        why: String,
    },

    /// Nobody has a range now.
    #[error(
        "range {range} has no {role} node now (generation {generation}); start one, or wait for one to return"
    )]
    NoNode {
        /// Which kind of node.
        role: &'static str,
        /// The range.
        range: u32,
        /// The generation wanted; 0 when pages are added.
        generation: u64,
    },

    /// A stream whose node is gone, and no other can go on where that one stopped.
    #[error("the stream of generation {generation} cannot go on: {why}; stream again")]
    StreamLost {
        /// The generation.
        generation: u64,
        /// Why not.
        why: String,
    },

    /// The peer does not keep to the protocol.
    #[error("{peer} breaks the protocol: {what}")]
    Protocol {
        /// Who.
        peer: String,
        /// How.
        what: String,
    },

    /// A record was damaged on its way. It is never delivered.
    #[error("{peer} sent a damaged record: {what}; ask again")]
    Damaged {
        /// Who.
        peer: String,
        /// What was expected and found.
        what: String,
    },

    /// The connection is gone.
    #[error("the connection to {peer} ended: {why}; connect again")]
    Closed {
        /// Who.
        peer: String,
        /// Why.
        why: String,
    },

    /// Nothing came for too long.
    #[error("{peer} did not answer within {after_ms} ms")]
    Timeout {
        /// Who.
        peer: String,
        /// The limit.
        after_ms: u64,
    },

    /// Too much was asked for at once.
    #[error("{what}: {found}, the limit is {max}")]
    TooMuch {
        /// What there is too much of.
        what: &'static str,
        /// How much.
        found: u64,
        /// How much is taken.
        max: u64,
    },

    /// Strangers could reach an address that is not protected.
    #[error(
        "{address} can be reached from other machines: give a token and TLS, or listen on a loopback address"
    )]
    Unprotected {
        /// The address.
        address: SocketAddr,
    },

    /// A certificate, key or name for TLS that does not work.
    #[error("TLS: {what}")]
    Tls {
        /// What does not work.
        what: String,
    },

    /// A text that is no token.
    #[error("a token is 64 hexadecimal digits: {what}")]
    Token {
        /// What is wrong.
        what: String,
    },

    /// A folder, or a node, of another repository.
    #[error("{what}")]
    Foreign {
        /// What was expected and found.
        what: String,
    },

    /// A store's own error, on this side.
    #[error("{0}")]
    Storage(Arc<StorageError>),
}

impl NodeError {
    pub(crate) fn io(op: &'static str, peer: impl ToString, source: io::Error) -> NodeError {
        NodeError::Io { op, peer: peer.to_string(), source: Arc::new(source) }
    }

    /// What asking again may do.
    pub fn retry(&self) -> Retry {
        match self {
            NodeError::Refused { fault, .. } => match fault.code {
                Code::Busy | Code::ShuttingDown => Retry::Safe,
                Code::Cancelled | Code::Internal | Code::Store | Code::Timeout => Retry::Repeats,
                _ => Retry::Useless,
            },
            NodeError::Io { op: "connect to", .. } | NodeError::NoNode { .. } => Retry::Safe,
            NodeError::Io { .. } | NodeError::Closed { .. } => Retry::Repeats,
            NodeError::Damaged { .. } | NodeError::Timeout { .. } | NodeError::StreamLost { .. } => {
                Retry::Repeats
            }
            _ => Retry::Useless,
        }
    }

    /// Whether this is about one damaged page of a stream, which goes on without it.
    pub fn is_damaged_page(&self) -> bool {
        matches!(self, NodeError::Refused { fault, .. } if fault.code == Code::Damaged)
    }

    /// The generations there are, when the one asked for is not.
    pub fn generations(&self) -> Option<&[u64]> {
        match self {
            NodeError::Refused { fault, .. } if fault.code == Code::Generation => Some(&fault.generations),
            _ => None,
        }
    }
}

impl From<StorageError> for NodeError {
    fn from(e: StorageError) -> NodeError {
        NodeError::Storage(Arc::new(e))
    }
}
