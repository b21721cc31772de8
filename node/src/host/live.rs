//! A node's pages as they are now, for repositories with incremental update: its epochs laid over its newest generation.
//!
//! Of each page the newest version shows, be it in an epoch or in the generation, unless the generation's tombstones bar it.
//! A fold (a cycle) brings epochs into the next generation and lets them go; a page is then where it was, or in the
//! generation, and while both have it the generation's counts.
//!
//! **Streams** show each page once, as it was when the stream was opened. Stores in key order are merged by key, and a cursor
//! is a key, whatever was folded since. Of logs the generation comes first, in its order, then one epoch after the other:
//!
//! ```text
//!   generation ──────▶ B   epoch 4 ────▶   epoch 5 ────▶      cursor in the generation:  o<ordinal>
//!                                  ▲                          cursor in an epoch:        l<B>.<epoch>.<ordinal>
//! ```
//!
//! A cursor `l<B>.<epoch>.<ordinal>` goes on with what the generation has from B on, that is, what was folded in since, and
//! then in the epochs. Nothing is skipped: ordinals stay through restarts and compaction, and what is not in its epoch any
//! more is in the generation behind B. Delivered pages of epochs, the cursor's own and earlier ones, come again if these were
//! folded and dropped since, and of pages added since the newer version comes; nothing else comes twice.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;

use webbase_storage::{
    Cursor, Listed, Organization, PageId, PageKey, PageStream, Record, RepositoryKey, Result, Snapshot,
    StorageError, StreamSpec, Trust, Version,
};

use super::tombstones::Tombstones;

/// Rows of a list that are made at once.
const LIST_ROWS: usize = 64 << 10;

/// The newest generation of a node.
#[derive(Clone)]
pub(super) struct Base {
    pub(super) snapshot: Arc<dyn Snapshot>,
    pub(super) tombstones: Arc<Tombstones>,
}

/// The state of an epoch, and its number.
pub(super) type Epoch = (u64, Arc<dyn Snapshot>);

/// Epochs over a generation. The epochs must have been looked at before the generation: a fold in between then hides nothing.
#[derive(Clone)]
pub(super) struct Overlay {
    pub(super) key: RepositoryKey,
    pub(super) organization: Organization,
    /// None while the node stands at generation 0, which is empty.
    pub(super) base: Option<Base>,
    /// Ascending.
    pub(super) epochs: Vec<Epoch>,
}

fn version_of(snapshot: &dyn Snapshot, key: PageKey) -> Result<Option<Version>> {
    let listed = snapshot.list(key.id..=key.id, key, 1)?;
    Ok(listed.first().filter(|l| l.key == key).map(|l| l.version))
}

fn newer(a: Option<Record>, b: Option<Record>) -> Option<Record> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if b.get().version() > a.get().version() { b } else { a }),
        (a, b) => a.or(b),
    }
}

impl Overlay {
    fn bars(&self, key: PageKey, version: Version) -> bool {
        self.base.as_ref().is_some_and(|base| base.tombstones.bar(key, version))
    }

    fn base_version(&self, key: PageKey) -> Result<Option<Version>> {
        self.base.as_ref().map_or(Ok(None), |base| version_of(&*base.snapshot, key))
    }

    /// Whether an epoch's version of a page shows, rather than what the generation has of it.
    fn shows(&self, key: PageKey, version: Version) -> Result<bool> {
        Ok(!self.bars(key, version) && self.base_version(key)?.is_none_or(|base| base < version))
    }

    fn base_lookup(&self, key: PageKey, trust: Trust) -> Result<Option<Record>> {
        self.base.as_ref().map_or(Ok(None), |base| base.snapshot.lookup(key, trust))
    }

    /// All snapshots: those of epochs, then that of the generation.
    fn layers(&self) -> impl Iterator<Item = (&dyn Snapshot, bool)> {
        let base = self.base.iter().map(|base| (&*base.snapshot, false));
        self.epochs.iter().map(|(_, epoch)| (&**epoch, true)).chain(base)
    }

