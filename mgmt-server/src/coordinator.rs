//! The machine of the management server.
//!
//! ```text
//!   report, operator, tick ──▶ views, requests ──▶ decide ──▶ Persist(state') ──▶ Persisted ──▶ state = state'
//!                                                    ▲                                             │
//!                                                    └── commands: what each node is told ◀────────┘
//! ```
//!
//! 1. `state` is what is on disk. One decision at a time is on its way there; nothing is told or answered from it before.
//! 2. What a node is told follows from `state` and its last report, and is told again until a report shows it done.
//! 3. Views, leases, requests and times are in memory only: losing them costs time, never pages.

use std::collections::BTreeMap;

use webbase_node::cycle::RangeSet;
use webbase_node::cycle::message::{
    Failure, NodeId, ReadReport, Removal, SeenAgain, Ticket, ToManagement, ToNode, UpdateReport,
};

use webbase_node::plan::Index;
use webbase_storage::PageKey;

use crate::outcome::Tally;
use crate::placement::Holding;
use crate::{Leases, Load, Loads, State};

/// Times and limits.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// A node not heard of for so long is declared down. A source that goes on failing for longer is left out of a cycle.
    pub down_after_ms: u64,
    /// What a report does not show as done is told again after this.
    pub resend_ms: u64,
    /// How long a lease lasts.
    pub lease_ms: u64,
    /// A cycle goes on without update nodes that have not sealed after this.
    pub seal_limit_ms: u64,
    /// An attempt to prepare ends after this: with a commit if every range has a prepared replica, else with an abort.
    pub prepare_limit_ms: u64,
    /// A cycle waits so long, at most, for its prepared nodes to switch, before it ends without them.
    pub switch_limit_ms: u64,
    /// A cycle waits so long, at most, for moves and for being possible.
    pub begin_limit_ms: u64,
    /// A replacement waits so long, at most, for its new node.
    pub replace_limit_ms: u64,
    /// A cycle has at most this many attempts.
    pub attempts_max: u32,
    /// So many commits may wait for replicas that are down; then a cycle is refused until those return or are removed.
    pub unconfirmed_max: usize,
    /// The most removals and new deadlines that one cycle takes; the rest waits.
    pub changes_max: usize,
    /// The most operator requests that wait.
    pub requests_max: usize,
    /// Incremental update: a cycle begins by itself when a node's open epoch holds so much,
    pub fold_bytes: u64,
    /// or when so long after the last one there is anything to bring into the next generation.
    pub fold_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            down_after_ms: 5_000,
            resend_ms: 2_000,
            lease_ms: 60_000,
            seal_limit_ms: 60_000,
            prepare_limit_ms: 24 * 3600 * 1000,
            switch_limit_ms: 60_000,
            begin_limit_ms: 600_000,
            replace_limit_ms: 600_000,
            attempts_max: 8,
            unconfirmed_max: 64,
            changes_max: 1_000_000,
            requests_max: 64,
            fold_bytes: 256 << 20,
            fold_ms: 60_000,
        }
    }
}

/// What an operator or the crawler wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Begin a cycle, when it can be.
    StartCycle,
    /// Abort the running cycle, if it is not committed.
    AbortCycle,
    /// Move everything off a node, then remove it.
    Drain(NodeId),
    /// A node that is down will not return: its ranges are given to others.
    RemoveLost(NodeId),
    /// As [`Command::RemoveLost`], but a new node, with the same roles, takes exactly its places. To be said before the new
    /// one starts.
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
}

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done, or on its way for good.
    Done,
    /// The cycle has begun.
    CycleBegun(u64),
    /// Done; but these pages, seen again, are removed by the running cycle.
    Late(Vec<PageKey>),
}

