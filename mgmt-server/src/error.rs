//! What can go wrong with a management server as a whole. What it refuses to do is a [`crate::Refusal`].

use std::path::PathBuf;
use std::sync::Arc;

use webbase_node::NodeError;

/// Why a management server does not start, or has ended.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Another process has the folder.
    #[error("{} is in use by another management server", path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
    },
    /// It was written by another version of this program.
    #[error("{} has {what} of version {found}, this program reads version {expected}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// What.
        what: &'static str,
        /// Its version.
        found: u32,
        /// Ours.
        expected: u32,
    },
    /// It does not hold what was written.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// How.
        what: String,
    },
    /// The disk or the system refused. After a failed write the server ends: what is on disk is read again at its start.
    #[error("cannot {op} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        op: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's answer.
        source: Arc<std::io::Error>,
    },
    /// Options that contradict each other.
    #[error("{what}")]
    Options {
        /// What, and what to do.
        what: &'static str,
    },
    /// It cannot listen.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A fault of the program itself.
    #[error("the management server's task ended: {what}")]
    Internal {
        /// How.
        what: String,
    },
}

impl ServerError {
    pub(crate) fn io(op: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> ServerError {
        ServerError::Io { op, path: path.into(), source: Arc::new(source) }
    }
}
