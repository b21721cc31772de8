//! The scheduler at work: every page's hot state, what is known about all of them together, and what to read next.
//!
//! ```text
//!   wanted now, expired    first, as many as there are
//!   first reads            σ_X·G XML suspects and σ_H·G others a day, the most important first
//!   fixed refreshes        when they are due
//!   longest wait           pages that waited longer than that, with at most half of what is left
//!   refreshes              all the rest of G, the most urgent first
//! ```
//!
//! Once a cycle [`Scheduler::plan`] looks at all pages and fills just the cycle's share of G: a page's urgency is the price at
//! which it would be due now, and the highest prices win. In the steady state the last one that is taken is due at the price
//! at which [`super::allocate`] uses the budget up, so frequencies come out as allocated; and while it warms up, or while
//! weights, rates and pages change, G is kept all the same. Shares that are not used (nothing to discover, nothing due) go to
//! the others, so the first cycle is all discovery.
//!
//! 1. A page is never planned twice within a cycle's time, nor while it is issued and neither read nor returned.
//! 2. A page is in the population ([`Population`]) exactly as its hot state says: every change removes and adds it.

use super::allocation::{Demand, Limits, price};
use super::page::{EXPIRED, HotPage, ISSUED, Kind, Publication, SUSPECT, WANTED};
use super::policy::Policy;
use super::population::{Population, Sums};
use super::settings::{BadSetting, Chi, Settings};
use super::top::Top;

/// Seconds of a day.
const DAY_S: f64 = 86_400.0;

/// What to read in one cycle: numbers of pages, most urgent first in every list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Pages somebody wants now.
    pub wanted: Vec<u32>,
    /// Pages on the repository's due list.
    pub expired: Vec<u32>,
    /// First reads of XML suspects.
    pub discovery_xml: Vec<u32>,
    /// First reads of other pages.
    pub discovery_html: Vec<u32>,
    /// Pages with a fixed refresh.
    pub fixed: Vec<u32>,
    /// Pages that waited longest.
    pub waited: Vec<u32>,
    /// Pages worth refreshing.
    pub refresh: Vec<u32>,
}

impl Plan {
    /// All pages of the plan, in the order to read them.
    pub fn pages(&self) -> impl Iterator<Item = u32> + '_ {
        let lists = [
            &self.wanted,
            &self.expired,
            &self.fixed,
            &self.waited,
            &self.refresh,
            &self.discovery_xml,
            &self.discovery_html,
        ];
        lists.into_iter().flatten().copied()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.pages().count()
    }

    /// Whether there is nothing to read.
    pub fn is_empty(&self) -> bool {
        self.pages().next().is_none()
    }
}

/// Why a page is due when.
#[derive(Clone, PartialEq, Debug)]
pub struct Explanation {
    /// When it is due, seconds since 1970; `None`: not by itself.
    pub due_s: Option<u64>,
    /// What decides.
    pub reason: Reason,
    /// Its weight with χ and its kind's factor.
    pub weight: f64,
    /// Changes a day.
    pub rate: f64,
    /// Reads a day at the present price.
    pub frequency: f64,
    /// The present price of a read, in the policy's own measure.
    pub price: f64,
}

/// What decides when a page is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Somebody wants it now.
    Wanted,
    /// It is on the repository's due list.
    Expired,
    /// It was never read, and waits for its turn by importance.
    Unread,
    /// It is being read.
    Issued,
    /// It has a fixed refresh.
    Fixed,
    /// The policy.
    Policy,
    /// The policy would read it later or never, but nobody waits longer than this.
    LongestWait,
    /// The policy would read it sooner, but nobody is read twice in a cycle.
    Cycle,
    /// Somebody said never.
    Never,
    /// It is gone from the web.
    Dead,
}

/// The page scheduler.
#[derive(Clone, Debug)]
pub struct Scheduler {
    settings: Settings,
    pages: Vec<HotPage>,
    population: Population,
}

