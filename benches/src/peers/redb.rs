//! redb.
//!
//! - cache as configured: redb keeps blocks in its own memory and does not map files.
//! - one transaction per durable moment, immediate durability (the default).
//! - a reader keeps one read transaction and its table open.

use std::path::Path;

use redb::{Database, ReadOnlyTable, ReadableDatabase, ReadableTable, TableDefinition};

use crate::contestant::{Add, AddOptions, Found, Peer, PeerConfig, Reader};

const PAGES: TableDefinition<[u8; 16], &[u8]> = TableDefinition::new("pages");

pub(super) struct Redb {
    db: Database,
}

impl Redb {
    pub(super) fn open(dir: &Path, config: &PeerConfig) -> Redb {
        let db =
            Database::builder().set_cache_size(config.cache_bytes as usize).create(dir.join("pages.redb"));
        Redb { db: db.expect("redb opens") }
    }

    fn table(&self) -> ReadOnlyTable<[u8; 16], &'static [u8]> {
        self.db.begin_read().expect("redb: read transaction").open_table(PAGES).expect("redb: table")
    }
}

impl Peer for Redb {
    fn add_all(&mut self, pages: &[Add], options: AddOptions) {
        for group in options.groups(pages) {
            let txn = self.db.begin_write().expect("redb: write transaction");
            {
                let mut table = txn.open_table(PAGES).expect("redb: table");
                for add in group {
                    table.insert(add.key, add.page.value()).expect("redb: insert");
                }
            }
            txn.commit().expect("redb: commit");
        }
    }

    fn reader(&self) -> Box<dyn Reader + '_> {
        Box::new(RedbReader(self.table()))
    }

    fn scan(&self, found: Found<'_>) -> u64 {
        let mut count = 0;
        for entry in self.table().iter().expect("redb: iterator") {
            found(entry.expect("redb: next").1.value());
            count += 1;
        }
        count
    }
}

struct RedbReader(ReadOnlyTable<[u8; 16], &'static [u8]>);

impl Reader for RedbReader {
    fn lookup(&mut self, key: &[u8; 16], found: Found<'_>) -> bool {
        self.0.get(key).expect("redb: get").map(|value| found(value.value())).is_some()
    }
}
