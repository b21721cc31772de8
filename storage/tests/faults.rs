//! Proves that a failing, full or lying disk costs nothing that was acknowledged.
//!
//! The same workload as in `crash.rs` runs while each disk call fails in turn, once or from then on; on disks of every
//! size it outgrows; and with reads that return less than asked. Errors must be errors, never panics, and what was
//! acknowledged must be there afterwards. What damaged bytes cost is in `damage.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod common;

use common::{
    Check, Made, Mint, Model, OwnedPage, Random, Step, Trouble, copy, created, ensure, open_sim,
    organizations, read_state, run_step, say, shows, small_options, strong, workload,
};
use webbase_storage::disk::SimDisk;
use webbase_storage::{Options, Organization, PageKey, PageStore, StorageError};

/// Every organization, with one segment and with many.
fn settings() -> Vec<(Organization, Options)> {
    let large = Options { segment_bytes: 1 << 20, buffer_bytes: 64 << 10, ..small_options() };
    let both = |organization| [(organization, large.clone()), (organization, small_options())];
    organizations().into_iter().flat_map(both).collect()
}

/// Runs steps on a store of which one disk call fails. A failed step is followed by a commit, which says whether more
/// was dropped than that step; a failed commit drops everything.
fn run_through(store: &dyn PageStore, model: &mut Model, steps: &[Step]) -> Check {
    for (i, step) in steps.iter().enumerate() {
        let at = |e: String| format!("step {i}, {step:?}: {e}");
        match run_step(store, model, step) {
            Ok(()) => continue,
            Err(Trouble::Wrong(what)) => return Err(at(what)),
            Err(Trouble::Failed(_)) if matches!(step, Step::Commit) => {}
            Err(Trouble::Failed(_)) => {
                let staged = model.staged.clone();
                note_half_done(model, step);
                if store.commit().is_ok() {
                    model.visible = staged; // all but the failed step, of which there may be some
                }
            }
        }
        read_state(store).and_then(|found| model.fail_commit(found)).map_err(at)?;
    }
    Ok(())
}

/// Runs steps on a store whose disk fails for good at some point. From then on any answer is right but for a commit
/// that says it stored something.
fn run_into_the_end(store: &dyn PageStore, model: &mut Model, steps: &[Step]) -> Check {
    let mut failed = false;
    for step in steps {
        match run_step(store, model, step) {
            Ok(()) => {}
            Err(Trouble::Wrong(what)) if !failed => return Err(what),
            Err(Trouble::Wrong(_)) => {}
            Err(Trouble::Failed(_)) => {
                failed = true;
                note_half_done(model, step);
            }
        }
        if failed {
            model.staged = model.visible.clone();
        }
    }
    Ok(())
}

/// What a step that failed may have left on the disk, to be found when the store is opened again.
fn note_half_done(model: &mut Model, step: &Step) {
    let mut half = model.clone();
    match step {
        Step::Add(pages) => pages.iter().for_each(|made| half.add(&made.record, &mut Default::default())),
        Step::Merge(records) => records.iter().for_each(|record| half.add(record, &mut Default::default())),
        Step::Delete(keys) => {
            keys.iter().for_each(|&key| _ = half.delete(key));
        }
        Step::Seen(list) => {
            list.iter().for_each(|seen| _ = half.seen(seen));
        }
        Step::Commit | Step::Compact(_) => {}
    }
    model.history = half.history;
}

fn reopened_keeps(disk: &SimDisk, options: &Options, model: &Model) -> Check {
    let store = open_sim(disk, options).map_err(say("reopen"))?;
    model.accepts(&read_state(&*store)?)?;
    let verified = store.verify().map_err(say("verify"))?;
    ensure(verified.damage.is_empty(), || format!("verify finds {:?}", verified.damage))
}

#[test]
fn each_call_may_fail_once_or_for_good() {
    for (organization, options) in settings() {
        let steps = workload(&Mint::new(strong(), &options), 6, 300);
        let empty = created(organization, strong(), &options);
        let calls = {
            let disk = copy(&empty);
            let store = open_sim(&disk, &options).unwrap();
            let before = disk.calls();
            run_through(&*store, &mut Model::default(), &steps).unwrap();
            store.close().unwrap();
            disk.calls() - before
        };
        for n in 0..calls {
            for for_good in [false, true] {
                let disk = copy(&empty);
                let store = open_sim(&disk, &options).unwrap();
                let mut model = Model::default();
                disk.fail_call(n, for_good);
                let run = if for_good { run_into_the_end } else { run_through };
                let ran = run(&*store, &mut model, &steps).and_then(|()| {
                    if store.close().is_ok() {
                        model.history.clear();
                    }
                    drop(store);
                    disk.heal();
                    reopened_keeps(&disk, &options, &model)
                });
                ran.unwrap_or_else(|e| {
                    panic!(
                        "{organization}, segments of {}, call {n} fails (for good: {for_good}): {e}",
                        options.segment_bytes
                    )
                });
            }
        }
    }
}

