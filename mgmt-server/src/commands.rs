//! What each node is told: the difference between what shall be and what it reports.

use webbase_node::cycle::RangeSet;
use webbase_node::cycle::message::{NodeId, Prepare, RangeSource, ReadReport, Recipe, ToNode, Work};

use crate::coordinator::{Action, Coordinator};
use crate::state::{CyclePhase, NodeEntry};

impl Coordinator {
    pub(crate) fn tell_all(&mut self, now_ms: u64, actions: &mut Vec<Action>) {
        let nodes: Vec<NodeId> = self.state.nodes.keys().copied().collect();
        for node in nodes {
            self.tell(now_ms, node, actions);
        }
    }

    /// Tells a node what it has not done yet, unless it was told the same a moment ago.
    pub(crate) fn tell(&mut self, now_ms: u64, node: NodeId, actions: &mut Vec<Action>) {
        if !self.is_live(node) {
            return;
        }
        let Some(entry) = self.state.nodes.get(&node) else { return };
        let wanted = [
            self.read_command(node),
            self.update_command(node, entry),
            self.release_command(node),
            self.welcome_command(node),
            self.live_command(node),
        ];
        let resend_ms = self.settings.resend_ms;
        let Some(view) = self.views.get_mut(&node) else { return };
        for (told, wanted) in view.told.iter_mut().zip(wanted) {
            let Some(message) = wanted else {
                *told = None;
                continue;
            };
            let again = told.as_ref().is_none_or(|(m, at)| *m != message || now_ms >= at + resend_ms);
            if again {
                actions.push(Action::Send(node, message.clone()));
                *told = Some((message, now_ms));
            }
        }
    }

    fn welcome_command(&self, node: NodeId) -> Option<ToNode> {
        let welcomed = self.live(node)?.welcomed;
        (!welcomed).then_some(ToNode::Welcome { cycle: self.state.last_cycle })
    }

    fn live_command(&self, node: NodeId) -> Option<ToNode> {
        let served = &self.live(node)?.read.as_ref()?.live;
        let ranges = self.whole.get(&node).cloned().unwrap_or_default();
        (*served != ranges).then_some(ToNode::Live { ranges })
    }

    fn update_command(&self, node: NodeId, entry: &NodeEntry) -> Option<ToNode> {
        let report = self.live(node)?.update.as_ref()?;
        let update = entry.update.as_ref()?;
        // Where pages are visible at once its ranges take adds, there too, until others have them.
        let still_takes =
            self.state.live.is_some() && self.holdings.get(&node).is_some_and(|h| !h.owned.is_empty());
        if entry.leaving && !report.closed && !still_takes {
            return Some(ToNode::Close);
        }
        if let Some(cycle) = self.state.cycle.as_ref().filter(|c| c.phase == CyclePhase::Sealing)
            && report.sealed_cycle < cycle.cycle
        {
            return Some(ToNode::Seal { cycle: cycle.cycle });
        }
        let through = update.free_through;
        (through >= report.first_epoch).then_some(ToNode::DropEpochs { through })
    }

    fn release_command(&self, node: NodeId) -> Option<ToNode> {
        let read = self.live(node)?.read.as_ref()?;
        let gone = |g: &u64| *g < self.state.committed && *g < read.current && !self.state.kept.contains(g);
        let generations: Vec<u64> = read.kept.iter().map(|(g, _)| *g).filter(gone).collect();
        (!generations.is_empty()).then_some(ToNode::Release { generations })
    }

    fn read_command(&self, node: NodeId) -> Option<ToNode> {
        let read = self.live(node)?.read.as_ref()?;
        let state = &self.state;
        if let Some(ticket) = read.prepared {
            if let Some(commit) = state.commits.iter().find(|c| c.ticket == ticket) {
                return Some(ToNode::Commit {
                    ticket,
                    generation: commit.generation,
                    kept: state.kept.clone(),
                });
            }
            if state.ticket() != Some(ticket) {
                return Some(ToNode::Abort { ticket });
            }
            return None;
        }
        if let Some(progress) = read.progress {
            match progress.work {
                Work::Preparing(ticket) if state.ticket() != Some(ticket) => {
                    return Some(ToNode::Abort { ticket });
                }
                Work::CatchingUp { generation } if generation != state.committed => {}
                _ => return None,
            }
        }
        if self.takes_part(node) {
            if let Some(prepare) = self.prepare_command(node) {
                return Some(prepare);
            }
            if state.cycle.is_some() {
                return None;
            }
        }
        self.catch_up_command(node, read)
    }

