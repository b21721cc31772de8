//! Importance and usefulness over a link matrix on disk, in a given memory.
//!
//! Vectors are files of blocks; of each only two pieces are in memory at a time. What a scan adds up stays (the *resident* group of
//! tile columns for importance, of tile rows for usefulness) while everything else is read past it, ahead, by a thread:
//!
//! ```text
//!   importance:  for each group of columns: for each row of tiles: its pages' values, the row's tiles in the group
//!   usefulness:  for each group of rows: for each column of tiles: its pages' values, the column's tiles in the group
//!   both:        for each group of rows: for each column of tiles: its pages' values and sums so far, the column's tiles
//! ```
//!
//! With a group of g tiles of T, the first two read a vector T/g times and the links once; the last keeps two vectors a group and
//! reads two and writes one as often, for one scan of the links instead of two: it pays where memory is large, as the papers
//! say. Nothing goes through the page cache where the disk has direct reading.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use webbase_storage::disk::{Disk, DiskFile};

use super::kernel::{BLOCK, Block, backward, both_ways, forward};
use super::power::Sums;
use super::usefulness::Change;
use super::{FixedPoint, Interest, Settings};
use crate::link_matrix::{BLOCK_BYTES, Buffer, Matrix, MatrixError, Reader, Request, direct};

type Result<T> = std::result::Result<T, MatrixError>;

/// Blocks on the side of a tile.
const TILE: usize = 8;
/// What a scan takes beside its resident group: chunks of frames, two pieces of a vector, packed numbers of links.
const BESIDE_BYTES: usize = 18 << 20;

/// How a scan of the links is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scan {
    /// All values from the round before.
    Power,
    /// Each group from the newest values of the others.
    GaussSeidel,
}

/// What rounds on disk came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rounds {
    /// How many.
    pub rounds: u32,
    /// What the last one changed, in the measure that stops.
    pub change: f64,
    /// Whether that was little enough.
    pub converged: bool,
    /// Bytes read and written by all of them.
    pub bytes: u64,
}

/// A vector as a file: blocks of values, the last one filled up with zeros.
struct Vector {
    file: Arc<dyn DiskFile>,
}

impl Vector {
    fn create(disk: &dyn Disk, path: &Path) -> Result<Self> {
        let file = disk.open(path, true).map_err(|e| MatrixError::io("create", path, e))?;
        Ok(Self { file: direct(&file) })
    }

    fn read(&self, block: usize, into: &mut Buffer) -> Result<()> {
        let read = self.file.read_exact_at(into.bytes_mut(), block as u64 * BLOCK_BYTES);
        read.map_err(|e| MatrixError::io("read", self.file.path(), e))
    }

    fn write(&self, block: usize, from: &Buffer) -> Result<()> {
        let written = self.file.write_all_at(from.bytes(), block as u64 * BLOCK_BYTES);
        written.map_err(|e| MatrixError::io("write", self.file.path(), e))
    }
}

/// Importance and usefulness of the pages of a matrix, E uniform. Vectors lie in files of a folder, and stay there from round to round.
pub struct OnDisk {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    matrix: Matrix,
    settings: Settings,
    budget_bytes: usize,
    /// What each link of a page passes on; of a page without links what it has.
    passing: Vector,
    next_passing: Vector,
    sums: Sums,
    useful: Vector,
    next_useful: Vector,
    interest: Interest,
    bytes: u64,
}

/// One page's numbers in a vector of what is passed on.
fn value_of(passing: f64, degree: u16) -> f64 {
    if linked(degree) { passing * f64::from(degree) } else { passing }
}

fn linked(degree: u16) -> bool {
    degree != 0 && degree != u16::MAX
}

