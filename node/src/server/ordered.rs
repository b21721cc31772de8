//! Streams in an order that the store does not have: what is wanted is gathered and sorted by its place in that order (within
//! a budget of memory, sort.rs), then read page by page. Where the store has the order, it is streamed as it lies. What few hosts
//! have is found by the URL index (by_url.rs), the rest by going through all records.
//!
//! A place and a key say the same at every node, so that is all a client has to remember. While pages are being gathered a
//! sign of life goes out now and then.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use webbase_storage::{
    Access, Cursor, Order, PageKey, PageStream, Record, Snapshot, StreamSpec as Scan, Trust, Version,
};

use super::Inner;
use super::by_url::ByUrl;
use super::pages::{Answer, Pages, Places};
use super::requests::{Counted, Stop};
use super::select::Selection;
use super::workers::Lane;
use crate::sort::{Merge, Sorted, Sorter};
use crate::wire::message::{self, Code, Fault, Lost, OrderedHead, Place, StreamOrder, UNKNOWN};
use crate::wire::mux::Call;
use crate::wire::ranges::RangeSet;
use crate::wire::spec::Seen;

/// Bytes of memory for sorting, of one stream.
const SORT_BYTES: usize = 64 << 20;
/// Bytes of records in a chunk, about, and how many.
const CHUNK_BYTES: usize = 512 << 10;
const CHUNK_PAGES: usize = 512;
/// Pages looked at before the thread is given back.
const LOOKED_AT_MAX: usize = 16 << 10;
const LIST_ROWS: usize = 16 << 10;
/// A sign of life goes out so often.
const LIFE_SIGN: Duration = Duration::from_secs(1);
/// Damaged pages that are told at once.
const DAMAGED_MAX: usize = 64;

/// What is asked for.
pub(super) struct Asked {
    pub(super) generation: u64,
    pub(super) ranges: RangeSet,
    pub(super) selection: Selection,
    pub(super) direct: bool,
    /// Only what comes behind this place.
    pub(super) after: Option<Place>,
    /// Only what comes behind this place, or arrived after this generation: the stream began in that one.
    pub(super) went_on: Option<(u64, Place)>,
}

impl Asked {
    /// Whether a page with this place is still to be sent.
    fn is_left(&self, place: &[u8], key: PageKey, arrival: impl FnOnce() -> u64) -> bool {
        let behind = |other: &Place| (other.0.as_slice(), PageKey::from(other.1)) < (place, key);
        self.after.as_ref().is_none_or(behind)
            && self.went_on.as_ref().is_none_or(|(since, other)| {
                // Of what nobody knows when it arrived it may be new.
                behind(other) || arrival() > *since
            })
    }
}

struct Gathering {
    asked: Arc<Asked>,
    pages: Arc<dyn Pages>,
    /// The state that is read, where it would change.
    held: Option<Arc<dyn Snapshot>>,
    places: Option<Arc<dyn Places>>,
    source: Source,
    sorter: Sorter,
    damaged: Vec<(Option<Vec<u8>>, Lost)>,
    /// Bytes of records that were looked at.
    bytes: u64,
}

enum Source {
    Records(Box<dyn PageStream>),
    /// A list, from this key on.
    List(Arc<dyn Snapshot>, Option<PageKey>),
    /// What the URL index names.
    Named(ByUrl),
    Done,
}

pub(super) async fn serve(
    inner: &Arc<Inner>,
    pages: &Arc<dyn Pages>,
    call: &Call,
    asked: Asked,
) -> Result<(), Stop> {
    let (_counted, _) = Counted::new(inner, |inner| &inner.counters.streams);
    pages.check_ranges(asked.generation, &asked.ranges)?;
    let asked = Arc::new(asked);
    let (a, p) = (asked.clone(), pages.clone());
    let opened = inner.workers.run(Lane::Short, move || open(a, p)).done().await??;
    pages.check_ranges(asked.generation, &asked.ranges)?;
    let mut gathering = match opened {
        Opened::Native(source) => return native(inner, pages, call, asked, source).await,
        Opened::Gathering(gathering) => *gathering,
    };
    let mut life_sign = Instant::now();
    loop {
        let work = move || gathering.gather();
        let done;
        (gathering, done) = inner.workers.run(Lane::Short, work).done().await??;
        if !gathering.damaged.is_empty() || life_sign.elapsed() >= LIFE_SIGN || done {
            let damaged = std::mem::take(&mut gathering.damaged);
            let gathered_bytes = std::mem::take(&mut gathering.bytes);
            send(inner, pages, call, Chunk { damaged, gathered_bytes, ..Chunk::default() }).await?;
            life_sign = Instant::now();
        }
        if done {
            break;
        }
    }
    let mut sending = inner.workers.run(Lane::Short, move || gathering.sorted()).done().await??;
    loop {
        let work = move || sending.read();
        let chunk;
        (sending, chunk) = inner.workers.run(Lane::Short, work).done().await??;
        if chunk.is_empty() {
            break;
        }
        send(inner, pages, call, chunk).await?;
    }
    call.end();
    Ok(())
}

