//! The demo's web: filling a repository with a world, and keeping it going, until there is a crawler to read it.

mod life;

use anyhow::{Result, ensure};
use webbase_node::Cluster;
use webbase_storage::Page;
use webbase_web_in_a_box::{DAY_MS, Fetched, World};

pub use self::life::live;

/// The demo's world.
const SEED: u64 = 1;
const PAGES: usize = 3000;
const BEGAN_AT_MS: u64 = 1_750_000_000_000;
/// Pages that are added at once.
const BATCH: usize = 500;

/// The world that `webbase up --demo` shows, and when it is read.
pub fn world() -> (World, u64) {
    (World::new(SEED, PAGES, BEGAN_AT_MS), BEGAN_AT_MS + 100 * DAY_MS)
}

/// Adds the demo's world to a repository that has nothing yet, and makes it visible.
///
/// # Errors
/// When pages are not taken, or the cycle does not come to its end.
pub async fn fill(cluster: &Cluster) -> Result<()> {
    if cluster.status().await?.committed > 0 {
        return Ok(());
    }
    let (world, now_ms) = world();
    let numbers: Vec<usize> = (0..world.pages()).collect();
    for some in numbers.chunks(BATCH) {
        let fetched: Vec<Fetched> = some.iter().filter_map(|page| world.fetch(*page, now_ms)).collect();
        let pages: Vec<Page<'_>> = fetched.iter().map(|page| as_page(page, now_ms)).collect();
        let added = cluster.add(&pages).await?;
        ensure!(added.refused.is_empty(), "{} pages were refused", added.refused.len());
    }
    cluster.cycle(|_| {}).await?;
    Ok(())
}

fn as_page(page: &Fetched, fetched_at_ms: u64) -> Page<'_> {
    Page {
        url: &page.url,
        fetched_at_ms,
        modified_at_ms: Some(page.modified_at_ms),
        status: 200,
        mime: page.mime,
        head: &page.head,
        body: &page.body,
        ..Page::default()
    }
}
