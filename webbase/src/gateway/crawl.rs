//! A crawl in this process, for `/status` and the console. Other crawls are processes of their own, and tell how they go themselves.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

/// Tells how a crawl goes, whenever somebody wants to know how things stand.
#[derive(Clone)]
pub struct CrawlFigures(Arc<dyn Fn() -> Value + Send + Sync>);

impl CrawlFigures {
    /// Of a function that tells it as a JSON object.
    pub fn new(tell: impl Fn() -> Value + Send + Sync + 'static) -> CrawlFigures {
        CrawlFigures(Arc::new(tell))
    }

    pub(super) fn as_json(&self) -> Value {
        (self.0)()
    }
}

impl fmt::Debug for CrawlFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CrawlFigures")
    }
}
