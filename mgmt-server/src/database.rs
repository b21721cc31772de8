//! What survives a kill: one redb file, `management.redb`, and a `LOCK` beside it.
//!
//! ```text
//!   TABLE       KEY             VALUE
//!   repository  "repository"    Repository: key, range map, update, for ever
//!   state       "state"         State, replaced as a whole by each decision
//!   addresses   node id         SocketAddr
//!
//!   a value:    version u32 │ CRC-64 of the rest u64 │ postcard      (little-endian)
//! ```
//!
//! 1. A commit is durable when it returns; a kill leaves the state before it or after it.
//! 2. The file is made under another name and renamed when the repository and the empty state are in it, so a file that is
//!    there is whole.
//! 3. Addresses only spare readers the wait for a node to come back after a restart: losing one costs nothing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use redb::{ReadableDatabase, ReadableTable, TableDefinition};
use serde::Serialize;
use serde::de::DeserializeOwned;
use webbase_node::cycle::message::NodeId;
use webbase_node::plan::{Repository, Update};
use webbase_storage::disk::{Disk, DiskLock, OsDisk};
use webbase_storage::{RepositoryKey, crc64};

use crate::state::{STATE_VERSION, State};
use crate::{RangeMap, ServerError};

const FILE: &str = "management.redb";
const NEW_FILE: &str = "management.redb.new";
const LOCK: &str = "LOCK";
/// Enough for the state of thousands of ranges.
const CACHE_BYTES: usize = 8 << 20;
const HEAD_BYTES: usize = 12;

const REPOSITORY: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("repository");
const STATE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("state");
const ADDRESSES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("addresses");
/// The version of repositories and addresses.
const VERSION: u32 = 2;

/// What is in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// What the repository is.
    pub repository: Repository,
    /// The coordinator's state.
    pub state: State,
    /// Where nodes were last.
    pub addresses: BTreeMap<NodeId, SocketAddr>,
}

/// What one commit changes.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// The new state.
    pub state: Option<Box<State>>,
    /// Where nodes are now; `None` for those to be forgotten.
    pub addresses: Vec<(NodeId, Option<SocketAddr>)>,
}

/// The open file. One process has it at a time.
pub struct Database {
    path: PathBuf,
    redb: redb::Database,
    // Released after the file is closed.
    _lock: Box<dyn DiskLock>,
}

impl Database {
    /// Opens the folder's file; in a folder without one it makes a new repository.
    ///
    /// # Errors
    /// When another process has it, it is damaged or of another version, or the disk fails.
    pub fn open(
        dir: &Path,
        map: RangeMap,
        replicas: u32,
        update: Update,
    ) -> Result<(Database, Saved), ServerError> {
        fs::create_dir_all(dir).map_err(|e| ServerError::io("create", dir, e))?;
        let lock_path = dir.join(LOCK);
        let lock = OsDisk::new().lock(&lock_path).map_err(|e| ServerError::io("lock", &lock_path, e))?;
        let lock = lock.ok_or_else(|| ServerError::Locked { path: dir.to_owned() })?;
        let path = dir.join(FILE);
        let exists = path.try_exists().map_err(|e| ServerError::io("find", &path, e))?;
        if !exists {
            create(dir, &path, map, replicas, update)?;
        }
        let redb = redb::Database::builder().set_cache_size(CACHE_BYTES).open(&path);
        let redb = redb.map_err(|e| failed("open", &path, e))?;
        let database = Database { path, redb, _lock: lock };
        let saved = database.load()?;
        Ok((database, saved))
    }

    fn load(&self) -> Result<Saved, ServerError> {
        let path = &self.path;
        let read = self.redb.begin_read().map_err(|e| failed("read", path, e))?;
        let one = |table: TableDefinition<'_, &str, &[u8]>,
                   key: &'static str|
         -> Result<Vec<u8>, ServerError> {
            let table = read.open_table(table).map_err(|e| failed("read", path, e))?;
            let value = table.get(key).map_err(|e| failed("read", path, e))?;
            let missing = || ServerError::Damaged { path: path.clone(), what: format!("it has no {key}") };
            Ok(value.ok_or_else(missing)?.value().to_vec())
        };
        let repository: Repository =
            open_value(path, "a repository", VERSION, &one(REPOSITORY, "repository")?)?;
        let state: State = open_value(path, "a state", STATE_VERSION, &one(STATE, "state")?)?;
        let live = repository.update == Update::Incremental;
        let theirs = state.placement.map != repository.map || state.live.is_some() != live;
        if state.version != STATE_VERSION || theirs {
            let what = "the state is not this repository's".into();
            return Err(ServerError::Damaged { path: path.clone(), what });
        }
        let mut addresses = BTreeMap::new();
        let table = read.open_table(ADDRESSES).map_err(|e| failed("read", path, e))?;
        for row in table.iter().map_err(|e| failed("read", path, e))? {
            let (node, address) = row.map_err(|e| failed("read", path, e))?;
            let address = open_value(path, "an address", VERSION, address.value())?;
            addresses.insert(NodeId(node.value()), address);
        }
        Ok(Saved { repository, state, addresses })
    }

