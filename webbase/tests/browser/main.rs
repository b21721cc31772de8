//! The console in a real browser: what it shows, what it does, and that a stored page cannot reach it. Pictures of it are kept in
//! target/screenshots.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod chromium;
mod processes;

use chromium::Browser;
use tempfile::TempDir;
use webbase::demo;
use webbase::embedded::{Embedded, Options};
use webbase_node::Cluster;
use webbase_storage::Page;
use webbase_web_in_a_box::Fetched;

/// A repository with the demo's world, and a browser; nothing where there is no browser.
async fn rig() -> Option<(Embedded, TempDir, Browser)> {
    let program = chromium::found()?;
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::new(folder.path());
    options.read_nodes = 2;
    let embedded = Embedded::start(options).await.unwrap();
    fill(embedded.cluster()).await;
    Some((embedded, folder, Browser::start(&program)))
}

/// Adds all pages of the demo's world as they are at first, and makes them visible.
async fn fill(cluster: &Cluster) {
    let (world, at_ms) = demo::world();
    let fetched: Vec<Fetched> = (0..world.pages()).filter_map(|page| world.fetch(page, at_ms)).collect();
    let pages = fetched.iter().map(|page| Page {
        url: &page.url,
        fetched_at_ms: at_ms,
        modified_at_ms: Some(page.modified_at_ms),
        status: 200,
        mime: page.mime,
        head: &page.head,
        body: &page.body,
        ..Page::default()
    });
    let added = cluster.add(&pages.collect::<Vec<_>>()).await.unwrap();
    assert!(added.refused.is_empty(), "{:?}", added.refused);
    cluster.cycle(|_| {}).await.unwrap();
}

fn page<'a>(url: &'a str, body: &'a [u8]) -> Page<'a> {
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n";
    Page {
        url,
        fetched_at_ms: 1_770_000_000_000,
        status: 200,
        mime: "text/html",
        head,
        body,
        ..Page::default()
    }
}

/// The number of the demo's pages and some more, as the console shows it.
fn pages(more: usize) -> String {
    let (world, at_ms) = demo::world();
    let count = (0..world.pages()).filter(|page| world.fetch(*page, at_ms).is_some()).count() + more;
    format!("{},{:03}", count / 1000, count % 1000)
}

fn shows_pages(more: usize) -> String {
    format!("document.getElementById('t-pages').textContent === '{}'", pages(more))
}

