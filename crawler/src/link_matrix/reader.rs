//! Reading ahead: a thread reads what a scan will want next, in a few buffers that go round.
//!
//! ```text
//!   requests ─▶ Ahead: reads ──pieces──▶ Reader: decodes the frames it wants; one for each thread of the scan
//!                  ▲────buffers─────────────┘
//! ```
//!
//! All readers of a scan get the same pieces, and each decodes frames of its own: what a frame is of stands in its head. What the last one
//! has done with goes back. When the last reader ends, so has the thread.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use webbase_storage::disk::DiskFile;

use super::direct::{Buffer, read_around};
use super::file::Matrix;
use super::frame::{self, FRAME_LINKS_MAX, Frame, frame_bytes};
use super::{MatrixError, Result};

const CHUNK_BYTES: usize = 1 << 19;
/// Chunks of frames ready at a time.
const CHUNKS: usize = 4;

/// Something a scan wants, in its order.
pub(crate) enum Request {
    /// The frames that lie here.
    Frames(Range<u64>),
    /// Blocks of a vector.
    Vector {
        /// Where it lies.
        file: Arc<dyn DiskFile>,
        /// From where on.
        at: u64,
        /// How many bytes: of whole blocks.
        bytes: usize,
    },
}

/// What was read, for all readers.
#[derive(Clone)]
enum Piece {
    /// Frames, cut anywhere; where they lie, and whether they are the last of their request.
    Frames(Arc<Buffer>, Range<usize>, u64, bool),
    /// Blocks.
    Vector(Arc<Buffer>),
}

/// The links of a cell, or some of them.
pub(crate) struct Cell<'a> {
    /// The block of the sources.
    pub(crate) from: u16,
    /// The block of the targets.
    pub(crate) to: u16,
    /// The links.
    pub(crate) positions: &'a [u32],
}

/// The end of a thread of the scan.
pub(crate) struct Reader {
    matrix: Matrix,
    pieces: Receiver<Result<Piece>>,
    buffers: Sender<Buffer>,
    vectors: Sender<Buffer>,
    /// The beginning of a frame whose end is in the next piece.
    carry: Vec<u8>,
    frame: Frame,
    /// After the channels, whose end is what ends the thread.
    _thread: Arc<Thread>,
}

/// Waits for a thread, so that its memory is free before the next scan wants as much.
struct Thread(Option<std::thread::JoinHandle<()>>);

