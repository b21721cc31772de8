//! Who may ask: everybody on this machine, or whoever shows the token.
//!
//! `Authorization: Bearer TOKEN`, 64 hexadecimal digits. The read-only token is good for GET and HEAD. Tokens are compared in
//! constant time. Beyond loopback nothing is served without a token and TLS ([`webbase_node::check_listen`]).

use hyper::header::{AUTHORIZATION, HOST, HeaderValue, ORIGIN, WWW_AUTHENTICATE};
use hyper::{HeaderMap, Method, StatusCode};
use webbase_node::Token;

use super::problem::Problem;

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
}

impl Doors {
    /// Lets a request in.
    ///
    /// # Errors
    /// 401 without a good token, 403 with one that is good for less.
    pub(super) fn check(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Problem> {
        same_origin(method, headers)?;
        let Some(token) = &self.token else { return Ok(()) };
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
        if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
            return Ok(());
        }
        Err(Problem::new(StatusCode::FORBIDDEN, "read-only", "this token is for reading only"))
    }
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
        let doors = Doors { token: Some(Token::new([1; 32])), read_token: Some(Token::new([2; 32])) };
        let check = |doors: &Doors, method: &Method, path: &str, header: Option<&str>| {
            let headers = header.map(|text| (AUTHORIZATION, text.parse().unwrap()));
            let checked = doors.check(method, path, &headers.into_iter().collect());
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
        assert_eq!(check(&doors, &Method::GET, "/healthz", None), 200);
        assert_eq!(check(&Doors::default(), &Method::POST, "/pages", None), 200);
        assert_eq!(check(&doors, &Method::GET, "/console/console.js", None), 200);
        assert_eq!(check(&doors, &Method::GET, "/console/events", None), 401);
    }

    #[test]
    fn other_sites_change_nothing_here() {
        let doors = Doors::default();
        for (method, origin, allowed) in [
            (Method::POST, Some("http://h:7700"), true),
            (Method::POST, None, true),
            (Method::POST, Some("http://evil.example"), false),
            (Method::POST, Some("null"), false),
            (Method::GET, Some("http://evil.example"), true),
        ] {
            let mut headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static("h:7700"))]);
            headers.extend(origin.map(|origin| (ORIGIN, HeaderValue::from_static(origin))));
            assert_eq!(doors.check(&method, "/cycle", &headers).is_ok(), allowed, "{method} {origin:?}");
        }
    }
}
