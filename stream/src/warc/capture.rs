//! What of a WARC file becomes pages.
//!
//! | record | becomes |
//! |---|---|
//! | `response` of an `http` or `https` URL | a page: HTTP head and body as they are |
//! | `resource` of an `http`, `https` or `ftp` URL | a page without a head |
//! | `revisit`, identical payload | a page with its own head and date and the original's body, if that is at hand |
//! | `revisit`, server not modified | nothing: the page is what it was |
//! | `request`, `metadata`, `warcinfo`, `conversion`, `continuation`, … | nothing; they are counted |
//!
//! All captures are handed to the repository, which keeps the newest of each page.
//!
//! **Digests.** The payload digest that a file declares is kept if it is a SHA-1 and holds, over the body as it is or without
//! its chunks: both are in use. Where none is declared, or it does not hold, it is the SHA-1 of the body as it is.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use bytes::Bytes;
use webbase_storage::Page;

use super::head::{Head, Kind};
use super::originals::{Original, Originals};
use super::reader::{Block, Damage, Item, WarcRecord};
use super::report::Report;
use super::{date, http, sha1};

/// URLs that are told apart to count pages; beyond, every capture counts as a page.
const COUNTED_URLS_MAX: usize = 8 << 20;

/// A page as a file has it.
#[derive(Clone, Debug)]
pub struct Capture {
    /// Its URL.
    pub url: String,
    /// When it was fetched.
    pub fetched_at_ms: u64,
    /// When it last changed, if its head tells.
    pub modified_at_ms: Option<u64>,
    /// The HTTP status.
    pub status: u16,
    /// The MIME type.
    pub mime: String,
    /// The HTTP head.
    pub head: Bytes,
    /// The body.
    pub body: Bytes,
    /// The SHA-1 of its payload.
    pub payload_digest: [u8; 20],
}

