//! What the integration tests share: small stores on a simulated disk, a model that is obviously right, and a way to
//! read everything out of a store through every door and compare.

#![allow(dead_code, reason = "each test binary uses a part of this")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use webbase_storage::disk::{Crash, Disk, SimDisk};
use webbase_storage::{
    Added, Compression, Due, Kind, Listed, Options, Order, Organization, Page, PageId, PageKey, PageStore,
    Record, RepositoryKey, Result, Seen, Snapshot, StorageError, StreamSpec, Trust, create_on, deadline_ms,
    open_on,
};

/// The organizations under test.
pub(crate) const ORGANIZATIONS: &[Organization] = &Organization::ALL;

/// The organizations to test now: all of them, or the one named by `WEBBASE_ORGANIZATION`.
pub(crate) fn organizations() -> Vec<Organization> {
    let only = std::env::var("WEBBASE_ORGANIZATION").ok().map(|name| name.parse().unwrap());
    ORGANIZATIONS.iter().copied().filter(|&o| only.is_none_or(|only: Organization| o == only)).collect()
}

/// The folder of a store on a simulated disk.
pub(crate) fn dir() -> &'static Path {
    Path::new("/store")
}

/// A key whose page ids do not collide.
pub(crate) fn strong() -> RepositoryKey {
    RepositoryKey::new([7; 32])
}

/// A key whose page ids have 4 bits: everything collides.
pub(crate) fn weak() -> RepositoryKey {
    RepositoryKey::weak([7; 32], 4)
}

/// Settings that make many segments, buckets and logs out of few pages.
pub(crate) fn small_options() -> Options {
    Options {
        compression: Compression::None,
        train_dictionary: false,
        page_bytes_max: 1 << 20,
        capacity_bytes: None,
        segment_bytes: 9 << 10,
        bucket_bytes: 4096,
        log_bytes: 16 << 10,
        buffer_bytes: 0,
        cache_bytes: 0,
        ..Options::default()
    }
}

/// The disk as the stores take it.
pub(crate) fn shared(disk: &SimDisk) -> Arc<dyn Disk> {
    Arc::new(disk.clone())
}

/// A disk with an empty store on it, all durable.
pub(crate) fn created(organization: Organization, key: RepositoryKey, options: &Options) -> SimDisk {
    let disk = SimDisk::new();
    create_on(&shared(&disk), dir(), organization, key, options).unwrap();
    disk.settled()
}

/// A second disk with the same files.
pub(crate) fn copy(disk: &SimDisk) -> SimDisk {
    disk.crashed(usize::MAX, 0, Crash::InOrder)
}

/// Opens the store on `disk`.
pub(crate) fn open_sim(disk: &SimDisk, options: &Options) -> Result<Arc<dyn PageStore>> {
    open_on(&shared(disk), dir(), options)
}

/// A small generator of numbers that are the same in every run.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A body of `len` bytes, of words or of noise.
    pub(crate) fn body(&mut self, len: usize, compressible: bool) -> Vec<u8> {
        const WORDS: [&[u8; 8]; 4] = [b"<p>page ", b"store of", b" records", b"</p>\n<b>"];
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            let noise = self.next();
            let piece = if compressible { *WORDS[(noise % 4) as usize] } else { noise.to_le_bytes() };
            out.extend_from_slice(&piece);
        }
        out.truncate(len);
        out
    }
}

/// A page that owns its parts.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct OwnedPage {
    pub(crate) url: String,
    pub(crate) fetched_at_ms: u64,
    pub(crate) lifetime_s: u32,
    pub(crate) epoch: u32,
    pub(crate) body: Vec<u8>,
}

impl std::fmt::Debug for OwnedPage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let OwnedPage { url, fetched_at_ms, lifetime_s, epoch, body } = self;
        write!(f, "{url} at {fetched_at_ms}, epoch {epoch}, for {lifetime_s} s, {} bytes", body.len())
    }
}

/// The URL of page number `n`.
pub(crate) fn url(n: u64) -> String {
    format!("http://example.org/page/{n}")
}

impl OwnedPage {
    /// Page number `n`, fetched at `at_ms`, for ever.
    pub(crate) fn new(n: u64, at_ms: u64, body: impl Into<Vec<u8>>) -> OwnedPage {
        OwnedPage { url: url(n), fetched_at_ms: at_ms, lifetime_s: 0, epoch: 0, body: body.into() }
    }

