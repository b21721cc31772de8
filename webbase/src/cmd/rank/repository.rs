//! Ranks of a repository's pages: its stream in, links and results in a folder, importance back to the repository.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use anyhow::{Context, Result, bail};
use webbase_crawler::links::{Counts, Extent, Lifted, LinkHandler, Links, PageLinks, Wanted, estimate};
use webbase_node::Cluster;
use webbase_storage::PageKey;
use webbase_stream::extract::{Content, Handlers};
use webbase_stream::{Repository, StreamSpec};

use super::{EXPLAIN_LINKS, Rank, Said, print, write_whole};

/// Pages whose links wait to be taken.
const AHEAD: usize = 256;

/// A domain of interest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Interesting {
    Xml,
    Mime(String),
    Domain(String),
    Prefix(String),
}

impl Interesting {
    pub(super) fn parse(text: &str) -> Result<Interesting, String> {
        match text.split_once(':') {
            None if text == "xml" => Ok(Interesting::Xml),
            Some(("mime", mime)) => Ok(Interesting::Mime(mime.to_ascii_lowercase())),
            Some(("domain", domain)) => Ok(Interesting::Domain(domain.to_ascii_lowercase())),
            Some(("prefix", prefix)) => Ok(Interesting::Prefix(prefix.to_owned())),
            _ => Err("one of xml, mime:TYPE, domain:NAME, prefix:URL".to_owned()),
        }
    }

    fn has(&self, page: &Content<'_>) -> bool {
        match self {
            Interesting::Xml => page.is_xml(),
            Interesting::Mime(mime) => page.mime() == mime,
            Interesting::Prefix(prefix) => page.url().starts_with(prefix.as_str()),
            Interesting::Domain(domain) => {
                let url = reqwest::Url::parse(page.url()).ok();
                url.as_ref().and_then(|url| url.host_str()).is_some_and(|host| {
                    host.strip_suffix(domain.as_str()).is_some_and(|sub| sub.is_empty() || sub.ends_with('.'))
                })
            }
        }
    }
}

impl Rank {
    pub(super) async fn of_repository(self) -> Result<()> {
        let memory = usize::try_from(self.memory.as_u64()).unwrap_or(usize::MAX);
        // Gathering links takes a part of the memory, but never so little that it crawls.
        let budget = memory.clamp(32 << 20, 512 << 20);
        let dir = self.dir.clone();
        let mut links = blocking(move || Ok(Links::open(&dir, budget)?)).await?;
        let mut cluster = None;
        if !self.stored {
            let found = self.server.cluster().await?;
            let (back, counts) = match self.no_read {
                false => self.gather(&found, links).await?,
                true => {
                    let counts = links.counts()?;
                    (links, counts)
                }
            };
            links = back;
            eprintln!("{} URLs, {} of them read; {} links", counts.urls, counts.pages_read, counts.links);
            cluster = Some(found);
        }
        let rank = Arc::new(self);
        if cluster.is_some() {
            let this = rank.clone();
            links = blocking(move || this.compute(links, memory)).await?;
        }
        if let Some(cluster) = cluster.filter(|_| !rank.no_publish) {
            let keys = cluster.clone();
            let (back, entries) = blocking(move || entries(links, &keys)).await?;
            links = back;
            publish(&cluster, &entries).await?;
            eprintln!("published the importance of {} pages", entries.len());
        }
        blocking(move || rank.show(links)).await
    }

