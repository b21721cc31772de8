//! fjall, plain or lz4.
//!
//! - values in blob files (key-value separation), which fjall advises for values over 1 KiB; blob files of 256 MiB.
//! - memtable 128 MiB, journal up to 2 GiB: fewer flushes for large values.
//! - the journal is written and synced by us, at the promised moments only.
//! - a sorted load uses its ingestion, which skips the journal.
//! - lz4 in blobs, blocks and journal, or nowhere.

use std::path::Path;

use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode,
    config::CompressionPolicy,
};

use crate::contestant::{Add, AddOptions, Found, Peer, PeerConfig, Reader};

pub(super) struct Fjall {
    pages: Keyspace,
    db: Database,
}

impl Fjall {
    pub(super) fn open(dir: &Path, config: &PeerConfig, packs: bool) -> Fjall {
        let compression = if packs { CompressionType::Lz4 } else { CompressionType::None };
        let db = Database::builder(dir)
            .cache_size(config.cache_bytes)
            .max_journaling_size(2 << 30)
            .journal_compression(compression)
            .manual_journal_persist(true)
            .open()
            .expect("fjall opens");
        let blobs = KvSeparationOptions::default().compression(compression).file_target_size(256 << 20);
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(128 << 20)
                .manual_journal_persist(true)
                .expect_point_read_hits(true)
                .data_block_compression_policy(CompressionPolicy::all(compression))
                .with_kv_separation(Some(blobs))
        };
        let pages = db.keyspace("pages", options).expect("fjall: keyspace");
        Fjall { pages, db }
    }
}

impl Peer for Fjall {
    fn add_all(&mut self, pages: &[Add], options: AddOptions) {
        if options.sorted_load && options.durable_every.is_none() {
            let mut ingestion = self.pages.start_ingestion().expect("fjall: ingestion");
            for add in pages {
                ingestion.write(add.key, add.page.value()).expect("fjall: ingest");
            }
            return ingestion.finish().expect("fjall: end of ingestion");
        }
        for group in options.groups(pages) {
            for add in group {
                self.pages.insert(add.key, add.page.value()).expect("fjall: insert");
            }
            self.db.persist(PersistMode::SyncData).expect("fjall: persist");
        }
    }

    fn settle(&mut self) {
        self.pages.rotate_memtable_and_wait().expect("fjall: flush");
        while self.db.outstanding_flushes() > 0 || self.db.active_compactions() > 0 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    fn reader(&self) -> Box<dyn Reader + '_> {
        Box::new(FjallReader(&self.pages))
    }

    fn scan(&self, found: Found<'_>) -> u64 {
        let mut count = 0;
        for entry in self.pages.iter() {
            found(&entry.value().expect("fjall: next"));
            count += 1;
        }
        count
    }
}

struct FjallReader<'a>(&'a Keyspace);

impl Reader for FjallReader<'_> {
    fn lookup(&mut self, key: &[u8; 16], found: Found<'_>) -> bool {
        self.0.get(key).expect("fjall: get").map(|value| found(&value)).is_some()
    }
}
