//! `GET /web?q=…`: captures as XML, as OpenWayback and pywb's `xmlquery` ask OutbackCDX for them.
//!
//! ```text
//!   q=type:urlquery url:http%3A%2F%2Fexample.org%2F      the captures of a URL, the oldest first
//!   q=type:prefixquery url:http%3A%2F%2Fexample.org%2F   the URLs that begin so, each with the number of its captures
//! ```
//!
//! Words of `q` are between blanks, and percent-encoded once more. `count` and `start_page` say which part is wanted; older clients
//! say `limit:` and `offset:` within `q`.

use std::fmt::Write;

use axum::body::Body;
use axum::response::Response;
use webbase_storage::surt::{Match, Profile};

use super::capture::{Capture, Field};
use super::rows::Rows;
use super::{Gateway, Problem, answer};
use crate::gateway::memento;
use crate::gateway::params::Params;

/// Results that an answer has when nothing is said, and at most; and up to how many are counted.
const RESULTS: u64 = 10_000;
const KIND: &str = "application/xml; charset=utf-8";

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
struct Query {
    by_prefix: bool,
    url: String,
    /// Results that are passed over, and that are wanted.
    offset: u64,
    limit: u64,
}

impl Query {
    /// Reads it; `None` when it is of a type that is not known.
    fn parse(text: &str, mut params: Params) -> Result<Option<Query>, Problem> {
        let (mut kind, mut url, mut offset, mut limit) = ("urlquery".to_owned(), None, 0, RESULTS);
        let number = |name: &str, text: &str| {
            let bad = || Problem::bad("bad-parameter", format!("{name} is a number, not {text:.50}"));
            text.parse::<u64>().map_err(|_| bad())
        };
        for word in text.split(' ').filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once(':').unwrap_or((word, ""));
            let value = memento::decoded(value).unwrap_or_else(|| value.to_owned());
            match name {
                "type" => kind = value.to_ascii_lowercase(),
                "url" => url = Some(value),
                "offset" => offset = number("offset", &value)?,
                "limit" => limit = number("limit", &value)?,
                // Dates: a page has one capture, so there is nothing to choose.
                _ => {}
            }
        }
        limit = params.number("count")?.unwrap_or(limit).min(RESULTS);
        if let Some(page) = params.number("start_page")? {
            offset = limit.saturating_mul(page.saturating_sub(1));
        }
        let Some(url) = url.filter(|url| !url.is_empty()) else {
            return Err(Problem::bad(
                "no-url",
                "which URL? ?q=type:urlquery+url:http%253A%252F%252Fexample.org%252F",
            ));
        };
        let by_prefix = match &kind[..] {
            "urlquery" => false,
            "prefixquery" => true,
            _ => return Ok(None),
        };
        Ok(Some(Query { by_prefix, url, offset, limit }))
    }
}

pub(super) async fn serve(gateway: &Gateway, text: &str, params: Params) -> Result<Response, Problem> {
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<wayback>\n");
    match Query::parse(text, params)? {
        None => error("Unsupported query type", "This type of query is not known here.", &mut out),
        Some(query) => results(gateway, &query, &mut out).await?,
    }
    out.push_str("</wayback>\n");
    Ok(answer(KIND, Body::from(out)))
}

async fn results(gateway: &Gateway, query: &Query, out: &mut String) -> Result<(), Problem> {
    let by = if query.by_prefix { Match::Prefix } else { Match::Exact };
    let range = Profile::Ia1.range(&query.url, by).map_err(|e| Problem::bad("bad-url", e.to_string()))?;
    let mut rows = Rows::all(&gateway.cluster, &range).await?;
    let (mut found, mut returned) = (0, 0);
    let mut group: Option<Group> = None;
    let mut element = |text: String| {
        if (query.offset..query.offset.saturating_add(query.limit)).contains(&found) {
            out.push_str(if returned == 0 { "<results>\n" } else { "" });
            out.push_str(&text);
            returned += 1;
        }
        found += 1;
        found < RESULTS.max(query.offset.saturating_add(query.limit))
    };
    loop {
        let capture = rows.next().await?;
        let goes_on = match (query.by_prefix, capture) {
            (false, Some(capture)) => element(captured(&capture)),
            (false, None) => false,
            (true, Some(capture)) => match &mut group {
                Some(same) if same.first.urlkey == capture.urlkey => {
                    same.add(capture);
                    true
                }
                _ => group.replace(Group::of(capture)).is_none_or(|last| element(last.written())),
            },
            (true, None) => {
                if let Some(last) = group.take() {
                    element(last.written());
                }
                false
            }
        };
        if !goes_on {
            break;
        }
    }
    if returned == 0 {
        error("Resource Not In Archive", "The Resource you requested is not in this archive.", out);
        return Ok(());
    }
    let (kind, results) = match query.by_prefix {
        true => ("prefixquery", "resultstypeurl"),
        false => ("urlquery", "resultstypecapture"),
    };
    out.push_str("</results>\n<request>");
    for (name, value) in [
        ("startdate", "19960101000000"),
        ("enddate", "29991231235959"),
        ("type", kind),
        ("firstreturned", &query.offset.to_string()),
        ("url", &range.start),
        ("resultsrequested", &query.limit.to_string()),
        ("resultstype", results),
        ("numreturned", &returned.to_string()),
        ("numresults", &found.to_string()),
    ] {
        tag(name, value, out);
    }
    out.push_str("</request>\n");
    Ok(())
}

