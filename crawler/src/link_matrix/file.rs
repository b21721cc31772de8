//! A matrix as a file. Little-endian.
//!
//! ```text
//!   OFFSET  SIZE  FIELD
//!        0     4  magic "WBLM"
//!        4     4  version 2
//!        8     4  pages
//!       12     4  zero
//!       16     8  links
//!       24     8  pages that were read
//!       32     8  where the numbers of links begin
//!       40     8  where the directory begins
//!       48     8  where the directory ends
//!       56     8  CRC-64 of all the above
//!     4096     …  tiles, row after row; in each its cells, column after column, as frames (frame.rs)
//!        …     …  numbers of links, block after block (degrees.rs)
//!        …     …  directory: where each tile begins, and the last one ends, 8 each; the same of the numbers of links; CRC-64 8
//! ```
//!
//! 1. A block has 65 536 pages, a tile 8 × 8 blocks.
//! 2. A file is written beside its place and renamed when it is durable: under its name it is whole.
//! 3. Everything read is checked: head, directory, frames and numbers of links each have a checksum.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use webbase_storage::crc64;
use webbase_storage::disk::{Disk, DiskFile};

use super::builder::Built;
use super::code::BitWriter;
use super::direct::{ALIGN, Buffer, direct, read_around};
use super::frame::{self, FRAME_LINKS_MAX, Frame};
use super::{MatrixError, Result, TILE_BITS, degrees};
use crate::importance::kernel::BLOCK;

const MAGIC: [u8; 8] = *b"WBLM\x02\0\0\0";
const HEAD_BYTES: usize = 64;
const WRITE_BYTES: usize = 1 << 20;
const READ_BYTES: usize = 1 << 19;

fn blocks_of(pages: u32) -> usize {
    (pages as usize).div_ceil(BLOCK)
}

fn tiles_of(pages: u32) -> usize {
    blocks_of(pages).div_ceil(1 << TILE_BITS)
}

/// Writes a matrix, its links in order.
pub(super) struct MatrixWriter {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    past_cache: Arc<dyn DiskFile>,
    buffer: Buffer,
    filled: usize,
    offset: u64,
    pages: u32,
    links: u64,
    pages_read: u64,
    last: Option<u64>,
    positions: Vec<u32>,
    bits: BitWriter,
    encoded: Vec<u8>,
    tiles: Vec<u64>,
    degree_blocks: Vec<u64>,
}

impl MatrixWriter {
    pub(super) fn create(disk: Arc<dyn Disk>, path: &Path, pages: u32) -> Result<Self> {
        let mut beside = path.to_path_buf().into_os_string();
        beside.push(".partial");
        let beside = PathBuf::from(beside);
        let file = disk.open(&beside, true).map_err(|e| MatrixError::io("create", &beside, e))?;
        let past_cache = direct(&file);
        Ok(Self {
            disk,
            path: path.to_path_buf(),
            file,
            past_cache,
            buffer: Buffer::new(WRITE_BYTES),
            // The head's block, written last.
            filled: ALIGN as usize,
            offset: 0,
            pages,
            links: 0,
            pages_read: 0,
            last: None,
            positions: Vec::with_capacity(FRAME_LINKS_MAX),
            bits: BitWriter::default(),
            encoded: Vec::new(),
            tiles: Vec::new(),
            degree_blocks: Vec::new(),
        })
    }

    /// The next link. One that was the last as well is the same link.
    pub(super) fn link(&mut self, key: u64) -> Result<()> {
        let Some(last) = self.last.replace(key) else {
            self.begin_tiles(key);
            self.positions.push(key as u32);
            return Ok(());
        };
        debug_assert!(last <= key, "links come in order");
        if last == key {
            return Ok(());
        }
        if last >> 32 != key >> 32 || self.positions.len() == FRAME_LINKS_MAX {
            self.end_frame(last)?;
            self.begin_tiles(key);
        }
        self.positions.push(key as u32);
        Ok(())
    }

    /// All tiles up to that of `key` begin here, if they have not begun.
    fn begin_tiles(&mut self, key: u64) {
        let tiles = tiles_of(self.pages);
        let tile = (key >> 51) as usize * tiles + (key >> 38 & 0x1fff) as usize;
        let here = self.offset + self.filled as u64;
        while self.tiles.len() <= tile {
            self.tiles.push(here);
        }
    }

    fn end_frame(&mut self, key: u64) -> Result<()> {
        let (source, target) = super::link(key);
        self.links += self.positions.len() as u64;
        let mut encoded = std::mem::take(&mut self.encoded);
        encoded.clear();
        frame::write(
            (source >> 16) as u16,
            (target >> 16) as u16,
            &self.positions,
            &mut self.bits,
            &mut encoded,
        );
        self.positions.clear();
        self.write(&encoded)?;
        self.encoded = encoded;
        Ok(())
    }

