//! A page as fetched, on its way to a server that packs it. Little-endian, no padding.
//!
//! ```text
//!   OFFSET  SIZE  FIELD
//!        0     4  URL length (u); the highest bit says that there is a payload digest
//!        4     4  HTTP head length (h)
//!        8     4  body length (b)
//!       12     2  MIME type length (m)
//!       14     2  HTTP status
//!       16     8  fetched_at_ms
//!       24     8  modified_at_ms, 2^64-1 when unknown
//!       32     4  lifetime_s
//!       36     4  epoch
//!       40     u  URL
//!        …     m  MIME type
//!        …    20  with that bit: payload digest
//!        …     h  HTTP head
//!        …     b  body
//! ```
//!
//! Pages stand end to end in data frames, whose check guards them.

use webbase_storage::Page;

/// Bytes of a page before its URL.
pub const PAGE_HEADER_BYTES: usize = 40;
const UNKNOWN_MS: u64 = u64::MAX;
/// In the URL length: a payload digest follows the MIME type.
const HAS_DIGEST: u32 = 1 << 31;

/// Bytes of a page in this form.
pub fn page_bytes(page: &Page<'_>) -> usize {
    let digest = page.payload_digest.map_or(0, |digest| digest.len());
    PAGE_HEADER_BYTES + page.url.len() + page.mime.len() + digest + page.head.len() + page.body_len()
}

/// Appends a page, its body unpacked. `None`, with nothing appended, when a field is too long for its length, or the body does not unpack.
pub fn write_page(page: &Page<'_>, out: &mut Vec<u8>) -> Option<()> {
    let len = |bytes: &[u8]| u32::try_from(bytes.len()).ok();
    let plain_body = page.plain_body().ok()?;
    let (url, head, body) = (len(page.url.as_bytes())?, len(page.head)?, len(&plain_body)?);
    let mime = u16::try_from(page.mime.len()).ok()?;
    if url & HAS_DIGEST != 0 {
        return None;
    }
    let flag = if page.payload_digest.is_some() { HAS_DIGEST } else { 0 };
    let digest: &[u8] = page.payload_digest.as_ref().map_or(&[], |digest| digest);
    out.reserve(page_bytes(page));
    for length in [url | flag, head, body] {
        out.extend_from_slice(&length.to_le_bytes());
    }
    out.extend_from_slice(&mime.to_le_bytes());
    out.extend_from_slice(&page.status.to_le_bytes());
    out.extend_from_slice(&page.fetched_at_ms.to_le_bytes());
    out.extend_from_slice(&page.modified_at_ms.unwrap_or(UNKNOWN_MS).to_le_bytes());
    out.extend_from_slice(&page.lifetime_s.to_le_bytes());
    out.extend_from_slice(&page.epoch.to_le_bytes());
    for field in [page.url.as_bytes(), page.mime.as_bytes(), digest, page.head, &plain_body] {
        out.extend_from_slice(field);
    }
    Some(())
}

/// Takes the first page off `bytes`.
///
/// # Errors
/// When it is cut short or a text is not UTF-8.
pub fn take_page<'a>(bytes: &mut &'a [u8]) -> Result<Page<'a>, String> {
    let mut rest = *bytes;
    let short = || "a page cut short".to_owned();
    let word = |rest: &mut &'a [u8]| {
        let (word, after) = rest.split_first_chunk().ok_or_else(short)?;
        *rest = after;
        Ok::<_, String>(u32::from_le_bytes(*word))
    };
    let long = |rest: &mut &'a [u8]| Ok::<_, String>(u64::from(word(rest)?) | u64::from(word(rest)?) << 32);
    let (url, head, body) = (word(&mut rest)?, word(&mut rest)?, word(&mut rest)?);
    let mixed = word(&mut rest)?;
    let (fetched_at_ms, modified) = (long(&mut rest)?, long(&mut rest)?);
    let (lifetime_s, epoch) = (word(&mut rest)?, word(&mut rest)?);
    let field = |rest: &mut &'a [u8], len: u32| {
        let (field, after) = rest.split_at_checked(len as usize).ok_or_else(short)?;
        *rest = after;
        Ok::<_, String>(field)
    };
    let text = |bytes: &'a [u8], name: &str| {
        std::str::from_utf8(bytes).map_err(|_| format!("a page whose {name} is not UTF-8"))
    };
    let page = Page {
        url: text(field(&mut rest, url & !HAS_DIGEST)?, "URL")?,
        mime: text(field(&mut rest, mixed & 0xffff)?, "MIME type")?,
        payload_digest: field(&mut rest, if url & HAS_DIGEST != 0 { 20 } else { 0 })?.try_into().ok(),
        head: field(&mut rest, head)?,
        body: field(&mut rest, body)?,
        fetched_at_ms,
        modified_at_ms: Some(modified).filter(|&ms| ms != UNKNOWN_MS),
        status: (mixed >> 16) as u16,
        lifetime_s,
        epoch,
        deflated: None,
    };
    *bytes = rest;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn pages_come_back(url in "[a-z:/]{0,40}", mime in "[a-z/]{0,9}", head in proptest::collection::vec(any::<u8>(), 0..50),
                body in proptest::collection::vec(any::<u8>(), 0..50), at in any::<u64>(), modified in proptest::option::of(0..u64::MAX),
                status in any::<u16>(), epoch in any::<u32>(), payload_digest in proptest::option::of(any::<[u8; 20]>()), cut in 0..300_usize) {
            let page = Page { url: &url, mime: &mime, head: &head, body: &body, fetched_at_ms: at, modified_at_ms: modified,
                status, lifetime_s: epoch / 2, epoch, payload_digest, deflated: None };
            let mut out = Vec::new();
            write_page(&page, &mut out).unwrap();
            write_page(&page, &mut out).unwrap();
            prop_assert_eq!(out.len(), 2 * page_bytes(&page));
            let mut rest = out.as_slice();
            prop_assert_eq!(take_page(&mut rest), Ok(page));
            prop_assert_eq!(take_page(&mut rest), Ok(page));
            prop_assert!(rest.is_empty());
            let mut short = &out[..cut % page_bytes(&page)];
            prop_assert!(take_page(&mut short).is_err());
        }

        #[test]
        fn arbitrary_bytes_are_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut rest = bytes.as_slice();
            while take_page(&mut rest).is_ok() {}
        }
    }
}