/// A capture as a result.
fn captured(capture: &Capture) -> String {
    let mut out = String::from("<result>");
    for (name, field) in [
        ("compressedoffset", Field::Offset),
        ("compressedendoffset", Field::Length),
        ("mimetype", Field::Mime),
        ("file", Field::Filename),
        ("redirecturl", Field::Redirect),
        ("urlkey", Field::Urlkey),
        ("digest", Field::Digest),
        ("httpresponsecode", Field::Status),
        ("robotflags", Field::Robotflags),
        ("url", Field::Url),
        ("capturedate", Field::Timestamp),
    ] {
        tag(name, &capture.text(field), &mut out);
    }
    out.push_str("</result>\n");
    out
}

/// The captures of one SURT key.
struct Group {
    first: Capture,
    last: Option<Capture>,
    captures: u64,
    versions: u64,
}

impl Group {
    fn of(first: Capture) -> Group {
        Group { first, last: None, captures: 1, versions: 1 }
    }

    fn add(&mut self, capture: Capture) {
        let last = self.last.as_ref().unwrap_or(&self.first);
        self.captures += 1;
        self.versions += u64::from(last.digest != capture.digest);
        self.last = Some(capture);
    }

    fn written(&self) -> String {
        let last = self.last.as_ref().unwrap_or(&self.first);
        let mut out = String::from("<result>");
        for (name, value) in [
            ("urlkey", &last.urlkey),
            ("originalurl", &last.url),
            ("numversions", &self.versions.to_string()),
            ("numcaptures", &self.captures.to_string()),
            ("firstcapturets", &self.first.timestamp),
            ("lastcapturets", &last.timestamp),
        ] {
            tag(name, value, &mut out);
        }
        out.push_str("</result>\n");
        out
    }
}

fn error(title: &str, message: &str, out: &mut String) {
    out.push_str("<error>");
    tag("title", title, out);
    tag("message", message, out);
    out.push_str("</error>\n");
}

/// An element with this text. Characters that XML has no place for are left out.
fn tag(name: &str, text: &str, out: &mut String) {
    let _ = write!(out, "<{name}>"); // writing to memory
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\t' | '\n' | '\r' | ' '..='\u{fffd}' | '\u{10000}'.. => out.push(char),
            _ => {}
        }
    }
    let _ = write!(out, "</{name}>");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str, more: &str) -> Result<Option<Query>, Problem> {
        Query::parse(text, Params::parse(Some(more))?)
    }

    #[test]
    fn old_and_new_clients_are_understood() {
        let asked = query("type:urlquery url:http%3A%2F%2Fh%2Fa%20b", "").unwrap().unwrap();
        assert_eq!(asked, Query { by_prefix: false, url: "http://h/a b".into(), offset: 0, limit: RESULTS });
        let asked =
            query("type:prefixquery offset:5 limit:7 url:http%3A//h/ startdate:2001", "").unwrap().unwrap();
        assert_eq!((asked.by_prefix, asked.offset, asked.limit), (true, 5, 7));
        let asked = query("url:h.com", "count=10&start_page=3").unwrap().unwrap();
        assert_eq!((asked.offset, asked.limit), (20, 10));
        assert_eq!(query("type:closestquery url:h", "").unwrap(), None);
        assert!(query("type:urlquery", "").is_err());
        assert!(query("url:h limit:many", "").is_err());
    }

    #[test]
    fn text_is_text() {
        let mut out = String::new();
        tag("url", "http://h/?a=1&b=<\u{1}>", &mut out);
        assert_eq!(out, "<url>http://h/?a=1&amp;b=&lt;&gt;</url>");
    }
}
