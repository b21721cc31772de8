//! The read side of a node: generations inside one store.
//!
//! ```text
//!   Prepare, CatchUp:  RollBack → List → Reserve → Pull → Keep
//!   Commit:            SwitchTo
//!   Abort:             RollBack
//! ```
//!
//! One such job runs at a time; a job that fails or is no longer wanted ends with a RollBack. A release runs beside it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::message::{
    Failure, Phase, Prepare, Progress, ReadReport, Recipe, Ticket, ToManagement, ToNode, Work,
};
use super::{Done, Intent, Pull, PullMode, RangeSet};

/// A generation that waits for its commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// The try it was made in.
    pub ticket: Ticket,
    /// Its number.
    pub generation: u64,
    /// What the node has of it.
    pub ranges: RangeSet,
}

/// What a read node's file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadDurable {
    /// The generation the node stands at. 0 is empty.
    pub current: u64,
    /// What can be served.
    pub kept: BTreeMap<u64, RangeSet>,
    /// What waits for its commit: never served.
    pub prepared: Option<Prepared>,
}

impl ReadDurable {
    /// Whether a request for these ranges of this generation may be answered.
    pub fn serves(&self, generation: u64, ranges: &RangeSet) -> bool {
        generation <= self.current
            && (generation == 0 || self.kept.get(&generation).is_some_and(|kept| ranges.is_subset(kept)))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Goal {
    Prepare(Ticket),
    CatchUp(u64),
    Switch,
    RollBack,
}

#[derive(Clone, Debug)]
struct Job {
    goal: Goal,
    pull: Option<Pull>,
    ranges: RangeSet,
    kept: Vec<u64>,
    /// The intent it waits for.
    intent: Intent,
    /// Set when the job is over and only rolls back.
    ending: bool,
    /// What it needs, and what of it is here: pages and bytes.
    pages: u64,
    bytes: u64,
    fetched: (u64, u64),
}

impl Job {
    /// Pages and bytes that are here already.
    fn done(&self) -> (u64, u64) {
        match self.intent {
            Intent::Pull(_) => self.fetched,
            Intent::Keep { .. } | Intent::SwitchTo { .. } => (self.pages, self.bytes),
            _ => (0, 0),
        }
    }
}

/// What the read side wants done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Carry this out as the job's intent.
    Do(Intent),
    /// Carry this out beside the job.
    Beside(Intent),
    /// End the job's intent early.
    Cancel,
    /// Tell.
    Send(ToManagement),
}

/// The read side of the machine.
#[derive(Clone, Debug)]
pub struct ReadNode {
    durable: ReadDurable,
    job: Option<Job>,
    releasing: Option<Vec<u64>>,
    /// The newest try heard of since the start.
    newest: Option<Ticket>,
    /// The ranges whose live pages it may serve, as far as it has heard since the start.
    live: RangeSet,
}

impl ReadNode {
    /// Starts with what is on disk.
    pub fn new(durable: ReadDurable) -> Self {
        let newest = durable.prepared.as_ref().map(|p| p.ticket);
        ReadNode { durable, job: None, releasing: None, newest, live: RangeSet::new() }
    }

    /// What is on disk, as far as completed intents tell.
    pub fn durable(&self) -> &ReadDurable {
        &self.durable
    }

    /// The ranges whose live pages, epochs over the newest generation, it may serve.
    pub fn live(&self) -> &RangeSet {
        &self.live
    }

    /// Whether a request for the live pages of this range may be answered.
    pub fn serves_live(&self, range: u32) -> bool {
        self.live.contains(range) && self.durable.serves(self.durable.current, &[range].into_iter().collect())
    }

    pub(super) fn on_message(&mut self, message: ToNode) -> Vec<Step> {
        match message {
            ToNode::Live { ranges } => {
                self.live = ranges;
                Vec::new()
            }
            ToNode::Prepare(prepare) => self.prepare(prepare),
            ToNode::Abort { ticket } => self.abort(ticket),
            ToNode::Commit { ticket, generation, kept } => self.commit(ticket, generation, kept),
            ToNode::CatchUp { generation, ticket, ranges, kept, recipe } => {
                self.catch_up(generation, ticket, ranges, kept, recipe)
            }
            ToNode::Release { generations } => self.release(generations),
            _ => Vec::new(),
        }
    }

