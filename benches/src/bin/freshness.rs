//! How fresh the scheduler's policies keep a web in a box, at several budgets, with true and with estimated change rates.
//!
//! `freshness [--pages 10000] [--seed 1] [--days 240] [--warm-up 120] [--prior-changes 0.5] [--prior-days 10] [--plots benches/plots]`
//!
//! Tables go to stdout: weighted freshness, age, obsolescence, waits, and how well G was kept; then how estimated change rates compare
//! with the true ones. Plots go to the folder.

use std::path::PathBuf;

use rayon::prelude::*;
use webbase_benches::arguments::Arguments;
use webbase_benches::experiment::{
    Crawler, Rates, Run, Sample, Setup, Truth, Web, best_freshness, least_cost,
};
use webbase_benches::measure::median;
use webbase_benches::plot::{Axis, Plot};
use webbase_crawler::change_rate::{Estimator, History, Prior, RateState, Visit};
use webbase_crawler::scheduler::{ALPHA, BuiltIn, Settings};
use webbase_web_in_a_box::{Plan, World};

const BEGAN_MS: u64 = 1_700_000_000_000;
/// Reads a day, as a share of the pages, and what they are called.
const BUDGETS: [(&str, f64); 3] = [("scarce", 0.03), ("middle", 0.15), ("rich", 0.75)];
/// Budgets of the curve.
const CURVE: [f64; 9] = [0.01, 0.02, 0.03, 0.06, 0.15, 0.3, 0.75, 1.5, 3.0];

struct Policy {
    name: &'static str,
    settings: Settings,
}

/// The five policies with nobody's wait limited, and what is used where nothing else is said.
fn policies(bandwidth: f64) -> Vec<Policy> {
    let base = Settings { bandwidth, discovery_xml: 0.0, discovery_html: 0.0, ..Settings::default() };
    let plain = |policy: BuiltIn| Policy {
        name: policy.name(),
        settings: Settings { policy, longest_wait_days: None, ..base.clone() },
    };
    let mut all: Vec<Policy> = BuiltIn::ALL.into_iter().map(plain).collect();
    all.push(Policy { name: "default", settings: base });
    all
}

struct Done {
    budget: f64,
    policy: &'static str,
    given: bool,
    run: Run,
}

