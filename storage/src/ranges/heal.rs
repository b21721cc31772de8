//! Damaged records of leaves get their bytes back, in place; damaged headers of leaves are made anew from the records.
//!
//! 1. Written over are only bytes that are no whole record, and blocks that cannot be read, when everything in them is known
//!    again: a part of such a block cannot be written, and what is unknown in it may still be read one day. Where records belong,
//!    `missing.rs` and `front.rs` find out; what they guess counts if the leaf then has as many whole pages as the directory says.
//!    Which versions a leaf has, the generation tells that names it.
//! 2. A mark of a visit that cannot be read gives way to one that changes nothing: the visit is lost, and would else keep the
//!    pages around it from being healed. What may have been a deletion is left as it is.
//! 3. Directory and generations name the same bytes as before. A write that is torn leaves damage, as before.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use bytes::Bytes;

use super::RangeStore;
use super::content::{BLOCK_BYTES, Content, overlap};
use super::directory::{Directory, Entry, Extent};
use super::front;
use super::generations;
use super::leaf::{self, LeafHeader};
use super::missing::missing;
use super::upkeep;
use crate::error::{Result, StorageError};
use crate::page::PageId;
use crate::record::{self, Kind, RECORD_BYTES_MIN, Record, RecordRef, crc64};
use crate::store::Verified;

/// A leaf as a directory names it: as far as it is filled for that, its ids; and as far as it is filled for any, and whether it is
/// one of the current state.
#[derive(Default)]
struct Named {
    used: u32,
    pages: u32,
    filled: u32,
    ids: (u64, u64),
    is_current: bool,
}

/// Calls `each` with every directory: the current one and those of kept generations.
fn directories(store: &RangeStore, mut each: impl FnMut(&Directory)) {
    each(&store.view.load().directory);
    store.kept.lock().iter().for_each(|kept| each(&kept.directory));
}

