//! With a token nobody gets in without it; beyond this machine nothing is served without one.

use webbase::embedded::{Embedded, Options};
use webbase::gateway::Doors;
use webbase_node::Token;

use crate::rig::Rig;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_asked_for() {
    let rig = Rig::with(|options| {
        let (token, read_token) = (Some(Token::new([1; 32])), Some(Token::new([2; 32])));
        options.gateway.doors = Doors { token, read_token };
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
