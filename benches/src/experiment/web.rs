//! The truth about a web, the little of it that a crawler sees, and the scorer, who sees all.

use webbase_crawler::importance::{self, GraphBuilder, Method, Personalisation};
use webbase_crawler::scheduler::ALPHA;
use webbase_web_in_a_box::{DAY_MS, Dates, World};

/// Days that a world has gone on before an experiment begins, so that pages have changed before they are first read.
const EARLIER_DAYS: u64 = 200;

/// What happens on a web, in days since the experiment began.
#[derive(Clone, Debug)]
pub struct Truth {
    rates: Vec<f64>,
    weights: Vec<f64>,
    /// The last change before the experiment, not above 0.
    before: Vec<f64>,
    changes: Vec<Vec<f64>>,
    tells_dates: Vec<bool>,
}

impl Truth {
    /// What happens in a world in so many days. Weights are its pages' importance, 1 on average.
    pub fn of(world: &World, days: f64) -> Truth {
        let start_ms = world.plan().began_at_ms + EARLIER_DAYS * DAY_MS;
        let day = |at_ms: u64| (at_ms as f64 - start_ms as f64) / DAY_MS as f64;
        let pages = 0..world.pages();
        let mut truth = Truth {
            rates: pages.clone().map(|page| world.changes_a_day(page)).collect(),
            weights: importance_of(world),
            before: Vec::new(),
            changes: Vec::new(),
            tells_dates: pages.clone().map(|page| world.dates(world.site_of(page)) == Dates::Both).collect(),
        };
        let mean = truth.weights.iter().sum::<f64>() / truth.weights.len() as f64;
        truth.weights.iter_mut().for_each(|weight| *weight /= mean);
        for page in pages {
            let mut last = day(world.born_at_ms(page));
            let mut changes = Vec::new();
            for at in world.changes(page).map(day).take_while(|at| *at < days) {
                if at <= 0.0 { last = at } else { changes.push(at) }
            }
            truth.before.push(last.min(0.0));
            truth.changes.push(changes);
        }
        truth
    }

    /// How many pages there are.
    pub fn pages(&self) -> usize {
        self.rates.len()
    }

    /// Changes a day of every page.
    pub fn rates(&self) -> &[f64] {
        &self.rates
    }

    /// What every page's being current is worth, 1 on average. Not the scorer's secret: the crawler has read all links.
    pub fn weights(&self) -> &[f64] {
        &self.weights
    }

    /// Whether a page's site gives it a Last-Modified.
    pub fn tells_date(&self, page: usize) -> bool {
        self.tells_dates[page]
    }
}

/// The importance of a world's pages, by all of its links.
pub fn importance_of(world: &World) -> Vec<f64> {
    let mut links = GraphBuilder::new();
    for page in 0..world.pages() {
        world.links(page).into_iter().for_each(|link| links.add(page as u32, link as u32));
    }
    let graph = links.build(Some(world.pages())).expect("links between pages of the world");
    let settings = importance::Settings { epsilon: 1e-8, ..importance::Settings::default() };
    let e = Personalisation::uniform(world.pages());
    let found = importance::importance(&graph, &e, None, Method::Power, &settings);
    found.expect("sound settings").values
}

/// What a read shows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Answer {
    /// Of the content: another one where the content is another.
    pub signature: u64,
    /// When it was last changed, where the site says so.
    pub modified: Option<f64>,
}

/// A web as a crawler can see it.
#[derive(Clone, Copy, Debug)]
pub struct Web<'a>(&'a Truth);

impl<'a> Web<'a> {
    /// The web of a truth.
    pub fn new(truth: &'a Truth) -> Web<'a> {
        Web(truth)
    }

    /// How many pages there are.
    pub fn pages(&self) -> usize {
        self.0.pages()
    }

    /// Reads a page at a moment.
    pub fn read(&self, page: usize, at: f64) -> Answer {
        let changes = &self.0.changes[page];
        let version = changes.partition_point(|change| *change <= at);
        let modified = if version == 0 { self.0.before[page] } else { changes[version - 1] };
        Answer { signature: version as u64, modified: self.0.tells_dates[page].then_some(modified) }
    }
}

/// How the copies stand at a moment, weighted.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Sample {
    /// The share that is current.
    pub freshness: f64,
    /// For how many days they have not been current, on average; those that are count as 0.
    pub age: f64,
    /// Xyleme's obsolescence: the mean of w·(λt)^α, t the days since the last read.
    pub cost: f64,
}

/// What a run came to.
#[derive(Clone, PartialEq, Debug)]
pub struct Score {
    /// Means over the scored time, weighted.
    pub mean: Sample,
    /// The share that is current, every page alike.
    pub freshness_plain: f64,
    /// The longest time in days that any page waited for a read, within the scored time or still at its end.
    pub longest_wait: f64,
    /// The same, of 99 % of the pages.
    pub wait_99: f64,
}

/// Knows the truth, is told of reads, and integrates over time without any sampling.
#[derive(Clone, Debug)]
pub struct Scorer<'a> {
    truth: &'a Truth,
    from: f64,
    to: f64,
    read_at: Vec<f64>,
    /// When the copy ceased to be current, or will; infinite for never.
    stale_at: Vec<f64>,
    waited: Vec<f64>,
    sums: Sample,
    plain: f64,
}

