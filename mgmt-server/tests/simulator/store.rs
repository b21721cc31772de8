//! Disks of nodes, modelled: an update node has a map per epoch, a read node a map per kept generation.
//!
//! What an intent does to a disk, whole or cut in half by a kill, is here.

use std::collections::BTreeMap;
use std::rc::Rc;

use webbase_node::cycle::message::{Changes, Ticket};
use webbase_node::cycle::{Intent, Prepared, RangeMap, RangeSet, ReadDurable, UpdateDurable};
use webbase_storage::{PageKey, Version};

pub const PAGE_BYTES: u64 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub version: Version,
    /// The generation the page arrived with; with the key it is the page's place in a stream.
    pub arrival: u64,
    pub deadline_ms: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub pages: BTreeMap<PageKey, Entry>,
    pub tombstones: BTreeMap<PageKey, (Version, u64)>,
}

impl Content {
    pub fn restricted(&self, map: RangeMap, ranges: &RangeSet) -> Content {
        let inside = |key: &PageKey, version| ranges.contains(map.range_of(*key, version));
        let dead = self.tombstones.iter().filter(|(k, (bound, _))| inside(k, *bound));
        Content {
            pages: self.pages.iter().filter(|(k, e)| inside(k, e.version)).map(|(k, e)| (*k, *e)).collect(),
            tombstones: dead.map(|(k, t)| (*k, *t)).collect(),
        }
    }

    /// Whether this version, or a newer one, or a removal of it is in here.
    pub fn covers(&self, key: PageKey, version: Version) -> bool {
        self.pages.get(&key).is_some_and(|e| e.version >= version)
            || self.tombstones.get(&key).is_some_and(|(bound, _)| *bound >= version)
    }

    /// Merges pages of sealed epochs and a cycle's changes, as a read node does.
    pub fn merge(
        &mut self,
        pages: &BTreeMap<PageKey, Version>,
        changes: &Changes,
        target: u64,
        lowest_wins: bool,
    ) {
        self.tombstones.retain(|_, (_, cycle)| *cycle > changes.forget_through);
        for removal in &changes.removals {
            let tombstone = self.tombstones.entry(removal.key).or_insert((removal.bound, changes.cycle));
            *tombstone = (tombstone.0.max(removal.bound), changes.cycle);
        }
        for (key, version) in pages {
            let newer = self.pages.get(key).is_none_or(|e| (e.version < *version) != lowest_wins);
            let dead = self.tombstones.get(key).is_some_and(|(bound, _)| bound >= version);
            if newer && !dead {
                self.pages.insert(*key, Entry { version: *version, arrival: target, deadline_ms: 0 });
            }
        }
        let tombstones = &self.tombstones;
        self.pages.retain(|k, e| tombstones.get(k).is_none_or(|(bound, _)| *bound < e.version));
        for seen in &changes.seen {
            if let Some(entry) = self.pages.get_mut(&seen.key) {
                entry.deadline_ms = seen.at_ms + u64::from(seen.lifetime_s) * 1000;
            }
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct UpdateDisk {
    pub file: UpdateDurable,
    pub epochs: BTreeMap<u64, BTreeMap<PageKey, Version>>,
}

impl UpdateDisk {
    pub fn apply(&mut self, intent: &Intent, half: bool) {
        match intent {
            Intent::Seal { cycle } => {
                self.file.open_epoch += u64::from(!self.file.closed);
                if !half {
                    self.file.sealed_cycle = *cycle;
                }
            }
            Intent::Close => {
                self.file.open_epoch += 1;
                self.file.closed |= !half;
            }
            Intent::DropEpochs { through } => {
                let last = if half { self.file.first_epoch } else { *through };
                self.epochs.retain(|e, _| *e > last);
                self.file.first_epoch = last + 1;
            }
            _ => {}
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct ReadDisk {
    pub file: ReadDurable,
    pub generations: BTreeMap<u64, Rc<Content>>,
    pub head: Rc<Content>,
    pub reserved: u64,
}

impl ReadDisk {
    /// What a node does when it opens its store: generations its file doesn't know are dropped.
    pub fn open(&mut self) {
        let file = &self.file;
        let prepared = file.prepared.as_ref().map(|p| p.generation);
        self.generations.retain(|g, _| file.kept.contains_key(g) || prepared == Some(*g));
        self.reserved = 0;
    }

    pub fn used(&self) -> u64 {
        let mut all: Vec<(PageKey, Version)> = self
            .generations
            .values()
            .chain([&self.head])
            .flat_map(|c| c.pages.iter().map(|(k, e)| (*k, e.version)))
            .collect();
        all.sort_unstable();
        all.dedup();
        all.len() as u64 * PAGE_BYTES
    }

    pub fn content(&self, generation: u64) -> Rc<Content> {
        self.generations.get(&generation).cloned().unwrap_or_default()
    }

    fn note(&mut self, generation: u64, ranges: &RangeSet, ticket: Option<Ticket>, kept: &[u64]) {
        match ticket {
            Some(ticket) => {
                self.file.prepared = Some(Prepared { ticket, generation, ranges: ranges.clone() })
            }
            None => {
                self.file.kept.retain(|g, _| kept.contains(g));
                self.file.kept.insert(generation, ranges.clone());
                self.file.current = generation;
                self.file.prepared = None;
            }
        }
    }

    pub fn apply(&mut self, intent: &Intent, half: bool) {
        match intent {
            Intent::RollBack { to } => {
                let prepared = self.file.prepared.take();
                if !half {
                    if let Some(p) = prepared {
                        self.generations.remove(&p.generation);
                    }
                    self.head = self.content(*to);
                    self.reserved = 0;
                }
            }
            Intent::Keep { generation, ranges, ticket, kept } => {
                self.generations.insert(*generation, self.head.clone());
                if !half {
                    self.note(*generation, ranges, *ticket, kept);
                    self.open();
                }
            }
            Intent::SwitchTo { generation, kept } => {
                if let Some(prepared) = self.file.prepared.take() {
                    self.file.kept.retain(|g, _| kept.contains(g));
                    self.file.kept.insert(*generation, prepared.ranges);
                    self.file.current = *generation;
                    if !half {
                        self.open();
                    }
                }
            }
            Intent::Release { generations } => {
                self.file.kept.retain(|g, _| !generations.contains(g));
                if !half {
                    self.generations.retain(|g, _| !generations.contains(g));
                }
            }
            _ => {}
        }
    }
}
