//! A record: one page as bytes, the same on disk and on the wire. Little-endian, no padding.
//!
//! ```text
//!   OFFSET  SIZE  FIELD
//!        0     4  magic "WBR1" (the last digit is the version)
//!        4     1  kind: 1 page, 2 tombstone, 3 seen
//!        5     1  codec of the body: 0 plain, 1 lz4, 2 zstd, 3 deflate as it came
//!        6     2  HTTP status
//!        8     8  page id
//!       16     8  tie
//!       24     8  fetched_at_ms (tombstone: deleted at; seen: seen at)
//!       32     8  modified_at_ms, 2^64-1 when unknown
//!       40     4  lifetime_s, 0 for ever
//!       44     4  epoch
//!       48     8  dictionary digest, 0 for none
//!       56     4  URL length (u)
//!       60     2  MIME type length (m)
//!       62     2  flags: 1 the HTTP head is packed, 2 there is a payload digest, 4 the body was left out, 8 the HTTP head was
//!       64     4  HTTP head length (h)
//!       68     4  body length as stored (b)
//!       72     4  body length unpacked
//!       76     4  check: low half of the CRC-64 of bytes 0..76
//!       80     u  URL, as fetched
//!        …     m  MIME type
//!        …    20  with flag 2: payload digest, the SHA-1 of the payload as whoever added the page computed it
//!        …     h  HTTP head, as received; or, packed, its length 4 and the head packed as the body is
//!        …     b  body, packed by the codec
//!        …     8  CRC-64/XZ of all the above
//! ```
//!
//! 1. A record is never edited, only copied or dropped.
//! 2. `check` guards the lengths: where it holds, the next record's place is known even if this one is damaged.
//! 3. No length is trusted before it is bounded.
//! 4. A *tombstone* says that the page with this key was deleted, a *seen* entry that it was visited at
//!    `fetched_at_ms`, is unchanged, and may stay `lifetime_s` longer. Both have no URL, head or body.
//!
//! 5. What was left out was so on the way to a reader who did not want it. No store has or takes such a record; its checksum is
//!    its own, so its version is not the page's.
//!
//! Example: the page `http://h/` with body `hi`, no head, MIME type `a/b`, is 80 + 9 + 3 + 0 + 2 + 8 = 102 bytes.

use std::borrow::Cow;

use bytes::Bytes;
use crc_fast::CrcAlgorithm;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::codec::{Codec, Dictionaries};
use crate::error::{Result, StorageError};
use crate::page::{Page, PageId, PageKey, Version};

const MAGIC: [u8; 4] = *b"WBR1";
const UNKNOWN_MS: u64 = u64::MAX;
/// The HTTP head is packed with the body's codec and dictionary.
const HEAD_PACKED: u16 = 1;
/// A payload digest stands after the MIME type.
const HAS_DIGEST: u16 = 2;
/// The body was left out on the way to a reader; its lengths but the stored one are as they were.
const BODY_LEFT_OUT: u16 = 4;
/// The HTTP head was left out on the way to a reader.
const HEAD_LEFT_OUT: u16 = 8;
/// Bytes of a payload digest, which is a SHA-1.
pub const PAYLOAD_DIGEST_BYTES: usize = 20;
/// Bytes of a record before its URL.
pub(crate) const HEADER_BYTES: usize = 80;
const CHECKED_BYTES: usize = HEADER_BYTES - 4;
/// Bytes of a record after its body.
pub(crate) const TRAILER_BYTES: usize = 8;
/// Bytes of the smallest record.
pub const RECORD_BYTES_MIN: usize = HEADER_BYTES + TRAILER_BYTES;
/// No field of a record is larger, whatever the store's own limit says: lengths stay far from overflow.
pub const FIELD_BYTES_MAX: u32 = 1 << 30;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct Header {
    magic: [u8; 4],
    kind: u8,
    codec: u8,
    status: U16,
    id: U64,
    tie: U64,
    fetched_at_ms: U64,
    modified_at_ms: U64,
    lifetime_s: U32,
    epoch: U32,
    dictionary: U64,
    url_len: U32,
    mime_len: U16,
    flags: U16,
    head_len: U32,
    stored_len: U32,
    unpacked_len: U32,
    check: U32,
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

impl Header {
    fn computed_check(&self) -> u32 {
        crc64(self.as_bytes().get(..CHECKED_BYTES).unwrap_or_default()) as u32
    }

    fn has(&self, flag: u16) -> bool {
        self.flags.get() & flag != 0
    }

    fn digest_len(&self) -> usize {
        if self.has(HAS_DIGEST) { PAYLOAD_DIGEST_BYTES } else { 0 }
    }

    fn record_bytes(&self) -> u64 {
        RECORD_BYTES_MIN as u64
            + u64::from(self.url_len.get())
            + u64::from(self.mime_len.get())
            + self.digest_len() as u64
            + u64::from(self.head_len.get())
            + u64::from(self.stored_len.get())
    }
}

/// CRC-64/XZ, the checksum of everything webbase writes.
pub fn crc64(bytes: &[u8]) -> u64 {
    // A fuzzer cannot guess checksums; without them it gets to the code behind, which must not rely on them.
    if cfg!(fuzzing) {
        return 0;
    }
    crc_fast::checksum(CrcAlgorithm::Crc64Xz, bytes)
}

/// As [`crc64`], of several pieces that follow each other.
pub fn crc64_of_parts(parts: &[&[u8]]) -> u64 {
    if cfg!(fuzzing) {
        return 0;
    }
    let mut digest = crc_fast::Digest::new(CrcAlgorithm::Crc64Xz);
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize()
}

/// What a record says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A page.
    Page = 1,
    /// The page with this key was deleted.
    Tombstone = 2,
    /// The page with this key was seen again, unchanged.
    Seen = 3,
}

