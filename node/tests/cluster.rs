//! A repository as one client, against real servers and a management server that says what the test wants: pages reach all
//! replicas the same, reads go to others when a node fails or has another generation, a stream delivers each page exactly
//! once whatever the nodes' organizations, and what cannot be done is named.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod common;
#[path = "common/numbered.rs"]
mod numbered;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{body, new_store, page, url};
use numbered::Numbered;
use parking_lot::Mutex;
use tempfile::TempDir;
use webbase_node::cycle::RangeMap;
use webbase_node::cycle::message::NodeId;
use webbase_node::plan::{self, AddPlan, Ask, Lease, ReadPlan, Repository, Told, Update};
use webbase_node::wire::message::{self, Code, StreamOrder};
use webbase_node::{
    Cluster, ClusterSettings, Control, How, NodeError, Server, Service, Settings, StorePages, StreamCursor,
};
use webbase_storage::{Compression, Organization, Page, PageKey, PageStore};

const BITS: u8 = 4;

fn repository() -> Repository {
    Repository { key: [9; 32], map: RangeMap::new(BITS), update: Update::Batch }
}

struct Node {
    id: NodeId,
    store: Arc<dyn PageStore>,
    generation: Arc<AtomicU64>,
    server: Option<Server>,
    folder: TempDir,
}

impl Node {
    async fn start(id: u64, organization: Organization) -> Node {
        let (folder, store) = new_store(organization, Compression::None);
        let mut node =
            Node { id: NodeId(id), store, generation: Arc::new(AtomicU64::new(1)), server: None, folder };
        node.serve().await;
        node
    }

    async fn serve(&mut self) {
        let pages =
            Numbered { pages: StorePages::new(self.store.clone()), generation: self.generation.clone() };
        let service = Service::default().with_pages(Arc::new(pages));
        let listen = "127.0.0.1:0".parse().unwrap();
        self.server = Some(Server::start(listen, service, Settings::default()).await.unwrap());
    }

    /// Cuts everything off.
    async fn kill(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown(Duration::ZERO).await;
        }
    }

    /// Writes over a piece of the record of each of these pages, wherever it lies.
    fn damage(&self, pages: &[usize], piece: std::ops::Range<usize>) {
        use std::os::unix::fs::FileExt;
        let is_of_pages = |path: &std::path::Path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            name.starts_with("segment-") || name == "slots"
        };
        let paths = std::fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let paths: Vec<_> = paths.filter(|path| is_of_pages(path)).collect();
        for n in pages {
            let record = self.store.lookup_url(&url(*n)).unwrap().unwrap().bytes().to_vec();
            let mut hits = 0;
            for path in &paths {
                let content = std::fs::read(path).unwrap();
                let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
                // Records begin alike: only where they end is worth a look.
                let tail = &record[record.len() - 8..];
                for end in (8..=content.len()).filter(|end| content[end - 8..*end] == *tail) {
                    let start = end - record.len();
                    if content[start..end] == record[..] {
                        file.write_all_at(&vec![0; piece.len()], (start + piece.start) as u64).unwrap();
                        hits += 1;
                    }
                }
            }
            assert!(hits > 0, "page {n} is in no file");
        }
    }

    fn address(&self) -> SocketAddr {
        self.server.as_ref().map_or_else(|| "127.0.0.1:1".parse().unwrap(), Server::address)
    }
}

/// What the management server says.
#[derive(Default)]
struct Says {
    generation: u64,
    stamp: u64,
    update: Vec<Vec<NodeId>>,
    read: Vec<Vec<NodeId>>,
    addresses: BTreeMap<NodeId, SocketAddr>,
    leases_open: i64,
    lease_ms: u64,
    renewed: u64,
    refuse_renewal: bool,
}

struct Management {
    says: Arc<Mutex<Says>>,
    server: Server,
}

