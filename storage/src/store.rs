//! The contract that all organizations keep.
//!
//! 1. `add`, `delete`, `seen` and `merge` *stage*; [`PageStore::commit`] makes everything staged durable and visible.
//!    What a commit has acknowledged survives any crash. It becomes visible as a whole; only what is larger than a segment
//!    or a buffer is committed by the store itself, in parts, while it is staged.
//! 2. Of two versions of a page the one with the higher [`crate::Version`] is kept; adding an older one is no error,
//!    it is counted as stale.
//! 3. Readers never wait for writers. A stream sees the pages that were visible when it was opened, each once,
//!    whatever is added, deleted or compacted meanwhile.
//! 4. A damaged record is an error naming file and offset, never a page; the records around it stay readable. It can be
//!    healed with the same record from another store.
//! 5. An `add` that refuses a page stages nothing of its batch. A failed write drops everything staged since the last
//!    commit, and that commit says so; the store goes on. A failed sync ends writing until the store is reopened.
//!    A failed *commit* says so itself, and no later one does again: what any thread had staged is gone with it. So one
//!    thread at a time stages and commits; or those that share a store count the failures that any of them met, and add
//!    again whatever was staged before the last one (the node's server does that).
//! 6. A kept generation shows exactly the pages the store had when it was kept, whatever is added, deleted, compacted or
//!    rolled back later, across restarts and crashes, until it is dropped.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::codec::{Compression, Dictionaries};
use crate::error::{Result, StorageError};
use crate::expiry::{Due, Renewed, Seen};
use crate::page::{Page, PageId, PageKey, RepositoryKey};
use crate::record::Record;
use crate::snapshot::{self, Snapshot};

/// How a store lays its pages out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Organization {
    /// Segments appended in order, an index in memory.
    Log = 1,
    /// Fixed-size buckets on successive id ranges, no index.
    Hash = 2,
    /// Many small logs on id ranges.
    HashedLog = 3,
}

impl Organization {
    /// All of them.
    pub const ALL: [Organization; 3] = [Organization::Log, Organization::Hash, Organization::HashedLog];

    /// Its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Organization::Log => "log",
            Organization::Hash => "hash",
            Organization::HashedLog => "hashed-log",
        }
    }
}

impl fmt::Display for Organization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Organization {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|o| o.name() == text)
            .ok_or_else(|| format!("an organization is log, hash or hashed-log, found {text:?}"))
    }
}

/// Settings of a store. Those marked *fixed* are taken when it is created and kept.
#[derive(Clone, Debug)]
pub struct Options {
    /// How bodies are packed.
    pub compression: Compression,
    /// Whether the store trains a zstd dictionary on its first pages. With `false` it uses what it is given.
    pub train_dictionary: bool,
    /// The largest record accepted.
    pub page_bytes_max: u64,
    /// What the store may occupy on disk; `None` is the whole disk.
    pub capacity_bytes: Option<u64>,
    /// log: bytes of a segment; the commit that fills it ends it. At most 1 GiB.
    pub segment_bytes: u64,
    /// hash: bytes of a bucket (*fixed*).
    pub bucket_bytes: u32,
    /// hashed-log: bytes of a log (*fixed*).
    pub log_bytes: u32,
    /// hash, hashed-log: bytes of pages kept in memory before they are sorted into buckets or logs. With 0 every
    /// commit goes straight to its bucket.
    pub buffer_bytes: u64,
    /// log: bytes of memory for records that were looked up, all overhead counted; 0 for none. The system's page cache
    /// keeps records too, but what comes from there is verified each time, and unpacked each time it is asked for.
    pub cache_bytes: u64,
    /// Goes up by the bytes that `verify` and `repair` have read, while they do: for whoever watches.
    pub checked_bytes: Arc<AtomicU64>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            compression: Compression::default(),
            train_dictionary: true,
            page_bytes_max: 64 << 20,
            capacity_bytes: None,
            segment_bytes: 512 << 20,
            bucket_bytes: 64 << 10,
            log_bytes: 10 << 20,
            buffer_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            checked_bytes: Arc::default(),
        }
    }
}

