//! A block: some rows of a run, packed, the same on disk and on the wire. Little-endian.
//!
//! ```text
//!   OFFSET  SIZE  FIELD
//!        0     8  CRC-64 of all that follows
//!        8     2  rows (r)
//!       10     2  rows with a payload digest (d)
//!       12     4  rows' bytes unpacked
//!       16     4  rows' bytes packed (p)
//!       20     p  the rows, zstd
//!        …    2r  the first 16 bits of each page's id
//!        …   20d  the payload digests of those that have one: nothing packs these two
//! ```
//!
//! A row, unpacked; numbers without a size are varints, 7 bits a byte, the lowest first:
//!
//! ```text
//!   2  flags: 1 https, 2 www., 4 a slash at the end, 8 letters in another case, 16 another tail, 32 payload digest,
//!      64 gone, 128 new, 256 epoch, status and MIME type as in the row before, 512 there is a modification time
//!   bytes that the SURT key shares with that of the row before; length of the rest; the rest
//!   flag 8: how many letters; how far each is from the one before
//!   flag 16: bytes that the URL shares with the guess; length of the rest; the rest
//!   and if it is not gone:
//!   fetched_at_ms less that of the row before, zigzag
//!   without flag 256: epoch; status; MIME type's length; MIME type
//!   HTTP head length; body length
//!   flag 512: fetched_at_ms less modified_at_ms, zigzag
//! ```
//!
//! Example: a page at the front page of a host, status and type as before, fetched in the same second, with a digest, takes
//! about 2 + 2 + 10 + 3 + 3 bytes before packing, and 22 that are not packed.

use std::cell::RefCell;

use super::row::{Edit, UrlRow, edit, guess};
use super::{Change, Entry};
use crate::error::{Result, StorageError};
use crate::record::crc64;

/// Bytes of rows, unpacked, with which a block ends.
pub(super) const BLOCK_BYTES: usize = 16 << 10;
/// Rows of a block, at most.
const BLOCK_ROWS: usize = 4096;
/// Bytes of rows that a reader unpacks, at most: the largest row there can be is far smaller.
const UNPACKED_MAX: usize = 4 << 20;
const HEADER_BYTES: usize = 20;
const LEVEL: i32 = 1;

const CASE: u16 = 8;
const TAIL: u16 = 16;
const DIGEST: u16 = 32;
const GONE: u16 = 64;
const NEW: u16 = 128;
const SAME: u16 = 256;
const MODIFIED: u16 = 512;

