//! The demo: a web in a box, a crawl that reads it for ever, cycles that make what it read visible, and readers.
//!
//! ```text
//!   web in a box ──HTTP, on loopback──▶ crawl ──add──▶ update nodes ──cycles──▶ read nodes ──HTTP──▶ readers
//!   (its clock runs fast)               DIR/demo/crawl
//! ```
//!
//! All of it goes on where it was: the crawl by its own folder, the world's clock by a file, which is written every few seconds. After a kill
//! that shows a moment a little earlier; to the crawl it looks as if some pages had been changed back.

mod clock;
mod crawling;
mod life;
mod readers;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::task::{JoinHandle, JoinSet};
use webbase_node::Cluster;
use webbase_web_in_a_box::{DAY_MS, Serving, WebBox, World};

pub use self::crawling::Crawling;

use self::clock::KeptClock;

/// The demo's world.
const SEED: u64 = 1;
const PAGES: usize = 3000;
const BEGAN_AT_MS: u64 = 1_600_000_000_000;
/// Nobody looks at the visits.
const VISITS_MAX: usize = 1000;

/// The world that `webbase up --demo` shows, and the moment in it when it is shown first.
pub fn world() -> (World, u64) {
    (World::new(SEED, PAGES, BEGAN_AT_MS), BEGAN_AT_MS + 100 * DAY_MS)
}

/// A running demo. Dropped, it ends as soon as it can.
pub struct Demo {
    crawling: Crawling,
    crawl: JoinHandle<()>,
    others: JoinSet<()>,
}

impl Demo {
    /// Starts the world, its crawl, cycles and readers.
    ///
    /// What it keeps is in `dir`. Readers come through the gateway at `http`, if there is one that takes everybody.
    ///
    /// # Errors
    /// When its folder cannot be used, or the world cannot be served.
    pub async fn start(
        cluster: Cluster,
        dir: &Path,
        http: Option<SocketAddr>,
        crawling: Crawling,
    ) -> Result<Demo> {
        let dir = dir.join("demo");
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let (world, at_first_ms) = world();
        let clock = KeptClock::open(dir.join("clock"), at_first_ms)?;
        let serving = Serving { visits_max: Some(VISITS_MAX), ..Serving::default() };
        let web = WebBox::start(world.clone(), clock.clock(), serving).await;
        let web = Arc::new(web.context("cannot serve the demo's world")?);
        let mut others = JoinSet::new();
        others.spawn(clock.keep());
        others.spawn(life::cycles(cluster.clone(), crawling.clone()));
        if let Some(address) = http {
            others.spawn(readers::read(world, address));
        }
        let crawl = tokio::spawn(crawling.clone().run(web, cluster, dir.join("crawl")));
        Ok(Demo { crawling, crawl, others })
    }

    /// Ends it in good order: what is being fetched is still taken.
    pub async fn stop(mut self) {
        self.crawling.stop();
        if let Err(e) = (&mut self.crawl).await {
            tracing::error!("the demo's crawl: {e}");
        }
        self.others.shutdown().await;
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // The crawl has a thread of its own, which only ends by being told to.
        self.crawling.stop();
    }
}
