//! A world that goes on: its pages change on a clock that runs fast, and come in; cycles make them visible; somebody reads.
//!
//! The world's clock stands while nobody runs it. When it goes on is not kept anywhere: its first page is added with every
//! round, so that the moment when that was fetched is the moment when the clock stopped.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::Client;
use tokio::time::Instant;
use webbase_node::Cluster;
use webbase_node::plan::NodeState;
use webbase_storage::Page;
use webbase_web_in_a_box::{Fetched, Random, World};

use super::fill::{as_page, fill, world};

/// The world's clock is so much faster than ours: ten minutes a second.
const SPEED: u64 = 600;
/// Between two looks at the world.
const ROUND: Duration = Duration::from_millis(500);
/// Rounds from one cycle to the next.
const CYCLE_ROUNDS: u64 = 40;
/// Readers look up to so many pages up in a round.
const LOOKUPS_MAX: u64 = 24;
/// Rounds from one reader of everything to the next.
const STREAM_ROUNDS: u64 = 30;
/// What one of them thinks about a kilobyte.
const THINKING: Duration = Duration::from_millis(1);
/// A request that takes longer is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// Fills a repository that is empty, and keeps its world going until it is dropped.
///
/// Readers come through the gateway at `http`, if there is one that takes everybody.
///
/// # Errors
/// When the pages cannot be added at first. Later a round that fails is told and not the end.
pub async fn live(cluster: Cluster, http: Option<SocketAddr>) -> Result<()> {
    if let Err(e) = fill(&cluster).await {
        tracing::error!("the demo's pages are not all there: {e:#}");
        return Err(e);
    }
    let (world, read_at_ms) = world();
    let first = cluster.lookup_url(&world.url(0)).await.context("the demo's first page is not found")?;
    let stopped_at_ms = first.pages.map_or(read_at_ms, |page| page.get().fetched_at_ms());
    let readers = http.map(|address| tokio::spawn(read(world.clone(), address)));
    let _readers = readers.map(Ending);
    let (began, mut seen_ms) = (Instant::now(), stopped_at_ms);
    let mut clock = tokio::time::interval(ROUND);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    for round in 1_u64.. {
        clock.tick().await;
        let now_ms = stopped_at_ms + began.elapsed().as_millis() as u64 * SPEED;
        match add_changed(&cluster, &world, seen_ms, now_ms).await {
            Ok(()) => seen_ms = now_ms,
            Err(e) => tracing::warn!("the demo's changes wait for the next round: {e:#}"),
        }
        if round.is_multiple_of(CYCLE_ROUNDS)
            && let Err(e) = cycle(&cluster).await
        {
            tracing::warn!("the demo's cycle did not begin: {e:#}");
        }
    }
    Ok(())
}

/// Ends a task with whoever started it.
struct Ending(tokio::task::JoinHandle<()>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Adds what has changed from one moment to another, and the first page.
async fn add_changed(cluster: &Cluster, world: &World, from_ms: u64, to_ms: u64) -> Result<()> {
    let state = |page, at_ms| (world.lives(page, at_ms), world.version(page, at_ms).0);
    let changed =
        (0..world.pages()).filter(|page| *page == 0 || state(*page, from_ms) != state(*page, to_ms));
    let fetched: Vec<Fetched> = changed.filter_map(|page| world.fetch(page, to_ms)).collect();
    let pages: Vec<Page<'_>> = fetched.iter().map(|page| as_page(page, to_ms)).collect();
    let added = cluster.add(&pages).await?;
    ensure!(added.refused.is_empty(), "{} pages were refused", added.refused.len());
    Ok(())
}

/// Begins a cycle, if none runs and all nodes are there to take part.
async fn cycle(cluster: &Cluster) -> Result<()> {
    let status = cluster.status().await?;
    let all_up = status.nodes.iter().all(|node| node.state != NodeState::Down && !node.leaving);
    if status.cycle.is_none() && all_up {
        cluster.management().start_cycle().await?;
    }
    Ok(())
}

/// Reads as people and indexers do: some pages, more at some times than at others, and now and then all of them.
async fn read(world: World, address: SocketAddr) {
    let client = match Client::builder().no_proxy().timeout(PATIENCE).build() {
        Ok(client) => client,
        Err(e) => return tracing::warn!("the demo has no readers: {e}"),
    };
    let Ok(page_address) = reqwest::Url::parse(&format!("http://{address}/page")) else { return };
    let mut random = Random::new(std::process::id().into());
    for round in 1_u64.. {
        let wave = 0.5 + 0.5 * (round as f64 / 40.0).sin();
        for _ in 0..2 + random.below(1 + (LOOKUPS_MAX as f64 * wave) as u64) {
            let page = random.below(world.pages() as u64) as usize;
            let mut url = page_address.clone();
            url.query_pairs_mut().append_pair("url", &world.url(page));
            // The readers of a demo complain to nobody; errors of the repository are counted where they happen.
            if let Ok(answer) = client.get(url).send().await {
                let _ = answer.bytes().await;
            }
        }
        if round.is_multiple_of(STREAM_ROUNDS) {
            tokio::spawn(take_all(client.clone(), address));
        }
        tokio::time::sleep(ROUND).await;
    }
}

/// Takes all pages, as an indexer does that has to think about each.
async fn take_all(client: Client, address: SocketAddr) {
    let all = client.get(format!("http://{address}/stream?format=jsonl")).timeout(PATIENCE * 6).send().await;
    let Ok(mut answer) = all else { return };
    while let Ok(Some(piece)) = answer.chunk().await {
        tokio::time::sleep(THINKING * (piece.len() as u32 >> 10)).await;
    }
}
