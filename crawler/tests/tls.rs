//! HTTPS: HTTP/2 and HTTP/1.1 as the site offers it, many pages over one connection, in the site's own turn; and certificates that do not
//! verify: of nobody, of another name, of another time. Each is bounded, counted and told, and the next site is read.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use url::Url;
use webbase_crawler::fetcher::{
    Answer, FetchError, Fetcher, Given, Known, Limits, Outcome, Politeness, Priority, Reach, Settings, Wanted,
};

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Somebody who signs certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    own: CertificateDer<'static>,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let own = CertificateDer::from(params.self_signed(&key).unwrap().der().to_vec());
        Authority { issuer: Issuer::new(params, key), own }
    }

    /// A server's side for a name; `past` for a certificate whose time is over.
    fn server(&self, name: &str, protocols: &[&str], past: bool) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        if past {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        }
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        let chain = vec![CertificateDer::from(signed.der().to_vec())];
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(provider());
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let mut config = config.with_single_cert(chain, key).unwrap();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }

    /// The side of a client that believes it.
    fn client(&self) -> Arc<rustls::ClientConfig> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.own.clone()).unwrap();
        let config = rustls::ClientConfig::builder_with_provider(provider());
        let config = config.with_safe_default_protocol_versions().unwrap();
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    }
}

/// A site behind TLS: where it is, and how many connections it took.
async fn site(acceptor: TlsAcceptor) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let (address, connections) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (acceptor, count) = (acceptor.clone(), Arc::clone(&count));
            tokio::spawn(async move {
                let Ok(socket) = acceptor.accept(socket).await else { return };
                count.fetch_add(1, Ordering::SeqCst);
                let is_two = socket.get_ref().1.alpn_protocol() == Some(b"h2");
                let (io, service) = (TokioIo::new(socket), service_fn(answer));
                let _ = if is_two {
                    let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    builder.serve_connection(io, service).await
                } else {
                    hyper::server::conn::http1::Builder::new().serve_connection(io, service).await
                };
            });
        }
    });
    (address, connections)
}

async fn answer(request: Request<hyper::body::Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let response = Response::builder().header("content-type", "text/html").header("etag", "\"one\"");
    let unchanged = request.headers().get("if-none-match").is_some_and(|tag| tag == "\"one\"");
    Ok(match request.uri().path() {
        "/robots.txt" => Response::builder().status(404).body(Full::default()),
        "/moved" => Response::builder().status(301).header("location", "/page").body(Full::default()),
        "/endless" => response.body(Full::new(Bytes::from(vec![b'x'; 1 << 20]))),
        _ if unchanged => response.status(304).body(Full::default()),
        path => response.body(Full::new(format!("<p>{path}").into())),
    }
    .unwrap())
}

fn settings(tls: Arc<rustls::ClientConfig>) -> Settings {
    let politeness =
        Politeness { delay: Duration::from_millis(1), address_delay: None, ..Politeness::default() };
    let limits = Limits { body_bytes_max: 100_000, ..Limits::default() };
    Settings { reach: Reach::Loopback, politeness, limits, tls: Some(tls), ..Settings::default() }
}

async fn get(fetcher: &Fetcher, url: &str) -> Result<Answer, FetchError> {
    fetcher.fetch(Url::parse(url).unwrap(), Priority::User).await.result
}

#[tokio::test]
async fn both_versions_of_http_over_kept_connections() {
    let authority = Authority::new("known");
    for (protocols, is_two) in [(&["h2", "http/1.1"][..], true), (&["http/1.1"], false), (&[], false)] {
        let (address, connections) = site(authority.server("own.test", protocols, false)).await;
        let hosts = HashMap::from([("own.test".to_owned(), address)]);
        let (fetcher, mut outcomes) =
            Fetcher::start(settings(authority.client()), Arc::new(Given(hosts))).unwrap();
        for number in 0..20 {
            let answer = get(&fetcher, &format!("https://own.test/{number}?x=1")).await.unwrap();
            assert_eq!((answer.status, answer.is_http2), (200, is_two));
            assert_eq!(answer.body, format!("<p>/{number}").into_bytes());
            let head = String::from_utf8(answer.head.clone()).unwrap();
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
            assert!(head.to_ascii_lowercase().contains("\r\ncontent-type: text/html\r\n"), "{head}");
        }
        assert_eq!(connections.load(Ordering::SeqCst), 1, "{protocols:?}");
        let moved = fetcher.fetch(Url::parse("https://own.test/moved").unwrap(), Priority::User).await;
        assert_eq!((moved.wanted.url.path(), moved.wanted.redirects), ("/page", 1));
        let known = Known { etag: Some("\"one\"".to_owned()), modified_at_ms: None };
        let url = Url::parse("https://own.test/1").unwrap();
        fetcher.want(Wanted { known, ..Wanted::new(url, Priority::Refresh) });
        let Outcome { result, .. } = outcomes.recv().await.unwrap();
        assert_eq!(result.unwrap().status, 304);
        let cut = get(&fetcher, "https://own.test/endless").await.unwrap();
        assert!(cut.cut.is_some() && cut.body.len() == 100_000);
        assert_eq!(get(&fetcher, "https://own.test/after").await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn certificates_that_do_not_verify() {
    let (authority, stranger) = (Authority::new("known"), Authority::new("stranger"));
    let protocols = &["h2", "http/1.1"];
    let mut hosts = HashMap::new();
    for (host, acceptor) in [
        ("good.test", authority.server("good.test", protocols, false)),
        ("stranger.test", stranger.server("stranger.test", protocols, false)),
        ("other.test", authority.server("another.test", protocols, false)),
        ("past.test", authority.server("past.test", protocols, true)),
    ] {
        hosts.insert(host.to_owned(), site(acceptor).await.0);
    }
    // A site that speaks no TLS at all.
    let plain = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    hosts.insert("plain.test".to_owned(), plain.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = plain.accept().await {
            let _ = tokio::io::AsyncWriteExt::write_all(&mut socket, b"HTTP/1.1 400 Bad\r\n\r\n").await;
        }
    });
    // With robots files every page of such a site is out of reach because its robots file is; without, the page tells itself.
    for robots in [true, false] {
        let settings = Settings { robots, ..settings(authority.client()) };
        let (fetcher, _outcomes) = Fetcher::start(settings, Arc::new(Given(hosts.clone()))).unwrap();
        for (host, words) in [
            ("stranger.test", "UnknownIssuer"),
            ("other.test", "not valid for name"),
            ("past.test", "expired"),
            ("plain.test", "TLS"),
        ] {
            let e = get(&fetcher, &format!("https://{host}/")).await.unwrap_err();
            assert_eq!(e.kind(), if robots { "robots-unreachable" } else { "tls" }, "{host}: {e}");
            assert!(e.to_string().contains(words), "{host}: {e}");
            assert_eq!(get(&fetcher, "https://good.test/").await.unwrap().status, 200);
        }
        let counted: u64 = fetcher.counts().errors().values().sum();
        assert_eq!(counted, 4);
    }
}
