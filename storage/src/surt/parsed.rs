//! The way to a key for every URL: split as browsers split it, each part decoded and folded.

use url::Host;

use super::{Profile, push_folded, push_host, push_lower, query};
use crate::url::{UrlError, shown};

/// Appends the key of a URL of at most `URL_BYTES_MAX` bytes.
pub(super) fn push(profile: Profile, text: &str, out: &mut String) -> Result<(), UrlError> {
    let trimmed = text.trim_matches(|c: char| c <= ' ');
    if trimmed.trim().is_empty() {
        return Err(UrlError::Empty);
    }
    let unbroken: String;
    let mut url = trimmed;
    if trimmed.contains(['\t', '\n', '\r']) {
        unbroken = trimmed.replace(['\t', '\n', '\r'], "");
        url = &unbroken;
    }
    let url = url.split_once('#').map_or(url, |(page, _)| page);
    let Some((scheme, rest)) = split_scheme(url) else {
        if url.is_empty() || url.starts_with(['/', '\\', '?']) {
            return Err(UrlError::Relative { url: shown(text) });
        }
        return push_site(profile, Kind::HTTP, url, out).map_err(|fault| fault.of(text));
    };
    let scheme = scheme.to_ascii_lowercase();
    let kind = Kind { scheme: &scheme };
    let result = match scheme.as_str() {
        "file" => {
            push_file(profile, rest, out);
            Ok(())
        }
        _ if kind.is_special() => push_site(profile, kind, rest.trim_start_matches(['/', '\\']), out),
        _ => match rest.strip_prefix("//") {
            Some(site) if !site.is_empty() && !site.starts_with(['/', '?']) => {
                push_site(profile, kind, site, out)
            }
            found => {
                push_lower(&scheme, out);
                out.push(':');
                push_rest(profile, found.unwrap_or(rest), out);
                Ok(())
            }
        },
    };
    result.map_err(|fault| fault.of(text))
}

/// What is wrong with a host or port.
enum Fault {
    NoHost,
    Unparsable(String),
}

impl Fault {
    fn of(self, text: &str) -> UrlError {
        match self {
            Fault::NoHost => UrlError::NoHost { url: shown(text) },
            Fault::Unparsable(reason) => UrlError::Unparsable { url: shown(text), reason },
        }
    }
}

/// What a scheme means for the rest of its URL.
#[derive(Clone, Copy)]
struct Kind<'s> {
    scheme: &'s str,
}

impl Kind<'static> {
    const HTTP: Kind<'static> = Kind { scheme: "http" };
}

impl Kind<'_> {
    /// Whether browsers know it, take `\` for `/` in it and want a host.
    fn is_special(self) -> bool {
        matches!(self.scheme, "http" | "https" | "ftp" | "ws" | "wss")
    }

    fn default_port(self) -> Option<u16> {
        match self.scheme {
            "http" | "ws" => Some(80),
            "https" | "wss" => Some(443),
            "ftp" => Some(21),
            _ => None,
        }
    }
}

/// The scheme and what is behind its colon; `None` where there is no scheme.
fn split_scheme(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_once(':')?;
    let named = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
    let known = ["http", "https", "ftp", "ws", "wss", "file"];
    let is_known = known.iter().any(|known| scheme.eq_ignore_ascii_case(known));
    (named && (is_known || !is_port(rest))).then_some((scheme, rest))
}

/// Whether a port number, and then a path, a query or the end, follow a name.
fn is_port(rest: &str) -> bool {
    let after = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = rest.get(..rest.len() - after.len()).unwrap_or_default();
    digits.parse::<u16>().is_ok() && (after.is_empty() || after.starts_with(['/', '?']))
}

/// Host, port, path and query, from the host on.
fn push_site(profile: Profile, kind: Kind<'_>, site: &str, out: &mut String) -> Result<(), Fault> {
    let special = kind.is_special();
    let end = if special { site.find(['/', '\\', '?']) } else { site.find(['/', '?']) };
    let (authority, rest) = site.split_at_checked(end.unwrap_or(site.len())).unwrap_or((site, ""));
    let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
    let (host, port) = split_port(place)?;
    if host.is_empty() {
        return Err(Fault::NoHost);
    }
    let port = port.filter(|port| Some(*port) != kind.default_port());
    let parsed = if special { Host::parse(host) } else { Host::parse_opaque(host) };
    match parsed.map_err(|error| Fault::Unparsable(error.to_string()))? {
        Host::Domain(domain) => push_host(profile, &domain, port, out),
        Host::Ipv4(address) => push_host(profile, &address.to_string(), port, out),
        Host::Ipv6(address) => {
            out.push_str(&address.to_string());
            if let Some(port) = port {
                out.push(':');
                out.push_str(&port.to_string());
            }
        }
    }
    out.push(')');
    let (path, asked) = split_query(rest);
    let unslashed = if special { path.replace('\\', "/") } else { path.to_owned() };
    push_path(profile, &unslashed, out);
    push_query(profile, asked, out);
    Ok(())
}

