//! Which records of a leaf are missing, and where they belong: the damaged regions of a leaf, and what fills them.
//!
//! ```text
//!   … whole (key 3) | region: bytes that are no whole record | whole (key 9) …
//! ```
//!
//! A record goes where its own checksum still stands at the end of a place of its length, or its key and time in the header. Where
//! nothing is left of a record, those records that belong between the neighbours' keys have to fill the region exactly, in one way.
//! Behind the sorted records of a log no keys tell: what fills such a region is a guess, for the caller to judge.

use std::collections::BTreeSet;

use super::leaf::{self, LeafHeader};
use crate::page::PageKey;
use crate::record::{Kind, RECORD_BYTES_MIN, Record, RecordRef, record_len};

/// Ways to fill a region that are tried.
const WAYS_MAX: usize = 10_000;

/// Bytes between whole records, and the places that the leaf's offsets name in them.
struct Region {
    start: usize,
    end: usize,
    places: Vec<(usize, usize)>,
    /// Keys of the neighbours, where records are in key order.
    after: Option<PageKey>,
    before: Option<PageKey>,
    /// Where the last record begins that is in key order.
    last_sorted: usize,
}

impl Region {
    /// Whether something in it came later than what is in key order.
    fn is_guess(&self) -> bool {
        self.end > self.last_sorted && self.before.is_none()
    }
}

/// The damaged regions of a leaf, and the pages that are whole in it, each with its version's checksum.
fn regions(bytes: &[u8], is_hash: bool) -> (Vec<Region>, BTreeSet<(PageKey, u64)>) {
    let (places, _) = leaf::places(bytes);
    let header = LeafHeader::decode(bytes).ok();
    // With the header damaged nobody knows where the first record is to begin.
    let mut at = header.as_ref().map_or(usize::MAX, |(_, offsets)| leaf::HEADER_BYTES + offsets.len() * 4);
    // Behind the last record of the header, a log has those that came later.
    let last_sorted = match header.as_ref().and_then(|(_, offsets)| offsets.last()) {
        _ if is_hash => usize::MAX,
        Some(last) => *last as usize,
        None => 0,
    };
    let (mut regions, mut whole) = (Vec::<Region>::new(), BTreeSet::new());
    let mut after = None;
    let mut open: Option<Region> = None;
    let begin = |start: usize, after| Region {
        start,
        end: start,
        places: Vec::new(),
        after,
        before: None,
        last_sorted,
    };
    for (start, end) in places {
        let slice = bytes.get(start..end).unwrap_or_default();
        let parsed = RecordRef::parse(slice).ok().filter(|r| r.as_bytes().len() == slice.len());
        if at < start {
            open.get_or_insert_with(|| begin(at, after)).end = start;
        }
        match parsed {
            Some(record) => {
                if let Some(mut region) = open.take() {
                    region.before = Some(record.key()).filter(|_| start <= last_sorted);
                    regions.push(region);
                }
                if record.kind() == Kind::Page {
                    whole.insert((record.key(), record.crc()));
                }
                after = Some(record.key());
            }
            None => {
                let region = open.get_or_insert_with(|| begin(start, after));
                region.end = end;
                region.places.push((start, end));
            }
        }
        at = end;
    }
    if at < bytes.len() {
        open.get_or_insert_with(|| begin(at, after)).end = bytes.len();
    }
    regions.extend(open);
    (regions, whole)
}

/// Bytes and where to write them.
pub(super) type Writes<'a> = Vec<(usize, &'a [u8])>;

/// Which bytes to write where in a leaf, on these ids, so that these records, sorted by key, are whole in it; and whether only
/// their length says so.
pub(super) fn missing<'a>(
    bytes: &[u8],
    is_hash: bool,
    ids: (u64, u64),
    records: &[&'a Record],
    may_guess: bool,
) -> (Writes<'a>, bool) {
    let (regions, whole) = regions(bytes, is_hash);
    let is_here = |record: &&Record| {
        let key = record.get().key();
        ids.0 <= key.id.0 && key.id.0 <= ids.1 && !whole.contains(&(key, record.get().crc()))
    };
    let left: Vec<&Record> = records.iter().copied().filter(is_here).collect();
    let (mut writes, mut is_guess) = (Writes::new(), false);
    for region in regions {
        let before = writes.len();
        for &(start, end) in &region.places {
            let slice = bytes.get(start..end).unwrap_or_default();
            let rest = left.iter().find(|record| is_rest_of(slice, record));
            writes.extend(rest.map(|record| (start, &record.bytes()[..])));
        }
        if writes.len() == before {
            let has_key = |key: PageKey| whole.range((key, 0)..=(key, u64::MAX)).next().is_some();
            let filled = fill(bytes, &region, &left, has_key).filter(|_| may_guess || !region.is_guess());
            is_guess |= filled.is_some() && region.is_guess();
            writes.extend(filled.into_iter().flatten());
        }
    }
    (writes, is_guess)
}