impl Capture {
    /// As a repository takes it.
    pub fn page(&self) -> Page<'_> {
        Page {
            url: &self.url,
            fetched_at_ms: self.fetched_at_ms,
            modified_at_ms: self.modified_at_ms,
            status: self.status,
            mime: &self.mime,
            head: &self.head,
            body: &self.body,
            payload_digest: Some(self.payload_digest),
            ..Page::default()
        }
    }

    /// Bytes of head and body.
    pub fn bytes(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

/// Makes pages of records, and counts.
pub struct Importer {
    originals: Originals,
    report: Report,
    /// Hashes of the canonical URLs so far.
    urls: HashSet<u64>,
    hasher: RandomState,
    canonical: String,
}

impl Importer {
    /// An import whose revisits may refer to these captures too.
    pub fn new(originals: Originals) -> Importer {
        Importer {
            originals,
            report: Report::default(),
            urls: HashSet::new(),
            hasher: RandomState::new(),
            canonical: String::new(),
        }
    }

    /// Takes what a reader found; gives a capture, if it makes one.
    pub fn take(&mut self, item: Item) -> Option<Capture> {
        match item {
            Item::Damage(damage) => {
                self.report.note(damage);
                None
            }
            Item::Record(record) => self.record(record),
        }
    }

    /// The file could not be read on from here.
    pub fn broke_off(&mut self, offset: u64, what: String) {
        self.report.note(Damage { offset, what });
    }

    /// What was found.
    pub fn finish(self, bytes: u64) -> Report {
        Report { bytes, ..self.report }
    }

    fn record(&mut self, record: WarcRecord) -> Option<Capture> {
        let WarcRecord { offset, head, block, shares_member, .. } = record;
        let kind = head.kind();
        Report::count(&mut self.report.records, kind.name());
        self.report.sharing_member += u64::from(shares_member);
        let block = match block {
            Block::Whole(block) => block,
            Block::TooLarge(_) => {
                self.leave(&kind, "too large");
                return None;
            }
            Block::Damaged(block, why) => {
                let url: String = head.uri().unwrap_or_default().chars().take(200).collect();
                self.report.note(Damage { offset, what: format!("{} {url}: {why}", kind.name()) });
                // The digest of what is there says whether the damage is beside it.
                if !self.is_sound(&kind, &head, &block) {
                    return None;
                }
                block
            }
        };
        let outcome = match kind {
            Kind::Response => self.response(&head, block),
            Kind::Resource => self.resource(&head, block),
            Kind::Revisit => self.revisit(&head, &block),
            Kind::Other(_) => return None,
        };
        match outcome {
            Ok(capture) => self.captured(&head, capture),
            Err(why) => {
                Report::count(&mut self.report.left_out, why);
                None
            }
        }
    }

    fn leave(&mut self, kind: &Kind, why: &str) {
        if !matches!(kind, Kind::Other(_)) {
            Report::count(&mut self.report.left_out, why);
        }
    }

    fn is_sound(&self, kind: &Kind, head: &Head, block: &Bytes) -> bool {
        let Some(Declared::Sha1(declared)) = declared(head) else { return false };
        let from = if *kind == Kind::Response { http::head_len(block) } else { 0 };
        *kind != Kind::Revisit && sha1([block.get(from..).unwrap_or_default()]) == declared
    }

    fn captured(&mut self, head: &Head, mut capture: Capture) -> Option<Capture> {
        self.canonical.clear();
        if webbase_storage::url::canonical_into(&capture.url, &mut self.canonical).is_err() {
            Report::count(&mut self.report.left_out, "its URL is none");
            return None;
        }
        if head.field("WARC-Date").is_some_and(|text| date::is_cut(&text)) {
            self.report.dates_cut += 1;
        }
        if capture.mime.is_empty() {
            capture.mime = "application/octet-stream".into();
        }
        self.report.captures += 1;
        let hash = self.hasher.hash_one(&self.canonical);
        let is_new = self.urls.len() >= COUNTED_URLS_MAX || self.urls.insert(hash);
        match is_new {
            true => self.report.pages += 1,
            false => self.report.superseded += 1,
        }
        Some(capture)
    }

    fn response(&mut self, head: &Head, block: Bytes) -> Result<Capture, &'static str> {
        let (url, fetched_at_ms) = named(head, &["http:", "https:"])?;
        if !http::is_answer(&block) {
            return self.without_head(head, url, fetched_at_ms, block);
        }
        let mut body = block;
        let http_head = body.split_to(http::head_len(&body));
        let (payload_digest, status) = (self.digest(head, &http_head, &body), http::status(&http_head));
        let capture = Capture {
            url,
            fetched_at_ms,
            modified_at_ms: modified_at_ms(&http_head),
            status,
            mime: http::text(&http_head, "content-type").map(http::mime).unwrap_or_default(),
            head: http_head,
            body,
            payload_digest,
        };
        if status < 300 {
            self.remember(&capture);
        }
        Ok(capture)
    }

    fn resource(&mut self, head: &Head, block: Bytes) -> Result<Capture, &'static str> {
        let (url, fetched_at_ms) = named(head, &["http:", "https:", "ftp:"])?;
        self.without_head(head, url, fetched_at_ms, block)
    }

    fn without_head(
        &mut self,
        head: &Head,
        url: String,
        fetched_at_ms: u64,
        body: Bytes,
    ) -> Result<Capture, &'static str> {
        let payload_digest = self.digest(head, b"", &body);
        let kind = head.field("Content-Type").map(|kind| http::mime(&kind)).unwrap_or_default();
        let mime = if kind == "application/http" { String::new() } else { kind };
        let (modified_at_ms, head) = (None, Bytes::new());
        let capture =
            Capture { url, fetched_at_ms, modified_at_ms, status: 200, mime, head, body, payload_digest };
        self.remember(&capture);
        Ok(capture)
    }

    fn remember(&self, capture: &Capture) {
        let (head, body, mime) = (capture.head.clone(), capture.body.clone(), capture.mime.clone());
        self.originals.insert(capture.payload_digest, &Original { head, body, mime });
    }

    fn revisit(&mut self, head: &Head, block: &Bytes) -> Result<Capture, &'static str> {
        let (url, fetched_at_ms) = named(head, &["http:", "https:", "ftp:"])?;
        let own_head =
            if http::is_answer(block) { block.slice(..http::head_len(block)) } else { Bytes::new() };
        let profile = head.field("WARC-Profile").unwrap_or_default();
        if profile.contains("server-not-modified") || http::status(&own_head) == 304 {
            self.report.not_modified += 1;
            return Err("not modified");
        }
        let original = match declared(head) {
            Some(Declared::Sha1(digest)) => self.originals.get(&digest).map(|original| (digest, original)),
            _ => None,
        };
        let Some((payload_digest, original)) = original else {
            self.report.revisits_unresolved += 1;
            return Err("a revisit whose original is not at hand");
        };
        self.report.revisits_resolved += 1;
        let http_head = if own_head.is_empty() { original.head } else { own_head };
        let own_mime = http::text(&http_head, "content-type").map(http::mime);
        Ok(Capture {
            url,
            fetched_at_ms,
            modified_at_ms: modified_at_ms(&http_head),
            status: if http_head.is_empty() { 200 } else { http::status(&http_head) },
            mime: own_mime.filter(|mime| !mime.is_empty()).unwrap_or(original.mime),
            head: http_head,
            body: original.body,
            payload_digest,
        })
    }

    /// The digest that is kept.
    fn digest(&mut self, head: &Head, http_head: &[u8], body: &[u8]) -> [u8; 20] {
        let computed = sha1([body]);
        match declared(head) {
            None => {}
            Some(Declared::Other) => self.report.digests_other += 1,
            Some(Declared::Sha1(declared)) => {
                let holds = declared == computed
                    || http::is_chunked(http_head) && sha1(http::chunks(body)) == declared;
                if holds {
                    self.report.digests_verified += 1;
                    return declared;
                }
                self.report.digests_wrong += 1;
            }
        }
        computed
    }
}