    fn prepare_command(&self, node: NodeId) -> Option<ToNode> {
        let ticket = self.state.ticket()?;
        let cycle = self.state.cycle.as_ref()?;
        let CyclePhase::Preparing { sources, .. } = &cycle.phase else { return None };
        let holding = self.holdings.get(&node)?;
        // What has arrived of a move goes along, so that it need not be copied again.
        let arrived = self.live(node)?.part(cycle.base, &holding.target);
        Some(ToNode::Prepare(Prepare {
            ticket,
            base: cycle.base,
            target: cycle.target,
            ranges: holding.owned.union(&arrived),
            sources: sources.clone(),
            changes: cycle.changes.clone(),
        }))
    }

    fn catch_up_command(&self, node: NodeId, read: &ReadReport) -> Option<ToNode> {
        let holding = self.holdings.get(&node)?;
        let committed = self.state.committed;
        let wanted = holding.owned.union(&holding.target);
        let view = self.live(node)?;
        if view.has_all(committed, &wanted) {
            return None;
        }
        let missing = wanted.minus(&view.part(committed, &wanted));
        let ticket = self.state.committed_ticket();
        let sources: Vec<RangeSource> = self
            .views
            .iter()
            .filter(|(id, _)| **id != node && self.is_live(**id))
            .map(|(id, v)| RangeSource { node: *id, ranges: v.part(committed, &missing) })
            .filter(|s| !s.ranges.is_empty())
            .collect();
        let found = sources.iter().fold(RangeSet::new(), |all, s| all.union(&s.ranges));
        if missing.is_subset(&found) {
            return Some(ToNode::CatchUp {
                generation: committed,
                ticket,
                ranges: wanted,
                kept: self.state.kept.clone(),
                recipe: Recipe::Exact(sources),
            });
        }
        self.make_again(read, &holding.owned).or_else(|| self.partly(node, found, sources))
    }

    /// Ranges that somebody has are fetched even when others are not to be had now.
    fn partly(&self, node: NodeId, found: RangeSet, sources: Vec<RangeSource>) -> Option<ToNode> {
        let read = self.live(node)?.read.as_ref()?;
        let at_it = read.current == self.state.committed;
        (at_it && !found.is_empty()).then(|| ToNode::CatchUp {
            generation: self.state.committed,
            ticket: self.state.committed_ticket(),
            ranges: found,
            kept: self.state.kept.clone(),
            recipe: Recipe::Exact(sources),
        })
    }

    /// Nobody reachable has it: the node makes the next generation itself, as the others did, if all epochs are there. With one
    /// missing it would make another generation of the same number, so then it waits for a replica to return.
    fn make_again(&self, read: &ReadReport, owned: &RangeSet) -> Option<ToNode> {
        let commit = self.state.commits.iter().find(|c| c.base == read.current)?;
        let has =
            |r: u32| read.current == 0 || read.kept.iter().any(|(g, k)| *g == read.current && k.contains(r));
        if !owned.iter().all(has) {
            return None;
        }
        let there = |s: &webbase_node::cycle::message::EpochSource| {
            s.through < s.from
                || self.live(s.node).and_then(|v| v.update.as_ref()).is_some_and(|u| u.first_epoch <= s.from)
        };
        if !commit.sources.iter().all(there) {
            return None;
        }
        let sources = commit.sources.clone();
        Some(ToNode::CatchUp {
            generation: commit.generation,
            ticket: commit.ticket,
            ranges: owned.clone(),
            kept: self.state.kept.clone(),
            recipe: Recipe::Delta { base: commit.base, sources, changes: commit.changes.clone() },
        })
    }
}