fn answer(says: &mut Says, ask: &Ask) -> Told {
    let addresses: Vec<_> = says.addresses.iter().map(|(id, at)| (*id, *at)).collect();
    let read =
        ReadPlan { version: 1, generation: says.generation, ranges: says.read.clone(), busy: Vec::new() };
    match ask {
        Ask::Repository => Told::Repository(repository()),
        Ask::AddPlan => {
            let plan = AddPlan { version: 1, stamp: says.stamp, ranges: says.update.clone() };
            Told::AddPlan(plan, addresses)
        }
        Ask::ReadPlan => Told::ReadPlan(read, addresses),
        Ask::OpenLease => {
            says.leases_open += 1;
            let lease = Lease { id: 7, generation: says.generation, period_ms: says.lease_ms };
            Told::Lease(lease, read, addresses)
        }
        Ask::LeaseOn { generation } => {
            says.leases_open += 1;
            let lease = Lease { id: 7, generation: *generation, period_ms: says.lease_ms };
            Told::Lease(lease, ReadPlan { generation: *generation, ..read }, addresses)
        }
        Ask::RenewLease { .. } if says.refuse_renewal => Told::Refused("the generation has to go".into()),
        Ask::RenewLease { id, generation } => {
            says.renewed += 1;
            let lease = Lease { id: *id, generation: *generation, period_ms: says.lease_ms };
            Told::Lease(lease, ReadPlan { generation: *generation, ..read }, addresses)
        }
        Ask::EndLease { .. } => {
            says.leases_open -= 1;
            Told::Done
        }
        _ => Told::Refused("not in this test".into()),
    }
}

impl Management {
    async fn start() -> Management {
        let says = Arc::new(Mutex::new(Says {
            generation: 1,
            stamp: 5,
            lease_ms: 60_000,
            update: vec![Vec::new(); 1 << BITS],
            read: vec![Vec::new(); 1 << BITS],
            ..Says::default()
        }));
        let shared = says.clone();
        let accept = move |topic: &str, mut control: Control| {
            assert_eq!(topic, plan::TOPIC);
            let says = shared.clone();
            tokio::spawn(async move {
                while let Ok(Some(asked)) = control.receive(None).await {
                    let ask: Ask = message::decode(&asked).unwrap();
                    let told = answer(&mut says.lock(), &ask);
                    control.send(message::encode(&told).into()).await.unwrap();
                }
            });
        };
        let service = Service::default().with_control(Arc::new(accept));
        let listen = "127.0.0.1:0".parse().unwrap();
        let server = Server::start(listen, service, Settings::default()).await.unwrap();
        Management { says, server }
    }

    /// Every range on all of these nodes, in both roles.
    fn place(&self, nodes: &[&Node]) {
        let mut says = self.says.lock();
        says.addresses = nodes.iter().map(|node| (node.id, node.address())).collect();
        let all: Vec<NodeId> = nodes.iter().map(|node| node.id).collect();
        says.update = vec![all.clone(); 1 << BITS];
        says.read = vec![all; 1 << BITS];
    }

    async fn client(&self) -> Cluster {
        self.client_with(|_| {}).await
    }

    async fn client_with(&self, change: impl FnOnce(&mut ClusterSettings)) -> Cluster {
        let mut settings = ClusterSettings {
            attempt: Duration::from_secs(2),
            read_limit: Duration::from_secs(5),
            add_limit: Duration::from_secs(10),
            queue_bytes: 32 << 10,
            // A node's share must be much larger than what fits into windows and sockets.
            compression: Compression::None,
            ..ClusterSettings::default()
        };
        settings.client.limits.credit_bytes = 512 << 10;
        settings.client.answer = Duration::from_secs(3);
        change(&mut settings);
        Cluster::connect(self.server.address(), settings).await.unwrap()
    }
}

async fn add(cluster: &Cluster, pages: std::ops::Range<usize>, bytes: usize) {
    let texts: Vec<(String, Vec<u8>)> = pages.map(|n| (url(n), body(n, bytes))).collect();
    let pages: Vec<Page<'_>> = texts.iter().map(|(url, body)| page(url, body)).collect();
    assert_eq!(cluster.add(&pages).await.unwrap().all().unwrap(), pages.len() as u64);
}

