//! The wire protocol of nodes and management servers; `PROTOCOL.md` tells it whole.
//!
//! A connection carries *calls*, opened by the dialing side. A call has a number and a request; then data flows in either
//! direction, each under credits in bytes, until both directions have ended, or there is an error, or it is cancelled.
//! This one shape is a lookup (request, one answer), a stream (request, many), an add (many, answers between) and a
//! control call (messages both ways).

mod check;
pub(crate) mod door;
pub(crate) mod driver;
pub mod frame;
pub(crate) mod handshake;
pub(crate) mod link;
pub mod message;
pub(crate) mod mux;
pub mod pages;
pub(crate) mod pool;
pub mod ranges;
pub(crate) mod records;
pub(crate) mod rotation;
pub(crate) mod shelf;
pub mod spec;

pub use mux::Limits;
