//! The CDX server API: which pages are there under a URL, a prefix, a host or a domain. Three dialects, each on its own path.
//!
//! ```text
//!   /cdx, /web/cdx, /web-index            pywb and Common Crawl: CDXJ lines; 404 when there is nothing
//!   /cdx/search/cdx, /web/timemap/cdx     Internet Archive: seven fields; resume keys; limit=-N
//!   /web                                  OutbackCDX: CDX lines of 11 fields; XML with q=
//! ```
//!
//! 1. A repository is one collection, and its name is `web`.
//! 2. Lines come in order of SURT keys, then of times (`rows.rs`), are chosen (`select.rs`) and written (`lines.rs`) one after the
//!    other: an answer of a hundred thousand lines waits nowhere as a whole.
//! 3. `filename`, `offset` and `length` name a WARC record that `/warcs/` serves, for as long as the page's version is there.
//! 4. `page=` cuts the rows at SURT keys into about equal parts, without reading what is before. Filters don't change where the
//!    cuts are, so a page has fewer lines then. `showRanges=N` tells the same cuts as URLs of their own.
//! 5. A resume key is a place behind a line, whatever the fields, the encoding and the generation.

mod ask;
mod capture;
mod filter;
mod lines;
#[cfg(test)]
mod oracle;
mod rows;
mod select;
mod xml;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use bytes::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, StatusCode};
use serde_json::json;
use tokio::sync::mpsc;
use webbase_storage::surt::{KeyRange, Match, Profile};

pub(super) use self::ask::BEHIND_ALL;
pub(super) use self::capture::{seconds, timestamp};
pub(super) use self::rows::Rows;

use self::ask::{Ask, Dialect, Output, Place, Sort};
use self::capture::Capture;
use self::lines::Lines;
use self::select::Select;
use super::Gateway;
use super::body::{CutOff, Sending, Sent};
use super::operation::{Operation, Parameter, query};
use super::params::Params;
use super::problem::Problem;

/// Lines of a block, of which pages are made.
const BLOCK_LINES: u64 = 3000;
/// An answer leaves in pieces of about so many bytes.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces that wait for the socket.
const PIECES: usize = 4;
/// Lines that are looked at for the closest ones, unless one URL is asked about.
const SCANNED_MAX: u64 = 1_000_000;

fn parameters() -> Vec<Parameter> {
    vec![
        query("url", "string", "a URL, a prefix ending in *, or *.domain").required(),
        query(
            "matchType",
            "string",
            "exact, prefix, host or domain; range, from the URL on, in OutbackCDX's dialect",
        ),
        query("from", "string", "captures from this time on, 1 to 14 digits"),
        query("to", "string", "captures up to this time, 1 to 14 digits"),
        query("limit", "string", "at most so many lines; -N the last N, in the Internet Archive's dialect"),
        query("sort", "string", "reverse, or closest with closest="),
        query("closest", "string", "a time of 4 to 14 digits"),
        query("filter", "string", "[!][=|~]field:expression, in the dialect's meaning; may be repeated"),
        query("fl", "string", "the fields wanted, with commas between"),
        query("output", "string", "cdxj, json, text, link or jsondict, as far as the dialect has it"),
        query("collapse", "string", "of neighbours with one value of field, or field:N, the first"),
        query("page", "string", "this part of the answer, from 0"),
        query("pageSize", "string", "blocks of 3000 lines in a page"),
        query("showNumPages", "string", "how many pages there are"),
        query("showRanges", "string", "a list of so many URLs that together tell the same lines"),
        query("showResumeKey", "string", "tell where to go on"),
        query("resumeKey", "string", "go on there"),
    ]
}

pub(super) fn operations() -> Vec<Operation> {
    let one = |path, name, summary, dialect: Dialect| {
        let answers: &'static [super::operation::Answer] = match dialect {
            Dialect::Pywb => &[
                (200, "text/x-cdxj", "Lines"),
                (
                    400,
                    "application/problem+json",
                    "A parameter makes no sense, or the page is beyond the end",
                ),
                (404, "application/json", "There are none"),
            ],
            _ => &[
                (200, "text/plain", "Lines"),
                (400, "application/problem+json", "A parameter makes no sense"),
            ],
        };
        Operation {
            path,
            method: "get",
            name,
            summary,
            parameters: parameters(),
            body: None,
            answers,
            is_long: true,
            route: route(dialect),
        }
    };
    vec![
        one("/cdx", "cdx", "Captures, as pywb's CDX server tells them", Dialect::Pywb),
        one("/web/cdx", "cdx_of_web", "Captures, as pywb's CDX server tells them", Dialect::Pywb),
        one("/web-index", "cdx_index", "Captures, as Common Crawl's index tells them", Dialect::Pywb),
        one(
            "/cdx/search/cdx",
            "cdx_archive",
            "Captures, as the Internet Archive's CDX server tells them",
            Dialect::Archive,
        ),
        one(
            "/web/timemap/cdx",
            "cdx_timemap",
            "Captures, as the Internet Archive's CDX server tells them",
            Dialect::Archive,
        ),
        one("/web", "cdx_outback", "Captures, as OutbackCDX tells them", Dialect::Outback),
    ]
}

