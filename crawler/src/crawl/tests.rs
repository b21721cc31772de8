//! What visits come to: errors, what sites say of their pages, and what of it survives a restart.

use std::path::Path;

use url::Url;

use super::CrawlState;
use super::agenda::Came;
use super::reading;
use super::scope::{Scope, Within};
use super::spool::{Facts, Spooled};
use crate::fetcher::Priority;
use crate::frontier::{Became, Found, Row, State, UrlId};
use crate::scheduler::{Kind, Settings};

const DAY_MS: u64 = 86_400_000;
const BEGAN: u64 = 1_700_000_000_000;

fn url(number: u32) -> Url {
    Url::parse(&format!("http://a.example/{number}")).unwrap()
}

fn open(dir: &Path) -> CrawlState {
    let mut state = CrawlState::open(dir, Some(Settings::default())).unwrap();
    state.begin().unwrap();
    state
}

fn found(state: &mut CrawlState, number: u32) -> (UrlId, Row) {
    state.commit(&[], vec![Found::page(&url(number), 0, Priority::Discovery)]).unwrap();
    state.settle(true).unwrap();
    state.frontier.find(url(number).as_str()).unwrap().unwrap()
}

/// A page comes, and what is known of it is written down.
fn comes(state: &mut CrawlState, id: UrlId, came: Came, at_ms: u64) {
    let (_, mut row) = state.frontier.some_rows([id]).unwrap().remove(0);
    state.agenda.visited(id, &row.url, came, at_ms).unwrap();
    match came {
        Came::Answer { .. } | Came::Unchanged => {
            (row.state, row.read_at_ms) = (State::Read, at_ms);
        }
        _ => row.state = State::Failed,
    }
    state.commit(&[Became { id, row }], Vec::new()).unwrap();
}

fn answer(signature: u64) -> Came {
    dated(signature, None)
}

fn dated(signature: u64, told_at_ms: Option<u64>) -> Came {
    Came::Answer { signature, modified_at_ms: None, told_at_ms, kind: Kind::Html, status: 200 }
}

fn spooled(status: u16, etag: Option<&str>, at_ms: u64) -> Spooled {
    let facts = Facts {
        id: 0,
        url: url(1).to_string(),
        fetched_at_ms: at_ms,
        modified_at_ms: None,
        etag: etag.map(str::to_owned),
        status,
        mime: "text/html".to_owned(),
        coding: String::new(),
        location: None,
    };
    Spooled { facts, head: Vec::new(), body: format!("status {status}").into_bytes() }
}

#[test]
fn an_error_is_no_change_and_what_was_known_of_the_page_stays() {
    let dir = tempfile::tempdir().unwrap();
    let mut state = open(dir.path());
    let (id, row) = found(&mut state, 1);
    let scope = Scope::new(Within::Anywhere);
    // What the answers come to.
    let page = reading::read(&spooled(200, Some("\"1\""), BEGAN), row, &scope, &state.frontier);
    assert!(matches!(page.came, Came::Answer { status: 200, .. }));
    let error = reading::read(&spooled(503, None, BEGAN + 1), page.row.clone(), &scope, &state.frontier);
    assert!(matches!(error.came, Came::Error { status: 503 }), "{:?}", error.came);
    assert_eq!((error.row.read_at_ms, error.row.etag.as_deref()), (BEGAN, Some("\"1\"")));
    let gone = reading::read(&spooled(404, None, BEGAN + 1), page.row, &scope, &state.frontier);
    assert!(matches!(gone.came, Came::Gone { status: 404 }));
    // What the refresh table makes of them: the page never changed.
    comes(&mut state, id, answer(7), BEGAN);
    comes(&mut state, id, error.came, BEGAN + DAY_MS);
    let view = state.why(url(1).as_str()).unwrap().unwrap();
    assert_eq!((view.kind, view.status, view.changes), ("error", Some(503), 0));
    assert_eq!(view.last_read_ms, Some(BEGAN), "an error is no read");
    state.agenda.sync().unwrap();
    drop(state);
    let mut state = open(dir.path());
    assert_eq!(state.why(url(1).as_str()).unwrap().unwrap().kind, "error", "also after a restart");
    comes(&mut state, id, answer(7), BEGAN + 2 * DAY_MS);
    let view = state.why(url(1).as_str()).unwrap().unwrap();
    assert_eq!((view.kind, view.status), ("html", Some(200)));
    assert_eq!((view.changes, view.unchanged), (0, 1), "two days without a change");
    // Confirmed after an error, it is what it was.
    comes(&mut state, id, error.came, BEGAN + 3 * DAY_MS);
    comes(&mut state, id, Came::Unchanged, BEGAN + 4 * DAY_MS);
    let view = state.why(url(1).as_str()).unwrap().unwrap();
    assert_eq!((view.kind, view.changes, view.unchanged), ("html", 0, 2));
}

