//! What pages pass on, as scans read it: all of it, or what has changed of it.
//!
//! Every group reads what the pages of all others pass on, so that with several groups the bytes of that decide how long a round takes. But
//! a sum needs them all only once: M·p = M·p' + M·(p − p'), and M·p' can be told from the value that it made. So rounds pass on what has
//! changed, in one byte ([`Rough`], each block to the scale of its largest change). What rounding leaves of a change is owed, and goes
//! with the next. At the start nobody has been told anything, and the first round passes on changes like the others (*anew*); where rounds
//! go on from a vector that others know otherwise, it passes on all, 8 bytes a page.
//!
//! ```text
//!   told      what other pages have been told, all changes together           8 bytes a page
//!   changes   the last of them, to an eighth of itself                        1
//!   owed      what a page passes on beyond what it has told                   4
//! ```
//!
//! Nobody is told less than nothing: rounding down takes the next smaller change then. So no sum is less than nothing but by a rounding of its own, and
//! cutting those off, which M·p' would not know of, takes away no more than that.
//!
//! The difference between what a page should pass on and what it has told is also what stops the rounds: that bounds the distance to
//! the fixed point, whatever is owed. What is owed is itself rounded, by 2⁻²⁸ of a change at most, and with it M·p', so that this adds up: to
//! 2⁻²⁸/(1 − c)² of the change of the last round that passed on all, Δ. Once a round changes less than 10⁻⁵·Δ the next one passes on all
//! again; until then a round's change allows for a distance of 10⁻⁵·Δ/(1 − c), and with c = 0.85 what adds up is 1/400 of that.
//!
//! ```text
//!   bytes a page and round, k groups     read                    written
//!   one group                            8, told 8               told 8
//!   several, all                         8k, told 8              told 8, changes 1, owed 4
//!   several, anew                        k, told 8               told 8, changes 1, owed 4
//!   several, changes                     k, told 8, owed 4       told 8, changes 1, owed 4
//! ```

use std::path::Path;

use parking_lot::RwLock;
use webbase_storage::disk::Disk;

use super::super::kernel::{Block, RoughBlock};
use super::super::rough::{Rough, Scale};
use super::strip::Strip;
use super::vector::Vector;
use super::{Result, Scan, TILE};
use crate::link_matrix::{Buffer, Request};

/// All is passed on again when a round changes this part of what the last such one did.
const AGAIN: f64 = 1e-5;

/// Tiles whose changes are in memory while the sums of a tile stay in the cache.
const STRIP: usize = 3;
/// And so many more, to be read ahead.
const AHEAD: usize = 1;

/// What a round reads of the pages whose links it goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    All,
    /// Changes that are all there is: what pages get of them is all that they get.
    Anew,
    Changes,
}

