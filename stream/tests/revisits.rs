//! Revisits find their original by whichever digest they declare, or by the URL and date that they name.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

use bytes::Bytes;
use data_encoding::{BASE32, HEXLOWER};
use sha1::Digest;
use webbase_stream::warc::{Capture, Importer, Original, Originals, Reader, Report};

const BODY: &[u8] = b"what does not change";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n";

fn sha1_of(body: &[u8]) -> [u8; 20] {
    sha1::Sha1::digest(body).into()
}

fn sha256_of(body: &[u8]) -> Vec<u8> {
    sha2::Sha256::digest(body).to_vec()
}

fn record(kind: &str, url: &str, second: u32, fields: &[(&str, &str)], block: &[u8]) -> Vec<u8> {
    let mut text = format!(
        "WARC/1.1\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-000000000000>\r\n\
         WARC-Target-URI: {url}\r\nWARC-Date: 2026-01-01T00:00:{second:02}.500Z\r\n"
    );
    for (name, value) in fields {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str(&format!("Content-Length: {}\r\n\r\n", block.len()));
    [text.as_bytes(), block, b"\r\n\r\n"].concat()
}

fn response(url: &str, digest: &str) -> Vec<u8> {
    let block = [OK.as_bytes(), BODY].concat();
    let fields = [("Content-Type", "application/http; msgtype=response"), ("WARC-Payload-Digest", digest)];
    record("response", url, 1, &fields, &block)
}

/// Of another URL than the original, so that only what it declares leads there.
fn revisit(digest: Option<&str>, refers_to: Option<(&str, u32)>) -> Vec<u8> {
    let date = refers_to.map(|(_, second)| format!("2026-01-01T00:00:{second:02}Z"));
    let mut fields =
        vec![("WARC-Profile", "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest")];
    fields.extend(digest.map(|digest| ("WARC-Payload-Digest", digest)));
    fields.extend(refers_to.map(|(url, _)| ("WARC-Refers-To-Target-URI", url)));
    fields.extend(date.as_deref().map(|date| ("WARC-Refers-To-Date", date)));
    record("revisit", "http://h/again", 9, &fields, OK.as_bytes())
}

fn import(mut importer: Importer, records: &[Vec<u8>]) -> (Vec<Capture>, Report) {
    let file = records.concat();
    let mut reader = Reader::new(&file[..]).unwrap();
    let mut captures = Vec::new();
    while let Some(item) = reader.next().unwrap() {
        captures.extend(importer.take(item));
    }
    (captures, importer.finish(reader.offset()))
}

fn fresh() -> Importer {
    Importer::new(Originals::new(1 << 20))
}

#[test]
fn originals_are_found_by_what_a_revisit_declares() {
    let hex = format!("sha256:{}", HEXLOWER.encode(&sha256_of(BODY)));
    let base32 = format!("sha-256:{}", BASE32.encode(&sha256_of(BODY)));
    let short = format!("sha1:{}", BASE32.encode(&sha1_of(BODY)));
    let (wrong, other) = (format!("sha256:{}", HEXLOWER.encode(&sha256_of(b"else"))), "md5:0123456789abcdef");
    let original = Some(("http://h/first", 1));
    for (first, again, refers_to, found) in [
        // As Browsertrix and Zeno write them.
        (&*hex, Some(&*hex), None, true),
        (&hex, Some(&base32), None, true),
        (&base32, Some(&hex), original, true),
        // One tool made the original, another the revisit.
        (&short, Some(&hex), original, true),
        (&hex, Some(&short), None, true),
        (&short, Some(&hex), None, false),
        // What is named must have the digest that is declared.
        (&hex, Some(&wrong), original, false),
        // What cannot be computed is believed if the capture is named.
        (other, Some(other), original, true),
        (other, None, original, true),
        (other, Some(other), None, false),
        (other, Some(other), Some(("http://h/first", 2)), false),
        (other, Some(other), Some(("http://h/second", 1)), false),
    ] {
        let (captures, report) =
            import(fresh(), &[response("http://h/first", first), revisit(again, refers_to)]);
        let told = (report.revisits_resolved, report.revisits_unresolved);
        assert_eq!(
            told,
            (u64::from(found), u64::from(!found)),
            "{first} {again:?} {refers_to:?}: {report:?}"
        );
        assert_eq!(captures.len(), 1 + usize::from(found));
        for capture in captures {
            assert_eq!((&capture.body[..], capture.payload_digest), (BODY, sha1_of(BODY)));
        }
    }
}

#[test]
fn a_sha256_is_checked() {
    let good = format!("sha256:{}", BASE32.encode(&sha256_of(BODY)));
    let wrong = format!("sha256:{}", BASE32.encode(&sha256_of(b"else")));
    let records =
        [response("http://h/1", &good), response("http://h/2", &wrong), response("http://h/3", "md5:00")];
    let (captures, report) = import(fresh(), &records);
    assert_eq!((report.digests_verified, report.digests_wrong, report.digests_other), (1, 1, 1));
    assert!(captures.len() == 3 && captures.iter().all(|capture| capture.payload_digest == sha1_of(BODY)));
}

#[test]
fn originals_of_earlier_imports_are_found_too() {
    let digest = format!("sha256:{}", HEXLOWER.encode(&sha256_of(BODY)));
    let find = |url: &str| {
        let known = url == "http://h/first";
        let (head, body) = (Bytes::from_static(OK.as_bytes()), Bytes::from_static(BODY));
        let (mime, payload_digest) = ("text/plain".to_owned(), sha1_of(BODY));
        // 2026-01-01T00:00:01.
        Ok(known.then_some(Original { head, body, mime, payload_digest, fetched_at_ms: 1_767_225_601_000 }))
    };
    for (digest, refers_to, found) in [
        (Some(&*digest), Some(("http://h/first", 5)), true),
        (None, Some(("http://h/first", 1)), true),
        (None, Some(("http://h/first", 5)), false),
        (Some(&digest), None, false),
    ] {
        let (captures, report) = import(fresh().finding(Box::new(find)), &[revisit(digest, refers_to)]);
        assert_eq!(captures.len(), usize::from(found), "{digest:?} {refers_to:?}: {report:?}");
    }
}
