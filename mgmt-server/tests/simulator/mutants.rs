//! Deliberately broken protocols: each changes what passes between the machines and their world. The simulator has to
//! catch every one, by the invariant it is meant to break; that proves that the invariants can fail.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The management server goes on before its decision is on disk.
    CommitBeforePersist,
    /// Read nodes switch as soon as they are prepared.
    SwitchWhenPrepared,
    /// A commit is told with whatever ticket the node has prepared.
    AnyTicketWillDo,
    /// Epochs are dropped at the commit, not when everybody has confirmed it.
    DropEpochsEarly,
    /// Tombstones are forgotten with the next cycle.
    ForgetTombstones,
    /// A node that catches up gets pages, but no tombstones.
    NoTombstonesInCopies,
    /// A node that catches up gives pages the generation of the copy as their arrival.
    ArrivalOfTheCopy,
    /// A node answers with what it has, whatever generation was asked for.
    NoFencing,
    /// Nothing is reserved.
    NoReserve,
    /// A job builds on what a kill left behind.
    NoRollBack,
    /// A page is acknowledged when the first replica has it.
    AcknowledgeFirst,
    /// An update node acknowledges pages it has not written.
    AcknowledgeUnwritten,
    /// The client drops pages of a range without update nodes, and says all is well.
    DropWhenDown,
    /// Old generations go at the switch.
    ReleaseEarly,
    /// The older of two versions is taken.
    LowestVersionWins,
    /// Commits are never told.
    LoseCommits,
    /// Nodes serve what they take adds for, whether they have the rest or not.
    ServeBeforeWhole,
    /// Nodes take adds under plans however old.
    AdmitOldStamps,
}

impl Mutant {
    pub const ALL: [(Mutant, &'static str); 20] = [
        (Mutant::CommitBeforePersist, "commit_record_alone_decides"),
        (Mutant::SwitchWhenPrepared, "commit_record_alone_decides"),
        (Mutant::AnyTicketWillDo, "commit_record_alone_decides"),
        (Mutant::DropEpochsEarly, "epochs_deleted_only_when_confirmed"),
        (Mutant::ForgetTombstones, "deleted_pages_stay_deleted"),
        (Mutant::NoTombstonesInCopies, "replicas_agree"),
        (Mutant::ArrivalOfTheCopy, "stream_places_are_shared"),
        (Mutant::NoFencing, "fenced_nodes_serve_nothing_current"),
        (Mutant::NoFencing, "one_generation_per_request"),
        (Mutant::NoReserve, "space_is_reserved_first"),
        (Mutant::NoRollBack, "replicas_agree"),
        (Mutant::AcknowledgeFirst, "adds_refused_not_dropped"),
        (Mutant::AcknowledgeUnwritten, "acknowledged_pages_survive"),
        (Mutant::DropWhenDown, "adds_refused_not_dropped"),
        (Mutant::ReleaseEarly, "leases_hold_generations"),
        (Mutant::LowestVersionWins, "highest_version_wins"),
        (Mutant::LoseCommits, "cycles_end"),
        (Mutant::ServeBeforeWhole, "acknowledged_is_visible"),
        (Mutant::AdmitOldStamps, "acknowledged_is_visible"),
        (Mutant::AcknowledgeFirst, "acknowledged_is_visible"),
    ];
}
