//! What a read node remembers of removed pages, so that an old version that comes late does not bring one back.
//!
//! Tombstones belong to a generation and are the same on all its replicas: a file `tombstones-N` beside the store, N being
//! the number under which the store keeps the generation. Magic "WBTS" 4, version 4, the list as postcard writes it,
//! CRC-64 of all the above 8. No file is an empty list.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use webbase_storage::{PageKey, Version, crc64};

use super::file::replace;
use crate::cycle::message::Removal;
use crate::error::{NodeError, Result};

const HEAD: [u8; 8] = *b"WBTS\x01\0\0\0";

/// Removed pages: up to which version, and in which cycle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tombstones {
    all: BTreeMap<PageKey, (Version, u64)>,
}

#[derive(Serialize, Deserialize)]
struct Row {
    removal: Removal,
    cycle: u64,
}

impl Tombstones {
    fn path(dir: &Path, number: u64) -> PathBuf {
        dir.join(format!("tombstones-{number}"))
    }

    /// Those of the generation that the store keeps as `number`.
    pub(super) fn read(dir: &Path, number: u64) -> Result<Tombstones> {
        let path = Self::path(dir, number);
        match std::fs::read(&path) {
            Ok(bytes) => Tombstones::decode(&bytes).map_err(|what| super::file::damaged(&path, what)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Tombstones::default()),
            Err(e) => Err(NodeError::io("read", path.display(), e)),
        }
    }

    /// Makes them durable for the generation that the store keeps as `number`.
    pub(super) fn write(&self, dir: &Path, number: u64) -> Result<()> {
        if self.all.is_empty() {
            return Self::remove(dir, number);
        }
        let path = Self::path(dir, number);
        replace(&path, &self.encode()).map_err(|e| NodeError::io("write", path.display(), e))
    }

    /// Forgets those of a number.
    pub(super) fn remove(dir: &Path, number: u64) -> Result<()> {
        let path = Self::path(dir, number);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(NodeError::io("remove", path.display(), e)),
            _ => Ok(()),
        }
    }

    /// As bytes, on disk and on the wire.
    pub(super) fn encode(&self) -> Vec<u8> {
        let row = |(key, (bound, cycle)): (&PageKey, &(Version, u64))| Row {
            removal: Removal { key: *key, bound: *bound },
            cycle: *cycle,
        };
        let rows: Vec<Row> = self.all.iter().map(row).collect();
        let mut out = postcard::to_extend(&rows, HEAD.to_vec()).unwrap_or_default();
        out.extend_from_slice(&crc64(&out).to_le_bytes());
        out
    }

    /// Reads what `encode` wrote; nothing at all is an empty list.
    pub(super) fn decode(bytes: &[u8]) -> std::result::Result<Tombstones, String> {
        if bytes.is_empty() {
            return Ok(Tombstones::default());
        }
        let (body, crc) = bytes.split_last_chunk::<8>().ok_or("cut short")?;
        let (expected, found) = (crc64(body), u64::from_le_bytes(*crc));
        if expected != found {
            return Err(format!("damaged: expected CRC-64 {expected:016x}, found {found:016x}"));
        }
        let rows = body.strip_prefix(&HEAD).ok_or("not tombstones of this version")?;
        let rows: Vec<Row> = postcard::from_bytes(rows).map_err(|e| format!("unreadable: {e}"))?;
        let all = rows.into_iter().map(|row| (row.removal.key, (row.removal.bound, row.cycle))).collect();
        Ok(Tombstones { all })
    }

    /// Whether this version of a page was removed.
    pub(super) fn bar(&self, key: PageKey, version: Version) -> bool {
        self.all.get(&key).is_some_and(|(bound, _)| version <= *bound)
    }

    /// Adds a removal of a cycle.
    pub(super) fn add(&mut self, removal: &Removal, cycle: u64) {
        let row = self.all.entry(removal.key).or_insert((removal.bound, cycle));
        *row = (row.0.max(removal.bound), cycle);
    }

    /// Forgets those of cycles up to this one, and those that `keep` does not want.
    pub(super) fn retain(&mut self, forget_through: u64, keep: impl Fn(PageKey, Version) -> bool) {
        self.all.retain(|key, (bound, cycle)| *cycle > forget_through && keep(*key, *bound));
    }

    /// Takes those that `want` wants from another node's.
    pub(super) fn take(&mut self, other: &Tombstones, want: impl Fn(PageKey, Version) -> bool) {
        let wanted = other.all.iter().filter(|(key, (bound, _))| want(**key, *bound));
        self.all.extend(wanted.map(|(k, v)| (*k, *v)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use webbase_storage::PageId;

    #[test]
    fn they_read_back_and_bar_what_was_removed() {
        let key = |id| PageKey { id: PageId(id), tie: 1 };
        let version = |at| Version { fetched_at_ms: at, epoch: 0, digest: 5 };
        let mut tombstones = Tombstones::default();
        tombstones.add(&Removal { key: key(1), bound: version(10) }, 4);
        tombstones.add(&Removal { key: key(2), bound: version(10) }, 5);
        let dir = tempfile::tempdir().unwrap();
        tombstones.write(dir.path(), 3).unwrap();
        assert_eq!(Tombstones::read(dir.path(), 3).unwrap(), tombstones);
        assert_eq!(Tombstones::read(dir.path(), 4).unwrap(), Tombstones::default());
        assert!(tombstones.bar(key(1), version(10)) && !tombstones.bar(key(1), version(11)));
        assert!(!tombstones.bar(key(3), version(1)));
        tombstones.retain(4, |_, _| true);
        assert!(!tombstones.bar(key(1), version(10)) && tombstones.bar(key(2), version(9)));
        let mut bytes = tombstones.encode();
        bytes[9] ^= 1;
        assert!(Tombstones::decode(&bytes).is_err());
    }
}
