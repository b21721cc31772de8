//! RocksDB, with values in its sorted tables or in blob files (BlobDB), plain or zstd.
//!
//! - write buffers 4 × 256 MiB, tables and blob files 256 MiB: fewer, larger flushes and compactions for large values.
//! - background jobs: as many as cores; the writer is one thread.
//! - batches of 4 MiB without a log and one flush, when only the end has to be durable: each page is written once.
//!   With durability every n pages: the write-ahead log, synced once per n.
//! - a sorted load into plain tables writes table files and ingests them, as its documentation advises.
//! - block cache (and blob cache) as configured, blocks 16 KiB, Bloom filter 10 bits.
//! - zstd at its default level 3, per block or blob.

use std::{path::Path, thread::available_parallelism};

use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, Options, ReadOptions, SstFileWriter,
    WaitForCompactOptions, WriteBatch, WriteOptions,
};

use crate::contestant::{Add, AddOptions, Found, Peer, PeerConfig, Reader};

const BATCH_BYTES: usize = 4 << 20;
const FILE_BYTES: u64 = 256 << 20;

pub(super) struct Rocks {
    db: DB,
    options: Options,
    blobs: bool,
}

impl Rocks {
    pub(super) fn open(dir: &Path, config: &PeerConfig, blobs: bool, packs: bool) -> Rocks {
        let compression = if packs { DBCompressionType::Zstd } else { DBCompressionType::None };
        let cache = Cache::new_lru_cache(config.cache_bytes as usize);
        let mut tables = BlockBasedOptions::default();
        tables.set_block_cache(&cache);
        tables.set_block_size(16 << 10);
        tables.set_bloom_filter(10.0, false);

        let mut options = Options::default();
        options.create_if_missing(true);
        options.increase_parallelism(available_parallelism().map_or(2, |n| n.get() as i32));
        options.set_write_buffer_size(FILE_BYTES as usize);
        options.set_max_write_buffer_number(4);
        options.set_target_file_size_base(FILE_BYTES);
        options.set_compression_type(compression);
        options.set_block_based_table_factory(&tables);
        if blobs {
            options.set_enable_blob_files(true);
            options.set_min_blob_size(1024);
            options.set_blob_file_size(FILE_BYTES);
            options.set_blob_compression_type(compression);
            options.set_blob_cache(&cache);
            options.set_enable_blob_gc(true);
        }
        Rocks { db: DB::open(&options, dir).expect("rocksdb opens"), options, blobs }
    }

    fn write(&self, pages: &[Add], with_log: bool) {
        let mut unsynced = WriteOptions::default();
        unsynced.disable_wal(!with_log);
        let mut batch = WriteBatch::default();
        for add in pages {
            batch.put(add.key, add.page.value());
            if batch.size_in_bytes() > BATCH_BYTES {
                self.db.write_opt(std::mem::take(&mut batch), &unsynced).expect("rocksdb: write");
            }
        }
        self.db.write_opt(batch, &unsynced).expect("rocksdb: write");
    }

    fn ingest(&self, pages: &[Add]) {
        let mut files = Vec::new();
        let mut rest = pages;
        while !rest.is_empty() {
            let path = self.db.path().join(format!("load-{}.sst", files.len()));
            let mut writer = SstFileWriter::create(&self.options);
            writer.open(&path).expect("rocksdb: table file");
            while let [add, after @ ..] = rest {
                writer.put(add.key, add.page.value()).expect("rocksdb: put in table file");
                rest = after;
                if writer.file_size() > FILE_BYTES {
                    break;
                }
            }
            writer.finish().expect("rocksdb: finish table file");
            files.push(path);
        }
        let mut options = rocksdb::IngestExternalFileOptions::default();
        options.set_move_files(true);
        self.db.ingest_external_file_opts(&options, files).expect("rocksdb: ingest");
    }
}

impl Peer for Rocks {
    fn add_all(&mut self, pages: &[Add], options: AddOptions) {
        if options.durable_every.is_some() {
            for group in options.groups(pages) {
                self.write(group, true);
                self.db.flush_wal(true).expect("rocksdb: sync the log");
            }
        } else if options.sorted_load && !self.blobs {
            self.ingest(pages);
        } else {
            self.write(pages, false);
            self.db.flush().expect("rocksdb: flush");
        }
    }

    fn settle(&mut self) {
        let mut options = WaitForCompactOptions::default();
        options.set_flush(true);
        self.db.wait_for_compact(&options).expect("rocksdb: compaction");
    }

    fn reader(&self) -> Box<dyn Reader + '_> {
        Box::new(RocksReader(&self.db))
    }

    fn scan(&self, found: Found<'_>) -> u64 {
        let mut options = ReadOptions::default();
        options.set_readahead_size(4 << 20);
        let mut iterator = self.db.raw_iterator_opt(options);
        iterator.seek_to_first();
        let mut count = 0;
        while let Some(value) = iterator.value() {
            found(value);
            count += 1;
            iterator.next();
        }
        iterator.status().expect("rocksdb: scan");
        count
    }
}

struct RocksReader<'a>(&'a DB);

impl Reader for RocksReader<'_> {
    fn lookup(&mut self, key: &[u8; 16], found: Found<'_>) -> bool {
        self.0.get_pinned(key).expect("rocksdb: get").map(|value| found(&value)).is_some()
    }
}
