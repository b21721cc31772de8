//! What holds for any method, on small webs: they agree, bad input is what the module says, and the papers' minuscule web
//! comes out as its figure draws it.

mod changes;

use proptest::prelude::*;

use super::*;

const METHODS: [Method; 6] = [
    Method::Power,
    Method::Slices(1),
    Method::Slices(3),
    Method::GaussSeidelSlices(1),
    Method::GaussSeidelSlices(4),
    Method::GaussSeidel,
];

fn graph(pages: usize, links: &[(u32, u32)]) -> Graph {
    let mut builder = GraphBuilder::new();
    links.iter().for_each(|(from, to)| builder.add(*from, *to));
    builder.build(Some(pages)).unwrap()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum()
}

fn plain(graph: &Graph, method: Method) -> Vec<f64> {
    let solution =
        importance(graph, &Personalisation::uniform(graph.pages()), None, method, &Settings::default())
            .unwrap();
    assert!(solution.converged, "{method:?}: {solution:?}");
    solution.values
}

/// The fixed point written out as the formula has it: n² products, a thousand rounds.
fn obviously(graph: &Graph, e: &[f64], c: f64, fixed_point: FixedPoint) -> Vec<f64> {
    let mut values = e.to_vec();
    for _ in 0..1000 {
        let mut next: Vec<f64> = e.iter().map(|e| (1.0 - c) * e).collect();
        for (page, value) in values.iter().enumerate() {
            let links = graph.links_of(page as u32);
            for target in links {
                next[*target as usize] += c * value / links.len() as f64;
            }
            if links.is_empty() && fixed_point == FixedPoint::Spread {
                next.iter_mut().zip(e).for_each(|(next, e)| *next += c * value * e);
            }
        }
        let sum: f64 = next.iter().sum();
        values = next.iter().map(|value| value / sum).collect();
    }
    values
}