/// The values of a block, of what a round reads.
pub(super) enum Read<'a> {
    All(&'a Block),
    Changes(RoughBlock<'a>),
}

/// The last change of every page, each block's to a scale of its own.
struct Changes {
    vector: Vector,
    scales: RwLock<Vec<Scale>>,
}

impl Changes {
    fn new(vector: Vector) -> Self {
        Self { vector, scales: RwLock::default() }
    }

    fn write(&self, block: usize, changes: &Buffer, scale: Scale) -> Result<()> {
        self.vector.write(block, changes)?;
        let mut scales = self.scales.write();
        if scales.len() <= block {
            scales.resize(block + 1, Scale::default());
        }
        scales.iter_mut().skip(block).take(1).for_each(|of_block| *of_block = scale);
        Ok(())
    }

    fn scale(&self, block: usize) -> Option<Scale> {
        self.scales.read().get(block).copied()
    }
}

/// What all pages pass on in one direction.
pub(super) struct Passed {
    told: Vector,
    next_told: Vector,
    changes: Changes,
    next_changes: Changes,
    owed: Vector,
    /// Whether changes are kept: they pay with several groups.
    by_changes: bool,
    reads: Reads,
    /// Whether something is owed beside what is told: the last round kept changes, or rounds have not begun.
    owes: bool,
    /// Whether the changes are all that anybody was told.
    is_anew: bool,
    /// What the last round changed that passed on all, or anew.
    change_of_all: f64,
}

impl Passed {
    pub(super) fn create(disk: &dyn Disk, dir: &Path, name: &str) -> Result<Self> {
        let vector =
            |part: &str, value_bytes| Vector::create(disk, &dir.join(format!("{name}-{part}")), value_bytes);
        Ok(Self {
            told: vector("a", size_of::<f64>())?,
            next_told: vector("b", size_of::<f64>())?,
            changes: Changes::new(vector("changes-a", size_of::<Rough>())?),
            next_changes: Changes::new(vector("changes-b", size_of::<Rough>())?),
            owed: vector("owed", size_of::<f32>())?,
            by_changes: false,
            reads: Reads::All,
            owes: false,
            is_anew: false,
            change_of_all: 0.0,
        })
    }

    /// The first values of a block. Files have their whole length from now on. With `is_anew` they are told as a change, an eighth of
    /// which may be owed for a round: good for a beginning that is a guess, not for one that is near the end.
    pub(super) fn start(
        &mut self,
        block: usize,
        values: &Buffer,
        by_changes: bool,
        is_anew: bool,
    ) -> Result<()> {
        let mut turn = Turn::empty(true);
        if by_changes {
            self.next_changes.write(block, &turn.changes, Scale::default())?;
        }
        (self.owes, self.is_anew) = (by_changes && is_anew, by_changes && is_anew);
        let mut scale = Scale::default();
        match values.blocks::<f64>() {
            [values] if self.is_anew => scale = turn.end(values),
            _ => turn.told.bytes_mut().copy_from_slice(values.bytes()),
        }
        self.told.write(block, &turn.told)?;
        self.next_told.write(block, &turn.told)?;
        if by_changes {
            self.changes.write(block, &turn.changes, scale)?;
            self.owed.write(block, &turn.owed)?;
        }
        Ok(())
    }

    /// Rounds begin: the first one passes on all, unless the changes are all there is; the others what changes, if that is wanted.
    pub(super) fn begin(&mut self, by_changes: bool, scan: Scan) {
        // Whose turn is later in a round must hear of those before both what they have told and how that changed.
        let is_anew = by_changes && self.is_anew && scan == Scan::Power;
        (self.by_changes, self.reads) = (by_changes, if is_anew { Reads::Anew } else { Reads::All });
    }

    /// As in the rounds after the first.
    pub(super) fn begin_later(&mut self, by_changes: bool) {
        self.begin(by_changes, Scan::Power);
        if by_changes {
            self.reads = Reads::Changes;
        }
    }

    /// What the round reads that is next, or going on.
    pub(super) fn reads(&self) -> Reads {
        self.reads
    }

    /// A round has ended that changed so much.
    pub(super) fn end_round(&mut self, scan: Scan, change: f64) {
        if scan == Scan::Power {
            std::mem::swap(&mut self.changes, &mut self.next_changes);
            if self.reads == Reads::All {
                std::mem::swap(&mut self.told, &mut self.next_told);
            }
        }
        if self.reads != Reads::Changes {
            self.change_of_all = change;
        }
        (self.owes, self.is_anew) = (self.by_changes, false);
        let worn_out = self.reads == Reads::Changes && change < AGAIN * self.change_of_all;
        self.reads = if self.by_changes && !worn_out { Reads::Changes } else { Reads::All };
    }

    /// Rounds have ended.
    pub(super) fn end(&mut self) {
        self.begin(false, Scan::Power);
    }

    /// What the pages of a block pass on, between solving and solving.
    pub(super) fn read_block(&self, block: usize, into: &mut Buffer) -> Result<()> {
        self.told.read(block, into)?;
        if self.owes {
            let mut owed = Buffer::for_blocks::<f32>(1);
            self.owed.read(block, &mut owed)?;
            let owed = owed.blocks::<f32>().iter().flatten();
            let told = into.blocks_mut::<f64>().iter_mut().flatten();
            told.zip(owed).for_each(|(told, owed)| *told += f64::from(*owed));
        }
        Ok(())
    }

    /// How many bytes that reads.
    pub(super) fn read_bytes(&self) -> u64 {
        self.told.block_bytes() + if self.owes { self.owed.block_bytes() } else { 0 }
    }

    /// Reads blocks of what others are told.
    pub(super) fn read_told(&self, block: usize, into: &mut [u8]) -> Result<()> {
        self.told.read_bytes(block, into)
    }

    /// Multiplies what the pages of `blocks` blocks pass on, between solving and solving.
    pub(super) fn rescale(&mut self, blocks: usize, by: f64) -> Result<()> {
        let mut buffer = Buffer::for_blocks::<f64>(1);
        for block in 0..blocks {
            self.read_block(block, &mut buffer)?;
            buffer.blocks_mut::<f64>().iter_mut().flatten().for_each(|value| *value *= by);
            self.told.write(block, &buffer)?;
        }
        (self.owes, self.is_anew) = (false, false);
        Ok(())
    }

    /// What a scan reads now of the pages of a tile.
    pub(super) fn request(&self, tile: usize) -> Request {
        self.vector().request(tile * TILE, TILE)
    }

    /// The values of a block that is in memory.
    pub(super) fn read<'a>(&self, strip: &'a Strip, block: u16) -> Option<Read<'a>> {
        Some(match self.reads {
            Reads::All => Read::All(strip.block(block)?),
            Reads::Anew | Reads::Changes => {
                let scale = self.changes.scale(usize::from(block))?;
                Read::Changes(RoughBlock { values: strip.block(block)?, scale })
            }
        })
    }

    /// How many pieces of tiles a scan has in memory, and of how many bytes each.
    pub(super) fn pieces(&self) -> (usize, usize) {
        let bytes = TILE * self.vector().block_bytes() as usize;
        let count = match self.reads {
            // Where changes are kept, memory is short, and rounds that pass on all are few.
            Reads::All if self.by_changes => 1,
            Reads::All => 2,
            Reads::Anew | Reads::Changes => STRIP + AHEAD,
        };
        (count, bytes)
    }

    /// How many of them it uses at a time.
    pub(super) fn strip(&self) -> usize {
        match self.reads {
            Reads::All => 1,
            Reads::Anew | Reads::Changes => STRIP,
        }
    }

    fn vector(&self) -> &Vector {
        match self.reads {
            Reads::All => &self.told,
            Reads::Anew | Reads::Changes => &self.changes.vector,
        }
    }

    /// A block whose pages are to have new values.
    pub(super) fn turn(&self, block: usize) -> Result<Turn> {
        let mut turn = Turn::empty(self.by_changes);
        self.told.read(block, &mut turn.told)?;
        if self.reads == Reads::Changes {
            self.owed.read(block, &mut turn.owed)?;
        }
        Ok(turn)
    }

    /// The block's new values: in their place, or beside what is still being read.
    pub(super) fn end_turn(
        &self,
        block: usize,
        mut turn: Turn,
        differences: &Block,
        scan: Scan,
    ) -> Result<()> {
        let scale = turn.end(differences);
        let beside = scan == Scan::Power;
        let told = if beside && self.reads == Reads::All { &self.next_told } else { &self.told };
        told.write(block, &turn.told)?;
        if self.by_changes {
            self.owed.write(block, &turn.owed)?;
            let changes = if beside { &self.next_changes } else { &self.changes };
            changes.write(block, &turn.changes, scale)?;
        }
        Ok(())
    }

    /// Bytes read of a block by its turn, and bytes written.
    pub(super) fn turn_bytes(&self) -> (u64, u64) {
        let (told, owed) = (self.told.block_bytes(), self.owed.block_bytes());
        let read = if self.reads == Reads::Changes { told + owed } else { told };
        let changes = self.changes.vector.block_bytes();
        let written = if self.by_changes { told + owed + changes } else { told };
        (read, written)
    }
}

