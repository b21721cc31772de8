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

use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::files::{at, corrupt, crc, replace};
use super::runs::{Entry, Run, RunReader, RunWriter, merge};
use super::{MetadataError, Result};

const MAGIC: &[u8; 4] = b"WBUT";
const VERSION: u32 = 1;
/// Runs beside the largest one before all are merged.
const RUNS_MAX: usize = 8;
/// No URL is longer.
const URL_BYTES_MAX: usize = 1 << 16;

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
    folder: PathBuf,
    key: [u8; 32],
    runs: Vec<Run>,
    count: u32,
    urls_bytes: u64,
    urls: File,
    places: File,
    pending_number: u64,
    pending: BufWriter<File>,
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
        let open = |path: &Path| {
            at(path, OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path))
        };
        let (urls, places) = (open(&urls_path)?, open(&places_path)?);
        for (path, file, bytes) in
            [(&urls_path, &urls, manifest.urls_bytes), (&places_path, &places, u64::from(manifest.count) * 8)]
        {
            if at(path, file.metadata())?.len() < bytes {
                return corrupt(path, bytes, "the file is shorter than the manifest says");
            }
            at(path, file.set_len(bytes))?;
        }
        let pending_path = pending_path(folder, manifest.pending);
        let mut pending = open(&pending_path)?;
        let (waiting, whole) = read_pending(&pending_path, &key)?;
        at(&pending_path, pending.set_len(whole))?;
        at(&pending_path, pending.seek(SeekFrom::End(0)))?;
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
            pending: BufWriter::with_capacity(1 << 20, pending),
            waiting,
            poisoned: false,
        })
    }

    /// Offers the canonical URL of a link. It is settled later, with many others.
    ///
    /// # Errors
    /// A full disk, or a table that refused a write before. A URL longer than 64 KiB is refused by `Ok(false)`.
    pub fn offer(&mut self, url: &str) -> Result<bool> {
        if url.is_empty() || url.len() > URL_BYTES_MAX {
            return Ok(false);
        }
        self.refuse_if_poisoned()?;
        let number = u32::try_from(self.waiting.len()).map_err(|_| MetadataError::Full)?;
        let hash = hash(&self.key, url.as_bytes());
        let path = || pending_path(&self.folder, self.pending_number);
        let mut head = [0; 12];
        let (length, sum) = head.split_at_mut(4);
        length.copy_from_slice(&(url.len() as u32).to_le_bytes());
        sum.copy_from_slice(&crc(url.as_bytes()).to_le_bytes());
        let written = self.pending.write_all(&head).and_then(|()| self.pending.write_all(url.as_bytes()));
        if let Err(source) = written {
            self.poisoned = true;
            return Err(MetadataError::Io { path: path(), source });
        }
        self.waiting.push(hash | Entry::from(number));
        Ok(true)
    }

    /// Makes what was offered durable: it will be settled even after a crash.
    ///
    /// # Errors
    /// A disk that cannot; then the table refuses everything until it is opened again.
    pub fn sync(&mut self) -> Result<()> {
        self.refuse_if_poisoned()?;
        let done = self.pending.flush().and_then(|()| self.pending.get_ref().sync_data());
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
        batch.sort_unstable();
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
            runs = vec![merge(&self.folder, &runs, number + 1)?];
        }
        let next = Manifest {
            count: self.count + firsts.len() as u32,
            urls_bytes,
            pending: self.pending_number + 1,
            runs,
        };
        let path = pending_path(&self.folder, next.pending);
        let pending = at(&path, File::create(&path))?;
        replace(&self.folder.join("manifest"), &next.to_bytes())?;
        self.pending = BufWriter::with_capacity(1 << 20, pending);
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
        let mut links = PendingReader::open(&pending)?;
        let (urls_path, places_path) = (self.folder.join("urls"), self.folder.join("places"));
        at(&urls_path, self.urls.seek(SeekFrom::Start(self.urls_bytes)))?;
        at(&places_path, self.places.seek(SeekFrom::Start(u64::from(self.count) * 8)))?;
        let mut urls = BufWriter::with_capacity(1 << 20, &self.urls);
        let mut places = BufWriter::with_capacity(1 << 16, &self.places);
        let mut end = self.urls_bytes;
        for link in settled {
            let Some(url) = links.next()? else {
                return corrupt(&pending, links.whole, "the pending file has fewer links than were offered");
            };
            if link.is_new {
                at(&places_path, places.write_all(&end.to_le_bytes()))?;
                at(&urls_path, urls.write_all(&(url.len() as u32).to_le_bytes()))?;
                at(&urls_path, urls.write_all(url))?;
                end += 4 + url.len() as u64;
            }
        }
        at(&urls_path, urls.flush())?;
        at(&places_path, places.flush())?;
        drop((urls, places));
        at(&urls_path, self.urls.sync_data())?;
        at(&places_path, self.places.sync_data())?;
        Ok(end)
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