impl Kind {
    pub(crate) fn from_byte(byte: u8) -> Option<Kind> {
        match byte {
            1 => Some(Kind::Page),
            2 => Some(Kind::Tombstone),
            3 => Some(Kind::Seen),
            _ => None,
        }
    }
}

/// Why bytes are not a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Fewer bytes than the record has.
    #[error("record cut short: {have} of {need} bytes")]
    Truncated {
        /// Bytes the record should have.
        need: u64,
        /// Bytes there are.
        have: u64,
    },
    /// Another format, or another version of this one.
    #[error("no record here: expected magic {:?}, found {found:?}", MAGIC)]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// The header's own checksum does not hold.
    #[error("record header damaged: expected check {expected:08x}, found {found:08x}")]
    Header {
        /// Computed.
        expected: u32,
        /// Stored.
        found: u32,
    },
    /// The record's checksum does not hold.
    #[error("record damaged: expected CRC-64 {expected:016x}, found {found:016x}")]
    Crc {
        /// Computed.
        expected: u64,
        /// Stored.
        found: u64,
    },
    /// A length or code outside its bounds.
    #[error("record field {field} out of bounds: {found}, limit {max}")]
    Bounds {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// Its limit.
        max: u64,
    },
    /// A URL or MIME type that is not UTF-8.
    #[error("record field {field} is not UTF-8")]
    NotUtf8 {
        /// The field.
        field: &'static str,
    },
}

/// How long the record starting at `bytes` is, judged by its checked header alone.
///
/// # Errors
/// When the header is cut short or damaged.
pub fn record_len(bytes: &[u8]) -> std::result::Result<u64, RecordError> {
    let header = header_of(bytes)?;
    let expected = header.computed_check();
    if expected != header.check.get() {
        return Err(RecordError::Header { expected, found: header.check.get() });
    }
    bound_fields(header)?;
    Ok(header.record_bytes())
}

/// A damaged record with its header as it was, if one byte of that is wrong and these are all the record's bytes: `check` and
/// the length tell.
pub(crate) fn mended(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut header = *bytes.first_chunk::<HEADER_BYTES>()?;
    let mut found = None;
    for at in 0..HEADER_BYTES {
        let damaged = *header.get(at)?;
        for byte in 0..=u8::MAX {
            *header.get_mut(at)? = byte;
            if record_len(&header).is_ok_and(|len| len == bytes.len() as u64) {
                if found.is_some_and(|found| found != header) {
                    return None;
                }
                found = Some(header);
            }
        }
        *header.get_mut(at)? = damaged;
    }
    Some([&found?[..], bytes.get(HEADER_BYTES..)?].concat())
}

