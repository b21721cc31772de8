//! The parameters of a request: percent-decoded strictly, each known, each given at most once unless it may be repeated. They come
//! in the query, or in a body of the same form.

use std::time::Duration;

use axum::extract::{FromRequestParts, Request};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use hyper::http::request::Parts;

use super::problem::Problem;

/// A query of more bytes is refused before it is read.
pub(super) const QUERY_BYTES_MAX: usize = 16 << 10;
/// A body of more bytes is refused: a cursor names a place for each range of a repository, of which there are 65 536 at most.
pub(super) const FORM_BYTES_MAX: usize = 4 << 20;
/// No request has use for more parameters.
const PARAMETERS_MAX: usize = 200;
/// Characters of a value that people are shown.
const SHOWN_CHARS_MAX: usize = 60;
/// The content type of parameters in a body.
pub(super) const FORM: &str = "application/x-www-form-urlencoded";

/// What is left of a request's parameters: each is taken, and [`Params::finish`] names those that nobody took.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Params(Vec<(String, String)>);

impl Params {
    /// Reads a query, which may be absent.
    ///
    /// # Errors
    /// When it is too long, or not percent-encoded UTF-8.
    pub(super) fn parse(query: Option<&str>) -> Result<Params, Problem> {
        let query = query.unwrap_or_default();
        if query.len() > QUERY_BYTES_MAX {
            let text = format!("the query has {} bytes, the limit is {QUERY_BYTES_MAX}", query.len());
            return Err(Problem::new(StatusCode::URI_TOO_LONG, "query-too-long", text));
        }
        Params::default().and(query)
    }

    /// The parameters of a query, and those of a body that was received for it.
    ///
    /// # Errors
    /// When it is too long, not percent-encoded UTF-8, of another content type, or does not come in time.
    pub(super) async fn posted(self, request: Request, limit: Duration) -> Result<Params, Problem> {
        let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or(FORM);
        if !kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(FORM) {
            let text = format!("parameters come as {FORM}");
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported", text));
        }
        let body = Limited::new(request.into_body(), FORM_BYTES_MAX).collect();
        let body = tokio::time::timeout(limit, body).await.map_err(|_| {
            let text = format!("the body did not come within {limit:?}");
            Problem::new(StatusCode::REQUEST_TIMEOUT, "too-slow", text)
        })?;
        let body = body.map_err(|e| match e.is::<LengthLimitError>() {
            true => {
                let text = format!("parameters may have {FORM_BYTES_MAX} bytes");
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", text)
            }
            false => Problem::bad("broken-off", format!("the body broke off: {e}")),
        })?;
        let text = String::from_utf8(body.to_bytes().into());
        self.and(&text.map_err(|_| Problem::bad("bad-encoding", "the body is not percent-encoded UTF-8"))?)
    }

    fn and(self, query: &str) -> Result<Params, Problem> {
        let mut all = self.0;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            if all.len() == PARAMETERS_MAX {
                let text = format!("there are more than {PARAMETERS_MAX} parameters");
                return Err(Problem::bad("too-many-parameters", text));
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            all.push((decode(name)?, decode(value)?));
        }
        Ok(Params(all))
    }

    /// Takes a parameter that may be given once.
    ///
    /// # Errors
    /// When it is given more than once.
    pub(super) fn take(&mut self, name: &str) -> Result<Option<String>, Problem> {
        let mut all = self.take_all(name);
        if all.len() > 1 {
            return Err(Problem::bad("repeated-parameter", format!("{name} is given {} times", all.len())));
        }
        Ok(all.pop())
    }

    /// Takes a parameter that may be repeated.
    pub(super) fn take_all(&mut self, name: &str) -> Vec<String> {
        let (taken, left) = std::mem::take(&mut self.0).into_iter().partition(|(n, _)| n == name);
        self.0 = left;
        let taken: Vec<(String, String)> = taken;
        taken.into_iter().map(|(_, value)| value).collect()
    }

