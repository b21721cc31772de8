//! What clients ask of the management server, and what they are told: which nodes for which ranges. Pages never pass
//! through it.
//!
//! A client opens a control call with the topic [`TOPIC`] and sends one [`Ask`] at a time; each gets one [`Told`], both
//! as `wire::message` encodes them.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use webbase_storage::{PageKey, RepositoryKey, Version};

use crate::cycle::RangeMap;
use crate::cycle::message::{NodeId, Phase, Removal, SeenAgain};
use crate::wire::message::{Figures, Key};

/// Pages in one question to the index, at most.
pub const INDEX_KEYS_MAX: usize = 16 << 10;

/// The topic of clients' control calls.
pub const TOPIC: &str = "client";

/// What requests name instead of a generation to read a node's pages as they are now, those added a moment ago with them.
/// Only in repositories with [`Update::Incremental`].
pub const LIVE: u64 = u64::MAX;

/// How pages get from adds to readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Update {
    /// By cycles: readers see one generation after the other.
    #[default]
    Batch,
    /// At once: the same nodes take and serve pages, and readers see what was acknowledged. Cycles run by themselves and
    /// bring what was added into the next generation; readers do not notice.
    Incremental,
}

impl Update {
    /// Its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Update::Batch => "batch",
            Update::Incremental => "incremental",
        }
    }
}

impl std::fmt::Display for Update {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Update {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Update::Batch, Update::Incremental]
            .into_iter()
            .find(|u| u.name() == text)
            .ok_or_else(|| format!("an update is batch or incremental, found {text:?}"))
    }
}

/// What a repository is, the same for all its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repository {
    /// The key that names pages.
    pub key: [u8; 32],
    /// How the id space is cut.
    pub map: RangeMap,
    /// How pages get to readers.
    pub update: Update,
}

impl Repository {
    /// The key that names pages.
    pub fn repository_key(&self) -> RepositoryKey {
        RepositoryKey::new(self.key)
    }

    /// The range of a page.
    pub fn range_of(&self, key: PageKey, version: Version) -> u32 {
        self.map.range_of(key, version)
    }

    /// The range of a page, if its key says it; else its version or the management server's index does.
    pub fn range_of_key(&self, key: PageKey) -> Option<u32> {
        self.map.range_of_key(key)
    }
}

/// Where to add pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddPlan {
    /// The plan's version.
    pub version: u64,
    /// Stamped into the pages, and checked by update nodes.
    pub stamp: u64,
    /// For each range its update nodes without those declared down: a page is acknowledged when durable on all of
    /// these. With none, adds are refused; so they are with [`Update::Incremental`] while nobody is up who has all of the
    /// range's pages, because then nobody could show what was acknowledged.
    pub ranges: Vec<Vec<NodeId>>,
}

/// Where to read a generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadPlan {
    /// The plan's version.
    pub version: u64,
    /// The generation, to be named in every request, or [`LIVE`].
    pub generation: u64,
    /// For each range the nodes that have it, in that generation. With none, the range cannot be read now.
    pub ranges: Vec<Vec<NodeId>>,
    /// Nodes that have much more to do than the others: better asked last.
    pub busy: Vec<NodeId>,
}

/// The right to go on reading a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Names it.
    pub id: u64,
    /// The generation.
    pub generation: u64,
    /// How long it lasts, counted from the moment the client asked.
    pub period_ms: u64,
}

/// An index of one generation, made by somebody and useful only together with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    /// What readers ask for.
    pub name: String,
    /// The generation it was made of.
    pub generation: u64,
    /// Where it is, in words that its readers understand.
    pub place: String,
}

/// Where nodes listen.
pub type Addresses = Vec<(NodeId, SocketAddr)>;

/// What a client wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// What the repository is.
    Repository,
    /// Where to add pages.
    AddPlan,
    /// Where to read the current generation.
    ReadPlan,
    /// A lease on the current generation, with its plan.
    OpenLease,
    /// A lease on a generation that is kept, with its plan.
    LeaseOn {
        /// Which.
        generation: u64,
    },
    /// An index, with a lease on its generation.
    OpenIndex {
        /// Its name.
        name: String,
    },
    /// To go on with a lease, and a new plan for it.
    RenewLease {
        /// Its name.
        id: u64,
        /// Its generation.
        generation: u64,
    },
    /// A lease is not needed any more.
    EndLease {
        /// Its name.
        id: u64,
    },
    /// Begin a cycle.
    StartCycle,
    /// Abort the running cycle, if it is not committed.
    AbortCycle,
    /// Move everything off a node, then remove it.
    Drain(NodeId),
    /// A node that is down will not return.
    RemoveLost(NodeId),
    /// A node that is down will not return, and a new one takes its places.
    Replace {
        /// The lost node.
        old: NodeId,
        /// The new one.
        new: NodeId,
    },
    /// Remove these pages in the next cycle.
    Remove(Vec<Removal>),
    /// These pages are due, and the crawler was given them to look at.
    Due(Vec<Removal>),
    /// The crawler saw these again, or could not verify them (then with a short lifetime).
    Seen(Vec<SeenAgain>),
    /// An index is ready: readers get it, with its generation, from now on.
    Publish(Index),
    /// An index is not to be used any more.
    Unpublish(String),
    /// How things stand.
    Status,
    /// Under the distribution `uniform`: the ranges of pages that will be added, at most [`INDEX_KEYS_MAX`]. A page that has
    /// none gets one, for ever; that is durable before the answer.
    Assign(Vec<Key>),
    /// Under the distribution `uniform`: the ranges of pages, at most [`INDEX_KEYS_MAX`].
    Find(Vec<Key>),
    /// Under the distribution `uniform`: the pages with this id.
    FindId(u64),
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Told {
    /// What the repository is.
    Repository(Repository),
    /// Where to add pages.
    AddPlan(AddPlan, Addresses),
    /// Where to read.
    ReadPlan(ReadPlan, Addresses),
    /// A lease and where to read under it.
    Lease(Lease, ReadPlan, Addresses),
    /// An index, a lease on its generation, and where to read under it.
    Index(Index, Lease, ReadPlan, Addresses),
    /// It is done, or on its way for good.
    Done,
    /// The cycle has begun.
    CycleBegun(u64),
    /// Not so, and why.
    Refused(String),
    /// How things stand.
    Status(Box<Status>),
    /// The range of each page. To [`Ask::Find`], none says that there is no such page; to [`Ask::Assign`], that no update node
    /// is up and has room.
    Ranges(Vec<Option<u16>>),
    /// Pages and their ranges.
    Pages(Vec<(Key, u16)>),
    /// It cannot be said now, and why; asking again helps.
    NotYet(String),
    /// It is done; but these pages, seen again, are removed by the running cycle.
    Late(Vec<Key>),
}