/// Whether a record could start here: magic and header check hold.
pub(crate) fn looks_like_record(bytes: &[u8]) -> bool {
    record_len(bytes).is_ok()
}

fn header_of(bytes: &[u8]) -> std::result::Result<&Header, RecordError> {
    let (header, _) = Header::ref_from_prefix(bytes)
        .map_err(|_| RecordError::Truncated { need: HEADER_BYTES as u64, have: bytes.len() as u64 })?;
    if header.magic != MAGIC {
        return Err(RecordError::Magic { found: header.magic });
    }
    Ok(header)
}

fn bound_fields(header: &Header) -> std::result::Result<(), RecordError> {
    if Kind::from_byte(header.kind).is_none() {
        return Err(RecordError::Bounds { field: "kind", found: header.kind.into(), max: 3 });
    }
    if Codec::from_byte(header.codec).is_none() {
        return Err(RecordError::Bounds { field: "codec", found: header.codec.into(), max: 3 });
    }
    let lengths = [
        ("url length", header.url_len),
        ("head length", header.head_len),
        ("stored length", header.stored_len),
        ("unpacked length", header.unpacked_len),
    ];
    // Nearly always one comparison will do: the limit is a power of two.
    if lengths.iter().fold(0, |all, (_, length)| all | length.get()) < FIELD_BYTES_MAX {
        return Ok(());
    }
    for (field, length) in lengths {
        if length.get() > FIELD_BYTES_MAX {
            let (found, max) = (length.get().into(), FIELD_BYTES_MAX.into());
            return Err(RecordError::Bounds { field, found, max });
        }
    }
    Ok(())
}

/// A record seen in place: nothing is copied until the body is asked for unpacked.
#[derive(Clone, Copy)]
pub struct RecordRef<'a> {
    header: &'a Header,
    bytes: &'a [u8],
}

impl<'a> RecordRef<'a> {
    /// Reads the record that starts at `bytes`, checking its header and its checksum.
    ///
    /// # Errors
    /// When the bytes are not a whole, undamaged record.
    pub fn parse(bytes: &'a [u8]) -> std::result::Result<RecordRef<'a>, RecordError> {
        record_len(bytes)?;
        let record = Self::parse_unverified(bytes)?;
        let expected = crc64(record.bytes.get(..record.bytes.len() - TRAILER_BYTES).unwrap_or_default());
        if expected != record.crc() {
            return Err(RecordError::Crc { expected, found: record.crc() });
        }
        for (field, text) in [("url", record.url_bytes()), ("mime", record.mime_bytes())] {
            if std::str::from_utf8(text).is_err() {
                return Err(RecordError::NotUtf8 { field });
            }
        }
        Ok(record)
    }

    /// Reads the record that starts at `bytes` without any checksum: for readers who trust their disk.
    /// Lengths are bounded all the same.
    ///
    /// # Errors
    /// When the magic or a length is wrong.
    #[inline]
    pub fn parse_unverified(bytes: &'a [u8]) -> std::result::Result<RecordRef<'a>, RecordError> {
        let header = header_of(bytes)?;
        bound_fields(header)?;
        let need = header.record_bytes();
        let have = bytes.len() as u64;
        match bytes.get(..need as usize) {
            Some(bytes) => Ok(RecordRef { header, bytes }),
            None => Err(RecordError::Truncated { need, have }),
        }
    }

    /// The whole record, as it lies on disk.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    fn field(&self, skip: usize, len: usize) -> &'a [u8] {
        let start = HEADER_BYTES + skip;
        self.bytes.get(start..start + len).unwrap_or_default()
    }

    fn lens(&self) -> (usize, usize, usize, usize) {
        let h = self.header;
        (
            h.url_len.get() as usize,
            usize::from(h.mime_len.get()),
            h.head_len.get() as usize,
            h.stored_len.get() as usize,
        )
    }

    fn url_bytes(&self) -> &'a [u8] {
        self.field(0, self.lens().0)
    }

