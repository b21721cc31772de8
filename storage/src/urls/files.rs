//! The folder of an index: runs, and lists that say which runs a state has.
//!
//! ```text
//!   run-M    a run (run.rs)
//!   list-N   the runs of the state with the number N, oldest first:
//!            magic "WBUL" 4, version 4, how many 4, their numbers 8 each, CRC-64 of all the above 8
//! ```
//!
//! 1. A list is written when all its runs are durable, by one replacement. So a state's index is whole or not there.
//! 2. Numbers of runs are never used twice while the folder is open. A run that no list names, and nobody holds, was left by
//!    something that ended early, or its states are gone: [`UrlFiles::retain`] removes it.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::build::UrlBuilder;
use super::run::{Held, RunWriter, UrlRun, run_path};
use super::set::Urls;
use crate::disk::{Disk, read_file, replace_file};
use crate::error::{Result, StorageError};
use crate::page::RepositoryKey;
use crate::record::crc64;

const HEAD: [u8; 8] = *b"WBUL\x01\0\0\0";

/// The folder of an index.
#[derive(Debug)]
pub struct UrlFiles {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    repository: RepositoryKey,
    next: AtomicU64,
    held: Held,
}

fn number_in(name: &str, prefix: &str) -> Option<u64> {
    name.strip_prefix(prefix)?.parse().ok()
}

fn decode(bytes: &[u8]) -> std::result::Result<Vec<u64>, String> {
    let (body, crc) = bytes.split_last_chunk::<8>().ok_or("cut short")?;
    let (expected, found) = (crc64(body), u64::from_le_bytes(*crc));
    if expected != found {
        return Err(format!("expected CRC-64 {expected:016x}, found {found:016x}"));
    }
    let body = body.strip_prefix(&HEAD).ok_or("not a list of runs of this version")?;
    let (count, numbers) = body.split_first_chunk().ok_or("cut short")?;
    if numbers.len() != 8 * u32::from_le_bytes(*count) as usize {
        return Err("its length is not what it says".into());
    }
    let number = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    Ok(numbers.chunks(8).map(number).collect())
}

impl UrlFiles {
    /// Opens the folder, made if it is not there.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, repository: RepositoryKey) -> Result<Arc<UrlFiles>> {
        disk.create_dir(dir).map_err(|e| StorageError::io("create", dir, e))?;
        let names = disk.list(dir).map_err(|e| StorageError::io("list", dir, e))?;
        let next = names.iter().filter_map(|name| number_in(name, "run-")).max().map_or(1, |last| last + 1);
        let (dir, next) = (dir.to_path_buf(), AtomicU64::new(next));
        Ok(Arc::new(UrlFiles { disk, dir, repository, next, held: Held::default() }))
    }

    fn list_path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("list-{number}"))
    }

    fn names(&self) -> Result<Vec<String>> {
        self.disk.list(&self.dir).map_err(|e| StorageError::io("list", &self.dir, e))
    }

    pub(super) fn writer(&self) -> Result<RunWriter> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        RunWriter::create(&*self.disk, &self.dir, number, &self.held)
    }

    pub(super) fn sync(&self) -> Result<()> {
        self.disk.sync_dir(&self.dir).map_err(|e| StorageError::io("sync", &self.dir, e))
    }

    pub(super) fn discard(&self, number: u64) {
        let _ = self.disk.remove(&run_path(&self.dir, number));
    }

    /// Collects changes, with so much memory for rows.
    pub fn builder(self: &Arc<Self>, budget_bytes: usize) -> UrlBuilder {
        UrlBuilder::new(self.clone(), budget_bytes)
    }

    /// The runs that a list names; `None` when there is no list of this number.
    fn listed(&self, number: u64) -> Result<Option<Vec<u64>>> {
        let path = self.list_path(number);
        match read_file(&*self.disk, &path) {
            Ok(bytes) => {
                decode(&bytes).map(Some).map_err(|what| StorageError::Corrupt { path, offset: 0, what })
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(StorageError::io("read", &path, e)),
        }
    }

    /// The index of the state with this number; `None` when there is none.
    ///
    /// # Errors
    /// When it is damaged, or cannot be read.
    pub fn load(&self, number: u64) -> Result<Option<Urls>> {
        let Some(numbers) = self.listed(number)? else { return Ok(None) };
        let open = |run: &u64| UrlRun::open(&*self.disk, &self.dir, *run, &self.held).map(Arc::new);
        let runs = numbers.iter().map(open).collect::<Result<_>>()?;
        Ok(Some(Urls { runs, repository: self.repository }))
    }

    /// Makes this the index of the state with this number; durable when it returns.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&self, number: u64, urls: &Urls) -> Result<()> {
        let mut out = HEAD.to_vec();
        out.extend_from_slice(&(urls.runs.len() as u32).to_le_bytes());
        urls.runs.iter().for_each(|run| out.extend_from_slice(&run.number.to_le_bytes()));
        out.extend_from_slice(&crc64(&out).to_le_bytes());
        replace_file(&*self.disk, &self.list_path(number), &out)
    }

    /// Lets go of the indexes of all other states than these, and of what nobody needs any more.
    ///
    /// # Errors
    /// When something cannot be read or removed.
    pub fn retain(&self, numbers: &[u64]) -> Result<()> {
        let remove = |name: &str| {
            let path = self.dir.join(name);
            match self.disk.remove(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => Err(StorageError::io("remove", &path, e)),
                _ => Ok(()),
            }
        };
        let (mut needed, mut is_changed) = (BTreeSet::new(), false);
        let names = self.names()?;
        for name in &names {
            let Some(number) = number_in(name, "list-") else { continue };
            if !numbers.contains(&number) {
                remove(name)?;
                is_changed = true;
            } else if let Ok(Some(runs)) = self.listed(number) {
                // A list that is damaged names nothing: its index has to be made anew.
                needed.extend(runs);
            }
        }
        if is_changed {
            // A list must not come back when its runs are gone.
            self.sync()?;
        }
        for name in &names {
            let left = name.ends_with(".next");
            let unneeded = number_in(name, "run-")
                .is_some_and(|run| !needed.contains(&run) && !self.held.lock().contains_key(&run));
            if left || unneeded {
                remove(name)?;
            }
        }
        Ok(())
    }
}