    /// The page as a store takes it; fields that no test varies are made from the others.
    pub(crate) fn page(&self) -> Page<'_> {
        Page {
            url: &self.url,
            fetched_at_ms: self.fetched_at_ms,
            modified_at_ms: self.fetched_at_ms.checked_sub(3),
            status: if self.epoch == 0 { 200 } else { 203 },
            mime: "text/html",
            head: b"HTTP/1.1 200 OK\r\n\r\n",
            body: &self.body,
            lifetime_s: self.lifetime_s,
            epoch: self.epoch,
            payload_digest: self.body.len().is_multiple_of(3).then_some([self.body.len() as u8; 20]),
            deflated: None,
        }
    }
}

/// A page and the record it becomes.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) page: OwnedPage,
    pub(crate) record: Record,
}

/// Makes records of pages, in a store of its own, so that the model knows each record's exact bytes.
pub(crate) struct Mint {
    store: Arc<dyn PageStore>,
}

impl Mint {
    pub(crate) fn new(key: RepositoryKey, options: &Options) -> Mint {
        let options = Options { segment_bytes: 1 << 30, capacity_bytes: None, ..options.clone() };
        let disk = created(Organization::Log, key, &options);
        Mint { store: open_sim(&disk, &options).unwrap() }
    }

    pub(crate) fn key(&self, n: u64) -> PageKey {
        self.store.repository_key().page_key(&url(n)).unwrap()
    }

    pub(crate) fn make(&self, page: OwnedPage) -> Made {
        let key = self.store.repository_key().page_key(&page.url).unwrap();
        self.store.delete(&[key]).unwrap();
        self.store.add(&[page.page()]).unwrap();
        self.store.commit().unwrap();
        let record = self.store.lookup(key, Trust::Verify).unwrap().unwrap();
        let (found, given) = (record.get(), page.page());
        assert_eq!((found.kind(), found.key(), found.url()), (Kind::Page, key, given.url));
        assert_eq!(
            (found.fetched_at_ms(), found.modified_at_ms()),
            (given.fetched_at_ms, given.modified_at_ms)
        );
        assert_eq!((found.status(), found.mime()), (given.status, given.mime));
        assert_eq!(found.payload_digest(), given.payload_digest);
        assert_eq!((found.head_len(), found.body_len()), (given.head.len(), given.body.len()));
        assert_eq!(found.head(self.store.dictionaries()).unwrap(), given.head);
        assert_eq!((found.lifetime_s(), found.epoch()), (given.lifetime_s, given.epoch));
        assert!(record.body(self.store.dictionaries()).unwrap() == given.body);
        Made { page, record }
    }
}

/// What a store shows of one page.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) record: Record,
    pub(crate) deadline_ms: Option<u64>,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.record.bytes() == other.record.bytes() && self.deadline_ms == other.deadline_ms
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let version = self.record.get().version();
        write!(f, "{:?} {version:?}, due {:?}", self.record, self.deadline_ms)
    }
}

/// What a store shows.
pub(crate) type State = BTreeMap<PageKey, Entry>;

/// What each page may also be while a batch is under way: its values after each operation staged.
pub(crate) type History = BTreeMap<PageKey, Vec<Option<Entry>>>;

/// What a store has to do, done plainly.
#[derive(Clone, Default, Debug)]
pub(crate) struct Model {
    /// As of the last commit.
    pub(crate) visible: State,
    /// With everything staged.
    pub(crate) staged: State,
    /// Operations since the last commit that was acknowledged, per page.
    pub(crate) history: History,
}

impl Model {
    pub(crate) fn of(visible: State) -> Model {
        Model { staged: visible.clone(), visible, history: History::new() }
    }

    fn set(&mut self, key: PageKey, entry: Option<Entry>) {
        self.history.entry(key).or_default().push(entry.clone());
        match entry {
            Some(entry) => self.staged.insert(key, entry),
            None => self.staged.remove(&key),
        };
    }

