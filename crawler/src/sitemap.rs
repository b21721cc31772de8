//! Sitemaps, sitemap indexes and feeds: where a site says what it has and when that changed.
//!
//! XML and text sitemaps go through `sitemapo`, with what that misses done before and after:
//!
//! - gzip is told by its first bytes, not by its name, and unpacked up to 50 MiB;
//! - UTF-16 is transcoded;
//! - an `&` that begins no entity is escaped;
//! - where a file breaks off or makes no sense, every `<loc>` that is still there is taken;
//! - RSS, RDF and Atom feeds are read for the links of their items.
//!
//! Nothing here fails: what can be read is returned, with what was wrong. Dates are what the site says; whether they are worth
//! anything is for the scheduler to learn.

mod feed;

use std::borrow::Cow;
use std::io::Read;

use sitemapo::record::Record;
use url::Url;

/// How far a sitemap is unpacked and read.
pub const SITEMAP_BYTES_MAX: usize = sitemapo::BYTE_LIMIT;
/// How many entries a sitemap has at most; the rest is not read.
pub const SITEMAP_ENTRIES_MAX: usize = sitemapo::RECORD_LIMIT;
/// A longer URL is none.
const URL_BYTES_MAX: usize = 2048;

/// A URL in a sitemap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where.
    pub url: Url,
    /// When it last changed, if the site says so, in milliseconds since 1970.
    pub modified_at_ms: Option<u64>,
}

/// What a sitemap says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sitemap {
    /// Pages, in order.
    pub pages: Vec<Entry>,
    /// More sitemaps.
    pub sitemaps: Vec<Entry>,
    /// What was wrong with it, if anything was.
    pub trouble: Option<String>,
}

impl Sitemap {
    /// Reads a sitemap, a sitemap index, a list of URLs or a feed that was found at `base`.
    pub fn read(bytes: &[u8], base: &Url) -> Sitemap {
        let (unpacked, cut) = unpack(bytes);
        let text = decode(&unpacked);
        let mut sitemap = match root(&text) {
            Some("rss" | "feed" | "RDF") => feed::read(&text, base),
            Some(_) => read_xml(&text, base),
            None => read_text(&text, base),
        };
        if let Some(cut) = cut {
            sitemap.trouble.get_or_insert(cut);
        }
        sitemap.pages.retain(|entry| matches!(entry.url.scheme(), "http" | "https"));
        sitemap.sitemaps.retain(|entry| matches!(entry.url.scheme(), "http" | "https"));
        sitemap
    }
}

/// Unpacks gzip, if it is, as far as it can be; what was wrong, if anything was.
fn unpack(bytes: &[u8]) -> (Cow<'_, [u8]>, Option<String>) {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        let cut = bytes.get(..SITEMAP_BYTES_MAX);
        return (Cow::Borrowed(cut.unwrap_or(bytes)), cut.map(|_| "longer than 50 MiB".to_owned()));
    }
    let mut out = Vec::new();
    let mut unpacker = flate2::read::MultiGzDecoder::new(bytes).take(SITEMAP_BYTES_MAX as u64);
    let trouble = match unpacker.read_to_end(&mut out) {
        Err(e) => Some(format!("gzip: {e}")),
        Ok(_) if out.len() >= SITEMAP_BYTES_MAX => Some("longer than 50 MiB".to_owned()),
        Ok(_) => None,
    };
    (Cow::Owned(out), trouble)
}

/// As text, without a byte order mark.
fn decode(bytes: &[u8]) -> Cow<'_, str> {
    encoding_rs::UTF_8.decode(bytes).0
}

/// The local name of the first element; `None` for what is no XML.
fn root(text: &str) -> Option<&str> {
    let mut rest = text.trim_start();
    if !rest.starts_with('<') {
        return None;
    }
    // Past declarations, comments and whatever a broken file has before its root.
    while let Some(at) = rest.find('<') {
        rest = rest.get(at + 1..)?;
        if let Some(comment) = rest.strip_prefix("!--") {
            rest = comment.split_once("-->").map_or("", |(_, after)| after);
        } else if rest.starts_with(|c: char| c.is_alphabetic() || c == '_') {
            let end = rest.find(|c: char| c.is_whitespace() || matches!(c, '>' | '/'))?;
            return rest.get(..end)?.rsplit(':').next();
        }
    }
    Some("")
}

fn entry(url: &str, modified: Option<jiff::Timestamp>, base: &Url) -> Option<Entry> {
    let url = url.trim();
    if url.is_empty() || url.len() > URL_BYTES_MAX {
        return None;
    }
    let modified = modified.and_then(|moment| u64::try_from(moment.as_millisecond()).ok());
    Some(Entry { url: base.join(url).ok()?, modified_at_ms: modified })
}

fn read_text(text: &str, base: &Url) -> Sitemap {
    let lines = text.lines().filter(|line| line.trim_start().starts_with("http"));
    let pages = lines.filter_map(|line| entry(line, None, base)).take(SITEMAP_ENTRIES_MAX).collect();
    Sitemap { pages, ..Sitemap::default() }
}

