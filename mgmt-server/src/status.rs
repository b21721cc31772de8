//! How things stand, for operators: what is on disk, what nodes reported, and their figures.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use webbase_node::cycle::message::NodeId;
use webbase_node::plan::{NodeFigures, NodeState, NodeStatus, PageIndexStatus, Status, Update};

use crate::coordinator::{Coordinator, View};
use crate::state::{CyclePhase, NodeEntry, State};

/// Everything at a glance.
pub(crate) fn status(
    coordinator: &Coordinator,
    addresses: &BTreeMap<NodeId, SocketAddr>,
    figures: impl Fn(NodeId) -> Option<NodeFigures>,
    page_index: Option<PageIndexStatus>,
) -> Status {
    let state = coordinator.state();
    let phase = |phase: &CyclePhase| match phase {
        CyclePhase::Sealing => "sealing".to_owned(),
        CyclePhase::Preparing { attempt: 1, .. } => "preparing".to_owned(),
        CyclePhase::Preparing { attempt, .. } => format!("preparing, attempt {attempt}"),
        CyclePhase::Switching => "switching".to_owned(),
    };
    let nodes = state.nodes.iter().map(|(id, entry)| {
        let view = coordinator.views().get(id);
        let whole = state.live.is_some().then(|| coordinator.whole.get(id).map_or(0, |ranges| ranges.len()));
        NodeStatus { whole, ..node(state, *id, entry, view, addresses.get(id).copied(), figures(*id)) }
    });
    let update = if state.live.is_some() { Update::Incremental } else { Update::Batch };
    Status {
        update,
        serving: state.serving,
        committed: state.committed,
        kept: state.kept.clone(),
        last_cycle: state.last_cycle,
        cycle: state.cycle.as_ref().map(|c| (c.cycle, phase(&c.phase))),
        outcome: coordinator.outcome().cloned(),
        plan_version: state.plan_version,
        leases: coordinator.leases().count() as u64,
        indexes: state.indexes.clone(),
        nodes: nodes.collect(),
        page_index,
    }
}

fn node(
    state: &State,
    id: NodeId,
    entry: &NodeEntry,
    view: Option<&View>,
    address: Option<SocketAddr>,
    figures: Option<NodeFigures>,
) -> NodeStatus {
    let read = view.and_then(|v| v.read.as_ref());
    let update = view.and_then(|v| v.update.as_ref());
    let sealing = state.cycle.as_ref().filter(|c| c.phase == CyclePhase::Sealing).map(|c| c.cycle);
    let seals = sealing.is_some_and(|cycle| update.is_some_and(|u| u.sealed_cycle < cycle));
    let busy = seals || read.is_some_and(|r| r.progress.is_some() || r.prepared.is_some());
    let doing = match figures {
        _ if entry.down || view.is_none_or(|v| v.boot == 0) => NodeState::Down,
        _ if busy => NodeState::Updating,
        Some(figures) if figures.adds > 0 => NodeState::Storing,
        Some(figures) if figures.streams > 0 => NodeState::Streaming,
        _ => NodeState::Idle,
    };
    NodeStatus {
        id,
        address,
        read: entry.read,
        update: entry.update.is_some(),
        state: doing,
        leaving: entry.leaving,
        generation: read.map(|r| r.current),
        epoch: update.map(|u| u.open_epoch),
        whole: None,
        progress: read.and_then(|r| r.progress).map(|p| (p.phase, p.pages, p.bytes)),
        figures,
    }
}
