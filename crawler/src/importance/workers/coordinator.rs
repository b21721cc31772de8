//! The coordinator: hands every worker its slice, has them sweep, and gathers the values.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::JoinSet;

use super::cut::Cut;
use super::hand::{Hand, Swept};
use super::message::{Sweep, Totals};
use super::problem::Form;
use super::{Problem, WorkersError, chaotic};
use crate::importance::graph::Graph;
use crate::importance::{Settings, Solution};

/// Whether workers wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pace {
    /// They do, in every round: power iteration, whatever the timing.
    #[default]
    LockStep,
    /// They don't, until little changes; then they do, for the rounds that confirm it.
    Chaotic,
}

/// What workers have come to.
#[derive(Debug, Clone, PartialEq)]
pub struct Worked {
    /// The vector. Its rounds are those in lock-step.
    pub solution: Solution,
    /// How often each worker swept in its own time before that.
    pub sweeps: Vec<u32>,
}

/// What is known of all slices.
pub(super) struct State {
    /// What each slice adds up to.
    pub(super) totals: Vec<Totals>,
    /// What the pages pass on that somebody else needs.
    pub(super) passing: Vec<f64>,
}

/// Has workers solve a problem, each owning about as many links. `start` is the last result, where there is one. Of small graphs not all
/// workers may get a slice.
///
/// # Errors
/// When what is asked makes no sense, or a worker fails: the others' calls end then.
pub async fn solve(
    workers: &[SocketAddr],
    graph: &Graph,
    problem: Problem<'_>,
    start: Option<&[f64]>,
    pace: Pace,
    settings: &Settings,
) -> Result<Worked, WorkersError> {
    let pages = problem.pages(graph, start, settings)?;
    if workers.is_empty() {
        return Err(WorkersError::Nobody);
    }
    if pages.iter().all(|page| page.own == 0.0) {
        let solution = Solution { values: vec![0.0; pages.len()], ..Solution::empty() };
        return Ok(Worked { solution, sweeps: Vec::new() });
    }
    let (rows, form) = (problem.rows(graph), problem.form(settings));
    let cut = Arc::new(Cut::of(rows, workers.len()));
    let mut hands = Vec::with_capacity(cut.workers());
    for (worker, (address, task)) in workers.iter().zip(&cut.tasks).enumerate() {
        let mut hand = Hand::open(*address, worker, *task).await?;
        hand.load(&cut, rows, &pages).await?;
        hands.push(hand);
    }
    for hand in &mut hands {
        hand.ready().await?;
    }
    let first = || {
        let (passing, totals) = cut.first(&pages);
        State { totals, passing }
    };
    let (mut state, mut sweeps) = (first(), Vec::new());
    if pace == Pace::Chaotic {
        let ended = chaotic::run(hands, cut.clone(), form, state, settings).await?;
        (hands, sweeps) = (ended.hands, ended.sweeps);
        state = match ended.state {
            Some(state) => state,
            None => {
                for hand in &mut hands {
                    hand.restart().await?;
                }
                first()
            }
        };
    }
    drop(pages);
    let mut solution = lock_step(&mut hands, &cut, form, state, settings).await?;
    for hand in &mut hands {
        solution.values.extend(hand.values().await?);
    }
    if matches!(problem, Problem::Importance { .. }) {
        let sum: f64 = solution.values.iter().sum();
        solution.values.iter_mut().for_each(|value| *value /= sum);
    }
    Ok(Worked { solution, sweeps })
}

/// Rounds until one changes little enough: one sweep of everybody, from the values of the round before.
async fn lock_step(
    hands: &mut Vec<Hand>,
    cut: &Cut,
    form: Form,
    mut state: State,
    settings: &Settings,
) -> Result<Solution, WorkersError> {
    let mut solution = Solution { change: f64::INFINITY, converged: false, ..Solution::empty() };
    while solution.rounds < settings.rounds_max && !solution.converged {
        let (by_links, by_own) = form.in_step(&Totals::of(&state.totals));
        let sweep = Sweep { newest: false, by_links, by_own };
        // All at once; dropping the set, as when one fails, gives the others up.
        let mut round = JoinSet::new();
        for mut hand in hands.drain(..) {
            let foreign = cut.foreign(hand.worker, &state.passing);
            round.spawn(async move {
                let swept = hand.sweep(sweep, &foreign).await;
                (hand, swept)
            });
        }
        while let Some(joined) = round.join_next().await {
            let (hand, swept) = joined.map_err(|e| WorkersError::Task(e.to_string()))?;
            let swept = swept?;
            if !swept.totals.is_sound() {
                return Err(hand.failed("its pages add up to no finite number ≥ 0"));
            }
            state.take(cut, hand.worker, &swept);
            hands.push(hand);
        }
        hands.sort_unstable_by_key(|hand| hand.worker);
        solution.rounds += 1;
        solution.change = form.change(&Totals::of(&state.totals));
        solution.converged = solution.change < settings.change_max();
    }
    Ok(solution)
}

impl State {
    /// Takes what a worker has swept.
    pub(super) fn take(&mut self, cut: &Cut, worker: usize, swept: &Swept) {
        if let Some(totals) = self.totals.get_mut(worker) {
            *totals = swept.totals;
        }
        let told = cut.tells.get(worker).and_then(|range| self.passing.get_mut(range.clone()));
        // A hand hears exactly as many as its worker tells.
        if let Some(told) = told.filter(|told| told.len() == swept.told.len()) {
            told.copy_from_slice(&swept.told);
        }
    }
}
