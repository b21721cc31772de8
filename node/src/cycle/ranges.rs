//! Ranges: the parts that a repository's pages are dealt out in. How a page comes by its range is the *distribution*:
//!
//! - `hash`: the high bits of its page id say it, so everybody knows it;
//! - `uniform`: the management server assigns one when the page is first added, any one, and it stays the page's for ever.
//!   Whoever has a version of the page reads it there: it stands in the version's `epoch`, beside the stamp.
//!
//! ```text
//!   a version's epoch, 32 bits:    hash     │             cycle             │
//!                                  uniform  │      cycle      │ range, bits │
//! ```
//!
//! Ranges are what read nodes have. Update nodes may have the other distribution: `hash` sends all versions of a page to the same
//! update nodes, whatever range was assigned to it; `uniform` sends each version to any update nodes, and whoever prepares the
//! next generation asks all of them anyway.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use webbase_storage::{PageId, PageKey, Version};

/// The largest number of bits a repository's ranges are named by.
const RANGE_BITS_MAX: u8 = 16;
/// In a map's byte: the distribution is uniform.
const UNIFORM: u8 = 0x80;
/// In a map's byte: update nodes have the other distribution.
const OTHER: u8 = 0x40;

/// How pages come by their ranges; fixed when a repository is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Distribution {
    /// By the high bits of the page id.
    #[default]
    Hash,
    /// By assignment: any range, kept in the management server's index.
    Uniform,
}

impl Distribution {
    fn other(self) -> Distribution {
        match self {
            Distribution::Hash => Distribution::Uniform,
            Distribution::Uniform => Distribution::Hash,
        }
    }

    /// Its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Distribution::Hash => "hash",
            Distribution::Uniform => "uniform",
        }
    }
}

/// How a repository is cut; fixed when it is made. As a message it is one byte: the bits, 128 if the distribution is
/// uniform, and 64 if update nodes have the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ForeignMap", into = "ForeignMap")]
pub struct RangeMap {
    bits: u8,
    distribution: Distribution,
    /// That of update nodes.
    update: Distribution,
}

/// A map as it comes from elsewhere.
#[derive(Serialize, Deserialize)]
#[serde(rename = "RangeMap")]
struct ForeignMap {
    bits: u8,
}

impl From<RangeMap> for ForeignMap {
    fn from(map: RangeMap) -> Self {
        let uniform = if map.is_uniform() { UNIFORM } else { 0 };
        let other = if map.update == map.distribution { 0 } else { OTHER };
        ForeignMap { bits: map.bits | uniform | other }
    }
}

impl TryFrom<ForeignMap> for RangeMap {
    type Error = String;

    fn try_from(ForeignMap { bits: byte }: ForeignMap) -> Result<Self, String> {
        let bits = byte & !(UNIFORM | OTHER);
        if bits > RANGE_BITS_MAX {
            return Err(format!("2^{bits} ranges, there can be 2^{RANGE_BITS_MAX}"));
        }
        let distribution = if byte & UNIFORM == 0 { Distribution::Hash } else { Distribution::Uniform };
        let update = if byte & OTHER == 0 { distribution } else { distribution.other() };
        Ok(RangeMap { bits, distribution, update })
    }
}

impl RangeMap {
    /// 2^bits ranges of the id space; at most 2^16.
    pub fn new(bits: u8) -> Self {
        RangeMap::distributed(bits, Distribution::Hash)
    }

    /// 2^bits ranges under a distribution; at most 2^16.
    pub fn distributed(bits: u8, distribution: Distribution) -> Self {
        RangeMap { bits: bits.min(RANGE_BITS_MAX), distribution, update: distribution }
    }

    /// The same with another distribution of update nodes.
    pub fn with_update(self, update: Distribution) -> Self {
        RangeMap { update, ..self }
    }

    /// How pages come to update nodes.
    pub fn update_distribution(self) -> Distribution {
        self.update
    }

    /// The entry of an add plan that a page of this range goes by; `None` is any.
    pub fn add_entry(self, key: PageKey, range: u32) -> Option<u32> {
        match self.update {
            update if update == self.distribution => Some(range),
            Distribution::Hash => Some(self.hashed(key)),
            Distribution::Uniform => None,
        }
    }

    /// The range that the high bits of an id say.
    fn hashed(self, key: PageKey) -> u32 {
        key.id.0.checked_shr(64 - u32::from(self.bits)).unwrap_or(0) as u32
    }

    /// How pages come by their ranges.
    pub fn distribution(self) -> Distribution {
        self.distribution
    }

    /// Whether ranges are assigned.
    pub fn is_uniform(self) -> bool {
        self.distribution == Distribution::Uniform
    }

    /// How many ranges there are.
    pub fn count(self) -> u32 {
        1 << self.bits
    }

