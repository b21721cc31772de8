//! Where the records of one log are: 12 bytes each in memory, made when somebody first asks. After an append it has the
//! new records too, so a page that was changed since its log was last written anew has several.

use std::sync::OnceLock;

use bytes::Bytes;

use super::leaf::{self, LeafDamage};
use crate::page::PageKey;

/// A fragment of the key, and where the record lies in its log.
type Slot = (u32, u32, u32);

/// The index of one log.
#[derive(Debug, Default)]
pub(crate) struct LogIndex {
    made: OnceLock<(Vec<Slot>, Vec<LeafDamage>)>,
}

fn fragment(key: PageKey) -> u32 {
    (key.id.0 ^ key.tie) as u32
}

impl LogIndex {
    /// The index of a log just written.
    pub(crate) fn of(bytes: Bytes) -> LogIndex {
        let index = LogIndex::default();
        let _ = index.get(|| Ok::<_, std::convert::Infallible>(bytes));
        index
    }

    /// Makes the index if it was not made yet.
    pub(crate) fn make<E>(&self, load: impl FnOnce() -> Result<Bytes, E>) -> Result<(), E> {
        self.get(load).map(|_| ())
    }

    /// The index after these records, in order, were appended; still to be made if it was not made yet.
    pub(crate) fn appended(&self, records: impl Iterator<Item = (PageKey, u32, u32)>) -> LogIndex {
        let Some((before, damage)) = self.made.get() else { return LogIndex::default() };
        let mut slots = before.clone();
        slots.extend(records.map(|(key, offset, len)| (fragment(key), offset, len)));
        slots.sort_unstable();
        LogIndex { made: (slots, damage.clone()).into() }
    }

    /// Length of the record that `key` probably has here, if the index was made.
    pub(crate) fn probable(&self, key: PageKey) -> Option<u32> {
        let (slots, _) = self.made.get()?;
        let end = slots.partition_point(|(f, ..)| *f <= fragment(key));
        slots.get(end.checked_sub(1)?).filter(|(f, ..)| *f == fragment(key)).map(|&(.., len)| len)
    }

    fn get<E>(&self, load: impl FnOnce() -> Result<Bytes, E>) -> Result<(&[Slot], &[LeafDamage]), E> {
        if self.made.get().is_none() {
            let bytes = load()?;
            let base = bytes.as_ptr() as usize;
            let decoded = leaf::decode(&bytes, false);
            let mut slots: Vec<Slot> = decoded
                .items
                .iter()
                .map(|(key, item)| {
                    (fragment(*key), (item.page.as_ptr() as usize - base) as u32, item.page.len() as u32)
                })
                .collect();
            slots.sort_unstable();
            slots.shrink_to_fit();
            let _ = self.made.set((slots, decoded.nameless_damage().cloned().collect()));
        }
        Ok(self.made.get().map(|(slots, damage)| (slots.as_slice(), damage.as_slice())).unwrap_or_default())
    }

    /// Offset and length of each record that may be `key`'s, and damage that may hide another; `load` reads the log if
    /// it was not read before.
    pub(crate) fn find<E>(
        &self,
        key: PageKey,
        load: impl FnOnce() -> Result<Bytes, E>,
    ) -> Result<(impl Iterator<Item = (u32, u32)> + '_, &[LeafDamage]), E> {
        let (slots, damage) = self.get(load)?;
        let from = slots.partition_point(|(f, ..)| *f < fragment(key));
        let same =
            slots.get(from..).unwrap_or_default().iter().take_while(move |(f, ..)| *f == fragment(key));
        Ok((same.map(|&(_, offset, len)| (offset, len)), damage))
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.made.get().map_or(0, |(slots, _)| slots.capacity() * size_of::<Slot>())
    }
}
