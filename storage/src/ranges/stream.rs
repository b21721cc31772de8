//! Streams over leaves, in id order. A thread reads leaves ahead; what waits in the buffer is merged in on the way.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bytes::Bytes;

use super::View;
use super::directory::{Entry, Extent};
use super::flush::with_pending;
use super::leaf;
use super::pending::Item;
use super::slots::{Lease, Slots};
use super::snapshot::RangeSnapshot;
use crate::disk::DiskFile;
use crate::error::{Result, StorageError};
use crate::page::{PageId, PageKey};
use crate::record::Record;
use crate::store::{Access, Cursor, PageStream, StreamSpec, Trust};

/// Bytes read at once, as far as leaves lie side by side.
const READ_BYTES: u64 = 4 << 20;
/// Reads that may wait for the consumer.
const READS_AHEAD: usize = 2;
const BLOCK_BYTES: u64 = 4096;

/// A leaf's bytes as read ahead.
type Loaded = (Entry, u64, Result<Bytes>);

/// The pages of a view from a cursor on.
pub(crate) struct RangeStream {
    view: Arc<View>,
    slots: Arc<Slots>,
    trust: Trust,
    leaves: Receiver<Vec<Loaded>>,
    loaded: std::vec::IntoIter<Loaded>,
    /// What the current leaf still has to give: pages, and damage nobody can tell the page of.
    items: VecDeque<Result<(PageKey, Item, u64)>>,
    from: PageKey,
    done: bool,
    _lease: Arc<Lease>,
}

impl RangeStream {
    /// A stream; with `only`, of the one leaf that covers this id.
    pub(super) fn new(of: &RangeSnapshot, spec: &StreamSpec, only: Option<PageId>) -> Result<RangeStream> {
        let (from, done) = match spec.from {
            Cursor::Start => (PageKey::MIN, false),
            Cursor::Key(key) => (key, false),
            Cursor::End => (PageKey::MAX, true),
            Cursor::Ordinal(_) => {
                return Err(StorageError::BadCursor { what: "it is of a log store".into() });
            }
        };
        let (view, lease) = (of.view.clone(), of.lease.clone());
        let (sender, leaves) = sync_channel(READS_AHEAD);
        let mut entries = entries_from(&view, from.id.0);
        entries.truncate(if only.is_some() { 1 } else { usize::MAX });
        let slots = of.slots.clone();
        let direct = spec.access == Access::Direct;
        let _ = if only.is_some() {
            let reader =
                Reader { slots: slots.clone(), file: slots.file().clone(), direct: false, lease: None };
            sender.try_send(reader.read_group(&entries)).is_ok()
        } else {
            let (slots, lease) = (slots.clone(), lease.clone());
            std::thread::spawn(move || read_ahead(slots, &entries, direct, lease, &sender));
            true
        };
        Ok(RangeStream {
            view,
            slots,
            trust: spec.trust,
            leaves,
            loaded: Vec::new().into_iter(),
            items: VecDeque::new(),
            from,
            done,
            _lease: lease,
        })
    }

    fn enter(&mut self, (entry, last_id, bytes): Loaded) {
        let offset = self.slots.offset(entry.extent);
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(e) => {
                self.items.push_back(Err(e));
                Bytes::new()
            }
        };
        let base = bytes.as_ptr() as usize;
        let leaf = if bytes.is_empty() { leaf::Leaf::default() } else { leaf::decode(&bytes, false) };
        for damage in leaf.damage.iter().filter(|d| d.key.is_none()) {
            let at = offset + damage.offset as u64;
            self.items.push_back(Err(StorageError::corrupt(self.slots.path(), at, &damage.what)));
        }
        let items = with_pending(leaf.items, &self.view, entry.first_id, last_id);
        let from = self.from;
        self.items.extend(items.into_iter().filter(|(key, _)| *key >= from).map(|(key, item)| {
            let at = (item.page.as_ptr() as usize).wrapping_sub(base);
            let at = if at < bytes.len() { offset + at as u64 } else { offset };
            Ok((key, item, at))
        }));
    }
}

