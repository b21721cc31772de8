//! An exact vector kept exact while links change: only what a batch of changes touches is computed again.
//!
//! Importance y solves (λ − c·M)·y = (1−c)·E, λ = 1/r (or 1 where what pages without links have is spread, and y is scaled at the end).
//! When links of some pages change, the *residual* F = (1−c)·E − (λ − c·M)·y is no longer 0, but only at pages that these link or linked to.
//! [`Residual`] passes it on until little is left. What is left stays where it is for the next batch, so that what repairs leave does not
//! add up.
//!
//! λ changes, too, as pages with links have more or less: by dλ = (|y|₁ − 1)/|z|₁ with the *sensitivity* z = (λ − c·M)⁻¹·y, kept from when
//! the vector was computed, and y − dλ·z is the vector then, but for what is of second order, which the next sweeps see. With the *image*
//! w = (λ − c·M)·z, which changed links change at few pages and a new λ by dλ·z, the residual is known after that correction without a
//! look at any link: F + dλ·(w − y) + dλ²·z.
//!
//! New pages are no different. Where E is uniform the shares of the old pages become smaller, and so do y, z and F in proportion; a new page
//! begins with nothing, and what E gives it is its residual.

mod line;
mod residual;

use std::collections::HashSet;

use self::line::Line;
use self::residual::{Pass, Residual, sum_of};
use super::graph::{Graph, share};
use super::power::gather;
use super::{FixedPoint, ImportanceError, Method, Personalisation, Settings, importance, personalisation};

/// λ is corrected when the residual has come down to this part.
const STAGE: f64 = 0.005;
/// Corrections after which something is wrong.
const CORRECTIONS_MAX: u32 = 50;
/// A vector of so many times the pages it was computed for is computed again: what z says of the new ones is only a guess.
const GROWTH_MAX: f64 = 1.25;
/// Rounding may hide so much of what is asked for.
const ROUNDING_MAX: f64 = 0.1;
/// z is found to about this part of itself: what it lacks is of second order.
const SENSITIVITY_EPSILON: f64 = 1e-4;

/// What a repair took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Repaired {
    /// Pages whose residual was passed on, each as often as it was.
    pub pages: u64,
    /// Links that it was passed on along.
    pub links: u64,
    /// Scans of all links beside that: to see what is left over, or of power iteration, where it was that in the end.
    pub scans: u32,
    /// Sweeps.
    pub sweeps: u32,
    /// What a round of power iteration would still change.
    pub change: f64,
    /// Whether it was power iteration in the end, from there on: what changed was too much for small steps, as when pages that link to
    /// themselves alone hold on to more than r allowed before.
    pub again: bool,
}

/// A page whose links have changed, and the links that it had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Before {
    /// Which.
    pub page: u32,
    /// The pages that it linked to, sorted, each once.
    pub links: Vec<u32>,
}

/// Importance, with what it takes to repair it.
#[derive(Debug, Clone)]
pub struct Exact {
    damping: f64,
    fixed_point: FixedPoint,
    e: Personalisation,
    /// y.
    values: Vec<f64>,
    lambda: f64,
    /// F.
    residual: Residual,
    /// Which pages link to themselves.
    to_self: Vec<bool>,
    /// z, where λ is not always 1.
    sensitivity: Vec<f64>,
    /// w, where there is z.
    image: Vec<f64>,
    /// How many pages there were when z was found.
    computed_pages: usize,
    line: Line,
    /// What rounding may have put between F and what it is, since it was last computed from all links.
    rounding: f64,
}

impl Exact {
    /// From importance as it was computed. Where r is in every step this takes about as long as computing it did.
    ///
    /// # Errors
    /// When a setting is out of its range, or `importance` is not of these pages.
    pub fn new(
        graph: &Graph,
        e: &Personalisation,
        importance: &[f64],
        settings: &Settings,
    ) -> Result<Self, ImportanceError> {
        settings.check()?;
        e.check_len(graph.pages())?;
        let mut values = personalisation::normalised("importance", importance, graph.pages())?;
        let c = settings.damping;
        let linked: f64 = values
            .iter()
            .enumerate()
            .filter(|(page, _)| graph.out().degree(*page) > 0)
            .map(|(_, value)| value)
            .sum();
        let (mut lambda, mut sensitivity, mut image) = (1.0, Vec::new(), Vec::new());
        match settings.fixed_point {
            FixedPoint::Spread => {
                let by = (1.0 - c) / (1.0 - c * linked);
                values.iter_mut().for_each(|value| *value *= by);
            }
            FixedPoint::Renormalised => {
                lambda = c * linked + (1.0 - c);
                sensitivity = sensitivity_of(graph, &values, lambda, c, settings.rounds_max);
                image = image_of(graph, &sensitivity, lambda, c);
            }
        }
        let left = residual_of(graph, e, &values, lambda, c);
        let to_self = (0..graph.pages()).map(|page| links_to_self(graph, page as u32)).collect();
        let (residual, e) = (Residual::new(left), e.clone());
        let (damping, fixed_point) = (c, settings.fixed_point);
        let (computed_pages, rounding, line) = (graph.pages(), 0.0, Line::new(graph.pages()));
        Ok(Self {
            damping,
            fixed_point,
            e,
            values,
            lambda,
            residual,
            to_self,
            sensitivity,
            image,
            computed_pages,
            line,
            rounding,
        })
    }