#[derive(Default)]
struct Chunk {
    records: Vec<Bytes>,
    places: Vec<Vec<u8>>,
    dictionaries: Vec<u64>,
    damaged: Vec<(Option<Vec<u8>>, Lost)>,
    /// Bytes of records that were looked at before.
    gathered_bytes: u64,
}

impl Chunk {
    /// Whether nothing is sent.
    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.damaged.is_empty()
    }

    fn push(&mut self, asked: &Asked, record: &Record, place: Vec<u8>) {
        let dictionary = record.get().dictionary();
        if dictionary != 0 && !self.dictionaries.contains(&dictionary) {
            self.dictionaries.push(dictionary);
        }
        self.records.push(asked.selection.spec.projection.of(record));
        self.places.push(place);
    }
}

async fn send(inner: &Inner, pages: &Arc<dyn Pages>, call: &Call, chunk: Chunk) -> Result<(), Stop> {
    let counters = &inner.counters;
    counters.streamed_pages.fetch_add(chunk.records.len() as u64, Ordering::Relaxed);
    let read = chunk.records.iter().map(|record| record.len() as u64).sum::<u64>() + chunk.gathered_bytes;
    counters.scanned_bytes.fetch_add(read, Ordering::Relaxed);
    for digest in chunk.dictionaries {
        call.mux().send_dictionary(digest, |digest| pages.dictionary(digest));
    }
    let head =
        OrderedHead { records: chunk.records.len() as u32, places: chunk.places, damaged: chunk.damaged };
    call.send(0, message::encode(&head).into()).await?;
    Ok(call.send_records(&chunk.records, 0).await?)
}

enum Opened {
    Native(Box<dyn PageStream>),
    Gathering(Box<Gathering>),
}

fn open(asked: Arc<Asked>, pages: Arc<dyn Pages>) -> Answer<Opened> {
    let held = pages.held(asked.generation, &asked.ranges)?;
    let access = if asked.direct { Access::Direct } else { Access::Cached };
    let scan = Scan { access, trust: Trust::Verify, ..Scan::default() };
    let spec = &asked.selection.spec;
    let stream = |scan: &Scan| match &held {
        Some(snapshot) => Ok(snapshot.stream(scan)?),
        None => pages.stream(asked.generation, scan),
    };
    if spec.order == StreamOrder::Id && asked.went_on.is_none() {
        let after = asked.after.as_ref().map(|(_, key)| PageKey::from(*key).next());
        let first = PageKey { id: spec.ids().0, tie: 0 };
        let from = match after {
            None => Cursor::Key(first),
            Some(Some(next)) => Cursor::Key(next.max(first)),
            Some(None) => Cursor::End,
        };
        match stream(&Scan { order: Order::Id, from, ..scan }) {
            Err(fault) if fault.code == Code::BadRequest => {} // this store has no such order
            opened => return Ok(Opened::Native(opened?)),
        }
    }
    let (first, last) = spec.ids();
    let start = PageKey { id: first, tie: 0 };
    let list = match (&held, spec.needs_no_records() && first <= last) {
        (Some(snapshot), true) => Some(snapshot.clone()),
        (None, true) => pages.kept(asked.generation)?,
        _ => None,
    };
    // The index is that of a generation, and does not tell when a page arrived.
    let named = match held.is_none() && asked.went_on.is_none() {
        true => ByUrl::of(&asked, &*pages),
        false => None,
    };
    let source = match (list, named) {
        (Some(snapshot), _) => Source::List(snapshot, Some(start)),
        (None, Some(named)) => Source::Named(named),
        (None, None) => Source::Records(stream(&scan)?),
    };
    let sorter = Sorter::new(&pages.scratch(), SORT_BYTES);
    let places = pages.places(asked.generation);
    Ok(Opened::Gathering(Box::new(Gathering {
        asked,
        pages,
        held,
        places,
        source,
        sorter,
        damaged: Vec::new(),
        bytes: 0,
    })))
}

fn cannot_sort(e: &std::io::Error) -> Fault {
    let code = if e.kind() == std::io::ErrorKind::StorageFull { Code::NoSpace } else { Code::Store };
    Fault::new(code, format!("cannot sort a stream: {e}"))
}

