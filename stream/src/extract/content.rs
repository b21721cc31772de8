//! A page as handlers see it: unpacked, without its content coding, and, when one asks, as text.

use std::borrow::Cow;
use std::cell::OnceCell;

use bytes::Bytes;
use encoding_rs::Encoding;
use webbase_storage::{Dictionaries, Page, PageKey, Record};

use super::charset;
use crate::http::{self, Coding};

/// A body is unpacked to so many bytes at most; what is longer is cut there.
const BODY_BYTES_MAX: usize = 64 << 20;

/// One page, unpacked.
pub struct Content<'a> {
    key: PageKey,
    url: Cow<'a, str>,
    mime: Cow<'a, str>,
    status: u16,
    fetched_at_ms: u64,
    modified_at_ms: Option<u64>,
    head: Bytes,
    coded: Bytes,
    /// The body of a page whose codings are off already.
    unpacked: Option<&'a [u8]>,
    body: OnceCell<Bytes>,
    encoding: OnceCell<(&'static Encoding, usize)>,
    /// None where the body is UTF-8 already.
    text: OnceCell<Option<String>>,
}

impl<'a> Content<'a> {
    /// The page of a record.
    ///
    /// # Errors
    /// When its dictionary is unknown, or it does not unpack.
    pub fn of_record(
        record: &'a Record,
        dictionaries: &Dictionaries,
    ) -> webbase_storage::Result<Content<'a>> {
        let seen = record.get();
        Ok(Content {
            key: seen.key(),
            url: seen.url().into(),
            mime: seen.mime().into(),
            status: seen.status(),
            fetched_at_ms: seen.fetched_at_ms(),
            modified_at_ms: seen.modified_at_ms(),
            head: record.head(dictionaries)?,
            coded: record.body(dictionaries)?,
            unpacked: None,
            body: OnceCell::new(),
            encoding: OnceCell::new(),
            text: OnceCell::new(),
        })
    }

    /// A page that is in no repository (yet). A body that came packed and does not unpack is none.
    pub fn of_page(page: &Page<'a>) -> Content<'a> {
        Content {
            key: PageKey::MIN,
            url: page.url.into(),
            mime: page.mime.into(),
            status: page.status,
            fetched_at_ms: page.fetched_at_ms,
            modified_at_ms: page.modified_at_ms,
            head: Bytes::copy_from_slice(page.head),
            coded: page.plain_body().map_or_else(|_| Bytes::new(), |body| body.into_owned().into()),
            unpacked: None,
            body: OnceCell::new(),
            encoding: OnceCell::new(),
            text: OnceCell::new(),
        }
    }

    /// A page that is in no repository (yet), whose content coding is off already, whatever its head says.
    pub fn of_unpacked(page: &Page<'a>) -> Content<'a> {
        Content {
            unpacked: Some(page.body),
            ..Content::of_page(&Page { body: &[], deflated: None, ..*page })
        }
    }

    /// Its key.
    pub fn key(&self) -> PageKey {
        self.key
    }

    /// Its URL, as fetched.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its MIME type, without parameters.
    pub fn mime(&self) -> &str {
        &self.mime
    }

    /// Its HTTP status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// When it was fetched.
    pub fn fetched_at_ms(&self) -> u64 {
        self.fetched_at_ms
    }

    /// When it last changed, if the repository knows.
    pub fn modified_at_ms(&self) -> Option<u64> {
        self.modified_at_ms
    }

    /// The HTTP head, as received.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// The value of a field of the HTTP head, the first of that name; none if it is not UTF-8.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.split(|byte| *byte == b'\n').skip(1);
        lines.find_map(|line| {
            let (found, value) = std::str::from_utf8(line).ok()?.split_once(':')?;
            found.trim().eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The body without chunks and content codings. What a coding leaves readable of a broken body counts, up to a limit; a
    /// body in a coding that is not known here stays as it is, and so does one that is not coded as its head says.
    pub fn body(&self) -> &[u8] {
        self.unpacked.unwrap_or_else(|| self.body.get_or_init(|| self.decoded()))
    }

    fn decoded(&self) -> Bytes {
        let mut body = match http::is_chunked(&self.head) {
            true => http::without_chunks(&self.coded),
            false => self.coded.clone(),
        };
        let codings = self.header("content-encoding").and_then(Coding::list).unwrap_or_default();
        for coding in codings.iter().rev() {
            match coding.readable(&body, BODY_BYTES_MAX) {
                Some(decoded) => body = decoded,
                None => break,
            }
        }
        body
    }

    /// The character set of the body: what the body's first bytes, its HTTP head, its own `meta` or XML declaration or, at last,
    /// a guess says.
    pub fn encoding(&self) -> &'static Encoding {
        self.charset().0
    }

    fn charset(&self) -> (&'static Encoding, usize) {
        *self.encoding.get_or_init(|| {
            let declared = self.header("content-type").and_then(charset::parameter);
            charset::detect(self.body(), declared, self.is_html() || self.is_xml())
        })
    }

    /// The body as text, in whatever character set it is. Bytes that make no sense become U+FFFD.
    pub fn text(&self) -> &str {
        let text = self.text.get_or_init(|| match charset::decode(self.body(), self.charset()) {
            Cow::Borrowed(_) => None,
            Cow::Owned(text) => Some(text),
        });
        match text {
            Some(text) => text,
            None => std::str::from_utf8(self.body().get(self.charset().1..).unwrap_or_default())
                .unwrap_or_default(),
        }
    }

    /// Whether it says that it is XML and not HTML; a page that says nothing is taken for XML if it begins so.
    pub fn is_xml(&self) -> bool {
        match &*self.mime {
            "application/xhtml+xml" => false,
            "text/vnd.wap.wml" => true,
            "" => self.body().trim_ascii_start().starts_with(b"<?xml") && !self.is_html(),
            mime => mime.ends_with("/xml") || mime.ends_with("+xml"),
        }
    }

    /// Whether it says that it is HTML; a page that says nothing is taken for HTML if it looks like it.
    pub fn is_html(&self) -> bool {
        match &*self.mime {
            "text/html" | "application/xhtml+xml" => true,
            "" => {
                let start = self.body().trim_ascii_start();
                let starts =
                    |with: &[u8]| start.get(..with.len()).is_some_and(|s| s.eq_ignore_ascii_case(with));
                starts(b"<!doctype html") || starts(b"<html") || starts(b"<head") || starts(b"<body")
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn page<'a>(head: &'a [u8], body: &'a [u8]) -> Page<'a> {
        Page { url: "http://h/", mime: "text/html", head, body, ..Page::default() }
    }

    #[test]
    fn a_content_coding_comes_off_as_far_as_it_is_whole() {
        let plain = b"<p>all work and no play ".repeat(5000);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&plain).unwrap();
        let gzip = gzip.finish().unwrap();
        let head = b"HTTP/1.1 200 OK\r\nContent-Encoding: GZIP\r\n\r\n";
        assert_eq!(Content::of_page(&page(head, &gzip)).body(), plain);
        let cut = page(head, &gzip[..gzip.len() / 2]);
        let cut = Content::of_page(&cut);
        assert!(!cut.body().is_empty() && plain.starts_with(cut.body()));
        assert_eq!(Content::of_page(&page(head, b"<p>not coded")).body(), b"<p>not coded", "servers lie");
        let bare = Content::of_page(&page(b"", &gzip)).body().to_vec();
        assert_eq!(bare, gzip);
    }

    #[test]
    fn every_coding_of_the_web_comes_off_and_so_do_chunks() {
        let plain = b"<title>coded</title><p>all work and no play ".repeat(500);
        let mut br = Vec::new();
        brotli::CompressorWriter::new(&mut br, 4096, 3, 20).write_all(&plain).unwrap();
        let zstd = zstd::bulk::compress(&plain, 1).unwrap();
        let mut twice = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        twice.write_all(&br).unwrap();
        let twice = twice.finish().unwrap();
        for (coding, coded) in [("br", &br), ("zstd", &zstd), ("br, gzip", &twice)] {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\n\r\n");
            assert_eq!(Content::of_page(&page(head.as_bytes(), coded)).body(), plain, "{coding}");
            let head = head.replace("\r\n\r\n", "\r\nTransfer-Encoding: chunked\r\n\r\n");
            let mut chunked = Vec::new();
            for chunk in coded.chunks(100) {
                chunked.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                chunked.extend_from_slice(chunk);
                chunked.extend_from_slice(b"\r\n");
            }
            chunked.extend_from_slice(b"0\r\n\r\n");
            let chunked = page(head.as_bytes(), &chunked);
            assert_eq!(Content::of_page(&chunked).body(), plain, "{coding} in chunks");
            assert_eq!(
                super::super::title(&Content::of_page(&chunked)).as_deref(),
                Some("coded"),
                "{coding}"
            );
        }
        let unknown = page(b"HTTP/1.1 200 OK\r\nContent-Encoding: sdch\r\n\r\n", &br);
        assert_eq!(Content::of_page(&unknown).body(), br, "a coding that is not known stays on");
    }

    #[test]
    fn fields_of_heads_are_found() {
        let head = b"HTTP/1.1 200 OK\r\nX: 1\r\ncontent-TYPE : text/html; charset=utf-8\r\n\xff: y\r\n\r\n";
        let page = page(head, b"");
        let content = Content::of_page(&page);
        assert_eq!(content.header("Content-Type"), Some("text/html; charset=utf-8"));
        assert_eq!(
            (content.header("x"), content.header("y"), content.header("HTTP/1.1 200 OK")),
            (Some("1"), None, None)
        );
    }
}
