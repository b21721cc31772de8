//! The spool: pages that were fetched and that the repository has not acknowledged yet.
//!
//! ```text
//!   OFFSET  SIZE  FIELD
//!        0     4  length of the page, n
//!        4     8  CRC-64 of the page
//!       12     n  the page (postcard, `Spooled`)
//! ```
//!
//! Entries follow each other; the first that is torn or wrong is the end. A batch is durable here before the frontier calls it
//! read, and the file is emptied when the repository has acknowledged it. So a page that was fetched is never fetched again because
//! of a kill, and never lost: what is found here at the start is taken as if it had just come. Adding a page twice is harmless: both
//! are the same version.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::frontier::UrlId;

/// A longer page is not believed.
const PAGE_BYTES_MAX: usize = 256 << 20;
const FRAME_BYTES: usize = 12;

/// A page in the spool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Spooled {
    pub(super) id: UrlId,
    pub(super) url: String,
    pub(super) fetched_at_ms: u64,
    pub(super) modified_at_ms: Option<u64>,
    pub(super) etag: Option<String>,
    pub(super) status: u16,
    pub(super) mime: String,
    /// The content coding, so that the page can be read again.
    pub(super) coding: String,
    /// Where it redirects to.
    pub(super) location: Option<String>,
    pub(super) head: Vec<u8>,
    pub(super) body: Vec<u8>,
}

pub(super) struct Spool {
    file: File,
}

impl Spool {
    /// Opens or makes the spool of a crawl, and reads what is in it.
    pub(super) fn open(dir: &Path) -> io::Result<(Spool, Vec<Spooled>)> {
        let path = dir.join("spool");
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok((Spool { file }, read(&bytes)))
    }

    /// Writes pages; durable when it returns.
    pub(super) fn write(&mut self, pages: &[Spooled]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for page in pages {
            let page = postcard::to_stdvec(page).map_err(io::Error::other)?;
            let length = u32::try_from(page.len()).map_err(io::Error::other)?;
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(&sum(&page).to_le_bytes());
            bytes.extend_from_slice(&page);
        }
        self.file.seek(SeekFrom::End(0))?;
        self.file.write_all(&bytes)?;
        self.file.sync_data()
    }

    /// Forgets what the repository has acknowledged: all of it.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.sync_data()
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let mut digest = crc64fast::Digest::new();
    digest.write(bytes);
    digest.sum64()
}

/// The whole pages at the front.
fn read(mut bytes: &[u8]) -> Vec<Spooled> {
    let mut pages = Vec::new();
    while let Some((frame, rest)) = bytes.split_at_checked(FRAME_BYTES) {
        let Some((length, crc)) = frame.split_at_checked(4) else { break };
        let (Ok(length), Ok(crc)) = (length.try_into(), crc.try_into()) else { break };
        let length = u32::from_le_bytes(length) as usize;
        if length > PAGE_BYTES_MAX {
            break;
        }
        let Some((page, rest)) = rest.split_at_checked(length) else { break };
        if sum(page) != u64::from_le_bytes(crc) {
            break;
        }
        let Ok(page) = postcard::from_bytes(page) else { break };
        pages.push(page);
        bytes = rest;
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(number: u32) -> Spooled {
        Spooled {
            id: number,
            url: format!("http://a.example/{number}"),
            fetched_at_ms: 5,
            modified_at_ms: None,
            etag: Some("\"x\"".to_owned()),
            status: 200,
            mime: "text/html".to_owned(),
            coding: String::new(),
            location: None,
            head: b"HTTP/1.1 200 OK\r\n\r\n".to_vec(),
            body: vec![b'x'; 10],
        }
    }

    #[test]
    fn a_spool_cut_at_any_byte_has_the_pages_that_were_whole() {
        let dir = tempfile::tempdir().unwrap();
        let (mut spool, before) = Spool::open(dir.path()).unwrap();
        assert!(before.is_empty());
        spool.write(&[page(1), page(2)]).unwrap();
        let one = std::fs::read(dir.path().join("spool")).unwrap().len();
        spool.write(&[page(3)]).unwrap();
        drop(spool);
        let bytes = std::fs::read(dir.path().join("spool")).unwrap();
        assert_eq!(Spool::open(dir.path()).unwrap().1, [page(1), page(2), page(3)]);
        for cut in 0..bytes.len() {
            let whole = read(&bytes[..cut]);
            assert_eq!(whole.len(), if cut >= one { 2 } else { usize::from(cut >= one / 2) }, "{cut}");
        }
        let mut flipped = bytes.clone();
        flipped[one + 20] ^= 1;
        assert_eq!(read(&flipped).len(), 2);
        let (mut spool, _) = Spool::open(dir.path()).unwrap();
        spool.clear().unwrap();
        assert!(Spool::open(dir.path()).unwrap().1.is_empty());
    }
}
