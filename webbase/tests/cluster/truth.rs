//! What is in which generation: the pages that were acknowledged before its cycle began.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use webbase_node::Cluster;
use webbase_storage::{Page, PageKey, Record};

/// For each page its round: page n of round r has one body, which no other has.
pub(crate) type Content = BTreeMap<usize, u32>;

pub(crate) fn url(n: usize) -> String {
    format!("http://site-{}.example/{n}", n % 11)
}

/// Bytes that do not pack, named by page and round.
pub(crate) fn body(n: usize, round: u32, bytes: usize) -> Vec<u8> {
    let mut word = (n as u64) << 32 | u64::from(round) | 1 << 63;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        out.extend_from_slice(&(word ^ word >> 29).to_le_bytes());
    }
    out.truncate(bytes);
    out
}

/// What was acknowledged, and what each generation has.
#[derive(Clone)]
pub(crate) struct Truth {
    inner: Arc<Mutex<Inner>>,
    pub(crate) bytes: usize,
}

#[derive(Default)]
struct Inner {
    acknowledged: Content,
    /// Pages that were refused: they may be there all the same.
    refused: BTreeSet<usize>,
    generations: BTreeMap<u64, Content>,
}

impl Truth {
    pub(crate) fn new(bytes: usize) -> Truth {
        let inner = Inner { generations: BTreeMap::from([(0, Content::new())]), ..Inner::default() };
        Truth { inner: Arc::new(Mutex::new(inner)), bytes }
    }

    /// Adds pages of a round, all of which must be acknowledged.
    pub(crate) async fn add(&self, cluster: &Cluster, pages: Range<usize>, round: u32) {
        let numbers: Vec<usize> = pages.collect();
        assert_eq!(self.add_some(cluster, &numbers, round).await, []);
    }

    /// Adds pages of a round; returns those that were refused, and why.
    pub(crate) async fn add_some(
        &self,
        cluster: &Cluster,
        numbers: &[usize],
        round: u32,
    ) -> Vec<(usize, String)> {
        let mut all_refused = Vec::new();
        for some in numbers.chunks(1000) {
            let texts: Vec<_> = some.iter().map(|n| (url(*n), body(*n, round, self.bytes))).collect();
            let pages: Vec<Page<'_>> = texts
                .iter()
                .map(|(url, body)| Page {
                    url,
                    body,
                    fetched_at_ms: 1_000_000 + u64::from(round),
                    ..Page::default()
                })
                .collect();
            let done = cluster.add(&pages).await.unwrap();
            assert_eq!(done.acknowledged as usize + done.refused.len(), pages.len());
            let refused: BTreeMap<usize, String> =
                done.refused.iter().map(|(at, e)| (some[*at], e.to_string())).collect();
            let mut inner = self.inner.lock().unwrap();
            let taken = some.iter().filter(|n| !refused.contains_key(n));
            inner.acknowledged.extend(taken.map(|n| (*n, round)));
            inner.refused.extend(refused.keys());
            all_refused.extend(refused);
        }
        all_refused
    }

    /// A cycle that makes this generation would contain what is acknowledged now.
    pub(crate) fn expect(&self, generation: u64) {
        let mut inner = self.inner.lock().unwrap();
        let content = inner.acknowledged.clone();
        inner.generations.insert(generation, content);
    }

    /// What a generation has.
    pub(crate) fn of(&self, generation: u64) -> Content {
        let inner = self.inner.lock().unwrap();
        let content = inner.generations.get(&generation);
        content.unwrap_or_else(|| panic!("generation {generation} was never made")).clone()
    }

    /// Runs a cycle, again if it is aborted, and says which generation it made.
    pub(crate) async fn cycle(&self, cluster: &Cluster) -> u64 {
        for _ in 0..5 {
            let status = cluster.status().await.unwrap();
            self.expect(status.committed + 1);
            match cluster.cycle(|_| {}).await {
                Ok(generation) => return generation,
                Err(e) => eprintln!("a cycle did not come to its end: {e}"),
            }
        }
        panic!("five cycles in a row did not come to their end");
    }

    /// Fails unless the record is the page's of this round.
    pub(crate) fn check(&self, cluster: &Cluster, n: usize, round: u32, record: &Record) {
        assert_eq!(record.get().url(), url(n));
        let found = record.body(cluster.dictionaries()).unwrap();
        assert!(found[..] == body(n, round, self.bytes)[..], "page {n} is not that of round {round}");
    }

    /// Looks every page up, and some that are not there.
    pub(crate) async fn check_all(&self, cluster: &Cluster) {
        let refused = self.inner.lock().unwrap().refused.clone();
        let count = self.inner.lock().unwrap().acknowledged.keys().next_back().map_or(0, |n| n + 1);
        let numbers: Vec<usize> = (0..count + 10).collect();
        for some in numbers.chunks(500) {
            let keys: Vec<PageKey> = some.iter().map(|n| cluster.page_key(&url(*n)).unwrap()).collect();
            let found = cluster.lookup_many(&keys).await.unwrap();
            let content = self.of(found.generation);
            for (n, page) in some.iter().zip(found.pages) {
                match (content.get(n), page.unwrap()) {
                    (Some(round), Some(record)) => self.check(cluster, *n, *round, &record),
                    (None, None) => {}
                    (None, Some(_)) if refused.contains(n) => {}
                    (wanted, found) => {
                        panic!("page {n}: wanted {wanted:?}, found {:?}", found.map(|r| r.get().version()));
                    }
                }
            }
        }
    }

    /// Streams everything: each page once, all of one generation.
    pub(crate) async fn check_stream(&self, cluster: &Cluster, slow: bool) -> u64 {
        let mut stream = cluster.stream().await.unwrap();
        let mut content = self.of(stream.generation());
        let by_url: BTreeMap<String, usize> = content.keys().map(|n| (url(*n), *n)).collect();
        let mut count = 0_u64;
        while let Some(record) = stream.next().await {
            let record = record.unwrap();
            let n = *by_url.get(record.get().url()).expect("a page of this generation");
            let round = content.remove(&n).unwrap_or_else(|| panic!("page {n} came twice"));
            self.check(cluster, n, round, &record);
            count += 1;
            if slow && count.is_multiple_of(20) {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        }
        assert!(content.is_empty(), "{} pages did not come", content.len());
        stream.generation()
    }
}
