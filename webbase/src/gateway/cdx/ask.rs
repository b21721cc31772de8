//! What a query asks for, read from the parameters of its dialect.
//!
//! Parameters that nobody knows are ignored, because that is what the servers do whose clients come here.

use data_encoding::BASE64URL_NOPAD;
use webbase_storage::PageKey;
use webbase_storage::surt::{KeyRange, Match, Profile};
use webbase_storage::url::UrlError;

use super::capture::{Field, seconds};
use super::filter::Filter;
use crate::gateway::memento;
use crate::gateway::params::Params;
use crate::gateway::problem::Problem;

/// Whose query language it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dialect {
    /// pywb and Common Crawl.
    Pywb,
    /// The Internet Archive's wayback-cdx-server.
    Archive,
    /// OutbackCDX.
    Outback,
}

/// How the answer looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Output {
    /// Fields, with a blank between.
    Text,
    /// SURT key, time and an object.
    Cdxj,
    /// An object a line.
    JsonLines,
    /// Rows of one array, the first with the names.
    JsonRows,
    /// Objects of one array.
    JsonObjects,
    /// A TimeMap (RFC 7089).
    Link,
}

/// In which order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Sort {
    /// By SURT key and time.
    Up,
    /// The other way round.
    Down,
    /// By the distance to a time, in seconds.
    Closest(i64),
}

/// Which of neighbouring lines that are alike is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Collapse {
    /// The fields that make them alike, and how much of each.
    pub(super) by: Vec<(Field, usize)>,
    pub(super) last: bool,
}

/// How many lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Limit {
    First(usize),
    Last(usize),
}

/// A place behind a line.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    pub(super) surt: String,
    pub(super) timestamp: String,
    pub(super) key: PageKey,
}

impl Place {
    /// As a resume key: letters that no encoding changes.
    pub(super) fn encode(&self) -> String {
        let mut bytes = self.key.id.0.to_be_bytes().to_vec();
        bytes.extend_from_slice(&self.key.tie.to_be_bytes());
        bytes.extend_from_slice(self.timestamp.as_bytes());
        bytes.extend_from_slice(self.surt.as_bytes());
        BASE64URL_NOPAD.encode(&bytes)
    }

    pub(super) fn decode(text: &str) -> Option<Place> {
        // Some clients encode it once more than needed.
        let text = if text.contains('%') { memento::decoded(text)? } else { text.to_owned() };
        let bytes = BASE64URL_NOPAD.decode(text.trim().as_bytes()).ok()?;
        let (id, rest) = bytes.split_first_chunk()?;
        let (tie, rest) = rest.split_first_chunk()?;
        let (timestamp, surt) = rest.split_first_chunk::<14>()?;
        let digits = timestamp.iter().all(u8::is_ascii_digit);
        let key =
            PageKey { id: webbase_storage::PageId(u64::from_be_bytes(*id)), tie: u64::from_be_bytes(*tie) };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        digits.then_some(Place { surt: text(surt)?, timestamp: text(timestamp)?, key })
    }
}

/// Part of the answer, as numbered pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Paging {
    /// Which page.
    pub(super) page: Option<u64>,
    /// Blocks of a page.
    pub(super) size: u64,
}

/// A query.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) dialect: Dialect,
    pub(super) url: String,
    pub(super) by: Match,
    pub(super) range: KeyRange,
    /// 14 digits each, both inclusive.
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
    pub(super) limit: Option<Limit>,
    pub(super) sort: Sort,
    pub(super) filters: Vec<Filter>,
    pub(super) fields: Option<Vec<Field>>,
    pub(super) output: Output,
    pub(super) collapse: Option<Collapse>,
    pub(super) paging: Paging,
    pub(super) show_pages: bool,
    pub(super) show_resume: bool,
    pub(super) resume: Option<Place>,
    /// A list of so many ranges, instead of lines.
    pub(super) ranges: Option<u32>,
}

/// Behind all SURT keys.
pub(in super::super) const BEHIND_ALL: &str = "\u{7f}";
/// Lines that an answer has when nothing is said.
pub(super) const LIMIT: usize = 100_000;
/// Lines that an answer of the Internet Archive's dialect has at most.
pub(super) const ARCHIVE_LIMIT: usize = 150_000;
/// Blocks of a page when nothing is said.
const PAGE_SIZE: u64 = 5;
/// Ranges that a query can be cut into.
const RANGES_MAX: u64 = 1000;

