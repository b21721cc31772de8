//! The front of a leaf whose header or offsets cannot be read: they share their blocks with the first records, so all of it is
//! made anew at once.
//!
//! ```text
//!   0      48                   48 + 4 n
//!   header | offsets, n × 4    | records from elsewhere, sorted | records that are whole …
//! ```
//!
//! The records that are missing are those before the first whole one. How many offsets there were, and how many marks of
//! visits among those records, the room tells that is left: in a bucket there is one offset for each record, in a log as many
//! as there are records in key order. Nobody else has the marks: in their place come some that change nothing.

use std::collections::BTreeSet;

use crate::page::PageKey;
use crate::record::{Kind, RECORD_BYTES_MIN, Record, RecordRef};

use super::heal::empty_mark;
use super::leaf::{self, LeafHeader};

/// What belongs at the front of a leaf.
#[derive(Debug)]
pub(super) struct Front<'a> {
    /// Where the records with an offset begin.
    pub(super) starts: Vec<u32>,
    /// The records that are missing, and where they belong.
    pub(super) records: Vec<(usize, &'a [u8])>,
    /// Marks likewise.
    pub(super) marks: Vec<(usize, Vec<u8>)>,
}

/// The front of a leaf on these ids, if its header does not hold, all behind it is whole, and the records, sorted by key, fill it.
pub(super) fn front<'a>(
    bytes: &[u8],
    is_hash: bool,
    ids: (u64, u64),
    records: &[&'a Record],
) -> Option<Front<'a>> {
    if LeafHeader::decode(bytes).is_ok() {
        return None;
    }
    let (places, damage) = leaf::places(bytes);
    let mut first = None;
    if damage.iter().any(|damage| damage.offset > leaf::HEADER_BYTES) {
        return None;
    }
    let (mut behind, mut whole) = (Vec::new(), BTreeSet::new());
    for (start, end) in &places {
        let record = RecordRef::parse(bytes.get(*start..*end)?).ok()?;
        behind.push((*start, record.key()));
        whole.insert((record.key(), record.crc()));
        // Of a mark the page is missing.
        first = first.or(Some((record.key(), record.kind() == Kind::Seen)));
    }
    let mut missing: Vec<&Record> = records.to_vec();
    missing.retain(|record| {
        let key = record.get().key();
        let is_before = first.is_none_or(|(first, of_mark)| key < first || (of_mark && key == first));
        let is_here = (ids.0..=ids.1).contains(&key.id.0) && !whole.contains(&(key, record.get().crc()));
        is_here && is_before
    });
    (0..=missing.len()).find_map(|marks| fit(bytes.len(), is_hash, &missing, marks, &behind))
}

/// The front of a leaf of `len` bytes, with so many marks.
fn fit<'a>(
    len: usize,
    is_hash: bool,
    missing: &[&'a Record],
    mut marks: usize,
    behind: &[(usize, PageKey)],
) -> Option<Front<'a>> {
    let filled: usize = missing.iter().map(|record| record.bytes().len()).sum();
    let end = behind.first().map_or(len, |(start, _)| *start);
    let taken = leaf::HEADER_BYTES + filled + marks * RECORD_BYTES_MIN;
    let table = end.checked_sub(taken).filter(|table| table.is_multiple_of(4))?;
    let mut front = Front { starts: Vec::new(), records: Vec::new(), marks: Vec::new() };
    let (mut at, mut all) = (leaf::HEADER_BYTES + table, Vec::new());
    for record in missing {
        let page = record.get();
        all.push((at, page.key()));
        front.records.push((at, &record.bytes()[..]));
        at += record.bytes().len();
        if marks > 0 {
            all.push((at, page.key()));
            front.marks.push((at, empty_mark(&page)));
            at += RECORD_BYTES_MIN;
            marks -= 1;
        }
    }
    let fresh = all.len();
    all.extend(behind);
    let sorted = all.get(..table / 4).filter(|sorted| sorted.len() >= fresh)?;
    let fits = sorted.is_sorted_by_key(|(_, key)| *key) && (!is_hash || sorted.len() == all.len());
    front.starts = sorted.iter().map(|(start, _)| *start as u32).collect();
    fits.then_some(front)
}
