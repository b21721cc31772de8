//! Importance against independent answers (numpy, scipy, checked with ARPACK) for real graphs, each test naming its fixed
//! point: `renorm` is the papers', `uniform` that of most libraries; they are up to 0.13 apart.
//!
//! The data are in the folder `webgraph` beside the project, or where `WEBBASE_TEST_DATA` says; without them every test says
//! that it was skipped.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its data has failed, and says where")]

use std::net::Ipv4Addr;
use std::path::PathBuf;

use webbase_crawler::importance::workers::{Pace, Problem, Worker, solve};
use webbase_crawler::importance::{
    FixedPoint, Graph, GraphBuilder, Grid, Interest, Method, Personalisation, Settings, Usefulness, both,
    importance, usefulness,
};

const GRAPHS: [(&str, usize); 5] = [
    ("cnr-2000", 325_557),
    ("cppreference-doc-en-html", 4_424),
    ("debian-handbook", 127),
    ("postgresql-doc-15", 1_169),
    ("python3.11-doc", 530),
];

fn data(name: &str) -> Option<Vec<u8>> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data");
    let root = std::env::var_os("WEBBASE_TEST_DATA").unwrap_or_else(|| beside.into());
    let path = PathBuf::from(root).join("webgraph").join(name);
    if !path.exists() {
        eprintln!("SKIPPED: no {}; set WEBBASE_TEST_DATA", path.display());
        return None;
    }
    Some(zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap())
}

fn graph(name: &str, pages: usize) -> Option<Graph> {
    let mut builder = GraphBuilder::new();
    for pair in data(&format!("{name}.edges.u32.zst"))?.as_chunks::<8>().0 {
        let pair = u64::from_le_bytes(*pair);
        builder.add(pair as u32, (pair >> 32) as u32);
    }
    Some(builder.build(Some(pages)).unwrap())
}

fn reference(name: &str, fixed_point: FixedPoint) -> Option<Vec<f64>> {
    let which = match fixed_point {
        FixedPoint::Renormalised => "renorm",
        FixedPoint::Spread => "uniform",
    };
    let bytes = data(&format!("{name}.pagerank-{which}.f64.zst"))?;
    Some(bytes.as_chunks::<8>().0.iter().map(|value| f64::from_le_bytes(*value)).collect())
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum()
}

fn agree(fixed_point: FixedPoint) {
    for (name, pages) in GRAPHS {
        let (Some(graph), Some(expected)) = (graph(name, pages), reference(name, fixed_point)) else {
            return;
        };
        let e = Personalisation::uniform(pages);
        let settings = Settings { fixed_point, threads: 2, ..Settings::default() };
        for method in [Method::Power, Method::Slices(3), Method::GaussSeidelSlices(8), Method::GaussSeidel] {
            let found = importance(&graph, &e, None, method, &settings).unwrap();
            let off = distance(&found.values, &expected);
            eprintln!("{name} {method:?}: {} rounds, {off:.1e} off {fixed_point:?}", found.rounds);
            assert!(found.converged && off < 1e-9, "{name} {method:?}: {off:e} off {fixed_point:?}");
        }
    }
}

#[test]
fn every_method_finds_the_fixed_point_renorm() {
    agree(FixedPoint::Renormalised);
}

#[test]
fn every_method_finds_the_fixed_point_uniform() {
    agree(FixedPoint::Spread);
}

/// The two fixed points are not the same vector, so the tests above tell them apart.
#[test]
fn the_fixed_points_are_apart() {
    let (Some(renorm), Some(uniform)) =
        (reference("cnr-2000", FixedPoint::Renormalised), reference("cnr-2000", FixedPoint::Spread))
    else {
        return;
    };
    assert!(distance(&renorm, &uniform) > 0.1);
}

/// Fixed point `renorm`, and usefulness over it: one scan for both gives what one after the other gives.
#[test]
fn both_in_one_scan_are_what_each_is_alone() {
    let (name, pages) = ("cnr-2000", 325_557);
    let (Some(graph), Some(expected)) = (graph(name, pages), reference(name, FixedPoint::Renormalised))
    else {
        return;
    };
    let e = Personalisation::uniform(pages);
    // Errors of importance add up over all that lead to a page.
    let settings = Settings { epsilon: 1e-12, ..Settings::default() };
    let interest = Interest::of(pages, |page| page % 50 == 7);
    let together = both(&Grid::of(&graph), &e, &interest, Usefulness::Average, None, &settings).unwrap();
    assert!(distance(&together.importance.values, &expected) < 1e-9);
    for method in [Method::Power, Method::GaussSeidel] {
        let alone =
            usefulness(&graph, &expected, &interest, Usefulness::Average, None, method, &settings).unwrap();
        let off = distance(&alone.values, &together.usefulness.values);
        eprintln!("usefulness {method:?}: {} rounds, {off:.1e} apart", alone.rounds);
        assert!(off < 1e-9, "{method:?}: {off:e}");
    }
}

/// Fixed point `renorm`: node-wise Gauss–Seidel takes at most 60 % of power iteration's scans to the same ε.
#[test]
fn gauss_seidel_by_page_saves_two_scans_of_five() {
    let (name, pages) = ("cnr-2000", 325_557);
    let (Some(graph), Some(expected)) = (graph(name, pages), reference(name, FixedPoint::Renormalised))
    else {
        return;
    };
    let e = Personalisation::uniform(pages);
    for epsilon in [1e-6, 1e-10] {
        let settings = Settings { epsilon, ..Settings::default() };
        let rounds = |method| {
            let found = importance(&graph, &e, None, method, &settings).unwrap();
            let off = distance(&found.values, &expected);
            assert!(off < epsilon * 1.01, "{method:?} with ε = {epsilon:e} is {off:e} off");
            found.rounds
        };
        let (power, seidel) = (rounds(Method::Power), rounds(Method::GaussSeidel));
        let slices = rounds(Method::GaussSeidelSlices(16));
        eprintln!("ε = {epsilon:e}: power {power}, by slice {slices}, by page {seidel} scans");
        assert!(f64::from(seidel) <= 0.6 * f64::from(power), "ε = {epsilon:e}: {seidel} of {power}");
    }
}

/// Fixed point `renorm`: two workers, in lock-step and each in its own time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_find_the_fixed_point_renorm() {
    let (name, pages) = ("cnr-2000", 325_557);
    let (Some(graph), Some(expected)) = (graph(name, pages), reference(name, FixedPoint::Renormalised))
    else {
        return;
    };
    let (e, settings) = (Personalisation::uniform(pages), Settings::default());
    let mut workers = Vec::new();
    for _ in 0..2 {
        workers.push(Worker::start((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap());
    }
    let addresses: Vec<_> = workers.iter().map(Worker::address).collect();
    for pace in [Pace::LockStep, Pace::Chaotic] {
        let problem = Problem::Importance { e: &e };
        let found = solve(&addresses, &graph, problem, None, pace, &settings).await.unwrap();
        let off = distance(&found.solution.values, &expected);
        let (rounds, sweeps) = (found.solution.rounds, found.sweeps);
        eprintln!("{name} {pace:?}: {rounds} rounds after {sweeps:?} sweeps, {off:.1e} off");
        assert!(found.solution.converged && off < 1e-9, "{pace:?}: {off:e} off");
    }
}
