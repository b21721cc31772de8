//! Which ranges new pages go to, under the distribution `uniform`: those whose update nodes are up, have room, and have the
//! least to do. Pure functions of what nodes last said of themselves.
//!
//! A node's *share* is 1 when it is idle and has room. It is divided among the node's ranges, so that nodes with equal
//! shares get equally many pages however their ranges are numbered. A range gets the smallest share of its nodes, because a
//! page has to go to all of them.

use std::collections::BTreeMap;

use webbase_node::cycle::message::NodeId;

/// Below this part of its capacity, and below this many bytes, a node counts as full.
const FULL_PART: f64 = 0.02;
const FULL_BYTES: u64 = 4 << 20;
/// Below this part a node gets less and less.
const SCARCE_PART: f64 = 0.2;
/// What a range gets that only full read nodes could take: next to nothing, as long as there are others.
const FULL_READER: f64 = 1e-3;
/// Added for each page, modulo 2^64, and multiplied with the sum of shares: any number of pages in a row is spread evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// What counts of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Load {
    /// Adds under way.
    pub(crate) adds: u64,
    /// Streams under way.
    pub(crate) streams: u64,
    /// Lookups under way.
    pub(crate) lookups: u64,
    /// It has a part in a cycle, or catches up.
    pub(crate) updating: bool,
    /// Capacity and free bytes, if it has said so.
    pub(crate) space: Option<(u64, u64)>,
}

impl Load {
    fn is_full(&self) -> bool {
        self.space
            .is_some_and(|(capacity, free)| free < FULL_BYTES || (free as f64) < capacity as f64 * FULL_PART)
    }

    /// What the node gets: 1 if it is idle, less if it is busy or nearly full, nothing if it is full.
    fn share(&self) -> f64 {
        if self.is_full() {
            return 0.0;
        }
        let busy = self.adds as f64 + self.streams as f64 / 2.0 + self.lookups as f64 / 16.0;
        let updating = if self.updating { 0.5 } else { 1.0 };
        let room = self.space.map_or(1.0, |(capacity, free)| {
            (free as f64 / (capacity as f64).max(1.0) / SCARCE_PART).min(1.0)
        });
        updating * room / (1.0 + busy)
    }
}

/// What each range gets.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Steering {
    /// For each range the sum of shares up to and with it.
    sums: Vec<f64>,
}

impl Steering {
    /// Weighs the ranges. `update` has the nodes of each range that are up, `read` its read nodes.
    pub(crate) fn new(
        update: &[Vec<NodeId>],
        read: &[Vec<NodeId>],
        loads: &BTreeMap<NodeId, Load>,
    ) -> Steering {
        let mut ranges_of: BTreeMap<NodeId, u32> = BTreeMap::new();
        for node in update.iter().flatten() {
            *ranges_of.entry(*node).or_default() += 1;
        }
        let load = |node: &NodeId| loads.get(node).copied().unwrap_or_default();
        let share = |node: &NodeId| load(node).share() / f64::from(ranges_of.get(node).copied().unwrap_or(1));
        let mut sum = 0.0;
        let sums = update.iter().enumerate().map(|(range, nodes)| {
            let smallest = nodes.iter().map(share).reduce(f64::min).unwrap_or(0.0);
            let readers = read.get(range).map_or(&[][..], Vec::as_slice);
            let full = readers.iter().any(|node| load(node).is_full());
            sum += if full { smallest * FULL_READER } else { smallest };
            sum
        });
        Steering { sums: sums.collect() }
    }

