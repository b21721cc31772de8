//! How a pull is divided, so that memory holds the lists of one group at a time.
//!
//! Nobody knows how many pages the sources have before they are listed: a group whose lists turn out too long is cut in two,
//! and listed again in parts.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use webbase_storage::{PageId, PageKey};

use super::listing::ALL_KEYS;

/// Pages of a group, about.
const GROUP_PAGES: u64 = 200_000;
/// Rows of all lists of a group, at most, while it can be cut.
pub(super) const GROUP_ROWS: usize = 1_000_000;

/// Pages that are listed at once. Where ids say the ranges these are some ranges; else some ids of all ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) ranges: Vec<u32>,
    pub(super) keys: RangeInclusive<PageKey>,
}

/// What may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cuts {
    /// Ranges from each other. The pages of one come together, in order of their arrival.
    Ranges,
    /// Ranges from each other, then the keys of one.
    RangesAndKeys,
    /// Keys: all ranges have all ids.
    Keys,
}

/// The groups that are still to be gone through, in order.
pub(super) struct Groups {
    rest: VecDeque<Group>,
    cuts: Cuts,
}

impl Groups {
    /// About this many pages of these ranges; without an idea of how many there are, in a few groups.
    pub(super) fn new(ranges: Vec<u32>, pages: Option<u64>, cuts: Cuts) -> Groups {
        let count = pages.map_or(16, |pages| (pages / GROUP_PAGES + 1) as usize);
        let rest = match cuts {
            Cuts::Keys => key_cuts(count).map(|keys| Group { ranges: ranges.clone(), keys }).collect(),
            _ => {
                let group = |some: &[u32]| Group { ranges: some.to_vec(), keys: ALL_KEYS };
                ranges.chunks(ranges.len().div_ceil(count).max(1)).map(group).collect()
            }
        };
        Groups { rest, cuts }
    }

    /// The next group, and how many rows its lists may have: no matter how many, if it cannot be cut.
    pub(super) fn next(&mut self) -> Option<(Group, usize)> {
        let group = self.rest.pop_front()?;
        let rows = if self.halves(&group).is_some() { GROUP_ROWS } else { usize::MAX };
        Some((group, rows))
    }

    /// Has a group come again, in two parts.
    pub(super) fn cut(&mut self, group: &Group) {
        let Some((first, second)) = self.halves(group) else { return };
        self.rest.push_front(second);
        self.rest.push_front(first);
    }

    fn halves(&self, group: &Group) -> Option<(Group, Group)> {
        let Group { ranges, keys } = group;
        if self.cuts != Cuts::Keys && ranges.len() > 1 {
            let (first, second) = ranges.split_at(ranges.len() / 2);
            let part = |ranges: &[u32]| Group { ranges: ranges.to_vec(), keys: keys.clone() };
            return Some((part(first), part(second)));
        }
        let (first, last) = (keys.start().id.0, keys.end().id.0);
        if self.cuts == Cuts::Ranges || first >= last {
            return None;
        }
        let middle = first + (last - first) / 2;
        let part = |keys| Group { ranges: ranges.clone(), keys };
        Some((
            part(*keys.start()..=PageKey { id: PageId(middle), tie: u64::MAX }),
            part(PageKey { id: PageId(middle + 1), tie: 0 }..=*keys.end()),
        ))
    }
}

/// The key space in so many equal parts.
fn key_cuts(count: usize) -> impl Iterator<Item = RangeInclusive<PageKey>> {
    let count = count.max(1) as u128;
    let first = move |part: u128| (part << 64) / count;
    (0..count).map(move |part| {
        let last = (first(part + 1) - 1) as u64;
        PageKey { id: PageId(first(part) as u64), tie: 0 }..=PageKey { id: PageId(last), tie: u64::MAX }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_leave_nothing_out_and_nothing_twice() {
        for count in [0, 1, 2, 3, 16, 51] {
            let cuts: Vec<_> = key_cuts(count).collect();
            assert_eq!(cuts.len(), count.max(1));
            assert_eq!(cuts.first().map(|keys| *keys.start()), Some(*ALL_KEYS.start()));
            assert_eq!(cuts.last().map(|keys| *keys.end()), Some(*ALL_KEYS.end()));
            for two in cuts.windows(2) {
                assert_eq!(two[0].end().next(), Some(*two[1].start()));
            }
        }
    }

    /// All groups, when those with more than `most` of (ranges, share of the ids) are cut.
    fn all(mut groups: Groups, too_long: impl Fn(&Group) -> bool) -> Vec<Group> {
        let mut all = Vec::new();
        while let Some((group, rows)) = groups.next() {
            match rows == GROUP_ROWS && too_long(&group) {
                true => groups.cut(&group),
                false => all.push(group),
            }
        }
        all
    }

    #[test]
    fn a_group_that_is_too_long_is_cut_until_it_is_not() {
        let ranges: Vec<u32> = (0..40).collect();
        let single = all(Groups::new(ranges.clone(), Some(1), Cuts::Ranges), |_| true);
        assert_eq!(single.iter().map(|g| g.ranges.clone()).collect::<Vec<_>>().concat(), ranges);
        assert!(single.iter().all(|g| g.ranges.len() == 1 && g.keys == ALL_KEYS), "ranges stay whole");
        let quarter = |g: &Group| g.keys.end().id.0 - g.keys.start().id.0 > u64::MAX / 4;
        let parts = all(Groups::new(vec![7], Some(1), Cuts::RangesAndKeys), quarter);
        assert_eq!(parts.len(), 4);
        let parts = all(Groups::new(ranges.clone(), Some(1), Cuts::Keys), quarter);
        assert_eq!(parts.len(), 4);
        assert!(parts.iter().all(|g| g.ranges == ranges));
        for two in parts.windows(2) {
            assert_eq!(two[0].keys.end().next(), Some(*two[1].keys.start()));
        }
    }
}
