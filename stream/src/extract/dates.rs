//! When a page was made and changed, as it says itself.

use std::time::UNIX_EPOCH;

use lol_html::html_content::{Element, TextType};

use super::Content;
use super::html::{Sink, walk};

/// Dates of a page, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dates {
    /// When it says that it was published.
    pub published_ms: Option<i64>,
    /// When it says that it was last changed.
    pub modified_ms: Option<i64>,
    /// When its server says that it was last changed.
    pub last_modified_ms: Option<i64>,
}

const PUBLISHED: [&str; 8] = [
    "article:published_time",
    "citation_publication_date",
    "date",
    "datepublished",
    "dc.date",
    "dc.date.issued",
    "dcterms.created",
    "pubdate",
];
const MODIFIED: [&str; 6] = [
    "article:modified_time",
    "datemodified",
    "dcterms.modified",
    "last-modified",
    "og:updated_time",
    "revised",
];

#[derive(Default)]
struct Found {
    dates: Dates,
    /// The first `time` element, in case nothing better is found.
    time: Option<i64>,
    is_linked_data: bool,
}

impl Found {
    fn note(&mut self, name: &str, value: &str) {
        let name = name.trim().to_ascii_lowercase();
        let (published, modified) = (&mut self.dates.published_ms, &mut self.dates.modified_ms);
        if PUBLISHED.contains(&name.as_str()) {
            *published = published.or_else(|| parse(value));
        } else if MODIFIED.contains(&name.as_str()) {
            *modified = modified.or_else(|| parse(value));
        }
    }
}

impl Sink for Found {
    fn start(&mut self, element: &Element<'_, '_>) {
        self.is_linked_data = false;
        let attribute = |name: &str| element.get_attribute(name);
        match element.tag_name().as_str() {
            "meta" => {
                let name = ["property", "name", "itemprop", "http-equiv"].into_iter().find_map(attribute);
                if let (Some(name), Some(value)) = (name, attribute("content")) {
                    self.note(&name, &value);
                }
            }
            "time" => {
                let value = attribute("datetime");
                if let (Some(name), Some(value)) = (attribute("itemprop"), &value) {
                    self.note(&name, value);
                }
                self.time = self.time.or_else(|| parse(&value?));
            }
            "script" => {
                let kind = attribute("type").unwrap_or_default();
                self.is_linked_data = kind.trim().eq_ignore_ascii_case("application/ld+json");
            }
            _ => {}
        }
    }

    fn text(&mut self, text: &str, kind: TextType) {
        if self.is_linked_data && kind == TextType::ScriptData {
            for name in ["datePublished", "dateModified"] {
                if let Some(value) = json_text(text, name) {
                    self.note(name, value);
                }
            }
        }
    }
}

/// The text that a name has first in JSON, which need not be whole.
fn json_text<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = json.split_once(&format!("\"{name}\""))?;
    let value = rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
    value.split_once('"').map(|(value, _)| value)
}

/// A date as pages have them: RFC 3339 and less of it, or as HTTP has them.
fn parse(text: &str) -> Option<i64> {
    let text = text.trim();
    if let Ok(at) = text.parse::<jiff::Timestamp>() {
        return Some(at.as_millisecond());
    }
    let local = text.parse::<jiff::civil::DateTime>();
    let local = local.or_else(|_| text.parse::<jiff::civil::Date>().map(|date| date.at(0, 0, 0, 0)));
    if let Ok(at) = local {
        return Some(at.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_millisecond());
    }
    let at = httpdate::parse_http_date(text).ok()?;
    i64::try_from(at.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

/// The dates of a page: of HTML from `meta`, `time` and linked data, and from its HTTP head. A date without a zone is taken as
/// UTC.
pub fn dates(page: &Content<'_>) -> Dates {
    let mut found = match page.is_html() {
        true => walk(page.text(), Found::default()),
        false => Found::default(),
    };
    found.dates.published_ms = found.dates.published_ms.or(found.time);
    found.dates.last_modified_ms = page.header("last-modified").and_then(parse);
    found.dates
}

#[cfg(test)]
mod tests {
    use super::*;
    use webbase_storage::Page;

    fn of(head: &str, html: &str) -> Dates {
        let (head, body) = (head.as_bytes(), html.as_bytes());
        dates(&Content::of_page(&Page { mime: "text/html", head, body, ..Page::default() }))
    }

    #[test]
    fn dates_are_found_where_pages_have_them() {
        let day = 1_262_304_000_000; // 2010-01-01
        let none = Dates::default();
        let published = Dates { published_ms: Some(day), ..none };
        for (html, expected) in [
            ("<meta property='article:published_time' content='2010-01-01T01:00:00+01:00'>", published),
            ("<meta name=DC.date content=2010-01-01>", published),
            ("<time datetime='2010-01-01T00:00'>then</time>", published),
            ("<script type='application/ld+json'>{\"datePublished\" : \"2010-01-01\"", published),
            ("<script>{\"datePublished\" : \"2010-01-01\"", none),
            (
                "<meta http-equiv=Last-Modified content='Fri, 01 Jan 2010 00:00:00 GMT'>",
                Dates { modified_ms: Some(day), ..none },
            ),
            ("<meta name=date content='yesterday'><time>now</time>", none),
            ("<meta name=date content='99999-99-99'>", none),
            ("<meta", none),
        ] {
            assert_eq!(of("", html), expected, "{html}");
        }
        let head = "HTTP/1.1 200 OK\r\nLast-Modified: Fri, 01 Jan 2010 00:00:00 GMT\r\n\r\n";
        assert_eq!(of(head, ""), Dates { last_modified_ms: Some(day), ..none });
    }
}
