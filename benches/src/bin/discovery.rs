//! Discovery: how much importance is found with how many reads, when the page scheduler chooses by importance, against breadth-first.
//!
//! `discovery [--pages 40000] [--seed 1] [--seeds 3] [--plots benches/plots]`
//!
//! Every crawler begins at the same few home pages and knows a page once a read page links to it. Importance is computed from the
//! links that the crawler itself has read, as the estimator does, and anew for every batch of reads (1 % of the pages). Only the scorer
//! knows the importance by all links; "knows the truth" reads the frontier in that order, and is the limit for whoever must find links.

use std::collections::VecDeque;
use std::path::PathBuf;

use webbase_benches::arguments::Arguments;
use webbase_benches::experiment::importance_of;
use webbase_benches::plot::{Axis, Plot};
use webbase_crawler::importance::{self, GraphBuilder, Method, Opic, Personalisation, Window};
use webbase_crawler::scheduler::{HotPage, Kind, Scheduler, Settings};
use webbase_web_in_a_box::{Plan, Random, World};

const BEGAN_MS: u64 = 1_700_000_000_000;
const DAY_S: u32 = 86_400;
const START_S: u32 = 20_000 * DAY_S;

/// What a crawl knows: which pages there are, which were read, and the links of those.
struct Known {
    found: Vec<bool>,
    read: Vec<bool>,
    links: GraphBuilder,
}

/// Says what to read next.
trait Order {
    fn name(&self) -> &'static str;
    /// A page was found: a seed, or behind the first link to it.
    fn found(&mut self, page: u32);
    /// A page was read, and has these links.
    fn read(&mut self, page: u32, links: &[u32]);
    /// The next pages, at most so many.
    fn next(&mut self, count: usize, known: &Known) -> Vec<u32>;
}

/// First found, first read.
#[derive(Default)]
struct BreadthFirst(VecDeque<u32>);

impl Order for BreadthFirst {
    fn name(&self) -> &'static str {
        "breadth-first"
    }
    fn found(&mut self, page: u32) {
        self.0.push_back(page);
    }
    fn read(&mut self, _: u32, _: &[u32]) {}
    fn next(&mut self, count: usize, _: &Known) -> Vec<u32> {
        self.0.drain(..count.min(self.0.len())).collect()
    }
}

/// Any of the found.
struct AtRandom(Vec<u32>, Random);

impl Order for AtRandom {
    fn name(&self) -> &'static str {
        "at random"
    }
    fn found(&mut self, page: u32) {
        self.0.push(page);
    }
    fn read(&mut self, _: u32, _: &[u32]) {}
    fn next(&mut self, count: usize, _: &Known) -> Vec<u32> {
        let mut next = Vec::new();
        while next.len() < count && !self.0.is_empty() {
            let at = self.1.below(self.0.len() as u64) as usize;
            next.push(self.0.swap_remove(at));
        }
        next
    }
}

/// The page scheduler's discovery, with importance computed from the links read so far.
struct ByImportance {
    scheduler: Scheduler,
    /// The scheduler's number of a page, and the other way round.
    numbers: Vec<Option<u32>>,
    pages: Vec<u32>,
    last: Vec<f64>,
    cycle: u32,
}

impl ByImportance {
    fn new(pages: usize, batch: usize) -> ByImportance {
        let settings = Settings {
            bandwidth: batch as f64,
            cycle_s: DAY_S,
            discovery_xml: 0.0,
            discovery_html: 1.0,
            ..Settings::default()
        };
        ByImportance {
            scheduler: Scheduler::new(settings).expect("sound settings"),
            numbers: vec![None; pages],
            pages: Vec::new(),
            last: vec![1.0; pages],
            cycle: 0,
        }
    }
}

impl Order for ByImportance {
    fn name(&self) -> &'static str {
        "by importance (scheduler)"
    }
    fn found(&mut self, page: u32) {
        self.numbers[page as usize] = Some(self.scheduler.add(HotPage::unread(0.0, false, 0.05)));
        self.pages.push(page);
    }
    fn read(&mut self, page: u32, _: &[u32]) {
        let number = self.numbers[page as usize].expect("a found page");
        // Refreshing is not what this is about: read pages don't come again.
        self.scheduler.read(number, START_S + self.cycle * DAY_S, Kind::Html, 0.0);
        self.scheduler.publish(number, webbase_crawler::scheduler::Publication::Never);
    }
    fn next(&mut self, _: usize, known: &Known) -> Vec<u32> {
        let pages = known.found.len();
        // E over the pages that are known: the others are nobody's.
        let e: Vec<f64> = known.found.iter().map(|found| f64::from(u8::from(*found))).collect();
        let graph = known.links.clone().build(Some(pages)).expect("links between pages");
        let settings = importance::Settings { epsilon: 1e-5, ..importance::Settings::default() };
        let e = Personalisation::new(&e).expect("a seed");
        let found = importance::importance(&graph, &e, Some(&self.last), Method::Power, &settings);
        self.last = found.expect("sound settings").values;
        for (number, page) in self.pages.iter().enumerate() {
            if !known.read[*page as usize] {
                self.scheduler.set_weight(number as u32, self.last[*page as usize]);
            }
        }
        self.cycle += 1;
        let plan = self.scheduler.plan(START_S + self.cycle * DAY_S);
        self.scheduler.issue(&plan);
        plan.pages().map(|number| self.pages[number as usize]).collect()
    }
}

/// The most cash of online importance, which needs no links but those of the page that is read.
struct ByCash(Opic, f64);

