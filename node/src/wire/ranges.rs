//! Which ranges a request is about, of 2^k: equal cuts of the id space on the high bits of the page id, or, on a node
//! of a repository with the distribution `uniform`, those that pages were assigned.

use serde::{Deserialize, Serialize};
use webbase_storage::PageId;

/// More ranges than this are not made.
pub const RANGE_BITS_MAX: u8 = 16;

/// A set of range numbers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RangeSet {
    /// There are 2^bits ranges; 0 bits is one range, which is everything.
    bits: u8,
    /// One bit a range, the lowest first; empty means all.
    members: Vec<u64>,
}

impl Default for RangeSet {
    fn default() -> Self {
        RangeSet::all()
    }
}

impl RangeSet {
    /// Every page.
    pub fn all() -> RangeSet {
        RangeSet { bits: 0, members: Vec::new() }
    }

    /// These numbers of 2^`bits` ranges. `None` when there are not so many ranges.
    pub fn of(bits: u8, numbers: impl IntoIterator<Item = u32>) -> Option<RangeSet> {
        if bits > RANGE_BITS_MAX {
            return None;
        }
        let mut members = vec![0_u64; (1_usize << bits).div_ceil(64)];
        for number in numbers {
            let word = members.get_mut(number as usize / 64).filter(|_| number < 1 << bits)?;
            *word |= 1 << (number % 64);
        }
        Some(RangeSet { bits, members })
    }

    /// Whether it is as `of` makes them: what came over the wire may not be.
    pub fn is_valid(&self) -> bool {
        let words = (1_usize << self.bits.min(RANGE_BITS_MAX)).div_ceil(64);
        self.bits <= RANGE_BITS_MAX && (self.members.is_empty() || self.members.len() == words)
    }

    /// Whether it leaves nothing out.
    pub fn is_all(&self) -> bool {
        self.members.is_empty()
    }

    /// There are 2^bits ranges.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether this number is in, whatever decides which pages have it.
    pub fn has(&self, number: u32) -> bool {
        self.is_all()
            || self.members.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// The range that a page is in, where its id says it.
    pub fn range_of(&self, id: PageId) -> u32 {
        id.0.checked_shr(64 - u32::from(self.bits)).unwrap_or(0) as u32
    }

    /// The numbers in it.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        (0..1 << self.bits.min(RANGE_BITS_MAX)).filter(|range| self.contains(self.first_id(*range)))
    }

    /// The first id of a range.
    pub fn first_id(&self, range: u32) -> PageId {
        PageId(u64::from(range).checked_shl(64 - u32::from(self.bits)).unwrap_or(0))
    }

    /// Whether a page is wanted, where its id says its range.
    pub fn contains(&self, id: PageId) -> bool {
        self.has(self.range_of(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_in_the_range_of_its_high_bits() {
        let set = RangeSet::of(10, [0, 513, 1023]).unwrap();
        for (id, inside) in
            [(0, true), (1 << 54, false), (513 << 54, true), ((513 << 54) - 1, false), (u64::MAX, true)]
        {
            assert_eq!(set.contains(PageId(id)), inside, "{id:x}");
        }
        assert!(RangeSet::all().contains(PageId(77)));
        assert!(!RangeSet::of(0, []).unwrap().contains(PageId(77)));
        assert!(RangeSet::of(0, [0]).unwrap().contains(PageId(u64::MAX)));
        assert!(RangeSet::of(4, [16]).is_none() && RangeSet::of(17, []).is_none());
    }
}
