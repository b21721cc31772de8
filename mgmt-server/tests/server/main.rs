//! The management server with real sockets and a real folder, and nodes that are the real machines on disks in memory:
//! they register, cycles run, plans and leases are given out, and whatever is stopped goes on where it was.

#![expect(clippy::unwrap_used, reason = "a test")]

mod fake;

use std::path::Path;
use std::time::Duration;

use fake::{Fake, Seen, address_of, another_repository};
use webbase_mgmt_server::{Management, ManagementServer, ServerError, ServerOptions, Settings};
use webbase_node::cycle::message::{NodeId, Removal};
use webbase_node::link::{Hello, ManagementSays, NodeSays};
use webbase_node::plan::{Index, NodeFigures, NodeState, Told};
use webbase_node::wire::message;
use webbase_node::{Client, ClientSettings, Control, NodeError};
use webbase_storage::{PageId, PageKey, Stats, Version};

const RANGE_BITS: u8 = 4;

async fn serve(dir: &Path) -> ManagementServer {
    let settings = Settings { down_after_ms: 1000, resend_ms: 200, lease_ms: 500, ..Settings::default() };
    let mut options = ServerOptions::new(dir, "127.0.0.1:0".parse().unwrap());
    (options.settings, options.range_bits) = (settings, RANGE_BITS);
    // After a drop a commit may still be running, as in a process that is just being killed.
    for _ in 0..100 {
        match ManagementServer::start(options.clone()).await {
            Err(ServerError::Locked { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
            started => return started.unwrap(),
        }
    }
    panic!("{} stays locked", dir.display());
}

async fn client(server: &ManagementServer) -> Management {
    Management::connect(server.address(), ClientSettings::default()).await.unwrap()
}

/// Waits for something to become so.
macro_rules! eventually {
    ($($condition:tt)*) => {{
        let mut so = false;
        for _ in 0..400 {
            so = { $($condition)* };
            if so { break; }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        assert!(so, "never: {}", stringify!($($condition)*));
    }};
}

/// Two update nodes, two read nodes, all in the table and with everything where it shall be.
async fn four_nodes(server: &ManagementServer, management: &Management) -> Vec<Fake> {
    let at = server.address();
    let nodes = vec![Fake::update(1, at), Fake::update(2, at), Fake::read(3, at), Fake::read(4, at)];
    eventually!({
        let status = management.status().await.unwrap();
        let (plan, _) = management.read_plan().await.unwrap();
        status.nodes.len() == 4
            && status.nodes.iter().all(|n| n.state == NodeState::Idle)
            && plan.ranges.iter().all(|nodes| nodes.len() == 2)
    });
    nodes
}

async fn cycle_over(management: &Management, generation: u64) {
    eventually!({
        let status = management.status().await.unwrap();
        status.cycle.is_none() && status.serving == generation
    });
}

#[tokio::test]
async fn nodes_register_and_learn_where_the_others_are() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path()).await;
    let management = client(&server).await;
    assert_eq!(management.repository().await.unwrap(), server.repository());
    assert!(management.status().await.unwrap().nodes.is_empty());
    let nodes = four_nodes(&server, &management).await;
    let all: Vec<_> = (1..=4).map(|n| (NodeId(n), address_of(NodeId(n)))).collect();
    for node in &nodes {
        eventually!(node.with(|seen| seen.addresses == all));
        assert_eq!(node.with(|seen| seen.repository), Some(server.repository()));
    }
    let status = management.status().await.unwrap();
    let roles: Vec<_> = status.nodes.iter().map(|n| (n.read, n.update)).collect();
    assert_eq!(roles, [(false, true), (false, true), (true, false), (true, false)]);
    assert_eq!(status.nodes[2].address, Some(address_of(NodeId(3))));

    let stranger =
        Fake::start(9, server.address(), Seen { repository: Some(another_repository()), ..Seen::default() });
    eventually!(stranger.with(|seen| seen.refused.is_some()));
    assert!(stranger.with(|seen| seen.refused.clone()).unwrap().contains("another"));
    assert_eq!(management.status().await.unwrap().nodes.len(), 4);

    // A node that goes silent is declared down, and is let in again.
    let [a, b, c, d] = nodes.try_into().ok().unwrap();
    let (last, boot) = (d.with(|seen| seen.repository), d.with(|seen| seen.disk.clone()));
    drop(d);
    eventually!(management.status().await.unwrap().nodes[3].state == NodeState::Down);
    let d = Fake::start(4, server.address(), Seen { repository: last, disk: boot, ..Seen::default() });
    eventually!(management.status().await.unwrap().nodes[3].state == NodeState::Idle);
    drop((a, b, c, d));
    server.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_cycle_runs_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path()).await;
    let management = client(&server).await;
    let nodes = four_nodes(&server, &management).await;
    for generation in 1..=3 {
        assert_eq!(management.start_cycle().await.unwrap(), generation);
        cycle_over(&management, generation).await;
        let (plan, addresses) = management.read_plan().await.unwrap();
        assert_eq!(plan.generation, generation);
        assert_eq!(plan.ranges.len(), 1 << RANGE_BITS);
        assert!(plan.ranges.iter().all(|nodes| nodes.len() == 2), "{plan:?}");
        assert_eq!(addresses, [3, 4].map(|n| (NodeId(n), address_of(NodeId(n)))));
    }
    assert!(nodes.iter().all(|n| n.with(|seen| seen.unknown_sources.is_empty())));
    // What is in the generation is not kept twice.
    eventually!(nodes[0].with(|seen| seen.disk.update.as_ref().unwrap().first_epoch == 4));
    let (plan, addresses) = management.add_plan().await.unwrap();
    assert_eq!((plan.stamp, addresses.len()), (3, 2));
    server.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_stopped_server_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path()).await;
    let management = client(&server).await;
    let repository = server.repository();
    let nodes = four_nodes(&server, &management).await;
    management.start_cycle().await.unwrap();
    cycle_over(&management, 1).await;
    // The next cycle cannot seal: an update node is silent, and there is time before it is declared down.
    let [one, two, three, four] = nodes.try_into().ok().unwrap();
    let (disk, repository_of_two) = two.with(|seen| (seen.disk.clone(), seen.repository));
    drop(two);
    management.start_cycle().await.unwrap();
    assert_eq!(management.status().await.unwrap().cycle, Some((2, "sealing".into())));
    server.shutdown().await.unwrap();

    let server = serve(dir.path()).await;
    assert_eq!(server.repository(), repository);
    let management = client(&server).await;
    let status = management.status().await.unwrap();
    assert_eq!((status.cycle, status.serving), (Some((2, "sealing".into())), 1));
    assert_eq!(status.nodes[3].address, Some(address_of(NodeId(4))), "addresses survive");
    let at = server.address();
    let nodes = [
        one.restarted(at),
        Fake::start(2, at, Seen { disk, repository: repository_of_two, ..Seen::default() }),
        three.restarted(at),
        four.restarted(at),
    ];
    cycle_over(&management, 2).await;
    assert!(nodes.iter().all(|n| n.with(|seen| seen.unknown_sources.is_empty())));
    eventually!(nodes[2].generation() == 2 && nodes[3].generation() == 2);
    server.shutdown().await.unwrap();
}

