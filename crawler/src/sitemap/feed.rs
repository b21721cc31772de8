//! RSS, RDF and Atom feeds as sitemaps: the links of their items, with dates.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use url::Url;

use super::{Entry, SITEMAP_ENTRIES_MAX, Sitemap};

#[derive(Default)]
struct Item {
    link: String,
    /// What it calls itself, where there is no other link.
    own: String,
    date: String,
}

/// Reads a feed as far as it is well-formed.
pub(super) fn read(text: &str, base: &Url) -> Sitemap {
    let mut sitemap = Sitemap::default();
    let mut reader = Reader::from_str(text);
    reader.config_mut().check_end_names = false;
    let (mut item, mut name): (Option<Item>, String) = (None, String::new());
    loop {
        let event = match reader.read_event() {
            Ok(Event::Eof) => break,
            Ok(event) => event,
            Err(e) => {
                sitemap.trouble = Some(e.to_string());
                break;
            }
        };
        match event {
            Event::Start(start) => {
                name = local(&start);
                if matches!(name.as_str(), "item" | "entry") {
                    item = Some(Item::default());
                } else if let Some(item) = &mut item {
                    link(&start, &name, item);
                }
            }
            Event::Empty(start) => {
                let name = local(&start);
                if let Some(item) = &mut item {
                    link(&start, &name, item);
                }
            }
            Event::Text(text) => take(&mut item, &name, &text),
            Event::CData(text) => take(&mut item, &name, &text),
            Event::GeneralRef(entity) => {
                let entity = format!("&{};", &*entity);
                if let Ok(text) = quick_xml::escape::unescape(&entity) {
                    take(&mut item, &name, &text);
                }
            }
            Event::End(end) => {
                let ended = end.local_name().as_ref().to_owned();
                if matches!(ended.as_str(), "item" | "entry")
                    && let Some(whole) = item.take()
                {
                    sitemap.pages.extend(whole.entry(base));
                    if sitemap.pages.len() >= SITEMAP_ENTRIES_MAX {
                        break;
                    }
                }
                name.clear();
            }
            _ => {}
        }
    }
    sitemap
}

fn local(start: &BytesStart<'_>) -> String {
    start.local_name().as_ref().to_owned()
}

/// Atom's links are attributes; of several the alternate one is the page.
fn link(start: &BytesStart<'_>, name: &str, item: &mut Item) {
    if name != "link" {
        return;
    }
    let value = |wanted: &str| {
        let found = start.attributes().with_checks(false).flatten().find(|a| a.key.as_ref() == wanted)?;
        Some(
            quick_xml::escape::unescape(&found.value)
                .map_or(found.value.to_string(), |text| text.into_owned()),
        )
    };
    let Some(href) = value("href") else { return };
    match value("rel").as_deref() {
        None | Some("alternate") if item.link.is_empty() => item.link = href,
        Some("self") => item.own = href,
        _ => {}
    }
}

fn take(item: &mut Option<Item>, name: &str, text: &str) {
    let Some(item) = item else { return };
    match name {
        "link" => item.link.push_str(text),
        "pubDate" | "updated" | "date" | "modified" => item.date.push_str(text.trim()),
        _ => {}
    }
}

impl Item {
    fn entry(&self, base: &Url) -> Option<Entry> {
        let date: Option<jiff::Timestamp> = self
            .date
            .parse()
            .ok()
            .or_else(|| jiff::fmt::rfc2822::parse(&self.date).ok().map(|zoned| zoned.timestamp()));
        let link = if self.link.trim().is_empty() { &self.own } else { &self.link };
        super::entry(link, date, base)
    }
}
