//! `POST /pages`: pages come in, as WARC.
//!
//! ```text
//!   body ─▶ threads unpack and hash ─▶ another makes captures ─▶ batches ─▶ the repository's add, some at once
//! ```
//!
//! Between the steps a bounded number of bytes waits; whoever sends faster than pages become durable is slowed. The answer
//! comes when everything that could be read is acknowledged or refused, and says what became of it. An import that breaks off
//! leaves what was acknowledged; sending it again is harmless.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::post;
use bytes::{Buf, Bytes};
use http_body_util::BodyExt;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use hyper::{HeaderMap, StatusCode};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use webbase_node::{Adds, Cluster, NodeError, Retry};
use webbase_storage::Page;
use webbase_stream::warc::{Capture, Find, Importer, Original, Report, read_ahead};

use super::Gateway;
use super::operation::{JSON, Operation, query};
use super::params::Params;
use super::problem::Problem;
use super::status::as_json_answer;

/// Pieces of the body that wait to be read.
const PIECES: usize = 16;
/// Captures that are added at once: bytes, as they are in memory, and number.
const BATCH_BYTES: usize = 2 << 20;
const BATCH_PAGES: usize = 1000;
/// Batches that are being added, and that wait to be.
const ADDING: usize = 6;
/// The largest window of zstd over the whole body, as a power of two.
const WINDOW_LOG_MAX: u32 = 25;

pub(super) fn operations() -> Vec<Operation> {
    vec![Operation {
        path: "/pages",
        method: "post",
        name: "addPages",
        summary: "Adds the pages of a WARC or ARC file",
        parameters: vec![query(
            "repack",
            "boolean",
            "pack the bodies of a gzipped file anew, instead of keeping them as they are: half as fast, a fifth smaller",
        )],
        body: Some(("application/warc", "a WARC file: plain, gzip or zstd, as its first bytes say")),
        answers: &[
            (200, JSON, "What was read, and what became of it; everything acknowledged is durable"),
            (400, "application/problem+json", "There is no record in it"),
            (415, "application/problem+json", "It is something else than WARC"),
        ],
        is_long: true,
        route: post(add),
    }]
}

/// How the body as a whole is coded, beside what the file itself is.
#[derive(Clone, Copy)]
enum Coded {
    Not,
    Gzip,
    Zstd,
}

async fn add(
    State(gateway): State<Arc<Gateway>>,
    mut params: Params,
    request: Request,
) -> Result<Response, Problem> {
    let repack = params.flag("repack")?;
    params.finish()?;
    let coded = checked(request.headers(), gateway.limits.body_bytes_max)?;
    let Ok(_permit) = gateway.imports.clone().try_acquire_owned() else {
        let text = format!("{} imports are being read already", gateway.limits.imports_max);
        return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-imports", text).after_s(5));
    };
    let (piece_sender, pieces) = mpsc::channel(PIECES);
    let (batch_sender, batches) = mpsc::channel(1);
    let importer = Importer::new(gateway.originals.clone()).finding(in_repository(gateway.cluster.clone()));
    let importer = importer.keeping_gzip(!repack);
    let reading =
        tokio::task::spawn_blocking(move || read(Incoming::new(pieces), coded, importer, &batch_sender));
    let limits = (gateway.limits.body_bytes_max, gateway.limits.body_pause);
    let (received, added) =
        tokio::join!(receive(request.into_body(), limits, piece_sender), add_all(&gateway, batches));
    let failed = |e: &dyn std::fmt::Display| {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", format!("the import broke off: {e}"))
    };
    let mut report = reading.await.map_err(|e| failed(&e))?;
    report.acknowledged = added.acknowledged;
    for why in &added.refused {
        report.refuse(why);
    }
    let told = serde_json::to_value(&report).unwrap_or(Value::Null);
    if let Some(problem) = added.failed.map(Problem::from).or(received.err()) {
        return Err(problem.with("report", told));
    }
    if report.all_records() == 0 {
        let text = match report.damage.first() {
            Some(damage) => format!("there is no WARC record in it; at {}: {}", damage.offset, damage.what),
            None => "there is nothing in it".to_owned(),
        };
        return Err(Problem::bad("no-records", text).with("report", told));
    }
    Ok(as_json_answer(StatusCode::OK, &told))
}

