//! What a node's stores occupy together, and whether that leaves room for more.
//!
//! The capacity is the node's: all epochs and the read side's store share it. Each store also refuses to grow beyond it on
//! its own, so what is promised here is kept there.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use webbase_storage::{Organization, PageStore, Stats, StorageError};

use super::epochs::Epochs;
use super::generations::Generations;

/// The room of a node.
pub(super) struct Room {
    pub(super) dir: PathBuf,
    /// Bytes that all stores may occupy; `None` is the whole disk.
    pub(super) capacity: Option<u64>,
    pub(super) update: Option<Arc<Epochs>>,
    pub(super) read: Option<Arc<Generations>>,
    /// Bytes that are staged and in no file yet, about.
    staged: AtomicU64,
}

impl Room {
    pub(super) fn new(
        dir: PathBuf,
        capacity: Option<u64>,
        update: Option<Arc<Epochs>>,
        read: Option<Arc<Generations>>,
    ) -> Room {
        Room { dir, capacity, update, read, staged: AtomicU64::new(0) }
    }

    /// All stores in figures, as if they were one.
    pub(super) fn stats(&self) -> Stats {
        let epochs = self.update.as_ref().map_or_else(Vec::new, |epochs| epochs.all());
        let all: Vec<Arc<dyn PageStore>> =
            epochs.into_iter().chain(self.read.as_ref().map(|read| read.store.clone())).collect();
        let mut sum = Stats {
            organization: all.last().map_or(Organization::Log, |store| store.organization()),
            capacity_bytes: 0,
            used_bytes: 0,
            live_bytes: 0,
            dead_bytes: 0,
            pages: 0,
            segments: 0,
            memory_bytes: 0,
            cache_bytes: 0,
        };
        let mut free = u64::MAX;
        for stats in all.iter().map(|store| store.stats()) {
            // They are on one disk.
            free = free.min(stats.free_bytes());
            sum.used_bytes += stats.used_bytes;
            sum.live_bytes += stats.live_bytes;
            sum.dead_bytes += stats.dead_bytes;
            sum.pages += stats.pages;
            sum.segments += stats.segments;
            sum.memory_bytes += stats.memory_bytes;
            sum.cache_bytes += stats.cache_bytes;
        }
        let whole_disk = if all.is_empty() { 0 } else { sum.used_bytes.saturating_add(free) };
        sum.capacity_bytes = self.capacity.unwrap_or(whole_disk);
        sum
    }

    /// Bytes that may still be occupied.
    pub(super) fn free(&self) -> u64 {
        self.stats().free_bytes()
    }

    /// Whether so many bytes can be staged; if so, they count as staged from now on.
    pub(super) fn check(&self, bytes: u64) -> webbase_storage::Result<()> {
        if self.capacity.is_none() {
            return Ok(()); // the disk says when it is full
        }
        // Some is left for catalogs: a store that finds out by itself that it is full drops what others have staged.
        let needed = bytes.saturating_add(bytes / 8).saturating_add(64 << 10);
        if self.free() < self.staged.load(Ordering::Relaxed).saturating_add(needed) {
            return Err(StorageError::NoSpace { path: self.dir.clone() });
        }
        self.staged.fetch_add(needed, Ordering::Relaxed);
        Ok(())
    }

    /// Runs a commit, after which what was staged before is in files, or gone.
    pub(super) fn commit<T>(&self, commit: impl FnOnce() -> T) -> T {
        let staged = self.staged.load(Ordering::Relaxed);
        let done = commit();
        self.staged.fetch_sub(staged, Ordering::Relaxed);
        done
    }
}

#[cfg(test)]
mod tests {
    use webbase_storage::{Compression, Options, Page, RepositoryKey};

    use super::*;
    use crate::cycle::UpdateDurable;

    #[test]
    fn the_capacity_is_the_nodes_and_sealed_epochs_count() {
        const MIB: u64 = 1 << 20;
        let folder = tempfile::tempdir().unwrap();
        let capacity_bytes = Some(2 * MIB);
        let options = Options { capacity_bytes, compression: Compression::None, ..Options::default() };
        let (key, durable) = (RepositoryKey::new([7; 32]), UpdateDurable::default());
        let epochs = Epochs::open(folder.path(), key, Organization::Log, options, &durable).unwrap();
        let epochs = Arc::new(epochs);
        let room = Room::new(folder.path().into(), capacity_bytes, Some(epochs.clone()), None);
        let body = vec![7; MIB as usize];
        let page = Page { url: "http://example.com/", body: &body, ..Page::default() };
        epochs.with_open(|store, _| store.add(&[page])).unwrap();
        epochs.commit().unwrap();
        epochs.seal(Some(1), |_| Ok(())).unwrap();
        let stats = room.stats();
        assert_eq!((stats.pages, stats.capacity_bytes), (1, 2 * MIB));
        assert!(stats.used_bytes > MIB && stats.free_bytes() < MIB, "{stats:?}");
        room.check(MIB / 2).unwrap();
        assert!(room.check(MIB / 2).is_err(), "with what is staged already it is too much");
        room.commit(|| ());
        room.check(MIB / 2).unwrap();
        assert!(room.check(MIB).is_err(), "an epoch of its own would have room for it");
    }
}
