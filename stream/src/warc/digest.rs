//! Payload digests as records declare them: `sha1:` or `sha256:`, then Base32 or hexadecimal digits.
//!
//! Older tools declare SHA-1, Browsertrix and Zeno SHA-256. A repository keeps the SHA-1, which is what CDX clients compare; a
//! SHA-256 is checked, and finds the originals of revisits.

use sha1::Digest as _;

use bytes::Bytes;
use webbase_storage::digests::{Sha1Digest, sha1_of_each};

use super::head::{Head, Kind};
use super::reader::{Block, Item, WarcRecord};
use crate::http;

/// A payload digest as a record declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Declared {
    Sha1(Sha1Digest),
    Sha256([u8; 32]),
    /// Of a kind that is not computed here.
    Other,
}

impl Declared {
    /// What a record declares, if anything.
    pub(super) fn of(head: &Head) -> Option<Declared> {
        Some(Declared::parse(&head.field("WARC-Payload-Digest")?))
    }

    fn parse(text: &str) -> Declared {
        let (name, value) = text.split_once(':').unwrap_or_default();
        let value = value.trim().trim_end_matches('=').to_ascii_uppercase();
        let bytes = match value.len() {
            32 | 52 => data_encoding::BASE32_NOPAD.decode(value.as_bytes()).ok(),
            40 | 64 => data_encoding::HEXUPPER.decode(value.as_bytes()).ok(),
            _ => None,
        };
        let bytes = bytes.unwrap_or_default();
        let parsed = match name.trim().to_ascii_lowercase().as_str() {
            "sha1" | "sha-1" => bytes.try_into().ok().map(Declared::Sha1),
            "sha256" | "sha-256" => bytes.try_into().ok().map(Declared::Sha256),
            _ => None,
        };
        parsed.unwrap_or(Declared::Other)
    }

    /// Checks a body, as it is and without its chunks: both are in use. Where it holds, the SHA-1 of the bytes that it holds for.
    pub(super) fn check(&self, http_head: &[u8], body: &[u8]) -> Option<Sha1Digest> {
        if *self == Declared::Other {
            return None;
        }
        self.check_known(http_head, body, sha1([body]))
    }

    /// The same, of a body whose SHA-1 is known.
    fn check_known(&self, http_head: &[u8], body: &[u8], known: Sha1Digest) -> Option<Sha1Digest> {
        let chunks = || http::is_chunked(http_head).then(|| http::chunks(body));
        match self {
            Declared::Sha1(digest) if *digest == known => Some(known),
            Declared::Sha1(digest) => chunks().map(sha1).filter(|of_chunks| of_chunks == digest),
            Declared::Sha256(digest) if *digest == sha256([body]) => Some(known),
            Declared::Sha256(digest) => {
                chunks().map(sha256).filter(|of_chunks| of_chunks == digest).and_then(|_| chunks().map(sha1))
            }
            Declared::Other => None,
        }
    }
}

/// The digest that is kept of a payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct PayloadDigest {
    pub(super) kept: Sha1Digest,
    pub(super) declared: Outcome,
}

/// What came of checking a declared digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// There is none.
    None,
    /// It is of a kind that is not computed here.
    Other,
    Holds,
    Wrong,
}

impl PayloadDigest {
    /// Of a body, whose record may declare one.
    pub(super) fn of(head: &Head, http_head: &[u8], body: &[u8]) -> PayloadDigest {
        PayloadDigest::of_known(head, http_head, body, sha1([body]))
    }

    fn of_known(head: &Head, http_head: &[u8], body: &[u8], known: Sha1Digest) -> PayloadDigest {
        let declared = match Declared::of(head) {
            None => Outcome::None,
            Some(Declared::Other) => Outcome::Other,
            Some(declared) => match declared.check_known(http_head, body, known) {
                Some(kept) => return PayloadDigest { kept, declared: Outcome::Holds },
                None => Outcome::Wrong,
            },
        };
        PayloadDigest { kept: known, declared }
    }

    /// Of a whole record, if it has a payload of its own.
    pub(super) fn of_record(record: &WarcRecord) -> Option<PayloadDigest> {
        let (http_head, body) = payload(record)?;
        Some(PayloadDigest::of(&record.head, &http_head, &body))
    }

