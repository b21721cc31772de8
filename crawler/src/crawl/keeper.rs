//! The keeper: brings what was fetched to disk and to the repository, batch by batch, and hands out what is next.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rayon::prelude::*;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use url::Url;
use webbase_storage::Page;

use super::progress::{Progress, Rate};
use super::spool::{Spool, Spooled};
use super::{Control, CrawlError, Ended, Settings, Sink, links, may_pass};
use crate::fetcher::{Fetcher, Known, Outcome, Priority, UnpackLimits, Wanted, unpack};
use crate::frontier::{Became, Found, Frontier, Row, State, UrlName, What};
use crate::sitemap::Sitemap;

/// A batch is written when it has this many pages, or is this old.
const BATCH_PAGES: usize = 512;
const BATCH_TIME: Duration = Duration::from_millis(500);
/// How many URLs of a host the fetcher has at a time.
const EACH_HOST: usize = 64;
/// How long requests may still take when the crawl is told to stop.
const STOP_TIME: Duration = Duration::from_secs(10);
/// How often a repository that takes no pages is asked again.
const REPOSITORY_TRIES: u32 = 5;
/// A page is dead when it was gone this often.
const GONE_MAX: u8 = 3;

pub(super) struct Keeper<S> {
    settings: Settings,
    fetcher: Arc<Fetcher>,
    outcomes: mpsc::Receiver<Outcome>,
    sink: Arc<S>,
    control: Control,
    handle: Handle,
    frontier: Frontier,
    spool: Spool,
    began: Instant,
    pages: u64,
    outside: u64,
    troubles: BTreeMap<String, u64>,
    rate: Rate,
    /// Origins whose robots files were looked into for sitemaps.
    looked: HashSet<String>,
    cycle: Option<JoinHandle<Result<u64, String>>>,
    cycled_at: Instant,
    pages_at_cycle: u64,
    generation: Option<u64>,
}

/// What a batch comes to, before it is written.
#[derive(Default)]
struct Batch {
    spooled: Vec<Spooled>,
    seen: Vec<(String, u64)>,
    became: Vec<Became>,
    found: Vec<Found>,
}

/// What one page comes to.
struct Read {
    became: Option<Became>,
    found: Vec<Found>,
    outside: u64,
    trouble: Option<&'static str>,
}

impl<S: Sink> Keeper<S> {
    pub(super) fn open(
        settings: Settings,
        fetcher: Arc<Fetcher>,
        outcomes: mpsc::Receiver<Outcome>,
        sink: Arc<S>,
        control: Control,
        handle: Handle,
    ) -> Result<Keeper<S>, CrawlError> {
        let dir = &settings.dir;
        std::fs::create_dir_all(dir)
            .map_err(|source| CrawlError::Folder { dir: dir.display().to_string(), source })?;
        let frontier = Frontier::open(dir)?;
        let (spool, left) = Spool::open(dir).map_err(CrawlError::Spool)?;
        let mut keeper = Keeper {
            fetcher,
            outcomes,
            sink,
            control,
            handle,
            frontier,
            spool,
            began: Instant::now(),
            pages: 0,
            outside: 0,
            troubles: BTreeMap::new(),
            rate: Rate::new(),
            looked: HashSet::new(),
            cycle: None,
            cycled_at: Instant::now(),
            pages_at_cycle: 0,
            generation: None,
            settings,
        };
        keeper.begin(left)?;
        Ok(keeper)
    }

    /// Takes seeds in, and what the last run left in its spool.
    fn begin(&mut self, left: Vec<Spooled>) -> Result<(), CrawlError> {
        let seeds = self.settings.seeds.clone();
        for seed in &seeds {
            self.settings.scope.seed(seed);
        }
        if !left.is_empty() {
            let batch = Batch { spooled: left, ..Batch::default() };
            self.write(batch, false)?;
        }
        let found = seeds.into_iter().map(|url| Found {
            url,
            depth: 0,
            redirects: 0,
            what: What::Page,
            priority: Priority::User,
            changed_at_ms: None,
        });
        let found: Vec<Found> = found.collect();
        self.frontier.commit(&[], &found)?;
        if let Some(age) = self.settings.recrawl {
            let before = now_ms().saturating_sub(age.as_millis() as u64);
            self.frontier.recrawl(before)?;
        }
        Ok(())
    }

