//! Answers that are not what they seem: half a page is not confirmed, a part of a document is read whatever its type is, and all that is
//! wrong is counted by its kind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

#[allow(dead_code, reason = "shared by several tests")]
mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{BEGAN, Pages, run, settings, web, with};
use url::Url;
use webbase_crawler::crawl::Ended;
use webbase_web_in_a_box::{Misbehaviour, World};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_page_is_asked_for_again_in_full() {
    let misbehaving = vec![("short.test".to_owned(), Misbehaviour::TooShort(10))];
    let (web, hand) = web(World::new(31, 30, BEGAN), with(misbehaving)).await;
    let (dir, pages) = (tempfile::tempdir().unwrap(), Pages::default());
    let mut settings = settings(dir.path(), vec![Url::parse("http://short.test/page").unwrap()]);
    let clock = web.clock().clone();
    settings.fetch.clock = Arc::new(move || clock.now_ms());
    for _ in 0..2 {
        assert_eq!(run(&web, settings.clone(), &pages).await, Ok(Ended::Done));
        settings.recrawl = Some(Duration::ZERO);
        hand.advance(1000);
    }
    let visits = web.visits();
    let visits: Vec<_> = visits.iter().filter(|visit| visit.path == "/page").collect();
    assert_eq!(visits.len(), 2);
    assert!(visits.iter().all(|visit| !visit.conditional), "half a page would be called unchanged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_a_document_are_read_whatever_their_type_also_again() {
    let misbehaving = vec![("parts.test".to_owned(), Misbehaviour::ForeignPart)];
    let (web, hand) = web(World::new(32, 30, BEGAN), with(misbehaving)).await;
    let (dir, pages) = (tempfile::tempdir().unwrap(), Pages::default());
    let mut settings = settings(dir.path(), vec![Url::parse("http://parts.test/page").unwrap()]);
    settings.fetch.wants = Arc::new(|mime| mime == "application/xml");
    let clock = web.clock().clone();
    settings.fetch.clock = Arc::new(move || clock.now_ms());
    for reads in 1..=2 {
        assert_eq!(run(&web, settings.clone(), &pages).await, Ok(Ended::Done));
        assert!(pages.0.pages.lock().contains_key("http://parts.test/page.dtd"));
        let read = web.visits().iter().filter(|visit| visit.path == "/page.dtd").count();
        assert_eq!(read, reads);
        pages.0.pages.lock().clear();
        settings.recrawl = Some(Duration::ZERO);
        hand.advance(1000);
    }
}
