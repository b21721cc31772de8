//! A place in a stream of the whole repository, to go on from later, with another client.
//!
//! ```text
//!   "w2" and, in hexadecimal: the following as postcard writes it, CRC-64 of that 8
//!   what is streamed: specification, version of the importance of pages, how
//!   generation, bits of the range map, ranges that are done
//!   ranges that stand at the end of an arrival: order, arrival, ranges
//!   ranges that stand at a page: range, order, arrival, key
//!   pages delivered ahead of their place: keys
//!   of a stream in an order: place and key of the last page; those of the generation it was begun in, if it left that
//!   of shared scans, and of live pages in logs: node, ranges, the node's own cursor
//! ```
//!
//! "w1" was the same of streams of everything: from generation to keys.
//!
//! In key order (and in the order of arrival, within one arrival) a node's ranges come one after the other, so of each node's
//! ranges only one stands at a page. The text is short, however many pages there are.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use webbase_storage::{PageKey, StorageError, crc64};

use super::lookup::nodes_of;
use super::ordered::Onward;
use super::progress::At;
use super::share::Own;
use crate::cycle::RangeSet;
use crate::cycle::message::NodeId;
use crate::error::{NodeError, Result};
use crate::plan::ReadPlan;
use crate::wire::message::{By, Key, Place};
use crate::wire::spec::StreamSpec;

const PREFIX: &str = "w2";
const PREFIX_1: &str = "w1";

/// A place in a stream: what is streamed, which generation, and how far each range is delivered. It prints as text and
/// reads back.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamCursor {
    pub(super) what: What,
    pub(super) generation: u64,
    pub(super) bits: u8,
    pub(super) done: RangeSet,
    /// Order, arrival and key; the highest key is the end of an arrival.
    pub(super) places: BTreeMap<u32, (By, u64, PageKey)>,
    pub(super) ahead: BTreeSet<PageKey>,
    pub(super) onward: Onward,
    pub(super) own: Vec<Own>,
}

/// How pages are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct How {
    /// Whether scans are shared with other streams of this kind. Such a stream begins wherever a scan is; its cursors hold only
    /// at the nodes that it is read from: when one of them is gone its ranges can only begin anew. In an order nothing is
    /// shared.
    pub shared: bool,
    /// Whether nodes read past their page caches.
    pub direct: bool,
}

/// What is streamed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct What {
    pub(super) spec: StreamSpec,
    pub(super) importance: u64,
    pub(super) how: How,
}

#[derive(Serialize, Deserialize)]
struct Whole {
    what: What,
    places: Form,
    after: Option<Place>,
    went_on: Option<(u64, Place)>,
    own: Vec<(NodeId, RangeSet, String)>,
}

#[derive(Serialize, Deserialize)]
struct Form {
    generation: u64,
    bits: u8,
    done: RangeSet,
    ended: Vec<(By, u64, RangeSet)>,
    at: Vec<(u32, By, u64, Key)>,
    ahead: Vec<Key>,
}

impl StreamCursor {
    pub(super) fn new(what: What, generation: u64, bits: u8) -> StreamCursor {
        let (done, places, ahead) = (RangeSet::new(), BTreeMap::new(), BTreeSet::new());
        let (onward, own) = (Onward::default(), Vec::new());
        StreamCursor { what, generation, bits, done, places, ahead, onward, own }
    }

    /// What is streamed.
    pub fn spec(&self) -> &StreamSpec {
        &self.what.spec
    }

    /// Takes note of a page by the place that its node gives it.
    pub(super) fn note_own(&mut self, own: Own) {
        match self.own.iter_mut().find(|known| known.ranges == own.ranges && known.node == own.node) {
            Some(known) => known.cursor = own.cursor,
            None => self.own.push(own),
        }
    }

