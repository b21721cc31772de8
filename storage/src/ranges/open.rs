//! Opening a store of leaves: its directory and what waits in its journal; from the leaves alone when the directory is
//! damaged.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;

use super::directory::{Change, Commit, Directory, DirectoryFile, Entry, Extent};
use super::leaf::{self, LeafHeader};
use super::pending::Item;
use super::slots::Slots;
use super::{RangeStore, View, Writer, generations, journal};
use crate::catalog::Row;
use crate::disk::{Disk, DiskFile, DiskLock};
use crate::error::{Result, StorageError};
use crate::packer::Packer;
use crate::record::{Kind, RecordRef, record_len};
use crate::store::{Added, Damage, Options, Organization};

impl RangeStore {
    /// Opens the store in `dir`, whose lock is held.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        (organization, unit_bytes): (Organization, u32),
        (packer, mut found): (Packer, Vec<Damage>),
        options: &Options,
        lock: Box<dyn DiskLock>,
    ) -> Result<RangeStore> {
        let next = dir.join("directory.next");
        if disk.list(dir).map_err(|e| StorageError::io("list", dir, e))?.iter().any(|n| n == "directory.next")
        {
            disk.remove(&next).map_err(|e| StorageError::io("remove", &next, e))?;
        }
        let (file, directory, commit) = match DirectoryFile::open(&disk, dir) {
            Ok(opened) => opened,
            Err(StorageError::Corrupt { path, offset, what }) => {
                found.push(Damage { path, offset, what, key: None });
                rebuild(&disk, dir, unit_bytes)?
            }
            Err(e) => return Err(e),
        };
        file.cut()?;
        let kept = generations::load(&*disk, dir, &commit.generations, &mut found)?;
        let held = kept.iter().flat_map(|k| k.directory.iter()).map(|e| e.extent);
        let slots = Slots::open(&*disk, dir, unit_bytes, directory.iter().map(|e| e.extent), held)?;
        generations::remove_strangers(&*disk, dir, &commit.generations)?;
        let journal = commit.journal;
        let writer = Writer {
            staged: BTreeMap::new(),
            staged_bytes: 0,
            staged_records: Vec::new(),
            buffered_bytes: 0,
            journal: None,
            next_journal: journal,
            directory: file,
            commit,
            dropped: None,
            poisoned: None,
        };
        let store = RangeStore {
            disk,
            dir: dir.to_path_buf(),
            organization,
            options: options.clone(),
            packer,
            slots: Arc::new(slots),
            view: ArcSwap::from_pointee(View::new(directory, Arc::default(), 0)),
            writer: Mutex::new(writer),
            kept: Mutex::new(kept),
            found: Mutex::default(),
            _lock: lock,
        };
        for name in set_aside(&*store.disk, dir)? {
            let what = "a damaged leaf, set aside when it was written anew".into();
            found.push(Damage { path: dir.join(name), offset: 0, what, key: None });
        }
        journal::remove_before(&*store.disk, dir, journal)?;
        store.replay(&mut found)?;
        *store.found.lock() = found;
        Ok(store)
    }

    /// Brings back what waited in the buffer. Where it cannot be sorted into the leaves it goes on waiting, and its journals
    /// stay: a store with a bad sector, or on a full disk, can be opened, and mended.
    fn replay(&self, found: &mut Vec<Damage>) -> Result<()> {
        let mut writer = self.writer.lock();
        for number in journal::numbers(&*self.disk, &self.dir)? {
            writer.next_journal = number.saturating_add(1);
            let (records, damage) = journal::read(&*self.disk, &self.dir, number)?;
            found.extend(damage);
            for bytes in records {
                let Ok(record) = RecordRef::parse(&bytes) else { continue };
                let row = Row::of(&record);
                let current = match row.kind() {
                    Kind::Page => None,
                    // A visit to a page that is damaged is lost.
                    _ => match self.current(&writer, row.key()) {
                        Err(StorageError::Corrupt { .. }) => None,
                        current => current?,
                    },
                };
                self.stage_one(&mut writer, &row, &bytes, current, &mut Added::default());
            }
        }
        if writer.staged.is_empty() {
            return Ok(());
        }
        // Straight into the leaves: the journal then starts empty.
        let staged = std::mem::take(&mut writer.staged);
        writer.staged_records.clear();
        writer.staged_bytes = 0;
        match super::flush::flush(self, &mut writer, staged.clone()) {
            Err(_) if writer.poisoned.is_none() => self.buffer(&mut writer, staged),
            flushed => flushed?,
        }
        Ok(())
    }
}

/// Damaged leaves that were set aside.
pub(super) fn set_aside(disk: &dyn Disk, dir: &Path) -> Result<Vec<String>> {
    let names = disk.list(dir).map_err(|e| StorageError::io("list", dir, e))?;
    Ok(names.into_iter().filter(|name| name.starts_with("damaged-")).collect())
}

