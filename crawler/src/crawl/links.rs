//! The links of a page: what a crawl finds its next pages by.

use lol_html::{HtmlRewriter, Settings, element};
use quick_xml::Reader;
use quick_xml::events::Event;
use url::Url;

use crate::sitemap::Sitemap;

/// More links of one page are not followed (the link matrix has room for no more either).
const LINKS_MAX: usize = 65_534;
/// A longer URL is a trap.
const URL_BYTES_MAX: usize = 2048;

/// The links of a page, resolved, in order, each once; only those that can be fetched.
pub(super) fn links(mime: &str, body: &[u8], base: &Url) -> Vec<Url> {
    let (found, base) = match mime {
        "text/html" | "application/xhtml+xml" | "" => html(body, base),
        _ if mime.ends_with("xml") => (xml(body, base), base.clone()),
        _ => return Vec::new(),
    };
    let mut links = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for link in found {
        let Ok(mut url) = base.join(link.trim()) else { continue };
        url.set_fragment(None);
        let fetchable = matches!(url.scheme(), "http" | "https") && url.as_str().len() <= URL_BYTES_MAX;
        if fetchable && seen.insert(url.clone()) {
            links.push(url);
        }
    }
    links
}

/// What attributes of a page's elements name, and what they are relative to.
fn html(body: &[u8], base: &Url) -> (Vec<String>, Url) {
    let (mut found, mut own): (Vec<String>, Option<Url>) = (Vec::new(), None);
    {
        let mut take = |link: Option<String>| {
            if let Some(link) = link.filter(|_| found.len() < LINKS_MAX) {
                // Attribute values come with their entities.
                found.push(htmlize::unescape_attribute(&link).into_owned());
            }
            Ok(())
        };
        let handlers = Settings::new().append_element_content_handler(element!("*", |element| {
            match element.tag_name().as_str() {
                "a" | "area" => take(element.get_attribute("href")),
                "frame" | "iframe" => take(element.get_attribute("src")),
                "link" => {
                    let rel = element.get_attribute("rel").unwrap_or_default().to_ascii_lowercase();
                    let leads =
                        ["alternate", "canonical", "next", "prev"].iter().any(|one| rel.contains(one));
                    if leads { take(element.get_attribute("href")) } else { Ok(()) }
                }
                "base" => {
                    if own.is_none() {
                        own = element.get_attribute("href").and_then(|href| base.join(&href).ok());
                    }
                    Ok(())
                }
                _ => Ok(()),
            }
        }));
        let mut reader = HtmlRewriter::new(handlers, |_: &[u8]| {});
        // A page that cannot be read to its end has the links up to there.
        if reader.write(body).is_ok() {
            drop(reader.end());
        }
    }
    (found, own.unwrap_or_else(|| base.clone()))
}

/// What `href` attributes of a document name, its DTD, and where it is a feed its items.
fn xml(body: &[u8], base: &Url) -> Vec<String> {
    let mut found: Vec<String> =
        Sitemap::read(body, base).pages.into_iter().map(|entry| entry.url.to_string()).collect();
    let text = String::from_utf8_lossy(body);
    let mut reader = Reader::from_str(&text);
    reader.config_mut().check_end_names = false;
    while let Ok(event) = reader.read_event() {
        match event {
            Event::Eof => break,
            Event::DocType(doctype) => {
                found.extend(crate::loader::external_subset(&doctype));
            }
            Event::Start(element) | Event::Empty(element) => {
                for attribute in element.attributes().with_checks(false).flatten() {
                    if attribute.key.local_name().as_ref() == "href" && found.len() < LINKS_MAX {
                        let text = &attribute.value;
                        found.push(
                            quick_xml::escape::unescape(text).map_or(text.to_string(), |t| t.into_owned()),
                        );
                    }
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(mime: &str, body: &str) -> Vec<String> {
        let base = Url::parse("http://a.example/x/y").unwrap();
        links(mime, body.as_bytes(), &base).into_iter().map(|url| url.to_string()).collect()
    }

    #[test]
    fn links_of_html() {
        let body = "<a href='1?a=1&amp;b=2#top'>x</a><A HREF=/2>y</A><a href='mailto:x'>z</a><a href=1?a=1&b=2>again</a>\
            <link rel=stylesheet href=s.css><link rel=alternate href=f.rss><iframe src=//b.example/></iframe><a href='http://[bad'>";
        let expected = [
            "http://a.example/x/1?a=1&b=2",
            "http://a.example/2",
            "http://a.example/x/f.rss",
            "http://b.example/",
        ];
        assert_eq!(found("text/html", body), expected);
        assert_eq!(found("text/html", "<base href=/z/><a href=1>"), ["http://a.example/z/1"]);
    }

    #[test]
    fn links_of_xml_and_of_nothing() {
        let body = "<!DOCTYPE c SYSTEM \"/c.dtd\"><c><ref href=\"1&amp;2\"/><r xlink:href='/3'>";
        assert_eq!(
            found("application/xml", body),
            ["http://a.example/c.dtd", "http://a.example/x/1&2", "http://a.example/3"]
        );
        assert!(found("image/png", "<a href=1>").is_empty());
    }
}