    /// The importance of every page.
    #[must_use]
    pub fn importance(&self) -> Vec<f64> {
        // What a page lacks may lie in its residual: a page that has nothing can be off to the other side by what is left.
        let at_least_nothing = || self.values.iter().map(|value| value.max(0.0));
        let sum: f64 = at_least_nothing().sum();
        at_least_nothing().map(|value| value / sum).collect()
    }

    /// Brings the vector to the fixed point of `graph`, which differs from the graph before in the links of the pages of `before`, and in
    /// pages beyond the last there was, which `before` need not name. E of these is what it is of the others where it is uniform, else 0.
    /// Of a page that is named twice the first counts: `before` is what was before all of the batch.
    ///
    /// # Errors
    /// When a setting is out of its range, the graph has fewer pages than before, or a changed page is none.
    pub fn repair(
        &mut self,
        graph: &Graph,
        before: &[Before],
        settings: &Settings,
    ) -> Result<Repaired, ImportanceError> {
        settings.check()?;
        let pages = graph.pages();
        let known = self.values.len();
        personalisation::check_len("importance", known, known.min(pages))?;
        let pages_of = |one: &Before| one.links.iter().copied().chain([one.page]).max();
        if let Some(beyond) = before.iter().filter_map(pages_of).max().filter(|page| *page as usize >= pages)
        {
            return Err(ImportanceError::Page { page: u64::from(beyond), pages: pages as u64 });
        }
        self.grow(graph);
        let mut changed = HashSet::new();
        for one in before {
            if (one.page as usize) < known && changed.insert(one.page) {
                self.change(graph, one);
            }
        }
        self.residual.count();
        let mut done = Repaired::default();
        self.line.start();
        if pages as f64 > GROWTH_MAX * self.computed_pages as f64 {
            return self.compute_again(graph, settings, done);
        }
        for _ in 0..CORRECTIONS_MAX {
            let (norm, comes_to) = self.measures();
            let goal = 0.75 * settings.epsilon * norm / comes_to;
            let last = self.fixed_point == FixedPoint::Spread;
            let target = if last { goal } else { goal.max(STAGE * self.residual.sum()) };
            let pass = Pass {
                graph,
                to_self: &self.to_self,
                lift: (&self.sensitivity, &self.image),
                damping: self.damping,
                lambda: self.lambda,
            };
            if !self.residual.pass_on(&pass, &mut self.values, target, &mut self.line, &mut done) {
                break;
            }
            done.change = self.residual.sum() / (self.lambda * norm);
            // What is left over comes to about this much when all of it is passed on.
            let coming = self.residual.total() * comes_to;
            let off = sum_of(&self.values) + coming - 1.0;
            let settled = last || off.abs() <= 0.25 * settings.epsilon;
            if settled && self.residual.sum() <= goal {
                let rounding = self.rounding + self.line.rounding();
                if rounding <= ROUNDING_MAX * goal {
                    self.rounding = rounding;
                    return Ok(done);
                }
                self.look_again(graph);
                self.line.start();
                done.scans += 1;
                continue;
            }
            if !settled {
                let change = self.correct(off);
                self.line.corrected(change, &self.values, self.residual.of_page());
                self.residual.count();
            }
        }
        self.compute_again(graph, settings, done)
    }

    /// What y is measured by (it adds up to 1, or is what it is), and what a residual comes to, as a multiple, when it is passed on: where λ
    /// is not 1, as much as one in the proportion of y did when z was found.
    fn measures(&self) -> (f64, f64) {
        match self.fixed_point {
            FixedPoint::Renormalised => (1.0, sum_of(&self.sensitivity)),
            FixedPoint::Spread => (sum_of(&self.values), 1.0 / (1.0 - self.damping)),
        }
    }

    /// Makes room for new pages, which have nothing yet but what E says.
    #[expect(clippy::indexing_slicing, reason = "all have as many values as the graph has pages by then")]
    fn grow(&mut self, graph: &Graph) {
        let (known, pages) = (self.values.len(), graph.pages());
        if pages == known {
            return;
        }
        let by = self.e.grow(pages);
        let old = self.values.iter_mut().chain(&mut self.sensitivity).chain(&mut self.image);
        old.for_each(|value| *value *= by);
        self.values.resize(pages, 0.0);
        let of_e = |page| (1.0 - self.damping) * self.e.share(page);
        self.residual.grow(by, (known..pages).map(of_e));
        self.to_self.extend((known..pages).map(|page| links_to_self(graph, page as u32)));
        if self.fixed_point == FixedPoint::Spread {
            return;
        }
        // What E alone gives a page, and what that is sensitive to: new pages have few links to them.
        self.sensitivity.extend((known..pages).map(|page| of_e(page) / (self.lambda * self.lambda)));
        self.image.extend(self.sensitivity[known..].iter().map(|sensitivity| self.lambda * sensitivity));
        for page in known..pages {
            let links = graph.out().row(page);
            let each = self.damping * self.sensitivity[page] * share(links.len());
            links.iter().for_each(|link| self.image[*link as usize] -= each);
        }
    }

