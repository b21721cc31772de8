//! Links of XML: by attribute, by processing instruction, by document type, and by text where such text is a URL.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use url::Url;

use super::resolve::Resolver;
use super::{LinkKind, html};

/// A document that is broken is gone on with behind the break, so often.
const BREAKS_MAX: usize = 64;
/// Text of one element that is kept: longer is no URL, and seldom HTML of a feed.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// Elements whose text is a URL, by their local names: RSS and its modules, sitemaps, OPML, DOAP, WML.
const URL_TEXT: [&str; 14] = [
    "commentRss",
    "comments",
    "docs",
    "guid",
    "homepage",
    "link",
    "loc",
    "origEnclosureLink",
    "origLink",
    "permalink",
    "uri",
    "url",
    "webpage",
    "website",
];
/// Elements whose text is HTML, in feeds.
const HTML_TEXT: [&str; 4] = ["content", "description", "encoded", "summary"];

/// What waits for the end of an element.
struct Reading {
    text: String,
    /// Whether the text is the element's own alone.
    is_link: bool,
    is_html: bool,
    /// A name that need not be an address: a `guid` that says so.
    is_name: bool,
}

struct Walk<'a> {
    found: &'a mut Resolver,
    depth: usize,
    /// Bases to go back to, with the depth at which they held.
    bases: Vec<(usize, Url)>,
    reading: Option<Reading>,
}

/// Goes through XML and takes its links.
pub(super) fn gather(xml: &str, found: &mut Resolver) {
    let mut walk = Walk { found, depth: 0, bases: Vec::new(), reading: None };
    let mut rest = xml;
    for _ in 0..BREAKS_MAX {
        let Some(broken_at) = walk.read(rest) else { return };
        // Behind the break, at the next tag.
        let after = rest.get(broken_at..).unwrap_or_default();
        let mut next = after.char_indices().skip(1).filter(|(_, c)| *c == '<');
        let Some((at, _)) = next.next() else { return };
        rest = after.get(at..).unwrap_or_default();
    }
}

