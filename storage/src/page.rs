//! Pages and their names.
//!
//! A page's name is 128 bits of a keyed BLAKE3 hash of its canonical URL, read as two big-endian halves:
//!
//! ```text
//!   page id   the first 64 bits: what people and the wire call the page; its high bits spread pages
//!             over nodes, buckets and logs
//!   tie       the next 64 bits: tells two URLs with one page id apart
//! ```
//!
//! At 10^10 pages a handful of page ids *will* be shared by two URLs. Everything that works on ids (lists,
//! deletes, merges, indexes) therefore works on [`PageKey`], which has both halves, and a lookup by URL is
//! confirmed by the URL in the record. The hash is keyed per repository because an unkeyed 64-bit hash can be
//! made to collide in minutes by whoever chooses the URLs.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use crate::codec;
use crate::error::StorageError;
use crate::url::{self, UrlError};

/// A page's 64-bit name. Written as 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageId(pub u64);

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for PageId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() != 16 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(format!("a page id is 16 hexadecimal digits, found {text:?}"));
        }
        u64::from_str_radix(text, 16).map(PageId).map_err(|e| e.to_string())
    }
}

/// A page's full name: page id and tie. Ordered by id, then tie.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageKey {
    /// The 64-bit page id.
    pub id: PageId,
    /// The next 64 bits of the same hash.
    pub tie: u64,
}

impl PageKey {
    /// The smallest key.
    pub const MIN: PageKey = PageKey { id: PageId(0), tie: 0 };
    /// The largest key.
    pub const MAX: PageKey = PageKey { id: PageId(u64::MAX), tie: u64::MAX };

    /// The key right after this one, if there is one.
    pub fn next(self) -> Option<PageKey> {
        match self.tie.checked_add(1) {
            Some(tie) => Some(PageKey { tie, ..self }),
            None => self.id.0.checked_add(1).map(|id| PageKey { id: PageId(id), tie: 0 }),
        }
    }
}

impl fmt::Display for PageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:016x}", self.id, self.tie)
    }
}

/// The secret that turns URLs into page keys, one per repository. Stands in every store's manifest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RepositoryKey {
    bytes: [u8; 32],
    id_bits: u8,
}

impl RepositoryKey {
    /// A key made of these bytes, which should be random and secret.
    pub fn new(bytes: [u8; 32]) -> Self {
        RepositoryKey { bytes, id_bits: 64 }
    }

    /// A new random key, from the operating system's generator.
    ///
    /// # Errors
    /// When the system has no randomness to give.
    pub fn random() -> std::io::Result<Self> {
        use std::io::Read;
        let mut bytes = [0; 32];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self::new(bytes))
    }

    /// A deliberately weak key, whose page ids have only this many bits: tests use it to make URLs share ids.
    pub fn weak(bytes: [u8; 32], id_bits: u8) -> Self {
        RepositoryKey { bytes, id_bits: id_bits.clamp(1, 64) }
    }

    /// The 32 secret bytes and the number of id bits, as they stand in a manifest.
    pub fn parts(&self) -> ([u8; 32], u8) {
        (self.bytes, self.id_bits)
    }

    /// A short public name of this key, to tell repositories apart without giving the key away.
    pub fn fingerprint(&self) -> String {
        let digest = blake3::derive_key("webbase repository key fingerprint", &self.bytes);
        digest.iter().take(6).map(|b| format!("{b:02x}")).collect()
    }

    /// The key of the page at `url`.
    ///
    /// # Errors
    /// When `url` is not a URL a page can have.
    pub fn page_key(&self, url: &str) -> Result<PageKey, UrlError> {
        let mut canonical = String::with_capacity(url.len());
        url::canonical_into(url, &mut canonical)?;
        Ok(self.key_of_canonical(&canonical))
    }

    /// The key of the page with this canonical URL.
    pub fn key_of_canonical(&self, canonical: &str) -> PageKey {
        let hash = blake3::keyed_hash(&self.bytes, canonical.as_bytes());
        let [i0, i1, i2, i3, i4, i5, i6, i7, t0, t1, t2, t3, t4, t5, t6, t7, ..] = *hash.as_bytes();
        let id = u64::from_be_bytes([i0, i1, i2, i3, i4, i5, i6, i7]);
        let tie = u64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]);
        let shift = 64 - u32::from(self.id_bits);
        PageKey { id: PageId(id >> shift << shift), tie }
    }
}

impl fmt::Debug for RepositoryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RepositoryKey({})", self.fingerprint())
    }
}

