//! The URL index of live pages: the rows of the epochs, over the index of the newest generation.
//!
//! Rows of an epoch are taken when its pages are committed. They wait in memory, in order, up to a budget, then in sorted runs in
//! `live-urls/`. Nothing of this is durable: when a node starts, the rows are made anew from the heads of the epochs' records,
//! which are what arrived since the last cycle.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use webbase_storage::disk::OsDisk;
use webbase_storage::urls::{UrlFiles, UrlQuery, UrlRow, UrlRows, Urls};
use webbase_storage::{PageKey, Record, RepositoryKey, Result, Snapshot, StreamSpec, Trust, Version};

use super::Overlay;

/// Memory for rows of all epochs, about, before they go to disk.
const BUDGET_BYTES: usize = 32 << 20;

/// How long the rows of an epoch stay that is gone.
const STAY: Duration = Duration::from_secs(10);

type Place = (String, PageKey);

/// The rows of one epoch.
struct Rows {
    recent: BTreeMap<Place, UrlRow>,
    bytes: usize,
    older: Urls,
    /// When its epoch was found to be gone. Who looked just before that still reads its rows.
    gone: Option<Instant>,
}

/// The rows of the epochs.
pub(in super::super) struct LiveUrls {
    files: Arc<UrlFiles>,
    key: RepositoryKey,
    epochs: RwLock<BTreeMap<u64, Rows>>,
    /// Of pages that are staged and not committed.
    staged: Mutex<Vec<(PageKey, UrlRow)>>,
}

impl LiveUrls {
    /// Makes the rows of these epochs.
    pub(in super::super) fn open(
        dir: &Path,
        key: RepositoryKey,
        epochs: &[super::Epoch],
    ) -> Result<LiveUrls> {
        let files = UrlFiles::open(Arc::new(OsDisk::new()), &dir.join("live-urls"), key)?;
        files.retain(&[])?;
        let this = LiveUrls { files, key, epochs: RwLock::default(), staged: Mutex::default() };
        let spec = StreamSpec { trust: Trust::Disk, ..StreamSpec::default() };
        for (number, snapshot) in epochs {
            for record in snapshot.stream(&spec)? {
                // A page that cannot be read does not show.
                let Ok(record) = record else { continue };
                if let Ok(row) = UrlRow::of(&record.get()) {
                    this.publish(*number, vec![(record.get().key(), row)], &**snapshot)?;
                }
            }
        }
        Ok(this)
    }

    /// Takes the rows of pages that were staged.
    pub(in super::super) fn stage(&self, rows: impl Iterator<Item = (PageKey, UrlRow)>) {
        self.staged.lock().extend(rows);
    }

    /// What was staged so far, which is about to be committed.
    pub(in super::super) fn take_staged(&self) -> Vec<(PageKey, UrlRow)> {
        std::mem::take(&mut *self.staged.lock())
    }

    /// Shows rows of pages that are committed now.
    pub(in super::super) fn publish(
        &self,
        epoch: u64,
        rows: Vec<(PageKey, UrlRow)>,
        snapshot: &dyn Snapshot,
    ) -> Result<()> {
        let mut epochs = self.epochs.write();
        let empty = || Rows { recent: BTreeMap::new(), bytes: 0, older: Urls::empty(self.key), gone: None };
        let of = epochs.entry(epoch).or_insert_with(empty);
        for (key, row) in rows {
            let place = (row.surt.clone(), key);
            let row = match of.recent.get(&place) {
                Some(old) if old.version() > row.version() => continue,
                // Only the record tells them apart.
                Some(old) if old.version() == row.version() && *old != row => {
                    match snapshot.lookup(key, Trust::Disk)? {
                        Some(record) => UrlRow::of(&record.get())?,
                        None => continue,
                    }
                }
                _ => row,
            };
            of.bytes += 2 * row.surt.len() + row.url.len() + 160;
            of.recent.insert(place, row);
        }
        if of.bytes > BUDGET_BYTES {
            let mut builder = self.files.builder(BUDGET_BYTES);
            for ((_, key), row) in std::mem::take(&mut of.recent) {
                builder.add(key, row)?;
            }
            let mut tied = |key: PageKey| match snapshot.lookup(key, Trust::Disk)? {
                Some(record) => UrlRow::of(&record.get()).map(Some),
                None => Ok(None),
            };
            (of.older, of.bytes) = (builder.finish(&of.older, Some(&mut tied))?, 0);
            self.files.retain(&[])?;
        }
        Ok(())
    }

