//! The metadata manager: which URLs are known, by which number, and what every visit of them said.
//!
//! ```text
//!   links of read pages ──▶ UrlTable::offer     into the pending file; the key and its place into memory
//!                           UrlTable::settle    all pending links against all known ones, by one sequential pass
//!                             known ─▶ its URL-id      new ─▶ the next URL-id, and its URL into the list of URLs
//!   a visit             ──▶ RefreshTable        first and last read, last change, signature, counts, kind, rate: by URL-id
//!   links of other crawlers' hosts ──▶ Sharding: handed over in batches
//! ```
//!
//! "Have I seen this URL?" is asked for every link of every page. One random read each would be a few thousand a second; so
//! links are gathered, sorted, and compared with the sorted list of all known URLs in one sweep (the idea of DRUM): the cost
//! of a sweep is shared by millions of links, and memory holds only those that wait.
//!
//! 1. An answer is exact up to 96 bits of a keyed BLAKE3: that any of 10⁹ new URLs is taken for one of 5·10⁸ known ones has a
//!    probability of 10⁹·5·10⁸/2⁹⁶, less than 10⁻¹¹. A hostile page cannot aim at it without the key.
//! 2. What [`UrlTable::settle`] returned is durable. What was offered and synced is settled after a crash.
//! 3. A damaged file is an error with its path and offset, and is never taken for an answer.

mod asked;
mod files;
mod refresh;
mod runs;
mod shard;
#[cfg(test)]
mod tests;
mod urls;

pub use refresh::{RefreshRow, RefreshTable};
pub use shard::{HandOver, Sharding};
pub use urls::{Settled, UrlTable};

use std::path::PathBuf;

/// What can go wrong with the metadata.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The operating system refused something.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
    /// A file does not hold what was written to it.
    #[error("{} at {offset}: {what}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// All numbers for URLs are given out.
    #[error("no URL-id is left: a table holds {} URLs", u32::MAX)]
    Full,
    /// A write failed before: nothing is written until the table is opened again.
    #[error("the table refuses to go on after a failed write; open it again")]
    Poisoned,
}

type Result<T> = std::result::Result<T, MetadataError>;