/// Dropped, not shut down, again and again while a cycle runs: each time it goes on from its last decision.
#[tokio::test]
async fn a_killed_server_ends_its_cycle_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = serve(dir.path()).await;
    let mut nodes = four_nodes(&server, &client(&server).await).await;
    client(&server).await.start_cycle().await.unwrap();
    let mut kills = 0;
    for pause_ms in [0, 0, 1, 3, 9, 27, 50, 80, 120, 200] {
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        drop(server);
        server = serve(dir.path()).await;
        let status = client(&server).await.status().await.unwrap();
        assert_eq!(status.last_cycle, 1, "what was answered is on disk");
        kills += u32::from(status.cycle.is_some());
        nodes = nodes.into_iter().map(|n| n.restarted(server.address())).collect();
    }
    println!("killed {kills} times within the cycle");
    assert!(kills >= 1);
    let management = client(&server).await;
    cycle_over(&management, 1).await;
    management.start_cycle().await.unwrap();
    cycle_over(&management, 2).await;
    server.shutdown().await.unwrap();
}

#[tokio::test]
async fn leases_and_refusals() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path()).await;
    let management = client(&server).await;
    let denied = |e: NodeError| match e {
        NodeError::Denied { what, why, .. } => format!("{what}: {why}"),
        e => panic!("{e}"),
    };
    let refused = denied(management.abort_cycle().await.unwrap_err());
    assert!(refused.starts_with("abort the cycle: no cycle is running"), "{refused}");
    let refused = denied(management.drain(NodeId(77)).await.unwrap_err());
    assert!(refused.contains("node 000000000000004d is not in the table"), "{refused}");
    let nodes = four_nodes(&server, &management).await;
    assert!(denied(management.remove_lost(NodeId(3)).await.unwrap_err()).contains("is not down"));

    management.start_cycle().await.unwrap();
    cycle_over(&management, 1).await;
    let (lease, plan, addresses) = management.open_lease().await.unwrap();
    assert_eq!((lease.generation, plan.generation, addresses.len()), (1, 1, 2));
    assert_eq!(management.status().await.unwrap().leases, 1);
    management.start_cycle().await.unwrap();
    cycle_over(&management, 2).await;
    // Held for longer than a lease's period, by renewing it.
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (renewed, plan, _) = management.renew_lease(&lease).await.unwrap();
        assert_eq!((renewed.id, plan.generation), (lease.id, 1));
        assert!(plan.ranges.iter().all(|n| !n.is_empty()));
    }
    assert!(management.status().await.unwrap().kept.contains(&1));
    management.end_lease(&lease).await.unwrap();
    eventually!(management.status().await.unwrap().kept == [2]);
    assert!(denied(management.renew_lease(&lease).await.unwrap_err()).contains("generation 1 is not kept"));
    eventually!(nodes[2].with(|seen| seen.disk.read.as_ref().unwrap().kept.len() == 1));

    let page = Removal {
        key: PageKey { id: PageId(1), tie: 2 },
        bound: Version { fetched_at_ms: 3, epoch: 1, digest: 4 },
    };
    management.remove(&[page; 3]).await.unwrap();
    management.due(&[page]).await.unwrap();
    let max = vec![page; 150_001];
    assert!(denied(management.remove(&max).await.unwrap_err()).contains("at most 150000"));

    // A drained node leaves when nothing depends on it any more.
    let third = Fake::read(5, server.address());
    eventually!(management.status().await.unwrap().nodes.len() == 5);
    management.drain(NodeId(3)).await.unwrap();
    eventually!(management.status().await.unwrap().nodes.iter().all(|n| n.id != NodeId(3)));
    eventually!(nodes[2].with(|seen| seen.dismissed));
    drop(third);
    server.shutdown().await.unwrap();
}

