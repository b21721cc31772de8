//! The paper's simulation, day by day.
//!
//! As given there: 10 000 equal pages of four sites, 100 days, 100 bandwidths; pages change at regular intervals, at most daily, before
//! that day's reads; the copy is fresh at the beginning, and the share of fresh pages is taken at the end of the last day; metadata costs
//! as much as 8 pages a day; the conventional crawler reads everything in turn, the metadata crawler what has changed in turn.
//!
//! Not given there: all but the first and the last bar of the distribution of change intervals (23 % daily, "more than 30 %" above four
//! months). The bars between are taken as 15, 16 and 16 %, as the same authors' study of the same pages has them; within a
//! bar intervals are spread evenly; above four months evenly up to a year; phases are random.
//!
//! Beside the paper's two crawlers:
//!
//! - *scheduled*: the page scheduler chooses, from change rates that it estimates; every request is a download;
//! - *scheduled, conditional*: the same with conditional requests, which cost 0.02 of a page (260 bytes of 13 KB) when nothing changed;
//! - *scheduled, metadata*: the same with the sites' metadata: unchanged pages are not asked for, of the changed ones the scheduler
//!   takes those first whose copies will last.

use rayon::prelude::*;
use webbase_crawler::change_rate::{Prior, RateState, Seen};
use webbase_crawler::scheduler::{HotPage, Kind, Scheduler, Settings};
use webbase_web_in_a_box::Random;

use crate::{CONVENTIONAL, Curve};

const DAYS: u32 = 100;
const LEVELS: usize = 100;
/// What metadata costs a day, in pages.
const METADATA: f64 = 8.0;
/// What a request costs that finds nothing new, in pages.
const UNCHANGED: f64 = 0.02;
const DAY_S: u32 = 86_400;
const START_S: u32 = 20_000 * DAY_S;

/// When pages change.
struct Pages {
    /// (interval, phase), in days.
    changes: Vec<(f64, f64)>,
}

impl Pages {
    fn new(count: usize, seed: u64) -> Pages {
        let mut random = Random::new(seed);
        let mut page = |_| {
            let place = random.fraction();
            let mut spread = |from: f64, to: f64| from + (to - from) * random.fraction();
            let interval = match random_bar(place) {
                0 => 1.0,
                1 => spread(1.0, 7.0),
                2 => spread(7.0, 30.0),
                3 => spread(30.0, 120.0),
                _ => spread(120.0, 365.0),
            };
            (interval, random.fraction() * interval)
        };
        Pages { changes: (0..count).map(&mut page).collect() }
    }

    fn len(&self) -> usize {
        self.changes.len()
    }

    /// How often a page has changed by a day's reads.
    fn version(&self, page: usize, day: u32) -> u32 {
        let (interval, phase) = self.changes[page];
        ((f64::from(day) + phase) / interval) as u32
    }

    /// Days since a page's last change, as metadata and Last-Modified have it; none in the time before the experiment.
    fn changed_ago(&self, page: usize, day: u32) -> Option<u32> {
        let version = self.version(page, day);
        (0..day).find(|ago| self.version(page, day - ago - 1) != version)
    }
}

/// The paper's bars: at least daily, weekly, monthly, four-monthly, rarer.
fn random_bar(place: f64) -> usize {
    [0.23, 0.38, 0.54, 0.70].iter().position(|end| place < *end).unwrap_or(4)
}

/// A crawler's work of one day, with a budget in pages.
trait Crawler: Send {
    fn day(&mut self, pages: &Pages, day: u32, budget: f64);
    /// The version of a page's copy.
    fn copy(&self, page: usize) -> u32;
}

/// Reads in turn: everything, or what metadata says has changed.
struct InTurn {
    copies: Vec<u32>,
    next: usize,
    by_metadata: bool,
}

impl InTurn {
    fn new(pages: &Pages, by_metadata: bool) -> InTurn {
        let copies = (0..pages.len()).map(|page| pages.version(page, 0)).collect();
        InTurn { copies, next: 0, by_metadata }
    }
}

impl Crawler for InTurn {
    fn day(&mut self, pages: &Pages, day: u32, budget: f64) {
        let mut left = (if self.by_metadata { budget - METADATA } else { budget }).max(0.0) as usize;
        for _ in 0..pages.len() {
            if left == 0 {
                return;
            }
            let version = pages.version(self.next, day);
            if !self.by_metadata || version != self.copies[self.next] {
                self.copies[self.next] = version;
                left -= 1;
            }
            self.next = (self.next + 1) % pages.len();
        }
    }

