//! A stream in an order, coming in from one node.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use webbase_storage::Record;

use super::Client;
use crate::error::Result;
use crate::wire::frame::RECORDS;
use crate::wire::message::{self, Lost, OrderedHead, Request};
use crate::wire::mux::Call;
use crate::wire::records::take_verified;

/// What comes in.
pub(crate) enum OrderedItem {
    /// A page, and its place.
    Page(Record, Vec<u8>),
    /// A page that is damaged at the node, and its place where the node could tell.
    Lost(Option<Vec<u8>>, Lost),
}

/// Pages coming in, each verified, in order. Dropping it ends the stream.
pub(crate) struct OrderedReader {
    client: Client,
    call: Call,
    limit: Duration,
    payload: Bytes,
    /// Of the records of this chunk that are still to come.
    places: VecDeque<Vec<u8>>,
    damaged: VecDeque<(Option<Vec<u8>>, Lost)>,
}

impl OrderedReader {
    pub(super) fn open(client: &Client, request: &Request) -> Result<OrderedReader> {
        let (call, limit) = (client.ask(request)?, client.inner.answer);
        let (payload, client) = (Bytes::new(), client.clone());
        Ok(OrderedReader { client, call, limit, payload, places: VecDeque::new(), damaged: VecDeque::new() })
    }

    /// The next page, or `None` after the last.
    ///
    /// # Errors
    /// When the node fails, or the connection breaks. Nothing follows.
    pub(crate) async fn next(&mut self) -> Result<Option<OrderedItem>> {
        loop {
            if let Some((place, lost)) = self.damaged.pop_front() {
                return Ok(Some(OrderedItem::Lost(place, lost)));
            }
            if let Some(record) = take_verified(&mut self.payload) {
                let record = record.map_err(|fault| self.client.broken(fault.text))?;
                let place = self.places.pop_front();
                let place = place.ok_or_else(|| self.client.broken("a record without a place"))?;
                return Ok(Some(OrderedItem::Page(record, place)));
            }
            let Some(item) = self.call.receive(Some(self.limit)).await? else {
                return match self.places.is_empty() {
                    true => Ok(None),
                    false => Err(self.client.broken("a stream that ends in a chunk")),
                };
            };
            if item.flags & RECORDS != 0 {
                self.payload = item.payload;
                continue;
            }
            let head = message::decode::<OrderedHead>(&item.payload).map_err(|e| self.client.broken(e))?;
            if !self.places.is_empty() || head.places.len() != head.records as usize {
                return Err(self.client.broken("a chunk with too few records or places"));
            }
            (self.places, self.damaged) = (head.places.into(), head.damaged.into());
        }
    }
}