#[tokio::test]
async fn an_index_is_read_with_its_generation() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path()).await;
    let management = client(&server).await;
    let nodes = four_nodes(&server, &management).await;
    let cycle = async |generation| {
        management.start_cycle().await.unwrap();
        cycle_over(&management, generation).await;
    };
    let index = |name: &str, generation| Index {
        name: name.to_owned(),
        generation,
        place: format!("/indexes/{name}-{generation}"),
    };
    let why = |e: NodeError| e.to_string();
    cycle(1).await;
    assert!(why(management.open_index("titles").await.unwrap_err()).contains("no index \"titles\""));
    assert!(why(management.publish(&index("titles", 9)).await.unwrap_err()).contains("9 is not kept"));
    assert!(why(management.publish(&index("", 1)).await.unwrap_err()).contains("1 to 1000 bytes"));

    // Made while the next generation comes, under a lease; nobody holds one afterwards.
    let (lease, ..) = management.open_lease().await.unwrap();
    cycle(2).await;
    management.publish(&index("titles", 1)).await.unwrap();
    management.end_lease(&lease).await.unwrap();
    management.publish(&index("links", 2)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(700)).await; // longer than a lease's period
    assert_eq!(management.status().await.unwrap().kept, [1, 2], "the index needs it");

    // It outlives the server.
    server.shutdown().await.unwrap();
    drop(nodes);
    let server = serve(dir.path()).await;
    let management = client(&server).await;
    let (found, lease, ..) = management.open_index("titles").await.unwrap();
    assert_eq!((found, lease.generation), (index("titles", 1), 1));
    assert_eq!(management.lease_on(1).await.unwrap().0.generation, 1);
    management.end_lease(&lease).await.unwrap();

    // Readers move to the next with the next index, and never back.
    management.publish(&index("titles", 2)).await.unwrap();
    let back = why(management.publish(&index("titles", 1)).await.unwrap_err());
    assert!(back.contains("of generation 2 already"), "{back}");
    assert_eq!(management.open_index("titles").await.unwrap().1.generation, 2);
    eventually!(management.status().await.unwrap().kept == [2]);
    management.unpublish("links").await.unwrap();
    assert_eq!(management.status().await.unwrap().indexes, [index("titles", 2)]);
    assert!(management.unpublish("links").await.is_err());
}