impl OnDisk {
    /// Begins with the same importance for every page, and usefulness for those of interest, in memory of about so many bytes.
    ///
    /// # Errors
    /// When the disk refuses, the matrix is damaged, or there is too little memory for a tile of each vector.
    pub fn start(
        disk: Arc<dyn Disk>,
        dir: &Path,
        matrix: Matrix,
        interest: Interest,
        settings: Settings,
        budget_bytes: usize,
    ) -> Result<Self> {
        let vector = |name: &str| Vector::create(&*disk, &dir.join(name));
        let mut this = Self {
            passing: vector("importance-a")?,
            next_passing: vector("importance-b")?,
            useful: vector("usefulness-a")?,
            next_useful: vector("usefulness-b")?,
            disk: disk.clone(),
            dir: dir.to_path_buf(),
            matrix,
            settings,
            budget_bytes,
            sums: Sums::default(),
            interest,
            bytes: 0,
        };
        let share = 1.0 / f64::from(this.matrix.pages().max(1));
        let (mut values, mut useful) = (Buffer::for_blocks(1), Buffer::for_blocks(1));
        for block in 0..this.blocks_padded() {
            let degrees = this.degrees(block)?;
            let places = this.places(block);
            values.bytes_mut().fill(0);
            useful.bytes_mut().fill(0);
            let mut sums = Sums::default();
            if let ([values], [useful]) = (values.blocks_mut(), useful.blocks_mut()) {
                for ((page, (value, degree)), useful) in
                    (block * BLOCK..).zip(values.iter_mut().zip(&degrees)).zip(useful).take(places)
                {
                    sums.add(share, if linked(*degree) { 1.0 } else { 0.0 });
                    *value = if linked(*degree) { share / f64::from(*degree) } else { share };
                    *useful = if this.interest.has(page) { share } else { 0.0 };
                }
            }
            this.sums.merge(&sums);
            this.passing.write(block, &values)?;
            this.next_passing.write(block, &values)?;
            this.useful.write(block, &useful)?;
            this.next_useful.write(block, &useful)?;
        }
        this.bytes = 0;
        Ok(this)
    }

    /// Blocks of whole tiles: what vectors are filled up to.
    fn blocks_padded(&self) -> usize {
        self.matrix.tiles() * TILE
    }

    /// Pages of a block that there are.
    fn places(&self, block: usize) -> usize {
        (self.matrix.pages() as usize).saturating_sub(block * BLOCK).min(BLOCK)
    }

    fn degrees(&self, block: usize) -> Result<Vec<u16>> {
        if block < self.matrix.blocks() { self.matrix.degrees(block) } else { Ok(vec![u16::MAX; BLOCK]) }
    }

    /// Tiles of a resident group with so many vectors.
    fn group(&self, vectors: usize, beside: usize) -> usize {
        let tile_bytes = TILE * BLOCK_BYTES as usize * vectors;
        (self.budget_bytes.saturating_sub(BESIDE_BYTES + beside) / tile_bytes).max(1)
    }

    /// How many groups importance and usefulness alone take, and both at once.
    #[must_use]
    pub fn groups(&self) -> (usize, usize) {
        let tiles = self.matrix.tiles();
        (tiles.div_ceil(self.group(1, 0)), tiles.div_ceil(self.group(2, 2 * TILE * BLOCK_BYTES as usize)))
    }

    /// Rounds of importance until it is settled, or `rounds_max` of them.
    ///
    /// # Errors
    /// When the disk refuses, or the matrix is damaged.
    pub fn importance(&mut self, scan: Scan, rounds_max: u32) -> Result<Rounds> {
        // Where Gauss–Seidel has not settled in twice the rounds that power iteration needs, that goes on from there.
        let patience = 2.0 * self.settings.change_max().ln() / self.settings.damping.ln();
        let first = self.rounds(rounds_max.min(patience as u32), |this| this.importance_round(scan))?;
        if first.converged || first.rounds >= rounds_max {
            return Ok(first);
        }
        let norm = self.sums.linked + self.sums.dangling;
        self.rescale(1.0 / norm)?;
        let rest = self.rounds(rounds_max - first.rounds, |this| this.importance_round(Scan::Power))?;
        Ok(Rounds { rounds: first.rounds + rest.rounds, bytes: first.bytes + rest.bytes, ..rest })
    }

    /// Rounds of usefulness, over the importance there is, until it is settled, or `rounds_max` of them.
    ///
    /// # Errors
    /// As [`OnDisk::importance`].
    pub fn usefulness(&mut self, scan: Scan, rounds_max: u32) -> Result<Rounds> {
        self.rounds(rounds_max, |this| this.usefulness_round(scan))
    }

    /// Rounds of both at once until both are settled, or `rounds_max` of them.
    ///
    /// # Errors
    /// As [`OnDisk::importance`].
    pub fn both(&mut self, rounds_max: u32) -> Result<Rounds> {
        self.rounds(rounds_max, Self::both_round)
    }

    fn rounds(&mut self, rounds_max: u32, mut round: impl FnMut(&mut Self) -> Result<f64>) -> Result<Rounds> {
        let before = self.bytes;
        let mut done = Rounds { rounds: 0, change: f64::INFINITY, converged: false, bytes: 0 };
        while done.rounds < rounds_max.min(self.settings.rounds_max) && !done.converged {
            done.change = round(self)?;
            done.rounds += 1;
            done.converged = done.change < self.settings.change_max();
        }
        done.bytes = self.bytes - before;
        Ok(done)
    }

