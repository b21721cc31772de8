//! What a stream sends: which pages, what of them, and in which order. Nodes decide by it before a byte is sent, from what
//! stands at the beginning of a record: no body is unpacked for it.
//!
//! Conditions are an enum that only grows at its end, so that a node can refuse what it does not know. All of them must hold.
//! Of the values in one condition one is enough.
//!
//! What an order costs at a node that has n pages, b bytes of records:
//!
//! | order | reads | keeps |
//! |---|---|---|
//! | store | b, in sequence | nothing |
//! | id, of `hash` and `hashed-log` stores | b, in sequence | nothing |
//! | id, fetched, of a log, with conditions on ids, fetch time, sample and importance only | catalog rows, then each page by itself | 30 bytes a page that is sent, on disk beyond a budget of memory |
//! | id of a log, fetched, modified, importance, url, of few hosts (a condition on host, domain or prefix that at most one page in eight can fulfil) | what the URL index says of those hosts, then each of their pages by itself, and again those that are sent | as below |
//! | any other | b, in sequence, then each page that is sent by itself | 30 bytes and its key in that order for each page that is sent, as above |

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use webbase_storage::surt::Profile;
use webbase_storage::{PageId, PageKey, Record, RecordRef, url};

use super::message::StreamOrder;

/// Conditions in a specification, at most.
pub const CONDITIONS_MAX: usize = 64;
/// Values in a condition, at most.
pub const VALUES_MAX: usize = 256;
/// Bytes of a text in a condition, at most.
pub const TEXT_BYTES_MAX: usize = 4096;

/// One thing that must hold of a page.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Condition {
    /// Its host is one of these domains, or in one of them.
    Domain(Vec<String>),
    /// Its host is one of these.
    Host(Vec<String>),
    /// Its URL begins with one of these; the scheme does not count.
    Prefix(Vec<String>),
    /// Its MIME type is one of these; `text/*` means all that begin with `text/`.
    Mime(Vec<String>),
    /// Its HTTP status is between two of these, both included.
    Status(Vec<(u16, u16)>),
    /// It was fetched at this time or later, in milliseconds since 1970.
    FetchedSince(u64),
    /// It was fetched before this time.
    FetchedUntil(u64),
    /// It is known to have changed at this time or later.
    ModifiedSince(u64),
    /// It is known to have changed last before this time.
    ModifiedUntil(u64),
    /// Its body has at least so many bytes, unpacked.
    BytesMin(u64),
    /// Its body has at most so many bytes, unpacked.
    BytesMax(u64),
    /// It is known to be at least so important.
    ImportanceMin(f32),
    /// It is one of so many: those whose ids say so.
    Sample(u64),
    /// Its id is between these, both included.
    Ids(u64, u64),
}

/// What of a page is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Projection {
    /// The whole record, as it is stored.
    #[default]
    Everything,
    /// Everything but the body.
    WithoutBody,
    /// The URL and the body, without the HTTP head.
    BodyOnly,
}

impl Projection {
    /// What of a record is sent.
    pub(crate) fn of(self, record: &Record) -> Bytes {
        match self {
            Projection::Everything => record.bytes().clone(),
            Projection::WithoutBody => record.get().without_body(),
            Projection::BodyOnly => record.get().without_head(),
        }
    }
}

/// What a stream sends. The default is everything, in the order that is fastest.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StreamSpec {
    /// What must hold of each page.
    pub conditions: Vec<Condition>,
    /// What of it is sent.
    pub projection: Projection,
    /// In which order.
    pub order: StreamOrder,
}

impl Default for StreamSpec {
    fn default() -> Self {
        StreamSpec { conditions: Vec::new(), projection: Projection::Everything, order: StreamOrder::Store }
    }
}

impl StreamSpec {
    /// All pages.
    pub fn all() -> StreamSpec {
        StreamSpec::default()
    }

    /// With one more condition.
    #[must_use]
    pub fn with(mut self, condition: Condition) -> StreamSpec {
        self.conditions.push(condition);
        self
    }

    /// Only pages of this domain.
    #[must_use]
    pub fn domain(self, domain: &str) -> StreamSpec {
        self.with(Condition::Domain(vec![domain.to_owned()]))
    }

    /// Only pages of this host.
    #[must_use]
    pub fn host(self, host: &str) -> StreamSpec {
        self.with(Condition::Host(vec![host.to_owned()]))
    }

