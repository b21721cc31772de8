//! What changes: repairs of an exact vector, and OPIC on a web that does not stay the same.

use super::*;

/// After a batch of changes a repair comes to the vector that computing again comes to, for both fixed points, batch after batch, and
/// looks at fewer links where it may.
#[test]
fn a_repair_comes_to_what_computing_again_comes_to() {
    let (pages, seed) = (4000u32, 23u64);
    let mut random = crate::random::Random::new(seed);
    let mut below = move |below: u32| (random.fraction() * f64::from(below)) as u32;
    let mut rows: Vec<Vec<u32>> = (0..pages)
        .map(|page| {
            let links = if page % 9 == 4 { 0 } else { below(8) + 1 };
            (0..links)
                .map(|_| if below(10) < 8 { (page + below(60)) % pages } else { below(pages) })
                .collect()
        })
        .collect();
    let built = |rows: &[Vec<u32>]| {
        let links: Vec<(u32, u32)> =
            (0u32..).zip(rows).flat_map(|(page, row)| row.iter().map(move |link| (page, *link))).collect();
        graph(pages as usize, &links)
    };
    let e = Personalisation::uniform(pages as usize);
    for fixed_point in [FixedPoint::Renormalised, FixedPoint::Spread] {
        let settings = Settings { fixed_point, epsilon: 1e-11, ..Settings::default() };
        let solve =
            |graph: &Graph| importance(graph, &e, None, Method::GaussSeidel, &settings).unwrap().values;
        let mut old = built(&rows);
        let mut exact = Exact::new(&old, &e, &solve(&old), &settings).unwrap();
        for batch in 0..4 {
            // Some pages gain and lose links, one loses all, one gets its first.
            for page in [7 + batch * 900, 333, 4 + batch * 9] {
                let row = &mut rows[page as usize];
                if row.is_empty() {
                    row.push(below(pages))
                } else {
                    row.truncate(row.len() / 2)
                }
                if page == 333 && batch < 2 {
                    row.extend([below(pages), below(pages)]);
                }
            }
            let new = built(&rows);
            let touched = (0..pages).filter(|page| old.links_of(*page) != new.links_of(*page));
            let before: Vec<Before> =
                touched.map(|page| Before { page, links: old.links_of(page).to_vec() }).collect();
            let done = exact.repair(&new, &before, &settings).unwrap();
            let off = distance(&exact.importance(), &solve(&new));
            assert!(
                off < 1e-9 && !done.again,
                "seed {seed}: {fixed_point:?}, batch {batch}: {off:e}, {done:?}"
            );
            // To less accuracy it looks at less.
            let mut hasty = Exact::new(&old, &e, &solve(&old), &settings).unwrap();
            let less = hasty.repair(&new, &before, &Settings { epsilon: 1e-4, ..settings }).unwrap();
            assert!(less.links < done.links / 3, "seed {seed}: {less:?} against {done:?}");
            old = new;
        }
        assert_eq!(exact.repair(&old, &[], &settings).unwrap().pages, 0, "nothing changed, nothing to do");
        let other = graph(3, &[]);
        assert!(matches!(exact.repair(&other, &[], &settings), Err(ImportanceError::Length { .. })));
        let beyond = Before { page: pages, links: Vec::new() };
        assert!(matches!(exact.repair(&old, &[beyond], &settings), Err(ImportanceError::Page { .. })));
    }
}

/// A graph that grows is repaired, too: new pages, links to them and from them, for both fixed points and for an E that knows nothing of them.
#[test]
fn a_repair_takes_new_pages() {
    let (known, pages, seed) = (3000u32, 3200u32, 41u64);
    let mut random = crate::random::Random::new(seed);
    let mut below = move |below: u32| (random.fraction() * f64::from(below)) as u32;
    let mut links: Vec<(u32, u32)> = Vec::new();
    for page in (0..known).filter(|page| page % 7 != 2) {
        links.extend(
            (0..6).map(|_| (page, if below(10) < 8 { (page + below(40)) % known } else { below(known) })),
        );
    }
    let old = graph(known as usize, &links);
    // Some old pages link to new ones; of the new ones most have links, and some nobody links to.
    let touched: Vec<u32> = (0..known).filter(|page| page % 300 == 5).collect();
    links.extend(touched.iter().map(|page| (*page, known + below(pages - known))));
    for page in (known..pages).filter(|page| page % 3 > 0) {
        links.extend((0..4).map(|_| (page, below(pages))));
    }
    let new = graph(pages as usize, &links);
    let before: Vec<Before> =
        touched.iter().map(|page| Before { page: *page, links: old.links_of(*page).to_vec() }).collect();
    let weights: Vec<f64> = (0..known).map(|page| f64::from(1 + page % 5)).collect();
    let given = Personalisation::new(&weights).unwrap();
    let mut grown = weights.clone();
    grown.resize(pages as usize, 0.0);
    let given_after = Personalisation::new(&grown).unwrap();
    let uniform = (Personalisation::uniform(known as usize), Personalisation::uniform(pages as usize));
    for fixed_point in [FixedPoint::Renormalised, FixedPoint::Spread] {
        let settings = Settings { fixed_point, epsilon: 1e-11, ..Settings::default() };
        for (e, e_after) in [&uniform, &(given.clone(), given_after.clone())] {
            let solve = |graph: &Graph, e: &Personalisation| {
                importance(graph, e, None, Method::GaussSeidel, &settings).unwrap().values
            };
            let mut exact = Exact::new(&old, e, &solve(&old, e), &settings).unwrap();
            let done = exact.repair(&new, &before, &settings).unwrap();
            let off = distance(&exact.importance(), &solve(&new, e_after));
            assert!(off < 1e-9 && !done.again, "seed {seed}: {fixed_point:?}: {off:e}, {done:?}");
            // And it is as good as new for the next batch.
            assert_eq!(exact.repair(&new, &[], &settings).unwrap().pages, 0);
            assert!(matches!(exact.repair(&old, &[], &settings), Err(ImportanceError::Length { .. })));
        }
    }
}

