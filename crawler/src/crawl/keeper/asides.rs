//! What the keeper sees to beside pages: their ranks, the delays of their hosts, and what was wrong with answers.

use std::collections::BTreeSet;

use super::Keeper;
use crate::crawl::{CrawlError, Sink};
use crate::fetcher::{Cut, Outcome};
use crate::frontier::UrlId;

/// Pages whose ranks are asked for at once.
const RANKS: usize = 4096;

impl<S: Sink> Keeper<S> {
    /// Has pages weigh what the estimator says, where it has said something new.
    pub(super) fn rank(&mut self) -> Result<(), CrawlError> {
        let ranked_at_ms = self.delivery.ranked_at_ms();
        match ranked_at_ms {
            Ok(Some(at_ms)) if self.state.agenda.ranked_at_ms() != Some(at_ms) => match self.ranks() {
                Ok(ranks) => self.state.agenda.rank(at_ms, &ranks)?,
                Err(e) => tracing::warn!("pages weigh what they did: {e}"),
            },
            Ok(_) => {}
            Err(e) => tracing::warn!("nobody says how pages rank: {e}"),
        }
        Ok(())
    }

    /// What the estimator says of all pages, by URL-id.
    fn ranks(&self) -> Result<Vec<Option<(f64, f64)>>, CrawlError> {
        let (mut ranks, mut some) = (Vec::new(), Vec::new());
        let ask = |some: &mut Vec<(UrlId, String)>, ranks: &mut Vec<Option<(f64, f64)>>| {
            let (ids, urls): (Vec<UrlId>, Vec<String>) = std::mem::take(some).into_iter().unzip();
            let found = self.delivery.ranks(urls).map_err(CrawlError::Repository)?;
            for (id, rank) in ids.into_iter().zip(found) {
                ranks.resize(id as usize, None);
                ranks.push(rank);
            }
            Ok::<_, CrawlError>(())
        };
        self.state.frontier.rows(|id, row| {
            some.push((id, row.url));
            if some.len() >= RANKS { ask(&mut some, &mut ranks) } else { Ok(()) }
        })?;
        ask(&mut some, &mut ranks)?;
        Ok(ranks)
    }

    /// Counts what is wrong with an answer; what kept a page from being had, the fetcher counts.
    pub(super) fn count(&mut self, outcome: &Outcome) {
        let Ok(answer) = &outcome.result else { return };
        let mut count = |kind: String| *self.troubles.entry(kind).or_default() += 1;
        if answer.status >= 400 {
            count(format!("status-{}", answer.status));
        }
        match answer.cut {
            Some(Cut::Disconnect) => count("short-body".to_owned()),
            Some(Cut::Length) => count("long-body".to_owned()),
            Some(Cut::Time) => count("slow-body".to_owned()),
            None => {}
        }
    }

    /// Has the scheduler know how long the hosts that were asked are left alone: their robots files may want more than usual.
    pub(super) fn pace_hosts(&mut self, outcomes: &[Outcome]) {
        if !self.state.agenda.is_planning() {
            return;
        }
        let hosts: BTreeSet<&str> =
            outcomes.iter().filter_map(|outcome| outcome.wanted.url.host_str()).collect();
        for host in hosts {
            if let Some(site) = self.with.fetcher.site(host) {
                self.state.agenda.pace(Some(host), site.delay);
            }
        }
    }
}
