//! The scheduler's state: every page's hot state, and what is known about all of them together.
//!
//! A page is in the population ([`Population`]) exactly as its hot state says: every change removes and adds it.

use super::allocation::{Demand, Limits, price};
use super::hosts::Hosts;
use super::page::{EXPIRED, HotPage, ISSUED, Kind, Publication, SUSPECT, TOLD, WANTED};
use super::plan::Plan;
use super::population::{Population, Sums};
use super::settings::{BadSetting, Chi, Settings};

/// The page scheduler.
#[derive(Clone, Debug)]
pub struct Scheduler {
    pub(super) settings: Settings,
    pub(super) pages: Vec<HotPage>,
    population: Population,
    pub(super) hosts: Hosts,
}

impl Scheduler {
    /// A scheduler without pages.
    ///
    /// # Errors
    /// A setting that makes no sense.
    pub fn new(settings: Settings) -> Result<Scheduler, BadSetting> {
        settings.check()?;
        Ok(Scheduler {
            settings,
            pages: Vec::new(),
            population: Population::default(),
            hosts: Hosts::default(),
        })
    }

    /// How the bandwidth is used.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes how the bandwidth is used, from the next plan on.
    ///
    /// # Errors
    /// A setting that makes no sense; then nothing changes.
    pub fn set(&mut self, settings: Settings) -> Result<(), BadSetting> {
        settings.check()?;
        self.settings = settings;
        Ok(())
    }

    /// Adds a page; its number is how many there were before.
    pub fn add(&mut self, page: HotPage) -> u32 {
        self.population.add(&page);
        self.pages.push(page);
        (self.pages.len() - 1) as u32
    }

    /// Pages, dead ones too.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether there is no page.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// The state of a page.
    pub fn page(&self, page: u32) -> Option<&HotPage> {
        self.pages.get(page as usize)
    }

    /// The sums over the pages of a kind that are refreshed: S is kept up to date with every change.
    pub fn sums(&self, kind: Kind) -> Sums {
        self.population.sums(kind)
    }

    /// The page was read, and is of this kind. With its new change rate, unless one was published.
    pub fn read(&mut self, page: u32, now_s: u32, kind: Kind, rate: f64) {
        self.change(page, |hot| {
            hot.last_read_s = now_s.max(1);
            hot.set_kind(kind);
            hot.set_gone(0);
            for flag in [ISSUED, EXPIRED, WANTED, SUSPECT, TOLD] {
                hot.set(flag, false);
            }
            if hot.publication() == Publication::None {
                hot.rate = HotPage::unread(0.0, false, rate).rate;
            }
        });
    }

    /// The page was answered by 404 or 410. After some times in a row it is dead, and leaves S.
    pub fn gone(&mut self, page: u32, now_s: u32) {
        let most = self.settings.gone_max;
        self.change(page, |hot| {
            let count = hot.gone_count() + 1;
            hot.set_gone(count);
            hot.last_read_s = now_s.max(1);
            if count >= most {
                hot.set_kind(Kind::Dead);
            }
            for flag in [ISSUED, EXPIRED, WANTED, TOLD] {
                hot.set(flag, false);
            }
        });
    }

    /// The page could not be read. It comes again when it would have come again had it been read.
    pub fn failed(&mut self, page: u32, now_s: u32) {
        self.change(page, |hot| {
            if hot.last_read_s == 0 {
                hot.set_kind(Kind::Error);
            }
            hot.last_read_s = now_s.max(1);
            for flag in [ISSUED, EXPIRED, WANTED] {
                hot.set(flag, false);
            }
        });
    }

    /// The page was answered, but by an error: until it is read again it is one.
    pub fn errs(&mut self, page: u32) {
        self.change(page, |hot| {
            if hot.kind() != Kind::Dead {
                hot.set_kind(Kind::Error);
            }
        });
    }

    /// The site said that the page has changed, and it could not be had again and again: as if it had said nothing.
    pub fn told_in_vain(&mut self, page: u32) {
        self.change(page, |hot| hot.set(TOLD, false));
    }

    /// The web interface's buffer had no room for the page: it is planned again.
    pub fn returned(&mut self, page: u32) {
        self.change(page, |hot| hot.set(ISSUED, false));
    }

    /// The page has another importance (or, of HTML, usefulness).
    pub fn set_weight(&mut self, page: u32, weight: f64) {
        self.change(page, |hot| hot.weight = HotPage::unread(weight, false, 0.0).weight);
    }

    /// The page has another change rate, unless one was published.
    pub fn set_rate(&mut self, page: u32, rate: f64) {
        self.change(page, |hot| {
            if hot.publication() == Publication::None {
                hot.rate = HotPage::unread(0.0, false, rate).rate;
            }
        });
    }

    /// The site's own metadata say that the page has changed since it was read. It is as urgent as one that has waited for ever:
    /// it goes before all pages that may only have changed, within the bandwidth; where the policy is `crawl-value`, as far as its
    /// copy will last long enough to be worth it.
    pub fn changed_says_site(&mut self, page: u32) {
        self.change(page, |hot| hot.set(TOLD, true));
    }

    /// The site's own metadata say that the page was unchanged at `at_s`: as good as a read.
    pub fn unchanged_says_site(&mut self, page: u32, at_s: u32) {
        self.change(page, |hot| {
            if hot.last_read_s > 0 {
                hot.last_read_s = hot.last_read_s.max(at_s);
                hot.set(TOLD, false);
            }
        });
    }

