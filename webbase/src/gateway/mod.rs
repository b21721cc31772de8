//! The repository over HTTP, for everybody who does not speak its own protocol.
//!
//! ```text
//!   socket ─▶ server.rs   accept, TLS, limits of connections, good ends
//!          ─▶ guard.rs    request ids, tokens, admission, time limits, counting
//!          ─▶ router      one table of operations: page.rs, stream.rs, pages.rs, status.rs, metrics.rs, health.rs, openapi.rs,
//!                         cdx/, warcs.rs, resource.rs, memento.rs
//!          ─▶ Cluster     the repository
//! ```
//!
//! 1. Every error is problem+json (`problem.rs`), and after every error the next request is answered.
//! 2. Nothing a client sends is held in memory beyond a bound: heads, queries, and bodies piece by piece.
//! 3. Nothing waits for ever: heads have to come in time, bodies have to move, answers have to be taken.
//! 4. Stored pages are strangers' words and are served in a sandbox (`page.rs`).

mod body;
mod cdx;
mod clients;
mod coding;
mod conditions;
mod console;
mod cors;
mod crawl;
mod cycles;
mod guard;
mod health;
mod json_lines;
mod links;
mod memento;
mod metrics;
mod nodes;
mod openapi;
mod operation;
mod page;
mod pages;
mod params;
mod patient;
mod problem;
mod ranges;
mod resource;
mod security;
mod selection;
mod server;
mod status;
mod stream;
mod warc_text;
mod warcs;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware;
use bytes::Bytes;
use hyper::StatusCode;
use tokio::sync::Semaphore;
use webbase_node::{Cluster, ServerTls};
use webbase_stream::warc::Originals;

pub use self::crawl::CrawlFigures;
pub use self::nodes::Starter;
pub use self::problem::Problem;
pub use self::security::Doors;
pub use self::server::{Running, start};

use self::clients::Clients;
use self::console::Console;
use self::cycles::Cycles;
use self::links::Links;
use self::metrics::Metrics;
use self::operation::Operation;

/// Bodies of imported pages that are held for revisits that refer to them, by all imports together.
const ORIGINALS_BYTES: usize = 128 << 20;

/// Settings of a gateway.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to listen; with port 0 the system chooses.
    pub listen: SocketAddr,
    /// Who may ask.
    pub doors: Doors,
    /// With a certificate everything is HTTPS.
    pub tls: Option<ServerTls>,
    /// How much, and how long.
    pub limits: Limits,
    /// Starts nodes, where the repository is one process.
    pub starter: Option<Starter>,
    /// A crawl that runs in this process.
    pub crawl: Option<CrawlFigures>,
    /// Threads of its own for its connections; with none they are served on the caller's runtime.
    pub connection_threads: usize,
}

impl Settings {
    /// For everybody on this machine.
    pub fn on(listen: SocketAddr) -> Settings {
        let (doors, limits) = (Doors::default(), Limits::default());
        let connection_threads = std::thread::available_parallelism().map_or(1, usize::from);
        Settings { listen, doors, tls: None, limits, starter: None, crawl: None, connection_threads }
    }
}

/// What bounds a gateway.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at once; others wait to be accepted.
    pub connections_max: usize,
    /// Requests at once that are not answered yet; others are told to come again.
    pub requests_max: usize,
    /// Consoles that are open at once; others are told to come again.
    pub consoles_max: usize,
    /// Streams at once; others are told to come again.
    pub streams_max: usize,
    /// Imports at once; others are told to come again.
    pub imports_max: usize,
    /// Bytes of a request's head.
    pub head_bytes_max: usize,
    /// Bytes of what is sent to be added, in one request.
    pub body_bytes_max: u64,
    /// A head has to come within this time, and so has the next request of a connection.
    pub head_time: Duration,
    /// A body that is being received has to move within this time.
    pub body_pause: Duration,
    /// An answer has to begin within this time, but for those that are long by nature.
    pub answer_time: Duration,
    /// An answer that nobody takes is given up after this time.
    pub write_pause: Duration,
    /// How long requests under way may take when the gateway ends.
    pub end_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections_max: 2048,
            requests_max: 1024,
            streams_max: 64,
            consoles_max: 64,
            imports_max: 8,
            head_bytes_max: 32 << 10,
            body_bytes_max: 64 << 30,
            head_time: Duration::from_secs(30),
            body_pause: Duration::from_secs(30),
            answer_time: Duration::from_secs(40),
            write_pause: Duration::from_secs(120),
            end_time: Duration::from_secs(10),
        }
    }
}