    /// What the epochs have: of each page the newest version, and in which epoch it is.
    fn newest(&self) -> Result<HashMap<PageKey, (Version, u64)>> {
        let mut newest: HashMap<PageKey, (Version, u64)> = HashMap::new();
        for (number, epoch) in &self.epochs {
            let mut at = Some(PageKey::MIN);
            while let Some(from) = at {
                let some = epoch.list(PageId(0)..=PageId(u64::MAX), from, LIST_ROWS)?;
                at = some.last().filter(|_| some.len() == LIST_ROWS).and_then(|last| last.key.next());
                for row in some {
                    let best = newest.entry(row.key).or_insert((row.version, *number));
                    if row.version > best.0 {
                        *best = (row.version, *number);
                    }
                }
            }
        }
        Ok(newest)
    }
}

impl Snapshot for Overlay {
    fn repository_key(&self) -> &RepositoryKey {
        &self.key
    }

    fn lookup(&self, key: PageKey, trust: Trust) -> Result<Option<Record>> {
        let mut best = None;
        for (_, epoch) in &self.epochs {
            best = newer(best, epoch.lookup(key, trust)?);
        }
        match best {
            Some(best) if self.shows(key, best.get().version())? => Ok(Some(best)),
            _ => self.base_lookup(key, trust),
        }
    }

    fn lookup_warm(&self, key: PageKey) -> Option<Result<Option<Record>>> {
        let mut best = None;
        for (_, epoch) in &self.epochs {
            match epoch.lookup_warm(key)? {
                Ok(found) => best = newer(best, found),
                Err(e) => return Some(Err(e)),
            }
        }
        best = best.filter(|record: &Record| !self.bars(key, record.get().version()));
        let Some(base) = &self.base else { return Some(Ok(best)) };
        // Of the same version the generation's counts; which one is sent makes no difference.
        Some(base.snapshot.lookup_warm(key)?.map(|found| newer(found, best)))
    }

    fn lookup_id(&self, id: PageId, trust: Trust) -> Result<Vec<Record>> {
        let mut found: BTreeMap<PageKey, Record> = BTreeMap::new();
        for (layer, is_epoch) in self.layers() {
            for record in layer.lookup_id(id, trust)? {
                let (key, version) = (record.get().key(), record.get().version());
                if !(is_epoch && self.bars(key, version)) {
                    let best = newer(found.remove(&key), Some(record));
                    found.extend(best.map(|record| (key, record)));
                }
            }
        }
        Ok(found.into_values().collect())
    }

    fn lookup_many(&self, keys: &[PageKey]) -> Vec<Result<Option<Record>>> {
        let mut found: Vec<Result<Option<Record>>> = keys.iter().map(|_| Ok(None)).collect();
        for (_, epoch) in &self.epochs {
            for (best, next) in found.iter_mut().zip(epoch.lookup_many(keys)) {
                *best = match (std::mem::replace(best, Ok(None)), next) {
                    (Ok(best), Ok(next)) => Ok(newer(best, next)),
                    (Err(e), _) | (_, Err(e)) => Err(e),
                };
            }
        }
        // What the epochs do not show is looked up in the generation, all at once.
        let mut rest: Vec<(usize, PageKey)> = Vec::new();
        for (at, (best, key)) in found.iter_mut().zip(keys).enumerate() {
            let version = match best {
                Ok(best) => best.as_ref().map(|record| record.get().version()),
                Err(_) => continue,
            };
            match version.map_or(Ok(false), |version| self.shows(*key, version)) {
                Ok(true) => {}
                Ok(false) => {
                    *best = Ok(None);
                    rest.push((at, *key));
                }
                Err(e) => *best = Err(e),
            }
        }
        if let Some(base) = &self.base {
            let keys: Vec<PageKey> = rest.iter().map(|(_, key)| *key).collect();
            for ((at, _), result) in rest.iter().zip(base.snapshot.lookup_many(&keys)) {
                if let Some(slot) = found.get_mut(*at) {
                    *slot = result;
                }
            }
        }
        found
    }

    fn stream(&self, spec: &StreamSpec) -> Result<Box<dyn PageStream>> {
        match self.organization {
            Organization::Log => Ok(Box::new(LogOverlay::open(self.clone(), spec)?)),
            _ => Ok(Box::new(KeyOverlay::open(self.clone(), spec)?)),
        }
    }

    fn keys(&self) -> Result<Vec<PageKey>> {
        let all = self.list(PageId(0)..=PageId(u64::MAX), PageKey::MIN, usize::MAX)?;
        Ok(all.into_iter().map(|row| row.key).collect())
    }

