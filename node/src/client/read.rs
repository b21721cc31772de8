//! Longer answers: streams of pages, and lists.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use webbase_storage::{Cursor, PageKey, Record};

use super::Client;
use crate::error::{NodeError, Result};
use crate::wire::frame::RECORDS;
use crate::wire::message::{
    self, After, ChunkHead, ENTRY_BYTES, Entry, Key, Lost, RENEWAL_BYTES, Renewal, Request, SelectFrom,
    StreamOrder, UNKNOWN,
};
use crate::wire::mux::Call;
use crate::wire::ranges::RangeSet;
use crate::wire::records::take_verified;
use crate::wire::rotation::{PREFIX, Rotation};
use crate::wire::spec::StreamSpec;

/// What to stream.
#[derive(Clone, Debug)]
pub struct StreamRequest {
    /// The generation to read, 0 for the current one.
    pub generation: u64,
    /// In which order.
    pub order: StreamOrder,
    /// From where: [`PageReader::cursor`] of an earlier stream, or `"start"`.
    pub from: String,
    /// Whether the node reads past its page cache.
    pub direct: bool,
    /// Which pages.
    pub ranges: RangeSet,
    /// Only those behind these places, which any node may have told; `order` and `from` do not count then.
    pub after: Option<After>,
    /// Only those that a specification names.
    pub select: Option<Select>,
}

/// A specification in store order, and what it needs.
#[derive(Clone, Debug)]
pub struct Select {
    /// Which pages, and what of them.
    pub spec: Arc<StreamSpec>,
    /// Which version of their importance counts.
    pub importance: u64,
    /// Whether to share a scan with others. Pages come in an order of the node's own then, and only its own cursors count.
    pub shared: bool,
}

impl Default for StreamRequest {
    fn default() -> Self {
        StreamRequest {
            generation: 0,
            order: StreamOrder::Store,
            from: Cursor::Start.to_string(),
            direct: false,
            ranges: RangeSet::all(),
            after: None,
            select: None,
        }
    }
}

/// Pages coming in, each verified. Dropping it ends the stream.
pub struct PageReader {
    client: Client,
    call: Call,
    limit: Duration,
    head: Option<ChunkHead>,
    payload: Bytes,
    /// Records of this chunk delivered.
    delivered: usize,
    /// Where the last page delivered leaves off.
    last_key: Option<PageKey>,
    /// The cursor before this chunk.
    before: String,
    damaged: Vec<Lost>,
    /// The page that the last error was about, and its arrival.
    lost: Option<(PageKey, Option<u64>)>,
    over: bool,
}

impl PageReader {
    pub(super) fn open(client: &Client, request: &StreamRequest) -> Result<PageReader> {
        let StreamRequest { generation, order, direct, .. } = *request;
        let (from, ranges) = (request.from.clone(), request.ranges.clone());
        let call = client.ask(&match (request.select.clone(), request.after.clone()) {
            (Some(select), after) => Request::Select {
                generation,
                direct,
                ranges,
                spec: StreamSpec::clone(&select.spec),
                importance: select.importance,
                from: after.map_or(SelectFrom::Cursor(from), SelectFrom::After),
                shared: select.shared,
            },
            (None, Some(after)) => Request::StreamAfter { generation, direct, ranges, after },
            (None, None) => Request::Stream { generation, order, from, direct, ranges },
        })?;
        Ok(PageReader {
            client: client.clone(),
            call,
            limit: client.inner.answer,
            head: None,
            payload: Bytes::new(),
            delivered: 0,
            last_key: None,
            before: request.from.clone(),
            damaged: Vec::new(),
            lost: None,
            over: false,
        })
    }

    /// The next page, or `None` after the last. A page that is damaged at the node is an error ([`PageReader::lost`] says
    /// which page it is), and the stream goes on; any other error ends it, and [`PageReader::cursor`] says where to go on.
    /// Damage comes before the pages around it.
    pub async fn next(&mut self) -> Option<Result<Record>> {
        if self.over {
            return None;
        }
        loop {
            if let Some(Lost { key, arrival, fault }) = self.damaged.pop() {
                let arrival = Some(arrival).filter(|arrival| *arrival != UNKNOWN);
                self.lost = key.map(|key| (key.into(), arrival));
                return Some(Err(NodeError::Refused { peer: self.client.peer().into(), fault }));
            }
            if let Some(record) = take_verified(&mut self.payload) {
                return Some(match record {
                    Ok(record) => {
                        self.delivered += 1;
                        self.last_key = Some(record.get().key());
                        Ok(record)
                    }
                    Err(fault) => {
                        self.over = true;
                        Err(NodeError::Damaged { peer: self.client.peer().into(), what: fault.text })
                    }
                });
            }
            match self.fill().await {
                Ok(true) => {}
                Ok(false) => {
                    self.over = true;
                    return None;
                }
                Err(e) => {
                    self.over = true;
                    return Some(Err(e));
                }
            }
        }
    }