impl Order for ByCash {
    fn name(&self) -> &'static str {
        "by cash (OPIC)"
    }
    fn found(&mut self, _: u32) {}
    fn read(&mut self, page: u32, links: &[u32]) {
        self.1 += 1.0;
        self.0.read(page, links, self.1);
    }
    fn next(&mut self, count: usize, known: &Known) -> Vec<u32> {
        let worth = self.0.importance();
        top(count, known, |page| worth[page])
    }
}

/// The most links to it that are known.
struct ByLinks(Vec<f64>);

impl Order for ByLinks {
    fn name(&self) -> &'static str {
        "by links to it"
    }
    fn found(&mut self, _: u32) {}
    fn read(&mut self, _: u32, links: &[u32]) {
        links.iter().for_each(|link| self.0[*link as usize] += 1.0);
    }
    fn next(&mut self, count: usize, known: &Known) -> Vec<u32> {
        top(count, known, |page| self.0[page])
    }
}

/// The limit.
struct Truth(Vec<f64>);

impl Order for Truth {
    fn name(&self) -> &'static str {
        "knows the truth"
    }
    fn found(&mut self, _: u32) {}
    fn read(&mut self, _: u32, _: &[u32]) {}
    fn next(&mut self, count: usize, known: &Known) -> Vec<u32> {
        top(count, known, |page| self.0[page])
    }
}

/// The best of the frontier; equal ones in order of their numbers.
fn top(count: usize, known: &Known, worth: impl Fn(usize) -> f64) -> Vec<u32> {
    let frontier = (0..known.found.len()).filter(|page| known.found[*page] && !known.read[*page]);
    let mut best: Vec<(f64, usize)> = frontier.map(|page| (worth(page), page)).collect();
    best.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    best.truncate(count);
    best.into_iter().map(|(_, page)| page as u32).collect()
}

/// Crawls to the end; the mass found after every batch.
fn crawl(world: &World, mass: &[f64], seeds: &[u32], batch: usize, order: &mut dyn Order) -> Vec<(f64, f64)> {
    let pages = world.pages();
    let mut known = Known { found: vec![false; pages], read: vec![false; pages], links: GraphBuilder::new() };
    for seed in seeds {
        known.found[*seed as usize] = true;
        order.found(*seed);
    }
    let (mut reads, mut sum) = (0, 0.0);
    let mut points = vec![(0.0, 0.0)];
    loop {
        let next = order.next(batch, &known);
        if next.is_empty() {
            assert_eq!(reads, pages, "{}: everything is linked", order.name());
            return points;
        }
        for page in next {
            let at = page as usize;
            assert!(known.found[at] && !known.read[at], "{}: only what was found, and once", order.name());
            known.read[at] = true;
            reads += 1;
            sum += mass[at];
            let links: Vec<u32> = world.links(at).into_iter().map(|link| link as u32).collect();
            for link in &links {
                known.links.add(page, *link);
                if !std::mem::replace(&mut known.found[*link as usize], true) {
                    order.found(*link);
                }
            }
            order.read(page, &links);
        }
        points.push((reads as f64 / pages as f64, sum));
    }
}

fn main() {
    let arguments = Arguments::from_env();
    let pages = arguments.number("--pages", 40_000);
    let seed = arguments.number("--seed", 1) as u64;
    let folder = PathBuf::from(arguments.value("--plots").unwrap_or("benches/plots"));
    let world = World::planned(Plan { site_scale: 6, ..Plan::new(seed, pages, BEGAN_MS) }.eternal());
    let mass = importance_of(&world);
    let mut random = Random::new(seed);
    // Little-linked sites: the much-linked ones are still to be found.
    let seeds: Vec<u32> = (0..arguments.number("--seeds", 3))
        .map(|_| {
            world.pages_of(world.sites() / 2 + random.below(world.sites() as u64 / 2) as usize).start as u32
        })
        .collect();
    println!("seed {seed}, {pages} pages of {} sites, beginning at {seeds:?}\n", world.sites());
    let batch = (pages / 100).max(1);
    let settings = importance::Settings::default();
    let cash = Opic::new(Personalisation::uniform(pages), Window::Time(pages as f64 * 2.0), &settings)
        .expect("sound settings");
    let orders: Vec<Box<dyn Order>> = vec![
        Box::new(ByImportance::new(pages, batch)),
        Box::new(ByCash(cash, 0.0)),
        Box::new(ByLinks(vec![0.0; pages])),
        Box::new(BreadthFirst::default()),
        Box::new(AtRandom(Vec::new(), Random::new(seed))),
        Box::new(Truth(mass.clone())),
    ];
    let marks = [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7];
    println!("importance found, of all, after reading a share of the pages\n");
    println!("| order | {} |", marks.map(|mark| format!("{:.0} %", mark * 100.0)).join(" | "));
    println!("|---|{}", "---:|".repeat(marks.len()));
    let mut plot = Plot::new(
        "Discovery: importance found over pages read",
        Axis::linear("pages read, of all").from(0.0).to(1.0),
        Axis::linear("importance found, of all").from(0.0).to(1.0),
    );
    for mut order in orders {
        let points = crawl(&world, &mass, &seeds, batch, order.as_mut());
        let at =
            |mark: f64| points.iter().rfind(|(share, _)| *share <= mark + 1e-9).map_or(0.0, |(_, sum)| *sum);
        println!("| {} | {} |", order.name(), marks.map(|mark| format!("{:.3}", at(mark))).join(" | "));
        plot = match order.name() {
            "knows the truth" => plot.dashed(order.name(), points),
            name => plot.line(name, points),
        };
    }
    plot.write(folder.join("discovery.svg")).expect("written");
}
