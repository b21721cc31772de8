//! Damaged records of leaves get their bytes back, in place; damaged headers of leaves are made anew from the records.
//!
//! ```text
//!   … whole (key 3) | region: bytes that are no whole record | whole (key 9) …
//! ```
//!
//! 1. Written over are only bytes that are no whole record. A record goes where its own checksum still stands at the end of
//!    a place of its length, or its key and time in the header; where nothing is left of a record, those records that belong
//!    between the neighbours' keys have to fill the region exactly, in one way. Which versions a leaf has, the generation
//!    tells that names it.
//! 2. Directory and generations name the same bytes as before. A write that is torn leaves damage, as before.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::RangeStore;
use super::directory::{Directory, Entry, Extent};
use super::leaf::{self, LeafHeader};
use super::upkeep;
use crate::error::{Result, StorageError};
use crate::page::{PageId, PageKey};
use crate::record::{Kind, Record, RecordRef, crc64, record_len};
use crate::store::Verified;

/// Ways to fill a region that are tried.
const WAYS_MAX: usize = 10_000;

/// A leaf as directories name it: as far as it is filled, and its ids.
#[derive(Default)]
struct Named {
    used: u32,
    ids: (u64, u64),
}

/// Calls `each` with every directory: the current one and those of kept generations.
fn directories(store: &RangeStore, mut each: impl FnMut(&Directory)) {
    each(&store.view.load().directory);
    store.kept.lock().iter().for_each(|kept| each(&kept.directory));
}

fn name(leaves: &mut BTreeMap<Extent, Named>, entry: &Entry, last_id: u64) {
    if entry.extent.slots > 0 {
        let leaf = leaves.entry(entry.extent).or_default();
        leaf.used = leaf.used.max(entry.used);
        leaf.ids = (entry.first_id, last_id);
    }
}

/// Gives damaged records of a generation, or of the current state, their bytes back; returns how many there were.
pub(super) fn heal(store: &RangeStore, generation: Option<u64>, records: &[Record]) -> Result<u64> {
    let mut records: Vec<&Record> = records
        .iter()
        .filter(|r| RecordRef::parse(r.bytes()).is_ok_and(|r| r.kind() == Kind::Page))
        .collect();
    records.sort_by_key(|record| record.get().key());
    let _writer = store.writer.lock(); // leaves are neither appended to nor given up meanwhile
    let directory = match generation {
        None => store.view.load().directory.clone(),
        Some(number) => match store.kept.lock().iter().find(|kept| kept.number == number) {
            Some(kept) => kept.directory.clone(),
            None => return Ok(0),
        },
    };
    let mut leaves = BTreeMap::new();
    for (entry, last_id) in records.iter().filter_map(|record| directory.find(record.get().key().id.0)) {
        name(&mut leaves, entry, last_id);
    }
    let (mut healed, mut failed) = (0, None);
    for (extent, leaf) in &leaves {
        match heal_leaf(store, *extent, leaf, &records) {
            Ok(count) => healed += count,
            // The others are healed all the same.
            Err(e) => _ = failed.get_or_insert(e),
        }
    }
    failed.map_or(Ok(healed), Err)
}

fn heal_leaf(store: &RangeStore, extent: Extent, leaf: &Named, records: &[&Record]) -> Result<u64> {
    let mut healed = 0;
    // What is whole now may tell where its neighbours belong.
    loop {
        let bytes = store.slots.read(extent, leaf.used)?;
        let writes = missing(&bytes, store.is_hash(), leaf.ids, records);
        if writes.is_empty() {
            return Ok(healed);
        }
        healed += writes.len() as u64;
        write(store, extent, &writes)?;
    }
}

/// Writes bytes into a leaf, durably.
fn write(store: &RangeStore, extent: Extent, writes: &[(usize, &[u8])]) -> Result<()> {
    let (file, path) = (store.slots.file(), store.slots.path());
    for (at, bytes) in writes {
        let written = file.write_all_at(bytes, store.slots.offset(extent) + *at as u64);
        written.map_err(|e| StorageError::io("write", path, e))?;
    }
    file.sync().map_err(|e| StorageError::io("sync", path, e))?;
    directories(store, |directory| {
        directory.iter().filter(|entry| entry.extent == extent).for_each(|entry| entry.index.forget());
    });
    // What opening the store found in leaves is found again by reading them.
    store.found.lock().retain(|damage| damage.path != path);
    Ok(())
}

