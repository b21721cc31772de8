//! How the program ends, for scripts.
//!
//! ```text
//!   0  what was asked was done, and is durable
//!   1  it was not; stderr says why
//!   2  the command line or the config file makes no sense
//!   3  something is damaged
//!   4  there is no such page
//!   5  no repository answers there
//! ```

use std::process::ExitCode;

/// The same for people, in the help.
pub(crate) const CODES: &str = "Exit codes: 0 done, and durable; 1 not done; 2 wrong usage or config; 3 something is damaged; \
                                4 no such page; 5 no repository answers.";

/// Ends that have a code of their own.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Damaged(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Absent(String),
}

/// The code of an error.
pub(crate) fn code(e: &anyhow::Error) -> ExitCode {
    match e.chain().find_map(|cause| cause.downcast_ref()) {
        Some(Failure::Usage(_)) => 2.into(),
        Some(Failure::Damaged(_)) => 3.into(),
        Some(Failure::NotFound(_)) => 4.into(),
        Some(Failure::Absent(_)) => 5.into(),
        None => ExitCode::FAILURE,
    }
}
