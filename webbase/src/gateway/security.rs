//! Who may ask: everybody on this machine, or whoever shows the token.
//!
//! `Authorization: Bearer TOKEN`, 64 hexadecimal digits. The read-only token is good for GET and HEAD. Tokens are compared in
//! constant time. Beyond loopback nothing is served without a token and TLS ([`webbase_node::check_listen`]).
//!
//! **Names.** "Everybody on this machine" is not every site that a browser on this machine shows. A site may have its own name
//! point to 127.0.0.1 (DNS rebinding); to the browser our answers are then the site's own, to read and to send commands with.
//! What gives it away is the `Host` that it was called by, so without a token only names that nobody else can have are answered.

use std::net::IpAddr;

use hyper::header::{AUTHORIZATION, HOST, HeaderValue, ORIGIN, WWW_AUTHENTICATE};
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Method, StatusCode, Uri};
use webbase_node::Token;

use super::problem::Problem;
use super::stream;

/// What is asked without a token: whether the process is well, and the console's files, which ask for one.
const OPEN: [&str; 3] = ["/healthz", "/readyz", "/"];
/// Where the console's files are.
const CONSOLE: &str = "/console/";
const EVENTS: &str = "/console/events";

/// Who may ask.
#[derive(Clone, Debug, Default)]
pub struct Doors {
    /// Whoever has it may do everything.
    pub token: Option<Token>,
    /// Whoever has it may read.
    pub read_token: Option<Token>,
    /// Sites whose scripts may read lists and WARC files where no token is asked for, as `https://replayweb.page`; sites on this
    /// machine may anyway.
    pub origins: Vec<String>,
    /// Names that this gateway may be called by where no token is asked for, beside `localhost` and loopback addresses: what a
    /// proxy on this machine calls it, say.
    pub hosts: Vec<String>,
}

impl Doors {
    /// Lets a request in.
    ///
    /// # Errors
    /// 401 without a good token, 403 with one that is good for less; where none is asked for, 421 if the gateway is called by a
    /// name that may be another site's.
    pub(super) fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        let path = uri.path();
        same_origin(method, headers)?;
        let Some(token) = &self.token else { return self.called(uri, headers) };
        // A browser asks so before it shows the token.
        if *method == Method::OPTIONS {
            return Ok(());
        }
        if OPEN.contains(&path) || path.starts_with(CONSOLE) && path != EVENTS {
            return Ok(());
        }
        let shown = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let shown: Option<Token> = shown
            .and_then(|text| text.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .and_then(|(_, token)| token.parse().ok());
        let Some(shown) = shown else {
            return Err(unauthorized("this needs a token: Authorization: Bearer TOKEN"));
        };
        if token.matches(&shown) {
            return Ok(());
        }
        if !self.read_token.as_ref().is_some_and(|read| read.matches(&shown)) {
            return Err(unauthorized("this is not the repository's token"));
        }
        // Streams are asked for with POST when their cursor is too long for a query.
        if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) || path == stream::PATH {
            return Ok(());
        }
        Err(Problem::new(StatusCode::FORBIDDEN, "read-only", "this token is for reading only"))
    }
}

impl Doors {
    /// Whether it is called by a name of its own. Who tells no name is no browser.
    fn called(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        let told =
            headers.get_all(HOST).iter().map(|host| host.to_str().ok()?.trim().parse::<Authority>().ok());
        for authority in uri.authority().cloned().map(Some).into_iter().chain(told) {
            let host = authority.as_ref().map_or("", Authority::host);
            let is_named = |named: &String| named.eq_ignore_ascii_case(host);
            if !is_local_name(host) && !self.hosts.iter().any(is_named) {
                let host: String = host.chars().take(100).collect();
                let text = format!(
                    "this gateway asks for no token, so it answers as localhost or by its address only, not as {host:?}; \
                     --allow-host adds a name"
                );
                return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "host", text));
            }
        }
        Ok(())
    }
}

/// Whether a host is this machine and nothing else. What a name begins or ends with does not count, but for `localhost`, which
/// names nothing else.
pub(super) fn is_local_name(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
    let host = host.strip_suffix('.').unwrap_or(&host);
    let is_loopback = host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
    is_loopback || host == "localhost" || host.ends_with(".localhost")
}

