//! The one writer of a log: stages records, writes them in large pieces, commits.

use std::collections::HashMap;
use std::sync::Arc;

use super::segment::Segment;
use super::view::View;
use crate::catalog::Row;
use crate::disk::Appender;
use crate::error::{Result, StorageError};
use crate::page::{PageKey, Version};
use crate::record::Kind;
use crate::store::Added;

/// The last word on a page that was staged or is being synced.
#[derive(Clone, Copy, Debug)]
struct Staged {
    ordinal: u64,
    /// `None`: deleted.
    version: Option<Version>,
}

/// What the next commit will make visible.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) first_ordinal: u64,
    pub(crate) rows: Vec<(Row, u32)>,
    /// Ordinals that die.
    pub(crate) victims: Vec<u64>,
    /// New deadlines of pages, by ordinal.
    pub(crate) deadlines: Vec<(u64, u64)>,
    /// Where the log ended before this batch, and where it ends with it.
    pub(crate) start_offset: u64,
    pub(crate) end_offset: u64,
}

/// Where a call that stages began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Call {
    /// The ordinal of its own first record.
    pub(crate) first_ordinal: u64,
    /// How often everything staged had been dropped.
    pub(crate) drops: u64,
}

impl Call {
    /// One that stages nothing itself: whatever is dropped under it is others' to hear of.
    pub(crate) const STAGES_NOTHING: Call = Call { first_ordinal: u64::MAX, drops: 0 };
}

impl Batch {
    pub(crate) fn end_ordinal(&self) -> u64 {
        self.first_ordinal + self.rows.len() as u64
    }
}

/// The state behind the writer's lock.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) open: Arc<Segment>,
    /// Where the log ends with everything staged.
    end: u64,
    /// Writes to the open segment, once there is something to write.
    appender: Option<Appender>,
    pub(crate) batch: Batch,
    staged: HashMap<PageKey, Staged>,
    /// Sequence of the last durable mark.
    pub(crate) mark_sequence: u64,
    /// Offset the last commit ended at.
    pub(crate) committed: u64,
    /// The file has a catalog behind the records, to be cut off before the next write.
    pub(crate) has_catalog: bool,
    /// A sync is under way, without the lock.
    pub(crate) syncing: bool,
    /// Everything staged was dropped by this failure; the next commit reports it.
    pub(crate) dropped: Option<String>,
    /// How often everything staged was dropped.
    pub(crate) drops: u64,
    /// A sync failed: no more writes.
    pub(crate) poisoned: Option<String>,
}

impl Writer {
    /// A writer that goes on at `end` of the open segment.
    pub(crate) fn new(
        open: Arc<Segment>,
        end: u64,
        next_ordinal: u64,
        mark_sequence: u64,
        has_catalog: bool,
    ) -> Self {
        Writer {
            open,
            end,
            appender: None,
            batch: Batch {
                first_ordinal: next_ordinal,
                start_offset: end,
                end_offset: end,
                ..Batch::default()
            },
            staged: HashMap::new(),
            mark_sequence,
            committed: end,
            has_catalog,
            syncing: false,
            dropped: None,
            drops: 0,
            poisoned: None,
        }
    }

    /// A call that stages begins.
    pub(crate) fn call(&self) -> Call {
        Call { first_ordinal: self.next_ordinal(), drops: self.drops }
    }

    /// Where the log ends with everything staged.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The ordinal of the next record.
    pub(crate) fn next_ordinal(&self) -> u64 {
        self.batch.end_ordinal()
    }

    /// The living page with this key, staged or committed: its ordinal and version.
    fn current(&self, key: PageKey, view: &View) -> Result<Option<(u64, Version)>> {
        match self.staged.get(&key) {
            Some(staged) => Ok(staged.version.map(|version| (staged.ordinal, version))),
            None => Ok(view.find(key)?.map(|(ordinal, row)| (ordinal, row.version()))),
        }
    }

