//! Memento (RFC 7089): pages by their URL and a time, under `/web/`.
//!
//! ```text
//!   /web/{url}                     TimeGate: 302 to the capture nearest to Accept-Datetime
//!   /web/{time}id_/{url}           memento: the page as it was stored; a time that is not exact redirects to the nearest
//!   /web/timemap/{form}/{url}      TimeMap: link, json or cdxj
//! ```
//!
//! A repository keeps the newest capture of each URL; several answer to one SURT key where spellings differ (`http`, `www.`, case).
//! The URL in the path is taken as it comes, query and all; percent-encoded (`http%3A//`) or with a slash lost (`http:/`) it is
//! the same. Stored pages stay in their sandbox; what their head said goes out as `X-Archive-Orig-*`, which means nothing to browsers.

use std::fmt::Write;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, StatusCode, Uri};
use serde_json::json;
use webbase_storage::PageKey;
use webbase_storage::urls::UrlRow;
use webbase_stream::http;

use super::conditions::http_date;
use super::operation::{ANY, Operation, query};
use super::page::{absent, set, show, visible};
use super::problem::Problem;
use super::{Gateway, cdx, cors};

const ACCEPT_DATETIME: HeaderName = HeaderName::from_static("accept-datetime");
const MEMENTO_DATETIME: HeaderName = HeaderName::from_static("memento-datetime");
/// Fields of a stored head that are told, and bytes of each, at most.
const FIELDS_MAX: usize = 60;
const FIELD_BYTES_MAX: usize = 4096;

pub(super) fn operations() -> Vec<Operation> {
    vec![Operation {
        path: "/web/{*url}",
        method: "get",
        name: "memento",
        summary: "Memento: TimeGate /web/URL, memento /web/TIMEid_/URL, TimeMap /web/timemap/link/URL",
        parameters: vec![
            query("*url", "string", "a URL; TIMEid_/URL; timemap/link/URL, or json, or cdxj").in_path(),
        ],
        body: None,
        answers: &[
            (200, ANY, "The page, or the TimeMap"),
            (302, "", "The nearest capture"),
            (404, "application/problem+json", "It is not in the repository"),
        ],
        is_long: false,
        route: get(serve).options(cors::options),
    }]
}

/// What a path under `/web/` asks for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Gate(String),
    Memento(String, String),
    Map(&'static str, String),
}

fn asked(uri: &Uri) -> Option<Asked> {
    let rest = uri.path().strip_prefix("/web/")?;
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    if let Some(rest) = rest.strip_prefix("timemap/") {
        let (form, url) = rest.split_once('/')?;
        let form = ["link", "json", "cdxj"].into_iter().find(|known| *known == form)?;
        return Some(Asked::Map(form, target(url, &query)?));
    }
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    if (4..=14).contains(&digits)
        && let (Some(time), Some(after)) = (rest.get(..digits), rest.get(digits..))
        && let Some((kind, url)) = after.split_once('/')
        && (kind.is_empty() || kind.len() == 3 && kind.ends_with('_'))
    {
        return Some(Asked::Memento(time.to_owned(), target(url, &query)?));
    }
    Some(Asked::Gate(target(rest, &query)?))
}

/// The URL that stands in a path.
fn target(path: &str, query: &str) -> Option<String> {
    let mut url = match path.get(..9).map(str::to_ascii_lowercase) {
        // Whoever encodes the colon has encoded everything.
        Some(start) if start.starts_with("http%3a") || start.starts_with("https%3a") => decoded(path)?,
        _ => path.to_owned(),
    };
    for scheme in ["http:/", "https:/"] {
        if let Some(rest) = url.strip_prefix(scheme)
            && !rest.starts_with('/')
        {
            url = format!("{scheme}/{rest}");
        }
    }
    if !url.contains("://") {
        url.insert_str(0, "http://");
    }
    url.push_str(query);
    (url.len() > "https://".len()).then_some(url)
}