    /// Reads all pages, and takes their links.
    async fn gather(&self, cluster: &Cluster, mut links: Links) -> Result<(Links, Counts)> {
        let (to, pages) = sync_channel::<PageLinks>(AHEAD);
        let taking = tokio::task::spawn_blocking(move || -> Result<Links> {
            let (mut said, mut count) = (Said::new(), 0u64);
            for page in pages {
                links.page(&page)?;
                count += 1;
                said.sometimes(|| format!("{count} pages read"));
            }
            Ok(links)
        });
        let interest = self.interest.clone();
        let handler = LinkHandler::new(to, move |page| interest.iter().any(|one| one.has(page)));
        let handler = if self.nofollow { handler.with_nofollow() } else { handler };
        let repository = Repository::from(cluster.clone());
        let stream = repository.stream(StreamSpec::all()).await?;
        let dictionaries = stream.dictionaries().clone();
        let handlers = Handlers::new().with(Arc::new(handler));
        let looked = handlers.run(stream, &dictionaries).await;
        drop(handlers); // the last to hand pages on
        let mut links = taking.await.context("taking links was given up")??;
        let looked = looked?;
        if looked.damaged > 0 {
            eprintln!("{} pages are damaged; their links are missing", looked.damaged);
        }
        let (links, counts) = blocking(move || {
            let counts = links.commit(Extent::All)?;
            Ok((links, counts))
        })
        .await?;
        Ok((links, counts))
    }

    fn compute(&self, mut links: Links, memory: usize) -> Result<Links> {
        let lifted = match &self.lift {
            None => None,
            Some(path) => Some(Lifted { pages: named(path, &links)?, top: self.lift_into / 100.0 }),
        };
        let wanted = Wanted {
            settings: self.settings(),
            method: self.method(),
            usefulness: self.kind(),
            lifted,
            memory_bytes: memory,
        };
        let done = estimate(&mut links, &wanted, now_ms())?;
        let place = if done.in_memory { "in memory" } else { "on disk" };
        eprintln!(
            "importance: {} rounds, usefulness: {}, {place}",
            done.importance_rounds, done.usefulness_rounds
        );
        if self.lift.is_some() {
            let reached = if done.reached {
                ""
            } else {
                "; they do not all come there: they are too many, or pass on to others what they get"
            };
            eprintln!("lifting takes {:.3e} of E{reached}", done.strength);
        }
        Ok(links)
    }

    /// What was asked to be seen of the result.
    fn show(&self, mut links: Links) -> Result<()> {
        let Some(mut ranks) = links.ranks()? else {
            bail!("nothing was computed yet in {}; `webbase rank` does it", self.dir.display());
        };
        if let Some(out) = &self.out {
            write_whole(out, |out| {
                links.urls().for_urls(|id, url| -> Result<()> {
                    if let Some((importance, useful)) = ranks.get(id)? {
                        writeln!(out, "{url} {importance:e} {useful:e}")?;
                    }
                    Ok(())
                })
            })?;
        }
        let mut text = String::new();
        if let Some(top) = self.top {
            text.push_str(&self.top_pages(&mut links, top)?);
        }
        if let Some(url) = &self.explain {
            text.push_str(&explained(&mut links, url)?);
        }
        print(&text)
    }

    /// The most important pages, the most important first.
    fn top_pages(&self, links: &mut Links, top: usize) -> Result<String> {
        let (matrix, Some(mut ranks)) = (links.matrix()?, links.ranks()?) else { return Ok(String::new()) };
        let mut wanted = vec![true; ranks.len()];
        if let (true, Some(matrix)) = (self.unread, &matrix) {
            matrix.for_pages(|page, read| {
                if let Some(wanted) = wanted.get_mut(page as usize) {
                    *wanted = !read;
                }
            })?;
        }
        let mut best: Vec<(f64, f64, u32)> = Vec::new();
        for page in (0u32..).zip(wanted).filter_map(|(page, wanted)| wanted.then_some(page)) {
            let Some((importance, useful)) = ranks.get(page)? else { break };
            best.push((importance, useful, page));
            if best.len() >= 4 * top.max(256) {
                keep_best(&mut best, top);
            }
        }
        keep_best(&mut best, top);
        let mut text =
            format!("{:>12}  {:>12}  {:>8}  {:>8}  URL\n", "importance", "usefulness", "links to", "links");
        for (importance, useful, page) in best {
            let url = links.urls().url(page)?.unwrap_or_default();
            let (into, out) = match &matrix {
                Some(matrix) => (matrix.links_to(page)?.len(), matrix.degree(page)?),
                None => (0, None),
            };
            let out = out.map_or("unread".to_owned(), |degree| degree.to_string());
            text.push_str(&format!("{importance:>12.4e}  {useful:>12.4e}  {into:>8}  {out:>8}  {url}\n"));
        }
        Ok(text)
    }
}

