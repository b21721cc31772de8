//! `GET /metrics`: figures for Prometheus. Labels are bounded: routes of the table, methods, statuses, roles and states; never URLs,
//! hosts or clients.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::header::{ACCEPT, CONTENT_TYPE};
use hyper::{HeaderMap, StatusCode};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use serde_json::{Value, json};
use webbase_node::plan::Status;
use webbase_storage::Stats;

use super::Gateway;
use super::operation::Operation;
use super::problem::Problem;
use crate::standing::{role_name, state_name};

pub(super) fn operations() -> Vec<Operation> {
    vec![Operation {
        path: "/metrics",
        method: "get",
        name: "metrics",
        summary: "Figures for Prometheus",
        parameters: vec![],
        body: None,
        answers: &[(200, "text/plain", "The text format; OpenMetrics where that is asked for")],
        is_long: false,
        route: get(show),
    }]
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Request {
    route: &'static str,
    method: &'static str,
    status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Route {
    route: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct NodesLabel {
    role: &'static str,
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RoleLabel {
    role: &'static str,
}

/// What the gateway counts of itself.
pub(super) struct Metrics {
    started: Instant,
    registry: Registry,
    requests: Family<Request, Counter>,
    seconds: Family<Route, Histogram, fn() -> Histogram>,
    pub(super) connections: Gauge,
    pub(super) streams: Gauge,
    pub(super) pages_streamed: Counter,
    pub(super) bytes_streamed: Counter,
    pub(super) pages_added: Counter,
    answered: AtomicU64,
    /// Pages that were asked for one by one.
    looked_up: AtomicU64,
    /// Answers by how long they took, for the console: one more than there are bounds.
    took: [AtomicU64; TOOK_MS.len() + 1],
}

/// Bounds of `took`.
const TOOK_MS: [f64; 15] =
    [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 5000.0];

fn histogram() -> Histogram {
    Histogram::new([0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0])
}

impl Metrics {
    pub(super) fn new() -> Metrics {
        let mut registry = Registry::with_prefix("webbase");
        let requests = Family::<Request, Counter>::default();
        registry.register("http_requests", "Requests answered", requests.clone());
        let seconds: Family<Route, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(histogram as fn() -> Histogram);
        let text = "Time until an answer began";
        registry.register_with_unit("http_request_duration", text, Unit::Seconds, seconds.clone());
        let connections = Gauge::default();
        registry.register("http_connections", "Connections that are open", connections.clone());
        let streams = Gauge::default();
        registry.register("http_streams", "Streams that are being sent", streams.clone());
        let pages_streamed = Counter::default();
        registry.register("http_streamed_pages", "Pages sent in streams", pages_streamed.clone());
        let bytes_streamed = Counter::default();
        registry.register("http_streamed_bytes", "Bytes sent in streams", bytes_streamed.clone());
        let pages_added = Counter::default();
        registry.register("http_added_pages", "Pages added and acknowledged", pages_added.clone());
        Metrics {
            started: Instant::now(),
            registry,
            requests,
            seconds,
            connections,
            streams,
            pages_streamed,
            bytes_streamed,
            pages_added,
            answered: AtomicU64::new(0),
            looked_up: AtomicU64::new(0),
            took: Default::default(),
        }
    }

    pub(super) fn answered(
        &self,
        route: &'static str,
        method: &'static str,
        status: StatusCode,
        took: Duration,
    ) {
        self.answered.fetch_add(1, Relaxed);
        if matches!(route, "/page" | "/page/{id}") {
            self.looked_up.fetch_add(1, Relaxed);
        }
        let ms = took.as_secs_f64() * 1e3;
        if let Some(slot) = self.took.get(TOOK_MS.partition_point(|bound| *bound < ms)) {
            slot.fetch_add(1, Relaxed);
        }
        let status = status.as_u16();
        self.requests.get_or_create(&Request { route, method, status }).inc();
        self.seconds.get_or_create(&Route { route }).observe(took.as_secs_f64());
    }

    /// What people want to see moving.
    pub(super) fn as_json(&self) -> Value {
        json!({
            "uptime_s": self.started.elapsed().as_secs(),
            "requests": self.answered.load(Relaxed),
            "looked_up": self.looked_up.load(Relaxed),
            "latency": {
                "bounds_ms": TOOK_MS,
                "counts": self.took.iter().map(|slot| slot.load(Relaxed)).collect::<Vec<_>>(),
            },
            "connections": self.connections.get(),
            "streams": self.streams.get(),
            "pages_streamed": self.pages_streamed.get(),
            "bytes_streamed": self.bytes_streamed.get(),
            "pages_added": self.pages_added.get(),
        })
    }
}

/// The figures of the repository, as its status has them now.
fn repository(status: &Status) -> Registry {
    let mut registry = Registry::with_prefix("webbase");
    let mut number = |name: &str, help: &str, value: u64| {
        let gauge: Gauge<i64, AtomicI64> = Gauge::default();
        gauge.set(value.cast_signed());
        registry.register(name, help, gauge);
    };
    number("generation_serving", "Generation that readers see", status.serving);
    number("generation_committed", "Generation that was committed last", status.committed);
    number("generations_kept", "Old generations kept for readers", status.kept.len() as u64);
    number("cycle_running", "Whether a cycle runs: 1 or 0", u64::from(status.cycle.is_some()));
    number("cycles_last", "Number of the last cycle", status.last_cycle);
    number("leases", "Leases that hold generations", status.leases);
    let nodes = Family::<NodesLabel, Gauge>::default();
    let (pages, used, capacity) = (
        Family::<RoleLabel, Gauge>::default(),
        Family::<RoleLabel, Gauge>::default(),
        Family::<RoleLabel, Gauge>::default(),
    );
    let damaged = Family::<RoleLabel, Gauge>::default();
    // A node that starts again counts from nothing, as any counter does.
    let (lookups, scanned, streamed) = (
        Family::<RoleLabel, Counter>::default(),
        Family::<RoleLabel, Counter>::default(),
        Family::<RoleLabel, Counter>::default(),
    );
    for node in &status.nodes {
        let role = role_name(node);
        nodes.get_or_create(&NodesLabel { role, state: state_name(node.state) }).inc();
        let Some(figures) = node.figures else { continue };
        let (store, label) = (Stats::from(figures.store), RoleLabel { role });
        pages.get_or_create(&label).inc_by(store.pages.cast_signed());
        used.get_or_create(&label).inc_by(store.used_bytes.cast_signed());
        capacity.get_or_create(&label).inc_by(store.capacity_bytes.cast_signed());
        lookups.get_or_create(&label).inc_by(figures.lookups_answered);
        scanned.get_or_create(&label).inc_by(figures.scanned_bytes);
        streamed.get_or_create(&label).inc_by(figures.streamed_pages);
        damaged.get_or_create(&label).inc_by(figures.damaged.saturating_sub(figures.repaired).cast_signed());
    }
    registry.register("nodes", "Nodes by role and state", nodes);
    registry.register("store_pages", "Pages in all stores, replicas counted", pages);
    registry.register_with_unit("store_used", "Space that stores occupy", Unit::Bytes, used);
    registry.register_with_unit("store_capacity", "Space that stores may occupy", Unit::Bytes, capacity);
    registry.register("node_lookups_answered", "Lookups that nodes answered since they started", lookups);
    let about = "Records that streams went through since nodes started; a shared scan counts once";
    registry.register_with_unit("node_scanned", about, Unit::Bytes, scanned);
    registry.register("node_streamed_pages", "Pages that streams sent since nodes started", streamed);
    registry.register("node_damaged_pages", "Pages found damaged and not repaired", damaged);
    registry
}

async fn show(State(gateway): State<Arc<Gateway>>, headers: HeaderMap) -> Result<Response, Problem> {
    let broken =
        |e: std::fmt::Error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", e.to_string());
    let mut text = String::new();
    encode_registry(&mut text, &gateway.metrics.registry).map_err(broken)?;
    // A repository that does not answer is no reason to say nothing of the gateway.
    let up = match gateway.cluster.status().await {
        Ok(status) => {
            encode_registry(&mut text, &repository(&status)).map_err(broken)?;
            1
        }
        Err(_) => 0,
    };
    let mut last = Registry::with_prefix("webbase");
    let gauge: Gauge<i64, AtomicI64> = Gauge::default();
    gauge.set(up);
    last.register("management_up", "Whether the management server answers: 1 or 0", gauge);
    encode_registry(&mut text, &last).map_err(broken)?;
    let open_metrics = headers
        .get(ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("application/openmetrics-text"));
    if open_metrics {
        encode_eof(&mut text).map_err(broken)?;
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        return Ok(([(CONTENT_TYPE, kind)], text).into_response());
    }
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], classic(&text)).into_response())
}

/// OpenMetrics as the older text format has it: a counter's name ends in `_total` in its description too, and there are no
/// units.
fn classic(text: &str) -> String {
    let mut counters: Vec<String> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix(" counter")) {
            counters.push(name.to_owned());
        }
    }
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        if line.starts_with("# UNIT ") || line == "# EOF" {
            continue;
        }
        let described = line.strip_prefix("# HELP ").map(|rest| ("# HELP ", rest));
        let described = described.or_else(|| line.strip_prefix("# TYPE ").map(|rest| ("# TYPE ", rest)));
        match described.and_then(|(what, rest)| Some((what, rest.split_once(' ')?))) {
            Some((what, (name, rest))) if counters.iter().any(|counter| counter == name) => {
                out.push_str(&format!("{what}{name}_total {rest}\n"));
            }
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_is_described_in_the_older_format_too() {
        let metrics = Metrics::new();
        metrics.answered("/page", "GET", StatusCode::OK, Duration::from_micros(300));
        let mut text = String::new();
        encode_registry(&mut text, &metrics.registry).unwrap();
        let text = classic(&text);
        assert!(text.contains("# HELP webbase_http_requests_total Requests answered."), "{text}");
        assert!(text.contains("# TYPE webbase_http_requests_total counter"), "{text}");
        let counted = "webbase_http_requests_total{route=\"/page\",method=\"GET\",status=\"200\"} 1";
        assert!(text.contains(counted), "{text}");
        assert!(text.contains("# TYPE webbase_http_request_duration_seconds histogram"), "{text}");
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            let family =
                ["_bucket", "_sum", "_count"].iter().find_map(|s| name.strip_suffix(s)).unwrap_or(name);
            assert!(text.contains(&format!("# HELP {family} ")), "{line} has no HELP");
        }
    }
}
