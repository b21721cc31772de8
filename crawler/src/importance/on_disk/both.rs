//! A round of both at once.

use super::super::kernel::{backward, forward};
use super::super::power::Sums;
use super::super::usefulness::Change;
use super::halves::at_once;
use super::vector::Vector;
use super::{OnDisk, Result, Scan, TILE, TILE_BYTES};
use crate::link_matrix::{Buffer, Reader, Request};

impl OnDisk {
    /// Importance and usefulness in one scan: rows resident, sums of columns go by.
    pub(super) fn both_round(&mut self) -> Result<f64> {
        let (tiles, group) = (self.matrix.tiles(), self.group_of_both());
        // Where memory is for one tile alone, one piece of a vector has to do as well.
        let ahead = if group == 1 { 1 } else { 2 };
        let so_far = Vector::create(&*self.disk, &self.dir.join("sums"), size_of::<f64>())?;
        let factors = self.next_factors(Scan::Power);
        let (mut sums, mut change) = (Sums::default(), Change::default());
        self.got = None;
        let resident = group.min(tiles.max(1)) * TILE;
        let mut passing = Buffer::for_blocks::<f64>(resident);
        let mut got_back = Buffer::for_blocks::<f64>(resident);
        let mut got = Buffer::for_blocks::<f64>(TILE);
        for first in (0..tiles).step_by(group) {
            let rows = first..tiles.min(first + group);
            got_back.bytes_mut().fill(0);
            let of_rows = passing.bytes_mut().get_mut(..rows.len() * TILE_BYTES).unwrap_or_default();
            self.passing.read_told(first * TILE, of_rows)?;
            let frames = |row, column| Request::Frames(vec![self.matrix.tile_row(row, column..column + 1)]);
            let requests: Vec<Request> = (0..tiles)
                .flat_map(|column| {
                    let frames = rows.clone().map(move |row| frames(row, column));
                    std::iter::once(self.useful.request(column)).chain(frames)
                })
                .collect();
            let [forth, back] = Reader::start(&self.matrix, (ahead, TILE_BYTES), requests);
            // Each thread decodes all links, and adds up in one direction.
            at_once(
                || {
                    let mut reader = forth;
                    for column in 0..tiles {
                        let useful = reader.vector()?;
                        match first {
                            0 => got.bytes_mut().fill(0),
                            _ => so_far.read(column * TILE, &mut got)?,
                        }
                        for row in rows.clone() {
                            reader.frames(
                                |_, _| Some((0, 0)),
                                |cell| {
                                    let from = usize::from(cell.from) - first * TILE;
                                    let to = usize::from(cell.to) - column * TILE;
                                    let got = got.blocks_mut::<f64>().get_mut(to);
                                    let passing = passing.blocks::<f64>().get(from);
                                    if let (Some(passing), Some(got)) = (passing, got) {
                                        forward(cell.positions, passing, got);
                                    }
                                },
                            )?;
                            self.count(0, self.matrix.tile_row(row, column..column + 1));
                        }
                        reader.give_back(useful);
                        self.count(3 * TILE_BYTES, 0..0);
                        if rows.end == tiles {
                            self.take(column * TILE, got.blocks_mut(), factors, Scan::Power, &mut sums)?;
                        } else {
                            so_far.write(column * TILE, &got)?;
                        }
                    }
                    Ok(())
                },
                || {
                    let mut reader = back;
                    for column in 0..tiles {
                        let useful = reader.vector()?;
                        for _ in rows.clone() {
                            reader.frames(
                                |_, _| Some((0, 0)),
                                |cell| {
                                    let from = usize::from(cell.from) - first * TILE;
                                    let to = usize::from(cell.to) - column * TILE;
                                    let into = got_back.blocks_mut::<f64>().get_mut(from);
                                    let useful = useful.blocks::<f64>().get(to);
                                    if let (Some(useful), Some(into)) = (useful, into) {
                                        backward(cell.positions, useful, into);
                                    }
                                },
                            )?;
                        }
                        reader.give_back(useful);
                    }
                    Ok(())
                },
            )?;
            let blocks = rows.len() * TILE;
            let got = got_back.blocks_mut().get_mut(..blocks).unwrap_or_default();
            self.take_back(first * TILE, got, Scan::Power, &mut change)?;
        }
        self.passing.end_round(Scan::Power, sums.change);
        self.useful.end_round(Scan::Power, change.relative());
        (self.sums, self.factors) = (sums, factors);
        Ok((sums.change / (sums.linked + sums.dangling)).max(change.relative()))
    }
}
