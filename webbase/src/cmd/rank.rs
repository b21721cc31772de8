//! `webbase rank`: importance and usefulness of the pages of a graph.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use webbase_crawler::importance::edge_list::{read_links, read_pages, unpacked};
use webbase_crawler::importance::{
    FixedPoint, Graph, GraphBuilder, Interest, Method, Personalisation, Settings, Usefulness,
    importance_with, usefulness,
};

/// The strongest links that an explanation names.
const EXPLAIN_LINKS: usize = 10;

/// Compute the importance and the usefulness of every page of a graph.
///
/// Importance is I = r·(c·M·I + (1−c)/n), usefulness J = c·Mᵗ·J + (1−c)·I over the pages of interest (--xml). The graph is text,
/// "from to" on each line, plain, gzipped or zstd; pages are numbers from 0. A link named twice counts once, of a page's
/// links the first 65534 count. Writes "node importance usefulness" for each page, every digit of the numbers.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  webbase rank --graph links.txt --out ranks.txt
  webbase rank --graph links.txt.zst --nodes 325557 --xml xml-pages.txt --out ranks.txt
  webbase rank --graph links.txt --top 20 --explain 17
  webbase rank --bench --bench-pages 5000000
  webbase rank --graph links.txt.gz --out - | sort -k2 -g -r | head      the most important pages")]
pub(crate) struct Rank {
    /// The links.
    #[arg(long, value_name = "FILE", required_unless_present = "bench")]
    graph: Option<PathBuf>,
    /// How many pages there are; else one more than the highest number in the graph.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32))]
    nodes: Option<u32>,
    /// The pages of interest, one on a line; without it no page is useful.
    #[arg(long, value_name = "FILE")]
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
    /// Where to write; - is stdout.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["bench", "top", "explain"])]
    out: Option<PathBuf>,
    /// Print so many of the most important pages.
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Print where a page has its importance from: its share of E, and its strongest links.
    #[arg(long, value_name = "PAGE")]
    explain: Option<u32>,
    /// Measure this machine on random graphs instead: the papers' table. Takes minutes, and 60 bytes of disk a page.
    #[arg(long, conflicts_with_all = ["graph", "out", "nodes", "xml", "top", "explain"])]
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
}

impl Rank {
    pub(crate) async fn run(self) -> Result<()> {
        tokio::task::spawn_blocking(move || self.compute()).await.context("the computation was given up")?
    }

