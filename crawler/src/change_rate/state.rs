//! The evidence about one page in 16 bytes.
//!
//! ```text
//!   OFFSET  SIZE  FIELD
//!        0     4  exposure, days, f32
//!        4     4  mean of ln c over the changed intervals c, f32
//!        8     4  variance of ln c, f32
//!       12     2  events, in 1/16
//!       14     2  changed intervals, in 1/16
//! ```
//!
//! Events and exposure are sums, so nothing is lost there. Of the changed intervals only their number and the first two
//! moments of the logarithm are kept; the sum over them is then taken at three points (Gauss–Hermite), as if they were
//! log-normal: exact when all are equal; on irregular visits it stays within 5 % of the full estimate (`tests.rs`).
//!
//! When events and changed intervals together reach [`WINDOW`], everything is halved: a page's rate follows it within
//! some hundreds of changes.

use super::Prior;
use super::evidence::{maximum, pull};

/// Changes that are remembered.
const WINDOW: u32 = 512;
/// Counts are kept in sixteenths.
const UNIT: u32 = 16;

/// What one visit of a page says.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Seen {
    /// No change for so many days.
    Unchanged {
        /// Days since the last visit.
        days: f64,
    },
    /// A change within so many days.
    Changed {
        /// Days since the last visit.
        days: f64,
    },
    /// Changes at known moments, and the time in which there was no other: of a Last-Modified 1 and its age (at most the
    /// time since the last visit); of a complete list all of them and the whole time.
    Dated {
        /// How many.
        changes: u32,
        /// Days in which every change is known.
        days: f64,
    },
}

/// A page's evidence, updated in O(1).
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct RateState {
    exposure: f32,
    mean: f32,
    variance: f32,
    events: u16,
    changed: u16,
}

const _: () = assert!(size_of::<RateState>() == 16);

impl RateState {
    /// Adds what a visit saw. Times that are no positive numbers say nothing.
    pub fn add(&mut self, seen: Seen) {
        let (Seen::Unchanged { days } | Seen::Changed { days } | Seen::Dated { days, .. }) = seen;
        if !(days.is_finite() && days >= 0.0) {
            return;
        }
        match seen {
            Seen::Unchanged { .. } => self.exposure += days as f32,
            Seen::Dated { changes, .. } => {
                self.exposure += days as f32;
                self.make_room(changes.min(WINDOW));
                self.events = self.events.saturating_add((changes.min(WINDOW) * UNIT) as u16);
            }
            Seen::Changed { .. } => {
                self.make_room(1);
                let before = f32::from(self.changed) / UNIT as f32;
                self.changed = self.changed.saturating_add(UNIT as u16);
                let ln = days.max(1e-9).ln() as f32;
                let off = ln - self.mean;
                let share = 1.0 / (before + 1.0);
                self.mean += off * share;
                self.variance = (1.0 - share) * (self.variance + share * off * off);
            }
        }
    }

    /// Adds a visit as the metadata manager sees it: days since the visit before, whether the content changed, and the days
    /// since the page's Last-Modified if it gave one that makes sense.
    pub fn visit(&mut self, days: f64, changed: bool, modified_days_ago: Option<f64>) {
        self.add(match (changed, modified_days_ago) {
            (true, Some(ago)) if (0.0..days).contains(&ago) => Seen::Dated { changes: 1, days: ago },
            (true, _) => Seen::Changed { days },
            (false, _) => Seen::Unchanged { days },
        });
    }

    /// The rate, in changes a day, within the prior's limits.
    pub fn rate(&self, prior: &Prior) -> f64 {
        let count = f64::from(self.changed) / f64::from(UNIT);
        let (mean, sd) = (f64::from(self.mean), f64::from(self.variance.max(0.0)).sqrt());
        let events = f64::from(self.events) / f64::from(UNIT) + prior.events;
        let middle = mean.exp();
        // Half an unchanged visit takes away the first order of the bias, as in the full estimator.
        let half_visit = if self.changed > 0 { 0.5 * middle } else { 0.0 };
        let exposure = f64::from(self.exposure) + prior.exposure + half_visit;
        let points = if sd < 1e-4 {
            [(middle, 1.0), (middle, 0.0), (middle, 0.0)]
        } else {
            let out = 3f64.sqrt() * sd;
            [(middle, 2.0 / 3.0), ((mean - out).exp(), 1.0 / 6.0), ((mean + out).exp(), 1.0 / 6.0)]
        };
        let time: f64 = points.iter().map(|(c, weight)| c * weight * count).sum();
        let sum = |x: f64| {
            points.iter().fold((0.0, 0.0), |(value, slope), (c, weight)| {
                let (v, s) = pull(c * x);
                (value + v * weight * count, slope + s * weight * count)
            })
        };
        prior.clamp(maximum(events, exposure, count, time, sum).unwrap_or(prior.rate_min))
    }

    /// Its bytes, as drawn above, little-endian.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let (exposure, rest) = bytes.split_at_mut(4);
        let (mean, rest) = rest.split_at_mut(4);
        let (variance, rest) = rest.split_at_mut(4);
        let (events, changed) = rest.split_at_mut(2);
        exposure.copy_from_slice(&self.exposure.to_le_bytes());
        mean.copy_from_slice(&self.mean.to_le_bytes());
        variance.copy_from_slice(&self.variance.to_le_bytes());
        events.copy_from_slice(&self.events.to_le_bytes());
        changed.copy_from_slice(&self.changed.to_le_bytes());
        bytes
    }

    /// A state from its bytes; numbers that no state can hold make an empty one.
    pub fn from_bytes(bytes: [u8; 16]) -> RateState {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
        let state = RateState {
            exposure: f32::from_le_bytes([a, b, c, d]),
            mean: f32::from_le_bytes([e, f, g, h]),
            variance: f32::from_le_bytes([i, j, k, l]),
            events: u16::from_le_bytes([m, n]),
            changed: u16::from_le_bytes([o, p]),
        };
        let sound = state.exposure.is_finite()
            && state.exposure >= 0.0
            && state.mean.is_finite()
            && state.variance.is_finite()
            && state.variance >= 0.0;
        if sound { state } else { RateState::default() }
    }

    fn make_room(&mut self, coming: u32) {
        while (u32::from(self.events) + u32::from(self.changed)) / UNIT + coming > WINDOW
            && (self.events > 0 || self.changed > 0)
        {
            self.events /= 2;
            self.changed /= 2;
            self.exposure /= 2.0;
        }
    }
}
