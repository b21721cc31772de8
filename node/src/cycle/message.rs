//! What management server and nodes say to one another about cycles. Plain types; enums only grow at their ends.
//!
//! A node sends [`ToManagement::Report`] when it starts, when something changes and as its heartbeat: it says all that
//! is. The management server answers with what it wants, and again if a later report doesn't show it. So there are no
//! separate acknowledgements.

use serde::{Deserialize, Serialize};
use webbase_storage::{PageId, PageKey, Version};

use super::RangeSet;

/// Names a node. Made at random with the node's folder: an emptied folder is another node, so a management server
/// never takes an empty disk for the one it knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u64);

/// Names one try to prepare a generation: what it is made of is fixed, and durable at the management server, before the
/// first node hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket {
    /// The cycle; never used twice.
    pub cycle: u64,
    /// The try, from 1.
    pub attempt: u32,
}

/// Sealed epochs of one update node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochSource {
    /// The update node.
    pub node: NodeId,
    /// The first epoch.
    pub from: u64,
    /// The last epoch; below `from` if there is none.
    pub through: u64,
}

/// A read node that has ranges of a generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeSource {
    /// The read node.
    pub node: NodeId,
    /// What can be had from it.
    pub ranges: RangeSet,
}

/// A page to remove, in all versions up to the bound. Leaves a tombstone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// Which page.
    #[serde(with = "KeyForm")]
    pub key: PageKey,
    /// The highest version that goes.
    #[serde(with = "VersionForm")]
    pub bound: Version,
}

/// A page visited and found unchanged, or not verifiable: it gets a new deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenAgain {
    /// Which page.
    #[serde(with = "KeyForm")]
    pub key: PageKey,
    /// When it was visited.
    pub at_ms: u64,
    /// How long it may stay from then; 0 means for ever.
    pub lifetime_s: u32,
}

/// What a cycle changes beside bringing pages. All replicas apply the same, so tombstones, too, are the same on all
/// replicas of a generation. Of one page: forgetting first, then the highest version of base and sources, then removals
/// and tombstones, then the new deadline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// The cycle, which the tombstones are of.
    pub cycle: u64,
    /// Pages to remove; each leaves a tombstone.
    pub removals: Vec<Removal>,
    /// Pages with new deadlines.
    pub seen: Vec<SeenAgain>,
    /// Tombstones of cycles up to this one are forgotten.
    pub forget_through: u64,
}

/// How a generation is prepared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepare {
    /// Which try.
    pub ticket: Ticket,
    /// The generation it builds on: the node must stand there.
    pub base: u64,
    /// The generation it makes.
    pub target: u64,
    /// What the node has of it.
    pub ranges: RangeSet,
    /// Where new pages come from.
    pub sources: Vec<EpochSource>,
    /// What else changes.
    pub changes: Changes,
}

/// How a node catches up with a committed generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recipe {
    /// From read nodes that have it.
    Exact(Vec<RangeSource>),
    /// As it was first made: nobody reachable has it, but the node stands at its base and all epochs are still there.
    Delta {
        /// The base.
        base: u64,
        /// Where the pages come from.
        sources: Vec<EpochSource>,
        /// What else changes.
        changes: Changes,
    },
}

