//! Reading ahead: a few threads read what a scan will want next, into buffers that go round.
//!
//! ```text
//!   requests ─▶ jobs, one a buffer ─▶ each thread: takes the next, reads it, waits for its turn ──pieces──▶ Reader, one for each
//!                     ▲────buffers───────────────────────────────────────────────────────────────────────────┘  thread of the scan
//! ```
//!
//! A disk gives more where several reads are under way. Pieces come in the order of the requests all the same. When the last reader ends,
//! so do the threads.

use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use webbase_storage::disk::DiskFile;

use super::direct::{ALIGN, Buffer, read_around};
use super::file::Matrix;
use super::{MatrixError, Result};

/// A chunk of frames: at 40 million pages as much as the cells have whose sums stay in the cache (`on_disk/strip.rs`).
pub(super) const CHUNK_BYTES: usize = 3 << 18;
/// Chunks of frames in memory.
pub(super) const CHUNKS: usize = 4;
/// Reads under way.
const THREADS: usize = 3;

/// Something a scan wants, in its order.
pub(crate) enum Request {
    /// The frames that lie in these places, one after the other.
    Frames(Vec<Range<u64>>),
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

impl Request {
    /// Frames in these places; places that touch are one.
    pub(crate) fn frames(places: impl Iterator<Item = Range<u64>>) -> Self {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for place in places.filter(|place| !place.is_empty()) {
            match ranges.last_mut().filter(|last| last.end == place.start) {
                Some(last) => last.end = place.end,
                None => ranges.push(place),
            }
        }
        Self::Frames(ranges)
    }
}

/// What was read, for all readers.
#[derive(Clone)]
pub(super) enum Piece {
    /// Frames, cut anywhere, and whether they are the last of their request.
    Frames(Arc<Chunk>, bool),
    /// Blocks.
    Vector(Arc<Buffer>),
}

/// Frames in memory: parts of a buffer, and where each lies in the file.
pub(super) struct Chunk {
    pub(super) buffer: Buffer,
    pub(super) parts: Vec<(Range<usize>, u64)>,
}

/// One buffer to be filled.
enum Job {
    /// Ranges of the file, each to where in the buffer it has its first block; and whether they are the last of their request.
    Frames(Vec<(usize, Range<u64>)>, bool),
    Vector {
        file: Arc<dyn DiskFile>,
        at: u64,
        bytes: usize,
    },
}

/// The jobs of a request.
fn jobs(request: Request) -> Vec<Job> {
    let ranges = match request {
        Request::Vector { file, at, bytes } => return vec![Job::Vector { file, at, bytes }],
        Request::Frames(ranges) => ranges,
    };
    let (mut jobs, mut parts, mut filled) = (Vec::new(), Vec::new(), 0);
    for mut range in ranges {
        while !range.is_empty() {
            if filled >= CHUNK_BYTES {
                jobs.push(Job::Frames(std::mem::take(&mut parts), false));
                filled = 0;
            }
            // A read begins at a whole block of the file.
            let before = range.start % ALIGN;
            let here = (range.end - range.start).min((CHUNK_BYTES - filled) as u64 - before);
            parts.push((filled, range.start..range.start + here));
            filled += (before + here).next_multiple_of(ALIGN) as usize;
            range.start += here;
        }
    }
    jobs.push(Job::Frames(parts, true));
    jobs
}

/// What the threads share.
pub(super) struct Ahead {
    matrix: Matrix,
    todo: Mutex<Todo>,
    turn: Mutex<Turn>,
    next_turn: Condvar,
}

/// Jobs that nobody has begun, in order, and free buffers for them.
struct Todo {
    jobs: Box<dyn Iterator<Item = Job> + Send>,
    begun: u64,
    buffers: Receiver<Buffer>,
    vectors: Receiver<Buffer>,
}

/// Whose turn it is to give, and to whom: to nobody, when the scan has ended.
struct Turn {
    given: u64,
    readers: Vec<SyncSender<Result<Piece>>>,
}

/// Waits for threads, so that their memory is free before the next scan wants as much.
pub(super) struct Threads(Vec<std::thread::JoinHandle<()>>);

impl Drop for Threads {
    fn drop(&mut self) {
        // One that panicked has been noticed: its channels ended early.
        self.0.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// When a thread panics, the others and the readers must not wait for its turn.
struct EndsScan<'a>(&'a Ahead);

impl Drop for EndsScan<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.turn.lock().unwrap_or_else(PoisonError::into_inner).readers.clear();
            self.0.next_turn.notify_all();
        }
    }
}

