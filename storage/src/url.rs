//! Canonical URLs: the one text under which a page is known.
//!
//! A page id is a hash of the canonical URL, so two URLs with the same canonical form are the same
//! page: for adding, superseding, looking up and deleting. The rules:
//!
//! 1. The text is parsed as browsers do (WHATWG URL): outer blanks, tabs and newlines go, dot
//!    segments are resolved, the host becomes lower-case ASCII (IDNA), what needs percent-encoding
//!    gets it.
//! 2. Of an `http` or `https` URL we drop scheme, userinfo, fragment, default port, and the
//!    trailing slashes of the path, whether or not a query follows it. Everything else is kept: the
//!    case and the escapes of path and query, the order of the parameters, the `?` of an empty
//!    query.
//! 3. A port that is not the default *of its own scheme* stays, so `http://h:443` is not
//!    `https://h`. On any other port the two schemes are one page: a port speaks one of them.
//! 4. Any other scheme stays, and we drop userinfo, fragment, default port and trailing slashes; of
//!    URLs without a hierarchy (`dns:`, `urn:`, `mailto:`) only the fragment.
//! 5. A text without a scheme is read as `http`, as in an address bar and by the archive tools:
//!    `example.com/x`. A name followed by a port number is a host, not a scheme: `localhost:8080/x`.
//!    So a canonical form can be handed in again. A path, query or fragment alone is refused.
//!
//! | URL | canonical |
//! |---|---|
//! | `http://example.com/`, `HTTPS://u:p@Example.COM:443#top`, `example.com` | `example.com` |
//! | `http://example.com/a/./b/../C//d//` | `example.com/a/C//d` |
//! | `https://example.com/a/?q=1&b=/`, `http://example.com/a?q=1&b=/` | `example.com/a?q=1&b=/` |
//! | `http://example.com/?` | `example.com?` |
//! | `http://example.com:8080/`, `https://example.com:8080` | `example.com:8080` |
//! | `http://example.com:443/` | `example.com:443` |
//! | `http://bücher.example/ä ö?ü` | `xn--bcher-kva.example/%C3%A4%20%C3%B6?%C3%BC` |
//! | `http://0x7f.1/` | `127.0.0.1` |
//! | `ftp://u@example.com:21/dir/` | `ftp://example.com/dir` |
//! | `dns:example.com` | `dns:example.com` |
//! | `urn:x/y/#z` | `urn:x/y/` |
//!
//! Invariants, for every URL that is accepted:
//!
//! 1. The canonical form depends on the text alone, and has 1 to [`URL_BYTES_MAX`] bytes.
//! 2. That of an `http` or `https` URL is ASCII without blanks or control characters.
//! 3. With `http://` before it, it is a URL with the same canonical form; and so it is without,
//!    unless the host is named like a browser's scheme and has a port (`ftp:8080`). The one URL
//!    that does not come back is `https` on port 80, whose canonical form reads as `http`.
//! 4. No `http` or `https` URL shares its canonical form with a URL of another scheme.
//!
//! # What differs from the archive tools, and why
//!
//! SURT keys (CDX files, pywb, Common Crawl) and crawlers' normalisers fold more URLs together:
//! they drop `www.`, lower-case path and query, sort the parameters, drop empty ones and session
//! ids, decode escapes and encode them again (`%7E` is `~`, `%c3` is `%C3`), make `//` one slash,
//! drop the dots after a host. SURT also turns the host around, so that a site's pages lie
//! together.
//!
//! Such a key finds *captures*, in a list that somebody then looks through: one too many does no
//! harm. Ours is the *identity* of a page. Of two pages under one key the later supersedes the
//! earlier, which is lost; two keys for one page cost some disk. So we fold only what the server
//! never sees and, with the scheme and the trailing slashes, what servers nearly always redirect.
//! SURT keys are computed from the URL in the record, where they are asked for; never from the
//! canonical form.
//!
//! The parser lags the standard in two places that would change a canonical form once it catches
//! up: `^` in a path, and a blank at the end of a path without hierarchy. Here both are encoded as
//! the standard has it, so that a new version of the parser does not rename pages.

