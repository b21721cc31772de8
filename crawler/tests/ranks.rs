//! The scheduler reads the estimator: a crawl keeps its links, they are ranked, and the next run weighs XML by importance and HTML by
//! usefulness.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

#[allow(dead_code, reason = "shared by several tests")]
mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{BEGAN, Pages, settings, web, with};
use parking_lot::Mutex;
use url::Url;
use webbase_crawler::crawl::{Control, CrawlState, Settings, crawl};
use webbase_crawler::fetcher::By;
use webbase_crawler::importance::{Method, Settings as Numbers, Usefulness};
use webbase_crawler::links::{Extent, Links, Wanted, WithLinks, estimate};
use webbase_crawler::scheduler::Settings as Schedule;
use webbase_web_in_a_box::{WebBox, World};

async fn run(web: &Arc<WebBox>, settings: Settings, links: &Arc<Mutex<Links>>) {
    let by = Arc::clone(web);
    let resolver = Arc::new(By(move |host: &str, _| by.resolve(host)));
    let sink = WithLinks::new(Pages::default(), links.clone());
    crawl(settings, resolver, sink, Control::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_weigh_what_the_estimator_says() {
    let (web, _hand) = web(World::new(61, 200, BEGAN), with(Vec::new())).await;
    let (dir, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let links = Arc::new(Mutex::new(Links::open(folder.path(), 8 << 20).unwrap()));
    let mut settings = settings(dir.path(), vec![Url::parse(&web.world().url(0)).unwrap()]);
    run(&web, settings.clone(), &links).await;
    links.lock().commit(Extent::Changes).unwrap();
    let wanted = Wanted {
        settings: Numbers::default(),
        method: Method::Power,
        usefulness: Usefulness::Average,
        lifted: None,
        memory_bytes: 1 << 30,
    };
    estimate(&mut links.lock(), &wanted, 7).unwrap();
    settings.schedule = Some(Schedule { bandwidth: 1.0, ..Schedule::default() });
    settings.time_max = Some(Duration::from_millis(100));
    run(&web, settings, &links).await;
    let state = CrawlState::open(dir.path(), Some(Schedule::default())).unwrap();
    let pages: Vec<_> = (0..web.world().pages())
        .filter_map(|page| state.why(&web.world().url(page)).unwrap())
        .filter(|view| view.state == "read" && matches!(view.kind, "xml" | "html"))
        .collect();
    let urls: Vec<String> = pages.iter().map(|view| view.url.clone()).collect();
    let ranks = links.lock().ranks_of(&urls).unwrap();
    // Weight by rank is one number for all XML pages, and one for all HTML pages that have a usefulness.
    for kind in ["xml", "html"] {
        let each = pages.iter().zip(&ranks).filter(|(view, _)| view.kind == kind);
        let scales: Vec<f64> = each
            .filter_map(|(view, rank)| {
                let (importance, usefulness) = (*rank)?;
                let rank = if kind == "xml" { importance } else { usefulness };
                (rank > 0.0).then_some(view.weight / rank)
            })
            .collect();
        assert!(scales.len() > 5, "{} pages of {kind}", scales.len());
        let first = scales[0];
        assert!(scales.iter().all(|scale| (scale / first - 1.0).abs() < 1e-5), "{kind}: {scales:?}");
    }
}