impl Ahead {
    /// Begins to read, into these buffers for frames and for vectors.
    pub(super) fn start(
        matrix: &Matrix,
        requests: Vec<Request>,
        (buffers, vectors): (Receiver<Buffer>, Receiver<Buffer>),
        readers: Vec<SyncSender<Result<Piece>>>,
    ) -> Threads {
        let jobs = Box::new(requests.into_iter().flat_map(jobs));
        let ahead = Arc::new(Self {
            matrix: matrix.clone(),
            todo: Mutex::new(Todo { jobs, begun: 0, buffers, vectors }),
            turn: Mutex::new(Turn { given: 0, readers }),
            next_turn: Condvar::new(),
        });
        let thread = |_| {
            let ahead = ahead.clone();
            std::thread::spawn(move || ahead.run())
        };
        Threads((0..THREADS).map(thread).collect())
    }

    fn run(&self) {
        let _ends = EndsScan(self);
        while let Some((number, job, buffer)) = self.begin() {
            let piece = self.read(job, buffer);
            if !self.give(number, piece) {
                return;
            }
        }
    }

    /// The next job, its number, and a buffer for it; none when all are begun, or the scan has ended.
    fn begin(&self) -> Option<(u64, Job, Buffer)> {
        let mut todo = self.todo.lock().unwrap_or_else(PoisonError::into_inner);
        let job = todo.jobs.next()?;
        // Who comes first gets the first buffer that is free: so what is wanted first is never without one.
        let free = if matches!(job, Job::Frames(..)) { &todo.buffers } else { &todo.vectors };
        let buffer = free.recv().ok()?;
        todo.begun += 1;
        Some((todo.begun - 1, job, buffer))
    }

    fn read(&self, job: Job, mut buffer: Buffer) -> Result<Piece> {
        match job {
            Job::Frames(parts, last) => {
                let (file, len) = self.matrix.file();
                let mut ready = Vec::with_capacity(parts.len());
                for (at, range) in parts {
                    let into = buffer.bytes_mut().get_mut(at..).unwrap_or_default();
                    let read = read_around(&**file, len, range.start, range.end - range.start, into)?;
                    ready.push((at + read.start..at + read.end, range.start));
                }
                Ok(Piece::Frames(Arc::new(Chunk { buffer, parts: ready }), last))
            }
            Job::Vector { file, at, bytes } => {
                if let Some(wanted) = buffer.bytes_mut().get_mut(..bytes) {
                    let read = file.read_exact_at(wanted, at);
                    read.map_err(|e| MatrixError::io("read", file.path(), e))?;
                }
                Ok(Piece::Vector(Arc::new(buffer)))
            }
        }
    }

    /// Hands it to all readers when it is its turn, and keeps none: the last one who has it gives it back. False if the scan has ended.
    fn give(&self, number: u64, piece: Result<Piece>) -> bool {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = |turn: &mut Turn| turn.given != number && !turn.readers.is_empty();
        let mut turn = self.next_turn.wait_while(turn, waiting).unwrap_or_else(PoisonError::into_inner);
        let given = match (turn.readers.split_last(), piece) {
            (Some((last, others)), Ok(piece)) => {
                others.iter().all(|reader| reader.send(Ok(piece.clone())).is_ok())
                    && last.send(Ok(piece)).is_ok()
            }
            (Some((one, _)), Err(e)) => {
                // One is told; the others find that nothing more comes.
                let _ = one.send(Err(e));
                false
            }
            (None, _) => false,
        };
        if !given {
            turn.readers.clear();
        }
        turn.given += 1;
        self.next_turn.notify_all();
        given
    }
}