impl Drop for Thread {
    fn drop(&mut self) {
        // One that panicked has been noticed: its channels ended early.
        self.0.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Reader {
    /// Begins to read, for one thread or several that each look at everything. Vectors come in pieces of at most `piece_bytes`, of
    /// which `pieces_ahead` are in memory: with one, the next is read when it has been given back.
    pub(crate) fn start<const READERS: usize>(
        matrix: &Matrix,
        (pieces_ahead, piece_bytes): (usize, usize),
        requests: impl Iterator<Item = Request> + Send + 'static,
    ) -> [Self; READERS] {
        let (buffers, take_buffers) = channel();
        let (vectors, take_vectors) = channel();
        for _ in 0..CHUNKS {
            let _ = buffers.send(Buffer::new(CHUNK_BYTES));
        }
        for _ in 0..pieces_ahead.max(1) {
            let _ = vectors.send(Buffer::new(piece_bytes));
        }
        let ends: [_; READERS] = std::array::from_fn(|_| sync_channel(CHUNKS + pieces_ahead.max(1)));
        let ahead = Ahead {
            matrix: matrix.clone(),
            pieces: ends.iter().map(|(give, _)| give.clone()).collect(),
            buffers: take_buffers,
            vectors: take_vectors,
        };
        let thread = Arc::new(Thread(Some(std::thread::spawn(move || ahead.run(requests)))));
        ends.map(|(_, pieces)| Self {
            matrix: matrix.clone(),
            pieces,
            buffers: buffers.clone(),
            vectors: vectors.clone(),
            carry: Vec::new(),
            frame: Frame { positions: Vec::with_capacity(FRAME_LINKS_MAX), ..Frame::default() },
            _thread: thread.clone(),
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

    /// Calls `each` with the links of the request that is next in order, cell by cell, as far as `wants` says so of the blocks of their
    /// sources and targets.
    pub(crate) fn frames(
        &mut self,
        wants: impl Fn(u16, u16) -> bool,
        mut each: impl FnMut(Cell<'_>),
    ) -> Result<()> {
        loop {
            let Piece::Frames(buffer, range, offset, last) = self.next()? else {
                return Err(self.disorder());
            };
            let done = self.piece(buffer.bytes().get(range).unwrap_or_default(), last, &wants, &mut each);
            done.map_err(|what| MatrixError::corrupt(self.matrix.path(), offset, what))?;
            if let Some(buffer) = Arc::into_inner(buffer) {
                let _ = self.buffers.send(buffer);
            }
            if last {
                return Ok(());
            }
        }
    }

    /// Goes through a piece of a request.
    fn piece(
        &mut self,
        mut bytes: &[u8],
        last: bool,
        wants: &impl Fn(u16, u16) -> bool,
        each: &mut impl FnMut(Cell<'_>),
    ) -> std::result::Result<(), String> {
        // A frame that began in the piece before.
        while !self.carry.is_empty() && !bytes.is_empty() {
            let total = frame_bytes(&self.carry).transpose()?;
            let wanted = total.unwrap_or(frame::HEAD_BYTES);
            let (now, later) = bytes.split_at(bytes.len().min(wanted - self.carry.len()));
            self.carry.extend_from_slice(now);
            bytes = later;
            if total == Some(self.carry.len()) {
                take(&self.carry, &mut self.frame, wants, each)?;
                self.carry.clear();
            }
        }
        while let Some(total) = frame_bytes(bytes).transpose()? {
            let Some((frame, rest)) = bytes.split_at_checked(total) else { break };
            take(frame, &mut self.frame, wants, each)?;
            bytes = rest;
        }
        self.carry.extend_from_slice(bytes);
        if last && !self.carry.is_empty() {
            return Err("a frame is cut short".into());
        }
        Ok(())
    }
}

/// Decodes a frame if it is wanted.
fn take(
    bytes: &[u8],
    frame: &mut Frame,
    wants: &impl Fn(u16, u16) -> bool,
    each: &mut impl FnMut(Cell<'_>),
) -> std::result::Result<(), String> {
    if frame::cell_of(bytes).is_some_and(|(from, to)| !wants(from, to)) {
        return Ok(());
    }
    frame.read(bytes)?;
    each(Cell { from: frame.from, to: frame.to, positions: &frame.positions });
    Ok(())
}

/// Reads what will be wanted.
struct Ahead {
    matrix: Matrix,
    pieces: Vec<SyncSender<Result<Piece>>>,
    buffers: Receiver<Buffer>,
    vectors: Receiver<Buffer>,
}

impl Ahead {
    fn run(self, requests: impl Iterator<Item = Request>) {
        for request in requests {
            let done = match request {
                Request::Frames(range) => self.frames(range),
                Request::Vector { file, at, bytes } => self.vector(&*file, at, bytes),
            };
            match done {
                Ok(true) => {}
                // The scan has ended.
                Ok(false) => return,
                Err(e) => {
                    // One is told; the others find that nothing more comes.
                    if let Some(one) = self.pieces.first() {
                        let _ = one.send(Err(e));
                    }
                    return;
                }
            }
        }
    }

    /// Hands it to all readers, and keeps none: the last one who has it gives it back. False if one of them has ended.
    fn give(&self, piece: Piece) -> bool {
        let Some((last, others)) = self.pieces.split_last() else { return false };
        others.iter().all(|reader| reader.send(Ok(piece.clone())).is_ok()) && last.send(Ok(piece)).is_ok()
    }

    fn frames(&self, range: Range<u64>) -> Result<bool> {
        let (file, len) = self.matrix.file();
        let mut at = range.start;
        loop {
            let Ok(mut buffer) = self.buffers.recv() else { return Ok(false) };
            let ready = match at < range.end {
                true => read_around(&**file, len, at, range.end - at, &mut buffer)?,
                false => 0..0,
            };
            let offset = at;
            at += ready.len() as u64;
            let last = at >= range.end;
            if !self.give(Piece::Frames(Arc::new(buffer), ready, offset, last)) {
                return Ok(false);
            }
            if last {
                return Ok(true);
            }
        }
    }

    fn vector(&self, file: &dyn DiskFile, at: u64, bytes: usize) -> Result<bool> {
        let Ok(mut blocks) = self.vectors.recv() else { return Ok(false) };
        if let Some(wanted) = blocks.bytes_mut().get_mut(..bytes) {
            let read = file.read_exact_at(wanted, at);
            read.map_err(|e| MatrixError::io("read", file.path(), e))?;
        }
        Ok(self.give(Piece::Vector(Arc::new(blocks))))
    }
}
