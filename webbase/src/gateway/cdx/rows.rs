//! The lines of a range of SURT keys, in the order that indexes have: by key, then by time.
//!
//! The repository's index has the pages of one SURT key in another order. There are few of those, and they come together, so they
//! are put in order as they come.

use std::collections::VecDeque;

use webbase_node::{Cluster, UrlReader};
use webbase_storage::PageKey;
use webbase_storage::surt::KeyRange;
use webbase_storage::urls::{UrlQuery, UrlRow};

use super::ask::Place;
use super::capture::Capture;
use crate::gateway::problem::Problem;

/// Pages of one SURT key that are put in order; were there more, they would be so in parts.
const GROUP_MAX: usize = 20_000;

pub(in super::super) struct Rows {
    reader: UrlReader,
    descending: bool,
    resume: Option<Place>,
    /// In order, all of one SURT key.
    group: VecDeque<(PageKey, UrlRow)>,
    /// The first of the next group.
    next: Option<(PageKey, UrlRow)>,
}

impl Rows {
    /// Opens the rows of a range, behind a place if there is one.
    pub(super) async fn open(
        cluster: &Cluster,
        range: &KeyRange,
        descending: bool,
        resume: Option<Place>,
    ) -> Result<Rows, Problem> {
        let (mut start, mut end) = (range.start.clone(), range.end.clone());
        if let Some(place) = &resume {
            match descending {
                false => start = start.max(place.surt.clone()),
                true => end = end.min(format!("{}!", place.surt)),
            }
        }
        let query = UrlQuery { start, end: Some(end), descending, after: None };
        let mut reader = cluster.urls(query).await?;
        let next = reader.next().await?;
        Ok(Rows { reader, descending, resume, group: VecDeque::new(), next })
    }

    /// All rows of a range, for those who want no other order.
    pub(in super::super) async fn all(cluster: &Cluster, range: &KeyRange) -> Result<Rows, Problem> {
        Rows::open(cluster, range, false, None).await
    }

    /// The next row.
    pub(in super::super) async fn next_row(&mut self) -> Result<Option<(PageKey, UrlRow)>, Problem> {
        loop {
            if let Some(row) = self.group.pop_front() {
                return Ok(Some(row));
            }
            let Some(first) = self.next.take() else { return Ok(None) };
            let mut group = vec![first];
            while let Some(row) = self.reader.next().await? {
                if group.first().is_some_and(|(_, first)| first.surt == row.1.surt) && group.len() < GROUP_MAX
                {
                    group.push(row);
                } else {
                    self.next = Some(row);
                    break;
                }
            }
            let order = |(key, row): &(PageKey, UrlRow)| (row.fetched_at_ms / 1000, *key);
            group.sort_by_key(order);
            if let Some(place) = &self.resume {
                let at = |(key, row): &(PageKey, UrlRow)| Place {
                    surt: row.surt.clone(),
                    timestamp: super::capture::timestamp(row.fetched_at_ms),
                    key: *key,
                };
                group.retain(|row| if self.descending { at(row) < *place } else { at(row) > *place });
            }
            if self.descending {
                group.reverse();
            }
            self.group = group.into();
        }
    }

    /// The next line.
    pub(super) async fn next(&mut self) -> Result<Option<Capture>, Problem> {
        Ok(self.next_row().await?.map(|(key, row)| Capture::of(key, &row)))
    }
}
