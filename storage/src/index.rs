//! Page id to ordinals, in memory: sorted runs answered by interpolation.
//!
//! Ids are uniform, so the top `b` bits of an id name a slot of about eight entries. An entry is 9 bytes:
//!
//! ```text
//!   0  4  bits 8..40 of the page id (the first 8 are among the slot's)
//!   4  5  the record's ordinal, little-endian
//! ```
//!
//! With the slot table that is 9.5 bytes a page. An entry *suggests* an ordinal: the record's own key confirms
//! it, which fails about once in 2^(40-b) × 8 lookups. On disk a run is one file:
//!
//! ```text
//!   0  4  magic "WBIX"      4  4  version       8  8  entries       16  8  b
//!  24  8  first ordinal    32  8  end ordinal  40  8  CRC-64 of the rest of the file, and of 0..40
//!  48     slot table, (2^b + 1) × 4      then entries × 9
//! ```

#![expect(
    clippy::indexing_slicing,
    reason = "positions come from the slot table, which `build` and `decode` check"
)]

use std::ops::Range;

use crate::page::PageId;
use crate::record::crc64;

const MAGIC: [u8; 4] = *b"WBIX";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 9;
/// An ordinal fits five bytes.
pub(crate) const ORDINALS_MAX: u64 = 1 << 40;
/// Entries in a slot, on average: the rest of a cache line or two.
const SLOT_ENTRIES: usize = 8;
const SLOT_BITS_MIN: u32 = 8;
const SLOT_BITS_MAX: u32 = 30;

/// An immutable sorted run of the index.
#[derive(Debug)]
pub(crate) struct Run {
    slot_bits: u32,
    slots: Vec<u32>,
    entries: Vec<[u8; ENTRY_BYTES]>,
    ordinals: Range<u64>,
}

/// The part of an id that a run keeps: its top 40 bits.
fn prefix_of(id: PageId) -> u64 {
    id.0 >> 24
}

fn pack(prefix: u64, ordinal: u64) -> [u8; ENTRY_BYTES] {
    let [p0, p1, p2, p3] = (prefix as u32).to_le_bytes();
    let [o0, o1, o2, o3, o4, ..] = ordinal.to_le_bytes();
    [p0, p1, p2, p3, o0, o1, o2, o3, o4]
}

fn fragment([p0, p1, p2, p3, ..]: [u8; ENTRY_BYTES]) -> u32 {
    u32::from_le_bytes([p0, p1, p2, p3])
}

fn ordinal([.., o0, o1, o2, o3, o4]: [u8; ENTRY_BYTES]) -> u64 {
    u64::from_le_bytes([o0, o1, o2, o3, o4, 0, 0, 0])
}

impl Run {
    /// A run of these entries, in any order.
    pub(crate) fn build(mut entries: Vec<(PageId, u64)>, ordinals: Range<u64>) -> Run {
        entries.sort_unstable();
        let count = entries.len();
        Self::from_sorted(entries.into_iter().map(|(id, ordinal)| (prefix_of(id), ordinal)), count, ordinals)
    }

    /// One run of several, leaving out the ordinals that `is_dead`.
    pub(crate) fn merge(runs: &[&Run], is_dead: impl Fn(u64) -> bool) -> Run {
        let count = runs.iter().map(|r| r.len()).sum();
        let start = runs.iter().map(|r| r.ordinals.start).min().unwrap_or(0);
        let end = runs.iter().map(|r| r.ordinals.end).max().unwrap_or(0);
        let mut inputs: Vec<_> = runs.iter().map(|r| r.iter().peekable()).collect();
        let merged = std::iter::from_fn(|| {
            let least = inputs.iter_mut().filter_map(|i| i.peek().copied()).min()?;
            inputs.iter_mut().find_map(|i| i.next_if_eq(&least))
        });
        Self::from_sorted(merged.filter(|&(_, ordinal)| !is_dead(ordinal)), count, start..end)
    }