    /// The bits that name a range.
    pub fn bits(self) -> u8 {
        self.bits
    }

    /// The page ids of a range, where the id says the range.
    pub fn ids(self, range: u32) -> RangeInclusive<PageId> {
        let width = 64 - u32::from(self.bits);
        let first = u64::from(range).checked_shl(width).unwrap_or(0);
        PageId(first)..=PageId(first | u64::MAX.checked_shr(u32::from(self.bits)).unwrap_or(0))
    }

    /// The range of a page, if its key alone says it.
    pub fn range_of_key(self, key: PageKey) -> Option<u32> {
        match self.distribution {
            Distribution::Uniform => None,
            Distribution::Hash => Some(self.hashed(key)),
        }
    }

    /// The range of a page of which a version is known. All its versions have the same.
    pub fn range_of(self, key: PageKey, version: Version) -> u32 {
        self.range_of_key(key).unwrap_or_else(|| version.epoch & (self.count() - 1))
    }

    /// What stands as `epoch` in the version of a page that is added with a plan of this cycle; `None` when cycles have
    /// outgrown it.
    pub fn epoch(self, cycle: u64, range: u32) -> Option<u32> {
        let cycle = u32::try_from(cycle).ok()?;
        match self.distribution {
            Distribution::Hash => Some(cycle),
            Distribution::Uniform => {
                let fits = u64::from(cycle) < 1 << (32 - self.bits);
                fits.then(|| cycle << self.bits | range & (self.count() - 1))
            }
        }
    }

    /// The cycle in a version's `epoch`.
    pub fn cycle_of(self, epoch: u32) -> u64 {
        match self.distribution {
            Distribution::Hash => epoch.into(),
            Distribution::Uniform => (epoch >> self.bits).into(),
        }
    }

    /// The newest cycle a repository may begin: far below where versions cannot name it.
    pub fn cycle_max(self) -> u64 {
        let bits = if self.is_uniform() { self.bits } else { 0 };
        (1 << (32 - bits)) / 16 * 15
    }

    /// The bound of a removal, as a version of a page of this range.
    pub fn in_range(self, version: Version, range: u32) -> Version {
        let mask = self.count() - 1;
        match self.distribution {
            Distribution::Hash => version,
            Distribution::Uniform => Version { epoch: version.epoch & !mask | range & mask, ..version },
        }
    }
}

/// A set of range numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "ForeignSet")]
pub struct RangeSet {
    /// One bit a range; no zero words at the end, so that equal sets are equal.
    words: Vec<u64>,
}

/// A set as it comes from elsewhere.
#[derive(Deserialize)]
#[serde(rename = "RangeSet")]
struct ForeignSet {
    words: Vec<u64>,
}

impl TryFrom<ForeignSet> for RangeSet {
    type Error = String;

    fn try_from(ForeignSet { words }: ForeignSet) -> Result<Self, String> {
        let max = (1 << RANGE_BITS_MAX) / 64;
        if words.len() > max {
            return Err(format!("a set of ranges with {} words, there can be {max}", words.len()));
        }
        Ok(RangeSet::trimmed(words))
    }
}

impl RangeSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// All ranges of a repository.
    pub fn all(map: RangeMap) -> Self {
        (0..map.count()).collect()
    }

    /// Puts a range in. Numbers no repository has are left out.
    pub fn insert(&mut self, range: u32) {
        if range >= 1 << RANGE_BITS_MAX {
            return;
        }
        let word = (range / 64) as usize;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        if let Some(w) = self.words.get_mut(word) {
            *w |= 1 << (range % 64);
        }
    }

    /// Puts all of these in.
    pub fn insert_all(&mut self, other: &RangeSet) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        self.words.iter_mut().zip(&other.words).for_each(|(w, o)| *w |= o);
    }

    /// Whether the range is in.
    pub fn contains(&self, range: u32) -> bool {
        self.words.get((range / 64) as usize).is_some_and(|w| w & (1 << (range % 64)) != 0)
    }

    /// Whether nothing is in.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&w| w == 0)
    }

    /// How many are in.
    pub fn len(&self) -> u32 {
        self.words.iter().map(|w| w.count_ones()).sum()
    }

    /// Whether all of these are in `other`.
    pub fn is_subset(&self, other: &RangeSet) -> bool {
        self.words.iter().enumerate().all(|(i, w)| w & !other.words.get(i).copied().unwrap_or(0) == 0)
    }

    /// Those in either.
    pub fn union(&self, other: &RangeSet) -> RangeSet {
        let words = (0..self.words.len().max(other.words.len()))
            .map(|i| self.words.get(i).unwrap_or(&0) | other.words.get(i).unwrap_or(&0))
            .collect();
        RangeSet { words }
    }

    /// Those here that are not in `other`.
    pub fn minus(&self, other: &RangeSet) -> RangeSet {
        let words = self.words.iter().enumerate().map(|(i, w)| w & !other.words.get(i).unwrap_or(&0));
        RangeSet::trimmed(words.collect())
    }

    fn trimmed(mut words: Vec<u64>) -> RangeSet {
        while words.last() == Some(&0) {
            words.pop();
        }
        RangeSet { words }
    }

    /// Those in both.
    pub fn intersection(&self, other: &RangeSet) -> RangeSet {
        RangeSet::trimmed(self.words.iter().zip(&other.words).map(|(a, b)| a & b).collect())
    }

    /// The numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(i, &w)| {
            let mut left = w;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(i as u32 * 64 + bit)
            })
        })
    }
}

