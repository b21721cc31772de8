//! A client in the process of its nodes: it hands pages to them by a call. What is acknowledged so is there as if it had come through a
//! socket, beside nodes that it does reach so, and with the dictionaries that pages need.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod common;

use common::{Pages, Repository, add, check};
use webbase_storage::{Organization, Page};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_go_to_near_and_to_far_nodes_and_their_dictionaries_with_them() {
    for organization in Organization::ALL {
        let repository = Repository::start(
            &["u1", "u2", "r1"],
            |server| server.replicas = 1,
            move |_, node| node.organization = organization,
        )
        .await;
        let cluster = repository.client().await;
        repository.until_known(&cluster, 3).await;
        let near = &repository.nodes["u1"];
        cluster.reach(near.id(), near.near().unwrap());
        let mut pages = Pages::new();
        add(&cluster, &mut pages, 0..300, 1).await;
        // Enough of them to learn a dictionary from, in many batches; and a page that no batch takes for itself alone.
        for part in 0..40 {
            let words = |n: usize| format!("<p>word {} of page {n}, {}</p>", n * 7919 % 101, n * 31 % 997);
            let body = |n: usize| {
                let text: Vec<String> = (0..60).map(|i| words(n + i * i)).collect();
                text.concat().into_bytes()
            };
            let some: Vec<(String, Vec<u8>)> = (part * 25..part * 25 + 25)
                .map(|n| (format!("http://alike.example/{n}"), body(n)))
                .chain((part == 39).then(|| ("http://alike.example/large".to_owned(), vec![7; 5 << 20])))
                .collect();
            let page = |(url, body)| Page { url, body, status: 200, fetched_at_ms: 5, ..Page::default() };
            let batch: Vec<Page<'_>> =
                some.iter().map(|(url, body)| page((url.as_str(), body.as_slice()))).collect();
            assert_eq!(cluster.add(&batch).await.unwrap().all().unwrap(), some.len() as u64);
            pages.extend(some);
        }
        cluster.cycle(|_| {}).await.unwrap();
        check(&cluster, &pages).await;
        let mut packed = 0;
        let mut stream = cluster.stream().await.unwrap();
        while let Some(record) = stream.next().await {
            packed += u64::from(record.unwrap().get().dictionary() != 0);
        }
        assert!(packed > 100, "{packed} pages need a dictionary");
        // The next epoch has the dictionary, too.
        add(&cluster, &mut pages, 200..500, 2).await;
        cluster.cycle(|_| {}).await.unwrap();
        check(&cluster, &pages).await;
    }
}
