//! URL ↔ URL-id, and "have I seen this URL?".
//!
//! ```text
//!   manifest   "WBUT", version, number of URLs, bytes of `urls`, number of the pending file, runs, CRC-64; replaced at once
//!   known-N    sorted runs of (hash, URL-id): runs.rs
//!   urls       the URLs in order of their ids: length (u32), bytes
//!   places     where each URL begins in `urls`: u64 each
//!   pending-N  links that wait: length (u32), CRC-64 of the URL, URL
//! ```
//!
//! A settlement writes the new URLs and a run of the new keys, then the manifest; a crash before the manifest leaves the old
//! state with all links still pending, a crash after it the new state. Files that no manifest names are removed at the next
//! opening. Beyond the lengths that the manifest knows, `urls` and `places` are cut off.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rayon::prelude::*;
use webbase_storage::crc64;
use webbase_storage::disk::{Appender, Disk, DiskFile, OsDisk, ReadAhead, Through};

use super::files::{at, corrupt, replace};
use super::runs::{Entry, Run, RunReader, RunWriter, lookup, merge};
use super::{MetadataError, Result};

const MAGIC: &[u8; 4] = b"WBUT";
const VERSION: u32 = 1;
/// Runs beside the largest one before they are merged.
const RUNS_MAX: usize = 8;
/// Runs beside the largest one are merged into it when it is no longer this many times as large as all of them.
const LARGEST_TIMES: u64 = 4;
/// Links that are hashed at once, by all cores.
const TOGETHER: usize = 4096;
/// No URL is longer.
pub(super) const URL_BYTES_MAX: usize = 1 << 16;

/// What became of one offered link, in the order of offering.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settled {
    /// The URL's number.
    pub id: u32,
    /// Whether it was not known before. Of several links to a new URL the first is new.
    pub is_new: bool,
}

/// All known URLs.
#[derive(Debug)]
pub struct UrlTable {
    pub(super) folder: PathBuf,
    key: [u8; 32],
    runs: Vec<Run>,
    pub(super) count: u32,
    pub(super) urls_bytes: u64,
    urls: Arc<dyn DiskFile>,
    places: Arc<dyn DiskFile>,
    pending_number: u64,
    pending_file: Arc<dyn DiskFile>,
    pending: Appender,
    /// (hash, number of the link), unsorted.
    waiting: Vec<Entry>,
    poisoned: bool,
}

impl UrlTable {
    /// Opens or makes a table. `key` is the repository's: hashes are keyed by it.
    ///
    /// # Errors
    /// A folder that cannot be used, or a table that is damaged.
    pub fn open(folder: &Path, key: [u8; 32]) -> Result<UrlTable> {
        at(folder, std::fs::create_dir_all(folder))?;
        let manifest = Manifest::read(&folder.join("manifest"))?;
        let (urls_path, places_path) = (folder.join("urls"), folder.join("places"));
        let open = |path: &Path| at(path, OsDisk::new().open(path, !path.exists()));
        let (urls, places) = (open(&urls_path)?, open(&places_path)?);
        for (path, file, bytes) in
            [(&urls_path, &urls, manifest.urls_bytes), (&places_path, &places, u64::from(manifest.count) * 8)]
        {
            if at(path, file.len())? < bytes {
                return corrupt(path, bytes, "the file is shorter than the manifest says");
            }
            at(path, file.set_len(bytes))?;
        }
        let pending_path = pending_path(folder, manifest.pending);
        let pending_file = open(&pending_path)?;
        let (waiting, whole) = read_pending(&pending_path, &pending_file, &key)?;
        at(&pending_path, pending_file.set_len(whole))?;
        let pending = at(&pending_path, Appender::new(pending_file.clone(), whole))?;
        remove_unnamed(folder, &manifest)?;
        Ok(UrlTable {
            folder: folder.to_owned(),
            key,
            runs: manifest.runs,
            count: manifest.count,
            urls_bytes: manifest.urls_bytes,
            urls,
            places,
            pending_number: manifest.pending,
            pending_file,
            pending,
            waiting,
            poisoned: false,
        })
    }