#[tokio::test]
async fn pages_reach_all_replicas_in_the_same_version() {
    let management = Management::start().await;
    let (a, b) = (Node::start(1, Organization::Log).await, Node::start(2, Organization::Hash).await);
    management.place(&[&a, &b]);
    let cluster = management.client().await;
    add(&cluster, 0..300, 500).await;
    for n in 0..300 {
        let found = [&a, &b].map(|node| node.store.lookup_url(&url(n)).unwrap().unwrap());
        let [first, second] = found.each_ref().map(|record| record.get().version());
        assert_eq!(first, second, "page {n}");
        assert_eq!(first.epoch, 5, "the plan's stamp");
        let found = cluster.lookup_url(&url(n)).await.unwrap();
        assert_eq!(found.generation, 1);
        let record = found.pages.unwrap();
        assert_eq!(&record.body(cluster.dictionaries()).unwrap()[..], &body(n, 500)[..]);
    }
    let keys: Vec<PageKey> = (0..400).map(|n| cluster.page_key(&url(n)).unwrap()).collect();
    let many = cluster.lookup_many(&keys).await.unwrap().pages;
    for (n, found) in many.into_iter().enumerate() {
        let found = found.unwrap();
        assert_eq!(found.is_some(), n < 300, "page {n}");
        assert!(found.is_none_or(|record| record.get().key() == keys[n]));
    }
}

#[tokio::test]
async fn what_is_not_taken_is_named() {
    let management = Management::start().await;
    let a = Node::start(1, Organization::Log).await;
    management.place(&[&a]);
    let cluster = management.client().await;
    let homeless = cluster.repository().range_of_key(cluster.page_key(&url(1)).unwrap()).unwrap();
    management.says.lock().update[homeless as usize].clear();
    let texts: Vec<String> = (0..40).map(url).chain(["no url".to_owned()]).collect();
    let pages: Vec<Page<'_>> = texts.iter().map(|url| page(url, b"text")).collect();
    let done = cluster.add(&pages).await.unwrap();
    assert_eq!(done.acknowledged + done.refused.len() as u64, 41);
    for (at, e) in &done.refused {
        match e {
            NodeError::NoNode { role: "update", range, .. } => {
                assert_eq!(*range, homeless);
                assert_eq!(
                    cluster.repository().range_of_key(cluster.page_key(&texts[*at]).unwrap()).unwrap(),
                    homeless
                );
            }
            e => assert_eq!((*at, matches!(e, NodeError::Storage(_))), (40, true), "{e}"),
        }
    }
    for (n, url) in texts.iter().enumerate().take(40) {
        let there = a.store.lookup_url(url).unwrap().is_some();
        assert_eq!(there, !done.refused.iter().any(|(at, _)| *at == n), "page {n}");
    }
}

#[tokio::test]
async fn a_dead_update_node_delays_adds_until_the_plan_leaves_it_out() {
    let management = Management::start().await;
    let (a, mut b) = (Node::start(1, Organization::Log).await, Node::start(2, Organization::Log).await);
    management.place(&[&a, &b]);
    let cluster = management.client().await;
    add(&cluster, 0..50, 100).await;
    b.kill().await;
    let says = management.says.clone();
    let declared = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let mut says = says.lock();
        says.stamp = 6;
        says.update.iter_mut().for_each(|nodes| nodes.retain(|id| *id == NodeId(1)));
    });
    let began = std::time::Instant::now();
    add(&cluster, 50..100, 100).await;
    assert!(
        began.elapsed() >= Duration::from_millis(300),
        "acknowledged although a node of the plan lacked it"
    );
    declared.await.unwrap();
    assert!((0..100).all(|n| a.store.lookup_url(&url(n)).unwrap().is_some()));
}

#[tokio::test]
async fn lookups_go_on_when_a_node_dies_or_has_another_generation() {
    let management = Management::start().await;
    let (a, mut b) = (Node::start(1, Organization::Log).await, Node::start(2, Organization::Hash).await);
    management.place(&[&a, &b]);
    let cluster = management.client().await;
    add(&cluster, 0..100, 200).await;
    let keys: Vec<PageKey> = (0..100).map(|n| cluster.page_key(&url(n)).unwrap()).collect();
    let all = async |generation: u64| {
        for key in &keys {
            let found = cluster.lookup(*key).await.unwrap();
            assert_eq!((found.generation, found.pages.is_some()), (generation, true));
        }
        let found = cluster.lookup_many(&keys).await.unwrap();
        assert_eq!(found.generation, generation);
        assert!(found.pages.iter().all(|page| matches!(page, Ok(Some(_)))));
    };
    all(1).await;
    // One node is behind: its replica has what the plan names.
    b.generation.store(0, Ordering::SeqCst);
    all(1).await;
    // Both have moved on: there is a new plan.
    a.generation.store(2, Ordering::SeqCst);
    b.generation.store(2, Ordering::SeqCst);
    management.says.lock().generation = 2;
    all(2).await;
    b.kill().await;
    all(2).await;
}

