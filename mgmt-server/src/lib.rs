//! Many nodes as one repository: who has what, who is alive, and how one generation follows another.
//!
//! [`Coordinator`] is a machine: events in, actions out, no sockets, no disk, no clock. It decides on its durable
//! [`State`] and on what nodes report; each decision is a new state, and nodes hear of it only when that is on disk.
//! `CYCLE.md` has the protocol; `tests/simulator` runs it, with the nodes' machines, through thousands of bad days.

mod commands;
mod coordinator;
mod cycle;
mod leases;
mod membership;
mod placement;
mod plan;
mod state;

pub use coordinator::{Action, Answer, Command, Coordinator, Event, Mode, Refusal, Settings, View};
pub use leases::{LEASES_MAX, Leases};
pub use placement::{Holding, Placement, Side};
pub use plan::{AddPlan, Lease, ReadPlan};
pub use state::{CommitRecord, Cycle, CyclePhase, DuePage, NodeEntry, STATE_VERSION, State, UpdateEntry};
