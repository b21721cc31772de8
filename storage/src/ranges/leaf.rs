//! A leaf: the pages of one id range, in one or more successive slots. A bucket of the hash organization and a log of the
//! hashed-log organization have the same form; a bucket is always written anew, a log is appended to.
//!
//! ```text
//!    0   4  magic "WBLF"
//!    4   4  version
//!    8   8  sequence: of two leaves that cover an id, the one with the higher holds
//!   16   8  first id of the range
//!   24   8  last id of the range
//!   32   4  records written with the header (n)
//!   36   4  zero
//!   40   8  CRC-64 of 0..40 and of the offsets
//!   48   n × 4  offset of each record
//!    …   …  records, sorted by key; then, in a log, records in the order they came
//! ```
//!
//! A page may be followed by its "seen" entry. Of several records of a page in a log, later ones are changes to earlier
//! ones: of two pages the later one is the newer version. Up to where a leaf is filled stands in the directory.
//!
//! What is damaged behind the sorted records may have been a change to any page before it. What is left of its header tells to
//! which one, if only one byte of that is wrong; or the bytes that the directory says are alive tell that it changed none.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use super::content::Content;
use super::pending::{Item, Pending};
use crate::catalog::Row;
use crate::page::PageKey;
use crate::record::{Kind, RecordRef, crc64, mended, record_len};

pub(super) const MAGIC: [u8; 4] = *b"WBLF";
pub(crate) const HEADER_BYTES: usize = 48;
const COUNT_OFFSET: usize = 32;

/// What a leaf's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafHeader {
    pub(crate) sequence: u64,
    pub(crate) first_id: u64,
    pub(crate) last_id: u64,
    count: usize,
}

impl LeafHeader {
    /// Reads and checks a header and its offsets.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(LeafHeader, Vec<u32>), String> {
        let word = |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
        if bytes.get(..4) != Some(&MAGIC) || bytes.get(4..8) != Some(&crate::identity::VERSION.to_le_bytes())
        {
            return Err("no leaf here".into());
        }
        let (Some(sequence), Some(first_id), Some(last_id), Some(count), Some(crc)) =
            (word(8), word(16), word(24), word(32), word(40))
        else {
            return Err("leaf header cut short".into());
        };
        let count = count as usize;
        let table = count.checked_mul(4).and_then(|n| bytes.get(HEADER_BYTES..HEADER_BYTES.checked_add(n)?));
        let Some(table) = table else { return Err(format!("a leaf of {count} records is cut short")) };
        let expected = header_crc(bytes.get(..40).unwrap_or_default(), table);
        if expected != crc {
            return Err(format!("leaf header damaged: expected CRC-64 {expected:016x}, found {crc:016x}"));
        }
        let offsets = table.as_chunks().0.iter().map(|&b| u32::from_le_bytes(b)).collect();
        Ok((LeafHeader { sequence, first_id, last_id, count }, offsets))
    }
}

pub(super) fn header_crc(head: &[u8], table: &[u8]) -> u64 {
    crc64(head) ^ crc64(table).rotate_left(1)
}

/// A leaf of these pages, which are sorted by key.
pub(crate) fn encode(items: &[Item], sequence: u64, first_id: u64, last_id: u64) -> Vec<u8> {
    let records = || items.iter().flat_map(|item| std::iter::once(&item.page).chain(&item.seen));
    let count = records().count();
    let body: usize = records().map(Bytes::len).sum();
    let mut out = Vec::with_capacity(HEADER_BYTES + count * 4 + body);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&crate::identity::VERSION.to_le_bytes());
    for word in [sequence, first_id, last_id, count as u64] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    let head = out.clone();
    out.extend_from_slice(&[0; 8]);
    let mut at = (HEADER_BYTES + count * 4) as u32;
    for record in records() {
        out.extend_from_slice(&at.to_le_bytes());
        at += record.len() as u32;
    }
    let crc = header_crc(&head, out.get(HEADER_BYTES..).unwrap_or_default());
    if let Some(target) = out.get_mut(40..48) {
        target.copy_from_slice(&crc.to_le_bytes());
    }
    records().for_each(|record| out.extend_from_slice(record));
    out
}

/// Bytes a page takes in a leaf, offsets included.
pub(crate) fn item_bytes(item: &Item) -> usize {
    item.bytes() + if item.seen.is_some() { 8 } else { 4 }
}

