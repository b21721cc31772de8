//! A repository's link matrix: a base, and runs of pages that changed since, each a matrix of its own.
//!
//! ```text
//!   matrix-N   a matrix (file.rs)
//!   list       magic "WBLL", version 1 4, how many 4, their numbers, oldest first, 8 each, CRC-64 of all the above 8
//! ```
//!
//! 1. A matrix counts when the list names it, and the list is replaced by one renaming: after a crash it is the one before or
//!    after.
//! 2. Of a page in several matrices the newest holds. Runs are merged into the base when there are more than [`RUNS_MAX`], or
//!    when somebody wants one matrix to scan.
//! 3. Files that the list does not name were left by something that ended early, and are removed when the folder is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use webbase_storage::crc64;
use webbase_storage::disk::Disk;

use super::builder::{Built, MatrixBuilder, merge};
use super::file::Matrix;
use super::{MatrixError, Result, sorter};

const MAGIC: [u8; 8] = *b"WBLL\x01\0\0\0";
/// Runs of changes beside the base.
const RUNS_MAX: usize = 4;

/// The links of a repository, on disk. One process has it open at a time.
pub struct LinkMatrix {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    numbers: Vec<u64>,
    matrices: Vec<Matrix>,
    next: u64,
    budget_bytes: usize,
}

