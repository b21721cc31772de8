//! Reading ahead: a thread reads what a scan will want next, in a few buffers that go round.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use webbase_storage::disk::DiskFile;

use super::direct::{BLOCK_BYTES, Buffer, read_around};
use super::file::Matrix;
use super::frame::{Frame, frame_bytes};
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
        /// From which block on.
        first: usize,
        /// How many.
        count: usize,
    },
}

/// What was read.
pub(crate) enum Piece {
    /// Frames, cut anywhere; the last piece of its request or not.
    Bytes(Buffer, Range<usize>, u64, bool),
    /// Blocks.
    Vector(Buffer),
}

/// The scan's end.
pub(crate) struct Reader {
    matrix: Matrix,
    pieces: Receiver<Result<Piece>>,
    buffers: Sender<Buffer>,
    vectors: Sender<Buffer>,
    carry: Vec<u8>,
    frame: Frame,
}

struct Ahead {
    matrix: Matrix,
    pieces: SyncSender<Result<Piece>>,
    buffers: Receiver<Buffer>,
    vectors: Receiver<Buffer>,
}

impl Reader {
    /// Begins to read; vectors in pieces of at most `vector_blocks` blocks, of which two are in memory.
    pub(crate) fn start(
        matrix: &Matrix,
        vector_blocks: usize,
        requests: impl Iterator<Item = Request> + Send + 'static,
    ) -> Self {
        let (give_pieces, pieces) = sync_channel(CHUNKS);
        let (buffers, take_buffers) = channel();
        let (vectors, take_vectors) = channel();
        for _ in 0..CHUNKS {
            let _ = buffers.send(Buffer::new(CHUNK_BYTES));
        }
        for _ in 0..2 {
            let _ = vectors.send(Buffer::for_blocks(vector_blocks));
        }
        let ahead = Ahead {
            matrix: matrix.clone(),
            pieces: give_pieces,
            buffers: take_buffers,
            vectors: take_vectors,
        };
        std::thread::spawn(move || ahead.run(requests));
        let matrix = matrix.clone();
        Self { matrix, pieces, buffers, vectors, carry: Vec::new(), frame: Frame::default() }
    }

    fn piece(&self) -> Result<Piece> {
        match self.pieces.recv() {
            Ok(piece) => piece,
            Err(_) => {
                let ended = std::io::Error::other("the thread that reads ahead has ended");
                Err(MatrixError::io("read", self.matrix.path(), ended))
            }
        }
    }

    /// The blocks that are next in order. To be given back.
    pub(crate) fn vector(&mut self) -> Result<Buffer> {
        match self.piece()? {
            Piece::Vector(blocks) => Ok(blocks),
            Piece::Bytes(_, _, offset, _) => Err(self.disorder(offset)),
        }
    }

    pub(crate) fn give_back(&self, blocks: Buffer) {
        // Nobody reads ahead any more: nobody needs it.
        let _ = self.vectors.send(blocks);
    }

    fn disorder(&self, offset: u64) -> MatrixError {
        MatrixError::corrupt(self.matrix.path(), offset, "a frame is not where it should be")
    }

    /// Calls `each` with the frames of the request that is next in order.
    pub(crate) fn frames(&mut self, mut each: impl FnMut(&Frame)) -> Result<()> {
        self.carry.clear();
        loop {
            let Piece::Bytes(buffer, range, offset, last) = self.piece()? else {
                return Err(self.disorder(0));
            };
            let mut bytes = buffer.bytes().get(range).unwrap_or_default();
            let wrong = |what: String| MatrixError::corrupt(self.matrix.path(), offset, what);
            // A frame that began in the piece before.
            while !self.carry.is_empty() && !bytes.is_empty() {
                let total = frame_bytes(&self.carry).transpose().map_err(wrong)?;
                let wanted = total.unwrap_or(super::frame::HEAD_BYTES);
                let (now, later) = bytes.split_at(bytes.len().min(wanted - self.carry.len()));
                self.carry.extend_from_slice(now);
                bytes = later;
                if total == Some(self.carry.len()) {
                    self.frame.read(&self.carry).map_err(wrong)?;
                    each(&self.frame);
                    self.carry.clear();
                }
            }
            while let Some(total) = frame_bytes(bytes).transpose().map_err(wrong)? {
                let Some((frame, rest)) = bytes.split_at_checked(total) else { break };
                self.frame.read(frame).map_err(wrong)?;
                each(&self.frame);
                bytes = rest;
            }
            self.carry.extend_from_slice(bytes);
            let _ = self.buffers.send(buffer);
            if last {
                let cut = !self.carry.is_empty();
                return if cut { Err(self.disorder(offset)) } else { Ok(()) };
            }
        }
    }
}

impl Ahead {
    fn run(self, requests: impl Iterator<Item = Request>) {
        for request in requests {
            let done = match request {
                Request::Frames(range) => self.frames(range),
                Request::Vector { file, first, count } => self.vector(&*file, first, count),
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

    fn vector(&self, file: &dyn DiskFile, first: usize, count: usize) -> Result<bool> {
        let Ok(mut blocks) = self.vectors.recv() else { return Ok(false) };
        if let Some(wanted) = blocks.bytes_mut().get_mut(..count * BLOCK_BYTES as usize) {
            let read = file.read_exact_at(wanted, first as u64 * BLOCK_BYTES);
            read.map_err(|e| MatrixError::io("read", file.path(), e))?;
        }
        Ok(self.pieces.send(Ok(Piece::Vector(blocks))).is_ok())
    }
}