use url::{ParseError, Url};

/// The longest URL and the longest canonical form, in bytes: what a 16-bit length can say. Servers
/// refuse request lines far below it (8 KiB is usual); a longer one is a `data:` URL or a trap, not
/// a page.
pub const URL_BYTES_MAX: usize = 65_535;

/// How many characters of a URL an error shows.
const URL_CHARS_SHOWN: usize = 200;

/// Why a text is not the URL of a page. Texts in it are cut to 200 characters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// There is nothing but blanks.
    #[error("url is empty: give the address of a page, such as http://example.com/")]
    Empty,
    /// The text, or its canonical form, exceeds [`URL_BYTES_MAX`].
    #[error("url {url:?} has {len} bytes where at most {max} are allowed: leave this page out")]
    TooLong {
        /// The start of the text.
        url: String,
        /// Its bytes, or those of its canonical form.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A path, query or fragment alone, which could belong to any site.
    #[error("url {url:?} names no site: write it in full, such as http://example.com/page")]
    Relative {
        /// The text.
        url: String,
    },
    /// The scheme needs a host and there is none.
    #[error("url {url:?} has no host: put one after the scheme, as in http://example.com/")]
    NoHost {
        /// The text.
        url: String,
    },
    /// No browser would take it.
    #[error("url {url:?} cannot be parsed: {reason}; correct its host or port")]
    Unparsable {
        /// The text.
        url: String,
        /// What the parser says.
        reason: String,
    },
}

/// Returns the canonical form of a URL; see the [module](self) for the rules.
///
/// # Errors
///
/// [`UrlError`] says what is wrong with the text.
///
/// ```
/// use webbase_storage::url::canonical;
/// assert_eq!(canonical("https://Example.com:443/a/#top")?, "example.com/a");
/// # Ok::<(), webbase_storage::url::UrlError>(())
/// ```
pub fn canonical(url: &str) -> Result<String, UrlError> {
    let mut out = String::with_capacity(url.len().min(URL_BYTES_MAX));
    canonical_into(url, &mut out)?;
    Ok(out)
}

/// Appends the canonical form of a URL to `out`, for callers who make many and keep the buffer.
///
/// # Errors
///
/// As [`canonical`]; `out` is then as it was.
pub fn canonical_into(url: &str, out: &mut String) -> Result<(), UrlError> {
    if url.len() > URL_BYTES_MAX {
        return Err(too_long(url, url.len()));
    }
    if let Some((page, query)) = split_plain(url) {
        out.push_str(page);
        out.push_str(query);
        return Ok(());
    }
    let start = out.len();
    let mut result = push_parsed(url, out);
    let len = out.len().saturating_sub(start);
    if result.is_ok() && len > URL_BYTES_MAX {
        result = Err(too_long(url, len));
    }
    if result.is_err() {
        out.truncate(start);
    }
    result
}

/// The canonical form of a URL that has been parsed already, as a link of a page is when it is resolved.
///
/// # Errors
///
/// As [`canonical`].
pub fn canonical_of(url: &Url) -> Result<String, UrlError> {
    if !is_http(url) {
        return canonical(url.as_str());
    }
    let mut out = String::with_capacity(url.as_str().len());
    push_http(url, &mut out);
    if out.len() > URL_BYTES_MAX { Err(too_long(url.as_str(), out.len())) } else { Ok(out) }
}

