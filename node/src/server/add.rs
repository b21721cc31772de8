//! An add call: batches in, an answer for each once it is durable.

use std::collections::VecDeque;
use std::sync::Arc;

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
pub(super) const UNSTAGED_MAX: usize = 2;

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
pub(super) async fn memory(inner: &Inner, turns: &Arc<Semaphore>, bytes: usize) -> Vec<OwnedSemaphorePermit> {
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

/// A batch came to no end.
pub(super) fn lost() -> Fault {
    Fault::new(Code::Internal, "the node met a fault of its own in this batch")
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