/// The records that fill a region exactly, if no others do: as far as the sorted records go in key order, and then in key order
/// again. What came later may have come in another order; that makes no difference.
fn fill<'a>(
    bytes: &[u8],
    region: &Region,
    records: &[&'a Record],
    has_key: impl Fn(PageKey) -> bool,
) -> Option<Writes<'a>> {
    let room = region.end - region.start;
    let key = |record: &&Record| record.get().key();
    let fits = |record: &&Record| {
        let key = key(record);
        let between =
            region.after.is_none_or(|after| after < key) && region.before.is_none_or(|before| key < before);
        between && !has_key(key)
    };
    let mut found: Option<Vec<&Record>> = None;
    let mut ways = vec![(0, Vec::new(), 0)]; // bytes filled, records taken, and how many of those are sorted
    let mut steps = 0;
    while let Some((filled, taken, sorted)) = ways.pop() {
        steps += 1;
        if steps > WAYS_MAX {
            return None;
        }
        let start = region.start + filled;
        if filled == room {
            match &found {
                Some(found) if !is_same_set(found, &taken) => return None, // there is another way
                _ => found = Some(taken),
            }
            continue;
        }
        if region.places.contains(&(start, start + RECORD_BYTES_MIN)) {
            ways.push((filled + RECORD_BYTES_MIN, taken, sorted)); // a mark
            continue;
        }
        let is_sorted = start <= region.last_sorted;
        let last = taken.last().filter(|_| is_sorted || taken.len() > sorted).map(key);
        for record in records.iter().filter(|record| !is_sorted || fits(record)) {
            let filled = filled + record.bytes().len();
            let is_next = last.is_none_or(|last| last < key(record))
                && !taken.iter().any(|taken: &&Record| std::ptr::eq(*taken, *record));
            if is_next && filled <= room && may_be_rest_of(bytes, start, region, record) {
                let taken = taken.iter().copied().chain([*record]).collect();
                ways.push((filled, taken, sorted + usize::from(is_sorted)));
            }
        }
    }
    let found = found?;
    let mut at = region.start;
    let place = |record: &'a Record| {
        while region.places.contains(&(at, at + RECORD_BYTES_MIN)) {
            at += RECORD_BYTES_MIN;
        }
        at += record.bytes().len();
        (at - record.bytes().len(), &record.bytes()[..])
    };
    Some(found.into_iter().map(place).collect())
}

/// Whether these are the same records, in whatever order.
fn is_same_set(a: &[&Record], b: &[&Record]) -> bool {
    a.len() == b.len() && a.iter().all(|a| b.iter().any(|b| std::ptr::eq(*a, *b)))
}

/// Whether a record may have stood here: nothing that is still to be read says otherwise.
fn may_be_rest_of(bytes: &[u8], start: usize, region: &Region, record: &Record) -> bool {
    let end = start + record.bytes().len();
    let slice = bytes.get(start..end).unwrap_or_default();
    let told_otherwise = record_len(slice).is_ok() && !is_rest_of(slice, record);
    let mut cuts = region.places.iter().flat_map(|(from, to)| [*from, *to]);
    !told_otherwise && !cuts.any(|cut| start < cut && cut < end)
}

/// Whether damaged bytes are what is left of this record.
fn is_rest_of(bytes: &[u8], record: &Record) -> bool {
    if bytes.len() != record.bytes().len() {
        return false;
    }
    let crc = |bytes: &[u8]| bytes.last_chunk::<8>().copied();
    let whole = record.get();
    let named = || {
        let found = record_len(bytes).ok().and_then(|_| RecordRef::parse_unverified(bytes).ok())?;
        let same = (found.key(), found.fetched_at_ms(), found.epoch(), found.kind());
        Some(same == (whole.key(), whole.fetched_at_ms(), whole.epoch(), Kind::Page))
    };
    crc(bytes) == crc(record.bytes()) || named() == Some(true)
}
