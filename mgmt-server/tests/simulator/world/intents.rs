//! What nodes do to their disks: wholly, not at all, or half.

use std::collections::BTreeMap;
use std::rc::Rc;

use webbase_node::cycle::message::NodeId;
use webbase_node::cycle::{Done, Intent, Pull, PullMode, RangeSet};
use webbase_storage::{PageKey, Version};

use super::World;
use crate::invariants as rules;
use crate::mutants::Mutant;
use crate::store::{Content, PAGE_BYTES};

impl World {
    /// What an intent does to the disk.
    pub(super) fn apply(&mut self, id: NodeId, intent: &Intent, half: bool) -> Done {
        match intent {
            Intent::Seal { .. } | Intent::Close | Intent::DropEpochs { .. } => {
                if let Intent::DropEpochs { through } = intent {
                    self.check_drop(id, *through);
                }
                if let Some(update) = self.nodes.get_mut(&id).and_then(|n| n.update.as_mut()) {
                    update.apply(intent, half);
                }
                Done::Ok
            }
            Intent::List(pull) => match self.pulled(id, pull, true) {
                Ok((_, pages)) => Done::Listed { pages, bytes: pages * PAGE_BYTES },
                Err(source) => Done::SourceFailed(source),
            },
            Intent::Reserve { bytes } => self.reserve(id, *bytes),
            Intent::Pull(pull) => self.pull(id, pull, half),
            _ => {
                self.change_generations(id, intent, half);
                Done::Ok
            }
        }
    }

    fn reserve(&mut self, id: NodeId, bytes: u64) -> Done {
        let Some(node) = self.nodes.get_mut(&id) else { return Done::Ok };
        let Some(read) = &mut node.read else { return Done::Ok };
        if self.mutant == Some(Mutant::NoReserve) {
            return Done::Ok;
        }
        if read.used() + bytes > node.capacity {
            self.counts.no_space += 1;
            return Done::NoSpace;
        }
        read.reserved = bytes;
        Done::Ok
    }

    fn change_generations(&mut self, id: NodeId, intent: &Intent, half: bool) {
        let leased: Vec<u64> =
            self.readers.iter().filter(|r| r.leased_until > self.now).map(|r| r.generation).collect();
        let Some(read) = self.nodes.get_mut(&id).and_then(|n| n.read.as_mut()) else { return };
        let before = read.file.clone();
        let head = read.head.clone();
        read.apply(intent, half);
        if self.mutant == Some(Mutant::NoRollBack) && matches!(intent, Intent::RollBack { .. }) {
            read.head = head;
        }
        let after = read.file.clone();
        self.check(rules::leases_hold_generations(id, &before, &after, &leased));
        if after.current != before.current {
            let ticket = match intent {
                Intent::SwitchTo { .. } => before.prepared.as_ref().map(|p| p.ticket),
                _ => None,
            };
            self.check(rules::commit_record_alone_decides(id, &after, ticket, &self.oracle.committed));
        }
        if let Intent::Keep { generation, ranges, ticket, .. } = intent {
            self.check_kept(id, *generation, ranges, *ticket);
        }
    }

    fn check_kept(
        &mut self,
        id: NodeId,
        generation: u64,
        ranges: &RangeSet,
        ticket: Option<webbase_node::cycle::message::Ticket>,
    ) {
        let Some(read) = self.nodes.get(&id).and_then(|n| n.read.as_ref()) else { return };
        let content = read.content(generation).restricted(self.map, ranges);
        let oracle = &self.oracle;
        let ticket_of = ticket.or_else(|| oracle.committed.get(&generation).copied());
        let Some(ticket_of) = ticket_of else { return };
        let expected = oracle.expected.get(&ticket_of).unwrap_or(&oracle.empty).restricted(self.map, ranges);
        let removed: Vec<_> = oracle.removed.iter().filter(|(_, c)| *c <= ticket_of.cycle).copied().collect();
        let mut checks = vec![rules::deleted_pages_stay_deleted(self.map, &content, &removed)];
        if ticket.is_some() {
            let base = oracle.generation(generation - 1).restricted(self.map, ranges);
            let inside = |k: &PageKey, v: Version| ranges.contains(self.map.range_of(*k, v));
            let incoming = oracle.incoming.get(&ticket_of).into_iter().flatten();
            let incoming: BTreeMap<PageKey, Version> =
                incoming.filter(|(k, v)| inside(k, **v)).map(|(k, v)| (*k, *v)).collect();
            checks.push(rules::highest_version_wins(id, &content, &base, &incoming));
        }
        checks.push(rules::replicas_agree(id, generation, &content, &expected));
        checks.push(rules::stream_places_are_shared(id, generation, &content, &expected));
        for checked in checks {
            self.check(checked);
        }
    }

    fn check_drop(&mut self, id: NodeId, through: u64) {
        let Some(update) = self.nodes.get(&id).and_then(|n| n.update.as_ref()) else { return };
        let pages = update.epochs.range(..=through).flat_map(|(_, p)| p).map(|(k, v)| (*k, *v));
        let owners = |key: PageKey, version: Version| {
            let owners = self.disk.placement.read.owners(self.map.range_of(key, version)).iter();
            let read = |n: &NodeId| Some((*n, self.nodes.get(n)?.read.as_ref()?));
            owners
                .filter_map(read)
                .map(|(n, r)| (n, r.generations.get(&r.file.current).map_or(&self.oracle.empty, |c| &**c)))
                .collect()
        };
        let checked = rules::epochs_deleted_only_when_confirmed(id, pages, owners, &self.oracle.removed);
        self.check(checked);
    }

