//! WARC in at `POST /pages` and out of `GET /stream`: what goes in comes out, of a URL the newest, and nothing that is sent
//! breaks the gateway.

use std::collections::BTreeMap;

use webbase_storage::Codec;
use webbase_stream::warc::{Block, Form, Importer, Item, Originals, Reader, Writer};

use crate::rig::{Answer, Rig, page_of};

/// A response record.
fn response(url: &str, date: &str, body: &str) -> Vec<u8> {
    let block = format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nX-Odd:  {date} \r\n\r\n{body}");
    let head = format!(
        "WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {url}\r\nWARC-Date: {date}\r\nContent-Length: {}\r\n",
        block.len()
    );
    format!("{head}\r\n{block}\r\n\r\n").into_bytes()
}

async fn post(rig: &Rig, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut text = String::from("POST /pages HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    rig.raw(&[text.as_bytes(), body].concat()).await
}

/// The pages of a WARC file: URL, date, head and body; and the fields of its last record.
fn pages(file: &[u8]) -> (BTreeMap<String, (u64, String, String)>, String) {
    let mut reader = Reader::new(file).unwrap();
    let mut importer = Importer::new(Originals::new(0));
    let (mut pages, mut last) = (BTreeMap::new(), String::new());
    while let Some(item) = reader.next().unwrap() {
        if let Item::Record(record) = &item {
            let Block::Whole(block) = &record.block else { panic!("{record:?}") };
            assert!(!record.shares_member);
            last = String::from_utf8_lossy(block).into_owned();
        }
        if let Some(capture) = importer.take(item) {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let page = (capture.fetched_at_ms, text(&capture.head), text(&capture.body));
            assert!(pages.insert(capture.url, page).is_none(), "a page comes once");
        }
    }
    let report = importer.finish(reader.offset());
    assert_eq!((report.damaged, report.digests_wrong), (0, 0));
    (pages, last)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_in_comes_out_and_of_a_url_the_newest() {
    let rig = Rig::start().await;
    let mut file = Vec::new();
    for n in 0..300 {
        let body = format!("<p>page {n}").repeat(50 + n);
        file.extend(response(&format!("http://h/{n}"), "2026-01-02T03:04:05.678Z", &body));
    }
    file.extend(response("http://h/7", "2025-01-01T00:00:00Z", "older"));
    file.extend(response("https://h/8/", "2026-06-01T00:00:00Z", "newer"));
    let answer = post(&rig, &[("Content-Type", "application/warc")], &file).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let report = answer.json();
    assert_eq!((&report["records"]["response"], &report["captures"]), (&302.into(), &302.into()));
    assert_eq!((&report["pages"], &report["superseded"]), (&300.into(), &2.into()));
    assert_eq!((&report["acknowledged"], &report["damaged"]), (&302.into(), &0.into()));
    rig.embedded.cluster().cycle(|_| {}).await.unwrap();
    assert_eq!(rig.get(&page_of("http://h/8")).await.text(), "newer");

    let stream = rig.ask("GET", "/stream", &[("TE", "trailers")]).await;
    assert_eq!((stream.status, stream.header("content-type")), (200, "application/warc"));
    let (found, last) = pages(&stream.body);
    assert_eq!(found.len(), 300);
    assert_eq!(found["https://h/8/"].2, "newer");
    let (at, head, body) = &found["http://h/7"];
    assert_eq!((*at, body), (1_767_323_045_678, &"<p>page 7".repeat(57)));
    assert_eq!(
        head,
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nX-Odd:  2026-01-02T03:04:05.678Z \r\n\r\n"
    );
    // The last record is the end, and has the trailer's cursor.
    let cursor = &stream.trailers["webbase-cursor"];
    assert!(last.contains("webbase-end: true") && last.contains("webbase-pages: 300"), "{last}");
    assert!(last.contains(&format!("webbase-cursor: {cursor}")), "{last}");
    let (rest, _) = pages(&rig.get(&format!("/stream?cursor={cursor}")).await.body);
    assert!(rest.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_stay_packed_as_they_come_unless_asked_otherwise() {
    let rig = Rig::start().await;
    let body = |n: usize| format!("<p>page {n}").repeat(50 + n);
    let mut file = Vec::new();
    for n in 0..300 {
        let mut member = flate2::write::GzEncoder::new(&mut file, flate2::Compression::default());
        let record = response(&format!("http://h/{n}"), "2026-01-02T03:04:05.678Z", &body(n));
        std::io::Write::write_all(&mut member, &record).unwrap();
        member.finish().unwrap();
    }
    // Later ones replace earlier ones, and say the same.
    for (asked, codec) in [("", Codec::Deflate), ("?repack", Codec::Zstd)] {
        let text =
            format!("POST /pages{asked} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n", file.len());
        let answer = rig.raw(&[text.as_bytes(), b"Connection: close\r\n\r\n", &file].concat()).await;
        assert_eq!((answer.status, &answer.json()["acknowledged"]), (200, &300.into()), "{answer:?}");
        rig.embedded.cluster().cycle(|_| {}).await.unwrap();

        let cluster = rig.embedded.cluster();
        let record = cluster.lookup(cluster.page_key("http://h/7").unwrap()).await.unwrap().pages.unwrap();
        assert_eq!(record.get().codec(), codec, "{asked}");
        assert_eq!(rig.get(&page_of("http://h/7")).await.text(), body(7));
        let (found, _) = pages(&rig.get("/stream").await.body);
        assert_eq!(found.len(), 300);
        for n in 0..300 {
            assert_eq!(found[&format!("http://h/{n}")].2, body(n));
        }
    }
    let answer = rig.ask("POST", "/pages?repack=perhaps", &[("Content-Length", "0")]).await;
    answer.is_problem(400, "bad-parameter");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn codings_around_the_file_come_off() {
    let rig = Rig::start().await;
    let mut file = Vec::new();
    Writer::new(Form::Gzip).resource("http://h/r", 1_700_000_000_000, "text/plain", b"resource", &mut file);
    file.extend(b"");
    for (coding, body) in [("identity", file.clone()), ("zstd", zstd::bulk::compress(&file, 1).unwrap())] {
        let answer = post(&rig, &[("Content-Encoding", coding)], &body).await;
        let report = answer.json();
        assert_eq!((answer.status, &report["acknowledged"]), (200, &1.into()), "{coding}: {report}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_damaged_is_reported_and_the_rest_is_kept() {
    let rig = Rig::start().await;
    let (good, other) = (
        response("http://h/a", "2026-01-01T00:00:00Z", "a"),
        response("http://h/b", "2026-01-01T00:00:00Z", "b"),
    );
    let at = good.len();
    let file = [&good[..], b"rubbish\r\n", &other, &good[..40]].concat();
    let report = post(&rig, &[], &file).await.json();
    // The record before the rubbish cannot be told from one whose length is wrong.
    assert_eq!(
        (&report["records"]["response"], &report["acknowledged"], &report["damaged"]),
        (&2.into(), &1.into(), &2.into())
    );
    assert_eq!(report["damage"][0]["offset"], 0);
    assert_eq!(report["damage"][1]["offset"], at + 9 + other.len());

    for (headers, body, status, code) in [
        (&[][..], &b"<html>no archive</html>"[..], 400, "no-records"),
        (&[], b"", 400, "no-records"),
        (&[], b"\x1f\x8b\x08\0\0\0\0\0\0\x03garbage", 400, "no-records"),
        (&[], b"\x28\xb5\x2f\xfdgarbage", 400, "no-records"),
        (&[], b"\x5d\x2a\x4d\x18\xff\xff\xff\xff", 400, "no-records"),
        (&[("Content-Encoding", "gzip")], b"no gzip", 400, "no-records"),
        (&[("Content-Encoding", "br")], b"x", 415, "unsupported"),
        (&[("Content-Type", "text/html")], b"x", 415, "unsupported"),
    ] {
        post(&rig, headers, body).await.is_problem(status, code);
        rig.is_well().await;
    }
    // A body that ends before its length is an import that broke off.
    let cut = [
        b"POST /pages HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n",
        &good[..],
    ]
    .concat();
    let mut socket = tokio::net::TcpStream::connect(rig.address()).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut socket, &cut).await.unwrap();
    drop(socket);
    rig.is_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_a_request_may_have_is_refused() {
    let rig = Rig::with(|options| options.gateway.limits.body_bytes_max = 1000).await;
    let file = response("http://h/a", "2026-01-01T00:00:00Z", &"a".repeat(2000));
    post(&rig, &[], &file).await.is_problem(413, "too-large");
    rig.is_well().await;
}

/// A revisit: a head and a digest, and where the body is.
fn revisit(url: &str, date: &str, digest: &str, original: &str) -> Vec<u8> {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-New: yes\r\n\r\n";
    format!(
        "WARC/1.1\r\nWARC-Type: revisit\r\nWARC-Record-ID: <urn:uuid:0>\r\nWARC-Date: {date}\r\n\
         WARC-Target-URI: {url}\r\nWARC-Payload-Digest: sha1:{digest}\r\n\
         WARC-Profile: http://netpreserve.org/warc/1.1/revisit/identical-payload-digest\r\n\
         WARC-Refers-To-Target-URI: <{original}>\r\nWARC-Refers-To-Date: 2026-01-01T00:00:00Z\r\n\
         Content-Type: application/http; msgtype=response\r\nContent-Length: {}\r\n\r\n{head}\r\n\r\n",
        head.len()
    )
    .into_bytes()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revisits_refer_to_what_the_repository_has() {
    let rig = Rig::start().await;
    // Added without an import, so that no import remembers it. The digest is the SHA-1 of "body".
    let head = b"HTTP/1.1 200 OK\r\n\r\n";
    let page = |url| webbase_storage::Page { url, head, body: b"body", ..webbase_storage::Page::default() };
    rig.add(&[page("http://h/original"), page("http://h/again")]).await;
    const DIGEST: &str = "AIED6RLZ4CFGCJBFYDA2C7XEPLOXQO4U";
    const OTHER: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let file = [
        revisit("http://h/elsewhere", "2026-01-02T00:00:00Z", DIGEST, "http://h/original"),
        revisit("http://h/again", "2026-01-02T00:00:00Z", DIGEST, "http://h/unknown"),
        revisit("http://h/changed", "2026-01-02T00:00:00Z", OTHER, "http://h/original"),
        revisit("http://h/lost", "2026-01-02T00:00:00Z", OTHER, "no URL at all"),
    ]
    .concat();
    let report = post(&rig, &[], &file).await.json();
    assert_eq!(
        (&report["revisits_resolved"], &report["revisits_unresolved"]),
        (&2.into(), &2.into()),
        "{report}"
    );
    assert_eq!(report["acknowledged"], 2);
    rig.embedded.cluster().cycle(|_| {}).await.unwrap();
    for url in ["http://h/elsewhere", "http://h/again"] {
        let page = rig.get(&format!("{}&raw=1", page_of(url))).await;
        assert!(
            page.text().contains("X-New: yes") && page.text().ends_with("\r\n\r\nbody"),
            "{}",
            page.text()
        );
    }
    assert_eq!(rig.get(&page_of("http://h/changed")).await.status, 404);
}
