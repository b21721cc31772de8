//! What is said in handshakes, requests and small answers: postcard behind a version byte. Enums only ever grow at their
//! end, so that an older peer's messages keep their meaning.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use webbase_storage::urls::{UrlPlace, UrlQuery};
use webbase_storage::{Cursor, Damage, Organization, PageId, PageKey, Stats, StorageError, Version};

use super::ranges::RangeSet;
use super::spec::StreamSpec;

/// The version of this protocol.
pub const VERSION: u16 = 3;
/// First bytes of the handshake's payloads.
pub const MAGIC: [u8; 4] = *b"WBNP";
/// Version of the messages' encoding.
const MESSAGE_VERSION: u8 = 1;
/// Bytes of an error's text on the wire, at most.
const TEXT_BYTES_MAX: usize = 1000;
/// Keys in one multi-lookup, at most.
pub const KEYS_MAX: usize = 4096;
/// Bytes of a URL in a request, at most.
pub const URL_BYTES_MAX: usize = 64 << 10;
/// Dictionaries a peer may say it has.
pub const KNOWN_MAX: usize = 64;

/// Encodes a message.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    let start = vec![MESSAGE_VERSION];
    // Writing to memory fails for types that postcard cannot encode; ours it can, and tests encode each of them.
    postcard::to_extend(message, start).unwrap_or_default()
}

/// Reads a message.
///
/// # Errors
/// When the bytes are none of this type, or bytes are left over.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    match bytes.split_first() {
        Some((&MESSAGE_VERSION, rest)) => match postcard::take_from_bytes::<T>(rest) {
            Ok((message, [])) => Ok(message),
            Ok((_, left)) => Err(format!("a message with {} bytes too many", left.len())),
            Err(e) => Err(format!("not a message: {e}")),
        },
        Some((version, _)) => Err(format!("message version {version}, this program reads {MESSAGE_VERSION}")),
        None => Err("an empty message".into()),
    }
}

/// A page key as it stands in messages: id and tie, big-endian.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Key(pub [u8; 16]);

impl From<PageKey> for Key {
    fn from(key: PageKey) -> Key {
        Key((u128::from(key.id.0) << 64 | u128::from(key.tie)).to_be_bytes())
    }
}

impl From<Key> for PageKey {
    fn from(key: Key) -> PageKey {
        let both = u128::from_be_bytes(key.0);
        PageKey { id: PageId((both >> 64) as u64), tie: both as u64 }
    }
}

/// The dialing side's introduction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The repository it expects, by its key's fingerprint.
    pub repository: Option<String>,
    /// The shared secret.
    pub token: Option<[u8; 32]>,
    /// Bytes of data it takes in each call before it gives more credit.
    pub credit_bytes: u32,
    /// Digests of dictionaries it has.
    pub known: Vec<u64>,
    /// Whether it takes the server's shelf; only who comes by the door can.
    pub shelf: bool,
}

/// The answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// The repository served, by its key's fingerprint; empty when it serves none.
    pub repository: String,
    /// Bytes of data it takes in each call before it gives more credit.
    pub credit_bytes: u32,
    /// Calls that may be open at once.
    pub calls_max: u32,
    /// Bytes of the largest item, page or record, taken.
    pub item_bytes_max: u64,
    /// A Unix socket that leads to it, too, for a client on the same machine.
    pub door: Option<String>,
}

/// What pages an add sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Form {
    /// Pages as fetched; the server packs them.
    Pages,
    /// Records, packed by the client.
    Records,
}

/// The order of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StreamOrder {
    /// As the pages lie on disk.
    Store,
    /// By page id.
    Id,
    /// By the time of the fetch, the oldest first.
    Fetched,
    /// By the time of the last change, the oldest first; those of which it is not known last.
    Modified,
    /// The most important first; those of which nothing is known last.
    Importance,
    /// By URL, the host's labels from the last to the first, so that what is near each other on the web comes together.
    Url,
}

