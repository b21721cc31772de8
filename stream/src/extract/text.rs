//! The text of a page, as a reader sees it.

use lol_html::html_content::{Element, TextType};

use super::Content;
use super::html::{Sink, walk};

/// Elements whose text stands by itself.
const BLOCKS: [&str; 44] = [
    "address",
    "article",
    "aside",
    "blockquote",
    "body",
    "br",
    "caption",
    "center",
    "dd",
    "details",
    "dialog",
    "dir",
    "div",
    "dl",
    "dt",
    "fieldset",
    "figcaption",
    "figure",
    "footer",
    "form",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "header",
    "hr",
    "legend",
    "li",
    "main",
    "menu",
    "nav",
    "ol",
    "option",
    "p",
    "pre",
    "section",
    "summary",
    "table",
    "td",
    "th",
    "tr",
    "ul",
];
/// Elements whose text nobody sees.
const UNSEEN: [&str; 5] = ["head", "template", "noscript", "select", "datalist"];

fn is_block(name: &str) -> bool {
    BLOCKS.binary_search(&name).is_ok()
}

#[derive(Default)]
struct Texts {
    out: String,
    /// Unseen elements around.
    unseen: usize,
}

impl Texts {
    fn break_line(&mut self) {
        while self.out.ends_with(' ') {
            self.out.pop();
        }
        if !self.out.is_empty() && !self.out.ends_with('\n') {
            self.out.push('\n');
        }
    }
}

impl Sink for Texts {
    fn start(&mut self, element: &Element<'_, '_>) {
        let name = element.tag_name();
        if UNSEEN.contains(&name.as_str()) && element.can_have_content() {
            self.unseen += 1;
        }
        if name == "body" {
            self.unseen = 0; // a head that does not end, ends here
        }
        if is_block(&name) {
            self.break_line();
        }
    }

    fn end(&mut self, name: &str) {
        let name = name.to_ascii_lowercase();
        if UNSEEN.contains(&name.as_str()) {
            self.unseen = self.unseen.saturating_sub(1);
        }
        if is_block(&name) {
            self.break_line();
        }
    }

    fn text(&mut self, text: &str, kind: TextType) {
        if self.unseen > 0 || !matches!(kind, TextType::Data | TextType::PlainText) {
            return;
        }
        if text.starts_with(char::is_whitespace) && !self.out.is_empty() && !self.out.ends_with(['\n', ' ']) {
            self.out.push(' ');
        }
        for (n, word) in text.split_whitespace().enumerate() {
            if n > 0 {
                self.out.push(' ');
            }
            self.out.push_str(word);
        }
        let is_blank = text.trim().is_empty();
        if !is_blank && text.ends_with(char::is_whitespace) {
            self.out.push(' ');
        }
    }
}

/// The text of a page: of HTML what is between the tags, a line for each paragraph, heading, list item or cell, without scripts
/// and styles; of other `text/*` all of it; of anything else none.
pub fn text(page: &Content<'_>) -> String {
    if !page.is_html() {
        return if page.mime().starts_with("text/") { page.text().to_owned() } else { String::new() };
    }
    let mut found = walk(page.text(), Texts::default());
    found.break_line();
    found.out
}

#[cfg(test)]
mod tests {
    use super::*;
    use webbase_storage::Page;

    fn of(html: &str) -> String {
        text(&Content::of_page(&Page { mime: "text/html", body: html.as_bytes(), ..Page::default() }))
    }

    #[test]
    fn what_a_reader_sees_is_the_text() {
        assert!(BLOCKS.is_sorted());
        for (html, expected) in [
            ("<title>t</title><p>Hello, <b>wor</b>ld &amp; all</p>more", "Hello, world & all\nmore\n"),
            ("<script>x='<p>no'</script><style>p{}</style>yes<noscript>no</noscript>", "yes\n"),
            ("<ul><li>one<li>two\n three</ul>", "one\ntwo three\n"),
            ("<table><tr><td>a</td><td>b</td></tr></table>", "a\nb\n"),
            ("a<br>b <i> c</i>", "a\nb c\n"),
            ("<head><title>no</title><body>yes", "yes\n"),
            ("&#x41;&nbsp;&copy", "A ©\n"),
            ("", ""),
            ("<<<>>><p", "<<<>>>\n"),
        ] {
            let found = of(html);
            assert_eq!(found.replace('\u{a0}', " "), expected, "{html}");
        }
    }

    #[test]
    fn other_text_is_taken_as_it_is() {
        let page = |mime| Page { mime, body: b"<p>a", ..Page::default() };
        assert_eq!(text(&Content::of_page(&page("text/plain"))), "<p>a");
        assert_eq!(text(&Content::of_page(&page("image/png"))), "");
    }
}
