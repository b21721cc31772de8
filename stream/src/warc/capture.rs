//! What of a WARC file becomes pages.
//!
//! | record | becomes |
//! |---|---|
//! | `response` of an `http` or `https` URL | a page: HTTP head and body as they are |
//! | `resource` of an `http`, `https` or `ftp` URL | a page without a head |
//! | `revisit`, identical payload | a page with its own head and date and the original's body, if that is at hand or found |
//! | `revisit`, server not modified | nothing: the page is what it was |
//! | `request`, `metadata`, `warcinfo`, `conversion`, `continuation`, … | nothing; they are counted |
//!
//! All captures are handed to the repository, which keeps the newest of each page.
//!
//! **Digests.** A page keeps a SHA-1. A payload digest that a file declares, SHA-1 or SHA-256, is checked over the body as it is
//! and without its chunks: both are in use. Where it holds, the SHA-1 of the same bytes is kept; where none is declared, or it
//! does not hold, that of the body as it is.
//!
//! **Revisits.** The original is a capture with the digest that the revisit declares, or the one whose URL and date it names;
//! of imports of late, else of the repository. Its body must have the declared digest, if that is of a kind that can be computed.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use bytes::Bytes;
use webbase_storage::{Deflated, Page};

use super::date;
use super::digest::{Declared, Outcome, PayloadDigest, http_parts};
use super::head::{Head, Kind};
use super::members::{Found, Member};
use super::originals::{Clue, Original, Originals};
use super::reader::{Block, Damage, Item, WarcRecord};
use super::report::Report;
use crate::http;

/// URLs that are told apart to count pages; beyond, every capture counts as a page.
const COUNTED_URLS_MAX: usize = 8 << 20;

/// What a capture holds at most of the file around its member, if that is more than four times its own part: of a larger buffer, as there are
/// with large records, that part is copied.
const HELD_BYTES_MAX: usize = 512 << 10;

/// What is smaller does not hold the buffer that it was unpacked to, with others.
const COPIED_BYTES: usize = 64 << 10;

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
    /// The body; nothing where `kept` has it.
    pub body: Bytes,
    /// The SHA-1 of its payload.
    pub payload_digest: [u8; 20],
    /// The body as it was packed in the file, if it is to stay so.
    pub kept: Option<Kept>,
}

/// A body as it was packed in a file: [`Deflated`], with memory of its own.
#[derive(Clone, Debug)]
pub struct Kept {
    stream: Bytes,
    before: u32,
    behind: u32,
    len: u32,
}

impl Kept {
    fn get(&self) -> Deflated<'_> {
        let Kept { stream, before, behind, len } = self;
        Deflated { stream, before: *before, behind: *behind, len: *len }
    }
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
            deflated: self.kept.as_ref().map(Kept::get),
            ..Page::default()
        }
    }

    /// Bytes of head and body.
    pub fn bytes(&self) -> usize {
        self.head.len() + self.page().body_len()
    }

    /// As [`Capture::bytes`], of a body that stays packed as it is packed.
    pub fn held_bytes(&self) -> usize {
        self.head.len() + self.kept.as_ref().map_or(self.body.len(), |kept| kept.stream.len())
    }

    /// A body that stays packed is needed as it is packed, and no longer holds the memory that it was unpacked to; nor does a small one.
    fn let_go(mut self) -> Capture {
        if self.kept.is_some() {
            (self.head, self.body) = (Bytes::copy_from_slice(&self.head), Bytes::new());
        } else if self.bytes() < COPIED_BYTES {
            self.head = Bytes::copy_from_slice(&self.head);
            self.body = Bytes::copy_from_slice(&self.body);
        }
        self
    }
}

/// Finds the page of this URL, where captures of earlier imports are.
///
/// # Errors
/// When that cannot be told now.
pub type Find = Box<dyn FnMut(&str) -> Result<Option<Original>, String> + Send>;

/// What is known of a record beside what it says: the digest of its payload, the member that it is.
struct Known {
    digest: Option<PayloadDigest>,
    member: Option<Member>,
}