/// A block of pages while it gets its new values.
pub(super) struct Turn {
    told: Buffer,
    owed: Buffer,
    changes: Buffer,
    by_changes: bool,
}

impl Turn {
    fn empty(by_changes: bool) -> Self {
        Self {
            told: Buffer::for_blocks::<f64>(1),
            owed: Buffer::for_blocks::<f32>(1),
            changes: Buffer::for_blocks::<Rough>(1),
            by_changes,
        }
    }

    /// The pages of the block, and what each got; that is where their new values are kept until the turn ends.
    pub(super) fn places<'a>(&'a mut self, got: &'a mut Block) -> impl Iterator<Item = Place<'a>> {
        let told = self.told.blocks_mut::<f64>().iter_mut().flatten();
        let owed = self.owed.blocks::<f32>().iter().flatten();
        let by_changes = self.by_changes;
        told.zip(owed).zip(got).map(move |((told, owed), got)| Place { told, owed: *owed, got, by_changes })
    }

    /// Tells the differences between what pages pass on now and what they have told, as far as a change can.
    fn end(&mut self, differences: &Block) -> Scale {
        if !self.by_changes {
            return Scale::default();
        }
        let scale = Scale::of(differences.iter().fold(0.0, |most, difference| most.max(difference.abs())));
        let told = self.told.blocks_mut::<f64>().iter_mut().flatten();
        let owed = self.owed.blocks_mut::<f32>().iter_mut().flatten();
        let changes = self.changes.blocks_mut::<Rough>().iter_mut().flatten();
        for (((told, owed), change), difference) in told.zip(owed).zip(changes).zip(differences) {
            *change = scale.rough(*difference);
            // Sums of what is told are never less than nothing, if none of it is.
            if *told + scale.value(*change) < 0.0 {
                *change = change.smaller();
            }
            let change = scale.value(*change);
            *told += change;
            *owed = (difference - change) as f32;
        }
        scale
    }
}

