//! A disk in memory that does what real disks do at the worst moment.
//!
//! It keeps a history of every change. [`SimDisk::crashed`] makes the disk a machine would find after losing
//! power at any point of that history, under three assumptions about what was not synced ([`Crash`]). Apart from
//! that it can fail the n-th call, run out of space, flip bits, lose sectors and read short.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Disk, DiskFile, DiskLock};

/// What becomes of changes that were not synced when the power went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    /// They are all there, the last one up to a byte: the system wrote everything in order.
    InOrder,
    /// They are all gone: nothing is there that was not synced.
    Unsynced,
    /// Each sector of 512 bytes is there or not, by this seed.
    Torn(u64),
}

#[derive(Clone, Debug)]
enum Change {
    Create(PathBuf, usize),
    Write(usize, u64, Vec<u8>),
    SetLen(usize, u64),
    Sync(usize),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
    SyncDir,
}

const SECTOR_BYTES: u64 = 512;

type Names = BTreeMap<PathBuf, usize>;
type Contents = Vec<Vec<u8>>;

#[derive(Default, Debug)]
struct State {
    names: Names,
    contents: Contents,
    history: Vec<Change>,
    /// Names and contents before the history.
    base: Option<(Names, Contents)>,
    locks: BTreeSet<PathBuf>,
    calls: u64,
    fail_call: Option<u64>,
    fail_all_after: bool,
    capacity: Option<u64>,
    short_reads: bool,
    /// Sectors that cannot be read until they are written again, by file.
    bad_sectors: BTreeSet<(usize, u64)>,
}

/// A disk in memory, shared by its clones.
#[derive(Clone, Default, Debug)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

impl SimDisk {
    /// An empty disk.
    pub fn new() -> SimDisk {
        SimDisk::default()
    }

    /// How many changes there have been.
    pub fn changes(&self) -> usize {
        self.state.lock().history.len()
    }

    /// How many bytes change number `at` writes; 0 if it is not a write.
    pub fn change_bytes(&self, at: usize) -> usize {
        match self.state.lock().history.get(at) {
            Some(Change::Write(_, _, bytes)) => bytes.len(),
            _ => 0,
        }
    }

    /// The disk as found after a crash when `at` changes were done and `bytes` bytes of the next.
    pub fn crashed(&self, at: usize, bytes: usize, crash: Crash) -> SimDisk {
        let state = self.state.lock();
        let (names, contents) = state.base.clone().unwrap_or_default();
        let mut found = State { names, contents, ..State::default() };
        let done = state.history.get(..at).unwrap_or(&state.history);
        let mut random = Random(match crash {
            Crash::Torn(seed) => seed ^ (at as u64) << 20 ^ 0x9e37_79b9_7f4a_7c15,
            _ => 1,
        });
        let names_synced = done.iter().rposition(|c| matches!(c, Change::SyncDir)).unwrap_or(0);
        for (i, change) in done.iter().enumerate() {
            let synced = match change {
                Change::Write(file, ..) | Change::SetLen(file, _) => {
                    done.iter().skip(i).any(|c| matches!(c, Change::Sync(f) if f == file))
                }
                _ => i < names_synced,
            };
            match (crash, synced, change) {
                (Crash::InOrder, ..) | (_, true, _) => found.apply(change),
                // A name that was not synced may or may not be there; its file's number is taken all the same.
                (_, false, Change::Create(_, file)) => found.grow(*file),
                (Crash::Torn(_), false, Change::Write(file, offset, bytes)) => {
                    found.apply_torn(*file, *offset, bytes, &mut random);
                }
                (Crash::Torn(_), false, change) if random.next().is_multiple_of(2) => found.apply(change),
                _ => {}
            }
        }
        if let Some(Change::Write(file, offset, data)) = state.history.get(at) {
            let part = data.get(..bytes).unwrap_or(data);
            if crash == Crash::InOrder && !part.is_empty() {
                found.apply(&Change::Write(*file, *offset, part.to_vec()));
            }
        }
        found.contents.iter_mut().for_each(|c| c.shrink_to_fit());
        SimDisk { state: Arc::new(Mutex::new(found)) }.settled()
    }

    /// Forgets the history: what is there now counts as durable.
    pub fn settled(self) -> SimDisk {
        let mut state = self.state.lock();
        state.history.clear();
        state.base = Some((state.names.clone(), state.contents.clone()));
        drop(state);
        self
    }

    /// Makes the n-th call from now (0 is the next) fail; with `and_all_after`, the ones after it too.
    pub fn fail_call(&self, n: u64, and_all_after: bool) {
        let mut state = self.state.lock();
        state.fail_call = Some(state.calls + n);
        state.fail_all_after = and_all_after;
    }

    /// Ends all failing.
    pub fn heal(&self) {
        let mut state = self.state.lock();
        state.fail_call = None;
        state.capacity = None;
    }

