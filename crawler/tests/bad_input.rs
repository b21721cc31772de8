//! Whatever sites do, each misdeed is bounded, counted and told, and the next page is fetched: every misbehaving site of the web in a
//! box, names that do not resolve, addresses that may not be reached, certificates that nobody signed.
//!
//! Real sockets on loopback, short limits.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use url::Url;
use webbase_crawler::fetcher::{
    Answer, By, Cut, FetchError, Fetcher, Limits, Politeness, Priority, Reach, Resolve, Resolving, Settings,
    UnpackLimits,
};
use webbase_crawler::loader;
use webbase_web_in_a_box::{Clock, Misbehaviour, Serving, WebBox, World};

const BEGAN: u64 = 1_700_000_000_000;

fn settings() -> Settings {
    let limits = Limits {
        dns_time: Duration::from_millis(300),
        connect_time: Duration::from_secs(2),
        head_time: Duration::from_millis(600),
        idle_time: Duration::from_millis(400),
        page_time: Duration::from_millis(900),
        body_bytes_max: 200_000,
        ..Limits::default()
    };
    let politeness =
        Politeness { delay: Duration::from_millis(1), address_delay: None, ..Politeness::default() };
    Settings { reach: Reach::Loopback, limits, politeness, ..Settings::default() }
}

async fn web(sites: Vec<(&str, Misbehaviour)>) -> Arc<WebBox> {
    let misbehaving = sites.into_iter().map(|(host, how)| (host.to_owned(), how)).collect();
    let serving = Serving { misbehaving, ..Serving::default() };
    let (clock, _) = Clock::discrete(BEGAN);
    Arc::new(WebBox::start(World::new(1, 60, BEGAN), clock, serving).await.unwrap())
}

fn fetcher(web: &Arc<WebBox>, settings: Settings) -> Fetcher {
    let web = Arc::clone(web);
    Fetcher::start(settings, Arc::new(By(move |host: &str, _| web.resolve(host)))).unwrap().0
}

async fn get(fetcher: &Fetcher, url: &str) -> Result<Answer, FetchError> {
    fetcher.fetch(Url::parse(url).unwrap(), Priority::User).await.result
}

/// Fetches `/page` of a site that misbehaves, and then a page of a site that does not.
async fn try_site(how: Misbehaviour) -> (Result<Answer, FetchError>, Fetcher) {
    let web = web(vec![("bad.test", how)]).await;
    let fetcher = fetcher(&web, settings());
    let got = get(&fetcher, "http://bad.test/page").await;
    let next = get(&fetcher, &web.world().url(0)).await;
    assert_eq!(next.map(|answer| answer.status), Ok(200), "the next page");
    (got, fetcher)
}

#[tokio::test]
async fn redirects_without_end() {
    let (got, fetcher) = try_site(Misbehaviour::EndlessRedirects).await;
    assert_eq!(got.unwrap_err(), FetchError::Redirects(10));
    assert_eq!(fetcher.counts().errors()["redirects"], 1);
}

#[tokio::test]
async fn redirects_to_where_nobody_may_go() {
    for (to, kind) in [
        ("file:///etc/passwd", "scheme"),
        ("ftp://bad.test/", "scheme"),
        ("http://10.1.2.3/", "private-address"),
        ("http://169.254.169.254/latest/meta-data", "private-address"),
        ("http://[::ffff:192.168.1.1]/", "private-address"),
        ("http://nowhere.test/", "dns"),
    ] {
        let (got, _) = try_site(Misbehaviour::RedirectTo(to.to_owned())).await;
        assert_eq!(got.unwrap_err().kind(), kind, "{to}");
    }
}

