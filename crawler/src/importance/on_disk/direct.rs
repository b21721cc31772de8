//! A round of importance: sums of a group of targets stay, sources go by.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;

use super::super::FixedPoint;
use super::super::kernel::{Block, forward, make_ready};
use super::super::power::Sums;
use super::halves::{at_once, in_halves};
use super::passed::{Read, Reads};
use super::strip::{Strip, strips};
use super::{OnDisk, Result, Scan, TILE, linked, value_of};
use crate::link_matrix::{Reader, Request};

impl OnDisk {
    /// Reads and decodes what a round of importance reads, the first one or a later one, and computes nothing: what rounds can be measured
    /// by. Says how many bytes that were.
    ///
    /// # Errors
    /// As [`OnDisk::importance`].
    pub fn read_only(&mut self, is_first: bool) -> Result<u64> {
        let (tiles, group) = (self.matrix.tiles(), self.group());
        let (links, mut bytes) = (AtomicU64::new(0), 0);
        match is_first {
            true => self.passing.begin(self.by_changes(), Scan::Power),
            false => self.passing.begin_later(self.by_changes()),
        }
        for first in (0..tiles).step_by(group) {
            let columns = first..tiles.min(first + group);
            let [one, other] = self.forward_readers(columns.clone(), tiles);
            let read_half = |mut reader: Reader, parity: u16| {
                let mut here = 0;
                for rows in strips(tiles, self.passing.strip()) {
                    let values = Strip::next(&mut reader, &rows)?;
                    let own = |from, to| (to % 2 == parity).then_some((to, from));
                    for _ in columns.clone() {
                        reader.frames(own, |cell| here += cell.positions.len() as u64)?;
                    }
                    values.give_back(&reader);
                }
                links.fetch_add(here, Ordering::Relaxed);
                Ok(())
            };
            at_once(|| read_half(one, 0), || read_half(other, 1))?;
            for row in 0..tiles {
                let frames = self.matrix.tile_row(row, columns.clone());
                bytes += self.passing.pieces().1 as u64 + (frames.end - frames.start);
            }
            let blocks = columns.start * TILE..columns.end * TILE;
            bytes += self.passing.turn_bytes().0 * blocks.len() as u64;
            let read = |block: usize| Ok((self.degrees(block)?, self.passing.turn(block)?));
            self.takers.install(|| blocks.into_par_iter().try_for_each(|block| read(block).map(drop)))?;
        }
        self.passing.end();
        debug_assert_eq!(links.into_inner(), self.matrix.links(), "every link once");
        Ok(bytes)
    }

    fn forward_readers<const READERS: usize>(
        &self,
        columns: Range<usize>,
        tiles: usize,
    ) -> [Reader; READERS] {
        // Of a column one request: what is in memory at once has the same targets.
        let of_column = |rows: Range<usize>, column: usize| {
            Request::frames(rows.map(|row| self.matrix.tile_row(row, column..column + 1)))
        };
        let of_strip = |rows: Range<usize>| {
            let frames = columns.clone().map(|column| of_column(rows.clone(), column));
            rows.clone().map(|row| self.passing.request(row)).chain(frames).collect::<Vec<_>>()
        };
        let requests: Vec<Request> = strips(tiles, self.passing.strip()).flat_map(of_strip).collect();
        Reader::start(&self.matrix, self.passing.pieces(), requests)
    }

