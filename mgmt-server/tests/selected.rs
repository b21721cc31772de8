//! Streams of what a specification names: filtered on the nodes, in every order, in parts, projected, shared; resumed from a
//! cursor at any page, with nodes killed, and in the next generation when theirs is gone. What comes is compared with the same
//! selection made here of everything, in stores of each organization.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::time::Duration;

use tempfile::TempDir;
use webbase_mgmt_server::{ManagementServer, ServerOptions, Settings};
use webbase_node::plan::{ReadPlan, Status};
use webbase_node::wire::message::StreamOrder;
use webbase_node::wire::spec::{Condition, Projection, StreamSpec};
use webbase_node::{
    Cluster, ClusterSettings, ClusterStream, Host, HostOptions, How, NodeError, Role, StreamCursor,
};
use webbase_storage::{Compression, Organization, Page, PageKey};

struct Repository {
    dir: TempDir,
    server: ManagementServer,
    nodes: BTreeMap<String, Host>,
}

impl Repository {
    async fn start(read: &[Organization], replicas: u32) -> Repository {
        let dir = tempfile::tempdir().unwrap();
        let mut options = ServerOptions::new(dir.path().join("mgmt"), "127.0.0.1:0".parse().unwrap());
        let settings =
            Settings { down_after_ms: 1000, resend_ms: 200, lease_ms: 2000, ..Settings::default() };
        (options.replicas, options.range_bits, options.settings) = (replicas, 4, settings);
        let server = ManagementServer::start(options).await.unwrap();
        let mut repository = Repository { dir, server, nodes: BTreeMap::new() };
        for n in 0..replicas {
            repository.start_node(&format!("u{n}"), Organization::Log).await;
        }
        for (n, organization) in read.iter().enumerate() {
            repository.start_node(&format!("r{n}"), *organization).await;
        }
        let count = read.len() + replicas as usize;
        repository.until("all nodes are there", |s| s.nodes.len() == count).await;
        repository
    }

    async fn start_node(&mut self, name: &str, organization: Organization) {
        let role = if name.starts_with('u') { Role::Update } else { Role::Read };
        let listen = "127.0.0.1:0".parse().unwrap();
        let mut options = HostOptions::new(self.dir.path().join(name), listen, self.server.address(), role);
        options.organization = organization;
        options.heartbeat = Duration::from_millis(100);
        options.storage.segment_bytes = 256 << 10;
        options.storage.buffer_bytes = 1 << 20;
        self.nodes.insert(name.to_owned(), Host::start(options).await.unwrap());
    }

    async fn client(&self) -> Cluster {
        let mut settings = ClusterSettings {
            queue_bytes: 64 << 10,
            compression: Compression::None,
            ..ClusterSettings::default()
        };
        settings.client.limits.credit_bytes = 512 << 10;
        Cluster::connect(self.server.address(), settings).await.unwrap()
    }

