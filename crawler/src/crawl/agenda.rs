//! The agenda: what every visit said (the refresh table), what pages weigh, and the scheduler that makes a plan of both.
//!
//! A page weighs what the estimator says (`ranked.rs`: importance of XML, usefulness of others) where it says anything, and what links
//! have dealt it so far (`worth.rs`) elsewhere: pages that it does not know, and crawls whose links nobody has ranked.
//!
//! All of the scheduler's state is in memory, 16 bytes a page, and made again from rows, visits and worth when the crawl is opened.
//! Without a bandwidth nothing is planned: pages are read in the order in which they are found; the rest is kept all the same.
//!
//! The bandwidth is kept by a purse: so many reads a day come in, a plan takes what is there. Plans are made often, since pages are
//! found all the time; that no page is read twice in a refresh cycle is the scheduler's to see to.

pub(super) mod belief;
mod weights;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use tokio::time::Instant;

use self::belief::{Sites, reading_of, until_listed};
use super::CrawlError;
use super::ranked::Ranked;
use super::worth::Worth;
use crate::change_rate::Prior;
use crate::fetcher::Priority;
use crate::frontier::{Found, Learned, Row, State, Told, UrlId, What, host_of};
use crate::metadata::{RefreshRow, RefreshTable};
use crate::scheduler::{BadSetting, Explanation, HotPage, Kind, Plan, Publication, Scheduler, Settings};

const DAY_MS: f64 = 86_400_000.0;
/// Plans in a refresh cycle, when there is enough to do.
const PLANS: u64 = 20;
/// Between two plans, in milliseconds: at least, and at most.
const PLAN_MS: (u64, u64) = (1_000, 60_000);
/// A plan is made at most so often before it is what it is.
const REPLANS: usize = 8;
/// A plan is not repeated before this many times what it took.
const PATIENCE: u32 = 20;
/// How often a page is tried that its site calls changed, before that counts for nothing.
const TOLD_TRIES: u8 = 3;

/// What a visit came to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Came {
    /// A page, or at least an answer.
    Answer { signature: u64, modified_at_ms: Option<u64>, told_at_ms: Option<u64>, kind: Kind, status: u16 },
    /// It is as it was.
    Unchanged,
    /// 404 or 410.
    Gone { status: u16 },
    /// Another answer that is no page: it says nothing of the page.
    Error { status: u16 },
    /// Nothing.
    Failed,
}

pub(super) struct Agenda {
    scheduler: Scheduler,
    visits: RefreshTable,
    worth: Worth,
    worth_path: PathBuf,
    ranked: Ranked,
    ranked_path: PathBuf,
    is_planning: bool,
    /// Reads that may be planned.
    purse: f64,
    planned_at_ms: Option<u64>,
    plan_again: Instant,
    sites: Sites,
    sites_path: PathBuf,
    /// Numbers of hosts, where there is a bandwidth to be shared out.
    hosts: HashMap<String, u32>,
    /// Pages that are to be read because their sites say that they changed, and how often that was tried in vain.
    told: HashMap<UrlId, u8>,
    /// Pages planned so far.
    pub(super) planned: u64,
}

impl Agenda {
    /// Opens the tables in a folder. What was known before is added by [`Agenda::page`], in order of ids.
    pub(super) fn open(dir: &Path, settings: Option<Settings>) -> Result<Agenda, CrawlError> {
        let is_planning = settings.is_some();
        let (worth_path, ranked_path) = (dir.join("worth"), dir.join("ranked"));
        let sites_path = dir.join("sites");
        Ok(Agenda {
            scheduler: Scheduler::new(settings.unwrap_or_default())?,
            visits: RefreshTable::open(&dir.join("visits"))?,
            worth: Worth::open(&worth_path).map_err(CrawlError::Worth)?,
            worth_path,
            ranked: Ranked::open(&ranked_path),
            ranked_path,
            is_planning,
            purse: 0.0,
            planned_at_ms: None,
            plan_again: Instant::now(),
            sites: Sites::open(&sites_path).map_err(CrawlError::Sites)?,
            sites_path,
            hosts: HashMap::new(),
            told: HashMap::new(),
            planned: 0,
        })
    }

    /// Whether there is a bandwidth to be shared out.
    pub(super) fn is_planning(&self) -> bool {
        self.is_planning
    }

