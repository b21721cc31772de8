//! What happened in a world.

/// What happened, summed over seeds: a fault that never happens proves nothing.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    pub events: u64,
    pub commits: u64,
    pub aborts: u64,
    pub attempts: u64,
    pub copies: u64,
    pub made_again: u64,
    pub kills: u64,
    pub mgmt_kills: u64,
    pub lost: u64,
    pub no_space: u64,
    pub acknowledged: u64,
    pub refused: u64,
    pub elsewhere: u64,
    pub streams: u64,
    pub reads: u64,
    pub removed_nodes: u64,
    pub removals: u64,
    pub forgotten: u64,
    pub live_reads: u64,
    pub live_refused: u64,
    pub became_whole: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.events += other.events;
        self.commits += other.commits;
        self.aborts += other.aborts;
        self.attempts += other.attempts;
        self.copies += other.copies;
        self.made_again += other.made_again;
        self.kills += other.kills;
        self.mgmt_kills += other.mgmt_kills;
        self.lost += other.lost;
        self.no_space += other.no_space;
        self.acknowledged += other.acknowledged;
        self.refused += other.refused;
        self.elsewhere += other.elsewhere;
        self.streams += other.streams;
        self.reads += other.reads;
        self.removed_nodes += other.removed_nodes;
        self.removals += other.removals;
        self.forgotten += other.forgotten;
        self.live_reads += other.live_reads;
        self.live_refused += other.live_refused;
        self.became_whole += other.became_whole;
    }

    pub fn all(&self) -> [(&'static str, u64); 21] {
        [
            ("events", self.events),
            ("commits", self.commits),
            ("aborts", self.aborts),
            ("attempts", self.attempts),
            ("copies", self.copies),
            ("made_again", self.made_again),
            ("kills", self.kills),
            ("mgmt_kills", self.mgmt_kills),
            ("lost", self.lost),
            ("no_space", self.no_space),
            ("acknowledged", self.acknowledged),
            ("refused", self.refused),
            ("elsewhere", self.elsewhere),
            ("streams", self.streams),
            ("reads", self.reads),
            ("removed_nodes", self.removed_nodes),
            ("removals", self.removals),
            ("forgotten", self.forgotten),
            ("live_reads", self.live_reads),
            ("live_refused", self.live_refused),
            ("became_whole", self.became_whole),
        ]
    }
}
