//! Changes that wait in memory to be sorted into buckets or logs: per page the outcome of everything staged for it.

use bytes::Bytes;

use crate::catalog::Row;
use crate::page::{PageKey, Version};
use crate::record::{Kind, RecordRef};

/// What waits for one page.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    /// The version on disk, if any, is deleted.
    pub(crate) wipes: bool,
    /// A new version, which the one on disk may still beat.
    pub(crate) page: Option<(Version, Bytes)>,
    /// A "seen" entry for the page of this version.
    pub(crate) seen: Option<(Version, Bytes)>,
}

impl Pending {
    /// Takes one more change into account. `current` is the version a seen entry is about.
    pub(crate) fn stage(&mut self, row: &Row, bytes: Bytes, current: Option<Version>) {
        match row.kind() {
            Kind::Page if self.page.as_ref().is_some_and(|(version, _)| *version >= row.version()) => {}
            Kind::Page => self.page = Some((row.version(), bytes)),
            Kind::Tombstone => *self = Pending { wipes: true, ..Pending::default() },
            Kind::Seen => self.seen = current.map(|version| (version, bytes)),
        }
    }

    /// Bytes it keeps in memory.
    pub(crate) fn bytes(&self) -> usize {
        let len = |part: &Option<(Version, Bytes)>| part.as_ref().map_or(0, |(_, bytes)| bytes.len());
        len(&self.page) + len(&self.seen) + size_of::<(PageKey, Pending)>()
    }

    /// What a page on disk becomes.
    pub(crate) fn resolve(&self, disk: Option<Item>) -> Option<Item> {
        let disk = disk.filter(|_| !self.wipes);
        let item = match (&self.page, disk) {
            (Some((version, bytes)), disk) if disk.as_ref().is_none_or(|d| d.version() < Some(*version)) => {
                Item { page: bytes.clone(), seen: None }
            }
            (_, Some(disk)) => disk,
            (_, None) => return None,
        };
        let seen = self.seen.as_ref().filter(|(version, _)| item.version() == Some(*version));
        Some(match seen {
            Some((_, seen)) => Item { seen: Some(seen.clone()), ..item },
            None => item,
        })
    }
}

/// A living page as it lies in a bucket or log: its record, and its last "seen" entry.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) page: Bytes,
    pub(crate) seen: Option<Bytes>,
}

impl Item {
    /// Its version; `None` when the record is damaged.
    pub(crate) fn version(&self) -> Option<Version> {
        RecordRef::parse_unverified(&self.page).ok().map(|r| r.version())
    }

    pub(crate) fn key(&self) -> Option<PageKey> {
        RecordRef::parse_unverified(&self.page).ok().map(|r| r.key())
    }

    /// When it is due: the seen entry's deadline, or its own.
    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        let bytes = self.seen.as_ref().unwrap_or(&self.page);
        let record = RecordRef::parse_unverified(bytes).ok()?;
        crate::expiry::deadline_ms(record.fetched_at_ms(), record.lifetime_s())
    }

    /// Bytes it takes in a leaf.
    pub(crate) fn bytes(&self) -> usize {
        self.page.len() + self.seen.as_ref().map_or(0, Bytes::len)
    }
}
