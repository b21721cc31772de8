//! What a dictionary is learned from: the beginnings of the first pages that a store, or a client that packs itself, is
//! given.

use crate::codec::Dictionary;
use crate::page::Page;

/// Bytes of a dictionary, at most. Larger ones gain little and cost cache.
const DICTIONARY_BYTES: usize = 64 << 10;
/// Pages and bytes a dictionary is trained on, while somebody waits to add them: 0.07 s. Twice the samples, and a
/// dictionary of 112 KiB, take three times as long and save half a percent of the space.
const SAMPLE_PAGES: usize = 200;
const SAMPLE_BYTES: usize = 2 << 20;
const SAMPLE_BYTES_EACH: usize = 6 << 10;
/// A smaller body teaches nothing.
const BODY_BYTES_MIN: usize = 256;

/// Pages to learn from, as far as they have come. At most a few megabytes.
#[derive(Debug, Default)]
pub struct Samples {
    pages: Vec<Vec<u8>>,
    bytes: usize,
}

impl Samples {
    /// Takes what it needs of these pages.
    pub fn take(&mut self, pages: &[Page<'_>]) {
        // Where most stay packed as they came, the others are those that do not pack well, or are tiny: no example for pages to come.
        if pages.iter().filter(|page| page.deflated.is_some()).count() > pages.len() / 2 {
            return;
        }
        // Spread over the batch: neighbours are alike.
        let step = (pages.len() / SAMPLE_PAGES).max(1);
        // What stays as it came needs no dictionary.
        let teaches = |page: &&Page<'_>| page.body.len() >= BODY_BYTES_MIN && page.deflated.is_none();
        for page in pages.iter().step_by(step).filter(teaches) {
            if self.pages.len() >= 2 * SAMPLE_PAGES {
                return;
            }
            // Heads are packed too, so they are part of what is learned.
            let body = page.body.get(..SAMPLE_BYTES_EACH).unwrap_or(page.body);
            let sample = [page.head, body].concat();
            self.bytes += sample.len();
            self.pages.push(sample);
        }
    }

    /// Whether there are enough to learn from.
    pub fn are_enough(&self) -> bool {
        self.pages.len() >= SAMPLE_PAGES || self.bytes >= SAMPLE_BYTES
    }

    /// Trains a dictionary for packing at `level`; `None` when the pages are too few, or too much alike.
    pub fn train(&self, level: i32) -> Option<Dictionary> {
        let samples: Vec<&[u8]> = self.pages.iter().map(Vec::as_slice).collect();
        Dictionary::train(&samples, DICTIONARY_BYTES, level).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Deflated;

    #[test]
    fn what_is_left_beside_pages_that_stay_packed_teaches_nothing() {
        let body = [7; 1000];
        let plain = Page { body: &body, ..Page::default() };
        let deflated = Some(Deflated { stream: b"packed", before: 0, behind: 0, len: 1000 });
        let packed = Page { deflated, ..Page::default() };
        let mut samples = Samples::default();
        samples.take(&[packed, plain, packed]);
        assert_eq!(samples.pages.len(), 0);
        samples.take(&[plain, plain, packed]);
        assert_eq!(samples.pages.len(), 2);
    }
}
