//! LMDB through heed.
//!
//! - map of 256 GiB: address space, not memory; it can't grow under readers.
//! - sync at commit, no WRITEMAP, no NOSYNC: the durability everybody else gives.
//! - APPEND on a sorted load: LMDB's own way to fill blocks completely.
//! - a reader keeps one read transaction open, as a program that looks up many pages would.

use std::path::Path;

use heed::{CommitOrAbort, Database, Env, EnvOpenOptions, PutFlags, RoTxn, WithoutTls, types::Bytes};

use crate::contestant::{Add, AddOptions, Found, Peer, Reader};

const MAP_BYTES: usize = 256 << 30;

pub(super) struct Lmdb {
    env: Env<WithoutTls>,
}

impl Lmdb {
    pub(super) fn open(dir: &Path) -> Lmdb {
        // SAFETY: the folder is ours alone, on a local disk.
        #[expect(unsafe_code, reason = "the caller of LMDB answers for its files")]
        let env = unsafe { EnvOpenOptions::new().read_txn_without_tls().map_size(MAP_BYTES).open(dir) };
        Lmdb { env: env.expect("lmdb opens") }
    }

    /// The unnamed database, which always exists.
    fn database(&self) -> Database<'_, Bytes, Bytes> {
        let txn = self.env.read_txn().expect("lmdb: read transaction");
        let open = self.env.open_databases_and_commit(txn, |opener, txn| {
            opener.open_database::<Bytes, Bytes>(txn, None).map(CommitOrAbort::<_, ()>::Commit)
        });
        open.expect("lmdb: database").unwrap_commit().expect("the unnamed database exists")
    }
}

impl Peer for Lmdb {
    fn add_all(&mut self, pages: &[Add], options: AddOptions) {
        let database = self.database();
        let flags = if options.sorted_load { PutFlags::APPEND } else { PutFlags::empty() };
        for group in options.groups(pages) {
            let mut txn = self.env.write_txn().expect("lmdb: write transaction");
            for add in group {
                database.put_with_flags(&mut txn, flags, &add.key, add.page.value()).expect("lmdb: put");
            }
            txn.commit().expect("lmdb: commit");
        }
    }

    fn reader(&self) -> Box<dyn Reader + '_> {
        Box::new(LmdbReader {
            database: self.database(),
            txn: self.env.read_txn().expect("lmdb: read transaction"),
        })
    }

    fn scan(&self, found: Found<'_>) -> u64 {
        let txn = self.env.read_txn().expect("lmdb: read transaction");
        let mut count = 0;
        for entry in self.database().iter(&txn).expect("lmdb: iterator") {
            found(entry.expect("lmdb: next").1);
            count += 1;
        }
        count
    }
}

struct LmdbReader<'e> {
    database: Database<'e, Bytes, Bytes>,
    txn: RoTxn<'e, WithoutTls>,
}

impl Reader for LmdbReader<'_> {
    fn lookup(&mut self, key: &[u8; 16], found: Found<'_>) -> bool {
        self.database.get(&self.txn, key).expect("lmdb: get").map(found).is_some()
    }
}
