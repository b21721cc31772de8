//! `GET /warcs/{file}`: the repository as WARC files, one for each version of a page, so that replay tools fetch what a CDX line names.
//!
//! ```text
//!   file      {page id and tie, 32 hex}-{fetched at, ms, hex}-{epoch, hex}.warc.gz
//!   content   the page's WARC record, as /stream has it, in one gzip member whose blocks are stored and not packed
//! ```
//!
//! 1. The name says which page and which version, never where it lies: compaction, moves and replicas do not matter to it. Once a
//!    newer version took its place it is gone (410).
//! 2. A member of stored blocks has a length that the URL index tells (`webbase_stream::warc::stored`), so a CDX line costs no
//!    page. Whoever wants packed WARC takes `/stream`.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use webbase_storage::{PageId, PageKey, Record};
use webbase_stream::warc::stored;

use super::body::Pieces;
use super::conditions::Validators;
use super::operation::{Operation, query};
use super::page::{partial, set};
use super::problem::Problem;
use super::ranges::{Wanted, wanted};
use super::{Gateway, cors};

pub(super) fn operations() -> Vec<Operation> {
    vec![Operation {
        path: "/warcs/{file}",
        method: "get",
        name: "warc_file",
        summary: "The WARC file that a CDX line names, or ranges of it",
        parameters: vec![query("file", "string", "as in a CDX line").in_path()],
        body: None,
        answers: &[
            (200, "application/warc", "The file"),
            (206, "application/warc", "The ranges that were asked for"),
            (304, "", "The client's copy is still right"),
            (404, "application/problem+json", "There is no such page"),
            (410, "application/problem+json", "The page has another version now"),
            (416, "application/problem+json", "The ranges are not within the file"),
        ],
        is_long: false,
        route: get(file).options(cors::options),
    }]
}

/// The name of a version's file.
pub(super) fn name(key: PageKey, fetched_at_ms: u64, epoch: u32) -> String {
    format!("{}{:016x}-{fetched_at_ms:x}-{epoch:x}.warc.gz", key.id, key.tie)
}

/// What a name names: page, fetch time and epoch.
fn named(name: &str) -> Option<(PageKey, u64, u32)> {
    let mut parts = name.strip_suffix(".warc.gz")?.split('-');
    let (key, at, epoch, None) = (parts.next()?, parts.next()?, parts.next()?, parts.next()) else {
        return None;
    };
    let hex = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if key.len() != 32 || ![key, at, epoch].into_iter().all(hex) {
        return None;
    }
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let key = PageKey { id: PageId(number(key.get(..16)?)?), tie: number(key.get(16..)?)? };
    Some((key, number(at)?, u32::from_str_radix(epoch, 16).ok()?))
}

async fn file(
    State(gateway): State<Arc<Gateway>>,
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let mut response = match serve(&gateway, name, request.headers()).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    };
    cors::allow(response.headers_mut());
    response
}

async fn serve(
    gateway: &Gateway,
    name: Result<Path<String>, PathRejection>,
    asked: &HeaderMap,
) -> Result<Response, Problem> {
    let Path(name) = name.map_err(|e| Problem::bad("bad-path", e.to_string()))?;
    let none =
        || Problem::new(StatusCode::NOT_FOUND, "no-file", "a CDX line's filename is the name of a file here");
    let (key, fetched_at_ms, epoch) = named(&name).ok_or_else(none)?;
    let found = gateway.cluster.lookup(key).await?.pages;
    let Some(record) = found else {
        return Err(Problem::new(StatusCode::NOT_FOUND, "no-page", "this page is not in the repository"));
    };
    let page = record.get();
    if (page.fetched_at_ms(), page.epoch()) != (fetched_at_ms, epoch) {
        let text = format!(
            "this page was fetched again; its file is {}",
            self::name(key, page.fetched_at_ms(), page.epoch())
        );
        return Err(Problem::new(StatusCode::GONE, "superseded", text));
    }
    let version = page.version();
    let validators = Validators {
        etag: format!("\"{}-{:016x}\"", name.trim_end_matches(".warc.gz"), version.digest),
        modified_at_ms: fetched_at_ms,
    };
    let mut headers = HeaderMap::with_capacity(12);
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    set(&mut headers, header::ETAG, &validators.etag);
    set(&mut headers, header::LAST_MODIFIED, &validators.last_modified());
    if validators.not_modified(asked) {
        return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
    }
    let pieces = rendered(gateway, record).await?;
    let body = Pieces::new(stored::member(&pieces));
    let wanted = validators.range(asked).map_or(Wanted::Whole, |range| wanted(range, body.len()));
    Ok(partial(headers, HeaderValue::from_static("application/warc"), body, wanted))
}

/// A page as a WARC record, made where it keeps nobody waiting.
pub(super) async fn rendered(gateway: &Gateway, record: Record) -> Result<Vec<Bytes>, Problem> {
    let dictionaries = gateway.cluster.dictionaries().clone();
    let work = move || stored::record(&record, &dictionaries);
    let rendered = tokio::task::spawn_blocking(work).await.map_err(|e| {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", format!("unpacking ended: {e}"))
    })?;
    Ok(rendered?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        let key = PageKey { id: PageId(7), tie: u64::MAX };
        let text = name(key, 1_700_000_000_123, 9);
        assert_eq!(named(&text), Some((key, 1_700_000_000_123, 9)));
        for bad in [
            "",
            "x.warc.gz",
            "../../etc/passwd",
            &text.to_uppercase(),
            &format!("a{text}"),
            &text.replace('-', "_"),
        ] {
            assert_eq!(named(bad), None, "{bad}");
        }
    }
}
