//! The same question with real sitemaps over HTTP: a web in a box on loopback, read by the crawler's own web interface.
//!
//! Time is discrete: every crawler does its day's reads at the same moment, then the box's clock moves on a day. Bandwidth is bytes, heads
//! included; 1 is what reading all pages daily takes. Sites are as different as in the box: 70 % have sitemaps with true dates, 10 %
//! without dates, 5 % say that everything has just changed, 15 % have none; 15 % understand no conditional request.
//!
//! - *conventional*: everything in turn;
//! - *sitemaps in turn*: as the paper's metadata crawler: in turn, but what a sitemap calls unchanged is not asked for;
//! - *scheduled, conditional*: the page scheduler, conditional requests;
//! - *scheduled, sitemaps*: the same, with what the sitemaps say, for a fifth of the bandwidth at most (sites in turn); dates that
//!   prove false are not believed again.
//!
//! Freshness is the share of pages (those that robots files allow) whose copy is, byte for byte, what the site has, at the end of a day:
//! the mean of the second half of the days.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use url::Url;
use webbase_crawler::change_rate::{Prior, RateState};
use webbase_crawler::fetcher::{
    Answer, By, Fetcher, Known, Outcome, Politeness, Priority, Reach, Settings as Fetching, Wanted,
};
use webbase_crawler::scheduler::{HotPage, Kind, Scheduler, Settings};
use webbase_crawler::sitemap::Sitemap;
use webbase_web_in_a_box::{Clock, DAY_MS, Plan, Serving, WebBox, World};

use crate::{CONVENTIONAL, Curve};

const BEGAN_MS: u64 = 1_700_000_000_000;
/// Days that the world has gone on before the first.
const EARLIER_DAYS: u64 = 60;
const LEVELS: [f64; 7] = [0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8];
/// Pages that were found unchanged although a site's sitemap called them changed, after which it is not believed.
const FALSE_MAX: u32 = 5;
/// Pages called changed that were, for each that was not.
const TRUE_MIN: u32 = 3;
/// The most that sitemaps may take of a scheduled crawler's bandwidth.
const SITEMAPS_SHARE: f64 = 0.2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Conventional,
    Sitemaps,
    Scheduled,
    ScheduledSitemaps,
}

impl How {
    const ALL: [(How, &'static str); 4] = [
        (How::Conventional, CONVENTIONAL),
        (How::Sitemaps, "sitemaps in turn"),
        (How::Scheduled, "scheduled, conditional"),
        (How::ScheduledSitemaps, "scheduled, sitemaps"),
    ];

    fn reads_sitemaps(self) -> bool {
        matches!(self, How::Sitemaps | How::ScheduledSitemaps)
    }

    fn is_scheduled(self) -> bool {
        matches!(self, How::Scheduled | How::ScheduledSitemaps)
    }
}

/// One request after the other, bytes counted.
struct Reader {
    fetcher: Fetcher,
    outcomes: tokio::sync::mpsc::Receiver<Outcome>,
}

impl Reader {
    fn new(web: &Arc<WebBox>) -> Reader {
        let politeness = Politeness {
            delay: Duration::ZERO,
            address_delay: None,
            crawl_delay_max: Duration::ZERO,
            ..Politeness::default()
        };
        let settings = Fetching { reach: Reach::Loopback, politeness, ..Fetching::default() };
        let web = Arc::clone(web);
        let resolve = Arc::new(By(move |host: &str, _| web.resolve(host)));
        let (fetcher, outcomes) = Fetcher::start(settings, resolve).expect("a fetcher");
        Reader { fetcher, outcomes }
    }

    async fn get(&mut self, url: &Url, known: Known) -> (Answer, f64) {
        let wanted = Wanted { known, any_type: true, ..Wanted::new(url.clone(), Priority::Refresh) };
        assert!(self.fetcher.want(wanted).is_none(), "the buffer is empty");
        let outcome = self.outcomes.recv().await.expect("the fetcher lives");
        let answer = outcome.result.unwrap_or_else(|e| panic!("{url}: {e}"));
        let bytes = (answer.head.len() + answer.body.len()) as f64;
        (answer, bytes)
    }
}

/// What is remembered of a page.
struct Copy {
    url: Url,
    /// A number of its site.
    site: usize,
    body: Vec<u8>,
    known: Known,
    read_at_ms: u64,
    rate: RateState,
}

struct Crawler {
    how: How,
    /// Bytes a day.
    budget: f64,
    debt: f64,
    copies: Vec<Copy>,
    by_url: HashMap<Url, usize>,
    next: usize,
    scheduler: Scheduler,
    /// Of each site: its sitemap index, and how often its dates proved true and false.
    sites: Vec<(Option<Url>, u32, u32)>,
    /// The site whose sitemaps are next.
    next_site: usize,
    fresh: f64,
}

impl Crawler {
    /// Whether a site's sitemap is to be believed.
    fn believes(&self, site: usize) -> bool {
        let (_, right, wrong) = self.sites[site];
        wrong < FALSE_MAX || right >= wrong * TRUE_MIN
    }

