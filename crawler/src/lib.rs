//! The acquisition system: what to read next, and reading it.
//!
//! [`fetcher`] is the web interface: the only code that touches the web. [`robots`] says what a site lets crawlers read, [`sitemap`] what it
//! says it has, [`loader`] whether XML is sound. The [`frontier`] is all that a crawl knows and waits for, on disk; [`crawl`] drives it all.
//!
//! [`change_rate`] says how often a page changes, from what visits saw. Pure functions.
//!
//! [`importance`] computes what pages are worth from the links between them, and what HTML pages lead to, in memory and on disk;
//! [`link_matrix`] keeps those links on disk. [`links`] brings them together: the one owner of a repository's links, fed by its stream and by
//! the crawl, by the URL-ids of [`metadata`].
//!
//! [`metadata`] knows every URL by a number, answers "seen?" for links in batches, and keeps what visits said, on disk.
//!
//! [`scheduler`] says which pages to read next under a fixed bandwidth: how often each page is worth reading, which are due
//! now, which to read for the first time. Pure functions of state and `now`.
//!
//! [`site_metadata`] writes and reads what a site publishes about its own pages: metadata archives and sitemaps.

pub mod change_rate;
pub mod crawl;
pub mod fetcher;
pub mod frontier;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
pub mod importance;
pub mod link_matrix;
pub mod links;
pub mod loader;
pub mod metadata;
pub mod robots;
pub mod scheduler;
pub mod site_metadata;
pub mod sitemap;

#[cfg(test)]
mod random;
