//! Proves that kept generations stay what they are: a script of adds, deletes, visits, keeps, drops, rolls back and
//! compactions runs on a simulated disk. Cut at every change, the store shows the state before or after the operation
//! under way, and every generation kept by then exactly; each disk call of the generation operations fails in turn; each
//! byte of the generations' files is flipped; and what a dropped generation held is taken back.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod common;

use std::sync::Arc;

use common::{
    Check, Generations, Mint, Model, OwnedPage, State, Step, created, ensure, keeps, open_sim, organizations,
    read_state, run_step, say, shows, small_options, snapshot_shows, strong,
};
use webbase_storage::disk::{Crash, SimDisk};
use webbase_storage::{Options, Organization, PageStore, Seen, StorageError};

/// One operation of the script.
#[derive(Clone, Debug)]
enum Op {
    Step(Step),
    Keep(u64),
    Drop(u64),
    RollBack(u64),
}

/// What the store must show.
#[derive(Clone, Default)]
struct World {
    model: Model,
    generations: Generations,
}

impl World {
    fn run(&mut self, store: &dyn PageStore, op: &Op) -> Result<(), StorageError> {
        match op {
            Op::Step(step) => match run_step(store, &mut self.model, step) {
                Ok(()) => {}
                Err(common::Trouble::Failed(e)) => return Err(e),
                Err(common::Trouble::Wrong(what)) => panic!("{op:?}: {what}"),
            },
            Op::Keep(number) => store.keep_generation(*number)?,
            Op::Drop(number) => assert!(store.drop_generation(*number)?),
            Op::RollBack(number) => store.roll_back(*number)?,
        }
        self.expect(op);
        Ok(())
    }

    /// What a generation operation does.
    fn expect(&mut self, op: &Op) {
        match op {
            Op::Step(_) => {}
            Op::Keep(number) => _ = self.generations.insert(*number, self.model.visible.clone()),
            Op::Drop(number) => _ = self.generations.remove(number),
            Op::RollBack(number) => {
                self.model = Model::of(self.generations[number].clone());
                self.generations.retain(|n, _| n <= number);
            }
        }
    }

    fn shown_by(&self, store: &dyn PageStore, found: &State) -> Check {
        self.model.accepts(found)?;
        keeps(store, &self.generations)
    }
}

/// Adds, supersedes, deletes and visits between generations, with compaction, on few pages.
fn script(mint: &Mint) -> Vec<Op> {
    let add = |pages: std::ops::Range<u64>, time: u64| {
        let page = |n: u64| {
            let body = vec![b'a' + (n + time) as u8 % 26; 200 + 40 * n as usize];
            mint.make(OwnedPage { lifetime_s: 10 + n as u32, ..OwnedPage::new(n, time * 1000, body) })
        };
        Op::Step(Step::Add(pages.map(page).collect()))
    };
    let delete = |n: u64| Op::Step(Step::Delete(vec![mint.key(n)]));
    let seen = |n: u64, time: u64| {
        Op::Step(Step::Seen(vec![Seen { key: mint.key(n), at_ms: time * 1000, lifetime_s: 500 }]))
    };
    let (commit, compact) = (Op::Step(Step::Commit), Op::Step(Step::Compact(1 << 30)));
    let some = Op::Step(Step::Compact(2000));
    vec![
        Op::Keep(0),
        add(0..10, 1),
        seen(3, 2),
        commit.clone(),
        Op::Keep(1),
        add(5..12, 3),
        delete(1),
        seen(2, 4),
        commit.clone(),
        Op::Keep(3),
        some.clone(),
        add(0..4, 5),
        delete(11),
        commit.clone(),
        compact.clone(),
        Op::Drop(0),
        Op::Keep(4),
        seen(3, 9),
        delete(7),
        commit.clone(),
        some,
        add(12..14, 6),
        Op::RollBack(3),
        add(8..13, 7),
        commit.clone(),
        Op::Keep(4),
        compact.clone(),
        Op::RollBack(4),
        Op::Drop(3),
        delete(2),
        commit.clone(),
        compact.clone(),
        Op::RollBack(1),
        compact.clone(),
        add(1..3, 8),
        commit,
        Op::Keep(9),
        Op::Drop(1),
        compact,
    ]
}

fn settings() -> Vec<(Organization, Options)> {
    let large = Options { segment_bytes: 1 << 20, buffer_bytes: 64 << 10, ..small_options() };
    let both = |organization| [(organization, large.clone()), (organization, small_options())];
    organizations().into_iter().flat_map(both).collect()
}