    async fn until(&self, what: &str, holds: impl Fn(&Status) -> bool) {
        let cluster = self.client().await;
        let end = std::time::Instant::now() + Duration::from_secs(60);
        loop {
            let status = cluster.status().await.unwrap();
            if holds(&status) {
                return;
            }
            assert!(std::time::Instant::now() < end, "still waiting until {what}: {status:#?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Pages `numbers`, fetched at a time that depends on the version, and a cycle.
    async fn add(&self, numbers: std::ops::Range<usize>, version: u64) {
        let cluster = self.client().await;
        let texts: Vec<(String, String)> = numbers.clone().map(|n| (url(n), body(n, version))).collect();
        let pages: Vec<Page<'_>> = numbers
            .zip(&texts)
            .map(|(n, (url, body))| Page {
                url,
                body: body.as_bytes(),
                head: b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n",
                mime: if n % 5 == 0 { "text/html" } else { "application/pdf" },
                status: if n % 11 == 0 { 404 } else { 200 },
                fetched_at_ms: 1_000_000 * version + (n as u64 * 7919) % 1000,
                modified_at_ms: (n % 3 != 0).then_some((n as u64 * 104_729) % 5000),
                ..Page::default()
            })
            .collect();
        cluster.add(&pages).await.unwrap().all().unwrap();
        cluster.cycle(|_| {}).await.unwrap();
        self.until("the cycle is over", |s| s.serving == s.committed && s.cycle.is_none()).await;
    }

    async fn kill(&mut self, name: &str) {
        let host = self.nodes.remove(name).unwrap();
        let id = host.id();
        drop(host);
        let down = |plan: &ReadPlan| plan.ranges.iter().all(|nodes| !nodes.contains(&id));
        let cluster = self.client().await;
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while !down(&cluster.management().read_plan().await.unwrap().0) {
            assert!(std::time::Instant::now() < end, "a dead node stays in the plan");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn url(n: usize) -> String {
    let tld = ["com", "edu", "org"][n % 3];
    format!("http://{}host{}.example.{tld}/p/{n}", if n.is_multiple_of(4) { "www." } else { "" }, n % 13)
}

fn body(n: usize, version: u64) -> String {
    format!("<p>page {n} version {version} ").repeat(8 * (1 + n % 60))
}

fn importance(key: PageKey) -> f32 {
    (key.id.0 % 1000) as f32 / 1000.0
}

/// What comes of a page, enough to compare.
type Got = (String, u64, usize);

async fn rest(stream: &mut ClusterStream) -> Vec<Got> {
    let mut all = Vec::new();
    while let Some(record) = stream.next().await {
        let record = record.unwrap();
        let seen = record.get();
        all.push((seen.url().to_owned(), seen.fetched_at_ms(), seen.body_len()));
    }
    all
}

async fn of(cluster: &Cluster, spec: StreamSpec) -> Vec<Got> {
    rest(&mut cluster.select(spec, How::default()).await.unwrap()).await
}

fn sorted(mut pages: Vec<Got>) -> Vec<Got> {
    pages.sort();
    pages
}

async fn publish(cluster: &Cluster, version: u64) {
    let mut keys = Vec::new();
    let mut stream = cluster.stream().await.unwrap();
    while let Some(record) = stream.next().await {
        keys.push(record.unwrap().get().key());
    }
    keys.sort();
    let mut publishing = cluster.publish_importance(version).await.unwrap();
    for key in &keys {
        publishing.page(*key, importance(*key)).await.unwrap();
    }
    assert_eq!(publishing.finish().await.unwrap(), keys.len() as u64);
}

const ORDERS: [StreamOrder; 5] =
    [StreamOrder::Id, StreamOrder::Fetched, StreamOrder::Modified, StreamOrder::Importance, StreamOrder::Url];

#[tokio::test(flavor = "multi_thread")]
async fn nodes_select_exactly_what_is_asked_for() {
    for organization in Organization::ALL {
        let repository = Repository::start(&[organization, organization], 1).await;
        repository.add(0..900, 1).await;
        repository.add(500..700, 2).await;
        let cluster = repository.client().await;
        let none = StreamSpec::all().ordered(StreamOrder::Importance);
        assert!(cluster.select(none, How::default()).await.is_err(), "nothing is known of importance yet");
        publish(&cluster, 7).await;
        let all = of(&cluster, StreamSpec::all()).await;
        assert_eq!(all.len(), 900);
        let number = |got: &Got| got.0.rsplit('/').next().unwrap().parse::<usize>().unwrap();
        let key = |got: &Got| cluster.page_key(&got.0).unwrap();
        type Judge<'a> = Box<dyn Fn(&Got) -> bool + 'a>;
        let cases: Vec<(Condition, Judge<'_>)> = vec![
            (Condition::Domain(vec!["example.edu".into()]), Box::new(|g| g.0.contains(".example.edu/"))),
            (
                Condition::Host(vec!["host3.example.com".into()]),
                Box::new(|g| g.0.contains("//host3.example.com/")),
            ),
            (
                Condition::Prefix(vec!["http://host1.example.org/p/1".into(), "host2.example.com/".into()]),
                Box::new(|g| {
                    g.0.starts_with("http://host1.example.org/p/1")
                        || g.0.starts_with("http://host2.example.com/")
                }),
            ),
            (Condition::Mime(vec!["text/*".into()]), Box::new(|g| number(g) % 5 == 0)),
            (Condition::Status(vec![(400, 499)]), Box::new(|g| number(g) % 11 == 0)),
            (Condition::FetchedSince(2_000_000), Box::new(|g| g.1 >= 2_000_000)),
            (Condition::FetchedUntil(1_000_500), Box::new(|g| g.1 < 1_000_500)),
            (
                Condition::ModifiedSince(2500),
                Box::new(|g| number(g) % 3 != 0 && (number(g) as u64 * 104_729) % 5000 >= 2500),
            ),
            (Condition::BytesMin(6400), Box::new(|g| g.2 >= 6400)),
            (Condition::BytesMax(1600), Box::new(|g| g.2 <= 1600)),
            (Condition::Sample(4), Box::new(|g| key(g).id.0 % 4 == 0)),
            (Condition::ImportanceMin(0.75), Box::new(|g| importance(key(g)) >= 0.75)),
        ];
        for (condition, judge) in &cases {
            let expected: Vec<Got> = all.iter().filter(|got| judge(got)).cloned().collect();
            assert!(!expected.is_empty() && expected.len() < all.len(), "{condition:?} says something");
            let found = of(&cluster, StreamSpec::all().with(condition.clone())).await;
            assert!(sorted(found) == sorted(expected), "{condition:?}, {organization}");
        }
        let both = StreamSpec::all().with(cases[0].0.clone()).with(cases[3].0.clone());
        let expected: Vec<Got> = all.iter().filter(|g| cases[0].1(g) && cases[3].1(g)).cloned().collect();
        assert!(sorted(of(&cluster, both).await) == sorted(expected));

        let mut parts = Vec::new();
        for part in 0..5 {
            parts.extend(of(&cluster, StreamSpec::all().part(part, 5)).await);
        }
        assert!(sorted(parts) == sorted(all.clone()), "parts of {organization}");

        for projection in [Projection::WithoutBody, Projection::BodyOnly] {
            let spec = StreamSpec::all().projected(projection);
            let mut stream = cluster.select(spec, How::default()).await.unwrap();
            let mut count = 0;
            while let Some(record) = stream.next().await {
                let record = record.unwrap();
                let (head, body) = (record.head(cluster.dictionaries()), record.body(cluster.dictionaries()));
                match projection {
                    Projection::WithoutBody => assert!(body.is_err() && !head.unwrap().is_empty()),
                    _ => assert!(body.unwrap().starts_with(b"<p>page ") && head.unwrap().is_empty()),
                }
                count += 1;
            }
            assert_eq!(count, 900);
        }
    }
}

/// A page's place in an order, as it is seen from outside.
fn place(order: StreamOrder, cluster: &Cluster, got: &Got) -> (i64, String) {
    let n = got.0.rsplit('/').next().unwrap().parse::<u64>().unwrap();
    let key = cluster.page_key(&got.0).unwrap();
    match order {
        StreamOrder::Fetched => (got.1 as i64, String::new()),
        StreamOrder::Modified if n % 3 == 0 => (i64::MAX, String::new()),
        StreamOrder::Modified => (((n * 104_729) % 5000) as i64, String::new()),
        StreamOrder::Importance => ((importance(key) * -1000.0).round() as i64, String::new()),
        StreamOrder::Url => (0, webbase_storage::surt::Profile::Strict1.key(&got.0).unwrap()),
        _ => (0, format!("{key}")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_are_kept_across_nodes_cursors_and_deaths() {
    for organizations in
        [[Organization::Log; 3], [Organization::Hash, Organization::Log, Organization::HashedLog]]
    {
        let mut repository = Repository::start(&organizations, 2).await;
        repository.add(0..800, 1).await;
        let cluster = repository.client().await;
        publish(&cluster, 1).await;
        let all = of(&cluster, StreamSpec::all()).await;
        let mut open = Vec::new();
        for order in ORDERS {
            let spec = StreamSpec::all().domain("example.edu").ordered(order);
            let expected: Vec<Got> = all.iter().filter(|g| g.0.contains(".edu/")).cloned().collect();
            let found = of(&cluster, spec.clone()).await;
            assert!(found.is_sorted_by_key(|got| place(order, &cluster, got)), "{order:?}");
            assert!(sorted(found.clone()) == sorted(expected), "{order:?}");
            // Stopped anywhere and resumed by another client, from a line of text.
            for taken in [0, 1, found.len() / 2, found.len() - 1] {
                let mut stream = cluster.select(spec.clone(), How::default()).await.unwrap();
                for _ in 0..taken {
                    stream.next().await.unwrap().unwrap();
                }
                let cursor: StreamCursor = stream.cursor().unwrap().to_string().parse().unwrap();
                drop(stream);
                let other = repository.client().await;
                let rest = rest(&mut other.resume(&cursor).await.unwrap()).await;
                assert!(rest == found[taken..], "{order:?} from {taken}");
            }
            let mut stream = cluster.select(spec, How::default()).await.unwrap();
            let first = stream.next().await.unwrap().unwrap().get().url().to_owned();
            assert_eq!(first, found[0].0);
            open.push((order, stream, found));
        }
        // A node dies under all of them.
        repository.kill("r1").await;
        for (order, mut stream, found) in open {
            let rest = rest(&mut stream).await;
            assert!(rest == found[1..], "{order:?}, {} of {} came", rest.len() + 1, found.len());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_scans_bring_each_page_once_wherever_one_joins() {
    for organization in [Organization::Log, Organization::Hash] {
        let repository = Repository::start(&[organization, organization], 1).await;
        repository.add(0..3000, 1).await;
        let cluster = repository.client().await;
        let all = sorted(of(&cluster, StreamSpec::all()).await);
        let how = How { shared: true, direct: false };
        let mut tasks = Vec::new();
        for n in 0..10 {
            let cluster = repository.client().await;
            let spec = if n % 2 == 0 { StreamSpec::all() } else { StreamSpec::all().domain("edu") };
            tasks.push(tokio::spawn(async move {
                let mut stream = cluster.select(spec, how).await.unwrap();
                let mut all = Vec::new();
                // Some stop for a while: they are let go, or the others wait for them; nobody misses anything.
                for _ in 0..n * 20 {
                    let record = stream.next().await.unwrap().unwrap();
                    all.push((
                        record.get().url().to_owned(),
                        record.get().fetched_at_ms(),
                        record.get().body_len(),
                    ));
                }
                tokio::time::sleep(Duration::from_millis(150 * n)).await;
                all.extend(rest(&mut stream).await);
                all
            }));
        }
        for (n, task) in tasks.into_iter().enumerate() {
            let expected: Vec<Got> =
                all.iter().filter(|g| n % 2 == 0 || g.0.contains(".edu/")).cloned().collect();
            assert!(sorted(task.await.unwrap()) == expected, "client {n}, {organization}");
        }
        // A shared stream has a cursor too, at any page.
        for taken in [1, 700, 2000, 2999] {
            let mut stream = cluster.select(StreamSpec::all(), how).await.unwrap();
            let mut got = Vec::new();
            for _ in 0..taken {
                let record = stream.next().await.unwrap().unwrap();
                got.push((
                    record.get().url().to_owned(),
                    record.get().fetched_at_ms(),
                    record.get().body_len(),
                ));
            }
            let cursor: StreamCursor = stream.cursor().unwrap().to_string().parse().unwrap();
            drop(stream);
            got.extend(rest(&mut cluster.resume(&cursor).await.unwrap()).await);
            assert!(sorted(got) == all, "shared, from {taken}, {organization}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_of_a_generation_that_is_gone_goes_on_in_the_current_one() {
    let repository = Repository::start(&[Organization::Log, Organization::Log], 1).await;
    repository.add(0..600, 1).await;
    let cluster = repository.client().await;
    publish(&cluster, 1).await;
    let mut cursors = Vec::new();
    for (order, how) in ORDERS.map(|order| (order, How::default())).into_iter().chain([
        (StreamOrder::Store, How::default()),
        (StreamOrder::Store, How { shared: true, direct: false }),
    ]) {
        let spec = StreamSpec::all().domain("example.edu").ordered(order);
        let mut stream = cluster.select(spec, how).await.unwrap();
        let mut taken = Vec::new();
        for _ in 0..80 {
            taken.push(stream.next().await.unwrap().unwrap().get().url().to_owned());
        }
        cursors.push((order, how, stream.cursor().unwrap(), taken));
    }
    // Enough generations that the first is let go.
    for version in 2..6 {
        repository.add(version as usize * 10..version as usize * 10 + 150, version).await;
    }
    let gone = |status: &Status| !status.kept.contains(&1);
    repository.until("the first generation is gone", gone).await;
    publish(&cluster, 2).await;
    let now = of(&cluster, StreamSpec::all().domain("example.edu")).await;
    for (order, how, cursor, taken) in cursors {
        let refused = cluster.resume(&cursor).await.err();
        assert!(
            matches!(refused, Some(NodeError::StreamLost { generation: 1, .. })),
            "{order:?}: {refused:?}"
        );
        let found = rest(&mut cluster.go_on(&cursor).await.unwrap()).await;
        let mut seen: Vec<&str> = found.iter().map(|got| got.0.as_str()).collect();
        seen.extend(taken.iter().map(String::as_str));
        let skipped: Vec<&Got> = now.iter().filter(|got| !seen.contains(&got.0.as_str())).collect();
        assert!(skipped.is_empty(), "{order:?} {how:?}: {} skipped, {:?}", skipped.len(), &skipped[0]);
        let mut once: Vec<&str> = found.iter().map(|got| got.0.as_str()).collect();
        once.sort_unstable();
        assert!(once.is_sorted_by(|a, b| a < b), "{order:?}: a page came twice");
    }
}