#[test]
fn opening_may_fail_at_each_call_and_works_when_the_disk_does() {
    for (organization, options) in settings() {
        let (disk, model) = filled(organization, &options, 8, false);
        let calls = {
            let disk = copy(&disk);
            drop(open_sim(&disk, &options).unwrap());
            disk.calls()
        };
        for n in 0..calls {
            for for_good in [false, true] {
                let disk = copy(&disk);
                disk.fail_call(n, for_good);
                drop(open_sim(&disk, &options)); // an error, or nothing that mattered
                disk.heal();
                let result = reopened_keeps(&disk, &options, &model);
                result.unwrap_or_else(|e| {
                    panic!(
                        "{organization}, segments of {}, call {n} of open (for good: {for_good}): {e}",
                        options.segment_bytes
                    )
                });
            }
        }
    }
}

/// A store after the workload, closed or just dropped, and what it shows.
fn filled(organization: Organization, options: &Options, rounds: u64, closed: bool) -> (SimDisk, Model) {
    let disk = created(organization, strong(), options);
    let store = open_sim(&disk, options).unwrap();
    let mut model = Model::default();
    for step in workload(&Mint::new(strong(), options), rounds, 300) {
        run_step(&*store, &mut model, &step).unwrap_or_else(|e| panic!("{organization}: {e}"));
    }
    if closed {
        store.close().unwrap();
    }
    drop(store);
    (disk.settled(), model)
}

#[test]
fn a_full_disk_loses_nothing_and_the_store_goes_on_when_there_is_room() {
    for (organization, options) in settings() {
        let steps = workload(&Mint::new(strong(), &options), 8, 300);
        let empty = created(organization, strong(), &options);
        let largest = filled(organization, &options, 8, false).0.used() + 4096;
        for capacity in (empty.used()..largest).step_by(211) {
            let disk = copy(&empty);
            let store = open_sim(&disk, &options).unwrap();
            let mut model = Model::default();
            disk.set_capacity(capacity);
            let result = full_then_room(&disk, &*store, &mut model, &steps).and_then(|()| {
                drop(store);
                let store = open_sim(&disk, &options).map_err(say("reopen"))?;
                shows(&*store, &model.visible, &[]).map_err(|e| format!("reopened: {e}"))
            });
            result.unwrap_or_else(|e| {
                panic!("{organization}, segments of {}, capacity {capacity}: {e}", options.segment_bytes)
            });
        }
    }
}

/// Runs steps until the disk is full, makes room, and runs the rest, in which nothing may fail.
fn full_then_room(disk: &SimDisk, store: &dyn PageStore, model: &mut Model, steps: &[Step]) -> Check {
    for (i, step) in steps.iter().enumerate() {
        let e = match run_step(store, model, step) {
            Ok(()) => continue,
            Err(Trouble::Failed(e @ StorageError::NoSpace { .. })) => e,
            Err(e) => return Err(format!("step {i} {step:?}: {e}")),
        };
        ensure(e.to_string().contains("no space left for /store"), || e.to_string())?;
        disk.heal();
        let staged = model.staged.clone();
        note_half_done(model, step);
        match store.commit() {
            Ok(()) if matches!(step, Step::Commit) => {}
            Ok(()) => model.visible = staged, // all but the failed step
            Err(StorageError::Dropped { .. }) if staged != model.visible && !matches!(step, Step::Commit) => {
            }
            Err(e) => return Err(format!("the commit after step {i} {step:?} says {e}")),
        }
        let found = read_state(store)?;
        model.fail_commit(found).map_err(|what| format!("full at step {i}, {step:?}: {what}"))?;
        model.history.clear();
        for step in &steps[i..] {
            run_step(store, model, step).map_err(|e| format!("with room again, {step:?}: {e}"))?;
            read_state(store)
                .and_then(|found| model.observe(found))
                .map_err(|e| format!("then, {step:?}: {e}"))?;
        }
        return Ok(());
    }
    Ok(())
}