fn webs() -> impl Strategy<Value = (usize, Vec<(u32, u32)>)> {
    (1usize..24).prop_flat_map(|pages| {
        let page = 0..pages as u32;
        (Just(pages), proptest::collection::vec((page.clone(), page), 0..80))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Self-links, duplicates, cycles, pages without links: every method finds the same fixed point, both of them.
    #[test]
    fn methods_agree_with_the_formula((pages, links) in webs(), weights in proptest::collection::vec(0.01f64..1.0, 24), c in 0.3f64..0.9) {
        let graph = graph(pages, &links);
        let e = Personalisation::new(&weights[..pages]).unwrap();
        for fixed_point in [FixedPoint::Renormalised, FixedPoint::Spread] {
            let expected = obviously(&graph, &e.to_vec(), c, fixed_point);
            let settings = Settings { damping: c, epsilon: 1e-12, fixed_point, threads: 2, ..Settings::default() };
            for method in METHODS {
                let found = importance(&graph, &e, None, method, &settings).unwrap();
                prop_assert!(found.converged);
                let off = distance(&found.values, &expected);
                prop_assert!(off < 1e-9, "{method:?} is {off} off: {:?}, expected {expected:?}", found.values);
                // From a multiple of the result it takes no longer.
                let again: Vec<f64> = found.values.iter().map(|value| value * 7.0).collect();
                let again = importance(&graph, &e, Some(&again), method, &settings).unwrap();
                prop_assert!(again.rounds <= found.rounds.max(2) && distance(&again.values, &expected) < 1e-9);
            }
        }
    }

    /// Usefulness of every kind is the fixed point of its formula, whatever the method, alone or in one scan with importance.
    #[test]
    fn usefulness_is_its_formula((pages, links) in webs(), xml in any::<u32>()) {
        let graph = graph(pages, &links);
        let e = Personalisation::uniform(pages);
        let interest = Interest::of(pages, |page| xml >> page & 1 == 1);
        let settings = Settings { epsilon: 1e-12, ..Settings::default() };
        let known = importance(&graph, &e, None, Method::Power, &settings).unwrap().values;
        let c = settings.damping;
        for kind in [Usefulness::Average, Usefulness::PseudoCode, Usefulness::ReversePageRank] {
            let weight = |i: u32, j: u32| match kind {
                Usefulness::Average => 1.0 / graph.links_of(i).len() as f64,
                Usefulness::PseudoCode if graph.links_of(j).is_empty() => 0.0,
                Usefulness::PseudoCode => 1.0 / graph.links_of(j).len() as f64,
                Usefulness::ReversePageRank => 1.0 / graph.links_to(j).len() as f64,
            };
            // The pseudo-code's rows and columns may add up to more than 1: it need not have a fixed point.
            if kind == Usefulness::PseudoCode {
                continue;
            }
            let mut expected = vec![0.0; pages];
            for _ in 0..1000 {
                expected = (0..pages as u32).map(|i| {
                    let back: f64 = graph.links_of(i).iter().map(|j| weight(i, *j) * expected[*j as usize]).sum();
                    let own = if interest.has(i as usize) { known[i as usize] } else { 0.0 };
                    c * back + (1.0 - c) * own
                }).collect();
            }
            for method in METHODS {
                let found = usefulness(&graph, &known, &interest, kind, None, method, &settings).unwrap();
                prop_assert!(found.converged);
                prop_assert!(distance(&found.values, &expected) < 1e-9, "{kind:?} {method:?}");
            }
            let found = both(&Grid::of(&graph), &e, &interest, kind, None, &settings).unwrap();
            prop_assert!(distance(&found.usefulness.values, &expected) < 1e-9, "{kind:?} with importance");
            prop_assert!(distance(&found.importance.values, &known) < 1e-9);
        }
    }
}

/// Threads change no bit of power iteration; slices, which cross all blocks of the grid, only add r's sum in another order.
#[test]
fn threads_change_no_bit_and_slices_hardly_one() {
    let pages = 200_000u32;
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % pages
    };
    let mut builder = GraphBuilder::new();
    (0..600_000).for_each(|_| builder.add(random(), random()));
    let graph = builder.build(Some(pages as usize)).unwrap();
    let e = Personalisation::uniform(graph.pages());
    let one = plain(&graph, Method::Power);
    let settings = Settings { threads: 3, ..Settings::default() };
    assert_eq!(importance(&graph, &e, None, Method::Power, &settings).unwrap().values, one);
    for slices in [1, 2, 4, 9] {
        let sliced = plain(&graph, Method::Slices(slices));
        assert!(distance(&sliced, &one) < 1e-11, "{slices} slices");
    }
}

/// Figure 1 of the papers, left to right: by links alone; usefulness for HTML pages; with a publication.
///
/// ```text
///   0..4 HTML ──▶ B (5) ──▶ 6, 7 HTML      many point to B, two important pages (3, 4) among them; B leads to no XML
///   0, 1, 2 ──▶ 3 and 4                    which makes those important
///   8..10 ──▶ X (11), Y (12): XML          important XML pages
///   A (13) ──▶ X, Y                        nobody points to A
///   C (14) XML                             nobody points to C; a publication names it
/// ```
fn figure() -> (Graph, Interest) {
    let mut links = vec![(5, 6), (5, 7), (13, 11), (13, 12)];
    for small in 0..3 {
        links.extend([(small, 5), (small, 3), (small, 4)]);
    }
    links.extend([(3, 5), (4, 5), (8, 11), (9, 11), (9, 12), (10, 12), (11, 12), (12, 11)]);
    (graph(15, &links), Interest::of(15, |page| [11, 12, 14].contains(&page)))
}

const A: usize = 13;
const B: usize = 5;
const C: usize = 14;

#[test]
fn the_papers_minuscule_web_comes_out_as_drawn() {
    let (graph, xml) = figure();
    let settings = Settings::default();
    let i = plain(&graph, Method::GaussSeidel);
    // Left: B is the most important HTML page, A among the least.
    for html in (0..14).filter(|page| !xml.has(*page) && *page != B) {
        assert!(i[B] > i[html], "B against {html}");
    }
    let least = i.iter().copied().fold(f64::INFINITY, f64::min);
    assert!((i[A] - least).abs() < 1e-12);
    // Middle: B is of no use, A of the most among pages that link to few others.
    let useful = |kind| usefulness(&graph, &i, &xml, kind, None, Method::Power, &settings).unwrap().values;
    let average = useful(Usefulness::Average);
    assert_eq!(average[B], 0.0);
    for html in (0..14).filter(|page| !xml.has(*page)) {
        assert!(average[A] >= average[html] - 1e-12, "A against {html}");
    }
    // The pseudo-code divides by the links of the page linked to: to link to both XML pages then counts twice.
    let pseudo = useful(Usefulness::PseudoCode);
    assert_eq!(pseudo[B], 0.0);
    assert!((pseudo[A] / average[A] - 2.0).abs() < 1e-9, "{} against {}", pseudo[A], average[A]);
    let reverse = useful(Usefulness::ReversePageRank);
    assert_eq!(reverse[B], 0.0);
    assert!(
        reverse[A] > 0.0 && reverse[A] < average[A],
        "X and Y share what they give back among all that link to them"
    );
    // Right: C has its importance from a publication alone.
    assert!((i[C] - least).abs() < 1e-12);
    let mut weights = vec![1.0; 15];
    weights[C] = 10.0;
    let published = Personalisation::new(&weights).unwrap();
    let lifted = importance(&graph, &published, None, Method::Power, &settings).unwrap().values;
    assert!(lifted[C] > i[C] * 4.0);
    assert!(lifted[C] > lifted[A] * 9.0);
}

#[test]
fn bad_input_is_defined() {
    let uniform = |pages| Personalisation::uniform(pages);
    let settings = Settings::default();
    for method in METHODS {
        // No pages: no values.
        let none = importance(&graph(0, &[]), &uniform(0), None, method, &settings).unwrap();
        assert_eq!((none.values.len(), none.rounds, none.converged), (0, 0, true));
        // No links at all: E itself.
        let e = Personalisation::new(&[1.0, 2.0, 1.0]).unwrap();
        let dangling = importance(&graph(3, &[]), &e, None, method, &settings).unwrap();
        assert!(distance(&dangling.values, &[0.25, 0.5, 0.25]) < 1e-15, "{method:?}");
        // Duplicates count once.
        let twice = plain(&graph(3, &[(0, 1), (0, 1), (0, 2), (0, 1)]), method);
        assert!(distance(&twice, &plain(&graph(3, &[(0, 1), (0, 2)]), method)) < 1e-15);
        // A page that links to itself alone keeps what it has: the more damping, the more.
        let selfish = plain(&graph(2, &[(0, 0), (1, 0)]), method);
        assert!(distance(&selfish, &[0.925, 0.075]) < 1e-9, "{method:?}: {selfish:?}");
    }
    assert_eq!(GraphBuilder::new().build(None).unwrap().pages(), 0);
    let mut beyond = GraphBuilder::new();
    beyond.add(0, 5);
    assert_eq!(beyond.build(Some(5)), Err(ImportanceError::Page { page: 5, pages: 5 }));

    for bad in [f64::NAN, f64::INFINITY, -1.0] {
        assert!(matches!(Personalisation::new(&[1.0, bad]), Err(ImportanceError::Value { page: 1, .. })));
        let start = importance(&graph(2, &[]), &uniform(2), Some(&[bad, 1.0]), Method::Power, &settings);
        assert!(matches!(start, Err(ImportanceError::Value { page: 0, .. })));
    }
    assert!(matches!(Personalisation::new(&[0.0, 0.0]), Err(ImportanceError::Sum { .. })));
    assert!(matches!(Personalisation::new(&[f64::MAX, f64::MAX]), Err(ImportanceError::Sum { .. })));
    let short = importance(&graph(2, &[]), &uniform(3), None, Method::Power, &settings);
    assert!(matches!(short, Err(ImportanceError::Length { expected: 2, found: 3, .. })));
    for damping in [0.0, 1.0, f64::NAN, -0.5] {
        let settings = Settings { damping, ..settings };
        let wrong = importance(&graph(2, &[]), &uniform(2), None, Method::Power, &settings);
        assert!(matches!(wrong, Err(ImportanceError::Setting { name: "damping", .. })));
    }
    // Not converged is said, not hidden.
    let hasty = Settings { rounds_max: 1, ..settings };
    let solution = importance(&graph(2, &[(0, 1)]), &uniform(2), None, Method::Power, &hasty).unwrap();
    assert!(!solution.converged && solution.rounds == 1);
}

/// Of a page's million links the first 65 534 different ones count, in the page's order.
/// A chain in the order of the sweep, among pages without links: λ is far below c at first, and values would grow by c/λ from page to page.
#[test]
fn a_long_chain_does_not_carry_gauss_seidel_off() {
    let links: Vec<(u32, u32)> = (0..1000).map(|page| (page, page + 1)).collect();
    let graph = graph(100_000, &links);
    let e = Personalisation::uniform(graph.pages());
    let settings = Settings { epsilon: 1e-6, ..Settings::default() };
    let power = importance(&graph, &e, None, Method::Power, &settings).unwrap();
    let found = importance(&graph, &e, None, Method::GaussSeidel, &settings).unwrap();
    assert!(power.converged && found.converged, "{} and {} rounds", power.rounds, found.rounds);
    let off = distance(&power.values, &found.values);
    assert!(off < 1e-4, "{off:e}");
}

#[test]
fn a_page_with_a_million_links_has_65534() {
    let mut builder = GraphBuilder::new();
    for link in (0..1_000_000u32).rev() {
        builder.add(7, link);
        builder.add(7, link);
    }
    let graph = builder.build(None).unwrap();
    assert_eq!(graph.links_of(7).len(), LINKS_MAX);
    assert_eq!(graph.links_of(7).first(), Some(&(1_000_000 - LINKS_MAX as u32)));
    assert_eq!(graph.links_of(7).last(), Some(&999_999));
    let sum: f64 = plain(&graph, Method::Power).iter().sum();
    assert!((sum - 1.0).abs() < 1e-9);
}

/// On disk, three tiles on each side: whatever the memory, power, Gauss–Seidel and both at once come to the fixed points that
/// memory gives.
#[test]
fn on_disk_it_is_the_same() {
    use std::sync::Arc;

    use webbase_storage::disk::OsDisk;

    use super::on_disk::{OnDisk, Scan};
    use crate::link_matrix::{Matrix, MatrixBuilder};

    let folder = tempfile::tempdir().unwrap();
    let (pages, mut state) = (1_200_000u32, 3u64);
    let mut random = move |below: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % below
    };
    let disk = Arc::new(OsDisk::new());
    let path = folder.path().join("matrix");
    let (mut on_disk, mut in_memory) =
        (MatrixBuilder::new(disk.clone(), &path, 1 << 20), GraphBuilder::new());
    for page in (0..pages).step_by(3) {
        let links: Vec<u32> = (0..random(4)).map(|_| random(pages)).collect();
        links.iter().for_each(|link| in_memory.add(page, *link));
        on_disk.add(page, &links).unwrap();
    }
    on_disk.finish(Some(pages)).unwrap();
    let graph = in_memory.build(Some(pages as usize)).unwrap();
    let interest = || Interest::of(pages as usize, |page| page % 10 == 0);
    // Half of what there is at each link: as good a test in a quarter of the rounds.
    let settings = Settings { damping: 0.5, epsilon: 1e-11, ..Settings::default() };
    let e = Personalisation::uniform(graph.pages());
    let known = importance(&graph, &e, None, Method::Power, &settings).unwrap().values;
    let useful = usefulness(&graph, &known, &interest(), Usefulness::Average, None, Method::Power, &settings)
        .unwrap()
        .values;
    let start = |budget: usize| {
        let matrix = Matrix::open(&*disk, &path).unwrap();
        assert_eq!(matrix.links(), graph.links() as u64);
        OnDisk::start(disk.clone(), folder.path(), matrix, interest(), settings, budget).unwrap()
    };
    let check = |solved: &OnDisk, what: &str| {
        let (mut i, mut j) = (Vec::new(), Vec::new());
        solved.for_importance(|_, value| i.push(value)).unwrap();
        solved.for_usefulness(|_, value| j.push(value)).unwrap();
        assert!(distance(&i, &known) < 1e-9, "importance, {what}: {:e}", distance(&i, &known));
        assert!(distance(&j, &useful) < 1e-9, "usefulness, {what}: {:e}", distance(&j, &useful));
    };
    let mut scans = Vec::new();
    for (scan, budget) in [(Scan::Power, 1 << 30), (Scan::Power, 1), (Scan::GaussSeidel, 1)] {
        // Before the next one starts: their files have the same names.
        let mut once = start(budget);
        let first_of_importance = once.importance(scan, 1).unwrap().bytes;
        let first_of_usefulness = once.usefulness(scan, 1).unwrap().bytes;
        // From where that ended, which the others know otherwise than by changes.
        let all_of_importance = once.importance(scan, 1).unwrap().bytes;
        let all_of_usefulness = once.usefulness(scan, 1).unwrap().bytes;
        let mut solving = start(budget);
        assert_eq!(solving.groups(), if budget == 1 { (3, 3) } else { (1, 1) });
        let important = solving.importance(scan, 1000).unwrap();
        let useful = solving.usefulness(scan, 1000).unwrap();
        assert!(important.converged && useful.converged);
        // With several groups, each reads what changed of the others' values; in the first round, too, but for Gauss–Seidel.
        for (first, all, rounds) in [
            (first_of_importance, all_of_importance, important),
            (first_of_usefulness, all_of_usefulness, useful),
        ] {
            let mean = rounds.bytes / u64::from(rounds.rounds);
            assert_eq!(mean < all * 9 / 10, budget == 1, "{mean} a round, {all} with all");
            let is_short = first < all * 9 / 10;
            assert_eq!(is_short, budget == 1 && scan == Scan::Power, "{first} the first, {all} with all");
        }
        scans.push(important.rounds);
        check(&solving, &format!("{scan:?} in {budget} bytes"));
    }
    // What is told to an eighth is late by a part of a round.
    assert!(scans[0] <= scans[1] && scans[1] <= scans[0] + 1 && scans[2] <= scans[1], "{scans:?}");
    // And where less is asked for, that is what comes out: rounds that change little are near the fixed point, also where errors fade slowly.
    let fine = Settings { damping: 0.85, epsilon: 1e-6, ..settings };
    let known_85 = importance(&graph, &e, None, Method::GaussSeidel, &fine).unwrap().values;
    let matrix = Matrix::open(&*disk, &path).unwrap();
    let coarse = Settings { epsilon: 1e-3, ..fine };
    let mut solving = OnDisk::start(disk.clone(), folder.path(), matrix, interest(), coarse, 1).unwrap();
    assert!(solving.importance(Scan::Power, 1000).unwrap().converged);
    assert!(solving.usefulness(Scan::Power, 1000).unwrap().converged);
    let (mut i, mut j) = (Vec::new(), Vec::new());
    let both = |important, useful| {
        i.push(important);
        j.push(useful);
    };
    solving.for_both(both).unwrap();
    assert!(distance(&i, &known_85) < 1e-3, "{:e}", distance(&i, &known_85));
    // Usefulness is of the importance there is.
    let useful_85 = usefulness(&graph, &i, &interest(), Usefulness::Average, None, Method::Power, &fine);
    let useful_85 = useful_85.unwrap().values;
    let off = distance(&j, &useful_85) / useful_85.iter().sum::<f64>();
    assert!(off < 1e-3, "{off:e}");
    for budget in [1, 1 << 30] {
        let mut solving = start(budget);
        assert!(solving.both(1000).unwrap().converged);
        check(&solving, &format!("both in {budget} bytes"));
    }
}

