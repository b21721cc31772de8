//! Threads for what blocks. Short work (a cold lookup, a chunk of a stream), long work (a verification, a list of all
//! keys) and what other nodes pull have threads of their own, so that no lookup waits behind a verification, nor a pull
//! behind one. Those of the last two give way to readers' threads.
//!
//! A call has at most one piece of work under way, so the queues are bounded by the calls that connections may open.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::background::lower_priority;
use crate::wire::message::{Code, Fault};

/// Threads for what other nodes pull: each reads many pages at once.
const PULL_THREADS: usize = 2;

type Work = Box<dyn FnOnce() + Send>;

/// Whose threads do it.
#[derive(Clone, Copy)]
pub(crate) enum Lane {
    Short,
    Long,
    Pull,
}

#[derive(Default)]
struct Queue {
    work: Mutex<(VecDeque<Work>, bool)>,
    more: Condvar,
}

impl Queue {
    fn serve(&self) {
        loop {
            let mut guard = self.work.lock();
            let work = loop {
                if let Some(work) = guard.0.pop_front() {
                    break work;
                }
                if guard.1 {
                    return;
                }
                self.more.wait(&mut guard);
            };
            drop(guard);
            // Whoever waits for the result learns from its absence; the thread goes on.
            let _ = catch_unwind(AssertUnwindSafe(work));
        }
    }
}

/// The threads of one server.
pub(crate) struct Workers {
    short: Arc<Queue>,
    long: Arc<Queue>,
    pull: Arc<Queue>,
}

impl Workers {
    pub(crate) fn start(short: usize, long: usize) -> std::io::Result<Workers> {
        let workers = Workers { short: Arc::default(), long: Arc::default(), pull: Arc::default() };
        for (queue, count, name, gives_way) in [
            (&workers.short, short, "webbase-short", false),
            (&workers.long, long, "webbase-long", true),
            (&workers.pull, PULL_THREADS, "webbase-pull", true),
        ] {
            for _ in 0..count.max(1) {
                let queue = queue.clone();
                let serve = move || {
                    if gives_way {
                        lower_priority();
                    }
                    queue.serve();
                };
                std::thread::Builder::new().name(name.into()).spawn(serve)?;
            }
        }
        Ok(workers)
    }

    /// Starts work now; the future is its result.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        lane: Lane,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Doing<T> {
        let (done, result) = oneshot::channel();
        let queue = match lane {
            Lane::Short => &self.short,
            Lane::Long => &self.long,
            Lane::Pull => &self.pull,
        };
        let work = Box::new(move || {
            let _ = done.send(work()); // nobody waits for a cancelled call
        });
        queue.work.lock().0.push_back(work);
        queue.more.notify_one();
        Doing(result)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for queue in [&self.short, &self.long, &self.pull] {
            queue.work.lock().1 = true;
            queue.more.notify_all();
        }
    }
}

/// Work under way.
pub(crate) struct Doing<T>(oneshot::Receiver<T>);

impl<T> Doing<T> {
    pub(crate) async fn done(self) -> Result<T, Fault> {
        self.0
            .await
            .map_err(|_| Fault::new(Code::Internal, "the node met a fault of its own in this request"))
    }
}