#[tokio::test]
async fn a_range_without_nodes_is_named_within_the_limit() {
    let management = Management::start().await;
    let a = Node::start(1, Organization::Log).await;
    management.place(&[&a]);
    let cluster = management.client_with(|s| s.read_limit = Duration::from_millis(300)).await;
    add(&cluster, 0..20, 100).await;
    let key = cluster.page_key(&url(3)).unwrap();
    let range = cluster.repository().range_of_key(key).unwrap();
    management.says.lock().read[range as usize].clear();
    let is_it = |e: &NodeError| matches!(e, NodeError::NoNode { role: "read", range: r, .. } if *r == range);
    assert!(is_it(&cluster.lookup(key).await.unwrap_err()));
    assert!(is_it(&cluster.lookup_many(&[key]).await.unwrap_err()));
    let mut stream = cluster.stream().await.unwrap();
    let last = loop {
        match stream.next().await {
            Some(Ok(_)) => {}
            other => break other,
        }
    };
    assert!(is_it(&last.unwrap().unwrap_err()));
    assert!(stream.next().await.is_none());
}

/// Whether a page of a stream comes from the first of two nodes that have everything: ranges are given out in turn.
fn is_of_first(cluster: &Cluster, key: PageKey) -> bool {
    cluster.repository().range_of_key(key).unwrap().is_multiple_of(2)
}

/// Reads a stream to its end, killing a node on the way, and counts each page.
async fn stream_with_a_death(first: Organization, second: Organization) {
    let management = Management::start().await;
    let (mut a, b) = (Node::start(1, first).await, Node::start(2, second).await);
    management.place(&[&a, &b]);
    let cluster = management.client().await;
    add(&cluster, 0..2000, 3000).await;
    let mut stream = cluster.stream().await.unwrap();
    let mut seen: HashMap<PageKey, u32> = HashMap::new();
    let mut count = 0;
    while let Some(record) = stream.next().await {
        let key = record.unwrap().get().key();
        *seen.entry(key).or_default() += 1;
        count += u32::from(is_of_first(&cluster, key));
        if count == 50 {
            a.kill().await;
        }
    }
    assert_eq!(seen.len(), 2000, "{first:?} {second:?}");
    assert!(seen.values().all(|times| *times == 1), "{first:?} {second:?}");
    drop(stream);
    leases_come_to(&management, 0).await;
}

