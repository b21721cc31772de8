//! Policies: how often a page is worth reading when a read has a price.
//!
//! Sharing a bandwidth out is one problem for all of them: find the *price* of a read at which the pages want just as many
//! reads as there are. A policy says how often a page of weight w and change rate λ wants to be read at a price μ:
//!
//! ```text
//!   uniform        f = 1/μ                                    everybody alike
//!   proportional   f = λ/μ                                    by change rate
//!   xyleme         f = (α/(α+1) · w·λ^α / μ)^(1/(α+1))        least mean obsolescence w·(λt)^α
//!   crawl-value    V(1/f) = μ                                 most freshness w·P(copy is current); 0 if w/λ ≤ μ
//!   lambda         f = (−λ + √(λ² + 4wλ/μ))/2                 least Σ −w·ln P(copy is current): nobody is starved
//!
//!   V(t) = (w/λ)(1 − (1+λt)e^(−λt)): the crawl value, what a read after t adds to freshness over what waiting does
//! ```
//!
//! The default is `crawl-value` with a longest wait: on the web in a box, with estimated rates, it keeps the most pages fresh at every budget
//! (0.94 of the optimum at 0.03 reads a page and day, 0.98 at 0.15, 0.996 at 0.75). What it trades: pages that change faster than they can be
//! read are given up, and only the longest wait brings them back (`Settings::longest_wait_days`; a tenth of the refreshes at most, which costs
//! 1.7 % of the freshness at the scarcest of these budgets). `lambda` gives nobody up: at those budgets 0.89, 0.95 and 0.996 of the
//! optimum, and copies a third or a sixth as old where bandwidth is short. `benches/RESULTS.md` has the tables.
//!
//! At the price that uses up the budget G, `xyleme` is the papers' f = (G/S)·(w·λ^α)^(1/(α+1)): S is then a sum of roots and
//! can be kept up to date, which is why the price needs no search there.

use std::str::FromStr;

/// The papers' exponent of obsolescence.
pub const ALPHA: f64 = 0.95;

/// What a scheduling policy says about one page.
pub trait Policy {
    /// How often a page is read when a read costs `price`. Falls, and never jumps, as the price rises; never negative.
    fn frequency(&self, weight: f64, rate: f64, price: f64) -> f64;

    /// The price at which a page that was read `elapsed` ago is due just now: `frequency(…, price) = 1/elapsed`.
    fn price(&self, weight: f64, rate: f64, elapsed: f64) -> f64;
}

/// The policies there are.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BuiltIn {
    /// Every page alike.
    Uniform,
    /// By change rate.
    Proportional,
    /// The papers': least obsolescence Σ w·(λt)^α.
    Xyleme {
        /// The exponent.
        alpha: f64,
    },
    /// Most freshness.
    CrawlValue,
    /// Least harmonic staleness: like freshness, but nobody is starved.
    Lambda,
}

impl BuiltIn {
    /// All of them, with the papers' α.
    pub const ALL: [BuiltIn; 5] = [
        BuiltIn::Uniform,
        BuiltIn::Proportional,
        BuiltIn::Xyleme { alpha: ALPHA },
        BuiltIn::CrawlValue,
        BuiltIn::Lambda,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            BuiltIn::Uniform => "uniform",
            BuiltIn::Proportional => "proportional",
            BuiltIn::Xyleme { .. } => "xyleme",
            BuiltIn::CrawlValue => "crawl-value",
            BuiltIn::Lambda => "lambda",
        }
    }
}

/// A name that no policy has.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no policy is called {0:?}; there are uniform, proportional, xyleme, crawl-value and lambda")]
pub struct UnknownPolicy(pub String);

impl FromStr for BuiltIn {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<BuiltIn, UnknownPolicy> {
        let found = BuiltIn::ALL.into_iter().find(|policy| policy.name() == name);
        found.ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

impl Policy for BuiltIn {
    fn frequency(&self, weight: f64, rate: f64, price: f64) -> f64 {
        match *self {
            BuiltIn::Uniform => 1.0 / price,
            BuiltIn::Proportional => rate / price,
            BuiltIn::Xyleme { alpha } => xyleme_root(weight, rate, alpha) * xyleme_scale(price, alpha),
            BuiltIn::CrawlValue => {
                if weight <= 0.0 || rate <= 0.0 {
                    return 0.0;
                }
                rate / elapsed_of_gain(price * rate / weight)
            }
            BuiltIn::Lambda => {
                let push = weight * rate / price;
                if push <= 0.0 { 0.0 } else { 2.0 * push / (rate + (rate * rate + 4.0 * push).sqrt()) }
            }
        }
    }