/// The host, which may be an address in brackets, and the port behind it.
fn split_port(place: &str) -> Result<(&str, Option<u16>), Fault> {
    let after_bracket = place.rfind(']').map_or(0, |at| at + 1);
    let colon = place.get(after_bracket..).and_then(|tail| tail.find(':'));
    let Some((host, port)) = colon.and_then(|at| place.split_at_checked(after_bracket + at)) else {
        return Ok((place, None));
    };
    let digits = port.get(1..).unwrap_or_default();
    if digits.is_empty() {
        return Ok((host, None));
    }
    let wrong = || Fault::Unparsable("invalid port number".to_owned());
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let port = digits.trim_start_matches('0');
    let port = if port.is_empty() { "0" } else { port };
    port.parse().map(|port| (host, Some(port))).map_err(|_| wrong())
}

/// A file has a host or none; a drive letter is part of the path. It is no page of any site, so it keeps its scheme.
fn push_file(profile: Profile, rest: &str, out: &mut String) {
    let (path, asked) = split_query(rest);
    out.push_str("file:");
    push_path(profile, &path.replace('\\', "/"), out);
    push_query(profile, asked, out);
}

/// What follows the colon of a URL without a host: a path, or any text.
fn push_rest(profile: Profile, rest: &str, out: &mut String) {
    let (path, asked) = split_query(rest);
    if path.starts_with('/') {
        push_path(profile, path, out);
    } else {
        let mut encoded = String::with_capacity(path.len());
        push_encoded(profile, path, &mut encoded);
        out.push_str(encoded.strip_suffix('/').unwrap_or(&encoded));
    }
    push_query(profile, asked, out);
}

fn split_query(rest: &str) -> (&str, &str) {
    rest.split_once('?').unwrap_or((rest, ""))
}

/// Appends a path: decoded, resolved, without session id, encoded, beginning with its only needless slash.
fn push_path(profile: Profile, path: &str, out: &mut String) {
    let decoded = decoded(path);
    let mut segments: Vec<&[u8]> = Vec::new();
    for segment in decoded.split(|byte| *byte == b'/').skip(usize::from(decoded.starts_with(b"/"))) {
        match segment {
            b"." => {}
            b".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    segments.retain(|segment| !segment.is_empty());
    drop_session(&mut segments);
    if segments.is_empty() {
        out.push('/');
    }
    for segment in segments {
        out.push('/');
        push_bytes(profile, segment, out);
    }
}

/// Drops the first segment that is an ASP.NET session id, where an ASP.NET page comes later.
fn drop_session(segments: &mut Vec<&[u8]>) {
    let is_page = |segment: &&[u8]| segment.windows(5).any(|five| five.eq_ignore_ascii_case(b".aspx"));
    let Some(session) = segments.iter().position(|segment| is_session(segment)) else { return };
    if segments.iter().skip(session + 1).any(is_page) {
        segments.remove(session);
    }
}

/// Whether a segment is `(id)` or `(a(id)s(id)…)`, where an id is 24 letters and digits.
fn is_session(segment: &[u8]) -> bool {
    let Some(inner) = segment.strip_prefix(b"(").and_then(|rest| rest.strip_suffix(b")")) else {
        return false;
    };
    let is_id = |id: &[u8]| id.len() == 24 && id.iter().all(u8::is_ascii_alphanumeric);
    let is_lettered = |part: &[u8]| match part {
        [letter, b'(', id @ .., b')'] => letter.is_ascii_alphabetic() && is_id(id),
        _ => false,
    };
    is_id(inner) || (!inner.is_empty() && inner.chunks(27).all(is_lettered))
}

fn push_query(profile: Profile, asked: &str, out: &mut String) {
    let mut encoded = String::with_capacity(asked.len());
    push_encoded(profile, asked, &mut encoded);
    query::push(&encoded, out);
}

fn push_encoded(profile: Profile, text: &str, out: &mut String) {
    push_bytes(profile, &decoded(text), out);
}

/// Appends bytes, percent-encoded where a key needs it.
fn push_bytes(profile: Profile, bytes: &[u8], out: &mut String) {
    const HEX: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    let hex = |nibble: u8| HEX.get(usize::from(nibble)).copied().unwrap_or_default();
    let plain = |byte: &u8| matches!(byte, 0x21..0x7f) && !matches!(byte, b'#' | b'%');
    let mut rest = bytes;
    while !rest.is_empty() {
        let len = rest.iter().position(|byte| !plain(byte)).unwrap_or(rest.len());
        let (kept, after) = rest.split_at_checked(len).unwrap_or((rest, &[]));
        push_folded(profile, std::str::from_utf8(kept).unwrap_or_default(), out);
        rest = after;
        if let Some((byte, after)) = rest.split_first() {
            out.extend(['%', hex(byte >> 4), hex(byte & 15)]);
            rest = after;
        }
    }
}

/// Percent-decoded until nothing changes: `%2541` is `A`.
///
/// What a `%` begins is decoded as soon as it is whole, and what comes out may be the end of another. Escapes don't
/// overlap, so the order makes no difference, and this is linear where repeating would not be.
fn decoded(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for byte in text.bytes() {
        out.push(byte);
        while let [.., b'%', high, low] = out.as_slice() {
            let digit = |byte: &u8| char::from(*byte).to_digit(16);
            let (Some(high), Some(low)) = (digit(high), digit(low)) else { break };
            out.truncate(out.len() - 3);
            out.push(u8::try_from(high * 16 + low).unwrap_or_default());
        }
    }
    out
}