impl FromIterator<u32> for RangeSet {
    fn from_iter<I: IntoIterator<Item = u32>>(ranges: I) -> Self {
        let mut set = RangeSet::new();
        for range in ranges {
            set.insert(range);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_behave_like_sets() {
        let a: RangeSet = [1, 64, 200].into_iter().collect();
        let b: RangeSet = [1, 2, 64].into_iter().collect();
        assert_eq!(a.iter().collect::<Vec<_>>(), [1, 64, 200]);
        assert_eq!(a.union(&b).len(), 4);
        let mut both = b.clone();
        both.insert_all(&a);
        assert_eq!(both, a.union(&b));
        assert_eq!(a.minus(&b), [200].into_iter().collect());
        assert_eq!(a.minus(&a), RangeSet::new());
        assert_eq!(a.intersection(&b), [1, 64].into_iter().collect());
        assert!(a.intersection(&b).is_subset(&b) && !a.is_subset(&b));
        assert!(!a.contains(65) && a.contains(64) && !a.contains(100_000));
    }

    #[test]
    fn foreign_sets_and_maps_are_checked() {
        use crate::wire::message::{decode, encode};
        let set: RangeSet = [3, 65_535].into_iter().collect();
        assert_eq!(decode::<RangeSet>(&encode(&set)), Ok(set));
        for map in [RangeMap::new(16), RangeMap::distributed(16, Distribution::Uniform), RangeMap::new(0)] {
            assert_eq!(decode::<RangeMap>(&encode(&map)), Ok(map));
        }
        for distribution in [Distribution::Hash, Distribution::Uniform] {
            let map = RangeMap::distributed(9, distribution).with_update(distribution.other());
            assert_eq!(decode::<RangeMap>(&encode(&map)), Ok(map));
            assert_eq!(map.update_distribution(), distribution.other());
        }
        // What was written before there were distributions is hash.
        assert_eq!(decode::<RangeMap>(&encode(&10_u8)), Ok(RangeMap::new(10)));
        assert_eq!(decode::<RangeSet>(&encode(&vec![2_u64, 0, 0])), Ok([1].into_iter().collect()));
        assert!(decode::<RangeSet>(&encode(&vec![1_u64; 1025])).is_err());
        assert!(decode::<RangeMap>(&encode(&17_u8)).is_err());
        assert!(decode::<RangeMap>(&encode(&(UNIFORM | 17))).is_err());
    }

    #[test]
    fn update_nodes_may_have_the_other_distribution() {
        let (key, hash, uniform) =
            (PageKey { id: PageId(1 << 63), tie: 0 }, Distribution::Hash, Distribution::Uniform);
        let map = |read, update| RangeMap::distributed(3, read).with_update(update);
        assert_eq!(map(hash, hash).add_entry(key, 4), Some(4));
        assert_eq!(map(uniform, uniform).add_entry(key, 1), Some(1));
        assert_eq!(map(uniform, hash).add_entry(key, 1), Some(4));
        assert_eq!(map(hash, uniform).add_entry(key, 4), None);
    }

    #[test]
    fn ranges_follow_the_high_bits() {
        let key = |id| PageKey { id: PageId(id), tie: 0 };
        assert_eq!(RangeMap::new(0).range_of_key(key(u64::MAX)), Some(0));
        assert_eq!(RangeMap::new(3).range_of_key(key(u64::MAX)), Some(7));
        assert_eq!(RangeMap::new(3).range_of_key(key(1 << 61)), Some(1));
        assert_eq!(RangeSet::all(RangeMap::new(3)).len(), 8);
        assert_eq!(RangeMap::new(0).ids(0), PageId(0)..=PageId(u64::MAX));
        for range in 0..8 {
            let ids = RangeMap::new(3).ids(range);
            assert_eq!(RangeMap::new(3).range_of_key(key(ids.start().0)), Some(range));
            assert_eq!(RangeMap::new(3).range_of_key(key(ids.end().0)), Some(range));
        }
    }
}
