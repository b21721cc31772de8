//! A connection's bytes: frames out of what is read, and frames into as few writes as possible.

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use super::frame::{self, FrameError, HEADER_BYTES, Header};
use super::pool;

/// A byte stream both ways: a socket, with or without TLS.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Socket for S {}

/// Bytes asked of the system at once.
const READ_BYTES: usize = 64 << 10;
/// Frames from this size on are read straight into a buffer of their own.
const LARGE_BYTES: usize = 24 << 10;
/// Payloads up to this size are copied when read, so that a small record does not hold a large buffer, and when written,
/// because that is cheaper than an entry in a vectored write.
const COPIED_BYTES: usize = 4 << 10;
const COPIED_OUT_BYTES: usize = 12 << 10;
/// Buffers in one write.
const SLICES: usize = 64;

/// What was read and not yet taken as frames.
#[derive(Default)]
pub(crate) struct Input {
    buffer: BytesMut,
    /// The header of the frame that comes next, once it was checked.
    header: Option<Header>,
    /// What follows that header, where it is much; the header is then taken off the buffer.
    large: Option<Vec<u8>>,
}

impl Input {
    /// Reads once. 0 bytes is the end.
    pub(crate) fn poll_fill<S: Socket>(
        &mut self,
        socket: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if let (Some(header), Some(large)) = (self.header, &mut self.large) {
            let missing = header.rest_bytes().saturating_sub(large.len());
            if missing > 0 {
                return pin!(socket.read_buf(&mut large.limit(missing))).poll(cx);
            }
        }
        if self.buffer.capacity() - self.buffer.len() < LARGE_BYTES + HEADER_BYTES {
            self.buffer.reserve(READ_BYTES);
        }
        pin!(socket.read_buf(&mut self.buffer)).poll(cx)
    }

    /// The next frame's header, whether or not its payload has come.
    pub(crate) fn peek(&mut self) -> Result<Option<Header>, FrameError> {
        if self.header.is_none() {
            let Some(bytes) = self.buffer.first_chunk() else { return Ok(None) };
            let header = Header::decode(bytes)?;
            self.header = Some(header);
            self.buffer.advance(HEADER_BYTES);
            if header.rest_bytes() > LARGE_BYTES {
                let mut large = pool::take(header.rest_bytes());
                let here = self.buffer.split_to(header.rest_bytes().min(self.buffer.len()));
                large.extend_from_slice(&here);
                self.large = Some(large);
            }
        }
        Ok(self.header)
    }

    /// The next whole frame's header; its payload is then taken with [`Input::payload`].
    pub(crate) fn next(&mut self) -> Result<Option<Header>, FrameError> {
        let header = self.peek()?;
        let have = self.large.as_ref().map_or(self.buffer.len(), Vec::len);
        Ok(header.filter(|h| have >= h.rest_bytes()))
    }

    /// Hands the payload of the frame that `next` announced to `take`, in place, and goes on behind it.
    pub(crate) fn with_payload<R>(
        &mut self,
        header: &Header,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, FrameError> {
        self.header = None;
        if let Some(large) = self.large.take() {
            let large = pool::share(large);
            return header.payload(&large).map(take);
        }
        let rest = self.buffer.get(..header.rest_bytes()).unwrap_or_default();
        let result = header.payload(rest).map(take);
        self.buffer.advance(header.rest_bytes().min(self.buffer.len()));
        result
    }

    /// The payload of the frame that `next` announced, to keep.
    pub(crate) fn payload(&mut self, header: &Header) -> Result<Bytes, FrameError> {
        if let Some(large) = self.large.take() {
            self.header = None;
            let mut large = pool::share(large);
            header.payload(&large)?;
            large.truncate(header.length as usize);
            return Ok(large);
        }
        if header.length as usize <= COPIED_BYTES {
            return self.with_payload(header, Bytes::copy_from_slice);
        }
        self.header = None;
        let mut whole = self.buffer.split_to(header.rest_bytes().min(self.buffer.len()));
        header.payload(&whole)?;
        whole.truncate(header.length as usize);
        Ok(whole.freeze())
    }
}

/// Frames to be written.
#[derive(Default)]
pub(crate) struct Output {
    chunks: VecDeque<Bytes>,
    /// Small things, still growing.
    small: BytesMut,
    bytes: usize,
}

impl Output {
    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Appends a frame with a payload in one piece.
    pub(crate) fn frame(&mut self, header: Header, payload: &Bytes) {
        let before = self.start(&header);
        self.shared(payload);
        if header.is_checked() {
            self.small.extend_from_slice(&frame::check(payload).to_le_bytes());
        }
        self.bytes += before + header.rest_bytes();
    }

