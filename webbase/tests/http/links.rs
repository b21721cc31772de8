//! Where pages lead, and which lead to them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use webbase_storage::Page;

use crate::rig::{Rig, encoded};

fn page<'a>(url: &'a str, mime: &'a str, body: &'a str) -> Page<'a> {
    Page { url, mime, body: body.as_bytes(), status: 200, fetched_at_ms: 5, ..Page::default() }
}

async fn links(rig: &Rig, url: &str) -> Value {
    let answer = rig.get(&format!("/links?url={}", encoded(url))).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_lead_out_and_in() {
    let rig = Rig::start().await;
    let home = "<a href='/b'>b</a> <a href='c.html#x'>c</a> <a href='http://elsewhere.example/'>e</a> <a href='/'>me</a>";
    rig.add(&[
        page("http://a.example/", "text/html", home),
        page("http://a.example/b", "text/html", "no links, and <b>A HREF</b>"),
        page("http://a.example/c.html", "text/html", "<a href='HTTP://A.example:80/b'>b</a>"),
        page("http://a.example/d.txt", "text/plain", "<a href='/b'>"),
    ])
    .await;
    let until = Instant::now() + Duration::from_secs(30);
    let to_b = loop {
        let links = links(&rig, "http://a.example/b").await;
        assert_eq!(links["out"], json!({"count": 0, "urls": []}));
        if !links["in"].is_null() {
            break links["in"].clone();
        }
        assert!(Instant::now() < until, "the links are never gathered");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let mut from: Vec<&str> =
        to_b["urls"].as_array().unwrap().iter().map(|url| url.as_str().unwrap()).collect();
    from.sort_unstable();
    assert_eq!(from, ["http://a.example/", "http://a.example/c.html"]);
    assert_eq!(
        (&to_b["count"], &to_b["generation"], &to_b["is_whole"]),
        (&2.into(), &1.into(), &true.into())
    );
    let of_home = links(&rig, "a.example").await;
    let out =
        ["http://a.example/b", "http://a.example/c.html", "http://elsewhere.example/", "http://a.example/"];
    assert_eq!(of_home["out"], json!({"count": 4, "urls": out}));
    assert_eq!(of_home["in"]["count"], 0, "a page that leads to itself says nothing");
    // What is not stored can be linked to all the same.
    let elsewhere = links(&rig, "http://elsewhere.example/").await;
    assert_eq!((&elsewhere["out"], &elsewhere["in"]["urls"]), (&Value::Null, &json!(["http://a.example/"])));
    rig.get("/links").await.is_problem(400, "no-url");
    assert_eq!(rig.get("/links?url=%00").await.status, 400);
}