    /// Only pages whose URL begins so.
    #[must_use]
    pub fn prefix(self, prefix: &str) -> StreamSpec {
        self.with(Condition::Prefix(vec![prefix.to_owned()]))
    }

    /// Only pages of this MIME type.
    #[must_use]
    pub fn mime(self, mime: &str) -> StreamSpec {
        self.with(Condition::Mime(vec![mime.to_owned()]))
    }

    /// In this order.
    #[must_use]
    pub fn ordered(self, order: StreamOrder) -> StreamSpec {
        StreamSpec { order, ..self }
    }

    /// Sending this of each page.
    #[must_use]
    pub fn projected(self, projection: Projection) -> StreamSpec {
        StreamSpec { projection, ..self }
    }

    /// The `part`-th of `parts` equal parts, from 0: together they are everything, and no page is in two. Parts are cuts of the
    /// id space, so of a store in id order each part reads its own share; of a log each goes through all of it, unless they
    /// share a scan.
    #[must_use]
    pub fn part(self, part: u32, parts: u32) -> StreamSpec {
        let parts = u128::from(parts.max(1));
        let cut = |n: u128| ((n << 64) / parts) as u64;
        let (first, behind) = (cut(part.into()), (u128::from(part) + 1) << 64);
        let last = ((behind / parts).saturating_sub(1)).min(u64::MAX.into()) as u64;
        self.with(Condition::Ids(first, last))
    }

    /// Whether the importance of pages must be known for it.
    pub fn needs_importance(&self) -> bool {
        let by = |condition: &Condition| matches!(condition, Condition::ImportanceMin(_));
        self.order == StreamOrder::Importance || self.conditions.iter().any(by)
    }

    /// Whether all that it asks stands in a list of keys, fetch times and sizes.
    pub(crate) fn needs_no_records(&self) -> bool {
        matches!(self.order, StreamOrder::Id | StreamOrder::Fetched)
            && self.conditions.iter().all(|condition| {
                matches!(
                    condition,
                    Condition::FetchedSince(_)
                        | Condition::FetchedUntil(_)
                        | Condition::ImportanceMin(_)
                        | Condition::Sample(_)
                        | Condition::Ids(..)
                )
            })
    }

    /// The ids that pages can have.
    pub fn ids(&self) -> (PageId, PageId) {
        let mut ids = (0, u64::MAX);
        for condition in &self.conditions {
            if let Condition::Ids(first, last) = condition {
                ids = (ids.0.max(*first), ids.1.min(*last));
            }
        }
        (PageId(ids.0), PageId(ids.1))
    }

    /// Brings it into the form in which it is compared with pages, and checks it.
    ///
    /// # Errors
    /// When it is longer than anybody needs, or a value makes no sense.
    pub fn checked(mut self) -> Result<StreamSpec, String> {
        if self.conditions.len() > CONDITIONS_MAX {
            return Err(format!("{} conditions, the limit is {CONDITIONS_MAX}", self.conditions.len()));
        }
        self.conditions.iter_mut().try_for_each(Condition::check)?;
        Ok(self)
    }