#[test]
fn what_a_full_disk_made_a_store_drop_stays_dropped() {
    // All records are of one size, so that a later batch ends where a record of the dropped batch begins.
    for organization in organizations() {
        let options = Options { segment_bytes: 1 << 20, ..small_options() };
        let mint = Mint::new(strong(), &options);
        let page = |n: u64, time: u64| mint.make(OwnedPage::new(n, time, vec![b'x'; 100]));
        let empty = created(organization, strong(), &options);
        for room in (0..1200).step_by(50) {
            let disk = copy(&empty);
            let store = open_sim(&disk, &options).unwrap();
            let mut model = Model::default();
            let first = [Step::Add((0..3).map(|n| page(n, 1)).collect()), Step::Commit];
            first.iter().for_each(|step| run_step(&*store, &mut model, step).unwrap());
            disk.set_capacity(disk.used() + room);
            let list: Vec<Made> = (3..8).map(|n| page(n, 2)).collect();
            let full = run_step(&*store, &mut model, &Step::Add(list))
                .and_then(|()| run_step(&*store, &mut model, &Step::Delete(vec![mint.key(0)])))
                .and_then(|()| run_step(&*store, &mut model, &Step::Commit));
            disk.heal();
            if full.is_err() {
                model = Model::of(model.visible);
                let _ = store.commit(); // says what was dropped, if that was not said yet
            }
            for step in [Step::Add(vec![page(9, 3)]), Step::Commit] {
                run_step(&*store, &mut model, &step)
                    .unwrap_or_else(|e| panic!("{organization}, room {room}: {e}"));
            }
            drop(store);
            let store = open_sim(&disk, &options).unwrap();
            let result = shows(&*store, &model.visible, &[]);
            result.unwrap_or_else(|e| panic!("{organization}, {room} bytes of room: {e}"));
        }
    }
}

#[test]
fn a_commit_tells_when_a_later_add_made_the_store_drop_what_was_staged() {
    for organization in organizations() {
        let options = Options { segment_bytes: 6 << 10, ..small_options() };
        let disk = created(organization, strong(), &options);
        let store = open_sim(&disk, &options).unwrap();
        let (small, large) = (OwnedPage::new(1, 1, "small"), OwnedPage::new(2, 1, vec![b'x'; 3000]));
        store.add(&[small.page()]).unwrap();
        disk.fail_call(0, true);
        let failed = store.add(&[large.page()]); // does not fit the segment: what is staged is written
        disk.heal();
        let committed = store.commit();
        let there = store.lookup_url(&small.url).unwrap().is_some();
        assert_eq!(there, committed.is_ok(), "{organization}: add says {failed:?}, commit {committed:?}");
    }
}

#[test]
fn a_store_keeps_to_its_capacity() {
    for organization in organizations() {
        let options = Options { capacity_bytes: Some(120 << 10), ..small_options() };
        let mint = Mint::new(strong(), &options);
        let disk = created(organization, strong(), &options);
        let store = open_sim(&disk, &options).unwrap();
        let (mut model, mut random, mut full) = (Model::default(), Random(1), 0);
        for n in 0..200 {
            let made = mint.make(OwnedPage::new(n, 1, random.body(1500, false)));
            let added = run_step(&*store, &mut model, &Step::Add(vec![made]));
            match added.and_then(|()| run_step(&*store, &mut model, &Step::Commit)) {
                Ok(()) => {} // also now and then when it is full: a leaf may have room where others have none
                Err(Trouble::Failed(StorageError::NoSpace { .. })) => {
                    full += 1;
                    model = Model::of(model.visible); // nothing of it is staged any more
                }
                Err(e) => panic!("{organization}: {e}"),
            }
            let stats = store.stats();
            assert_eq!(stats.capacity_bytes, 120 << 10);
            assert!(stats.used_bytes <= 120 << 10, "{organization} uses {} bytes", stats.used_bytes);
        }
        assert!(full > 100 && model.visible.len() > 30, "{organization}: {full} refused");
        shows(&*store, &model.visible, &[]).unwrap();
        let most: Vec<PageKey> = model.visible.keys().copied().skip(5).collect();
        for step in [Step::Delete(most), Step::Commit, Step::Compact(1 << 30)] {
            run_step(&*store, &mut model, &step).unwrap_or_else(|e| panic!("{organization}: {e}"));
        }
        let made = mint.make(OwnedPage::new(900, 1, random.body(1500, false)));
        for step in [Step::Add(vec![made]), Step::Commit] {
            run_step(&*store, &mut model, &step)
                .unwrap_or_else(|e| panic!("{organization}, room again: {e}"));
        }
        shows(&*store, &model.visible, &[]).unwrap();
    }
}

#[test]
fn reads_may_be_short() {
    for organization in organizations() {
        for closed in [false, true] {
            let (disk, model) = filled(organization, &small_options(), 12, closed);
            disk.set_short_reads(true);
            let store = open_sim(&disk, &small_options()).unwrap();
            shows(&*store, &model.visible, &[]).unwrap();
            while !store.compact(1 << 30).unwrap().done {}
            assert_eq!(store.verify().unwrap().damage, []);
            shows(&*store, &model.visible, &[]).unwrap();
        }
    }
}
