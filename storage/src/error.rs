//! What can go wrong in a store, each variant something a caller can act on.

use std::io;
use std::path::{Path, PathBuf};

use crate::page::PageKey;
use crate::url::UrlError;

/// The result of a storage operation.
pub type Result<T> = std::result::Result<T, StorageError>;

/// Why a store refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The operating system refused; nothing acknowledged is lost.
    #[error("cannot {op} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        op: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },

    /// The disk, or the capacity given to the store, is full. What was committed stays; free some space
    /// (delete pages and compact, or give the store more room) and add the batch again.
    #[error(
        "no space left for {}: the batch was not stored, what was committed before is safe; \
         free space or compact, then add it again",
        path.display()
    )]
    NoSpace {
        /// The file or folder that could not grow.
        path: PathBuf,
    },

    /// An earlier write failed, and everything staged before it was dropped. What was staged since is still staged.
    #[error("what was staged in {} before a write failed ({why}) was not stored; add it again, then commit", path.display())]
    Dropped {
        /// The store's folder.
        path: PathBuf,
        /// The failure.
        why: String,
    },

    /// Bytes on disk are not what was written. The record is never returned.
    #[error("damage in {} at offset {offset}: {what}; `verify` lists all damage, `repair` keeps what is good", path.display())]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// What was expected and found.
        what: String,
    },

    /// The folder holds something else than a store.
    #[error("{} is not a store: {what}; give an empty or new folder to create one", path.display())]
    NotAStore {
        /// The folder.
        path: PathBuf,
        /// What is missing or wrong.
        what: String,
    },

    /// The store was written by another version of the format.
    #[error("{} has format version {found}, this program reads version {expected}; open it with the program that wrote it and copy the pages over", path.display())]
    Version {
        /// The file that says so.
        path: PathBuf,
        /// The version found.
        found: u32,
        /// The version this program reads.
        expected: u32,
    },

    /// The store was created differently from what the caller asked for.
    #[error("{} was created with {found}, but {asked} was asked for; open it with the settings it was created with", path.display())]
    Mismatch {
        /// The store's folder.
        path: PathBuf,
        /// What the store has.
        found: String,
        /// What was asked for.
        asked: String,
    },

    /// Another process has the store open.
    #[error("{} is in use by another process; stop that process, or open another store", path.display())]
    Locked {
        /// The store's folder.
        path: PathBuf,
    },

    /// A page is larger than the store accepts.
    #[error("page {url} takes {bytes} bytes, the limit is {max}; raise `page_bytes_max` or cut the body")]
    PageTooLarge {
        /// The page's URL.
        url: String,
        /// Its size as a record.
        bytes: u64,
        /// The limit in force.
        max: u64,
    },

    /// A page whose URL is not one.
    #[error(transparent)]
    Url(#[from] UrlError),

    /// A field of a page does not fit the record format.
    #[error("page {url}: {what}")]
    BadPage {
        /// The page's URL.
        url: String,
        /// The field and its bound.
        what: String,
    },

    /// Bytes handed over as a record are not one.
    #[error("not a record: {0}")]
    BadRecord(#[from] crate::record::RecordError),

    /// A body that does not unpack to what its record says.
    #[error(
        "the body of {url} does not unpack: {what}; read it from another replica, or fetch the page again and add it"
    )]
    Unpack {
        /// The page's URL.
        url: String,
        /// The codec's complaint.
        what: String,
    },

    /// A record needs a dictionary this store does not have.
    #[error("dictionary {digest:016x} is unknown here; add the dictionary before the records that use it")]
    UnknownDictionary {
        /// The digest that names it.
        digest: u64,
    },

    /// A merge batch that is not sorted.
    #[error("a merge takes records in ascending order of page id: {next} came after {previous}")]
    NotSorted {
        /// The key before.
        previous: PageKey,
        /// The key that is out of order.
        next: PageKey,
    },

    /// A stream order this organization does not have.
    #[error("the {organization} organization cannot stream in {order} order; {hint}")]
    NoSuchOrder {
        /// The organization asked.
        organization: &'static str,
        /// The order asked for.
        order: &'static str,
        /// What to do instead.
        hint: &'static str,
    },

    /// A cursor that is not one of this store.
    #[error("the cursor is not valid here: {what}; start the stream from the beginning")]
    BadCursor {
        /// What is wrong with it.
        what: String,
    },

    /// A generation is a committed state, and something is staged.
    #[error("{} has something staged; commit it, then keep the generation", path.display())]
    Staged {
        /// The store's folder.
        path: PathBuf,
    },

    /// A generation that is not kept.
    #[error("generation {number} is not kept in {}; kept are {kept:?}", path.display())]
    UnknownGeneration {
        /// The store's folder.
        path: PathBuf,
        /// The generation asked for.
        number: u64,
        /// Those there are.
        kept: Vec<u64>,
    },

    /// A generation whose number is not above those kept before.
    #[error(
        "generation {number} cannot be kept in {} after generation {last}: numbers ascend, and a kept generation \
         never changes",
        path.display()
    )]
    GenerationOrder {
        /// The store's folder.
        path: PathBuf,
        /// The generation to be kept.
        number: u64,
        /// The last one kept.
        last: u64,
    },

    /// An earlier sync failed, so nobody knows what the disk holds. Reads go on; writes need a reopen.
    #[error("{} takes no more writes: an earlier sync failed ({why}); reopen the store, what was acknowledged is there", path.display())]
    Poisoned {
        /// The store's folder.
        path: PathBuf,
        /// The failure.
        why: String,
    },
}

impl StorageError {
    /// Wraps an I/O error with what was attempted; a full disk gets its own variant.
    pub(crate) fn io(op: &'static str, path: &Path, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::StorageFull {
            return StorageError::NoSpace { path: path.to_path_buf() };
        }
        StorageError::Io { op, path: path.to_path_buf(), source }
    }

    /// Wraps what a read of records met: a file that ends too early, and bytes that the disk cannot give back (EIO), are
    /// damage.
    pub(crate) fn read(path: &Path, offset: u64, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::UnexpectedEof {
            return Self::corrupt(path, offset, "the file ends here");
        }
        if is_unreadable(&source) {
            return Self::corrupt(path, offset, format!("it cannot be read: {source}"));
        }
        Self::io("read", path, source)
    }

    /// Reports damage.
    pub(crate) fn corrupt(path: &Path, offset: u64, what: impl ToString) -> Self {
        StorageError::Corrupt { path: path.to_path_buf(), offset, what: what.to_string() }
    }
}

/// Whether the disk says that it cannot give these bytes back.
pub(crate) fn is_unreadable(e: &io::Error) -> bool {
    e.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}