#[tokio::test]
async fn an_old_index_does_not_stop_cycles() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path()).await;
    let management = client(&server).await;
    let _nodes = four_nodes(&server, &management).await;
    for generation in 1..=4 {
        management.start_cycle().await.unwrap();
        cycle_over(&management, generation).await;
        if generation < 3 {
            let name = format!("of {generation}");
            management.publish(&Index { name, generation, place: String::new() }).await.unwrap();
        }
    }
    // Two old ones are kept, at most: the older index had to give way.
    eventually!(management.status().await.unwrap().kept == [2, 4]);
    let gone = management.open_index("of 1").await.unwrap_err().to_string();
    assert!(gone.contains("generation 1 is not kept"), "{gone}");
    assert_eq!(management.open_index("of 2").await.unwrap().1.generation, 2);
}

async fn raw(server: &ManagementServer, topic: &str) -> (Client, Control) {
    let client = Client::connect(server.address(), ClientSettings::default()).await.unwrap();
    let control = client.control(topic).unwrap();
    (client, control)
}

async fn until_ended(control: &mut Control) {
    loop {
        match control.receive(Some(Duration::from_secs(5))).await {
            Ok(Some(_)) => {}
            Err(NodeError::Timeout { .. }) => panic!("the call goes on"),
            _ => return,
        }
    }
}

#[tokio::test]
async fn rubbish_ends_only_its_call() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path()).await;
    let (one, mut questions) = raw(&server, "client").await;
    let limit = Some(Duration::from_secs(5));
    for rubbish in [&b""[..], b"\x01", b"\x02abc", b"\xff\xff\xff\xff", &[1, 200, 1]] {
        let mut bad = one.control("client").unwrap();
        bad.send(rubbish.to_vec().into()).await.unwrap();
        let told = message::decode::<Told>(&bad.receive(limit).await.unwrap().unwrap()).unwrap();
        assert!(matches!(told, Told::Refused(_)), "{told:?}");
        assert!(bad.receive(limit).await.unwrap().is_none());
        let mut bad = one.control("node").unwrap();
        bad.send(rubbish.to_vec().into()).await.unwrap();
        let says: ManagementSays = message::decode(&bad.receive(limit).await.unwrap().unwrap()).unwrap();
        assert!(matches!(says, ManagementSays::Refused(_)), "{says:?}");
    }
    let mut unknown = one.control("weather").unwrap();
    assert!(unknown.receive(limit).await.is_err());
    // A welcomed node that talks rubbish, and one that says hello twice, lose their calls, too.
    let hello = NodeSays::Hello(Hello { id: NodeId(1), address: address_of(NodeId(1)), repository: None });
    for second in [vec![9, 9, 9], message::encode(&hello)] {
        let mut node = one.control("node").unwrap();
        node.send(message::encode(&hello).into()).await.unwrap();
        let says: ManagementSays = message::decode(&node.receive(limit).await.unwrap().unwrap()).unwrap();
        assert_eq!(says, ManagementSays::Welcome(server.repository()));
        node.send(second.into()).await.unwrap();
        until_ended(&mut node).await;
    }
    // The connection and its other call are as before.
    questions.send(message::encode(&webbase_node::plan::Ask::Repository).into()).await.unwrap();
    let told: Told = message::decode(&questions.receive(limit).await.unwrap().unwrap()).unwrap();
    assert_eq!(told, Told::Repository(server.repository()));
    server.shutdown().await.unwrap();
}

