//! Adding pages, a batch at a time.

use webbase_node::{Cluster, NodeError, Result};

use crate::page::StoredPage;

/// A batch is sent when it has so many bytes or pages.
const BATCH_BYTES: usize = 8 << 20;
const BATCH_PAGES: usize = 4096;
/// Bytes that a page takes besides its contents.
const OVERHEAD_BYTES: usize = 256;

/// What became of pages.
#[derive(Clone, Debug, Default)]
pub struct PagesAdded {
    /// Durable on all their update nodes.
    pub acknowledged: u64,
    /// The URLs of the others, and why.
    pub refused: Vec<(String, NodeError)>,
}

/// Gathers pages and adds them in batches. A page is durable when [`PageAdder::flush`] or [`PageAdder::finish`] has
/// returned, or is named as refused.
pub struct PageAdder {
    cluster: Cluster,
    batch: Vec<StoredPage>,
    bytes: usize,
    so_far: PagesAdded,
}

impl PageAdder {
    pub(crate) fn new(cluster: Cluster) -> PageAdder {
        PageAdder { cluster, batch: Vec::new(), bytes: 0, so_far: PagesAdded::default() }
    }

    /// Adds a page to the batch; sends that when it is large enough, and waits until it is durable.
    ///
    /// # Errors
    /// When the management server does not answer. The batch stays, and is sent with the next page.
    pub async fn page(&mut self, page: StoredPage) -> Result<()> {
        let body = page.body.as_ref().map_or(0, bytes::Bytes::len);
        self.bytes += page.url.len() + page.head.len() + body + OVERHEAD_BYTES;
        self.batch.push(page);
        if self.bytes >= BATCH_BYTES || self.batch.len() >= BATCH_PAGES {
            self.flush().await?;
        }
        Ok(())
    }

    /// Sends what was gathered, and waits until it is durable.
    ///
    /// # Errors
    /// As [`PageAdder::page`].
    pub async fn flush(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let pages: Vec<_> = self.batch.iter().map(StoredPage::as_page).collect();
        let adds = self.cluster.add(&pages).await?;
        self.so_far.acknowledged += adds.acknowledged;
        let named = |(at, e): (usize, NodeError)| Some((self.batch.get(at)?.url.clone(), e));
        self.so_far.refused.extend(adds.refused.into_iter().filter_map(named));
        self.batch.clear();
        self.bytes = 0;
        Ok(())
    }

    /// Sends the rest; says what became of all pages.
    ///
    /// # Errors
    /// As [`PageAdder::page`].
    pub async fn finish(mut self) -> Result<PagesAdded> {
        self.flush().await?;
        Ok(self.so_far)
    }
}
