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

use std::io::{self, Read};

use bytes::Bytes;

use super::pool::Pool;

/// Bytes of a lot, at least, if there are as many.
const LOT_BYTES: usize = 128 << 10;
/// Bytes of a lot, at most.
const LOT_BYTES_MAX: usize = 4 << 20;
const READ_BYTES: usize = 128 << 10;
/// Bytes of a buffer that lots are read into, at least.
const BUFFER_BYTES: usize = 512 << 10;
/// What a member's head has at least, and what is looked at.
const HEAD_BYTES: usize = 10;

/// Some bytes of a file.
#[derive(Clone, Debug)]
pub(super) struct Lot {
    /// Where it begins.
    pub(super) offset: u64,
    pub(super) bytes: Bytes,
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
    /// What is held, and room behind it.
    buffer: Vec<u8>,
    held: usize,
    /// Where what is held begins.
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
            buffer: Vec::new(),
            held: 0,
            offset: 0,
            begins: true,
            is_over: false,
            failed: None,
        }
    }

    fn held(&self) -> &[u8] {
        self.buffer.get(..self.held).unwrap_or_default()
    }

    /// The next lot; none at the end of the file.
    ///
    /// # Errors
    /// When the file cannot be read, behind all that can be.
    pub(super) fn next(&mut self) -> io::Result<Option<Lot>> {
        // What began before is to end soon.
        let mut from = if self.begins { LOT_BYTES } else { 1 };
        loop {
            if let Some(at) = find_head(self.held(), from) {
                return Ok(Some(self.cut(at, true)));
            }
            from = from.max((self.held + 1).saturating_sub(HEAD_BYTES));
            if self.held >= LOT_BYTES_MAX {
                return Ok(Some(self.cut(self.held, false)));
            }
            if self.is_over {
                return match self.failed.take() {
                    failed if self.held > 0 => {
                        let is_whole = failed.is_none();
                        self.failed = failed;
                        Ok(Some(self.cut(self.held, is_whole)))
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

    fn fill(&mut self) {
        if self.buffer.len() < self.held + READ_BYTES {
            let larger = self.pool.take((2 * self.buffer.len()).max(BUFFER_BYTES));
            self.hold(larger, 0);
        }
        let room = self.held..self.held + READ_BYTES;
        let read = loop {
            match self.source.read(self.buffer.get_mut(room.clone()).unwrap_or_default()) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        match read {
            Ok(0) => self.is_over = true,
            Ok(read) => self.held += read,
            Err(e) => (self.is_over, self.failed) = (true, Some(e)),
        }
    }

    /// Takes what is held up to here; what follows is a member, or the end, or, if not, the same member.
    fn cut(&mut self, at: usize, is_end: bool) -> Lot {
        let next = self.pool.take((self.held - at).max(BUFFER_BYTES));
        let bytes = self.hold(next, at);
        let bytes = self.pool.share(bytes, at);
        let lot = Lot { offset: self.offset, begins: self.begins, is_whole: self.begins && is_end, bytes };
        (self.offset, self.begins) = (lot.end(), is_end);
        lot
    }

    /// Goes on in another buffer with what is held from here on; gives the one before.
    fn hold(&mut self, mut next: Vec<u8>, from: usize) -> Vec<u8> {
        let rest = self.buffer.get(from..self.held).unwrap_or_default();
        if let Some(place) = next.get_mut(..rest.len()) {
            place.copy_from_slice(rest);
        }
        self.held = rest.len();
        std::mem::replace(&mut self.buffer, next)
    }
}

/// The first place from here on that looks like the head of a member.
fn find_head(bytes: &[u8], from: usize) -> Option<usize> {
    bytes.get(from..)?.windows(HEAD_BYTES).position(is_head).map(|at| from + at)
}

/// Whether ten bytes look like the head of a gzip member: its magic and method, flags that there are, what compressors say of
/// themselves, and a system that has a number.
fn is_head(bytes: &[u8]) -> bool {
    matches!(bytes, [0x1f, 0x8b, 8, 0..0x20, _, _, _, _, 0 | 2 | 4, 0..=13 | 255])
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
