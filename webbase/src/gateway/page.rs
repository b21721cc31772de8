//! `GET /page?url=` and `GET /page/{id}`: one page, as a browser or a program wants it.
//!
//! ```text
//!   &raw=1           the stored head and body, byte for byte: application/http
//!   client takes it  the body as it was received, still coded (gzip, br …)
//!   zstd accepted    a body that is stored as zstd without dictionary leaves as it lies on disk
//!   otherwise        the body, unpacked and without codings
//! ```
//!
//! Chunks of the transfer coding are always taken off, but for `raw`. A coding that cannot be taken off (broken, unknown, larger than
//! the limit) stays on, and the header says so.
//!
//! Stored pages are strangers' words: whatever they say runs in a sandbox without scripts, forms, cookies or requests to
//! anybody, and nothing of their head goes out but the content type.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use serde_json::json;
use webbase_storage::{Codec, PageId, PageKey, Record};
use webbase_stream::http::{self, Coding};

use super::Gateway;
use super::body::Pieces;
use super::coding::{UNPACKED_BYTES_MAX, accepts};
use super::conditions::{Validators, http_date};
use super::operation::{ANY, Answer, JSON, Operation, Parameter, query};
use super::params::Params;
use super::problem::Problem;
use super::ranges::{Wanted, wanted};

/// A body of more packed bytes is unpacked on a thread where it keeps nobody waiting.
const UNPACK_HERE_BYTES: usize = 256 << 10;
/// Between the parts of an answer with several ranges.
const BOUNDARY: &str = "webbase-part-5b1c8c3f0d7a4e62";

const RAW: Parameter = query("raw", "boolean", "the stored HTTP head and body, byte for byte");
const ANSWERS: &[Answer] = &[
    (200, ANY, "The page, with its own content type"),
    (206, ANY, "The ranges that were asked for"),
    (304, "", "The client's copy is still right"),
    (404, "application/problem+json", "It is not in the repository"),
    (416, "application/problem+json", "The ranges are not within the body"),
];

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation {
            path: "/page",
            method: "get",
            name: "page",
            summary: "The page of a URL",
            parameters: vec![query("url", "string", "the page's URL, percent-encoded").required(), RAW],
            body: None,
            answers: ANSWERS,
            is_long: false,
            route: get(by_url),
        },
        Operation {
            path: "/page/{id}",
            method: "get",
            name: "page_by_id",
            summary: "The page with an id",
            parameters: vec![
                query("id", "string", "16 hexadecimal digits, or 32 where pages share an id").in_path(),
                RAW,
            ],
            body: None,
            answers: &[
                (200, ANY, "The page, with its own content type"),
                (206, ANY, "The ranges that were asked for"),
                (300, JSON, "Several pages have this id; their longer names are told"),
                (304, "", "The client's copy is still right"),
                (404, "application/problem+json", "It is not in the repository"),
                (416, "application/problem+json", "The ranges are not within the body"),
            ],
            is_long: false,
            route: get(by_id),
        },
    ]
}

