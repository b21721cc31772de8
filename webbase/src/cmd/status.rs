//! `webbase status`: how the repository stands.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use webbase_node::plan::{CycleEnd, CycleOutcome, NodeFigures, NodeState, NodeStatus, Status as Standing};
use webbase_storage::Stats;

use super::{Repository, node_name};

/// Show generations, the running cycle and the nodes.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  webbase status
  webbase status --json --mgmt 127.0.0.1:7701")]
pub(crate) struct Status {
    /// As JSON, for programs.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    repository: Repository,
}

impl Status {
    pub(crate) async fn run(self) -> Result<()> {
        let standing = self.repository.connect().await?.status().await?;
        let text = if self.json { format!("{:#}\n", as_json(&standing)) } else { as_text(&standing) };
        std::io::stdout().lock().write_all(text.as_bytes()).context("cannot write to stdout")
    }
}

fn state_name(state: NodeState) -> &'static str {
    match state {
        NodeState::Idle => "idle",
        NodeState::Streaming => "streaming",
        NodeState::Storing => "storing",
        NodeState::Updating => "updating",
        NodeState::Down => "down",
    }
}

fn role_name(node: &NodeStatus) -> &'static str {
    match (node.update, node.read) {
        (true, true) => "both",
        (true, false) => "update",
        (false, true) => "read",
        (false, false) => "none",
    }
}

/// Names of nodes are hexadecimal, as everywhere for people; JSON's numbers could not hold them.
fn as_json(standing: &Standing) -> Value {
    let nodes: Vec<Value> = standing.nodes.iter().map(node_json).collect();
    let cycle = standing.cycle.as_ref().map(|(number, phase)| json!({"number": number, "phase": phase}));
    json!({
        "update": standing.update.name(),
        "serving": standing.serving,
        "committed": standing.committed,
        "kept": standing.kept,
        "last_cycle": standing.last_cycle,
        "cycle": cycle,
        "outcome": standing.outcome.as_ref().map(outcome_json),
        "plan_version": standing.plan_version,
        "leases": standing.leases,
        "indexes": standing.indexes.iter().map(|index| {
            json!({"name": index.name, "generation": index.generation, "place": index.place})
        }).collect::<Vec<_>>(),
        "distribution": if standing.page_index.is_some() { "uniform" } else { "hash" },
        "page_index": standing.page_index.map(|index| json!({
            "complete": index.complete,
            "pages": index.pages,
            "disk_bytes": index.disk_bytes,
            "memory_bytes": index.memory_bytes,
        })),
        "nodes": nodes,
    })
}

fn outcome_json(outcome: &CycleOutcome) -> Value {
    let (generation, aborted) = match &outcome.end {
        CycleEnd::Committed { generation } => (Some(generation), None),
        CycleEnd::Aborted { why } => (None, Some(why)),
    };
    json!({
        "cycle": outcome.cycle,
        "generation": generation,
        "aborted": aborted,
        "pages": outcome.pages,
        "bytes": outcome.bytes,
        "took_ms": outcome.took_ms,
    })
}

fn node_json(node: &NodeStatus) -> Value {
    let figures = node.figures.map(|f| {
        let store = Stats::from(f.store);
        json!({
            "capacity_bytes": store.capacity_bytes,
            "used_bytes": store.used_bytes,
            "live_bytes": store.live_bytes,
            "pages": store.pages,
            "adds": f.adds,
            "streams": f.streams,
            "lookups": f.lookups,
            "lookups_answered": f.lookups_answered,
            "damaged": f.damaged,
            "repaired": f.repaired,
        })
    });
    let progress = node.progress.map(|(phase, pages, bytes)| {
        json!({"phase": format!("{phase:?}").to_lowercase(), "pages": pages, "bytes": bytes})
    });
    json!({
        "id": node_name(node.id),
        "address": node.address.map(|a| a.to_string()),
        "role": role_name(node),
        "state": state_name(node.state),
        "leaving": node.leaving,
        "generation": node.generation,
        "epoch": node.epoch,
        "whole": node.whole,
        "progress": progress,
        "figures": figures,
    })
}

fn as_text(standing: &Standing) -> String {
    let cycle = match &standing.cycle {
        Some((number, phase)) => format!("cycle {number} is {phase}"),
        None => format!("no cycle runs, the last was {}", standing.last_cycle),
    };
    let Standing { update, serving, committed, kept, leases, .. } = standing;
    let mut out = format!(
        "{update} update; generation {serving} is served, {committed} is committed, {kept:?} are kept for {leases} \
         leases; {cycle}\n"
    );
    if let Some(outcome) = &standing.outcome {
        let _ = writeln!(out, "{outcome}"); // writing to a string does not fail
    }
    if let Some(index) = &standing.page_index {
        let state = if index.complete { "is complete" } else { "is being made anew from the nodes' lists" };
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "pages are distributed uniformly; the index {state}: {} pages, {} bytes on disk, {} in memory",
            index.pages, index.disk_bytes, index.memory_bytes
        );
    }
    let mut row = |cells: [&str; 8]| {
        let [node, address, role, state, generation, epoch, pages, bytes] = cells;
        let _ = writeln!(
            out,
            "{node:<16}  {address:<21}  {role:<6}  {state:<9}  {generation:>10}  {epoch:>5}  {pages:>12}  {bytes:>15}"
        );
    };
    row(["node", "address", "role", "state", "generation", "epoch", "pages", "bytes"]);
    let number = |n: Option<u64>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
    for node in &standing.nodes {
        let address = node.address.map_or_else(|| "-".to_owned(), |a| a.to_string());
        let state = if node.leaving { "leaving" } else { state_name(node.state) };
        let store = node.figures.map(|f| Stats::from(f.store));
        row([
            &node_name(node.id),
            &address,
            role_name(node),
            state,
            &number(node.generation),
            &number(node.epoch),
            &number(store.as_ref().map(|s| s.pages)),
            &number(store.as_ref().map(|s| s.used_bytes)),
        ]);
    }
    for (node, figures) in standing.nodes.iter().filter_map(|n| Some((n, n.figures?))) {
        let NodeFigures { damaged, repaired, .. } = figures;
        if damaged > 0 {
            let name = node_name(node.id);
            let _ =
                writeln!(out, "{name}: {damaged} pages were found damaged, {repaired} of them are repaired");
        }
    }
    out
}
