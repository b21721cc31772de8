//! The catalog of a segment: per record its key, version, kind, lifetime and place. It is written behind the
//! records when a segment is sealed, so that opening a store reads no bodies.
//!
//! ```text
//!   rows      n × 48   id 8, tie 8, fetched_at_ms 8, record CRC 8, lifetime_s 4, epoch 4, kind 1, zero 3,
//!                      check 4: low half of the CRC-64 of the 44 bytes before
//!   offsets   (n+1) × 4   where each record starts in the file, then where the last one ends
//!   ordinals  n × 4    relative to the first ordinal; left out when they are 0, 1, 2, … (`sparse` is 0)
//!   trailer   64       magic "WBCT" 4, version 4, n 4, sparse 4, first ordinal 8, end ordinal 8,
//!                      catalog offset 8, CRC-64 of rows+offsets+ordinals 8, CRC-64 of offsets+ordinals 8,
//!                      CRC-64 of the trailer 8
//! ```
//!
//! The trailer ends the file, so it is found from there. Rows stay on disk and are read only when a page is
//! superseded, expired, listed or verified; offsets (and sparse ordinals) stay in memory.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::page::{PageId, PageKey, Version};
use crate::record::{Kind, RecordRef, crc64};

const MAGIC: [u8; 4] = *b"WBCT";
const VERSION: u32 = 1;

/// One record's entry in a catalog.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Row {
    id: U64,
    tie: U64,
    fetched_at_ms: U64,
    crc: U64,
    lifetime_s: U32,
    epoch: U32,
    kind: u8,
    zero: [u8; 3],
    check: U32,
}

pub(crate) const ROW_BYTES: usize = size_of::<Row>();
const _: () = assert!(ROW_BYTES == 48);

impl Row {
    pub(crate) fn of(record: &RecordRef<'_>) -> Row {
        let (key, version) = (record.key(), record.version());
        let row = Row {
            id: key.id.0.into(),
            tie: key.tie.into(),
            fetched_at_ms: version.fetched_at_ms.into(),
            crc: version.digest.into(),
            lifetime_s: record.lifetime_s().into(),
            epoch: version.epoch.into(),
            kind: record.kind() as u8,
            zero: [0; 3],
            check: U32::ZERO,
        };
        Row { check: row.computed_check().into(), ..row }
    }

    fn computed_check(&self) -> u32 {
        crc64(self.as_bytes().get(..ROW_BYTES - 4).unwrap_or_default()) as u32
    }

    /// Whether this is a row as it was written.
    pub(crate) fn is_whole(&self) -> bool {
        self.check.get() == self.computed_check()
    }

    /// The row of a record that cannot be read: it has an ordinal and shows nothing.
    pub(crate) fn damaged() -> Row {
        let row = Row::new_zeroed();
        Row { check: row.computed_check().into(), ..row }
    }

    /// Whether this is the row of a record that could not be read.
    pub(crate) fn is_damaged(&self) -> bool {
        self.kind == 0
    }

    /// Whether this is the row of another page, or of a mark.
    pub(crate) fn is_not(&self, key: PageKey) -> bool {
        !self.is_damaged() && self.key() != key
    }

    /// Whether this row, which may be damaged itself, is the other one's: the checksum tells, or all else does.
    pub(crate) fn resembles(&self, other: &Row) -> bool {
        let named = |row: &Row| (row.id, row.tie, row.fetched_at_ms, row.epoch, row.kind);
        self.crc == other.crc || (!self.is_whole() && named(self) == named(other))
    }

    pub(crate) fn lifetime_s(&self) -> u32 {
        self.lifetime_s.get()
    }

    pub(crate) fn key(&self) -> PageKey {
        PageKey { id: PageId(self.id.get()), tie: self.tie.get() }
    }

    pub(crate) fn version(&self) -> Version {
        Version { fetched_at_ms: self.fetched_at_ms.get(), epoch: self.epoch.get(), digest: self.crc.get() }
    }

    /// The kind; bytes that are none read as a tombstone, which shows nothing.
    pub(crate) fn kind(&self) -> Kind {
        Kind::from_byte(self.kind).unwrap_or(Kind::Tombstone)
    }

    /// When the page, or the visit that saw it, stops being good enough.
    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        crate::expiry::deadline_ms(self.fetched_at_ms.get(), self.lifetime_s.get())
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct Trailer {
    magic: [u8; 4],
    version: U32,
    count: U32,
    sparse: U32,
    first_ordinal: U64,
    end_ordinal: U64,
    catalog_offset: U64,
    catalog_crc: U64,
    places_crc: U64,
    crc: U64,
}

pub(crate) const TRAILER_BYTES: usize = size_of::<Trailer>();
const _: () = assert!(TRAILER_BYTES == 64);

/// What a trailer says, once it is believed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sealed {
    pub(crate) count: usize,
    pub(crate) sparse: bool,
    pub(crate) first_ordinal: u64,
    pub(crate) end_ordinal: u64,
    pub(crate) catalog_offset: u64,
    catalog_crc: u64,
    places_crc: u64,
}

