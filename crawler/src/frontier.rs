//! The frontier: every URL a crawl knows, which of them wait, and in which order sites are served. Durable: `kill -9` is the
//! normal way to stop.
//!
//! ```text
//!   urls/          the URL table: canonical URL ↔ URL-id
//!   frontier.redb  rows     URL-id                            ─▶ row: URL, state, depth, when read, ETag, …
//!                  waiting  (host, urgency, order of arrival) ─▶ URL-id
//!                  found    order of arrival                  ─▶ a link that has no URL-id yet
//! ```
//!
//! A batch of what was read and of links is one transaction. A URL stays in `waiting` until what became of it is committed, so what
//! was being fetched when the process was killed is handed out again, and nothing else is. Links lie in `found` until a pass over all
//! known URLs has settled them ([`seen`](self)); rows of new URLs are then appended in the order of their ids.
//!
//! 1. Every URL-id below that of the next new URL has a row, or a link in `found` that will make it: a pass that was cut off
//!    between the URL table and the rows is made again.
//! 2. URLs are handed out host by host in turn, a few of each at a time ([`Frontier::hand_out`]): hosts are counted in memory,
//!    and a host's next URLs are one range of `waiting`. No step looks at more than that, however many URLs wait.

mod changes;
mod row;
mod seen;
#[cfg(test)]
mod tests;
mod turns;

use std::path::Path;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use url::Url;
use webbase_storage::url::canonical_of;

pub(crate) use self::row::host_of;
pub use self::row::{Found, Row, State, What};

use self::changes::Changes;
use self::seen::{Link, Seen};
use self::turns::Turns;
use crate::fetcher::Priority;
use crate::metadata::MetadataError;

const ROWS: TableDefinition<'_, u32, &[u8]> = TableDefinition::new("rows");
const WAITING: TableDefinition<'_, (&str, u8, u64), u32> = TableDefinition::new("waiting");
const FOUND: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("found");
const FACTS: TableDefinition<'_, &str, u64> = TableDefinition::new("facts");
/// The next place in the order of arrival.
const ARRIVALS: &str = "arrivals";
/// Which layout the file has.
const VERSION: &str = "version";
const VERSION_NOW: u64 = 2;
/// The key of the URL table, in four parts.
const KEY: [&str; 4] = ["key 0", "key 1", "key 2", "key 3"];

/// A URL's number.
pub type UrlId = u32;

/// What can go wrong with a frontier.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrontierError {
    /// The file cannot be read or written.
    #[error("the frontier: {0}")]
    Database(Box<redb::Error>),
    /// The URLs cannot be read or written.
    #[error("the frontier's URLs: {0}")]
    Urls(#[from] MetadataError),
    /// There is no randomness for a key.
    #[error("no key for the frontier's URLs: {0}")]
    Key(std::io::Error),
    /// The file is of another version.
    #[error("the frontier has layout {found}, this program knows {VERSION_NOW}: crawl into another folder")]
    Version {
        /// Which.
        found: u64,
    },
    /// A row cannot be read.
    #[error("the frontier has a row that cannot be read: {0}")]
    Row(String),
}

impl From<redb::Error> for FrontierError {
    fn from(e: redb::Error) -> FrontierError {
        FrontierError::Database(Box::new(e))
    }
}

macro_rules! from_redb {
    ($($kind:ty),*) => {$(
        impl From<$kind> for FrontierError {
            fn from(e: $kind) -> FrontierError {
                FrontierError::Database(Box::new(e.into()))
            }
        }
    )*};
}
from_redb!(
    redb::DatabaseError,
    redb::TransactionError,
    redb::TableError,
    redb::StorageError,
    redb::CommitError
);

type Result<T> = std::result::Result<T, FrontierError>;

/// What became of a URL.
#[derive(Clone, Debug)]
pub struct Became {
    /// Which.
    pub id: UrlId,
    /// Its new row.
    pub row: Row,
}

/// What a commit made known.
#[derive(Clone, Debug, Default)]
pub struct Learned {
    /// URLs that were not known before, in order of their ids, and their rows.
    pub new: Vec<(UrlId, Row)>,
    /// Pages known already of which a site says when they changed, or which somebody wants again.
    pub told: Vec<Told>,
    /// What links deal to the pages they lead to.
    pub dealt: Vec<(UrlId, f32)>,
}

/// What was said of a page that was known already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Which.
    pub id: UrlId,
    /// Its host.
    pub host: String,
    /// When its site says that it changed, in milliseconds since 1970.
    pub changed_at_ms: Option<u64>,
    /// When it was last read; 0: never.
    pub read_at_ms: u64,
    /// Whether somebody wants it again whatever its site says.
    pub again: bool,
}

/// The URLs of a crawl.
pub struct Frontier {
    database: Database,
    seen: Seen,
    turns: Turns,
    rows: UrlId,
    /// Whether pages that are found wait at once, or for the scheduler.
    pub found_waits: bool,
}