    /// How the bandwidth is used.
    pub(super) fn settings(&self) -> &Settings {
        self.scheduler.settings()
    }

    /// Changes how the bandwidth is used, from the next plan on.
    pub(super) fn set(&mut self, settings: Settings) -> Result<(), BadSetting> {
        self.scheduler.set(settings)
    }

    /// Takes in a page that was known before, the next by number, with what its visits said.
    pub(super) fn page(&mut self, id: UrlId, row: &Row) -> Result<(), CrawlError> {
        let visit = self.visits.row(id)?.filter(|visit| visit.last_read_s > 0);
        self.add(id, row, visit);
        Ok(())
    }

    fn add(&mut self, id: UrlId, row: &Row, visit: Option<RefreshRow>) {
        if (self.scheduler.len() as u32) > id {
            return;
        }
        // A number without a page: a dead one keeps its place.
        while (self.scheduler.len() as u32) < id {
            self.scheduler.add(HotPage::read(Kind::Dead, 1, 0.0, 0.0));
        }
        self.worth.grow(id as usize + 1);
        let rate = visit.unwrap_or_default().rate.rate(&Prior::WEB_DAYS);
        let is_xml = visit.map_or(row.is_suspect, |visit| visit.kind.is_xml());
        let weight = self.weight(id, is_xml);
        let hot = match visit {
            Some(visit) => {
                let errs = visit.status >= 400 && !matches!(visit.status, 404 | 410);
                let kind = if errs { Kind::Error } else { visit.kind };
                HotPage::read(kind, visit.last_read_s, weight, rate)
            }
            None => HotPage::unread(weight, row.is_suspect, rate),
        };
        let page = self.scheduler.add(hot);
        if self.is_planning {
            let next = self.hosts.len() as u32;
            let host = *self.hosts.entry(row.host().to_owned()).or_insert(next);
            self.scheduler.set_host(page, host);
        }
        if let Some(visit) = visit.filter(|visit| matches!(visit.status, 404 | 410)) {
            for _ in 0..row.tries {
                self.scheduler.gone(page, visit.last_read_s);
            }
        }
        match row.what {
            What::Page => self.scheduler.publish(page, row.published),
            what => self.scheduler.publish(page, reading_of(what, &row.url, row.read_at_ms)),
        }
        if row.is_told_changed() {
            self.told.insert(page, 0);
            self.scheduler.changed_says_site(page);
        }
        if row.state == State::Waiting {
            self.issue(page);
        }
    }

    fn issue(&mut self, page: UrlId) {
        self.scheduler.issue(&Plan { wanted: vec![page], ..Plan::default() });
    }

    /// What the frontier learned. Returns the pages that are to be read again at once, where nothing is planned.
    pub(super) fn learned(&mut self, learned: &Learned) -> Vec<(UrlId, Priority)> {
        for (id, row) in &learned.new {
            self.add(*id, row, None);
        }
        self.deal(&learned.dealt);
        let mut again = Vec::new();
        for told in &learned.told {
            if self.told(told) {
                again.push((told.id, Priority::Refresh));
            }
        }
        again
    }

    /// Pages get what links deal them.
    pub(super) fn deal(&mut self, dealt: &[(UrlId, f32)]) {
        for (id, share) in dealt {
            self.worth.deal(*id, *share);
        }
        // Some pages are linked to from every page: each is weighed once.
        let mut pages: Vec<UrlId> = dealt.iter().map(|(id, _)| *id).collect();
        pages.sort_unstable();
        pages.dedup();
        for page in pages {
            self.weigh(page);
        }
    }

    /// What a site, or somebody, says of a page. Returns whether it is to be read at once.
    fn told(&mut self, told: &Told) -> bool {
        if told.again {
            self.scheduler.expired(told.id);
            return !self.is_planning;
        }
        let Some(changed_at_ms) = told.changed_at_ms.filter(|_| told.read_at_ms > 0) else {
            return false;
        };
        if !self.sites.of(&told.host).is_believed() || changed_at_ms <= told.read_at_ms {
            return false;
        }
        self.told.insert(told.id, 0);
        self.scheduler.changed_says_site(told.id);
        !self.is_planning
    }

    /// A page was not had. What its site says of it still stands, for some tries.
    fn in_vain(&mut self, id: UrlId, now_s: u32) {
        self.scheduler.failed(id, now_s);
        if let Some(tries) = self.told.get_mut(&id) {
            *tries += 1;
            if *tries >= TOLD_TRIES {
                self.told.remove(&id);
                self.scheduler.told_in_vain(id);
            }
        }
    }

