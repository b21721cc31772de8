//! The members of a file, unpacked: gzip members, zstd frames, or the whole of a plain file.
//!
//! ```text
//!   plain   the file is one member
//!   gzip    members, one a record as it should be; RFC 1952
//!   zstd    frames, one or more a record; a dictionary may come first, in a skippable frame with magic 0x184D2A5D, as it is
//!           or packed as a frame itself
//! ```
//!
//! A member whose bytes are damaged is given up, and the next one is looked for behind its first byte: what looks like one has
//! to unpack to the start of a record.

use std::io::{self, Read};

use bytes::BytesMut;
use flate2::{Decompress, FlushDecompress, Status};
use zstd::zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, ResetDirective};

use super::head::{is_arc_line, shown};
use super::input::Input;

/// Unpacked at a time.
const PIECE_BYTES: usize = 64 << 10;
/// The largest window of a zstd frame that is accepted, as a power of two.
const ZSTD_WINDOW_LOG_MAX: u32 = 25;
const DICTIONARY_BYTES_MAX: usize = 16 << 20;
const GZIP: [u8; 3] = [0x1f, 0x8b, 8];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Magic of a skippable frame, its lowest four bits aside.
const ZSTD_SKIPPABLE: u32 = 0x184D_2A50;
const ZSTD_DICTIONARY: u32 = 0x184D_2A5D;

/// How a file is packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packing {
    /// Not at all.
    Plain,
    /// gzip, a member for each record.
    Gzip,
    /// zstd, frames for each record.
    Zstd,
}

/// What is next in the file.
pub(super) enum Begun {
    /// A member, here.
    Member(u64),
    /// Something else: where, how much, and what it looks like.
    Junk { offset: u64, bytes: u64, start: String },
    /// Nothing.
    End,
}

/// What became of an attempt to unpack more of a member.
pub(super) enum Pulled {
    /// There may be more.
    Some,
    /// The member is whole; its checksum holds, if it has one.
    End,
    /// The member is damaged.
    Broken(String),
}

enum Decoder {
    Plain,
    Gzip(Box<Decompress>),
    Zstd(DCtx<'static>),
}

pub(super) struct Unpacker<R> {
    input: Input<R>,
    packing: Packing,
    decoder: Option<Decoder>,
    /// Of zstd frames that were read, to be used again.
    idle: Option<DCtx<'static>>,
    dictionary: Vec<u8>,
    is_first: bool,
}

impl<R: Read> Unpacker<R> {
    pub(super) fn new(source: R) -> io::Result<Unpacker<R>> {
        let mut input = Input::new(source);
        input.ensure(4)?;
        let start = input.bytes();
        let packing = if start.starts_with(&GZIP) {
            Packing::Gzip
        } else if start.starts_with(&ZSTD) || skippable(start).is_some() {
            Packing::Zstd
        } else {
            Packing::Plain
        };
        Ok(Unpacker { input, packing, decoder: None, idle: None, dictionary: Vec::new(), is_first: true })
    }

    pub(super) fn packing(&self) -> Packing {
        self.packing
    }

    /// Where the next byte of the file is.
    pub(super) fn offset(&self) -> u64 {
        self.input.offset()
    }

    /// Goes to the next member.
    pub(super) fn begin(&mut self) -> io::Result<Begun> {
        let is_first = std::mem::replace(&mut self.is_first, false);
        self.decoder = None;
        loop {
            self.input.ensure(8)?;
            let (offset, start) = (self.input.offset(), self.input.bytes());
            if start.is_empty() {
                return Ok(Begun::End);
            }
            let decoder = match self.packing {
                Packing::Plain if is_first => Decoder::Plain,
                Packing::Gzip if start.starts_with(&GZIP) => {
                    Decoder::Gzip(Box::new(Decompress::new_gzip(15)))
                }
                Packing::Zstd if start.starts_with(&ZSTD) => match self.zstd() {
                    Ok(context) => Decoder::Zstd(context),
                    Err(e) => return Err(io::Error::other(e)),
                },
                Packing::Zstd if skippable(start).is_some() => {
                    if let Some(what) = self.skippable_frame(is_first)? {
                        return Ok(Begun::Junk { offset, bytes: self.input.offset() - offset, start: what });
                    }
                    continue;
                }
                _ => {
                    let start = shown(start);
                    self.find_next()?;
                    return Ok(Begun::Junk { offset, bytes: self.input.offset() - offset, start });
                }
            };
            self.input.mark();
            self.decoder = Some(decoder);
            return Ok(Begun::Member(offset));
        }
    }