/// How the repository stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// How pages get to readers.
    pub update: Update,
    /// The generation that readers are sent to.
    pub serving: u64,
    /// The newest committed generation.
    pub committed: u64,
    /// Generations that are kept.
    pub kept: Vec<u64>,
    /// The newest cycle begun.
    pub last_cycle: u64,
    /// The running cycle and its phase.
    pub cycle: Option<(u64, String)>,
    /// What came of the last one that ended since the management server started.
    pub outcome: Option<CycleOutcome>,
    /// The version of plans.
    pub plan_version: u64,
    /// Leases open.
    pub leases: u64,
    /// Indexes that are published.
    pub indexes: Vec<Index>,
    /// The nodes.
    pub nodes: Vec<NodeStatus>,
    /// Under the distribution `uniform`: the index of pages.
    pub page_index: Option<PageIndexStatus>,
}

/// How the index of pages stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageIndexStatus {
    /// Whether it knows every page; if not, it is being made anew from the nodes' lists.
    pub complete: bool,
    /// Pages in it.
    pub pages: u64,
    /// What it occupies on disk.
    pub disk_bytes: u64,
    /// What it occupies in memory, about.
    pub memory_bytes: u64,
}

/// What came of a cycle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CycleOutcome {
    /// Its number.
    pub cycle: u64,
    /// How it ended.
    pub end: CycleEnd,
    /// Pages that read nodes had to fetch, each replica counted.
    pub pages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// From its begin to its end, or from the management server's start if that was later.
    pub took_ms: u64,
}

/// How a cycle ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CycleEnd {
    /// With this generation.
    Committed {
        /// Its number.
        generation: u64,
    },
    /// As if it had not been: its pages wait for the next one.
    Aborted {
        /// What was in the way.
        why: String,
    },
}

impl std::fmt::Display for CycleOutcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let CycleOutcome { cycle, end, pages, bytes, took_ms } = self;
        let seconds = *took_ms as f64 / 1000.0;
        match end {
            CycleEnd::Committed { generation } => write!(
                f,
                "cycle {cycle} made generation {generation} in {seconds:.1} s: {pages} pages, {bytes} bytes moved"
            ),
            CycleEnd::Aborted { why } => write!(f, "cycle {cycle} was aborted after {seconds:.1} s: {why}"),
        }
    }
}

/// How a node stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Which.
    pub id: NodeId,
    /// Where it listens.
    pub address: Option<SocketAddr>,
    /// Whether it has the read role.
    pub read: bool,
    /// Whether it has the update role.
    pub update: bool,
    /// Idle, streaming, storing, updating or down.
    pub state: NodeState,
    /// Whether it is being drained.
    pub leaving: bool,
    /// The generation it stands at.
    pub generation: Option<u64>,
    /// The epoch that takes adds.
    pub epoch: Option<u64>,
    /// With [`Update::Incremental`]: of how many ranges it has every acknowledged page, and so serves them.
    pub whole: Option<u32>,
    /// Progress of a cycle on it: phase, pages, bytes.
    pub progress: Option<(Phase, u64, u64)>,
    /// Its store in figures, and what it has to do.
    pub figures: Option<NodeFigures>,
}

/// What a node is busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeState {
    /// Nothing.
    Idle,
    /// Sends pages to clients.
    Streaming,
    /// Takes pages.
    Storing,
    /// Has a part in a cycle, or catches up.
    Updating,
    /// Is not heard of.
    Down,
}

/// A node in figures: its space, and its outstanding requests by access mode.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeFigures {
    /// Its store.
    pub store: Figures,
    /// Adds under way.
    pub adds: u64,
    /// Streams under way.
    pub streams: u64,
    /// Lookups under way.
    pub lookups: u64,
    /// Lookups answered since its start.
    pub lookups_answered: u64,
    /// Pages that it found damaged in its stores since its start.
    pub damaged: u64,
    /// Those of them that are whole again, with what another node has.
    pub repaired: u64,
    /// Bytes of pages in the epoch that takes adds.
    pub epoch_bytes: u64,
    /// Bytes of records that streams have gone through since its start; a scan that is shared counts once.
    pub scanned_bytes: u64,
    /// Pages that streams have sent since its start.
    pub streamed_pages: u64,
}
