//! Pages into records, on all cores, with the store's dictionary.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use rayon::prelude::*;

use crate::catalog::Row;
use crate::codec::{self, Codec, Compression, Dictionaries, Dictionary};
use crate::dictionary_files::{self, Needed};
use crate::disk::Disk;
use crate::error::{Result, StorageError};
use crate::in_turn;
use crate::page::{Deflated, Page, PageKey, RepositoryKey};
use crate::record::{self, Kind, RECORD_BYTES_MIN, Record, RecordRef};
use crate::samples::Samples;
use crate::store::{Damage, Options};

/// Bytes of pages a thread encodes in one go: still in its cache when they are staged.
const PART_BYTES: usize = 256 << 10;
/// Buffers kept for the next batch, and how large each of them may be.
const SPARE_BUFFERS: usize = 64;
const SPARE_BYTES: usize = 4 << 20;

/// Records, end to end, with their catalog rows and lengths.
#[derive(Default)]
pub(crate) struct Encoded {
    pub(crate) bytes: Vec<u8>,
    pub(crate) rows: Vec<(Row, u32)>,
}

impl Encoded {
    /// Each record's row and bytes.
    pub(crate) fn records(&self) -> impl Iterator<Item = (&Row, &[u8])> {
        let mut at = 0;
        self.rows.iter().map(move |(row, len)| {
            let start = at;
            at += *len as usize;
            (row, self.bytes.get(start..at).unwrap_or_default())
        })
    }

    fn push_mark(&mut self, kind: Kind, key: PageKey, at_ms: u64, lifetime_s: u32) {
        let start = self.bytes.len();
        record::encode_mark(kind, key, at_ms, lifetime_s, &mut self.bytes);
        self.note(start);
    }

    /// Takes note of the record appended at `start`.
    fn note(&mut self, start: usize) {
        if let Ok(record) = RecordRef::parse_unverified(self.bytes.get(start..).unwrap_or_default()) {
            self.rows.push((Row::of(&record), (self.bytes.len() - start) as u32));
        }
    }
}

/// Bytes of a page's record if nothing is packed.
fn page_bytes(page: &Page<'_>) -> usize {
    let digest = page.payload_digest.map_or(0, |digest| digest.len());
    RECORD_BYTES_MIN + page.url.len() + page.mime.len() + digest + page.head.len() + page.body_len()
}