    fn pull(&mut self, id: NodeId, pull: &Pull, half: bool) -> Done {
        let (content, pages) = match self.pulled(id, pull, false) {
            Ok(pulled) => pulled,
            Err(source) => return Done::SourceFailed(source),
        };
        let counts = &mut self.counts;
        match pull.mode {
            PullMode::Exact { .. } => counts.copies += 1,
            PullMode::Delta { .. } if self.oracle.committed.contains_key(&pull.target) => {
                counts.made_again += 1
            }
            PullMode::Delta { .. } => {}
        }
        let part = self.rng.range(0, 10);
        let Some(read) = self.nodes.get_mut(&id).and_then(|n| n.read.as_mut()) else { return Done::Ok };
        if half {
            let mut torn = (*read.head).clone();
            let some = content.pages.iter().filter(|(k, _)| k.id.0 % 10 < part);
            torn.pages.extend(some.map(|(k, e)| (*k, *e)));
            torn.tombstones.extend(content.tombstones.iter().filter(|(k, _)| k.id.0 % 10 < part));
            read.head = Rc::new(torn);
            return Done::Cancelled;
        }
        let reserved = read.reserved;
        read.head = Rc::new(content);
        self.check(rules::space_is_reserved_first(id, pages * PAGE_BYTES, reserved));
        Done::Ok
    }

    fn can_give(&self, from: NodeId, to: NodeId) -> bool {
        self.nodes.get(&from).is_some_and(|n| n.machine.is_some()) && self.reachable(from.0, to.0)
    }

    /// What a pull makes, and how many pages it writes; or the source that failed.
    fn pulled(&self, id: NodeId, pull: &Pull, listing: bool) -> Result<(Content, u64), NodeId> {
        let Some(read) = self.nodes.get(&id).and_then(|n| n.read.as_ref()) else { return Err(id) };
        let base = &read.head;
        let content = match &pull.mode {
            PullMode::Delta { sources, changes } => {
                let mut all: BTreeMap<PageKey, (Version, bool)> = BTreeMap::new();
                let mut away = None;
                for source in sources.iter().filter(|s| s.from <= s.through) {
                    let there = self.can_give(source.node, id);
                    if !there && listing {
                        return Err(source.node);
                    }
                    away = away.or((!there).then_some(source.node));
                    let disk =
                        self.nodes.get(&source.node).and_then(|n| n.update.as_ref()).ok_or(source.node)?;
                    if disk.file.first_epoch > source.from || disk.file.open_epoch <= source.through {
                        return Err(source.node);
                    }
                    for (key, version) in disk.epochs.range(source.from..=source.through).flat_map(|(_, p)| p)
                    {
                        let best = all.entry(*key).or_insert((*version, there));
                        let wins = match self.mutant {
                            Some(Mutant::LowestVersionWins) => *version < best.0,
                            _ => *version > best.0,
                        };
                        if wins {
                            *best = (*version, there);
                        } else if *version == best.0 {
                            best.1 |= there;
                        }
                    }
                }
                // Winners come from whichever source has them and is there.
                if let (Some(away), true) = (away, all.values().any(|(_, there)| !there)) {
                    return Err(away);
                }
                let inside = |k: &PageKey, v: Version| pull.ranges.contains(self.map.range_of(*k, v));
                let pages = all.into_iter().filter(|(k, v)| inside(k, v.0)).map(|(k, v)| (k, v.0)).collect();
                let mut changes = changes.clone();
                changes.removals.retain(|r| inside(&r.key, r.bound));
                let mut content = base.restricted(self.map, &pull.ranges);
                content.merge(&pages, &changes, pull.target, self.mutant == Some(Mutant::LowestVersionWins));
                content
            }
            PullMode::Exact { sources } => {
                let mut content = base.restricted(self.map, &pull.ranges.minus(&pull.fetch));
                for range in pull.fetch.iter() {
                    let one: RangeSet = [range].into_iter().collect();
                    let has = |n: NodeId| {
                        let read = self.nodes.get(&n)?.read.as_ref()?;
                        read.file.serves(pull.target, &one).then_some(read)
                    };
                    let from =
                        sources.iter().filter(|s| s.ranges.contains(range) && self.can_give(s.node, id));
                    let source = from.filter_map(|s| has(s.node)).next();
                    let source = source.ok_or(sources.first().map_or(id, |s| s.node))?;
                    let part = source.content(pull.target).restricted(self.map, &one);
                    content.pages.extend(part.pages.iter().map(|(k, e)| {
                        let copied = self.mutant == Some(Mutant::ArrivalOfTheCopy);
                        (
                            *k,
                            crate::store::Entry {
                                arrival: if copied { pull.target } else { e.arrival },
                                ..*e
                            },
                        )
                    }));
                    if self.mutant != Some(Mutant::NoTombstonesInCopies) {
                        content.tombstones.extend(part.tombstones);
                    }
                }
                content
            }
        };
        let new = content.pages.iter().filter(|(k, e)| base.pages.get(k) != Some(e)).count();
        Ok((content, new as u64))
    }
}
