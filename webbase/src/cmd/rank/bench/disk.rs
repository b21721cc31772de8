//! The papers' table: links on disk, in little memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use webbase_crawler::importance::on_disk::{OnDisk, Rounds, Scan};
use webbase_crawler::importance::{Interest, Settings};
use webbase_crawler::link_matrix::{Matrix, MatrixBuilder, MatrixError};
use webbase_storage::disk::{Disk, OsDisk};

use super::web::{INTEREST, Random, links};

/// Code that is not in memory yet, stacks, and what the allocator rounds up: measured, more or less.
const SPARE_BYTES: usize = 7_000_000;
/// A round is the mean of so many, the first among them.
const ROUNDS: u32 = 8;
/// Where scans are counted to.
const CONVERGED: f64 = 1e-3;

/// Where the graph of so many pages is.
pub(super) fn folder_of(dir: &Path, pages: u32) -> PathBuf {
    dir.join(format!("rank-bench-{pages}"))
}

/// Builds a matrix on disk.
pub(super) fn build(dir: &Path, pages: u32, budget_mb: usize) -> Result<()> {
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new());
    let folder = folder_of(dir, pages);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let begun = Instant::now();
    // The builder keeps a bit a page beside its budget, and for a moment twice that.
    let budget_bytes = left_of(budget_mb).saturating_sub(pages as usize / 4);
    let mut builder = MatrixBuilder::new(disk, &folder.join("matrix"), budget_bytes);
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
        "\non disk: {pages} pages, {} links, built in {seconds:.0} s ({:.1} million links/s), {:.1} bits a link, {:.0} MB; memory at most {} of {budget_mb} MB, page cache {} MB",
        built.links,
        built.links as f64 / seconds / 1e6,
        built.bits_per_link,
        built.bytes as f64 / 1e6,
        peak_mb(),
        cached_mb(&folder)?
    );
    println!(
        "  {:>6} {:>8} {:>16} {:>12} {:>14} {:>12}",
        "budget", "groups", "", "s a round", "million links/s", "MB a round"
    );
    Ok(())
}

/// The papers' table for one number of pages and one budget.
pub(super) fn disk(dir: &Path, pages: u32, budget: usize, converge: bool) -> Result<()> {
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new());
    let folder = folder_of(dir, pages);
    let matrix = Matrix::open(&*disk, &folder.join("matrix"))?;
    let links = matrix.links() as f64;
    let budget_bytes = left_of(budget);
    let start = |matrix| -> Result<OnDisk> {
        let interest = Interest::of(pages as usize, |page| page % INTEREST == 0);
        Ok(OnDisk::start(disk.clone(), &folder, matrix, interest, Settings::default(), budget_bytes)?)
    };
    let mut solving = start(matrix)?;
    let (alone, at_once) = solving.groups();
    let row = |what: &str, groups: usize, seconds: f64, bytes: u64, scans: f64| {
        println!(
            "  {budget:>3} MB {groups:>8} {what:>16} {seconds:>12.2} {:>14.1} {:>12.0}",
            links * scans / seconds / 1e6,
            bytes as f64 / 1e6
        );
    };
    // Twice, and some rounds between: how fast the disk is changes.
    let (mut reading_first, mut reading) = (0.0, 0.0);
    let mut read = |solving: &mut OnDisk| -> Result<()> {
        for (is_first, seconds, name) in
            [(true, &mut reading_first, "read, first"), (false, &mut reading, "read and decode")]
        {
            let begun = Instant::now();
            let bytes = solving.read_only(is_first)?;
            let took = begun.elapsed().as_secs_f64();
            *seconds += took / 2.0;
            row(name, alone, took, bytes, 1.0);
        }
        Ok(())
    };
    // From the start on, as whoever ranks pages for the first time.
    let timed = |rounds: u32, solve: &mut dyn FnMut(u32) -> Result<Rounds, MatrixError>| -> Result<_> {
        let begun = Instant::now();
        let bytes = solve(rounds)?.bytes / u64::from(rounds);
        anyhow::Ok((begun.elapsed().as_secs_f64() / f64::from(rounds), bytes))
    };
    read(&mut solving)?;
    let first = timed(1, &mut |rounds| solving.importance(Scan::Power, rounds))?;
    row("direct, first", alone, first.0, first.1, 1.0);
    let first = timed(1, &mut |rounds| solving.usefulness(Scan::Power, rounds))?;
    row("inverse, first", alone, first.0, first.1, 1.0);
    drop(solving);
    let mut solving = start(Matrix::open(&*disk, &folder.join("matrix"))?)?;
    read(&mut solving)?;
    let (direct, bytes) = timed(ROUNDS, &mut |rounds| solving.importance(Scan::Power, rounds))?;
    row("direct", alone, direct, bytes, 1.0);
    // The bytes that the rounds read, read and decoded.
    let same_bytes = reading_first + f64::from(ROUNDS - 1) * reading;
    let (inverse, bytes) = timed(ROUNDS, &mut |rounds| solving.usefulness(Scan::Power, rounds))?;
    row("inverse", alone, inverse, bytes, 1.0);
    let begun = Instant::now();
    let done = solving.both(1)?;
    let together = begun.elapsed().as_secs_f64();
    row("both in one scan", at_once, together, done.bytes, 2.0);
    println!(
        "         one after the other {:.2} s, in one scan {together:.2} s; direct is {:.2} of reading and decoding; {:.3} µs a page for both",
        direct + inverse,
        same_bytes / (f64::from(ROUNDS) * direct),
        (direct + inverse) / f64::from(pages) * 1e6
    );
    drop(solving);
    if converge {
        scans(&disk, &folder, pages, budget)?;
    }
    println!(
        "         memory at most {} MB, and {} MB of the files in the page cache",
        peak_mb(),
        cached_mb(&folder)?
    );
    Ok(())
}

