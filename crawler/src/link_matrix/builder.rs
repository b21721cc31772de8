//! From a stream of pages with their links to a matrix, in a given memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use webbase_storage::disk::Disk;

use super::degrees::UNREAD;
use super::file::{Matrix, MatrixWriter};
use super::sorter::Sorter;
use super::{MatrixError, Result, key};
use crate::importance::kernel::BLOCK;
use crate::importance::tidy;

/// Takes pages in any order, each once.
pub struct MatrixBuilder {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    links: Sorter,
    degrees: Sorter,
    given: Vec<u64>,
    highest: Option<u32>,
    scratch: Vec<u32>,
}

/// What was built.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Built {
    /// Pages, read or not.
    pub pages: u32,
    /// Pages that were read.
    pub pages_read: u64,
    /// Links.
    pub links: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Bits that the cells take, of each link.
    pub bits_per_link: f64,
}

impl MatrixBuilder {
    /// A matrix to be at `path`, sorted in about so much memory; runs lie beside it meanwhile.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, path: &Path, budget_bytes: usize) -> Self {
        let dir = path.parent().unwrap_or(Path::new(""));
        Self {
            path: path.to_path_buf(),
            links: Sorter::new(disk.clone(), dir, "links", budget_bytes / 8 * 7),
            degrees: Sorter::new(disk.clone(), dir, "degrees", budget_bytes / 8),
            disk,
            given: Vec::new(),
            highest: None,
            scratch: Vec::new(),
        }
    }

    /// A page and the pages it links to, in its order: repeated ones count once, and the first 65 534 count.
    ///
    /// # Errors
    /// When the page was given before, or the disk refuses.
    pub fn add(&mut self, page: u32, links: &[u32]) -> Result<()> {
        let word = page as usize / 64;
        if self.given.len() <= word {
            self.given.resize(word + 1, 0);
        }
        if let Some(given) = self.given.get_mut(word) {
            if *given >> (page % 64) & 1 == 1 {
                return Err(MatrixError::Twice(page));
            }
            *given |= 1 << (page % 64);
        }
        self.scratch.clear();
        self.scratch.extend_from_slice(links);
        let count = tidy(&mut self.scratch);
        self.scratch.truncate(count);
        self.highest = self.highest.max(Some(page)).max(self.scratch.last().copied());
        for target in &self.scratch {
            self.links.push(key(page, *target))?;
        }
        self.degrees.push(u64::from(page) << 16 | count as u64)
    }

    /// The matrix of `pages` pages (or of as many as were named), whole and durable at its path, or not there.
    ///
    /// # Errors
    /// When a page beyond the last was named, or the disk refuses.
    pub fn finish(self, pages: Option<u32>) -> Result<Built> {
        let needed = self.highest.map_or(0, |page| page.saturating_add(1));
        let pages = pages.unwrap_or(needed);
        if let Some(page) = self.highest.filter(|page| *page >= pages) {
            return Err(MatrixError::Page { page, pages });
        }
        let mut writer = MatrixWriter::create(self.disk, &self.path, pages)?;
        let mut links = self.links.finish()?;
        while let Some(key) = links.next()? {
            writer.link(key)?;
        }
        drop(links);
        let mut degrees = self.degrees.finish()?;
        let mut next = degrees.next()?;
        for block in 0..u64::from(pages).div_ceil(BLOCK as u64) {
            let mut of_block = vec![UNREAD; BLOCK];
            while let Some(entry) = next.filter(|entry| entry >> 32 == block) {
                if let Some(degree) = of_block.get_mut((entry >> 16) as usize % BLOCK) {
                    *degree = entry as u16;
                }
                next = degrees.next()?;
            }
            writer.degrees(&of_block)?;
        }
        writer.finish()
    }
}

/// The matrix of a base and runs of changes, oldest first: of a page in several, the newest holds.
pub(super) fn merge(disk: Arc<dyn Disk>, path: &Path, matrices: &[Matrix]) -> Result<Built> {
    let pages = matrices.iter().map(Matrix::pages).max().unwrap_or(0);
    let mut writer = MatrixWriter::create(disk, path, pages)?;
    // Of each matrix the pages that newer ones have.
    let mut superseded: Vec<Vec<u64>> = Vec::new();
    let mut newer = vec![0u64; pages.div_ceil(64) as usize];
    for matrix in matrices.iter().rev() {
        superseded.push(newer.clone());
        for block in 0..matrix.blocks() {
            for (degree, page) in matrix.degrees(block)?.iter().zip(block * BLOCK..) {
                if let Some(word) = newer.get_mut(page / 64).filter(|_| *degree != UNREAD) {
                    *word |= 1 << (page % 64);
                }
            }
        }
    }
    superseded.reverse();
    let mut sources = Vec::new();
    for (matrix, superseded) in matrices.iter().zip(&superseded) {
        let mut keys = matrix.keys();
        let first = next_kept(&mut keys, superseded)?;
        sources.push((keys, superseded, first));
    }
    loop {
        let least = sources.iter_mut().filter(|source| source.2.is_some()).min_by_key(|source| source.2);
        let Some((keys, superseded, next)) = least else { break };
        if let Some(key) = *next {
            writer.link(key)?;
        }
        *next = next_kept(keys, superseded)?;
    }
    drop(sources);
    for block in 0..pages.div_ceil(BLOCK as u32) as usize {
        let mut degrees = vec![UNREAD; BLOCK];
        for matrix in matrices.iter().filter(|matrix| block < matrix.blocks()) {
            for (degree, newer) in degrees.iter_mut().zip(matrix.degrees(block)?) {
                if newer != UNREAD {
                    *degree = newer;
                }
            }
        }
        writer.degrees(&degrees)?;
    }
    writer.finish()
}

fn next_kept(keys: &mut super::file::Keys<'_>, superseded: &[u64]) -> Result<Option<u64>> {
    while let Some(key) = keys.next()? {
        let (source, _) = super::link(key);
        let gone = superseded.get(source as usize / 64).is_some_and(|word| word >> (source % 64) & 1 == 1);
        if !gone {
            return Ok(Some(key));
        }
    }
    Ok(None)
}
