//! How often does a page change? Estimates of the rate λ of a Poisson process from what a crawler gets to see.
//!
//! ```text
//!   what is seen                                   what it says about λ                 its factor of the likelihood
//!   unchanged at t since the visit at s            no change in (s, t]                  e^(−λ(t−s))
//!   changed at t since the visit at s              at least one change in (s, t]        1 − e^(−λ(t−s))
//!   Last-Modified d, s < d ≤ t                     a change at d, none in (d, t]        λ·e^(−λ(t−d))
//!   Last-Modified d ≤ s                            no change in (s, t]                  e^(−λ(t−s))
//!   a complete list of n changes in (s, t]         just these                           λⁿ·e^(−λ(t−s))
//! ```
//!
//! All of them multiply, so one form holds any mixture: *events* K, *exposure* E and the lengths c of intervals in which
//! something changed, with ln L(λ) = K·ln λ − λE + Σ ln(1 − e^(−cλ)). That is [`Evidence`]; its maximum is unique and
//! bracketed, so that [`Evidence::maximum`] never fails to converge. A [`History`] makes evidence of visits in order of time
//! and counts no stretch of time twice. [`RateState`] is the same in 16 bytes a page, updated in O(1).
//!
//! 1. Without a change K = 0 and no c: the maximum is 0. With nothing but changed intervals it is infinite. Neither is fit for
//!    a scheduler, so [`Estimator::BiasCorrected`] and [`RateState`] take a [`Prior`], and rates are clamped to its limits.
//! 2. The first Last-Modified counts as a change: looked at from the first visit backwards the last change lies an exponential
//!    time ago. Leaving the *unchanged* time out of the exposure, as the papers' C/Σl does ([`Estimator::Papers`]), makes
//!    the rate of a page visited more often than it changes many times too high.
//! 3. Rates are per unit of the times given. A page's times need not be integers, only finite and in order.

mod evidence;
mod history;
mod state;
#[cfg(test)]
mod tests;

pub use evidence::{Evidence, Prior};
pub use history::{Estimate, Estimator, History, Method, OutOfOrder, Visit, estimate};
pub use state::{RateState, Seen};
