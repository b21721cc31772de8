//! The two systems that workers solve, in one form.

use super::message::{Page, Totals};
use crate::importance::graph::{Graph, Rows};
use crate::importance::usefulness::Weights;
use crate::importance::{
    FixedPoint, ImportanceError, Interest, Personalisation, Settings, Usefulness, personalisation,
};

/// What to solve.
#[derive(Debug, Clone, Copy)]
pub enum Problem<'a> {
    /// Importance.
    Importance {
        /// E.
        e: &'a Personalisation,
    },
    /// Usefulness, from importance.
    Usefulness {
        /// The importance of every page.
        importance: &'a [f64],
        /// The pages of interest.
        interest: &'a Interest,
        /// Which W.
        kind: Usefulness,
    },
}

/// How (a, b) is come by, and what a change is measured by; c is the damping.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    /// Importance, r in every step.
    Renormalised { c: f64 },
    /// Importance, what pages without links have spread.
    Spread { c: f64 },
    /// Usefulness.
    Usefulness { c: f64 },
}

impl Form {
    /// λ = 1/r, as far as the sums of all slices say; 1 where there is no r.
    pub(super) fn lambda(self, all: &Totals) -> f64 {
        match self {
            Form::Renormalised { c } if all.all > 0.0 => c * all.linked / all.all + (1.0 - c),
            _ => 1.0,
        }
    }

    /// (a, b) in lock-step, where all sums are of the same round.
    pub(super) fn in_step(self, all: &Totals) -> (f64, f64) {
        match self {
            // It adds up to what it did before: any multiple of the vector is as good.
            Form::Spread { c } => (c, all.all - c * all.linked),
            _ => self.in_own_time(self.lambda(all)),
        }
    }

    /// (a, b) where nobody knows what all values add up to now.
    pub(super) fn in_own_time(self, lambda: f64) -> (f64, f64) {
        match self {
            Form::Renormalised { c } | Form::Spread { c } => (c / lambda, (1.0 - c) / lambda),
            Form::Usefulness { c } => (c, 1.0),
        }
    }

    /// How much sweeps have changed, of the whole.
    pub(super) fn change(self, all: &Totals) -> f64 {
        let part = |changed: f64, of: f64| if changed == 0.0 { 0.0 } else { changed / of };
        let sum = part(all.changed, all.all);
        match self {
            Form::Renormalised { .. } | Form::Spread { .. } => sum,
            Form::Usefulness { .. } => sum.max(part(all.changed_most, all.largest)),
        }
    }
}

impl<'a> Problem<'a> {
    pub(super) fn form(&self, settings: &Settings) -> Form {
        let c = settings.damping;
        match (self, settings.fixed_point) {
            (Problem::Usefulness { .. }, _) => Form::Usefulness { c },
            (_, FixedPoint::Renormalised) => Form::Renormalised { c },
            (_, FixedPoint::Spread) => Form::Spread { c },
        }
    }

    /// The rows that values are gathered over.
    pub(super) fn rows(&self, graph: &'a Graph) -> &'a Rows {
        match self {
            Problem::Importance { .. } => graph.into(),
            Problem::Usefulness { .. } => graph.out(),
        }
    }

    /// Weights and first values of all pages. `start` is the last result.
    pub(super) fn pages(
        &self,
        graph: &Graph,
        start: Option<&[f64]>,
        settings: &Settings,
    ) -> Result<Vec<Page>, ImportanceError> {
        settings.check()?;
        match self {
            Problem::Importance { e } => importance(graph, e, start, settings),
            Problem::Usefulness { importance, interest, kind } => {
                usefulness(graph, importance, interest, *kind, start, settings.damping)
            }
        }
    }
}

fn importance(
    graph: &Graph,
    e: &Personalisation,
    start: Option<&[f64]>,
    settings: &Settings,
) -> Result<Vec<Page>, ImportanceError> {
    e.check_len(graph.pages())?;
    let start = match start {
        Some(start) => personalisation::normalised("start", start, graph.pages())?,
        None => e.to_vec(),
    };
    let of = |(page, (before, value)): (usize, (f64, f64))| {
        let linked = graph.out().degree(page) > 0;
        Page { before, after: 1.0, own: e.share(page), value, linked }
    };
    let mut pages: Vec<Page> = graph.shares().into_iter().zip(start).enumerate().map(of).collect();
    if settings.fixed_point == FixedPoint::Spread {
        // A vector that adds up to 1 is this multiple of the one with λ = 1.
        let linked: f64 = pages.iter().filter(|page| page.linked).map(|page| page.value).sum();
        let by = (1.0 - settings.damping) / (1.0 - settings.damping * linked);
        pages.iter_mut().for_each(|page| page.value *= by);
    }
    Ok(pages)
}

fn usefulness(
    graph: &Graph,
    importance: &[f64],
    interest: &Interest,
    kind: Usefulness,
    start: Option<&[f64]>,
    c: f64,
) -> Result<Vec<Page>, ImportanceError> {
    for (name, vector) in [("importance", Some(importance)), ("start", start)] {
        if let Some(vector) = vector {
            personalisation::check_len(name, vector.len(), graph.pages())?;
            personalisation::check_values(name, vector)?;
        }
    }
    let weights = Weights::of(graph, kind);
    let of = |(page, (before, after)): (usize, (f64, f64))| {
        let known = importance.get(page).copied().unwrap_or(0.0);
        let own = if interest.has(page) { (1.0 - c) * known } else { 0.0 };
        let value = start.and_then(|start| start.get(page)).copied().unwrap_or(own);
        Page { before, after, own, value, linked: graph.out().degree(page) > 0 }
    };
    Ok(weights.before.into_iter().zip(weights.after).enumerate().map(of).collect())
}
