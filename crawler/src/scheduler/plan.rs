//! The plan: what to read next.
//!
//! ```text
//!   wanted now, expired    first, as many as there are
//!   first reads            σ_X·G XML suspects and σ_H·G others a day, the most important first
//!   fixed refreshes        when they are due, longest first
//!   longest wait           pages that waited longer than that, longest first, with at most a set share of what is left
//!   refreshes              all the rest of G, the most urgent first
//! ```
//!
//! Once a cycle [`Scheduler::plan`] looks at all pages and fills just the cycle's share of G: a page's urgency is the price at
//! which it would be due now, and the highest prices win. In the steady state the last one that is taken is due at the price
//! at which [`super::allocate`] uses the budget up, so frequencies come out as allocated; and while it warms up, or while
//! weights, rates and pages change, G is kept all the same. Shares that are not used (nothing to discover, nothing due) go to
//! the others, so the first cycle is all discovery.
//!
//! A host is not planned for more reads in a cycle than its delay has room for; what it would have got beyond that goes to pages of other
//! hosts. Only what somebody wants now, and what is over, goes out whatever its host has.
//!
//! A page is never planned twice in one cycle, nor within half a cycle's time (reads are spread over a cycle, and the one before
//! may have come late in its own), nor while it is issued and neither read nor returned.

use std::collections::HashSet;

use super::page::{EXPIRED, HotPage, ISSUED, SUSPECT, TOLD, WANTED};
use super::policy::Policy;
use super::running::Scheduler;
use super::settings::Chi;
use super::top::Top;

