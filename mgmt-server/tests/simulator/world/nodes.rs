//! The nodes' processes: started, killed, and told things.

use std::collections::BTreeMap;

use webbase_node::cycle::message::{NodeId, ToNode};
use webbase_node::cycle::{
    Action, Done, Event, Intent, IntentId, Node, NodeDurable, Settings as NodeSettings,
};

use super::{Ev, SimNode, World};
use crate::mutants::Mutant;
use crate::store::{ReadDisk, UpdateDisk};

impl World {
    pub fn new_node(&mut self, update: bool, read: bool) -> NodeId {
        let id = NodeId(self.next_node);
        self.next_node += 1;
        let node = SimNode {
            boot: 0,
            update: update.then(UpdateDisk::default),
            read: read.then(ReadDisk::default),
            machine: None,
            intents: BTreeMap::new(),
            lost: false,
            slow: self.rng.percent(10),
            capacity: u64::MAX,
        };
        self.nodes.insert(id, node);
        let ms = self.rng.range(1, 300);
        self.after(ms, Ev::StartNode(id));
        id
    }

    pub fn start_node(&mut self, id: NodeId) {
        let now = self.now;
        let removed = self.disk.removed.contains(&id);
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if node.lost || node.machine.is_some() || removed {
            return;
        }
        node.boot += 1;
        if let Some(read) = &mut node.read {
            read.open();
        }
        let durable = NodeDurable {
            boot: node.boot,
            update: node.update.as_ref().map(|u| u.file.clone()),
            read: node.read.as_ref().map(|r| r.file.clone()),
        };
        let (machine, actions) =
            Node::start(now, durable, NodeSettings { heartbeat_ms: 500, update: self.update });
        node.machine = Some(machine);
        let boot = node.boot;
        self.node_actions(id, actions);
        self.after(500, Ev::NodeTick(id, boot));
    }

    /// Ends a node's process: what it was doing on disk has happened, or not, or half.
    pub fn kill_node(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if node.machine.take().is_none() {
            return;
        }
        self.counts.kills += 1;
        let intents = std::mem::take(&mut node.intents);
        for intent in intents.into_values() {
            match self.rng.range(0, 3) {
                0 => {}
                1 => {
                    self.apply(id, &intent, false);
                }
                _ => {
                    self.apply(id, &intent, true);
                }
            }
        }
    }

    pub(super) fn node_event(&mut self, id: NodeId, event: Event) {
        let now = self.now;
        let Some(machine) = self.nodes.get_mut(&id).and_then(|n| n.machine.as_mut()) else { return };
        let actions = machine.on(now, event);
        self.node_actions(id, actions);
    }

    fn node_actions(&mut self, id: NodeId, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(message) => {
                    self.note(|| format!("{} → mgmt: {message:?}", id.0));
                    self.transmit(0, id.0, || Ev::ToMgmt(id, message.clone()));
                }
                Action::Do(intent_id, intent) => {
                    let ms = self.duration(id, &intent);
                    let Some(node) = self.nodes.get_mut(&id) else { return };
                    node.intents.insert(intent_id, intent);
                    let boot = node.boot;
                    self.after(ms, Ev::IntentDone(id, boot, intent_id));
                }
                Action::Cancel(intent_id) => {
                    let Some(node) = self.nodes.get_mut(&id) else { return };
                    let cut = matches!(node.intents.get(&intent_id), Some(Intent::List(_) | Intent::Pull(_)));
                    if cut && let Some(intent) = node.intents.remove(&intent_id) {
                        self.apply(id, &intent, true);
                        self.node_event(id, Event::Done(intent_id, Done::Cancelled));
                    }
                }
                Action::Stop => {
                    if let Some(node) = self.nodes.get_mut(&id) {
                        node.machine = None;
                    }
                }
            }
        }
    }

    fn duration(&mut self, id: NodeId, intent: &Intent) -> u64 {
        let slow = self.nodes.get(&id).is_some_and(|n| n.slow) && self.faulty();
        let ms = match intent {
            Intent::Pull(_) => self.rng.range(20, 900),
            Intent::List(_) => self.rng.range(5, 200),
            _ => self.rng.range(1, 60),
        };
        if slow { ms * 8 } else { ms }
    }

    pub(super) fn intent_done(&mut self, id: NodeId, boot: u64, intent_id: IntentId) {
        let Some(node) = self.nodes.get_mut(&id).filter(|n| n.boot == boot) else { return };
        let Some(intent) = node.intents.remove(&intent_id) else { return };
        let done = self.apply(id, &intent, false);
        self.note(|| format!("{} did {intent:?}: {done:?}", id.0));
        self.node_event(id, Event::Done(intent_id, done));
        let Some(SimNode { machine: Some(machine), update, read, .. }) = self.nodes.get(&id) else { return };
        // The machine's picture of its disk is the disk.
        assert_eq!(machine.update().map(|u| u.durable()), update.as_ref().map(|u| &u.file));
        assert_eq!(machine.read().map(|r| r.durable()), read.as_ref().map(|r| &r.file));
        let wants_more = matches!(intent, Intent::Keep { ticket: Some(_), .. });
        if self.mutant == Some(Mutant::SwitchWhenPrepared)
            && wants_more
            && let Some(p) = read.as_ref().and_then(|r| r.file.prepared.clone())
        {
            let (ticket, generation) = (p.ticket, p.generation);
            self.node_event(
                id,
                Event::Message(ToNode::Commit { ticket, generation, kept: self.disk.kept.clone() }),
            );
        }
    }
}
