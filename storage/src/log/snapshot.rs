//! Reading a view: the store's own reads, and those of a snapshot or a generation.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use super::lost::UnsureStream;
use super::stream::{self, LogStream};
use super::view::{How, Part, View};
use crate::cache::RecordCache;
use crate::catalog::Row;
use crate::codec::Dictionaries;
use crate::error::{Result, StorageError};
use crate::page::{PageId, PageKey, RepositoryKey};
use crate::record::{Kind, Record};
use crate::snapshot::{Listed, Snapshot};
use crate::store::{Cursor, Order, PageStream, StreamSpec, Trust};

/// A view with the key that names its pages, what they are packed with, and the store's cache: an ordinal never names a
/// second record.
pub(crate) struct LogSnapshot {
    pub(super) view: Arc<View>,
    pub(super) key: RepositoryKey,
    pub(super) dictionaries: Dictionaries,
    pub(super) cache: Option<Arc<RecordCache>>,
}

impl LogSnapshot {
    fn how(&self, trust: Trust) -> How<'_> {
        How { trust, cache: self.cache.as_deref(), dictionaries: &self.dictionaries, unpack: false }
    }
}

impl View {
    /// The records of all living pages with this id.
    pub(crate) fn read_id(&self, id: PageId, how: How<'_>) -> Result<Vec<Record>> {
        // A page that is not found may be lost.
        let mut failed = self.is_sure(None).err();
        let mut found = Vec::new();
        self.candidates(id, |part, position, ordinal| {
            match how.read(part, position, ordinal) {
                Ok(record) if record.get().key().id == id => found.push(record),
                Ok(_) => {}
                Err(_)
                    if part
                        .segment
                        .row(position)
                        .is_ok_and(|row| !row.is_damaged() && row.key().id != id) => {}
                Err(e) => failed = Some(e),
            }
            failed.is_some()
        });
        failed.map_or(Ok(found), Err)
    }

    /// The records of many pages, read at once.
    pub(crate) fn read_many(&self, keys: &[PageKey], how: How<'_>) -> Vec<Result<Option<Record>>> {
        match self.lost.is_empty() {
            true => stream::lookup_many(self, keys, how),
            false => keys.iter().map(|key| self.read(*key, how)).collect(),
        }
    }

    /// The keys of all living pages, ascending.
    pub(crate) fn keys(&self) -> Result<Vec<PageKey>> {
        self.is_sure(None)?;
        let mut keys = Vec::new();
        for part in &self.parts {
            let count = part.segment.position_from(part.end_ordinal);
            let rows = part.segment.rows(count)?;
            let is_damaged = |(i, row): &(usize, &Row)| row.is_damaged() && !part.dead.get(*i);
            if let Some((position, _)) = rows.iter().enumerate().find(is_damaged) {
                return Err(damaged(part, position));
            }
            let living =
                rows.iter().enumerate().filter(|(i, row)| row.kind() == Kind::Page && !part.dead.get(*i));
            keys.extend(living.map(|(_, row)| row.key()));
        }
        keys.sort_unstable();
        Ok(keys)
    }

    /// The living pages with these ids, by key: candidates from the index, in order of the bits it has of their ids;
    /// then their rows, in order of their places.
    pub(crate) fn list(
        &self,
        ids: &RangeInclusive<PageId>,
        from: PageKey,
        limit: usize,
    ) -> Result<Vec<Listed>> {
        self.is_sure(None)?;
        let mut listed: Vec<Listed> = Vec::new();
        let first = from.max(PageKey { id: *ids.start(), tie: 0 });
        if first.id > *ids.end() || limit == 0 {
            return Ok(listed);
        }
        let mut runs: Vec<_> = self.runs.iter().map(|r| r.run.iter_from(first.id).peekable()).collect();
        while listed.len() < limit {
            // Pages that share these bits are in no order: they come together.
            let mut ordinals: Vec<u64> = Vec::new();
            let mut more = false;
            while let Some((prefix, _)) = runs.iter_mut().filter_map(|r| r.peek().copied()).min() {
                more = prefix <= ids.end().0 >> 24;
                if !more || ordinals.len() + listed.len() >= limit {
                    break;
                }
                for run in &mut runs {
                    while let Some((_, ordinal)) = run.next_if(|(p, _)| *p == prefix) {
                        ordinals.extend(Some(ordinal).filter(|&o| !self.is_dead(o)));
                    }
                }
            }
            ordinals.sort_unstable();
            for ordinal in ordinals {
                let place = self.locate(ordinal);
                let Some((part, place)) = place.and_then(|p| Some((self.part(p)?, p))) else { continue };
                let row = part.segment.row(place.position)?;
                if row.is_damaged() {
                    return Err(damaged(part, place.position));
                }
                let bytes = part.segment.place(place.position).map_or(0, |p| p.end - p.start);
                let key = row.key();
                if row.kind() == Kind::Page && key >= first && ids.contains(&key.id) {
                    listed.push(Listed { key, version: row.version(), bytes, ordinal: Some(ordinal) });
                }
            }
            if !more {
                break;
            }
        }
        listed.sort_unstable_by_key(|l| l.key);
        listed.truncate(limit);
        Ok(listed)
    }