impl StreamOrder {
    /// All of them, with their names.
    pub const ALL: [(&'static str, StreamOrder); 6] = [
        ("store", StreamOrder::Store),
        ("id", StreamOrder::Id),
        ("fetched", StreamOrder::Fetched),
        ("modified", StreamOrder::Modified),
        ("importance", StreamOrder::Importance),
        ("url", StreamOrder::Url),
    ];
}

/// What a call asks for. What generation numbers mean is the service's business: see `PROTOCOL.md`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// A sign of life from the service itself.
    Ping,
    /// One page by its key.
    Lookup {
        /// The generation to read.
        generation: u64,
        /// The page.
        key: Key,
    },
    /// All pages with one page id.
    LookupId {
        /// The generation to read.
        generation: u64,
        /// The page id.
        id: u64,
    },
    /// One page by its URL.
    LookupUrl {
        /// The generation to read.
        generation: u64,
        /// The URL.
        url: String,
    },
    /// Many pages by their keys.
    LookupMany {
        /// The generation to read.
        generation: u64,
        /// The pages, at most [`KEYS_MAX`].
        keys: Vec<Key>,
    },
    /// All pages of some ranges.
    Stream {
        /// The generation to read.
        generation: u64,
        /// In which order.
        order: StreamOrder,
        /// From where: a cursor as text.
        from: String,
        /// Whether to read past the page cache.
        direct: bool,
        /// Which pages.
        ranges: RangeSet,
    },
    /// Key, version and size of all pages of some ranges, in order of their keys.
    List {
        /// The generation to read.
        generation: u64,
        /// The first key wanted.
        from: Key,
        /// Which pages.
        ranges: RangeSet,
    },
    /// The keys of all pages of some ranges, in order.
    Keys {
        /// The generation to read.
        generation: u64,
        /// The first key wanted.
        from: Key,
        /// Which pages.
        ranges: RangeSet,
    },
    /// Takes pages, batch by batch.
    Add {
        /// What they are sent as.
        form: Form,
    },
    /// All dictionaries.
    Dictionaries,
    /// The store in figures.
    Stats,
    /// Takes back the space of dead records.
    Compact {
        /// Bytes to read and write, about.
        budget_bytes: u64,
    },
    /// Reads everything and lists the damage.
    Verify,
    /// Messages both ways, whose meaning is not the wire's business.
    Control {
        /// What the messages are about.
        topic: String,
    },
    /// What the service remembers of removed pages, in a form that is its own business.
    Tombstones {
        /// The generation to read.
        generation: u64,
    },
    /// The pages whose time is over, the longest overdue first.
    Due {
        /// The generation to read.
        generation: u64,
        /// Over at this time.
        now_ms: u64,
        /// At most so many.
        limit: u32,
    },
    /// All pages of some ranges that lie behind some places, which another node may have told.
    StreamAfter {
        /// The generation to read.
        generation: u64,
        /// Whether to read past the page cache.
        direct: bool,
        /// Which pages.
        ranges: RangeSet,
        /// What is not wanted any more.
        after: After,
    },
    /// As `List`, but only up to a key.
    ListBetween {
        /// The generation to read.
        generation: u64,
        /// The first key wanted.
        from: Key,
        /// The last key wanted.
        through: Key,
        /// Which pages.
        ranges: RangeSet,
    },
    /// Many pages by their keys, if they are in these ranges. A node that does not have all pages of the ranges says so.
    LookupIn {
        /// The generation to read.
        generation: u64,
        /// The ranges.
        ranges: RangeSet,
        /// The pages, at most [`KEYS_MAX`].
        keys: Vec<Key>,
    },
    /// The pages of some ranges that a specification names, what of them it names, in its order.
    Select {
        /// The generation to read.
        generation: u64,
        /// Whether to read past the page cache.
        direct: bool,
        /// Which ranges.
        ranges: RangeSet,
        /// Which pages of them.
        spec: StreamSpec,
        /// Which version of the importance of pages counts; 0 where it does not matter.
        importance: u64,
        /// From where.
        from: SelectFrom,
        /// Whether to share a scan with others: the stream may begin in the middle then.
        shared: bool,
    },
    /// Takes the importance of pages: entries of 20 bytes (a key, big-endian, and an IEEE 754 number of 4 bytes), in
    /// order of their keys. The answer is how many they are, when they are durable.
    PublishImportance {
        /// Its version; higher ones are newer.
        version: u64,
        /// The ranges whose pages they are.
        ranges: RangeSet,
    },
    /// Which versions of the importance of pages there are.
    ImportanceVersions,
    /// Rows of the URL index, in its order. A node that does not have all pages of the ranges says so.
    Urls {
        /// The generation to read.
        generation: u64,
        /// Which pages.
        ranges: RangeSet,
        /// Which of their rows.
        asked: UrlsAsked,
        /// At most so many, and never more than [`URL_ROWS_MAX`].
        limit: u32,
    },
    /// How many pages of the URL index are between two SURT keys.
    UrlCount {
        /// The generation to read.
        generation: u64,
        /// Which pages.
        ranges: RangeSet,
        /// From this key on.
        start: String,
        /// Below this one.
        end: Option<String>,
    },
    /// SURT keys that cut the node's own rows between two keys into equal parts.
    UrlCuts {
        /// The generation to read.
        generation: u64,
        /// From this key on.
        start: String,
        /// Below this one.
        end: Option<String>,
        /// How many parts, at most [`URL_PARTS_MAX`].
        parts: u32,
        /// Where these parts begin.
        wanted: (u32, u32),
    },
    /// The pages of a kept generation that were seen again, with the deadlines they have since: rows of 24 bytes, in no order.
    Renewed {
        /// The generation to read.
        generation: u64,
        /// Which pages.
        ranges: RangeSet,
    },
}

