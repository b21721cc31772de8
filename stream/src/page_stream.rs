//! Streams as `futures` has them: of records, of pages, of batches of records.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use webbase_node::{ClusterStream, Result, StreamCursor};
use webbase_storage::{Dictionaries, Record};

use crate::page::StoredPage;

/// Records in a batch, and the bytes after which it is one.
const BATCH_RECORDS: usize = 1024;
const BATCH_BYTES: usize = 1 << 20;

/// Records, each verified, as they are stored. A page that is damaged at all nodes that have it is an error for which
/// `is_damaged_page` holds, and the stream goes on; any other error is the last.
///
/// Whoever does not poll it takes nothing: nodes wait, with a bounded number of bytes on the way.
pub struct RecordStream {
    stream: ClusterStream,
    dictionaries: Dictionaries,
}

impl RecordStream {
    pub(crate) fn new(stream: ClusterStream, dictionaries: Dictionaries) -> RecordStream {
        RecordStream { stream, dictionaries }
    }

    /// The next record, or `None` after the last.
    pub async fn next(&mut self) -> Option<Result<Record>> {
        self.stream.next().await
    }

    /// What the records need to be unpacked.
    pub fn dictionaries(&self) -> &Dictionaries {
        &self.dictionaries
    }

    /// The generation that all pages are of.
    pub fn generation(&self) -> u64 {
        self.stream.generation()
    }

    /// Where another stream goes on behind the last record that was taken.
    ///
    /// # Errors
    /// As [`ClusterStream::cursor`].
    pub fn cursor(&self) -> Result<StreamCursor> {
        self.stream.cursor()
    }

    /// The same, unpacked.
    pub fn pages(self) -> PageStream {
        PageStream(self)
    }

    /// The same, many at a time: whatever has come, at least one. For who does something costly once in a while.
    pub fn batches(self) -> BatchStream {
        BatchStream { records: self, failed: None }
    }
}

impl Stream for RecordStream {
    type Item = Result<Record>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.stream.poll_next(cx)
    }
}

/// Pages, unpacked. One that does not unpack is an error, and the stream goes on.
pub struct PageStream(RecordStream);

impl PageStream {
    /// The next page, or `None` after the last.
    pub async fn next(&mut self) -> Option<Result<StoredPage>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// As [`RecordStream::cursor`].
    ///
    /// # Errors
    /// As [`ClusterStream::cursor`].
    pub fn cursor(&self) -> Result<StreamCursor> {
        self.0.cursor()
    }
}

impl Stream for PageStream {
    type Item = Result<StoredPage>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Poll::Ready(next) = self.0.stream.poll_next(cx) else { return Poll::Pending };
        Poll::Ready(next.map(|record| Ok(StoredPage::unpack(&record?, &self.0.dictionaries)?)))
    }
}

/// Batches of records.
pub struct BatchStream {
    records: RecordStream,
    /// An error that came behind a batch.
    failed: Option<webbase_node::NodeError>,
}

impl BatchStream {
    /// The next batch, or `None` after the last.
    pub async fn next(&mut self) -> Option<Result<Vec<Record>>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Behind the last batch that was taken.
    ///
    /// # Errors
    /// As [`ClusterStream::cursor`].
    pub fn cursor(&self) -> Result<StreamCursor> {
        self.records.cursor()
    }
}

impl Stream for BatchStream {
    type Item = Result<Vec<Record>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(failed) = self.failed.take() {
            return Poll::Ready(Some(Err(failed)));
        }
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH_RECORDS && bytes < BATCH_BYTES {
            match self.records.stream.poll_next(cx) {
                Poll::Ready(Some(Ok(record))) => {
                    bytes += record.bytes().len();
                    batch.push(record);
                }
                Poll::Ready(Some(Err(e))) if batch.is_empty() => return Poll::Ready(Some(Err(e))),
                Poll::Ready(Some(Err(e))) => {
                    self.failed = Some(e);
                    break;
                }
                Poll::Ready(None) if batch.is_empty() => return Poll::Ready(None),
                Poll::Pending if batch.is_empty() => return Poll::Pending,
                Poll::Ready(None) | Poll::Pending => break,
            }
        }
        Poll::Ready(Some(Ok(batch)))
    }
}
