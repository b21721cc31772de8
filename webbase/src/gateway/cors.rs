//! Browsers on other sites may read what is meant for tools that run in them: indexes and WARC bytes (ReplayWeb.page does).

use axum::response::{IntoResponse, Response};
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, StatusCode};

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