/// A place in an order, and a page's key: what was sent last.
pub type Place = (Vec<u8>, Key);

/// From where pages are selected.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SelectFrom {
    /// In store order: a node's own cursor, as text.
    Cursor(String),
    /// In store order: behind places that any node may have told.
    After(After),
    /// In another order.
    Place {
        /// Behind this place.
        after: Option<Place>,
        /// Of a stream that was begun in another generation, and got this far there: behind that place, or arrived since.
        went_on: Option<(u64, Place)>,
    },
}

/// What precedes the records of one chunk of a stream in an order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OrderedHead {
    /// Records that follow. There may be none: it is a sign of life then.
    pub records: u32,
    /// The place of each.
    pub places: Vec<Vec<u8>>,
    /// Pages that are left out because they are damaged, and their places where those can be told.
    pub damaged: Vec<(Option<Vec<u8>>, Lost)>,
}

/// Rows in one answer, at most.
pub const URL_ROWS_MAX: usize = 4096;
/// Bytes of rows in one answer, about.
pub const URL_ROWS_BYTES: usize = 2 << 20;
/// Parts that rows are cut into, at most.
pub const URL_PARTS_MAX: u32 = 1 << 20;
/// Cuts in one answer, at most.
pub const URL_CUTS_MAX: u32 = 1024;

/// Which rows of the URL index are wanted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UrlsAsked {
    /// SURT keys from this one on.
    pub start: String,
    /// SURT keys below this one.
    pub end: Option<String>,
    /// From the last to the first.
    pub descending: bool,
    /// Only rows behind this SURT key and page.
    pub after: Option<(String, Key)>,
}

impl UrlsAsked {
    /// Bytes of its longest text, which the server bounds.
    pub fn longest(&self) -> usize {
        let after = self.after.as_ref().map_or(0, |(surt, _)| surt.len());
        self.start.len().max(self.end.as_ref().map_or(0, String::len)).max(after)
    }
}

impl From<&UrlQuery> for UrlsAsked {
    fn from(query: &UrlQuery) -> UrlsAsked {
        let UrlQuery { start, end, descending, after } = query.clone();
        UrlsAsked { start, end, descending, after: after.map(|a| (a.surt, a.key.into())) }
    }
}

impl From<UrlsAsked> for UrlQuery {
    fn from(asked: UrlsAsked) -> UrlQuery {
        let UrlsAsked { start, end, descending, after } = asked;
        UrlQuery {
            start,
            end,
            descending,
            after: after.map(|(surt, key)| UrlPlace { surt, key: key.into() }),
        }
    }
}

/// What precedes rows of the URL index, which follow as bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UrlsHead {
    /// Bytes that follow.
    pub bytes: u64,
    /// More rows are there.
    pub more: bool,
}

/// Places in one request, at most.
pub const PLACES_MAX: usize = 4096;
/// An arrival that nobody can tell.
pub const UNKNOWN: u64 = u64::MAX;

