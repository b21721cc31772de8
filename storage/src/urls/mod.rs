//! The URL index: what pages there are, in the order of their SURT keys, for questions about a prefix, a host or a domain.
//!
//! Page ids are hashes, so a store cannot say which pages a host has. This index can: a [`UrlRow`] a page, with all that a
//! list of captures shows, made from records without unpacking them.
//!
//! ```text
//!   records, removals ──▶ UrlBuilder: sorted, spilled past a budget ──▶ settled against the older runs ──▶ a run
//!   run ◀── run ◀── run      Urls: the runs of one state, oldest first; the newest row of a page counts
//!   list-N                   UrlFiles: which runs are the state with the number N
//! ```
//!
//! 1. Rows are ordered by (SURT key, page key). A page has one SURT key whichever of its spellings was fetched, so a newer
//!    run's row of a page stands where the older one does.
//! 2. A run is written once and never changed. Each of its rows says what it does to the rows below: a *new* page, one that
//!    *replaces* a row, or one that is *gone*. Runs count these in their block index, so the sum over all runs is the number of
//!    pages of any range of keys, exactly, with two blocks read in each run.
//! 3. A block that is damaged is an error with file and offset; nothing of it is served. The index holds nothing that the
//!    records do not say, so it can always be made anew.
//!
//! Useful for: which pages are there under this URL, how many, from there on. Not useful for: getting a page, for which its
//! key is enough ([`crate::RepositoryKey::page_key`] of the row's URL).

mod block;
mod build;
mod files;
mod merge;
mod row;
mod run;
mod set;
#[cfg(test)]
mod tests;

pub use block::{decode_rows, encode_rows};
pub use build::{Tied, UrlBuilder};
pub use files::UrlFiles;
pub use row::UrlRow;
pub use run::UrlRun;
pub use set::{UrlPlace, UrlQuery, UrlRows, Urls};

#[cfg(any(fuzzing, test))]
pub(crate) use run::fuzz_index;

/// What a row does to the rows of its page in older runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    /// There are none.
    New,
    /// It takes their place.
    Replaces,
    /// The page was removed.
    Gone,
}

impl Change {
    /// What it does to the number of pages.
    fn delta(self) -> i64 {
        match self {
            Change::New => 1,
            Change::Replaces => 0,
            Change::Gone => -1,
        }
    }
}

/// A row of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    row: UrlRow,
    change: Change,
}
