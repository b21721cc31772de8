//! One request and its answer, within limits of time and bytes.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Incoming};
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HOST, HeaderMap, HeaderName, HeaderValue,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED, LOCATION, RETRY_AFTER, USER_AGENT,
};
use hyper::{Request, Response};
use tokio::time::{Instant, timeout, timeout_at};
use url::{Position, Url};

use super::error::FetchError;
use super::wire::Wire;

/// Room for a body before any of it has come, at most.
const BODY_BYTES_FIRST: usize = 256 << 10;

/// Limits of one page.
#[derive(Clone, Debug)]
pub struct Limits {
    /// How long a name may take to be resolved.
    pub dns_time: Duration,
    /// How long a connection may take, TLS included.
    pub connect_time: Duration,
    /// How long the head may take.
    pub head_time: Duration,
    /// How long nothing may come in the middle of a body.
    pub idle_time: Duration,
    /// How long a page may take in all.
    pub page_time: Duration,
    /// How long a head may be, in bytes.
    pub head_bytes_max: usize,
    /// How long a body may be, in bytes, as it comes; it is cut there.
    pub body_bytes_max: usize,
    /// How many redirects in a row are followed.
    pub redirects_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            dns_time: Duration::from_secs(10),
            connect_time: Duration::from_secs(20),
            head_time: Duration::from_secs(30),
            idle_time: Duration::from_secs(20),
            page_time: Duration::from_secs(120),
            head_bytes_max: 64 << 10,
            body_bytes_max: 16 << 20,
            redirects_max: 10,
        }
    }
}

/// Why a body is not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// It is longer than allowed.
    Length,
    /// It took longer than allowed.
    Time,
    /// The connection ended before the body did.
    Disconnect,
}

impl Cut {
    /// As WARC's `WARC-Truncated` has it.
    pub fn name(self) -> &'static str {
        match self {
            Cut::Length => "length",
            Cut::Time => "time",
            Cut::Disconnect => "disconnect",
        }
    }
}

/// What is known of a page from the last time, for a conditional request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Its `ETag`.
    pub etag: Option<String>,
    /// Its `Last-Modified`, in milliseconds since 1970.
    pub modified_at_ms: Option<u64>,
}

/// A page as it came.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The head exactly as received.
    pub head: Vec<u8>,
    /// The body as received: content coding on, transfer coding off.
    pub body: Vec<u8>,
    /// Why the body is not whole, if it is not.
    pub cut: Option<Cut>,
    /// When the request was made, in milliseconds since 1970.
    pub fetched_at_ms: u64,
    /// The address that answered.
    pub address: SocketAddr,
    /// Whether it came by HTTP/2.
    pub is_http2: bool,
    headers: HeaderMap,
}

impl Answer {
    fn text(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The MIME type in lower case, without parameters; empty where the site does not tell.
    pub fn mime(&self) -> String {
        mime(&self.headers)
    }

    /// The content coding; empty where there is none.
    pub fn coding(&self) -> &str {
        self.text(CONTENT_ENCODING).unwrap_or_default()
    }

    /// What the site says of its version.
    pub fn known(&self) -> Known {
        Known { etag: self.text(ETAG).map(str::to_owned), modified_at_ms: self.modified_at_ms() }
    }

    /// When the page last changed, if the site says so, in milliseconds since 1970; never after it was fetched.
    pub fn modified_at_ms(&self) -> Option<u64> {
        let moment = httpdate::parse_http_date(self.text(LAST_MODIFIED)?).ok()?;
        let at_ms = moment.duration_since(UNIX_EPOCH).ok()?.as_millis();
        u64::try_from(at_ms).ok().map(|at_ms| at_ms.min(self.fetched_at_ms))
    }

    /// Where a redirect leads.
    pub fn location(&self, from: &Url) -> Option<Url> {
        if !matches!(self.status, 301 | 302 | 303 | 307 | 308) {
            return None;
        }
        from.join(std::str::from_utf8(self.headers.get(LOCATION)?.as_bytes()).ok()?.trim()).ok()
    }

    /// How long the site asks to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        let text = self.text(RETRY_AFTER)?.trim();
        if let Ok(seconds) = text.parse() {
            return Some(Duration::from_secs(seconds));
        }
        httpdate::parse_http_date(text).ok()?.duration_since(SystemTime::now()).ok()
    }

