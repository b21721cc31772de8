//! A row: what the index says of one page.

use std::borrow::Cow;

use crate::error::Result;
use crate::page::{Page, PageKey, RepositoryKey};
use crate::record::RecordRef;
use crate::surt::Profile;
use crate::url::UrlError;

/// What the index says of one page.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UrlRow {
    /// The SURT key that the index is sorted by.
    pub surt: String,
    /// The URL as fetched.
    pub url: String,
    /// The first 16 bits of the page id, which tell the page's range where ids do.
    pub id_high: u16,
    /// When it was fetched.
    pub fetched_at_ms: u64,
    /// When it last changed, if known.
    pub modified_at_ms: Option<u64>,
    /// The epoch it arrived in.
    pub epoch: u32,
    /// The HTTP status.
    pub status: u16,
    /// The MIME type, without parameters.
    pub mime: String,
    /// Bytes of the HTTP head, unpacked.
    pub head_len: u32,
    /// Bytes of the body, unpacked.
    pub body_len: u32,
    /// The SHA-1 of the payload, if known.
    pub payload_digest: Option<[u8; 20]>,
}

impl UrlRow {
    /// The row of a page's record.
    ///
    /// # Errors
    /// When its URL has no SURT key, which no store takes.
    pub fn of(record: &RecordRef<'_>) -> Result<UrlRow> {
        Ok(UrlRow {
            surt: surt(record.url())?,
            url: record.url().to_owned(),
            id_high: high(record.key()),
            fetched_at_ms: record.fetched_at_ms(),
            modified_at_ms: record.modified_at_ms(),
            epoch: record.epoch(),
            status: record.status(),
            mime: record.mime().to_owned(),
            head_len: record.head_len() as u32,
            body_len: record.body_len() as u32,
            payload_digest: record.payload_digest(),
        })
    }

    /// The row of a page that is being added.
    ///
    /// # Errors
    /// When its URL is none.
    pub fn of_page(page: &Page<'_>, key: PageKey) -> Result<UrlRow> {
        Ok(UrlRow {
            surt: surt(page.url)?,
            url: page.url.to_owned(),
            id_high: high(key),
            fetched_at_ms: page.fetched_at_ms,
            modified_at_ms: page.modified_at_ms,
            epoch: page.epoch,
            status: page.status,
            mime: page.mime.to_owned(),
            head_len: page.head.len() as u32,
            body_len: page.body_len() as u32,
            payload_digest: page.payload_digest,
        })
    }

    /// A row that has only names, for a page that is gone.
    pub(super) fn names(url: &str, key: PageKey) -> Result<UrlRow> {
        Ok(UrlRow { surt: surt(url)?, url: url.to_owned(), id_high: high(key), ..UrlRow::default() })
    }

    /// The page's key.
    pub fn key(&self, repository: &RepositoryKey) -> PageKey {
        // Rows are made of records, whose URLs are URLs; only of foreign bytes could this be none.
        repository.page_key(&self.url).unwrap_or(PageKey::MIN)
    }

    /// What decides between two versions, as far as the row says it: only the record's digest is left out.
    pub fn version(&self) -> (u64, u32) {
        (self.fetched_at_ms, self.epoch)
    }

    /// Memory it takes, about.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<UrlRow>() + self.surt.len() + self.url.len() + self.mime.len() + 48
    }
}

fn high(key: PageKey) -> u16 {
    (key.id.0 >> 48) as u16
}

/// The SURT key of a URL.
fn surt(url: &str) -> std::result::Result<String, UrlError> {
    Profile::Ia1.key(url)
}

pub(super) const HTTPS: u16 = 1;
pub(super) const WWW: u16 = 2;
pub(super) const SLASH: u16 = 4;

/// How a URL differs from what its SURT key lets one guess.
pub(super) enum Edit<'a> {
    /// Not at all.
    None,
    /// In the case of the letters at these places.
    Case(Vec<usize>),
    /// From this byte on: what follows instead.
    Tail(usize, &'a str),
}

/// The URL that a SURT key most likely came from, given the flags.
pub(super) fn guess(surt: &str, flags: u16) -> Cow<'_, str> {
    let Some((host, path)) = surt.split_once(')') else { return Cow::Borrowed(surt) };
    let (host, port) = host.split_at(host.find(':').unwrap_or(host.len()));
    let mut url = String::with_capacity(surt.len() + 14);
    url.push_str(if flags & HTTPS != 0 { "https://" } else { "http://" });
    url.push_str(if flags & WWW != 0 { "www." } else { "" });
    for (n, label) in host.rsplit(',').enumerate() {
        url.push_str(if n == 0 { "" } else { "." });
        url.push_str(label);
    }
    url.push_str(port);
    url.push_str(path);
    url.push_str(if flags & SLASH != 0 { "/" } else { "" });
    Cow::Owned(url)
}

/// The flags and the edit that make `url` of the guess.
pub(super) fn edit<'a>(surt: &str, url: &'a str) -> (u16, Edit<'a>) {
    let (mut flags, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
        (Some(rest), _) => (HTTPS, rest),
        (None, Some(rest)) => (0, rest),
        _ => (0, url),
    };
    flags |= if rest.starts_with("www.") { WWW } else { 0 };
    flags |= if url.ends_with('/') && !surt.ends_with('/') { SLASH } else { 0 };
    let guess = guess(surt, flags);
    if guess == url {
        return (flags, Edit::None);
    }
    let both = || guess.bytes().zip(url.bytes());
    if guess.eq_ignore_ascii_case(url) {
        let differ = both().enumerate().filter(|(_, (a, b))| a != b).map(|(at, _)| at);
        return (flags, Edit::Case(differ.collect()));
    }
    let mut same = both().take_while(|(a, b)| a == b).count();
    while !(url.is_char_boundary(same) && guess.is_char_boundary(same)) {
        same -= 1;
    }
    (flags, Edit::Tail(same, url.get(same..).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(surt: &str, url: &str) -> usize {
        let (flags, edit) = edit(surt, url);
        let guess = guess(surt, flags).into_owned();
        let (made, cost) = match edit {
            Edit::None => (guess, 0),
            Edit::Case(places) => {
                let mut bytes = guess.into_bytes();
                places.iter().for_each(|&at| bytes[at] ^= 0x20);
                (String::from_utf8(bytes).unwrap(), places.len())
            }
            Edit::Tail(same, tail) => (format!("{}{tail}", &guess[..same]), tail.len()),
        };
        assert_eq!(made, url, "of {surt}");
        cost
    }

    #[test]
    fn a_url_comes_back_from_its_key_and_little_else() {
        for (surt, url, most) in [
            ("com,example)/", "http://example.com/", 0),
            ("com,example)/a/b", "https://www.example.com/a/b/", 0),
            ("com,example:8080)/x", "http://example.com:8080/x", 0),
            ("com,example)/wiki/main_page", "https://www.example.com/wiki/Main_Page", 2),
            ("com,example)/x?a=1&b=2", "http://example.com/x?b=2&a=1", 7),
            ("::1:8080)/x", "http://[::1]:8080/x", 20),
            ("dns:example.com", "dns:example.com", 0),
            ("example,xn--bcher-kva)/%c3%a4", "http://bücher.example/ä", 20),
            ("com,example)/", "HTTP://EXAMPLE.COM", 18),
        ] {
            assert!(back(surt, url) <= most, "{url} costs {}", back(surt, url));
        }
    }
}
