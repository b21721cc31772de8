//! The web interface: the only code that touches the web.
//!
//! ```text
//!   want() ──▶ queue ──turn──▶ robots? ──▶ address? ──▶ wire ──▶ exchange ──▶ outcomes
//!                ▲  polite, bounded          │ not free
//!                └──────────────────────────┘
//! ```
//!
//! Every URL is one turn of its site ([`queue`](self)): redirects and robots files too, so that whatever happens a site is never
//! asked twice within its delay. What a robots file redirects to is read as a guest of the site it leads to, within that site's delay. A site's robots file takes the first turn. The name is resolved, the address has to be one that may
//! be reached ([`Reach`]) and free, the connection is kept for the next turn. What came is handed over as it came, cut where a
//! limit was reached, or as a [`FetchError`]; nothing a site does ends the fetcher.
//!
//! Redirects are answers: whoever wanted the page decides, and wants the other page with one redirect more.

mod address;
mod counts;
mod decode;
mod error;
mod exchange;
mod queue;
mod resolve;
mod turn;
mod wire;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderValue;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use rustls_platform_verifier::BuilderVerifierExt;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use url::Url;

pub use self::address::{Reach, is_public};
pub use self::counts::Counts;
pub use self::decode::{UnpackLimits, Unpacked, unpack};
pub use self::error::FetchError;
pub use self::exchange::{Answer, Cut, Known, Limits};
pub use self::queue::{Pace, Politeness, Priority, SiteView};
pub use self::resolve::{By, Dns, Given, Resolve, Resolving};

use self::queue::{Name, Next, Queue};
use self::turn::KnownRobots;
use self::wire::Wire;
use crate::robots::Robots;

/// The product token that robots files know us by.
pub const PRODUCT: &str = "webbase";
/// How many robots files are remembered.
const ROBOTS_MAX: usize = 100_000;
/// How many outcomes wait to be taken before fetching waits too.
const OUTCOMES_MAX: usize = 1024;
/// How long a connection is kept for the next turn.
const KEPT_FOR: Duration = Duration::from_secs(30);

/// What time it is, in milliseconds since 1970.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Which MIME types are wanted.
pub type Wants = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// How to fetch.
#[derive(Clone)]
pub struct Settings {
    /// Where sites can find out who crawls them. Without it only this machine's own sites can be read.
    pub contact: Option<Url>,
    /// Which addresses may be reached beside the public ones.
    pub reach: Reach,
    /// How many requests are made at a time.
    pub connections: usize,
    /// How polite to be.
    pub politeness: Politeness,
    /// Limits of one page.
    pub limits: Limits,
    /// Whether robots files are obeyed: always, but for one's own sites.
    pub robots: bool,
    /// Bodies of which types are read; all others are left as soon as the head is there.
    pub wants: Wants,
    /// TLS, where it is not to be the usual.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// The time that answers are stamped with: the system's, or that of an invented web.
    pub clock: Clock,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            contact: None,
            reach: Reach::default(),
            connections: 256,
            politeness: Politeness::default(),
            limits: Limits::default(),
            robots: true,
            wants: Arc::new(|_| true),
            tls: None,
            clock: Arc::new(exchange::now_ms),
        }
    }
}

impl Settings {
    /// The user agent that sites see.
    pub fn user_agent(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        match &self.contact {
            Some(contact) => format!("{PRODUCT}/{version} (+{contact})"),
            None => format!("{PRODUCT}/{version}"),
        }
    }
}

/// A page that is wanted.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Which.
    pub url: Url,
    /// How urgently.
    pub priority: Priority,
    /// What is known of it, for a conditional request.
    pub known: Known,
    /// How many redirects led here.
    pub redirects: usize,
    /// Whether it is wanted whatever its type is.
    pub any_type: bool,
    /// A number of the asker's own.
    pub tag: u64,
}

impl Wanted {
    /// A page, unconditionally.
    pub fn new(url: Url, priority: Priority) -> Wanted {
        Wanted { url, priority, known: Known::default(), redirects: 0, any_type: false, tag: 0 }
    }
}

/// What became of a page that was wanted.
#[derive(Debug)]
pub struct Outcome {
    /// What was wanted.
    pub wanted: Wanted,
    /// What came, or why it did not.
    pub result: Result<Answer, FetchError>,
}

/// A page that waits for its turn, and who waits for it.
#[derive(Debug)]
struct Item {
    wanted: Wanted,
    to: Option<oneshot::Sender<Outcome>>,
    /// Whether a kept connection turned out to be dead once already.
    retried: bool,
}

struct Inner {
    settings: Settings,
    user_agent: HeaderValue,
    resolver: Arc<dyn Resolve>,
    tls: Result<TlsConnector, String>,
    queue: Mutex<Queue<Item>>,
    wake: Notify,
    robots: Cache<String, Arc<KnownRobots>>,
    wires: Mutex<HashMap<String, (Wire, Instant)>>,
    counts: Counts,
    outcomes: mpsc::Sender<Outcome>,
    permits: Arc<Semaphore>,
}

/// The web interface. Dropping it ends all that it does.
pub struct Fetcher {
    inner: Arc<Inner>,
    _conductor: JoinSet<()>,
}

