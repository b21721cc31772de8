//! Reading a view of leaves: the store's own reads, and those of a snapshot or a generation.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;

use super::directory::Entry;
use super::flush::with_pending;
use super::leaf::{self, LeafDamage};
use super::pending::{Item, Pending};
use super::slots::{Lease, Slots};
use super::stream::{RangeStream, Wanted};
use super::{RangeStore, View};
use crate::catalog::Row;
use crate::codec::Dictionaries;
use crate::dictionary_files::readable;
use crate::error::{Result, StorageError};
use crate::expiry::Renewed;
use crate::page::{PageId, PageKey, RepositoryKey};
use crate::record::{Record, RecordRef, record_len};
use crate::snapshot::{Listed, Snapshot};
use crate::store::{Cursor, PageStream, StreamSpec, Trust};

/// A view and the lease that keeps its slots from being used again.
pub(crate) struct RangeSnapshot {
    pub(super) view: Arc<View>,
    pub(super) lease: Arc<Lease>,
    pub(super) slots: Arc<Slots>,
    pub(super) is_hash: bool,
    pub(super) key: RepositoryKey,
    pub(super) dictionaries: Dictionaries,
}

impl RangeStore {
    /// The current view, leased.
    pub(super) fn current_snapshot(&self) -> RangeSnapshot {
        // The lease must be of a view that is still current when it is taken: slots of older ones may be in use again.
        loop {
            let view = self.view.load_full();
            let lease = Arc::new(self.slots.lease(view.sequence));
            if self.view.load().sequence == view.sequence {
                return self.snapshot_of(view, lease);
            }
        }
    }

    pub(super) fn snapshot_of(&self, view: Arc<View>, lease: Arc<Lease>) -> RangeSnapshot {
        let (slots, is_hash) = (self.slots.clone(), self.is_hash());
        let (key, dictionaries) = (*self.packer.repository_key(), self.packer.dictionaries().clone());
        RangeSnapshot { view, lease, slots, is_hash, key, dictionaries }
    }
}

/// The page with this key in one leaf.
pub(super) fn item_in_leaf(
    slots: &Slots,
    is_hash: bool,
    entry: &Entry,
    key: PageKey,
) -> Result<Option<Item>> {
    Ok(item_at(slots, is_hash, entry, key)?.map(|(item, _)| item))
}

/// The page with this key in one leaf, and where its record lies in the file.
pub(super) fn item_at(
    slots: &Slots,
    is_hash: bool,
    entry: &Entry,
    key: PageKey,
) -> Result<Option<(Item, u64)>> {
    if entry.extent.slots == 0 {
        return Ok(None);
    }
    if is_hash {
        let content = slots.read(entry.extent, entry.used)?;
        let mut leaf = leaf::decode(&content, false);
        if let Ok(at) = leaf.items.binary_search_by_key(&key, |(key, _)| *key) {
            let item = leaf.items.swap_remove(at).1;
            let at = (item.page.as_ptr() as usize).wrapping_sub(content.bytes.as_ptr() as usize);
            let offset = slots.offset(entry.extent) + at as u64;
            return match leaf.damage_at(at) {
                Some(damage) => Err(StorageError::corrupt(slots.path(), offset, &damage.what)),
                None => Ok(Some((item, offset))),
            };
        }
        let hidden = leaf.nameless_damage().find(|d| d.may_hide(key));
        return hidden.map_or(Ok(None), |damage| Err(may_be_lost(slots, entry, damage)));
    }
    let offset = slots.offset(entry.extent);
    let mut item: Option<Item> = None;
    let load = || slots.read(entry.extent, entry.used);
    let (places, damage) = entry.index.find(key, entry.live_bytes, load)?;
    let (mut last, mut damaged) = (0, None);
    for (at, len) in places {
        let bytes = match slots.file().read_vec(len as usize, offset + u64::from(at)) {
            Ok(bytes) => Bytes::from(bytes),
            Err(e) => match StorageError::read(slots.path(), offset + u64::from(at), e) {
                unreadable @ StorageError::Corrupt { .. } => {
                    damaged = Some(unreadable);
                    continue;
                }
                e => return Err(e),
            },
        };
        // The header must hold: the index may have the record under a key that the header does not say any more.
        let record = match record_len(&bytes).and_then(|_| RecordRef::parse_unverified(&bytes)) {
            Ok(record) => record,
            Err(e) => {
                damaged = Some(StorageError::corrupt(slots.path(), offset + u64::from(at), e));
                continue;
            }
        };
        if record.key() == key {
            damaged = None; // it came later
            let mut pending = Pending::default();
            let current = item.as_ref().and_then(Item::version);
            pending.stage(&Row::of(&record), bytes.clone(), current);
            item = pending.resolve(item);
            last = at as usize;
        }
    }
    if let Some(damaged) = damaged {
        return Err(damaged);
    }
    match damage {
        Some(damage) if item.is_none() || damage.may_change(last) => Err(may_be_lost(slots, entry, &damage)),
        _ => Ok(item.map(|item| (item, offset + last as u64))),
    }
}

