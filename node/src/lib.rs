//! One store as a server.

pub mod cycle;