    async fn fill(&mut self) -> Result<bool> {
        let item = self.call.receive(Some(self.limit)).await?;
        let due = self.head.as_ref().map_or(0, |head| head.records as usize);
        let whole = self.delivered == due;
        let Some(item) = item else {
            return if whole { Ok(false) } else { Err(self.client.broken("a stream that ends in a chunk")) };
        };
        if item.flags & RECORDS != 0 {
            if whole {
                return Err(self.client.broken("records without a chunk"));
            }
            self.payload = item.payload;
            return Ok(true);
        }
        if !whole {
            return Err(self.client.broken("a chunk with too few records"));
        }
        let mut head = message::decode::<ChunkHead>(&item.payload).map_err(|e| self.client.broken(e))?;
        self.before = self.cursor();
        self.damaged = std::mem::take(&mut head.damaged);
        self.damaged.reverse();
        (self.head, self.delivered) = (Some(head), 0);
        Ok(true)
    }

    /// After an error about a damaged page: which page it is, and when it arrived, where the node could tell.
    pub fn lost(&self) -> Option<(PageKey, Option<u64>)> {
        self.lost
    }

    /// Where a later stream goes on so that the last damage is met again: the place before its chunk.
    pub fn before_lost(&self) -> &str {
        &self.before
    }

    /// The generation in which the last page arrived, where this node's pages lie in that order.
    pub fn arrival(&self) -> Option<u64> {
        let mut left = self.delivered.checked_sub(1)? as u64;
        for (count, arrival) in &self.head.as_ref()?.arrivals {
            if left < u64::from(*count) {
                return Some(*arrival).filter(|arrival| *arrival != UNKNOWN);
            }
            left -= u64::from(*count);
        }
        None
    }

    /// Whether pages come in key order; known once something has come.
    pub fn is_ordered(&self) -> bool {
        let after = self.head.as_ref().map(|head| head.after.parse());
        matches!(after, Some(Ok(Cursor::Key(_) | Cursor::End)))
    }

    /// Whether nothing follows: after `None`, and after an error that ended the stream.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Where a later stream goes on so that exactly the pages not delivered yet follow.
    pub fn cursor(&self) -> String {
        let Some(head) = &self.head else { return self.before.clone() };
        if self.delivered == head.records as usize {
            return head.after.clone();
        }
        let key = self.last_key.filter(|_| self.delivered > 0);
        let inside = key.and_then(|key| head.steps.cursor(self.delivered - 1, key));
        let Some(at) = inside else { return self.before.clone() };
        // In a shared scan it is a place in the client's own round.
        match head.after.parse::<Rotation>() {
            Ok(after) if head.after.starts_with(PREFIX) => {
                let end = self.before.parse::<Rotation>().ok().and_then(|before| before.end);
                Rotation { joined: after.joined, at, end }.to_string()
            }
            _ => at.to_string(),
        }
    }
}

/// A row of a list.
pub trait Row: Sized {
    /// Bytes of one on the wire.
    const BYTES: usize;

    /// Takes one off the front.
    fn take(from: &mut Bytes) -> Option<Self>;
}

impl Row for Entry {
    const BYTES: usize = ENTRY_BYTES;

    fn take(from: &mut Bytes) -> Option<Self> {
        let entry = from.first_chunk().and_then(Entry::read)?;
        from.advance(ENTRY_BYTES);
        Some(entry)
    }
}

impl Row for Renewal {
    const BYTES: usize = RENEWAL_BYTES;

    fn take(from: &mut Bytes) -> Option<Self> {
        let renewal = from.first_chunk().and_then(Renewal::read)?;
        from.advance(RENEWAL_BYTES);
        Some(renewal)
    }
}

impl Row for PageKey {
    const BYTES: usize = 16;

    fn take(from: &mut Bytes) -> Option<Self> {
        let key = Key(*from.first_chunk()?);
        from.advance(16);
        Some(key.into())
    }
}

/// A list coming in, in order.
pub struct Listing<T> {
    client: Client,
    call: Call,
    limit: Duration,
    payload: Bytes,
    row: std::marker::PhantomData<fn() -> T>,
}

impl<T: Row> Listing<T> {
    pub(super) fn open(client: &Client, request: &Request) -> Result<Listing<T>> {
        let call = client.ask(request)?;
        let limit = client.inner.long_answer;
        Ok(Listing {
            client: client.clone(),
            call,
            limit,
            payload: Bytes::new(),
            row: std::marker::PhantomData,
        })
    }

    /// The next row, or `None` after the last.
    ///
    /// # Errors
    /// When the node cannot read them, or the connection breaks.
    pub async fn next(&mut self) -> Result<Option<T>> {
        loop {
            if let Some(row) = T::take(&mut self.payload) {
                return Ok(Some(row));
            }
            let Some(item) = self.call.receive(Some(self.limit)).await? else { return Ok(None) };
            self.limit = self.client.inner.answer;
            if !item.payload.len().is_multiple_of(T::BYTES) {
                return Err(self.client.broken("a list with half a row"));
            }
            self.payload = item.payload;
        }
    }

    /// All rows.
    ///
    /// # Errors
    /// As for `next`.
    pub async fn all(mut self) -> Result<Vec<T>> {
        let mut all = Vec::new();
        while let Some(row) = self.next().await? {
            all.push(row);
        }
        Ok(all)
    }
}
