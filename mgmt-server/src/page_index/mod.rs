//! The index of pages: key to range, for every page of a repository with the distribution `uniform`.
//!
//! ```text
//!   assign ──▶ recent (memory) + journal-N ──full──▶ run-N ──four alike──▶ one run, merged in the background
//!   find   ──▶ recent, then the runs, newest first
//!   MANIFEST: which journal and which runs count (manifest.rs, journal.rs, run.rs have the formats)
//! ```
//!
//! 1. What was assigned is in the journal, synced, before anybody is told; many who ask share one sync.
//! 2. A file counts when the manifest names it, and goes when it does not; so a kill leaves the index before a step or after.
//! 3. Memory holds what is recent, a bounded number of pages, and nothing else. On disk a page takes 18 bytes.
//! 4. The nodes' catalogs are the truth. An index that is missing or damaged is made anew from them; until then it is not
//!    *complete*: what it knows is right, what it does not know may exist.
//!
//! The storage crate's index is for another purpose: it suggests places, in memory, which the records there confirm; this one
//! has nothing to confirm it and must not need memory for every page.

mod journal;
mod manifest;
mod run;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use webbase_node::plan::PageIndexStatus;
use webbase_storage::disk::Disk;
use webbase_storage::{PageId, PageKey};

use self::journal::Journal;
use self::manifest::Manifest;
use self::run::{Entry, Run, RunWriter};
use crate::ServerError;

/// Entries in memory before they become a run.
const RECENT_MAX: usize = 128 << 10;
/// What such an entry takes, as measured.
const RECENT_BYTES: u64 = 33;
/// So many runs of like size become one.
const MERGE_RUNS: usize = 4;

fn number(key: PageKey) -> u128 {
    u128::from(key.id.0) << 64 | u128::from(key.tie)
}

fn key(number: u128) -> PageKey {
    PageKey { id: PageId((number >> 64) as u64), tie: number as u64 }
}

/// Bytes as each file of an index: what is accepted can be read through and searched.
#[cfg(any(fuzzing, test))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let disk: Arc<dyn Disk> = Arc::new(webbase_storage::disk::SimDisk::new());
    let dir = Path::new("/index");
    for path in [journal::path(dir, 1), run::path(dir, 1), dir.join("MANIFEST")] {
        let Ok(file) = disk.open(&path, true) else { return };
        let _ = file.write_all_at(bytes, 0);
    }
    manifest::fuzz(bytes);
    let _ = Journal::open(&*disk, dir, 1);
    // The manifest says how many entries a run has, and the run says the same.
    let entries = bytes.get(8..16).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    if let Ok(run) = Run::open(&*disk, dir, 1, entries).map(Arc::new) {
        let mut scan = run.scan();
        while let Ok(Some((key, _))) = scan.next() {
            let _ = (run.find(key), run.between(key, u128::MAX));
        }
    }
    let repository = bytes.get(8..16).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    let _ = PageIndex::open(disk, dir, repository, true);
}

/// Such files: a manifest and a journal, without their last checksums, and a run.
#[cfg(test)]
pub(crate) fn fuzz_samples() -> Vec<Vec<u8>> {
    let disk: Arc<dyn Disk> = Arc::new(webbase_storage::disk::SimDisk::new());
    let dir = Path::new("/index");
    let index = PageIndex::open_with(disk.clone(), dir, 7, true, 100).unwrap();
    drop(index);
    let mut journal = Journal::create(&*disk, dir, 5).unwrap();
    journal.append(&[(1, 2), (3, 4)]).unwrap();
    let mut run = RunWriter::create(&*disk, dir, 6).unwrap();
    (0..300).for_each(|n| run.push((n << 100, n as u16)).unwrap());
    run.finish().unwrap();
    let read = |path: PathBuf| {
        let file = disk.open(&path, false).unwrap();
        file.read_vec(file.len().unwrap() as usize, 0).unwrap()
    };
    let mut samples = vec![read(dir.join("MANIFEST")), read(journal::path(dir, 5)), read(run::path(dir, 6))];
    samples.iter_mut().take(2).for_each(|bytes| bytes.truncate(bytes.len() - 8));
    samples
}

/// What readers see.
#[derive(Debug, Default)]
struct View {
    recent: BTreeMap<u128, u16>,
    /// Oldest first.
    runs: Vec<Arc<Run>>,
    complete: bool,
}

/// What only the one who writes sees.
#[derive(Debug)]
struct Writer {
    journal: Journal,
    /// In memory and not in the journal yet.
    staged: Vec<Entry>,
    next_number: u64,
    /// A write failed: what the disk holds is known only after opening again.
    broken: bool,
}

