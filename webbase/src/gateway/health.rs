//! `GET /healthz`: is the process alive? `GET /readyz`: can it do its work? Both need no token.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::routing::get;
use hyper::StatusCode;
use serde_json::json;
use webbase_node::plan::{NodeState, Status};

use super::Gateway;
use super::operation::{JSON, Operation};
use super::problem::Problem;
use super::status::as_json_answer;

/// A repository that does not say how it stands in this time is not ready.
const PATIENCE: Duration = Duration::from_secs(2);

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
            answers: &[(200, JSON, "They can")],
            is_long: false,
            route: get(ready),
        },
    ]
}

async fn ready(State(gateway): State<Arc<Gateway>>) -> Result<axum::response::Response, Problem> {
    let asking = tokio::time::timeout(PATIENCE, gateway.cluster.status());
    let not_ready = |why: String| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", why).after_s(1);
    let status = match asking.await {
        Ok(Ok(status)) => status,
        Ok(Err(e)) => return Err(not_ready(e.to_string())),
        Err(_) => return Err(not_ready("the management server does not answer".into())),
    };
    match missing(&status) {
        None => Ok(as_json_answer(StatusCode::OK, &json!({"ready": true, "serving": status.serving}))),
        Some(why) => Err(not_ready(why.into())),
    }
}

fn missing(status: &Status) -> Option<&'static str> {
    let up = |role: fn(&webbase_node::plan::NodeStatus) -> bool| {
        status.nodes.iter().any(|node| role(node) && node.state != NodeState::Down)
    };
    if !up(|node| node.read) {
        return Some("no read node is up");
    }
    (!up(|node| node.update)).then_some("no update node is up")
}
