//! Importance and usefulness over a link matrix on disk, in a given memory.
//!
//! Vectors are files of blocks; of each only a piece or two are in memory at a time. What a scan adds up stays (the *resident* group of
//! tile columns for importance, of tile rows for usefulness) while everything else is read past it, ahead, by other threads; two decode and
//! add up (`halves.rs`):
//!
//! ```text
//!   importance:  for each group of columns: for each strip of rows: its pages' values; for each column of the group: the strip's tiles
//!   usefulness:  for each group of rows: for each strip of columns: its pages' values; for each row of the group: the strip's tiles
//!   both:        for each group of rows: for each column of tiles: its pages' values and sums so far, the column's tiles
//! ```
//!
//! With a group of g tiles of T, the first two read a vector T/g times and the links once; where that is several times, most rounds read
//! only what has changed of it (`passed.rs`). The last keeps two vectors a group and
//! reads two and writes one as often, for one scan of the links instead of two: it pays where memory is large, as the papers
//! say. Nothing goes through the page cache where the disk has direct reading.

mod both;
mod direct;
mod halves;
mod inverse;
mod lift;
mod passed;
mod strip;
mod vector;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use webbase_storage::disk::Disk;

use self::lift::Lift;
pub use self::lift::Lifting;
use self::passed::Passed;
use self::vector::Vector;
use super::kernel::BLOCK;
use super::power::Sums;
use super::{Interest, Settings};
use crate::link_matrix::{BLOCK_BYTES, Buffer, Matrix, MatrixError};

type Result<T> = std::result::Result<T, MatrixError>;

/// Blocks on the side of a tile.
const TILE: usize = 8;
/// A tile's values of 64 bits.
const TILE_BYTES: usize = TILE * BLOCK_BYTES as usize;
/// What a scan takes beside its resident group and its pieces of a vector: chunks of frames (3 MiB), links of two frames for each of two threads
/// (1), a frame that is not whole for each (1); and when it has ended what [`TAKERS`] need.
const BESIDE_BYTES: usize = 6 << 20;

/// Threads that turn what blocks got into new values, 1 to 1.5 MiB each, where the pieces and chunks of the scan were: more than add up,
/// because they wait for the disk.
const TAKERS: usize = 3;

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