/// Whether the body may be WARC, and how it is coded.
fn checked(headers: &HeaderMap, bytes_max: u64) -> Result<Coded, Problem> {
    let unsupported = |text: String| Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported", text);
    let text = |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    if let Some(kind) = text(CONTENT_TYPE) {
        let mime = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let known = ["application/warc", "application/gzip", "application/x-gzip", "application/zstd"];
        let general = ["application/octet-stream", "application/x-www-form-urlencoded", ""];
        if !known.contains(&&mime[..]) && !general.contains(&&mime[..]) {
            return Err(unsupported(format!("pages come as application/warc, not as {mime}")));
        }
    }
    let len = text(CONTENT_LENGTH).and_then(|len| len.parse::<u64>().ok());
    if len.is_some_and(|len| len > bytes_max) {
        return Err(too_large(bytes_max));
    }
    match text(CONTENT_ENCODING).map(|coding| coding.trim().to_ascii_lowercase()).as_deref() {
        None | Some("" | "identity") => Ok(Coded::Not),
        Some("gzip" | "x-gzip") => Ok(Coded::Gzip),
        Some("zstd") => Ok(Coded::Zstd),
        Some(other) => {
            let other: String = other.chars().take(50).collect();
            Err(unsupported(format!("bodies may be coded with gzip or zstd, not with {other}")))
        }
    }
}

fn too_large(bytes_max: u64) -> Problem {
    let text = format!("one request may have {bytes_max} bytes; send the file in parts");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", text)
}

/// Hands the body on, piece by piece.
async fn receive(
    mut body: Body,
    (bytes_max, pause): (u64, Duration),
    sender: mpsc::Sender<io::Result<Bytes>>,
) -> Result<(), Problem> {
    let mut bytes = 0;
    loop {
        let problem = match tokio::time::timeout(pause, body.frame()).await {
            Ok(None) => return Ok(()),
            Ok(Some(Ok(frame))) => {
                let Ok(data) = frame.into_data() else { continue };
                bytes += data.len() as u64;
                if bytes <= bytes_max {
                    if sender.send(Ok(data)).await.is_err() {
                        // The reader has ended, and says why.
                        return Ok(());
                    }
                    continue;
                }
                too_large(bytes_max)
            }
            Ok(Some(Err(e))) => Problem::bad("broken-off", format!("the body broke off: {e}")),
            Err(_) => {
                let text = format!("nothing came for {pause:?}");
                Problem::new(StatusCode::REQUEST_TIMEOUT, "too-slow", text)
            }
        };
        // Then it has ended already.
        let _gone = sender.send(Err(io::Error::other(problem.detail().to_owned()))).await;
        return Err(problem);
    }
}

/// The body, to be read by a thread.
struct Incoming {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
}

impl Incoming {
    fn new(pieces: mpsc::Receiver<io::Result<Bytes>>) -> Incoming {
        Incoming { pieces, piece: Bytes::new() }
    }
}

impl Read for Incoming {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.pieces.blocking_recv() {
                None => return Ok(0),
                Some(piece) => self.piece = piece?,
            }
        }
        let some = out.len().min(self.piece.len());
        self.piece.copy_to_slice(out.get_mut(..some).unwrap_or_default());
        Ok(some)
    }
}

/// Reads the file; what it makes of it goes out in batches.
fn read(
    incoming: Incoming,
    coded: Coded,
    mut importer: Importer,
    batches: &mpsc::Sender<Vec<Capture>>,
) -> Report {
    let source: Box<dyn Read + Send> = match coded {
        Coded::Not => Box::new(incoming),
        Coded::Gzip => Box::new(flate2::read::MultiGzDecoder::new(incoming)),
        Coded::Zstd => match zstd::stream::read::Decoder::new(incoming) {
            Ok(mut decoder) => {
                // Refused only when it is out of zstd's own bounds.
                let _fits = decoder.window_log_max(WINDOW_LOG_MAX);
                Box::new(decoder)
            }
            Err(e) => Box::new(Failing(Some(e))),
        },
    };
    let (mut batch, mut bytes) = (Vec::new(), 0);
    let (read, taken) = read_ahead(source, &mut importer, |capture| {
        bytes += capture.held_bytes();
        batch.push(capture);
        if bytes < BATCH_BYTES && batch.len() < BATCH_PAGES {
            return Ok(());
        }
        bytes = 0;
        batches.blocking_send(std::mem::take(&mut batch))
    });
    let taken = if batch.is_empty() { taken } else { taken.and_then(|()| batches.blocking_send(batch)) };
    if taken.is_err() {
        importer.broke_off(read, "nobody waits for it".into());
    }
    importer.finish(read)
}

