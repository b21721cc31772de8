//! `GET /stream`: many pages, as WARC or JSON lines. `selection.rs` reads which; a format is a variant of [`Format`] and what
//! [`Writer`] does for it.
//!
//! A task takes pages from the repository and sends pieces of the answer; between the two and in the socket a bounded number of bytes
//! waits, so a slow client slows its own stream only. Now and then the cursor is sent along, and at the end in the trailer
//! `webbase-cursor` (for clients that take trailers): a stream that breaks goes on behind any of them, with `cursor=`. Under the
//! distribution `uniform` a cursor names a place for each range, and is too long for a query: `POST /stream` takes the same
//! parameters in its body, and changes nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{get, post};
use bytes::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, TRAILER};
use hyper::{HeaderMap, StatusCode};
use serde_json::json;
use tokio::sync::mpsc;
use webbase_node::plan::LIVE;
use webbase_node::wire::spec::Projection;
use webbase_node::{ClusterStream, StreamCursor};
use webbase_storage::Record;

use super::Gateway;
use super::body::{CutOff, Sending, Sent};
use super::clients::{Client, Peer};
use super::guard::RequestId;
use super::json_lines;
use super::operation::{Answer, JSON, Operation, Parameter, query};
use super::params::{FORM, Params};
use super::problem::Problem;
use super::selection;
use super::status::as_json_answer;
use super::warc_text::WarcText;

/// Where streams are asked for.
pub(super) const PATH: &str = "/stream";

const CURSOR: HeaderName = HeaderName::from_static("webbase-cursor");
/// An answer leaves in pieces of about so many bytes.
const PIECE_BYTES: usize = 128 << 10;
/// Pieces that wait for the socket.
const PIECES: usize = 4;
/// The cursor is sent along after so many bytes, or so much time.
const CURSOR_BYTES: u64 = 8 << 20;
const CURSOR_TIME: Duration = Duration::from_secs(5);

/// A longer cursor is in the last record only: no client takes a head of any length.
const TRAILER_BYTES_MAX: usize = 8 << 10;

const ANSWERS: &[Answer] = &[
    (200, "application/warc", "The pages, a gzip member each; the cursor now and then, and at the end"),
    (200, "application/jsonl", "The pages, a line each; the cursor now and then, and at the end"),
    (200, JSON, "How many pages and bytes there are"),
    (410, "application/problem+json", "The cursor's generation is gone"),
];

fn parameters() -> Vec<Parameter> {
    let own = [
        query(
            "format",
            "string",
            "warc, which is the default; jsonl; or count for how many pages and bytes there are",
        ),
        query(
            "cursor",
            "string",
            "go on behind this place of an earlier stream, which says what is streamed",
        ),
        query("go_on", "boolean", "when the cursor's generation is gone, go on in the current one"),
        query("limit", "integer", "end after so many pages"),
    ];
    own.into_iter().chain(selection::parameters()).collect()
}

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation {
            path: PATH,
            method: "get",
            name: "stream",
            summary: "All pages, or those that are asked for",
            parameters: parameters(),
            body: None,
            answers: ANSWERS,
            is_long: true,
            route: get(stream),
        },
        Operation {
            path: PATH,
            method: "post",
            name: "stream_posted",
            summary: "The same; for cursors that are too long for a query",
            parameters: parameters(),
            body: Some((FORM, "parameters that are not in the query")),
            answers: ANSWERS,
            is_long: true,
            route: post(stream_posted),
        },
    ]
}

/// Who asks, and the id of the request.
type From = (Option<Extension<Peer>>, Option<Extension<RequestId>>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Warc,
    Jsonl,
    Count,
}

async fn stream(
    State(gateway): State<Arc<Gateway>>,
    from: From,
    params: Params,
) -> Result<Response, Problem> {
    send(gateway, from, params).await
}

async fn stream_posted(
    State(gateway): State<Arc<Gateway>>,
    from: From,
    params: Params,
    request: Request,
) -> Result<Response, Problem> {
    let limit = gateway.limits.answer_time;
    send(gateway, from, params.posted(request, limit).await?).await
}

