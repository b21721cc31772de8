//! What sites say about themselves: dates, robots files, sitemaps; as different as on the web.

use std::fmt::Write as _;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::world::{MANNERS, World};

/// How many pages one sitemap of a site has.
const SITEMAP_PAGES: usize = 1000;
/// Where a site's sitemap index is.
const SITEMAP_INDEX: &str = "/sitemap.xml";

/// Which dates a site's answers have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dates {
    /// `Last-Modified` and `ETag`; both are understood in conditional requests.
    Both,
    /// `ETag` only.
    TagOnly,
    /// Neither: every request gets the page.
    Neither,
}

/// What a site's sitemaps are worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sitemaps {
    /// They have every living page with the moment of its last change.
    True,
    /// They have every living page, without dates.
    Undated,
    /// They say that everything has just changed, always.
    AlwaysNow,
    /// There are none.
    Absent,
}

pub(crate) struct SiteFile {
    pub(crate) mime: &'static str,
    pub(crate) body: Vec<u8>,
}

impl World {
    /// Which dates a site's answers have.
    pub fn dates(&self, site: usize) -> Dates {
        match self.random(MANNERS, site).below(100) {
            0..70 => Dates::Both,
            70..85 => Dates::TagOnly,
            _ => Dates::Neither,
        }
    }

    /// What a site's sitemaps are worth.
    pub fn sitemaps(&self, site: usize) -> Sitemaps {
        let mut random = self.random(MANNERS, site);
        random.below(100);
        match random.below(100) {
            0..70 => Sitemaps::True,
            70..80 => Sitemaps::Undated,
            80..85 => Sitemaps::AlwaysNow,
            _ => Sitemaps::Absent,
        }
    }

    /// How many seconds a site's robots file asks crawlers to wait between two requests.
    pub fn crawl_delay_s(&self, site: usize) -> Option<u64> {
        let mut random = self.random(MANNERS, site);
        random.below(100);
        random.below(100);
        (random.below(10) == 0).then(|| 1 + random.below(3))
    }

    /// Whether a site's sitemaps are packed with gzip.
    fn packs_sitemaps(&self, site: usize) -> bool {
        site % 3 == 1
    }

    /// A site's robots file.
    pub fn robots(&self, site: usize) -> String {
        let mut text = "User-agent: *\nDisallow: /private/\n".to_owned();
        if let Some(seconds) = self.crawl_delay_s(site) {
            let _ = writeln!(text, "Crawl-delay: {seconds}");
        }
        if self.sitemaps(site) != Sitemaps::Absent {
            let _ = writeln!(text, "\nSitemap: http://{}{SITEMAP_INDEX}", self.host(site));
        }
        text
    }

    /// The files of a site that are no pages, as they are at a moment: the robots file, the sitemap index, sitemaps.
    pub(crate) fn site_file(&self, site: usize, path: &str, at_ms: u64) -> Option<SiteFile> {
        if path == "/robots.txt" {
            return Some(SiteFile {
                mime: "text/plain; charset=utf-8",
                body: self.robots(site).into_bytes(),
            });
        }
        if self.sitemaps(site) == Sitemaps::Absent {
            return None;
        }
        if path == SITEMAP_INDEX {
            return Some(SiteFile { mime: "application/xml", body: self.index(site, at_ms).into_bytes() });
        }
        let (number, packed) = match path.strip_prefix("/sitemap-")?.split_once('.')? {
            (number, "xml") => (number, false),
            (number, "xml.gz") => (number, true),
            _ => return None,
        };
        let number: usize = number.parse().ok()?;
        if packed != self.packs_sitemaps(site) || number >= self.sitemap_count(site) {
            return None;
        }
        let body = self.sitemap(site, number, at_ms).into_bytes();
        Some(match packed {
            false => SiteFile { mime: "application/xml", body },
            true => SiteFile { mime: "application/gzip", body: gzip(&body) },
        })
    }

    fn sitemap_count(&self, site: usize) -> usize {
        self.pages_of(site).len().div_ceil(SITEMAP_PAGES)
    }

    fn part(&self, site: usize, number: usize) -> impl Iterator<Item = usize> + '_ {
        self.pages_of(site).skip(number * SITEMAP_PAGES).take(SITEMAP_PAGES)
    }

    fn last_change(&self, site: usize, page: usize, at_ms: u64) -> Option<u64> {
        match self.sitemaps(site) {
            Sitemaps::True => Some(self.version(page, at_ms).1),
            Sitemaps::AlwaysNow => Some(at_ms),
            Sitemaps::Undated | Sitemaps::Absent => None,
        }
    }

    fn index(&self, site: usize, at_ms: u64) -> String {
        let (host, ending) = (self.host(site), if self.packs_sitemaps(site) { ".gz" } else { "" });
        let entries = (0..self.sitemap_count(site)).map(|number| {
            let living = self.part(site, number).filter(|page| self.lives(*page, at_ms));
            let last = living.filter_map(|page| self.last_change(site, page, at_ms)).max();
            (format!("http://{host}/sitemap-{number}.xml{ending}"), last)
        });
        listed("sitemapindex", "sitemap", entries)
    }

    fn sitemap(&self, site: usize, number: usize, at_ms: u64) -> String {
        let living =
            self.part(site, number).filter(|page| self.lives(*page, at_ms) && self.is_allowed(*page));
        listed("urlset", "url", living.map(|page| (self.url(page), self.last_change(site, page, at_ms))))
    }
}

fn listed(whole: &str, entry: &str, entries: impl Iterator<Item = (String, Option<u64>)>) -> String {
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{whole} xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\">\n"
    );
    for (url, last) in entries {
        let _ = write!(text, "<{entry}><loc>{url}</loc>");
        if let Some(moment) = last.and_then(date) {
            let _ = write!(text, "<lastmod>{moment}</lastmod>");
        }
        let _ = writeln!(text, "</{entry}>");
    }
    let _ = writeln!(text, "</{whole}>");
    text
}

fn date(at_ms: u64) -> Option<jiff::Timestamp> {
    jiff::Timestamp::from_millisecond(i64::try_from(at_ms).ok()?).ok()
}

pub(crate) fn gzip(body: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory does not fail.
    let _ = packer.write_all(body);
    packer.finish().unwrap_or_default()
}
