//! One capture, as the lines of an index have it: a page's row, and where its WARC record is.

use std::borrow::Cow;

use data_encoding::BASE32;
use webbase_storage::PageKey;
use webbase_storage::urls::UrlRow;

use super::super::warcs;

/// A field of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Field {
    Urlkey,
    Timestamp,
    Url,
    Mime,
    Status,
    Digest,
    Redirect,
    Robotflags,
    Length,
    Offset,
    Filename,
}

impl Field {
    /// All of them, in the order of a CDX line of 11 fields.
    pub(super) const ALL: [Field; 11] = [
        Field::Urlkey,
        Field::Timestamp,
        Field::Url,
        Field::Mime,
        Field::Status,
        Field::Digest,
        Field::Redirect,
        Field::Robotflags,
        Field::Length,
        Field::Offset,
        Field::Filename,
    ];

    /// The Internet Archive's seven.
    pub(super) const SEVEN: [Field; 7] = [
        Field::Urlkey,
        Field::Timestamp,
        Field::Url,
        Field::Mime,
        Field::Status,
        Field::Digest,
        Field::Length,
    ];

    /// Those of a CDXJ line's object.
    pub(super) const OBJECT: [Field; 7] = [
        Field::Url,
        Field::Mime,
        Field::Status,
        Field::Digest,
        Field::Length,
        Field::Offset,
        Field::Filename,
    ];

    /// By any of the names that tools have for it.
    pub(super) fn named(name: &str) -> Option<Field> {
        Some(match name {
            "urlkey" => Field::Urlkey,
            "timestamp" => Field::Timestamp,
            "url" | "original" => Field::Url,
            "mime" | "mimetype" => Field::Mime,
            "status" | "statuscode" => Field::Status,
            "digest" => Field::Digest,
            "redirect" | "redirecturl" => Field::Redirect,
            "robotflags" => Field::Robotflags,
            "length" | "compressedsize" => Field::Length,
            "offset" | "compressedoffset" => Field::Offset,
            "filename" | "file" => Field::Filename,
            _ => return None,
        })
    }

    /// What pywb calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Field::Urlkey => "urlkey",
            Field::Timestamp => "timestamp",
            Field::Url => "url",
            Field::Mime => "mime",
            Field::Status => "status",
            Field::Digest => "digest",
            Field::Redirect => "redirect",
            Field::Robotflags => "robotflags",
            Field::Length => "length",
            Field::Offset => "offset",
            Field::Filename => "filename",
        }
    }

    /// What the Internet Archive calls it.
    pub(super) fn archive_name(self) -> &'static str {
        match self {
            Field::Url => "original",
            Field::Mime => "mimetype",
            Field::Status => "statuscode",
            other => other.name(),
        }
    }

    pub(super) fn is_number(self) -> bool {
        matches!(self, Field::Timestamp | Field::Status | Field::Length | Field::Offset)
    }
}

/// A line of an index.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Capture {
    pub(super) urlkey: String,
    /// 14 digits.
    pub(super) timestamp: String,
    pub(super) url: String,
    pub(super) mime: Option<String>,
    pub(super) status: Option<String>,
    /// Base32 of a SHA-1.
    pub(super) digest: Option<String>,
    pub(super) length: Option<String>,
    pub(super) offset: Option<String>,
    pub(super) filename: Option<String>,
    /// The page, where there is one.
    pub(super) key: Option<PageKey>,
}

impl Capture {
    /// The line of a page.
    pub(super) fn of(key: PageKey, row: &UrlRow) -> Capture {
        Capture {
            urlkey: row.surt.clone(),
            timestamp: timestamp(row.fetched_at_ms),
            url: one_word(&row.url),
            mime: Some(row.mime.as_str()).filter(|mime| !mime.is_empty()).map(one_word),
            status: Some(row.status).filter(|status| *status != 0).map(|status| status.to_string()),
            digest: row.payload_digest.map(|digest| BASE32.encode(&digest)),
            length: Some(webbase_stream::warc::stored::member_len(row).to_string()),
            offset: Some("0".into()),
            filename: Some(warcs::name(key, row.fetched_at_ms, row.epoch)),
            key: Some(key),
        }
    }

    /// A field, if it is there.
    pub(super) fn get(&self, field: Field) -> Option<&str> {
        match field {
            Field::Urlkey => Some(&self.urlkey),
            Field::Timestamp => Some(&self.timestamp),
            Field::Url => Some(&self.url),
            Field::Mime => self.mime.as_deref(),
            Field::Status => self.status.as_deref(),
            Field::Digest => self.digest.as_deref(),
            Field::Length => self.length.as_deref(),
            Field::Offset => self.offset.as_deref(),
            Field::Filename => self.filename.as_deref(),
            Field::Redirect | Field::Robotflags => None,
        }
    }

    /// A field as text: `-` where it is not there.
    pub(super) fn text(&self, field: Field) -> Cow<'_, str> {
        Cow::Borrowed(self.get(field).unwrap_or("-"))
    }
}

/// A text without blanks and control characters: they would end a field of a line.
fn one_word(text: &str) -> String {
    if text.bytes().all(|byte| byte > b' ' && byte != 0x7f) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 8);
    for char in text.chars() {
        match char {
            '\0'..=' ' | '\x7f' => out.push_str(&format!("%{:02X}", char as u32)),
            other => out.push(other),
        }
    }
    out
}

/// A time as 14 digits.
pub(in super::super) fn timestamp(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    let time = time.unwrap_or(jiff::Timestamp::MAX);
    time.strftime("%Y%m%d%H%M%S").to_string()
}

/// The time of up to 14 digits, in seconds; those that are missing are the lowest.
pub(in super::super) fn seconds(timestamp: &str) -> Option<i64> {
    const LOWEST: &str = "00000101000000";
    if timestamp.len() < 4 || timestamp.len() > 14 || !timestamp.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let whole = format!("{timestamp}{}", LOWEST.get(timestamp.len()..)?);
    let number =
        |range: std::ops::Range<usize>| whole.get(range).and_then(|digits| digits.parse::<i16>().ok());
    let (year, month, day) = (number(0..4)?, number(4..6)?.clamp(1, 12), number(6..8)?.max(1));
    let (hour, minute, second) = (number(8..10)?.min(23), number(10..12)?.min(59), number(12..14)?.min(59));
    let (month, mut day) = (month as i8, day.min(31) as i8);
    // A day that the month does not have is its last one.
    let date = loop {
        match jiff::civil::Date::new(year, month, day) {
            Ok(date) => break date,
            Err(_) if day > 28 => day -= 1,
            Err(_) => return None,
        }
    };
    let time = date.at(hour as i8, minute as i8, second as i8, 0);
    Some(time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_fourteen_digits_and_back() {
        assert_eq!(timestamp(1_700_000_000_999), "20231114221320");
        assert_eq!(seconds("20231114221320"), Some(1_700_000_000));
        assert_eq!(seconds("2023"), seconds("20230101000000"));
        assert_eq!(seconds("20230231"), seconds("20230228000000"));
        assert_eq!(timestamp(u64::MAX).len(), 14);
        for bad in ["", "202", "2023x", "202311142213200"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
        assert_eq!(one_word("a b\n"), "a%20b%0A");
    }
}