    fn mime_bytes(&self) -> &'a [u8] {
        let (u, m, ..) = self.lens();
        self.field(u, m)
    }

    /// What the record says.
    pub fn kind(&self) -> Kind {
        Kind::from_byte(self.header.kind).unwrap_or(Kind::Page)
    }

    /// The page's key.
    pub fn key(&self) -> PageKey {
        PageKey { id: PageId(self.header.id.get()), tie: self.header.tie.get() }
    }

    /// What decides between this and another version of the page.
    pub fn version(&self) -> Version {
        Version { fetched_at_ms: self.fetched_at_ms(), epoch: self.epoch(), digest: self.crc() }
    }

    /// The URL as fetched. Empty if it is not UTF-8, which only an unverified record can be.
    pub fn url(&self) -> &'a str {
        std::str::from_utf8(self.url_bytes()).unwrap_or_default()
    }

    /// The MIME type, without parameters.
    pub fn mime(&self) -> &'a str {
        std::str::from_utf8(self.mime_bytes()).unwrap_or_default()
    }

    /// The SHA-1 of the payload, if whoever added the page gave it.
    pub fn payload_digest(&self) -> Option<[u8; PAYLOAD_DIGEST_BYTES]> {
        let (u, m, ..) = self.lens();
        self.field(u + m, self.header.digest_len()).try_into().ok()
    }

    /// The HTTP head as stored, which may be packed.
    fn stored_head(&self) -> &'a [u8] {
        let (u, m, h, _) = self.lens();
        self.field(u + m + self.header.digest_len(), h)
    }

    /// Length of the HTTP head unpacked.
    pub fn head_len(&self) -> usize {
        let stored = self.stored_head();
        if !self.header.has(HEAD_PACKED) {
            return stored.len();
        }
        stored.first_chunk().map_or(0, |len| u32::from_le_bytes(*len) as usize)
    }

    /// The HTTP head, byte for byte.
    ///
    /// # Errors
    /// When it is packed and the dictionary is unknown, or it does not unpack.
    pub fn head(&self, dictionaries: &Dictionaries) -> Result<Cow<'a, [u8]>> {
        let stored = self.stored_head();
        if !self.header.has(HEAD_PACKED) {
            return Ok(Cow::Borrowed(stored));
        }
        let broken = |what: &str| StorageError::Unpack { url: self.url().into(), what: what.into() };
        let (len, packed) = stored.split_first_chunk::<4>().ok_or_else(|| broken("its head is cut short"))?;
        let len = u32::from_le_bytes(*len);
        if len > FIELD_BYTES_MAX {
            return Err(broken("its head is too long"));
        }
        let mut out = Vec::new();
        dictionaries
            .unpack(self.codec(), self.dictionary(), packed, len as usize, &mut out)
            .map_err(|e| e.of_page(self.url()))?;
        Ok(Cow::Owned(out))
    }

    /// The body as stored, packed by [`RecordRef::codec`].
    pub fn stored_body(&self) -> &'a [u8] {
        let (u, m, h, b) = self.lens();
        self.field(u + m + self.header.digest_len() + h, b)
    }

    /// When the page was fetched.
    pub fn fetched_at_ms(&self) -> u64 {
        self.header.fetched_at_ms.get()
    }

    /// When the page last changed, if known.
    pub fn modified_at_ms(&self) -> Option<u64> {
        Some(self.header.modified_at_ms.get()).filter(|&ms| ms != UNKNOWN_MS)
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.header.status.get()
    }

    /// Allowed lifetime in seconds, 0 for ever.
    pub fn lifetime_s(&self) -> u32 {
        self.header.lifetime_s.get()
    }

    /// The epoch it arrived in.
    pub fn epoch(&self) -> u32 {
        self.header.epoch.get()
    }

    /// How the body is packed.
    pub fn codec(&self) -> Codec {
        Codec::from_byte(self.header.codec).unwrap_or(Codec::Plain)
    }

    /// The digest of the dictionary the body was packed with, 0 for none.
    pub fn dictionary(&self) -> u64 {
        self.header.dictionary.get()
    }

    /// Length of the body unpacked.
    pub fn body_len(&self) -> usize {
        self.header.unpacked_len.get() as usize
    }

    /// The CRC-64 at the end of the record, as stored.
    pub fn crc(&self) -> u64 {
        let at = self.bytes.len() - TRAILER_BYTES;
        self.bytes.get(at..).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
    }

    /// Whether this is not all of the page's record: for a reader who did not want the rest.
    pub fn is_partial(&self) -> bool {
        self.header.has(BODY_LEFT_OUT) || self.header.has(HEAD_LEFT_OUT)
    }

    /// A record of the same page, for a reader who does not want the body. Nothing is unpacked.
    pub fn without_body(&self) -> Bytes {
        let mut header = *self.header;
        header.flags = (header.flags.get() | BODY_LEFT_OUT).into();
        header.stored_len = 0.into();
        let (u, m, h, _) = self.lens();
        let mut out = Vec::new();
        finish(header, &[self.field(0, u + m + self.header.digest_len() + h)], &mut out);
        out.into()
    }

    /// A record of the same page, for a reader who does not want the HTTP head. Nothing is unpacked.
    pub fn without_head(&self) -> Bytes {
        let mut header = *self.header;
        header.flags = (header.flags.get() & !HEAD_PACKED | HEAD_LEFT_OUT).into();
        header.head_len = 0.into();
        let (u, m, ..) = self.lens();
        let mut out = Vec::new();
        finish(header, &[self.field(0, u + m + self.header.digest_len()), self.stored_body()], &mut out);
        out.into()
    }

    /// Unpacks the body into `out`, which is cleared first.
    ///
    /// # Errors
    /// When the dictionary is unknown or the body does not unpack to the length its header gives; when it was left out.
    pub fn unpack_into(&self, dictionaries: &Dictionaries, out: &mut Vec<u8>) -> Result<()> {
        if self.header.has(BODY_LEFT_OUT) {
            let what = "its body was left out of the stream".into();
            return Err(StorageError::Unpack { url: self.url().into(), what });
        }
        dictionaries
            .unpack(self.codec(), self.dictionary(), self.stored_body(), self.body_len(), out)
            .map_err(|e| e.of_page(self.url()))
    }
}