    /// Takes a yes or no: absent is no, present without a value is yes.
    ///
    /// # Errors
    /// When it is something else.
    pub(super) fn flag(&mut self, name: &str) -> Result<bool, Problem> {
        match self.take(name)?.as_deref() {
            None | Some("0" | "false" | "no") => Ok(false),
            Some("" | "1" | "true" | "yes") => Ok(true),
            Some(other) => {
                Err(Problem::bad("bad-parameter", format!("{name} is true or false, not {other:?}")))
            }
        }
    }

    /// Takes a number.
    ///
    /// # Errors
    /// When it is none.
    pub(super) fn number(&mut self, name: &str) -> Result<Option<u64>, Problem> {
        let Some(text) = self.take(name)? else { return Ok(None) };
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        match text.parse() {
            Ok(number) if digits => Ok(Some(number)),
            _ => Err(Problem::bad("bad-parameter", format!("{name} is a number, not {text:?}"))),
        }
    }

    /// What is asked for, to be shown to people: long values are cut.
    pub(super) fn shown(&self) -> String {
        let one = |(name, value): &(String, String)| {
            let cut: String = value.chars().take(SHOWN_CHARS_MAX).collect();
            format!("{name}={cut}{}", if cut.len() < value.len() { "…" } else { "" })
        };
        self.0.iter().map(one).collect::<Vec<_>>().join("&")
    }

    /// All parameters were taken.
    ///
    /// # Errors
    /// When one is left: it would have been ignored without a word.
    pub(super) fn finish(self) -> Result<(), Problem> {
        let Some((name, _)) = self.0.first() else { return Ok(()) };
        let name: String = name.chars().take(100).collect();
        let text = format!(
            "there is no parameter {name:?} here; if it belongs to a URL that was given, percent-encode that URL \
             (& is %26)"
        );
        Err(Problem::bad("unknown-parameter", text))
    }
}

/// Decodes a name or a value: `+` is a space, `%` begins two hexadecimal digits, the result is UTF-8.
fn decode(text: &str) -> Result<String, Problem> {
    if !text.contains(['%', '+']) {
        return Ok(text.to_owned());
    }
    let bad = || Problem::bad("bad-encoding", "the query is not percent-encoded UTF-8");
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || bytes.next().and_then(|b| char::from(b).to_digit(16)).ok_or_else(bad);
                (digit()? << 4 | digit()?) as u8
            }
            other => other,
        });
    }
    String::from_utf8(out).map_err(|_| bad())
}

impl<S: Send + Sync> FromRequestParts<S> for Params {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Params, Problem> {
        Params::parse(parts.uri.query())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_and_taken() {
        let mut params =
            Params::parse(Some("url=http%3A%2F%2Fh%2F%C3%A4%3Fa%3D1%26b&raw=1&x=a+b&x=&n=12")).unwrap();
        assert_eq!(params.take("url").unwrap().unwrap(), "http://h/ä?a=1&b");
        assert!(params.flag("raw").unwrap() && !params.flag("other").unwrap());
        assert_eq!(params.take_all("x"), ["a b", ""]);
        assert_eq!(params.number("n").unwrap(), Some(12));
        assert!(params.finish().is_ok());
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let parse = |query: &str| Params::parse(Some(query));
        for bad in ["a=%", "a=%z1", "a=%1", "%ff=1", "a=%C3"] {
            assert_eq!(parse(bad).unwrap_err().status(), 400, "{bad}");
        }
        assert_eq!(parse(&"a".repeat(QUERY_BYTES_MAX + 1)).unwrap_err().status(), 414);
        assert_eq!(parse(&"a&".repeat(300)).unwrap_err().status(), 400);
        assert!(parse("a=1&a=2").unwrap().take("a").is_err());
        assert!(parse("a=1").unwrap().finish().unwrap_err().detail().contains("\"a\""));
        assert!(parse("a=maybe").unwrap().flag("a").is_err());
        for bad in ["-1", "+1", "", "99999999999999999999"] {
            assert!(parse(&format!("a={}", bad.replace('+', "%2B"))).unwrap().number("a").is_err(), "{bad}");
        }
    }
}
