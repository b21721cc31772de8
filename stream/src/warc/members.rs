//! Reading the members of a gzip file on several threads.
//!
//! ```text
//!   file ─▶ Cutter ─▶ lots ─┬▶ worker: WholeMembers or Reader, digests ─┬▶ lots in their order ─▶ records
//!                           └▶ worker: WholeMembers or Reader, digests ─┘
//! ```
//!
//! A lot that reads well from its first byte to its last, when the one before it did, is what a reader of the whole file would have found
//! there: members of gzip do not depend on each other. Any other lot, because it was cut wrongly, or is damaged, or not whole, is
//! read again by the reader of the whole file, which goes on until it stands at the beginning of a lot. So there is one way in
//! which damage is understood and told, however many threads read.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use super::digest::PayloadDigest;
use super::input::KEPT_BYTES_MAX;
use super::lots::{Cutter, Lot};
use super::pool::Pool;
use super::reader::{Block, Item, Reader};
use super::whole::WholeMembers;

/// Unpacked bytes of a lot, at most: one that has more is read piece by piece.
pub(super) const UNPACKED_BYTES_MAX: usize = 16 << 20;
/// A reader goes back no further than this behind what it has read.
const BACK_BYTES_MAX: u64 = KEPT_BYTES_MAX as u64 + (1 << 20);

/// What a reader found, with what is known of it already.
pub(super) struct Found {
    pub(super) item: Item,
    /// The digest of its payload.
    pub(super) digest: Option<PayloadDigest>,
    /// The gzip member that is this record and nothing else.
    pub(super) member: Option<Member>,
}

/// A gzip member with one record.
pub(super) struct Member {
    /// All of it.
    pub(super) bytes: Bytes,
    /// What is packed in it, between its head and its checksum.
    pub(super) stream: Bytes,
    /// Bytes that this unpacks to, before the record's block and in all.
    pub(super) block_at: usize,
    pub(super) unpacked_bytes: usize,
    /// Bytes that whoever holds it holds: those of the buffer that its lot lies in.
    pub(super) held_bytes: usize,
}

impl From<Item> for Found {
    fn from(item: Item) -> Found {
        Found { item, digest: None, member: None }
    }
}

/// All of a lot.
struct Parsed {
    found: Vec<Found>,
    is_arc: Option<bool>,
}

/// A lot to be read by a worker.
pub(super) struct Work {
    lot: Lot,
    /// Takes nothing if the lot does not read well.
    done: Sender<Option<Parsed>>,
}

/// Reads lots until there are no more.
pub(super) fn work(lots: &Mutex<Receiver<Work>>, pool: &Pool) {
    let mut whole = WholeMembers::new(pool.clone());
    loop {
        // One waits for work, and the others for their turn to.
        let next = lots.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Work { lot, done }) = next else { return };
        // Nobody waits for it where reading has ended early.
        let _ended = done.send(parse(&lot, &mut whole));
    }
}

/// What is in a lot; nothing if it is not all well.
fn parse(lot: &Lot, whole: &mut WholeMembers) -> Option<Parsed> {
    match whole.read(lot) {
        Some(found) => Some(Parsed { found, is_arc: Some(false) }),
        None => parse_any(lot),
    }
}

fn parse_any(lot: &Lot) -> Option<Parsed> {
    let reader = Reader::resumed(&lot.bytes[..], lot.offset, None).ok()?;
    let mut reader = reader.with_block_bytes_max(UNPACKED_BYTES_MAX as u64);
    let (mut found, mut bytes, mut is_arc) = (Vec::new(), 0, None);
    while let Some(item) = reader.next().ok()? {
        // What a record of another format is depends on those before the lot.
        if *is_arc.get_or_insert(reader.is_arc()) != reader.is_arc() {
            return None;
        }
        let Item::Record(record) = &item else { return None };
        let Block::Whole(block) = &record.block else { return None };
        bytes += block.len();
        if bytes > UNPACKED_BYTES_MAX {
            return None;
        }
        let digest = PayloadDigest::of_record(record);
        found.push(Found { item, digest, member: None });
    }
    Some(Parsed { found, is_arc: is_arc.flatten() })
}

/// The records of a gzip file, in their order.
pub(super) struct Members<R> {
    /// None only while it is being replaced.
    reading: Option<Reading<R>>,
    /// Up to where the file was read.
    offset: u64,
    is_arc: Option<bool>,
}

enum Reading<R> {
    /// Lots, as workers read them.
    Lots(Window<R>),
    /// Byte by byte.
    Bytes(Box<Reader<Window<R>>>),
}

impl<R: Read> Members<R> {
    /// Reads a file that begins with a member; some lots at a time are given to the workers.
    pub(super) fn new(source: R, (workers, lots_ahead): (Sender<Work>, usize), pool: Pool) -> Members<R> {
        let cutter = Cutter::new(source, pool);
        let window = Window { cutter, lots: VecDeque::new(), workers, lots_ahead, read_to: 0 };
        Members { reading: Some(Reading::Lots(window)), offset: 0, is_arc: None }
    }

