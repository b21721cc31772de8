//! The keeper: brings what was fetched to disk and to the repository, batch by batch, and hands out what is next.

mod asides;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rayon::prelude::*;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use url::Url;

use super::agenda::Came;
use super::control::{Control, Question, Wish};
use super::delivery::Delivery;
use super::outcomes::{Batch, UNVERIFIED_S};
use super::peers::Peers;
use super::progress::{Progress, Rate};
use super::reading::{self, Reading};
use super::saved::save_schedule;
use super::spool::{Spool, Spooled};
use super::state::CrawlState;
use super::{CrawlError, Ended, SeenPage, Settings, Sink};
use crate::fetcher::{Fetcher, Known, Outcome, Priority, Resolve, Wanted};
use crate::frontier::{Became, Found, State, UrlId, What};

/// A batch is written when it has this many pages, or is this old.
const BATCH_PAGES: usize = 1024;
const BATCH_TIME: Duration = Duration::from_millis(500);
/// How long to wait when nothing is being fetched.
const IDLE_TIME: Duration = Duration::from_millis(50);
/// How many URLs of a host the fetcher has at a time.
const EACH_HOST: usize = 64;
/// How long requests may still take when the crawl is told to stop.
const STOP_TIME: Duration = Duration::from_secs(10);
/// How often the repository is asked for pages whose time is over, and for how many.
const DUE_MS: u64 = 30_000;
const DUE_PAGES: u32 = 1000;
/// How often a robots file is looked into for sitemaps and archives that it did not name before.
const LISTS_MS: u64 = 6 * 3_600_000;
/// Origins of which that is remembered.
const ORIGINS_MAX: usize = 100_000;
/// How often what pages are worth is written down.
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// What a keeper works with.
pub(super) struct With<S> {
    pub(super) fetcher: Arc<Fetcher>,
    pub(super) outcomes: mpsc::Receiver<Outcome>,
    pub(super) resolver: Arc<dyn Resolve>,
    pub(super) sink: Arc<S>,
    pub(super) control: Control,
    pub(super) handle: Handle,
}

pub(super) struct Keeper<S> {
    settings: Settings,
    with: With<S>,
    state: CrawlState,
    spool: Spool,
    peers: Option<Peers>,
    delivery: Delivery<S>,
    began: Instant,
    outside: u64,
    troubles: BTreeMap<String, u64>,
    rate: Rate,
    /// Origins whose robots files were looked into for sitemaps and archives, and when.
    looked: HashMap<String, u64>,
    asked_due_ms: Option<u64>,
    saved_at: Instant,
}

impl<S: Sink> Keeper<S> {
    pub(super) fn open(settings: Settings, with: With<S>) -> Result<Keeper<S>, CrawlError> {
        let mut state = CrawlState::open(&settings.dir, settings.schedule.clone())?;
        state.begin()?;
        if let Some(schedule) = &settings.schedule {
            save_schedule(&settings.dir, schedule)?;
        }
        let (spool, left) = Spool::open(&settings.dir).map_err(CrawlError::Spool)?;
        let peers = settings.shard.clone().map(|shard| {
            Peers::open(shard, Arc::clone(&with.resolver), with.handle.clone()).map_err(CrawlError::Peers)
        });
        let mut keeper = Keeper {
            delivery: Delivery::new(&settings, Arc::clone(&with.sink), with.handle.clone()),
            with,
            state,
            spool,
            peers: peers.transpose()?,
            began: Instant::now(),
            outside: 0,
            troubles: BTreeMap::new(),
            rate: Rate::new(),
            looked: HashMap::new(),
            asked_due_ms: None,
            saved_at: Instant::now(),
            settings,
        };
        keeper.begin(left)?;
        Ok(keeper)
    }

    fn now_ms(&self) -> u64 {
        (self.settings.fetch.clock)()
    }

