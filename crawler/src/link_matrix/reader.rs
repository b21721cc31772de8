//! Reading ahead: one thread reads what a scan will want next, another decodes it, in a few buffers that go round.
//!
//! ```text
//!   requests ─▶ Ahead: reads ──pieces──▶ Decoder: frames to links ──batches──▶ Reader: the scan, or one for each of its threads
//!                  ▲────buffers─────────────┘  ▲──────batches────────────────────┘
//! ```
//!
//! All readers of a scan get the same; what the last one has done with goes back. When the last one ends, so have the threads.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use webbase_storage::disk::DiskFile;

use super::direct::{Buffer, read_around};
use super::file::Matrix;
use super::frame::{self, FRAME_LINKS_MAX, frame_bytes};
use super::{MatrixError, Result};

const CHUNK_BYTES: usize = 1 << 19;
/// Chunks of frames ready at a time.
const CHUNKS: usize = 4;
/// A batch of links is handed on when it has so many; it may have a frame more.
const BATCH_LINKS: usize = 1 << 16;
/// Batches of links ready at a time.
const BATCHES: usize = 4;

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

/// What was read.
enum Piece {
    /// Frames, cut anywhere; the last piece of its request or not.
    Bytes(Buffer, Range<usize>, u64, bool),
    /// Blocks.
    Vector(Buffer),
}

/// What was decoded, for all readers.
#[derive(Clone)]
enum Decoded {
    /// Links, and whether they are the last of their request.
    Links(Arc<Batch>, bool),
    /// Blocks.
    Vector(Arc<Buffer>),
}

/// Links of some cells, one after the other.
struct Batch {
    positions: Vec<u32>,
    /// Of each cell its blocks, and where its positions end.
    cells: Vec<(u16, u16, usize)>,
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

/// The scan's end.
pub(crate) struct Reader {
    matrix: Matrix,
    decoded: Receiver<Result<Decoded>>,
    batches: Sender<Batch>,
    vectors: Sender<Buffer>,
    /// After the channels, whose end is what ends the threads.
    _threads: Arc<Threads>,
}

/// Waits for threads, so that their memory is free before the next scan wants as much.
struct Threads(Vec<std::thread::JoinHandle<()>>);

impl Drop for Threads {
    fn drop(&mut self) {
        // One that panicked has been noticed: its channels ended early.
        self.0.drain(..).for_each(|thread| drop(thread.join()));
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
        let (give_pieces, pieces) = sync_channel(CHUNKS);
        let (buffers, take_buffers) = channel();
        let (batches, take_batches) = channel();
        let (vectors, take_vectors) = channel();
        for _ in 0..CHUNKS {
            let _ = buffers.send(Buffer::new(CHUNK_BYTES));
        }
        for _ in 0..BATCHES {
            let _ = batches.send(Batch::new());
        }
        for _ in 0..pieces_ahead.max(1) {
            let _ = vectors.send(Buffer::new(piece_bytes));
        }
        let ends: [_; READERS] = std::array::from_fn(|_| sync_channel(BATCHES));
        let ahead = Ahead {
            matrix: matrix.clone(),
            pieces: give_pieces,
            buffers: take_buffers,
            vectors: take_vectors,
        };
        let decoder = Decoder {
            matrix: matrix.clone(),
            pieces,
            buffers,
            batches: take_batches,
            decoded: ends.iter().map(|(give, _)| give.clone()).collect(),
            carry: Vec::new(),
        };
        let reading = std::thread::spawn(move || ahead.run(requests));
        let decoding = std::thread::spawn(move || decoder.run());
        let threads = Arc::new(Threads(vec![reading, decoding]));
        ends.map(|(_, decoded)| Self {
            matrix: matrix.clone(),
            decoded,
            batches: batches.clone(),
            vectors: vectors.clone(),
            _threads: threads.clone(),
        })
    }

    fn next(&self) -> Result<Decoded> {
        match self.decoded.recv() {
            Ok(decoded) => decoded,
            Err(_) => {
                let ended = std::io::Error::other("the threads that read ahead have ended");
                Err(MatrixError::io("read", self.matrix.path(), ended))
            }
        }
    }

    fn disorder(&self) -> MatrixError {
        MatrixError::corrupt(self.matrix.path(), 0, "a frame is not where it should be")
    }

    /// The blocks that are next in order. To be given back.
    pub(crate) fn vector(&mut self) -> Result<Arc<Buffer>> {
        match self.next()? {
            Decoded::Vector(blocks) => Ok(blocks),
            Decoded::Links(..) => Err(self.disorder()),
        }
    }

    pub(crate) fn give_back(&self, blocks: Arc<Buffer>) {
        if let Some(blocks) = Arc::into_inner(blocks) {
            // Nobody reads ahead any more: nobody needs it.
            let _ = self.vectors.send(blocks);
        }
    }

