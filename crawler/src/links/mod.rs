//! The links of a repository's pages, read and unread, and what is computed from them: one owner, one folder.
//!
//! ```text
//!   stream of pages ─▶ LinkHandler (threads) ─┐
//!                                             ├─▶ Links::page ─▶ urls/: URL ↔ URL-id ─▶ matrix/: links by URL-id
//!   crawl ─▶ WithLinks ───────────────────────┘                                            │
//!                              ranks: importance and usefulness by URL-id ◀── estimate() ──┘
//! ```
//!
//! ```text
//!   key        32 random bytes: what URLs are hashed with
//!   lock       whoever has the folder open holds it
//!   urls/      the metadata manager's table of URLs ([`UrlTable`]): its URL-id is the number of a page in everything here
//!   matrix/    the link matrix ([`LinkMatrix`])
//!   interest   "WBLI", version 1 4, a bit for each URL-id: pages of interest; CRC-64 8
//!   ranks      the last result (`ranks.rs`)
//!   pending    pages that a crawl handed over since the last commit (`pending.rs`)
//!   work/      vectors while they are computed; removed afterwards
//! ```
//!
//! 1. A URL has an id from the moment a page that was taken links to it, and keeps it for ever; whether it was read, the matrix says.
//! 2. Pages count when [`Links::commit`] has returned, all at once: all there are, or changes to what there was. Those taken by
//!    [`Links::keep`] are never lost: after a kill they count when the folder is next opened.
//! 3. URLs are canonical ([`canonical`]): http and https are one page here, as they are in the repository.

mod estimate;
mod handler;
mod pending;
mod ranks;
mod sink;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use webbase_storage::crc64;
use webbase_storage::disk::{Disk, DiskLock, OsDisk};
use webbase_storage::url::canonical;

pub use estimate::{Estimated, Lifted, Wanted, estimate};
pub use handler::{LinkHandler, PageLinks};
pub use ranks::Ranks;
pub use sink::WithLinks;

use self::pending::Pending;
use crate::importance::{ImportanceError, Interest};
use crate::link_matrix::{LinkMatrix, Matrix, MatrixBuilder, MatrixError};
use crate::metadata::{MetadataError, UrlTable};

const INTEREST: [u8; 8] = *b"WBLI\x01\0\0\0";
/// Memory that a link takes while its URL waits to be settled.
const WAITING_BYTES: usize = 32;

/// What can go wrong with links.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinksError {
    /// The table of URLs.
    #[error(transparent)]
    Urls(#[from] MetadataError),
    /// The link matrix.
    #[error(transparent)]
    Matrix(#[from] MatrixError),
    /// What is asked of the computation.
    #[error(transparent)]
    Importance(#[from] ImportanceError),
    /// Another process has the folder.
    #[error("{} is in use by another process", dir.display())]
    InUse {
        /// Which.
        dir: PathBuf,
    },
    /// The system says no.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file is not what was written.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// How.
        what: &'static str,
    },
    /// It did not settle.
    #[error("{what} still changes by {change:.1e} after {rounds} rounds")]
    Unsettled {
        /// Which vector.
        what: &'static str,
        /// What the last round changed.
        change: f64,
        /// How many rounds there were.
        rounds: u32,
    },
    /// It cannot be had on disk.
    #[error("{what} is only computed in memory, and {needed} bytes are more than the {given} there are")]
    Memory {
        /// What.
        what: &'static str,
        /// What it needs.
        needed: usize,
        /// What it may have.
        given: usize,
    },
}

impl LinksError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> LinksError {
        move |source| LinksError::Io { action, path: path.to_owned(), source }
    }
}

type Result<T> = std::result::Result<T, LinksError>;

/// What the pages of a commit are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All that were read: others have no links any more.
    All,
    /// Some that were read, for the first time or again.
    Changes,
}

/// How many there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// URLs known, read or not.
    pub urls: u64,
    /// Pages read.
    pub pages_read: u64,
    /// Links.
    pub links: u64,
}

/// A page that waits until its URLs have ids.
struct Waiting {
    links: usize,
    of_interest: bool,
}

/// Links and URL-ids of a repository.
pub struct Links {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    urls: UrlTable,
    matrix: LinkMatrix,
    budget_bytes: usize,
    interest: Vec<u64>,
    waiting: Vec<Waiting>,
    /// What is gathered since the last commit.
    run: Option<MatrixBuilder>,
    given: Vec<u64>,
    /// Pages that were given again since.
    again: BTreeMap<u32, Vec<u32>>,
    pending: Pending,
    _lock: Box<dyn DiskLock>,
}