/// The fast path: host with path, and query with its `?`, of a URL that the parser would leave as
/// it is. `None` means "ask the parser", and so does every doubt.
fn split_plain(url: &str) -> Option<(&str, &str)> {
    let rest = url.strip_prefix("http")?;
    let rest = rest.strip_prefix('s').unwrap_or(rest).strip_prefix("://")?;
    let host_len = span(rest, IN_HOST);
    let path_len = span(rest.get(host_len..)?, IN_PATH);
    let (page, after) = rest.split_at_checked(host_len + path_len)?;
    let (host, path) = page.split_at_checked(host_len)?;
    let port_or_userinfo = !path.is_empty() && !path.starts_with('/');
    if port_or_userinfo || may_have_dot_segment(path) || !is_plain_host(host) {
        return None;
    }
    let query = match after.strip_prefix('?') {
        Some(text) => after.get(..1 + span(text, IN_QUERY))?,
        None => "",
    };
    if !matches!(after.as_bytes().get(query.len()), None | Some(b'#')) {
        return None;
    }
    Some((page.trim_end_matches('/'), query))
}

/// Whether IDNA has no work with this host and it is not an address, for which the parser takes
/// every host whose last label looks like a number.
fn is_plain_host(host: &str) -> bool {
    let last = host.rsplit('.').next().unwrap_or_default();
    last.starts_with(|first: char| first.is_ascii_lowercase())
        && host.split('.').all(|label| !label.is_empty() && !label.starts_with("xn--"))
}

/// Whether a segment starts with a dot, which may be written `%2e`. (Faster than `contains`.)
fn may_have_dot_segment(path: &str) -> bool {
    let bytes = path.as_bytes();
    bytes.windows(2).any(|two| two == b"/.") || bytes.windows(3).any(|three| three == b"/%2")
}

/// How many bytes at the start of `text` are kept in this part of a URL; they are ASCII.
fn span(text: &str, part: u8) -> usize {
    let kept = |byte: u8| KEPT.get(usize::from(byte)).is_some_and(|parts| parts & part != 0);
    text.bytes().position(|byte| !kept(byte)).unwrap_or(text.len())
}

const IN_HOST: u8 = 1;
const IN_PATH: u8 = 2;
const IN_QUERY: u8 = 4;

/// For each byte the parts of a URL in which it is kept as it is, and does not end the part.
static KEPT: [u8; 256] = kept();

#[expect(clippy::indexing_slicing, reason = "runs in the compiler, which refuses a bad index")]
const fn kept() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0_u8;
    while byte < 0x7f {
        let in_host = matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
        let in_query = byte > b' ' && !matches!(byte, b'#' | b'"' | b'\'' | b'<' | b'>');
        let in_path =
            (in_query || byte == b'\'') && !matches!(byte, b'?' | b'^' | b'`' | b'{' | b'}' | b'\\');
        table[byte as usize] =
            (in_host as u8 * IN_HOST) | (in_path as u8 * IN_PATH) | (in_query as u8 * IN_QUERY);
        byte += 1;
    }
    table
}

/// The way through the parser, for every URL that is not plain.
fn push_parsed(text: &str, out: &mut String) -> Result<(), UrlError> {
    let start = out.len();
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(ParseError::RelativeUrlWithoutBase) => parse_without_scheme(text)?,
        Err(error) => return Err(refused(text, error)),
    };
    if is_http(&url) {
        push_http(&url, out);
        return Ok(());
    }
    push_other(&url, out);
    // `localhost:8080/x` parses as scheme `localhost`. It is told by what came out, so that nothing
    // that came out can be the form of an http URL as well.
    let form = out.get(start..).unwrap_or_default();
    if port_follows_name(form)
        && let Ok(url) = Url::parse(&format!("http://{form}"))
    {
        out.truncate(start);
        push_http(&url, out);
    }
    Ok(())
}

fn parse_without_scheme(text: &str) -> Result<Url, UrlError> {
    let trimmed = text.trim_matches(|c: char| c <= ' ');
    if trimmed.trim().is_empty() {
        return Err(UrlError::Empty);
    }
    if trimmed.starts_with(['/', '\\', '?', '#']) {
        return Err(UrlError::Relative { url: shown(text) });
    }
    Url::parse(&format!("http://{trimmed}")).map_err(|error| refused(text, error))
}

fn is_http(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
}

