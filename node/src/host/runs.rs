//! In which order a log's pages arrived: it makes places in the streams of a generation mean the same on all its nodes.
//!
//! What a generation brings to a node is appended in key order. That is a *run*, and the generation is the *arrival* of its
//! pages; copies from node to node keep arrivals. So the pages of a range lie in order of (arrival, key) wherever they are,
//! though their ordinals differ. Where ranges are assigned a run has pages of all ranges, in order of their keys; of each
//! range they lie in order all the same.
//!
//! A file `runs-N` beside the store, N being the number under which the store keeps the generation: magic "WBRN" 4,
//! version 4, the runs as postcard writes them, CRC-64 of all the above 8. Without it nothing is known of the order.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use webbase_storage::{Cursor, Organization, PageKey, PageStore, Snapshot, StreamSpec, Version, crc64};

use super::file::replace;
use crate::cycle::{RangeMap, RangeSet};
use crate::error::{NodeError, Result};
use crate::server::Places;
use crate::wire::message::{After, UNKNOWN};
use crate::wire::ranges::RangeSet as WireRanges;

const HEAD: [u8; 8] = *b"WBRN\x01\0\0\0";

/// Records that were appended in key order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Run {
    /// The first ordinal, and the one behind the last.
    pub(super) first: u64,
    pub(super) end: u64,
    /// When its pages arrived, [`UNKNOWN`] if nobody can tell.
    pub(super) arrival: u64,
}

/// The runs of a store, as of one generation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Runs {
    /// By ordinals.
    runs: Vec<Run>,
    /// Ranges whose pages lie here in another order than that of their arrival.
    alone: RangeSet,
}

impl Runs {
    fn path(dir: &Path, number: u64) -> PathBuf {
        dir.join(format!("runs-{number}"))
    }

    /// Those of the generation that the store keeps as `number`. Of a damaged file nothing is known: places are not shared
    /// then, and nothing else depends on it.
    pub(super) fn read(dir: &Path, number: u64) -> Result<Runs> {
        let path = Self::path(dir, number);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Runs::decode(&bytes).unwrap_or_default()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Runs::default()),
            Err(e) => Err(NodeError::io("read", path.display(), e)),
        }
    }

    fn decode(bytes: &[u8]) -> Option<Runs> {
        let (body, crc) = bytes.split_last_chunk::<8>()?;
        let body = body.strip_prefix(&HEAD).filter(|_| crc64(body) == u64::from_le_bytes(*crc))?;
        let runs: Runs = postcard::from_bytes(body).ok()?;
        runs.runs.is_sorted_by(|a, b| a.end <= b.first).then_some(runs)
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = postcard::to_extend(self, HEAD.to_vec()).unwrap_or_default();
        out.extend_from_slice(&crc64(&out).to_le_bytes());
        out
    }

    /// Bytes as such a file.
    #[cfg(any(fuzzing, test))]
    pub(super) fn fuzz(bytes: &[u8]) {
        if let Some(runs) = Runs::decode(bytes) {
            assert_eq!(Runs::decode(&runs.encode()), Some(runs));
        }
    }

    #[cfg(test)]
    pub(super) fn sample() -> Vec<u8> {
        let mut runs = Runs::default();
        let appended = vec![Run { first: 0, end: 5, arrival: 1 }, Run { first: 7, end: 9, arrival: 2 }];
        runs.extend(appended, &[3].into_iter().collect(), &RangeSet::new());
        runs.encode()
    }

    /// Makes them durable for the generation that the store keeps as `number`.
    pub(super) fn write(&self, dir: &Path, number: u64) -> Result<()> {
        if *self == Runs::default() {
            return Self::remove(dir, number);
        }
        let path = Self::path(dir, number);
        replace(&path, &self.encode()).map_err(|e| NodeError::io("write", path.display(), e))
    }

    /// Forgets those of a number.
    pub(super) fn remove(dir: &Path, number: u64) -> Result<()> {
        let path = Self::path(dir, number);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(NodeError::io("remove", path.display(), e)),
            _ => Ok(()),
        }
    }

    /// Takes what was appended, and what became of the order of some ranges.
    pub(super) fn extend(&mut self, runs: Vec<Run>, alone: &RangeSet, shared: &RangeSet) {
        self.runs.extend(runs.into_iter().filter(|run| run.first < run.end));
        self.alone = self.alone.minus(shared);
        alone.iter().for_each(|range| self.alone.insert(range));
    }

    /// When the page with this ordinal arrived; [`UNKNOWN`] if nobody can tell.
    pub(super) fn arrival(&self, ordinal: Option<u64>) -> u64 {
        let run = ordinal.and_then(|ordinal| {
            let at = self.runs.partition_point(|run| run.first <= ordinal).checked_sub(1)?;
            self.runs.get(at).filter(|run| ordinal < run.end)
        });
        run.map_or(UNKNOWN, |run| run.arrival)
    }

    /// As [`Runs::arrival`], where a range's pages lie in order.
    pub(super) fn shared_arrival(&self, range: u32, ordinal: Option<u64>) -> u64 {
        if self.alone.contains(range) { UNKNOWN } else { self.arrival(ordinal) }
    }
}

