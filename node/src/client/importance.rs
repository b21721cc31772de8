//! Publishing the importance of pages at one node.

use std::time::Duration;

use webbase_storage::PageKey;

use super::Client;
use crate::error::Result;
use crate::importance::{ENTRY_BYTES, entry};
use crate::wire::frame::DATA_BYTES;
use crate::wire::message::{self, Request};
use crate::wire::mux::Call;
use crate::wire::ranges::RangeSet;

/// Entries going out to a node.
pub(crate) struct Publishing {
    client: Client,
    call: Call,
    limit: Duration,
    buffer: Vec<u8>,
}

impl Publishing {
    pub(super) fn open(client: &Client, version: u64, ranges: RangeSet) -> Result<Publishing> {
        let call = client.inner.mux.open(&Request::PublishImportance { version, ranges }, false)?;
        Ok(Publishing { client: client.clone(), call, limit: client.inner.long_answer, buffer: Vec::new() })
    }

    /// Adds an entry; waits while the node is behind.
    ///
    /// # Errors
    /// When the node has given up, or the connection breaks.
    pub(crate) async fn entry(&mut self, key: PageKey, importance: f32) -> Result<()> {
        self.buffer.extend_from_slice(&entry(key, importance));
        if self.buffer.len() + ENTRY_BYTES > DATA_BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<()> {
        let entries = std::mem::take(&mut self.buffer);
        self.call.send(0, entries.into()).await
    }

    /// Ends it. Returns how many entries the node has made durable.
    ///
    /// # Errors
    /// When the node refuses, or the connection breaks.
    pub(crate) async fn finish(mut self) -> Result<u64> {
        if !self.buffer.is_empty() {
            self.flush().await?;
        }
        self.call.end();
        let answer = self.call.receive(Some(self.limit)).await?;
        let answer = answer.ok_or_else(|| self.client.broken("an empty answer"))?;
        message::decode(&answer.payload).map_err(|e| self.client.broken(e))
    }
}
