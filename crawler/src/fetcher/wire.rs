//! One connection to a site: TCP, TLS where the URL wants it, HTTP/1.1 or 2; and the head of an HTTP/1 answer exactly as it came.
//!
//! hyper parses the head and lets the bytes go. So a `Tap` lies under it, which keeps what is read until the head is whole.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::error::FetchError;

/// More headers than this are refused.
const HEADERS_MAX: usize = 300;

/// A connection that can be asked.
pub(super) struct Wire {
    sender: Sender,
    tap: Arc<Mutex<Tapped>>,
    /// Whom it is to.
    pub(super) address: SocketAddr,
}

enum Sender {
    One(http1::SendRequest<Empty<Bytes>>),
    Two(http2::SendRequest<Empty<Bytes>>),
}

#[derive(Default)]
struct Tapped {
    on: bool,
    most: usize,
    bytes: Vec<u8>,
}

/// Whom to connect to.
pub(super) struct Whom<'a> {
    pub(super) address: SocketAddr,
    /// The name that the certificate has to be for; `None` without TLS.
    pub(super) tls: Option<(&'a TlsConnector, &'a str)>,
    pub(super) time: Duration,
    pub(super) head_bytes_max: usize,
}

impl Wire {
    /// Connects.
    pub(super) async fn connect(whom: Whom<'_>) -> Result<Wire, FetchError> {
        let connecting = async {
            let tcp =
                TcpStream::connect(whom.address).await.map_err(|e| FetchError::Connect(e.to_string()))?;
            let _ = tcp.set_nodelay(true);
            let Some((connector, name)) = whom.tls else {
                return Wire::shake(tcp, false, &whom).await;
            };
            let name = ServerName::try_from(name.to_owned()).map_err(|e| FetchError::Tls(e.to_string()))?;
            let tls = connector.connect(name, tcp).await.map_err(|e| FetchError::Tls(e.to_string()))?;
            let is_two = tls.get_ref().1.alpn_protocol() == Some(b"h2");
            Wire::shake(tls, is_two, &whom).await
        };
        match timeout(whom.time, connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(FetchError::Connect(format!("not within {} s", whom.time.as_secs_f32()))),
        }
    }

    async fn shake<S>(socket: S, is_two: bool, whom: &Whom<'_>) -> Result<Wire, FetchError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let refused = |e: hyper::Error| FetchError::Protocol(e.to_string());
        let tap = Arc::new(Mutex::new(Tapped { most: whom.head_bytes_max, ..Tapped::default() }));
        let sender = if is_two {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.max_header_list_size(u32::try_from(whom.head_bytes_max).unwrap_or(u32::MAX));
            let (sender, connection) = builder.handshake(TokioIo::new(socket)).await.map_err(refused)?;
            tokio::spawn(connection);
            Sender::Two(sender)
        } else {
            let mut builder = http1::Builder::new();
            builder.max_headers(HEADERS_MAX).max_buf_size(whom.head_bytes_max.max(8192));
            builder
                .allow_spaces_after_header_name_in_responses(true)
                .ignore_invalid_headers_in_responses(true);
            let tapped = Tap { socket, tap: Arc::clone(&tap) };
            let (sender, connection) = builder.handshake(TokioIo::new(tapped)).await.map_err(refused)?;
            tokio::spawn(connection);
            Sender::One(sender)
        };
        Ok(Wire { sender, tap, address: whom.address })
    }

    /// Whether another request can be made.
    pub(super) fn is_open(&self) -> bool {
        match &self.sender {
            Sender::One(sender) => !sender.is_closed(),
            Sender::Two(sender) => !sender.is_closed(),
        }
    }

    /// Whether it speaks HTTP/2.
    pub(super) fn is_two(&self) -> bool {
        matches!(self.sender, Sender::Two(_))
    }

    /// Asks, and waits for the head of the answer, which comes back as it was received (HTTP/2: as HTTP/1.1 would have it).
    pub(super) async fn ask(
        &mut self,
        request: Request<Empty<Bytes>>,
    ) -> hyper::Result<(Response<Incoming>, Vec<u8>)> {
        match &mut self.sender {
            Sender::One(sender) => {
                sender.ready().await?;
                {
                    let mut tap = self.tap.lock();
                    tap.on = true;
                    tap.bytes.clear();
                }
                let response = sender.send_request(request).await?;
                let mut tap = self.tap.lock();
                tap.on = false;
                let head = last_head(&tap.bytes).to_vec();
                Ok((response, head))
            }
            Sender::Two(sender) => {
                sender.ready().await?;
                let response = sender.send_request(request).await?;
                let head = made_head(&response);
                Ok((response, head))
            }
        }
    }
}

/// The head of the answer itself: the first that is not of an interim answer (1xx).
fn last_head(bytes: &[u8]) -> &[u8] {
    let mut rest = bytes;
    loop {
        // An empty line ends it, and is near: what follows, the body, is not looked at.
        let lines = rest.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
        let mut ends = lines.filter_map(|after| match rest.get(after..)? {
            [b'\n', ..] => Some(after + 1),
            [b'\r', b'\n', ..] => Some(after + 2),
            _ => None,
        });
        let end = ends.next().unwrap_or(rest.len());
        let (head, after) = rest.split_at(end);
        if head.get(9..10) != Some(b"1") || after.is_empty() {
            return head;
        }
        rest = after;
    }
}

fn made_head(response: &Response<Incoming>) -> Vec<u8> {
    let status = response.status();
    let mut head =
        format!("HTTP/1.1 {} {}\r\n", status.as_u16(), status.canonical_reason().unwrap_or("")).into_bytes();
    for (name, value) in response.headers() {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
}

struct Tap<S> {
    socket: S,
    tap: Arc<Mutex<Tapped>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Tap<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.socket).poll_read(cx, buf);
        if matches!(polled, Poll::Ready(Ok(()))) {
            let mut tap = self.tap.lock();
            if tap.on && tap.bytes.len() < tap.most {
                tap.bytes.extend_from_slice(buf.filled().get(before..).unwrap_or_default());
            }
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tap<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interim_answers_are_no_heads() {
        let bytes = b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nA: b\r\n\r\n<html>";
        assert_eq!(last_head(bytes), b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n");
        assert_eq!(last_head(b"HTTP/1.0 200 OK\nA: b\n\n<html>\r\n\r\n"), b"HTTP/1.0 200 OK\nA: b\n\n");
    }
}
