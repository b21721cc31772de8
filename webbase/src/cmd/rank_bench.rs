//! `webbase rank --bench`: the papers' table of importance, measured here.
//!
//! Random graphs with ten links a page, as in the papers. In memory: a round against a bare loop over the same rows, with one
//! thread and two. On disk: seconds a round for importance (direct), usefulness (inverse), one after the other and both in one
//! scan, beside reading and decoding the same bytes without computing. Nothing on disk goes through the page cache.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use webbase_crawler::importance::on_disk::{OnDisk, Scan};
use webbase_crawler::importance::{
    Graph, GraphBuilder, Grid, Interest, Method, Personalisation, Settings, Usefulness, both, importance,
    usefulness,
};
use webbase_crawler::link_matrix::{Matrix, MatrixBuilder};
use webbase_storage::disk::{Disk, OsDisk};

const LINKS: u32 = 10;
/// One page in so many is of interest.
const INTEREST: u32 = 50;

/// Runs everything: `in_memory` pages in memory (0: none), and each of `on_disk` under each budget (in MB).
pub(crate) fn bench(dir: &Path, in_memory: u32, on_disk: &[u32], budgets_mb: &[usize]) -> Result<()> {
    let started = Instant::now();
    if in_memory > 0 {
        for local in [0, 80] {
            memory(in_memory, local)?;
        }
    }
    converge()?;
    for pages in on_disk {
        disk(dir, *pages, budgets_mb)?;
    }
    eprintln!("all of it: {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

struct Random(u64);

impl Random {
    fn below(&mut self, below: u32) -> u32 {
        // xorshift64*: the high half, scaled.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        ((high * u64::from(below)) >> 32) as u32
    }
}

/// The links of `page`: so many percent of them within a thousand pages, the others anywhere.
fn links(random: &mut Random, page: u32, pages: u32, local: u32, into: &mut Vec<u32>) {
    into.clear();
    for _ in 0..LINKS {
        let near = random.below(100) < local;
        into.push(if near { (page + random.below(1000)) % pages } else { random.below(pages) });
    }
}

fn graph(pages: u32, local: u32) -> Result<Graph> {
    let (mut random, mut builder, mut of_page) = (Random(42), GraphBuilder::new(), Vec::new());
    for page in 0..pages {
        links(&mut random, page, pages, local, &mut of_page);
        of_page.iter().for_each(|link| builder.add(page, *link));
    }
    Ok(builder.build(Some(pages as usize))?)
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
    let (mut bare, mut one, mut two) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..3 {
        bare.push(bare_loop(&begins, &sources, rounds));
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
    let (bare, one, two) = (median(&mut bare), median(&mut one), median(&mut two));
    println!("  bare loop        {:7.1} million links/s", million / bare);
    println!("  power, 1 thread  {:7.1} million links/s, {:.2} of the bare loop", million / one, bare / one);
    println!("  power, 2 threads {:7.1} million links/s, {:.2} times one", million / two, one / two);
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

/// What a round of links cannot go below without being cleverer: seconds a round.
fn bare_loop(begins: &[usize], sources: &[u32], rounds: u32) -> f64 {
    let pages = begins.len() - 1;
    let (mut values, mut next) = (vec![1.0 / pages as f64; pages], vec![0.0; pages]);
    let begun = Instant::now();
    for _ in 0..rounds {
        let mut begin = 0;
        for (end, next) in begins.iter().skip(1).zip(&mut next) {
            let mut sum = 0.0;
            for source in sources.get(begin..*end).unwrap_or_default() {
                sum += values.get(*source as usize).copied().unwrap_or_default();
            }
            *next = 0.1 * sum + 1e-9;
            begin = *end;
        }
        std::mem::swap(&mut values, &mut next);
    }
    let seconds = begun.elapsed().as_secs_f64() / f64::from(rounds);
    std::hint::black_box(&values);
    seconds
}

/// Scans to convergence on a graph small enough for memory.
fn converge() -> Result<()> {
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

/// The papers' table for one number of pages.
fn disk(dir: &Path, pages: u32, budgets_mb: &[usize]) -> Result<()> {
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new());
    let folder = dir.join(format!("rank-bench-{pages}"));
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join("matrix");
    let least = budgets_mb.iter().copied().min().unwrap_or(40);
    let begun = Instant::now();
    let mut builder = MatrixBuilder::new(disk.clone(), &path, (least.saturating_sub(12).max(8)) << 20);
    let (mut random, mut of_page, mut said) = (Random(42), Vec::new(), Instant::now());
    for page in 0..pages {
        links(&mut random, page, pages, 0, &mut of_page);
        builder.add(page, &of_page)?;
        if said.elapsed().as_secs() >= 5 {
            eprintln!("{pages} pages: {page} given to the builder");
            said = Instant::now();
        }
    }
    let built = builder.finish(Some(pages))?;
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "\non disk: {pages} pages, {} links, built in {seconds:.0} s ({:.1} million links/s) within {least} MB, {:.1} bits a link, {:.0} MB",
        built.links,
        built.links as f64 / seconds / 1e6,
        built.bits_per_link,
        built.bytes as f64 / 1e6
    );
    println!(
        "  {:>6} {:>8} {:>16} {:>12} {:>14} {:>12}",
        "budget", "groups", "", "s a round", "million links/s", "MB a round"
    );
    for budget in budgets_mb {
        let matrix = Matrix::open(&*disk, &path)?;
        let interest = Interest::of(pages as usize, |page| page % INTEREST == 0);
        let mut solving =
            OnDisk::start(disk.clone(), &folder, matrix, interest, Settings::default(), budget << 20)?;
        let (alone, at_once) = solving.groups();
        let row = |what: &str, groups: usize, seconds: f64, bytes: u64, scans: f64| {
            println!(
                "  {budget:>3} MB {groups:>8} {what:>16} {seconds:>12.2} {:>14.1} {:>12.0}",
                built.links as f64 * scans / seconds / 1e6,
                bytes as f64 / 1e6
            );
        };
        let begun = Instant::now();
        solving.read_only()?;
        let reading = begun.elapsed().as_secs_f64();
        row("read and decode", alone, reading, 0, 1.0);
        let begun = Instant::now();
        let done = solving.importance(Scan::Power, 2)?;
        let direct = begun.elapsed().as_secs_f64() / 2.0;
        row("direct", alone, direct, done.bytes / 2, 1.0);
        let begun = Instant::now();
        let done = solving.usefulness(Scan::Power, 2)?;
        let inverse = begun.elapsed().as_secs_f64() / 2.0;
        row("inverse", alone, inverse, done.bytes / 2, 1.0);
        let begun = Instant::now();
        let done = solving.both(1)?;
        let together = begun.elapsed().as_secs_f64();
        row("both in one scan", at_once, together, done.bytes, 2.0);
        println!(
            "         one after the other {:.2} s, in one scan {together:.2} s; direct is {:.2} of reading and decoding; {:.2} µs a page for both",
            direct + inverse,
            reading / direct,
            (direct + inverse) / f64::from(pages) * 1e6
        );
        println!("         memory at most {} MB", peak_mb());
    }
    std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))
}

/// The most memory this process had, as the system tells it.
fn peak_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok()).map_or(0, |kb| kb / 1024)
}
