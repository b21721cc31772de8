//! A world over HTTP on loopback: one port, sites by their `Host` header, on one or on many addresses of 127.0.0.0/8.
//!
//! Nothing resolves the sites' names: whoever reads them takes addresses from [`WebBox::resolve`]. Sites that misbehave have a
//! port each.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_LENGTH, HOST, IF_MODIFIED_SINCE, IF_NONE_MATCH, USER_AGENT};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::answer::Asked;
use crate::clock::Clock;
use crate::misbehaviour::{self, Misbehaviour};
use crate::world::World;

/// How many visits the log keeps unless it is said.
const VISITS_MAX: usize = 1_000_000;

/// How a world is served.
#[derive(Clone, Debug, Default)]
pub struct Serving {
    /// How many loopback addresses the sites are dealt out to, from 127.0.0.1 on; at least one.
    pub addresses: u16,
    /// How long every answer takes, as if the site were far away.
    pub latency: Duration,
    /// Hosts beside the world's that misbehave, and how.
    pub misbehaving: Vec<(String, Misbehaviour)>,
    /// How many visits the log keeps, the oldest being forgotten; a million if not said.
    pub visits_max: Option<usize>,
}

/// A request that came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    /// When it came, since the box was started, by tokio's time.
    pub at: Duration,
    /// When its answer was handed over.
    pub answered_at: Duration,
    /// The host that was asked.
    pub host: String,
    /// The path and query.
    pub path: String,
    /// The status it got; 0 where no HTTP came back.
    pub status: u16,
    /// Whether it was a conditional request.
    pub conditional: bool,
    /// Who asked.
    pub user_agent: String,
}

/// A world that is being served. Dropping it ends it.
#[derive(Debug)]
pub struct WebBox {
    served: Arc<Served>,
    addresses: Vec<SocketAddr>,
    misbehaving: BTreeMap<String, SocketAddr>,
    _tasks: JoinSet<()>,
}

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Served {
    world: World,
    clock: Clock,
    latency: Duration,
    since: Instant,
    visits: Mutex<VecDeque<Visit>>,
    visits_max: usize,
}

impl WebBox {
    /// Serves a world.
    ///
    /// # Errors
    /// When an address cannot be listened at.
    pub async fn start(world: World, clock: Clock, serving: Serving) -> io::Result<WebBox> {
        let served = Arc::new(Served {
            world,
            clock,
            latency: serving.latency,
            since: Instant::now(),
            visits: Mutex::default(),
            visits_max: serving.visits_max.unwrap_or(VISITS_MAX).max(1),
        });
        let mut tasks = JoinSet::new();
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for number in 1..=serving.addresses.max(1) {
            let [high, low] = number.to_be_bytes();
            let port = addresses.first().map_or(0, SocketAddr::port);
            let listener = TcpListener::bind((Ipv4Addr::new(127, 0, high, low), port)).await?;
            addresses.push(listener.local_addr()?);
            tasks.spawn(accept(listener, Arc::clone(&served), serve));
        }
        let mut misbehaving = BTreeMap::new();
        for (host, how) in serving.misbehaving {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            misbehaving.insert(host, listener.local_addr()?);
            tasks.spawn(accept(listener, Arc::clone(&served), move |served, connection| {
                misbehaviour::serve(how.clone(), served, connection)
            }));
        }
        Ok(WebBox { served, addresses, misbehaving, _tasks: tasks })
    }

    /// The truth.
    pub fn world(&self) -> &World {
        &self.served.world
    }

    /// The time in it.
    pub fn clock(&self) -> &Clock {
        &self.served.clock
    }

    /// Where the first address is; every site can be asked there.
    pub fn address(&self) -> SocketAddr {
        self.addresses.first().copied().unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// Where a host is, if it is in the box.
    pub fn resolve(&self, host: &str) -> Option<SocketAddr> {
        if let Some(address) = self.misbehaving.get(host) {
            return Some(*address);
        }
        let site = self.served.world.site_of_host(host)?;
        self.addresses.get(site % self.addresses.len()).copied()
    }

    /// The requests that came in so far, in order.
    pub fn visits(&self) -> Vec<Visit> {
        self.served.visits.lock().iter().cloned().collect()
    }
}

impl Served {
    /// How long the box has been served.
    pub(crate) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    pub(crate) fn log(&self, visit: Visit) {
        let mut visits = self.visits.lock();
        if visits.len() >= self.visits_max {
            visits.pop_front();
        }
        visits.push_back(visit);
    }
}

/// Takes connections until the task is dropped, and theirs with it.
async fn accept<F>(
    listener: TcpListener,
    served: Arc<Served>,
    serve: impl Fn(Arc<Served>, TcpStream) -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // A connection that ended before it was taken, or too many open files: the next one may do.
                let Ok((connection, _)) = accepted else { continue };
                let _ = connection.set_nodelay(true);
                connections.spawn(serve(Arc::clone(&served), connection));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(served: Arc<Served>, connection: TcpStream) {
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        let served = Arc::clone(&served);
        async move { Ok::<_, Infallible>(answer(&served, &request).await) }
    });
    // The client went away, or sent what is not HTTP: the connection is over either way.
    let _ =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(connection), service).await;
}

async fn answer<B>(served: &Served, request: &Request<B>) -> Response<Full<Bytes>> {
    let at = served.age();
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let host = header(HOST).unwrap_or_default().split(':').next().unwrap_or_default().to_ascii_lowercase();
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let asked = Asked {
        host: &host,
        path,
        if_modified_since: header(IF_MODIFIED_SINCE),
        if_none_match: header(IF_NONE_MATCH),
    };
    if !served.latency.is_zero() {
        tokio::time::sleep(served.latency).await;
    }
    let answer = served.world.answer(&asked, served.clock.now_ms());
    served.log(Visit {
        at,
        answered_at: served.age(),
        host: host.clone(),
        path: path.to_owned(),
        status: answer.status,
        conditional: asked.if_modified_since.is_some() || asked.if_none_match.is_some(),
        user_agent: header(USER_AGENT).unwrap_or_default().to_owned(),
    });
    let mut response = Response::builder().status(answer.status);
    for (name, value) in &answer.headers {
        response = response.header(*name, value);
    }
    if answer.status != 304 {
        response = response.header(CONTENT_LENGTH, answer.body.len());
    }
    response.body(Full::new(answer.body)).unwrap_or_default()
}
