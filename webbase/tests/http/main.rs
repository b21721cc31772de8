//! The gateway over real sockets: a repository in this process, and requests as they come, good and bad. After everything bad
//! the next request is answered.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod bad_input;
mod cdx;
mod conditional;
mod crawl;
mod links;
mod pages;
mod protected;
mod rig;
mod surfaces;
mod warc;
