//! `GET /warcs/{file}`: the repository as WARC files, one for each version of a page, so that replay tools fetch what a CDX line names.
//!
//! ```text
//!   file      {page id and tie, 32 hex}-{fetched at, ms, hex}-{epoch, hex}.warc.gz
//!   content   one WARC/1.1 response record in one gzip member, whose blocks are stored and not packed
//! ```
//!
//! 1. The name says which page and which version, never where it lies: compaction, moves and replicas do not matter to it. Once a
//!    newer version took its place it is gone (410).
//! 2. A member of stored blocks has a length that follows from what is in it, so the URL index tells it without reading the page
//!    ([`length`]), and a part of it is sent without packing the whole. Packed, each CDX line would cost unpacking and packing a
//!    page. Whoever wants packed WARC takes `/stream`.
//! 3. The head of the record is made of what the index knows; its digests are of a fixed length.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use data_encoding::BASE32;
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use sha1::{Digest, Sha1};
use webbase_storage::urls::UrlRow;
use webbase_storage::{Dictionaries, PageId, PageKey, Record};

use super::body::Pieces;
use super::conditions::Validators;
use super::operation::{Operation, query};
use super::page::{made_head, partial, set};
use super::problem::Problem;
use super::ranges::{Wanted, wanted};
use super::{Gateway, cors};

/// Bytes of a stored block, at most.
const BLOCK_BYTES: usize = 65_535;
const MEMBER_HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
const MEMBER_TRAILER_BYTES: u64 = 8;
/// Behind a record.
const RECORD_END: &[u8] = b"\r\n\r\n";

pub(super) fn operations() -> Vec<Operation> {
    vec![Operation {
        path: "/warcs/{file}",
        method: "get",
        name: "warc_file",
        summary: "The WARC file that a CDX line names, or ranges of it",
        parameters: vec![query("file", "string", "as in a CDX line").in_path()],
        body: None,
        answers: &[
            (200, "application/warc", "The file"),
            (206, "application/warc", "The ranges that were asked for"),
            (304, "", "The client's copy is still right"),
            (404, "application/problem+json", "There is no such page"),
            (410, "application/problem+json", "The page has another version now"),
            (416, "application/problem+json", "The ranges are not within the file"),
        ],
        is_long: false,
        route: get(file).options(cors::options),
    }]
}

/// The name of a version's file.
pub(super) fn name(key: PageKey, fetched_at_ms: u64, epoch: u32) -> String {
    format!("{}{:016x}-{fetched_at_ms:x}-{epoch:x}.warc.gz", key.id, key.tie)
}

/// What a name names: page, fetch time and epoch.
fn named(name: &str) -> Option<(PageKey, u64, u32)> {
    let mut parts = name.strip_suffix(".warc.gz")?.split('-');
    let (key, at, epoch, None) = (parts.next()?, parts.next()?, parts.next()?, parts.next()) else {
        return None;
    };
    let hex = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if key.len() != 32 || ![key, at, epoch].into_iter().all(hex) {
        return None;
    }
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let key = PageKey { id: PageId(number(key.get(..16)?)?), tie: number(key.get(16..)?)? };
    Some((key, number(at)?, u32::from_str_radix(epoch, 16).ok()?))
}

/// The bytes of a version's file, as the URL index knows them.
pub(super) fn length(row: &UrlRow) -> u64 {
    let head = match row.head_len {
        0 => made_head(row.status, &row.mime, row.body_len as usize).len() as u64,
        len => u64::from(len),
    };
    let block = head + u64::from(row.body_len);
    // The key, and so the record's name, has a fixed length.
    let fields = Fields { key: PageKey::MIN, fetched_at_ms: row.fetched_at_ms, url: &row.url, block };
    member_bytes(fields.write("", "").len() as u64 + block + RECORD_END.len() as u64)
}

fn member_bytes(content: u64) -> u64 {
    let blocks = content.div_ceil(BLOCK_BYTES as u64).max(1);
    MEMBER_HEAD.len() as u64 + content + 5 * blocks + MEMBER_TRAILER_BYTES
}

/// What the head of a record says.
struct Fields<'a> {
    key: PageKey,
    fetched_at_ms: u64,
    url: &'a str,
    /// Bytes of the block.
    block: u64,
}

/// A digest's place holder: all are as long.
const NO_DIGEST: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