impl Ask {
    /// Reads the parameters.
    ///
    /// # Errors
    /// When one makes no sense.
    pub(super) fn parse(mut params: Params, dialect: Dialect) -> Result<Ask, Problem> {
        let (url, match_type) = (params.take("url")?, params.take("matchType")?);
        let is_onwards = dialect == Dialect::Outback && match_type.as_deref() == Some("range");
        let Some(url) = url.filter(|url| is_onwards || !url.is_empty()) else {
            return Err(Problem::bad("no-url", "which URL? ?url=http%3A%2F%2Fexample.org%2F*"));
        };
        let bad_url = |e: UrlError| Problem::bad("bad-url", e.to_string());
        let (url, by, mut range) = if is_onwards {
            // From this URL on, or from the first one, to the last.
            let start =
                if url.is_empty() { String::new() } else { Profile::Ia1.key(&url).map_err(bad_url)? };
            (url, Match::Prefix, KeyRange { start, end: BEHIND_ALL.into() })
        } else {
            let (url, by) = what(url, match_type)?;
            let range = Profile::Ia1.range(&url, by).map_err(bad_url)?;
            (url, by, range)
        };
        // One of the parts that `showRanges` told.
        for (name, end) in [("keyFrom", false), ("keyTo", true)] {
            let Some(key) = params.take(name)? else { continue };
            match end {
                false if key > range.start => range.start = key,
                true if key < range.end => range.end = key,
                _ => {}
            }
        }
        let (from, to) = (padded(&mut params, "from", '0')?, padded(&mut params, "to", '9')?);
        if dialect == Dialect::Outback && by != Match::Exact && (from.is_some() || to.is_some()) {
            return Err(Problem::bad("bad-parameter", "from and to go with matchType=exact only"));
        }
        let closest = params.take("closest")?.filter(|text| !text.is_empty());
        let sort = match (params.take("sort")?.as_deref(), closest) {
            (Some("reverse"), _) => Sort::Down,
            (None | Some("" | "default" | "closest"), Some(time)) => {
                let text = format!("closest is a time of 4 to 14 digits, not {time:?}");
                Sort::Closest(seconds(&time).ok_or_else(|| Problem::bad("bad-parameter", text))?)
            }
            (None | Some("" | "default" | "closest"), None) => Sort::Up,
            (Some(other), _) => {
                return Err(Problem::bad("bad-parameter", format!("there is no sort={other:?}")));
            }
        };
        let filters = params.take_all("filter");
        let filters = filters.iter().filter(|text| !text.is_empty());
        let filters = filters.map(|text| Filter::parse(text, dialect)).collect::<Result<_, _>>()?;
        let fields = match params.take("fl")? {
            None => params.take("fields")?,
            fields => fields,
        };
        let fields = fields.filter(|text| !text.is_empty()).map(|text| fields_of(&text)).transpose()?;
        let output = output(dialect, params.take("output")?.as_deref())?;
        let page = params.number("page")?;
        let size = params.number("pageSize")?.unwrap_or(PAGE_SIZE).clamp(1, 1 << 20);
        let resume = match params.take("resumeKey")?.filter(|text| !text.is_empty()) {
            None => None,
            Some(text) => Some(Place::decode(&text).ok_or_else(|| {
                Problem::bad(
                    "bad-resume-key",
                    "this resumeKey is none that an answer of this server ended with",
                )
            })?),
        };
        let ranges = params.number("showRanges")?;
        if ranges.is_some_and(|count| !(1..=RANGES_MAX).contains(&count)) {
            return Err(Problem::bad(
                "bad-parameter",
                format!("showRanges is a number from 1 to {RANGES_MAX}"),
            ));
        }
        Ok(Ask {
            collapse: collapse(&mut params)?,
            limit: limit(&mut params, dialect)?,
            show_pages: params.flag("showNumPages")?,
            show_resume: params.flag("showResumeKey")?,
            paging: Paging { page, size },
            ranges: ranges.map(|count| count as u32),
            dialect,
            url,
            by,
            range,
            from,
            to,
            sort,
            filters,
            fields,
            output,
            resume,
        })
    }

    /// Whether the lines are read from the last to the first.
    pub(super) fn descends(&self) -> bool {
        matches!((&self.sort, self.limit), (Sort::Down, _) | (Sort::Up, Some(Limit::Last(_))))
    }
}