/// How the pages of a range are ordered in a stream, so that a place in it says what came before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum By {
    /// By their keys; an arrival is 0 then.
    Key,
    /// By the generation in which they arrived, then by their keys.
    Arrival,
}

/// Places in some ranges: all pages up to them were delivered. Of a range without a place none was.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct After {
    /// Which order they are places in.
    pub by: By,
    /// Range, arrival, key; ascending, at most [`PLACES_MAX`].
    pub places: Vec<(u32, u64, Key)>,
}

impl After {
    /// The place in a range.
    pub fn of(&self, range: u32) -> Option<(u64, PageKey)> {
        let at = self.places.binary_search_by_key(&range, |(range, ..)| *range).ok()?;
        self.places.get(at).map(|(_, arrival, key)| (*arrival, PageKey::from(*key)))
    }

    /// Whether a page of a range lies behind its place.
    pub fn is_wanted(&self, range: u32, arrival: u64, key: PageKey) -> bool {
        let arrival = if self.by == By::Key { 0 } else { arrival };
        self.of(range).is_none_or(|place| place < (arrival, key))
    }

    /// Whether it is as it should be: what came over the wire may not be.
    pub fn is_valid(&self) -> bool {
        self.places.len() <= PLACES_MAX && self.places.is_sorted_by(|a, b| a.0 < b.0)
    }
}

/// What kind of error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Code {
    /// The peer does not keep to the protocol.
    Protocol,
    /// No version in common.
    Version,
    /// The token is wrong or missing.
    Token,
    /// Another repository.
    Repository,
    /// Too many connections, calls or uploads; later it may work.
    Busy,
    /// The server is going down; another one, or later.
    ShuttingDown,
    /// The generation is not there; [`Fault::generations`] are.
    Generation,
    /// The request makes no sense to this service.
    BadRequest,
    /// A page, record or URL that a store does not take.
    BadPage,
    /// A damaged record.
    Damaged,
    /// No space left.
    NoSpace,
    /// The store failed.
    Store,
    /// The call was cancelled.
    Cancelled,
    /// A fault of the program itself.
    Internal,
    /// Nothing came for too long.
    Timeout,
    /// The add was made with a plan that does not hold any more: get a new one.
    Plan,
}

/// An error as it crosses the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct Fault {
    /// What kind.
    pub code: Code,
    /// For people.
    pub text: String,
    /// With [`Code::Generation`]: the generations there are.
    pub generations: Vec<u64>,
}

impl Fault {
    /// A fault with a text, which is cut to a reasonable length.
    pub fn new(code: Code, text: impl fmt::Display) -> Fault {
        let mut text = text.to_string();
        if text.len() > TEXT_BYTES_MAX {
            let cut = (0..=TEXT_BYTES_MAX).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            text.truncate(cut);
        }
        Fault { code, text, generations: Vec::new() }
    }

    /// The generation asked for is not among those there are.
    pub fn generation(asked: u64, mut there: Vec<u64>) -> Fault {
        there.truncate(16);
        let text = format!("generation {asked} is not here; there are {there:?}");
        Fault { generations: there, ..Fault::new(Code::Generation, text) }
    }
}

impl From<StorageError> for Fault {
    fn from(e: StorageError) -> Fault {
        let code = match &e {
            StorageError::Corrupt { .. } => Code::Damaged,
            StorageError::NoSpace { .. } => Code::NoSpace,
            StorageError::PageTooLarge { .. }
            | StorageError::Url(_)
            | StorageError::BadPage { .. }
            | StorageError::BadRecord(_)
            | StorageError::UnknownDictionary { .. } => Code::BadPage,
            StorageError::NoSuchOrder { .. } | StorageError::BadCursor { .. } => Code::BadRequest,
            _ => Code::Store,
        };
        Fault::new(code, e)
    }
}

/// What became of one batch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BatchAnswer {
    /// The batch's number in its call, from 0.
    pub batch: u64,
    /// Pages new, superseding and stale, durable; or why the batch was not taken.
    pub outcome: Result<(u64, u64, u64), Fault>,
}