/// A page that is not there, or in an older version, in a leaf where something is damaged beyond telling which page it was.
fn may_be_lost(slots: &Slots, entry: &Entry, damage: &LeafDamage) -> StorageError {
    let at = slots.offset(entry.extent) + damage.offset as u64;
    StorageError::corrupt(slots.path(), at, format!("{}; the page may be lost with it", damage.what))
}

/// A record that was found, verified if asked.
pub(super) fn record(
    slots: &Slots,
    view: &View,
    dictionaries: &Dictionaries,
    (item, at): (Item, Option<u64>),
    trust: Trust,
) -> Result<Record> {
    let result = match trust {
        Trust::Verify => Record::new(item.page.clone()),
        Trust::Disk => Record::new_unverified(item.page.clone()),
    };
    let record = result.map_err(|e| {
        let leaf = || item.key().and_then(|key| view.directory.find(key.id.0));
        let at = at.unwrap_or_else(|| leaf().map_or(0, |(entry, _)| slots.offset(entry.extent)));
        StorageError::corrupt(slots.path(), at, e)
    })?;
    readable(record, dictionaries, slots.path())
}

/// By how many pages the buffer changes what is on disk. A page that cannot be read counts as none.
pub(super) fn count_buffered(slots: &Slots, is_hash: bool, view: &View) -> i64 {
    let change = |(key, pending): &(PageKey, Pending)| {
        let entry = view.directory.find(key.id.0).map(|(entry, _)| entry)?;
        let before = item_in_leaf(slots, is_hash, entry, *key).ok()?;
        Some(i64::from(pending.resolve(before.clone()).is_some()) - i64::from(before.is_some()))
    };
    view.buffered.iter().filter_map(change).sum()
}

impl RangeSnapshot {
    /// The pages of one leaf, changes that wait included, sorted by key.
    fn items(&self, entry: &Entry, last_id: u64) -> Result<Vec<(PageKey, Item)>> {
        let mut items = Vec::new();
        if entry.extent.slots > 0 {
            let content = self.slots.read(entry.extent, entry.used)?;
            let leaf = leaf::decode(&content, false);
            // A record that cannot be read does not tell which version it is.
            if let Some(damage) = leaf.damage.iter().find(|damage| damage.offset != 0) {
                return Err(may_be_lost(&self.slots, entry, damage));
            }
            items = leaf.items;
        }
        Ok(with_pending(items, &self.view, entry.first_id, last_id))
    }

