//! Running a cycle and waiting for its end.

use std::time::Duration;

use tokio::time::Instant;

use super::Cluster;
use crate::error::{NodeError, Result, Retry};
use crate::plan::Status;

/// Between two looks at a running cycle.
const LOOK: Duration = Duration::from_millis(100);

impl Cluster {
    /// Begins a cycle, waits for its end, and says which generation it made. `progress` is called with every look at it.
    ///
    /// A management server that restarts meanwhile goes on with the cycle, and so does this.
    ///
    /// # Errors
    /// When it is refused or aborted, or the management server does not answer for long.
    pub async fn cycle(&self, mut progress: impl FnMut(&Status) + Send) -> Result<u64> {
        let before = self.patiently(None).await?;
        let cycle = match self.inner.management.start_cycle().await {
            Ok(cycle) => cycle,
            Err(e) if matches!(e.retry(), Retry::Safe | Retry::Repeats) => self.begun(&before, e).await?,
            Err(e) => return Err(e),
        };
        let mut ended_at = None;
        loop {
            let now = self.patiently(None).await?;
            progress(&now);
            let running = now.cycle.as_ref().is_some_and(|(number, _)| *number == cycle);
            if !running && now.last_cycle >= cycle {
                let waited = ended_at.get_or_insert_with(Instant::now).elapsed();
                let refuse = |why| {
                    let peer = self.inner.management.address().to_string();
                    Err(NodeError::Denied { peer, what: "bring the cycle to its end", why })
                };
                if now.committed <= before.committed {
                    let outcome = now.outcome.filter(|outcome| outcome.cycle == cycle);
                    let what =
                        outcome.map_or_else(|| format!("cycle {cycle} was aborted"), |o| o.to_string());
                    return refuse(format!("{what}; its pages stay for the next one"));
                }
                if now.serving >= now.committed {
                    // Whoever waited for it reads it from now on.
                    if self.inner.plans.newer_than(Instant::now()).await.is_err() {
                        self.inner.plans.forget();
                    }
                    return Ok(now.committed);
                }
                if waited >= self.inner.settings.add_limit {
                    return refuse(format!(
                        "generation {} is committed, but some ranges have no node that serves it yet",
                        now.committed
                    ));
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The connection broke before the answer: the cycle may have begun.
    async fn begun(&self, before: &Status, failed: NodeError) -> Result<u64> {
        let now = self.patiently(Some(failed.clone())).await?;
        match now.cycle {
            _ if now.last_cycle > before.last_cycle => Ok(now.last_cycle),
            Some((running, _)) => Ok(running),
            None => self.inner.management.start_cycle().await,
        }
    }

    /// How things stand, also when the management server is away for a while.
    async fn patiently(&self, mut failed: Option<NodeError>) -> Result<Status> {
        let until = Instant::now() + self.inner.settings.add_limit;
        loop {
            match self.status().await {
                Ok(status) => return Ok(status),
                Err(e) if e.retry() == Retry::Useless || Instant::now() >= until => {
                    return Err(failed.unwrap_or(e));
                }
                Err(e) => _ = failed.get_or_insert(e),
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}
