//! The manifest: which files are the index. Replaced as a whole, so that one write decides. Little-endian.
//!
//! ```text
//!    0  8  "WBGI", version              8  8  the repository's key, as a checksum
//!   16  8  the journal's number        24  4  1 if every page is in the index, else 0
//!   28  4  runs                        32     each: number 8, entries 8; oldest first
//!   then 8  CRC-64 of all the above
//! ```

use std::path::Path;

use webbase_storage::crc64;
use webbase_storage::disk::Disk;

use crate::ServerError;

const HEAD: [u8; 8] = *b"WBGI\x01\0\0\0";
const FILE: &str = "MANIFEST";
const NEW_FILE: &str = "MANIFEST.new";

/// What the manifest says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) repository: u64,
    pub(super) journal: u64,
    pub(super) complete: bool,
    /// Numbers and entries of the runs, oldest first.
    pub(super) runs: Vec<(u64, u64)>,
}

impl Manifest {
    /// Reads it; `None` if there is none.
    pub(super) fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<Manifest>, ServerError> {
        let path = dir.join(FILE);
        let file = match disk.open(&path, false) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|e| ServerError::io("open", &path, e))?,
        };
        let failed = |e| ServerError::io("read", &path, e);
        let bytes = file.read_vec(file.len().map_err(failed)? as usize, 0).map_err(failed)?;
        let damaged = || ServerError::Damaged { path: path.clone(), what: "its checksum is wrong".into() };
        decode(&bytes).map(Some).ok_or_else(damaged)
    }

    /// Replaces it. The files it names must be durable, and their names too.
    pub(super) fn write(&self, disk: &dyn Disk, dir: &Path) -> Result<(), ServerError> {
        let (path, new) = (dir.join(FILE), dir.join(NEW_FILE));
        let failed = |e| ServerError::io("write", &path, e);
        let file = disk.open(&new, true).map_err(failed)?;
        file.write_all_at(&self.encode(), 0).map_err(failed)?;
        file.sync().map_err(failed)?;
        disk.rename(&new, &path).map_err(failed)?;
        disk.sync_dir(dir).map_err(failed)
    }

    /// Whether it names a file of the folder.
    pub(super) fn names(&self, file: &str) -> bool {
        let number = |prefix| file.strip_prefix(prefix).and_then(|n: &str| n.parse::<u64>().ok());
        file == FILE
            || file == "LOCK"
            || number("journal-") == Some(self.journal)
            || number("run-").is_some_and(|n| self.runs.iter().any(|(run, _)| *run == n))
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = HEAD.to_vec();
        out.extend_from_slice(&self.repository.to_le_bytes());
        out.extend_from_slice(&self.journal.to_le_bytes());
        out.extend_from_slice(&u32::from(self.complete).to_le_bytes());
        out.extend_from_slice(&(self.runs.len() as u32).to_le_bytes());
        for (number, entries) in &self.runs {
            out.extend_from_slice(&number.to_le_bytes());
            out.extend_from_slice(&entries.to_le_bytes());
        }
        out.extend_from_slice(&crc64(&out).to_le_bytes());
        out
    }
}

/// Bytes as a manifest: what is read can be written and read again.
#[cfg(any(fuzzing, test))]
pub(super) fn fuzz(bytes: &[u8]) {
    if let Some(manifest) = decode(bytes) {
        assert_eq!(decode(&manifest.encode()), Some(manifest));
    }
}

fn decode(bytes: &[u8]) -> Option<Manifest> {
    let (content, check) = bytes.split_last_chunk::<8>()?;
    if crc64(content) != u64::from_le_bytes(*check) {
        return None;
    }
    let rest = content.strip_prefix(&HEAD)?;
    let (repository, rest) = rest.split_first_chunk::<8>()?;
    let (journal, rest) = rest.split_first_chunk::<8>()?;
    let (complete, rest) = rest.split_first_chunk::<4>()?;
    let (_, rest) = rest.split_first_chunk::<4>()?;
    let number = |bytes: &[u8]| bytes.first_chunk::<8>().map(|b| u64::from_le_bytes(*b));
    let run = |row: &[u8]| Some((number(row)?, number(row.get(8..)?)?));
    Some(Manifest {
        repository: u64::from_le_bytes(*repository),
        journal: u64::from_le_bytes(*journal),
        complete: u32::from_le_bytes(*complete) == 1,
        runs: rest.chunks(16).map(run).collect::<Option<_>>()?,
    })
}