async fn by_url(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Response, Problem> {
    let mut params = Params::parse(request.uri().query())?;
    let Some(url) = params.take("url")? else {
        return Err(Problem::bad("no-url", "which page? /page?url=http%3A%2F%2Fexample.org%2F"));
    };
    let raw = params.flag("raw")?;
    params.finish()?;
    let found = gateway.cluster.lookup_url(&url).await?;
    let Some(record) = found.pages else { return Err(absent(&url)) };
    show(&gateway, record, found.generation, raw, request.headers()).await
}

async fn by_id(
    State(gateway): State<Arc<Gateway>>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, Problem> {
    let Path(id) = id.map_err(|e| Problem::bad("bad-path", e.to_string()))?;
    let mut params = Params::parse(request.uri().query())?;
    let raw = params.flag("raw")?;
    params.finish()?;
    let (mut pages, generation) = match name(&id)? {
        Name::Id(id) => {
            let found = gateway.cluster.lookup_id(id).await?;
            (found.pages, found.generation)
        }
        Name::Key(key) => {
            let found = gateway.cluster.lookup(key).await?;
            (found.pages.into_iter().collect(), found.generation)
        }
    };
    if pages.len() > 1 {
        let choices: Vec<_> = pages
            .iter()
            .map(|record| json!({"id": long_name(record.get().key()), "url": record.get().url()}))
            .collect();
        let text = format!("{} pages have the id {id}; one of the longer names says which", pages.len());
        let problem = Problem::new(StatusCode::MULTIPLE_CHOICES, "shared-id", text);
        return Err(problem.with("choices", choices.into()));
    }
    let Some(record) = pages.pop() else { return Err(absent(&format!("page {id}"))) };
    show(&gateway, record, generation, raw, request.headers()).await
}

pub(super) fn absent(what: &str) -> Problem {
    let what: String = what.chars().take(500).collect();
    Problem::new(StatusCode::NOT_FOUND, "no-page", format!("{what} is not in the repository"))
}

enum Name {
    Id(PageId),
    Key(PageKey),
}

/// A page as it is named in a path.
fn name(text: &str) -> Result<Name, Problem> {
    let bad = || Problem::bad("bad-id", "a page id is 16 hexadecimal digits, or 32 with its tie");
    if text.len() != 32 || !text.is_ascii() {
        return text.parse().map(Name::Id).map_err(|_| bad());
    }
    let (id, tie) = text.split_at_checked(16).ok_or_else(bad)?;
    let id: PageId = id.parse().map_err(|_| bad())?;
    let tie: PageId = tie.parse().map_err(|_| bad())?;
    Ok(Name::Key(PageKey { id, tie: tie.0 }))
}

/// A page's whole name: 32 hexadecimal digits.
pub(super) fn long_name(key: PageKey) -> String {
    format!("{}{:016x}", key.id, key.tie)
}

/// What leaves.
struct Shown {
    body: Pieces,
    kind: HeaderValue,
    coding: Option<HeaderValue>,
    /// Tells representations of a version apart, in the tag.
    form: char,
}

/// Answers with a page.
pub(super) async fn show(
    gateway: &Gateway,
    record: Record,
    generation: u64,
    raw: bool,
    headers: &HeaderMap,
) -> Result<Response, Problem> {
    let dictionaries = gateway.cluster.dictionaries();
    let shown = if record.get().stored_body().len() > UNPACK_HERE_BYTES {
        let (record, dictionaries, headers) = (record.clone(), dictionaries.clone(), headers.clone());
        let work = move || shown(&record, &dictionaries, raw, &headers);
        tokio::task::spawn_blocking(work).await.map_err(|e| {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", format!("unpacking ended: {e}"))
        })??
    } else {
        shown(&record, dictionaries, raw, headers)?
    };
    Ok(answer(&record, generation, shown, headers))
}

fn shown(
    record: &Record,
    dictionaries: &webbase_storage::Dictionaries,
    raw: bool,
    headers: &HeaderMap,
) -> Result<Shown, Problem> {
    let head = record.head(dictionaries)?;
    let page = record.get();
    if raw {
        let body = record.body(dictionaries)?;
        let head = if head.is_empty() { made_head(page.status(), page.mime(), body.len()) } else { head };
        let kind = HeaderValue::from_static("application/http; msgtype=response");
        return Ok(Shown { body: Pieces::new([head, body]), kind, coding: None, form: 'r' });
    }
    let kind = content_type(&head, page.mime());
    let chunked = http::is_chunked(&head);
    let coded = http::text(&head, "content-encoding").filter(|value| !value.eq_ignore_ascii_case("identity"));
    if coded.is_none()
        && !chunked
        && page.codec() == Codec::Zstd
        && page.dictionary() == 0
        && accepts(headers, Coding::Zstd)
    {
        let body = record.bytes().slice_ref(page.stored_body());
        let coding = Some(HeaderValue::from_static("zstd"));
        return Ok(Shown { body: Pieces::new([body]), kind, coding, form: 'z' });
    }
    let mut body = record.body(dictionaries)?;
    if chunked {
        body = http::without_chunks(&body);
    }
    let (mut coding, mut form) = (None, 'p');
    if let Some(names) = coded {
        match uncoded(names, &body, headers) {
            Some(plain) => body = plain,
            None => (coding, form) = (HeaderValue::from_str(names).ok(), 'c'),
        }
    }
    Ok(Shown { body: Pieces::new([body]), kind, coding, form })
}

/// The body without its content codings, if the client does not take them and they can be taken off.
fn uncoded(names: &str, body: &Bytes, headers: &HeaderMap) -> Option<Bytes> {
    let codings = Coding::list(names)?;
    if codings.iter().all(|coding| accepts(headers, *coding)) {
        return None;
    }
    let mut body = body.clone();
    for coding in codings.iter().rev() {
        body = coding.decode(&body, UNPACKED_BYTES_MAX)?;
    }
    Some(body)
}

/// The head of a page that was added without one.
pub(super) fn made_head(status: u16, mime: &str, body_len: usize) -> Bytes {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    let reason = status.canonical_reason().unwrap_or_default();
    let mime = safe_type(mime.as_bytes()).unwrap_or_else(octets);
    let mime = mime.to_str().unwrap_or_default();
    format!(
        "HTTP/1.1 {} {reason}\r\nContent-Type: {mime}\r\nContent-Length: {body_len}\r\n\r\n",
        status.as_u16()
    )
    .into()
}

fn octets() -> HeaderValue {
    HeaderValue::from_static("application/octet-stream")
}

fn content_type(head: &[u8], mime: &str) -> HeaderValue {
    let from_head = http::field(head, "content-type").and_then(safe_type);
    from_head.or_else(|| safe_type(mime.as_bytes())).unwrap_or_else(octets)
}

/// A content type, if it looks like one: anything else would be sniffed.
fn safe_type(value: &[u8]) -> Option<HeaderValue> {
    let essence = value.split(|byte| *byte == b';').next()?.trim_ascii();
    let slash = essence.iter().position(|byte| *byte == b'/')?;
    let (main, sub) = essence.split_at_checked(slash)?;
    let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(byte);
    let sub = sub.get(1..)?;
    let fine = !main.is_empty() && !sub.is_empty() && main.iter().all(token) && sub.iter().all(token);
    let fine = fine && value.len() <= 200 && value.is_ascii();
    fine.then(|| HeaderValue::from_bytes(value).ok()).flatten()
}

/// What every stored page is served with, whatever it is.
pub(super) const SAFE: [(HeaderName, HeaderValue); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'; font-src data:; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
        ),
    ),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("SAMEORIGIN")),
];

