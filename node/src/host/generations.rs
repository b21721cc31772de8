//! The read side's pages: one store, `pages/`, and the generations kept in it.
//!
//! The store's own state is what is being prepared; readers only ever see snapshots of kept generations.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use webbase_storage::{Options, Organization, PageKey, PageStore, RepositoryKey, Snapshot};

use super::epochs::open_or_create;
use super::file::NodeFile;
use super::live::Base;
use super::runs::Runs;
use super::tombstones::Tombstones;
use super::urls::UrlIndexes;
use crate::cycle::{RangeMap, RangeSet, ReadDurable};
use crate::error::Result;
use crate::wire::message::{Code, Fault};

/// What can be served of a generation.
#[derive(Clone)]
pub(super) struct Served {
    pub(super) snapshot: Arc<dyn Snapshot>,
    pub(super) ranges: RangeSet,
    /// The number under which the store keeps it.
    pub(super) number: u64,
    /// When its pages arrived.
    pub(super) runs: Arc<Runs>,
    /// Pages removed before it.
    pub(super) tombstones: Arc<Tombstones>,
}

/// The store of a read node and its generations.
pub(super) struct Generations {
    pub(super) store: Arc<dyn PageStore>,
    pub(super) dir: PathBuf,
    /// Where files without a name may be.
    pub(super) scratch: PathBuf,
    pub(super) map: RangeMap,
    /// Their URL indexes.
    pub(super) urls: Arc<UrlIndexes>,
    served: RwLock<BTreeMap<u64, Served>>,
}

impl Generations {
    /// Opens the store; what it keeps that `file` does not name is let go. A new store keeps its empty state, as
    /// generation 0.
    pub(super) fn open(
        dir: &Path,
        key: RepositoryKey,
        map: RangeMap,
        organization: Organization,
        options: &Options,
        file: &mut NodeFile,
    ) -> Result<Generations> {
        let urls = UrlIndexes::open(dir, key)?;
        let (scratch, dir) = (dir.to_owned(), dir.join("pages"));
        let store = open_or_create(&dir, key, organization, options)?;
        if file.numbers.is_empty() {
            let number = store.generations().last().copied().unwrap_or(0) + 1;
            store.keep_generation(number)?;
            file.numbers.insert(0, number);
            file.next_number = number + 1;
        }
        for number in store.generations() {
            if !file.numbers.values().any(|n| *n == number) {
                store.drop_generation(number)?;
                Tombstones::remove(&dir, number)?;
                Runs::remove(&dir, number)?;
            }
        }
        urls.retain(&file.numbers.values().copied().collect::<Vec<_>>())?;
        let generations = Generations { store, dir, scratch, map, urls, served: RwLock::default() };
        generations.serve(file)?;
        Ok(generations)
    }

    /// Serves what `file` says, and nothing else.
    pub(super) fn serve(&self, file: &NodeFile) -> Result<()> {
        let Some(read) = &file.read else { return Ok(()) };
        let before = self.served.read().clone();
        let mut served = BTreeMap::new();
        for (generation, ranges) in visible(read) {
            let Some(&number) = file.numbers.get(&generation) else { continue };
            if let Some(snapshot) = self.store.generation(number)? {
                let known = before.get(&generation).filter(|b| b.number == number);
                let (tombstones, runs) = match known {
                    Some(known) => (known.tombstones.clone(), known.runs.clone()),
                    None => (
                        Arc::new(Tombstones::read(&self.dir, number)?),
                        Arc::new(Runs::read(&self.dir, number)?),
                    ),
                };
                self.urls.load(number, &snapshot);
                served.insert(generation, Served { snapshot, ranges, number, runs, tombstones });
            }
        }
        let before = std::mem::replace(&mut *self.served.write(), served);
        drop(before); // what nobody needs any more is let go when no reader waits for the lock
        Ok(())
    }

    /// A generation.
    pub(super) fn get(&self, generation: u64) -> std::result::Result<Served, Fault> {
        let served = self.served.read();
        served
            .get(&generation)
            .cloned()
            .ok_or_else(|| Fault::generation(generation, served.keys().copied().collect()))
    }

    /// The newest generation that is served.
    pub(super) fn newest(&self) -> Option<(u64, Arc<dyn Snapshot>)> {
        let served = self.served.read();
        served.last_key_value().map(|(generation, served)| (*generation, served.snapshot.clone()))
    }

    /// The generations that are served.
    pub(super) fn numbers(&self) -> Vec<u64> {
        self.served.read().keys().copied().collect()
    }

    /// The newest generation, for what lies over it, if it has all ranges that `lacks` looks for; it names one that is
    /// missing. `None` stands for generation 0, which is empty and has all.
    pub(super) fn base(
        &self,
        lacks: impl FnOnce(&RangeSet) -> Option<u32>,
    ) -> std::result::Result<Option<Base>, u32> {
        let served = self.served.read();
        let Some((_, newest)) = served.last_key_value() else { return Ok(None) };
        match lacks(&newest.ranges) {
            Some(range) => Err(range),
            None => {
                let (snapshot, number) = (newest.snapshot.clone(), newest.number);
                Ok(Some(Base { snapshot, number, tombstones: newest.tombstones.clone() }))
            }
        }
    }

    /// A generation, if it has the range of this page here, as far as the key says that.
    pub(super) fn of_page(
        &self,
        generation: u64,
        key: PageKey,
    ) -> std::result::Result<Arc<dyn Snapshot>, Fault> {
        let served = self.served.read();
        match served.get(&generation) {
            Some(found) => match self.map.range_of_key(key) {
                Some(range) if !found.ranges.contains(range) => Err(not_here(range, generation)),
                _ => Ok(found.snapshot.clone()),
            },
            None => Err(Fault::generation(generation, served.keys().copied().collect())),
        }
    }
}

/// The answer to who asks for a range that another node has.
pub(super) fn not_here(range: u32, generation: u64) -> Fault {
    let text = format!("range {range} of generation {generation} is not on this node; get a new plan");
    Fault::new(Code::Plan, text)
}

/// Generations that may be served, with their ranges. What is only prepared is none of them.
fn visible(read: &ReadDurable) -> impl Iterator<Item = (u64, RangeSet)> + '_ {
    read.kept.iter().filter(|(g, _)| **g <= read.current && **g > 0).map(|(g, r)| (*g, r.clone()))
}