    fn list(&self, ids: RangeInclusive<PageId>, from: PageKey, limit: usize) -> Result<Vec<Listed>> {
        let mut listed: Vec<Listed> = Vec::new();
        let mut at = Some(from);
        while let Some(from) = at.filter(|_| listed.len() < limit) {
            let rows = LIST_ROWS.min(limit);
            let mut merged: BTreeMap<PageKey, Listed> = BTreeMap::new();
            // Up to here the lists of all layers go.
            let mut through = None;
            for (layer, is_epoch) in self.layers() {
                let some = layer.list(ids.clone(), from, rows)?;
                if let Some(last) = some.last().filter(|_| some.len() >= rows) {
                    through = Some(through.map_or(last.key, |t: PageKey| t.min(last.key)));
                }
                for row in some.into_iter().filter(|r| !(is_epoch && self.bars(r.key, r.version))) {
                    let best = merged.entry(row.key).or_insert(row);
                    if row.version > best.version {
                        *best = row;
                    }
                }
            }
            let sure = merged.into_values().take_while(|row| through.is_none_or(|t| row.key <= t));
            listed.extend(sure);
            at = through.and_then(PageKey::next);
        }
        listed.truncate(limit);
        Ok(listed)
    }

    /// Counted by listing, because layers may have the same page. A page that cannot be read counts as none.
    fn pages(&self) -> u64 {
        self.keys().map_or(0, |keys| keys.len() as u64)
    }

    fn live_bytes(&self) -> u64 {
        let all = self.list(PageId(0)..=PageId(u64::MAX), PageKey::MIN, usize::MAX);
        all.map_or(0, |rows| rows.iter().map(|row| row.bytes).sum())
    }
}

/// A stream of logs: the generation, then the epochs.
struct LogOverlay {
    of: Overlay,
    spec: StreamSpec,
    /// What the epochs have; about 100 bytes for each page that is not folded yet.
    newest: HashMap<PageKey, (Version, u64)>,
    /// The generation's stream, until it has ended.
    base: Option<Box<dyn PageStream>>,
    /// Where the generation's stream stands.
    base_at: u64,
    /// Where the epochs' part begins.
    from: (u64, u64),
    /// Epochs to come.
    epochs: VecDeque<Epoch>,
    /// The epoch being streamed.
    current: Option<(u64, Box<dyn PageStream>)>,
    /// The place in the epochs.
    at: (u64, u64),
    /// The page of the last error.
    lost: Option<PageKey>,
}

fn ordinal(cursor: Cursor, otherwise: u64) -> u64 {
    match cursor {
        Cursor::Ordinal(ordinal) => ordinal,
        _ => otherwise,
    }
}

impl LogOverlay {
    fn open(of: Overlay, spec: &StreamSpec) -> Result<LogOverlay> {
        let (base_from, from) = match spec.from {
            Cursor::Start => (0, (0, 0)),
            Cursor::Ordinal(ordinal) => (ordinal, (0, 0)),
            Cursor::Live { base, epoch, ordinal } => (base, (epoch, ordinal)),
            Cursor::End => (u64::MAX, (u64::MAX, u64::MAX)),
            Cursor::Key(_) => {
                return Err(StorageError::BadCursor { what: "it is of a hash or hashed-log store".into() });
            }
        };
        let spec = StreamSpec { from: Cursor::Start, ..*spec };
        let mut base = None;
        if let Some(of) = &of.base {
            let from = Cursor::Ordinal(base_from);
            base = Some(of.snapshot.stream(&StreamSpec { from, ..spec })?);
        } else if let Some((_, epoch)) = of.epochs.first() {
            // An order that a log does not have is refused by the log.
            drop(epoch.stream(&spec)?);
        }
        let epochs = of.epochs.iter().filter(|(number, _)| *number >= from.0).cloned().collect();
        let newest = of.newest()?;
        let (base_at, current, at, lost) = (base_from, None, from, None);
        Ok(LogOverlay { of, spec, newest, base, base_at, from, epochs, current, at, lost })
    }

    fn next_of_base(&mut self) -> Option<Result<Record>> {
        let base = self.base.as_mut()?;
        while let Some(next) = base.next() {
            let Ok(record) = &next else {
                self.lost = base.lost();
                return Some(next);
            };
            let (key, version) = (record.get().key(), record.get().version());
            let elsewhere = match self.newest.get(&key) {
                // Comes, or has come, in its newer version;
                Some((newer, _)) if *newer > version => true,
                // or was delivered from its epoch before that was folded.
                Some((same, epoch)) => *same == version && *epoch < self.from.0,
                None => false,
            };
            if !elsewhere {
                return Some(next);
            }
        }
        self.base_at = ordinal(base.cursor(), self.base_at);
        self.base = None;
        None
    }

