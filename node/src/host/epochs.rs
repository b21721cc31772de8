//! The update side's pages: one store per epoch, `epoch-N/`. The newest takes adds; the others are sealed and never change.
//!
//! 1. Adding holds the lock for reading while it stages, sealing holds it for writing: what was staged before is
//!    committed by the sealing itself, what comes after goes into the next epoch.
//! 2. What a failed sealing has dropped is said by the next commit: those who staged it wait for that one.
//! 3. A folder beyond the open epoch is what a kill left of a sealing that was not noted: it is empty, and removed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use webbase_storage::{
    Options, Organization, PageStore, RepositoryKey, Snapshot, StorageError, create, open,
};

use super::file::sync_folder_of;
use super::live::Epoch;
use crate::cycle::UpdateDurable;
use crate::error::{NodeError, Result};

/// Requests that name a generation name an epoch of an update node with this bit.
pub const EPOCH: u64 = 1 << 63;

/// The stores of an update node.
pub(super) struct Epochs {
    dir: PathBuf,
    key: RepositoryKey,
    organization: Organization,
    options: Options,
    stores: RwLock<Stores>,
    /// Why what was staged is gone, until a commit has said so.
    dropped: Mutex<Option<String>>,
}

struct Stores {
    /// By epoch; the last one is open.
    all: BTreeMap<u64, Arc<dyn PageStore>>,
    open: (u64, Arc<dyn PageStore>),
    /// The newest cycle that was sealed for.
    sealed_cycle: u64,
}

fn folder(dir: &Path, epoch: u64) -> PathBuf {
    dir.join(format!("epoch-{epoch}"))
}

fn number(name: &str) -> Option<u64> {
    name.strip_prefix("epoch-")?.parse().ok()
}

impl Epochs {
    /// Opens all epochs that `durable` names.
    pub(super) fn open(
        dir: &Path,
        key: RepositoryKey,
        organization: Organization,
        options: Options,
        durable: &UpdateDurable,
    ) -> Result<Epochs> {
        let failed = |e| NodeError::io("read", dir.display(), e);
        for entry in std::fs::read_dir(dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let epoch = entry.file_name().to_str().and_then(number);
            if epoch.is_some_and(|e| e < durable.first_epoch || e > durable.open_epoch) {
                std::fs::remove_dir_all(entry.path()).map_err(failed)?;
            }
        }
        let mut all = BTreeMap::new();
        for epoch in durable.first_epoch..durable.open_epoch {
            let path = folder(dir, epoch);
            // Nothing was ever added in an epoch that has no store: it was being made when the first start was killed.
            if path.exists() {
                all.insert(epoch, open(&path, &options)?);
            }
        }
        let store = open_or_create(&folder(dir, durable.open_epoch), key, organization, &options)?;
        all.insert(durable.open_epoch, store.clone());
        let stores = RwLock::new(Stores {
            all,
            open: (durable.open_epoch, store),
            sealed_cycle: durable.sealed_cycle,
        });
        let dropped = Mutex::default();
        Ok(Epochs { dir: dir.to_path_buf(), key, organization, options, stores, dropped })
    }

    /// Runs `add` on the open epoch's store, which is not sealed meanwhile, with the newest cycle that was sealed for.
    pub(super) fn with_open<T>(&self, add: impl FnOnce(&dyn PageStore, u64) -> T) -> T {
        let stores = self.stores.read();
        add(&*stores.open.1, stores.sealed_cycle)
    }

    /// Makes everything staged durable.
    pub(super) fn commit(&self) -> webbase_storage::Result<()> {
        self.with_open(|store, _| match self.dropped.lock().take() {
            Some(why) => Err(StorageError::Dropped { path: self.dir.clone(), why }),
            None => store.commit(),
        })
    }

    /// All epochs' stores, the open one last.
    pub(super) fn all(&self) -> Vec<Arc<dyn PageStore>> {
        self.stores.read().all.values().cloned().collect()
    }

    /// All epochs as they are now, ascending.
    pub(super) fn snapshots(&self) -> Vec<Epoch> {
        self.stores.read().all.iter().map(|(epoch, store)| (*epoch, store.snapshot())).collect()
    }

    /// The open epoch's store.
    pub(super) fn newest(&self) -> Arc<dyn PageStore> {
        self.stores.read().open.1.clone()
    }

    /// The number of the open epoch, and what is committed of it.
    pub(super) fn open_now(&self) -> Epoch {
        let stores = self.stores.read();
        (stores.open.0, stores.open.1.snapshot())
    }

    /// The epochs there are.
    pub(super) fn numbers(&self) -> Vec<u64> {
        self.stores.read().all.keys().copied().collect()
    }