impl Frontier {
    /// Opens or makes a frontier in a folder.
    ///
    /// # Errors
    /// When the file is in use, damaged or of another version.
    pub fn open(dir: &Path) -> Result<Frontier> {
        let database = Database::builder().set_cache_size(64 << 20).create(dir.join("frontier.redb"))?;
        let writing = database.begin_write()?;
        let key = {
            writing.open_table(ROWS)?;
            writing.open_table(WAITING)?;
            writing.open_table(FOUND)?;
            let mut facts = writing.open_table(FACTS)?;
            let found = facts.get(VERSION)?.map(|found| found.value());
            match found {
                None => {
                    facts.insert(VERSION, VERSION_NOW)?;
                    let key = webbase_storage::RepositoryKey::random().map_err(FrontierError::Key)?.parts().0;
                    for (name, part) in KEY.into_iter().zip(key.as_chunks().0) {
                        facts.insert(name, u64::from_le_bytes(*part))?;
                    }
                }
                Some(VERSION_NOW) => {}
                Some(found) => return Err(FrontierError::Version { found }),
            }
            let mut key = [0; 32];
            for (name, part) in KEY.into_iter().zip(key.as_chunks_mut().0) {
                let found = facts.get(name)?.map(|part| part.value());
                let found = found.ok_or_else(|| FrontierError::Row("its key is not there".to_owned()))?;
                *part = found.to_le_bytes();
            }
            key
        };
        writing.commit()?;
        let seen = Seen::open(dir, key)?;
        let mut frontier = Frontier { database, seen, turns: Turns::default(), rows: 0, found_waits: true };
        frontier.begin()?;
        Ok(frontier)
    }

    /// Counts what waits, and takes up the links that were not settled.
    fn begin(&mut self) -> Result<()> {
        let reading = self.database.begin_read()?;
        let last = reading.open_table(ROWS)?.last()?.map(|(id, _)| id.value() + 1);
        self.rows = last.unwrap_or(0);
        let waiting = reading.open_table(WAITING)?;
        for entry in waiting.iter()? {
            let (place, _) = entry?;
            self.turns.count(place.value().0, 1);
        }
        for entry in reading.open_table(FOUND)?.iter()? {
            let (place, bytes) = entry?;
            let found = Found::decode(bytes.value())?;
            if let Link::New(canonical, key) = self.seen.look(&found.url) {
                self.seen.wait(place.value(), found, canonical, key);
            }
        }
        Ok(())
    }

    /// How many URLs are known, how many wait, and of how many hosts.
    pub fn counts(&self) -> (u64, u64, usize) {
        let (waiting, hosts) = self.turns.waiting();
        (u64::from(self.rows), waiting, hosts)
    }

    /// How many URLs are handed out.
    pub fn out(&self) -> usize {
        self.turns.out()
    }

    /// How many links wait to be settled.
    pub fn unsettled(&self) -> usize {
        self.seen.pending()
    }

