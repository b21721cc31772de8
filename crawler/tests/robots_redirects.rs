//! Robots files that redirect: to each other, on and on, to where nobody may go. Each ends, is counted, and its site is read on; and no
//! site is asked within its delay, whoever asks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use url::Url;
use webbase_crawler::fetcher::{By, Fetcher, Politeness, Priority, Reach, Settings, Wanted};
use webbase_web_in_a_box::{Clock, Misbehaviour, Serving, Visit, WebBox, World};

const BEGAN: u64 = 1_700_000_000_000;
const DELAY: Duration = Duration::from_millis(40);

/// Reads two pages of each site, and returns what became of them, the server's log, and the fetcher.
async fn read(
    sites: Vec<(&str, Misbehaviour)>,
    address_delay: Option<Duration>,
) -> (BTreeMap<String, Result<u16, &'static str>>, Vec<Visit>, Fetcher) {
    let wanted: Vec<String> = sites.iter().map(|(host, _)| format!("http://{host}")).collect();
    let misbehaving = sites.into_iter().map(|(host, how)| (host.to_owned(), how)).collect();
    let serving = Serving { misbehaving, ..Serving::default() };
    let world = World::new(8, 30, BEGAN);
    let web = Arc::new(WebBox::start(world, Clock::running(BEGAN, 1.0), serving).await.unwrap());
    let politeness = Politeness { delay: DELAY, address_delay, ..Politeness::default() };
    let settings = Settings { reach: Reach::Loopback, politeness, ..Settings::default() };
    let by = Arc::clone(&web);
    let (fetcher, mut outcomes) =
        Fetcher::start(settings, Arc::new(By(move |host: &str, _| by.resolve(host)))).unwrap();
    for site in &wanted {
        for path in ["/1", "/private/2"] {
            let url = Url::parse(&format!("{site}{path}")).unwrap();
            assert!(fetcher.want(Wanted::new(url, Priority::Discovery)).is_none());
        }
    }
    let mut came = BTreeMap::new();
    while came.len() < 2 * wanted.len() {
        let outcome = tokio::time::timeout(Duration::from_secs(20), outcomes.recv()).await;
        let outcome = outcome.unwrap_or_else(|_| panic!("it hangs; there is only {came:?}")).unwrap();
        let result = outcome.result.map(|answer| answer.status).map_err(|e| e.kind());
        came.insert(outcome.wanted.url.to_string(), result);
    }
    (came, web.visits(), fetcher)
}

fn polite(visits: &[Visit]) {
    let mut sites: BTreeMap<&str, Vec<&Visit>> = BTreeMap::new();
    for visit in visits {
        sites.entry(&visit.host).or_default().push(visit);
    }
    for (host, visits) in sites {
        for two in visits.windows(2) {
            let gap = two[1].at.saturating_sub(two[0].at);
            assert!(gap >= DELAY, "{host}: {gap:?} between {} and {}", two[0].path, two[1].path);
        }
    }
}

fn to(url: &str) -> Misbehaviour {
    Misbehaviour::RobotsRedirect(url.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sites_whose_robots_files_lead_to_each_other_are_read() {
    for address_delay in [None, Some(Duration::from_millis(5))] {
        let (came, visits, fetcher) = read(
            vec![
                ("a.test", to("http://b.test/robots.txt")),
                ("b.test", to("http://a.test/robots.txt")),
                ("self.test", to("/robots.txt")),
            ],
            address_delay,
        )
        .await;
        // More redirects than five: there is none, and everything may be read.
        assert!(came.values().all(|result| *result == Ok(200)), "{came:?}");
        assert_eq!(fetcher.counts().errors()["robots-redirects"], 3);
        let robots = visits.iter().filter(|visit| visit.path == "/robots.txt").count();
        assert_eq!(robots, 3 * 6, "the first request and five redirects of each");
        polite(&visits);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_robots_file_is_followed_to_its_place_within_that_sites_politeness() {
    let rules = "User-agent: *\nDisallow: /private/\n".to_owned();
    let sites = vec![
        ("place.test", Misbehaviour::RobotsText(rules)),
        ("one.test", to("http://two.test/robots.txt")),
        ("two.test", to("http://three.test/robots.txt")),
        ("three.test", to("http://place.test/robots.txt")),
        ("gone.test", to("http://10.1.2.3/robots.txt")),
        ("file.test", to("file:///etc/passwd")),
        ("nowhere.test", to("http://not-there.example/robots.txt")),
    ];
    let (came, visits, _) = read(sites, None).await;
    for site in ["place", "one", "two", "three"] {
        assert_eq!(came[&format!("http://{site}.test/1")], Ok(200));
        assert_eq!(came[&format!("http://{site}.test/private/2")], Err("robots"), "{site}");
    }
    // What is forbidden to us there cannot be read: RFC 9309 has that as unreachable.
    for site in ["gone", "file", "nowhere"] {
        assert_eq!(came[&format!("http://{site}.test/1")], Err("robots-unreachable"), "{site}");
    }
    polite(&visits);
}