fn name(leaves: &mut BTreeMap<Extent, Named>, entry: &Entry, last_id: u64) {
    if entry.extent.slots > 0 {
        let leaf = leaves.entry(entry.extent).or_default();
        if leaf.used <= entry.used {
            (leaf.used, leaf.pages) = (entry.used, entry.pages);
        }
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
    let writer = store.writer.lock(); // leaves are neither appended to nor given up meanwhile
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
    fill_up(store, &mut leaves);
    let newest = newest_leaf(store, writer.commit.next_leaf);
    let (mut healed, mut failed) = (0, None);
    for (extent, leaf) in &leaves {
        match heal_leaf(store, *extent, leaf, &records, newest) {
            Ok(count) => healed += count,
            // The others are healed all the same.
            Err(e) => _ = failed.get_or_insert(e),
        }
    }
    failed.map_or(Ok(healed), Err)
}

/// Takes into account how far any directory says that leaves are filled: what was appended since a generation was kept lies in
/// the same blocks.
fn fill_up(store: &RangeStore, leaves: &mut BTreeMap<Extent, Named>) {
    directories(store, |directory| {
        for entry in directory.iter() {
            if let Some(leaf) = leaves.get_mut(&entry.extent) {
                leaf.filled = leaf.filled.max(entry.used);
            }
        }
    });
    for entry in store.view.load().directory.iter() {
        if let Some(leaf) = leaves.get_mut(&entry.extent) {
            leaf.is_current = true;
        }
    }
}

/// The sequence of the last leaf written that was not rolled back. A leaf of the current state may bear it: whatever else is
/// on its ids is older or void.
fn newest_leaf(store: &RangeStore, next_leaf: u64) -> u64 {
    // A damaged list is asked for nothing else either.
    let void = generations::void_leaves(&*store.disk, &store.dir).unwrap_or_default();
    (0..next_leaf).rev().find(|leaf| !void.iter().any(|void| void.contains(leaf))).unwrap_or(0)
}

/// A leaf with what could be put back.
struct Patched {
    bytes: Vec<u8>,
    /// Where records came back, and what else was made anew.
    placed: Vec<Range<usize>>,
    made: Vec<Range<usize>>,
    /// Whether anything stands where only its length says so.
    is_guess: bool,
}

/// Puts records, marks and the header back where they belong; only where something else than their length says so, unless it
/// may be guessed.
fn patch(
    store: &RangeStore,
    content: &Content,
    leaf: &Named,
    records: &[&Record],
    newest: u64,
    may_guess: bool,
) -> Patched {
    let mut bytes = content.bytes.to_vec();
    let used = ..leaf.used as usize; // what was appended since is healed by who names it
    let (mut placed, mut made, mut is_guess) = (Vec::new(), Vec::new(), false);
    // What is whole now may tell where its neighbours belong.
    loop {
        let part = bytes.get(used).unwrap_or_default();
        let (writes, guessed) = missing(part, store.is_hash(), leaf.ids, records, may_guess);
        if writes.is_empty() {
            break;
        }
        is_guess |= guessed;
        writes.into_iter().for_each(|(at, record)| placed.push(put(&mut bytes, at, record)));
    }
    for (at, mark) in lost_marks(content, &bytes) {
        made.push(put(&mut bytes, at, &mark));
    }
    let part = bytes.get(used).unwrap_or_default();
    if may_guess
        && !content.unreadable.is_empty()
        && let Some(front) = front::front(part, store.is_hash(), leaf.ids, records)
    {
        is_guess = true;
        let sequence = if leaf.is_current { newest } else { 0 };
        let header = encode_header(&bytes, &front.starts, leaf.ids, 0..newest + 1, sequence);
        made.extend(header.map(|header| put(&mut bytes, 0, &header)));
        front.records.iter().for_each(|(at, record)| placed.push(put(&mut bytes, *at, record)));
        front.marks.iter().for_each(|(at, mark)| made.push(put(&mut bytes, *at, mark)));
    }
    Patched { bytes, placed, made, is_guess }
}

fn heal_leaf(
    store: &RangeStore,
    extent: Extent,
    leaf: &Named,
    records: &[&Record],
    newest: u64,
) -> Result<u64> {
    let content = store.slots.read(extent, leaf.filled)?;
    let patched = patch(store, &content, leaf, records, newest, true);
    // Where nothing is left of records, others may seem to fit: not if the leaf then has all the pages that it is to have.
    let is_complete = |patched: &Patched| {
        let bytes = Bytes::copy_from_slice(patched.bytes.get(..leaf.used as usize).unwrap_or_default());
        let items = leaf::decode(&bytes.into(), true).items;
        items.iter().filter(|(_, item)| RecordRef::parse(&item.page).is_ok()).count() == leaf.pages as usize
    };
    let patched = match !patched.is_guess || is_complete(&patched) {
        true => patched,
        false => patch(store, &content, leaf, records, newest, false),
    };
    let Patched { mut bytes, mut placed, mut made, .. } = patched;
    let (known, lost) = known_blocks(&content, &bytes);
    let is_lost = |part: &Range<usize>| lost.iter().any(|block| overlap(block, part));
    placed.retain(|part| !is_lost(part));
    made.retain(|part| !is_lost(part));
    if placed.is_empty() && made.is_empty() {
        return Ok(0);
    }
    bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0); // nobody's bytes, in a slot of whole blocks
    let healed = placed.len() as u64;
    let parts = joined(placed.into_iter().chain(made).chain(known).collect());
    let writes: Vec<(usize, &[u8])> =
        parts.into_iter().filter_map(|part| Some((part.start, bytes.get(part)?))).collect();
    write(store, extent, &writes)?;
    Ok(healed)
}

/// Marks of visits in the place of those that cannot be read: nobody else has them. They say what their pages say themselves.
fn lost_marks(content: &Content, bytes: &[u8]) -> Vec<(usize, Vec<u8>)> {
    let parsed = |place: &(usize, usize)| RecordRef::parse(bytes.get(place.0..place.1)?).ok();
    let mut marks = Vec::new();
    let (places, _) = leaf::places(bytes);
    for (before, place) in places.iter().zip(places.iter().skip(1)) {
        let is_mark = place.1 - place.0 == RECORD_BYTES_MIN && !content.is_readable(&(place.0..place.1));
        if let Some(page) =
            parsed(before).filter(|r| is_mark && r.kind() == Kind::Page && parsed(place).is_none())
        {
            marks.push((place.0, empty_mark(&page)));
        }
    }
    marks
}