    fn prepared_ticket(&self) -> Option<Ticket> {
        self.durable.prepared.as_ref().map(|p| p.ticket)
    }

    fn prepare(&mut self, prepare: Prepare) -> Vec<Step> {
        let Prepare { ticket, base, target, ranges, sources, changes } = prepare;
        if self.newest.is_some_and(|newest| ticket < newest) || base != self.durable.current || target <= base
        {
            return Vec::new();
        }
        if self.prepared_ticket() == Some(ticket) || !self.has(base, &ranges) {
            return Vec::new();
        }
        self.newest = Some(ticket);
        if let Some(job) = &self.job {
            return if job.goal == Goal::Prepare(ticket) { Vec::new() } else { self.end_job() };
        }
        let pull = Pull {
            mode: PullMode::Delta { sources, changes },
            base,
            target,
            ranges: ranges.clone(),
            fetch: RangeSet::new(),
        };
        self.begin(Goal::Prepare(ticket), Some(pull), ranges)
    }

    fn catch_up(
        &mut self,
        generation: u64,
        ticket: Ticket,
        ranges: RangeSet,
        kept: Vec<u64>,
        recipe: Recipe,
    ) -> Vec<Step> {
        let current = self.durable.current;
        if generation < current || (generation == current && self.has(generation, &ranges)) {
            return Vec::new();
        }
        if self.prepared_ticket() == Some(ticket) {
            return self.commit(ticket, generation, kept);
        }
        // What is prepared may be needed; only a later commit says that it is not.
        if self.durable.prepared.as_ref().is_some_and(|p| generation < p.generation) {
            return Vec::new();
        }
        match &self.job {
            Some(job) if job.goal == Goal::CatchUp(generation) && ranges.is_subset(&job.ranges) => {
                return Vec::new();
            }
            // Preparing goes before a move.
            Some(Job { goal: Goal::Prepare(_), .. }) if generation == current => return Vec::new(),
            Some(_) => return self.end_job(),
            None => {}
        }
        let pull = match recipe {
            Recipe::Exact(sources) => {
                let have = match generation == current {
                    true => self.durable.kept.get(&current).cloned().unwrap_or_default(),
                    false => RangeSet::new(),
                };
                let (fetch, ranges) = (ranges.minus(&have), ranges.union(&have));
                Pull { mode: PullMode::Exact { sources }, base: current, target: generation, ranges, fetch }
            }
            Recipe::Delta { base, sources, changes } => {
                if base != current || !self.has(base, &ranges) {
                    return Vec::new();
                }
                let mode = PullMode::Delta { sources, changes };
                Pull { mode, base, target: generation, ranges: ranges.clone(), fetch: RangeSet::new() }
            }
        };
        let ranges = pull.ranges.clone();
        let steps = self.begin(Goal::CatchUp(generation), Some(pull), ranges);
        if let Some(job) = &mut self.job {
            job.kept = kept;
        }
        steps
    }

    fn commit(&mut self, ticket: Ticket, generation: u64, kept: Vec<u64>) -> Vec<Step> {
        let ours =
            self.durable.prepared.as_ref().is_some_and(|p| p.ticket == ticket && p.generation == generation);
        if !ours || self.job.is_some() {
            return Vec::new();
        }
        let intent = Intent::SwitchTo { generation, kept };
        self.start(Goal::Switch, None, RangeSet::new(), intent)
    }

    fn abort(&mut self, ticket: Ticket) -> Vec<Step> {
        self.newest = self.newest.max(Some(ticket));
        match &self.job {
            Some(job) if job.goal == Goal::Prepare(ticket) => self.end_job(),
            Some(_) => Vec::new(),
            None if self.prepared_ticket() == Some(ticket) => {
                self.begin(Goal::RollBack, None, RangeSet::new())
            }
            None => Vec::new(),
        }
    }

