//! What makes no sense gets an answer that says so, and nothing breaks.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use webbase_storage::Page;

use crate::rig::{Answer, Rig, page_of};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_is_refused_by_name() {
    let rig = Rig::start().await;
    for (target, status, code) in [
        ("/page", 400, "no-url"),
        ("/page?url=", 400, "bad-url"),
        ("/page?url=http://", 400, "bad-url"),
        ("/page?url=%00", 400, "bad-url"),
        ("/page?url=http%3A%2F%2F%FF", 400, "bad-encoding"),
        ("/page?url=%zz", 400, "bad-encoding"),
        ("/page?url=http://h/&url=http://i/", 400, "repeated-parameter"),
        ("/page?url=http://h/?a=1&b=2", 400, "unknown-parameter"),
        ("/page?url=http://h/&raw=perhaps", 400, "bad-parameter"),
        ("/page/xyz", 400, "bad-id"),
        ("/page/%ff", 400, "bad-path"),
        ("/page/00000000000000000000000000000000000", 400, "bad-id"),
        ("/stream?format=pdf", 400, "bad-format"),
        ("/stream?cursor=w1ff", 400, "bad-cursor"),
        ("/stream?nothing=1", 400, "unknown-parameter"),
        ("/nowhere/at/all", 404, "no-route"),
        ("//", 404, "no-route"),
        ("/page/../../etc/passwd", 404, "no-route"),
    ] {
        let answer = rig.get(target).await;
        assert_eq!(answer.status, status, "{target}: {answer:?}");
        answer.is_problem(status, code);
    }
    let long = format!("/page?url=http://h/{}", "a".repeat(20_000));
    rig.get(&long).await.is_problem(414, "query-too-long");
    let many = format!("/page?{}", "a&".repeat(500));
    rig.get(&many).await.is_problem(400, "too-many-parameters");
    for (method, target, allowed) in [
        ("POST", "/page?url=http://h/", "GET,HEAD"),
        ("GET", "/cycle", "POST"),
        ("BREW", "/status", "GET,HEAD"),
    ] {
        let answer = rig.ask(method, target, &[]).await;
        answer.is_problem(405, "method");
        assert_eq!(answer.header("allow"), allowed, "{method} {target}");
    }
    rig.is_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_http_is_no_trouble() {
    let rig = Rig::start().await;
    let huge = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "y".repeat(100_000));
    let many = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "A: b\r\n".repeat(5000));
    for (bytes, statuses) in [
        (&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], &[400, 0][..]),
        (b"GET\r\n\r\n", &[400]),
        (b"GET / HTTP/9.9\r\n\r\n", &[400, 505]),
        (b"GET /page?url=\xff\xfe HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", &[400]),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n", &[400]),
        (b"POST /cycle HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n", &[400, 0]),
        (huge.as_bytes(), &[431]),
        (many.as_bytes(), &[431]),
    ] {
        let answer = rig.raw(bytes).await;
        let start: Vec<u8> = bytes.iter().take(40).copied().collect();
        assert!(statuses.contains(&answer.status), "{}: {answer:?}", start.escape_ascii());
        rig.is_well().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_slow_is_given_up_and_nobody_waits_for_them() {
    let rig = Rig::with(|options| {
        options.gateway.limits.head_time = Duration::from_millis(300);
        options.gateway.limits.write_pause = Duration::from_millis(300);
        options.gateway.limits.connections_max = 4;
    })
    .await;
    let big = vec![7; 32 << 20];
    rig.add(&[Page { url: "http://h/big", mime: "image/x", body: &big, ..Page::default() }]).await;
    // Half requests, as many as there is room for: each is closed, so others come in.
    let mut slow = Vec::new();
    for _ in 0..4 {
        let mut socket = TcpStream::connect(rig.address()).await.unwrap();
        socket.write_all(b"GET /healthz HTTP/1.1\r\nHos").await.unwrap();
        slow.push(socket);
    }
    rig.is_well().await;
    for mut socket in slow {
        let answer = Answer::read(&mut socket).await;
        assert!([0, 408].contains(&answer.status), "{answer:?}");
    }
    // Who asks and does not take the answer: it is cut off.
    let mut socket = TcpStream::connect(rig.address()).await.unwrap();
    let request = format!("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", page_of("http://h/big"));
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut first = [0; 64];
    socket.read_exact(&mut first).await.unwrap();
    // The gauge tells when the server has given up.
    let until = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let metrics = rig.get("/metrics").await.text();
        // Only the connection that asks is left.
        if metrics.contains("webbase_http_connections 1\n") {
            break;
        }
        assert!(tokio::time::Instant::now() < until, "{metrics}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut rest = Vec::new();
    let _ = socket.read_to_end(&mut rest).await;
    assert!(rest.len() < big.len());
    rig.is_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_has_many_requests() {
    let rig = Rig::start().await;
    rig.add(&[Page { url: "http://h/x", body: b"here", ..Page::default() }]).await;
    // All at once, good and bad, and the answers come in order.
    let mut text = String::new();
    for target in ["/page?url=http://h/x", "/page?url=%zz", "/nowhere", "/page?url=http://h/x"] {
        text.push_str(&format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    }
    text.push_str("GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let mut socket = TcpStream::connect(rig.address()).await.unwrap();
    socket.write_all(text.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).await.unwrap();
    let text = String::from_utf8_lossy(&bytes);
    let statuses: Vec<&str> = text.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
    assert_eq!(statuses, ["200", "400", "404", "200", "200"]);
}
