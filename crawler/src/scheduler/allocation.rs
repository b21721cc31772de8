//! Sharing a bandwidth out among pages: the price at which they want just as many reads as there are.
//!
//! Every page's frequency lies between a floor (the longest wait) and a cap (once a cycle), and the frequencies of a host's
//! pages sum to no more than the host allows. A host that would get too much has a price of its own, above the common one;
//! what caps and hosts leave over goes to the others, since the common price falls until the budget is used up.

use super::policy::Policy;

/// What a page asks for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Demand {
    /// Its weight w: how much its being current is worth. Finite, not negative.
    pub weight: f64,
    /// Its change rate λ. Finite, not negative.
    pub rate: f64,
    /// The host it is on, as a number of the caller's; `None` for one that no limit holds for.
    pub host: Option<u32>,
}

/// What no allocation goes beyond. Everything in the unit of the change rates.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Limits {
    /// No page is read more than once in this time.
    pub cycle: Option<f64>,
    /// Every page is read at least once in this time, if the budget can do it at all.
    pub longest_wait: Option<f64>,
    /// No host is read from more often than this.
    pub host_frequency_max: Option<f64>,
}

/// A bandwidth, shared out.
#[derive(Clone, PartialEq, Debug)]
pub struct Allocation {
    /// How often each page is read, in the order given.
    pub frequencies: Vec<f64>,
    /// The price of a read; 0 if there is more bandwidth than the pages can use.
    pub price: f64,
    /// The sum of the frequencies: the budget, or less if caps, hosts or pages that never change leave some over.
    pub spent: f64,
}

/// Prices between which one is looked for.
const PRICE_LOW: f64 = 1e-280;
const PRICE_HIGH: f64 = 1e280;
const STEPS_MAX: usize = 400;

/// Shares `budget` out.
pub fn allocate(policy: &impl Policy, demands: &[Demand], budget: f64, limits: &Limits) -> Allocation {
    let cap = limits.cycle.map_or(f64::INFINITY, |t| 1.0 / t);
    let count = demands.len() as f64;
    let floor = floor_of(limits, cap, budget, count);
    let mut pages: Vec<Page> =
        demands.iter().map(|&demand| Page { demand, count: 1.0, price_min: 0.0, floor, cap }).collect();
    if let Some(most) = limits.host_frequency_max {
        bound_hosts(policy, &mut pages, most);
    }
    if budget <= 0.0 {
        return Allocation { frequencies: vec![0.0; demands.len()], price: f64::INFINITY, spent: 0.0 };
    }
    let (price, frequencies) = solve(policy, &pages, budget);
    let spent = sum(frequencies.iter().copied());
    Allocation { frequencies, price, spent }
}

/// The price at which groups of like pages (a page of each, and how many) use `budget` up; 0 if they cannot.
pub(super) fn price(policy: &impl Policy, groups: &[(Demand, f64)], budget: f64, limits: &Limits) -> f64 {
    if budget <= 0.0 {
        return f64::INFINITY;
    }
    let cap = limits.cycle.map_or(f64::INFINITY, |t| 1.0 / t);
    let floor = floor_of(limits, cap, budget, groups.iter().map(|(_, count)| count).sum());
    let page = |&(demand, count): &(Demand, f64)| Page { demand, count, price_min: 0.0, floor, cap };
    let pages: Vec<Page> = groups.iter().map(page).collect();
    solve(policy, &pages, budget).0
}

/// The longest wait as a frequency, as far as the budget goes.
fn floor_of(limits: &Limits, cap: f64, budget: f64, count: f64) -> f64 {
    limits.longest_wait.map_or(0.0, |t| 1.0 / t).min(cap).min(budget / count.max(1.0))
}

struct Page {
    demand: Demand,
    /// How many pages are like it.
    count: f64,
    /// Its host's price, if that is higher than the common one.
    price_min: f64,
    floor: f64,
    cap: f64,
}

impl Page {
    fn frequency(&self, policy: &impl Policy, price: f64) -> f64 {
        let price = price.max(self.price_min);
        let wanted = if price > 0.0 {
            policy.frequency(self.demand.weight, self.demand.rate, price)
        } else {
            // For nothing a page takes all it may, if it wants any at all.
            let wants = policy.frequency(self.demand.weight, self.demand.rate, PRICE_LOW) > 0.0;
            if wants { self.cap } else { 0.0 }
        };
        wanted.min(self.cap).max(self.floor)
    }
}