/// A record in a leaf that is not what was written.
#[derive(Clone, Debug)]
pub(crate) struct LeafDamage {
    pub(crate) offset: usize,
    pub(crate) what: String,
    pub(crate) key: Option<PageKey>,
    /// Where the page is not known: the keys it lies between, as far as they are.
    between: (Option<PageKey>, Option<PageKey>),
    /// Bytes that are no record any more, where no offset says how many they were.
    bytes: usize,
    /// Whether it may have been a change to any of the pages before it.
    may_change: bool,
}

impl LeafDamage {
    fn new(offset: usize, what: impl Into<String>, key: Option<PageKey>) -> LeafDamage {
        LeafDamage { offset, what: what.into(), key, between: (None, None), bytes: 0, may_change: false }
    }

    /// Bytes behind the sorted records that are no record any more, up to `end`.
    fn unsorted(offset: usize, end: usize) -> LeafDamage {
        let what = "no record where one should be".into();
        LeafDamage { offset, what, key: None, between: (None, None), bytes: end - offset, may_change: true }
    }

    /// The damage with the highest rank says most of a page.
    pub(crate) fn rank(&self) -> (bool, usize) {
        (self.may_change, self.offset)
    }

    /// Whether a record at this offset of the leaf may not be the newest of its page any more.
    pub(crate) fn may_change(&self, offset: usize) -> bool {
        self.may_change && offset < self.offset
    }

    /// The keys that the damaged page lies between, as far as they are known.
    pub(crate) fn between(&self) -> (Option<PageKey>, Option<PageKey>) {
        self.between
    }

    /// Whether the page with this key may be what was damaged.
    pub(crate) fn may_hide(&self, key: PageKey) -> bool {
        // The leaf's header is only a help to find records.
        let (after, before) = self.between;
        let inside = after.is_none_or(|a| a < key) && before.is_none_or(|b| key < b);
        self.key.is_none() && self.offset != 0 && inside
    }
}

/// The pages of a leaf and what is damaged in it.
#[derive(Debug, Default)]
pub(crate) struct Leaf {
    /// Sorted by key. Damaged records are among them where their header still names the page.
    pub(crate) items: Vec<(PageKey, Item)>,
    pub(crate) damage: Vec<LeafDamage>,
    pub(crate) records: u64,
}

impl Leaf {
    /// The damage of a record that begins at this offset.
    pub(crate) fn damage_at(&self, offset: usize) -> Option<&LeafDamage> {
        self.damage.iter().find(|damage| damage.offset == offset)
    }

    /// Damage that hides which page it hit.
    pub(crate) fn nameless_damage(&self) -> impl Iterator<Item = &LeafDamage> {
        self.damage.iter().filter(|d| d.key.is_none() && d.offset != 0)
    }

    /// Takes into account how many bytes of the leaf are alive: if everything that is damaged is, it was new pages, and
    /// changed none.
    pub(crate) fn judge(&mut self, live_bytes: u32) {
        let damaged: usize = self.damage.iter().filter(|d| d.may_change).map(|d| d.bytes).sum();
        let left: usize = self.items.iter().map(|(_, item)| item.bytes()).sum();
        if damaged > 0 && left + damaged == live_bytes as usize {
            self.damage.iter_mut().for_each(|damage| damage.may_change = false);
        }
    }

    /// Finds out of which pages damaged records are that have lost no more than a byte of their header.
    fn name_damage(&mut self, bytes: &Bytes) {
        for damage in self.damage.iter_mut().filter(|d| d.may_change) {
            let place = bytes.slice(damage.offset..damage.offset + damage.bytes);
            let Some(mended) = mended(&place) else { continue };
            let Ok(record) = RecordRef::parse_unverified(&mended) else { continue };
            let (kind, key) = (record.kind(), record.key());
            (damage.key, damage.may_change) = (Some(key), false);
            // A lost visit takes nothing from its page.
            let at = self.items.binary_search_by_key(&key, |(key, _)| *key);
            let item = Item { page: place, seen: None };
            match (at, self.items.get_mut(at.unwrap_or(usize::MAX))) {
                (Ok(_), Some((_, before))) if kind != Kind::Seen => *before = item,
                (Err(at), _) if kind == Kind::Page => self.items.insert(at, (key, item)),
                _ => {}
            }
        }
    }
}

