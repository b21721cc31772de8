//! A node's pages as they are now, for repositories with incremental update: its epochs laid over its newest generation.
//!
//! Of each page the newest version shows, be it in an epoch or in the generation, unless the generation's tombstones bar it.
//! A fold (a cycle) brings epochs into the next generation and lets them go; a page is then where it was, or in the
//! generation, and while both have it the generation's counts.
//!
//! **Streams** show each page once, as it was when the stream was opened: of logs as `log.rs` says, of stores in key order as
//! `keyed.rs` says.

mod keyed;
mod log;
#[cfg(test)]
mod tests;
mod urls;

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;

use webbase_storage::{
    Listed, Organization, PageId, PageKey, PageStream, Record, RepositoryKey, Result, Snapshot, StreamSpec,
    Trust, Version,
};

use self::keyed::KeyOverlay;
use self::log::LogOverlay;
pub(super) use self::urls::LiveUrls;
use super::tombstones::Tombstones;

/// Rows of a list that are made at once.
const LIST_ROWS: usize = 64 << 10;

/// The newest generation of a node.
#[derive(Clone)]
pub(super) struct Base {
    pub(super) snapshot: Arc<dyn Snapshot>,
    /// The number under which the store keeps it.
    pub(super) number: u64,
    pub(super) tombstones: Arc<Tombstones>,
}

/// The state of an epoch, and its number.
pub(super) type Epoch = (u64, Arc<dyn Snapshot>);

/// Epochs over a generation. The epochs must have been looked at before the generation: a fold in between then hides nothing.
#[derive(Clone)]
pub(super) struct Overlay {
    pub(super) key: RepositoryKey,
    pub(super) organization: Organization,
    /// None while the node stands at generation 0, which is empty.
    pub(super) base: Option<Base>,
    /// Ascending.
    pub(super) epochs: Vec<Epoch>,
}

fn version_of(snapshot: &dyn Snapshot, key: PageKey) -> Result<Option<Version>> {
    let listed = snapshot.list(key.id..=key.id, key, 1)?;
    Ok(listed.first().filter(|l| l.key == key).map(|l| l.version))
}

fn newer(a: Option<Record>, b: Option<Record>) -> Option<Record> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if b.get().version() > a.get().version() { b } else { a }),
        (a, b) => a.or(b),
    }
}

impl Overlay {
    fn bars(&self, key: PageKey, version: Version) -> bool {
        self.base.as_ref().is_some_and(|base| base.tombstones.bar(key, version))
    }

    fn base_version(&self, key: PageKey) -> Result<Option<Version>> {
        self.base.as_ref().map_or(Ok(None), |base| version_of(&*base.snapshot, key))
    }

    /// Whether an epoch's version of a page shows, rather than what the generation has of it.
    fn shows(&self, key: PageKey, version: Version) -> Result<bool> {
        Ok(!self.bars(key, version) && self.base_version(key)?.is_none_or(|base| base < version))
    }

    fn base_lookup(&self, key: PageKey, trust: Trust) -> Result<Option<Record>> {
        self.base.as_ref().map_or(Ok(None), |base| base.snapshot.lookup(key, trust))
    }

    /// All snapshots: those of epochs, then that of the generation.
    fn layers(&self) -> impl Iterator<Item = (&dyn Snapshot, bool)> {
        let base = self.base.iter().map(|base| (&*base.snapshot, false));
        self.epochs.iter().map(|(_, epoch)| (&**epoch, true)).chain(base)
    }

    /// What the epochs have: of each page the newest version, and in which epoch it is.
    fn newest(&self) -> Result<HashMap<PageKey, (Version, u64)>> {
        let mut newest: HashMap<PageKey, (Version, u64)> = HashMap::new();
        for (number, epoch) in &self.epochs {
            let mut at = Some(PageKey::MIN);
            while let Some(from) = at {
                let some = epoch.list(PageId(0)..=PageId(u64::MAX), from, LIST_ROWS)?;
                at = some.last().filter(|_| some.len() == LIST_ROWS).and_then(|last| last.key.next());
                for row in some {
                    let best = newest.entry(row.key).or_insert((row.version, *number));
                    if row.version > best.0 {
                        *best = (row.version, *number);
                    }
                }
            }
        }
        Ok(newest)
    }
}

impl Snapshot for Overlay {
    fn repository_key(&self) -> &RepositoryKey {
        &self.key
    }

    fn lookup(&self, key: PageKey, trust: Trust) -> Result<Option<Record>> {
        let mut best = None;
        for (_, epoch) in &self.epochs {
            best = newer(best, epoch.lookup(key, trust)?);
        }
        match best {
            Some(best) if self.shows(key, best.get().version())? => Ok(Some(best)),
            _ => self.base_lookup(key, trust),
        }
    }

