//! Lists of the pages of some ranges, in order of their keys.

use std::ops::RangeInclusive;

use webbase_storage::{Listed, PageId, PageKey, Result, Snapshot};

use crate::cycle::RangeMap;
use crate::wire::message::Entry;

/// Rows that are looked at at once.
const LIST_ROWS: usize = 64 << 10;

/// All keys.
pub(super) const ALL_KEYS: RangeInclusive<PageKey> = PageKey::MIN..=PageKey::MAX;

/// What is listed.
pub(super) struct Listing<'a, W, A> {
    pub(super) snapshot: &'a dyn Snapshot,
    pub(super) map: RangeMap,
    /// Which ranges.
    pub(super) wanted: W,
    /// Tells when a page arrived.
    pub(super) arrival: A,
}

impl<W: Fn(u32) -> bool, A: Fn(&Listed) -> u64> Listing<'_, W, A> {
    /// All pages between two keys.
    #[cfg(test)]
    fn all(&self, keys: &RangeInclusive<PageKey>) -> Result<Vec<Entry>> {
        Ok(self.some(keys, usize::MAX)?.0)
    }

    /// Pages between two keys, at most `limit`, and the key from which on the rest is, if there is one.
    pub(super) fn some(
        &self,
        keys: &RangeInclusive<PageKey>,
        limit: usize,
    ) -> Result<(Vec<Entry>, Option<PageKey>)> {
        let mut entries = Vec::new();
        let mut at = Some(*keys.start());
        while let Some(from) = at.filter(|from| from <= keys.end()) {
            if entries.len() >= limit {
                return Ok((entries, Some(from)));
            }
            // Where ids say the ranges, neighbouring ones are listed together, and the others are left out.
            let Some(ids) = self.ids(from, keys.end().id) else { break };
            let rows = LIST_ROWS.min(limit - entries.len());
            let start = from.max(PageKey { id: *ids.start(), tie: 0 });
            let some = self.snapshot.list(ids.clone(), start, rows)?;
            at = match some.last() {
                Some(last) if some.len() >= rows => last.key.next(),
                _ => PageKey { id: *ids.end(), tie: u64::MAX }.next(),
            };
            let inside =
                |l: &&Listed| keys.contains(&l.key) && (self.wanted)(self.map.range_of(l.key, l.version));
            entries.extend(some.iter().filter(inside).map(|l| Entry {
                key: l.key,
                version: l.version,
                bytes: l.bytes,
                arrival: (self.arrival)(l),
            }));
        }
        Ok((entries, None))
    }

    /// The next ids that may be of wanted ranges.
    fn ids(&self, from: PageKey, last: PageId) -> Option<RangeInclusive<PageId>> {
        let Some(range) = self.map.range_of_key(from) else { return Some(from.id..=last) };
        let first = (range..self.map.count()).find(|range| (self.wanted)(*range))?;
        let end = (first..self.map.count()).find(|range| !(self.wanted)(*range)).unwrap_or(self.map.count());
        let start = from.id.max(*self.map.ids(first).start());
        let last = last.min(*self.map.ids(end - 1).end());
        (start <= last).then_some(start..=last)
    }
}

#[cfg(test)]
mod tests {
    use webbase_storage::{Options, Organization, Page, RepositoryKey};

    use super::*;

    #[test]
    fn slices_of_a_list_are_the_list() {
        let key = RepositoryKey::new([5; 32]);
        let urls: Vec<String> = (0..300).map(|n| format!("http://example.com/{n}")).collect();
        let pages: Vec<Page<'_>> = urls.iter().map(|url| Page { url, ..Page::default() }).collect();
        for organization in [Organization::Log, Organization::Hash] {
            let folder = tempfile::tempdir().unwrap();
            let dir = folder.path().join("store");
            webbase_storage::create(&dir, organization, key, &Options::default()).unwrap();
            let store = webbase_storage::open(&dir, &Options::default()).unwrap();
            store.add(&pages).unwrap();
            store.commit().unwrap();
            let snapshot = store.snapshot();
            let (map, arrival) = (RangeMap::new(3), |_: &Listed| 0);
            for wanted in [0b1111_1111_u32, 0b1010_0110, 0b1000_0000, 0] {
                let wanted = |range: u32| wanted >> range & 1 == 1;
                let listing = Listing { snapshot: &*snapshot, map, wanted, arrival };
                let all = listing.all(&ALL_KEYS).unwrap();
                let expected = urls.iter().map(|url| key.page_key(url).unwrap());
                let mut expected: Vec<PageKey> =
                    expected.filter(|key| wanted(map.range_of_key(*key).unwrap())).collect();
                expected.sort_unstable();
                assert_eq!(all.iter().map(|entry| entry.key).collect::<Vec<_>>(), expected);
                for limit in [1, 7, 64, 1000] {
                    let (mut slices, mut from) = (Vec::new(), Some(PageKey::MIN));
                    while let Some(first) = from {
                        let (some, next) = listing.some(&(first..=PageKey::MAX), limit).unwrap();
                        assert!(some.len() <= limit);
                        slices.extend(some);
                        from = next;
                    }
                    assert!(slices == all, "{organization:?}, by {limit}");
                }
            }
        }
    }
}
