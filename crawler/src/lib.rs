//! The acquisition system: what to read next, and reading it.
//!
//! [`importance`] computes what pages are worth from the links between them, and what HTML pages lead to.

pub mod importance;
