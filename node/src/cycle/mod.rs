//! The node's part of an update cycle, without sockets and disks.
//!
//! [`Node`] is a machine: events in, actions out. Events are messages of the management server, completions of intents, and
//! ticks; actions are messages and [`Intent`]s for the disk. Whoever runs it (the node server, or the simulator of the
//! management server's crate) delivers the ones and carries out the others. `mgmt-server/CYCLE.md` has the protocol.
//!
//! 1. The machine's picture of the disk ([`ReadDurable`], [`UpdateDurable`]) changes only when an intent has completed.
//! 2. A message says what the management server wants, a report says what is. Both are repeated, so any of them may be lost,
//!    doubled or late. A command whose ticket or generation is behind the node's is ignored.
//! 3. Every job on a read node's store begins by rolling back to the current generation, so nothing that a kill left behind
//!    is ever built on.
//! 4. What was reported prepared stays until its commit, its abort, a later ticket, or a later committed generation.

mod machine;
pub mod message;
mod ranges;
mod read_node;
mod update_node;

pub use machine::{Action, Event, Node, NodeDurable, Settings};
pub use ranges::{Distribution, RangeMap, RangeSet};
pub use read_node::{Prepared, ReadDurable, ReadNode};
pub use update_node::{AddRefusal, UpdateDurable, UpdateNode, lowest_stamp};

use message::{Changes, EpochSource, NodeId, RangeSource, Ticket};

/// Names an intent, so that a late completion of a cancelled one is known.
pub type IntentId = u64;

/// Where the pages of a pull come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PullMode {
    /// Sealed epochs of update nodes are merged into the base; see [`Changes`].
    Delta {
        /// All of these are listed, or the pull fails.
        sources: Vec<EpochSource>,
        /// What else the cycle changes.
        changes: Changes,
    },
    /// The result is what the sources have in the target generation, no more and no less: pages with their arrival
    /// generations and deadlines, and tombstones. For each range, any source that has it.
    Exact {
        /// Read nodes that have the target generation, and for which ranges.
        sources: Vec<RangeSource>,
    },
}

/// A state to bring the store to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pull {
    /// How.
    pub mode: PullMode,
    /// The generation the store stands at.
    pub base: u64,
    /// The generation to make. In exact mode it may be the base: then ranges are added to it.
    pub target: u64,
    /// The ranges the target has on this node. What lies outside of them is left out of it.
    pub ranges: RangeSet,
    /// Those of them that have to be fetched in exact mode; the others are taken from the base as they are.
    pub fetch: RangeSet,
}

/// Something to do on disk (and, for pulls, with other nodes). What each writes to the node's file is a change of the file
/// as it is then, not a copy of an earlier one: a [`Intent::Release`] runs beside the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Update: commit and close the open epoch, create the next, note the cycle. Durable at completion. A closed node only
    /// notes the cycle.
    Seal {
        /// For which cycle.
        cycle: u64,
    },
    /// Update: delete the folders of these epochs.
    DropEpochs {
        /// Up to and with this one.
        through: u64,
    },
    /// Update: take no more adds, for ever, and seal what there is.
    Close,
    /// Read: forget what was prepared (first, in the node's file), then roll the store back, and free what was reserved.
    RollBack {
        /// To this kept generation, the current one.
        to: u64,
    },
    /// Read: list the sources, merge, and find what is needed. Completes with [`Done::Listed`].
    List(Box<Pull>),
    /// Read: reserve this much space.
    Reserve {
        /// Bytes.
        bytes: u64,
    },
    /// Read: fetch and apply in order of (arrival generation, key), and commit the store.
    Pull(Box<Pull>),
    /// Read: name the store's committed state (again, if the generation exists: ranges were added), then note it in the
    /// node's file: with a ticket as prepared, without one as current; then all kept ones not in `kept` are released in
    /// the same write.
    Keep {
        /// The generation.
        generation: u64,
        /// Which ranges it has.
        ranges: RangeSet,
        /// For which cycle it was prepared.
        ticket: Option<Ticket>,
        /// Those to keep.
        kept: Vec<u64>,
    },
    /// Read: the prepared generation becomes the current one, in the node's file. All kept ones not in `kept` are released
    /// in the same write.
    SwitchTo {
        /// The generation.
        generation: u64,
        /// Those to keep.
        kept: Vec<u64>,
    },
    /// Read: let these old generations go: first from the node's file, then from the store.
    Release {
        /// Which.
        generations: Vec<u64>,
    },
}

/// How an intent ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// As asked, durably.
    Ok,
    /// A list: this will be needed.
    Listed {
        /// Pages to fetch.
        pages: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// The space is not there.
    NoSpace,
    /// A source did not answer, or no longer has what was asked of it.
    SourceFailed(NodeId),
    /// The disk failed.
    Disk(String),
    /// It was cancelled.
    Cancelled,
}