    /// Of each of these that is a whole record with a payload of its own, several at a time.
    pub(super) fn of_each<'a>(items: impl Iterator<Item = &'a Item>) -> Vec<Option<PayloadDigest>> {
        let parts = |item: &'a Item| match item {
            Item::Record(record) => payload(record).map(|parts| (record, parts)),
            Item::Damage(_) => None,
        };
        let all: Vec<_> = items.map(parts).collect();
        let bodies: Vec<&[u8]> = all.iter().flatten().map(|(_, (_, body))| &body[..]).collect();
        let mut known = sha1_of_each(&bodies).into_iter();
        let mut of_one = |(record, (http_head, body)): &(&WarcRecord, (Bytes, Bytes))| {
            Some(PayloadDigest::of_known(&record.head, http_head, body, known.next()?))
        };
        all.iter().map(|one| one.as_ref().and_then(&mut of_one)).collect()
    }
}

/// HTTP head and body of a whole record that has a payload of its own.
fn payload(record: &WarcRecord) -> Option<(Bytes, Bytes)> {
    let Block::Whole(block) = &record.block else { return None };
    match record.kind() {
        Kind::Response => Some(http_parts(block.clone())),
        Kind::Resource => Some((Bytes::new(), block.clone())),
        _ => None,
    }
}

/// HTTP head and body of a response; what is no HTTP answer is all body.
pub(super) fn http_parts(block: Bytes) -> (Bytes, Bytes) {
    let mut body = block;
    let len = if http::is_answer(&body) { http::head_len(&body) } else { 0 };
    (body.split_to(len), body)
}

/// The SHA-1 of some bytes, one piece after the other.
pub(super) fn sha1<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Sha1Digest {
    let mut hasher = sha1::Sha1::new();
    pieces.into_iter().for_each(|piece| hasher.update(piece));
    hasher.finalize().into()
}

/// The SHA-256 of some bytes, one piece after the other.
pub(super) fn sha256<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut hasher = sha2::Sha256::new();
    pieces.into_iter().for_each(|piece| hasher.update(piece));
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_read_however_they_are_spelled() {
        let (short, long) = (sha1([&b"hello"[..]]), sha256([&b"hel"[..], b"lo"]));
        let hex = |bytes: &[u8]| data_encoding::HEXLOWER.encode(bytes);
        let base32 = |bytes: &[u8]| data_encoding::BASE32.encode(bytes);
        for (text, expected) in [
            (format!("sha1:{}", base32(&short)), Declared::Sha1(short)),
            (format!("SHA-1: {}", hex(&short)), Declared::Sha1(short)),
            (format!("sha256:{}", hex(&long)), Declared::Sha256(long)),
            (format!("sha-256:{}", base32(&long)), Declared::Sha256(long)),
            (
                format!("sha256:{}", base32(&long).trim_end_matches('=').to_lowercase()),
                Declared::Sha256(long),
            ),
            (format!("sha256:{}", hex(&short)), Declared::Other),
            (format!("sha1:{}", hex(&long)), Declared::Other),
            (format!("md5:{}", hex(&short)), Declared::Other),
            ("sha256".into(), Declared::Other),
            (
                "sha256:not of hexadecimal digits at all, though it has as many of them".into(),
                Declared::Other,
            ),
        ] {
            assert_eq!(Declared::parse(&text), expected, "{text}");
        }
    }

    #[test]
    fn a_digest_holds_for_a_body_with_its_chunks_or_without() {
        let (head, body) =
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"3\r\nabc\r\n0\r\n\r\n");
        for declared in [Declared::Sha256(sha256([&b"abc"[..]])), Declared::Sha1(sha1([&b"abc"[..]]))] {
            assert_eq!(declared.check(head, body), Some(sha1([&b"abc"[..]])));
            assert_eq!(declared.check(b"", body), None);
        }
        let whole = Declared::Sha256(sha256([&body[..]]));
        assert_eq!(whole.check(head, body), Some(sha1([&body[..]])));
    }
}