    pub(crate) fn add(&mut self, record: &Record, added: &mut Added) {
        let new = record.get();
        match self.staged.get(&new.key()) {
            Some(old) if old.record.get().version() >= new.version() => {
                added.stale += 1;
                return;
            }
            Some(_) => added.superseding += 1,
            None => added.new += 1,
        }
        let deadline_ms = deadline_ms(new.fetched_at_ms(), new.lifetime_s());
        self.set(new.key(), Some(Entry { record: record.clone(), deadline_ms }));
    }

    pub(crate) fn delete(&mut self, key: PageKey) -> u64 {
        let there = self.staged.contains_key(&key);
        if there {
            self.set(key, None);
        }
        there.into()
    }

    pub(crate) fn seen(&mut self, seen: &Seen) -> u64 {
        let Some(entry) = self.staged.get(&seen.key).cloned() else { return 0 };
        let deadline_ms = deadline_ms(seen.at_ms, seen.lifetime_s);
        self.set(seen.key, Some(Entry { deadline_ms, ..entry }));
        1
    }

    pub(crate) fn commit(&mut self) {
        self.visible = self.staged.clone();
        self.history.clear();
    }

    /// Takes note of what a store shows. It may have committed some of the batch by itself, whole operations only; what
    /// a page was before is over then.
    pub(crate) fn observe(&mut self, found: State) -> Check {
        self.accepts(&found)?;
        for (key, values) in &mut self.history {
            let is = found.get(key);
            if self.visible.get(key) != is
                && let Some(at) = values.iter().position(|value| value.as_ref() == is)
            {
                values.drain(..=at);
            }
        }
        self.visible = found;
        Ok(())
    }

    /// A commit failed, and the store shows this: nothing is staged. Some of the batch may still turn up when the store
    /// is opened again, until the next commit.
    pub(crate) fn fail_commit(&mut self, found: State) -> Check {
        self.accepts(&found)?;
        (self.staged, self.visible) = (found.clone(), found);
        Ok(())
    }

    /// Whether `found` is what was committed, extended by whole operations of the batch after it.
    pub(crate) fn accepts(&self, found: &State) -> Check {
        accepts(&self.visible, &self.history, found)
    }

    pub(crate) fn due(&self, now_ms: u64, limit: usize) -> Vec<Due> {
        let of =
            |(&key, entry): (&PageKey, &Entry)| entry.deadline_ms.map(|deadline_ms| Due { deadline_ms, key });
        let mut due: Vec<Due> =
            self.visible.iter().filter_map(of).filter(|d| d.deadline_ms <= now_ms).collect();
        due.sort_unstable();
        due.truncate(limit);
        due
    }
}

/// Whether `found` is `committed`, each page possibly replaced by one of its values in `later`.
pub(crate) fn accepts(committed: &State, later: &History, found: &State) -> Check {
    let keys: std::collections::BTreeSet<_> =
        committed.keys().chain(later.keys()).chain(found.keys()).collect();
    for key in keys {
        let (was, is) = (committed.get(key), found.get(key));
        let allowed =
            was == is || later.get(key).is_some_and(|values| values.iter().any(|v| v.as_ref() == is));
        if !allowed {
            let staged = later.get(key).map_or(0, Vec::len);
            return Err(format!(
                "page {key} was committed as {was:?}, staged {staged} times since, found as {is:?}"
            ));
        }
    }
    Ok(())
}

/// The outcome of a check; the text says what differs.
pub(crate) type Check<T = ()> = std::result::Result<T, String>;

/// Fails with the text unless the condition holds.
pub(crate) fn ensure(holds: bool, what: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(what()) }
}

/// A storage error where there should be none.
pub(crate) fn say(during: &str) -> impl FnOnce(StorageError) -> String + '_ {
    move |e| format!("{during}: {e}")
}

/// Everything a stream still delivers.
pub(crate) fn drain(stream: &mut dyn webbase_storage::PageStream) -> Check<Vec<Record>> {
    let mut all = Vec::new();
    while let Some(record) = stream.next() {
        all.push(record.map_err(say("stream"))?);
    }
    Ok(all)
}

