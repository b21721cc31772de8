use super::*;
use std::collections::BTreeSet;
use webbase_storage::{Cursor, Options, Page, PageStore, create, open};

use crate::cycle::message::Removal;

/// A tiny generator: the tests want to be the same every time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A generation and epochs, and what of it should show.
struct World {
    dir: tempfile::TempDir,
    organization: Organization,
    base: Arc<dyn PageStore>,
    epochs: Vec<(u64, Arc<dyn PageStore>)>,
    tombstones: Tombstones,
    kept: u64,
    /// All versions ever added, by URL number: at which time.
    added: BTreeMap<u64, u64>,
    removed: BTreeSet<u64>,
}

const KEY: [u8; 32] = [5; 32];

fn url(n: u64) -> String {
    format!("http://live.example/{n}")
}

fn key(n: u64) -> PageKey {
    RepositoryKey::new(KEY).page_key(&url(n)).unwrap()
}

fn store(dir: &tempfile::TempDir, name: &str, organization: Organization) -> Arc<dyn PageStore> {
    let dir = dir.path().join(name);
    let options = Options {
        segment_bytes: 64 << 10,
        buffer_bytes: 8 << 10,
        train_dictionary: false,
        ..Options::default()
    };
    create(&dir, organization, RepositoryKey::new(KEY), &options).unwrap();
    open(&dir, &options).unwrap()
}

impl World {
    fn new(organization: Organization) -> World {
        let dir = tempfile::tempdir().unwrap();
        let base = store(&dir, "pages", organization);
        let mut world = World {
            dir,
            organization,
            base,
            epochs: Vec::new(),
            tombstones: Tombstones::default(),
            kept: 0,
            added: BTreeMap::new(),
            removed: BTreeSet::new(),
        };
        world.open_epoch();
        world
    }

    fn open_epoch(&mut self) {
        let number = self.epochs.last().map_or(1, |(n, _)| n + 1);
        let store = store(&self.dir, &format!("epoch-{number}"), self.organization);
        self.epochs.push((number, store));
    }

    fn add(&mut self, n: u64, at: u64) {
        let body = format!("page {n} of {at}").repeat(3);
        let (_, store) = self.epochs.last().unwrap();
        let url = url(n);
        let page = Page { url: &url, body: body.as_bytes(), fetched_at_ms: at, ..Page::default() };
        store.add(&[page]).unwrap();
        store.commit().unwrap();
        let best = self.added.entry(n).or_insert(at);
        *best = (*best).max(at);
    }

    /// Brings all epochs but the open one into the next generation, and lets go of those below `keep`.
    fn fold(&mut self, keep: u64) {
        self.open_epoch();
        let sealed = self.epochs.len() - 1;
        for (_, epoch) in &self.epochs[..sealed] {
            let mut records: Vec<Record> =
                epoch.stream(&StreamSpec::default()).unwrap().map(|r| r.unwrap()).collect();
            records.retain(|r| !self.tombstones.bar(r.get().key(), r.get().version()));
            self.base.add_records(&records).unwrap();
        }
        self.base.commit().unwrap();
        self.kept += 1;
        self.base.keep_generation(self.kept).unwrap();
        self.epochs.retain(|(n, _)| *n >= keep);
    }

    /// Removes a page, as a cycle does.
    fn remove(&mut self, n: u64) {
        let Some(at) = self.added.remove(&n) else { return };
        let bound = Version { fetched_at_ms: at, epoch: u32::MAX, digest: u64::MAX };
        self.tombstones.add(&Removal { key: key(n), bound }, 1);
        self.base.delete(&[key(n)]).unwrap();
        self.base.commit().unwrap();
        self.kept += 1;
        self.base.keep_generation(self.kept).unwrap();
        self.removed.insert(n);
    }

    fn overlay(&self) -> Overlay {
        let base = (self.kept > 0).then(|| Base {
            snapshot: self.base.generation(self.kept).unwrap().unwrap(),
            number: self.kept,
            tombstones: Arc::new(self.tombstones.clone()),
        });
        Overlay {
            key: RepositoryKey::new(KEY),
            organization: self.organization,
            base,
            epochs: self.epochs.iter().map(|(n, store)| (*n, store.snapshot())).collect(),
        }
    }

    fn expected(&self) -> BTreeMap<PageKey, u64> {
        self.added.iter().map(|(n, at)| (key(*n), *at)).collect()
    }

