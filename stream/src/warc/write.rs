//! Pages as WARC/1.1.
//!
//! ```text
//!   WARC/1.1 CRLF
//!   WARC-Type: response CRLF                        resource, for a page without an HTTP head
//!   WARC-Record-ID: <urn:uuid:…> CRLF               made of the stored record, always the same for it
//!   WARC-Date: 2026-11-16T23:47:56.123Z CRLF        when it was fetched
//!   WARC-Target-URI: http://example.org/ CRLF
//!   WARC-Payload-Digest: sha1:… CRLF                the stored one; where there is none, of the body
//!   WARC-Block-Digest: sha1:… CRLF
//!   Content-Type: application/http; msgtype=response CRLF
//!   Content-Length: … CRLF
//!   CRLF
//!   HTTP head and body, as they were received
//!   CRLF CRLF
//! ```
//!
//! Each record is a gzip member of its own. **The bytes of a page depend on its stored record and on nothing else**, so that
//! lengths that were told stay valid.

use std::io::Write as _;

use bytes::Bytes;
use data_encoding::BASE32_NOPAD;
use flate2::{Compress, Compression, FlushCompress, Status};
use sha1::Digest;
use webbase_storage::urls::UrlRow;
use webbase_storage::{Dictionaries, Record, Result};

use super::date;
use super::digest::sha1;

/// How much is made of packing: RESULTS.md has the measurement.
const GZIP_LEVEL: u32 = 4;

/// Packed at a time.
const PIECE_BYTES: usize = 32 << 10;

/// Behind every record.
pub(super) const RECORD_END: &[u8] = b"\r\n\r\n";

/// How records are packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Not at all.
    Plain,
    /// Each is a gzip member.
    Gzip,
}

/// Writes records, one behind the other.
pub struct Writer {
    form: Form,
    gzip: Compress,
    /// A record before it is packed.
    text: Vec<u8>,
    /// What a step packs. A list with room would be cleared by every step, all of its room.
    piece: Box<[u8]>,
}

impl Writer {
    /// Writes records in this form.
    pub fn new(form: Form) -> Writer {
        let gzip = Compress::new_gzip(Compression::new(GZIP_LEVEL), 15);
        Writer { form, gzip, text: Vec::new(), piece: vec![0; PIECE_BYTES].into_boxed_slice() }
    }

    /// Appends a page.
    ///
    /// # Errors
    /// When it does not unpack.
    pub fn page(&mut self, record: &Record, dictionaries: &Dictionaries, out: &mut Vec<u8>) -> Result<()> {
        let [head, body] = lines(record, dictionaries, &mut self.text)?;
        self.end([&head, &body], out);
        Ok(())
    }

    /// Appends what a file begins with: a `warcinfo` record with these fields.
    pub fn warcinfo(&mut self, at_ms: u64, fields: &[(&str, &str)], out: &mut Vec<u8>) {
        self.fields("warcinfo", at_ms, fields, out);
    }

    /// Appends a `metadata` record with these fields.
    pub fn metadata(&mut self, at_ms: u64, fields: &[(&str, &str)], out: &mut Vec<u8>) {
        self.fields("metadata", at_ms, fields, out);
    }

    /// Appends a `resource` record: bytes that never had an HTTP head.
    pub fn resource(&mut self, url: &str, at_ms: u64, mime: &str, body: &[u8], out: &mut Vec<u8>) {
        let digest = sha1([body]);
        let made_of = [url.as_bytes(), &at_ms.to_le_bytes(), &digest].concat();
        let lines = Lines {
            kind: "resource",
            made_of: &made_of,
            at_ms,
            url,
            payload: digest,
            block: digest,
            content_type: mime,
            block_len: body.len() as u64,
        };
        lines.write(&mut self.text);
        self.end([body, b""], out);
    }

    fn fields(&mut self, kind: &str, at_ms: u64, fields: &[(&str, &str)], out: &mut Vec<u8>) {
        let mut block = Vec::new();
        for (name, value) in fields {
            let value: String = value.chars().filter(|c| !c.is_control()).collect();
            // Writing to memory does not fail.
            let _ = write!(block, "{name}: {value}\r\n");
        }
        let text = &mut self.text;
        begin(kind, &[kind.as_bytes(), &at_ms.to_le_bytes(), &block].concat(), at_ms, text);
        write_digest("WARC-Block-Digest", &sha1([&block[..]]), text);
        text.extend_from_slice(b"\r\nContent-Type: application/warc-fields\r\n");
        write_len(block.len() as u64, text);
        self.end([&block, b""], out);
    }

    /// Block and end of the record whose lines are written; packs it.
    fn end(&mut self, [head, body]: [&[u8]; 2], out: &mut Vec<u8>) {
        match self.form {
            Form::Plain => {
                for part in [&self.text[..], head, body, RECORD_END] {
                    out.extend_from_slice(part);
                }
            }
            Form::Gzip => {
                self.gzip.reset();
                out.reserve((head.len() + body.len()) / 3 + self.text.len());
                for part in [&self.text[..], head, body] {
                    pack(&mut self.gzip, part, FlushCompress::None, &mut self.piece, out);
                }
                pack(&mut self.gzip, RECORD_END, FlushCompress::Finish, &mut self.piece, out);
            }
        }
    }
}