/// Everything a store shows, read through every door; the doors must agree.
pub(crate) fn read_state(store: &dyn PageStore) -> Check<State> {
    let mut stream = store.stream(&StreamSpec::default()).map_err(say("stream"))?;
    let records = drain(&mut *stream)?;
    let due = store.due(u64::MAX, usize::MAX).map_err(say("due"))?;
    ensure(due.is_sorted(), || format!("the due list is not sorted: {due:?}"))?;
    let mut state = State::new();
    for record in records {
        let key = record.get().key();
        record.body(store.dictionaries()).map_err(say("body"))?;
        let twice = state.insert(key, Entry { record, deadline_ms: None });
        ensure(twice.is_none(), || format!("the stream delivers {key} twice: {twice:?}"))?;
    }
    for due in due {
        let entry = state.get_mut(&due.key).ok_or_else(|| format!("{due:?} is due and not streamed"))?;
        ensure(entry.deadline_ms.is_none(), || format!("{due:?} is due twice"))?;
        entry.deadline_ms = Some(due.deadline_ms);
    }
    let keys = store.keys().map_err(say("keys"))?;
    ensure(keys.iter().eq(state.keys()), || format!("keys() has {keys:?}, the stream {:?}", state.keys()))?;
    let pages = store.stats().pages; // elsewhere an estimate
    ensure(store.organization() != Organization::Log || pages == state.len() as u64, || {
        format!("stats have {pages} pages, the stream {}", state.len())
    })?;
    let many = store.lookup_many(&keys);
    ensure(many.len() == keys.len(), || "lookup_many gives another number of answers".into())?;
    for ((&key, entry), many) in state.iter().zip(many) {
        let wanted = entry.record.bytes();
        for (door, found) in [
            ("lookup", store.lookup(key, Trust::Verify)),
            ("lookup, trusting", store.lookup(key, Trust::Disk)),
            ("lookup_many", many),
            ("lookup_url", store.lookup_url(entry.record.get().url())),
            ("lookup_unpacked", store.lookup_unpacked(key, Trust::Verify)),
            ("lookup_unpacked, trusting", store.lookup_unpacked(key, Trust::Disk)),
            ("lookup, again", store.lookup(key, Trust::Verify)),
        ] {
            let found = found.map_err(say(door))?;
            let same = found.as_ref().is_some_and(|r| r.bytes() == wanted);
            ensure(same, || format!("{door} of {key} finds {found:?}, the stream {entry:?}"))?;
            let unpacked = found.zip(Some(&entry.record)).map(|(found, streamed)| {
                let dictionaries = store.dictionaries();
                let body = found.body(dictionaries).ok() == streamed.body(dictionaries).ok();
                body && found.head(dictionaries).ok() == streamed.head(dictionaries).ok()
            });
            ensure(unpacked == Some(true), || format!("{door} of {key} unpacks to something else"))?;
        }
        let mut same_id = store.lookup_id(key.id, Trust::Verify).map_err(say("lookup_id"))?;
        same_id.sort_by_key(|r| r.get().key());
        let range = PageKey { tie: 0, ..key }..=PageKey { tie: u64::MAX, ..key };
        let expected = state.range(range).map(|(_, e)| e.record.bytes());
        ensure(expected.eq(same_id.iter().map(Record::bytes)), || {
            format!("lookup_id of {key} finds {same_id:?}")
        })?;
    }
    Ok(state)
}

/// Whether a store shows exactly `expected`, and nothing for the keys of `others` that are not in it.
pub(crate) fn shows(store: &dyn PageStore, expected: &State, others: &[PageKey]) -> Check {
    let found = read_state(store)?;
    accepts(expected, &History::new(), &found)?;
    let absent: Vec<PageKey> = others.iter().copied().filter(|k| !expected.contains_key(k)).collect();
    for (key, found) in absent.iter().zip(store.lookup_many(&absent)) {
        let many = found.map_err(say("lookup_many"))?;
        let one = store.lookup(*key, Trust::Verify).map_err(say("lookup"))?;
        ensure(many.is_none() && one.is_none(), || {
            format!("{key} is not there, found {one:?} and {many:?}")
        })?;
    }
    let ids = store.stream(&StreamSpec { order: Order::Id, ..StreamSpec::default() });
    match (store.organization(), ids) {
        (Organization::Log, Err(StorageError::NoSuchOrder { .. })) => Ok(()),
        (Organization::Log, _) => Err("a log has no id order".into()),
        (_, ids) => {
            let records = drain(&mut *ids.map_err(say("stream by id"))?)?;
            let same = expected.values().map(|e| e.record.bytes()).eq(records.iter().map(Record::bytes));
            ensure(same, || format!("by id: {records:?}, expected {expected:?}"))
        }
    }
}

