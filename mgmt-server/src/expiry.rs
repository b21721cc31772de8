//! The lists of expiry: pages that the crawler was asked to look at, and pages that it saw again.
//!
//! 1. A page is on either list once, however often it is named: lists are asked for again and again, and lost answers make
//!    clients repeat themselves.
//! 2. A page that was seen again is not due, whoever still calls it so, until the replicas know its new deadline.
//! 3. A page that was seen too late, when a cycle removes it already, is noted all the same: should the cycle be aborted, it
//!    stays. Who saw it is told.

use std::collections::{HashMap, HashSet};

use webbase_node::cycle::message::{Removal, SeenAgain};
use webbase_storage::PageKey;

use crate::state::{DuePage, State};

impl State {
    /// Takes note that the crawler was given these pages to look at.
    pub(crate) fn note_due(&mut self, pages: Vec<Removal>) {
        // Replicas that are not at a commit yet may still call a page due that it renewed.
        let on_its_way = self.commits.iter().filter(|c| !c.confirmed).flat_map(|c| &c.changes.seen);
        let seen: HashSet<PageKey> = self.seen.iter().chain(on_its_way).map(|s| s.key).collect();
        let mut places: HashMap<PageKey, usize> =
            self.due.iter().enumerate().map(|(place, due)| (due.page.key, place)).collect();
        let given_cycle = self.last_cycle;
        for page in pages.into_iter().filter(|page| !seen.contains(&page.key)) {
            let known = places.get(&page.key).and_then(|place| self.due.get_mut(*place));
            match known {
                // The crawler has it for so long already.
                Some(due) if due.page.bound >= page.bound => {}
                Some(due) => *due = DuePage { page, given_cycle },
                None => {
                    places.insert(page.key, self.due.len());
                    self.due.push(DuePage { page, given_cycle });
                }
            }
        }
    }

    /// Takes note that the crawler saw these again; returns those that the running cycle removes.
    pub(crate) fn note_seen(&mut self, seen: Vec<SeenAgain>) -> Vec<PageKey> {
        let removals = self.cycle.as_ref().map_or(&[][..], |c| &c.changes.removals);
        let removed: HashSet<PageKey> = removals.iter().map(|r| r.key).collect();
        let late = seen.iter().map(|s| s.key).filter(|key| removed.contains(key)).collect();
        // What was said last holds.
        let last: HashMap<PageKey, usize> = seen.iter().enumerate().map(|(at, s)| (s.key, at)).collect();
        self.due.retain(|due| !last.contains_key(&due.page.key));
        self.seen.retain(|s| !last.contains_key(&s.key));
        let is_last = |(at, s): &(usize, SeenAgain)| last.get(&s.key) == Some(at);
        self.seen.extend(seen.into_iter().enumerate().filter(is_last).map(|(_, s)| s));
        late
    }

    /// Takes what a cycle has done off the lists.
    pub(crate) fn note_done(&mut self, removals: &[Removal], seen: &[SeenAgain]) {
        let removed: HashMap<PageKey, &Removal> = removals.iter().map(|r| (r.key, r)).collect();
        let gone = |r: &Removal| removed.get(&r.key).is_some_and(|done| *done == r);
        self.removals.retain(|r| !gone(r));
        self.due.retain(|d| !gone(&d.page));
        let renewed: HashMap<PageKey, &SeenAgain> = seen.iter().map(|s| (s.key, s)).collect();
        self.seen.retain(|s| renewed.get(&s.key).is_none_or(|done| *done != s));
    }
}

#[cfg(test)]
mod tests {
    use webbase_node::cycle::RangeMap;
    use webbase_node::cycle::message::Changes;
    use webbase_node::plan::Update;
    use webbase_storage::{PageId, Version};

    use super::*;
    use crate::coordinator::{Action, Answer, Command, Coordinator, Event, Settings};
    use crate::state::{Cycle, CyclePhase};

    fn key(n: u64) -> PageKey {
        PageKey { id: PageId(n), tie: 0 }
    }

    fn page(n: u64) -> Removal {
        Removal { key: key(n), bound: Version { fetched_at_ms: 1, epoch: 1, digest: n as _ } }
    }

    fn again(n: u64) -> SeenAgain {
        SeenAgain { key: key(n), at_ms: 5, lifetime_s: 9 }
    }

    fn server(cycle: Option<Changes>) -> Coordinator {
        let mut state = State::new(RangeMap::new(1), 1, Update::Batch);
        state.last_cycle = 4;
        let placement_version = state.placement.version;
        state.cycle = cycle.map(|changes| {
            let phase = CyclePhase::Sealing;
            Cycle { cycle: 4, base: 0, target: 1, placement_version, changes, phase }
        });
        Coordinator::start(0, state, Settings { changes_max: 4, ..Settings::default() })
    }

    /// What a command is answered, once it is on disk.
    fn say(server: &mut Coordinator, command: Command) -> Answer {
        let mut actions = server.on(10, Event::Request(7, command));
        while let Some(Action::Persist(sequence, _)) =
            actions.iter().find(|a| matches!(a, Action::Persist(..)))
        {
            let sequence = *sequence;
            actions.extend(server.on(10, Event::Persisted(sequence)));
            actions.retain(|a| !matches!(a, Action::Persist(done, _) if *done == sequence));
        }
        let answer = actions.into_iter().find_map(|action| match action {
            Action::Answer(7, answer) => Some(answer),
            _ => None,
        });
        answer.unwrap().unwrap()
    }

    #[test]
    fn a_page_seen_again_is_not_due_however_often_the_list_is_asked_for() {
        let mut server = server(None);
        say(&mut server, Command::Due(vec![page(1), page(2)]));
        say(&mut server, Command::Seen(vec![again(1)]));
        for _ in 0..5 {
            assert_eq!(say(&mut server, Command::Due(vec![page(1), page(2)])), Answer::Done);
        }
        assert_eq!(server.state().due.len(), 1, "each page once");
        assert_eq!(server.changes(5).removals, []);
        assert_eq!(server.changes(6).removals, [page(2)], "nobody saw this one again");
        // The next cycle renews it, the one after removes what is due.
        let mut state = server.state().clone();
        let Changes { removals, seen, .. } = server.changes(5);
        state.note_done(&removals, &seen);
        assert!(state.seen.is_empty() && state.due.iter().all(|due| due.page == page(2)));
    }

    #[test]
    fn a_page_that_a_commit_renews_is_not_due_before_all_replicas_know() {
        let mut state = State::new(RangeMap::new(1), 1, Update::Batch);
        let changes = Changes { seen: vec![again(1)], ..Changes::default() };
        state.commits.push(crate::state::CommitRecord {
            generation: 1,
            base: 0,
            ticket: state.committed_ticket(),
            placement_version: 0,
            sources: Vec::new(),
            changes,
            prepared: Vec::new(),
            confirmed: false,
        });
        state.note_due(vec![page(1)]);
        assert!(state.due.is_empty());
        state.commits.iter_mut().for_each(|c| c.confirmed = true);
        state.note_due(vec![page(1)]);
        assert_eq!(state.due.len(), 1);
    }

    #[test]
    fn pages_seen_too_late_are_named_and_the_others_are_taken() {
        let changes = Changes { cycle: 4, removals: vec![page(1)], ..Changes::default() };
        let mut server = server(Some(changes));
        assert_eq!(say(&mut server, Command::Seen(vec![again(1), again(2)])), Answer::Late(vec![key(1)]));
        assert_eq!(server.state().seen, [again(1), again(2)], "an aborted cycle would not remove it");
    }
}