/// Why a command or request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is one.
    #[error("cycle {cycle} is running")]
    CycleRunning {
        /// Its number.
        cycle: u64,
    },
    /// There is none that could be aborted.
    #[error("no cycle is running, or it is committed already")]
    NoCycle,
    /// It could not begin in time.
    #[error("the cycle could not begin: {why}")]
    CannotBegin {
        /// What was missing.
        why: String,
    },
    /// Not in the table.
    #[error("node {:016x} is not in the table", node.0)]
    UnknownNode {
        /// Which.
        node: NodeId,
    },
    /// It is alive.
    #[error("node {:016x} is not down", node.0)]
    NotDown {
        /// Which.
        node: NodeId,
    },
    /// Nobody would be left.
    #[error("node {:016x} is the last of its role", node.0)]
    LastNode {
        /// Which.
        node: NodeId,
    },
    /// A replacement has to be new.
    #[error("node {:016x} is or was in the table already; a replacement has to be a new node", node.0)]
    NotNew {
        /// Which.
        node: NodeId,
    },
    /// A replacement has to have the same roles. It is let in all the same, with places of its own.
    #[error("node {:016x} has not the roles of node {:016x}, so it cannot take its places", new.0, old.0)]
    OtherRoles {
        /// The lost node.
        old: NodeId,
        /// The new one.
        new: NodeId,
    },
    /// The new node did not come.
    #[error("node {:016x} did not report within {} s; start it, and say again what it replaces", node.0, limit_ms / 1000)]
    NeverCame {
        /// Which.
        node: NodeId,
        /// How long it was waited for.
        limit_ms: u64,
    },
    /// The generation is gone, or is about to go.
    #[error("generation {generation} is not kept")]
    NotKept {
        /// Which.
        generation: u64,
    },
    /// No such index.
    #[error("no index {name:?} is published")]
    NoIndex {
        /// Which.
        name: String,
    },
    /// A newer one is there.
    #[error("index {name:?} is published of generation {generation} already")]
    OlderIndex {
        /// Which.
        name: String,
        /// Of what.
        generation: u64,
    },
    /// A text is none, or is too long.
    #[error("a name of 1 to {max} bytes is needed, and a place of at most {max}")]
    TooLong {
        /// The limit.
        max: usize,
    },
    /// A limit is reached.
    #[error("at most {max} at a time")]
    TooMany {
        /// The limit.
        max: usize,
    },
}

/// What happens to the management server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A node says.
    Message(NodeId, ToManagement),
    /// The state is on disk.
    Persisted(u64),
    /// Somebody wants something; the answer carries the number.
    Request(u64, Command),
    /// Time passes; several times a second.
    Tick,
}

/// What the management server wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Tell a node.
    Send(NodeId, ToNode),
    /// Put this on disk, then say [`Event::Persisted`] with the number.
    Persist(u64, Box<State>),
    /// Answer a request.
    Answer(u64, Result<Answer, Refusal>),
}

/// What is known of a node, from its last report.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub(crate) heard_ms: u64,
    pub(crate) boot: u64,
    pub(crate) sequence: u64,
    pub(crate) welcomed: bool,
    /// Its update side.
    pub update: Option<UpdateReport>,
    /// Its read side.
    pub read: Option<ReadReport>,
    /// What it was told last, and when: read side, update side, releases, welcome, what it serves live.
    pub(crate) told: [Option<(ToNode, u64)>; 5],
    /// Why it last could not catch up.
    pub catch_up_failure: Option<Failure>,
}

impl View {
    /// What it can serve of a generation; everything, if that is 0, which is empty.
    fn serves(&self, generation: u64) -> Option<Served<'_>> {
        let read = self.read.as_ref().filter(|read| generation <= read.current)?;
        match generation {
            0 => Some(Served::All),
            _ => read.kept.iter().find(|(g, _)| *g == generation).map(|(_, ranges)| Served::Only(ranges)),
        }
    }

    /// Whether it can serve all of these ranges of this generation.
    pub fn has_all(&self, generation: u64, ranges: &RangeSet) -> bool {
        match self.serves(generation) {
            None => ranges.is_empty(),
            Some(Served::All) => true,
            Some(Served::Only(kept)) => ranges.is_subset(kept),
        }
    }

    /// Those of these ranges that it can serve in this generation.
    pub fn part(&self, generation: u64, ranges: &RangeSet) -> RangeSet {
        match self.serves(generation) {
            None => RangeSet::new(),
            Some(Served::All) => ranges.clone(),
            Some(Served::Only(kept)) => ranges.intersection(kept),
        }
    }

    /// Whether it can serve this range of this generation.
    pub fn has(&self, generation: u64, range: u32) -> bool {
        match self.serves(generation) {
            None => false,
            Some(Served::All) => true,
            Some(Served::Only(kept)) => kept.contains(range),
        }
    }
}

enum Served<'a> {
    All,
    Only(&'a RangeSet),
}

pub(crate) struct Waiting {
    pub(crate) id: u64,
    pub(crate) command: Command,
    pub(crate) since_ms: u64,
}

/// A decision on its way to disk.
struct Pending {
    sequence: u64,
    state: State,
    answers: Vec<(u64, Result<Answer, Refusal>)>,
}

