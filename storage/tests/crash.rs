//! Proves that a store loses nothing it acknowledged, wherever the power goes.
//!
//! A fixed workload runs on a simulated disk that remembers every change. For each point of that history, for some bytes
//! within each write and for every byte of the last ones, the disk is made as a machine would find it (everything in order up to a byte; nothing that
//! was not synced; sectors torn at random) and the store is opened on it. It must show what the last acknowledged commit
//! showed, extended at most by whole operations of the batch under way; `verify` must find no damage; and the store
//! must go on. Recovery itself, compaction, closing and creating are cut in the same way.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};

use common::{
    Check, History, Made, Mint, Model, OwnedPage, State, Step, accepts, created, dir, ensure, open_sim,
    organizations, read_state, run_step, say, shared, shows, small_options, strong, workload,
};
use webbase_storage::disk::{Crash, SimDisk};
use webbase_storage::{Options, Organization, StorageError, create_on};

/// What must be there after a crash, once so many changes were done.
struct Point {
    changes: usize,
    committed: State,
    /// The batch after it.
    later: History,
}

/// A workload that was run, with what it promised at each point.
struct Run {
    disk: SimDisk,
    options: Options,
    points: Vec<Point>,
    extra: Made,
}

impl Run {
    fn new(organization: Organization, options: Options, rounds: u64, body_bytes: usize) -> Run {
        let mint = Mint::new(strong(), &options);
        let disk = created(organization, strong(), &options);
        let extra = mint.make(OwnedPage::new(3, 1 << 40, "after the crash"));
        let mut run = Run { disk, options, points: Vec::new(), extra };
        let mut model = Model::default();
        run.point(&model);
        let steps = workload(&mint, rounds, body_bytes);
        // Closed and opened again in the middle: a catalog is written, and cut off again.
        for half in steps.chunks(steps.len().div_ceil(2)) {
            let store = open_sim(&run.disk, &run.options).unwrap();
            for step in half {
                if matches!(step, Step::Commit) {
                    run.points.last_mut().unwrap().later = model.history.clone();
                }
                run_step(&*store, &mut model, step).unwrap_or_else(|e| panic!("{organization}: {e}"));
                if matches!(step, Step::Commit) {
                    run.point(&model);
                }
            }
            run.points.last_mut().unwrap().later = model.history.clone();
            store.close().unwrap();
            model.commit();
            run.point(&model);
        }
        run
    }

    fn point(&mut self, model: &Model) {
        let (changes, committed) = (self.disk.changes(), model.visible.clone());
        self.points.push(Point { changes, committed, later: History::new() });
    }

    fn promised(&self, at: usize) -> &Point {
        let after = self.points.partition_point(|p| p.changes <= at);
        &self.points[after - 1]
    }

    /// Opens the store on a disk found after a crash at `at` and checks what it shows.
    fn recovers(&self, disk: &SimDisk, at: usize) -> Check<State> {
        let store = open_sim(disk, &self.options).map_err(say("open"))?;
        let found = read_state(&*store)?;
        let point = self.promised(at);
        accepts(&point.committed, &point.later, &found)?;
        let verified = store.verify().map_err(say("verify"))?;
        ensure(verified.damage.is_empty(), || format!("verify finds damage: {:?}", verified.damage))?;
        Ok(found)
    }

    /// As `recovers`, and the store takes another page, which is there when it is opened once more.
    fn goes_on(&self, disk: &SimDisk, at: usize) -> Check {
        let mut model = Model::of(self.recovers(disk, at)?);
        let store = open_sim(disk, &self.options).map_err(say("open again"))?;
        for step in [Step::Add(vec![self.extra.clone()]), Step::Commit] {
            run_step(&*store, &mut model, &step).map_err(|e| format!("going on: {e}"))?;
        }
        drop(store);
        let store = open_sim(disk, &self.options).map_err(say("open after going on"))?;
        shows(&*store, &model.visible, &[])
    }

    fn check(&self, at: usize, bytes: usize, crash: Crash) {
        let result = self.goes_on(&self.disk.crashed(at, bytes, crash), at);
        result.unwrap_or_else(|e| panic!("crash {crash:?} after {at} changes and {bytes} bytes: {e}"));
    }
}