/// What became of pages handed over.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Added {
    /// Staged: the page was not there.
    pub new: u64,
    /// Staged: an older version was there and is superseded.
    pub superseding: u64,
    /// Not staged: the store has the same or a newer version.
    pub stale: u64,
}

impl Added {
    /// Pages staged.
    pub fn staged(&self) -> u64 {
        self.new + self.superseding
    }
}

/// Whether a reader checks what it reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Trust {
    /// Every record's checksum is verified before it is returned.
    #[default]
    Verify,
    /// The disk is trusted: mapped bytes are returned as they are.
    Disk,
}

/// The order of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// As the pages lie on disk: fastest.
    #[default]
    Store,
    /// By page id.
    Id,
}

/// How a stream reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Access {
    /// Through the page cache.
    #[default]
    Cached,
    /// Past the page cache, so that a scan of everything does not evict everything else.
    Direct,
}

/// Where a stream resumes: right after the last page it delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Cursor {
    /// At the beginning.
    #[default]
    Start,
    /// At this ordinal of a log.
    Ordinal(u64),
    /// At the first page whose key is not below this.
    Key(PageKey),
    /// In logs laid over a log, as who serves many stores as one does: at an ordinal of the log below, then at one of the
    /// log with this number. No store by itself has such a place.
    Live {
        /// In the log below.
        base: u64,
        /// Which of those above.
        epoch: u64,
        /// In that one.
        ordinal: u64,
    },
    /// At the end.
    End,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cursor::Start => f.write_str("start"),
            Cursor::Ordinal(ordinal) => write!(f, "o{ordinal:x}"),
            Cursor::Key(key) => write!(f, "k{key}"),
            Cursor::Live { base, epoch, ordinal } => write!(f, "l{base:x}.{epoch:x}.{ordinal:x}"),
            Cursor::End => f.write_str("end"),
        }
    }
}

fn hex_number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.len() <= 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    u64::from_str_radix(text, 16).ok().filter(|_| digits)
}

impl FromStr for Cursor {
    type Err = StorageError;

    fn from_str(text: &str) -> Result<Self> {
        let parsed = match text.split_at_checked(1) {
            _ if text == "start" => Some(Cursor::Start),
            _ if text == "end" => Some(Cursor::End),
            Some(("o", hex)) => hex_number(hex).map(Cursor::Ordinal),
            Some(("l", rest)) => {
                let mut numbers = rest.split('.').map(hex_number);
                match (numbers.next(), numbers.next(), numbers.next(), numbers.next()) {
                    (Some(Some(base)), Some(Some(epoch)), Some(Some(ordinal)), None) => {
                        Some(Cursor::Live { base, epoch, ordinal })
                    }
                    _ => None,
                }
            }
            Some(("k", key)) => key.split_once('.').and_then(|(id, tie)| {
                let tie = tie.parse::<PageId>().ok()?.0;
                Some(Cursor::Key(PageKey { id: id.parse().ok()?, tie }))
            }),
            _ => None,
        };
        parsed.ok_or_else(|| StorageError::BadCursor {
            what: format!(
                "expected start, end, o…, k… or l…, found {:?}",
                text.chars().take(60).collect::<String>()
            ),
        })
    }
}

/// What to stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StreamSpec {
    /// In which order.
    pub order: Order,
    /// From where.
    pub from: Cursor,
    /// Whether records are verified.
    pub trust: Trust,
    /// How to read.
    pub access: Access,
}

/// Many pages, one after the other, as they were when the stream was opened.
pub trait PageStream: Send {
    /// The next page's record. An error about one record does not end the stream: the next call goes on behind it.
    fn next(&mut self) -> Option<Result<Record>>;

    /// Where to resume so that exactly the pages not delivered yet follow.
    fn cursor(&self) -> Cursor;

    /// In a log: the ordinal of the last record, or of the one that the last error was about.
    fn ordinal(&self) -> Option<u64> {
        None
    }

    /// After an error about one record: the page that it is of, where that can be told.
    fn lost(&self) -> Option<PageKey> {
        None
    }
}

impl Iterator for dyn PageStream {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        PageStream::next(self)
    }
}

