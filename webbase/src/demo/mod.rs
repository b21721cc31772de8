//! A web in a box: sites, pages, links and dates, invented from a seed, always the same.
//!
//! Site *s* of a world has the host `word-word.example` and a number of pages that varies; its page 0 is its home page, which links
//! to all its topics; every page links home, to some pages of its site, and to home pages of other sites. Change rates are
//! spread as on the web: most pages change rarely, some daily. A page's *version* at a moment is how often it has changed by
//! then, at moments that the seed fixes, so that whoever reads a page twice can be told what should have changed.

mod fill;
mod life;
mod random;
mod text;

use webbase_storage::Page;

pub use self::fill::{fill, world};
pub use self::life::live;

use self::random::Random;

/// A day, in milliseconds.
const DAY_MS: u64 = 86_400_000;

/// A world of sites.
#[derive(Clone, Debug)]
pub struct World {
    seed: u64,
    /// The first page of each site, in one numbering of all pages, and the number of all.
    starts: Vec<usize>,
    /// When the world began, in milliseconds since 1970: no page is older.
    began_at_ms: u64,
}

/// A page as a fetch at some moment gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Where.
    pub url: String,
    /// The HTTP head.
    pub head: Vec<u8>,
    /// The HTML.
    pub body: Vec<u8>,
    /// When it last changed.
    pub modified_at_ms: u64,
}

impl Fetched {
    /// As it is added to a repository.
    pub fn as_page(&self, fetched_at_ms: u64) -> Page<'_> {
        Page {
            url: &self.url,
            fetched_at_ms,
            modified_at_ms: Some(self.modified_at_ms),
            status: 200,
            mime: "text/html",
            head: &self.head,
            body: &self.body,
            ..Page::default()
        }
    }
}

impl World {
    /// A world with this many pages, more or less, that began at a moment.
    pub fn new(seed: u64, pages: usize, began_at_ms: u64) -> World {
        let mut random = Random::new(seed);
        let (mut starts, mut all) = (vec![0], 0);
        while all < pages {
            // Small sites are many, large ones few.
            let size = 3 + random.below(8) * (1 + random.below(random.clone().below(6) + 1));
            all += usize::try_from(size).unwrap_or(3).min(pages - all).max(1);
            starts.push(all);
        }
        World { seed, starts, began_at_ms }
    }

    /// How many sites there are.
    pub fn sites(&self) -> usize {
        self.starts.len() - 1
    }