thread_local! {
    static PACKER: RefCell<Option<zstd::bulk::Compressor<'static>>> = const { RefCell::new(None) };
    static UNPACKER: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

pub(super) fn pack(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    PACKER.with_borrow_mut(|packer| match packer {
        Some(packer) => packer.compress(bytes),
        None => packer.insert(zstd::bulk::Compressor::new(LEVEL)?).compress(bytes),
    })
}

pub(super) fn unpack(packed: &[u8], len: usize) -> std::result::Result<Vec<u8>, String> {
    let unpacked = UNPACKER.with_borrow_mut(|unpacker| match unpacker {
        Some(unpacker) => unpacker.decompress(packed, len),
        None => unpacker.insert(zstd::bulk::Decompressor::new()?).decompress(packed, len),
    });
    let unpacked = unpacked.map_err(|e| format!("it does not unpack: {e}"))?;
    match unpacked.len() == len {
        true => Ok(unpacked),
        false => Err(format!("it unpacks to {} bytes, expected {len}", unpacked.len())),
    }
}

pub(super) fn put(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_text(text: &[u8], out: &mut Vec<u8>) {
    put(text.len() as u64, out);
    out.extend_from_slice(text);
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

pub(super) fn take(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

pub(super) fn take_bytes<'a>(len: usize, from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (bytes, rest) = from.split_at_checked(len)?;
    *from = rest;
    Some(bytes)
}

pub(super) fn shared(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Collects the rows of a block.
#[derive(Default)]
pub(super) struct BlockWriter {
    rows: Vec<u8>,
    highs: Vec<u8>,
    digests: Vec<u8>,
    count: u16,
    digest_count: u16,
    last: Last,
}

/// What a row refers to of the one before.
#[derive(Default)]
struct Last {
    surt: Vec<u8>,
    fetched_at_ms: u64,
    epoch: u32,
    status: u16,
    mime: String,
}

impl BlockWriter {
    pub(super) fn push(&mut self, row: &UrlRow, change: Change) {
        let (mut flags, edit) = edit(&row.surt, &row.url);
        let last = &mut self.last;
        let is_gone = change == Change::Gone;
        flags |= match change {
            Change::New => NEW,
            Change::Replaces => 0,
            Change::Gone => GONE,
        };
        flags |= match edit {
            Edit::None => 0,
            Edit::Case(_) => CASE,
            Edit::Tail(..) => TAIL,
        };
        if !is_gone {
            let same =
                (last.epoch, last.status, last.mime.as_str()) == (row.epoch, row.status, row.mime.as_str());
            flags |= if same { SAME } else { 0 };
            flags |= if row.payload_digest.is_some() { DIGEST } else { 0 };
            flags |= if row.modified_at_ms.is_some() { MODIFIED } else { 0 };
        }
        let out = &mut self.rows;
        out.extend_from_slice(&flags.to_le_bytes());
        let surt = row.surt.as_bytes();
        let same = shared(&last.surt, surt);
        put(same as u64, out);
        put_text(surt.get(same..).unwrap_or_default(), out);
        last.surt.truncate(same);
        last.surt.extend_from_slice(surt.get(same..).unwrap_or_default());
        match edit {
            Edit::None => {}
            Edit::Case(places) => {
                put(places.len() as u64, out);
                let mut before = 0;
                for at in places {
                    put((at - before) as u64, out);
                    before = at;
                }
            }
            Edit::Tail(same, tail) => {
                put(same as u64, out);
                put_text(tail.as_bytes(), out);
            }
        }
        self.highs.extend_from_slice(&row.id_high.to_le_bytes());
        self.count += 1;
        if is_gone {
            return;
        }
        put(zigzag(row.fetched_at_ms.wrapping_sub(last.fetched_at_ms) as i64), out);
        last.fetched_at_ms = row.fetched_at_ms;
        if flags & SAME == 0 {
            put(row.epoch.into(), out);
            put(row.status.into(), out);
            put_text(row.mime.as_bytes(), out);
            (last.epoch, last.status) = (row.epoch, row.status);
            last.mime.clone_from(&row.mime);
        }
        put(row.head_len.into(), out);
        put(row.body_len.into(), out);
        if let Some(modified) = row.modified_at_ms {
            put(zigzag(row.fetched_at_ms.wrapping_sub(modified) as i64), out);
        }
        if let Some(digest) = &row.payload_digest {
            self.digests.extend_from_slice(digest);
            self.digest_count += 1;
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.rows.len() >= BLOCK_BYTES || usize::from(self.count) >= BLOCK_ROWS
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Appends the block, and begins the next.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) -> std::io::Result<()> {
        let packed = pack(&self.rows)?;
        let start = out.len();
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.digest_count.to_le_bytes());
        out.extend_from_slice(&(self.rows.len() as u32).to_le_bytes());
        out.extend_from_slice(&(packed.len() as u32).to_le_bytes());
        out.extend_from_slice(&packed);
        out.extend_from_slice(&self.highs);
        out.extend_from_slice(&self.digests);
        let crc = crc64(out.get(start + 8..).unwrap_or_default()).to_le_bytes();
        if let Some(slot) = out.get_mut(start..start + 8) {
            slot.copy_from_slice(&crc);
        }
        let mut rows = std::mem::take(&mut self.rows);
        rows.clear();
        *self = BlockWriter { rows, ..BlockWriter::default() };
        Ok(())
    }
}

/// The rows of a block, one after the other.
pub(super) struct Block {
    rows: Vec<u8>,
    at: usize,
    /// Highs, then digests.
    rest: Vec<u8>,
    count: usize,
    /// Rows read, and digests.
    next: usize,
    next_digest: usize,
    digest_count: usize,
    last: Last,
}

fn number(bytes: &[u8], at: usize, len: usize) -> usize {
    let bytes = bytes.get(at..at + len).unwrap_or_default();
    bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

impl Block {
    /// Takes the first block off `bytes`.
    pub(super) fn take(bytes: &mut &[u8]) -> std::result::Result<Block, String> {
        let head = bytes.get(..HEADER_BYTES).ok_or("it is cut short")?;
        let (count, digest_count) = (number(head, 8, 2), number(head, 10, 2));
        let (unpacked, packed) = (number(head, 12, 4), number(head, 16, 4));
        if unpacked > UNPACKED_MAX || packed > 2 * UNPACKED_MAX {
            return Err(format!("{packed} bytes packed, {unpacked} unpacked, the limit is {UNPACKED_MAX}"));
        }
        let len = HEADER_BYTES + packed + 2 * count + 20 * digest_count;
        let (block, later) = bytes.split_at_checked(len).ok_or("it is cut short")?;
        let found = block.first_chunk().map_or(0, |crc| u64::from_le_bytes(*crc));
        let expected = crc64(block.get(8..).unwrap_or_default());
        if expected != found {
            return Err(format!("expected CRC-64 {expected:016x}, found {found:016x}"));
        }
        let (packed, rest) = block.get(HEADER_BYTES..).unwrap_or_default().split_at(packed);
        let (rows, rest) = (unpack(packed, unpacked)?, rest.to_vec());
        *bytes = later;
        let last = Last::default();
        Ok(Block { rows, at: 0, rest, count, next: 0, next_digest: 0, digest_count, last })
    }

    /// The next row; `None` after the last.
    pub(super) fn next(&mut self) -> std::result::Result<Option<Entry>, String> {
        if self.next == self.count {
            return match self.at == self.rows.len() && self.next_digest == self.digest_count {
                true => Ok(None),
                false => Err("it has more than its rows".into()),
            };
        }
        self.read().ok_or_else(|| format!("its row {} is none", self.next)).map(Some)
    }

    fn read(&mut self) -> Option<Entry> {
        let mut from = self.rows.get(self.at..)?;
        let before = from.len();
        let flags = u16::from_le_bytes(*take_bytes(2, &mut from)?.first_chunk()?);
        let same = take(&mut from)? as usize;
        let len = take(&mut from)? as usize;
        let rest = take_bytes(len, &mut from)?;
        if same > self.last.surt.len() {
            return None;
        }
        self.last.surt.truncate(same);
        self.last.surt.extend_from_slice(rest);
        let surt = std::str::from_utf8(&self.last.surt).ok()?;
        let guess = guess(surt, flags);
        let url = if flags & CASE != 0 {
            let mut url = guess.into_owned().into_bytes();
            let mut at = 0_usize;
            for _ in 0..take(&mut from)? {
                at = at.checked_add(take(&mut from)? as usize)?;
                *url.get_mut(at)? ^= 0x20;
            }
            String::from_utf8(url).ok()?
        } else if flags & TAIL != 0 {
            let same = take(&mut from)? as usize;
            let len = take(&mut from)? as usize;
            let tail = std::str::from_utf8(take_bytes(len, &mut from)?).ok()?;
            let mut url = guess.get(..same)?.to_owned();
            url.push_str(tail);
            url
        } else {
            guess.into_owned()
        };
        let high = self.rest.get(2 * self.next..)?.first_chunk()?;
        let mut row =
            UrlRow { surt: surt.to_owned(), url, id_high: u16::from_le_bytes(*high), ..UrlRow::default() };
        let change = match (flags & GONE != 0, flags & NEW != 0) {
            (true, _) => Change::Gone,
            (false, true) => Change::New,
            (false, false) => Change::Replaces,
        };
        if change != Change::Gone {
            let last = &mut self.last;
            last.fetched_at_ms = last.fetched_at_ms.wrapping_add(unzigzag(take(&mut from)?) as u64);
            if flags & SAME == 0 {
                last.epoch = u32::try_from(take(&mut from)?).ok()?;
                last.status = u16::try_from(take(&mut from)?).ok()?;
                let len = take(&mut from)? as usize;
                last.mime = std::str::from_utf8(take_bytes(len, &mut from)?).ok()?.to_owned();
            }
            row.fetched_at_ms = last.fetched_at_ms;
            (row.epoch, row.status) = (last.epoch, last.status);
            row.mime.clone_from(&last.mime);
            row.head_len = u32::try_from(take(&mut from)?).ok()?;
            row.body_len = u32::try_from(take(&mut from)?).ok()?;
            if flags & MODIFIED != 0 {
                let less = unzigzag(take(&mut from)?) as u64;
                row.modified_at_ms = Some(row.fetched_at_ms.wrapping_sub(less));
            }
            if flags & DIGEST != 0 {
                let at = 2 * self.count + 20 * self.next_digest;
                row.payload_digest = Some(*self.rest.get(at..)?.first_chunk()?);
                self.next_digest += 1;
            }
        }
        self.at += before - from.len();
        self.next += 1;
        Some(Entry { row, change })
    }
}

/// Rows as bytes, for the wire: blocks, end to end. Rows that come in order take the least room.
///
/// # Errors
/// When they cannot be packed, for want of memory.
pub fn encode_rows(rows: &[UrlRow]) -> Result<Vec<u8>> {
    let (mut writer, mut out) = (BlockWriter::default(), Vec::new());
    let failed = |e| StorageError::io("pack", std::path::Path::new("rows of the URL index"), e);
    for row in rows {
        writer.push(row, Change::Replaces);
        if writer.is_full() {
            writer.finish(&mut out).map_err(failed)?;
        }
    }
    if !writer.is_empty() {
        writer.finish(&mut out).map_err(failed)?;
    }
    Ok(out)
}

/// Reads what [`encode_rows`] wrote.
///
/// # Errors
/// What is wrong with the bytes.
pub fn decode_rows(mut bytes: &[u8]) -> std::result::Result<Vec<UrlRow>, String> {
    let mut rows = Vec::new();
    while !bytes.is_empty() {
        let mut block = Block::take(&mut bytes)?;
        while let Some(entry) = block.next()? {
            rows.push(entry.row);
        }
    }
    Ok(rows)
}