    /// How many calls there have been.
    pub fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    /// Lets the disk hold this many bytes and no more.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().capacity = Some(bytes);
    }

    /// Bytes stored now.
    pub fn used(&self) -> u64 {
        self.state.lock().used()
    }

    /// Makes every read return less than asked.
    pub fn set_short_reads(&self, on: bool) {
        self.state.lock().short_reads = on;
    }

    /// Flips bits of one byte of a file.
    pub fn flip(&self, path: &Path, offset: u64, mask: u8) {
        let mut state = self.state.lock();
        let number = state.names.get(path).copied();
        if let Some(byte) =
            number.and_then(|n| state.contents.get_mut(n)).and_then(|c| c.get_mut(offset as usize))
        {
            *byte ^= mask;
        }
    }

    /// Makes the sectors (512 bytes) that hold these bytes of a file unreadable, until each is written again as a whole; a
    /// write of a part of one fails.
    pub fn lose_sectors(&self, path: &Path, bytes: Range<u64>) {
        let mut state = self.state.lock();
        if let Some(number) = state.names.get(path).copied() {
            state.bad_sectors.extend(sectors(&bytes).map(|sector| (number, sector)));
        }
    }

    /// All files with their lengths.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let state = self.state.lock();
        state
            .names
            .iter()
            .map(|(p, &n)| (p.clone(), state.contents.get(n).map_or(0, Vec::len) as u64))
            .collect()
    }
}

/// The sectors that hold some bytes.
fn sectors(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / SECTOR_BYTES..bytes.end.div_ceil(SECTOR_BYTES)
}

fn unreadable() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error())
}

impl State {
    fn used(&self) -> u64 {
        self.names.values().filter_map(|&n| self.contents.get(n)).map(|c| c.len() as u64).sum()
    }

    fn has_bad_sectors(&self, file: usize, bytes: &Range<u64>) -> bool {
        let sectors = sectors(bytes);
        self.bad_sectors.range((file, sectors.start)..(file, sectors.end)).next().is_some()
    }

    /// Whole sectors are good again when they are written.
    fn write_bad_sectors(&mut self, file: usize, bytes: &Range<u64>) -> io::Result<()> {
        let whole =
            |sector: u64| bytes.start <= sector * SECTOR_BYTES && (sector + 1) * SECTOR_BYTES <= bytes.end;
        let parts: Vec<u64> = sectors(bytes).filter(|sector| !whole(*sector)).collect();
        if parts.iter().any(|sector| self.bad_sectors.contains(&(file, *sector))) {
            return Err(unreadable());
        }
        sectors(bytes).for_each(|sector| _ = self.bad_sectors.remove(&(file, sector)));
        Ok(())
    }

    fn grow(&mut self, file: usize) {
        if self.contents.len() <= file {
            self.contents.resize(file + 1, Vec::new());
        }
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Create(path, file) => {
                self.grow(*file);
                self.names.insert(path.clone(), *file);
            }
            Change::Write(file, offset, bytes) => {
                if let Some(content) = self.contents.get_mut(*file) {
                    let end = *offset as usize + bytes.len();
                    if content.len() < end {
                        content.resize(end, 0);
                    }
                    if let Some(target) = content.get_mut(*offset as usize..end) {
                        target.copy_from_slice(bytes);
                    }
                }
            }
            Change::SetLen(file, len) => {
                if let Some(content) = self.contents.get_mut(*file) {
                    content.resize(*len as usize, 0);
                }
            }
            Change::Rename(from, to) => {
                if let Some(file) = self.names.remove(from) {
                    self.names.insert(to.clone(), file);
                }
            }
            Change::Remove(path) => {
                self.names.remove(path);
            }
            Change::Sync(_) | Change::SyncDir => {}
        }
    }

    fn apply_torn(&mut self, file: usize, offset: u64, bytes: &[u8], random: &mut Random) {
        let mut at = 0;
        while at < bytes.len() {
            let sector_bytes = SECTOR_BYTES as usize;
            let sector_end = sector_bytes - (offset as usize + at) % sector_bytes + at;
            let end = sector_end.min(bytes.len());
            if random.next().is_multiple_of(2) {
                let part = bytes.get(at..end).unwrap_or_default().to_vec();
                self.apply(&Change::Write(file, offset + at as u64, part));
            }
            at = end;
        }
    }

    /// Counts a call and says whether it fails.
    fn call(&mut self) -> io::Result<()> {
        let number = self.calls;
        self.calls += 1;
        match self.fail_call {
            Some(n) if n == number || (self.fail_all_after && number > n) => {
                Err(io::Error::other("simulated disk failure"))
            }
            _ => Ok(()),
        }
    }

    fn change(&mut self, change: Change) {
        self.apply(&change);
        self.history.push(change);
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 17
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, create: bool) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state.lock();
        state.call()?;
        let number = match state.names.get(path) {
            Some(&number) if !create => number,
            None if !create => return Err(io::ErrorKind::NotFound.into()),
            _ => {
                let number = state.contents.len();
                state.change(Change::Create(path.to_path_buf(), number));
                number
            }
        };
        Ok(Arc::new(SimFile { disk: self.clone(), path: path.to_path_buf(), number }))
    }

    fn create_dir(&self, _path: &Path) -> io::Result<()> {
        self.state.lock().call()
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut state = self.state.lock();
        state.call()?;
        let inside = state.names.keys().filter(|p| p.parent() == Some(dir));
        Ok(inside.filter_map(|p| Some(p.file_name()?.to_string_lossy().into_owned())).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.call()?;
        if !state.names.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.change(Change::Rename(from.to_path_buf(), to.to_path_buf()));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.call()?;
        if !state.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.change(Change::Remove(path.to_path_buf()));
        Ok(())
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.call()?;
        state.change(Change::SyncDir);
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn DiskLock>>> {
        let fresh = self.state.lock().locks.insert(path.to_path_buf());
        Ok(fresh
            .then(|| Box::new(SimLock { disk: self.clone(), path: path.to_path_buf() }) as Box<dyn DiskLock>))
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        let state = self.state.lock();
        Ok(state.capacity.map_or(u64::MAX, |c| c.saturating_sub(state.used())))
    }
}

#[derive(Debug)]
struct SimLock {
    disk: SimDisk,
    path: PathBuf,
}

impl DiskLock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.disk.state.lock().locks.remove(&self.path);
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    path: PathBuf,
    number: usize,
}

