//! `webbase rank --bench`: the papers' table of importance, measured here.
//!
//! Random graphs with ten links a page, as in the papers. In memory: a round against a bare loop over the same rows, with one
//! thread and two. On disk: seconds a round for importance (direct), usefulness (inverse), one after the other and both in one
//! scan, beside reading and decoding the same bytes without computing. Nothing on disk goes through the page cache. And repairs of a
//! vector after some links have changed, against computing it again.

mod disk;
mod memory;
mod repair;
mod web;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};

use self::disk::{build, disk, folder_of};
use self::memory::{converge, memories};
use self::repair::repairs;

/// What tells the allocator to keep no memory.
const KEEP_NOTHING: [(&str, &str); 2] = [("MIMALLOC_PURGE_DELAY", "1"), ("MIMALLOC_ARENA_EAGER_COMMIT", "0")];

/// What to measure.
#[derive(clap::Args)]
pub(super) struct Bench {
    /// Measure this machine on random graphs instead: the papers' table. Takes minutes, and 60 bytes of disk a page.
    #[arg(long, conflicts_with_all = ["graph", "out", "top", "explain", "stored"])]
    bench: bool,
    /// Pages of the graphs on disk.
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_value = "20000000,40000000",
        requires = "bench"
    )]
    bench_pages: Vec<u32>,
    /// Pages of the graph in memory; 0 leaves it out.
    #[arg(long, value_name = "N", default_value_t = 10_000_000, requires = "bench")]
    bench_memory_pages: u32,
    /// Memory for the graphs on disk, in MB.
    #[arg(long, value_name = "MB,MB", value_delimiter = ',', default_value = "80,40", requires = "bench")]
    bench_budgets: Vec<usize>,
    /// Where the graphs on disk are made; they are removed afterwards.
    #[arg(long, value_name = "DIR", default_value = ".", requires = "bench")]
    bench_dir: PathBuf,
    /// Pages of the graph whose vector is repaired; 0 leaves it out.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, requires = "bench")]
    bench_repair_pages: u32,
    /// A graph whose vector is repaired, too: "from to" on each line, or, where the name has .u32, pairs of 32-bit numbers.
    #[arg(long, value_name = "FILE", requires = "bench")]
    bench_graph: Option<PathBuf>,
    /// Scans to convergence (to 1e-3) on disk, too.
    #[arg(long, requires = "bench")]
    bench_converge: bool,
    /// One part alone; all others run as processes of their own, so that each one's memory is its own.
    #[arg(long, value_name = "PART", requires = "bench", value_parser = ["memory", "converge", "repair", "build", "disk"], hide = true)]
    bench_part: Option<String>,
}

impl Bench {
    pub(super) fn is_wanted(&self) -> bool {
        self.bench
    }

    /// Runs everything, each part in a process of its own: what one had in memory is not the other's.
    pub(super) fn run(&self) -> Result<()> {
        let started = Instant::now();
        let (first, budget) = (
            self.bench_pages.first().copied().unwrap_or(0),
            self.bench_budgets.first().copied().unwrap_or(80),
        );
        match self.bench_part.as_deref() {
            Some("memory") => return memories(self.bench_memory_pages),
            Some("converge") => return converge(),
            Some("repair") => return repairs(self.bench_repair_pages, self.bench_graph.as_deref()),
            Some("build") => return build(&self.bench_dir, first, budget),
            Some(_) => return disk(&self.bench_dir, first, budget, self.bench_converge),
            None => {}
        }
        if self.bench_memory_pages > 0 {
            self.part("memory", 0, 0)?;
            self.part("converge", 0, 0)?;
        }
        if self.bench_repair_pages > 0 || self.bench_graph.is_some() {
            self.part("repair", 0, 0)?;
        }
        for pages in &self.bench_pages {
            let least = self.bench_budgets.iter().copied().min().unwrap_or(40);
            self.part("build", *pages, least)?;
            for budget in &self.bench_budgets {
                self.part("disk", *pages, *budget)?;
            }
            let folder = folder_of(&self.bench_dir, *pages);
            std::fs::remove_dir_all(&folder)
                .with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        eprintln!("all of it: {:.0} s", started.elapsed().as_secs_f64());
        Ok(())
    }

    fn part(&self, part: &str, pages: u32, budget: usize) -> Result<()> {
        let program = std::env::current_exe().context("this program is not found")?;
        let mut command = std::process::Command::new(program);
        // Memory that is freed is given back at once: what an allocator keeps for later is no need of the computation.
        command.envs(KEEP_NOTHING);
        command.args(["rank", "--bench", "--bench-part", part]);
        if self.bench_converge {
            command.arg("--bench-converge");
        }
        if let Some(graph) = &self.bench_graph {
            command.arg("--bench-graph").arg(graph);
        }
        let status = command
            .args(["--bench-pages", &pages.to_string(), "--bench-budgets", &budget.to_string()])
            .args(["--bench-memory-pages", &self.bench_memory_pages.to_string()])
            .args(["--bench-repair-pages", &self.bench_repair_pages.to_string()])
            .arg("--bench-dir")
            .arg(&self.bench_dir)
            .status()
            .context("a part cannot be run")?;
        anyhow::ensure!(status.success(), "the part {part} failed");
        Ok(())
    }
}