    /// Makes a change durable. Blocks until the disk has it.
    ///
    /// # Errors
    /// When the disk fails; then what is there is known only after opening again.
    pub fn commit(&self, change: &Change) -> Result<(), ServerError> {
        let path = &self.path;
        write(path, &self.redb, |write| {
            if let Some(state) = &change.state {
                let value = seal(path, STATE_VERSION, &**state)?;
                let mut table = write.open_table(STATE).map_err(|e| failed("write", path, e))?;
                table.insert("state", value.as_slice()).map_err(|e| failed("write", path, e))?;
            }
            let mut table = write.open_table(ADDRESSES).map_err(|e| failed("write", path, e))?;
            for (node, address) in &change.addresses {
                match address {
                    Some(address) => {
                        let value = seal(path, VERSION, address)?;
                        table.insert(node.0, value.as_slice()).map_err(|e| failed("write", path, e))?;
                    }
                    None => {
                        table.remove(node.0).map_err(|e| failed("write", path, e))?;
                    }
                }
            }
            Ok(())
        })
    }
}

fn create(dir: &Path, path: &Path, map: RangeMap, replicas: u32, update: Update) -> Result<(), ServerError> {
    let new = dir.join(NEW_FILE);
    match fs::remove_file(&new) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(ServerError::io("remove", &new, e));
        }
        _ => {}
    }
    let key = RepositoryKey::random().map_err(|e| ServerError::io("make a key for", dir, e))?;
    let repository = Repository { key: key.parts().0, map, update };
    let redb = redb::Database::builder().create(&new).map_err(|e| failed("create", &new, e))?;
    write(&new, &redb, |write| {
        let mut table = write.open_table(REPOSITORY).map_err(|e| failed("write", &new, e))?;
        let value = seal(&new, VERSION, &repository)?;
        table.insert("repository", value.as_slice()).map_err(|e| failed("write", &new, e))?;
        let mut table = write.open_table(STATE).map_err(|e| failed("write", &new, e))?;
        let value = seal(&new, STATE_VERSION, &State::new(map, replicas, update))?;
        table.insert("state", value.as_slice()).map_err(|e| failed("write", &new, e))?;
        write.open_table(ADDRESSES).map_err(|e| failed("write", &new, e))?;
        Ok(())
    })?;
    drop(redb);
    fs::rename(&new, path).map_err(|e| ServerError::io("rename", &new, e))?;
    let folder = File::open(dir).and_then(|folder| folder.sync_all());
    folder.map_err(|e| ServerError::io("sync", dir, e))
}

fn write(
    path: &Path,
    redb: &redb::Database,
    changes: impl FnOnce(&redb::WriteTransaction) -> Result<(), ServerError>,
) -> Result<(), ServerError> {
    let write = redb.begin_write().map_err(|e| failed("write", path, e))?;
    changes(&write)?;
    write.commit().map_err(|e| failed("commit", path, e))
}

fn seal(path: &Path, version: u32, value: &impl Serialize) -> Result<Vec<u8>, ServerError> {
    let unable = |e: postcard::Error| ServerError::Internal { what: format!("{}: {e}", path.display()) };
    let mut bytes = postcard::to_extend(value, vec![0; HEAD_BYTES]).map_err(unable)?;
    let sum = crc64(bytes.get(HEAD_BYTES..).unwrap_or_default());
    let head = version.to_le_bytes().into_iter().chain(sum.to_le_bytes());
    bytes.iter_mut().zip(head).for_each(|(to, from)| *to = from);
    Ok(bytes)
}

fn open_value<T: DeserializeOwned>(
    path: &Path,
    what: &'static str,
    expected: u32,
    bytes: &[u8],
) -> Result<T, ServerError> {
    let damaged =
        |why: String| ServerError::Damaged { path: path.to_owned(), what: format!("{what}: {why}") };
    let head = bytes.split_first_chunk::<4>();
    let head = head.and_then(|(v, rest)| rest.split_first_chunk::<8>().map(|(sum, rest)| (v, sum, rest)));
    let (version, sum, rest) = head.ok_or_else(|| damaged(format!("{} bytes", bytes.len())))?;
    let found = u32::from_le_bytes(*version);
    if found != expected {
        return Err(ServerError::Version { path: path.to_owned(), what, found, expected });
    }
    let (sum, computed) = (u64::from_le_bytes(*sum), crc64(rest));
    if sum != computed {
        return Err(damaged(format!("checksum {computed:016x}, expected {sum:016x}")));
    }
    match postcard::take_from_bytes(rest) {
        Ok((value, [])) => Ok(value),
        Ok((_, left)) => Err(damaged(format!("{} bytes too many", left.len()))),
        Err(e) => Err(damaged(e.to_string())),
    }
}

