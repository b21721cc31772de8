//! The tables against maps that are obviously right, with reopening at any time and files cut at every byte.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::*;
use crate::random::Random;
use crate::scheduler::Kind;

const KEY: [u8; 32] = [7; 32];

fn url(number: u64) -> String {
    format!("host{}.example/page/{number}", number % 97)
}

#[test]
fn links_are_settled_as_a_map_would() {
    let dir = tempfile::tempdir().unwrap();
    let seed = 1;
    let mut random = Random::new(seed);
    let mut table = UrlTable::open(dir.path(), KEY).unwrap();
    let mut model: HashMap<String, u32> = HashMap::new();
    // Enough rounds that runs are merged more than once.
    for round in 0..25 {
        let links: Vec<String> = (0..400).map(|_| url(random.next() % 5000)).collect();
        for link in &links {
            assert!(table.offer(link).unwrap());
        }
        if round % 3 == 0 {
            // Offered and synced is not lost; waiting links are settled after opening again.
            table.sync().unwrap();
            drop(table);
            table = UrlTable::open(dir.path(), KEY).unwrap();
        }
        assert_eq!(table.waiting(), 400);
        let settled = table.settle().unwrap();
        for (link, found) in links.iter().zip(&settled) {
            let next = model.len() as u32;
            let is_new = !model.contains_key(link);
            let id = *model.entry(link.clone()).or_insert(next);
            assert_eq!(*found, Settled { id, is_new }, "seed {seed} round {round}: {link}");
        }
        assert_eq!(table.len(), model.len());
    }
    for (link, id) in &model {
        assert_eq!(table.url(*id).unwrap().as_deref(), Some(link.as_str()));
        assert_eq!(table.find(link).unwrap(), Some(*id), "{link}");
    }
    assert_eq!(table.find("host1.example/nowhere").unwrap(), None);
    assert_eq!(table.url(model.len() as u32).unwrap(), None);
    assert!(!table.offer("").unwrap() && !table.offer(&"x".repeat(1 << 17)).unwrap());
    assert!(table.settle().unwrap().is_empty());
}

#[test]
fn batches_that_are_written_past_the_page_cache_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut table = UrlTable::open(dir.path(), KEY).unwrap();
    // A run of more than the quarter megabyte from which files are written directly, in blocks; then merged with small ones.
    let first: Vec<String> = (0..50_000).map(url).collect();
    assert_eq!(table.offer_all(&first).unwrap(), 50_000);
    assert!(
        table.settle().unwrap().iter().enumerate().all(|(n, found)| found.id == n as u32 && found.is_new)
    );
    for round in 0..10u64 {
        table = UrlTable::open(dir.path(), KEY).unwrap();
        let known = 50_000 + round * 2_000;
        let links: Vec<String> = (0..30_000).chain(known..known + 2_000).map(url).collect();
        table.offer_all(&links).unwrap();
        table.sync().unwrap();
        let settled = table.settle().unwrap();
        let right = |(place, found): (usize, &Settled)| {
            let n = if place < 30_000 { place as u64 } else { known + place as u64 - 30_000 };
            *found == Settled { id: n as u32, is_new: n >= known }
        };
        assert!(settled.iter().enumerate().all(right), "round {round}");
    }
    assert_eq!(table.len(), 70_000);
    assert_eq!(table.url(69_999).unwrap(), Some(url(69_999)));
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

#[test]
fn a_pending_file_cut_anywhere_keeps_its_whole_links() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base");
    let mut table = UrlTable::open(&base, KEY).unwrap();
    for n in 0..10 {
        table.offer(&url(n)).unwrap();
    }
    table.settle().unwrap();
    for n in 5..12 {
        table.offer(&url(n)).unwrap();
    }
    table.sync().unwrap();
    drop(table);
    let pending = base.join("pending-00000001");
    let bytes = std::fs::read(&pending).unwrap();
    for cut in 0..=bytes.len() {
        let there = dir.path().join(format!("cut-{cut}"));
        copy(&base, &there);
        std::fs::write(there.join("pending-00000001"), &bytes[..cut]).unwrap();
        // What a settlement that never got to its manifest left behind is cut off and removed.
        std::fs::write(there.join("known-00000009"), b"half a run").unwrap();
        let mut urls = std::fs::read(there.join("urls")).unwrap();
        urls.extend_from_slice(b"half a URL");
        std::fs::write(there.join("urls"), urls).unwrap();
        let mut table = UrlTable::open(&there, KEY).unwrap();
        let whole = table.waiting();
        assert_eq!(
            whole,
            (5..12)
                .scan(0, |end, n| {
                    *end += 12 + url(n).len();
                    (*end <= cut).then_some(())
                })
                .count()
        );
        let settled = table.settle().unwrap();
        for (n, found) in (5..).zip(&settled) {
            assert_eq!(*found, Settled { id: n as u32, is_new: n >= 10 });
            assert_eq!(table.url(found.id).unwrap(), Some(url(n)));
        }
        std::fs::remove_dir_all(&there).unwrap();
    }
}

