//! What pages are worth while they are found: every page has *cash*, and deals it to the pages it links to when it is read.
//!
//! The idea of online page importance ([`Opic`](crate::importance::Opic)) for a set of pages that grows. A new page begins with 1.
//! A page that is read keeps half of what it had written down before and half of what it got since, deals 0.85 of that out in
//! equal shares, and begins again with 0.15. So what a page is worth is what it gets between two readings, 1 on average; a
//! page that nobody has read is worth what it got so far. Eight bytes a page.
//!
//! ```text
//!   the file `worth`: number of pages (8), cash of each (4), what was written down for each (4), CRC-64 of the above (8)
//! ```
//!
//! It is written now and then. After a kill pages have what they had then: worth is an estimate, and mends itself.

use std::fs::File;
use std::io;
use std::path::Path;

const DEALT: f32 = 0.85;

#[derive(Debug, Default)]
pub(super) struct Worth {
    cash: Vec<f32>,
    kept: Vec<f32>,
}

impl Worth {
    /// Opens what was saved, if anything was that makes sense.
    pub(super) fn open(path: &Path) -> Worth {
        let Ok(bytes) = std::fs::read(path) else { return Worth::default() };
        let Some((body, sum)) = bytes.split_last_chunk::<8>() else { return Worth::default() };
        let Some((count, rest)) = body.split_first_chunk::<8>() else { return Worth::default() };
        let (numbers, _) = rest.as_chunks::<4>();
        let count = u64::from_le_bytes(*count) as usize;
        if sum_of(body) != u64::from_le_bytes(*sum) || numbers.len() != count.saturating_mul(2) {
            return Worth::default();
        }
        let (cash, kept) = numbers.split_at(count);
        let read = |numbers: &[[u8; 4]]| numbers.iter().map(|four| f32::from_le_bytes(*four)).collect();
        Worth { cash: read(cash), kept: read(kept) }
    }

    /// Writes it beside the file, and then in its place.
    pub(super) fn save(&self, path: &Path) -> io::Result<()> {
        let mut bytes = (self.cash.len() as u64).to_le_bytes().to_vec();
        for number in self.cash.iter().chain(&self.kept) {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let sum = sum_of(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        let beside = path.with_extension("new");
        std::fs::write(&beside, bytes)?;
        File::open(&beside)?.sync_data()?;
        std::fs::rename(beside, path)
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

fn sum_of(bytes: &[u8]) -> u64 {
    let mut digest = crc64fast::Digest::new();
    digest.write(bytes);
    digest.sum64()
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
        assert_eq!(Worth::open(&path).cash, worth.cash);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[9] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert!(Worth::open(&path).cash.is_empty(), "damaged: begun again");
    }
}
