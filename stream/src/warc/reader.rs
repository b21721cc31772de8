//! The records of a WARC or ARC file, one after the other, and what is wrong with the file.
//!
//! 1. The reader never fails because of what is in a file, only when the file cannot be read: what is damaged is an [`Item`]
//!    that says where and how, and reading goes on behind it.
//! 2. A record is [`Block::Whole`] when all of its block is there, a checksum over it holds if there is one (gzip, zstd), and
//!    what follows is another record or the end. A block that a record's length misses or overshoots is not.
//! 3. No length is trusted: a block longer than the limit is passed over without being held.
//! 4. No record is made up: after damage, the next record begins with `WARC/` at the start of a line or of a member.

use std::io::{self, Read};

use bytes::{Bytes, BytesMut};

use super::head::{Head, Kind, is_arc_line, shown};
use super::unpack::{Begun, Packing, Pulled, Unpacker};

/// The longest head of a record.
const HEAD_BYTES_MAX: usize = 1 << 20;
/// The longest line of an ARC record.
const ARC_LINE_BYTES_MAX: usize = 64 << 10;
/// Memory for a block before its bytes are there, at most.
const RESERVED_BYTES_MAX: usize = 1 << 20;
/// The longest block that is held in memory, unless told otherwise: the largest page of a store, and its head.
pub const BLOCK_BYTES_MAX: u64 = 65 << 20;

/// Something in a file that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where: the place in the file, of the member if it is packed.
    pub offset: u64,
    /// What, for people.
    pub what: String,
}

/// What is in a record.
#[derive(Clone, Debug)]
pub enum Block {
    /// All of it.
    Whole(Bytes),
    /// More than is held in memory: so many bytes.
    TooLarge(u64),
    /// What there is of a record that is damaged, and how it is.
    Damaged(Bytes, String),
}

/// One record.
#[derive(Clone, Debug)]
pub struct WarcRecord {
    /// Where it begins in the file; in a packed file, where its member begins.
    pub offset: u64,
    /// Bytes of the file it takes, of its member if it is packed and alone in it; without the empty lines behind it if it is not packed.
    pub stored_bytes: u64,
    /// It is not the first in its member: the file is packed as a whole, and its records cannot be found by their places.
    pub shares_member: bool,
    /// What stands before its block.
    pub head: Head,
    /// Its block.
    pub block: Block,
}

impl WarcRecord {
    /// Its type.
    pub fn kind(&self) -> Kind {
        self.head.kind()
    }

    /// The payload of a response or resource, as it lies in the file: what follows the HTTP head, if there is one.
    pub fn payload(&self) -> Option<Bytes> {
        let block = match &self.block {
            Block::Whole(block) | Block::Damaged(block, _) => block,
            Block::TooLarge(_) => return None,
        };
        match self.kind() {
            Kind::Resource => Some(block.clone()),
            Kind::Response => {
                let is_http =
                    self.head.uri().is_some_and(|uri| uri.starts_with("http:") || uri.starts_with("https:"));
                Some(block.slice(if is_http { crate::http::head_len(block) } else { 0 }..))
            }
            _ => None,
        }
    }
}

/// What a reader finds.
#[derive(Clone, Debug)]
pub enum Item {
    /// A record, which may be damaged.
    Record(WarcRecord),
    /// Damage where no record can be made out.
    Damage(Damage),
}

/// How much of what was wanted there is.
enum Have {
    Enough,
    /// The member ended.
    Ended,
    /// The member is damaged.
    Broken(String),
}

/// Where the reader is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Between members.
    Between,
    /// In a member.
    Within,
    /// All of the member was unpacked.
    Unpacked,
    /// The member is damaged, and what was unpacked of it is all there is.
    Broken,
}

/// Reads records.
pub struct Reader<R> {
    unpacker: Unpacker<R>,
    block_bytes_max: u64,
    standing: Standing,
    /// Why the member is damaged.
    why: String,
    /// Unpacked and not read.
    buffer: BytesMut,
    member_at: u64,
    /// Unpacked bytes of the member before the buffer.
    read: u64,
    records_in_member: u64,
    /// Something of the member was handed out.
    is_told: bool,
    is_arc: Option<bool>,
}