impl Fields<'_> {
    fn write(&self, payload: &str, whole: &str) -> String {
        let digest = |text: &str| if text.is_empty() { NO_DIGEST.to_owned() } else { text.to_owned() };
        let time = i64::try_from(self.fetched_at_ms).ok();
        let time =
            time.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok()).unwrap_or(jiff::Timestamp::MAX);
        let date = time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ");
        let url: String = self.url.chars().filter(|char| !char.is_control()).collect();
        format!(
            "WARC/1.1\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:{}>\r\nWARC-Date: {date}\r\n\
             WARC-Target-URI: {url}\r\nContent-Type: application/http; msgtype=response\r\n\
             WARC-Payload-Digest: sha1:{}\r\nWARC-Block-Digest: sha1:{}\r\nContent-Length: {}\r\n\r\n",
            self.uuid(),
            digest(payload),
            digest(whole),
            self.block,
        )
    }

    /// A name for the record that is always the same: of the page and its fetch time (UUID version 8).
    fn uuid(&self) -> String {
        let mut hash = Sha1::new();
        hash.update(self.key.id.0.to_be_bytes());
        hash.update(self.key.tie.to_be_bytes());
        hash.update(self.fetched_at_ms.to_be_bytes());
        let digest = hash.finalize();
        let bytes: [u8; 16] = digest.first_chunk().copied().unwrap_or_default();
        let bits = u128::from_be_bytes(bytes) & !(0xf << 76) & !(0x3 << 62) | 0x8 << 76 | 0x2 << 62;
        let hex = format!("{bits:032x}");
        let part = |range| hex.get(range).unwrap_or_default();
        format!("{}-{}-{}-{}-{}", part(0..8), part(8..12), part(12..16), part(16..20), part(20..32))
    }
}

/// A page as a WARC record, not packed.
pub(super) fn record_of(record: &Record, dictionaries: &Dictionaries) -> Result<Vec<Bytes>, Problem> {
    let page = record.get();
    let body = record.body(dictionaries)?;
    let mut head = record.head(dictionaries)?;
    if head.is_empty() {
        head = made_head(page.status(), page.mime(), body.len());
    }
    let payload = page.payload_digest().unwrap_or_else(|| Sha1::digest(&body).into());
    let whole = Sha1::new().chain_update(&head).chain_update(&body).finalize();
    let fields = Fields {
        key: page.key(),
        fetched_at_ms: page.fetched_at_ms(),
        url: page.url(),
        block: (head.len() + body.len()) as u64,
    };
    let first = fields.write(&BASE32.encode(&payload), &BASE32.encode(&whole));
    Ok(vec![first.into(), head, body, Bytes::from_static(RECORD_END)])
}

/// Pieces as one gzip member of stored blocks; no piece is copied.
fn stored(pieces: &[Bytes]) -> Pieces {
    let total: usize = pieces.iter().map(Bytes::len).sum();
    let mut out = vec![Bytes::from_static(&MEMBER_HEAD)];
    let (mut left, mut room) = (total, 0);
    let mut crc = flate2::Crc::new();
    for piece in pieces {
        crc.update(piece);
        let mut rest = piece.clone();
        while !rest.is_empty() {
            if room == 0 {
                room = left.min(BLOCK_BYTES);
                let len = (room as u16).to_le_bytes();
                let not = (!(room as u16)).to_le_bytes();
                let is_last = u8::from(room == left);
                out.push(Bytes::copy_from_slice(&[is_last, len[0], len[1], not[0], not[1]]));
                left -= room;
            }
            let some = rest.split_to(room.min(rest.len()));
            room -= some.len();
            out.push(some);
        }
    }
    let mut trailer = crc.sum().to_le_bytes().to_vec();
    trailer.extend_from_slice(&(total as u32).to_le_bytes());
    out.push(trailer.into());
    Pieces::new(out)
}

async fn file(
    State(gateway): State<Arc<Gateway>>,
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let mut response = match serve(&gateway, name, request.headers()).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    };
    cors::allow(response.headers_mut());
    response
}