/// Whichever thread decodes the links that are damaged, where the damage is gets told.
#[test]
fn damage_met_on_disk_is_told_by_whichever_thread_meets_it() {
    use std::sync::Arc;

    use webbase_storage::disk::SimDisk;

    use super::on_disk::{OnDisk, Scan};
    use crate::link_matrix::{Matrix, MatrixBuilder, MatrixError};

    let (disk, path) = (Arc::new(SimDisk::new()), std::path::Path::new("/m/matrix"));
    let mut matrix = MatrixBuilder::new(disk.clone(), path, 1 << 20);
    // Both of two blocks link to both.
    let (one, two) = ([5u32, 6, 70_000], [7u32, 70_001, 70_002]);
    matrix.add(1, &one).unwrap();
    matrix.add(70_000, &two).unwrap();
    matrix.finish(Some(131_072)).unwrap();
    let mut told = Vec::new();
    let opened = Matrix::open(&*disk, path).unwrap();
    let frames = opened.tile_row(0, 0..1);
    assert!(frames.end - frames.start > 4 * 28, "four frames");
    let interest = Interest::of(131_072, |page| page % 2 == 0);
    let folder = std::path::Path::new("/m");
    let mut solving =
        OnDisk::start(disk.clone(), folder, opened, interest, Settings::default(), 1 << 30).unwrap();
    for offset in frames.step_by(5) {
        disk.flip(path, offset, 1);
        for way in 0..3 {
            let solved = match way {
                0 => solving.importance(Scan::Power, 1),
                1 => solving.usefulness(Scan::Power, 1),
                _ => solving.both(1),
            };
            match solved {
                Err(MatrixError::Corrupt { path: named, .. }) => assert_eq!(named, path),
                other => panic!("byte {offset} is wrong and that gives {other:?}"),
            }
            told.push(way);
        }
        disk.flip(path, offset, 1);
    }
    assert!(told.len() > 60 && solving.importance(Scan::Power, 1).is_ok(), "{}", told.len());
}

