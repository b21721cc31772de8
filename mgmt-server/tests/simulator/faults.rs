//! What goes wrong, and what the operator does.

use webbase_mgmt_server::{Command, Update};
use webbase_node::cycle::message::{NodeId, Removal, SeenAgain};

use crate::store::PAGE_BYTES;
use crate::world::{Ev, FAULTS_MS, LAST_CYCLES_MS, World};

impl World {
    pub fn fault(&mut self) {
        if !self.faulty() {
            return self.heal();
        }
        let (soon, late) = if self.calm { (1500, 6000) } else { (100, 1500) };
        let next = (self.now + self.rng.range(soon, late)).min(FAULTS_MS);
        self.at(next, Ev::Fault);
        let ids: Vec<NodeId> =
            self.nodes.iter().filter(|(_, n)| n.machine.is_some()).map(|(id, _)| *id).collect();
        let Some(id) = self.rng.pick(&ids).copied() else { return };
        match self.rng.range(0, 100) {
            0..40 => {
                self.note(|| format!("kill {}", id.0));
                self.kill_node(id);
                let long = self.rng.percent(if self.calm { 75 } else { 25 });
                let ms = if long { self.rng.range(3000, 15_000) } else { self.rng.range(10, 2500) };
                self.after(ms, Ev::StartNode(id));
            }
            40..60 => {
                self.note(|| "kill the management server".to_string());
                self.kill_mgmt();
                let ms = self.rng.range(10, 2000);
                self.after(ms, Ev::StartMgmt);
            }
            60..75 => {
                let other = self.rng.pick(&ids).map_or(0, |n| n.0);
                let other = if self.rng.percent(50) || other == id.0 { 0 } else { other };
                let until = self.now + self.rng.range(200, 5000);
                self.note(|| format!("no way between {} and {other} until {until}", id.0));
                self.blocked.insert((other.min(id.0), other.max(id.0)), until);
            }
            75..85 => {
                let room = self.rng.range(0, 6) * PAGE_BYTES;
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.capacity = match &node.read {
                        Some(read) if node.capacity == u64::MAX => read.used() + room,
                        None if node.capacity == u64::MAX => 0,
                        _ => u64::MAX,
                    };
                }
            }
            85..92 => {
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.slow = !node.slow;
                }
            }
            _ => {
                if self.counts.lost < 2 && self.may_lose(id) {
                    self.lose(id);
                }
            }
        }
    }

    fn lose(&mut self, id: NodeId) {
        self.note(|| format!("node {} is lost", id.0));
        self.counts.lost += 1;
        self.kill_node(id);
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lost = true;
        }
    }

    /// One disk may be lost when what is on it is elsewhere, too. What two disks at once cost is another question.
    fn may_lose(&self, id: NodeId) -> bool {
        let Some(node) = self.nodes.get(&id) else { return false };
        if !self.disk.nodes.contains_key(&id) {
            return false;
        }
        let others = || self.nodes.iter().filter(|(n, o)| **n != id && !o.lost).map(|(n, o)| (*n, o));
        let committed = self.disk.committed;
        let content = self.oracle.generation(committed);
        // Every range of the committed generation is on another disk, or can be made again from what others have.
        let commit = self.disk.commits.last();
        let mut every_range_stands = true;
        for range in 0..self.map.count() {
            let one = [range].into_iter().collect();
            let stands = others().any(|(n, o)| {
                self.disk.placement.read.owners(range).contains(&n)
                    && o.read.as_ref().is_some_and(|r| r.file.serves(committed, &one))
            });
            every_range_stands &= stands;
            let again = commit.is_some_and(|c| {
                let base = others().any(|(n, o)| {
                    self.disk.placement.read.owners(range).contains(&n)
                        && o.read
                            .as_ref()
                            .is_some_and(|r| r.file.current == c.base && r.file.serves(c.base, &one))
                });
                let source = |n: NodeId, from: u64| {
                    others()
                        .any(|(m, o)| m == n && o.update.as_ref().is_some_and(|u| u.file.first_epoch <= from))
                };
                base && c.sources.iter().all(|s| s.from > s.through || source(s.node, s.from))
            });
            if !stands && !again {
                return false;
            }
        }
        let read_left = others().any(|(n, o)| o.read.is_some() && self.disk.nodes.contains_key(&n));
        let update_left = others().any(|(n, o)| o.update.is_some() && self.disk.nodes.contains_key(&n));
        let Some(update) = &node.update else { return read_left && update_left };
        // A commit may be on its way that needs these epochs: not while a cycle runs.
        if !every_range_stands || self.disk.cycle.is_some() {
            return false;
        }
        update.epochs.values().flatten().all(|(key, version)| {
            let elsewhere = others().any(|(_, o)| {
                o.update
                    .as_ref()
                    .is_some_and(|u| u.epochs.values().any(|e| e.get(key).is_some_and(|v| v >= version)))
            });
            content.covers(*key, *version) || elsewhere
        }) && read_left
            && update_left
    }

    fn heal(&mut self) {
        self.blocked.clear();
        self.start_mgmt();
        let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
        for id in ids {
            if let Some(node) = self.nodes.get_mut(&id) {
                node.capacity = u64::MAX;
                node.slow = false;
            }
            self.start_node(id);
        }
    }

    pub fn operator(&mut self) {
        let ms = self.rng.range(400, 2500);
        self.after(ms, Ev::Operator);
        let lost =
            self.nodes.iter().find(|(id, n)| n.lost && self.disk.nodes.contains_key(id)).map(|(id, _)| *id);
        if let Some(old) = lost
            && self.disk.nodes.get(&old).is_some_and(|n| n.down)
        {
            if self.rng.percent(50) {
                return self.request(Command::RemoveLost(old));
            }
            let roles = self.nodes.get(&old).map_or((true, true), |n| (n.update.is_some(), n.read.is_some()));
            let new = NodeId(self.next_node);
            self.request(Command::Replace { old, new });
            self.new_node(roles.0, roles.1);
            return;
        }
        if !self.faulty() {
            if self.now > LAST_CYCLES_MS && self.disk.cycle.is_none() {
                self.request(Command::StartCycle);
            }
            return;
        }
        match self.rng.range(0, 100) {
            0..62 => self.request(Command::StartCycle),
            62..67 => self.request(Command::AbortCycle),
            67..72 => {
                let ids: Vec<NodeId> = self.disk.nodes.keys().copied().collect();
                if let Some(id) = self.rng.pick(&ids).copied() {
                    self.request(Command::Drain(id));
                }
            }
            72..78 => {
                if self.nodes.len() < 10 {
                    let role = self.rng.range(0, 3);
                    let both = self.update == Update::Incremental;
                    self.new_node(both || role != 1, both || role != 0);
                }
            }
            _ => self.remove_pages(),
        }
    }

    fn remove_pages(&mut self) {
        let content = self.oracle.generation(self.disk.committed);
        let pages: Vec<Removal> =
            content.pages.iter().map(|(k, e)| Removal { key: *k, bound: e.version }).collect();
        // The hard ones: an update node that is away has them in epochs that are still to come.
        let away = || {
            let away = self.nodes.iter().filter(|(_, n)| n.machine.is_none());
            away.filter_map(|(id, n)| {
                let included = self.disk.nodes.get(id)?.update.as_ref()?.included_through;
                Some(n.update.as_ref()?.epochs.range(included + 1..).flat_map(|(_, pages)| pages))
            })
        };
        let comes =
            |r: &&Removal| away().flatten().any(|(key, version)| *key == r.key && *version <= r.bound);
        let hard: Vec<Removal> = pages.iter().filter(comes).copied().collect();
        let from = if hard.is_empty() { &pages } else { &hard };
        let some: Vec<Removal> = (0..4).filter_map(|_| self.rng.pick(from).copied()).collect();
        if some.is_empty() {
            return;
        }
        self.counts.removals += some.len() as u64;
        match self.rng.range(0, 3) {
            0 => self.request(Command::Remove(some)),
            1 => self.request(Command::Due(some)),
            _ => {
                let at_ms = self.now;
                let seen = some.iter().map(|r| SeenAgain { key: r.key, at_ms, lifetime_s: 9 }).collect();
                self.request(Command::Due(some.clone()));
                self.request(Command::Seen(seen));
                self.request(Command::Due(some)); // somebody else asks for the list
            }
        }
    }
}
