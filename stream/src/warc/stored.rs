//! A page as a gzip member whose blocks are stored and not packed.
//!
//! ```text
//!   1f 8b 08 00 …    ten bytes
//!   blocks           is-last, length, its complement, at most 65 535 bytes
//!   CRC-32, length   of the record
//! ```
//!
//! Its length follows from the lengths of what is in it, so the URL index tells it without the page being read
//! ([`member_len`]), and a part of it is sent without packing the whole. Packed, each line of a list that names lengths would
//! cost unpacking and packing a page. The record is the one that [`super::Writer`] packs, byte for byte.

use bytes::Bytes;
use webbase_storage::urls::UrlRow;
use webbase_storage::{Dictionaries, Record, Result};

use super::write::{RECORD_END, lens, lines};

const BLOCK_BYTES_MAX: usize = 65_535;
const BLOCK_HEAD_BYTES: u64 = 5;
const MEMBER_HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
const MEMBER_TRAILER_BYTES: u64 = 8;

/// A page's record, not packed: pieces that follow each other.
///
/// # Errors
/// When it does not unpack.
pub fn record(page: &Record, dictionaries: &Dictionaries) -> Result<Vec<Bytes>> {
    let mut text = Vec::new();
    let [head, body] = lines(page, dictionaries, &mut text)?;
    Ok(vec![text.into(), head, body, Bytes::from_static(RECORD_END)])
}

/// The bytes of a page's member.
pub fn member_len(row: &UrlRow) -> u64 {
    let content = lens(row).iter().sum::<u64>() + RECORD_END.len() as u64;
    let blocks = content.div_ceil(BLOCK_BYTES_MAX as u64);
    MEMBER_HEAD.len() as u64 + content + BLOCK_HEAD_BYTES * blocks + MEMBER_TRAILER_BYTES
}

/// A record's pieces as a member; none is copied.
pub fn member(record: &[Bytes]) -> Vec<Bytes> {
    let total: usize = record.iter().map(Bytes::len).sum();
    let mut out = vec![Bytes::from_static(&MEMBER_HEAD)];
    let (mut left, mut room) = (total, 0);
    let mut crc = flate2::Crc::new();
    for piece in record {
        crc.update(piece);
        let mut rest = piece.clone();
        while !rest.is_empty() {
            if room == 0 {
                room = left.min(BLOCK_BYTES_MAX);
                let len = (room as u16).to_le_bytes();
                let not = (!(room as u16)).to_le_bytes();
                let is_last = u8::from(room == left);
                out.push(Bytes::copy_from_slice(&[is_last, len[0], len[1], not[0], not[1]]));
                left -= room;
            }
            let some = rest.split_to(room.min(rest.len()));
            room -= some.len();
            out.push(some);
        }
    }
    let mut trailer = crc.sum().to_le_bytes().to_vec();
    trailer.extend_from_slice(&(total as u32).to_le_bytes());
    out.push(trailer.into());
    out
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use webbase_storage::{Compression, Page, RepositoryKey, pack_page};

    use super::*;
    use crate::warc::{Form, Writer};

    #[test]
    fn a_member_has_the_length_that_its_row_says_and_the_bytes_that_are_exported() {
        let key = RepositoryKey::new([7; 32]);
        let urls = ["http://h/", "http://h/\u{e4} b<\n>"];
        let heads = [&b""[..], b"HTTP/1.1 200 OK\r\n\r\n"];
        let times = [0, 1_700_000_000_000, 1_700_000_000_123, u64::MAX];
        for (url, head) in urls.iter().flat_map(|url| heads.map(|head| (*url, head))) {
            for (at, len) in times.iter().flat_map(|at| [0, 1, 65_000, 65_535, 200_000].map(|len| (*at, len)))
            {
                let body: Vec<u8> = (0..len).map(|n: usize| (n * 7 / 3) as u8).collect();
                let page = Page {
                    url,
                    head,
                    body: &body,
                    status: 200,
                    mime: "text/h\u{e4}tml",
                    fetched_at_ms: at,
                    ..Page::default()
                };
                let packed = pack_page(&key, &page, Compression::Zstd(1), None).unwrap();
                let pieces = record(&packed, &Dictionaries::default()).unwrap();
                let bytes = member(&pieces).concat();
                let row = UrlRow::of(&packed.get()).unwrap();
                assert_eq!(bytes.len() as u64, member_len(&row), "{url} {len} at {at}");
                let (mut unpacked, mut written) = (Vec::new(), Vec::new());
                flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut unpacked).unwrap();
                let mut writer = Writer::new(Form::Plain);
                writer.page(&packed, &Dictionaries::default(), &mut written).unwrap();
                assert!(unpacked == written && unpacked == pieces.concat(), "{url} {len} at {at}");
            }
        }
    }
}