#[test]
fn a_crash_at_any_change_leaves_the_state_before_or_after() {
    for (organization, options) in settings() {
        let mint = Mint::new(strong(), &options);
        let extra = mint.make(OwnedPage::new(3, 1 << 40, "after the crash"));
        let disk = created(organization, strong(), &options);
        let store = open_sim(&disk, &options).unwrap();
        let mut world = World::default();
        let mut spans = Vec::new();
        for op in script(&mint) {
            let (from, before) = (disk.changes(), world.clone());
            world.run(&*store, &op).unwrap_or_else(|e| panic!("{organization}, {op:?}: {e}"));
            world.shown_by(&*store, &read_state(&*store).unwrap()).unwrap_or_else(|e| panic!("{op:?}: {e}"));
            let mut after = world.clone();
            if matches!(op, Op::Step(Step::Add(_) | Step::Delete(_) | Step::Seen(_))) {
                after.model.visible = before.model.visible.clone();
            }
            spans.push((op, from..disk.changes(), before, after));
        }
        drop(store);
        for (op, changes, before, after) in &spans {
            for at in changes.clone() {
                let half = disk.change_bytes(at) / 2;
                for (bytes, crash) in
                    [(half, Crash::InOrder), (0, Crash::Unsynced), (0, Crash::Torn(1)), (0, Crash::Torn(2))]
                {
                    let found = disk.crashed(at, bytes, crash);
                    let result = recovers(&found, &options, before, after)
                        .and_then(|world| goes_on(&found, &options, world, &extra));
                    result.unwrap_or_else(|e| {
                        panic!(
                            "{organization}, segments of {}, {op:?} cut {crash:?} at {at}: {e}",
                            options.segment_bytes
                        )
                    });
                }
            }
        }
    }
}

/// The world found after a crash: the one before or the one after.
fn recovers(disk: &SimDisk, options: &Options, before: &World, after: &World) -> Check<World> {
    let store = open_sim(disk, options).map_err(say("open"))?;
    let verified = store.verify().map_err(say("verify"))?;
    ensure(verified.damage.is_empty(), || format!("verify finds {:?}", verified.damage))?;
    let found = read_state(&*store)?;
    let is_before = before.shown_by(&*store, &found);
    let is_after = after.shown_by(&*store, &found);
    let generations = match (&is_before, &is_after) {
        (_, Ok(())) => after.generations.clone(),
        (Ok(()), _) => before.generations.clone(),
        (Err(b), Err(a)) => return Err(format!("not as before: {b}; not as after: {a}")),
    };
    Ok(World { model: Model::of(found), generations })
}

/// The store takes another page and keeps another generation; the old ones can be rolled back to.
fn goes_on(disk: &SimDisk, options: &Options, mut world: World, extra: &common::Made) -> Check {
    let store = open_sim(disk, options).map_err(say("open again"))?;
    let last = world.generations.keys().next_back().copied();
    let mut ops = vec![
        Op::Step(Step::Add(vec![extra.clone()])),
        Op::Step(Step::Commit),
        Op::Keep(99),
        Op::Step(Step::Compact(1 << 30)),
    ];
    ops.extend(last.map(Op::RollBack));
    for op in ops {
        world.run(&*store, &op).map_err(|e| format!("going on, {op:?}: {e}"))?;
        shows(&*store, &world.model.visible, &[]).map_err(|e| format!("going on, {op:?}: {e}"))?;
    }
    drop(store);
    let store = open_sim(disk, options).map_err(say("open after going on"))?;
    shows(&*store, &world.model.visible, &[])?;
    keeps(&*store, &world.generations)
}

#[test]
fn each_call_of_a_generation_operation_may_fail() {
    for (organization, options) in settings() {
        let ops = script(&Mint::new(strong(), &options));
        let targets: Vec<usize> = (0..ops.len()).filter(|&i| !matches!(ops[i], Op::Step(_))).collect();
        for target in targets {
            for n in 0.. {
                let disk = created(organization, strong(), &options);
                let store = open_sim(&disk, &options).unwrap();
                let mut world = World::default();
                ops[..target].iter().for_each(|op| world.run(&*store, op).unwrap());
                disk.fail_call(n, false);
                let before = world.clone();
                let calls = disk.calls();
                let failed = world.run(&*store, &ops[target]).is_err();
                let done = disk.calls() - calls <= n;
                disk.heal();
                let result = if failed {
                    after_failure(store, &disk, &options, before, &ops[target])
                } else {
                    world.shown_by(&*store, &read_state(&*store).unwrap())
                };
                result.unwrap_or_else(|e| panic!("{organization}, {:?}, call {n} fails: {e}", ops[target]));
                if done {
                    break;
                }
            }
        }
    }
}

