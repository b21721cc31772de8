//! Two crawlers side by side: every page is read by one of them, hosts that share an address by the same, and links to the other's hosts
//! are handed over, also when one is stopped in between.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

#[allow(dead_code, reason = "shared by several tests")]
mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use common::{AT, BEGAN, Pages, page_visits, settings, steered, web};
use url::Url;
use webbase_crawler::crawl::{Control, Ended, Shard};
use webbase_web_in_a_box::{Serving, WebBox, World};

struct Crawler {
    own: u32,
    folder: PathBuf,
    pages: Pages,
    control: Control,
}

impl Crawler {
    fn new(own: u32, folder: PathBuf) -> Crawler {
        Crawler { own, folder, pages: Pages::default(), control: Control::default() }
    }

    fn start(&mut self, web: &Arc<WebBox>) -> tokio::task::JoinHandle<Ended> {
        self.control = Control::default();
        // Both are told the same seed: it belongs to one of them.
        let seed = Url::parse(&web.world().url(0)).unwrap();
        let mut settings = settings(&self.folder.join(format!("crawler-{}", self.own)), vec![seed]);
        settings.shard = Some(Shard { own: self.own, count: 2, folder: self.folder.join("shared") });
        let (web, pages, control) = (Arc::clone(web), self.pages.clone(), self.control.clone());
        tokio::spawn(async move { steered(&web, settings, &pages, control).await.unwrap() })
    }

    fn is_idle(&self) -> bool {
        let progress = self.control.progress();
        let inbox = std::fs::read_dir(self.folder.join(format!("shared/to-{}", self.own)));
        progress.seconds > 0.0
            && progress.frontier == 0
            && progress.requests == 0
            && inbox.is_ok_and(|mut all| all.next().is_none())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_page_is_read_by_one_of_two() {
    let serving = Serving { addresses: 6, ..Serving::default() };
    let (web, _hand) = web(World::new(51, 400, BEGAN), serving).await;
    let (world, dir) = (web.world().clone(), tempfile::tempdir().unwrap());
    let mut crawlers = [0, 1].map(|own| Crawler::new(own, dir.path().to_owned()));
    let [first, second] = &mut crawlers;
    let (mut running, other) = (first.start(&web), second.start(&web));
    // The first is stopped in the middle and goes on; what the other hands over meanwhile waits.
    while page_visits(&web).len() < 60 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    first.control.stop();
    assert_eq!(running.await.unwrap(), Ended::Stopped);
    running = first.start(&web);
    let mut quiet = 0;
    for _ in 0..2000 {
        let before = web.visits().len();
        tokio::time::sleep(Duration::from_millis(30)).await;
        let still = first.is_idle() && second.is_idle() && web.visits().len() == before;
        quiet = if still { quiet + 1 } else { 0 };
        if quiet > 10 {
            break;
        }
    }
    let handed = first.control.progress().handed_over + second.control.progress().handed_over;
    first.control.stop();
    second.control.stop();
    assert_eq!((running.await.unwrap(), other.await.unwrap()), (Ended::Stopped, Ended::Stopped));
    assert!(handed > 0);
    let [one, two] = [&crawlers[0], &crawlers[1]].map(|crawler| {
        let pages = crawler.pages.0.pages.lock();
        pages
            .iter()
            .filter(|(_, (status, _))| *status == 200)
            .map(|(url, _)| url.clone())
            .collect::<BTreeSet<_>>()
    });
    assert!(one.len() > 20 && two.len() > 20, "{} and {}", one.len(), two.len());
    let both: Vec<&String> = one.intersection(&two).collect();
    assert!(both.is_empty(), "read by both: {both:?}");
    let mut owners: BTreeMap<IpAddr, BTreeSet<u32>> = BTreeMap::new();
    for (own, pages) in [(0, &one), (1, &two)] {
        for url in pages {
            let host = Url::parse(url).unwrap().host_str().unwrap().to_owned();
            owners.entry(web.resolve(&host).unwrap().ip()).or_default().insert(own);
        }
    }
    assert!(owners.values().all(|owners| owners.len() == 1), "{owners:?}");
    let wanted = (0..world.pages()).filter(|page| world.is_allowed(*page) && world.lives(*page, AT));
    let missing: Vec<String> =
        wanted.map(|page| world.url(page)).filter(|url| !one.contains(url) && !two.contains(url)).collect();
    assert!(missing.len() * 50 < world.pages(), "{missing:?}");
}