    /// Stages one record of a page, a tombstone or a seen entry. Returns what became of it; a mark for a page that is
    /// not there counts as stale. `ahead` records staged before it are still to be pushed.
    pub(crate) fn stage(&mut self, row: &Row, ahead: u64, view: &View, added: &mut Added) -> Result<bool> {
        let (key, ordinal) = (row.key(), self.next_ordinal() + ahead);
        let current = self.current(key, view)?;
        let version = match (row.kind(), current) {
            (Kind::Page, Some((_, version))) if version >= row.version() => None,
            (Kind::Tombstone | Kind::Seen, None) => None,
            _ => Some(row.version()),
        };
        let Some(version) = version else {
            added.stale += 1;
            return Ok(false);
        };
        if current.is_some() {
            added.superseding += 1;
        } else {
            added.new += 1;
        }
        match (row.kind(), current) {
            (Kind::Seen, Some((page, _))) => {
                self.batch.deadlines.push((page, row.deadline_ms().unwrap_or(u64::MAX)));
            }
            (kind, _) => {
                self.batch.victims.extend(current.map(|(ordinal, _)| ordinal));
                let version = (kind == Kind::Page).then_some(version);
                self.staged.insert(key, Staged { ordinal, version });
            }
        }
        Ok(true)
    }

    /// Takes the bytes of records just staged.
    pub(crate) fn push(&mut self, bytes: &[u8], rows: &[(Row, u32)]) -> Result<()> {
        self.batch.rows.extend_from_slice(rows);
        if !bytes.is_empty() {
            let file = self.open.file().clone();
            let appended = self.appender().and_then(|appender| appender.write(bytes));
            appended.map_err(|e| StorageError::io("write", file.path(), e))?;
        }
        self.end += bytes.len() as u64;
        self.batch.end_offset = self.end;
        Ok(())
    }

    fn appender(&mut self) -> std::io::Result<&mut Appender> {
        if self.has_catalog {
            self.open.file().set_len(self.committed)?;
            self.open.file().sync()?;
            self.has_catalog = false;
        }
        match &mut self.appender {
            Some(appender) => Ok(appender),
            none => Ok(none.insert(Appender::new(self.open.file().clone(), self.end)?)),
        }
    }

    /// Has everything staged written to the file.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let flushed = self.appender.as_mut().map_or(Ok(()), Appender::flush);
        flushed.map_err(|e| StorageError::io("write", self.open.path(), e))
    }

    /// Forgets everything staged that is not being synced, because it could not be written. Where that is more than
    /// what the failing call staged, the next commit has to say so.
    pub(crate) fn drop_staged(&mut self, call: Call, why: &StorageError) {
        self.drops += 1;
        let first = self.batch.first_ordinal;
        let start = self.batch.start_offset;
        self.appender = None; // ends what is being written
        self.end = start;
        // Whole records beyond would come back when the store is opened. If they cannot be cut off now, the next ones are
        // written over them.
        if self.open.file().set_len(start).is_ok() {
            self.has_catalog = false;
        }
        self.batch =
            Batch { first_ordinal: first, end_offset: start, start_offset: start, ..Batch::default() };
        self.staged.retain(|_, staged| staged.ordinal < first);
        if first < call.first_ordinal {
            self.dropped = Some(why.to_string());
        }
    }

    /// Takes the batch to be synced; what is staged from now on belongs to the next.
    pub(crate) fn take_batch(&mut self) -> Batch {
        let end = self.end();
        let next = Batch {
            first_ordinal: self.next_ordinal(),
            end_offset: end,
            start_offset: end,
            ..Batch::default()
        };
        std::mem::replace(&mut self.batch, next)
    }

    /// Forgets staged pages that are visible now.
    pub(crate) fn forget_below(&mut self, ordinal: u64) {
        if self.batch.rows.is_empty() {
            self.staged.clear();
        } else {
            self.staged.retain(|_, staged| staged.ordinal >= ordinal);
        }
    }

    /// Forgets everything staged, of which nothing is being synced, and goes on in a new, empty segment.
    pub(crate) fn restart(&mut self, open: Arc<Segment>, start: u64) {
        self.appender = None; // ends what is being written
        self.batch = Batch::default();
        self.staged.clear();
        self.dropped = None;
        self.roll(open, start);
    }

    /// Goes on in a new, empty segment.
    pub(crate) fn roll(&mut self, open: Arc<Segment>, start: u64) {
        self.batch.first_ordinal = open.first_ordinal;
        self.batch.end_offset = start;
        self.batch.start_offset = start;
        (self.open, self.end, self.committed, self.appender) = (open, start, start, None);
        (self.mark_sequence, self.has_catalog) = (0, false);
    }
}