/// The price at which the pages want `budget` reads, and how often each is read then.
fn solve(policy: &impl Policy, pages: &[Page], budget: f64) -> (f64, Vec<f64>) {
    let at = |price: f64| -> Vec<f64> { pages.iter().map(|page| page.frequency(policy, price)).collect() };
    let Some((low, high)) = bracket(policy, pages, budget) else {
        return (0.0, at(0.0));
    };
    let wanted = |each: &[f64]| sum(each.iter().zip(pages).map(|(f, page)| f * page.count));
    // Both ends are the price, up to its last digits. Where they differ by more (a page whose w/λ is just the price goes from
    // a few reads to none within a rounding), what lies between them uses the budget up and keeps every bound that both keep.
    let (mut more, less) = (at(low), at(high));
    let (most, least) = (wanted(&more), wanted(&less));
    // An end that has come to the solution is the price, wherever the other one stayed.
    let price = if most - budget < budget - least { low } else { high };
    let share = if most > least { ((budget - least) / (most - least)).clamp(0.0, 1.0) } else { 1.0 };
    for (f, less) in more.iter_mut().zip(less) {
        *f = less + (*f - less) * share;
    }
    (price, more)
}

/// Two prices between which the pages want `budget` reads, as close as numbers get; `None` if they want less at any.
fn bracket(policy: &impl Policy, pages: &[Page], budget: f64) -> Option<(f64, f64)> {
    let wanted = |price: f64| sum(pages.iter().map(|page| page.count * page.frequency(policy, price)));
    let excess = |ln_price: f64| wanted(ln_price.exp()) / budget;
    if wanted(PRICE_LOW) < budget {
        return None;
    }
    // A bracket around 1, widened in ever larger steps, since prices of real weights lie near it on this scale.
    let (mut low, mut high, mut step) = (0.0f64, 0.0f64, 4.0f64);
    while high < PRICE_HIGH.ln() && excess(high) > 1.0 {
        low = high;
        high += step;
        step *= 2.0;
    }
    step = 4.0;
    while low > PRICE_LOW.ln() && excess(low) <= 1.0 {
        high = low;
        low -= step;
        step *= 2.0;
    }
    low = low.max(PRICE_LOW.ln());
    high = high.min(PRICE_HIGH.ln());
    // In logarithms the demand is close to a straight line: regula falsi, halving the weight of an end that stays.
    let (mut at_low, mut at_high) = (excess(low).ln(), excess(high).ln());
    let mut side = 0i8;
    for step in 0..STEPS_MAX {
        if high - low <= 4e-16 * low.abs().max(1.0) {
            break;
        }
        let straight = (low * at_high - high * at_low) / (at_high - at_low);
        let middle = (low + high) / 2.0;
        // Every fourth step halves the bracket, whatever the curve looks like.
        let inside = straight > low && straight < high && step % 4 != 3;
        let at = if inside { straight } else { middle };
        let value = excess(at).ln();
        if value > 0.0 {
            (low, at_low) = (at, value);
            if side == 1 {
                at_high /= 2.0;
            }
            side = 1;
        } else {
            (high, at_high) = (at, value);
            if side == -1 {
                at_low /= 2.0;
            }
            side = -1;
        }
        if value.abs() < 1e-14 {
            break;
        }
    }
    Some((low.exp(), high.exp()))
}

/// Gives every host that could be asked for more than `most` the price at which it is not.
fn bound_hosts(policy: &impl Policy, pages: &mut [Page], most: f64) {
    let mut order: Vec<(u32, usize)> =
        pages.iter().enumerate().filter_map(|(at, page)| Some((page.demand.host?, at))).collect();
    order.sort_unstable();
    for group in order.chunk_by(|a, b| a.0 == b.0) {
        let mut together: Vec<Page> = Vec::with_capacity(group.len());
        for (_, at) in group {
            if let Some(page) = pages.get_mut(*at) {
                page.floor = page.floor.min(most / group.len() as f64);
                page.cap = page.cap.min(most);
                together.push(Page { ..*page });
            }
        }
        let (price, alone) = solve(policy, &together, most);
        for ((_, at), most) in group.iter().zip(alone) {
            if let Some(page) = pages.get_mut(*at) {
                page.price_min = price;
                page.cap = page.cap.min(most);
                page.floor = page.floor.min(most);
            }
        }
    }
}

/// A sum that keeps what rounding loses (Neumaier).
fn sum(terms: impl Iterator<Item = f64>) -> f64 {
    let (mut total, mut lost) = (0.0f64, 0.0f64);
    for term in terms {
        let next = total + term;
        if next.is_finite() {
            lost += if total.abs() >= term.abs() { (total - next) + term } else { (term - next) + total };
        }
        total = next;
    }
    total + lost
}
