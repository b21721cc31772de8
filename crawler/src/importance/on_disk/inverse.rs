//! A round of usefulness: sums of a group of sources stay, targets go by.

use rayon::prelude::*;

use super::super::kernel::{BLOCK, Block, backward};
use super::super::usefulness::Change;
use super::halves::in_halves;
use super::{OnDisk, Result, Scan, TILE, linked, value_of};
use crate::link_matrix::{BLOCK_BYTES, Buffer, Reader, Request};

impl OnDisk {
    pub(super) fn usefulness_round(&mut self, scan: Scan) -> Result<f64> {
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
            let readers = Reader::start(&self.matrix, (2, TILE), requests);
            in_halves(got.blocks_mut(), readers, |mut reader, mut half| {
                for column in 0..tiles {
                    let values = reader.vector()?;
                    for _ in rows.clone() {
                        reader.frames(|cell| {
                            let into = half.block(usize::from(cell.from) - first * TILE);
                            let to = usize::from(cell.to) - column * TILE;
                            if let (Some(values), Some(into)) = (values.blocks().get(to), into) {
                                backward(cell.positions, values, into);
                            }
                        })?;
                    }
                    reader.give_back(values);
                }
                Ok(())
            })?;
            for column in 0..tiles {
                rows.clone().for_each(|row| self.count(0, self.matrix.tile_row(row, column..column + 1)));
                self.count(1, 0..0);
            }
            let blocks = rows.len() * TILE;
            self.take_back(first * TILE, got.blocks().get(..blocks).unwrap_or_default(), scan, &mut change)?;
        }
        if scan == Scan::Power {
            std::mem::swap(&mut self.useful, &mut self.next_useful);
        }
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
        let each: Vec<Change> = got.par_iter().enumerate().map(of_block).collect::<Result<_>>()?;
        each.iter().for_each(|of_block| change.merge(of_block));
        self.bytes += 3 * BLOCK_BYTES * got.len() as u64;
        Ok(())
    }

    fn take_block_back(&self, block: usize, got: &Block, scan: Scan) -> Result<Change> {
        let c = self.settings.damping;
        let norm = self.sums.linked + self.sums.dangling;
        let (degrees, places) = (self.degrees(block)?, self.places(block));
        let (mut buffer, mut importance) = (Buffer::for_blocks(1), Buffer::for_blocks(1));
        self.useful.read(block, &mut buffer)?;
        self.passing.read(block, &mut importance)?;
        let known = importance.blocks().iter().flatten();
        let values = buffer.blocks_mut().iter_mut().flatten().zip(got).zip(&degrees).zip(known).take(places);
        let mut change = Change::default();
        for (page, (((useful, got), degree), passing)) in (block * BLOCK..).zip(values) {
            let own = if self.interest.has(page) { value_of(*passing, *degree) / norm } else { 0.0 };
            let back = if linked(*degree) { got / f64::from(*degree) } else { 0.0 };
            let value = c * back + (1.0 - c) * own;
            change.add(*useful, value);
            *useful = value;
        }
        let into = if scan == Scan::Power { &self.next_useful } else { &self.useful };
        into.write(block, &buffer)?;
        Ok(change)
    }
}