/// A text without its percent-encoding.
pub(super) fn decoded(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                (digit()? << 4 | digit()?) as u8
            }
            other => other,
        });
    }
    String::from_utf8(out).ok()
}

/// A text as a parameter.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            other => _ = write!(out, "%{other:02X}"), // writing to memory
        }
    }
    out
}

/// Where this server is reached, as the client says it.
pub(super) fn base(gateway: &Gateway, headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    match host.is_empty() || host.len() > 255 || !host.bytes().all(fine) {
        true => String::new(),
        false => format!("{}://{host}", gateway.scheme),
    }
}

/// A URL within a link.
fn linked(url: &str) -> String {
    visible(url).replace('<', "%3C").replace('>', "%3E").replace('"', "%22").replace('#', "%23")
}

fn date_of(timestamp: &str) -> String {
    http_date(cdx::seconds(timestamp).unwrap_or(0).max(0) as u64 * 1000)
}

/// A memento in a TimeMap.
pub(super) fn link_line(base: &str, url: &str, timestamp: &str) -> String {
    let date = date_of(timestamp);
    format!("<{base}/web/{timestamp}id_/{}>; rel=\"memento\"; datetime=\"{date}\"", linked(url))
}

async fn serve(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let mut response = match answer(&gateway, &parts).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    };
    if !response.headers().contains_key(header::CONTENT_SECURITY_POLICY) {
        cors::allow(response.headers_mut());
    }
    response
}

async fn answer(gateway: &Gateway, request: &Parts) -> Result<Response, Problem> {
    let base = base(gateway, &request.headers);
    let Some(asked) = asked(&request.uri) else {
        return Err(Problem::bad("bad-url", "/web/ is followed by a URL, TIMEid_/URL, or timemap/link/URL"));
    };
    let (Asked::Gate(url) | Asked::Memento(_, url) | Asked::Map(_, url)) = &asked;
    let rows = cdx::captures_of(gateway, url).await?;
    if rows.is_empty() {
        return Err(absent(url));
    }
    match &asked {
        Asked::Gate(url) => gate(&base, url, &rows, &request.headers),
        Asked::Memento(time, url) => memento(gateway, &base, time, url, &rows, &request.headers).await,
        Asked::Map(form, url) => Ok(map(&base, form, url, &rows)),
    }
}

/// The row nearest to a time; of equals the one whose URL it is, then the newest.
pub(super) fn nearest<'a>(
    rows: &'a [(PageKey, UrlRow)],
    to_s: i64,
    url: &str,
) -> Option<&'a (PageKey, UrlRow)> {
    rows.iter().min_by_key(|(_, row)| {
        let at = (row.fetched_at_ms / 1000) as i64;
        (at.abs_diff(to_s), row.url != url, u64::MAX - row.fetched_at_ms)
    })
}

fn gate(base: &str, url: &str, rows: &[(PageKey, UrlRow)], headers: &HeaderMap) -> Result<Response, Problem> {
    let wanted = match headers.get(ACCEPT_DATETIME) {
        None => i64::MAX,
        Some(value) => {
            let time = value.to_str().ok().and_then(|text| httpdate::parse_http_date(text).ok());
            let time = time.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
            let bad = || Problem::bad("bad-date", "Accept-Datetime is a date as HTTP writes them");
            time.ok_or_else(bad)?.as_secs() as i64
        }
    };
    let Some((_, row)) = nearest(rows, wanted, url) else { return Err(absent(url)) };
    let mut response = StatusCode::FOUND.into_response();
    let headers = response.headers_mut();
    let time = cdx::timestamp(row.fetched_at_ms);
    set(headers, header::LOCATION, &format!("{base}/web/{time}id_/{}", linked(&row.url)));
    headers.insert(header::VARY, HeaderValue::from_static("accept-datetime"));
    set(headers, header::LINK, &links(base, &row.url, rows, row.fetched_at_ms));
    Ok(response)
}

