//! The management server's process: its machine, its disk, and what it says.

use webbase_mgmt_server::{Action, Command, Coordinator, Event, State};
use webbase_node::cycle::message::{NodeId, ToNode};

use super::{Ev, SimNode, World};
use crate::mutants::Mutant;

impl World {
    pub fn start_mgmt(&mut self) {
        if self.mgmt.is_none() {
            self.mgmt_boot += 1;
            self.mgmt = Some(Coordinator::start(self.now, self.disk.clone(), self.settings));
            self.after(50, Ev::MgmtTick(self.mgmt_boot));
        }
    }

    pub fn kill_mgmt(&mut self) {
        if self.mgmt.take().is_some() {
            self.counts.mgmt_kills += 1;
            if self.rng.percent(50) {
                self.make_durable();
            }
            self.persisting = None;
        }
    }

    pub(super) fn make_durable(&mut self) {
        let Some((_, state)) = self.persisting.take() else { return };
        let before = std::mem::replace(&mut self.disk, *state);
        let (old, new) = (&before, &self.disk);
        self.counts.commits += u64::from(new.committed > old.committed);
        self.counts.aborts += u64::from(old.cycle.is_some() && new.cycle.is_none() && old.ticket().is_some());
        self.counts.attempts +=
            u64::from(new.ticket().is_some_and(|t| t.attempt > 1) && new.ticket() != old.ticket());
        if let (Some(old), Some(new)) = (&old.live, &new.live) {
            let grew = |range: &u32| new.whole(*range).iter().any(|n| !old.whole(*range).contains(n));
            let known = |range: &u32| !old.whole(*range).is_empty();
            self.counts.became_whole += (0..self.map.count()).filter(|r| known(r) && grew(r)).count() as u64;
        }
        self.counts.removed_nodes += (new.removed.len() - old.removed.len()) as u64;
        self.counts.forgotten += u64::from(new.committed > old.committed && new.forget_through() > 0);
        let nodes = &self.nodes;
        let disk = |node| nodes.get(&node).and_then(|n: &SimNode| n.update.as_ref());
        let checked = self.oracle.persisted(&before, &self.disk, disk);
        self.check(checked);
        self.note_state(&before);
    }

    fn note_state(&self, before: &State) {
        let after = &self.disk;
        if before.cycle != after.cycle {
            self.note(|| format!("durable: cycle {:?}", after.cycle.as_ref().map(|c| (c.cycle, &c.phase))));
        }
        if before.committed != after.committed {
            self.note(|| format!("durable: committed {} by {:?}", after.committed, after.commits.last()));
        }
        if before.placement.version != after.placement.version {
            self.note(|| format!("durable: placement {:?}", after.placement.read));
        }
    }

    pub fn request(&mut self, command: Command) {
        let id = self.next_request;
        self.next_request += 1;
        self.note(|| format!("request {id}: {command:?}"));
        self.mgmt_event(Event::Request(id, command));
    }

    pub(super) fn mgmt_event(&mut self, event: Event) {
        let Some(mgmt) = &mut self.mgmt else { return };
        let actions = mgmt.on(self.now, event);
        for action in actions {
            match action {
                Action::Send(node, message) => self.send_to_node(node, message),
                Action::Persist(sequence, state) => {
                    self.persisting = Some((sequence, state));
                    if self.mutant == Some(Mutant::CommitBeforePersist) {
                        self.mgmt_event(Event::Persisted(sequence));
                    }
                    let ms = self.rng.range(1, 60);
                    self.after(ms, Ev::Persisted(self.mgmt_boot, sequence));
                }
                Action::Answer(id, answer) => self.note(|| format!("answer {id}: {answer:?}")),
            }
        }
    }

    fn send_to_node(&mut self, node: NodeId, mut message: ToNode) {
        match (self.mutant, &mut message) {
            (Some(Mutant::LoseCommits), ToNode::Commit { .. }) => return,
            (Some(Mutant::AnyTicketWillDo), ToNode::Abort { ticket }) => {
                let file = self.nodes.get(&node).and_then(|n| n.read.as_ref()).map(|r| &r.file);
                if let Some(p) =
                    file.and_then(|f| f.prepared.as_ref()).filter(|p| p.generation <= self.disk.committed)
                {
                    let (ticket, generation) = (p.ticket.max(*ticket), p.generation);
                    message = ToNode::Commit { ticket, generation, kept: self.disk.kept.clone() };
                }
            }
            (Some(Mutant::ForgetTombstones), ToNode::Prepare(p)) => {
                p.changes.forget_through = p.changes.cycle
            }
            (Some(Mutant::ReleaseEarly), ToNode::Commit { kept, .. }) => kept.clear(),
            (Some(Mutant::DropEpochsEarly), ToNode::Commit { .. }) => {
                for (id, entry) in &self.disk.nodes.clone() {
                    if let Some(update) = &entry.update {
                        let through = update.included_through;
                        self.after(5, Ev::ToNode(*id, ToNode::DropEpochs { through }));
                    }
                }
            }
            _ => {}
        }
        self.note(|| format!("mgmt → {}: {message:?}", node.0));
        self.transmit(0, node.0, || Ev::ToNode(node, message.clone()));
    }
}
