//! An exact vector kept exact while links change: only what a batch of changes touches is computed again.
//!
//! Importance y solves (λ − c·M)·y = (1−c)·E, λ = 1/r (or 1 where what pages without links have is spread, and y is scaled at the end).
//! When links of some pages change, the *residual* F = (1−c)·E − (λ − c·M)·y is no longer 0, but only at pages that gained or lost a link.
//! Taking a page's residual into its value and passing c/λ of it on to its links leaves the equation as it is and makes the residual
//! smaller; so sweeps go over the pages, and look only at those whose residual, by the links it costs to pass it on, is not below the
//! average. What is left adds up to what a round of power iteration would change, and the same measure stops.
//!
//! λ changes, too, as pages with links have more or less: by dλ = (|y|₁ − 1)/|z|₁ with the *sensitivity* z = (λ − c·M)⁻¹·y, kept from when
//! the vector was computed, and y − dλ·z is the vector then, but for what is of second order, which the next sweeps see. That correction
//! touches every page, so it is made once or twice, each time with one scan of all links for the residual.
//!
//! New pages are no different. Where E is uniform the shares of the old pages become smaller, and so does y in proportion, which leaves no
//! residual; a new page begins with nothing, and what E gives it is its residual.

use super::graph::{Graph, share};
use super::power::gather;
use super::{FixedPoint, ImportanceError, Method, Personalisation, Settings, importance, personalisation};

/// What it costs to look at a page, in links.
const PAGE_COST: f64 = 4.0;
/// A sweep looks at pages whose residual a link is at least this part of the average.
const LOOKED_AT: f64 = 0.5;
/// λ is corrected when the residual has come down to this part.
const STAGE: f64 = 0.02;
/// Sweeps after which something is wrong.
const SWEEPS_MAX: u32 = 2000;
/// z is found to within this part of itself: what it lacks is of second order.
const SENSITIVITY_EPSILON: f64 = 1e-4;

/// What a repair took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Repaired {
    /// Pages whose residual was passed on, each as often as it was.
    pub pages: u64,
    /// Links that it was passed on along.
    pub links: u64,
    /// Scans of all links beside that.
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
    /// z, where λ is not always 1.
    sensitivity: Vec<f64>,
}

/// The residual while it is worked on.
struct Residual {
    of_page: Vec<f64>,
    /// The sum of its absolute values.
    sum: f64,
    /// What it would cost to pass all of it on.
    cost: f64,
}

