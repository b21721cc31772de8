//! A stored HTTP answer, read again: fields of its head, and its body without the transfer coding.
//!
//! Heads are stored byte for byte, so they may be anything: broken lines, bare line feeds, no head at all. What cannot be
//! read is as if it were not there.

use bytes::Bytes;

/// The first field of a stored head with this name, in lower case: its value, trimmed, without line breaks.
pub(super) fn field<'a>(head: &'a [u8], name: &str) -> Option<&'a [u8]> {
    head.split(|byte| *byte == b'\n').skip(1).find_map(|line| {
        let at = line.iter().position(|byte| *byte == b':')?;
        let (found, value) = line.split_at_checked(at)?;
        found.eq_ignore_ascii_case(name.as_bytes()).then(|| value.get(1..).unwrap_or_default().trim_ascii())
    })
}

/// All fields of a stored head, as far as they are some.
pub(super) fn fields(head: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    head.split(|byte| *byte == b'\n').skip(1).filter_map(|line| {
        let at = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at_checked(at)?;
        Some((name, value.get(1..).unwrap_or_default().trim_ascii()))
    })
}

/// As [`field`], if it is ASCII.
pub(super) fn text<'a>(head: &'a [u8], name: &str) -> Option<&'a str> {
    field(head, name).and_then(|value| std::str::from_utf8(value).ok()).filter(|value| value.is_ascii())
}

/// Whether the head says that the body came in chunks.
pub(super) fn is_chunked(head: &[u8]) -> bool {
    text(head, "transfer-encoding").is_some_and(|value| {
        value.rsplit(',').next().is_some_and(|c| c.trim().eq_ignore_ascii_case("chunked"))
    })
}

/// The body without its chunks; as it is, if it has none: many crawlers take them off and leave the field. Of a body that
/// was cut short what is there.
pub(super) fn without_chunks(body: &Bytes) -> Bytes {
    let mut out: Vec<u8> = Vec::new();
    let mut rest: &[u8] = body;
    let mut chunks = 0_usize;
    loop {
        let Some((size, after)) = chunk_size(rest) else {
            // Nothing but chunks ends in chunks.
            return if chunks == 0 { body.clone() } else { out.into() };
        };
        chunks += 1;
        if size == 0 {
            return out.into();
        }
        let chunk = after.get(..size).unwrap_or(after);
        out.extend_from_slice(chunk);
        rest = after.get(size..).unwrap_or_default();
        rest = rest.strip_prefix(b"\r\n").or_else(|| rest.strip_prefix(b"\n")).unwrap_or(rest);
        if rest.is_empty() {
            return out.into();
        }
    }
}

/// The size that a chunk begins with, and what follows its line.
fn chunk_size(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let line_end = bytes.iter().take(1024).position(|byte| *byte == b'\n')?;
    let (line, rest) = bytes.split_at_checked(line_end)?;
    let size = line.split(|byte| *byte == b';').next()?.trim_ascii();
    let digits = (1..=8).contains(&size.len()) && size.iter().all(u8::is_ascii_hexdigit);
    let size = digits.then(|| std::str::from_utf8(size).ok()).flatten()?;
    Some((usize::from_str_radix(size, 16).ok()?, rest.get(1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_in_broken_heads() {
        let head = b"HTTP/1.1 200 OK\r\ncontent-TYPE : text/x\r\nContent-Type: text/html; charset=utf-8\r\nno colon\nx:\r\n\r\n";
        assert_eq!(text(head, "content-type"), Some("text/html; charset=utf-8"));
        assert_eq!(field(head, "x"), Some(&b""[..]));
        assert_eq!(field(head, "http/1.1 200 ok"), None);
        assert_eq!(field(b"", "x"), None);
        assert_eq!(text(b"s\nx: \xff\n", "x"), None);
        assert!(is_chunked(b"s\r\nTransfer-Encoding: gzip, Chunked\r\n"));
        assert!(!is_chunked(b"s\r\nTransfer-Encoding: identity\r\n"));
    }

    #[test]
    fn chunks_come_off() {
        for (body, plain) in [
            (&b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"[..], &b"abcde"[..]),
            (b"3\nabc\n0\n\n", b"abc"),
            (b"3\r\nabc\r\n9\r\nde", b"abcde"),
            (b"0\r\n\r\n", b""),
            (b"<html>was taken off before</html>", b"<html>was taken off before</html>"),
            (b"", b""),
            (b"ffffffffffffffff\r\nabc", b"ffffffffffffffff\r\nabc"),
            (b"3\r\nabc\r\nnonsense", b"abc"),
        ] {
            assert_eq!(without_chunks(&Bytes::from_static(body)), plain, "{}", body.escape_ascii());
        }
    }
}
