//! The index against a plain map, through merges, reopening, cuts and damage.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::disk::{Crash, Disk, SimDisk};
use crate::{PageKey, RepositoryKey, Result};

const KEY: [u8; 32] = [3; 32];

fn repository() -> RepositoryKey {
    RepositoryKey::new(KEY)
}

/// Page `n`: some have one SURT key, differing in case only.
fn url(n: u32, spelling: u32) -> String {
    let host = ["example.org", "www.example.org", "sub.example.org", "other.net"][(n % 4) as usize];
    let scheme = if spelling.is_multiple_of(2) { "http" } else { "https" };
    let path = if n % 8 < 4 { format!("Page/{}", n / 8) } else { format!("page/{}?q={n}", n / 8) };
    format!("{scheme}://{host}/{path}")
}

fn row(n: u32, at: u64, spelling: u32) -> (PageKey, UrlRow) {
    let url = url(n, spelling);
    let key = repository().page_key(&url).unwrap();
    let page = crate::Page {
        url: &url,
        fetched_at_ms: at,
        modified_at_ms: at.is_multiple_of(3).then_some(at / 2),
        status: 200 + (n % 3) as u16,
        mime: ["text/html", "text/plain"][(at % 2) as usize],
        body: &[0; 100][..(at % 100) as usize],
        epoch: spelling,
        payload_digest: n.is_multiple_of(2).then_some([at as u8; 20]),
        ..crate::Page::default()
    };
    (key, UrlRow::of_page(&page, key).unwrap())
}

type Model = BTreeMap<(String, PageKey), UrlRow>;

fn place(key: PageKey, row: &UrlRow) -> (String, PageKey) {
    (row.surt.clone(), key)
}

fn all(urls: &Urls, query: &UrlQuery) -> Vec<UrlRow> {
    urls.query(query).unwrap().collect::<Result<_>>().unwrap()
}

/// Everything that can be asked, against the map.
fn check(urls: &Urls, model: &Model) {
    let rows: Vec<UrlRow> = model.values().cloned().collect();
    assert_eq!(all(urls, &UrlQuery::default()), rows);
    let down: Vec<UrlRow> = rows.iter().rev().cloned().collect();
    assert_eq!(all(urls, &UrlQuery { descending: true, ..UrlQuery::default() }), down);
    assert_eq!(urls.pages(), rows.len() as u64);
    for (start, end) in [
        ("", Some("net,")),
        ("net,", None),
        ("org,example)/", Some("org,example)0")),
        ("org,example)/page/1", Some("org,example)/page/3")),
        ("org,example,", Some("org,example-")),
        ("zzz", None),
    ] {
        let wanted: Vec<UrlRow> = rows
            .iter()
            .filter(|r| r.surt.as_str() >= start && end.is_none_or(|e| r.surt.as_str() < e))
            .cloned()
            .collect();
        let query = UrlQuery { start: start.into(), end: end.map(str::to_owned), ..UrlQuery::default() };
        assert_eq!(all(urls, &query), wanted, "{start} to {end:?}");
        assert_eq!(urls.count(start, end).unwrap(), wanted.len() as u64, "{start} to {end:?}");
        let down: Vec<UrlRow> = wanted.iter().rev().cloned().collect();
        assert_eq!(all(urls, &UrlQuery { descending: true, ..query.clone() }), down);
        for (n, row) in wanted.iter().enumerate().step_by(3) {
            let after = Some(UrlPlace { surt: row.surt.clone(), key: row.key(&repository()) });
            assert_eq!(all(urls, &UrlQuery { after: after.clone(), ..query.clone() }), wanted[n + 1..]);
            let before: Vec<UrlRow> = wanted[..n].iter().rev().cloned().collect();
            assert_eq!(all(urls, &UrlQuery { after, descending: true, ..query.clone() }), before);
            let skipped: Vec<UrlRow> =
                urls.skip(start, end, n as u64).unwrap().collect::<Result<_>>().unwrap();
            assert_eq!(skipped, wanted[n..]);
        }
        assert_eq!(urls.skip(start, end, wanted.len() as u64 + 1).unwrap().count(), 0);
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// (page, time, spelling).
    Add(u32, u64, u32),
    Remove(u32),
    /// The next state.
    Keep,
    /// Goes on from the state before.
    RollBack,
    Reopen,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        12 => (0..400_u32, 0..50_u64, 0..3_u32).prop_map(|(n, at, s)| Op::Add(n, at, s)),
        4 => (0..400_u32).prop_map(Op::Remove),
        2 => Just(Op::Keep),
        1 => Just(Op::RollBack),
        1 => Just(Op::Reopen),
    ];
    proptest::collection::vec(op, 0..300)
}