    /// Takes seeds in, and what the last run left in its spool.
    fn begin(&mut self, left: Vec<Spooled>) -> Result<(), CrawlError> {
        self.rank()?;
        self.state.agenda.pace(None, self.settings.fetch.politeness.delay);
        let seeds = self.settings.seeds.clone();
        for seed in &seeds {
            self.settings.scope.seed(seed);
        }
        if left.is_empty() {
            self.spool.clear().map_err(CrawlError::Spool)?;
        } else {
            let rows = self.state.frontier.some_rows(left.iter().map(|page| page.facts.id))?;
            let rows = rows.into_iter().collect();
            let batch = Batch { spooled: left, rows, ..Batch::default() };
            self.write(batch, |_, _| Ok(()))?;
            self.delivered()?;
        }
        let found = seeds.iter().map(|url| Found::page(url, 0, Priority::User)).collect();
        self.commit(&[], found)?;
        if let Some(age) = self.settings.recrawl {
            self.recrawl(self.now_ms().saturating_sub(age.as_millis() as u64))?;
        }
        Ok(())
    }

    /// Wants every page again that was last read before a moment.
    fn recrawl(&mut self, before_ms: u64) -> Result<(), CrawlError> {
        let mut due = Vec::new();
        self.state.frontier.rows(|id, row| {
            // A page that was answered by an error is tried again, too.
            let erred = row.state == State::Failed && row.tries == 0;
            if (row.state == State::Read || erred) && row.read_at_ms < before_ms {
                due.push((id, Priority::Refresh));
            }
            Ok::<_, CrawlError>(())
        })?;
        for some in due.chunks(10_000) {
            self.state.frontier.want(some)?;
        }
        Ok(())
    }

    pub(super) fn run(mut self) -> Result<Ended, CrawlError> {
        let ended = loop {
            let stopping = self.with.control.is_stopped();
            let paused = self.with.control.is_paused();
            self.answer()?;
            self.take_over()?;
            if !stopping && !paused {
                self.ask_due()?;
                self.plan()?;
                self.hand_out()?;
            }
            let batch = self.collect();
            self.take(batch)?;
            self.delivery.cycles(false);
            self.tell();
            if stopping {
                break Ended::Stopped;
            }
            if self.is_over() {
                break Ended::Limit;
            }
            if !paused && self.is_done() {
                break Ended::Done;
            }
        };
        self.finish()?;
        Ok(ended)
    }

    /// Whether there is nothing to wait for. With a bandwidth there always is, and with other crawlers there may be.
    fn is_done(&self) -> bool {
        self.settings.schedule.is_none()
            && self.peers.is_none()
            && self.state.frontier.counts().1 == 0
            && self.state.frontier.unsettled() == 0
            && self.with.outcomes.is_empty()
    }

    fn is_over(&self) -> bool {
        self.settings.pages_max.is_some_and(|most| self.delivery.begun() >= most)
            || self.settings.bytes_max.is_some_and(|most| self.with.fetcher.counts().bytes() >= most)
            || self.settings.time_max.is_some_and(|most| self.began.elapsed() >= most)
    }

    /// What is still out is waited for a little, and written.
    fn finish(&mut self) -> Result<(), CrawlError> {
        let until = Instant::now() + STOP_TIME;
        while self.with.fetcher.waiting().2 > 1 && Instant::now() < until {
            let batch = self.collect();
            self.take(batch)?;
            self.tell();
        }
        let mut last = Vec::new();
        while let Ok(outcome) = self.with.outcomes.try_recv() {
            last.push(outcome);
        }
        self.take(last)?;
        self.delivered()?;
        self.state.agenda.save()?;
        if self.settings.cycle_at_end {
            self.delivery.cycles(true);
        }
        self.delivery.finish()?;
        self.tell();
        Ok(())
    }

    /// Answers what was asked, and takes new settings.
    fn answer(&mut self) -> Result<(), CrawlError> {
        if let Some(settings) = self.with.control.changed_schedule() {
            self.state.agenda.set(settings.clone())?;
            save_schedule(&self.settings.dir, &settings)?;
        }
        for question in self.with.control.questions() {
            // Whoever asked may have gone.
            match question {
                Question::Due(count, to) => drop(to.send(self.state.due(count)?)),
                Question::Why(url, to) => drop(to.send(self.state.why(&url)?)),
                Question::Wish(url, wish, to) => {
                    self.wish(&url, wish)?;
                    let _ = to.send(());
                }
            }
        }
        Ok(())
    }