#[test]
fn what_a_site_says_changed_outlasts_failures_and_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut state = open(dir.path());
    let (id, _) = found(&mut state, 1);
    comes(&mut state, id, answer(7), BEGAN);
    let says = |state: &CrawlState| state.why(url(1).as_str()).unwrap().unwrap().reason;
    assert_ne!(says(&state), "its site says that it changed");
    let told = |at_ms| {
        let page = Found::page(&url(1), 0, Priority::Discovery);
        vec![Found { changed_at_ms: Some(at_ms), ..page }]
    };
    state.commit(&[], told(BEGAN + DAY_MS)).unwrap();
    state.settle(true).unwrap();
    assert_eq!(says(&state), "its site says that it changed");
    comes(&mut state, id, Came::Failed, BEGAN + 2 * DAY_MS);
    comes(&mut state, id, Came::Error { status: 500 }, BEGAN + 3 * DAY_MS);
    assert_eq!(says(&state), "its site says that it changed", "it was not had");
    state.agenda.sync().unwrap();
    drop(state);
    let mut state = open(dir.path());
    assert_eq!(says(&state), "its site says that it changed", "after a restart");
    for day in 4..7 {
        comes(&mut state, id, Came::Failed, BEGAN + day * DAY_MS);
    }
    assert_ne!(says(&state), "its site says that it changed", "it is not tried for ever");
    state.commit(&[], told(BEGAN + 5 * DAY_MS)).unwrap();
    state.settle(true).unwrap();
    comes(&mut state, id, answer(8), BEGAN + 8 * DAY_MS);
    assert_ne!(says(&state), "its site says that it changed", "it was read");
    state.agenda.sync().unwrap();
    drop(state);
    assert_ne!(says(&open(dir.path())), "its site says that it changed");
}

#[test]
fn dates_of_a_sites_list_date_changes_unless_the_site_lies() {
    let dir = tempfile::tempdir().unwrap();
    let mut state = open(dir.path());
    let rate_of = |state: &mut CrawlState, number: u32, told_at_ms: Option<u64>| {
        let (id, _) = found(state, number);
        comes(state, id, answer(1), BEGAN);
        // It changed once in 40 days, on the first of them.
        comes(state, id, dated(2, told_at_ms), BEGAN + 40 * DAY_MS);
        state.why(url(number).as_str()).unwrap().unwrap().change_rate
    };
    let undated = rate_of(&mut state, 1, None);
    let told = rate_of(&mut state, 2, Some(BEGAN + DAY_MS));
    assert!(told < undated, "{told} and {undated} changes a day");
    let early = rate_of(&mut state, 3, Some(BEGAN - DAY_MS));
    assert_eq!(early, undated, "a date before the last read dates no change");
    // Pages that did not change though the site said so: nobody believes its dates.
    for number in 10..14 {
        let (id, _) = found(&mut state, number);
        comes(&mut state, id, answer(1), BEGAN);
        let page = Found::page(&url(number), 0, Priority::Discovery);
        state.commit(&[], vec![Found { changed_at_ms: Some(BEGAN + DAY_MS), ..page }]).unwrap();
        state.settle(true).unwrap();
        comes(&mut state, id, answer(1), BEGAN + 2 * DAY_MS);
    }
    assert_eq!(rate_of(&mut state, 4, Some(BEGAN + DAY_MS)), undated);
    // Nor when the crawl goes on another day.
    state.agenda.save().unwrap();
    drop(state);
    let mut state = open(dir.path());
    assert_eq!(rate_of(&mut state, 5, Some(BEGAN + DAY_MS)), undated);
}

#[test]
fn pages_weigh_what_the_estimator_says_and_else_what_links_deal() {
    let dir = tempfile::tempdir().unwrap();
    let mut state = open(dir.path());
    let mut ids = Vec::new();
    for number in 1..=5 {
        ids.push(found(&mut state, number).0);
    }
    let xml =
        Came::Answer { signature: 1, modified_at_ms: None, told_at_ms: None, kind: Kind::Xml, status: 200 };
    for (number, id) in ids.iter().enumerate() {
        comes(&mut state, *id, if number < 2 { xml } else { answer(1) }, BEGAN);
    }
    let weight = |state: &CrawlState, number| state.why(url(number).as_str()).unwrap().unwrap().weight;
    for number in 1..=5 {
        assert!((weight(&state, number) - 1.0).abs() < 1e-6, "all alike before");
    }
    // 1 and 2 are XML: importance. 3 and 4 are not: usefulness. Nothing is known of 5.
    let ranks = [Some((0.1, 9.0)), Some((0.3, 9.0)), Some((9.0, 0.2)), Some((9.0, 0.6)), None];
    state.agenda.rank(7, &ranks).unwrap();
    let expected = [0.5, 1.5, 0.5, 1.5, 1.0];
    let weighed = |state: &CrawlState| {
        for (number, expected) in (1..=5).zip(expected) {
            let weight = weight(state, number);
            assert!((weight - expected).abs() < 1e-6, "{number} weighs {weight}");
        }
    };
    weighed(&state);
    // What links deal does not count for a page that is ranked.
    state.agenda.deal(&[(ids[0], 5.0)]);
    weighed(&state);
    state.agenda.sync().unwrap();
    drop(state);
    let state = open(dir.path());
    assert_eq!(state.agenda.ranked_at_ms(), Some(7));
    weighed(&state);
}
