//! Importance and usefulness of pages, from the links between them.
//!
//! ```text
//! importance   I = r·(c·M·I + (1−c)·E)      M_ij = 1/outdeg(j) if j links to i; r keeps |I|₁ = 1 in every step
//! usefulness   J = c·Mᵗ·J + (1−c)·E'        E' = I on pages of interest (XML), 0 elsewhere; no r
//! ```
//!
//! Pages without links pass nothing on, so a plain c·M·I + (1−c)·E loses mass; [`FixedPoint`] names the two ways to make
//! up for it, which are different vectors. Everything stops by a relative measure, ‖Δ‖₁ < ε·(1−c)/c, which bounds the
//! distance to the fixed point by ε, however many pages there are.
//!
//! | method | a round | needs |
//! |---|---|---|
//! | [`Method::Power`] | all pages from the last round's values; any number of threads, the same bits | links by target |
//! | [`Method::Slices`] | the same values, targets slice by slice as the papers do it | a [`Grid`] |
//! | [`Method::GaussSeidelSlices`] | each slice from the newest values of the others | links by target |
//! | [`Method::GaussSeidel`] | each page from the newest values | links by target |
//! | [`both`] | importance and usefulness in one scan of the links | a [`Grid`] |
//!
//! [`workers`] has several processes do it, each owning a slice of the pages, in lock-step or each in its own time. [`on_disk`] does
//! it in little memory.
//!
//! [`publish`] lifts pages that somebody names as far as was asked; [`Opic`] estimates importance while pages arrive, without
//! the links of the others.
//!
//! Bad input is defined: a link to oneself counts like any other, a link named twice counts once, a page that was never
//! read has no links but has importance, and of a page's links the first 65 534 count ([`LINKS_MAX`]).

pub mod edge_list;
mod gauss_seidel;
mod graph;
mod grid;
pub(crate) mod kernel;
pub mod on_disk;
mod opic;
mod personalisation;
mod power;
mod publication;
mod repair;
pub(crate) mod rough;
#[cfg(test)]
mod tests;
mod usefulness;
pub mod workers;

pub(crate) use graph::tidy;
pub use graph::{Graph, GraphBuilder, LINKS_MAX};
pub use grid::{Both, Grid, both};
pub use opic::{Opic, Window};
pub use personalisation::Personalisation;
pub(crate) use publication::check as check_publication;
pub use publication::{Published, publish};
pub use repair::{Before, Exact, Repaired};
pub use usefulness::{Interest, Usefulness, usefulness};

/// What can be wrong with what is asked.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportanceError {
    /// A setting is outside of its range.
    #[error("{name} is {found}, expected {expected}")]
    Setting {
        /// Which one.
        name: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        found: f64,
    },
    /// A vector has another length than the graph has pages.
    #[error("{name} has {found} values for {expected} pages")]
    Length {
        /// Which vector.
        name: &'static str,
        /// How many pages there are.
        expected: usize,
        /// How many values there are.
        found: usize,
    },
    /// A vector has a value that is no finite number ≥ 0.
    #[error("{name} of page {page} is {found}, expected a finite number that is not negative")]
    Value {
        /// Which vector.
        name: &'static str,
        /// Of which page.
        page: usize,
        /// The value.
        found: f64,
    },
    /// A vector adds up to 0, or to more than a number can hold.
    #[error("{name} adds up to {found}, expected a finite sum above 0")]
    Sum {
        /// Which vector.
        name: &'static str,
        /// The sum.
        found: f64,
    },
    /// A link names a page beyond the last.
    #[error("page {page} is beyond the last of {pages} pages")]
    Page {
        /// The page.
        page: u64,
        /// How many pages there are.
        pages: u64,
    },
}

/// Which vector is meant by importance, where pages without links lose mass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FixedPoint {
    /// The papers': I = r·(c·M·I + (1−c)·E), r in every step.
    #[default]
    Renormalised,
    /// Most graph libraries': what pages without links would pass on goes to all pages as E says.
    Spread,
}