/// The open index.
#[derive(Debug)]
pub(crate) struct PageIndex {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    repository: u64,
    recent_max: usize,
    view: RwLock<View>,
    writer: Mutex<Writer>,
    /// Held by who merges.
    merging: Mutex<()>,
    journal_bytes: AtomicU64,
    /// How often it was begun anew.
    life: AtomicU64,
}

impl PageIndex {
    /// Opens the index of a repository. One that is not there, or damaged, is begun anew: as complete, if there are no pages
    /// yet.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        repository: u64,
        no_pages_yet: bool,
    ) -> Result<PageIndex, ServerError> {
        PageIndex::open_with(disk, dir, repository, no_pages_yet, RECENT_MAX)
    }

    fn open_with(
        disk: Arc<dyn Disk>,
        dir: &Path,
        repository: u64,
        no_pages_yet: bool,
        recent_max: usize,
    ) -> Result<PageIndex, ServerError> {
        disk.create_dir(dir).map_err(|e| ServerError::io("create", dir, e))?;
        let found = match Manifest::read(&*disk, dir) {
            Ok(Some(manifest)) if manifest.repository == repository => {
                PageIndex::load(&disk, dir, manifest, recent_max)
            }
            Ok(_) => return PageIndex::begin(disk, dir, repository, no_pages_yet, recent_max),
            Err(e) => Err(e),
        };
        match found {
            Err(ServerError::Damaged { .. }) => PageIndex::begin(disk, dir, repository, false, recent_max),
            found => found,
        }
    }

    fn load(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        manifest: Manifest,
        recent_max: usize,
    ) -> Result<PageIndex, ServerError> {
        remove_others(&**disk, dir, &manifest)?;
        let mut view = View { complete: manifest.complete, ..View::default() };
        for (number, entries) in &manifest.runs {
            view.runs.push(Arc::new(Run::open(&**disk, dir, *number, *entries)?));
        }
        let (journal, entries) = Journal::open(&**disk, dir, manifest.journal)?;
        view.recent.extend(entries);
        let journal_bytes = AtomicU64::new(journal.disk_bytes());
        let highest = manifest.runs.iter().map(|(n, _)| *n).max().unwrap_or(0);
        let next_number =
            highest.max(manifest.journal).checked_add(1).ok_or_else(|| ServerError::Damaged {
                path: dir.to_path_buf(),
                what: "its manifest has a number behind which there is none".into(),
            })?;
        let writer = Writer { journal, staged: Vec::new(), next_number, broken: false };
        Ok(PageIndex {
            disk: disk.clone(),
            dir: dir.to_path_buf(),
            repository: manifest.repository,
            recent_max,
            view: RwLock::new(view),
            writer: Mutex::new(writer),
            merging: Mutex::new(()),
            journal_bytes,
            life: AtomicU64::new(0),
        })
    }

    /// An empty index in place of whatever is there.
    fn begin(
        disk: Arc<dyn Disk>,
        dir: &Path,
        repository: u64,
        complete: bool,
        recent_max: usize,
    ) -> Result<PageIndex, ServerError> {
        let taken = disk.list(dir).map_err(|e| ServerError::io("list", dir, e))?;
        let numbers = taken.iter().filter_map(|name| name.rsplit('-').next()?.parse::<u64>().ok());
        let number = numbers.max().unwrap_or(0).saturating_add(1);
        Journal::create(&*disk, dir, number)?;
        disk.sync_dir(dir).map_err(|e| ServerError::io("sync", dir, e))?;
        let manifest = Manifest { repository, journal: number, complete, runs: Vec::new() };
        manifest.write(&*disk, dir)?;
        PageIndex::load(&disk, dir, manifest, recent_max)
    }

    /// Forgets everything, unless that was done already since it had this life: it is to be made anew.
    pub(crate) fn begin_anew(&self, life: u64) -> Result<(), ServerError> {
        let mut writer = self.writer.lock();
        if self.life() != life {
            return Ok(());
        }
        let anew = PageIndex::begin(self.disk.clone(), &self.dir, self.repository, false, self.recent_max)?;
        *self.view.write() = anew.view.into_inner();
        *writer = anew.writer.into_inner();
        self.life.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Grows when it is begun anew.
    pub(crate) fn life(&self) -> u64 {
        self.life.load(Ordering::Relaxed)
    }

    /// Whether every page is in it.
    pub(crate) fn is_complete(&self) -> bool {
        self.view.read().complete
    }

    /// The ranges of pages.
    ///
    /// # Errors
    /// When a run is damaged or the disk fails.
    pub(crate) fn find(&self, keys: &[PageKey]) -> Result<Vec<Option<u16>>, ServerError> {
        let (mut found, runs) = {
            let view = self.view.read();
            let recent = keys.iter().map(|key| view.recent.get(&number(*key)).copied());
            (recent.collect::<Vec<_>>(), view.runs.clone())
        };
        for (key, found) in keys.iter().zip(&mut found) {
            for run in runs.iter().rev() {
                if found.is_some() {
                    break;
                }
                *found = run.find(number(*key))?;
            }
        }
        Ok(found)
    }

    /// The pages with an id.
    ///
    /// # Errors
    /// As for [`PageIndex::find`].
    pub(crate) fn find_id(&self, id: PageId) -> Result<Vec<(PageKey, u16)>, ServerError> {
        let (first, last) = (number(PageKey { id, tie: 0 }), number(PageKey { id, tie: u64::MAX }));
        let (recent, runs) = {
            let view = self.view.read();
            (view.recent.range(first..=last).map(|(k, r)| (*k, *r)).collect::<Vec<_>>(), view.runs.clone())
        };
        let mut found = BTreeMap::new();
        for run in &runs {
            found.extend(run.between(first, last)?);
        }
        found.extend(recent);
        Ok(found.into_iter().map(|(n, range)| (key(n), range)).collect())
    }

    /// The ranges of pages; those that have none get what `choose` says. Nobody may be told before [`PageIndex::commit`].
    ///
    /// # Errors
    /// As for [`PageIndex::find`]; also after a write has failed.
    pub(crate) fn assign(
        &self,
        keys: &[PageKey],
        mut choose: impl FnMut() -> Option<u16>,
    ) -> Result<Vec<Option<u16>>, ServerError> {
        let mut writer = self.writer.lock();
        writer.check(&self.dir)?;
        let mut ranges = self.find(keys)?;
        let mut view = self.view.write();
        for (key, range) in keys.iter().zip(&mut ranges) {
            let number = number(*key);
            if range.is_some() {
                continue;
            }
            // The same key may stand in the list twice.
            *range = view.recent.get(&number).copied();
            if range.is_none()
                && let Some(chosen) = choose()
            {
                view.recent.insert(number, chosen);
                writer.staged.push((number, chosen));
                *range = Some(chosen);
            }
        }
        Ok(ranges)
    }

    /// Makes everything durable that was assigned before.
    ///
    /// # Errors
    /// When the disk fails; then the index has to be opened again.
    pub(crate) fn commit(&self) -> Result<(), ServerError> {
        let mut writer = self.writer.lock();
        writer.check(&self.dir)?;
        let staged = std::mem::take(&mut writer.staged);
        if staged.is_empty() {
            return Ok(());
        }
        writer.broken = true;
        writer.journal.append(&staged)?;
        self.journal_bytes.store(writer.journal.disk_bytes(), Ordering::Relaxed);
        if self.view.read().recent.len() >= self.recent_max {
            self.flush(&mut writer, None)?;
        }
        writer.broken = false;
        Ok(())
    }

    /// Takes pages from nodes' lists, while the index is made anew; durable with [`PageIndex::complete`]. A page that has a range
    /// already keeps it. Returns how many were in another range.
    ///
    /// # Errors
    /// As for [`PageIndex::commit`].
    pub(crate) fn take(&self, pages: &[(PageKey, u16)]) -> Result<u64, ServerError> {
        let mut writer = self.writer.lock();
        writer.check(&self.dir)?;
        let keys: Vec<PageKey> = pages.iter().map(|(key, _)| *key).collect();
        let known = self.find(&keys)?;
        let mut differing = 0;
        let mut view = self.view.write();
        for ((key, range), known) in pages.iter().zip(known) {
            match known {
                Some(known) => differing += u64::from(known != *range),
                None => _ = view.recent.entry(number(*key)).or_insert(*range),
            }
        }
        let full = view.recent.len() >= self.recent_max;
        drop(view);
        if full {
            writer.broken = true;
            self.flush(&mut writer, None)?;
            writer.broken = false;
        }
        Ok(differing)
    }

    /// Every page is in it now, if it has still this life.
    ///
    /// # Errors
    /// As for [`PageIndex::commit`].
    pub(crate) fn complete(&self, life: u64) -> Result<(), ServerError> {
        let mut writer = self.writer.lock();
        writer.check(&self.dir)?;
        if self.life() != life {
            return Ok(());
        }
        writer.broken = true;
        self.flush(&mut writer, Some(true))?;
        writer.broken = false;
        Ok(())
    }

    /// Writes what is recent as a run, and begins a new journal.
    fn flush(&self, writer: &mut Writer, complete: Option<bool>) -> Result<(), ServerError> {
        let (disk, dir) = (&*self.disk, &*self.dir);
        let recent = self.view.read().recent.clone();
        let mut runs = self.view.read().runs.clone();
        let complete = complete.unwrap_or(self.is_complete());
        if !recent.is_empty() {
            let mut run = RunWriter::create(disk, dir, writer.take_number())?;
            for entry in recent {
                run.push(entry)?;
            }
            runs.push(Arc::new(run.finish()?));
        }
        let journal = Journal::create(disk, dir, writer.take_number())?;
        self.switch(&runs, journal.number, complete)?;
        let mut view = self.view.write();
        (view.runs, view.complete) = (runs, complete);
        view.recent.clear();
        drop(view);
        self.journal_bytes.store(journal.disk_bytes(), Ordering::Relaxed);
        let old = std::mem::replace(&mut writer.journal, journal);
        writer.staged.clear();
        self.remove(&journal::path(dir, old.number));
        Ok(())
    }

    /// The manifest names these from now on.
    fn switch(&self, runs: &[Arc<Run>], journal: u64, complete: bool) -> Result<(), ServerError> {
        let disk = &*self.disk;
        disk.sync_dir(&self.dir).map_err(|e| ServerError::io("sync", &self.dir, e))?;
        let runs = runs.iter().map(|run| (run.number, run.entries)).collect();
        let manifest = Manifest { repository: self.repository, journal, complete, runs };
        manifest.write(disk, &self.dir)
    }

    /// Removes a file that the manifest names no more. One that stays is removed when the index is opened again.
    fn remove(&self, path: &Path) {
        let _stays = self.disk.remove(path);
    }

    /// Makes one run of several, if there are several alike and nobody wants it to stop. Says whether it did.
    ///
    /// # Errors
    /// When a run is damaged or the disk fails.
    pub(crate) fn merge(&self, stop: &AtomicBool) -> Result<bool, ServerError> {
        let _merging = self.merging.lock();
        let runs = alike(&self.view.read().runs, self.recent_max as u64);
        if runs.is_empty() {
            return Ok(false);
        }
        let into = self.writer.lock().take_number();
        let Some(merged) = run::merge(&*self.disk, &self.dir, into, &runs, stop)? else { return Ok(false) };
        let mut writer = self.writer.lock();
        writer.check(&self.dir)?;
        let is_merged = |run: &Arc<Run>| runs.iter().any(|r| r.number == run.number);
        let mut all = self.view.read().runs.clone();
        if all.iter().filter(|run| is_merged(run)).count() != runs.len() {
            // It was begun anew meanwhile.
            self.remove(&run::path(&self.dir, into));
            return Ok(false);
        }
        let place = all.iter().position(is_merged).unwrap_or(0);
        all.retain(|run| !is_merged(run));
        all.insert(place, Arc::new(merged));
        writer.broken = true;
        self.switch(&all, writer.journal.number, self.is_complete())?;
        writer.broken = false;
        self.view.write().runs = all;
        for run in &runs {
            self.remove(&run::path(&self.dir, run.number));
        }
        Ok(true)
    }

    /// How it stands.
    pub(crate) fn status(&self) -> PageIndexStatus {
        let journal_bytes = self.journal_bytes.load(Ordering::Relaxed);
        let view = self.view.read();
        let recent = view.recent.len() as u64;
        PageIndexStatus {
            complete: view.complete,
            pages: recent + view.runs.iter().map(|run| run.entries).sum::<u64>(),
            disk_bytes: journal_bytes + view.runs.iter().map(|run| run.disk_bytes()).sum::<u64>(),
            memory_bytes: recent * RECENT_BYTES,
        }
    }
}

