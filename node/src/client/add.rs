//! Adding: pages or records out in batches, an answer for each batch once it is durable.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use webbase_storage::{Added, Page, Record, StorageError};

use super::Client;
use crate::error::{NodeError, Result};
use crate::wire::frame::{BATCH, DATA_BYTES, DICTIONARY};
use crate::wire::message::{self, BatchAnswer, Fault};
use crate::wire::mux::Call;
use crate::wire::pages::{page_bytes, write_page};
use crate::wire::pool;

/// Batches sent whose answers have not been looked at.
const UNANSWERED_MAX: u64 = 64;
/// Refused batches that are named.
const REFUSED_MAX: usize = 100;

/// What became of batches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acknowledged {
    /// Batches answered, durable or refused.
    pub batches: u64,
    /// Pages of the batches that are durable.
    pub added: Added,
    /// Batches that are not: their numbers, from 0 in each add, and why. At most a hundred are named.
    pub refused: Vec<(u64, Fault)>,
}

/// One add call, whatever it sends.
struct Adding {
    client: Client,
    call: Call,
    limit: Duration,
    sent: u64,
    answered: u64,
    so_far: Acknowledged,
}

impl Adding {
    fn new(client: &Client, call: Call) -> Adding {
        let limit = client.inner.answer;
        Adding { client: client.clone(), call, limit, sent: 0, answered: 0, so_far: Acknowledged::default() }
    }

    async fn batch_sent(&mut self) -> Result<()> {
        self.sent += 1;
        self.settle(UNANSWERED_MAX).await
    }