/// Writes what stands before a page's block; gives the block, HTTP head and body.
pub(super) fn lines(record: &Record, dictionaries: &Dictionaries, out: &mut Vec<u8>) -> Result<[Bytes; 2]> {
    let (head, body) = (record.head(dictionaries)?, record.body(dictionaries)?);
    let page = record.get();
    let key = page.key();
    let made_of = [key.id.0.to_le_bytes(), key.tie.to_le_bytes(), page.crc().to_le_bytes()].concat();
    let (kind, content_type) = kind(!head.is_empty(), page.mime());
    let lines = Lines {
        kind,
        made_of: &made_of,
        at_ms: page.fetched_at_ms(),
        url: page.url(),
        payload: page.payload_digest().unwrap_or_else(|| sha1([&body[..]])),
        block: sha1([&head[..], &body[..]]),
        content_type,
        block_len: (head.len() + body.len()) as u64,
    };
    lines.write(out);
    Ok([head, body])
}

/// Bytes of what stands before a page's block, and of the block, as far as the page's row tells them: which is exactly.
pub(super) fn lens(row: &UrlRow) -> [u64; 2] {
    let (kind, content_type) = kind(row.head_len > 0, &row.mime);
    let block_len = u64::from(row.head_len) + u64::from(row.body_len);
    let digest = [0; 20];
    let lines = Lines {
        kind,
        made_of: b"",
        at_ms: row.fetched_at_ms,
        url: &row.url,
        payload: digest,
        block: digest,
        content_type,
        block_len,
    };
    let mut text = Vec::new();
    lines.write(&mut text);
    [text.len() as u64, block_len]
}

/// A page's record type and content type.
fn kind(is_answer: bool, mime: &str) -> (&'static str, &str) {
    match is_answer {
        true => ("response", "application/http; msgtype=response"),
        false => ("resource", mime),
    }
}

/// What stands before a page's block. Digests and names have a fixed length.
struct Lines<'a> {
    kind: &'a str,
    /// What names the record.
    made_of: &'a [u8],
    at_ms: u64,
    url: &'a str,
    payload: [u8; 20],
    block: [u8; 20],
    content_type: &'a str,
    block_len: u64,
}

impl Lines<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        begin(self.kind, self.made_of, self.at_ms, out);
        out.extend_from_slice(b"WARC-Target-URI: ");
        write_url(self.url, out);
        write_digest("\r\nWARC-Payload-Digest", &self.payload, out);
        write_digest("\r\nWARC-Block-Digest", &self.block, out);
        out.extend_from_slice(b"\r\nContent-Type: ");
        out.extend(self.content_type.bytes().filter(|byte| matches!(byte, 0x20..0x7f)));
        out.extend_from_slice(b"\r\n");
        write_len(self.block_len, out);
    }
}

/// The lines that all records begin with. What the record is made of names it.
fn begin(kind: &str, made_of: &[u8], at_ms: u64, out: &mut Vec<u8>) {
    out.clear();
    // Writing to memory does not fail.
    let _ = write!(out, "WARC/1.1\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:");
    write_uuid(made_of, out);
    out.extend_from_slice(b">\r\nWARC-Date: ");
    date::print(at_ms, out);
    out.extend_from_slice(b"\r\n");
}

fn write_digest(name: &str, digest: &[u8; 20], out: &mut Vec<u8>) {
    let mut text = [0; 32];
    BASE32_NOPAD.encode_mut(digest, &mut text);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": sha1:");
    out.extend_from_slice(&text);
}

/// The last of the lines, and the empty one behind them.
fn write_len(len: u64, out: &mut Vec<u8>) {
    let _ = write!(out, "Content-Length: {len}\r\n\r\n");
}

/// Packs all of `bytes`.
fn pack(gzip: &mut Compress, mut bytes: &[u8], flush: FlushCompress, piece: &mut [u8], out: &mut Vec<u8>) {
    loop {
        let before = (gzip.total_in(), gzip.total_out());
        let status = gzip.compress(bytes, piece, flush);
        bytes = bytes.get((gzip.total_in() - before.0) as usize..).unwrap_or_default();
        let written = (gzip.total_out() - before.1) as usize;
        out.extend_from_slice(piece.get(..written).unwrap_or_default());
        match (flush, status) {
            (_, Ok(Status::StreamEnd)) => return,
            (FlushCompress::None, Ok(_)) if bytes.is_empty() => return,
            (_, Ok(_)) => {}
            (_, Err(e)) => unreachable!("packing fails only when it is used wrongly: {e}"),
        }
    }
}

/// A URL on a line of its own: what would end the line, or the field, is percent-encoded.
fn write_url(url: &str, out: &mut Vec<u8>) {
    for byte in url.bytes() {
        match byte {
            0..=0x20 | 0x7f | b'<' | b'>' => {
                let _ = write!(out, "%{byte:02X}");
            }
            _ => out.push(byte),
        }
    }
}

/// A name made of some bytes: a UUID of version 8.
fn write_uuid(made_of: &[u8], out: &mut Vec<u8>) {
    let digest: [u8; 20] =
        sha1::Sha1::new_with_prefix(b"webbase record").chain_update(made_of).finalize().into();
    for (at, byte) in digest.iter().take(16).enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            out.push(b'-');
        }
        let byte = match at {
            6 => byte & 0x0f | 0x80,
            8 => byte & 0x3f | 0x80,
            _ => *byte,
        };
        let _ = write!(out, "{byte:02x}");
    }
}
