//! Which sites' scripts may read answers in a browser: indexes, WARC bytes, TimeGates and TimeMaps are meant for tools that run
//! there (ReplayWeb.page does). Stored pages (mementos are such), streams, status and whatever changes something are never for other
//! sites.
//!
//! | | may read |
//! |---|---|
//! | with a token | every site: its script has to have the token, because browsers keep none for us |
//! | without one | sites on this machine, and those of [`Doors::origins`]: else every page that somebody looks at here could read a repository that only this machine is meant to reach |

use axum::response::{IntoResponse, Response};
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, StatusCode, Uri};

use super::security::{Doors, is_local_name};

/// Lets every site read this answer.
pub(super) fn allow(headers: &mut HeaderMap) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static(
            "content-range, content-length, accept-ranges, etag, link, memento-datetime",
        ),
    );
    // Stored pages are else kept to our own site.
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("cross-origin"));
}

/// Takes back what [`allow`] said if the site that asks may not read. Sites on this machine, and programs, which tell no site, may.
pub(super) fn restrict(doors: &Doors, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
    let allowed = headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN);
    if !allowed || doors.token.is_some() {
        return;
    }
    // On one line with what else it varies by: some clients read only one.
    let others = headers.get(header::VARY).and_then(|value| value.to_str().ok());
    let vary = others.map_or_else(|| "origin".to_owned(), |others| format!("{others}, origin"));
    if let Ok(vary) = HeaderValue::from_str(&vary) {
        headers.insert(header::VARY, vary);
    }
    let Some(origin) = origin else { return };
    let is_named = |origin: &str| doors.origins.iter().any(|named| named.eq_ignore_ascii_case(origin));
    if !origin.to_str().is_ok_and(|origin| is_local(origin) || is_named(origin)) {
        headers.remove(header::ACCESS_CONTROL_ALLOW_ORIGIN);
        headers.remove(header::ACCESS_CONTROL_EXPOSE_HEADERS);
        headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    }
}

/// Whether a site is served by this machine.
fn is_local(origin: &str) -> bool {
    origin.parse::<Uri>().is_ok_and(|uri| is_local_name(uri.host().unwrap_or_default()))
}

/// Answers what a browser asks first.
pub(super) async fn options() -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    allow(headers);
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, HEAD, OPTIONS"));
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static("range, if-range, if-none-match, if-modified-since, authorization"),
    );
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("86400"));
    headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD, OPTIONS"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may_read(doors: &Doors, origin: Option<&str>) -> bool {
        let origin = origin.map(|text| HeaderValue::from_str(text).unwrap());
        let mut headers = HeaderMap::new();
        allow(&mut headers);
        restrict(doors, origin.as_ref(), &mut headers);
        headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN)
    }

    #[test]
    fn without_a_token_only_this_machines_sites_may_read() {
        let named = vec!["https://replayweb.page".to_owned()];
        let doors = Doors { origins: named, ..Doors::default() };
        for (origin, may) in [
            (None, true),
            (Some("http://localhost:8080"), true),
            (Some("https://app.localhost"), true),
            (Some("http://127.0.0.1:7700"), true),
            (Some("http://[::1]:9000"), true),
            (Some("https://replayweb.page"), true),
            (Some("https://evil.example"), false),
            (Some("https://localhost.evil.example"), false),
            (Some("https://127.0.0.1.evil.example"), false),
            (Some("https://replayweb.page.evil.example"), false),
            (Some("null"), false),
        ] {
            assert_eq!(may_read(&doors, origin), may, "{origin:?}");
        }
        let doors = Doors { token: Some(webbase_node::Token::new([1; 32])), ..Doors::default() };
        assert!(may_read(&doors, Some("https://anybody.example")));
    }

    #[test]
    fn what_is_not_for_other_sites_is_left_alone() {
        let mut headers = HeaderMap::new();
        restrict(&Doors::default(), Some(&HeaderValue::from_static("https://evil.example")), &mut headers);
        assert!(headers.is_empty());
    }
}
