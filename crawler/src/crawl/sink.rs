//! Where pages go: the update nodes of a repository, or, in a test, a list.

use webbase_node::Cluster;
use webbase_node::cycle::message::SeenAgain;
use webbase_storage::{Page, PageKey};

/// A page that was visited and had not changed, or could not be visited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenPage {
    /// Which.
    pub url: String,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// How long it may stay from then, in seconds; 0: for ever.
    pub lifetime_s: u32,
}

/// Where pages go.
pub trait Sink: Send + Sync + 'static {
    /// Adds pages: durable when it returns. The places of those that were refused, and why.
    ///
    /// # Errors
    /// When none of them could be added: the pages stay in the spool.
    fn add(&self, pages: &[Page<'_>]) -> impl Future<Output = Result<Vec<(usize, String)>, String>> + Send;

    /// Says that pages were seen at a moment and had not changed, or could not be verified and may stay for a while.
    ///
    /// # Errors
    /// When it could not be written down.
    fn seen(&self, pages: &[SeenPage]) -> impl Future<Output = Result<(), String>> + Send;

    /// The URLs of pages whose time is over: unless they are added or seen again, they are removed.
    ///
    /// # Errors
    /// When nobody can say.
    fn due(&self, now_ms: u64, limit: u32) -> impl Future<Output = Result<Vec<String>, String>> + Send {
        let _ = (now_ms, limit);
        async { Ok(Vec::new()) }
    }

    /// When an estimator last ranked the pages, in milliseconds since 1970; `None` where none did.
    ///
    /// # Errors
    /// When nobody can say.
    fn ranked_at_ms(&self) -> impl Future<Output = Result<Option<u64>, String>> + Send {
        async { Ok(None) }
    }

    /// Importance and usefulness of each of these pages; `None` for one that was not known when they were computed.
    ///
    /// # Errors
    /// When nobody can say.
    fn ranks(
        &self,
        urls: Vec<String>,
    ) -> impl Future<Output = Result<Vec<Option<(f64, f64)>>, String>> + Send {
        async move { Ok(vec![None; urls.len()]) }
    }

    /// Makes what was added visible.
    ///
    /// # Errors
    /// When the cycle did not come to its end.
    fn cycle(&self) -> impl Future<Output = Result<u64, String>> + Send;
}

impl Sink for Cluster {
    async fn add(&self, pages: &[Page<'_>]) -> Result<Vec<(usize, String)>, String> {
        let adds = Cluster::add(self, pages).await.map_err(|e| e.to_string())?;
        Ok(adds.refused.into_iter().map(|(place, e)| (place, e.to_string())).collect())
    }

    async fn seen(&self, pages: &[SeenPage]) -> Result<(), String> {
        let seen = pages.iter().filter_map(|page| {
            let key = self.page_key(&page.url).ok()?;
            Some(SeenAgain { key, at_ms: page.at_ms, lifetime_s: page.lifetime_s })
        });
        let seen: Vec<SeenAgain> = seen.collect();
        Cluster::seen(self, &seen).await.map_err(|e| e.to_string())
    }

    async fn due(&self, now_ms: u64, limit: u32) -> Result<Vec<String>, String> {
        let due = self.due_list(now_ms, limit).await.map_err(|e| e.to_string())?;
        let keys: Vec<PageKey> = due.iter().map(|page| page.key).collect();
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let found = self.lookup_many(&keys).await.map_err(|e| e.to_string())?;
        // A page that cannot be read any more has no URL to be visited at; it goes.
        let records = found.pages.into_iter().filter_map(|page| page.ok().flatten());
        Ok(records.map(|record| record.get().url().to_owned()).collect())
    }

    async fn cycle(&self) -> Result<u64, String> {
        Cluster::cycle(self, |_| {}).await.map_err(|e| e.to_string())
    }
}
