//! `GET /status`: how things stand, as JSON. `POST /cycle`: the batch update, now.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, post};
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, LOCATION};
use serde_json::{Value, json};
use webbase_node::cycle::message::NodeId;

use super::Gateway;
use super::operation::{JSON, Operation, query};
use super::params::Params;
use super::problem::Problem;
use crate::standing::as_json;

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation {
            path: "/status",
            method: "get",
            name: "status",
            summary: "Generations, the running cycle and the nodes",
            parameters: vec![],
            body: None,
            answers: &[(200, JSON, "How things stand now")],
            is_long: false,
            route: get(show),
        },
        Operation {
            path: "/cycle",
            method: "post",
            name: "cycle",
            summary: "Begin a cycle: everything added so far becomes visible, all at once",
            parameters: vec![query("wait", "boolean", "answer when readers see the new generation")],
            body: None,
            answers: &[
                (200, JSON, "With wait: the generation that was made"),
                (202, JSON, "The cycle has begun; /status tells how it goes"),
                (409, "application/problem+json", "It cannot begin now, or was aborted"),
            ],
            is_long: true,
            route: post(cycle),
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

/// A JSON answer that nobody keeps.
pub(super) fn as_json_answer(status: StatusCode, value: &Value) -> Response {
    let mut response = Response::new(Body::from(format!("{value:#}\n")));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn show(State(gateway): State<Arc<Gateway>>, params: Params) -> Result<Response, Problem> {
    params.finish()?;
    Ok(as_json_answer(StatusCode::OK, &standing(&gateway).await?))
}

/// How things stand.
pub(super) async fn standing(gateway: &Gateway) -> Result<Value, Problem> {
    let status = gateway.cluster.status().await?;
    // Whoever reads here that a generation is served finds its pages here from now on.
    if gateway.served.swap(status.serving, Ordering::Relaxed) != status.serving {
        gateway.cluster.refresh().await?;
    }
    let mut value = as_json(&status);
    if let Value::Object(members) = &mut value {
        members.insert("version".into(), env!("CARGO_PKG_VERSION").into());
        members.insert("management".into(), gateway.cluster.management().address().to_string().into());
        members.insert("gateway".into(), gateway.metrics.as_json());
    }
    Ok(value)
}

async fn drain(
    State(gateway): State<Arc<Gateway>>,
    Path(node): Path<String>,
    params: Params,
) -> Result<Response, Problem> {
    params.finish()?;
    let known = Some(&node).filter(|text| text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit()));
    let Some(id) = known.and_then(|text| u64::from_str_radix(text, 16).ok()) else {
        return Err(Problem::bad("bad-node", "a node's name is 16 hexadecimal digits, as /status has it"));
    };
    gateway.cluster.drain(NodeId(id)).await?;
    Ok(as_json_answer(StatusCode::ACCEPTED, &json!({"node": node, "leaving": true})))
}

async fn cycle(
    State(gateway): State<Arc<Gateway>>,
    mut params: Params,
    body: Result<axum::body::Bytes, axum::extract::rejection::BytesRejection>,
) -> Result<Response, Problem> {
    let wait = params.flag("wait")?;
    params.finish()?;
    // Nothing is wanted of it, but a request that is broken begins no cycle.
    body.map_err(|e| Problem::bad("bad-body", e.to_string()))?;
    if wait {
        let generation = gateway.cluster.cycle(|_| {}).await?;
        return Ok(as_json_answer(StatusCode::OK, &json!({"generation": generation})));
    }
    let committed = gateway.cluster.status().await?.committed;
    let cycle = gateway.cluster.management().start_cycle().await?;
    let value = json!({"cycle": cycle, "committed_before": committed});
    let mut response = as_json_answer(StatusCode::ACCEPTED, &value);
    response.headers_mut().insert(LOCATION, HeaderValue::from_static("/status"));
    Ok(response)
}