const PAGE_URL: HeaderName = HeaderName::from_static("webbase-url");
const PAGE_ID: HeaderName = HeaderName::from_static("webbase-page-id");
const PAGE_STATUS: HeaderName = HeaderName::from_static("webbase-status");
const GENERATION: HeaderName = HeaderName::from_static("webbase-generation");
const MEMENTO_DATETIME: HeaderName = HeaderName::from_static("memento-datetime");

fn answer(record: &Record, generation: u64, shown: Shown, asked: &HeaderMap) -> Response {
    let page = record.get();
    let (key, version) = (page.key(), page.version());
    let id = long_name(key);
    let validators = Validators {
        etag: format!("\"{id}-{:x}-{:016x}{}\"", version.fetched_at_ms, version.digest, shown.form),
        modified_at_ms: page.modified_at_ms().unwrap_or(page.fetched_at_ms()),
    };
    let mut headers = HeaderMap::with_capacity(24);
    for (name, value) in SAFE {
        headers.insert(name, value);
    }
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    set(&mut headers, header::ETAG, &validators.etag);
    set(&mut headers, header::LAST_MODIFIED, &validators.last_modified());
    set(&mut headers, MEMENTO_DATETIME, &http_date(page.fetched_at_ms()));
    set(&mut headers, PAGE_ID, &id);
    set(&mut headers, PAGE_URL, &visible(page.url()));
    headers.insert(PAGE_STATUS, HeaderValue::from(page.status()));
    if generation != webbase_node::plan::LIVE {
        headers.insert(GENERATION, HeaderValue::from(generation));
    }
    if validators.not_modified(asked) {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    if let Some(coding) = shown.coding {
        headers.insert(header::CONTENT_ENCODING, coding);
    }
    let wanted = validators.range(asked).map_or(Wanted::Whole, |range| wanted(range, shown.body.len()));
    partial(headers, shown.kind, shown.body, wanted)
}

/// Answers with what was wanted of a body.
pub(super) fn partial(mut headers: HeaderMap, kind: HeaderValue, body: Pieces, wanted: Wanted) -> Response {
    let len = body.len();
    let (status, body) = match wanted {
        Wanted::Whole => (StatusCode::OK, body),
        Wanted::Nothing => {
            let text = format!("the body has {len} bytes");
            let mut response =
                Problem::new(StatusCode::RANGE_NOT_SATISFIABLE, "no-such-range", text).into_response();
            set(response.headers_mut(), header::CONTENT_RANGE, &format!("bytes */{len}"));
            return response;
        }
        Wanted::Parts(parts) => match parts.as_slice() {
            [part] => {
                let text = format!("bytes {}-{}/{len}", part.start, part.end.saturating_sub(1));
                set(&mut headers, header::CONTENT_RANGE, &text);
                (StatusCode::PARTIAL_CONTENT, Pieces::new(body.slice(part.clone())))
            }
            parts => {
                let mut pieces = Vec::with_capacity(parts.len() * 2 + 1);
                let own = kind.to_str().unwrap_or_default();
                for part in parts {
                    let (first, last) = (part.start, part.end.saturating_sub(1));
                    let head = format!(
                        "\r\n--{BOUNDARY}\r\nContent-Type: {own}\r\nContent-Range: bytes {first}-{last}/{len}\r\n\r\n"
                    );
                    pieces.push(Bytes::from(head));
                    pieces.extend(body.slice(part.clone()));
                }
                pieces.push(Bytes::from(format!("\r\n--{BOUNDARY}--\r\n")));
                let text = format!("multipart/byteranges; boundary={BOUNDARY}");
                set(&mut headers, header::CONTENT_TYPE, &text);
                (StatusCode::PARTIAL_CONTENT, Pieces::new(pieces))
            }
        },
    };
    headers.entry(header::CONTENT_TYPE).or_insert(kind);
    let mut response = Response::new(body.into_body());
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

pub(super) fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// A URL as a header can have it: what is not visible ASCII is percent-encoded.
pub(super) fn visible(url: &str) -> String {
    let mut out = String::with_capacity(url.len());
    for byte in url.bytes() {
        match byte {
            b'!'..=b'~' => out.push(char::from(byte)),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_content_types_are_content_types() {
        for fine in ["text/html", "Text/HTML; charset=\"utf-8\"", "application/vnd.x+json", "image/svg+xml"] {
            assert!(safe_type(fine.as_bytes()).is_some(), "{fine}");
        }
        for bad in ["", "html", "/", "text/", "text/html\u{e9}", "te xt/html", "text/ht ml", "a/b\r\nx: y"] {
            assert!(safe_type(bad.as_bytes()).is_none(), "{bad}");
        }
        assert_eq!(content_type(b"s\r\nContent-Type: nonsense\r\n\r\n", "text/css"), "text/css");
        assert_eq!(content_type(b"", ""), "application/octet-stream");
    }

    #[test]
    fn pages_are_named_by_ids_and_keys() {
        assert!(matches!(name("00abcdef01234567"), Ok(Name::Id(_))));
        let key = PageKey { id: PageId(7), tie: 9 };
        assert!(matches!(name(&long_name(key)), Ok(Name::Key(found)) if found == key));
        for bad in ["", "zz", "00abcdef0123456", &"é".repeat(16), &"+".repeat(32)] {
            assert!(name(bad).is_err(), "{bad}");
        }
        assert_eq!(visible("http://h/ä b\n"), "http://h/%C3%A4%20b%0A");
    }
}
