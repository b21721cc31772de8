//! Who reads which old generation, and until when. Kept in memory only.
//!
//! After a restart every generation there was counts as leased for one period, because any lease given before ends within
//! that time. And when readers are sent to a new generation, the one before stays for a moment: who looks pages up with a plan
//! and no lease gets the next plan in that time, and never meets a node that refuses. A client counts its lease from the moment it asked, the server from the moment it answered: so clocks need not
//! agree, only run equally fast.

use std::collections::BTreeMap;

/// Leases on generations.
#[derive(Clone, Debug)]
pub struct Leases {
    period_ms: u64,
    /// Until then all generations up to one count as leased.
    grace_ms: u64,
    grace_through: u64,
    next: u64,
    leases: BTreeMap<u64, (u64, u64)>,
    /// Generations that stay for a moment without a lease, and until when.
    lingering: Vec<(u64, u64)>,
}

/// The share of a lease's period that a generation stays after readers were sent to the next: 3 s of 60 s.
const LINGER_SHARE: u64 = 20;

/// At most so many leases at a time.
pub const LEASES_MAX: usize = 100_000;

impl Leases {
    /// None yet, at a start at `now_ms`, when there were generations up to `newest`.
    pub fn new(now_ms: u64, period_ms: u64, newest: u64) -> Self {
        Leases {
            period_ms,
            grace_ms: now_ms.saturating_add(period_ms),
            grace_through: newest,
            next: now_ms << 16,
            leases: BTreeMap::new(),
            lingering: Vec::new(),
        }
    }

    /// How long a lease lasts.
    pub fn period_ms(&self) -> u64 {
        self.period_ms
    }

    /// How many are open.
    pub fn count(&self) -> usize {
        self.leases.len()
    }

    /// A new lease; `None` if there are too many.
    pub(crate) fn open(&mut self, now_ms: u64, generation: u64) -> Option<u64> {
        if self.leases.len() >= LEASES_MAX {
            return None;
        }
        self.next += 1;
        self.leases.insert(self.next, (generation, now_ms.saturating_add(self.period_ms)));
        Some(self.next)
    }

    /// Keeps a generation that readers were just sent away from.
    pub(crate) fn linger(&mut self, now_ms: u64, generation: u64) {
        self.lingering.push((generation, now_ms.saturating_add(self.period_ms / LINGER_SHARE)));
    }

    /// Goes on with a lease, also with one from before a restart; `false` if there are too many.
    pub(crate) fn renew(&mut self, now_ms: u64, id: u64, generation: u64) -> bool {
        let until = now_ms.saturating_add(self.period_ms);
        let room = self.leases.contains_key(&id) || self.leases.len() < LEASES_MAX;
        if room {
            self.leases.insert(id, (generation, until));
        }
        room
    }

    /// Ends a lease early.
    pub(crate) fn end(&mut self, id: u64) {
        self.leases.remove(&id);
    }

    /// Forgets those that are over.
    pub(crate) fn expire(&mut self, now_ms: u64) {
        self.leases.retain(|_, (_, until)| *until >= now_ms);
        self.lingering.retain(|(_, until)| *until >= now_ms);
    }

    /// Whether anybody may hold this generation.
    pub(crate) fn holds(&self, now_ms: u64, generation: u64) -> bool {
        (now_ms <= self.grace_ms && generation <= self.grace_through)
            || self
                .leases
                .values()
                .chain(&self.lingering)
                .any(|(g, until)| *g == generation && *until >= now_ms)
    }
}