/// The URL and what is asked about it: `x/*` means all that begins so, `*.x` a domain.
fn what(url: String, by: Option<String>) -> Result<(String, Match), Problem> {
    let by = match by.as_deref() {
        None | Some("") => {
            if let Some(domain) = url.strip_prefix("*.") {
                return Ok((domain.to_owned(), Match::Domain));
            }
            if let Some(prefix) = url.strip_suffix('*') {
                return Ok((prefix.to_owned(), Match::Prefix));
            }
            Match::Exact
        }
        Some("exact") => Match::Exact,
        Some("prefix") => Match::Prefix,
        Some("host") => Match::Host,
        Some("domain") => Match::Domain,
        Some(other) => {
            let text = format!("matchType is exact, prefix, host or domain, not {other:?}");
            return Err(Problem::bad("bad-parameter", text));
        }
    };
    // Many tools send both.
    let url = match by {
        Match::Domain => url.strip_prefix("*.").unwrap_or(&url).to_owned(),
        Match::Prefix => url.strip_suffix('*').unwrap_or(&url).to_owned(),
        _ => url,
    };
    Ok((url, by))
}

/// A time of up to 14 digits, filled up.
fn padded(params: &mut Params, name: &str, fill: char) -> Result<Option<String>, Problem> {
    let Some(mut text) = params.take(name)?.filter(|text| !text.is_empty()) else { return Ok(None) };
    if text.len() > 14 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Problem::bad(
            "bad-parameter",
            format!("{name} is a time of 1 to 14 digits, not {text:?}"),
        ));
    }
    while text.len() < 14 {
        text.push(fill);
    }
    Ok(Some(text))
}

fn fields_of(text: &str) -> Result<Vec<Field>, Problem> {
    let named = |name: &str| {
        let name = name.trim();
        Field::named(name).ok_or_else(|| Problem::bad("bad-parameter", format!("there is no field {name:?}")))
    };
    let fields: Vec<Field> =
        text.split(',').filter(|name| !name.is_empty()).map(named).collect::<Result<_, _>>()?;
    if fields.len() > 50 {
        return Err(Problem::bad("bad-parameter", "fl names more than 50 fields"));
    }
    Ok(fields)
}

fn output(dialect: Dialect, text: Option<&str>) -> Result<Output, Problem> {
    Ok(match (dialect, text.unwrap_or_default()) {
        (Dialect::Pywb, "" | "cdxj") | (Dialect::Outback, "cdxj") | (Dialect::Archive, "cdxj") => {
            Output::Cdxj
        }
        (Dialect::Pywb, "json") => Output::JsonLines,
        (Dialect::Pywb, "text") | (Dialect::Archive | Dialect::Outback, "" | "text" | "cdx") => Output::Text,
        (Dialect::Pywb | Dialect::Archive, "link") => Output::Link,
        (Dialect::Archive | Dialect::Outback, "json") => Output::JsonRows,
        (Dialect::Outback, "jsondict") => Output::JsonObjects,
        (_, other) => {
            let other: String = other.chars().take(50).collect();
            return Err(Problem::bad("bad-parameter", format!("there is no output={other:?} here")));
        }
    })
}

fn limit(params: &mut Params, dialect: Dialect) -> Result<Option<Limit>, Problem> {
    let Some(text) = params.take("limit")?.filter(|text| !text.is_empty()) else { return Ok(None) };
    let bad = || Problem::bad("bad-parameter", format!("limit is a number, not {:.50}", text));
    let number: i64 = text.parse().map_err(|_| bad())?;
    let most = if dialect == Dialect::Archive { ARCHIVE_LIMIT } else { usize::MAX };
    let count = usize::try_from(number.unsigned_abs()).unwrap_or(usize::MAX).min(most);
    Ok(Some(match (number < 0, dialect) {
        (false, _) => Limit::First(count),
        (true, Dialect::Archive) => Limit::Last(count),
        // The others have no such thing; nothing is less than nothing.
        (true, _) => Limit::First(0),
    }))
}

