//! What a crawl knows of one URL, in one row; and a link that was found, until it is known which URL it is.

use serde::{Deserialize, Serialize};
use url::Url;

use super::FrontierError;
use crate::fetcher::Priority;
use crate::scheduler::Publication;

/// The first byte of a row: its layout. Rows of layout 2 end before `told_at_ms`; those of others are refused.
const LAYOUT: u8 = 3;
const LAYOUT_BEFORE: u8 = 2;
/// What rows of layout 2 lack: nothing was told, and it is no part of another page.
const LACKING: [u8; 2] = [0, 0];
/// The first byte of a link: its layout.
const FOUND_LAYOUT: u8 = 2;

/// How a URL stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// It is known, and the scheduler has not asked for it yet.
    Known,
    /// It is wanted.
    Waiting,
    /// It was read: a page came, or was not modified.
    Read,
    /// It could not be had, or is not there.
    Failed,
    /// It is dead: gone again and again.
    Dead,
}

/// What a URL is to the crawl.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// A page.
    Page,
    /// A sitemap: read for its entries, not kept.
    Sitemap,
    /// A metadata archive: read for its entries, not kept.
    Archive,
    /// The robots file of a site that has archives: read for their names, not kept.
    Robots,
}

/// What a crawl knows of one URL. What visits said of it stands in the refresh table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Where.
    pub url: String,
    /// How it stands.
    pub state: State,
    /// What it is.
    pub what: What,
    /// How many links from a seed.
    pub depth: u16,
    /// How many redirects led to it.
    pub redirects: u8,
    /// How often it was tried in vain.
    pub tries: u8,
    /// How urgent it is, the most urgent being 0.
    pub urgency: u8,
    /// Whether it may be XML, going by its name and by where it was found.
    pub is_suspect: bool,
    /// Whether its site's own list of pages has it, with the date of its last change.
    pub is_listed: bool,
    /// What somebody published about it.
    pub published: Publication,
    /// Its place among those that wait; the frontier's own.
    pub place: Option<(u8, u64)>,
    /// When it was last read, in milliseconds since 1970; 0: never.
    pub read_at_ms: u64,
    /// The `ETag` of what was read.
    pub etag: Option<String>,
    /// The `Last-Modified` of what was read, in milliseconds since 1970.
    pub modified_at_ms: Option<u64>,
    /// When its site's own list of pages says that it last changed, in milliseconds since 1970.
    pub told_at_ms: Option<u64>,
    /// Whether it is a part of another page, wanted whatever its type is.
    pub is_part: bool,
}

impl Row {
    /// The row of a URL that nobody knew.
    pub(super) fn of(found: &Found, waits: bool) -> Row {
        Row {
            url: found.url.clone(),
            state: if waits { State::Waiting } else { State::Known },
            what: found.what,
            depth: found.depth,
            redirects: found.redirects,
            tries: 0,
            urgency: found.urgency,
            is_suspect: found.is_suspect,
            is_listed: found.changed_at_ms.is_some(),
            published: Publication::None,
            place: None,
            read_at_ms: 0,
            etag: None,
            modified_at_ms: None,
            told_at_ms: found.changed_at_ms,
            is_part: found.is_part(),
        }
    }

    /// Whether its site says that it changed since it was read.
    pub fn is_told_changed(&self) -> bool {
        self.read_at_ms > 0 && self.told_at_ms > Some(self.read_at_ms)
    }

    /// Its host.
    pub fn host(&self) -> &str {
        host_of(&self.url)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![LAYOUT]).unwrap_or_default()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Row, FrontierError> {
        let read = |bytes: &[u8]| postcard::from_bytes(bytes).map_err(|e| FrontierError::Row(e.to_string()));
        match bytes.split_first() {
            Some((&LAYOUT, rest)) => read(rest),
            Some((&LAYOUT_BEFORE, rest)) => read(&[rest, &LACKING].concat()),
            _ => Err(FrontierError::Row("its layout is not known".to_owned())),
        }
    }
}

/// The host of a URL that was parsed before.
pub(crate) fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let place = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let place = place.rsplit('@').next().unwrap_or(place);
    match place.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => place,
    }
}

/// A URL that was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Where.
    pub url: String,
    /// How many links from a seed.
    pub depth: u16,
    /// How many redirects led to it.
    pub redirects: u8,
    /// What it is.
    pub what: What,
    /// How urgent it is, the most urgent being 0.
    pub urgency: u8,
    /// Whether it may be XML.
    pub is_suspect: bool,
    /// Whether it is to be read at once even if it was read before.
    pub again: bool,
    /// When its site says that it last changed, in milliseconds since 1970.
    pub changed_at_ms: Option<u64>,
    /// What the page that links to it deals it: see `crawl/worth.rs`.
    pub share: f32,
    /// Its canonical form and the key of that, where whoever found it has them already; they are not written down.
    #[serde(skip)]
    pub named: Option<(String, u128)>,
}

impl Found {
    /// A page, nothing else being known about it.
    pub fn page(url: &Url, depth: u16, priority: Priority) -> Found {
        Found {
            url: url.to_string(),
            depth,
            redirects: 0,
            what: What::Page,
            urgency: priority as u8,
            is_suspect: crate::scheduler::is_xml_suspect(url.as_str(), false),
            again: false,
            changed_at_ms: None,
            share: 0.0,
            named: None,
        }
    }

    /// Whether what it says concerns a page that is known already, beside what it deals it.
    pub(super) fn says_something(&self) -> bool {
        self.again || self.changed_at_ms.is_some() || self.is_part()
    }

    /// Whether a page that is being loaded consists of it.
    pub(super) fn is_part(&self) -> bool {
        self.urgency == Priority::Loader as u8
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![FOUND_LAYOUT]).unwrap_or_default()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Found, FrontierError> {
        match bytes.split_first() {
            Some((&FOUND_LAYOUT, rest)) => {
                postcard::from_bytes(rest).map_err(|e| FrontierError::Row(e.to_string()))
            }
            _ => Err(FrontierError::Row("its layout is not known".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_layout_before_are_read() {
        let url = Url::parse("http://a.example/").unwrap();
        let row = Row::of(&Found::page(&url, 1, Priority::Discovery), true);
        let mut bytes = row.encode();
        assert!(bytes.ends_with(&LACKING));
        bytes.truncate(bytes.len() - LACKING.len());
        bytes[0] = LAYOUT_BEFORE;
        assert_eq!(Row::decode(&bytes).unwrap(), row);
        bytes[0] = 1;
        assert!(Row::decode(&bytes).is_err());
    }

    #[test]
    fn hosts_of_urls() {
        for (url, host) in [
            ("http://a.example/x:1/@y", "a.example"),
            ("https://u:p@a.example:8080?x", "a.example"),
            ("http://[::1]/", "[::1]"),
            ("http://[::1]:81/", "[::1]"),
            ("a.example/x", "a.example"),
        ] {
            assert_eq!(host_of(url), host, "{url}");
        }
    }
}