    fn price(&self, weight: f64, rate: f64, elapsed: f64) -> f64 {
        match *self {
            BuiltIn::Uniform => elapsed,
            BuiltIn::Proportional => rate * elapsed,
            BuiltIn::Xyleme { alpha } => {
                alpha / (alpha + 1.0) * weight * rate.powf(alpha) * elapsed.powf(alpha + 1.0)
            }
            BuiltIn::CrawlValue => crawl_value(weight, rate, elapsed),
            BuiltIn::Lambda => weight * rate * elapsed * elapsed / (1.0 + rate * elapsed),
        }
    }
}

/// (w·λ^α)^(1/(α+1)), what S is the sum of.
pub fn xyleme_root(weight: f64, rate: f64, alpha: f64) -> f64 {
    (weight * rate.powf(alpha)).powf(1.0 / (alpha + 1.0))
}

/// What the roots are multiplied with at a price: G/S.
fn xyleme_scale(price: f64, alpha: f64) -> f64 {
    (alpha / ((alpha + 1.0) * price)).powf(1.0 / (alpha + 1.0))
}

/// V(t) = (w/λ)(1 − (1+λt)e^(−λt)).
pub fn crawl_value(weight: f64, rate: f64, elapsed: f64) -> f64 {
    if rate <= 0.0 { 0.0 } else { weight / rate * gain(rate * elapsed) }
}

/// Mean share of time that a page read every 1/f is current: (f/λ)(1 − e^(−λ/f)).
pub fn freshness(rate: f64, frequency: f64) -> f64 {
    if rate <= 0.0 {
        1.0
    } else if frequency <= 0.0 {
        0.0
    } else {
        -(-rate / frequency).exp_m1() * frequency / rate
    }
}

/// Mean obsolescence w·(λt)^α of a page read every 1/f.
pub fn obsolescence(weight: f64, rate: f64, frequency: f64, alpha: f64) -> f64 {
    if weight <= 0.0 || rate <= 0.0 { 0.0 } else { weight * (rate / frequency).powf(alpha) / (alpha + 1.0) }
}

/// 1 − (1+r)e^(−r), without cancellation where r is small.
fn gain(r: f64) -> f64 {
    if r < 0.02 {
        r * r * (0.5 + r * (-1.0 / 3.0 + r * (0.125 + r * (-1.0 / 30.0 + r / 144.0))))
    } else {
        1.0 - (1.0 + r) * (-r).exp()
    }
}

/// The r with gain(r) = y; infinite from 1 on.
fn elapsed_of_gain(y: f64) -> f64 {
    if y >= 1.0 {
        return f64::INFINITY;
    }
    if y <= 0.0 {
        return 0.0;
    }
    let s = (2.0 * y).sqrt();
    if y < 1e-4 {
        let mut r = s * (1.0 + s / 3.0);
        for _ in 0..3 {
            r -= (gain(r) - y) / (r * (-r).exp());
        }
        return r;
    }
    // ln(1+r) − r = ln(1−y), whose slope is −r/(1+r): from below the curve Newton comes down on it from one side.
    let target = (-y).ln_1p();
    let mut r = if y < 0.5 { s * (1.0 + s / 3.0) } else { -target + (1.0 - target).ln() };
    for _ in 0..50 {
        let step = (r.ln_1p() - r - target) * (1.0 + r) / r;
        r += step;
        if step.abs() <= 1e-14 * r {
            break;
        }
    }
    r
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gain_is_undone() {
        for r in [1e-9, 1e-6, 1e-3, 0.0199, 0.0201, 0.1, 0.5, 1.0, 1.5, 2.0, 5.0, 20.0, 30.0] {
            let found = elapsed_of_gain(gain(r));
            // Near 1 the gain itself holds few digits of r.
            let tolerance = if r > 10.0 { 1e-3 } else { 1e-9 };
            assert!((found / r - 1.0).abs() < tolerance, "{found} is not {r}");
        }
        assert_eq!(elapsed_of_gain(1.0), f64::INFINITY);
        assert_eq!(elapsed_of_gain(0.0), 0.0);
    }

    #[test]
    fn price_and_frequency_are_inverse() {
        for policy in BuiltIn::ALL {
            for (weight, rate, elapsed) in
                [(1.0, 1.0, 1.0), (3.0, 0.01, 5.0), (0.2, 4.0, 0.7), (1e-9, 1e-3, 90.0)]
            {
                let price = policy.price(weight, rate, elapsed);
                let found = policy.frequency(weight, rate, price) * elapsed;
                assert!(
                    (found - 1.0).abs() < 1e-8,
                    "{}: {found} at {weight} {rate} {elapsed}",
                    policy.name()
                );
            }
        }
    }

    #[test]
    fn names_are_read_back() {
        for policy in BuiltIn::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        let unknown = "best".parse::<BuiltIn>().unwrap_err();
        assert!(unknown.to_string().contains("crawl-value"));
    }
}
