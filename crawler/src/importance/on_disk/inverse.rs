//! A round of usefulness: sums of a group of sources stay, targets go by.

use rayon::prelude::*;
use zerocopy::{FromBytes, Immutable};

use super::super::kernel::{BLOCK, Block, Read, backward};
use super::super::rough::Rough;
use super::super::usefulness::Change;
use super::halves::in_halves;
use super::passed::Reads;
use super::{OnDisk, Result, Scan, TILE, linked, value_of};
use crate::link_matrix::{BLOCK_BYTES, Buffer, Cell, Reader, Request};

impl OnDisk {
    pub(super) fn usefulness_round(&mut self, scan: Scan) -> Result<f64> {
        let (tiles, group, reads) = (self.matrix.tiles(), self.group(), self.useful.reads());
        let mut change = Change::default();
        let mut got = self.take_got();
        for first in (0..tiles).step_by(group) {
            let rows = first..tiles.min(first + group);
            got.bytes_mut().fill(0);
            let frames = |row, column| Request::Frames(self.matrix.tile_row(row, column..column + 1));
            let requests: Vec<Request> = (0..tiles)
                .flat_map(|column| {
                    let frames = rows.clone().map(move |row| frames(row, column));
                    std::iter::once(self.useful.request(column)).chain(frames)
                })
                .collect();
            let readers = Reader::start(&self.matrix, self.useful.pieces(), requests.into_iter());
            in_halves(got.blocks_mut(), readers, |mut reader, mut half| {
                let parity = half.parity();
                let is_own = |from, _| usize::from(from) % 2 == parity;
                for column in 0..tiles {
                    let values = reader.vector()?;
                    for _ in rows.clone() {
                        reader.frames(is_own, |cell| {
                            let into = half.block(usize::from(cell.from) - first * TILE);
                            let to = usize::from(cell.to) - column * TILE;
                            if let Some(into) = into {
                                match reads {
                                    Reads::All => backward_from::<f64>(&cell, &values, to, into),
                                    Reads::Changes => backward_from::<Rough>(&cell, &values, to, into),
                                }
                            }
                        })?;
                    }
                    reader.give_back(values);
                }
                Ok(())
            })?;
            for column in 0..tiles {
                rows.clone().for_each(|row| self.count(0, self.matrix.tile_row(row, column..column + 1)));
                self.count(self.useful.pieces().1, 0..0);
            }
            let blocks = rows.len() * TILE;
            self.take_back(first * TILE, got.blocks().get(..blocks).unwrap_or_default(), scan, &mut change)?;
        }
        self.got = Some(got);
        self.useful.end_round(scan, change.relative());
        Ok(change.relative())
    }

    /// From what the pages of blocks got back to how useful they are.
    pub(super) fn take_back(
        &mut self,
        first: usize,
        got: &[Block],
        scan: Scan,
        change: &mut Change,
    ) -> Result<()> {
        let of_block = |(at, got): (usize, &Block)| self.take_block_back(first + at, got, scan);
        let all = || got.par_iter().enumerate().map(of_block).collect::<Result<Vec<Change>>>();
        let each = self.takers.install(all)?;
        each.iter().for_each(|of_block| change.merge(of_block));
        let (read, written) = self.useful.turn_bytes();
        self.bytes += (read + written + BLOCK_BYTES) * got.len() as u64;
        Ok(())
    }

    fn take_block_back(&self, block: usize, got: &Block, scan: Scan) -> Result<Change> {
        let c = self.settings.damping;
        let norm = self.sums.linked + self.sums.dangling;
        let (degrees, places) = (self.degrees(block)?, self.places(block));
        let changes = self.useful.reads() == Reads::Changes;
        let (mut turn, mut importance) = (self.useful.turn(block)?, Buffer::for_blocks::<f64>(1));
        self.passing.told.read(block, &mut importance)?;
        let known = importance.blocks::<f64>().iter().flatten();
        let values = turn.places().zip(got).zip(&degrees).zip(known).take(places);
        let mut change = Change::default();
        for (page, (((mut place, got), degree), passing)) in (block * BLOCK..).zip(values) {
            let own = if self.interest.has(page) { value_of(*passing, *degree) / norm } else { 0.0 };
            let mut back = if linked(*degree) { got / f64::from(*degree) } else { 0.0 };
            if changes {
                // Beside what came back before, which made what it has. Rounding must not leave less than nothing.
                back = (back + (place.passing() - (1.0 - c) * own) / c).max(0.0);
            }
            let value = c * back + (1.0 - c) * own;
            change.add(place.told(), value);
            place.pass_on(value);
        }
        self.useful.end_turn(block, &turn, scan)?;
        Ok(change)
    }
}

/// Adds up a cell's links to block `to` of a piece of a vector of such values.
fn backward_from<V: Read + FromBytes + Immutable>(
    cell: &Cell<'_>,
    piece: &Buffer,
    to: usize,
    into: &mut Block,
) {
    if let Some(values) = piece.blocks::<V>().get(to) {
        backward(cell.positions, values, into);
    }
}