impl Links {
    /// Opens the folder, made if it is not there. Everything here takes about `budget_bytes` of memory.
    ///
    /// # Errors
    /// When another process has it open, it cannot be used, or it is damaged.
    pub fn open(dir: &Path, budget_bytes: usize) -> Result<Links> {
        std::fs::create_dir_all(dir).map_err(LinksError::io("make", dir))?;
        let disk: Arc<dyn Disk> = Arc::new(OsDisk::new());
        let lock = disk.lock(&dir.join("lock")).map_err(LinksError::io("lock", dir))?;
        let lock = lock.ok_or_else(|| LinksError::InUse { dir: dir.to_owned() })?;
        let key = own_key(dir)?;
        let mut urls = UrlTable::open(&dir.join("urls"), key)?;
        // What a run that ended early has offered is known from now on, and that is no harm.
        urls.settle()?;
        let matrix = LinkMatrix::open(disk.clone(), &dir.join("matrix"), budget_bytes / 2)?;
        let interest = read_interest(&dir.join("interest"))?;
        let (pending, left) = Pending::open(dir)?;
        let mut links = Links {
            disk,
            dir: dir.to_owned(),
            urls,
            matrix,
            budget_bytes,
            interest,
            waiting: Vec::new(),
            run: None,
            given: Vec::new(),
            again: BTreeMap::new(),
            pending,
            _lock: lock,
        };
        if !left.is_empty() {
            left.iter().try_for_each(|page| links.page(page))?;
            links.commit(Extent::Changes)?;
        }
        Ok(links)
    }

    /// Takes pages as [`Links::page`] does, durably: when it returns, no kill loses them.
    ///
    /// # Errors
    /// When the disk refuses, or a file is damaged.
    pub fn keep(&mut self, pages: &[PageLinks]) -> Result<()> {
        self.pending.write(pages)?;
        pages.iter().try_for_each(|page| self.page(page))
    }

    /// Takes a page that was read, with its links, all of them canonical. It counts with the next [`Links::commit`]; of a page given
    /// twice the second counts. What is longer than a URL can be is left out.
    ///
    /// # Errors
    /// When the disk refuses, or a file is damaged.
    pub fn page(&mut self, page: &PageLinks) -> Result<()> {
        if !self.urls.offer(&page.url)? {
            return Ok(());
        }
        let mut links = 0;
        for link in &page.links {
            links += usize::from(self.urls.offer(link)?);
        }
        self.waiting.push(Waiting { links, of_interest: page.of_interest });
        if self.urls.waiting() * WAITING_BYTES > self.budget_bytes / 4 {
            self.settle()?;
        }
        Ok(())
    }

    /// Gives the pages that wait their ids, and their links to the matrix to be.
    fn settle(&mut self) -> Result<()> {
        let ids = self.urls.settle()?;
        let mut ids = ids.into_iter().map(|settled| settled.id);
        for page in std::mem::take(&mut self.waiting) {
            let Some(id) = ids.next() else { break };
            let links: Vec<u32> = ids.by_ref().take(page.links).collect();
            set_bit(&mut self.interest, id, page.of_interest);
            if has_bit(&self.given, id) {
                self.again.insert(id, links);
            } else {
                set_bit(&mut self.given, id, true);
                let matrix = &mut self.matrix;
                self.run.get_or_insert_with(|| matrix.changes()).add(id, &links)?;
            }
        }
        Ok(())
    }

    /// Makes what was taken count.
    ///
    /// # Errors
    /// When the disk refuses. What counted before counts still.
    pub fn commit(&mut self, extent: Extent) -> Result<Counts> {
        self.settle()?;
        let pages = Some(self.urls.len() as u32);
        let run = self.run.take().unwrap_or_else(|| self.matrix.changes());
        match extent {
            Extent::All => self.matrix.replace(run, pages)?,
            Extent::Changes => self.matrix.accept(run, pages)?,
        };
        if !self.again.is_empty() {
            let mut run = self.matrix.changes();
            for (page, links) in std::mem::take(&mut self.again) {
                run.add(page, &links)?;
            }
            self.matrix.accept(run, pages)?;
        }
        if extent == Extent::All {
            // Pages that are not there any more are of no interest.
            for (at, word) in self.interest.iter_mut().enumerate() {
                *word &= self.given.get(at).copied().unwrap_or(0);
            }
        }
        self.given.clear();
        self.write_interest()?;
        self.pending.clear()?;
        self.counts()
    }

    /// How many URLs, pages and links count.
    ///
    /// # Errors
    /// When the disk refuses, or a file is damaged.
    pub fn counts(&mut self) -> Result<Counts> {
        let urls = self.urls.len() as u64;
        Ok(match self.matrix()? {
            Some(matrix) => Counts { urls, pages_read: matrix.pages_read(), links: matrix.links() },
            None => Counts { urls, ..Counts::default() },
        })
    }

