//! Proves how long pages stay: deadlines follow from fetch time and lifetime, the due list is in order and bounded,
//! being seen gives new life, and only pages still due are removed; all of it through reopening, compaction and
//! superseding. Each test runs on every organization, on a simulated disk, with times made up.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

mod common;

use std::sync::Arc;

use common::{OwnedPage, created, open_sim, organizations, small_options, strong, url};
use webbase_storage::disk::SimDisk;
use webbase_storage::{Due, PageKey, PageStore, SHORT_LIFE_S, Seen, deadline_ms};

/// Ten pages: page `n` fetched at `n` seconds with a lifetime of `100 - 10 * n` seconds; page 0 stays for ever.
fn pages() -> Vec<OwnedPage> {
    let page = |n: u64| {
        let lifetime_s = if n == 0 { 0 } else { 100 - 10 * n as u32 };
        OwnedPage { lifetime_s, ..OwnedPage::new(n, n * 1000, vec![b'x'; 1000]) }
    };
    (0..10).map(page).collect()
}

fn key(n: u64) -> PageKey {
    strong().page_key(&url(n)).unwrap()
}

fn due(n: u64, deadline_s: u64) -> Due {
    Due { deadline_ms: deadline_s * 1000, key: key(n) }
}

fn seen(n: u64, at_s: u64, lifetime_s: u32) -> Seen {
    Seen { key: key(n), at_ms: at_s * 1000, lifetime_s }
}

fn add(store: &dyn PageStore, pages: &[OwnedPage]) {
    let list: Vec<_> = pages.iter().map(OwnedPage::page).collect();
    store.add(&list).unwrap();
    store.commit().unwrap();
}

/// Runs a test on a store of each organization with the ten pages in it; `again` closes or drops the store, compacts
/// it and opens it again.
fn on_every_store(test: impl Fn(Again)) {
    for organization in organizations() {
        for way in 0..4 {
            let disk = created(organization, strong(), &small_options());
            let store = open_sim(&disk, &small_options()).unwrap();
            add(&*store, &pages());
            test(Again { disk, store, way });
        }
    }
}

struct Again {
    disk: SimDisk,
    store: Arc<dyn PageStore>,
    way: u32,
}

impl Again {
    fn again(self) -> Again {
        let Again { disk, store, way } = self;
        if way & 1 == 1 {
            while !store.compact(1 << 30).unwrap().done {}
        }
        if way & 2 == 2 {
            store.close().unwrap();
        }
        drop(store);
        let store = open_sim(&disk, &small_options()).unwrap();
        Again { disk, store, way }
    }

    fn due(&self, now_s: u64) -> Vec<Due> {
        self.store.due(now_s * 1000, usize::MAX).unwrap()
    }
}

#[test]
fn pages_are_due_when_their_lifetime_is_over_the_longest_overdue_first() {
    on_every_store(|test| {
        let all: Vec<Due> = (1..10).rev().map(|n| due(n, n + 100 - 10 * n)).collect();
        for test in [test.again()] {
            assert_eq!(test.due(18), []);
            assert_eq!(test.due(19), all[..1]);
            assert_eq!(test.store.due(18_999, 9).unwrap(), []);
            assert_eq!(test.due(46), all[..4]);
            assert_eq!(test.due(1_000_000), all); // page 0 is never due
            for limit in 0..12 {
                assert_eq!(test.store.due(u64::MAX, limit).unwrap(), all[..limit.min(9)]);
            }
        }
    });
}

#[test]
fn a_deadline_is_fetch_time_plus_lifetime_and_none_without_one() {
    assert_eq!(deadline_ms(5000, 7), Some(12_000));
    assert_eq!(deadline_ms(5000, 0), None);
    assert_eq!(deadline_ms(u64::MAX - 1, 1), Some(u64::MAX));
}

/// Pages of a kept generation that were seen again, a few at a time, with their deadlines.
fn renewed(store: &dyn PageStore, generation: u64, limit: usize) -> Vec<(PageKey, u64)> {
    let (mut all, mut from) = (Vec::new(), Some(0));
    while let Some(place) = from {
        let (some, next) = store.renewed(generation, place, limit).unwrap();
        all.extend(some.iter().map(|page| (page.key, page.deadline_ms)));
        from = next;
    }
    all.sort_unstable();
    all
}

#[test]
fn a_kept_generation_tells_what_was_seen_again_in_it() {
    on_every_store(|test| {
        test.store.keep_generation(1).unwrap();
        test.store.seen(&[seen(9, 50, 30), seen(8, 50, 0), seen(7, 50, 1)]).unwrap();
        test.store.commit().unwrap();
        test.store.keep_generation(2).unwrap();
        test.store.seen(&[seen(9, 90, 30), seen(6, 90, 30)]).unwrap();
        test.store.delete(&[key(7)]).unwrap();
        test.store.commit().unwrap();
        let test = test.again();
        let mut expected = vec![(key(9), 80_000), (key(8), u64::MAX), (key(7), 51_000)];
        expected.sort_unstable();
        for limit in [1, 2, 100] {
            assert_eq!(renewed(&*test.store, 1, limit), []);
            assert_eq!(renewed(&*test.store, 2, limit), expected);
        }
        assert!(test.store.renewed(3, 0, 1).is_err(), "it is not kept");
        // Said of the same pages elsewhere it makes the same deadlines.
        let said: Vec<Seen> = expected.iter().map(|(key, ms)| Seen::until(*key, *ms)).collect();
        for (seen, (_, ms)) in said.iter().zip(&expected) {
            assert_eq!(deadline_ms(seen.at_ms, seen.lifetime_s).unwrap_or(u64::MAX), *ms);
        }
    });
}