impl Sealed {
    /// Reads the trailer at the end of a file of `file_len` bytes.
    pub(crate) fn decode(trailer: &[u8], file_len: u64) -> Result<Sealed, String> {
        let trailer = Trailer::ref_from_bytes(trailer).map_err(|_| "trailer cut short")?;
        if trailer.magic != MAGIC || trailer.version.get() != VERSION {
            return Err("no catalog trailer of this version".into());
        }
        let crc = crc64(trailer.as_bytes().get(..TRAILER_BYTES - 8).unwrap_or_default());
        if crc != trailer.crc.get() {
            return Err(format!(
                "trailer damaged: expected CRC-64 {crc:016x}, found {:016x}",
                trailer.crc.get()
            ));
        }
        let sealed = Sealed {
            count: trailer.count.get() as usize,
            sparse: trailer.sparse.get() != 0,
            first_ordinal: trailer.first_ordinal.get(),
            end_ordinal: trailer.end_ordinal.get(),
            catalog_offset: trailer.catalog_offset.get(),
            catalog_crc: trailer.catalog_crc.get(),
            places_crc: trailer.places_crc.get(),
        };
        let expected = sealed.catalog_offset.saturating_add((sealed.catalog_bytes() + TRAILER_BYTES) as u64);
        if expected != file_len {
            return Err(format!("catalog should end at {expected}, the file ends at {file_len}"));
        }
        Ok(sealed)
    }

    pub(crate) fn offsets_offset(&self) -> u64 {
        self.catalog_offset + (self.count * ROW_BYTES) as u64
    }

    /// Bytes of offsets and ordinals: what stays in memory.
    pub(crate) fn places_bytes(&self) -> usize {
        (self.count + 1) * 4 + if self.sparse { self.count * 4 } else { 0 }
    }

    pub(crate) fn catalog_bytes(&self) -> usize {
        self.count * ROW_BYTES + self.places_bytes()
    }

    /// Reads offsets and, where sparse, ordinals out of their bytes.
    pub(crate) fn decode_places(&self, bytes: &[u8]) -> Result<(Vec<u32>, Option<Vec<u32>>), String> {
        if crc64(bytes) != self.places_crc {
            return Err("catalog offsets damaged".into());
        }
        let (words, _) = bytes.as_chunks::<4>();
        let mut offsets: Vec<u32> = words.iter().map(|&b| u32::from_le_bytes(b)).collect();
        let ordinals = offsets.split_off((self.count + 1).min(offsets.len()));
        if offsets.len() != self.count + 1 || !offsets.is_sorted() {
            return Err("catalog offsets are not in order".into());
        }
        if offsets.last().map(|&o| u64::from(o)) > Some(self.catalog_offset) {
            return Err("catalog offsets lie beyond the records".into());
        }
        if !self.sparse {
            return Ok((offsets, None));
        }
        if ordinals.len() != self.count || !ordinals.is_sorted_by(|a, b| a < b) {
            return Err("catalog ordinals are not in order".into());
        }
        Ok((offsets, Some(ordinals)))
    }

    /// Whether these are the catalog's bytes as written.
    pub(crate) fn check(&self, catalog: &[u8]) -> Result<(), String> {
        let crc = crc64(catalog);
        if crc != self.catalog_crc {
            return Err(format!(
                "catalog damaged: expected CRC-64 {:016x}, found {crc:016x}",
                self.catalog_crc
            ));
        }
        Ok(())
    }
}

/// Catalog and trailer as bytes, to be written at `catalog_offset`, right behind the last record.
pub(crate) fn encode(
    rows: &[Row],
    offsets: &[u32],
    ordinals: Option<&[u32]>,
    (first_ordinal, end_ordinal): (u64, u64),
    catalog_offset: u64,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(rows.len() * (ROW_BYTES + 8) + TRAILER_BYTES + 4);
    out.extend_from_slice(rows.as_bytes());
    for word in offsets.iter().chain(ordinals.unwrap_or_default()) {
        out.extend_from_slice(&word.to_le_bytes());
    }
    let mut trailer = Trailer::new_zeroed();
    trailer.places_crc = crc64(out.get(rows.len() * ROW_BYTES..).unwrap_or_default()).into();
    trailer.magic = MAGIC;
    trailer.version = VERSION.into();
    trailer.count = (rows.len() as u32).into();
    trailer.sparse = u32::from(ordinals.is_some()).into();
    trailer.first_ordinal = first_ordinal.into();
    trailer.end_ordinal = end_ordinal.into();
    trailer.catalog_offset = catalog_offset.into();
    trailer.catalog_crc = crc64(&out).into();
    trailer.crc = crc64(trailer.as_bytes().get(..TRAILER_BYTES - 8).unwrap_or_default()).into();
    out.extend_from_slice(trailer.as_bytes());
    out
}
