//! What is read stays read, what was out comes again, and a pass that was cut off is made again.

use url::Url;

use super::*;

fn found(url: &str) -> Found {
    Found::page(&Url::parse(url).unwrap(), 0, Priority::Discovery)
}

fn read(row: &Row) -> Row {
    Row { state: State::Read, read_at_ms: 1000, ..row.clone() }
}

#[test]
fn what_is_read_stays_read_and_what_was_out_comes_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut frontier = Frontier::open(dir.path()).unwrap();
    let some = vec![found("http://a.example/1"), found("http://a.example/2#x"), found("http://b.example/")];
    assert_eq!(frontier.commit(&[], some).unwrap().new.len(), 3);
    assert!(frontier.commit(&[], vec![found("https://a.example/2")]).unwrap().new.is_empty(), "known");
    let out = frontier.hand_out(10, 1).unwrap();
    assert_eq!(out.len(), 2, "one of each host");
    assert_eq!(frontier.hand_out(10, 1).unwrap().len(), 0);
    let (id, row) = &out[0];
    frontier.commit(&[Became { id: *id, row: read(row) }], Vec::new()).unwrap();
    assert_eq!(frontier.counts(), (3, 2, 2));
    drop(frontier);
    let mut frontier = Frontier::open(dir.path()).unwrap();
    assert_eq!(frontier.counts(), (3, 2, 2));
    let again = frontier.hand_out(10, 10).unwrap();
    assert_eq!(again.len(), 2);
    assert!(again.iter().all(|(other, _)| other != id));
    assert_eq!(frontier.find(&row.url).unwrap().unwrap().1.state, State::Read);
    assert!(frontier.find("http://a.example/3").unwrap().is_none());
}

#[test]
fn urgent_ones_first_and_what_sites_say_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut frontier = Frontier::open(dir.path()).unwrap();
    let urgent = Found { urgency: Priority::User as u8, ..found("http://a.example/2") };
    frontier.commit(&[], vec![found("http://a.example/1"), urgent]).unwrap();
    let out = frontier.hand_out(1, 10).unwrap();
    assert_eq!(out[0].1.url, "http://a.example/2");
    let id = out[0].0;
    frontier.commit(&[Became { id, row: read(&out[0].1) }], Vec::new()).unwrap();
    let said = |at, share| Found { changed_at_ms: Some(at), share, ..found("http://a.example/2") };
    let learned = frontier.commit(&[], vec![said(900, 0.5)]).unwrap();
    let host = "a.example".to_owned();
    assert_eq!(learned.told, [Told { id, host, changed_at_ms: Some(900), read_at_ms: 1000, again: false }]);
    assert_eq!(learned.dealt, [(id, 0.5)]);
    frontier.want(&[(id, Priority::Refresh)]).unwrap();
    frontier.want(&[(id, Priority::Refresh)]).unwrap();
    assert_eq!(frontier.counts().1, 2);
}

#[test]
fn pages_wait_for_the_scheduler_and_what_is_asked_for_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let mut frontier = Frontier::open(dir.path()).unwrap();
    frontier.found_waits = false;
    let asked = Found { urgency: Priority::User as u8, ..found("http://a.example/2") };
    let sitemap = Found { what: What::Sitemap, ..found("http://a.example/sitemap.xml") };
    let learned = frontier.commit(&[], vec![found("http://a.example/1"), asked, sitemap]).unwrap();
    let states: Vec<State> = learned.new.iter().map(|(_, row)| row.state).collect();
    assert_eq!(states, [State::Known, State::Waiting, State::Waiting]);
    assert_eq!(frontier.counts(), (3, 2, 1));
    frontier.want(&[(learned.new[0].0, Priority::Discovery)]).unwrap();
    assert_eq!(frontier.hand_out(9, 9).unwrap().len(), 3);
}

/// The URL table knows more than the frontier when a pass was cut off between the two: its links are settled again.
#[test]
fn a_pass_that_was_cut_off_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut frontier = Frontier::open(dir.path()).unwrap();
    frontier.commit(&[], vec![found("http://a.example/0")]).unwrap();
    let mut changes = Changes::begin(&frontier.database).unwrap();
    let mut tables = changes.tables().unwrap();
    for url in ["http://a.example/1", "http://a.example/0", "http://b.example/2", "http://a.example/1"] {
        let Link::New(canonical, key) = frontier.seen.look(url) else { continue };
        let place = tables.keep(&found(url)).unwrap();
        frontier.seen.wait(place, found(url), canonical, key);
    }
    drop(tables);
    changes.commit().unwrap();
    assert_eq!(frontier.seen.settle().unwrap().len(), 3, "one of them was seen lately");
    drop(frontier);
    let mut frontier = Frontier::open(dir.path()).unwrap();
    assert_eq!((frontier.counts().0, frontier.unsettled()), (1, 3));
    let learned = frontier.commit(&[], Vec::new()).unwrap();
    let urls: Vec<(UrlId, &str)> = learned.new.iter().map(|(id, row)| (*id, row.url.as_str())).collect();
    assert_eq!(urls, [(1, "http://a.example/1"), (2, "http://b.example/2")]);
    assert_eq!((frontier.counts(), frontier.unsettled()), ((3, 3, 2), 0));
    for (id, url) in urls {
        assert_eq!(frontier.find(url).unwrap().unwrap().0, id);
    }
}
