//! A node as seen by its clients: one connection, many requests at once, every record verified.

mod add;
mod importance;
mod ordered;
mod read;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpStream;
use webbase_storage::urls::{UrlQuery, UrlRow, decode_rows};
use webbase_storage::{Compacted, Dictionaries, Dictionary, PageId, PageKey, Record, Stats, Verified, url};

pub use self::add::{Acknowledged, AddPages, AddRecords};
pub(crate) use self::importance::Publishing;
pub(crate) use self::ordered::{OrderedItem, OrderedReader};
pub use self::read::{Listing, PageReader, Select, StreamRequest};

use crate::control::Control;
use crate::error::{NodeError, Result};
use crate::security::Token;
use crate::wire::door::knock;
use crate::wire::driver::{AcceptNone, Driver};
use crate::wire::frame::RECORDS;
use crate::wire::handshake;
use crate::wire::link::{Input, Socket};
use crate::wire::message::{
    self, CompactAnswer, Figures, Form, Hello, KEYS_MAX, Key, Missing, Request, UrlsHead, VerifyAnswer,
    Welcome,
};
use crate::wire::mux::{Call, Limits, Mux};
use crate::wire::ranges::RangeSet;
use crate::wire::records::take_verified;
use crate::wire::shelf::View;

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// Limits of the connection.
    pub limits: Limits,
    /// The secret the server asks for.
    pub token: Option<Token>,
    /// What servers are trusted; without it the connection is not encrypted.
    #[cfg(feature = "tls")]
    pub tls: Option<crate::security::ClientTls>,
    /// Whether a server on the same machine, without TLS, is reached by its Unix socket, which costs less. Not where something that relays
    /// the bytes is to see them.
    pub door: bool,
    /// The repository expected there, by its key's fingerprint; a server of another one refuses.
    pub repository: Option<String>,
    /// Until the connection stands.
    pub connect: Duration,
    /// Until a request is answered, and between two pieces of a longer answer.
    pub answer: Duration,
    /// Until a verification, a compaction or a list begins to be answered.
    pub long_answer: Duration,
    /// Bytes of a batch of an add.
    pub batch_bytes: usize,
    /// Dictionaries known already, shared with other clients; new ones are added.
    pub dictionaries: Dictionaries,
}

impl Default for ClientSettings {
    fn default() -> Self {
        ClientSettings {
            limits: Limits::default(),
            token: None,
            #[cfg(feature = "tls")]
            tls: None,
            door: true,
            repository: None,
            connect: Duration::from_secs(5),
            answer: Duration::from_secs(30),
            long_answer: Duration::from_secs(3600),
            batch_bytes: 4 << 20,
            dictionaries: Dictionaries::default(),
        }
    }
}

struct Inner {
    mux: Arc<Mux>,
    welcome: Welcome,
    answer: Duration,
    long_answer: Duration,
    batch_bytes: usize,
    /// Dictionaries that came with a batch which is durable there: they need not be sent again.
    handed_over: Mutex<BTreeSet<u64>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let why = "this side closed it".into();
        self.mux.close(NodeError::Closed { peer: self.mux.peer.clone(), why });
    }
}