/// The ordinal that the next record of a log gets.
pub(super) fn end_of(store: &dyn PageStore) -> Option<u64> {
    if store.organization() != Organization::Log {
        return None;
    }
    let spec = StreamSpec { from: Cursor::End, ..StreamSpec::default() };
    match store.snapshot().stream(&spec).ok()?.cursor() {
        Cursor::Ordinal(end) => Some(end),
        _ => None,
    }
}

/// The places of a generation.
pub(super) struct Placed {
    pub(super) runs: Arc<Runs>,
    pub(super) snapshot: Arc<dyn Snapshot>,
    pub(super) map: RangeMap,
}

impl Placed {
    /// The first ordinal that may have a page of a range behind its place.
    fn start_in(&self, range: u32, arrival: u64, key: PageKey) -> u64 {
        let first_key = match self.map.is_uniform() {
            true => PageKey::MIN,
            false => PageKey { id: *self.map.ids(range).start(), tie: 0 },
        };
        let from = |run: &Run, key: PageKey| {
            self.snapshot.ordinal_from(run.first..run.end, key).unwrap_or(run.first)
        };
        let same = self.runs.runs.iter().find(|run| run.arrival == arrival);
        let later = self.runs.runs.iter().find(|run| run.arrival > arrival && run.arrival != UNKNOWN);
        let same = same.zip(key.next()).map(|(run, next)| from(run, next));
        let later = later.map(|run| from(run, first_key));
        same.into_iter().chain(later).min().unwrap_or(u64::MAX)
    }
}

impl Places for Placed {
    fn arrival(&self, ordinal: u64, key: PageKey, version: Option<Version>) -> Option<u64> {
        let range = match version {
            Some(version) => Some(self.map.range_of(key, version)),
            None => self.map.range_of_key(key),
        };
        let arrival = match range {
            Some(range) => self.runs.shared_arrival(range, Some(ordinal)),
            None => self.runs.arrival(Some(ordinal)),
        };
        Some(arrival).filter(|arrival| *arrival != UNKNOWN)
    }

    fn start(&self, ranges: &WireRanges, after: &After) -> Option<u64> {
        let mut start = u64::MAX;
        let wanted = |range: &u32| match self.map.is_uniform() {
            true => ranges.has(*range),
            false => ranges.contains(*self.map.ids(*range).start()),
        };
        for range in (0..self.map.count()).filter(wanted) {
            if self.runs.alone.contains(range) {
                return None;
            }
            start = start.min(match after.of(range) {
                Some((arrival, key)) => self.start_in(range, arrival, key),
                None => 0,
            });
        }
        // Older pages than all runs are of generations that nobody knows the order of.
        (!self.runs.runs.is_empty()).then_some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_read_back_and_know_arrivals() {
        let mut runs = Runs::default();
        let run = |first, end, arrival| Run { first, end, arrival };
        runs.extend(
            vec![run(0, 10, 1), run(10, 10, 2), run(12, 20, 3)],
            &[7].into_iter().collect(),
            &RangeSet::new(),
        );
        let dir = tempfile::tempdir().unwrap();
        runs.write(dir.path(), 4).unwrap();
        assert_eq!(Runs::read(dir.path(), 4).unwrap(), runs);
        assert_eq!(Runs::read(dir.path(), 5).unwrap(), Runs::default());
        let arrivals = [0, 9, 10, 12, 19, 20].map(|ordinal| runs.arrival(Some(ordinal)));
        assert_eq!(arrivals, [1, 1, UNKNOWN, 3, 3, UNKNOWN]);
        assert_eq!((runs.shared_arrival(7, Some(0)), runs.shared_arrival(8, Some(0))), (UNKNOWN, 1));
        runs.extend(Vec::new(), &RangeSet::new(), &[7].into_iter().collect());
        assert_eq!(runs.shared_arrival(7, Some(0)), 1);
        let path = Runs::path(dir.path(), 4);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[9] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(Runs::read(dir.path(), 4).unwrap(), Runs::default(), "a damaged file tells nothing");
    }
}
