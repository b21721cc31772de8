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
    is_sorted: bool,
    /// It begins with the last record that is in key order; what came later may follow.
    is_border: bool,
}

/// The damaged regions of a leaf, and the pages that are whole in it, each with its version's checksum.
fn regions(bytes: &[u8], is_hash: bool) -> (Vec<Region>, BTreeSet<(PageKey, u64)>) {
    let (places, _) = leaf::places(bytes);
    let header = LeafHeader::decode(bytes).ok();
    // With the header damaged nobody knows where the first record is to begin.
    let mut at = header.as_ref().map_or(usize::MAX, |(_, offsets)| leaf::HEADER_BYTES + offsets.len() * 4);
    // Behind the last record of the header, a log has those that came later.
    let last_sorted =
        header.as_ref().and_then(|(_, offsets)| offsets.last()).map_or(0, |last| *last as usize);
    let sorted = |start: usize| is_hash || start <= last_sorted;
    let (mut regions, mut whole) = (Vec::<Region>::new(), BTreeSet::new());
    let mut after = None;
    let mut open: Option<Region> = None;
    let begin = |start: usize, after| {
        let (is_sorted, is_border) = (sorted(start), !is_hash && start == last_sorted);
        Region { start, end: start, places: Vec::new(), after, before: None, is_sorted, is_border }
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
                    region.before = Some(record.key()).filter(|_| sorted(start));
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
            let mut filled = fill(bytes, &region, &left, has_key).filter(|_| region.is_sorted || may_guess);
            is_guess |= filled.is_some() && !region.is_sorted;
            if filled.is_none() && region.is_border && may_guess {
                filled = fill(bytes, &Region { is_sorted: false, ..region }, &left, has_key);
                is_guess |= filled.is_some();
            }
            writes.extend(filled.into_iter().flatten());
        }
    }
    (writes, is_guess)
}

/// The records that fill a region exactly, in key order, if there is only one way. What is appended to a log at once is in
/// key order, too.
fn fill<'a>(
    bytes: &[u8],
    region: &Region,
    records: &[&'a Record],
    has_key: impl Fn(PageKey) -> bool,
) -> Option<Writes<'a>> {
    let room = region.end - region.start;
    let key = |record: &&Record| record.get().key();
    let fits = |record: &&&Record| {
        let key = key(record);
        let between =
            region.after.is_none_or(|after| after < key) && region.before.is_none_or(|before| key < before);
        !region.is_sorted || (between && !has_key(key))
    };
    let fitting: Vec<&Record> = records.iter().filter(fits).copied().collect();
    let mut found: Option<Vec<&Record>> = None;
    let mut ways = vec![(0, 0, Vec::new())]; // records looked at, bytes filled, records taken
    let mut steps = 0;
    while let Some((at, filled, taken)) = ways.pop() {
        steps += 1;
        if steps > WAYS_MAX || (filled == room && found.is_some()) {
            return None; // there is another way
        }
        if filled == room {
            found = Some(taken);
            continue;
        }
        let start = region.start + filled;
        if region.places.contains(&(start, start + RECORD_BYTES_MIN)) {
            ways.push((at, filled + RECORD_BYTES_MIN, taken)); // a mark
            continue;
        }
        for (next, record) in fitting.iter().enumerate().skip(at) {
            let filled = filled + record.bytes().len();
            let may_be = filled <= room && may_be_rest_of(bytes, start, region, record);
            if may_be && taken.last().is_none_or(|last| key(last) < key(record)) {
                let taken = taken.iter().copied().chain([*record]).collect();
                ways.push((next + 1, filled, taken));
            }
        }
    }
    let mut found = found?;
    if region.is_border {
        // The one with an offset comes after those before it.
        found.sort_by_key(|record| region.after.is_some_and(|after| record.get().key() <= after));
    }
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
