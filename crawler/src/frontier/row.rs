//! What a crawl knows of one URL, in one row.

use serde::{Deserialize, Serialize};
use url::Url;

use super::{Found, FrontierError};

/// The first byte of a row: its layout. Rows of other layouts are refused.
const LAYOUT: u8 = 1;

/// How a URL stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
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
}

/// What a crawl knows of one URL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Its place among those that wait; the frontier's own.
    pub place: Option<(u8, u64)>,
    /// When it was last read, in milliseconds since 1970.
    pub read_at_ms: u64,
    /// The last status.
    pub status: u16,
    /// The `ETag` of what was read.
    pub etag: Option<String>,
    /// The `Last-Modified` of what was read, in milliseconds since 1970.
    pub modified_at_ms: Option<u64>,
    /// A hash of the body that was read.
    pub signature: u64,
    /// How often it was read, and how often it had changed.
    pub reads: u32,
    /// How often it had changed when it was read again.
    pub changes: u32,
}

impl Row {
    /// The row of a URL that is found, if it is to be read; `before` is what was known of it.
    pub(super) fn wanted(found: &Found, before: Option<Row>) -> Option<Row> {
        let urgency = found.priority as u8;
        match before {
            None => Some(Row {
                url: found.url.to_string(),
                state: State::Waiting,
                what: found.what,
                depth: found.depth,
                redirects: found.redirects,
                tries: 0,
                urgency,
                place: None,
                read_at_ms: 0,
                status: 0,
                etag: None,
                modified_at_ms: None,
                signature: 0,
                reads: 0,
                changes: 0,
            }),
            Some(row) => {
                let changed = found.changed_at_ms.is_some_and(|at_ms| at_ms > row.read_at_ms);
                let again = changed && row.state == State::Read;
                again.then_some(Row { state: State::Waiting, tries: 0, urgency, ..row })
            }
        }
    }

    /// Its host.
    pub fn host(&self) -> String {
        Url::parse(&self.url).ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default()
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![LAYOUT]).unwrap_or_default()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Row, FrontierError> {
        match bytes.split_first() {
            Some((&LAYOUT, rest)) => {
                postcard::from_bytes(rest).map_err(|e| FrontierError::Row(e.to_string()))
            }
            _ => Err(FrontierError::Row("its layout is not known".to_owned())),
        }
    }
}
