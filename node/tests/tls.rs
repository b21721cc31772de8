//! Connections under TLS, with certificates made on the spot: pages pass, strangers don't, and only so may a server listen
//! beyond loopback.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic"
)]

mod common;

use common::{Node, body, new_store, page, url};
use webbase_node::{
    Client, ClientSettings, ClientTls, Server, ServerTls, Service, Settings, StreamRequest, Token,
};
use webbase_storage::{Compression, Organization};

fn certificate() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(vec!["node.test".to_owned()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

#[tokio::test]
async fn pages_pass_under_tls() {
    let (chain, key) = certificate();
    let tls = Some(ServerTls::from_pem(chain.as_bytes(), key.as_bytes()).unwrap());
    let node =
        Node::with(Organization::Log, Compression::None, Settings { tls, ..Settings::default() }).await;
    let settings = |authority: &str, name| ClientSettings {
        tls: Some(ClientTls::from_pem(authority.as_bytes(), name).unwrap()),
        ..ClientSettings::default()
    };
    let client = Client::connect(node.address(), settings(&chain, "node.test")).await.unwrap();
    let mut add = client.add_pages().unwrap();
    for n in 0..500 {
        add.page(&page(&url(n), &body(n, 20_000))).await.unwrap();
    }
    assert_eq!(add.finish().await.unwrap().added.new, 500);
    let mut reader = client.stream(&StreamRequest::default()).unwrap();
    let mut count = 0;
    while let Some(record) = reader.next().await {
        record.unwrap();
        count += 1;
    }
    assert_eq!(count, 500);

    let other = certificate().0;
    assert!(
        Client::connect(node.address(), settings(&other, "node.test")).await.is_err(),
        "another authority"
    );
    assert!(Client::connect(node.address(), settings(&chain, "other.test")).await.is_err(), "another name");
    assert!(Client::connect(node.address(), ClientSettings::default()).await.is_err(), "no TLS");
    client.ping().await.unwrap();
}

#[tokio::test]
async fn with_token_and_tls_a_server_may_listen_anywhere() {
    let (chain, key) = certificate();
    let tls = Some(ServerTls::from_pem(chain.as_bytes(), key.as_bytes()).unwrap());
    let (_folder, store) = new_store(Organization::Log, Compression::None);
    let token = Some(Token::new([3; 32]));
    let settings = Settings { tls, token: token.clone(), ..Settings::default() };
    let server =
        Server::start("0.0.0.0:0".parse().unwrap(), Service::of_store(store), settings).await.unwrap();
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], server.address().port()));
    let tls = Some(ClientTls::from_pem(chain.as_bytes(), "node.test").unwrap());
    let right = ClientSettings { tls: tls.clone(), token, ..ClientSettings::default() };
    Client::connect(address, right).await.unwrap().ping().await.unwrap();
    let wrong = ClientSettings { tls, ..ClientSettings::default() };
    assert!(Client::connect(address, wrong).await.is_err());
}

#[test]
fn bad_pem_is_an_error() {
    let (chain, key) = certificate();
    assert!(ServerTls::from_pem(b"", key.as_bytes()).is_err());
    assert!(ServerTls::from_pem(chain.as_bytes(), b"nonsense").is_err());
    assert!(
        ServerTls::from_pem(chain.as_bytes(), certificate().1.as_bytes()).is_err(),
        "of another certificate"
    );
    assert!(ClientTls::from_pem(b"nothing", "node.test").is_err());
    assert!(ClientTls::from_pem(chain.as_bytes(), "no name!").is_err());
}
