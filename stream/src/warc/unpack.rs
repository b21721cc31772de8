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
/// The head of a gzip member is ten bytes and some text.
const GZIP_HEAD_BYTES_MAX: usize = 1 << 20;
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
    Gzip(Box<Gzip>),
    Zstd(DCtx<'static>),
}

/// A gzip member (RFC 1952) that is being unpacked: head, deflate blocks, CRC-32 and length. Its parts are read here, so that the
/// decoder can be used for one member after the other.
struct Gzip {
    inflate: Decompress,
    crc: flate2::Crc,
    part: Part,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Head,
    Blocks,
    Trailer,
}

impl Gzip {
    fn new() -> Gzip {
        Gzip { inflate: Decompress::new(false), crc: flate2::Crc::new(), part: Part::Head }
    }

    fn again(mut self: Box<Gzip>) -> Box<Gzip> {
        self.inflate.reset(false);
        self.crc.reset();
        self.part = Part::Head;
        self
    }

    /// Unpacks what is there of it into `piece`, as far as that goes; says how many bytes it has read and written, and what
    /// comes next.
    fn pull(&mut self, input: &[u8], piece: &mut [u8]) -> (usize, usize, Step) {
        match self.part {
            Part::Head => match gzip_head_len(input) {
                Ok(Some(len)) => {
                    self.part = Part::Blocks;
                    (len, 0, Step::Some)
                }
                Ok(None) if input.len() > GZIP_HEAD_BYTES_MAX => {
                    (0, 0, Step::Broken("it does not unpack: its head has no end".into()))
                }
                Ok(None) => (0, 0, Step::More),
                Err(why) => (0, 0, Step::Broken(format!("it does not unpack: {why}"))),
            },
            Part::Blocks => {
                let before = (self.inflate.total_in(), self.inflate.total_out());
                let outcome = self.inflate.decompress(input, piece, FlushDecompress::None);
                let read = (self.inflate.total_in() - before.0) as usize;
                let written = (self.inflate.total_out() - before.1) as usize;
                self.crc.update(piece.get(..written).unwrap_or_default());
                let step = match outcome {
                    Ok(Status::StreamEnd) => {
                        self.part = Part::Trailer;
                        Step::Some
                    }
                    Ok(_) if read == 0 && written == 0 => Step::More,
                    Ok(_) => Step::Some,
                    Err(e) => Step::Broken(format!("it does not unpack: {e}")),
                };
                (read, written, step)
            }
            Part::Trailer => {
                let Some((told, _)) = input.split_first_chunk::<8>() else { return (0, 0, Step::More) };
                let mut found = self.crc.sum().to_le_bytes().to_vec();
                found.extend_from_slice(&self.crc.amount().to_le_bytes());
                match found == told {
                    true => (told.len(), 0, Step::End),
                    false => {
                        (0, 0, Step::Broken("it does not unpack: its CRC-32 or length does not hold".into()))
                    }
                }
            }
        }
    }
}

/// What a step of unpacking came to.
enum Step {
    Some,
    /// It needs more bytes than there are.
    More,
    End,
    Broken(String),
}

/// Whether a file that begins so is packed with gzip.
pub(super) fn is_gzip(start: &[u8]) -> bool {
    start.starts_with(&GZIP)
}

/// Length of the head that a gzip member begins with; none if more of it is to come.
pub(super) fn gzip_head_len(bytes: &[u8]) -> Result<Option<usize>, &'static str> {
    const HEAD_BYTES: usize = 10;
    const CHECKED: u8 = 2;
    const EXTRA: u8 = 4;
    const NAME: u8 = 8;
    const COMMENT: u8 = 16;
    const UNKNOWN: u8 = 0xe0;
    let Some(flags) = bytes.get(3).copied().filter(|_| bytes.len() >= HEAD_BYTES) else { return Ok(None) };
    if flags & UNKNOWN != 0 {
        return Err("unknown flags in its head");
    }
    let mut len = HEAD_BYTES;
    if flags & EXTRA != 0 {
        let Some([low, high]) = bytes.get(len..len + 2) else { return Ok(None) };
        len += 2 + usize::from(u16::from_le_bytes([*low, *high]));
    }
    for text in [NAME, COMMENT] {
        if flags & text != 0 {
            let end = bytes.get(len..).and_then(|rest| rest.iter().position(|byte| *byte == 0));
            let Some(end) = end else { return Ok(None) };
            len += end + 1;
        }
    }
    if flags & CHECKED != 0 {
        len += 2;
    }
    Ok(Some(len).filter(|len| *len <= bytes.len()))
}

pub(super) struct Unpacker<R> {
    input: Input<R>,
    packing: Packing,
    decoder: Option<Decoder>,
    /// Of zstd frames that were read, to be used again.
    idle: Option<DCtx<'static>>,
    /// Of gzip members.
    idle_gzip: Option<Box<Gzip>>,
    /// What a step unpacks. It is never cleared: that would cost as much as the copy out of it.
    piece: Box<[u8]>,
    dictionary: Vec<u8>,
    is_first: bool,
}

