//! SQLite, compiled in by rusqlite.
//!
//! - WAL, synchronous FULL: every commit is synced.
//! - blocks of 16 KiB, because values are larger than the usual 4 KiB and would become long chains.
//! - an ordinary table with a unique index on the key: its documentation advises against WITHOUT ROWID for large rows.
//! - the file is mapped, which saves a copy per block, and the cache is as configured.
//! - every reader has its own connection, which keeps its statement prepared.

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use rusqlite::Connection;

use crate::contestant::{Add, AddOptions, Found, Peer, PeerConfig, Reader};

pub(super) struct Sqlite {
    path: PathBuf,
    config: PeerConfig,
    writer: Mutex<Connection>,
}

impl Sqlite {
    pub(super) fn open(dir: &Path, config: &PeerConfig) -> Sqlite {
        let path = dir.join("pages.sqlite");
        let writer = connect(&path, config);
        writer
            .execute_batch(
                "CREATE TABLE IF NOT EXISTS pages (key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL)",
            )
            .expect("sqlite: table");
        Sqlite { path, config: *config, writer: Mutex::new(writer) }
    }
}

fn connect(path: &Path, config: &PeerConfig) -> Connection {
    let connection = Connection::open(path).expect("sqlite opens");
    let settings = format!(
        "PRAGMA page_size = 16384; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
         PRAGMA cache_size = -{}; PRAGMA mmap_size = {};",
        config.cache_bytes / 1024,
        1u64 << 40,
    );
    connection.execute_batch(&settings).expect("sqlite: settings");
    connection
}

impl Peer for Sqlite {
    fn add_all(&mut self, pages: &[Add], options: AddOptions) {
        let writer = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner);
        for group in options.groups(pages) {
            let txn = writer.transaction().expect("sqlite: transaction");
            {
                let mut insert =
                    txn.prepare_cached("INSERT OR REPLACE INTO pages VALUES (?, ?)").expect("sqlite: insert");
                for add in group {
                    insert.execute((add.key.as_slice(), add.page.value())).expect("sqlite: insert");
                }
            }
            txn.commit().expect("sqlite: commit");
        }
    }

    fn settle(&mut self) {
        let writer = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner);
        writer.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |_| Ok(())).expect("sqlite: checkpoint");
    }

    fn reader(&self) -> Box<dyn Reader + '_> {
        Box::new(SqliteReader(connect(&self.path, &self.config)))
    }

    fn scan(&self, found: Found<'_>) -> u64 {
        let connection = connect(&self.path, &self.config);
        let mut select = connection.prepare("SELECT value FROM pages").expect("sqlite: select");
        let mut rows = select.query(()).expect("sqlite: scan");
        let mut count = 0;
        while let Some(row) = rows.next().expect("sqlite: next") {
            found(row.get_ref(0).and_then(|value| Ok(value.as_blob()?)).expect("sqlite: a blob"));
            count += 1;
        }
        count
    }
}

struct SqliteReader(Connection);

impl Reader for SqliteReader {
    fn lookup(&mut self, key: &[u8; 16], found: Found<'_>) -> bool {
        let mut select =
            self.0.prepare_cached("SELECT value FROM pages WHERE key = ?").expect("sqlite: select");
        let mut rows = select.query([key.as_slice()]).expect("sqlite: lookup");
        let Some(row) = rows.next().expect("sqlite: next") else { return false };
        found(row.get_ref(0).and_then(|value| Ok(value.as_blob()?)).expect("sqlite: a blob"));
        true
    }
}
