//! Character sets of pages: byte order mark, HTTP, the page's own `meta`, and at last a guess, in this order.

use std::borrow::Cow;

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE};

/// A page says its character set in its first bytes, as HTML has it.
const PRESCAN_BYTES: usize = 1024;
/// A guess is made of so many bytes at most.
const GUESS_BYTES: usize = 64 << 10;

/// The value of `charset=` in a `Content-Type`.
pub(super) fn parameter(content_type: &str) -> Option<&str> {
    let (_, parameters) = content_type.split_once(';')?;
    let value = parameters.split(';').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("charset").then(|| value.trim())
    })?;
    Some(value.trim_matches(['"', '\'']))
}

/// The character set of some bytes, and how long the byte order mark is that says it.
pub(super) fn detect(bytes: &[u8], declared: Option<&str>, says_itself: bool) -> (&'static Encoding, usize) {
    if let Some(found) = Encoding::for_bom(bytes) {
        return found;
    }
    let named = declared.and_then(|label| Encoding::for_label(label.as_bytes()));
    let named = named.or_else(|| unmarked_utf16(bytes)).or_else(|| prescan(bytes).filter(|_| says_itself));
    (named.unwrap_or_else(|| guess(bytes)), 0)
}

/// Text in a character set, from behind its byte order mark.
pub(super) fn decode<'a>(bytes: &'a [u8], (encoding, mark): (&'static Encoding, usize)) -> Cow<'a, str> {
    encoding.decode_without_bom_handling(bytes.get(mark..).unwrap_or_default()).0
}

/// UTF-16 without a byte order mark, told by the `<?` of XML.
fn unmarked_utf16(bytes: &[u8]) -> Option<&'static Encoding> {
    match bytes.first_chunk::<4>()? {
        b"<\0?\0" => Some(UTF_16LE),
        b"\0<\0?" => Some(UTF_16BE),
        _ => None,
    }
}

/// The character set that the page itself names near its beginning.
fn prescan(bytes: &[u8]) -> Option<&'static Encoding> {
    let start = bytes.get(..PRESCAN_BYTES).unwrap_or(bytes).to_ascii_lowercase();
    let at = find(&start, b"charset").or_else(|| find(&start, b"encoding="))?;
    let rest = start.get(at..)?;
    let value = rest.get(rest.iter().position(|byte| *byte == b'=')? + 1..)?.trim_ascii_start();
    let value = value.strip_prefix(b"\"").or_else(|| value.strip_prefix(b"'")).unwrap_or(value);
    let end = value.iter().position(|b| !(b.is_ascii_alphanumeric() || b"-_:.".contains(b)));
    let encoding = Encoding::for_label(value.get(..end.unwrap_or(value.len()))?)?;
    // What could be read so far is no UTF-16, whatever it says.
    Some(if encoding == UTF_16BE || encoding == UTF_16LE { UTF_8 } else { encoding })
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

fn guess(bytes: &[u8]) -> &'static Encoding {
    if std::str::from_utf8(bytes).is_ok() {
        return UTF_8;
    }
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
    detector.feed(bytes.get(..GUESS_BYTES).unwrap_or(bytes), bytes.len() <= GUESS_BYTES);
    detector.guess(None, Utf8Detection::Allow)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode<'a>(bytes: &'a [u8], declared: Option<&str>, says_itself: bool) -> Cow<'a, str> {
        super::decode(bytes, detect(bytes, declared, says_itself))
    }

    #[test]
    fn what_is_said_first_counts() {
        let utf8 = "žluťoučký kůň".as_bytes();
        let latin2 = b"\xbelu\xbbou\xe8k\xfd k\xf9\xf2";
        assert_eq!(decode(utf8, None, true), "žluťoučký kůň");
        assert_eq!(decode(latin2, Some("iso-8859-2"), true), "žluťoučký kůň");
        let meta = [b"<meta charset = 'ISO-8859-2'>".as_slice(), latin2].concat();
        assert!(decode(&meta, None, true).ends_with("žluťoučký kůň"));
        assert!(!decode(&meta, Some("utf-8"), true).ends_with("kůň"), "HTTP goes first");
        let http = "<meta http-equiv=Content-Type content=\"text/html; charset=windows-1251\">\u{0}";
        let russian = [http.as_bytes(), b"\xcf\xf0\xe8\xe2\xe5\xf2"].concat();
        assert!(decode(&russian, None, true).ends_with("Привет"));
        let mark = [b"\xff\xfe".as_slice(), b"a\0b\0"].concat();
        assert_eq!(decode(&mark, Some("utf-8"), true), "ab", "a byte order mark goes first");
        assert_eq!(decode(b"<meta charset=utf-16>x", None, true), "<meta charset=utf-16>x");
        assert_eq!(decode(b"\0<\0?\0x", None, true), "<?x");
        assert_eq!(parameter("text/html; a=b; Charset=\"x\""), Some("x"));
    }

    #[test]
    fn broken_bytes_are_text_all_the_same() {
        for bytes in [b"".as_slice(), b"\xff", b"charset", b"charset=", b"<meta charset=\"", &[0x80; 3000]] {
            for label in [None, Some("utf-8"), Some("nonsense"), Some("iso-2022-jp"), Some("replacement")] {
                let _text = decode(bytes, label, true);
            }
        }
    }
}
