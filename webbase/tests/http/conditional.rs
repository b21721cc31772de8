//! Conditional requests and ranges.

use webbase_storage::Page;

use crate::rig::{Rig, page_of};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_has_is_not_sent_again() {
    let rig = Rig::start().await;
    let url = "http://h/x";
    let old = Page {
        url,
        body: b"0123456789",
        fetched_at_ms: 1_700_000_000_000,
        modified_at_ms: Some(1_600_000_000_000),
        ..Page::default()
    };
    rig.add(&[old]).await;
    let target = page_of(url);
    let first = rig.get(&target).await;
    let (tag, date) = (first.header("etag"), first.header("last-modified"));
    assert_eq!(date, "Sun, 13 Sep 2020 12:26:40 GMT");
    for (name, value, status) in [
        ("If-None-Match", tag, 304),
        ("If-None-Match", "\"other\"", 200),
        ("If-None-Match", "*", 304),
        ("If-Modified-Since", date, 304),
        ("If-Modified-Since", "Sun, 13 Sep 2020 12:26:39 GMT", 200),
        ("If-Modified-Since", "some day", 200),
    ] {
        let answer = rig.ask("GET", &target, &[(name, value)]).await;
        assert_eq!(answer.status, status, "{name}: {value}");
        assert_eq!(answer.header("etag"), tag);
        assert_eq!(answer.body.is_empty(), status == 304);
    }
    rig.add(&[Page { body: b"changed", fetched_at_ms: 1_700_000_000_001, ..old }]).await;
    let answer = rig.ask("GET", &target, &[("If-None-Match", tag)]).await;
    assert_eq!((answer.status, &*answer.text()), (200, "changed"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_a_page() {
    let rig = Rig::start().await;
    let url = "http://h/x";
    rig.add(&[Page { url, body: b"0123456789", head: b"HTTP/1.1 200 OK\r\n\r\n", ..Page::default() }]).await;
    let target = page_of(url);
    for (range, status, part, place) in [
        ("bytes=0-3", 206, "0123", "bytes 0-3/10"),
        ("bytes=7-", 206, "789", "bytes 7-9/10"),
        ("bytes=-4", 206, "6789", "bytes 6-9/10"),
        ("bytes=-65558", 206, "0123456789", "bytes 0-9/10"),
        ("bytes=9-99", 206, "9", "bytes 9-9/10"),
        ("bytes=nonsense", 200, "0123456789", ""),
    ] {
        let answer = rig.ask("GET", &target, &[("Range", range)]).await;
        assert_eq!((answer.status, &*answer.text()), (status, part), "{range}");
        assert_eq!((answer.header("content-range"), answer.header("accept-ranges")), (place, "bytes"));
        assert_eq!(answer.header("content-length"), part.len().to_string());
    }
    let none = rig.ask("GET", &target, &[("Range", "bytes=10-")]).await;
    none.is_problem(416, "no-such-range");
    assert_eq!(none.header("content-range"), "bytes */10");

    let several = rig.ask("GET", &target, &[("Range", "bytes=0-1,5-6")]).await;
    assert_eq!(several.status, 206);
    let boundary = several.header("content-type").split_once("boundary=").unwrap().1.to_owned();
    let parts: Vec<String> = several.text().split(&format!("--{boundary}")).map(str::to_owned).collect();
    assert!(parts[1].ends_with("Content-Range: bytes 0-1/10\r\n\r\n01\r\n"), "{parts:?}");
    assert!(
        parts[2].ends_with("Content-Range: bytes 5-6/10\r\n\r\n56\r\n") && parts[3] == "--\r\n",
        "{parts:?}"
    );

    // A raw page is two pieces of memory: a range may lie across both.
    let raw = rig.ask("GET", &format!("{target}&raw=1"), &[("Range", "bytes=17-21")]).await;
    assert_eq!((raw.status, &*raw.text()), (206, "\r\n012"));

    let tag = rig.get(&target).await.header("etag").to_owned();
    for (condition, status) in [(&*tag, 206), ("\"old\"", 200)] {
        let fields = [("Range", "bytes=0-1"), ("If-Range", condition)];
        assert_eq!(rig.ask("GET", &target, &fields).await.status, status);
    }
    let head = rig.ask("HEAD", &target, &[("Range", "bytes=0-")]).await;
    assert_eq!((head.status, head.header("content-length"), head.body.len()), (206, "10", 0));
}
