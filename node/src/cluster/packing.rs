//! The dictionary that a client packs with.
//!
//! ```text
//!   first add ──▶ does an update node of the plan have one? ──yes──▶ that one
//!                   │ no
//!                   ▼
//!   pages are noted until there are enough ──▶ asked once more ──▶ trained here, and handed over with the first records
//! ```
//!
//! 1. Of several the one with the highest digest, as in a store: clients that start later agree on it by themselves.
//! 2. A node gets it before the first record that needs it (client/add.rs), and each epoch gets those of the one before.
//! 3. Nobody waits for it but the add that had the last pages it took: until there is one, pages are packed without.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;
use webbase_storage::{Compression, Dictionary, Page, Samples};

use super::Cluster;
use crate::cycle::message::NodeId;
use crate::plan::AddPlan;

/// Update nodes that are asked; in a large repository all know the same few dictionaries.
const ASKED_MAX: usize = 16;

/// How far a client has come.
#[derive(Default)]
pub(super) struct Packing {
    state: Mutex<State>,
}

#[derive(Default)]
enum State {
    /// Nobody was asked yet.
    #[default]
    Unasked,
    /// Update nodes have none: pages to learn from.
    Sampling(Samples),
    /// One is being made of them.
    Training,
    /// There is one; or these pages teach nothing.
    Settled(Option<Arc<Dictionary>>),
}

impl Cluster {
    /// The dictionary to pack these pages with, if there is one.
    pub(super) async fn dictionary(&self, plan: &AddPlan, pages: &[Page<'_>]) -> Option<Arc<Dictionary>> {
        let Compression::Zstd(level) = self.inner.settings.compression else { return None };
        let mut state = self.inner.packing.state.lock().await;
        if let State::Unasked = *state {
            *state = match self.ask_for_dictionary(plan, level).await {
                Some(found) => State::Settled(Some(found)),
                None => State::Sampling(Samples::default()),
            };
        }
        if let State::Sampling(samples) = &mut *state {
            samples.take(pages);
            if !samples.are_enough() {
                return None;
            }
            let samples = std::mem::take(samples);
            *state = State::Training;
            drop(state);
            // On its own: whoever gives up waiting for the add must not take the samples along.
            let (cluster, plan) = (self.clone(), plan.clone());
            return tokio::spawn(async move { cluster.learn(samples, &plan, level).await }).await.ok()?;
        }
        match &*state {
            State::Settled(settled) => settled.clone(),
            _ => None,
        }
    }

    /// Makes a dictionary of samples, if there is none by now, and has it used from here on.
    async fn learn(&self, samples: Samples, plan: &AddPlan, level: i32) -> Option<Arc<Dictionary>> {
        let settled = match self.ask_for_dictionary(plan, level).await {
            // Another client was faster.
            Some(found) => Some(found),
            None => {
                let train = move || samples.train(level).map(Arc::new);
                tokio::task::spawn_blocking(train).await.ok().flatten()
            }
        };
        if let Some(trained) = &settled {
            self.dictionaries().insert(trained.clone());
        }
        *self.inner.packing.state.lock().await = State::Settled(settled.clone());
        settled
    }

    /// The dictionary that update nodes have, made for packing at `level`. Who does not answer has none.
    async fn ask_for_dictionary(&self, plan: &AddPlan, level: i32) -> Option<Arc<Dictionary>> {
        let nodes: BTreeSet<NodeId> = plan.ranges.iter().flatten().copied().collect();
        let mut asking = JoinSet::new();
        for node in nodes.into_iter().take(ASKED_MAX) {
            let (connections, limit) = (self.inner.connections.clone(), self.inner.settings.attempt);
            asking.spawn(timeout(limit, async move {
                connections.to(node).await.ok()?.fetch_dictionaries().await.ok()
            }));
        }
        let mut best: Option<Arc<Dictionary>> = None;
        while let Some(answer) = asking.join_next().await {
            let Ok(Ok(Some(theirs))) = answer else { continue };
            best = theirs.into_iter().chain(best).max_by_key(|dictionary| dictionary.digest());
        }
        let best = best?;
        let ours = Arc::new(Dictionary::new(best.content().to_vec(), level));
        self.dictionaries().insert(ours.clone());
        Some(ours)
    }
}