    /// Takes answers until at most so many are outstanding.
    async fn settle(&mut self, outstanding: u64) -> Result<()> {
        while self.sent - self.answered > outstanding {
            let Some(item) = self.call.receive(Some(self.limit)).await? else {
                return Err(self.client.broken("an add that ends before its batches are answered"));
            };
            let answer = message::decode::<BatchAnswer>(&item.payload).map_err(|e| self.client.broken(e))?;
            if answer.batch != self.answered {
                return Err(self.client.broken("an answer to another batch"));
            }
            self.answered += 1;
            self.so_far.batches += 1;
            match answer.outcome {
                Ok((new, superseding, stale)) => {
                    self.so_far.added.new += new;
                    self.so_far.added.superseding += superseding;
                    self.so_far.added.stale += stale;
                }
                Err(fault) if self.so_far.refused.len() < REFUSED_MAX => {
                    self.so_far.refused.push((answer.batch, fault));
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    async fn finish(mut self) -> Result<Acknowledged> {
        self.call.end();
        self.settle(0).await?;
        match self.call.receive(Some(self.limit)).await? {
            None => Ok(self.so_far),
            Some(_) => Err(self.client.broken("an answer to a batch that was not sent")),
        }
    }

    fn check_size(&self, found: u64) -> Result<()> {
        let max = self.client.inner.welcome.item_bytes_max;
        if found > max {
            return Err(NodeError::TooMuch { what: "bytes of a page", found, max });
        }
        Ok(())
    }
}

/// Adds pages as fetched. Dropping it leaves the last batch, unless it was ended, unsent.
pub struct AddPages {
    adding: Adding,
    buffer: Vec<u8>,
    batch_bytes: usize,
}

impl AddPages {
    pub(super) fn new(client: &Client, call: Call) -> AddPages {
        AddPages { adding: Adding::new(client, call), buffer: Vec::new(), batch_bytes: 0 }
    }

    /// Adds a page to the batch, and sends the batch when it is large enough. Waits while the node is behind.
    ///
    /// # Errors
    /// When the page is too large, or the connection breaks. Batches that are refused are named by [`AddPages::flush`].
    pub async fn page(&mut self, page: &Page<'_>) -> Result<()> {
        let bytes = page_bytes(page);
        self.adding.check_size(bytes as u64)?;
        if self.batch_bytes > 0 && self.batch_bytes + bytes > self.adding.client.inner.batch_bytes {
            self.end_batch().await?;
        }
        if !self.buffer.is_empty() && self.buffer.len() + bytes > DATA_BYTES {
            let frame = std::mem::take(&mut self.buffer);
            self.adding.call.send(0, pool::share(frame)).await?;
        }
        if self.buffer.capacity() == 0 {
            self.buffer = pool::take(bytes);
        }
        let too_long = || StorageError::BadPage {
            url: page.url.chars().take(200).collect(),
            what: "a field is too long for the wire, or its body does not unpack".into(),
        };
        write_page(page, &mut self.buffer).ok_or_else(too_long)?;
        self.batch_bytes += bytes;
        Ok(())
    }

    /// Ends the batch here; returns its number.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn end_batch(&mut self) -> Result<u64> {
        let frame = std::mem::take(&mut self.buffer);
        self.batch_bytes = 0;
        self.adding.call.send(BATCH, pool::share(frame)).await?;
        self.adding.batch_sent().await?;
        Ok(self.adding.sent - 1)
    }

    /// Ends the batch and waits until everything so far is answered; returns what was answered since the last flush.
    ///
    /// # Errors
    /// When the connection breaks: what is not acknowledged may or may not be stored.
    pub async fn flush(&mut self) -> Result<Acknowledged> {
        if self.batch_bytes > 0 {
            self.end_batch().await?;
        }
        self.adding.settle(0).await?;
        Ok(std::mem::take(&mut self.adding.so_far))
    }

    /// As [`AddPages::flush`], for the last time.
    ///
    /// # Errors
    /// As there.
    pub async fn finish(mut self) -> Result<Acknowledged> {
        if self.batch_bytes > 0 {
            self.end_batch().await?;
        }
        self.adding.finish().await
    }
}

/// Adds records. Dropping it leaves the last batch, unless it was ended, unsent.
pub struct AddRecords {
    adding: Adding,
    records: Vec<Bytes>,
    batch_bytes: usize,
    /// Dictionaries that are there, or sent before the records that need them.
    sent: BTreeSet<u64>,
}

impl AddRecords {
    pub(super) fn new(client: &Client, call: Call) -> AddRecords {
        let sent = client.inner.handed_over.lock().clone();
        AddRecords { adding: Adding::new(client, call), records: Vec::new(), batch_bytes: 0, sent }
    }

    /// Adds a record to the batch, as [`AddPages::page`] does a page.
    ///
    /// # Errors
    /// As there; also when this client does not know the record's dictionary.
    pub async fn record(&mut self, record: &Record) -> Result<()> {
        let bytes = record.bytes().len();
        self.adding.check_size(bytes as u64)?;
        let digest = record.get().dictionary();
        if digest != 0 && !self.sent.contains(&digest) {
            let known = self.adding.client.dictionaries().get(digest);
            let dictionary = known.ok_or(StorageError::UnknownDictionary { digest })?;
            self.end_batch().await?;
            let content = Bytes::copy_from_slice(dictionary.content());
            self.adding.call.send(DICTIONARY, content).await?;
            self.sent.insert(digest);
        }
        if self.batch_bytes > 0 && self.batch_bytes + bytes > self.adding.client.inner.batch_bytes {
            self.end_batch().await?;
        }
        self.records.push(record.bytes().clone());
        self.batch_bytes += bytes;
        Ok(())
    }

    /// Ends the batch here.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn end_batch(&mut self) -> Result<()> {
        if self.records.is_empty() {
            return Ok(());
        }
        self.batch_bytes = 0;
        let records = std::mem::take(&mut self.records);
        self.adding.call.send_records(&records, BATCH).await?;
        self.adding.batch_sent().await
    }

    /// As [`AddPages::flush`].
    ///
    /// # Errors
    /// As there.
    pub async fn flush(&mut self) -> Result<Acknowledged> {
        self.end_batch().await?;
        self.adding.settle(0).await?;
        let done = std::mem::take(&mut self.adding.so_far);
        let refused = !done.refused.is_empty();
        if refused {
            self.sent.clear();
        }
        note(&self.adding.client, &self.sent, refused);
        Ok(done)
    }

    /// As [`AddPages::finish`].
    ///
    /// # Errors
    /// As there.
    pub async fn finish(mut self) -> Result<Acknowledged> {
        self.end_batch().await?;
        let (client, sent) = (self.adding.client.clone(), self.sent);
        let done = self.adding.finish().await?;
        note(&client, &sent, !done.refused.is_empty());
        Ok(done)
    }
}

/// What a node acknowledged a batch with, it has. After a refusal, whatever the reason, dictionaries go with their records again.
fn note(client: &Client, sent: &BTreeSet<u64>, refused: bool) {
    let mut handed_over = client.inner.handed_over.lock();
    if refused {
        handed_over.clear();
    } else {
        handed_over.extend(sent);
    }
}
