//! The frontier: every URL a crawl knows, which of them wait, and in which order sites are served. Durable: `kill -9` is the
//! normal way to stop.
//!
//! ```text
//!   urls     16 bytes of the hash of the canonical URL ─▶ row: URL, state, depth, when read, ETag, …
//!   waiting  (host, urgency, order of arrival)         ─▶ those 16 bytes
//! ```
//!
//! Both are tables of one redb file, `frontier.redb`; a batch of what was read and of links is one transaction. A URL stays in
//! `waiting` until what became of it is committed, so what was being fetched when the process was killed is handed out again, and
//! nothing else is.
//!
//! URLs are handed out host by host in turn, a few of each at a time ([`Frontier::hand_out`]): hosts are counted in memory, and a host's
//! next URLs are one range of `waiting`. No step looks at more than that, however many URLs wait.

mod row;

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;

use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};
use url::Url;
use webbase_storage::url::canonical;

pub use self::row::{Row, State, What};

use crate::fetcher::Priority;

const URLS: TableDefinition<'_, [u8; 16], &[u8]> = TableDefinition::new("urls");
const WAITING: TableDefinition<'_, (&str, u8, u64), [u8; 16]> = TableDefinition::new("waiting");
const FACTS: TableDefinition<'_, &str, u64> = TableDefinition::new("facts");
/// The next place in the order of arrival.
const ARRIVALS: &str = "arrivals";
/// Which layout the file has.
const VERSION: &str = "version";
const VERSION_NOW: u64 = 1;

/// A URL's name in the frontier.
pub type UrlName = [u8; 16];

/// What can go wrong with a frontier.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrontierError {
    /// The file cannot be read or written.
    #[error("the frontier: {0}")]
    Database(Box<redb::Error>),
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

impl<E: Into<redb::Error>> From<E> for FrontierError {
    fn from(e: E) -> FrontierError {
        FrontierError::Database(Box::new(e.into()))
    }
}

/// A URL that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where.
    pub url: Url,
    /// How many links from a seed.
    pub depth: u16,
    /// How many redirects led to it.
    pub redirects: u8,
    /// What it is.
    pub what: What,
    /// How urgent it is.
    pub priority: Priority,
    /// Whether it is wanted although it was read before: its site says that it changed after this moment (milliseconds since 1970).
    pub changed_at_ms: Option<u64>,
}

/// What became of a URL.
#[derive(Clone, Debug)]
pub struct Became {
    /// Which.
    pub name: UrlName,
    /// Its new row.
    pub row: Row,
}

/// The URLs of a crawl.
pub struct Frontier {
    database: Database,
    hosts: HashMap<String, Host>,
    /// Hosts with URLs that wait and are not handed out, in turn.
    turn: VecDeque<String>,
    known: u64,
}

#[derive(Debug, Default)]
struct Host {
    waiting: u64,
    out: HashSet<UrlName>,
    is_in_turn: bool,
}

impl Frontier {
    /// Opens or makes a frontier in a folder.
    ///
    /// # Errors
    /// When the file is in use, damaged or of another version.
    pub fn open(dir: &Path) -> Result<Frontier, FrontierError> {
        let database = Database::builder().set_cache_size(64 << 20).create(dir.join("frontier.redb"))?;
        let writing = database.begin_write()?;
        {
            writing.open_table(URLS)?;
            writing.open_table(WAITING)?;
            let mut facts = writing.open_table(FACTS)?;
            let found = facts.get(VERSION)?.map(|found| found.value());
            match found {
                None => drop(facts.insert(VERSION, VERSION_NOW)?),
                Some(VERSION_NOW) => {}
                Some(found) => return Err(FrontierError::Version { found }),
            }
        }
        writing.commit()?;
        let mut frontier = Frontier { database, hosts: HashMap::new(), turn: VecDeque::new(), known: 0 };
        frontier.count()?;
        Ok(frontier)
    }

    fn count(&mut self) -> Result<(), FrontierError> {
        let reading = self.database.begin_read()?;
        self.known = reading.open_table(URLS)?.len()?;
        let waiting = reading.open_table(WAITING)?;
        for entry in waiting.iter()? {
            let (place, _) = entry?;
            let host = place.value().0;
            match self.hosts.get_mut(host) {
                Some(host) => host.waiting += 1,
                None => {
                    self.hosts
                        .insert(host.to_owned(), Host { waiting: 1, is_in_turn: true, ..Host::default() });
                    self.turn.push_back(host.to_owned());
                }
            }
        }
        Ok(())
    }

    /// A URL's name; `None` for what is no URL of a page.
    pub fn name(url: &Url) -> Option<UrlName> {
        let canonical = canonical(url.as_str()).ok()?;
        // The scheme is part of how it is read, and http and https are the same page; so it is no part of the name.
        blake3::hash(canonical.as_bytes()).as_bytes().first_chunk().copied()
    }