    /// The numbers of links of the next block.
    pub(super) fn degrees(&mut self, of_block: &[u16]) -> Result<()> {
        if self.degree_blocks.is_empty() {
            self.end_tiles()?;
        }
        self.degree_blocks.push(self.offset + self.filled as u64);
        self.pages_read += of_block.iter().filter(|degree| **degree != degrees::UNREAD).count() as u64;
        let mut encoded = Vec::new();
        degrees::write(of_block, &mut encoded).map_err(|e| MatrixError::io("pack", &self.path, e))?;
        self.write(&encoded)
    }

    fn end_tiles(&mut self) -> Result<()> {
        if let Some(last) = self.last.take() {
            self.end_frame(last)?;
        }
        let (all, here) = (tiles_of(self.pages).pow(2) + 1, self.offset + self.filled as u64);
        self.tiles.resize(all, here);
        Ok(())
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let rest = self.buffer.bytes_mut().get_mut(self.filled..).unwrap_or_default();
            let (now, later) = bytes.split_at(bytes.len().min(rest.len()));
            rest.iter_mut().zip(now).for_each(|(to, from)| *to = *from);
            self.filled += now.len();
            bytes = later;
            if self.filled == self.buffer.bytes().len() {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes what is in the buffer, filled up with zeros to whole blocks.
    fn flush(&mut self) -> Result<()> {
        let whole = self.filled.next_multiple_of(ALIGN as usize);
        if let Some(rest) = self.buffer.bytes_mut().get_mut(self.filled..whole) {
            rest.fill(0);
        }
        let bytes = self.buffer.bytes().get(..whole).unwrap_or_default();
        let written = self.past_cache.write_all_at(bytes, self.offset);
        written.map_err(|e| MatrixError::io("write", self.file.path(), e))?;
        self.offset += whole as u64;
        self.filled = 0;
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Built> {
        if self.degree_blocks.is_empty() {
            self.end_tiles()?;
        }
        let here = |writer: &Self| writer.offset + writer.filled as u64;
        let degrees_begin = self.tiles.last().copied().unwrap_or(ALIGN);
        let directory_begin = here(&self);
        self.degree_blocks.push(directory_begin);
        let offsets = self.tiles.iter().chain(&self.degree_blocks);
        let mut directory: Vec<u8> = offsets.flat_map(|offset| offset.to_le_bytes()).collect();
        directory.extend(crc64(&directory).to_le_bytes());
        self.write(&directory)?;
        let end = here(&self);
        self.flush()?;
        let mut head = MAGIC.to_vec();
        head.extend(self.pages.to_le_bytes());
        head.extend([0; 4]);
        for field in [self.links, self.pages_read, degrees_begin, directory_begin, end] {
            head.extend(field.to_le_bytes());
        }
        head.extend(crc64(&head).to_le_bytes());
        let file = &self.file;
        file.write_all_at(&head, 0).map_err(|e| MatrixError::io("write", file.path(), e))?;
        file.sync().map_err(|e| MatrixError::io("sync", file.path(), e))?;
        let renamed = self.disk.rename(file.path(), &self.path);
        renamed.map_err(|e| MatrixError::io("rename", file.path(), e))?;
        let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        self.disk.sync_dir(dir).map_err(|e| MatrixError::io("sync", dir, e))?;
        let cells = degrees_begin - ALIGN;
        Ok(Built {
            pages: self.pages,
            pages_read: self.pages_read,
            links: self.links,
            bytes: end,
            bits_per_link: if self.links == 0 { 0.0 } else { cells as f64 * 8.0 / self.links as f64 },
        })
    }
}

/// A matrix, open for reading.
#[derive(Clone)]
pub struct Matrix {
    file: Arc<dyn DiskFile>,
    past_cache: Arc<dyn DiskFile>,
    file_bytes: u64,
    pages: u32,
    links: u64,
    pages_read: u64,
    tiles: Arc<[u64]>,
    degree_blocks: Arc<[u64]>,
}

impl std::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Matrix({}, {} pages, {} links)", self.path().display(), self.pages, self.links)
    }
}

impl Matrix {
    /// Opens the matrix at `path`.
    ///
    /// # Errors
    /// When it is not there, is none of this version, or is damaged.
    pub fn open(disk: &dyn Disk, path: &Path) -> Result<Self> {
        let file = disk.open(path, false).map_err(|e| MatrixError::io("open", path, e))?;
        let file_bytes = file.len().map_err(|e| MatrixError::io("read", path, e))?;
        let wrong = |offset: u64, what: &str| MatrixError::corrupt(path, offset, what);
        let mut head = [0; HEAD_BYTES];
        file.read_exact_at(&mut head, 0).map_err(|e| MatrixError::io("read", path, e))?;
        let field = |at: usize| {
            head.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |f| u64::from_le_bytes(*f))
        };
        if head.first_chunk() != Some(&MAGIC) {
            return Err(wrong(0, "not a link matrix of version 2"));
        }
        if crc64(head.get(..56).unwrap_or_default()) != field(56) {
            return Err(wrong(0, "the checksum of its head is wrong"));
        }
        let (pages, begin, end) = (field(8) as u32, field(40), field(48));
        let (tiles, blocks) = (tiles_of(pages).pow(2) + 1, blocks_of(pages) + 1);
        if end > file_bytes || begin > end || end - begin != 8 * (tiles + blocks) as u64 + 8 {
            return Err(wrong(40, "its directory is not where it says"));
        }
        let directory =
            file.read_vec((end - begin) as usize, begin).map_err(|e| MatrixError::io("read", path, e))?;
        let (offsets, crc) = directory.split_last_chunk::<8>().ok_or_else(|| wrong(begin, "cut short"))?;
        if crc64(offsets) != u64::from_le_bytes(*crc) {
            return Err(wrong(begin, "the checksum of its directory is wrong"));
        }
        let offsets: Vec<u64> =
            offsets.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        if !offsets.is_sorted() || offsets.last() != Some(&begin) {
            return Err(wrong(begin, "its directory is not in order"));
        }
        let (tiles, degree_blocks) =
            offsets.split_at_checked(tiles).ok_or_else(|| wrong(begin, "cut short"))?;
        Ok(Self {
            past_cache: direct(&file),
            file,
            file_bytes,
            pages,
            links: field(16),
            pages_read: field(24),
            tiles: tiles.into(),
            degree_blocks: degree_blocks.into(),
        })
    }

