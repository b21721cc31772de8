//! webbase's own stores as contestants.

use std::path::Path;
use std::sync::Arc;

use webbase_storage::{
    Access, Compression, Options, Organization, Page, PageId, PageKey, PageStore, Record, StreamSpec, Trust,
    create, open,
};

use crate::contestant::{Add, AddOptions, Contestant, Found, Peer, PeerConfig, Reader};
use crate::corpus::{CorpusPage, repository_key};

/// Pages handed over at once.
const BATCH_PAGES: usize = 1024;

/// The stores that compete with other engines.
pub fn all() -> Vec<Contestant> {
    let log = |name, open: fn(&Path, &PeerConfig) -> Box<dyn Peer>| Contestant { name, open };
    vec![
        log("webbase", |dir, config| Store::cached(dir, PLAIN, config)),
        log("webbase-verify", |dir, config| Store::cached(dir, VERIFIED, config)),
        log("webbase-zstd", |dir, config| Store::cached(dir, PACKED, config)),
        // Without a cache of its own: the system's page cache only.
        log("webbase-no-cache", |dir, _| Store::cached(dir, PLAIN, &NO_CACHE)),
        log("webbase-verify-no-cache", |dir, _| Store::cached(dir, VERIFIED, &NO_CACHE)),
        log("webbase-zstd-no-cache", |dir, _| Store::cached(dir, PACKED, &NO_CACHE)),
        Contestant {
            name: "webbase-hash",
            open: |dir, _| Box::new(Store::open(dir, Organization::Hash, VERIFIED, Options::default())),
        },
        Contestant {
            name: "webbase-hashed-log",
            open: |dir, _| Box::new(Store::open(dir, Organization::HashedLog, VERIFIED, Options::default())),
        },
    ]
}

const NO_CACHE: PeerConfig = PeerConfig { cache_bytes: 0 };

/// How a store is used.
#[derive(Clone, Copy)]
pub struct Use {
    /// How bodies are packed.
    pub compression: Compression,
    /// Whether records are verified when read.
    pub trust: Trust,
    /// Whether scans go past the page cache.
    pub access: Access,
}

/// Bodies as they are, the disk trusted, as the other engines trust it.
pub const PLAIN: Use = Use { compression: Compression::None, trust: Trust::Disk, access: Access::Cached };
/// Bodies as they are, every record verified.
pub const VERIFIED: Use = Use { trust: Trust::Verify, ..PLAIN };
/// The default: packed and verified.
pub const PACKED: Use =
    Use { compression: Compression::Zstd(1), trust: Trust::Verify, access: Access::Cached };

/// A store under test.
pub struct Store {
    /// The store.
    pub store: Arc<dyn PageStore>,
    how: Use,
}

impl Store {
    /// Creates or opens a store.
    pub fn open(dir: &Path, organization: Organization, how: Use, options: Options) -> Store {
        let options = Options { compression: how.compression, ..options };
        if !dir.join("STORE").exists() {
            create(dir, organization, repository_key(), &options).expect("a new store");
        }
        Store { store: open(dir, &options).expect("a store"), how }
    }

    /// A log with as much memory for records as the other engines have for theirs.
    fn cached(dir: &Path, how: Use, config: &PeerConfig) -> Box<dyn Peer> {
        let options = Options { cache_bytes: config.cache_bytes, ..Options::default() };
        Box::new(Self::open(dir, Organization::Log, how, options))
    }

    /// Hands a record over as a consumer sees it: whole, unpacked.
    pub fn deliver(&self, record: &Record, unpacked: &mut Vec<u8>, found: Found<'_>) {
        match self.how.compression {
            Compression::None => found(record.bytes()),
            _ => {
                record.get().unpack_into(self.store.dictionaries(), unpacked).expect("a body that unpacks");
                let head = record.get().head(self.store.dictionaries()).expect("a head that unpacks");
                unpacked.extend_from_slice(&head);
                found(unpacked);
            }
        }
    }

    /// A scan from start to end.
    pub fn scan_with(&self, access: Access, found: Found<'_>) -> u64 {
        let spec = StreamSpec { trust: self.how.trust, access, ..StreamSpec::default() };
        let stream = self.store.stream(&spec).expect("a stream");
        let mut unpacked = Vec::new();
        let mut count = 0;
        for record in stream {
            self.deliver(&record.expect("a good record"), &mut unpacked, found);
            count += 1;
        }
        count
    }
}

impl Drop for Store {
    /// Ends as a program would, so that opening again is opening and not recovery.
    fn drop(&mut self) {
        let _ = self.store.close(); // refused when a benchmark closed it already
    }
}

/// A corpus page as a page.
pub fn page(page: &CorpusPage) -> Page<'static> {
    Page {
        url: page.url,
        head: page.head,
        body: page.body,
        fetched_at_ms: page.fetched_at_ms,
        ..Page::default()
    }
}

/// A contestant's key as ours.
pub fn page_key(key: &[u8; 16]) -> PageKey {
    let (id, tie) = key.split_at(8);
    let word = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
    PageKey { id: PageId(word(id)), tie: word(tie) }
}

impl Peer for Store {
    fn add_all(&mut self, pages: &[Add], options: AddOptions) {
        for group in options.groups(pages) {
            for batch in group.chunks(BATCH_PAGES) {
                let batch: Vec<Page<'_>> = batch.iter().map(|add| page(&add.page)).collect();
                self.store.add(&batch).expect("room for a batch");
            }
            self.store.commit().expect("a commit");
        }
    }

    fn reader(&self) -> Box<dyn Reader + '_> {
        Box::new(OurReader { store: self })
    }

    fn scan(&self, found: Found<'_>) -> u64 {
        self.scan_with(self.how.access, found)
    }
}

struct OurReader<'a> {
    store: &'a Store,
}

impl Reader for OurReader<'_> {
    fn lookup(&mut self, key: &[u8; 16], found: Found<'_>) -> bool {
        let (store, how) = (&self.store.store, self.store.how);
        if how.compression == Compression::None {
            let record = store.lookup(page_key(key), how.trust).expect("a readable page");
            return record.map(|record| found(record.bytes())).is_some();
        }
        let Some(record) = store.lookup_unpacked(page_key(key), how.trust).expect("a readable page") else {
            return false;
        };
        let head = record.head(store.dictionaries()).expect("a head that unpacks");
        std::hint::black_box(crate::measure::touch(&head));
        found(&record.body(store.dictionaries()).expect("a body that unpacks"));
        true
    }
}