    fn wish(&mut self, url: &Url, wish: Wish) -> Result<(), CrawlError> {
        self.state.commit(&[], vec![Found::page(url, 0, Priority::User)])?;
        self.state.settle(true)?;
        let Some((id, mut row)) = self.state.frontier.find(url.as_str())? else { return Ok(()) };
        match wish {
            Wish::Now => {
                self.state.agenda.want(id);
                self.state.frontier.want(&[(id, Priority::User)])?;
            }
            Wish::Publish(publication) => {
                self.state.agenda.publish(id, publication);
                row.published = publication;
                self.state.frontier.set(&[Became { id, row }])?;
            }
        }
        Ok(())
    }

    /// Takes links that other crawlers have handed over.
    fn take_over(&mut self) -> Result<(), CrawlError> {
        let Some(peers) = &self.peers else { return Ok(()) };
        let (found, files, bad) = peers.take().map_err(CrawlError::Peers)?;
        *self.troubles.entry("hand-over".to_owned()).or_default() += bad;
        if !files.is_empty() {
            self.state.commit(&[], found)?;
        }
        for file in files {
            std::fs::remove_file(file).map_err(CrawlError::Peers)?;
        }
        Ok(())
    }

    /// Asks the repository now and then for pages whose time is over: they are visited at once.
    fn ask_due(&mut self) -> Result<(), CrawlError> {
        let now_ms = self.now_ms();
        let lately = self.asked_due_ms.is_some_and(|at_ms| now_ms.saturating_sub(at_ms) < DUE_MS);
        if self.settings.lifetime.is_none() || lately {
            return Ok(());
        }
        self.asked_due_ms = Some(now_ms);
        let due = self.delivery.due(now_ms, DUE_PAGES);
        let urls = match due {
            Ok(urls) => urls,
            Err(e) => {
                tracing::warn!("the repository does not say whose time is over: {e}");
                return Ok(());
            }
        };
        let urls = urls.iter().filter_map(|url| Url::parse(url).ok());
        let scope = &self.settings.scope;
        let ours = urls.filter(|url| scope.admits(url, 0).is_ok());
        let found = ours.map(|url| Found { again: true, ..Found::page(&url, 0, Priority::User) }).collect();
        self.commit(&[], found)
    }

    /// Has the pages wait that the scheduler wants read.
    fn plan(&mut self) -> Result<(), CrawlError> {
        let idle = self.state.frontier.counts().1 == 0;
        let now_ms = self.now_ms();
        let CrawlState { frontier, agenda, .. } = &mut self.state;
        let plan = agenda.plan(now_ms, idle, |id| Ok(frontier.row(id)?))?;
        if !plan.is_empty() {
            self.state.frontier.want(&plan)?;
        }
        Ok(())
    }

    /// Fills the fetcher's buffer.
    fn hand_out(&mut self) -> Result<(), CrawlError> {
        let room = self.settings.fetch.politeness.urls_max.saturating_sub(self.with.fetcher.waiting().0);
        let mut room = room.min(4 * BATCH_PAGES);
        if let Some(most) = self.settings.pages_max {
            // No more than may still come.
            let left = most.saturating_sub(self.delivery.begun() + self.state.frontier.out() as u64);
            room = room.min(usize::try_from(left).unwrap_or(usize::MAX));
        }
        if room == 0 {
            return Ok(());
        }
        for (id, row) in self.state.frontier.hand_out(room, EACH_HOST)? {
            let Ok(url) = Url::parse(&row.url) else { continue };
            let priority = match row.urgency {
                0 => Priority::Loader,
                1 => Priority::User,
                2 => Priority::Refresh,
                _ => Priority::Discovery,
            };
            let known = Known { etag: row.etag, modified_at_ms: row.modified_at_ms };
            let (redirects, any_type) = (row.redirects.into(), row.is_part || row.what != What::Page);
            let wanted = Wanted { url, priority, known, redirects, any_type, tag: id.into() };
            if let Some(back) = self.with.fetcher.want(wanted) {
                self.returned(&back);
            }
        }
        Ok(())
    }