    /// What changed links of a page change.
    #[expect(clippy::indexing_slicing, reason = "pages were checked against the graph")]
    fn change(&mut self, graph: &Graph, before: &Before) {
        let page = before.page as usize;
        let (old, new) = (before.links.as_slice(), graph.links_of(before.page));
        for (links, sign) in [(old, -1.0), (new, 1.0)] {
            let each = sign * self.damping * share(links.len());
            self.residual.give(links, each * self.values[page]);
            if let Some(sensitivity) = self.sensitivity.get(page) {
                links.iter().for_each(|link| self.image[*link as usize] -= each * sensitivity);
            }
        }
        self.to_self[page] = links_to_self(graph, before.page);
    }

    /// λ and y, so that y adds up to 1, and what that changes; says by how much λ is larger.
    fn correct(&mut self, off: f64) -> f64 {
        let change = off / sum_of(&self.sensitivity);
        self.lambda += change;
        let of_page = self.values.iter_mut().zip(&self.sensitivity).zip(&mut self.image);
        self.residual.correct(of_page.map(|((value, sensitivity), image)| {
            *value -= change * sensitivity;
            let more = change * (*image - *value);
            *image += change * sensitivity;
            more
        }));
        change
    }

    /// F and w from all links, as exactly as that goes.
    fn look_again(&mut self, graph: &Graph) {
        let (lambda, c) = (self.lambda, self.damping);
        self.residual = Residual::new(residual_of(graph, &self.e, &self.values, lambda, c));
        if !self.sensitivity.is_empty() {
            self.image = image_of(graph, &self.sensitivity, lambda, c);
        }
        self.rounding = 0.0;
    }

    /// Power iteration from what there is.
    fn compute_again(
        &mut self,
        graph: &Graph,
        settings: &Settings,
        done: Repaired,
    ) -> Result<Repaired, ImportanceError> {
        let share = 1.0 / graph.pages().max(1) as f64;
        let fine = |value: &f64| if value.is_finite() && *value > 0.0 { value.min(1.0) } else { share };
        let start: Vec<f64> = self.values.iter().map(fine).collect();
        let settings = Settings { damping: self.damping, fixed_point: self.fixed_point, ..*settings };
        let found = importance(graph, &self.e, Some(&start), Method::Power, &settings)?;
        *self = Exact::new(graph, &self.e, &found.values, &settings)?;
        Ok(Repaired { scans: done.scans + found.rounds, change: found.change, again: true, ..done })
    }
}

fn links_to_self(graph: &Graph, page: u32) -> bool {
    graph.links_of(page).binary_search(&page).is_ok()
}

/// (1−c)·E − (λ − c·M)·y.
fn residual_of(graph: &Graph, e: &Personalisation, values: &[f64], lambda: f64, c: f64) -> Vec<f64> {
    let mut left = image_of(graph, values, lambda, c);
    let of_page = left.iter_mut().enumerate();
    of_page.for_each(|(page, left)| *left = (1.0 - c) * e.share(page) - *left);
    left
}

/// (λ − c·M)·v.
#[expect(clippy::indexing_slicing, reason = "rows name pages there are")]
fn image_of(graph: &Graph, values: &[f64], lambda: f64, c: f64) -> Vec<f64> {
    let passing: Vec<f64> = values.iter().zip(graph.shares()).map(|(value, share)| value * share).collect();
    let mut image = vec![0.0; graph.pages()];
    graph.into().for_rows(0..graph.pages(), |page, sources| {
        image[page] = lambda * values[page] - c * gather(&passing, sources);
    });
    image
}

/// z = (λ − c·M)⁻¹·y, each page from the newest values.
#[expect(clippy::indexing_slicing, reason = "rows name pages there are")]
fn sensitivity_of(graph: &Graph, values: &[f64], lambda: f64, c: f64, rounds_max: u32) -> Vec<f64> {
    let shares = graph.shares();
    let mut found: Vec<f64> = values.iter().map(|value| value / lambda).collect();
    let mut passing: Vec<f64> = found.iter().zip(&shares).map(|(value, share)| value * share).collect();
    for _ in 0..rounds_max {
        let (mut changed, mut sum) = (0.0, 0.0);
        graph.into().for_rows(0..graph.pages(), |page, sources| {
            let value = (c * gather(&passing, sources) + values[page]) / lambda;
            changed += (value - found[page]).abs();
            sum += value;
            found[page] = value;
            passing[page] = value * shares[page];
        });
        if changed <= SENSITIVITY_EPSILON * (1.0 - c) * sum {
            break;
        }
    }
    found
}