impl std::fmt::Debug for RecordRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {} {} ({} bytes)", self.kind(), self.key(), self.url(), self.bytes.len())
    }
}

/// A record one can keep: shared bytes (of a mapped file or a buffer), known to be a record.
#[derive(Clone)]
pub struct Record {
    bytes: Bytes,
    /// Body and head, one behind the other, where they are packed in the record and were unpacked already.
    unpacked: Option<Bytes>,
}

impl Record {
    /// Takes bytes that are exactly one record, checking everything.
    ///
    /// # Errors
    /// When they are not.
    pub fn new(bytes: Bytes) -> std::result::Result<Record, RecordError> {
        let len = RecordRef::parse(&bytes)?.bytes.len();
        Self::exact(bytes, len)
    }

    /// Takes bytes that are exactly one record, checking lengths only.
    ///
    /// # Errors
    /// When lengths or magic are wrong.
    #[inline]
    pub fn new_unverified(bytes: Bytes) -> std::result::Result<Record, RecordError> {
        let len = RecordRef::parse_unverified(&bytes)?.bytes.len();
        Self::exact(bytes, len)
    }

    #[inline]
    fn exact(bytes: Bytes, len: usize) -> std::result::Result<Record, RecordError> {
        if bytes.len() != len {
            let (found, max) = (bytes.len() as u64, len as u64);
            return Err(RecordError::Bounds { field: "record length", found, max });
        }
        Ok(Record { bytes, unpacked: None })
    }

