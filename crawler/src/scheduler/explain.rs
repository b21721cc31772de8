//! Why a page is due when, which are due soonest, and how fresh all of them are.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::page::{EXPIRED, ISSUED, Kind, TOLD, WANTED};
use super::plan::DAY_S;
use super::policy::Policy;
use super::running::Scheduler;

/// Pages looked at, at most, to say how fresh all are.
const SAMPLE: usize = 1 << 16;

/// Why a page is due when.
#[derive(Clone, PartialEq, Debug)]
pub struct Explanation {
    /// When it is due, seconds since 1970; `None`: not by itself.
    pub due_s: Option<u64>,
    /// What decides.
    pub reason: Reason,
    /// Its weight with χ and its kind's factor.
    pub weight: f64,
    /// Changes a day.
    pub rate: f64,
    /// Reads a day at the present price.
    pub frequency: f64,
    /// The present price of a read, in the policy's own measure.
    pub price: f64,
}

/// What decides when a page is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Somebody wants it now.
    Wanted,
    /// It is on the repository's due list.
    Expired,
    /// It was never read, and waits for its turn by importance.
    Unread,
    /// It is being read.
    Issued,
    /// It has a fixed refresh.
    Fixed,
    /// Its site says that it has changed.
    Told,
    /// The policy.
    Policy,
    /// The policy would read it later or never, but nobody waits longer than this.
    LongestWait,
    /// The policy would read it sooner, but nobody is read twice in a cycle.
    Cycle,
    /// Somebody said never.
    Never,
    /// It is gone from the web.
    Dead,
}

impl Reason {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Wanted => "somebody wants it now",
            Reason::Expired => "its time in the repository is over",
            Reason::Unread => "never read: when its turn comes by importance",
            Reason::Issued => "being read",
            Reason::Fixed => "a fixed refresh",
            Reason::Told => "its site says that it changed",
            Reason::Policy => "the policy",
            Reason::LongestWait => "the longest wait: the policy would read it later or never",
            Reason::Cycle => "the refresh cycle: the policy would read it sooner",
            Reason::Never => "never: somebody said so",
            Reason::Dead => "never: it is gone",
        }
    }
}

impl Scheduler {
    /// When a page is due, and why then.
    pub fn explain(&self, page: u32) -> Option<Explanation> {
        self.explain_at(page, self.prices(), &self.factors())
    }

    /// When pages are due at the present prices: they are found once, for any number of pages.
    pub(super) fn due_times(&self) -> DueTimes<'_> {
        DueTimes { scheduler: self, prices: self.prices(), factors: self.factors() }
    }

    pub(super) fn explain_at(
        &self,
        page: u32,
        prices: (f64, f64),
        factors: &[f64; Kind::COUNT],
    ) -> Option<Explanation> {
        let hot = *self.page(page)?;
        let kind = hot.kind();
        let weight = hot.weight() * factors.get(kind as usize).copied().unwrap_or(1.0);
        let price = if kind.is_xml() { prices.0 } else { prices.1 };
        let at = |days: f64| {
            let due = days.is_finite().then(|| u64::from(hot.last_read_s) + (days * DAY_S) as u64);
            due.filter(|_| hot.last_read_s > 0)
        };
        let wanted = if price > 0.0 {
            self.settings.policy.frequency(weight, hot.rate(), price)
        } else {
            f64::INFINITY
        };
        let (cycle, longest) =
            (self.settings.cycle_days(), self.longest_wait_days().unwrap_or(f64::INFINITY));
        let by_policy = match 1.0 / wanted {
            days if days < cycle => (cycle, Reason::Cycle),
            days if days > longest => (longest, Reason::LongestWait),
            days => (days, Reason::Policy),
        };
        let (days, reason) = if hot.has(ISSUED) {
            (f64::INFINITY, Reason::Issued)
        } else if hot.has(WANTED) {
            (0.0, Reason::Wanted)
        } else if kind == Kind::Dead {
            (f64::INFINITY, Reason::Dead)
        } else if hot.is_never() {
            (f64::INFINITY, Reason::Never)
        } else if hot.last_read_s == 0 {
            (f64::INFINITY, Reason::Unread)
        } else if hot.has(EXPIRED) {
            (0.0, Reason::Expired)
        } else if hot.is_fixed() {
            ((1.0 / hot.rate()).max(cycle), Reason::Fixed)
        } else if hot.has(TOLD) {
            (cycle, Reason::Told)
        } else {
            by_policy
        };
        let frequency = if days.is_finite() && days > 0.0 { 1.0 / days } else { 0.0 };
        Some(Explanation { due_s: at(days), reason, weight, rate: hot.rate(), frequency, price })
    }

    /// The pages that are due soonest, at most so many: what somebody wants first, and what was never read last.
    pub fn soonest(&self, count: usize) -> Vec<u32> {
        let due = self.due_times();
        let mut soonest: BinaryHeap<(u64, Reverse<u32>, u32)> = BinaryHeap::new();
        for page in 0..self.pages.len() as u32 {
            let Some(found) = due.explain(page) else { continue };
            let when = match found.reason {
                Reason::Wanted | Reason::Expired => Some(0),
                Reason::Unread => Some(u64::MAX),
                _ => found.due_s,
            };
            // Of pages that are due at the same time the heavier come first; weights are not below 0, so their bits are in order.
            let weight = (found.weight as f32).to_bits();
            if let Some(when) = when {
                soonest.push((when, Reverse(weight), page));
                if soonest.len() > count {
                    soonest.pop();
                }
            }
        }
        soonest.into_sorted_vec().into_iter().map(|(_, _, page)| page).collect()
    }

    /// The share of the pages that were read which is expected to be as it was read, going by their change rates.
    pub fn freshness(&self, now_s: u32) -> Option<f64> {
        let step = (self.pages.len() / SAMPLE).max(1);
        let read = self.pages.iter().step_by(step).filter(|hot| hot.is_kept());
        let (fresh, count) = read.fold((0.0, 0_u64), |(fresh, count), hot| {
            let days = f64::from(now_s.saturating_sub(hot.last_read_s)) / DAY_S;
            (fresh + (-hot.change_rate() * days).exp(), count + 1)
        });
        (count > 0).then(|| fresh / count as f64)
    }
}

pub(super) struct DueTimes<'a> {
    scheduler: &'a Scheduler,
    prices: (f64, f64),
    factors: [f64; Kind::COUNT],
}

impl DueTimes<'_> {
    fn explain(&self, page: u32) -> Option<Explanation> {
        self.scheduler.explain_at(page, self.prices, &self.factors)
    }

    pub(super) fn of(&self, page: u32) -> Option<u64> {
        self.explain(page)?.due_s
    }
}
