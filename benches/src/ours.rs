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
    vec![
        Contestant {
            name: "webbase",
            open: |dir, _: &PeerConfig| Store::boxed(dir, Organization::Log, PLAIN),
        },
        Contestant {
            name: "webbase-verify",
            open: |dir, _: &PeerConfig| Store::boxed(dir, Organization::Log, VERIFIED),
        },
        Contestant {
            name: "webbase-zstd",
            open: |dir, _: &PeerConfig| Store::boxed(dir, Organization::Log, PACKED),
        },
        Contestant {
            name: "webbase-hash",
            open: |dir, _: &PeerConfig| Store::boxed(dir, Organization::Hash, VERIFIED),
        },
        Contestant {
            name: "webbase-hashed-log",
            open: |dir, _: &PeerConfig| Store::boxed(dir, Organization::HashedLog, VERIFIED),
        },
    ]
}

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

    fn boxed(dir: &Path, organization: Organization, how: Use) -> Box<dyn Peer> {
        Box::new(Self::open(dir, organization, how, Options::default()))
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
        Box::new(OurReader { store: self, unpacked: Vec::new() })
    }

    fn scan(&self, found: Found<'_>) -> u64 {
        self.scan_with(self.how.access, found)
    }
}

struct OurReader<'a> {
    store: &'a Store,
    unpacked: Vec<u8>,
}

impl Reader for OurReader<'_> {
    fn lookup(&mut self, key: &[u8; 16], found: Found<'_>) -> bool {
        match self.store.store.lookup(page_key(key), self.store.how.trust).expect("a readable page") {
            Some(record) => {
                self.store.deliver(&record, &mut self.unpacked, found);
                true
            }
            None => false,
        }
    }
}
