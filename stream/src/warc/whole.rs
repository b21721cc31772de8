//! Lots of members that are one whole WARC record each, which is what nearly all members of nearly all files are.
//!
//! ```text
//!   lot:      member member member …          packed
//!                │      │      │
//!   buffers:  [record record …] [record …]    unpacked end to end, each buffer some records
//! ```
//!
//! They are unpacked where they stay, a whole member at a time, into memory that is used again. A lot with anything else in it
//! (damage, several records in a member, ARC, empty lines before a record) is left to the [`Reader`](super::Reader), which knows
//! all that: what is found here is what it would find. (But for deflate streams that no packer writes: libdeflate unpacks some that
//! zlib refuses, with a code for lengths or distances that do not exist and are not used.)

use std::ops::Range;

use bytes::Bytes;
use webbase_storage::inflate::{InflateError, Inflater, crc32};

use super::digest::PayloadDigest;
use super::head::{Head, Kind};
use super::lots::{Lot, next_head};
use super::members::{Found, Member, UNPACKED_BYTES_MAX};
use super::pool::Pool;
use super::reader::{Block, Item, WarcRecord, warc_head_len};
use super::unpack::{gzip_head_len, is_gzip};

/// Bytes of a buffer: a member that does not fit in gets a larger one.
const BUFFER_BYTES: usize = 512 << 10;
/// A buffer with so many bytes is full.
const FULL_BYTES: usize = 256 << 10;
/// Longer heads are somebody else's.
const HEAD_BYTES_MAX: usize = 64 << 10;
const TRAILER_BYTES: usize = 8;
/// Captures of a lot hold it as it is when they are at least this part of it.
const CAPTURES_SHARE: usize = 8;
/// What a byte of a deflate stream unpacks to, at most.
const RATIO_MAX: usize = 1032;
/// Ends of lines behind a record; there should be four. More are kept out of memory that captures hold.
const BEHIND_BYTES_MAX: usize = 64;

/// Reads lots.
pub(super) struct WholeMembers {
    inflater: Inflater,
    pool: Pool,
}

/// A member in a buffer.
struct Unpacked {
    /// Where it is in the lot, packed, and its deflate stream in it.
    at: usize,
    stream: Range<usize>,
    end: usize,
    /// Where it ends in the buffer.
    unpacked_end: usize,
}

impl WholeMembers {
    pub(super) fn new(pool: Pool) -> WholeMembers {
        WholeMembers { inflater: Inflater::new(), pool }
    }

    /// All records of a lot; nothing if it has anything else.
    pub(super) fn read(&mut self, lot: &Lot) -> Option<Vec<Found>> {
        let (mut found, mut at, mut bytes) = (Vec::new(), 0, 0);
        let mut hints = Hints::default();
        while at < lot.bytes.len() {
            let wanted = hints.of_member(lot.bytes.get(at..)?);
            let mut buffer = self.pool.take(wanted.max(BUFFER_BYTES));
            let (mut members, mut used) = (Vec::new(), 0);
            while at < lot.bytes.len() && used < FULL_BYTES {
                let packed = lot.bytes.get(at..)?;
                if used > 0 && hints.of_member(packed) > buffer.len() - used {
                    break;
                }
                let (stream, unpacked) = match self.unpack(packed, buffer.get_mut(used..)?) {
                    Ok(unpacked) => unpacked,
                    // Into a buffer of its own, then.
                    Err(InflateError::NoRoom(_)) if used > 0 => break,
                    Err(InflateError::NoRoom(_)) => {
                        grow(&mut buffer)?;
                        continue;
                    }
                    Err(InflateError::Broken) => return None,
                };
                used += unpacked;
                hints.check(stream.end + TRAILER_BYTES);
                let (stream, end) = (at + stream.start..at + stream.end, at + stream.end + TRAILER_BYTES);
                members.push(Unpacked { at, stream, end, unpacked_end: used });
                at = end;
            }
            bytes += used;
            if bytes > UNPACKED_BYTES_MAX {
                return None;
            }
            if buffer.len() > BUFFER_BYTES.max(4 * used) {
                // It was told to be larger.
                buffer.truncate(used);
                buffer.shrink_to_fit();
            }
            let mut rest = self.pool.share(buffer, used);
            let mut start = 0;
            for member in members {
                let unpacked = rest.split_to(member.unpacked_end - start);
                start = member.unpacked_end;
                found.push(record(lot, &member, unpacked)?);
            }
        }
        let digests = PayloadDigest::of_each(found.iter().map(|found| &found.item));
        found.iter_mut().zip(digests).for_each(|(found, digest)| found.digest = digest);
        alone_if_few(&mut found, lot.bytes.len());
        Some(found)
    }

