//! Where the records of one log are: 12 bytes each in memory, made when somebody first asks. After an append it has the
//! new records too, so a page that was changed since its log was last written anew has several.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use bytes::Bytes;

use super::content::Content;
use super::leaf::{self, LeafDamage};
use crate::page::PageKey;

/// A fragment of the key, and where the record lies in its log.
type Slot = (u32, u32, u32);

/// Offset and length of records, and damage that may hide another.
type Hits = (Vec<(u32, u32)>, Option<LeafDamage>);

/// The index of one log.
#[derive(Debug, Default)]
pub(crate) struct LogIndex {
    made: ArcSwapOption<Made>,
}

#[derive(Debug)]
struct Made {
    slots: Vec<Slot>,
    /// What may hide another record.
    damage: Vec<LeafDamage>,
}

fn fragment(key: PageKey) -> u32 {
    (key.id.0 ^ key.tie) as u32
}

impl LogIndex {
    /// The index of a log just written.
    pub(crate) fn of(bytes: Bytes, live_bytes: u32) -> LogIndex {
        let index = LogIndex::default();
        let _ = index.get(live_bytes, || Ok::<_, std::convert::Infallible>(bytes.into()));
        index
    }

    /// Makes the index if it was not made yet.
    pub(crate) fn make<E>(
        &self,
        live_bytes: u32,
        load: impl FnOnce() -> Result<Content, E>,
    ) -> Result<(), E> {
        self.get(live_bytes, load).map(|_| ())
    }

    /// The index after these records, in order, were appended; still to be made if it was not made yet.
    pub(crate) fn appended(&self, records: impl Iterator<Item = (PageKey, u32, u32)>) -> LogIndex {
        let Some(before) = self.made.load_full() else { return LogIndex::default() };
        let mut slots = before.slots.clone();
        slots.extend(records.map(|(key, offset, len)| (fragment(key), offset, len)));
        slots.sort_unstable();
        LogIndex { made: ArcSwapOption::from_pointee(Made { slots, damage: before.damage.clone() }) }
    }

    /// Forgets everything: the log's bytes have changed.
    pub(crate) fn forget(&self) {
        self.made.store(None);
    }

    /// The log was read, and is whole: what could not be read before is forgotten.
    pub(crate) fn note_whole(&self) {
        if self.made.load().as_ref().is_some_and(|made| !made.damage.is_empty()) {
            self.forget();
        }
    }

    /// Length of the record that `key` probably has here, if the index was made.
    pub(crate) fn probable(&self, key: PageKey) -> Option<u32> {
        let made = self.made.load();
        let slots = &made.as_ref()?.slots;
        let end = slots.partition_point(|(f, ..)| *f <= fragment(key));
        slots.get(end.checked_sub(1)?).filter(|(f, ..)| *f == fragment(key)).map(|&(.., len)| len)
    }

    fn get<E>(&self, live_bytes: u32, load: impl FnOnce() -> Result<Content, E>) -> Result<Arc<Made>, E> {
        if let Some(made) = self.made.load_full() {
            return Ok(made);
        }
        let content = load()?;
        let base = content.bytes.as_ptr() as usize;
        let mut decoded = leaf::decode(&content, false);
        decoded.judge(live_bytes);
        let mut slots: Vec<Slot> = decoded
            .items
            .iter()
            .map(|(key, item)| {
                (fragment(*key), (item.page.as_ptr() as usize - base) as u32, item.page.len() as u32)
            })
            .collect();
        slots.sort_unstable();
        slots.shrink_to_fit();
        let made = Arc::new(Made { slots, damage: decoded.nameless_damage().cloned().collect() });
        self.made.store(Some(made.clone()));
        Ok(made)
    }

    /// Offset and length of each record that may be `key`'s, and the damage that says most of it; `load` reads the
    /// log, of which `live_bytes` are alive, if it was not read before.
    pub(crate) fn find<E>(
        &self,
        key: PageKey,
        live_bytes: u32,
        load: impl FnOnce() -> Result<Content, E>,
    ) -> Result<Hits, E> {
        let made = self.get(live_bytes, load)?;
        let from = made.slots.partition_point(|(f, ..)| *f < fragment(key));
        let same = made.slots.get(from..).unwrap_or_default().iter();
        let same = same.take_while(|(f, ..)| *f == fragment(key)).map(|&(_, offset, len)| (offset, len));
        let damage = made.damage.iter().filter(|d| d.may_hide(key)).max_by_key(|d| d.rank());
        Ok((same.collect(), damage.cloned()))
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.made.load().as_ref().map_or(0, |made| made.slots.capacity() * size_of::<Slot>())
    }
}
