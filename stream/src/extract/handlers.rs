//! Runs handlers over a stream, on all cores.

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_core::Stream;
use tokio::sync::{Mutex, mpsc};
use webbase_node::{NodeError, Result};
use webbase_storage::{Dictionaries, Record};

use super::{Content, Handler};

/// Pages that go to a thread at once, and the bytes after which they do.
const BATCH_PAGES: usize = 64;
const BATCH_BYTES: usize = 1 << 20;

/// Handlers, to be run over a stream together.
#[derive(Clone, Default)]
pub struct Handlers {
    all: Vec<Arc<dyn Handler>>,
    threads: Option<NonZero<usize>>,
}

/// What became of a stream's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Pages that some handler looked at.
    pub pages: u64,
    /// Pages that none wanted.
    pub unwanted: u64,
    /// Pages that could not be unpacked, or are damaged in the repository.
    pub damaged: u64,
}

impl Handlers {
    /// None yet.
    pub fn new() -> Handlers {
        Handlers::default()
    }

    /// One more.
    #[must_use]
    pub fn with(mut self, handler: Arc<dyn Handler>) -> Handlers {
        self.all.push(handler);
        self
    }

    /// On so many threads instead of one for each core.
    #[must_use]
    pub fn on_threads(mut self, threads: NonZero<usize>) -> Handlers {
        self.threads = Some(threads);
        self
    }

    /// Has all handlers look at all pages of a stream. Returns when every page that was taken was looked at. Damaged pages
    /// are counted.
    ///
    /// # Errors
    /// When the stream ends with an error: what came before was looked at. When a handler panics.
    pub async fn run(
        &self,
        stream: impl Stream<Item = Result<Record>>,
        dictionaries: &Dictionaries,
    ) -> Result<Looked> {
        let threads =
            self.threads.or_else(|| std::thread::available_parallelism().ok()).map_or(1, NonZero::get);
        let (sender, receiver) = mpsc::channel::<Vec<Record>>(threads);
        let shared = Arc::new(Shared {
            handlers: self.all.clone(),
            dictionaries: dictionaries.clone(),
            receiver: Mutex::new(receiver),
            counts: Default::default(),
            panicked: AtomicBool::new(false),
        });
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let shared = shared.clone();
                tokio::task::spawn_blocking(move || shared.work())
            })
            .collect();
        let outcome = feed(stream, sender, &shared).await;
        for worker in workers {
            let _runtime_ends = worker.await;
        }
        outcome?;
        if shared.panicked.load(Ordering::Relaxed) {
            return Err(NodeError::Foreign { what: "a handler panicked".into() });
        }
        let [pages, unwanted, damaged] = shared.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        Ok(Looked { pages, unwanted, damaged })
    }
}

struct Shared {
    handlers: Vec<Arc<dyn Handler>>,
    dictionaries: Dictionaries,
    receiver: Mutex<mpsc::Receiver<Vec<Record>>>,
    /// Pages looked at, unwanted, damaged.
    counts: [AtomicU64; 3],
    /// A handler did; what is left of the stream does not matter then.
    panicked: AtomicBool,
}

impl Shared {
    fn work(&self) {
        loop {
            let Some(batch) = self.receiver.blocking_lock().blocking_recv() else { return };
            if self.panicked.load(Ordering::Relaxed) {
                continue;
            }
            let looking = || batch.iter().for_each(|record| self.look_at(record));
            if catch_unwind(AssertUnwindSafe(looking)).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
        }
    }

    fn look_at(&self, record: &Record) {
        let [pages, unwanted, damaged] = &self.counts;
        let seen = record.get();
        let mut wanting = self.handlers.iter().filter(|handler| handler.wants(&seen)).peekable();
        if wanting.peek().is_none() {
            unwanted.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let Ok(content) = Content::of_record(record, &self.dictionaries) else {
            damaged.fetch_add(1, Ordering::Relaxed);
            return;
        };
        wanting.for_each(|handler| handler.page(&content));
        pages.fetch_add(1, Ordering::Relaxed);
    }
}

/// Hands the stream's pages out; ends when it ends, or when nobody takes them any more.
async fn feed(
    stream: impl Stream<Item = Result<Record>>,
    sender: mpsc::Sender<Vec<Record>>,
    shared: &Shared,
) -> Result<()> {
    let mut stream = std::pin::pin!(stream);
    let (mut batch, mut bytes) = (Vec::new(), 0);
    let outcome = loop {
        match next(stream.as_mut()).await {
            None => break Ok(()),
            Some(Ok(record)) => {
                bytes += record.bytes().len();
                batch.push(record);
            }
            Some(Err(e)) if e.is_damaged_page() => {
                shared.counts[2].fetch_add(1, Ordering::Relaxed);
            }
            Some(Err(e)) => break Err(e),
        }
        if batch.len() >= BATCH_PAGES || bytes >= BATCH_BYTES {
            bytes = 0;
            let sent = sender.send(std::mem::take(&mut batch)).await;
            if sent.is_err() || shared.panicked.load(Ordering::Relaxed) {
                break Ok(());
            }
        }
    };
    if !batch.is_empty() {
        let _gone = sender.send(batch).await;
    }
    outcome
}

async fn next<S: Stream>(mut stream: Pin<&mut S>) -> Option<S::Item> {
    std::future::poll_fn(|cx| stream.as_mut().poll_next(cx)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll};
    use webbase_storage::{Compression, Page, RepositoryKey, pack_page};

    struct Canned(std::vec::IntoIter<Record>);

    impl Stream for Canned {
        type Item = Result<Record>;

        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            Poll::Ready(self.0.next().map(Ok))
        }
    }

    fn pages(count: usize) -> Canned {
        let key = RepositoryKey::random().unwrap();
        let page = |n: usize| {
            let (url, body) = (format!("http://h{}/{n}", n % 7), format!("body {n}"));
            let page = Page { url: &url, body: body.as_bytes(), ..Page::default() };
            pack_page(&key, &page, Compression::default(), None).unwrap()
        };
        Canned((0..count).map(page).collect::<Vec<_>>().into_iter())
    }

    #[derive(Default)]
    struct Sum(AtomicU64);

    impl Handler for Sum {
        fn wants(&self, record: &webbase_storage::RecordRef<'_>) -> bool {
            !record.url().contains("h3")
        }

        fn page(&self, page: &Content<'_>) {
            let number: u64 = page.text().trim_start_matches("body ").parse().unwrap();
            self.0.fetch_add(number, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn every_handler_sees_every_page_that_it_wants_once() {
        let (some, also) = (Arc::new(Sum::default()), Arc::new(Sum::default()));
        let handlers = Handlers::new().with(some.clone()).with(also.clone());
        let looked = handlers.run(pages(1000), &Dictionaries::default()).await.unwrap();
        let expected: u64 = (0..1000).filter(|n| n % 7 != 3).sum();
        assert_eq!((some.0.load(Ordering::Relaxed), also.0.load(Ordering::Relaxed)), (expected, expected));
        assert_eq!(looked, Looked { pages: 857, unwanted: 143, damaged: 0 });
    }

    #[tokio::test]
    async fn a_handler_that_panics_is_an_error_and_not_a_hang() {
        let panics = |page: &Content<'_>| assert!(!page.url().ends_with("/500"), "on purpose");
        let handlers = Handlers::new().with(Arc::new(panics)).on_threads(NonZero::new(1).unwrap());
        assert!(handlers.run(pages(2000), &Dictionaries::default()).await.is_err());
    }
}