    /// The importance of every page, in order, block by block.
    ///
    /// # Errors
    /// As [`OnDisk::importance`].
    pub fn for_importance(&self, mut each: impl FnMut(usize, f64)) -> Result<()> {
        let norm = self.sums.linked + self.sums.dangling;
        let mut buffer = Buffer::for_blocks(1);
        for block in 0..self.matrix.blocks() {
            self.passing.read(block, &mut buffer)?;
            let degrees = self.degrees(block)?;
            let values = buffer.blocks().iter().flatten().zip(&degrees).take(self.places(block));
            for (page, (passing, degree)) in (block * BLOCK..).zip(values) {
                each(page, value_of(*passing, *degree) / norm);
            }
        }
        Ok(())
    }

    /// The usefulness of every page, in order, block by block.
    ///
    /// # Errors
    /// As [`OnDisk::importance`].
    pub fn for_usefulness(&self, mut each: impl FnMut(usize, f64)) -> Result<()> {
        let mut buffer = Buffer::for_blocks(1);
        for block in 0..self.matrix.blocks() {
            self.useful.read(block, &mut buffer)?;
            let values = buffer.blocks().iter().flatten().take(self.places(block));
            (block * BLOCK..).zip(values).for_each(|(page, value)| each(page, *value));
        }
        Ok(())
    }

    /// Reads and decodes what a round of importance reads, and computes nothing: what a round can be measured by.
    ///
    /// # Errors
    /// As [`OnDisk::importance`].
    pub fn read_only(&mut self) -> Result<u64> {
        let (tiles, group) = (self.matrix.tiles(), self.group(1, 0));
        let (mut links, before) = (0, self.bytes);
        for first in (0..tiles).step_by(group) {
            let columns = first..tiles.min(first + group);
            let mut reader = self.forward_reader(columns.clone(), tiles);
            for row in 0..tiles {
                let values = reader.vector()?;
                reader.frames(|frame| links += frame.positions.len() as u64)?;
                reader.give_back(values);
                self.count(1, self.matrix.tile_row(row, columns.clone()));
            }
        }
        self.bytes = before;
        Ok(links)
    }

    fn count(&mut self, tile_vectors: u64, frames: std::ops::Range<u64>) {
        self.bytes += tile_vectors * TILE as u64 * BLOCK_BYTES + (frames.end - frames.start);
    }

    fn forward_reader(&self, columns: std::ops::Range<usize>, tiles: usize) -> Reader {
        let (matrix, file) = (self.matrix.clone(), self.passing.file.clone());
        let requests = (0..tiles).flat_map(move |row| {
            let values = Request::Vector { file: file.clone(), first: row * TILE, count: TILE };
            [values, Request::Frames(matrix.tile_row(row, columns.clone()))]
        });
        Reader::start(&self.matrix, TILE, requests)
    }

    /// The factors of links and of E of a round: r is known beforehand.
    fn factors(&self, scan: Scan) -> (f64, f64) {
        let (c, norm) = (self.settings.damping, self.sums.linked + self.sums.dangling);
        match (self.settings.fixed_point, scan) {
            (FixedPoint::Renormalised, Scan::Power) => self.sums.factors(&self.settings),
            (FixedPoint::Renormalised, Scan::GaussSeidel) => {
                let lambda = c * self.sums.linked / norm + (1.0 - c);
                (c / lambda, (1.0 - c) * norm / lambda)
            }
            (FixedPoint::Spread, Scan::Power) => self.sums.factors(&self.settings),
            (FixedPoint::Spread, Scan::GaussSeidel) => (c, 1.0 - c),
        }
    }

    fn importance_round(&mut self, scan: Scan) -> Result<f64> {
        let (tiles, group) = (self.matrix.tiles(), self.group(1, 0));
        let factors = self.factors(scan);
        let mut sums = Sums::default();
        let mut got = Buffer::for_blocks(group.min(tiles.max(1)) * TILE);
        for first in (0..tiles).step_by(group) {
            let columns = first..tiles.min(first + group);
            got.bytes_mut().fill(0);
            let mut reader = self.forward_reader(columns.clone(), tiles);
            for row in 0..tiles {
                let values = reader.vector()?;
                let into = got.blocks_mut();
                reader.frames(|frame| {
                    let (from, to) =
                        (usize::from(frame.from) - row * TILE, usize::from(frame.to) - first * TILE);
                    if let (Some(values), Some(into)) = (values.blocks().get(from), into.get_mut(to)) {
                        forward(&frame.positions, values, into);
                    }
                })?;
                reader.give_back(values);
                self.count(1, self.matrix.tile_row(row, columns.clone()));
            }
            drop(reader);
            for (block, got) in (first * TILE..columns.end * TILE).zip(got.blocks()) {
                self.take(block, got, factors, scan, &mut sums)?;
            }
        }
        if scan == Scan::Power {
            std::mem::swap(&mut self.passing, &mut self.next_passing);
        }
        self.sums = sums;
        Ok(sums.change / (sums.linked + sums.dangling))
    }

