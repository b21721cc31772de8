//! Estimators of change rates against the truth, over the number of visits: bias, error, and what is lost by keeping 16 bytes a page.
//!
//! `change_rates [--pages 20000] [--seed 11] [--plots benches/plots]`. Pages change as a Poisson process does; they are visited once a day
//! on average, at irregular times (0.2 to 1.8 days apart). Every estimator sees the same visits, once with nothing but "changed or not",
//! once with Last-Modified. *Bias* is the mean of estimate/truth, 1 at best; *error* the root of the mean square of estimate/truth − 1, 0 at
//! best. A factor beside them is the median of how far off an estimate is, either way.

use std::path::Path;

use webbase_benches::arguments::Arguments;
use webbase_benches::corpus::Random;
use webbase_benches::measure::median;
use webbase_benches::plot::{Axis, Plot};
use webbase_crawler::change_rate::{Estimator, History, Prior, RateState, Visit};

/// Changes a day.
const RATES: [f64; 3] = [0.1, 0.5, 2.0];
const VISITS: [usize; 8] = [2, 4, 8, 16, 32, 64, 128, 256];
const KINDS: [&str; 8] = [
    "naive",
    "likelihood",
    "corrected",
    "16 bytes",
    "papers' C/Σl",
    "likelihood, dated",
    "corrected, dated",
    "16 bytes, dated",
];

/// What one estimator made of all pages, after so many visits.
#[derive(Default)]
struct Score {
    ratios: Vec<f64>,
}

impl Score {
    fn bias(&self) -> f64 {
        self.ratios.iter().sum::<f64>() / self.ratios.len() as f64
    }

    fn error(&self) -> f64 {
        let squares: f64 = self.ratios.iter().map(|ratio| (ratio - 1.0).powi(2)).sum();
        (squares / self.ratios.len() as f64).sqrt()
    }

    /// The middle of how many times too high or too low; an estimate of 0 is infinitely too low.
    fn factor(&self) -> f64 {
        median(self.ratios.iter().map(|ratio| ratio.max(1.0 / ratio)))
    }
}

fn fraction(random: &mut Random) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

fn exponential(random: &mut Random, rate: f64) -> f64 {
    -(1.0 - fraction(random)).ln() / rate
}

/// What everybody makes of a page's first visits, the number of them by `VISITS`; and how far the 16 bytes are from the whole
/// history, as a logarithm, without and with dates.
fn page(rate: f64, random: &mut Random, mut each: impl FnMut(usize, [f64; KINDS.len()], [f64; 2])) {
    let (prior, mut plain, mut dated) = (Prior::WEB_DAYS, History::default(), History::default());
    let (mut state, mut dated_state) = (RateState::default(), RateState::default());
    // The last change before the first visit, and the next one after it.
    let (mut last, mut next) = (-exponential(random, rate), exponential(random, rate));
    let mut time = 0.0;
    for visit in 1..=VISITS[VISITS.len() - 1] {
        let before = time;
        if visit > 1 {
            time += 0.2 + 1.6 * fraction(random);
        }
        let mut changed = false;
        while next <= time {
            (last, changed) = (next, true);
            next += exponential(random, rate);
        }
        let seen = Visit { time, changed, last_modified: None };
        plain.visit(seen).expect("in order");
        dated.visit(Visit { last_modified: Some(last), ..seen }).expect("in order");
        if visit > 1 {
            state.visit(time - before, changed, None);
            dated_state.visit(time - before, changed, Some(time - last));
        }
        if let Some(place) = VISITS.iter().position(|count| *count == visit) {
            let of = |history: &History, estimator| history.estimate(estimator, Some(&prior)).rate;
            let rates = [
                of(&plain, Estimator::Naive),
                of(&plain, Estimator::Likelihood),
                of(&plain, Estimator::BiasCorrected),
                state.rate(&prior),
                of(&dated, Estimator::Papers),
                of(&dated, Estimator::Likelihood),
                of(&dated, Estimator::BiasCorrected),
                dated_state.rate(&prior),
            ];
            // The whole history keeps to no limits of its own.
            let whole = |rate: f64| prior.clamp(rate);
            each(place, rates, [(rates[3] / whole(rates[2])).ln(), (rates[7] / whole(rates[6])).ln()]);
        }
    }
}

fn main() {
    let arguments = Arguments::from_env();
    let (pages, seed) = (arguments.number("--pages", 20_000), arguments.number("--seed", 11) as u64);
    let folder = Path::new(arguments.value("--plots").unwrap_or("benches/plots"));
    println!(
        "{pages} pages for each rate, seed {seed}; mean of estimate/truth ± root mean square of what it is off (median factor)"
    );
    for rate in RATES {
        let mut random = Random(seed);
        let mut scores: Vec<Vec<Score>> =
            VISITS.iter().map(|_| KINDS.iter().map(|_| Score::default()).collect()).collect();
        let mut lost = vec![[0.0; 2]; VISITS.len()];
        for _ in 0..pages {
            page(rate, &mut random, |place, rates, off| {
                for (score, found) in scores[place].iter_mut().zip(rates) {
                    score.ratios.push(found / rate);
                }
                lost[place].iter_mut().zip(off).for_each(|(lost, off)| *lost += off * off);
            });
        }
        println!("\n#### {rate} changes a day, a visit a day\n");
        println!("| visits | {} | 16 bytes off the whole, without and with dates |", KINDS.join(" | "));
        println!("|---:|{}", "---:|".repeat(KINDS.len() + 1));
        for ((visits, scores), lost) in VISITS.iter().zip(&scores).zip(&lost) {
            let cell =
                |score: &Score| format!("{:.2} ± {:.2} ({:.2})", score.bias(), score.error(), score.factor());
            let cells: Vec<String> = scores.iter().map(cell).collect();
            let root = |sum: f64| 100.0 * (sum / pages as f64).sqrt();
            println!("| {visits} | {} | {:.1} %, {:.1} % |", cells.join(" | "), root(lost[0]), root(lost[1]));
        }
        let lines = |of: fn(&Score) -> f64, mut plot: Plot| {
            for (kind, name) in KINDS.iter().enumerate() {
                let points =
                    VISITS.iter().zip(&scores).map(|(visits, scores)| (*visits as f64, of(&scores[kind])));
                let points = points.collect();
                // With and without dates side by side.
                plot = if kind >= 4 { plot.dashed(name, points) } else { plot.line(name, points) };
            }
            plot
        };
        let visits = || Axis::log("visits, one a day");
        let bias =
            Plot::new(&format!("bias, {rate} changes a day"), visits(), Axis::log("mean of estimate/truth"));
        let error = Plot::new(
            &format!("error, {rate} changes a day"),
            visits(),
            Axis::log("root mean square of estimate/truth − 1"),
        );
        lines(Score::bias, bias).write(folder.join(format!("change-rates-bias-{rate}.svg"))).expect("a plot");
        lines(Score::error, error)
            .write(folder.join(format!("change-rates-error-{rate}.svg")))
            .expect("a plot");
    }
}
