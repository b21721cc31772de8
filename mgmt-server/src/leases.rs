//! Who reads which old generation, and until when. Kept in memory only.
//!
//! After a restart every kept generation counts as leased for one period, because any lease given before ends within
//! that time. A client counts its lease from the moment it asked, the server from the moment it answered: so clocks need not
//! agree, only run equally fast.

use std::collections::BTreeMap;

/// Leases on generations.
#[derive(Clone, Debug)]
pub struct Leases {
    period_ms: u64,
    /// Until then everything counts as leased.
    grace_ms: u64,
    next: u64,
    leases: BTreeMap<u64, (u64, u64)>,
}

/// At most so many leases at a time.
pub const LEASES_MAX: usize = 100_000;

impl Leases {
    /// None yet, at a start at `now_ms`.
    pub fn new(now_ms: u64, period_ms: u64) -> Self {
        Leases {
            period_ms,
            grace_ms: now_ms.saturating_add(period_ms),
            next: now_ms << 16,
            leases: BTreeMap::new(),
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
    }

    /// Whether anybody may hold this generation.
    pub(crate) fn holds(&self, now_ms: u64, generation: u64) -> bool {
        now_ms <= self.grace_ms || self.leases.values().any(|(g, until)| *g == generation && *until >= now_ms)
    }
}