    /// Multiplies importance.
    fn rescale(&mut self, by: f64) -> Result<()> {
        let mut buffer = Buffer::for_blocks(1);
        for block in 0..self.blocks_padded() {
            self.passing.read(block, &mut buffer)?;
            buffer.blocks_mut().iter_mut().flatten().for_each(|value| *value *= by);
            self.passing.write(block, &buffer)?;
        }
        self.sums = Sums { linked: self.sums.linked * by, dangling: self.sums.dangling * by, ..self.sums };
        Ok(())
    }

    /// From what a block's pages got to what they pass on next.
    fn take(
        &mut self,
        block: usize,
        got: &Block,
        (by_links, by_e): (f64, f64),
        scan: Scan,
        sums: &mut Sums,
    ) -> Result<()> {
        let share = by_e / f64::from(self.matrix.pages());
        let (degrees, places) = (self.degrees(block)?, self.places(block));
        let mut buffer = Buffer::for_blocks(1);
        self.passing.read(block, &mut buffer)?;
        let mut of_block = Sums::default();
        let values = buffer.blocks_mut().iter_mut().flatten().zip(got).zip(&degrees).take(places);
        for ((passing, got), degree) in values {
            let value = by_links * got + share;
            of_block.change += (value - value_of(*passing, *degree)).abs();
            let linked = linked(*degree);
            of_block.add(value, if linked { 1.0 } else { 0.0 });
            *passing = if linked { value / f64::from(*degree) } else { value };
        }
        sums.merge(&of_block);
        self.bytes += 2 * BLOCK_BYTES;
        let into = if scan == Scan::Power { &self.next_passing } else { &self.passing };
        into.write(block, &buffer)
    }

    fn usefulness_round(&mut self, scan: Scan) -> Result<f64> {
        let (tiles, group) = (self.matrix.tiles(), self.group(1, 0));
        let mut change = Change::default();
        let mut got = Buffer::for_blocks(group.min(tiles.max(1)) * TILE);
        for first in (0..tiles).step_by(group) {
            let rows = first..tiles.min(first + group);
            got.bytes_mut().fill(0);
            let (matrix, file, of_group) = (self.matrix.clone(), self.useful.file.clone(), rows.clone());
            let requests = (0..tiles).flat_map(move |column| {
                let values = Request::Vector { file: file.clone(), first: column * TILE, count: TILE };
                let matrix = matrix.clone();
                let frames = of_group
                    .clone()
                    .map(move |row| Request::Frames(matrix.tile_row(row, column..column + 1)));
                std::iter::once(values).chain(frames)
            });
            let mut reader = Reader::start(&self.matrix, TILE, requests);
            for column in 0..tiles {
                let values = reader.vector()?;
                let into = got.blocks_mut();
                for row in rows.clone() {
                    reader.frames(|frame| {
                        let from = usize::from(frame.from) - first * TILE;
                        let to = usize::from(frame.to) - column * TILE;
                        if let (Some(values), Some(into)) = (values.blocks().get(to), into.get_mut(from)) {
                            backward(&frame.positions, values, into);
                        }
                    })?;
                    self.count(0, self.matrix.tile_row(row, column..column + 1));
                }
                reader.give_back(values);
                self.count(1, 0..0);
            }
            drop(reader);
            for (block, got) in (first * TILE..rows.end * TILE).zip(got.blocks()) {
                self.take_back(block, got, scan, &mut change)?;
            }
        }
        if scan == Scan::Power {
            std::mem::swap(&mut self.useful, &mut self.next_useful);
        }
        Ok(change.relative())
    }