/// The relations of a capture among those of its URL, the oldest first.
fn links(base: &str, url: &str, rows: &[(PageKey, UrlRow)], at_ms: u64) -> String {
    let linked = linked(url);
    let mut out = format!(
        "<{linked}>; rel=\"original\", <{base}/web/{linked}>; rel=\"timegate\", \
         <{base}/web/timemap/link/{linked}>; rel=\"timemap\"; type=\"application/link-format\""
    );
    let at = rows.iter().position(|(_, row)| row.fetched_at_ms == at_ms && row.url == url);
    let at = at.or_else(|| rows.iter().position(|(_, row)| row.fetched_at_ms == at_ms)).unwrap_or(0);
    let last = rows.len().saturating_sub(1);
    let mut told: Vec<(usize, &str)> = Vec::new();
    for (place, name) in [
        (Some(0), "first"),
        (at.checked_sub(1), "prev"),
        (Some(at), ""),
        (Some(at + 1).filter(|next| *next <= last), "next"),
        (Some(last), "last"),
    ] {
        told.extend(place.map(|place| (place, name)));
    }
    told.sort_by_key(|(place, _)| *place);
    let mut rest = told.as_slice();
    while let Some((place, _)) = rest.first() {
        let count = rest.iter().take_while(|(other, _)| other == place).count();
        let (same, after) = rest.split_at(count);
        rest = after;
        let names: Vec<&str> = same.iter().map(|(_, name)| *name).filter(|name| !name.is_empty()).collect();
        let rel = names.into_iter().chain(["memento"]).collect::<Vec<_>>().join(" ");
        if let Some((_, row)) = rows.get(*place) {
            let line = link_line(base, &row.url, &cdx::timestamp(row.fetched_at_ms));
            let _ = write!(out, ", {}", line.replace("rel=\"memento\"", &format!("rel=\"{rel}\""))); // writing to memory
        }
    }
    out
}

