//! Delivery: pages to the repository, and cycles that make them visible.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use webbase_storage::Page;

use super::outcomes::lifetime_s;
use super::sink::SeenPage;
use super::spool::Spooled;
use super::{CrawlError, Settings, Sink};

/// How often a repository that takes no pages is asked again.
const TRIES: u32 = 5;

pub(super) struct Delivery<S> {
    sink: Arc<S>,
    handle: Handle,
    lifetime_s: u32,
    cycle_every: Option<Duration>,
    cycle_pages: Option<u64>,
    cycle: Option<JoinHandle<Result<u64, String>>>,
    cycled_at: Instant,
    pages_at_cycle: u64,
    /// Pages that the repository has acknowledged.
    pub(super) pages: u64,
    /// Pages that it refused.
    pub(super) refused: u64,
    /// The last generation that a cycle made visible.
    pub(super) generation: Option<u64>,
}

impl<S: Sink> Delivery<S> {
    pub(super) fn new(settings: &Settings, sink: Arc<S>, handle: Handle) -> Delivery<S> {
        Delivery {
            sink,
            handle,
            lifetime_s: lifetime_s(settings),
            cycle_every: settings.cycle_every,
            cycle_pages: settings.cycle_pages,
            cycle: None,
            cycled_at: Instant::now(),
            pages_at_cycle: 0,
            pages: 0,
            refused: 0,
            generation: None,
        }
    }

    /// Adds pages; a repository that is away for a moment is waited for.
    pub(super) fn add(&mut self, spooled: &[&Spooled]) -> Result<(), CrawlError> {
        if spooled.is_empty() {
            return Ok(());
        }
        let pages: Vec<Page<'_>> = spooled.iter().map(|page| as_page(page, self.lifetime_s)).collect();
        let mut tries = 0;
        let refused = loop {
            match self.handle.block_on(self.sink.add(&pages)) {
                Ok(refused) if refused.len() < pages.len() => break refused,
                Ok(refused) if tries >= TRIES => {
                    let why = refused.into_iter().next().map_or_else(String::new, |(_, why)| why);
                    return Err(CrawlError::Repository(why));
                }
                Err(e) if tries >= TRIES => return Err(CrawlError::Repository(e)),
                _ => {}
            }
            tries += 1;
            self.handle.block_on(tokio::time::sleep(Duration::from_millis(200 << tries)));
        };
        for (_, why) in &refused {
            tracing::warn!("the repository refused a page: {why}");
        }
        self.refused += refused.len() as u64;
        self.pages += (pages.len() - refused.len()) as u64;
        Ok(())
    }

    /// Says which pages were seen again.
    pub(super) fn seen(&self, pages: &[SeenPage]) -> Result<(), CrawlError> {
        if pages.is_empty() {
            return Ok(());
        }
        self.handle.block_on(self.sink.seen(pages)).map_err(CrawlError::Repository)
    }

    /// The pages whose time is over.
    pub(super) fn due(&self, now_ms: u64, limit: u32) -> Result<Vec<String>, String> {
        self.handle.block_on(self.sink.due(now_ms, limit))
    }

    /// When pages were last ranked.
    pub(super) fn ranked_at_ms(&self) -> Result<Option<u64>, String> {
        self.handle.block_on(self.sink.ranked_at_ms())
    }

    /// Ranks of pages.
    pub(super) fn ranks(&self, urls: Vec<String>) -> Result<Vec<Option<(f64, f64)>>, String> {
        self.handle.block_on(self.sink.ranks(urls))
    }

    /// Begins a cycle when it is time to, and sees to the one that runs.
    pub(super) fn cycles(&mut self, at_end: bool) {
        if self.cycle.as_ref().is_some_and(|cycle| cycle.is_finished() || at_end)
            && let Some(cycle) = self.cycle.take()
        {
            match self.handle.block_on(cycle) {
                Ok(Ok(generation)) => self.generation = Some(generation),
                Ok(Err(e)) => tracing::warn!("the cycle did not come to its end: {e}"),
                Err(e) => tracing::warn!("the cycle did not come to its end: {e}"),
            }
        }
        let new = self.pages - self.pages_at_cycle;
        let due = at_end
            || self.cycle_every.is_some_and(|every| self.cycled_at.elapsed() >= every)
            || self.cycle_pages.is_some_and(|pages| new >= pages);
        if new > 0 && due && self.cycle.is_none() {
            let sink = Arc::clone(&self.sink);
            self.cycle = Some(self.handle.spawn(async move { sink.cycle().await }));
            self.cycled_at = Instant::now();
            self.pages_at_cycle = self.pages;
        }
    }

    /// Waits for the cycle that runs.
    pub(super) fn finish(&mut self) -> Result<(), CrawlError> {
        if let Some(cycle) = self.cycle.take() {
            match self.handle.block_on(cycle) {
                Ok(Ok(generation)) => self.generation = Some(generation),
                Ok(Err(e)) => return Err(CrawlError::Repository(e)),
                Err(e) => return Err(CrawlError::Repository(e.to_string())),
            }
        }
        Ok(())
    }
}

fn as_page(page: &Spooled, lifetime_s: u32) -> Page<'_> {
    Page {
        url: &page.url,
        fetched_at_ms: page.fetched_at_ms,
        modified_at_ms: page.modified_at_ms,
        status: page.status,
        mime: &page.mime,
        head: &page.head,
        body: &page.body,
        lifetime_s,
        ..Page::default()
    }
}
