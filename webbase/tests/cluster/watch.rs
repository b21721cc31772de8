//! Readers that never stop: lookups, each of one generation, and streams of whole generations, while things happen.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::task::JoinHandle;
use webbase_node::Cluster;
use webbase_storage::PageKey;

use crate::truth::{Truth, url};

/// Readers at work. A reader that fails shows when the watch ends.
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    lookups: Arc<AtomicU64>,
    readers: Vec<JoinHandle<()>>,
}

impl Watch {
    /// Starts readers over pages 0 to `pages`.
    pub(crate) fn start(cluster: &Cluster, truth: &Truth, pages: usize) -> Watch {
        let (stop, lookups) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut readers = Vec::new();
        for reader in 0..2 {
            let (cluster, truth, stop) = (cluster.clone(), truth.clone(), stop.clone());
            let lookups = lookups.clone();
            readers.push(tokio::spawn(async move {
                let mut at = reader * 7;
                while !stop.load(Ordering::Relaxed) {
                    at = (at + 97) % pages;
                    look_up(&cluster, &truth, at, pages).await;
                    lookups.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                }
            }));
        }
        let (cluster, truth, stopped) = (cluster.clone(), truth.clone(), stop.clone());
        readers.push(tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                truth.check_stream(&cluster, true).await;
            }
        }));
        Watch { stop, lookups, readers }
    }

    /// How many lookups were right so far.
    pub(crate) fn lookups(&self) -> u64 {
        self.lookups.load(Ordering::Relaxed)
    }

    /// Ends the readers; fails if one of them did.
    pub(crate) async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for reader in self.readers {
            reader.await.unwrap();
        }
    }
}

/// One page, and a handful spread over all nodes: all of the generation that the answer names.
async fn look_up(cluster: &Cluster, truth: &Truth, at: usize, pages: usize) {
    let numbers: Vec<usize> = (0..8).map(|k| (at + k * 131) % pages).collect();
    let keys: Vec<PageKey> = numbers.iter().map(|n| cluster.page_key(&url(*n)).unwrap()).collect();
    let many = cluster.lookup_many(&keys).await.unwrap();
    let content = truth.of(many.generation);
    for (n, page) in numbers.iter().zip(many.pages) {
        let page = page.unwrap();
        assert_eq!(page.is_some(), content.contains_key(n), "page {n} in generation {}", many.generation);
        if let (Some(round), Some(record)) = (content.get(n), page) {
            truth.check(cluster, *n, *round, &record);
        }
    }
    let one = cluster.lookup(keys[0]).await.unwrap();
    let round = truth.of(one.generation).get(&numbers[0]).copied();
    assert_eq!(one.pages.is_some(), round.is_some());
    if let (Some(round), Some(record)) = (round, one.pages) {
        truth.check(cluster, numbers[0], round, &record);
    }
}
