//! An add call: batches in, an answer for each once it is durable.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use webbase_storage::Added;

use super::Inner;
use super::adder::Batch;
use super::requests::{Counted, Stop};
use crate::wire::frame::{BATCH, DICTIONARY};
use crate::wire::message::{self, BatchAnswer, Code, Fault, Form};
use crate::wire::mux::{Call, Item};

/// Batches of one add that wait to be staged: enough to keep the staging thread busy, few enough to stay in its cache.
const UNSTAGED_MAX: usize = 2;

type Outcome = oneshot::Receiver<Result<Added, Fault>>;

pub(super) async fn serve(inner: &Arc<Inner>, call: &Call, form: Form) -> Result<(), Stop> {
    let (_counted, before) = Counted::new(inner, |inner| &inner.counters.adds);
    let (max, Some(adder)) = (inner.settings.uploads_max, &inner.adder) else {
        return Err(Fault::new(Code::BadRequest, "nothing can be added here").into());
    };
    if before >= max {
        return Err(Fault::new(Code::Busy, format!("{before} adds are under way, that is the limit")).into());
    }
    let mut leaving = inner.leaving.subscribe();
    let turns = Arc::new(Semaphore::new(UNSTAGED_MAX));
    let mut pending: VecDeque<Outcome> = VecDeque::new();
    let mut batch = Batch::default();
    let (mut answered, mut open) = (0, true);
    while open || !pending.is_empty() {
        let may_take = open && pending.len() < inner.settings.batches_max;
        tokio::select! {
            biased;
            outcome = first(&mut pending), if !pending.is_empty() => {
                pending.pop_front();
                answer(call, answered, outcome).await?;
                answered += 1;
            }
            () = until(&mut leaving), if open => open = false,
            item = call.receive(None), if may_take => match item? {
                Some(item) => {
                    if take(inner, &mut batch, item)? {
                        batch.memory = memory(inner, &turns, batch.bytes).await;
                        pending.push_back(adder.add(form, std::mem::take(&mut batch)));
                    }
                }
                None => open = false,
            },
        }
    }
    if *leaving.borrow() && !call.is_ended() {
        let text = "this node shuts down; batches without an answer were not taken";
        return Err(Fault::new(Code::ShuttingDown, text).into());
    }
    call.end();
    Ok(())
}

/// Takes data into the batch; true when that completes it.
fn take(inner: &Inner, batch: &mut Batch, item: Item) -> Result<bool, Fault> {
    let Item { payload, flags } = item;
    let max = inner.settings.batch_bytes_max.max(payload.len());
    batch.bytes += payload.len();
    if batch.bytes > max {
        let text = format!("a batch of {} bytes, the limit is {max}", batch.bytes);
        return Err(Fault::new(Code::BadRequest, text));
    }
    let to: &mut Vec<Bytes> =
        if flags & DICTIONARY != 0 { &mut batch.dictionaries } else { &mut batch.payloads };
    if !payload.is_empty() {
        to.push(payload);
    }
    Ok(flags & BATCH != 0)
}

/// Waits until there is memory for a batch.
async fn memory(inner: &Inner, turns: &Arc<Semaphore>, bytes: usize) -> Vec<OwnedSemaphorePermit> {
    let all = inner.settings.batches_bytes_max >> 10;
    let share = (bytes >> 10).clamp(1, all.max(1));
    // The semaphores are never closed.
    let turn = turns.clone().acquire_owned().await.ok();
    let share = inner.batch_memory.clone().acquire_many_owned(share as u32).await.ok();
    turn.into_iter().chain(share).collect()
}

async fn answer(
    call: &Call,
    batch: u64,
    outcome: Result<Result<Added, Fault>, oneshot::error::RecvError>,
) -> Result<(), Stop> {
    let outcome = outcome.map_err(|_| lost()).and_then(|outcome| outcome);
    let outcome = outcome.map(|added| (added.new, added.superseding, added.stale));
    Ok(call.send(0, message::encode(&BatchAnswer { batch, outcome }).into()).await?)
}

fn lost() -> Fault {
    Fault::new(Code::Internal, "the node met a fault of its own in this batch")
}

/// Adds to a server of this process, without a connection.
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
        let _near = Near::begin(&inner)?;
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
struct Near<'a>(&'a Inner);

impl Near<'_> {
    fn begin(inner: &Inner) -> Option<Near<'_>> {
        inner.near_adds.fetch_add(1, Ordering::SeqCst);
        let near = Near(inner);
        (!*inner.leaving.borrow()).then_some(near)
    }
}

impl Drop for Near<'_> {
    fn drop(&mut self) {
        self.0.near_adds.fetch_sub(1, Ordering::SeqCst);
        self.0.ended.notify_waiters();
    }
}

/// Waits for the oldest outcome. Dropping the future loses nothing.
async fn first(pending: &mut VecDeque<Outcome>) -> Result<Result<Added, Fault>, oneshot::error::RecvError> {
    match pending.front_mut() {
        Some(outcome) => outcome.await,
        None => std::future::pending().await,
    }
}

/// Waits until the server is to end.
async fn until(leaving: &mut tokio::sync::watch::Receiver<bool>) {
    if leaving.wait_for(|leaving| *leaving).await.is_err() {
        std::future::pending::<()>().await; // the server is gone without a word: the connection will say so
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::server::{Server, Service, Settings};
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
        let adding = |task: usize| {
            let adder = server.near_adder();
            tokio::spawn(async move {
                let mut acknowledged = Vec::new();
                for n in 0.. {
                    let record = record(&key(), task * 1_000_000 + n, None);
                    match adder.add(Vec::new(), vec![batch(std::slice::from_ref(&record))]).await {
                        Some(outcome) => outcome.unwrap(),
                        None => break,
                    }
                    acknowledged.push(record.get().key());
                }
                acknowledged
            })
        };
        let tasks: Vec<_> = (0..4).map(adding).collect();
        while store.stats().pages < 100 {
            tokio::time::sleep(Duration::from_millis(1)).await;
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