fn route(dialect: Dialect) -> MethodRouter<Arc<Gateway>> {
    let answer = move |State(gateway): State<Arc<Gateway>>, request: Request| async move {
        let (parts, _) = request.into_parts();
        let mut response = match serve(gateway, dialect, &parts).await {
            Ok(response) => response,
            Err(problem) => problem.into_response(),
        };
        super::cors::allow(response.headers_mut());
        response
    };
    get(answer).options(super::cors::options)
}

async fn serve(gateway: Arc<Gateway>, dialect: Dialect, request: &Parts) -> Result<Response, Problem> {
    let mut params = Params::parse(request.uri.query())?;
    if dialect == Dialect::Outback
        && let Some(query) = params.take("q")?
    {
        return xml::serve(&gateway, &query, params).await;
    }
    let ask = Ask::parse(params, dialect)?;
    let base = super::memento::base(&gateway, &request.headers);
    if let Some(parts) = ask.ranges {
        return ranges(&gateway, &ask, parts, &base, &request.uri).await;
    }
    if ask.show_pages {
        return pages(&gateway, &ask).await;
    }
    let mut range = ask.range.clone();
    if let Some(page) = ask.paging.page {
        match page_range(&gateway, &ask, page).await? {
            Some(part) => range = part,
            None if dialect == Dialect::Pywb && page > 0 => {
                return Err(Problem::bad("no-such-page", format!("page {page} is beyond the last one")));
            }
            None => return Ok(nothing(&Arc::new(ask), base)),
        }
    }
    let resume = ask.resume.clone();
    let rows = Rows::open(&gateway.cluster, &range, ask.descends(), resume).await?;
    // The first piece is made before anything is said, so that what goes wrong at once has a status.
    let mut made = Made::new(Arc::new(ask), rows, base.clone());
    let over = made.piece().await?;
    if over && made.rows_out == 0 {
        return Ok(nothing(&made.ask, base));
    }
    let kind = made.lines.kind();
    let first = std::mem::take(&mut made.out);
    if over || request.method == Method::HEAD {
        return Ok(answer(kind, Body::from(first)));
    }
    let Ok(permit) = gateway.streams.clone().try_acquire_owned() else {
        let text = format!("{} long answers are being sent already", gateway.limits.streams_max);
        return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-streams", text).after_s(5));
    };
    let (sender, receiver) = mpsc::channel(PIECES);
    tokio::spawn(made.send(first, sender));
    Ok(answer(kind, Body::new(Sending { receiver, _permit: permit })))
}

/// An answer that is being made.
struct Made {
    ask: Arc<Ask>,
    rows: Rows,
    select: Select,
    lines: Lines,
    out: String,
    rows_out: u64,
    scanned: u64,
    /// The last line that was written.
    last: Option<Place>,
}

impl Made {
    fn new(ask: Arc<Ask>, rows: Rows, base: String) -> Made {
        let (select, lines) = (Select::new(ask.clone()), Lines::new(ask.clone(), base));
        Made { ask, rows, select, lines, out: String::new(), rows_out: 0, scanned: 0, last: None }
    }

    /// Makes the next piece of it; says whether it was the last.
    async fn piece(&mut self) -> Result<bool, Problem> {
        while self.out.len() < PIECE_BYTES {
            while let Some(capture) = self.select.out.pop_front() {
                self.lines.line(&capture, &mut self.out);
                self.rows_out += 1;
                let Capture { urlkey: surt, timestamp, key, .. } = capture;
                self.last = key.map(|key| Place { surt, timestamp, key });
            }
            let next = if self.select.is_over() { None } else { self.rows.next().await? };
            let Some(capture) = next else {
                self.select.finish();
                if !self.select.out.is_empty() {
                    continue;
                }
                let wanted = self.ask.show_resume && self.select.more;
                let resume = self.last.as_ref().filter(|_| wanted).map(Place::encode);
                self.lines.end(resume.as_deref(), &mut self.out);
                return Ok(true);
            };
            self.scanned += 1;
            let scans = matches!(self.ask.sort, Sort::Closest(_)) && self.ask.by != Match::Exact;
            if scans && self.scanned > SCANNED_MAX {
                let text =
                    format!("more than {SCANNED_MAX} captures to find the closest among; ask for fewer");
                return Err(Problem::bad("too-much", text));
            }
            self.select.push(capture);
        }
        Ok(false)
    }

    async fn send(mut self, first: String, sender: mpsc::Sender<Sent>) {
        let mut piece = Bytes::from(first);
        let mut over = false;
        while sender.send(Sent::Data(piece)).await.is_ok() && !over {
            over = match self.piece().await {
                Ok(over) => over,
                Err(problem) => {
                    let why = CutOff(problem.detail().to_owned());
                    drop(sender.send(Sent::Failed(why)).await); // who does not read any more need not know
                    return;
                }
            };
            piece = Bytes::from(std::mem::take(&mut self.out));
        }
    }
}

