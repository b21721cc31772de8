//! Publications and subscriptions: pages that somebody names, lifted as far as was asked.
//!
//! The papers add a virtual page that links to the pages named, of an importance relative to the repository's: enough to bring
//! them into, say, its top 20 %. Its importance is fixed, so it is a share of E: E' = (1 − s)·E + s·(the pages named, alike).
//! s is solved for. More of it gives every page named more and takes from the others in proportion, so halving finds it.

use super::graph::Graph;
use super::{ImportanceError, Method, Personalisation, Settings, Solution, importance};

/// s is found to within this part of itself.
const STRENGTH_PART: f64 = 1e-3;
/// No publication has more of E than this.
const STRENGTH_MAX: f64 = 0.999;

/// What a publication comes to.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// s: the virtual page's share of E. 0 where the pages are there without it.
    pub strength: f64,
    /// E with it.
    pub personalisation: Personalisation,
    /// The importance that comes of it.
    pub importance: Solution,
    /// Whether all the pages are where they should be. More pages than fit there never are.
    pub reached: bool,
}

/// The least strength that lifts all of `named` into the `top` part (0.2: the top 20 %) of all pages, by importance.
///
/// # Errors
/// When `top` is not between 0 and 1, a page named is none, or as for [`importance`].
pub fn publish(
    graph: &Graph,
    e: &Personalisation,
    named: &[u32],
    top: f64,
    settings: &Settings,
) -> Result<Published, ImportanceError> {
    check(named, top, graph.pages())?;
    let mut named = named.to_vec();
    named.sort_unstable();
    named.dedup();
    let with = |strength: f64| -> Result<Personalisation, ImportanceError> {
        if strength == 0.0 {
            return Ok(e.clone());
        }
        let mut shares: Vec<f64> = e.to_vec().iter().map(|share| share * (1.0 - strength)).collect();
        for page in &named {
            if let Some(share) = shares.get_mut(*page as usize) {
                *share += strength / named.len() as f64;
            }
        }
        Personalisation::new(&shares)
    };
    let solve = |strength: f64, start: Option<&[f64]>| -> Result<Published, ImportanceError> {
        let personalisation = with(strength)?;
        let importance = importance(graph, &personalisation, start, Method::Power, settings)?;
        let reached = are_top(&importance.values, &named, top);
        Ok(Published { strength, personalisation, importance, reached })
    };
    let mut best: Option<Published> = None;
    let mut last: Option<Vec<f64>> = None;
    least_strength(|strength| {
        let tried = solve(strength, last.as_deref())?;
        let reached = tried.reached;
        last = Some(tried.importance.values.clone());
        if reached || strength == STRENGTH_MAX {
            best = Some(tried);
        }
        Ok::<_, ImportanceError>(reached)
    })?;
    // The search ends with a strength that is enough, or has tried the most there is.
    best.map_or_else(|| solve(STRENGTH_MAX, None), Ok)
}

/// Whether pages named and the part that is the top make sense.
pub(crate) fn check(named: &[u32], top: f64, pages: usize) -> Result<(), ImportanceError> {
    if !(top > 0.0 && top <= 1.0) {
        return Err(ImportanceError::Setting { name: "top", expected: "above 0, at most 1", found: top });
    }
    match named.iter().find(|page| **page as usize >= pages) {
        Some(beyond) => Err(ImportanceError::Page { page: u64::from(*beyond), pages: pages as u64 }),
        None => Ok(()),
    }
}

/// The least strength that `is_enough`, and whether even the most is: between one that is too little and one that is enough, on a
/// scale of proportions.
pub(super) fn least_strength<E>(mut is_enough: impl FnMut(f64) -> Result<bool, E>) -> Result<(f64, bool), E> {
    if is_enough(0.0)? {
        return Ok((0.0, true));
    }
    if !is_enough(STRENGTH_MAX)? {
        return Ok((STRENGTH_MAX, false));
    }
    let (mut little, mut enough) = (1e-12, STRENGTH_MAX);
    while enough > little * (1.0 + STRENGTH_PART) {
        let middle = (little * enough).sqrt();
        if is_enough(middle)? { enough = middle } else { little = middle }
    }
    Ok((enough, true))
}

/// How many pages the `top` part of them is.
pub(super) fn places(pages: usize, top: f64) -> usize {
    ((pages as f64 * top).floor() as usize).max(1)
}

/// Whether all of `named` are among the `top` part of all pages; pages alike share the better place.
fn are_top(values: &[f64], named: &[u32], top: f64) -> bool {
    let least =
        named.iter().filter_map(|page| values.get(*page as usize)).copied().fold(f64::INFINITY, f64::min);
    values.iter().filter(|value| **value > least).count() < places(values.len(), top)
}
