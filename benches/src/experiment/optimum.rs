//! The best that any frequencies could do, by a solver that shares nothing with the scheduler's: plain halving of intervals.
//!
//! Freshness Σ w·F(λ, f) and obsolescence Σ w·C(λ, f) are sums over pages of functions whose slope in f falls all the way. At the
//! optimum all pages that are read, and not at their cap, have the same slope; the lower the slope, the more reads. So: halve for the
//! slope at which the reads add up to the budget, and within it halve for every page's f. Slow, and obviously right.

use webbase_crawler::scheduler::ALPHA;

const HALVINGS: usize = 64;

/// The most mean freshness, weighted, that `budget` reads a day can keep, and how often each page is read then.
pub fn best_freshness(weights: &[f64], rates: &[f64], budget: f64, cap: f64) -> (f64, Vec<f64>) {
    // F = (f/λ)(1 − e^(−λ/f)); its slope is (1/λ)(1 − e^(−r)(1 + r)), r = λ/f.
    let slope = |page: usize, f: f64| {
        let (w, rate) = (weights[page], rates[page]);
        let r = rate / f;
        if rate > 0.0 { w / rate * (1.0 - (-r).exp() * (1.0 + r)) } else { 0.0 }
    };
    let frequencies = share(weights.len(), budget, cap, slope);
    let fresh = |page: usize| match (rates[page], frequencies[page]) {
        (rate, _) if rate <= 0.0 => 1.0,
        (_, f) if f <= 0.0 => 0.0,
        (rate, f) => f / rate * (1.0 - (-rate / f).exp()),
    };
    let all: f64 = weights.iter().sum();
    ((0..weights.len()).map(|page| weights[page] * fresh(page)).sum::<f64>() / all, frequencies)
}

/// The least mean obsolescence w·(λt)^α that `budget` reads a day can keep, and how often each page is read then.
pub fn least_cost(weights: &[f64], rates: &[f64], budget: f64, cap: f64) -> (f64, Vec<f64>) {
    let part = |page: usize| weights[page] * rates[page].powf(ALPHA) / (ALPHA + 1.0);
    let frequencies = share(weights.len(), budget, cap, |page, f| ALPHA * part(page) * f.powf(-ALPHA - 1.0));
    let cost = |page: usize| part(page) * frequencies[page].powf(-ALPHA);
    let paying = (0..weights.len()).filter(|page| part(*page) > 0.0);
    (paying.map(cost).sum::<f64>() / weights.len() as f64, frequencies)
}

/// Frequencies of one slope that add up to the budget.
fn share(pages: usize, budget: f64, cap: f64, slope: impl Fn(usize, f64) -> f64) -> Vec<f64> {
    let (least, most) = (1e-9f64.ln(), cap.ln());
    let at = |wanted: f64| -> Vec<f64> {
        (0..pages)
            .map(|page| {
                if slope(page, least.exp()) <= wanted {
                    return 0.0;
                }
                halve(least, most, |ln_f| slope(page, ln_f.exp()) > wanted)
            })
            .collect()
    };
    let slope = halve(-80.0, 80.0, |ln_slope| at(ln_slope.exp()).iter().sum::<f64>() > budget);
    at(slope)
}

/// e to the place where `more` turns from true to false.
fn halve(mut low: f64, mut high: f64, more: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        if more(middle) { low = middle } else { high = middle }
    }
    low.exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_gains_by_giving_a_read_to_another() {
        let (weights, rates) = ([1.0, 3.0, 0.5, 2.0], [0.1, 2.0, 40.0, 0.0]);
        let (fresh, at) = best_freshness(&weights, &rates, 1.5, 4.0);
        assert!((at.iter().sum::<f64>() - 1.5).abs() < 1e-9 && at[3] == 0.0, "{at:?}");
        let value = |at: &[f64]| {
            let one = |n: usize| {
                if rates[n] == 0.0 {
                    1.0
                } else {
                    at[n].max(1e-12) / rates[n] * (1.0 - (-rates[n] / at[n].max(1e-12)).exp())
                }
            };
            (0..4).map(|n| weights[n] * one(n)).sum::<f64>() / 6.5
        };
        assert!((value(&at) - fresh).abs() < 1e-9);
        for (from, to) in [(0, 1), (1, 0), (0, 2), (1, 2), (0, 3)] {
            let mut other = at.clone();
            let moved = other[from].min(0.01);
            other[from] -= moved;
            other[to] += moved;
            assert!(value(&other) <= fresh + 1e-12, "{from} to {to}: {other:?} is better than {at:?}");
        }
        // The papers' formula, where no cap binds.
        let (_, at) = least_cost(&weights, &rates, 1.5, 1e9);
        let root = |n: usize| (weights[n] * rates[n].powf(ALPHA)).powf(1.0 / (ALPHA + 1.0));
        let s: f64 = (0..4).map(root).sum();
        (0..4).for_each(|n| assert!((at[n] - 1.5 * root(n) / s).abs() < 1e-6, "{at:?}"));
    }
}