/// Cuts pages into runs of about [`PART_BYTES`].
fn parts<'a, 'p>(mut pages: &'a [(&'a Page<'p>, PageKey)]) -> Vec<&'a [(&'a Page<'p>, PageKey)]> {
    let mut parts = Vec::new();
    while !pages.is_empty() {
        let mut bytes = 0;
        let fit = pages.iter().take_while(|(page, _)| {
            let fits = bytes < PART_BYTES;
            bytes += page_bytes(page);
            fits
        });
        let (part, later) = pages.split_at(fit.count());
        parts.push(part);
        pages = later;
    }
    parts
}

/// One tombstone or seen entry as a record.
pub(crate) fn mark(kind: Kind, key: PageKey, at_ms: u64, lifetime_s: u32) -> Encoded {
    let mut out = Encoded::default();
    out.push_mark(kind, key, at_ms, lifetime_s);
    out
}

/// Makes a record of one page outside any store: what a client does that packs pages itself. `dictionary` is one that the
/// store it is meant for knows, made for the level of `compression`.
///
/// # Errors
/// When the URL is none, or a field does not fit a record.
pub fn pack_page(
    key: &RepositoryKey,
    page: &Page<'_>,
    compression: Compression,
    dictionary: Option<&Dictionary>,
) -> Result<Record> {
    let mut out = Vec::new();
    pack_page_into(key.page_key(page.url)?, page, compression, dictionary, &mut out)?;
    Ok(Record::new_unverified(out.into())?)
}

/// As [`pack_page`], of a page whose key is known, behind what is in `out`: many records share one piece of memory.
///
/// # Errors
/// When a field does not fit a record.
pub fn pack_page_into(
    key: PageKey,
    page: &Page<'_>,
    compression: Compression,
    dictionary: Option<&Dictionary>,
    out: &mut Vec<u8>,
) -> Result<()> {
    encode(page, key, compression, dictionary, &mut Vec::new(), out)
}

/// The most bytes that a page's record may have.
pub fn record_bytes_max(page: &Page<'_>) -> usize {
    let kept = page.deflated.filter(Deflated::is_kept);
    let body = kept.map_or(page.body_len(), |deflated| deflated.stream.len() + codec::AROUND_BYTES);
    page_bytes(page) - page.body_len() + body
}

/// Appends the record of a page to `out`, packed, or as it came packed. `head` is memory to pack its head in.
fn encode(
    page: &Page<'_>,
    key: PageKey,
    compression: Compression,
    dictionary: Option<&Dictionary>,
    head: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<()> {
    if let Some(deflated) = page.deflated {
        if compression != Compression::None && deflated.is_kept() {
            let stored = [&codec::around(&deflated)[..], deflated.stream];
            return record::encode(page, key, (Codec::Deflate, 0, stored), None, out);
        }
        let (body, deflated) = (page.plain_body()?, None);
        let page = Page { body: &body, deflated, ..*page };
        return encode(&page, key, compression, dictionary, head, out);
    }
    let packed = dictionary.is_some_and(|d| codec::pack_head(d, page.head, head));
    codec::pack(compression, dictionary, page.body, |codec, digest, stored| {
        // The head is packed as the body is, or not at all.
        let head = (packed && digest != 0).then_some(head.as_slice());
        record::encode(page, key, (codec, digest, [stored, &[]]), head, out)
    })
}

/// The level dictionaries are made for.
fn level(compression: Compression) -> i32 {
    match compression {
        Compression::Zstd(level) => level,
        _ => 1,
    }
}

/// Makes records of pages for one store.
pub(crate) struct Packer {
    key: RepositoryKey,
    compression: Compression,
    page_bytes_max: u64,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    dictionaries: Dictionaries,
    /// Held while dictionary files are written.
    files: Mutex<()>,
    current: ArcSwapOption<Dictionary>,
    /// Pages to learn from, until there is a dictionary.
    samples: Mutex<Option<Samples>>,
    spare: Mutex<Vec<Encoded>>,
}

impl Packer {
    /// A packer for the store in `dir`, knowing the good dictionaries there, and the damage that was found in their files.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        key: RepositoryKey,
        options: &Options,
    ) -> Result<(Packer, Vec<Damage>)> {
        let dictionaries = Dictionaries::default();
        let found = dictionary_files::load(&*disk, dir, level(options.compression), &dictionaries)?;
        let current = dictionaries.all().pop();
        let zstd = matches!(options.compression, Compression::Zstd(_));
        let sampling = zstd && options.train_dictionary && current.is_none();
        let packer = Packer {
            key,
            compression: options.compression,
            page_bytes_max: options.page_bytes_max.min(u64::from(record::FIELD_BYTES_MAX)),
            disk,
            dir: dir.to_path_buf(),
            dictionaries,
            files: Mutex::new(()),
            current: ArcSwapOption::new(current.filter(|_| zstd)),
            samples: Mutex::new(sampling.then(Samples::default)),
            spare: Mutex::new(Vec::new()),
        };
        Ok((packer, found))
    }

    pub(crate) fn repository_key(&self) -> &RepositoryKey {
        &self.key
    }

    pub(crate) fn dictionaries(&self) -> &Dictionaries {
        &self.dictionaries
    }

    pub(crate) fn page_bytes_max(&self) -> u64 {
        self.page_bytes_max
    }

    /// Makes a dictionary durable, then known, then used for packing.
    pub(crate) fn add_dictionary(&self, content: &[u8]) -> Result<u64> {
        let digest = Dictionary::digest_of(content);
        let _files = self.files.lock();
        if self.dictionaries.get(digest).is_none() {
            dictionary_files::write(&*self.disk, &self.dir, digest, content)?;
            let dictionary = Arc::new(Dictionary::new(content.to_vec(), level(self.compression)));
            self.dictionaries.insert(dictionary.clone());
            if matches!(self.compression, Compression::Zstd(_)) {
                self.current.store(Some(dictionary));
                *self.samples.lock() = None;
            }
        }
        Ok(digest)
    }

    /// The damage of dictionary files, and the dictionaries that records need and nobody has.
    pub(crate) fn verify_dictionaries(&self, needed: &Needed) -> Result<Vec<Damage>> {
        let _files = self.files.lock();
        dictionary_files::verify(&*self.disk, &self.dir, &self.dictionaries, needed)
    }

    /// Mends dictionary files as far as there is something to mend them from.
    pub(crate) fn mend_dictionaries(&self, needed: &Needed) -> Result<()> {
        let _files = self.files.lock();
        dictionary_files::mend(&*self.disk, &self.dir, level(self.compression), &self.dictionaries, needed)
    }

    /// Encodes pages and hands their records to `stage`, in order, while later ones are still being encoded. Refuses all of them if one is
    /// no page.
    pub(crate) fn pack(
        &self,
        pages: &[Page<'_>],
        mut stage: impl FnMut(&Encoded) -> Result<()> + Send,
    ) -> Result<()> {
        let keys = self.check(pages)?;
        self.sample(pages)?;
        let dictionary = self.current.load_full();
        let pages: Vec<(&Page<'_>, PageKey)> = pages.iter().zip(keys).collect();
        in_turn::make_and_take(
            &parts(&pages),
            |part| self.encode(part, dictionary.as_deref()),
            |encoded| {
                let encoded = encoded?;
                stage(&encoded)?;
                self.give_back(encoded);
                Ok(())
            },
        )
    }

    fn encode(&self, part: &[(&Page<'_>, PageKey)], dictionary: Option<&Dictionary>) -> Result<Encoded> {
        let mut out = self.spare.lock().pop().unwrap_or_default();
        let mut head = Vec::new();
        if self.compression == Compression::None {
            let bytes = |(page, _): &(&Page<'_>, PageKey)| page_bytes(page);
            out.bytes.reserve(part.iter().map(bytes).sum());
        }
        for (page, key) in part {
            let start = out.bytes.len();
            encode(page, *key, self.compression, dictionary, &mut head, &mut out.bytes)?;
            out.note(start);
        }
        Ok(out)
    }

    /// Keeps a buffer for the next batch.
    pub(crate) fn give_back(&self, mut encoded: Encoded) {
        encoded.bytes.clear();
        encoded.rows.clear();
        let mut spare = self.spare.lock();
        if spare.len() < SPARE_BUFFERS && encoded.bytes.capacity() <= SPARE_BYTES {
            spare.push(encoded);
        }
    }

    /// The keys of all pages, or what is wrong with the first that is none.
    fn check(&self, pages: &[Page<'_>]) -> Result<Vec<PageKey>> {
        let one = |page: &Page<'_>| {
            let bytes = page_bytes(page) as u64;
            if bytes > self.page_bytes_max {
                let url = page.url.chars().take(200).collect();
                return Err(StorageError::PageTooLarge { url, bytes, max: self.page_bytes_max });
            }
            if page.mime.len() > usize::from(u16::MAX) {
                let what = format!("its MIME type has {} bytes, at most 65535 fit", page.mime.len());
                return Err(StorageError::BadPage { url: page.url.chars().take(200).collect(), what });
            }
            Ok(self.key.page_key(page.url)?)
        };
        if pages.len() < 64 {
            return pages.iter().map(one).collect();
        }
        pages.par_iter().map(one).collect()
    }

    /// Checks records that come from elsewhere, and hands them to `stage` in order, some at a time. Refuses all of them if one is not for
    /// this store.
    pub(crate) fn take_records(
        &self,
        records: &[Record],
        mut stage: impl FnMut(&Encoded) -> Result<()>,
    ) -> Result<()> {
        records.iter().try_for_each(|record| self.check_record(record))?;
        let mut part = self.spare.lock().pop().unwrap_or_default();
        for record in records {
            let start = part.bytes.len();
            part.bytes.extend_from_slice(record.bytes());
            part.note(start);
            if part.bytes.len() >= PART_BYTES {
                stage(&part)?;
                part.bytes.clear();
                part.rows.clear();
            }
        }
        if !part.rows.is_empty() {
            stage(&part)?;
        }
        self.give_back(part);
        Ok(())
    }

    fn check_record(&self, record: &Record) -> Result<()> {
        let seen = RecordRef::parse(record.bytes())?;
        let url = || seen.url().chars().take(200).collect();
        if seen.as_bytes().len() as u64 > self.page_bytes_max {
            let (bytes, max) = (seen.as_bytes().len() as u64, self.page_bytes_max);
            return Err(StorageError::PageTooLarge { url: url(), bytes, max });
        }
        if seen.is_partial() {
            let what = "it was streamed without its body or its head; ask for everything".into();
            return Err(StorageError::BadPage { url: url(), what });
        }
        if seen.kind() == Kind::Page && self.key.page_key(seen.url())? != seen.key() {
            let what = "its page id is of another repository; copy the page, not the record".into();
            return Err(StorageError::BadPage { url: url(), what });
        }
        if seen.dictionary() != 0 && self.dictionaries.get(seen.dictionary()).is_none() {
            return Err(StorageError::UnknownDictionary { digest: seen.dictionary() });
        }
        Ok(())
    }

    /// Keeps bodies until there are enough to train a dictionary on.
    fn sample(&self, pages: &[Page<'_>]) -> Result<()> {
        let mut slot = self.samples.lock();
        let Some(samples) = slot.as_mut() else { return Ok(()) };
        samples.take(pages);
        if !samples.are_enough() {
            return Ok(());
        }
        let samples = slot.take().unwrap_or_default();
        drop(slot);
        match samples.train(level(self.compression)) {
            Some(trained) => self.add_dictionary(trained.content()).map(|_| ()),
            None => Ok(()), // too few, or too alike: pages are packed without one
        }
    }
}
