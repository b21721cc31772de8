//! Benchmarks of webbase's page stores: a corpus of real pages, measuring tools, the machine's physical limits, and,
//! behind the feature `peers`, other engines doing the same work.
//!
//! This crate measures; it is not a library for others. A broken corpus or a failed engine panics.

pub mod arguments;
pub mod cluster;
pub mod contestant;
pub mod corpus;
pub mod experiment;
pub mod http_head;
pub mod load;
pub mod measure;
pub mod ours;
#[cfg(feature = "most-peers")]
mod peers;
pub mod plot;
pub mod raw;
pub mod warc;