/// How to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Method {
    /// Every page from the values of the round before.
    #[default]
    Power,
    /// As [`Method::Power`], the targets in so many slices one after the other.
    Slices(usize),
    /// Slices of targets, each computed from the newest values of the others.
    GaussSeidelSlices(usize),
    /// Every page from the newest values of all others; a link to oneself is solved for.
    GaussSeidel,
}

/// The numbers of the fixpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// c: how much of a page's importance goes on along its links; 0 < c < 1.
    pub damping: f64,
    /// ε: how far from the fixed point is near enough, of a vector that adds up to 1.
    pub epsilon: f64,
    /// More rounds are not made; what there is then is returned as not converged.
    pub rounds_max: u32,
    /// How many threads may work at once, where the method allows it.
    pub threads: usize,
    /// Which vector importance is.
    pub fixed_point: FixedPoint,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            damping: 0.85,
            epsilon: 1e-10,
            rounds_max: 10_000,
            threads: 1,
            fixed_point: FixedPoint::Renormalised,
        }
    }
}

impl Settings {
    pub(crate) fn check(&self) -> Result<(), ImportanceError> {
        let c = self.damping;
        if !(c > 0.0 && c < 1.0) {
            return Err(ImportanceError::Setting {
                name: "damping",
                expected: "between 0 and 1, both excluded",
                found: c,
            });
        }
        if !(self.epsilon > 0.0 && self.epsilon.is_finite()) {
            return Err(ImportanceError::Setting {
                name: "epsilon",
                expected: "a finite number above 0",
                found: self.epsilon,
            });
        }
        Ok(())
    }

    /// A round that changes the vector by less than this part of it was the last.
    pub(crate) fn change_max(&self) -> f64 {
        self.epsilon * (1.0 - self.damping) / self.damping
    }
}

/// A vector, and how it was come by.
#[derive(Debug, Clone, PartialEq)]
pub struct Solution {
    /// A value a page.
    pub values: Vec<f64>,
    /// How many times all links were gone through.
    pub rounds: u32,
    /// How much the last round changed, in the measure that stops.
    pub change: f64,
    /// Whether that was little enough.
    pub converged: bool,
}

impl Solution {
    fn empty() -> Self {
        Self { values: Vec::new(), rounds: 0, change: 0.0, converged: true }
    }
}

/// The importance of every page. `start` is the last result, where there is one; it need not add up to 1.
///
/// # Errors
/// When a setting is out of its range, or a vector has a wrong length or a value that is no finite number ≥ 0.
pub fn importance(
    graph: &Graph,
    e: &Personalisation,
    start: Option<&[f64]>,
    method: Method,
    settings: &Settings,
) -> Result<Solution, ImportanceError> {
    importance_with(graph, e, start, method, settings, &mut |_, _| {})
}

/// As [`importance`], telling `progress` after each round its number and what it changed.
///
/// # Errors
/// As [`importance`].
pub fn importance_with(
    graph: &Graph,
    e: &Personalisation,
    start: Option<&[f64]>,
    method: Method,
    settings: &Settings,
    progress: &mut dyn FnMut(u32, f64),
) -> Result<Solution, ImportanceError> {
    settings.check()?;
    e.check_len(graph.pages())?;
    let start = match start {
        Some(start) => personalisation::normalised("start", start, graph.pages())?,
        None => e.to_vec(),
    };
    if graph.pages() == 0 {
        return Ok(Solution::empty());
    }
    Ok(match method {
        Method::Power => power::solve(graph, e, start, settings, progress),
        Method::Slices(slices) => grid::solve_slices(&Grid::of(graph), e, start, slices, settings, progress),
        Method::GaussSeidelSlices(slices) => {
            gauss_seidel::solve(graph, e, start, Some(slices.max(1)), settings, progress)
        }
        Method::GaussSeidel => gauss_seidel::solve(graph, e, start, None, settings, progress),
    })
}