fn read_xml(text: &str, base: &Url) -> Sitemap {
    let mut sitemap = Sitemap::default();
    let escaped = escape(text);
    for record in sitemapo::Parser::new(escaped.as_bytes()) {
        match record {
            Ok(Record::Entry(page)) => {
                sitemap.pages.extend(entry(page.location.as_str(), page.modified, base));
            }
            Ok(Record::Sitemap(map)) => {
                sitemap.sitemaps.extend(entry(map.location.as_str(), map.modified, base));
            }
            Err(e) => sitemap.trouble = Some(e.to_string()),
        }
    }
    let found = sitemap.pages.len() + sitemap.sitemaps.len();
    let locations = locations(&escaped);
    if locations.len() > found && found < SITEMAP_ENTRIES_MAX {
        recover(&mut sitemap, &locations, base);
    }
    sitemap
}

/// Adds the locations that the parser did not come to.
fn recover(sitemap: &mut Sitemap, locations: &[(bool, String)], base: &Url) {
    let known: std::collections::HashSet<Url> =
        sitemap.pages.iter().chain(&sitemap.sitemaps).map(|entry| entry.url.clone()).collect();
    for (is_sitemap, url) in locations.iter().take(SITEMAP_ENTRIES_MAX) {
        let Some(entry) = entry(url, None, base) else { continue };
        if known.contains(&entry.url) {
            continue;
        }
        let to = if *is_sitemap { &mut sitemap.sitemaps } else { &mut sitemap.pages };
        to.push(entry);
        sitemap.trouble.get_or_insert_with(|| "not all of it is well-formed".to_owned());
    }
}

/// What stands between `<loc>` and `</loc>` anywhere, and whether it is in a `<sitemap>`.
fn locations(text: &str) -> Vec<(bool, String)> {
    let mut found = Vec::new();
    let mut in_sitemap = false;
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        rest = rest.get(at + 1..).unwrap_or_default();
        let end = rest.find(|c: char| c.is_whitespace() || matches!(c, '>' | '/')).unwrap_or(rest.len());
        let name = rest.get(..end).unwrap_or_default();
        match name {
            "sitemap" => in_sitemap = true,
            "url" => in_sitemap = false,
            _ if name == "loc"
                || name.rsplit(':').next() == Some("loc")
                    && !name.starts_with("image")
                    && !name.starts_with("video") =>
            {
                let Some((_, value)) = rest.split_once('>') else { break };
                let value = value.trim_start();
                let value = value.strip_prefix("<![CDATA[").unwrap_or(value);
                let value = value.split(['<', ']']).next().unwrap_or_default();
                if let Ok(value) = quick_xml::escape::unescape(value.trim()) {
                    found.push((in_sitemap, value.into_owned()));
                }
            }
            _ => {}
        }
    }
    found
}

/// Escapes every `&` that begins no entity.
fn escape(text: &str) -> Cow<'_, str> {
    let begins_entity = |rest: &str| {
        let end = rest.find(';').filter(|end| (1..=10).contains(end));
        end.and_then(|end| rest.get(..end)).is_some_and(|name| {
            matches!(name, "amp" | "lt" | "gt" | "quot" | "apos")
                || name.strip_prefix('#').is_some_and(|n| n.bytes().all(|c| c.is_ascii_alphanumeric()))
        })
    };
    if text.match_indices('&').all(|(at, _)| text.get(at + 1..).is_some_and(begins_entity)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 64);
    let mut parts = text.split('&');
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        out.push_str(if begins_entity(part) { "&" } else { "&amp;" });
        out.push_str(part);
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Sitemap {
        Sitemap::read(text, &Url::parse("http://a.example/sitemap.xml").unwrap())
    }

    fn urls(entries: &[Entry]) -> Vec<&str> {
        entries.iter().map(|entry| entry.url.as_str()).collect()
    }

    #[test]
    fn bare_ampersands_broken_ends_and_utf_16() {
        let text = "<?xml version=\"1.0\"?><urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\">\
            <url><loc>http://a.example/?a=1&b=2</loc><lastmod>2024-05-01</lastmod></url>\
            <url><loc>http://a.example/2&amp;3</loc></url><url><loc>http://a.example/3</loc></ur";
        let sitemap = read(text.as_bytes());
        assert_eq!(
            urls(&sitemap.pages),
            ["http://a.example/?a=1&b=2", "http://a.example/2&3", "http://a.example/3"]
        );
        assert_eq!(sitemap.pages[0].modified_at_ms, Some(1_714_521_600_000));
        let mut wide = vec![0xff, 0xfe];
        wide.extend(text.encode_utf16().flat_map(u16::to_le_bytes));
        assert_eq!(read(&wide).pages, sitemap.pages);
    }

    #[test]
    fn nonsense_is_an_empty_sitemap() {
        for text in [
            &b""[..],
            b"<",
            b"<html><body>404</body></html>",
            b"\x1f\x8b\x08nonsense",
            b"\xff\xfe\0",
            b"<!--",
            b"javascript:x",
        ] {
            let sitemap = read(text);
            assert!(sitemap.pages.is_empty() && sitemap.sitemaps.is_empty(), "{text:?}: {sitemap:?}");
        }
    }

    #[test]
    fn other_schemes_are_left_out() {
        assert_eq!(read(b"<urlset><url><loc>file:///etc/passwd</loc></url></urlset>").pages, []);
    }
}
