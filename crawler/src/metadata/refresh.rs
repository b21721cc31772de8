//! The refresh table: what every visit of a page said, by URL-id.
//!
//! ```text
//!   row, 64 bytes, little-endian              journal-entry, 76 bytes
//!     0   4  first read, s since 1970           0   4  URL-id
//!     4   4  last read                          4  64  row
//!     8   4  last change seen                  68   8  CRC-64 of the above
//!    12   4  last change told (Last-Modified)
//!    16   8  signature of the content
//!    24   4  changes seen
//!    28   4  reads without a change
//!    32   4  importance, f32
//!    36   1  kind
//!    37   1  bits: 1 there is a row
//!    38   2  status of the last answer
//!    40  16  change-rate state
//!    56   8  CRC-64 of the above
//! ```
//!
//! A change is written to the journal first and to its row in the table afterwards. [`RefreshTable::sync`] makes the journal
//! durable: that is one sequential write for any number of rows. When the journal has grown long the table is synced and the
//! journal begun again. At opening the journal is played again, so a row that a crash tore is written whole; a row that is
//! damaged otherwise is an error. Memory holds no rows.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use webbase_storage::crc64;

use super::files::{at, corrupt};
use super::{MetadataError, Result};
use crate::change_rate::RateState;
use crate::scheduler::Kind;

const ROW: usize = 64;
const ENTRY: usize = 4 + ROW + 8;
/// Entries after which the journal begins again.
const JOURNAL_ENTRIES_MAX: u64 = 1 << 20;

/// What is known about one page's visits.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct RefreshRow {
    /// First read, seconds since 1970; 0: never.
    pub first_read_s: u32,
    /// Last read.
    pub last_read_s: u32,
    /// The last read that saw a change.
    pub last_change_seen_s: u32,
    /// The last change that the page told of.
    pub last_change_told_s: u32,
    /// Of the content: equal signatures are equal contents.
    pub signature: u64,
    /// Reads that saw a change.
    pub changes: u32,
    /// Reads that saw none.
    pub reads_without_change: u32,
    /// What it weighed when it was last read.
    pub importance: f32,
    /// What it is.
    pub kind: Kind,
    /// Status of the last answer; 0: none.
    pub status: u16,
    /// What its changes say about its rate.
    pub rate: RateState,
}

impl RefreshRow {
    /// Counts a successful read: of what content, with which Last-Modified. Returns whether it had changed.
    pub fn read(&mut self, now_s: u32, signature: u64, told_s: Option<u32>, kind: Kind, status: u16) -> bool {
        let first = self.first_read_s == 0;
        let changed = !first && signature != self.signature;
        let told_s = told_s.filter(|told| *told > 0 && *told <= now_s);
        let days = |seconds: u32| f64::from(seconds) / 86_400.0;
        if first {
            self.first_read_s = now_s.max(1);
        } else if now_s > self.last_read_s {
            let ago = told_s.map(|told| days(now_s - told));
            self.rate.visit(days(now_s - self.last_read_s), changed, ago);
            self.changes = self.changes.saturating_add(u32::from(changed));
            self.reads_without_change = self.reads_without_change.saturating_add(u32::from(!changed));
        }
        if first || changed {
            self.last_change_seen_s = now_s;
        }
        self.last_change_told_s = told_s.unwrap_or(self.last_change_told_s);
        self.last_read_s = now_s.max(1);
        self.signature = signature;
        self.kind = kind;
        self.status = status;
        changed
    }