#[test]
fn every_flipped_bit_of_known_urls_and_manifest_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base");
    let mut table = UrlTable::open(&base, KEY).unwrap();
    for n in 0..5 {
        table.offer(&url(n)).unwrap();
    }
    table.settle().unwrap();
    drop(table);
    for name in ["known-00000000", "manifest"] {
        let bytes = std::fs::read(base.join(name)).unwrap();
        for at in 0..bytes.len() {
            let there = dir.path().join("flipped");
            copy(&base, &there);
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            std::fs::write(there.join(name), flipped).unwrap();
            let outcome = UrlTable::open(&there, KEY).and_then(|mut table| {
                table.offer(&url(77))?;
                table.settle()
            });
            assert!(matches!(outcome, Err(MetadataError::Corrupt { .. })), "{name} at {at}: {outcome:?}");
            std::fs::remove_dir_all(&there).unwrap();
        }
    }
}

#[test]
fn rows_come_back_after_any_cut_of_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base");
    let mut table = RefreshTable::open(&base).unwrap();
    let row = |n: u32| {
        let mut row = RefreshRow { importance: n as f32, ..RefreshRow::default() };
        row.read(1000 + n, u64::from(n), Some(900), Kind::Xml, 200);
        assert!(row.read(90_000 + n, u64::from(n) + 1, Some(80_000), Kind::Xml, 200));
        assert!(!row.read(180_000 + n, u64::from(n) + 1, None, Kind::Html, 304));
        row
    };
    for n in 0..6 {
        table.set(n * 3, &row(n)).unwrap();
    }
    table.sync().unwrap();
    assert_eq!(table.row(3).unwrap(), Some(row(1)));
    assert_eq!((table.row(4).unwrap(), table.row(4000).unwrap()), (None, None));
    assert_eq!((row(1).changes, row(1).reads_without_change, row(1).last_change_told_s), (1, 1, 80_000));
    drop(table);
    let journal = std::fs::read(base.join("refresh-journal")).unwrap();
    for cut in 0..=journal.len() {
        let there = dir.path().join("cut");
        copy(&base, &there);
        std::fs::write(there.join("refresh-journal"), &journal[..cut]).unwrap();
        // The table itself was torn: nothing of it reached the disk.
        std::fs::write(there.join("refresh"), b"").unwrap();
        let table = RefreshTable::open(&there).unwrap();
        for n in 0..6u32 {
            let expected = (cut >= (n as usize + 1) * 76).then(|| row(n));
            assert_eq!(table.row(n * 3).unwrap(), expected, "cut at {cut}");
        }
        std::fs::remove_dir_all(&there).unwrap();
    }
    let table = RefreshTable::open(&base).unwrap();
    let mut bytes = std::fs::read(base.join("refresh")).unwrap();
    bytes[64 * 3 + 20] ^= 4;
    std::fs::write(base.join("refresh"), bytes).unwrap();
    assert!(matches!(table.row(3), Err(MetadataError::Corrupt { offset: 192, .. })));
}

#[test]
fn two_crawlers_know_every_url_once() {
    let dir = tempfile::tempdir().unwrap();
    let open = |n: u32| {
        let table = UrlTable::open(&dir.path().join(n.to_string()), KEY).unwrap();
        (table, Sharding::new(n, 2, KEY))
    };
    let mut crawlers = [open(0), open(1)];
    let address = |host: u64| std::net::IpAddr::from([10, 0, 0, (host % 10) as u8]);
    let mut random = Random::new(5);
    let mut all: BTreeMap<String, u32> = BTreeMap::new();
    for round in 0..4000 {
        let finder = (random.next() % 2) as usize;
        let number = random.next() % 1500;
        let (host, link) = (format!("host{}.example", number % 97), url(number));
        all.insert(link.clone(), 0);
        let mut over = Vec::new();
        {
            let (table, sharding) = &mut crawlers[finder];
            if let Some(own) = sharding.sort(&host, link) {
                table.offer(&own).unwrap();
            }
            if round % 500 == 499 {
                over.extend(sharding.flush());
            }
        }
        for HandOver { to, links } in over {
            for link in links {
                crawlers[to as usize].0.offer(&link).unwrap();
            }
        }
    }
    for n in 0..2 {
        for HandOver { to, links } in crawlers[n].1.flush() {
            for link in links {
                crawlers[to as usize].0.offer(&link).unwrap();
            }
        }
    }
    for (table, _) in &mut crawlers {
        table.settle().unwrap();
        for id in 0..table.len() as u32 {
            *all.get_mut(&table.url(id).unwrap().unwrap()).unwrap() += 1;
        }
        assert!(table.len() > 200);
    }
    assert!(all.values().all(|owners| *owners == 1));
    // Once their addresses are known, hosts that share one have one owner, and both crawlers agree on it.
    let [(_, first), (_, second)] = &mut crawlers;
    for host in 0..97u64 {
        let name = format!("host{host}.example");
        let owner = first.resolved(&name, address(host));
        assert_eq!(second.resolved(&name, address(host)), owner);
        assert_eq!((first.owner(&name), second.owner(&name)), (owner, owner));
        assert_eq!(owner, first.owner(&format!("host{}.example", host % 10)));
    }
}
