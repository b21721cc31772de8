//! A crawl with a bandwidth on a web in a box whose clock is moved by hand: first reads and refreshes share the bandwidth, what has
//! not changed is not sent again or not even asked for, pages that are gone are let go, and all of it can be steered while it runs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

#[allow(dead_code, reason = "shared by several tests")]
mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{AT, BEGAN, Pages, page_visits, settings, steered, web, with};
use tokio::task::JoinHandle;
use url::Url;
use webbase_crawler::crawl::{Control, CrawlState, Ended, Settings, Wish, saved_schedule};
use webbase_crawler::scheduler::{Publication, Settings as Schedule};
use webbase_web_in_a_box::{DAY_MS, Hand, Plan, Serving, Sitemaps, WebBox, World};

const STEP_MS: u64 = DAY_MS / 4;

/// A crawl with a bandwidth, and the box it reads.
struct Rig {
    web: Arc<WebBox>,
    hand: Hand,
    pages: Pages,
    control: Control,
    running: JoinHandle<Ended>,
}

impl Rig {
    async fn start(dir: &Path, world: World, serving: Serving, schedule: Schedule) -> Rig {
        let (web, hand) = web(world, serving).await;
        Rig::on(dir, web, hand, Pages::default(), schedule)
    }

    fn on(dir: &Path, web: Arc<WebBox>, hand: Hand, pages: Pages, schedule: Schedule) -> Rig {
        let control = Control::default();
        let running = {
            let (web, pages, control) = (Arc::clone(&web), pages.clone(), control.clone());
            let settings = Rig::settings(dir, &web, schedule);
            tokio::spawn(async move { steered(&web, settings, &pages, control).await.unwrap() })
        };
        Rig { web, hand, pages, control, running }
    }

    fn settings(dir: &Path, web: &Arc<WebBox>, schedule: Schedule) -> Settings {
        let mut settings = settings(dir, vec![Url::parse(&web.world().url(0)).unwrap()]);
        let clock = web.clock().clone();
        settings.fetch.clock = Arc::new(move || clock.now_ms());
        settings.schedule = Some(schedule);
        settings.lifetime = Some(Duration::from_secs(90 * 86_400));
        settings
    }

    /// Waits until nothing waits and nothing is being fetched, some looks in a row.
    async fn rest(&self) {
        let mut quiet = 0;
        for _ in 0..2000 {
            let before = self.web.visits().len();
            tokio::time::sleep(Duration::from_millis(30)).await;
            let progress = self.control.progress();
            let still = progress.frontier == 0 && progress.requests == 0 && self.web.visits().len() == before;
            quiet = if still { quiet + 1 } else { 0 };
            // Two answers one after the other: the keeper has been round in between, and has planned.
            if quiet >= 2 && self.control.due(0).await.is_some() && self.control.due(0).await.is_some() {
                let progress = self.control.progress();
                if progress.frontier == 0 && progress.requests == 0 && self.web.visits().len() == before {
                    return;
                }
            }
        }
        panic!("the crawl does not come to rest: {:?}", self.control.progress());
    }

    /// Moves the clock, and waits for what comes of it.
    async fn step(&self, by_ms: u64) {
        self.hand.advance(by_ms);
        self.rest().await;
    }

    async fn stop(self) -> (Arc<WebBox>, Hand, Pages) {
        self.control.stop();
        assert_eq!(self.running.await.unwrap(), Ended::Stopped);
        (self.web, self.hand, self.pages)
    }
}