fn answer(kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    let headers: &mut HeaderMap = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// There is nothing to tell.
fn nothing(ask: &Arc<Ask>, base: String) -> Response {
    if ask.dialect == Dialect::Pywb && ask.output != Output::Link {
        let url: String = ask.url.chars().take(500).collect();
        let text = json!({"message": format!("No Captures found for: {url}")});
        let mut response = answer("application/json", Body::from(format!("{text}\n")));
        *response.status_mut() = StatusCode::NOT_FOUND;
        return response;
    }
    let (mut lines, mut out) = (Lines::new(ask.clone(), base), String::new());
    lines.end(None, &mut out);
    answer(lines.kind(), Body::from(out))
}

/// How many lines there are, as far as no filter or time counts, and how many pages they make.
async fn counted(gateway: &Gateway, ask: &Ask) -> Result<(u64, bool, u32), Problem> {
    let count = gateway.cluster.url_count(&ask.range.start, Some(&ask.range.end)).await?.pages;
    let pages = count.rows.div_ceil(BLOCK_LINES * ask.paging.size).max(u64::from(count.rows > 0));
    Ok((count.rows, count.is_exact, pages.min(1 << 20) as u32))
}

async fn pages(gateway: &Gateway, ask: &Ask) -> Result<Response, Problem> {
    let (rows, is_exact, pages) = counted(gateway, ask).await?;
    if ask.dialect == Dialect::Archive {
        return Ok(answer("text/plain; charset=utf-8", Body::from(format!("{pages}\n"))));
    }
    let value = json!({
        "pages": pages,
        "pageSize": ask.paging.size,
        "blocks": rows.div_ceil(BLOCK_LINES),
        "lines": rows,
        "exact": is_exact && ask.filters.is_empty() && ask.from.is_none() && ask.to.is_none(),
    });
    Ok(answer("application/json", Body::from(format!("{value}\n"))))
}

/// The keys of a page; `None` beyond the last one.
async fn page_range(gateway: &Gateway, ask: &Ask, page: u64) -> Result<Option<KeyRange>, Problem> {
    let (_, _, pages) = counted(gateway, ask).await?;
    if page >= u64::from(pages) {
        return Ok(None);
    }
    let (page, range) = (page as u32, &ask.range);
    let cuts = gateway.cluster.url_cuts(&range.start, Some(&range.end), pages, page..page + 2).await?;
    let cut = |at: usize| cuts.get(at).cloned();
    let start = cut(0).unwrap_or_else(|| if page == 0 { range.start.clone() } else { range.end.clone() });
    let end = cut(1).filter(|_| page + 1 < pages).unwrap_or_else(|| range.end.clone());
    Ok(Some(KeyRange { start, end }))
}

/// The query as several, each of a part of the keys.
async fn ranges(
    gateway: &Gateway,
    ask: &Ask,
    parts: u32,
    base: &str,
    uri: &hyper::Uri,
) -> Result<Response, Problem> {
    let range = &ask.range;
    let mut cuts = gateway.cluster.url_cuts(&range.start, Some(&range.end), parts, 0..parts).await?;
    cuts.dedup();
    cuts.push(range.end.clone());
    let query = uri.query().unwrap_or_default().split('&');
    let kept: Vec<&str> = query.filter(|pair| !pair.starts_with("showRanges=")).collect();
    let list: Vec<String> = cuts
        .windows(2)
        .filter_map(|two| {
            let [from, to] = two else { return None };
            let (from, to) = (super::memento::escaped(from), super::memento::escaped(to));
            Some(format!("{base}{}?{}&keyFrom={from}&keyTo={to}", uri.path(), kept.join("&")))
        })
        .collect();
    Ok(answer("application/json", Body::from(format!("{}\n", json!(list)))))
}

/// Rows as CDXJ lines.
pub(super) fn lines_of(rows: &[(webbase_storage::PageKey, webbase_storage::urls::UrlRow)]) -> String {
    let mut out = String::new();
    for (key, row) in rows {
        lines::cdxj(&Capture::of(*key, row), &mut out);
    }
    out
}

/// The captures of one URL, the oldest first: its spellings may be pages of their own.
pub(super) async fn captures_of(
    gateway: &Gateway,
    url: &str,
) -> Result<Vec<(webbase_storage::PageKey, webbase_storage::urls::UrlRow)>, Problem> {
    const MOST: usize = 10_000;
    let range = Profile::Ia1.range(url, Match::Exact).map_err(|e| Problem::bad("bad-url", e.to_string()))?;
    let mut rows = Rows::all(&gateway.cluster, &range).await?;
    let mut all = Vec::new();
    while let Some(row) = rows.next_row().await? {
        all.push(row);
        if all.len() == MOST {
            break;
        }
    }
    Ok(all)
}
