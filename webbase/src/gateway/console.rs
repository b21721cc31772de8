//! The console: `/` and what it needs, embedded in the program, and `GET /console/events`, which pushes how things stand.
//!
//! ```text
//!   event: history   a list of points, oldest first, when somebody begins to listen
//!   event: sample    how things stand, with one more point: at once, then every second
//!   event: now       the same without a point: more often, while a cycle runs
//! ```
//!
//! A point has the time and what is drawn over time: counters, which go up, so that whoever looks computes rates. One task makes
//! them for everybody. Scripts come from here only, pages of strangers are shown in a sandbox, and nobody may put the console
//! into a frame.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{self, HeaderName, HeaderValue};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::Gateway;
use super::body::{Sending, Sent};
use super::operation::{Operation, Parameter, query};
use super::problem::Problem;
use super::status::standing;

/// Between two samples.
const PERIOD: Duration = Duration::from_secs(1);
/// Between two looks while a cycle runs.
const LOOK: Duration = Duration::from_millis(200);
/// Points that are kept for whoever begins to listen: ten minutes.
const POINTS: usize = 600;
/// Errors that are kept.
const ERRORS: usize = 20;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' blob:; \
                      connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the console: its name, its content type, itself.
const FILES: [(&str, &str, &[u8]); 8] = [
    ("index.html", "text/html; charset=utf-8", include_bytes!("../../assets/console/index.html")),
    ("common.js", "text/javascript; charset=utf-8", include_bytes!("../../assets/console/common.js")),
    ("console.css", "text/css; charset=utf-8", include_bytes!("../../assets/console/console.css")),
    ("console.js", "text/javascript; charset=utf-8", include_bytes!("../../assets/console/console.js")),
    ("icon.svg", "image/svg+xml", include_bytes!("../../assets/console/icon.svg")),
    ("pages.js", "text/javascript; charset=utf-8", include_bytes!("../../assets/console/pages.js")),
    ("uplot.css", "text/css; charset=utf-8", include_bytes!("../../assets/console/uplot.css")),
    ("uplot.js", "text/javascript; charset=utf-8", include_bytes!("../../assets/console/uplot.js")),
];

pub(super) fn operations() -> Vec<Operation> {
    let file = Parameter { ..query("file", "string", "the file's name") }.in_path();
    let operation = |path, name, summary| Operation {
        path,
        method: "get",
        name,
        summary,
        parameters: vec![],
        body: None,
        answers: &[(200, "text/html", "It")],
        is_long: false,
        route: get(index),
    };
    vec![
        operation("/", "console", "The console, for people"),
        Operation {
            parameters: vec![file],
            route: get(serve),
            answers: &[(200, "*/*", "The file"), (404, "application/problem+json", "There is no such file")],
            ..operation("/console/{file}", "console_file", "What the console is made of")
        },
        Operation {
            route: get(events),
            answers: &[(200, "text/event-stream", "A history of samples, then one every second")],
            is_long: true,
            ..operation("/console/events", "console_events", "How things stand, pushed")
        },
    ]
}

async fn index() -> Response {
    file("index.html")
}

async fn serve(Path(name): Path<String>) -> Response {
    file(&name)
}

