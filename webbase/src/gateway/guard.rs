//! What every request passes: it gets an id, is let in or not, is bounded in time, and is counted.
//!
//! Traces have a line for every request at `info` (target `webbase::access`), and at `warn` for those that failed; all with the
//! request's id.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::header::{HeaderName, HeaderValue, ORIGIN};
use hyper::{Method, StatusCode};

use super::problem::Problem;
use super::{Gateway, cors};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// A client's own request id is taken up to this length.
const ID_BYTES_MAX: usize = 64;

/// The label of whatever is at no route.
const NO_ROUTE: &str = "none";

/// What lines about requests are traced under.
const ACCESS: &str = "webbase::access";

static NUMBER: AtomicU64 = AtomicU64::new(1);

/// The id of a request, for whoever answers it after it has passed.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestId(String);

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

pub(super) async fn guard(State(gateway): State<Arc<Gateway>>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let matched = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let route = matched.and_then(|path| gateway.paths.iter().copied().find(|known| *known == path));
    let route = route.unwrap_or(NO_ROUTE);
    let method = method_name(request.method());
    let id = request_id(&request);
    let named = RequestId(id.to_str().unwrap_or_default().to_owned());
    request.extensions_mut().insert(named.clone());
    let origin = request.headers().get(ORIGIN).cloned();
    let traced = tracing::enabled!(target: ACCESS, tracing::Level::INFO).then(|| request.uri().to_string());
    let mut response = match admitted(&gateway, route, request, next).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    };
    let (status, took) = (response.status(), started.elapsed());
    gateway.metrics.answered(route, method, status, took);
    if status.is_server_error() {
        tracing::warn!(id = %named, method, route, status = status.as_u16(), "a request failed");
        gateway.console.error(format!("{method} {route} was answered with {status}"));
    } else if let Some(uri) = traced {
        let us = took.as_micros() as u64;
        tracing::info!(target: ACCESS, id = %named, method, uri, status = status.as_u16(), us, "answered");
    }
    cors::restrict(&gateway.doors, origin.as_ref(), response.headers_mut());
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

async fn admitted(
    gateway: &Gateway,
    route: &'static str,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    gateway.doors.check(request.method(), request.uri(), request.headers())?;
    let Ok(_room) = gateway.requests.try_acquire() else {
        return Err(Problem::busy(format!(
            "there are {} requests to answer already",
            gateway.limits.requests_max
        )));
    };
    if gateway.long.contains(&route) {
        return Ok(next.run(request).await);
    }
    let limit = gateway.limits.answer_time;
    tokio::time::timeout(limit, next.run(request)).await.map_err(|_| {
        let text = format!("there was no answer within {limit:?}");
        Problem::new(StatusCode::GATEWAY_TIMEOUT, "too-slow", text)
    })
}

/// The client's own, if it is one; else the next number.
fn request_id(request: &Request) -> HeaderValue {
    let own = request.headers().get(REQUEST_ID).filter(|value| {
        let bytes = value.as_bytes();
        let fine = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
        (1..=ID_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(fine)
    });
    own.cloned().unwrap_or_else(|| NUMBER.fetch_add(1, Ordering::Relaxed).into())
}

/// Methods are labels, so there are only so many.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}
