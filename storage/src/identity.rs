//! What a store is: the file `STORE`, written once when the store is created, and a copy beside it.
//!
//! ```text
//!    0   4  magic "WBST"
//!    4   4  version
//!    8   1  organization: 1 log, 2 hash, 3 hashed-log
//!    9   1  id bits, 64 but in tests
//!   10   2  zero
//!   12   4  bytes of a bucket or log, 0 for the log organization
//!   16  32  repository key
//!   48   8  CRC-64 of the above
//! ```

use std::path::{Path, PathBuf};

use crate::disk::{self, Disk};
use crate::error::{Result, StorageError};
use crate::page::RepositoryKey;
use crate::record::crc64;
use crate::store::Organization;

const MAGIC: [u8; 4] = *b"WBST";
/// The format version of everything in a store.
pub(crate) const VERSION: u32 = 1;
const BYTES: usize = 56;

/// What a store was created as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) organization: Organization,
    pub(crate) key: RepositoryKey,
    /// Bytes of a bucket or log.
    pub(crate) unit_bytes: u32,
}

fn path(dir: &Path) -> PathBuf {
    dir.join("STORE")
}

fn copy_path(dir: &Path) -> PathBuf {
    dir.join("STORE.copy")
}

impl Identity {
    /// Whether a store may be created in `dir`: it is empty, but for what a creation cut off half-way leaves.
    pub(crate) fn check_empty(disk: &dyn Disk, dir: &Path) -> Result<()> {
        let names = disk.list(dir).map_err(|e| StorageError::io("list", dir, e))?;
        let ours = |name: &str| {
            ["LOCK", "STORE.copy", "MANIFEST", "segment-0000000001", "dead-2", "slots", "directory"]
                .contains(&name.strip_suffix(".next").unwrap_or(name))
        };
        let half_made =
            !names.iter().any(|n| n == "STORE") && names.iter().all(|n| ours(n) || n == "STORE.next");
        if half_made {
            return Ok(());
        }
        let what = match names.iter().find(|n| !ours(n)) {
            _ if names.iter().any(|n| n == "STORE") => "there is a store already; open it".into(),
            Some(name) => format!("it is not empty, there is {name:?}"),
            None => "it is not empty".into(),
        };
        Err(StorageError::NotAStore { path: dir.to_path_buf(), what })
    }

    /// Writes the identity of a new store: the last step of creating one.
    pub(crate) fn create(&self, disk: &dyn Disk, dir: &Path) -> Result<()> {
        // The copy first: a store exists once STORE is there.
        disk::replace_file(disk, &copy_path(dir), &self.encode())?;
        disk::replace_file(disk, &path(dir), &self.encode())
    }

    /// Reads the identity of the store in `dir`, from the copy if need be.
    pub(crate) fn read(disk: &dyn Disk, dir: &Path) -> Result<Identity> {
        match read_one(disk, dir, &path(dir)) {
            Ok(identity) => Ok(identity),
            Err(first @ StorageError::Version { .. }) => Err(first),
            Err(first) => {
                let identity = read_one(disk, dir, &copy_path(dir)).map_err(|_| first)?;
                disk::replace_file(disk, &path(dir), &identity.encode())?;
                Ok(identity)
            }
        }
    }

    fn encode(&self) -> Vec<u8> {
        let (key, id_bits) = self.key.parts();
        let mut out = Vec::with_capacity(BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[self.organization as u8, id_bits, 0, 0]);
        out.extend_from_slice(&self.unit_bytes.to_le_bytes());
        out.extend_from_slice(&key);
        out.extend_from_slice(&crc64(&out).to_le_bytes());
        out
    }
}

/// Checks both copies.
pub(crate) fn verify(disk: &dyn Disk, dir: &Path) -> Result<()> {
    for path in [path(dir), copy_path(dir)] {
        read_one(disk, dir, &path).map_err(|e| match e {
            StorageError::NotAStore { what, .. } => StorageError::corrupt(&path, 0, what),
            e => e,
        })?;
    }
    Ok(())
}

/// Writes both copies anew.
pub(crate) fn rewrite(
    disk: &dyn Disk,
    dir: &Path,
    key: &RepositoryKey,
    organization: Organization,
    unit_bytes: u32,
) -> Result<()> {
    Identity { organization, key: *key, unit_bytes }.create(disk, dir)
}

fn read_one(disk: &dyn Disk, dir: &Path, path: &Path) -> Result<Identity> {
    let not_a_store = |what: String| StorageError::NotAStore { path: dir.to_path_buf(), what };
    let bytes = match disk::read_file(disk, path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(not_a_store("there is no file STORE".into()));
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => {
            return Err(not_a_store("it is not a folder".into()));
        }
        Err(e) => return Err(StorageError::io("read", path, e)),
    };
    let word = |at: usize| bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
    if bytes.get(..4) != Some(&MAGIC) {
        return Err(not_a_store("its file STORE has another format".into()));
    }
    let found = word(4).unwrap_or(0);
    let good_crc =
        bytes.split_last_chunk::<8>().is_some_and(|(rest, crc)| crc64(rest) == u64::from_le_bytes(*crc));
    if good_crc && found != VERSION {
        return Err(StorageError::Version { path: path.to_path_buf(), found, expected: VERSION });
    }
    let organization = match bytes.get(8) {
        Some(1) => Organization::Log,
        Some(2) => Organization::Hash,
        Some(3) => Organization::HashedLog,
        _ => return Err(StorageError::corrupt(path, 8, "unknown organization")),
    };
    let parts = (bytes.get(9), word(12), bytes.get(16..48).and_then(|b| b.try_into().ok()));
    match parts {
        (Some(&id_bits), Some(unit_bytes), Some(key)) if good_crc && bytes.len() == BYTES => {
            Ok(Identity { organization, key: RepositoryKey::weak(key, id_bits), unit_bytes })
        }
        _ => Err(StorageError::corrupt(path, 0, "checksum does not hold")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimDisk;

    fn identity() -> Identity {
        Identity { organization: Organization::Hash, key: RepositoryKey::new([3; 32]), unit_bytes: 65536 }
    }

    #[test]
    fn an_identity_is_read_back_even_when_one_copy_is_damaged() {
        let (disk, dir) = (SimDisk::new(), Path::new("/s"));
        identity().create(&disk, dir).unwrap();
        for offset in 0..BYTES as u64 {
            disk.flip(&path(dir), offset, 8);
            assert_eq!(Identity::read(&disk, dir).unwrap(), identity(), "byte {offset}");
        }
    }

    #[test]
    fn strangers_are_refused_by_name() {
        let (disk, dir) = (SimDisk::new(), Path::new("/s"));
        let none = Identity::read(&disk, dir).unwrap_err();
        assert!(none.to_string().contains("/s is not a store"), "{none}");
        disk.open(Path::new("/s/letter.txt"), true).unwrap();
        let full = Identity::check_empty(&disk, dir).unwrap_err();
        assert!(full.to_string().contains("letter.txt"), "{full}");
    }

    #[test]
    fn another_version_is_named() {
        let (disk, dir) = (SimDisk::new(), Path::new("/s"));
        let mut bytes = identity().encode();
        bytes[4] = 9;
        let body = bytes[..48].to_vec();
        bytes[48..].copy_from_slice(&crc64(&body).to_le_bytes());
        disk::replace_file(&disk, &path(dir), &bytes).unwrap();
        let e = Identity::read(&disk, dir).unwrap_err();
        assert!(e.to_string().contains("format version 9"), "{e}");
    }
}