fn file(name: &str) -> Response {
    let Some((_, kind, bytes)) = FILES.iter().find(|(known, ..)| *known == name) else {
        let text = format!("the console has no file {:?}", name.chars().take(50).collect::<String>());
        return Problem::new(StatusCode::NOT_FOUND, "no-file", text).into_response();
    };
    let mut response = Response::new(Body::from(Bytes::from_static(bytes)));
    let headers: [(HeaderName, &str); 6] = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// What those who listen are told.
#[derive(Clone, Default)]
enum News {
    /// Nothing yet.
    #[default]
    None,
    /// A sample.
    Sample(Arc<str>),
    /// How things stand between two samples.
    Now(Arc<str>),
    /// There will be no more.
    End,
}

/// What of the repository's troubles was told already.
#[derive(Default)]
struct Troubles {
    /// Nodes that are down.
    down: BTreeSet<String>,
    /// The last cycle that was aborted.
    aborted: Option<u64>,
}

/// What the console shows.
#[derive(Default)]
pub(super) struct Console {
    points: Mutex<VecDeque<Value>>,
    last: Mutex<Option<Arc<str>>>,
    errors: Mutex<VecDeque<Value>>,
    troubles: Mutex<Troubles>,
    news: watch::Sender<News>,
}

impl Console {
    /// Takes note of an error.
    pub(super) fn error(&self, text: String) {
        let mut errors = self.errors.lock();
        if errors.len() >= ERRORS {
            errors.pop_front();
        }
        errors.push_back(json!({"time_ms": now_ms(), "text": text}));
    }

    /// Takes note of what went wrong in the repository since the last look: cycles that were aborted, and nodes that went down.
    fn look(&self, status: &Value) {
        let text = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        let mut troubles = self.troubles.lock();
        let nodes = status.get("nodes").and_then(Value::as_array).into_iter().flatten();
        let is_down = |node: &&Value| text(node, "state").as_deref() == Some("down");
        let down: BTreeSet<String> = nodes.filter(is_down).filter_map(|node| text(node, "id")).collect();
        for node in down.difference(&troubles.down) {
            self.error(format!("node {node} is down"));
        }
        troubles.down = down;
        let outcome = status.get("outcome").unwrap_or(&Value::Null);
        let cycle = outcome.get("cycle").and_then(Value::as_u64);
        if let Some(why) = text(outcome, "aborted").filter(|_| cycle > troubles.aborted) {
            troubles.aborted = cycle;
            self.error(format!("cycle {} was aborted: {why}", cycle.unwrap_or(0)));
        }
    }

    /// Tells how things stand, and keeps a point of it if it is time for one.
    fn tell(&self, status: Value, is_point: bool) {
        let point = is_point.then(|| point(&status));
        let errors: Value = self.errors.lock().iter().cloned().collect();
        let sample = json!({"time_ms": now_ms(), "status": status, "errors": errors, "point": point});
        let sample: Arc<str> = sample.to_string().into();
        let Some(point) = point else {
            self.news.send_replace(News::Now(sample));
            return;
        };
        let mut points = self.points.lock();
        if points.len() >= POINTS {
            points.pop_front();
        }
        points.push_back(point);
        *self.last.lock() = Some(sample.clone());
        drop(points);
        self.news.send_replace(News::Sample(sample));
    }

    /// What whoever begins to listen is told first.
    fn history(&self) -> String {
        let points = self.points.lock();
        let all: Value = points.iter().cloned().collect();
        let mut text = format!("event: history\ndata: {all}\n\n");
        if let Some(last) = &*self.last.lock() {
            text.push_str(&format!("event: now\ndata: {last}\n\n"));
        }
        text
    }
}

/// What is drawn over time.
fn point(status: &Value) -> Value {
    let none = Vec::new();
    let nodes = status.get("nodes").and_then(Value::as_array).unwrap_or(&none);
    let figure =
        |node: &Value, name: &str| node.get("figures").and_then(|f| f.get(name)?.as_u64()).unwrap_or(0);
    let writes = |node: &&Value| node.get("role").and_then(Value::as_str) != Some("read");
    let gateway = status.get("gateway").unwrap_or(&Value::Null);
    let own = |name: &str| gateway.get(name).cloned().unwrap_or_default();
    json!({
        "time_ms": now_ms(),
        "requests": own("requests"),
        "took": gateway.get("latency").and_then(|latency| latency.get("counts")),
        "streamed": own("bytes_streamed"),
        "looked_up": own("looked_up"),
        "waiting": nodes.iter().filter(writes).map(|node| figure(node, "pages")).sum::<u64>(),
    })
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Makes samples until the gateway ends.
pub(super) async fn sample(gateway: Arc<Gateway>, mut stopped: watch::Receiver<bool>) {
    let mut failing = false;
    let mut next = Instant::now();
    loop {
        let is_point = Instant::now() >= next;
        if is_point {
            next = Instant::now() + PERIOD;
        }
        let mut pause = next;
        match tokio::time::timeout(PERIOD * 5, standing(&gateway)).await {
            Ok(Ok(status)) => {
                failing = false;
                let runs = status.get("cycle").is_some_and(|cycle| !cycle.is_null());
                if runs && gateway.console.news.receiver_count() > 0 {
                    pause = next.min(Instant::now() + LOOK);
                }
                gateway.console.look(&status);
                gateway.console.tell(status, is_point);
            }
            // Once is enough to know it.
            _ if failing => {}
            Ok(Err(problem)) => {
                failing = true;
                gateway
                    .console
                    .error(format!("the repository does not say how it stands: {}", problem.detail()));
            }
            Err(_) => {
                failing = true;
                gateway.console.error("the management server does not answer".into());
            }
        }
        tokio::select! {
            _ = stopped.changed() => break,
            () = tokio::time::sleep_until(pause) => {}
        }
    }
    gateway.console.news.send_replace(News::End);
}

async fn events(State(gateway): State<Arc<Gateway>>) -> Result<Response, Problem> {
    let Ok(permit) = gateway.consoles.clone().try_acquire_owned() else {
        return Err(Problem::busy("there are as many consoles open as there may be"));
    };
    let (sender, receiver) = mpsc::channel(2);
    let mut news = gateway.console.news.subscribe();
    news.mark_unchanged();
    let history = gateway.console.history();
    tokio::spawn(async move {
        let mut next = Bytes::from(history);
        // Nobody listens any more, or there is nothing more to tell.
        while sender.send(Sent::Data(next)).await.is_ok() && news.changed().await.is_ok() {
            next = match &*news.borrow_and_update() {
                News::Sample(sample) => format!("event: sample\ndata: {sample}\n\n").into(),
                News::Now(sample) => format!("event: now\ndata: {sample}\n\n").into(),
                News::None => Bytes::new(),
                News::End => break,
            };
        }
    });
    let mut response = Response::new(Body::new(Sending { receiver, _permit: permit }));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_console_needs_nothing_from_elsewhere() {
        for (name, _, bytes) in FILES {
            let text = std::str::from_utf8(bytes).unwrap();
            // Addresses stand in the SVG's name space, in a placeholder and in a licence line; nothing is loaded from there.
            let loads = ["src=\"http", "href=\"http", "url(http", "import \"http", "src=\"//", "@import"];
            for load in loads {
                assert!(!text.contains(load), "{name} has {load}");
            }
        }
        assert_eq!(file("console.js").status(), StatusCode::OK);
        assert_eq!(file("../secret").status(), StatusCode::NOT_FOUND);
    }

    #[test]
    fn what_goes_wrong_in_the_repository_is_an_error_once() {
        let console = Console::default();
        let look = |state: &str, aborted: Option<u64>| {
            let outcome = aborted.map(|cycle| json!({"cycle": cycle, "aborted": "no room"}));
            console.look(&json!({"nodes": [{"id": "0a", "state": state}], "outcome": outcome}));
        };
        let said = || {
            console.errors.lock().iter().map(|e| e["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        look("idle", None);
        assert_eq!(said(), Vec::<String>::new());
        look("down", Some(3));
        look("down", Some(3));
        assert_eq!(said(), ["node 0a is down", "cycle 3 was aborted: no room"]);
        look("idle", Some(4));
        look("down", Some(4));
        assert_eq!(said()[2..], ["cycle 4 was aborted: no room", "node 0a is down"]);
    }

    #[test]
    fn what_is_point_is_bounded() {
        let console = Console::default();
        for n in 0..2 * POINTS {
            console.error(format!("error {n}"));
            console.tell(json!({"gateway": {"requests": n}}), true);
            console.tell(json!({"gateway": {"requests": n}}), false);
        }
        assert_eq!(console.points.lock().len(), POINTS);
        assert_eq!(console.errors.lock().len(), ERRORS);
        assert_eq!(console.points.lock().back().unwrap()["requests"], 2 * POINTS - 1);
        let history = console.history();
        let (points, last) = history.trim_end().split_once("\n\n").unwrap();
        assert!(points.starts_with("event: history\ndata: [{"), "{points}");
        let last: Value = serde_json::from_str(last.strip_prefix("event: now\ndata: ").unwrap()).unwrap();
        assert_eq!(last["errors"].as_array().unwrap().len(), ERRORS);
    }
}
