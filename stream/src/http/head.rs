//! The head of a stored answer: where it ends, and what its fields say.

use bytes::Bytes;

/// Length of the head that a block begins with: up to its first empty line, which belongs to it, or all of the block.
pub fn head_len(block: &[u8]) -> usize {
    let mut at = 0;
    for line in block.split_inclusive(|byte| *byte == b'\n') {
        at += line.len();
        if line.trim_ascii_end().is_empty() {
            return at;
        }
    }
    block.len()
}

/// Whether a block begins as an HTTP answer does.
pub fn is_answer(block: &[u8]) -> bool {
    block.get(..5).is_some_and(|start| start.eq_ignore_ascii_case(b"HTTP/"))
}

/// All fields, as far as they are some: names and values, trimmed.
pub fn fields(head: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    head.split(|byte| *byte == b'\n').skip(1).filter_map(|line| {
        let at = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at_checked(at)?;
        Some((name.trim_ascii_end(), value.get(1..).unwrap_or_default().trim_ascii()))
    })
}

/// The first field with this name, however its letters are: its value, trimmed.
pub fn field<'a>(head: &'a [u8], name: &str) -> Option<&'a [u8]> {
    lines(head).skip(1).find_map(|line| value(line, name))
}

/// The lines of a head, without their line feeds.
pub(crate) fn lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(head);
    std::iter::from_fn(move || {
        let all = rest?;
        let (line, later) = match memchr::memchr(b'\n', all) {
            Some(at) => (all.get(..at)?, all.get(at + 1..)),
            None => (all, None),
        };
        rest = later;
        Some(line)
    })
}

/// The value of a field with this name, trimmed, if that is what a line is. Most lines are told by their first letters.
pub(crate) fn value<'a>(line: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let (start, rest) = line.split_at_checked(name.len())?;
    if !start.eq_ignore_ascii_case(name.as_bytes()) {
        return None;
    }
    Some(rest.trim_ascii_start().strip_prefix(b":")?.trim_ascii())
}

/// As [`field`], if it is ASCII.
pub fn text<'a>(head: &'a [u8], name: &str) -> Option<&'a str> {
    field(head, name).and_then(|value| std::str::from_utf8(value).ok()).filter(|value| value.is_ascii())
}

/// The status of an answer; 0 when it has none.
pub fn status(head: &[u8]) -> u16 {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let word = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).nth(1);
    let word = word.and_then(|word| std::str::from_utf8(word.trim_ascii()).ok());
    word.and_then(|word| word.parse().ok()).filter(|status| (100..=999).contains(status)).unwrap_or(0)
}

/// A content type without its parameters, in lower case; empty when it is none.
pub fn mime(content_type: &str) -> String {
    let mime = content_type.split([';', ',']).next().unwrap_or_default().trim();
    let is_mime = mime.len() <= 200 && mime.contains('/') && mime.bytes().all(|byte| byte.is_ascii_graphic());
    if is_mime { mime.to_ascii_lowercase() } else { String::new() }
}

/// Whether the head says that the body came in chunks.
pub fn is_chunked(head: &[u8]) -> bool {
    text(head, "transfer-encoding").is_some_and(|value| {
        value.rsplit(',').next().is_some_and(|coding| coding.trim().eq_ignore_ascii_case("chunked"))
    })
}

/// The chunks of a body, one after the other; ends where they do, or where they make no sense.
pub fn chunks(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = body;
    std::iter::from_fn(move || {
        let (size, after) = chunk_size(rest).filter(|(size, _)| *size > 0)?;
        let chunk = after.get(..size).unwrap_or(after);
        let next = after.get(size..).unwrap_or_default();
        rest = next.strip_prefix(b"\r\n").or_else(|| next.strip_prefix(b"\n")).unwrap_or(next);
        Some(chunk)
    })
}

/// The body without its chunks; as it is, if it has none: many crawlers take them off and leave the field. Of a body that
/// was cut short what is there.
pub fn without_chunks(body: &Bytes) -> Bytes {
    if chunk_size(body).is_none() {
        return body.clone();
    }
    let mut out = Vec::with_capacity(body.len());
    chunks(body).for_each(|chunk| out.extend_from_slice(chunk));
    out.into()
}

/// The size that a chunk begins with, and what follows its line.
fn chunk_size(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let end = bytes.iter().take(1024).position(|byte| *byte == b'\n')?;
    let (line, rest) = bytes.split_at_checked(end)?;
    let size = line.split(|byte| *byte == b';').next()?.trim_ascii();
    let is_size = (1..=8).contains(&size.len()) && size.iter().all(u8::is_ascii_hexdigit);
    let size = is_size.then(|| std::str::from_utf8(size).ok()).flatten()?;
    Some((usize::from_str_radix(size, 16).ok()?, rest.get(1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_ends_with_its_first_empty_line() {
        for (block, len) in [
            (&b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nbody\r\n\r\n"[..], 25),
            (b"HTTP/1.1 200 OK\nA: b\n\nbody", 22),
            (b"HTTP/1.1 200 OK\r\n \r\nbody", 20),
            (b"HTTP/1.1 200 OK\r\nA: b", 21),
            (b"\r\nbody", 2),
            (b"", 0),
        ] {
            assert_eq!(head_len(block), len, "{}", block.escape_ascii());
        }
    }

    #[test]
    fn fields_are_found_in_broken_heads() {
        let head = b"HTTP/1.1  404 Not Found\r\nContent-TYPE : Text/HTML; charset=x\r\nbad\nTransfer-Encoding: gzip, Chunked\n\n";
        assert_eq!(status(head), 404);
        assert_eq!(mime(text(head, "content-type").unwrap()), "text/html");
        assert!(is_chunked(head));
        assert_eq!(status(b"HTTP/1.1 abc"), 0);
        assert_eq!(mime("nonsense"), "");
    }

    #[test]
    fn chunks_come_one_after_the_other() {
        let all = |body: &'static [u8]| chunks(body).collect::<Vec<_>>().concat();
        assert_eq!(all(b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"), b"abcde");
        assert_eq!(all(b"3\nabc\n9\nde"), b"abcde");
        assert_eq!(all(b"<html>"), b"");
        assert_eq!(all(b"ffffffffffffffff\r\nabc"), b"");
    }

    #[test]
    fn what_cannot_be_read_is_as_if_it_were_not_there() {
        let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nno colon\nx:\r\n\r\n";
        assert_eq!(text(head, "content-type"), Some("text/html; charset=utf-8"));
        assert_eq!((field(head, "x"), field(b"", "x")), (Some(&b""[..]), None));
        assert_eq!(field(head, "http/1.1 200 ok"), None);
        assert_eq!(text(b"s\nx: \xff\n", "x"), None);
        assert!(!is_chunked(b"s\r\nTransfer-Encoding: identity\r\n"));
        assert_eq!(fields(head).count(), 2);
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
