//! A world of sites: how its pages are numbered, named and linked.

use crate::plan::Plan;
use crate::random::Random;
use crate::text;

/// What chance decides, each from numbers of its own.
const HOST: u64 = 1;
const PATH: u64 = 2;
pub(crate) const RATE: u64 = 3;
pub(crate) const CHANGES: u64 = 4;
const LINKS: u64 = 5;
pub(crate) const TITLE: u64 = 7;
pub(crate) const MANNERS: u64 = 8;
pub(crate) const BIRTH: u64 = 9;
pub(crate) const DEATH: u64 = 10;
const KIND: u64 = 11;
/// The first of the numbers that a page's versions are made from.
pub(crate) const VERSIONS: u64 = 1000;

/// The places of a site's feed and DTD among its pages, and the least pages a site with them has.
const FEED: usize = 1;
const DTD: usize = 2;
const SITE_WITH_XML: usize = 12;
/// A page of a site names this many more of its pages, so that all are reached from the home page.
const FAN_OUT: usize = 40;

/// What kind of page a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// HTML.
    Html,
    /// An XML document with a DTD.
    Xml,
    /// An RSS feed of its site.
    Feed,
    /// The DTD of its site's documents.
    Dtd,
}

impl Kind {
    /// Its MIME type, without parameters.
    pub fn mime(self) -> &'static str {
        match self {
            Kind::Html => "text/html",
            Kind::Xml => "application/xml",
            Kind::Feed => "application/rss+xml",
            Kind::Dtd => "application/xml-dtd",
        }
    }
}

/// A world of sites. Pages have numbers from 0, sites too.
#[derive(Clone, Debug)]
pub struct World {
    plan: Plan,
    /// The first page of each site, in one numbering of all pages, and the number of all.
    starts: Vec<usize>,
}

impl World {
    /// A usual world with this many pages, that began at a moment.
    pub fn new(seed: u64, pages: usize, began_at_ms: u64) -> World {
        World::planned(Plan::new(seed, pages, began_at_ms))
    }

    /// The world of a plan.
    pub fn planned(plan: Plan) -> World {
        let mut random = Random::new(plan.seed);
        let (mut starts, mut all) = (vec![0], 0);
        while all < plan.pages {
            // Small sites are many, large ones few.
            let size = 3 + random.below(8) * (1 + random.below(random.clone().below(6) + 1));
            let size = usize::try_from(size * u64::from(plan.site_scale.max(1))).unwrap_or(3);
            all += size.min(plan.pages - all).max(1);
            starts.push(all);
        }
        World { plan, starts }
    }

    /// What it is like.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// How many sites there are.
    pub fn sites(&self) -> usize {
        self.starts.len() - 1
    }

