//! The file `NODE`: who a node is and where it stands, replaced as a whole with each change.
//!
//! ```text
//!   0  4  magic "WBND"    4  4  version
//!   8  n  NodeFile, as postcard writes it
//!   …  8  CRC-64 of all the above
//! ```
//!
//! 1. What a store keeps beyond what this file names was left by something that a kill interrupted, and is let go.
//! 2. A number under which the store keeps a generation is never used twice: ranges that are added to a generation make
//!    it a new kept state under the next number.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use webbase_storage::crc64;

use crate::cycle::message::NodeId;
use crate::cycle::{ReadDurable, UpdateDurable};
use crate::error::{NodeError, Result};
use crate::plan::Repository;

const MAGIC: [u8; 4] = *b"WBND";
const VERSION: u32 = 2;
const NAME: &str = "NODE";

/// What a node knows of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeFile {
    pub(super) id: NodeId,
    /// How often it was started.
    pub(super) boot: u64,
    /// The repository it belongs to, once it was welcomed.
    pub(super) repository: Option<Repository>,
    pub(super) update: Option<UpdateDurable>,
    pub(super) read: Option<ReadDurable>,
    /// Under which number the store keeps each generation.
    pub(super) numbers: BTreeMap<u64, u64>,
    /// The next such number.
    pub(super) next_number: u64,
}

impl NodeFile {
    /// Reads the file in `dir`; `None` when there is none.
    pub(super) fn read(dir: &Path) -> Result<Option<NodeFile>> {
        let path = dir.join(NAME);
        match std::fs::read(&path) {
            Ok(bytes) => decode(&bytes).map(Some).map_err(|what| damaged(&path, what)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(NodeError::io("read", path.display(), e)),
        }
    }

    /// Replaces the file in `dir`; durable when it returns.
    pub(super) fn write(&self, dir: &Path) -> Result<()> {
        let path = dir.join(NAME);
        replace(&path, &encode(self)).map_err(|e| NodeError::io("write", path.display(), e))
    }
}

pub(super) fn damaged(path: &Path, what: String) -> NodeError {
    NodeError::Storage(std::sync::Arc::new(webbase_storage::StorageError::Corrupt {
        path: path.to_path_buf(),
        offset: 0,
        what,
    }))
}

fn encode(file: &NodeFile) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&VERSION.to_le_bytes());
    // Writing to memory fails for types that postcard cannot encode; a test encodes this one.
    out = postcard::to_extend(file, out).unwrap_or_default();
    out.extend_from_slice(&crc64(&out).to_le_bytes());
    out
}

fn decode(bytes: &[u8]) -> std::result::Result<NodeFile, String> {
    let (body, crc) = bytes.split_last_chunk::<8>().ok_or("cut short")?;
    let body = body.strip_prefix(&MAGIC).ok_or("not the file of a node")?;
    let (version, body) = body.split_first_chunk::<4>().ok_or("cut short")?;
    if u32::from_le_bytes(*version) != VERSION {
        return Err(format!("version {}, this program reads {VERSION}", u32::from_le_bytes(*version)));
    }
    let (expected, found) =
        (crc64(bytes.get(..bytes.len() - 8).unwrap_or_default()), u64::from_le_bytes(*crc));
    if expected != found {
        return Err(format!("damaged: expected CRC-64 {expected:016x}, found {found:016x}"));
    }
    postcard::from_bytes(body).map_err(|e| format!("unreadable: {e}"))
}

/// Bytes as a node's file.
#[cfg(any(fuzzing, test))]
pub(super) fn fuzz(bytes: &[u8]) {
    if let Ok(file) = decode(bytes) {
        assert_eq!(decode(&encode(&file)), Ok(file));
    }
}

/// Replaces a file so that a kill leaves the old or the new one.
pub(super) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut next = path.as_os_str().to_owned();
    next.push(".next");
    let next = PathBuf::from(next);
    let mut file = std::fs::File::create(&next)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&next, path)?;
    sync_folder_of(path)
}

/// Makes names in the folder of `path` durable.
pub(super) fn sync_folder_of(path: &Path) -> io::Result<()> {
    std::fs::File::open(path.parent().unwrap_or(path))?.sync_all()
}

#[cfg(test)]
pub(super) fn sample() -> Vec<u8> {
    encode(&tests::file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cycle::{RangeMap, RangeSet};
    use crate::plan::Update;

    pub(super) fn file() -> NodeFile {
        let mut read = ReadDurable { current: 3, ..ReadDurable::default() };
        read.kept.insert(3, [1, 70].into_iter().collect::<RangeSet>());
        NodeFile {
            id: NodeId(7),
            boot: 2,
            repository: Some(Repository {
                key: [9; 32],
                map: RangeMap::new(10),
                update: Update::Incremental,
            }),
            update: Some(UpdateDurable::default()),
            read: Some(read),
            numbers: [(0, 1), (3, 5)].into_iter().collect(),
            next_number: 6,
        }
    }

    #[test]
    fn a_node_file_reads_back_and_damage_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(NodeFile::read(dir.path()).unwrap(), None);
        let file = file();
        file.write(dir.path()).unwrap();
        assert_eq!(NodeFile::read(dir.path()).unwrap(), Some(file.clone()));
        let bytes = encode(&file);
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(decode(&bad).is_err(), "byte {at}");
            assert!(decode(&bytes[..at]).is_err(), "cut at {at}");
        }
    }
}
