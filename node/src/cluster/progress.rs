//! How far the pages of some ranges are delivered, in terms that other nodes understand.
//!
//! What was delivered is the sum of what the following tell; each of them alone may be forgotten only if the others tell all:
//!
//! | | of a stream | another node |
//! |---|---|---|
//! | `through`: all keys up to one | in key order | in any order |
//! | `arrivals`: a place in each range | in order of arrival (a log whose runs are known) | in order of arrival, too |
//! | `single`: the keys themselves, up to a bound | in another order | in any order |
//! | `keys`: a place in each range | the stream was resumed there | in any order |
//! | `replaced`: keys ahead of their place | came from elsewhere | in any order |

use std::collections::{BTreeMap, BTreeSet, HashSet};

use webbase_storage::PageKey;

use crate::cycle::message::NodeId;
use crate::cycle::{RangeMap, RangeSet};
use crate::wire::message::{After, By, PLACES_MAX};

/// Where a page lies in a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct At {
    pub(super) range: u32,
    pub(super) key: PageKey,
    /// In which order the pages of its range come, with its arrival (0 in key order); `None`: in an order of the node's own.
    pub(super) order: Option<(By, u64)>,
    /// It came from elsewhere, before its turn.
    pub(super) ahead: bool,
}

impl At {
    fn arrival(&self) -> Option<u64> {
        self.order.filter(|(by, _)| *by == By::Arrival).map(|(_, arrival)| arrival)
    }
}

/// How far some ranges are delivered.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    pub(super) through: Option<PageKey>,
    single: HashSet<PageKey>,
    replaced: BTreeSet<PageKey>,
    arrivals: BTreeMap<u32, (u64, PageKey)>,
    keys: BTreeMap<u32, PageKey>,
    /// Some were delivered that only `single` told.
    only_single: bool,
    /// `single` has become too long and was dropped.
    forgotten: bool,
    /// Nodes that have damage about here and cannot tell which page it hit: others are better.
    pub(super) hiding: BTreeSet<NodeId>,
    /// Nodes that cannot go on: what was delivered means nothing in their order.
    unable: BTreeSet<NodeId>,
    /// Where the last node stopped.
    pub(super) stopped: Option<(NodeId, String)>,
}

impl Progress {
    /// As a cursor tells it: places in ranges, and pages ahead of them.
    pub(super) fn resumed(places: &BTreeMap<u32, (By, u64, PageKey)>, ahead: &BTreeSet<PageKey>) -> Progress {
        let mut progress = Progress { replaced: ahead.clone(), ..Progress::default() };
        for (range, (by, arrival, key)) in places {
            match by {
                By::Arrival => _ = progress.arrivals.insert(*range, (*arrival, *key)),
                By::Key => _ = progress.keys.insert(*range, *key),
            }
        }
        progress
    }

    /// Of a part that only one node can go on with, from a place of its own.
    pub(super) fn stopped_at(node: NodeId, cursor: String) -> Progress {
        Progress { only_single: true, forgotten: true, stopped: Some((node, cursor)), ..Progress::default() }
    }

    /// Of a part that is resumed: whether keys tell enough.
    pub(super) fn settle(&mut self) {
        self.forgotten = !self.arrivals.is_empty();
    }

    /// Whether a page was delivered.
    pub(super) fn is_delivered(&self, at: &At) -> bool {
        let place = at.arrival().zip(self.arrivals.get(&at.range));
        self.through.is_some_and(|through| at.key <= through)
            || self.single.contains(&at.key)
            || self.replaced.contains(&at.key)
            || self.keys.get(&at.range).is_some_and(|place| at.key <= *place)
            || place.is_some_and(|(arrival, place)| (arrival, at.key) <= *place)
    }

    /// Whether keys alone do not tell what was delivered.
    pub(super) fn is_forgotten(&self) -> bool {
        self.forgotten
    }

    /// Whether that can be told of pages in this order.
    pub(super) fn can_tell(&self, at: &At) -> bool {
        !self.forgotten || (!self.only_single && at.arrival().is_some())
    }

    /// Nothing was delivered.
    pub(super) fn is_fresh(&self) -> bool {
        let none = self.through.is_none() && self.single.is_empty() && self.replaced.is_empty();
        none && self.arrivals.is_empty() && self.keys.is_empty() && !self.forgotten
    }

    /// Whether this node may go on here.
    pub(super) fn can_go_on_at(&self, node: NodeId) -> bool {
        let is_stopped_here = self.stopped.as_ref().is_some_and(|(at, _)| *at == node);
        is_stopped_here || !(self.unable.contains(&node) || (self.forgotten && self.only_single))
    }

    /// This node cannot.
    pub(super) fn give_up(&mut self, node: NodeId) {
        self.unable.insert(node);
    }

    /// Whether pages are damaged at this node that it cannot tell.
    pub(super) fn is_hidden_at(&self, node: NodeId) -> bool {
        self.hiding.contains(&node)
    }