/// The states of kept generations.
pub(crate) type Generations = BTreeMap<u64, State>;

/// Whether a snapshot shows exactly these pages, through every door.
pub(crate) fn snapshot_shows(snapshot: &dyn Snapshot, expected: &State) -> Check {
    let mut stream = snapshot.stream(&StreamSpec::default()).map_err(say("stream of a snapshot"))?;
    let records = drain(&mut *stream)?;
    let streamed: BTreeMap<PageKey, &[u8]> =
        records.iter().map(|r| (r.get().key(), &r.bytes()[..])).collect();
    let wanted: BTreeMap<PageKey, &[u8]> =
        expected.iter().map(|(k, e)| (*k, &e.record.bytes()[..])).collect();
    ensure(records.len() == streamed.len(), || "a snapshot streams a page twice".into())?;
    ensure(streamed == wanted, || format!("a snapshot streams {:?}, expected {expected:?}", records))?;
    let keys = snapshot.keys().map_err(say("keys of a snapshot"))?;
    ensure(keys.iter().eq(expected.keys()), || format!("a snapshot has keys {keys:?}"))?;
    for ((key, many), entry) in keys.iter().zip(snapshot.lookup_many(&keys)).zip(expected.values()) {
        let of_id = snapshot.lookup_id(key.id, Trust::Verify).map_err(say("lookup_id in a snapshot"))?;
        for (door, found) in [
            ("lookup", snapshot.lookup(*key, Trust::Verify)),
            ("lookup_many", many),
            ("lookup_url", snapshot.lookup_url(entry.record.get().url())),
            ("lookup_id", Ok(of_id.into_iter().find(|r| r.get().key() == *key))),
        ] {
            let found = found.map_err(say(door))?;
            let same = found.as_ref().is_some_and(|r| r.bytes() == entry.record.bytes());
            ensure(same, || format!("{door} in a snapshot finds {found:?}, expected {entry:?}"))?;
        }
    }
    for middle in [0, 1 << 62, u64::MAX - 1] {
        let low = list_all(snapshot, PageId(0), PageId(middle))?;
        let high = list_all(snapshot, PageId(middle + 1), PageId(u64::MAX))?;
        let listed = expected.iter().map(|(&key, entry)| Listed {
            key,
            version: entry.record.get().version(),
            bytes: entry.record.bytes().len() as u64,
            ordinal: None,
        });
        let plain = |l: &Listed| Listed { ordinal: None, ..*l };
        ensure(low.iter().chain(&high).map(plain).eq(listed), || {
            format!("cut at {middle:x}, a snapshot lists {low:?} and {high:?}")
        })?;
    }
    Ok(())
}

/// A list of these ids, three at a time.
fn list_all(snapshot: &dyn Snapshot, first: PageId, last: PageId) -> Check<Vec<Listed>> {
    let mut all: Vec<Listed> = Vec::new();
    let mut from = PageKey::MIN;
    loop {
        let some = snapshot.list(first..=last, from, 3).map_err(say("list"))?;
        ensure(some.len() <= 3, || "a list is longer than asked".into())?;
        all.extend(&some);
        match some.last().and_then(|l| l.key.next()).filter(|_| some.len() == 3) {
            Some(next) => from = next,
            None => return Ok(all),
        }
    }
}

/// Whether a store keeps exactly these generations, each with exactly its pages.
pub(crate) fn keeps(store: &dyn PageStore, expected: &Generations) -> Check {
    let kept = store.generations();
    ensure(kept.iter().eq(expected.keys()), || format!("kept are {kept:?}, expected {:?}", expected.keys()))?;
    for (&number, state) in expected {
        let snapshot = store.generation(number).map_err(say("generation"))?;
        let snapshot = snapshot.ok_or_else(|| format!("generation {number} is not there"))?;
        snapshot_shows(&*snapshot, state).map_err(|e| format!("generation {number}: {e}"))?;
        let pages = snapshot.pages();
        ensure(pages == state.len() as u64, || format!("generation {number} says {pages} pages"))?;
        let bytes: usize = state.values().map(|e| e.record.bytes().len()).sum();
        ensure(snapshot.live_bytes() >= bytes as u64, || format!("generation {number} says too few bytes"))?;
    }
    Ok(())
}

