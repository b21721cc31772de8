//! One page that came: what becomes of its row, what it leads to, what was wrong with it. Pure, so that pages are read on all cores.

use url::Url;
use webbase_storage::url::canonical;

use super::agenda::Came;
use super::links;
use super::scope::Scope;
use super::spool::Spooled;
use crate::fetcher::{PRODUCT, Priority, UnpackLimits, unpack};
use crate::frontier::{Found, Frontier, Row, State, UrlId, What};
use crate::loader;
use crate::robots::Robots;
use crate::scheduler::{Kind, is_xml_suspect};
use crate::site_metadata::read_archive;
use crate::sitemap::Sitemap;

/// External parts of one document that are read.
const PARTS_MAX: usize = 20;
/// From one spelling of a URL to the other, and back, and so on: not more often than this.
const TURNS_MAX: u8 = 10;

/// What one page comes to.
pub(super) struct Reading {
    pub(super) row: Row,
    pub(super) came: Came,
    pub(super) found: Vec<Found>,
    /// Pages it links to that were seen lately.
    pub(super) known: Vec<UrlId>,
    /// Links that do not belong to the crawl.
    pub(super) outside: u64,
    /// What was wrong with it.
    pub(super) trouble: Option<&'static str>,
}

/// Reads a page. `row` is what was known of it.
pub(super) fn read(page: &Spooled, row: Row, scope: &Scope, frontier: &Frontier) -> Reading {
    let signature = signature(&page.body);
    let gone = matches!(page.facts.status, 404 | 410);
    let came = match page.facts.status {
        status @ (404 | 410) => Came::Gone { status },
        status @ 400.. => Came::Error { status },
        status => {
            let (kind, modified_at_ms) = (kind_of(&page.facts.mime), page.facts.modified_at_ms);
            let told_at_ms = row.told_at_ms;
            Came::Answer { signature, modified_at_ms, told_at_ms, kind, status }
        }
    };
    let mut reading = Reading { row, came, found: Vec::new(), known: Vec::new(), outside: 0, trouble: None };
    let row = &mut reading.row;
    row.tries = if gone { row.tries.saturating_add(1) } else { 0 };
    row.state = if (200..400).contains(&page.facts.status) { State::Read } else { State::Failed };
    // An error says nothing of the page: what was read before is still asked about.
    if !matches!(came, Came::Error { .. }) {
        row.read_at_ms = page.facts.fetched_at_ms;
        row.etag = page.facts.etag.clone();
        row.modified_at_ms = page.facts.modified_at_ms;
    }
    let Ok(url) = Url::parse(&page.facts.url) else { return reading };
    if let Some(to) = page.facts.location.as_ref().and_then(|to| Url::parse(to).ok()) {
        reading.redirect(&url, &to, scope);
    } else if page.facts.status == 200 {
        reading.content(page, &url, scope, frontier);
    }
    reading
}

impl Reading {
    fn admit(&mut self, url: &Url, found: Found, scope: &Scope) {
        match scope.admits(url, found.depth) {
            Ok(()) => self.found.push(found),
            Err(_) => self.outside += 1,
        }
    }

    fn redirect(&mut self, url: &Url, to: &Url, scope: &Scope) {
        let name = |url: &Url| canonical(url.as_str()).ok();
        if self.row.what == What::Page && name(to).is_some() && name(to) == name(url) {
            // From http to https, or to a slash: the same page by name, so the row goes there itself.
            if self.row.redirects < TURNS_MAX {
                self.row.url = to.to_string();
                self.row.redirects += 1;
                self.row.state = State::Waiting;
            }
            return;
        }
        let (what, redirects) = (self.row.what, self.row.redirects.saturating_add(1));
        let found = Found { redirects, what, ..Found::page(to, self.row.depth, Priority::User) };
        self.admit(to, found, scope);
    }

    fn content(&mut self, page: &Spooled, url: &Url, scope: &Scope, frontier: &Frontier) {
        let unpacked = unpack(&page.body, &page.facts.coding, UnpackLimits::default());
        if unpacked.trouble.is_some() {
            self.trouble = Some("content-coding");
        }
        let depth = self.row.depth.saturating_add(1);
        match self.row.what {
            What::Sitemap => self.sitemap(&unpacked.bytes, url, scope),
            What::Archive => self.archive(&unpacked.bytes, url, scope),
            What::Robots => {
                let robots = Robots::parse(&unpacked.bytes, PRODUCT, Some(url));
                self.found.extend(lists(&robots));
            }
            What::Page => {
                let is_xml = is_xml(&page.facts.mime);
                if (is_xml || page.facts.mime.starts_with("text/")) && is_binary(&unpacked.bytes) {
                    self.trouble = Some("wrong-type");
                }
                for link in links::links(&page.facts.mime, &unpacked.bytes, url) {
                    // Most links of a page are those of the page before it.
                    let named = match frontier.recent(&link) {
                        Ok(id) => {
                            self.known.push(id);
                            continue;
                        }
                        Err(named) => named,
                    };
                    let is_suspect = is_xml_suspect(link.as_str(), is_xml);
                    let found = Found { is_suspect, named, ..Found::page(&link, depth, Priority::Discovery) };
                    self.admit(&link, found, scope);
                }
                if is_xml {
                    self.load(&unpacked.bytes, url);
                }
            }
        }
    }