/// What precedes the records of one chunk of a stream.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChunkHead {
    /// Records that follow.
    pub records: u32,
    /// Where to resume behind each of them.
    pub steps: Steps,
    /// Where to resume behind the whole chunk, as text.
    pub after: String,
    /// Damage met on the way: these pages are left out.
    pub damaged: Vec<Lost>,
    /// In which generation the records arrived, where pages lie in that order: so many of them, and the generation or
    /// [`UNKNOWN`]. Empty where there is nothing to tell.
    pub arrivals: Vec<(u32, u64)>,
}

/// A page that is left out of a stream because it is damaged.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lost {
    /// Which page, where that can be told. Where not, in a stream in key order, its key is above those of all chunks before.
    pub key: Option<Key>,
    /// In which generation it arrived, or [`UNKNOWN`].
    pub arrival: u64,
    /// What is wrong with it.
    pub fault: Fault,
}

/// Cursors behind the records of a chunk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Steps {
    /// Behind each record: the key right after its own.
    Keys,
    /// Ordinals: the first, and how far each is from the one before.
    Ordinals(u64, Vec<u32>),
    /// Only the chunk's end is a place to resume.
    End,
    /// Each as text.
    Each(Vec<String>),
}

impl Steps {
    /// The cursor behind record number `n`, whose key is given; `None` where only the chunk's end has one.
    pub fn cursor(&self, n: usize, key: PageKey) -> Option<Cursor> {
        match self {
            Steps::Keys => Some(key.next().map_or(Cursor::End, Cursor::Key)),
            Steps::Ordinals(first, deltas) => {
                let sum: u64 = deltas.iter().take(n).map(|&d| u64::from(d)).sum();
                (n <= deltas.len()).then(|| Cursor::Ordinal(first.saturating_add(sum)))
            }
            Steps::End => None,
            Steps::Each(cursors) => cursors.get(n)?.parse().ok(),
        }
    }
}

/// The end of a multi-lookup: what is missing among the records before.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Missing {
    /// Numbers of keys whose page is not there.
    pub absent: Vec<u32>,
    /// Numbers of keys whose page cannot be read, and why.
    pub failed: Vec<(u32, Fault)>,
}

/// A store in figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Figures {
    organization: u8,
    capacity_bytes: u64,
    used_bytes: u64,
    live_bytes: u64,
    dead_bytes: u64,
    pages: u64,
    segments: u64,
    memory_bytes: u64,
    cache_bytes: u64,
}

impl From<Stats> for Figures {
    fn from(s: Stats) -> Figures {
        Figures {
            organization: s.organization as u8,
            capacity_bytes: s.capacity_bytes,
            used_bytes: s.used_bytes,
            live_bytes: s.live_bytes,
            dead_bytes: s.dead_bytes,
            pages: s.pages,
            segments: s.segments,
            memory_bytes: s.memory_bytes,
            cache_bytes: s.cache_bytes,
        }
    }
}

impl From<Figures> for Stats {
    fn from(f: Figures) -> Stats {
        let named = Organization::ALL.into_iter().find(|&o| o as u8 == f.organization);
        Stats {
            organization: named.unwrap_or(Organization::Log),
            capacity_bytes: f.capacity_bytes,
            used_bytes: f.used_bytes,
            live_bytes: f.live_bytes,
            dead_bytes: f.dead_bytes,
            pages: f.pages,
            segments: f.segments,
            memory_bytes: f.memory_bytes,
            cache_bytes: f.cache_bytes,
        }
    }
}

/// Due pages in one answer, at most.
pub const DUE_MAX: usize = 100_000;

/// A page whose time is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DueEntry {
    /// Which page.
    pub key: Key,
    /// Since when.
    pub deadline_ms: u64,
    /// In which version: fetch time, epoch, digest.
    pub version: (u64, u32, u64),
}

impl DueEntry {
    /// A page that is due, in the version that is.
    pub fn new(due: &webbase_storage::Due, version: Version) -> DueEntry {
        let version = (version.fetched_at_ms, version.epoch, version.digest);
        DueEntry { key: due.key.into(), deadline_ms: due.deadline_ms, version }
    }

    /// The version.
    pub fn version(&self) -> Version {
        let (fetched_at_ms, epoch, digest) = self.version;
        Version { fetched_at_ms, epoch, digest }
    }
}

/// What a compaction did: bytes read, written, freed, and whether it is done.
pub type CompactAnswer = (u64, u64, u64, bool);

