//! Where pages go: the update nodes of a repository, or, in a test, a list.

use webbase_node::Cluster;
use webbase_node::cycle::message::SeenAgain;
use webbase_storage::Page;

/// Where pages go.
pub trait Sink: Send + Sync + 'static {
    /// Adds pages: durable when it returns. The places of those that were refused, and why.
    ///
    /// # Errors
    /// When none of them could be added: the pages stay in the spool.
    fn add(&self, pages: &[Page<'_>]) -> impl Future<Output = Result<Vec<(usize, String)>, String>> + Send;

    /// Says that pages were seen at a moment and had not changed.
    ///
    /// # Errors
    /// When it could not be written down.
    fn seen(&self, urls: &[(String, u64)]) -> impl Future<Output = Result<(), String>> + Send;

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

    async fn seen(&self, urls: &[(String, u64)]) -> Result<(), String> {
        let seen = urls.iter().filter_map(|(url, at_ms)| {
            let key = self.page_key(url).ok()?;
            Some(SeenAgain { key, at_ms: *at_ms, lifetime_s: 0 })
        });
        let seen: Vec<SeenAgain> = seen.collect();
        Cluster::seen(self, &seen).await.map_err(|e| e.to_string())
    }

    async fn cycle(&self) -> Result<u64, String> {
        Cluster::cycle(self, |_| {}).await.map_err(|e| e.to_string())
    }
}