    /// Offers the canonical URL of a link. It is settled later, with many others.
    ///
    /// # Errors
    /// A full disk, or a table that refused a write before. A URL longer than 64 KiB is refused by `Ok(false)`.
    pub fn offer(&mut self, url: &str) -> Result<bool> {
        if !is_offered(url) {
            return Ok(false);
        }
        self.refuse_if_poisoned()?;
        self.take(url, hash(&self.key, url.as_bytes()), crc64(url.as_bytes()))?;
        Ok(true)
    }

    /// Offers many links at once, hashed by all cores. Those that cannot be offered (empty, or longer than 64 KiB) are left out; says
    /// how many were taken.
    ///
    /// # Errors
    /// As [`UrlTable::offer`]; the links before the one that failed are taken.
    pub fn offer_all<U: AsRef<str> + Sync>(&mut self, urls: &[U]) -> Result<usize> {
        self.refuse_if_poisoned()?;
        let (key, mut taken) = (self.key, 0);
        for some in urls.chunks(TOGETHER * rayon::current_num_threads()) {
            let sums = |url: &U| (hash(&key, url.as_ref().as_bytes()), crc64(url.as_ref().as_bytes()));
            let sums: Vec<(Entry, u64)> = some.par_iter().with_min_len(TOGETHER / 4).map(sums).collect();
            for (url, (hash, sum)) in some.iter().zip(sums).filter(|(url, _)| is_offered(url.as_ref())) {
                self.take(url.as_ref(), hash, sum)?;
                taken += 1;
            }
        }
        Ok(taken)
    }

    fn take(&mut self, url: &str, hash: Entry, sum: u64) -> Result<()> {
        let number = u32::try_from(self.waiting.len()).map_err(|_| MetadataError::Full)?;
        let mut head = [0; 12];
        let (length, sum_at) = head.split_at_mut(4);
        length.copy_from_slice(&(url.len() as u32).to_le_bytes());
        sum_at.copy_from_slice(&sum.to_le_bytes());
        let written = self.pending.write(&head).and_then(|()| self.pending.write(url.as_bytes()));
        self.poisoned = written.is_err();
        at(&pending_path(&self.folder, self.pending_number), written)?;
        self.waiting.push(hash | Entry::from(number));
        Ok(())
    }

    /// Makes what was offered durable: it will be settled even after a crash.
    ///
    /// # Errors
    /// A disk that cannot; then the table refuses everything until it is opened again.
    pub fn sync(&mut self) -> Result<()> {
        self.refuse_if_poisoned()?;
        let done = self.pending.flush().and_then(|()| self.pending_file.sync());
        self.poisoned = done.is_err();
        at(&pending_path(&self.folder, self.pending_number), done)
    }

    /// Links that wait to be settled.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// URLs known; their ids are 0 and up.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Settles all waiting links: one sequential pass over all known URLs. What it returns is durable.
    ///
    /// # Errors
    /// A disk that cannot, or damage; then the table refuses everything until it is opened again, with the links still waiting.
    pub fn settle(&mut self) -> Result<Vec<Settled>> {
        self.refuse_if_poisoned()?;
        self.poisoned = true;
        let settled = self.settle_all()?;
        self.poisoned = false;
        Ok(settled)
    }