    /// Whether a page is sent; `importance` tells its importance where a condition asks.
    ///
    /// # Errors
    /// Those of `importance`.
    pub(crate) fn wants<E>(
        &self,
        page: &Seen<'_>,
        mut importance: impl FnMut(PageKey) -> Result<Option<f32>, E>,
    ) -> Result<bool, E> {
        for condition in &self.conditions {
            let holds = match condition {
                Condition::ImportanceMin(least) => importance(page.key)?.is_some_and(|found| found >= *least),
                condition => condition.holds(page),
            };
            if !holds {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a page of which only the key is known may be one that is sent.
    ///
    /// # Errors
    /// Those of `importance`.
    pub(crate) fn may_want<E>(
        &self,
        key: PageKey,
        mut importance: impl FnMut(PageKey) -> Result<Option<f32>, E>,
    ) -> Result<bool, E> {
        let page = Seen { key, fetched_at_ms: 0, record: None };
        for condition in &self.conditions {
            let may_hold = match condition {
                Condition::ImportanceMin(least) => importance(key)?.is_some_and(|found| found >= *least),
                Condition::Sample(_) | Condition::Ids(..) => condition.holds(&page),
                _ => true,
            };
            if !may_hold {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Where a page stands in the order, before its key: bytes that compare as the pages do.
    pub(crate) fn place(&self, page: &Seen<'_>, importance: Option<f32>) -> Vec<u8> {
        match self.order {
            StreamOrder::Store | StreamOrder::Id => Vec::new(),
            StreamOrder::Fetched => page.fetched_at_ms.to_be_bytes().to_vec(),
            StreamOrder::Modified => {
                let modified = page.record.as_ref().and_then(RecordRef::modified_at_ms);
                modified.unwrap_or(u64::MAX).to_be_bytes().to_vec()
            }
            // The most important first, those of which nothing is known last.
            StreamOrder::Importance => match importance {
                Some(value) => {
                    let bits = value.to_bits();
                    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
                    (!ascending).to_be_bytes().to_vec()
                }
                None => vec![0xff; 5],
            },
            StreamOrder::Url => {
                let address = page.record.as_ref().map_or("", RecordRef::url);
                Profile::Strict1.key(address).unwrap_or_else(|_| address.to_owned()).into_bytes()
            }
        }
    }
}

/// What is known of a page before it is sent.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) key: PageKey,
    pub(crate) fetched_at_ms: u64,
    /// Its record, unless the specification [needs none](StreamSpec::needs_no_records).
    pub(crate) record: Option<RecordRef<'a>>,
}

impl<'a> From<RecordRef<'a>> for Seen<'a> {
    fn from(record: RecordRef<'a>) -> Seen<'a> {
        Seen { key: record.key(), fetched_at_ms: record.fetched_at_ms(), record: Some(record) }
    }
}

impl Condition {
    /// Checks values, and brings them into the form they are compared in.
    fn check(&mut self) -> Result<(), String> {
        let normal: fn(&str) -> Result<String, String> = match self {
            Condition::Domain(_) | Condition::Host(_) => normal_host,
            Condition::Prefix(_) => normal_prefix,
            Condition::Mime(_) => |mime| Ok(mime.trim().to_ascii_lowercase()),
            _ => |text| Ok(text.to_owned()),
        };
        match self {
            Condition::Domain(texts)
            | Condition::Host(texts)
            | Condition::Prefix(texts)
            | Condition::Mime(texts) => {
                bounded(texts.len())?;
                for text in texts {
                    if text.len() > TEXT_BYTES_MAX {
                        return Err(format!("a text of {} bytes, the limit is {TEXT_BYTES_MAX}", text.len()));
                    }
                    *text = normal(text)?;
                    if text.is_empty() {
                        return Err("an empty text names nothing".into());
                    }
                }
                Ok(())
            }
            Condition::Status(ranges) => bounded(ranges.len()),
            Condition::Sample(0) => Err("a sample of one in 0 pages".into()),
            Condition::ImportanceMin(least) if least.is_nan() => {
                Err("an importance that is no number".into())
            }
            _ => Ok(()),
        }
    }

    fn holds(&self, page: &Seen<'_>) -> bool {
        let record = page.record;
        let of = |is: &dyn Fn(&RecordRef<'_>) -> bool| record.as_ref().is_some_and(is);
        match self {
            Condition::Domain(domains) => {
                of(&|r| with_host(r.url(), |host| domains.iter().any(|d| is_in(host, d))))
            }
            Condition::Host(hosts) => {
                of(&|r| with_host(r.url(), |host| hosts.iter().any(|h| host.eq_ignore_ascii_case(h))))
            }
            Condition::Prefix(prefixes) => of(&|r| begins_with(r.url(), prefixes)),
            Condition::Mime(types) => of(&|r| types.iter().any(|t| is_mime(r.mime(), t))),
            Condition::Status(ranges) => {
                of(&|r| ranges.iter().any(|(low, high)| (*low..=*high).contains(&r.status())))
            }
            Condition::FetchedSince(ms) => page.fetched_at_ms >= *ms,
            Condition::FetchedUntil(ms) => page.fetched_at_ms < *ms,
            Condition::ModifiedSince(ms) => of(&|r| r.modified_at_ms().is_some_and(|m| m >= *ms)),
            Condition::ModifiedUntil(ms) => of(&|r| r.modified_at_ms().is_some_and(|m| m < *ms)),
            Condition::BytesMin(bytes) => of(&|r| r.body_len() as u64 >= *bytes),
            Condition::BytesMax(bytes) => of(&|r| r.body_len() as u64 <= *bytes),
            Condition::Sample(n) => page.key.id.0.is_multiple_of((*n).max(1)),
            Condition::Ids(first, last) => (*first..=*last).contains(&page.key.id.0),
            Condition::ImportanceMin(_) => false, // asked before
        }
    }
}

fn bounded(values: usize) -> Result<(), String> {
    match values {
        0 => Err("a condition without values, which nothing fulfils".into()),
        1..=VALUES_MAX => Ok(()),
        _ => Err(format!("{values} values in a condition, the limit is {VALUES_MAX}")),
    }
}

/// A host as URLs have it, in lower case and ASCII; a dot before it does not count.
fn normal_host(host: &str) -> Result<String, String> {
    let host = host.trim().trim_start_matches("*.").trim_matches('.');
    let canonical = url::canonical(&format!("http://{host}/")).map_err(|e| format!("{host:?}: {e}"))?;
    if canonical.contains(['/', '?']) {
        return Err(format!("{host:?} is no host"));
    }
    Ok(canonical)
}

/// A prefix of canonical URLs: without scheme, its host as URLs have it.
fn normal_prefix(prefix: &str) -> Result<String, String> {
    let rest = prefix.trim();
    let rest = rest.split_once("://").map_or(rest, |(_, rest)| rest);
    match rest.find(['/', '?']) {
        Some(end) => {
            let (host, path) = rest.split_at(end);
            let canonical =
                url::canonical(&format!("http://{host}/")).map_err(|e| format!("{prefix:?}: {e}"))?;
            Ok(canonical + path)
        }
        None => Ok(rest.to_ascii_lowercase()),
    }
}

/// The host of a URL: read off where it is plain, by the rules where it is not.
fn with_host(address: &str, judge: impl Fn(&str) -> bool) -> bool {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let authority = rest.get(..end).unwrap_or_default();
    let plain = authority.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-' || b == b'_');
    if plain
        && !authority.ends_with('.')
        && !authority.bytes().next_back().is_some_and(|b| b.is_ascii_digit())
    {
        return judge(authority);
    }
    let Ok(canonical) = url::canonical(address) else { return false };
    let end = canonical.find(['/', '?']).unwrap_or(canonical.len());
    let authority = canonical.get(..end).unwrap_or_default();
    // A port, but not the end of an IPv6 address.
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => authority,
    };
    judge(host)
}

fn is_in(host: &str, domain: &str) -> bool {
    let Some(at) = host.len().checked_sub(domain.len()) else { return false };
    let (Some(end), Some(before)) = (host.get(at..), host.get(..at)) else { return false };
    end.eq_ignore_ascii_case(domain) && (before.is_empty() || before.ends_with('.'))
}

fn begins_with(address: &str, prefixes: &[String]) -> bool {
    let Ok(canonical) = url::canonical(address) else { return false };
    prefixes.iter().any(|prefix| {
        // A canonical URL has lost the slashes at its end.
        canonical.starts_with(prefix.as_str()) || prefix.trim_end_matches('/') == canonical
    })
}

fn is_mime(mime: &str, wanted: &str) -> bool {
    match wanted.strip_suffix('*') {
        Some(start) => mime.get(..start.len()).is_some_and(|m| m.eq_ignore_ascii_case(start)),
        None => mime.eq_ignore_ascii_case(wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use webbase_storage::{Compression, Page, RepositoryKey, pack_page};

    fn record(address: &str) -> Record {
        let page = Page {
            url: address,
            mime: "text/html",
            status: 301,
            fetched_at_ms: 1000,
            modified_at_ms: Some(500),
            body: b"0123456789",
            ..Page::default()
        };
        pack_page(&RepositoryKey::random().unwrap(), &page, Compression::default(), None).unwrap()
    }

    fn is_wanted(address: &str, condition: Condition) -> bool {
        let spec = StreamSpec::all().with(condition).checked().unwrap();
        let record = record(address);
        let known = |_| Ok::<_, ()>(Some(0.5));
        spec.wants(&record.get().into(), known).unwrap()
    }

    #[test]
    fn hosts_and_domains_are_told_apart() {
        let texts = |text: &str| vec!["nowhere.example".to_owned(), text.to_owned()];
        for (address, domain, inside) in [
            ("http://www.Stanford.EDU/x", "edu", true),
            ("http://www.stanford.edu", ".Stanford.edu", true),
            ("http://notstanford.edu/", "stanford.edu", false),
            ("https://edu.example.com/", "edu", false),
            ("https://u:p@a.b.edu:8443/x", "b.edu", true),
            ("http://bücher.example/", "xn--bcher-kva.example", true),
            ("http://xn--bcher-kva.example/", "bücher.example", true),
            ("http://127.0.0.1:8080/edu", "127.0.0.1", true),
            ("http://[::1]:80/", "[::1]", true),
        ] {
            assert_eq!(is_wanted(address, Condition::Domain(texts(domain))), inside, "{address} {domain}");
        }
        assert!(is_wanted("http://A.b/", Condition::Host(texts("a.B"))));
        assert!(!is_wanted("http://w.a.b/", Condition::Host(texts("a.b"))));
    }

    #[test]
    fn prefixes_are_of_canonical_urls() {
        for (address, prefix, begins) in [
            ("http://h.org/a/b", "http://H.org/a/", true),
            ("https://h.org/a/b", "h.org/a", true),
            ("https://h.org/ab", "h.org/a/", false),
            ("https://h.org/a/", "h.org/a/", true),
            ("https://h.org/a", "h.org/a/", true),
            ("https://h.org/", "h.org", true),
            ("https://h.organic/", "h.org/", false),
            ("https://h.org/x?y=1", "h.org/x?", true),
        ] {
            assert_eq!(
                is_wanted(address, Condition::Prefix(vec![prefix.into()])),
                begins,
                "{address} {prefix}"
            );
        }
    }

    #[test]
    fn the_other_conditions() {
        let mime = |m: &str| Condition::Mime(vec![m.into()]);
        for (condition, holds) in [
            (mime("TEXT/html"), true),
            (mime("text/*"), true),
            (mime("text/xml"), false),
            (Condition::Status(vec![(200, 200), (300, 399)]), true),
            (Condition::Status(vec![(200, 299)]), false),
            (Condition::FetchedSince(1000), true),
            (Condition::FetchedUntil(1000), false),
            (Condition::ModifiedSince(501), false),
            (Condition::ModifiedUntil(501), true),
            (Condition::BytesMin(10), true),
            (Condition::BytesMax(9), false),
            (Condition::ImportanceMin(0.5), true),
            (Condition::ImportanceMin(0.6), false),
            (Condition::Sample(1), true),
            (Condition::Ids(0, u64::MAX), true),
        ] {
            assert_eq!(is_wanted("http://h/", condition.clone()), holds, "{condition:?}");
        }
    }

    #[test]
    fn parts_are_everything_and_share_nothing() {
        for parts in [1, 2, 3, 7, 1000] {
            let mut next = 0_u128;
            for part in 0..parts {
                let (first, last) = StreamSpec::all().part(part, parts).ids();
                assert_eq!(u128::from(first.0), next);
                next = u128::from(last.0) + 1;
            }
            assert_eq!(next, 1 << 64, "{parts}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for bad in [
            Condition::Sample(0),
            Condition::Domain(vec![]),
            Condition::Host(vec!["a/b".into()]),
            Condition::Host(vec![String::new()]),
            Condition::Mime(vec!["x".repeat(TEXT_BYTES_MAX + 1)]),
            Condition::Status(vec![(0, 1); VALUES_MAX + 1]),
            Condition::ImportanceMin(f32::NAN),
        ] {
            assert!(StreamSpec::all().with(bad.clone()).checked().is_err(), "{bad:?}");
        }
        let many =
            StreamSpec { conditions: vec![Condition::Sample(2); CONDITIONS_MAX + 1], ..StreamSpec::all() };
        assert!(many.checked().is_err());
    }

    #[test]
    fn places_compare_as_pages_do() {
        let spec = StreamSpec::all().ordered(StreamOrder::Importance);
        let record = record("http://h/");
        let seen = Seen::from(record.get());
        let values = [Some(f32::INFINITY), Some(2.0), Some(1e-9), Some(0.0), Some(-1.0), Some(-2.0), None];
        let places = values.map(|value| spec.place(&seen, value));
        assert!(places.is_sorted_by(|a, b| a < b), "{places:?}");
        let by_url = StreamSpec::all().ordered(StreamOrder::Url);
        let key = |address: &str| by_url.place(&Seen::from(self::record(address).get()), None);
        let addresses =
            ["http://a.com/", "http://a.com/x", "http://b.a.com/", "http://b.com/", "http://a.org/"];
        assert!(addresses.map(key).is_sorted(), "{:?}", addresses.map(key));
    }
}