impl Gathering {
    fn is_in(&self, key: PageKey, version: Version) -> bool {
        let ranges = &self.asked.ranges;
        self.pages.range_of(ranges, key, Some(version)).is_none_or(|range| ranges.has(range))
    }

    /// Looks at some more pages; says whether those were the last.
    fn gather(mut self) -> Answer<(Gathering, bool)> {
        let done = match std::mem::replace(&mut self.source, Source::Done) {
            Source::Done => true,
            Source::Records(stream) => self.gather_records(stream)?,
            Source::List(snapshot, from) => self.gather_list(snapshot, from)?,
            Source::Named(named) => self.gather_named(named)?,
        };
        Ok((self, done))
    }

    fn gather_records(&mut self, mut stream: Box<dyn PageStream>) -> Answer<bool> {
        let asked = self.asked.clone();
        let mut judge = asked.selection.judge();
        for _ in 0..LOOKED_AT_MAX {
            if self.damaged.len() >= DAMAGED_MAX {
                break;
            }
            match stream.next() {
                None => return Ok(true),
                Some(Err(e)) => {
                    let key = stream.lost();
                    if key.map_or(Ok(true), |key| judge.may_want(key))? {
                        let place = match key
                            .filter(|_| asked.selection.spec.order == StreamOrder::Importance)
                        {
                            Some(key) => Some(judge.place(&Seen { key, fetched_at_ms: 0, record: None })?),
                            None => None,
                        };
                        let fault = Fault::from(e);
                        self.damaged
                            .push((place, Lost { key: key.map(Into::into), arrival: UNKNOWN, fault }));
                    }
                }
                Some(Ok(record)) => {
                    self.bytes += record.bytes().len() as u64;
                    let seen = record.get();
                    let page = Seen::from(seen);
                    if !self.is_in(page.key, seen.version()) || !judge.wants(&page)? {
                        continue;
                    }
                    let ordinal = stream.ordinal();
                    self.take(page.key, judge.place(&page)?, ordinal, record.bytes().len() as u64)?;
                }
            }
        }
        self.source = Source::Records(stream);
        Ok(false)
    }

    fn gather_list(&mut self, snapshot: Arc<dyn Snapshot>, from: Option<PageKey>) -> Answer<bool> {
        let Some(from) = from else { return Ok(true) };
        let asked = self.asked.clone();
        let mut judge = asked.selection.judge();
        let (first, last) = asked.selection.spec.ids();
        let rows = snapshot.list(first..=last, from, LIST_ROWS)?;
        for row in &rows {
            let page = Seen { key: row.key, fetched_at_ms: row.version.fetched_at_ms, record: None };
            if self.is_in(row.key, row.version) && judge.wants(&page)? {
                self.take(row.key, judge.place(&page)?, row.ordinal, row.bytes)?;
            }
        }
        let next = rows.last().filter(|_| rows.len() == LIST_ROWS).and_then(|row| row.key.next());
        self.source = Source::List(snapshot, next);
        Ok(next.is_none())
    }

    fn gather_named(&mut self, mut named: ByUrl) -> Answer<bool> {
        let asked = self.asked.clone();
        let keys = named.next(&asked, &*self.pages)?;
        if keys.is_empty() {
            return Ok(true);
        }
        let mut judge = asked.selection.judge();
        for (key, found) in keys.iter().zip(self.pages.lookup_many(asked.generation, &keys)?) {
            match found {
                // The index says nothing that the records do not say.
                Ok(None) => {}
                Ok(Some(record)) => {
                    self.bytes += record.bytes().len() as u64;
                    let seen = record.get();
                    let page = Seen::from(seen);
                    if self.is_in(page.key, seen.version()) && judge.wants(&page)? {
                        self.take(page.key, judge.place(&page)?, None, record.bytes().len() as u64)?;
                    }
                }
                Err(fault) => {
                    if judge.may_want(*key)? {
                        let seen = Seen { key: *key, fetched_at_ms: 0, record: None };
                        let is_placed = asked.selection.spec.order == StreamOrder::Importance;
                        let place = if is_placed { Some(judge.place(&seen)?) } else { None };
                        self.damaged
                            .push((place, Lost { key: Some((*key).into()), arrival: UNKNOWN, fault }));
                    }
                }
            }
        }
        self.source = Source::Named(named);
        Ok(false)
    }

    fn take(&mut self, key: PageKey, place: Vec<u8>, ordinal: Option<u64>, bytes: u64) -> Answer<()> {
        let places = &self.places;
        let arrival = || {
            let known =
                places.as_ref().zip(ordinal).and_then(|(places, ordinal)| places.arrival(ordinal, key, None));
            known.unwrap_or(UNKNOWN)
        };
        if self.asked.is_left(&place, key, arrival) {
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            self.sorter.push(Sorted { place, key, bytes }).map_err(|e| cannot_sort(&e))?;
        }
        Ok(())
    }