    /// Unpacks the member that `packed` begins with to the beginning of `room`; says where its stream is, and how long that is unpacked.
    fn unpack(&mut self, packed: &[u8], room: &mut [u8]) -> Result<(Range<usize>, usize), InflateError> {
        let head_len = if is_gzip(packed) { gzip_head_len(packed).ok().flatten() } else { None };
        let head_len = head_len.ok_or(InflateError::Broken)?;
        let blocks = packed.get(head_len..).unwrap_or_default();
        let (read, written) = self.inflater.inflate(blocks, room)?;
        let trailer = blocks.get(read..read + TRAILER_BYTES).unwrap_or_default();
        let crc = crc32(room.get(..written).unwrap_or_default());
        let sums = [crc.to_le_bytes(), (written as u32).to_le_bytes()];
        if trailer != sums.as_flattened() {
            return Err(InflateError::Broken);
        }
        Ok((head_len..head_len + read, written))
    }
}

/// How many bytes members will have: that stands at the end of each, before what looks like the next one. It is only believed as far as
/// buffers go, and finds that a member does not fit in before it is unpacked as far as it does. Where what looks so is not the next member,
/// nothing more is guessed in this lot: else many members would get a buffer each for what one says, and be searched to its end.
#[derive(Default)]
struct Hints {
    /// Where the member ends that was asked for last.
    end: Option<usize>,
    are_wrong: bool,
}

impl Hints {
    /// Bytes of the member that `packed` begins with; nothing if that cannot be told.
    fn of_member(&mut self, packed: &[u8]) -> usize {
        if self.are_wrong {
            return 0;
        }
        let end = next_head(packed).unwrap_or(packed.len());
        self.end = Some(end);
        let told = end.checked_sub(4).and_then(|at| packed.get(at..)?.first_chunk());
        let told = told.map_or(0, |told| u32::from_le_bytes(*told) as usize);
        if told <= UNPACKED_BYTES_MAX.min(end.saturating_mul(RATIO_MAX)) { told } else { 0 }
    }

    /// So many bytes the member had.
    fn check(&mut self, end: usize) {
        self.are_wrong |= self.end.take().is_some_and(|told| told != end);
    }
}

/// Where little of a lot becomes captures, they are not to hold the rest of it.
fn alone_if_few(found: &mut [Found], lot_bytes: usize) {
    let makes_capture = |found: &Found| match &found.item {
        Item::Record(record) => matches!(record.kind(), Kind::Response | Kind::Resource),
        Item::Damage(_) => false,
    };
    let of_captures = found.iter().filter(|found| makes_capture(found)).filter_map(|f| f.member.as_ref());
    if of_captures.map(|member| member.bytes.len()).sum::<usize>() < lot_bytes / CAPTURES_SHARE {
        found.iter_mut().filter_map(|found| found.member.as_mut()).for_each(|m| m.held_bytes = usize::MAX);
    }
}

/// Makes a buffer four times as large, because what did not fit in is unpacked from its beginning; nothing if that were too much.
fn grow(buffer: &mut Vec<u8>) -> Option<()> {
    let len = (buffer.len() * 4).min(2 * UNPACKED_BYTES_MAX);
    if len == buffer.len() {
        return None;
    }
    buffer.resize(len, 0);
    Some(())
}