fn main() {
    let arguments = Arguments::from_env();
    let pages = arguments.number("--pages", 10_000);
    let seed = arguments.number("--seed", 1) as u64;
    let days = arguments.number("--days", 240) as f64;
    let warm_up = arguments.number("--warm-up", 120) as f64;
    let folder = PathBuf::from(arguments.value("--plots").unwrap_or("benches/plots"));
    let given = |name: &str, default: f64| {
        arguments.value(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let prior = Prior {
        events: given("--prior-changes", Prior::WEB_DAYS.events),
        exposure: given("--prior-days", Prior::WEB_DAYS.exposure),
        ..Prior::WEB_DAYS
    };
    let world = World::planned(Plan { site_scale: 4, ..Plan::new(seed, pages, BEGAN_MS) }.eternal());
    let truth = Truth::of(&world, days);
    let changes: f64 = truth.rates().iter().sum();
    println!(
        "seed {seed}, {pages} pages of {} sites, {:.2} changes a page and day; scored from day {warm_up} to {days}\n",
        world.sites(),
        changes / pages as f64
    );

    let mut jobs = Vec::new();
    for share in CURVE {
        let budget = share * pages as f64;
        for policy in policies(budget) {
            jobs.push((share, policy, false));
        }
        for policy in policies(budget) {
            jobs.push((share, policy, true));
        }
    }
    let done: Vec<Done> = jobs
        .into_par_iter()
        .map(|(budget, policy, given)| {
            let rates = if given { Rates::Given(truth.rates().to_vec()) } else { Rates::Estimated };
            let setup = Setup { settings: policy.settings, rates, prior, warm_up, days };
            Done { budget, policy: policy.name, given, run: Crawler::run(&truth, &setup) }
        })
        .collect();
    let find = |budget: f64, policy: &str, given: bool| {
        let found =
            done.iter().find(|one| one.budget == budget && one.policy == policy && one.given == given);
        &found.expect("a run of every policy").run
    };
    let cap = 1.0 / Settings::default().cycle_days();
    let best: Vec<(f64, f64, f64)> = CURVE
        .par_iter()
        .map(|share| {
            let budget = share * pages as f64;
            let fresh = best_freshness(truth.weights(), truth.rates(), budget, cap).0;
            (*share, fresh, least_cost(truth.weights(), truth.rates(), budget, cap).0)
        })
        .collect();
    let best_of = |share: f64| best.iter().find(|one| one.0 == share).expect("a budget of the curve");

    for (name, share) in BUDGETS {
        let (_, fresh, cost) = *best_of(share);
        println!(
            "### {name}: {share} reads a page and day\n\noptimum of freshness {fresh:.4}, of obsolescence {cost:.4} (solver of its own)\n"
        );
        println!(
            "| policy | rates | freshness | of optimum | every page alike | age, days | obsolescence | of optimum | longest wait, days | of 99 % | G kept within |"
        );
        println!("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
        for given in [true, false] {
            for policy in policies(1.0) {
                let run = find(share, policy.name, given);
                let score = &run.score;
                println!(
                    "| {} | {} | {:.4} | {:.3} | {:.4} | {:.2} | {:.4} | {:.3} | {:.1} | {:.1} | {:.2} % |",
                    policy.name,
                    if given { "true" } else { "estimated" },
                    score.mean.freshness,
                    score.mean.freshness / fresh,
                    score.freshness_plain,
                    score.mean.age,
                    score.mean.cost,
                    score.mean.cost / cost,
                    score.longest_wait,
                    score.wait_99,
                    100.0 * off_budget(run, share * pages as f64, warm_up)
                );
            }
        }
        println!();
        for given in [true, false] {
            over_time(&folder, name, given, &|policy| find(share, policy, given), (fresh, cost));
        }
    }

    println!("### Freshness over budget\n\n| reads a page and day | optimum | {} |", names().join(" | "));
    println!("|---:|---:|{}", "---:|".repeat(names().len()));
    for given in [true, false] {
        for (share, fresh, _) in &best {
            let cells: Vec<String> = names()
                .iter()
                .map(|name| format!("{:.4}", find(*share, name, given).score.mean.freshness))
                .collect();
            let rates = if given { "true" } else { "estimated" };
            println!("| {share} ({rates}) | {fresh:.4} | {} |", cells.join(" | "));
        }
        let rates = if given { "true" } else { "estimated" };
        let mut plot = Plot::new(
            &format!("Freshness over budget, {rates} change rates"),
            Axis::log("reads a page and day"),
            Axis::linear("freshness, weighted").from(0.0).to(1.0),
        );
        for name in names() {
            let points = CURVE.iter().map(|share| (*share, find(*share, name, given).score.mean.freshness));
            plot = plot.line(name, points.collect());
        }
        plot = plot.dashed("optimum", best.iter().map(|(share, fresh, _)| (*share, *fresh)).collect());
        plot.write(folder.join(format!("freshness-over-budget-{rates}.svg"))).expect("written");
    }
    println!();
    longest_waits(&world, prior);
    rates_of_runs(&folder, &truth, &|policy| find(0.15, policy, false));
    estimators(&truth, days, prior);
}

fn names() -> Vec<&'static str> {
    policies(1.0).into_iter().map(|policy| policy.name).collect()
}

/// What a longest wait costs, by what it may take of the refreshes: the default policy with estimated rates, long enough for waits to show.
fn longest_waits(world: &World, prior: Prior) {
    const DAYS: f64 = 480.0;
    let truth = Truth::of(world, DAYS);
    let pages = truth.pages() as f64;
    println!(
        "### What the longest wait costs, estimated rates, {DAYS} days scored from day {}\n",
        DAYS / 2.0
    );
    println!(
        "| budget | policy | longest wait, days | its share | freshness | every page alike | age, days | longest seen, days | of 99 % |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|---:|");
    let mut jobs = Vec::new();
    for (name, share) in BUDGETS {
        let base = Settings {
            bandwidth: share * pages,
            discovery_xml: 0.0,
            discovery_html: 0.0,
            ..Settings::default()
        };
        let with = |wait: Option<f64>, part: f64| Settings {
            longest_wait_days: wait,
            longest_wait_share: part,
            ..base.clone()
        };
        let lambda = Settings { policy: BuiltIn::Lambda, ..with(None, 0.0) };
        for settings in [
            with(None, 0.0),
            with(Some(90.0), 0.05),
            with(Some(90.0), 0.1),
            with(Some(90.0), 0.2),
            with(Some(90.0), 0.5),
            with(Some(30.0), 0.1),
            lambda,
        ] {
            jobs.push((name, settings));
        }
    }
    let rows: Vec<String> = jobs
        .into_par_iter()
        .map(|(name, settings)| {
            let wait = settings.longest_wait_days.map_or("none".to_owned(), |days| days.to_string());
            let (policy, part) = (settings.policy.name(), settings.longest_wait_share);
            let setup = Setup { settings, rates: Rates::Estimated, prior, warm_up: DAYS / 2.0, days: DAYS };
            let score = Crawler::run(&truth, &setup).score;
            format!(
                "| {name} | {policy} | {wait} | {part} | {:.4} | {:.4} | {:.2} | {:.1} | {:.1} |",
                score.mean.freshness,
                score.freshness_plain,
                score.mean.age,
                score.longest_wait,
                score.wait_99
            )
        })
        .collect();
    println!("{}\n", rows.join("\n"));
}

/// How far a cycle's reads were from G, at most, after the warm-up.
fn off_budget(run: &Run, budget: f64, warm_up: f64) -> f64 {
    let cycle = Settings::default().cycle_days();
    let after = (warm_up / cycle) as usize;
    let off = run.reads[after..].iter().map(|reads| (*reads as f64 / (budget * cycle) - 1.0).abs());
    off.fold(0.0, f64::max)
}

fn over_time<'a>(
    folder: &std::path::Path,
    budget: &str,
    given: bool,
    run: &dyn Fn(&str) -> &'a Run,
    best: (f64, f64),
) {
    type Of = fn(&Sample) -> f64;
    let rates = if given { "true" } else { "estimated" };
    let measures: [(&str, &str, Of, Option<f64>); 3] = [
        ("freshness", "freshness, weighted", |sample| sample.freshness, Some(best.0)),
        ("age", "age, days, weighted", |sample| sample.age, None),
        ("obsolescence", "obsolescence w·(λt)^0.95, mean", |sample| sample.cost, Some(best.1)),
    ];
    for (name, label, of, best) in measures {
        let y = if name == "freshness" { Axis::linear(label).to(1.0) } else { Axis::log(label) };
        let title = format!("{} over time, {budget} budget, {rates} change rates", capital(name));
        let mut plot = Plot::new(&title, Axis::linear("day").from(0.0), y);
        let mut end = 0.0;
        for policy in names() {
            let days = &run(policy).days;
            end = days.last().map_or(0.0, |(day, _)| *day);
            plot = plot.line(policy, days.iter().skip(1).map(|(day, sample)| (*day, of(sample))).collect());
        }
        if let Some(best) = best {
            plot = plot.dashed("optimum", vec![(0.0, best), (end, best)]);
        }
        plot.write(folder.join(format!("{name}-{budget}-{rates}.svg"))).expect("written");
    }
}

fn capital(text: &str) -> String {
    let (first, rest) = text.split_at(1);
    first.to_uppercase() + rest
}

/// True rates by classes: more than daily, more than monthly, the rest.
const CLASSES: [(&str, f64, f64); 3] =
    [("λ ≥ 0.5", 0.5, f64::INFINITY), ("0.01 ≤ λ < 0.5", 0.01, 0.5), ("λ < 0.01", 0.0, 0.01)];

/// The median of estimate/truth, and of the factor that an estimate is off by, in whichever direction.
fn compare(pairs: impl Iterator<Item = (f64, f64)> + Clone) -> String {
    let ratio = |(truth, found): (f64, f64)| found / truth;
    let off = |pair: (f64, f64)| ratio(pair).max(1.0 / ratio(pair));
    if pairs.clone().next().is_none() {
        return "– | –".to_owned();
    }
    format!("{:.2} | {:.2}", median(pairs.clone().map(ratio)), median(pairs.map(off)))
}

fn rates_of_runs<'a>(folder: &std::path::Path, truth: &Truth, run: &dyn Fn(&str) -> &'a Run) {
    println!(
        "### Change rates as runs know them at their end, middle budget: estimate/truth, and the factor it is off by (medians)\n"
    );
    println!("| run | {} |", CLASSES.map(|(name, ..)| format!("{name}: ratio | off")).join(" | "));
    println!("|---|{}", "---:|---:|".repeat(CLASSES.len()));
    for policy in names() {
        let found = &run(policy).rates;
        let cells = CLASSES.map(|(_, low, high)| {
            let all = truth.rates().iter().copied().zip(found.iter().copied());
            compare(all.filter(|(rate, _)| (low..high).contains(rate)))
        });
        println!("| {policy} | {} |", cells.join(" | "));
    }
    println!();
    let found = &run("default").rates;
    let mut plot = Plot::new(
        "Change rates: estimated over true (default policy, middle budget)",
        Axis::log("true, changes a day").from(1e-4).to(10.0),
        Axis::log("estimated, changes a day").from(1e-4).to(100.0),
    );
    for (name, tells) in [("with dates", true), ("without dates", false)] {
        let all = (0..truth.pages()).filter(|page| truth.tells_date(*page) == tells);
        let points: Vec<(f64, f64)> = all.map(|page| (truth.rates()[page], found[page])).collect();
        let every = (points.len() / 900).max(1);
        plot = plot.scatter(name, points.into_iter().step_by(every).collect());
    }
    plot = plot.dashed("truth", vec![(1e-4, 1e-4), (10.0, 10.0)]);
    plot.write(folder.join("change-rates.svg")).expect("written");
}

