//! Pages that were handed over and do not count yet: a journal, so that a kill between two commits loses no links.
//!
//! ```text
//!   OFFSET  SIZE  FIELD
//!        0     8  "WBLP", version 1 4
//!        8     …  batches, each: length n 8, CRC-64 of the pages 8, pages n (postcard, a list of `PageLinks`)
//! ```
//!
//! The first batch that is torn or wrong is the end: it was never acknowledged. A commit empties the file; the same page taken twice is
//! harmless.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use webbase_storage::crc64;

use super::{LinksError, PageLinks, Result};

const MAGIC: [u8; 8] = *b"WBLP\x01\0\0\0";

pub(super) struct Pending {
    path: PathBuf,
    file: File,
    is_empty: bool,
}

impl Pending {
    /// Opens or makes the journal of a folder, and reads what is in it.
    pub(super) fn open(dir: &Path) -> Result<(Pending, Vec<PageLinks>)> {
        let path = dir.join("pending");
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = open.map_err(LinksError::io("open", &path))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(LinksError::io("read", &path))?;
        let left = match bytes.strip_prefix(&MAGIC) {
            Some(batches) => read(batches),
            // Torn while it was made: nothing was acknowledged.
            None if MAGIC.starts_with(&bytes) => Vec::new(),
            None => return Err(LinksError::Damaged { path, what: "it is no journal of version 1" }),
        };
        let mut pending = Pending { path, file, is_empty: false };
        if left.is_empty() {
            pending.clear()?;
        }
        Ok((pending, left))
    }

    /// Writes a batch; durable when it returns.
    pub(super) fn write(&mut self, pages: &[PageLinks]) -> Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        let wrong = |e: postcard::Error| LinksError::io("write", &self.path)(std::io::Error::other(e));
        let batch = postcard::to_stdvec(pages).map_err(wrong)?;
        let mut bytes = (batch.len() as u64).to_le_bytes().to_vec();
        bytes.extend(crc64(&batch).to_le_bytes());
        bytes.extend(batch);
        self.is_empty = false;
        let end = self.file.seek(SeekFrom::End(0)).map_err(LinksError::io("write", &self.path))?;
        let written = self.file.write_all(&bytes).and_then(|()| self.file.sync_data());
        if written.is_err() {
            // Half a batch would hide those after it; where it cannot be cut off the next write says so again.
            let _ = self.file.set_len(end);
        }
        written.map_err(LinksError::io("write", &self.path))
    }

    /// Forgets what counts now: all of it.
    pub(super) fn clear(&mut self) -> Result<()> {
        if self.is_empty {
            return Ok(());
        }
        let cleared = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        let begun = cleared.and_then(|_| self.file.write_all(&MAGIC)).and_then(|()| self.file.sync_data());
        self.is_empty = begun.is_ok();
        begun.map_err(LinksError::io("write", &self.path))
    }
}

/// The whole batches at the front.
fn read(mut bytes: &[u8]) -> Vec<PageLinks> {
    let mut pages = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<8>()
        && let Some((crc, rest)) = rest.split_first_chunk::<8>()
        && let Ok(length) = usize::try_from(u64::from_le_bytes(*length))
        && let Some((batch, rest)) = rest.split_at_checked(length)
        && crc64(batch) == u64::from_le_bytes(*crc)
        && let Ok(batch) = postcard::from_bytes::<Vec<PageLinks>>(batch)
    {
        pages.extend(batch);
        bytes = rest;
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(number: u32) -> PageLinks {
        let url = format!("http://a.example/{number}");
        PageLinks { url, links: vec!["http://b.example/".to_owned()], of_interest: number.is_multiple_of(2) }
    }

    #[test]
    fn a_journal_cut_at_any_byte_has_the_batches_that_were_whole() {
        let dir = tempfile::tempdir().unwrap();
        let (mut pending, left) = Pending::open(dir.path()).unwrap();
        assert!(left.is_empty());
        pending.write(&[page(1), page(2)]).unwrap();
        let path = dir.path().join("pending");
        let one = std::fs::read(&path).unwrap().len();
        pending.write(&[page(3)]).unwrap();
        drop(pending);
        let bytes = std::fs::read(&path).unwrap();
        for cut in 0..=bytes.len() {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let (_, left) = Pending::open(dir.path()).unwrap();
            let whole = if cut == bytes.len() {
                3
            } else if cut >= one {
                2
            } else {
                0
            };
            assert_eq!(left.len(), whole, "{cut}");
        }
        let (mut pending, left) = Pending::open(dir.path()).unwrap();
        assert_eq!(left, [page(1), page(2), page(3)]);
        pending.clear().unwrap();
        drop(pending);
        assert!(Pending::open(dir.path()).unwrap().1.is_empty());
        std::fs::write(&path, b"something else").unwrap();
        assert!(Pending::open(dir.path()).is_err());
    }
}
