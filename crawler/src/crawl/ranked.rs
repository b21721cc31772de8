//! What an estimator says of a crawl's pages, by URL-id: importance I and usefulness J, each against its mean.
//!
//! ```text
//!   the file `ranked`: "WBCR", version 1 4, when it was computed 8, number of pages n 8, I 4 and J 4 of each (f32; NaN: not known),
//!   CRC-64 of the above 8
//! ```
//!
//! It is taken over when a crawl begins ([`Ranked::new`]) and kept in the crawl's folder, so that whoever looks at the crawl while it does
//! not run sees what it goes by. What is damaged is as if it were not there: the next crawl takes it over again.

use std::io;
use std::path::Path;

use super::summed_file::{self, summed, unsummed};

const MAGIC: [u8; 8] = *b"WBCR\x01\0\0\0";

/// Importance and usefulness of a page, as the estimator has them.
pub(super) type Rank = Option<(f64, f64)>;

#[derive(Debug, Default)]
pub(super) struct Ranked {
    /// When it was computed, in milliseconds since 1970.
    at_ms: Option<u64>,
    of: Vec<[f32; 2]>,
}

impl Ranked {
    /// Takes ranks over: I against its mean over XML pages, J against its mean over the others that have any.
    pub(super) fn new(at_ms: u64, ranks: &[Rank], is_xml: impl Fn(u32) -> bool) -> Ranked {
        let mean = |values: &mut dyn Iterator<Item = f64>| {
            let (sum, count) =
                values.filter(|value| *value > 0.0).fold((0.0, 0_u64), |(s, c), v| (s + v, c + 1));
            if count > 0 { sum / count as f64 } else { 1.0 }
        };
        let ranked = || ranks.iter().zip(0..).filter_map(|(rank, id)| Some((id, (*rank)?)));
        let of_xml = mean(&mut ranked().filter(|(id, _)| is_xml(*id)).map(|(_, (i, _))| i));
        let of_html = mean(&mut ranked().filter(|(id, _)| !is_xml(*id)).map(|(_, (_, j))| j));
        let scaled = |rank: &Rank| match rank {
            Some((i, j)) => [(i / of_xml) as f32, (j / of_html) as f32],
            None => [f32::NAN; 2],
        };
        Ranked { at_ms: Some(at_ms), of: ranks.iter().map(scaled).collect() }
    }

    /// Opens what was saved, if anything was that makes sense.
    pub(super) fn open(path: &Path) -> Ranked {
        std::fs::read(path).ok().and_then(|bytes| Ranked::read(&bytes)).unwrap_or_default()
    }

    fn read(bytes: &[u8]) -> Option<Ranked> {
        let (at_ms, rest) = unsummed(bytes)?.strip_prefix(&MAGIC)?.split_first_chunk::<8>()?;
        let (count, rest) = rest.split_first_chunk::<8>()?;
        let (pairs, []) = rest.as_chunks::<8>() else { return None };
        let pair =
            |[a, b, c, d, j @ ..]: &[u8; 8]| [f32::from_le_bytes([*a, *b, *c, *d]), f32::from_le_bytes(*j)];
        let of: Vec<[f32; 2]> = pairs.iter().map(pair).collect();
        (of.len() as u64 == u64::from_le_bytes(*count))
            .then_some(Ranked { at_ms: Some(u64::from_le_bytes(*at_ms)), of })
    }

    /// Writes it beside the file, and then in its place.
    pub(super) fn save(&self, path: &Path) -> io::Result<()> {
        summed_file::replace(path, &self.encode())
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.at_ms.unwrap_or(0).to_le_bytes());
        bytes.extend((self.of.len() as u64).to_le_bytes());
        self.of.iter().flatten().for_each(|value| bytes.extend(value.to_le_bytes()));
        summed(bytes)
    }

    /// When it was computed.
    pub(super) fn at_ms(&self) -> Option<u64> {
        self.at_ms
    }

    /// What a page weighs: I of XML, J of others, 1 on average; `None` where the estimator says nothing of it.
    pub(super) fn weight(&self, page: u32, is_xml: bool) -> Option<f64> {
        let [i, j] = *self.of.get(page as usize)?;
        let weight = if is_xml { i } else { j };
        (weight > 0.0).then_some(f64::from(weight))
    }
}

/// Bytes as the file: what is read is written as it was.
#[cfg(any(fuzzing, test))]
pub(super) fn fuzz(bytes: &[u8]) {
    if let Some(ranked) = Ranked::read(bytes) {
        assert_eq!(ranked.encode(), bytes);
    }
}

/// A file of two pages, without its checksum.
#[cfg(test)]
pub(super) fn fuzz_sample() -> Vec<u8> {
    let mut bytes = Ranked::new(5, &[Some((0.3, 0.1)), None], |_| true).encode();
    bytes.truncate(bytes.len() - 8);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xml_weighs_its_importance_and_html_its_usefulness_against_their_means() {
        let ranks = [Some((0.3, 0.0)), Some((0.1, 0.5)), Some((0.2, 1.5)), None, Some((0.4, 0.0))];
        // 0 and 4 are XML.
        let ranked = Ranked::new(5, &ranks, |id| id == 0 || id == 4);
        let weights = |ranked: &Ranked| -> Vec<Option<f64>> {
            let each = (0..6).map(|id| ranked.weight(id, id == 0 || id == 4));
            each.map(|weight| weight.map(|weight| (weight * 1e4).round() / 1e4)).collect()
        };
        let expected = [Some(0.8571), Some(0.5), Some(1.5), None, Some(1.1429), None];
        assert_eq!(weights(&ranked), expected);
        assert_eq!(ranked.weight(0, false), None, "no usefulness: what there is without an estimator");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ranked");
        ranked.save(&path).unwrap();
        let opened = Ranked::open(&path);
        assert_eq!((opened.at_ms(), weights(&opened)), (Some(5), expected.to_vec()));
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            assert!(Ranked::read(&bytes).is_none(), "byte {at}");
            assert!(Ranked::read(&whole[..at]).is_none(), "cut at {at}");
        }
    }
}