/// A store in figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Stats {
    /// How it is organized.
    pub organization: Organization,
    /// What it may occupy.
    pub capacity_bytes: u64,
    /// What it occupies.
    pub used_bytes: u64,
    /// Bytes of records that a reader can get.
    pub live_bytes: u64,
    /// Bytes of records that compaction would take back.
    pub dead_bytes: u64,
    /// Pages a reader can get. With pages in a buffer, hash and hashed-log stores have to read to tell, once per commit.
    pub pages: u64,
    /// Segments, buckets or logs.
    pub segments: u64,
    /// Memory of index, places and buffers.
    pub memory_bytes: u64,
    /// Memory of records kept because they were looked up; at most [`Options::cache_bytes`].
    pub cache_bytes: u64,
}

impl Stats {
    /// The share of the occupied space that holds no live record.
    pub fn fragmentation(&self) -> f64 {
        match self.used_bytes {
            0 => 0.0,
            used => 1.0 - (self.live_bytes as f64 / used as f64).min(1.0),
        }
    }

    /// The share of the occupied space that holds live records.
    pub fn utilisation(&self) -> f64 {
        1.0 - self.fragmentation()
    }

    /// Bytes still free under the capacity.
    pub fn free_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.used_bytes)
    }
}

/// What a call of `compact` did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes given back to the disk.
    pub freed_bytes: u64,
    /// Whether nothing worth compacting is left; if not, call again.
    pub done: bool,
}

/// One damaged place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// What was expected and found.
    pub what: String,
    /// The page it belonged to, where that is known.
    pub key: Option<PageKey>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at offset {}: {}", self.path.display(), self.offset, self.what)?;
        self.key.map_or(Ok(()), |key| write!(f, " (page {key})"))
    }
}

/// What `verify` or `repair` found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Records whose checksums hold.
    pub good_records: u64,
    /// Bytes checked.
    pub checked_bytes: u64,
    /// All damage.
    pub damage: Vec<Damage>,
}

/// Pages on one disk. See the module's head for the rules.
pub trait PageStore: Send + Sync {
    /// How it is organized.
    fn organization(&self) -> Organization;

    /// The key that names its pages.
    fn repository_key(&self) -> &RepositoryKey;

    /// The dictionaries its records need.
    fn dictionaries(&self) -> &Dictionaries;

    /// Makes a dictionary known and durable, and returns its digest. Needed before records that use it. It also brings one
    /// back that was lost, and with it the pages that need it.
    ///
    /// # Errors
    /// When it cannot be written.
    fn add_dictionary(&self, content: &[u8]) -> Result<u64>;