    /// How many URLs are known, how many wait, and of how many hosts.
    pub fn counts(&self) -> (u64, u64, usize) {
        let waiting = self.hosts.values().map(|host| host.waiting).sum();
        (self.known, waiting, self.hosts.values().filter(|host| host.waiting > 0).count())
    }

    /// How many URLs are handed out.
    pub fn out(&self) -> usize {
        self.hosts.values().map(|host| host.out.len()).sum()
    }

    /// What is known of a URL.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn row(&self, name: UrlName) -> Result<Option<Row>, FrontierError> {
        let reading = self.database.begin_read()?;
        let found = reading.open_table(URLS)?.get(name)?;
        found.map(|bytes| Row::decode(bytes.value())).transpose()
    }

    /// Writes down what became of URLs and which were found, in one transaction: durable when it returns. Returns how many were new.
    ///
    /// # Errors
    /// When the file cannot be written; nothing has changed then.
    pub fn commit(&mut self, became: &[Became], found: &[Found]) -> Result<u64, FrontierError> {
        let writing = self.database.begin_write()?;
        let mut changed: Vec<(String, i64)> = Vec::new();
        let mut done: Vec<(String, UrlName)> = Vec::new();
        let mut new = 0;
        {
            let mut urls = writing.open_table(URLS)?;
            let mut waiting = writing.open_table(WAITING)?;
            let mut facts = writing.open_table(FACTS)?;
            let mut arrivals = facts.get(ARRIVALS)?.map_or(0, |found| found.value());
            for one in became {
                let host = one.row.host();
                if let Some(before) = get(&urls, one.name)?
                    && let Some((urgency, order)) = before.place
                    && waiting.remove((before.host().as_str(), urgency, order))?.is_some()
                {
                    changed.push((before.host(), -1));
                }
                let mut row = one.row.clone();
                row.place = None;
                if row.state == State::Waiting {
                    arrivals += 1;
                    row.place = Some((row.urgency, arrivals));
                    waiting.insert((host.as_str(), row.urgency, arrivals), one.name)?;
                    changed.push((host.clone(), 1));
                }
                urls.insert(one.name, row.encode().as_slice())?;
                done.push((host, one.name));
            }
            for found in found {
                let Some(name) = Frontier::name(&found.url) else { continue };
                let before = get(&urls, name)?;
                let is_new = before.is_none();
                let Some(mut row) = Row::wanted(found, before) else { continue };
                arrivals += 1;
                row.place = Some((row.urgency, arrivals));
                let host = row.host();
                waiting.insert((host.as_str(), row.urgency, arrivals), name)?;
                changed.push((host, 1));
                urls.insert(name, row.encode().as_slice())?;
                new += u64::from(is_new);
            }
            facts.insert(ARRIVALS, arrivals)?;
        }
        writing.commit()?;
        self.known += new;
        for (host, name) in done {
            if let Some(host) = self.hosts.get_mut(&host) {
                host.out.remove(&name);
            }
        }
        for (name, change) in changed {
            let host = self.hosts.entry(name.clone()).or_default();
            host.waiting = host.waiting.saturating_add_signed(change);
            if change > 0 && !host.is_in_turn {
                host.is_in_turn = true;
                self.turn.push_back(name);
            }
        }
        self.hosts.retain(|_, host| host.waiting > 0 || !host.out.is_empty() || host.is_in_turn);
        Ok(new)
    }

    /// Hands out up to `most` URLs, host by host in turn, and no more than `each` of a host at a time.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn hand_out(&mut self, most: usize, each: usize) -> Result<Vec<(UrlName, Row)>, FrontierError> {
        let reading = self.database.begin_read()?;
        let (urls, waiting) = (reading.open_table(URLS)?, reading.open_table(WAITING)?);
        let mut handed = Vec::new();
        for _ in 0..self.turn.len() {
            if handed.len() >= most {
                break;
            }
            let Some(name) = self.turn.pop_front() else { break };
            let Some(host) = self.hosts.get_mut(&name) else { continue };
            let room = each.saturating_sub(host.out.len()).min(most - handed.len());
            if room > 0 {
                // What is out is at the front of the range, or nearly: at most `each` entries are passed over.
                let from = (name.as_str(), 0, 0)..=(name.as_str(), u8::MAX, u64::MAX);
                let mut taken = 0;
                for entry in waiting.range(from)?.take(each + room) {
                    let url = entry?.1.value();
                    if taken < room && host.out.insert(url) {
                        let row = get(&urls, url)?;
                        handed.push((
                            url,
                            row.ok_or_else(|| FrontierError::Row("a URL waits and has none".to_owned()))?,
                        ));
                        taken += 1;
                    }
                }
            }
            host.is_in_turn = host.waiting > host.out.len() as u64;
            if host.is_in_turn {
                self.turn.push_back(name);
            }
        }
        Ok(handed)
    }

    /// Takes a URL back that was handed out and not fetched.
    pub fn take_back(&mut self, host: &str, name: UrlName) {
        if let Some(at) = self.hosts.get_mut(host) {
            at.out.remove(&name);
            if !at.is_in_turn {
                at.is_in_turn = true;
                self.turn.push_back(host.to_owned());
            }
        }
    }

    /// Wants every page again that was last read before a moment. Returns how many.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn recrawl(&mut self, before_ms: u64) -> Result<u64, FrontierError> {
        let mut due = Vec::new();
        {
            let reading = self.database.begin_read()?;
            for entry in reading.open_table(URLS)?.iter()? {
                let (name, bytes) = entry?;
                let mut row = Row::decode(bytes.value())?;
                if row.state == State::Read && row.read_at_ms < before_ms {
                    row.state = State::Waiting;
                    row.tries = 0;
                    row.urgency = Priority::Refresh as u8;
                    due.push(Became { name: name.value(), row });
                }
            }
        }
        for some in due.chunks(10_000) {
            self.commit(some, &[])?;
        }
        Ok(due.len() as u64)
    }
}

