//! Cycles by time and by size, and a pause: what is fetched is kept meanwhile, nothing new is asked for, and it goes on where it was.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

#[allow(dead_code, reason = "shared by several tests")]
mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{BEGAN, Pages, page_visits, settings, steered, web, with};
use url::Url;
use webbase_crawler::crawl::{Control, Ended};
use webbase_web_in_a_box::{WebBox, World};

/// Waits until something holds that a running crawl brings about.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} did not come about");
}

fn seed(web: &WebBox) -> Vec<Url> {
    vec![Url::parse(&web.world().url(0)).unwrap()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_crawl_asks_for_nothing_and_then_goes_on() {
    let (web, _hand) = web(World::new(51, 300, BEGAN), with(Vec::new())).await;
    let (dir, pages, control) = (tempfile::tempdir().unwrap(), Pages::default(), Control::default());
    let mut settings = settings(dir.path(), seed(&web));
    settings.fetch.politeness.delay = Duration::from_millis(10);
    let running = {
        let (web, pages, control) = (Arc::clone(&web), pages.clone(), control.clone());
        tokio::spawn(async move { steered(&web, settings, &pages, control).await.unwrap() })
    };
    until("a page", || !pages.0.pages.lock().is_empty()).await;
    control.pause(true);
    // What was handed out before still comes.
    until("a pause", || {
        let progress = control.progress();
        progress.paused && progress.buffer == 0 && progress.requests == 0
    })
    .await;
    let paused = page_visits(&web).values().sum::<u64>();
    assert!(!running.is_finished() && control.progress().frontier > 0, "{:?}", control.progress());
    // It answers, so it has been round more than once; and it has asked for nothing.
    for _ in 0..5 {
        assert!(control.due(1).await.is_some());
    }
    assert_eq!(page_visits(&web).values().sum::<u64>(), paused);
    control.pause(false);
    assert_eq!(running.await.unwrap(), Ended::Done);
    let visits = page_visits(&web);
    assert!(visits.values().sum::<u64>() > paused && visits.values().all(|count| *count == 1));
    assert!(!control.progress().paused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_crawl_can_be_stopped_and_the_next_one_goes_on() {
    let (web, _hand) = web(World::new(52, 100, BEGAN), with(Vec::new())).await;
    let (dir, pages, control) = (tempfile::tempdir().unwrap(), Pages::default(), Control::default());
    control.pause(true);
    let paused = {
        let (web, pages, control) = (Arc::clone(&web), pages.clone(), control.clone());
        let settings = settings(dir.path(), seed(&web));
        tokio::spawn(async move { steered(&web, settings, &pages, control).await.unwrap() })
    };
    until("a pause", || control.progress().paused).await;
    control.stop();
    assert_eq!(paused.await.unwrap(), Ended::Stopped);
    assert_eq!((web.visits().len(), pages.0.cycles.load(Ordering::SeqCst)), (0, 0));
    let ended = steered(&web, settings(dir.path(), seed(&web)), &pages, Control::default()).await.unwrap();
    assert_eq!(ended, Ended::Done);
    assert!(pages.0.pages.lock().len() > 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cycle_follows_after_so_many_pages() {
    let (web, _hand) = web(World::new(53, 300, BEGAN), with(Vec::new())).await;
    let (dir, pages, control) = (tempfile::tempdir().unwrap(), Pages::default(), Control::default());
    let mut settings = settings(dir.path(), seed(&web));
    settings.cycle_pages = Some(40);
    settings.cycle_at_end = false;
    settings.fetch.politeness.delay = Duration::from_millis(20);
    assert_eq!(steered(&web, settings, &pages, control.clone()).await.unwrap(), Ended::Done);
    let (got, cycles) = (pages.0.pages.lock().len() as u64, pages.0.cycles.load(Ordering::SeqCst));
    assert!(cycles >= 1 && cycles <= got / 40, "{cycles} cycles for {got} pages");
    assert_eq!(control.progress().generation, Some(cycles));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cycle_follows_after_a_time_and_only_if_there_is_something_new() {
    let (web, _hand) = web(World::new(54, 60, BEGAN), with(Vec::new())).await;
    let (dir, pages, control) = (tempfile::tempdir().unwrap(), Pages::default(), Control::default());
    let mut settings = settings(dir.path(), seed(&web));
    settings.cycle_every = Some(Duration::from_millis(1));
    settings.cycle_at_end = false;
    settings.fetch.politeness.delay = Duration::from_millis(20);
    assert_eq!(steered(&web, settings.clone(), &pages, control.clone()).await.unwrap(), Ended::Done);
    let (adds, cycles) = (pages.0.adds.load(Ordering::SeqCst), pages.0.cycles.load(Ordering::SeqCst));
    assert!(cycles >= 2 && cycles <= adds, "{cycles} cycles for {adds} batches");
    assert_eq!(control.progress().generation, Some(cycles));
    // The next run finds nothing to read, however much time passes.
    settings.time_max = Some(Duration::from_millis(200));
    steered(&web, settings, &pages, Control::default()).await.unwrap();
    assert_eq!(pages.0.cycles.load(Ordering::SeqCst), cycles);
}