    /// Gives a damaged member up: looks for the next one behind its first byte.
    pub(super) fn recover(&mut self) -> io::Result<()> {
        self.decoder = None;
        self.input.back();
        self.find_next()
    }

    fn find_next(&mut self) -> io::Result<()> {
        if self.packing == Packing::Plain {
            self.input.consume(self.input.bytes().len());
            while self.input.fill()? {
                self.input.consume(self.input.bytes().len());
            }
            return Ok(());
        }
        loop {
            if !self.input.ensure(4)? {
                self.input.consume(4);
                return Ok(());
            }
            let first = if self.packing == Packing::Gzip { GZIP[0] } else { ZSTD[0] };
            let bytes = self.input.bytes();
            match bytes.iter().position(|byte| *byte == first) {
                None => {
                    let all = bytes.len();
                    self.input.consume(all);
                }
                Some(at) => {
                    self.input.consume(at);
                    if self.begins_record()? {
                        return Ok(());
                    }
                    self.input.consume(1);
                }
            }
        }
    }

    /// Whether what is next unpacks to the start of a record.
    fn begins_record(&mut self) -> io::Result<bool> {
        self.input.ensure(4)?;
        let magic: &[u8] = if self.packing == Packing::Gzip { &GZIP } else { &ZSTD };
        if !self.input.bytes().starts_with(magic) {
            return Ok(false);
        }
        self.input.ensure(PIECE_BYTES)?;
        let mut out = [0; 512];
        let len = match self.packing {
            Packing::Gzip => {
                let input = self.input.bytes();
                let mut decoder = Decompress::new_gzip(15);
                // Damage shows in what comes out.
                let _ = decoder.decompress(input, &mut out, FlushDecompress::None);
                decoder.total_out() as usize
            }
            _ => {
                let Ok(mut context) = self.zstd() else { return Ok(false) };
                let input = self.input.bytes();
                let mut into = OutBuffer::around(&mut out[..]);
                let mut from = InBuffer::around(input);
                while from.pos() < input.len() && into.pos() < into.capacity() {
                    let before = (from.pos(), into.pos());
                    let outcome = context.decompress_stream(&mut into, &mut from);
                    if !outcome.is_ok_and(|hint| hint > 0) || (from.pos(), into.pos()) == before {
                        break;
                    }
                }
                into.pos()
            }
        };
        let out = out.get(..len).unwrap_or_default();
        let line = out.split(|byte| *byte == b'\n').next().unwrap_or_default();
        Ok(out.trim_ascii_start().starts_with(b"WARC/") || is_arc_line(line))
    }

