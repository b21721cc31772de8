//! What pages are worth while they are found: every page has *cash*, and deals it to the pages it links to when it is read.
//!
//! The idea of online page importance ([`Opic`](crate::importance::Opic)) for a set of pages that grows. A new page begins with 1.
//! A page that is read keeps half of what it had written down before and half of what it got since, deals 0.85 of that out in
//! equal shares, and begins again with 0.15. So what a page is worth is what it gets between two readings, 1 on average; a
//! page that nobody has read is worth what it got so far. Eight bytes a page.
//!
//! ```text
//!   the file `worth`: "WBCW", version 1 4, number of pages 8, cash of each 4, what was written down for each 4, CRC-64 of the above 8
//! ```
//!
//! It is written now and then. After a kill pages have what they had then: worth is an estimate, and mends itself. So what is damaged,
//! or from before there were versions, is as if it were not there; a file of a later version is refused.

use std::io;
use std::path::Path;

use super::summed_file::{self, summed, unsummed};

const MAGIC: [u8; 4] = *b"WBCW";
const VERSION: u32 = 1;
const DEALT: f32 = 0.85;

#[derive(Debug, Default)]
pub(super) struct Worth {
    cash: Vec<f32>,
    kept: Vec<f32>,
}

impl Worth {
    /// Opens what was saved, if anything was that makes sense.
    pub(super) fn open(path: &Path) -> io::Result<Worth> {
        let Some(bytes) = summed_file::read(path)? else { return Ok(Worth::default()) };
        let wrong = |what| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()));
        Worth::decode(&bytes).map(Option::unwrap_or_default).map_err(wrong)
    }

    /// Reads a file; `None` when it is damaged, or none.
    fn decode(bytes: &[u8]) -> Result<Option<Worth>, String> {
        let Some(body) = unsummed(bytes).and_then(|body| body.strip_prefix(&MAGIC)) else { return Ok(None) };
        let Some((version, body)) = body.split_first_chunk::<4>() else { return Ok(None) };
        match u32::from_le_bytes(*version) {
            VERSION => Ok(numbers(body)),
            found => Err(format!(
                "it has version {found}, this program knows {VERSION}: remove it, and what pages are worth is found out anew"
            )),
        }
    }

    /// Writes it beside the file, and then in its place.
    pub(super) fn save(&self, path: &Path) -> io::Result<()> {
        summed_file::replace(path, &self.encode())
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = [MAGIC, VERSION.to_le_bytes()].concat();
        bytes.extend_from_slice(&(self.cash.len() as u64).to_le_bytes());
        for number in self.cash.iter().chain(&self.kept) {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        summed(bytes)
    }

    /// There are so many pages.
    pub(super) fn grow(&mut self, pages: usize) {
        if pages > self.cash.len() {
            self.cash.resize(pages, 1.0);
            self.kept.resize(pages, 0.0);
        }
    }

    /// A page was read, and has so many links: what each of them gets.
    pub(super) fn read(&mut self, page: u32, links: usize) -> f32 {
        let at = page as usize;
        let (Some(cash), Some(kept)) = (self.cash.get_mut(at), self.kept.get_mut(at)) else { return 0.0 };
        let got = std::mem::replace(cash, 1.0 - DEALT);
        *kept = if *kept > 0.0 { (*kept + got) / 2.0 } else { got };
        if links > 0 { DEALT * got / links as f32 } else { 0.0 }
    }

    /// A page gets something.
    pub(super) fn deal(&mut self, page: u32, share: f32) {
        if let Some(cash) = self.cash.get_mut(page as usize) {
            *cash += share;
        }
    }

    /// What a page is worth.
    pub(super) fn of(&self, page: u32) -> f64 {
        let at = page as usize;
        let worth = self.cash.get(at).zip(self.kept.get(at)).map_or(1.0, |(cash, kept)| cash.max(*kept));
        f64::from(worth)
    }
}

/// The number of pages, their cash, and what was written down for them.
fn numbers(body: &[u8]) -> Option<Worth> {
    let (count, rest) = body.split_first_chunk::<8>()?;
    let (numbers, []) = rest.as_chunks::<4>() else { return None };
    let count = usize::try_from(u64::from_le_bytes(*count)).ok()?;
    let (cash, kept) = numbers.split_at_checked(count).filter(|(cash, kept)| cash.len() == kept.len())?;
    let read = |numbers: &[[u8; 4]]| numbers.iter().map(|four| f32::from_le_bytes(*four)).collect();
    Some(Worth { cash: read(cash), kept: read(kept) })
}

/// Bytes as the file: what is read is written as it was.
#[cfg(any(fuzzing, test))]
pub(super) fn fuzz(bytes: &[u8]) {
    if let Ok(Some(worth)) = Worth::decode(bytes) {
        assert_eq!(worth.encode(), bytes);
        assert_eq!(worth.cash.len(), worth.kept.len());
    }
}

/// A file of two pages, without its checksum.
#[cfg(test)]
pub(super) fn fuzz_sample() -> Vec<u8> {
    let mut bytes = Worth { cash: vec![1.0, 0.15], kept: vec![0.0, 2.0] }.encode();
    bytes.truncate(bytes.len() - 8);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_to_is_worth_more_and_is_kept() {
        let mut worth = Worth::default();
        worth.grow(3);
        for _ in 0..20 {
            // 0 and 1 link to 2, which links to 0.
            for (page, to) in [(0, 2), (1, 2), (2, 0)] {
                let share = worth.read(page, 1);
                worth.deal(to, share);
            }
        }
        assert!(worth.of(2) > worth.of(0) && worth.of(0) > worth.of(1));
        let total: f32 = worth.kept.iter().sum();
        assert!((total - 3.0).abs() < 0.1, "the mean is 1: {total}");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("worth");
        worth.save(&path).unwrap();
        let found = Worth::open(&path).unwrap();
        assert_eq!((found.cash, found.kept), (worth.cash, worth.kept));
        let bytes = std::fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            std::fs::write(&path, damaged).unwrap();
            assert!(Worth::open(&path).unwrap().cash.is_empty(), "byte {at} damaged: begun again");
            assert!(Worth::decode(&bytes[..at]).unwrap().is_none(), "cut at {at}: begun again");
        }
    }

    #[test]
    fn a_file_of_another_version_is_refused_and_one_without_is_begun_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("worth");
        assert!(Worth::open(&path).unwrap().cash.is_empty(), "there is none");
        std::fs::write(&path, summed(b"WBCW\x02\0\0\0whatever comes then".to_vec())).unwrap();
        let refused = Worth::open(&path).unwrap_err().to_string();
        assert!(refused.contains("worth: it has version 2, this program knows 1"), "{refused}");
        let before_versions = [&1_u64.to_le_bytes()[..], &1_f32.to_le_bytes(), &1_f32.to_le_bytes()].concat();
        std::fs::write(&path, summed(before_versions)).unwrap();
        assert!(Worth::open(&path).unwrap().cash.is_empty());
    }
}
