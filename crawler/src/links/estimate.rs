//! Importance and usefulness of all URLs, from the links there are: in memory where they fit, on disk else; from the last result on.

use std::path::Path;

use super::ranks::{Ranks, RanksWriter};
use super::{Links, LinksError, Result};
use crate::importance::on_disk::{OnDisk, Rounds, Scan};
use crate::importance::{
    GraphBuilder, Method, Personalisation, Settings, Solution, Usefulness, check_publication, importance,
    publish, usefulness,
};
use crate::link_matrix::{Matrix, MatrixError};

/// Pages that somebody names, to be lifted.
#[derive(Debug, Clone, PartialEq)]
pub struct Lifted {
    /// Their URL-ids.
    pub pages: Vec<u32>,
    /// Into which part of all pages: 0.2 for the top 20 %.
    pub top: f64,
}

/// How to compute.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// The numbers of the fixpoint.
    pub settings: Settings,
    /// Power iteration or Gauss–Seidel.
    pub method: Method,
    /// What usefulness is.
    pub usefulness: Usefulness,
    /// A publication or subscription.
    pub lifted: Option<Lifted>,
    /// Memory that may be used. Where the links don't fit, everything stays on disk.
    pub memory_bytes: usize,
}

/// What was computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimated {
    /// Whether it was in memory.
    pub in_memory: bool,
    /// Rounds of importance.
    pub importance_rounds: u32,
    /// Rounds of usefulness.
    pub usefulness_rounds: u32,
    /// The share of E that the lifted pages needed.
    pub strength: f64,
    /// Whether they are where they should be.
    pub reached: bool,
}

/// What links and vectors take in memory.
fn memory_bytes(matrix: &Matrix) -> usize {
    let (links, pages) = (matrix.links() as usize, matrix.pages() as usize);
    // Links as pairs while they are sorted into rows, then rows both ways; where rows begin, and some vectors.
    16 * links + 96 * pages
}

/// Computes importance and usefulness of all URLs there are, and keeps them: [`Links::ranks`] has them then.
///
/// # Errors
/// When the disk refuses, a setting is out of its range, or a vector does not settle. The last result stays then.
pub fn estimate(links: &mut Links, wanted: &Wanted, at_ms: u64) -> Result<Estimated> {
    let path = links.dir.join("ranks");
    let Some(matrix) = links.matrix()? else {
        RanksWriter::create(&path, at_ms)?.finish()?;
        let (importance_rounds, usefulness_rounds) = (0, 0);
        return Ok(Estimated {
            in_memory: true,
            importance_rounds,
            usefulness_rounds,
            strength: 0.0,
            reached: true,
        });
    };
    let last = links.ranks()?;
    let needed = memory_bytes(&matrix);
    if needed <= wanted.memory_bytes {
        return in_memory(links, &matrix, last, wanted, (&path, at_ms));
    }
    if wanted.usefulness != Usefulness::Average {
        let what = "this kind of usefulness";
        return Err(LinksError::Memory { what, needed, given: wanted.memory_bytes });
    }
    on_disk(links, matrix, last, wanted, (&path, at_ms))
}

fn settled(what: &'static str, converged: bool, change: f64, rounds: u32) -> Result<u32> {
    if converged { Ok(rounds) } else { Err(LinksError::Unsettled { what, change, rounds }) }
}

