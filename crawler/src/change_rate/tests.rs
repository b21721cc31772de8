//! The estimators against a maximisation that shares nothing with them (a golden section over the likelihood as the papers
//! write it), and against synthetic pages whose rate is known.

use super::*;
use crate::random::Random;

/// The papers' f(x) = e^(−x·Σv)·Π(1 − e^(−c·x)) times the factors of dates, by golden section over ln x.
fn golden(unchanged: &[f64], changed: &[f64], ages: &[f64]) -> f64 {
    let ln_f = |x: f64| -> f64 {
        let v: f64 = unchanged.iter().map(|v| -x * v).sum();
        let c: f64 = changed.iter().map(|c| (1.0 - (-c * x).exp()).ln()).sum();
        let d: f64 = ages.iter().map(|l| x.ln() - x * l).sum();
        v + c + d
    };
    let ratio = (5f64.sqrt() - 1.0) / 2.0;
    let (mut a, mut b) = (-30f64, 30f64);
    for _ in 0..300 {
        let (l, r) = (b - ratio * (b - a), a + ratio * (b - a));
        if ln_f(l.exp()) > ln_f(r.exp()) { b = r } else { a = l }
    }
    ((a + b) / 2.0).exp()
}

fn close(found: f64, expected: f64, tolerance: f64) {
    assert!(((found - expected) / expected).abs() < tolerance, "{found} is not {expected}");
}

fn visit(time: f64, changed: bool, last_modified: Option<f64>) -> Visit {
    Visit { time, changed, last_modified }
}

/// A page that changes at `rate`, visited at the times given: what the crawler sees.
fn watched(random: &mut Random, rate: f64, times: &[f64], dated: bool) -> Vec<Visit> {
    let start = times[0] - 1e3 / rate;
    let mut next = start + random.exponential(rate);
    let (mut last, mut before) = (start, f64::NEG_INFINITY);
    times
        .iter()
        .map(|&time| {
            while next <= time {
                last = next;
                next += random.exponential(rate);
            }
            let changed = last > before;
            before = time;
            visit(time, changed, dated.then_some(last))
        })
        .collect()
}

fn irregular(random: &mut Random, count: usize, mean: f64) -> Vec<f64> {
    let mut at = 0.0;
    (0..count)
        .map(|_| {
            at += mean * random.log_uniform(0.1, 3.0);
            at
        })
        .collect()
}

#[test]
fn the_maximum_is_the_one_an_independent_search_finds() {
    let seed = 11;
    let mut random = Random::new(seed);
    for case in 0..200 {
        let some = |random: &mut Random, most: f64| -> Vec<f64> {
            let count = (random.fraction() * most) as usize + 1;
            (0..count).map(|_| random.log_uniform(1e-3, 1e3)).collect()
        };
        let (unchanged, changed) = (some(&mut random, 8.0), some(&mut random, 8.0));
        let ages = if case % 2 == 0 { some(&mut random, 4.0) } else { Vec::new() };
        let evidence = Evidence {
            events: ages.len() as f64,
            exposure: unchanged.iter().chain(&ages).sum(),
            changed: changed.clone(),
        };
        let found = evidence.maximum().unwrap();
        let expected = golden(&unchanged, &changed, &ages);
        // A golden section sees a maximum only to the root of the precision.
        assert!((found / expected - 1.0).abs() < 1e-5, "seed {seed} case {case}: {found} is not {expected}");
        assert!(evidence.log_likelihood(found) >= evidence.log_likelihood(expected) - 1e-12);
    }
}

#[test]
fn regular_visits_have_the_textbook_answer() {
    // 10 visits a day apart, 4 of them saw a change: −ln(6/10).
    let mut visits = vec![visit(0.0, true, None)];
    visits.extend((1..=10).map(|day| visit(f64::from(day), day % 5 < 2, None)));
    let found = estimate(&visits, Estimator::Likelihood, None).unwrap();
    assert_eq!(found.method, Method::Changes);
    close(found.rate, -(0.6f64.ln()), 1e-12);
    // With the correction −ln((n − X + 0.5)/(n + 0.5)).
    let corrected = estimate(&visits, Estimator::BiasCorrected, None).unwrap();
    close(corrected.rate, -((6.5f64 / 10.5).ln()), 1e-12);
}

