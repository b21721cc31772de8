//! A crawl of a web in a box: every living page that may be read is read once, links and sitemaps are followed, what robots files
//! forbid is not; a crawl that is cut off anywhere goes on and fetches nothing again; a second crawl asks for what changed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use url::Url;
use webbase_crawler::crawl::{Control, Ended, Scope, Settings, Sink, Within, crawl};
use webbase_crawler::fetcher::{By, Politeness, Reach};
use webbase_storage::Page;
use webbase_web_in_a_box::{Clock, DAY_MS, Dates, Hand, Misbehaviour, Serving, WebBox, World};

const BEGAN: u64 = 1_700_000_000_000;

/// A repository that is a map, and fails when it is told to.
#[derive(Clone, Default)]
struct Pages(Arc<Inside>);

#[derive(Default)]
struct Inside {
    pages: Mutex<BTreeMap<String, (u16, Vec<u8>)>>,
    seen: Mutex<Vec<String>>,
    cycles: AtomicU64,
    /// Adds are refused after this many; 0 for never.
    fails_after: AtomicU64,
    adds: AtomicU64,
}

impl Sink for Pages {
    async fn add(&self, pages: &[Page<'_>]) -> Result<Vec<(usize, String)>, String> {
        let adds = self.0.adds.fetch_add(1, Ordering::SeqCst);
        let fails_after = self.0.fails_after.load(Ordering::SeqCst);
        if fails_after > 0 && adds >= fails_after {
            return Err("the repository is away".to_owned());
        }
        for page in pages {
            self.0.pages.lock().insert(page.url.to_owned(), (page.status, page.body.to_vec()));
        }
        Ok(Vec::new())
    }

    async fn seen(&self, urls: &[(String, u64)]) -> Result<(), String> {
        self.0.seen.lock().extend(urls.iter().map(|(url, _)| url.clone()));
        Ok(())
    }

    async fn cycle(&self) -> Result<u64, String> {
        Ok(self.0.cycles.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

async fn web(world: World, misbehaving: Vec<(String, Misbehaviour)>) -> (Arc<WebBox>, Hand) {
    let (clock, hand) = Clock::discrete(BEGAN + 50 * DAY_MS);
    let serving = Serving { misbehaving, ..Serving::default() };
    (Arc::new(WebBox::start(world, clock, serving).await.unwrap()), hand)
}

fn settings(dir: &Path, seeds: Vec<Url>) -> Settings {
    let mut settings = Settings::new(dir, seeds);
    settings.scope = Scope::new(Within::Anywhere);
    settings.fetch.reach = Reach::Loopback;
    settings.fetch.politeness = Politeness {
        delay: Duration::from_millis(1),
        address_delay: None,
        crawl_delay_max: Duration::from_millis(2),
        ..Politeness::default()
    };
    settings
}

async fn run(web: &Arc<WebBox>, settings: Settings, pages: &Pages) -> Result<Ended, String> {
    let web = Arc::clone(web);
    let resolver = Arc::new(By(move |host: &str, _| web.resolve(host)));
    crawl(settings, resolver, pages.clone(), Control::default()).await.map_err(|e| e.to_string())
}

fn page_visits(web: &WebBox) -> BTreeMap<String, u64> {
    let mut visits = BTreeMap::new();
    for visit in web.visits() {
        if visit.path != "/robots.txt" && !visit.path.starts_with("/sitemap") {
            *visits.entry(format!("http://{}{}", visit.host, visit.path)).or_default() += 1;
        }
    }
    visits
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_that_may_be_read_is_read_once() {
    let (web, _hand) = web(World::new(21, 400, BEGAN), Vec::new()).await;
    let (world, dir, pages) = (web.world().clone(), tempfile::tempdir().unwrap(), Pages::default());
    let seed = Url::parse(&world.url(0)).unwrap();
    assert_eq!(run(&web, settings(dir.path(), vec![seed]), &pages).await, Ok(Ended::Done));
    let at = BEGAN + 50 * DAY_MS;
    let got = pages.0.pages.lock().clone();
    let mut missing = Vec::new();
    for page in 0..world.pages() {
        let url = world.url(page);
        if !world.is_allowed(page) {
            assert!(!got.contains_key(&url), "{url} is forbidden");
        } else if let Some(fetched) = world.fetch(page, at) {
            match got.get(&url) {
                Some((200, body)) => assert_eq!(*body, fetched.body),
                other => missing.push((url, other.map(|(status, _)| *status))),
            }
        }
    }
    // Pages that no page links to yet and no sitemap lists cannot be found.
    assert!(missing.len() * 50 < world.pages(), "{missing:?}");
    let visits = page_visits(&web);
    assert!(visits.values().all(|count| *count == 1), "{visits:?}");
    assert_eq!(pages.0.cycles.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crawl_that_was_cut_off_goes_on_and_fetches_nothing_again() {
    let (web, _hand) = web(World::new(22, 300, BEGAN), Vec::new()).await;
    let (world, dir, pages) = (web.world().clone(), tempfile::tempdir().unwrap(), Pages::default());
    let seed = Url::parse(&world.url(0)).unwrap();
    // The repository goes away: what was fetched meanwhile is in the spool. The end is as hard as a kill: nothing is written after.
    pages.0.fails_after.store(2, Ordering::SeqCst);
    let failed = run(&web, settings(dir.path(), vec![seed.clone()]), &pages).await;
    assert!(failed.as_ref().is_err_and(|e| e.contains("is away")), "{failed:?}");
    let before = page_visits(&web).len();
    let acknowledged: BTreeSet<String> = pages.0.pages.lock().keys().cloned().collect();
    assert!(before > acknowledged.len(), "some were fetched and not acknowledged");
    pages.0.fails_after.store(0, Ordering::SeqCst);
    assert_eq!(run(&web, settings(dir.path(), vec![seed.clone()]), &pages).await, Ok(Ended::Done));
    let got: BTreeSet<String> = pages.0.pages.lock().keys().cloned().collect();
    assert!(got.is_superset(&acknowledged));
    let at = BEGAN + 50 * DAY_MS;
    let wanted = (0..world.pages()).filter(|page| world.is_allowed(*page) && world.lives(*page, at));
    let missing = wanted.filter(|page| !got.contains(&world.url(*page))).count();
    assert!(missing * 50 < world.pages(), "{missing}");
    // What the first run still had on the wire when it ended may have been asked for twice; what it had written was not.
    let twice = page_visits(&web).values().filter(|count| **count > 1).count();
    assert!(twice <= 64, "{twice} pages were fetched twice");
    // A third run has nothing to do.
    let visits = page_visits(&web).values().sum::<u64>();
    assert_eq!(run(&web, settings(dir.path(), vec![seed]), &pages).await, Ok(Ended::Done));
    assert_eq!(page_visits(&web).values().sum::<u64>(), visits);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_crawl_asks_for_what_changed() {
    let (web, hand) = web(World::new(23, 200, BEGAN), Vec::new()).await;
    let (world, dir, pages) = (web.world().clone(), tempfile::tempdir().unwrap(), Pages::default());
    let seed = Url::parse(&world.url(0)).unwrap();
    run(&web, settings(dir.path(), vec![seed.clone()]), &pages).await.unwrap();
    hand.advance(DAY_MS);
    let mut again = settings(dir.path(), vec![seed]);
    again.recrawl = Some(Duration::ZERO);
    assert_eq!(run(&web, again, &pages).await, Ok(Ended::Done));
    let at = BEGAN + 51 * DAY_MS;
    let seen: BTreeSet<String> = pages.0.seen.lock().iter().cloned().collect();
    let got = pages.0.pages.lock().clone();
    for page in (0..world.pages()).filter(|page| world.is_allowed(*page) && world.lives(*page, at)) {
        let (url, site) = (world.url(page), world.site_of(page));
        let Some((200, body)) = got.get(&url) else { continue };
        assert_eq!(*body, world.fetch(page, at).unwrap().body, "{url} is as it is now");
        let changed = world.version(page, at).0 != world.version(page, at - DAY_MS).0;
        let is_old = world.born_at_ms(page) <= at - DAY_MS;
        if world.dates(site) == Dates::Both && is_old && !changed {
            assert!(seen.contains(&url), "{url} had not changed");
        }
    }
    assert!(!seen.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_end_a_crawl_and_calendars_do_not_hold_it() {
    let misbehaving = vec![("calendar.test".to_owned(), Misbehaviour::Calendar)];
    let (web, _hand) = web(World::new(24, 30, BEGAN), misbehaving).await;
    let (dir, pages) = (tempfile::tempdir().unwrap(), Pages::default());
    let seed = Url::parse("http://calendar.test/day/0").unwrap();
    let mut few = settings(dir.path(), vec![seed.clone()]);
    few.pages_max = Some(40);
    assert_eq!(run(&web, few, &pages).await, Ok(Ended::Limit));
    let count = pages.0.pages.lock().len();
    assert!((40..=41).contains(&count), "{count}");
    let (dir, pages) = (tempfile::tempdir().unwrap(), Pages::default());
    let mut shallow = settings(dir.path(), vec![seed]);
    shallow.scope.depth_max = Some(3);
    assert_eq!(run(&web, shallow, &pages).await, Ok(Ended::Done));
    assert_eq!(pages.0.pages.lock().len(), 16, "days 0 to 15 are within three links");
}