    /// The buffer had no room for a page: it is handed out again later.
    fn returned(&mut self, back: &Wanted) {
        if let Some(host) = back.url.host_str() {
            self.state.frontier.take_back(host, back.tag as UrlId);
        }
    }

    /// What comes until a batch is full or old, or until there is nothing to wait for.
    fn collect(&mut self) -> Vec<Outcome> {
        let With { handle, outcomes, fetcher, .. } = &mut self.with;
        let is_idle = |fetcher: &Fetcher| fetcher.waiting().0 == 0 && fetcher.waiting().2 <= 1;
        handle.block_on(async {
            let mut batch = Vec::new();
            let until = Instant::now() + if is_idle(fetcher) { IDLE_TIME } else { BATCH_TIME };
            while batch.len() < BATCH_PAGES {
                let room = BATCH_PAGES - batch.len();
                match timeout_at(until, outcomes.recv_many(&mut batch, room)).await {
                    Ok(count) if count > 0 => {}
                    _ => break,
                }
                if is_idle(fetcher) && outcomes.is_empty() {
                    break;
                }
            }
            batch
        })
    }

    /// Brings a batch of outcomes to disk and to the repository.
    fn take(&mut self, outcomes: Vec<Outcome>) -> Result<(), CrawlError> {
        if outcomes.is_empty() {
            if !self.delivery.is_under_way() {
                self.delivered()?;
            }
            return self.state.settle(false);
        }
        let now_ms = self.now_ms();
        let mut batch = Batch::default();
        let ids = outcomes.iter().map(|outcome| outcome.wanted.tag as UrlId);
        let mut rows: HashMap<UrlId, _> = self.state.frontier.some_rows(ids)?.into_iter().collect();
        self.pace_hosts(&outcomes);
        for outcome in outcomes {
            self.count(&outcome);
            self.lists_of(&outcome.wanted.url, &mut batch, now_ms);
            if let Some(row) = rows.remove(&(outcome.wanted.tag as UrlId)) {
                batch.take(outcome, row, &self.settings, &mut self.state.agenda, now_ms)?;
            }
        }
        self.write(batch, Spool::write)
    }

    /// Wants the sitemaps and archives that a site's robots file names.
    fn lists_of(&mut self, url: &Url, batch: &mut Batch, now_ms: u64) {
        let origin = url.origin().ascii_serialization();
        let looked = self.looked.get(&origin).is_some_and(|at_ms| now_ms.saturating_sub(*at_ms) < LISTS_MS);
        if !self.settings.sitemaps || looked {
            return;
        }
        if self.looked.len() >= ORIGINS_MAX {
            self.looked.clear();
        }
        self.looked.insert(origin, now_ms);
        let Some(robots) = self.with.fetcher.robots(url) else { return };
        batch.found.extend(reading::lists(&robots));
        // New archives have new names, so that a site with archives is asked for its robots file as for any list.
        if let Some(url) = url.join("/robots.txt").ok().filter(|_| !robots.archives.is_empty()) {
            let found = Found::page(&url, 0, Priority::Refresh);
            batch.found.push(Found { what: What::Robots, ..found });
        }
    }