/// A page while it gets its new value.
pub(super) struct Place<'a> {
    told: &'a mut f64,
    owed: f32,
    got: &'a mut f64,
    by_changes: bool,
}

impl Place<'_> {
    /// What links have brought it.
    pub(super) fn got(&self) -> f64 {
        *self.got
    }

    /// What others have been told that it passes on.
    pub(super) fn told(&self) -> f64 {
        *self.told
    }

    /// What it passes on.
    pub(super) fn passing(&self) -> f64 {
        *self.told + f64::from(self.owed)
    }

    /// It passes on `new` from now on.
    pub(super) fn pass_on(&mut self, new: f64) {
        if self.by_changes {
            *self.got = new - *self.told;
        } else {
            *self.told = new;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_told_less_than_nothing() {
        let (mut turn, mut got) = (Turn::empty(true), Buffer::for_blocks::<f64>(1));
        let got = &mut got.blocks_mut::<f64>()[0];
        // Each page has another value first, and a fiftieth of it then.
        let value = |page: usize| 1.0 / (page as f64 + 3413.0);
        for part in [1.0, 0.02, 0.0] {
            for _ in 0..12 {
                (0..).zip(turn.places(got)).for_each(|(page, mut place)| place.pass_on(value(page) * part));
                turn.end(got);
                let told = turn.told.blocks::<f64>()[0];
                assert!(told.iter().all(|told| *told >= 0.0), "{part}");
            }
            let told = turn.told.blocks::<f64>()[0];
            assert!((0..).zip(told).all(|(page, told)| (told - value(page) * part).abs() < 1e-9), "{part}");
        }
    }

    #[test]
    fn what_is_owed_is_told_in_the_end() {
        // Page 0 and page 1, whose change is a millionth of the other's.
        let wanted = [1.0 + std::f64::consts::PI / 1e3, std::f64::consts::E / 1e9];
        let (mut turn, mut heard) = (Turn::empty(true), [0.0; 2]);
        for digits in 1..=9 {
            let mut got = Buffer::for_blocks::<f64>(1);
            let got = &mut got.blocks_mut::<f64>()[0];
            turn.places(got).zip(wanted).for_each(|(mut place, wanted)| place.pass_on(wanted));
            let scale = turn.end(got);
            let changes = &turn.changes.blocks::<Rough>()[0];
            for page in 0..2 {
                heard[page] += scale.value(changes[page]);
            }
            for ((place, wanted), heard) in turn.places(got).zip(wanted).zip(heard) {
                assert!((place.passing() - wanted).abs() < 1e-9 * wanted, "told and owed are all there is");
                assert_eq!(heard, place.told(), "whoever adds up the changes knows what was told");
                assert!((wanted - heard).abs() <= wanted * 8f64.powi(-digits), "{digits}: {heard}");
            }
        }
    }
}