/// Makes pages of records, and counts.
pub struct Importer {
    originals: Originals,
    find: Option<Find>,
    keeps_gzip: bool,
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
            find: None,
            keeps_gzip: false,
            report: Report::default(),
            urls: HashSet::new(),
            hasher: RandomState::new(),
            canonical: String::new(),
        }
    }

    /// Revisits may refer to what this finds, too.
    #[must_use]
    pub fn finding(mut self, find: Find) -> Importer {
        self.find = Some(find);
        self
    }

    /// Bodies stay packed as they are where a gzip member is one record, as nearly all are: they need not be packed again, which is
    /// most of an import, and take the room that they had.
    #[must_use]
    pub fn keeping_gzip(mut self, keeps: bool) -> Importer {
        self.keeps_gzip = keeps;
        self
    }

    /// Takes what a reader found; gives a capture, if it makes one.
    pub fn take(&mut self, item: Item) -> Option<Capture> {
        self.take_found(item.into())
    }

    /// As [`Importer::take`], where something is known already of what was found.
    pub(super) fn take_found(&mut self, found: Found) -> Option<Capture> {
        match found.item {
            Item::Damage(damage) => {
                self.report.note(damage);
                None
            }
            Item::Record(record) => self.record(record, Known { digest: found.digest, member: found.member }),
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

    fn record(&mut self, record: WarcRecord, known: Known) -> Option<Capture> {
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
            Kind::Response => self.response(&head, block, known),
            Kind::Resource => self.resource(&head, block, known),
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
        let Some(declared) = Declared::of(head) else { return false };
        let from = if *kind == Kind::Response { http::head_len(block) } else { 0 };
        *kind != Kind::Revisit && declared.check(b"", block.get(from..).unwrap_or_default()).is_some()
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

    fn response(&mut self, head: &Head, block: Bytes, known: Known) -> Result<Capture, &'static str> {
        let (url, fetched_at_ms) = named(head, &["http:", "https:"])?;
        let (http_head, body) = http_parts(block);
        let digest = known.digest.unwrap_or_else(|| PayloadDigest::of(head, &http_head, &body));
        if http_head.is_empty() {
            return self.without_head(head, (url, fetched_at_ms), body, (digest, known.member));
        }
        let kept = self.kept(known.member.as_ref(), http_head.len(), body.len());
        let (payload_digest, status) = (self.digest(digest), http::status(&http_head));
        let capture = Capture {
            url,
            fetched_at_ms,
            modified_at_ms: modified_at_ms(&http_head),
            status,
            mime: http::text(&http_head, "content-type").map(http::mime).unwrap_or_default(),
            head: http_head,
            body,
            payload_digest,
            kept,
        };
        if status < 300 {
            self.remember(head, &capture, known.member);
        }
        Ok(capture.let_go())
    }

    fn resource(&mut self, head: &Head, block: Bytes, known: Known) -> Result<Capture, &'static str> {
        let named = named(head, &["http:", "https:", "ftp:"])?;
        let digest = known.digest.unwrap_or_else(|| PayloadDigest::of(head, b"", &block));
        self.without_head(head, named, block, (digest, known.member))
    }

    fn without_head(
        &mut self,
        head: &Head,
        (url, fetched_at_ms): (String, u64),
        body: Bytes,
        (digest, member): (PayloadDigest, Option<Member>),
    ) -> Result<Capture, &'static str> {
        let payload_digest = self.digest(digest);
        let kind = head.field("Content-Type").map(|kind| http::mime(&kind)).unwrap_or_default();
        let mime = if kind == "application/http" { String::new() } else { kind };
        let (modified_at_ms, none) = (None, Bytes::new());
        let kept = self.kept(member.as_ref(), 0, body.len());
        let capture = Capture {
            url,
            fetched_at_ms,
            modified_at_ms,
            status: 200,
            mime,
            head: none,
            body,
            payload_digest,
            kept,
        };
        self.remember(head, &capture, member);
        Ok(capture.let_go())
    }

    /// A body of so many bytes that begins so far into its record's block, as it is packed, if it is to stay so.
    fn kept(&self, member: Option<&Member>, at: usize, len: usize) -> Option<Kept> {
        let member = member.filter(|_| self.keeps_gzip)?;
        let before = member.block_at + at;
        let behind = member.unpacked_bytes.checked_sub(before + len)?;
        let (before, behind, len) = (before.try_into().ok()?, behind.try_into().ok()?, len.try_into().ok()?);
        let kept = Some(Kept { stream: member.stream.clone(), before, behind, len });
        let mut kept = kept.filter(|kept| kept.get().is_kept())?;
        if member.held_bytes > HELD_BYTES_MAX.max(4 * kept.stream.len()) {
            kept.stream = Bytes::copy_from_slice(&kept.stream);
        }
        Some(kept)
    }

    fn remember(&self, head: &Head, capture: &Capture, member: Option<Member>) {
        let original = Original {
            head: capture.head.clone(),
            body: capture.body.clone(),
            mime: capture.mime.clone(),
            payload_digest: capture.payload_digest,
            fetched_at_ms: capture.fetched_at_ms,
        };
        let sha256 = match Declared::of(head) {
            Some(Declared::Sha256(digest)) => Some(Clue::sha256(digest)),
            _ => None,
        };
        let clues = [Clue::place(&capture.url, capture.fetched_at_ms)].into_iter().chain(sha256);
        self.originals.insert(&original, member.map(|member| member.bytes), clues);
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
        let original = match self.original(head, &url) {
            Ok(Some(original)) => original,
            Ok(None) => {
                self.report.revisits_unresolved += 1;
                return Err("a revisit whose original is not at hand");
            }
            Err(_) => {
                self.report.revisits_unresolved += 1;
                return Err("a revisit whose original cannot be looked up now");
            }
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
            payload_digest: original.payload_digest,
            kept: None,
        })
    }

    /// The capture that a revisit refers to: one of late, or a page of the URL that it names, or of its own. Its digest is the
    /// one that the revisit declares.
    fn original(&mut self, head: &Head, url: &str) -> Result<Option<Original>, String> {
        let declared = Declared::of(head);
        let of_late = match &declared {
            Some(Declared::Sha1(digest)) => self.originals.get(digest),
            Some(Declared::Sha256(digest)) => self.originals.find(&Clue::sha256(*digest)),
            Some(Declared::Other) | None => None,
        };
        // What lies under a SHA-256 was found under it only if its record said so.
        let of_late = of_late.and_then(|original| fits(declared.as_ref(), original));
        if of_late.is_some() {
            return Ok(of_late);
        }
        let named = head.field("WARC-Refers-To-Target-URI");
        let named = named.as_deref().map(|text| text.trim().trim_start_matches('<').trim_end_matches('>'));
        let date = head.field("WARC-Refers-To-Date").and_then(|text| date::parse(&text));
        if let (Some(named), Some(at)) = (named, date)
            && let Some(original) = self.originals.find(&Clue::place(named, at))
            && let Some(original) = fits(declared.as_ref(), original)
        {
            return Ok(Some(original));
        }
        let Some(find) = &mut self.find else { return Ok(None) };
        for place in named.filter(|named| *named != url).into_iter().chain([url]) {
            let Some(original) = find(place)? else { continue };
            // Without a digest that can be computed, it has to be the very capture that is named.
            let is_named =
                Some(place) == named && date.is_some_and(|at| at / 1000 == original.fetched_at_ms / 1000);
            let is_told = matches!(declared, Some(Declared::Sha1(_) | Declared::Sha256(_)));
            let fitting = if is_told || is_named { fits(declared.as_ref(), original) } else { None };
            if let Some(original) = fitting {
                let clue = match declared {
                    Some(Declared::Sha256(digest)) => Some(Clue::sha256(digest)),
                    _ => None,
                };
                self.originals.insert(&original, None, clue);
                return Ok(Some(original));
            }
        }
        Ok(None)
    }

    /// The digest that is kept, counted.
    fn digest(&mut self, digest: PayloadDigest) -> [u8; 20] {
        match digest.declared {
            Outcome::None => {}
            Outcome::Other => self.report.digests_other += 1,
            Outcome::Holds => self.report.digests_verified += 1,
            Outcome::Wrong => self.report.digests_wrong += 1,
        }
        digest.kept
    }
}

/// An original, if it has the digest that a revisit declares. One that cannot be computed is believed.
fn fits(declared: Option<&Declared>, original: Original) -> Option<Original> {
    match declared {
        None | Some(Declared::Other) => Some(original),
        // It was computed or checked when the capture came in.
        Some(Declared::Sha1(digest)) if *digest == original.payload_digest => Some(original),
        Some(declared) => {
            let payload_digest = declared.check(&original.head, &original.body)?;
            Some(Original { payload_digest, ..original })
        }
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