/// Makes a directory from the leaves in the slots: of those that cover an id, the last written holds, but for those that
/// were rolled back.
fn rebuild(disk: &Arc<dyn Disk>, dir: &Path, unit_bytes: u32) -> Result<(DirectoryFile, Directory, Commit)> {
    let path = dir.join("slots");
    let io = |e| StorageError::io("read", &path, e);
    let file = disk.open(&path, false).map_err(io)?;
    let len = file.len().map_err(io)?;
    let mut leaves: Vec<(LeafHeader, u32)> = Vec::new();
    // Damaged too, it hides nothing that holds.
    let void = generations::void_leaves(&**disk, dir).unwrap_or_default();
    for slot in 0..len.div_ceil(u64::from(unit_bytes)) as u32 {
        let offset = u64::from(slot) * u64::from(unit_bytes);
        let bytes = read_up_to(&*file, offset, u64::from(unit_bytes).min(len - offset)).map_err(io)?;
        if let Ok((header, _)) = LeafHeader::decode(&bytes) {
            leaves.push((header, slot));
        }
    }
    leaves.sort_unstable_by_key(|(header, _)| std::cmp::Reverse(header.sequence));
    let mut chosen: BTreeMap<u64, (LeafHeader, u32)> = BTreeMap::new();
    let valid = leaves.iter().filter(|(header, _)| !void.iter().any(|v| v.contains(&header.sequence)));
    for (header, slot) in valid.copied() {
        let before = chosen.range(..=header.last_id).next_back();
        if before.is_none_or(|(_, (other, _))| other.last_id < header.first_id) {
            chosen.insert(header.first_id, (header, slot));
        }
    }
    let mut entries: Vec<Entry> = Vec::new();
    let mut covered = 0;
    for (header, slot) in chosen.values() {
        if header.first_id > covered {
            entries.push(Entry::empty(covered)); // nobody's: empty, or lost with its leaf
        }
        entries.push(entry_of(&*file, header, *slot, unit_bytes, len).map_err(io)?);
        covered = header.last_id.saturating_add(1);
    }
    if covered != 0 && chosen.values().next_back().is_none_or(|(h, _)| h.last_id != u64::MAX)
        || entries.is_empty()
    {
        entries.push(Entry::empty(covered));
    }
    let mut directory = Directory::new();
    directory.apply(&Change { first_id: 0, last_id: u64::MAX, entries });
    let journal = journal::numbers(&**disk, dir)?.first().copied().unwrap_or(1);
    let next_leaf = leaves.first().map_or(1, |(header, _)| header.sequence + 1);
    let generations = generations::numbers(&**disk, dir)?;
    let commit = Commit { sequence: next_leaf, journal, next_leaf, content: next_leaf, generations };
    let file = DirectoryFile::replace(disk, dir, &directory, &commit)?;
    Ok((file, directory, commit))
}

fn read_up_to(file: &dyn DiskFile, offset: u64, len: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

/// The directory's entry of a leaf, from its records: they end where no whole record follows.
fn entry_of(
    file: &dyn DiskFile,
    header: &LeafHeader,
    slot: u32,
    unit_bytes: u32,
    len: u64,
) -> std::io::Result<Entry> {
    let offset = u64::from(slot) * u64::from(unit_bytes);
    let mut bytes = read_up_to(file, offset, u64::from(unit_bytes).min(len - offset))?;
    let used = loop {
        let end = filled(&bytes);
        match end {
            Ok(end) => break end,
            Err(need) if offset + need as u64 <= len => bytes = read_up_to(file, offset, need as u64)?,
            Err(_) => break bytes.len(),
        }
    };
    bytes.truncate(used);
    let leaf = leaf::decode(&Bytes::from(bytes).into(), false);
    Ok(Entry {
        first_id: header.first_id,
        extent: Extent { slot, slots: (used as u32).div_ceil(unit_bytes) },
        used: used as u32,
        live_bytes: leaf.items.iter().map(|(_, i)| i.bytes() as u32).sum(),
        pages: leaf.items.len() as u32,
        deadline_ms: leaf.items.iter().filter_map(|(_, i)| Item::deadline_ms(i)).min().unwrap_or(u64::MAX),
        index: Arc::default(),
    })
}

/// Where the records of a leaf end, or how many bytes it takes to tell.
fn filled(bytes: &[u8]) -> std::result::Result<usize, usize> {
    let Ok((_, offsets)) = LeafHeader::decode(bytes) else { return Ok(bytes.len()) };
    let mut at = leaf::HEADER_BYTES + offsets.len() * 4;
    if let Some(&last) = offsets.last() {
        at = last as usize;
        if at + crate::record::HEADER_BYTES > bytes.len() {
            return Err(at + crate::record::HEADER_BYTES);
        }
    }
    let mut written = offsets.len().min(1);
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        match record_len(rest) {
            Ok(len) if (len as usize) <= rest.len() && (written > 0 || RecordRef::parse(rest).is_ok()) => {
                at += len as usize;
                written = 0;
            }
            Ok(len) if written > 0 => return Err(at + len as usize),
            _ => return Ok(at),
        }
    }
}
