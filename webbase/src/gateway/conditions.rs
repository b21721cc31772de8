//! Conditional requests (RFC 9110, section 13): is what the client has still right?

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::HeaderMap;
use hyper::header::{HeaderName, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, RANGE};

/// What a representation is known by.
#[derive(Debug, Clone)]
pub(super) struct Validators {
    /// Strong, with its quotes.
    pub(super) etag: String,
    /// In milliseconds since 1970; HTTP knows seconds only.
    pub(super) modified_at_ms: u64,
}

impl Validators {
    /// The `Last-Modified` header.
    pub(super) fn last_modified(&self) -> String {
        http_date(self.modified_at_ms)
    }

    /// Whether the client's copy is as good as ours.
    pub(super) fn not_modified(&self, headers: &HeaderMap) -> bool {
        if headers.contains_key(IF_NONE_MATCH) {
            // Weakly: what differs by encoding only need not be sent again either, but has another tag here.
            let tags = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
            return tags.flat_map(|tags| tags.split(',')).any(|tag| {
                let tag = tag.trim();
                tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == self.etag
            });
        }
        text(headers, &IF_MODIFIED_SINCE)
            .and_then(seconds)
            .is_some_and(|since| self.modified_at_ms / 1000 <= since)
    }

    /// The `Range` header, if it counts: with `If-Range` only for the very representation the client has a part of.
    pub(super) fn range<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        let range = text(headers, &RANGE)?;
        let holds = match text(headers, &IF_RANGE) {
            None => !headers.contains_key(IF_RANGE),
            Some(tag) if tag.starts_with('"') => tag == self.etag,
            Some(date) => seconds(date) == Some(self.modified_at_ms / 1000),
        };
        holds.then_some(range)
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

fn seconds(date: &str) -> Option<u64> {
    let time = httpdate::parse_http_date(date).ok()?;
    time.duration_since(UNIX_EPOCH).ok().map(|d| d.as_secs())
}

/// A time as HTTP writes it.
pub(super) fn http_date(ms: u64) -> String {
    // The format has four digits for the year.
    const LAST_S: u64 = 253_402_300_799;
    let time: SystemTime = UNIX_EPOCH + Duration::from_secs((ms / 1000).min(LAST_S));
    httpdate::fmt_http_date(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn tags_go_before_dates() {
        let ours = Validators { etag: "\"a-1\"".into(), modified_at_ms: 784_111_777_500 };
        assert_eq!(ours.last_modified(), "Sun, 06 Nov 1994 08:49:37 GMT");
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        for (fields, expected) in [
            (&[][..], false),
            (&[("if-none-match", "\"a-1\"")], true),
            (&[("if-none-match", "\"x\", W/\"a-1\"")], true),
            (&[("if-none-match", "*")], true),
            (&[("if-none-match", "\"a-2\""), ("if-modified-since", date)], false),
            (&[("if-modified-since", date)], true),
            (&[("if-modified-since", "Sun, 06 Nov 1994 08:49:36 GMT")], false),
            (&[("if-modified-since", "yesterday")], false),
        ] {
            assert_eq!(ours.not_modified(&headers(fields)), expected, "{fields:?}");
        }
        for (condition, counts) in
            [("\"a-1\"", true), ("W/\"a-1\"", false), (date, true), ("Sun, 06 Nov 1994 08:49:38 GMT", false)]
        {
            let fields = headers(&[("range", "bytes=0-1"), ("if-range", condition)]);
            assert_eq!(ours.range(&fields).is_some(), counts, "{condition}");
        }
        assert_eq!(http_date(u64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
    }
}
