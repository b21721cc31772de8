//! `GET /status`: how things stand, as JSON. `POST /cycle`: the batch update, now.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, LOCATION};
use serde_json::{Value, json};

use super::body::NoBody;
use super::operation::{JSON, Operation, query};
use super::params::Params;
use super::problem::Problem;
use super::{CrawlFigures, Gateway};
use crate::coverage::Coverage;
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
    // Status is told though the plans are not.
    let coverage = Coverage::of(&gateway.cluster).await.ok();
    gateway.cycles.look(&status, coverage.as_ref());
    let mut value = as_json(&status);
    if let Value::Object(members) = &mut value {
        members.insert("pages".into(), coverage.as_ref().and_then(|coverage| coverage.pages(&status)).into());
        members.insert("replicas".into(), coverage.as_ref().map(|coverage| coverage.copies).into());
        members.insert("ranges".into(), coverage.as_ref().map(Coverage::as_json).into());
        members.insert("version".into(), env!("CARGO_PKG_VERSION").into());
        members.insert("management".into(), gateway.cluster.management().address().to_string().into());
        members.insert("gateway".into(), gateway.metrics.as_json());
        members.insert("streams".into(), gateway.clients.as_json());
        members.insert("cycles".into(), gateway.cycles.as_json());
        members.insert("crawl".into(), gateway.crawl.as_ref().map(CrawlFigures::as_json).into());
        members.insert("starts_nodes".into(), gateway.starter.is_some().into());
    }
    Ok(value)
}

async fn cycle(
    State(gateway): State<Arc<Gateway>>,
    mut params: Params,
    _: NoBody,
) -> Result<Response, Problem> {
    let wait = params.flag("wait")?;
    params.finish()?;
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
