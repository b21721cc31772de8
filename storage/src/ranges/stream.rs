//! Streams over leaves, in id order. Threads read, list, sort and verify leaves ahead; what waits in the buffer is merged
//! in on the way.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::View;
use super::content::Content;
use super::directory::{Entry, Extent};
use super::flush::with_pending;
use super::leaf;
use super::slots::{Lease, Slots};
use super::snapshot::RangeSnapshot;
use crate::codec::Dictionaries;
use crate::dictionary_files::readable;
use crate::disk::{Buffers, DiskFile};
use crate::error::{Result, StorageError};
use crate::in_order::InOrder;
use crate::page::{PageId, PageKey};
use crate::record::Record;
use crate::store::{Access, Cursor, PageStream, StreamSpec, Trust};

/// Bytes read at once, as far as leaves lie side by side.
const READ_BYTES: u64 = 4 << 20;
/// Groups of leaves read or worked on at once.
const THREADS: usize = 3;
/// Groups of leaves that may be under way or wait for the consumer.
const GROUPS_AHEAD: usize = 4;

/// A page as it is delivered; damage nobody can tell the page of has no key.
type Found = (Option<PageKey>, Result<Record>);

/// What is wanted of a stream.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Wanted {
    /// All pages.
    All,
    /// The keys of all pages: whether they can be unpacked does not matter.
    Keys,
    /// The pages with this id, and what may hide them.
    Id(PageId),
}

/// The pages of a view from a cursor on.
pub(crate) struct RangeStream {
    groups: InOrder<Vec<Found>>,
    /// What the current group of leaves still has to give.
    found: std::vec::IntoIter<Found>,
    from: PageKey,
    done: bool,
    /// Of the last one given out.
    last: Option<PageKey>,
}

impl RangeStream {
    pub(super) fn new(of: &RangeSnapshot, spec: &StreamSpec, wanted: Wanted) -> Result<RangeStream> {
        let only = if let Wanted::Id(id) = wanted { Some(id) } else { None };
        let (from, done) = match spec.from {
            Cursor::Start => (PageKey::MIN, false),
            Cursor::Key(key) => (key, false),
            Cursor::End => (PageKey::MAX, true),
            Cursor::Ordinal(_) | Cursor::Live { .. } => {
                return Err(StorageError::BadCursor { what: "it is of a log store".into() });
            }
        };
        let (view, lease) = (of.view.clone(), of.lease.clone());
        let mut entries = entries_from(&view, from.id.0);
        entries.truncate(if only.is_some() { 1 } else { usize::MAX });
        let direct = spec.access == Access::Direct && only.is_none();
        let slots = of.slots.clone();
        let file = slots.file().clone();
        let file = if direct { file.open_direct().unwrap_or(file) } else { file };
        let buffers = Buffers::new(GROUPS_AHEAD + 2);
        let dictionaries = (wanted != Wanted::Keys).then(|| of.dictionaries.clone());
        let (is_hash, map) = (of.is_hash, only.is_none());
        let reader = Reader { slots, file, buffers, direct, is_hash, map, lease, dictionaries };
        let groups = reader.groups(&entries);
        let (trust, count) = (spec.trust, groups.len());
        let groups = InOrder::new(count, THREADS, GROUPS_AHEAD, move |number| {
            let group = groups.get(number).and_then(|range| entries.get(range.clone())).unwrap_or_default();
            let mut found = Vec::new();
            for (entry, last_id, content) in reader.read_group(group) {
                reader.list(
                    &view,
                    (entry, *last_id),
                    content,
                    trust,
                    from,
                    |key| key >= from && only.is_none_or(|id| key.id == id),
                    &mut found,
                );
            }
            found
        });
        Ok(RangeStream { groups, found: Vec::new().into_iter(), from, done, last: None })
    }
}

impl PageStream for RangeStream {
    fn next(&mut self) -> Option<Result<Record>> {
        while !self.done {
            match self.found.next() {
                Some((key, record)) => {
                    self.last = key;
                    match key.map(|key| key.next()) {
                        Some(Some(next)) => self.from = next,
                        Some(None) => self.done = true,
                        None => {}
                    }
                    return Some(record);
                }
                None => match self.groups.next() {
                    Some(found) => self.found = found.into_iter(),
                    None => self.done = true,
                },
            }
        }
        None
    }

    fn cursor(&self) -> Cursor {
        if self.done { Cursor::End } else { Cursor::Key(self.from) }
    }

    fn lost(&self) -> Option<PageKey> {
        self.last
    }
}

/// All leaves from the one that covers `id` on, with the last id of each.
fn entries_from(view: &View, id: u64) -> Vec<(Entry, u64)> {
    let mut entries: Vec<(Entry, u64)> = Vec::new();
    for entry in view.directory.iter_from(id) {
        if let Some((_, last)) = entries.last_mut() {
            *last = entry.first_id - 1;
        }
        entries.push((entry.clone(), u64::MAX));
    }
    entries
}

struct Reader {
    slots: Arc<Slots>,
    file: Arc<dyn DiskFile>,
    buffers: Buffers,
    direct: bool,
    /// Leaves of the hash organization are sorted as a whole.
    is_hash: bool,
    /// Whether leaves are mapped rather than read, where they can be.
    map: bool,
    lease: Arc<Lease>,
    /// What records must be unpacked with, if that matters.
    dictionaries: Option<Dictionaries>,
}

/// A leaf's entry, last id and bytes.
type Loaded<'a> = (&'a Entry, &'a u64, Result<Content>);

impl Reader {
    fn end(&self, extent: Extent) -> u64 {
        self.slots.offset(extent) + u64::from(extent.slots) * self.slots.slot_bytes()
    }