    /// Forgets the rows of epochs that are gone.
    pub(in super::super) fn retain(&self, there: &[u64]) {
        if self.epochs.read().keys().all(|number| there.contains(number)) {
            return;
        }
        self.epochs.write().retain(|number, rows| {
            there.contains(number) || rows.gone.get_or_insert_with(Instant::now).elapsed() < STAY
        });
    }

    /// Rows of pages as they show now, at most `limit`, and whether there are more.
    pub(in super::super) fn rows(
        &self,
        overlay: &Overlay,
        base: Option<&Urls>,
        query: &UrlQuery,
        limit: usize,
        wanted: impl Fn(&UrlRow) -> bool,
    ) -> Result<(Vec<UrlRow>, bool)> {
        let mut merged = Merged::open(self, overlay, base, query, limit)?;
        let mut found = Vec::new();
        while let Some(row) = merged.next()? {
            if wanted(&row) {
                if found.len() == limit {
                    return Ok((found, true));
                }
                found.push(row);
            }
        }
        Ok((found, merged.is_cut))
    }

    /// How many pages show that the generation has not.
    pub(in super::super) fn more_than(
        &self,
        overlay: &Overlay,
        base: Option<&Urls>,
        start: &str,
        end: Option<&str>,
        wanted: impl Fn(&UrlRow) -> bool,
    ) -> Result<u64> {
        let mut query = UrlQuery { start: start.into(), end: end.map(str::to_owned), ..UrlQuery::default() };
        let mut more = 0;
        loop {
            let mut merged = Merged::open(self, overlay, None, &query, 4096)?;
            while let Some(row) = merged.next()? {
                let key = row.key(&self.key);
                let is_there = match base {
                    Some(base) => base.find(&row.surt, key)?.is_some(),
                    None => false,
                };
                more += u64::from(!is_there && wanted(&row));
                query.after = Some(webbase_storage::urls::UrlPlace { surt: row.surt, key });
            }
            if !merged.is_cut {
                return Ok(more);
            }
        }
    }
}

/// One of the things that are merged: rows in order, the next one read ahead.
struct Source {
    rows: Box<dyn Iterator<Item = Result<UrlRow>> + Send>,
    next: Option<(Place, UrlRow)>,
    is_base: bool,
}

/// The rows of all layers as one.
struct Merged<'a> {
    overlay: &'a Overlay,
    sources: Vec<Source>,
    /// Beyond this place not all rows are at hand.
    through: Option<Place>,
    descending: bool,
    is_cut: bool,
}