    /// The places in ranges, as a node is told them.
    pub(super) fn after(&self) -> Option<After> {
        let arrivals = self.arrivals.iter().map(|(range, (arrival, key))| (*range, *arrival, (*key).into()));
        let keys = self.keys.iter().map(|(range, key)| (*range, 0, (*key).into()));
        let after = if self.arrivals.is_empty() {
            After { by: By::Key, places: keys.collect() }
        } else {
            After { by: By::Arrival, places: arrivals.collect() }
        };
        Some(after).filter(|after| !after.places.is_empty() && after.places.len() <= PLACES_MAX)
    }

    /// The part of it about these ranges.
    pub(super) fn within(&self, ranges: &RangeSet, map: RangeMap) -> Progress {
        // Where the key does not say the range all are kept: to know more than needed is no harm.
        let within = |key: &&PageKey| map.range_of_key(**key).is_none_or(|range| ranges.contains(range));
        Progress {
            single: self.single.iter().filter(within).copied().collect(),
            replaced: self.replaced.iter().filter(within).copied().collect(),
            arrivals: self
                .arrivals
                .iter()
                .filter(|(r, _)| ranges.contains(**r))
                .map(|(r, p)| (*r, *p))
                .collect(),
            keys: self.keys.iter().filter(|(r, _)| ranges.contains(**r)).map(|(r, p)| (*r, *p)).collect(),
            hiding: self.hiding.clone(),
            unable: self.unable.clone(),
            stopped: self.stopped.clone(),
            ..*self
        }
    }

    /// Takes note of a page that is delivered; says whether its key has to be remembered by itself.
    pub(super) fn note(&mut self, at: &At) -> bool {
        match at.order {
            _ if at.ahead => {
                self.replaced.insert(at.key);
                false
            }
            Some((By::Key, _)) => {
                self.through = self.through.max(Some(at.key));
                if self.replaced.first().is_some_and(|first| *first <= at.key) {
                    self.replaced.retain(|replaced| *replaced > at.key);
                }
                false
            }
            Some((By::Arrival, arrival)) => {
                self.pass(at.range, arrival, at.key);
                !self.forgotten
            }
            None => {
                self.only_single = true;
                !self.forgotten
            }
        }
    }

    /// All of a range up to a place is delivered.
    pub(super) fn pass(&mut self, range: u32, arrival: u64, key: PageKey) {
        let place = self.arrivals.entry(range).or_insert((arrival, key));
        *place = (*place).max((arrival, key));
    }

    /// Remembers a key by itself; says whether it was not before.
    pub(super) fn remember(&mut self, key: PageKey) -> bool {
        self.single.insert(key)
    }

    /// Lets the memory of single keys go, for good if it is `too_long`; returns how many there were.
    pub(super) fn forget(&mut self, too_long: bool) -> usize {
        self.forgotten |= too_long;
        std::mem::take(&mut self.single).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use webbase_storage::PageId;

    fn at(range: u32, key: u64, order: Option<(By, u64)>) -> At {
        At { range, key: PageKey { id: PageId(key), tie: 0 }, order, ahead: false }
    }

    #[test]
    fn places_by_arrival_tell_without_keys() {
        let mut progress = Progress::default();
        let by = |arrival| Some((By::Arrival, arrival));
        for page in [at(0, 5, by(1)), at(0, 9, by(1)), at(1, 20, by(1)), at(0, 3, by(2))] {
            assert!(!progress.is_delivered(&page));
            assert!(progress.note(&page), "keys are remembered for nodes in other orders");
            progress.remember(page.key);
        }
        progress.forget(true);
        let told = [at(0, 9, by(1)), at(0, 3, by(2)), at(1, 20, by(1)), at(1, 7, by(1))];
        assert!(told.iter().all(|page| progress.is_delivered(page) && progress.can_tell(page)));
        let open = [at(0, 4, by(2)), at(1, 21, by(1)), at(1, 2, by(2)), at(2, 1, by(1))];
        assert!(open.iter().all(|page| !progress.is_delivered(page) && progress.can_tell(page)));
        assert!(!progress.can_tell(&at(0, 9, None)), "the key alone tells nothing any more");
        assert!(progress.can_go_on_at(NodeId(7)));
        progress.note(&at(3, 1, None));
        assert!(!progress.can_go_on_at(NodeId(7)), "and a page of which only the key told is forgotten");
        progress.stopped = Some((NodeId(7), "o5".into()));
        assert!(progress.can_go_on_at(NodeId(7)));
    }

    #[test]
    fn a_part_knows_what_the_whole_knew() {
        let map = RangeMap::new(2);
        let key = |range: u64| PageKey { id: PageId(range << 62 | 5), tie: 0 };
        let mut progress = Progress::default();
        for range in 0..4 {
            progress.pass(range as u32, 3, key(range));
            progress.remember(key(range));
        }
        let part = progress.within(&[1, 2].into_iter().collect(), map);
        assert_eq!(part.after().unwrap().places.iter().map(|p| p.0).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(part.single.len(), 2);
    }
}