impl<R: Read> Unpacker<R> {
    /// Unpacks a file that begins at `offset` of another.
    pub(super) fn new(source: R, offset: u64) -> io::Result<Unpacker<R>> {
        let mut input = Input::new(source, offset);
        input.ensure(4)?;
        let start = input.bytes();
        let packing = if start.starts_with(&GZIP) {
            Packing::Gzip
        } else if start.starts_with(&ZSTD) || skippable(start).is_some() {
            Packing::Zstd
        } else {
            Packing::Plain
        };
        Ok(Unpacker {
            input,
            packing,
            decoder: None,
            idle: None,
            idle_gzip: None,
            piece: vec![0; PIECE_BYTES].into_boxed_slice(),
            dictionary: Vec::new(),
            is_first: true,
        })
    }

    pub(super) fn packing(&self) -> Packing {
        self.packing
    }

    pub(super) fn source(&mut self) -> &mut R {
        self.input.source()
    }

    pub(super) fn into_source(self) -> R {
        self.input.into_source()
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
                    let idle = self.idle_gzip.take().map(Gzip::again);
                    Decoder::Gzip(idle.unwrap_or_else(|| Box::new(Gzip::new())))
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
        let (read, written, step) = match decoder {
            Decoder::Plain => {
                let some = input.get(..input.len().min(PIECE_BYTES)).unwrap_or_default();
                out.extend_from_slice(some);
                (some.len(), 0, Step::Some)
            }
            Decoder::Gzip(decoder) => decoder.pull(input, &mut self.piece),
            Decoder::Zstd(context) => {
                let mut from = InBuffer::around(input);
                let mut into = OutBuffer::around(&mut self.piece[..]);
                let step = match context.decompress_stream(&mut into, &mut from) {
                    Ok(0) => Step::End,
                    Ok(_) if from.pos() == 0 && into.pos() == 0 => Step::More,
                    Ok(_) => Step::Some,
                    Err(code) => {
                        Step::Broken(format!("it does not unpack: {}", zstd::zstd_safe::get_error_name(code)))
                    }
                };
                (from.pos(), into.pos(), step)
            }
        };
        self.input.consume(read);
        out.extend_from_slice(self.piece.get(..written).unwrap_or_default());
        Ok(match step {
            Step::Some => Pulled::Some,
            Step::Broken(why) => Pulled::Broken(why),
            Step::More if self.input.fill()? => Pulled::Some,
            Step::More => Pulled::Broken("the file ends within it".into()),
            Step::End => {
                match self.decoder.take() {
                    Some(Decoder::Zstd(context)) => self.idle = Some(context),
                    Some(Decoder::Gzip(decoder)) => self.idle_gzip = Some(decoder),
                    _ => {}
                }
                Pulled::End
            }
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Two members whose heads have everything that heads may have, the second of many pieces.
    fn members() -> (Vec<u8>, Vec<Vec<u8>>) {
        let plain = [b"WARC/1.1 first".to_vec(), b"WARC/1.1 second ".repeat(20_000)];
        let mut packed = Vec::new();
        for text in &plain {
            let builder = flate2::GzBuilder::new().extra([7; 300]).filename("a name").comment("a comment");
            let mut writer = builder.write(Vec::new(), flate2::Compression::fast());
            writer.write_all(text).unwrap();
            packed.extend(writer.finish().unwrap());
        }
        (packed, plain.into())
    }

    /// What comes out of each member, and why the last one is damaged, if it is.
    fn unpacked(bytes: &[u8]) -> (Vec<Vec<u8>>, Option<String>) {
        let (mut unpacker, mut all) = (Unpacker::new(bytes, 0).unwrap(), Vec::new());
        while let Begun::Member(_) = unpacker.begin().unwrap() {
            let mut out = BytesMut::new();
            loop {
                match unpacker.pull(&mut out).unwrap() {
                    Pulled::Some => {}
                    Pulled::End => break,
                    Pulled::Broken(why) => {
                        all.push(out.to_vec());
                        return (all, Some(why));
                    }
                }
            }
            all.push(out.to_vec());
        }
        (all, None)
    }

    #[test]
    fn heads_of_members_may_have_names_and_more() {
        let (packed, plain) = members();
        assert!(unpacked(&packed) == (plain.clone(), None));
        // Cut within the second member, wherever that is.
        let second = packed.len() - unpacked_len(&packed);
        for len in (second + 3..packed.len()).step_by(7) {
            let (all, why) = unpacked(&packed[..len]);
            assert_eq!((all.len(), why.as_deref()), (2, Some("the file ends within it")), "{len}");
            assert!(all[0] == plain[0] && plain[1].starts_with(&all[1]));
        }
    }

    /// Bytes of the last of two members.
    fn unpacked_len(packed: &[u8]) -> usize {
        let second = packed.windows(3).rposition(|bytes| bytes == GZIP).unwrap();
        packed.len() - second
    }

    #[test]
    fn a_member_with_a_wrong_checksum_or_length_is_damaged() {
        let (packed, _) = members();
        for back in 1..=8 {
            let mut spoilt = packed.clone();
            let at = spoilt.len() - back;
            spoilt[at] ^= 1;
            let (all, why) = unpacked(&spoilt);
            assert!(all.len() == 2 && why.unwrap().contains("CRC-32"), "{back}");
        }
        let mut odd = packed;
        odd[3] |= 0x80;
        assert!(unpacked(&odd).1.unwrap().contains("unknown flags"));
    }
}