impl Scheduler {
    /// A scheduler without pages.
    ///
    /// # Errors
    /// A setting that makes no sense.
    pub fn new(settings: Settings) -> Result<Scheduler, BadSetting> {
        settings.check()?;
        Ok(Scheduler { settings, pages: Vec::new(), population: Population::default() })
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
            for flag in [ISSUED, EXPIRED, WANTED, SUSPECT] {
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
            for flag in [ISSUED, EXPIRED, WANTED] {
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
            for flag in [ISSUED, WANTED] {
                hot.set(flag, false);
            }
        });
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

    /// The site's own metadata say that the page has changed since it was read: it is read at once.
    pub fn changed_says_site(&mut self, page: u32) {
        self.want(page);
    }

    /// The site's own metadata say that the page was unchanged at `at_s`: as good as a read.
    pub fn unchanged_says_site(&mut self, page: u32, at_s: u32) {
        self.change(page, |hot| {
            if hot.last_read_s > 0 {
                hot.last_read_s = hot.last_read_s.max(at_s);
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

    /// The price of a read at which the refreshed pages use G' up, of XML and of other pages (the same unless χ is a share).
    /// O(bins), not O(pages).
    pub fn prices(&self) -> (f64, f64) {
        let budget = self.refresh_bandwidth();
        let limits = Limits {
            cycle: Some(self.settings.cycle_days()),
            longest_wait: self.settings.longest_wait_days,
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

    /// What to read in the cycle that begins now. Looks at every page once; changes nothing.
    pub fn plan(&self, now_s: u32) -> Plan {
        self.plan_of(now_s, self.pages.iter().enumerate().map(|(number, hot)| (number as u32, hot)))
    }

    /// The same, looking only at some pages: those that a calendar says are due.
    pub fn plan_some(&self, now_s: u32, pages: &[u32]) -> Plan {
        self.plan_of(now_s, pages.iter().filter_map(|&number| Some((number, self.page(number)?))))
    }

    fn plan_of<'a>(&self, now_s: u32, pages: impl Iterator<Item = (u32, &'a HotPage)>) -> Plan {
        let settings = &self.settings;
        let reads = settings.bandwidth * settings.cycle_days();
        // Reads of a part of a cycle are carried: the n-th cycle since 1970 takes what rounding down left behind.
        let cycle = f64::from(now_s / settings.cycle_s);
        let total = ((cycle + 1.0) * reads).floor() - (cycle * reads).floor();
        let total = total as usize;
        let factors = self.factors();
        let longest_s = settings.longest_wait_days.map_or(f64::INFINITY, |days| days * DAY_S);
        let policy = settings.policy;
        let mut plan = Plan::default();
        let mut unread_xml = Top::new(total);
        let mut unread_html = Top::new(total);
        let mut waited = Top::new(total);
        let mut due = [Top::new(total), Top::new(total)];
        for (number, hot) in pages {
            if hot.has(ISSUED) {
                continue;
            }
            if hot.has(WANTED) {
                plan.wanted.push(number);
                continue;
            }
            if hot.is_never() {
                continue;
            }
            if hot.last_read_s == 0 {
                // Even a page of no importance is worth a read when there is nothing else.
                let importance = hot.weight.max(f32::MIN_POSITIVE);
                if hot.has(SUSPECT) { &mut unread_xml } else { &mut unread_html }.offer(importance, number);
                continue;
            }
            if hot.has(EXPIRED) {
                plan.expired.push(number);
                continue;
            }
            let elapsed_s = now_s.saturating_sub(hot.last_read_s);
            if elapsed_s < settings.cycle_s {
                continue;
            }
            let elapsed_s = f64::from(elapsed_s);
            if hot.is_fixed() {
                if elapsed_s * hot.rate() >= DAY_S {
                    plan.fixed.push(number);
                }
                continue;
            }
            if elapsed_s >= longest_s {
                waited.offer(elapsed_s as f32, number);
                continue;
            }
            let kind = hot.kind();
            let weight = hot.weight() * factors.get(kind as usize).copied().unwrap_or(1.0);
            let urgency = policy.price(weight, hot.rate(), elapsed_s / DAY_S) as f32;
            let [xml, html] = &mut due;
            let apart = matches!(settings.chi, Chi::Share(_));
            if apart && kind.is_xml() { xml } else { html }.offer(urgency, number);
        }
        let [due_xml, due_html] = due;
        let lists = Candidates {
            unread_xml: unread_xml.finish(),
            unread_html: unread_html.finish(),
            waited: waited.finish(),
            due_xml: due_xml.finish(),
            due_html: due_html.finish(),
        };
        self.share_out(plan, lists, total)
    }

    /// Cuts the lists to the reads there are.
    fn share_out(&self, mut plan: Plan, mut lists: Candidates, total: usize) -> Plan {
        let asked = plan.wanted.len() + plan.expired.len();
        let mut left = total.saturating_sub(asked);
        let share = |share: f64| ((total as f64 * share).round() as usize).min(left);
        let (for_xml, for_html) = (share(self.settings.discovery_xml), share(self.settings.discovery_html));
        plan.discovery_xml = take(&mut lists.unread_xml, for_xml);
        plan.discovery_html = take(&mut lists.unread_html, for_html.min(left - plan.discovery_xml.len()));
        left -= plan.discovery_xml.len() + plan.discovery_html.len();
        plan.fixed.truncate(left);
        left -= plan.fixed.len();
        plan.waited = take(&mut lists.waited, left / 2);
        left -= plan.waited.len();
        if let Chi::Share(xml) = self.settings.chi {
            plan.refresh = take(&mut lists.due_xml, (left as f64 * xml).round() as usize);
        }
        let room = left - plan.refresh.len();
        plan.refresh.extend(take(&mut lists.due_html, room));
        left -= plan.refresh.len();
        // What one does not use, the others do.
        for (list, into) in [
            (&mut lists.due_xml, &mut plan.refresh),
            (&mut lists.waited, &mut plan.waited),
            (&mut lists.unread_xml, &mut plan.discovery_xml),
            (&mut lists.unread_html, &mut plan.discovery_html),
        ] {
            let more = take(list, left);
            left -= more.len();
            into.extend(more);
        }
        plan
    }

    /// When a page is due, and why then.
    pub fn explain(&self, page: u32) -> Option<Explanation> {
        self.explain_at(page, self.prices(), &self.factors())
    }

    /// When pages are due at the present prices: they are found once, for any number of pages.
    pub(super) fn due_times(&self) -> DueTimes<'_> {
        DueTimes { scheduler: self, prices: self.prices(), factors: self.factors() }
    }

    fn explain_at(&self, page: u32, prices: (f64, f64), factors: &[f64; Kind::COUNT]) -> Option<Explanation> {
        let hot = *self.page(page)?;
        let kind = hot.kind();
        let weight = hot.weight() * factors.get(kind as usize).copied().unwrap_or(1.0);
        let price = if kind.is_xml() { prices.0 } else { prices.1 };
        let at = |days: f64| {
            let due = days.is_finite().then(|| u64::from(hot.last_read_s) + (days * DAY_S) as u64);
            due.filter(|_| hot.last_read_s > 0)
        };
        let wanted = if price > 0.0 {
            self.settings.policy.frequency(weight, hot.rate(), price)
        } else {
            f64::INFINITY
        };
        let (cycle, longest) =
            (self.settings.cycle_days(), self.settings.longest_wait_days.unwrap_or(f64::INFINITY));
        let by_policy = match 1.0 / wanted {
            days if days < cycle => (cycle, Reason::Cycle),
            days if days > longest => (longest, Reason::LongestWait),
            days => (days, Reason::Policy),
        };
        let (days, reason) = if hot.has(ISSUED) {
            (f64::INFINITY, Reason::Issued)
        } else if hot.has(WANTED) {
            (0.0, Reason::Wanted)
        } else if kind == Kind::Dead {
            (f64::INFINITY, Reason::Dead)
        } else if hot.is_never() {
            (f64::INFINITY, Reason::Never)
        } else if hot.last_read_s == 0 {
            (f64::INFINITY, Reason::Unread)
        } else if hot.has(EXPIRED) {
            (0.0, Reason::Expired)
        } else if hot.is_fixed() {
            ((1.0 / hot.rate()).max(cycle), Reason::Fixed)
        } else {
            by_policy
        };
        let frequency = if days.is_finite() && days > 0.0 { 1.0 / days } else { 0.0 };
        Some(Explanation { due_s: at(days), reason, weight, rate: hot.rate(), frequency, price })
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

pub(super) struct DueTimes<'a> {
    scheduler: &'a Scheduler,
    prices: (f64, f64),
    factors: [f64; Kind::COUNT],
}

impl DueTimes<'_> {
    pub(super) fn of(&self, page: u32) -> Option<u64> {
        self.scheduler.explain_at(page, self.prices, &self.factors)?.due_s
    }
}

struct Candidates {
    unread_xml: Vec<u32>,
    unread_html: Vec<u32>,
    waited: Vec<u32>,
    due_xml: Vec<u32>,
    due_html: Vec<u32>,
}

/// The first of a list; the rest stays.
fn take(list: &mut Vec<u32>, count: usize) -> Vec<u32> {
    let rest = list.split_off(count.min(list.len()));
    std::mem::replace(list, rest)
}