    /// How many pages there ever are.
    pub fn pages(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    pub(crate) fn random(&self, what: u64, number: usize) -> Random {
        let seed = self.plan.seed ^ what.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (number as u64) << 20;
        Random::new(seed)
    }

    /// A site's host.
    pub fn host(&self, site: usize) -> String {
        let mut random = self.random(HOST, site);
        let kind = random.pick(&["example", "test"]);
        format!("{}-{}-{site}.{kind}", random.pick(text::WORDS), random.pick(text::WORDS))
    }

    /// The site of a host, if there is one.
    pub fn site_of_host(&self, host: &str) -> Option<usize> {
        let (name, _) = host.split_once('.')?;
        let site = name.rsplit('-').next()?.parse().ok()?;
        (site < self.sites() && self.host(site) == host).then_some(site)
    }

    /// The site that a page is of.
    pub fn site_of(&self, page: usize) -> usize {
        self.starts.partition_point(|start| *start <= page).saturating_sub(1)
    }

    /// The pages of a site; the first is its home page.
    pub fn pages_of(&self, site: usize) -> std::ops::Range<usize> {
        let end = self.pages();
        self.starts.get(site).copied().unwrap_or(end)..self.starts.get(site + 1).copied().unwrap_or(end)
    }

    /// Where in its site a page is, and how many there are.
    fn place(&self, page: usize) -> (usize, usize) {
        let pages = self.pages_of(self.site_of(page));
        (page - pages.start, pages.len())
    }

    /// What kind of page it is.
    pub fn kind(&self, page: usize) -> Kind {
        match self.place(page) {
            (0, _) => Kind::Html,
            (_, size) if size < SITE_WITH_XML => Kind::Html,
            (FEED, _) => Kind::Feed,
            (DTD, _) => Kind::Dtd,
            _ if self.random(KIND, page).fraction() < self.plan.xml_share => Kind::Xml,
            _ => Kind::Html,
        }
    }

    /// Whether a site's robots file lets crawlers read a page.
    pub fn is_allowed(&self, page: usize) -> bool {
        let mut random = self.random(KIND, page);
        random.fraction();
        self.is_lasting(page) || random.below(20) > 0
    }

    /// Whether a page lists its site: home pages and feeds, which change whenever something else does.
    pub(crate) fn is_listing(&self, page: usize) -> bool {
        self.place(page).0 == 0 || self.kind(page) == Kind::Feed
    }

    /// Whether a page is there from the beginning to the end, because others are found or read through it.
    pub(crate) fn is_lasting(&self, page: usize) -> bool {
        let (place, size) = self.place(page);
        place == 0 || place * FAN_OUT + 1 < size || matches!(self.kind(page), Kind::Feed | Kind::Dtd)
    }

    /// A page's URL.
    pub fn url(&self, page: usize) -> String {
        format!("http://{}{}", self.host(self.site_of(page)), self.path(page))
    }

    /// A page's path in its site.
    pub fn path(&self, page: usize) -> String {
        let (place, kind) = (self.place(page).0, self.kind(page));
        let topic = self.random(PATH, page).pick(text::WORDS);
        let topic = if self.is_allowed(page) { topic } else { "private" };
        match kind {
            Kind::Feed => "/feed.rss".to_owned(),
            Kind::Dtd => "/catalog.dtd".to_owned(),
            Kind::Xml => format!("/{topic}/{place}.xml"),
            Kind::Html if place == 0 => "/".to_owned(),
            Kind::Html => format!("/{topic}/{place}.html"),
        }
    }

    /// The page at a path of a site, if there ever is one.
    pub fn page_at(&self, site: usize, path: &str) -> Option<usize> {
        let place = match path {
            "/" => 0,
            "/feed.rss" => FEED,
            "/catalog.dtd" => DTD,
            _ => path.rsplit('/').next()?.split_once('.')?.0.parse().ok()?,
        };
        let page = self.pages_of(site).nth(place)?;
        (self.path(page) == path).then_some(page)
    }

    /// The pages that a page ever links to, in order: the graph that importance is computed on.
    pub fn links(&self, page: usize) -> Vec<usize> {
        let site = self.site_of(page);
        let pages = self.pages_of(site);
        let place = page - pages.start;
        if self.kind(page) == Kind::Dtd {
            return Vec::new();
        }
        let mut random = self.random(LINKS, page);
        let mut links = vec![pages.start];
        // A DTD names nothing; the feed before it does so in its place.
        let end = if self.kind(page) == Kind::Feed { place + 2 } else { place + 1 };
        links.extend((place * FAN_OUT + 1..=end * FAN_OUT).filter_map(|n| pages.clone().nth(n)));
        if place > 0 {
            let span = pages.len() as u64;
            links.extend((0..3).map(|_| pages.start + random.below(span) as usize));
        } else {
            // From home page to home page round the world, so that all is reached from anywhere.
            links.push(self.pages_of((site + 1) % self.sites()).start);
        }
        for _ in 0..random.below(4) {
            // A few sites are much linked to, most hardly.
            let far = (self.sites() as f64 * random.fraction().powi(3)) as usize;
            links.push(self.pages_of(far.min(self.sites() - 1)).start);
        }
        links.retain(|link| *link != page);
        links.sort_unstable();
        links.dedup();
        links
    }

    /// The pages that a page links to at a moment: those that had been born when it last changed. Some may have died since.
    pub fn links_at(&self, page: usize, at_ms: u64) -> Vec<usize> {
        let (_, modified_at_ms) = self.version(page, at_ms);
        let mut links = self.links(page);
        links.retain(|link| self.born_at_ms(*link) <= modified_at_ms);
        links
    }
}