    pub(super) fn run(&mut self) -> Result<Ended, CrawlError> {
        let ended = loop {
            let stopping = self.control.is_stopped();
            if !stopping && !self.control.is_paused() {
                self.hand_out()?;
            }
            let batch = self.collect();
            self.take(batch)?;
            self.cycles(false);
            self.tell();
            if stopping {
                break Ended::Stopped;
            }
            if self.is_over() {
                break Ended::Limit;
            }
            if self.frontier.counts().1 == 0 && self.outcomes.is_empty() && !self.control.is_paused() {
                break Ended::Done;
            }
        };
        self.finish()?;
        Ok(ended)
    }

    fn is_over(&self) -> bool {
        self.settings.pages_max.is_some_and(|most| self.pages >= most)
            || self.settings.bytes_max.is_some_and(|most| self.fetcher.counts().bytes() >= most)
            || self.settings.time_max.is_some_and(|most| self.began.elapsed() >= most)
    }

    /// What is still out is waited for a little, and written.
    fn finish(&mut self) -> Result<(), CrawlError> {
        let until = Instant::now() + STOP_TIME;
        while self.fetcher.waiting().2 > 1 && Instant::now() < until {
            let batch = self.collect();
            self.take(batch)?;
            self.tell();
        }
        let mut last = Vec::new();
        while let Ok(outcome) = self.outcomes.try_recv() {
            last.push(outcome);
        }
        self.take(last)?;
        if self.settings.cycle_at_end {
            self.cycles(true);
        }
        if let Some(cycle) = self.cycle.take() {
            match self.handle.block_on(cycle) {
                Ok(Ok(generation)) => self.generation = Some(generation),
                Ok(Err(e)) => return Err(CrawlError::Repository(e)),
                Err(e) => return Err(CrawlError::Repository(e.to_string())),
            }
        }
        self.tell();
        Ok(())
    }

    /// Fills the fetcher's buffer.
    fn hand_out(&mut self) -> Result<(), CrawlError> {
        let room = self.settings.fetch.politeness.urls_max.saturating_sub(self.fetcher.waiting().0);
        let mut room = room.min(4 * BATCH_PAGES);
        if let Some(most) = self.settings.pages_max {
            // No more than may still come.
            let left = most.saturating_sub(self.pages + self.frontier.out() as u64);
            room = room.min(usize::try_from(left).unwrap_or(usize::MAX));
        }
        if room == 0 {
            return Ok(());
        }
        for (name, row) in self.frontier.hand_out(room, EACH_HOST)? {
            let Ok(url) = Url::parse(&row.url) else { continue };
            let priority = match row.urgency {
                0 => Priority::Loader,
                1 => Priority::User,
                2 => Priority::Refresh,
                _ => Priority::Discovery,
            };
            let known = Known { etag: row.etag.clone(), modified_at_ms: row.modified_at_ms };
            let (redirects, any_type) = (row.redirects.into(), row.what == What::Sitemap);
            let wanted = Wanted { url, priority, known, redirects, any_type, tag: tag(name) };
            if let Some(back) = self.fetcher.want(wanted)
                && let (Some(name), Some(host)) = (Frontier::name(&back.url), back.url.host_str())
            {
                self.frontier.take_back(host, name);
            }
        }
        Ok(())
    }

    /// What comes until a batch is full or old.
    fn collect(&mut self) -> Vec<Outcome> {
        let (handle, outcomes) = (&self.handle, &mut self.outcomes);
        handle.block_on(async {
            let mut batch = Vec::new();
            let until = Instant::now() + BATCH_TIME;
            while batch.len() < BATCH_PAGES {
                let room = BATCH_PAGES - batch.len();
                match timeout_at(until, outcomes.recv_many(&mut batch, room)).await {
                    Ok(count) if count > 0 => {}
                    _ => break,
                }
            }
            batch
        })
    }

