//! Work that nobody waits for: bringing a store to its next state, lists, verifications. Its threads have a lower priority
//! than those that answer readers, so that on a busy machine an update takes longer and a lookup does not.

use std::io;

use tokio::runtime::{Builder, Runtime};

/// The priority: about a ninth of the time of a reader's thread where both want it all, everything where nobody else does.
const NICER: i32 = 10;

/// Lowers the priority of the calling thread (of the thread alone, on Linux).
pub(crate) fn lower_priority() {
    // Not being allowed to costs readers time, never pages. A thread begins with the priority of the one that started it.
    if rustix::process::getpriority_process(None).is_ok_and(|now| now < NICER) {
        let _ = rustix::process::setpriority_process(None, NICER);
    }
}

/// Threads of lower priority for tasks and for what blocks.
pub(crate) struct Background(Option<Runtime>);

impl Background {
    pub(crate) fn start() -> io::Result<Background> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("webbase-later")
            .on_thread_start(lower_priority)
            .enable_all()
            .build()?;
        Ok(Background(Some(runtime)))
    }

    /// Starts a task. Its own tasks and what it has blocking threads do are of lower priority, too.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.0 {
            runtime.spawn(task);
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // A runtime that is dropped waits for what blocks, which a task must not.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_threads_give_way() {
        let priority = || rustix::process::getpriority_process(None).unwrap();
        let (background, before) = (Background::start().unwrap(), priority());
        let (sender, receiver) = std::sync::mpsc::channel();
        background.spawn(async move {
            sender.send(priority()).unwrap();
            let blocking = tokio::task::spawn_blocking(priority).await.unwrap();
            sender.send(blocking).unwrap();
        });
        assert_eq!(receiver.iter().collect::<Vec<_>>(), [NICER.max(before); 2]);
        assert_eq!(priority(), before, "only its own");
    }
}
