//! Records that cannot be read and that nothing tells the page of: neither a catalog row nor the index nor their own header.
//! They are found when a log is opened whose records have to be found without their catalog.
//!
//! Such a record may have been any page, so whatever is looked up and not there may be lost with it; and it may have been a newer
//! version of any page before it, or its deletion. Both are answered with the damage, until a repair accepts it.

use std::path::PathBuf;

use super::stream::LogStream;
use super::view::View;
use crate::error::{Result, StorageError};
use crate::page::PageKey;
use crate::record::Record;
use crate::store::{Cursor, PageStream};

/// Where a lost record lies.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    pub(crate) ordinal: u64,
    path: PathBuf,
    offset: u64,
}

impl Lost {
    fn error(&self) -> StorageError {
        let what =
            "a record is damaged beyond telling of which page it is; others may be lost or outdated by it";
        StorageError::corrupt(&self.path, self.offset, what)
    }
}

impl View {
    /// Takes note of the lost records from an ordinal on, in segments whose catalog could not be read.
    pub(crate) fn find_lost(&mut self, from: u64) -> Result<()> {
        for part in self.parts.iter().filter(|part| part.segment.is_open()) {
            let count = part.segment.position_from(part.end_ordinal);
            for (position, row) in part.segment.rows(count)?.iter().enumerate() {
                let ordinal = part.segment.ordinal(position);
                if row.is_damaged() && ordinal >= from {
                    let offset = part.segment.place(position).map_or(0, |place| place.start);
                    self.lost.push(Lost { ordinal, path: part.segment.path().to_path_buf(), offset });
                }
            }
        }
        Ok(())
    }

    /// Whether a page that is not there, or is there with this ordinal, is so for sure.
    pub(crate) fn is_sure(&self, ordinal: Option<u64>) -> Result<()> {
        match self.lost.last().filter(|lost| ordinal.is_none_or(|ordinal| ordinal < lost.ordinal)) {
            Some(lost) => Err(lost.error()),
            None => Ok(()),
        }
    }
}

/// A stream of a view with lost records: they come first, as errors without a page; and what they may have outdated comes as an
/// error, too.
pub(crate) struct UnsureStream {
    view: std::sync::Arc<View>,
    stream: LogStream,
    said: usize,
    /// The page of the last error.
    outdated: Option<PageKey>,
}

impl UnsureStream {
    pub(crate) fn new(view: std::sync::Arc<View>, stream: LogStream) -> UnsureStream {
        UnsureStream { view, stream, said: 0, outdated: None }
    }
}

impl PageStream for UnsureStream {
    fn next(&mut self) -> Option<Result<Record>> {
        self.outdated = None;
        if let Some(lost) = self.view.lost.get(self.said) {
            self.said += 1;
            return Some(Err(lost.error()));
        }
        let record = match self.stream.next()? {
            Ok(record) => record,
            failed => return Some(failed),
        };
        let sure = self.view.is_sure(self.stream.ordinal());
        if sure.is_err() {
            self.outdated = Some(record.get().key());
        }
        Some(sure.map(|()| record))
    }

    fn cursor(&self) -> Cursor {
        self.stream.cursor()
    }

    fn ordinal(&self) -> Option<u64> {
        self.stream.ordinal()
    }

    fn lost(&self) -> Option<PageKey> {
        self.outdated.or_else(|| self.stream.lost())
    }
}