/// A few byte counts of a write: around sectors, around the ends, in the middle.
fn spread(len: usize) -> Vec<usize> {
    let mut at = vec![0, 1, 79, 80, 81, len / 3, len / 2, len.saturating_sub(9), len.saturating_sub(1)];
    at.retain(|&n| n < len.max(1));
    at.sort_unstable();
    at.dedup();
    at
}

/// Does `each` of many cases, as many at once as there are cores.
fn on_all_cores<T: Sync>(cases: &[T], each: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            each(case);
        }
    };
    std::thread::scope(|scope| {
        (0..std::thread::available_parallelism().unwrap().get()).for_each(|_| drop(scope.spawn(work)));
    });
}

fn buffered() -> Options {
    Options { buffer_bytes: 64 << 10, ..small_options() }
}

#[test]
fn whatever_was_written_in_order_up_to_any_write_is_recovered() {
    for organization in organizations() {
        let run = Run::new(organization, small_options(), 16, 300);
        for at in 0..=run.disk.changes() {
            for bytes in spread(run.disk.change_bytes(at)) {
                run.check(at, bytes, Crash::InOrder);
            }
        }
    }
}

#[test]
fn every_byte_of_the_last_writes_is_a_place_to_crash() {
    for organization in organizations() {
        for rounds in [1, 2] {
            let run = Run::new(organization, buffered(), rounds, 60);
            let writes = (0..run.disk.changes()).rev().filter(|&at| run.disk.change_bytes(at) > 0);
            let cuts: Vec<(usize, usize)> =
                writes.take(14).flat_map(|at| (0..run.disk.change_bytes(at)).map(move |n| (at, n))).collect();
            assert!(cuts.len() > 4000, "{organization}: {} cuts", cuts.len());
            on_all_cores(&cuts, |(at, bytes)| run.check(*at, *bytes, Crash::InOrder));
        }
    }
}

#[test]
fn unsynced_writes_may_be_lost_or_torn() {
    for organization in organizations() {
        for options in [small_options(), buffered()] {
            let run = Run::new(organization, options, 12, 300);
            for at in 0..=run.disk.changes() {
                run.check(at, 0, Crash::Unsynced);
                for seed in 0..4 {
                    run.check(at, 0, Crash::Torn(seed));
                }
            }
        }
    }
}

#[test]
fn recovery_can_crash_too() {
    for organization in organizations() {
        let run = Run::new(organization, buffered(), 8, 300);
        for at in 0..=run.disk.changes() {
            for crash in [Crash::InOrder, Crash::Unsynced, Crash::Torn(at as u64)] {
                let first = run.disk.crashed(at, run.disk.change_bytes(at) / 2, crash);
                drop(open_sim(&first, &run.options).unwrap());
                for again in 0..=first.changes() {
                    let bytes = first.change_bytes(again) / 2;
                    for second in [Crash::InOrder, Crash::Unsynced, Crash::Torn(again as u64)] {
                        let result = run.recovers(&first.crashed(again, bytes, second), at);
                        result.unwrap_or_else(|e| {
                            panic!(
                                "{crash:?} after {at} changes, then {second:?} after {again} of recovery: {e}"
                            )
                        });
                    }
                }
            }
        }
    }
}

#[test]
fn a_creation_cut_off_leaves_no_store_or_an_empty_one() {
    for organization in organizations() {
        let options = small_options();
        let disk = SimDisk::new();
        create_on(&shared(&disk), dir(), organization, strong(), &options).unwrap();
        for at in 0..=disk.changes() {
            for crash in [Crash::InOrder, Crash::Unsynced, Crash::Torn(1), Crash::Torn(2), Crash::Torn(3)] {
                let found = disk.crashed(at, disk.change_bytes(at) / 2, crash);
                match open_sim(&found, &options) {
                    Ok(_) => {}
                    Err(StorageError::NotAStore { .. }) => {
                        let again = create_on(&shared(&found), dir(), organization, strong(), &options);
                        again.unwrap_or_else(|e| panic!("creating again after {crash:?} at {at}: {e}"));
                    }
                    Err(e) => panic!("{crash:?} at {at}: {e}"),
                }
                let store = open_sim(&found, &options).unwrap();
                shows(&*store, &State::new(), &[]).unwrap();
            }
        }
        let complete = disk.crashed(disk.changes(), 0, Crash::Unsynced);
        open_sim(&complete, &options).expect("a created store is durable");
    }
}
