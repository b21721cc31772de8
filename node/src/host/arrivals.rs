//! In which order an exact copy takes pages, and what that does to the order of its ranges (runs.rs).
//!
//! Pages are copied in order of arrival and key. Where ids say the ranges, a range is listed as a whole, and sorted as a
//! whole. Where ranges are assigned each list has pages of all ranges, of a part of the keys; so the rows of all lists are
//! sorted before the first page is fetched, in files beyond a budget of memory (sort.rs).
//!
//! ```text
//!   a row: arrival 8, big-endian; entry as in lists, which begins with its key; number of the source 4
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::pull::{Failed, Wanted};
use crate::cycle::RangeSet;
use crate::sort::{Merge, Sorted, Sorter};
use crate::wire::message::{ENTRY_BYTES, Entry, UNKNOWN};

/// Bytes of rows in memory, about.
const SORT_BYTES: usize = 64 << 20;
/// Rows that are taken at once.
const ROWS: usize = 16 << 10;

/// What comes to ranges, and what stays in them: added to pages that stay may only be what arrived later than all of them.
#[derive(Default)]
pub(super) struct Arrivals {
    /// Of each range the latest arrival among the pages that stay.
    stay: BTreeMap<u32, u64>,
    /// Of each range the first and the last arrival among those that come.
    come: BTreeMap<u32, (u64, u64)>,
}

impl Arrivals {
    /// A page stays.
    pub(super) fn stays(&mut self, range: u32, arrival: u64) {
        self.stay.entry(range).and_modify(|latest| *latest = arrival.max(*latest)).or_insert(arrival);
    }

    /// A page comes.
    pub(super) fn comes(&mut self, range: u32, arrival: u64) {
        let (first, last) = self.come.entry(range).or_insert((arrival, arrival));
        (*first, *last) = (arrival.min(*first), arrival.max(*last));
    }

    /// Those of these ranges whose pages will lie in an order of their own, and those whose pages will lie as everywhere.
    pub(super) fn orders(&self, ranges: &RangeSet) -> (RangeSet, RangeSet) {
        let (mut alone, mut shared) = (RangeSet::new(), RangeSet::new());
        for range in ranges.iter() {
            let (first, last) = self.come.get(&range).copied().unwrap_or((UNKNOWN - 1, 0));
            let in_order = self.stay.get(&range).is_none_or(|latest| *latest < first);
            let set = if in_order && last != UNKNOWN { &mut shared } else { &mut alone };
            set.insert(range);
        }
        (alone, shared)
    }
}

/// Takes rows in any order.
pub(super) struct ByArrival(Sorter);

impl ByArrival {
    /// One that writes what is too much for memory to this folder.
    pub(super) fn new(dir: &Path) -> ByArrival {
        ByArrival(Sorter::new(dir, SORT_BYTES))
    }

    /// Takes some more.
    pub(super) async fn with(mut self, rows: Vec<Wanted>) -> Result<ByArrival, Failed> {
        let push = move || {
            rows.iter().try_for_each(|row| self.0.push(sorted(row)))?;
            Ok(self)
        };
        apart(push).await
    }

    /// All that were taken, in order.
    pub(super) async fn finish(self) -> Result<InOrder, Failed> {
        apart(|| Ok(InOrder(self.0.finish()?))).await
    }
}

/// Rows in order of arrival and key.
pub(super) struct InOrder(Merge);

impl InOrder {
    /// Some more of them, and the rest; none at the end.
    pub(super) async fn next(mut self) -> Result<(Vec<Wanted>, InOrder), Failed> {
        let take = move || {
            let mut rows = Vec::new();
            while rows.len() < ROWS
                && let Some(row) = self.0.next()?
            {
                let damaged = || io::Error::new(io::ErrorKind::InvalidData, "a sorted row is damaged");
                rows.push(wanted(&row.place).ok_or_else(damaged)?);
            }
            Ok((rows, self))
        };
        apart(take).await
    }
}

/// Runs what may wait for the disk on a thread of its own.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Failed> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|e| Failed::Disk(e.to_string()))?;
    done.map_err(|e| match e.kind() {
        io::ErrorKind::StorageFull => Failed::NoSpace,
        _ => Failed::Disk(format!("cannot sort what is to be copied: {e}")),
    })
}

fn sorted(row: &Wanted) -> Sorted {
    let mut place = Vec::with_capacity(8 + ENTRY_BYTES + 4);
    place.extend_from_slice(&row.entry.arrival.to_be_bytes());
    row.entry.write(&mut place);
    place.extend_from_slice(&(row.source as u32).to_le_bytes());
    Sorted { place, key: row.entry.key, bytes: 0 }
}

fn wanted(place: &[u8]) -> Option<Wanted> {
    let (_, rest) = place.split_first_chunk::<8>()?;
    let (entry, source) = rest.split_first_chunk::<ENTRY_BYTES>()?;
    Some(Wanted {
        entry: Entry::read(entry)?,
        source: u32::from_le_bytes(*source.first_chunk::<4>()?) as usize,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use webbase_storage::{PageId, PageKey, Version};

    #[test]
    fn pages_may_be_added_to_older_ones_only() {
        let mut arrivals = Arrivals::default();
        arrivals.stays(1, 3);
        arrivals.stays(1, 2);
        arrivals.comes(1, 5);
        arrivals.comes(1, 4);
        arrivals.stays(2, 4);
        arrivals.comes(2, 4);
        arrivals.comes(3, 7);
        arrivals.comes(4, UNKNOWN);
        arrivals.stays(5, 9);
        let (alone, shared) = arrivals.orders(&(1..7).collect());
        assert_eq!(alone.iter().collect::<Vec<_>>(), [2, 4]);
        assert_eq!(shared.iter().collect::<Vec<_>>(), [1, 3, 5, 6]);
    }

    #[tokio::test]
    async fn rows_come_in_order_of_arrival_and_key() {
        let dir = tempfile::tempdir().unwrap();
        let row = |n: u64| Wanted {
            entry: Entry {
                key: PageKey { id: PageId(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)), tie: n },
                version: Version { fetched_at_ms: n, epoch: 300 + n as u32, digest: !n },
                bytes: 1000 + n,
                arrival: if n.is_multiple_of(7) { UNKNOWN } else { 250 + n % 20 },
            },
            source: (n % 3) as usize,
        };
        let mut sorting = ByArrival(Sorter::new(dir.path(), 10_000));
        for some in [0..700, 700..40_000] {
            sorting = sorting.with(some.map(row).collect()).await.unwrap();
        }
        let (mut found, mut rest) = (Vec::new(), sorting.finish().await.unwrap());
        loop {
            let (some, left) = rest.next().await.unwrap();
            if some.is_empty() {
                break;
            }
            (found, rest) = (found.into_iter().chain(some).collect(), left);
        }
        let mut expected: Vec<Wanted> = (0..40_000).map(row).collect();
        expected.sort_by_key(|w| (w.entry.arrival, w.entry.key));
        let told = |all: &[Wanted]| all.iter().map(|w| (w.entry, w.source)).collect::<Vec<_>>();
        assert!(told(&found) == told(&expected));
    }
}
