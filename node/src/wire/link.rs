//! A connection's bytes: frames out of what is read, and frames into as few writes as possible.

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::frame::{self, FrameError, HEADER_BYTES, Header};
use super::pool;

/// A byte stream both ways: a socket, with or without TLS.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// The same as a Unix socket, by which files can be handed over, if it is one.
    fn as_unix(&self) -> Option<&UnixStream> {
        None
    }
}

impl Socket for TcpStream {}

impl Socket for UnixStream {
    fn as_unix(&self) -> Option<&UnixStream> {
        Some(self)
    }
}

#[cfg(feature = "tls")]
impl Socket for tokio_rustls::client::TlsStream<TcpStream> {}
#[cfg(feature = "tls")]
impl Socket for tokio_rustls::server::TlsStream<TcpStream> {}
#[cfg(test)]
impl Socket for tokio::io::DuplexStream {}

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
/// Bytes of an empty buffer that are kept for good.
const KEPT_BYTES: usize = 512 << 10;

/// What was read and not yet taken as frames.
#[derive(Default)]
pub(crate) struct Input {
    buffer: BytesMut,
    /// The header of the frame that comes next, once it was checked.
    header: Option<Header>,
    /// What follows that header, where it is much, and up to a header of what follows that: so the next frame, if it is large,
    /// too, is read to its place from its first byte on.
    large: Option<Vec<u8>>,
}

impl Input {
    /// Begins with a byte that was read already.
    pub(crate) fn begun(first: u8) -> Input {
        Input { buffer: BytesMut::from([first].as_slice()), ..Input::default() }
    }

    /// Reads once. 0 bytes is the end.
    pub(crate) fn poll_fill<S: Socket>(
        &mut self,
        socket: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if let (Some(header), Some(large)) = (self.header, &mut self.large) {
            let missing = header.rest_bytes().saturating_sub(large.len());
            if missing > 0 {
                return pin!(socket.read_buf(&mut large.limit(missing + HEADER_BYTES))).poll(cx);
            }
            take_next(&header, large, &mut self.buffer);
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
                let mut large = pool::take(header.rest_bytes() + HEADER_BYTES);
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

    /// What follows the header of a large frame.
    fn take_large(&mut self, header: &Header) -> Option<Bytes> {
        let mut large = self.large.take()?;
        take_next(header, &mut large, &mut self.buffer);
        Some(pool::share(large))
    }

    /// Hands the payload of the frame that `next` announced to `take`, in place, and goes on behind it.
    pub(crate) fn with_payload<R>(
        &mut self,
        header: &Header,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, FrameError> {
        self.header = None;
        if let Some(large) = self.take_large(header) {
            return header.payload(&large).map(take);
        }
        let rest = self.buffer.get(..header.rest_bytes()).unwrap_or_default();
        let result = header.payload(rest).map(take);
        self.buffer.advance(header.rest_bytes().min(self.buffer.len()));
        result
    }

    /// The payload of the frame that `next` announced, to keep.
    pub(crate) fn payload(&mut self, header: &Header) -> Result<Bytes, FrameError> {
        if let Some(mut large) = self.take_large(header) {
            self.header = None;
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

/// Moves what a large frame has too much, the beginning of the next one, to where that is looked for. Nothing was read there meanwhile.
fn take_next(header: &Header, large: &mut Vec<u8>, buffer: &mut BytesMut) {
    if let Some(next) = large.get(header.rest_bytes()..) {
        buffer.extend_from_slice(next);
    }
    large.truncate(header.rest_bytes());
}

/// Frames to be written: small things, copied behind each other, and large ones between them. The buffer is kept from one
/// write to the next, whatever lies between.
#[derive(Default)]
pub(crate) struct Output {
    small: Vec<u8>,
    /// Each behind so many bytes of `small`.
    large: VecDeque<(usize, Bytes)>,
    /// Bytes of `small` that are written.
    written: usize,
    /// Bytes that wait, of both.
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
        self.start(&header);
        self.shared(payload);
        if header.is_checked() {
            self.small.extend_from_slice(&frame::check(payload).to_le_bytes());
        }
    }

    /// Appends a frame with a small payload.
    pub(crate) fn small_frame(&mut self, header: Header, payload: &[u8]) {
        self.start(&header);
        self.small.extend_from_slice(payload);
        if header.is_checked() {
            self.small.extend_from_slice(&frame::check(payload).to_le_bytes());
        }
    }

    /// Appends a frame of records, which need no check.
    pub(crate) fn records(&mut self, header: Header, records: &[Bytes]) {
        self.start(&header);
        for record in records {
            self.shared(record);
        }
    }

    /// Begins a frame, all of which follows.
    fn start(&mut self, header: &Header) {
        self.small.extend_from_slice(&header.encode());
        self.bytes += HEADER_BYTES + header.rest_bytes();
    }

    fn shared(&mut self, bytes: &Bytes) {
        if bytes.len() <= COPIED_OUT_BYTES {
            self.small.extend_from_slice(bytes);
        } else {
            self.large.push_back((self.small.len(), bytes.clone()));
        }
    }

    /// Takes everything of `other`, if nothing waits here; its buffer gets this one's place.
    pub(crate) fn take_all(&mut self, other: &mut Output) {
        if self.is_empty() {
            std::mem::swap(self, other);
        }
    }

    /// Writes once; returns how many bytes.
    pub(crate) fn poll_write<S: Socket>(
        &mut self,
        socket: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let socket = Pin::new(socket);
        let small = |from: usize, to: usize| self.small.get(from..to).unwrap_or_default();
        let written = if self.large.is_empty() {
            socket.poll_write(cx, small(self.written, self.small.len()))
        } else {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let (mut count, mut from) = (0, self.written);
            let mut put = |bytes| {
                // What finds no place is written next time.
                if let Some(slice) = slices.get_mut(count) {
                    *slice = IoSlice::new(bytes);
                    count += 1;
                }
            };
            for (behind, large) in self.large.iter().take(SLICES) {
                if from < *behind {
                    put(small(from, *behind));
                    from = *behind;
                }
                put(large);
            }
            if self.large.len() <= SLICES && from < self.small.len() {
                put(small(from, self.small.len()));
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
        while let Some((behind, large)) = self.large.front_mut() {
            let small = n.min(behind.saturating_sub(self.written));
            (self.written, n) = (self.written + small, n - small);
            if self.written < *behind || n < large.len() {
                large.advance(n);
                return;
            }
            n -= large.len();
            self.large.pop_front();
        }
        self.written += n;
        if self.bytes == 0 {
            self.written = 0;
            self.small.clear();
        }
    }

    /// Lets a large buffer go that nothing is in. Now and then: a stream would need it again at once.
    pub(crate) fn let_go(&mut self) {
        if self.is_empty() {
            self.small.shrink_to(KEPT_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame::{Kind, RECORDS};

    #[tokio::test]
    async fn frames_survive_every_splitting() {
        // The last ones are more than go into one write.
        let sizes = [0, 1, 500, 5000, 70_000, 262_144, 20].into_iter().chain([13_000; 40]);
        let payloads: Vec<Bytes> = sizes.map(|n| Bytes::from(vec![n as u8; n])).collect();
        for piece in [1_usize, 7, 4096, 1 << 20] {
            let (mut near, mut far) = tokio::io::duplex(piece.max(16));
            let mut output = Output::default();
            for (call, payload) in payloads.iter().enumerate() {
                output.frame(Header::new(Kind::Data, call as u32, payload.len()), payload);
                let records = Header { flags: RECORDS, ..Header::new(Kind::Data, 9, payload.len()) };
                output.records(records, std::slice::from_ref(payload));
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