/// What changes do to the map: a newer version takes the place of an older one.
fn apply(model: &mut Model, changes: &[(PageKey, Option<UrlRow>, String)]) {
    let mut last: BTreeMap<PageKey, (Option<UrlRow>, String)> = BTreeMap::new();
    for (key, row, url) in changes {
        last.insert(*key, (row.clone(), url.clone()));
    }
    for (key, (row, url)) in last {
        let surt = UrlRow::names(&url, key).unwrap().surt;
        match row {
            None => drop(model.remove(&(surt, key))),
            Some(row) => {
                let at = place(key, &row);
                if model.get(&at).is_none_or(|old| old.version() < row.version()) {
                    model.insert(at, row);
                }
            }
        }
    }
}

fn build(
    files: &Arc<UrlFiles>,
    base: &Urls,
    changes: &[(PageKey, Option<UrlRow>, String)],
    model: &Model,
) -> Result<Urls> {
    let mut builder = files.builder(8 << 10);
    for (key, row, url) in changes {
        match row {
            Some(row) => builder.add(*key, row.clone())?,
            None => builder.remove(*key, url)?,
        }
    }
    // Of versions that rows cannot tell apart the store has the one it had.
    let mut tied = |key: PageKey| Ok(model.iter().find(|((_, k), _)| *k == key).map(|(_, row)| row.clone()));
    builder.finish(base, Some(&mut tied))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_index_shows_what_a_map_shows(ops in ops()) {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        let dir = Path::new("/urls");
        let mut files = UrlFiles::open(disk.clone(), dir, repository()).unwrap();
        let mut states: Vec<(u64, Urls, Model)> = vec![(0, Urls::empty(repository()), Model::new())];
        files.save(0, &states[0].1).unwrap();
        let (mut changes, mut number) = (Vec::new(), 0);
        for op in ops {
            match op {
                Op::Add(n, at, spelling) => {
                    let (key, row) = row(n, at, spelling);
                    let url = row.url.clone();
                    changes.push((key, Some(row), url));
                }
                Op::Remove(n) => {
                    let url = url(n, 0);
                    changes.push((repository().page_key(&url).unwrap(), None, url));
                }
                Op::Keep => {
                    let (_, base, model) = states.last().unwrap();
                    let mut next = model.clone();
                    apply(&mut next, &changes);
                    let urls = build(&files, base, &changes, model).unwrap();
                    changes.clear();
                    number += 1;
                    files.save(number, &urls).unwrap();
                    states.push((number, urls, next));
                    if states.len() > 3 {
                        states.remove(0);
                    }
                    files.retain(&states.iter().map(|s| s.0).collect::<Vec<_>>()).unwrap();
                }
                Op::RollBack => {
                    changes.clear();
                    if states.len() > 1 {
                        states.pop();
                    }
                }
                Op::Reopen => {
                    changes.clear();
                    files = UrlFiles::open(disk.clone(), dir, repository()).unwrap();
                    for (number, urls, _) in &mut states {
                        *urls = files.load(*number).unwrap().unwrap();
                    }
                    files.retain(&states.iter().map(|s| s.0).collect::<Vec<_>>()).unwrap();
                }
            }
        }
        for (number, urls, model) in &states {
            check(urls, model);
            check(&files.load(*number).unwrap().unwrap(), model);
            urls.verify().unwrap();
        }
    }

    #[test]
    fn rows_cross_the_wire(picks in proptest::collection::vec((0..4000_u32, any::<u64>(), 0..9_u32), 0..700)) {
        let rows: Vec<UrlRow> = picks.into_iter().map(|(n, at, s)| row(n, at, s).1).collect();
        prop_assert_eq!(decode_rows(&encode_rows(&rows).unwrap()), Ok(rows));
    }
}

/// Changes from one state to the next, enough for several blocks.
fn batch(from: u32, to: u32, at: u64) -> Vec<(PageKey, Option<UrlRow>, String)> {
    (from..to)
        .map(|n| {
            let (key, row) = row(n, at, 0);
            let url = row.url.clone();
            (key, (!(n + at as u32).is_multiple_of(7)).then_some(row), url)
        })
        .collect()
}