/// Importance and usefulness of the pages of a matrix, E uniform but for pages that are lifted. Vectors lie in files of a folder, and stay there from round to round.
pub struct OnDisk {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    matrix: Matrix,
    settings: Settings,
    budget_bytes: usize,
    /// What each link of a page passes on; of a page without links what it has.
    passing: Passed,
    sums: Sums,
    /// The factors of links and of E that importance was made with.
    factors: (f64, f64),
    useful: Passed,
    /// A byte a page, 1 where it is of interest.
    interest: Vector,
    lift: Lift,
    takers: rayon::ThreadPool,
    /// The resident group's sums, between rounds of one vector: memory that is given back and asked for again may be there twice.
    got: Option<Buffer>,
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
        Self::start_with(disk, dir, matrix, interest, (settings, budget_bytes), None::<fn(u32) -> _>)
    }

    /// Begins with the importance and the usefulness that `last` gives of each page, in order, as far as it knows them; importance
    /// need not add up to 1.
    ///
    /// # Errors
    /// As [`OnDisk::start`], or as `last` says.
    pub fn start_from(
        disk: Arc<dyn Disk>,
        dir: &Path,
        matrix: Matrix,
        interest: Interest,
        settings: Settings,
        budget_bytes: usize,
        last: impl FnMut(u32) -> Result<Option<(f64, f64)>>,
    ) -> Result<Self> {
        Self::start_with(disk, dir, matrix, interest, (settings, budget_bytes), Some(last))
    }

    fn start_with(
        disk: Arc<dyn Disk>,
        dir: &Path,
        matrix: Matrix,
        interest: Interest,
        (settings, budget_bytes): (Settings, usize),
        mut last: Option<impl FnMut(u32) -> Result<Option<(f64, f64)>>>,
    ) -> Result<Self> {
        let takers = rayon::ThreadPoolBuilder::new().num_threads(TAKERS).build();
        let mut this = Self {
            passing: Passed::create(&*disk, dir, "importance")?,
            useful: Passed::create(&*disk, dir, "usefulness")?,
            disk: disk.clone(),
            dir: dir.to_path_buf(),
            matrix,
            settings,
            budget_bytes,
            sums: Sums::default(),
            factors: (1.0, 0.0),
            interest: Vector::create(&*disk, &dir.join("interest"), 1)?,
            lift: Lift::default(),
            takers: takers
                .map_err(|e| MatrixError::io("start threads for", dir, std::io::Error::other(e)))?,
            got: None,
            bytes: 0,
        };
        let share = 1.0 / f64::from(this.matrix.pages().max(1));
        let (mut values, mut useful) = (Buffer::for_blocks::<f64>(1), Buffer::for_blocks::<f64>(1));
        let mut of_interest = Buffer::for_blocks::<u8>(1);
        let by_changes = this.by_changes();
        for block in 0..this.blocks_padded() {
            let degrees = this.degrees(block)?;
            let places = this.places(block);
            values.bytes_mut().fill(0);
            useful.bytes_mut().fill(0);
            let mut sums = Sums::default();
            if let ([values], [useful]) = (values.blocks_mut::<f64>(), useful.blocks_mut::<f64>()) {
                for ((page, (value, degree)), useful) in
                    (block * BLOCK..).zip(values.iter_mut().zip(&degrees)).zip(useful).take(places)
                {
                    let of_interest = if interest.has(page) { share } else { 0.0 };
                    let known = last.as_mut().map_or(Ok(None), |last| last(page as u32))?;
                    let (known, known_useful) = known.unwrap_or((share, of_interest));
                    sums.add(known, if linked(*degree) { 1.0 } else { 0.0 });
                    *value = if linked(*degree) { known / f64::from(*degree) } else { known };
                    *useful = known_useful;
                }
            }
            let of_block = of_interest.bytes_mut().iter_mut().zip(block * BLOCK..);
            of_block.for_each(|(of_interest, page)| *of_interest = u8::from(interest.has(page)));
            this.interest.write(block, &of_interest)?;
            this.sums.merge(&sums);
            this.passing.start(block, &values, by_changes, last.is_none())?;
            this.useful.start(block, &useful, by_changes, last.is_none())?;
        }
        let norm = this.sums.linked + this.sums.dangling;
        if norm > 0.0 && (norm - 1.0).abs() > 1e-9 {
            this.rescale(1.0 / norm)?;
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

    /// Tiles of a group with so many vectors resident, and so many pieces of tiles beside them.
    fn fitting(&self, vectors: usize, pieces: usize) -> usize {
        let beside = BESIDE_BYTES + pieces * TILE_BYTES;
        (self.budget_bytes.saturating_sub(beside) / (vectors * TILE_BYTES)).max(1)
    }

    /// Tiles of a group for one vector: all of them beside two pieces, or as many as fit beside one. Then most rounds read changes,
    /// of which four pieces are no larger than that.
    fn group(&self) -> usize {
        if self.fitting(1, 2) >= self.matrix.tiles() { self.fitting(1, 2) } else { self.fitting(1, 1) }
    }

    /// Memory for the sums of a group, to be put back.
    fn take_got(&mut self) -> Buffer {
        let tiles = self.group().min(self.matrix.tiles().max(1));
        self.got.take().unwrap_or_else(|| Buffer::for_blocks::<f64>(tiles * TILE))
    }

    /// Tiles of a group for both vectors; pieces of two others go by, and sums of one.
    fn group_of_both(&self) -> usize {
        self.fitting(2, 4)
    }

    /// How many groups importance and usefulness alone take, and both at once.
    #[must_use]
    pub fn groups(&self) -> (usize, usize) {
        let tiles = self.matrix.tiles();
        (tiles.div_ceil(self.group()), tiles.div_ceil(self.group_of_both()))
    }

    /// Whether rounds pass on what changes, after the first.
    fn by_changes(&self) -> bool {
        self.groups().0 > 1
    }

    /// Rounds of importance until it is settled, or `rounds_max` of them.
    ///
    /// # Errors
    /// When the disk refuses, or the matrix is damaged.
    pub fn importance(&mut self, scan: Scan, rounds_max: u32) -> Result<Rounds> {
        // Where Gauss–Seidel has not settled in twice the rounds that power iteration needs, that goes on from there.
        let patience = 2.0 * self.settings.change_max().ln() / self.settings.damping.ln();
        let first = self.importance_rounds(scan, rounds_max.min(patience as u32))?;
        if first.converged || first.rounds >= rounds_max {
            return Ok(first);
        }
        let norm = self.sums.linked + self.sums.dangling;
        self.rescale(1.0 / norm)?;
        let rest = self.importance_rounds(Scan::Power, rounds_max - first.rounds)?;
        Ok(Rounds { rounds: first.rounds + rest.rounds, bytes: first.bytes + rest.bytes, ..rest })
    }

    fn importance_rounds(&mut self, scan: Scan, rounds_max: u32) -> Result<Rounds> {
        self.passing.begin(self.by_changes(), scan);
        let done = self.rounds(rounds_max, |this| this.importance_round(scan))?;
        self.passing.end();
        Ok(done)
    }

    /// Rounds of usefulness, over the importance there is, until it is settled, or `rounds_max` of them.
    ///
    /// # Errors
    /// As [`OnDisk::importance`].
    pub fn usefulness(&mut self, scan: Scan, rounds_max: u32) -> Result<Rounds> {
        self.useful.begin(self.by_changes(), scan);
        let done = self.rounds(rounds_max, |this| this.usefulness_round(scan))?;
        self.useful.end();
        Ok(done)
    }

    /// Rounds of both at once until both are settled, or `rounds_max` of them.
    ///
    /// # Errors
    /// As [`OnDisk::importance`].
    pub fn both(&mut self, rounds_max: u32) -> Result<Rounds> {
        self.passing.begin(false, Scan::Power);
        self.useful.begin(false, Scan::Power);
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
        let mut buffer = Buffer::for_blocks::<f64>(1);
        for block in 0..self.matrix.blocks() {
            self.passing.read_block(block, &mut buffer)?;
            let degrees = self.degrees(block)?;
            let values = buffer.blocks::<f64>().iter().flatten().zip(&degrees).take(self.places(block));
            for (page, (passing, degree)) in (block * BLOCK..).zip(values) {
                each(page, value_of(*passing, *degree) / norm);
            }
        }
        Ok(())
    }

    /// The importance and the usefulness of every page, in order, block by block.
    ///
    /// # Errors
    /// As [`OnDisk::importance`].
    pub fn for_both(&self, mut each: impl FnMut(f64, f64)) -> Result<()> {
        let norm = self.sums.linked + self.sums.dangling;
        let (mut passing, mut useful) = (Buffer::for_blocks::<f64>(1), Buffer::for_blocks::<f64>(1));
        for block in 0..self.matrix.blocks() {
            self.passing.read_block(block, &mut passing)?;
            self.useful.read_block(block, &mut useful)?;
            let degrees = self.degrees(block)?;
            let values = passing.blocks::<f64>().iter().flatten().zip(&degrees).take(self.places(block));
            for ((passing, degree), useful) in values.zip(useful.blocks::<f64>().iter().flatten()) {
                each(value_of(*passing, *degree) / norm, *useful);
            }
        }
        Ok(())
    }

    /// The usefulness of every page, in order, block by block.
    ///
    /// # Errors
    /// As [`OnDisk::importance`].
    pub fn for_usefulness(&self, mut each: impl FnMut(usize, f64)) -> Result<()> {
        let mut buffer = Buffer::for_blocks::<f64>(1);
        for block in 0..self.matrix.blocks() {
            self.useful.read_block(block, &mut buffer)?;
            let values = buffer.blocks::<f64>().iter().flatten().take(self.places(block));
            (block * BLOCK..).zip(values).for_each(|(page, value)| each(page, *value));
        }
        Ok(())
    }

    fn count(&mut self, of_vectors: usize, frames: std::ops::Range<u64>) {
        self.bytes += of_vectors as u64 + (frames.end - frames.start);
    }
}
