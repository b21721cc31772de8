//! The spool: pages that were fetched and that the repository has not acknowledged yet.
//!
//! ```text
//!   spool.0, spool.1                          a page
//!   OFFSET  SIZE  FIELD                       OFFSET  SIZE  FIELD
//!        0     4  magic "WBS1"                     0     4  length of what follows the sum, n
//!        4     8  number of the batch, from 1      4     8  CRC-64 of that
//!       12     …  pages                           12     …  facts and the length of the head, h (postcard)
//!                                                  …     h  HTTP head
//!                                                  …     …  body: the rest of n
//! ```
//!
//! Pages follow each other; the first that is torn or wrong is the end. A batch is durable here before the frontier calls it read, and
//! its file is emptied when the repository has acknowledged it; batches take the two files in turn, so that one can be on its way to the
//! repository while the next is read. So a page that was fetched is never fetched again because of a kill, and never lost: what is found
//! here at the start is taken as if it had just come.
//!
//! Emptying is not synced: after a power cut a batch may be there again. Adding a page twice is harmless: both are the same version.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Seek, SeekFrom, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use webbase_storage::{crc64, crc64_of_parts};

use crate::frontier::UrlId;

const MAGIC: [u8; 4] = *b"WBS1";
const HEADER_BYTES: usize = 12;
/// A longer page is not believed.
const PAGE_BYTES_MAX: usize = 256 << 20;
const FRAME_BYTES: usize = 12;

/// A page in the spool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spooled {
    pub(super) facts: Facts,
    pub(super) head: Vec<u8>,
    pub(super) body: Vec<u8>,
}

/// What is known of a page in the spool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Facts {
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
}

pub(super) struct Spool {
    files: [File; 2],
    /// The batch that was not emptied for longest, and the one to come. Batch 0 is what the last run left, in both files.
    oldest: u64,
    next: u64,
}

impl Spool {
    /// Opens or makes the spool of a crawl, and reads what is in it. That is its first batch: nothing is written before it is cleared.
    pub(super) fn open(dir: &Path) -> io::Result<(Spool, Vec<Spooled>)> {
        let mut batches = Vec::new();
        let mut open = |name: &str| {
            let path = dir.join(name);
            let mut file =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            batches.extend(read(&bytes).map_err(|why| io::Error::other(format!("{name}: {why}")))?);
            Ok::<File, io::Error>(file)
        };
        let files = [open("spool.0")?, open("spool.1")?];
        batches.sort_by_key(|(number, _)| *number);
        let left = batches.into_iter().flat_map(|(_, pages)| pages).collect();
        Ok((Spool { files, oldest: 0, next: 1 }, left))
    }

    /// Writes a batch; durable when it returns. At most one other is not cleared.
    pub(super) fn write(&mut self, pages: &[Spooled]) -> io::Result<()> {
        assert!(self.oldest > 0 && self.next - self.oldest < 2, "a batch has to be cleared first");
        let number = self.next;
        self.next += 1;
        if pages.is_empty() {
            return Ok(());
        }
        // Bodies go to the file as they are; what stands between them is gathered, so that there are few writes.
        let (mut between, mut small) = (Vec::new(), [MAGIC.as_slice(), &number.to_le_bytes()].concat());
        for page in pages {
            let facts = (&page.facts, page.head.len() as u64);
            let facts = postcard::to_stdvec(&facts).map_err(io::Error::other)?;
            let parts = [facts.as_slice(), &page.head, &page.body];
            let length = parts.iter().map(|part| part.len()).sum::<usize>();
            let length = u32::try_from(length).map_err(io::Error::other)?;
            small.extend_from_slice(&length.to_le_bytes());
            small.extend_from_slice(&crc64_of_parts(&parts).to_le_bytes());
            small.extend_from_slice(&facts);
            small.extend_from_slice(&page.head);
            between.push(std::mem::take(&mut small));
        }
        let slices = between.iter().zip(pages).flat_map(|(small, page)| [small.as_slice(), &page.body]);
        let mut slices: Vec<IoSlice<'_>> = slices.map(IoSlice::new).collect();
        let file = self.file(number);
        file.seek(SeekFrom::Start(0))?;
        write_all(file, &mut slices)?;
        file.sync_data()
    }

    /// Forgets the oldest batch, which the repository has acknowledged.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        match self.oldest {
            0 => self.files.iter().try_for_each(|file| file.set_len(0))?,
            number => self.file(number).set_len(0)?,
        }
        self.oldest += 1;
        Ok(())
    }

    fn file(&mut self, number: u64) -> &mut File {
        let [even, odd] = &mut self.files;
        if number.is_multiple_of(2) { even } else { odd }
    }
}

