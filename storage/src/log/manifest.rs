//! What a log store consists of: the file `MANIFEST`, replaced as a whole at each checkpoint.
//!
//! ```text
//!   0  4  magic "WBMF"        4  4  version
//!   8  8  checkpoint: everything below this ordinal is in the index runs, dead bitmaps and deadlines named here
//!  16  8  next file number   24  8  dead-bitmap file   32  8  deadline file (0: none)
//!  40  8  segments           then each: number 8, first ordinal 8, end ordinal 8, clean to 8,
//!                            live pages 8, live bytes 8, dead pages 8, tombstones 8, seen entries 8
//!         index runs 8       then each: file number 8
//!         generations 8      then each, ascending: generation 8, file number 8, deadline file 8 (generations.rs)
//!         CRC-64 of all the above
//! ```
//!
//! The last segment is the open one; its end ordinal is not used. A file of the store that the manifest does not
//! name is left over from something a crash interrupted, and is removed when the store is opened.
//!
//! `dead-N` holds, per segment: number 8, words 8, bitmap words; and a CRC-64 at the end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::bits::Bitmap;
use crate::disk::{self, Disk};
use crate::error::{Result, StorageError};
use crate::record::crc64;

const MAGIC: [u8; 4] = *b"WBMF";

/// One segment in a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentEntry {
    pub(crate) number: u64,
    pub(crate) first_ordinal: u64,
    pub(crate) end_ordinal: u64,
    /// No record in it was dead at this ordinal (see compaction.rs).
    pub(crate) clean_to: u64,
    pub(crate) counts: Counts,
}

/// What a segment holds, as of the checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) live_pages: u64,
    pub(crate) live_bytes: u64,
    pub(crate) dead_pages: u64,
    pub(crate) tombstones: u64,
    pub(crate) seen: u64,
}

/// A checkpoint of a log store.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Manifest {
    pub(crate) checkpoint: u64,
    pub(crate) next_file: u64,
    pub(crate) dead_file: u64,
    pub(crate) deadline_file: u64,
    pub(crate) segments: Vec<SegmentEntry>,
    pub(crate) runs: Vec<u64>,
    pub(crate) generations: Vec<GenerationEntry>,
}

/// One kept generation in a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GenerationEntry {
    pub(crate) number: u64,
    pub(crate) file: u64,
    /// 0: none.
    pub(crate) deadline_file: u64,
}

pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join("MANIFEST")
}

