//! A page as consumers have it: unpacked, and their own.

use bytes::Bytes;
use webbase_storage::{Dictionaries, Page, PageKey, Record, Result};

/// One page, unpacked. What a record says of itself can be had without: this is for who wants what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPage {
    /// Its name.
    pub key: PageKey,
    /// Where it was fetched, as fetched.
    pub url: String,
    /// When it was fetched, in milliseconds since 1970.
    pub fetched_at_ms: u64,
    /// When it last changed, if the server told.
    pub modified_at_ms: Option<u64>,
    /// The HTTP status.
    pub status: u16,
    /// The MIME type, without parameters.
    pub mime: String,
    /// The HTTP head exactly as received; empty where the stream left it out.
    pub head: Bytes,
    /// The body as received; `None` where the stream left it out.
    pub body: Option<Bytes>,
    /// How long it may stay without being seen again, in seconds; 0 means for ever.
    pub lifetime_s: u32,
    /// The SHA-1 of the payload, if whoever added it gave it.
    pub payload_digest: Option<[u8; 20]>,
}

impl StoredPage {
    /// Unpacks a record.
    ///
    /// # Errors
    /// When its dictionary is unknown, or it does not unpack.
    pub fn unpack(record: &Record, dictionaries: &Dictionaries) -> Result<StoredPage> {
        let seen = record.get();
        let body = match seen.is_partial() && seen.stored_body().is_empty() {
            true => None,
            false => Some(record.body(dictionaries)?),
        };
        Ok(StoredPage {
            key: seen.key(),
            url: seen.url().to_owned(),
            fetched_at_ms: seen.fetched_at_ms(),
            modified_at_ms: seen.modified_at_ms(),
            status: seen.status(),
            mime: seen.mime().to_owned(),
            head: record.head(dictionaries)?,
            body,
            lifetime_s: seen.lifetime_s(),
            payload_digest: seen.payload_digest(),
        })
    }

    /// The page, to be added to a repository: another one, since it has a key of its own there.
    pub fn as_page(&self) -> Page<'_> {
        Page {
            url: &self.url,
            fetched_at_ms: self.fetched_at_ms,
            modified_at_ms: self.modified_at_ms,
            status: self.status,
            mime: &self.mime,
            head: &self.head,
            body: self.body.as_deref().unwrap_or_default(),
            lifetime_s: self.lifetime_s,
            payload_digest: self.payload_digest,
            ..Page::default()
        }
    }
}