/// Where each record of a leaf lies, found by its offsets and then by walking.
pub(super) fn places(bytes: &[u8]) -> (Vec<(usize, usize)>, Vec<LeafDamage>) {
    let mut damage = Vec::new();
    let (mut at, mut places) = (HEADER_BYTES, Vec::new());
    match LeafHeader::decode(bytes) {
        Ok((header, offsets)) => {
            at = HEADER_BYTES + header.count * 4;
            for (i, &start) in offsets.iter().enumerate() {
                let start = start as usize;
                let end = match offsets.get(i + 1) {
                    Some(&next) => next as usize,
                    None => start + record_len(bytes.get(start..).unwrap_or_default()).unwrap_or(0) as usize,
                };
                if start < end && end <= bytes.len() {
                    places.push((start, end));
                    at = end;
                } else {
                    // Where nothing says how long the last one is, records behind it may be lost with it.
                    at = next_record(bytes, start + 1);
                    damage.push(LeafDamage::unsorted(start.min(at), at));
                }
            }
        }
        Err(what) => {
            damage.push(LeafDamage::new(0, what, None));
            at = next_record(bytes, at);
            if !is_first(bytes, at) {
                damage.push(LeafDamage::new(HEADER_BYTES, "no record where the first may have been", None));
            }
        }
    }
    while at < bytes.len() {
        let rest = bytes.get(at..).unwrap_or_default();
        match record_len(rest) {
            Ok(len) if len as usize <= rest.len() => {
                places.push((at, at + len as usize));
                at += len as usize;
            }
            _ => {
                let next = next_record(bytes, at + 1);
                damage.push(LeafDamage::unsorted(at, next));
                at = next;
            }
        }
    }
    (places, damage)
}

/// The parts of a leaf that are what was written, ascending: its header with the offsets, and its whole records.
pub(super) fn whole_parts(bytes: &[u8]) -> Vec<Range<usize>> {
    let header = LeafHeader::decode(bytes).ok().map(|(header, _)| 0..HEADER_BYTES + header.count * 4);
    let whole = |(start, end): &(usize, usize)| {
        RecordRef::parse(bytes.get(*start..*end).unwrap_or_default())
            .is_ok_and(|record| record.as_bytes().len() == end - start)
    };
    let records = places(bytes).0.into_iter().filter(whole).map(|(start, end)| start..end);
    header.into_iter().chain(records).collect()
}

/// Whether what is left of a damaged header, its count or its first offset, says that the first record is here.
fn is_first(bytes: &[u8], at: usize) -> bool {
    let word = |from: usize| {
        let word = bytes.get(from..from + 4).and_then(|w| w.try_into().ok());
        word.map_or(0, |w| u32::from_le_bytes(w) as usize)
    };
    word(HEADER_BYTES) == at || HEADER_BYTES + word(COUNT_OFFSET) * 4 == at
}

/// The next place where a record seems to start.
fn next_record(bytes: &[u8], from: usize) -> usize {
    let candidates = (from..bytes.len()).filter(|&at| bytes.get(at..at + 3) == Some(b"WBR"));
    candidates
        .into_iter()
        .find(|&at| record_len(bytes.get(at..).unwrap_or_default()).is_ok())
        .unwrap_or(bytes.len())
}

/// Reads a leaf: the outcome of all its records, sorted by key. With `verify` every record's checksum is computed, else that
/// of records that could not be read as a whole.
pub(crate) fn decode(content: &Content, verify: bool) -> Leaf {
    let bytes = &content.bytes;
    let (places, damage) = places(bytes);
    let mut leaf = Leaf { damage, ..Leaf::default() };
    let mut sorted = true;
    let mut unbounded: Vec<usize> = Vec::new(); // damage whose next page is not seen yet
    for (start, end) in places {
        let slice = bytes.slice(start..end);
        let readable = content.is_readable(&(start..end));
        let parsed =
            if verify || !readable { RecordRef::parse(&slice) } else { RecordRef::parse_unverified(&slice) };
        let record = match parsed {
            Ok(record) => record,
            Err(e) => {
                // Where the header holds, the page is known: the item stays, so that a lookup reports the damage.
                let known = record_len(&slice).and_then(|_| RecordRef::parse_unverified(&slice));
                let known = known.ok().filter(|r| r.kind() == Kind::Page).map(|r| r.key());
                let what = if readable { e.to_string() } else { "it cannot be read".into() };
                let mut damage = LeafDamage::new(start, what, known);
                if sorted {
                    damage.between.0 = leaf.items.last().map(|(key, _)| *key);
                    unbounded.push(leaf.damage.len());
                }
                leaf.damage.push(damage);
                if let Some(key) = known {
                    sorted &= leaf.items.last().is_none_or(|(last, _)| *last < key);
                    leaf.items.push((key, Item { page: slice, seen: None }));
                }
                continue;
            }
        };
        leaf.records += 1;
        let key = record.key();
        match (record.kind(), leaf.items.last_mut()) {
            (Kind::Seen, Some((last, item))) if sorted && *last == key => item.seen = Some(slice),
            (Kind::Page, last) if sorted && last.as_ref().is_none_or(|(last, _)| *last < key) => {
                for at in unbounded.drain(..) {
                    if let Some(damage) = leaf.damage.get_mut(at) {
                        damage.between.1 = Some(key);
                    }
                }
                leaf.items.push((key, Item { page: slice, seen: None }));
            }
            // Appended later: from here on in the order of arrival, not of keys.
            _ => {
                sorted = false;
                leaf.items.push((key, Item { page: slice, seen: None }));
            }
        }
    }
    if !sorted {
        leaf.items = replay(std::mem::take(&mut leaf.items));
    }
    leaf.name_damage(bytes);
    leaf
}

