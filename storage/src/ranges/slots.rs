//! A file of slots of one size, and who may use them: allocation, and leases that keep a slot from being used again while
//! a reader of an older view may still need it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;

use super::content::Content;
use super::directory::Extent;
use crate::disk::{Disk, DiskFile};
use crate::error::{Result, StorageError};

/// Bytes gathered before successive slots are written.
const WRITE_BYTES: usize = 4 << 20;
/// The file is mapped in steps of this; what lies beyond its end is not touched.
const MAP_BYTES: u64 = 1 << 30;

/// The file `slots` of a store.
#[derive(Debug)]
pub(crate) struct Slots {
    file: Arc<dyn DiskFile>,
    slot_bytes: u64,
    /// The file as far as it was mapped last.
    map: ArcSwap<Bytes>,
    state: Arc<Mutex<State>>,
}

/// A mapped leaf and the lease that keeps its slots.
struct Leased {
    bytes: Bytes,
    _lease: Arc<Lease>,
}

impl AsRef<[u8]> for Leased {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[derive(Debug, Default)]
struct State {
    free: BTreeSet<u32>,
    /// Slots from here on were never used.
    end: u32,
    /// Where to look for the next free slot.
    next: u32,
    /// Views being read: sequence, readers.
    leases: BTreeMap<u64, usize>,
    /// Slots given up by the view with this sequence.
    retired: VecDeque<(u64, Extent)>,
    /// Slots that kept generations name, and how many of them.
    held: BTreeMap<u32, usize>,
    /// Slots that only kept generations name.
    parked: BTreeSet<u32>,
}

impl State {
    fn release(&mut self) {
        let oldest = self.leases.keys().next().copied().unwrap_or(u64::MAX);
        while self.retired.front().is_some_and(|(sequence, _)| *sequence <= oldest) {
            if let Some((_, extent)) = self.retired.pop_front() {
                let slots = extent.slot..extent.slot + extent.slots;
                let (parked, free): (Vec<u32>, Vec<u32>) = slots.partition(|s| self.held.contains_key(s));
                self.parked.extend(parked);
                self.free.extend(free);
            }
        }
    }
}

/// Keeps the slots of one view from being used again.
#[derive(Debug)]
pub(crate) struct Lease {
    state: Arc<Mutex<State>>,
    sequence: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        if let Some(readers) = state.leases.get_mut(&self.sequence) {
            *readers -= 1;
            if *readers == 0 {
                state.leases.remove(&self.sequence);
            }
        }
        state.release();
    }
}

impl Slots {
    /// Opens the file; `used` are the extents the directory names, `held` those of each kept generation.
    pub(crate) fn open(
        disk: &dyn Disk,
        dir: &Path,
        slot_bytes: u32,
        used: impl Iterator<Item = Extent>,
        held: impl Iterator<Item = Extent>,
    ) -> Result<Slots> {
        let path = dir.join("slots");
        let file = disk.open(&path, false).map_err(|e| StorageError::io("open", &path, e))?;
        let taken: BTreeSet<u32> = used.flat_map(slots_of).collect();
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        held.flat_map(slots_of).for_each(|slot| *counts.entry(slot).or_default() += 1);
        let parked: BTreeSet<u32> = counts.keys().filter(|slot| !taken.contains(slot)).copied().collect();
        let end = taken.last().max(parked.last()).map_or(0, |last| last + 1);
        let free = (0..end).filter(|slot| !taken.contains(slot) && !parked.contains(slot)).collect();
        let state = State { free, end, held: counts, parked, ..State::default() };
        let map = ArcSwap::from_pointee(Bytes::new());
        Ok(Slots { file, slot_bytes: slot_bytes.into(), map, state: Arc::new(Mutex::new(state)) })
    }