/// Writes all slices, as many at a time as the system takes.
fn write_all(file: &mut File, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    IoSlice::advance_slices(&mut slices, 0); // without those that are empty
    while !slices.is_empty() {
        match file.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// A batch: its number, and the whole pages at the front; none where nothing was written, or not even the header.
fn read(bytes: &[u8]) -> Result<Option<(u64, Vec<Spooled>)>, &'static str> {
    let Some((header, mut rest)) = bytes.split_at_checked(HEADER_BYTES) else { return Ok(None) };
    if header.iter().all(|byte| *byte == 0) {
        return Ok(None); // a power cut left the length and not the bytes
    }
    let Some((&MAGIC, number)) = header.split_first_chunk() else {
        return Err("not a spool of this version: crawl into another folder");
    };
    let number = number.try_into().map_or(0, u64::from_le_bytes);
    let mut pages = Vec::new();
    while let Some((page, after)) = read_page(rest) {
        pages.push(page);
        rest = after;
    }
    Ok(Some((number, pages)))
}

/// The page at the front, if it is whole, and what follows it.
fn read_page(bytes: &[u8]) -> Option<(Spooled, &[u8])> {
    let (frame, rest) = bytes.split_at_checked(FRAME_BYTES)?;
    let (length, crc) = frame.split_first_chunk()?;
    let length = Some(u32::from_le_bytes(*length) as usize).filter(|length| *length <= PAGE_BYTES_MAX)?;
    let (page, rest) = rest.split_at_checked(length)?;
    if crc64(page) != u64::from_le_bytes(crc.try_into().ok()?) {
        return None;
    }
    let ((facts, head_bytes), content) = postcard::take_from_bytes::<(Facts, u64)>(page).ok()?;
    let (head, body) = content.split_at_checked(usize::try_from(head_bytes).ok()?)?;
    Some((Spooled { facts, head: head.to_vec(), body: body.to_vec() }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(number: u32) -> Spooled {
        let facts = Facts {
            id: number,
            url: format!("http://a.example/{number}"),
            fetched_at_ms: 5,
            modified_at_ms: None,
            etag: Some("\"x\"".to_owned()),
            status: 200,
            mime: "text/html".to_owned(),
            coding: String::new(),
            location: None,
        };
        Spooled { facts, head: b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), body: vec![b'x'; 10] }
    }

    /// A spool that has nothing from before.
    fn open(dir: &Path) -> Spool {
        let (mut spool, left) = Spool::open(dir).unwrap();
        assert!(left.is_empty());
        spool.clear().unwrap();
        spool
    }

    #[test]
    fn two_batches_are_kept_until_each_is_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = open(dir.path());
        let left = || Spool::open(dir.path()).unwrap().1;
        spool.write(&[page(1), page(2)]).unwrap();
        spool.write(&[page(3)]).unwrap();
        assert_eq!(left(), [page(1), page(2), page(3)]);
        spool.clear().unwrap();
        assert_eq!(left(), [page(3)]);
        // A batch takes the file of the one before the last, and still comes after the last.
        spool.write(&[page(4)]).unwrap();
        assert_eq!(left(), [page(3), page(4)]);
        spool.clear().unwrap();
        spool.write(&[]).unwrap();
        assert_eq!(left(), [page(4)]);
        drop(spool);
        let (mut spool, left) = Spool::open(dir.path()).unwrap();
        assert_eq!(left, [page(4)]);
        spool.clear().unwrap();
        assert!(Spool::open(dir.path()).unwrap().1.is_empty());
    }

    #[test]
    fn a_spool_cut_at_any_byte_has_the_pages_that_were_whole() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path()).write(&[page(1), page(2), page(3)]).unwrap();
        let bytes = std::fs::read(dir.path().join("spool.1")).unwrap();
        let each = (bytes.len() - HEADER_BYTES) / 3;
        for cut in 0..=bytes.len() {
            let whole = read(&bytes[..cut]).unwrap().map_or(0, |(_, pages)| pages.len());
            assert_eq!(whole, cut.saturating_sub(HEADER_BYTES) / each, "{cut}");
        }
        let mut flipped = bytes.clone();
        flipped[HEADER_BYTES + 2 * each + 20] ^= 1;
        assert_eq!(read(&flipped).unwrap().unwrap().1, [page(1), page(2)]);
        assert_eq!(read(&[0; 100]), Ok(None));
        assert!(read(b"another thing").is_err());
        std::fs::write(dir.path().join("spool.0"), "another thing").unwrap();
        let refused = Spool::open(dir.path()).map(|_| ()).unwrap_err().to_string();
        assert!(refused.starts_with("spool.0: not a spool of this version"), "{refused}");
    }
}
