//! A gzip file cut into lots: runs of members that can be read each for itself.
//!
//! ```text
//!   member member member …  member │ member member …  member │ member …
//!   └────────── lot ──────────────┘ └───────── lot ─────────┘
//! ```
//!
//! Where a member ends is not known before it is unpacked, so a cut is a guess: the first place, some bytes on, that looks like
//! the head of a member (RFC 1952). Whoever reads a lot finds out: a lot that was cut rightly ends with the end of a member. The
//! check of the head is narrow, so that packed bytes pass for one every hundred gigabytes or so; a head that it does not know makes a lot
//! longer, no more.
//!
//! 1. Lots follow each other without a gap: together they are the file.
//! 2. A lot is *whole* when it begins with what looks like a member and ends before another one, or with the file.
//! 3. A member that is larger than the largest lot is in several of them, none of them whole.
//!
//! A buffer is filled, then cut into some lots, which share it; what is left of it begins the next one.

use std::io::{self, Read};

use bytes::Bytes;
use memchr::memmem;

use super::pool::Pool;

/// Bytes of a lot, at least, if there are as many: two of them fill a buffer, and have enough pages for all lanes of digests.
const LOT_BYTES: usize = 192 << 10;
/// Bytes of a lot, at most.
const LOT_BYTES_MAX: usize = 4 << 20;
/// Bytes of a buffer that lots are read into, at least.
const BUFFER_BYTES: usize = 512 << 10;
/// What a member's head has at least, and what is looked at.
const HEAD_BYTES: usize = 10;
/// What it begins with: magic, and the one method there is.
const HEAD_START: [u8; 3] = [0x1f, 0x8b, 8];

/// Some bytes of a file.
#[derive(Clone, Debug)]
pub(super) struct Lot {
    /// Where it begins.
    pub(super) offset: u64,
    pub(super) bytes: Bytes,
    /// Bytes of the buffer that these are a part of.
    pub(super) held_bytes: usize,
    /// It begins with what looks like a member.
    pub(super) begins: bool,
    /// It begins so, and ends before another or with the file.
    pub(super) is_whole: bool,
}

impl Lot {
    pub(super) fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// Cuts a file into lots.
pub(super) struct Cutter<R> {
    source: R,
    pool: Pool,
    /// What was read and is not cut yet, and how many bytes its buffer has.
    rest: Bytes,
    held_bytes: usize,
    /// Where it begins.
    offset: u64,
    begins: bool,
    is_over: bool,
    /// Why the file cannot be read on; told behind what was read before.
    failed: Option<io::Error>,
}

impl<R: Read> Cutter<R> {
    /// Cuts a file that begins with a member.
    pub(super) fn new(source: R, pool: Pool) -> Cutter<R> {
        Cutter {
            source,
            pool,
            rest: Bytes::new(),
            held_bytes: 0,
            offset: 0,
            begins: true,
            is_over: false,
            failed: None,
        }
    }

    /// The next lot; none at the end of the file.
    ///
    /// # Errors
    /// When the file cannot be read, behind all that can be.
    pub(super) fn next(&mut self) -> io::Result<Option<Lot>> {
        // What began before is to end soon.
        let mut from = if self.begins { LOT_BYTES } else { 1 };
        loop {
            if let Some(at) = find_head(&self.rest, from) {
                return Ok(Some(self.cut(at, true)));
            }
            from = from.max((self.rest.len() + 1).saturating_sub(HEAD_BYTES));
            if self.rest.len() >= LOT_BYTES_MAX {
                return Ok(Some(self.cut(self.rest.len(), false)));
            }
            if self.is_over {
                return match self.failed.take() {
                    failed if !self.rest.is_empty() => {
                        let is_whole = failed.is_none();
                        self.failed = failed;
                        Ok(Some(self.cut(self.rest.len(), is_whole)))
                    }
                    Some(e) => Err(e),
                    None => Ok(None),
                };
            }
            self.fill();
        }
    }

    /// Tells this error, again, behind what was read.
    pub(super) fn fails_with(&mut self, e: io::Error) {
        self.failed = Some(e);
    }

    /// Reads on, until a buffer that begins with the rest is full.
    fn fill(&mut self) {
        // There is room left: of a rest as large as a lot may be, one is made.
        let mut buffer = self.pool.take((2 * self.rest.len()).clamp(BUFFER_BYTES, LOT_BYTES_MAX));
        let mut len = self.rest.len();
        if let Some(place) = buffer.get_mut(..len) {
            place.copy_from_slice(&self.rest);
        }
        while !self.is_over && len < buffer.len() {
            match self.source.read(buffer.get_mut(len..).unwrap_or_default()) {
                Ok(0) => self.is_over = true,
                Ok(read) => len += read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => (self.is_over, self.failed) = (true, Some(e)),
            }
        }
        self.held_bytes = buffer.len();
        self.rest = self.pool.share(buffer, len);
    }

