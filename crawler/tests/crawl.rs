//! A crawl of a web in a box: every living page that may be read is read once, links and sitemaps are followed, what robots files
//! forbid is not; a crawl that is cut off anywhere goes on and fetches nothing again; a second crawl asks for what changed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

#[allow(dead_code, reason = "shared by several tests")]
mod common;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{AT, BEGAN, Pages, page_visits, run, settings, steered, web, with};
use url::Url;
use webbase_crawler::crawl::{Control, Ended};
use webbase_web_in_a_box::{DAY_MS, Dates, Misbehaviour, World};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_that_may_be_read_is_read_once() {
    let (web, _hand) = web(World::new(21, 400, BEGAN), with(Vec::new())).await;
    let (world, dir, pages) = (web.world().clone(), tempfile::tempdir().unwrap(), Pages::default());
    let seed = Url::parse(&world.url(0)).unwrap();
    assert_eq!(run(&web, settings(dir.path(), vec![seed]), &pages).await, Ok(Ended::Done));
    let at = AT;
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
    let (web, _hand) = web(World::new(22, 300, BEGAN), with(Vec::new())).await;
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
    let at = AT;
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
    let (web, hand) = web(World::new(23, 200, BEGAN), with(Vec::new())).await;
    let (world, dir, pages) = (web.world().clone(), tempfile::tempdir().unwrap(), Pages::default());
    let seed = Url::parse(&world.url(0)).unwrap();
    run(&web, settings(dir.path(), vec![seed.clone()]), &pages).await.unwrap();
    hand.advance(DAY_MS);
    let mut again = settings(dir.path(), vec![seed]);
    again.recrawl = Some(Duration::ZERO);
    assert_eq!(run(&web, again, &pages).await, Ok(Ended::Done));
    let at = BEGAN + 51 * DAY_MS;
    let seen: BTreeSet<String> = pages.0.seen.lock().iter().map(|page| page.url.clone()).collect();
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
    let (web, _hand) = web(World::new(24, 30, BEGAN), with(misbehaving)).await;
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

/// One of each: the crawl comes to its end, has the pages of the others, and shows what went wrong by kind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_that_sites_do_wrong_is_bounded_counted_and_shown() {
    let slow = Duration::from_secs(60);
    let all = vec![
        ("turns.test", Misbehaviour::EndlessRedirects),
        ("file.test", Misbehaviour::RedirectTo("file:///etc/passwd".to_owned())),
        ("inside.test", Misbehaviour::RedirectTo("http://10.1.2.3/".to_owned())),
        ("bytes.test", Misbehaviour::SlowBytes(slow)),
        ("head.test", Misbehaviour::SlowHead(slow)),
        ("silent.test", Misbehaviour::Silent),
        ("hangs.test", Misbehaviour::HangsUp),
        ("garbage.test", Misbehaviour::Garbage),
        ("heads.test", Misbehaviour::EndlessHead),
        ("body.test", Misbehaviour::EndlessBody),
        ("short.test", Misbehaviour::TooShort(10)),
        ("long.test", Misbehaviour::TooLong(10)),
        ("bomb.test", Misbehaviour::GzipBomb(256 << 20)),
        ("gzip.test", Misbehaviour::BrokenGzip),
        ("robots.test", Misbehaviour::HugeRobots(100 << 20)),
        ("html.test", Misbehaviour::HtmlRobots),
        ("error.test", Misbehaviour::RobotsStatus(500)),
        ("round.test", Misbehaviour::RobotsRedirect("http://about.test/robots.txt".to_owned())),
        ("about.test", Misbehaviour::RobotsRedirect("http://round.test/robots.txt".to_owned())),
        ("busy.test", Misbehaviour::Status(503, None)),
        ("mime.test", Misbehaviour::WrongMime),
        ("calendar.test", Misbehaviour::Calendar),
        ("entities.test", Misbehaviour::EntityBomb),
        ("external.test", Misbehaviour::ExternalEntity),
    ];
    let mut seeds: Vec<Url> =
        all.iter().map(|(host, _)| Url::parse(&format!("http://{host}/page")).unwrap()).collect();
    seeds.push(Url::parse("http://nowhere.test/").unwrap());
    let all = all.into_iter().map(|(host, how)| (host.to_owned(), how)).collect();
    let (web, _hand) = web(World::new(25, 60, BEGAN), with(all)).await;
    seeds.push(Url::parse(&web.world().url(0)).unwrap());
    let (dir, pages, control) = (tempfile::tempdir().unwrap(), Pages::default(), Control::default());
    let mut settings = settings(dir.path(), seeds);
    settings.scope.depth_max = Some(8);
    settings.tries_max = 2;
    settings.fetch.politeness.back_off_max = Duration::from_millis(20);
    settings.fetch.limits.head_time = Duration::from_millis(300);
    settings.fetch.limits.idle_time = Duration::from_millis(300);
    settings.fetch.limits.page_time = Duration::from_millis(800);
    settings.fetch.limits.body_bytes_max = 1 << 20;
    assert_eq!(steered(&web, settings, &pages, control.clone()).await.unwrap(), Ended::Done);
    let progress = control.progress();
    for kind in [
        "redirects",
        "private-address",
        "time",
        "protocol",
        "long-head",
        "content-coding",
        "robots-unreachable",
        "dns",
        "entity-bomb",
        "status-503",
        "robots-long",
        "robots-html",
        "robots-redirects",
        "wrong-type",
        "short-body",
        "long-body",
        "slow-body",
    ] {
        assert!(progress.errors.get(kind).is_some_and(|count| *count > 0), "{kind}: {:?}", progress.errors);
    }
    assert!(progress.outside > 0, "what no crawler can fetch is outside of any crawl");
    assert!(progress.cut >= 3, "slow bytes, a body without end and one too short are cut: {progress:?}");
    let got = pages.0.pages.lock();
    let of = |host: &str| got.keys().filter(|url| url.contains(host)).count();
    assert!(
        of("calendar.test") > 8 && of("calendar.test") < 64,
        "as deep as the crawl goes: {}",
        of("calendar.test")
    );
    assert!(of(&web.world().host(0)) > 0 && got.len() > 60, "{} pages", got.len());
    assert_eq!(of("busy.test") + of("error.test") + of("nowhere.test"), 0);
}