    fn from_sorted(sorted: impl Iterator<Item = (u64, u64)>, count: usize, ordinals: Range<u64>) -> Run {
        let wanted = (count / SLOT_ENTRIES).max(1).next_power_of_two().trailing_zeros();
        let slot_bits = wanted.clamp(SLOT_BITS_MIN, SLOT_BITS_MAX);
        let mut slots = vec![0_u32; (1 << slot_bits) + 1];
        let mut entries = Vec::with_capacity(count);
        for (prefix, ordinal) in sorted {
            slots[(prefix >> (40 - slot_bits)) as usize + 1] += 1;
            entries.push(pack(prefix, ordinal));
        }
        let mut total = 0;
        for slot in &mut slots {
            total += *slot;
            *slot = total;
        }
        entries.shrink_to_fit();
        Run { slot_bits, slots, entries, ordinals }
    }

    /// The ordinals it is about.
    pub(crate) fn ordinals(&self) -> &Range<u64> {
        &self.ordinals
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.entries.capacity() * ENTRY_BYTES + self.slots.capacity() * 4
    }

    /// Calls `found` with each ordinal that may be a record of `id`, until it says stop (true).
    pub(crate) fn find(&self, id: PageId, mut found: impl FnMut(u64) -> bool) -> bool {
        let prefix = prefix_of(id);
        let slot = (prefix >> (40 - self.slot_bits)) as usize;
        let range = self.slots[slot] as usize..self.slots[slot + 1] as usize;
        self.entries[range].iter().any(|&entry| fragment(entry) == prefix as u32 && found(ordinal(entry)))
    }

    /// All entries as (top 40 bits of the id, ordinal), sorted.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.iter_from_slot(0)
    }

    /// As `iter`, from the first entry that may be of `id` or of a higher one.
    pub(crate) fn iter_from(&self, id: PageId) -> impl Iterator<Item = (u64, u64)> + '_ {
        let prefix = prefix_of(id);
        let all = self.iter_from_slot((prefix >> (40 - self.slot_bits)) as usize);
        all.skip_while(move |(other, _)| *other < prefix)
    }

    fn iter_from_slot(&self, first: usize) -> impl Iterator<Item = (u64, u64)> + '_ {
        let shift = 40 - self.slot_bits;
        let mut slot = first;
        let skip = self.slots[first] as usize;
        self.entries.iter().enumerate().skip(skip).map(move |(at, &entry)| {
            while self.slots[slot + 1] as usize <= at {
                slot += 1;
            }
            let top = (slot as u64) << shift >> 32 << 32;
            (top | u64::from(fragment(entry)), ordinal(entry))
        })
    }

    /// The run as a file.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out =
            Vec::with_capacity(HEADER_BYTES + self.slots.len() * 4 + self.entries.len() * ENTRY_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        let fields =
            [self.entries.len() as u64, u64::from(self.slot_bits), self.ordinals.start, self.ordinals.end, 0];
        for field in fields {
            out.extend_from_slice(&field.to_le_bytes());
        }
        for slot in &self.slots {
            out.extend_from_slice(&slot.to_le_bytes());
        }
        out.extend_from_slice(self.entries.as_flattened());
        let crc = file_crc(&out);
        out[40..48].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a run's file; the error says what is wrong with it.
    pub(crate) fn decode(file: &[u8]) -> Result<Run, String> {
        let word = |at: usize| {
            file.get(at..at + 8)
                .and_then(|b| b.try_into().ok())
                .map(u64::from_le_bytes)
                .ok_or_else(|| "index file cut short".to_owned())
        };
        if file.get(..4) != Some(&MAGIC) || file.get(4..8) != Some(&VERSION.to_le_bytes()) {
            return Err("not an index file of this version".into());
        }
        let (count, slot_bits, crc) = (word(8)?, word(16)?, word(40)?);
        if file_crc(file) != crc {
            return Err(format!("index damaged: expected CRC-64 {:016x}, found {crc:016x}", file_crc(file)));
        }
        if !(u64::from(SLOT_BITS_MIN)..=u64::from(SLOT_BITS_MAX)).contains(&slot_bits) {
            return Err(format!("index slot bits out of bounds: {slot_bits}"));
        }
        let slot_bytes = ((1_usize << slot_bits) + 1) * 4;
        let rest = file.get(HEADER_BYTES..).unwrap_or_default();
        let (slots, entries) = rest.split_at_checked(slot_bytes).ok_or("index slots cut short")?;
        let slots: Vec<u32> = slots.as_chunks().0.iter().map(|&b| u32::from_le_bytes(b)).collect();
        let (entries, left) = entries.as_chunks::<ENTRY_BYTES>();
        let ordered = slots.is_sorted() && slots.first() == Some(&0);
        if entries.len() as u64 != count
            || !left.is_empty()
            || !ordered
            || slots.last() != Some(&(count as u32))
        {
            return Err("index entries and slots disagree".into());
        }
        Ok(Run {
            slot_bits: slot_bits as u32,
            slots,
            entries: entries.to_vec(),
            ordinals: word(24)?..word(32)?,
        })
    }
}

