//! The pages of some hosts, by the URL index: a stream in an order that wants only those looks at their records and at no others.
//!
//! The index is sorted by `surt-ia-1` keys, which fold what usually is one document, so it tells which pages may be meant; whether
//! one is, its record says. Of a prefix only the host is used, because keys fold paths in too many ways to cut there.

use std::collections::VecDeque;

use webbase_storage::PageKey;
use webbase_storage::surt::Profile;
use webbase_storage::urls::{UrlPlace, UrlQuery};

use super::ordered::Asked;
use super::pages::{Answer, Pages};
use crate::wire::spec::Condition;

/// Reading page by page costs more than in sequence: the index is used where at most one page in so many is meant.
const ONE_IN: u64 = 8;
/// Rows that are asked for at once.
const ROWS: usize = 1024;

/// SURT keys from the first on, below the second.
type Span = (String, String);

/// Pages to look at, by their keys.
pub(super) struct ByUrl {
    spans: VecDeque<Span>,
    after: Option<UrlPlace>,
}

impl ByUrl {
    /// The pages that a stream of a generation may want, if a condition says so and there are few.
    pub(super) fn of(asked: &Asked, pages: &dyn Pages) -> Option<ByUrl> {
        let spans = asked.selection.spec.conditions.iter().find_map(spans)?;
        // A node whose index is being made anew does without.
        let count = |start: &str, end: Option<&str>| {
            pages.url_count(asked.generation, &asked.ranges, start, end).ok().map(|(rows, _)| rows)
        };
        let all = count("", None)?;
        let meant: Option<u64> = spans.iter().map(|(start, end)| count(start, Some(end))).sum();
        (meant?.saturating_mul(ONE_IN) <= all).then(|| ByUrl { spans: spans.into(), after: None })
    }

    /// Some more of them; none when there are no more.
    ///
    /// # Errors
    /// When the index cannot be read.
    pub(super) fn next(&mut self, asked: &Asked, pages: &dyn Pages) -> Answer<Vec<PageKey>> {
        let repository = pages.repository_key();
        while let Some((start, end)) = self.spans.front() {
            let (start, end, after) = (start.clone(), Some(end.clone()), self.after.take());
            let query = UrlQuery { start, end, descending: false, after };
            let (rows, more) = pages.urls(asked.generation, &asked.ranges, &query, ROWS)?;
            let keys: Vec<PageKey> = rows.iter().map(|row| row.key(&repository)).collect();
            match rows.last().zip(keys.last()).filter(|_| more) {
                Some((row, key)) => self.after = Some(UrlPlace { surt: row.surt.clone(), key: *key }),
                None => drop(self.spans.pop_front()),
            }
            if !keys.is_empty() {
                return Ok(keys);
            }
        }
        Ok(Vec::new())
    }
}

/// The keys that pages can have for which a condition holds, in order; `None` where it says nothing about keys.
fn spans(condition: &Condition) -> Option<Vec<Span>> {
    let each: Option<Vec<Vec<Span>>> = match condition {
        Condition::Host(hosts) => hosts.iter().map(|host| of_host(host)).collect(),
        Condition::Domain(domains) => domains.iter().map(|domain| of_domain(domain)).collect(),
        Condition::Prefix(prefixes) => prefixes.iter().map(|prefix| of_host(host_of(prefix)?)).collect(),
        _ => None,
    };
    let mut all = each?.concat();
    all.sort_unstable();
    // Of those that overlap one is made, so that no page comes twice.
    let mut apart: Vec<Span> = Vec::new();
    for (start, end) in all {
        match apart.last_mut() {
            Some(last) if start <= last.1 => last.1 = end.max(std::mem::take(&mut last.1)),
            _ => apart.push((start, end)),
        }
    }
    Some(apart)
}

/// The host of a prefix of canonical URLs, if it is whole there.
fn host_of(prefix: &str) -> Option<&str> {
    let authority = prefix.get(..prefix.find(['/', '?'])?)?;
    Some(match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    })
}

/// A host as keys begin with it.
fn turned(profile: Profile, host: &str) -> Option<String> {
    let key = profile.key(&format!("http://{host}/")).ok()?;
    key.strip_suffix(")/").map(str::to_owned)
}