    /// What is known of a URL-id.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn row(&self, id: UrlId) -> Result<Option<Row>> {
        let reading = self.database.begin_read()?;
        get(&reading.open_table(ROWS)?, id)
    }

    /// What is known of several, in their order; those that are not known are left out.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn some_rows(&self, ids: impl IntoIterator<Item = UrlId>) -> Result<Vec<(UrlId, Row)>> {
        let reading = self.database.begin_read()?;
        let rows = reading.open_table(ROWS)?;
        let mut found = Vec::new();
        for id in ids {
            found.extend(get(&rows, id)?.map(|row| (id, row)));
        }
        Ok(found)
    }

    /// What is known of a URL, however it is spelled.
    ///
    /// # Errors
    /// When the files cannot be read.
    pub fn find(&self, url: &str) -> Result<Option<(UrlId, Row)>> {
        let Some(id) = self.seen.find(url)? else { return Ok(None) };
        Ok(self.row(id)?.map(|row| (id, row)))
    }

    /// The number of a URL that was seen lately, in memory, for every link of every page; or else what its name is looked for by.
    ///
    /// # Errors
    /// The name, for [`Found::named`]; `None` for what is no URL of a page.
    pub fn recent(&self, url: &Url) -> std::result::Result<UrlId, Option<(String, u128)>> {
        match self.seen.look_at(canonical_of(url).ok()) {
            Link::Known(id) => Ok(id),
            Link::New(canonical, key) => Err(Some((canonical, key))),
            Link::None => Err(None),
        }
    }

    /// Shows every row, in order of ids.
    ///
    /// # Errors
    /// When the file cannot be read, and what `look` says.
    pub fn rows<E: From<FrontierError>>(
        &self,
        mut look: impl FnMut(UrlId, Row) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let reading = self.database.begin_read().map_err(FrontierError::from)?;
        let rows = reading.open_table(ROWS).map_err(FrontierError::from)?;
        for entry in rows.iter().map_err(FrontierError::from)? {
            let (id, bytes) = entry.map_err(FrontierError::from)?;
            look(id.value(), Row::decode(bytes.value())?)?;
        }
        Ok(())
    }

    /// Writes down what became of URLs and which links were found, in one transaction: durable when it returns. Links that
    /// were not seen lately are settled with it, or later.
    ///
    /// # Errors
    /// When the files cannot be written; nothing has changed then, or it is taken up again when the frontier is opened.
    pub fn commit(&mut self, became: &[Became], found: Vec<Found>) -> Result<Learned> {
        let mut learned = Learned::default();
        if !became.is_empty() || !found.is_empty() {
            let mut changes = Changes::begin(&self.database)?;
            let mut tables = changes.tables()?;
            tables.became(became)?;
            for mut found in found {
                let link = match found.named.take() {
                    Some((canonical, key)) => self.seen.look_again(canonical, key),
                    None => self.seen.look(&found.url),
                };
                match link {
                    Link::None => {}
                    Link::Known(id) => tables.known(id, &found, &mut learned)?,
                    Link::New(canonical, key) => {
                        let place = tables.keep(&found)?;
                        self.seen.wait(place, found, canonical, key);
                    }
                }
            }
            drop(tables);
            self.turns.take(changes.commit()?);
        }
        if self.seen.is_time(self.turns.is_idle()) {
            self.settle_into(&mut learned)?;
        }
        Ok(learned)
    }

    /// Settles all links that wait, whatever it costs.
    ///
    /// # Errors
    /// As [`Frontier::commit`].
    pub fn settle(&mut self) -> Result<Learned> {
        let mut learned = Learned::default();
        if self.seen.pending() > 0 {
            self.settle_into(&mut learned)?;
        }
        Ok(learned)
    }

    fn settle_into(&mut self, learned: &mut Learned) -> Result<()> {
        let settled = self.seen.settle()?;
        let mut changes = Changes::begin(&self.database)?;
        let mut tables = changes.tables()?;
        for (link, id) in settled {
            tables.forget(link.place)?;
            // A row may be missing for an id that is not new, where a pass was cut off.
            if id >= self.rows && !tables.has(id)? {
                // Only the scheduler's own business waits for it: what somebody asked for, and sitemaps, are read at once.
                let waits = self.found_waits
                    || link.found.urgency < Priority::Refresh as u8
                    || link.found.what != What::Page;
                let row = tables.add(id, Row::of(&link.found, waits))?;
                learned.new.push((id, row));
                learned.dealt.push((id, link.found.share));
            } else {
                tables.known(id, &link.found, learned)?;
            }
        }
        drop(tables);
        self.turns.take(changes.commit()?);
        self.rows = self.seen.len();
        Ok(())
    }

    /// Changes rows without a change of how they stand.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set(&mut self, rows: &[Became]) -> Result<()> {
        let mut changes = Changes::begin(&self.database)?;
        let mut tables = changes.tables()?;
        for Became { id, row } in rows {
            tables.set(*id, row)?;
        }
        drop(tables);
        self.turns.take(changes.commit()?);
        Ok(())
    }

    /// Wants pages that are known. Those that wait already stay where they are.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn want(&mut self, pages: &[(UrlId, Priority)]) -> Result<()> {
        let mut changes = Changes::begin(&self.database)?;
        let mut tables = changes.tables()?;
        for (id, priority) in pages {
            let Some(row) = tables.row(*id)? else { continue };
            if row.state != State::Waiting {
                let row = Row { state: State::Waiting, tries: 0, urgency: *priority as u8, ..row };
                tables.became(&[Became { id: *id, row }])?;
            }
        }
        drop(tables);
        self.turns.take(changes.commit()?);
        Ok(())
    }

    /// Hands out up to `most` URLs, host by host in turn, and no more than `each` of a host at a time.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn hand_out(&mut self, most: usize, each: usize) -> Result<Vec<(UrlId, Row)>> {
        let reading = self.database.begin_read()?;
        let (rows, waiting) = (reading.open_table(ROWS)?, reading.open_table(WAITING)?);
        let mut handed = Vec::new();
        self.turns.hand_out(most, each, |host, room, out| {
            // What is out is at the front of the range, or nearly: at most `each` entries are passed over.
            let from = (host, 0, 0)..=(host, u8::MAX, u64::MAX);
            let mut taken = 0;
            for entry in waiting.range(from)?.take(each + room) {
                let id = entry?.1.value();
                if taken < room && out.insert(id) {
                    let row = get(&rows, id)?;
                    let row = row.ok_or_else(|| FrontierError::Row("a URL waits and has none".to_owned()))?;
                    handed.push((id, row));
                    taken += 1;
                }
            }
            Ok::<usize, FrontierError>(taken)
        })?;
        Ok(handed)
    }

    /// Takes a URL back that was handed out and not fetched.
    pub fn take_back(&mut self, host: &str, id: UrlId) {
        self.turns.take_back(host, id);
    }
}

fn get(rows: &impl ReadableTable<UrlId, &'static [u8]>, id: UrlId) -> Result<Option<Row>> {
    let found = rows.get(id)?;
    found.map(|bytes| Row::decode(bytes.value())).transpose()
}