impl Walk<'_> {
    /// Reads to the end, or to where the document is broken.
    fn read(&mut self, xml: &str) -> Option<usize> {
        let mut reader = Reader::from_str(xml);
        let config = reader.config_mut();
        config.check_end_names = false;
        config.allow_unmatched_ends = true;
        config.allow_dangling_amp = true;
        loop {
            match reader.read_event() {
                Ok(Event::Eof) => return None,
                Ok(event) => self.event(event),
                Err(_) => return Some(reader.error_position() as usize),
            }
            if self.found.is_full() {
                return None;
            }
        }
    }

    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(start) => {
                self.depth += 1;
                self.element(&start);
                self.begin(&start);
            }
            Event::Empty(start) => {
                self.depth += 1;
                self.element(&start);
                self.end();
            }
            Event::End(_) => {
                self.finish();
                self.end();
            }
            Event::Text(text) => self.text(&text),
            Event::CData(text) => self.text(&text),
            Event::GeneralRef(entity) => {
                let entity = format!("&{};", &*entity);
                self.text(&htmlize::unescape(entity.as_str()));
            }
            Event::DocType(doctype) => {
                for system in systems(&doctype) {
                    self.found.add(&system, LinkKind::Dtd, false);
                }
            }
            Event::PI(instruction) if instruction.target() == "xml-stylesheet" => {
                for attribute in instruction.attributes().with_checks(false).flatten() {
                    if attribute.key.as_ref() == "href" {
                        self.found.add(&unescaped(&attribute.value), LinkKind::Resource, false);
                    }
                }
            }
            _ => {}
        }
    }

    /// The links of a start tag.
    fn element(&mut self, start: &BytesStart<'_>) {
        let name = start.local_name();
        let name = name.as_ref();
        let mut links: Vec<(String, LinkKind)> = Vec::new();
        let (mut nofollow, mut embeds, mut resource) = (false, false, false);
        for attribute in start.attributes().with_checks(false).flatten() {
            let (key, value) = (attribute.key.as_ref(), unescaped(&attribute.value));
            match attribute.key.local_name().as_ref() {
                "base" if key == "xml:base" => {
                    if let Some(base) = self.found.join(&value) {
                        self.bases.push((self.depth, self.found.base().clone()));
                        self.found.set_base(base);
                    }
                }
                "href" => links.push((value, LinkKind::Page)),
                "src" | "poster" | "data" => links.push((value, LinkKind::Resource)),
                "url" | "xmlUrl" | "htmlUrl" => {
                    let kind = if name == "enclosure" || name == "thumbnail" {
                        LinkKind::Resource
                    } else {
                        LinkKind::Page
                    };
                    links.push((value, kind));
                }
                "resource" if key.starts_with("rdf:") => links.push((value, LinkKind::Page)),
                // Pairs of a namespace and the place of its schema.
                "schemaLocation" => {
                    let places = value.split_ascii_whitespace().skip(1).step_by(2);
                    links.extend(places.map(|place| (place.to_owned(), LinkKind::Dtd)));
                }
                "noNamespaceSchemaLocation" => links.push((value, LinkKind::Dtd)),
                "show" => embeds |= value == "embed",
                "rel" => {
                    nofollow |=
                        value.split_ascii_whitespace().any(|word| word.eq_ignore_ascii_case("nofollow"));
                    resource |= matches!(value.as_str(), "stylesheet" | "enclosure" | "icon" | "hub");
                }
                _ => {}
            }
        }
        for (href, kind) in links {
            let kind = match kind {
                LinkKind::Page if name == "include" || embeds => LinkKind::Frame,
                LinkKind::Page if resource || matches!(name, "image" | "use") => LinkKind::Resource,
                LinkKind::Page if name == "link" => LinkKind::Related,
                kind => kind,
            };
            self.found.add(&href, kind, nofollow);
        }
    }

    /// An element begins whose text may be a link, or have some.
    fn begin(&mut self, start: &BytesStart<'_>) {
        let name = start.local_name();
        let name = name.as_ref();
        let (is_link, is_html) = (URL_TEXT.contains(&name), HTML_TEXT.contains(&name));
        let is_name = name == "guid"
            && start.attributes().with_checks(false).flatten().any(|attribute| {
                attribute.key.as_ref() == "isPermaLink"
                    && attribute.value.trim().eq_ignore_ascii_case("false")
            });
        // An element within another ends the text of the other.
        self.reading =
            (is_link || is_html).then(|| Reading { text: String::new(), is_link, is_html, is_name });
    }

    fn text(&mut self, text: &str) {
        if let Some(reading) = &mut self.reading
            && reading.text.len() + text.len() <= TEXT_BYTES_MAX
        {
            reading.text.push_str(text);
        }
    }

    /// The text of an element is whole.
    fn finish(&mut self) {
        let Some(reading) = self.reading.take() else { return };
        let text = reading.text.trim();
        let is_absolute =
            text.starts_with("http://") || text.starts_with("https://") || text.starts_with("//");
        if reading.is_link && !reading.is_name && !text.contains(char::is_whitespace) {
            let may_be_relative = text.starts_with('/') || text.starts_with("./") || text.starts_with("../");
            if is_absolute || may_be_relative {
                self.found.add(text, LinkKind::Page, false);
            }
        }
        if reading.is_html && text.contains('<') {
            let base = self.found.base().clone();
            html::gather(text, self.found);
            self.found.set_base(base);
        }
    }

    /// An element ends, and its base with it.
    fn end(&mut self) {
        if let Some((_, before)) = self.bases.pop_if(|(depth, _)| *depth >= self.depth) {
            self.found.set_base(before);
        }
        self.depth = self.depth.saturating_sub(1);
    }
}

/// A value without its entities; those that are not known stay.
fn unescaped(value: &str) -> String {
    if value.contains('&') { htmlize::unescape_attribute(value).into_owned() } else { value.to_owned() }
}

/// The system identifiers of a document type: of its external subset, and of the external entities that it declares.
fn systems(doctype: &str) -> Vec<String> {
    let (outer, inner) = doctype.split_once('[').unwrap_or((doctype, ""));
    let name_ends = outer.trim_start().find(char::is_whitespace);
    let external = name_ends.and_then(|at| system(outer.trim_start().get(at..)?));
    let declared = inner.split("<!ENTITY").skip(1).filter_map(|declaration| {
        let rest = declaration.trim_start().trim_start_matches('%').trim_start();
        system(rest.get(rest.find(char::is_whitespace)?..)?)
    });
    external.into_iter().chain(declared).collect()
}

/// The system identifier that an external identifier (`SYSTEM "…"`, `PUBLIC "…" "…"`) has.
fn system(text: &str) -> Option<String> {
    let text = text.trim_start();
    let rest = match text.strip_prefix("SYSTEM") {
        Some(rest) => rest,
        None => quoted(text.strip_prefix("PUBLIC")?)?.1,
    };
    Some(quoted(rest)?.0.to_owned())
}

/// The quoted text at the beginning, and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    text.get(1..)?.split_once(quote)
}