#[tokio::test]
async fn a_private_address_behind_a_name() {
    let resolver = By(|_: &str, port| Some(SocketAddr::from(([10, 0, 0, 1], port))));
    let (fetcher, _outcomes) = Fetcher::start(settings(), Arc::new(resolver)).unwrap();
    assert_eq!(get(&fetcher, "http://inside.example/").await.unwrap_err().kind(), "private-address");
    let loopback = By(|_: &str, port| Some(SocketAddr::from(([127, 0, 0, 1], port))));
    let public_only = Settings { reach: Reach::Public, ..settings() };
    let (fetcher, _outcomes) = Fetcher::start(public_only, Arc::new(loopback)).unwrap();
    assert_eq!(get(&fetcher, "http://here.example/").await.unwrap_err().kind(), "private-address");
}

#[tokio::test]
async fn others_sites_need_a_contact() {
    let resolver = By(|_: &str, port| Some(SocketAddr::from(([192, 0, 32, 10], port))));
    let (fetcher, _outcomes) = Fetcher::start(settings(), Arc::new(resolver)).unwrap();
    assert_eq!(get(&fetcher, "http://far.example/").await.unwrap_err().kind(), "no-contact");
}

#[tokio::test]
async fn bytes_that_come_now_and_then() {
    let (got, _) = try_site(Misbehaviour::SlowBytes(Duration::from_millis(100))).await;
    let answer = got.unwrap();
    assert_eq!(answer.cut, Some(Cut::Time));
    assert!(!answer.body.is_empty());
    assert!(answer.stored_head().ends_with(b"\r\nX-Webbase-Cut: time\r\n\r\n"));
    let (got, _) = try_site(Misbehaviour::SlowBytes(Duration::from_secs(60))).await;
    assert_eq!(got.unwrap().cut, Some(Cut::Time));
    let (got, _) = try_site(Misbehaviour::SlowHead(Duration::from_millis(50))).await;
    assert_eq!(got.unwrap_err().kind(), "time");
    let (got, _) = try_site(Misbehaviour::Silent).await;
    assert_eq!(got.unwrap_err().kind(), "time");
}

#[tokio::test]
async fn what_is_no_answer() {
    let (got, _) = try_site(Misbehaviour::HangsUp).await;
    assert_eq!(got.unwrap_err().kind(), "protocol");
    let (got, _) = try_site(Misbehaviour::Garbage).await;
    assert_eq!(got.unwrap_err().kind(), "protocol");
    let (got, _) = try_site(Misbehaviour::EndlessHead).await;
    assert_eq!(got.unwrap_err().kind(), "long-head");
}

#[tokio::test]
async fn bodies_without_end_and_wrong_lengths() {
    let (got, fetcher) = try_site(Misbehaviour::EndlessBody).await;
    let answer = got.unwrap();
    assert_eq!((answer.cut, answer.body.len()), (Some(Cut::Length), 200_000));
    assert_eq!(fetcher.counts().cut(), 1);
    let (got, _) = try_site(Misbehaviour::TooShort(10)).await;
    assert_eq!(got.unwrap().cut, Some(Cut::Disconnect));
    let (got, _) = try_site(Misbehaviour::TooLong(10)).await;
    let answer = got.unwrap();
    assert!(answer.cut.is_none() && answer.body.ends_with(b"</html>"));
}

#[tokio::test]
async fn gzip_that_is_a_bomb_or_none() {
    let (got, _) = try_site(Misbehaviour::GzipBomb(64 << 20)).await;
    let answer = got.unwrap();
    assert!(answer.body.len() <= 200_000, "kept as it came, within the limit");
    let unpacked = answer.unpacked(UnpackLimits { bytes_max: 1 << 20, ratio_max: 200 });
    assert_eq!(unpacked.bytes.len(), 1 << 20);
    assert!(unpacked.trouble.is_some());
    let (got, _) = try_site(Misbehaviour::BrokenGzip).await;
    let answer = got.unwrap();
    assert!(answer.unpacked(UnpackLimits::default()).trouble.is_some());
}

