//! Never two requests to one site closer than its delay, whatever the requests are for: pages, robots files, redirects, retries.
//! Checked in the server's log.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use url::Url;
use webbase_crawler::fetcher::{
    By, Fetcher, Known, Outcome, Pace, Politeness, Priority, Reach, Settings, Wanted,
};
use webbase_web_in_a_box::{Clock, Dates, Misbehaviour, Serving, Visit, WebBox, World};

const BEGAN: u64 = 1_700_000_000_000;
const DELAY: Duration = Duration::from_millis(40);

fn start(web: &Arc<WebBox>, politeness: Politeness) -> (Fetcher, tokio::sync::mpsc::Receiver<Outcome>) {
    let settings = Settings { reach: Reach::Loopback, politeness, ..Settings::default() };
    let web = Arc::clone(web);
    Fetcher::start(settings, Arc::new(By(move |host: &str, _| web.resolve(host)))).unwrap()
}

/// The least time between an answer and the next request, by whatever the visits are sorted by.
fn least(visits: &[Visit], by: impl Fn(&Visit) -> String) -> BTreeMap<String, (usize, Duration)> {
    let mut sites: BTreeMap<String, Vec<&Visit>> = BTreeMap::new();
    for visit in visits {
        sites.entry(by(visit)).or_default().push(visit);
    }
    let least = |visits: Vec<&Visit>| {
        let gaps = visits.windows(2).map(|two| two[1].at.saturating_sub(two[0].at));
        (visits.len(), gaps.min().unwrap_or(Duration::MAX))
    };
    sites.into_iter().map(|(site, visits)| (site, least(visits))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_site_is_asked_within_its_delay() {
    let misbehaving = vec![
        ("turns.test".to_owned(), Misbehaviour::EndlessRedirects),
        ("busy.test".to_owned(), Misbehaviour::Status(503, None)),
        ("hangs.test".to_owned(), Misbehaviour::HangsUp),
    ];
    let world = World::new(3, 150, BEGAN);
    let web = Serving { misbehaving, ..Serving::default() };
    let web = Arc::new(WebBox::start(world, Clock::running(BEGAN, 1.0), web).await.unwrap());
    let politeness =
        Politeness { delay: DELAY, address_delay: None, crawl_delay_max: 2 * DELAY, ..Politeness::default() };
    let (fetcher, mut outcomes) = start(&web, politeness);
    let world = web.world().clone();
    let mut wanted = 0;
    for page in 0..150 {
        assert!(
            fetcher.want(Wanted::new(Url::parse(&world.url(page)).unwrap(), Priority::Discovery)).is_none()
        );
        wanted += 1;
    }
    for host in ["turns.test", "busy.test", "hangs.test"] {
        for number in 0..2 {
            let url = Url::parse(&format!("http://{host}/{number}")).unwrap();
            fetcher.want(Wanted::new(url, Priority::Discovery));
            wanted += 1;
        }
    }
    while wanted > 0 {
        let outcome = outcomes.recv().await.unwrap();
        wanted -= 1;
        // Redirects are followed by whoever wanted the page.
        if let Ok(answer) = &outcome.result
            && let Some(url) = answer.location(&outcome.wanted.url)
        {
            fetcher.want(Wanted { url, redirects: outcome.wanted.redirects + 1, ..outcome.wanted });
            wanted += 1;
        }
    }
    let visits = web.visits();
    assert!(visits.iter().filter(|visit| visit.path == "/robots.txt").count() >= world.sites());
    for (host, (count, gap)) in least(&visits, |visit| visit.host.clone()) {
        assert!(gap >= DELAY, "{host}: {gap:?} between two of {count} requests");
        if let Some(site) = world.site_of_host(&host)
            && world.crawl_delay_s(site).is_some()
            && count > 1
        {
            let view = fetcher.site(&host).unwrap();
            assert!(matches!(view.pace, Pace::CrawlDelay { asked: Some(_) }), "{view:?}");
            assert!(gap >= 2 * DELAY, "{host} asks for more: {gap:?}");
        }
    }
    // What the robots files forbid was not read.
    for page in (0..150).filter(|page| !world.is_allowed(*page)) {
        let (host, path) = (world.host(world.site_of(page)), world.path(page));
        assert!(!visits.iter().any(|visit| visit.host == host && visit.path == path));
    }
    assert!(visits.iter().all(|visit| visit.user_agent.starts_with("webbase/")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sites_of_one_address_take_turns() {
    let web = WebBox::start(World::new(5, 40, BEGAN), Clock::running(BEGAN, 1.0), Serving::default())
        .await
        .unwrap();
    let web = Arc::new(web);
    let politeness = Politeness { delay: DELAY / 2, address_delay: Some(DELAY / 2), ..Politeness::default() };
    let (fetcher, mut outcomes) = start(&web, politeness);
    let world = web.world().clone();
    for page in 0..20 {
        fetcher.want(Wanted::new(Url::parse(&world.url(page)).unwrap(), Priority::Discovery));
    }
    for _ in 0..20 {
        outcomes.recv().await.unwrap();
    }
    let (count, gap) = least(&web.visits(), |_| "the address".to_owned())["the address"];
    assert!(count > 20 && gap >= DELAY / 2, "{gap:?} between two of {count} requests");
}

#[tokio::test]
async fn a_page_that_has_not_changed_is_not_sent_again() {
    let (clock, _) = Clock::discrete(BEGAN);
    let web = Arc::new(WebBox::start(World::new(5, 400, BEGAN), clock, Serving::default()).await.unwrap());
    let politeness = Politeness { delay: Duration::ZERO, address_delay: None, ..Politeness::default() };
    let (fetcher, mut outcomes) = start(&web, politeness);
    let world = web.world();
    let site = (0..world.sites()).find(|site| world.dates(*site) == Dates::Both).unwrap();
    let url = Url::parse(&world.url(world.pages_of(site).start)).unwrap();
    fetcher.want(Wanted::new(url.clone(), Priority::Refresh));
    let first = outcomes.recv().await.unwrap().result.unwrap();
    let both = first.known();
    assert!(both.etag.is_some() && both.modified_at_ms.is_some());
    let only_date = Known { etag: None, ..both.clone() };
    let only_tag = Known { modified_at_ms: None, ..both.clone() };
    for known in [both, only_date, only_tag] {
        fetcher.want(Wanted { known, ..Wanted::new(url.clone(), Priority::Refresh) });
        let again = outcomes.recv().await.unwrap().result.unwrap();
        assert_eq!((again.status, again.body.len()), (304, 0));
    }
    assert_eq!(fetcher.counts().unchanged(), 3);
}