    /// Calls `each` with the links of the request that is next in order, cell by cell.
    pub(crate) fn frames(&mut self, mut each: impl FnMut(Cell<'_>)) -> Result<()> {
        loop {
            let Decoded::Links(batch, last) = self.next()? else { return Err(self.disorder()) };
            let mut begin = 0;
            for (from, to, end) in &batch.cells {
                let positions = batch.positions.get(begin..*end).unwrap_or_default();
                each(Cell { from: *from, to: *to, positions });
                begin = *end;
            }
            if let Some(batch) = Arc::into_inner(batch) {
                let _ = self.batches.send(batch);
            }
            if last {
                return Ok(());
            }
        }
    }
}

/// Decodes what was read.
struct Decoder {
    matrix: Matrix,
    pieces: Receiver<Result<Piece>>,
    buffers: Sender<Buffer>,
    batches: Receiver<Batch>,
    decoded: Vec<SyncSender<Result<Decoded>>>,
    /// The beginning of a frame whose end is in the next piece.
    carry: Vec<u8>,
}

impl Decoder {
    fn run(mut self) {
        while let Ok(piece) = self.pieces.recv() {
            let done = match piece {
                Ok(Piece::Vector(blocks)) => Ok(self.give(Decoded::Vector(Arc::new(blocks)))),
                Ok(Piece::Bytes(buffer, range, offset, last)) => {
                    self.piece(&buffer, range, offset, last).inspect(|_| {
                        let _ = self.buffers.send(buffer);
                    })
                }
                Err(e) => Err(e),
            };
            match done {
                Ok(true) => {}
                // The scan has ended.
                Ok(false) => return,
                Err(e) => {
                    // One is told; the others find that nothing more comes.
                    if let Some(one) = self.decoded.first() {
                        let _ = one.send(Err(e));
                    }
                    return;
                }
            }
        }
    }

    /// Hands it to all readers, and keeps none: the last one who has it gives it back. False if one of them has ended.
    fn give(&self, decoded: Decoded) -> bool {
        let Some((last, others)) = self.decoded.split_last() else { return false };
        others.iter().all(|reader| reader.send(Ok(decoded.clone())).is_ok()) && last.send(Ok(decoded)).is_ok()
    }

    /// Decodes a piece of a request; false if nobody wants it any more.
    fn piece(&mut self, buffer: &Buffer, range: Range<usize>, offset: u64, last: bool) -> Result<bool> {
        let path = self.matrix.path().to_path_buf();
        let wrong = |what: String| MatrixError::corrupt(&path, offset, what);
        let mut bytes = buffer.bytes().get(range).unwrap_or_default();
        let Some(mut batch) = self.batch() else { return Ok(false) };
        // A frame that began in the piece before.
        while !self.carry.is_empty() && !bytes.is_empty() {
            let total = frame_bytes(&self.carry).transpose().map_err(wrong)?;
            let wanted = total.unwrap_or(frame::HEAD_BYTES);
            let (now, later) = bytes.split_at(bytes.len().min(wanted - self.carry.len()));
            self.carry.extend_from_slice(now);
            bytes = later;
            if total == Some(self.carry.len()) {
                batch.read(&self.carry).map_err(wrong)?;
                self.carry.clear();
            }
        }
        while let Some(total) = frame_bytes(bytes).transpose().map_err(wrong)? {
            let Some((frame, rest)) = bytes.split_at_checked(total) else { break };
            if batch.positions.len() >= BATCH_LINKS {
                if !self.give(Decoded::Links(Arc::new(batch), false)) {
                    return Ok(false);
                }
                let Some(empty) = self.batch() else { return Ok(false) };
                batch = empty;
            }
            batch.read(frame).map_err(wrong)?;
            bytes = rest;
        }
        self.carry.extend_from_slice(bytes);
        if last && !self.carry.is_empty() {
            return Err(wrong("a frame is cut short".into()));
        }
        Ok(self.give(Decoded::Links(Arc::new(batch), last)))
    }

    fn batch(&self) -> Option<Batch> {
        let mut batch = self.batches.recv().ok()?;
        batch.positions.clear();
        batch.cells.clear();
        Some(batch)
    }
}

impl Batch {
    /// Room for what a batch may have, so that it never moves.
    fn new() -> Self {
        Self { positions: Vec::with_capacity(BATCH_LINKS + FRAME_LINKS_MAX), cells: Vec::new() }
    }

    fn read(&mut self, bytes: &[u8]) -> std::result::Result<(), String> {
        let (from, to) = frame::read_onto(bytes, &mut self.positions)?;
        self.cells.push((from, to, self.positions.len()));
        Ok(())
    }
}

/// Reads what will be wanted.
struct Ahead {
    matrix: Matrix,
    pieces: SyncSender<Result<Piece>>,
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
                    let _ = self.pieces.send(Err(e));
                    return;
                }
            }
        }
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
            if self.pieces.send(Ok(Piece::Bytes(buffer, ready, offset, last))).is_err() {
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
        Ok(self.pieces.send(Ok(Piece::Vector(blocks))).is_ok())
    }
}
