//! Many nodes as one repository: who has what, who is alive, and how one generation follows another.
//!
//! [`Coordinator`] is a machine: events in, actions out, no sockets, no disk, no clock. It decides on its durable
//! [`State`] and on what nodes report; each decision is a new state, and nodes hear of it only when that is on disk.
//! [`ManagementServer`] runs it behind a TCP port, with its state in a [`Database`]; [`Management`] is its client.
//!
//! `CYCLE.md` has the protocol; `tests/simulator` runs it, with the nodes' machines, through thousands of bad days.

mod assigner;
mod calls;
mod commands;
mod coordinator;
mod cycle;
mod database;
mod error;
mod expiry;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod hub;
mod indexes;
mod leases;
mod live;
mod load;
mod membership;
mod outcome;
mod page_index;
mod placement;
mod plan;
mod rebuild;
mod server;
mod state;
mod status;
mod steering;

pub use coordinator::{Action, Answer, Command, Coordinator, Event, Refusal, Settings, View};
pub use database::{Change, Database, Saved};
pub use error::ServerError;
pub use indexes::INDEXES_MAX;
pub use leases::{LEASES_MAX, Leases};
pub use live::Live;
pub use load::{Load, Loads};
pub use placement::{Holding, Placement, Side};
pub use server::{ManagementServer, ServerOptions};
pub use state::{CommitRecord, Cycle, CyclePhase, DuePage, NodeEntry, STATE_VERSION, State, UpdateEntry};
pub use webbase_node::Management;
pub use webbase_node::cycle::{Distribution, RangeMap};
pub use webbase_node::plan::{AddPlan, Lease, ReadPlan, Update};