/// Whether digits, and then a path, a query or the end, follow the first colon.
fn port_follows_name(form: &str) -> bool {
    form.split_once(':').is_some_and(|(_, rest)| {
        let after = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        after.len() < rest.len() && (after.is_empty() || after.starts_with(['/', '?']))
    })
}

fn push_http(url: &Url, out: &mut String) {
    push_host(url, out);
    push_path(url.path().trim_end_matches('/'), out);
    push_query(url, out);
}

fn push_other(url: &Url, out: &mut String) {
    out.push_str(url.scheme());
    out.push(':');
    if url.cannot_be_a_base() {
        let path = url.path();
        let unblanked = path.strip_suffix(' ');
        out.push_str(unblanked.unwrap_or(path));
        out.push_str(if unblanked.is_some() { "%20" } else { "" });
    } else {
        let path = url.path().trim_end_matches('/');
        if url.has_authority() {
            out.push_str("//");
            push_host(url, out);
        } else if path.starts_with("//") {
            out.push_str("/."); // as the parser writes it, lest the path be taken for a host
        }
        push_path(path, out);
    }
    push_query(url, out);
}

fn push_host(url: &Url, out: &mut String) {
    out.push_str(url.host_str().unwrap_or_default());
    if let Some(port) = url.port() {
        out.push(':');
        out.push_str(&port.to_string());
    }
}

fn push_path(path: &str, out: &mut String) {
    for (n, part) in path.split('^').enumerate() {
        out.push_str(if n > 0 { "%5E" } else { "" });
        out.push_str(part);
    }
}

fn push_query(url: &Url, out: &mut String) {
    if let Some(query) = url.query() {
        out.push('?');
        out.push_str(query);
    }
}

pub(crate) fn too_long(url: &str, len: usize) -> UrlError {
    UrlError::TooLong { url: shown(url), len, max: URL_BYTES_MAX }
}

fn refused(text: &str, error: ParseError) -> UrlError {
    match error {
        ParseError::EmptyHost => UrlError::NoHost { url: shown(text) },
        error => UrlError::Unparsable { url: shown(text), reason: error.to_string() },
    }
}