/// Two states, one over the other.
fn two_states(disk: &Arc<dyn Disk>) -> Result<(Model, Model)> {
    let files = UrlFiles::open(disk.clone(), Path::new("/urls"), repository())?;
    let (mut first, changes) = (Model::new(), batch(0, 600, 10));
    let urls = build(&files, &Urls::empty(repository()), &changes, &first)?;
    apply(&mut first, &changes);
    files.save(1, &urls)?;
    let (mut second, changes) = (first.clone(), batch(300, 420, 20));
    let urls = build(&files, &urls, &changes, &first)?;
    apply(&mut second, &changes);
    files.save(2, &urls)?;
    drop(urls);
    files.retain(&[2])?;
    Ok((first, second))
}

#[test]
fn a_cut_leaves_an_index_whole_or_not_there() {
    let disk = Arc::new(SimDisk::new());
    let (first, second) = two_states(&(disk.clone() as Arc<dyn Disk>)).unwrap();
    let mut seen = [0; 3];
    for at in 0..=disk.changes() {
        for crash in [Crash::InOrder, Crash::Unsynced] {
            let cut: Arc<dyn Disk> = Arc::new(disk.crashed(at, 0, crash));
            let files = UrlFiles::open(cut, Path::new("/urls"), repository()).unwrap();
            let mut whole = Vec::new();
            for (number, model) in [(1, &first), (2, &second)] {
                if let Some(urls) = files.load(number).unwrap() {
                    let rows: Vec<UrlRow> = model.values().cloned().collect();
                    assert_eq!(all(&urls, &UrlQuery::default()), rows, "list {number}, cut at {at}");
                    urls.verify().unwrap();
                    whole.push(number);
                }
            }
            seen[whole.len()] += 1;
            files.retain(&whole).unwrap();
            for number in whole {
                files.load(number).unwrap().unwrap().verify().unwrap();
            }
        }
    }
    assert!(seen.iter().all(|times| *times > 0), "{seen:?}");
}

#[test]
fn a_flipped_bit_is_an_error_or_changes_nothing() {
    let disk = Arc::new(SimDisk::new());
    let (_, second) = two_states(&(disk.clone() as Arc<dyn Disk>)).unwrap();
    let rows: Vec<UrlRow> = second.values().cloned().collect();
    let dir = Path::new("/urls");
    let mut named = 0;
    for name in disk.list(dir).unwrap() {
        let path = dir.join(&name);
        let file = disk.open(&path, false).unwrap();
        let len = file.len().unwrap();
        for offset in (0..len).step_by(7) {
            let mut byte = [0];
            file.read_exact_at(&mut byte, offset).unwrap();
            file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
            let files = UrlFiles::open(disk.clone(), dir, repository()).unwrap();
            let found = files.load(2).and_then(|urls| {
                let urls = urls.unwrap();
                urls.verify()?;
                urls.query(&UrlQuery::default())?.collect::<Result<Vec<UrlRow>>>()
            });
            match found {
                Ok(found) => assert_eq!(found, rows, "{name} at {offset}"),
                Err(e) => {
                    assert!(e.to_string().contains(&name) || name.starts_with("list"), "{e}");
                    named += 1;
                }
            }
            file.write_all_at(&byte, offset).unwrap();
        }
    }
    assert!(named > 0);
}

#[test]
fn the_damage_of_one_block_leaves_the_others() {
    let disk = Arc::new(SimDisk::new());
    let files = UrlFiles::open(disk.clone(), Path::new("/urls"), repository()).unwrap();
    let urls = build(&files, &Urls::empty(repository()), &batch(0, 6000, 10), &Model::new()).unwrap();
    assert!(urls.runs()[0].blocks() > 4);
    let path = Path::new("/urls").join(format!("run-{}", urls.runs()[0].number));
    let file = disk.open(&path, false).unwrap();
    file.write_all_at(&[0xff; 4], 100).unwrap();
    let e = urls.query(&UrlQuery::default()).err().unwrap().to_string();
    assert!(e.contains("run-") && e.contains("offset 8"), "{e}");
    let rest = UrlQuery { start: "org,example)/page/5".into(), ..UrlQuery::default() };
    assert!(!all(&urls, &rest).is_empty());
}
