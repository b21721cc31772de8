//! The CDX server API in its dialects, the WARC files that its lines name, and Memento, over a repository of several nodes.

use std::io::Read;

use webbase_storage::Page;

use crate::rig::{Answer, Rig, encoded};

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nSet-Cookie: a=b\r\n\r\n";
const AT: u64 = 1_700_000_000_000; // 20231114221320

/// 60 pages of one host, some of others, spread over two nodes.
async fn filled() -> Rig {
    let rig = Rig::with(|options| options.read_nodes = 2).await;
    let urls: Vec<String> = (0..60).map(|n| format!("http://example.org/docs/{n:02}")).collect();
    let bodies: Vec<String> = (0..60).map(|n| format!("<p>page {n}")).collect();
    let page = |url, body: &'static [u8], at| Page {
        url,
        head: HEAD,
        body,
        status: 200,
        mime: "text/html",
        fetched_at_ms: AT + at,
        payload_digest: Some([7; 20]),
        ..Page::default()
    };
    let mut pages = vec![
        page("http://example.org/", b"home", 0),
        page("https://www.example.org/A", b"upper", 5_000),
        page("http://example.org/a", b"lower", 1_000),
        page("http://sub.example.org/x?b=1&a=2", b"sub", 0),
        page("http://other.net/", b"other", 0),
        Page { status: 404, mime: "text/plain", ..page("http://other.net/gone", b"no", 0) },
    ];
    for (url, body) in urls.iter().zip(&bodies) {
        let (body, url) = (body.as_bytes(), url.as_str());
        pages.push(Page { url, body, ..page("", b"", 0) });
    }
    rig.add(&pages).await;
    rig
}