    /// The range of the `count`-th page; none when no range takes any.
    pub(crate) fn range(&self, count: u64) -> Option<u16> {
        let total = self.sums.last().copied().filter(|total| *total > 0.0)?;
        let place = count.wrapping_mul(GOLDEN) as f64 / u64::MAX as f64 * total;
        let range = self.sums.partition_point(|sum| *sum <= place);
        // Rounding may lead behind the last range that takes pages.
        let last = self.sums.partition_point(|sum| *sum < total);
        u16::try_from(range.min(last)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u64 = 100_000;

    /// Ranges dealt out in turn, `replicas` nodes each.
    fn ranges(count: u64, nodes: u64, replicas: u64) -> Vec<Vec<NodeId>> {
        (0..count).map(|r| (0..replicas).map(|i| NodeId((r + i) % nodes)).collect()).collect()
    }

    fn pages_of(steering: &Steering, update: &[Vec<NodeId>]) -> BTreeMap<NodeId, u64> {
        let mut pages = BTreeMap::new();
        for count in 0..PAGES {
            let Some(range) = steering.range(count) else { continue };
            for node in &update[usize::from(range)] {
                *pages.entry(*node).or_default() += 1;
            }
        }
        pages
    }

    fn loads(all: &[(u64, Load)]) -> BTreeMap<NodeId, Load> {
        all.iter().map(|(node, load)| (NodeId(*node), *load)).collect()
    }

    #[test]
    fn equal_nodes_get_equally_many_pages() {
        for (count, nodes, replicas) in [(16, 3, 1), (1024, 7, 1), (1024, 5, 2), (64, 4, 3), (1, 1, 1)] {
            let update = ranges(count, nodes, replicas);
            let steering = Steering::new(&update, &[], &BTreeMap::new());
            let mean = PAGES * replicas / nodes;
            let pages = pages_of(&steering, &update);
            assert_eq!(pages.len() as u64, nodes);
            for (node, pages) in pages {
                let off = pages.abs_diff(mean) as f64 / mean as f64;
                assert!(
                    off < 0.03,
                    "{node:?} gets {pages}, the mean is {mean}: {count} ranges, {nodes} nodes"
                );
            }
        }
    }

    #[test]
    fn few_pages_are_spread_too() {
        let update = ranges(64, 4, 1);
        let steering = Steering::new(&update, &[], &BTreeMap::new());
        for begin in [0, 1000, 123_456] {
            let ranges: std::collections::BTreeSet<_> =
                (begin..begin + 100).filter_map(|n| steering.range(n)).collect();
            assert!(ranges.len() > 50, "100 pages go to {} of 64 ranges", ranges.len());
        }
    }

    #[test]
    fn busy_nodes_get_fewer_and_full_ones_none() {
        let update = ranges(90, 3, 1);
        let busy = Load { adds: 3, ..Load::default() };
        let full = Load { space: Some((1 << 30, 1 << 20)), ..Load::default() };
        let steering = Steering::new(&update, &[], &loads(&[(1, busy), (2, full)]));
        let pages = pages_of(&steering, &update);
        assert_eq!(pages.get(&NodeId(2)), None);
        let ratio = pages[&NodeId(0)] as f64 / pages[&NodeId(1)] as f64;
        assert!((3.8..4.2).contains(&ratio), "{ratio}");
        // A page goes to all nodes of its range: one that is full is enough to keep pages away.
        let update = ranges(90, 3, 2);
        let steering = Steering::new(&update, &[], &loads(&[(2, full)]));
        assert_eq!(pages_of(&steering, &update).get(&NodeId(2)), None);
    }

    #[test]
    fn a_cycle_and_scarce_room_weigh_too() {
        let update = ranges(90, 3, 1);
        let updating = Load { updating: true, ..Load::default() };
        let scarce = Load { space: Some((1 << 40, 1 << 37)), ..Load::default() };
        let pages = pages_of(&Steering::new(&update, &[], &loads(&[(1, updating), (2, scarce)])), &update);
        assert!(pages[&NodeId(0)] > pages[&NodeId(1)] && pages[&NodeId(1)] < pages[&NodeId(2)]);
        assert!(pages[&NodeId(2)] < pages[&NodeId(0)]);
    }

    #[test]
    fn ranges_without_a_node_get_nothing() {
        let mut update = ranges(8, 2, 1);
        for range in [0, 3, 7] {
            update[range].clear();
        }
        let steering = Steering::new(&update, &[], &BTreeMap::new());
        let taken: std::collections::BTreeSet<_> = (0..PAGES).filter_map(|n| steering.range(n)).collect();
        assert_eq!(taken.into_iter().collect::<Vec<_>>(), [1, 2, 4, 5, 6]);
        assert_eq!(Steering::new(&vec![Vec::new(); 8], &[], &BTreeMap::new()).range(5), None);
        assert_eq!(Steering::default().range(5), None);
    }

    #[test]
    fn full_read_nodes_are_avoided_as_long_as_there_are_others() {
        let (update, read) = (ranges(10, 1, 1), ranges(10, 2, 1));
        let read: Vec<Vec<NodeId>> = read.iter().map(|n| vec![NodeId(n[0].0 + 10)]).collect();
        let full = Load { space: Some((1 << 30, 0)), ..Load::default() };
        let steering = Steering::new(&update, &read, &loads(&[(10, full)]));
        let at_full = (0..PAGES).filter_map(|n| steering.range(n)).filter(|r| r % 2 == 0).count();
        assert!(at_full < PAGES as usize / 500, "{at_full}");
        let all_full = Steering::new(&update, &read, &loads(&[(10, full), (11, full)]));
        assert!((0..10).all(|n| all_full.range(n).is_some()));
    }
}