impl<'a> Merged<'a> {
    fn open(
        live: &LiveUrls,
        overlay: &'a Overlay,
        base: Option<&Urls>,
        query: &UrlQuery,
        limit: usize,
    ) -> Result<Merged<'a>> {
        let mut sources = Vec::new();
        let mut through: Option<Place> = None;
        let epochs = live.epochs.read();
        for (number, _) in &overlay.epochs {
            let Some(rows) = epochs.get(number) else { continue };
            sources.push(Source::of(rows.older.query(query)?, false));
            let recent = recent(&rows.recent, query, limit.saturating_add(1));
            if recent.len() > limit {
                let last = recent.last().map(|row| (row.surt.clone(), row.key(&live.key)));
                through = match (through, last) {
                    (Some(a), Some(b)) => Some(if query.descending { a.max(b) } else { a.min(b) }),
                    (a, b) => a.or(b),
                };
            }
            sources.push(Source { rows: Box::new(recent.into_iter().map(Ok)), next: None, is_base: false });
        }
        drop(epochs);
        if let Some(base) = base {
            sources.push(Source::of(base.query(query)?, true));
        }
        let mut merged = Merged { overlay, sources, through, descending: query.descending, is_cut: false };
        for at in 0..merged.sources.len() {
            merged.advance(at)?;
        }
        Ok(merged)
    }

    fn advance(&mut self, at: usize) -> Result<Option<UrlRow>> {
        let Some(source) = self.sources.get_mut(at) else { return Ok(None) };
        let key = &self.overlay.key;
        let next = source.rows.next().transpose()?.map(|row| ((row.surt.clone(), row.key(key)), row));
        Ok(std::mem::replace(&mut source.next, next).map(|(_, row)| row))
    }

    fn next(&mut self) -> Result<Option<UrlRow>> {
        loop {
            let places = self.sources.iter().filter_map(|s| s.next.as_ref().map(|(place, _)| place.clone()));
            let place = if self.descending { places.max() } else { places.min() };
            let Some(place) = place else { return Ok(None) };
            let beyond = |through: &Place| if self.descending { place < *through } else { place > *through };
            if self.through.as_ref().is_some_and(beyond) {
                self.is_cut = true;
                return Ok(None);
            }
            let (mut live, mut base): (Option<UrlRow>, Option<UrlRow>) = (None, None);
            for at in 0..self.sources.len() {
                let Some(source) = self.sources.get(at) else { continue };
                let is_base = source.is_base;
                if source.next.as_ref().is_none_or(|(other, _)| *other != place) {
                    continue;
                }
                let row = self.advance(at)?;
                if is_base {
                    base = row;
                } else if live.as_ref().map(UrlRow::version) < row.as_ref().map(UrlRow::version) {
                    live = row;
                }
            }
            if let Some(row) = self.shown(place.1, live, base)? {
                return Ok(Some(row));
            }
        }
    }

    /// Which of the rows of a page shows. Where rows don't tell, the records do.
    fn shown(&self, key: PageKey, live: Option<UrlRow>, base: Option<UrlRow>) -> Result<Option<UrlRow>> {
        let Some(live) = live else { return Ok(base) };
        let (fetched_at_ms, epoch) = live.version();
        let bars = |digest| self.overlay.bars(key, Version { fetched_at_ms, epoch, digest });
        let is_tied = base.as_ref().is_some_and(|base| base.version() == live.version() && *base != live);
        if is_tied || bars(0) != bars(u64::MAX) {
            let found: Option<Record> = self.overlay.lookup(key, Trust::Disk)?;
            return found.map(|record| UrlRow::of(&record.get())).transpose();
        }
        let is_older = base.as_ref().is_some_and(|base| base.version() >= live.version());
        Ok(if is_older || bars(0) { base } else { Some(live) })
    }
}

impl Source {
    fn of(rows: UrlRows, is_base: bool) -> Source {
        Source { rows: Box::new(rows), next: None, is_base }
    }
}

/// Rows in memory that are asked for, at most so many.
fn recent(rows: &BTreeMap<Place, UrlRow>, query: &UrlQuery, limit: usize) -> Vec<UrlRow> {
    let least = |surt: &str| (surt.to_owned(), PageKey::MIN);
    let mut from = Bound::Included(least(&query.start));
    let mut to = query.end.as_deref().map_or(Bound::Unbounded, |end| Bound::Excluded(least(end)));
    if let Some(after) = &query.after {
        let place = (after.surt.clone(), after.key);
        match query.descending {
            false if place >= least(&query.start) => from = Bound::Excluded(place),
            true if query.end.as_deref().is_none_or(|end| place < least(end)) => to = Bound::Excluded(place),
            _ => {}
        }
    }
    let is_empty = match (&from, &to) {
        (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to)) => from >= to,
        _ => false,
    };
    if is_empty {
        return Vec::new();
    }
    let some = rows.range((from, to)).map(|(_, row)| row);
    match query.descending {
        false => some.take(limit).cloned().collect(),
        true => some.rev().take(limit).cloned().collect(),
    }
}