/// The record that a member is, still without its digest.
fn record(lot: &Lot, member: &Unpacked, mut unpacked: Bytes) -> Option<Found> {
    if !unpacked.starts_with(b"WARC/") {
        return None;
    }
    let start = unpacked.get(..unpacked.len().min(HEAD_BYTES_MAX))?;
    let (block_at, unpacked_bytes) = (warc_head_len(start, 0)?, unpacked.len());
    let head = Head::warc(unpacked.split_to(block_at));
    let len = usize::try_from(head.block_len().ok()?).ok()?;
    let behind = unpacked.get(len..)?;
    if behind.len() > BEHIND_BYTES_MAX || !behind.iter().all(|byte| matches!(byte, b'\r' | b'\n')) {
        return None;
    }
    unpacked.truncate(len);
    let record = WarcRecord {
        offset: lot.offset + member.at as u64,
        stored_bytes: (member.end - member.at) as u64,
        shares_member: false,
        head,
        block: Block::Whole(unpacked),
    };
    let (bytes, stream) = (lot.bytes.slice(member.at..member.end), lot.bytes.slice(member.stream.clone()));
    Some(Found {
        item: Item::Record(record),
        digest: None,
        member: Some(Member { bytes, stream, block_at, unpacked_bytes, held_bytes: lot.held_bytes }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::warc::lots::tests::members;
    use crate::warc::{Form, Reader, Writer};
    use std::io::{Read, Write};

    fn lot(bytes: Vec<u8>) -> Lot {
        Lot { offset: 1000, held_bytes: bytes.len(), bytes: bytes.into(), begins: true, is_whole: true }
    }

    fn packed(plain: &[u8]) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(plain).unwrap();
        packer.finish().unwrap()
    }

    fn record(body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Writer::new(Form::Plain).resource("http://h/", 0, "text/plain", body, &mut out);
        out
    }

    #[test]
    fn what_is_found_is_what_a_reader_finds() {
        // Small ones, one that fits into no buffer, and one whose head has a name.
        let named = flate2::GzBuilder::new().filename("a name").comment("a comment");
        let mut named = named.write(Vec::new(), flate2::Compression::fast());
        named.write_all(&record(b"named")).unwrap();
        let all = [members(30, 20_000), members(1, 3 << 20), vec![named.finish().unwrap()]].concat();
        let lot = lot(all.concat());
        let mut whole = WholeMembers::new(Pool::default());
        // Twice: the second time in memory that was used before.
        for _ in 0..2 {
            let found = whole.read(&lot).unwrap();
            assert_eq!(found.len(), all.len());
            let mut reader = Reader::resumed(&lot.bytes[..], lot.offset, None).unwrap();
            for (found, member) in found.into_iter().zip(&all) {
                let (Item::Record(here), Some(Item::Record(there))) = (found.item, reader.next().unwrap())
                else {
                    panic!("no record");
                };
                assert_eq!((here.offset, here.stored_bytes), (there.offset, there.stored_bytes));
                assert_eq!(format!("{:?}", here.head), format!("{:?}", there.head));
                let (Block::Whole(ours), Block::Whole(theirs)) = (&here.block, &there.block) else {
                    panic!("not whole");
                };
                let found_member = found.member.unwrap();
                assert!(ours == theirs && found_member.bytes == *member && !here.shares_member);
                let mut stream = Vec::new();
                flate2::read::DeflateDecoder::new(&found_member.stream[..]).read_to_end(&mut stream).unwrap();
                assert!(stream[found_member.block_at..].starts_with(ours));
                assert_eq!(found.digest.unwrap().kept, PayloadDigest::of_record(&there).unwrap().kept);
            }
        }
    }

    #[test]
    fn a_size_that_is_not_the_members_own_costs_one_buffer() {
        // Members whose heads the search for the next one does not know, before one that is large.
        let mut small = packed(&record(b"hello"));
        small[8] = 1;
        let mut large = packed(&record(&vec![0; 6 << 20]));
        large[8] = 1;
        let mut all = vec![small; 3000];
        all.push(large);
        let mut whole = WholeMembers::new(Pool::default());
        let found = whole.read(&lot(all.concat())).unwrap();
        assert_eq!(found.len(), 3001);
        let mut hints = Hints::default();
        assert!(hints.of_member(&all.concat()) > 6 << 20);
        hints.check(all[0].len());
        assert_eq!(hints.of_member(&all.concat()), 0);
        // What is told rightly goes on being believed.
        let mut hints = Hints::default();
        for member in [packed(&record(b"one")), packed(&record(&[7; 5000]))] {
            let two = [&member[..], &member].concat();
            let unpacked = u32::from_le_bytes(*member.last_chunk().unwrap()) as usize;
            assert_eq!(hints.of_member(&two), unpacked);
            hints.check(member.len());
        }
        assert!(!hints.are_wrong);
    }

    #[test]
    fn captures_that_are_little_of_a_lot_do_not_hold_it() {
        let noise =
            |n: u32| (0..n).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect::<Vec<u8>>();
        let mut request = Vec::new();
        let block = noise(20_000);
        write!(request, "WARC/1.0\r\nWARC-Type: request\r\nContent-Length: {}\r\n\r\n", block.len()).unwrap();
        request.extend(block);
        request.extend(b"\r\n\r\n");
        let mut whole = WholeMembers::new(Pool::default());
        for (captures, held) in [(1, usize::MAX), (30, 1 << 20)] {
            let page = packed(&record(&noise(800)));
            let members = [vec![packed(&request)], vec![page; captures]].concat();
            let lot = Lot { held_bytes: 1 << 20, ..lot(members.concat()) };
            let found = whole.read(&lot).unwrap();
            assert!(found.iter().all(|f| f.member.as_ref().unwrap().held_bytes == held), "{captures}");
        }
    }

    #[test]
    fn anything_else_is_left_to_the_reader() {
        let good = packed(&record(b"hello"));
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] ^= byte;
            bytes
        };
        let end = good.len();
        for (what, bytes) in [
            ("a bit of the checksum", with(end - 8, 1)),
            ("a bit of the length", with(end - 1, 1)),
            ("a bit within", with(end / 2, 8)),
            ("an unknown flag", with(3, 0x80)),
            ("its end is cut", good[..end - 3].to_vec()),
            ("something behind it", [&good[..], b"more"].concat()),
            ("two records in a member", packed(&[record(b"one"), record(b"two")].concat())),
            ("an empty line first", packed(&[b"\r\n", &record(b"one")[..]].concat())),
            ("a length that is too large", packed(b"WARC/1.0\r\nContent-Length: 99\r\n\r\nshort\r\n\r\n")),
            ("a length that is too small", packed(b"WARC/1.0\r\nContent-Length: 2\r\n\r\nlonger\r\n\r\n")),
            ("no length", packed(b"WARC/1.0\r\nWARC-Type: resource\r\n\r\n\r\n\r\n")),
            ("nothing in it", packed(b"")),
            ("many empty lines behind it", packed(&[&record(b"one")[..], &[b'\n'; 100]].concat())),
            ("an ARC record", packed(b"http://h/ 1.2.3.4 20260101000000 text/html 3\nabc\n")),
            ("more than a lot may have", packed(&record(&vec![7; UNPACKED_BYTES_MAX]))),
        ] {
            let mut whole = WholeMembers::new(Pool::default());
            assert!(whole.read(&lot(bytes)).is_none(), "{what}");
            assert_eq!(whole.read(&lot(good.clone())).unwrap().len(), 1, "after {what}");
        }
    }
}
