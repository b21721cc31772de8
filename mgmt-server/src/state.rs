//! What the management server has on disk: one [`State`], replaced as a whole with each decision.
//!
//! Everything that nodes are told follows from it and from what they report, so a restarted server asks nobody: it
//! goes on from here.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use webbase_node::cycle::RangeMap;
use webbase_node::cycle::message::{Changes, EpochSource, NodeId, Removal, SeenAgain, Ticket};
use webbase_node::plan::{Index, Update};

use crate::{Live, Placement};

/// The version of [`State`]'s form.
pub const STATE_VERSION: u32 = 2;

/// An update node's part of a node's entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateEntry {
    /// Its epochs up to this one are in committed generations. They are never asked for again.
    pub included_through: u64,
    /// The last committed cycle that took its epochs: whatever it still has was stamped in that cycle, the one before, or later.
    pub passed_cycle: u64,
    /// Its epochs up to this one are confirmed by every replica: they may be dropped.
    pub free_through: u64,
}

/// A node of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEntry {
    /// Whether it has the read role.
    pub read: bool,
    /// The update role.
    pub update: Option<UpdateEntry>,
    /// Declared down.
    pub down: bool,
    /// To be removed when nothing depends on it any more.
    pub leaving: bool,
}

/// How far a cycle is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CyclePhase {
    /// Update nodes seal their epochs.
    Sealing,
    /// Read nodes prepare, under this attempt, from these sources: durable before the first node hears of it, because
    /// all that is prepared under one ticket must be the same.
    Preparing {
        /// The try.
        attempt: u32,
        /// What goes in.
        sources: Vec<EpochSource>,
    },
    /// Committed: the nodes that prepared move to it.
    Switching,
}

/// The running cycle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cycle {
    /// Its number.
    pub cycle: u64,
    /// The generation it builds on.
    pub base: u64,
    /// The generation it makes.
    pub target: u64,
    /// The placement it is bound to: there is no other while it runs.
    pub placement_version: u64,
    /// What it changes beside bringing pages.
    pub changes: Changes,
    /// How far it is.
    pub phase: CyclePhase,
}

/// What decides that a generation is committed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitRecord {
    /// The generation.
    pub generation: u64,
    /// What it was built on.
    pub base: u64,
    /// The try that made it.
    pub ticket: Ticket,
    /// The placement it was made for.
    pub placement_version: u64,
    /// What went in.
    pub sources: Vec<EpochSource>,
    /// What else changed.
    pub changes: Changes,
    /// Who had prepared it.
    pub prepared: Vec<NodeId>,
    /// Every replica has it: the epochs are not needed any more.
    pub confirmed: bool,
}

/// A page on the due list that the crawler has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DuePage {
    /// The page, in the version that is due.
    pub page: Removal,
    /// The newest cycle when the list was given out.
    pub given_cycle: u64,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// [`STATE_VERSION`].
    pub version: u32,
    /// Who has what.
    pub placement: Placement,
    /// Grows whenever plans change: with the placement, and when a node is declared down or up.
    pub plan_version: u64,
    /// The nodes.
    pub nodes: BTreeMap<NodeId, NodeEntry>,
    /// Nodes that were removed; they are not let in again.
    pub removed: BTreeSet<NodeId>,
    /// The newest cycle begun. Numbers are not used twice.
    pub last_cycle: u64,
    /// The running one.
    pub cycle: Option<Cycle>,
    /// The committed generation.
    pub committed: u64,
    /// The one that plans name: the committed one once every range has a replica that moved to it. Never goes back.
    pub serving: u64,
    /// Generations that are kept, ascending; the last is the committed one.
    pub kept: Vec<u64>,
    /// Records of the committed generation and of all that are not confirmed, ascending.
    pub commits: Vec<CommitRecord>,
    /// Pages to remove in the next cycle.
    pub removals: Vec<Removal>,
    /// New deadlines for the next cycle.
    pub seen: Vec<SeenAgain>,
    /// What the crawler was asked to look at.
    pub due: Vec<DuePage>,
    /// Indexes that are published.
    pub indexes: Vec<Index>,
    /// With incremental update, who may serve what.
    pub live: Option<Live>,
}

impl State {
    /// An empty repository.
    pub fn new(map: RangeMap, replicas: u32, update: Update) -> Self {
        State {
            version: STATE_VERSION,
            placement: Placement::new(map, replicas),
            plan_version: 0,
            nodes: BTreeMap::new(),
            removed: BTreeSet::new(),
            last_cycle: 0,
            cycle: None,
            committed: 0,
            serving: 0,
            kept: vec![0],
            commits: Vec::new(),
            removals: Vec::new(),
            seen: Vec::new(),
            due: Vec::new(),
            indexes: Vec::new(),
            live: (update == Update::Incremental).then(|| Live::new(map.count())),
        }
    }

    /// The ticket under which nodes prepare now.
    pub fn ticket(&self) -> Option<Ticket> {
        let cycle = self.cycle.as_ref()?;
        match cycle.phase {
            CyclePhase::Preparing { attempt, .. } => Some(Ticket { cycle: cycle.cycle, attempt }),
            _ => None,
        }
    }

    /// The ticket that made the committed generation; that of generation 0 is no cycle's.
    pub fn committed_ticket(&self) -> Ticket {
        self.commits.last().map_or(Ticket { cycle: 0, attempt: 0 }, |c| c.ticket)
    }

    /// Tombstones of cycles up to this one have nothing left to stop: every update node has passed a cycle so much later
    /// that it has taken only adds stamped after them since. With incremental update readers see epochs until they are
    /// dropped, so what is in epochs that are not confirmed has to be stopped as long.
    pub fn forget_through(&self) -> u64 {
        let passed = self.nodes.values().filter_map(|n| n.update.as_ref()).map(|u| u.passed_cycle).min();
        let shown = self.commits.iter().find(|c| self.live.is_some() && !c.confirmed).map(|c| c.ticket.cycle);
        passed.unwrap_or(0).min(shown.unwrap_or(u64::MAX)).saturating_sub(2)
    }
}