/// A publication is as strong as it must be to lift its pages into the top, and hardly stronger.
#[test]
fn a_publication_lifts_its_pages_as_far_as_was_asked() {
    let (pages, mut state) = (400u32, 9u64);
    let mut random = move |below: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % below
    };
    // Nobody links to the last twenty pages.
    let mut link = || {
        let low = random(pages - 20) + 1;
        (random(pages), random(low))
    };
    let links: Vec<(u32, u32)> = (0..4000).map(|_| link()).collect();
    let graph = graph(pages as usize, &links);
    let (e, settings) = (Personalisation::uniform(graph.pages()), Settings::default());
    let place =
        |values: &[f64], page: u32| values.iter().filter(|value| **value > values[page as usize]).count();
    let named = [390, 395, 399];
    let plain = plain(&graph, Method::Power);
    assert!(named.iter().all(|page| place(&plain, *page) > 80));
    let found = publish(&graph, &e, &named, 0.2, &settings).unwrap();
    assert!(found.reached && found.strength > 0.0);
    assert!(named.iter().all(|page| place(&found.importance.values, *page) < 80));
    // A little less is too little.
    let mut shares = vec![(1.0 - found.strength * 0.99) / 400.0; 400];
    named.iter().for_each(|page| shares[*page as usize] += found.strength * 0.99 / 3.0);
    let less = Personalisation::new(&shares).unwrap();
    let less = importance(&graph, &less, None, Method::Power, &settings).unwrap().values;
    assert!(named.iter().any(|page| place(&less, *page) >= 80));
    // What is there already needs nothing; more pages than there is room for cannot all be lifted.
    assert_eq!(publish(&graph, &e, &[], 0.2, &settings).unwrap().strength, 0.0);
    let top = (0..pages).min_by_key(|page| place(&plain, *page)).unwrap();
    assert_eq!(publish(&graph, &e, &[top], 0.2, &settings).unwrap().strength, 0.0);
    assert!(matches!(
        publish(&graph, &e, &[400], 0.2, &settings),
        Err(ImportanceError::Page { page: 400, .. })
    ));
    assert!(publish(&graph, &e, &[1], f64::NAN, &settings).is_err());
}

