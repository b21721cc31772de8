//! Adds to a server of this process, without a connection: batches go to the threads that stage and commit those of connections, within the
//! same limits.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use tokio::sync::Semaphore;

use super::Inner;
use super::add::{UNSTAGED_MAX, lost, memory};
use super::adder::Batch;
use super::requests::Counted;
use crate::wire::message::{Fault, Form};

/// A way to add to a server, as long as there is one.
#[derive(Clone)]
pub(crate) struct NearAdder(Weak<Inner>);

impl NearAdder {
    pub(super) fn new(inner: &Arc<Inner>) -> NearAdder {
        NearAdder(Arc::downgrade(inner))
    }

    /// Hands over batches of records, with their bytes, and the dictionaries they need, and waits until all are durable or one was refused;
    /// nothing where another way has to be gone: the server takes no adds, has too many, or ends.
    pub(crate) async fn add(
        &self,
        mut dictionaries: Vec<Bytes>,
        batches: Vec<(Vec<Bytes>, usize)>,
    ) -> Option<Result<(), Fault>> {
        let inner = self.0.upgrade()?;
        let adder = inner.adder.as_ref()?;
        let (_counted, before) = Counted::new(&inner, |inner| &inner.counters.adds);
        // Whoever ends the server sees this, or this sees that it ends.
        let _under_way = UnderWay::begin(&inner)?;
        if before >= inner.settings.uploads_max {
            return None;
        }
        let turns = Arc::new(Semaphore::new(UNSTAGED_MAX));
        let mut pending = Vec::with_capacity(batches.len());
        for (payloads, bytes) in batches {
            let memory = memory(&inner, &turns, bytes).await;
            let dictionaries = std::mem::take(&mut dictionaries);
            pending.push(adder.add(Form::Records, Batch { dictionaries, payloads, bytes, memory }));
        }
        let mut all = Ok(());
        for outcome in pending {
            let outcome = outcome.await.unwrap_or_else(|_| Err(lost()));
            all = all.and(outcome.map(drop));
        }
        Some(all)
    }
}

/// An add without a connection, as long as it lasts.
struct UnderWay<'a>(&'a Inner);

impl UnderWay<'_> {
    fn begin(inner: &Inner) -> Option<UnderWay<'_>> {
        inner.near_adds.fetch_add(1, Ordering::SeqCst);
        let under_way = UnderWay(inner);
        (!*inner.leaving.borrow()).then_some(under_way)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.near_adds.fetch_sub(1, Ordering::SeqCst);
        self.0.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::server::{Server, Service, Settings};
    use crate::wire::message::Code;
    use webbase_storage::{
        Compression, Dictionary, Options, Organization, Page, PageStore, Record, RepositoryKey, create, open,
        pack_page,
    };

    fn key() -> RepositoryKey {
        RepositoryKey::new([7; 32])
    }

    async fn started(dir: &std::path::Path) -> (Arc<dyn PageStore>, Server) {
        create(dir, Organization::Log, key(), &Options::default()).unwrap();
        let store = open(dir, &Options::default()).unwrap();
        let anywhere = "127.0.0.1:0".parse().unwrap();
        let server = Server::start(anywhere, Service::of_store(store.clone()), Settings::default()).await;
        (store, server.unwrap())
    }

    fn record(key: &RepositoryKey, n: usize, dictionary: Option<&Dictionary>) -> Record {
        let (url, body) = (format!("http://h/{n}"), format!("page {n} ").repeat(50));
        let page = Page { url: &url, body: body.as_bytes(), ..Page::default() };
        pack_page(key, &page, Compression::Zstd(1), dictionary).unwrap()
    }

    fn batch(records: &[Record]) -> (Vec<Bytes>, usize) {
        let bytes = records.iter().map(|record| record.bytes().len()).sum();
        (records.iter().map(|record| record.bytes().clone()).collect(), bytes)
    }

    #[tokio::test]
    async fn without_a_connection_batches_are_durable_or_refused_as_with_one() {
        let dir = tempfile::tempdir().unwrap();
        let (store, server) = started(&dir.path().join("store")).await;
        let adder = server.near_adder();
        let plain: Vec<Record> = (0..40).map(|n| record(&key(), n, None)).collect();
        let batches = plain.chunks(15).map(batch).collect();
        adder.add(Vec::new(), batches).await.unwrap().unwrap();
        let dictionary = Dictionary::new(b"page page page and more pages".repeat(20), 1);
        let packed: Vec<Record> = (40..60).map(|n| record(&key(), n, Some(&dictionary))).collect();
        assert!(packed.iter().any(|record| record.get().dictionary() != 0));
        // Without the dictionary they are refused, and so are pages of another repository; that concerns nobody else.
        assert!(adder.add(Vec::new(), vec![batch(&packed)]).await.unwrap().is_err());
        let foreign = record(&RepositoryKey::new([8; 32]), 99, None);
        let refused = adder.add(Vec::new(), vec![batch(&[foreign])]).await.unwrap().unwrap_err();
        assert_eq!(refused.code, Code::BadPage);
        let content = Bytes::copy_from_slice(dictionary.content());
        adder.add(vec![content], vec![batch(&packed)]).await.unwrap().unwrap();
        for record in plain.iter().chain(&packed) {
            let found = store.lookup(record.get().key(), webbase_storage::Trust::Verify).unwrap().unwrap();
            assert_eq!(found.bytes(), record.bytes());
        }
        assert_eq!(store.stats().pages, 60);
        assert_eq!(server.load().adds, 0);
        drop(server);
        assert!(adder.add(Vec::new(), vec![batch(&plain)]).await.is_none(), "it is gone");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_server_that_ends_waits_for_adds_without_a_connection() {
        let dir = tempfile::tempdir().unwrap();
        let (store, server) = started(&dir.path().join("store")).await;
        let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let adding = |task: usize| {
            let (adder, told) = (server.near_adder(), told.clone());
            tokio::spawn(async move {
                let mut acknowledged = Vec::new();
                for n in 0.. {
                    let record = record(&key(), task * 1_000_000 + n, None);
                    match adder.add(Vec::new(), vec![batch(std::slice::from_ref(&record))]).await {
                        Some(outcome) => outcome.unwrap(),
                        None => break,
                    }
                    acknowledged.push(record.get().key());
                    let _ended = told.send(());
                }
                acknowledged
            })
        };
        let tasks: Vec<_> = (0..4).map(adding).collect();
        drop(told);
        for _ in 0..100 {
            heard.recv().await.unwrap();
        }
        assert!(server.shutdown(Duration::from_secs(60)).await);
        let pages = store.stats().pages;
        let mut acknowledged = 0;
        for task in tasks {
            for key in task.await.unwrap() {
                assert!(store.lookup(key, webbase_storage::Trust::Verify).unwrap().is_some());
                acknowledged += 1;
            }
        }
        assert_eq!(acknowledged, pages, "nothing came afterwards");
    }
}