    fn release(&mut self, generations: Vec<u64>) -> Vec<Step> {
        let old: Vec<u64> = generations
            .into_iter()
            .filter(|g| *g < self.durable.current && self.durable.kept.contains_key(g))
            .collect();
        if old.is_empty() || self.releasing.is_some() {
            return Vec::new();
        }
        self.releasing = Some(old.clone());
        vec![Step::Beside(Intent::Release { generations: old })]
    }

    fn has(&self, generation: u64, ranges: &RangeSet) -> bool {
        self.durable.serves(generation, ranges)
    }

    fn begin(&mut self, goal: Goal, pull: Option<Pull>, ranges: RangeSet) -> Vec<Step> {
        let intent = Intent::RollBack { to: self.durable.current };
        self.start(goal, pull, ranges, intent)
    }

    fn start(&mut self, goal: Goal, pull: Option<Pull>, ranges: RangeSet, intent: Intent) -> Vec<Step> {
        let ending = goal == Goal::RollBack;
        self.job = Some(Job {
            goal,
            pull,
            ranges,
            kept: Vec::new(),
            intent: intent.clone(),
            ending,
            pages: 0,
            bytes: 0,
            fetched: (0, 0),
        });
        vec![Step::Do(intent)]
    }

    /// The job is no longer wanted: its intent is ended early, then it rolls back.
    fn end_job(&mut self) -> Vec<Step> {
        match &mut self.job {
            // What is being written to the node's file is left to finish.
            Some(job) if matches!(job.intent, Intent::SwitchTo { .. } | Intent::Keep { .. }) => Vec::new(),
            Some(job) if !job.ending => {
                job.ending = true;
                vec![Step::Cancel]
            }
            _ => Vec::new(),
        }
    }

    /// Takes the end of a release.
    pub(super) fn on_released(&mut self, done: &Done) {
        if let (Some(generations), Done::Ok) = (self.releasing.take(), done) {
            self.durable.kept.retain(|g, _| !generations.contains(g));
        }
    }

    /// Takes the end of the job's intent.
    pub(super) fn on_done(&mut self, done: Done) -> Vec<Step> {
        let Some(mut job) = self.job.take() else { return Vec::new() };
        if done == Done::Ok {
            self.applied(&job);
        }
        let rolled_back = matches!(job.intent, Intent::RollBack { .. });
        if job.ending && rolled_back && done == Done::Ok {
            return Vec::new();
        }
        let next = match (&job.intent, &done) {
            _ if job.ending => None,
            (Intent::RollBack { .. }, Done::Ok) => job.pull.clone().map(|p| Intent::List(Box::new(p))),
            (Intent::List(_), &Done::Listed { pages, bytes }) => {
                (job.pages, job.bytes) = (pages, bytes);
                Some(Intent::Reserve { bytes })
            }
            (Intent::Reserve { .. }, Done::Ok) => job.pull.clone().map(|p| Intent::Pull(Box::new(p))),
            (Intent::Pull(pull), Done::Ok) => {
                let ticket = match job.goal {
                    Goal::Prepare(ticket) => Some(ticket),
                    _ => None,
                };
                let kept = job.kept.clone();
                Some(Intent::Keep { generation: pull.target, ranges: pull.ranges.clone(), ticket, kept })
            }
            (Intent::Keep { .. } | Intent::SwitchTo { .. }, Done::Ok) => return Vec::new(),
            _ => None,
        };
        if let Some(intent) = next {
            job.intent = intent.clone();
            self.job = Some(job);
            return vec![Step::Do(intent)];
        }
        let mut steps: Vec<Step> = self.failure(&job, done).map(Step::Send).into_iter().collect();
        if rolled_back {
            // The disk failed even at this; whatever comes next begins with another try.
            return steps;
        }
        job.ending = true;
        job.intent = Intent::RollBack { to: self.durable.current };
        steps.push(Step::Do(job.intent.clone()));
        self.job = Some(job);
        steps
    }

    /// So much of a pull is done.
    pub(super) fn on_progress(&mut self, pages: u64, bytes: u64) {
        if let Some(job) = self.job.as_mut() {
            job.fetched = (pages.min(job.pages), bytes.min(job.bytes));
        }
    }