async fn memento(
    gateway: &Gateway,
    base: &str,
    time: &str,
    url: &str,
    rows: &[(PageKey, UrlRow)],
    asked: &HeaderMap,
) -> Result<Response, Problem> {
    let bad = || Problem::bad("bad-date", "a memento's time has 4 to 14 digits");
    let wanted = cdx::seconds(time).ok_or_else(bad)?;
    let Some((key, row)) = nearest(rows, wanted, url) else { return Err(absent(url)) };
    let exact = cdx::timestamp(row.fetched_at_ms);
    if exact != time {
        let mut response = StatusCode::FOUND.into_response();
        let place = format!("{base}/web/{exact}id_/{}", linked(&row.url));
        set(response.headers_mut(), header::LOCATION, &place);
        set(response.headers_mut(), header::LINK, &links(base, &row.url, rows, row.fetched_at_ms));
        return Ok(response);
    }
    let found = gateway.cluster.lookup(*key).await?;
    let Some(record) = found.pages else { return Err(absent(url)) };
    let head = record.head(gateway.cluster.dictionaries())?;
    let (status, at_ms) = (record.get().status(), record.get().fetched_at_ms());
    let mut response = show(gateway, record, found.generation, false, asked).await?;
    // A page that was not found is told as it was; where it led is told below, and followed by nobody unasked.
    if response.status() == StatusCode::OK && (400..600).contains(&status) {
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    }
    let headers = response.headers_mut();
    set(headers, MEMENTO_DATETIME, &http_date(at_ms));
    set(headers, header::LINK, &links(base, &row.url, rows, at_ms));
    for (name, value) in http::fields(&head).take(FIELDS_MAX) {
        let name = format!("x-archive-orig-{}", String::from_utf8_lossy(name).to_ascii_lowercase());
        let name = HeaderName::try_from(name).ok();
        let value = HeaderValue::from_bytes(value).ok().filter(|value| value.len() <= FIELD_BYTES_MAX);
        if let (Some(name), Some(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    Ok(response)
}

fn map(base: &str, form: &str, url: &str, rows: &[(PageKey, UrlRow)]) -> Response {
    let linked = linked(url);
    let times: Vec<(String, &str)> =
        rows.iter().map(|(_, row)| (cdx::timestamp(row.fetched_at_ms), row.url.as_str())).collect();
    let date = |at: Option<&(String, &str)>| at.map_or_else(String::new, |(time, _)| date_of(time));
    let (first, last) = (date(times.first()), date(times.last()));
    let own = format!("{base}/web/timemap/{form}/{linked}");
    let (kind, text) = match form {
        "json" => {
            let one = |(time, url): &(String, &str)| json!({"datetime": date_of(time), "timestamp": time, "uri": format!("{base}/web/{time}id_/{}", self::linked(url))});
            let value = json!({
                "original_uri": url,
                "self": own,
                "timegate_uri": format!("{base}/web/{linked}"),
                "mementos": {
                    "list": times.iter().map(one).collect::<Vec<_>>(),
                    "first": times.first().map(one),
                    "last": times.last().map(one),
                },
            });
            ("application/json", format!("{value}\n"))
        }
        "cdxj" => ("text/x-cdxj", cdx::lines_of(rows)),
        _ => {
            let mut text = format!(
                "<{own}>; rel=\"self\"; type=\"application/link-format\"; from=\"{first}\"; until=\"{last}\",\n\
                 <{base}/web/{linked}>; rel=\"timegate\",\n<{linked}>; rel=\"original\""
            );
            for (time, url) in &times {
                let _ = write!(text, ",\n{}", link_line(base, url, time)); // writing to memory
            }
            text.push('\n');
            ("application/link-format", text)
        }
    };
    let mut response = text.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_urls_times_and_maps() {
        let memento = |time: &str, url: &str| Asked::Memento(time.into(), url.into());
        for (path, expected) in [
            ("/web/http://h/a?b=c", Asked::Gate("http://h/a?b=c".into())),
            ("/web/http:/h/a", Asked::Gate("http://h/a".into())),
            ("/web/h/a", Asked::Gate("http://h/a".into())),
            ("/web/http%3A//h/a%20b", Asked::Gate("http://h/a b".into())),
            ("/web/20200101000000id_/http://h/a?x", memento("20200101000000", "http://h/a?x")),
            ("/web/2020id_/https%3A%2F%2Fh%2F", memento("2020", "https://h/")),
            ("/web/2020/https:/h/", memento("2020", "https://h/")),
            ("/web/2020.example/x", Asked::Gate("http://2020.example/x".into())),
            ("/web/timemap/link/http://h/", Asked::Map("link", "http://h/".into())),
            ("/web/timemap/json/http%3A%2F%2Fh%2F", Asked::Map("json", "http://h/".into())),
        ] {
            assert_eq!(asked(&path.parse().unwrap()), Some(expected), "{path}");
        }
        for bad in ["/web/", "/web/timemap/xml/http://h/", "/web/http%3A%zz", "/other/x"] {
            assert_eq!(asked(&bad.parse().unwrap()), None, "{bad}");
        }
    }

    #[test]
    fn links_name_every_capture_once() {
        let row = |ms, url: &str| {
            (PageKey::MIN, UrlRow { fetched_at_ms: ms, url: url.into(), ..UrlRow::default() })
        };
        let rows = [row(1_000, "http://h/"), row(2_000, "https://h/"), row(3_000, "http://www.h/")];
        let text = links("http://s", "https://h/", &rows, 2_000);
        assert_eq!(text.matches("memento\"").count(), 3, "{text}");
        assert!(
            text.contains("rel=\"first prev memento\"") && text.contains("rel=\"next last memento\""),
            "{text}"
        );
        let one = links("", "http://h/", &rows[..1], 1_000);
        assert!(
            one.contains("rel=\"first last memento\"; datetime=\"Thu, 01 Jan 1970 00:00:01 GMT\""),
            "{one}"
        );
    }
}