/// Looks a sorted batch up in a run.
fn find(folder: &Path, run: &Run, batch: &[Entry], settled: &mut [Settled]) -> Result<()> {
    let mut reader = RunReader::open(folder, run)?;
    let mut keys = batch.iter().copied().peekable();
    loop {
        let block = reader.block()?;
        if block.is_empty() {
            return Ok(());
        }
        let mut known = block.iter().copied();
        let mut at_known = known.next();
        while let Some(&key) = keys.peek() {
            while at_known.is_some_and(|entry| entry >> 32 < key >> 32) {
                at_known = known.next();
            }
            match at_known {
                None => break,
                Some(entry) if entry >> 32 == key >> 32 => {
                    if let Some(found) = settled.get_mut(key as u32 as usize) {
                        *found = Settled { id: entry as u32, is_new: false };
                    }
                    keys.next();
                }
                Some(_) => {
                    keys.next();
                }
            }
        }
        let passed = block.len();
        reader.pass(passed);
        if keys.peek().is_none() {
            return Ok(());
        }
    }
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
    file: BufReader<File>,
    url: Vec<u8>,
    /// Bytes up to the end of the last whole link.
    whole: u64,
}

impl PendingReader {
    fn open(path: &Path) -> Result<PendingReader> {
        let file = at(path, File::open(path))?;
        Ok(PendingReader {
            path: path.to_owned(),
            file: BufReader::with_capacity(1 << 20, file),
            url: Vec::new(),
            whole: 0,
        })
    }

    /// The next whole link; `None` at the end, or where a crash cut one off.
    fn next(&mut self) -> Result<Option<&[u8]>> {
        let mut head = [0; 12];
        if !self.fill(|file| file.read_exact(&mut head))? {
            return Ok(None);
        }
        let [a, b, c, d, sum @ ..] = head;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length == 0 || length > URL_BYTES_MAX {
            return Ok(None);
        }
        let mut url = std::mem::take(&mut self.url);
        url.resize(length, 0);
        let read = self.fill(|file| file.read_exact(&mut url))?;
        self.url = url;
        if !read || crc(&self.url) != u64::from_le_bytes(sum) {
            return Ok(None);
        }
        self.whole += 12 + length as u64;
        Ok(Some(&self.url))
    }

    fn fill(&mut self, read: impl FnOnce(&mut BufReader<File>) -> std::io::Result<()>) -> Result<bool> {
        match read(&mut self.file) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
            Err(source) => Err(MetadataError::Io { path: self.path.clone(), source }),
        }
    }
}

/// What waits in a pending file, and how far it is whole: the rest was never acknowledged.
fn read_pending(path: &Path, key: &[u8; 32]) -> Result<(Vec<Entry>, u64)> {
    let mut links = PendingReader::open(path)?;
    let mut waiting = Vec::new();
    while let Some(url) = links.next()? {
        let number = u32::try_from(waiting.len()).map_err(|_| MetadataError::Full)?;
        waiting.push(hash(key, url) | Entry::from(number));
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
        let sum = crc(&bytes);
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
        if crc(body) != u64::from_le_bytes(*sum) {
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