    fn check(&self) {
        let (overlay, expected) = (self.overlay(), self.expected());
        let at = |r: Record| r.get().version().fetched_at_ms;
        let numbers: Vec<u64> = (0..60).collect();
        let keys: Vec<PageKey> = numbers.iter().map(|n| key(*n)).collect();
        let many = overlay.lookup_many(&keys);
        for (key, many) in keys.iter().zip(many) {
            let wanted = expected.get(key).copied();
            assert_eq!(overlay.lookup(*key, Trust::Verify).unwrap().map(at), wanted);
            assert_eq!(many.unwrap().map(at), wanted);
            if let Some(warm) = overlay.lookup_warm(*key) {
                assert_eq!(warm.unwrap().map(at), wanted);
            }
            let by_id = overlay.lookup_id(key.id, Trust::Verify).unwrap();
            assert_eq!(by_id.into_iter().map(at).collect::<Vec<_>>(), Vec::from_iter(wanted));
        }
        let all = PageId(0)..=PageId(u64::MAX);
        for limit in [1, 3, usize::MAX] {
            let (mut from, mut listed) = (Some(PageKey::MIN), BTreeMap::new());
            while let Some(start) = from {
                let some = overlay.list(all.clone(), start, limit).unwrap();
                from = some.last().filter(|_| some.len() == limit).and_then(|l| l.key.next());
                listed.extend(some.iter().map(|l| (l.key, l.version.fetched_at_ms)));
            }
            assert_eq!(listed, expected, "lists of {limit}");
        }
        assert_eq!(overlay.pages(), expected.len() as u64);
        // A stream, and the rest of it from each of its places.
        let (pages, cursors) = stream(&overlay, Cursor::Start);
        assert_eq!(pages.len(), expected.len(), "each page once");
        assert_eq!(pages.iter().copied().collect::<BTreeMap<_, _>>(), expected);
        for (n, cursor) in cursors.iter().enumerate() {
            let cursor: Cursor = cursor.to_string().parse().unwrap();
            assert_eq!(stream(&overlay, cursor).0, pages[n + 1..], "from {cursor}");
        }
    }
}

/// All pages from a place on, and the places behind each of them.
fn stream(overlay: &Overlay, from: Cursor) -> (Vec<(PageKey, u64)>, Vec<Cursor>) {
    let mut stream = overlay.stream(&StreamSpec { from, ..StreamSpec::default() }).unwrap();
    let (mut pages, mut cursors) = (Vec::new(), Vec::new());
    while let Some(record) = stream.next() {
        let record = record.unwrap();
        pages.push((record.get().key(), record.get().version().fetched_at_ms));
        cursors.push(stream.cursor());
    }
    (pages, cursors)
}

#[test]
fn the_newest_version_shows_wherever_it_is() {
    for organization in Organization::ALL {
        let mut random = Random(11);
        let mut world = World::new(organization);
        world.check();
        for step in 0..160 {
            match random.below(20) {
                0..16 => {
                    // Now and then an old version comes late; a removed one must not come back by it.
                    let late = random.below(5) == 0;
                    let n = random.below(60);
                    let at = if late { 1 + random.below(step + 1) } else { 1000 + step };
                    if !(world.removed.contains(&n) && late) {
                        world.add(n, at);
                    }
                }
                16..18 => {
                    let newest = world.epochs.last().unwrap().0;
                    world.fold(newest + 1 - random.below(3).min(newest));
                }
                18 => world.open_epoch(),
                _ => {
                    let n = random.below(60);
                    world.remove(n);
                }
            }
            if step % 10 == 9 {
                world.check();
            }
        }
    }
}

#[test]
fn an_old_version_of_a_removed_page_does_not_show() {
    for organization in Organization::ALL {
        let mut world = World::new(organization);
        world.add(1, 50);
        world.add(2, 50);
        world.fold(2);
        world.remove(1);
        world.add(1, 40);
        world.added.remove(&1);
        world.check();
        world.add(1, 60);
        world.check();
    }
}

#[test]
fn a_cursor_skips_nothing_whatever_was_folded_since() {
    for organization in Organization::ALL {
        for keep in 0..5 {
            let mut world = World::new(organization);
            (0..20).for_each(|n| world.add(n, 10));
            world.fold(2);
            (10..30).for_each(|n| world.add(n, 20));
            world.open_epoch();
            (25..40).for_each(|n| world.add(n, 30));
            let (pages, cursors) = stream(&world.overlay(), Cursor::Start);
            let before = world.expected();
            assert_eq!(pages.len(), before.len());
            (35..45).for_each(|n| world.add(n, 40));
            world.fold(keep);
            (0..5).for_each(|n| world.add(n, 50));
            let after = world.overlay();
            for (n, cursor) in cursors.iter().enumerate() {
                let rest = stream(&after, *cursor).0;
                let distinct: BTreeSet<PageKey> = rest.iter().map(|(key, _)| *key).collect();
                assert_eq!(distinct.len(), rest.len(), "nothing twice in one stream");
                for (key, at) in &pages[n + 1..] {
                    let found = rest.iter().find(|(k, _)| k == key).map(|(_, at)| *at);
                    assert!(found.is_some_and(|found| found >= *at), "{key} skipped from {cursor}");
                }
                // In key order nothing comes again either.
                if organization != Organization::Log {
                    assert!(rest.iter().all(|(key, _)| *key > pages[n].0));
                }
            }
        }
    }
}
