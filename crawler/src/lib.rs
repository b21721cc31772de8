//! The acquisition system: what to read next, and reading it.
//!
//! [`importance`] computes what pages are worth from the links between them, and what HTML pages lead to, in memory and on disk;
//! [`link_matrix`] keeps those links on disk.

pub mod importance;
pub mod link_matrix;