    /// All links that count, in one matrix; none if no page was ever read.
    ///
    /// # Errors
    /// When the disk refuses, or a file is damaged.
    pub fn matrix(&mut self) -> Result<Option<Matrix>> {
        Ok(self.matrix.merge()?.cloned())
    }

    /// The table of URLs.
    pub fn urls(&self) -> &UrlTable {
        &self.urls
    }

    /// The URL-id of a URL, however it is spelled; none if it is not known, or no URL.
    ///
    /// # Errors
    /// When the disk refuses, or a file is damaged.
    pub fn id(&self, url: &str) -> Result<Option<u32>> {
        let Ok(canonical) = canonical(url) else { return Ok(None) };
        Ok(self.urls.find(&canonical)?)
    }

    /// Which pages are of interest.
    pub fn interest(&self) -> Interest {
        Interest::of(self.urls.len(), |page| has_bit(&self.interest, page))
    }

    /// The last result, if there is one.
    ///
    /// # Errors
    /// When the disk refuses, or the file is damaged.
    pub fn ranks(&self) -> Result<Option<Ranks>> {
        Ranks::open(&self.dir.join("ranks"))
    }

    /// Importance and usefulness of URLs, however they are spelled; `None` for one that the last result does not have.
    ///
    /// # Errors
    /// When the disk refuses, or a file is damaged.
    pub fn ranks_of(&self, urls: &[String]) -> Result<Vec<Option<(f64, f64)>>> {
        let mut found = vec![None; urls.len()];
        let Some(mut ranks) = self.ranks()? else { return Ok(found) };
        let mut ids = Vec::with_capacity(urls.len());
        for (url, rank) in urls.iter().zip(&mut found) {
            ids.extend(self.id(url)?.map(|id| (id, rank)));
        }
        // In their order every block is read once.
        ids.sort_unstable_by_key(|(id, _)| *id);
        for (id, rank) in ids {
            *rank = ranks.get(id)?;
        }
        Ok(found)
    }

    fn write_interest(&self) -> Result<()> {
        let path = self.dir.join("interest");
        let mut bytes = INTEREST.to_vec();
        self.interest.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(crc64(&bytes).to_le_bytes());
        replace(&path, &bytes)
    }
}

/// Replaces a small file: old or new after a crash, nothing between.
fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let beside = path.with_extension("partial");
    std::fs::write(&beside, bytes).map_err(LinksError::io("write", &beside))?;
    let written = std::fs::File::open(&beside).and_then(|file| file.sync_all());
    written.map_err(LinksError::io("write", &beside))?;
    rename(&beside, path)
}

fn rename(beside: &Path, path: &Path) -> Result<()> {
    std::fs::rename(beside, path).map_err(LinksError::io("rename", beside))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(LinksError::io("sync", folder))
}

/// The folder's own key, made when it is first asked for.
fn own_key(dir: &Path) -> Result<[u8; 32]> {
    let path = dir.join("key");
    match std::fs::read(&path) {
        Ok(bytes) => {
            <[u8; 32]>::try_from(bytes).map_err(|_| LinksError::Damaged { path, what: "it has no 32 bytes" })
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let key = webbase_storage::RepositoryKey::random().map_err(LinksError::io("make", &path))?;
            replace(&path, &key.parts().0)?;
            Ok(key.parts().0)
        }
        Err(e) => Err(LinksError::io("read", &path)(e)),
    }
}

fn read_interest(path: &Path) -> Result<Vec<u64>> {
    let bytes = match std::fs::read(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(LinksError::io("read", path))?,
    };
    let damaged = |what| LinksError::Damaged { path: path.to_owned(), what };
    let (body, crc) = bytes.split_last_chunk::<8>().ok_or_else(|| damaged("it is cut short"))?;
    if crc64(body) != u64::from_le_bytes(*crc) {
        return Err(damaged("its checksum is wrong"));
    }
    let words = body.strip_prefix(&INTEREST).ok_or_else(|| damaged("it is none of version 1"))?;
    Ok(words.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

fn has_bit(words: &[u64], bit: u32) -> bool {
    words.get(bit as usize / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1)
}

fn set_bit(words: &mut Vec<u64>, bit: u32, to: bool) {
    let word = bit as usize / 64;
    if words.len() <= word {
        words.resize(word + 1, 0);
    }
    if let Some(word) = words.get_mut(word) {
        *word = *word & !(1 << (bit % 64)) | u64::from(to) << (bit % 64);
    }
}