/// From the management server to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToNode {
    /// The node is in the table. Until it hears this an update node takes no adds after a start; it refuses adds made
    /// with plans more than one cycle older than this.
    Welcome {
        /// The newest cycle begun.
        cycle: u64,
    },
    /// Update: seal for this cycle.
    Seal {
        /// The cycle.
        cycle: u64,
    },
    /// Update: these epochs are in a generation that every replica has confirmed.
    DropEpochs {
        /// Up to and with this one.
        through: u64,
    },
    /// Update: take no more adds, ever; the node is to be removed.
    Close,
    /// Read: prepare a generation.
    Prepare(Prepare),
    /// Read: this try is over. Only this one is rolled back.
    Abort {
        /// Which.
        ticket: Ticket,
    },
    /// Read: what was prepared under this ticket is committed.
    Commit {
        /// Which try.
        ticket: Ticket,
        /// The generation it made.
        generation: u64,
        /// The generations to keep.
        kept: Vec<u64>,
    },
    /// Read: get to this committed generation, with these ranges (more than now, if it stands there already).
    CatchUp {
        /// The generation.
        generation: u64,
        /// The try that made it: if the node has that prepared, it only switches.
        ticket: Ticket,
        /// What the node is to have of it.
        ranges: RangeSet,
        /// The generations to keep.
        kept: Vec<u64>,
        /// From where.
        recipe: Recipe,
    },
    /// Read: nobody holds these any more.
    Release {
        /// Old generations.
        generations: Vec<u64>,
    },
    /// The node was removed from the table, for ever: it serves and takes nothing any more.
    Dismissed,
    /// Both, with incremental update: it has all acknowledged pages of these ranges, and serves its live pages of them; of
    /// no others.
    Live {
        /// Which.
        ranges: RangeSet,
    },
}

/// Why a job ended without result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// The space could not be reserved.
    NoSpace {
        /// What was needed.
        needed_bytes: u64,
    },
    /// A source did not give what it was asked for.
    SourceFailed(NodeId),
    /// The disk failed.
    Disk(String),
}

/// What a read node is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// It prepares.
    Preparing(Ticket),
    /// It catches up.
    CatchingUp {
        /// With this generation.
        generation: u64,
    },
    /// It switches or rolls back.
    Tidying,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Undoing whatever was there.
    RollingBack,
    /// Listing sources and merging the lists.
    Listing,
    /// Reserving space.
    Reserving,
    /// Fetching and applying pages.
    Pulling,
    /// Making it durable under its name.
    Keeping,
    /// Moving to it.
    Switching,
}

/// Progress of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What.
    pub work: Work,
    /// How far.
    pub phase: Phase,
    /// Pages fetched so far; all of them when they are there.
    pub pages: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// State of a read node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadReport {
    /// The generation it stands at.
    pub current: u64,
    /// What it can serve: generations and their ranges. Generation 0 is empty and had by everybody: it is not listed.
    pub kept: Vec<(u64, RangeSet)>,
    /// What it has prepared.
    pub prepared: Option<Ticket>,
    /// What it does.
    pub progress: Option<Progress>,
    /// The ranges whose live pages it serves; see [`ToNode::Live`].
    pub live: RangeSet,
}

/// State of an update node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateReport {
    /// The oldest epoch it has.
    pub first_epoch: u64,
    /// The one that takes adds. All before it are sealed.
    pub open_epoch: u64,
    /// The last cycle it sealed for: everything added before is in epochs below the open one.
    pub sealed_cycle: u64,
    /// It takes no more adds; its open epoch is empty for ever.
    pub closed: bool,
}

/// From a node to the management server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToManagement {
    /// What is.
    Report {
        /// Grows with each start of the node.
        boot: u64,
        /// Grows with each report of a boot; an older one is ignored.
        sequence: u64,
        /// Whether it was welcomed since its start.
        welcomed: bool,
        /// The update side, if it has one.
        update: Option<UpdateReport>,
        /// The read side, if it has one.
        read: Option<ReadReport>,
    },
    /// A try to prepare failed.
    PrepareFailed {
        /// Which.
        ticket: Ticket,
        /// Why.
        why: Failure,
    },
    /// Catching up failed.
    CatchUpFailed {
        /// With which generation.
        generation: u64,
        /// Why.
        why: Failure,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "PageId")]
struct IdForm(u64);

#[derive(Serialize, Deserialize)]
#[serde(remote = "PageKey")]
struct KeyForm {
    #[serde(with = "IdForm")]
    id: PageId,
    tie: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Version")]
struct VersionForm {
    fetched_at_ms: u64,
    epoch: u32,
    digest: u64,
}