impl<'a> Scorer<'a> {
    /// Scores the time between two days. All pages are read at day 0.
    pub fn new(truth: &'a Truth, from: f64, to: f64) -> Scorer<'a> {
        let stale = |changes: &Vec<f64>| changes.first().copied().unwrap_or(f64::INFINITY);
        Scorer {
            truth,
            from,
            to,
            read_at: vec![0.0; truth.pages()],
            stale_at: truth.changes.iter().map(stale).collect(),
            waited: vec![0.0; truth.pages()],
            sums: Sample::default(),
            plain: 0.0,
        }
    }

    /// A page was read.
    pub fn read(&mut self, page: usize, at: f64) {
        self.count(page, at);
        let changes = &self.truth.changes[page];
        let next = changes.partition_point(|change| *change <= at);
        self.read_at[page] = at;
        self.stale_at[page] = changes.get(next).copied().unwrap_or(f64::INFINITY);
    }

    /// Adds up the time from a page's last read to a moment.
    fn count(&mut self, page: usize, until: f64) {
        let (read, stale) = (self.read_at[page], self.stale_at[page]);
        let (from, to) = (read.max(self.from), until.min(self.to));
        if to <= from {
            return;
        }
        self.waited[page] = self.waited[page].max(to - read);
        let (weight, rate) = (self.truth.weights[page], self.truth.rates[page]);
        let fresh = (stale.min(to) - from).max(0.0);
        self.plain += fresh;
        self.sums.freshness += weight * fresh;
        if stale < to {
            let began = from.max(stale) - stale;
            self.sums.age += weight * ((to - stale).powi(2) - began.powi(2)) / 2.0;
        }
        let power = |days: f64| days.powf(ALPHA + 1.0) / (ALPHA + 1.0);
        self.sums.cost += weight * rate.powf(ALPHA) * (power(to - read) - power(from - read));
    }

    /// How the copies stand at a moment, which is not before any read.
    pub fn sample(&self, at: f64) -> Sample {
        let mut sample = Sample::default();
        for page in 0..self.truth.pages() {
            let (weight, stale) = (self.truth.weights[page], self.stale_at[page]);
            if stale > at {
                sample.freshness += weight;
            } else {
                sample.age += weight * (at - stale);
            }
            sample.cost += weight * (self.truth.rates[page] * (at - self.read_at[page])).powf(ALPHA);
        }
        self.scaled(sample, 1.0)
    }

    fn scaled(&self, sums: Sample, days: f64) -> Sample {
        // Weights are 1 on average.
        let all = self.truth.pages() as f64 * days;
        Sample { freshness: sums.freshness / all, age: sums.age / all, cost: sums.cost / all }
    }

    /// Ends the scored time.
    pub fn finish(mut self) -> Score {
        for page in 0..self.truth.pages() {
            self.count(page, self.to);
        }
        let days = self.to - self.from;
        self.waited.sort_by(f64::total_cmp);
        let count = self.waited.len();
        Score {
            mean: self.scaled(self.sums, days),
            freshness_plain: self.plain / count as f64 / days,
            longest_wait: self.waited.last().copied().unwrap_or(0.0),
            wait_99: self.waited.get(count * 99 / 100).copied().unwrap_or(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truth() -> Truth {
        Truth {
            rates: vec![0.1, 0.0],
            weights: vec![1.5, 0.5],
            before: vec![-3.0, -9.0],
            changes: vec![vec![2.0, 5.0, 6.0], vec![]],
            tells_dates: vec![true, false],
        }
    }

    #[test]
    fn a_read_shows_what_is_there_and_no_more() {
        let truth = truth();
        let web = Web::new(&truth);
        assert_eq!(web.read(0, 1.9), Answer { signature: 0, modified: Some(-3.0) });
        assert_eq!(web.read(0, 5.5), Answer { signature: 2, modified: Some(5.0) });
        assert_eq!(web.read(1, 5.5), Answer { signature: 0, modified: None });
    }

    #[test]
    fn integrals_are_those_that_one_finds_by_hand() {
        let truth = truth();
        let mut scorer = Scorer::new(&truth, 1.0, 9.0);
        // Fresh 0–2, stale 2–4, fresh 4–5, stale 5–9: scored from 1 on.
        scorer.read(0, 4.0);
        let sample = scorer.sample(8.0);
        assert!((sample.freshness - 0.25).abs() < 1e-12 && (sample.age - 1.5 * 3.0 / 2.0).abs() < 1e-12);
        let score = scorer.finish();
        let fresh = 1.5 * 2.0 + 0.5 * 8.0;
        assert!((score.mean.freshness - fresh / 16.0).abs() < 1e-12, "{score:?}");
        assert!((score.freshness_plain - 10.0 / 16.0).abs() < 1e-12);
        assert!((score.mean.age - 1.5 * (2.0 + 8.0) / 16.0).abs() < 1e-12);
        let power = |t: f64| t.powf(ALPHA + 1.0) / (ALPHA + 1.0);
        let cost = 1.5 * 0.1f64.powf(ALPHA) * (power(4.0) - power(1.0) + power(5.0));
        assert!((score.mean.cost - cost / 16.0).abs() < 1e-12);
        assert_eq!(score.longest_wait, 9.0);
    }
}
