//! Whole repositories of real processes on ports and folders of their own: what is acknowledged is found again, byte by
//! byte, whoever is killed, stopped, full, new or gone; readers see one generation, never a mix.
//!
//! One repository at a time (`Fleet` holds a lock): times are counted, and the machine is small. Every wait has a limit. What
//! the processes say is in the panic's text.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod changes;
mod damage;
mod deaths;
mod fleet;
mod live;
mod protected;
mod truth;
mod uniform;
mod watch;
mod works;