    fn sorted(self) -> Answer<Sending> {
        let merge = self.sorter.finish().map_err(|e| cannot_sort(&e))?;
        Ok(Sending { asked: self.asked, pages: self.pages, held: self.held, merge })
    }
}

/// Sorted pages, to be read one after the other.
struct Sending {
    asked: Arc<Asked>,
    pages: Arc<dyn Pages>,
    held: Option<Arc<dyn Snapshot>>,
    merge: Merge,
}

impl Sending {
    /// The next chunk; an empty one is the end.
    fn read(mut self) -> Answer<(Sending, Chunk)> {
        let (mut bytes, mut batch) = (0, Vec::new());
        while let Some(next) = self.merge.next_bytes() {
            bytes += next as usize;
            if !batch.is_empty() && (bytes > CHUNK_BYTES || batch.len() >= CHUNK_PAGES) {
                break;
            }
            batch.extend(self.merge.next().map_err(|e| cannot_sort(&e))?);
        }
        let keys: Vec<PageKey> = batch.iter().map(|entry| entry.key).collect();
        let found = match &self.held {
            Some(snapshot) => {
                snapshot.lookup_many(&keys).into_iter().map(|found| found.map_err(Fault::from)).collect()
            }
            None => self.pages.lookup_many(self.asked.generation, &keys)?,
        };
        let mut chunk = Chunk::default();
        for (entry, found) in batch.into_iter().zip(found) {
            match found {
                Ok(Some(record)) => chunk.push(&self.asked, &record, entry.place),
                // It was there a moment ago, and what is read does not change.
                Ok(None) => {
                    let text =
                        format!("page {} was found when pages were sorted, and not afterwards", entry.key);
                    return Err(Fault::new(Code::Internal, text));
                }
                Err(fault) if fault.code == Code::Damaged => {
                    let lost = Lost { key: Some(entry.key.into()), arrival: UNKNOWN, fault };
                    chunk.damaged.push((Some(entry.place), lost));
                }
                Err(fault) => return Err(fault),
            }
        }
        Ok((self, chunk))
    }
}

/// Streams what lies in order already.
async fn native(
    inner: &Arc<Inner>,
    pages: &Arc<dyn Pages>,
    call: &Call,
    asked: Arc<Asked>,
    mut source: Box<dyn PageStream>,
) -> Result<(), Stop> {
    loop {
        let (a, p) = (asked.clone(), pages.clone());
        let work = move || read_native(&a, &*p, source);
        let (chunk, ended);
        (source, chunk, ended) = inner.workers.run(Lane::Short, work).done().await??;
        send(inner, pages, call, chunk).await?;
        if ended {
            call.end();
            return Ok(());
        }
    }
}

fn read_native(
    asked: &Asked,
    pages: &dyn Pages,
    mut source: Box<dyn PageStream>,
) -> Answer<(Box<dyn PageStream>, Chunk, bool)> {
    let mut judge = asked.selection.judge();
    let (mut chunk, mut bytes) = (Chunk::default(), 0);
    let last = asked.selection.spec.ids().1;
    for _ in 0..LOOKED_AT_MAX {
        match source.next() {
            None => return Ok((source, chunk, true)),
            Some(Err(e)) => {
                let key = source.lost();
                let behind =
                    |key: PageKey| asked.after.as_ref().is_none_or(|(_, after)| PageKey::from(*after) < key);
                if key.map_or(Ok(true), |key| judge.may_want(key))? && key.is_none_or(behind) {
                    let place = key.map(|_| Vec::new());
                    let lost = Lost { key: key.map(Into::into), arrival: UNKNOWN, fault: Fault::from(e) };
                    chunk.damaged.push((place, lost));
                    // Damage is told before the records of its chunk, and must not come before those that precede it.
                    return Ok((source, chunk, false));
                }
            }
            Some(Ok(record)) => {
                let seen = record.get();
                let key = seen.key();
                if key.id > last {
                    return Ok((source, chunk, true));
                }
                let range = pages.range_of(&asked.ranges, key, Some(seen.version()));
                if range.is_some_and(|range| asked.ranges.has(range)) && judge.wants(&seen.into())? {
                    bytes += record.bytes().len();
                    chunk.push(asked, &record, Vec::new());
                }
            }
        }
        if bytes >= CHUNK_BYTES {
            break;
        }
    }
    Ok((source, chunk, false))
}
