//! Importance and usefulness by several processes, each owning a slice of the pages.
//!
//! ```text
//!                     task, rows, values                                       Sweep, values of others' pages
//!   coordinator ──────────────────────────▶ worker      then      coordinator ──────────────────────────────▶ worker      again and again
//!               ◀──────────────────────────                                   ◀──────────────────────────────
//!                           Ready                                              Swept, values that others need
//! ```
//!
//! It is a star: a worker talks to the coordinator alone, answers one message with one, and begins nothing itself; so nobody
//! can wait in a ring. Everything goes over a control call of the project's own wire. The coordinator has the graph: it
//! knows which values of others each slice needs (`cut.rs`), and keeps the newest of them.
//!
//! In lock-step ([`Pace::LockStep`]) a round is one sweep of everybody. Every page is computed from the values of the round before,
//! and sums are added in the order of the workers: it is power iteration, and timing changes no bit.
//!
//! In their own time ([`Pace::Chaotic`]) workers don't wait for each other: who has swept sweeps again, with whatever values the
//! others have reached, and each page is computed from the newest values of its own slice. When little changes any more, rounds
//! in lock-step confirm it; only they say that it has converged.
//!
//! What is iterated is x_i = a·w_i·Σ_j v_j·x_j + b·o_i, the sum over a row: for importance v is 1/outdeg, w is 1, o is E; for
//! usefulness o is (1−c)·I where a page is of interest.
//!
//! | | a | b |
//! |---|---|---|
//! | importance, r in every step | c/λ | (1−c)/λ |
//! | importance, spread: in lock-step | c | \|x\|₁ − c·linked |
//! | importance, spread: in their own time | c | 1−c |
//! | usefulness | c | 1 |
//!
//! λ = c·ρ + (1−c) is 1/r, where ρ = linked/\|x\|₁ is the part that pages with links have. E is not multiplied by \|x\|₁: summing shows
//! that then \|x\|₁ goes to 1, whatever it was, its error times cρ/(cρ+1−c) a round, so that the scale of the vector cannot wear
//! off where everybody computes with other workers' sums of long ago.

mod chaotic;
mod coordinator;
mod cut;
mod hand;
mod message;
mod problem;
mod server;
mod slice;
#[cfg(test)]
mod tests;

use webbase_node::NodeError;

pub use coordinator::{Pace, Worked, solve};
pub use problem::Problem;
pub use server::Worker;

use super::ImportanceError;

/// What can go wrong with workers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkersError {
    /// What is asked makes no sense.
    #[error(transparent)]
    Importance(#[from] ImportanceError),
    /// There is nobody to do it.
    #[error("there are no workers")]
    Nobody,
    /// A worker cannot listen.
    #[error("a worker cannot listen")]
    Listen(#[source] NodeError),
    /// A worker cannot be reached, or has gone.
    #[error("worker {worker} cannot be reached or has gone")]
    Wire {
        /// Which, from 0.
        worker: usize,
        /// What the wire says.
        source: NodeError,
    },
    /// A worker has failed, or says something that makes no sense.
    #[error("worker {worker}: {what}")]
    Worker {
        /// Which, from 0.
        worker: usize,
        /// What.
        what: String,
    },
    /// The computation itself was given up, or has panicked.
    #[error("the computation was given up: {0}")]
    Task(String),
}