    /// Brings a batch of outcomes to disk and to the repository.
    fn take(&mut self, outcomes: Vec<Outcome>) -> Result<(), CrawlError> {
        if outcomes.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::default();
        for outcome in outcomes {
            self.sitemaps_of(&outcome.wanted.url, &mut batch);
            self.sort(outcome, &mut batch)?;
        }
        self.write(batch, true)
    }

    /// Puts an outcome where it belongs: with the pages, with those seen again, or with those that failed.
    fn sort(&mut self, outcome: Outcome, batch: &mut Batch) -> Result<(), CrawlError> {
        let url = outcome.wanted.url;
        let Some(name) = Frontier::name(&url) else { return Ok(()) };
        let Some(mut row) = self.frontier.row(name)? else { return Ok(()) };
        match outcome.result {
            Ok(answer) if answer.status == 304 => {
                row.state = State::Read;
                row.read_at_ms = answer.fetched_at_ms;
                row.reads += 1;
                row.tries = 0;
                if row.what == What::Page {
                    batch.seen.push((url.to_string(), answer.fetched_at_ms));
                }
                batch.became.push(Became { name, row });
            }
            Ok(answer) if matches!(answer.status, 429 | 503) && row.tries + 1 < self.settings.tries_max => {
                row.tries += 1;
                row.status = answer.status;
                batch.became.push(Became { name, row });
            }
            Ok(answer) => {
                let known = answer.known();
                batch.spooled.push(Spooled {
                    location: answer.location(&url).map(|to| to.to_string()),
                    fetched_at_ms: answer.fetched_at_ms,
                    modified_at_ms: known.modified_at_ms,
                    etag: known.etag,
                    status: answer.status,
                    mime: answer.mime(),
                    coding: answer.coding().to_owned(),
                    head: answer.stored_head(),
                    body: answer.body,
                    url: row.url.clone(),
                });
            }
            Err(e) => {
                row.tries = row.tries.saturating_add(1);
                let again = may_pass(&e) && row.tries < self.settings.tries_max;
                row.state = if again { State::Waiting } else { State::Failed };
                batch.became.push(Became { name, row });
            }
        }
        Ok(())
    }

    /// Wants the sitemaps that a site's robots file names, once a run.
    fn sitemaps_of(&mut self, url: &Url, batch: &mut Batch) {
        if !self.settings.sitemaps || !self.looked.insert(url.origin().ascii_serialization()) {
            return;
        }
        let Some(robots) = self.fetcher.robots(url) else { return };
        for sitemap in robots.sitemaps {
            batch.found.extend(self.sitemap(sitemap, 0, None));
        }
    }

    fn sitemap(&self, url: Url, depth: u16, changed_at_ms: Option<u64>) -> Option<Found> {
        // A sitemap may lie elsewhere only where the robots file says so; what it lists has to belong to the crawl anyway.
        let priority = Priority::Refresh;
        Some(Found { url, depth, redirects: 0, what: What::Sitemap, priority, changed_at_ms })
    }

    /// Writes a batch: spool, frontier, repository.
    fn write(&mut self, mut batch: Batch, spool: bool) -> Result<(), CrawlError> {
        if spool && !batch.spooled.is_empty() {
            self.spool.write(&batch.spooled).map_err(CrawlError::Spool)?;
        }
        let rows = batch.spooled.iter().map(|page| self.row_of(page)).collect::<Result<Vec<_>, _>>()?;
        let is_page: Vec<bool> =
            rows.iter().map(|row| row.as_ref().is_none_or(|(_, row)| row.what == What::Page)).collect();
        let scope = &self.settings.scope;
        let reads: Vec<Read> =
            batch.spooled.par_iter().zip(rows).map(|(page, row)| read(page, row, scope)).collect();
        for read in reads {
            batch.became.extend(read.became);
            batch.found.extend(read.found);
            self.outside += read.outside;
            if let Some(kind) = read.trouble {
                *self.troubles.entry(kind.to_owned()).or_default() += 1;
            }
        }
        self.frontier.commit(&batch.became, &batch.found)?;
        let pages: Vec<&Spooled> =
            batch.spooled.iter().zip(is_page).filter(|(_, is_page)| *is_page).map(|(page, _)| page).collect();
        self.add(&pages)?;
        if !batch.seen.is_empty() {
            let (handle, sink) = (&self.handle, &self.sink);
            handle.block_on(sink.seen(&batch.seen)).map_err(CrawlError::Repository)?;
        }
        if !batch.spooled.is_empty() {
            self.spool.clear().map_err(CrawlError::Spool)?;
        }
        Ok(())
    }