fn keep_best(best: &mut Vec<(f64, f64, u32)>, top: usize) {
    best.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.2.cmp(&b.2)));
    best.truncate(top);
}

/// Why a page has its rank: what each page that links to it gives, of all that it gets.
fn explained(links: &mut Links, url: &str) -> Result<String> {
    let (Some(page), Some(matrix), Some(mut ranks)) = (links.id(url)?, links.matrix()?, links.ranks()?)
    else {
        bail!(crate::exit::Failure::NotFound(format!(
            "{url} is not known: no page that was read links to it"
        )));
    };
    let Some((own, useful)) = ranks.get(page)? else {
        bail!(crate::exit::Failure::NotFound(format!("{url} was found after the last computation")));
    };
    let (mut better, mut all) = (0, 0);
    while let Some((other, _)) = ranks.get(all)? {
        better += u64::from(other > own);
        all += 1;
    }
    let mut given = Vec::new();
    for from in matrix.links_to(page)? {
        let has = ranks.get(from)?.map_or(0.0, |(importance, _)| importance);
        let degree = matrix.degree(from)?.unwrap_or(1).max(1);
        given.push((has / f64::from(degree), from, degree));
    }
    given.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let sum: f64 = given.iter().map(|(gives, ..)| gives).sum();
    let read = match matrix.degree(page)? {
        Some(degree) => format!("it has {degree} links"),
        None => "it was never read".to_owned(),
    };
    let mut text = format!(
        "{url}: importance {own:.4e}, place {} of {all}; usefulness {useful:.4e}; {} pages link to it, {read}\n",
        better + 1,
        given.len()
    );
    for (gives, from, degree) in given.iter().take(EXPLAIN_LINKS) {
        let from = links.urls().url(*from)?.unwrap_or_default();
        let part = 100.0 * gives / sum;
        text.push_str(&format!(
            "  {part:5.1} % of what links give is from {from}, one of its {degree} links\n"
        ));
    }
    if given.len() > EXPLAIN_LINKS {
        text.push_str(&format!("  and {} more\n", given.len() - EXPLAIN_LINKS));
    }
    Ok(text)
}

/// The pages that a file names, a URL on each line.
fn named(path: &Path, links: &Links) -> Result<Vec<u32>> {
    let file = std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut pages = Vec::new();
    for line in BufReader::new(file).lines() {
        let line = line.with_context(|| format!("cannot read {}", path.display()))?;
        let url = line.trim();
        if url.is_empty() || url.starts_with('#') {
            continue;
        }
        match links.id(url)? {
            Some(page) => pages.push(page),
            None => bail!("{}: {url} is not known: no page that was read links to it", path.display()),
        }
    }
    Ok(pages)
}

/// The importance of the pages that were read, in order of their keys. 24 bytes a page in memory.
fn entries(mut links: Links, cluster: &Cluster) -> Result<(Links, Vec<(PageKey, f32)>)> {
    let (Some(matrix), Some(mut ranks)) = (links.matrix()?, links.ranks()?) else {
        return Ok((links, Vec::new()));
    };
    let mut read = Vec::new();
    matrix.for_pages(|_, was_read| read.push(was_read))?;
    let mut entries = Vec::with_capacity(matrix.pages_read() as usize);
    links.urls().for_urls(|id, url| -> Result<()> {
        if read.get(id as usize).copied().unwrap_or(false)
            && let Some((importance, _)) = ranks.get(id)?
        {
            entries.push((cluster.page_key(url)?, importance as f32));
        }
        Ok(())
    })?;
    entries.sort_unstable_by_key(|(key, _)| *key);
    entries.dedup_by_key(|(key, _)| *key);
    Ok((links, entries))
}

async fn publish(cluster: &Cluster, entries: &[(PageKey, f32)]) -> Result<()> {
    let mut publishing = cluster.publish_importance(now_ms()).await?;
    for (key, importance) in entries {
        publishing.page(*key, *importance).await?;
    }
    publishing.finish().await.map(drop).context("the importance of pages could not be published")
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.context("the computation was given up")?
}

fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