    fn compute(&self) -> Result<()> {
        if self.bench {
            let (memory, disk) = (self.bench_memory_pages, &self.bench_pages);
            return super::rank_bench::bench(&self.bench_dir, memory, disk, &self.bench_budgets);
        }
        let Some(graph) = &self.graph else { bail!("--graph names the links") };
        let settings = self.settings();
        let method = if self.method == "power" { Method::Power } else { Method::GaussSeidel };
        let graph = self.read_graph(graph)?;
        let pages = graph.pages();
        let interest = self.read_interest(pages)?;
        eprintln!("{pages} pages, {} links", graph.links());
        let e = Personalisation::uniform(pages);
        let mut said = Said::new();
        let found = importance_with(&graph, &e, None, method, &settings, &mut |round, change| {
            said.sometimes(|| format!("importance: round {round}, changed by {change:.1e}"));
        })?;
        if !found.converged {
            bail!("importance still changes by {:.1e} after {} rounds", found.change, found.rounds);
        }
        eprintln!("importance: {} rounds", found.rounds);
        let kind = match &*self.usefulness {
            "average" => Usefulness::Average,
            "pseudo-code" => Usefulness::PseudoCode,
            _ => Usefulness::ReversePageRank,
        };
        let useful = usefulness(&graph, &found.values, &interest, kind, None, method, &settings)?;
        if !useful.converged {
            bail!("usefulness still changes by {:.1e} after {} rounds", useful.change, useful.rounds);
        }
        eprintln!("usefulness: {} rounds", useful.rounds);
        if let Some(out) = &self.out {
            write_ranks(out, &found.values, &useful.values)?;
        }
        let mut text = String::new();
        if let Some(top) = self.top {
            text.push_str(&top_pages(&graph, &found.values, &useful.values, top));
        }
        if let Some(page) = self.explain {
            text.push_str(&explained(&graph, &found.values, page)?);
        }
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write to stdout")
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

    fn read_graph(&self, path: &Path) -> Result<Graph> {
        let (name, mut builder, mut said) = (path.display(), GraphBuilder::new(), Said::new());
        let input = open(path)?;
        let progress = &mut |lines| said.sometimes(|| format!("{name}: {lines} lines"));
        read_links(input, self.nodes.map(u64::from), |from, to| builder.add(from, to), progress)
            .with_context(|| format!("{name}"))?;
        Ok(builder.build(self.nodes.map(|nodes| nodes as usize))?)
    }

    fn read_interest(&self, pages: usize) -> Result<Interest> {
        let Some(path) = &self.xml else { return Ok(Interest::default()) };
        let mut xml = vec![false; pages];
        read_pages(open(path)?, pages as u64, |page| {
            if let Some(xml) = xml.get_mut(page as usize) {
                *xml = true;
            }
        })
        .with_context(|| format!("{}", path.display()))?;
        Ok(Interest::of(pages, |page| xml.get(page as usize).copied().unwrap_or(false)))
    }
}

/// The most important pages, the most important first.
fn top_pages(graph: &Graph, importance: &[f64], useful: &[f64], top: usize) -> String {
    let mut pages: Vec<(u32, f64, f64)> =
        (0u32..).zip(importance.iter().zip(useful)).map(|(page, (i, j))| (page, *i, *j)).collect();
    pages.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let mut text = format!(
        "{:>10}  {:>12}  {:>12}  {:>8}  {:>8}\n",
        "page", "importance", "usefulness", "links to", "links"
    );
    for (page, i, j) in pages.into_iter().take(top) {
        let (into, out) = (graph.links_to(page).len(), graph.links_of(page).len());
        text.push_str(&format!("{page:>10}  {i:>12.4e}  {j:>12.4e}  {into:>8}  {out:>8}\n"));
    }
    text
}

/// Why a page has its rank: what each page that links to it gives, of all that it gets.
fn explained(graph: &Graph, importance: &[f64], page: u32) -> Result<String> {
    let Some(own) = importance.get(page as usize) else {
        bail!("page {page} is beyond the last of {} pages", importance.len());
    };
    let better = importance.iter().filter(|value| *value > own).count();
    let mut given: Vec<(u32, f64)> = graph
        .links_to(page)
        .iter()
        .map(|from| {
            let has = importance.get(*from as usize).copied().unwrap_or(0.0);
            (*from, has / graph.links_of(*from).len().max(1) as f64)
        })
        .collect();
    given.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let all: f64 = given.iter().map(|(_, gives)| gives).sum();
    let mut text = format!(
        "page {page}: importance {own:.4e}, place {} of {}; {} pages link to it\n",
        better + 1,
        importance.len(),
        given.len()
    );
    for (from, gives) in given.iter().take(EXPLAIN_LINKS) {
        let links = graph.links_of(*from).len();
        text.push_str(&format!(
            "  {:5.1} % of what links give is from page {from}, one of its {links} links\n",
            100.0 * gives / all
        ));
    }
    if given.len() > EXPLAIN_LINKS {
        text.push_str(&format!("  and {} more\n", given.len() - EXPLAIN_LINKS));
    }
    Ok(text)
}

/// Writes the whole file or none: beside it first, then in its place.
fn write_ranks(out: &Path, importance: &[f64], useful: &[f64]) -> Result<()> {
    if out.as_os_str() == "-" {
        return lines(std::io::stdout().lock(), importance, useful).context("cannot write to stdout");
    }
    let failed = || format!("cannot write {}", out.display());
    let mut beside = out.to_path_buf().into_os_string();
    beside.push(".partial");
    let file = File::create(&beside).with_context(failed)?;
    lines(&file, importance, useful).with_context(failed)?;
    file.sync_all().with_context(failed)?;
    std::fs::rename(&beside, out).with_context(failed)?;
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = File::open(folder.unwrap_or(Path::new("."))).with_context(failed)?;
    folder.sync_all().with_context(failed)
}

fn open(path: &Path) -> Result<Box<dyn std::io::BufRead>> {
    let opened = File::open(path).and_then(unpacked);
    opened.with_context(|| format!("cannot read {}", path.display()))
}

fn lines(out: impl Write, importance: &[f64], useful: &[f64]) -> std::io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 18, out);
    for (page, (importance, useful)) in importance.iter().zip(useful).enumerate() {
        writeln!(out, "{page} {importance:e} {useful:e}")?;
    }
    out.flush()
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