fn in_memory(
    links: &Links,
    matrix: &Matrix,
    last: Option<Ranks>,
    wanted: &Wanted,
    (path, at_ms): (&Path, u64),
) -> Result<Estimated> {
    let mut builder = GraphBuilder::new();
    matrix.for_links(|from, to| builder.add(from, to))?;
    let pages = matrix.pages() as usize;
    let graph = builder.build(Some(pages))?;
    let start = match last {
        Some(mut last) if !last.is_empty() => {
            let share = 1.0 / pages.max(1) as f64;
            let mut start = (Vec::with_capacity(pages), Vec::with_capacity(pages));
            for page in 0..matrix.pages() {
                let (importance, usefulness) = last.get(page)?.unwrap_or((share, 0.0));
                start.0.push(importance);
                start.1.push(usefulness);
            }
            Some(start)
        }
        _ => None,
    };
    let settings = &wanted.settings;
    let (before, before_useful) = match &start {
        Some((importance, useful)) => (Some(importance.as_slice()), Some(useful.as_slice())),
        None => (None, None),
    };
    let e = Personalisation::uniform(pages);
    let (found, strength, reached): (Solution, f64, bool) = match &wanted.lifted {
        Some(lifted) => {
            let published = publish(&graph, &e, &lifted.pages, lifted.top, settings)?;
            (published.importance, published.strength, published.reached)
        }
        None => (importance(&graph, &e, before, wanted.method, settings)?, 0.0, true),
    };
    let importance_rounds = settled("importance", found.converged, found.change, found.rounds)?;
    let (kind, interest) = (wanted.usefulness, links.interest());
    let useful = usefulness(&graph, &found.values, &interest, kind, before_useful, wanted.method, settings)?;
    let usefulness_rounds = settled("usefulness", useful.converged, useful.change, useful.rounds)?;
    let mut ranks = RanksWriter::create(path, at_ms)?;
    for (importance, useful) in found.values.iter().zip(&useful.values) {
        ranks.push(*importance, *useful)?;
    }
    ranks.finish()?;
    Ok(Estimated { in_memory: true, importance_rounds, usefulness_rounds, strength, reached })
}

fn on_disk(
    links: &Links,
    matrix: Matrix,
    last: Option<Ranks>,
    wanted: &Wanted,
    (path, at_ms): (&Path, u64),
) -> Result<Estimated> {
    let work = links.dir.join("work");
    std::fs::create_dir_all(&work).map_err(LinksError::io("make", &work))?;
    let (disk, interest, settings) = (links.disk.clone(), links.interest(), wanted.settings);
    let pages = matrix.pages() as usize;
    let memory_bytes = wanted.memory_bytes;
    let mut solving = match last.filter(|last| !last.is_empty()) {
        Some(mut last) => {
            let corrupt = |e: LinksError| MatrixError::corrupt(path, 0, e.to_string());
            let known = |page: u32| last.get(page).map_err(corrupt);
            OnDisk::start_from(disk, &work, matrix, interest, settings, memory_bytes, known)?
        }
        None => OnDisk::start(disk, &work, matrix, interest, settings, memory_bytes)?,
    };
    let scan = if wanted.method == Method::Power { Scan::Power } else { Scan::GaussSeidel };
    let told = |what, done: Rounds| settled(what, done.converged, done.change, done.rounds);
    let (done, strength, reached) = match &wanted.lifted {
        Some(lifted) => {
            check_publication(&lifted.pages, lifted.top, pages)?;
            let lifting = solving.publish(&lifted.pages, lifted.top, scan, settings.rounds_max)?;
            (lifting.rounds, lifting.strength, lifting.reached)
        }
        None => (solving.importance(scan, settings.rounds_max)?, 0.0, true),
    };
    let importance_rounds = told("importance", done)?;
    let usefulness_rounds = told("usefulness", solving.usefulness(scan, settings.rounds_max)?)?;
    let mut ranks = RanksWriter::create(path, at_ms)?;
    let mut failed = None;
    solving.for_both(|importance, useful| {
        if failed.is_none() {
            failed = ranks.push(importance, useful).err();
        }
    })?;
    if let Some(failed) = failed {
        return Err(failed);
    }
    ranks.finish()?;
    drop(solving);
    std::fs::remove_dir_all(&work).map_err(LinksError::io("remove", &work))?;
    Ok(Estimated { in_memory: false, importance_rounds, usefulness_rounds, strength, reached })
}
