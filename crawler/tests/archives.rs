//! A site that publishes metadata archives (`webbase export-site`), crawled with a bandwidth: its pages are found though nothing links to them;
//! afterwards only what the archives call changed is asked for.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

#[allow(dead_code, reason = "shared by several tests")]
mod common;

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use common::{Pages, settings};
use http_body_util::Full;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use url::Url;
use webbase_crawler::crawl::{Control, Ended, crawl};
use webbase_crawler::fetcher::Given;
use webbase_crawler::scheduler::Settings as Schedule;
use webbase_crawler::site_metadata::export_site;

const HOUR_MS: u64 = 3_600_000;

type Asked = Arc<Mutex<BTreeMap<String, u64>>>;

/// Serves a folder, and counts what is asked for.
async fn serve(folder: PathBuf) -> (SocketAddr, Asked) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let (address, asked) = (listener.local_addr().unwrap(), Asked::default());
    let counted = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (folder, asked) = (folder.clone(), Arc::clone(&counted));
            let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                let path = request.uri().path().to_owned();
                *asked.lock().entry(path.clone()).or_default() += 1;
                let name = if path == "/" { "index.html" } else { path.trim_start_matches('/') };
                let mime = if name.ends_with(".html") { "text/html" } else { "application/octet-stream" };
                let answer = match fs::read(folder.join(name)) {
                    Ok(body) => {
                        Response::builder().header("content-type", mime).body(Full::new(Bytes::from(body)))
                    }
                    Err(_) => Response::builder().status(404).body(Full::default()),
                };
                async move { Ok::<_, Infallible>(answer.unwrap()) }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service),
            );
        }
    });
    (address, asked)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn archives_say_what_to_read() {
    let (dir, site) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let write = |name: &str, text: &str, at_ms: u64| {
        let path = site.path().join(name);
        fs::write(&path, text).unwrap();
        let at = UNIX_EPOCH + Duration::from_millis(at_ms);
        File::options().write(true).open(path).unwrap().set_modified(at).unwrap();
    };
    for number in 0..120 {
        write(&format!("{number}.html"), &format!("<p>page {number}"), began - 1000 * HOUR_MS);
    }
    write("index.html", "<p>nothing links to the others", began - 1000 * HOUR_MS);
    export_site(site.path(), "http://site.test/").unwrap();
    let (address, asked) = serve(site.path().to_owned()).await;
    let clock = Arc::new(AtomicU64::new(began));
    let mut settings = settings(dir.path(), vec![Url::parse("http://site.test/").unwrap()]);
    let shown = Arc::clone(&clock);
    settings.fetch.clock = Arc::new(move || shown.load(Ordering::SeqCst));
    settings.schedule = Some(Schedule { bandwidth: 10_000.0, ..Schedule::default() });
    let (pages, control) = (Pages::default(), Control::default());
    let running = {
        let resolver = Arc::new(Given(HashMap::from([("site.test".to_owned(), address)])));
        let (pages, control) = (pages.clone(), control.clone());
        tokio::spawn(async move { crawl(settings, resolver, pages, control).await.unwrap() })
    };
    let reads = || {
        let asked = asked.lock();
        asked.iter().filter(|(path, _)| path.ends_with(".html")).map(|(_, count)| *count).sum::<u64>()
    };
    // Time goes on, some minutes at a time, until so many pages were read; or for a while.
    let until = async |count: u64, steps: u64| {
        for _ in 0..steps {
            clock.fetch_add(HOUR_MS / 4, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(70)).await;
            if reads() >= count {
                break;
            }
        }
    };
    until(120, 200).await;
    assert_eq!(reads(), 120, "{:?}", asked.lock());
    assert!(asked.lock().keys().any(|path| path.starts_with("/metadata/")));
    assert!(!asked.lock().contains_key("/sitemap.xml"), "archives say more");
    // A day without a change: nothing is asked for but the archives.
    until(u64::MAX, 96).await;
    assert_eq!(reads(), 120, "{:?}", asked.lock());
    // A page changes; the site describes itself again.
    let now = clock.load(Ordering::SeqCst);
    write("7.html", "<p>page 7 is another", now + 1000);
    export_site(site.path(), "http://site.test/").unwrap();
    until(121, 100).await;
    assert_eq!((reads(), asked.lock()["/7.html"]), (121, 2), "{:?}", asked.lock());
    control.stop();
    assert_eq!(running.await.unwrap(), Ended::Stopped);
    assert_eq!(pages.0.pages.lock()["http://site.test/7.html"].1, b"<p>page 7 is another");
}
