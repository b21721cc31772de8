//! Pages come out as they went in: types, codings, chunks, raw, by URL and by id.

use std::io::Write;

use webbase_storage::Page;

use crate::rig::{Rig, page_of};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_come_out_as_they_went_in() {
    let rig = Rig::start().await;
    let text = "<p>all the same, all the same</p>".repeat(100).into_bytes();
    let packed = gzip(&text);
    let chunked = [
        b"5\r\n".as_slice(),
        &packed[..5],
        b"\r\n",
        format!("{:x}\r\n", packed.len() - 5).as_bytes(),
        &packed[5..],
        b"\r\n0\r\n\r\n",
    ]
    .concat();
    let binary: Vec<u8> = (0..=255).collect();
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nSet-Cookie: a=b\r\n\r\n";
    let packed_head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\n\r\n";
    let chunked_head = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\n\
        Transfer-Encoding: chunked\r\n\r\n";
    let broken_head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\n\r\n";
    let page =
        |url, head, body| Page { url, head, body, fetched_at_ms: 1_700_000_000_000, ..Page::default() };
    rig.add(&[
        page("http://h/plain", head, &text),
        page("http://h/packed", packed_head, &packed),
        Page { status: 404, ..page("http://h/chunked", chunked_head, &chunked) },
        page("http://h/broken", broken_head, b"this is no gzip"),
        Page { mime: "image/png", ..page("http://h/bare", b"", &binary) },
        page("http://h/ä?q=1&r=2", head, b"odd"),
        page("http://h/empty", head, b""),
    ])
    .await;

    let plain = rig.get(&page_of("http://h/plain")).await;
    assert_eq!((plain.status, plain.header("content-type")), (200, "text/html; charset=utf-8"));
    assert!(plain.body == text && !plain.headers.contains_key("content-encoding"));
    assert!(!plain.headers.contains_key("set-cookie"), "nothing of the stored head goes out");
    assert_eq!(plain.header("webbase-status"), "200");
    assert_eq!(plain.header("memento-datetime"), "Tue, 14 Nov 2023 22:13:20 GMT");

    // As it lies on disk, for who takes that.
    let zstd = rig.ask("GET", &page_of("http://h/plain"), &[("Accept-Encoding", "gzip, zstd")]).await;
    assert_eq!(zstd.header("content-encoding"), "zstd");
    assert!(zstd.body.len() < text.len() && zstd::bulk::decompress(&zstd.body, 1 << 20).unwrap() == text);
    assert_ne!(zstd.header("etag"), plain.header("etag"));

    // Coded as it came, for who takes that; else without.
    let coded = rig.ask("GET", &page_of("http://h/packed"), &[("Accept-Encoding", "gzip")]).await;
    assert_eq!((coded.header("content-encoding"), coded.body == packed), ("gzip", true));
    for url in ["http://h/packed", "http://h/chunked"] {
        let decoded = rig.get(&page_of(url)).await;
        assert_eq!(
            (decoded.status, decoded.header("content-encoding"), decoded.body == text),
            (200, "", true)
        );
    }
    let chunked_page = rig.ask("GET", &page_of("http://h/chunked"), &[("Accept-Encoding", "gzip")]).await;
    assert_eq!((chunked_page.header("content-encoding"), chunked_page.body == packed), ("gzip", true));
    assert_eq!(chunked_page.header("webbase-status"), "404");
    let broken = rig.get(&page_of("http://h/broken")).await;
    assert_eq!((broken.header("content-encoding"), &*broken.text()), ("gzip", "this is no gzip"));

    // Byte for byte.
    let raw = rig.get(&format!("{}&raw=1", page_of("http://h/chunked"))).await;
    assert_eq!(raw.header("content-type"), "application/http; msgtype=response");
    assert!(raw.body == [&chunked_head[..], &chunked].concat());
    let bare = rig.get(&page_of("http://h/bare")).await;
    assert_eq!((bare.header("content-type"), bare.body == binary), ("image/png", true));
    let bare = rig.get(&format!("{}&raw=1", page_of("http://h/bare"))).await;
    assert!(
        bare.text().starts_with("HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 256\r\n\r\n")
    );

    assert_eq!(rig.get(&page_of("http://h/ä?q=1&r=2")).await.text(), "odd");
    let empty = rig.get(&page_of("http://h/empty")).await;
    assert_eq!((empty.status, empty.header("content-length")), (200, "0"));

    // By id, and by the longer name.
    let key = rig.embedded.cluster().page_key("http://h/plain").unwrap();
    for name in [key.id.to_string(), format!("{}{:016x}", key.id, key.tie)] {
        assert!(rig.get(&format!("/page/{name}")).await.body == text);
    }
    assert_eq!(plain.header("webbase-page-id"), format!("{}{:016x}", key.id, key.tie));
    rig.get(&page_of("http://h/none")).await.is_problem(404, "no-page");
    rig.get("/page/00000000000000ff").await.is_problem(404, "no-page");

    let head = rig.ask("HEAD", &page_of("http://h/plain"), &[]).await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.header("content-length"), text.len().to_string());
    assert_eq!(head.header("etag"), plain.header("etag"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_page_is_served_in_a_sandbox() {
    let rig = Rig::start().await;
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nSet-Cookie: sid=1; Path=/\r\nAccess-Control-Allow-Origin: *\r\n\
        Content-Security-Policy: default-src *\r\nService-Worker-Allowed: /\r\nLink: </x>; rel=preload\r\nRefresh: 0\r\n\r\n";
    let body =
        b"<script>fetch('/cycle', {method: 'POST'})</script><base href=//evil.example/><form action=/cycle>";
    let url = "http://evil.example/\"><script>";
    rig.add(&[
        Page { url, head, body, ..Page::default() },
        Page {
            url: "http://evil.example/s",
            head: b"HTTP/1.1 200 OK\nContent-Type: text/html\x01\n\n",
            body,
            ..Page::default()
        },
    ])
    .await;
    for target in [page_of(url), format!("{}&raw=1", page_of(url)), page_of("http://evil.example/s")] {
        let page = rig.get(&target).await;
        assert_eq!(page.status, 200);
        let policy = page.header("content-security-policy");
        assert!(policy.starts_with("sandbox; default-src 'none';"), "{policy}");
        assert!(!policy.contains("allow-") && !policy.contains("script-src"), "{policy}");
        assert!(policy.contains("form-action 'none'") && policy.contains("base-uri 'none'"), "{policy}");
        assert_eq!(page.header("x-content-type-options"), "nosniff");
        assert_eq!(page.header("referrer-policy"), "no-referrer");
        assert_eq!(page.header("cross-origin-resource-policy"), "same-origin");
        for never in
            ["set-cookie", "access-control-allow-origin", "service-worker-allowed", "link", "refresh"]
        {
            assert!(!page.headers.contains_key(never), "{never}");
        }
    }
    // The address alone makes no header of its own.
    assert!(rig.get(&page_of(url)).await.header("webbase-url").is_ascii());
}