fn schedule(reads_a_day: f64) -> Schedule {
    Schedule { bandwidth: reads_a_day, ..Schedule::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bandwidth_is_shared_between_first_reads_and_refreshes() {
    let (dir, reads) = (tempfile::tempdir().unwrap(), 400.0);
    let rig = Rig::start(dir.path(), World::new(41, 150, BEGAN), with(Vec::new()), schedule(reads)).await;
    rig.rest().await;
    let days = 6;
    for _ in 0..4 * days {
        rig.step(STEP_MS).await;
    }
    let visits = page_visits(&rig.web);
    let total: u64 = visits.values().sum();
    // What is asked for at once is beyond the plan: the seed, redirects.
    assert!((total as f64) < 1.02 * reads * f64::from(days) + 20.0, "{total} reads of pages in {days} days");
    let (world, now) = (rig.web.world().clone(), AT + u64::from(days as u32) * DAY_MS);
    let living: Vec<usize> = (0..world.pages())
        .filter(|page| world.is_allowed(*page) && world.lives(*page, AT) && world.lives(*page, now))
        .collect();
    let read = living.iter().filter(|page| visits.contains_key(&world.url(**page))).count();
    assert!(read * 100 > living.len() * 95, "{read} of {} pages were found", living.len());
    // What was seen again had not changed, and the repository was told.
    let unchanged = rig.web.visits().iter().filter(|visit| visit.status == 304).count();
    let seen = rig.pages.0.seen.lock().len();
    assert!(seen > 0 && seen <= unchanged, "{seen} of {unchanged}");
    // The repository is about as fresh as the crawl thinks.
    let got = rig.pages.0.pages.lock().clone();
    let fresh = living.iter().filter(|page| {
        got.get(&world.url(**page)).is_some_and(|(_, body)| *body == world.fetch(**page, now).unwrap().body)
    });
    let (fresh, thought) =
        (fresh.count() as f64 / living.len() as f64, rig.control.progress().freshness.unwrap());
    assert!(
        fresh > 0.8 && (fresh - thought).abs() < 0.25,
        "{fresh} of the pages are fresh, and {thought} thought"
    );
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_site_calls_unchanged_is_not_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::start(dir.path(), World::new(42, 150, BEGAN), with(Vec::new()), schedule(3000.0)).await;
    rig.rest().await;
    let days = 5;
    for _ in 0..4 * days {
        rig.step(STEP_MS).await;
    }
    let (world, now) = (rig.web.world().clone(), AT + days * DAY_MS);
    let visits = page_visits(&rig.web);
    // Reads of pages by what their sites' sitemaps are worth: how often, and how often they changed.
    let mut sites: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
    for page in (0..world.pages()).filter(|page| world.is_allowed(*page) && world.lives(*page, now)) {
        let worth = match world.sitemaps(world.site_of(page)) {
            Sitemaps::True => "true",
            _ => "other",
        };
        let changes = u64::from(world.version(page, now).0.saturating_sub(world.version(page, AT).0));
        let site = sites.entry(worth).or_default();
        site.0 += 1;
        site.1 += visits.get(&world.url(page)).copied().unwrap_or(0);
        site.2 += changes;
    }
    let (pages, reads, changes) = sites["true"];
    assert!(pages > 20, "{sites:?}");
    // Each once, and again when it had changed: the bandwidth would have done for all pages in every cycle. Between the first
    // read and the first sitemap a page may be read by the policy.
    assert!(reads <= 2 * pages + changes, "{reads} reads of {pages} pages that changed {changes} times");
    let (others, reads_of_others, _) = sites["other"];
    assert!(
        reads_of_others * pages > 3 * reads * others,
        "pages of which nothing is known are read by the policy: {sites:?}"
    );
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_steered_while_it_runs_and_goes_on_after_a_stop() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::start(dir.path(), World::new(43, 80, BEGAN), with(Vec::new()), schedule(2000.0)).await;
    rig.rest().await;
    for _ in 0..4 {
        rig.step(STEP_MS).await;
    }
    let world = rig.web.world().clone();
    let read = rig.pages.0.pages.lock().keys().cloned().collect::<Vec<_>>();
    let url = Url::parse(read.iter().find(|url| world.url(0) != **url).unwrap()).unwrap();
    let count = |web: &WebBox| page_visits(web).get(url.as_str()).copied().unwrap_or(0);
    // Now.
    let before = count(&rig.web);
    rig.control.wish(url.clone(), Wish::Now).await.unwrap();
    rig.rest().await;
    assert_eq!(count(&rig.web), before + 1, "{url} was wanted");
    // Never.
    rig.control.wish(url.clone(), Wish::Publish(Publication::Never)).await.unwrap();
    let why = rig.control.why(url.as_str()).await.unwrap().unwrap();
    assert!(why.reason.starts_with("never") && why.due_at_ms.is_none(), "{why:?}");
    for _ in 0..4 {
        rig.step(STEP_MS).await;
    }
    assert_eq!(count(&rig.web), before + 1, "{url} is never to be read again");
    // A bandwidth of next to nothing, and settings that make no sense.
    assert!(rig.control.set_schedule(schedule(-1.0)).is_err());
    let reads = |web: &WebBox| page_visits(web).values().sum::<u64>();
    rig.control.set_schedule(schedule(1.0)).unwrap();
    rig.step(1000).await;
    let before = reads(&rig.web);
    for _ in 0..4 {
        rig.step(STEP_MS).await;
    }
    let after = reads(&rig.web);
    // Sites that say that something changed are believed at once; the policy has one read.
    assert!(after - before < 40, "{} reads in a day", after - before);
    let due = rig.control.due(5).await.unwrap();
    assert_eq!(due.len(), 5);
    let (web, hand, pages) = rig.stop().await;
    // What was set last is kept.
    assert_eq!(saved_schedule(dir.path()).unwrap(), Some(schedule(1.0)));
    // At rest the same is said, and what was published is kept.
    let state = CrawlState::open(dir.path(), Some(schedule(1.0))).unwrap();
    assert!(state.why(url.as_str()).unwrap().unwrap().reason.starts_with("never"));
    assert_eq!(state.due(5).unwrap().len(), 5);
    drop(state);
    // It goes on where it was: nothing is read again because of the stop.
    let rig = Rig::on(dir.path(), web, hand, pages, schedule(1.0));
    rig.rest().await;
    assert!(reads(&rig.web) <= after + 2, "{} and {after} before the stop", reads(&rig.web));
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_pages_are_visited_and_dead_ones_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan { mortal_share: 0.5, deaths_a_day: 0.02, ..Plan::new(44, 120, BEGAN) };
    let world = World::planned(plan);
    let rig = Rig::start(dir.path(), world.clone(), with(Vec::new()), schedule(5000.0)).await;
    rig.rest().await;
    let days = 30;
    // Links are settled in passes: the web is found after some steps.
    let (mut read, mut mortal) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        rig.step(STEP_MS).await;
        read = rig.pages.0.pages.lock().keys().cloned().collect::<Vec<_>>();
        mortal = (0..world.pages())
            .filter(|page| {
                world
                    .died_at_ms(*page)
                    .is_some_and(|at| at > AT + 6 * DAY_MS && at < AT + (days - 12) * DAY_MS)
            })
            .map(|page| world.url(page))
            .filter(|url| read.contains(url))
            .collect();
        if !mortal.is_empty() {
            break;
        }
    }
    assert!(!mortal.is_empty(), "a world without deaths says nothing: {read:?}");
    for _ in 0..2 * days {
        rig.step(DAY_MS / 2).await;
    }
    let mut gone: BTreeMap<String, u64> = BTreeMap::new();
    for visit in rig.web.visits().iter().filter(|visit| matches!(visit.status, 404 | 410)) {
        *gone.entry(format!("http://{}{}", visit.host, visit.path)).or_default() += 1;
    }
    for (url, count) in &gone {
        assert!(*count <= 3, "{url} was found gone {count} times");
    }
    let mut dead = 0;
    for url in &mortal {
        let why = rig.control.why(url).await.unwrap().unwrap();
        dead += usize::from(why.state == "dead" && why.kind == "dead");
    }
    assert!(dead > 0, "{gone:?}");
    // The repository's list of pages whose time is over: they are visited whatever the policy says.
    let alive = read.iter().find(|url| !mortal.contains(url) && !gone.contains_key(*url)).unwrap().clone();
    let before = page_visits(&rig.web)[&alive];
    rig.pages.0.due.lock().push(alive.clone());
    for _ in 0..200 {
        if page_visits(&rig.web)[&alive] > before {
            break;
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
        rig.hand.advance(31_000);
    }
    assert!(page_visits(&rig.web)[&alive] > before, "{alive} was not visited");
    rig.stop().await;
}
