//! Threads that each serve connections of their own.
//!
//! A runtime whose threads take tasks from each other wakes one thread for what another could do next: with many connections
//! that each have one small request under way, that costs more than the requests. Here a connection is read, answered and
//! written by one thread, and nobody else is woken. What takes long belongs on other threads, wherever the connection is served.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;

/// Threads that serve connections. Dropping it ends what they do.
#[derive(Debug)]
pub struct ConnectionThreads {
    threads: Vec<Handle>,
    next: AtomicUsize,
    /// The threads end with it.
    _stop: watch::Sender<()>,
}

impl ConnectionThreads {
    /// How many a server that is alone on its machine does best with: half the cores. The others are the disk's, the packers' and
    /// the system's, and the clients' where these are on the same machine; serving threads that have to share a core with whoever
    /// asks sleep and are woken for each request, which costs more than the request.
    pub fn advised() -> usize {
        std::thread::available_parallelism().map_or(1, |cores| usize::from(cores).div_ceil(2))
    }

    /// So many threads; with none of them connections are served by whoever accepts them.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(count: usize) -> io::Result<ConnectionThreads> {
        let (stop, stopped) = watch::channel(());
        let mut threads = Vec::with_capacity(count);
        for _ in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            threads.push(runtime.handle().clone());
            let mut stopped = stopped.clone();
            let serve = move || {
                // Nothing is ever sent: it ends when the sender is gone.
                let _gone = runtime.block_on(stopped.changed());
                // A runtime that is dropped would wait for what its tasks have blocking threads do.
                runtime.shutdown_background();
            };
            std::thread::Builder::new().name("webbase-serve".into()).spawn(serve)?;
        }
        Ok(ConnectionThreads { threads, next: AtomicUsize::new(0), _stop: stop })
    }

    /// The runtime of the next connection: a thread's, in turn, or without threads the caller's. A socket that is to be served
    /// there has to be made a standard one here, and one of the runtime's there.
    pub fn next(&self) -> Handle {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let thread = turn.checked_rem(self.threads.len()).and_then(|thread| self.threads.get(thread));
        thread.cloned().unwrap_or_else(Handle::current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of the threads that four tasks ran on, in the order they were begun.
    async fn served(threads: &ConnectionThreads) -> Vec<Option<String>> {
        let mut names = Vec::new();
        for _ in 0..4 {
            let name = || async { std::thread::current().name().map(str::to_owned) };
            names.push(threads.next().spawn(name()).await.unwrap());
        }
        names
    }

    #[tokio::test]
    async fn connections_go_to_the_threads_in_turn() {
        let threads = ConnectionThreads::start(2).unwrap();
        let mut ids = Vec::new();
        for _ in 0..4 {
            ids.push(threads.next().spawn(async { std::thread::current().id() }).await.unwrap());
        }
        assert!(ids[0] == ids[2] && ids[1] == ids[3] && ids[0] != ids[1]);
        assert_eq!(served(&threads).await, vec![Some("webbase-serve".to_owned()); 4]);
    }

    #[tokio::test]
    async fn without_threads_the_caller_serves() {
        let here = std::thread::current().name().map(str::to_owned);
        assert_eq!(served(&ConnectionThreads::start(0).unwrap()).await, vec![here; 4]);
    }

    #[tokio::test]
    async fn what_they_serve_ends_with_them() {
        let threads = ConnectionThreads::start(1).unwrap();
        let serving = threads.next().spawn(std::future::pending::<()>());
        drop(threads);
        assert!(serving.await.unwrap_err().is_cancelled());
    }
}
