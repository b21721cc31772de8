//! What goes by in a stream of WARC: pages to count, cursors to keep, and the record that says that all of it came.
//!
//! A thread of its own unpacks what was written to stdout, so whatever it has seen is out.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use anyhow::{Result, anyhow, bail};
use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use webbase_stream::warc::{Block, Item, Kind, Reader};

/// Pieces that may wait for the thread.
const PIECES: usize = 16;
/// The records that speak of the stream are small, unless a cursor names a place for each of 65 536 ranges; larger blocks need not
/// be held.
const BLOCK_BYTES_MAX: u64 = 4 << 20;

/// What went by so far.
#[derive(Clone, Default)]
pub(super) struct Seen {
    pub(super) pages: u64,
    /// The last place that was told.
    pub(super) cursor: Option<String>,
    /// The last record was there, and so many pages were left out because they are damaged.
    pub(super) ended: Option<u64>,
}

/// Watches a stream.
pub(super) struct Watch {
    pieces: SyncSender<Bytes>,
    thread: JoinHandle<Result<()>>,
    seen: Arc<Mutex<Seen>>,
}

impl Watch {
    pub(super) fn start() -> Watch {
        let (pieces, receiver) = sync_channel(PIECES);
        let seen = Arc::<Mutex<Seen>>::default();
        let shared = seen.clone();
        let thread = std::thread::spawn(move || watch(receiver, &shared));
        Watch { pieces, thread, seen }
    }

    /// Takes a piece that is out.
    ///
    /// # Errors
    /// When what came is no WARC.
    pub(super) fn take(self, piece: Bytes) -> Result<Watch> {
        match self.pieces.send(piece) {
            Ok(()) => Ok(self),
            Err(_) => match self.end() {
                Err(e) => Err(e),
                Ok(_) => bail!("the stream goes on behind its end"),
            },
        }
    }

    pub(super) fn seen(&self) -> Seen {
        self.seen.lock().clone()
    }

    /// Waits until everything that came was looked at.
    ///
    /// # Errors
    /// As [`Watch::take`].
    pub(super) fn end(self) -> Result<Seen> {
        drop(self.pieces);
        self.thread.join().map_err(|_| anyhow!("looking at the stream failed"))??;
        Ok(self.seen.lock().clone())
    }
}

fn watch(receiver: Receiver<Bytes>, seen: &Mutex<Seen>) -> Result<()> {
    let source = Pieces { receiver, piece: Bytes::new() };
    let mut reader = Reader::new(source)?.with_block_bytes_max(BLOCK_BYTES_MAX);
    while let Some(item) = reader.next()? {
        let record = match item {
            Item::Record(record) => record,
            Item::Damage(damage) => bail!("what came is damaged at byte {}: {}", damage.offset, damage.what),
        };
        match (record.kind(), &record.block) {
            (_, Block::Damaged(_, what)) => bail!("what came is damaged at byte {}: {what}", record.offset),
            (Kind::Other(name), Block::Whole(block)) if name == "metadata" => {
                let (mut seen, mut damaged) = (seen.lock(), 0);
                for line in String::from_utf8_lossy(block).lines() {
                    match line.split_once(": ") {
                        Some(("webbase-cursor", cursor)) => seen.cursor = Some(cursor.to_owned()),
                        Some(("webbase-end", _)) => seen.ended = Some(0),
                        Some(("webbase-damaged", count)) => damaged = count.parse().unwrap_or(0),
                        _ => {}
                    }
                }
                seen.ended = seen.ended.map(|_| damaged);
            }
            (Kind::Response | Kind::Resource, _) => seen.lock().pages += 1,
            _ => {}
        }
    }
    Ok(())
}

/// Pieces as one reader.
struct Pieces {
    receiver: Receiver<Bytes>,
    piece: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.recv() {
                Ok(piece) => self.piece = piece,
                Err(_) => return Ok(0),
            }
        }
        let count = self.piece.len().min(into.len());
        if let Some(into) = into.get_mut(..count) {
            self.piece.copy_to_slice(into);
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use webbase_stream::warc::{Form, Writer};

    fn stream() -> Vec<u8> {
        let (mut writer, mut out) = (Writer::new(Form::Gzip), Vec::new());
        writer.warcinfo(1, &[("software", "test")], &mut out);
        writer.resource("http://a.example/", 2, "text/plain", b"hello", &mut out);
        writer.metadata(3, &[("webbase-cursor", "w1one")], &mut out);
        writer.resource("http://b.example/", 4, "text/plain", b"hello again", &mut out);
        let end = [("webbase-end", "true"), ("webbase-damaged", "3"), ("webbase-cursor", "w1two")];
        writer.metadata(5, &end, &mut out);
        out
    }

    fn watched(bytes: &[u8], piece: usize) -> Result<Seen> {
        let mut watch = Watch::start();
        for piece in bytes.chunks(piece) {
            watch = watch.take(Bytes::copy_from_slice(piece))?;
        }
        watch.end()
    }

    #[test]
    fn cursors_pages_and_the_end_are_seen_however_the_stream_is_cut() {
        let bytes = stream();
        for piece in [1, 7, 100, bytes.len()] {
            let seen = watched(&bytes, piece).unwrap();
            assert_eq!((seen.pages, seen.cursor.as_deref(), seen.ended), (2, Some("w1two"), Some(3)));
        }
    }

    #[test]
    fn a_stream_that_is_cut_off_has_no_end() {
        let bytes = stream();
        let cut = watched(&bytes[..bytes.len() - 40], 64);
        assert!(cut.is_err() || cut.unwrap().ended.is_none());
    }
}