/// The management server.
pub struct Coordinator {
    pub(crate) settings: Settings,
    pub(crate) state: State,
    pub(crate) views: BTreeMap<NodeId, View>,
    pub(crate) leases: Leases,
    pub(crate) waiting: Vec<Waiting>,
    /// When the cycle's phase or attempt began, as far as this server knows.
    pub(crate) phase_ms: u64,
    /// When each source first and last failed in the running attempt.
    pub(crate) source_failures: BTreeMap<NodeId, (u64, u64)>,
    pub(crate) no_space: Option<NodeId>,
    pub(crate) tally: Tally,
    /// Each node's ranges, by the placement.
    pub(crate) holdings: BTreeMap<NodeId, Holding>,
    /// The ranges that each node is whole in, with incremental update.
    pub(crate) whole: BTreeMap<NodeId, RangeSet>,
    /// How busy nodes are.
    pub(crate) loads: Loads,
    /// When the last cycle ended, and whether without a commit.
    pub(crate) ended_ms: u64,
    pub(crate) aborted_last: bool,
    /// Since when a cycle is to begin by itself.
    pub(crate) fold_since_ms: Option<u64>,
    pending: Option<Pending>,
    sequence: u64,
}

/// A state to be made durable, and what can be answered then.
pub(crate) struct Decision {
    pub(crate) state: State,
    pub(crate) answers: Vec<(u64, Result<Answer, Refusal>)>,
}

impl From<State> for Decision {
    fn from(state: State) -> Self {
        Decision { state, answers: Vec::new() }
    }
}

impl Coordinator {
    /// Starts with what is on disk.
    pub fn start(now_ms: u64, state: State, settings: Settings) -> Self {
        let views = state.nodes.keys().map(|n| (*n, View { heard_ms: now_ms, ..View::default() })).collect();
        let holdings = state.placement.read.by_node();
        let whole = state.live.as_ref().map(crate::Live::by_node).unwrap_or_default();
        let leases = Leases::new(now_ms, settings.lease_ms, state.committed);
        Coordinator {
            settings,
            state,
            views,
            leases,
            waiting: Vec::new(),
            phase_ms: now_ms,
            source_failures: BTreeMap::new(),
            no_space: None,
            tally: Tally::start(now_ms),
            holdings,
            whole,
            loads: Loads::default(),
            ended_ms: now_ms,
            aborted_last: false,
            fold_since_ms: None,
            pending: None,
            sequence: 0,
        }
    }

    /// What is on disk.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What is known of the nodes.
    pub fn views(&self) -> &BTreeMap<NodeId, View> {
        &self.views
    }

    /// Who reads what.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// How busy nodes are.
    pub fn loads(&self) -> &Loads {
        &self.loads
    }

    /// Takes note of how busy a node is.
    pub fn note_load(&mut self, node: NodeId, load: Load) {
        self.loads.note(node, load);
    }

    /// The state that is on its way to disk, if any.
    pub(crate) fn pending_state(&self) -> Option<&State> {
        self.pending.as_ref().map(|p| &p.state)
    }

