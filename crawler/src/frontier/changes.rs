//! What a transaction changes: rows, what waits, and links that have no URL-id yet.

use redb::{Database, ReadableTable, Table, WriteTransaction};

use super::row::{Found, Row, State};
use super::{ARRIVALS, Became, FACTS, FOUND, Learned, ROWS, Result, Told, UrlId, WAITING, get, turns};

/// A transaction.
pub(super) struct Changes {
    writing: WriteTransaction,
    noted: Noted,
}

/// What a transaction comes to, beside what is in its tables.
#[derive(Default)]
struct Noted {
    arrivals: u64,
    /// By how much the number of waiting URLs of hosts changes.
    waiting: Vec<(String, i64)>,
    /// URLs that are no longer handed out.
    done: Vec<(String, UrlId)>,
}

/// The tables of a transaction: opening them takes longer than writing a row.
pub(super) struct Tables<'t> {
    rows: Table<'t, UrlId, &'static [u8]>,
    waiting: Table<'t, (&'static str, u8, u64), UrlId>,
    found: Table<'t, u64, &'static [u8]>,
    noted: &'t mut Noted,
}

impl Changes {
    pub(super) fn begin(database: &Database) -> Result<Changes> {
        let writing = database.begin_write()?;
        let arrivals = writing.open_table(FACTS)?.get(ARRIVALS)?.map_or(0, |found| found.value());
        Ok(Changes { writing, noted: Noted { arrivals, ..Noted::default() } })
    }

    pub(super) fn tables(&mut self) -> Result<Tables<'_>> {
        let Changes { writing, noted } = self;
        let (rows, waiting) = (writing.open_table(ROWS)?, writing.open_table(WAITING)?);
        Ok(Tables { rows, waiting, found: writing.open_table(FOUND)?, noted })
    }

    /// Makes it durable.
    pub(super) fn commit(self) -> Result<turns::Moved> {
        self.writing.open_table(FACTS)?.insert(ARRIVALS, self.noted.arrivals)?;
        self.writing.commit()?;
        Ok(turns::Moved { waiting: self.noted.waiting, done: self.noted.done })
    }
}

impl Tables<'_> {
    pub(super) fn row(&self, id: UrlId) -> Result<Option<Row>> {
        get(&self.rows, id)
    }

    pub(super) fn has(&self, id: UrlId) -> Result<bool> {
        Ok(self.rows.get(id)?.is_some())
    }

    /// Writes a row as it is.
    pub(super) fn set(&mut self, id: UrlId, row: &Row) -> Result<()> {
        self.rows.insert(id, row.encode().as_slice())?;
        Ok(())
    }

    /// Writes the row of a new URL.
    pub(super) fn add(&mut self, id: UrlId, row: Row) -> Result<Row> {
        let row = self.place(row, id)?;
        self.set(id, &row)?;
        Ok(row)
    }

    /// Writes rows of URLs that are known.
    pub(super) fn became(&mut self, became: &[Became]) -> Result<()> {
        for one in became {
            if let Some(before) = get(&self.rows, one.id)?
                && let Some((urgency, order)) = before.place
                && self.waiting.remove((before.host(), urgency, order))?.is_some()
            {
                self.noted.waiting.push((before.host().to_owned(), -1));
                self.noted.done.push((before.host().to_owned(), one.id));
            }
            self.add(one.id, one.row.clone())?;
        }
        Ok(())
    }

    /// A link to a URL that is known.
    pub(super) fn known(&mut self, id: UrlId, found: &Found, learned: &mut Learned) -> Result<()> {
        if found.share > 0.0 {
            learned.dealt.push((id, found.share));
        }
        if found.says_something()
            && let Some(mut row) = self.row(id)?
        {
            let Found { changed_at_ms, again, .. } = *found;
            let before = (row.is_listed, row.told_at_ms, row.is_part);
            row.is_listed |= changed_at_ms.is_some();
            row.told_at_ms = changed_at_ms.or(row.told_at_ms);
            row.is_part |= found.is_part();
            if before != (row.is_listed, row.told_at_ms, row.is_part) {
                self.set(id, &row)?;
            }
            let (host, read_at_ms) = (row.host().to_owned(), row.read_at_ms);
            learned.told.push(Told { id, host, changed_at_ms, read_at_ms, again });
        }
        Ok(())
    }

    /// Keeps a link that has no id yet.
    pub(super) fn keep(&mut self, found: &Found) -> Result<u64> {
        self.noted.arrivals += 1;
        self.found.insert(self.noted.arrivals, found.encode().as_slice())?;
        Ok(self.noted.arrivals)
    }

    pub(super) fn forget(&mut self, place: u64) -> Result<()> {
        self.found.remove(place)?;
        Ok(())
    }

    /// Puts a row among those that wait, if it does.
    fn place(&mut self, mut row: Row, id: UrlId) -> Result<Row> {
        row.place = None;
        if row.state == State::Waiting {
            self.noted.arrivals += 1;
            row.place = Some((row.urgency, self.noted.arrivals));
            self.waiting.insert((row.host(), row.urgency, self.noted.arrivals), id)?;
            self.noted.waiting.push((row.host().to_owned(), 1));
        }
        Ok(row)
    }
}
