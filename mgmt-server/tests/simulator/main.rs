//! The protocol of the cycle, run through bad days: thousands of small worlds, each from one seed.
//!
//! A world has a management server, update and read nodes, clients that add, look up and stream, an operator, and faults:
//! messages late, lost, doubled, out of order; partitions; kills of any process at any moment, with what it was doing on disk
//! done, not done, or half done; disks full or lost for ever; slow nodes. After a while the faults stop, and everything must
//! come to rest. `invariants.rs` has what must hold, by name. Every third world has incremental update (`live.rs`).
//!
//! ```text
//!   WEBBASE_SEEDS=100000 cargo test -p webbase-mgmt-server --test simulator    more worlds
//!   WEBBASE_SEED=17 cargo test -p webbase-mgmt-server --test simulator         one of them, told event by event
//! ```
//!
//! Why our own simulator: the protocol is pure machines, so a world is a queue of events and a loop, there is no scheduler
//! to control and no clock to fake. turmoil runs real sockets' code on tokio, a thousand times slower, and knows nothing of
//! disks half written; madsim replaces tokio in the whole build; loom enumerates interleavings of threads, of which there are none here. The
//! servers that run these machines are tested with real processes instead.
//!
//! The machines are those that the servers run, unchanged: mutants (`mutants.rs`) alter what passes between a machine
//! and its world, so that no test switch is in them. Everything here uses the crates' public names only, hence `tests/`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "a test"
)]

mod clients;
mod faults;
mod invariants;
mod live;
mod mutants;
mod rng;
mod store;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use mutants::Mutant;
use world::{Counts, World};

/// Seeds in which a mutant must be caught. Most are by one of the first ten; forgotten tombstones, which take an absence over
/// several cycles, by about one in 140.
const MUTANT_SEEDS: u64 = 3000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

fn run(seed: u64, mutant: Option<Mutant>, only: Option<&'static str>, trace: bool) -> Result<Counts, String> {
    let mut world = World::new(seed, mutant, only, trace);
    world.run();
    match world.violation {
        None => Ok(world.counts),
        Some(v) => Err(format!(
            "{} broken at {} ms, seed {seed}: {}\n  replay: WEBBASE_SEED={seed} cargo test -p webbase-mgmt-server \
             --test simulator every_seed -- --nocapture",
            v.invariant, world.now, v.what
        )),
    }
}

#[test]
fn every_seed_keeps_the_invariants() {
    if let Some(seed) = number("WEBBASE_SEED") {
        run(seed, None, None, true).unwrap_or_else(|e| panic!("{e}"));
        return;
    }
    let seeds = number("WEBBASE_SEEDS").unwrap_or(3000);
    let next = AtomicU64::new(0);
    let found: Mutex<(Counts, Vec<String>)> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds || found.lock().unwrap().1.len() > 9 {
                        return;
                    }
                    let result = std::panic::catch_unwind(|| run(seed, None, None, false))
                        .unwrap_or_else(|_| Err(format!("panic with seed {seed}")));
                    let mut found = found.lock().unwrap();
                    match result {
                        Ok(counts) => found.0.add(&counts),
                        Err(e) => found.1.push(e),
                    }
                }
            });
        }
    });
    let (counts, failures) = found.into_inner().unwrap();
    println!("{seeds} seeds: {counts:?}");
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
    // What never happens proves nothing.
    if seeds >= 1000 {
        for (name, count) in counts.all() {
            assert!(count > 0, "{name} never happened in {seeds} seeds");
        }
    }
}

#[test]
fn every_mutant_is_caught() {
    let next = AtomicU64::new(0);
    let missed: Mutex<Vec<String>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| {
                while let Some((mutant, invariant)) =
                    Mutant::ALL.get(next.fetch_add(1, Ordering::Relaxed) as usize)
                {
                    let caught = (0..MUTANT_SEEDS)
                        .find(|seed| run(*seed, Some(*mutant), Some(invariant), false).is_err());
                    match caught {
                        Some(seed) => println!("{mutant:?}: {invariant} broken by seed {seed}"),
                        None => missed.lock().unwrap().push(format!("{mutant:?} does not break {invariant}")),
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "{missed:?}");
}

#[test]
fn a_changed_placement_breaks_its_invariant() {
    use webbase_mgmt_server::{Cycle, CyclePhase, State, Update};
    use webbase_node::cycle::{RangeMap, message::Changes, message::NodeId};
    let mut before = State::new(RangeMap::new(2), 1, Update::Batch);
    let (cycle, placement_version) = (1, before.placement.version);
    let phase = CyclePhase::Sealing;
    before.cycle =
        Some(Cycle { cycle, base: 0, target: 1, placement_version, changes: Changes::default(), phase });
    assert!(invariants::placement_is_pinned_during_a_cycle(&before, &before).is_ok());
    let mut after = before.clone();
    after.placement.add(NodeId(1), true, true);
    assert!(invariants::placement_is_pinned_during_a_cycle(&before, &after).is_err());
}
