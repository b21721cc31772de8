//! Pages on disk. No network, no async.
//!
//! A *page* is one URL's content. A *store* keeps the pages of one node in one of three organizations, all behind
//! [`PageStore`]:
//!
//! | | `log` | `hash` | `hashed-log` |
//! |---|---|---|---|
//! | layout | segments, appended | buckets on id ranges | small logs on id ranges |
//! | adding, any order | sequential writing | a bucket read and written each | buffered, then appended |
//! | adding, sorted | the same | one sweep | one sweep |
//! | lookup | index, one read | no index, one bucket read | index, one read |
//! | stream | store order, sequential | id order, sequential | id order, sequential |
//! | memory | about 14 bytes a page | about 140 bytes a bucket, no index | about 12 bytes a page |
//!
//! ```
//! use webbase_storage::{Options, Organization, Page, RepositoryKey, create, open};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let dir = folder.path();
//! let key = RepositoryKey::random()?;
//! create(dir, Organization::Log, key, &Options::default())?;
//! let store = open(dir, &Options::default())?;
//! store.add(&[Page { url: "http://example.org/", body: b"<p>hello", ..Page::default() }])?;
//! store.commit()?; // durable and visible from here on
//!
//! let record = store.lookup_url("https://example.org")?.expect("it was just added");
//! assert_eq!(&record.body(store.dictionaries())?[..], b"<p>hello");
//! # Ok(())
//! # }
//! ```

mod bits;
mod cache;
mod catalog;
mod codec;
mod dictionary_files;
pub mod digests;
pub mod disk;
mod error;
mod expiry;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod identity;
mod in_order;
mod in_turn;
mod index;
pub mod inflate;
mod log;
mod mark;
mod packer;
mod page;
mod ranges;
mod record;
mod samples;
mod snapshot;
mod store;
pub mod surt;
pub mod url;
pub mod urls;

use std::path::Path;
use std::sync::Arc;

pub use codec::{Codec, Compression, Dictionaries, Dictionary};
pub use error::{Result, StorageError};
pub use expiry::{Due, Renewed, SHORT_LIFE_S, Seen, deadline_ms};
pub use packer::{pack_page, pack_page_into, record_bytes_max};
pub use page::{Deflated, Page, PageId, PageKey, RepositoryKey, Version};
pub use record::{
    FIELD_BYTES_MAX, Kind, PAYLOAD_DIGEST_BYTES, RECORD_BYTES_MIN, Record, RecordError, RecordRef, crc64,
    crc64_of_parts, record_len,
};
pub use samples::Samples;
pub use snapshot::{Listed, Snapshot};
pub use store::{
    Access, Added, Compacted, Cursor, Damage, Options, Order, Organization, PageStore, PageStream, Stats,
    StreamSpec, Trust, Verified,
};

use disk::{Disk, OsDisk};
use identity::Identity;
use log::LogStore;
use packer::Packer;
use ranges::RangeStore;

/// Creates a store in a new or empty folder.
///
/// # Errors
/// When the folder holds something else, or cannot be written.
pub fn create(dir: &Path, organization: Organization, key: RepositoryKey, options: &Options) -> Result<()> {
    create_on(&(Arc::new(OsDisk::new()) as Arc<dyn Disk>), dir, organization, key, options)
}

/// Opens the store in `dir`, recovering from whatever ended its last use.
///
/// # Errors
/// When it is no store of this version, another process has it open, or the disk fails.
pub fn open(dir: &Path, options: &Options) -> Result<Arc<dyn PageStore>> {
    open_on(&(Arc::new(OsDisk::new()) as Arc<dyn Disk>), dir, options)
}

/// As [`create`], on any disk.
///
/// # Errors
/// As [`create`].
pub fn create_on(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    organization: Organization,
    key: RepositoryKey,
    options: &Options,
) -> Result<()> {
    let unit_bytes = match organization {
        Organization::Log => 0,
        Organization::Hash => options.bucket_bytes,
        Organization::HashedLog => options.log_bytes,
    };
    // Slots begin on blocks, and hold at least a leaf's header.
    let unit_bytes = unit_bytes.next_multiple_of(4096);
    disk.create_dir(dir).map_err(|e| StorageError::io("create", dir, e))?;
    let _lock = lock(&**disk, dir)?;
    Identity::check_empty(&**disk, dir)?;
    match organization {
        Organization::Log => LogStore::create(disk, dir)?,
        Organization::Hash | Organization::HashedLog => ranges::create(disk, dir)?,
    }
    Identity { organization, key, unit_bytes }.create(&**disk, dir)
}

/// As [`open`], on any disk.
///
/// # Errors
/// As [`open`].
pub fn open_on(disk: &Arc<dyn Disk>, dir: &Path, options: &Options) -> Result<Arc<dyn PageStore>> {
    let identity = Identity::read(&**disk, dir)?;
    let lock = lock(&**disk, dir)?;
    let (packer, found) = Packer::open(disk.clone(), dir, identity.key, options)?;
    match identity.organization {
        Organization::Log => Ok(Arc::new(LogStore::open(disk.clone(), dir, (packer, found), options, lock)?)),
        organization => {
            let unit = identity.unit_bytes;
            Ok(Arc::new(RangeStore::open(
                disk.clone(),
                dir,
                (organization, unit),
                (packer, found),
                options,
                lock,
            )?))
        }
    }
}

fn lock(disk: &dyn Disk, dir: &Path) -> Result<Box<dyn disk::DiskLock>> {
    let path = dir.join("LOCK");
    match disk.lock(&path).map_err(|e| StorageError::io("lock", &path, e))? {
        Some(lock) => Ok(lock),
        None => Err(StorageError::Locked { path: dir.to_path_buf() }),
    }
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |d| d.as_millis() as u64)
}

/// Feeds a sorted sequence of records to `add` in batches, checking its order.
fn merge_in_batches(
    sorted: &mut dyn Iterator<Item = Result<Record>>,
    mut add: impl FnMut(&[Record]) -> Result<Added>,
) -> Result<Added> {
    const BATCH_BYTES: usize = 8 << 20;
    let mut total = Added::default();
    let mut previous: Option<PageKey> = None;
    let (mut batch, mut bytes) = (Vec::new(), 0);
    let mut flush = |batch: &mut Vec<Record>| -> Result<()> {
        let added = add(batch)?;
        total.new += added.new;
        total.superseding += added.superseding;
        total.stale += added.stale;
        batch.clear();
        Ok(())
    };
    for record in sorted {
        let record = match record {
            Ok(record) => record,
            Err(e) => {
                flush(&mut batch)?;
                return Err(e);
            }
        };
        let next = record.get().key();
        if let Some(previous) = previous.filter(|&p| p > next) {
            flush(&mut batch)?;
            return Err(StorageError::NotSorted { previous, next });
        }
        previous = Some(next);
        bytes += record.bytes().len();
        batch.push(record);
        if bytes >= BATCH_BYTES {
            flush(&mut batch)?;
            bytes = 0;
        }
    }
    flush(&mut batch)?;
    Ok(total)
}