    /// How many pages there are.
    pub fn pages(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    fn random(&self, what: u64, number: usize) -> Random {
        Random::new(self.seed ^ what.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (number as u64) << 20)
    }

    /// A site's host.
    pub fn host(&self, site: usize) -> String {
        let mut random = self.random(1, site);
        let kind = random.pick(&["example", "test"]);
        format!("{}-{}-{site}.{kind}", random.pick(text::WORDS), random.pick(text::WORDS))
    }

    fn site_of(&self, page: usize) -> usize {
        self.starts.partition_point(|start| *start <= page).saturating_sub(1)
    }

    fn start_of(&self, site: usize) -> usize {
        self.starts.get(site).copied().unwrap_or(0)
    }

    /// A page's URL.
    pub fn url(&self, page: usize) -> String {
        let site = self.site_of(page);
        let host = self.host(site);
        match page - self.start_of(site) {
            0 => format!("http://{host}/"),
            n => format!("http://{host}/{}/{n}.html", self.random(2, page).pick(text::WORDS)),
        }
    }

    /// How often a page changes, in changes a day.
    pub fn changes_a_day(&self, page: usize) -> f64 {
        let mut random = self.random(3, page);
        match random.below(100) {
            0..23 => 1.0 + random.fraction() * 3.0,
            23..70 => 0.02 + random.fraction() * 0.2,
            _ => random.fraction() * 0.008,
        }
    }

    /// How often a page has changed by a moment, and when it did last: a Poisson process whose moments the seed fixes.
    pub fn version(&self, page: usize, at_ms: u64) -> (u32, u64) {
        let rate = self.changes_a_day(page) / DAY_MS as f64;
        let mut random = self.random(4, page);
        let (mut count, mut last, mut next) = (0, self.began_at_ms, self.began_at_ms as f64);
        while rate > 0.0 {
            next += -(1.0 - random.fraction()).ln() / rate;
            if next > at_ms as f64 {
                break;
            }
            (count, last) = (count + 1, next as u64);
        }
        (count, last)
    }

    /// The pages that a page links to.
    pub fn links(&self, page: usize) -> Vec<usize> {
        let site = self.site_of(page);
        let (start, end) = (self.start_of(site), self.start_of(site + 1));
        let mut random = self.random(5, page);
        let mut links = vec![start];
        if page == start {
            links.extend((start + 1..end).take(40));
        } else {
            let span = (end - start) as u64;
            links.extend((0..3).map(|_| start + random.below(span) as usize));
        }
        let others = self.sites() as u64;
        links.extend((0..random.below(4)).map(|_| self.start_of(random.below(others) as usize)));
        links.retain(|link| *link != page);
        links.sort_unstable();
        links.dedup();
        links
    }

    /// What a fetch of a page gets at a moment.
    pub fn fetch(&self, page: usize, at_ms: u64) -> Fetched {
        let (version, modified_at_ms) = self.version(page, at_ms);
        let url = self.url(page);
        let mut random = self.random(6 + u64::from(version), page);
        let title = text::title(&mut self.random(7, page));
        let mut body = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
             <style>body{{font:16px/1.5 sans-serif;max-width:40em;margin:2em auto;padding:0 1em}}</style></head>\n\
             <body><h1>{title}</h1>\n<p>Version {version} of {url}.</p>\n"
        );
        for _ in 0..2 + random.below(6) {
            body.push_str(&format!("<p>{}</p>\n", text::paragraph(&mut random)));
        }
        body.push_str("<ul>\n");
        for link in self.links(page) {
            let title = text::title(&mut self.random(7, link));
            body.push_str(&format!("<li><a href=\"{}\">{title}</a></li>\n", self.url(link)));
        }
        body.push_str("</ul>\n</body></html>\n");
        let date = std::time::UNIX_EPOCH + std::time::Duration::from_millis(modified_at_ms);
        let head = format!(
            "HTTP/1.1 200 OK\r\nServer: box\r\nContent-Type: text/html; charset=utf-8\r\nLast-Modified: {}\r\n\
             Content-Length: {}\r\n\r\n",
            httpdate::fmt_http_date(date),
            body.len()
        );
        Fetched { url, head: head.into_bytes(), body: body.into_bytes(), modified_at_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const BEGAN: u64 = 1_700_000_000_000;

    #[test]
    fn a_seed_always_makes_the_same_world() {
        let (a, b, other) = (World::new(7, 500, BEGAN), World::new(7, 500, BEGAN), World::new(8, 500, BEGAN));
        assert_eq!(a.pages(), 500);
        assert!(a.sites() > 10, "{}", a.sites());
        let at = BEGAN + 10 * DAY_MS;
        assert!((0..500).all(|page| a.fetch(page, at) == b.fetch(page, at)));
        assert!((0..500).any(|page| a.fetch(page, at) != other.fetch(page, at)));
        let urls: BTreeSet<String> = (0..500).map(|page| a.url(page)).collect();
        assert_eq!(urls.len(), 500, "every page has a URL of its own");
    }

    #[test]
    fn pages_link_to_pages_that_are_there_and_everything_is_reached() {
        let world = World::new(3, 400, BEGAN);
        let mut found = BTreeSet::from([0]);
        let mut open = vec![0];
        while let Some(page) = open.pop() {
            for link in world.links(page) {
                assert!(link < world.pages() && link != page);
                if found.insert(link) {
                    open.push(link);
                }
            }
        }
        assert!(found.len() > 300, "{} of {} pages are reached from the first", found.len(), world.pages());
    }

    #[test]
    fn pages_change_at_their_rates_and_never_back() {
        let world = World::new(5, 300, BEGAN);
        let days = 1000_u64;
        for page in 0..300 {
            let (early, late) =
                (world.version(page, BEGAN + DAY_MS), world.version(page, BEGAN + days * DAY_MS));
            assert!(early.0 <= late.0 && early.1 <= late.1 && late.1 <= BEGAN + days * DAY_MS);
            let expected = world.changes_a_day(page) * days as f64;
            let found = f64::from(late.0);
            assert!(
                (found - expected).abs() <= 6.0 * expected.sqrt() + 3.0,
                "page {page}: {found} of {expected}"
            );
        }
    }
}