    /// Bytes of the file that were read so far.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next records, or damage, in their order; none at the end of the file.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(super) fn next(&mut self) -> io::Result<Option<Vec<Found>>> {
        loop {
            match self.reading.take() {
                None => return Ok(None),
                Some(Reading::Lots(window)) => {
                    if let Some(found) = self.next_lot(window)? {
                        return Ok(Some(found));
                    }
                }
                Some(Reading::Bytes(reader)) => return self.next_item(reader),
            }
        }
    }

    /// What is in the next lot, if it is well; else it is to be read byte by byte, if there is one.
    fn next_lot(&mut self, mut window: Window<R>) -> io::Result<Option<Vec<Found>>> {
        window.look_ahead()?;
        if window.lots.is_empty() {
            return Ok(None);
        }
        let is_alike = |parsed: &Parsed| {
            self.is_arc.is_none() || parsed.is_arc.is_none() || self.is_arc == parsed.is_arc
        };
        match window.first().filter(is_alike) {
            Some(parsed) => {
                self.is_arc = self.is_arc.or(parsed.is_arc);
                self.offset = window.pass_first();
                self.reading = Some(Reading::Lots(window));
                Ok(Some(parsed.found))
            }
            None => {
                window.read_to = self.offset;
                let reader = Reader::resumed(window, self.offset, self.is_arc)?;
                self.reading = Some(Reading::Bytes(Box::new(reader)));
                Ok(None)
            }
        }
    }

    /// The next item, byte by byte; back to lots if there one begins.
    fn next_item(&mut self, mut reader: Box<Reader<Window<R>>>) -> io::Result<Option<Vec<Found>>> {
        let next = reader.next();
        self.offset = reader.offset();
        let Some(item) = next? else { return Ok(None) };
        let end = reader.member_end();
        let is_at_lot = end.is_some_and(|end| reader.source().is_at_lot(end));
        self.is_arc = reader.is_arc();
        self.reading = Some(match is_at_lot {
            true => Reading::Lots(reader.into_source()),
            false => Reading::Bytes(reader),
        });
        Ok(Some(vec![item.into()]))
    }
}

/// The lots that are being read.
struct Window<R> {
    cutter: Cutter<R>,
    lots: VecDeque<Waiting>,
    workers: Sender<Work>,
    /// Lots that workers have, at most.
    lots_ahead: usize,
    /// Up to where it was read byte by byte.
    read_to: u64,
}

struct Waiting {
    lot: Lot,
    /// From the worker that has it.
    parsed: Option<Receiver<Option<Parsed>>>,
}

impl<R: Read> Window<R> {
    /// Gives lots to the workers.
    fn look_ahead(&mut self) -> io::Result<()> {
        while self.lots.len() < self.lots_ahead {
            match self.cutter.next() {
                Ok(Some(lot)) => self.lots.push_back(Waiting { lot, parsed: None }),
                // What was read before comes first; whoever reads it byte by byte is told again.
                Err(e) if !self.lots.is_empty() => {
                    self.cutter.fails_with(e);
                    break;
                }
                Ok(None) => break,
                Err(e) => return Err(e),
            }
        }
        for waiting in self.lots.iter_mut().take(self.lots_ahead) {
            if waiting.parsed.is_none() && waiting.lot.is_whole {
                let (done, parsed) = channel();
                // Where there are no workers any more, it is read byte by byte.
                let _gone = self.workers.send(Work { lot: waiting.lot.clone(), done });
                waiting.parsed = Some(parsed);
            }
        }
        Ok(())
    }

    /// The first lot as a worker has read it, if that went well.
    fn first(&mut self) -> Option<Parsed> {
        self.lots.front_mut()?.parsed.take()?.recv().ok()?
    }

    /// Passes the first lot; says where it ended.
    fn pass_first(&mut self) -> u64 {
        self.lots.pop_front().map_or(0, |waiting| waiting.lot.end())
    }

    /// Whether the file is read up to here, where a lot begins.
    fn is_at_lot(&mut self, offset: u64) -> bool {
        while self.lots.front().is_some_and(|waiting| waiting.lot.end() <= offset) {
            self.lots.pop_front();
        }
        self.lots.front().is_some_and(|waiting| waiting.lot.offset == offset && waiting.lot.begins)
    }
}

/// Byte by byte, from the first lot on. What was read stays, as far as the reader may come back to it.
impl<R: Read> Read for Window<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.lots.front().is_some_and(|waiting| waiting.lot.end() + BACK_BYTES_MAX < self.read_to) {
            self.lots.pop_front();
        }
        loop {
            let here = self.lots.iter().find(|waiting| waiting.lot.end() > self.read_to);
            if let Some(Waiting { lot, .. }) = here {
                let from = self.read_to.saturating_sub(lot.offset) as usize;
                let rest = lot.bytes.get(from..).unwrap_or_default();
                let some = rest.len().min(out.len());
                if let (Some(out), Some(rest)) = (out.get_mut(..some), rest.get(..some)) {
                    out.copy_from_slice(rest);
                }
                self.read_to += some as u64;
                return Ok(some);
            }
            let Some(lot) = self.cutter.next()? else { return Ok(0) };
            self.lots.push_back(Waiting { lot, parsed: None });
        }
    }
}