    /// Leaves that are read in one go.
    fn groups(&self, entries: &[(Entry, u64)]) -> Vec<Range<usize>> {
        let mut groups = Vec::new();
        let mut start = 0;
        while let Some(rest) = entries.get(start..).filter(|rest| !rest.is_empty()) {
            let count = self.side_by_side(rest).max(1);
            groups.push(start..start + count);
            start += count;
        }
        groups
    }

    /// How many leaves from the first on can be read in one go.
    fn side_by_side(&self, entries: &[(Entry, u64)]) -> usize {
        let filled = |e: &Entry| e.extent.slots > 0;
        let Some(first) = entries.iter().position(|(e, _)| filled(e)) else { return entries.len() };
        let start = entries.get(first).map_or(0, |(e, _)| self.slots.offset(e.extent));
        let mut end = start;
        let more = entries.iter().skip(first).take_while(|(e, _)| {
            let fits = self.slots.offset(e.extent) == end && (end - start) < READ_BYTES;
            end = self.end(e.extent);
            filled(e) && fits
        });
        first + more.count()
    }

    /// Reads leaves that lie side by side (leading empty ones apart).
    fn read_group<'a>(&self, group: &'a [(Entry, u64)]) -> Vec<Loaded<'a>> {
        let mut filled = group.iter().filter(|(e, _)| e.extent.slots > 0);
        let first = filled.next();
        let last = filled.next_back().or(first);
        let Some(((first, _), (last, _))) = first.zip(last) else {
            return group.iter().map(|(e, id)| (e, id, Ok(Content::default()))).collect();
        };
        if self.map && !self.direct {
            let mapped = |e: &Entry| match e.extent.slots {
                0 => Some(Bytes::new()),
                _ => self.slots.map(e.extent, e.used, &self.lease),
            };
            let all: Option<Vec<Loaded<'_>>> =
                group.iter().map(|(e, id)| Some((e, id, Ok(mapped(e)?.into())))).collect();
            if let Some(all) = all {
                return all;
            }
        }
        let start = self.slots.offset(first.extent);
        let end = self.slots.offset(last.extent) + u64::from(last.used);
        let read = self.buffers.read(&*self.file, start..end);
        let load = |entry: &Entry| match &read {
            _ if entry.extent.slots == 0 => Ok(Content::default()),
            Ok(bytes) => {
                let at = (self.slots.offset(entry.extent) - start) as usize;
                Ok(bytes.slice(at..at + entry.used as usize).into())
            }
            // Leaf by leaf the readable ones are found.
            Err(_) => self.slots.read(entry.extent, entry.used),
        };
        group.iter().map(|(entry, last_id)| (entry, last_id, load(entry))).collect()
    }

    /// What a leaf, with what waits for it, has to give from a key on. Damage that hides its page comes where that page would.
    #[expect(clippy::too_many_arguments, reason = "one call")]
    fn list(
        &self,
        view: &View,
        (entry, last_id): (&Entry, u64),
        content: Result<Content>,
        trust: Trust,
        from: PageKey,
        wanted: impl Fn(PageKey) -> bool,
        found: &mut Vec<Found>,
    ) {
        let offset = self.slots.offset(entry.extent);
        let content = content.unwrap_or_else(|e| {
            found.push((None, Err(e)));
            Content::default()
        });
        let bytes = &content.bytes;
        let base = bytes.as_ptr() as usize;
        let mut leaf = if bytes.is_empty() { leaf::Leaf::default() } else { leaf::decode(&content, false) };
        leaf.judge(entry.live_bytes);
        // What may have been a newer version of any page before it.
        let change = leaf.damage.iter().filter(|d| !self.is_hash && d.may_change(0));
        let change = change.max_by_key(|d| d.rank()).cloned();
        let nameless = leaf.damage.iter().filter(|d| d.key.is_none());
        let mut nameless: Vec<_> =
            nameless.filter(|d| d.between().1.is_none_or(|before| before > from)).collect();
        nameless.sort_by_key(|damage| std::cmp::Reverse(damage.between().0));
        let damaged = |damage: &leaf::LeafDamage| {
            let at = offset + damage.offset as u64;
            (None, Err(StorageError::corrupt(self.slots.path(), at, &damage.what)))
        };
        // Records that name their page and cannot be read.
        let unreadable: BTreeMap<usize, &str> = leaf
            .damage
            .iter()
            .filter(|damage| damage.key.is_some())
            .map(|damage| (damage.offset, damage.what.as_str()))
            .collect();
        let items = with_pending(leaf.items, view, entry.first_id, last_id);
        for (key, item) in items.into_iter().filter(|(key, _)| wanted(*key)) {
            while let Some(damage) = nameless.pop_if(|d| d.between().0.is_none_or(|after| after < key)) {
                found.push(damaged(damage));
            }
            let at = (item.page.as_ptr() as usize).wrapping_sub(base);
            if let Some(change) = change.as_ref().filter(|d| at < bytes.len() && d.may_change(at)) {
                found.push((Some(key), damaged(change).1));
                continue;
            }
            if let Some(what) = unreadable.get(&at) {
                let at = offset + at as u64;
                found.push((Some(key), Err(StorageError::corrupt(self.slots.path(), at, what))));
                continue;
            }
            let at = if at < bytes.len() { offset + at as u64 } else { offset };
            let record = match trust {
                Trust::Verify => Record::new(item.page),
                Trust::Disk => Record::new_unverified(item.page),
            };
            let record = record.map_err(|e| StorageError::corrupt(self.slots.path(), at, e));
            let record = match &self.dictionaries {
                Some(known) => record.and_then(|record| readable(record, known, self.slots.path())),
                None => record,
            };
            found.push((Some(key), record));
        }
        found.extend(nameless.into_iter().rev().map(damaged));
    }
}
