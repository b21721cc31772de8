//! `GET /web/resource`: the record of a capture, as pywb's own warcserver tells it; and `GET /web/warc.paths.gz`: the names of all
//! WARC files, the way a pipeline over Common Crawl starts.

use std::io::Write;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use tokio::sync::mpsc;
use webbase_storage::surt::KeyRange;

use super::body::{CutOff, Pieces, Sending, Sent};
use super::conditions::http_date;
use super::operation::{Operation, query};
use super::page::{absent, set, visible};
use super::params::Params;
use super::problem::Problem;
use super::{Gateway, cdx, cors, memento, warcs};

/// Names that are packed at once.
const NAMES: usize = 4096;

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation {
            path: "/web/resource",
            method: "get",
            name: "resource",
            summary: "The WARC record of the capture nearest to a time, not packed",
            parameters: vec![
                query("url", "string", "the page's URL").required(),
                query("closest", "string", "a time of 4 to 14 digits; the newest without it"),
            ],
            body: None,
            answers: &[
                (200, "application/warc-record", "The record"),
                (404, "application/problem+json", "It is not in the repository"),
            ],
            is_long: false,
            route: get(resource),
        },
        Operation {
            path: "/web/warc.paths.gz",
            method: "get",
            name: "warc_paths",
            summary: "The paths of all WARC files, one a line, packed",
            parameters: vec![],
            body: None,
            answers: &[(200, "application/gzip", "The list")],
            is_long: true,
            route: get(paths),
        },
    ]
}

async fn resource(State(gateway): State<Arc<Gateway>>, params: Params) -> Response {
    let mut response = match record(&gateway, params).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    };
    cors::allow(response.headers_mut());
    response
}

async fn record(gateway: &Gateway, mut params: Params) -> Result<Response, Problem> {
    let Some(url) = params.take("url")? else {
        return Err(Problem::bad("no-url", "which page? /web/resource?url=http%3A%2F%2Fexample.org%2F"));
    };
    let closest = params.take("closest")?.filter(|text| !text.is_empty() && text != "now");
    let bad = || Problem::bad("bad-parameter", "closest is a time of 4 to 14 digits");
    let wanted = closest.map(|text| cdx::seconds(&text).ok_or_else(bad)).transpose()?.unwrap_or(i64::MAX);
    let rows = cdx::captures_of(gateway, &url).await?;
    let Some((key, row)) = memento::nearest(&rows, wanted, &url) else { return Err(absent(&url)) };
    let Some(record) = gateway.cluster.lookup(*key).await?.pages else { return Err(absent(&url)) };
    let line = cdx::lines_of(std::slice::from_ref(&(*key, row.clone())));
    let pieces = Pieces::new(warcs::rendered(gateway, record).await?);
    let length = pieces.len();
    let mut response = Response::new(pieces.into_body());
    let headers: &mut HeaderMap = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/warc-record"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(HeaderName::from_static("warcserver-type"), HeaderValue::from_static("warc"));
    headers.insert(HeaderName::from_static("warcserver-source-coll"), HeaderValue::from_static("web"));
    set(headers, HeaderName::from_static("warcserver-cdx"), &ascii(line.trim_end()));
    set(headers, HeaderName::from_static("warc-target-uri"), &visible(&row.url));
    set(headers, HeaderName::from_static("memento-datetime"), &http_date(row.fetched_at_ms));
    let original = visible(&row.url).replace('<', "%3C").replace('>', "%3E");
    set(headers, header::LINK, &format!("<{original}>; rel=\"original\""));
    Ok(response)
}

/// A line as a header can have it: what is not ASCII as JSON writes it.
fn ascii(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    for char in line.chars() {
        match char {
            ' '..='~' => out.push(char),
            other => {
                let mut units = [0; 2];
                for unit in other.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    out
}

async fn paths(State(gateway): State<Arc<Gateway>>) -> Result<Response, Problem> {
    let Ok(permit) = gateway.streams.clone().try_acquire_owned() else {
        let text = format!("{} long answers are being sent already", gateway.limits.streams_max);
        return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-streams", text).after_s(5));
    };
    let everything = KeyRange { start: String::new(), end: cdx::BEHIND_ALL.into() };
    let mut rows = cdx::Rows::all(&gateway.cluster, &everything).await?;
    let (sender, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
        loop {
            let mut names = String::new();
            let mut is_last = false;
            for _ in 0..NAMES {
                match rows.next_row().await {
                    Ok(Some((key, row))) => {
                        names
                            .push_str(&format!("warcs/{}\n", warcs::name(key, row.fetched_at_ms, row.epoch)));
                    }
                    Ok(None) => {
                        is_last = true;
                        break;
                    }
                    Err(problem) => {
                        let why = CutOff(problem.detail().to_owned());
                        drop(sender.send(Sent::Failed(why)).await); // who does not read any more need not know
                        return;
                    }
                }
            }
            // Writing to memory does not fail.
            let packed = packer.write_all(names.as_bytes()).map(|()| std::mem::take(packer.get_mut()));
            let Ok(mut piece) = packed else { return };
            if is_last {
                piece.extend(packer.finish().unwrap_or_default());
                drop(sender.send(Sent::Data(Bytes::from(piece))).await); // as above
                return;
            }
            if sender.send(Sent::Data(Bytes::from(piece))).await.is_err() {
                return;
            }
        }
    });
    let mut response = Response::new(Body::new(Sending { receiver, _permit: permit }));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/gzip"));
    cors::allow(response.headers_mut());
    Ok(response)
}