async fn send(gateway: Arc<Gateway>, (peer, id): From, mut params: Params) -> Result<Response, Problem> {
    let asked = params.shown();
    let format = match params.take("format")?.as_deref() {
        None | Some("warc") => Format::Warc,
        Some("jsonl") => Format::Jsonl,
        Some("count") => Format::Count,
        Some(other) => {
            let other: String = other.chars().take(50).collect();
            return Err(Problem::bad("bad-format", format!("there is no format {other:?}")));
        }
    };
    let cursor: Option<StreamCursor> = match params.take("cursor")? {
        None => None,
        Some(text) => Some(text.parse()?),
    };
    let go_on = params.flag("go_on")?;
    let limit = params.number("limit")?.unwrap_or(u64::MAX);
    let selected = selection::take(&mut params)?;
    params.finish()?;
    if let (Some(cursor), Some((spec, _))) = (&cursor, &selected)
        && cursor.spec() != spec
    {
        let text = "the cursor is of a stream of other pages; it says by itself what is streamed";
        return Err(Problem::bad("other-stream", text));
    }
    let spec = cursor.as_ref().map(StreamCursor::spec).or(selected.as_ref().map(|(spec, _)| spec));
    if format == Format::Warc && spec.is_some_and(|spec| spec.projection != Projection::Everything) {
        let text = "a WARC has whole pages; format=jsonl has parts of them, too";
        return Err(Problem::bad("bad-format", text));
    }
    let Ok(permit) = gateway.streams.clone().try_acquire_owned() else {
        let text = format!("{} streams are being sent already", gateway.limits.streams_max);
        return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-streams", text).after_s(5));
    };
    let pages = match &cursor {
        None => {
            let (spec, how) = selected.unwrap_or_default();
            gateway.cluster.select(spec, how).await?
        }
        Some(cursor) if go_on => gateway.cluster.go_on(cursor).await?,
        Some(cursor) => gateway.cluster.resume(cursor).await?,
    };
    if format == Format::Count {
        return count(pages, limit).await;
    }
    let client = gateway.clients.open(peer.map(|Extension(peer)| peer), &asked);
    let (sender, receiver) = mpsc::channel(PIECES);
    let id = id.map(|Extension(id)| id).unwrap_or_default();
    let writer = Writer::new(gateway.clone(), (client, id), pages, format, limit, sender);
    tokio::spawn(writer.run());
    let mut response = Response::new(Body::new(Sending { receiver, _permit: permit }));
    let headers = response.headers_mut();
    let kind = if format == Format::Warc { "application/warc" } else { "application/jsonl" };
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(TRAILER, HeaderValue::from_static("webbase-cursor"));
    Ok(response)
}

async fn count(mut stream: ClusterStream, limit: u64) -> Result<Response, Problem> {
    let (mut pages, mut bytes, mut damaged) = (0_u64, 0_u64, 0_u64);
    while pages < limit
        && let Some(record) = stream.next().await
    {
        match record {
            Ok(record) => (pages, bytes) = (pages + 1, bytes + record.bytes().len() as u64),
            Err(e) if e.is_damaged_page() => damaged += 1,
            Err(e) => return Err(e.into()),
        }
    }
    let generation = Some(stream.generation()).filter(|generation| *generation != LIVE);
    let value = json!({"generation": generation, "pages": pages, "bytes": bytes, "damaged": damaged});
    Ok(as_json_answer(StatusCode::OK, &value))
}

/// Makes an answer of pages.
struct Writer {
    gateway: Arc<Gateway>,
    client: Client,
    /// Of the request.
    id: RequestId,
    stream: ClusterStream,
    /// Pages that are sent at most.
    limit: u64,
    sender: mpsc::Sender<Sent>,
    /// Makes WARC; without it, pages are lines of JSON.
    warc: Option<WarcText>,
    out: Vec<u8>,
    pages: u64,
    damaged: u64,
    bytes: u64,
    /// What was sent, and when, at the last cursor.
    told: (u64, Instant),
}

/// Nobody reads any more.
struct Gone;

impl Writer {
    fn new(
        gateway: Arc<Gateway>,
        (client, id): (Client, RequestId),
        stream: ClusterStream,
        format: Format,
        limit: u64,
        sender: mpsc::Sender<Sent>,
    ) -> Writer {
        let (told, mut out) = ((0, Instant::now()), Vec::new());
        let warc = (format == Format::Warc).then(|| WarcText::new(gateway.cluster.dictionaries(), &mut out));
        Writer { gateway, client, id, stream, limit, sender, warc, out, pages: 0, damaged: 0, bytes: 0, told }
    }