    /// Stages pages. Hash and hashed-log stores look at what is on disk only when they sort their buffer in: until then
    /// a page counts as new unless one with the same key is staged.
    ///
    /// # Errors
    /// When a page is refused: then none of these pages is staged. When the disk fails: see rule 5.
    fn add(&self, pages: &[Page<'_>]) -> Result<Added>;

    /// Stages pages that are records already, as they come from another store.
    ///
    /// # Errors
    /// As for `add`; also when a dictionary is missing.
    fn add_records(&self, records: &[Record]) -> Result<Added>;

    /// Stages the removal of these pages and returns how many were there.
    ///
    /// # Errors
    /// When it cannot be written.
    fn delete(&self, keys: &[PageKey]) -> Result<u64>;

    /// Stages that these pages were seen again, and returns how many were there.
    ///
    /// # Errors
    /// When it cannot be written.
    fn seen(&self, seen: &[Seen]) -> Result<u64>;

    /// Makes everything staged durable and visible. Threads that commit at the same time share one sync.
    ///
    /// # Errors
    /// When the disk fails: nothing staged since the last commit is stored then, whoever staged it (rule 5). After a failed
    /// sync the store takes no more writes.
    fn commit(&self) -> Result<()>;

    /// The record of the page with this key.
    ///
    /// # Errors
    /// When it is damaged or cannot be read. A record that is packed with a dictionary of which no good copy is left is
    /// damage too, here and in every other reader: whoever got it could not unpack it.
    fn lookup(&self, key: PageKey, trust: Trust) -> Result<Option<Record>>;

    /// As `lookup`, for readers who want what is in the page: [`Record::head`] and [`Record::body`] of what is returned
    /// cost nothing more. A log that has a cache keeps it unpacked there.
    ///
    /// # Errors
    /// As `lookup`; also when the page does not unpack.
    fn lookup_unpacked(&self, key: PageKey, trust: Trust) -> Result<Option<Record>> {
        self.lookup(key, trust)?.map(|record| record.unpacked(self.dictionaries())).transpose()
    }

    /// As [`PageStore::lookup`] with [`Trust::Verify`], but only where that needs no waiting for the disk; `None` says
    /// that it would. For servers that answer from memory without a change of threads. It may be wrong about memory now
    /// and then, never about the page.
    fn lookup_warm(&self, key: PageKey) -> Option<Result<Option<Record>>> {
        let _ = key;
        None
    }

    /// The records of all pages with this page id: nearly always one.
    ///
    /// # Errors
    /// When one is damaged or cannot be read.
    fn lookup_id(&self, id: PageId, trust: Trust) -> Result<Vec<Record>>;

    /// The records of many pages, read from disk many at a time.
    fn lookup_many(&self, keys: &[PageKey]) -> Vec<Result<Option<Record>>> {
        keys.iter().map(|&key| self.lookup(key, Trust::Verify)).collect()
    }

    /// The record of the page at `url`, confirmed by the URL in it.
    ///
    /// # Errors
    /// When `url` is none, or the record is damaged or cannot be read.
    fn lookup_url(&self, url: &str) -> Result<Option<Record>> {
        snapshot::lookup_url(self.repository_key(), url, |key| self.lookup(key, Trust::Verify))
    }

    /// Streams all visible pages.
    ///
    /// # Errors
    /// When the organization has no such order, or the cursor is not of this store.
    fn stream(&self, spec: &StreamSpec) -> Result<Box<dyn PageStream>>;

    /// Stages records that come in ascending order of their keys: the fast way to take a batch of updates.
    ///
    /// # Errors
    /// When they are not in order, or as for `add_records`; what came before the error stays staged.
    fn merge(&self, sorted: &mut dyn Iterator<Item = Result<Record>>) -> Result<Added>;

    /// The keys of all visible pages, ascending.
    ///
    /// # Errors
    /// When they cannot be read.
    fn keys(&self) -> Result<Vec<PageKey>>;

    /// The store in figures.
    fn stats(&self) -> Stats;

    /// Takes back the space of dead records, reading and writing about `budget_bytes` at most. Call again until it
    /// says `done`; a call may be interrupted by a crash without loss.
    ///
    /// # Errors
    /// When the disk fails.
    fn compact(&self, budget_bytes: u64) -> Result<Compacted>;

    /// Reads everything and lists all damage.
    ///
    /// # Errors
    /// When something cannot be read at all.
    fn verify(&self) -> Result<Verified>;

    /// Drops what is damaged and keeps what is good; afterwards `verify` finds nothing. Returns what was dropped. Only pages
    /// whose dictionary is lost are neither dropped nor good: they stay, and `verify` goes on to tell, until
    /// `add_dictionary` brings it back or they are superseded or deleted.
    ///
    /// # Errors
    /// When the disk fails.
    fn repair(&self) -> Result<Verified>;

    /// Gives damaged records of a kept generation, or of the current state, their bytes back, in place, from the same records
    /// of another store; returns how many were healed. Records that are whole here, or not here, are left alone. Nothing
    /// else changes: generations, snapshots and cursors stay valid. The records must be those that the generation has; those
    /// of neighbouring pages that are damaged beyond telling which is which are told apart when they come together.
    ///
    /// # Errors
    /// When the disk fails; what is not healed then is damaged as before.
    fn heal(&self, generation: Option<u64>, records: &[Record]) -> Result<u64>;

    /// Makes anew what is damaged and can be made from the rest of the store, without dropping a page that any generation
    /// has. Returns what is damaged afterwards.
    ///
    /// # Errors
    /// When the disk fails.
    fn mend(&self) -> Result<Verified>;

    /// Of damage that hides which page it hit: ids between which that page's is, where they can be told.
    fn ids_at(&self, path: &Path, offset: u64) -> Option<(PageId, PageId)>;

    /// The pages whose time is over at `now_ms`, the longest overdue first, at most `limit`.
    ///
    /// # Errors
    /// When they cannot be read.
    fn due(&self, now_ms: u64, limit: usize) -> Result<Vec<Due>>;

    /// Pages of a kept generation that were seen again, about `limit` of them, and where the next call goes on, if there are
    /// more: places begin with 0 and mean nothing else.
    ///
    /// # Errors
    /// When the generation is not kept, or they cannot be read.
    fn renewed(&self, generation: u64, from: u64, limit: usize) -> Result<(Vec<Renewed>, Option<u64>)>;

    /// Stages the removal of those pages of an earlier due list that are still due, and returns how many.
    ///
    /// # Errors
    /// When it cannot be written.
    fn remove_unseen(&self, list: &[Due], now_ms: u64) -> Result<u64> {
        let still: std::collections::BTreeSet<PageKey> =
            self.due(now_ms, usize::MAX)?.into_iter().map(|due| due.key).collect();
        let keys: Vec<PageKey> = list.iter().map(|due| due.key).filter(|key| still.contains(key)).collect();
        self.delete(&keys)
    }

    /// The committed state as of now. Cheap; lasts as long as it is held.
    fn snapshot(&self) -> Arc<dyn Snapshot>;

    /// Keeps the committed state durably as generation `number`. Its cost follows what changed since the last one, not
    /// what the store holds (but for a bit a page). Keeping a generation again is no error while the store is still in
    /// its state.
    ///
    /// # Errors
    /// When something is staged, when `number` is not above every generation kept, or when the disk fails: then it may or
    /// may not be kept, and keeping it again is safe.
    fn keep_generation(&self, number: u64) -> Result<()>;

    /// The generations kept, ascending.
    fn generations(&self) -> Vec<u64>;

    /// The pages of a kept generation; `None` when it is not kept.
    ///
    /// # Errors
    /// When it cannot be read.
    fn generation(&self, number: u64) -> Result<Option<Arc<dyn Snapshot>>>;

    /// Lets a generation go; returns whether it was kept. What only it needed is garbage from now on, once the snapshots
    /// of it that are in use are dropped.
    ///
    /// # Errors
    /// When the disk fails; then it may still be kept.
    fn drop_generation(&self, number: u64) -> Result<bool>;

    /// Makes the store's state that of a kept generation again, durably: what was committed after it is gone, what is
    /// staged too, and so are the generations kept after it. A crash leaves the state before or that generation's.
    ///
    /// # Errors
    /// When `number` is not kept. When the disk fails: then the state is the one before, and unless the disk was just
    /// full, the store takes no more writes until it is reopened, which shows the one or the other.
    fn roll_back(&self, number: u64) -> Result<()>;

    /// Commits, leaves everything tidy for a fast open, and refuses writes from now on. Dropping a store without
    /// it loses nothing that was committed.
    ///
    /// # Errors
    /// When the disk fails.
    fn close(&self) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_print_and_parse() {
        let key = PageKey { id: PageId(5), tie: 6 };
        for cursor in
            [Cursor::Start, Cursor::End, Cursor::Ordinal(0), Cursor::Ordinal(u64::MAX), Cursor::Key(key)]
        {
            assert_eq!(cursor.to_string().parse::<Cursor>().unwrap(), cursor);
        }
        for bad in ["", "o", "ox", "k", "k5.6", "é", "o+5", "startx"] {
            let parsed = bad.parse::<Cursor>();
            assert!(parsed.is_err() || bad == "o", "{bad} gave {parsed:?}");
        }
    }

    #[test]
    fn organizations_print_and_parse() {
        for organization in Organization::ALL {
            assert_eq!(organization.to_string().parse(), Ok(organization));
        }
        assert!("btree".parse::<Organization>().unwrap_err().contains("hashed-log"));
    }
}
