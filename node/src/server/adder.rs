//! Adds of all connections, staged by one thread and committed by another: while a commit waits for the disk the next
//! batches are staged, and one commit serves every batch that was staged before it began.
//!
//! 1. A batch is acknowledged after a commit that began when it was staged, and only if nothing went wrong in between.
//! 2. A batch that the store refuses concerns nobody else. A failing disk, in a staging or in a commit, may have taken
//!    other staged batches with it: then none of those that wait for a commit, or are being staged, is acknowledged. They
//!    may be stored all the same; adding them again is harmless.
//! 3. Queues are bounded by the calls that may add at once and the batches each may have under way; the bytes of batches
//!    that wait to be staged, by the server's memory for them.
//! 4. While there is more to stage, a commit waits for a few batches: syncing each alone would make the disk the limit.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use webbase_storage::{Added, Page, Record};

use super::pages::{NotAdded, Pages};
use crate::wire::message::{Code, Fault, Form};
use crate::wire::pages::take_page;
use crate::wire::records::take_unverified;

/// Batches that a commit waits for while more are coming, and how long at most.
const GROUP_BATCHES: usize = 16;
const GROUP_WAIT: Duration = Duration::from_millis(100);

/// Pages handed over together.
#[derive(Default)]
pub(crate) struct Batch {
    /// Dictionaries, which the records need first.
    pub(crate) dictionaries: Vec<Bytes>,
    /// Whole pages or records end to end.
    pub(crate) payloads: Vec<Bytes>,
    pub(crate) bytes: usize,
    /// Its shares of the memory for batches, its call's and the server's, given back when it is staged.
    pub(crate) memory: Vec<OwnedSemaphorePermit>,
}

type Outcome = Result<Added, Fault>;

struct Waiting {
    form: Form,
    batch: Batch,
    told: oneshot::Sender<Outcome>,
}

struct Staged {
    added: Added,
    /// How many failures there had been when it was staged.
    failures: u64,
    told: oneshot::Sender<Outcome>,
}

#[derive(Default)]
struct Queues {
    waiting: std::collections::VecDeque<Waiting>,
    staged: Vec<Staged>,
    /// Stagings and commits that failed at the disk, each with everything that was staged then.
    failures: u64,
    /// Threads that are to end when there is nothing left.
    ending: bool,
    /// A batch is being staged.
    staging: bool,
}

#[derive(Default)]
struct Shared {
    queues: Mutex<Queues>,
    to_stage: Condvar,
    to_commit: Condvar,
}

/// The adding threads of one server.
pub(crate) struct Adder {
    shared: Arc<Shared>,
}

impl Adder {
    pub(crate) fn start(pages: Arc<dyn Pages>) -> std::io::Result<Adder> {
        let shared = Arc::new(Shared::default());
        let (for_stage, for_commit, committed) = (shared.clone(), shared.clone(), pages.clone());
        std::thread::Builder::new()
            .name("webbase-stage".into())
            .spawn(move || for_stage.stage_all(&*pages))?;
        std::thread::Builder::new()
            .name("webbase-commit".into())
            .spawn(move || for_commit.commit_all(&*committed))?;
        Ok(Adder { shared })
    }

    /// Hands a batch over; what is received is its fate, once it is durable.
    pub(crate) fn add(&self, form: Form, batch: Batch) -> oneshot::Receiver<Outcome> {
        let (told, outcome) = oneshot::channel();
        self.shared.queues.lock().waiting.push_back(Waiting { form, batch, told });
        self.shared.to_stage.notify_one();
        outcome
    }
}

impl Drop for Adder {
    /// What was handed over is still done.
    fn drop(&mut self) {
        self.shared.queues.lock().ending = true;
        self.shared.to_stage.notify_all();
        self.shared.to_commit.notify_all();
    }
}

impl Shared {
    fn stage_all(&self, pages: &dyn Pages) {
        loop {
            let mut queues = self.queues.lock();
            let next = loop {
                if let Some(next) = queues.waiting.pop_front() {
                    break next;
                }
                if queues.ending {
                    return;
                }
                self.to_stage.wait(&mut queues);
            };
            queues.staging = true;
            let failures = queues.failures;
            drop(queues);
            let staged = catch_unwind(AssertUnwindSafe(|| stage(pages, next.form, next.batch)));
            let mut queues = self.queues.lock();
            queues.staging = false;
            match staged {
                Ok(Ok(added)) => queues.staged.push(Staged { added, failures, told: next.told }),
                Ok(Err(NotAdded::Refused(fault))) => tell(next.told, Err(fault)),
                failed => {
                    queues.failures += 1;
                    let fault = match failed {
                        Ok(Err(NotAdded::Disk(e))) => Fault::from(e),
                        _ => Fault::new(Code::Internal, "the node met a fault of its own in this batch"),
                    };
                    tell(next.told, Err(fault));
                }
            }
            self.to_commit.notify_one();
        }
    }

    fn commit_all(&self, pages: &dyn Pages) {
        loop {
            let mut queues = self.queues.lock();
            while queues.staged.is_empty() {
                if queues.ending && queues.waiting.is_empty() && !queues.staging {
                    return;
                }
                self.to_commit.wait(&mut queues);
            }
            let until = Instant::now() + GROUP_WAIT;
            while queues.staged.len() < GROUP_BATCHES && (queues.staging || !queues.waiting.is_empty()) {
                if self.to_commit.wait_until(&mut queues, until).timed_out() {
                    break;
                }
            }
            let batches = std::mem::take(&mut queues.staged);
            drop(queues);
            let committed = catch_unwind(AssertUnwindSafe(|| pages.commit()));
            let fault = match committed {
                Ok(Ok(())) => None,
                Ok(Err(e)) => Some(Fault::from(e)),
                Err(_) => Some(Fault::new(Code::Internal, "the node met a fault of its own in a commit")),
            };
            let mut queues = self.queues.lock();
            // What was staged meanwhile is dropped with the rest, and the next commit would not know of it.
            queues.failures += u64::from(fault.is_some());
            let failures = queues.failures;
            drop(queues);
            for batch in batches {
                let outcome = match &fault {
                    Some(fault) => Err(fault.clone()),
                    None if batch.failures != failures => {
                        let text =
                            "the disk failed under another batch, and this one may be lost; add it again";
                        Err(Fault::new(Code::Store, text))
                    }
                    None => Ok(batch.added),
                };
                tell(batch.told, outcome);
            }
        }
    }
}

fn tell(told: oneshot::Sender<Outcome>, outcome: Outcome) {
    let _ = told.send(outcome); // a client that went away learns nothing
}

fn stage(pages: &dyn Pages, form: Form, batch: Batch) -> Result<Added, NotAdded> {
    for dictionary in &batch.dictionaries {
        pages.add_dictionary(dictionary)?;
    }
    match form {
        Form::Pages => {
            let mut all: Vec<Page<'_>> = Vec::new();
            for payload in &batch.payloads {
                let mut rest: &[u8] = payload;
                while !rest.is_empty() {
                    let page =
                        take_page(&mut rest).map_err(|e| NotAdded::Refused(Fault::new(Code::BadPage, e)))?;
                    all.push(page);
                }
            }
            pages.add(&all)
        }
        Form::Records => {
            let mut all: Vec<Record> = Vec::new();
            for mut payload in batch.payloads {
                while let Some(record) = take_unverified(&mut payload) {
                    all.push(record.map_err(NotAdded::Refused)?);
                }
            }
            pages.add_records(&all)
        }
    }
}

#[cfg(test)]
mod tests;
