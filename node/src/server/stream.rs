//! Streams: chunks are read by the short threads, one ahead of what is being sent, so that a slow client holds a place in
//! a view and two chunks, but no thread.

use std::sync::Arc;

use bytes::Bytes;
use webbase_storage::{Cursor, PageStream, StreamSpec};

use super::Inner;
use super::pages::Pages;
use super::requests::{Counted, Stop};
use super::workers::Lane;
use crate::wire::message::{self, ChunkHead, Fault, Lost, Steps};
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
    spec: StreamSpec,
    ranges: RangeSet,
) -> Result<(), Stop> {
    let (_counted, _) = Counted::new(inner, |inner| &inner.counters.streams);
    pages.check_ranges(generation, &ranges)?;
    let p = pages.clone();
    let source = inner.workers.run(Lane::Short, move || p.stream(generation, &spec)).done().await??;
    let ranges = Arc::new(ranges);
    let read = |source| {
        let (pages, ranges) = (pages.clone(), ranges.clone());
        inner.workers.run(Lane::Short, move || read_chunk(source, &*pages, &ranges))
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

fn read_chunk(mut source: Box<dyn PageStream>, pages: &dyn Pages, ranges: &RangeSet) -> Chunk {
    let (mut records, mut cursors) = (Vec::new(), Vec::new());
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
                if key.is_none_or(|key| ranges.contains(key.id)) {
                    damaged.push(Lost { key: key.map(Into::into), fault: Fault::from(e) });
                }
            }
            Some(Ok(record)) => {
                let seen = record.get();
                if !pages.is_within(ranges, seen.key(), seen.version()) {
                    continue;
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
    let head = ChunkHead { records: records.len() as u32, steps: steps(&cursors), after, damaged };
    Chunk { source, head, records, dictionaries, ended }
}

fn steps(cursors: &[Cursor]) -> Steps {
    let Some(first) = cursors.first() else { return Steps::End };
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
        Cursor::Start => Steps::End,
    }
}