    /// How many pages there are, read or not.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// How many of them were read.
    #[must_use]
    pub fn pages_read(&self) -> u64 {
        self.pages_read
    }

    /// How many links there are.
    #[must_use]
    pub fn links(&self) -> u64 {
        self.links
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    pub(crate) fn file(&self) -> (&Arc<dyn DiskFile>, u64) {
        (&self.past_cache, self.file_bytes)
    }

    pub(crate) fn blocks(&self) -> usize {
        blocks_of(self.pages)
    }

    /// Tiles on each side.
    pub(crate) fn tiles(&self) -> usize {
        tiles_of(self.pages)
    }

    /// Where the tiles `columns` of a row lie, one after the other.
    pub(crate) fn tile_row(&self, row: usize, columns: Range<usize>) -> Range<u64> {
        let at = |tile: usize| self.tiles.get(tile).copied().unwrap_or_default();
        at(row * self.tiles() + columns.start)..at(row * self.tiles() + columns.end)
    }

    /// How many links each page of a block has; 65 535 where it was not read.
    pub(crate) fn degrees(&self, block: usize) -> Result<Vec<u16>> {
        let at = |block: usize| self.degree_blocks.get(block).copied().unwrap_or_default();
        let (begin, end) = (at(block), at(block + 1));
        // 131 072 bytes don't get much longer by packing.
        let mut buffer =
            Buffer::new((end.saturating_sub(begin) as usize).min(4 * BLOCK) + 2 * ALIGN as usize);
        let range = read_around(&*self.past_cache, self.file_bytes, begin, end - begin, buffer.bytes_mut())?;
        let bytes = buffer.bytes().get(range).unwrap_or_default();
        degrees::read(bytes).map_err(|what| MatrixError::corrupt(self.path(), begin, what))
    }

    /// The pages that `page` links to, sorted; `None` if it was not read. Reads a row of tiles: for questions, not for scans.
    ///
    /// # Errors
    /// When the disk refuses, or the file is damaged.
    pub fn links_of(&self, page: u32) -> Result<Option<Vec<u32>>> {
        if page >= self.pages
            || self.degrees(page as usize / BLOCK)?.get(page as usize % BLOCK) == Some(&degrees::UNREAD)
        {
            return Ok(None);
        }
        let row = (page as usize / BLOCK) >> TILE_BITS;
        let mut frames = Frames::new(self, self.tile_row(row, 0..self.tiles()));
        let (mut found, mut frame) = (Vec::new(), Frame::default());
        while frames.next(&mut frame)? {
            let wanted = (page & 0xffff) << 16;
            if usize::from(frame.from) == page as usize / BLOCK {
                let from = frame.positions.partition_point(|position| *position < wanted);
                let own = frame
                    .positions
                    .iter()
                    .skip(from)
                    .take_while(|position| *position & 0xffff_0000 == wanted);
                found.extend(own.map(|position| u32::from(frame.to) << 16 | position & 0xffff));
            }
        }
        Ok(Some(found))
    }

    /// The pages that link to `page`, sorted. Reads a column of tiles: for questions, not for scans.
    ///
    /// # Errors
    /// When the disk refuses, or the file is damaged.
    pub fn links_to(&self, page: u32) -> Result<Vec<u32>> {
        let (mut found, mut frame) = (Vec::new(), Frame::default());
        if page >= self.pages {
            return Ok(found);
        }
        let column = (page as usize / BLOCK) >> TILE_BITS;
        for row in 0..self.tiles() {
            let mut frames = Frames::new(self, self.tile_row(row, column..column + 1));
            while frames.next(&mut frame)? {
                if usize::from(frame.to) == page as usize / BLOCK {
                    let to_page =
                        frame.positions.iter().filter(|position| *position & 0xffff == page & 0xffff);
                    found.extend(to_page.map(|position| u32::from(frame.from) << 16 | position >> 16));
                }
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// How many links a page has; none if it was not read.
    ///
    /// # Errors
    /// When the disk refuses, or the file is damaged.
    pub fn degree(&self, page: u32) -> Result<Option<u16>> {
        if page >= self.pages {
            return Ok(None);
        }
        let degrees = self.degrees(page as usize / BLOCK)?;
        Ok(degrees.get(page as usize % BLOCK).copied().filter(|degree| *degree != degrees::UNREAD))
    }

    /// Calls `each` with every page in order, and whether it was read.
    ///
    /// # Errors
    /// When the disk refuses, or the file is damaged.
    pub fn for_pages(&self, mut each: impl FnMut(u32, bool)) -> Result<()> {
        for block in 0..self.blocks() {
            let degrees = self.degrees(block)?;
            for (page, degree) in ((block * BLOCK) as u32..self.pages).zip(&degrees) {
                each(page, *degree != degrees::UNREAD);
            }
        }
        Ok(())
    }

    /// Calls `each` with every link, from and to, in the order of the file.
    ///
    /// # Errors
    /// When the disk refuses, or the file is damaged.
    pub fn for_links(&self, mut each: impl FnMut(u32, u32)) -> Result<()> {
        let mut keys = self.keys();
        while let Some(key) = keys.next()? {
            let (from, to) = super::link(key);
            each(from, to);
        }
        Ok(())
    }

    /// All links in order.
    pub(super) fn keys(&self) -> Keys<'_> {
        let all = ALIGN..self.tiles.last().copied().unwrap_or(ALIGN);
        Keys { frames: Frames::new(self, all), frame: Frame::default(), at: 0 }
    }
}

/// Frames one after the other, by the thread that wants them.
struct Frames<'a> {
    matrix: &'a Matrix,
    rest: Range<u64>,
    buffer: Buffer,
    ready: Range<usize>,
}

impl<'a> Frames<'a> {
    fn new(matrix: &'a Matrix, range: Range<u64>) -> Self {
        Self { matrix, rest: range, buffer: Buffer::new(READ_BYTES + frame::FRAME_BYTES_MAX), ready: 0..0 }
    }

    fn next(&mut self, frame: &mut Frame) -> Result<bool> {
        if self.rest.is_empty() {
            return Ok(false);
        }
        let (path, offset) = (self.matrix.path(), self.rest.start);
        for fresh in [false, true] {
            if fresh {
                let (file, len) = self.matrix.file();
                let wanted = self.rest.end - offset;
                self.ready = read_around(&**file, len, offset, wanted, self.buffer.bytes_mut())?;
            }
            let bytes = self.buffer.bytes().get(self.ready.clone()).unwrap_or_default();
            let Some(total) = frame::frame_bytes(bytes) else { continue };
            let total = total.map_err(|what| MatrixError::corrupt(path, offset, what))?;
            let Some(bytes) = bytes.get(..total) else { continue };
            frame.read(bytes).map_err(|what| MatrixError::corrupt(path, offset, what))?;
            self.ready.start += total;
            self.rest.start += total as u64;
            return Ok(true);
        }
        Err(MatrixError::corrupt(path, offset, "a frame is cut short"))
    }
}

/// The keys of a matrix, in order.
pub(super) struct Keys<'a> {
    frames: Frames<'a>,
    frame: Frame,
    at: usize,
}

impl Keys<'_> {
    pub(super) fn next(&mut self) -> Result<Option<u64>> {
        if self.at == self.frame.positions.len() {
            self.at = 0;
            if !self.frames.next(&mut self.frame)? {
                self.frame.positions.clear();
                return Ok(None);
            }
        }
        let position = self.frame.positions.get(self.at).copied().unwrap_or_default();
        self.at += 1;
        let source = u32::from(self.frame.from) << 16 | position >> 16;
        let target = u32::from(self.frame.to) << 16 | position & 0xffff;
        Ok(Some(super::key(source, target)))
    }
}
