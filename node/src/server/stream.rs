//! Streams: chunks are read by the short threads, one ahead of what is being sent, so that a slow client holds a place in
//! a view and two chunks, but no thread.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use webbase_storage::{Cursor, PageKey, PageStream, Record, StreamSpec, Version};

use super::Inner;
use super::pages::{Pages, Places};
use super::requests::{Counted, Stop};
use super::select::{Judge, Selection};
use super::workers::Lane;
use crate::wire::message::{self, After, By, ChunkHead, Code, Fault, Lost, Steps, UNKNOWN};
use crate::wire::mux::Call;
use crate::wire::ranges::RangeSet;

/// Bytes of records in a chunk, about.
const CHUNK_BYTES: usize = 512 << 10;
/// Records looked at for one chunk, at most: a stream of few ranges gives its thread back now and then.
const LOOKED_AT_MAX: usize = 16 << 10;
/// Damaged records named in one chunk.
const DAMAGED_MAX: usize = 16;

/// One chunk, and the stream to take the next from.
struct Chunk {
    source: Box<dyn PageStream>,
    picked: Picked,
    ended: bool,
    scanned_bytes: u64,
}

pub(super) async fn serve(
    inner: &Arc<Inner>,
    pages: &Arc<dyn Pages>,
    call: &Call,
    generation: u64,
    mut spec: StreamSpec,
    Which { ranges, after, selection }: Which,
) -> Result<(), Stop> {
    let (_counted, _) = Counted::new(inner, |inner| &inner.counters.streams);
    // Before and afterwards: a node may come by ranges, and lose them, while the stream is opened.
    pages.check_ranges(generation, &ranges)?;
    let places = pages.places(generation);
    let wanted = Arc::new(Wanted { pages: pages.clone(), places, ranges, after, selection });
    let (p, w) = (pages.clone(), wanted.clone());
    let open = move || {
        spec.from = w.start(spec.from)?;
        match p.stream(generation, &spec) {
            // Places by key are good for all: what is in another order is gone through from its beginning.
            Err(fault) if w.after.is_some() && fault.code == Code::BadRequest => {
                p.stream(generation, &StreamSpec { from: Cursor::Start, ..spec })
            }
            opened => opened,
        }
    };
    let source = inner.workers.run(Lane::Short, open).done().await??;
    pages.check_ranges(generation, &wanted.ranges)?;
    let read = |source| {
        let wanted = wanted.clone();
        inner.workers.run(Lane::Short, move || read_chunk(source, &wanted))
    };
    let mut next = Some(read(source));
    while let Some(reading) = next.take() {
        let chunk = reading.done().await??;
        if !chunk.ended {
            next = Some(read(chunk.source));
        }
        inner.counters.scanned_bytes.fetch_add(chunk.scanned_bytes, Ordering::Relaxed);
        send_picked(inner, pages, call, chunk.picked).await?;
    }
    call.end();
    Ok(())
}

/// Which pages are asked for.
#[derive(Default)]
pub(super) struct Which {
    pub(super) ranges: RangeSet,
    /// Only those behind these places.
    pub(super) after: Option<After>,
    /// Only those that it names.
    pub(super) selection: Option<Selection>,
}

/// Which pages go into a stream, and what is told of their places.
pub(super) struct Wanted {
    pub(super) pages: Arc<dyn Pages>,
    pub(super) places: Option<Arc<dyn Places>>,
    pub(super) ranges: RangeSet,
    pub(super) after: Option<After>,
    pub(super) selection: Option<Selection>,
}

impl Wanted {
    /// Where the stream begins.
    fn start(&self, from: Cursor) -> Result<Cursor, Fault> {
        match (&self.after, &self.places) {
            (None, _) => Ok(from),
            (Some(after), _) if after.by == By::Key => {
                let behind = |range| match after.of(range) {
                    Some((_, key)) => key.next(),
                    None => Some(self.pages.first_key(&self.ranges, range)),
                };
                Ok(self.ranges.numbers().filter_map(behind).min().map_or(Cursor::End, Cursor::Key))
            }
            (Some(after), places) => {
                let start = places.as_ref().and_then(|places| places.start(&self.ranges, after));
                let refused = || Fault::new(Code::BadRequest, "pages are in another order on this node");
                start.map(Cursor::Ordinal).ok_or_else(refused)
            }
        }
    }

    /// The arrival of a page, and whether it is wanted.
    fn look_at(&self, ordinal: Option<u64>, key: PageKey, version: Option<Version>) -> (u64, bool) {
        let places = self.places.as_ref().zip(ordinal);
        let arrival = places.and_then(|(places, ordinal)| places.arrival(ordinal, key, version));
        let arrival = arrival.unwrap_or(UNKNOWN);
        // Who cannot tell the range of what is lost names it: the client finds out.
        let Some(range) = self.pages.range_of(&self.ranges, key, version) else { return (arrival, true) };
        let behind = self.after.as_ref().is_none_or(|after| after.is_wanted(range, arrival, key));
        (arrival, behind && self.ranges.has(range))
    }
}

/// What of some pages a client gets, as a chunk.
pub(super) struct Picked {
    head: ChunkHead,
    records: Vec<Bytes>,
    dictionaries: Vec<u64>,
}

/// Picks pages out of those there are.
pub(super) struct Picking<'a> {
    wanted: &'a Wanted,
    judge: Option<Judge<'a>>,
    records: Vec<Bytes>,
    cursors: Vec<Cursor>,
    arrivals: Vec<(u32, u64)>,
    dictionaries: Vec<u64>,
    damaged: Vec<Lost>,
    bytes: usize,
}

