//! Allocations against a solver that shares nothing with them: many small portions of the budget, each given to the page that
//! gains most by it (optimal for separable concave gains, up to the size of a portion).

use std::collections::BinaryHeap;

use super::policy::{freshness, obsolescence};
use super::*;
use crate::random::Random;

fn demands(seed: u64, count: usize) -> Vec<Demand> {
    let mut random = Random::new(seed);
    (0..count)
        .map(|_| Demand {
            weight: random.log_uniform(1e-3, 10.0),
            rate: random.log_uniform(1e-3, 10.0),
            host: Some((random.fraction() * 7.0) as u32),
        })
        .collect()
}

#[derive(PartialEq)]
struct Bid(f64, usize);
impl Eq for Bid {}
impl PartialOrd for Bid {
    fn partial_cmp(&self, other: &Bid) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Bid {
    fn cmp(&self, other: &Bid) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Greedy portions: `value(page, f)` is what a page is worth at a frequency.
fn greedy(demands: &[Demand], budget: f64, portions: usize, value: impl Fn(&Demand, f64) -> f64) -> Vec<f64> {
    let portion = budget / portions as f64;
    let gain = |at: usize, f: f64| value(&demands[at], f + portion) - value(&demands[at], f);
    let mut frequencies = vec![0.0; demands.len()];
    let mut heap: BinaryHeap<Bid> = (0..demands.len()).map(|at| Bid(gain(at, 0.0), at)).collect();
    for _ in 0..portions {
        let Bid(_, at) = heap.pop().unwrap();
        frequencies[at] += portion;
        heap.push(Bid(gain(at, frequencies[at]), at));
    }
    frequencies
}

fn total(demands: &[Demand], frequencies: &[f64], value: impl Fn(&Demand, f64) -> f64) -> f64 {
    demands.iter().zip(frequencies).map(|(demand, f)| value(demand, *f)).sum()
}

const BUDGETS: [f64; 3] = [20.0, 200.0, 2000.0];

#[test]
fn crawl_value_has_the_best_freshness() {
    let pages = demands(1, 400);
    let fresh = |d: &Demand, f: f64| d.weight * freshness(d.rate, f);
    for budget in BUDGETS {
        let ours = allocate(&BuiltIn::CrawlValue, &pages, budget, &Limits::default());
        let best = total(&pages, &greedy(&pages, budget, 200_000, fresh), fresh);
        let found = total(&pages, &ours.frequencies, fresh);
        assert!((found / best - 1.0).abs() < 1e-3, "budget {budget}: {found} against {best}");
        for other in BuiltIn::ALL {
            let theirs = allocate(&other, &pages, budget, &Limits::default());
            assert!(total(&pages, &theirs.frequencies, fresh) <= found * (1.0 + 1e-12), "{}", other.name());
        }
    }
}

#[test]
fn xyleme_has_the_least_obsolescence_and_is_the_papers_formula() {
    let pages = demands(2, 300);
    let cost = |d: &Demand, f: f64| obsolescence(d.weight, d.rate, f, ALPHA);
    for budget in BUDGETS {
        let ours = allocate(&BuiltIn::Xyleme { alpha: ALPHA }, &pages, budget, &Limits::default());
        // Obsolescence is infinite at 0: the greedy solver starts everybody at a sliver.
        let sliver = budget * 1e-6;
        let value = |d: &Demand, f: f64| -cost(d, f + sliver);
        let best = total(&pages, &greedy(&pages, budget, 400_000, value), cost);
        let found = total(&pages, &ours.frequencies, cost);
        assert!(found <= best * 1.0001, "budget {budget}: {found} against {best}");
        assert!((found / best - 1.0).abs() < 0.01, "budget {budget}: {found} against {best}");
        let root = |d: &Demand| (d.weight * d.rate.powf(ALPHA)).powf(1.0 / (ALPHA + 1.0));
        let s: f64 = pages.iter().map(root).sum();
        for (demand, f) in pages.iter().zip(&ours.frequencies) {
            assert!((f / (budget / s * root(demand)) - 1.0).abs() < 1e-9);
        }
    }
}

#[test]
fn lambda_is_its_formula_and_starves_nobody() {
    let pages = demands(3, 300);
    for budget in BUDGETS {
        let ours = allocate(&BuiltIn::Lambda, &pages, budget, &Limits::default());
        for (d, f) in pages.iter().zip(&ours.frequencies) {
            let formula = (-d.rate + (d.rate * d.rate + 4.0 * d.weight * d.rate / ours.price).sqrt()) / 2.0;
            assert!(*f > 0.0 && (f - formula).abs() < 1e-9 * formula.max(d.rate), "{f} is not {formula}");
        }
        let starved = allocate(&BuiltIn::CrawlValue, &pages, 20.0, &Limits::default());
        assert!(starved.frequencies.contains(&0.0));
    }
}

#[test]
fn budgets_are_used_exactly_within_cap_floor_and_hosts() {
    let pages = demands(4, 1000);
    for policy in BuiltIn::ALL {
        for budget in BUDGETS {
            for (cycle, longest_wait, host) in [
                (None, None, None),
                (Some(0.3), None, None),
                (Some(0.3), Some(60.0), None),
                (None, None, Some(budget / 6.0)),
                (Some(0.3), Some(60.0), Some(budget / 6.5)),
            ] {
                let limits = Limits { cycle, longest_wait, host_frequency_max: host };
                let found = allocate(&policy, &pages, budget, &limits);
                let name = policy.name();
                let spent: f64 = found.frequencies.iter().sum();
                assert!((spent / budget - 1.0).abs() < 1e-9, "{name} {budget} {limits:?}: {spent}");
                let cap = cycle.map_or(f64::INFINITY, |t| 1.0 / t);
                let floor = longest_wait.map_or(0.0, |t: f64| (1.0 / t).min(budget / 1000.0));
                let mut hosts = [0.0; 7];
                for (page, f) in pages.iter().zip(&found.frequencies) {
                    assert!(*f <= cap * (1.0 + 1e-12) && *f >= floor * (1.0 - 1e-12), "{name} {budget}: {f}");
                    hosts[page.host.unwrap() as usize] += f;
                }
                let most = host.unwrap_or(f64::INFINITY) * (1.0 + 1e-9);
                assert!(hosts.iter().all(|h| *h <= most), "{name} {budget} {limits:?}: {hosts:?}");
            }
        }
    }
}

#[test]
fn a_bound_host_costs_least_by_a_price_of_its_own() {
    // Against greedy portions that skip a host once it is full.
    let pages = demands(5, 200);
    let (budget, most) = (300.0, 30.0);
    let fresh = |d: &Demand, f: f64| d.weight * freshness(d.rate, f);
    let limits = Limits { host_frequency_max: Some(most), ..Limits::default() };
    let ours = allocate(&BuiltIn::CrawlValue, &pages, budget, &limits);
    let portion = 0.002;
    let mut hosts = [0.0; 7];
    let mut frequencies = vec![0.0; pages.len()];
    let gain = |at: usize, f: f64| fresh(&pages[at], f + portion) - fresh(&pages[at], f);
    let mut heap: BinaryHeap<Bid> = (0..pages.len()).map(|at| Bid(gain(at, 0.0), at)).collect();
    let mut left = budget;
    while left > 0.0 {
        let Some(Bid(_, at)) = heap.pop() else { break };
        let host = pages[at].host.unwrap() as usize;
        if hosts[host] + portion > most {
            continue;
        }
        hosts[host] += portion;
        frequencies[at] += portion;
        left -= portion;
        heap.push(Bid(gain(at, frequencies[at]), at));
    }
    let (found, best) = (total(&pages, &ours.frequencies, fresh), total(&pages, &frequencies, fresh));
    assert!((found / best - 1.0).abs() < 2e-3, "{found} against {best}");
}

#[test]
fn what_cannot_be_spent_is_left() {
    let page = |weight, rate| Demand { weight, rate, host: None };
    let capped = Limits { cycle: Some(2.0), ..Limits::default() };
    let pages = [page(1.0, 1.0), page(2.0, 0.5), page(1.0, 0.0), page(0.0, 1.0)];
    for policy in [BuiltIn::Xyleme { alpha: ALPHA }, BuiltIn::CrawlValue, BuiltIn::Lambda] {
        let found = allocate(&policy, &pages, 100.0, &capped);
        assert_eq!(found.frequencies, [0.5, 0.5, 0.0, 0.0], "{}", policy.name());
        assert_eq!(found.price, 0.0);
    }
    assert_eq!(allocate(&BuiltIn::Uniform, &pages, 100.0, &capped).spent, 2.0);
    let still = [page(1.0, 0.0); 3];
    for policy in BuiltIn::ALL {
        assert_eq!(allocate(&policy, &[], 5.0, &Limits::default()).spent, 0.0);
        let found = allocate(&policy, &still, 6.0, &Limits::default());
        let expected = if policy == BuiltIn::Uniform { 6.0 } else { 0.0 };
        assert_eq!(found.spent, expected, "{}", policy.name());
        assert_eq!(allocate(&policy, &pages, 0.0, &Limits::default()).spent, 0.0);
    }
    // One read for everybody: what the cap leaves over goes to those it does not bind.
    let shared = allocate(
        &BuiltIn::Proportional,
        &[page(1.0, 9.0), page(1.0, 1.0)],
        1.0,
        &Limits { cycle: Some(2.0), ..Limits::default() },
    );
    assert!((shared.frequencies[0] - 0.5).abs() < 1e-12 && (shared.frequencies[1] - 0.5).abs() < 1e-12);
}

#[test]
fn extreme_weights_and_rates_still_add_up() {
    let mut random = Random::new(9);
    let pages: Vec<Demand> = (0..500)
        .map(|_| Demand {
            weight: random.log_uniform(1e-30, 1e30),
            rate: random.log_uniform(1e-12, 1e12),
            host: None,
        })
        .collect();
    for policy in BuiltIn::ALL {
        let found = allocate(&policy, &pages, 42.0, &Limits::default());
        assert!((found.spent / 42.0 - 1.0).abs() < 1e-9, "{}: {}", policy.name(), found.spent);
        assert!(found.frequencies.iter().all(|f| f.is_finite() && *f >= 0.0));
    }
}

const DAY_S: u32 = 86_400;
const START_S: u32 = 20_000 * DAY_S;

fn running(policy: BuiltIn, pages: &[Demand], bandwidth: f64) -> Scheduler {
    let settings = Settings {
        bandwidth,
        cycle_s: DAY_S / 4,
        discovery_xml: 0.0,
        discovery_html: 0.0,
        policy,
        longest_wait_days: None,
        ..Settings::default()
    };
    let mut scheduler = Scheduler::new(settings).unwrap();
    let mut random = Random::new(17);
    for page in pages {
        let ago = (random.fraction() * 40.0 * f64::from(DAY_S)) as u32;
        scheduler.add(HotPage::read(Kind::Html, START_S - ago, page.weight, page.rate));
    }
    scheduler
}

/// Runs cycles, everything planned being read; says how often each page was, a day.
fn run(
    scheduler: &mut Scheduler,
    cycles: u32,
    from: u32,
    mut plan: impl FnMut(&Scheduler, u32) -> Plan,
) -> Vec<f64> {
    let cycle_s = scheduler.settings().cycle_s;
    let mut reads = vec![0.0; scheduler.len()];
    for cycle in from..from + cycles {
        let now = START_S + cycle * cycle_s;
        let plan = plan(scheduler, now);
        scheduler.issue(&plan);
        for page in plan.pages() {
            let hot = *scheduler.page(page).unwrap();
            scheduler.read(page, now, hot.kind(), hot.rate());
            reads[page as usize] += 1.0;
        }
    }
    let days = f64::from(cycles) * f64::from(cycle_s) / f64::from(DAY_S);
    reads.iter().map(|count| count / days).collect()
}

#[test]
fn the_bandwidth_is_kept_and_frequencies_come_out_as_allocated() {
    // Nobody so slow that it is not read many times.
    let mut pages = demands(21, 3000);
    pages.iter_mut().for_each(|page| page.rate = page.rate.max(0.05));
    for policy in BuiltIn::ALL {
        let bandwidth = 700.0;
        let mut scheduler = running(policy, &pages, bandwidth);
        let plans = |s: &Scheduler, now: u32| {
            let plan = s.plan(now);
            let share = plan.len() as f64 / (bandwidth / 4.0);
            assert!((share - 1.0).abs() < 0.02, "{}: {} reads", policy.name(), plan.len());
            plan
        };
        run(&mut scheduler, 400, 0, plans);
        let found = run(&mut scheduler, 1600, 400, plans);
        let weights = scheduler.factors()[0];
        let scaled: Vec<Demand> = pages.iter().map(|d| Demand { weight: d.weight * weights, ..*d }).collect();
        let limits = Limits { cycle: Some(0.25), ..Limits::default() };
        let allocated = allocate(&policy, &scaled, bandwidth, &limits).frequencies;
        let apart: f64 = found.iter().zip(&allocated).map(|(a, b)| (a - b).abs()).sum();
        assert!(apart / bandwidth < 0.15, "{}: {apart}", policy.name());
        let value = |fs: &[f64]| -> f64 {
            let one = |(d, f): (&Demand, &f64)| d.weight * freshness(d.rate, *f);
            pages.iter().zip(fs).map(one).sum()
        };
        // A period is a whole number of cycles, which costs the policies that read some pages every few of them.
        let tolerance = match policy {
            BuiltIn::CrawlValue => 0.02,
            BuiltIn::Proportional => 0.15,
            _ => 0.06,
        };
        let share = value(&found) / value(&allocated);
        assert!((share - 1.0).abs() < tolerance, "{}: {share}", policy.name());
        // The price found in bins is the price found page by page.
        let exact = allocate(&policy, &scaled, bandwidth, &limits).price;
        let (binned, _) = scheduler.prices();
        assert!((binned / exact - 1.0).abs() < 0.03, "{}: {binned} against {exact}", policy.name());
    }
}

#[test]
fn folders_read_what_the_scan_reads() {
    let pages = demands(22, 2000);
    let policy = BuiltIn::Xyleme { alpha: ALPHA };
    let bandwidth = 600.0;
    let mut by_scan = running(policy, &pages, bandwidth);
    let mut by_folder = by_scan.clone();
    let scan = run(&mut by_scan, 1200, 0, Scheduler::plan);
    let mut calendar = Calendar::default();
    calendar.fill(&by_folder, START_S);
    let mut before = Plan::default();
    let mut then = START_S;
    let folders = run(&mut by_folder, 1200, 0, |s, now| {
        calendar.put_back(s, &before, then);
        before = calendar.plan(s, now);
        then = now;
        before.clone()
    });
    let total: f64 = folders.iter().sum();
    assert!((total / bandwidth - 1.0).abs() < 0.02, "{total}");
    let apart: f64 = scan.iter().zip(&folders).map(|(a, b)| (a - b).abs()).sum();
    assert!(apart / bandwidth < 0.1, "{apart}");
    assert_eq!(calendar.len() + before.len(), pages.len());
}

#[test]
fn s_is_kept_up_to_date() {
    let mut scheduler = running(BuiltIn::Xyleme { alpha: ALPHA }, &demands(23, 500), 100.0);
    let mut random = Random::new(3);
    for _ in 0..5000 {
        let page = (random.fraction() * 500.0) as u32;
        match (random.fraction() * 8.0) as u32 {
            0 => scheduler.set_rate(page, random.log_uniform(1e-3, 10.0)),
            1 => scheduler.set_weight(page, random.log_uniform(1e-3, 10.0)),
            2 => scheduler.read(page, START_S, Kind::Xml, random.fraction()),
            3 => scheduler.gone(page, START_S),
            4 => scheduler.publish(page, Publication::FixedRefresh(0.5)),
            5 => scheduler.publish(page, Publication::None),
            6 => scheduler.want(page),
            _ => scheduler.failed(page, START_S),
        }
    }
    let mut fixed = 0.0;
    for kind in Kind::ALL {
        let of_kind = (0..500).map(|p| scheduler.page(p).unwrap()).filter(|p| p.kind() == kind);
        let (mut s, mut count) = (0.0, 0.0);
        for page in of_kind {
            match page.publication() {
                Publication::FixedRefresh(f) if kind != Kind::Dead => fixed += f,
                Publication::Never | Publication::FixedRefresh(_) => {}
                _ if kind == Kind::Dead => {}
                _ => {
                    s += (page.weight() * page.rate().powf(ALPHA)).powf(1.0 / (ALPHA + 1.0));
                    count += 1.0;
                }
            }
        }
        let sums = scheduler.sums(kind);
        assert_eq!(sums.count, count, "{kind:?}");
        assert!((sums.roots - s).abs() < 1e-6 * s.max(1.0), "{kind:?}: {} is not {s}", sums.roots);
    }
    let settings = scheduler.settings();
    assert!((scheduler.refresh_bandwidth() - (settings.bandwidth - fixed).max(0.0)).abs() < 1e-6);
}

#[test]
fn the_first_cycle_is_all_discovery_and_the_most_important_come_first() {
    let settings = Settings { bandwidth: 400.0, longest_wait_days: None, ..Settings::default() };
    let mut scheduler = Scheduler::new(settings).unwrap();
    for n in 0..1000u32 {
        scheduler.add(HotPage::unread(f64::from(n), n % 4 == 0, 0.1));
    }
    // 100 a cycle; 20 and 20 are reserved, the rest has nothing else to do, and XML suspects are first served.
    let plan = scheduler.plan(START_S);
    assert_eq!(plan.len(), 100);
    assert_eq!(plan.discovery_xml.len() + plan.discovery_html.len(), 100);
    assert_eq!(&plan.discovery_xml[..3], [996, 992, 988]);
    assert_eq!(&plan.discovery_html[..4], [999, 998, 997, 995]);
    scheduler.issue(&plan);
    for page in plan.pages() {
        scheduler.read(page, START_S, Kind::Html, 5.0);
    }
    // Six hours later: 20 + 20 first reads, and 60 refreshes.
    let plan = scheduler.plan(START_S + 6 * 3600);
    assert_eq!((plan.discovery_xml.len(), plan.discovery_html.len(), plan.refresh.len()), (20, 20, 60));
    // Nobody twice in a cycle: an hour later nothing that was read can be refreshed.
    assert!(scheduler.plan(START_S + 3600).refresh.is_empty());
}

#[test]
fn published_expired_returned_and_gone_pages() {
    let pages: Vec<Demand> = (0..100).map(|_| Demand { weight: 1.0, rate: 1.0, host: None }).collect();
    let mut s = running(BuiltIn::Xyleme { alpha: ALPHA }, &pages, 80.0);
    s.publish(1, Publication::Never);
    s.publish(2, Publication::FixedRefresh(1.0));
    s.publish(3, Publication::ChangeRate(50.0));
    s.set_rate(3, 0.001);
    assert_eq!(s.page(3).unwrap().rate(), 50.0);
    s.want(4);
    s.expired(5);
    for _ in 0..3 {
        s.gone(6, START_S - 30 * DAY_S);
    }
    assert_eq!(s.page(6).unwrap().kind(), Kind::Dead);
    let plan = s.plan(START_S);
    assert_eq!(
        (plan.wanted.as_slice(), plan.expired.as_slice(), plan.fixed.as_slice()),
        (&[4][..], &[5][..], &[2][..])
    );
    assert!(!plan.pages().any(|page| page == 1 || page == 6));
    assert_eq!(plan.len(), 20);
    s.issue(&plan);
    let first = plan.refresh[0];
    assert!(!s.plan(START_S).pages().any(|page| page == first || page == 4));
    s.returned(first);
    assert_eq!(s.plan(START_S).refresh[0], first);
    for (page, reason) in [(1, Reason::Never), (6, Reason::Dead), (4, Reason::Issued), (3, Reason::Cycle)] {
        s.returned(3);
        assert_eq!(s.explain(page).unwrap().reason, reason, "page {page}");
    }
    s.want(6);
    assert_eq!(s.plan(START_S).wanted, [6]);
    s.unchanged_says_site(first, START_S);
    assert!(!s.plan(START_S + 3600).pages().any(|page| page == first));
    assert!(s.explain(1000).is_none());
}

#[test]
fn nobody_waits_longer_than_the_longest_wait() {
    // Pages that change so often that no read keeps them fresh: crawl-value starves them.
    let mut pages = demands(31, 500);
    pages.extend((0..300).map(|_| Demand { weight: 1e-4, rate: 30.0, host: None }));
    let settings_of = |wait: Option<f64>| {
        let mut scheduler = running(BuiltIn::CrawlValue, &pages, 100.0);
        let settings =
            Settings { longest_wait_days: wait, longest_wait_share: 0.5, ..scheduler.settings().clone() };
        scheduler.set(settings).unwrap();
        let reads = run(&mut scheduler, 800, 0, Scheduler::plan);
        let now = START_S + 800 * DAY_S / 4;
        let longest =
            (0..scheduler.len() as u32).map(|p| now - scheduler.page(p).unwrap().last_read_s().unwrap());
        (longest.max().unwrap() / DAY_S, reads)
    };
    let (without, _) = settings_of(None);
    let (with, _) = settings_of(Some(30.0));
    assert!(without >= 200, "{without} days");
    assert!(with <= 31, "{with} days");
}

#[test]
fn the_longest_wait_takes_no_more_than_its_share() {
    // Most pages are starved by their change rate: one turn of all of them in 20 days would take the whole bandwidth.
    let mut pages = demands(32, 500);
    pages.extend((0..1500).map(|_| Demand { weight: 1e-4, rate: 30.0, host: None }));
    let mut scheduler = running(BuiltIn::CrawlValue, &pages, 100.0);
    let settings =
        Settings { longest_wait_days: Some(20.0), longest_wait_share: 0.2, ..scheduler.settings().clone() };
    scheduler.set(settings).unwrap();
    let mut waited = 0;
    run(&mut scheduler, 1200, 0, |s, now| {
        let plan = s.plan(now);
        assert_eq!(plan.len(), 25);
        let mut all: Vec<u32> = plan.pages().collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 25, "nobody twice, for having waited and for being due");
        waited += plan.waited.len();
        plan
    });
    assert!(waited <= 1200 * 5 && waited > 1100 * 5, "{waited}");
    let promised = scheduler.longest_wait_days().unwrap();
    assert!((promised - 100.0).abs() < 1e-9, "{promised}");
    let now = START_S + 1200 * DAY_S / 4;
    let longest = (0..2000).map(|p| now - scheduler.page(p).unwrap().last_read_s().unwrap()).max();
    assert!(f64::from(longest.unwrap()) / f64::from(DAY_S) <= promised, "{longest:?}");
}

#[test]
fn what_sites_say_is_taken_within_the_bandwidth() {
    let pages: Vec<Demand> =
        (0..100).map(|n| Demand { weight: 1.0, rate: 0.01 * f64::from(n + 1), host: None }).collect();
    let mut s = running(BuiltIn::CrawlValue, &pages, 80.0);
    for page in 0..100 {
        s.read(page, START_S - DAY_S, Kind::Html, pages[page as usize].rate);
    }
    // 50 pages are known to have changed, 20 can be read: those whose copies will last longest.
    (50..100).for_each(|page| s.changed_says_site(page));
    let plan = s.plan(START_S);
    assert_eq!((plan.len(), plan.refresh.clone()), (20, (50..70).collect()));
    assert_eq!(s.explain(60).unwrap().reason, Reason::Told);
    // Taken back: no more urgent than any page of its age, and not read again before it has one.
    s.unchanged_says_site(50, START_S);
    assert!(!s.plan(START_S).refresh.contains(&50));
    s.read(51, START_S, Kind::Html, 0.5);
    assert_eq!(s.explain(51).unwrap().reason, Reason::Policy);
}

#[test]
fn chi_means_a_weight_or_a_share() {
    let pages = demands(41, 1000);
    let reads_of_xml = |chi: Chi, factor: f64| -> f64 {
        let mut scheduler = running(BuiltIn::Xyleme { alpha: ALPHA }, &[], 200.0);
        for (n, page) in pages.iter().enumerate() {
            let kind = if n % 5 == 0 { Kind::Xml } else { Kind::Html };
            scheduler.add(HotPage::read(kind, START_S - DAY_S, page.weight, page.rate));
        }
        let mut factors = [1.0; Kind::COUNT];
        factors[Kind::Html as usize] = factor;
        scheduler.set(Settings { chi, factors, ..scheduler.settings().clone() }).unwrap();
        let reads = run(&mut scheduler, 400, 0, Scheduler::plan);
        let xml: f64 = reads.iter().step_by(5).sum();
        xml / reads.iter().sum::<f64>()
    };
    let share = reads_of_xml(Chi::Share(0.5), 1.0);
    assert!((share - 0.5).abs() < 0.02, "{share}");
    let even = reads_of_xml(Chi::MeanWeight(1.0), 1.0);
    let more = reads_of_xml(Chi::MeanWeight(4.0), 1.0);
    assert!((even - 0.2).abs() < 0.05 && more > 1.5 * even, "{even} {more}");
    // No factor for HTML: it is not refreshed at all.
    assert!(reads_of_xml(Chi::MeanWeight(1.0), 0.0) > 0.999);
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let bad = [
        Settings { bandwidth: f64::NAN, ..Settings::default() },
        Settings { cycle_s: 0, ..Settings::default() },
        Settings { discovery_xml: 0.7, discovery_html: 0.7, ..Settings::default() },
        Settings { chi: Chi::Share(2.0), ..Settings::default() },
        Settings { chi: Chi::MeanWeight(0.0), ..Settings::default() },
        Settings { longest_wait_days: Some(0.01), ..Settings::default() },
        Settings { longest_wait_share: -0.1, ..Settings::default() },
        Settings { gone_max: 0, ..Settings::default() },
    ];
    for settings in bad {
        assert!(Scheduler::new(settings.clone()).is_err(), "{settings:?}");
    }
}

/// Reads planned of each host in a plan.
fn by_host(plan: &Plan, hosts: u32) -> Vec<usize> {
    (0..hosts).map(|host| plan.pages().filter(|page| page % hosts == host).count()).collect()
}

#[test]
fn hosts_get_no_more_reads_in_a_cycle_than_their_delays_have_room_for() {
    let settings = Settings { bandwidth: 400.0, cycle_s: 21_600, ..Settings::default() };
    let mut scheduler = Scheduler::new(settings).unwrap();
    let began_s = 1_700_000_000 / 21_600 * 21_600;
    let hosts = 3;
    for page in 0..300 {
        // Pages of the first host weigh most by far.
        let weight = if page % hosts == 0 { 100.0 } else { 1.0 };
        scheduler.add(HotPage::read(Kind::Html, began_s - 864_000, weight, 0.1));
    }
    let alone = scheduler.plan(began_s);
    assert_eq!((alone.len(), by_host(&alone, hosts)[0]), (100, 100), "the heaviest");
    for page in 0..300 {
        scheduler.set_host(page, page % hosts);
    }
    scheduler.pace(None, 1.0);
    assert_eq!(scheduler.plan(began_s), alone, "all have room");
    // 21 600 s: room for 12 reads of the first host; the others get what that leaves over.
    scheduler.pace(Some(0), 1_800.0);
    let plan = scheduler.plan(began_s);
    let planned = by_host(&plan, hosts);
    assert_eq!((plan.len(), planned[0]), (100, 12), "{planned:?}");
    scheduler.issue(&plan);
    let more = scheduler.plan_reads(began_s + 60, 100);
    assert_eq!(by_host(&more, hosts)[0], 0, "its room in this cycle is used up");
    assert_eq!(more.len(), 100);
    // What somebody wants now goes out all the same; the next cycle has room again.
    let left = (0..300).step_by(hosts as usize).find(|page| !plan.pages().any(|one| one == *page)).unwrap();
    scheduler.want(left);
    assert_eq!(scheduler.plan_reads(began_s + 60, 100).wanted, [left]);
    let next = scheduler.plan_reads(began_s + 21_600, 100);
    assert_eq!(by_host(&next, hosts)[0], 12);
    // All have as little room: less is planned than there is bandwidth for.
    scheduler.pace(None, 7_200.0);
    assert_eq!(by_host(&scheduler.plan_reads(began_s + 2 * 21_600, 100), hosts), [12, 3, 3]);
}

#[test]
fn of_fixed_refreshes_those_that_waited_longest_come_first() {
    let settings = Settings { bandwidth: 40.0, cycle_s: 21_600, ..Settings::default() };
    let mut scheduler = Scheduler::new(settings).unwrap();
    let now_s = 1_700_000_000 / 21_600 * 21_600;
    for page in 0..30 {
        // The higher its number, the longer it waits.
        let page = scheduler.add(HotPage::read(Kind::Html, now_s - 100_000 - page * 1000, 1.0, 0.1));
        scheduler.publish(page, Publication::FixedRefresh(1.0));
    }
    assert_eq!(scheduler.plan(now_s).fixed, (20..30).rev().collect::<Vec<u32>>());
}