/// URL and date of a record, if the URL has one of these schemes.
fn named(head: &Head, schemes: &[&str]) -> Result<(String, u64), &'static str> {
    let url = head.uri().filter(|url| !url.is_empty()).ok_or("it has no URL")?;
    let is_of =
        |scheme: &&str| url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    if !schemes.iter().any(is_of) {
        return Err("not of the web");
    }
    if head.field("WARC-Segment-Number").is_some() {
        return Err("a part of a record");
    }
    let fetched_at_ms =
        head.field("WARC-Date").and_then(|text| date::parse(&text)).ok_or("its date is none")?;
    Ok((url, fetched_at_ms))
}

fn modified_at_ms(head: &[u8]) -> Option<u64> {
    let at = httpdate::parse_http_date(http::text(head, "last-modified")?).ok()?;
    at.duration_since(std::time::UNIX_EPOCH).ok().map(|since| since.as_millis() as u64)
}

/// A payload digest as a record declares it.
enum Declared {
    Sha1([u8; 20]),
    Other,
}

fn declared(head: &Head) -> Option<Declared> {
    let text = head.field("WARC-Payload-Digest")?;
    let (name, value) = text.split_once(':')?;
    if !name.eq_ignore_ascii_case("sha1") && !name.eq_ignore_ascii_case("sha-1") {
        return Some(Declared::Other);
    }
    let value = value.trim().trim_end_matches('=').to_ascii_uppercase();
    let bytes = match value.len() {
        32 => data_encoding::BASE32_NOPAD.decode(value.as_bytes()).ok(),
        40 => data_encoding::HEXUPPER.decode(value.as_bytes()).ok(),
        _ => None,
    };
    Some(bytes.and_then(|bytes| bytes.try_into().ok()).map_or(Declared::Other, Declared::Sha1))
}