    /// Writes a batch: spool, agenda, frontier. Pages are read while they are spooled, and are on their way to the repository then.
    fn write(
        &mut self,
        mut batch: Batch,
        spool: impl FnOnce(&mut Spool, &[Spooled]) -> io::Result<()> + Send,
    ) -> Result<(), CrawlError> {
        let rows = std::mem::take(&mut batch.rows);
        let spooled = std::mem::take(&mut batch.spooled);
        let (scope, frontier, file) = (&self.settings.scope, &self.state.frontier, &mut self.spool);
        let (written, readings) = std::thread::scope(|threads| {
            let writing = threads.spawn(|| spool(file, &spooled));
            let read = |page: &Spooled| {
                Some(reading::read(page, rows.get(&page.facts.id)?.clone(), scope, frontier))
            };
            let readings: Vec<Option<Reading>> = spooled.par_iter().map(read).collect();
            (writing.join(), readings)
        });
        written.unwrap_or_else(|e| std::panic::resume_unwind(e)).map_err(CrawlError::Spool)?;
        let (mut pages, mut dealt) = (Vec::new(), Vec::new());
        for (page, reading) in spooled.into_iter().zip(readings) {
            let facts = &page.facts;
            let Some(mut reading) = reading else { continue };
            self.outside += reading.outside;
            if let Some(kind) = reading.trouble {
                *self.troubles.entry(kind.to_owned()).or_default() += 1;
            }
            let agenda = &mut self.state.agenda;
            if matches!(reading.came, Came::Error { .. }) && agenda.is_expired(facts.id) {
                let (url, at_ms) = (facts.url.clone(), facts.fetched_at_ms);
                batch.seen.push(SeenPage { url, at_ms, lifetime_s: UNVERIFIED_S });
            }
            if agenda.visited(facts.id, &facts.url, reading.came, facts.fetched_at_ms)? {
                reading.row.state = State::Dead;
            }
            let (id, is_page) = (facts.id, reading.row.what == What::Page);
            if facts.status >= 400 {
                // What a site says instead of a page is none: it replaces none, and deals nothing.
            } else if is_page {
                let share = agenda.dealt_by(id, reading.found.len() + reading.known.len());
                reading.found.iter_mut().for_each(|found| found.share = share);
                dealt.extend(reading.known.into_iter().map(|id| (id, share)));
                pages.push(page);
            } else {
                agenda.listing(id, &reading.row, &reading.found);
            }
            batch.found.extend(reading.found);
            batch.became.push(Became { id, row: reading.row });
        }
        // The pages are in the spool, so they may go their way meanwhile: what is added again after a kill is the same version. Their
        // half of the spool is emptied when the next batch is here, and so never before the frontier knows of them.
        self.delivered()?;
        self.delivery.begin(pages, batch.seen);
        self.state.agenda.deal(&dealt);
        self.state.agenda.sync()?;
        let found = std::mem::take(&mut batch.found);
        self.commit(&batch.became, found)?;
        if self.saved_at.elapsed() >= SAVE_EVERY {
            self.saved_at = Instant::now();
            self.state.agenda.save()?;
        }
        Ok(())
    }

    /// Waits for the batch on its way; what the repository has acknowledged needs no spool any more.
    fn delivered(&mut self) -> Result<(), CrawlError> {
        if self.delivery.wait()? {
            self.spool.clear().map_err(CrawlError::Spool)?;
        }
        Ok(())
    }

    /// Writes down what became of URLs and what was found; what belongs to other crawlers is handed over first.
    fn commit(&mut self, became: &[Became], found: Vec<Found>) -> Result<(), CrawlError> {
        let found = match &mut self.peers {
            Some(peers) => peers.sort(found).map_err(CrawlError::Peers)?,
            None => found,
        };
        self.state.commit(became, found)
    }

    fn tell(&mut self) {
        let counts = self.with.fetcher.counts();
        let (known, frontier, hosts) = self.state.frontier.counts();
        let (buffer, _, requests) = self.with.fetcher.waiting();
        let mut errors = self.troubles.clone();
        errors.insert("refused".to_owned(), self.delivery.refused);
        errors.retain(|_, count| *count > 0);
        for (kind, count) in counts.errors() {
            *errors.entry(kind.to_owned()).or_default() += count;
        }
        let progress = Progress {
            seconds: self.began.elapsed().as_secs_f64(),
            pages: self.delivery.pages,
            unchanged: counts.unchanged(),
            bytes: counts.bytes(),
            pages_per_second: self.rate.at(self.delivery.pages),
            known,
            frontier,
            hosts,
            buffer,
            // One place is always held by whoever waits for the next turn.
            requests: requests.saturating_sub(1),
            errors,
            outside: self.outside,
            cut: counts.cut(),
            generation: self.delivery.generation,
            paused: self.with.control.is_paused(),
            freshness: self.state.freshness(self.now_ms()),
            planned: self.state.agenda.planned,
            handed_over: self.peers.as_ref().map_or(0, |peers| peers.handed),
        };
        self.with.control.tell(progress);
    }
}