    fn settle_all(&mut self) -> Result<Vec<Settled>> {
        let nothing = Settled { id: u32::MAX, is_new: false };
        let mut settled = vec![nothing; self.waiting.len()];
        if self.waiting.is_empty() {
            return Ok(settled);
        }
        let mut batch = std::mem::take(&mut self.waiting);
        batch.par_sort_unstable();
        for run in &self.runs {
            find(&self.folder, run, &batch, &mut settled)?;
        }
        // The first link of each hash that no run knows is new; ids go in the order of the links, so that URLs are written as
        // they came.
        let mut firsts: Vec<u32> = Vec::new();
        for same in batch.chunk_by(|a, b| a >> 32 == b >> 32) {
            let first = same.first().map_or(0, |entry| *entry as u32);
            if settled.get(first as usize).is_some_and(|found| found.id == u32::MAX) {
                firsts.push(first);
            }
        }
        firsts.sort_unstable();
        if firsts.len() as u64 + u64::from(self.count) >= u64::from(u32::MAX) {
            return Err(MetadataError::Full);
        }
        for (id, first) in (self.count..).zip(&firsts) {
            if let Some(found) = settled.get_mut(*first as usize) {
                *found = Settled { id, is_new: true };
            }
        }
        let number = self.runs.iter().map(|run| run.number + 1).max().unwrap_or(0);
        let mut writer = RunWriter::create(&self.folder, number)?;
        for same in batch.chunk_by(|a, b| a >> 32 == b >> 32) {
            let Some(first) = same.first().map(|entry| *entry as u32) else { continue };
            let Some(found) = settled.get(first as usize).copied() else { continue };
            if found.is_new {
                writer.push(same.first().copied().unwrap_or(0) >> 32 << 32 | Entry::from(found.id))?;
            }
            for entry in same.iter().skip(1) {
                if let Some(other) = settled.get_mut(*entry as u32 as usize) {
                    *other = Settled { is_new: false, ..found };
                }
            }
        }
        let urls_bytes = self.write_urls(&settled)?;
        let mut runs = self.runs.clone();
        if firsts.is_empty() {
            drop(writer);
        } else {
            runs.push(writer.finish()?);
        }
        if runs.len() > RUNS_MAX {
            runs = merged(&self.folder, runs, number + 1)?;
        }
        let next = Manifest {
            count: self.count + firsts.len() as u32,
            urls_bytes,
            pending: self.pending_number + 1,
            runs,
        };
        let path = pending_path(&self.folder, next.pending);
        let pending_file = at(&path, OsDisk::new().open(&path, true))?;
        let pending = at(&path, Appender::new(pending_file.clone(), 0))?;
        replace(&self.folder.join("manifest"), &next.to_bytes())?;
        (self.pending_file, self.pending) = (pending_file, pending);
        self.pending_number = next.pending;
        self.count = next.count;
        self.urls_bytes = urls_bytes;
        remove_unnamed(&self.folder, &next)?;
        self.runs = next.runs;
        Ok(settled)
    }

    /// Copies the new URLs out of the pending file to the end of the list.
    fn write_urls(&mut self, settled: &[Settled]) -> Result<u64> {
        let pending = pending_path(&self.folder, self.pending_number);
        at(&pending, self.pending.flush())?;
        let mut links = PendingReader::new(&pending, &self.pending_file)?;
        let (urls_path, places_path) = (self.folder.join("urls"), self.folder.join("places"));
        let mut urls = at(&urls_path, Appender::new(self.urls.clone(), self.urls_bytes))?;
        let mut places = at(&places_path, Appender::new(self.places.clone(), u64::from(self.count) * 8))?;
        for link in settled {
            let Some(url) = links.next()? else {
                return corrupt(&pending, links.whole, "the pending file has fewer links than were offered");
            };
            if link.is_new {
                at(&places_path, places.write(&urls.end().to_le_bytes()))?;
                at(&urls_path, urls.write(&(url.len() as u32).to_le_bytes()))?;
                at(&urls_path, urls.write(&url))?;
            }
        }
        at(&urls_path, urls.flush().and_then(|()| self.urls.sync()))?;
        at(&places_path, places.flush().and_then(|()| self.places.sync()))?;
        Ok(urls.end())
    }