    fn copy(&self, page: usize) -> u32 {
        self.copies[page]
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Helped {
    Not,
    Conditional,
    Metadata,
}

/// Reads what the page scheduler says.
struct Scheduled {
    copies: Vec<u32>,
    read_on: Vec<u32>,
    rates: Vec<RateState>,
    scheduler: Scheduler,
    helped: Helped,
    /// What was spent beyond a day's budget by its last page.
    debt: f64,
}

impl Scheduled {
    fn new(pages: &Pages, helped: Helped) -> Scheduled {
        // A plan names all pages, most urgent first; the day's budget decides how far down it is read.
        let settings = Settings {
            bandwidth: pages.len() as f64,
            cycle_s: DAY_S,
            discovery_xml: 0.0,
            discovery_html: 0.0,
            longest_wait_days: None,
            ..Settings::default()
        };
        let mut scheduler = Scheduler::new(settings).expect("sound settings");
        let rate = RateState::default().rate(&Prior::WEB_DAYS);
        for _ in 0..pages.len() {
            scheduler.add(HotPage::read(Kind::Html, START_S, 1.0, rate));
        }
        Scheduled {
            copies: (0..pages.len()).map(|page| pages.version(page, 0)).collect(),
            read_on: vec![0; pages.len()],
            rates: vec![RateState::default(); pages.len()],
            scheduler,
            helped,
            debt: 0.0,
        }
    }

    /// Yesterday's changes, from the sites' metadata.
    fn take_metadata(&mut self, pages: &Pages, day: u32) {
        for page in 0..pages.len() {
            let changed = pages.version(page, day) != pages.version(page, day - 1);
            self.rates[page].add(Seen::Dated { changes: u32::from(changed), days: 1.0 });
            self.scheduler.set_rate(page as u32, self.rates[page].rate(&Prior::WEB_DAYS));
            if changed {
                self.scheduler.changed_says_site(page as u32);
            } else if self.copies[page] == pages.version(page, day - 1) {
                self.scheduler.unchanged_says_site(page as u32, START_S + day * DAY_S);
            }
        }
    }
}

impl Crawler for Scheduled {
    fn day(&mut self, pages: &Pages, day: u32, budget: f64) {
        let mut left = budget - self.debt;
        if self.helped == Helped::Metadata {
            left -= METADATA;
            self.take_metadata(pages, day);
        }
        let now_s = START_S + day * DAY_S;
        let plan = self.scheduler.plan(now_s);
        self.scheduler.issue(&plan);
        for number in plan.pages() {
            if left <= 0.0 {
                self.scheduler.returned(number);
                continue;
            }
            let page = number as usize;
            let version = pages.version(page, day);
            let changed = version != self.copies[page];
            left -= if changed || self.helped == Helped::Not { 1.0 } else { UNCHANGED };
            if self.helped != Helped::Metadata {
                let ago = pages.changed_ago(page, day).map(f64::from);
                self.rates[page].visit(f64::from(day - self.read_on[page]), changed, ago);
            }
            self.copies[page] = version;
            self.read_on[page] = day;
            self.scheduler.read(number, now_s, Kind::Html, self.rates[page].rate(&Prior::WEB_DAYS));
        }
        self.debt = (-left).max(0.0);
    }

    fn copy(&self, page: usize) -> u32 {
        self.copies[page]
    }
}

type Make = fn(&Pages) -> Box<dyn Crawler>;

/// Runs every crawler at every bandwidth.
pub(crate) fn run(count: usize, seed: u64) -> Vec<Curve> {
    let pages = Pages::new(count, seed);
    let crawlers: [(&str, Make); 5] = [
        (CONVENTIONAL, |pages| Box::new(InTurn::new(pages, false))),
        ("metadata (the paper's)", |pages| Box::new(InTurn::new(pages, true))),
        ("scheduled", |pages| Box::new(Scheduled::new(pages, Helped::Not))),
        ("scheduled, conditional", |pages| Box::new(Scheduled::new(pages, Helped::Conditional))),
        ("scheduled, metadata", |pages| Box::new(Scheduled::new(pages, Helped::Metadata))),
    ];
    let curve = |(name, make): (&'static str, Make)| {
        let at = |level: usize| {
            let bandwidth = level as f64 / LEVELS as f64;
            let mut crawler = make(&pages);
            for day in 1..=DAYS {
                crawler.day(&pages, day, bandwidth * count as f64);
            }
            let fresh = (0..count).filter(|page| crawler.copy(*page) == pages.version(*page, DAYS)).count();
            (bandwidth, fresh as f64 / count as f64)
        };
        Curve { name, points: (1..=LEVELS).into_par_iter().map(at).collect() }
    };
    crawlers.into_iter().map(curve).collect()
}