impl Fetcher {
    /// Starts fetching. Outcomes come out of the channel; while nobody takes them no more is fetched.
    ///
    /// # Errors
    /// When the contact is nothing that can be sent to a site.
    pub fn start(
        settings: Settings,
        resolver: Arc<dyn Resolve>,
    ) -> Result<(Fetcher, mpsc::Receiver<Outcome>), String> {
        let user_agent =
            HeaderValue::from_str(&settings.user_agent()).map_err(|e| format!("the contact: {e}"))?;
        let tls = match &settings.tls {
            Some(config) => Ok(TlsConnector::from(Arc::clone(config))),
            None => usual_tls(),
        };
        let (outcomes, taken) = mpsc::channel(OUTCOMES_MAX);
        let inner = Arc::new(Inner {
            user_agent,
            resolver,
            tls,
            queue: Mutex::new(Queue::new(settings.politeness.clone())),
            wake: Notify::new(),
            robots: Cache::new(ROBOTS_MAX),
            wires: Mutex::default(),
            counts: Counts::default(),
            outcomes,
            permits: Arc::new(Semaphore::new(settings.connections.max(1))),
            settings,
        });
        let mut conductor = JoinSet::new();
        conductor.spawn(conduct(Arc::clone(&inner)));
        Ok((Fetcher { inner, _conductor: conductor }, taken))
    }

    /// Wants a page; its outcome will come out of the channel. When too many wait, one page of the most crowded site comes back:
    /// it is not going to be fetched, and has to be wanted again later.
    pub fn want(&self, wanted: Wanted) -> Option<Wanted> {
        self.inner.push(Item { wanted, to: None, retried: false })
    }

    /// Fetches one page for somebody who waits, following redirects, each in its site's turn.
    pub async fn fetch(&self, url: Url, priority: Priority) -> Outcome {
        let mut wanted = Wanted::new(url, priority);
        loop {
            let outcome = self.inner.fetch_one(wanted).await;
            let next = outcome.result.as_ref().ok().and_then(|answer| answer.location(&outcome.wanted.url));
            match next {
                Some(url) => {
                    wanted = Wanted { url, redirects: outcome.wanted.redirects + 1, ..outcome.wanted }
                }
                None => return outcome,
            }
        }
    }

    /// What was done so far.
    pub fn counts(&self) -> &Counts {
        &self.inner.counts
    }

    /// How many URLs wait, of how many sites, and how many requests are out.
    pub fn waiting(&self) -> (usize, usize, usize) {
        let (urls, sites) = self.inner.queue.lock().len();
        let out = self.inner.settings.connections.max(1) - self.inner.permits.available_permits();
        (urls, sites, out)
    }

    /// How a site stands: how many of its URLs wait, when it may be asked next, and why not sooner.
    pub fn site(&self, host: &str) -> Option<SiteView> {
        self.inner.queue.lock().view(host, Instant::now())
    }

    /// The robots file of a URL's site, as it is known.
    pub fn robots(&self, url: &Url) -> Option<Robots> {
        self.inner.robots.get(&url.origin().ascii_serialization()).map(|known| known.robots.clone())
    }
}

impl Inner {
    fn push(&self, item: Item) -> Option<Wanted> {
        let Some(host) = item.wanted.url.host_str().map(str::to_owned) else {
            let url = item.wanted.url.to_string();
            self.refuse(item, FetchError::Scheme { url });
            return None;
        };
        let priority = item.wanted.priority;
        let back = self.queue.lock().push(&host, priority, item, Instant::now());
        self.wake.notify_one();
        let back = back?;
        match back.to {
            None => Some(back.wanted),
            Some(_) => {
                self.refuse(back, FetchError::Crowded);
                None
            }
        }
    }

    /// Tells an item's fate from where nobody can wait.
    fn refuse(&self, item: Item, error: FetchError) {
        self.counts.count(&Err(error.clone()));
        let outcome = Outcome { wanted: item.wanted, result: Err(error) };
        match item.to {
            // Whoever waited may have gone.
            Some(to) => drop(to.send(outcome)),
            None => {
                let outcomes = self.outcomes.clone();
                tokio::spawn(async move { outcomes.send(outcome).await });
            }
        }
    }

    async fn fetch_one(&self, wanted: Wanted) -> Outcome {
        let (to, outcome) = oneshot::channel();
        let kept = wanted.clone();
        self.push(Item { wanted, to: Some(to), retried: false });
        outcome.await.unwrap_or(Outcome { wanted: kept, result: Err(FetchError::Ended) })
    }
}

/// Gives out turns: one to a site at a time, as many as there may be requests.
async fn conduct(inner: Arc<Inner>) {
    let mut turns = JoinSet::new();
    loop {
        while turns.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&inner.permits).acquire_owned().await else { return };
        let (name, priority, item) = next(&inner).await;
        turns.spawn(take_turn(Arc::clone(&inner), name, priority, item, permit));
    }
}

async fn take_turn(
    inner: Arc<Inner>,
    name: Name,
    priority: Priority,
    item: Item,
    permit: OwnedSemaphorePermit,
) {
    inner.turn(name, priority, item, permit).await;
}

async fn next(inner: &Inner) -> (Name, Priority, Item) {
    loop {
        let next = inner.queue.lock().next(Instant::now());
        match next {
            Next::Ask(name, priority, item) => return (name, priority, item),
            Next::Nothing => inner.wake.notified().await,
            Next::Wait(until) => {
                tokio::select! {
                    () = tokio::time::sleep_until(until) => {}
                    () = inner.wake.notified() => {}
                }
            }
        }
    }
}

fn usual_tls() -> Result<TlsConnector, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.and_then(BuilderVerifierExt::with_platform_verifier).map_err(|e| e.to_string())?;
    let mut config = config.with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}
