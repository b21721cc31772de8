//! Streams of a log, and many lookups at once.

use std::ops::Range;
use std::sync::Arc;

use super::segment::Segment;
use super::view::{How, View};
use crate::bits::Bitmap;
use crate::codec::Dictionaries;
use crate::dictionary_files::readable;
use crate::disk::{BatchRead, ReadAhead, Through, read_batch};
use crate::error::{Result, StorageError};
use crate::page::PageKey;
use crate::record::Record;
use crate::store::{Access, Cursor, PageStream, StreamSpec, Trust};

/// Every so many bytes of a map it is asked whether they are in memory.
const PROBE_STEP_BYTES: u64 = 1 << 20;
/// How many of them: asking costs time too, and what is in memory is so in long runs.
const PROBE_BYTES: u64 = 32 << 10;

/// Places that are asked for at once: a segment that grows has them behind a lock.
const PLACES: usize = 256;

/// All living pages of a view, in order of their ordinals.
pub(crate) struct LogStream {
    view: Arc<View>,
    dictionaries: Dictionaries,
    trust: Trust,
    part: usize,
    /// The current part's segment and dead bitmap.
    current: Option<(Arc<Segment>, Arc<Bitmap>)>,
    position: usize,
    /// Positions of the current part.
    count: usize,
    /// Offsets of some records of the current part, from this position on, and where the last one ends.
    offsets: (usize, Vec<u32>),
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
    pub(crate) fn new(
        view: Arc<View>,
        dictionaries: Dictionaries,
        from: u64,
        spec: &StreamSpec,
    ) -> LogStream {
        let part = view.parts.partition_point(|p| p.end_ordinal <= from);
        let mut stream = LogStream {
            view,
            dictionaries,
            trust: spec.trust,
            part,
            current: None,
            position: 0,
            count: 0,
            offsets: (0, Vec::with_capacity(PLACES + 1)),
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
        self.offsets.1.clear();
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
        let (first, offsets) = &mut self.offsets;
        let known = |first: usize, offsets: &[u32]| {
            let at = position.checked_sub(first)?;
            Some(u64::from(*offsets.get(at)?)..u64::from(*offsets.get(at + 1)?))
        };
        let place = known(*first, offsets).or_else(|| {
            segment.offsets_from(position, PLACES, offsets);
            *first = position;
            known(*first, offsets)
        });
        let Some(place) = place else {
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
        let record = match bytes {
            Some(bytes) => segment.record(bytes, place.start, self.trust),
            // The reader ahead met a failure; record by record the good ones are still found.
            None => segment.read(position, self.trust),
        };
        match record {
            Ok(record) if !self.dictionaries.has(record.dictionary()) => {
                Some(readable(record, &self.dictionaries, segment.path()))
            }
            record => Some(record),
        }
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

    fn ordinal(&self) -> Option<u64> {
        let (segment, _) = self.current.as_ref()?;
        Some(segment.ordinal(self.position.checked_sub(1)?))
    }

    fn lost(&self) -> Option<PageKey> {
        let (segment, _) = self.current.as_ref()?;
        let row = segment.row(self.position.checked_sub(1)?).ok()?;
        (!row.is_damaged()).then(|| row.key())
    }

    fn cursor(&self) -> Cursor {
        match self.view.parts.get(self.part) {
            Some(part) if self.position < self.count => Cursor::Ordinal(part.segment.ordinal(self.position)),
            Some(part) => Cursor::Ordinal(part.end_ordinal),
            None => Cursor::Ordinal(self.view.end),
        }
    }
}

/// A record that has to be read: whose key's turn it is, and where it lies.
struct Wanted {
    key: usize,
    ordinal: u64,
    segment: Arc<Segment>,
    place: Range<u64>,
    /// Whether the cache wants it.
    keep: bool,
}

/// Looks many pages up, reading what is not in memory all at once.
pub(crate) fn lookup_many(view: &View, keys: &[PageKey], how: How<'_>) -> Vec<Result<Option<Record>>> {
    let mut results: Vec<Result<Option<Record>>> = Vec::with_capacity(keys.len());
    let mut wanted = Vec::new();
    for (i, &key) in keys.iter().enumerate() {
        let mut warm = None;
        view.candidates(key.id, |part, position, ordinal| {
            let segment = &part.segment;
            let Some(place) = segment.place(position) else { return false };
            let cached = how.cache.and_then(|cache| cache.get(ordinal));
            let keep = cached.is_none()
                && how.cache.is_some_and(|cache| cache.wants(ordinal, place.end - place.start));
            let in_memory = cached.or_else(|| {
                let mapped = segment.mapped(&place).filter(|bytes| !keep && segment.is_resident(bytes))?;
                segment.record(mapped, place.start, Trust::Verify).ok()
            });
            match in_memory {
                Some(record) if record.get().key() != key => return false,
                Some(record) if how.dictionaries.has(record.get().dictionary()) => warm = Some(record),
                // Not in memory, or damaged: read below, and if need be by `View::read`.
                _ => wanted.push(Wanted { key: i, ordinal, segment: segment.clone(), place, keep }),
            }
            true
        });
        results.push(Ok(warm));
    }
    wanted.sort_unstable_by_key(|w| (w.segment.number, w.place.start, w.key));
    let reads: Vec<BatchRead<'_>> = wanted
        .iter()
        .map(|w| BatchRead {
            file: &**w.segment.file(),
            offset: w.place.start,
            len: (w.place.end - w.place.start) as usize,
        })
        .collect();
    read_batch(&reads, |n, bytes| {
        let Some(w) = wanted.get(n) else { return };
        let (Some(key), Some(result)) = (keys.get(w.key), results.get_mut(w.key)) else { return };
        let record = bytes.ok().map(|b| w.segment.record(b.into(), w.place.start, Trust::Verify));
        *result = match record {
            Some(Ok(record))
                if record.get().key() == *key && how.dictionaries.has(record.get().dictionary()) =>
            {
                if let Some(cache) = how.cache.filter(|_| w.keep) {
                    cache.insert(w.ordinal, record.clone());
                }
                Ok(Some(record))
            }
            // Another page with the same bits, or damage: the long way.
            _ => view.read(*key, how),
        };
    });
    results
}