    /// Reads the sitemaps of all sites, or of as many as may be: what each page's last change is, where that is told.
    async fn read_sitemaps(&mut self, reader: &mut Reader) -> (Vec<Option<u64>>, f64) {
        let mut dates = vec![None; self.copies.len()];
        let mut spent = 0.0;
        let most = if self.how.is_scheduled() { self.budget * SITEMAPS_SHARE } else { f64::INFINITY };
        for _ in 0..self.sites.len() {
            if spent >= most {
                break;
            }
            let site = self.next_site;
            self.next_site = (site + 1) % self.sites.len();
            let Some(index) = self.sites[site].0.clone().filter(|_| self.believes(site)) else { continue };
            let (answer, bytes) = reader.get(&index, Known::default()).await;
            spent += bytes;
            for part in Sitemap::read(&answer.body, &index).sitemaps {
                let (answer, bytes) = reader.get(&part.url, Known::default()).await;
                spent += bytes;
                for entry in Sitemap::read(&answer.body, &part.url).pages {
                    if let Some(page) = self.by_url.get(&entry.url) {
                        dates[*page] = entry.modified_at_ms;
                    }
                }
            }
        }
        (dates, spent)
    }

    async fn read(&mut self, reader: &mut Reader, page: usize, now_ms: u64, told: Option<u64>) -> f64 {
        let copy = &mut self.copies[page];
        let known = if self.how.is_scheduled() { copy.known.clone() } else { Known::default() };
        let (answer, bytes) = reader.get(&copy.url, known).await;
        let changed = answer.status == 200 && answer.body != copy.body;
        let days = (now_ms - copy.read_at_ms) as f64 / DAY_MS as f64;
        let ago = |at_ms: u64| now_ms.saturating_sub(at_ms) as f64 / DAY_MS as f64;
        copy.rate.visit(days, changed, answer.modified_at_ms().map(ago));
        if told.is_some_and(|modified| modified > copy.read_at_ms) {
            let (_, right, wrong) = &mut self.sites[copy.site];
            if changed { *right += 1 } else { *wrong += 1 }
        }
        if answer.status == 200 {
            (copy.known, copy.body) = (answer.known(), answer.body);
        }
        copy.read_at_ms = now_ms;
        self.scheduler.read(page as u32, seconds(now_ms), Kind::Html, copy.rate.rate(&Prior::WEB_DAYS));
        bytes
    }

    async fn day(&mut self, reader: &mut Reader, now_ms: u64) {
        let mut left = self.budget - self.debt;
        let mut dates = vec![None; self.copies.len()];
        if self.how.reads_sitemaps() {
            let spent;
            (dates, spent) = self.read_sitemaps(reader).await;
            left -= spent;
        }
        let unchanged = |copy: &Copy, told: Option<u64>| told.is_some_and(|at| at <= copy.read_at_ms);
        if self.how.is_scheduled() {
            for (page, told) in dates.iter().enumerate().filter(|(_, told)| told.is_some()) {
                if !self.believes(self.copies[page].site) {
                    continue;
                }
                if unchanged(&self.copies[page], *told) {
                    self.scheduler.unchanged_says_site(page as u32, seconds(now_ms));
                } else {
                    self.scheduler.changed_says_site(page as u32);
                }
            }
            let plan = self.scheduler.plan(seconds(now_ms));
            self.scheduler.issue(&plan);
            for number in plan.pages() {
                if left <= 0.0 {
                    self.scheduler.returned(number);
                } else {
                    left -= self.read(reader, number as usize, now_ms, dates[number as usize]).await;
                }
            }
        } else {
            for _ in 0..self.copies.len() {
                if left <= 0.0 {
                    break;
                }
                let page = self.next;
                self.next = (page + 1) % self.copies.len();
                if !unchanged(&self.copies[page], dates[page]) {
                    left -= self.read(reader, page, now_ms, dates[page]).await;
                }
            }
        }
        self.debt = (-left).max(0.0);
    }