/// A body as it came packed: a deflate stream, as it lies in a gzip member, that has the body somewhere within.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deflated<'a> {
    /// The stream, without the head and the checksum of its member.
    pub stream: &'a [u8],
    /// Bytes that it unpacks to before the body.
    pub before: u32,
    /// Bytes that it unpacks to behind the body.
    pub behind: u32,
    /// Bytes of the body.
    pub len: u32,
}

impl Deflated<'_> {
    /// Whether stores that pack keep it as it is: it is smaller than the body, and little else is packed with it.
    pub fn is_kept(&self) -> bool {
        codec::is_kept(self)
    }
}

/// A page to be added: one URL's content, borrowed from whoever fetched it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page<'a> {
    /// Where it was fetched, as fetched; the canonical form names it.
    pub url: &'a str,
    /// When it was fetched, in milliseconds since 1970.
    pub fetched_at_ms: u64,
    /// When it last changed, if the server told.
    pub modified_at_ms: Option<u64>,
    /// The HTTP status.
    pub status: u16,
    /// The MIME type, without parameters.
    pub mime: &'a str,
    /// The HTTP head exactly as received, from the status line to the empty line.
    pub head: &'a [u8],
    /// The body as received; nothing where `deflated` has it.
    pub body: &'a [u8],
    /// How long the page may stay without being seen again, in seconds; 0 means for ever.
    pub lifetime_s: u32,
    /// The epoch of the update it arrived in; 0 where there are no epochs.
    pub epoch: u32,
    /// The SHA-1 of the payload (the body as the server meant it, without transfer encoding), if the caller has it. Kept as
    /// given: the store computes and checks nothing.
    pub payload_digest: Option<[u8; 20]>,
    /// The body packed already, to be kept so instead of packing it again. That it unpacks to a body is the caller's word: nobody looks
    /// before it is read, or packed otherwise.
    pub deflated: Option<Deflated<'a>>,
}

impl<'a> Page<'a> {
    /// Bytes of the body.
    pub fn body_len(&self) -> usize {
        self.deflated.map_or(self.body.len(), |deflated| deflated.len as usize)
    }

    /// The body, unpacked if it came packed.
    ///
    /// # Errors
    /// When it does not unpack to a body of its length.
    pub fn plain_body(&self) -> Result<Cow<'a, [u8]>, StorageError> {
        match &self.deflated {
            None => Ok(Cow::Borrowed(self.body)),
            Some(deflated) => match codec::inflated(deflated) {
                Ok(body) => Ok(Cow::Owned(body)),
                Err(e) => Err(e.of_page(self.url)),
            },
        }
    }
}

impl Default for Page<'_> {
    fn default() -> Self {
        Page {
            url: "",
            fetched_at_ms: 0,
            modified_at_ms: None,
            status: 200,
            mime: "text/html",
            head: b"",
            body: b"",
            lifetime_s: 0,
            epoch: 0,
            payload_digest: None,
            deflated: None,
        }
    }
}

/// What decides between two versions of a page: the higher one wins, in every store and between replicas.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Version {
    /// When it was fetched.
    pub fetched_at_ms: u64,
    /// In which epoch it arrived.
    pub epoch: u32,
    /// The record's checksum, which decides between versions fetched in the same millisecond.
    pub digest: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_id_prints_and_parses() {
        let id = PageId(0x00ab_cdef_0123_4567);
        assert_eq!(id.to_string(), "00abcdef01234567");
        assert_eq!("00abcdef01234567".parse(), Ok(id));
        for bad in ["", "ab", "00abcdef0123456g", "+0abcdef01234567", "00abcdef012345678"] {
            assert!(bad.parse::<PageId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_depend_on_the_repository_and_not_on_spelling() {
        let (a, b) = (RepositoryKey::new([1; 32]), RepositoryKey::new([2; 32]));
        let key = a.page_key("http://Example.org:80/x/").unwrap();
        assert_eq!(key, a.page_key("https://example.org/x").unwrap());
        assert_ne!(key, b.page_key("https://example.org/x").unwrap());
        assert_ne!(a.fingerprint(), b.fingerprint());
    }

    #[test]
    fn a_weak_key_shares_ids_but_not_ties() {
        let weak = RepositoryKey::weak([7; 32], 4);
        let keys: Vec<PageKey> = (0..200).map(|i| weak.page_key(&format!("http://h/{i}")).unwrap()).collect();
        let ids: std::collections::BTreeSet<_> = keys.iter().map(|k| k.id).collect();
        let all: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!((ids.len(), all.len()), (16, 200));
    }

    #[test]
    fn next_key_is_the_successor() {
        let k = PageKey { id: PageId(3), tie: u64::MAX };
        assert_eq!(k.next(), Some(PageKey { id: PageId(4), tie: 0 }));
        assert_eq!(PageKey::MAX.next(), None);
    }
}