/// What handlers share.
pub(crate) struct Gateway {
    cluster: Cluster,
    doors: Doors,
    limits: Limits,
    metrics: Metrics,
    console: Console,
    cycles: Cycles,
    links: Links,
    clients: Arc<Clients>,
    starter: Option<Starter>,
    crawl: Option<CrawlFigures>,
    /// Consoles that are open.
    consoles: Arc<Semaphore>,
    requests: Semaphore,
    streams: Arc<Semaphore>,
    imports: Arc<Semaphore>,
    /// Bodies that imports may refer to.
    originals: Originals,
    /// `http` or `https`.
    scheme: &'static str,
    /// The OpenAPI document.
    description: Bytes,
    /// Paths that may take long.
    long: Vec<&'static str>,
    /// All paths, as labels.
    paths: Vec<&'static str>,
    /// The generation that status told last.
    served: AtomicU64,
}

impl Gateway {
    fn new(cluster: Cluster, settings: &Settings, operations: &[Operation]) -> Gateway {
        let limits = settings.limits.clone();
        Gateway {
            cluster,
            doors: settings.doors.clone(),
            metrics: Metrics::new(),
            console: Console::default(),
            cycles: Cycles::default(),
            links: Links::default(),
            clients: Arc::default(),
            starter: settings.starter.clone(),
            crawl: settings.crawl.clone(),
            consoles: Arc::new(Semaphore::new(limits.consoles_max)),
            requests: Semaphore::new(limits.requests_max),
            streams: Arc::new(Semaphore::new(limits.streams_max)),
            imports: Arc::new(Semaphore::new(limits.imports_max)),
            originals: Originals::new(ORIGINALS_BYTES),
            scheme: if settings.tls.is_some() { "https" } else { "http" },
            description: Bytes::from(format!("{:#}\n", openapi::describe(operations))),
            long: operations.iter().filter(|o| o.is_long).map(|o| o.path).collect(),
            paths: operations.iter().map(|o| o.path).collect(),
            served: AtomicU64::new(0),
            limits,
        }
    }
}

/// Everything one can ask.
fn operations() -> Vec<Operation> {
    let parts = [
        page::operations(),
        pages::operations(),
        links::operations(),
        stream::operations(),
        status::operations(),
        nodes::operations(),
        metrics::operations(),
        health::operations(),
        openapi::operations(),
        console::operations(),
        cdx::operations(),
        warcs::operations(),
        resource::operations(),
        memento::operations(),
    ];
    parts.into_iter().flatten().collect()
}

/// The router, and what its handlers share.
fn router(cluster: Cluster, settings: &Settings) -> (Router, Arc<Gateway>) {
    let operations = operations();
    let gateway = Arc::new(Gateway::new(cluster, settings, &operations));
    let mut router: Router<Arc<Gateway>> = Router::new();
    for operation in operations {
        router = router.route(operation.path, operation.route);
    }
    let router = router
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(gateway.clone(), guard::guard))
        .with_state(gateway.clone());
    (router, gateway)
}

async fn nothing_here(request: Request) -> Problem {
    let path: String = request.uri().path().chars().take(200).collect();
    let text = format!(
        "there is nothing at {path}; /openapi.json tells what there is, and /web is the collection of all pages"
    );
    Problem::new(StatusCode::NOT_FOUND, "no-route", text)
}

async fn wrong_method(request: Request) -> Problem {
    let text = format!("{} is not for {}; Allow tells what is", request.uri().path(), request.method());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_names_every_route_once_and_every_parameter_of_a_path() {
        let all = operations();
        let document = openapi::describe(&all);
        let described: usize = document["paths"]
            .as_object()
            .unwrap()
            .values()
            .map(|methods| methods.as_object().unwrap().len())
            .sum();
        assert_eq!(described, all.len(), "two operations have one path and method");
        let mut names: Vec<_> = all.iter().map(|o| o.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len(), "two operations have one name");
        for operation in &all {
            let in_path: Vec<&str> =
                operation.path.split('/').filter_map(|p| p.strip_prefix('{')?.strip_suffix('}')).collect();
            let told: Vec<&str> =
                operation.parameters.iter().filter(|p| p.place == "path").map(|p| p.name).collect();
            assert_eq!(in_path, told, "{}", operation.path);
        }
    }
}
