//! The crawl's door: what it adds to a repository gives its links, too. A batch is acknowledged when its links are durable as well, so a
//! kill loses no links of pages that the repository has.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use rayon::prelude::*;
use webbase_storage::Page;
use webbase_stream::extract::Content;

use super::handler::page_links;
use super::{Extent, Links, PageLinks, Result};
use crate::crawl::{SeenPage, Sink};

/// Where pages go, with an owner of links beside it: pages that were added hand their links over, and those count with the next cycle.
pub struct WithLinks<S> {
    sink: S,
    links: Arc<Mutex<Links>>,
}

impl<S: Sink> WithLinks<S> {
    /// Pages go to `sink`, their links to `links`. XML pages are of interest; links that are not to be followed don't count.
    pub fn new(sink: S, links: Arc<Mutex<Links>>) -> WithLinks<S> {
        WithLinks { sink, links }
    }

    async fn to_links<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Links) -> Result<T> + Send + 'static,
    ) -> std::result::Result<T, String> {
        let links = self.links.clone();
        let done = tokio::task::spawn_blocking(move || work(&mut links.lock())).await;
        done.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
    }
}

impl<S: Sink> Sink for WithLinks<S> {
    async fn add(&self, pages: &[Page<'_>]) -> std::result::Result<Vec<(usize, String)>, String> {
        let refused = self.sink.add(pages).await?;
        let without: HashSet<usize> = refused.iter().map(|(place, _)| *place).collect();
        let of = |(place, page): (usize, &Page<'_>)| -> Option<PageLinks> {
            let content = Content::of_page(page);
            page_links(&content, content.is_xml(), false).filter(|_| !without.contains(&place))
        };
        let taken: Vec<PageLinks> = pages.par_iter().enumerate().filter_map(of).collect();
        self.to_links(move |links| links.keep(&taken)).await?;
        Ok(refused)
    }

    async fn seen(&self, pages: &[SeenPage]) -> std::result::Result<(), String> {
        self.sink.seen(pages).await
    }

    async fn due(&self, now_ms: u64, limit: u32) -> std::result::Result<Vec<String>, String> {
        self.sink.due(now_ms, limit).await
    }

    async fn ranked_at_ms(&self) -> std::result::Result<Option<u64>, String> {
        self.to_links(|links| Ok(links.ranks()?.map(|ranks| ranks.computed_at_ms()))).await
    }

    async fn ranks(&self, urls: Vec<String>) -> std::result::Result<Vec<Option<(f64, f64)>>, String> {
        self.to_links(move |links| links.ranks_of(&urls)).await
    }

    async fn cycle(&self) -> std::result::Result<u64, String> {
        let generation = self.sink.cycle().await?;
        self.to_links(|links| links.commit(Extent::Changes)).await?;
        Ok(generation)
    }
}
