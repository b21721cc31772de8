//! The page scheduler's two ways to find what is due: one scan over all pages, or the folders of a calendar.
//!
//! `scheduler [--pages 100000000] [--bandwidth 4000000] [--cycles 3]`
//!
//! Pages have the change rates of the web in a box and importances spread over four orders of magnitude; all have been read, at
//! moments that the policy would have left them with. Every cycle is planned, issued and read in full, on one thread.

use std::time::Instant;

use webbase_benches::arguments::Arguments;
use webbase_crawler::scheduler::{BuiltIn, Calendar, HotPage, Kind, Scheduler, Settings};
use webbase_web_in_a_box::Random;

const DAY_S: f64 = 86_400.0;
const START_S: u32 = 20_000 * 86_400;

fn page(random: &mut Random, mean_wait: f64) -> HotPage {
    let rate = match random.below(100) {
        0..23 => 1.0 + random.fraction() * 3.0,
        23..70 => 0.02 + random.fraction() * 0.2,
        _ => random.fraction() * 0.008,
    };
    let weight = 10f64.powf(random.fraction() * 4.0 - 2.0);
    let ago = (random.fraction() * 2.0 * mean_wait * DAY_S) as u32;
    HotPage::read(Kind::Html, START_S - ago.clamp(22_000, START_S / 2), weight, rate)
}

fn main() {
    let arguments = Arguments::from_env();
    let pages = arguments.number("--pages", 100_000_000);
    let bandwidth = arguments.number("--bandwidth", 4_000_000) as f64;
    let cycles = arguments.number("--cycles", 3) as u32;
    println!(
        "{pages} pages, {} bytes of hot state each, {bandwidth} reads a day, seed 1",
        size_of::<HotPage>()
    );
    println!(
        "\n| policy | way | state made, s | first plan, s | a cycle's plan, s (each) | pages a second |"
    );
    println!("|---|---|---:|---:|---|---:|");
    for policy in BuiltIn::ALL {
        if !arguments.lists("--policies", policy.name()) {
            continue;
        }
        let settings =
            Settings { bandwidth, policy, discovery_xml: 0.0, discovery_html: 0.0, ..Settings::default() };
        let cycle_s = settings.cycle_s;
        let mut random = Random::new(1);
        let clock = Instant::now();
        let mut scheduler = Scheduler::new(settings).expect("sound settings");
        for _ in 0..pages {
            scheduler.add(page(&mut random, pages as f64 / bandwidth));
        }
        let made = clock.elapsed().as_secs_f64();
        let mut plans: Vec<f64> = Vec::new();
        for cycle in 0..=cycles {
            let now = START_S + cycle * cycle_s;
            let clock = Instant::now();
            let plan = scheduler.plan(now);
            plans.push(clock.elapsed().as_secs_f64());
            assert_eq!(plan.len(), (bandwidth * f64::from(cycle_s) / DAY_S) as usize);
            read(&mut scheduler, &plan.pages().collect::<Vec<u32>>(), now);
        }
        row(policy, "scan", made, &plans, pages);
        let now = START_S + (cycles + 1) * cycle_s;
        let mut calendar = Calendar::default();
        let clock = Instant::now();
        calendar.fill(&scheduler, now);
        let made = clock.elapsed().as_secs_f64();
        let mut plans: Vec<f64> = Vec::new();
        for cycle in 0..=cycles {
            let now = now + cycle * cycle_s;
            let clock = Instant::now();
            let plan = calendar.plan(&scheduler, now);
            let planned = clock.elapsed().as_secs_f64();
            read(&mut scheduler, &plan.pages().collect::<Vec<u32>>(), now);
            let clock = Instant::now();
            calendar.put_back(&scheduler, &plan, now);
            plans.push(planned + clock.elapsed().as_secs_f64());
        }
        row(policy, "calendar", made, &plans, pages);
    }
}

fn read(scheduler: &mut Scheduler, pages: &[u32], now_s: u32) {
    for page in pages {
        let rate = scheduler.page(*page).expect("a page").rate();
        scheduler.read(*page, now_s, Kind::Html, rate);
    }
}

fn row(policy: BuiltIn, way: &str, made: f64, plans: &[f64], pages: usize) {
    let each: Vec<String> = plans[1..].iter().map(|s| format!("{s:.2}")).collect();
    let mean = plans[1..].iter().sum::<f64>() / (plans.len() - 1) as f64;
    println!(
        "| {} | {way} | {made:.1} | {:.2} | {} | {:.1} M |",
        policy.name(),
        plans[0],
        each.join(", "),
        pages as f64 / mean / 1e6
    );
}
