//! The read plan in use: fetched again all the time in the background, and at once when a node says that it does not hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::connections::Connections;
use crate::error::Result;
use crate::management::Management;
use crate::plan::ReadPlan;

pub(super) struct Plans {
    management: Management,
    connections: Arc<Connections>,
    /// The newest plan and when it was asked for.
    current: RwLock<Option<(Instant, Arc<ReadPlan>)>>,
    /// Older plans than of this version do not count.
    lowest: AtomicU64,
    /// The newest generation that somebody was shown: plans of older ones do not count.
    shown: AtomicU64,
    /// Held by whoever fetches.
    fetching: Mutex<()>,
    refresher: RwLock<Option<AbortHandle>>,
}

impl Plans {
    pub(super) fn start(
        management: Management,
        connections: Arc<Connections>,
        every: Duration,
    ) -> Arc<Plans> {
        let (current, fetching) = (RwLock::default(), Mutex::default());
        let (lowest, shown, refresher) = (AtomicU64::new(0), AtomicU64::new(0), RwLock::default());
        let plans = Plans { management, connections, current, lowest, shown, fetching, refresher };
        let plans = Arc::new(plans);
        let weak = Arc::downgrade(&plans);
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                let Some(plans) = weak.upgrade() else { return };
                // Nobody has read yet: there is no plan to keep fresh. One that cannot be fetched now is fetched later;
                // until then the old one is as good as the nodes say.
                if plans.current.read().is_some() {
                    let _old_one_stays = plans.newer_than(Instant::now()).await;
                }
            }
        });
        *plans.refresher.write() = Some(task.abort_handle());
        plans
    }

    /// The plan in use.
    pub(super) async fn read(&self) -> Result<Arc<ReadPlan>> {
        let current = self.current.read().clone();
        let (lowest, shown) = (self.lowest.load(Ordering::Relaxed), self.shown.load(Ordering::Relaxed));
        match current.filter(|(_, plan)| plan.version >= lowest && plan.generation >= shown) {
            Some((_, plan)) => Ok(plan),
            None => self.newer_than(Instant::now()).await,
        }
    }

    /// The plan is known to be old: the next one who reads waits for a new one.
    pub(super) fn forget(&self) {
        *self.current.write() = None;
    }

    /// Something was done under a plan of this version: who reads from now on does it under one that is not older.
    pub(super) fn not_older_than(&self, version: u64) {
        self.lowest.fetch_max(version, Ordering::Relaxed);
    }

    /// Somebody was shown this generation: who reads from now on is shown none that is older.
    pub(super) fn not_before(&self, generation: u64) {
        self.shown.fetch_max(generation, Ordering::Relaxed);
    }

    /// A plan asked for after this moment. Many who want one share the answer.
    pub(super) async fn newer_than(&self, moment: Instant) -> Result<Arc<ReadPlan>> {
        let _fetching = self.fetching.lock().await;
        if let Some((at, plan)) = &*self.current.read()
            && *at > moment
        {
            return Ok(plan.clone());
        }
        let asked_at = Instant::now();
        let (plan, addresses) = self.management.read_plan().await?;
        self.connections.learn(&addresses);
        self.connections.set_busy(&plan.busy);
        let plan = Arc::new(plan);
        *self.current.write() = Some((asked_at, plan.clone()));
        Ok(plan)
    }
}

impl Drop for Plans {
    fn drop(&mut self) {
        if let Some(task) = &*self.refresher.read() {
            task.abort();
        }
    }
}
