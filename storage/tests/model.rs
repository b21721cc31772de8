//! Proves the contract at the head of `store.rs` for every organization: lists of operations made by proptest run on a
//! store on a simulated disk and on a plain map, and after each operation everything the store shows, through every
//! door, must be what the map shows. With strong page ids and with ids of 4 bits, where every page shares its id.
//!
//! A run is deterministic; a failing list is shrunk and printed. `PROPTEST_CASES` makes more of them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod common;

use std::sync::Arc;

use common::{
    Check, Entry, Generations, Mint, Model, OwnedPage, Random, State, Step, created, drain, ensure, keeps,
    open_sim, organizations, read_state, run_step, say, shows, small_options, snapshot_shows, strong, url,
    weak,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use webbase_storage::disk::SimDisk;
use webbase_storage::{
    Access, Compression, Cursor, Options, Order, Organization, PageKey, PageStore, PageStream, Record,
    RepositoryKey, Seen, Snapshot, StorageError, StreamSpec, Trust,
};

/// Pages the operations are about.
const PAGES: u64 = 24;

/// A segment or buffer that nothing here fills.
const LARGE: u64 = 1 << 30;

/// A page to be added: which, when, and what is in it.
#[derive(Clone, Debug)]
struct Spec {
    page: u64,
    time: u64,
    epoch: u32,
    lifetime_s: u32,
    bytes: usize,
    content: u64,
}

impl Spec {
    fn page(&self) -> OwnedPage {
        OwnedPage {
            url: url(self.page),
            fetched_at_ms: self.time * 1000,
            lifetime_s: self.lifetime_s,
            epoch: self.epoch,
            body: Random(self.content).body(self.bytes, self.content.is_multiple_of(2)),
        }
    }
}

/// One operation.
#[derive(Clone, Debug)]
enum Op {
    Add(Vec<Spec>),
    Merge(Vec<Spec>),
    Delete(Vec<u64>),
    Seen(Vec<(u64, u64, u32)>),
    Commit,
    Compact(u64),
    Reopen {
        clean: bool,
    },
    KeepStream {
        by_id: bool,
        direct: bool,
        read: usize,
    },
    DrainStreams,
    ResumeStream {
        by_id: bool,
        read: usize,
        compact: u64,
        reopen: Option<bool>,
    },
    Due {
        now: u64,
        limit: usize,
    },
    /// Keeps the next generation, so many numbers on.
    KeepGeneration {
        step: u64,
    },
    /// These choose one of those kept.
    DropGeneration {
        which: usize,
    },
    RollBack {
        which: usize,
    },
    HoldSnapshot {
        which: Option<usize>,
    },
}

/// Generations kept at most.
const KEPT_MAX: usize = 3;

fn specs() -> impl Strategy<Value = Vec<Spec>> {
    let bytes = prop_oneof![
        4 => 0_usize..100,
        8 => 0_usize..2000,
        2 => 0_usize..20_000,
        1 => 0_usize..200_000,
    ];
    let spec = (0..PAGES, 1_u64..8, 0_u32..2, prop_oneof![Just(0_u32), 1_u32..5], bytes, 0_u64..6);
    let spec = spec.prop_map(|(page, time, epoch, lifetime_s, bytes, content)| Spec {
        page,
        time,
        epoch,
        lifetime_s,
        bytes,
        content,
    });
    vec(spec, 1..8)
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let budget = prop_oneof![Just(1_u64), 1000_u64..30_000, Just(1_u64 << 30)];
    let op = prop_oneof![
        8 => specs().prop_map(Op::Add),
        2 => specs().prop_map(Op::Merge),
        3 => vec(0..PAGES, 1..6).prop_map(Op::Delete),
        2 => vec((0..PAGES, 1_u64..12, 0_u32..5), 1..4).prop_map(Op::Seen),
        6 => Just(Op::Commit),
        3 => budget.clone().prop_map(Op::Compact),
        2 => any::<bool>().prop_map(|clean| Op::Reopen { clean }),
        2 => (any::<bool>(), any::<bool>(), 0_usize..10)
            .prop_map(|(by_id, direct, read)| Op::KeepStream { by_id, direct, read }),
        1 => Just(Op::DrainStreams),
        2 => (any::<bool>(), 0_usize..12, budget, any::<Option<bool>>())
            .prop_map(|(by_id, read, compact, reopen)| Op::ResumeStream { by_id, read, compact, reopen }),
        2 => (0_u64..20, 0_usize..8).prop_map(|(now, limit)| Op::Due { now, limit }),
        3 => (1_u64..3).prop_map(|step| Op::KeepGeneration { step }),
        2 => (0_usize..8).prop_map(|which| Op::DropGeneration { which }),
        2 => (0_usize..8).prop_map(|which| Op::RollBack { which }),
        1 => any::<Option<usize>>().prop_map(|which| Op::HoldSnapshot { which }),
    ];
    vec(op, 1..40)
}

fn options() -> impl Strategy<Value = Options> {
    let compression =
        prop_oneof![Just(Compression::None), Just(Compression::Lz4), Just(Compression::Zstd(1))];
    // Bytes of a segment and of the buffer.
    let sizes = prop_oneof![
        Just((9_u64 << 10, 0)),
        (20_u64 << 10..100 << 10, prop_oneof![Just(0), Just(64_u64 << 10)]),
        Just((LARGE, LARGE)),
    ];
    // No cache, one in which records push each other out, one that holds all.
    let cache_bytes = prop_oneof![Just(0_u64), 2000_u64..20_000, Just(64_u64 << 20)];
    (compression, sizes, cache_bytes).prop_map(|(compression, (segment_bytes, buffer_bytes), cache_bytes)| {
        Options { compression, segment_bytes, buffer_bytes, cache_bytes, ..small_options() }
    })
}

/// A stream kept open, and what it still has to deliver.
struct Kept {
    stream: Box<dyn PageStream>,
    rest: State,
    by_id: bool,
}

struct Test {
    organization: Organization,
    options: Options,
    disk: SimDisk,
    mint: Mint,
    store: Option<Arc<dyn PageStore>>,
    model: Model,
    kept: Vec<Kept>,
    keys: Vec<PageKey>,
    generations: Generations,
    held: Vec<(Arc<dyn Snapshot>, State)>,
}

impl Test {
    fn new(organization: Organization, key: RepositoryKey, options: Options) -> Test {
        let disk = created(organization, key, &options);
        let mint = Mint::new(key, &options);
        let store = Some(open_sim(&disk, &options).unwrap());
        let keys = (0..PAGES).map(|n| mint.key(n)).collect();
        Test {
            organization,
            options,
            disk,
            mint,
            store,
            model: Model::default(),
            kept: Vec::new(),
            keys,
            generations: Generations::new(),
            held: Vec::new(),
        }
    }

    fn store(&self) -> &dyn PageStore {
        self.store.as_deref().expect("the store is open between operations")
    }

    fn step(&mut self, step: &Step) -> Check {
        let store = self.store.clone().expect("the store is open between operations");
        run_step(&*store, &mut self.model, step).map_err(|e| e.to_string())
    }

    fn run(&mut self, op: &Op) -> Check {
        match op {
            Op::Add(specs) => {
                let made = specs.iter().map(|spec| self.mint.make(spec.page())).collect();
                self.step(&Step::Add(made))
            }
            Op::Merge(specs) => self.step(&Step::Merge(self.records_of_another_store(specs))),
            Op::Delete(pages) => self.step(&Step::Delete(pages.iter().map(|&n| self.mint.key(n)).collect())),
            Op::Seen(list) => {
                let seen = |&(n, time, lifetime_s): &(u64, u64, u32)| Seen {
                    key: self.mint.key(n),
                    at_ms: time * 1000,
                    lifetime_s,
                };
                self.step(&Step::Seen(list.iter().map(seen).collect()))
            }
            Op::Commit => self.step(&Step::Commit),
            Op::Compact(budget) => self.step(&Step::Compact(*budget)),
            Op::Reopen { clean } => self.reopen(*clean),
            Op::KeepStream { by_id, direct, read } => self.keep_stream(*by_id, *direct, *read),
            Op::DrainStreams => self.drain_streams(),
            Op::ResumeStream { by_id, read, compact, reopen } => {
                self.resume(*by_id, *read, *compact, *reopen)
            }
            Op::Due { now, limit } => {
                let found = self.store().due(now * 1000, *limit).map_err(say("due"))?;
                let expected = self.model.due(now * 1000, *limit);
                ensure(found == expected, || format!("due are {found:?}, expected {expected:?}"))
            }
            Op::KeepGeneration { step } => self.keep_generation(*step),
            Op::DropGeneration { which } => {
                let Some(number) = self.choose(*which) else { return Ok(()) };
                self.generations.remove(&number);
                let there = self.store().drop_generation(number).map_err(say("drop"))?;
                let again = self.store().drop_generation(number).map_err(say("drop"))?;
                ensure(there && !again, || format!("dropping {number} says {there}, then {again}"))
            }
            Op::RollBack { which } => {
                let Some(number) = self.choose(*which) else { return Ok(()) };
                self.store().roll_back(number).map_err(say("roll back"))?;
                self.model = Model::of(self.generations[&number].clone());
                self.generations.retain(|&n, _| n <= number);
                self.store().keep_generation(number).map_err(say("keep what was rolled back to"))
            }
            Op::HoldSnapshot { which } => {
                let held = match which.and_then(|which| self.choose(which)) {
                    Some(number) => {
                        let found = self.store().generation(number).map_err(say("generation"))?;
                        (found.ok_or("the generation is gone")?, self.generations[&number].clone())
                    }
                    None => (self.store().snapshot(), self.model.visible.clone()),
                };
                self.held.push(held);
                Ok(())
            }
        }
    }

    fn choose(&self, which: usize) -> Option<u64> {
        self.generations.keys().nth(which % self.generations.len().max(1)).copied()
    }

    fn keep_generation(&mut self, step: u64) -> Check {
        if self.generations.len() == KEPT_MAX {
            let oldest = self.generations.pop_first().map_or(0, |(number, _)| number);
            self.store().drop_generation(oldest).map_err(say("drop"))?;
        }
        let number = self.generations.keys().next_back().copied().unwrap_or(4) + step;
        match self.store().keep_generation(number) {
            Err(StorageError::Staged { .. }) => {
                self.step(&Step::Commit)?;
                self.store().keep_generation(number).map_err(say("keep"))?;
            }
            kept => {
                kept.map_err(say("keep"))?;
                ensure(self.model.visible == self.model.staged, || "kept with something staged".into())?;
            }
        }
        self.generations.insert(number, self.model.visible.clone());
        self.store().keep_generation(number).map_err(say("keep again"))?;
        match self.store().keep_generation(number - 1) {
            Err(StorageError::GenerationOrder { .. }) => Ok(()),
            other => Err(format!("keeping an earlier number gives {other:?}")),
        }
    }

    /// A store commits by itself when what is staged fills a segment or a buffer.
    fn may_commit_by_itself(&self, op: &Op) -> bool {
        let staging = matches!(op, Op::Add(_) | Op::Merge(_) | Op::Delete(_) | Op::Seen(_));
        staging && self.options.segment_bytes < LARGE
    }

    /// These pages as another store has them, sorted by key.
    fn records_of_another_store(&self, specs: &[Spec]) -> Vec<Record> {
        let key = *self.store().repository_key();
        let disk = created(self.organization, key, &self.options);
        let other = open_sim(&disk, &self.options).unwrap();
        for spec in specs {
            other.add(&[spec.page().page()]).unwrap();
        }
        other.commit().unwrap();
        let mut records = drain(&mut *other.stream(&StreamSpec::default()).unwrap()).unwrap();
        records.sort_by_key(|r| r.get().key());
        records
    }

    fn reopen(&mut self, clean: bool) -> Check {
        self.drain_streams()?; // a stream is promised nothing once its store is gone
        let store = self.store.take().expect("the store is open between operations");
        if clean {
            store.close().map_err(say("close"))?;
            self.model.commit();
        }
        ensure(Arc::strong_count(&store) == 1, || "somebody else has the store".into())?;
        drop(store);
        let store = open_sim(&self.disk, &self.options).map_err(say("open"))?;
        if !clean {
            self.model.observe(read_state(&*store)?)?;
            self.model = Model::of(self.model.visible.clone());
        }
        self.store = Some(store);
        Ok(())
    }

    fn spec(&self, by_id: bool, from: Cursor) -> (StreamSpec, bool) {
        let by_id = by_id && self.organization != Organization::Log;
        let order = if by_id { Order::Id } else { Order::Store };
        (StreamSpec { order, from, trust: Trust::Verify, access: Access::Cached }, by_id)
    }

    fn keep_stream(&mut self, by_id: bool, direct: bool, read: usize) -> Check {
        let (mut spec, by_id) = self.spec(by_id, Cursor::Start);
        if direct {
            (spec.access, spec.trust) = (Access::Direct, Trust::Disk);
        }
        let stream = self.store().stream(&spec).map_err(say("stream"))?;
        let mut kept = Kept { stream, rest: self.model.visible.clone(), by_id };
        kept.read(read)?;
        self.kept.push(kept);
        Ok(())
    }

    fn drain_streams(&mut self) -> Check {
        for mut kept in std::mem::take(&mut self.kept) {
            kept.read(usize::MAX)?;
            ensure(kept.rest.is_empty(), || format!("the kept stream ends without {:?}", kept.rest))?;
        }
        for (snapshot, state) in std::mem::take(&mut self.held) {
            snapshot_shows(&*snapshot, &state).map_err(|e| format!("held: {e}"))?;
        }
        Ok(())
    }

    /// Reads some pages, and the rest with another stream from the first one's cursor.
    fn resume(&mut self, by_id: bool, read: usize, compact: u64, reopen: Option<bool>) -> Check {
        if reopen.is_some() {
            self.step(&Step::Commit)?; // so that nothing changes
        }
        let (spec, by_id) = self.spec(by_id, Cursor::Start);
        let stream = self.store().stream(&spec).map_err(say("stream"))?;
        let mut first = Kept { stream, rest: self.model.visible.clone(), by_id };
        first.read(read)?;
        let cursor = first.stream.cursor();
        let (rest, by_id) = (first.rest, first.by_id);
        drop(first.stream);
        self.step(&Step::Compact(compact))?;
        if let Some(clean) = reopen {
            self.reopen(clean)?;
        }
        let cursor = cursor.to_string().parse().map_err(say("cursor"))?;
        let stream = self.store().stream(&self.spec(by_id, cursor).0).map_err(say("resume"))?;
        let mut second = Kept { stream, rest, by_id };
        second.read(usize::MAX).map_err(|e| format!("resumed from {cursor}: {e}"))?;
        ensure(second.rest.is_empty(), || {
            format!("resumed from {cursor} it ends without {:?}", second.rest)
        })?;
        let end = second.stream.cursor();
        let stream = self.store().stream(&self.spec(by_id, end).0).map_err(say("resume at the end"))?;
        Kept { stream, rest: State::new(), by_id }.read(1)
    }
}

impl Kept {
    /// Reads up to `count` pages, each of which must be in the rest, and takes them out of it.
    fn read(&mut self, count: usize) -> Check {
        for _ in 0..count {
            let Some(record) = self.stream.next() else { return Ok(()) };
            let record = record.map_err(say("kept stream"))?;
            let key = record.get().key();
            let lowest = self.rest.keys().next().copied();
            ensure(!self.by_id || lowest == Some(key), || {
                format!("{key} is out of order, expected {lowest:?}")
            })?;
            let expected = self.rest.remove(&key);
            let same = expected.as_ref().is_some_and(|e: &Entry| e.record.bytes() == record.bytes());
            ensure(same, || format!("the stream delivers {record:?}, expected {expected:?}"))?;
        }
        Ok(())
    }
}

fn run_list(organization: Organization, key: RepositoryKey, options: &Options, ops: &[Op]) -> Check {
    let mut test = Test::new(organization, key, options.clone());
    let last = [
        Op::Commit,
        Op::DrainStreams,
        Op::Reopen { clean: false },
        Op::Compact(1 << 30),
        Op::Reopen { clean: true },
    ];
    for (i, op) in ops.iter().chain(&last).enumerate() {
        let at = |e: String| format!("operation {i}, {op:?}: {e}");
        test.run(op).map_err(at)?;
        if test.may_commit_by_itself(op) {
            let found = read_state(test.store()).map_err(at)?;
            test.model.observe(found).map_err(at)?;
        }
        shows(test.store(), &test.model.visible, &test.keys).map_err(at)?;
        snapshot_shows(&*test.store().snapshot(), &test.model.visible).map_err(at)?;
        keeps(test.store(), &test.generations).map_err(at)?;
    }
    let verified = test.store().verify().map_err(say("verify"))?;
    ensure(verified.damage.is_empty(), || format!("verify finds {:?}", verified.damage))
}

fn agree(key: RepositoryKey, cases: u32) {
    for organization in organizations() {
        let default = Config::default();
        let cases = if std::env::var_os("PROPTEST_CASES").is_some() { default.cases } else { cases };
        let config = Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..default };
        let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
        let result = runner.run(&(options(), ops()), |(options, ops)| {
            run_list(organization, key, &options, &ops).map_err(TestCaseError::fail)
        });
        result.unwrap_or_else(|e| panic!("{organization}: {e}"));
    }
}

#[test]
fn a_store_shows_what_a_map_shows() {
    agree(strong(), 100);
}

#[test]
fn a_store_whose_page_ids_all_collide_shows_what_a_map_shows() {
    agree(weak(), 100);
}

#[test]
fn compaction_shows_nothing_that_is_only_staged() {
    for organization in organizations() {
        let options = Options { segment_bytes: LARGE, buffer_bytes: LARGE, ..small_options() };
        let mut test = Test::new(organization, strong(), options);
        let specs = |time| {
            let spec = |page| Spec { page, time, epoch: 0, lifetime_s: 0, bytes: 500, content: 1 };
            (0..10).map(spec).collect::<Vec<_>>()
        };
        for op in [
            Op::Add(specs(1)),
            Op::Commit,
            Op::Add(specs(2)),
            Op::Commit,
            Op::Add(specs(3)),
            Op::Compact(1 << 30),
        ] {
            test.run(&op).unwrap();
            let shown = shows(test.store(), &test.model.visible, &test.keys);
            shown.unwrap_or_else(|e| panic!("{organization}, {op:?}: {e}"));
        }
    }
}
