//! What stands before a record's block: `WARC/1.1` and named fields, or the one line of an ARC record.
//!
//! ```text
//!   WARC/1.0 CRLF                             http://h/ 1.2.3.4 20260101000000 text/html 1234 LF
//!   WARC-Type: response CRLF                  (ARC: URL, address, date, type, length)
//!   Content-Length: 1234 CRLF
//!   CRLF
//! ```

use std::borrow::Cow;

use bytes::Bytes;

use crate::http;

/// The type of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// What a server answered.
    Response,
    /// Bytes without an HTTP head.
    Resource,
    /// As an earlier capture.
    Revisit,
    /// Any other, by its name.
    Other(String),
}

impl Kind {
    fn named(name: &str) -> Kind {
        match name {
            "response" => Kind::Response,
            "resource" => Kind::Resource,
            "revisit" => Kind::Revisit,
            other => Kind::Other(other.chars().take(40).collect()),
        }
    }

    /// Its name in the file.
    pub fn name(&self) -> &str {
        match self {
            Kind::Response => "response",
            Kind::Resource => "resource",
            Kind::Revisit => "revisit",
            Kind::Other(name) => name,
        }
    }
}

/// What stands before a block.
#[derive(Clone, Debug)]
pub struct Head {
    text: Bytes,
    is_arc: bool,
}

impl Head {
    /// A WARC record's head, with its first line.
    pub(super) fn warc(text: Bytes) -> Head {
        Head { text, is_arc: false }
    }

    /// An ARC record's line.
    pub(super) fn arc(line: Bytes) -> Head {
        Head { text: line, is_arc: true }
    }

    /// Whether the file is an ARC file.
    pub fn is_arc(&self) -> bool {
        self.is_arc
    }

    /// The first field with this name, folded lines joined, trimmed. An ARC record has those of its line.
    pub fn field(&self, name: &str) -> Option<Cow<'_, str>> {
        if self.is_arc {
            return self.arc_field(name).map(decode);
        }
        let mut lines = http::lines(&self.text).skip(1).peekable();
        while let Some(line) = lines.next() {
            let Some(value) = http::value(line, name) else { continue };
            let is_folded = |line: &&[u8]| matches!(line.first(), Some(b' ' | b'\t'));
            if !lines.peek().is_some_and(is_folded) {
                return Some(decode(value));
            }
            let mut joined = value.to_vec();
            while let Some(line) = lines.next_if(is_folded) {
                joined.push(b' ');
                joined.extend_from_slice(line.trim_ascii());
            }
            return Some(Cow::Owned(decode(joined.trim_ascii()).into_owned()));
        }
        None
    }

    fn arc_field(&self, name: &str) -> Option<&[u8]> {
        let [url, address, date, kind, length] = arc_parts(&self.text)?;
        match name {
            "WARC-Target-URI" => Some(url),
            "WARC-IP-Address" => Some(address),
            "WARC-Date" => Some(date),
            "Content-Type" => Some(kind),
            "Content-Length" => Some(length),
            _ => None,
        }
    }

    /// The record's type.
    pub fn kind(&self) -> Kind {
        if self.is_arc {
            let is_about_file = self.text.starts_with(b"filedesc:");
            return if is_about_file { Kind::Other("arc_header".into()) } else { Kind::Response };
        }
        self.field("WARC-Type").map_or(Kind::Other(String::new()), |name| Kind::named(&name))
    }

    /// The URL, without the `<…>` that some writers put around it.
    pub fn uri(&self) -> Option<String> {
        let uri = self.field("WARC-Target-URI")?;
        let bare = uri.strip_prefix('<').and_then(|uri| uri.strip_suffix('>'));
        Some(bare.unwrap_or(&uri).trim().to_owned())
    }

    /// The block's length, or what is wrong with it.
    pub(super) fn block_len(&self) -> Result<u64, String> {
        let Some(text) = self.field("Content-Length") else {
            return Err("it has no Content-Length".into());
        };
        let length: u64 =
            text.parse().map_err(|_| format!("Content-Length is {:?}", shown(text.as_bytes())))?;
        if length > super::BLOCK_BYTES_BELIEVED {
            return Err(format!("Content-Length is {length}"));
        }
        Ok(length)
    }
}

/// UTF-8; what is not is Latin-1.
fn decode(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(bytes.iter().map(|byte| char::from(*byte)).collect()),
    }
}

/// The five parts of an ARC record's line; the URL may have blanks in it.
fn arc_parts(line: &[u8]) -> Option<[&[u8]; 5]> {
    let mut parts = line.trim_ascii_end().rsplitn(5, |byte| *byte == b' ');
    let [length, kind, date, address] = [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
    Some([parts.next()?, address, date, kind, length])
}

/// Whether a line could begin an ARC record.
pub(super) fn is_arc_line(line: &[u8]) -> bool {
    let is_number = |text: &[u8]| {
        let digits = text.strip_prefix(b"-").unwrap_or(text);
        !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
    };
    let is_address = |text: &[u8]| {
        text.split(|byte| *byte == b'.').count() == 4
            && text.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
    };
    arc_parts(line).is_some_and(|[url, address, .., length]| {
        let scheme = url.iter().position(|byte| *byte == b':').and_then(|at| url.get(..at));
        let is_url =
            scheme.is_some_and(|scheme| !scheme.is_empty() && scheme.iter().all(u8::is_ascii_alphanumeric));
        is_url && (is_number(length) || is_address(address) || url.starts_with(b"filedesc:"))
    })
}

/// The start of some bytes, for people.
pub(super) fn shown(bytes: &[u8]) -> String {
    bytes.get(..40).unwrap_or(bytes).escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_whatever_their_lines_look_like() {
        let head = Head::warc(Bytes::from_static(
            b"WARC/1.0\nwarc-type:response\r\nWARC-Target-URI: <http://h/\xe4>\r\nX: a\r\n  b\n\tc\r\nContent-Length : 12\r\n\r\n",
        ));
        assert_eq!(head.kind(), Kind::Response);
        assert_eq!(head.uri().unwrap(), "http://h/ä");
        assert_eq!(head.field("x").unwrap(), "a b c");
        assert_eq!(head.block_len(), Ok(12));
        assert!(head.field("WARC-Date").is_none());
    }

    #[test]
    fn lengths_are_bounded_before_they_are_believed() {
        let len = |value: &str| {
            Head::warc(Bytes::from(format!("WARC/1.0\r\nContent-Length: {value}\r\n\r\n"))).block_len()
        };
        assert_eq!(len("0"), Ok(0));
        for bad in ["", "-1", "1x", "9223372036854775808", "99999999999999999999999"] {
            assert!(len(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn arc_lines_have_five_parts() {
        let head = Head::arc(Bytes::from_static(b"http://h/a b 1.2.3.4 20260101000000 text/html 12\n"));
        assert_eq!((head.uri().unwrap().as_str(), head.block_len()), ("http://h/a b", Ok(12)));
        assert_eq!(head.kind(), Kind::Response);
        assert!(is_arc_line(b"filedesc://x.arc 0.0.0.0 20260101000000 text/plain 77"));
        for no in
            [&b"WARC/1.0"[..], b"some words of plain text 12", b"http://h/ no.address 2026 text/html x", b""]
        {
            assert!(!is_arc_line(no), "{}", no.escape_ascii());
        }
    }
}
