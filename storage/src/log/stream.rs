//! Streams of a log, and many lookups at once.

use std::sync::Arc;

use super::segment::Segment;
use super::view::View;
use crate::bits::Bitmap;
use crate::disk::{Read, ReadAhead, Through};
use crate::error::{Result, StorageError};
use crate::page::PageKey;
use crate::record::Record;
use crate::store::{Access, Cursor, PageStream, StreamSpec, Trust};

/// Every so many bytes of a map it is asked whether they are in memory.
const PROBE_STEP_BYTES: u64 = 1 << 20;
/// How many of them: asking costs time too, and what is in memory is so in long runs.
const PROBE_BYTES: u64 = 32 << 10;

/// All living pages of a view, in order of their ordinals.
pub(crate) struct LogStream {
    view: Arc<View>,
    trust: Trust,
    part: usize,
    /// The current part's segment and dead bitmap.
    current: Option<(Arc<Segment>, Arc<Bitmap>)>,
    position: usize,
    /// Positions of the current part.
    count: usize,
    source: Source,
}

/// Where a stream's bytes come from.
enum Source {
    /// The map, in memory as far as is known up to this offset of the segment.
    Map { known: u64 },
    /// Threads that read ahead.
    Ahead(ReadAhead),
}

impl LogStream {
    pub(crate) fn new(view: Arc<View>, from: u64, spec: &StreamSpec) -> LogStream {
        let part = view.parts.partition_point(|p| p.end_ordinal <= from);
        let mut stream = LogStream {
            view,
            trust: spec.trust,
            part,
            current: None,
            position: 0,
            count: 0,
            source: Source::Map { known: 0 },
        };
        stream.enter(from);
        let mapped = stream.current.as_ref().is_none_or(|(segment, _)| segment.mapped(&(0..0)).is_some());
        if spec.access == Access::Direct || !mapped {
            let how = if spec.access == Access::Direct { Through::Direct } else { Through::Cache };
            stream.source = stream.ahead_from(stream.position, how);
        }
        stream
    }

    /// Starts on the current part.
    fn enter(&mut self, from: u64) {
        self.current = None;
        let Some(part) = self.view.parts.get(self.part) else { return };
        self.current = Some((part.segment.clone(), part.dead.clone()));
        self.position = part.segment.position_from(from.max(part.segment.first_ordinal));
        self.count = part.segment.position_from(part.end_ordinal);
    }

    fn enter_next(&mut self) {
        self.part += 1;
        self.enter(0);
        match &mut self.source {
            Source::Map { known } => *known = 0,
            Source::Ahead(ahead) => ahead.next_part(),
        }
    }

    /// Reads ahead from a position of the current part on.
    fn ahead_from(&self, position: usize, how: Through) -> Source {
        let parts = self.view.parts.iter().enumerate().skip(self.part).map(|(n, part)| {
            let first = if n == self.part { position } else { 0 };
            let last = part.segment.position_from(part.end_ordinal).checked_sub(1);
            let range = last
                .filter(|last| first <= *last)
                .and_then(|last| Some(part.segment.place(first)?.start..part.segment.place(last)?.end));
            (part.segment.file().clone(), range.unwrap_or(0..0))
        });
        Source::Ahead(ReadAhead::of_parts(parts.collect(), how))
    }

    fn read(&mut self, position: usize) -> Option<Result<Record>> {
        let (segment, dead) = self.current.as_ref()?;
        if dead.get(position) {
            return None;
        }
        let Some(place) = segment.place(position) else {
            return Some(Err(StorageError::corrupt(
                segment.path(),
                0,
                format!("no record number {position}"),
            )));
        };
        if let Source::Map { known } = &mut self.source
            && place.end > *known
        {
            *known = place.start + PROBE_STEP_BYTES;
            let probe = segment.mapped(&(place.start..place.end.min(place.start + PROBE_BYTES)));
            if probe.is_some_and(|probe| !segment.file().is_resident(&probe)) {
                self.source = self.ahead_from(position, Through::Map);
            }
        }
        let bytes = match &mut self.source {
            Source::Ahead(ahead) => ahead.get(place.clone()).ok(),
            Source::Map { .. } => segment.mapped(&place),
        };
        Some(match bytes {
            Some(bytes) => segment.record(bytes, place.start, self.trust),
            // The reader ahead met a failure; record by record the good ones are still found.
            None => segment.read(position, self.trust),
        })
    }
}

impl PageStream for LogStream {
    fn next(&mut self) -> Option<Result<Record>> {
        loop {
            self.current.as_ref()?;
            while self.position < self.count {
                self.position += 1;
                if let Some(record) = self.read(self.position - 1) {
                    return Some(record);
                }
            }
            self.enter_next();
        }
    }

    fn cursor(&self) -> Cursor {
        match self.view.parts.get(self.part) {
            Some(part) if self.position < self.count => Cursor::Ordinal(part.segment.ordinal(self.position)),
            Some(part) => Cursor::Ordinal(part.end_ordinal),
            None => Cursor::Ordinal(self.view.end),
        }
    }
}

/// Looks many pages up, reading what is not in memory many at a time.
pub(crate) fn lookup_many(view: &View, keys: &[PageKey]) -> Vec<Result<Option<Record>>> {
    let mut results: Vec<Result<Option<Record>>> = Vec::with_capacity(keys.len());
    // What has to be read: key, part, position and place in the file.
    let mut wanted = Vec::new();
    for (i, &key) in keys.iter().enumerate() {
        let mut cold = None;
        let mut warm = None;
        view.candidates(key.id, |part, position, _| {
            let Some(place) = part.segment.place(position) else { return false };
            let mapped = part.segment.mapped(&place).filter(|bytes| part.segment.is_resident(bytes));
            match mapped.map(|bytes| part.segment.record(bytes, place.start, Trust::Verify)) {
                Some(Ok(record)) if record.get().key() != key => return false,
                Some(Ok(record)) => warm = Some(record),
                // Not in memory, or damaged: read below, and if need be by `View::read`.
                _ => cold = Some((part.segment.clone(), place)),
            }
            true
        });
        results.push(Ok(warm));
        wanted.extend(cold.map(|(segment, place)| (segment.number, place.start, i, segment, place)));
    }
    wanted.sort_unstable_by_key(|(number, start, i, ..)| (*number, *start, *i));
    for group in wanted.chunk_by(|a, b| a.0 == b.0) {
        let mut buffers: Vec<Vec<u8>> =
            group.iter().map(|(.., place)| vec![0; (place.end - place.start) as usize]).collect();
        let mut reads: Vec<Read<'_>> = group
            .iter()
            .zip(&mut buffers)
            .map(|((_, offset, ..), buffer)| Read { offset: *offset, buffer, result: Ok(()) })
            .collect();
        if let Some((.., segment, _)) = group.first() {
            segment.file().read_many(&mut reads);
        }
        let read: Vec<bool> = reads.iter().map(|r| r.result.is_ok()).collect();
        for (((_, offset, i, segment, _), buffer), ok) in group.iter().zip(buffers).zip(read) {
            let (Some(key), Some(result)) = (keys.get(*i), results.get_mut(*i)) else { continue };
            let record = ok.then(|| segment.record(buffer.into(), *offset, Trust::Verify));
            *result = match record {
                Some(Ok(record)) if record.get().key() == *key => Ok(Some(record)),
                // Another page with the same bits, or damage: the long way.
                _ => view.read(*key, Trust::Verify),
            };
        }
    }
    results
}
