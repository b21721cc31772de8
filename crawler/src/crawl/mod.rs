//! A crawl: seeds in, pages to the repository, until nothing waits or a limit is reached; or, with a bandwidth, for as long as it is let.
//!
//! ```text
//!             ┌──wait──▶ frontier ──hand out──▶ fetcher ──outcomes──▶ keeper: reading ─▶ spool ─▶ agenda ─▶ frontier ─▶ repository
//!   plan of the agenda      ▲                                            │                 ▲                              │
//!   (with a bandwidth)      └────────────────── links ───────────────────┘                 └────────── emptied ───────────┘
//! ```
//!
//! The keeper is one thread of its own: it takes outcomes in batches, finds links on all cores, and brings each batch to disk in this
//! order: pages to the spool (`spool.rs`), what the visit said to the agenda (`agenda.rs`), URLs and links to the
//! [frontier](crate::frontier). Once they are in the spool, pages are on their way to the repository (`delivery.rs`), which may take until
//! the next batch is there. Killed anywhere in between it goes on from the spool, which is emptied when both are done: nothing that came is
//! fetched again, nothing that was acknowledged is lost.
//!
//! Without a bandwidth a crawl reads what it finds, and ends when it has it. With one ([`Settings::schedule`]) the page scheduler
//! decides what is read: first reads by importance, refreshes by the policy, what sites say has changed and what the repository says
//! is over at once, and never more than the bandwidth. Several crawlers share the hosts out between them ([`Shard`]).

mod agenda;
mod control;
mod delivery;
mod keeper;
mod links;
mod outcomes;
mod peers;
mod progress;
mod ranked;
mod reading;
mod saved;
mod scope;
mod sink;
mod spool;
mod state;
mod summed_file;
#[cfg(test)]
mod tests;
mod worth;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use url::Url;

pub use self::control::{Control, Wish};
pub use self::progress::Progress;
pub use self::saved::saved_schedule;
pub use self::scope::{Outside, Scope, Within};
pub use self::sink::{SeenPage, Sink};
pub use self::state::{CrawlState, PageView};

use crate::fetcher::{Fetcher, Resolve, Settings as FetchSettings};
use crate::frontier::FrontierError;
use crate::metadata::MetadataError;
use crate::scheduler::{BadSetting, Settings as ScheduleSettings};

use self::keeper::Keeper;

/// Bytes as the small files of a crawl.
#[cfg(any(fuzzing, test))]
pub(crate) fn fuzz_files(bytes: &[u8]) {
    worth::fuzz(bytes);
    ranked::fuzz(bytes);
    agenda::belief::fuzz(bytes);
}

/// Such files, without their checksums.
#[cfg(test)]
pub(crate) fn fuzz_samples() -> Vec<Vec<u8>> {
    vec![worth::fuzz_sample(), ranked::fuzz_sample(), agenda::belief::fuzz_sample()]
}

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
    /// The bandwidth, and how the scheduler shares it out. Without it pages are read as they are found, once.
    pub schedule: Option<ScheduleSettings>,
    /// How long pages stay in the repository unless they are seen again; `None`: for ever.
    pub lifetime: Option<Duration>,
    /// Which of several crawlers this is.
    pub shard: Option<Shard>,
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
            schedule: None,
            lifetime: None,
            shard: None,
            tries_max: 3,
        }
    }
}

/// One of several crawlers, each of which reads its own hosts. Hosts that share an address are read by one.
#[derive(Clone, Debug)]
pub struct Shard {
    /// Which, from 0.
    pub own: u32,
    /// How many there are.
    pub count: u32,
    /// A folder that all of them reach, for the links they hand over.
    pub folder: PathBuf,
}

/// Why a crawl could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CrawlError {
    /// Its state cannot be read or written.
    #[error(transparent)]
    Frontier(#[from] FrontierError),
    /// What visits said cannot be read or written.
    #[error("the refresh table: {0}")]
    Metadata(#[from] MetadataError),
    /// What pages are worth cannot be read or written.
    #[error("what pages are worth: {0}")]
    Worth(std::io::Error),
    /// Which sites are believed cannot be read or written.
    #[error("what sites say of their pages: {0}")]
    Sites(std::io::Error),
    /// The schedule cannot be kept.
    #[error("the schedule: {0}")]
    Schedule(#[from] BadSetting),
    /// The settings of the schedule cannot be kept, or read again.
    #[error("{path}: {why}")]
    Saved {
        /// Which file.
        path: String,
        /// Why.
        why: String,
    },
    /// There is no such crawler.
    #[error("crawler {own} of {count} is none of them")]
    Shard {
        /// Which.
        own: u32,
        /// Of how many.
        count: u32,
    },
    /// Links cannot be handed over to the other crawlers.
    #[error("the other crawlers: {0}")]
    Peers(std::io::Error),
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
    if let Some(shard) = settings.shard.as_ref().filter(|shard| shard.own >= shard.count) {
        return Err(CrawlError::Shard { own: shard.own, count: shard.count });
    }
    let started = Fetcher::start(settings.fetch.clone(), Arc::clone(&resolver));
    let (fetcher, outcomes) = started.map_err(CrawlError::Fetch)?;
    let fetcher = Arc::new(fetcher);
    control.begin(Arc::clone(&fetcher), settings.schedule.clone());
    let with = keeper::With {
        fetcher,
        outcomes,
        resolver,
        sink: Arc::new(sink),
        control: control.clone(),
        handle: tokio::runtime::Handle::current(),
    };
    let keeping = tokio::task::spawn_blocking(move || Keeper::open(settings, with)?.run());
    let ended = keeping.await;
    control.end();
    match ended {
        Ok(ended) => ended,
        Err(e) => std::panic::resume_unwind(e.into_panic()),
    }
}
