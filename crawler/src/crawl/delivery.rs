//! Delivery: pages to the repository, a batch at a time while the next one is read, and cycles that make them visible.

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
    /// The batch on its way, and how many pages it has.
    batch: Option<(JoinHandle<Result<Delivered, CrawlError>>, u64)>,
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
            batch: None,
            pages: 0,
            refused: 0,
            generation: None,
        }
    }

    /// Sends a batch on its way: pages, and which were seen again. The one before it has been waited for.
    pub(super) fn begin(&mut self, pages: Vec<Spooled>, seen: Vec<SeenPage>) {
        let (sink, lifetime_s, count) = (Arc::clone(&self.sink), self.lifetime_s, pages.len() as u64);
        let deliver = async move {
            let delivered = add(&*sink, &pages, lifetime_s).await?;
            if !seen.is_empty() {
                sink.seen(&seen).await.map_err(CrawlError::Repository)?;
            }
            Ok(delivered)
        };
        self.batch = Some((self.handle.spawn(deliver), count));
    }

    /// Whether a batch is on its way that the repository has not answered for yet.
    pub(super) fn is_under_way(&self) -> bool {
        self.batch.as_ref().is_some_and(|(batch, _)| !batch.is_finished())
    }

    /// Waits for the batch on its way. Returns whether there was one: its pages are the repository's now.
    pub(super) fn wait(&mut self) -> Result<bool, CrawlError> {
        let Some((batch, _)) = self.batch.take() else { return Ok(false) };
        let delivered = self.handle.block_on(batch).map_err(|e| CrawlError::Repository(e.to_string()))??;
        self.pages += delivered.pages;
        self.refused += delivered.refused;
        Ok(true)
    }

    /// Pages that the repository has, or is about to have.
    pub(super) fn begun(&self) -> u64 {
        self.pages + self.batch.as_ref().map_or(0, |(_, pages)| *pages)
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

/// What became of a batch.
#[derive(Default)]
struct Delivered {
    pages: u64,
    refused: u64,
}

/// Adds pages; a repository that is away for a moment is waited for.
async fn add<S: Sink>(sink: &S, spooled: &[Spooled], lifetime_s: u32) -> Result<Delivered, CrawlError> {
    if spooled.is_empty() {
        return Ok(Delivered::default());
    }
    let pages: Vec<Page<'_>> = spooled.iter().map(|page| as_page(page, lifetime_s)).collect();
    let mut tries = 0;
    let refused = loop {
        match sink.add(&pages).await {
            Ok(refused) if refused.len() < pages.len() => break refused,
            Ok(refused) if tries >= TRIES => {
                let why = refused.into_iter().next().map_or_else(String::new, |(_, why)| why);
                return Err(CrawlError::Repository(why));
            }
            Err(e) if tries >= TRIES => return Err(CrawlError::Repository(e)),
            _ => {}
        }
        tries += 1;
        tokio::time::sleep(Duration::from_millis(200 << tries)).await;
    };
    for (_, why) in &refused {
        tracing::warn!("the repository refused a page: {why}");
    }
    Ok(Delivered { pages: (pages.len() - refused.len()) as u64, refused: refused.len() as u64 })
}

fn as_page(page: &Spooled, lifetime_s: u32) -> Page<'_> {
    let facts = &page.facts;
    Page {
        url: &facts.url,
        fetched_at_ms: facts.fetched_at_ms,
        modified_at_ms: facts.modified_at_ms,
        status: facts.status,
        mime: &facts.mime,
        head: &page.head,
        body: &page.body,
        lifetime_s,
        ..Page::default()
    }
}
