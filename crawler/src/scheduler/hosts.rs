//! Which host a page is on, and how many reads a host has room for in a cycle: no more than its delay allows.

/// A page without a host.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, Default)]
struct Host {
    /// Seconds between two reads; 0: as the others.
    delay_s: f32,
    /// Reads planned in this cycle.
    cycle: u32,
    planned: u32,
}

/// Hosts by number. Four bytes a page beside its hot state, and none where no host has a limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Hosts {
    of: Vec<u32>,
    hosts: Vec<Host>,
    /// Seconds between two reads of a host of which nothing else is known; 0: no limit.
    delay_s: f32,
}

impl Hosts {
    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// A page is on a host.
    pub(super) fn set(&mut self, page: u32, host: u32) {
        let at = page as usize;
        if self.of.len() <= at {
            self.of.resize(at + 1, NONE);
        }
        if let Some(of) = self.of.get_mut(at) {
            *of = host;
        }
        self.host(host);
    }

    fn host(&mut self, host: u32) -> Option<&mut Host> {
        if host == NONE {
            return None;
        }
        if self.hosts.len() <= host as usize {
            self.hosts.resize(host as usize + 1, Host::default());
        }
        self.hosts.get_mut(host as usize)
    }

    /// How long hosts are left alone between two reads; `None` for all of which nothing else is said.
    pub(super) fn pace(&mut self, host: Option<u32>, delay_s: f64) {
        let delay_s = delay_s.max(0.0) as f32;
        match host {
            None => self.delay_s = delay_s,
            Some(host) => {
                if let Some(host) = self.host(host) {
                    host.delay_s = delay_s;
                }
            }
        }
    }

    /// Pages were issued in a cycle; those of no cycle were not planned.
    pub(super) fn issued(&mut self, pages: impl Iterator<Item = u32>, cycle: u32) {
        if cycle == 0 {
            return;
        }
        for page in pages {
            let Some(of) = self.of.get(page as usize).copied() else { continue };
            if let Some(host) = self.host(of) {
                host.planned = if host.cycle == cycle { host.planned.saturating_add(1) } else { 1 };
                host.cycle = cycle;
            }
        }
    }

    /// What hosts have room for in what is left of a cycle.
    pub(super) fn rooms(&self, cycle: u32, cycle_s: u32) -> Rooms<'_> {
        Rooms { hosts: self, cycle, cycle_s, taken: vec![0; self.hosts.len()] }
    }
}

/// What hosts have room for, while a plan is made.
pub(super) struct Rooms<'a> {
    hosts: &'a Hosts,
    cycle: u32,
    cycle_s: u32,
    /// By host.
    taken: Vec<u32>,
}

impl Rooms<'_> {
    fn host_of(&self, page: u32) -> Option<u32> {
        self.hosts.of.get(page as usize).copied().filter(|host| *host != NONE)
    }

    /// Whether a page's host may be read from once more.
    pub(super) fn has_room(&self, page: u32) -> bool {
        let Some(number) = self.host_of(page) else { return true };
        let host = self.hosts.hosts.get(number as usize).copied().unwrap_or_default();
        let delay_s = if host.delay_s > 0.0 { host.delay_s } else { self.hosts.delay_s };
        if delay_s <= 0.0 {
            return true;
        }
        let planned = if host.cycle == self.cycle { host.planned } else { 0 };
        let taken = self.taken.get(number as usize).copied().unwrap_or(0);
        // A host whose delay is longer than a cycle is still read from.
        let most = (self.cycle_s as f32 / delay_s).max(1.0);
        ((planned.saturating_add(taken)) as f32) < most.floor()
    }

    /// Takes a read of a page's host, if there is room.
    pub(super) fn take(&mut self, page: u32) -> bool {
        let has_room = self.has_room(page);
        let host = self.host_of(page);
        if let Some(taken) = host.and_then(|host| self.taken.get_mut(host as usize)) {
            *taken = taken.saturating_add(u32::from(has_room));
        }
        has_room
    }
}
