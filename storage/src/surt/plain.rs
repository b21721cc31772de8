//! The fast way to a key: for URLs that need no decoding, no resolving and no dropping, which is most of them.
//!
//! Whatever is in doubt is left to `parsed.rs`; a test compares the two on random URLs.

use super::{Profile, push_folded, push_host, query};

/// Appends the key and says `true`, or says `false` and leaves anything behind the end of `out`.
pub(super) fn push(profile: Profile, url: &str, out: &mut String) -> bool {
    push_plain(profile, url, out).is_some()
}

fn push_plain(profile: Profile, url: &str, out: &mut String) -> Option<()> {
    let rest = url.strip_prefix("http")?;
    let rest = rest.strip_prefix('s').unwrap_or(rest).strip_prefix("://")?;
    let (host, rest) = rest.split_at_checked(span(rest, IN_HOST))?;
    let (path, rest) = rest.split_at_checked(span(rest, IN_PATH))?;
    let (asked, rest) = rest.split_at_checked(span(rest, IN_QUERY))?;
    let begins = |part: &str, with: char| part.is_empty() || part.starts_with(with);
    let in_three_parts = begins(path, '/') && begins(asked, '?') && begins(rest, '#');
    if !in_three_parts || has_work(path) || !is_plain_host(host) {
        return None;
    }
    push_host(profile, host, None, out);
    out.push_str(")/");
    push_folded(profile, path.get(1..).map_or("", |path| path.strip_suffix('/').unwrap_or(path)), out);
    query::push_plain(profile, asked.get(1..).unwrap_or_default(), out)
}

/// Whether the parser would leave this host as it is but for its case: no address, nothing for IDNA.
fn is_plain_host(host: &str) -> bool {
    let last = host.rsplit('.').next().unwrap_or_default();
    last.starts_with(|first: char| first.is_ascii_alphabetic())
        && host.split('.').all(|label| {
            !label.is_empty() && !label.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("xn--"))
        })
}

/// Whether two slashes meet or a segment starts with a dot.
fn has_work(path: &str) -> bool {
    path.as_bytes().windows(2).any(|two| two == b"//" || two == b"/.")
}

/// How many bytes at the start of `text` are plain in this part of a URL; they are ASCII.
fn span(text: &str, part: u8) -> usize {
    let kept = |byte: u8| PLAIN.get(usize::from(byte)).is_some_and(|parts| parts & part != 0);
    text.bytes().position(|byte| !kept(byte)).unwrap_or(text.len())
}

const IN_HOST: u8 = 1;
const IN_PATH: u8 = 2;
const IN_QUERY: u8 = 4;

/// For each byte the parts of a URL in which it is plain: kept but for its case, and no end of the part.
static PLAIN: [u8; 256] = plain();

#[expect(clippy::indexing_slicing, reason = "runs in the compiler, which refuses a bad index")]
const fn plain() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0x21_u8;
    while byte < 0x7f {
        let in_host = matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.');
        let in_query = !matches!(byte, b'#' | b'%');
        let in_path = in_query && !matches!(byte, b'?' | b'\\' | b'(');
        table[byte as usize] =
            (in_host as u8 * IN_HOST) | (in_path as u8 * IN_PATH) | (in_query as u8 * IN_QUERY);
        byte += 1;
    }
    table
}