/// All estimators on the same visits: every page every three days.
fn estimators(truth: &Truth, days: f64, prior: Prior) {
    const EVERY: f64 = 3.0;
    let web = Web::new(truth);
    println!(
        "### Estimators on the same visits, every {EVERY} days for {days} days: estimate/truth, and the factor it is off by (medians)\n"
    );
    println!(
        "| estimator | dates | {} |",
        CLASSES.map(|(name, ..)| format!("{name}: ratio | off")).join(" | ")
    );
    println!("|---|---|{}", "---:|---:|".repeat(CLASSES.len()));
    for tells in [true, false] {
        let of_kind: Vec<usize> =
            (0..truth.pages()).filter(|page| truth.tells_date(*page) == tells).collect();
        let mut found: [Vec<(f64, f64)>; 5] = Default::default();
        for page in of_kind {
            let (mut history, mut state) = (History::default(), RateState::default());
            let mut before = None;
            let mut day = 0.01 + EVERY * (page as f64 * 0.618).fract();
            while day < days {
                let answer = web.read(page, day);
                let changed = before.is_some_and(|(_, signature)| signature != answer.signature);
                history
                    .visit(Visit { time: day, changed, last_modified: answer.modified })
                    .expect("in order");
                if let Some((at, _)) = before {
                    state.visit(day - at, changed, answer.modified.map(|modified| day - modified));
                }
                before = Some((day, answer.signature));
                day += EVERY;
            }
            let rate = truth.rates()[page];
            let full = |estimator, prior: Option<&Prior>| history.estimate(estimator, prior).rate;
            let estimates = [
                state.rate(&prior),
                full(Estimator::Likelihood, Some(&prior)),
                full(Estimator::BiasCorrected, Some(&prior)),
                full(Estimator::Papers, Some(&prior)),
                full(Estimator::Naive, None).max(1e-6),
            ];
            found.iter_mut().zip(estimates).for_each(|(list, estimate)| list.push((rate, estimate)));
        }
        let names = ["16 bytes (used)", "likelihood", "bias-corrected", "papers' C/Σl", "changes/time"];
        for (name, pairs) in names.iter().zip(&found) {
            let cells = CLASSES.map(|(_, low, high)| {
                compare(pairs.iter().copied().filter(|(rate, _)| (low..high).contains(rate)))
            });
            println!("| {name} | {} | {} |", if tells { "told" } else { "none" }, cells.join(" | "));
        }
    }
    println!("\n(α of obsolescence {ALPHA}; prior: {} changes in {} days)", prior.events, prior.exposure);
}