fn is_near(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// The limits of a connection to a server at an address.
fn limits(address: SocketAddr, settings: &ClientSettings) -> Limits {
    let mut limits = settings.limits.clone();
    if is_near(address) {
        limits.credit_bytes = limits.credit_bytes.min(limits.credit_bytes_near);
    }
    limits
}

/// A server that was introduced to.
struct Met<S> {
    socket: S,
    input: Input,
    welcome: Welcome,
    shelf: Option<View>,
}

async fn meet<S: Socket>(mut socket: S, address: SocketAddr, settings: &ClientSettings) -> Result<Met<S>> {
    let hello = Hello {
        repository: settings.repository.clone(),
        token: settings.token.as_ref().map(|token| token.bytes()),
        credit_bytes: limits(address, settings).credit_bytes,
        known: handshake::known(&settings.dictionaries),
        shelf: socket.as_unix().is_some(),
    };
    let (input, welcome, shelf) = handshake::dial(&mut socket, &address.to_string(), &hello).await?;
    Ok(Met { socket, input, welcome, shelf })
}

/// A connection to a node. Clones share it; it ends with the last of them and of what they opened. When it breaks, every
/// request says so, and connecting again is up to the caller.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

impl Client {
    /// Connects and introduces itself.
    ///
    /// # Errors
    /// When nobody listens, the server refuses, or it takes too long.
    pub async fn connect(address: SocketAddr, settings: ClientSettings) -> Result<Client> {
        let limit = settings.connect;
        let late = || NodeError::Timeout { peer: address.to_string(), after_ms: limit.as_millis() as u64 };
        tokio::time::timeout(limit, Self::dial(address, settings)).await.map_err(|_| late())?
    }

    async fn dial(address: SocketAddr, settings: ClientSettings) -> Result<Client> {
        let failed = |e| NodeError::io("connect to", address, e);
        let socket = TcpStream::connect(address).await.map_err(failed)?;
        socket.set_nodelay(true).map_err(failed)?;
        #[cfg(feature = "tls")]
        if let Some(tls) = settings.tls.clone() {
            let socket = tls.connector.connect(tls.name, socket).await.map_err(failed)?;
            let met = meet(socket, address, &settings).await?;
            return Ok(Self::of(met, address, settings));
        }
        let met = meet(socket, address, &settings).await?;
        // A server on the same machine, unless this is a tunnel's end: then there is no such door here, and nothing is lost.
        if settings.door
            && is_near(address)
            && let Some(door) = &met.welcome.door
            && let Ok(socket) = knock(door).await
            && let Ok(met) = meet(socket, address, &settings).await
        {
            return Ok(Self::of(met, address, settings));
        }
        Ok(Self::of(met, address, settings))
    }

    fn of<S: Socket>(met: Met<S>, address: SocketAddr, settings: ClientSettings) -> Client {
        let Met { socket, input, welcome, shelf } = met;
        let (peer, limits) = (address.to_string(), limits(address, &settings));
        let peer_gives = (welcome.credit_bytes, welcome.calls_max);
        let mux = Mux::new(peer, limits, peer_gives, settings.dictionaries, Vec::new(), None);
        tokio::spawn(Driver::new(socket, input, mux.clone(), AcceptNone, true).seeing(shelf).run());
        let inner = Inner {
            mux,
            welcome,
            answer: settings.answer,
            long_answer: settings.long_answer,
            batch_bytes: settings.batch_bytes,
            handed_over: Mutex::default(),
        };
        Client { inner: Arc::new(inner) }
    }

    /// Who is at the other end.
    pub fn peer(&self) -> &str {
        &self.inner.mux.peer
    }

    /// The repository served there, by its key's fingerprint.
    pub fn repository(&self) -> &str {
        &self.inner.welcome.repository
    }

    /// The dictionaries that records need; each is here before the first record that uses it.
    pub fn dictionaries(&self) -> &Dictionaries {
        &self.inner.mux.dictionaries
    }

    /// Why the connection has ended, if it has.
    pub fn closed(&self) -> Option<NodeError> {
        self.inner.mux.closed()
    }

    fn ask(&self, request: &Request) -> Result<Call> {
        self.inner.mux.open(request, true)
    }

    fn broken(&self, what: impl ToString) -> NodeError {
        self.inner.mux.violation(what)
    }

    /// Asks for a sign of life.
    ///
    /// # Errors
    /// When there is none.
    pub async fn ping(&self) -> Result<()> {
        let call = self.ask(&Request::Ping)?;
        while call.receive(Some(self.inner.answer)).await?.is_some() {}
        Ok(())
    }

    /// The record of the page with this key.
    ///
    /// # Errors
    /// When it is damaged, or there is no answer.
    pub async fn lookup(&self, generation: u64, key: PageKey) -> Result<Option<Record>> {
        let found = self.records(&Request::Lookup { generation, key: key.into() }).await?;
        let found = at_most_one(found).map_err(|what| self.broken(what))?;
        match found {
            Some(record) if record.get().key() != key => Err(self.broken("an answer about another page")),
            found => Ok(found),
        }
    }

    /// The records of all pages with this id.
    ///
    /// # Errors
    /// As for `lookup`.
    pub async fn lookup_id(&self, generation: u64, id: PageId) -> Result<Vec<Record>> {
        let found = self.records(&Request::LookupId { generation, id: id.0 }).await?;
        if found.iter().any(|record| record.get().key().id != id) {
            return Err(self.broken("an answer about another page"));
        }
        Ok(found)
    }

    /// The record of the page at a URL, confirmed by the URL in it.
    ///
    /// # Errors
    /// As for `lookup`; also when the URL is none.
    pub async fn lookup_url(&self, generation: u64, address: &str) -> Result<Option<Record>> {
        let wanted = url::canonical(address).map_err(webbase_storage::StorageError::from)?;
        let found = self.records(&Request::LookupUrl { generation, url: address.into() }).await?;
        match at_most_one(found).map_err(|what| self.broken(what))? {
            Some(record) if url::canonical(record.get().url()).is_ok_and(|found| found == wanted) => {
                Ok(Some(record))
            }
            Some(_) => Err(self.broken("an answer about another page")),
            None => Ok(None),
        }
    }

    async fn records(&self, request: &Request) -> Result<Vec<Record>> {
        let call = self.ask(request)?;
        let mut records = Vec::new();
        while let Some(item) = call.receive(Some(self.inner.answer)).await? {
            self.take_records(item.payload, &mut records)?;
        }
        Ok(records)
    }

    fn take_records(&self, mut payload: bytes::Bytes, to: &mut Vec<Record>) -> Result<()> {
        while let Some(record) = take_verified(&mut payload) {
            let damaged = |f: message::Fault| NodeError::Damaged { peer: self.peer().into(), what: f.text };
            to.push(record.map_err(damaged)?);
        }
        Ok(())
    }

    /// The records of many pages, in the order of the keys: each its own success, absence or failure. More than 4096 keys
    /// are asked for in several requests.
    ///
    /// # Errors
    /// When there is no answer at all.
    pub async fn lookup_many(
        &self,
        generation: u64,
        keys: &[PageKey],
    ) -> Result<Vec<Result<Option<Record>>>> {
        let mut all = Vec::with_capacity(keys.len());
        for some in keys.chunks(KEYS_MAX) {
            let wanted = some.iter().map(|&key| Key::from(key)).collect();
            self.lookup_some(Request::LookupMany { generation, keys: wanted }, some, &mut all).await?;
        }
        Ok(all)
    }

    /// As `lookup_many`, of the pages in these ranges. A node that does not have all pages of the ranges says so, where it
    /// would else take a page for absent.
    ///
    /// # Errors
    /// When there is no answer at all.
    pub async fn lookup_in(
        &self,
        generation: u64,
        ranges: &RangeSet,
        keys: &[PageKey],
    ) -> Result<Vec<Result<Option<Record>>>> {
        let mut all = Vec::with_capacity(keys.len());
        for some in keys.chunks(KEYS_MAX) {
            let wanted = some.iter().map(|&key| Key::from(key)).collect();
            let request = Request::LookupIn { generation, ranges: ranges.clone(), keys: wanted };
            self.lookup_some(request, some, &mut all).await?;
        }
        Ok(all)
    }

    async fn lookup_some(
        &self,
        request: Request,
        keys: &[PageKey],
        all: &mut Vec<Result<Option<Record>>>,
    ) -> Result<()> {
        let call = self.ask(&request)?;
        let (mut records, mut missing) = (Vec::new(), None);
        while let Some(item) = call.receive(Some(self.inner.answer)).await? {
            if item.flags & RECORDS != 0 {
                self.take_records(item.payload, &mut records)?;
            } else {
                missing = Some(message::decode::<Missing>(&item.payload).map_err(|e| self.broken(e))?);
            }
        }
        let missing = missing.ok_or_else(|| self.broken("a multi-lookup without its end"))?;
        let mut absent = missing.absent.into_iter().peekable();
        let mut failed = missing.failed.into_iter().peekable();
        let mut records = records.into_iter();
        for (n, key) in keys.iter().enumerate() {
            let n = n as u32;
            if absent.next_if_eq(&n).is_some() {
                all.push(Ok(None));
            } else if let Some((_, fault)) = failed.next_if(|(at, _)| *at == n) {
                all.push(Err(NodeError::Refused { peer: self.peer().into(), fault }));
            } else {
                let record = records.next().filter(|record| record.get().key() == *key);
                all.push(Ok(Some(record.ok_or_else(|| self.broken("a multi-lookup out of order"))?)));
            }
        }
        Ok(())
    }

    /// Streams pages.
    ///
    /// # Errors
    /// When the connection is gone; what is wrong with the request comes with the first page.
    pub fn stream(&self, request: &StreamRequest) -> Result<PageReader> {
        PageReader::open(self, request)
    }

    /// Key, version and size of the pages of some ranges from a key on, in order.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn list(&self, generation: u64, from: PageKey, ranges: RangeSet) -> Result<Listing<message::Entry>> {
        Listing::open(self, &Request::List { generation, from: from.into(), ranges })
    }

    /// Key, version and size of the pages of some ranges between two keys, in order.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn list_between(
        &self,
        generation: u64,
        keys: &RangeInclusive<PageKey>,
        ranges: RangeSet,
    ) -> Result<Listing<message::Entry>> {
        let (from, through) = ((*keys.start()).into(), (*keys.end()).into());
        Listing::open(self, &Request::ListBetween { generation, from, through, ranges })
    }

    /// The pages of some ranges that were seen again, with the deadlines they have since.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn renewed(&self, generation: u64, ranges: RangeSet) -> Result<Listing<message::Renewal>> {
        Listing::open(self, &Request::Renewed { generation, ranges })
    }

    /// The keys of the pages of some ranges from a key on, in order.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn keys(&self, generation: u64, from: PageKey, ranges: RangeSet) -> Result<Listing<PageKey>> {
        Listing::open(self, &Request::Keys { generation, from: from.into(), ranges })
    }

    /// Adds pages as fetched; the server packs them.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn add_pages(&self) -> Result<AddPages> {
        Ok(AddPages::new(self, self.inner.mux.open(&Request::Add { form: Form::Pages }, false)?))
    }

    /// Adds records, which are packed already. Dictionaries that they need and this client knows are sent before them.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn add_records(&self) -> Result<AddRecords> {
        Ok(AddRecords::new(self, self.inner.mux.open(&Request::Add { form: Form::Records }, false)?))
    }

    /// Fetches all dictionaries of the node, so that [`Client::dictionaries`] has them.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn fetch_dictionaries(&self) -> Result<Vec<Arc<Dictionary>>> {
        let call = self.ask(&Request::Dictionaries)?;
        let mut all = Vec::new();
        while let Some(item) = call.receive(Some(self.inner.answer)).await? {
            let digest = Dictionary::digest_of(&item.payload);
            let known = self.dictionaries().get(digest);
            let dictionary = known.unwrap_or_else(|| {
                let new = Arc::new(Dictionary::new(item.payload.to_vec(), 1));
                self.dictionaries().insert(new.clone());
                new
            });
            all.push(dictionary);
        }
        Ok(all)
    }

    /// A stream in an order.
    pub(crate) fn ordered(&self, request: &Request) -> Result<OrderedReader> {
        OrderedReader::open(self, request)
    }

    /// Begins to publish the importance of pages.
    pub(crate) fn publish_importance(&self, version: u64, ranges: RangeSet) -> Result<Publishing> {
        Publishing::open(self, version, ranges)
    }

    /// Which versions of the importance of pages the node has.
    pub(crate) async fn importance_versions(&self) -> Result<Vec<u64>> {
        self.message(&Request::ImportanceVersions, self.inner.answer).await
    }

    async fn message<T: serde::de::DeserializeOwned>(&self, request: &Request, limit: Duration) -> Result<T> {
        let call = self.ask(request)?;
        let item = call.receive(Some(limit)).await?.ok_or_else(|| self.broken("an empty answer"))?;
        message::decode(&item.payload).map_err(|e| self.broken(e))
    }

    /// The store in figures.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn stats(&self) -> Result<Stats> {
        Ok(self.message::<Figures>(&Request::Stats, self.inner.answer).await?.into())
    }

    /// Takes back the space of dead records, within a budget; call again until it says `done`.
    ///
    /// # Errors
    /// When the disk fails or there is no answer.
    pub async fn compact(&self, budget_bytes: u64) -> Result<Compacted> {
        let request = Request::Compact { budget_bytes };
        let (read_bytes, written_bytes, freed_bytes, done): CompactAnswer =
            self.message(&request, self.inner.long_answer).await?;
        Ok(Compacted { read_bytes, written_bytes, freed_bytes, done })
    }

    /// Has the node read everything; of the damage it names the first thousand places.
    ///
    /// # Errors
    /// When something cannot be read at all, or there is no answer.
    pub async fn verify(&self) -> Result<Verified> {
        let answer: VerifyAnswer = self.message(&Request::Verify, self.inner.long_answer).await?;
        let (good_records, checked_bytes) = (answer.good_records, answer.checked_bytes);
        Ok(Verified { good_records, checked_bytes, damage: answer.damage().collect() })
    }

    /// What the node remembers of removed pages, in its own form.
    pub(crate) async fn tombstones(&self, generation: u64) -> Result<Vec<u8>> {
        let call = self.ask(&Request::Tombstones { generation })?;
        let mut all = Vec::new();
        while let Some(item) = call.receive(Some(self.inner.answer)).await? {
            all.extend_from_slice(&item.payload);
        }
        Ok(all)
    }

    /// The pages whose time is over at `now_ms`, the longest overdue first.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn due(&self, generation: u64, now_ms: u64, limit: u32) -> Result<Vec<message::DueEntry>> {
        self.message(&Request::Due { generation, now_ms, limit }, self.inner.long_answer).await
    }

    /// Rows of the URL index of some ranges, at most `limit`, and whether more are there.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn urls(
        &self,
        generation: u64,
        ranges: &RangeSet,
        query: &UrlQuery,
        limit: u32,
    ) -> Result<(Vec<UrlRow>, bool)> {
        let request = Request::Urls { generation, ranges: ranges.clone(), asked: query.into(), limit };
        let call = self.ask(&request)?;
        let mut rows = Vec::new();
        let mut head: Option<UrlsHead> = None;
        while let Some(item) = call.receive(Some(self.inner.answer)).await? {
            let Some(UrlsHead { bytes, .. }) = head else {
                head = Some(message::decode(&item.payload).map_err(|e| self.broken(e))?);
                continue;
            };
            rows.extend_from_slice(&item.payload);
            if rows.len() as u64 > bytes {
                return Err(self.broken("more rows than were announced"));
            }
        }
        match head {
            Some(head) if head.bytes == rows.len() as u64 => {
                let rows = decode_rows(&rows).map_err(|e| self.broken(e))?;
                Ok((rows, head.more))
            }
            _ => Err(self.broken("rows that end early")),
        }
    }

    /// How many pages of some ranges have a SURT key from `start` on below `end`, and whether that is exact.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn url_count(
        &self,
        generation: u64,
        ranges: &RangeSet,
        start: &str,
        end: Option<&str>,
    ) -> Result<(u64, bool)> {
        let (start, end) = (start.to_owned(), end.map(str::to_owned));
        let request = Request::UrlCount { generation, ranges: ranges.clone(), start, end };
        self.message(&request, self.inner.answer).await
    }

    /// SURT keys at which the parts `wanted` of the node's own rows begin, of so many equal ones.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn url_cuts(
        &self,
        generation: u64,
        start: &str,
        end: Option<&str>,
        parts: u32,
        wanted: std::ops::Range<u32>,
    ) -> Result<Vec<String>> {
        let (start, end) = (start.to_owned(), end.map(str::to_owned));
        let wanted = (wanted.start, wanted.end);
        self.message(&Request::UrlCuts { generation, start, end, parts, wanted }, self.inner.answer).await
    }

    /// Opens a control call.
    ///
    /// # Errors
    /// When the connection is gone; a refusal comes with the first message.
    pub fn control(&self, topic: &str) -> Result<Control> {
        let call = self.inner.mux.open(&Request::Control { topic: topic.into() }, false)?;
        Ok(Control::opened(call, self))
    }
}

fn at_most_one(mut records: Vec<Record>) -> std::result::Result<Option<Record>, &'static str> {
    let one = records.pop();
    if records.is_empty() { Ok(one) } else { Err("several records where there is one page") }
}