#[test]
fn last_modified_counts_all_the_time_and_the_papers_do_not() {
    // First seen at 10, modified at 4; then at 12 (unchanged), 20 (modified at 15), 40 (unchanged).
    let visits = [
        visit(10.0, true, Some(4.0)),
        visit(12.0, false, Some(4.0)),
        visit(20.0, true, Some(15.0)),
        visit(40.0, false, Some(15.0)),
    ];
    let found = estimate(&visits, Estimator::Likelihood, None).unwrap();
    assert_eq!(found, Estimate { rate: 2.0 / (6.0 + 2.0 + 5.0 + 20.0), method: Method::LastModified });
    let papers = estimate(&visits, Estimator::Papers, None).unwrap();
    assert_eq!(papers.rate, 2.0 / (6.0 + 5.0));
}

#[test]
fn the_papers_formula_is_far_too_high_for_slow_pages() {
    let seed = 5;
    let mut random = Random::new(seed);
    let (rate, pages) = (0.01, 200);
    let (mut ours, mut papers) = (0.0, 0.0);
    for _ in 0..pages {
        let times: Vec<f64> = (0..1000).map(f64::from).collect();
        let visits = watched(&mut random, rate, &times, true);
        ours += estimate(&visits, Estimator::Likelihood, None).unwrap().rate / f64::from(pages);
        papers += estimate(&visits, Estimator::Papers, None).unwrap().rate / f64::from(pages);
    }
    assert!((ours / rate - 1.0).abs() < 0.25, "seed {seed}: {ours}");
    assert!(papers / rate > 4.0, "seed {seed}: {papers}");
}

#[test]
fn dates_and_changes_combine_and_lies_are_dropped() {
    let mut history = History::default();
    for v in [
        visit(0.0, false, None),
        visit(1.0, true, None),       // censored: (0, 1]
        visit(3.0, true, Some(2.5)),  // an event at 2.5, half a day behind it
        visit(5.0, true, Some(0.5)),  // says 0.5, but has changed since 3: censored (3, 5]
        visit(6.0, true, Some(99.0)), // in the future: censored (5, 6]
        visit(8.0, false, Some(7.0)), // touched, not changed
    ] {
        history.visit(v).unwrap();
    }
    let expected = Evidence { events: 1.0, exposure: 0.5 + 2.0, changed: vec![1.0, 2.0, 1.0] };
    assert_eq!(*history.evidence(), expected);
    let found = history.estimate(Estimator::Likelihood, None);
    assert_eq!(found.method, Method::Combined);
    close(found.rate, golden(&[2.0], &[1.0, 2.0, 1.0], &[0.5]), 1e-6);
}

#[test]
fn a_change_list_is_not_counted_twice() {
    let mut history = History::default();
    history.change_list(&[10.0, 12.0, 20.0], 30.0).unwrap();
    // From the first change on: two more in 20 days.
    assert_eq!(
        history.estimate(Estimator::Likelihood, None),
        Estimate { rate: 0.1, method: Method::ChangeList }
    );
    history.change_list(&[12.0, 20.0, 35.0], 40.0).unwrap();
    assert_eq!(history.estimate(Estimator::Likelihood, None).rate, 0.1);
    history.visit(visit(50.0, false, None)).unwrap();
    let found = history.estimate(Estimator::Likelihood, None);
    assert_eq!(found, Estimate { rate: 3.0 / 40.0, method: Method::Combined });
}

#[test]
fn all_or_none_changed_is_finite_and_positive() {
    let every = |changed: bool, n: u32| -> Vec<Visit> {
        (0..=n).map(|t| visit(f64::from(t), changed, None)).collect()
    };
    let all = |n| estimate(&every(true, n), Estimator::Likelihood, None).unwrap();
    let none = |n| estimate(&every(false, n), Estimator::Likelihood, None).unwrap();
    assert_eq!((all(5).method, none(5).method), (Method::Prior, Method::Prior));
    close(all(5).rate, 11f64.ln(), 1e-12); // −ln(0.5/5.5)
    close(none(5).rate, 0.1, 1e-12); // half a change in five days
    assert!(all(50).rate > all(5).rate && none(50).rate < none(5).rate);
    let prior = Prior::WEB_DAYS;
    let with = estimate(&every(false, 5), Estimator::BiasCorrected, Some(&prior)).unwrap().rate;
    close(with, 0.5 / 15.0, 1e-12);
    let dated: Vec<Visit> = (0..5).map(|t| visit(f64::from(t), true, Some(f64::from(t)))).collect();
    let at_once = estimate(&dated, Estimator::Likelihood, None).unwrap().rate;
    assert!(at_once.is_finite() && at_once > 0.0);
}

