//! In which order sites are served: how many URLs of each host wait, which are out, whose turn it is. In memory.

use std::collections::{HashMap, HashSet, VecDeque};

use super::UrlId;

#[derive(Default)]
pub(super) struct Turns {
    hosts: HashMap<String, Host>,
    /// Hosts with URLs that wait and are not handed out, in turn.
    turn: VecDeque<String>,
}

#[derive(Debug, Default)]
struct Host {
    waiting: u64,
    out: HashSet<UrlId>,
    is_in_turn: bool,
}

/// What a transaction changed.
pub(super) struct Moved {
    pub(super) waiting: Vec<(String, i64)>,
    pub(super) done: Vec<(String, UrlId)>,
}

impl Turns {
    /// More or fewer URLs of a host wait.
    pub(super) fn count(&mut self, name: &str, change: i64) {
        if !self.hosts.contains_key(name) {
            self.hosts.insert(name.to_owned(), Host::default());
        }
        let Some(host) = self.hosts.get_mut(name) else { return };
        host.waiting = host.waiting.saturating_add_signed(change);
        if change > 0 && !host.is_in_turn {
            host.is_in_turn = true;
            self.turn.push_back(name.to_owned());
        }
    }

    pub(super) fn take(&mut self, moved: Moved) {
        for (host, id) in moved.done {
            if let Some(host) = self.hosts.get_mut(&host) {
                host.out.remove(&id);
            }
        }
        for (name, change) in moved.waiting {
            self.count(&name, change);
            if change < 0
                && self
                    .hosts
                    .get(&name)
                    .is_some_and(|host| host.waiting == 0 && host.out.is_empty() && !host.is_in_turn)
            {
                self.hosts.remove(&name);
            }
        }
    }

    /// How many URLs wait, and of how many hosts.
    pub(super) fn waiting(&self) -> (u64, usize) {
        let waiting = self.hosts.values().map(|host| host.waiting).sum();
        (waiting, self.hosts.values().filter(|host| host.waiting > 0).count())
    }

    pub(super) fn out(&self) -> usize {
        self.hosts.values().map(|host| host.out.len()).sum()
    }

    /// Whether nothing could be handed out.
    pub(super) fn is_idle(&self) -> bool {
        self.turn.is_empty()
    }

    /// Gives hosts their turns. `give` hands out a host's next URLs, as many as there is room for, and says how many those were.
    pub(super) fn hand_out<E>(
        &mut self,
        most: usize,
        each: usize,
        mut give: impl FnMut(&str, usize, &mut HashSet<UrlId>) -> Result<usize, E>,
    ) -> Result<(), E> {
        let mut handed = 0;
        for _ in 0..self.turn.len() {
            if handed >= most {
                break;
            }
            let Some(name) = self.turn.pop_front() else { break };
            let Some(host) = self.hosts.get_mut(&name) else { continue };
            let room = each.saturating_sub(host.out.len()).min(most - handed);
            if room > 0 {
                handed += give(&name, room, &mut host.out)?;
            }
            host.is_in_turn = host.waiting > host.out.len() as u64;
            if host.is_in_turn {
                self.turn.push_back(name);
            } else if host.waiting == 0 && host.out.is_empty() {
                self.hosts.remove(&name);
            }
        }
        Ok(())
    }

    pub(super) fn take_back(&mut self, host: &str, id: UrlId) {
        if let Some(at) = self.hosts.get_mut(host) {
            at.out.remove(&id);
            if !at.is_in_turn {
                at.is_in_turn = true;
                self.turn.push_back(host.to_owned());
            }
        }
    }
}
