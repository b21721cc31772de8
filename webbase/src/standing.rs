//! How a repository stands, as JSON for programs and as a table for people.
//!
//! The table is made of the JSON, so that whoever has the one can have the other, wherever it comes from.

use std::fmt::Write as _;

use serde_json::{Value, json};
use webbase_node::cycle::message::NodeId;
use webbase_node::plan::{CycleEnd, CycleOutcome, NodeState, NodeStatus, Status};
use webbase_storage::Stats;

/// A node's name, as everywhere for people: 16 hexadecimal digits.
pub fn node_name(id: NodeId) -> String {
    format!("{:016x}", id.0)
}

/// What a node does now, in a word.
pub fn state_name(state: NodeState) -> &'static str {
    match state {
        NodeState::Idle => "idle",
        NodeState::Streaming => "streaming",
        NodeState::Storing => "storing",
        NodeState::Updating => "updating",
        NodeState::Down => "down",
    }
}

/// What a node is for, in a word.
pub fn role_name(node: &NodeStatus) -> &'static str {
    match (node.update, node.read) {
        (true, true) => "both",
        (true, false) => "update",
        (false, true) => "read",
        (false, false) => "none",
    }
}

/// Everything, for programs. Names of nodes are hexadecimal; JSON's numbers could not hold them.
pub fn as_json(status: &Status) -> Value {
    let nodes: Vec<Value> = status.nodes.iter().map(node_json).collect();
    let cycle = status.cycle.as_ref().map(|(number, phase)| json!({"number": number, "phase": phase}));
    json!({
        "update": status.update.name(),
        "serving": status.serving,
        "committed": status.committed,
        "kept": status.kept,
        "last_cycle": status.last_cycle,
        "cycle": cycle,
        "outcome": status.outcome.as_ref().map(outcome_json),
        "plan_version": status.plan_version,
        "leases": status.leases,
        "indexes": status.indexes.iter().map(|index| {
            json!({"name": index.name, "generation": index.generation, "place": index.place})
        }).collect::<Vec<_>>(),
        "distribution": if status.page_index.is_some() { "uniform" } else { "hash" },
        "page_index": status.page_index.map(|index| json!({
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
        "text": outcome.to_string(),
    })
}

fn node_json(node: &NodeStatus) -> Value {
    let figures = node.figures.map(|f| {
        let store = Stats::from(f.store);
        json!({
            "organization": store.organization.name(),
            "capacity_bytes": store.capacity_bytes,
            "used_bytes": store.used_bytes,
            "live_bytes": store.live_bytes,
            "dead_bytes": store.dead_bytes,
            "memory_bytes": store.memory_bytes,
            "pages": store.pages,
            "adds": f.adds,
            "streams": f.streams,
            "lookups": f.lookups,
            "lookups_answered": f.lookups_answered,
            "scanned_bytes": f.scanned_bytes,
            "streamed_pages": f.streamed_pages,
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

/// A member of an object as people read it; a dash where there is none.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn member<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(value, |value, name| value.get(name).unwrap_or(&Value::Null))
}

const HEADINGS: [&str; 11] = [
    "node",
    "role",
    "organization",
    "state",
    "generation",
    "pages",
    "used",
    "free",
    "fragmented",
    "lookups",
    "address",
];

/// A node's line of the table.
fn row(node: &Value) -> [String; HEADINGS.len()] {
    let get = |path: &[&str]| shown(member(node, path));
    let figure = |name: &str| member(node, &["figures", name]).as_u64();
    let size = |bytes: Option<u64>| bytes.map_or("-".into(), bytes_text);
    let (used, live) = (figure("used_bytes"), figure("live_bytes"));
    let leaving = member(node, &["leaving"]) == &Value::Bool(true);
    let fragmented = used.zip(live).filter(|(used, _)| *used > 0);
    [
        get(&["id"]),
        get(&["role"]),
        get(&["figures", "organization"]),
        if leaving { "leaving".into() } else { get(&["state"]) },
        get(&["generation"]),
        figure("pages").map_or("-".into(), grouped),
        size(used),
        size(figure("capacity_bytes").zip(used).map(|(all, used)| all.saturating_sub(used))),
        fragmented.map_or("-".into(), |(used, live)| format!("{} %", used.saturating_sub(live) * 100 / used)),
        figure("lookups_answered").map_or("-".into(), grouped),
        get(&["address"]),
    ]
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Bytes in the unit that suits them.
fn bytes_text(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB", "PB"];
    let (mut amount, mut unit) = (bytes as f64, 0);
    while amount >= 1000.0 && unit + 1 < units.len() {
        (amount, unit) = (amount / 1000.0, unit + 1);
    }
    let decimals = usize::from(unit > 0 && amount < 100.0);
    format!("{amount:.decimals$} {}", units.get(unit).unwrap_or(&""))
}

/// The same for people. What the JSON lacks is a dash.
pub fn as_text(status: &Value) -> String {
    let get = |name: &str| shown(member(status, &[name]));
    let cycle = match member(status, &["cycle"]) {
        Value::Null => format!("no cycle runs, the last was {}", get("last_cycle")),
        cycle => {
            format!("cycle {} is {}", shown(member(cycle, &["number"])), shown(member(cycle, &["phase"])))
        }
    };
    let mut out = format!(
        "{} update; generation {} is served, {} is committed, {} are kept for {} leases; {cycle}\n",
        get("update"),
        get("serving"),
        get("committed"),
        get("kept"),
        get("leases")
    );
    // Writing to a string does not fail.
    if let Value::String(outcome) = member(status, &["outcome", "text"]) {
        let _ = writeln!(out, "{outcome}");
    }
    let index = member(status, &["page_index"]);
    if !index.is_null() {
        let complete = member(index, &["complete"]) == &Value::Bool(true);
        let state = if complete { "is complete" } else { "is being made anew from the nodes' lists" };
        let get = |name: &str| shown(member(index, &[name]));
        let _ = writeln!(
            out,
            "pages are distributed uniformly; the index {state}: {} pages, {} bytes on disk, {} in memory",
            get("pages"),
            get("disk_bytes"),
            get("memory_bytes")
        );
    }
    let none = Vec::new();
    let nodes = member(status, &["nodes"]).as_array().unwrap_or(&none);
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    rows.extend(nodes.iter().map(row));
    let mut widths = [0; HEADINGS.len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for row in &rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
            // Figures to the right, names to the left.
            let _ = match (4..10).contains(&column) {
                true => write!(line, "{padding}{cell}  "),
                false => write!(line, "{cell}{padding}  "),
            };
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    for node in nodes {
        let damaged = member(node, &["figures", "damaged"]).as_u64().unwrap_or(0);
        if damaged > 0 {
            let (name, repaired) =
                (shown(member(node, &["id"])), shown(member(node, &["figures", "repaired"])));
            let _ =
                writeln!(out, "{name}: {damaged} pages were found damaged, {repaired} of them are repaired");
        }
    }
    out
}

/// The running cycle in a line, or what came of the last one.
pub fn progress(status: &Value) -> String {
    let cycle = member(status, &["cycle"]);
    if cycle.is_null() {
        let outcome = member(status, &["outcome"]);
        let last = member(outcome, &["cycle"]) == member(status, &["last_cycle"]);
        let outcome = match member(outcome, &["text"]) {
            Value::String(text) if last => format!("{text}; "),
            _ => String::new(),
        };
        return format!("{outcome}generation {} is served", shown(member(status, &["serving"])));
    }
    let mut line =
        format!("cycle {}: {}", shown(member(cycle, &["number"])), shown(member(cycle, &["phase"])));
    for node in member(status, &["nodes"]).as_array().into_iter().flatten() {
        let progress = member(node, &["progress"]);
        if !progress.is_null() {
            let get = |name: &str| shown(member(progress, &[name]));
            let _ = write!(
                line,
                "; node {}: {}, {} pages, {} bytes",
                shown(member(node, &["id"])),
                get("phase"),
                get("pages"),
                get("bytes")
            );
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_nothing_is_no_accident() {
        let text = as_text(&json!({}));
        assert!(text.starts_with("- update; generation - is served"), "{text}");
        let text = as_text(&json!({"nodes": [{"id": "0a", "state": "idle", "figures": {
            "pages": 1234567, "used_bytes": 2000, "live_bytes": 1500, "capacity_bytes": 5_000_002_000_u64}}]}));
        let line = text.lines().last().unwrap();
        let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let expected = ["0a", "-", "-", "idle", "-", "1,234,567", "2.0 kB", "5.0 GB", "25 %", "-", "-"];
        assert_eq!(cells, expected, "{text}");
        assert_eq!(progress(&json!({"serving": 3})), "generation 3 is served");
        let running = json!({"cycle": {"number": 2, "phase": "preparing"}, "nodes": [
            {"id": "0a", "progress": {"phase": "pull", "pages": 5, "bytes": 60}}]});
        assert_eq!(progress(&running), "cycle 2: preparing; node 0a: pull, 5 pages, 60 bytes");
    }
}