impl LinkMatrix {
    /// Opens the folder, made if it is not there. Building and merging take about `budget_bytes` of memory.
    ///
    /// # Errors
    /// When the disk refuses, or a file that counts is missing or damaged.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, budget_bytes: usize) -> Result<Self> {
        disk.create_dir(dir).map_err(|e| MatrixError::io("create", dir, e))?;
        let names = disk.list(dir).map_err(|e| MatrixError::io("list", dir, e))?;
        let list = dir.join("list");
        let numbers = match names.iter().any(|name| name == "list") {
            true => read_list(&*disk, &list)?,
            false => Vec::new(),
        };
        let mut next = numbers.iter().max().map_or(1, |last| last + 1);
        for name in names {
            let number = name.strip_prefix("matrix-").map(|number| number.parse::<u64>().ok());
            let counts = matches!(number, Some(Some(number)) if numbers.contains(&number));
            let ours = number.is_some() || name.starts_with(sorter::PREFIX) || name == "list.partial";
            if ours && !counts {
                let path = dir.join(&name);
                disk.remove(&path).map_err(|e| MatrixError::io("remove", &path, e))?;
            }
            next = next.max(number.flatten().map_or(0, |number| number + 1));
        }
        let open = |number: &u64| Matrix::open(&*disk, &dir.join(format!("matrix-{number}")));
        let matrices = numbers.iter().map(open).collect::<Result<_>>()?;
        Ok(Self { disk: disk.clone(), dir: dir.to_path_buf(), numbers, matrices, next, budget_bytes })
    }

    /// Takes pages, read for the first time or again; they count when [`LinkMatrix::accept`] has them.
    pub fn changes(&mut self) -> MatrixBuilder {
        let path = self.path(self.next);
        MatrixBuilder::new(self.disk.clone(), &path, self.budget_bytes)
    }

    /// Makes the pages of `changes` count, of `pages` pages altogether (or as many as are named).
    ///
    /// # Errors
    /// When the disk refuses. What counted before counts still.
    pub fn accept(&mut self, changes: MatrixBuilder, pages: Option<u32>) -> Result<Built> {
        let built = changes.finish(pages)?;
        let number = self.next;
        self.next += 1;
        let matrix = Matrix::open(&*self.disk, &self.path(number))?;
        let mut numbers = self.numbers.clone();
        numbers.push(number);
        self.write_list(&numbers)?;
        self.numbers = numbers;
        self.matrices.push(matrix);
        if self.matrices.len() > RUNS_MAX + 1 {
            self.merge()?;
        }
        Ok(built)
    }

    /// Makes the pages of `all` count in place of everything before, of `pages` pages altogether (or as many as are named).
    ///
    /// # Errors
    /// When the disk refuses. What counted before counts still.
    pub fn replace(&mut self, all: MatrixBuilder, pages: Option<u32>) -> Result<Built> {
        let built = all.finish(pages)?;
        let number = self.next;
        self.next += 1;
        let matrix = Matrix::open(&*self.disk, &self.path(number))?;
        self.hold_only(number, matrix)?;
        Ok(built)
    }

    /// One matrix is all that counts; the others are removed.
    fn hold_only(&mut self, number: u64, matrix: Matrix) -> Result<()> {
        self.write_list(&[number])?;
        let old = std::mem::replace(&mut self.numbers, vec![number]);
        self.matrices = vec![matrix];
        for number in old {
            // What stays is removed when the folder is opened.
            let _ = self.disk.remove(&self.path(number));
        }
        Ok(())
    }

    /// Everything in one matrix.
    ///
    /// # Errors
    /// When the disk refuses, or a file is damaged.
    pub fn merge(&mut self) -> Result<Option<&Matrix>> {
        if self.matrices.len() > 1 {
            let (number, path) = (self.next, self.path(self.next));
            self.next += 1;
            merge(self.disk.clone(), &path, &self.matrices)?;
            let matrix = Matrix::open(&*self.disk, &path)?;
            self.hold_only(number, matrix)?;
        }
        Ok(self.matrices.first())
    }

    /// The pages that `page` links to; `None` if it was never read.
    ///
    /// # Errors
    /// When the disk refuses, or a file is damaged.
    pub fn links_of(&self, page: u32) -> Result<Option<Vec<u32>>> {
        for matrix in self.matrices.iter().rev() {
            if let Some(links) = matrix.links_of(page)? {
                return Ok(Some(links));
            }
        }
        Ok(None)
    }

    /// How many pages there are, read or not.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.matrices.iter().map(Matrix::pages).max().unwrap_or(0)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("matrix-{number}"))
    }

    fn write_list(&self, numbers: &[u64]) -> Result<()> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((numbers.len() as u32).to_le_bytes());
        numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes.extend(crc64(&bytes).to_le_bytes());
        let (path, beside) = (self.dir.join("list"), self.dir.join("list.partial"));
        let failed = |action: &'static str| {
            let beside = beside.clone();
            move |e| MatrixError::io(action, &beside, e)
        };
        let file = self.disk.open(&beside, true).map_err(failed("create"))?;
        file.write_all_at(&bytes, 0).map_err(failed("write"))?;
        file.sync().map_err(failed("sync"))?;
        self.disk.rename(&beside, &path).map_err(failed("rename"))?;
        self.disk.sync_dir(&self.dir).map_err(failed("sync"))
    }
}

fn read_list(disk: &dyn Disk, path: &Path) -> Result<Vec<u64>> {
    let io = |e| MatrixError::io("read", path, e);
    let file = disk.open(path, false).map_err(io)?;
    let len = file.len().map_err(io)?.min(1 << 16);
    let bytes = file.read_vec(len as usize, 0).map_err(io)?;
    let wrong = |what: &str| MatrixError::corrupt(path, 0, what);
    let (body, crc) = bytes.split_last_chunk::<8>().ok_or_else(|| wrong("cut short"))?;
    if crc64(body) != u64::from_le_bytes(*crc) {
        return Err(wrong("its checksum is wrong"));
    }
    let body = body.strip_prefix(&MAGIC).ok_or_else(|| wrong("not a list of link matrices of version 1"))?;
    let (count, numbers) = body.split_first_chunk::<4>().ok_or_else(|| wrong("cut short"))?;
    if numbers.len() != 8 * u32::from_le_bytes(*count) as usize {
        return Err(wrong("its length is not what it says"));
    }
    Ok(numbers.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number)).collect())
}