#[tokio::test]
async fn the_newer_connection_of_a_node_counts() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path()).await;
    let management = client(&server).await;
    let nodes = four_nodes(&server, &management).await;
    let limit = Some(Duration::from_secs(5));
    let welcomes = nodes[3].with(|seen| seen.welcomes);
    let (_client, mut twin) = raw(&server, "node").await;
    let elsewhere = "127.0.0.1:9".parse().unwrap();
    let hello = NodeSays::Hello(Hello { id: NodeId(4), address: elsewhere, repository: None });
    twin.send(message::encode(&hello).into()).await.unwrap();
    assert!(twin.receive(limit).await.unwrap().is_some());
    // The older call ends; its node opens a new one, which then ends the twin's.
    eventually!(nodes[3].with(|seen| seen.welcomes > welcomes));
    until_ended(&mut twin).await;
    assert_eq!(management.status().await.unwrap().nodes[3].address, Some(address_of(NodeId(4))));
    server.shutdown().await.unwrap();
}

#[tokio::test]
async fn figures_show_what_a_node_does() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path()).await;
    let management = client(&server).await;
    let (_client, mut node) = raw(&server, "node").await;
    let hello = NodeSays::Hello(Hello { id: NodeId(1), address: address_of(NodeId(1)), repository: None });
    node.send(message::encode(&hello).into()).await.unwrap();
    let report = webbase_node::cycle::message::ToManagement::Report {
        boot: 1,
        sequence: 1,
        welcomed: true,
        update: Some(webbase_node::cycle::message::UpdateReport {
            first_epoch: 1,
            open_epoch: 1,
            sealed_cycle: 0,
            closed: false,
        }),
        read: None,
    };
    node.send(message::encode(&NodeSays::Cycle(report)).into()).await.unwrap();
    let store = Stats {
        organization: webbase_storage::Organization::Log,
        capacity_bytes: 100,
        used_bytes: 50,
        live_bytes: 40,
        dead_bytes: 10,
        pages: 4,
        segments: 1,
        memory_bytes: 1,
        cache_bytes: 0,
    };
    let store = webbase_node::wire::message::Figures::from(store);
    for (adds, streams, state) in
        [(0, 0, NodeState::Idle), (2, 1, NodeState::Storing), (0, 1, NodeState::Streaming)]
    {
        let (lookups, lookups_answered, damaged, repaired, epoch_bytes) = (0, 7, 0, 0, 0);
        let (scanned_bytes, streamed_pages) = (0, 0);
        let figures = NodeFigures {
            store,
            adds,
            streams,
            lookups,
            lookups_answered,
            damaged,
            repaired,
            epoch_bytes,
            scanned_bytes,
            streamed_pages,
        };
        node.send(message::encode(&NodeSays::Figures(figures)).into()).await.unwrap();
        eventually!({
            let status = management.status().await.unwrap();
            status.nodes.first().is_some_and(|n| n.state == state && n.figures == Some(figures))
        });
    }
    server.shutdown().await.unwrap();
}

#[tokio::test]
async fn clients_come_back_by_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path()).await;
    let at = server.address();
    let management = client(&server).await;
    let repository = management.repository().await.unwrap();
    server.shutdown().await.unwrap();
    let asked = tokio::spawn({
        let management = management.clone();
        async move { management.repository().await }
    });
    tokio::time::sleep(Duration::from_millis(120)).await;
    let mut options = ServerOptions::new(dir.path(), at);
    options.range_bits = RANGE_BITS;
    let server = ManagementServer::start(options).await.unwrap();
    assert_eq!(asked.await.unwrap().unwrap(), repository);
    server.shutdown().await.unwrap();
    // With nobody there it gives up in time, and says whom it asked.
    let settings = ClientSettings { answer: Duration::from_millis(300), ..ClientSettings::default() };
    let error = Management::new(at, settings).status().await.unwrap_err();
    assert!(error.to_string().contains(&at.to_string()), "{error}");
}