/// The outcome of changes in the order they came.
fn replay(changes: Vec<(PageKey, Item)>) -> Vec<(PageKey, Item)> {
    let mut pages: BTreeMap<PageKey, Item> = BTreeMap::new();
    for (key, change) in changes {
        let Ok(record) = RecordRef::parse_unverified(&change.page) else { continue };
        let before = pages.remove(&key);
        let current = before.as_ref().and_then(Item::version);
        let after = match record.kind() {
            Kind::Page if change.seen.is_some() => Some(change),
            _ => {
                let mut pending = Pending::default();
                pending.stage(&Row::of(&record), change.page.clone(), current);
                pending.resolve(before)
            }
        };
        if let Some(item) = after {
            pages.insert(key, item);
        }
    }
    pages.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Page, PageId};

    fn key(i: u64) -> PageKey {
        PageKey { id: PageId(i), tie: 1 }
    }

    fn page(i: u64, fetched_at_ms: u64) -> Bytes {
        let mut out = Vec::new();
        let page = Page { url: "http://h/", fetched_at_ms, body: b"body", ..Page::default() };
        crate::record::encode(&page, key(i), (crate::Codec::Plain, 0, [b"body", b""]), None, &mut out)
            .unwrap();
        out.into()
    }

    fn mark(kind: Kind, i: u64) -> Bytes {
        let mut out = Vec::new();
        crate::record::encode_mark(kind, key(i), 77, 5, &mut out);
        out.into()
    }

    fn shown(leaf: &Leaf) -> Vec<(u64, u64, bool)> {
        leaf.items
            .iter()
            .map(|(k, i)| (k.id.0, i.version().unwrap().fetched_at_ms, i.seen.is_some()))
            .collect()
    }

    #[test]
    fn appended_changes_have_their_effect() {
        let items: Vec<Item> = (1..=4).map(|i| Item { page: page(i, 10), seen: None }).collect();
        let mut bytes = encode(&items, 1, 0, 9);
        assert_eq!(bytes.len(), HEADER_BYTES + items.iter().map(item_bytes).sum::<usize>());
        let changes =
            [page(2, 11), page(3, 9), mark(Kind::Tombstone, 4), mark(Kind::Seen, 1), page(0, 5), page(4, 3)];
        changes.iter().for_each(|record| bytes.extend_from_slice(record));
        let leaf = decode(&Bytes::from(bytes).into(), true);
        assert_eq!(
            shown(&leaf),
            [(0, 5, false), (1, 10, true), (2, 11, false), (3, 10, false), (4, 3, false)]
        );
        assert!(leaf.damage.is_empty());
    }

    #[test]
    fn damage_costs_only_the_record_it_hits() {
        let items: Vec<Item> =
            (1..=5).map(|i| Item { page: page(i, 10), seen: Some(mark(Kind::Seen, i)) }).collect();
        let bytes = encode(&items, 1, 0, 9);
        let whole = decode(&Bytes::from(bytes.clone()).into(), true);
        assert_eq!((whole.items.len(), whole.records, whole.damage.len()), (5, 10, 0));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 16;
            let leaf = decode(&Bytes::from(damaged).into(), true);
            assert!(!leaf.damage.is_empty(), "byte {at}");
            let good = leaf.items.iter().filter(|(_, i)| RecordRef::parse(&i.page).is_ok()).count();
            assert!(good >= 4, "byte {at}: {good} good pages");
        }
    }
}
