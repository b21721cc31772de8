//! Other engines, each with settings that suit values of 20 KB. A setting that is not the default says why.

use crate::contestant::Contestant;

mod fjall;
mod lmdb;
mod redb;
#[cfg(feature = "peers")]
mod rocksdb;
mod sqlite;
mod warc_gz;

/// All engines: those that keep pages as they are, then those that pack them.
pub(crate) fn all() -> Vec<Contestant> {
    let engine = |name, open| Contestant { name, open };
    vec![
        engine("lmdb", |dir, _| Box::new(lmdb::Lmdb::open(dir))),
        #[cfg(feature = "peers")]
        engine("rocksdb", |dir, config| Box::new(rocksdb::Rocks::open(dir, config, false, false))),
        #[cfg(feature = "peers")]
        engine("rocksdb-blob", |dir, config| Box::new(rocksdb::Rocks::open(dir, config, true, false))),
        engine("fjall", |dir, config| Box::new(fjall::Fjall::open(dir, config, false))),
        engine("redb", |dir, config| Box::new(redb::Redb::open(dir, config))),
        engine("sqlite", |dir, config| Box::new(sqlite::Sqlite::open(dir, config))),
        #[cfg(feature = "peers")]
        engine("rocksdb-zstd", |dir, config| Box::new(rocksdb::Rocks::open(dir, config, false, true))),
        #[cfg(feature = "peers")]
        engine("rocksdb-blob-zstd", |dir, config| Box::new(rocksdb::Rocks::open(dir, config, true, true))),
        engine("fjall-lz4", |dir, config| Box::new(fjall::Fjall::open(dir, config, true))),
        engine("warc-gz", |dir, _| Box::new(warc_gz::WarcGz::open(dir))),
    ]
}