    fn lookup_warm(&self, key: PageKey) -> Option<Result<Option<Record>>> {
        let mut best = None;
        for (_, epoch) in &self.epochs {
            match epoch.lookup_warm(key)? {
                Ok(found) => best = newer(best, found),
                Err(e) => return Some(Err(e)),
            }
        }
        best = best.filter(|record: &Record| !self.bars(key, record.get().version()));
        let Some(base) = &self.base else { return Some(Ok(best)) };
        // Of the same version the generation's counts; which one is sent makes no difference.
        Some(base.snapshot.lookup_warm(key)?.map(|found| newer(found, best)))
    }

    fn lookup_id(&self, id: PageId, trust: Trust) -> Result<Vec<Record>> {
        let mut found: BTreeMap<PageKey, Record> = BTreeMap::new();
        for (layer, is_epoch) in self.layers() {
            for record in layer.lookup_id(id, trust)? {
                let (key, version) = (record.get().key(), record.get().version());
                if !(is_epoch && self.bars(key, version)) {
                    let best = newer(found.remove(&key), Some(record));
                    found.extend(best.map(|record| (key, record)));
                }
            }
        }
        Ok(found.into_values().collect())
    }

    fn lookup_many(&self, keys: &[PageKey]) -> Vec<Result<Option<Record>>> {
        let mut found: Vec<Result<Option<Record>>> = keys.iter().map(|_| Ok(None)).collect();
        for (_, epoch) in &self.epochs {
            for (best, next) in found.iter_mut().zip(epoch.lookup_many(keys)) {
                *best = match (std::mem::replace(best, Ok(None)), next) {
                    (Ok(best), Ok(next)) => Ok(newer(best, next)),
                    (Err(e), _) | (_, Err(e)) => Err(e),
                };
            }
        }
        // What the epochs do not show is looked up in the generation, all at once.
        let mut rest: Vec<(usize, PageKey)> = Vec::new();
        for (at, (best, key)) in found.iter_mut().zip(keys).enumerate() {
            let version = match best {
                Ok(best) => best.as_ref().map(|record| record.get().version()),
                Err(_) => continue,
            };
            match version.map_or(Ok(false), |version| self.shows(*key, version)) {
                Ok(true) => {}
                Ok(false) => {
                    *best = Ok(None);
                    rest.push((at, *key));
                }
                Err(e) => *best = Err(e),
            }
        }
        if let Some(base) = &self.base {
            let keys: Vec<PageKey> = rest.iter().map(|(_, key)| *key).collect();
            for ((at, _), result) in rest.iter().zip(base.snapshot.lookup_many(&keys)) {
                if let Some(slot) = found.get_mut(*at) {
                    *slot = result;
                }
            }
        }
        found
    }

    fn stream(&self, spec: &StreamSpec) -> Result<Box<dyn PageStream>> {
        match self.organization {
            Organization::Log => Ok(Box::new(LogOverlay::open(self.clone(), spec)?)),
            _ => Ok(Box::new(KeyOverlay::open(self.clone(), spec)?)),
        }
    }

    fn keys(&self) -> Result<Vec<PageKey>> {
        let all = self.list(PageId(0)..=PageId(u64::MAX), PageKey::MIN, usize::MAX)?;
        Ok(all.into_iter().map(|row| row.key).collect())
    }

    fn list(&self, ids: RangeInclusive<PageId>, from: PageKey, limit: usize) -> Result<Vec<Listed>> {
        let mut listed: Vec<Listed> = Vec::new();
        let mut at = Some(from);
        while let Some(from) = at.filter(|_| listed.len() < limit) {
            let rows = LIST_ROWS.min(limit);
            let mut merged: BTreeMap<PageKey, Listed> = BTreeMap::new();
            // Up to here the lists of all layers go.
            let mut through = None;
            for (layer, is_epoch) in self.layers() {
                let some = layer.list(ids.clone(), from, rows)?;
                if let Some(last) = some.last().filter(|_| some.len() >= rows) {
                    through = Some(through.map_or(last.key, |t: PageKey| t.min(last.key)));
                }
                for row in some.into_iter().filter(|r| !(is_epoch && self.bars(r.key, r.version))) {
                    let best = merged.entry(row.key).or_insert(row);
                    if row.version > best.version {
                        *best = row;
                    }
                }
            }
            let sure = merged.into_values().take_while(|row| through.is_none_or(|t| row.key <= t));
            listed.extend(sure);
            at = through.and_then(PageKey::next);
        }
        listed.truncate(limit);
        Ok(listed)
    }

    /// Counted by listing, because layers may have the same page. A page that cannot be read counts as none.
    fn pages(&self) -> u64 {
        self.keys().map_or(0, |keys| keys.len() as u64)
    }

    fn live_bytes(&self) -> u64 {
        let all = self.list(PageId(0)..=PageId(u64::MAX), PageKey::MIN, usize::MAX);
        all.map_or(0, |rows| rows.iter().map(|row| row.bytes).sum())
    }
}