/// Seconds of a day.
pub(super) const DAY_S: f64 = 86_400.0;
/// How often all pages are looked at again, at most, because hosts had no room.
const ROUNDS: usize = 8;
/// As good as for ever: the wait that a page counts with whose site says that it has changed.
const TOLD_ELAPSED_S: f64 = 1e9 * DAY_S;

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
    /// The number of its refresh cycle, by which reads of hosts are counted; 0: of none.
    pub cycle: u32,
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

    /// What others have beside it, too.
    fn extend(&mut self, other: Plan) {
        self.wanted.extend(other.wanted);
        self.expired.extend(other.expired);
        self.discovery_xml.extend(other.discovery_xml);
        self.discovery_html.extend(other.discovery_html);
        self.fixed.extend(other.fixed);
        self.waited.extend(other.waited);
        self.refresh.extend(other.refresh);
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

impl Scheduler {
    /// What to read in the cycle that begins now. Looks at every page once, or some times where hosts have no room; changes nothing.
    pub fn plan(&self, now_s: u32) -> Plan {
        self.plan_reads(now_s, self.reads_of_cycle(now_s))
    }

    /// What to read now, if there may be so many reads: for whoever plans more often than once a cycle.
    pub fn plan_reads(&self, now_s: u32, reads: usize) -> Plan {
        let pages = self.pages.iter().enumerate().map(|(number, hot)| (number as u32, hot));
        self.plan_of(now_s, reads, pages)
    }

    /// The reads of a cycle. Those of a part of one are carried: the n-th cycle since 1970 takes what rounding down left behind.
    fn reads_of_cycle(&self, now_s: u32) -> usize {
        let reads = self.settings.bandwidth * self.settings.cycle_days();
        let cycle = f64::from(now_s / self.settings.cycle_s);
        (((cycle + 1.0) * reads).floor() - (cycle * reads).floor()) as usize
    }

    /// The same, looking only at some pages: those that a calendar says are due.
    pub fn plan_some(&self, now_s: u32, pages: &[u32]) -> Plan {
        let reads = self.reads_of_cycle(now_s);
        self.plan_of(now_s, reads, pages.iter().filter_map(|&number| Some((number, self.page(number)?))))
    }

    fn plan_of<'a>(
        &self,
        now_s: u32,
        total: usize,
        pages: impl Iterator<Item = (u32, &'a HotPage)> + Clone,
    ) -> Plan {
        let cycle = now_s / self.settings.cycle_s;
        if self.hosts.is_empty() {
            return Plan { cycle, ..self.plan_once(now_s, total, pages) };
        }
        let mut rooms = self.hosts.rooms(cycle, self.settings.cycle_s);
        let (mut plan, mut taken) = (Plan { cycle, ..Plan::default() }, HashSet::new());
        for _ in 0..ROUNDS {
            let open = pages.clone().filter(|(page, hot)| {
                !taken.contains(page) && (rooms.has_room(*page) || hot.has(WANTED) || hot.has(EXPIRED))
            });
            let mut more = self.plan_once(now_s, total.saturating_sub(taken.len()), open);
            let found = more.len();
            for page in more.wanted.iter().chain(&more.expired) {
                rooms.take(*page);
            }
            for list in [
                &mut more.fixed,
                &mut more.waited,
                &mut more.refresh,
                &mut more.discovery_xml,
                &mut more.discovery_html,
            ] {
                list.retain(|page| rooms.take(*page));
            }
            let kept = more.len();
            taken.extend(more.pages());
            plan.extend(more);
            if kept == found || taken.len() >= total {
                break;
            }
        }
        plan
    }

    fn plan_once<'a>(
        &self,
        now_s: u32,
        total: usize,
        pages: impl Iterator<Item = (u32, &'a HotPage)>,
    ) -> Plan {
        let settings = &self.settings;
        let factors = self.factors();
        let longest_s = settings.longest_wait_days.map_or(f64::INFINITY, |days| days * DAY_S);
        let cycle_began_s = now_s - now_s % settings.cycle_s;
        let policy = settings.policy;
        let mut plan = Plan::default();
        let mut unread_xml = Top::new(total);
        let mut unread_html = Top::new(total);
        let mut waited = Top::new(total);
        let mut fixed = Top::new(total);
        // Some of them may be taken because they have waited.
        let due_max = total + settings.waited_max(total);
        let mut due = [Top::new(due_max), Top::new(due_max)];
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
            if hot.last_read_s >= cycle_began_s || elapsed_s < settings.cycle_s / 2 {
                continue;
            }
            let elapsed_s = if hot.has(TOLD) { TOLD_ELAPSED_S } else { f64::from(elapsed_s) };
            if hot.is_fixed() {
                if elapsed_s * hot.rate() >= DAY_S {
                    fixed.offer(elapsed_s as f32, number);
                }
                continue;
            }
            if elapsed_s >= longest_s && !hot.has(TOLD) {
                waited.offer(elapsed_s as f32, number);
            }
            let kind = hot.kind();
            let weight = hot.weight() * factors.get(kind as usize).copied().unwrap_or(1.0);
            let urgency = policy.price(weight, hot.rate(), elapsed_s / DAY_S) as f32;
            let [xml, html] = &mut due;
            let apart = matches!(settings.chi, Chi::Share(_));
            if apart && kind.is_xml() { xml } else { html }.offer(urgency, number);
        }
        let [due_xml, due_html] = due;
        plan.fixed = fixed.finish();
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
        plan.waited = take(&mut lists.waited, self.settings.waited_max(left));
        left -= plan.waited.len();
        let taken: HashSet<u32> = plan.waited.iter().copied().collect();
        lists.due_xml.retain(|page| !taken.contains(page));
        lists.due_html.retain(|page| !taken.contains(page));
        if let Chi::Share(xml) = self.settings.chi {
            plan.refresh = take(&mut lists.due_xml, (left as f64 * xml).round() as usize);
        }
        let room = left - plan.refresh.len();
        plan.refresh.extend(take(&mut lists.due_html, room));
        left -= plan.refresh.len();
        // What one does not use, the others do.
        let taken: HashSet<u32> = plan.refresh.iter().copied().collect();
        lists.waited.retain(|page| !taken.contains(page));
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