impl<R: Read> Reader<R> {
    /// Reads a file: plain, gzip or zstd, as its first bytes say.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn new(source: R) -> io::Result<Reader<R>> {
        Reader::resumed(source, 0, None)
    }

    /// Reads on in a file whose members are independent of each other: from `offset` on, where a member begins. The records
    /// before it decided what the format is.
    pub(super) fn resumed(source: R, offset: u64, is_arc: Option<bool>) -> io::Result<Reader<R>> {
        Ok(Reader {
            unpacker: Unpacker::new(source, offset)?,
            block_bytes_max: BLOCK_BYTES_MAX,
            standing: Standing::Between,
            why: String::new(),
            buffer: BytesMut::new(),
            member_at: 0,
            read: 0,
            records_in_member: 0,
            is_told: false,
            is_arc,
        })
    }

    /// Holds blocks of at most so many bytes in memory.
    #[must_use]
    pub fn with_block_bytes_max(mut self, bytes: u64) -> Self {
        self.block_bytes_max = bytes;
        self
    }

    /// How the file is packed.
    pub fn packing(&self) -> Packing {
        self.unpacker.packing()
    }

    /// Bytes of the file that were read so far.
    pub fn offset(&self) -> u64 {
        self.unpacker.offset()
    }

    /// Whether the file is an ARC file, if that is known yet.
    pub(super) fn is_arc(&self) -> Option<bool> {
        self.is_arc
    }

    /// Where the next member is to begin, if nothing of the one before it is left.
    pub(super) fn member_end(&self) -> Option<u64> {
        let is_over =
            matches!(self.standing, Standing::Between | Standing::Unpacked) && self.buffer.is_empty();
        is_over.then(|| self.unpacker.offset())
    }

    pub(super) fn source(&mut self) -> &mut R {
        self.unpacker.source()
    }

    pub(super) fn into_source(self) -> R {
        self.unpacker.into_source()
    }

    /// The next record, or damage; none at the end of the file.
    ///
    /// # Errors
    /// When the file cannot be read.
    #[expect(clippy::should_implement_trait, reason = "an iterator could not tell errors from ends as well")]
    pub fn next(&mut self) -> io::Result<Option<Item>> {
        loop {
            if self.standing == Standing::Between {
                match self.unpacker.begin()? {
                    Begun::End => return Ok(None),
                    Begun::Junk { offset, bytes, start } => {
                        let what = format!("{bytes} bytes that are no member: {start}");
                        return Ok(Some(Item::Damage(Damage { offset, what })));
                    }
                    Begun::Member(at) => self.enter(at),
                }
            }
            self.skip_blank()?;
            if !self.buffer.is_empty() {
                return self.record().map(Some);
            }
            let standing = std::mem::replace(&mut self.standing, Standing::Between);
            if standing == Standing::Broken {
                self.unpacker.recover()?;
                // Of a member with something in it, what came last says that it is damaged.
                if !self.is_told {
                    let what = format!("a damaged member: {}", std::mem::take(&mut self.why));
                    return Ok(Some(Item::Damage(Damage { offset: self.member_at, what })));
                }
            }
        }
    }

    fn enter(&mut self, at: u64) {
        self.standing = Standing::Within;
        self.member_at = at;
        self.read = 0;
        self.records_in_member = 0;
        self.is_told = false;
        // Memory of its own for each: what is left of the last one would decide how much the next takes.
        self.buffer = BytesMut::new();
    }

    fn is_plain(&self) -> bool {
        self.unpacker.packing() == Packing::Plain
    }

    /// Where the next unread byte is, as far as the file tells.
    fn here(&self) -> u64 {
        self.member_at + if self.is_plain() { self.read } else { 0 }
    }

    fn take(&mut self, count: usize) -> Bytes {
        self.read += count as u64;
        self.buffer.split_to(count).freeze()
    }

    fn drop_bytes(&mut self, count: usize) {
        self.read += count as u64;
        bytes::Buf::advance(&mut self.buffer, count);
    }

    /// Unpacks more; false when the member has no more.
    fn pull(&mut self) -> io::Result<bool> {
        if self.standing != Standing::Within {
            return Ok(false);
        }
        match self.unpacker.pull(&mut self.buffer)? {
            Pulled::Some => {}
            Pulled::End => self.standing = Standing::Unpacked,
            Pulled::Broken(why) => (self.standing, self.why) = (Standing::Broken, why),
        }
        Ok(true)
    }

    /// Has so many bytes in the buffer, if there are.
    fn need(&mut self, count: usize) -> io::Result<Have> {
        while self.buffer.len() < count {
            if !self.pull()? {
                return Ok(match self.standing {
                    Standing::Broken => Have::Broken(self.why.clone()),
                    _ => Have::Ended,
                });
            }
        }
        Ok(Have::Enough)
    }

    /// As [`Reader::need`], for the rest of a record that has begun: it may lie in several zstd frames.
    fn need_rest(&mut self, count: usize) -> io::Result<Have> {
        loop {
            let have = self.need(count)?;
            let goes_on = matches!(have, Have::Ended) && self.unpacker.packing() == Packing::Zstd;
            if !goes_on || !matches!(self.unpacker.begin()?, Begun::Member(_)) {
                return Ok(have);
            }
            self.standing = Standing::Within;
        }
    }

    /// Passes empty lines, up to the next byte of another kind or the end of the member.
    fn skip_blank(&mut self) -> io::Result<()> {
        loop {
            let blank = self.buffer.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            self.drop_bytes(blank);
            if !self.buffer.is_empty() || !self.pull()? {
                return Ok(());
            }
        }
    }

    /// Reads the record that the buffer begins with.
    fn record(&mut self) -> io::Result<Item> {
        let offset = self.here();
        if !self.begins_record()? {
            let start = shown(&self.buffer);
            let passed = self.find_record()?;
            let mut what = format!("{passed} bytes that begin no record: {start}");
            if self.standing == Standing::Broken {
                what = format!("{what}; its member is damaged: {}", self.why);
            }
            self.is_told = true;
            return Ok(Item::Damage(Damage { offset, what }));
        }
        self.is_told = true;
        self.records_in_member += 1;
        let (shares_member, began) = (!self.is_plain() && self.records_in_member > 1, self.read);
        let head = match self.head()? {
            Ok(head) => head,
            Err(why) => {
                self.find_record()?;
                return Ok(Item::Damage(Damage { offset, what: format!("a record whose head {why}") }));
            }
        };
        let mut block = self.block(&head)?;
        let mut stored_bytes = self.read - began;
        if let Some(why) = self.what_follows()?
            && let Block::Whole(bytes) = block
        {
            block = Block::Damaged(bytes, why);
        }
        if !self.is_plain() {
            stored_bytes = self.unpacker.offset().saturating_sub(self.member_at);
        }
        Ok(Item::Record(WarcRecord { offset, stored_bytes, shares_member, head, block }))
    }

    /// Whether the buffer begins with a record of the file's format; the first one decides what that is.
    fn begins_record(&mut self) -> io::Result<bool> {
        self.need(5)?;
        let is_warc = self.buffer.starts_with(b"WARC/");
        if self.is_arc == Some(false) || is_warc {
            if is_warc {
                self.is_arc = Some(false);
            }
            return Ok(is_warc);
        }
        let line = self.line_len(ARC_LINE_BYTES_MAX)?;
        let is_arc = line.is_some_and(|len| is_arc_line(self.buffer.get(..len).unwrap_or_default()));
        if is_arc {
            self.is_arc = Some(true);
        }
        Ok(is_arc)
    }

    /// Length of the line that the buffer begins with, with its end; none when it is longer than `max`.
    fn line_len(&mut self, max: usize) -> io::Result<Option<usize>> {
        let mut seen = 0;
        loop {
            let new = self.buffer.get(seen..).unwrap_or_default();
            if let Some(at) = new.iter().position(|byte| *byte == b'\n') {
                return Ok(Some(seen + at + 1).filter(|len| *len <= max));
            }
            seen = self.buffer.len();
            if seen > max {
                return Ok(None);
            }
            if !matches!(self.need(seen + 1)?, Have::Enough) {
                return Ok(Some(seen));
            }
        }
    }

    /// Takes what stands before the block, or says what is wrong with it.
    fn head(&mut self) -> io::Result<Result<Head, String>> {
        if self.is_arc == Some(true) {
            let Some(len) = self.line_len(ARC_LINE_BYTES_MAX)? else { return Ok(Err("is too long".into())) };
            return Ok(Ok(Head::arc(self.take(len))));
        }
        let mut seen = 0;
        loop {
            if let Some(len) = warc_head_len(&self.buffer, seen) {
                return Ok(Ok(Head::warc(self.take(len))));
            }
            seen = self.buffer.len();
            if seen > HEAD_BYTES_MAX {
                return Ok(Err(format!("has more than {HEAD_BYTES_MAX} bytes")));
            }
            match self.need_rest(seen + 1)? {
                Have::Enough => {}
                Have::Ended => return Ok(Err("is cut short".into())),
                Have::Broken(why) => return Ok(Err(format!("is damaged: {why}"))),
            }
        }
    }

    fn block(&mut self, head: &Head) -> io::Result<Block> {
        let len = match head.block_len() {
            Ok(len) => len,
            Err(why) => return Ok(Block::Damaged(Bytes::new(), why)),
        };
        if len > self.block_bytes_max {
            return self.pass_over(len);
        }
        let cut = |have: usize, why: &str| format!("its block is cut short, {have} of {len} bytes: {why}");
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        // All of it at once, unless that is much for a length that may be wrong.
        self.buffer.reserve(len.min(RESERVED_BYTES_MAX).saturating_sub(self.buffer.len()));
        Ok(match self.need_rest(len)? {
            Have::Enough => Block::Whole(self.take(len)),
            Have::Ended => {
                let have = self.take(self.buffer.len());
                let why = cut(have.len(), if self.is_plain() { "the file ends" } else { "its member ends" });
                Block::Damaged(have, why)
            }
            Have::Broken(why) => {
                let have = self.take(self.buffer.len());
                let why = cut(have.len(), &why);
                Block::Damaged(have, why)
            }
        })
    }

    /// Passes a block that is too long to be held.
    fn pass_over(&mut self, len: u64) -> io::Result<Block> {
        let mut left = len;
        while left > 0 {
            let some = usize::try_from(left).unwrap_or(usize::MAX).min(self.buffer.len());
            self.drop_bytes(some);
            left -= some as u64;
            if left > 0 && !matches!(self.need_rest(1)?, Have::Enough) {
                let why = format!("its block is cut short, {} of {len} bytes", len - left);
                return Ok(Block::Damaged(Bytes::new(), why));
            }
        }
        Ok(Block::TooLarge(len))
    }

    /// Goes to the end of a record that was read, and to its member's, and says why it cannot be trusted.
    fn what_follows(&mut self) -> io::Result<Option<String>> {
        self.skip_blank()?;
        if self.buffer.is_empty() {
            return Ok(match self.standing {
                Standing::Broken => Some(format!("its member is damaged: {}", self.why)),
                _ => None,
            });
        }
        if self.begins_record()? {
            return Ok(None);
        }
        let start = shown(&self.buffer);
        let passed = self.find_record()?;
        Ok(Some(format!("its length is wrong: {passed} bytes follow that begin no record: {start}")))
    }

    /// Passes bytes up to the next line that begins a record, or the end of the member; says how many.
    fn find_record(&mut self) -> io::Result<u64> {
        let from = self.read;
        loop {
            // The line that is here begins none.
            loop {
                let end = self.buffer.iter().position(|byte| *byte == b'\n');
                let passed = end.map_or(self.buffer.len(), |at| at + 1);
                self.drop_bytes(passed);
                if end.is_some() {
                    break;
                }
                if !self.pull()? {
                    return Ok(self.read - from);
                }
            }
            self.skip_blank()?;
            if self.buffer.is_empty() || self.begins_record()? {
                return Ok(self.read - from);
            }
        }
    }
}

/// Length of a WARC record's head: up to the first empty line. The bytes before `seen` hold no end but that of a line.
pub(super) fn warc_head_len(bytes: &[u8], seen: usize) -> Option<usize> {
    let from = seen.saturating_sub(2);
    let mut rest = bytes.get(from..)?.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    rest.find_map(|(at, _)| {
        let next = from + at + 1;
        match (bytes.get(next), bytes.get(next + 1)) {
            (Some(b'\n'), _) => Some(next + 1),
            (Some(b'\r'), Some(b'\n')) => Some(next + 2),
            _ => None,
        }
    })
}
