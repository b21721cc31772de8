//! A crawl: seeds in, pages to the repository, until nothing waits or a limit is reached.
//!
//! ```text
//!   frontier ──hand out──▶ fetcher ──outcomes──▶ keeper: links ─▶ spool ─▶ frontier ─▶ repository ─▶ spool emptied
//!       ▲                                          │
//!       └───────────────── links ──────────────────┘
//! ```
//!
//! The keeper is one thread of its own: it takes outcomes in batches, finds links on all cores, and brings each batch to disk in this
//! order: pages to the spool (`spool.rs`), URLs and links to the [frontier](crate::frontier), pages to the repository. Killed anywhere in
//! between it goes on from the spool: nothing that came is fetched again, nothing that was acknowledged is lost.

mod keeper;
mod links;
mod progress;
mod scope;
mod sink;
mod spool;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use url::Url;

pub use self::progress::Progress;
pub use self::scope::{Outside, Scope, Within};
pub use self::sink::Sink;

use crate::fetcher::{FetchError, Fetcher, Resolve, Settings as FetchSettings};
use crate::frontier::FrontierError;

use self::keeper::Keeper;

/// How to crawl.
#[derive(Clone)]
pub struct Settings {
    /// Where the crawl keeps its state.
    pub dir: PathBuf,
    /// Where it starts.
    pub seeds: Vec<Url>,
    /// Which URLs belong to it.
    pub scope: Scope,
    /// How it fetches.
    pub fetch: FetchSettings,
    /// It ends after this many pages of this run.
    pub pages_max: Option<u64>,
    /// It ends after so many bytes of this run.
    pub bytes_max: Option<u64>,
    /// It ends after this long.
    pub time_max: Option<Duration>,
    /// A cycle makes its pages visible so often; `None` for only at the end.
    pub cycle_every: Option<Duration>,
    /// A cycle makes its pages visible after so many of them.
    pub cycle_pages: Option<u64>,
    /// Whether there is a cycle at the end.
    pub cycle_at_end: bool,
    /// Whether sitemaps are read.
    pub sitemaps: bool,
    /// Pages read longer ago than this are read again.
    pub recrawl: Option<Duration>,
    /// How often a page is tried.
    pub tries_max: u8,
}

impl Settings {
    /// A crawl with a folder for its state, from some seeds, as usual.
    pub fn new(dir: impl Into<PathBuf>, seeds: Vec<Url>) -> Settings {
        Settings {
            dir: dir.into(),
            seeds,
            scope: Scope::default(),
            fetch: FetchSettings::default(),
            pages_max: None,
            bytes_max: None,
            time_max: None,
            cycle_every: None,
            cycle_pages: None,
            cycle_at_end: true,
            sitemaps: true,
            recrawl: None,
            tries_max: 3,
        }
    }
}

/// Why a crawl could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CrawlError {
    /// Its state cannot be read or written.
    #[error(transparent)]
    Frontier(#[from] FrontierError),
    /// Its spool cannot be read or written.
    #[error("the spool: {0}")]
    Spool(std::io::Error),
    /// Its folder cannot be made.
    #[error("{dir}: {source}")]
    Folder {
        /// Which.
        dir: String,
        /// Why.
        source: std::io::Error,
    },
    /// The repository does not take pages.
    #[error(
        "the repository does not take pages: {0}; they are kept in the crawl's folder and go on with the next `webbase crawl`"
    )]
    Repository(String),
    /// Fetching cannot begin.
    #[error("cannot fetch: {0}")]
    Fetch(String),
}

/// Why a crawl ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Nothing waits any more.
    Done,
    /// It has as many pages or bytes as it may, or took as long.
    Limit,
    /// It was told to.
    Stopped,
}

/// A hand on a running crawl.
#[derive(Clone, Default)]
pub struct Control(Arc<Shared>);

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    pause: AtomicBool,
    progress: Mutex<Progress>,
    fetcher: Mutex<Option<Arc<Fetcher>>>,
}

impl Control {
    /// Ends the crawl: what is being fetched is still taken, then everything is written.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
    }

    /// Hands out no more URLs, or again.
    pub fn pause(&self, paused: bool) {
        self.0.pause.store(paused, Ordering::Release);
    }

    /// How it goes.
    pub fn progress(&self) -> Progress {
        self.0.progress.lock().clone()
    }

    /// A site, as the fetcher sees it: why it is slow.
    pub fn site(&self, host: &str) -> Option<crate::fetcher::SiteView> {
        self.0.fetcher.lock().as_ref()?.site(host)
    }

    fn is_stopped(&self) -> bool {
        self.0.stop.load(Ordering::Acquire)
    }

    fn is_paused(&self) -> bool {
        self.0.pause.load(Ordering::Acquire)
    }
}

/// Crawls until nothing waits, a limit is reached or it is told to stop.
///
/// # Errors
/// When the crawl's state cannot be written, or the repository takes no pages. What was fetched is in the crawl's folder, and the next
/// crawl there goes on with it.
pub async fn crawl<S: Sink>(
    settings: Settings,
    resolver: Arc<dyn Resolve>,
    sink: S,
    control: Control,
) -> Result<Ended, CrawlError> {
    let (fetcher, outcomes) = Fetcher::start(settings.fetch.clone(), resolver).map_err(CrawlError::Fetch)?;
    let fetcher = Arc::new(fetcher);
    *control.0.fetcher.lock() = Some(Arc::clone(&fetcher));
    let handle = tokio::runtime::Handle::current();
    let inner = control.clone();
    let keeping = tokio::task::spawn_blocking(move || {
        let mut keeper = Keeper::open(settings, fetcher, outcomes, Arc::new(sink), inner, handle)?;
        keeper.run()
    });
    let ended = keeping.await;
    *control.0.fetcher.lock() = None;
    match ended {
        Ok(ended) => ended,
        Err(e) => std::panic::resume_unwind(e.into_panic()),
    }
}

/// Whether a URL that was not had is to be tried again.
fn may_pass(e: &FetchError) -> bool {
    e.may_pass()
}