impl<'a> Picking<'a> {
    pub(super) fn new(wanted: &'a Wanted) -> Picking<'a> {
        let judge = wanted.selection.as_ref().map(Selection::judge);
        let (records, cursors, arrivals) = (Vec::new(), Vec::new(), Vec::new());
        let (dictionaries, damaged) = (Vec::new(), Vec::new());
        Picking { wanted, judge, records, cursors, arrivals, dictionaries, damaged, bytes: 0 }
    }

    /// Takes a record, if it is wanted. `next` is the place behind it.
    pub(super) fn take(&mut self, record: &Record, ordinal: Option<u64>, next: Cursor) -> Result<(), Fault> {
        let seen = record.get();
        let (arrival, is_wanted) = self.wanted.look_at(ordinal, seen.key(), Some(seen.version()));
        if !is_wanted || !self.judge.as_mut().map_or(Ok(true), |judge| judge.wants(&seen.into()))? {
            return Ok(());
        }
        match self.arrivals.last_mut() {
            Some((count, last)) if *last == arrival => *count += 1,
            _ => self.arrivals.push((1, arrival)),
        }
        let dictionary = seen.dictionary();
        if dictionary != 0 && !self.dictionaries.contains(&dictionary) {
            self.dictionaries.push(dictionary);
        }
        let sent = match &self.wanted.selection {
            Some(selection) => selection.spec.projection.of(record),
            None => record.bytes().clone(),
        };
        self.bytes += sent.len();
        self.records.push(sent);
        self.cursors.push(next);
        Ok(())
    }

    /// Takes note of damage, if the page may be wanted.
    pub(super) fn lost(
        &mut self,
        key: Option<PageKey>,
        ordinal: Option<u64>,
        fault: &Fault,
    ) -> Result<(), Fault> {
        let (arrival, is_wanted) = key.map_or((UNKNOWN, true), |key| self.wanted.look_at(ordinal, key, None));
        let may_be = match (key, &mut self.judge) {
            (Some(key), Some(judge)) => judge.may_want(key)?,
            _ => true,
        };
        if is_wanted && may_be {
            self.damaged.push(Lost { key: key.map(Into::into), arrival, fault: fault.clone() });
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.bytes >= CHUNK_BYTES || self.damaged.len() >= DAMAGED_MAX
    }

    /// A chunk, behind which a stream goes on here.
    pub(super) fn named(mut self, after: String) -> Picked {
        if self.arrivals.iter().all(|(_, arrival)| *arrival == UNKNOWN) {
            self.arrivals.clear();
        }
        let (records, steps) = (self.records.len() as u32, steps(&self.cursors));
        let head = ChunkHead { records, steps, after, damaged: self.damaged, arrivals: self.arrivals };
        Picked { head, records: self.records, dictionaries: self.dictionaries }
    }
}

/// Sends a chunk.
pub(super) async fn send_picked(
    inner: &Inner,
    pages: &Arc<dyn Pages>,
    call: &Call,
    picked: Picked,
) -> Result<(), Stop> {
    inner.counters.streamed_pages.fetch_add(picked.records.len() as u64, Ordering::Relaxed);
    for digest in picked.dictionaries {
        call.mux().send_dictionary(digest, |digest| pages.dictionary(digest));
    }
    call.send(0, message::encode(&picked.head).into()).await?;
    Ok(call.send_records(&picked.records, 0).await?)
}

fn read_chunk(mut source: Box<dyn PageStream>, wanted: &Wanted) -> Result<Chunk, Fault> {
    let mut picking = Picking::new(wanted);
    let (mut ended, mut scanned_bytes) = (false, 0);
    for _ in 0..LOOKED_AT_MAX {
        match source.next() {
            None => {
                ended = true;
                break;
            }
            Some(Err(e)) => picking.lost(source.lost(), source.ordinal(), &Fault::from(e))?,
            Some(Ok(record)) => {
                scanned_bytes += record.bytes().len() as u64;
                picking.take(&record, source.ordinal(), source.cursor())?;
            }
        }
        if picking.is_full() {
            break;
        }
    }
    // At the end too this is a place, not "end": pages added later come behind it.
    let after = source.cursor().to_string();
    Ok(Chunk { source, picked: picking.named(after), ended, scanned_bytes })
}

fn steps(cursors: &[Cursor]) -> Steps {
    let Some(first) = cursors.first() else { return Steps::End };
    if cursors.iter().any(|cursor| matches!(cursor, Cursor::Live { .. })) {
        return Steps::Each(cursors.iter().map(Cursor::to_string).collect());
    }
    match first {
        Cursor::Ordinal(first) => {
            let mut before = *first;
            let mut deltas = Vec::with_capacity(cursors.len());
            for cursor in cursors.iter().skip(1) {
                let Cursor::Ordinal(ordinal) = cursor else { return Steps::End };
                let Some(delta) = ordinal.checked_sub(before).and_then(|d| u32::try_from(d).ok()) else {
                    return Steps::End;
                };
                deltas.push(delta);
                before = *ordinal;
            }
            Steps::Ordinals(*first, deltas)
        }
        Cursor::Key(_) | Cursor::End => Steps::Keys,
        Cursor::Start | Cursor::Live { .. } => Steps::End,
    }
}