    /// The pages of a sealed epoch.
    pub(super) fn sealed(&self, epoch: u64) -> Option<(Arc<dyn PageStore>, Arc<dyn Snapshot>)> {
        let stores = self.stores.read();
        let store = stores.all.get(&epoch).filter(|_| epoch != stores.open.0)?;
        Some((store.clone(), store.snapshot()))
    }

    /// What is committed of an epoch, also of the one that takes adds.
    pub(super) fn committed(&self, epoch: u64) -> Option<Arc<dyn Snapshot>> {
        self.stores.read().all.get(&epoch).map(|store| store.snapshot())
    }

    /// Ends the open epoch, for a cycle if there is one: commits it, makes the next one, and has `note` make that durable
    /// before anything is added to it.
    pub(super) fn seal(&self, cycle: Option<u64>, note: impl FnOnce(u64) -> Result<()>) -> Result<()> {
        let mut stores = self.stores.write();
        let (epoch, old) = stores.open.clone();
        old.commit().inspect_err(|e| *self.dropped.lock() = Some(e.to_string()))?;
        let store =
            open_or_create(&folder(&self.dir, epoch + 1), self.key, self.organization, &self.options)?;
        // What packed the last epoch packs the next: no training anew, and one dictionary less for readers.
        for dictionary in old.dictionaries().all() {
            store.add_dictionary(dictionary.content())?;
        }
        note(epoch + 1)?;
        stores.all.insert(epoch + 1, store.clone());
        stores.open = (epoch + 1, store);
        stores.sealed_cycle = stores.sealed_cycle.max(cycle.unwrap_or(0));
        drop(stores);
        Ok(old.close()?)
    }

    /// Deletes epochs up to and with `through`.
    pub(super) fn drop_through(&self, through: u64) -> Result<()> {
        let gone: Vec<u64> = {
            let mut stores = self.stores.write();
            let open = stores.open.0;
            let gone =
                stores.all.range(..=through).map(|(e, _)| *e).filter(|e| *e != open).collect::<Vec<_>>();
            gone.iter().for_each(|e| drop(stores.all.remove(e)));
            gone
        };
        for epoch in gone {
            let path = folder(&self.dir, epoch);
            std::fs::remove_dir_all(&path).map_err(|e| NodeError::io("remove", path.display(), e))?;
        }
        Ok(())
    }

    /// Commits what is staged.
    pub(super) fn close(&self) -> Result<()> {
        Ok(self.stores.read().open.1.close()?)
    }
}

/// Opens the store in `dir`, made before if it is not there.
pub(super) fn open_or_create(
    dir: &Path,
    key: RepositoryKey,
    organization: Organization,
    options: &Options,
) -> Result<Arc<dyn PageStore>> {
    // A store gets its name last: without it there are no pages. `create` knows what a kill left of itself, and refuses
    // anything else.
    if !dir.join("STORE").exists() {
        create(dir, organization, key, options)?;
        sync_folder_of(dir).map_err(|e| NodeError::io("sync the folder of", dir.display(), e))?;
    }
    let store = open(dir, options)?;
    if *store.repository_key() != key {
        let what = format!(
            "{} is a store of repository {}, expected {}",
            dir.display(),
            store.repository_key().fingerprint(),
            key.fingerprint()
        );
        return Err(NodeError::Foreign { what });
    }
    Ok(store)
}

#[cfg(test)]
mod tests {
    use webbase_storage::Page;

    use super::*;

    #[test]
    fn what_a_failed_sealing_drops_is_said_by_the_next_commit() {
        let folder = tempfile::tempdir().unwrap();
        let plain = Options { compression: webbase_storage::Compression::None, ..Options::default() };
        // A hash store without buffer finds out at the commit that there is no room.
        let options = Options { capacity_bytes: Some(256 << 10), buffer_bytes: 0, ..plain };
        let key = RepositoryKey::new([7; 32]);
        let durable = UpdateDurable::default();
        let epochs = Epochs::open(folder.path(), key, Organization::Hash, options, &durable).unwrap();
        let noise: Vec<u8> = (0_u32..1 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        let page = Page { url: "http://example.com/large", body: &noise, ..Page::default() };
        epochs.with_open(|store, _| store.add(&[page])).unwrap();
        let sealed = epochs.seal(Some(1), |_| Ok(()));
        assert!(sealed.is_err(), "there is no room for the page");
        assert!(matches!(epochs.commit(), Err(StorageError::Dropped { .. })), "the page is gone");
        epochs.commit().unwrap();
        epochs.seal(Some(1), |_| Ok(())).unwrap();
        epochs.commit().unwrap();
    }
}
