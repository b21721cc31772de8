//! Workers over loopback against the same computation in one process.

mod broken;

use std::net::{Ipv4Addr, SocketAddr};

use super::*;
use crate::importance::{
    FixedPoint, Graph, GraphBuilder, Interest, Method, Personalisation, Settings, Usefulness, importance,
    usefulness,
};
use crate::random::Random;

const PACES: [Pace; 2] = [Pace::LockStep, Pace::Chaotic];

async fn start(count: usize) -> (Vec<Worker>, Vec<SocketAddr>) {
    let mut workers = Vec::new();
    for _ in 0..count {
        workers.push(Worker::start((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap());
    }
    let addresses = workers.iter().map(Worker::address).collect();
    (workers, addresses)
}

/// Pages that link near and far, to themselves, and not at all; none links to itself alone, unless there are traps.
fn graph(pages: u32, traps: bool, seed: u64) -> Graph {
    let mut random = Random::new(seed);
    let mut builder = GraphBuilder::new();
    for page in 0..pages {
        let links = if random.fraction() < 0.2 { 0 } else { (random.fraction() * 12.0) as u32 };
        for _ in 0..links {
            let near = (page + (random.fraction() * 50.0) as u32) % pages;
            let far = (random.fraction() * f64::from(pages)) as u32;
            builder.add(page, if random.fraction() < 0.7 { near } else { far });
        }
        if links > 0 && !traps {
            builder.add(page, (page + 1) % pages);
        }
    }
    builder.build(Some(pages as usize)).unwrap()
}

fn built(links: &[(u32, u32)], pages: usize) -> Graph {
    let mut builder = GraphBuilder::new();
    links.iter().for_each(|(from, to)| builder.add(*from, *to));
    builder.build(Some(pages)).unwrap()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum()
}

async fn agree(fixed_point: FixedPoint) {
    let seed = 17;
    let graph = graph(3000, false, seed);
    let e = Personalisation::uniform(graph.pages());
    let interest = Interest::of(graph.pages(), |page| page % 7 == 0);
    let settings = Settings { fixed_point, ..Settings::default() };
    let known = importance(&graph, &e, None, Method::Power, &settings).unwrap();
    let kind = Usefulness::Average;
    let useful = usefulness(&graph, &known.values, &interest, kind, None, Method::Power, &settings).unwrap();
    let (_workers, addresses) = start(4).await;
    for (count, pace) in (1..=4).flat_map(|count| PACES.map(|pace| (count, pace))) {
        let what = format!("seed {seed}: {count} workers, {fixed_point:?}, {pace:?}");
        let workers = &addresses[..count];
        for (problem, expected) in [
            (Problem::Importance { e: &e }, &known),
            (Problem::Usefulness { importance: &known.values, interest: &interest, kind }, &useful),
        ] {
            let found = solve(workers, &graph, problem, None, pace, &settings).await.unwrap();
            let off = distance(&found.solution.values, &expected.values);
            let rounds = found.solution.rounds;
            eprintln!("{what}: {rounds} rounds after {:?} sweeps, {off:.1e} off", found.sweeps);
            assert!(found.solution.converged && off < 1e-9, "{what}: {off:e} off");
            match pace {
                Pace::LockStep => assert_eq!(rounds, expected.rounds, "{what}: the same rounds"),
                Pace::Chaotic => {
                    assert_eq!(found.sweeps.len(), count, "{what}");
                    assert!(rounds < expected.rounds / 4, "{what}: {rounds} rounds to confirm it");
                }
            }
        }
        // From the result on there is little left to do.
        let (problem, start) = (Problem::Importance { e: &e }, Some(known.values.as_slice()));
        let again = solve(workers, &graph, problem, start, pace, &settings).await.unwrap();
        let most = again.sweeps.iter().copied().chain([again.solution.rounds]).max().unwrap();
        let off = distance(&again.solution.values, &known.values);
        assert!(again.solution.converged && off < 1e-9, "{what}: {off:e} off, from the end");
        if pace == Pace::LockStep {
            assert!(most < known.rounds / 4, "{what}: {most} rounds from the end");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_come_to_what_one_process_comes_to_renorm() {
    agree(FixedPoint::Renormalised).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_come_to_what_one_process_comes_to_uniform() {
    agree(FixedPoint::Spread).await;
}

/// Timing changes no bit of what is done in lock-step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_step_is_the_same_to_the_bit() {
    let (graph, settings) = (graph(800, true, 3), Settings::default());
    let e = Personalisation::uniform(graph.pages());
    let (_workers, addresses) = start(3).await;
    let mut found = Vec::new();
    for _ in 0..3 {
        let problem = Problem::Importance { e: &e };
        found.push(solve(&addresses, &graph, problem, None, Pace::LockStep, &settings).await.unwrap());
    }
    assert!(found.windows(2).all(|pair| pair[0] == pair[1]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_graphs_are_defined() {
    let (_workers, addresses) = start(3).await;
    let settings = Settings::default();
    for pace in PACES {
        let solved = async |graph: Graph| {
            let e = Personalisation::uniform(graph.pages());
            let problem = Problem::Importance { e: &e };
            let found = solve(&addresses, &graph, problem, None, pace, &settings).await.unwrap().solution;
            assert!(found.converged);
            found.values
        };
        assert!(solved(built(&[], 0)).await.is_empty());
        let dangling = solved(built(&[], 2)).await;
        assert!(distance(&dangling, &[0.5, 0.5]) < 1e-12, "more workers than pages, and no links");
        let selfish = solved(built(&[(0, 0), (1, 0)], 2)).await;
        assert!(distance(&selfish, &[0.925, 0.075]) < 1e-9, "{selfish:?}");
        let alone = solved(built(&[(0, 0)], 1)).await;
        assert!(distance(&alone, &[1.0]) < 1e-12, "{alone:?}");
        assert!(distance(&solved(built(&[], 9)).await, &[1.0 / 9.0; 9]) < 1e-12, "no page has links");
        // Nothing is of interest.
        let (graph, interest) = (built(&[(0, 1)], 2), Interest::default());
        let problem =
            Problem::Usefulness { importance: &[0.5, 0.5], interest: &interest, kind: Usefulness::Average };
        let useless = solve(&addresses, &graph, problem, None, pace, &settings).await.unwrap();
        assert_eq!(useless.solution.values, [0.0, 0.0]);
    }
}

/// Pages that keep what they get: λ swings, in their own time workers don't settle, and lock-step does it all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traps_that_make_lambda_swing_are_solved() {
    let (graph, settings) = (graph(3000, true, 17), Settings::default());
    let e = Personalisation::uniform(graph.pages());
    let known = importance(&graph, &e, None, Method::Power, &settings).unwrap();
    let (_workers, addresses) = start(2).await;
    for count in 1..=2 {
        let problem = Problem::Importance { e: &e };
        let found =
            solve(&addresses[..count], &graph, problem, None, Pace::Chaotic, &settings).await.unwrap();
        let off = distance(&found.solution.values, &known.values);
        let rounds = found.solution.rounds;
        eprintln!("seed 17, traps, {count} workers: {rounds} rounds after {:?} sweeps", found.sweeps);
        assert!(found.solution.converged && off < 1e-9, "{off:e} off");
    }
}

/// A long chain among pages without links: a λ that is too small makes newest values grow along it, beyond any number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_that_grows_without_end_is_given_up_and_solved() {
    let links: Vec<(u32, u32)> = (0..300).map(|page| (page, page + 1)).collect();
    let graph = built(&links, 30_000);
    let e = Personalisation::uniform(graph.pages());
    let settings = Settings { epsilon: 1e-6, ..Settings::default() };
    let known = importance(&graph, &e, None, Method::Power, &settings).unwrap();
    let (_workers, addresses) = start(2).await;
    let problem = Problem::Importance { e: &e };
    let found = solve(&addresses, &graph, problem, None, Pace::Chaotic, &settings).await.unwrap();
    let off = distance(&found.solution.values, &known.values);
    eprintln!(
        "{} rounds ({} in one process), {:?} sweeps",
        found.solution.rounds, known.rounds, found.sweeps
    );
    assert!(found.solution.converged && off < 1e-5, "{off:e} off");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_makes_no_sense_is_refused() {
    let (_workers, addresses) = start(2).await;
    let (graph, settings) = (built(&[(0, 1)], 2), Settings::default());
    let (e, short) = (Personalisation::uniform(2), Personalisation::uniform(3));
    let good = Problem::Importance { e: &e };
    let interest = Interest::of(2, |_| true);
    let useful =
        |importance| Problem::Usefulness { importance, interest: &interest, kind: Usefulness::Average };
    for (problem, start) in [
        (Problem::Importance { e: &short }, None),
        (good, Some(&[1.0][..])),
        (good, Some(&[f64::NAN, 1.0])),
        (good, Some(&[0.0, 0.0])),
        (useful(&[0.5]), None),
        (useful(&[-0.5, 1.0]), None),
        (useful(&[0.5, 0.5]), Some(&[0.5])),
    ] {
        let wrong = solve(&addresses, &graph, problem, start, Pace::Chaotic, &settings).await;
        assert!(matches!(wrong, Err(WorkersError::Importance(_))), "{problem:?} {start:?}: {wrong:?}");
    }
    let wild = Settings { damping: 1.0, ..settings };
    let wrong = solve(&addresses, &graph, good, None, Pace::LockStep, &wild).await;
    assert!(matches!(wrong, Err(WorkersError::Importance(_))), "{wrong:?}");
    let nobody = solve(&[], &graph, good, None, Pace::LockStep, &settings).await;
    assert!(matches!(nobody, Err(WorkersError::Nobody)), "{nobody:?}");
    // Too few rounds are said to be.
    let short = Settings { rounds_max: 3, ..settings };
    for pace in PACES {
        let some = built(&[(0, 1), (1, 2), (2, 0), (2, 1)], 3);
        let (e, settings) = (Personalisation::uniform(3), Settings { epsilon: 1e-14, ..short });
        let problem = Problem::Importance { e: &e };
        let found = solve(&addresses, &some, problem, None, pace, &settings).await.unwrap().solution;
        assert!(!found.converged && found.rounds == 3, "{found:?}");
    }
}
