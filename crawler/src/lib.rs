//! The acquisition system: what to read next, and reading it.
//!
//! [`change_rate`] says how often a page changes, from what visits saw. Pure functions.
//!
//! [`metadata`] knows every URL by a number, answers "seen?" for links in batches, and keeps what visits said, on disk.
//!
//! [`scheduler`] says which pages to read next under a fixed bandwidth: how often each page is worth reading, which are due
//! now, which to read for the first time. Pure functions of state and `now`.
//!
//! [`site_metadata`] writes and reads what a site publishes about its own pages: metadata archives and sitemaps.
//!
//! [`importance`] computes what pages are worth from the links between them, and what HTML pages lead to, in memory and on disk;
//! [`link_matrix`] keeps those links on disk.

pub mod change_rate;
pub mod metadata;
pub mod scheduler;
pub mod site_metadata;

#[cfg(test)]
mod random;
pub mod importance;
pub mod link_matrix;
