//! With a token nobody gets in without it; beyond this machine nothing is served without one.

use webbase::embedded::{Embedded, Options};
use webbase::gateway::Doors;
use webbase_node::Token;

use crate::rig::Rig;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_asked_for() {
    let rig = Rig::with(|options| {
        let (token, read_token) = (Some(Token::new([1; 32])), Some(Token::new([2; 32])));
        options.gateway.doors = Doors { token, read_token, ..Doors::default() };
    })
    .await;
    let bearer = |byte: &str| format!("Bearer {}", byte.repeat(32));
    let (all, read, wrong) = (bearer("01"), bearer("02"), bearer("03"));
    let refused = rig.get("/status").await;
    refused.is_problem(401, "token");
    assert_eq!(refused.header("www-authenticate"), "Bearer realm=\"webbase\"");
    for (method, token, status) in [
        ("GET", &all, 200),
        ("GET", &read, 200),
        ("GET", &wrong, 401),
        ("POST", &read, 403),
        ("POST", &all, 202),
    ] {
        let target = if method == "GET" { "/status" } else { "/cycle" };
        let answer = rig.ask(method, target, &[("Authorization", token), ("Content-Length", "0")]).await;
        assert_eq!(answer.status, status, "{method} {token}");
    }
    rig.is_well().await;
    let nowhere = rig.get("/nowhere").await;
    nowhere.is_problem(401, "token");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_unprotected_is_reached_from_other_machines() {
    let folder = tempfile::tempdir().unwrap();
    for token in [None, Some(Token::new([1; 32]))] {
        let mut options = Options::new(folder.path());
        options.gateway.listen = "0.0.0.0:0".parse().unwrap();
        options.gateway.doors.token = token;
        let Err(refused) = Embedded::start(options).await else { panic!("it listens") };
        assert!(format!("{refused:#}").contains("TLS"), "{refused:#}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_that_has_its_name_point_here_gets_nothing() {
    let rig = Rig::with(|options| options.gateway.doors.hosts = vec!["pages.internal".into()]).await;
    let port = rig.address().port();
    let ask = async |method: &str, target: &str, host: &str| {
        let origin = format!("Origin: http://{host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        rig.raw(format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{origin}").as_bytes()).await
    };
    // To the browser it is the site itself that answers: Origin and Host are the same.
    let evil = format!("evil.example:{port}");
    for (method, target) in [("GET", "/status"), ("GET", "/stream"), ("POST", "/cycle"), ("POST", "/nodes")] {
        let refused = ask(method, target, &evil).await;
        refused.is_problem(421, "host");
        assert!(!refused.headers.contains_key("access-control-allow-origin"), "{refused:?}");
    }
    for host in ["127.0.0.1", "localhost", "localhost.", "[::1]", "pages.internal"] {
        let host = format!("{host}:{port}");
        assert_eq!(ask("GET", "/status", &host).await.status, 200, "{host}");
        // One that begins, or is told that another runs, was let in.
        let begun = ask("POST", "/cycle", &host).await.status;
        assert!(begun == 202 || begun == 409, "{host}: {begun}");
    }
    // Tools that tell no name are no browsers.
    let old = rig.raw(b"GET /status HTTP/1.0\r\n\r\n").await;
    assert_eq!(old.status, 200);
}