    /// From what a block's pages got back to how useful they are.
    fn take_back(&mut self, block: usize, got: &Block, scan: Scan, change: &mut Change) -> Result<()> {
        let c = self.settings.damping;
        let norm = self.sums.linked + self.sums.dangling;
        let (degrees, places) = (self.degrees(block)?, self.places(block));
        let (mut buffer, mut importance) = (Buffer::for_blocks(1), Buffer::for_blocks(1));
        self.useful.read(block, &mut buffer)?;
        self.passing.read(block, &mut importance)?;
        let known = importance.blocks().iter().flatten();
        let values = buffer.blocks_mut().iter_mut().flatten().zip(got).zip(&degrees).zip(known).take(places);
        for (page, (((useful, got), degree), passing)) in (block * BLOCK..).zip(values) {
            let own = if self.interest.has(page) { value_of(*passing, *degree) / norm } else { 0.0 };
            let back = if linked(*degree) { got / f64::from(*degree) } else { 0.0 };
            let value = c * back + (1.0 - c) * own;
            change.add(*useful, value);
            *useful = value;
        }
        self.bytes += 3 * BLOCK_BYTES;
        let into = if scan == Scan::Power { &self.next_useful } else { &self.useful };
        into.write(block, &buffer)
    }

    /// Importance and usefulness in one scan: rows resident, sums of columns go by.
    fn both_round(&mut self) -> Result<f64> {
        let tile_bytes = TILE * BLOCK_BYTES as usize;
        let (tiles, group) = (self.matrix.tiles(), self.group(2, 2 * tile_bytes));
        let so_far = Vector::create(&*self.disk, &self.dir.join("sums"))?;
        let factors = self.factors(Scan::Power);
        let (mut sums, mut change) = (Sums::default(), Change::default());
        let resident = group.min(tiles.max(1)) * TILE;
        let (mut passing, mut got_back) = (Buffer::for_blocks(resident), Buffer::for_blocks(resident));
        let mut got = Buffer::for_blocks(TILE);
        for first in (0..tiles).step_by(group) {
            let rows = first..tiles.min(first + group);
            got_back.bytes_mut().fill(0);
            let of_rows = passing.bytes_mut().get_mut(..rows.len() * tile_bytes).unwrap_or_default();
            let read = self.passing.file.read_exact_at(of_rows, (first * tile_bytes) as u64);
            read.map_err(|e| MatrixError::io("read", self.passing.file.path(), e))?;
            let (matrix, useful, of_group) = (self.matrix.clone(), self.useful.file.clone(), rows.clone());
            let requests = (0..tiles).flat_map(move |column| {
                let values = Request::Vector { file: useful.clone(), first: column * TILE, count: TILE };
                let matrix = matrix.clone();
                let frames = of_group
                    .clone()
                    .map(move |row| Request::Frames(matrix.tile_row(row, column..column + 1)));
                std::iter::once(values).chain(frames)
            });
            let mut reader = Reader::start(&self.matrix, TILE, requests);
            for column in 0..tiles {
                let useful = reader.vector()?;
                match first {
                    0 => got.bytes_mut().fill(0),
                    _ => {
                        let read = so_far.file.read_exact_at(got.bytes_mut(), (column * tile_bytes) as u64);
                        read.map_err(|e| MatrixError::io("read", so_far.file.path(), e))?;
                    }
                }
                for row in rows.clone() {
                    let (got, back) = (got.blocks_mut(), got_back.blocks_mut());
                    reader.frames(|frame| {
                        let from = usize::from(frame.from) - first * TILE;
                        let to = usize::from(frame.to) - column * TILE;
                        if let (Some(passing), Some(back), Some(useful), Some(got)) = (
                            passing.blocks().get(from),
                            back.get_mut(from),
                            useful.blocks().get(to),
                            got.get_mut(to),
                        ) {
                            both_ways(&frame.positions, (passing, back), (useful, got));
                        }
                    })?;
                    self.count(0, self.matrix.tile_row(row, column..column + 1));
                }
                reader.give_back(useful);
                self.count(3, 0..0);
                if rows.end == tiles {
                    for (block, got) in (column * TILE..).zip(got.blocks()) {
                        self.take(block, got, factors, Scan::Power, &mut sums)?;
                    }
                } else {
                    let written = so_far.file.write_all_at(got.bytes(), (column * tile_bytes) as u64);
                    written.map_err(|e| MatrixError::io("write", so_far.file.path(), e))?;
                }
            }
            drop(reader);
            for (block, got) in (first * TILE..rows.end * TILE).zip(got_back.blocks()) {
                self.take_back(block, got, Scan::Power, &mut change)?;
            }
        }
        std::mem::swap(&mut self.passing, &mut self.next_passing);
        std::mem::swap(&mut self.useful, &mut self.next_useful);
        self.sums = sums;
        Ok((sums.change / (sums.linked + sums.dangling)).max(change.relative()))
    }
}