fn get(
    urls: &impl ReadableTable<[u8; 16], &'static [u8]>,
    name: UrlName,
) -> Result<Option<Row>, FrontierError> {
    let found = urls.get(name)?;
    found.map(|bytes| Row::decode(bytes.value())).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(url: &str) -> Found {
        Found {
            url: Url::parse(url).unwrap(),
            depth: 0,
            redirects: 0,
            what: What::Page,
            priority: Priority::Discovery,
            changed_at_ms: None,
        }
    }

    fn read(row: &Row) -> Row {
        Row { state: State::Read, read_at_ms: 1000, status: 200, ..row.clone() }
    }

    #[test]
    fn what_is_read_stays_read_and_what_was_out_comes_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut frontier = Frontier::open(dir.path()).unwrap();
        let some = [found("http://a.example/1"), found("http://a.example/2#x"), found("http://b.example/")];
        assert_eq!(frontier.commit(&[], &some).unwrap(), 3);
        assert_eq!(frontier.commit(&[], &[found("https://a.example/2")]).unwrap(), 0, "known");
        let out = frontier.hand_out(10, 1).unwrap();
        assert_eq!(out.len(), 2, "one of each host");
        assert_eq!(frontier.hand_out(10, 1).unwrap().len(), 0);
        let (name, row) = &out[0];
        frontier.commit(&[Became { name: *name, row: read(row) }], &[]).unwrap();
        assert_eq!(frontier.counts(), (3, 2, 2));
        drop(frontier);
        let mut frontier = Frontier::open(dir.path()).unwrap();
        assert_eq!(frontier.counts(), (3, 2, 2));
        let again = frontier.hand_out(10, 10).unwrap();
        assert_eq!(again.len(), 2);
        assert!(again.iter().all(|(other, _)| other != name));
        assert_eq!(frontier.row(*name).unwrap().unwrap().state, State::Read);
    }

    #[test]
    fn urgent_ones_first_and_changed_ones_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut frontier = Frontier::open(dir.path()).unwrap();
        let urgent = Found { priority: Priority::User, ..found("http://a.example/2") };
        frontier.commit(&[], &[found("http://a.example/1"), urgent]).unwrap();
        let out = frontier.hand_out(1, 10).unwrap();
        assert_eq!(out[0].1.url, "http://a.example/2");
        let became = Became { name: out[0].0, row: read(&out[0].1) };
        frontier.commit(&[became], &[]).unwrap();
        let told = |at| Found { changed_at_ms: Some(at), ..found("http://a.example/2") };
        frontier.commit(&[], &[told(900)]).unwrap();
        assert_eq!(frontier.counts().1, 1, "read since");
        frontier.commit(&[], &[told(1100)]).unwrap();
        assert_eq!(frontier.counts().1, 2, "changed since");
        frontier.commit(&[], &[told(1200)]).unwrap();
        assert_eq!(frontier.counts().1, 2, "waits already");
    }

    #[test]
    fn what_is_taken_back_is_handed_out_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut frontier = Frontier::open(dir.path()).unwrap();
        frontier.commit(&[], &[found("http://a.example/1")]).unwrap();
        let out = frontier.hand_out(9, 9).unwrap();
        assert_eq!((out.len(), frontier.hand_out(9, 9).unwrap().len(), frontier.out()), (1, 0, 1));
        frontier.take_back("a.example", out[0].0);
        assert_eq!(frontier.hand_out(9, 9).unwrap().len(), 1);
        assert_eq!(frontier.recrawl(5000).unwrap(), 0, "it waits, it was not read");
    }
}