async fn leases_come_to(management: &Management, count: i64) {
    let until = std::time::Instant::now() + Duration::from_secs(10);
    while management.says.lock().leases_open != count {
        assert!(std::time::Instant::now() < until, "the lease was not given back");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn each_page_comes_once_though_a_log_dies() {
    stream_with_a_death(Organization::Log, Organization::Log).await;
    stream_with_a_death(Organization::Log, Organization::Hash).await;
}

#[tokio::test]
async fn each_page_comes_once_though_a_store_in_key_order_dies() {
    stream_with_a_death(Organization::Hash, Organization::Hash).await;
    stream_with_a_death(Organization::HashedLog, Organization::Log).await;
}

#[tokio::test]
async fn the_same_node_goes_on_at_its_cursor_when_it_is_back() {
    let management = Management::start().await;
    let mut a = Node::start(1, Organization::Log).await;
    management.place(&[&a]);
    // Nothing is remembered: only the cursor helps.
    let cluster = management.client_with(|s| s.remembered_max = 0).await;
    add(&cluster, 0..1000, 3000).await;
    let mut stream = cluster.stream().await.unwrap();
    let mut seen: HashMap<PageKey, u32> = HashMap::new();
    while let Some(record) = stream.next().await {
        *seen.entry(record.unwrap().get().key()).or_default() += 1;
        if seen.len() == 100 && seen.values().all(|times| *times == 1) {
            a.kill().await;
            a.serve().await;
            management.place(&[&a]);
        }
    }
    assert_eq!(seen.len(), 1000);
    assert!(seen.values().all(|times| *times == 1));
}

#[tokio::test]
async fn a_stream_that_cannot_go_on_says_so() {
    let management = Management::start().await;
    let (mut a, b) = (Node::start(1, Organization::Log).await, Node::start(2, Organization::Log).await);
    management.place(&[&a, &b]);
    let change = |s: &mut ClusterSettings| {
        s.remembered_max = 0;
        s.read_limit = Duration::from_millis(500);
    };
    let cluster = management.client_with(change).await;
    add(&cluster, 0..2000, 3000).await;
    let mut stream = cluster.stream().await.unwrap();
    let (mut count, mut of_first, mut failed) = (0, 0, 0);
    while let Some(record) = stream.next().await {
        match record {
            Ok(record) => {
                count += 1;
                of_first += u32::from(is_of_first(&cluster, record.get().key()));
            }
            Err(_) => failed += 1,
        }
        if of_first == 50 {
            a.kill().await;
        }
    }
    assert_eq!((failed, count < 2000), (1, true), "{count} pages came");
}

#[tokio::test]
async fn leases_are_renewed_and_given_back() {
    let management = Management::start().await;
    let a = Node::start(1, Organization::Log).await;
    management.place(&[&a]);
    management.says.lock().lease_ms = 300;
    let cluster = management.client().await;
    add(&cluster, 0..1000, 3000).await;
    let mut stream = cluster.stream().await.unwrap();
    assert!(stream.next().await.unwrap().is_ok());
    assert_eq!(management.says.lock().leases_open, 1);
    let until = std::time::Instant::now() + Duration::from_secs(10);
    while management.says.lock().renewed < 2 {
        assert!(std::time::Instant::now() < until, "the lease was not renewed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(stream);
    leases_come_to(&management, 0).await;
}

#[tokio::test]
async fn before_the_first_cycle_there_is_nothing() {
    let management = Management::start().await;
    management.says.lock().generation = 0;
    let cluster = management.client().await;
    assert!(cluster.lookup_url("http://example.org/").await.unwrap().pages.is_none());
    let key = cluster.page_key("http://example.org/").unwrap();
    assert!(matches!(cluster.lookup_many(&[key]).await.unwrap().pages[..], [Ok(None)]));
    let mut stream = cluster.stream().await.unwrap();
    assert!(stream.next().await.is_none());
}

/// The middle of a body: the node can tell which page it is.
const BODY: std::ops::Range<usize> = 1000..1010;
/// All that names the page, in stores that have it only there.
const NAME: std::ops::Range<usize> = 0..80;

/// Two nodes with the same pages, all in files.
async fn two_nodes(first: Organization, second: Organization) -> (Management, Node, Node, Cluster) {
    let management = Management::start().await;
    let (a, b) = (Node::start(1, first).await, Node::start(2, second).await);
    management.place(&[&a, &b]);
    let cluster = management.client().await;
    add(&cluster, 0..1000, 3000).await;
    // A state that is kept has nothing in buffers.
    a.store.keep_generation(1).unwrap();
    b.store.keep_generation(1).unwrap();
    (management, a, b, cluster)
}

/// Streams everything: how many pages came, each once and whole, and how many errors.
async fn stream_all(cluster: &Cluster) -> (usize, usize) {
    let mut stream = cluster.stream().await.unwrap();
    let (mut seen, mut errors) = (HashMap::new(), 0);
    while let Some(record) = stream.next().await {
        let Ok(record) = record else {
            errors += 1;
            continue;
        };
        let n: usize = record.get().url().rsplit('/').next().unwrap().parse().unwrap();
        assert_eq!(&record.body(cluster.dictionaries()).unwrap()[..], &body(n, 3000)[..]);
        assert!(seen.insert(n, ()).is_none(), "page {n} came twice");
    }
    (seen.len(), errors)
}

#[tokio::test]
async fn a_stream_in_an_order_goes_on_where_its_generation_is() {
    let (_management, first, second, cluster) = two_nodes(Organization::Log, Organization::Log).await;
    let by_id = || webbase_node::wire::spec::StreamSpec::all().ordered(StreamOrder::Id);
    first.generation.store(2, Ordering::SeqCst); // it has moved on, and let the old one go
    let mut stream = cluster.select(by_id(), How::default()).await.unwrap();
    let mut keys = Vec::new();
    while let Some(record) = stream.next().await {
        keys.push(record.unwrap().get().key());
    }
    assert_eq!(keys.len(), 1000);
    assert!(keys.is_sorted());
    // When nobody has it there is nothing to wait for.
    second.generation.store(2, Ordering::SeqCst);
    let mut stream = cluster.select(by_id(), How::default()).await.unwrap();
    let refused = stream.next().await.unwrap().unwrap_err();
    assert!(
        matches!(&refused, NodeError::Refused { fault, .. } if fault.code == Code::Generation),
        "{refused}"
    );
}

#[tokio::test]
async fn a_shared_scan_whose_node_is_gone_says_so_and_goes_on_from_the_start_of_its_ranges() {
    let (management, mut first, second, _) = two_nodes(Organization::Log, Organization::Log).await;
    // All pages come from the first node, so that the cursor needs it.
    management.place(&[&first]);
    let cluster = management.client().await;
    let how = How { shared: true, direct: false };
    let mut stream = cluster.select(webbase_node::wire::spec::StreamSpec::all(), how).await.unwrap();
    let mut taken = HashSet::new();
    for _ in 0..600 {
        taken.insert(stream.next().await.unwrap().unwrap().get().key());
    }
    let cursor: StreamCursor = stream.cursor().unwrap().to_string().parse().unwrap();
    drop(stream);
    first.kill().await;
    management.place(&[&second]);
    // Waiting for the node would end with another error.
    let lost = cluster.resume(&cursor).await.map(|_| ()).unwrap_err();
    assert!(matches!(lost, NodeError::StreamLost { .. }), "{lost}");
    let mut stream = cluster.go_on(&cursor).await.unwrap();
    while let Some(record) = stream.next().await {
        taken.insert(record.unwrap().get().key());
    }
    assert_eq!(taken.len(), 1000, "some came twice, none was skipped");
}

#[tokio::test]
async fn a_page_damaged_on_one_node_comes_from_the_other() {
    use Organization::{Hash, HashedLog, Log};
    for (first, second) in [(Log, Log), (Hash, Log), (HashedLog, Hash)] {
        let (_management, a, b, cluster) = two_nodes(first, second).await;
        a.damage(&[3, 50, 51, 999], BODY);
        b.damage(&[7, 100, 101], BODY);
        assert!(!a.store.verify().unwrap().damage.is_empty() && !b.store.verify().unwrap().damage.is_empty());
        assert_eq!(stream_all(&cluster).await, (1000, 0), "{first} {second}");
        for n in [3, 7, 50, 51, 100, 101, 999] {
            assert!(cluster.lookup_url(&url(n)).await.unwrap().pages.is_some());
        }
        // On both nodes it is lost, and said to be.
        b.damage(&[3], BODY);
        assert_eq!(stream_all(&cluster).await, (999, 1), "{first} {second}");
    }
}

#[tokio::test]
async fn damage_that_hides_its_page_hides_it_from_no_reader() {
    use Organization::{Hash, HashedLog, Log};
    for (first, second) in [(Hash, Log), (HashedLog, Hash), (Hash, HashedLog)] {
        let (_management, a, b, cluster) = two_nodes(first, second).await;
        a.damage(&[3, 500, 501], NAME);
        assert_eq!(stream_all(&cluster).await, (1000, 0), "{first} {second}");
        // In other places of the other node, too.
        b.damage(&[77], NAME);
        let (pages, errors) = stream_all(&cluster).await;
        assert_eq!((pages, errors), (1000, 0), "{first} {second}");
        // Only what is damaged on both is lost.
        b.damage(&[3], NAME);
        let (pages, errors) = stream_all(&cluster).await;
        assert!(pages == 999 && errors > 0, "{first} {second}: {pages} {errors}");
    }
}
