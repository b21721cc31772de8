//! `GET /healthz`: is the process alive? `GET /readyz`: can it do its work? Both need no token.
//!
//! Ready is: every range has a node that serves it and one that takes its pages, the indexes answer, and no disk is about to be
//! full. What is not so stands in `detail`, and one by one in `reasons`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::routing::get;
use hyper::StatusCode;
use serde_json::json;
use webbase_node::NodeError;
use webbase_node::plan::{NodeState, NodeStatus, Status};
use webbase_storage::Stats;

use super::Gateway;
use super::operation::{JSON, Operation};
use super::problem::Problem;
use super::status::as_json_answer;
use crate::coverage::Coverage;
use crate::standing::node_name;

/// A repository that does not say how it stands in this time is not ready.
const PATIENCE: Duration = Duration::from_secs(2);
/// A node with less room is about to refuse pages, or to fail a cycle.
const FREE_BYTES_MIN: u64 = 256 << 20;
/// Of a small node, this part of its capacity.
const FREE_SHARE_MIN: u64 = 50;

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation {
            path: "/healthz",
            method: "get",
            name: "healthz",
            summary: "Whether the process is alive",
            parameters: vec![],
            body: None,
            answers: &[(200, "text/plain", "It is")],
            is_long: false,
            route: get(async || "ok\n"),
        },
        Operation {
            path: "/readyz",
            method: "get",
            name: "readyz",
            summary: "Whether pages can be read and added",
            parameters: vec![],
            body: None,
            answers: &[
                (200, JSON, "They can"),
                (503, "application/problem+json", "They cannot; it says why"),
            ],
            is_long: false,
            route: get(ready),
        },
    ]
}

async fn ready(State(gateway): State<Arc<Gateway>>) -> Result<axum::response::Response, Problem> {
    let not_ready = |why: &str| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", why).after_s(1);
    let asking = async {
        let status = gateway.cluster.status().await?;
        let coverage = Coverage::of(&gateway.cluster).await?;
        Ok::<_, NodeError>((status, coverage))
    };
    let (status, coverage) = match tokio::time::timeout(PATIENCE, asking).await {
        Ok(Ok(told)) => told,
        Ok(Err(e)) => return Err(not_ready(&e.to_string())),
        Err(_) => return Err(not_ready("the management server does not answer")),
    };
    let mut missing = missing(&status, &coverage);
    // Where ranges have no nodes the list of all pages would only say so again.
    if missing.is_empty() {
        match tokio::time::timeout(PATIENCE, gateway.cluster.url_count("", None)).await {
            Ok(Ok(_)) => {}
            Ok(Err(e)) => missing.push(format!("the index of URLs does not answer: {e}")),
            Err(_) => missing.push("the index of URLs does not answer in time".into()),
        }
    }
    if missing.is_empty() {
        return Ok(as_json_answer(StatusCode::OK, &json!({"ready": true, "serving": status.serving})));
    }
    Err(not_ready(&missing.join("; ")).with("reasons", missing.into()))
}

/// What is in the way of reading and adding any page.
fn missing(status: &Status, coverage: &Coverage) -> Vec<String> {
    let up = |node: &&NodeStatus| node.state != NodeState::Down;
    let mut missing = Vec::new();
    if !status.nodes.iter().filter(up).any(|node| node.read) {
        missing.push("no read node is up".to_owned());
    } else if coverage.unread > 0 {
        missing
            .push(format!("{} of {} ranges have no node that serves them", coverage.unread, coverage.ranges));
    }
    if !status.nodes.iter().filter(up).any(|node| node.update) {
        missing.push("no update node is up".to_owned());
    } else if coverage.unwritten > 0 {
        missing.push(format!(
            "{} of {} ranges have no node that takes pages",
            coverage.unwritten, coverage.ranges
        ));
    }
    if status.page_index.is_some_and(|index| !index.complete) {
        missing.push("the index of pages is being made anew".to_owned());
    }
    for node in status.nodes.iter().filter(up) {
        let Some(store) = node.figures.map(|figures| Stats::from(figures.store)) else { continue };
        let floor = FREE_BYTES_MIN.min(store.capacity_bytes / FREE_SHARE_MIN);
        if store.free_bytes() < floor {
            let (name, free) = (node_name(node.id), store.free_bytes());
            missing.push(format!("node {name} has room for {free} bytes only"));
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use webbase_node::cycle::message::NodeId;
    use webbase_node::plan::{NodeFigures, PageIndexStatus};
    use webbase_storage::Organization;

    fn node(id: u64, read: bool, used_bytes: u64) -> NodeStatus {
        let store = Stats {
            organization: Organization::Log,
            capacity_bytes: 1000 << 20,
            used_bytes,
            live_bytes: 0,
            dead_bytes: 0,
            pages: 0,
            segments: 0,
            memory_bytes: 0,
            cache_bytes: 0,
        };
        let figures = NodeFigures {
            store: store.into(),
            adds: 0,
            streams: 0,
            lookups: 0,
            lookups_answered: 0,
            damaged: 0,
            repaired: 0,
            epoch_bytes: 0,
            scanned_bytes: 0,
            streamed_pages: 0,
        };
        NodeStatus {
            id: NodeId(id),
            address: None,
            read,
            update: !read,
            state: NodeState::Idle,
            leaving: false,
            generation: None,
            epoch: None,
            whole: None,
            progress: None,
            figures: Some(figures),
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let (one, none) = (vec![NodeId(1)], Vec::new());
        let whole = Coverage::new(&[one.clone(), one.clone()], &[one.clone(), one.clone()]);
        let half = Coverage::new(&[one.clone(), none.clone()], &[one, none]);
        let status = Status { nodes: vec![node(1, true, 0), node(2, false, 0)], ..Status::default() };
        assert_eq!(missing(&status, &whole), Vec::<String>::new());
        let said = missing(&status, &half);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("1 of 2 ranges have no node that serves them"), "{said:?}");
        assert!(said[1].contains("takes pages"), "{said:?}");
        let full =
            Status { nodes: vec![node(1, true, 999 << 20), node(2, false, 970 << 20)], ..Status::default() };
        let said = missing(&full, &whole);
        assert_eq!(said, ["node 0000000000000001 has room for 1048576 bytes only"]);
        let mut down = status.clone();
        down.nodes[0].state = NodeState::Down;
        assert_eq!(missing(&down, &whole), ["no read node is up"]);
        let page_index = Some(PageIndexStatus::default());
        assert_eq!(
            missing(&Status { page_index, ..status }, &whole),
            ["the index of pages is being made anew"]
        );
    }
}