fn file_crc(file: &[u8]) -> u64 {
    crc64(file.get(..40).unwrap_or_default()) ^ crc64(file.get(HEADER_BYTES..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(i: u64) -> PageId {
        PageId(i.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17).wrapping_mul(0xbf58_476d_1ce4_e5b9))
    }

    fn ordinals_of(run: &Run, id: PageId) -> Vec<u64> {
        let mut all = Vec::new();
        run.find(id, |o| {
            all.push(o);
            false
        });
        all
    }

    #[test]
    fn every_page_is_found_and_strangers_are_not() {
        for n in [0, 1, 5, 100, 50_000] {
            let run = Run::build((0..n).map(|i| (id(i), i + (1 << 33))).collect(), 0..n);
            for i in 0..n {
                assert!(ordinals_of(&run, id(i)).contains(&(i + (1 << 33))), "{i} of {n}");
            }
            let false_hits = (n..n + 10_000).filter(|&i| !ordinals_of(&run, id(i)).is_empty()).count();
            assert!(false_hits <= 1, "{false_hits} false hits at {n}");
        }
    }

    #[test]
    fn ids_that_agree_in_every_bit_are_all_suggested() {
        let run = Run::build((0..100).map(|i| (PageId(0xf << 60), i)).collect(), 0..100);
        assert_eq!(ordinals_of(&run, PageId(0xf << 60)).len(), 100);
        assert_eq!(ordinals_of(&run, PageId(0xe << 60)).len(), 0);
    }

    #[test]
    fn merging_keeps_the_living() {
        let a = Run::build((0..1000).map(|i| (id(i), i)).collect(), 0..1000);
        let b = Run::build((0..300).map(|i| (id(i), 1000 + i)).collect(), 1000..1300);
        let merged = Run::merge(&[&a, &b], |ordinal| ordinal < 300);
        assert_eq!((merged.len(), merged.ordinals.clone()), (1000, 0..1300));
        for i in 0..1000 {
            let expected = if i < 300 { 1000 + i } else { i };
            assert_eq!(ordinals_of(&merged, id(i)), [expected]);
        }
        let sorted: Vec<_> = merged.iter().collect();
        assert!(sorted.is_sorted());
        for from in [0, 1, 7 << 40, u64::MAX / 2, id(5).0, u64::MAX] {
            let rest = sorted.iter().copied().filter(|(prefix, _)| *prefix >= from >> 24);
            assert!(merged.iter_from(PageId(from)).eq(rest), "from {from:x}");
        }
    }

    #[test]
    fn a_run_survives_its_file_and_damage_is_noticed() {
        let run = Run::build((0..3000).map(|i| (id(i), i)).collect(), 0..3000);
        let mut file = run.encode();
        let again = Run::decode(&file).unwrap();
        assert!(again.iter().eq(run.iter()));
        for at in (0..file.len()).step_by(97).chain([0, 5, 9, 17, 25, 41]) {
            file[at] ^= 4;
            assert!(Run::decode(&file).is_err(), "byte {at}");
            assert!(Run::decode(&file[..at]).is_err(), "cut at {at}");
            file[at] ^= 4;
        }
    }

    #[test]
    fn ten_bytes_a_page() {
        let n = 200_000;
        let run = Run::build((0..n).map(|i| (id(i), i)).collect(), 0..n);
        assert!(run.memory_bytes() as f64 / n as f64 <= 10.0);
    }
}
