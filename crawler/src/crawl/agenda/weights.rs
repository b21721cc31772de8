//! What pages weigh, and how long their hosts are left alone: what the scheduler goes by beside visits.

use std::time::Duration;

use super::Agenda;
use crate::crawl::CrawlError;
use crate::crawl::ranked::{Rank, Ranked};
use crate::frontier::UrlId;
use crate::scheduler::Kind;

impl Agenda {
    /// What a page weighs: what the estimator says of it, or what links have dealt it.
    pub(super) fn weight(&self, id: UrlId, is_xml: bool) -> f64 {
        self.ranked.weight(id, is_xml).unwrap_or_else(|| self.worth.of(id))
    }

    /// Weighs a page again.
    pub(super) fn weigh(&mut self, id: UrlId) {
        // One whose last answer was an error weighs what it weighed as what it is.
        if self.kind(id) == Kind::Error {
            return;
        }
        let weight = self.weight(id, self.is_xml(id));
        self.scheduler.set_weight(id, weight);
    }

    fn is_xml(&self, id: UrlId) -> bool {
        self.kind(id).is_xml()
    }

    /// When the ranks were computed that pages weigh by.
    pub(in crate::crawl) fn ranked_at_ms(&self) -> Option<u64> {
        self.ranked.at_ms()
    }

    /// Takes ranks over, by URL-id: all pages weigh by them from now on.
    pub(in crate::crawl) fn rank(&mut self, at_ms: u64, ranks: &[Rank]) -> Result<(), CrawlError> {
        self.ranked = Ranked::new(at_ms, ranks, |id| self.is_xml(id));
        self.ranked.save(&self.ranked_path).map_err(CrawlError::Worth)?;
        for id in 0..self.scheduler.len() as UrlId {
            self.weigh(id);
        }
        Ok(())
    }

    /// So long is a host left alone between two requests; `None` for those of which nothing else is known. It gets no more reads in a
    /// cycle than that has room for.
    pub(in crate::crawl) fn pace(&mut self, host: Option<&str>, delay: Duration) {
        match host.map(|host| self.hosts.get(host)) {
            None => self.scheduler.pace(None, delay.as_secs_f64()),
            Some(Some(host)) => self.scheduler.pace(Some(*host), delay.as_secs_f64()),
            Some(None) => {}
        }
    }
}
