//! Answers that may be long, made a slice at a time: the next one when the client has taken the last. So a client that reads
//! slowly, or asks for much, costs the memory of one slice.
//!
//! A list or a multi-lookup of a generation is of that generation throughout. Of what changes meanwhile (live pages, an open
//! epoch, a plain store) each slice is as of its moment: a page that is there all the time is in the answer once.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use webbase_storage::PageKey;

use super::Inner;
use super::pages::Pages;
use super::requests::{Counted, Stop, finish, send_records};
use super::workers::Lane;
use crate::wire::frame::DATA_BYTES;
use crate::wire::message::{ENTRY_BYTES, Entry, Key, Missing, RENEWAL_BYTES, Renewal};
use crate::wire::mux::Call;
use crate::wire::ranges::RangeSet;

/// Bytes of records in a slice, about.
const SLICE_BYTES: usize = 4 << 20;
/// Pages of the first slice: nobody knows yet how large they are.
const FIRST_PAGES: usize = 4;
/// Rows in a slice of a list.
const SLICE_ROWS: usize = 64 << 10;

/// How many pages the next slice may have, after one of so many pages and bytes.
fn next_slice(pages: usize, bytes: usize) -> usize {
    let most = pages.saturating_mul(4);
    let fit = pages.saturating_mul(SLICE_BYTES).checked_div(bytes).unwrap_or(most);
    fit.clamp(1, most.max(1))
}

pub(super) async fn lookup_many(
    inner: &Arc<Inner>,
    pages: &Arc<dyn Pages>,
    call: &Call,
    generation: u64,
    ranges: Option<RangeSet>,
    keys: Vec<Key>,
) -> Result<(), Stop> {
    let (_counted, _) = Counted::new(inner, |inner| &inner.counters.lookups);
    let lane = if pages.is_pulled(generation) { Lane::Pull } else { Lane::Short };
    let keys: Arc<[PageKey]> = keys.into_iter().map(PageKey::from).collect();
    let ranges = ranges.map(Arc::new);
    let mut missing = Missing::default();
    let (mut at, mut slice) = (0, FIRST_PAGES);
    // Without keys there is still a generation to be asked for, which may not be there.
    while at == 0 || at < keys.len() {
        let end = keys.len().min(at + slice);
        let (p, asked, ranges) = (pages.clone(), keys.clone(), ranges.clone());
        let work = move || {
            let some = asked.get(at..end).unwrap_or_default();
            match &ranges {
                Some(ranges) => p.lookup_in(generation, ranges, some),
                None => p.lookup_many(generation, some),
            }
        };
        let found = inner.workers.run(lane, work).done().await??;
        let mut records = Vec::new();
        for (found, n) in found.into_iter().zip(at as u32..) {
            match found {
                Ok(Some(record)) => records.push(record),
                Ok(None) => missing.absent.push(n),
                Err(fault) => missing.failed.push((n, fault)),
            }
        }
        inner.counters.lookups_answered.fetch_add(records.len() as u64, Ordering::Relaxed);
        let bytes = records.iter().map(|record| record.bytes().len()).sum();
        send_records(pages, call, &records).await?;
        slice = next_slice(end - at, bytes);
        at = end.max(1);
    }
    finish(call, &missing).await
}

/// Sends a list of entries.
pub(super) async fn list(
    inner: &Arc<Inner>,
    pages: &Arc<dyn Pages>,
    call: &Call,
    generation: u64,
    keys: RangeInclusive<PageKey>,
    ranges: RangeSet,
) -> Result<(), Stop> {
    let write = |entry: &Entry, out: &mut Vec<u8>| entry.write(out);
    listed(inner, pages, call, generation, keys, ranges, ENTRY_BYTES, write).await
}

/// Sends a list of keys.
pub(super) async fn keys(
    inner: &Arc<Inner>,
    pages: &Arc<dyn Pages>,
    call: &Call,
    generation: u64,
    from: PageKey,
    ranges: RangeSet,
) -> Result<(), Stop> {
    let write = |entry: &Entry, out: &mut Vec<u8>| out.extend_from_slice(&Key::from(entry.key).0);
    listed(inner, pages, call, generation, from..=PageKey::MAX, ranges, 16, write).await
}

#[expect(clippy::too_many_arguments, reason = "each is another thing, and all come from one request")]
async fn listed(
    inner: &Arc<Inner>,
    pages: &Arc<dyn Pages>,
    call: &Call,
    generation: u64,
    keys: RangeInclusive<PageKey>,
    ranges: RangeSet,
    row_bytes: usize,
    write: impl Fn(&Entry, &mut Vec<u8>),
) -> Result<(), Stop> {
    let ranges = Arc::new(ranges);
    let (mut from, last) = (Some(*keys.start()), *keys.end());
    while let Some(first) = from {
        let (p, ranges) = (pages.clone(), ranges.clone());
        let work = move || p.list_some(generation, first..=last, &ranges, SLICE_ROWS);
        let (entries, next) = inner.workers.run(Lane::Long, work).done().await??;
        send_rows(call, &entries, row_bytes, &write).await?;
        from = next.filter(|next| *next <= last);
    }
    call.end();
    Ok(())
}

/// Sends the pages that were seen again.
pub(super) async fn renewed(
    inner: &Arc<Inner>,
    pages: &Arc<dyn Pages>,
    call: &Call,
    generation: u64,
    ranges: RangeSet,
) -> Result<(), Stop> {
    let ranges = Arc::new(ranges);
    let mut from = Some(0);
    while let Some(place) = from {
        let (p, ranges) = (pages.clone(), ranges.clone());
        let work = move || p.renewed(generation, &ranges, place, SLICE_ROWS);
        let (rows, next) = inner.workers.run(Lane::Long, work).done().await??;
        send_rows(call, &rows, RENEWAL_BYTES, &|row: &Renewal, out: &mut Vec<u8>| row.write(out)).await?;
        from = next;
    }
    call.end();
    Ok(())
}

/// Sends rows of a fixed size, as many to a frame as fit.
async fn send_rows<T>(
    call: &Call,
    rows: &[T],
    row_bytes: usize,
    write: &impl Fn(&T, &mut Vec<u8>),
) -> Result<(), Stop> {
    for some in rows.chunks(DATA_BYTES / row_bytes) {
        let mut out = Vec::with_capacity(some.len() * row_bytes);
        some.iter().for_each(|row| write(row, &mut out));
        call.send(0, out.into()).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_grow_to_their_bytes_and_shrink_with_large_pages() {
        assert_eq!(next_slice(4, 0), 16, "nothing was found: nothing is known");
        assert_eq!(next_slice(4, 400), 16, "small pages: more of them, but not all at once");
        assert_eq!(next_slice(1024, 1024 * 8192), 512);
        assert_eq!(next_slice(4, 256 << 20), 1, "one page at least");
        assert_eq!(next_slice(1, 64 << 20), 1);
    }
}