    /// A context for a frame.
    fn zstd(&mut self) -> Result<DCtx<'static>, String> {
        if let Some(mut context) = self.idle.take()
            && context.reset(ResetDirective::SessionOnly).is_ok()
        {
            return Ok(context);
        }
        let said = |code| zstd::zstd_safe::get_error_name(code).to_owned();
        let mut context = DCtx::try_create().ok_or("no memory for a zstd context")?;
        context.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG_MAX)).map_err(said)?;
        if !self.dictionary.is_empty() {
            context.load_dictionary(&self.dictionary).map_err(said)?;
        }
        Ok(context)
    }

    /// Passes a skippable frame; takes the dictionary, if it is one. Says what is wrong with it.
    fn skippable_frame(&mut self, is_first: bool) -> io::Result<Option<String>> {
        let bytes = self.input.bytes();
        let (Some((magic, len)), true) = (skippable(bytes), bytes.len() >= 8) else {
            self.input.consume(8);
            return Ok(Some("a skippable frame cut short".into()));
        };
        self.input.consume(8);
        if magic == ZSTD_DICTIONARY && is_first {
            if len > DICTIONARY_BYTES_MAX {
                self.input.consume(0);
                return Ok(Some(format!("a dictionary of {len} bytes")));
            }
            if !self.input.ensure(len)? {
                self.input.consume(len);
                return Ok(Some("a dictionary cut short".into()));
            }
            let content = self.input.bytes().get(..len).unwrap_or_default();
            self.dictionary = if content.starts_with(&ZSTD) {
                match unpacked_dictionary(content) {
                    Ok(dictionary) => dictionary,
                    Err(e) => {
                        self.input.consume(len);
                        return Ok(Some(format!("a dictionary that does not unpack: {e}")));
                    }
                }
            } else {
                content.to_vec()
            };
            self.input.consume(len);
            return Ok(None);
        }
        let mut left = len;
        while left > 0 {
            if !self.input.ensure(1)? {
                return Ok(Some("a skippable frame cut short".into()));
            }
            let some = self.input.bytes().len().min(left);
            self.input.consume(some);
            left -= some;
        }
        Ok(None)
    }

    /// Appends more of the member to `out`.
    pub(super) fn pull(&mut self, out: &mut BytesMut) -> io::Result<Pulled> {
        let Some(decoder) = &mut self.decoder else { return Ok(Pulled::End) };
        if self.input.bytes().is_empty() && !self.input.fill()? {
            return Ok(match decoder {
                Decoder::Plain => Pulled::End,
                _ => Pulled::Broken("the file ends within it".into()),
            });
        }
        let input = self.input.bytes();
        let len = out.len();
        if let Decoder::Plain = decoder {
            let some = input.get(..input.len().min(PIECE_BYTES)).unwrap_or_default();
            out.extend_from_slice(some);
            let count = some.len();
            self.input.consume(count);
            return Ok(Pulled::Some);
        }
        out.resize(len + PIECE_BYTES, 0);
        let into = out.get_mut(len..).unwrap_or_default();
        let (read, written, pulled) = match decoder {
            Decoder::Plain => (0, 0, Pulled::End),
            Decoder::Gzip(decoder) => {
                let (in_before, out_before) = (decoder.total_in(), decoder.total_out());
                let pulled = match decoder.decompress(input, into, FlushDecompress::None) {
                    Ok(Status::StreamEnd) => Pulled::End,
                    Ok(_) => Pulled::Some,
                    Err(e) => Pulled::Broken(format!("it does not unpack: {e}")),
                };
                (
                    (decoder.total_in() - in_before) as usize,
                    (decoder.total_out() - out_before) as usize,
                    pulled,
                )
            }
            Decoder::Zstd(context) => {
                let mut from = InBuffer::around(input);
                let mut into = OutBuffer::around(into);
                let pulled = match context.decompress_stream(&mut into, &mut from) {
                    Ok(0) => Pulled::End,
                    Ok(_) => Pulled::Some,
                    Err(code) => Pulled::Broken(format!(
                        "it does not unpack: {}",
                        zstd::zstd_safe::get_error_name(code)
                    )),
                };
                (from.pos(), into.pos(), pulled)
            }
        };
        out.truncate(len + written);
        self.input.consume(read);
        if let (0, 0, Pulled::Some) = (read, written, &pulled) {
            // It wants more than there is.
            if !self.input.fill()? {
                return Ok(Pulled::Broken("the file ends within it".into()));
            }
        }
        if let Pulled::End = pulled
            && let Some(Decoder::Zstd(context)) = self.decoder.take()
        {
            self.idle = Some(context);
        }
        Ok(pulled)
    }
}

fn unpacked_dictionary(packed: &[u8]) -> io::Result<Vec<u8>> {
    let mut decoder = zstd::stream::read::Decoder::with_buffer(packed)?;
    decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
    let mut out = Vec::new();
    decoder.take(DICTIONARY_BYTES_MAX as u64 + 1).read_to_end(&mut out)?;
    if out.len() > DICTIONARY_BYTES_MAX {
        return Err(io::Error::other(format!("it has more than {DICTIONARY_BYTES_MAX} bytes")));
    }
    Ok(out)
}

/// The magic of a skippable frame and its length, if that is what is here; the length is 0 where it is cut.
fn skippable(bytes: &[u8]) -> Option<(u32, usize)> {
    let number = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    let magic = number(0).filter(|magic| magic & !0xf == ZSTD_SKIPPABLE)?;
    Some((magic, number(4).unwrap_or(0) as usize))
}