/// A page that links to nothing but itself from now on holds on to more than small steps can bring there: that is noticed.
#[test]
fn a_repair_that_small_steps_do_not_reach_computes_again() {
    let links: Vec<(u32, u32)> =
        (0..200).filter(|page| page % 3 == 0).map(|page| (page, (page * 7 + 1) % 200)).collect();
    let (old, e, settings) = (graph(200, &links), Personalisation::uniform(200), Settings::default());
    let known = importance(&old, &e, None, Method::Power, &settings).unwrap().values;
    let mut exact = Exact::new(&old, &e, &known, &settings).unwrap();
    let mut links = links;
    links.push((1, 1));
    let new = graph(200, &links);
    let done = exact.repair(&new, &[Before { page: 1, links: Vec::new() }], &settings).unwrap();
    let expected = importance(&new, &e, None, Method::Power, &settings).unwrap().values;
    let off = distance(&exact.importance(), &expected);
    assert!(off < 1e-8, "{off:e}, {done:?}");
}

/// Where λ is below c, sweeps lead nowhere, and a line through them to a solution with values below 0: that must not be taken for one.
#[test]
fn a_repair_does_not_end_with_values_below_nothing() {
    let mut links: Vec<(u32, u32)> =
        (0..700).filter(|page| page % 7 != 6).map(|page| (page, page + 1)).collect();
    let (old, e) = (graph(700, &links), Personalisation::uniform(700));
    let settings = Settings { epsilon: 1e-9, ..Settings::default() };
    let known = importance(&old, &e, None, Method::Power, &settings).unwrap().values;
    let mut exact = Exact::new(&old, &e, &known, &settings).unwrap();
    links.push((6, 6));
    let new = graph(700, &links);
    let done = exact.repair(&new, &[Before { page: 6, links: Vec::new() }], &settings).unwrap();
    let expected = importance(&new, &e, None, Method::Power, &settings).unwrap().values;
    let off = distance(&exact.importance(), &expected);
    assert!(off < 1e-7 && expected[6] > 0.2, "{off:e}, {done:?}");
}

/// Batch after batch the residual that is kept stays what is left over; pages that are named twice, a hub that alone has something to pass
/// on, more new pages than old ones, and no pages at all make no difference.
#[test]
fn a_repair_keeps_what_is_left_over_for_the_next() {
    let (pages, seed) = (900u32, 57u64);
    let mut random = crate::random::Random::new(seed);
    let mut below = move |below: u32| (random.fraction() * f64::from(below)) as u32;
    let mut rows: Vec<Vec<u32>> =
        (0..pages).map(|page| (0..page % 5).map(|_| below(pages)).collect()).collect();
    rows[17] = (0..pages).collect();
    let built = |rows: &[Vec<u32>], pages: u32| {
        let links: Vec<(u32, u32)> =
            (0u32..).zip(rows).flat_map(|(page, row)| row.iter().map(move |link| (page, *link))).collect();
        graph(pages as usize, &links)
    };
    let e = Personalisation::uniform(pages as usize);
    for fixed_point in [FixedPoint::Renormalised, FixedPoint::Spread] {
        let settings = Settings { fixed_point, epsilon: 1e-12, ..Settings::default() };
        let solve = |graph: &Graph| {
            let e = Personalisation::uniform(graph.pages());
            importance(graph, &e, None, Method::GaussSeidel, &settings).unwrap().values
        };
        let mut old = built(&rows, pages);
        let mut exact = Exact::new(&old, &e, &solve(&old), &settings).unwrap();
        for batch in 0..60 {
            let page = [17, below(pages)][batch % 2];
            rows[page as usize] = (0..below(pages) / (1 + page)).map(|_| below(pages)).collect();
            let new = built(&rows, pages);
            let one = Before { page, links: old.links_of(page).to_vec() };
            exact.repair(&new, &[one, Before { page, links: vec![3, 4] }], &settings).unwrap();
            old = new;
        }
        let off = distance(&exact.importance(), &solve(&old));
        assert!(off < 1e-11, "seed {seed}, {fixed_point:?}: {off:e}");
        let larger = built(&rows, 2 * pages);
        assert!(exact.repair(&larger, &[], &settings).unwrap().again, "z is of half the pages");
        let off = distance(&exact.importance(), &solve(&larger));
        assert!(off < 1e-11, "seed {seed}, {fixed_point:?}, grown: {off:e}");
    }
    let (none, e, settings) = (Graph::default(), Personalisation::uniform(0), Settings::default());
    let mut exact = Exact::new(&none, &e, &[], &settings).unwrap();
    exact.repair(&none, &[], &settings).unwrap();
    assert!(exact.importance().is_empty());
}