impl PageStream for RangeStream {
    fn next(&mut self) -> Option<Result<Record>> {
        while !self.done {
            match self.items.pop_front() {
                Some(Ok((key, item, at))) => {
                    match key.next() {
                        Some(next) => self.from = next,
                        None => self.done = true,
                    }
                    let record = match self.trust {
                        Trust::Verify => Record::new(item.page),
                        Trust::Disk => Record::new_unverified(item.page),
                    };
                    return Some(record.map_err(|e| StorageError::corrupt(self.slots.path(), at, e)));
                }
                Some(Err(e)) => return Some(Err(e)),
                None => match self.loaded.next() {
                    Some(loaded) => self.enter(loaded),
                    None => match self.leaves.recv() {
                        Ok(more) => self.loaded = more.into_iter(),
                        Err(_) => self.done = true,
                    },
                },
            }
        }
        None
    }

    fn cursor(&self) -> Cursor {
        if self.done { Cursor::End } else { Cursor::Key(self.from) }
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

fn read_ahead(
    slots: Arc<Slots>,
    entries: &[(Entry, u64)],
    direct: bool,
    lease: Arc<Lease>,
    sender: &SyncSender<Vec<Loaded>>,
) {
    let file = slots.file().clone();
    let file = if direct { file.open_direct().unwrap_or(file) } else { file };
    let reader = Reader { slots, file, direct, lease: Some(lease) };
    let mut rest = entries;
    while !rest.is_empty() {
        let (group, later) = rest.split_at(reader.side_by_side(rest));
        if sender.send(reader.read_group(group)).is_err() {
            return; // nobody reads on
        }
        rest = later;
    }
}

struct Reader {
    slots: Arc<Slots>,
    file: Arc<dyn DiskFile>,
    direct: bool,
    /// With it, leaves are mapped rather than read.
    lease: Option<Arc<Lease>>,
}

impl Reader {
    fn end(&self, extent: Extent) -> u64 {
        self.slots.offset(extent) + u64::from(extent.slots) * self.slots.slot_bytes()
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
    fn read_group(&self, group: &[(Entry, u64)]) -> Vec<Loaded> {
        let mut filled = group.iter().filter(|(e, _)| e.extent.slots > 0);
        let first = filled.next();
        let last = filled.next_back().or(first);
        let Some(((first, _), (last, _))) = first.zip(last) else {
            return group.iter().map(|(e, id)| (e.clone(), *id, Ok(Bytes::new()))).collect();
        };
        if let Some(lease) = self.lease.as_ref().filter(|_| !self.direct) {
            let mapped = |e: &Entry| match e.extent.slots {
                0 => Some(Bytes::new()),
                _ => self.slots.map(e.extent, e.used, lease),
            };
            let all: Option<Vec<Loaded>> =
                group.iter().map(|(e, id)| Some((e.clone(), *id, Ok(mapped(e)?)))).collect();
            if let Some(all) = all {
                return all;
            }
        }
        let start = self.slots.offset(first.extent);
        let end = self.slots.offset(last.extent) + u64::from(last.used);
        let read = self.read(start, (end - start) as usize);
        let load = |entry: &Entry| match &read {
            _ if entry.extent.slots == 0 => Ok(Bytes::new()),
            Ok(bytes) => {
                let at = (self.slots.offset(entry.extent) - start) as usize;
                Ok(bytes.slice(at..at + entry.used as usize))
            }
            // Leaf by leaf the readable ones are found.
            Err(_) => self.slots.read(entry.extent, entry.used),
        };
        group.iter().map(|(entry, last_id)| (entry.clone(), *last_id, load(entry))).collect()
    }

    fn read(&self, offset: u64, len: usize) -> std::io::Result<Bytes> {
        if self.direct {
            let end = offset + len as u64;
            let mut ahead = crate::disk::ReadAhead::new(self.file.clone(), offset..end, false);
            return ahead.get(offset..end);
        }
        debug_assert!(offset.is_multiple_of(BLOCK_BYTES), "slots begin on blocks");
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes.into())
    }
}
