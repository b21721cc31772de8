//! Workers in their own time: who has swept is at once told to sweep again, with whatever values the others have reached.
//!
//! ```text
//! worker 0   ├──sweep──┼──sweep──┼──sweep──┼──sweep──┤        each sweep begins with the newest values there are
//! worker 1   ├───────sweep───────┼───────sweep───────┤
//! cycle      ├───────────────────┼───────────────────┤        ends when everybody has reported a sweep that began in it
//! ```
//!
//! λ stays as it is in a cycle. At its end it goes to what the sums say; half as far (and so on) where it swings, that is, where they
//! say the other direction than last time and at least half the way, and farther again where it does not. (Whether changes have
//! grown, by which `gauss_seidel.rs` knows, depends on timing here.) The sums are of different moments, so that little change
//! does not yet say that it has converged: rounds in lock-step do.
//!
//! Two things can go wrong with λ, and only with it. While it is too small, newest values can grow along a chain of links, without end; and
//! where pages keep nearly all they get (c·M has an eigenvalue near λ), what all values add up to is so sensitive to λ that both
//! swing for long, and leave the slowest part of the error larger than it was. So values that grow beyond all bounds, or don't
//! settle in time, are given up: lock-step begins from the first values then.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::WorkersError;
use super::coordinator::State;
use super::cut::Cut;
use super::hand::{Hand, Swept};
use super::message::{Sweep, Totals};
use super::problem::Form;
use crate::importance::Settings;

/// λ follows its estimate at least so far.
const FOLLOWS_MIN: f64 = 1.0 / 64.0;
/// How much farther it goes than last time, where it does not swing.
const FOLLOWS_BY: f64 = 1.25;
/// Values that add up to so many times what they did at first are given up.
const GROWN_MAX: f64 = (1 << 20) as f64;

/// How it ended.
pub(super) struct Ended {
    pub(super) hands: Vec<Hand>,
    /// What is known of all slices, unless it is of no use.
    pub(super) state: Option<State>,
    /// How often each worker has swept.
    pub(super) sweeps: Vec<u32>,
}

/// Why nobody is to begin another sweep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Little changes any more.
    Settled,
    /// It went on for too long.
    Late,
    /// The values are none any more.
    Lost,
}

/// What all workers' tasks share; never locked while one of them waits.
struct Shared {
    form: Form,
    settings: Settings,
    state: State,
    sweeps: Vec<u32>,
    /// Who has reported a sweep that began in this cycle.
    reported: Vec<bool>,
    cycles: u32,
    cycles_max: u32,
    lambda: f64,
    /// How far λ goes to its estimate.
    follows: f64,
    /// How far λ was from its estimate when the last cycle ended.
    last_gap: f64,
    /// What all values may add up to.
    sum_max: f64,
    end: Option<End>,
}

/// Has everybody sweep in its own time until little changes any more, or it has gone on for long enough.
pub(super) async fn run(
    hands: Vec<Hand>,
    cut: Arc<Cut>,
    form: Form,
    state: State,
    settings: &Settings,
) -> Result<Ended, WorkersError> {
    let shared = Arc::new(Mutex::new(Shared::new(hands.len(), form, state, settings)));
    let mut tasks = JoinSet::new();
    for mut hand in hands {
        let (shared, cut) = (shared.clone(), cut.clone());
        tasks.spawn(async move {
            loop {
                let next = shared.lock().next(&cut, hand.worker);
                let Some((sweep, foreign, cycle)) = next else { return Ok::<Hand, WorkersError>(hand) };
                let swept = hand.sweep(sweep, &foreign).await?;
                shared.lock().take(&cut, hand.worker, &swept, cycle);
            }
        });
    }
    let mut hands = Vec::new();
    while let Some(joined) = tasks.join_next().await {
        hands.push(joined.map_err(|e| WorkersError::Task(e.to_string()))??);
    }
    hands.sort_unstable_by_key(|hand| hand.worker);
    let mut shared = shared.lock();
    let (sweeps, useful) = (std::mem::take(&mut shared.sweeps), shared.is_useful());
    let state = State {
        totals: std::mem::take(&mut shared.state.totals),
        passing: std::mem::take(&mut shared.state.passing),
    };
    Ok(Ended { hands, state: useful.then_some(state), sweeps })
}

impl Shared {
    fn new(workers: usize, form: Form, state: State, settings: &Settings) -> Shared {
        let all = Totals::of(&state.totals);
        // The rounds that power iteration needs, were there no λ.
        let patience = settings.change_max().ln() / settings.damping.ln();
        // Without λ nothing grows without end, and usefulness may well come to a multiple of what it begins with.
        let sum_max = match form {
            Form::Renormalised { .. } => GROWN_MAX * all.all,
            Form::Spread { .. } | Form::Usefulness { .. } => f64::INFINITY,
        };
        Shared {
            form,
            settings: *settings,
            state,
            sweeps: vec![0; workers],
            reported: vec![false; workers],
            cycles: 0,
            cycles_max: (patience as u32).clamp(1, settings.rounds_max.max(1)),
            lambda: form.lambda(&all),
            follows: 1.0,
            last_gap: 0.0,
            sum_max,
            end: (settings.rounds_max == 0).then_some(End::Late),
        }
    }

    /// A worker's next sweep, the values that it needs, and the cycle that it begins in; none when it is over.
    fn next(&self, cut: &Cut, worker: usize) -> Option<(Sweep, Vec<f64>, u32)> {
        if self.end.is_some() {
            return None;
        }
        let (by_links, by_own) = self.form.in_own_time(self.lambda);
        let sweep = Sweep { newest: true, by_links, by_own };
        Some((sweep, cut.foreign(worker, &self.state.passing), self.cycles))
    }

    /// Takes what a worker has swept, from `cycle` on.
    fn take(&mut self, cut: &Cut, worker: usize, swept: &Swept, cycle: u32) {
        self.state.take(cut, worker, swept);
        if let Some((sweeps, reported)) = self.sweeps.get_mut(worker).zip(self.reported.get_mut(worker)) {
            *sweeps += 1;
            *reported |= cycle == self.cycles;
            if *sweeps >= self.settings.rounds_max {
                self.end.get_or_insert(End::Late);
            }
        }
        let sound = swept.totals.is_sound() && swept.told.iter().all(|value| value.is_finite());
        if !sound || swept.totals.all > self.sum_max {
            self.end = Some(End::Lost);
        } else if self.end.is_none() && self.reported.iter().all(|reported| *reported) {
            self.end_cycle();
        }
    }

    fn end_cycle(&mut self) {
        self.reported.fill(false);
        self.cycles += 1;
        let all = Totals::of(&self.state.totals);
        let change = self.form.change(&all);
        if change < self.settings.change_max() {
            self.end = Some(End::Settled);
        } else if self.cycles >= self.cycles_max {
            self.end = Some(End::Late);
        }
        let gap = self.form.lambda(&all) - self.lambda;
        let swings = gap * self.last_gap < 0.0 && gap.abs() >= self.last_gap.abs() / 2.0;
        let by = if swings { 0.5 } else { FOLLOWS_BY };
        self.follows = (self.follows * by).clamp(FOLLOWS_MIN, 1.0);
        self.last_gap = gap;
        self.lambda += self.follows * gap;
    }

    /// Whether lock-step can go on from here.
    fn is_useful(&self) -> bool {
        match self.end {
            Some(End::Settled) => true,
            // Without λ every sweep has brought it nearer.
            Some(End::Late) | None => !matches!(self.form, Form::Renormalised { .. }),
            Some(End::Lost) => false,
        }
    }
}