    /// The record's fields.
    pub fn get(&self) -> RecordRef<'_> {
        match RecordRef::parse_unverified(&self.bytes) {
            Ok(record) => record,
            Err(e) => unreachable!("a Record holds bytes that were parsed as a record: {e}"),
        }
    }

    /// The page; without parsing the rest.
    #[inline]
    pub fn key(&self) -> PageKey {
        let key = |header: &Header| PageKey { id: PageId(header.id.get()), tie: header.tie.get() };
        Header::ref_from_prefix(&self.bytes).map_or(PageKey::MIN, |(header, _)| key(header))
    }

    /// Digest of the dictionary that it is packed with, 0 for none; without parsing the rest.
    #[inline]
    pub fn dictionary(&self) -> u64 {
        Header::ref_from_prefix(&self.bytes).map_or(0, |(header, _)| header.dictionary.get())
    }

    /// The record's bytes, shared.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The body, unpacked: without a copy when it is stored plain, or when the record is [`Record::unpacked`] already.
    ///
    /// # Errors
    /// When the dictionary is unknown or the body does not unpack.
    pub fn body(&self, dictionaries: &Dictionaries) -> Result<Bytes> {
        let record = self.get();
        if let Some(unpacked) = &self.unpacked {
            return Ok(unpacked.slice(..record.body_len()));
        }
        if record.codec() == Codec::Plain && !record.header.has(BODY_LEFT_OUT) {
            return Ok(self.bytes.slice_ref(record.stored_body()));
        }
        let mut out = Vec::new();
        record.unpack_into(dictionaries, &mut out)?;
        Ok(out.into())
    }

    /// The HTTP head, byte for byte: without a copy when it is stored plain, or the record is [`Record::unpacked`].
    ///
    /// # Errors
    /// When it is packed and the dictionary is unknown, or it does not unpack.
    pub fn head(&self, dictionaries: &Dictionaries) -> Result<Bytes> {
        let record = self.get();
        if let Some(unpacked) = &self.unpacked {
            return Ok(unpacked.slice(record.body_len()..));
        }
        Ok(match record.head(dictionaries)? {
            Cow::Borrowed(stored) => self.bytes.slice_ref(stored),
            Cow::Owned(head) => head.into(),
        })
    }

    /// The same record with head and body unpacked beside it, if they are packed. Its bytes stay what they are.
    ///
    /// # Errors
    /// When the dictionary is unknown or something does not unpack.
    pub fn unpacked(self, dictionaries: &Dictionaries) -> Result<Record> {
        if self.is_unpacked() {
            return Ok(self);
        }
        let record = self.get();
        let head = record.head(dictionaries)?;
        let mut out = Vec::with_capacity(record.body_len() + head.len());
        record.unpack_into(dictionaries, &mut out)?;
        out.extend_from_slice(&head);
        Ok(Record { unpacked: Some(out.into()), bytes: self.bytes })
    }

    /// Whether [`Record::head`] and [`Record::body`] have nothing to unpack.
    pub fn is_unpacked(&self) -> bool {
        let record = self.get();
        let packed = record.codec() != Codec::Plain || record.header.has(HEAD_PACKED);
        self.unpacked.is_some() || !packed
    }

    /// Memory it keeps, if its bytes are its own.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.len() + self.unpacked.as_ref().map_or(0, Bytes::len)
    }
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}

/// Appends the record of `page` to `out`, its body already packed, in two pieces, and its head too where `packed_head` is given.
pub(crate) fn encode(
    page: &Page<'_>,
    key: PageKey,
    (codec, dictionary, stored): (Codec, u64, [&[u8]; 2]),
    packed_head: Option<&[u8]>,
    out: &mut Vec<u8>,
) -> Result<()> {
    let unpacked_head_len = (page.head.len() as u32).to_le_bytes();
    let (flags, head): (u16, [&[u8]; 2]) = match packed_head {
        Some(packed) => (HEAD_PACKED, [&unpacked_head_len, packed]),
        None => (0, [&[], page.head]),
    };
    let flags = if page.payload_digest.is_some() { flags | HAS_DIGEST } else { flags };
    let digest: &[u8] = page.payload_digest.as_ref().map_or(&[], |digest| digest);
    let head_len: usize = head.iter().map(|part| part.len()).sum();
    let field = |name: &str, len: usize, max: usize| match u32::try_from(len) {
        Ok(fits) if len <= max => Ok(fits),
        _ => Err(StorageError::BadPage {
            url: page.url.chars().take(200).collect(),
            what: format!("{name} has {len} bytes, at most {max} fit a record"),
        }),
    };
    let max = FIELD_BYTES_MAX as usize;
    let mime_len = field("MIME type", page.mime.len(), usize::from(u16::MAX))? as u16;
    let header = Header {
        status: page.status.into(),
        fetched_at_ms: page.fetched_at_ms.into(),
        modified_at_ms: page.modified_at_ms.unwrap_or(UNKNOWN_MS).into(),
        lifetime_s: page.lifetime_s.into(),
        epoch: page.epoch.into(),
        url_len: field("URL", page.url.len(), max)?.into(),
        mime_len: mime_len.into(),
        flags: flags.into(),
        head_len: field("HTTP head", head_len, max)?.into(),
        stored_len: field("body", stored.iter().map(|part| part.len()).sum(), max)?.into(),
        unpacked_len: field("body", page.body_len(), max)?.into(),
        codec: codec as u8,
        dictionary: dictionary.into(),
        ..blank(Kind::Page, key)
    };
    let ([head_start, head_rest], [body_start, body_rest]) = (head, stored);
    let (url, mime) = (page.url.as_bytes(), page.mime.as_bytes());
    finish(header, &[url, mime, digest, head_start, head_rest, body_start, body_rest], out);
    Ok(())
}