/// The mark of a visit that changes nothing of its page.
pub(super) fn empty_mark(page: &RecordRef<'_>) -> Vec<u8> {
    let mut mark = Vec::new();
    record::encode_mark(Kind::Seen, page.key(), page.fetched_at_ms(), page.lifetime_s(), &mut mark);
    mark
}

/// Puts bytes in their place; where that is.
fn put(bytes: &mut [u8], at: usize, part: &[u8]) -> Range<usize> {
    let place = at..at + part.len();
    if let Some(target) = bytes.get_mut(place.clone()) {
        target.copy_from_slice(part);
    }
    place
}

/// Of the blocks that cannot be read: those of which everything is known by now, as a whole, and the others.
fn known_blocks(content: &Content, bytes: &[u8]) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
    let whole = if content.unreadable.is_empty() { Vec::new() } else { leaf::whole_parts(bytes) };
    let known = |block: &Range<usize>| {
        let parts =
            whole.iter().map(|part| part.end.min(block.end).saturating_sub(part.start.max(block.start)));
        parts.sum::<usize>() == block.len()
    };
    let (mut known, lost): (Vec<_>, Vec<_>) = content.unreadable.iter().cloned().partition(known);
    known.iter_mut().for_each(|block| block.end = block.end.next_multiple_of(BLOCK_BYTES));
    (known, lost)
}

/// The same bytes in as few parts as possible.
fn joined(mut parts: Vec<Range<usize>>) -> Vec<Range<usize>> {
    parts.sort_unstable_by_key(|part| part.start);
    let mut out: Vec<Range<usize>> = Vec::with_capacity(parts.len());
    for part in parts {
        match out.last_mut().filter(|last| part.start <= last.end) {
            Some(last) => last.end = last.end.max(part.end),
            None => out.push(part),
        }
    }
    out
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
        let content = match store.slots.read(*extent, named.used) {
            Err(StorageError::Corrupt { .. }) => continue, // reported by who reads it
            read => read?,
        };
        if LeafHeader::decode(&content.bytes).is_err()
            && content.unreadable.is_empty()
            && let Some(header) = header(&content.bytes, named.ids, writer.commit.next_leaf)
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
    let starts: Vec<u32> = places.iter().take(count).map(|(start, _)| *start as u32).collect();
    let said = bytes.get(8..16).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes)?;
    encode_header(bytes, &starts, ids, 0..next_leaf, said)
}

/// A header with these offsets. Its sequence is the one, of these, that the old checksum is of, or else `otherwise`.
fn encode_header(
    bytes: &[u8],
    starts: &[u32],
    ids: (u64, u64),
    sequences: Range<u64>,
    otherwise: u64,
) -> Option<Vec<u8>> {
    let table: Vec<u8> = starts.iter().flat_map(|start| start.to_le_bytes()).collect();
    let head = |sequence: u64| {
        let mut head = [leaf::MAGIC, crate::identity::VERSION.to_le_bytes()].concat();
        for word in [sequence, ids.0, ids.1, starts.len() as u64] {
            head.extend_from_slice(&word.to_le_bytes());
        }
        head
    };
    let word = |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    let (said, crc) = (word(8)?, word(40)?);
    let of_table = crc64(&table).rotate_left(1);
    let is_it = |sequence: &u64| crc64(&head(*sequence)) ^ of_table == crc;
    let found = Some(said).filter(is_it).or_else(|| sequences.rev().find(is_it));
    let head = head(found.unwrap_or(otherwise));
    let crc = leaf::header_crc(&head, &table);
    Some([&head[..], &crc.to_le_bytes(), &table].concat())
}
