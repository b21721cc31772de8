//! `POST /nodes`: one more node. `POST /nodes/{node}/drain`: one less.
//!
//! Nodes are processes on machines of their own, which a gateway cannot start; but where the whole repository is one process it
//! can, by the [`Starter`] in its settings.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::post;
use hyper::StatusCode;
use serde_json::json;
use webbase_node::Role;
use webbase_node::cycle::message::NodeId;

use super::Gateway;
use super::body::NoBody;
use super::operation::{JSON, Operation, query};
use super::params::Params;
use super::problem::Problem;
use super::status::as_json_answer;
use crate::standing::node_name;

/// A node that is being started.
type Starting = Pin<Box<dyn Future<Output = anyhow::Result<NodeId>> + Send>>;

/// Starts nodes.
#[derive(Clone)]
pub struct Starter(Arc<dyn Fn(Role) -> Starting + Send + Sync>);

impl Starter {
    /// Of a function that starts a node with a role.
    pub fn new<F: Future<Output = anyhow::Result<NodeId>> + Send + 'static>(
        start: impl Fn(Role) -> F + Send + Sync + 'static,
    ) -> Starter {
        Starter(Arc::new(move |role| Box::pin(start(role))))
    }
}

impl std::fmt::Debug for Starter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Starter")
    }
}

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation {
            path: "/nodes",
            method: "post",
            name: "add_node",
            summary: "Start one more node, where the repository is one process",
            parameters: vec![query("role", "string", "update or read").required()],
            body: None,
            answers: &[
                (201, JSON, "It runs, and takes its share of the pages"),
                (
                    409,
                    "application/problem+json",
                    "Nodes are processes here; the answer has the command that starts one",
                ),
            ],
            is_long: true,
            route: post(add),
        },
        Operation {
            path: "/nodes/{node}/drain",
            method: "post",
            name: "drain",
            summary: "Move everything off a node, which then leaves",
            parameters: vec![query("node", "string", "the node, as /status names it").in_path()],
            body: None,
            answers: &[(202, JSON, "It has begun; /status tells when the node is out")],
            is_long: false,
            route: post(drain),
        },
    ]
}

async fn add(
    State(gateway): State<Arc<Gateway>>,
    mut params: Params,
    _: NoBody,
) -> Result<Response, Problem> {
    let role = match params.take("role")?.as_deref() {
        Some("update") => Role::Update,
        Some("read") => Role::Read,
        _ => return Err(Problem::bad("bad-role", "role is update or read")),
    };
    params.finish()?;
    let Some(Starter(start)) = &gateway.starter else {
        let management = gateway.cluster.management().address();
        let role = if role == Role::Read { "read" } else { "update" };
        let text =
            format!("nodes are processes here: webbase node --dir DIR --mgmt {management} --role {role}");
        return Err(Problem::new(StatusCode::CONFLICT, "nodes-are-processes", text));
    };
    match start(role).await {
        Ok(id) => Ok(as_json_answer(StatusCode::CREATED, &json!({"node": node_name(id)}))),
        Err(e) => {
            let text = format!("the node did not start: {e:#}");
            Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "not-started", text))
        }
    }
}

async fn drain(
    State(gateway): State<Arc<Gateway>>,
    Path(node): Path<String>,
    params: Params,
    _: NoBody,
) -> Result<Response, Problem> {
    params.finish()?;
    let known = Some(&node).filter(|text| text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit()));
    let Some(id) = known.and_then(|text| u64::from_str_radix(text, 16).ok()) else {
        return Err(Problem::bad("bad-node", "a node's name is 16 hexadecimal digits, as /status has it"));
    };
    gateway.cluster.drain(NodeId(id)).await?;
    Ok(as_json_answer(StatusCode::ACCEPTED, &json!({"node": node, "leaving": true})))
}
