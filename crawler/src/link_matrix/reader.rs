//! What a scan reads, as the threads of the scan see it: pieces of vectors, and the links of cells.
//!
//! All readers of a scan get the same pieces (`ahead.rs`), and each decodes frames of its own: what a frame is of stands in its head. What
//! the last one has done with goes back.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};

use super::ahead::{Ahead, CHUNK_BYTES, CHUNKS, Chunk, Piece, Request, Threads};
use super::direct::Buffer;
use super::file::Matrix;
use super::frame::{self, Checked, FRAME_LINKS_MAX, Frame, frame_bytes};
use super::{MatrixError, Result};

/// The links of a cell, or some of them.
pub(crate) struct Cell<'a> {
    /// The block of the sources.
    pub(crate) from: u16,
    /// The block of the targets.
    pub(crate) to: u16,
    /// The links.
    pub(crate) positions: &'a [u32],
    /// At the first of several cells with one block that stays: how many links they have together. 0 at the others.
    pub(crate) together: usize,
}

/// Of a cell that is wanted, the block that stays in the cache, and the one that goes by.
pub(crate) type Stays = (u16, u16);

/// A frame of a chunk.
struct Wanted {
    stays: Stays,
    /// Where in the chunk.
    place: Range<usize>,
    /// As [`Cell::together`].
    together: usize,
}

/// The end of a thread of the scan.
pub(crate) struct Reader {
    matrix: Matrix,
    pieces: Receiver<Result<Piece>>,
    buffers: Sender<Buffer>,
    vectors: Sender<Buffer>,
    /// The beginning of a frame whose end is in the next piece.
    carry: Vec<u8>,
    /// Frames of a chunk, in the order that is asked for.
    wanted: Vec<Wanted>,
    frames: (Frame, Frame),
    /// After the channels, whose end is what ends the threads.
    _threads: Arc<Threads>,
}

impl Reader {
    /// Begins to read, for one thread or several that each look at everything. Vectors come in pieces of at most `piece_bytes`, of
    /// which `pieces_ahead` are in memory: with one, the next is read when it has been given back.
    pub(crate) fn start<const READERS: usize>(
        matrix: &Matrix,
        (pieces_ahead, piece_bytes): (usize, usize),
        requests: Vec<Request>,
    ) -> [Self; READERS] {
        let (buffers, vectors) = (channel(), channel());
        for _ in 0..CHUNKS {
            let _ = buffers.0.send(Buffer::new(CHUNK_BYTES));
        }
        for _ in 0..pieces_ahead.max(1) {
            let _ = vectors.0.send(Buffer::new(piece_bytes));
        }
        let ends: [_; READERS] = std::array::from_fn(|_| sync_channel(CHUNKS + pieces_ahead.max(1)));
        let give = ends.iter().map(|(give, _)| give.clone()).collect();
        let threads = Arc::new(Ahead::start(matrix, requests, (buffers.1, vectors.1), give));
        ends.map(|(_, pieces)| Self {
            matrix: matrix.clone(),
            pieces,
            buffers: buffers.0.clone(),
            vectors: vectors.0.clone(),
            carry: Vec::new(),
            wanted: Vec::new(),
            frames: (empty_frame(), empty_frame()),
            _threads: threads.clone(),
        })
    }

    fn next(&self) -> Result<Piece> {
        match self.pieces.recv() {
            Ok(piece) => piece,
            Err(_) => Err(MatrixError::Ended(self.matrix.path().to_path_buf())),
        }
    }

    fn disorder(&self) -> MatrixError {
        MatrixError::corrupt(self.matrix.path(), 0, "a frame is not where it should be")
    }

    /// The blocks that are next in order. To be given back.
    pub(crate) fn vector(&mut self) -> Result<Arc<Buffer>> {
        match self.next()? {
            Piece::Vector(blocks) => Ok(blocks),
            Piece::Frames(..) => Err(self.disorder()),
        }
    }

    pub(crate) fn give_back(&self, blocks: Arc<Buffer>) {
        if let Some(blocks) = Arc::into_inner(blocks) {
            // Nobody reads ahead any more: nobody needs it.
            let _ = self.vectors.send(blocks);
        }
    }