    /// The body without its content coding, as far as it goes.
    pub fn unpacked(&self, limits: super::UnpackLimits) -> super::Unpacked<'_> {
        super::decode::unpack(&self.body, self.coding(), limits)
    }

    /// The head as it is stored: as received, and where the body was cut a last line `X-Webbase-Cut` that says why.
    pub fn stored_head(&self) -> Vec<u8> {
        let Some(cut) = self.cut else { return self.head.clone() };
        let mut head = self.head.clone();
        if head.ends_with(b"\r\n\r\n") {
            head.truncate(head.len() - 2);
        }
        head.extend_from_slice(format!("X-Webbase-Cut: {}\r\n\r\n", cut.name()).as_bytes());
        head
    }
}

fn mime(headers: &HeaderMap) -> String {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// What to ask for.
pub(super) struct Asked<'a> {
    pub(super) url: &'a Url,
    pub(super) known: &'a Known,
    pub(super) user_agent: &'a HeaderValue,
    pub(super) limits: &'a Limits,
    /// When, in milliseconds since 1970.
    pub(super) now_ms: u64,
    /// Whether a body of this type is wanted; it is not read otherwise.
    pub(super) wants: &'a (dyn Fn(&str) -> bool + Send + Sync),
}

impl Asked<'_> {
    fn request(&self, is_two: bool) -> Result<Request<Empty<Bytes>>, FetchError> {
        let bad = |e: hyper::http::Error| FetchError::Protocol(e.to_string());
        let host = &self.url[Position::BeforeHost..Position::AfterPort];
        let path = &self.url[Position::BeforePath..Position::AfterQuery];
        let mut request = match is_two {
            true => Request::builder().uri(&self.url[..Position::AfterQuery]),
            false => Request::builder().uri(path).header(HOST, host),
        };
        request = request
            .header(USER_AGENT, self.user_agent)
            .header(ACCEPT, "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8")
            .header(ACCEPT_ENCODING, "gzip, br, zstd");
        if let Some(etag) = &self.known.etag {
            request = request.header(IF_NONE_MATCH, etag);
        }
        if let Some(at_ms) = self.known.modified_at_ms {
            let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_millis(at_ms));
            request = request.header(IF_MODIFIED_SINCE, date);
        }
        request.body(Empty::new()).map_err(bad)
    }

    /// Asks, and reads the answer. The second says whether the connection can be used again.
    pub(super) async fn ask(&self, wire: &mut Wire) -> Result<(Answer, bool), FetchError> {
        let fetched_at_ms = self.now_ms;
        let until = Instant::now() + self.limits.page_time;
        let request = self.request(wire.is_two())?;
        let head_time = self.limits.head_time.min(self.limits.page_time);
        let asked = timeout(head_time, wire.ask(request)).await;
        let (response, head) = match asked {
            Err(_) => return Err(FetchError::Time(head_time)),
            Ok(Err(e)) if e.is_parse_too_large() => {
                return Err(FetchError::LongHead(self.limits.head_bytes_max));
            }
            Ok(Err(e)) => return Err(FetchError::Protocol(told(&e))),
            Ok(Ok(answered)) => answered,
        };
        let (status, mime) = (response.status().as_u16(), mime(response.headers()));
        if status == 200 && !(self.wants)(&mime) {
            return Err(FetchError::Mime(mime));
        }
        let headers = response.headers().clone();
        let (body, cut) = self.body(response, until).await;
        let reusable = cut.is_none() && wire.is_open();
        let (address, is_http2) = (wire.address, wire.is_two());
        Ok((Answer { status, head, body, cut, fetched_at_ms, address, is_http2, headers }, reusable))
    }

    async fn body(&self, response: Response<Incoming>, until: Instant) -> (Vec<u8>, Option<Cut>) {
        let mut incoming = response.into_body();
        // What the site says that it sends, within reason: it may not be true.
        let said = usize::try_from(incoming.size_hint().lower()).unwrap_or(0).min(BODY_BYTES_FIRST);
        let mut body = Vec::with_capacity(said);
        loop {
            let wait = until.min(Instant::now() + self.limits.idle_time);
            let frame = match timeout_at(wait, incoming.frame()).await {
                Err(_) => return (body, Some(Cut::Time)),
                Ok(None) => return (body, None),
                Ok(Some(Err(_))) => return (body, Some(Cut::Disconnect)),
                Ok(Some(Ok(frame))) => frame,
            };
            let Ok(data) = frame.into_data() else { continue };
            let room = self.limits.body_bytes_max - body.len();
            body.extend_from_slice(data.get(..room).unwrap_or(&data));
            if data.len() > room {
                return (body, Some(Cut::Length));
            }
        }
    }
}

/// What hyper says, with what is behind it.
fn told(e: &hyper::Error) -> String {
    use std::error::Error;
    e.source().map_or_else(|| e.to_string(), |source| format!("{e}: {source}"))
}

/// Now, in milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