/// Damaged places named in one answer, at most.
pub const DAMAGE_MAX: usize = 1000;

/// What a verification found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VerifyAnswer {
    /// Records whose checksums hold.
    pub good_records: u64,
    /// Bytes checked.
    pub checked_bytes: u64,
    /// Damaged places in all.
    pub damage_count: u64,
    /// The first [`DAMAGE_MAX`] of them: file, offset, what, page.
    pub damage: Vec<(String, u64, String, Option<Key>)>,
}

impl VerifyAnswer {
    /// A place as the storage crate has it.
    pub fn damage(&self) -> impl Iterator<Item = Damage> + '_ {
        self.damage.iter().map(|(path, offset, what, key)| Damage {
            path: path.into(),
            offset: *offset,
            what: what.clone(),
            key: key.map(PageKey::from),
        })
    }
}

/// One line of a list: 52 bytes on the wire, little-endian but for the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The page.
    pub key: PageKey,
    /// Its version.
    pub version: Version,
    /// Bytes of its record.
    pub bytes: u64,
    /// The generation in which it arrived, or [`UNKNOWN`].
    pub arrival: u64,
}

/// Bytes of an [`Entry`].
pub const ENTRY_BYTES: usize = 52;

impl Entry {
    /// Appends the entry to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&Key::from(self.key).0);
        out.extend_from_slice(&self.version.fetched_at_ms.to_le_bytes());
        out.extend_from_slice(&self.version.epoch.to_le_bytes());
        out.extend_from_slice(&self.version.digest.to_le_bytes());
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.extend_from_slice(&self.arrival.to_le_bytes());
    }

    /// Reads an entry.
    pub fn read(bytes: &[u8; ENTRY_BYTES]) -> Option<Entry> {
        let (key, rest) = bytes.split_first_chunk()?;
        let (fetched, rest) = rest.split_first_chunk()?;
        let (epoch, rest) = rest.split_first_chunk()?;
        let (digest, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let version = Version {
            fetched_at_ms: u64::from_le_bytes(*fetched),
            epoch: u32::from_le_bytes(*epoch),
            digest: u64::from_le_bytes(*digest),
        };
        let (bytes, arrival) = (u64::from_le_bytes(*length), u64::from_le_bytes(*rest.first_chunk()?));
        Some(Entry { key: Key(*key).into(), version, bytes, arrival })
    }
}

/// A page that was seen again: 24 bytes on the wire, the key and when it is due, little-endian; 2^64-1 is never.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Renewal {
    /// The page.
    pub key: PageKey,
    /// When it is due.
    pub deadline_ms: u64,
}

/// Bytes of a [`Renewal`].
pub const RENEWAL_BYTES: usize = 24;

impl Renewal {
    /// Appends it to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&Key::from(self.key).0);
        out.extend_from_slice(&self.deadline_ms.to_le_bytes());
    }

    /// Reads one.
    pub fn read(bytes: &[u8; RENEWAL_BYTES]) -> Option<Renewal> {
        let (key, rest) = bytes.split_first_chunk()?;
        Some(Renewal { key: Key(*key).into(), deadline_ms: u64::from_le_bytes(*rest.first_chunk()?) })
    }
}

/// A handshake's payload: magic, the lowest and the highest version, the message.
pub fn encode_hello(lowest: u16, highest: u16, message: &impl Serialize) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&lowest.to_le_bytes());
    out.extend_from_slice(&highest.to_le_bytes());
    out.extend_from_slice(&encode(message));
    out
}