    fn next_of_epochs(&mut self) -> Option<Result<Record>> {
        loop {
            let (number, stream) = match &mut self.current {
                Some(current) => current,
                None => {
                    let (number, epoch) = self.epochs.pop_front()?;
                    let from = if number == self.from.0 { self.from.1 } else { 0 };
                    self.at = (number, from);
                    match epoch.stream(&StreamSpec { from: Cursor::Ordinal(from), ..self.spec }) {
                        Ok(stream) => self.current.insert((number, stream)),
                        Err(e) => return Some(Err(e)),
                    }
                }
            };
            let next = stream.next();
            self.at = (*number, ordinal(stream.cursor(), self.at.1));
            let Some(next) = next else {
                self.current = None;
                continue;
            };
            let Ok(record) = &next else {
                self.lost = stream.lost();
                return Some(next);
            };
            let (key, version) = (record.get().key(), record.get().version());
            if self.newest.get(&key) != Some(&(version, *number)) {
                continue;
            }
            match self.of.shows(key, version) {
                Ok(true) => return Some(next),
                Ok(false) => {}
                Err(e) => {
                    self.lost = Some(key);
                    return Some(Err(e));
                }
            }
        }
    }
}

impl PageStream for LogOverlay {
    fn next(&mut self) -> Option<Result<Record>> {
        self.next_of_base().or_else(|| self.next_of_epochs())
    }

    fn cursor(&self) -> Cursor {
        let base = self.base.as_ref().map_or(self.base_at, |base| ordinal(base.cursor(), self.base_at));
        match self.at {
            (0, 0) => Cursor::Ordinal(base),
            (epoch, ordinal) => Cursor::Live { base, epoch, ordinal },
        }
    }

    fn lost(&self) -> Option<PageKey> {
        self.lost
    }
}

/// One layer of a merge by key.
struct Source {
    stream: Box<dyn PageStream>,
    is_epoch: bool,
    /// The record that is next, once it was read.
    next: Option<Record>,
}

/// A stream of stores in key order, merged.
struct KeyOverlay {
    of: Overlay,
    sources: Vec<Source>,
    from: Cursor,
    /// The page of the last error.
    lost: Option<PageKey>,
}

impl KeyOverlay {
    fn open(of: Overlay, spec: &StreamSpec) -> Result<KeyOverlay> {
        let mut sources = Vec::new();
        // The generation last: of equal versions its record is taken.
        for (layer, is_epoch) in of.layers() {
            sources.push(Source { stream: layer.stream(spec)?, is_epoch, next: None });
        }
        Ok(KeyOverlay { of, sources, from: spec.from, lost: None })
    }
}

impl PageStream for KeyOverlay {
    fn next(&mut self) -> Option<Result<Record>> {
        loop {
            for source in &mut self.sources {
                if source.next.is_none() {
                    match source.stream.next() {
                        Some(Ok(record)) => source.next = Some(record),
                        Some(Err(e)) => {
                            self.lost = source.stream.lost();
                            return Some(Err(e));
                        }
                        None => {}
                    }
                }
            }
            let keys = self.sources.iter().filter_map(|s| s.next.as_ref()).map(|r| r.get().key());
            let Some(key) = keys.min() else {
                self.from = Cursor::End;
                return None;
            };
            let mut best: Option<(Record, bool)> = None;
            for source in &mut self.sources {
                let Some(record) = source.next.take_if(|r| r.get().key() == key) else { continue };
                let version = record.get().version();
                if best.as_ref().is_none_or(|(best, _)| version >= best.get().version()) {
                    best = Some((record, source.is_epoch));
                }
            }
            self.from = key.next().map_or(Cursor::End, Cursor::Key);
            if let Some((record, is_epoch)) = best
                && !(is_epoch && self.of.bars(key, record.get().version()))
            {
                return Some(Ok(record));
            }
        }
    }

    fn cursor(&self) -> Cursor {
        self.from
    }

    fn lost(&self) -> Option<PageKey> {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use webbase_storage::{Options, Page, PageStore, create, open};

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
}
