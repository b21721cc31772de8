//! All links of a generation, by where they lead.
//!
//! ```text
//!   links    (key of the page that is linked to, number of the page that links), sorted     24 bytes a link
//!   starts   where the URL of each page that links begins in `urls`                          4 bytes a page
//!   urls     those URLs, one after the other
//! ```

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_core::Stream;
use parking_lot::Mutex;
use reqwest::Url;
use webbase_node::{Cluster, Result};
use webbase_storage::{PageKey, Record, RecordRef};
use webbase_stream::extract::{self, Content, Handler, Handlers};
use webbase_stream::{RecordStream, Repository, StreamSpec};

/// A table takes no more than this.
const LINKS_MAX: usize = 2_000_000;
const URL_BYTES_MAX: usize = 64 << 20;

/// All links of a generation.
#[derive(Debug, Default)]
pub(super) struct Table {
    generation: u64,
    is_whole: bool,
    links: Vec<(PageKey, u32)>,
    starts: Vec<u32>,
    urls: String,
}

impl Table {
    /// Reads all pages of the current generation.
    pub(super) async fn make(cluster: &Cluster) -> Result<Table> {
        let stream = Repository::from(cluster.clone()).stream(StreamSpec::all()).await?;
        let (generation, dictionaries) = (stream.generation(), stream.dictionaries().clone());
        let gathering = Arc::new(Gathering {
            cluster: cluster.clone(),
            full: AtomicBool::new(false),
            table: Mutex::default(),
        });
        let stream = UntilFull { stream, gathering: gathering.clone() };
        Handlers::new().with(gathering.clone()).run(stream, &dictionaries).await?;
        let mut table = std::mem::take(&mut *gathering.table.lock());
        table.links.sort_unstable();
        table.links.dedup();
        table.links.shrink_to_fit();
        table.generation = generation;
        table.is_whole = !gathering.full.load(Ordering::Relaxed);
        Ok(table)
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// How many pages have links.
    pub(super) fn pages(&self) -> usize {
        self.starts.len()
    }

    /// Whether all pages of the generation are in it.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// The pages that link to a page.
    pub(super) fn to(&self, key: PageKey) -> impl Iterator<Item = &str> {
        let from = self.links.partition_point(|(to, _)| *to < key);
        let here = self.links.get(from..).unwrap_or_default().iter().take_while(move |(to, _)| *to == key);
        here.filter_map(|(_, page)| self.url(*page as usize))
    }

    fn url(&self, page: usize) -> Option<&str> {
        let start = *self.starts.get(page)? as usize;
        let end = self.starts.get(page + 1).map_or(self.urls.len(), |end| *end as usize);
        self.urls.get(start..end)
    }

    /// Takes a page's links; false when there is no room for them.
    fn take(&mut self, url: &str, links: &[PageKey]) -> bool {
        let has_room =
            self.links.len() + links.len() <= LINKS_MAX && self.urls.len() + url.len() <= URL_BYTES_MAX;
        if has_room && !links.is_empty() {
            let page = self.starts.len() as u32;
            self.starts.push(self.urls.len() as u32);
            self.urls.push_str(url);
            self.links.extend(links.iter().map(|to| (*to, page)));
        }
        has_room
    }
}

/// A table that is being made.
struct Gathering {
    cluster: Cluster,
    full: AtomicBool,
    table: Mutex<Table>,
}

impl Handler for Gathering {
    fn wants(&self, record: &RecordRef<'_>) -> bool {
        has_links(record.mime()) && !self.full.load(Ordering::Relaxed)
    }

    fn page(&self, page: &Content<'_>) {
        let links = links_of(page);
        let keys = links.iter().filter_map(|url| self.cluster.page_key(url.as_str()).ok());
        // A page that leads to itself says nothing.
        let keys: Vec<PageKey> = keys.filter(|key| *key != page.key()).collect();
        if !self.table.lock().take(page.url(), &keys) {
            self.full.store(true, Ordering::Relaxed);
        }
    }
}

/// A stream that ends when there is no room for more.
struct UntilFull {
    stream: RecordStream,
    gathering: Arc<Gathering>,
}

impl Stream for UntilFull {
    type Item = Result<Record>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.gathering.full.load(Ordering::Relaxed) {
            return Poll::Ready(None);
        }
        Pin::new(&mut self.stream).poll_next(cx)
    }
}

/// Whether pages of a type can have links.
fn has_links(mime: &str) -> bool {
    mime.is_empty() || mime.contains("html") || mime.ends_with("xml")
}

/// Where a page leads: URLs that can be fetched, in its order, each once.
pub(super) fn links_of(page: &Content<'_>) -> Vec<Url> {
    extract::page_links(page).into_iter().map(|link| link.url).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use webbase_storage::RepositoryKey;

    #[test]
    fn links_are_found_by_where_they_lead() {
        let key = RepositoryKey::random().unwrap();
        let key = |url: &str| key.page_key(url).unwrap();
        let mut table = Table::default();
        assert!(table.take("http://a/", &[key("http://b/"), key("http://c/")]));
        assert!(table.take("http://b/", &[]));
        assert!(table.take("http://c/", &[key("http://b/"), key("https://B/")]));
        table.links.sort_unstable();
        table.links.dedup();
        assert_eq!(table.to(key("http://b/")).collect::<Vec<_>>(), ["http://a/", "http://c/"]);
        assert_eq!(table.to(key("http://c/")).collect::<Vec<_>>(), ["http://a/"]);
        assert_eq!(table.to(key("http://a/")).count(), 0);
        assert_eq!(table.pages(), 2);
        let many = vec![key("http://b/"); LINKS_MAX];
        assert!(!table.take("http://d/", &many), "there is no room for so many");
        assert_eq!(table.pages(), 2);
    }
}