impl SimFile {
    fn room_for(&self, state: &State, end: u64) -> io::Result<()> {
        let len = state.contents.get(self.number).map_or(0, Vec::len) as u64;
        match state.capacity {
            Some(capacity) if state.used() + end.saturating_sub(len) > capacity => {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }
}

impl DiskFile for SimFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.state.lock().contents.get(self.number).map_or(0, Vec::len) as u64)
    }

    fn read_some_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.disk.state.lock();
        state.call()?;
        if state.has_bad_sectors(self.number, &(offset..offset + buffer.len() as u64)) {
            return Err(unreadable());
        }
        let short = state.short_reads && buffer.len() > 1;
        let wanted = if short { buffer.len() / 2 } else { buffer.len() };
        let content = state.contents.get(self.number).map(Vec::as_slice).unwrap_or_default();
        let there = content.get((offset as usize).min(content.len())..).unwrap_or_default();
        let n = wanted.min(there.len());
        if let (Some(target), Some(source)) = (buffer.get_mut(..n), there.get(..n)) {
            target.copy_from_slice(source);
        }
        Ok(n)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        state.call()?;
        if let Err(full) = self.room_for(&state, offset + bytes.len() as u64) {
            // A real disk fills up half-way through a write.
            let len = state.contents.get(self.number).map_or(0, Vec::len) as u64;
            let room = state.capacity.unwrap_or(0).saturating_sub(state.used()) + len.saturating_sub(offset);
            let part = bytes.get(..room as usize).unwrap_or(bytes).to_vec();
            state.change(Change::Write(self.number, offset, part));
            return Err(full);
        }
        state.write_bad_sectors(self.number, &(offset..offset + bytes.len() as u64))?;
        state.change(Change::Write(self.number, offset, bytes.to_vec()));
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        state.call()?;
        self.room_for(&state, len)?;
        state.change(Change::SetLen(self.number, len));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        state.call()?;
        state.change(Change::Sync(self.number));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(disk: &SimDisk, path: &str) -> Option<Vec<u8>> {
        super::super::read_file(disk, Path::new(path)).ok()
    }

    #[test]
    fn a_crash_keeps_what_was_synced_and_tears_the_rest() {
        let disk = SimDisk::new();
        let file = disk.open(Path::new("/f"), true).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        file.write_all_at(b"safe", 0).unwrap();
        file.sync().unwrap();
        file.write_all_at(b"lost", 4).unwrap();
        assert_eq!(disk.changes(), 5);
        assert_eq!(read(&disk.crashed(5, 0, Crash::Unsynced), "/f").unwrap(), b"safe");
        assert_eq!(read(&disk.crashed(5, 0, Crash::InOrder), "/f").unwrap(), b"safelost");
        assert_eq!(read(&disk.crashed(4, 2, Crash::InOrder), "/f").unwrap(), b"safelo");
        assert_eq!(read(&disk.crashed(1, 0, Crash::Unsynced), "/f"), None);
        let torn: BTreeSet<_> = (0..20).map(|s| read(&disk.crashed(5, 0, Crash::Torn(s)), "/f")).collect();
        assert_eq!(torn.len(), 2);
    }

    #[test]
    fn a_full_disk_takes_what_fits_and_says_so() {
        let disk = SimDisk::new();
        let file = disk.open(Path::new("/f"), true).unwrap();
        disk.set_capacity(6);
        assert_eq!(file.write_all_at(b"12345678", 0).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(read(&disk, "/f").unwrap(), b"123456");
        file.write_all_at(b"abc", 0).unwrap();
    }
}
