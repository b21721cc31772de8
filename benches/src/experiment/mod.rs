//! Experiments on the web in a box, whose truth is known, in discrete-event time.
//!
//! ```text
//!   World ──▶ Truth ──▶ Web      what a read at a moment shows: a signature, a date where the site tells one    ──▶ Crawler
//!               │                                                                                               policy, estimator
//!               └─────▶ Scorer   what the copies are worth: freshness, age, obsolescence                ◀── moments of reads
//! ```
//!
//! A crawler gets a [`Web`] and nothing else: policies and estimators see observations, the [`Scorer`] alone sees the truth. Where a run is
//! to have the true change rates they are handed to it by name ([`Rates::Given`]), and it is reported apart. Nothing waits: a read
//! happens at the moment that the plan gives it, so that no latency is multiplied by a fast clock.

mod crawler;
mod optimum;
mod web;

pub use crawler::{Crawler, Rates, Run, Setup};
pub use optimum::{best_freshness, least_cost};
pub use web::{Answer, Sample, Score, Scorer, Truth, Web, importance_of};