    /// Appends a page to what is to be sent.
    async fn page(&mut self, record: Record) -> Result<(), Problem> {
        match &mut self.warc {
            Some(warc) => warc.page(record, &mut self.out).await,
            None => json_lines::page(&record, self.gateway.cluster.dictionaries(), &mut self.out),
        }
    }

    async fn tell(&mut self, cursor: String) -> Result<(), Problem> {
        match &mut self.warc {
            Some(warc) => warc.cursor(cursor, &mut self.out).await,
            None => {
                json_lines::cursor(&cursor, &mut self.out);
                Ok(())
            }
        }
    }

    async fn end(&mut self, cursor: Option<String>) -> Result<(), Problem> {
        match &mut self.warc {
            Some(warc) => warc.end(self.pages, self.damaged, cursor, &mut self.out).await,
            None => {
                json_lines::end(self.pages, self.damaged, cursor.as_deref(), &mut self.out);
                Ok(())
            }
        }
    }

    async fn run(mut self) {
        self.gateway.metrics.streams.inc();
        // Whoever is gone need not be told.
        let _gone = self.send_all().await;
        self.gateway.metrics.streams.dec();
    }

    async fn send_all(&mut self) -> Result<(), Gone> {
        while self.pages < self.limit
            && let Some(record) = self.stream.next().await
        {
            match record {
                Ok(record) => {
                    if let Err(problem) = self.page(record).await {
                        return self.fail(problem.detail().to_owned()).await;
                    }
                    self.pages += 1;
                    self.gateway.metrics.pages_streamed.inc();
                    self.client.pages(1);
                }
                Err(e) if e.is_damaged_page() => {
                    tracing::warn!(id = %self.id, "a stream goes on without a page: {e}");
                    self.damaged += 1;
                }
                Err(e) => return self.fail(e.to_string()).await,
            }
            if self.out.len() >= PIECE_BYTES {
                self.send().await?;
            }
            let (bytes, at) = self.told;
            let told = self.bytes + self.out.len() as u64;
            // A clock is asked seldom.
            let is_time = self.pages.is_multiple_of(64) && at.elapsed() >= CURSOR_TIME;
            if (is_time || told - bytes >= CURSOR_BYTES)
                && let Some(cursor) = self.cursor()
            {
                if let Err(problem) = self.tell(cursor).await {
                    return self.fail(problem.detail().to_owned()).await;
                }
                self.told = (told, Instant::now());
            }
        }
        let cursor = self.cursor();
        if let Err(problem) = self.end(cursor.clone()).await {
            return self.fail(problem.detail().to_owned()).await;
        }
        self.send().await?;
        let short = cursor.filter(|cursor| cursor.len() <= TRAILER_BYTES_MAX);
        let value = short.and_then(|cursor| HeaderValue::from_str(&cursor).ok());
        let trailers: HeaderMap = value.into_iter().map(|value| (CURSOR, value)).collect();
        self.sender.send(Sent::Trailers(trailers)).await.map_err(|_| Gone)
    }

    /// The place behind the last page, if there is one that other nodes share.
    fn cursor(&self) -> Option<String> {
        self.stream.cursor().ok().map(|cursor| cursor.to_string())
    }

    async fn send(&mut self) -> Result<(), Gone> {
        let piece = Bytes::from(std::mem::take(&mut self.out));
        self.bytes += piece.len() as u64;
        self.gateway.metrics.bytes_streamed.inc_by(piece.len() as u64);
        self.client.bytes(piece.len() as u64);
        self.sender.send(Sent::Data(piece)).await.map_err(|_| Gone)
    }

    /// The answer ends here, and is cut off, so that nobody takes it for whole.
    async fn fail(&mut self, why: String) -> Result<(), Gone> {
        tracing::warn!(id = %self.id, "a stream was cut off: {why}");
        self.send().await?;
        self.sender.send(Sent::Failed(CutOff(why))).await.map_err(|_| Gone)
    }
}