/// One operation of a workload.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Add(Vec<Made>),
    /// Sorted by key.
    Merge(Vec<Record>),
    Delete(Vec<PageKey>),
    Seen(Vec<Seen>),
    Commit,
    Compact(u64),
}

/// Why a step did not do what the model says.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The store refused or failed.
    Failed(StorageError),
    /// The store did something else.
    Wrong(String),
}

impl From<StorageError> for Trouble {
    fn from(e: StorageError) -> Trouble {
        Trouble::Failed(e)
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Trouble::Failed(e) => write!(f, "{e}"),
            Trouble::Wrong(what) => write!(f, "{what}"),
        }
    }
}

/// Does a step on the store and, when it succeeds, on the model, and compares their answers.
pub(crate) fn run_step(
    store: &dyn PageStore,
    model: &mut Model,
    step: &Step,
) -> std::result::Result<(), Trouble> {
    let compare = |step: &str, found: u64, expected: u64| {
        let what = format!("{step} answers {found}, the model {expected}");
        if found == expected { Ok(()) } else { Err(Trouble::Wrong(what)) }
    };
    // A log knows what it has. The others find out when they sort pages into leaves, and count what they see.
    let compare_added = |step: &str, found: Added, expected: Added| {
        let what = format!("{step} answers {found:?}, the model {expected:?}");
        let same_sum = found.staged() + found.stale == expected.staged() + expected.stale;
        let same = match store.organization() {
            Organization::Log => found == expected,
            _ => same_sum && found.stale <= expected.stale,
        };
        if same { Ok(()) } else { Err(Trouble::Wrong(what)) }
    };
    let mut added = Added::default();
    match step {
        Step::Add(pages) => {
            let list: Vec<Page<'_>> = pages.iter().map(|made| made.page.page()).collect();
            let found = store.add(&list)?;
            pages.iter().for_each(|made| model.add(&made.record, &mut added));
            compare_added("add", found, added)
        }
        Step::Merge(records) => {
            let found = store.merge(&mut records.iter().cloned().map(Ok))?;
            records.iter().for_each(|record| model.add(record, &mut added));
            compare_added("merge", found, added)
        }
        Step::Delete(keys) => {
            let found = store.delete(keys)?;
            let expected: u64 = keys.iter().map(|&key| model.delete(key)).sum();
            compare("delete", found, expected)
        }
        Step::Seen(list) => {
            let found = store.seen(list)?;
            let expected: u64 = list.iter().map(|seen| model.seen(seen)).sum();
            compare("seen", found, expected)
        }
        Step::Commit => {
            store.commit()?;
            model.commit();
            Ok(())
        }
        Step::Compact(budget) => {
            store.compact(*budget)?;
            Ok(())
        }
    }
}

/// A fixed workload over 16 pages: adds, supersedes, stale adds, merges, deletes and visits in `rounds` commits, with
/// compaction between them.
pub(crate) fn workload(mint: &Mint, rounds: u64, body_bytes: usize) -> Vec<Step> {
    let mut random = Random(rounds);
    let mut steps = Vec::new();
    for round in 0..rounds {
        let page = |random: &mut Random| {
            let at_ms = 1000 * round + random.below(1500);
            let body = random.body(body_bytes / 2 + random.clone().below(body_bytes as u64) as usize, true);
            let lifetime_s = random.below(3) as u32 * 50;
            mint.make(OwnedPage { lifetime_s, ..OwnedPage::new(random.below(16), at_ms, body) })
        };
        steps.push(Step::Add((0..4).map(|_| page(&mut random)).collect()));
        let key = mint.key(random.below(16));
        steps.push(Step::Delete(vec![key]));
        steps.push(Step::Seen(vec![Seen {
            key: mint.key(random.below(16)),
            at_ms: 1000 * round,
            lifetime_s: 70,
        }]));
        let mut records: Vec<Record> = (0..2).map(|_| page(&mut random).record).collect();
        records.sort_by_key(|r| r.get().key());
        steps.push(Step::Merge(records));
        steps.push(Step::Commit);
        if round % 4 == 3 {
            steps.push(Step::Compact(if round % 8 == 3 { 3000 } else { 1 << 30 }));
        }
    }
    steps
}