    /// A page was visited. Durable after [`Agenda::sync`]. Returns whether it is dead now.
    pub(super) fn visited(
        &mut self,
        id: UrlId,
        url: &str,
        came: Came,
        at_ms: u64,
    ) -> Result<bool, CrawlError> {
        let now_s = seconds(at_ms);
        let mut visit = self.visits.row(id)?.unwrap_or_default();
        let changed = match came {
            Came::Failed => {
                self.in_vain(id, now_s);
                return Ok(false);
            }
            Came::Error { status } => {
                // What was read before is still what is known: signature, rate and kind stay.
                visit.status = status;
                self.visits.set(id, &visit)?;
                self.in_vain(id, now_s);
                self.scheduler.errs(id);
                return Ok(false);
            }
            Came::Gone { status } => {
                self.scheduler.gone(id, now_s);
                visit.status = status;
                visit.last_read_s = now_s.max(1);
                if self.is_dead(id) {
                    visit.kind = Kind::Dead;
                }
                true
            }
            Came::Unchanged => {
                let told = Some(visit.last_change_told_s).filter(|told| *told > 0);
                let RefreshRow { signature, kind, .. } = visit;
                let status = if visit.status >= 400 { 304 } else { visit.status };
                visit.read(now_s, signature, told, kind, status)
            }
            Came::Answer { signature, modified_at_ms, told_at_ms, kind, status } => {
                // A page that does not say when it changed is dated by its site's own list, where that is believed.
                let is_believed = self.sites.of(host_of(url)).is_believed();
                let dated = modified_at_ms.or(told_at_ms.filter(|_| is_believed));
                visit.read(now_s, signature, dated.map(seconds), kind, status)
            }
        };
        visit.importance = self.weight(id, visit.kind.is_xml()) as f32;
        self.visits.set(id, &visit)?;
        if !matches!(came, Came::Gone { .. }) {
            self.scheduler.read(id, now_s, visit.kind, visit.rate.rate(&Prior::WEB_DAYS));
            // It may be of another kind than it was taken for.
            self.weigh(id);
        }
        if self.told.remove(&id).is_some() {
            let site = self.sites.of_mut(host_of(url));
            if changed { site.truths += 1 } else { site.lies += 1 }
        }
        Ok(self.is_dead(id))
    }

    /// Whether the repository wants to know whether a page is still there.
    pub(super) fn is_expired(&self, id: UrlId) -> bool {
        self.scheduler.page(id).is_some_and(HotPage::is_expired)
    }

    fn is_dead(&self, id: UrlId) -> bool {
        self.scheduler.page(id).is_some_and(|hot| hot.kind() == Kind::Dead)
    }

    /// A page was read and links to so many: what each of them gets.
    pub(super) fn dealt_by(&mut self, id: UrlId, links: usize) -> f32 {
        let share = self.worth.read(id, links);
        self.weigh(id);
        share
    }

    /// A list of a site's pages was read, with what it says of them: when it is read again.
    pub(super) fn listing(&mut self, id: UrlId, row: &Row, found: &[Found]) {
        self.scheduler.publish(id, reading_of(row.what, &row.url, row.read_at_ms));
        // A robots file that names archives confirms those that were there before.
        if found.iter().any(|entry| entry.changed_at_ms.is_some() || entry.what == What::Archive) {
            self.listed(row, row.read_at_ms);
        }
    }

    /// A list of a site's pages was as it was: so are the pages that it has.
    pub(super) fn listed(&mut self, row: &Row, at_ms: u64) {
        self.sites.of_mut(row.host()).listed_at_ms = Some(at_ms);
    }

    /// Whether a page's site would have said that it changed: then it need not be asked. Until when that counts.
    fn is_told(&self, row: &Row, now_ms: u64) -> Option<u64> {
        let site = Some(self.sites.of(row.host())).filter(|site| site.is_believed() && row.is_listed)?;
        let until = until_listed(site.listed_at_ms?);
        let wait = self.settings().longest_wait_days.unwrap_or(90.0) * DAY_MS;
        // A page whose site says nothing true is still read once in the longest wait.
        let lately = now_ms.saturating_sub(row.read_at_ms) < wait as u64;
        (until > now_ms && lately).then_some(until)
    }