    fn to_bytes(self) -> [u8; ROW] {
        let mut bytes = Vec::with_capacity(ROW);
        for number in [self.first_read_s, self.last_read_s, self.last_change_seen_s, self.last_change_told_s]
        {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.signature.to_le_bytes());
        bytes.extend_from_slice(&self.changes.to_le_bytes());
        bytes.extend_from_slice(&self.reads_without_change.to_le_bytes());
        bytes.extend_from_slice(&self.importance.to_le_bytes());
        bytes.extend_from_slice(&[self.kind as u8, 1]);
        bytes.extend_from_slice(&self.status.to_le_bytes());
        bytes.extend_from_slice(&self.rate.to_bytes());
        let sum = crc64(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        let mut row = [0; ROW];
        for (to, from) in row.iter_mut().zip(bytes) {
            *to = from;
        }
        row
    }

    /// A row, `Ok(None)` where none was written, `Err` where it is damaged.
    fn from_bytes(bytes: &[u8; ROW]) -> std::result::Result<Option<RefreshRow>, &'static str> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let Some((body, sum)) = bytes.split_last_chunk::<8>() else { return Err("a row is too short") };
        if crc64(body) != u64::from_le_bytes(*sum) {
            return Err("a row is damaged");
        }
        let u32_at = |from: usize| {
            let bytes = body.get(from..from + 4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
            bytes.map_or(0, u32::from_le_bytes)
        };
        let rate = body.get(40..56).and_then(|bytes| <[u8; 16]>::try_from(bytes).ok()).unwrap_or_default();
        let [kind, _, status_low, status_high] = u32_at(36).to_le_bytes();
        Ok(Some(RefreshRow {
            first_read_s: u32_at(0),
            last_read_s: u32_at(4),
            last_change_seen_s: u32_at(8),
            last_change_told_s: u32_at(12),
            signature: u64::from(u32_at(16)) | u64::from(u32_at(20)) << 32,
            changes: u32_at(24),
            reads_without_change: u32_at(28),
            importance: f32::from_bits(u32_at(32)),
            kind: Kind::from_number(kind).ok_or("a row of an unknown kind")?,
            status: u16::from_le_bytes([status_low, status_high]),
            rate: RateState::from_bytes(rate),
        }))
    }
}

/// The table on disk.
#[derive(Debug)]
pub struct RefreshTable {
    path: PathBuf,
    table: File,
    journal_path: PathBuf,
    journal: BufWriter<File>,
    journal_entries: u64,
    poisoned: bool,
}

impl RefreshTable {
    /// Opens or makes the table, and finishes what a crash interrupted.
    ///
    /// # Errors
    /// A folder that cannot be used.
    pub fn open(folder: &Path) -> Result<RefreshTable> {
        at(folder, std::fs::create_dir_all(folder))?;
        let (path, journal_path) = (folder.join("refresh"), folder.join("refresh-journal"));
        let open = |path: &Path| {
            at(path, OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path))
        };
        let (table, mut journal) = (open(&path)?, open(&journal_path)?);
        let mut bytes = Vec::new();
        at(&journal_path, journal.read_to_end(&mut bytes))?;
        for entry in bytes.chunks_exact(ENTRY) {
            let Some((body, sum)) = entry.split_last_chunk::<8>() else { break };
            if crc64(body) != u64::from_le_bytes(*sum) {
                break;
            }
            let Some((id, row)) = body.split_first_chunk::<4>() else { break };
            at(&path, table.write_all_at(row, place(u32::from_le_bytes(*id))))?;
        }
        let mut opened = RefreshTable {
            path,
            table,
            journal_path,
            journal: BufWriter::with_capacity(1 << 16, journal),
            journal_entries: 0,
            poisoned: false,
        };
        opened.begin_journal()?;
        Ok(opened)
    }

    /// The row of a URL-id.
    ///
    /// # Errors
    /// A disk that cannot, or a damaged row.
    pub fn row(&self, id: u32) -> Result<Option<RefreshRow>> {
        let mut bytes = [0; ROW];
        match self.table.read_exact_at(&mut bytes, place(id)) {
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
            read => at(&self.path, read)?,
        }
        RefreshRow::from_bytes(&bytes).or_else(|what| corrupt(&self.path, place(id), what))
    }

    /// Writes a row. Durable after [`RefreshTable::sync`].
    ///
    /// # Errors
    /// A disk that cannot; then the table refuses to go on.
    pub fn set(&mut self, id: u32, row: &RefreshRow) -> Result<()> {
        if self.poisoned {
            return Err(MetadataError::Poisoned);
        }
        let row = row.to_bytes();
        let mut entry = Vec::with_capacity(ENTRY);
        entry.extend_from_slice(&id.to_le_bytes());
        entry.extend_from_slice(&row);
        entry.extend_from_slice(&crc64(&entry).to_le_bytes());
        let written = self.journal.write_all(&entry);
        self.poisoned = written.is_err();
        at(&self.journal_path, written)?;
        let written = self.table.write_all_at(&row, place(id));
        self.poisoned = written.is_err();
        at(&self.path, written)?;
        self.journal_entries += 1;
        if self.journal_entries >= JOURNAL_ENTRIES_MAX { self.begin_journal() } else { Ok(()) }
    }

    /// Makes all rows durable.
    ///
    /// # Errors
    /// A disk that cannot; then the table refuses to go on.
    pub fn sync(&mut self) -> Result<()> {
        if self.poisoned {
            return Err(MetadataError::Poisoned);
        }
        let done = self.journal.flush().and_then(|()| self.journal.get_ref().sync_data());
        self.poisoned = done.is_err();
        at(&self.journal_path, done)
    }

    fn begin_journal(&mut self) -> Result<()> {
        self.poisoned = true;
        // The journal first: a row may only be torn in the table while the journal has it.
        at(&self.journal_path, self.journal.flush().and_then(|()| self.journal.get_ref().sync_data()))?;
        at(&self.path, self.table.sync_data())?;
        at(&self.journal_path, self.journal.get_ref().set_len(0))?;
        at(&self.journal_path, self.journal.seek(SeekFrom::Start(0)))?;
        at(&self.journal_path, self.journal.get_ref().sync_data())?;
        self.journal_entries = 0;
        self.poisoned = false;
        Ok(())
    }
}

fn place(id: u32) -> u64 {
    u64::from(id) * ROW as u64
}
