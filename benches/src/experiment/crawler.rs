//! A crawler that refreshes all pages of a web with the page scheduler, and learns their change rates from what it reads.

use webbase_crawler::change_rate::{Prior, RateState};
use webbase_crawler::scheduler::{HotPage, Kind, Scheduler, Settings};

use super::web::{Sample, Score, Scorer, Truth, Web};

const DAY_S: f64 = 86_400.0;
/// The scheduler's time at day 0, a beginning of a cycle.
const START_S: f64 = 20_000.0 * DAY_S;

/// Where the change rates of pages come from.
#[derive(Clone, Debug)]
pub enum Rates {
    /// From what reads show.
    Estimated,
    /// Given to the crawler: an experiment with the truth, to be reported as such.
    Given(Vec<f64>),
}

/// How a crawler works.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The scheduler's settings.
    pub settings: Settings,
    /// Where change rates come from.
    pub rates: Rates,
    /// What is believed about a change rate before anything was seen.
    pub prior: Prior,
    /// Days until scoring begins.
    pub warm_up: f64,
    /// Days in all.
    pub days: f64,
}

/// What became of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// What it came to.
    pub score: Score,
    /// How it stood, day by day.
    pub days: Vec<(f64, Sample)>,
    /// Reads of every cycle.
    pub reads: Vec<usize>,
    /// The change rates as the crawler knows them at the end.
    pub rates: Vec<f64>,
}

/// A crawler at work.
pub struct Crawler<'a> {
    web: Web<'a>,
    scheduler: Scheduler,
    given: Option<Vec<f64>>,
    prior: Prior,
    states: Vec<RateState>,
    signatures: Vec<u64>,
    read_at: Vec<f64>,
}

impl<'a> Crawler<'a> {
    /// A crawler that has read every page once, at day 0.
    pub fn new(web: Web<'a>, weights: &[f64], setup: &Setup) -> Crawler<'a> {
        let mut crawler = Crawler {
            web,
            scheduler: Scheduler::new(setup.settings.clone()).expect("sound settings"),
            given: match &setup.rates {
                Rates::Estimated => None,
                Rates::Given(rates) => Some(rates.clone()),
            },
            prior: setup.prior,
            states: vec![RateState::default(); web.pages()],
            signatures: Vec::with_capacity(web.pages()),
            read_at: vec![0.0; web.pages()],
        };
        for (page, weight) in weights.iter().enumerate() {
            crawler.signatures.push(web.read(page, 0.0).signature);
            let rate = crawler.rate(page);
            crawler.scheduler.add(HotPage::read(Kind::Html, START_S as u32, *weight, rate));
        }
        crawler
    }

    fn rate(&self, page: usize) -> f64 {
        match &self.given {
            Some(rates) => rates[page],
            None => self.states[page].rate(&self.prior),
        }
    }

    /// What to read in the cycle that begins at a day, most urgent first; it is issued.
    pub fn plan(&mut self, day: f64) -> Vec<usize> {
        let plan = self.scheduler.plan(seconds(day));
        self.scheduler.issue(&plan);
        plan.pages().map(|page| page as usize).collect()
    }

    /// Reads a page of the plan; says whether it had changed.
    pub fn read(&mut self, page: usize, day: f64) -> bool {
        let answer = self.web.read(page, day);
        let changed = answer.signature != self.signatures[page];
        self.states[page].visit(day - self.read_at[page], changed, answer.modified.map(|at| day - at));
        self.signatures[page] = answer.signature;
        self.read_at[page] = day;
        let rate = self.rate(page);
        self.scheduler.read(page as u32, seconds(day), Kind::Html, rate);
        changed
    }

    /// Change rates as they are known.
    pub fn rates(&self) -> Vec<f64> {
        (0..self.web.pages()).map(|page| self.rate(page)).collect()
    }

    /// Runs cycle after cycle; reads are spread evenly over each.
    pub fn run(truth: &Truth, setup: &Setup) -> Run {
        let cycle = setup.settings.cycle_days();
        let mut crawler = Crawler::new(Web::new(truth), truth.weights(), setup);
        let mut scorer = Scorer::new(truth, setup.warm_up, setup.days);
        let (mut days, mut reads) = (Vec::new(), Vec::new());
        let cycles = (setup.days / cycle).round() as usize;
        let a_day = (1.0 / cycle).round().max(1.0) as usize;
        for number in 0..cycles {
            let now = number as f64 * cycle;
            if number % a_day == 0 {
                days.push((now, scorer.sample(now)));
            }
            let plan = crawler.plan(now);
            let each = cycle / plan.len().max(1) as f64;
            for (place, page) in plan.iter().enumerate() {
                let at = now + (place as f64 + 0.5) * each;
                crawler.read(*page, at);
                scorer.read(*page, at);
            }
            reads.push(plan.len());
        }
        Run { score: scorer.finish(), days, reads, rates: crawler.rates() }
    }
}

fn seconds(day: f64) -> u32 {
    (START_S + day * DAY_S) as u32
}
