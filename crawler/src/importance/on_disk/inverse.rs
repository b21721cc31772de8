//! A round of usefulness: sums of a group of sources stay, targets go by.

use std::ops::Range;

use rayon::prelude::*;

use super::super::kernel::{Block, backward, make_ready};
use super::super::usefulness::Change;
use super::halves::in_halves;
use super::passed::{Read, Reads};
use super::strip::{Strip, strips};
use super::{OnDisk, Result, Scan, TILE, linked, value_of};
use crate::link_matrix::{Buffer, Reader, Request};

impl OnDisk {
    pub(super) fn usefulness_round(&mut self, scan: Scan) -> Result<f64> {
        let (tiles, group) = (self.matrix.tiles(), self.group());
        let mut change = Change::default();
        let mut got = self.take_got();
        for first in (0..tiles).step_by(group) {
            let rows = first..tiles.min(first + group);
            got.bytes_mut().fill(0);
            let of_strip = |columns: Range<usize>| {
                // Of a row one request: what is in memory at once has the same sources.
                let of_row = |row| Request::Frames(vec![self.matrix.tile_row(row, columns.clone())]);
                let frames = rows.clone().map(of_row);
                columns.clone().map(|column| self.useful.request(column)).chain(frames).collect::<Vec<_>>()
            };
            let requests: Vec<Request> = strips(tiles, self.useful.strip()).flat_map(of_strip).collect();
            let readers = Reader::start(&self.matrix, self.useful.pieces(), requests);
            in_halves(got.blocks_mut(), readers, |mut reader, mut half| {
                let parity = half.parity();
                let own = |from, to| (usize::from(from) % 2 == parity).then_some((from, to));
                for columns in strips(tiles, self.useful.strip()) {
                    let values = Strip::next(&mut reader, &columns)?;
                    for _ in rows.clone() {
                        reader.frames(own, |cell| {
                            let into = half.block(usize::from(cell.from) - first * TILE);
                            let has = self.useful.read(&values, cell.to);
                            if let (Some(into), Some(has)) = (into, has) {
                                make_ready(into, cell.together);
                                match has {
                                    Read::All(values) => backward(cell.positions, values, into),
                                    Read::Changes(values) => backward(cell.positions, &values, into),
                                }
                            }
                        })?;
                    }
                    values.give_back(&reader);
                }
                Ok(())
            })?;
            for column in 0..tiles {
                rows.clone().for_each(|row| self.count(0, self.matrix.tile_row(row, column..column + 1)));
                self.count(self.useful.pieces().1, 0..0);
            }
            let blocks = rows.len() * TILE;
            let got = got.blocks_mut().get_mut(..blocks).unwrap_or_default();
            self.take_back(first * TILE, got, scan, &mut change)?;
        }
        self.got = Some(got);
        self.useful.end_round(scan, change.relative());
        Ok(change.relative())
    }

    /// From what the pages of blocks got back to how useful they are.
    pub(super) fn take_back(
        &mut self,
        first: usize,
        got: &mut [Block],
        scan: Scan,
        change: &mut Change,
    ) -> Result<()> {
        let of_block = |(at, got): (usize, &mut Block)| self.take_block_back(first + at, got, scan);
        let all = || got.par_iter_mut().enumerate().map(of_block).collect::<Result<Vec<Change>>>();
        let each = self.takers.install(all)?;
        each.iter().for_each(|of_block| change.merge(of_block));
        let (read, written) = self.useful.turn_bytes();
        let known = if self.useful.reads() == Reads::Changes { 0 } else { self.known_bytes() };
        self.bytes += (read + written + known) * got.len() as u64;
        Ok(())
    }

    /// Bytes of a block's importance and interest.
    fn known_bytes(&self) -> u64 {
        self.passing.read_bytes() + self.interest.block_bytes()
    }

    fn take_block_back(&self, block: usize, got: &mut Block, scan: Scan) -> Result<Change> {
        let c = self.settings.damping;
        let norm = self.sums.linked + self.sums.dangling;
        let (degrees, places) = (self.degrees(block)?, self.places(block));
        let changes = self.useful.reads() == Reads::Changes;
        let mut turn = self.useful.turn(block)?;
        let mut change = Change::default();
        let share = |degree: u16| if linked(degree) { 1.0 / f64::from(degree) } else { 0.0 };
        if changes {
            // Beside what came back before and made, with its own part, what it has. Rounding must not leave less than nothing.
            for (mut place, degree) in turn.places(got).zip(&degrees).take(places) {
                let value = (place.passing() + c * place.got() * share(*degree)).max(0.0);
                change.add(place.told(), value);
                place.pass_on(value);
            }
        } else {
            let (mut importance, mut interest) = (Buffer::for_blocks::<f64>(1), Buffer::for_blocks::<u8>(1));
            self.passing.read_block(block, &mut importance)?;
            self.interest.read(block, &mut interest)?;
            let known = importance.blocks::<f64>().iter().flatten().zip(interest.bytes());
            let values = turn.places(got).zip(&degrees).zip(known).take(places);
            for ((mut place, degree), (passing, of_interest)) in values {
                let own = if *of_interest != 0 { value_of(*passing, *degree) / norm } else { 0.0 };
                let value = c * place.got() * share(*degree) + (1.0 - c) * own;
                change.add(place.told(), value);
                place.pass_on(value);
            }
        }
        self.useful.end_turn(block, turn, got, scan)?;
        Ok(change)
    }
}