/// Appends a tombstone or a seen entry to `out`.
pub(crate) fn encode_mark(kind: Kind, key: PageKey, at_ms: u64, lifetime_s: u32, out: &mut Vec<u8>) {
    let header = Header { fetched_at_ms: at_ms.into(), lifetime_s: lifetime_s.into(), ..blank(kind, key) };
    finish(header, &[], out);
}

fn blank(kind: Kind, key: PageKey) -> Header {
    let mut header = Header::new_zeroed();
    header.magic = MAGIC;
    header.kind = kind as u8;
    header.id = key.id.0.into();
    header.tie = key.tie.into();
    header.modified_at_ms = UNKNOWN_MS.into();
    header
}

fn finish(mut header: Header, fields: &[&[u8]], out: &mut Vec<u8>) {
    header.check = header.computed_check().into();
    let start = out.len();
    out.reserve(header.record_bytes() as usize);
    out.extend_from_slice(header.as_bytes());
    for field in fields {
        out.extend_from_slice(field);
    }
    let crc = crc64(out.get(start..).unwrap_or_default());
    out.extend_from_slice(&crc.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(out: &mut Vec<u8>) -> PageKey {
        let key = PageKey { id: PageId(7), tie: 9 };
        let page = Page {
            url: "http://h/",
            mime: "a/b",
            body: b"hi",
            fetched_at_ms: 5,
            modified_at_ms: Some(4),
            status: 404,
            lifetime_s: 60,
            ..Page::default()
        };
        encode(&page, key, (Codec::Plain, 0, [b"hi", b""]), None, out).unwrap();
        key
    }

    #[test]
    fn checksums_are_those_of_the_standard_in_one_piece_or_several() {
        assert_eq!((crc64(b""), crc64(b"123456789")), (0, 0x995d_c9bb_df19_39fa));
        // A bit at a time, and around the lengths where ways through the processor change.
        let slow = |bytes: &[u8]| {
            let step = |crc: u64| if crc & 1 == 1 { (crc >> 1) ^ 0xc96c_5795_d787_0f42 } else { crc >> 1 };
            !bytes.iter().fold(!0_u64, |crc, byte| (0..8).fold(crc ^ u64::from(*byte), |crc, _| step(crc)))
        };
        let bytes: Vec<u8> = (0..3000_u32).map(|n| ((n * n) >> 3) as u8).collect();
        for len in (0..300).chain([511, 512, 513, 1023, 1025, 2047, 2999]) {
            assert_eq!(crc64(&bytes[1..1 + len]), slow(&bytes[1..1 + len]), "{len}");
        }
        assert_eq!(crc64_of_parts(&[&bytes[..7], b"", &bytes[7..1000], &bytes[1000..]]), crc64(&bytes));
    }

    #[test]
    fn what_is_left_out_is_told_and_the_rest_stays() {
        let key = crate::page::RepositoryKey::random().unwrap();
        let body = b"the body ".repeat(50);
        let page = Page {
            url: "http://h/left",
            head: b"HTTP/1.1 200 OK\r\n\r\n",
            body: &body,
            mime: "text/plain",
            payload_digest: Some([7; 20]),
            ..Page::default()
        };
        for compression in [crate::Compression::default(), crate::Compression::None] {
            let whole = crate::pack_page(&key, &page, compression, None).unwrap();
            let dictionaries = Dictionaries::default();
            let no_body = Record::new(whole.get().without_body()).unwrap();
            assert!(no_body.get().is_partial() && !whole.get().is_partial());
            assert_eq!(&no_body.head(&dictionaries).unwrap()[..], page.head);
            assert!(no_body.body(&dictionaries).is_err());
            assert_eq!(no_body.get().body_len(), body.len(), "its length is known all the same");
            let no_head = Record::new(whole.get().without_head()).unwrap();
            assert_eq!(&no_head.body(&dictionaries).unwrap()[..], &body[..]);
            assert!(no_head.head(&dictionaries).unwrap().is_empty());
            for part in [&no_body, &no_head] {
                let (part, whole) = (part.get(), whole.get());
                assert_eq!((part.url(), part.mime(), part.key()), (whole.url(), whole.mime(), whole.key()));
                assert_eq!(part.payload_digest(), Some([7; 20]));
            }
        }
    }

    #[test]
    fn a_record_reads_back_as_written() {
        let mut out = Vec::new();
        let key = sample(&mut out);
        assert_eq!(out.len(), 102);
        let r = RecordRef::parse(&out).unwrap();
        assert_eq!(
            (r.key(), r.url(), r.mime(), r.stored_head(), r.stored_body()),
            (key, "http://h/", "a/b", &b""[..], &b"hi"[..])
        );
        assert_eq!(
            (r.fetched_at_ms(), r.modified_at_ms(), r.status(), r.lifetime_s()),
            (5, Some(4), 404, 60)
        );
        assert_eq!(r.kind(), Kind::Page);
    }

    #[test]
    fn a_payload_digest_stands_before_the_head() {
        let digest = [0xd1; PAYLOAD_DIGEST_BYTES];
        for payload_digest in [None, Some(digest)] {
            let page = Page {
                url: "http://h/",
                mime: "a/b",
                head: b"a head",
                body: b"hi",
                payload_digest,
                ..Page::default()
            };
            for packed_head in [None, Some(&b"packed"[..])] {
                let mut out = Vec::new();
                encode(&page, PageKey::MIN, (Codec::Plain, 0, [b"hi", b""]), packed_head, &mut out).unwrap();
                let r = RecordRef::parse(&out).unwrap();
                assert_eq!((r.payload_digest(), r.head_len(), r.body_len()), (payload_digest, 6, 2));
                assert_eq!((r.mime(), r.stored_body()), ("a/b", &b"hi"[..]));
                assert_eq!(record_len(&out), Ok(out.len() as u64));
            }
        }
    }

    #[test]
    fn the_first_version_still_reads() {
        // The bytes of `sample`, written down when version 1 was made: they must read for ever.
        let hex = include_str!("../tests/data/record-v1.hex");
        let bytes: Vec<u8> = hex.split_whitespace().map(|b| u8::from_str_radix(b, 16).unwrap()).collect();
        let mut now = Vec::new();
        sample(&mut now);
        assert_eq!(bytes, now);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let (mut plain, mut with_digest) = (Vec::new(), Vec::new());
        let key = sample(&mut plain);
        let page = Page { url: "http://h/", payload_digest: Some([7; 20]), ..Page::default() };
        encode(&page, key, (Codec::Plain, 0, [b"hi", b""]), None, &mut with_digest).unwrap();
        for mut out in [plain, with_digest] {
            for byte in 0..out.len() {
                for bit in 0..8 {
                    out[byte] ^= 1 << bit;
                    assert!(RecordRef::parse(&out).is_err(), "flip of byte {byte} bit {bit}");
                    out[byte] ^= 1 << bit;
                }
                assert!(RecordRef::parse(&out[..byte]).is_err(), "cut at {byte}");
            }
        }
    }

    #[test]
    fn marks_are_small_records() {
        let mut out = Vec::new();
        encode_mark(Kind::Tombstone, PageKey::MAX, 17, 0, &mut out);
        assert_eq!(out.len(), RECORD_BYTES_MIN);
        assert_eq!(RecordRef::parse(&out).unwrap().kind(), Kind::Tombstone);
    }

    #[test]
    fn a_field_too_long_is_refused_by_name() {
        let page = Page { url: "http://h/", mime: &"m".repeat(70_000), ..Page::default() };
        let e =
            encode(&page, PageKey::MIN, (Codec::Plain, 0, [b"", b""]), None, &mut Vec::new()).unwrap_err();
        assert!(e.to_string().contains("MIME type has 70000 bytes"), "{e}");
    }
}