    /// Somebody publishes something about the page.
    pub fn publish(&mut self, page: u32, publication: Publication) {
        self.change(page, |hot| hot.publish(publication));
    }

    /// Somebody wants the page now. A dead page gets another chance.
    pub fn want(&mut self, page: u32) {
        self.change(page, |hot| {
            hot.set(WANTED, true);
            if hot.kind() == Kind::Dead {
                hot.set_kind(Kind::Error);
            }
        });
    }

    /// The page is on the repository's due list: unless it is read this cycle it is removed.
    pub fn expired(&mut self, page: u32) {
        self.change(page, |hot| hot.set(EXPIRED, hot.kind() != Kind::Dead));
    }

    /// Marks the pages of a plan as issued.
    pub fn issue(&mut self, plan: &Plan) {
        for page in plan.pages() {
            self.change(page, |hot| hot.set(ISSUED, true));
        }
        self.hosts.issued(plan.pages(), plan.cycle);
    }

    /// A page is on a host, which is a number of the caller's. Hosts are not planned for more reads in a cycle than
    /// [`Scheduler::pace`] leaves room for.
    pub fn set_host(&mut self, page: u32, host: u32) {
        self.hosts.set(page, host);
    }

    /// So many seconds lie between two reads of a host; `None` for all hosts of which nothing else was said. 0: no limit.
    pub fn pace(&mut self, host: Option<u32>, delay_s: f64) {
        self.hosts.pace(host, delay_s);
    }

    /// The factor of each kind's weights: χ against the mean, times the kind's own.
    pub fn factors(&self) -> [f64; Kind::COUNT] {
        let mean = |xml: bool| {
            let of_class = Kind::ALL.into_iter().filter(|kind| kind.is_xml() == xml);
            let (weight, count) = of_class
                .map(|kind| self.sums(kind))
                .fold((0.0, 0.0), |(w, c), sums| (w + sums.weight, c + sums.count));
            if count > 0.5 && weight > 0.0 { weight / count } else { 1.0 }
        };
        let (xml, html) = (1.0 / mean(true), 1.0 / mean(false));
        let chi = match self.settings.chi {
            Chi::MeanWeight(chi) => chi,
            Chi::Share(_) => 1.0,
        };
        let mut factors = self.settings.factors;
        for (factor, kind) in factors.iter_mut().zip(Kind::ALL) {
            *factor *= if kind.is_xml() { chi * xml } else { html };
        }
        factors
    }

    /// G': reads a day for refreshing, once discovery and fixed refreshes have theirs.
    pub fn refresh_bandwidth(&self) -> f64 {
        let share = 1.0 - self.settings.discovery_xml - self.settings.discovery_html;
        (self.settings.bandwidth * share - self.population.fixed).max(0.0)
    }

    /// The longest wait that can be promised to every page: as set, or as long as the share of refreshes that may go to it needs for
    /// all pages; `None` if nothing is promised.
    pub fn longest_wait_days(&self) -> Option<f64> {
        let pages: f64 = Kind::ALL.into_iter().map(|kind| self.sums(kind).count).sum();
        let turn = pages / (self.refresh_bandwidth() * self.settings.longest_wait_share);
        Some(self.settings.longest_wait_days?.max(turn)).filter(|days| days.is_finite())
    }

    /// The price of a read at which the refreshed pages use G' up, of XML and of other pages (the same unless χ is a share).
    /// O(bins), not O(pages). Hosts without room are left to the plan: where they are, prices are a little lower than this.
    pub fn prices(&self) -> (f64, f64) {
        let budget = self.refresh_bandwidth();
        let limits = Limits {
            cycle: Some(self.settings.cycle_days()),
            longest_wait: self.longest_wait_days(),
            host_frequency_max: None,
        };
        let factors = self.factors();
        let groups = |wanted: &dyn Fn(Kind) -> bool| -> Vec<(Demand, f64)> {
            let kinds = Kind::ALL.into_iter().zip(factors).filter(|(kind, _)| wanted(*kind));
            let of_kind = |(kind, factor): (Kind, f64)| {
                self.population.bins(kind).map(move |bin| {
                    let (weight, rate) = (factor * bin.weight / bin.count, bin.rate / bin.count);
                    (Demand { weight: weight.max(0.0), rate: rate.max(0.0), host: None }, bin.count)
                })
            };
            kinds.flat_map(of_kind).collect()
        };
        let at = |groups: Vec<_>, budget| price(&self.settings.policy, &groups, budget, &limits);
        match self.settings.chi {
            Chi::MeanWeight(_) => {
                let price = at(groups(&|_| true), budget);
                (price, price)
            }
            Chi::Share(share) => {
                let xml = at(groups(&Kind::is_xml), budget * share);
                (xml, at(groups(&|kind| !kind.is_xml()), budget * (1.0 - share)))
            }
        }
    }

    fn change(&mut self, page: u32, change: impl FnOnce(&mut HotPage)) {
        if let Some(hot) = self.pages.get_mut(page as usize) {
            let before = *hot;
            change(hot);
            let after = *hot;
            if Population::tells_apart(&before, &after) {
                self.population.remove(&before);
                self.population.add(&after);
            }
        }
    }
}