fn failed(op: &'static str, path: &Path, e: impl Into<redb::Error>) -> ServerError {
    let path = path.to_owned();
    match e.into() {
        redb::Error::DatabaseAlreadyOpen => ServerError::Locked { path },
        redb::Error::Io(e) if e.kind() == std::io::ErrorKind::InvalidData => {
            ServerError::Damaged { path, what: e.to_string() }
        }
        redb::Error::Io(e) => ServerError::io(op, path, e),
        redb::Error::UpgradeRequired(found) => ServerError::Damaged {
            path,
            what: format!("it is in the database's old format {found}, which this program does not read"),
        },
        e => ServerError::Damaged { path, what: e.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use webbase_node::cycle::Distribution;

    use super::*;

    fn opened(dir: &Path) -> (Database, Saved) {
        Database::open(dir, RangeMap::new(4), 2, Update::Batch).unwrap()
    }

    #[test]
    fn what_was_committed_is_there_again() {
        let dir = tempfile::tempdir().unwrap();
        let (database, first) = opened(dir.path());
        assert_eq!(first.state, State::new(RangeMap::new(4), 2, Update::Batch));
        let mut state = first.state.clone();
        state.placement.add(NodeId(7), true, true);
        state.last_cycle = 3;
        let at: SocketAddr = "127.0.0.1:7".parse().unwrap();
        let change = Change {
            state: Some(Box::new(state.clone())),
            addresses: vec![(NodeId(7), Some(at)), (NodeId(8), Some(at))],
        };
        database.commit(&change).unwrap();
        database.commit(&Change { state: None, addresses: vec![(NodeId(8), None)] }).unwrap();
        drop(database);
        // Other wishes do not change a repository that is there.
        let other = RangeMap::distributed(9, Distribution::Uniform);
        let (_, again) = Database::open(dir.path(), other, 3, Update::Batch).unwrap();
        let addresses = BTreeMap::from([(NodeId(7), at)]);
        assert_eq!(again, Saved { repository: first.repository, state, addresses });
    }

    #[test]
    fn one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let (_database, _) = opened(dir.path());
        let again = Database::open(dir.path(), RangeMap::new(4), 2, Update::Batch);
        assert!(matches!(again, Err(ServerError::Locked { .. })));
    }

    #[test]
    fn a_file_that_was_never_finished_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(NEW_FILE), b"half").unwrap();
        let (_database, saved) = opened(dir.path());
        assert_eq!(saved.state, State::new(RangeMap::new(4), 2, Update::Batch));
        assert!(!dir.path().join(NEW_FILE).exists());
    }

    fn with_state_bytes(dir: &Path, change: impl FnOnce(&mut Vec<u8>)) -> ServerError {
        let (database, _) = opened(dir);
        let mut bytes = {
            let read = database.redb.begin_read().unwrap();
            read.open_table(STATE).unwrap().get("state").unwrap().unwrap().value().to_vec()
        };
        change(&mut bytes);
        let write = database.redb.begin_write().unwrap();
        write.open_table(STATE).unwrap().insert("state", bytes.as_slice()).unwrap();
        write.commit().unwrap();
        drop(database);
        Database::open(dir, RangeMap::new(4), 2, Update::Batch).err().unwrap()
    }

    #[test]
    fn another_version_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = with_state_bytes(dir.path(), |bytes| bytes[0] = 9);
        assert!(matches!(error, ServerError::Version { found: 9, expected: STATE_VERSION, .. }), "{error}");
    }

    #[test]
    fn damage_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let error = with_state_bytes(dir.path(), |bytes| *bytes.last_mut().unwrap() ^= 1);
        assert!(matches!(error, ServerError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("checksum"), "{error}");
        let error = with_state_bytes(tempfile::tempdir().unwrap().path(), |bytes| bytes.truncate(3));
        assert!(matches!(error, ServerError::Damaged { .. }), "{error}");
        fs::write(dir.path().join(FILE), vec![0x5a; 8192]).unwrap();
        let error = Database::open(dir.path(), RangeMap::new(4), 2, Update::Batch).err().unwrap();
        assert!(matches!(error, ServerError::Damaged { .. }), "{error}");
    }
}