/// Finds what revisits refer to among the pages that readers see.
fn in_repository(cluster: Cluster) -> Find {
    let runtime = tokio::runtime::Handle::current();
    Box::new(move |url| {
        let Ok(key) = cluster.page_key(url) else { return Ok(None) };
        let found = runtime.block_on(cluster.lookup(key)).map_err(|e| e.to_string())?.pages;
        // Pages have a digest, but for those that others than clients of a repository made.
        let Some((record, payload_digest)) =
            found.and_then(|r| r.get().payload_digest().map(|digest| (r, digest)))
        else {
            return Ok(None);
        };
        let unpacked = |part: webbase_storage::Result<Bytes>| part.map_err(|e| e.to_string());
        let head = unpacked(record.head(cluster.dictionaries()))?;
        let body = unpacked(record.body(cluster.dictionaries()))?;
        let (mime, fetched_at_ms) = (record.get().mime().to_owned(), record.get().fetched_at_ms());
        Ok(Some(Original { head, body, mime, payload_digest, fetched_at_ms }))
    })
}

/// A source that cannot be read.
struct Failing(Option<io::Error>);

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

#[derive(Default)]
struct Added {
    acknowledged: u64,
    refused: Vec<String>,
    /// Why pages are not taken that might be another time.
    failed: Option<NodeError>,
}

/// Adds batches, some at once.
async fn add_all(gateway: &Gateway, mut batches: mpsc::Receiver<Vec<Capture>>) -> Added {
    let (mut adding, mut added) = (JoinSet::new(), Added::default());
    let runtime = tokio::runtime::Handle::current();
    loop {
        let batch = match added.failed {
            None => batches.recv().await,
            Some(_) => None,
        };
        let is_over = batch.is_none();
        if let Some(batch) = batch {
            // Packing is most of an add. On the thread that serves the connection, the batches would wait for each other.
            let (cluster, runtime) = (gateway.cluster.clone(), runtime.clone());
            adding.spawn_blocking(move || runtime.block_on(add_batch(&cluster, &batch)));
        }
        while adding.len() >= ADDING || is_over && !adding.is_empty() {
            match adding.join_next().await {
                Some(Ok(Ok(adds))) => {
                    gateway.metrics.pages_added.inc_by(adds.acknowledged);
                    added.take(adds);
                }
                Some(Ok(Err(e))) => added.failed = Some(e),
                Some(Err(_)) | None => {}
            }
        }
        if is_over {
            return added;
        }
    }
}

async fn add_batch(cluster: &Cluster, batch: &[Capture]) -> Result<Adds, NodeError> {
    let pages: Vec<Page<'_>> = batch.iter().map(Capture::page).collect();
    cluster.add(&pages).await
}

impl Added {
    fn take(&mut self, adds: Adds) {
        self.acknowledged += adds.acknowledged;
        for (_, e) in adds.refused {
            if e.retry() == Retry::Useless {
                self.refused.push(e.to_string().chars().take(300).collect());
            } else {
                self.failed = Some(e);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_be_warc_is_read() {
        let headers = |list: &[(&'static str, &'static str)]| -> HeaderMap {
            list.iter()
                .map(|(n, v)| (hyper::header::HeaderName::from_static(n), v.parse().unwrap()))
                .collect()
        };
        let status = |list| checked(&headers(list), 1000).map_or_else(|p| p.status().as_u16(), |_| 200);
        assert_eq!(status(&[]), 200);
        assert_eq!(status(&[("content-type", "application/warc"), ("content-encoding", "gzip")]), 200);
        assert_eq!(status(&[("content-type", "Application/Octet-Stream; x=y")]), 200);
        assert_eq!(status(&[("content-type", "text/html")]), 415);
        assert_eq!(status(&[("content-encoding", "br")]), 415);
        assert_eq!(status(&[("content-length", "1001")]), 413);
    }
}