/// Scans until importance, and usefulness over it, are settled.
fn scans(disk: &Arc<dyn Disk>, folder: &Path, pages: u32, budget: usize) -> Result<()> {
    let settings = Settings { epsilon: CONVERGED, ..Settings::default() };
    for (scan, name) in [(Scan::Power, "power"), (Scan::GaussSeidel, "Gauss-Seidel by group")] {
        let matrix = Matrix::open(&**disk, &folder.join("matrix"))?;
        let budget_bytes = left_of(budget);
        let interest = Interest::of(pages as usize, |page| page % INTEREST == 0);
        let mut solving = OnDisk::start(disk.clone(), folder, matrix, interest, settings, budget_bytes)?;
        let begun = Instant::now();
        let important = solving.importance(scan, settings.rounds_max)?.rounds;
        let useful = solving.usefulness(scan, settings.rounds_max)?.rounds;
        println!(
            "         to {CONVERGED:.0e}, {name}: {important} scans for importance, {useful} for usefulness, {:.1} s",
            begun.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

/// What is left of a budget beside what the program has by itself: its code, and what the allocator holds.
fn left_of(budget_mb: usize) -> usize {
    let own = status_bytes("VmRSS:").unwrap_or(0) as usize;
    (budget_mb * 1_000_000).saturating_sub(own + SPARE_BYTES)
}

/// How much of the files of a folder is in the page cache.
fn cached_mb(folder: &Path) -> Result<u64> {
    let (disk, mut blocks) = (OsDisk::new(), 0);
    for file in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = file.context("cannot read a folder")?.path();
        let file = disk.open(&path, false).with_context(|| format!("cannot read {}", path.display()))?;
        let map = file.len().ok().and_then(|len| file.map(len));
        blocks += map.iter().flat_map(|map| map.chunks(4096)).filter(|block| file.is_resident(block)).count();
    }
    Ok((blocks as u64 * 4096).div_ceil(1_000_000))
}

/// The most memory this process had, as the system tells it.
fn peak_mb() -> u64 {
    status_bytes("VmHWM:").map_or(0, |bytes| bytes.div_ceil(1_000_000))
}

fn status_bytes(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().split(' ').next()?.parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}