/// All pages of a host: behind it comes `)`, or `:` and a port.
fn of_host(host: &str) -> Option<Vec<Span>> {
    let host = turned(Profile::Ia1, host)?;
    Some(vec![(format!("{host})"), format!("{host}*")), (format!("{host}:"), format!("{host};"))])
}

/// All pages of a domain: of itself, which may have lost its `www.`, and of hosts in it, which have lost nothing of the domain's
/// name: behind that comes `)`, `,` and another label, or `:` and a port.
fn of_domain(domain: &str) -> Option<Vec<Span>> {
    let name = turned(Profile::Strict1, domain)?;
    let mut all = of_host(domain)?;
    all.extend([(format!("{name})"), format!("{name}-")), (format!("{name}:"), format!("{name};"))]);
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::spec::{Seen, StreamSpec};
    use webbase_storage::{Compression, Page, RepositoryKey, pack_page};

    const URLS: [&str; 26] = [
        "http://example.com/",
        "http://www.example.com/",
        "https://www2.example.com/A/b?c",
        "http://www.www.example.com/",
        "http://a.example.com:8080/x",
        "http://example.com:8080/x",
        "http://EXAMPLE.com./x",
        "http://user:pw@example.com/x",
        "http://example-more.com/",
        "http://notexample.com/",
        "http://a.www.example.com/",
        "http://b.a.www.example.com/%252e%252e/x",
        "ftp://example.com/file",
        "http://com/",
        "http://www.com/",
        "http://www3288.com/",
        "http://a..example.com/",
        "http://1.2.3.4/x",
        "http://1.2.3.4:99/x",
        "http://[::1]/x",
        "http://[::1]:8080/x",
        "http://b\u{fc}cher.example/\u{e4}",
        "http://www.b\u{fc}cher.example/",
        "http://xn--bcher-kva.example/x",
        "http://example.com/docs/a/../b//c/",
        "http://example.com/Docs/?sid=0123456789abcdef0123456789abcdef",
    ];

    #[test]
    fn every_page_that_is_wanted_lies_in_a_span() {
        let texts = [
            "example.com",
            "www.example.com",
            "www2.example.com",
            "a.example.com",
            "com",
            "www.com",
            "www3288.com",
            "1.2.3.4",
            "[::1]",
            "b\u{fc}cher.example",
            "www.b\u{fc}cher.example",
        ];
        let conditions = texts.iter().flat_map(|text| {
            let prefixes = ["/", "/docs/", "/Docs/?sid", ":8080/"].map(|path| format!("{text}{path}"));
            let prefixes = prefixes.into_iter().map(|prefix| Condition::Prefix(vec![prefix]));
            let hosts = [Condition::Host(vec![(*text).into()]), Condition::Domain(vec![(*text).into()])];
            hosts.into_iter().chain(prefixes)
        });
        let mut wanted = 0;
        for condition in conditions {
            let spec = StreamSpec::all().with(condition).checked().unwrap();
            let spans = spans(&spec.conditions[0]).unwrap();
            assert!(spans.is_sorted() && spans.windows(2).all(|two| two[0].1 < two[1].0), "{spans:?}");
            for url in URLS {
                let page = Page { url, body: b"x", ..Page::default() };
                let record = pack_page(&RepositoryKey::new([7; 32]), &page, Compression::None, None).unwrap();
                if spec.wants(&Seen::from(record.get()), |_| Ok::<_, ()>(None)).unwrap() {
                    let key = Profile::Ia1.key(url).unwrap();
                    let is_found = spans.iter().any(|(start, end)| *start <= key && key < *end);
                    assert!(is_found, "{url} has the key {key}, which is in none of {spans:?}");
                    wanted += 1;
                }
            }
        }
        assert!(wanted > 60, "only {wanted} pages were wanted");
    }

    #[test]
    fn a_span_has_little_else() {
        let spans = spans(&Condition::Domain(vec!["example.com".into(), "a.example.com".into()])).unwrap();
        let has = |url: &str| {
            let key = Profile::Ia1.key(url).unwrap();
            spans.iter().any(|(start, end)| *start <= key && key < *end)
        };
        assert!(has("http://b.example.com/") && has("http://example.com:81/"));
        assert!(!has("http://example-more.com/") && !has("http://examples.com/") && !has("http://com/"));
        assert_eq!(super::spans(&Condition::Prefix(vec!["exam".into()])), None, "a part of a host");
        assert_eq!(super::spans(&Condition::Mime(vec!["text/html".into()])), None);
    }
}
