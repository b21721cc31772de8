//! A round of importance: sums of a group of targets stay, sources go by.

use rayon::prelude::*;

use super::super::FixedPoint;
use super::super::kernel::{Block, forward};
use super::super::power::Sums;
use super::halves::in_halves;
use super::{OnDisk, Result, Scan, TILE, linked, value_of};
use crate::link_matrix::{BLOCK_BYTES, Buffer, Reader, Request};

impl OnDisk {
    /// Reads and decodes what a round of importance reads, and computes nothing: what a round can be measured by.
    ///
    /// # Errors
    /// As [`OnDisk::importance`].
    pub fn read_only(&mut self) -> Result<u64> {
        let (tiles, group) = (self.matrix.tiles(), self.group(1, 0));
        let (mut links, before) = (0, self.bytes);
        for first in (0..tiles).step_by(group) {
            let columns = first..tiles.min(first + group);
            let [mut reader] = self.forward_readers(columns.clone(), tiles);
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

    fn forward_readers<const READERS: usize>(
        &self,
        columns: std::ops::Range<usize>,
        tiles: usize,
    ) -> [Reader; READERS] {
        let (matrix, file) = (self.matrix.clone(), self.passing.file.clone());
        let requests = (0..tiles).flat_map(move |row| {
            let values = Request::Vector { file: file.clone(), first: row * TILE, count: TILE };
            [values, Request::Frames(matrix.tile_row(row, columns.clone()))]
        });
        Reader::start(&self.matrix, (2, TILE), requests)
    }

    /// The factors of links and of E of a round: r is known beforehand.
    pub(super) fn factors(&self, scan: Scan) -> (f64, f64) {
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

    pub(super) fn importance_round(&mut self, scan: Scan) -> Result<f64> {
        let (tiles, group) = (self.matrix.tiles(), self.group(1, 0));
        let factors = self.factors(scan);
        let mut sums = Sums::default();
        let mut got = Buffer::for_blocks(group.min(tiles.max(1)) * TILE);
        for first in (0..tiles).step_by(group) {
            let columns = first..tiles.min(first + group);
            got.bytes_mut().fill(0);
            in_halves(
                got.blocks_mut(),
                self.forward_readers(columns.clone(), tiles),
                |mut reader, mut half| {
                    for row in 0..tiles {
                        let values = reader.vector()?;
                        reader.frames(|cell| {
                            let from = usize::from(cell.from) - row * TILE;
                            let into = half.block(usize::from(cell.to) - first * TILE);
                            if let (Some(values), Some(into)) = (values.blocks().get(from), into) {
                                forward(cell.positions, values, into);
                            }
                        })?;
                        reader.give_back(values);
                    }
                    Ok(())
                },
            )?;
            (0..tiles).for_each(|row| self.count(1, self.matrix.tile_row(row, columns.clone())));
            let blocks = columns.len() * TILE;
            let got = got.blocks().get(..blocks).unwrap_or_default();
            self.take(first * TILE, got, factors, scan, &mut sums)?;
        }
        if scan == Scan::Power {
            std::mem::swap(&mut self.passing, &mut self.next_passing);
        }
        self.sums = sums;
        Ok(sums.change / (sums.linked + sums.dangling))
    }

    /// Multiplies importance.
    pub(super) fn rescale(&mut self, by: f64) -> Result<()> {
        let mut buffer = Buffer::for_blocks(1);
        for block in 0..self.blocks_padded() {
            self.passing.read(block, &mut buffer)?;
            buffer.blocks_mut().iter_mut().flatten().for_each(|value| *value *= by);
            self.passing.write(block, &buffer)?;
        }
        self.sums = Sums { linked: self.sums.linked * by, dangling: self.sums.dangling * by, ..self.sums };
        Ok(())
    }

    /// From what the pages of blocks got to what they pass on next.
    pub(super) fn take(
        &mut self,
        first: usize,
        got: &[Block],
        factors: (f64, f64),
        scan: Scan,
        sums: &mut Sums,
    ) -> Result<()> {
        let of_block = |(at, got): (usize, &Block)| self.take_block(first + at, got, factors, scan);
        let each: Vec<Sums> = got.par_iter().enumerate().map(of_block).collect::<Result<_>>()?;
        each.iter().for_each(|of_block| sums.merge(of_block));
        self.bytes += 2 * BLOCK_BYTES * got.len() as u64;
        Ok(())
    }

    fn take_block(
        &self,
        block: usize,
        got: &Block,
        (by_links, by_e): (f64, f64),
        scan: Scan,
    ) -> Result<Sums> {
        let share = by_e * self.lift.of_all() / f64::from(self.matrix.pages());
        let (more, mut named) = self.lift.of_named(block);
        let mut next = named.next();
        let (degrees, places) = (self.degrees(block)?, self.places(block));
        let mut buffer = Buffer::for_blocks(1);
        self.passing.read(block, &mut buffer)?;
        let mut of_block = Sums::default();
        let values = buffer.blocks_mut().iter_mut().flatten().zip(got).zip(&degrees).take(places);
        for (place, ((passing, got), degree)) in values.enumerate() {
            let mut value = by_links * got + share;
            if next == Some(place) {
                value += by_e * more;
                next = named.next();
            }
            of_block.change += (value - value_of(*passing, *degree)).abs();
            let linked = linked(*degree);
            of_block.add(value, if linked { 1.0 } else { 0.0 });
            *passing = if linked { value / f64::from(*degree) } else { value };
        }
        let into = if scan == Scan::Power { &self.next_passing } else { &self.passing };
        into.write(block, &buffer)?;
        Ok(of_block)
    }
}