/// The operation that failed left the state before, or after a reopen the state before or after, and works when it is
/// done again.
fn after_failure(
    store: Arc<dyn PageStore>,
    disk: &SimDisk,
    options: &Options,
    before: World,
    op: &Op,
) -> Check {
    let mut after = before.clone();
    after.expect(op);
    let found = read_state(&*store)?;
    let mut world = before.clone();
    let mut store = store;
    if matches!(store.commit(), Err(StorageError::Poisoned { .. })) {
        before.model.accepts(&found)?;
        drop(store);
        world = recovers(disk, options, &before, &after)?;
        store = open_sim(disk, options).map_err(say("reopen"))?;
    } else {
        world.model.observe(read_state(&*store)?)?;
        world.model = Model::of(world.model.visible);
        keeps(&*store, &before.generations)?;
    }
    if world.generations != after.generations || !matches!(op, Op::Drop(_)) {
        world.run(&*store, op).map_err(|e| format!("done again: {e}"))?;
    }
    keeps(&*store, &world.generations)?;
    drop(store);
    let store = open_sim(disk, options).map_err(say("open at last"))?;
    shows(&*store, &world.model.visible, &[])?;
    keeps(&*store, &world.generations)
}

#[test]
fn a_damaged_generation_is_reported_and_costs_nothing_else() {
    for organization in organizations() {
        let options = small_options();
        let disk = created(organization, strong(), &options);
        let store = open_sim(&disk, &options).unwrap();
        let mut world = World::default();
        for op in script(&Mint::new(strong(), &options)).into_iter().take(15) {
            world.run(&*store, &op).unwrap();
        }
        store.close().unwrap();
        drop(store);
        let files: Vec<_> = disk.files();
        let is_generation = |path: &std::path::Path| path.to_string_lossy().contains("/generation-");
        assert!(
            files.iter().filter(|(path, _)| is_generation(path)).count() >= 3,
            "{organization}: {files:?}"
        );
        for (path, len) in files.iter().filter(|(path, _)| is_generation(path)) {
            for offset in (0..*len).step_by(1 + *len as usize / 150) {
                let copy = disk.crashed(usize::MAX, 0, Crash::InOrder);
                copy.flip(path, offset, 4);
                let result = damaged(&copy, &options, &world, path);
                result.unwrap_or_else(|e| panic!("{organization}, {} byte {offset}: {e}", path.display()));
            }
        }
    }
}

#[test]
fn generations_and_what_was_rolled_back_outlive_a_damaged_manifest_or_directory() {
    for organization in organizations() {
        let options = small_options();
        let ops = script(&Mint::new(strong(), &options));
        // Right after each roll back, and at the end.
        let rolled = (0..ops.len()).filter(|&i| matches!(ops[i], Op::RollBack(_))).map(|i| i + 1);
        for length in rolled.chain([ops.len()]) {
            let disk = created(organization, strong(), &options);
            let store = open_sim(&disk, &options).unwrap();
            let mut world = World::default();
            ops[..length].iter().for_each(|op| world.run(&*store, op).unwrap());
            drop(store);
            let files = disk.files();
            let small = |path: &std::path::Path| path.ends_with("MANIFEST") || path.ends_with("directory");
            let (path, len) = files.iter().find(|(path, _)| small(path)).unwrap();
            for offset in (0..*len).step_by(1 + *len as usize / 40) {
                let copy = disk.crashed(usize::MAX, 0, Crash::InOrder);
                copy.flip(path, offset, 4);
                let store = open_sim(&copy, &options).unwrap();
                let result = snapshot_shows(&*store.snapshot(), &world.model.visible)
                    .and_then(|()| keeps(&*store, &world.generations));
                result.unwrap_or_else(|e| {
                    panic!("{organization}, {length} operations, {} byte {offset}: {e}", path.display())
                });
            }
        }
    }
}