    /// Appends a frame with a small payload.
    pub(crate) fn small_frame(&mut self, header: Header, payload: &[u8]) {
        let before = self.start(&header);
        self.small.extend_from_slice(payload);
        if header.is_checked() {
            self.small.extend_from_slice(&frame::check(payload).to_le_bytes());
        }
        self.bytes += before + header.rest_bytes();
    }

    /// Appends a frame of records, which need no check.
    pub(crate) fn records(&mut self, header: Header, records: impl Iterator<Item = Bytes>) {
        let before = self.start(&header);
        for record in records {
            self.shared(&record);
        }
        self.bytes += before + header.rest_bytes();
    }

    fn start(&mut self, header: &Header) -> usize {
        self.small.extend_from_slice(&header.encode());
        HEADER_BYTES
    }

    fn shared(&mut self, bytes: &Bytes) {
        if bytes.len() <= COPIED_OUT_BYTES {
            self.small.extend_from_slice(bytes);
        } else {
            self.chunks.push_back(self.small.split().freeze());
            self.chunks.push_back(bytes.clone());
        }
    }

    /// Takes everything of `other`, behind what is there.
    pub(crate) fn take_all(&mut self, other: &mut Output) {
        if self.is_empty() {
            std::mem::swap(&mut self.chunks, &mut other.chunks);
            std::mem::swap(&mut self.small, &mut other.small);
        } else {
            if !self.small.is_empty() {
                self.chunks.push_back(self.small.split().freeze());
            }
            self.chunks.append(&mut other.chunks);
            if !other.small.is_empty() {
                self.chunks.push_back(other.small.split().freeze());
            }
        }
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Writes once; returns how many bytes.
    pub(crate) fn poll_write<S: Socket>(
        &mut self,
        socket: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let socket = Pin::new(socket);
        let written = if self.chunks.is_empty() {
            socket.poll_write(cx, &self.small)
        } else {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let all = self.chunks.iter().map(Bytes::as_ref).chain(std::iter::once(self.small.as_ref()));
            let mut count = 0;
            for (slice, chunk) in slices.iter_mut().zip(all.filter(|chunk| !chunk.is_empty())) {
                *slice = IoSlice::new(chunk);
                count += 1;
            }
            socket.poll_write_vectored(cx, slices.get(..count).unwrap_or_default())
        };
        written.map_ok(|n| {
            self.advance(n);
            n
        })
    }

    fn advance(&mut self, mut n: usize) {
        self.bytes = self.bytes.saturating_sub(n);
        while let Some(first) = self.chunks.front_mut() {
            if n < first.len() {
                first.advance(n);
                return;
            }
            n -= first.len();
            self.chunks.pop_front();
        }
        self.small.advance(n.min(self.small.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame::{Kind, RECORDS};

    #[tokio::test]
    async fn frames_survive_every_splitting() {
        let payloads: Vec<Bytes> =
            [0, 1, 500, 5000, 70_000, 262_144].iter().map(|&n| Bytes::from(vec![n as u8; n])).collect();
        for piece in [1_usize, 7, 4096, 1 << 20] {
            let (mut near, mut far) = tokio::io::duplex(piece.max(16));
            let mut output = Output::default();
            for (call, payload) in payloads.iter().enumerate() {
                output.frame(Header::new(Kind::Data, call as u32, payload.len()), payload);
                let records = Header { flags: RECORDS, ..Header::new(Kind::Data, 9, payload.len()) };
                output.records(records, [payload.clone()].into_iter());
            }
            let write = async {
                while !output.is_empty() {
                    std::future::poll_fn(|cx| output.poll_write(&mut near, cx)).await.unwrap();
                }
                drop(near);
            };
            let read = async {
                let (mut input, mut got) = (Input::default(), Vec::new());
                while std::future::poll_fn(|cx| input.poll_fill(&mut far, cx)).await.unwrap() > 0 {
                    while let Some(header) = input.next().unwrap() {
                        got.push(input.payload(&header).unwrap());
                    }
                }
                got
            };
            let ((), got) = tokio::join!(write, read);
            let expected: Vec<Bytes> = payloads.iter().flat_map(|p| [p.clone(), p.clone()]).collect();
            assert_eq!(got, expected, "pieces of {piece}");
        }
    }
}