    /// Somebody publishes something about a page.
    pub(super) fn publish(&mut self, id: UrlId, publication: Publication) {
        self.scheduler.publish(id, publication);
    }

    /// Somebody wants a page now.
    pub(super) fn want(&mut self, id: UrlId) {
        self.scheduler.want(id);
    }

    /// Makes visits durable.
    pub(super) fn sync(&mut self) -> Result<(), CrawlError> {
        Ok(self.visits.sync()?)
    }

    /// Writes down what pages are worth, and which sites are believed.
    pub(super) fn save(&self) -> Result<(), CrawlError> {
        self.sites.save(&self.sites_path).map_err(CrawlError::Sites)?;
        self.worth.save(&self.worth_path).map_err(CrawlError::Worth)
    }

    /// What to read now, if it is time for a plan. `idle` when nothing else is to be done.
    pub(super) fn plan(
        &mut self,
        now_ms: u64,
        idle: bool,
        row_of: impl Fn(UrlId) -> Result<Option<Row>, CrawlError>,
    ) -> Result<Vec<(UrlId, Priority)>, CrawlError> {
        if !self.is_planning || Instant::now() < self.plan_again {
            return Ok(Vec::new());
        }
        let usual = u64::from(self.settings().cycle_s) * 1000 / PLANS;
        let usual = usual.clamp(PLAN_MS.0, PLAN_MS.1);
        let since = self.planned_at_ms.map_or(usual, |at| now_ms.saturating_sub(at));
        if since < if idle { PLAN_MS.0.min(usual) } else { usual } {
            return Ok(Vec::new());
        }
        let began = Instant::now();
        let a_ms = self.settings().bandwidth / DAY_MS;
        let most = (2.0 * a_ms * usual as f64).max(1.0).max(a_ms * since as f64);
        self.purse = (self.purse + a_ms * since as f64).min(most);
        self.planned_at_ms = Some(now_ms);
        let mut plan = Plan::default();
        // Pages that need not be asked for are left out, and others take their places.
        for _ in 0..REPLANS {
            plan = self.scheduler.plan_reads(seconds(now_ms), self.purse.max(0.0) as usize);
            let planned = plan.refresh.len();
            let mut kept = Vec::with_capacity(planned);
            for page in plan.refresh {
                // What its site calls changed is read; what it would have called changed need not be.
                let row = if self.told.contains_key(&page) { None } else { row_of(page)? };
                let told = row.and_then(|row| self.is_told(&row, now_ms));
                match told {
                    Some(until) => self.scheduler.unchanged_says_site(page, seconds(until)),
                    None => kept.push(page),
                }
            }
            plan.refresh = kept;
            if plan.refresh.len() == planned {
                break;
            }
        }
        self.scheduler.issue(&plan);
        self.purse -= plan.len() as f64;
        self.planned += plan.len() as u64;
        self.plan_again = Instant::now() + began.elapsed() * PATIENCE;
        let first_reads = plan.discovery_xml.len() + plan.discovery_html.len();
        let refreshes = plan.len() - first_reads;
        let priority = |at| if at < refreshes { Priority::Refresh } else { Priority::Discovery };
        Ok(plan.pages().enumerate().map(|(at, page)| (page, priority(at))).collect())
    }

    /// The share of pages that are as they were read, as far as is known.
    pub(super) fn freshness(&self, now_ms: u64) -> Option<f64> {
        self.scheduler.freshness(seconds(now_ms))
    }

    /// When a page is due and why, and what its visits said.
    pub(super) fn explain(&self, id: UrlId) -> Result<Option<(Explanation, RefreshRow)>, CrawlError> {
        let Some(found) = self.scheduler.explain(id) else { return Ok(None) };
        Ok(Some((found, self.visits.row(id)?.unwrap_or_default())))
    }

    /// The pages that are due soonest.
    pub(super) fn soonest(&self, count: usize) -> Vec<UrlId> {
        self.scheduler.soonest(count)
    }

    /// What a page is.
    pub(super) fn kind(&self, id: UrlId) -> Kind {
        self.scheduler.page(id).map(HotPage::kind).unwrap_or_default()
    }
}

fn seconds(ms: u64) -> u32 {
    u32::try_from(ms / 1000).unwrap_or(u32::MAX)
}
