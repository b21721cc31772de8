//! A batch of outcomes: sorted into pages, pages seen again and failures, and what each is to the agenda.

use std::collections::HashMap;

use super::agenda::{Agenda, Came};
use super::sink::SeenPage;
use super::spool::{Facts, Spooled};
use super::{CrawlError, Settings};
use crate::fetcher::{Known, Outcome};
use crate::frontier::{Became, Found, Row, State, UrlId, What};

/// How long a page may stay that could not be verified, in seconds.
pub(super) const UNVERIFIED_S: u32 = 86_400;

/// What a batch comes to, before it is written.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) spooled: Vec<Spooled>,
    /// The rows of those.
    pub(super) rows: HashMap<UrlId, Row>,
    pub(super) seen: Vec<SeenPage>,
    pub(super) became: Vec<Became>,
    pub(super) found: Vec<Found>,
}

impl Batch {
    /// Puts an outcome where it belongs.
    pub(super) fn take(
        &mut self,
        outcome: Outcome,
        mut row: Row,
        settings: &Settings,
        agenda: &mut Agenda,
        now_ms: u64,
    ) -> Result<(), CrawlError> {
        let id = outcome.wanted.tag as UrlId;
        match outcome.result {
            Ok(answer) if answer.status == 304 => {
                let at_ms = answer.fetched_at_ms;
                row.state = State::Read;
                row.read_at_ms = at_ms;
                row.tries = 0;
                agenda.visited(id, &row.url, Came::Unchanged, at_ms)?;
                if row.what == What::Page {
                    let lifetime_s = lifetime_s(settings);
                    self.seen.push(SeenPage { url: row.url.clone(), at_ms, lifetime_s });
                } else {
                    agenda.listed(&row, at_ms);
                }
                self.became.push(Became { id, row });
            }
            Ok(answer) if matches!(answer.status, 429 | 503) && row.tries + 1 < settings.tries_max => {
                row.tries += 1;
                self.became.push(Became { id, row });
            }
            Ok(answer) => {
                // Half a page would be confirmed for ever: what is cut is asked for as if it had never been read.
                let known = if answer.cut.is_some() { Known::default() } else { answer.known() };
                let facts = Facts {
                    id,
                    location: answer.location(&outcome.wanted.url).map(|to| to.to_string()),
                    fetched_at_ms: answer.fetched_at_ms,
                    modified_at_ms: known.modified_at_ms,
                    etag: known.etag,
                    status: answer.status,
                    mime: answer.mime(),
                    coding: answer.coding().to_owned(),
                    url: row.url.clone(),
                };
                self.spooled.push(Spooled { facts, head: answer.stored_head(), body: answer.body });
                self.rows.insert(id, row);
            }
            Err(e) => {
                row.tries = row.tries.saturating_add(1);
                let again = e.may_pass() && row.tries < settings.tries_max;
                row.state = if again { State::Waiting } else { State::Failed };
                if !again {
                    // A page that the repository wants verified and that nobody can reach now stays for a while.
                    if agenda.is_expired(id) && e.may_pass() {
                        let (url, lifetime_s) = (row.url.clone(), UNVERIFIED_S);
                        self.seen.push(SeenPage { url, at_ms: now_ms, lifetime_s });
                    }
                    agenda.visited(id, &row.url, Came::Failed, now_ms)?;
                }
                self.became.push(Became { id, row });
            }
        }
        Ok(())
    }
}

/// How long a page may stay, in seconds; 0: for ever.
pub(super) fn lifetime_s(settings: &Settings) -> u32 {
    settings.lifetime.map_or(0, |time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX).max(1))
}
