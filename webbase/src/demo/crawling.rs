//! The demo's crawl: round after round it reads the whole world, asking only for what changed; and how that goes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::Url;
use serde_json::{Value, json};
use webbase_crawler::crawl::{self, Control, Ended, Scope, Settings, Within};
use webbase_crawler::fetcher::{By, Reach};
use webbase_node::Cluster;
use webbase_web_in_a_box::{WebBox, World};

use crate::gateway::CrawlFigures;

/// The crawl begins at the home page of one site in so many.
const SEED_EVERY: usize = 8;
/// The demo's sites are less patient than real ones, because their clock runs so fast.
const DELAY: Duration = Duration::from_millis(250);
const CRAWL_DELAY_MAX: Duration = Duration::from_millis(300);
const REQUESTS: usize = 32;
/// A page that was read this long ago is read again in the next round.
const FRESH: Duration = Duration::from_secs(20);
/// Between two rounds.
const PAUSE: Duration = Duration::from_secs(5);

/// The demo's crawl, for whoever wants to see how it goes. Clones are the same one.
#[derive(Clone, Default)]
pub struct Crawling(Arc<Mutex<Inside>>);

#[derive(Default)]
struct Inside {
    stopped: bool,
    /// Whether a round runs, and which it is.
    running: bool,
    round: u64,
    /// The hand on this round, or on the last one.
    control: Control,
    /// What the rounds before it came to.
    before: Sums,
}

#[derive(Clone, Default)]
struct Sums {
    pages: u64,
    unchanged: u64,
    bytes: u64,
    /// URLs that are known; a round that has just begun has not counted them yet.
    known: u64,
    errors: BTreeMap<String, u64>,
}

impl Inside {
    fn sums(&self) -> Sums {
        let (progress, mut sums) = (self.control.progress(), self.before.clone());
        sums.pages += progress.pages;
        sums.unchanged += progress.unchanged;
        sums.bytes += progress.bytes;
        sums.known = sums.known.max(progress.known);
        for (kind, count) in progress.errors {
            *sums.errors.entry(kind).or_default() += count;
        }
        sums
    }

    /// A hand on the next round; none when there is to be no more.
    fn next(&mut self) -> Option<Control> {
        self.before = self.sums();
        self.control = Control::default();
        self.round += 1;
        self.running = !self.stopped;
        self.running.then(|| self.control.clone())
    }
}

impl Crawling {
    /// Pages that the repository has from it, in this process.
    pub(super) fn pages(&self) -> u64 {
        self.0.lock().sums().pages
    }

    /// Has it end soon.
    pub(super) fn stop(&self) {
        let mut inside = self.0.lock();
        inside.stopped = true;
        inside.control.stop();
    }

    /// The same for a gateway.
    pub fn figures(&self) -> CrawlFigures {
        let crawling = self.clone();
        CrawlFigures::new(move || crawling.as_json())
    }

    fn as_json(&self) -> Value {
        let inside = self.0.lock();
        let (progress, sums) = (inside.control.progress(), inside.sums());
        json!({
            "round": inside.round,
            "running": inside.running,
            "pages": sums.pages,
            "unchanged": sums.unchanged,
            "bytes": sums.bytes,
            "pages_per_second": progress.pages_per_second,
            "known": sums.known,
            "waiting": progress.frontier,
            "hosts": progress.hosts,
            "requests": progress.requests,
            "errors": sums.errors,
        })
    }

    /// Reads a world until it is told to stop.
    pub(super) async fn run(self, web: Arc<WebBox>, cluster: Cluster, dir: PathBuf) {
        let settings = settings(&dir, web.world());
        let resolver = Arc::new(By(move |host: &str, _| web.resolve(host)));
        loop {
            let Some(control) = self.0.lock().next() else { return };
            match crawl::crawl(settings.clone(), resolver.clone(), cluster.clone(), control).await {
                Ok(Ended::Stopped) => return,
                Ok(Ended::Done | Ended::Limit) => {}
                // It is all in its folder, and the next round goes on with it.
                Err(e) => tracing::warn!("the demo's crawl: {e}"),
            }
            self.0.lock().running = false;
            let mut pause = tokio::time::interval(PAUSE / 50);
            for _ in 0..50 {
                pause.tick().await;
                if self.0.lock().stopped {
                    return;
                }
            }
        }
    }
}

fn settings(dir: &Path, world: &World) -> Settings {
    let homes = (0..world.sites()).step_by(SEED_EVERY).map(|site| world.url(world.pages_of(site).start));
    let seeds = homes.filter_map(|url| Url::parse(&url).ok()).collect();
    let mut settings = Settings::new(dir, seeds);
    settings.scope = Scope::new(Within::Anywhere);
    settings.fetch.reach = Reach::Loopback;
    settings.fetch.connections = REQUESTS;
    settings.fetch.politeness.delay = DELAY;
    settings.fetch.politeness.crawl_delay_max = CRAWL_DELAY_MAX;
    settings.fetch.politeness.address_delay = None;
    settings.recrawl = Some(FRESH);
    // Cycles are the demo's own (`life.rs`): as often while nothing new is found.
    settings.cycle_at_end = false;
    settings
}