    /// Ranges that stand at a node's own place, where that node does not have them any more: nobody else knows how far they are.
    pub(super) fn orphans(&self, plan: &ReadPlan) -> RangeSet {
        let mut orphans = RangeSet::new();
        for own in &self.own {
            let left = own.ranges.minus(&self.done);
            let gone = |range: &u32| !nodes_of(plan, *range).contains(&own.node);
            left.iter().filter(gone).for_each(|range| orphans.insert(range));
        }
        orphans
    }

    /// Forgets the nodes' own places in some ranges: they begin anew.
    pub(super) fn restart(&mut self, ranges: &RangeSet) {
        for own in &mut self.own {
            own.ranges = Arc::new(own.ranges.minus(ranges));
        }
        self.own.retain(|own| !own.ranges.is_empty());
    }

    /// The generation that it is a place in.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Takes note of a page that was taken; false if that cannot be told as a place.
    pub(super) fn note(&mut self, at: &At) -> bool {
        if at.ahead {
            self.ahead.insert(at.key);
            return true;
        }
        let Some((by, arrival)) = at.order else { return false };
        self.pass(at.range, by, arrival, at.key)
    }

    /// All of a range up to a place was taken; false if it was in another order before.
    pub(super) fn pass(&mut self, range: u32, by: By, arrival: u64, key: PageKey) -> bool {
        let place = self.places.entry(range).or_insert((by, arrival, key));
        if place.0 != by {
            return false;
        }
        *place = (*place).max((by, arrival, key));
        true
    }

    fn form(&self) -> Form {
        let mut ended: BTreeMap<(By, u64), RangeSet> = BTreeMap::new();
        let mut at = Vec::new();
        for (range, (by, arrival, key)) in self.places.iter().filter(|(r, _)| !self.done.contains(**r)) {
            match *key {
                PageKey::MAX => ended.entry((*by, *arrival)).or_default().insert(*range),
                key => at.push((*range, *by, *arrival, key.into())),
            }
        }
        Form {
            generation: self.generation,
            bits: self.bits,
            done: self.done.clone(),
            ended: ended.into_iter().map(|((by, arrival), ranges)| (by, arrival, ranges)).collect(),
            at,
            ahead: self.ahead.iter().map(|key| (*key).into()).collect(),
        }
    }
}

impl fmt::Display for StreamCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = self.own.iter().map(|own| (own.node, RangeSet::clone(&own.ranges), own.cursor.clone()));
        let whole = Whole {
            what: self.what.clone(),
            places: self.form(),
            after: self.onward.after.clone(),
            went_on: self.onward.went_on.clone(),
            own: own.collect(),
        };
        let mut bytes = postcard::to_extend(&whole, Vec::new()).map_err(|_| fmt::Error)?;
        bytes.extend_from_slice(&crc64(&bytes).to_le_bytes());
        let mut text = PREFIX.to_owned();
        bytes.iter().try_for_each(|byte| write!(text, "{byte:02x}"))?;
        f.write_str(&text)
    }
}

impl FromStr for StreamCursor {
    type Err = NodeError;

