//! A version of a page as text.

use std::fmt::Write as _;

use crate::text;
use crate::world::{Kind, TITLE, VERSIONS, World};

impl World {
    /// A page's title, the same in all versions.
    pub fn title(&self, page: usize) -> String {
        text::title(&mut self.random(TITLE, page))
    }

    /// A page as it is at a moment.
    pub(crate) fn body(&self, page: usize, at_ms: u64) -> String {
        match self.kind(page) {
            Kind::Html => self.html(page, at_ms),
            Kind::Xml => self.xml(page, at_ms),
            Kind::Feed => self.feed(page, at_ms),
            Kind::Dtd => self.dtd(page, at_ms),
        }
    }

    fn paragraphs(&self, page: usize, version: u32) -> Vec<String> {
        let mut random = self.random(VERSIONS + u64::from(version), page);
        (0..2 + random.below(6)).map(|_| text::paragraph(&mut random)).collect()
    }

    fn html(&self, page: usize, at_ms: u64) -> String {
        let (version, _) = self.version(page, at_ms);
        let (title, url) = (self.title(page), self.url(page));
        let mut body = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
             <style>body{{font:16px/1.5 sans-serif;max-width:40em;margin:2em auto;padding:0 1em}}</style></head>\n\
             <body><h1>{title}</h1>\n<p>Version {version} of {url}.</p>\n"
        );
        for paragraph in self.paragraphs(page, version) {
            let _ = writeln!(body, "<p>{paragraph}</p>");
        }
        body.push_str("<ul>\n");
        for link in self.links_at(page, at_ms) {
            let _ = writeln!(body, "<li><a href=\"{}\">{}</a></li>", self.url(link), self.title(link));
        }
        body.push_str("</ul>\n</body></html>\n");
        body
    }

    fn xml(&self, page: usize, at_ms: u64) -> String {
        let (version, _) = self.version(page, at_ms);
        let mut body = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE catalog SYSTEM \"/catalog.dtd\">\n\
             <catalog version=\"{version}\">\n<title>{}</title>\n",
            self.title(page)
        );
        for paragraph in self.paragraphs(page, version) {
            let _ = writeln!(body, "<entry>{paragraph}</entry>");
        }
        for link in self.links_at(page, at_ms) {
            let _ = writeln!(body, "<ref href=\"{}\">{}</ref>", self.url(link), self.title(link));
        }
        body.push_str("</catalog>\n");
        body
    }

    fn feed(&self, page: usize, at_ms: u64) -> String {
        let (_, modified_at_ms) = self.version(page, at_ms);
        let home = self.pages_of(self.site_of(page)).start;
        let mut body = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<rss version=\"2.0\"><channel>\n<title>{}</title>\n\
             <link>{}</link>\n<description>{}</description>\n",
            self.title(page),
            self.url(home),
            self.title(home)
        );
        for link in self.links_at(page, at_ms) {
            let (title, url) = (self.title(link), self.url(link));
            let _ = writeln!(body, "<item><title>{title}</title><link>{url}</link><guid>{url}</guid></item>");
        }
        let date = std::time::UNIX_EPOCH + std::time::Duration::from_millis(modified_at_ms);
        let _ = writeln!(body, "<lastBuildDate>{}</lastBuildDate>", httpdate::fmt_http_date(date));
        body.push_str("</channel></rss>\n");
        body
    }

    fn dtd(&self, page: usize, at_ms: u64) -> String {
        format!(
            "<!-- version {} -->\n<!ELEMENT catalog (title, (entry | ref)*)>\n<!ATTLIST catalog version CDATA #REQUIRED>\n\
             <!ELEMENT title (#PCDATA)>\n<!ELEMENT entry (#PCDATA)>\n<!ELEMENT ref (#PCDATA)>\n\
             <!ATTLIST ref href CDATA #REQUIRED>\n",
            self.version(page, at_ms).0
        )
    }
}