    /// The first of these ordinals, appended in key order, from which on no page is below `key`.
    pub(crate) fn ordinal_from(&self, ordinals: &Range<u64>, key: PageKey) -> Result<u64> {
        let inside = |p: &&Part| p.segment.first_ordinal < ordinals.end && ordinals.start < p.end_ordinal;
        for part in self.parts.iter().filter(inside).rev() {
            let segment = &part.segment;
            let mut low = segment.position_from(ordinals.start);
            let mut high = segment.position_from(ordinals.end.min(part.end_ordinal));
            match first_page(part, low..high)? {
                Some((at, first)) if first < key => low = at,
                _ => continue, // it begins in an earlier segment, or here
            }
            // The page at `low` is below the key; from `high` on none is.
            while low + 1 < high {
                let middle = low + (high - low) / 2;
                match first_page(part, middle..high)? {
                    Some((at, found)) if found < key => low = at,
                    _ => high = middle,
                }
            }
            let is_last = high >= segment.position_from(part.end_ordinal);
            return Ok(if is_last { part.end_ordinal } else { segment.ordinal(high) });
        }
        Ok(ordinals.start)
    }

    /// Pages and bytes of their records.
    pub(crate) fn living(&self) -> (u64, u64) {
        let add =
            |(pages, bytes), part: &Part| (pages + part.counts.live_pages, bytes + part.counts.live_bytes);
        self.parts.iter().fold((0, 0), add)
    }
}

/// A living record that cannot be read.
fn damaged(part: &Part, position: usize) -> StorageError {
    let offset = part.segment.place(position).map_or(0, |place| place.start);
    StorageError::corrupt(part.segment.path(), offset, "a page is damaged")
}

/// The first page among some positions of a part, living or not, and its key.
fn first_page(part: &Part, positions: Range<usize>) -> Result<Option<(usize, PageKey)>> {
    for position in positions {
        let row = part.segment.row(position)?;
        if row.kind() == Kind::Page {
            return Ok(Some((position, row.key())));
        }
    }
    Ok(None)
}

/// A stream of all living pages of a view.
pub(crate) fn stream_of(
    view: Arc<View>,
    dictionaries: &Dictionaries,
    spec: &StreamSpec,
) -> Result<Box<dyn PageStream>> {
    if spec.order == Order::Id {
        let hint = "stream in store order and sort, or keep the pages in a hash or hashed-log store";
        return Err(StorageError::NoSuchOrder { organization: "log", order: "id", hint });
    }
    let from = match spec.from {
        Cursor::Start => 0,
        Cursor::Ordinal(ordinal) => ordinal,
        Cursor::End => u64::MAX,
        Cursor::Key(_) => {
            return Err(StorageError::BadCursor { what: "it is of a hash or hashed-log store".into() });
        }
        Cursor::Live { .. } => {
            return Err(StorageError::BadCursor { what: "it is of live pages".into() });
        }
    };
    let stream = LogStream::new(view.clone(), dictionaries.clone(), from, spec);
    Ok(if view.lost.is_empty() { Box::new(stream) } else { Box::new(UnsureStream::new(view, stream)) })
}

impl Snapshot for LogSnapshot {
    fn repository_key(&self) -> &RepositoryKey {
        &self.key
    }

    fn lookup(&self, key: PageKey, trust: Trust) -> Result<Option<Record>> {
        self.view.read(key, self.how(trust))
    }

    fn lookup_warm(&self, key: PageKey) -> Option<Result<Option<Record>>> {
        self.view.read_warm(key, self.how(Trust::Verify))
    }

    fn lookup_id(&self, id: PageId, trust: Trust) -> Result<Vec<Record>> {
        self.view.read_id(id, self.how(trust))
    }

    fn lookup_many(&self, keys: &[PageKey]) -> Vec<Result<Option<Record>>> {
        self.view.read_many(keys, self.how(Trust::Verify))
    }

    fn stream(&self, spec: &StreamSpec) -> Result<Box<dyn PageStream>> {
        stream_of(self.view.clone(), &self.dictionaries, spec)
    }

    fn keys(&self) -> Result<Vec<PageKey>> {
        self.view.keys()
    }

    fn list(&self, ids: RangeInclusive<PageId>, from: PageKey, limit: usize) -> Result<Vec<Listed>> {
        self.view.list(&ids, from, limit)
    }

    fn ordinal_from(&self, ordinals: Range<u64>, key: PageKey) -> Option<u64> {
        self.view.ordinal_from(&ordinals, key).ok()
    }

    fn pages(&self) -> u64 {
        self.view.living().0
    }

    fn live_bytes(&self) -> u64 {
        self.view.living().1
    }
}