    pub(crate) fn file(&self) -> &Arc<dyn DiskFile> {
        &self.file
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    pub(crate) fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// Where an extent begins in the file.
    pub(crate) fn offset(&self, extent: Extent) -> u64 {
        u64::from(extent.slot) * self.slot_bytes
    }

    /// How many slots `bytes` need.
    pub(crate) fn slots_for(&self, bytes: usize) -> u32 {
        (bytes as u64).div_ceil(self.slot_bytes) as u32
    }

    /// Slots ever used, and how many of them are free now.
    pub(crate) fn usage(&self) -> (u32, usize) {
        let state = self.state.lock();
        (state.end, state.free.len())
    }

    /// Takes successive free slots, or new ones at the end.
    pub(crate) fn allocate(&self, slots: u32) -> Extent {
        let mut state = self.state.lock();
        let next = state.next;
        let fits = |start: &u32| (*start..*start + slots).all(|s| state.free.contains(&s));
        let found = if slots == 1 {
            state.free.range(next..).next().or_else(|| state.free.first()).copied()
        } else {
            state.free.iter().copied().find(fits)
        };
        let slot = found.unwrap_or(state.end);
        for taken in slot..slot + slots {
            state.free.remove(&taken);
        }
        state.end = state.end.max(slot + slots);
        state.next = slot + slots;
        Extent { slot, slots }
    }

    /// Gives back slots nobody has seen.
    pub(crate) fn give_back(&self, extents: impl Iterator<Item = Extent>) {
        let mut state = self.state.lock();
        for extent in extents {
            state.free.extend(extent.slot..extent.slot + extent.slots);
        }
    }

    /// Frees slots that views up to `sequence` use and later ones don't, once no such view is read any more.
    pub(crate) fn retire(&self, sequence: u64, extents: impl Iterator<Item = Extent>) {
        let mut state = self.state.lock();
        state.retired.extend(extents.map(|extent| (sequence + 1, extent)));
        state.release();
    }

    /// Keeps the slots that a generation names from being used again.
    pub(crate) fn hold(&self, extents: impl Iterator<Item = Extent>) {
        let mut state = self.state.lock();
        extents.flat_map(slots_of).for_each(|slot| *state.held.entry(slot).or_default() += 1);
    }

    /// Takes one `hold` back: slots that nothing names any more are given up by the view with this sequence.
    pub(crate) fn let_go(&self, sequence: u64, extents: impl Iterator<Item = Extent>) {
        let mut state = self.state.lock();
        for slot in extents.flat_map(slots_of) {
            let Some(count) = state.held.get_mut(&slot) else { continue };
            *count -= 1;
            if *count == 0 {
                state.held.remove(&slot);
                if state.parked.remove(&slot) {
                    state.retired.push_back((sequence + 1, Extent { slot, slots: 1 }));
                }
            }
        }
        state.release();
    }

    /// The directory names these extents, which are held, again.
    pub(crate) fn take_again(&self, extents: &BTreeSet<Extent>) {
        let mut state = self.state.lock();
        state.retired.retain(|(_, extent)| !extents.contains(extent));
        extents.iter().copied().flat_map(slots_of).for_each(|slot| _ = state.parked.remove(&slot));
    }

    /// Slots that only kept generations name.
    pub(crate) fn parked(&self) -> usize {
        self.state.lock().parked.len()
    }

    /// Keeps the slots of the view with this sequence.
    pub(crate) fn lease(&self, sequence: u64) -> Lease {
        *self.state.lock().leases.entry(sequence).or_default() += 1;
        Lease { state: self.state.clone(), sequence }
    }

    /// The highest slots that are free: gives them back to the disk. Returns bytes freed.
    pub(crate) fn shrink(&self) -> Result<u64> {
        let mut state = self.state.lock();
        let before = state.end;
        while let Some(last) = state.end.checked_sub(1).filter(|last| state.free.contains(last)) {
            state.free.remove(&last);
            state.end = last;
        }
        let end = u64::from(state.end) * self.slot_bytes;
        state.next = 0;
        let len = self.file.len().map_err(|e| StorageError::io("read", self.path(), e))?;
        if state.end < before && end < len {
            self.file.set_len(end).map_err(|e| StorageError::io("cut", self.path(), e))?;
        }
        Ok(u64::from(before - state.end) * self.slot_bytes)
    }

    /// The first `used` bytes of an extent as a map, brought into memory, where the disk has that. The lease must be of
    /// the view that names the extent, so that its bytes stay as they are.
    pub(crate) fn map(&self, extent: Extent, used: u32, lease: &Arc<Lease>) -> Option<Bytes> {
        let start = self.offset(extent) as usize;
        let end = start + used as usize;
        if self.map.load().len() < end {
            self.map.store(Arc::new(self.file.map_to_scan((end as u64).next_multiple_of(MAP_BYTES))?));
        }
        let map = self.map.load_full();
        let bytes = (end <= map.len()).then(|| map.slice(start..end))?;
        // What fails here is read, to say what is wrong.
        self.file.populate(&bytes).ok()?;
        Some(Bytes::from_owner(Leased { bytes, _lease: lease.clone() }))
    }

    /// The first `used` bytes of an extent, as far as the disk gives them back.
    pub(crate) fn read(&self, extent: Extent, used: u32) -> Result<Content> {
        Content::read(&*self.file, self.offset(extent), used as usize)
    }
}

fn slots_of(extent: Extent) -> std::ops::Range<u32> {
    extent.slot..extent.slot + extent.slots
}

/// Writes to slots, gathering successive ones.
pub(crate) struct SlotWriter<'a> {
    slots: &'a Slots,
    offset: u64,
    buffer: Vec<u8>,
    pub(crate) written_bytes: u64,
}

impl<'a> SlotWriter<'a> {
    pub(crate) fn new(slots: &'a Slots) -> Self {
        SlotWriter { slots, offset: 0, buffer: Vec::new(), written_bytes: 0 }
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = self.offset + self.buffer.len() as u64;
        let gap = offset.checked_sub(end).filter(|&gap| gap < self.slots.slot_bytes.min(64 << 10));
        let gap =
            gap.filter(|_| !self.buffer.is_empty() && self.offset.is_multiple_of(self.slots.slot_bytes));
        match gap {
            // The rest of a slot: nobody's bytes.
            Some(gap) if offset.is_multiple_of(self.slots.slot_bytes) => {
                self.buffer.resize(self.buffer.len() + gap as usize, 0);
            }
            _ => {
                self.flush()?;
                self.offset = offset;
            }
        }
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    pub(crate) fn flush(&mut self) -> Result<()> {
        let result = self.slots.file.write_all_at(&self.buffer, self.offset);
        result.map_err(|e| StorageError::io("write", self.slots.path(), e))?;
        self.slots.file.start_writeback(self.offset..self.offset + self.buffer.len() as u64);
        self.written_bytes += self.buffer.len() as u64;
        self.offset += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}
