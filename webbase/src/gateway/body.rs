//! Bodies of answers: some pieces of memory, or what a task sends piece by piece.

use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use hyper::HeaderMap;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::problem::Problem;

/// Some pieces of memory, one behind the other.
#[derive(Default)]
pub(super) struct Pieces {
    pieces: std::collections::VecDeque<Bytes>,
    left: u64,
}

impl Pieces {
    pub(super) fn new(pieces: impl IntoIterator<Item = Bytes>) -> Pieces {
        let pieces: std::collections::VecDeque<Bytes> =
            pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
        let left = pieces.iter().map(|piece| piece.len() as u64).sum();
        Pieces { pieces, left }
    }

    pub(super) fn len(&self) -> u64 {
        self.left
    }

    /// A part, without a copy.
    pub(super) fn slice(&self, range: Range<u64>) -> Vec<Bytes> {
        let mut at = 0_u64;
        let mut out = Vec::new();
        for piece in &self.pieces {
            let end = at + piece.len() as u64;
            let (from, to) = (range.start.clamp(at, end), range.end.clamp(at, end));
            if from < to {
                out.push(piece.slice((from - at) as usize..(to - at) as usize));
            }
            at = end;
        }
        out
    }

    pub(super) fn into_body(mut self) -> Body {
        match self.pieces.len() {
            0 => Body::empty(),
            1 => Body::from(self.pieces.pop_front().unwrap_or_default()),
            _ => Body::new(self),
        }
    }
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let next = self.pieces.pop_front();
        self.left -= next.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(next.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Why an answer that had begun was cut off: the connection is closed, so that nobody takes it for whole.
#[derive(Debug)]
pub(super) struct CutOff(pub(super) String);

impl std::fmt::Display for CutOff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CutOff {}

/// What a task sends.
pub(super) enum Sent {
    /// A piece of the body.
    Data(Bytes),
    /// What comes behind the body; nothing follows.
    Trailers(HeaderMap),
    /// The answer ends here, and is not whole.
    Failed(CutOff),
}

/// A body that a task makes; dropping it is how the task learns that nobody reads any more.
pub(super) struct Sending {
    pub(super) receiver: mpsc::Receiver<Sent>,
    /// Held as long as the body is sent.
    pub(super) _permit: OwnedSemaphorePermit,
}

impl HttpBody for Sending {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        self.receiver.poll_recv(cx).map(|sent| match sent? {
            Sent::Data(data) => Some(Ok(Frame::data(data))),
            Sent::Trailers(trailers) => Some(Ok(Frame::trailers(trailers))),
            Sent::Failed(why) => Some(Err(why)),
        })
    }
}

/// The body of a request that needs none: taken, so that one that is not HTTP is refused before anything is done.
pub(super) struct NoBody;

/// What a client sends for nothing is read up to here.
const NOTHING_BYTES_MAX: usize = 64 << 10;

impl<S: Send + Sync> FromRequest<S> for NoBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<NoBody, Problem> {
        let read = axum::body::to_bytes(request.into_body(), NOTHING_BYTES_MAX).await;
        read.map(|_| NoBody).map_err(|e| Problem::bad("bad-body", format!("the body cannot be read: {e}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_may_lie_in_several_pieces() {
        let pieces = Pieces::new([Bytes::from_static(b"abc"), Bytes::new(), Bytes::from_static(b"defg")]);
        assert_eq!(pieces.len(), 7);
        for (range, expected) in [(0..7, "abcdefg"), (1..5, "bcde"), (3..4, "d"), (2..3, "c"), (7..7, "")] {
            assert_eq!(pieces.slice(range).concat(), expected.as_bytes());
        }
    }
}