impl Writer {
    fn check(&self, dir: &Path) -> Result<(), ServerError> {
        match self.broken {
            true => {
                let what = format!("a write to {} failed: it has to be opened again", dir.display());
                Err(ServerError::Internal { what })
            }
            false => Ok(()),
        }
    }

    fn take_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }
}

/// The newest runs, if there are enough of like size: within a factor of [`MERGE_RUNS`].
fn alike(runs: &[Arc<Run>], smallest: u64) -> Vec<Arc<Run>> {
    let size = |run: &Arc<Run>| (run.entries / smallest.max(1)).max(1).ilog(MERGE_RUNS as u64);
    let Some(newest) = runs.last().map(size) else { return Vec::new() };
    let first = runs.iter().rposition(|run| size(run) > newest).map_or(0, |at| at + 1);
    let some = runs.get(first..).unwrap_or_default();
    if some.len() >= MERGE_RUNS { some.to_vec() } else { Vec::new() }
}

fn remove_others(disk: &dyn Disk, dir: &Path, manifest: &Manifest) -> Result<(), ServerError> {
    for name in disk.list(dir).map_err(|e| ServerError::io("list", dir, e))? {
        if !manifest.names(&name) {
            let path = dir.join(&name);
            disk.remove(&path).map_err(|e| ServerError::io("remove", &path, e))?;
        }
    }
    Ok(())
}
