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

use data_encoding::BASE32_NOPAD;
use flate2::{Compress, Compression, FlushCompress, Status};
use sha1::Digest;
use webbase_storage::{Dictionaries, Record, Result};

use super::{date, sha1};

/// How much is made of packing: RESULTS.md has the measurement.
const GZIP_LEVEL: u32 = 4;

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
}

impl Writer {
    /// Writes records in this form.
    pub fn new(form: Form) -> Writer {
        Writer { form, gzip: Compress::new_gzip(Compression::new(GZIP_LEVEL), 15), text: Vec::new() }
    }

    /// Appends a page.
    ///
    /// # Errors
    /// When it does not unpack.
    pub fn page(&mut self, record: &Record, dictionaries: &Dictionaries, out: &mut Vec<u8>) -> Result<()> {
        let (head, body) = (record.head(dictionaries)?, record.body(dictionaries)?);
        let page = record.get();
        let is_answer = !head.is_empty();
        let kind = if is_answer { "response" } else { "resource" };
        let payload = page.payload_digest().unwrap_or_else(|| sha1([&body[..]]));
        let block = sha1([&head[..], &body[..]]);
        let (key, crc) = (page.key(), page.crc());
        let id = [key.id.0.to_le_bytes(), key.tie.to_le_bytes(), crc.to_le_bytes()].concat();
        self.begin(kind, &id, page.fetched_at_ms());
        self.text.extend_from_slice(b"WARC-Target-URI: ");
        write_url(page.url(), &mut self.text);
        self.digest("\r\nWARC-Payload-Digest", &payload);
        self.digest("\r\nWARC-Block-Digest", &block);
        let content_type = if is_answer { "application/http; msgtype=response" } else { page.mime() };
        self.text.extend_from_slice(b"\r\nContent-Type: ");
        self.text.extend(content_type.bytes().filter(|byte| matches!(byte, 0x20..0x7f)));
        self.text.extend_from_slice(b"\r\n");
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
        self.begin("resource", &[url.as_bytes(), &at_ms.to_le_bytes(), &digest].concat(), at_ms);
        self.text.extend_from_slice(b"WARC-Target-URI: ");
        write_url(url, &mut self.text);
        self.digest("\r\nWARC-Payload-Digest", &digest);
        self.digest("\r\nWARC-Block-Digest", &digest);
        self.text.extend_from_slice(b"\r\nContent-Type: ");
        self.text.extend(mime.bytes().filter(|byte| matches!(byte, 0x20..0x7f)));
        self.text.extend_from_slice(b"\r\n");
        self.end([body, b""], out);
    }

    fn fields(&mut self, kind: &str, at_ms: u64, fields: &[(&str, &str)], out: &mut Vec<u8>) {
        let mut block = Vec::new();
        for (name, value) in fields {
            let value: String = value.chars().filter(|c| !c.is_control()).collect();
            // Writing to memory does not fail.
            let _ = write!(block, "{name}: {value}\r\n");
        }
        self.begin(kind, &[kind.as_bytes(), &at_ms.to_le_bytes(), &block].concat(), at_ms);
        let digest = sha1([&block[..]]);
        self.digest("WARC-Block-Digest", &digest);
        self.text.extend_from_slice(b"\r\nContent-Type: application/warc-fields\r\n");
        self.end([&block, b""], out);
    }

    /// The lines that all records begin with. What the record is made of names it.
    fn begin(&mut self, kind: &str, made_of: &[u8], at_ms: u64) {
        self.text.clear();
        let _ = write!(self.text, "WARC/1.1\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:");
        write_uuid(made_of, &mut self.text);
        self.text.extend_from_slice(b">\r\nWARC-Date: ");
        date::print(at_ms, &mut self.text);
        self.text.extend_from_slice(b"\r\n");
    }

    fn digest(&mut self, name: &str, digest: &[u8; 20]) {
        let mut text = [0; 32];
        BASE32_NOPAD.encode_mut(digest, &mut text);
        self.text.extend_from_slice(name.as_bytes());
        self.text.extend_from_slice(b": sha1:");
        self.text.extend_from_slice(&text);
    }

    /// Length, block and end of the record that was begun; packs it.
    fn end(&mut self, [head, body]: [&[u8]; 2], out: &mut Vec<u8>) {
        let _ = write!(self.text, "Content-Length: {}\r\n\r\n", head.len() + body.len());
        match self.form {
            Form::Plain => {
                for part in [&self.text[..], head, body, b"\r\n\r\n"] {
                    out.extend_from_slice(part);
                }
            }
            Form::Gzip => {
                self.gzip.reset();
                out.reserve((head.len() + body.len()) / 3 + self.text.len());
                for part in [&self.text[..], head, body] {
                    pack(&mut self.gzip, part, FlushCompress::None, out);
                }
                pack(&mut self.gzip, b"\r\n\r\n", FlushCompress::Finish, out);
            }
        }
    }
}

/// Packs all of `bytes`.
fn pack(gzip: &mut Compress, mut bytes: &[u8], flush: FlushCompress, out: &mut Vec<u8>) {
    loop {
        if out.capacity() - out.len() < 4096 {
            out.reserve(32 << 10);
        }
        let before = gzip.total_in();
        let status = gzip.compress_vec(bytes, out, flush);
        bytes = bytes.get((gzip.total_in() - before) as usize..).unwrap_or_default();
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
