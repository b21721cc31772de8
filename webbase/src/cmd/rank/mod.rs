//! `webbase rank`: importance and usefulness of the pages of a repository, or of a graph.

mod bench;
mod graph;
mod repository;
mod workers;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytesize::ByteSize;
use webbase_crawler::importance::{FixedPoint, Method, Settings, Usefulness};

use crate::client::Server;

pub(crate) use self::workers::RankWorker;

/// The strongest links that an explanation names.
const EXPLAIN_LINKS: usize = 10;

/// Compute the importance and the usefulness of every page, of a repository or of a graph.
///
/// Importance is I = r·(c·M·I + (1−c)/n), usefulness J = c·Mᵗ·J + (1−c)·I over the pages of interest (XML, or what --interest says).
///
/// Of a repository: reads all pages that readers see, takes their links (URLs that were never read have importance, too), computes, and
/// publishes the importance of pages to the repository, so that `webbase stream --order importance` and --min-importance know it. Links and
/// results stay in a folder (--dir), and the next time goes on from the last result.
///
/// Of a graph (--graph): text, "from to" on each line, plain, gzipped or zstd; pages are numbers from 0. A link named twice counts once, of
/// a page's links the first 65534 count. Writes "node importance usefulness" for each page, every digit of the numbers.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  webbase rank                                       computes and publishes the importance of a repository's pages
  webbase rank --top 20 --explain http://example.org/
  webbase rank --stored --top 20 --unread            what is most worth reading, of what was never read
  webbase stream --order importance --limit 100 --format jsonl
  webbase rank --graph links.txt --out ranks.txt
  webbase rank --graph links.txt.zst --nodes 325557 --xml xml-pages.txt --out ranks.txt
  webbase rank --graph links.txt --workers 2 --chaotic --out ranks.txt
  webbase rank --graph links.txt.gz --out - | sort -k2 -g -r | head      the most important pages
  webbase rank --bench --bench-pages 5000000")]
pub(crate) struct Rank {
    /// The links, in place of a repository's.
    #[arg(long, value_name = "FILE")]
    graph: Option<PathBuf>,
    /// How many pages there are; else one more than the highest number in the graph.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32), requires = "graph")]
    nodes: Option<u32>,
    /// The pages of interest, one on a line; without it no page of a graph is useful.
    #[arg(long, value_name = "FILE", requires = "graph")]
    xml: Option<PathBuf>,
    /// How much of a page's importance goes on along its links, between 0 and 1.
    #[arg(long, value_name = "C", default_value_t = 0.85)]
    damping: f64,
    /// How far from the fixed point is near enough.
    #[arg(long, value_name = "E", default_value_t = 1e-10)]
    epsilon: f64,
    /// Where what pages without links have goes: lost, and made up for in every step (renorm, the papers'), or to all pages
    /// (uniform, most libraries').
    #[arg(long, value_name = "WHICH", default_value = "renorm", value_parser = ["renorm", "uniform"])]
    fixed_point: String,
    /// What a page passes back is averaged over the links of the page that gets it (average, the papers' formula), or divided
    /// by its own links (pseudo-code), or by the links to it (reverse).
    #[arg(long, value_name = "KIND", default_value = "average", value_parser = ["average", "pseudo-code", "reverse"])]
    usefulness: String,
    /// power: every page from the round before, on all cores; gauss-seidel: from the newest values, fewer rounds on one core.
    #[arg(long, value_name = "METHOD", default_value = "power", value_parser = ["power", "gauss-seidel"])]
    method: String,
    /// Have so many worker processes compute, each owning a slice of the pages; every page from the round before.
    #[arg(long, value_name = "N", requires = "graph", conflicts_with = "method", value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: Option<u32>,
    /// Workers don't wait for each other, until little changes: each goes on with whatever values the others have reached.
    #[arg(long, requires = "workers")]
    chaotic: bool,
    /// Where to write; - is stdout.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print so many of the most important pages.
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Of the most important ones, only URLs that were never read.
    #[arg(long, requires = "top", conflicts_with = "graph")]
    unread: bool,
    /// Print where a page (its URL; its number in a graph) has its importance from: its strongest links.
    #[arg(long, value_name = "PAGE")]
    explain: Option<String>,
    /// The folder with the repository's links and results.
    #[arg(long, value_name = "DIR", default_value = "webbase-rank", conflicts_with = "graph")]
    dir: PathBuf,
    /// Read and compute nothing: show what was computed last.
    #[arg(long, conflicts_with = "graph")]
    stored: bool,
    /// Don't read the pages again: compute from the links that are there, as `webbase crawl --links` has them.
    #[arg(long, conflicts_with_all = ["graph", "stored"])]
    no_read: bool,
    /// Keep the result to oneself.
    #[arg(long, conflicts_with_all = ["graph", "stored"])]
    no_publish: bool,
    /// Which pages are of interest: xml, mime:TYPE, domain:NAME or prefix:URL; of several, one is enough.
    #[arg(long, value_name = "WHICH", default_value = "xml", conflicts_with = "graph", value_parser = repository::Interesting::parse)]
    interest: Vec<repository::Interesting>,
    /// Count links, too, that their pages ask not to follow.
    #[arg(long, conflicts_with = "graph")]
    nofollow: bool,
    /// Lift the pages that this file names, a URL on each line, into the top (--lift-into) of all.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["graph", "stored"])]
    lift: Option<PathBuf>,
    /// Which part of all pages is the top, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 20.0, requires = "lift")]
    lift_into: f64,
    /// Memory to compute in; where the links don't fit, everything stays on disk.
    #[arg(long, value_name = "BYTES", default_value = "1GiB", conflicts_with = "graph")]
    memory: ByteSize,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    bench: bench::Bench,
}

