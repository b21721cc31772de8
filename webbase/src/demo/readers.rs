//! Readers: people who look pages up, and indexers that take all of them.

use std::net::SocketAddr;
use std::time::Duration;

use reqwest::Client;
use webbase_web_in_a_box::{Random, World};

/// Between two rounds of lookups.
const ROUND: Duration = Duration::from_millis(500);
/// Readers look up to so many pages up in a round.
const LOOKUPS_MAX: u64 = 24;
/// Rounds from one reader of everything to the next.
const STREAM_ROUNDS: u64 = 30;
/// What one of them thinks about a kilobyte.
const THINKING: Duration = Duration::from_millis(1);
/// A request that takes longer is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads as people and indexers do: some pages, more at some times than at others, and now and then all of them.
pub(super) async fn read(world: World, address: SocketAddr) {
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
            if !world.is_allowed(page) {
                continue; // no crawler has read it
            }
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