/// Fixed point `uniform`: what OPIC knows comes nearer the exact vector the longer it runs; cash is never lost.
#[test]
fn opic_comes_near_the_exact_vector() {
    let (pages, mut state) = (300u32, 5u64);
    let mut random = move |below: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % below
    };
    let mut link = || {
        let low = random(pages) + 1;
        (random(pages - 40), random(low))
    };
    let links: Vec<(u32, u32)> = (0..1500).map(|_| link()).collect();
    let graph = graph(pages as usize, &links);
    let e = Personalisation::uniform(graph.pages());
    let settings = Settings { fixed_point: FixedPoint::Spread, ..Settings::default() };
    let exact = importance(&graph, &e, None, Method::Power, &settings).unwrap().values;
    let mut errors = Vec::new();
    for greedy in [true, false] {
        let mut opic = Opic::new(e.clone(), Window::Time(200.0), &settings).unwrap();
        let mut steps = 0u32;
        for rounds in [2, 20, 200] {
            while steps < rounds * pages {
                let page = if greedy { opic.richest().unwrap() } else { random(pages) };
                // A time unit is as many readings as there are pages.
                opic.read(page, graph.links_of(page), f64::from(steps) / f64::from(pages));
                steps += 1;
            }
            assert!((opic.cash() - 1.0).abs() < 1e-9);
            errors.push(distance(&opic.importance(), &exact));
        }
    }
    eprintln!("greedy, random; after 2, 20, 200 readings a page: {errors:.4?}");
    assert!(errors[0] > errors[1] && errors[1] > errors[2] && errors[2] < 0.03, "greedy: {errors:?}");
    assert!(errors[3] > errors[4] && errors[4] > errors[5] && errors[5] < 0.1, "random: {errors:?}");
    assert!(Opic::new(e, Window::Time(0.0), &settings).is_err());
}
