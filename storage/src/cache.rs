//! Records in memory: what was read and verified once need not be read and verified again.
//!
//! 1. A record enters after its checksum held, in memory of its own. Mapped bytes never enter: the system may drop them
//!    and read them anew, damaged.
//! 2. What is kept, with what it takes to keep it, stays within the budget. A record that readers still hold when it
//!    has to go is theirs and not counted.
//! 3. While there is room everything enters; once it is full, what is asked for a second time within about as many
//!    lookups as it has records. So lookups that do not come back in time neither empty the cache nor pay for copies.
//! 4. Records are named by ordinals, which are never used twice. Whether a record is alive is the view's business, asked
//!    before the cache is: what was superseded, deleted or left out by `repair` is never served.
//!
//! Streams go past it: a scan reads every record once.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use crate::record::Record;

/// What an entry takes beside its record's bytes: its slot and its share of the table, both of which may be half empty,
/// the counters of its buffers, and what the allocator adds.
const ENTRY_BYTES: u64 = 320;
/// A guess at a record's size, for how many ordinals are remembered without their records.
const RECORD_BYTES_GUESS: u64 = 32 << 10;
/// Shards for each core. More of them would share the budget out less evenly: pages differ much in size.
const SHARDS_PER_CORE: usize = 2;

/// Verified records of one log, by ordinal.
#[derive(Debug)]
pub(crate) struct RecordCache {
    records: Cache<u64, Record, ByBytes>,
    /// Whether it was ever full: from then on it stays nearly so.
    full: AtomicBool,
    asked: Asked,
}

impl RecordCache {
    /// A cache of so many bytes; none for 0.
    pub(crate) fn new(budget_bytes: u64) -> Option<RecordCache> {
        let items = (budget_bytes / RECORD_BYTES_GUESS).max(1);
        // What is remembered of absent records is taken off the budget: the cache's own ghosts, half as many as records,
        // and the marks of `Asked`.
        let asked = Asked::new(items);
        let spent = items / 2 * ENTRY_BYTES / 2 + asked.marks.len() as u64;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let options = OptionsBuilder::new()
            .shards(cores * SHARDS_PER_CORE)
            .estimated_items_capacity(items as usize)
            .weight_capacity(budget_bytes.checked_sub(spent).filter(|&left| left > 0)?)
            .build()
            .ok()?;
        let (hasher, lifecycle) = (DefaultHashBuilder::default(), DefaultLifecycle::default());
        let records = Cache::with_options(options, ByBytes, hasher, lifecycle);
        Some(RecordCache { records, full: AtomicBool::new(false), asked })
    }

    /// The record with this ordinal, if it is here.
    pub(crate) fn get(&self, ordinal: u64) -> Option<Record> {
        self.records.get(&ordinal)
    }

    /// Whether this record, of so many bytes, should enter: asked when it was not here.
    pub(crate) fn wants(&self, ordinal: u64, bytes: u64) -> bool {
        if bytes + ENTRY_BYTES > self.records.shard_capacity() / 2 {
            return false; // it would push out too many others
        }
        if !self.full.load(Ordering::Relaxed) {
            if self.records.weight() + bytes + ENTRY_BYTES <= self.records.capacity() {
                return true;
            }
            self.full.store(true, Ordering::Relaxed);
        }
        self.asked.again(ordinal)
    }

    /// Keeps a record whose checksum held and whose bytes are in memory of their own.
    pub(crate) fn insert(&self, ordinal: u64, record: Record) {
        self.records.insert(ordinal, record);
    }

    /// Bytes it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.records.weight()
    }
}

/// Weighs records by the memory they keep.
#[derive(Clone, Debug)]
struct ByBytes;

impl Weighter<u64, Record> for ByBytes {
    fn weight(&self, _ordinal: &u64, record: &Record) -> u64 {
        record.memory_bytes() as u64 + ENTRY_BYTES
    }
}

/// Which ordinals were asked for lately, roughly: one mark a place, and a place may be shared.
#[derive(Debug)]
struct Asked {
    marks: Vec<AtomicU8>,
}

impl Asked {
    fn new(items: u64) -> Asked {
        let len = items.next_power_of_two() as usize;
        Asked { marks: (0..len).map(|_| AtomicU8::new(0)).collect() }
    }

    /// Whether this ordinal was the last to leave a mark at its place; it is from now on.
    fn again(&self, ordinal: u64) -> bool {
        let mixed = ordinal.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mark = (mixed as u8) | 1;
        let place = (mixed >> 16) as usize & (self.marks.len() - 1);
        self.marks.get(place).is_some_and(|m| m.swap(mark, Ordering::Relaxed) == mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;
    use crate::page::{Page, PageId, PageKey};
    use crate::record;

    fn record(n: u64, body_bytes: usize) -> Record {
        let body = vec![n as u8; body_bytes];
        let key = PageKey { id: PageId(n), tie: n };
        let page = Page { url: "http://h/", body: &body, ..Page::default() };
        let mut out = Vec::new();
        record::encode(&page, key, (Codec::Plain, 0, [&body, &[]]), None, &mut out).unwrap();
        Record::new(out.into()).unwrap()
    }

    #[test]
    fn the_budget_is_obeyed_whatever_enters() {
        for budget in [20_000, 1 << 20, 8 << 20] {
            let cache = RecordCache::new(budget).unwrap();
            for n in 0..3000 {
                cache.insert(n, record(n, (n * 37 % 9000) as usize));
                assert!(cache.memory_bytes() <= budget, "{} of {budget}", cache.memory_bytes());
            }
            assert!(cache.memory_bytes() > budget / 2, "most of it is used: {}", cache.memory_bytes());
            let kept: Vec<u64> = (0..3000).filter(|&n| cache.get(n).is_some()).collect();
            let bytes: usize = kept.iter().map(|&n| cache.get(n).unwrap().bytes().len()).sum();
            assert!(bytes as u64 <= budget);
            for n in kept {
                assert_eq!(cache.get(n).unwrap().bytes(), record(n, (n * 37 % 9000) as usize).bytes());
            }
        }
    }

    #[test]
    fn a_record_larger_than_the_budget_does_not_enter() {
        let cache = RecordCache::new(20_000).unwrap();
        cache.insert(1, record(1, 30_000));
        assert!(cache.get(1).is_none());
        assert!(!cache.wants(1, 30_000) && !cache.wants(1, 30_000));
        assert!(cache.wants(2, 3000), "there is still room for others");
        assert!(RecordCache::new(0).is_none());
    }

    #[test]
    fn once_full_only_what_comes_back_enters() {
        let cache = RecordCache::new(1 << 20).unwrap();
        assert!(cache.wants(0, 1000), "there is room");
        (0..1000).for_each(|n| cache.insert(n, record(n, 3000)));
        assert!(!cache.wants(5000, 3000), "asked for the first time");
        assert!(cache.wants(5000, 3000), "asked for again");
        let once = (10_000..20_000).filter(|&n| cache.wants(n, 3000)).count();
        assert!(once < 200, "{once} of 10000 that were never asked for before");
    }
}