/// Reads a handshake's payload: versions, and the message still encoded, which only a common version can read.
pub fn decode_hello(payload: &[u8]) -> Option<(u16, u16, &[u8])> {
    let rest = payload.strip_prefix(&MAGIC)?;
    let (lowest, rest) = rest.split_first_chunk()?;
    let (highest, rest) = rest.split_first_chunk()?;
    Some((u16::from_le_bytes(*lowest), u16::from_le_bytes(*highest), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn places_tell_what_is_wanted() {
        let key = |id| PageKey { id: PageId(id), tie: 0 };
        let mut after =
            After { by: By::Arrival, places: vec![(1, 5, key(10).into()), (3, 6, key(1).into())] };
        assert!(after.is_valid());
        let wanted = [(1, 5, 10), (1, 4, 99), (1, 5, 11), (1, 6, 1), (2, 0, 0), (3, 6, 1), (3, 7, 0)];
        let found = wanted.map(|(range, arrival, id)| after.is_wanted(range, arrival, key(id)));
        assert_eq!(found, [false, false, true, true, true, false, true]);
        after.by = By::Key;
        after.places = vec![(1, 0, key(10).into())];
        assert!(after.is_wanted(1, 9, key(11)) && !after.is_wanted(1, 9, key(10)), "arrivals do not count");
        after.places = vec![(3, 0, key(1).into()), (1, 0, key(1).into())];
        assert!(!after.is_valid());
        after.places = (0..=PLACES_MAX as u32).map(|range| (range, 0, key(1).into())).collect();
        assert!(!after.is_valid());
    }

    #[test]
    fn messages_come_back() {
        let key = Key::from(PageKey { id: PageId(7), tie: 8 });
        let ranges = RangeSet::of(3, [1, 5]).unwrap_or_default();
        let all = [
            Request::Ping,
            Request::Lookup { generation: 1, key },
            Request::LookupId { generation: 1, id: 7 },
            Request::LookupUrl { generation: 0, url: "http://h/".into() },
            Request::LookupMany { generation: 0, keys: vec![key; 3] },
            Request::LookupIn { generation: 0, ranges: RangeSet::all(), keys: vec![key; 3] },
            Request::Stream {
                generation: u64::MAX,
                order: StreamOrder::Id,
                from: "start".into(),
                direct: true,
                ranges: ranges.clone(),
            },
            Request::List { generation: 3, from: key, ranges: ranges.clone() },
            Request::ListBetween { generation: 3, from: key, through: key, ranges: ranges.clone() },
            Request::Keys { generation: 3, from: key, ranges: ranges.clone() },
            Request::StreamAfter {
                generation: 3,
                direct: false,
                ranges,
                after: After { by: By::Arrival, places: vec![(1, 2, key)] },
            },
            Request::Add { form: Form::Pages },
            Request::Dictionaries,
            Request::Stats,
            Request::Compact { budget_bytes: 5 },
            Request::Verify,
            Request::Control { topic: "t".into() },
            Request::Select {
                generation: 5,
                direct: true,
                ranges: RangeSet::all(),
                spec: StreamSpec::all().domain("edu").part(1, 3).ordered(StreamOrder::Importance),
                importance: 9,
                from: SelectFrom::Place { after: Some((vec![1, 2], key)), went_on: Some((4, (vec![], key))) },
                shared: true,
            },
            Request::PublishImportance { version: 3, ranges: RangeSet::all() },
            Request::ImportanceVersions,
            Request::Renewed { generation: 3, ranges: RangeSet::all() },
        ];
        for request in all {
            let bytes = encode(&request);
            assert_eq!(decode::<Request>(&bytes), Ok(request));
            assert!(decode::<Request>(&[bytes.as_slice(), &[0]].concat()).is_err(), "a byte too many");
        }
        assert_eq!(PageKey::from(key), PageKey { id: PageId(7), tie: 8 });
    }

    #[test]
    fn entries_come_back() {
        let version = Version { fetched_at_ms: 1 << 40, epoch: 3, digest: u64::MAX };
        let entry = Entry { key: PageKey { id: PageId(1), tie: 2 }, version, bytes: 1 << 33, arrival: 7 };
        let mut out = Vec::new();
        entry.write(&mut out);
        assert_eq!(Entry::read(out.first_chunk().unwrap()), Some(entry));
        assert_eq!(out.len(), ENTRY_BYTES);
    }

    #[test]
    fn long_texts_are_cut() {
        assert!(Fault::new(Code::Store, "é".repeat(9000)).text.len() <= TEXT_BYTES_MAX);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn arbitrary_bytes_are_no_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(first) = bytes.first_mut() { *first = MESSAGE_VERSION; }
            let _ = (decode::<Request>(&bytes), decode::<Fault>(&bytes), decode::<Hello>(&bytes));
            let _ = (decode::<ChunkHead>(&bytes), decode::<Missing>(&bytes), decode_hello(&bytes));
        }
    }
}