    fn from_str(text: &str) -> Result<Self> {
        let bad =
            |what: &str| NodeError::Storage(Arc::new(StorageError::BadCursor { what: what.to_owned() }));
        let text = text.trim();
        let hex = text.strip_prefix(PREFIX).or_else(|| text.strip_prefix(PREFIX_1));
        let hex = hex.ok_or_else(|| bad("it is none of a repository's stream"))?;
        let digits: Option<Vec<u32>> = hex.chars().map(|digit| digit.to_digit(16)).collect();
        let digits = digits.filter(|d| d.len().is_multiple_of(2)).ok_or_else(|| bad("it is cut short"))?;
        let pair = |pair: &[u32]| pair.iter().fold(0, |byte, digit| byte << 4 | *digit) as u8;
        let bytes: Vec<u8> = digits.chunks(2).map(pair).collect();
        let whole =
            bytes.split_last_chunk::<8>().filter(|(body, crc)| crc64(body) == u64::from_le_bytes(**crc));
        let (body, _) = whole.ok_or_else(|| bad("it is cut short or changed"))?;
        let whole = match text.starts_with(PREFIX_1) {
            true => postcard::from_bytes(body).map(|places| Whole {
                what: What::default(),
                places,
                after: None,
                went_on: None,
                own: Vec::new(),
            }),
            false => postcard::from_bytes::<Whole>(body),
        };
        let Whole { what, places: form, after, went_on, own } =
            whole.map_err(|_| bad("it is of another version"))?;
        let spec = what.spec.checked().map_err(|e| bad(&e))?;
        let mut cursor = StreamCursor::new(What { spec, ..what }, form.generation, form.bits);
        cursor.done = form.done;
        cursor.onward = Onward { after, went_on };
        let known = |(node, ranges, cursor)| Own { node, ranges: Arc::new(ranges), cursor };
        cursor.own = own.into_iter().map(known).collect();
        for (by, arrival, ranges) in form.ended {
            cursor.places.extend(ranges.iter().map(|range| (range, (by, arrival, PageKey::MAX))));
        }
        cursor
            .places
            .extend(form.at.into_iter().map(|(range, by, arrival, key)| (range, (by, arrival, key.into()))));
        // A range that is done has no place: printed, it would have none either.
        let StreamCursor { places, done, .. } = &mut cursor;
        places.retain(|range, _| !done.contains(*range));
        cursor.ahead.extend(form.ahead.into_iter().map(PageKey::from));
        Ok(cursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use webbase_storage::PageId;

    #[test]
    fn cursors_print_and_parse() {
        let key = |id| PageKey { id: PageId(id), tie: 3 };
        let what = What { spec: StreamSpec::all().domain("edu").mime("text/html"), ..What::default() };
        let mut cursor = StreamCursor::new(what, 7, 6);
        cursor.done.insert(5);
        assert!(cursor.pass(1, By::Arrival, 3, PageKey::MAX) && cursor.pass(2, By::Arrival, 3, PageKey::MAX));
        assert!(cursor.pass(3, By::Arrival, 4, key(9)) && cursor.pass(60, By::Key, 0, key(u64::MAX)));
        assert!(!cursor.pass(3, By::Key, 0, key(9)), "two orders in one range");
        cursor.ahead.insert(key(1));
        let text = cursor.to_string();
        assert!(text.len() < 400 && text.is_ascii(), "{text}");
        assert_eq!(text.parse::<StreamCursor>().unwrap(), cursor);
        cursor.onward.after = Some((b"edu,x)/".to_vec(), key(4).into()));
        cursor.onward.went_on = Some((3, (Vec::new(), key(4).into())));
        let ranges = Arc::new([3, 4].into_iter().collect());
        cursor.note_own(Own { node: NodeId(9), ranges, cursor: "mo5/o6".into() });
        assert_eq!(cursor.to_string().parse::<StreamCursor>().unwrap(), cursor);
        for bad in ["", "w1", "w2", "w3ff", &text[..text.len() - 2], &text.replacen('7', "8", 1), "w1é"] {
            assert!(bad.parse::<StreamCursor>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_cursor_with_places_in_ranges_that_are_done_reads_as_one_without() {
        let ranges = |ranges: &[u32]| ranges.iter().copied().collect::<RangeSet>();
        let ended = vec![(By::Arrival, 32, ranges(&[4, 5]))];
        let done = ranges(&[5]);
        let form = Form { generation: 0, bits: 3, done, ended, at: Vec::new(), ahead: Vec::new() };
        let mut bytes = postcard::to_extend(&form, Vec::new()).unwrap();
        bytes.extend_from_slice(&crc64(&bytes).to_le_bytes());
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let cursor: StreamCursor = format!("w1{hex}").parse().unwrap();
        assert_eq!(cursor.places.keys().copied().collect::<Vec<_>>(), [4]);
        assert_eq!(cursor.to_string().parse::<StreamCursor>().unwrap(), cursor);
    }
}