/// On a web that changes, the adaptive window is near the exact vector before the change like a long window, and after it like a short one.
#[test]
fn an_adaptive_window_is_long_on_a_calm_web_and_short_after_a_change() {
    let (pages, seed) = (300u32, 31u64);
    let settings = Settings { fixed_point: FixedPoint::Spread, ..Settings::default() };
    let e = Personalisation::uniform(pages as usize);
    let web = |seed: u64| {
        let mut random = crate::random::Random::new(seed);
        let mut below = move |below: u32| (random.fraction() * f64::from(below)) as u32;
        let links: Vec<(u32, u32)> = (0..2000)
            .map(|_| {
                let low = below(pages) + 1;
                (below(pages - 40), below(low))
            })
            .collect();
        graph(pages as usize, &links)
    };
    // The second web links to the other end of the pages.
    let calm = web(seed);
    let mut links = Vec::new();
    for page in 0..pages {
        links.extend(calm.links_of(page).iter().map(|link| (page, pages - 1 - link)));
    }
    let changed = graph(pages as usize, &links);
    let exact = |graph: &Graph| importance(graph, &e, None, Method::GaussSeidel, &settings).unwrap().values;
    let (before, after) = (exact(&calm), exact(&changed));
    let errors = |window: Window| {
        let mut random = crate::random::Random::new(seed);
        let mut opic = Opic::new(e.clone(), window, &settings).unwrap();
        let mut found = Vec::new();
        for reading in 0..110 * pages {
            let (graph, truth) = if reading < 80 * pages { (&calm, &before) } else { (&changed, &after) };
            let page = (random.fraction() * f64::from(pages)) as u32;
            opic.read(page, graph.links_of(page), f64::from(reading) / f64::from(pages));
            if [80 * pages, 110 * pages].contains(&(reading + 1)) {
                found.push(distance(&opic.importance(), truth));
            }
        }
        assert!((opic.cash() - 1.0).abs() < 1e-9);
        found
    };
    let (short, long) = (errors(Window::Time(6.0)), errors(Window::Time(80.0)));
    let adaptive = errors(Window::Adaptive);
    eprintln!("seed {seed}: short {short:.3?}, long {long:.3?}, adaptive {adaptive:.3?}");
    assert!(adaptive[0] < short[0] * 0.7, "calm: {adaptive:?} against the short window's {short:?}");
    assert!(adaptive[1] < long[1] * 0.7, "after the change: {adaptive:?} against the long window's {long:?}");
}

/// A page with much importance loses all that link to it, and E gives it nothing: it ends with nothing, and not with less, so that whoever goes on from there can.
#[test]
fn a_page_that_loses_all_links_to_it_ends_with_nothing() {
    let pages = 400u32;
    let mut random = crate::random::Random::new(5);
    let mut below = |below: u32| (random.fraction() * f64::from(below)) as u32;
    let mut links: Vec<(u32, u32)> = Vec::new();
    for page in 1..pages {
        links.extend((0..4).map(|_| (page, 1 + below(pages - 1))));
        links.push((page, 0));
    }
    links.push((0, 7));
    let new_links: Vec<(u32, u32)> = links.iter().copied().filter(|(_, to)| *to != 0).collect();
    let (old, new) = (graph(pages as usize, &links), graph(pages as usize, &new_links));
    let weights: Vec<f64> = (0..pages).map(|page| f64::from(u8::from(page > 0))).collect();
    let e = Personalisation::new(&weights).unwrap();
    let before: Vec<Before> =
        (0..pages).map(|page| Before { page, links: old.links_of(page).to_vec() }).collect();
    for epsilon in [1e-2, 1e-4, 1e-6, 1e-8] {
        let settings = Settings { epsilon, ..Settings::default() };
        let known = importance(&old, &e, None, Method::GaussSeidel, &settings).unwrap().values;
        let mut exact = Exact::new(&old, &e, &known, &settings).unwrap();
        exact.repair(&new, &before, &settings).unwrap();
        let found = exact.importance();
        assert!(found.iter().all(|value| *value >= 0.0), "{epsilon:e}: {:?}", found.first());
        assert!(importance(&new, &e, Some(&found), Method::Power, &settings).is_ok());
    }
}
