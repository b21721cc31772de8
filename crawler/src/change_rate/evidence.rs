//! What is known about one page's changes, in the one form that all observations share, and the rate that explains it best.

/// Steps after which a bracketed Newton iteration has long converged; it falls back to halving the bracket.
const STEPS_MAX: usize = 200;

/// What was believed before anything was seen, as observations that were not made, and the limits of every answer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Prior {
    /// Changes that count as seen (a fraction of one; 0 for no prior).
    pub events: f64,
    /// The time in which they count as seen.
    pub exposure: f64,
    /// No estimate is lower.
    pub rate_min: f64,
    /// No estimate is higher.
    pub rate_max: f64,
}

impl Prior {
    /// Half a change, at the mean rate of the pages one knows nothing about; rates from a ten-thousandth of it to ten
    /// thousand times as high.
    pub fn around(rate: f64) -> Prior {
        Prior { events: 0.5, exposure: 0.5 / rate, rate_min: rate * 1e-4, rate_max: rate * 1e4 }
    }

    /// Of pages of the web, in days: a change every three weeks, at least one in ten years, at most one in 20 minutes.
    pub const WEB_DAYS: Prior = Prior { events: 0.5, exposure: 10.0, rate_min: 1.0 / 3652.0, rate_max: 72.0 };

    /// No belief, and no limits.
    pub const NONE: Prior = Prior { events: 0.0, exposure: 0.0, rate_min: 0.0, rate_max: f64::INFINITY };

    /// A rate within the limits.
    pub fn clamp(&self, rate: f64) -> f64 {
        rate.max(self.rate_min).min(self.rate_max)
    }
}

/// Everything known about the changes of one page.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Evidence {
    /// Changes whose moment is known.
    pub events: f64,
    /// Time in which every change is known: unchanged intervals, and what lies behind a last change.
    pub exposure: f64,
    /// Lengths of the intervals in which something changed, nobody knows when or how often.
    pub changed: Vec<f64>,
}

impl Evidence {
    /// The rate of the highest likelihood: 0 if no change was seen, infinite if nothing else was, `None` if nothing was.
    pub fn maximum(&self) -> Option<f64> {
        self.maximum_with(&Prior::NONE)
    }

    /// The same with the prior's observations added, clamped to its limits.
    pub fn maximum_with(&self, prior: &Prior) -> Option<f64> {
        let events = self.events + prior.events;
        let exposure = self.exposure + prior.exposure;
        let count = self.changed.len() as f64;
        let total: f64 = self.changed.iter().sum();
        let pull = |x: f64| -> (f64, f64) {
            self.changed.iter().fold((0.0, 0.0), |(f, d), &c| {
                let (value, slope) = pull(c * x);
                (f + value, d + slope)
            })
        };
        maximum(events, exposure, count, total, pull).map(|rate| prior.clamp(rate))
    }

    /// ln L(λ), up to a constant.
    pub fn log_likelihood(&self, rate: f64) -> f64 {
        let events = if self.events > 0.0 { self.events * rate.ln() } else { 0.0 };
        let changed: f64 = self.changed.iter().map(|c| (-(-c * rate).exp_m1()).ln()).sum();
        events - rate * self.exposure + changed
    }
}

/// z/(e^z − 1), which falls from 1 to 0, and z times its slope.
pub(super) fn pull(z: f64) -> (f64, f64) {
    if z < 1e-5 {
        return (1.0 - z / 2.0, -z / 2.0);
    }
    if z > 700.0 {
        return (0.0, 0.0);
    }
    let e = z.exp_m1();
    let value = z / e;
    (value, value * (1.0 - z * (1.0 + 1.0 / e)))
}

/// Solves K + Σ pull(c·x) = E·x, in the logarithm of x. The left side falls from K + C to K and lies above K + C − x·Σc/2,
/// which gives both ends of the bracket.
pub(super) fn maximum(
    events: f64,
    exposure: f64,
    changed: f64,
    changed_time: f64,
    pull: impl Fn(f64) -> (f64, f64),
) -> Option<f64> {
    let seen = events + changed;
    if seen <= 0.0 {
        return (exposure > 0.0).then_some(0.0);
    }
    if exposure <= 0.0 {
        return Some(f64::INFINITY);
    }
    if changed <= 0.0 {
        return Some(events / exposure);
    }
    let mut low = (seen / (exposure + changed_time / 2.0)).ln();
    let mut high = (seen / exposure).ln();
    let mut at = low;
    for _ in 0..STEPS_MAX {
        let x = at.exp();
        let (value, slope) = pull(x);
        let excess = events + value - exposure * x;
        if excess > 0.0 {
            low = at;
        } else {
            high = at;
        }
        let newton = at - excess / (slope - exposure * x);
        let next = if newton > low && newton < high { newton } else { (low + high) / 2.0 };
        if (next - at).abs() < 1e-14 * next.abs().max(1.0) {
            return Some(next.exp());
        }
        at = next;
    }
    Some(at.exp())
}
