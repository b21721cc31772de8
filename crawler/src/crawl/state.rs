//! What a crawl knows, on disk: its frontier, its agenda, and the questions one asks them.

use std::path::Path;

use serde::Serialize;

use super::CrawlError;
use super::agenda::Agenda;
use crate::fetcher::Priority;
use crate::frontier::{Became, Found, Frontier, Learned, Row, State, UrlId, What};
use crate::scheduler::{Reason, Settings};

/// Rows written at once.
const ROWS: usize = 10_000;

/// A page, as the scheduler sees it: when it is due, and why then.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PageView {
    /// Which.
    pub url: String,
    /// How it stands: known, waiting, read, failed or dead.
    pub state: &'static str,
    /// What it is: html, xml, dtd, other, error or dead.
    pub kind: &'static str,
    /// When it is due, in milliseconds since 1970; none: not by itself, or when its turn comes.
    pub due_at_ms: Option<u64>,
    /// What decides that.
    pub reason: &'static str,
    /// Its weight against the mean of 1, with χ and its category's factor.
    pub weight: f64,
    /// Changes a day, estimated or published.
    pub change_rate: f64,
    /// Reads a day that it gets at the present price.
    pub frequency: f64,
    /// The present price of a read, in the policy's own measure.
    pub price: f64,
    /// When it was first and last read, in milliseconds since 1970.
    pub first_read_ms: Option<u64>,
    /// When it was last read.
    pub last_read_ms: Option<u64>,
    /// Reads that saw a change.
    pub changes: u32,
    /// Reads that saw none.
    pub unchanged: u32,
    /// Status of the last answer.
    pub status: Option<u16>,
}

/// A crawl's state.
pub struct CrawlState {
    pub(super) frontier: Frontier,
    pub(super) agenda: Agenda,
    /// Rows that do not stand where they belong.
    moved: Vec<Became>,
}

impl CrawlState {
    /// Opens a crawl's folder. With settings of a schedule pages wait for the scheduler, without they wait for their turn. Nothing is
    /// changed by looking.
    ///
    /// # Errors
    /// When the folder is in use or damaged, or a setting makes no sense.
    pub fn open(dir: &Path, schedule: Option<Settings>) -> Result<CrawlState, CrawlError> {
        std::fs::create_dir_all(dir)
            .map_err(|source| CrawlError::Folder { dir: dir.display().to_string(), source })?;
        let mut frontier = Frontier::open(dir)?;
        let mut agenda = Agenda::open(dir, schedule)?;
        frontier.found_waits = !agenda.is_planning();
        let planning = agenda.is_planning();
        let mut moved = Vec::new();
        frontier.rows(|id, mut row| {
            if let Some(state) = state_of(&row, planning) {
                row.state = state;
                moved.push(Became { id, row: row.clone() });
            }
            agenda.page(id, &row)
        })?;
        Ok(CrawlState { frontier, agenda, moved })
    }

    /// Puts rows where they belong, before a crawl begins.
    pub(super) fn begin(&mut self) -> Result<(), CrawlError> {
        for some in std::mem::take(&mut self.moved).chunks(ROWS) {
            self.commit(some, Vec::new())?;
        }
        Ok(())
    }

    /// Writes down what became of URLs and what was found, and has the scheduler know.
    pub(super) fn commit(&mut self, became: &[Became], found: Vec<Found>) -> Result<(), CrawlError> {
        let learned = self.frontier.commit(became, found)?;
        self.learned(&learned)
    }

    /// Settles links that wait, if it is time to, or now.
    pub(super) fn settle(&mut self, now: bool) -> Result<(), CrawlError> {
        let learned = if now { self.frontier.settle()? } else { self.frontier.commit(&[], Vec::new())? };
        self.learned(&learned)
    }

    fn learned(&mut self, learned: &Learned) -> Result<(), CrawlError> {
        let again = self.agenda.learned(learned);
        if !again.is_empty() {
            self.frontier.want(&again)?;
        }
        Ok(())
    }

    /// The pages that are due soonest, first those that somebody wants, last those that were never read.
    ///
    /// # Errors
    /// When the folder is damaged.
    pub fn due(&self, count: usize) -> Result<Vec<PageView>, CrawlError> {
        let ids = self.agenda.soonest(count);
        let rows = self.frontier.some_rows(ids)?;
        let views = rows.iter().map(|(id, row)| self.view(*id, row));
        Ok(views.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// When one page is due, and why then; `None` for a page that is not known.
    ///
    /// # Errors
    /// When the folder is damaged.
    pub fn why(&self, url: &str) -> Result<Option<PageView>, CrawlError> {
        match self.frontier.find(url)? {
            Some((id, row)) => self.view(id, &row),
            None => Ok(None),
        }
    }

    /// The share of the pages read that are as they were read, going by their change rates.
    pub fn freshness(&self, now_ms: u64) -> Option<f64> {
        self.agenda.freshness(now_ms)
    }

    fn view(&self, id: UrlId, row: &Row) -> Result<Option<PageView>, CrawlError> {
        let Some((why, visit)) = self.agenda.explain(id)? else { return Ok(None) };
        let ms = |s: u32| (s > 0).then(|| u64::from(s) * 1000);
        Ok(Some(PageView {
            url: row.url.clone(),
            state: match row.state {
                State::Known => "known",
                State::Waiting => "waiting",
                State::Read => "read",
                State::Failed => "failed",
                State::Dead => "dead",
            },
            kind: self.agenda.kind(id).name(),
            due_at_ms: why.due_s.map(|due_s| due_s * 1000),
            reason: match (why.reason, row.what) {
                (Reason::Fixed, What::Sitemap | What::Archive | What::Robots) => {
                    "the site's own list of pages"
                }
                (reason, _) => reason.name(),
            },
            weight: why.weight,
            change_rate: why.rate,
            frequency: why.frequency,
            price: why.price,
            first_read_ms: ms(visit.first_read_s),
            last_read_ms: ms(visit.last_read_s),
            changes: visit.changes,
            unchanged: visit.reads_without_change,
            status: (visit.status > 0).then_some(visit.status),
        }))
    }
}

/// Where a row belongs when a crawl begins, if not where it is: what a plan had issued is planned again, and a crawl without a plan reads
/// all that it knows.
fn state_of(row: &Row, planning: bool) -> Option<State> {
    let by_plan = row.urgency >= Priority::Refresh as u8 && row.what == What::Page;
    match row.state {
        State::Waiting if planning && by_plan && row.read_at_ms > 0 => Some(State::Read),
        State::Waiting if planning && by_plan => Some(State::Known),
        State::Known if !planning => Some(State::Waiting),
        _ => None,
    }
}