fn lines(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.text().lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_dialects_tell_the_same_captures() {
    let rig = filled().await;
    // pywb: CDXJ lines; all pages of a SURT key, by time.
    let both = lines(&rig.get("/cdx?url=example.org/a").await);
    assert_eq!(both.len(), 2);
    assert!(both[0].starts_with("org,example)/a 20231114221321 {\"url\": \"http://example.org/a\", \"mime\": \"text/html\", \"status\": \"200\", \"digest\": \"A4DQOBYHA4DQOBYHA4DQOBYHA4DQOBYH\", \"length\": \""), "{}", both[0]);
    assert!(both[1].starts_with("org,example)/a 20231114221325 {\"url\": \"https://www.example.org/A\""));
    assert_eq!(lines(&rig.get("/web/cdx?url=example.org/a").await), both);
    let none = rig.get("/cdx?url=example.org/nothing").await;
    assert_eq!(
        (none.status, none.json()["message"].as_str().unwrap()),
        (404, "No Captures found for: example.org/nothing")
    );
    let json = rig.get("/cdx?url=*.example.org&output=json&fl=url,status&filter=!~url:.*docs").await;
    let mut json: Vec<serde_json::Value> =
        lines(&json).iter().map(|l| serde_json::from_str(l).unwrap()).collect();
    json.sort_by_key(|value| value["url"].to_string());
    assert_eq!(json.len(), 4, "{json:?}");
    assert_eq!(json[0], serde_json::json!({"url": "http://example.org/", "status": "200"}));
    let near = lines(&rig.get("/cdx?url=example.org/a&closest=20231114221324&sort=closest&limit=1").await);
    assert_eq!(near, both[1..]);
    let unsorted = lines(&rig.get("/cdx?url=example.org/a&closest=&sort=closest&matchType=prefix").await);
    assert_eq!(unsorted, both);
    let down = lines(&rig.get("/cdx?url=example.org/a&sort=reverse").await);
    assert_eq!(down, [both[1].clone(), both[0].clone()]);
    for bad in ["/cdx", "/cdx?url=h&limit=x", "/cdx?url=h&matchType=bogus", "/web?url=h/*&from=2020"] {
        assert_eq!(rig.get(bad).await.status, 400, "{bad}");
    }
    assert_eq!(rig.get("/cdx?url=example.org/*&page=1").await.status, 400, "beyond the end");

    // Internet Archive.
    let text = lines(&rig.get("/cdx/search/cdx?url=other.net/*").await);
    assert_eq!(text.len(), 2);
    let fields: Vec<&str> = text[1].split(' ').collect();
    assert_eq!(
        fields[..5],
        ["net,other)/gone", "20231114221320", "http://other.net/gone", "text/plain", "404"]
    );
    assert_eq!(fields.len(), 7);
    let rows = rig
        .get("/web/timemap/cdx?url=other.net/*&output=json&filter=statuscode:2..&fl=original,length")
        .await
        .json();
    assert_eq!(rows[0], serde_json::json!(["original", "length"]));
    assert_eq!((rows[1][0].as_str(), rows.as_array().unwrap().len()), (Some("http://other.net/"), 2));
    assert_eq!(rig.get("/cdx/search/cdx?url=none.net&output=json").await.text().trim(), "[]");
    let dedup =
        "/cdx/search/cdx?url=example.org/a&fl=timestamp,digest&filter=!mimetype:warc/revisit&limit=-1";
    assert_eq!(rig.get(dedup).await.text(), "20231114221325 A4DQOBYHA4DQOBYHA4DQOBYHA4DQOBYH\n");
    assert_eq!(rig.get("/cdx/search/cdx?url=example.org/*&showNumPages=true").await.text(), "1\n");
    let collapsed = lines(&rig.get("/cdx/search/cdx?url=example.org/a&collapse=timestamp:10").await);
    assert_eq!(collapsed.len(), 1);

    // OutbackCDX.
    let text = lines(&rig.get("/web?url=http%3A//other.net/").await);
    let fields: Vec<&str> = text[0].split(' ').collect();
    assert_eq!((fields.len(), fields[6], fields[7], fields[9]), (11, "-", "-", "0"));
    let rows = rig.get("/web?url=other.net&output=json").await.json();
    assert_eq!(rows[1][4], 200, "numbers are numbers: {rows}");
    assert_eq!(rig.get("/web?url=nothing.net").await.body, b"");
    assert_eq!(rig.ask("POST", "/web", &[]).await.status, 405);
    assert_eq!(rig.get("/other/cdx?url=x").await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_go_on_where_they_ended() {
    let rig = filled().await;
    let all = lines(&rig.get("/cdx/search/cdx?url=example.org/docs/*").await);
    assert_eq!(all.len(), 60);
    for fl in ["", "&fl=length"] {
        let (mut seen, mut resume) = (0, String::new());
        loop {
            let query =
                format!("/cdx/search/cdx?url=example.org/docs/*&limit=7&showResumeKey=true{fl}{resume}");
            let some = lines(&rig.get(&query).await);
            let end = some.iter().position(String::is_empty).unwrap_or(some.len());
            if fl.is_empty() {
                assert_eq!(some[..end], all[seen..seen + end]);
            }
            seen += end;
            let Some(key) = some.get(end + 1) else { break };
            // As the wayback library sends it: encoded twice.
            resume = format!("&resumeKey={}", encoded(&encoded(key)));
        }
        assert_eq!(seen, 60);
    }
    let rows =
        rig.get("/cdx/search/cdx?url=example.org/docs/*&limit=2&showResumeKey=true&output=json").await.json();
    let rows = rows.as_array().unwrap();
    assert_eq!((rows.len(), rows[3].as_array().unwrap().len(), rows[4].as_array().unwrap().len()), (5, 0, 1));
    // The same lines as independent parts.
    let parts = rig.get("/cdx/search/cdx?url=example.org/docs/*&showRanges=4").await.json();
    let mut together = Vec::new();
    for part in parts.as_array().unwrap() {
        let target = part.as_str().unwrap().strip_prefix("http://localhost").unwrap();
        together.extend(lines(&rig.get(target).await));
    }
    assert!(parts.as_array().unwrap().len() > 2);
    assert_eq!(together, all);
    let pages = rig.get("/cdx?url=example.org/docs/*&showNumPages=true").await.json();
    assert_eq!((&pages["pages"], &pages["blocks"], &pages["lines"]), (&1.into(), &1.into(), &60.into()));
    assert_eq!(lines(&rig.get("/cdx?url=example.org/docs/*&page=0").await).len(), 60);
}

fn unpacked(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    flate2::read::GzDecoder::new(bytes).read_to_end(&mut out).unwrap();
    out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_names_a_file_of_just_that_length() {
    let rig = filled().await;
    for line in lines(&rig.get("/cdx?url=*.example.org&output=json").await).iter().take(8) {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let target = format!("/warcs/{}", line["filename"].as_str().unwrap());
        let file = rig.get(&target).await;
        assert_eq!((file.status, file.header("content-type")), (200, "application/warc"));
        assert_eq!(file.body.len().to_string(), line["length"].as_str().unwrap(), "{line}");
        let record = unpacked(&file.body);
        let text = String::from_utf8_lossy(&record);
        assert!(text.starts_with("WARC/1.1\r\nWARC-Type: response\r\n") && text.ends_with("\r\n\r\n"));
        assert!(text.contains(&format!("WARC-Target-URI: {}\r\n", line["url"].as_str().unwrap())));
        let etag = file.header("etag").to_owned();
        assert!(etag.starts_with('"'));
        assert_eq!(file.header("access-control-allow-origin"), "*");
        let part = rig.ask("GET", &target, &[("Range", "bytes=5-9"), ("If-Range", &etag)]).await;
        assert_eq!((part.status, &part.body[..]), (206, &file.body[5..10]));
        let long = rig.ask("GET", &target, &[("Range", "bytes=-65558")]).await;
        assert_eq!((long.status, long.body == file.body), (206, true));
        let many = rig.ask("GET", &target, &[("Range", "bytes=0-1,8-9")]).await;
        assert!(many.status == 206 && many.header("content-type").starts_with("multipart/byteranges"));
        assert_eq!(rig.ask("GET", &target, &[("Range", "bytes=9999999-")]).await.status, 416);
        let head = rig.ask("HEAD", &target, &[("Range", "bytes=0-")]).await;
        assert_eq!((head.status, head.body.len()), (206, 0));
        assert_eq!(rig.ask("GET", &target, &[("If-None-Match", &etag)]).await.status, 304);
        let first = rig
            .ask("OPTIONS", &target, &[("Origin", "http://x"), ("Access-Control-Request-Method", "GET")])
            .await;
        assert_eq!((first.status, first.header("access-control-allow-methods")), (204, "GET, HEAD, OPTIONS"));
        assert!(!first.headers.contains_key("access-control-allow-origin"), "a site elsewhere");
        let near = rig.ask("GET", &target, &[("Origin", "http://localhost:9090")]).await;
        assert_eq!(near.header("access-control-allow-origin"), "*");
        let far = rig.ask("GET", &target, &[("Origin", "https://elsewhere.example")]).await;
        assert!(far.status == 200 && !far.headers.contains_key("access-control-allow-origin"));
        assert_eq!(far.header("cross-origin-resource-policy"), "same-origin");
    }
    rig.get("/warcs/nothing.warc.gz").await.is_problem(404, "no-file");
    // A newer version takes its place: its file is another one.
    let line = rig.get("/cdx?url=other.net&output=json").await.json();
    let old = format!("/warcs/{}", line["filename"].as_str().unwrap());
    rig.add(&[Page { url: "http://other.net/", body: b"new", fetched_at_ms: AT + 9_000, ..Page::default() }])
        .await;
    rig.get(&old).await.is_problem(410, "superseded");
    let line = rig.get("/cdx?url=other.net&output=json").await.json();
    assert_eq!(line["timestamp"], "20231114221329");
    assert_eq!(rig.get(&format!("/warcs/{}", line["filename"].as_str().unwrap())).await.status, 200);
    // All files.
    let paths = rig.get("/web/warc.paths.gz").await;
    let names = String::from_utf8(unpacked(&paths.body)).unwrap();
    assert_eq!(names.lines().count(), 66);
    assert_eq!(rig.get(&format!("/{}", names.lines().next().unwrap())).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mementos_are_found_by_their_time() {
    let rig = filled().await;
    let gate = rig
        .ask("HEAD", "/web/http://example.org/a", &[("Accept-Datetime", "Tue, 14 Nov 2023 22:13:21 GMT")])
        .await;
    assert_eq!((gate.status, gate.header("vary")), (302, "accept-datetime, origin"));
    assert_eq!(gate.header("location"), "http://localhost/web/20231114221321id_/http://example.org/a");
    let link = gate.header("link");
    assert!(link.contains("rel=\"original\"") && link.contains("rel=\"timemap\""), "{link}");
    assert!(link.contains("memento\"; datetime=\"Tue, 14 Nov 2023 22:13:21 GMT\""), "{link}");
    assert_eq!(
        rig.get("/web/http://example.org/a").await.header("location"),
        "http://localhost/web/20231114221325id_/https://www.example.org/A"
    );
    for target in [
        "/web/20231114221321id_/http://example.org/a",
        "/web/20231114221321id_/http%3A//example.org/a",
        "/web/20231114221321id_/http:/example.org/a",
    ] {
        let page = rig.get(target).await;
        assert_eq!((page.status, &*page.text()), (200, "lower"), "{target}");
        assert_eq!(page.header("memento-datetime"), "Tue, 14 Nov 2023 22:13:21 GMT");
        assert_eq!(page.header("x-archive-orig-set-cookie"), "a=b");
        assert!(!page.headers.contains_key("set-cookie"));
        assert!(page.header("content-security-policy").starts_with("sandbox; default-src 'none';"));
        assert!(page.header("link").contains("rel=\"first memento\""), "{}", page.header("link"));
    }
    assert_eq!(rig.get("/web/2020id_/http://example.org/a").await.status, 302);
    assert_eq!(rig.get("/web/20231114221320id_/http://other.net/gone").await.status, 404);
    let sub = rig.get("/web/20231114221320id_/http://sub.example.org/x?b=1&a=2").await;
    assert_eq!(sub.text(), "sub");
    let map = rig.get("/web/timemap/link/http://example.org/a").await;
    assert_eq!(map.header("content-type"), "application/link-format");
    assert_eq!(map.text().matches("rel=\"memento\"").count(), 2, "{}", map.text());
    assert!(
        map.text().contains(
            "rel=\"self\"; type=\"application/link-format\"; from=\"Tue, 14 Nov 2023 22:13:21 GMT\""
        )
    );
    let json = rig.get("/web/timemap/json/http://example.org/a").await.json();
    assert_eq!(json["mementos"]["list"].as_array().unwrap().len(), 2);
    assert_eq!(lines(&rig.get("/web/timemap/cdxj/http://example.org/a").await).len(), 2);
    rig.get("/web/http://nowhere.example/").await.is_problem(404, "no-page");
    let record = rig.get("/web/resource?url=http%3A%2F%2Fexample.org%2Fa&closest=20231114221321").await;
    assert_eq!((record.status, record.header("content-type")), (200, "application/warc-record"));
    assert!(record.header("warcserver-cdx").starts_with("org,example)/a 20231114221321 {"));
    assert_eq!(
        (record.header("warcserver-type"), record.header("warc-target-uri")),
        ("warc", "http://example.org/a")
    );
    assert!(record.body.starts_with(b"WARC/1.1\r\n") && record.body.ends_with(b"lower\r\n\r\n"));
    rig.is_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_that_came_without_a_digest_have_one() {
    let rig = Rig::start().await;
    let page = Page { url: "http://h.org/", head: HEAD, body: b"body", fetched_at_ms: AT, ..Page::default() };
    let bare = Page { url: "http://h.org/bare", head: b"", body: b"body", status: 200, ..page };
    rig.add(&[page, bare]).await;
    // The SHA-1 of "body".
    const DIGEST: &str = "AIED6RLZ4CFGCJBFYDA2C7XEPLOXQO4U";
    assert_eq!(lines(&rig.get("/web?url=h.org/*&fl=digest").await), [DIGEST, DIGEST]);
    // And so it is in the records that the lines name, which are as long as the lines say.
    for line in lines(&rig.get("/web?url=h.org/*&fl=filename,length").await) {
        let (file, length) = line.split_once(' ').unwrap();
        let member = rig.get(&format!("/warcs/{file}")).await;
        assert_eq!(member.body.len(), length.parse::<usize>().unwrap());
        let mut record = String::new();
        flate2::read::GzDecoder::new(&member.body[..]).read_to_string(&mut record).unwrap();
        assert!(record.contains(&format!("WARC-Payload-Digest: sha1:{DIGEST}\r\n")), "{record}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outbackcdx_has_ranges_and_xml() {
    let rig = filled().await;
    let onwards =
        lines(&rig.get("/web?url=http://example.org/docs/58&matchType=range&fl=urlkey&limit=3").await);
    assert_eq!(onwards, ["org,example)/docs/58", "org,example)/docs/59", "org,example,sub)/x?a=2&b=1"]);
    assert_eq!(lines(&rig.get("/web?url=&matchType=range").await).len(), 66);
    rig.get("/cdx?url=h.org&matchType=range").await.is_problem(400, "bad-parameter");

    let one = rig.get("/web?q=type%3Aurlquery%20url%3Ahttp%253A%252F%252Fexample.org%252Fa").await;
    assert_eq!((one.status, one.header("content-type")), (200, "application/xml; charset=utf-8"));
    let text = one.text();
    assert_eq!(text.matches("<result>").count(), 2, "{text}");
    assert!(text.contains("<capturedate>20231114221321</capturedate>"), "{text}");
    assert!(text.contains("<url>http://example.org/a</url>") && text.contains("<numresults>2</numresults>"));
    let file = text.split_once("<file>").unwrap().1.split_once("</file>").unwrap().0;
    assert_eq!(rig.get(&format!("/warcs/{file}")).await.status, 200);

    let part = rig.get("/web?q=type:prefixquery+url:http%253A//example.org/&count=10&start_page=7").await;
    let text = part.text();
    // 62 URLs: the home page, two spellings of one, 60 documents.
    assert_eq!(text.matches("<result>").count(), 2, "{text}");
    assert!(
        text.contains("<numresults>62</numresults>") && text.contains("<firstreturned>60</firstreturned>")
    );
    let both = rig.get("/web?q=type:prefixquery+url:http%253A//example.org/a").await.text().to_string();
    assert!(both.contains("<numcaptures>2</numcaptures>"), "{both}");
    let none = rig.get("/web?q=type:urlquery+url:http%253A//nowhere.example/").await;
    assert!(none.status == 200 && none.text().contains("<error><title>Resource Not In Archive</title>"));
    rig.get("/web?q=type:urlquery").await.is_problem(400, "no-url");
}