    fn row_of(&self, page: &Spooled) -> Result<Option<(UrlName, Row)>, CrawlError> {
        let Some(name) = Url::parse(&page.url).ok().and_then(|url| Frontier::name(&url)) else {
            return Ok(None);
        };
        Ok(self.frontier.row(name)?.map(|row| (name, row)))
    }

    /// Adds pages to the repository; a repository that is away for a moment is waited for.
    fn add(&mut self, spooled: &[&Spooled]) -> Result<(), CrawlError> {
        if spooled.is_empty() {
            return Ok(());
        }
        let pages: Vec<Page<'_>> = spooled.iter().map(|page| as_page(page)).collect();
        let mut tries = 0;
        let refused = loop {
            match self.handle.block_on(self.sink.add(&pages)) {
                Ok(refused) if refused.len() < pages.len() => break refused,
                Ok(refused) if tries >= REPOSITORY_TRIES => {
                    let why = refused.into_iter().next().map_or_else(String::new, |(_, why)| why);
                    return Err(CrawlError::Repository(why));
                }
                Err(e) if tries >= REPOSITORY_TRIES => return Err(CrawlError::Repository(e)),
                _ => {}
            }
            tries += 1;
            self.handle.block_on(tokio::time::sleep(Duration::from_millis(200 << tries)));
        };
        for (_, why) in &refused {
            tracing::warn!("the repository refused a page: {why}");
        }
        *self.troubles.entry("refused".to_owned()).or_default() += refused.len() as u64;
        self.pages += (pages.len() - refused.len()) as u64;
        Ok(())
    }

    /// Begins a cycle when it is time to, and sees to the one that runs.
    fn cycles(&mut self, at_end: bool) {
        if self.cycle.as_ref().is_some_and(|cycle| cycle.is_finished() || at_end)
            && let Some(cycle) = self.cycle.take()
        {
            match self.handle.block_on(cycle) {
                Ok(Ok(generation)) => self.generation = Some(generation),
                Ok(Err(e)) => tracing::warn!("the cycle did not come to its end: {e}"),
                Err(e) => tracing::warn!("the cycle did not come to its end: {e}"),
            }
        }
        let new = self.pages - self.pages_at_cycle;
        let due = at_end
            || self.settings.cycle_every.is_some_and(|every| self.cycled_at.elapsed() >= every)
            || self.settings.cycle_pages.is_some_and(|pages| new >= pages);
        if new > 0 && due && self.cycle.is_none() {
            let sink = Arc::clone(&self.sink);
            self.cycle = Some(self.handle.spawn(async move { sink.cycle().await }));
            self.cycled_at = Instant::now();
            self.pages_at_cycle = self.pages;
        }
    }

    fn tell(&mut self) {
        let counts = self.fetcher.counts();
        let (known, frontier, hosts) = self.frontier.counts();
        let (buffer, _, requests) = self.fetcher.waiting();
        let mut errors = self.troubles.clone();
        errors.retain(|_, count| *count > 0);
        for (kind, count) in counts.errors() {
            *errors.entry(kind.to_owned()).or_default() += count;
        }
        let progress = Progress {
            seconds: self.began.elapsed().as_secs_f64(),
            pages: self.pages,
            unchanged: counts.unchanged(),
            bytes: counts.bytes(),
            pages_per_second: self.rate.at(self.pages),
            known,
            frontier,
            hosts,
            buffer,
            // One place is always held by whoever waits for the next turn.
            requests: requests.saturating_sub(1),
            errors,
            outside: self.outside,
            cut: counts.cut(),
            generation: self.generation,
            paused: self.control.is_paused(),
        };
        *self.control.0.progress.lock() = progress;
    }
}