/// Bytes between whole records, and the places that the leaf's offsets name in them.
struct Region {
    start: usize,
    end: usize,
    places: Vec<(usize, usize)>,
    /// Keys of the neighbours, where records are in key order.
    after: Option<PageKey>,
    before: Option<PageKey>,
    is_sorted: bool,
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
        let is_sorted = sorted(start);
        Region { start, end: start, places: Vec::new(), after, before: None, is_sorted }
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

/// Which bytes to write where in a leaf, on these ids, so that these records, sorted by key, are whole in it.
fn missing<'a>(
    bytes: &[u8],
    is_hash: bool,
    ids: (u64, u64),
    records: &[&'a Record],
) -> Vec<(usize, &'a [u8])> {
    let (regions, whole) = regions(bytes, is_hash);
    let is_here = |record: &&Record| {
        let key = record.get().key();
        ids.0 <= key.id.0 && key.id.0 <= ids.1 && !whole.contains(&(key, record.get().crc()))
    };
    let left: Vec<&Record> = records.iter().copied().filter(is_here).collect();
    let mut writes: Vec<(usize, &[u8])> = Vec::new();
    for region in regions {
        let before = writes.len();
        for &(start, end) in &region.places {
            let slice = bytes.get(start..end).unwrap_or_default();
            let rest = left.iter().find(|record| is_rest_of(slice, record));
            writes.extend(rest.map(|record| (start, &record.bytes()[..])));
        }
        if writes.len() == before {
            let has_key = |key: PageKey| whole.range((key, 0)..=(key, u64::MAX)).next().is_some();
            writes.extend(fill(bytes, &region, &left, has_key).into_iter().flatten());
        }
    }
    writes
}

/// The records that fill a region exactly, in key order, if there is only one way. What is appended to a log at once is in
/// key order, too.
fn fill<'a>(
    bytes: &[u8],
    region: &Region,
    records: &[&'a Record],
    has_key: impl Fn(PageKey) -> bool,
) -> Option<Vec<(usize, &'a [u8])>> {
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
        for (next, record) in fitting.iter().enumerate().skip(at) {
            let start = region.start + filled;
            let filled = filled + record.bytes().len();
            let may_be = filled <= room && may_be_rest_of(bytes, start, region, record);
            if may_be && taken.last().is_none_or(|last| key(last) < key(record)) {
                let taken = taken.iter().copied().chain([*record]).collect();
                ways.push((next + 1, filled, taken));
            }
        }
    }
    let mut at = region.start;
    let place = |record: &'a Record| {
        at += record.bytes().len();
        (at - record.bytes().len(), &record.bytes()[..])
    };
    found.map(|found| found.into_iter().map(place).collect())
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

/// The ids of the leaf that an offset of the file is in.
pub(super) fn ids_at(store: &RangeStore, path: &Path, offset: u64) -> Option<(PageId, PageId)> {
    let mut found = None;
    directories(store, |directory| {
        let mut entries = directory.iter().peekable();
        while let Some(entry) = entries.next() {
            let start = store.slots.offset(entry.extent);
            if entry.extent.slots > 0 && (start..start + u64::from(entry.used)).contains(&offset) {
                let last = entries.peek().map_or(u64::MAX, |next| next.first_id - 1);
                found = Some((PageId(entry.first_id), PageId(last)));
            }
        }
    });
    found.filter(|_| path == store.slots.path())
}

/// Makes headers of leaves anew where all records are whole, and small files where all leaves are. Returns what is damaged
/// afterwards.
pub(super) fn mend(store: &RangeStore) -> Result<Verified> {
    mend_headers(store)?;
    let report = upkeep::verify(store)?;
    // What a sweep has set aside is the last trace of its pages.
    let is_set_aside =
        |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("damaged-"));
    let small = |path: &Path| path != store.slots.path() && path != store.dir && !is_set_aside(path);
    if report.damage.is_empty() || !report.damage.iter().all(|damage| small(&damage.path)) {
        return Ok(report);
    }
    upkeep::repair(store, false)?;
    upkeep::verify(store)
}

fn mend_headers(store: &RangeStore) -> Result<()> {
    let writer = store.writer.lock();
    let mut leaves = BTreeMap::new();
    directories(store, |directory| {
        let mut entries = directory.iter().peekable();
        while let Some(entry) = entries.next() {
            name(&mut leaves, entry, entries.peek().map_or(u64::MAX, |next| next.first_id - 1));
        }
    });
    for (extent, named) in &leaves {
        let bytes = match store.slots.read(*extent, named.used) {
            Err(StorageError::Corrupt { .. }) => continue, // reported by who reads it
            read => read?,
        };
        if LeafHeader::decode(&bytes).is_err()
            && let Some(header) = header(&bytes, named.ids, writer.commit.next_leaf)
        {
            write(store, *extent, &[(0, &header)])?;
        }
    }
    Ok(())
}

/// The header of a leaf whose header is damaged and whose records are whole. What it says of the records they tell
/// themselves; the sequence is the one the checksum is of, if that still stands there.
fn header(bytes: &[u8], ids: (u64, u64), next_leaf: u64) -> Option<Vec<u8>> {
    let (places, damage) = leaf::places(bytes);
    let first = places.first()?.0;
    let count = first.checked_sub(leaf::HEADER_BYTES).filter(|table| table.is_multiple_of(4))? / 4;
    let whole =
        |(start, end): &(usize, usize)| RecordRef::parse(bytes.get(*start..*end).unwrap_or_default()).is_ok();
    // The first damage is the header itself.
    if damage.len() > 1 || count > places.len() || !places.iter().all(whole) {
        return None;
    }
    let table: Vec<u8> =
        places.iter().take(count).flat_map(|(start, _)| (*start as u32).to_le_bytes()).collect();
    let head = |sequence: u64| {
        let mut head = [leaf::MAGIC, crate::identity::VERSION.to_le_bytes()].concat();
        for word in [sequence, ids.0, ids.1, count as u64] {
            head.extend_from_slice(&word.to_le_bytes());
        }
        head
    };
    let word = |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    let (said, crc) = (word(8)?, word(40)?);
    let of_table = crc64(&table).rotate_left(1);
    let is_it = |sequence: &u64| crc64(&head(*sequence)) ^ of_table == crc;
    let sequence = Some(said).filter(is_it).or_else(|| (0..next_leaf).rev().find(is_it));
    let head = head(sequence.unwrap_or(said));
    let crc = leaf::header_crc(&head, &table);
    Some([&head[..], &crc.to_le_bytes(), &table].concat())
}
