//! Streams: chunks are read by the short threads, one ahead of what is being sent, so that a slow client holds a place in
//! a view and two chunks, but no thread.

use std::sync::Arc;

use bytes::Bytes;
use webbase_storage::{Cursor, PageKey, PageStream, StreamSpec, Version};

use super::Inner;
use super::pages::{Pages, Places};
use super::requests::{Counted, Stop};
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
    head: ChunkHead,
    records: Vec<Bytes>,
    dictionaries: Vec<u64>,
    ended: bool,
}

pub(super) async fn serve(
    inner: &Arc<Inner>,
    pages: &Arc<dyn Pages>,
    call: &Call,
    generation: u64,
    mut spec: StreamSpec,
    ranges: RangeSet,
    after: Option<After>,
) -> Result<(), Stop> {
    let (_counted, _) = Counted::new(inner, |inner| &inner.counters.streams);
    // Before and afterwards: a node may come by ranges, and lose them, while the stream is opened.
    pages.check_ranges(generation, &ranges)?;
    let wanted = Arc::new(Wanted { pages: pages.clone(), places: pages.places(generation), ranges, after });
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
        let chunk = reading.done().await?;
        if !chunk.ended {
            next = Some(read(chunk.source));
        }
        for digest in chunk.dictionaries {
            call.mux().send_dictionary(digest, |digest| pages.dictionary(digest));
        }
        call.send(0, message::encode(&chunk.head).into()).await?;
        call.send_records(&chunk.records, 0).await?;
    }
    call.end();
    Ok(())
}

/// Which pages go into a stream, and what is told of their places.
struct Wanted {
    pages: Arc<dyn Pages>,
    places: Option<Arc<dyn Places>>,
    ranges: RangeSet,
    after: Option<After>,
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
        let arrival = places.and_then(|(places, ordinal)| places.arrival(ordinal, key)).unwrap_or(UNKNOWN);
        // Who cannot tell the range of what is lost names it: the client finds out.
        let Some(range) = self.pages.range_of(&self.ranges, key, version) else { return (UNKNOWN, true) };
        let behind = self.after.as_ref().is_none_or(|after| after.is_wanted(range, arrival, key));
        (arrival, behind && self.ranges.has(range))
    }
}

fn read_chunk(mut source: Box<dyn PageStream>, wanted: &Wanted) -> Chunk {
    let (mut records, mut cursors) = (Vec::new(), Vec::new());
    let mut arrivals: Vec<(u32, u64)> = Vec::new();
    let (mut dictionaries, mut damaged) = (Vec::new(), Vec::new());
    let (mut bytes, mut ended) = (0, false);
    for _ in 0..LOOKED_AT_MAX {
        match source.next() {
            None => {
                ended = true;
                break;
            }
            Some(Err(e)) => {
                let key = source.lost();
                let (arrival, is_wanted) =
                    key.map_or((UNKNOWN, true), |key| wanted.look_at(source.ordinal(), key, None));
                if is_wanted {
                    damaged.push(Lost { key: key.map(Into::into), arrival, fault: Fault::from(e) });
                }
            }
            Some(Ok(record)) => {
                let seen = record.get();
                let (arrival, is_wanted) = wanted.look_at(source.ordinal(), seen.key(), Some(seen.version()));
                if !is_wanted {
                    continue;
                }
                match arrivals.last_mut() {
                    Some((count, last)) if *last == arrival => *count += 1,
                    _ => arrivals.push((1, arrival)),
                }
                let dictionary = seen.dictionary();
                if dictionary != 0 && !dictionaries.contains(&dictionary) {
                    dictionaries.push(dictionary);
                }
                bytes += record.bytes().len();
                records.push(record.bytes().clone());
                cursors.push(source.cursor());
            }
        }
        if bytes >= CHUNK_BYTES || damaged.len() >= DAMAGED_MAX {
            break;
        }
    }
    // At the end too this is a place, not "end": pages added later come behind it.
    let after = source.cursor().to_string();
    if arrivals.iter().all(|(_, arrival)| *arrival == UNKNOWN) {
        arrivals.clear();
    }
    let head = ChunkHead { records: records.len() as u32, steps: steps(&cursors), after, damaged, arrivals };
    Chunk { source, head, records, dictionaries, ended }
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