/// The text as far as errors show it.
pub(crate) fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(URL_CHARS_SHOWN).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASES: &str = r#"
        http://example.com -> example.com
        https://example.com/ -> example.com
        HTTPS://u:p@Example.COM:443#top -> example.com
        http://@example.com:/# -> example.com
        http:example.com -> example.com
        http:\\example.com\a -> example.com/a
        http://www.example.com./ -> www.example.com.
        http://bücher.example/ä ö?ü ö -> xn--bcher-kva.example/%C3%A4%20%C3%B6?%C3%BC%20%C3%B6
        http://XN--BCHER-KVA.example -> xn--bcher-kva.example
        http://ex%41mple.com/%41 -> example.com/%41
        http://0x7f.1/ -> 127.0.0.1
        http://2130706433/ -> 127.0.0.1
        http://1.2.3.4.example/ -> 1.2.3.4.example
        http://[0:0::1]:80/x -> [::1]/x
        http://a_b.example/ -> a_b.example

        http://example.com:80/ -> example.com
        http://example.com:0080/ -> example.com
        http://example.com:443/ -> example.com:443
        http://example.com:8080/ -> example.com:8080
        https://example.com:8080/ -> example.com:8080

        http://example.com// -> example.com
        http://example.com/a/ -> example.com/a
        http://example.com/a// -> example.com/a
        http://example.com/a/./b/../C//d// -> example.com/a/C//d
        http://example.com/a/%2e%2E/b/. -> example.com/b
        http://example.com/../.. -> example.com
        http://example.com/.well-known/x -> example.com/.well-known/x
        http://example.com/a/... -> example.com/a/...
        http://example.com/A/%7Ea/~a/%c3 -> example.com/A/%7Ea/~a/%c3
        http://example.com/%20a% -> example.com/%20a%
        http://example.com/<a>"{b}`^|' -> example.com/%3Ca%3E%22%7Bb%7D%60%5E|'
        http://example.com/a;s=1/;b=2 -> example.com/a;s=1/;b=2

        http://example.com? -> example.com?
        http://example.com/?q -> example.com?q
        http://example.com/a/?q=1&b=/ -> example.com/a?q=1&b=/
        http://example.com/a?q=1&b=/#x -> example.com/a?q=1&b=/
        http://example.com/a?b=2&a=1&&A= -> example.com/a?b=2&a=1&&A=
        http://example.com/a?../x?y -> example.com/a?../x?y
        http://example.com/a?<'>"^`{|}\ -> example.com/a?%3C%27%3E%22^`{|}\

        example.com -> example.com
        example.com/x/#y -> example.com/x
        example.com:8080/x -> example.com:8080/x
        localhost:80?q -> localhost?q
        127.0.0.1:7700/status -> 127.0.0.1:7700/status
        [::1]:7700 -> [::1]:7700
        Bücher.example:8080 -> xn--bcher-kva.example:8080

        dns:example.com -> dns:example.com
        DNS:Example.com -> dns:Example.com
        dns://8.8.8.8/example.com -> dns://8.8.8.8/example.com
        urn:x/y/#z -> urn:x/y/
        urn:x  #z -> urn:x %20
        tel:1234567890 -> tel:1234567890
        mailto:a@example.com?subject=b -> mailto:a@example.com?subject=b
        ftp://u@Example.com:21/dir/ -> ftp://example.com/dir
        whois://u@host:43/a/./b/?q -> whois://host:43/a/b?q
        file:///a//b/ -> file:///a//b
        web+x:/.//a/ -> web+x:/.//a
    "#;

    #[test]
    fn table() {
        let lines = CASES.lines().filter(|line| !line.trim().is_empty());
        for (url, form) in lines.map(|line| line.trim().split_once(" -> ").unwrap()) {
            assert_eq!(canonical(url).as_deref(), Ok(form), "{url}");
            assert_eq!(canonical(form).as_deref(), Ok(form), "{url} again");
            let blanks = format!("\n {}\t{}\r\0 ", &url[..1], &url[1..]);
            assert_eq!(canonical(&blanks).as_deref(), Ok(form), "{blanks:?}");
            if let Ok(parsed) = Url::parse(url) {
                assert_eq!(canonical_of(&parsed).as_deref(), Ok(form), "{url} parsed");
            }
        }
    }

    /// The one exception to the third invariant.
    #[test]
    fn https_on_port_80() {
        assert_eq!(canonical("https://example.com:80/a").unwrap(), "example.com:80/a");
        assert_eq!(canonical("example.com:80/a").unwrap(), "example.com/a");
    }

    #[test]
    fn what_differs_stays_apart() {
        for (one, other) in [
            ("http://example.com/", "http://www.example.com/"),
            ("http://example.com/a", "http://example.com/A"),
            ("http://example.com/~a", "http://example.com/%7Ea"),
            ("http://example.com/a?b&c", "http://example.com/a?c&b"),
            ("http://example.com/a", "http://example.com/a?"),
            ("http://example.com/a/b", "http://example.com/a//b"),
            ("http://example.com:443/", "https://example.com/"),
            ("http://example.com/", "ftp://example.com/"),
            ("http://dns/", "dns:"),
            ("http://dns/example.com", "dns:/example.com"),
        ] {
            assert_ne!(canonical(one).unwrap(), canonical(other).unwrap());
        }
    }

    #[test]
    fn what_is_no_url_is_refused() {
        for url in ["", " \t\r\n", "\0", "\u{a0}\u{3000}"] {
            assert_eq!(canonical(url), Err(UrlError::Empty), "{url:?}");
        }
        for url in r"/a //example.com/a \a ?a #a".split(' ') {
            let refused = canonical(url).unwrap_err();
            assert!(matches!(refused, UrlError::Relative { .. }), "{refused:?}");
        }
        for url in "http:// https:/// http://:80/ http://u@/ :80 ftp:".split(' ') {
            let refused = canonical(url).unwrap_err();
            assert!(matches!(refused, UrlError::NoHost { .. }), "{refused:?}");
        }
        for url in "http://h:65536/ http://h:8a/ http://1.2.3.256/ http://[::1/ http://h%00/ h|".split(' ') {
            let refused = canonical(url).unwrap_err();
            assert!(matches!(refused, UrlError::Unparsable { .. }), "{refused:?}");
        }
    }

    #[test]
    fn errors_name_the_url_and_show_200_characters_of_it() {
        let refused = canonical("http://example.com:x/").unwrap_err().to_string();
        assert!(refused.contains("\"http://example.com:x/\""), "{refused}");
        let refused = canonical(&format!("/{}", "ä\n".repeat(5_000))).unwrap_err();
        let UrlError::Relative { url } = &refused else { panic!("{refused}") };
        assert_eq!(url.chars().count(), URL_CHARS_SHOWN + 1);
        assert!(!refused.to_string().contains('\n'));
    }

    #[test]
    fn text_and_form_are_bounded() {
        let longest = format!("http://h/{}", "a".repeat(URL_BYTES_MAX - 9));
        assert_eq!(canonical(&longest).unwrap().len(), URL_BYTES_MAX - 7);
        let (len, max) = (URL_BYTES_MAX + 1, URL_BYTES_MAX);
        let refused = canonical(&(longest + "a")).unwrap_err();
        assert!(matches!(refused, UrlError::TooLong { len: l, max: m, .. } if (l, m) == (len, max)));
        let grows = format!("http://h/{}", "ä".repeat(URL_BYTES_MAX / 6));
        assert!(canonical(&grows).is_ok());
        let refused = canonical(&(grows + "äää")).unwrap_err();
        assert!(matches!(refused, UrlError::TooLong { len: l, .. } if l > max));
    }

    #[test]
    fn the_buffer_is_appended_to_or_left_alone() {
        let mut out = String::from("kept ");
        canonical_into("http://example.com/a/", &mut out).unwrap();
        canonical_into(" http://example.com/b/", &mut out).unwrap();
        assert_eq!(out, "kept example.com/aexample.com/b");
        let too_long = format!("a/{}", "ä".repeat(30_000));
        for url in ["", "/a", "http://a b/", &too_long] {
            canonical_into(url, &mut out).unwrap_err();
            assert_eq!(out, "kept example.com/aexample.com/b");
        }
    }

    /// Every byte in every kind of place, so that the fast path is right about each.
    #[test]
    fn plain_urls_are_what_the_parser_makes_of_them() {
        let places = "http://* https://a*/b http://a.*/b http://a.b* http://*a.b/ http://a/* \
            http://a/b*/c http://a/*/c http://a/b*?d http://a/b/* http://a?* http://a/b?c*d \
            http://a/b?c#* http*://a/b http:*/a/b http://a*b@c/d";
        let words = ".. .a a. %2e %2E. %2 %20 // /./ /../a xn-- xn--a.b xn--bcher-kva.c 0x1 0x 1 \
            1.2.3.4 1e5 - a--b :80 :443 : :8 @ ? ?? ?# #? ä a\u{ad}b a\u{3002}b \u{7f} \u{80} www.b";
        let bytes = (0..=0x7f_u8).map(|byte| char::from(byte).to_string());
        let words: Vec<String> = bytes.chain(words.split(' ').map(str::to_owned)).collect();
        let mut plain_count = 0;
        for place in places.split(' ') {
            let variants = |word: &String| [word.clone(), word.repeat(2), format!("a{word}1")];
            for word in words.iter().flat_map(variants) {
                let url = place.replace('*', &word);
                let Some((page, query)) = split_plain(&url) else {
                    continue;
                };
                let mut parsed = String::new();
                assert_eq!(push_parsed(&url, &mut parsed), Ok(()), "{url:?}");
                assert_eq!(format!("{page}{query}"), parsed, "{url:?}");
                plain_count += 1;
            }
        }
        assert!(plain_count > 2_000, "{plain_count}");
    }
}