    /// Calls `each` with the links of the request that is next in order, cell by cell, as far as `order` wants the blocks of their
    /// sources and targets. Of the cells that are in memory at once, those whose block stays go one after the other. The order is the same
    /// every time.
    pub(crate) fn frames(
        &mut self,
        order: impl Fn(u16, u16) -> Option<Stays>,
        mut each: impl FnMut(Cell<'_>),
    ) -> Result<()> {
        loop {
            let Piece::Frames(chunk, last) = self.next()? else { return Err(self.disorder()) };
            self.chunk(&chunk, last, &order, &mut each)?;
            if let Some(chunk) = Arc::into_inner(chunk) {
                let _ = self.buffers.send(chunk.buffer);
            }
            if last {
                return Ok(());
            }
        }
    }

    /// Goes through a chunk of a request.
    fn chunk(
        &mut self,
        chunk: &Chunk,
        last: bool,
        order: &impl Fn(u16, u16) -> Option<Stays>,
        each: &mut impl FnMut(Cell<'_>),
    ) -> Result<()> {
        let mut wanted = std::mem::take(&mut self.wanted);
        for (range, offset) in &chunk.parts {
            let bytes = chunk.buffer.bytes().get(range.clone()).unwrap_or_default();
            let found = self.part(bytes, range.start, order, &mut wanted, each);
            found.map_err(|what| MatrixError::corrupt(self.matrix.path(), *offset, what))?;
        }
        let path = self.matrix.path().to_path_buf();
        if last && !self.carry.is_empty() {
            let offset = chunk.parts.last().map_or(0, |(_, offset)| *offset);
            return Err(MatrixError::corrupt(&path, offset, "a frame is cut short".to_owned()));
        }
        let corrupt = |frame: &Wanted, what: String| {
            let at = frame.place.start;
            let part = chunk.parts.iter().rev().find(|(range, _)| range.start <= at);
            let offset = part.map_or(0, |(range, offset)| offset + (at - range.start) as u64);
            MatrixError::corrupt(&path, offset, what)
        };
        wanted.sort_unstable_by_key(|frame| (frame.stays, frame.place.start));
        let bytes = |frame: &Wanted| chunk.buffer.bytes().get(frame.place.clone()).unwrap_or_default();
        for with_block in wanted.chunk_by_mut(|one, next| one.stays.0 == next.stays.0) {
            let together = with_block.iter().map(|frame| frame::links_of(bytes(frame))).sum();
            with_block.iter_mut().take(1).for_each(|first| first.together = together);
        }
        for frames in wanted.chunks(2) {
            match frames {
                [one, other] => {
                    let mut checked = Checked::of(bytes(one)).map_err(|what| corrupt(one, what))?;
                    let mut checked_other = Checked::of(bytes(other)).map_err(|what| corrupt(other, what))?;
                    let (frame, other_frame) = &mut self.frames;
                    Frame::read_both((frame, &mut checked), (other_frame, &mut checked_other));
                    checked.end().map_err(|what| corrupt(one, what))?;
                    checked_other.end().map_err(|what| corrupt(other, what))?;
                    each(frame.cell(one.together));
                    each(other_frame.cell(other.together));
                }
                _ => {
                    for one in frames {
                        let taken = take(bytes(one), &mut self.frames.0, one.together, each);
                        taken.map_err(|what| corrupt(one, what))?;
                    }
                }
            }
        }
        wanted.clear();
        self.wanted = wanted;
        Ok(())
    }

    /// Finds the frames in a part of a chunk, which begins at `begin` there.
    fn part(
        &mut self,
        mut bytes: &[u8],
        mut begin: usize,
        order: &impl Fn(u16, u16) -> Option<Stays>,
        wanted: &mut Vec<Wanted>,
        each: &mut impl FnMut(Cell<'_>),
    ) -> std::result::Result<(), String> {
        let order = |frame: &[u8]| frame::cell_of(frame).and_then(|(from, to)| order(from, to));
        // A frame that began in the chunk before.
        while !self.carry.is_empty() && !bytes.is_empty() {
            let total = frame_bytes(&self.carry).transpose()?;
            let missing = total.unwrap_or(frame::HEAD_BYTES) - self.carry.len();
            let (now, later) = bytes.split_at(bytes.len().min(missing));
            self.carry.extend_from_slice(now);
            (bytes, begin) = (later, begin + now.len());
            if total == Some(self.carry.len()) {
                if order(&self.carry).is_some() {
                    let links = frame::links_of(&self.carry);
                    take(&self.carry, &mut self.frames.0, links, each)?;
                }
                self.carry.clear();
            }
        }
        while let Some(total) = frame_bytes(bytes).transpose()? {
            let Some((frame, rest)) = bytes.split_at_checked(total) else { break };
            let place = begin..begin + total;
            wanted.extend(order(frame).map(|stays| Wanted { stays, place, together: 0 }));
            (bytes, begin) = (rest, begin + total);
        }
        self.carry.extend_from_slice(bytes);
        Ok(())
    }
}

/// A frame whose positions have room for all that a frame has.
fn empty_frame() -> Frame {
    Frame { positions: Vec::with_capacity(FRAME_LINKS_MAX), ..Frame::default() }
}

impl Frame {
    fn cell(&self, together: usize) -> Cell<'_> {
        Cell { from: self.from, to: self.to, positions: &self.positions, together }
    }
}

/// Decodes a frame.
fn take(
    bytes: &[u8],
    frame: &mut Frame,
    together: usize,
    each: &mut impl FnMut(Cell<'_>),
) -> std::result::Result<(), String> {
    frame.read(bytes)?;
    each(frame.cell(together));
    Ok(())
}