    /// Takes an event.
    pub fn on(&mut self, now_ms: u64, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Message(node, message) => {
                let changed = self.on_message(now_ms, node, message, &mut actions);
                if changed {
                    self.decide(now_ms, &mut actions);
                }
                self.tell(now_ms, node, &mut actions);
                return actions;
            }
            Event::Persisted(sequence) => self.on_persisted(now_ms, sequence, &mut actions),
            Event::Request(id, command) => {
                if self.waiting.len() >= self.settings.requests_max {
                    actions
                        .push(Action::Answer(id, Err(Refusal::TooMany { max: self.settings.requests_max })));
                } else {
                    self.waiting.push(Waiting { id, command, since_ms: now_ms });
                }
            }
            Event::Tick => {
                self.leases.expire(now_ms);
                self.expire_replacements(now_ms, &mut actions);
            }
        }
        self.decide(now_ms, &mut actions);
        self.tell_all(now_ms, &mut actions);
        actions
    }

    /// Says whether anything but the time changed.
    fn on_message(
        &mut self,
        now_ms: u64,
        from: NodeId,
        message: ToManagement,
        actions: &mut Vec<Action>,
    ) -> bool {
        if self.state.removed.contains(&from) {
            actions.push(Action::Send(from, ToNode::Dismissed));
            return false;
        }
        match message {
            ToManagement::Report { boot, sequence, welcomed, update, read } => {
                let view = self.views.entry(from).or_default();
                if (boot, sequence) <= (view.boot, view.sequence) {
                    return false;
                }
                let was_down = self.state.nodes.get(&from).is_none_or(|n| n.down);
                let changed = was_down || view.update != update || view.read != read || view.boot != boot;
                (view.heard_ms, view.boot, view.sequence) = (now_ms, boot, sequence);
                (view.welcomed, view.update, view.read) = (welcomed, update, read);
                self.note_moved(from);
                changed
            }
            ToManagement::PrepareFailed { ticket, why } => {
                self.on_prepare_failed(now_ms, from, ticket, &why);
                true
            }
            ToManagement::CatchUpFailed { why, .. } => {
                if let Some(view) = self.views.get_mut(&from) {
                    view.catch_up_failure = Some(why);
                }
                false
            }
        }
    }

    fn on_prepare_failed(&mut self, now_ms: u64, from: NodeId, ticket: Ticket, why: &Failure) {
        if self.state.ticket() != Some(ticket) {
            return;
        }
        match why {
            Failure::NoSpace { .. } => self.no_space = Some(from),
            Failure::SourceFailed(source) => {
                self.source_failures.entry(*source).or_insert((now_ms, now_ms)).1 = now_ms;
            }
            // The node tries again when told again, until the attempt's time is over.
            Failure::Disk(_) => {}
        }
    }

    fn on_persisted(&mut self, now_ms: u64, sequence: u64, actions: &mut Vec<Action>) {
        if self.pending.as_ref().is_none_or(|p| p.sequence != sequence) {
            return;
        }
        let Some(pending) = self.pending.take() else { return };
        let before = std::mem::replace(&mut self.state, pending.state);
        self.note_decision(now_ms, &before, !pending.answers.is_empty());
        let phase = |s: &State| s.cycle.as_ref().map(|c| (c.cycle, c.phase.clone()));
        if phase(&before) != phase(&self.state) {
            self.phase_ms = now_ms;
            self.source_failures.clear();
            self.no_space = None;
        }
        if before.cycle.is_some() && self.state.cycle.is_none() {
            self.ended_ms = now_ms;
            let committed = before.cycle.as_ref().map_or(0, |c| c.target);
            self.aborted_last = self.state.committed < committed;
        }
        if before.live != self.state.live {
            self.whole = self.state.live.as_ref().map(crate::Live::by_node).unwrap_or_default();
        }
        if before.serving != self.state.serving {
            self.leases.linger(now_ms, before.serving);
        }
        if before.placement.version != self.state.placement.version {
            self.holdings = self.state.placement.read.by_node();
        }
        let removed = &self.state.removed;
        self.views.retain(|node, _| !removed.contains(node));
        removed.iter().for_each(|node| self.loads.forget(*node));
        actions.extend(pending.answers.into_iter().map(|(id, answer)| Action::Answer(id, answer)));
    }

    /// Makes the next decision, if none is on its way.
    fn decide(&mut self, now_ms: u64, actions: &mut Vec<Action>) {
        if self.pending.is_some() {
            return;
        }
        let decision = self
            .decide_liveness(now_ms)
            .or_else(|| self.decide_cycle(now_ms, actions))
            .or_else(|| self.decide_serving())
            .or_else(|| self.decide_whole())
            .or_else(|| self.decide_confirmed())
            .or_else(|| self.decide_releases(now_ms))
            .or_else(|| self.decide_indexes(actions))
            .or_else(|| self.decide_lists(actions))
            .or_else(|| self.decide_membership(actions))
            .or_else(|| self.decide_begin(now_ms, actions));
        if let Some(Decision { state, answers }) = decision {
            self.sequence += 1;
            actions.push(Action::Persist(self.sequence, Box::new(state.clone())));
            self.pending = Some(Pending { sequence: self.sequence, state, answers });
        }
    }

    /// Whether a node is in the table, not declared down, and has reported since this server started.
    pub(crate) fn is_live(&self, node: NodeId) -> bool {
        self.state.nodes.get(&node).is_some_and(|n| !n.down)
            && self.views.get(&node).is_some_and(|v| v.boot != 0)
    }

    /// The view of a live node.
    pub(crate) fn live(&self, node: NodeId) -> Option<&View> {
        self.views.get(&node).filter(|_| self.is_live(node))
    }
}