#[tokio::test]
async fn robots_files_that_are_none() {
    let web = web(vec![
        ("huge.test", Misbehaviour::HugeRobots(100 << 20)),
        ("html.test", Misbehaviour::HtmlRobots),
        ("error.test", Misbehaviour::RobotsStatus(500)),
        ("busy.test", Misbehaviour::RobotsStatus(429)),
        ("none.test", Misbehaviour::RobotsStatus(403)),
    ])
    .await;
    let fetcher = fetcher(&web, settings());
    let kind = async |url: &str| get(&fetcher, url).await.map(|answer| answer.status).map_err(|e| e.kind());
    assert_eq!(kind("http://huge.test/private/1").await, Err("robots"));
    assert_eq!(kind("http://huge.test/else").await, Ok(200));
    assert_eq!(kind("http://html.test/").await, Ok(200));
    assert_eq!(kind("http://none.test/").await, Ok(200));
    assert_eq!(kind("http://error.test/").await, Err("robots-unreachable"));
    assert_eq!(kind("http://busy.test/").await, Err("robots-unreachable"));
    assert!(!web.visits().iter().any(|visit| visit.path == "/private/1"));
}

#[tokio::test]
async fn types_that_are_not_wanted() {
    let web = web(vec![("pictures.test", Misbehaviour::WrongMime)]).await;
    let html_only = Settings { wants: Arc::new(|mime| mime == "text/html"), ..settings() };
    let fetcher = fetcher(&web, html_only);
    assert!(get(&fetcher, "http://pictures.test/x").await.is_ok(), "it is called HTML, and kept");
    let feed = (0..60).find(|page| web.world().kind(*page).mime() != "text/html").unwrap();
    assert_eq!(get(&fetcher, &web.world().url(feed)).await.unwrap_err().kind(), "mime");
}

/// A resolver that never answers.
struct Mute;

impl Resolve for Mute {
    fn resolve<'a>(&'a self, _: &'a str, _: u16) -> Resolving<'a> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn dns_that_never_answers() {
    let (fetcher, _outcomes) = Fetcher::start(settings(), Arc::new(Mute)).unwrap();
    assert_eq!(get(&fetcher, "http://mute.example/").await.unwrap_err().kind(), "dns");
    assert!(fetcher.site("mute.example").is_some());
}

#[tokio::test]
async fn certificates_that_nobody_signed() {
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let made = rcgen::generate_simple_self_signed(vec!["own.test".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![CertificateDer::from(made.cert.der().to_vec())], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let _ = acceptor.accept(socket).await;
        }
    });
    let (fetcher, _outcomes) =
        Fetcher::start(settings(), Arc::new(By(move |_: &str, _| Some(address)))).unwrap();
    let got = get(&fetcher, "https://own.test/").await.unwrap_err();
    assert!(matches!(got.kind(), "tls" | "robots-unreachable"), "{got}");
    assert!(got.to_string().contains("TLS"), "{got}");
    serving.abort();
}

#[tokio::test]
async fn xml_that_blows_up() {
    let (got, _) = try_site(Misbehaviour::EntityBomb).await;
    let base = Url::parse("http://bad.test/page").unwrap();
    assert_eq!(loader::read(&got.unwrap().body, &base).unwrap_err().kind(), "entity-bomb");
    let (got, fetcher) = try_site(Misbehaviour::ExternalEntity).await;
    let loaded = loader::load(&fetcher, &got.unwrap().body, &base).await.unwrap();
    assert_eq!(loaded.document.entities[0].scheme(), "file");
    assert!(loaded.parts.is_empty(), "named, never read");
}

#[tokio::test]
async fn heads_are_kept_exactly() {
    let web = web(Vec::new()).await;
    let fetcher = fetcher(&web, settings());
    let answer = get(&fetcher, &web.world().url(0)).await.unwrap();
    let head = String::from_utf8(answer.head.clone()).unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    assert_eq!(answer.body, web.world().fetch(0, BEGAN).unwrap().body);
    let again = get(&fetcher, &web.world().url(0)).await.unwrap();
    let dateless = |head: &[u8]| {
        let text = String::from_utf8_lossy(head).into_owned();
        text.lines().filter(|line| !line.starts_with("date")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(dateless(&again.head), dateless(&answer.head), "also over a connection that was kept");
}
