//! How the program ends, for scripts.
//!
//! ```text
//!   0  what was asked was done, and is durable
//!   1  it was not; stderr says why, unless who reads stdout has left, as `head` does when it has enough
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

/// Whether stdout could not be written to because nobody reads it any more: who left knows.
pub(crate) fn is_reader_gone(e: &anyhow::Error) -> bool {
    let mut causes = e.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    e.to_string() == "cannot write to stdout" && causes.any(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};

    #[test]
    fn only_a_reader_of_stdout_that_left_is_no_news() {
        let failed =
            |kind: ErrorKind, what: &'static str| anyhow::Error::from(Error::from(kind)).context(what);
        assert!(is_reader_gone(&failed(ErrorKind::BrokenPipe, "cannot write to stdout")));
        assert!(!is_reader_gone(&failed(ErrorKind::StorageFull, "cannot write to stdout")));
        assert!(!is_reader_gone(&failed(ErrorKind::BrokenPipe, "the stream was cut off")));
    }
}