async fn serve(
    gateway: &Gateway,
    name: Result<Path<String>, PathRejection>,
    asked: &HeaderMap,
) -> Result<Response, Problem> {
    let Path(name) = name.map_err(|e| Problem::bad("bad-path", e.to_string()))?;
    let none =
        || Problem::new(StatusCode::NOT_FOUND, "no-file", "a CDX line's filename is the name of a file here");
    let (key, fetched_at_ms, epoch) = named(&name).ok_or_else(none)?;
    let found = gateway.cluster.lookup(key).await?.pages;
    let Some(record) = found else {
        return Err(Problem::new(StatusCode::NOT_FOUND, "no-page", "this page is not in the repository"));
    };
    let page = record.get();
    if (page.fetched_at_ms(), page.epoch()) != (fetched_at_ms, epoch) {
        let text = format!(
            "this page was fetched again; its file is {}",
            self::name(key, page.fetched_at_ms(), page.epoch())
        );
        return Err(Problem::new(StatusCode::GONE, "superseded", text));
    }
    let version = page.version();
    let validators = Validators {
        etag: format!("\"{}-{:016x}\"", name.trim_end_matches(".warc.gz"), version.digest),
        modified_at_ms: fetched_at_ms,
    };
    let mut headers = HeaderMap::with_capacity(12);
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    set(&mut headers, header::ETAG, &validators.etag);
    set(&mut headers, header::LAST_MODIFIED, &validators.last_modified());
    if validators.not_modified(asked) {
        return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
    }
    let pieces = rendered(gateway, record).await?;
    let body = stored(&pieces);
    let wanted = validators.range(asked).map_or(Wanted::Whole, |range| wanted(range, body.len()));
    Ok(partial(headers, HeaderValue::from_static("application/warc"), body, wanted))
}

/// A page as a WARC record, made where it keeps nobody waiting.
pub(super) async fn rendered(gateway: &Gateway, record: Record) -> Result<Vec<Bytes>, Problem> {
    let dictionaries = gateway.cluster.dictionaries().clone();
    let work = move || record_of(&record, &dictionaries);
    tokio::task::spawn_blocking(work).await.map_err(|e| {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", format!("unpacking ended: {e}"))
    })?
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn names_come_back() {
        let key = PageKey { id: PageId(7), tie: u64::MAX };
        let text = name(key, 1_700_000_000_123, 9);
        assert_eq!(named(&text), Some((key, 1_700_000_000_123, 9)));
        for bad in [
            "",
            "x.warc.gz",
            "../../etc/passwd",
            &text.to_uppercase(),
            &format!("a{text}"),
            &text.replace('-', "_"),
        ] {
            assert_eq!(named(bad), None, "{bad}");
        }
    }

    #[test]
    fn stored_members_are_gzip_of_the_length_told() {
        for len in [1, 10, 65_534, 65_535, 65_536, 200_000] {
            let body: Vec<u8> = (0..len).map(|n: usize| (n * 7) as u8).collect();
            let pieces = [Bytes::from_static(b"head"), Bytes::from(body), Bytes::from_static(RECORD_END)];
            let whole = pieces.concat();
            let member = stored(&pieces);
            assert_eq!(member.len(), member_bytes(whole.len() as u64), "{len}");
            let bytes = member.slice(0..member.len()).concat();
            let mut unpacked = Vec::new();
            flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut unpacked).unwrap();
            assert!(unpacked == whole, "{len}");
        }
    }

    #[test]
    fn a_record_has_the_length_that_its_row_says() {
        let repository = webbase_storage::RepositoryKey::new([7; 32]);
        for (url, head, body_len) in
            [("http://h/", &b""[..], 0), ("http://h/\u{e4} b", b"HTTP/1.1 200 OK\r\n\r\n", 70_000)]
        {
            let body = vec![b'x'; body_len];
            let page = webbase_storage::Page {
                url,
                head,
                body: &body,
                status: 200,
                mime: "text/html",
                fetched_at_ms: 1_700_000_000_000,
                ..webbase_storage::Page::default()
            };
            let key = repository.page_key(url).unwrap();
            let row = UrlRow::of_page(&page, key).unwrap();
            let head = if head.is_empty() {
                made_head(200, "text/html", body_len)
            } else {
                Bytes::from_static(head)
            };
            let fields = Fields {
                key,
                fetched_at_ms: page.fetched_at_ms,
                url,
                block: (head.len() + body.len()) as u64,
            };
            let text = fields.write(&BASE32.encode(&[9; 20]), &BASE32.encode(&[8; 20]));
            let pieces = [text.into(), head, body.into(), Bytes::from_static(RECORD_END)];
            assert_eq!(stored(&pieces).len(), length(&row));
        }
    }
}
