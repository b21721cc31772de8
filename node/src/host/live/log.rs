//! Streams of live pages where the stores are logs: the generation comes first, in its order, then one epoch after the other.
//!
//! ```text
//!   generation ──────▶ B   epoch 4 ────▶   epoch 5 ────▶      cursor in the generation:  o<ordinal>
//!                                  ▲                          cursor in an epoch:        l<B>.<epoch>.<ordinal>
//! ```
//!
//! A cursor `l<B>.<epoch>.<ordinal>` goes on with what the generation has from B on, that is, what was folded in since, and
//! then in the epochs. Nothing is skipped: ordinals stay through restarts and compaction, and what is not in its epoch any
//! more is in the generation behind B. Delivered pages of epochs, the cursor's own and earlier ones, come again if these were
//! folded and dropped since, and of pages added since the newer version comes; nothing else comes twice.

use std::collections::{HashMap, VecDeque};

use webbase_storage::{Cursor, PageKey, PageStream, Record, Result, StorageError, StreamSpec, Version};

use super::{Epoch, Overlay};

/// A stream of logs: the generation, then the epochs.
pub(super) struct LogOverlay {
    of: Overlay,
    spec: StreamSpec,
    /// What the epochs have; about 100 bytes for each page that is not folded yet.
    newest: HashMap<PageKey, (Version, u64)>,
    /// The generation's stream, until it has ended.
    base: Option<Box<dyn PageStream>>,
    /// Where the generation's stream stands.
    base_at: u64,
    /// Where the epochs' part begins.
    from: (u64, u64),
    /// Epochs to come.
    epochs: VecDeque<Epoch>,
    /// The epoch being streamed.
    current: Option<(u64, Box<dyn PageStream>)>,
    /// The place in the epochs.
    at: (u64, u64),
    /// The page of the last error.
    lost: Option<PageKey>,
}

fn ordinal(cursor: Cursor, otherwise: u64) -> u64 {
    match cursor {
        Cursor::Ordinal(ordinal) => ordinal,
        _ => otherwise,
    }
}

impl LogOverlay {
    pub(super) fn open(of: Overlay, spec: &StreamSpec) -> Result<LogOverlay> {
        let (base_from, from) = match spec.from {
            Cursor::Start => (0, (0, 0)),
            Cursor::Ordinal(ordinal) => (ordinal, (0, 0)),
            Cursor::Live { base, epoch, ordinal } => (base, (epoch, ordinal)),
            Cursor::End => (u64::MAX, (u64::MAX, u64::MAX)),
            Cursor::Key(_) => {
                return Err(StorageError::BadCursor { what: "it is of a hash or hashed-log store".into() });
            }
        };
        let spec = StreamSpec { from: Cursor::Start, ..*spec };
        let mut base = None;
        if let Some(of) = &of.base {
            let from = Cursor::Ordinal(base_from);
            base = Some(of.snapshot.stream(&StreamSpec { from, ..spec })?);
        } else if let Some((_, epoch)) = of.epochs.first() {
            // An order that a log does not have is refused by the log.
            drop(epoch.stream(&spec)?);
        }
        let epochs = of.epochs.iter().filter(|(number, _)| *number >= from.0).cloned().collect();
        let newest = of.newest()?;
        let (base_at, current, at, lost) = (base_from, None, from, None);
        Ok(LogOverlay { of, spec, newest, base, base_at, from, epochs, current, at, lost })
    }

    fn next_of_base(&mut self) -> Option<Result<Record>> {
        let base = self.base.as_mut()?;
        while let Some(next) = base.next() {
            let Ok(record) = &next else {
                self.lost = base.lost();
                return Some(next);
            };
            let (key, version) = (record.get().key(), record.get().version());
            let elsewhere = match self.newest.get(&key) {
                // Comes, or has come, in its newer version;
                Some((newer, _)) if *newer > version => true,
                // or was delivered from its epoch before that was folded.
                Some((same, epoch)) => *same == version && *epoch < self.from.0,
                None => false,
            };
            if !elsewhere {
                return Some(next);
            }
        }
        self.base_at = ordinal(base.cursor(), self.base_at);
        self.base = None;
        None
    }

    fn next_of_epochs(&mut self) -> Option<Result<Record>> {
        loop {
            let (number, stream) = match &mut self.current {
                Some(current) => current,
                None => {
                    let (number, epoch) = self.epochs.pop_front()?;
                    let from = if number == self.from.0 { self.from.1 } else { 0 };
                    self.at = (number, from);
                    match epoch.stream(&StreamSpec { from: Cursor::Ordinal(from), ..self.spec }) {
                        Ok(stream) => self.current.insert((number, stream)),
                        Err(e) => return Some(Err(e)),
                    }
                }
            };
            let next = stream.next();
            self.at = (*number, ordinal(stream.cursor(), self.at.1));
            let Some(next) = next else {
                self.current = None;
                continue;
            };
            let Ok(record) = &next else {
                self.lost = stream.lost();
                return Some(next);
            };
            let (key, version) = (record.get().key(), record.get().version());
            if self.newest.get(&key) != Some(&(version, *number)) {
                continue;
            }
            match self.of.shows(key, version) {
                Ok(true) => return Some(next),
                Ok(false) => {}
                Err(e) => {
                    self.lost = Some(key);
                    return Some(Err(e));
                }
            }
        }
    }
}

impl PageStream for LogOverlay {
    fn next(&mut self) -> Option<Result<Record>> {
        self.next_of_base().or_else(|| self.next_of_epochs())
    }

    fn cursor(&self) -> Cursor {
        let base = self.base.as_ref().map_or(self.base_at, |base| ordinal(base.cursor(), self.base_at));
        match self.at {
            (0, 0) => Cursor::Ordinal(base),
            (epoch, ordinal) => Cursor::Live { base, epoch, ordinal },
        }
    }

    fn lost(&self) -> Option<PageKey> {
        self.lost
    }
}
