//! The acquisition system: what to read next, and reading it.
//!
//! [`change_rate`] says how often a page changes, from what visits saw. Pure functions.
//!
//! [`scheduler`] says which pages to read next under a fixed bandwidth: how often each page is worth reading, which are due
//! now, which to read for the first time. Pure functions of state and `now`.

pub mod change_rate;
pub mod scheduler;

#[cfg(test)]
mod random;
