//! The journal: what was assigned since the last run was written. Little-endian, but for keys.
//!
//! ```text
//!   0  8  "WBGJ", version          then frames, one for each commit:
//!   0  4  entries    4  4  the same with all bits turned    8   entries × 18: key 16, big-endian; range 2    then 8  CRC-64
//! ```
//!
//! 1. A frame is synced before anything in it is told to anybody, and before the next one is written.
//! 2. So a frame that the end of the file cuts off was told to nobody, and is cut away. Any other bad frame is damage: then
//!    the index is made anew.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use webbase_storage::crc64;
use webbase_storage::disk::{Disk, DiskFile};

use super::run::Entry;
use crate::ServerError;

const HEAD: [u8; 8] = *b"WBGJ\x01\0\0\0";
const ENTRY_BYTES: usize = 18;

/// The journal that is being written.
#[derive(Debug)]
pub(super) struct Journal {
    pub(super) number: u64,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    bytes: u64,
}

pub(super) fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("journal-{number}"))
}

impl Journal {
    /// Makes an empty one; its name is durable when the folder is synced.
    pub(super) fn create(disk: &dyn Disk, dir: &Path, number: u64) -> Result<Journal, ServerError> {
        let path = path(dir, number);
        let failed = |e| ServerError::io("create", &path, e);
        let file = disk.open(&path, true).map_err(failed)?;
        file.write_all_at(&HEAD, 0).map_err(failed)?;
        file.sync().map_err(failed)?;
        Ok(Journal { number, path, file, bytes: HEAD.len() as u64 })
    }

    /// Opens the journal of the manifest: what is in it, and where to go on.
    pub(super) fn open(
        disk: &dyn Disk,
        dir: &Path,
        number: u64,
    ) -> Result<(Journal, Vec<Entry>), ServerError> {
        let path = path(dir, number);
        let damaged = |what: String| ServerError::Damaged { path: path.clone(), what };
        let file = disk.open(&path, false).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => damaged("it is not there".into()),
            _ => ServerError::io("open", &path, e),
        })?;
        let failed = |e| ServerError::io("read", &path, e);
        let bytes = file.read_vec(file.len().map_err(failed)? as usize, 0).map_err(failed)?;
        let mut rest = bytes.strip_prefix(&HEAD).ok_or_else(|| damaged("its head is damaged".into()))?;
        let mut entries = Vec::new();
        loop {
            let at = bytes.len() - rest.len();
            match frame(rest).map_err(|what| damaged(format!("the frame at {at} {what}")))? {
                Some((some, behind)) => {
                    entries.extend(some);
                    rest = behind;
                }
                None if rest.is_empty() => break,
                None => {
                    let cut = file.set_len(at as u64).and_then(|()| file.sync());
                    cut.map_err(|e| ServerError::io("cut", &path, e))?;
                    break;
                }
            }
        }
        let bytes = (bytes.len() - rest.len()) as u64;
        Ok((Journal { number, path: path.clone(), file, bytes }, entries))
    }

    /// Appends a frame, and returns when it is durable.
    pub(super) fn append(&mut self, entries: &[Entry]) -> Result<(), ServerError> {
        let mut frame = Vec::with_capacity(16 + entries.len() * ENTRY_BYTES);
        let count = entries.len() as u32;
        frame.extend_from_slice(&count.to_le_bytes());
        frame.extend_from_slice(&(!count).to_le_bytes());
        for (key, range) in entries {
            frame.extend_from_slice(&key.to_be_bytes());
            frame.extend_from_slice(&range.to_le_bytes());
        }
        frame.extend_from_slice(&crc64(&frame).to_le_bytes());
        let written = self.file.write_all_at(&frame, self.bytes).and_then(|()| self.file.sync());
        written.map_err(|e| ServerError::io("write", &self.path, e))?;
        self.bytes += frame.len() as u64;
        Ok(())
    }

    /// What it occupies.
    pub(super) fn disk_bytes(&self) -> u64 {
        self.bytes
    }
}

/// A frame's entries, and what is behind it.
type Frame<'a> = (Vec<Entry>, &'a [u8]);

/// The first frame; `None` when the file ends first.
fn frame(bytes: &[u8]) -> Result<Option<Frame<'_>>, &'static str> {
    let Some((head, rest)) = bytes.split_first_chunk::<8>() else { return Ok(None) };
    let [a, b, c, d, e, f, g, h] = *head;
    let (count, turned) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
    if count != !turned {
        return Err("has a damaged head");
    }
    let Some(content) = rest.get(..count as usize * ENTRY_BYTES) else { return Ok(None) };
    let Some((check, behind)) = rest.get(content.len()..).unwrap_or_default().split_first_chunk::<8>() else {
        return Ok(None);
    };
    let checked = bytes.get(..8 + content.len()).unwrap_or_default();
    if crc64(checked) != u64::from_le_bytes(*check) {
        return Err("is damaged");
    }
    let entry = |entry: &[u8]| {
        let (key, range) = entry.split_first_chunk::<16>()?;
        Some((u128::from_be_bytes(*key), u16::from_le_bytes(*range.first_chunk::<2>()?)))
    };
    Ok(Some((content.chunks_exact(ENTRY_BYTES).filter_map(entry).collect(), behind)))
}
