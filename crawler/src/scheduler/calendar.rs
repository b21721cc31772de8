//! The report's other way to find due pages: folders, one a cycle, each with the pages to refresh in that cycle.
//!
//! A page is put into the folder of the cycle in which it is due at the price of that moment. A cycle then looks only at its
//! own folder rather than at all pages; the cost is 4 bytes a page more, and that prices have moved on when the folder is
//! opened. So urgency is computed anew for the pages of the folder, what does not fit stays for the next cycle, and a page
//! that moved (wanted, republished) is simply put into another folder too: a plan takes no page that is not due.

use std::collections::BTreeMap;

use super::plan::Plan;
use super::running::Scheduler;

/// Cycles ahead of which nothing is planned: folders beyond it are opened, looked at, and put off again.
const CYCLES_AHEAD_MAX: u32 = 4096;

/// Pages by the cycle in which they are due.
#[derive(Clone, Debug, Default)]
pub struct Calendar {
    folders: BTreeMap<u32, Vec<u32>>,
}

impl Calendar {
    /// Puts a page into the folder of its cycle.
    pub fn place(&mut self, scheduler: &Scheduler, page: u32, now_s: u32) {
        let cycle_s = scheduler.settings().cycle_s;
        let now = now_s / cycle_s;
        let due = scheduler.explain(page).and_then(|found| found.due_s);
        self.put(page, due, now, cycle_s);
    }

    /// Puts all pages into their folders: one scan, after which the folders do.
    pub fn fill(&mut self, scheduler: &Scheduler, now_s: u32) {
        let cycle_s = scheduler.settings().cycle_s;
        let due = scheduler.due_times();
        for page in 0..scheduler.len() as u32 {
            self.put(page, due.of(page), now_s / cycle_s, cycle_s);
        }
    }

    /// What to read in the cycle that begins now, from its folder and those before it. Pages that were not taken stay for the
    /// next cycle; if the folder has fewer than the bandwidth allows, the next ones are opened.
    pub fn plan(&mut self, scheduler: &Scheduler, now_s: u32) -> Plan {
        let cycle_s = scheduler.settings().cycle_s;
        let now = now_s / cycle_s;
        let reads = (scheduler.settings().bandwidth * scheduler.settings().cycle_days()).ceil() as usize;
        let mut open: Vec<u32> = Vec::new();
        while let Some(folder) = self.folders.first_entry() {
            if *folder.key() > now && open.len() >= reads {
                break;
            }
            open.extend(folder.remove());
        }
        open.sort_unstable();
        open.dedup();
        let plan = scheduler.plan_some(now_s, &open);
        let mut taken: Vec<u32> = plan.pages().collect();
        taken.sort_unstable();
        let due = scheduler.due_times();
        for page in open {
            if taken.binary_search(&page).is_err() {
                self.put(page, due.of(page), now + 1, cycle_s);
            }
        }
        plan
    }

    /// Puts the pages of a plan into their next folders, once they have been read.
    pub fn put_back(&mut self, scheduler: &Scheduler, plan: &Plan, now_s: u32) {
        let cycle_s = scheduler.settings().cycle_s;
        let due = scheduler.due_times();
        for page in plan.pages() {
            self.put(page, due.of(page), now_s / cycle_s, cycle_s);
        }
    }

    /// Pages in folders.
    pub fn len(&self) -> usize {
        self.folders.values().map(Vec::len).sum()
    }

    /// Whether all folders are empty.
    pub fn is_empty(&self) -> bool {
        self.folders.is_empty()
    }

    fn put(&mut self, page: u32, due_s: Option<u64>, now: u32, cycle_s: u32) {
        let due =
            due_s.map_or(now, |due| u32::try_from(due.div_ceil(u64::from(cycle_s))).unwrap_or(u32::MAX));
        let folder = due.clamp(now, now.saturating_add(CYCLES_AHEAD_MAX));
        self.folders.entry(folder).or_default().push(page);
    }
}