    /// A document goes through the loader; its parts are read before anything else, wherever they are.
    fn load(&mut self, bytes: &[u8], url: &Url) {
        match loader::read(bytes, url) {
            Err(e) => self.trouble = Some(e.kind()),
            Ok(document) => {
                let parts = document.dtd.into_iter().chain(document.entities).take(PARTS_MAX);
                let parts = parts.filter(|part| matches!(part.scheme(), "http" | "https"));
                let depth = self.row.depth.saturating_add(1);
                self.found.extend(parts.map(|part| Found::page(&part, depth, Priority::Loader)));
            }
        }
    }

    fn sitemap(&mut self, bytes: &[u8], url: &Url, scope: &Scope) {
        let sitemap = Sitemap::read(bytes, url);
        let depth = self.row.depth.saturating_add(1);
        for entry in sitemap.pages {
            let page = Found::page(&entry.url, depth, Priority::Discovery);
            self.admit(&entry.url, Found { changed_at_ms: entry.modified_at_ms, ..page }, scope);
        }
        if sitemap.trouble.is_some() {
            self.trouble = Some("sitemap");
        }
        // An index leads to sitemaps, those to no more.
        for entry in sitemap.sitemaps.into_iter().filter(|_| self.row.depth < 2) {
            let page = Found::page(&entry.url, depth, Priority::Refresh);
            let (what, changed_at_ms) = (What::Sitemap, entry.modified_at_ms);
            self.found.push(Found { what, changed_at_ms, ..page });
        }
    }

    fn archive(&mut self, bytes: &[u8], url: &Url, scope: &Scope) {
        // Archives lie in a folder below the site's base.
        let (entries, bad) = read_archive(bytes);
        if bad > 0 {
            self.trouble = Some("metadata-archive");
        }
        let Ok(base) = url.join("../") else { return };
        let depth = self.row.depth.saturating_add(1);
        for entry in entries {
            let Ok(url) = base.join(&entry.path) else { continue };
            let changed_at_ms = u64::try_from(entry.modified_s).ok().map(|s| s.saturating_mul(1000));
            let page = Found::page(&url, depth, Priority::Discovery);
            self.admit(&url, Found { changed_at_ms, ..page }, scope);
        }
    }
}

/// The lists of pages that a robots file names. They may lie elsewhere where it says so; what they list has to belong to the crawl anyway.
/// Archives say more than sitemaps do: where there are any, those will do.
pub(super) fn lists(robots: &Robots) -> Vec<Found> {
    let (urls, what) = match robots.archives.is_empty() {
        true => (&robots.sitemaps, What::Sitemap),
        false => (&robots.archives, What::Archive),
    };
    urls.iter().map(|url| Found { what, ..Found::page(url, 0, Priority::Refresh) }).collect()
}

fn is_xml(mime: &str) -> bool {
    mime.ends_with("xml") && !mime.starts_with("application/xhtml")
}

/// What the scheduler takes a page for.
fn kind_of(mime: &str) -> Kind {
    match mime {
        "text/html" | "application/xhtml+xml" | "" => Kind::Html,
        "application/xml-dtd" => Kind::Dtd,
        _ if is_xml(mime) => Kind::Xml,
        _ => Kind::Other,
    }
}

/// Whether bytes are a picture, an archive or the like, going by how such files begin.
fn is_binary(bytes: &[u8]) -> bool {
    const BEGINNINGS: [&[u8]; 10] = [
        b"\x89PNG\r\n",
        b"GIF8",
        b"\xff\xd8\xff",
        b"%PDF-",
        b"PK\x03\x04",
        b"\x1f\x8b",
        b"\x7fELF",
        b"OggS",
        b"ID3",
        b"RIFF",
    ];
    BEGINNINGS.iter().any(|beginning| bytes.starts_with(beginning))
}

fn signature(body: &[u8]) -> u64 {
    blake3::hash(body).as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