#[test]
fn being_seen_gives_new_life_once_committed() {
    on_every_store(|test| {
        assert_eq!(test.store.seen(&[seen(9, 50, 30), seen(8, 50, 0), seen(77, 50, 1)]).unwrap(), 2);
        assert_eq!(test.due(30), [due(9, 19), due(8, 28)], "not committed yet");
        test.store.commit().unwrap();
        let test = test.again();
        assert_eq!(test.due(79), [due(7, 37), due(6, 46), due(5, 55), due(4, 64), due(3, 73)]);
        assert_eq!(test.due(80).last(), Some(&due(9, 80)));
        assert!(test.due(1_000_000).iter().all(|d| d.key != key(8)), "seen with lifetime 0: for ever");
        test.store.seen(&[seen(8, 60, 1), seen(9, 60, 5)]).unwrap();
        test.store.commit().unwrap();
        assert_eq!(
            test.again().due(65),
            [due(7, 37), due(6, 46), due(5, 55), due(8, 61), due(4, 64), due(9, 65)]
        );
    });
}

#[test]
fn a_page_that_could_not_be_verified_gets_a_short_life() {
    on_every_store(|test| {
        test.store.seen(&[seen(9, 50, SHORT_LIFE_S)]).unwrap();
        test.store.commit().unwrap();
        let test = test.again();
        let end = 50 + u64::from(SHORT_LIFE_S);
        assert!(test.due(end - 1).iter().all(|d| d.key != key(9)));
        assert_eq!(test.due(end).last(), Some(&due(9, end)));
    });
}

#[test]
fn a_new_version_has_a_deadline_of_its_own() {
    on_every_store(|test| {
        test.store.seen(&[seen(9, 50, 1000), seen(8, 50, 1000)]).unwrap();
        test.store.commit().unwrap();
        let newer = |n, lifetime_s| OwnedPage { lifetime_s, ..OwnedPage::new(n, 20_000, "newer") };
        add(&*test.store, &[newer(9, 3), newer(7, 0)]);
        let stale = OwnedPage { lifetime_s: 1, ..OwnedPage::new(8, 1000, "older") };
        add(&*test.store, &[stale]);
        let test = test.again();
        assert_eq!(test.due(40), [due(9, 23)]);
        assert!(test.due(1_000_000).iter().all(|d| d.key != key(7)));
        assert_eq!(test.due(1_000_000).last(), Some(&due(8, 1050)), "what is stale changes nothing");
    });
}

#[test]
fn only_pages_still_due_are_removed() {
    on_every_store(|test| {
        let list = test.due(60);
        assert_eq!(list, [due(9, 19), due(8, 28), due(7, 37), due(6, 46), due(5, 55)]);
        // The crawler saw page 9, fetched page 8 anew, could not verify page 7, and page 6 is gone already.
        test.store.seen(&[seen(9, 60, 100), seen(7, 60, SHORT_LIFE_S)]).unwrap();
        test.store.delete(&[key(6)]).unwrap();
        add(&*test.store, &[OwnedPage { lifetime_s: 100, ..OwnedPage::new(8, 60_000, "new") }]);
        let test = test.again();
        assert_eq!(test.store.remove_unseen(&list, 60_000).unwrap(), 1);
        assert!(test.store.lookup_url(&url(5)).unwrap().is_some(), "not committed yet");
        test.store.commit().unwrap();
        let test = test.again();
        let there: Vec<u64> =
            (0..10).filter(|&n| test.store.lookup_url(&url(n)).unwrap().is_some()).collect();
        assert_eq!(there, [0, 1, 2, 3, 4, 7, 8, 9]);
        assert_eq!(test.store.remove_unseen(&list, 60_000).unwrap(), 0);
    });
}

#[test]
fn a_deleted_page_is_not_due_and_a_page_added_again_starts_anew() {
    on_every_store(|test| {
        test.store.seen(&[seen(9, 500, 1000)]).unwrap();
        test.store.delete(&[key(9), key(8)]).unwrap();
        test.store.commit().unwrap();
        let test = test.again();
        assert!(test.due(1_000_000).iter().all(|d| d.key != key(9) && d.key != key(8)));
        assert_eq!(test.store.seen(&[seen(9, 600, 1)]).unwrap(), 0, "nothing there to be seen");
        add(&*test.store, &[OwnedPage { lifetime_s: 2, ..OwnedPage::new(9, 1000, "back") }]);
        assert_eq!(test.again().due(3), [due(9, 3)]);
    });
}