fn damaged(disk: &SimDisk, options: &Options, world: &World, path: &std::path::Path) -> Check {
    let store = open_sim(disk, options).map_err(say("open"))?;
    let damage = store.verify().map_err(say("verify"))?.damage;
    ensure(damage.iter().any(|d| d.path == path && !d.what.is_empty()), || {
        format!("not reported: {damage:?}")
    })?;
    shows(&*store, &world.model.visible, &[])?;
    let mut left = world.generations.clone();
    left.retain(|number, _| store.generations().contains(number));
    ensure(left.len() + 1 == world.generations.len(), || format!("left are {:?}", left.keys()))?;
    keeps(&*store, &left)?;
    store.repair().map_err(say("repair"))?;
    store.compact(1 << 30).map_err(say("compact"))?;
    drop(store);
    let store = open_sim(disk, options).map_err(say("open again"))?;
    let damage = store.verify().map_err(say("verify"))?.damage;
    ensure(damage.is_empty(), || format!("after repair: {damage:?}"))?;
    shows(&*store, &world.model.visible, &[])?;
    keeps(&*store, &left)
}

#[test]
fn what_a_generation_holds_is_taken_back_when_it_is_dropped() {
    for organization in organizations() {
        let options = small_options();
        let mint = Mint::new(strong(), &options);
        let disk = created(organization, strong(), &options);
        let store = open_sim(&disk, &options).unwrap();
        let mut world = World::default();
        let add = |time: u64| {
            let page = |n| mint.make(OwnedPage::new(n, time, vec![b'x'; 900]));
            Op::Step(Step::Add((0..60).map(page).collect()))
        };
        let (commit, compact) = (Op::Step(Step::Commit), Op::Step(Step::Compact(1 << 30)));
        for op in [add(1), commit.clone(), compact.clone()] {
            world.run(&*store, &op).unwrap();
        }
        let one = disk.used();
        for op in [Op::Keep(1), add(2), commit, compact.clone()] {
            world.run(&*store, &op).unwrap();
        }
        keeps(&*store, &world.generations).unwrap();
        let held = store.generation(1).unwrap().unwrap();
        let state = world.generations[&1].clone();
        world.run(&*store, &Op::Drop(1)).unwrap();
        world.run(&*store, &compact).unwrap();
        snapshot_shows(&*held, &state).unwrap_or_else(|e| panic!("{organization}, held: {e}"));
        assert!(disk.used() > one * 17 / 10, "{organization}: {} bytes for two states", disk.used());
        drop(held);
        world.run(&*store, &compact).unwrap();
        shows(&*store, &world.model.visible, &[]).unwrap();
        assert!(disk.used() < one * 13 / 10, "{organization}: {} bytes left, {one} before", disk.used());
    }
}

#[test]
fn numbers_that_are_wrong_are_refused_by_name() {
    for organization in organizations() {
        let options = small_options();
        let mint = Mint::new(strong(), &options);
        let disk = created(organization, strong(), &options);
        let store = open_sim(&disk, &options).unwrap();
        assert!(store.generation(7).unwrap().is_none());
        assert!(!store.drop_generation(7).unwrap());
        let e = store.roll_back(7).unwrap_err();
        assert!(e.to_string().contains("generation 7 is not kept"), "{e}");
        store.add(&[mint.make(OwnedPage::new(1, 1, "one")).page.page()]).unwrap();
        let e = store.keep_generation(5).unwrap_err();
        assert!(matches!(e, StorageError::Staged { .. }), "{e}");
        store.commit().unwrap();
        store.keep_generation(5).unwrap();
        store.keep_generation(5).unwrap();
        store.add(&[mint.make(OwnedPage::new(1, 2, "two")).page.page()]).unwrap();
        store.commit().unwrap();
        for number in [5, 4, 0] {
            let e = store.keep_generation(number).unwrap_err();
            assert!(matches!(e, StorageError::GenerationOrder { last: 5, .. }), "{e}");
        }
        store.keep_generation(u64::MAX).unwrap();
        assert_eq!(store.generations(), [5, u64::MAX]);
        let e = store.roll_back(6).unwrap_err();
        assert!(e.to_string().contains("kept are [5, 18446744073709551615]"), "{e}");
        store.close().unwrap();
        assert!(matches!(store.keep_generation(u64::MAX), Err(StorageError::Poisoned { .. })));
        assert!(matches!(store.roll_back(5), Err(StorageError::Poisoned { .. })));
    }
}
