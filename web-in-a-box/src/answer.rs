//! What a site answers at a moment: the whole of HTTP that needs no socket.

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;

use crate::site::Dates;
use crate::world::World;

/// What is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// The site's host, in lower case, without a port.
    pub host: &'a str,
    /// The path, from its first slash; a query is part of it.
    pub path: &'a str,
    /// The `If-Modified-Since` header.
    pub if_modified_since: Option<&'a str>,
    /// The `If-None-Match` header.
    pub if_none_match: Option<&'a str>,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The headers, without `Content-Length`.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Bytes,
}

/// A page as a fetch at some moment gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Where.
    pub url: String,
    /// Its MIME type, without parameters.
    pub mime: &'static str,
    /// The HTTP head.
    pub head: Vec<u8>,
    /// The body.
    pub body: Bytes,
    /// When it last changed: the truth, told or not.
    pub modified_at_ms: u64,
}

impl Answer {
    fn none(status: u16, text: &str) -> Answer {
        let headers = vec![("content-type", "text/plain; charset=utf-8".to_owned())];
        Answer { status, headers, body: Bytes::from(format!("{text}\n")) }
    }
}

impl World {
    /// What a site answers at a moment. A page that is not there yet is unknown (404), one that died is gone (410).
    pub fn answer(&self, asked: &Asked<'_>, at_ms: u64) -> Answer {
        let Some(site) = self.site_of_host(asked.host) else {
            return Answer::none(421, "no such site in this box");
        };
        if let Some(file) = self.site_file(site, asked.path, at_ms) {
            let headers = vec![("content-type", file.mime.to_owned())];
            return Answer { status: 200, headers, body: Bytes::from(file.body) };
        }
        match self.page_at(site, asked.path) {
            None => Answer::none(404, "no such page"),
            Some(page) if self.lives(page, at_ms) => self.answer_page(page, asked, at_ms),
            Some(page) if self.born_at_ms(page) > at_ms => Answer::none(404, "no such page"),
            Some(_) => Answer::none(410, "the page is gone"),
        }
    }

    fn answer_page(&self, page: usize, asked: &Asked<'_>, at_ms: u64) -> Answer {
        let (version, modified_at_ms) = self.version(page, at_ms);
        let (tag, date) = (format!("\"{page:x}-{version:x}\""), http_date(modified_at_ms));
        let dates = self.dates(self.site_of(page));
        let same_tag = asked.if_none_match.map(|tags| tags.split(',').any(|one| one.trim() == tag));
        let same_date = asked.if_modified_since.and_then(|since| httpdate::parse_http_date(since).ok());
        // Dates have whole seconds.
        let same_date = same_date.map(|since| since + Duration::from_secs(1) > moment(modified_at_ms));
        let same = match dates {
            Dates::Both => same_tag.or(same_date).unwrap_or(false),
            Dates::TagOnly => same_tag.unwrap_or(false),
            Dates::Neither => false,
        };
        let mut headers = Vec::new();
        if dates != Dates::Neither {
            headers.push(("etag", tag));
        }
        if dates == Dates::Both {
            headers.push(("last-modified", date));
        }
        if same {
            return Answer { status: 304, headers, body: Bytes::new() };
        }
        headers.push(("content-type", format!("{}; charset=utf-8", self.kind(page).mime())));
        Answer { status: 200, headers, body: Bytes::from(self.body(page, at_ms)) }
    }

    /// What a fetch of a page gets at a moment; `None` when it is not there.
    pub fn fetch(&self, page: usize, at_ms: u64) -> Option<Fetched> {
        if !self.lives(page, at_ms) {
            return None;
        }
        let (host, path) = (self.host(self.site_of(page)), self.path(page));
        let answer = self.answer_page(page, &Asked { host: &host, path: &path, ..Asked::default() }, at_ms);
        let mut head = "HTTP/1.1 200 OK\r\n".to_owned();
        for (name, value) in &answer.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("content-length: {}\r\n\r\n", answer.body.len()));
        Some(Fetched {
            url: self.url(page),
            mime: self.kind(page).mime(),
            head: head.into_bytes(),
            body: answer.body,
            modified_at_ms: self.version(page, at_ms).1,
        })
    }
}

fn moment(at_ms: u64) -> std::time::SystemTime {
    UNIX_EPOCH + Duration::from_millis(at_ms)
}

fn http_date(at_ms: u64) -> String {
    httpdate::fmt_http_date(moment(at_ms))
}