    /// Pages that were seen again, of whole leaves from an id on, and the id where the rest begins.
    pub(super) fn renewed(&self, from: u64, limit: usize) -> Result<(Vec<Renewed>, Option<u64>)> {
        let mut renewed = Vec::new();
        let mut entries = self.view.directory.iter_from(from).peekable();
        while let Some(entry) = entries.next() {
            if renewed.len() >= limit {
                return Ok((renewed, Some(entry.first_id)));
            }
            let last_id = entries.peek().map_or(u64::MAX, |next| next.first_id - 1);
            for (key, item) in self.items(entry, last_id)? {
                if let Some(version) = item.version().filter(|_| item.seen.is_some() && key.id.0 >= from) {
                    let deadline_ms = item.deadline_ms().unwrap_or(u64::MAX);
                    renewed.push(Renewed { key, version, deadline_ms });
                }
            }
        }
        Ok((renewed, None))
    }
}

impl Snapshot for RangeSnapshot {
    fn repository_key(&self) -> &RepositoryKey {
        &self.key
    }

    fn lookup(&self, key: PageKey, trust: Trust) -> Result<Option<Record>> {
        let pending = self.view.pending(key);
        let disk = match self.view.directory.find(key.id.0) {
            Some((entry, _)) if !pending.is_some_and(|p| p.wipes) => {
                item_at(&self.slots, self.is_hash, entry, key)?
            }
            _ => None,
        };
        let item = match pending {
            Some(pending) => pending.resolve(disk.map(|(item, _)| item)).map(|item| (item, None)),
            None => disk.map(|(item, at)| (item, Some(at))),
        };
        item.map(|item| record(&self.slots, &self.view, &self.dictionaries, item, trust)).transpose()
    }

    fn lookup_id(&self, id: PageId, trust: Trust) -> Result<Vec<Record>> {
        let from = Cursor::Key(PageKey { id, tie: 0 });
        let mut stream =
            RangeStream::new(self, &StreamSpec { from, trust, ..StreamSpec::default() }, Wanted::Id(id))?;
        let mut found = Vec::new();
        while let Some(record) = stream.next() {
            let record = record?;
            if record.get().key().id != id {
                break;
            }
            found.push(record);
        }
        Ok(found)
    }

    fn stream(&self, spec: &StreamSpec) -> Result<Box<dyn PageStream>> {
        Ok(Box::new(RangeStream::new(self, spec, Wanted::All)?))
    }

    fn keys(&self) -> Result<Vec<PageKey>> {
        let mut stream = RangeStream::new(
            self,
            &StreamSpec { trust: Trust::Disk, ..StreamSpec::default() },
            Wanted::Keys,
        )?;
        let mut keys = Vec::new();
        while let Some(record) = stream.next() {
            keys.push(record?.get().key());
        }
        Ok(keys)
    }

    fn list(&self, ids: RangeInclusive<PageId>, from: PageKey, limit: usize) -> Result<Vec<Listed>> {
        let mut listed = Vec::new();
        let first = from.max(PageKey { id: *ids.start(), tie: 0 });
        let mut entries = self.view.directory.iter_from(first.id.0).peekable();
        while let Some(entry) = entries.next().filter(|e| e.first_id <= ids.end().0) {
            let last_id = entries.peek().map_or(u64::MAX, |next| next.first_id - 1);
            for (key, item) in self.items(entry, last_id)? {
                if key < first || !ids.contains(&key.id) {
                    continue;
                }
                if listed.len() >= limit {
                    return Ok(listed);
                }
                let Some(version) = item.version() else {
                    return Err(StorageError::corrupt(
                        self.slots.path(),
                        self.slots.offset(entry.extent),
                        format!("page {key} is damaged"),
                    ));
                };
                listed.push(Listed { key, version, bytes: item.page.len() as u64, ordinal: None });
            }
        }
        Ok(listed)
    }

    fn pages(&self) -> u64 {
        let on_disk: u64 = self.view.directory.iter().map(|e| u64::from(e.pages)).sum();
        on_disk.saturating_add_signed(self.view.buffered_pages(&self.slots, self.is_hash))
    }

    fn live_bytes(&self) -> u64 {
        self.view.directory.iter().map(|e| u64::from(e.live_bytes)).sum()
    }
}
