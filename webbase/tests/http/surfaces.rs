//! What operators and programs see: status, metrics, health, the description, cycles, streams.

use serde_json::Value;
use webbase_storage::Page;

use crate::rig::{Rig, page_of};

fn numbered(count: usize) -> Vec<(String, Vec<u8>)> {
    let body =
        |n: usize| if n.is_multiple_of(3) { vec![255, n as u8] } else { format!("<p>page {n}").into_bytes() };
    (0..count).map(|n| (format!("http://site-{}.example/{n}", n % 5), body(n))).collect()
}

fn as_pages(all: &[(String, Vec<u8>)]) -> Vec<Page<'_>> {
    all.iter().map(|(url, body)| Page { url, body, fetched_at_ms: 5, ..Page::default() }).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_moves_and_a_cycle_can_be_begun() {
    let rig = Rig::start().await;
    let status = rig.get("/status").await;
    assert_eq!((status.status, status.header("content-type")), (200, "application/json"));
    assert_eq!((&status.json()["serving"], status.json()["nodes"].as_array().unwrap().len()), (&0.into(), 2));
    let added = numbered(20);
    assert_eq!(rig.embedded.cluster().add(&as_pages(&added)).await.unwrap().all().unwrap(), 20);
    let target = page_of(&added[1].0);
    rig.get(&target).await.is_problem(404, "no-page");
    let begun = rig.ask("POST", "/cycle", &[("Content-Length", "0")]).await;
    assert_eq!((begun.status, begun.header("location")), (202, "/status"));
    assert_eq!((&begun.json()["cycle"], &begun.json()["committed_before"]), (&1.into(), &0.into()));
    loop {
        let status = rig.get("/status").await.json();
        if status["serving"] == 1 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    // Whoever saw that finds the pages.
    assert_eq!(rig.get(&target).await.text(), "<p>page 1");
    let done = rig.ask("POST", "/cycle?wait=1", &[("Content-Length", "0")]).await;
    assert_eq!((done.status, &done.json()["generation"]), (200, &2.into()));
    let (early, late) = (rig.get("/status").await.json(), rig.get("/status").await.json());
    assert!(late["gateway"]["requests"].as_u64() > early["gateway"]["requests"].as_u64());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_health_and_description() {
    let rig = Rig::start().await;
    assert_eq!(rig.get("/readyz").await.status, 200);
    rig.get("/page?url=http://h/secret-path").await.is_problem(404, "no-page");
    rig.get("/nowhere").await.is_problem(404, "no-route");
    let metrics = rig.get("/metrics").await;
    assert_eq!(metrics.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    let text = metrics.text();
    for line in [
        "webbase_http_requests_total{route=\"/page\",method=\"GET\",status=\"404\"} 1",
        "webbase_http_requests_total{route=\"none\",method=\"GET\",status=\"404\"} 1",
        "webbase_nodes{role=\"read\",state=\"idle\"} 1",
        "webbase_generation_serving 0",
        "webbase_management_up 1",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    assert!(!text.contains("secret-path"), "no label is a client's");
    let open = rig.ask("GET", "/metrics", &[("Accept", "application/openmetrics-text; version=1.0.0")]).await;
    assert!(open.header("content-type").starts_with("application/openmetrics-text"));
    assert!(open.text().ends_with("# EOF\n"));

    let document = rig.get("/openapi.json").await.json();
    assert_eq!(document["openapi"], "3.1.0");
    for (path, methods) in document["paths"].as_object().unwrap() {
        // This one never ends.
        if path == "/console/events" {
            continue;
        }
        let target = path.replace("{id}", "0000000000000001").replace(['{', '}'], "");
        for method in methods.as_object().unwrap().keys() {
            let fields = [("Content-Length", "0")];
            let answer = rig.ask(&method.to_uppercase(), &target, &fields).await;
            let code = (answer.header("content-type") == "application/problem+json").then(|| answer.json());
            let code = code.map_or(Value::Null, |problem| problem["code"].clone());
            assert!(code != "no-route" && code != "method", "{method} {path} is described and not there");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_gives_every_page_once_and_goes_on_behind_a_cursor() {
    let rig = Rig::start().await;
    let added = numbered(300);
    rig.add(&as_pages(&added)).await;
    let whole = rig.ask("GET", "/stream?format=jsonl", &[("TE", "trailers")]).await;
    assert_eq!((whole.status, whole.header("content-type")), (200, "application/jsonl"));
    let lines: Vec<Value> = whole.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (end, pages) = lines.split_last().unwrap();
    assert_eq!((&end["end"], &end["pages"], pages.len()), (&true.into(), &300.into(), 300));
    let mut found: Vec<(String, Vec<u8>)> = pages
        .iter()
        .map(|page| {
            let body = match &page["body"] {
                Value::String(text) => text.clone().into_bytes(),
                _ => data_encoding::BASE64.decode(page["body_base64"].as_str().unwrap().as_bytes()).unwrap(),
            };
            (page["url"].as_str().unwrap().to_owned(), body)
        })
        .collect();
    found.sort();
    let mut expected = added.clone();
    expected.sort();
    assert!(found == expected);
    // The last cursor has nothing behind it.
    let cursor = whole.trailers.get("webbase-cursor").expect("a trailer, for who takes trailers");
    assert_eq!(end["cursor"], **cursor);
    let rest = rig.get(&format!("/stream?format=jsonl&cursor={cursor}")).await;
    assert_eq!(rest.text().lines().count(), 1, "{}", rest.text());
    let count = rig.get("/stream?format=count").await.json();
    assert_eq!(
        (&count["generation"], &count["pages"], &count["damaged"]),
        (&1.into(), &300.into(), &0.into())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_sends_what_is_asked_for_in_the_order_asked_for() {
    let rig = Rig::start().await;
    let texts: Vec<(String, u64)> = (0..120)
        .map(|n| (format!("http://h{}.example.{}/{n}", n % 5, ["edu", "org"][n % 2]), n as u64))
        .collect();
    let pages: Vec<webbase_storage::Page<'_>> = texts
        .iter()
        .map(|(url, n)| webbase_storage::Page {
            url,
            body: b"<p>body",
            head: b"HTTP/1.1 200 OK\r\n\r\n",
            mime: "text/html",
            status: if n % 3 == 0 { 404 } else { 200 },
            fetched_at_ms: 1_000_000 + (n * 7919) % 1000,
            ..Default::default()
        })
        .collect();
    rig.add(&pages).await;
    let stream = async |query: &str| -> (Vec<Value>, String) {
        let answer = rig.get(&format!("/stream?format=jsonl&{query}")).await;
        assert_eq!(answer.status, 200, "{query}: {}", answer.text());
        let lines: Vec<Value> =
            answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let (end, pages) = lines.split_last().unwrap();
        (pages.to_vec(), end["cursor"].as_str().unwrap_or_default().to_owned())
    };
    let query = "domain=edu&status=4xx&order=fetched&what=without-body";
    let (found, _) = stream(query).await;
    let mut expected: Vec<(u64, &str)> = texts
        .iter()
        .filter(|(url, n)| url.contains(".edu/") && n % 3 == 0)
        .map(|(url, n)| (1_000_000 + (n * 7919) % 1000, url.as_str()))
        .collect();
    expected.sort_by_key(|(at, _)| *at);
    let times: Vec<u64> = found.iter().map(|page| page["fetched_at_ms"].as_u64().unwrap()).collect();
    assert_eq!(times, expected.iter().map(|(at, _)| *at).collect::<Vec<_>>());
    assert!(found.iter().all(|page| page.get("body").is_none() && page["head"].is_string()), "{found:?}");
    // Stopped after some pages, its cursor says the rest, whatever else is said.
    let (first, cursor) = stream(&format!("{query}&limit=7")).await;
    assert_eq!(first, found[..7]);
    assert_eq!(stream(&format!("cursor={cursor}")).await.0, found[7..]);
    assert_eq!(stream(&format!("{query}&cursor={cursor}&go_on=1")).await.0, found[7..]);
    let other = rig.get(&format!("/stream?domain=org&cursor={cursor}")).await;
    assert_eq!((other.status, other.json()["code"].as_str()), (400, Some("other-stream")));
    let mut parts = 0;
    for part in 1..=3 {
        parts += stream(&format!("part={part}/3&shared=1")).await.0.len();
    }
    assert_eq!(parts, 120);
    let unknown = rig.get("/stream?order=importance").await;
    assert_eq!(unknown.status, 400, "{}", unknown.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_few_hosts_reads_little_else() {
    let rig = Rig::with(|options| options.compression = webbase_storage::Compression::None).await;
    let body = "x".repeat(4000).into_bytes();
    let urls: Vec<String> = (0..400).map(|n| format!("http://www.h{}.example/{n}", n % 40)).collect();
    let pages: Vec<Page<'_>> =
        urls.iter().map(|url| Page { url, body: &body, fetched_at_ms: 5, ..Page::default() }).collect();
    rig.add(&pages).await;
    let mut sent = 0;
    for (query, expected) in [
        ("order=url", 400),
        ("host=www.h7.example&order=url", 10),
        ("domain=h7.example&domain=h8.example&order=fetched", 20),
        ("prefix=http://www.h7.example/7&order=id", 1),
        // No host is named so: keys of the index do not tell.
        ("host=h7.example&order=url", 0),
    ] {
        let streamed = async || {
            let status = rig.get("/status").await.json();
            let figure = |name: &str| -> u64 {
                let nodes = status["nodes"].as_array().unwrap();
                nodes.iter().filter_map(|node| node["figures"][name].as_u64()).sum()
            };
            (figure("streamed_pages"), figure("scanned_bytes"))
        };
        let (_, before) = streamed().await;
        let answer = rig.get(&format!("/stream?format=jsonl&{query}")).await;
        let text = answer.text();
        let found: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(found.len(), expected + 1, "{query}: {text}");
        // Cursors go on wherever the pages were found.
        if expected == 20 {
            let some = rig.get(&format!("/stream?format=jsonl&{query}&limit=7")).await.text();
            let last: Value = serde_json::from_str(some.lines().last().unwrap()).unwrap();
            let rest =
                rig.get(&format!("/stream?format=jsonl&cursor={}", last["cursor"].as_str().unwrap())).await;
            assert_eq!(rest.text().lines().count(), 13 + 1);
            sent += 20;
        }
        // A node tells its figures a moment later.
        sent += expected as u64;
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let read = loop {
            let (pages, bytes) = streamed().await;
            if pages >= sent {
                break bytes - before;
            }
            assert!(std::time::Instant::now() < until, "{query}: {pages} of {sent} pages are told");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        };
        if (1..400).contains(&expected) {
            assert!(read < 400 * 4000 / 2, "{query} read {read} bytes");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_on_several_nodes_are_counted_once() {
    let rig = Rig::with(|options| {
        (options.read_nodes, options.update_nodes, options.replicas) = (2, 2, 2);
    })
    .await;
    rig.add(&as_pages(&numbered(30))).await;
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    // Nodes tell their figures a moment later, and a cycle is listed when they have.
    let status = loop {
        let status = rig.get("/status").await.json();
        if status["pages"] == 30 && !status["cycles"][0]["classes"].is_null() {
            break status;
        }
        assert!(std::time::Instant::now() < until, "{status:#}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    let nodes = status["nodes"].as_array().unwrap().iter().filter(|node| node["role"] == "read");
    assert_eq!(nodes.filter_map(|node| node["figures"]["pages"].as_u64()).sum::<u64>(), 60);
    assert_eq!(status["replicas"], 2.0);
    assert_eq!(status["ranges"], serde_json::json!({"all": 8, "unread": 0, "unwritten": 0}));
    assert_eq!(status["cycles"][0]["classes"], serde_json::json!({"a": 0, "b": 0, "c": 30}));
}