    /// Takes what was read up to here; what follows is a member, or the end, or, if not, the same member.
    fn cut(&mut self, at: usize, is_end: bool) -> Lot {
        let lot = Lot {
            offset: self.offset,
            begins: self.begins,
            is_whole: self.begins && is_end,
            bytes: self.rest.split_to(at),
            held_bytes: self.held_bytes,
        };
        (self.offset, self.begins) = (lot.end(), is_end);
        lot
    }
}

/// The first place from here on that looks like the head of a member.
fn find_head(bytes: &[u8], mut from: usize) -> Option<usize> {
    loop {
        let at = from + memmem::find(bytes.get(from..)?, &HEAD_START)?;
        if bytes.get(at..).and_then(|rest| rest.first_chunk()).is_some_and(is_head) {
            return Some(at);
        }
        from = at + 1;
    }
}

/// Where the member that bytes begin with ends, if another one follows.
pub(super) fn next_head(bytes: &[u8]) -> Option<usize> {
    find_head(bytes, HEAD_BYTES)
}

/// Whether ten bytes look like the head of a gzip member: its magic and method, flags that there are, what compressors say of
/// themselves, and a system that has a number.
fn is_head(bytes: &[u8; HEAD_BYTES]) -> bool {
    bytes.starts_with(&HEAD_START) && matches!(bytes, [_, _, _, 0..0x20, _, _, _, _, 0 | 2 | 4, 0..=13 | 255])
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::warc::{Form, Writer};

    /// Members of bodies that pack badly, so that many make many lots.
    pub(in crate::warc) fn members(count: u32, body_bytes: usize) -> Vec<Vec<u8>> {
        let (mut writer, mut state) = (Writer::new(Form::Gzip), 0x9e37_79b9_7f4a_7c15_u64);
        let member = |n: u32| {
            let mut body = Vec::with_capacity(body_bytes);
            while body.len() < body_bytes {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                body.extend_from_slice(&state.to_le_bytes());
            }
            let mut out = Vec::new();
            writer.resource(&format!("http://h/{n}"), 1_700_000_000_000, "text/plain", &body, &mut out);
            out
        };
        (0..count).map(member).collect()
    }

    fn cut(source: impl Read) -> (Vec<Lot>, io::Result<()>) {
        let (mut cutter, mut lots) = (Cutter::new(source, Pool::default()), Vec::new());
        loop {
            match cutter.next() {
                Ok(Some(lot)) => lots.push(lot),
                Ok(None) => return (lots, Ok(())),
                Err(e) => return (lots, Err(e)),
            }
        }
    }

    #[test]
    fn lots_are_whole_members_and_together_the_file() {
        let members = members(100, 20_000);
        let (lots, outcome) = cut(&members.concat()[..]);
        outcome.unwrap();
        assert!(lots.len() > 4 && lots.iter().all(|lot| lot.is_whole), "{} lots", lots.len());
        let starts: Vec<u64> = members
            .iter()
            .scan(0, |at, member| {
                let start = *at;
                *at += member.len() as u64;
                Some(start)
            })
            .collect();
        assert!(lots.iter().all(|lot| starts.contains(&lot.offset)));
        assert!(lots.iter().map(|lot| &lot.bytes[..]).collect::<Vec<_>>().concat() == members.concat());
    }

    #[test]
    fn a_large_member_is_in_lots_that_are_not_whole() {
        let file = [members(1, 10 << 20), members(3, 100_000)].concat().concat();
        let (lots, _) = cut(&file[..]);
        let shapes: Vec<(bool, bool)> = lots.iter().map(|lot| (lot.begins, lot.is_whole)).collect();
        assert_eq!(shapes, [(true, false), (false, false), (false, false), (true, true), (true, true)]);
        assert!(lots.iter().map(|lot| &lot.bytes[..]).collect::<Vec<_>>().concat() == file);
    }

    struct Breaks;

    impl Read for Breaks {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the disk is gone"))
        }
    }

    #[test]
    fn what_was_read_comes_before_the_error() {
        let file = members(1, 1000).concat();
        let (lots, outcome) = cut(file.as_slice().chain(Breaks));
        assert!(lots.len() == 1 && !lots[0].is_whole && lots[0].bytes == file);
        assert!(outcome.unwrap_err().to_string().contains("gone"));
    }
}