    /// The number of one canonical URL, if it is settled: a few reads a run. For a person's question; links are offered.
    ///
    /// # Errors
    /// A disk that cannot, or damage.
    pub fn find(&self, url: &str) -> Result<Option<u32>> {
        let hash = self.key_of(url);
        for run in &self.runs {
            if let Some(id) = lookup(&self.folder, run, hash)? {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// What a canonical URL is known by: 96 bits of its hash, above 32 bits that are 0.
    pub(crate) fn key_of(&self, url: &str) -> u128 {
        hash(&self.key, url.as_bytes())
    }

    /// The URL of a number.
    ///
    /// # Errors
    /// A disk that cannot, or damage.
    pub fn url(&self, id: u32) -> Result<Option<String>> {
        if id >= self.count {
            return Ok(None);
        }
        let (urls_path, places_path) = (self.folder.join("urls"), self.folder.join("places"));
        let mut place = [0; 8];
        at(&places_path, self.places.read_exact_at(&mut place, u64::from(id) * 8))?;
        let place = u64::from_le_bytes(place);
        let mut length = [0; 4];
        if place.checked_add(4).is_none_or(|end| end > self.urls_bytes) {
            return corrupt(&places_path, u64::from(id) * 8, "a place lies beyond the URLs");
        }
        at(&urls_path, self.urls.read_exact_at(&mut length, place))?;
        let length = u32::from_le_bytes(length) as usize;
        if length > URL_BYTES_MAX || place + 4 + length as u64 > self.urls_bytes {
            return corrupt(&urls_path, place, "a URL is longer than URLs can be");
        }
        let mut url = vec![0; length];
        at(&urls_path, self.urls.read_exact_at(&mut url, place + 4))?;
        match String::from_utf8(url) {
            Ok(url) => Ok(Some(url)),
            Err(_) => corrupt(&urls_path, place, "a URL is no text"),
        }
    }

    fn refuse_if_poisoned(&self) -> Result<()> {
        if self.poisoned { Err(MetadataError::Poisoned) } else { Ok(()) }
    }
}

fn is_offered(url: &str) -> bool {
    !url.is_empty() && url.len() <= URL_BYTES_MAX
}

/// Merges all runs but the largest one, and into it too if they have grown to a good part of it: so every entry is copied a few times,
/// not once for every few settlements.
fn merged(folder: &Path, mut runs: Vec<Run>, number: u64) -> Result<Vec<Run>> {
    runs.sort_by_key(|run| std::cmp::Reverse(run.entries));
    let small: u64 = runs.iter().skip(1).map(|run| run.entries).sum();
    let keep = usize::from(runs.first().is_some_and(|largest| largest.entries >= small * LARGEST_TIMES));
    let rest = runs.split_off(keep);
    runs.push(merge(folder, &rest, number)?);
    Ok(runs)
}

/// Looks a sorted batch up in a run.
fn find(folder: &Path, run: &Run, batch: &[Entry], settled: &mut [Settled]) -> Result<()> {
    let mut reader = RunReader::open(folder, run)?;
    let mut keys = batch.iter().copied();
    let mut wanted = keys.next();
    while let Some(mut key) = wanted {
        let block = reader.next_block()?;
        if block.is_empty() {
            break;
        }
        'block: for bytes in block {
            let known = Entry::from_be_bytes(*bytes);
            while known >> 32 >= key >> 32 {
                if known >> 32 == key >> 32
                    && let Some(found) = settled.get_mut(key as u32 as usize)
                {
                    *found = Settled { id: known as u32, is_new: false };
                }
                wanted = keys.next();
                match wanted {
                    Some(next) => key = next,
                    None => break 'block,
                }
            }
        }
    }
    Ok(())
}

fn hash(key: &[u8; 32], url: &[u8]) -> Entry {
    let digest = blake3::keyed_hash(key, url);
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(digest.as_bytes()).take(12) {
        *to = *from;
    }
    Entry::from_be_bytes(bytes)
}

fn pending_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("pending-{number:08}"))
}

/// Links of a pending file, in order.
struct PendingReader {
    path: PathBuf,
    ahead: ReadAhead,
    bytes: u64,
    /// Bytes up to the end of the last whole link.
    whole: u64,
}

impl PendingReader {
    fn new(path: &Path, file: &Arc<dyn DiskFile>) -> Result<PendingReader> {
        let bytes = at(path, file.len())?;
        let ahead = ReadAhead::new(file.clone(), 0..bytes, Through::Direct);
        Ok(PendingReader { path: path.to_owned(), ahead, bytes, whole: 0 })
    }

