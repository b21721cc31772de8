//! The update side of a node: one store per epoch.
//!
//! ```text
//!   epoch-4/  epoch-5/  |  epoch-6/
//!   sealed: never change   open: takes adds
//! ```
//!
//! An add carries the *stamp* of its plan, the newest cycle when the plan was made; it also stands as `epoch` in the page's
//! version, so that the page is the same on all replicas, whatever their own epochs are numbered. An update node refuses
//! stamps more than one cycle behind its own, which bounds how long an old version can be on its way: that is what lets
//! tombstones be forgotten. With incremental update it refuses all stamps behind its own: `CYCLE.md` says why.

use serde::{Deserialize, Serialize};

use super::message::{ToNode, UpdateReport};
use super::{Done, Intent};
use crate::plan::Update;

/// What an update node has on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateDurable {
    /// The oldest epoch.
    pub first_epoch: u64,
    /// The one that takes adds.
    pub open_epoch: u64,
    /// The last cycle it sealed for.
    pub sealed_cycle: u64,
    /// It takes no more adds.
    pub closed: bool,
}

impl Default for UpdateDurable {
    fn default() -> Self {
        UpdateDurable { first_epoch: 1, open_epoch: 1, sealed_cycle: 0, closed: false }
    }
}

/// Why an add is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddRefusal {
    /// The node has not heard from the management server since its start.
    NotWelcomed,
    /// The node is being removed.
    Closed,
    /// The plan is too old: get a new one.
    OldPlan {
        /// The lowest stamp taken.
        lowest: u64,
    },
}

/// The lowest stamp that an update node takes, whose newest cycle is this.
pub fn lowest_stamp(newest: u64, mode: Update) -> u64 {
    match mode {
        Update::Batch => newest.saturating_sub(1),
        Update::Incremental => newest,
    }
}

/// The update side of the machine.
#[derive(Clone, Debug)]
pub struct UpdateNode {
    mode: Update,
    durable: UpdateDurable,
    /// The newest cycle heard of since the start.
    floor: Option<u64>,
    running: Option<Intent>,
}

impl UpdateNode {
    /// Starts with what is on disk.
    pub fn new(durable: UpdateDurable, mode: Update) -> Self {
        UpdateNode { mode, durable, floor: None, running: None }
    }

    /// What is on disk, as far as completed intents tell.
    pub fn durable(&self) -> &UpdateDurable {
        &self.durable
    }

    /// Whether an add made with this stamp is taken now, and into which epoch.
    ///
    /// # Errors
    /// The reason why not; the client then asks for a new plan.
    pub fn admit(&self, stamp: u64) -> Result<u64, AddRefusal> {
        if self.durable.closed || matches!(self.running, Some(Intent::Close)) {
            return Err(AddRefusal::Closed);
        }
        let newest = self.floor.ok_or(AddRefusal::NotWelcomed)?.max(self.durable.sealed_cycle);
        match lowest_stamp(newest, self.mode) {
            lowest if stamp < lowest => Err(AddRefusal::OldPlan { lowest }),
            _ => Ok(self.durable.open_epoch),
        }
    }

    /// Takes a message; gives what to do.
    pub(super) fn on_message(&mut self, message: &ToNode) -> Option<Intent> {
        let intent = match *message {
            ToNode::Welcome { cycle } => {
                self.floor = Some(self.floor.unwrap_or(0).max(cycle));
                None
            }
            ToNode::Seal { cycle } => (cycle > self.durable.sealed_cycle).then_some(Intent::Seal { cycle }),
            ToNode::DropEpochs { through } => {
                // Only sealed ones, whatever is asked.
                let through = through.min(self.durable.open_epoch.saturating_sub(1));
                (through >= self.durable.first_epoch).then_some(Intent::DropEpochs { through })
            }
            ToNode::Close => (!self.durable.closed).then_some(Intent::Close),
            _ => None,
        };
        // One at a time; what is turned away is asked again.
        if self.running.is_some() {
            return None;
        }
        self.running.clone_from(&intent);
        intent
    }

    /// Takes the end of the running intent.
    pub(super) fn on_done(&mut self, done: &Done) {
        let Some(intent) = self.running.take() else { return };
        if *done != Done::Ok {
            return;
        }
        match intent {
            Intent::Seal { cycle } => {
                // A closed node has nothing to seal: its last epoch stays the last, so that it can be emptied.
                self.durable.open_epoch += u64::from(!self.durable.closed);
                self.durable.sealed_cycle = cycle;
            }
            Intent::DropEpochs { through } => self.durable.first_epoch = through + 1,
            Intent::Close => {
                self.durable.open_epoch += 1;
                self.durable.closed = true;
            }
            _ => {}
        }
    }

    pub(super) fn welcomed(&self) -> bool {
        self.floor.is_some()
    }

    pub(super) fn report(&self) -> UpdateReport {
        let UpdateDurable { first_epoch, open_epoch, sealed_cycle, closed } = self.durable;
        UpdateReport { first_epoch, open_epoch, sealed_cycle, closed }
    }
}
