//! Rounds in memory, and how many of them there are.

use std::time::Instant;

use anyhow::Result;
use webbase_crawler::importance::{
    Grid, Interest, Method, Personalisation, Settings, Usefulness, both, importance, usefulness,
};

use super::web::{INTEREST, LINKS, graph};

/// Rounds over links anywhere, and over links that are mostly local.
pub(super) fn memories(pages: u32) -> Result<()> {
    for local in [0, 80] {
        memory(pages, local)?;
    }
    Ok(())
}

/// A round in memory, against a bare loop over the same rows.
fn memory(pages: u32, local: u32) -> Result<()> {
    let graph = graph(pages, local)?;
    let million = graph.links() as f64 / 1e6;
    println!("\nin memory: {pages} pages, {million:.1} million links, {local} % of them local");
    let rows = |page: u32| graph.links_to(page);
    let mut begins = vec![0usize];
    let mut sources: Vec<u32> = Vec::with_capacity(graph.links());
    for page in 0..pages {
        sources.extend_from_slice(rows(page));
        begins.push(sources.len());
    }
    let e = Personalisation::uniform(graph.pages());
    let rounds = 3u32;
    let (mut bare, mut bare_two, mut one, mut two) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..5 {
        bare.push(bare_loop(&begins, &sources, rounds, 1));
        bare_two.push(bare_loop(&begins, &sources, rounds, 2));
        for (threads, times) in [(1, &mut one), (2, &mut two)] {
            let settings = Settings { threads, rounds_max: rounds, epsilon: 1e-300, ..Settings::default() };
            let fewer = Settings { rounds_max: 1, ..settings };
            // Two runs, so that setting up is taken out.
            let begun = Instant::now();
            importance(&graph, &e, None, Method::Power, &fewer)?;
            let between = Instant::now();
            importance(&graph, &e, None, Method::Power, &settings)?;
            let (short, long) = (between - begun, between.elapsed());
            times.push((long.as_secs_f64() - short.as_secs_f64()) / f64::from(rounds - 1));
        }
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let (bare, bare_two) = (median(&mut bare), median(&mut bare_two));
    let (one, two) = (median(&mut one), median(&mut two));
    println!("  bare loop        {:7.1} million links/s", million / bare);
    println!(
        "  bare, 2 threads  {:7.1} million links/s, {:.2} times one",
        million / bare_two,
        bare / bare_two
    );
    println!("  power, 1 thread  {:7.1} million links/s, {:.2} of the bare loop", million / one, bare / one);
    println!(
        "  power, 2 threads {:7.1} million links/s, {:.2} times one, {:.2} of the bare loop's two",
        million / two,
        one / two,
        bare_two / two
    );
    drop((begins, sources));
    let interest = Interest::of(graph.pages(), |page| page % INTEREST == 0);
    let once = Settings { rounds_max: 2, epsilon: 1e-300, ..Settings::default() };
    let begun = Instant::now();
    let known = importance(&graph, &e, None, Method::Power, &once)?.values;
    usefulness(&graph, &known, &interest, Usefulness::Average, None, Method::Power, &once)?;
    let apart = begun.elapsed().as_secs_f64() / 2.0;
    let grid = Grid::of(&graph);
    let begun = Instant::now();
    both(&grid, &e, &interest, Usefulness::Average, None, &once)?;
    let together = begun.elapsed().as_secs_f64() / 2.0;
    println!(
        "  both vectors, a round of each: {apart:.2} s one after the other, {together:.2} s in one scan"
    );
    Ok(())
}

/// What a round of links cannot go below without being cleverer, and two threads not without more memory channels: seconds a round.
/// A row's values are added up and written; no sums, no stop, nothing else.
fn bare_loop(begins: &[usize], sources: &[u32], rounds: u32, threads: usize) -> f64 {
    let pages = begins.len() - 1;
    let (mut values, mut next) = (vec![1.0 / pages as f64; pages], vec![0.0; pages]);
    let begun = Instant::now();
    for _ in 0..rounds {
        let part = pages.div_ceil(threads);
        std::thread::scope(|scope| {
            for (first, next) in (0..).step_by(part).zip(next.chunks_mut(part)) {
                let values = &values;
                scope.spawn(move || bare_rows(begins, sources, values, first, next));
            }
        });
        std::mem::swap(&mut values, &mut next);
    }
    let seconds = begun.elapsed().as_secs_f64() / f64::from(rounds);
    std::hint::black_box(&values);
    seconds
}

/// The loop as one would write it by hand, over the rows of `next` from `first` on.
#[expect(clippy::indexing_slicing, reason = "rows name pages there are")]
fn bare_rows(begins: &[usize], sources: &[u32], values: &[f64], first: usize, next: &mut [f64]) {
    for (row, next) in (first..).zip(next) {
        let mut sum = 0.0;
        for source in &sources[begins[row]..begins[row + 1]] {
            sum += values[*source as usize];
        }
        *next = 0.1 * sum + 1e-9;
    }
}

/// Scans to convergence on a graph small enough for memory.
pub(super) fn converge() -> Result<()> {
    let pages = 1_000_000;
    println!("\nscans to convergence, {pages} pages x {LINKS} links");
    for local in [0, 80] {
        let graph = graph(pages, local)?;
        let e = Personalisation::uniform(graph.pages());
        for epsilon in [1e-3, 1e-6, 1e-10] {
            let settings = Settings { epsilon, ..Settings::default() };
            let scans =
                |method| -> Result<u32> { Ok(importance(&graph, &e, None, method, &settings)?.rounds) };
            println!(
                "  {local:2} % local, to {epsilon:.0e}: power {:3}, Gauss-Seidel by slice (8) {:3}, by page {:3}",
                scans(Method::Power)?,
                scans(Method::GaussSeidelSlices(8))?,
                scans(Method::GaussSeidel)?
            );
        }
    }
    Ok(())
}