    /// The next whole link; `None` at the end, or where a crash cut one off.
    fn next(&mut self) -> Result<Option<Bytes>> {
        let Some(head) = self.get(self.whole, 12)? else { return Ok(None) };
        let Some((length, sum)) = head.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 || length > URL_BYTES_MAX {
            return Ok(None);
        }
        let url = self.get(self.whole + 12, length as u64)?.filter(|url| crc64(url).to_le_bytes() == *sum);
        if url.is_some() {
            self.whole += 12 + length as u64;
        }
        Ok(url)
    }

    fn get(&mut self, offset: u64, bytes: u64) -> Result<Option<Bytes>> {
        if offset + bytes > self.bytes {
            return Ok(None);
        }
        at(&self.path, self.ahead.get(offset..offset + bytes)).map(Some)
    }
}

/// What waits in a pending file, and how far it is whole: the rest was never acknowledged.
fn read_pending(path: &Path, file: &Arc<dyn DiskFile>, key: &[u8; 32]) -> Result<(Vec<Entry>, u64)> {
    let mut links = PendingReader::new(path, file)?;
    let mut waiting = Vec::new();
    while let Some(url) = links.next()? {
        let number = u32::try_from(waiting.len()).map_err(|_| MetadataError::Full)?;
        waiting.push(hash(key, &url) | Entry::from(number));
    }
    Ok((waiting, links.whole))
}

/// Removes what crashes and merges left behind.
fn remove_unnamed(folder: &Path, manifest: &Manifest) -> Result<()> {
    let mut named: Vec<PathBuf> = manifest.runs.iter().map(|run| run.path(folder)).collect();
    named.push(pending_path(folder, manifest.pending));
    for file in at(folder, std::fs::read_dir(folder))? {
        let path = at(folder, file)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
        let ours = name.starts_with("known-") || name.starts_with("pending-");
        if ours && !named.contains(&path) {
            at(&path, std::fs::remove_file(&path))?;
        }
    }
    Ok(())
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Manifest {
    count: u32,
    urls_bytes: u64,
    pending: u64,
    runs: Vec<Run>,
}

impl Manifest {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&u64::from(self.count).to_le_bytes());
        bytes.extend_from_slice(&self.urls_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.pending.to_le_bytes());
        for run in &self.runs {
            bytes.extend_from_slice(&run.number.to_le_bytes());
            bytes.extend_from_slice(&run.entries.to_le_bytes());
        }
        let sum = crc64(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// An empty one where there is none yet.
    fn read(path: &Path) -> Result<Manifest> {
        let bytes = match std::fs::read(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Manifest::default()),
            read => at(path, read)?,
        };
        let Some((body, sum)) = bytes.split_last_chunk::<8>() else {
            return corrupt(path, 0, "the manifest is too short");
        };
        if crc64(body) != u64::from_le_bytes(*sum) {
            return corrupt(path, 0, "the manifest is damaged");
        }
        let Some((head, rest)) = body.split_first_chunk::<8>() else {
            return corrupt(path, 0, "the manifest is too short");
        };
        if !head.starts_with(MAGIC) || !head.ends_with(&VERSION.to_le_bytes()) {
            return corrupt(path, 0, "no manifest of this version");
        }
        let number = |bytes: &[u8]| <[u8; 8]>::try_from(bytes).map_or(0, u64::from_le_bytes);
        let numbers: Vec<u64> = rest.chunks(8).map(number).collect();
        let [count, urls_bytes, pending, runs @ ..] = numbers.as_slice() else {
            return corrupt(path, 8, "the manifest is too short");
        };
        let Ok(count) = u32::try_from(*count) else {
            return corrupt(path, 8, "more URLs than numbers");
        };
        let runs = runs.chunks(2).filter_map(|run| match run {
            [number, entries] => Some(Run { number: *number, entries: *entries }),
            _ => None,
        });
        Ok(Manifest { count, urls_bytes: *urls_bytes, pending: *pending, runs: runs.collect() })
    }
}