/// A browser says on whose behalf it asks. What changes something is done for our own pages only: any other page that somebody
/// looks at on this machine could else start a cycle.
fn same_origin(method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return Ok(());
    }
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
    if origin.is_some() && origin == text(HOST) {
        return Ok(());
    }
    Err(Problem::new(StatusCode::FORBIDDEN, "origin", "another site's page may not do this here"))
}

fn unauthorized(detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "token", detail)
        .header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"webbase\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_open_what_they_are_for() {
        let doors = Doors {
            token: Some(Token::new([1; 32])),
            read_token: Some(Token::new([2; 32])),
            ..Doors::default()
        };
        let check = |doors: &Doors, method: &Method, path: &str, header: Option<&str>| {
            let headers = header.map(|text| (AUTHORIZATION, text.parse().unwrap()));
            let checked = doors.check(method, &path.parse().unwrap(), &headers.into_iter().collect());
            checked.map_or_else(|problem| problem.status().as_u16(), |()| 200)
        };
        let bearer = |byte: &str| format!("bearer {}", byte.repeat(32));
        let (all, read, none) = (bearer("01"), bearer("02"), bearer("03"));
        for (method, header, expected) in [
            (Method::POST, Some(&*all), 200),
            (Method::GET, Some(&all), 200),
            (Method::GET, Some(&read), 200),
            (Method::POST, Some(&read), 403),
            (Method::GET, Some(&none), 401),
            (Method::GET, Some("Basic abc"), 401),
            (Method::GET, Some("Bearer"), 401),
            (Method::GET, None, 401),
        ] {
            assert_eq!(check(&doors, &method, "/page", header), expected, "{method} {header:?}");
        }
        assert_eq!(check(&doors, &Method::POST, "/stream", Some(&read)), 200);
        assert_eq!(check(&doors, &Method::GET, "/healthz", None), 200);
        assert_eq!(check(&Doors::default(), &Method::POST, "/pages", None), 200);
        assert_eq!(check(&doors, &Method::GET, "/console/console.js", None), 200);
        assert_eq!(check(&doors, &Method::GET, "/console/events", None), 401);
    }

    #[test]
    fn other_sites_change_nothing_here() {
        let doors = Doors { hosts: vec!["h".into()], ..Doors::default() };
        for (method, origin, allowed) in [
            (Method::POST, Some("http://h:7700"), true),
            (Method::POST, None, true),
            (Method::POST, Some("http://evil.example"), false),
            (Method::POST, Some("null"), false),
            (Method::GET, Some("http://evil.example"), true),
        ] {
            let mut headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static("h:7700"))]);
            headers.extend(origin.map(|origin| (ORIGIN, HeaderValue::from_static(origin))));
            let uri = Uri::from_static("/cycle");
            assert_eq!(doors.check(&method, &uri, &headers).is_ok(), allowed, "{method} {origin:?}");
        }
    }

    #[test]
    fn without_a_token_only_names_that_nobody_else_has_are_answered() {
        let doors = Doors { hosts: vec!["pages.internal".into()], ..Doors::default() };
        let open = Doors { token: Some(Token::new([1; 32])), ..Doors::default() };
        let asked = |doors: &Doors, uri: &str, host: &str| {
            let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_str(host).unwrap())]);
            let checked = doors.check(&Method::GET, &uri.parse().unwrap(), &headers);
            checked.map_or_else(|problem| problem.status().as_u16(), |()| 200)
        };
        for host in [
            "127.0.0.1:7700",
            "127.0.0.1",
            "127.8.9.10:1",
            "localhost:7700",
            "LOCALHOST",
            "localhost.:7700",
            "app.localhost",
            "[::1]:7700",
            "[::ffff:127.0.0.1]:7700",
            "Pages.Internal:7700",
        ] {
            assert_eq!(asked(&doors, "/status", host), 200, "{host}");
        }
        for host in [
            "evil.example:7700",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "notlocalhost",
            "pages.internal.evil.example",
            "10.0.0.1:7700",
            "0.0.0.0:7700",
            "[::]:7700",
            "",
            "a b",
        ] {
            assert_eq!(asked(&doors, "/status", host), 421, "{host}");
        }
        assert_eq!(asked(&doors, "http://evil.example/status", "127.0.0.1"), 421);
        assert_eq!(asked(&open, "/healthz", "evil.example"), 200, "a site has no token");
        assert!(doors.check(&Method::GET, &Uri::from_static("/status"), &HeaderMap::new()).is_ok());
    }
}