    /// The factors of links and of E of a round: r is known beforehand.
    pub(super) fn next_factors(&self, scan: Scan) -> (f64, f64) {
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
        let (tiles, group) = (self.matrix.tiles(), self.group());
        let factors = self.next_factors(scan);
        let mut sums = Sums::default();
        let mut got = self.take_got();
        for first in (0..tiles).step_by(group) {
            let columns = first..tiles.min(first + group);
            got.bytes_mut().fill(0);
            in_halves(
                got.blocks_mut(),
                self.forward_readers(columns.clone(), tiles),
                |mut reader, mut half| {
                    let parity = half.parity();
                    for rows in strips(tiles, self.passing.strip()) {
                        let values = Strip::next(&mut reader, &rows)?;
                        let own = |from, to| (usize::from(to) % 2 == parity).then_some((to, from));
                        for _ in columns.clone() {
                            reader.frames(own, |cell| {
                                let into = half.block(usize::from(cell.to) - first * TILE);
                                let passing = self.passing.read(&values, cell.from);
                                if let (Some(into), Some(passing)) = (into, passing) {
                                    make_ready(into, cell.together);
                                    match passing {
                                        Read::All(values) => forward(cell.positions, values, into),
                                        Read::Changes(values) => forward(cell.positions, &values, into),
                                    }
                                }
                            })?;
                        }
                        values.give_back(&reader);
                    }
                    Ok(())
                },
            )?;
            let (_, piece_bytes) = self.passing.pieces();
            (0..tiles).for_each(|row| self.count(piece_bytes, self.matrix.tile_row(row, columns.clone())));
            let blocks = columns.len() * TILE;
            let got = got.blocks_mut().get_mut(..blocks).unwrap_or_default();
            self.take(first * TILE, got, factors, scan, &mut sums)?;
        }
        self.got = Some(got);
        (self.sums, self.factors) = (sums, factors);
        let change = sums.change / (sums.linked + sums.dangling);
        self.passing.end_round(scan, change);
        Ok(change)
    }

    /// Multiplies importance.
    pub(super) fn rescale(&mut self, by: f64) -> Result<()> {
        self.passing.rescale(self.blocks_padded(), by)?;
        self.sums = Sums { linked: self.sums.linked * by, dangling: self.sums.dangling * by, ..self.sums };
        Ok(())
    }

    /// From what the pages of blocks got to what they pass on next.
    pub(super) fn take(
        &mut self,
        first: usize,
        got: &mut [Block],
        factors: (f64, f64),
        scan: Scan,
        sums: &mut Sums,
    ) -> Result<()> {
        let of_block = |(at, got): (usize, &mut Block)| self.take_block(first + at, got, factors, scan);
        let all = || got.par_iter_mut().enumerate().map(of_block).collect::<Result<Vec<Sums>>>();
        let each = self.takers.install(all)?;
        each.iter().for_each(|of_block| sums.merge(of_block));
        let (read, written) = self.passing.turn_bytes();
        self.bytes += (read + written) * got.len() as u64;
        Ok(())
    }

    fn take_block(
        &self,
        block: usize,
        got: &mut Block,
        (by_links, by_e): (f64, f64),
        scan: Scan,
    ) -> Result<Sums> {
        let (more, mut named) = self.lift.of_named(block);
        let mut next = named.next();
        let (e_of_all, e_of_named) = {
            let share = self.lift.of_all() / f64::from(self.matrix.pages());
            (share, share + more)
        };
        let (by_links_before, by_e_before) = self.factors;
        let (changes, by_got) = (self.passing.reads() == Reads::Changes, 1.0 / by_links_before);
        let (degrees, places) = (self.degrees(block)?, self.places(block));
        let mut turn = self.passing.turn(block)?;
        let mut of_block = Sums::default();
        for (at, (mut place, degree)) in turn.places(got).zip(&degrees).take(places).enumerate() {
            let (mut got, mut e) = (place.got(), e_of_all);
            if next == Some(at) {
                e = e_of_named;
                next = named.next();
            }
            if changes {
                // Beside what it got before, which made what it has. Rounding must not leave less than nothing.
                let had = value_of(place.passing(), *degree);
                got = (got + (had - by_e_before * e) * by_got).max(0.0);
            }
            let value = by_links * got + by_e * e;
            of_block.change += (value - value_of(place.told(), *degree)).abs();
            let linked = linked(*degree);
            of_block.add(value, if linked { 1.0 } else { 0.0 });
            place.pass_on(if linked { value / f64::from(*degree) } else { value });
        }
        self.passing.end_turn(block, turn, got, scan)?;
        Ok(of_block)
    }
}
