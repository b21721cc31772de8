//! The acquisition system: what to read next, and reading it.
//!
//! [`fetcher`] is the web interface: the only code that touches the web. [`robots`] says what a site lets crawlers read, [`sitemap`] what it says it has,
//! [`loader`] whether XML is sound. The [`frontier`] is all that a crawl knows and waits for, on disk; [`crawl`] drives it all.

pub mod crawl;
pub mod fetcher;
pub mod frontier;
pub mod loader;
pub mod robots;
pub mod sitemap;