/// What a page comes to: its new row, and what it leads to.
fn read(page: &Spooled, row: Option<(UrlName, Row)>, scope: &super::Scope) -> Read {
    let mut read = Read { became: None, found: Vec::new(), outside: 0, trouble: None };
    let (Some((name, mut row)), Ok(url)) = (row, Url::parse(&page.url)) else { return read };
    let signature = signature(&page.body);
    let gone = matches!(page.status, 404 | 410);
    row.tries = if gone { row.tries.saturating_add(1) } else { 0 };
    row.state = match page.status {
        404 | 410 if row.tries >= GONE_MAX => State::Dead,
        200..400 => State::Read,
        _ => State::Failed,
    };
    row.changes += u32::from(row.reads > 0 && signature != row.signature);
    row.reads += 1;
    row.signature = signature;
    row.read_at_ms = page.fetched_at_ms;
    row.status = page.status;
    row.etag = page.etag.clone();
    row.modified_at_ms = page.modified_at_ms;
    let mut admit =
        |url: Url, depth: u16, redirects: u8, priority: Priority, changed_at_ms: Option<u64>| match scope
            .admits(&url, depth)
        {
            Ok(()) => {
                read.found.push(Found { url, depth, redirects, what: What::Page, priority, changed_at_ms })
            }
            Err(_) => read.outside += 1,
        };
    if let Some(to) = page.location.as_ref().and_then(|to| Url::parse(to).ok()) {
        if row.what == What::Page && Frontier::name(&to) == Some(name) {
            // From http to https, or to a slash: the same page by name, so the row goes there itself.
            if row.redirects < 10 {
                row.url = to.to_string();
                row.redirects += 1;
                row.state = State::Waiting;
            }
        } else {
            admit(to, row.depth, row.redirects.saturating_add(1), Priority::User, None);
        }
    } else if page.status == 200 {
        let unpacked = unpack(&page.body, &page.coding, UnpackLimits::default());
        if unpacked.trouble.is_some() {
            read.trouble = Some("content-coding");
        }
        let depth = row.depth.saturating_add(1);
        match row.what {
            What::Sitemap => {
                let sitemap = Sitemap::read(&unpacked.bytes, &url);
                for entry in sitemap.pages {
                    admit(entry.url, depth, 0, Priority::Discovery, entry.modified_at_ms);
                }
                if sitemap.trouble.is_some() {
                    read.trouble = Some("sitemap");
                }
                // An index leads to sitemaps, those to no more.
                for entry in sitemap.sitemaps.into_iter().filter(|_| row.depth < 2) {
                    let (url, changed_at_ms) = (entry.url, entry.modified_at_ms);
                    let (what, priority) = (What::Sitemap, Priority::Refresh);
                    read.found.push(Found { url, depth, redirects: 0, what, priority, changed_at_ms });
                }
            }
            What::Page => {
                for link in links::links(&page.mime, &unpacked.bytes, &url) {
                    admit(link, depth, 0, Priority::Discovery, None);
                }
                if page.mime.ends_with("xml")
                    && !page.mime.starts_with("application/xhtml")
                    && let Err(e) = crate::loader::read(&unpacked.bytes, &url)
                {
                    read.trouble = Some(e.kind());
                }
            }
        }
    }
    read.became = Some(Became { name, row });
    read
}

fn as_page(page: &Spooled) -> Page<'_> {
    Page {
        url: &page.url,
        fetched_at_ms: page.fetched_at_ms,
        modified_at_ms: page.modified_at_ms,
        status: page.status,
        mime: &page.mime,
        head: &page.head,
        body: &page.body,
        ..Page::default()
    }
}

fn signature(body: &[u8]) -> u64 {
    blake3::hash(body).as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn tag(name: UrlName) -> u64 {
    name.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