#[test]
fn nothing_seen_and_visits_out_of_order_are_defined() {
    assert_eq!(estimate(&[], Estimator::Likelihood, None).unwrap().method, Method::NoData);
    let one = estimate(&[visit(1.0, true, None)], Estimator::Likelihood, None).unwrap();
    assert_eq!(one.method, Method::NoData);
    let wrong = [visit(2.0, true, None), visit(2.0, true, None)];
    assert_eq!(estimate(&wrong, Estimator::Likelihood, None), Err(OutOfOrder { time: 2.0, before: 2.0 }));
    let no_number = [visit(2.0, true, None), visit(f64::NAN, true, None)];
    assert!(estimate(&no_number, Estimator::Likelihood, None).is_err());
}

/// Mean of estimate over truth, over pages of rates from once in 30 visits to 3 a visit.
fn bias(random: &mut Random, visits: usize, dated: bool, rate_of: impl Fn(&[Visit]) -> f64) -> f64 {
    let pages = 1500;
    let mut sum = 0.0;
    for _ in 0..pages {
        let rate = random.log_uniform(0.1, 1.5);
        let times = irregular(random, visits, 1.0);
        sum += (rate_of(&watched(random, rate, &times, dated)) / rate).ln();
    }
    (sum / f64::from(pages)).exp()
}

#[test]
fn on_poisson_pages_the_estimates_come_to_the_truth_and_the_naive_one_does_not() {
    let seed = 42;
    let by = |estimator| move |v: &[Visit]| estimate(v, estimator, None).unwrap().rate.max(1e-9);
    let fresh = || Random::new(seed);
    for dated in [false, true] {
        let ours = bias(&mut fresh(), 200, dated, by(Estimator::Likelihood));
        let corrected = bias(&mut fresh(), 200, dated, by(Estimator::BiasCorrected));
        assert!((ours - 1.0).abs() < 0.03, "seed {seed} dated {dated}: {ours}");
        assert!((corrected - 1.0).abs() < 0.03, "seed {seed} dated {dated}: {corrected}");
    }
    let naive = bias(&mut fresh(), 200, false, by(Estimator::Naive));
    assert!(naive < 0.85, "seed {seed}: {naive}");
}

#[test]
fn the_small_state_loses_little() {
    let seed = 7;
    let mut random = Random::new(seed);
    let prior = Prior { events: 0.5, exposure: 0.5, rate_min: 1e-6, rate_max: 1e6 };
    let (mut full_error, mut state_error, mut apart) = (0.0, 0.0, 0.0f64);
    let pages = 500;
    for _ in 0..pages {
        let rate = random.log_uniform(0.1, 3.0);
        let times = irregular(&mut random, 60, 1.0);
        let visits = watched(&mut random, rate, &times, false);
        let full = estimate(&visits, Estimator::BiasCorrected, Some(&prior)).unwrap().rate;
        let mut state = RateState::default();
        for pair in visits.windows(2) {
            state.visit(pair[1].time - pair[0].time, pair[1].changed, None);
        }
        let small = state.rate(&prior);
        full_error += (full / rate).ln().powi(2);
        state_error += (small / rate).ln().powi(2);
        apart += (small / full).ln().powi(2);
    }
    let root = |sum: f64| (sum / f64::from(pages)).sqrt();
    assert!(root(apart) < 0.05, "seed {seed}: {} apart", root(apart));
    assert!(
        root(state_error) < 1.03 * root(full_error),
        "seed {seed}: {} against {}",
        root(state_error),
        root(full_error)
    );
}

#[test]
fn the_small_state_forgets_and_survives_its_bytes() {
    let mut state = RateState::default();
    for _ in 0..5000 {
        state.visit(1.0, true, Some(0.5));
    }
    for _ in 0..5000 {
        state.visit(1.0, false, None);
    }
    for _ in 0..3000 {
        state.add(Seen::Dated { changes: 1, days: 10.0 });
    }
    close(state.rate(&Prior::WEB_DAYS), 0.1, 0.05);
    assert_eq!(RateState::from_bytes(state.to_bytes()), state);
    assert_eq!(RateState::from_bytes([0xff; 16]), RateState::default());
    state.visit(f64::NAN, true, None);
    state.visit(-1.0, false, None);
    assert!(state.rate(&Prior::WEB_DAYS).is_finite());
    assert_eq!(RateState::default().rate(&Prior::WEB_DAYS), 0.05);
}