fn set(id: &str, value: &str) -> String {
    format!("document.getElementById('{id}').value = {}", serde_json::json!(value))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_console_shows_looks_up_browses_and_runs_a_cycle() {
    let Some((embedded, _folder, mut browser)) = rig().await else { return };
    browser.look_like(1280, 900, "light");
    browser.open(&format!("http://{}/", embedded.http()));
    browser.until(&shows_pages(0));
    browser.until("document.querySelectorAll('article.node[data-state=idle]').length === 3");
    browser.until("document.querySelectorAll('.chart canvas').length === 3");

    let (world, at_ms) = demo::world();
    browser.key("/");
    browser.until("document.activeElement.id === 'url'");
    browser.eval(&set("url", &world.url(0)));
    browser.eval("document.getElementById('lookup').requestSubmit()");
    browser.until("!document.getElementById('found').hidden");
    browser.until(&format!("document.querySelector('#about dd').textContent === {:?}", world.url(0)));
    browser.until("document.getElementById('head').textContent.startsWith('HTTP/1.1 200 OK')");
    browser.until("document.querySelectorAll('#links-out a').length > 2");
    // Whoever links here, by the world's own account, is told as soon as all links were gathered.
    let linking = (0..world.pages())
        .filter(|page| world.lives(*page, at_ms) && *page != 0 && world.links_at(*page, at_ms).contains(&0));
    let linking = linking.count();
    assert!(linking > 2, "{linking}");
    browser.until(&format!("document.getElementById('in-count').textContent === '{linking}'"));
    browser.until(&format!("document.querySelectorAll('#links-in a').length === {linking}"));
    browser.eval("document.getElementById('tab-in').click()");
    browser.until("document.getElementById('in-text').textContent === 'Of the pages of generation 1.'");
    browser.picture("links-in");
    // A link leads to the next page.
    browser.eval("document.querySelector('#links-out a:last-of-type').click()");
    browser.until("location.hash.startsWith('#lookup=')");
    browser.until(&format!("document.querySelector('#about dd').textContent !== {:?}", world.url(0)));
    browser.eval(&set("url", "http://not-there.example/"));
    browser.eval("document.getElementById('lookup').requestSubmit()");
    browser.until("document.getElementById('not-found').textContent.length > 10");
    // The answer 404 is what was asked for; the browser notes it as an error of the network.
    let noted = browser.complaints();
    assert!(noted.iter().all(|text| text.contains("404")), "{noted:?}");

    // The first cycle is over for good: what comes is the next one's.
    browser.until("document.querySelectorAll('#cycles tbody tr').length === 1");
    let new = page("http://new.example/", b"<p>new");
    embedded.cluster().add(&[new]).await.unwrap();
    browser.eval("document.getElementById('start-cycle').click()");
    browser.until("document.getElementById('cycle-text').textContent.startsWith('Generation 2 was made')");
    browser.until(&shows_pages(1));
    browser.until(&format!(
        "document.getElementById('classes-text').textContent.startsWith('1 new (C){} unchanged (B)0 replaced')",
        pages(0)
    ));

    browser.eval(&set("url", &world.url(0)));
    browser.eval("document.getElementById('lookup').requestSubmit()");
    browser.until("!document.getElementById('found').hidden");
    for (name, width, height) in [("desktop", 1280, 900), ("phone", 390, 844)] {
        for scheme in ["light", "dark"] {
            browser.look_like(width, height, scheme);
            let wide = browser.eval("document.documentElement.scrollWidth").as_u64().unwrap();
            assert!(wide <= width.into(), "{name}: the page is {wide} wide");
            browser.picture(&format!("console-{name}-{scheme}"));
        }
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
    drop(browser);
    embedded.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_node_is_added_and_drained_from_the_console() {
    let Some((embedded, folder, mut browser)) = rig().await else { return };
    browser.look_like(1280, 900, "light");
    browser.open(&format!("http://{}/", embedded.http()));
    browser.until("document.querySelectorAll('article.node[data-state=idle]').length === 3");
    browser.eval("window.confirm = () => true");
    browser.eval("document.querySelector('#add-node button').click()");
    browser.until("document.querySelectorAll('article.node').length === 4");
    assert!(folder.path().join("read-3").is_dir());
    let added = browser.eval("document.getElementById('node-text').textContent.slice(5, 13)");
    let added = added.as_str().unwrap().to_owned();
    let its = format!("article.node[data-node^=\"{added}\"]");
    browser.until(&format!("document.querySelector('{its}').innerText.includes('generation')"));
    // It gets its share with a cycle, and gives it back when it is drained.
    browser.eval("document.getElementById('start-cycle').click()");
    browser.until("document.getElementById('cycle-text').textContent.startsWith('Generation 2 was made')");
    browser.until(&format!("!document.querySelector('{its} button').disabled"));
    browser.eval(&format!("document.querySelector('{its} button').click()"));
    browser.until("document.querySelectorAll('article.node').length === 3");
    browser.until(&shows_pages(0));
    assert_eq!(browser.complaints(), Vec::<String>::new());
    drop(browser);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while folder.path().join("read-3").exists() {
        assert!(std::time::Instant::now() < until, "the drained node's folder is put aside");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    embedded.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hostile_page_cannot_touch_the_console() {
    const HOSTILE: &str = r#"<!doctype html><title>hostile</title>
<meta http-equiv="refresh" content="1;url=javascript:top.owned=1">
<base href="http://evil.example/" target="_top">
<script>
  top.owned = 1; parent.document.title = 'owned'; top.location = 'about:blank#owned';
  fetch('/cycle', {method: 'POST'}); localStorage.setItem('webbase-theme', 'owned'); alert(1);
</script>
<script src="/console/console.js"></script>
<svg onload="parent.owned=1"><script>parent.owned=1</script></svg>
<img src=x onerror="top.owned=1"><iframe srcdoc="<script>top.owned=1</script>"></iframe>
<form id=f action="/cycle" method="post"><input autofocus onfocus="document.getElementById('f').submit()"></form>
<a href="javascript:top.owned=1" id=a>x</a>
</textarea></script></style></title><script>parent.parent.owned = 1</script>"#;
    let Some((embedded, _folder, mut browser)) = rig().await else { return };
    let url = "http://hostile.example/\"><script>owned=1</script>";
    let pages = [page(url, HOSTILE.as_bytes()), page("http://hostile.example/", HOSTILE.as_bytes())];
    embedded.cluster().add(&pages).await.unwrap();
    let generation = embedded.cluster().cycle(|_| {}).await.unwrap();
    browser.look_like(1280, 900, "light");
    let console = format!("http://{}/", embedded.http());
    browser.open(&console);
    browser.until(&shows_pages(2));
    for url in [url, "http://hostile.example/"] {
        browser.eval("document.getElementById('found').hidden = true");
        browser.eval(&set("url", url));
        browser.eval("document.getElementById('lookup').requestSubmit()");
        browser.until("!document.getElementById('found').hidden");
        browser.until("document.getElementById('head').textContent.startsWith('HTTP/1.1 200')");
        // Longer than its refresh takes.
        browser.eval("new Promise((done) => setTimeout(done, 1500))");
        let touched = "[typeof window.owned, document.title, localStorage.getItem('webbase-theme')].join()";
        assert_eq!(browser.eval(touched), "undefined,webbase,");
        assert_eq!(browser.eval("location.href"), console.as_str());
    }
    browser.picture("hostile");
    // Opened by itself it is as harmless: nothing of it runs, and it has no origin.
    let target = format!("{console}page?url=http%3A%2F%2Fhostile.example%2F");
    browser.call("Page.navigate", serde_json::json!({"url": target}));
    browser.until("document.title === 'hostile'");
    // Timers do not run there either.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(browser.eval("document.title + window.origin"), "hostilenull");
    assert_eq!(browser.eval("typeof window.owned"), "undefined");
    let status = embedded.cluster().status().await.unwrap();
    assert_eq!((status.committed, status.cycle), (generation, None), "it started no cycle");
    drop(browser);
    embedded.shutdown().await.unwrap();
}

#[test]
fn a_killed_node_turns_down_and_returns() {
    let Some(program) = chromium::found() else { return };
    let mut repository = processes::Repository::start();
    let mut browser = Browser::start(&program);
    browser.look_like(1280, 900, "dark");
    browser.open(&repository.console());
    browser.until("document.querySelectorAll('article.node[data-state=idle]').length === 3");
    // Where nodes are processes the console tells how to start one.
    browser.eval("document.querySelector('#add-node button').click()");
    browser
        .until("document.getElementById('node-text').textContent.includes('webbase node --dir DIR --mgmt')");
    browser.complaints();
    repository.kill("r2");
    browser.until("document.querySelectorAll('article.node[data-state=down]').length === 1");
    browser.until("document.getElementById('summary').textContent.endsWith('is down')");
    browser.until("document.getElementById('t-nodes').textContent === '2 / 3'");
    browser.picture("node-down");
    repository.restart("r2");
    browser.until("document.querySelectorAll('article.node[data-state=idle]').length === 3");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn with_a_token_pages_are_shown_in_their_character_set_and_images_as_images() {
    const PIXEL: &[u8] =
        b"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let Some(program) = chromium::found() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::new(folder.path());
    options.gateway.doors.token = Some(webbase_node::Token::new([7; 32]));
    let embedded = Embedded::start(options).await.unwrap();
    let pixel = data_encoding::BASE64.decode(PIXEL).unwrap();
    let cyrillic: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=windows-1251\r\n\r\n";
    let image: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n";
    let plain: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n";
    let pages = [
        Page { head: cyrillic, ..page("http://a.example/", b"<p>\xcf\xf0\xe8\xe2\xe5\xf2") },
        Page { head: plain, ..page("http://b.example/", b"<meta charset='iso-8859-1'><p>caf\xe9") },
        Page { head: image, mime: "image/png", ..page("http://c.example/", &pixel) },
    ];
    let added = embedded.cluster().add(&pages).await.unwrap();
    assert_eq!(added.all().unwrap(), 3);
    embedded.cluster().cycle(|_| {}).await.unwrap();
    let mut browser = Browser::start(&program);
    browser.open(&format!("http://{}/", embedded.http()));
    browser.until("!document.getElementById('door').hidden");
    // Being asked for the token is what it complains of.
    browser.complaints();
    browser.eval(&format!("document.getElementById('door').elements.token.value = '{}'", "07".repeat(32)));
    browser.eval("document.getElementById('door').requestSubmit()");
    browser.until("document.getElementById('t-pages').textContent === '3'");
    let key = embedded.cluster().page_key("http://b.example/").unwrap();
    let long = format!("{:016x}{:016x}", key.id.0, key.tie);
    let view = "document.getElementById('view')";
    let image = "document.getElementById('view-image')";
    for (asked, shown) in [
        ("http://a.example/", format!("{view}.srcdoc.includes('Привет') && {image}.hidden")),
        (&*long, format!("{view}.srcdoc.includes('café') && {image}.hidden")),
        ("http://c.example/", format!("{image}.naturalWidth === 1 && {view}.hidden")),
        ("http://a.example/", format!("!{view}.hidden && {image}.hidden")),
    ] {
        browser.eval(&set("url", asked));
        browser.eval("document.getElementById('lookup').requestSubmit()");
        browser.until(&shown);
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
    drop(browser);
    embedded.shutdown().await.unwrap();
}