impl Exact {
    /// From importance as it was computed. Where r is in every step this takes as long as a few dozen rounds.
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
        let (mut lambda, mut sensitivity) = (1.0, Vec::new());
        match settings.fixed_point {
            FixedPoint::Spread => {
                let by = (1.0 - c) / (1.0 - c * linked);
                values.iter_mut().for_each(|value| *value *= by);
            }
            FixedPoint::Renormalised => {
                lambda = c * linked + (1.0 - c);
                sensitivity = sensitivity_of(graph, &values, lambda, c, settings.rounds_max);
            }
        }
        let (damping, fixed_point, e) = (c, settings.fixed_point, e.clone());
        Ok(Self { damping, fixed_point, e, values, lambda, sensitivity })
    }

    /// The importance of every page.
    #[must_use]
    pub fn importance(&self) -> Vec<f64> {
        let sum: f64 = self.values.iter().sum();
        self.values.iter().map(|value| value / sum).collect()
    }

    /// Brings the vector to the fixed point of `graph`, which differs from the graph before in the links of the pages of `before`, and in
    /// pages beyond the last there was, which `before` need not name. E of these is what it is of the others where it is uniform, else 0.
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
        self.grow(pages);
        let mut residual = self.first_residual(graph, before, known);
        let mut done = Repaired::default();
        loop {
            let change_max = settings.change_max() * self.lambda * self.norm();
            let last = self.fixed_point == FixedPoint::Spread;
            let target = if last { change_max } else { change_max.max(STAGE * residual.sum) };
            if !self.sweep(graph, &mut residual, target, &mut done) {
                return self.compute_again(graph, settings, done);
            }
            done.change = residual.sum / (self.lambda * self.norm());
            // What is left over comes to about this much when all of it is passed on.
            let coming = residual.of_page.iter().sum::<f64>() / (1.0 - self.damping);
            let off = self.values.iter().sum::<f64>() + coming - 1.0;
            let settled = last || off.abs() <= settings.change_max() / 2.0;
            if settled && residual.sum <= change_max {
                return Ok(done);
            }
            if !settled {
                self.correct(off);
                residual = self.whole_residual(graph);
                done.scans += 1;
            }
        }
    }

    /// Makes room for new pages, which have nothing yet.
    fn grow(&mut self, pages: usize) {
        let known = self.values.len();
        if pages == known {
            return;
        }
        let by = self.e.grow(pages);
        self.values.iter_mut().chain(&mut self.sensitivity).for_each(|value| *value *= by);
        self.values.resize(pages, 0.0);
        if self.fixed_point == FixedPoint::Renormalised {
            // What E alone gives a page, and what that is sensitive to: new pages have few links to them.
            let lambda = self.lambda;
            let of = |page| (1.0 - self.damping) * self.e.share(page) / (lambda * lambda);
            self.sensitivity.extend((known..pages).map(of));
        }
    }

    /// What a change is measured by: y adds up to 1, or is what it is.
    fn norm(&self) -> f64 {
        match self.fixed_point {
            FixedPoint::Renormalised => 1.0,
            FixedPoint::Spread => self.values.iter().sum(),
        }
    }

    /// The residual that changed links, and pages from `known` on, leave.
    #[expect(clippy::indexing_slicing, reason = "pages were checked against the graph")]
    fn first_residual(&self, graph: &Graph, before: &[Before], known: usize) -> Residual {
        let mut of_page = vec![0.0; graph.pages()];
        for (page, left) in of_page.iter_mut().enumerate().skip(known) {
            *left = (1.0 - self.damping) * self.e.share(page);
        }
        for one in before {
            let has = self.damping * self.values[one.page as usize];
            let (old, new) = (one.links.as_slice(), graph.links_of(one.page));
            old.iter().for_each(|link| of_page[*link as usize] -= has * share(old.len()));
            new.iter().for_each(|link| of_page[*link as usize] += has * share(new.len()));
        }
        Residual::of(of_page, graph)
    }

    /// The residual of every page, by a scan of all links.
    #[expect(clippy::indexing_slicing, reason = "rows name pages there are")]
    fn whole_residual(&self, graph: &Graph) -> Residual {
        let c = self.damping;
        let shares = graph.shares();
        let passing: Vec<f64> = self.values.iter().zip(&shares).map(|(value, share)| value * share).collect();
        let mut of_page = vec![0.0; graph.pages()];
        graph.into().for_rows(0..graph.pages(), |page, sources| {
            of_page[page] = (1.0 - c) * self.e.share(page) + c * gather(&passing, sources)
                - self.lambda * self.values[page];
        });
        Residual::of(of_page, graph)
    }

    /// λ and y, so that y adds up to 1.
    fn correct(&mut self, off: f64) {
        let change = off / self.sensitivity.iter().sum::<f64>();
        self.lambda += change;
        for (value, sensitivity) in self.values.iter_mut().zip(&self.sensitivity) {
            *value -= change * sensitivity;
        }
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

    /// Passes residuals on until they add up to `target`; false where they don't get less.
    #[expect(clippy::indexing_slicing, reason = "rows name pages there are")]
    fn sweep(&mut self, graph: &Graph, residual: &mut Residual, target: f64, done: &mut Repaired) -> bool {
        let (into_value, onward) = (1.0 / self.lambda, self.damping / self.lambda);
        let most = 4.0 * residual.sum;
        while residual.sum > target {
            if done.sweeps >= SWEEPS_MAX || residual.sum > most {
                return false;
            }
            let least = LOOKED_AT * residual.sum / residual.cost;
            let least_of_any = least * PAGE_COST;
            let of_page = &mut residual.of_page;
            for page in 0..of_page.len() {
                let left = of_page[page];
                // Most pages end here, so their links are not asked for.
                if left == 0.0 || left.abs() < least_of_any {
                    continue;
                }
                let links = graph.out().row(page);
                if left.abs() < least * (links.len() as f64 + PAGE_COST) {
                    continue;
                }
                of_page[page] = 0.0;
                self.values[page] += left * into_value;
                let each = left * onward * share(links.len());
                for link in links {
                    of_page[*link as usize] += each;
                }
                done.pages += 1;
                done.links += links.len() as u64;
            }
            done.sweeps += 1;
            residual.count(graph);
        }
        true
    }
}

impl Residual {
    fn of(of_page: Vec<f64>, graph: &Graph) -> Residual {
        let mut residual = Residual { of_page, sum: 0.0, cost: PAGE_COST };
        residual.count(graph);
        residual
    }

    /// Adds up what there is, in four sums: one alone waits for itself.
    fn count(&mut self, graph: &Graph) {
        let (mut sums, mut pages) = ([0.0; 4], [0u32; 4]);
        let (fours, rest) = self.of_page.as_chunks::<4>();
        for four in fours.iter().copied().chain(rest.iter().map(|left| [*left, 0.0, 0.0, 0.0])) {
            for ((sum, pages), left) in sums.iter_mut().zip(&mut pages).zip(four) {
                *sum += left.abs();
                *pages += u32::from(left != 0.0);
            }
        }
        self.sum = sums.iter().sum();
        let links = graph.links() as f64 / graph.pages().max(1) as f64;
        self.cost = f64::from(pages.iter().sum::<u32>()).max(1.0) * (links + PAGE_COST);
    }
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