impl Rank {
    pub(crate) async fn run(self) -> Result<()> {
        if !self.bench.is_wanted() && self.graph.is_none() {
            return self.of_repository().await;
        }
        let handle = tokio::runtime::Handle::current();
        let work = move || if self.bench.is_wanted() { self.bench.run() } else { self.of_graph(&handle) };
        tokio::task::spawn_blocking(work).await.context("the computation was given up")?
    }

    fn settings(&self) -> Settings {
        Settings {
            damping: self.damping,
            epsilon: self.epsilon,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            fixed_point: match &*self.fixed_point {
                "uniform" => FixedPoint::Spread,
                _ => FixedPoint::Renormalised,
            },
            ..Settings::default()
        }
    }

    fn method(&self) -> Method {
        if self.method == "power" { Method::Power } else { Method::GaussSeidel }
    }

    fn kind(&self) -> Usefulness {
        match &*self.usefulness {
            "average" => Usefulness::Average,
            "pseudo-code" => Usefulness::PseudoCode,
            _ => Usefulness::ReversePageRank,
        }
    }
}

/// Writes a whole file or none: beside it first, then in its place. `-` is stdout.
fn write_whole(out: &Path, lines: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    if out.as_os_str() == "-" {
        let mut stdout = std::io::BufWriter::with_capacity(1 << 18, std::io::stdout().lock());
        lines(&mut stdout).context("cannot write to stdout")?;
        return stdout.flush().context("cannot write to stdout");
    }
    let failed = || format!("cannot write {}", out.display());
    let mut beside = out.to_path_buf().into_os_string();
    beside.push(".partial");
    let mut file = std::io::BufWriter::with_capacity(1 << 18, File::create(&beside).with_context(failed)?);
    lines(&mut file).with_context(failed)?;
    file.flush().with_context(failed)?;
    file.get_ref().sync_all().with_context(failed)?;
    std::fs::rename(&beside, out).with_context(failed)?;
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = File::open(folder.unwrap_or(Path::new("."))).with_context(failed)?;
    folder.sync_all().with_context(failed)
}

/// Prints to stdout.
fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write to stdout")
}

/// Progress on stderr, once a second at most.
struct Said {
    last: Instant,
}

impl Said {
    fn new() -> Self {
        Self { last: Instant::now() }
    }

    fn sometimes(&mut self, text: impl FnOnce() -> String) {
        if self.last.elapsed() >= Duration::from_secs(1) {
            self.last = Instant::now();
            eprintln!("{}", text());
        }
    }
}
