//! Errors as people and programs get them: RFC 9457, `application/problem+json`.
//!
//! ```text
//!   {"status": 404, "title": "Not Found", "code": "no-page", "detail": "http://h/ is not in the repository"}
//! ```
//!
//! `code` is for programs and does not change; `detail` is for people and may.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use webbase_node::wire::message::Code;
use webbase_node::{NodeError, Retry};
use webbase_storage::StorageError;

/// An answer that is no success.
#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    more: Vec<(&'static str, Value)>,
    /// Apart, because results carry problems about.
    headers: Box<HeaderMap>,
}

impl Problem {
    /// A problem with a status, a name for programs and a text for people.
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Problem {
        Problem { status, code, detail: detail.into(), more: Vec::new(), headers: Box::default() }
    }

    /// The request makes no sense.
    pub fn bad(code: &'static str, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, code, detail)
    }

    /// There is too much to do; it can be asked again in a while.
    pub fn busy(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail).after_s(1)
    }

    /// When to ask again.
    pub fn after_s(self, seconds: u32) -> Problem {
        self.header(RETRY_AFTER, HeaderValue::from(seconds))
    }

    /// A header beside the text.
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Problem {
        self.headers.insert(name, value);
        self
    }

    /// One more member of the object.
    pub fn with(mut self, name: &'static str, value: Value) -> Problem {
        self.more.push((name, value));
        self
    }

    /// The status it is answered with.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// What it says to people.
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let title = self.status.canonical_reason().unwrap_or("Problem");
        let mut text = json!({
            "status": self.status.as_u16(),
            "title": title,
            "code": self.code,
            "detail": self.detail,
        });
        if let Value::Object(members) = &mut text {
            members.extend(self.more.into_iter().map(|(name, value)| (name.to_owned(), value)));
        }
        let mut response = Response::new(Body::from(format!("{text}\n")));
        *response.status_mut() = self.status;
        *response.headers_mut() = *self.headers;
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}

impl From<NodeError> for Problem {
    fn from(e: NodeError) -> Problem {
        let text = e.to_string();
        match &e {
            NodeError::Storage(inner) => match **inner {
                StorageError::Url(_) => Problem::bad("bad-url", text),
                StorageError::BadCursor { .. } => Problem::bad("bad-cursor", text),
                StorageError::UnknownDictionary { .. } | StorageError::Unpack { .. } => {
                    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "damaged", text)
                }
                _ => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", text),
            },
            NodeError::StreamLost { .. } => Problem::new(StatusCode::GONE, "generation-gone", text),
            NodeError::Denied { .. } => Problem::new(StatusCode::CONFLICT, "refused", text),
            NodeError::TooMuch { .. } => Problem::bad("too-much", text),
            NodeError::Refused { fault, .. } if fault.code == Code::Damaged => {
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "damaged", text)
            }
            NodeError::Refused { fault, .. } if fault.code == Code::BadRequest => {
                Problem::bad("bad-request", text)
            }
            _ if e.retry() != Retry::Useless => {
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", text).after_s(1)
            }
            _ => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", text),
        }
    }
}

impl From<StorageError> for Problem {
    fn from(e: StorageError) -> Problem {
        NodeError::from(e).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_repository_have_a_status_of_their_own() {
        let lost = NodeError::StreamLost { generation: 3, why: "it is gone".into() };
        let none = NodeError::NoNode { role: "read", range: 1, generation: 2 };
        let late = NodeError::Timeout { peer: "n".into(), after_ms: 5 };
        for (error, status) in [(lost, 410), (none, 503), (late, 503)] {
            assert_eq!(Problem::from(error).status().as_u16(), status);
        }
    }

    #[test]
    fn a_problem_says_when_to_ask_again() {
        let response = Problem::busy("too much").with("limit", 3.into()).into_response();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["retry-after"], "1");
        assert_eq!(response.headers()["content-type"], "application/problem+json");
    }
}