    /// The scorer's: how many copies are what the sites have.
    fn score(&self, pages: &[usize], world: &World, now_ms: u64) -> f64 {
        let same = |(copy, page): &(&Copy, &usize)| {
            world.fetch(**page, now_ms).is_some_and(|fetched| fetched.body == copy.body)
        };
        self.copies.iter().zip(pages).filter(same).count() as f64 / pages.len() as f64
    }
}

fn seconds(at_ms: u64) -> u32 {
    (at_ms / 1000) as u32
}

/// Runs all crawlers at all bandwidths, day by day.
pub(crate) async fn run(count: usize, days: u64, seed: u64) -> Vec<Curve> {
    let world = World::planned(Plan { site_scale: 3, ..Plan::new(seed, count, BEGAN_MS) }.eternal());
    let start_ms = BEGAN_MS + EARLIER_DAYS * DAY_MS;
    let (clock, hand) = Clock::discrete(start_ms);
    let web = WebBox::start(world.clone(), clock, Serving::default()).await.expect("a free port");
    let web = Arc::new(web);
    let mut reader = Reader::new(&web);
    let pages: Vec<usize> = (0..world.pages()).filter(|page| world.is_allowed(*page)).collect();
    println!("{} of them allowed, on {} sites", pages.len(), world.sites());

    // Everybody begins with the same copies.
    let mut all = 0.0;
    let mut first = Vec::new();
    for page in &pages {
        let url = Url::parse(&world.url(*page)).expect("a URL");
        let (answer, bytes) = reader.get(&url, Known::default()).await;
        assert_eq!(answer.status, 200, "{url}");
        all += bytes;
        first.push((url, answer));
    }
    let mut sites = vec![(None, 0, 0); world.sites()];
    for (page, (url, _)) in pages.iter().zip(&first) {
        let robots = reader.fetcher.robots(url);
        sites[world.site_of(*page)].0 = robots.and_then(|robots| robots.sitemaps.first().cloned());
    }
    let mut crawlers = Vec::new();
    for (how, name) in How::ALL {
        for level in LEVELS {
            let settings = Settings {
                bandwidth: pages.len() as f64,
                cycle_s: 86_400,
                discovery_xml: 0.0,
                discovery_html: 0.0,
                longest_wait_days: None,
                ..Settings::default()
            };
            let mut scheduler = Scheduler::new(settings).expect("sound settings");
            let rate = RateState::default().rate(&Prior::WEB_DAYS);
            let copy = |(page, (url, answer)): (&usize, &(Url, Answer))| Copy {
                url: url.clone(),
                site: world.site_of(*page),
                body: answer.body.clone(),
                known: answer.known(),
                read_at_ms: start_ms,
                rate: RateState::default(),
            };
            let copies: Vec<Copy> = pages.iter().zip(&first).map(copy).collect();
            for _ in &copies {
                scheduler.add(HotPage::read(Kind::Html, seconds(start_ms), 1.0, rate));
            }
            let by_url = copies.iter().enumerate().map(|(page, copy)| (copy.url.clone(), page)).collect();
            let crawler = Crawler {
                how,
                budget: level * all,
                debt: 0.0,
                copies,
                by_url,
                next: 0,
                scheduler,
                sites: sites.clone(),
                next_site: 0,
                fresh: 0.0,
            };
            crawlers.push((name, level, crawler));
        }
    }
    let scored = days - days / 2;
    for day in 1..=days {
        let now_ms = start_ms + day * DAY_MS;
        hand.move_to(now_ms);
        for (_, _, crawler) in &mut crawlers {
            crawler.day(&mut reader, now_ms).await;
            if day > days / 2 {
                crawler.fresh += crawler.score(&pages, &world, now_ms) / scored as f64;
            }
        }
    }
    println!("{} requests", web.visits().len());
    let reads = crawlers.iter_mut().find(|(_, _, crawler)| crawler.how == How::Sitemaps);
    if let Some((_, _, crawler)) = reads {
        let (_, bytes) = crawler.read_sitemaps(&mut reader).await;
        println!("reading all sitemaps once is {:.3} of reading all pages once", bytes / all);
    }
    let curve = |(_, name): (How, &'static str)| Curve {
        name,
        points: crawlers.iter().filter(|one| one.0 == name).map(|one| (one.1, one.2.fresh)).collect(),
    };
    How::ALL.into_iter().map(curve).collect()
}
