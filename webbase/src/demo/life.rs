//! Cycles, which make visible what the crawl has read: soon at first, then three a minute.

use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;
use webbase_node::Cluster;
use webbase_node::plan::NodeState;

use super::Crawling;

/// Between two looks at the crawl.
const LOOK: Duration = Duration::from_millis(250);
/// From one cycle to the next: at first, and later; it doubles in between.
const FIRST: Duration = Duration::from_secs(2);
const LATER: Duration = Duration::from_secs(20);
/// The very first one waits for so many pages, and not longer than `FIRST`.
const PAGES: u64 = 100;

/// Runs cycles for ever, each when there are new pages.
pub(super) async fn cycles(cluster: Cluster, crawling: Crawling) {
    let is_new = cluster.status().await.is_ok_and(|status| status.committed == 0);
    // After a start old generations are held for a while, and only two of them are kept: no hurry then.
    let (mut last, mut pause) = (Instant::now(), if is_new { FIRST } else { LATER });
    let mut pages_then = 0;
    loop {
        tokio::time::sleep(LOOK).await;
        let pages = crawling.pages();
        let is_due = last.elapsed() >= pause || is_new && pages_then == 0 && pages >= PAGES;
        if pages == pages_then || !is_due {
            continue;
        }
        match cycle(&cluster).await {
            Ok(true) => {
                pages_then = pages;
                pause = (pause * 2).min(LATER);
            }
            Ok(false) => {}
            Err(e) => tracing::warn!("the demo's cycle did not begin: {e:#}"),
        }
        last = Instant::now();
    }
}

/// Begins a cycle, if none runs and all nodes are there to take part.
async fn cycle(cluster: &Cluster) -> Result<bool> {
    let status = cluster.status().await?;
    let all_up = status.nodes.iter().all(|node| node.state != NodeState::Down && !node.leaving);
    if status.cycle.is_some() || !all_up {
        return Ok(false);
    }
    cluster.management().start_cycle().await?;
    Ok(true)
}
