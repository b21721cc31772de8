//! Ranks of a graph in a file.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, bail};
use tokio::runtime::Handle;
use webbase_crawler::importance::edge_list::{read_links, read_pages, unpacked};
use webbase_crawler::importance::{
    Graph, GraphBuilder, Interest, Personalisation, importance_with, usefulness,
};

use super::{EXPLAIN_LINKS, Rank, Said, print, write_whole};

impl Rank {
    pub(super) fn of_graph(&self, handle: &Handle) -> Result<()> {
        let Some(graph) = &self.graph else { bail!("--graph names the links") };
        if self.out.is_none() && self.top.is_none() && self.explain.is_none() {
            bail!("--out says where to write the ranks; --top and --explain print some");
        }
        let settings = self.settings();
        let graph = self.read_graph(graph)?;
        let pages = graph.pages();
        let interest = self.read_interest(pages)?;
        eprintln!("{pages} pages, {} links", graph.links());
        let (found, useful) = match self.workers {
            Some(workers) => handle.block_on(self.by_workers(&graph, &interest, workers))?,
            None => {
                let e = Personalisation::uniform(pages);
                let mut said = Said::new();
                let found =
                    importance_with(&graph, &e, None, self.method(), &settings, &mut |round, change| {
                        said.sometimes(|| format!("importance: round {round}, changed by {change:.1e}"));
                    })?;
                let kind = self.kind();
                let useful =
                    usefulness(&graph, &found.values, &interest, kind, None, self.method(), &settings)?;
                (found, useful)
            }
        };
        for (what, solved) in [("importance", &found), ("usefulness", &useful)] {
            if !solved.converged {
                bail!("{what} still changes by {:.1e} after {} rounds", solved.change, solved.rounds);
            }
            eprintln!("{what}: {} rounds", solved.rounds);
        }
        if let Some(out) = &self.out {
            write_whole(out, |out| {
                for (page, (importance, useful)) in found.values.iter().zip(&useful.values).enumerate() {
                    writeln!(out, "{page} {importance:e} {useful:e}")?;
                }
                Ok(())
            })?;
        }
        let mut text = String::new();
        if let Some(top) = self.top {
            text.push_str(&top_pages(&graph, &found.values, &useful.values, top));
        }
        if let Some(page) = &self.explain {
            let page = page.parse().ok().with_context(|| format!("{page:?} is no number of a page"))?;
            text.push_str(&explained(&graph, &found.values, page)?);
        }
        print(&text)
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

fn open(path: &Path) -> Result<Box<dyn std::io::BufRead>> {
    let opened = File::open(path).and_then(unpacked);
    opened.with_context(|| format!("cannot read {}", path.display()))
}