    /// The durable effect of an intent.
    fn applied(&mut self, job: &Job) {
        let durable = &mut self.durable;
        match &job.intent {
            Intent::RollBack { .. } => durable.prepared = None,
            Intent::Keep { generation, ranges, ticket: Some(ticket), .. } => {
                durable.prepared =
                    Some(Prepared { ticket: *ticket, generation: *generation, ranges: ranges.clone() });
            }
            Intent::Keep { generation, ranges, ticket: None, kept } => {
                durable.kept.retain(|g, _| kept.contains(g));
                durable.kept.insert(*generation, ranges.clone());
                durable.current = *generation;
                durable.prepared = None;
            }
            Intent::SwitchTo { generation, kept } => {
                if let Some(prepared) = durable.prepared.take() {
                    durable.kept.retain(|g, _| kept.contains(g));
                    durable.kept.insert(prepared.generation, prepared.ranges);
                    durable.current = *generation;
                }
            }
            _ => {}
        }
    }

    fn failure(&self, job: &Job, done: Done) -> Option<ToManagement> {
        let why = match done {
            Done::NoSpace => Failure::NoSpace { needed_bytes: job.bytes },
            Done::SourceFailed(node) => Failure::SourceFailed(node),
            Done::Disk(what) => Failure::Disk(what),
            _ => return None,
        };
        match job.goal {
            _ if job.ending => None,
            Goal::Prepare(ticket) => Some(ToManagement::PrepareFailed { ticket, why }),
            Goal::CatchUp(generation) => Some(ToManagement::CatchUpFailed { generation, why }),
            Goal::Switch | Goal::RollBack => None,
        }
    }

    pub(super) fn report(&self) -> ReadReport {
        let progress = self.job.as_ref().map(|job| Progress {
            work: match job.goal {
                _ if job.ending => Work::Tidying,
                Goal::Prepare(ticket) => Work::Preparing(ticket),
                Goal::CatchUp(generation) => Work::CatchingUp { generation },
                Goal::Switch | Goal::RollBack => Work::Tidying,
            },
            phase: match job.intent {
                Intent::List(_) => Phase::Listing,
                Intent::Reserve { .. } => Phase::Reserving,
                Intent::Pull(_) => Phase::Pulling,
                Intent::Keep { .. } => Phase::Keeping,
                Intent::SwitchTo { .. } => Phase::Switching,
                _ => Phase::RollingBack,
            },
            pages: job.done().0,
            bytes: job.done().1,
        });
        ReadReport {
            current: self.durable.current,
            kept: self.durable.kept.iter().map(|(g, r)| (*g, r.clone())).collect(),
            prepared: self.prepared_ticket(),
            progress,
            live: self.live.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cycle::message::{Changes, Prepare};

    #[test]
    fn progress_is_what_is_done_not_what_there_is_to_do() {
        let mut node = ReadNode::new(ReadDurable::default());
        let ticket = Ticket { cycle: 1, attempt: 1 };
        let (sources, changes) = (Vec::new(), Changes::default());
        let ranges: RangeSet = [0].into_iter().collect();
        node.on_message(ToNode::Prepare(Prepare { ticket, base: 0, target: 1, ranges, sources, changes }));
        let told = |node: &ReadNode| node.report().progress.map(|p| (p.phase, p.pages, p.bytes));
        node.on_progress(9, 90); // of the pull before
        assert_eq!(told(&node), Some((Phase::RollingBack, 0, 0)));
        node.on_done(Done::Ok);
        node.on_done(Done::Listed { pages: 100, bytes: 5000 });
        assert_eq!(told(&node), Some((Phase::Reserving, 0, 0)));
        node.on_done(Done::Ok);
        assert_eq!(told(&node), Some((Phase::Pulling, 0, 0)));
        node.on_progress(40, 2000);
        assert_eq!(told(&node), Some((Phase::Pulling, 40, 2000)));
        node.on_done(Done::Ok);
        assert_eq!(told(&node), Some((Phase::Keeping, 100, 5000)));
    }
}
