//! A repository that is a map, and a web in a box to crawl.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use url::Url;
use webbase_crawler::crawl::{Control, CrawlError, Ended, Scope, SeenPage, Settings, Sink, Within, crawl};
use webbase_crawler::fetcher::{By, Politeness, Reach};
use webbase_storage::Page;
use webbase_web_in_a_box::{Clock, DAY_MS, Hand, Misbehaviour, Serving, WebBox, World};

/// When worlds begin.
pub(crate) const BEGAN: u64 = 1_700_000_000_000;
/// When they are first read.
pub(crate) const AT: u64 = BEGAN + 50 * DAY_MS;

/// A repository that is a map, and fails when it is told to.
#[derive(Clone, Default)]
pub(crate) struct Pages(pub(crate) Arc<Inside>);

#[derive(Default)]
pub(crate) struct Inside {
    pub(crate) pages: Mutex<BTreeMap<String, (u16, Vec<u8>)>>,
    pub(crate) seen: Mutex<Vec<SeenPage>>,
    /// Pages whose time is over, until somebody asks.
    pub(crate) due: Mutex<Vec<String>>,
    pub(crate) cycles: AtomicU64,
    /// Adds are refused after this many; 0 for never.
    pub(crate) fails_after: AtomicU64,
    pub(crate) adds: AtomicU64,
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

    async fn seen(&self, pages: &[SeenPage]) -> Result<(), String> {
        self.0.seen.lock().extend_from_slice(pages);
        Ok(())
    }

    async fn due(&self, _now_ms: u64, _limit: u32) -> Result<Vec<String>, String> {
        Ok(std::mem::take(&mut *self.0.due.lock()))
    }

    async fn cycle(&self) -> Result<u64, String> {
        Ok(self.0.cycles.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

/// A world that is served, and the hand of its clock.
pub(crate) async fn web(world: World, serving: Serving) -> (Arc<WebBox>, Hand) {
    let (clock, hand) = Clock::discrete(AT);
    (Arc::new(WebBox::start(world, clock, serving).await.unwrap()), hand)
}

/// A world with sites that misbehave beside it.
pub(crate) fn with(misbehaving: Vec<(String, Misbehaviour)>) -> Serving {
    Serving { misbehaving, ..Serving::default() }
}

/// A crawl of it, as quick as can be.
pub(crate) fn settings(dir: &Path, seeds: Vec<Url>) -> Settings {
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

/// Crawls to the end.
pub(crate) async fn run(web: &Arc<WebBox>, settings: Settings, pages: &Pages) -> Result<Ended, String> {
    steered(web, settings, pages, Control::default()).await.map_err(|e| e.to_string())
}

/// Crawls, with a hand on it.
pub(crate) async fn steered(
    web: &Arc<WebBox>,
    settings: Settings,
    pages: &Pages,
    control: Control,
) -> Result<Ended, CrawlError> {
    let web = Arc::clone(web);
    let resolver = Arc::new(By(move |host: &str, _| web.resolve(host)));
    crawl(settings, resolver, pages.clone(), control).await
}

/// How often each page was asked for; robots files and sitemaps are none.
pub(crate) fn page_visits(web: &WebBox) -> BTreeMap<String, u64> {
    let mut visits = BTreeMap::new();
    for visit in web.visits() {
        if visit.path != "/robots.txt" && !visit.path.starts_with("/sitemap") {
            *visits.entry(format!("http://{}{}", visit.host, visit.path)).or_default() += 1;
        }
    }
    visits
}