fn collapse(params: &mut Params) -> Result<Option<Collapse>, Problem> {
    if let Some(digits) = params.number("collapseTime")? {
        let by = vec![(Field::Timestamp, digits as usize), (Field::Status, usize::MAX)];
        return Ok(Some(Collapse { by, last: false }));
    }
    for (name, last) in [("collapse", false), ("collapseToFirst", false), ("collapseToLast", true)] {
        let all = params.take_all(name);
        if all.is_empty() {
            continue;
        }
        let by = all.iter().map(|text| {
            let (field, len) = text.split_once(':').map_or((text.as_str(), None), |(f, n)| (f, Some(n)));
            let len = len.map_or(Some(usize::MAX), |len| len.parse().ok());
            let bad = || Problem::bad("bad-parameter", format!("{name} has the form field or field:digits"));
            Ok((Field::named(field).ok_or_else(bad)?, len.ok_or_else(bad)?))
        });
        return Ok(Some(Collapse { by: by.collect::<Result<_, Problem>>()?, last }));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(query: &str, dialect: Dialect) -> Result<Ask, Problem> {
        Ask::parse(Params::parse(Some(query))?, dialect)
    }

    #[test]
    fn stars_say_what_is_meant() {
        for (query, by, start) in [
            ("url=http://h.com/a*", Match::Prefix, "com,h)/a"),
            ("url=h.com/*", Match::Prefix, "com,h)/"),
            ("url=*.h.com", Match::Domain, "com,h)/"),
            ("url=h.com&matchType=host", Match::Host, "com,h)/"),
            ("url=*.h.com&matchType=domain", Match::Domain, "com,h)/"),
            ("url=http%3A//www.h.com/A", Match::Exact, "com,h)/a"),
        ] {
            let ask = ask(query, Dialect::Pywb).unwrap();
            assert_eq!((ask.by, ask.range.start.as_str()), (by, start), "{query}");
        }
    }

    #[test]
    fn outbackcdx_lists_from_a_url_on() {
        let onwards = ask("url=http://h.com/b&matchType=range&limit=10", Dialect::Outback).unwrap();
        assert_eq!((onwards.range.start.as_str(), onwards.range.end.as_str()), ("com,h)/b", BEHIND_ALL));
        assert_eq!(ask("url=&matchType=range", Dialect::Outback).unwrap().range.start, "");
        assert!(ask("url=h.com&matchType=range", Dialect::Pywb).is_err());
        assert!(ask("url=&matchType=prefix", Dialect::Outback).is_err());
    }

    #[test]
    fn what_real_clients_send_is_understood() {
        let empty = ask("url=h.com&closest=&sort=closest&matchType=prefix", Dialect::Pywb).unwrap();
        assert_eq!(empty.sort, Sort::Up);
        let replay = ask(
            "url=http%3A//h/p&closest=20260101000000&sort=closest&limit=100&matchType=exact",
            Dialect::Outback,
        );
        assert!(matches!(replay.unwrap().sort, Sort::Closest(1_767_225_600)));
        let dedup = ask("url=h&fl=timestamp,digest&filter=!mimetype:warc/revisit&limit=-1", Dialect::Archive)
            .unwrap();
        assert_eq!((dedup.limit, dedup.descends()), (Some(Limit::Last(1)), true));
        assert_eq!(dedup.fields, Some(vec![Field::Timestamp, Field::Digest]));
        assert!(ask("url=h&collapse=timestamp:8&unknown=1&gzip=false", Dialect::Archive).is_ok());
    }

    #[test]
    fn nonsense_is_refused() {
        for query in [
            "",
            "url=",
            "url=h&matchType=bogus",
            "url=h&limit=abc",
            "url=h&from=x",
            "url=h&from=123456789012345",
            "url=h&closest=yesterday",
            "url=h&output=xml",
            "url=h&fl=nothing",
            "url=h&collapse=x",
            "url=h&filter=x",
            "url=h&resumeKey=!!",
            "url=h&sort=up",
            "url=h&page=-1",
            "url=h&showRanges=0",
            "url=http%3A%2F%2F",
        ] {
            assert_eq!(ask(query, Dialect::Pywb).unwrap_err().status(), 400, "{query}");
        }
        assert!(ask("url=h/*&from=2020", Dialect::Outback).is_err());
    }

    #[test]
    fn a_resume_key_is_the_same_however_it_is_encoded() {
        let key = PageKey { id: webbase_storage::PageId(u64::MAX - 3), tie: 9 };
        let place = Place { surt: "com,h)/ä?b=c&d".into(), timestamp: "20200101000000".into(), key };
        let text = place.encode();
        assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'), "{text}");
        assert_eq!(Place::decode(&text), Some(place));
        for bad in ["", "x", "com%2Ch%29%2F+2020%21", &"A".repeat(40)] {
            assert_eq!(Place::decode(bad), None);
        }
    }
}