impl Manifest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut words = vec![self.checkpoint, self.next_file, self.dead_file, self.deadline_file];
        words.push(self.segments.len() as u64);
        for s in &self.segments {
            words.extend([s.number, s.first_ordinal, s.end_ordinal, s.clean_to]);
            let c = s.counts;
            words.extend([c.live_pages, c.live_bytes, c.dead_pages, c.tombstones, c.seen]);
        }
        words.push(self.runs.len() as u64);
        words.extend(&self.runs);
        words.push(self.generations.len() as u64);
        words.extend(self.generations.iter().flat_map(|g| [g.number, g.file, g.deadline_file]));
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&crate::identity::VERSION.to_le_bytes());
        words.iter().for_each(|w| out.extend_from_slice(&w.to_le_bytes()));
        out.extend_from_slice(&crc64(&out).to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> std::result::Result<Manifest, String> {
        let body = checked(bytes)?;
        let body = body.strip_prefix(&MAGIC).ok_or("not a manifest")?;
        let body = body.strip_prefix(&crate::identity::VERSION.to_le_bytes()).ok_or("another version")?;
        let mut words = words(body);
        let mut next = || words.next().ok_or("manifest cut short");
        let mut manifest = Manifest {
            checkpoint: next()?,
            next_file: next()?,
            dead_file: next()?,
            deadline_file: next()?,
            ..Manifest::default()
        };
        for _ in 0..next()? {
            let (number, first_ordinal, end_ordinal, clean_to) = (next()?, next()?, next()?, next()?);
            let (live_pages, live_bytes, dead_pages) = (next()?, next()?, next()?);
            let counts = Counts { live_pages, live_bytes, dead_pages, tombstones: next()?, seen: next()? };
            manifest.segments.push(SegmentEntry { number, first_ordinal, end_ordinal, clean_to, counts });
        }
        for _ in 0..next()? {
            manifest.runs.push(next()?);
        }
        for _ in 0..next()? {
            let entry = GenerationEntry { number: next()?, file: next()?, deadline_file: next()? };
            if manifest.generations.last().is_some_and(|last| last.number >= entry.number) {
                return Err("generations are not in order".into());
            }
            manifest.generations.push(entry);
        }
        if next().is_ok() || !body.len().is_multiple_of(8) {
            return Err("manifest longer than it says".into());
        }
        Ok(manifest)
    }

    /// Reads the manifest in `dir`; `None` when there is none.
    pub(crate) fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<Manifest>> {
        let path = path(dir);
        match disk::read_file(disk, &path) {
            Ok(bytes) => {
                Manifest::decode(&bytes).map(Some).map_err(|what| StorageError::corrupt(&path, 0, what))
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(StorageError::io("read", &path, e)),
        }
    }
}

/// The bytes before a CRC-64 that holds.
pub(super) fn checked(bytes: &[u8]) -> std::result::Result<&[u8], String> {
    let (body, crc) = bytes.split_last_chunk::<8>().ok_or("cut short")?;
    let (expected, found) = (crc64(body), u64::from_le_bytes(*crc));
    if expected != found {
        return Err(format!("damaged: expected CRC-64 {expected:016x}, found {found:016x}"));
    }
    Ok(body)
}

pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.as_chunks().0.iter().map(|&w| u64::from_le_bytes(w))
}

/// The dead bitmaps of all segments as a file.
pub(crate) fn encode_dead<'a>(bitmaps: impl Iterator<Item = (u64, &'a Bitmap)>) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, bitmap) in bitmaps {
        out.extend_from_slice(&number.to_le_bytes());
        out.extend_from_slice(&(bitmap.words().len() as u64).to_le_bytes());
        bitmap.words().iter().for_each(|w| out.extend_from_slice(&w.to_le_bytes()));
    }
    out.extend_from_slice(&crc64(&out).to_le_bytes());
    out
}

/// The dead bitmaps by segment number.
pub(crate) fn decode_dead(bytes: &[u8]) -> std::result::Result<BTreeMap<u64, Bitmap>, String> {
    let mut words = words(checked(bytes)?);
    let mut all = BTreeMap::new();
    while let Some(number) = words.next() {
        let count = words.next().ok_or("bitmap cut short")? as usize;
        all.insert(number, Bitmap::from_words(words.by_ref().take(count).collect()));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_reads_back_and_damage_is_noticed() {
        let counts = Counts { live_pages: 2, live_bytes: 300, dead_pages: 1, tombstones: 1, seen: 1 };
        let segment = SegmentEntry { number: 3, first_ordinal: 4, end_ordinal: 9, clean_to: 5, counts };
        let manifest = Manifest {
            checkpoint: 9,
            next_file: 12,
            dead_file: 7,
            deadline_file: 0,
            segments: vec![segment, segment],
            runs: vec![8, 11],
            generations: vec![
                GenerationEntry { number: 0, file: 5, deadline_file: 0 },
                GenerationEntry { number: 7, file: 6, deadline_file: 4 },
            ],
        };
        let mut bytes = manifest.encode();
        assert_eq!(Manifest::decode(&bytes).unwrap(), manifest);
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert!(Manifest::decode(&bytes).is_err(), "byte {at}");
            bytes[at] ^= 1;
            assert!(Manifest::decode(&bytes[..at]).is_err());
        }
    }

    #[test]
    fn dead_bitmaps_read_back() {
        let mut bits = Bitmap::default();
        bits.set(100);
        let bytes = encode_dead([(5, &bits), (6, &Bitmap::default())].into_iter());
        let all = decode_dead(&bytes).unwrap();
        assert_eq!((all.len(), all[&5].get(100)), (2, true));
    }
}
