//! The experiment of "Crawler-Friendly Web Servers": what metadata that sites publish is worth to a crawler.
//!
//! `crawler_friendly [--pages 10000] [--seed 1] [--http-pages 400] [--http-days 24] [--plots benches/plots]`
//!
//! First the paper's own simulation (`simulation.rs`), then the same question with real sitemaps over HTTP (`http.rs`), where a web in a
//! box is served on loopback. Each gives the paper's three plots: freshness over bandwidth, gain, bandwidth saved over freshness.

mod http;
mod simulation;

use std::path::{Path, PathBuf};

use webbase_benches::arguments::Arguments;
use webbase_benches::plot::{Axis, Plot};

/// The crawler that the others are compared with.
const CONVENTIONAL: &str = "conventional";

/// A crawler's freshness at some bandwidths.
struct Curve {
    name: &'static str,
    /// (bandwidth, freshness), by bandwidth; a bandwidth of 1 reads everything daily.
    points: Vec<(f64, f64)>,
}

impl Curve {
    /// Freshness at a bandwidth, between the two nearest.
    fn at(&self, bandwidth: f64) -> Option<f64> {
        between(self.points.iter().copied(), bandwidth)
    }

    /// The least bandwidth that keeps a freshness.
    fn needed(&self, freshness: f64) -> Option<f64> {
        // Chance makes a curve dip here and there; what counts is the first time that it gets there.
        let mut best = f64::NEG_INFINITY;
        let rising = self.points.iter().filter(|point| {
            let rises = point.1 > best;
            best = best.max(point.1);
            rises
        });
        between(rising.map(|(bandwidth, fresh)| (*fresh, *bandwidth)), freshness)
    }
}

/// y at x, on the line between the points on both sides.
fn between(points: impl Iterator<Item = (f64, f64)>, x: f64) -> Option<f64> {
    let mut before: Option<(f64, f64)> = None;
    for point in points {
        if point.0 >= x {
            return match before {
                Some(low) => Some(low.1 + (point.1 - low.1) * (x - low.0) / (point.0 - low.0)),
                None => (point.0 == x).then_some(point.1),
            };
        }
        before = Some(point);
    }
    None
}

/// The paper's three plots, and their tables.
fn report(folder: &Path, name: &str, title: &str, curves: &[Curve], bandwidths: &[f64], freshnesses: &[f64]) {
    let conventional = curves.iter().find(|curve| curve.name == CONVENTIONAL).expect("it is always there");
    let others = || curves.iter().filter(|curve| curve.name != CONVENTIONAL);
    let bandwidth = || Axis::linear("bandwidth, of what reading everything daily takes").from(0.0);
    let mut fresh = Plot::new(
        &format!("{title}: freshness over bandwidth"),
        bandwidth(),
        Axis::linear("freshness").to(1.0),
    );
    let mut gain = Plot::new(
        &format!("{title}: freshness gained over conventional"),
        bandwidth(),
        Axis::linear("gain, %"),
    );
    let mut saved = Plot::new(
        &format!("{title}: bandwidth saved over freshness"),
        Axis::linear("freshness"),
        Axis::linear("bandwidth saved, %").to(100.0),
    );
    for curve in curves {
        fresh = fresh.line(curve.name, curve.points.clone());
    }
    let gained = |curve: &Curve, at: f64| Some(100.0 * (curve.at(at)? / conventional.at(at)? - 1.0));
    let saving = |curve: &Curve, at: f64| Some(100.0 * (1.0 - curve.needed(at)? / conventional.needed(at)?));
    for curve in others() {
        let points = curve.points.iter().filter_map(|(at, _)| Some((*at, gained(curve, *at)?)));
        gain = gain.line(curve.name, points.collect());
        let points = (0..200).map(|n| f64::from(n) / 200.0).filter_map(|at| Some((at, saving(curve, at)?)));
        saved = saved.line(curve.name, points.collect());
    }
    for (plot, kind) in [(fresh, "freshness"), (gain, "gain"), (saved, "saved")] {
        plot.write(folder.join(format!("{name}-{kind}.svg"))).expect("written");
    }
    let cell =
        |value: Option<f64>, digits: usize| value.map_or("–".to_owned(), |v| format!("{v:.digits$}"));
    println!("\nfreshness (gain over conventional) at a bandwidth\n");
    println!("| crawler | {} |", bandwidths.iter().map(f64::to_string).collect::<Vec<_>>().join(" | "));
    println!("|---|{}", "---:|".repeat(bandwidths.len()));
    for curve in curves {
        let cells = bandwidths
            .iter()
            .map(|at| format!("{} ({} %)", cell(curve.at(*at), 3), cell(gained(curve, *at), 0)));
        println!("| {} | {} |", curve.name, cells.collect::<Vec<_>>().join(" | "));
    }
    println!("\nbandwidth needed (saved against conventional) for a freshness\n");
    println!(
        "| crawler | {} | most gained |",
        freshnesses.iter().map(f64::to_string).collect::<Vec<_>>().join(" | ")
    );
    println!("|---|{}---:|", "---:|".repeat(freshnesses.len()));
    for curve in curves {
        let cells = freshnesses
            .iter()
            .map(|at| format!("{} ({} %)", cell(curve.needed(*at), 3), cell(saving(curve, *at), 0)));
        let most = curve
            .points
            .iter()
            .filter_map(|(at, _)| Some((gained(curve, *at)?, *at)))
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let most = most.map_or("–".to_owned(), |(gain, at)| format!("{gain:.0} % at {at:.2}"));
        println!("| {} | {} | {most} |", curve.name, cells.collect::<Vec<_>>().join(" | "));
    }
}

fn main() {
    let arguments = Arguments::from_env();
    let seed = arguments.number("--seed", 1) as u64;
    let folder = PathBuf::from(arguments.value("--plots").unwrap_or("benches/plots"));
    let pages = arguments.number("--pages", 10_000);
    println!("### The paper's simulation: seed {seed}, {pages} pages of 4 sites, 100 days, 100 bandwidths");
    let curves = simulation::run(pages, seed);
    let (at, fresh) = ([0.02, 0.05, 0.1, 0.15, 0.22, 0.3, 0.5], [0.6, 0.7, 0.8, 0.9, 0.95, 0.999]);
    report(&folder, "crawler-friendly", "The paper's simulation", &curves, &at, &fresh);

    let pages = arguments.number("--http-pages", 400);
    let days = arguments.number("--http-days", 24) as u64;
    if pages > 0 {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
        println!("\n### Real sitemaps over HTTP: seed {seed}, {pages} pages, {days} days");
        let curves = runtime.block_on(http::run(pages, days, seed));
        let (at, fresh) = ([0.05, 0.1, 0.2, 0.4], [0.7, 0.8, 0.9]);
        report(&folder, "sitemaps-http", "Sitemaps over HTTP", &curves, &at, &fresh);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_read_in_both_directions() {
        let points = vec![(0.0, 0.2), (0.5, 0.6), (0.75, 0.5), (1.0, 1.0)];
        let curve = Curve { name: "", points };
        let near =
            |found: Option<f64>, expected: f64| found.is_some_and(|found| (found - expected).abs() < 1e-12);
        assert!(near(curve.at(0.25), 0.4) && curve.at(1.5).is_none());
        assert!(near(curve.needed(0.4), 0.25) && near(curve.needed(0.8), 0.75));
    }
}
